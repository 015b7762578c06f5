/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/bound/inside.h"
#include "daemon/worker/comm/bound/launcher.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/stream.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"
#include "kernels/gpu/bound.h"
#include "kernels/plan/spec.h"
#include "proto/base/clock.h"
#include "proto/session.h"

/* The interval at which runs are checked. A run is seen up to one late, and so is its limit: together less than 100 ms. */
#define WATCH_MS 40
#define REFUSED_MS 1000 /* time in which a rank's process may repeat a run that it has refused, while others wait for it */

struct prepared *prepared_find(const struct comm *c, uint32_t number)
{
    struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link)
        if (p->number == number)
            return p;
    return NULL;
}

static bool is_rings(const struct prepared *p)
{
    return op_spec(p->op)->exchange == EXCHANGE_RINGS;
}

/* ---- the runs ---- */

static bool is_running(const struct prepared *p, int r, struct progress *out)
{
    *out = progress_of(p, r);
    return p->ranks[r].held && (int32_t)(out->begun - out->ended) > 0;
}

/* Whether the rank is missing in the run. A rank that has freed the operator must have finished the run, not only begun it. */
static bool is_missing(const struct prepared *p, int r, uint32_t run)
{
    struct progress at = progress_of(p, r);

    return (int32_t)((p->ranks[r].held ? at.begun : at.ended) - run) < 0;
}

bool prepared_awaits(const struct member *m, bool dead)
{
    const struct prepared *p;
    struct progress at, mine;

    LIST_FOREACH(p, &m->comm->prepared, link) {
        if (p->repeated)
            continue; /* its runs are operators, which are looked at as such */
        mine = progress_of(p, m->rank);
        for (int r = 0; r < m->comm->nranks; r++)
            if (r != m->rank && is_running(p, r, &at) && (int32_t)((dead ? mine.ended : mine.begun) - at.begun) < 0)
                return true;
    }
    return false;
}

/* Write the ranks that are missing in the run, as "rank 1, rank 3"; `left`: only those that have left. Returns how many. Who has not left may
 * be in the run: a kernel tells the host of it when it has waited. */
static int ranks_missing(const struct prepared *p, uint32_t run, bool left, char *text, size_t room)
{
    size_t n = 0;
    int count = 0;

    text[0] = '\0';
    for (int r = 0; r < p->comm->nranks && n < room; r++)
        if (is_missing(p, r, run) && (!left || p->comm->members[r].state == MEMBER_LEFT))
            n += (size_t)snprintf(text + n, room - n, "%srank %d", count++ ? ", " : "", r);
    return count;
}

/* ---- the end ---- */

/* Those of a rank that run, or come yet. */
static void kernels_end(const struct prepared *p, int r)
{
    const struct comm *c = p->comm;

    gpus_word_store(c->worker->gpus, c->members[r].dev->device->index,
                    (uint64_t)(uintptr_t)p->ranks[r].area.data + GPU_PREPARED_FAILURE_AT, UINT64_MAX);
}

void prepared_free(struct prepared *p)
{
    const bool areas_stay = !records_end(p);

    records_free(p);
    for (int r = 0; r < p->comm->nranks; r++) {
        struct prepared_rank *rank = &p->ranks[r];
        if (rank->plan_fd >= 0)
            (void)close(rank->plan_fd);
        if (rank->area_fd >= 0)
            (void)close(rank->area_fd);
        if (rank->input_fd >= 0)
            (void)close(rank->input_fd);
        if (rank->code_fd >= 0)
            (void)close(rank->code_fd);
        free(rank->refused);
        if (!areas_stay)
            device_memory_free(p->comm->members[r].dev->device, &rank->area);
        for (int t = 0; t < FCC_MAX_TENSORS; t++)
            if (rank->buffers[t])
                buffer_unref(rank->buffers[t]);
    }
    if (p->planned)
        launch_forget(p->planned);
    free(p);
}

void prepared_release(struct prepared *p)
{
    if (p->holders || p->running)
        return;
    LIST_REMOVE(p, link);
    prepared_free(p);
}

void prepared_kernels_end(const struct prepared *p)
{
    for (int r = 0; r < p->comm->nranks; r++)
        kernels_end(p, r);
}

/* The operator that a rank's newest run is: rings are all collectives', and their kernels say which (kernels/gpu/rings.h). */
static enum fcc_op run_op(const struct prepared *p, int r)
{
    const struct prepared_rank *rank = &p->ranks[r];

    if (!is_rings(p) || !rank->held)
        return p->op;
    const struct fcc_binding *words = &p->comm->members[r].session->memory->bindings[rank->place];
    return (enum fcc_op)(atomic_load_explicit(&words->begun, memory_order_relaxed) >> 32);
}

/* Counts the runs that have ended since the last look. All ranks take part in each, so rank 0's are all. Of rings the host is told of few: records.c. */
static void runs_count(struct prepared *p)
{
    struct comm *c = p->comm;
    const uint32_t ended = progress_of(p, 0).ended, more = ended - p->counted;

    if (p->repeated || is_rings(p) || c->state != COMM_ACTIVE)
        return;
    p->counted = ended;
    if (more && more <= RUNS_MOST) {
        c->runs += more;
        meter_runs(c->worker, p->op, more);
    }
}

/* A rank frees the operator. Its memory stays, because others' kernels may still use it. */
static void rank_drop(struct prepared *p, const struct member *m)
{
    struct prepared_rank *rank = &p->ranks[m->rank];

    if (!rank->held)
        return;
    binding_end(p);
    rank->last = progress_of(p, m->rank);
    if (m->rank == 0)
        runs_count(p);
    atomic_store_explicit(&m->session->memory->bindings[rank->place].number, 0, memory_order_relaxed);
    rank->held = false;
    /* A kernel may come yet where the communicator is over, and write there: then nobody gets the place. */
    if (!p->repeated || fcc_run_ended(rank->last.ended, rank->last_run))
        prepared_place_free(m->session, rank->place);
    p->holders--;
    prepared_release(p);
}

bool prepared_holds(const struct member *m, uint32_t number)
{
    const struct prepared *p = prepared_find(m->comm, number);

    return p && p->repeated && p->ranks[m->rank].held;
}

int prepared_drop(struct member *m, uint32_t number, struct error *e)
{
    struct prepared *p = prepared_find(m->comm, number);

    if (!p || !p->ranks[m->rank].held)
        return error_set(e, -ENOENT, "prepared: %u: no such operator of this rank", number);
    rank_drop(p, m);
    return 0;
}

void prepared_buffer_freed(struct session *s, const struct buffer *b)
{
    struct member *m;

    LIST_FOREACH(m, &s->members, link) {
        struct prepared *p, *next;
        for (p = LIST_FIRST(&m->comm->prepared); p; p = next) {
            bool holds = false; /* of a repeated operator: only what other ranks store into */
            next = LIST_NEXT(p, link);
            for (int t = 0; t < FCC_MAX_TENSORS; t++)
                holds = holds || p->ranks[m->rank].buffers[t] == b;
            if (p->repeated && holds)
                rank_drop(p, m);
        }
    }
}

void prepared_leave(struct member *m)
{
    struct prepared *p, *next;

    for (p = LIST_FIRST(&m->comm->prepared); p; p = next) {
        next = LIST_NEXT(p, link);
        rank_drop(p, m);
    }
}

void prepared_close(struct comm *c)
{
    struct prepared *p;

    while ((p = LIST_FIRST(&c->prepared))) {
        LIST_REMOVE(p, link);
        prepared_free(p);
    }
    for (struct launch *l = c->bound_unused, *next; l; l = next) {
        next = l->next_cached;
        launch_forget(l);
    }
    c->bound_unused = NULL;
    if (c->prepared_watch)
        event_free(c->prepared_watch);
    c->prepared_watch = NULL;
}

void prepared_abort(struct comm *c)
{
    const struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link)
        prepared_kernels_end(p);
}

/* The words that make kernels leave are in memory that all ranks' programs can write. They are stored again and again, so that a program that
 * overwrites them does not keep other ranks' kernels from leaving. */
static void abort_again(const struct comm *c)
{
    const struct prepared *p;
    struct progress at;

    LIST_FOREACH(p, &c->prepared, link)
        for (int r = 0; r < c->nranks; r++)
            if (is_running(p, r, &at))
                kernels_end(p, r);
}

/* ---- runs that a rank's process refuses ---- */

int prepared_refuse(const struct member *m, const struct fcc_run_refused_msg *msg, struct error *e)
{
    struct prepared *p = prepared_find(m->comm, msg->number);
    struct refused_run *refused;
    char text[FCC_TEXT_MAX], run[32] = "the next run";

    if (!p || p->repeated || !p->ranks[m->rank].held)
        return error_set(e, -ENOENT, "prepared: %u: no such operator of this rank", msg->number);
    if (msg->refused > FCC_REFUSED_MAX)
        return error_set(e, -EINVAL, "prepared %u: refused: %u: allowed are 0 to %d", p->number, msg->refused, FCC_REFUSED_MAX);
    refused = p->ranks[m->rank].refused;
    if (!msg->refused) {
        free(refused);
        p->ranks[m->rank].refused = NULL;
        return 0;
    }
    if (!refused && !(refused = malloc(sizeof(*refused))))
        return error_set(e, -ENOMEM, "prepared %u: no memory", p->number);
    p->ranks[m->rank].refused = refused;
    refused->run = msg->run;
    refused->since_ns = clock_ns();
    text_copy(text, sizeof(text), msg->text);
    if (msg->run)
        (void)snprintf(run, sizeof(run), "run %u", msg->run);
    (void)error_set(&refused->why, -(int)msg->refused, "rank %d: %s, prepared as %u, %s: %.300s", m->rank,
                    is_rings(p) ? "a collective" : op_name(p->op), p->number, run, text_clean(text));
    return 0;
}

/* Why a rank will not come to a run that has waited since then: it has refused the run, and the time to repeat it is over. NULL: no reason is
 * known. */
static const struct error *run_refusal(const struct prepared *p, uint32_t run, uint64_t since_ns, uint64_t now)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        const struct refused_run *refused = p->ranks[r].refused;
        if (refused && (!refused->run || refused->run == run) && is_missing(p, r, run) &&
            now - (refused->since_ns > since_ns ? refused->since_ns : since_ns) >= REFUSED_MS * 1000000ull)
            return &refused->why;
    }
    return NULL;
}

/* ---- watching ---- */

static const char *run_name(const struct prepared *p, int r)
{
    return op_name(run_op(p, r));
}

/* For the flight recorder: the run that has been under way for longest, and how many have ended. */
static void runs_record(struct comm *c)
{
    struct flight_launched now = {.ended = c->runs};
    const struct prepared *p;
    struct progress at;

    LIST_FOREACH(p, &c->prepared, link)
        for (int r = 0; r < c->nranks; r++) {
            if (p->repeated || !is_running(p, r, &at) || (now.prepared && p->ranks[r].since_ns >= now.since_ns))
                continue;
            now = (struct flight_launched){
                .prepared = p->number, .run = at.begun, .op = run_op(p, r), .since_ns = p->ranks[r].since_ns, .ended = c->runs};
            for (int other = 0; other < c->nranks && other < FLIGHT_RANKS; other++)
                now.missing |= (uint64_t)is_missing(p, other, at.begun) << other;
        }
    flight_launched(c->flight, &now);
}

const char *prepared_run_of(const struct member *m, uint32_t *run)
{
    const struct prepared *p;
    struct progress at;

    LIST_FOREACH(p, &m->comm->prepared, link) {
        if (p->repeated || !is_running(p, m->rank, &at))
            continue;
        *run = at.begun;
        return run_name(p, m->rank);
    }
    return NULL;
}

/* Whether two of a rank's runs were under way at a time. Then nobody knows what they have computed: abort the communicator. */
static bool clash_watch(struct prepared *p, int r)
{
    const struct prepared_rank *rank = &p->ranks[r];
    uint64_t run = 0;

    if (!p->repeated && rank->held)
        run = atomic_load_explicit(&p->comm->members[r].session->memory->bindings[rank->place].clash, memory_order_relaxed);
    if (run)
        comm_abort(
            p->comm, -EINVAL,
            "rank %d: %s, prepared as %u, run %u: two of its runs were under way at a time: the program must order the runs "
            "of an operator, also those of graphs",
            r, run_name(p, r), p->number, (uint32_t)run);
    return run != 0;
}

/* Abort the communicator if one rank's run has exceeded the time limit or waits for a rank that has left. True: aborted. */
static bool run_watch(struct prepared *p, int r, uint64_t now)
{
    struct comm *c = p->comm;
    struct prepared_rank *rank = &p->ranks[r];
    struct progress at;
    char missing[256], gone[256], apart[256];

    if (p->repeated || !is_running(p, r, &at)) {
        rank->since_ns = 0;
        return false;
    }
    if (!rank->since_ns || rank->seen != at.begun) {
        rank->seen = at.begun;
        rank->since_ns = now;
    }
    const int count = ranks_missing(p, at.begun, false, missing, sizeof(missing));
    const bool hopeless = ranks_missing(p, at.begun, true, gone, sizeof(gone)) > 0;
    const struct error *refused = count ? run_refusal(p, at.begun, rank->since_ns, now) : NULL;
    if (refused) {
        comm_abort(c, refused->status, "%s", refused->text);
    } else if (hopeless && c->error.status) {
        comm_abort(c, c->error.status, "%s", c->error.text); /* who, and how he went */
    } else if (hopeless) {
        comm_abort(c, -ECONNABORTED, "%s, prepared as %u, run %u: %s has left the communicator", run_name(p, r), p->number,
                   at.begun, gone);
    } else if (now - rank->since_ns < (uint64_t)c->dev.time_limit_ms * 1000000u) {
        return false;
    } else if (count) {
        comm_apart_say(c, apart, sizeof(apart));
        meter_limit(c->worker, METER_LIMIT_COME);
        comm_abort(c, -ETIMEDOUT, "%s, prepared as %u, run %u: %s did not come within the time limit of %u ms%s%s",
                   run_name(p, r), p->number, at.begun, missing, c->dev.time_limit_ms, apart, comm_flight_hint(c));
    } else {
        meter_limit(c->worker, METER_LIMIT_RUN);
        comm_abort(c, -ETIMEDOUT, "%s, prepared as %u, run %u: rank %d ran longer than the time limit of %u ms%s",
                   run_name(p, r), p->number, at.begun, r, c->dev.time_limit_ms, comm_flight_hint(c));
    }
    return true;
}

static void runs_watch(evutil_socket_t sock, short what, void *arg)
{
    struct comm *c = arg;
    uint64_t now = clock_ns();
    struct prepared *p;

    (void)sock, (void)what;
    if (LIST_EMPTY(&c->prepared)) {
        (void)event_del(c->prepared_watch);
        return;
    }
    LIST_FOREACH(p, &c->prepared, link)
        records_look(p, now);
    if (c->state != COMM_ACTIVE) {
        abort_again(c);
        return;
    }
    for (int r = 0; r < c->nranks; r++) { /* runs come without a doorbell */
        struct session *s = c->members[r].session;
        if (s && s->memory && !s->broken)
            (void)s->worker->session_poll(s);
    }
    LIST_FOREACH(p, &c->prepared, link) {
        runs_count(p);
        for (int r = 0; r < c->nranks && c->state == COMM_ACTIVE; r++)
            if (clash_watch(p, r) || run_watch(p, r, now))
                return;
    }
    runs_record(c);
}

int prepared_watch_begin(struct comm *c, struct error *e)
{
    static const struct timeval period = {.tv_usec = WATCH_MS * 1000};

    if (!c->prepared_watch)
        c->prepared_watch = event_new(c->worker->base, -1, EV_PERSIST, runs_watch, c);
    if (!c->prepared_watch || event_add(c->prepared_watch, &period))
        return error_set(e, -ENOMEM, "prepare: out of memory");
    return 0;
}

static struct json_object *run_describe(const struct prepared *p, const char *name, uint32_t run, uint64_t since_ns)
{
    struct json_object *o = json_object_new_object(), *missing = json_object_new_array();

    for (int r = 0; r < p->comm->nranks; r++)
        if (is_missing(p, r, run))
            (void)json_object_array_add(missing, json_object_new_int(r));
    (void)json_object_object_add(o, "prepared", json_object_new_int64(p->number));
    (void)json_object_object_add(o, "op", json_object_new_string(name));
    (void)json_object_object_add(o, "run", json_object_new_int64(run));
    (void)json_object_object_add(o, "since_ms", json_object_new_double(since_ns ? (double)(clock_ns() - since_ns) / 1e6 : 0));
    (void)json_object_object_add(o, "missing", missing);
    return o;
}

struct json_object *prepared_describe(const struct comm *c)
{
    struct json_object *list = NULL;
    const struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link) {
        struct progress at;
        uint32_t newest = 0;
        uint64_t since_ns = 0;
        const char *name = NULL;
        bool runs = false;
        for (int r = 0; r < c->nranks; r++) {
            if (p->repeated || !is_running(p, r, &at) || (runs && (int32_t)(at.begun - newest) <= 0))
                continue;
            runs = true;
            newest = at.begun;
            name = run_name(p, r);
            since_ns = p->ranks[r].seen == at.begun ? p->ranks[r].since_ns : 0;
        }
        if (runs && !list)
            list = json_object_new_array();
        if (runs)
            (void)json_object_array_add(list, run_describe(p, name, newest, since_ns));
    }
    return list;
}
