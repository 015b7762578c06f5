/* SPDX-License-Identifier: MIT
 *
 * step.hip - steps of programs (kernels/program/code.h) on the GPUs of one node: kernels/cpu/step.c on a GPU. The slices are all_reduce's
 * (vector_reduce.hip), and so is the memory order: the owner of a slice adds up all ranks' inputs, executes the code, whose stores are to tensors that no
 * other rank reads or stores here, and stores the result at all ranks.
 *
 * The kernel interprets the code. Each thread has AT_ONCE elements of each register in its local memory, of which a multiprocessor's cache holds those
 * that a usual step has. All threads execute one instruction at a time, so branches by instruction cost no divergence; and no two instructions are
 * joined, so an element has the same bits in whatever group its statement runs.
 */
#include "kernels/gpu/device/exchange/combine.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/device/vector_parts.h"
#include "kernels/gpu/step.h"

enum { THREADS = 512, RESIDENT = 2, AT_ONCE = 4 };

struct step_code {
    const struct gpu_step *step;
    const struct code_head *head;
    const struct code_operand *operands;
    const struct code_instruction *instructions;
};

GPU_DEVICE struct step_code step_code_at(uint64_t numbers)
{
    struct step_code c;

    c.step = (const struct gpu_step *)numbers;
    c.head = (const struct code_head *)(c.step + 1);
    c.operands = (const struct code_operand *)(c.head + 1);
    c.instructions = (const struct code_instruction *)(c.operands + (c.head->kind == CODE_TEXT ? 0 : c.head->operands));
    return c;
}

/* ---- elements ---- */

GPU_DEVICE float step_element(uint64_t at, int64_t dtype, int64_t i)
{
    if (dtype == FCC_F32)
        return ((const float *)at)[i];
    if (dtype == FCC_F16)
        return gpu_to_f32(((const gpu_f16 *)at)[i]);
    return gpu_to_f32(((const gpu_bf16 *)at)[i]);
}

GPU_DEVICE void step_element_store(uint64_t at, int64_t dtype, int64_t i, float x)
{
    if (dtype == FCC_F32)
        ((float *)at)[i] = x;
    else if (dtype == FCC_F16)
        gpu_from_f32((gpu_f16 *)at + i, x);
    else
        gpu_from_f32((gpu_bf16 *)at + i, x);
}

template <typename T> GPU_DEVICE float step_rounded(float x)
{
    T rounded;

    gpu_from_f32(&rounded, x);
    return gpu_to_f32(rounded);
}

/* As dropout_bits() in kernels/program/program.h, so that the mask is the same on all devices. */
GPU_DEVICE uint32_t step_dropout_bits(uint64_t key, uint64_t element)
{
    uint64_t x = key + element * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) >> 40);
}

/* ---- instructions: kernels/cpu/step.c has the same expressions ----
 *
 * Of AT_ONCE elements each: the branch by instruction is taken once for all of them. `to` may be a or b. */

#define STEP_SINGLE(OPERATION, EXPRESSION)                                                                                     \
    case OPERATION:                                                                                                            \
        _Pragma("unroll") for (int u = 0; u < AT_ONCE; u++)                                                                    \
        {                                                                                                                      \
            const float x = a[u];                                                                                              \
            to[u] = (float)(EXPRESSION);                                                                                       \
        }                                                                                                                      \
        break;
#define STEP_PAIR(OPERATION, EXPRESSION)                                                                                       \
    case OPERATION:                                                                                                            \
        _Pragma("unroll") for (int u = 0; u < AT_ONCE; u++)                                                                    \
        {                                                                                                                      \
            const float x = a[u], y = b[u];                                                                                    \
            to[u] = (float)(EXPRESSION);                                                                                       \
        }                                                                                                                      \
        break;

GPU_DEVICE void step_operation(uint32_t op, float (&to)[AT_ONCE], const float (&a)[AT_ONCE], const float (&b)[AT_ONCE])
{
    switch (op) {
        STEP_PAIR(OP_ADD, x + y)
        STEP_PAIR(OP_SUB, x - y)
        STEP_PAIR(OP_MUL, x * y)
        STEP_PAIR(OP_DIV, x / y)
        STEP_PAIR(OP_LT, x < y)
        STEP_PAIR(OP_LE, x <= y)
        STEP_PAIR(OP_GT, x > y)
        STEP_PAIR(OP_GE, x >= y)
        STEP_PAIR(OP_EQ, x == y)
        STEP_PAIR(OP_NE, x != y)
        STEP_PAIR(OP_MAX, x > y || x != x ? x : y)
        STEP_PAIR(OP_MIN, x < y || x != x ? x : y)
        STEP_PAIR(OP_POW, powf(x, y))
        STEP_SINGLE(OP_NEG, -x)
        STEP_SINGLE(OP_ABS, fabsf(x))
        STEP_SINGLE(OP_SQRT, sqrtf(x))
        STEP_SINGLE(OP_RSQRT, 1.0f / sqrtf(x))
        STEP_SINGLE(OP_EXP, expf(x))
        STEP_SINGLE(OP_LOG, logf(x))
        STEP_SINGLE(OP_TANH, tanhf(x))
        STEP_SINGLE(OP_SIGMOID, 1.0f / (1.0f + expf(-x)))
        STEP_SINGLE(OP_RELU, x > 0 || x != x ? x : 0)
        STEP_SINGLE(OP_GELU, 0.5f * x * (1.0f + erff(x * 0.70710678f)))
        STEP_SINGLE(OP_SILU, x / (1.0f + expf(-x)))
        STEP_SINGLE(OP_F16, step_rounded<gpu_f16>(x))
        STEP_SINGLE(OP_BF16, step_rounded<gpu_bf16>(x))
        STEP_SINGLE(OP_F32, x)
    default: /* code_read() lets no other through */
        break;
    }
}

/* A thread's elements: `first`, and every `apart`-th one behind it, as many as there are before `end`; all of the same register together. */
struct step_thread {
    alignas(16) float r[CODE_REGISTERS][AT_ONCE];
    int64_t first, apart, end;

    __device__ __forceinline__ bool has(int u) const
    {
        return first + u * apart < end;
    }

    __device__ __forceinline__ void load(const struct step_code &c, const struct code_instruction &i)
    {
        const struct code_operand o = c.operands[i.from[1]];
        const uint64_t at = c.step->tensor[o.tensor];
        const int64_t dtype = c.step->dtype[o.tensor];

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t e = first + u * apart;
            float x = 0;
            if (has(u))
                x = step_element(at, dtype,
                                 o.index == CODE_OWN     ? e - c.step->begin
                                 : o.index == CODE_WHOLE ? e
                                                         : e / o.div % o.length);
            r[i.to][u] = x;
        }
    }

    __device__ __forceinline__ void store(const struct step_code &c, const struct code_instruction &i) const
    {
        const int64_t tensor = c.operands[i.from[1]].tensor;

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (has(u))
                step_element_store(c.step->tensor[tensor], c.step->dtype[tensor], first + u * apart - c.step->begin,
                                   r[i.from[0]][u]);
    }

    __device__ __forceinline__ void dropout(const struct code_instruction &i)
    {
        const uint32_t dropped = (uint32_t)ceil(i.number * 16777216.0);
        const float keep = (float)(1 - i.number);

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const float x = r[i.from[0]][u];
            r[i.to][u] = step_dropout_bits(i.key, (uint64_t)(first + u * apart)) < dropped ? 0 : x / keep;
        }
    }

    __device__ __forceinline__ void select(const struct code_instruction &i)
    {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            r[i.to][u] = r[i.from[0]][u] != 0 ? r[i.from[1]][u] : r[i.from[2]][u];
    }

    __device__ __forceinline__ void number(const struct code_instruction &i)
    {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            r[i.to][u] = (float)i.number;
    }

    __device__ __forceinline__ void execute(const struct step_code &c, const struct code_instruction &i)
    {
        if (i.op == CODE_LOAD) {
            load(c, i);
        } else if (i.op == CODE_STORE) {
            store(c, i);
        } else if (i.op == CODE_NUMBER) {
            number(i);
        } else if (i.op == OP_DROPOUT) {
            dropout(i);
        } else if (i.op == OP_SELECT) {
            select(i);
        } else {
            float a[AT_ONCE], b[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                a[u] = r[i.from[0]][u];
                b[u] = r[i.from[1] % CODE_REGISTERS][u]; /* checked only where an operation has two operands */
            }
            step_operation(i.op, r[i.to], a, b);
        }
    }
};

/* ---- kernels ---- */

template <typename T> struct program_step {
    /* The sums of all ranks' inputs, in rank order. */
    static __device__ __forceinline__ void sums(const struct gpu_call &call, struct step_thread *t)
    {
        const uint32_t nranks = call.fixed->shape.nranks;

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t e = t->first + u * t->apart;
            float sum = 0;
            for (uint32_t r = 0; r < nranks && t->has(u); r++) {
                const float x = gpu_to_f32(((const T *)call.out[r].in)[e]);
                sum = r ? sum + x : x;
            }
            t->r[0][u] = sum;
        }
    }

    static __device__ __forceinline__ void results(const struct gpu_call &call, const struct gpu_plan *plan,
                                                   const struct slice &s, const struct step_code &c,
                                                   const struct step_thread &t)
    {
        const uint32_t nranks = call.fixed->shape.nranks;

        for (uint32_t r = 0; r < nranks; r++) {
            const uint32_t dst = gpu_rank_at(r, plan->rank, nranks);
            if (!gpu_plan_reaches(plan, s.dst, dst))
                continue;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                if (t.has(u))
                    step_element_store(call.out[dst].data, c.step->dtype[CODE_OUT], t.first + u * t.apart,
                                       t.r[c.head->result][u]);
        }
    }

    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        const struct gpu_plan *plan = gpu_plan_of(call, run);
        const struct gpu_shape &shape = call.fixed->shape;
        const struct step_code c = step_code_at(call.in[run].vector.parts);
        const bool reduces = c.head->kind == CODE_REDUCE;
        const struct vector_piece piece = reduces ? vector_piece_reduced(shape, plan->rank, s)
                                                  : vector_piece_make(shape, c.step->begin + (int64_t)s.col * shape.unit,
                                                                      s.cols, c.step->begin + c.step->count);
        const int instructions = (int)c.head->instructions;
        int numbers = 0; /* they come first, and their registers keep them */
        struct step_thread t;

        for (; numbers < instructions && c.instructions[numbers].op == CODE_NUMBER; numbers++)
            t.number(c.instructions[numbers]);
        t.apart = blockDim.x;
        t.end = piece.at + piece.count;
        for (t.first = piece.at + threadIdx.x; t.first < t.end; t.first += AT_ONCE * t.apart) {
            if (reduces)
                sums(call, &t);
            for (int i = numbers; i < instructions; i++) {
                const struct code_instruction one = c.instructions[i];
                t.execute(c, one);
            }
            if (reduces)
                results(call, plan, s, c, t);
        }
        return true;
    }
};

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) program_step_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct program_step<T> op;

    gpu_execute(call, op);
}

template <typename T> static const void *function_of()
{
    return (const void *)program_step_kernel<T>;
}

bool gpu_step_fits(const struct gpu_shape *shape, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {GPU_BY_DTYPE(shape->dtype, function_of), THREADS, 0, 0};
    return true;
}
