/* SPDX-License-Identifier: MIT
 *
 * execute.h - how a kernel runs plans: the loop that all operators share.
 *
 * A kernel serves all ranks (runs) on its GPU. Its workgroups take slices from counters, in the plan's order, phase by phase
 * (enum gpu_phase), each phase for all runs. In each phase a workgroup begins with run (its index modulo the number of runs),
 * so that the runs go on side by side, and helps the others when that one has nothing left.
 *
 * A round trip to the GPU's memory takes about a microsecond, as long as a small slice. So the taker, a thread that does
 * nothing else between slices, requests the next slice and the failure epoch when a slice begins (gpu_slice_ask()), and reads
 * the answer when that slice has been computed. A workgroup requests one slice at most, because no other workgroup can do a
 * slice that it holds; and never one of a later phase, so that a workgroup that waits holds no slice of an earlier phase.
 *
 * Why nothing deadlocks, however few workgroups are resident, also beside other jobs' kernels: slices of the first phase never
 * wait, so one resident workgroup per GPU is enough to finish it everywhere. A workgroup that waits in a later phase waits for
 * slices of earlier phases only (of any rank), and its own GPU's are all done or in the hands of workgroups that run. So by
 * induction one resident workgroup per GPU finishes every phase (where nobody waits for what is reduced, that phase may be
 * dealt out: kernels/gpu/device/exchange/reduce_hopper.h says why). All waits end when the rank's failure epoch says so: a
 * kernel that fails stores it at all ranks, and so does the host when the operator is aborted. It lies in the GPU's own memory,
 * because a look across the bus by every workgroup costs more than a small operator.
 *
 * Memory order. A slice's stores, by all threads; __syncthreads(); one thread: fence (system), count down the slice's signal
 * group (atomic); who counts to zero: fence, then store the flag at the destination (relaxed: the fence before it makes it a
 * release). A group of one slice has no count and one fence. A waiting thread looks at its flags (relaxed) until they are
 * there, then loads them (acquire, system), then __syncthreads(), then the workgroup reads the data. The fence before the count
 * orders this slice's stores, the fence after it what the other workgroups of the group had stored before theirs.
 *
 * A packet, a sum with its stamp (struct gpu_stamped), needs none of this: the stamp is the flag.
 *
 * The end of a kernel. Each workgroup that leaves does one atomic addition, which releases what the workgroup stored and
 * awaited, and acquires what the workgroups before it released. It is between workgroups of one GPU, so GPU scope is enough.
 * The last workgroup then fences (system), which covers all results of its ranks and what other GPUs released to any workgroup.
 * Stores to other GPUs are behind fences of their own by then, or are packets. The last workgroup resets the counters for the
 * next call, signals the clients' streams and the other GPUs, then the host. A fence waits for all earlier stores to complete,
 * and host memory is far away. So no store to host memory is under way at a fence, unless the operator has failed, streams wait
 * there or it is over several nodes: the kernel's begin is kept in the GPU's memory, and its duration is part of the word that
 * signals the host.
 *
 * A kernel that a client launches (end.in_stream; kernels/gpu/bound.h) needs none of that: the users of its results follow it
 * on its stream. Its runs alternate between two sets of counters, and each run resets the other set. If its launch does not
 * carry the run's number, the kernel finds it out (kernels/gpu/device/numbers.h).
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXECUTE_H
#define FCC_KERNELS_GPU_DEVICE_EXECUTE_H

#include "kernels/gpu/abi.h"
#include "kernels/gpu/device/numbers.h"
#include "kernels/gpu/device/recall.h"
#include "kernels/gpu/device/registry.h"
#include "kernels/gpu/device/tell.h"
#include "kernels/gpu/device/triggers.h"
#include "kernels/gpu/device/vector.h"
#include "kernels/gpu/platform.h"

/* What a workgroup keeps in shared memory besides the operator's own data. */
struct __align__(16) gpu_group
{
    struct slice slice;
    uint32_t index;
    uint32_t leave;
};

GPU_DEVICE const struct gpu_plan *gpu_plan_of(const struct gpu_call &call, uint32_t run)
{
    return &call.plans[run];
}

GPU_DEVICE uint64_t *gpu_flags_of(const struct gpu_call &call, uint32_t rank)
{
    return (uint64_t *)call.fixed->flags[rank];
}

GPU_DEVICE bool gpu_must_leave(const struct gpu_call &call, uint32_t run)
{
    bool leave = gpu_load_relaxed((const uint64_t *)gpu_plan_of(call, run)->flags + GPU_FLAGS) >= gpu_epoch(call);

    if (leave)
        gpu_left_early(call);
    else if (call.rings.nranks)
        through_wait(call);
    return leave;
}

/* One thread of the workgroup that found the failure. Keeps the first failure of a run, and makes all ranks leave. */
GPU_DEVICE void gpu_fail(const struct gpu_call &call, uint32_t run, const struct gpu_failure &what)
{
    if (call.rings.nranks) {
        through_data(call, what);
        return;
    }
    if (atomicExch(gpu_counters_of(call, run) + GPU_FAILED, 1u) == 0) {
        volatile struct gpu_failure *out = (volatile struct gpu_failure *)call.in[run].failure;
        out->table = what.table;
        out->at = what.at;
        out->value = what.value;
        out->bag = what.bag;
        out->position = what.position;
        out->least = what.least;
        out->most = what.most;
        gpu_fence_system();
        out->kind = what.kind;
    }
    gpu_fence_system();
    for (uint32_t r = 0; r < call.fixed->shape.nranks; r++)
        if (gpu_flags_of(call, r)) /* this node's worker tells other nodes */
            gpu_store_release(gpu_flags_of(call, r) + GPU_FLAGS, gpu_epoch(call));
}

/* All threads: wait until flags [first + i * stride], i < count, of this rank are raised. False: leave. */
GPU_DEVICE bool gpu_flags_await(const struct gpu_call &call, uint32_t run, uint32_t first, uint32_t count, uint32_t stride)
{
    const uint64_t *flags = (const uint64_t *)gpu_plan_of(call, run)->flags + first, epoch = gpu_epoch(call);
    bool leave = false;

    for (uint32_t i = threadIdx.x; i < count && !leave; i += blockDim.x) {
        const uint64_t *flag = flags + (uint64_t)i * stride;
        for (uint32_t spins = 1; gpu_load_relaxed(flag) < epoch && !leave; spins++)
            if (spins % GPU_LOOK_SPINS == 0)
                leave = gpu_must_leave(call, run);
        (void)gpu_load_acquire(flag); /* the flag is raised: acquire the data stored before it */
    }
    return __syncthreads_or(leave) == 0;
}

GPU_DEVICE bool gpu_slice_await(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    return gpu_flags_await(call, run, s.wait_first, s.wait_count, s.wait_stride);
}

/* One thread, after the workgroup's __syncthreads(). */
GPU_DEVICE void gpu_slice_signal(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    uint32_t nranks = call.fixed->shape.nranks;

    if (s.group == SLICE_NO_GROUP)
        return;
    const struct signal_group g = ((const struct signal_group *)plan->groups)[s.group];
    gpu_fence_system();
    if (g.slices > 1) {
        uint32_t *missing = gpu_counters_of(call, run) + GPU_GROUPS + s.group;
        if (atomicSub(missing, 1u) != 1)
            return;
        *missing = g.slices; /* for the next call */
        gpu_fence_system();
    }
    if (g.dst != SLICE_DST_ALL) {
        gpu_store_relaxed(gpu_flags_of(call, g.dst) + g.flag, gpu_epoch(call));
        return;
    }
    for (uint32_t i = 1; i <= nranks; i++) /* beginning with the next rank, as the puts do */
        gpu_store_relaxed(gpu_flags_of(call, (plan->rank + i) % nranks) + g.flag, gpu_epoch(call));
}

/* Whether a slice or a signal group with this destination goes to that rank, too. */
GPU_DEVICE bool gpu_plan_reaches(const struct gpu_plan *plan, uint32_t dst, uint32_t rank)
{
    if (dst == SLICE_DST_ALL || !(dst & SLICE_DST_SET))
        return dst == SLICE_DST_ALL || dst == rank;
    return plan->sets[dst - SLICE_DST_SET] >> rank & 1u;
}

/* The same over several nodes: data for other nodes goes through the proxy, followed by its flag. */
GPU_DEVICE void gpu_slice_send(const struct gpu_call &call, uint32_t run, const struct slice &s, uint32_t index)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    const uint32_t nranks = call.fixed->shape.nranks, rank = plan->rank;
    auto must_leave = [&] { return gpu_must_leave(call, run); };
    bool puts = s.kind != SLICE_COMPUTE && s.kind != SLICE_WAIT;

    gpu_fence_system();
    for (uint32_t i = 1; i < nranks && puts && call.nodes.remote; i++) {
        uint32_t dst = (rank + i) % nranks;
        if (gpu_plan_reaches(plan, s.dst, dst) && gpu_is_remote(call, dst) &&
            !gpu_trigger_push(call, rank, dst, GPU_TRIGGER_PUT | index, must_leave))
            return; /* without counting the group down, so that it never counts as finished */
    }
    if (s.group == SLICE_NO_GROUP)
        return;
    const struct signal_group g = ((const struct signal_group *)plan->groups)[s.group];
    if (g.slices > 1) {
        uint32_t *missing = gpu_counters_of(call, run) + GPU_GROUPS + s.group;
        if (gpu_add_acq_rel(missing, ~0u) != 1)
            return;
        *missing = g.slices; /* for the next call */
        gpu_fence_system();
    }
    for (uint32_t i = 1; i <= nranks; i++) {
        uint32_t dst = (rank + i) % nranks;
        if (!gpu_plan_reaches(plan, g.dst, dst))
            continue;
        if (!gpu_is_remote(call, dst))
            gpu_store_relaxed(gpu_flags_of(call, dst) + g.flag, gpu_epoch(call));
        else if (!gpu_trigger_push(call, rank, dst, GPU_TRIGGER_FLAG | g.flag, must_leave))
            return;
    }
}

/* Is this the workgroup's taker, the thread that takes slices? It is not the thread that signals, if there is more than one
 * wave. */
GPU_DEVICE bool gpu_is_taker()
{
    return threadIdx.x == (blockDim.x > GPU_WAVE ? blockDim.x - GPU_WAVE : 0);
}

/* A request of the taker for a slice. The loads are under way until the thread first uses a field. */
struct gpu_ticket {
    uint32_t number; /* the slice's index in the phase; beyond the last slice if none is left */
    uint64_t failed; /* the failure epoch */
};

/* The taker: request the next `count` slices of a phase. */
GPU_DEVICE struct gpu_ticket gpu_slice_ask(const struct gpu_call &call, uint32_t run, uint32_t phase, uint32_t count = 1)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    struct gpu_ticket t;

    t.number = atomicAdd(gpu_counters_of(call, run) + GPU_NEXT + phase, count);
    t.failed = gpu_load_relaxed((const uint64_t *)plan->flags + GPU_FLAGS);
    return t;
}

/* The taker: copy the requested slice into shared memory. It is there after gpu_copies_await(). */
GPU_DEVICE void gpu_slice_get(const struct gpu_call &call, uint32_t run, uint32_t phase, const struct gpu_ticket &t,
                              struct gpu_group *group)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);
    bool some = t.number < plan->first[phase + 1] - plan->first[phase];

    group->leave = t.failed >= gpu_epoch(call);
    if (group->leave)
        gpu_left_early(call);
    group->index = some ? plan->first[phase] + t.number : SLICE_NO_GROUP;
    static_assert(sizeof(struct slice) % 16 == 0, "slices and their copies are aligned to 16 bytes");
    const char *slice = (const char *)plan->slices + (uint64_t)(plan->first[phase] + t.number) * sizeof(struct slice);
    for (uint32_t i = 0; i < sizeof(struct slice) && some; i += 16)
        gpu_copy_16((char *)&group->slice + i, slice + i);
}

/* The taker: take the next `count` slices of a phase, and wait until the first one is in shared memory. */
GPU_DEVICE void gpu_slice_take(const struct gpu_call &call, uint32_t run, uint32_t phase, struct gpu_group *group,
                               uint32_t count = 1)
{
    gpu_slice_get(call, run, phase, gpu_slice_ask(call, run, phase, count), group);
    gpu_copies_await();
}

/* The workgroup's slice, out of shared memory. The two fields of its last word are hidden from the compiler, each by itself: if they are unpacked from
 * one word that is the same for all threads, ptxas 13.0.88 for sm_90a may leave the second one's uniform register as it was. (tests/gpu_code looks for
 * such reads.) */
GPU_DEVICE struct slice gpu_slice_of(const struct gpu_group *group)
{
    uint32_t words[sizeof(struct slice) / sizeof(uint32_t)];
    struct slice s;

#if !defined(GPU_RUNTIME_COMPILED) /* there an offset is no constant */
    static_assert(offsetof(struct slice, slot) == sizeof(struct slice) - 4 &&
                      offsetof(struct slice, terms) == sizeof(struct slice) - 2,
                  "the last word");
#endif
    __builtin_memcpy(words, &group->slice, sizeof(words));
    __builtin_memcpy(&s, words, sizeof(s));
    s.slot = (uint16_t)gpu_hide(words[sizeof(struct slice) / sizeof(uint32_t) - 1] & 0xffffu);
    s.terms = (uint16_t)gpu_hide(words[sizeof(struct slice) / sizeof(uint32_t) - 1] >> 16);
    return s;
}

GPU_DEVICE bool gpu_phase_is_empty(const struct gpu_call &call, uint32_t run, uint32_t phase)
{
    const struct gpu_plan *plan = gpu_plan_of(call, run);

    return plan->first[phase] == plan->first[phase + 1];
}

/* Over several nodes: must the kernel check the flags of a slice that waits? A kernel that begins with a later phase checks
 * only flags that ranks of this node raise. The worker launches it after all other flags have come
 * (daemon/worker/device/gpu/steps.c), and flags from other nodes are never stored into a GPU's memory. */
GPU_DEVICE bool gpu_slice_looks(const struct gpu_call &call, const struct slice &s)
{
    return call.nodes.phase_first == GPU_PHASE_FREE || s.is_here;
}

/* Run one phase of one run. False: leave. The caller may write `group` directly before and after. ahead: request the next slice
 * while the current one is computed; otherwise afterwards. NODES: over several nodes. */
template <bool NODES = false, typename Operator>
GPU_DEVICE bool gpu_phase_run(const struct gpu_call &call, uint32_t run, uint32_t phase, struct gpu_group *group, Operator &op,
                              bool ahead = true)
{
    struct slice_time *times = (struct slice_time *)gpu_plan_of(call, run)->times;
    struct gpu_ticket next = {0, 0};

    if (gpu_phase_is_empty(call, run, phase))
        return true;
    if (gpu_is_taker())
        gpu_slice_take(call, run, phase, group);
    for (;;) {
        __syncthreads();
        uint32_t index = group->index;
        bool leave = group->leave != 0;
        struct slice s = gpu_slice_of(group);
        if (leave || index == SLICE_NO_GROUP) {
            __syncthreads(); /* `group` may be written again */
            return !leave;
        }
        if (ahead && gpu_is_taker())
            next = gpu_slice_ask(call, run, phase);
        struct slice_time t = {0, 0, 0, blockIdx.x, (uint32_t)call.epoch};
        if (s.wait_count && (!NODES || gpu_slice_looks(call, s))) {
            t.wait_ns = gpu_clock();
            if (!gpu_slice_await(call, run, s))
                return false;
        }
        t.start_ns = gpu_clock();
        bool well = s.kind == SLICE_WAIT || op.slice(call, run, s);
        if (__syncthreads_or(!well))
            return false;
        if (gpu_is_taker())
            gpu_slice_get(call, run, phase, ahead ? next : gpu_slice_ask(call, run, phase), group);
        if (threadIdx.x == 0) {
            if constexpr (NODES)
                gpu_slice_send(call, run, s, index);
            else
                gpu_slice_signal(call, run, s);
            t.end_ns = gpu_clock();
            times[index] = t;
        }
        gpu_copies_await();
    }
}

/* All threads: reset the counters of signal groups after a failure. Otherwise the last slice of a group has reset its counter
 * (gpu_slice_signal()), but workgroups that had to leave have not counted all slices. */
GPU_DEVICE void gpu_groups_set(const struct gpu_plan *plan)
{
    uint32_t *counters = (uint32_t *)plan->counters;
    const struct signal_group *groups = (const struct signal_group *)plan->groups;

    for (uint32_t g = threadIdx.x; g < plan->ngroups; g += blockDim.x)
        counters[GPU_GROUPS + g] = groups[g].slices;
}

/* All threads: reset everything for the next call, signal the streams and the host. The fence releases the reset counters, too:
 * the host frees nothing before `done`, and the next kernel on this stream begins after the end of this one. If any workgroup
 * left early, the failure epoch that it saw is visible here. */
GPU_DEVICE void gpu_last_leaves(const struct gpu_call &call)
{
    struct gpu_fixed *fixed = (struct gpu_fixed *)call.fixed;
    uint64_t ticks = gpu_clock() - fixed->began;
    uint32_t looks_at =
        threadIdx.x - GPU_WAVE; /* the run this thread checks. Not in the first wave, whose fence would wait for the load */

    for (uint32_t run = 0; run < call.nruns; run++)
        for (uint32_t i = threadIdx.x; i < GPU_GROUPS; i += blockDim.x)
            ((uint32_t *)gpu_plan_of(call, run)->counters)[i] = 0;
    if (threadIdx.x == 0)
        fixed->left = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        gpu_fence_system();
        gpu_tell(call.end);
    }
    if (__syncthreads_or(looks_at < call.nruns && gpu_must_leave(call, looks_at))) {
        for (uint32_t run = 0; run < call.nruns; run++)
            gpu_groups_set(gpu_plan_of(call, run));
        __syncthreads();
        if (threadIdx.x == 0)
            gpu_fence_system();
    }
    if (threadIdx.x == 0)
        gpu_tell_host(call.end, call.end.epoch, ticks);
}

/* gpu_begin(), by any threads, among them the first GPU_GROUPS, after gpu_number(). */
template <bool NODES = false> GPU_DEVICE void gpu_begin_numbered(const struct gpu_call &call)
{
    if (blockIdx.x == 0 && threadIdx.x == 0 && !(NODES && call.nodes.later))
        gpu_note_begin(call);
    uint32_t *idle = gpu_idle_counters(call);
    if (idle && blockIdx.x == 0 && threadIdx.x < GPU_GROUPS)
        idle[threadIdx.x] = 0; /* the run before has ended: gpu_follow() */
}

/* All threads, after gpu_follow() and before everything that needs the run's number. */
GPU_DEVICE void gpu_number(const struct gpu_call &call)
{
    if (call.rings.nranks)
        through_begin(call);
    else if (call.series.numbered)
        gpu_number_alone(call);
}

/* A kernel consists of gpu_begin(), all phases for all runs in gpu_run_of()'s order until one returns "leave", and gpu_leave();
 * all threads call them. NODES: over several nodes, where an operator's time runs from the begin of its first kernel to the end
 * of its last one. */
template <bool NODES = false> GPU_DEVICE void gpu_begin(const struct gpu_call &call)
{
    gpu_number(call);
    gpu_begin_numbered<NODES>(call);
}

/* All threads: prefetch what the workgroup needs before and in its first slice, which other data has displaced from the caches.
 * No kernel writes it, so the prefetch need not wait for the kernel before. */
GPU_DEVICE void gpu_bring_nearer(const struct gpu_call &call)
{
    enum { LINE = 128 };

    for (uint32_t at = threadIdx.x * LINE; at < offsetof(struct gpu_fixed, plans); at += blockDim.x * LINE)
        gpu_prefetch((const char *)call.fixed + at);
    if (threadIdx.x < call.nruns && blockIdx.x < call.plans[threadIdx.x].first[GPU_PHASES])
        gpu_prefetch((const struct slice *)call.plans[threadIdx.x].slices + blockIdx.x);
}

GPU_DEVICE uint32_t gpu_run_of(const struct gpu_call &call, uint32_t i)
{
    return (blockIdx.x + i) % call.nruns;
}

/* The end of a client's own kernel. The users of its results follow it on its stream, and the end of the kernel releases them,
 * so no fence is needed, which would wait for the farthest store, unless other streams wait for `done`. The last workgroup looks
 * at the failure epoch behind its atomic addition, which comes behind those of all others: so it sees what made any of them
 * leave early, and what was there before the kernel began. */
GPU_DEVICE void gpu_leave_in_stream(const struct gpu_call &call)
{
    struct gpu_fixed *fixed = (struct gpu_fixed *)call.fixed;

    if (call.series.numbered) {
        if (threadIdx.x == 0)
            gpu_leave_numbered(call);
        return;
    }
    if (call.end.in_stream == GPU_IN_STREAMS)
        __syncthreads(); /* what the whole workgroup has stored is released by its first thread */
    if (threadIdx.x)
        return;
    if (call.end.in_stream == GPU_IN_STREAMS ? gpu_add_acq_rel(&fixed->left, 1u) != gridDim.x - 1
                                             : atomicAdd(&fixed->left, 1u) != gridDim.x - 1)
        return;
    if (call.end.in_stream == GPU_IN_STREAMS)
        gpu_fence_system();
    fixed->left = 0;
    if (call.series.word) { /* for the next run, which may be numbered */
        gpu_store_relaxed((uint64_t *)call.series.word, call.epoch);
        gpu_record_end_alone(call.series.word, call.epoch);
    }
    if (call.recall.places && gpu_must_leave(call, 0))
        gpu_hand_over(call.recall);
    gpu_tell_host(call.end, call.end.epoch, 0);
}

GPU_DEVICE void gpu_leave(const struct gpu_call &call, struct gpu_group *group)
{
    gpu_let_follow();
    if (call.rings.nranks) {
        through_end(call);
        return;
    }
    if (call.end.in_stream) {
        gpu_leave_in_stream(call);
        return;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        group->index = gpu_add_acq_rel((uint32_t *)&call.fixed->left, 1u);
    __syncthreads();
    if (group->index == gridDim.x - 1)
        gpu_last_leaves(call);
}

struct gpu_nothing_last {
    __device__ __forceinline__ void operator()(const struct gpu_call &) const
    {
    }
};

/* Run the phases from `first` on, then `last`, and end the kernel. go_on: no earlier phase made this workgroup leave. Operator has
 *     bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s);
 * which computes and stores a slice. All threads of the workgroup call it with the same arguments, never for a SLICE_WAIT. It
 * returns false, in any thread, if all ranks must leave: after gpu_fail(), or when gpu_must_leave() is true. Its first access
 * to shared memory needs no barrier before it, and its last none after it. */
template <typename Operator, typename Last = gpu_nothing_last>
GPU_DEVICE void gpu_execute_from(const struct gpu_call &call, Operator &op, uint32_t first, bool go_on, Last last = {})
{
    __shared__ struct gpu_group group;

    for (uint32_t phase = first; phase < GPU_PHASES && go_on; phase++)
        for (uint32_t i = 0; i < call.nruns && go_on; i++)
            go_on = gpu_phase_run(call, gpu_run_of(call, i), phase, &group, op);
    if (go_on)
        last(call);
    gpu_leave(call, &group);
}

/* The whole kernel. */
template <typename Operator, typename Last = gpu_nothing_last>
GPU_DEVICE void gpu_execute(const struct gpu_call &call, Operator &op, Last last = {})
{
    gpu_bring_nearer(call);
    gpu_follow();
    gpu_begin(call);
    gpu_execute_from(call, op, GPU_PHASE_FREE, !gpu_is_over(call), last);
}

/* The same over several nodes: only the phases that the call names. */
template <typename Operator, typename Last = gpu_nothing_last>
GPU_DEVICE void gpu_execute_over_nodes(const struct gpu_call &call, Operator &op, Last last = {})
{
    __shared__ struct gpu_group group;
    bool go_on;

    gpu_bring_nearer(call);
    gpu_follow();
    gpu_begin<true>(call);
    go_on = !gpu_is_over(call);
    for (uint32_t phase = call.nodes.phase_first; phase < call.nodes.phase_next && go_on; phase++)
        for (uint32_t i = 0; i < call.nruns && go_on; i++)
            go_on = gpu_phase_run<true>(call, gpu_run_of(call, i), phase, &group, op);
    if (go_on)
        last(call);
    gpu_leave(call, &group);
}

#endif
