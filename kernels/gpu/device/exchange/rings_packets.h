/* SPDX-License-Identifier: MIT
 *
 * rings_packets.h - how small parts of vectors travel through rings (kernels/gpu/rings.h): as packets.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PACKETS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PACKETS_H

#include "kernels/gpu/device/exchange/group_copy.h"
#include "kernels/gpu/device/exchange/rings_run.h"

/* Up to 8 bytes at any place, as one number; missing ones are 0. */
GPU_DEVICE uint64_t eight_load(const char *at, uint64_t bytes)
{
    uint64_t value = 0;

    if (bytes >= 8 && (uint64_t)at % 8 == 0)
        return *(const uint64_t *)at;
    for (uint32_t i = 0; i < 8 && i < bytes; i++)
        value |= (uint64_t)(uint8_t)at[i] << 8 * i;
    return value;
}

GPU_DEVICE void eight_store(char *at, uint64_t value, uint64_t bytes)
{
    if (bytes >= 8 && (uint64_t)at % 8 == 0) {
        *(uint64_t *)at = value;
        return;
    }
    for (uint32_t i = 0; i < 8 && i < bytes; i++)
        at[i] = (char)(value >> 8 * i);
}

/* The packets from rank `from` at another rank `at`: two words each. */
GPU_DEVICE uint64_t *packets_of(const struct rings_call &c, const struct rings_run &run, uint32_t at, uint32_t from)
{
    const uint64_t slot = run.number % 2 * (c.nranks - 1) + (from - (from > at));

    return (uint64_t *)(c.rings[at] + RINGS_PACKETS_AT + slot * rings_packet_bytes(c.nranks));
}

GPU_DEVICE void packet_store(uint64_t *packets, uint64_t i, uint64_t data, uint32_t stamp)
{
    const uint64_t high = (uint64_t)stamp << 32;

    gpu_store_relaxed_pair(packets + 2 * i, high | (uint32_t)data, high | data >> 32);
}

/* Waits for N packets, `apart` packets from each other, as far as they are before packet `end`. All are asked for before the first is looked at, in a
 * loop that is short: instructions take time to load, too. False: leave. */
template <int N>
GPU_DEVICE bool packets_await(const struct rings_call &c, struct rings_run &run, const uint64_t *packets, uint64_t i,
                              uint64_t apart, uint64_t end, uint64_t data[N])
{
    const uint32_t stamp = (uint32_t)run.number;

    for (uint32_t spins = 1;; spins++) {
        uint64_t first[N], second[N];
        bool there = true;
#pragma unroll
        for (int u = 0; u < N; u++) {
            const bool has = i + (uint64_t)u * apart < end;
            first[u] = second[u] = (uint64_t)stamp << 32;
            gpu_load_relaxed_pair(has, packets + 2 * (i + (uint64_t)u * apart), &first[u], &second[u]);
        }
#pragma unroll
        for (int u = 0; u < N; u++) {
            there = there && first[u] >> 32 == stamp && second[u] >> 32 == stamp;
            data[u] = (uint32_t)first[u] | second[u] << 32;
        }
        if (there)
            return true;
        if (spins % GPU_LOOK_SPINS == 0 && rings_look(c, run))
            return false;
    }
}

/* The kernel's threads that exchange packets: all, but for the last `spare` ones of each workgroup. A spare one's number is beyond all packets. */
GPU_DEVICE uint64_t rings_threads(uint32_t spare)
{
    return (uint64_t)gridDim.x * (blockDim.x - spare);
}

GPU_DEVICE uint64_t rings_thread(uint32_t spare)
{
    const uint32_t threads = blockDim.x - spare;

    return threadIdx.x < threads ? (uint64_t)blockIdx.x * threads + threadIdx.x : UINT64_C(1) << 56;
}

GPU_DEVICE bool are_packets(const struct rings_call &c, int64_t elements)
{
    return (uint64_t)elements * c.what.element_bytes <= rings_packets_most(c.nranks);
}

/* What the rank has for itself, or a workgroup copies of it. */
struct own_share {
    const char *from;
    char *to;
    uint64_t bytes;
};

GPU_DEVICE struct own_share own_part_of(const struct rings_call &c, const struct rings_run &run)
{
    const char *from = (const char *)c.what.in + (uint64_t)run.send_at[c.rank] * c.what.element_bytes;
    char *to = (char *)c.what.out + (uint64_t)run.get_at[c.rank] * c.what.element_bytes;

    return {from, to, from == to ? 0 : (uint64_t)run.get[c.rank] * c.what.element_bytes};
}

/* Sends packets to rank dst. */
GPU_DEVICE void packets_send_to(const struct rings_call &c, const struct rings_run &run, uint32_t dst, uint32_t spare)
{
    enum { AT_ONCE = 2 };
    const uint64_t bytes = (uint64_t)run.send[dst] * c.what.element_bytes;
    const char *from = (const char *)c.what.in + (uint64_t)run.send_at[dst] * c.what.element_bytes;
    uint64_t *packets = packets_of(c, run, dst, c.rank);

    for (uint64_t i = rings_thread(spare); 8 * i < bytes; i += AT_ONCE * rings_threads(spare)) {
        uint64_t data[AT_ONCE];
#pragma unroll
        for (uint32_t u = 0; u < AT_ONCE; u++) {
            const uint64_t at = 8 * (i + u * rings_threads(spare));
            data[u] = at < bytes ? eight_load(from + at, bytes - at) : 0;
        }
#pragma unroll
        for (uint32_t u = 0; u < AT_ONCE; u++)
            if (8 * (i + u * rings_threads(spare)) < bytes)
                packet_store(packets, i + u * rings_threads(spare), data[u], (uint32_t)run.number);
    }
}

/* All threads of the kernel, or all but spare ones: sends what goes to each rank, as far as packets do. */
GPU_DEVICE void packets_send(const struct rings_call &c, const struct rings_run &run, uint32_t spare)
{
    for (uint32_t k = 1; k < c.nranks; k++) {
        const uint32_t dst = gpu_rank_at(k - 1, c.rank, c.nranks);
        if (are_packets(c, run.send[dst]))
            packets_send_to(c, run, dst, spare);
    }
}

/* The same, and puts what the rank has for itself into its place, which is known: its first loads are under way while packets are sent. */
GPU_DEVICE void packets_send_and_keep(const struct rings_call &c, const struct rings_run &run, uint32_t spare)
{
    const struct own_share own = own_part_of(c, run);
    uint64_t at = 8 * rings_thread(spare);
    uint64_t data = at < own.bytes ? eight_load(own.from + at, own.bytes - at) : 0;

    packets_send(c, run, spare);
    while (at < own.bytes) {
        const uint64_t here = at;
        eight_store(own.to + here, data, own.bytes - here);
        at += 8 * rings_threads(spare);
        data = at < own.bytes ? eight_load(own.from + at, own.bytes - at) : 0;
    }
}

/* The same threads: takes what comes from each rank, as far as packets do. False, in any thread: leave. */
GPU_DEVICE bool packets_take(const struct rings_call &c, struct rings_run &run, uint32_t spare)
{
    enum { AT_ONCE = 4 };

    for (uint32_t k = 1; k < c.nranks; k++) {
        const uint32_t src = gpu_rank_at(k - 1, c.rank, c.nranks);
        const uint64_t bytes = (uint64_t)run.get[src] * c.what.element_bytes;
        char *to = (char *)c.what.out + (uint64_t)run.get_at[src] * c.what.element_bytes;
        const uint64_t *packets = packets_of(c, run, c.rank, src);
        if (!are_packets(c, run.get[src]))
            continue;
        for (uint64_t i = rings_thread(spare); 8 * i < bytes; i += AT_ONCE * rings_threads(spare)) {
            uint64_t data[AT_ONCE];
            if (!packets_await<AT_ONCE>(c, run, packets, i, rings_threads(spare), (bytes + 7) / 8, data))
                return false;
#pragma unroll
            for (uint32_t u = 0; u < AT_ONCE; u++)
                if (8 * (i + u * rings_threads(spare)) < bytes)
                    eight_store(to + 8 * (i + u * rings_threads(spare)), data[u], bytes - 8 * (i + u * rings_threads(spare)));
        }
    }
    return true;
}

GPU_DEVICE struct own_share own_share_of(const struct rings_call &c, const struct rings_run &run)
{
    const struct own_share all = own_part_of(c, run);
    const uint64_t share = ((all.bytes + gridDim.x - 1) / gridDim.x + 127) / 128 * 128, begin = blockIdx.x * share;

    return {all.from + begin, all.to + begin, begin >= all.bytes ? 0 : all.bytes - begin < share ? all.bytes - begin : share};
}

/* All threads. */
GPU_DEVICE void own_copy(const struct rings_call &c, const struct rings_run &run)
{
    const struct own_share s = own_share_of(c, run);

    group_copy(s.to, s.from, s.bytes);
}

/* A wave, beside others that do something else: copies chunks of the workgroup's share, whose count is `copied`, until no more are left. */
GPU_DEVICE void own_copy_beside(const struct rings_call &c, const struct rings_run &run, uint32_t *copied)
{
    enum { CHUNK = 16 << 10 };
    const struct own_share s = own_share_of(c, run);
    const uint32_t lane = threadIdx.x % GPU_WAVE;

    for (;;) {
        const uint64_t at = (uint64_t)CHUNK * gpu_team_get(lane ? 0 : atomicAdd(copied, 1), 0, GPU_WAVE);
        if (at >= s.bytes)
            return;
        group_copy(s.to + at, s.from + at, s.bytes - at < CHUNK ? s.bytes - at : CHUNK, lane, GPU_WAVE);
    }
}

#endif
