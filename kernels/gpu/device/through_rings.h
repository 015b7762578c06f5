/* SPDX-License-Identifier: MIT
 *
 * through_rings.h - products whose runs go through the rings of their communicator (struct gpu_in_rings): what their kernels do at their
 * begin and at their end, and how they find out that another rank does something else. kernels/gpu/rings.h describes headers; the
 * collectives' side of all this is kernels/gpu/device/exchange/rings_run.h.
 *
 * What a rank computes for others goes into their landing memory (kernels/gpu/device/exchange/landing.h), or it is sums: then only packets are
 * sent, into one of two halves of the memory for products. Runs alternate between the halves, also where runs of
 * collectives lie between products. A rank stores run n's packets when it knows that the receiver has begun run n - 1, so that the receiver
 * has finished the run before that, the last one that can have used the same half. The receiver's header says so. It is looked at when the
 * kernel begins. No packet is stored before the branch that the look decides, and no GPU stores ahead of a branch.
 *
 * Packets that are left over from older runs have other stamps, wherever they lie. Only one rank stores into a place of that memory, in all
 * runs, whose kernels follow each other. So a rank whose shape differs awaits words that do not
 * come, or finds words that are not the ones it means. Therefore a wave of the first workgroup compares all headers, while others compute:
 * through_meet(). If they differ, it gives the run up on all ranks, and all that wait leave.
 *
 * Two runs at a time are noticed as those of collectives are: `inside` has the number of workgroups that are under way, and the sum of
 * their calls' numbers. A product's workgroup looks at them when it leaves, so that it need not wait for them when it begins. Of two
 * runs that overlap, the workgroup that is the first one of both to leave last sees the other's.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_THROUGH_RINGS_H
#define FCC_KERNELS_GPU_DEVICE_THROUGH_RINGS_H

#include "kernels/gpu/device/numbers.h"
#include "kernels/gpu/rings.h"

GPU_DEVICE struct rings_head *through_head(const struct gpu_call &call)
{
    return (struct rings_head *)call.rings.heads[call.plans[0].rank];
}

/* One thread that waits, now and then, and that need not leave: tells the host that the run waits, as a collective's does (rings_look()). Runs
 * that do not wait for long tell the host nothing. */
GPU_DEVICE void through_wait(const struct gpu_call &call)
{
    const uint64_t epoch = gpu_epoch(call);

    *(volatile uint32_t *)&gpu_numbers_here()->told = 1;
    gpu_store_relaxed((uint64_t *)call.end.begun, (call.rings.what >> 24 & 0xff) << 32 | (uint32_t)epoch);
    gpu_store_relaxed((uint64_t *)call.end.done, (uint64_t)(uint32_t)(epoch - 1));
}

GPU_DEVICE bool through_must_leave(const struct gpu_call &call)
{
    bool leave = gpu_load_relaxed((const uint64_t *)call.plans[0].flags + GPU_FLAGS) >= gpu_epoch(call);

    if (leave)
        gpu_left_early(call);
    else
        through_wait(call);
    return leave;
}

/* ---- begin ---- */

GPU_DEVICE void through_header_send(const struct gpu_call &call, uint64_t run, uint32_t r)
{
    uint64_t *to = (uint64_t *)&((struct rings_head *)call.rings.heads[r])->header[run % 2][call.plans[0].rank];
    const bool rows = call.rings.place_bytes != 0;
    const uint64_t own = !rows ? call.rings.own
                         : call.fixed->shape.compute == COMPUTE_BAG
                             ? rings_bags_own(call.rings.rows[r], call.in[0].embedding.ntables)
                             : call.rings.rows[r];
    const uint64_t wants = rows && call.rings.expected[r] != UINT32_MAX ? call.rings.expected[r] : RINGS_UNKNOWN;

    gpu_store_relaxed_pair(to + 2, rings_stamped(run, own), rings_stamped(run, wants));
    gpu_store_relaxed_pair(to, rings_stamped(run, call.rings.what), rings_stamped(run, call.rings.whole));
}

/* Whether the first word of a header shows that its rank has begun that run, or a later one. */
GPU_DEVICE bool through_has_begun(uint64_t word, uint64_t run)
{
    return (int16_t)((uint16_t)(word >> 48) - (uint16_t)run) >= 0;
}

/* One thread: waits until rank r has begun the run before this one. `word`: what its header was. False: leave. */
GPU_DEVICE bool through_before_await(const struct gpu_call &call, uint64_t run, uint32_t r, uint64_t word)
{
    const uint64_t *at = &through_head(call)->header[(run - 1) % 2][r].what;

    for (uint32_t spins = 1; !through_has_begun(word, run - 1); word = gpu_load_relaxed(at), spins++)
        if (spins % GPU_LOOK_SPINS == 0 && gpu_load_relaxed((const uint64_t *)call.plans[0].flags + GPU_FLAGS) >= run)
            return false;
    return true;
}

/* All threads: gpu_number() of such a run. All that the first wave loads is on its way at once. */
GPU_DEVICE void through_begin(const struct gpu_call &call)
{
    struct gpu_numbers *here = gpu_numbers_here();
    struct rings_head *head = through_head(call);
    const uint32_t r = threadIdx.x;
    const bool is_other = r < call.rings.nranks && r != call.plans[0].rank;
    uint64_t before[2] = {0, 0}, failed = 0, products = 0;

    if (r < GPU_WAVE) {
        for (uint32_t i = 0; i < 2 && is_other; i++)
            before[i] = gpu_load_relaxed(&head->header[i][r].what);
        gpu_load_relaxed_pair(true, (const uint64_t *)call.series.word - (GPU_FLAG_RUN - GPU_FLAGS), &failed, &products);
        const uint64_t collectives = gpu_load_relaxed(&head->begun) / RINGS_UNITS, last = products + collectives;
        if (r == 0)
            (void)atomicAdd((unsigned long long *)&head->inside, (unsigned long long)call.rings.number << RINGS_INSIDE | 1);
        const uint64_t run = last + 1, clock = blockIdx.x == 0 ? gpu_clock() : 0; /* while all that is on its way */
        const bool gone = failed == UINT64_MAX, skipped = call.rings.continues && failed >= last;
        bool leave = failed >= run || skipped;
        /* The header goes into the place of the one before the last, which a rank that has begun the last run has read. */
        if (is_other && !leave)
            leave = !through_before_await(call, run, r, run % 2 ? before[0] : before[1]);
        if (is_other && blockIdx.x == 0 && !leave)
            through_header_send(call, run, r);
        const bool over = gpu_wave_vote(leave) != 0;
        if (r == 0) {
            here->epoch = skipped ? last : run; /* skipped: the failure epoch has reached it */
            here->products = products;
            here->slots_at = run % 2 * call.series.slots_bytes;
            here->counters = call.plans[0].counters;
            here->idle = 0;
            here->over = here->left_early = over;
            here->gone = gone;
            here->skipped = skipped;
            here->told = here->met = 0;
            here->differs = RINGS_WELL;
            if (blockIdx.x == 0 && !gone && !skipped)
                gpu_record_begin(head->records, RUN_RECORDS_RINGS, run, clock,
                                 run_record_what(run, RUN_RECORDS_RINGS, (uint32_t)(call.rings.what >> 24),
                                                 (uint32_t)(call.rings.what >> 16), 0));
            if (failed && failed == last && blockIdx.x == 0) /* the run before had ended here when it was given up */
                gpu_store_relaxed((uint64_t *)call.rings.failed, failed);
        }
    }
    __syncthreads();
}

/* ---- others' headers ---- */

/* One thread: waits for rank r's header of this run. False: leave. */
GPU_DEVICE bool through_header_await(const struct gpu_call &call, uint32_t r, uint64_t words[4])
{
    const uint64_t run = gpu_epoch(call), *at = (const uint64_t *)&through_head(call)->header[run % 2][r];
    const uint16_t wanted = (uint16_t)run;

    for (uint32_t spins = 1;; spins++) {
        gpu_load_relaxed_pair(true, at, &words[0], &words[1]);
        gpu_load_relaxed_pair(true, at + 2, &words[2], &words[3]);
        if ((uint16_t)(words[0] >> 48) == wanted && (uint16_t)(words[1] >> 48) == wanted &&
            (uint16_t)(words[2] >> 48) == wanted && (uint16_t)(words[3] >> 48) == wanted)
            return true;
        if (spins % GPU_LOOK_SPINS == 0 && through_must_leave(call))
            return false;
    }
}

/* One thread: gives the run up, as rings_give_up() does: says why, to all ranks, and lets them leave once all have begun the run. So a rank
 * that leaves a run has finished the one before, and no good result is lost. `rank` is the one that does something else, `theirs` its
 * header. */
template <typename Call>
static __device__ __noinline__ void through_give_up(const Call &call, uint32_t why, uint32_t rank, const uint64_t theirs[3])
{
    const uint64_t run = gpu_epoch(call);
    const uint32_t own = call.plans[0].rank;
    const uint64_t behind = call.rings.heads[own] - call.plans[0].flags;
    uint64_t words[4];

    gpu_left_early(call);
    if (atomicExch((unsigned long long *)&through_head(call)->given_up, (unsigned long long)run) == run)
        return;
    for (uint32_t r = 0; r < call.rings.nranks; r++) {
        volatile struct rings_failure *v = &((struct rings_head *)call.rings.heads[r])->failure[own];
        v->why = why;
        v->rank = rank;
        v->by = own;
        v->theirs.what = theirs[0];
        v->theirs.whole = theirs[1];
        v->theirs.own = theirs[2];
        v->mine.what = call.rings.what;
        v->mine.whole = call.rings.whole;
        v->mine.own = why == RINGS_COUNT   ? call.rings.expected[rank]
                      : why == RINGS_SPLIT ? rings_bags_own(call.rings.rows[own], 0)
                                           : call.rings.own;
        for (int i = 0; i < RINGS_DATA_WORDS && why == RINGS_DATA; i++)
            v->data[i] = gpu_numbers_here()->data[i];
        gpu_store_release((uint64_t *)&v->run, run);
    }
    for (uint32_t r = 0; r < call.rings.nranks && why != RINGS_TWICE; r++)
        if (r != own && !through_header_await(call, r, words))
            return; /* another rank lets them leave, or the communicator is over */
    gpu_fence_system();
    for (uint32_t r = 0; r < call.rings.nranks; r++)
        gpu_raise((uint64_t *)(call.rings.heads[r] - behind) + GPU_FLAGS, run);
}

/* What rank r does, by its header of this run: RINGS_WELL, the same; RINGS_OTHER; or RINGS_REFUSED, the run is given up, and that rank says why and lets
 * all leave. */
GPU_DEVICE enum rings_why through_compare(const struct gpu_call &call, uint64_t words[4])
{
    for (int i = 0; i < 3; i++)
        words[i] &= RINGS_NUMBER_MASK;
    if (words[0] == rings_what(RINGS_REFUSES, 0, 0, 0))
        return RINGS_REFUSED;
    return words[0] == call.rings.what && words[1] == call.rings.whole &&
                   (call.rings.place_bytes || words[2] == call.rings.own) /* each rank has others' rows */
               ? RINGS_WELL
               : RINGS_OTHER;
}

/* A wave of the first workgroup, after gpu_number(), while others compute: waits for all ranks' headers, and gives the run up if a rank does
 * something else. Of any other operator, nothing. */
GPU_DEVICE void through_meet(const struct gpu_call &call)
{
    const uint32_t r = threadIdx.x % GPU_WAVE;
    uint64_t words[4] = {0, 0, 0, 0};

    if (!call.rings.nranks || blockIdx.x || gpu_is_over(call) || r >= call.rings.nranks || r == call.plans[0].rank ||
        !through_header_await(call, r, words))
        return;
    const enum rings_why why = through_compare(call, words);
    if (why == RINGS_OTHER)
        through_give_up(call, why, r, words);
    while (why == RINGS_REFUSED && !through_must_leave(call))
        continue;
}

/* One thread of a workgroup, in whose place no call may stand (a kernel whose warps have unequal numbers of registers has room for none): the run
 * cannot go on. The workgroup leaves; if it is the first one, it gives the run up then, as through_give_up(). */
GPU_DEVICE void through_differ(const struct gpu_call &call, enum rings_why why, uint32_t rank, const uint64_t theirs[3])
{
    volatile struct gpu_numbers *here = gpu_numbers_here();

    here->differs_by = rank;
    for (int i = 0; i < 3; i++)
        here->theirs[i] = theirs[i];
    here->differs = why;
    gpu_left_early(call);
}

/* One thread of a workgroup, which leaves: a number in this rank's data is wrong. As through_differ(), but whichever workgroup it is. The first
 * thread's is kept. */
GPU_DEVICE void through_data(const struct gpu_call &call, const struct gpu_failure &what)
{
    struct gpu_numbers *here = gpu_numbers_here();

    gpu_left_early(call);
    if (atomicCAS(&here->differs, (uint32_t)RINGS_WELL, (uint32_t)RINGS_DATA) != RINGS_WELL)
        return;
    here->differs_by = call.plans[0].rank;
    here->data[0] = (uint64_t)what.table << 32 | what.kind;
    here->data[1] = (uint64_t)what.at;
    here->data[2] = (uint64_t)what.value;
    here->data[3] = (uint64_t)what.bag;
    here->data[4] = (uint64_t)what.position;
    here->data[5] = (uint64_t)what.least;
    here->data[6] = (uint64_t)what.most;
}

/* ---- end ---- */

/* All threads: the workgroup leaves. The last one ends the run, and resets the counters of its plan, which nobody uses any more: each workgroup
 * has had the answers to its requests, or left early. */
GPU_DEVICE void through_end(const struct gpu_call &call)
{
    struct rings_head *head = through_head(call);
    const struct gpu_numbers *here = gpu_numbers_here();
    const unsigned long long own = (unsigned long long)call.rings.number << RINGS_INSIDE | 1;

    __syncthreads();
    if (threadIdx.x || here->gone)
        return;
    if (here->left_early)
        gpu_fence_system(); /* behind requests whose answers nobody has waited for */
    const uint64_t inside = atomicAdd((unsigned long long *)&head->inside, 0ull - own);
    const bool twice = inside >> RINGS_INSIDE != (inside & ((1u << RINGS_INSIDE) - 1)) * call.rings.number;
    const uint32_t why = twice ? (uint32_t)RINGS_TWICE : here->differs;
    if (twice)
        gpu_store_relaxed((uint64_t *)call.series.clash, here->epoch);
    if (twice || why == RINGS_DATA || (why != RINGS_WELL && why != RINGS_REFUSED && blockIdx.x == 0)) {
        const uint64_t theirs[3] = {here->theirs[0], here->theirs[1], here->theirs[2]};
        through_give_up(call, why, twice ? call.plans[0].rank : here->differs_by, theirs);
    }
    for (uint32_t spins = 1; here->differs != RINGS_WELL;
         spins++) /* until the reason is there, for which the host looks at the end */
        if (spins % GPU_LOOK_SPINS == 0 && through_must_leave(call))
            break;
    if (here->told) /* behind all that say again that the run waits; a thread of another workgroup that still waits says so after this */
        gpu_store_relaxed((uint64_t *)call.end.done, (uint64_t)(uint32_t)here->epoch);
    const uint32_t mine = here->left_early ? 1 + RINGS_LEFT_FAILED : 1, left = atomicAdd(&head->left, mine) + mine;
    if (left % RINGS_LEFT_FAILED != gridDim.x)
        return;
    head->left = 0;
    for (uint32_t i = 0; i < GPU_GROUPS; i++)
        ((uint32_t *)call.plans[0].counters)[i] = 0;
    if (left >= RINGS_LEFT_FAILED) { /* otherwise the last slice of each signal group has reset its counter */
        const struct signal_group *groups = (const struct signal_group *)call.plans[0].groups;
        for (uint32_t g = 0; g < call.plans[0].ngroups; g++)
            ((uint32_t *)call.plans[0].counters)[GPU_GROUPS + g] = groups[g].slices;
    }
    ((struct gpu_fixed *)call.fixed)->runs++;
    if (here->skipped)
        return;
    gpu_store_relaxed((uint64_t *)call.series.word, here->products + 1);
    gpu_record_end(head->records, RUN_RECORDS_RINGS, here->epoch, left >= RINGS_LEFT_FAILED);
    if (left >= RINGS_LEFT_FAILED)
        gpu_store_relaxed((uint64_t *)call.rings.failed, here->epoch);
}

#endif
