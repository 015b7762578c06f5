/* SPDX-License-Identifier: MIT
 *
 * rings_run.h - a run of a collective through rings (kernels/gpu/rings.h): its number, the ranks' headers, what goes where, and its end.
 *
 * Memory order.
 * - A run's begin: the rank's run before has ended (gpu_follow(): kernels of a rank follow each other), so its loads from this rank's memory
 *   and its stores into it are over. Its header says so: other ranks that see the header (acquire) may use again what that run used.
 * - A piece: all threads have stored it; __syncthreads(); one thread: fence (system), then `full` at the receiver (relaxed). There one thread
 *   looks at `full` (relaxed) until it is there, loads it (acquire), then __syncthreads(), then all threads read. They have read;
 *   __syncthreads(); one thread stores `free` at the sender (release), which awaits it as it awaits `full`.
 * - A packet is stored by stores of 8 bytes, each with its stamp: whoever finds the stamp has the data.
 *
 * Every wait ends when the rank's failure epoch says so (abi.h): a rank that gives a run up stores its number there at all ranks, and the
 * worker, or the client if the worker has died, the largest number. Later runs of the same rank are not concerned by the former.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_RUN_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_RUN_H

#include "kernels/gpu/device/exchange/combine_group.h"
#include "kernels/gpu/device/exchange/reduce_nodes.h"
#include "kernels/gpu/device/vector.h"
#include "kernels/gpu/rings.h"

/* The argument of the kernels: what is the same in all calls of a communicator, and the call. */
struct rings_call {
    uint32_t rank, nranks;
    uint32_t lines, zero;                 /* lines: 1: large parts travel as lines (rings_lines.h); 0: as pieces */
    uint64_t begun, ended, failed, clash; /* words in host memory: struct fcc_binding */
    uint64_t area[RINGS_RANKS];           /* all ranks' control memory, which begins with flags (GPU_FLAG_WORDS) */
    uint64_t rings[RINGS_RANKS];          /* all ranks' struct rings_head, in it */
    struct gpu_collective what;
};

/* What a workgroup knows of its run, in shared memory. Places and lengths are in elements. */
struct rings_run {
    uint64_t number;
    bool leave, twice; /* leave: the run was given up */
    bool over;         /* the operator is, and so the words in host memory may be gone */
    bool told;         /* a thread of the workgroup has waited for long: the host knows of the run */
    bool
        knows; /* rings_begin<true>(): what comes from where is known without the other ranks' headers, which are compared meanwhile */
    bool each; /* of reductions by pieces: the two ranks both reduce the whole vector */
    bool
        twins; /* of reductions by pieces: there is one step, and two workgroups of a channel reduce a half of each piece each */
    uint32_t copied; /* of what the workgroup copies beside pieces: chunks that have been taken */
    uint32_t wrong;  /* the rank whose count in memory is wrong, so that the run is given up; RINGS_RANKS: none */
    int64_t count;   /* that count */
    int64_t send_at[RINGS_RANKS], send[RINGS_RANKS]; /* what goes to each rank, in `in`; of reductions, what it reduces */
    int64_t get_at[RINGS_RANKS], get[RINGS_RANKS];   /* what comes from each rank, in `out` */
    struct combine_vectors vectors;
};

GPU_DEVICE struct rings_head *rings_head_of(const struct rings_call &c, uint32_t rank)
{
    return (struct rings_head *)c.rings[rank];
}

GPU_DEVICE uint64_t *rings_failure_of(const struct rings_call &c, uint32_t rank)
{
    return (uint64_t *)c.area[rank] + GPU_FLAGS;
}

GPU_DEVICE bool rings_must_leave(const struct rings_call &c, const struct rings_run &run)
{
    return gpu_load_relaxed(rings_failure_of(c, c.rank)) >= run.number;
}

/* One thread that waits, now and then: must it leave? It also tells the host that the run waits, and has not ended: what the thread of a
 * workgroup that has left (rings_end()) said of it does not hold as long as another one waits. Runs that need not wait tell the host
 * nothing, because a kernel ends only when its stores have reached the host, which takes as long as a small collective. */
GPU_DEVICE bool rings_look(const struct rings_call &c, struct rings_run &run)
{
    if (rings_must_leave(c, run))
        return run.leave = true;
    run.told = true;
    gpu_store_relaxed((uint64_t *)c.begun, (uint64_t)c.what.op << 32 | (uint32_t)run.number);
    gpu_store_relaxed((uint64_t *)c.ended, (uint64_t)(uint32_t)(run.number - 1));
    return false;
}

/* One thread: waits until a word has reached a value. False: leave. */
GPU_DEVICE bool rings_await(const struct rings_call &c, struct rings_run &run, const uint64_t *word, uint64_t value)
{
    for (uint32_t spins = 1; gpu_load_relaxed(word) < value; spins++)
        if (spins % GPU_LOOK_SPINS == 0 && rings_look(c, run))
            return false;
    (void)gpu_load_acquire(word);
    return true;
}

/* ---- headers ---- */

static_assert(offsetof(struct rings_head, header) % 16 == 0, "stored as pairs of words");

GPU_DEVICE bool rings_has_own(uint32_t share)
{
    return share == VECTOR_OWN;
}

/* What this rank says to rank r, behind rings_sends_find(). */
GPU_DEVICE struct rings_header rings_header_make(const struct rings_call &c, const struct rings_run &run, uint32_t r)
{
    const struct gpu_collective &w = c.what;
    struct rings_header h = {(uint64_t)w.numbers << 32 | rings_what(w.op, w.dtype, w.reduction, w.root), RINGS_UNKNOWN, 0,
                             RINGS_UNKNOWN};

    if (c.what.in_share == VECTOR_ALL || (c.what.in_share == VECTOR_ROOT && w.root == c.rank))
        h.whole = (uint64_t)w.in_elements;
    else if (c.what.out_share == VECTOR_ALL || (c.what.out_share == VECTOR_ROOT && w.root == c.rank))
        h.whole = (uint64_t)w.out_elements;
    else if (w.row_elements)
        h.whole = (uint64_t)w.row_elements;
    h.own = c.what.in_share == VECTOR_OWN       ? (uint64_t)w.in_elements
            : c.what.out_share == VECTOR_OWN    ? (uint64_t)w.out_elements
            : c.what.in_share == VECTOR_COUNTED ? (uint64_t)run.send[r]
                                                : w.rows;
    if (c.what.in_share == VECTOR_COUNTED && w.expected[r] >= 0)
        h.wants = (uint64_t)w.expected[r];
    return h;
}

/* Whether this rank gives the run up as soon as it has begun, and so has nothing to say but that. */
GPU_DEVICE bool rings_refuses(const struct rings_call &c, const struct rings_run &run)
{
    return c.what.refusal[0] || run.wrong < RINGS_RANKS;
}

/* One thread for each other rank, of one workgroup. */
GPU_DEVICE void rings_header_send(const struct rings_call &c, const struct rings_run &run, uint32_t r)
{
    struct rings_header h = rings_header_make(c, run, r);
    uint64_t *to = (uint64_t *)&rings_head_of(c, r)->header[run.number % 2][c.rank];

    h.what = rings_refuses(c, run) ? rings_what(RINGS_REFUSES, 0, 0, 0) : h.what;
    gpu_store_relaxed_pair(to + 2, rings_stamped(run.number, h.own), rings_stamped(run.number, h.wants));
    gpu_store_relaxed_pair(to, rings_stamped(run.number, h.what), rings_stamped(run.number, h.whole));
}

/* One thread: waits until rank r has begun the run before this one, and so finished the one before that. False: leave. */
GPU_DEVICE bool rings_before_await(const struct rings_call &c, struct rings_run &run, uint32_t r)
{
    const uint64_t *at = &rings_head_of(c, c.rank)->header[(run.number - 1) % 2][r].what;
    const uint16_t least = (uint16_t)(run.number - 1);

    for (uint32_t spins = 1; (int16_t)((uint16_t)(gpu_load_relaxed(at) >> 48) - least) < 0; spins++)
        if (spins % GPU_LOOK_SPINS == 0 && rings_look(c, run))
            return false;
    (void)gpu_load_acquire(at);
    return true;
}

/* One thread: waits for rank r's header of this run. False: leave. The loads are relaxed: who then uses what the rank's run before used loads
 * it again, with acquire (rings_meet()). */
GPU_DEVICE bool rings_header_await(const struct rings_call &c, struct rings_run &run, uint32_t r, struct rings_header *out)
{
    const uint64_t *at = (const uint64_t *)&rings_head_of(c, c.rank)->header[run.number % 2][r];
    const uint16_t wanted = (uint16_t)run.number;
    uint64_t words[4] = {0, 0, 0, 0};

    for (uint32_t spins = 1;; spins++) {
        gpu_load_relaxed_pair(true, at, &words[0], &words[1]);
        gpu_load_relaxed_pair(true, at + 2, &words[2], &words[3]);
        if ((uint16_t)(words[0] >> 48) == wanted && (uint16_t)(words[1] >> 48) == wanted &&
            (uint16_t)(words[2] >> 48) == wanted && (uint16_t)(words[3] >> 48) == wanted)
            break;
        if (spins % GPU_LOOK_SPINS == 0 && rings_look(c, run))
            return false;
    }
    *out = {words[0] & RINGS_NUMBER_MASK, words[1] & RINGS_NUMBER_MASK, words[2] & RINGS_NUMBER_MASK,
            words[3] & RINGS_NUMBER_MASK};
    return true;
}

struct rings_reason {
    uint32_t why, rank, by; /* enum rings_why; those of struct rings_failure */
    struct rings_header theirs, mine;
};

/* One thread: gives the run up. It says why, to all ranks, and lets them leave once all have begun the run: so a rank that leaves a run has
 * finished the one before, as the others have, whose headers it may rely on. The first reason that this rank has is told. (It stays out of
 * line, because instructions that are not needed take time to load, too.) */
static __device__ __noinline__ void rings_give_up(const struct rings_call &c, struct rings_run &run,
                                                  const struct rings_reason &why)
{
    struct rings_header h;

    run.leave = true;
    if (atomicExch((unsigned long long *)&rings_head_of(c, c.rank)->given_up, (unsigned long long)run.number) == run.number)
        return;
    for (uint32_t r = 0; r < c.nranks; r++) {
        struct rings_failure *out = &rings_head_of(c, r)->failure[c.rank];
        volatile struct rings_failure *v = out;
        v->why = why.why;
        v->rank = why.rank;
        v->by = why.by;
        v->theirs.what = why.theirs.what;
        v->theirs.whole = why.theirs.whole;
        v->theirs.own = why.theirs.own;
        v->mine.what = why.mine.what;
        v->mine.whole = why.mine.whole;
        v->mine.own = why.mine.own;
        for (uint32_t i = 0; i < RINGS_TEXT && why.why == RINGS_REFUSED; i++)
            v->text[i] = c.what.refusal[i];
        gpu_store_release(&out->run, run.number);
    }
    for (uint32_t r = 0; r < c.nranks && why.why != RINGS_TWICE; r++)
        if (r != c.rank && !rings_header_await(c, run, r, &h))
            return; /* another rank lets them leave, or the communicator is over */
    gpu_fence_system();
    for (uint32_t r = 0; r < c.nranks; r++)
        gpu_raise(rings_failure_of(c, r), run.number);
}

/* One thread: gives the run up because this rank refuses it. */
[[maybe_unused]] static __device__ __noinline__ void rings_refuse(const struct rings_call &c, struct rings_run &run)
{
    struct rings_header mine = rings_header_make(c, run, c.rank);

    if (c.what.refusal[0]) {
        rings_give_up(c, run, {RINGS_REFUSED, c.rank, c.rank, {0, 0, 0, 0}, mine});
    } else {
        mine.own = (uint64_t)run.count;
        mine.whole = (uint64_t)c.what.rows_most;
        rings_give_up(c, run, {RINGS_SENDS, run.wrong, c.rank, {0, 0, 0, 0}, mine});
    }
}

/* One thread: compares rank r's header with what this rank does. */
GPU_DEVICE bool rings_header_check(const struct rings_call &c, struct rings_run &run, uint32_t r, const struct rings_header &h)
{
    const struct rings_header mine = rings_header_make(c, run, r);
    const uint64_t dtypes = UINT64_C(0xff) << 16; /* a rank without a tensor has none */
    const uint64_t asked = h.what & dtypes && mine.what & dtypes ? ~UINT64_C(0) : ~dtypes;
    const bool counted = c.what.in_share == VECTOR_COUNTED;

    if (h.what == rings_what(RINGS_REFUSES, 0, 0, 0)) { /* that rank says why, and lets all leave */
        for (uint32_t spins = 1; spins % GPU_LOOK_SPINS || !rings_look(c, run); spins++)
            continue;
        return false;
    }
    if ((h.what ^ mine.what) & asked || (h.whole != mine.whole && h.whole != RINGS_UNKNOWN && mine.whole != RINGS_UNKNOWN) ||
        (c.what.rows && h.own != mine.own)) {
        rings_give_up(c, run, {RINGS_OTHER, r, c.rank, h, mine});
    } else if (counted && c.what.expected[r] >= 0 && (int64_t)h.own != c.what.expected[r]) {
        rings_give_up(c, run, {RINGS_COUNT, r, c.rank, h, {mine.what, mine.whole, (uint64_t)c.what.expected[r], 0}});
    } else if (counted && h.wants != RINGS_UNKNOWN && h.wants != mine.own) {
        rings_give_up(c, run, {RINGS_COUNT, c.rank, r, mine, {h.what, h.whole, h.wants, 0}});
    } else {
        return true;
    }
    return false;
}

/* ---- what goes where ---- */

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

/* ---- begin and end ---- */

/* One thread: whether the run before, which is the same call's, was given up: then this one does nothing, and has no number, so that ranks whose call
 * has other runs, or which have refused it, count as many. All workgroups see the same: the count of runs is complete only when all have
 * added to it; and where a call has several runs, what one rank finds in a run's headers each rank finds, so no run is given up that another
 * rank has finished. */
GPU_DEVICE bool rings_skips(const struct rings_call &c, struct rings_run *run, unsigned long long own)
{
    struct rings_head *head = rings_head_of(c, c.rank);
    uint64_t failed = 0, products = 0;

    gpu_load_relaxed_pair(true, rings_failure_of(c, c.rank), &failed, &products);
    const uint64_t last = gpu_load_relaxed(&head->begun) / RINGS_UNITS + products;
    if (failed < last)
        return false;
    (void)atomicAdd((unsigned long long *)&head->inside, own); /* rings_end() takes it away */
    run->number = last;
    run->over = failed == UINT64_MAX;
    run->leave = true;
    run->twice = run->told = run->each = run->twins = false;
    return true;
}

/* One thread: the run's number, and whether it must not begin. A call's workgroups are alone: the sum of what those before have added is a
 * multiple of the call's number. All that is loaded is on its way at once. */
GPU_DEVICE void rings_number(const struct rings_call &c, struct rings_run *run)
{
    struct rings_head *head = rings_head_of(c, c.rank);
    const unsigned long long own = (unsigned long long)c.what.number << RINGS_INSIDE | 1;
    uint64_t failed = 0, products = 0; /* side by side */

    if (c.what.continues && rings_skips(c, run, own))
        return;
    gpu_load_relaxed_pair(true, rings_failure_of(c, c.rank), &failed, &products);
    const uint64_t inside = atomicAdd((unsigned long long *)&head->inside, own),
                   begun = atomicAdd((unsigned long long *)&head->begun, (unsigned long long)(RINGS_UNITS / gridDim.x));
    run->number = begun / RINGS_UNITS + products + 1;
    run->over = failed == UINT64_MAX;
    run->leave = failed >= run->number;
    run->twice = inside >> RINGS_INSIDE != (inside & ((1u << RINGS_INSIDE) - 1)) * c.what.number;
    run->told = run->each = run->twins = false;
    if (failed + 1 == run->number && blockIdx.x == 0) /* the run before had ended here when it was given up */
        gpu_store_relaxed((uint64_t *)c.failed, failed);
}

/* All threads, behind gpu_follow(). KNOWS: finds at once what comes from where, if that is known. REDUCES: the collective does. */
template <bool KNOWS = false, bool REDUCES = false>
GPU_DEVICE bool rings_begin(const struct rings_call &c, struct rings_run *run)
{
    struct rings_head *head = rings_head_of(c, c.rank);
    const bool is_other = threadIdx.x < c.nranks && threadIdx.x != c.rank;
    uint64_t before[2] = {0, 0}; /* the other rank's newest headers */
    bool leave = false;

    if (is_other)
        for (uint32_t i = 0; i < 2; i++)
            before[i] = gpu_load_relaxed(&head->header[i][threadIdx.x].what);
    if (threadIdx.x == blockDim.x - 1)
        rings_number(c, run);
    if (threadIdx.x < GPU_WAVE) {
        rings_sends_find(c, run, threadIdx.x);
        if (KNOWS) {
            gpu_wave_sync();
            const bool knows = rings_gets_know(c, run, REDUCES, threadIdx.x);
            if (threadIdx.x == 0)
                run->knows = knows;
        }
    }
    __syncthreads();
    if (run->leave || run->twice) {
        if (threadIdx.x == 0 && run->twice && !run->over) {
            gpu_store_relaxed((uint64_t *)c.clash, run->number);
            rings_give_up(c, *run, {RINGS_TWICE, c.rank, c.rank, {0, 0, 0, 0}, rings_header_make(c, *run, c.rank)});
        }
        return false;
    }
    /* The header goes into the place of the one before the last, which a rank that has begun the last run has read. */
    const uint64_t last = run->number % 2 ? before[0] : before[1]; /* no index: they stay in registers */
    if (is_other && (int16_t)((uint16_t)(last >> 48) - (uint16_t)(run->number - 1)) < 0)
        leave = !rings_before_await(c, *run, threadIdx.x);
    if (is_other && blockIdx.x == 0 && !leave)
        rings_header_send(c, *run, threadIdx.x);
    if (threadIdx.x == 0 && rings_refuses(c, *run)) {
        rings_refuse(c, *run);
        leave = true;
    }
    return __syncthreads_or(leave) == 0;
}

/* The last wave of the first workgroup does it while the others go on: compares all ranks' headers with what this rank does, where nothing
 * else depends on them. A rank that does something else is told to leave by whoever finds it, in what it waits for. PARTS: ranks may have parts of their own,
 * which are to add up. */
template <bool PARTS = false> GPU_DEVICE void rings_check(const struct rings_call &c, struct rings_run &run)
{
    const uint32_t r = threadIdx.x - (blockDim.x - GPU_WAVE);
    struct rings_header h = {0, 0, 0, 0};
    bool well = true;

    if (blockIdx.x != 0 || threadIdx.x < blockDim.x - GPU_WAVE)
        return;
    if (r < c.nranks && r != c.rank)
        well = rings_header_await(c, run, r, &h) && rings_header_check(c, run, r, h);
    if (!PARTS || gpu_wave_vote(!well))
        return;
    if (r == c.rank)
        h = rings_header_make(c, run, r);
    (void)rings_gets_check(c, &run, r, h.own);
}

/* One thread: what this rank has for itself, by counts in memory, is what it expects of itself. No other rank sees that. */
GPU_DEVICE bool rings_own_check(const struct rings_call &c, struct rings_run &run)
{
    if (!c.what.counts)
        return true;
    const int64_t expected = c.what.expected[c.rank];
    const struct rings_header mine = rings_header_make(c, run, c.rank);

    if (expected < 0 || (int64_t)mine.own == expected)
        return true;
    rings_give_up(c, run, {RINGS_COUNT, c.rank, c.rank, mine, {mine.what, mine.whole, (uint64_t)expected, 0}});
    return false;
}

/* All threads: waits for all ranks' headers, and finds what comes from where. pieces: what the others' runs before have used in the memory
 * for pieces may be used again. (Packets need no more than rings_begin().) */
GPU_DEVICE bool rings_meet(const struct rings_call &c, struct rings_run *run, bool reduces, bool pieces)
{
    const uint32_t r = threadIdx.x;
    bool leave = false;

    if (r < GPU_WAVE) {
        struct rings_header h = rings_header_make(c, *run, r < c.nranks ? r : 0);
        if (r < c.nranks && r != c.rank) {
            leave = !rings_header_await(c, *run, r, &h) || !rings_header_check(c, *run, r, h);
            if (pieces)
                (void)gpu_load_acquire(&rings_head_of(c, c.rank)->header[run->number % 2][r].what);
        }
        if (r == c.rank)
            leave = !rings_own_check(c, *run);
        if (gpu_wave_vote(leave) == 0) {
            rings_gets_set(c, run, reduces, r, h.own);
            leave = !rings_gets_check(c, run, r, h.own);
        }
    }
    return __syncthreads_or(leave) == 0;
}

/* The same behind rings_begin<true>(): what is known is not waited for. Then rings_check<true>() follows. */
GPU_DEVICE bool rings_learn(const struct rings_call &c, struct rings_run *run, bool reduces)
{
    return run->knows || rings_meet(c, run, reduces, false);
}

/* All threads: the workgroup leaves. When all have, the next kernel on the stream begins, which is the next run. failed: the first thread of the
 * first workgroup has seen that the run was given up. */
GPU_DEVICE void rings_end_after(const struct rings_call &c, const struct rings_run &run, bool failed)
{
    gpu_let_follow();
    __syncthreads();
    if (threadIdx.x)
        return;
    (void)atomicAdd((unsigned long long *)&rings_head_of(c, c.rank)->inside,
                    0ull - ((unsigned long long)c.what.number << RINGS_INSIDE | 1));
    if (run.over)
        return;
    if (failed || run.leave)
        gpu_store_relaxed((uint64_t *)c.failed, run.number);
    if (run.told)
        gpu_store_relaxed((uint64_t *)c.ended, (uint64_t)(uint32_t)run.number);
}

/* The same. Only the first workgroup asks once more whether another rank has given the run up; if that comes later, the next run tells the host
 * (rings_number()). */
GPU_DEVICE void rings_end(const struct rings_call &c, const struct rings_run &run)
{
    gpu_let_follow();
    rings_end_after(c, run, threadIdx.x == 0 && (blockIdx.x == 0 ? rings_must_leave(c, run) : run.leave));
}

#endif
