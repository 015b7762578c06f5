/* SPDX-License-Identifier: MIT
 *
 * group_copy.h - copies by all threads of a workgroup, or by some that share the work (`thread` of `threads`).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_GROUP_COPY_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_GROUP_COPY_H

#include "kernels/gpu/platform.h"

template <typename W>
GPU_DEVICE void group_copy_words(char *to, const char *from, uint64_t n, uint32_t thread, uint32_t threads)
{
    enum { UNROLL = 8 };
    const W *in = (const W *)from;
    W *out = (W *)to;
    uint64_t i = thread;

    for (; i + (UNROLL - 1) * threads < n; i += UNROLL * threads) {
        W v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = in[i + u * threads];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            out[i + u * threads] = v[u];
    }
    for (; i < n; i += threads)
        out[i] = in[i];
}

/* Bytes of any places, which do not overlap, by the widest words to which both can be aligned. */
GPU_DEVICE void group_copy(char *to, const char *from, uint64_t bytes, uint32_t thread = threadIdx.x,
                           uint32_t threads = blockDim.x)
{
    uint64_t apart = (uint64_t)to - (uint64_t)from, width = apart % 16 == 0 ? 16 : apart % 4 == 0 ? 4 : apart % 2 == 0 ? 2 : 1;
    uint64_t head = (width - (uint64_t)to % width) % width, body;

    head = head < bytes ? head : bytes;
    body = (bytes - head) / width * width;
    group_copy_words<char>(to, from, head, thread, threads);
    if (width == 16)
        group_copy_words<uint4>(to + head, from + head, body / 16, thread, threads);
    else if (width == 4)
        group_copy_words<uint32_t>(to + head, from + head, body / 4, thread, threads);
    else if (width == 2)
        group_copy_words<uint16_t>(to + head, from + head, body / 2, thread, threads);
    else
        group_copy_words<char>(to + head, from + head, body, thread, threads);
    group_copy_words<char>(to + head + body, from + head + body, bytes - head - body, thread, threads);
}

#endif
