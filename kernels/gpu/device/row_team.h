/* SPDX-License-Identifier: MIT
 *
 * row_team.h - the threads that make a row together (whole_rows.h): how they add up over all of it.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_ROW_TEAM_H
#define FCC_KERNELS_GPU_DEVICE_ROW_TEAM_H

#include "kernels/gpu/device/hopper.h"
#include "kernels/gpu/platform.h"

enum gpu_rows_fold { GPU_ROWS_SUM, GPU_ROWS_MOST };

template <enum gpu_rows_fold FOLD> GPU_DEVICE float gpu_rows_fold_two(float a, float b)
{
    return FOLD == GPU_ROWS_SUM ? a + b : fmaxf(a, b);
}

template <enum gpu_rows_fold FOLD> GPU_DEVICE float gpu_rows_wave(float value)
{
#pragma unroll
    for (uint32_t bit = 1; bit < GPU_WAVE; bit *= 2)
        value = gpu_rows_fold_two<FOLD>(value, gpu_lane_across(value, bit));
    return value;
}

/* In the shared memory of each workgroup of a cluster that makes a row: what the others tell this one, in two halves. */
#define GPU_ROWS_PARTS_MOST 8
struct gpu_rows_across {
    uint64_t barrier; /* arrivals of all workgroups for a reduction */
    uint64_t told[2][GPU_ROWS_PARTS_MOST];
};

/* The threads that make a row together: the first of a workgroup, in whole waves, or those of all workgroups of a cluster. Each thread has its own copy,
 * and all do the same with it.
 *
 * A half of `room` or `told` is used again behind the next reduction's barrier, when all have read it. No workgroup ends before all others
 * have arrived for the last reduction, so its memory is there when they store into it. */
struct gpu_rows_team {
    enum { ROOM = 32 }; /* numbers that a reduction needs: one of each wave, which are at most as many as a wave has lanes */
    uint32_t threads;
    float *room; /* shared memory, 2 * ROOM */
    /* Shared memory: a thread of this workgroup cannot go on, as it has found before a reduction. NULL: all can. */
    const bool *failed;
    uint32_t parts, part;           /* workgroups, and which this is */
    struct gpu_rows_across *across; /* shared memory; NULL: reductions are of this workgroup alone */
    uint32_t turn;                  /* reductions before */
    bool gone;                      /* the last reduction has shown that a thread cannot go on */

    /* All threads of the kernel, before anything else. */
    __device__ __forceinline__ void begin() const
    {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        if (!across)
            return;
        if (threadIdx.x == 0) {
            gpu_barrier_make(&across->barrier, parts);
            gpu_barriers_made();
        }
        gpu_cluster_barrier();
#endif
    }

    /* Of all threads' values, the same in each. */
    template <enum gpu_rows_fold FOLD> __device__ __forceinline__ float all(float value)
    {
        const uint32_t waves = (threads + GPU_WAVE - 1) / GPU_WAVE, lane = threadIdx.x % GPU_WAVE;
        float *here = room + turn % 2 * ROOM;

        value = gpu_rows_wave<FOLD>(value);
        if (lane == 0)
            here[threadIdx.x / GPU_WAVE] = value;
        gpu_sync_first(threads);
        gone = failed && *(const volatile bool *)failed;
        value = gpu_rows_wave<FOLD>(lane < waves ? here[lane] : 0.0f); /* of magnitudes 0 is the least */
        if (across)
            value = all_across<FOLD>(value);
        turn++;
        return value;
    }

    /* Of all workgroups' values, in their order. */
    template <enum gpu_rows_fold FOLD> __device__ __forceinline__ float all_across(float value)
    {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        uint64_t *told = across->told[turn % 2];
        if (threadIdx.x < parts) {
            gpu_cluster_store(&told[part], threadIdx.x, (uint64_t)gone << 32 | __float_as_uint(value));
            gpu_barrier_arrive_at(&across->barrier, threadIdx.x);
        }
        gpu_barrier_await_cluster(&across->barrier, turn % 2);
        value = __uint_as_float((uint32_t)told[0]);
        gone = told[0] >> 32;
        for (uint32_t i = 1; i < parts; i++) {
            value = gpu_rows_fold_two<FOLD>(value, __uint_as_float((uint32_t)told[i]));
            gone |= told[i] >> 32 != 0;
        }
#endif
        return value;
    }
};

/* Of a workgroup by itself. */
GPU_DEVICE struct gpu_rows_team gpu_rows_team_of(float *room)
{
    return {blockDim.x, room, nullptr, 1, 0, nullptr, 0, false};
}

#endif
