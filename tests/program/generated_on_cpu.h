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

/* The elements from e on. Returns how many they are. */
template <int WIDE, typename Step> static int elements_run(const Step &step, const struct generated_call *call, int64_t at)
{
    typedef typename Step::index index;
    const index e = (index)at;
    typename Step::template loaded<WIDE> own;
    floats<WIDE> sum = {}, result;

    for (int r = 0; Step::SUMS && r < Step::RANKS; r++) {
        const floats<WIDE> x = generated_load<WIDE>((const typename Step::sum_type *)call->in[r] + e);
        sum = r ? step_add(sum, x) : x;
    }
    step.load(e, own);
    step.run(e, sum, own, result);
    if (Step::SUMS)
        generated_store<WIDE>((typename Step::out_type *)call->result + e, result);
    return WIDE;
}

template <typename Step> static void step_run(const struct generated_call *call)
{
    const struct code_head *head = (const struct code_head *)call->words;
    Step step;

    conversions = call->conversions;
    step.begin(*(const struct gpu_step *)call->step,
               (const struct code_instruction *)((const struct code_operand *)(head + 1) + head->operands));
    for (int64_t e = call->begin; e < call->end;)
        e += e % Step::WIDTH == 0 && e + Step::WIDTH <= call->end && step.wide((typename Step::index)e)
                 ? elements_run<Step::WIDTH>(step, call, e)
                 : elements_run<1>(step, call, e);
}

#define GENERATED_NAME_OF(number) generated_##number
#define GENERATED_NAME(number) GENERATED_NAME_OF(number)
#define GENERATED_KERNEL(Step)                                                                                                 \
    extern "C" void GENERATED_NAME(GENERATED_NUMBER)(const struct generated_call *call)                                        \
    {                                                                                                                          \
        step_run<Step>(call);                                                                                                  \
    }

#endif
