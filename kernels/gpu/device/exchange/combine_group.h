/* SPDX-License-Identifier: MIT
 *
 * combine_group.h - the threads of a workgroup combine vectors element by element, and store the results.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_COMBINE_GROUP_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_COMBINE_GROUP_H

#include "kernels/gpu/device/exchange/combine.h"

/* The vectors of one call: `nterms` of them are combined in their order, then what follows all ranks' terms is done (combine_end()), and
 * the result is stored `nresults` times. In shared memory; all threads have the same. */
struct combine_vectors {
    uint64_t term[GPU_MAX_RANKS], result[GPU_MAX_RANKS]; /* addresses of the first elements */
    uint32_t nterms, nresults, reduction, nranks;
};

/* AT_ONCE: how many times 16 bytes a thread has on their way for each of two terms: it takes registers for all of them. */
template <typename T, int AT_ONCE> struct combine_group {
    typedef typename combine_in<T>::type S;
    typedef combine_words<T> words;
    enum { LENGTH = words::LENGTH, UNROLL = AT_ONCE };

    const struct combine_vectors &v;

    __device__ __forceinline__ const T *term(uint32_t i) const
    {
        return (const T *)v.term[i];
    }

    /* Plain loads, not gpu_words_load(): terms may have been stored during this kernel, before a flag that this workgroup has awaited. */
    static __device__ __forceinline__ struct gpu_words load(const T *at, bool wanted)
    {
        struct gpu_words w = {{0, 0, 0, 0}};

        if (wanted) {
            const uint4 v = *(const uint4 *)at;
            w = {{v.x, v.y, v.z, v.w}};
        }
        return w;
    }

    /* The number of elements before the first that is aligned to 16 bytes in all vectors; `count`, if there is no such element. */
    __device__ __forceinline__ int64_t head(int64_t count) const
    {
        const uint64_t place = v.term[0] % 16;
        int64_t n = (int64_t)((16 - place) % 16 / sizeof(T));
        bool alike = place % sizeof(T) == 0;

        for (uint32_t i = 1; i < v.nterms; i++)
            alike = alike && v.term[i] % 16 == place;
        for (uint32_t i = 0; i < v.nresults; i++)
            alike = alike && v.result[i] % 16 == place;
        return alike && n < count ? n : count;
    }

    /* Elements [from, until), one at a time. */
    __device__ __forceinline__ void singly(int64_t from, int64_t until) const
    {
        for (int64_t i = from + threadIdx.x; i < until; i += blockDim.x) {
            S sum[1] = {combine_load<T, S>(term(0)[i])};
            for (uint32_t t = 1; t < v.nterms; t++) {
                const S next[1] = {combine_load<T, S>(term(t)[i])};
                combine(v.reduction, sum, next);
            }
            combine_end(v.reduction, v.nranks, sum);
            for (uint32_t r = 0; r < v.nresults; r++)
                ((T *)v.result[r])[i] = combine_round<T, S>(sum[0]);
        }
    }

    /* UNROLL times 16 bytes, `apart` elements from each other, the first at element i: of the first n of them. Two terms are on their way at
     * a time. */
    __device__ __forceinline__ void some(int64_t i, int64_t apart, int n) const
    {
        S sum[UNROLL][LENGTH], next[LENGTH];
        struct gpu_words w[2][UNROLL];

        for (uint32_t t = 0; t < v.nterms; t += 2) {
            const bool both = t + 1 < v.nterms;
            const T *first = term(t) + i, *second = term(both ? t + 1 : t) + i;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                w[0][u] = load(first + u * apart, u < n);
                w[1][u] = load(second + u * apart, u < n && both);
            }
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (t == 0) {
                    words::load(sum[u], w[0][u]);
                } else {
                    words::load(next, w[0][u]);
                    combine(v.reduction, sum[u], next);
                }
                if (both) {
                    words::load(next, w[1][u]);
                    combine(v.reduction, sum[u], next);
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            combine_end(v.reduction, v.nranks, sum[u]);
            w[0][u] = words::store(sum[u]);
        }
        for (uint32_t r = 0; r < v.nresults; r++)
#pragma unroll
            for (int u = 0; u < UNROLL; u++)
                if (u < n)
                    gpu_words_store((T *)v.result[r] + i + u * apart, w[0][u]);
    }

    /* All threads; behind a barrier after `v` was written. */
    __device__ __forceinline__ void run(int64_t count) const
    {
        const int64_t begin = head(count), end = begin + (count - begin) / LENGTH * LENGTH,
                      apart = (int64_t)blockDim.x * LENGTH;
        int64_t i = begin + (int64_t)threadIdx.x * LENGTH;

        singly(0, begin);
        for (; i < end; i += UNROLL * apart) {
            int64_t left = (end - i + apart - 1) / apart;
            some(i, apart, left < UNROLL ? (int)left : UNROLL);
        }
        singly(end, count);
    }
};

#endif
