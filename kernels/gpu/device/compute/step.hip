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
#include "kernels/gpu/device/exchange/step_sums.h"
#include "kernels/gpu/device/registry.h"

enum { THREADS = STEP_THREADS, RESIDENT = 2, AT_ONCE = STEP_OWN };

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

/* A thread's elements: `first`, and every `apart`-th one behind it, those of them that are in [lower, end); all of the same register together. */
struct step_thread {
    alignas(16) float r[CODE_REGISTERS][AT_ONCE];
    int64_t first, apart, lower, end;
    int64_t tensor; /* of the table, if there is one: that of the elements */

    __device__ __forceinline__ bool has(int u) const
    {
        const int64_t e = first + u * apart;

        return e >= lower && e < end;
    }

    /* Where element e of all is in an operand's tensor. */
    __device__ __forceinline__ int64_t place(const struct step_code &c, const struct code_operand &o, int64_t e) const
    {
        if (o.index == CODE_TENSOR)
            return tensor;
        if (o.index == CODE_EACH)
            return (e - c.step->begin) / o.div;
        if (o.index == CODE_STRETCHED)
            return e / o.div % o.length;
        if (o.index == CODE_PART)
            return (e - c.step->begin) / o.length * o.div + (e - c.step->begin) % o.length;
        return (o.index == CODE_OWN ? e - c.step->begin : e) + step_shift(c.step, (int)o.tensor, tensor);
    }

    __device__ __forceinline__ void load(const struct step_code &c, const struct code_instruction &i)
    {
        const struct code_operand o = c.operands[i.from[1]];
        const uint64_t at = c.step->tensor[o.tensor];
        const int64_t dtype = c.step->dtype[o.tensor];

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            float x = 0;
            if (has(u))
                x = step_element(at, dtype, place(c, o, first + u * apart));
            r[i.to][u] = x;
        }
    }

    __device__ __forceinline__ void store(const struct step_code &c, const struct code_instruction &i) const
    {
        const struct code_operand o = c.operands[i.from[1]];

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++)
            if (has(u))
                step_element_store(c.step->tensor[o.tensor], c.step->dtype[o.tensor], place(c, o, first + u * apart),
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
    enum { LANES = CODE_SUMS_MAX, KNOWN = 0 };
    const struct gpu_call *call;
    const struct gpu_plan *plan;
    const struct slice *s;
    struct step_code c;
    struct step_thread t;
    int numbers; /* instructions that come first, and whose registers keep their numbers */
    int nsums;

    __device__ __forceinline__ bool reduces() const
    {
        return c.head->kind == CODE_REDUCE;
    }

    __device__ __forceinline__ bool gives() const
    {
        return c.head->result != CODE_NO_RESULT;
    }

    /* The sums of all ranks' inputs, in rank order. */
    __device__ __forceinline__ void inputs_add()
    {
        const uint32_t nranks = call->fixed->shape.nranks;

#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int64_t e = t.first + u * t.apart;
            float sum = 0;
            for (uint32_t r = 0; r < nranks && t.has(u); r++) {
                const float x =
                    gpu_to_f32(((const T *)call->out[r].in)[e + step_shift(c.step, GPU_STEP_IN + (int)r, t.tensor)]);
                sum = r ? sum + x : x;
            }
            t.r[0][u] = sum;
        }
    }

    __device__ __forceinline__ void results_store() const
    {
        const uint32_t nranks = call->fixed->shape.nranks;

        for (uint32_t r = 0; r < nranks; r++) {
            const uint32_t dst = gpu_rank_at(r, plan->rank, nranks);
            if (!gpu_plan_reaches(plan, s->dst, dst))
                continue;
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                if (t.has(u))
                    step_element_store(call->out[dst].data, c.step->dtype[CODE_OUT],
                                       t.first + u * t.apart + step_shift(c.step, GPU_STEP_OUT + (int)dst, t.tensor),
                                       t.r[c.head->result][u]);
        }
    }

    /* Executes the code for the thread's elements; their terms of sums go to its lanes. */
    __device__ __forceinline__ void work(struct step_lanes<LANES> *lanes)
    {
        const int instructions = (int)c.head->instructions;
        int sum = 0;

        if (reduces())
            inputs_add();
        for (int i = numbers; i < instructions; i++) {
            const struct code_instruction one = c.instructions[i];
            if (one.op != CODE_SUM) {
                t.execute(c, one);
                continue;
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++)
                if (t.has(u))
                    lanes->at[sum][u] += (double)t.r[one.from[0]][u];
            sum++;
        }
        if (gives())
            results_store();
    }

    /* The same, once for all kinds of sums: the code of an interpreter is long. */
    __device__ __noinline__ void work_apart(struct step_lanes<LANES> *lanes)
    {
        work(lanes);
    }

    /* Goes to the tensor of element `from`, if there is a table. Returns where its elements, or all, end. */
    __device__ __forceinline__ int64_t segment_end(int64_t from, int64_t end)
    {
        if (!c.head->tensors)
            return end;
        t.tensor = step_last_of(step_begins(c.step), c.head->tensors, from);
        return step_least(step_begins(c.step)[t.tensor + 1], end);
    }

    /* Elements [from, end), of one tensor if there is a table. */
    __device__ __forceinline__ void range(int64_t from, int64_t end)
    {
        t.apart = blockDim.x;
        t.lower = from;
        t.end = end;
        for (t.first = from + threadIdx.x; t.first < end; t.first += AT_ONCE * t.apart)
            work(NULL);
    }

    /* ---- for step_sums.h ---- */

    __device__ __forceinline__ int sums() const
    {
        return nsums;
    }

    __device__ __forceinline__ void segment_take(int64_t tensor)
    {
        t.tensor = tensor;
    }

    __device__ __forceinline__ void add(int64_t e, int64_t lower, int64_t upper, struct step_lanes<LANES> &lanes)
    {
        t.first = e;
        t.apart = 1;
        t.lower = lower;
        t.end = upper;
        work_apart(&lanes);
    }

    __device__ __forceinline__ void whole(int64_t e, struct step_lanes<LANES> &lanes)
    {
        add(e, e, e + STEP_OWN, lanes);
    }

    __device__ __forceinline__ void store(int sum, int64_t at, double total) const
    {
        for (int i = numbers; i < (int)c.head->instructions; i++) {
            const struct code_instruction one = c.instructions[i];
            if (one.op != CODE_SUM || sum-- != 0)
                continue;
            const struct code_operand o = c.operands[one.from[1]];
            const double result = total / one.number;
            step_element_store(c.step->tensor[o.tensor], c.step->dtype[o.tensor], at, (float)(one.key ? sqrt(result) : result));
        }
    }

    /* ---- slices ---- */

    /* Of how many elements the code's sums are; 0: of a table's tensors. */
    __device__ __forceinline__ int64_t begin(const struct gpu_call &of, uint32_t run, const struct slice &slice)
    {
        int64_t each = 0;

        call = &of;
        plan = gpu_plan_of(of, run);
        s = &slice;
        c = step_code_at(of.in[run].vector.parts);
        t.tensor = 0;
        numbers = nsums = 0;
        for (int i = 0; i < (int)c.head->instructions; i++) {
            const struct code_instruction one = c.instructions[i];
            if (one.op == CODE_NUMBER) {
                t.number(one);
                numbers++;
            } else if (one.op == CODE_SUM) {
                const struct code_operand o = c.operands[one.from[1]];
                each = o.index == CODE_TENSOR ? 0 : o.div;
                nsums++;
            }
        }
        return each;
    }

    __device__ __forceinline__ void sums_do(int64_t each, const struct vector_piece &piece)
    {
        const int64_t from = piece.at - c.step->begin;
        double *const pieces = step_pieces(*call, plan->rank);

        if (each == 0 && s->kind == SLICE_PUT)
            step_sums_tensors(c.step, pieces, *this);
        else if (each == 0)
            step_sums_pieces(c.step, s->col, (int64_t)s->col + s->cols, pieces, *this);
        else if (c.head->tensors)
            step_sums_each<true>(c.step, each, from, from + piece.count, *this);
        else
            step_sums_each<false>(c.step, each, from, from + piece.count, *this);
    }

    __device__ __forceinline__ bool slice(const struct gpu_call &of, uint32_t run, const struct slice &slice)
    {
        const int64_t each = begin(of, run, slice);
        const struct gpu_shape &shape = of.fixed->shape;
        const struct vector_piece piece = reduces() || gives()
                                              ? vector_piece_reduced(shape, plan->rank, slice)
                                              : vector_piece_make(shape, c.step->begin + (int64_t)slice.col * shape.unit,
                                                                  slice.cols, c.step->begin + c.step->count);

        if (nsums) {
            sums_do(each, piece);
            return true;
        }
        for (int64_t from = piece.at, to; from < piece.at + piece.count; from = to) {
            to = segment_end(from, piece.at + piece.count);
            range(from, to);
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
