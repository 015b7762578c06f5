/* SPDX-License-Identifier: MIT
 *
 * join.c - communicators: how they begin, and who has joined.
 */
#include "daemon/worker/comm/join.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/bound/launcher.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/tune.h"
#include "daemon/worker/comm/unformed.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/version.h"

uint64_t id_number(const struct fcc_unique_id *id)
{
    uint64_t number; /* of the secret: random */

    memcpy(&number, id->bytes, sizeof(number));
    return number ? number : 1;
}

struct comm *comm_make(struct worker *w, const struct joining *m, struct device *d, struct error *e)
{
    struct error why = {0};

    if (worker_count_take(w, ACCOUNT_COMMS, &why)) {
        (void)error_set(e, why.status, "rank %d: %s", m->rank, why.text);
        return NULL;
    }
    struct comm *c = calloc(1, sizeof(*c) + (size_t)m->nranks * sizeof(c->members[0]));
    struct device_rank *ranks = calloc((size_t)m->nranks, sizeof(*ranks));
    if (!c || !ranks || d->ops->comm_open(d, &c->dev, e)) {
        if (!c || !ranks)
            (void)error_set(e, -ENOMEM, "no memory for a communicator");
        free(ranks);
        free(c);
        worker_count_give(w, ACCOUNT_COMMS);
        return NULL;
    }
    c->worker = c->dev.worker = w;
    c->nranks = c->dev.nranks = m->nranks;
    c->dev.ops = d->ops;
    c->dev.ranks = ranks;
    c->unique_id = *m->unique_id;
    c->dev.time_limit_ms = m->time_limit_ms ? m->time_limit_ms : w->config.time_limit_ms;
    c->problem = problem_new(m->nranks);
    c->args = calloc((size_t)m->nranks, sizeof(c->args[0]));
    c->tune = tune_new();
    c->timer = evtimer_new(w->base, comm_deadline_passed, c);
    LIST_INIT(&c->trace_waiters);
    if (!c->problem || !c->args || !c->tune || !c->timer) {
        event_drop(&c->timer);
        free(c->tune);
        free(c->args);
        problem_free(c->problem);
        d->ops->comm_close(d, &c->dev);
        free(ranks);
        free(c);
        worker_count_give(w, ACCOUNT_COMMS);
        (void)error_set(e, -ENOMEM, "no memory for a communicator");
        return NULL;
    }
    for (int r = 0; r < c->nranks; r++) {
        c->members[r].comm = c;
        c->members[r].dev = &ranks[r];
        c->members[r].rank = r;
        TAILQ_INIT(&c->members[r].queue);
    }
    c->number = c->dev.number = ++w->comm_number;
    LIST_INSERT_HEAD(&w->comms, c, link);
    return c;
}

struct comm *comm_find_forming(const struct worker *w, const struct fcc_unique_id *id)
{
    struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->state == COMM_FORMING && !memcmp(&c->unique_id, id, sizeof(*id)))
            return c;
    return NULL;
}

int joined_twice(const struct comm *c, int rank, pid_t pid, const char *address, struct error *e)
{
    const struct member *m = &c->members[rank];
    const char *first = m->remote ? span(c)->address(m) : c->worker->node;

    return error_set(e, -EALREADY, "rank %d: has joined already, as pid %d%s%s; and now as pid %d%s%s", rank, m->pid,
                     *first ? " on node " : "", first, pid, *address ? " on node " : "", address);
}

void join_limit(struct comm *c, uint32_t asked_ms)
{
    uint32_t limit_ms = asked_ms ? asked_ms : c->worker->config.time_limit_ms;

    if (limit_ms < c->dev.time_limit_ms)
        comm_limit_set(c, limit_ms);
}

int join_check_id(const struct worker *w, const struct joining *m, struct error *e)
{
    const struct comm *c;

    LIST_FOREACH(c, &w->comms, link) {
        if (id_number(&c->unique_id) != id_number(m->unique_id))
            continue;
        if (memcmp(&c->unique_id, m->unique_id, sizeof(*m->unique_id)) != 0) /* both have the same number on other nodes */
            return error_set(e, -EINVAL,
                             "rank %d: id: it begins as another communicator's: allowed is one that fcc_get_unique_id() made",
                             m->rank);
        if (c->state == COMM_ABORTED)
            return error_set(e, -EALREADY, "rank %d: id: its communicator has ended: %s", m->rank, c->error.text);
        if (m->nranks == c->nranks && c->members[m->rank].state == MEMBER_JOINED)
            return joined_twice(c, m->rank, m->pid, m->address, e);
        return error_set(e, -EALREADY, "rank %d: id: its communicator is complete already, with %d ranks", m->rank, c->nranks);
    }
    return 0;
}

struct comm *comm_find_own(const struct worker *w, uint32_t number)
{
    struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->number == number)
            return c;
    return NULL;
}

int join_check_args(const struct joining *m, struct error *e)
{
    static const struct fcc_unique_id none;

    if (m->nranks < 1 || m->nranks > FCC_MAX_RANKS)
        return error_set(e, -EINVAL, "rank %d: nranks: %d: allowed are 1 to %d", m->rank, m->nranks, FCC_MAX_RANKS);
    if (m->rank < 0 || m->rank >= m->nranks)
        return error_set(e, -EINVAL, "rank: %d: allowed are 0 to %d", m->rank, m->nranks - 1);
    if (!memcmp(m->unique_id, &none, sizeof(none)))
        return error_set(e, -EINVAL, "rank %d: id: all zero: allowed is one that fcc_get_unique_id() made", m->rank);
    return 0;
}

int join_check(const struct joining *m, const struct comm *c, struct error *e)
{
    if (m->nranks != c->nranks)
        return error_set(e, -EINVAL, "rank %d: nranks: %d: the ranks that joined before have %d", m->rank, m->nranks,
                         c->nranks);
    return c->members[m->rank].state == MEMBER_ABSENT ? 0 : joined_twice(c, m->rank, m->pid, m->address, e);
}

/* The device that a rank asks for. On GPUs ranks launch kernels by plans that the worker makes, so both must be of one version. */
static int join_device(const struct session *s, const struct fcc_comm_init_msg *m, struct device **out, struct error *e)
{
    struct worker *w = s->worker;
    struct device *devices = w->devices;
    struct error why = {0};
    int n = w->ndevices;

    if (m->device_kind > FCC_DEVICE_CUDA)
        return error_set(e, -EINVAL, "rank %d: device_kind: %u: allowed are %d to %d", m->rank, m->device_kind, FCC_DEVICE_CPU,
                         FCC_DEVICE_CUDA);
    if (m->device_kind != FCC_DEVICE_CPU && s->version != FCC_PROTO_VERSION)
        return error_set(e, -EPROTO,
                         "rank %d: device_kind: its libfccclient speaks version %u of the protocol, this fccd (" VERSION_TEXT
                         ") version %u: on GPUs both must speak the same: upgrade libfccclient (or the Python package fccd)",
                         m->rank, s->version, FCC_PROTO_VERSION);
    if (m->device_kind != FCC_DEVICE_CPU && m->nranks > GPU_MAX_RANKS)
        return error_set(e, -EINVAL, "rank %d: nranks: %d: on GPUs: allowed are 1 to %d", m->rank, m->nranks, GPU_MAX_RANKS);
    if (m->device_kind != FCC_DEVICE_CPU && gpus_find(w, (enum fcc_device_kind)m->device_kind, &devices, &n, &why))
        return error_set(e, why.status, "rank %d: device_kind: %s", m->rank, why.text);
    if (m->device < -1 || m->device >= n)
        return error_set(e, m->device < -1 ? -EINVAL : -ENOENT, "rank %d: device: %d: allowed are -1 to %d", m->rank, m->device,
                         n - 1);
    *out = &devices[m->device >= 0 ? m->device : m->rank % n];
    return device_open(*out, e);
}

/* Check a rank's device against those of the ranks that have joined. */
static int join_check_device(const struct comm *c, int rank, const struct device *d, struct error *e)
{
    int here = 1, status = 0;

    if (d->ops != c->dev.ops)
        return error_set(e, -EINVAL, "rank %d: device_kind: %s: the ranks that joined before are on %s", rank, d->ops->kind,
                         c->dev.ops->kind);
    if (d->ops->number == FCC_DEVICE_CPU)
        return 0;
    for (int r = 0; r < c->nranks && status == 0; r++) {
        if (!c->members[r].dev->device)
            continue;
        here += c->members[r].dev->device == d;
        status = gpus_check_peers(d, rank, c->members[r].dev->device, r, e);
    }
    if (status == 0 && here > GPU_MAX_RUNS)
        status = error_set(e, -EINVAL, "rank %d: device: %s %d has %d ranks of the communicator: allowed are %d", rank,
                           d->ops->kind, d->index, here - 1, GPU_MAX_RUNS);
    return status;
}

static int member_open(struct member *m, struct session *s, const struct fcc_comm_init_msg *msg, struct device *d,
                       struct error *e)
{
    struct error why = {0};
    int status = join_check_device(m->comm, msg->rank, d, e);

    if (status == 0 && d->ops->number != FCC_DEVICE_CPU)
        status = gpus_session_open(s, e);
    if (status == 0 && d->ops->number != FCC_DEVICE_CPU)
        status = gpus_comm_open(&m->comm->dev, e);
    if (status)
        return status;
    if (device_memory_alloc(d, GPU_FLAG_WORDS * sizeof(uint64_t), &m->dev->flags, NULL, &why))
        return error_set(e, why.status, "rank %d: memory for flags: %s", msg->rank, why.text);
    m->state = MEMBER_JOINED;
    m->session = s;
    m->pid = s->pid;
    m->handle = ++s->last_handle;
    m->status_word = status_word_take(s);
    m->dev->device = d;
    m->join_id = msg->msg.id;
    m->arrived_ns = clock_ns();
    LIST_INSERT_HEAD(&s->members, m, link);
    m->comm->present++;
    m->comm->here++;
    return 0;
}

void comm_join_answer(struct member *m, int status, const char *text)
{
    struct fcc_comm_init_reply r = {.reply.msg = {.type = FCC_MSG_COMM_INIT | FCC_REPLY, .id = m->join_id},
                                    .reply.status = status,
                                    .comm = m->handle,
                                    .device = m->dev->device->index,
                                    .time_limit_ms = m->comm->dev.time_limit_ms,
                                    .device_kind = m->dev->device->ops->number,
                                    .status_word = m->status_word,
                                    .words_gpus = m->comm->dev.words_gpus};
    if (m->dev->device->ops->number != FCC_DEVICE_CPU)
        gpu_device_uuid(m->dev->device, r.device_uuid);
    if (status)
        text_copy(r.reply.text, sizeof(r.reply.text), text);
    session_reply(m->session, &r.reply, sizeof(r), NULL, 0);
}

/* Counts the communicator, and opens its flight recorder. */
static void comm_record(struct comm *c)
{
    struct flight_comm *f = c->flight = flight_open(c->worker, c->number, c->nranks);

    c->counted = true;
    METER_GAUGE(c->worker, communicators, 1);
    if (c->worker->meters)
        meter_add(&c->worker->meters->counters.formed, 1);
    if (!f)
        return;
    f->device_kind = c->dev.ops->number;
    f->here = (uint32_t)c->here;
    for (int r = 0; r < c->nranks && r < FLIGHT_RANKS; r++) {
        f->pids[r] = c->members[r].pid;
        f->remote |= (uint64_t)c->members[r].remote << r;
    }
}

void comm_active(struct comm *c)
{
    c->state = COMM_ACTIVE;
    comm_record(c);
    c->dev.words_gpus = gpus_words_of(&c->dev);
    bindings_end_beside(c);
    log_debug("comm %u: %d ranks have joined", c->number, c->nranks);
    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].remote)
            comm_join_answer(&c->members[r], 0, "");
    comm_deadline_set(c);
}

void comm_complete(struct comm *c)
{
    if (c->nodes)
        span(c)->form(c);
    else
        comm_active(c);
}

bool comm_is_complete(const struct comm *c)
{
    return c->present == c->nranks || (c->nodes && span(c)->has_formed(c));
}

/* Refuse a rank: tell it, the ranks that have joined, and those that will. root: the root's address, if it is another node. */
static void join_refuse(struct session *s, const struct fcc_comm_init_msg *m, struct comm *c, const char *root,
                        const struct error *e)
{
    struct worker *w = s->worker;

    session_reply_status(s, &m->msg, e->status, e->text);
    if (c && comm_is_complete(c))
        return;
    if (c) {
        comm_abort(c, e->status, "%s", e->text);
        comm_release(c);
    }
    if (root)
        w->span->deny(w, root, m, e);
    else if (c)
        unformed_told(w, &m->unique_id, m->rank);
    else
        unformed_note_rank(w, &m->unique_id, m->rank, m->time_limit_ms ? m->time_limit_ms : w->config.time_limit_ms, e);
}

/* The rank's own process has refused the call (proto.h). */
static int join_check_refused(const struct fcc_comm_init_msg *m, struct error *e)
{
    size_t bytes = m->msg.length - sizeof(*m);
    char text[FCC_TEXT_MAX];

    if (!m->refused)
        return 0;
    text_copy(text, bytes < sizeof(text) ? bytes + 1 : sizeof(text), (const char *)(m + 1));
    return error_set(e, -(int)(m->refused <= FCC_REFUSED_MAX ? m->refused : EPROTO), "rank %d: %.400s", m->rank,
                     text_clean(text));
}

void comm_join(struct session *s, const struct fcc_comm_init_msg *m)
{
    const struct joining who = {&m->unique_id, m->nranks, m->rank, m->time_limit_ms, s->pid, s->worker->node};
    struct worker *w = s->worker;
    struct comm *c = comm_find_forming(w, &m->unique_id);
    const char *root = NULL;
    struct device *d = NULL;
    struct error e = {0};
    bool meets_here =
        c && c->nodes &&
        span(c)->is_root(c); /* remote ranks have joined here, so this node is the root, whatever its address in the id */

    if (w->draining)
        (void)error_set(&e, -ESHUTDOWN, "%s", w->ending);
    if (e.status || (!meets_here && w->span->root(w, &m->unique_id, &root, &e))) {
        if (!w->draining)
            (void)join_check_args(&who, &e); /* wrong arguments are reported first */
        session_reply_status(s, &m->msg, e.status, e.text);
        return;
    }
    if (join_check_refused(m, &e) || join_check_args(&who, &e) || join_device(s, m, &d, &e) || (c && join_check(&who, c, &e))) {
        join_refuse(s, m, c, root, &e);
        return;
    }
    assert(d);
    if (!c && ((!root && unformed_tells(w, &m->unique_id, m->rank, &e)) || join_check_id(w, &who, &e))) {
        session_reply_status(s, &m->msg, e.status, e.text); /* no other rank waits for this one */
        return;
    }
    if (!c)
        c = comm_make(w, &who, d, &e);
    if (!c || member_open(&c->members[m->rank], s, m, d, &e)) {
        join_refuse(s, m, c, root, &e);
        return;
    }
    join_limit(c, who.time_limit_ms);
    if (root && span(c)->join(c, &c->members[m->rank], root, &e))
        comm_abort(c, e.status, "%s", e.text);
    else if (!root && c->present == c->nranks)
        comm_complete(c);
    comm_deadline_set(c);
    comm_release(c);
}
