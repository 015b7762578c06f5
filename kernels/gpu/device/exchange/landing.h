/* SPDX-License-Identifier: MIT
 *
 * landing.h - rows that ranks compute for each other, through landing memory (kernels/plan/exchange/landing.h), on a GPU: where a slice is
 * stored, when it may be, and how the receiver moves what has come into its result.
 *
 * Slices are stored when all ranks have begun the run (landing_meet()), and a slice of part p >= LANDING_PLACES when the receiver has moved
 * the part before it in the same place (landing_is_free()). A part is a signal group, whose flag tells the receiver that it has come. Pieces are
 * taken from a counter, those of all senders' first parts before those of the second parts, and so on.
 *
 * Why nothing deadlocks, however few workgroups are resident. A plan's slices are in the order of their parts, and pieces are taken in the order
 * of theirs. Storing part p waits for pieces of parts up to p - LANDING_PLACES, moving a piece of part p for slices of parts up to p, of any rank.
 * So by induction over p, whoever waits waits for slices and pieces that running workgroups have taken already, or for ones that nobody has taken
 * yet while somebody takes more: on Hopper a warp of each workgroup moves pieces as long as the workgroup stores slices (landing_serve());
 * elsewhere a workgroup that waits for part p - LANDING_PLACES to be moved moves pieces itself meanwhile, of parts up to that one
 * only (landing_open()): a later one could wait for the slice that it has in hand. Who has stored its last slice moves all that is left (landing_end()).
 *
 * Memory order. A part's stores, then its flag: execute.h. Who moves a piece looks at the flag (acquire) until it is there, then
 * a barrier of its team, then all read. They have read; barrier; one thread: fence (system), then the word at the sender (relaxed). There
 * the lanes of a wave look at the words of a place, load them (acquire), then a barrier, and a fence if the copy engine stores. What the run before
 * has used is free when a rank has begun this one: its kernel has ended, with all its loads.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_LANDING_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_LANDING_H

#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/rows.h"

static_assert(LANDING_FLAGS == GPU_FLAGS, "a part has a flag");

/* ---- headers ---- */

/* What another rank's header says besides: the tables that it has, if it divides the batch as this one does. */
GPU_DEVICE enum rings_why landing_tables(const struct gpu_call &call, uint64_t words[4])
{
    if (words[2] >> RINGS_TABLES_BITS != call.rings.rows[call.plans[0].rank])
        return RINGS_SPLIT;
    words[2] = rings_bags_tables(words[2]);
    return RINGS_WELL;
}

/* The elements of what a rank sends: of products each has its rows, of embedding_all_to_all its columns. */
template <bool BAGS> GPU_DEVICE struct landing_parts landing_comes(const struct gpu_call &call, uint32_t count)
{
    const struct gpu_shape &shape = call.fixed->shape;

    if constexpr (BAGS)
        return landing_parts_of(call.rings.place_bytes, call.rings.rows[call.plans[0].rank], count * (uint32_t)shape.dim,
                                call.rings.element_bytes, (uint32_t)shape.dim);
    else
        return landing_parts_of(call.rings.place_bytes, count, (uint32_t)shape.n, call.rings.element_bytes, LANDING_COLUMNS);
}

/* A wave: waits for all ranks' headers of this run, and finds what comes from whom. False, for all lanes: leave. BAGS: of embedding_all_to_all,
 * whose result has room for all ranks' tables, and for no more. */
template <bool BAGS = false> GPU_DEVICE bool landing_meet(const struct gpu_call &call)
{
    volatile struct gpu_numbers *here = gpu_numbers_here();
    const uint32_t r = threadIdx.x % GPU_WAVE, own = call.plans[0].rank, nranks = call.rings.nranks;
    uint64_t words[4] = {0, 0, 0, 0}, sum = 0, before = 0;
    const uint32_t expected = r < nranks ? call.rings.expected[r] : UINT32_MAX;
    enum rings_why why = RINGS_WELL;
    bool leave = false;

    if (r == own) {
        words[2] = BAGS ? call.in[0].embedding.ntables : call.rings.rows[own];
    } else if (r < nranks) {
        leave = !through_header_await(call, r, words);
        (void)gpu_load_acquire(
            &through_head(call)->header[gpu_epoch(call) % 2][r].what); /* what the run before used may be stored over */
        why = leave ? RINGS_WELL : through_compare(call, words);
        if (BAGS && why == RINGS_WELL && !leave)
            why = landing_tables(call, words);
    }
    if (why == RINGS_WELL && !leave && expected != UINT32_MAX && words[2] != expected)
        why = RINGS_COUNT;
    words[3] &= RINGS_NUMBER_MASK;
    if (why == RINGS_WELL && !leave && r < nranks && r != own && words[3] != RINGS_UNKNOWN && words[3] != call.rings.rows[r])
        why = RINGS_REFUSED; /* that rank says that it expects another number */
    for (uint32_t other = 0; other < nranks; other++) {
        const uint64_t rows = gpu_team_get((unsigned long long)words[2], other, GPU_WAVE);
        before += other < r ? rows : 0;
        sum += rows;
    }
    const uint64_t differ = gpu_wave_vote(why != RINGS_WELL);
    if (differ && gpu_team_first(differ, GPU_WAVE) == r)
        through_differ(call, why, r, words);
    if (gpu_wave_vote(leave) || differ)
        return false;
    if (BAGS ? sum != call.rings.own : sum > call.rings.own) {
        words[0] = call.rings.what;
        words[1] = call.rings.whole;
        words[2] = sum;
        if (r == own)
            through_differ(call, RINGS_ROOM, own, words);
        return false;
    }
    struct landing_parts parts = landing_comes<BAGS>(call, (uint32_t)words[2]);
    parts.count = r < nranks && r != own ? parts.count : 0;
    uint32_t most = 0;
    for (uint32_t other = 0; other < nranks; other++) {
        const uint32_t its = gpu_team_get(parts.count, other, GPU_WAVE);
        most = its > most ? its : most;
    }
    if (r < nranks) {
        here->rows[r] = (uint32_t)words[2];
        here->rows_at[r] = (uint32_t)before;
        here->parts[r].rows = parts.rows;
        here->parts[r].cols = parts.cols;
        here->parts[r].down = parts.down;
        here->parts[r].count = parts.count;
    }
    here->most = most;
    gpu_wave_sync();
    here->met = 1;
    return true;
}

/* ---- storing ---- */

/* Where a slice is stored at its destination. A destination of another rank is the slot of this one, and the slice's place in it that of the
 * part, which is s.slot. */
template <typename T> GPU_DEVICE T *landing_to(const struct gpu_call &call, const struct slice &s, int64_t pitch)
{
    const uint32_t own = call.plans[0].rank;
    char *to = (char *)call.out[s.dst].data;

    if (call.rings.place_bytes && s.dst != own)
        to += (uint64_t)(s.slot % LANDING_PLACES) * call.rings.place_bytes;
    else if (call.rings.place_bytes)
        to += (int64_t)((volatile struct gpu_numbers *)gpu_numbers_here())->rows_at[own] * pitch * (int64_t)sizeof(T);
    return (T *)to + s.dst_row * pitch + s.dst_col;
}

/* A wave: whether the place of a slice's part is free, as far as it has seen. The same for all lanes. */
GPU_DEVICE bool landing_is_free(const struct gpu_call &call, const struct slice &s)
{
    const uint32_t i = threadIdx.x % GPU_WAVE;
    bool waits = false;

    if (s.slot < LANDING_PLACES || s.dst == call.plans[0].rank)
        return true;
    if (i < LANDING_PIECES) {
        const uint64_t *word = (const uint64_t *)(call.rings.heads[call.plans[0].rank] + rings_taken_at(call.rings.nranks) +
                                                  landing_taken_at(s.dst, s.slot, i));
        waits = gpu_load_relaxed(word) < landing_taken(gpu_epoch(call), s.slot - LANDING_PLACES);
        if (!waits)
            (void)gpu_load_acquire(word);
    }
    const bool free = gpu_wave_vote(waits) == 0;
    gpu_wave_sync();
    return free;
}

/* A wave that has met the others and is served by another one: waits until the slice's place is free. False: leave. */
GPU_DEVICE bool landing_place_await(const struct gpu_call &call, const struct slice &s)
{
    for (uint32_t spins = 1; !landing_is_free(call, s); spins++)
        if (spins % GPU_LOOK_SPINS == 0 && gpu_wave_vote(threadIdx.x % GPU_WAVE == 0 && gpu_must_leave(call, 0)))
            return false;
    return true;
}

/* ---- moving ---- */

/* Who moves a piece. AT_ONCE: its threads' loads in flight. */
struct landing_group { /* a workgroup */
    static constexpr int AT_ONCE = 8;

    static __device__ __forceinline__ uint32_t thread()
    {
        return threadIdx.x;
    }
    static __device__ __forceinline__ uint32_t threads()
    {
        return blockDim.x;
    }
    static __device__ __forceinline__ bool any(bool yes)
    {
        return __syncthreads_or(yes) != 0;
    }
    /* The first thread's value, which it leaves in `shared`. */
    static __device__ __forceinline__ uint32_t of_first(uint32_t value, uint32_t *shared)
    {
        if (threadIdx.x == 0)
            *shared = value;
        __syncthreads();
        return *shared;
    }
};
struct landing_wave {
    static constexpr int AT_ONCE = 12; /* of all multiprocessors together as much as the links bring meanwhile */

    static __device__ __forceinline__ uint32_t thread()
    {
        return threadIdx.x % GPU_WAVE;
    }
    static __device__ __forceinline__ uint32_t threads()
    {
        return GPU_WAVE;
    }
    static __device__ __forceinline__ bool any(bool yes)
    {
        const bool any = gpu_wave_vote(yes) != 0;
        gpu_wave_sync();
        return any;
    }
    static __device__ __forceinline__ uint32_t of_first(uint32_t value, uint32_t *)
    {
        return gpu_team_get(value, 0, GPU_WAVE);
    }
};

/* One thread: takes the next piece if it is below `end`. Returns its number; UINT32_MAX: there is none. */
GPU_DEVICE uint32_t landing_next_below(const struct gpu_call &call, uint32_t end)
{
    uint32_t *counter = gpu_counters_of(call, 0) + GPU_NEXT + GPU_PHASE_PUT, seen = *(volatile uint32_t *)counter;

    while (seen < end) {
        const uint32_t found = atomicCAS(counter, seen, seen + 1);
        if (found == seen)
            return seen;
        seen = found;
    }
    return UINT32_MAX;
}

/* One thread: takes the next piece. Its number is `end` or more if there is none. */
GPU_DEVICE uint32_t landing_next(const struct gpu_call &call)
{
    return atomicAdd(gpu_counters_of(call, 0) + GPU_NEXT + GPU_PHASE_PUT, 1u);
}

/* Pieces of a part of each sender. */
GPU_DEVICE uint32_t landing_pieces(const struct gpu_call &call)
{
    return (call.rings.nranks - 1) * LANDING_PIECES;
}

/* Where the rows of a sender's rectangle go, and from where they come; the distance of rows there is `pitch`. */
template <typename T, typename Team, bool BAGS>
GPU_DEVICE void landing_copy(const struct gpu_call &call, uint32_t sender, const struct landing_box &box, const T *from,
                             uint32_t pitch)
{
    const struct gpu_output &out = call.out[call.plans[0].rank];
    const uint32_t before = ((volatile struct gpu_numbers *)gpu_numbers_here())->rows_at[sender];

    if constexpr (BAGS) { /* whole tables */
        const uint32_t dim = (uint32_t)call.fixed->shape.dim, together = out.stride[1] == dim ? box.cols : dim;
        T *to = (T *)out.data + (int64_t)box.row * out.stride[0] + (int64_t)(before + box.col / dim) * out.stride[1];
        for (uint32_t col = 0; col < box.cols; col += together, to += out.stride[1])
            gpu_rows_copy<T, Team::AT_ONCE>(to, out.stride[0], from + col, pitch, box.rows, together, Team::thread(),
                                            Team::threads());
    } else {
        T *to = (T *)out.data + ((int64_t)before + box.row) * out.stride[0] + box.col;
        gpu_rows_copy<T, Team::AT_ONCE>(to, out.stride[0], from, pitch, box.rows, box.cols, Team::thread(), Team::threads());
    }
}

/* A team: waits for the piece of this number, and moves it. The workgroup has met the others. False: leave. */
template <typename T, typename Team, bool BAGS = false>
GPU_DEVICE bool landing_move(const struct gpu_call &call, uint32_t number)
{
    const volatile struct gpu_numbers *here = gpu_numbers_here();
    const uint32_t nranks = call.rings.nranks, own = call.plans[0].rank;
    const uint32_t each = landing_pieces(call), part = number / each, piece = number % LANDING_PIECES;
    const uint32_t sender = (own + nranks - 1 - number % each / LANDING_PIECES) % nranks, count = here->rows[sender];
    const uint32_t granule = BAGS ? (uint32_t)call.fixed->shape.dim : LANDING_COLUMNS;
    const uint32_t rows = BAGS ? call.rings.rows[own] : count, n = BAGS ? count * granule : (uint32_t)call.fixed->shape.n;
    const struct landing_parts parts = {here->parts[sender].rows, here->parts[sender].cols, here->parts[sender].down,
                                        here->parts[sender].count};
    bool leave = false;

    if (part >= parts.count)
        return true;
    const struct landing_box box = landing_part_at(&parts, part, rows, n), some = landing_piece_at(&box, piece, granule);
    if (Team::thread() == 0) {
        const uint64_t *flag = (const uint64_t *)call.plans[0].flags + landing_flag(nranks, sender, part);
        for (uint32_t spins = 1; gpu_load_acquire(flag) < gpu_epoch(call) && !leave; spins++)
            if (spins % GPU_LOOK_SPINS == 0)
                leave = gpu_must_leave(call, 0);
    }
    if (Team::any(leave))
        return false;
    const T *from = (const T *)(call.rings.heads[own] + rings_landing_at(nranks) + landing_slot_at(nranks, own, sender) +
                                (uint64_t)(part % LANDING_PLACES) * call.rings.place_bytes);
    const struct landing_box all = {box.row + some.row, some.rows, box.col + some.col, some.cols};
    landing_copy<T, Team, BAGS>(call, sender, all, from + (uint64_t)some.row * parts.cols + some.col, parts.cols);
    if (part + LANDING_PLACES >= parts.count)
        return true; /* the sender does not use the place again */
    (void)Team::any(false);
    if (Team::thread() == 0) {
        gpu_fence_system();
        gpu_store_relaxed((uint64_t *)(call.rings.heads[sender] + rings_taken_at(nranks) + landing_taken_at(own, part, piece)),
                          landing_taken(gpu_epoch(call), part));
    }
    return true;
}

/* All threads, before a workgroup computes a slice and stores it: waits until it may be stored. False: leave. */
template <typename T, bool BAGS = false> GPU_DEVICE bool landing_open(const struct gpu_call &call, const struct slice &s)
{
    __shared__ uint32_t shared;
    const volatile struct gpu_numbers *here = gpu_numbers_here();
    bool leave = false;

    if (!call.rings.place_bytes)
        return true;
    if (!here->met) /* the same for all threads: there is a barrier behind the last change */
        leave = threadIdx.x < GPU_WAVE && !landing_meet<BAGS>(call);
    if (__syncthreads_or(leave))
        return false;
    while (__syncthreads_or(threadIdx.x < GPU_WAVE && !landing_is_free(call, s))) {
        const uint32_t end = (s.slot - LANDING_PLACES + 1) * landing_pieces(call);
        const uint32_t number = landing_group::of_first(threadIdx.x == 0 ? landing_next_below(call, end) : 0, &shared);
        if (number == UINT32_MAX ? __syncthreads_or(threadIdx.x == 0 && gpu_must_leave(call, 0))
                                 : !landing_move<T, landing_group, BAGS>(call, number))
            return false;
    }
    return true;
}

/* A warp beside one that stores slices, until *stored is not 0 or nothing is left: moves pieces, if a place is used twice. */
template <typename T> GPU_DEVICE void landing_serve(const struct gpu_call &call, const uint32_t *stored)
{
    if (!call.rings.place_bytes || gpu_is_over(call) || !landing_meet(call))
        return;
    const uint32_t most = gpu_numbers_here()->most, end = most * landing_pieces(call);
    while (most > LANDING_PLACES && gpu_wave_vote(*(const volatile uint32_t *)stored != 0) == 0) {
        const uint32_t number = landing_wave::of_first(landing_wave::thread() == 0 ? landing_next(call) : 0, NULL);
        if (number >= end || !landing_move<T, landing_wave>(call, number))
            return;
    }
}

/* What gpu_execute_from() does last: all threads move what is left. If nobody has moved anything before, the pieces are dealt out, which spares the
 * counter. */
template <typename T, bool BAGS = false> struct landing_end {
    __device__ __forceinline__ void operator()(const struct gpu_call &call) const
    {
        __shared__ uint32_t shared;
        const volatile struct gpu_numbers *here = gpu_numbers_here();

        if (!call.rings.place_bytes || __syncthreads_or(threadIdx.x < GPU_WAVE && !here->met && !landing_meet<BAGS>(call)))
            return;
        const uint32_t most = gpu_numbers_here()->most, end = most * landing_pieces(call);
        const bool dealt = most <= LANDING_PLACES;
        for (uint32_t number = blockIdx.x;; number += gridDim.x) {
            if (!dealt)
                number = landing_group::of_first(threadIdx.x == 0 ? landing_next(call) : 0, &shared);
            if (number >= end || !landing_move<T, landing_group, BAGS>(call, number))
                return;
            if (!dealt)
                __syncthreads(); /* all have read `shared` */
        }
    }
};

#endif
