/* SPDX-License-Identifier: MIT
 *
 * waits_tell.h - for whoever changes kernels: with GPU_WAITS_TELL (make cuda-tell) products by tiles say what they wait for, when a wait takes longer than any
 * does where ranks come in time. A barrier in shared memory that is never completed would otherwise hold the GPU until the process is killed, and nothing would be
 * known. In such a build all waits are over from then on, so the kernel ends, and its result is not used.
 *
 * The first TELLS of a process are noted where they happen, as a call of printf() in that kernel would change its code: its matrix instructions would wait for each other. A kernel
 * behind it prints them, and the program shows them when it next synchronizes.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TILES_WAITS_TELL_H
#define FCC_KERNELS_GPU_DEVICE_TILES_WAITS_TELL_H

#if defined(GPU_WAITS_TELL)

#include <stdio.h>

#include "kernels/gpu/platform.h"

/* Barriers wait for what waits for words. */
#define TELL_WORD_NS UINT64_C(2000000000)
#define TELL_BARRIER_NS UINT64_C(4000000000)
#define TELL_STAYS_NS UINT64_C(20000000)
#define TELLS 48

/* barrier: in shared memory, is has its state and wanted the parity; 0: a word of struct tiles_words, index. */
struct tell {
    uint32_t workgroup, thread, barrier;
    int64_t index;
    uint64_t is, wanted;
};

static __device__ uint32_t tell_stuck, tells;
static __device__ struct tell tell_all[TELLS];
static __device__ uint32_t tell_places[6]; /* of barriers, in shared memory */

GPU_DEVICE bool tell_is_over()
{
    return *(volatile uint32_t *)&tell_stuck != 0;
}

/* A thread gives up a wait, and with it all. */
GPU_DEVICE void tell_note(uint32_t barrier, int64_t index, uint64_t is, uint64_t wanted)
{
    const uint32_t n = atomicAdd(&tells, 1u);

    if (n < TELLS)
        tell_all[n] = {blockIdx.x, threadIdx.x, barrier, index, is, wanted};
    tell_stuck = 1;
}

/* One thread, before the workgroup ends: it stays a while, for copies that are still on their way into its shared memory. */
GPU_DEVICE void tell_stay()
{
    for (const uint64_t begin = gpu_clock(); tell_is_over() && gpu_clock() - begin < TELL_STAYS_NS;)
        continue;
}

/* One thread, behind the product. */
static __global__ void tell_kernel(uint32_t rank, const uint64_t *run)
{
    const unsigned long long number = *run;

    for (uint32_t i = 0; i < TELLS && i < tells; i++) {
        const struct tell *t = &tell_all[i];
        if (t->barrier)
            printf("rank %u, run %#llx, workgroup %u, thread %u: the barrier at %#x of shared memory is %#llx, not beyond "
                   "parity %llu\n",
                   rank, number, t->workgroup, t->thread, t->barrier, (unsigned long long)t->is, (unsigned long long)t->wanted);
        else
            printf(
                "rank %u, run %#llx, workgroup %u, thread %u: word %lld of struct tiles_words is %#llx, and is to be %#llx\n",
                rank, number, t->workgroup, t->thread, (long long)t->index, (unsigned long long)t->is,
                (unsigned long long)t->wanted);
    }
    if (tells)
        printf("in shared memory: stage_full %#x, stage_empty %#x, job_full %#x, job_empty %#x, out_full %#x, out_empty %#x\n",
               tell_places[0], tell_places[1], tell_places[2], tell_places[3], tell_places[4], tell_places[5]);
    tells = 0;
}

#endif
#endif
