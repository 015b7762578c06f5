/* SPDX-License-Identifier: MIT
 *
 * rings_pieces.h - how large parts of vectors travel through rings (kernels/gpu/rings.h): as pieces, by all threads of a workgroup, for its
 * channel. rings_bulk.h is how Hopper's copy engine moves them.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PIECES_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PIECES_H

#include "kernels/gpu/device/exchange/group_copy.h"
#include "kernels/gpu/device/exchange/rings_run.h"

/* Ring of a channel: from rank `from` to rank `to`, in a step. */
struct ring {
    uint32_t step, channel, from, to;
};

GPU_DEVICE char *piece_at(const struct rings_call &c, const struct ring &r, uint64_t number)
{
    const uint32_t source = r.from - (r.from > r.to); /* among the other ranks */
    const uint64_t ring = ((uint64_t)r.step * RINGS_CHANNELS + r.channel) * (c.nranks - 1) + source;

    return (char *)c.rings[r.to] + rings_pieces_at(c.nranks) +
           (ring * RINGS_DEPTH + number % RINGS_DEPTH) * rings_piece_bytes(c.nranks);
}

/* The value of `full` and `free` when so many pieces of the run have come or been taken. */
GPU_DEVICE uint64_t pieces_count(const struct rings_run &run, uint64_t count)
{
    return run.number << 24 | count;
}

/* ---- by one thread ---- */

/* Waiting: is there room for a piece at the receiver? Has a piece come? What for, and the value of the word that says so. */
struct piece_word {
    const uint64_t *word;
    uint64_t value;
};

GPU_DEVICE struct piece_word room_word(const struct rings_call &c, const struct rings_run &run, const struct ring &r,
                                       uint64_t number)
{
    return {&rings_head_of(c, r.from)->free[r.step][r.channel][r.to],
            number < RINGS_DEPTH ? 0 : pieces_count(run, number + 1 - RINGS_DEPTH)};
}

GPU_DEVICE struct piece_word come_word(const struct rings_call &c, const struct rings_run &run, const struct ring &r,
                                       uint64_t number)
{
    return {&rings_head_of(c, r.to)->full[r.step][r.channel][r.from], pieces_count(run, number + 1)};
}

/* Behind a barrier of the workgroup and a fence: the piece is there. */
GPU_DEVICE void piece_tell(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number)
{
    gpu_store_relaxed(&rings_head_of(c, r.to)->full[r.step][r.channel][r.from], pieces_count(run, number + 1));
}

/* The piece has been read: its data has arrived at all threads of the workgroup, behind whose barrier this is, or in shared memory. So
 * nothing is left to be ordered before the store. */
GPU_DEVICE void room_tell(const struct rings_call &c, const struct rings_run &run, const struct ring &r, uint64_t number)
{
    gpu_store_relaxed(&rings_head_of(c, r.from)->free[r.step][r.channel][r.to], pieces_count(run, number + 1));
}

/* Where two workgroups of a channel reduce a half of each piece each (run.twins): the word by which the second one says what it has read. There is one step
 * then, so nothing else uses it. */
GPU_DEVICE struct ring twin_ring(const struct ring &r)
{
    return {1, r.channel, r.from, r.to};
}

/* Where both of two ranks reduce the whole vector (run.each), perhaps in place: a piece of it has been read here, to be sent, so its
 * result may be stored. As room_tell(). */
GPU_DEVICE struct ring read_ring(const struct rings_call &c, uint32_t channel)
{
    return {1, channel, c.rank, c.rank}; /* words that nothing else uses */
}

GPU_DEVICE void read_tell(const struct rings_call &c, const struct rings_run &run, uint32_t channel, uint64_t number)
{
    if (run.each)
        gpu_store_relaxed(&rings_head_of(c, c.rank)->full[1][channel][c.rank], pieces_count(run, number + 1));
}

/* ---- parts ---- */

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

/* Both ends know the part's length, and so the pieces': as small as all channels together need for it, so that they share it. */
GPU_DEVICE struct pieces pieces_of(const struct rings_call &c, uint32_t channel, int64_t elements)
{
    enum { LEAST = 2048 };
    const uint64_t bytes = (uint64_t)elements * c.what.element_bytes, most = rings_piece_bytes(c.nranks);
    const uint64_t share = (bytes / RINGS_CHANNELS / LEAST + 1) * LEAST;

    return {bytes, share < most ? share : most, channel};
}

/* ---- by all threads of a workgroup ---- */

/* False: leave. */
GPU_DEVICE bool piece_word_await(const struct rings_call &c, struct rings_run &run, const struct piece_word &w)
{
    bool leave = false;

    if (threadIdx.x == 0)
        leave = !rings_await(c, run, w.word, w.value);
    return __syncthreads_or(leave) == 0;
}

/* Sends a piece, from `at`. False: leave. */
GPU_DEVICE bool piece_send(const struct rings_call &c, struct rings_run &run, const struct ring &r, uint64_t number,
                           const char *at, uint64_t bytes)
{
    if (!piece_word_await(c, run, room_word(c, run, r, number)) ||
        (run.twins && !piece_word_await(c, run, room_word(c, run, twin_ring(r), number))))
        return false;
    group_copy(piece_at(c, r, number), at, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        read_tell(c, run, r.channel, number);
        gpu_fence_system();
        piece_tell(c, run, r, number);
    }
    return true;
}

/* Takes a piece, to `at`. False: leave. */
GPU_DEVICE bool piece_take(const struct rings_call &c, struct rings_run &run, const struct ring &r, uint64_t number, char *at,
                           uint64_t bytes)
{
    if (!piece_word_await(c, run, come_word(c, run, r, number)))
        return false;
    group_copy(at, piece_at(c, r, number), bytes);
    __syncthreads();
    if (threadIdx.x == 0)
        room_tell(c, run, r, number);
    return true;
}

#endif
