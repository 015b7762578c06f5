/* SPDX-License-Identifier: MIT
 *
 * generated_on_cpu.h - what the source of a program's step is compiled with for a cpu (test_generate.c), in the place of kernels/gpu/device/generated.h: the
 * same values and operations, and a loop over elements where a GPU has workgroups. C++.
 */
#ifndef FCC_TESTS_PROGRAM_GENERATED_ON_CPU_H
#define FCC_TESTS_PROGRAM_GENERATED_ON_CPU_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FCC_KERNELS_GPU_PLATFORM_H
#define FCC_KERNELS_GPU_DEVICE_GENERATED_H
#define GPU_DEVICE static inline
#define __device__
#define __forceinline__ inline
struct gpu_f16 {
    uint16_t bits;
};
struct gpu_bf16 {
    uint16_t bits;
};
struct uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

#include "tests/program/generated_on_cpu_call.h"

static struct generated_conversions conversions; /* of 16 bits: the test's own */

static inline float gpu_to_f32(float x)
{
    return x;
}
static inline float gpu_to_f32(gpu_f16 x)
{
    return conversions.from_f16(x.bits);
}
static inline float gpu_to_f32(gpu_bf16 x)
{
    return conversions.from_bf16(x.bits);
}
static inline void gpu_from_f32(float *out, float x)
{
    *out = x;
}
static inline void gpu_from_f32(gpu_f16 *out, float x)
{
    out->bits = conversions.to_f16(x);
}
static inline void gpu_from_f32(gpu_bf16 *out, float x)
{
    out->bits = conversions.to_bf16(x);
}

#include "kernels/gpu/device/generated_values.h"
#include "kernels/gpu/step.h"

/* How much further element e of the table's tensor lies than e elements behind the begin. */
static inline int64_t step_shift(const struct gpu_step *step, int place, int64_t tensor)
{
    return step->places[place] ? ((const int64_t *)step)[step->places[place] + tensor] : 0;
}

/* A sum's elements, added up as kernels/program/code.h says. */
struct generated_sum {
    double lanes[CODE_SUM_LANES], pieces[CODE_SUM_PIECES];
};

static inline double pairs_add(double *lanes, int n, int least)
{
    for (int d = least; d < n; d *= 2)
        for (int k = 0; k + d < n; k++)
            if (!(k & d))
                lanes[k] += lanes[k + d];
    for (int d = least / 2; d > 0; d /= 2)
        for (int k = 0; k < d; k++)
            lanes[k] += lanes[k + d];
    const double total = lanes[0];
    memset(lanes, 0, (size_t)n * sizeof(*lanes));
    return total;
}

template <typename Step> struct generated_run {
    typedef typename Step::index index;
    enum { LANES = Step::LANES ? Step::LANES : 1 };
    Step step;
    const struct generated_call *call;
    const struct gpu_step *of;
    const int64_t *begins;
    int64_t tensors, tensor;
    struct generated_sum *sums;

    /* A term of a sum, of element e. */
    void take(int j, int64_t e, float term)
    {
        struct generated_sum *sum = &sums[j];
        const int64_t index = Step::EACH ? (e - call->begin) % (Step::EACH ? Step::EACH : 1) : e - begins[tensor];
        const bool last = e + 1 == call->end;

        sum->lanes[index % CODE_SUM_LANES] += (double)term;
        if (Step::EACH) {
            if (last || index + 1 == Step::EACH)
                store(j, (e - call->begin) / (Step::EACH ? Step::EACH : 1), pairs_add(sum->lanes, CODE_SUM_LANES, 4));
            return;
        }
        const bool ends = last || e + 1 == begins[tensor + 1];
        if (ends || (index + 1) % CODE_SUM_PIECE == 0)
            sum->pieces[index / CODE_SUM_PIECE % CODE_SUM_PIECES] += pairs_add(sum->lanes, CODE_SUM_LANES, 4);
        if (ends)
            store(j, tensor, pairs_add(sum->pieces, CODE_SUM_PIECES, 1));
    }

    void store(int j, int64_t at, double total)
    {
        if constexpr (Step::LANES > 0)
            step.sum_store(j, at, total);
    }

    /* The elements from e on. Returns how many they are. */
    template <int WIDE, bool ANY> int elements(int64_t at)
    {
        const index e = (index)at;
        typename Step::template loaded<WIDE> own;
        floats<WIDE> sum = {}, result, terms[LANES];

        for (int r = 0; Step::SUMS && r < Step::RANKS; r++) {
            const floats<WIDE> x = generated_load_any<WIDE>((const typename Step::sum_type *)call->in[r] +
                                                            step_shift(of, GPU_STEP_IN + r, tensor) + e);
            sum = r ? step_add(sum, x) : x;
        }
        step.template load<WIDE, ANY>(e, own);
        step.template run<WIDE, ANY>(e, sum, own, result, terms);
        if (Step::GIVES)
            generated_store_any<WIDE>((typename Step::out_type *)call->result + step_shift(of, GPU_STEP_OUT, tensor) + e,
                                      result);
        for (int u = 0; u < WIDE; u++)
            for (int j = 0; j < Step::LANES; j++)
                take(j, at + u, terms[j].at[u]);
        return WIDE;
    }

    bool is_wide(int64_t e)
    {
        if constexpr (Step::TABLE)
            return false;
        else
            return e % Step::WIDTH == 0 && step.wide((index)e);
    }

    /* Goes to the tensor of element e. Returns where its elements end. */
    int64_t segment(int64_t e)
    {
        if constexpr (Step::TABLE) {
            for (tensor = 0; begins[tensor + 1] <= e; tensor++)
                ;
            step.segment(*of, tensor);
            return begins[tensor + 1] < call->end ? begins[tensor + 1] : call->end;
        }
        return call->end;
    }

    void all()
    {
        for (int64_t k = 0; k < tensors && !Step::EACH && call->begin < call->end; k++)
            for (int j = 0; j < Step::LANES; j++)
                store(j, k, 0);
        for (int64_t e = call->begin; e < call->end;)
            for (const int64_t end = segment(e); e < end;)
                e += e + Step::WIDTH > end            ? elements<1, true>(e)
                     : is_wide(e)                     ? elements<Step::WIDTH, false>(e)
                     : Step::TABLE || Step::LANES > 0 ? elements<Step::WIDTH, true>(e)
                                                      : elements<1, true>(e);
    }
};

template <typename Step> static void step_run(const struct generated_call *call)
{
    static struct generated_sum sums[CODE_SUMS_MAX];
    const struct code_head *head = (const struct code_head *)call->words;
    const struct code_instruction *code =
        (const struct code_instruction *)((const struct code_operand *)(head + 1) + head->operands);
    struct generated_run<Step> run;

    conversions = call->conversions;
    run.call = call;
    run.of = (const struct gpu_step *)call->step;
    run.begins = (const int64_t *)(code + head->instructions);
    run.tensors = head->tensors;
    run.tensor = 0;
    run.sums = sums;
    run.step.begin(*run.of, code);
    run.all();
}

#define GENERATED_NAME_OF(number) generated_##number
#define GENERATED_NAME(number) GENERATED_NAME_OF(number)
#define GENERATED_KERNEL(Step)                                                                                                 \
    extern "C" void GENERATED_NAME(GENERATED_NUMBER)(const struct generated_call *call)                                        \
    {                                                                                                                          \
        step_run<Step>(call);                                                                                                  \
    }

#endif
