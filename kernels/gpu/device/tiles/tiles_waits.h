/* SPDX-License-Identifier: MIT
 *
 * tiles_waits.h - what a workgroup of a product whose exchange goes on tile by tile (tiles.hip) knows of its run, what it waits for, and what it tells the other rank.
 * Every wait ends as rings_await()'s do: when the rank's failure epoch says so, which the time limit raises at the latest. Memory order: tiles_hopper.h.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_TILES_TILES_WAITS_H
#define FCC_KERNELS_GPU_DEVICE_TILES_TILES_WAITS_H

#include "kernels/gpu/device/rows.h"
#include "kernels/gpu/device/tiles/tiles_call.h"
#include "kernels/gpu/device/tiles/waits_tell.h"

/* What a workgroup knows of its run, in shared memory. */
struct tiles_run {
    uint64_t number; /* 0: it was given up as it began */
    uint32_t over;   /* the operator is, and so the words in host memory may be gone */
    /* 1: a thread of the workgroup has found that the run was given up; has waited for long, so the host knows of the run. Another thread may just find it. */
    volatile uint32_t leave, told;
};

/* One thread, behind gpu_follow(): the run that tiles_begin()'s kernel has begun. */
GPU_DEVICE void tiles_run_find(const struct tiles_call &call, struct tiles_run *run)
{
    const uint64_t failed = gpu_load_relaxed(rings_failure_of(call.rings, call.rings.rank));

    run->number = gpu_load_relaxed(&call.words->run);
    run->over = failed == UINT64_MAX;
    run->leave = failed >= run->number;
    run->told = 0;
}

#if defined(GPU_WAITS_TELL)
GPU_DEVICE bool tiles_await_telling(const struct tiles_call &call, struct tiles_run &run, const uint64_t *word, uint64_t value)
{
    const uint64_t begin = gpu_clock();

    while (!run.leave && !tell_is_over()) {
        if (gpu_load_acquire(word) >= value)
            return true;
        if (gpu_clock() - begin > TELL_WORD_NS)
            tell_note(0, word - call.words->come, gpu_load_relaxed(word), value);
    }
    return false;
}
#endif

/* One thread: waits until the word has reached the value. False, at once if it is known: the run was given up. */
GPU_DEVICE bool tiles_await(const struct tiles_call &call, struct tiles_run &run, const uint64_t *word, uint64_t value)
{
    struct rings_run mine = {};

    mine.number = run.number;
#if defined(GPU_WAITS_TELL)
    const bool come = tiles_await_telling(call, run, word, value);
    mine.leave = !come;
#else
    const bool come = !run.leave && rings_await(call.rings, mine, word, value);
#endif
    if (mine.told)
        run.told = 1;
    if (mine.leave)
        run.leave = 1;
    return come;
}

/* flow: 0: terms; 1: sums that go back. */
GPU_DEVICE uint32_t tiles_slot_of(const struct tiles_call &call, uint32_t tile, uint32_t flow)
{
    return tile % call.order.slots + flow * call.order.slots;
}

GPU_DEVICE uint64_t tiles_slot(const struct tiles_call &call, uint64_t slots, uint32_t flow, uint32_t tile)
{
    return slots + tiles_slot_of(call, tile, flow) * tiles_slot_bytes(call.order.cols);
}

/* Whether tiles of a part are stored at the other rank. */
GPU_DEVICE bool tiles_leaves(const struct tiles_call &call, uint32_t part)
{
    return call.sums && (part == 0 || call.returns);
}

/* A tile of a flow has come. */
GPU_DEVICE bool tiles_come_await(const struct tiles_call &call, struct tiles_run &run, uint32_t tile, uint32_t flow)
{
    return tiles_await(call, run, &call.words->come[tiles_slot_of(call, tile, flow)],
                       tiles_count(&call.order, run.number, tile));
}

/* All rows of A's second part up to `end`, as far as it has such. */
GPU_DEVICE bool tiles_rows_await(const struct tiles_call &call, struct tiles_run &run, int64_t end)
{
    const int64_t rows = end < call.order.part[1].rows ? end : call.order.part[1].rows;
    const uint32_t pieces = (uint32_t)((rows + call.come_rows - 1) / call.come_rows);

    return tiles_await(call, run, &rings_head_of(call.rings, call.rings.rank)->come[0], rings_piece_count(run.number, pieces));
}

/* The tile, which leaves, may be stored: its slot's tile before was taken. What does not leave may always be stored, unless the run was given up. */
GPU_DEVICE bool tiles_room_await(const struct tiles_call &call, struct tiles_run &run, uint32_t part, uint32_t tile)
{
    uint32_t before;

    if (!tiles_leaves(call, part) || !tiles_before(&call.order, part, tile, &before))
        return !run.leave;
    return tiles_await(call, run, &call.words->used[tiles_slot_of(call, tile, part)],
                       tiles_count(&call.order, run.number, before));
}

/* One thread: a tile is in the other rank's slot. Releases what this thread has seen. */
GPU_DEVICE void tiles_come_tell(const struct tiles_call &call, const struct tiles_run &run, uint32_t flow, uint32_t tile)
{
    gpu_store_release(&call.other_words->come[tiles_slot_of(call, tile, flow)], tiles_count(&call.order, run.number, tile));
}

/* Rows of a matrix of 16-bit elements, `chunks` times 16 bytes of each; width: what divides all addresses, at most 16. */
struct tiles_plain {
    uint64_t at;
    int64_t stride; /* elements */
    uint32_t width, rows, chunks;
};

GPU_DEVICE uint32_t tiles_chunks(const struct tiles_call &call, uint32_t col)
{
    const int64_t cols = call.n - col;

    return (uint32_t)(cols < call.order.cols ? cols : call.order.cols) / 8;
}

/* 16 bytes at an address that is a multiple of V's size. */
template <typename V> struct tiles_chunk {
    V part[16 / sizeof(V)];
};

template <typename V> GPU_DEVICE uint4 tiles_chunk_get_by(uint64_t at)
{
    struct tiles_chunk<V> chunk;
    uint4 data;

#pragma unroll
    for (uint32_t i = 0; i < 16 / sizeof(V); i++)
        chunk.part[i] = ((const V *)at)[i];
    memcpy(&data, &chunk, sizeof(data));
    return data;
}

template <typename V> GPU_DEVICE void tiles_chunk_put_by(uint64_t at, uint4 data)
{
    struct tiles_chunk<V> chunk;

    memcpy(&chunk, &data, sizeof(chunk));
#pragma unroll
    for (uint32_t i = 0; i < 16 / sizeof(V); i++)
        ((V *)at)[i] = chunk.part[i];
}

GPU_DEVICE uint4 tiles_chunk_get(uint64_t at, uint32_t width)
{
    return width == 16  ? *(const uint4 *)at
           : width == 8 ? tiles_chunk_get_by<uint64_t>(at)
           : width == 4 ? tiles_chunk_get_by<uint32_t>(at)
                        : tiles_chunk_get_by<uint16_t>(at);
}

GPU_DEVICE void tiles_chunk_put(uint64_t at, uint4 data, uint32_t width)
{
    if (width == 16)
        *(uint4 *)at = data;
    else if (width == 8)
        tiles_chunk_put_by<uint64_t>(at, data);
    else if (width == 4)
        tiles_chunk_put_by<uint32_t>(at, data);
    else
        tiles_chunk_put_by<uint16_t>(at, data);
}

/* Thread `first` of `step`: copies rows of a slot, from row `from` on, out of it or (INTO) into it, AT_ONCE chunks of 16 bytes at a time: a tile has whole
 * ones, as N is a multiple of 8 (tiles_can()). */
template <bool INTO, int AT_ONCE>
GPU_DEVICE void tiles_slot_copy(uint64_t slot, uint32_t from, const struct tiles_plain &p, uint32_t first, uint32_t step)
{
    const auto in_slot = [&](uint32_t i) { return slot + tiles_place_in_slot(from + i / p.chunks, i % p.chunks); };
    const auto plain = [&](uint32_t i) { return p.at + (uint64_t)(i / p.chunks * p.stride) * 2 + i % p.chunks * 16; };
    const uint32_t all = p.rows * p.chunks;

    for (uint32_t begin = first; begin < all; begin += AT_ONCE * step) {
        uint4 data[AT_ONCE];
#pragma unroll
        for (uint32_t u = 0; u < AT_ONCE; u++)
            if (begin + u * step < all)
                data[u] = INTO ? tiles_chunk_get(plain(begin + u * step), p.width) : *(const uint4 *)in_slot(begin + u * step);
#pragma unroll
        for (uint32_t u = 0; u < AT_ONCE; u++)
            if (begin + u * step < all && INTO)
                *(uint4 *)in_slot(begin + u * step) = data[u];
            else if (begin + u * step < all)
                tiles_chunk_put(plain(begin + u * step), data[u], p.width);
    }
}

/* Thread `first` of `step`: moves at most `most` rows from `from` on of a sum of the other rank's, which begins at c's row and col, from its slot to c. */
template <int AT_ONCE>
GPU_DEVICE void tiles_move(const struct tiles_call &call, uint32_t tile, uint32_t row, uint32_t col, uint32_t from,
                           uint32_t most, uint32_t first, uint32_t step)
{
    const int64_t left = call.order.part[0].rows - row - from;
    const struct tiles_plain c = {call.c[0] + ((row + from) * call.c_stride + col) * 2, call.c_stride, call.width,
                                  (uint32_t)(left < most ? left : most), tiles_chunks(call, col)};

    tiles_slot_copy<false, AT_ONCE>(tiles_slot(call, call.slots, 1, tile), from, c, first, step);
}

/* One thread, behind a barrier of those that have moved one of the sum's parts: the last part's tells that the slot is free, if another sum is to come there. The
 * parts' loads are before their additions (release), so before the last one's (acquire), and the word. The next sum's parts begin to count behind that word. */
GPU_DEVICE void tiles_moved_tell(const struct tiles_call &call, const struct tiles_run &run, uint32_t tile, uint32_t parts)
{
    const uint32_t slot = tile % call.order.slots;

    if (tile + call.order.slots >= 2 * call.order.part[0].units ||
        (parts > 1 && gpu_add_acq_rel(&call.words->parts[slot], 1) != parts - 1))
        return;
    if (parts > 1)
        call.words->parts[slot] = 0;
    gpu_store_release(&call.other_words->used[tiles_slot_of(call, tile, 1)], tiles_count(&call.order, run.number, tile));
}

/* All threads: the workgroup has done. Tells the host what it was told of the run, and whether that was given up. */
GPU_DEVICE void tiles_end(const struct tiles_call &call, const struct tiles_run &run)
{
    gpu_let_follow();
    __syncthreads();
#if defined(GPU_WAITS_TELL)
    if (threadIdx.x == 0)
        tell_stay();
#endif
    if (threadIdx.x || !run.number || run.over)
        return;
    if (blockIdx.x == 0)
        rings_record_end(call.rings, run.number, run.leave);
    if (run.leave)
        gpu_store_relaxed((uint64_t *)call.rings.failed, run.number);
    if (run.told)
        gpu_store_relaxed((uint64_t *)call.rings.ended, (uint64_t)(uint32_t)run.number);
}

#endif
