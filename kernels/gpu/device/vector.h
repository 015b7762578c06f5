/* SPDX-License-Identifier: MIT
 *
 * vector.h - elements of f32, f16 and bf16 sixteen bytes at a time, copies, and teams: what the memory-bound GPU kernels
 * share.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_VECTOR_H
#define FCC_KERNELS_GPU_DEVICE_VECTOR_H

#include "kernels/gpu/device/rows.h"
#include "kernels/gpu/platform.h"

/* ---- sixteen bytes, in registers ---- */

struct gpu_words {
    uint32_t at[4];
};

#if !defined(__CUDACC__)
typedef uint32_t gpu_words_native __attribute__((ext_vector_type(4)));
#define GPU_GLOBAL __attribute__((address_space(1))) /* device or host memory, never a workgroup's */
#endif

/* gpu_words_load() and gpu_words_load_once(): `at` is aligned to 16 bytes, and nothing writes there while the kernel runs. If
 * not `wanted`, returns 0 and reads nothing. */
GPU_DEVICE struct gpu_words gpu_words_load(const void *at, bool wanted)
{
    struct gpu_words w = {{0, 0, 0, 0}};

#if defined(__CUDACC__)
    asm("{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %5, 0;\n"
        "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(w.at[0]), "+r"(w.at[1]), "+r"(w.at[2]), "+r"(w.at[3])
        : "l"(at), "r"((uint32_t)wanted));
#else
    if (wanted) {
        gpu_words_native v = *(const GPU_GLOBAL gpu_words_native *)at;
        for (int i = 0; i < 4; i++)
            w.at[i] = v[i];
    }
#endif
    return w;
}

/* For data that is not read again soon: keeps it out of the multiprocessor's cache. */
GPU_DEVICE struct gpu_words gpu_words_load_once(const void *at, bool wanted)
{
#if defined(__CUDACC__)
    struct gpu_words w = {{0, 0, 0, 0}};
    asm("{\n"
        ".reg .pred p;\n"
        "setp.ne.u32 p, %5, 0;\n"
        "@p ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(w.at[0]), "+r"(w.at[1]), "+r"(w.at[2]), "+r"(w.at[3])
        : "l"(at), "r"((uint32_t)wanted));
    return w;
#else
    return gpu_words_load(at, wanted);
#endif
}

/* `at` is aligned to 16 bytes. */
GPU_DEVICE void gpu_words_store(void *at, const struct gpu_words &w)
{
#if defined(__CUDACC__)
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(w.at[0]), "r"(w.at[1]), "r"(w.at[2]), "r"(w.at[3])
                 : "memory");
#else
    gpu_words_native v = {w.at[0], w.at[1], w.at[2], w.at[3]};
    *(GPU_GLOBAL gpu_words_native *)at = v;
#endif
}

/* Returns x, hidden from the compiler. It then computes values that depend on x where they are needed, and not before a loop,
 * where they would take too many registers. */
GPU_DEVICE uint32_t gpu_hide(uint32_t x)
{
#if defined(__CUDACC__)
    asm volatile("" : "+r"(x));
#elif defined(__AMDGCN__)
    asm volatile("" : "+v"(x));
#endif
    return x;
}

/* ---- elements and numbers ---- */

GPU_DEVICE uint16_t gpu_bits_load(const uint16_t *at)
{
#if defined(__CUDACC__)
    uint16_t value;
    asm("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(at));
    return value;
#else
    return *(const GPU_GLOBAL uint16_t *)at;
#endif
}

GPU_DEVICE uint32_t gpu_bits_load(const uint32_t *at)
{
#if defined(__CUDACC__)
    uint32_t value;
    asm("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(at));
    return value;
#else
    return *(const GPU_GLOBAL uint32_t *)at;
#endif
}

/* The one read of a number that the client may be changing: no compiler reads it a second time. */
GPU_DEVICE int64_t gpu_read_once(const void *array, bool wide, int64_t i)
{
#if defined(__CUDACC__)
    int32_t narrow;
    int64_t value;
    if (wide) {
        asm volatile("ld.relaxed.cta.global.s64 %0, [%1];" : "=l"(value) : "l"((const int64_t *)array + i) : "memory");
        return value;
    }
    asm volatile("ld.relaxed.cta.global.s32 %0, [%1];" : "=r"(narrow) : "l"((const int32_t *)array + i) : "memory");
    return narrow;
#else
    if (wide)
        return __hip_atomic_load((const GPU_GLOBAL int64_t *)array + i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    return __hip_atomic_load((const GPU_GLOBAL int32_t *)array + i, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
#endif
}

template <typename T> struct gpu_vector {
    enum { LENGTH = 16 / sizeof(T) };
    typedef gpu_bits<T> bits;

    static __device__ __forceinline__ float element_to_f32(bits b)
    {
        T value;
        __builtin_memcpy(&value, &b, sizeof(value));
        return gpu_to_f32(value);
    }

    static __device__ __forceinline__ bits element_from_f32(float x)
    {
        T value;
        bits b;
        gpu_from_f32(&value, x);
        __builtin_memcpy(&b, &value, sizeof(b));
        return b;
    }

    static __device__ __forceinline__ float element(const T *at)
    {
        return element_to_f32(gpu_bits_load((const bits *)at));
    }

    /* LENGTH elements one by one. Not `wanted`: 0, and nothing is read. */
    static __device__ __forceinline__ struct gpu_words gather(const T *at, bool wanted)
    {
        struct gpu_words w = {{0, 0, 0, 0}};
        const bits *from = (const bits *)at;
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            if (wanted)
                w.at[i * 4 / LENGTH] |= (uint32_t)gpu_bits_load(from + i) << (sizeof(T) == 2 ? i % 2 * 16 : 0);
        return w;
    }

    static __device__ __forceinline__ void to_f32(float out[LENGTH], const struct gpu_words &w)
    {
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            out[i] = element_to_f32((bits)(w.at[i * 4 / LENGTH] >> (sizeof(T) == 2 ? i % 2 * 16 : 0)));
    }

    static __device__ __forceinline__ struct gpu_words from_f32(const float x[LENGTH])
    {
        struct gpu_words w = {{0, 0, 0, 0}};
#pragma unroll
        for (int i = 0; i < LENGTH; i++)
            w.at[i * 4 / LENGTH] |= (uint32_t)element_from_f32(x[i]) << (sizeof(T) == 2 ? i % 2 * 16 : 0);
        return w;
    }
};

/* Whether every row of a matrix begins at a multiple of 16 bytes. */
template <typename T> GPU_DEVICE bool gpu_rows_aligned(const T *at, int64_t nrows, int64_t stride)
{
    return (uint64_t)at % 16 == 0 && (nrows <= 1 || stride * (int64_t)sizeof(T) % 16 == 0);
}

/* ---- teams: 1, 2, 4, ... GPU_WAVE neighbouring lanes of a wave that work on one thing. All lanes of the wave come to these
 * together, also those whose team has nothing to do. ---- */

GPU_DEVICE uint32_t gpu_team_lane(uint32_t team)
{
    return threadIdx.x & (team - 1);
}

/* `value` of the lane whose number differs in one bit. */
GPU_DEVICE float gpu_lane_across(float value, uint32_t bit)
{
#if defined(__CUDACC__)
    return __shfl_xor_sync(0xffffffffu, value, (int)bit);
#else
    return __shfl_xor(value, (int)bit);
#endif
}

/* ---- walking through a tile ---- */

/* A position in a box: x first, then y, then z, which is beyond the box at the end. A walker (thread, team or wave) begins at
 * the position of its own number and goes on by the position of the number of walkers. */
struct gpu_walk {
    uint32_t x, y, z;
};

/* x_size and y_size are 1 or more. */
GPU_DEVICE struct gpu_walk gpu_walk_at(uint32_t number, uint32_t x_size, uint32_t y_size)
{
    struct gpu_walk w = {number % x_size, number / x_size % y_size, number / x_size / y_size};

    return w;
}

GPU_DEVICE void gpu_walk_next(struct gpu_walk *w, const struct gpu_walk &step, uint32_t x_size, uint32_t y_size)
{
    /* Compared before adding: the sum could be too large. */
    bool carry = w->x >= x_size - step.x;
    w->x = carry ? w->x - (x_size - step.x) : w->x + step.x;
    uint32_t step_y = step.y + carry; /* at most y_size */
    carry = w->y >= y_size - step_y;
    w->y = carry ? w->y - (y_size - step_y) : w->y + step_y;
    w->z += step.z + carry;
}

/* ---- copies ---- */

/* By all lanes of a wave: n elements. `from` may have been written in this kernel, before a flag that this workgroup has
 * awaited. */
template <typename T> GPU_DEVICE void gpu_wave_copy(T *to, const T *from, int64_t n)
{
    enum { UNROLL = 4 };
    typedef gpu_bits<T> bits;
    int64_t lane = threadIdx.x % GPU_WAVE, words = 0;

    if (((uint64_t)to | (uint64_t)from) % 16 == 0) {
        words = n / gpu_vector<T>::LENGTH;
        const uint4 *in = (const uint4 *)from;
        uint4 *out = (uint4 *)to;
        int64_t i = lane;
        for (; i + (UNROLL - 1) * GPU_WAVE < words; i += UNROLL * GPU_WAVE) {
            uint4 v[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                v[u] = in[i + u * GPU_WAVE];
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                out[i + u * GPU_WAVE] = v[u];
        }
        for (; i < words; i += GPU_WAVE)
            out[i] = in[i];
    }
    for (int64_t i = words * gpu_vector<T>::LENGTH + lane; i < n; i += GPU_WAVE)
        ((bits *)to)[i] = ((const bits *)from)[i];
}

#endif
