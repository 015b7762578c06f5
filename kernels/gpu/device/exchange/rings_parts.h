/* SPDX-License-Identifier: MIT
 *
 * rings_parts.h - what goes where in a run of a collective through rings (kernels/gpu/rings.h): what a rank sends to each other one and gets from it, by its
 * own call and by the others' headers, or before these are there.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PARTS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_PARTS_H

#include "kernels/gpu/device/exchange/rings_headers.h"

GPU_DEVICE bool rings_gets_all(const struct rings_call &c, uint32_t rank)
{
    return c.what.out_share == VECTOR_ALL || (c.what.out_share == VECTOR_ROOT && rank == c.what.root);
}

/* The first wave; thread r, of rank r. Counts that lie in memory: what goes to each rank, or which of them is the first that is wrong. An earlier
 * kernel has stored them, or a copy. */
GPU_DEVICE void rings_counts_find(const struct rings_call &c, struct rings_run *run, uint32_t r)
{
    const int64_t own = r < c.nranks ? (int64_t)gpu_load_relaxed((const uint64_t *)c.what.counts + r) : 0;
    int64_t at = 0, left = c.what.rows_most, count = 0;
    uint32_t wrong = RINGS_RANKS;

    for (uint32_t other = 0; other < c.nranks; other++) {
        const int64_t its = (int64_t)gpu_team_get((unsigned long long)own, other, GPU_WAVE);
        if (wrong < RINGS_RANKS)
            continue;
        if (its < 0 || its > left) {
            wrong = other;
            count = its;
        } else {
            at += other < r ? its : 0;
            left -= its;
        }
    }
    if (r < c.nranks) {
        run->send_at[r] = wrong == RINGS_RANKS ? at * c.what.row_elements : 0;
        run->send[r] = wrong == RINGS_RANKS ? own * c.what.row_elements : 0;
    }
    if (r == 0) {
        run->wrong = wrong;
        run->count = count;
    }
}

/* The first wave; thread r, of rank r. What is known before the other ranks' headers are there: all that is sent but by scatter and
 * reduce_scatter. */
GPU_DEVICE void rings_sends_find(const struct rings_call &c, struct rings_run *run, uint32_t r)
{
    const struct gpu_collective &w = c.what;

    if (w.counts) {
        rings_counts_find(c, run, r);
        return;
    }
    if (r == 0)
        run->wrong = RINGS_RANKS;
    if (r >= c.nranks)
        return;
    const bool has = w.in_share != VECTOR_ROOT || c.rank == w.root;
    int64_t at = 0;

    for (uint32_t before = 0; w.in_share == VECTOR_COUNTED && before < r; before++)
        at += w.send[before];
    run->send_at[r] = at;
    run->send[r] = w.in_share == VECTOR_COUNTED ? w.send[r] : has && rings_gets_all(c, r) ? w.in_elements : 0;
}

/* The first workgroup, behind rings_meet(): stores how many rows come from each rank. */
GPU_DEVICE void rings_received_tell(const struct rings_call &c, const struct rings_run &run)
{
    if (c.what.received && blockIdx.x == 0 && threadIdx.x < c.nranks)
        ((int64_t *)c.what.received)[threadIdx.x] = (int64_t)((uint64_t)run.get[threadIdx.x] / (uint64_t)c.what.row_elements);
}

/* Thread r of the first wave, of rank r. Reductions: the chunks, of which each rank reduces one: its own part, or equal ones of whole cache
 * lines. Of two ranks whoever gets the whole result reduces all of it: as many bytes go over the links, and one step is enough. Each rank sends
 * its terms of a chunk to the rank that reduces it, and gets the results of others' chunks, if it gets all. `own`, `at`: the rank's part. */
GPU_DEVICE void rings_chunk_find(const struct rings_call &c, struct rings_run *run, uint32_t r, int64_t own, int64_t at)
{
    const int64_t n = c.what.in_elements, line = 64 / c.what.element_bytes, lines = (n + line - 1) / line;
    const int64_t even = (int64_t)((uint64_t)lines * r / c.nranks) * line,
                  next = (int64_t)((uint64_t)lines * (r + 1) / c.nranks) * line;
    const bool is_own = c.what.out_share == VECTOR_OWN, at_once = c.nranks == 2 && !is_own;

    run->each = at_once && c.what.out_share == VECTOR_ALL;
    run->twins = is_own || at_once;
    run->send_at[r] = is_own ? at : at_once ? 0 : even < n ? even : n;
    run->send[r] = is_own ? own : at_once ? (rings_gets_all(c, r) ? n : 0) : (next < n ? next : n) - run->send_at[r];
    run->get_at[r] = run->send_at[r];
    run->get[r] = rings_gets_all(c, c.rank) && !at_once ? run->send[r] : 0;
}

/* The first wave; thread r, of rank r, which has `own`: sets what comes from where, and what scatter sends. */
GPU_DEVICE void rings_gets_set(const struct rings_call &c, struct rings_run *run, bool reduces, uint32_t r, uint64_t own)
{
    const struct gpu_collective &w = c.what;
    const bool from_root = w.in_share == VECTOR_ROOT;
    int64_t at = 0;

    for (uint32_t other = 0; other < c.nranks; other++) {
        const int64_t its = (int64_t)gpu_team_get((unsigned long long)own, other, GPU_WAVE);
        at += other < r ? its : 0;
    }
    if (r < c.nranks && reduces) {
        rings_chunk_find(c, run, r, (int64_t)own, at);
    } else if (r < c.nranks) {
        run->get_at[r] = from_root ? 0 : at;
        run->get[r] = from_root ? (r == w.root ? w.out_elements : 0)
                      : !w.rows && (w.in_share == VECTOR_COUNTED || rings_gets_all(c, c.rank)) ? (int64_t)own
                                                                                               : 0;
        if (from_root && w.out_share == VECTOR_OWN && c.rank == w.root) { /* scatter: what the others expect */
            run->send_at[r] = at;
            run->send[r] = (int64_t)own;
        }
    }
}

/* A wave; lane r knows what rank r has said to be its own. False, in one lane: the parts do not add up; the run is given up. */
GPU_DEVICE bool rings_gets_check(const struct rings_call &c, struct rings_run *run, uint32_t r, uint64_t own)
{
    const struct gpu_collective &w = c.what;
    const bool parts = rings_has_own(w.in_share) || rings_has_own(w.out_share);
    int64_t place = 0, sum = 0;

    for (uint32_t other = 0; other < c.nranks; other++) {
        const int64_t its = (int64_t)gpu_team_get((unsigned long long)own, other, GPU_WAVE);
        place += other < c.rank ? its : 0;
        sum += its;
    }
    if (r != 0)
        return true;
    const struct rings_header mine = rings_header_make(c, *run, c.rank);
    if (parts && mine.whole != RINGS_UNKNOWN && (uint64_t)sum != mine.whole)
        rings_give_up(c, *run, {RINGS_SUM, c.rank, c.rank, {0, 0, (uint64_t)sum, 0}, mine});
    else if (w.place && w.place - 1 != place)
        rings_give_up(
            c, *run,
            {RINGS_PLACE, c.rank, c.rank, {0, 0, (uint64_t)place, 0}, {mine.what, mine.whole, (uint64_t)(w.place - 1), 0}});
    else if (w.in_share == VECTOR_COUNTED && sum > w.out_elements)
        rings_give_up(
            c, *run,
            {RINGS_ROOM, c.rank, c.rank, {0, 0, (uint64_t)sum, 0}, {mine.what, mine.whole, (uint64_t)w.out_elements, 0}});
    else
        return true;
    return false;
}

/* What rank r's header will say to be its own, if this rank knows that, or does not need it; RINGS_UNKNOWN: it waits for the header. A run in which a header
 * says something else is given up. Of two ranks each knows what the other one has of a whole whose length it knows. */
GPU_DEVICE uint64_t rings_own_known(const struct rings_call &c, const struct rings_run &run, uint32_t r)
{
    const struct gpu_collective &w = c.what;
    const bool parts = rings_has_own(w.in_share) || rings_has_own(w.out_share);
    const bool of_root = w.in_share == VECTOR_ROOT || w.out_share == VECTOR_ROOT;
    const struct rings_header mine = rings_header_make(c, run, c.rank);

    if (w.in_share == VECTOR_COUNTED)
        return w.counts ? RINGS_UNKNOWN : r == c.rank ? mine.own : w.expected[r] >= 0 ? (uint64_t)w.expected[r] : RINGS_UNKNOWN;
    if (!parts || (of_root && c.rank != w.root))
        return 0;
    return r == c.rank                                                              ? mine.own
           : c.nranks == 2 && mine.whole != RINGS_UNKNOWN && mine.whole >= mine.own ? mine.whole - mine.own
                                                                                    : RINGS_UNKNOWN;
}

/* The first wave; thread r, of rank r: finds what comes from where, if it is known and there is room for it. */
GPU_DEVICE bool rings_gets_know(const struct rings_call &c, struct rings_run *run, bool reduces, uint32_t r)
{
    const uint64_t own = r < c.nranks ? rings_own_known(c, *run, r) : 0;
    const struct gpu_collective &w = c.what;
    uint64_t sum = 0;

    if (gpu_wave_vote(own == RINGS_UNKNOWN))
        return false;
    for (uint32_t other = 0; other < c.nranks && w.in_share == VECTOR_COUNTED; other++)
        sum += gpu_team_get((unsigned long long)own, other, GPU_WAVE);
    if (sum > (uint64_t)w.out_elements && w.in_share == VECTOR_COUNTED)
        return false;
    rings_gets_set(c, run, reduces, r, own);
    return true;
}

#endif
