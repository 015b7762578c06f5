/* SPDX-License-Identifier: MIT
 *
 * rings_parts.h - how parts of vectors travel through rings (kernels/gpu/rings.h): as packets, or as pieces.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PARTS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PARTS_H

#include "kernels/gpu/device/exchange/group_copy.h"
#include "kernels/gpu/device/exchange/rings_run.h"

/* ---- packets ---- */

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

/* The packets from rank `from` at rank `at`: two words each. */
GPU_DEVICE uint64_t *packets_of(const struct rings_call &c, const struct rings_run &run, uint32_t at, uint32_t from)
{
    return (uint64_t *)(c.rings[at] + RINGS_PACKETS_AT + ((run.number % 2) * c.nranks + from) * (uint64_t)RINGS_PACKET_BYTES);
}

GPU_DEVICE void packet_store(uint64_t *packets, uint64_t i, uint64_t data, uint32_t stamp)
{
    const uint64_t high = (uint64_t)stamp << 32;

    gpu_store_relaxed_pair(packets + 2 * i, high | (uint32_t)data, high | data >> 32);
}

/* Waits for a packet. False: leave. */
GPU_DEVICE bool packet_await(const struct rings_call &c, const struct rings_run &run, const uint64_t *packets, uint64_t i,
                             uint64_t *data)
{
    const uint32_t stamp = (uint32_t)run.number;
    uint64_t first = 0, second = 0;

    for (uint32_t spins = 1;; spins++) {
        gpu_load_relaxed_pair(true, packets + 2 * i, &first, &second);
        if (first >> 32 == stamp && second >> 32 == stamp)
            break;
        if (spins % GPU_LOOK_SPINS == 0 && rings_must_leave(c, run))
            return false;
    }
    *data = (uint32_t)first | second << 32;
    return true;
}

GPU_DEVICE uint64_t rings_threads()
{
    return (uint64_t)gridDim.x * blockDim.x;
}

GPU_DEVICE uint64_t rings_thread()
{
    return (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

GPU_DEVICE bool are_packets(const struct rings_call &c, int64_t elements)
{
    return (uint64_t)elements * c.what.element_bytes <= RINGS_PACKETS_MOST;
}

/* All threads of the kernel: sends what goes to each rank, as far as packets do. */
GPU_DEVICE void packets_send(const struct rings_call &c, const struct rings_run &run)
{
    for (uint32_t k = 1; k < c.nranks; k++) {
        const uint32_t dst = gpu_rank_at(k - 1, c.rank, c.nranks);
        const uint64_t bytes = (uint64_t)run.send[dst] * c.what.element_bytes;
        const char *from = (const char *)c.what.in + (uint64_t)run.send_at[dst] * c.what.element_bytes;
        uint64_t *packets = packets_of(c, run, dst, c.rank);
        if (!are_packets(c, run.send[dst]))
            continue;
        for (uint64_t i = rings_thread(); 8 * i < bytes; i += rings_threads())
            packet_store(packets, i, eight_load(from + 8 * i, bytes - 8 * i), (uint32_t)run.number);
    }
}

/* All threads of the kernel: takes what comes from each rank, as far as packets do. False, in any thread: leave. */
GPU_DEVICE bool packets_take(const struct rings_call &c, const struct rings_run &run)
{
    for (uint32_t k = 1; k < c.nranks; k++) {
        const uint32_t src = gpu_rank_at(k - 1, c.rank, c.nranks);
        const uint64_t bytes = (uint64_t)run.get[src] * c.what.element_bytes;
        char *to = (char *)c.what.out + (uint64_t)run.get_at[src] * c.what.element_bytes;
        const uint64_t *packets = packets_of(c, run, c.rank, src);
        if (!are_packets(c, run.get[src]))
            continue;
        for (uint64_t i = rings_thread(); 8 * i < bytes; i += rings_threads()) {
            uint64_t data;
            if (!packet_await(c, run, packets, i, &data))
                return false;
            eight_store(to + 8 * i, data, bytes - 8 * i);
        }
    }
    return true;
}

/* All threads of the kernel: what a rank has for itself. */
GPU_DEVICE void own_copy(const struct rings_call &c, const struct rings_run &run)
{
    const uint64_t bytes = (uint64_t)run.get[c.rank] * c.what.element_bytes;
    const uint64_t share = ((bytes + gridDim.x - 1) / gridDim.x + 127) / 128 * 128, begin = blockIdx.x * share;
    const char *from = (const char *)c.what.in + (uint64_t)run.send_at[c.rank] * c.what.element_bytes;
    char *to = (char *)c.what.out + (uint64_t)run.get_at[c.rank] * c.what.element_bytes;

    if (from != to && begin < bytes)
        group_copy(to + begin, from + begin, bytes - begin < share ? bytes - begin : share);
}

/* ---- pieces: by all threads of a workgroup, for its channel ---- */

/* Ring of a channel: from rank `from` to rank `to`, in a step. */
struct ring {
    uint32_t step, channel, from, to;
};

GPU_DEVICE char *piece_at(const struct rings_call &c, const struct ring &r, uint64_t number)
{
    const uint64_t bytes = rings_piece_bytes(c.nranks);
    const uint32_t source = r.from - (r.from > r.to); /* among the other ranks */
    const uint64_t ring = ((uint64_t)r.step * RINGS_CHANNELS + r.channel) * (c.nranks - 1) + source;

    return (char *)c.rings[r.to] + rings_pieces_at(c.nranks) + (ring * RINGS_DEPTH + number % RINGS_DEPTH) * bytes;
}

/* The value of `full` and `free` when so many pieces of the run have come or been taken. */
GPU_DEVICE uint64_t pieces_count(const struct rings_run &run, uint64_t count)
{
    return run.number << 24 | count;
}

/* All threads: waits until there is room for a piece at the receiver. False: leave. */
GPU_DEVICE bool room_await(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number)
{
    bool leave = false;

    if (threadIdx.x == 0 && number >= RINGS_DEPTH)
        leave = !rings_await(c, run, &rings_head_of(c, r.from)->free[r.step][r.channel][r.to],
                             pieces_count(run, number + 1 - RINGS_DEPTH));
    return __syncthreads_or(leave) == 0;
}

/* All threads: waits until a piece has come. False: leave. */
GPU_DEVICE bool piece_await(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number)
{
    bool leave = false;

    if (threadIdx.x == 0)
        leave = !rings_await(c, run, &rings_head_of(c, r.to)->full[r.step][r.channel][r.from], pieces_count(run, number + 1));
    return __syncthreads_or(leave) == 0;
}

/* One thread, behind a barrier of the workgroup and a fence: the piece is there. */
GPU_DEVICE void piece_tell(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number)
{
    gpu_store_relaxed(&rings_head_of(c, r.to)->full[r.step][r.channel][r.from], pieces_count(run, number + 1));
}

/* One thread, behind a barrier of the workgroup: the piece has been read. */
GPU_DEVICE void room_tell(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number)
{
    gpu_store_release(&rings_head_of(c, r.from)->free[r.step][r.channel][r.to], pieces_count(run, number + 1));
}

/* A part that travels as pieces, of which a channel has every RINGS_CHANNELS-th one. Bytes. */
struct pieces {
    uint64_t bytes, most; /* of the part, of a piece */
    uint32_t channel;

    __device__ __forceinline__ bool has(uint64_t number) const
    {
        return at(number) < bytes;
    }
    __device__ __forceinline__ uint64_t at(uint64_t number) const
    {
        return (number * RINGS_CHANNELS + channel) * most;
    }
    __device__ __forceinline__ uint64_t length(uint64_t number) const
    {
        return bytes - at(number) < most ? bytes - at(number) : most;
    }
};

/* Of a part that travels so; of any other, none. Both ends know the part's length, and so the pieces': as small as all channels together need
 * for it, so that they share it. */
GPU_DEVICE struct pieces pieces_of(const struct rings_call &c, uint32_t channel, int64_t elements, bool as_packets)
{
    enum { LEAST = 2048 };
    const uint64_t bytes = as_packets ? 0 : (uint64_t)elements * c.what.element_bytes, most = rings_piece_bytes(c.nranks);
    const uint64_t share = (bytes / RINGS_CHANNELS / LEAST + 1) * LEAST;

    return {bytes, share < most ? share : most, channel};
}

/* All threads: sends a piece, from `from`. False: leave. */
GPU_DEVICE bool piece_send(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number,
                           const char *from, uint64_t bytes)
{
    if (!room_await(c, run, r, number))
        return false;
    group_copy(piece_at(c, r, number), from, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        gpu_fence_system();
        piece_tell(c, run, r, number);
    }
    return true;
}

/* All threads: takes a piece, to `to`. False: leave. */
GPU_DEVICE bool piece_take(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number,
                           char *to, uint64_t bytes)
{
    if (!piece_await(c, run, r, number))
        return false;
    group_copy(to, piece_at(c, r, number), bytes);
    __syncthreads();
    if (threadIdx.x == 0)
        room_tell(c, run, r, number);
    return true;
}

#endif
