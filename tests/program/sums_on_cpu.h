/* SPDX-License-Identifier: MIT
 *
 * sums_on_cpu.h - kernels/gpu/device/exchange/step_sums.h on a cpu (test_generate.c): a workgroup is as many threads, barriers are barriers, and an exchange
 * of registers goes through memory between two of them. C++.
 */
#ifndef FCC_TESTS_PROGRAM_SUMS_ON_CPU_H
#define FCC_TESTS_PROGRAM_SUMS_ON_CPU_H

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define FCC_KERNELS_GPU_DEVICE_VECTOR_PARTS_H
#define GPU_DEVICE static inline
#define __device__
#define __forceinline__ inline
#define __shared__ static

static thread_local struct {
    uint32_t x;
} threadIdx;
static pthread_barrier_t workgroup, waves[16];

static inline void __syncthreads()
{
    (void)pthread_barrier_wait(&workgroup);
}

static inline uint32_t __shfl_xor(uint32_t value, int bit, int width)
{
    static uint32_t registers[16][32];
    const uint32_t wave = threadIdx.x / 32, lane = threadIdx.x % 32;

    (void)width;
    registers[wave][lane] = value;
    (void)pthread_barrier_wait(&waves[wave]);
    const uint32_t other = registers[wave][lane ^ (uint32_t)bit];
    (void)pthread_barrier_wait(&waves[wave]);
    return other;
}

#include "kernels/gpu/device/exchange/step_sums.h"
#include "tests/program/sums_on_cpu_call.h"

/* Two sums: of the numbers, and of their squares. */
struct summing {
    enum { LANES = 2, KNOWN = 1 };
    const struct sums_call *call;
    int64_t tensor;

    int sums() const
    {
        return LANES;
    }
    void segment_take(int64_t number)
    {
        tensor = number;
    }
    template <typename Lanes> void add(int64_t e, int64_t lower, int64_t upper, Lanes &lanes) const
    {
        for (int u = 0; u < STEP_OWN; u++)
            if (e + u >= lower && e + u < upper) {
                const float x = call->x[e + u + (call->shift ? call->shift[tensor] : 0)];
                lanes.at[0][u] += (double)x;
                lanes.at[1][u] += (double)(x * x);
            }
    }
    void store(int sum, int64_t at, double total) const
    {
        call->totals[sum][at] = total;
    }
};

static void *thread_run(void *argument)
{
    const struct sums_call *call = ((const struct sums_call **)argument)[0];
    const struct gpu_step *step = (const struct gpu_step *)call->step;
    const int64_t pieces = step->pieces ? ((const int64_t *)step)[step->pieces + step_head(step)->tensors] : 0;
    struct summing op = {call, 0};

    threadIdx.x = (uint32_t)((uintptr_t *)argument)[1];
    if (call->each && step_head(step)->tensors)
        step_sums_each<true>(step, call->each, 0, step->count, op);
    else if (call->each)
        step_sums_each<false>(step, call->each, 0, step->count, op);
    for (int64_t piece = 0; piece < pieces && !call->each; piece += 2) /* as two to a slice */
        step_sums_pieces(step, piece, piece + 2, call->pieces, op);
    __syncthreads();
    if (!call->each)
        step_sums_tensors(step, call->pieces, op);
    return NULL;
}

extern "C" void sums_run(const struct sums_call *call)
{
    static pthread_t threads[STEP_THREADS];
    static uintptr_t arguments[STEP_THREADS][2];

    (void)pthread_barrier_init(&workgroup, NULL, STEP_THREADS);
    for (int i = 0; i < STEP_WAVES; i++)
        (void)pthread_barrier_init(&waves[i], NULL, STEP_WAVE);
    for (int i = 0; i < STEP_THREADS; i++) {
        arguments[i][0] = (uintptr_t)call;
        arguments[i][1] = (uintptr_t)i;
        if (pthread_create(&threads[i], NULL, thread_run, arguments[i]))
            abort();
    }
    for (int i = 0; i < STEP_THREADS; i++)
        (void)pthread_join(threads[i], NULL);
}

#endif
