/* SPDX-License-Identifier: MIT
 *
 * sums_on_cpu.h - kernels/gpu/device/exchange/step_sums.h on a cpu (test_generate.c): a workgroup's threads are contexts of one thread, which takes turns from
 * barrier to barrier, and an exchange of registers goes through memory between two of them. C++.
 *
 * A context goes on until it has to wait, and then the next one: so where a barrier is missing, the first one reads what others have not written yet, or
 * overwrites what they have not read. Each workgroup's turns go the other way round than those of the one before, as the last one may be who reads. (With a
 * thread for each, their waking took most of a minute.)
 */
#ifndef FCC_TESTS_PROGRAM_SUMS_ON_CPU_H
#define FCC_TESTS_PROGRAM_SUMS_ON_CPU_H

#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#define FCC_KERNELS_GPU_DEVICE_VECTOR_PARTS_H
#define GPU_DEVICE static inline
#define __device__
#define __forceinline__ inline
#define __shared__ static

static struct {
    uint32_t x;
} threadIdx; /* of whose turn it is */

/* ---- turns ---- */

enum { THREADS_MOST = 1024, STACK_BYTES = 1 << 16 };
static struct turns {
    int threads, left, step; /* `left` have not ended; the next one is `step` behind */
    bool ended[THREADS_MOST];
    ucontext_t context[THREADS_MOST], whole; /* `whole`: who runs the workgroup */
} turns;

static ucontext_t *turn_next()
{
    do
        threadIdx.x = (threadIdx.x + (uint32_t)(turns.threads + turns.step)) % (uint32_t)turns.threads;
    while (turns.ended[threadIdx.x]);
    return &turns.context[threadIdx.x];
}

static struct barrier {
    int threads, come, passed;
} workgroup, waves[16];

static void barrier_wait(struct barrier *b)
{
    const int passed = b->passed;

    if (++b->come == b->threads) {
        b->come = 0;
        b->passed++;
        return;
    }
    while (b->passed == passed) {
        ucontext_t *own = &turns.context[threadIdx.x], *next = turn_next();
        if (own == next)
            abort(); /* all others have ended: nobody else comes */
        (void)swapcontext(own, next);
    }
}

static inline void __syncthreads()
{
    barrier_wait(&workgroup);
}

static inline uint32_t __shfl_xor(uint32_t value, int bit, int width)
{
    static uint32_t registers[16][32];
    const uint32_t wave = threadIdx.x / 32, lane = threadIdx.x % 32;

    (void)width;
    registers[wave][lane] = value;
    barrier_wait(&waves[wave]);
    const uint32_t other = registers[wave][lane ^ (uint32_t)bit];
    barrier_wait(&waves[wave]);
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
    template <typename Lanes> void whole(int64_t e, Lanes &lanes) const
    {
        add(e, e, e + STEP_OWN, lanes);
    }
    void store(int sum, int64_t at, double total) const
    {
        call->totals[sum][at] = total;
    }
};

static const struct sums_call *running;

static void thread_run()
{
    const struct sums_call *call = running;
    const struct gpu_step *step = (const struct gpu_step *)call->step;
    const int64_t pieces = step->pieces ? ((const int64_t *)step)[step->pieces + step_head(step)->tensors] : 0;
    struct summing op = {call, 0};

    if (call->each && step_head(step)->tensors)
        step_sums_each<true>(step, call->each, 0, step->count, op);
    else if (call->each)
        step_sums_each<false>(step, call->each, 0, step->count, op);
    for (int64_t piece = 0; piece < pieces && !call->each; piece += 2) /* as two to a slice */
        step_sums_pieces(step, piece, piece + 2, call->pieces, op);
    __syncthreads();
    if (!call->each)
        step_sums_tensors(step, call->pieces, op);
    turns.ended[threadIdx.x] = true;
    (void)setcontext(--turns.left ? turn_next() : &turns.whole);
}

extern "C" void sums_run(const struct sums_call *call)
{
    static char stacks[STEP_THREADS][STACK_BYTES];
    static_assert(STEP_THREADS <= THREADS_MOST && STEP_WAVES <= sizeof(waves) / sizeof(waves[0]),
                  "turns, and barriers of waves");

    running = call;
    turns.threads = turns.left = STEP_THREADS;
    turns.step = turns.step == 1 ? -1 : 1;
    workgroup = {STEP_THREADS, 0, 0};
    for (struct barrier &wave : waves)
        wave = {STEP_WAVE, 0, 0};
    for (int i = 0; i < STEP_THREADS; i++) {
        turns.ended[i] = false;
        if (getcontext(&turns.context[i]))
            abort();
        turns.context[i].uc_stack.ss_sp = stacks[i];
        turns.context[i].uc_stack.ss_size = STACK_BYTES;
        turns.context[i].uc_link = NULL;
        makecontext(&turns.context[i], thread_run, 0);
    }
    threadIdx.x = turns.step == 1 ? 0 : STEP_THREADS - 1;
    (void)swapcontext(&turns.whole, &turns.context[threadIdx.x]);
}

#endif
