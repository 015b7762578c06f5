/* SPDX-License-Identifier: MIT
 *
 * rings_reduce.h - how a workgroup reduces its channel's pieces of this rank's chunk of a large vector: it takes all ranks' terms from their
 * rings and its own from memory, combines them in rank order, and stores the result for all that get it. On Hopper the copy engine loads
 * terms into shared memory and stores results from there (rings_bulk.h has the memory order), so that many tiles are on their way.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_REDUCE_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_REDUCE_H

#include "kernels/gpu/device/exchange/rings_bulk.h"

/* The rank that gets the result of this rank's chunk, number i of those that do, beginning with the next one; the number of ranks: none. */
GPU_DEVICE uint32_t receiver_at(const struct rings_call &c, const struct rings_run &run, uint32_t i)
{
    if (c.what.out_share == VECTOR_ALL && !run.each)
        return i < c.nranks ? gpu_rank_at(i, c.rank, c.nranks) : c.nranks;
    return i > 0 ? c.nranks : c.what.out_share == VECTOR_ROOT ? c.what.root : c.rank;
}

/* A piece of the chunk, which begins at byte `at` of it, and from which byte of the piece on it is reduced. */
struct chunk_piece {
    uint32_t channel;
    uint64_t number, at, from;
};

/* The bytes of a piece that a workgroup reduces: all, or if the channel has twins one of the halves. */
struct piece_part {
    uint64_t begin, end;
};

GPU_DEVICE struct piece_part part_of(const struct rings_run &run, uint32_t half, uint64_t length)
{
    const uint64_t middle = (length / 2 + 127) / 128 * 128, first = run.twins && middle < length ? middle : length;

    return half ? piece_part{first, length} : piece_part{0, first};
}

GPU_DEVICE const char *term_at(const struct rings_call &c, const struct rings_run &run, uint32_t r, const struct chunk_piece &p)
{
    if (r != c.rank)
        return piece_at(c, {0, p.channel, r, c.rank}, p.number) + p.from;
    return (const char *)c.what.in + (uint64_t)run.send_at[c.rank] * c.what.element_bytes + p.at + p.from;
}

/* For receiver `to`. */
GPU_DEVICE char *result_at(const struct rings_call &c, const struct rings_run &run, uint32_t to, const struct chunk_piece &p)
{
    const bool whole = c.what.out_share != VECTOR_OWN;

    if (to != c.rank)
        return piece_at(c, {1, p.channel, c.rank, to}, p.number) + p.from;
    return (char *)c.what.out + (whole ? (uint64_t)run.send_at[c.rank] * c.what.element_bytes : 0) + p.at + p.from;
}

/* One thread, behind a fence: the results are there. */
GPU_DEVICE void results_tell(const struct rings_call &c, const struct rings_run &run, uint32_t channel, uint64_t number)
{
    for (uint32_t i = 0; receiver_at(c, run, i) < c.nranks; i++)
        if (receiver_at(c, run, i) != c.rank)
            piece_tell(c, run, {1, channel, c.rank, receiver_at(c, run, i)}, number);
}

/* One thread: the terms have been read, or this half of them. */
GPU_DEVICE void terms_tell(const struct rings_call &c, const struct rings_run &run, uint32_t channel, uint32_t half,
                           uint64_t number)
{
    for (uint32_t r = 0; r < c.nranks; r++)
        if (r != c.rank)
            room_tell(c, run, {half, channel, r, c.rank}, number); /* half 1: twin_ring() */
}

/* ---- by all threads ---- */

/* Waits for all that a piece needs, and writes down where it lies. False: leave. */
GPU_DEVICE bool piece_find(const struct rings_call &c, struct rings_run &run, const struct chunk_piece &p)
{
    struct combine_vectors *v = &run.vectors;

    for (uint32_t r = 0; r < c.nranks; r++)
        if (r != c.rank && !piece_word_await(c, run, come_word(c, run, {0, p.channel, r, c.rank}, p.number)))
            return false;
    for (uint32_t i = 0; receiver_at(c, run, i) < c.nranks; i++)
        if (receiver_at(c, run, i) != c.rank &&
            !piece_word_await(c, run, room_word(c, run, {1, p.channel, c.rank, receiver_at(c, run, i)}, p.number)))
            return false;
    if (run.each && !piece_word_await(c, run, come_word(c, run, read_ring(c, p.channel), p.number)))
        return false;
    if (threadIdx.x == 0) {
        v->nterms = v->nranks = c.nranks;
        v->reduction = c.what.reduction;
        v->nresults = 0;
        for (uint32_t r = 0; r < c.nranks; r++)
            v->term[r] = (uint64_t)term_at(c, run, r, p);
        for (uint32_t i = 0; receiver_at(c, run, i) < c.nranks; i++)
            v->result[v->nresults++] = (uint64_t)result_at(c, run, receiver_at(c, run, i), p);
    }
    __syncthreads();
    return true;
}

template <typename T>
GPU_DEVICE bool piece_reduce(const struct rings_call &c, struct rings_run &run, const struct chunk_piece &p, uint32_t half,
                             uint64_t bytes)
{
    if (!piece_find(c, run, p))
        return false;
    combine_group<T, sizeof(T) == 1 ? 1 : 2>{run.vectors}.run((int64_t)(bytes / sizeof(T)));
    __syncthreads();
    if (threadIdx.x == 0) {
        gpu_fence_system();
        results_tell(c, run, p.channel, p.number);
        terms_tell(c, run, p.channel, half, p.number);
    }
    return true;
}

/* ---- by Hopper's copy engine ---- */

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/* The first `count` pieces of a channel: one thread loads tiles of all terms, the waves from BULK_COMBINERS on combine them in the place of
 * the first term, and one thread stores the results. Once the run was given up, all end. */
enum { BULK_SLOTS = BULK_BARRIERS };

template <typename T> struct bulk_reducer {
    typedef combine_words<T> words;
    typedef typename words::S S;
    typedef struct bulk_storer<16> storer_type; /* its tiles are smaller */
    enum { SLOT = BULK_BYTES / BULK_SLOTS };

    const struct rings_call &c;
    struct rings_run &run;
    struct bulk_shared &s;
    const struct pieces &p;
    const uint32_t half;
    const uint64_t count;
    const uint32_t most = SLOT / c.nranks / 128 * 128; /* bytes of a tile, of each term */

    __device__ __forceinline__ char *slot(uint32_t tile) const
    {
        return s.tiles + tile % BULK_SLOTS * SLOT;
    }

    __device__ __forceinline__ struct chunk_piece piece(uint64_t number) const
    {
        return {p.channel, number, p.at(number), 0};
    }

    __device__ __forceinline__ struct piece_part part(uint64_t number) const
    {
        return part_of(run, half, p.length(number));
    }

    __device__ __forceinline__ uint32_t length(const struct piece_part &part, uint64_t at) const
    {
        return part.end - at < most ? (uint32_t)(part.end - at) : most;
    }

    __device__ __forceinline__ bool terms_await(uint64_t number) const
    {
        for (uint32_t r = 0; r < c.nranks; r++) {
            const struct piece_word w = come_word(c, run, {0, p.channel, r, c.rank}, number);
            if (r != c.rank && !rings_await(c, run, w.word, w.value))
                return false;
        }
        gpu_fence_proxies();
        return true;
    }

    __device__ __forceinline__ void load() const
    {
        struct bulk_loader loader = {run, s, BULK_SLOTS};

        for (uint64_t number = 0; number < count && terms_await(number); number++) {
            const struct piece_part mine = part(number);
            for (uint64_t at = mine.begin; at < mine.end; at += most) {
                const uint32_t bytes = length(mine, at);
                if (!loader.begin(c.nranks * bytes))
                    return loader.finish();
                for (uint32_t r = 0; r < c.nranks; r++)
                    loader.load(slot(loader.loaded) + r * most, term_at(c, run, r, piece(number)) + at, bytes);
                loader.end();
            }
        }
        loader.finish();
    }

    __device__ __forceinline__ void combine_tile(char *terms, uint32_t bytes) const
    {
        for (uint32_t at = (threadIdx.x - BULK_COMBINERS) * 16; at < bytes; at += (blockDim.x - BULK_COMBINERS) * 16) {
            S sum[words::LENGTH], next[words::LENGTH];
            words::load(sum, *(const struct gpu_words *)(terms + at));
            for (uint32_t r = 1; r < c.nranks; r++) {
                words::load(next, *(const struct gpu_words *)(terms + r * most + at));
                combine(c.what.reduction, sum, next);
            }
            combine_end(c.what.reduction, c.nranks, sum);
            *(struct gpu_words *)(terms + at) = words::store(sum);
        }
    }

    __device__ __forceinline__ void combine_all() const
    {
        uint32_t tile = 0;

        for (uint64_t number = 0; number < count; number++) {
            const struct piece_part mine = part(number);
            for (uint64_t at = mine.begin; at < mine.end; at += most, tile++) {
                if (!bulk_await(s.full, tile, BULK_SLOTS, run))
                    return;
                combine_tile(slot(tile), length(mine, at));
                gpu_fence_for_async();
                gpu_barrier_arrive(&s.done[tile % BULK_SLOTS]);
            }
        }
    }

    /* Waits for room for a piece's results, where this rank's own are stored, too. False: leave. */
    __device__ __forceinline__ bool results_await(storer_type &storer, uint64_t number) const
    {
        uint32_t to;

        for (uint32_t i = 0; (to = receiver_at(c, run, i)) < c.nranks; i++)
            if (to != c.rank && !storer.await(room_word(c, run, {1, p.channel, c.rank, to}, number)))
                return false;
        return !run.each || storer.await(come_word(c, run, read_ring(c, p.channel), number));
    }

    __device__ __forceinline__ void store() const
    {
        storer_type storer = {c, run, s, BULK_SLOTS};
        uint32_t to;

        for (uint64_t number = 0; number < count && results_await(storer, number); number++) {
            const struct piece_part mine = part(number);
            for (uint64_t at = mine.begin; at < mine.end; at += most) {
                if (!bulk_await(s.done, storer.stored, BULK_SLOTS, run))
                    return storer.drain();
                for (uint32_t i = 0; (to = receiver_at(c, run, i)) < c.nranks; i++)
                    gpu_bulk_store(result_at(c, run, to, piece(number)) + at, slot(storer.stored), length(mine, at));
                storer.end_tile();
                storer.tell_some();
            }
            terms_tell(c, run, p.channel, half, number);
            for (uint32_t i = 0; (to = receiver_at(c, run, i)) < c.nranks; i++)
                if (to != c.rank)
                    storer.note({1, p.channel, c.rank, to}, number);
        }
        storer.drain();
    }

    /* All threads. False: leave. */
    __device__ __forceinline__ bool reduce() const
    {
        if (threadIdx.x == BULK_LOADER)
            load();
        else if (threadIdx.x == BULK_STORER)
            store();
        else if (threadIdx.x >= BULK_COMBINERS)
            combine_all();
        return __syncthreads_or(run.leave) == 0;
    }
};

/* The number of a channel's pieces that the copy engine can reduce, which are its first ones. */
GPU_DEVICE uint64_t bulk_reducible(const struct rings_call &c, const struct rings_run &run, const struct pieces &p)
{
    const struct chunk_piece first = {p.channel, 0, 0, 0};
    uint64_t n = 0;

    if ((uint64_t)term_at(c, run, c.rank, first) % 16 || (uint64_t)result_at(c, run, c.rank, first) % 16)
        return 0;
    while (p.has(n) && p.length(n) % 16 == 0)
        n++;
    return n;
}

#endif

/* ---- a channel ---- */

/* half: which of twins; of others 0. */
template <typename T>
GPU_DEVICE void terms_reduce(const struct rings_call &c, struct rings_run &run, struct bulk_shared *shared, uint32_t channel,
                             uint32_t half)
{
    const struct pieces p = pieces_of(c, channel, run.send[c.rank]);
    uint64_t number = 0;

    bulk_begin(shared, blockDim.x - BULK_COMBINERS);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    number = bulk_reducible(c, run, p);
    if (number && !bulk_reducer<T>{c, run, *shared, p, half, number}.reduce())
        return;
#endif
    for (; p.has(number); number++) {
        const struct piece_part mine = part_of(run, half, p.length(number));
        if (!piece_reduce<T>(c, run, {channel, number, p.at(number), mine.begin}, half, mine.end - mine.begin))
            return;
    }
}

#endif
