/* SPDX-License-Identifier: MIT
 *
 * share.c - the worker's side of shares of GPUs.
 *
 * What is counted. A kernel reports how long it ran. The kernels of several communicators may run side by side, so the sum of their times is no time of
 * the GPU: it is taken only as far as the clock has gone on since there was anything in the GPU's queues. What is in the queues, waiting, is not reported
 * yet; of it the worker counts here what it took when it ran last, so that it does not enqueue four long kernels where it may launch one.
 *
 * Why nothing deadlocks:
 *   - An operator that is held back has not begun on this node: it has no place in a GPU's queue, no epoch, no memory and no turn, and holds nothing that
 *     others need. To all others it looks as if its ranks had come later, and whoever is right when ranks come late is right now. Operators that have begun are
 *     never held back, and the kernels of one operator are enqueued on all GPUs of the node together, as always. So no kernel that occupies a
 *     GPU waits for one that is held back here.
 *   - Over nodes a kernel waits for GPUs of its own node only; for other nodes the engine waits between kernels (device/gpu/steps.c). So an operator that is held
 *     back on one node occupies no GPU on the others.
 *   - An operator over several GPUs is held back if the job has used up the sum of what it may use of all of them, not if it has on any. Else two jobs that
 *     have more than their shares of one GPU each would stop each other. (What is left of one GPU pays for another one:
 *     at most SHARE_SILENT_NS and what may be saved up, so on each GPU a debt beyond that is paid.)
 *   - On each GPU one worker has no limit in practice (daemon/broker/share/law.h): the one that is furthest behind.
 *   - Should there be a circle over several GPUs, or several nodes, nevertheless, it ends by itself: each operator is held back for SHARE_HOLD_NS at most, or
 *     SHARE_HOLD_NODES_NS if other nodes may wait for it (comm/share.c); and as soon as a GPU has nothing to do, the broker forgives who waits.
 *   - If the broker says nothing for SHARE_SILENT_NS, what it has said last is void.
 */
#include "daemon/worker/device/gpu/share.h"

#include "daemon/common/ledger.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/parts.h"
#include "proto/base/clock.h"

static_assert(SHARE_GPUS == GPU_MAX_GPUS, "a share of each GPU");

static struct share *share_of(const struct worker *w)
{
    return w->flight ? ledger_share(w->flight) : NULL;
}

/* The broker's bell is set: it does not know yet that the worker uses GPUs. */
static void bell_answer(struct worker *w, struct share_told *told)
{
    if (share_get(&told->bell) && __atomic_exchange_n(&told->bell, 0, __ATOMIC_SEQ_CST))
        worker_sessions_tell(w);
}

void gpu_share_begin(struct launch *l)
{
    struct worker *w = l->worker;
    struct share *share = share_of(w);

    l->counted_ns = share ? clock_ns() : 0;
    for (int p = 0; share && p < l->nparts; p++) {
        unsigned gpu = (unsigned)l->parts[p].device->index;
        struct gpu_use *use = &w->gpus->use[gpu];
        if (!use->running++) {
            use->since_ns = l->counted_ns;
            use->from_ns = use->used_ns;
            share_set(&share->said.since_ns[gpu], use->since_ns);
        }
        use->ahead_ns += l->took_ns[l->step];
        share_set(&share->said.ahead_ns[gpu], use->ahead_ns);
        share_set(&share->said.running[gpu], use->running);
    }
    if (share)
        bell_answer(w, &share->told);
}

void gpu_share_end(struct launch *l)
{
    struct share *share = share_of(l->worker);
    const struct gpu_told *told = told_of(l);
    uint64_t now, longest = 0;

    if (!l->counted_ns)
        return;
    now = clock_ns();
    for (int p = 0; p < l->nparts; p++) {
        unsigned gpu = (unsigned)l->parts[p].device->index;
        struct gpu_use *use = &l->worker->gpus->use[gpu];
        uint64_t done = atomic_load_explicit(&told->done[l->step][gpu], memory_order_relaxed);
        uint64_t ns = l->parts[p].absent ? 0 : gpu_done_ticks(done), most = use->from_ns + (now - use->since_ns);
        ns = ns < now - l->counted_ns
                 ? ns
                 : now - l->counted_ns; /* later steps over nodes report the time since the first one began */
        longest = ns > longest ? ns : longest;
        use->used_ns = use->used_ns + ns < most ? use->used_ns + ns : most;
        use->ahead_ns -= l->took_ns[l->step];
        if (!--use->running) {
            share_set(&share->said.since_ns[gpu], 0);
            share_set(&share->said.busy_ns[gpu], share_get(&share->said.busy_ns[gpu]) + (now - use->since_ns));
        }
        share_set(&share->said.ahead_ns[gpu], use->ahead_ns);
        share_set(&share->said.used_ns[gpu], use->used_ns);
        share_set(&share->said.running[gpu], use->running);
    }
    l->took_ns[l->step] = longest;
    l->counted_ns = 0;
}

/* A bit for each GPU of a rank here. */
static uint32_t gpus_of(const struct device_comm *c)
{
    uint32_t gpus = 0;

    for (int r = 0; r < c->nranks; r++)
        if (c->ranks[r].device)
            gpus |= 1u << c->ranks[r].device->index;
    return gpus;
}

bool gpus_share_is_used_up(const struct device_comm *c)
{
    const struct share *share = share_of(c->worker);
    uint64_t limited = share ? share_get(&share->told.limited) : 0;
    int64_t over = 0;

    if (!limited)
        return false;
    limited &= gpus_of(c);
    for (unsigned gpu = 0; gpu < SHARE_GPUS; gpu++) {
        const struct gpu_use *use = &c->worker->gpus->use[gpu];
        uint64_t until = share_get(&share->told.until_ns[gpu]);
        if (limited >> gpu & 1u && until != SHARE_FREE)
            over += (int64_t)(use->used_ns + use->ahead_ns - until);
    }
    return limited && over >= 0 && clock_ns() - share_get(&share->told.when_ns) < SHARE_SILENT_NS;
}

void gpus_share_wait(const struct device_comm *c, bool begins)
{
    struct share *share = share_of(c->worker);
    uint32_t gpus = gpus_of(c);

    for (unsigned gpu = 0; share && gpu < SHARE_GPUS; gpu++) {
        struct gpu_use *use = &c->worker->gpus->use[gpu];
        if (!(gpus >> gpu & 1u))
            continue;
        use->waiting += begins ? 1 : -1u;
        share_set(&share->said.waiting[gpu], use->waiting);
        if (begins)
            share_set(&share->said.waits[gpu], share_get(&share->said.waits[gpu]) + 1);
    }
}
