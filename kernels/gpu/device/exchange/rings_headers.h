/* SPDX-License-Identifier: MIT
 *
 * rings_headers.h - what a kernel and a workgroup know of a run of a collective through rings (kernels/gpu/rings.h), how a thread waits in it, what the
 * ranks' headers say, and how a rank gives the run up. rings_run.h has the memory order.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_HEADERS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_HEADERS_H

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
    bool noted;        /* it is a run, so it has a record (run_record.h) */
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

static_assert(offsetof(struct rings_head, header) % 16 == 0 && offsetof(struct rings_head, records) % 16 == 0,
              "stored as pairs of words");

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

#endif
