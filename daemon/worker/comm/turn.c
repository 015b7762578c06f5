/* SPDX-License-Identifier: MIT
 *
 * turn.c - one operator of all ranks: match the ranks' requests, start, finish.
 */
#include "daemon/worker/comm/turn.h"

#include <errno.h>
#include <string.h>

#include "daemon/worker/comm/bound/launcher.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/trace.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/spec.h"
#include "proto/base/clock.h"
#include "proto/session.h"

/* ---- beginning ---- */

static int staging_make(struct member *m, uint64_t bytes, struct error *e)
{
    if (m->comm->nodes)
        return span(m->comm)->staging_make(m, bytes, e);
    device_memory_free(m->dev->device, &m->dev->staging);
    return device_memory_alloc(m->dev->device, bytes, &m->dev->staging, NULL, e);
}

int launch_staging_prepare(struct comm *c, const struct launch *l, struct error *e)
{
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        uint64_t needed = l->runs[r].plan->staging_bytes;
        if (needed > m->dev->staging.bytes) {
            struct error why = {0};
            if (c->dev.current)
                return -EAGAIN; /* its kernels use what there is */
            if (staging_make(m, needed, &why))
                return error_set(e, why.status, "rank %d: staging memory: %s", r, why.text);
        }
        if (l->staging[r] != m->dev->staging.data) /* no needless store: the threads that run l cache these pointers */
            l->staging[r] = m->dev->staging.data;
    }
    return 0;
}

/* Packet memory, for an operator whose plan uses packets. Each packet carries a stamp, which counts the operators that have used this
 * memory. The memory is zeroed when made, stamps begin at 1, and it is made anew before stamps wrap, so no packet is taken for another
 * operator's. Odd and even stamps use a half each: a rank may begin n + 1 while another still reads its packets of n. No rank begins n + 2
 * before it has received every rank's packets of n + 1; each rank runs its operators in order, so by then all ranks have finished n. An
 * operator that needs more memory begins when the ones before have finished on all ranks (-EAGAIN until then), so none is in flight when
 * the old memory is freed. */
static int slots_prepare(struct comm *c, struct launch *l, struct error *e)
{
    uint64_t needed = 0;

    l->stamp = 0;
    for (int r = 0; r < c->nranks; r++)
        needed = l->runs[r].plan->packet_bytes > needed ? l->runs[r].plan->packet_bytes : needed;
    if (!needed)
        return 0;
    if (needed > c->dev.slots_bytes || c->stamp == UINT32_MAX) {
        if (c->dev.current)
            return -EAGAIN;
        uint64_t bytes = needed > c->dev.slots_bytes ? needed : c->dev.slots_bytes;
        c->dev.slots_bytes = 0;
        for (int r = 0; r < c->nranks; r++) {
            struct member *m = &c->members[r];
            struct error why = {0};
            device_memory_free(m->dev->device, &m->dev->slots);
            if (device_memory_alloc(m->dev->device, 2 * bytes, &m->dev->slots, NULL, &why))
                return error_set(e, why.status, "rank %d: staging memory: %s", r, why.text);
        }
        c->dev.slots_bytes = bytes;
        c->stamp = 0;
    }
    l->stamp = ++c->stamp;
    return 0;
}

/* A launch that succeeds leaves its group counters as they were; only a failure requires setting them. GPUs keep their counters themselves. */
void launch_reset(struct launch *l)
{
    for (int r = 0; r < l->nranks && !l->inline_; r++)
        atomic_store_explicit(&l->runs[r].next, 0, memory_order_relaxed);
    if (l->error.status)
        for (int r = 0; r < l->nranks && !l->bound; r++)
            launch_groups_set(&l->runs[r]);
    l->begun = l->left = l->leaves = false;
    atomic_store_explicit(&l->dropped, false, memory_order_relaxed);
    atomic_store_explicit(&l->failed, 0, memory_order_relaxed);
    atomic_store_explicit(&l->parts_left, (uint32_t)l->nparts, memory_order_relaxed);
    l->error.status = 0;
}

/* Copy the ranks' requests into the launch. Unchanged ones, as most are, are not stored again: the threads that run l have them cached. */
static void args_keep(struct launch *l, const struct op_args args[])
{
    for (int r = 0; r < l->nranks; r++)
        if (!op_args_equal(&l->args[r], &args[r]))
            op_args_copy(&l->args[r], &args[r]);
}

/* The plans of other nodes' ranks matter to GPUs, which wait for single flags of theirs (device/gpu/steps.c). */
static void topology_set(struct comm *c)
{
    for (int r = 0; r < c->nranks; r++) {
        const struct member *m = &c->members[r];
        c->problem->node_of[r] = m->node;
        if (c->nodes && !m->remote && c->dev.ops->number == FCC_DEVICE_CPU)
            c->problem->node = m->node;
    }
}

int launch_match(struct comm *c, const struct op_args args[], struct error *e)
{
    enum fcc_op op = args[0].op;
    struct error why;

    error_clear(&why);
    topology_set(c);
    int status = problem_begin(c->problem, op);
    if (status)
        return error_set(e, status, "no memory for an operator of %d ranks", c->nranks);
    status = op_match(args, c->nranks, c->problem, &why);
    return status ? error_set(e, status, "%s: %s", submission_name(c->members[0].next), why.text) : 0;
}

/* Note whether workgroups, engine and clients are more threads than cores. Then clients and the engine sleep rather than spin. */
static void crowd_join(struct comm *c, struct launch *l)
{
    struct worker *w = c->worker;
    unsigned threads = w->nclients + 1;

    if (c->dev.ops->number != FCC_DEVICE_CPU)
        return; /* workgroups on GPUs need no cores */
    for (int p = 0; p < l->nparts && !l->stepwise; p++)
        threads += l->parts[p].device->workgroups;
    l->crowded = threads > (unsigned)w->cores;
    w->crowded += l->crowded;
    for (int r = 0; l->crowded && r < c->nranks; r++) {
        const struct submission *sub = l->submissions[r];
        if (sub->session && sub->slot != FCC_NO_SLOT)
            slot_running(sub->session, sub->slot);
    }
}

/* Assign the ranks' next submissions to the launch. */
static void running_add(struct comm *c, struct launch *l)
{
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        l->submissions[r] = m->next;
        m->next = TAILQ_NEXT(m->next, link);
    }
    l->running = true;
    l->following = NULL;
    if (c->dev.current)
        c->dev.newest->following = l;
    else
        c->dev.current = l;
    c->dev.newest = l;
    c->dev.running++;
}

static void running_remove(struct comm *c, struct launch *l)
{
    assert(l == c->dev.current && l->running);
    l->running = false;
    c->dev.current = l->following;
    if (!c->dev.current)
        c->dev.newest = NULL;
    c->dev.running--;
}

/* The schedule kind that was asked for; for `auto`, the tuner's choice. */
static enum fcc_schedule_kind kind_choose(struct comm *c, enum fcc_schedule_kind asked)
{
    if (asked != FCC_SCHEDULE_AUTO)
        return asked;
    struct tune_class class = launch_class(c);
    return tune_choose(c->tune, &class);
}

/* Note the words of the ranks' streams in the launch, if the operator is on streams. */
static void streams_note(struct launch *l)
{
    for (int r = 0; r < l->nranks; r++) {
        const struct submission *sub = l->submissions[r];
        struct session *s = sub->session;
        l->streams[r] = (struct launch_stream){.value = 0};
        if (!sub->stream || !s)
            continue;
        uint64_t slot = s->gpu_address + offsetof(struct fcc_session_memory, slot) + sub->slot * sizeof(struct fcc_slot);
        l->streams[r] = (struct launch_stream){.started = &s->memory->slot[sub->slot].stream_started,
                                               .started_address = slot + offsetof(struct fcc_slot, stream_started),
                                               .finished_address = slot + offsetof(struct fcc_slot, stream_finished),
                                               .words = sub->gpu_words ? s->words : NULL,
                                               .slot = sub->slot,
                                               .value = sub->stream};
    }
}

void launch_start(struct launch *l)
{
    if (l->comm->ops->number != FCC_DEVICE_CPU)
        streams_note(l);
    device_launch(l);
}

/* Count the operator that is every member's next as running. */
static void launch_enter(struct comm *c, struct launch *l)
{
    uint64_t first_ns = turn_arrived_ns(c);

    running_add(c, l);
    l->serial = ++c->worker->launches;
    l->began_ns = clock_ns();
    l->computed_ns = 0;
    l->position = ++c->turns;
    flight_begun(c->flight, l->position, c->operators, l->bound ? 0 : l->schedule.kind, l->began_ns);
    meter_begun(c->worker, l->problem->op, first_ns, l->began_ns);
    METER_GAUGE(c->worker, running, 1);
    l->span.number = c->operators;
    l->span.started_ns = l->early_ns ? l->early_ns : l->began_ns;
}

void launch_begin_bound(struct comm *c, struct launch *l)
{
    launch_reset(l);
    l->epoch = ++c->epoch;
    l->automatic = false;
    launch_enter(c, l);
    comm_deadline_set(c);
    device_launch(l);
}

/* No launch was made. What is wrong with the requests the other nodes find as well, and all have ended the turn. What this node has no memory for
 * they begin: that ends the communicator. */
static int launch_lacks(struct comm *c, const struct error *e)
{
    if (c->nodes && e->status == -ENOMEM)
        comm_abort(c, e->status, "%s: %s", submission_name(c->members[0].next), e->text);
    return e->status;
}

int launch_begin(struct comm *c, struct error *e)
{
    struct op_args *args = c->args;
    struct launch *l;

    assert(c->nranks > 0);
    for (int r = 0; r < c->nranks; r++)
        op_args_copy(&args[r], &c->members[r].next->args);
    int status = launch_match(c, args, e);
    if (status)
        return launch_lacks(c, e);
    l = launch_get(c, kind_choose(c, args[0].schedule), args[0].route, e);
    if (!l)
        return launch_lacks(c, e);
    status = launch_staging_prepare(c, l, e);
    if (status == 0)
        status = slots_prepare(c, l, e);
    if (status == 0 && c->nodes)
        status = span(c)->launch_open(l, e);
    if (status == -EAGAIN) {
        launch_keep(c, l);
        return status;
    }
    if (status) {
        (void)launch_early_take(c, NULL);
        launch_forget(l);
        if (c->nodes) /* the other nodes begin it */
            comm_abort(c, status, "%s", e->text);
        return status;
    }
    if (c->nodes)
        span(c)->launch_settle(c, l);
    args_keep(l, args);
    if (!launch_early_take(c, l)) {
        launch_reset(l);
        l->epoch = ++c->epoch;
    }
    launch_enter(c, l);
    l->automatic = args[0].schedule == FCC_SCHEDULE_AUTO;
    if (l->inline_) {
        device_cpu_run_inline(l);
        launch_finish(l);
        return 0;
    }
    crowd_join(c, l);
    comm_deadline_set(c);
    if (c->nodes && !span(c)->staged(c, l))
        return 0; /* it is started when they have */
    launch_start(l);
    if (c->nodes)
        span(c)->launch_started(l);
    return 0;
}

/* ---- the end ---- */

/* Locked. Tell a rank that waits for its completion slot of success. The engine tells other ranks, and all ranks of failures. */
static void rank_tell_success(const struct launch *l, int rank)
{
    struct submission *sub = l->submissions[rank];
    int64_t values[FCC_MAX_RANKS];

    if (!sub->session || sub->kind != SUBMISSION_OPERATOR || sub->slot == FCC_NO_SLOT || sub->stream)
        return;
    int n = op_values(l->problem, rank, values);
    slot_succeed(sub->session, sub->slot, sub->id, values, n);
    sub->session = NULL; /* told */
}

/* The last workgroup tells the ranks itself. The engine sleeps during a large operator, because the workgroups need its core, and waking it
 * first would take as long as waking a client.
 *
 * The engine meanwhile. The launch is handed back before any rank is told, and the engine collects such launches before it reads requests.
 * So whatever a client does next, to the engine its operator is over. An engine that is awake finishes the launch when all ranks have been
 * told (tell_lock). It may abort the communicator, or let a rank leave, at any time; it does so under the same lock. So each rank is told once,
 * and its session exists while it is told.
 *
 * Memory order. This thread has counted down the last part (acquire), so it sees everything that the other workgroups have stored, including
 * the status word. The store of the slot's state releases the results to the client. */
void launch_end(struct launch *l)
{
    struct worker *w = l->worker;

    (void)pthread_mutex_lock(&w->tell_lock);
    worker_launch_give(w, &l->finished);
    if (!atomic_load_explicit(&l->failed, memory_order_relaxed) && !atomic_load_explicit(l->status, memory_order_relaxed))
        for (int r = 0; r < l->nranks; r++)
            rank_tell_success(l, r);
    (void)pthread_mutex_unlock(&w->tell_lock);
    worker_wake(w);
}

static void ranks_tell(struct comm *c, const struct launch *l)
{
    const struct error *e = c->state == COMM_ABORTED ? &c->error : &l->error;

    if (!l->inline_)
        (void)pthread_mutex_lock(&c->worker->tell_lock);
    for (int r = 0; r < c->nranks; r++) {
        struct member *m = &c->members[r];
        struct submission *sub = l->submissions[r];
        int64_t values[FCC_MAX_RANKS];
        int n = e->status ? 0 : op_values(l->problem, r, values);
        assert(sub == TAILQ_FIRST(&m->queue));
        TAILQ_REMOVE(&m->queue, sub, link);
        m->queued--;
        submission_tell(sub, e->status, e->text, values, n);
        submission_free(sub);
    }
    if (!l->inline_)
        (void)pthread_mutex_unlock(&c->worker->tell_lock);
}

bool launch_returned(struct launch *l)
{
    if (!l->comm->ops->launch_collect(l->parts[0].device, l))
        return false;
    launch_finish(l);
    return true;
}

static void launch_count(const struct comm *c, const struct launch *l)
{
    int status = l->error.status ? l->error.status : c->state == COMM_ABORTED ? c->error.status : 0;
    enum meter_schedule schedule = l->bound ? METER_SCHEDULE_BOUND : (enum meter_schedule)l->schedule.kind;

    flight_ended(c->flight, l->position, status, l->span.finished_ns);
    meter_ended(c->worker, l->problem->op, schedule, status, l->busy_ns ? l->busy_ns : l->span.finished_ns - l->began_ns);
    METER_GAUGE(c->worker, running, -1);
    METER_GAUGE(c->worker, queued, -c->nranks);
    if (c->nodes && l->computed_ns && c->worker->meters)
        meter_time(&c->worker->meters->counters.proxy_lag, l->span.finished_ns - l->computed_ns);
}

void launch_finish(struct launch *l)
{
    struct comm *c = launch_comm(l);

    l->span.finished_ns = clock_ns();
    if (c->nodes)
        span(c)->launch_close(l);
    c->worker->crowded -= l->crowded;
    l->crowded = false;
    if (l->automatic && !l->error.status && c->state == COMM_ACTIVE) {
        struct tune_sample sample = {
            .class = *l->class, .kind = l->schedule.kind, .ns = l->busy_ns ? l->busy_ns : l->span.finished_ns - l->began_ns};
        if (!c->nodes)
            tune_record(c->tune, &sample);
        else if (!c->members[0].remote)
            span(c)->measured(c, &sample);
    }
    if (l->early_ns)
        launch_early_end(l);
    if (!l->bound) {
        l->span_shown = l->span;
        l->turn ^= 1; /* what was written is shown. A GPU's times are fetched when somebody asks */
    }
    running_remove(c, l);
    launch_count(c, l);
    c->dev.turn_ns = l->span.finished_ns;
    bool shown = op_spec(l->problem->op)->compute && !l->bound; /* it has times to show */
    if (shown)
        c->last = l;
    if (!l->bound)
        launch_keep(c, l);
    ranks_tell(c, l);
    if (c->nodes && l->error.status && c->state == COMM_ACTIVE)
        span(c)->launch_failed(l);
    if (c->nodes)
        span(c)->turn_ended(c);
    if (c->state == COMM_ACTIVE && atomic_load_explicit(&c->dev.shared->status, memory_order_relaxed))
        atomic_store_explicit(&c->dev.shared->status, 0, memory_order_relaxed); /* the failure was this operator's alone */
    if (c->state == COMM_ACTIVE && c->dev.current && atomic_load_explicit(&c->dev.current->failed, memory_order_relaxed))
        gpus_launch_abort(c->dev.current); /* it has failed already; but what lets it leave would have let this one leave too */
    if (shown || l->error.status)
        trace_waiters_answer(c, &l->error);
    if (l->bound)
        bound_end(l);
}

/* ---- launches that devices hand back ---- */

static void launch_handle(struct launch *l)
{
    struct comm *c = launch_comm(l);

    if (!launch_returned(l))
        return;
    comm_advance(c);
    comm_release(c);
}

bool launches_collect(struct worker *w)
{
    struct finished *f = worker_launches_take(w), *next;
    bool any = f != NULL;

    for (; f; f = next) {
        next = f->next; /* its launch may be freed */
        launch_handle(f->launch);
    }
    return any;
}

/* While the engine is awake it polls the GPUs itself, instead of the watching thread (device/gpu/watch.h). */
bool launches_poll(struct worker *w)
{
    struct comm *c, *next;
    bool any = false;

    for (c = w->gpus ? LIST_FIRST(&w->comms) : NULL; c; c = next) {
        next = LIST_NEXT(c, link);
        if (!c->dev.current || c->dev.ops->number == FCC_DEVICE_CPU || !gpus_launch_take(c->dev.current))
            continue;
        launch_handle(c->dev.current);
        any = true;
    }
    return any;
}
