/* SPDX-License-Identifier: MIT
 *
 * join.c - communicators: how they begin, and who has joined.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/nodes/nodes.h"
#include "daemon/worker/nodes/unformed.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"

/* What a rank says of the communicator when it joins. */
struct joining {
    const struct fcc_unique_id *unique_id;
    int nranks, rank;
    uint32_t time_limit_ms;
    pid_t pid;
    const char *address; /* of the node that it is on; "": this one speaks to no other */
};

static struct comm *comm_new(struct worker *w, const struct joining *m, struct device *d, struct error *e)
{
    struct comm *c = calloc(1, sizeof(*c) + (size_t)m->nranks * sizeof(c->members[0]));
    struct device_rank *ranks = calloc((size_t)m->nranks, sizeof(*ranks));

    if (!c || !ranks || d->ops->comm_open(d, &c->dev, e)) {
        if (!c || !ranks)
            (void)error_set(e, -ENOMEM, "no memory for a communicator");
        free(ranks);
        free(c);
        return NULL;
    }
    c->worker = c->dev.worker = w;
    c->nranks = c->dev.nranks = m->nranks;
    c->dev.ops = d->ops;
    c->dev.ranks = ranks;
    c->unique_id = *m->unique_id;
    c->dev.time_limit_ms = m->time_limit_ms ? m->time_limit_ms : w->config.time_limit_ms;
    c->problem = calloc(1, sizeof(*c->problem));
    c->tune = tune_new();
    c->timer = evtimer_new(w->base, comm_deadline_passed, c);
    LIST_INIT(&c->trace_waiters);
    if (!c->problem || !c->tune || !c->timer) {
        if (c->timer)
            event_free(c->timer);
        free(c->tune);
        free(c->problem);
        d->ops->comm_close(d, &c->dev);
        free(ranks);
        free(c);
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

static struct comm *comm_find(const struct worker *w, const struct fcc_unique_id *id)
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
    const char *first = !m->remote ? c->worker->node : m->peer ? m->peer->address : "";

    return error_set(e, -EALREADY, "rank %d: has joined already, as pid %d%s%s; and now as pid %d%s%s", rank, m->pid,
                     *first ? " on node " : "", first, pid, *address ? " on node " : "", address);
}

/* The ranks may ask for different limits, or their nodes may have different ones: the shortest holds for all. */
static void limit_join(struct comm *c, uint32_t asked_ms)
{
    uint32_t limit_ms = asked_ms ? asked_ms : c->worker->config.time_limit_ms;

    if (limit_ms < c->dev.time_limit_ms)
        comm_limit_set(c, limit_ms);
}

/* No communicator with this id forms here: does one run, or wait for its ranks to let it go? */
static int id_check(const struct worker *w, const struct joining *m, struct error *e)
{
    const struct comm *c;

    LIST_FOREACH(c, &w->comms, link) {
        if (nodes_number(&c->unique_id) != nodes_number(m->unique_id))
            continue;
        if (memcmp(&c->unique_id, m->unique_id, sizeof(*m->unique_id)) != 0) /* between nodes the two would be the same */
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

/* Has that worker a rank that has joined here, and calls its communicator so? */
static bool has_joined(const struct comm *c, const struct peer *p, uint32_t comm_there)
{
    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].peer == p && c->members[r].comm_there == comm_there)
            return true;
    return false;
}

struct comm *comm_find_addressed(const struct worker *w, const struct peer *p, const struct peer_msg *m)
{
    struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->nodes && c->nodes->number == m->comm && c->state != COMM_ABORTED &&
            (m->to ? m->to == c->number : has_joined(c, p, m->from)))
            return c;
    return NULL;
}

struct comm *comm_find_own(const struct worker *w, uint32_t number)
{
    struct comm *c;

    LIST_FOREACH(c, &w->comms, link)
        if (c->number == number)
            return c;
    return NULL;
}

static int join_check_args(const struct joining *m, struct error *e)
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

/* Against the ranks that have joined. */
static int join_check(const struct joining *m, const struct comm *c, struct error *e)
{
    if (m->nranks != c->nranks)
        return error_set(e, -EINVAL, "rank %d: nranks: %d: the ranks that joined before have %d", m->rank, m->nranks,
                         c->nranks);
    return c->members[m->rank].state == MEMBER_ABSENT ? 0 : joined_twice(c, m->rank, m->pid, m->address, e);
}

/* The device that a rank asks for. */
static int join_device(struct worker *w, const struct fcc_comm_init_msg *m, struct device **out, struct error *e)
{
    struct device *devices = w->devices;
    struct error why = {0};
    int n = w->ndevices;

    if (m->device_kind > FCC_DEVICE_CUDA)
        return error_set(e, -EINVAL, "rank %d: device_kind: %u: allowed are %d to %d", m->rank, m->device_kind, FCC_DEVICE_CPU,
                         FCC_DEVICE_CUDA);
    if (m->device_kind != FCC_DEVICE_CPU && gpus_find(w, (enum fcc_device_kind)m->device_kind, &devices, &n, &why))
        return error_set(e, why.status, "rank %d: device_kind: %s", m->rank, why.text);
    if (m->device < -1 || m->device >= n)
        return error_set(e, m->device < -1 ? -EINVAL : -ENOENT, "rank %d: device: %d: allowed are -1 to %d", m->rank, m->device,
                         n - 1);
    *out = &devices[m->device >= 0 ? m->device : m->rank % n];
    return device_open(*out, e);
}

/* A rank's device against those of the ranks that have joined before. */
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

void comm_active(struct comm *c)
{
    c->state = COMM_ACTIVE;
    c->dev.words_gpus = gpus_words_of(&c->dev);
    log_debug("comm %u: %d ranks have joined", c->number, c->nranks);
    for (int r = 0; r < c->nranks; r++)
        if (!c->members[r].remote)
            comm_join_answer(&c->members[r], 0, "");
    comm_deadline_set(c);
}

void comm_complete(struct comm *c)
{
    if (c->nodes)
        nodes_form(c);
    else
        comm_active(c);
}

/* All its ranks have joined, so nobody waits for another. */
static bool is_complete(const struct comm *c)
{
    return c->present == c->nranks || (c->nodes && c->nodes->formed);
}

/* The rank may not join. It is told, and so are all that have joined or come yet. root: where they meet, if that is another node. */
static void join_refuse(struct session *s, const struct fcc_comm_init_msg *m, struct comm *c, const char *root,
                        const struct error *e)
{
    struct worker *w = s->worker;

    session_reply_status(s, &m->msg, e->status, e->text);
    if (c && is_complete(c))
        return;
    if (c) {
        comm_abort(c, e->status, "%s", e->text);
        comm_release(c);
    }
    if (root)
        nodes_deny(w, root, m, e);
    else if (c)
        unformed_told(w, &m->unique_id, m->rank);
    else
        unformed_note(w, &m->unique_id, rank_bit(m->rank), m->time_limit_ms ? m->time_limit_ms : w->config.time_limit_ms, e);
}

/* What its own process has refused (proto.h). */
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
    struct comm *c = comm_find(w, &m->unique_id);
    const char *root = NULL;
    struct device *d = NULL;
    struct error e = {0};
    bool meets_here = c && c->nodes && !c->nodes->root; /* others have come, so it is not elsewhere, whatever it is called */

    if (w->draining)
        (void)error_set(&e, -ESHUTDOWN, "%s", w->ending);
    if (e.status || (!meets_here && nodes_root(w, &m->unique_id, &root, &e))) {
        if (!w->draining)
            (void)join_check_args(&who, &e); /* what is wrong with the call is told first */
        session_reply_status(s, &m->msg, e.status, e.text);
        return;
    }
    if (join_check_refused(m, &e) || join_check_args(&who, &e) || join_device(w, m, &d, &e) || (c && join_check(&who, c, &e))) {
        join_refuse(s, m, c, root, &e);
        return;
    }
    assert(d);
    if (!c && ((!root && unformed_tells(w, &m->unique_id, m->rank, &e)) || id_check(w, &who, &e))) {
        session_reply_status(s, &m->msg, e.status, e.text); /* nobody waits for it */
        return;
    }
    if (!c)
        c = comm_new(w, &who, d, &e);
    if (!c || member_open(&c->members[m->rank], s, m, d, &e)) {
        join_refuse(s, m, c, root, &e);
        return;
    }
    limit_join(c, who.time_limit_ms);
    if (root && nodes_join(c, &c->members[m->rank], root, &e))
        comm_abort(c, e.status, "%s", e.text);
    else if (!root && c->present == c->nranks)
        comm_complete(c);
    comm_deadline_set(c);
    comm_release(c);
}

/* A device like that of a rank on another node. All ranks' are of one kind. A GPU need not be open: no rank is on it. */
static int join_remote_device(struct worker *w, const struct peer_join *m, const struct comm *c, struct device **out,
                              struct error *e)
{
    struct device *devices = w->devices;
    struct error why = {0};
    int n;

    if (m->device_kind != FCC_DEVICE_CPU &&
        (m->device_kind > FCC_DEVICE_CUDA || gpus_find(w, (enum fcc_device_kind)m->device_kind, &devices, &n, &why)))
        return error_set(e, why.status ? why.status : -EINVAL, "rank %d: device_kind: on node %s, where the ranks meet: %s",
                         m->rank, w->node, why.status ? why.text : "unknown");
    if (c && c->dev.ops != devices->ops)
        return error_set(e, -EINVAL, "rank %d: device_kind: %s: the ranks that joined before are on %s", m->rank,
                         devices->ops->kind, c->dev.ops->kind);
    *out = devices;
    return m->device_kind == FCC_DEVICE_CPU ? device_open(devices, e) : 0;
}

/* What keeps it from joining here and is of no concern to others: 0, or the reason. */
static int join_remote_check_here(struct worker *w, const struct joining *who, const struct comm *c, struct error *e)
{
    if (w->draining)
        return error_set(e, -ESHUTDOWN, "%s", w->ending);
    if (!c && (unformed_tells(w, who->unique_id, who->rank, e) || id_check(w, who, e)))
        return e->status;
    if (w->control < 0 && !(c && c->here)) /* no client comes any more */
        return error_set(e, -ESTALE, "the job's process there is one of an fccd that is gone: it takes nothing new");
    return 0;
}

/* The same at the root for a rank on another node. */
static void join_remote_refuse(struct worker *w, const struct fcc_unique_id *id, int rank, struct comm *c,
                               const struct error *e)
{
    if (!c) {
        unformed_note(w, id, rank_bit(rank), w->config.time_limit_ms, e);
    } else if (!is_complete(c)) {
        comm_abort(c, e->status, "%s", e->text);
        comm_release(c);
        unformed_told(w, id, rank);
    }
}

void comm_deny_remote(struct peer *p, const struct peer_deny *m)
{
    bool named = strstr(m->text, " on node ") != NULL;
    struct error e;

    (void)error_set(&e, m->status < 0 ? m->status : -EPROTO, "%.400s%s%s%s", m->text, named ? "" : " (node ",
                    named ? "" : p->address, named ? "" : ")");
    (void)text_clean(e.text);
    join_remote_refuse(p->worker, &m->unique_id, m->rank, comm_find(p->worker, &m->unique_id), &e);
}

void comm_deny(struct comm *c, int rank, const struct error *e)
{
    const struct fcc_unique_id id = c->unique_id; /* which outlives it */

    join_remote_refuse(c->worker, &id, rank, c, e);
}

void comm_join_remote(struct peer *p, const struct peer_join *m)
{
    const struct joining who = {&m->unique_id, m->nranks, m->rank, m->time_limit_ms, m->pid, p->address};
    struct worker *w = p->worker;
    struct comm *c = comm_find(w, &m->unique_id);
    struct device *d = NULL;
    struct error e = {0};
    int status = join_check_args(&who, &e);

    if (!status && join_remote_check_here(w, &who, c, &e)) {
        nodes_refuse(p, m, &e);
        return;
    }
    if (!status && c)
        status = join_check(&who, c, &e);
    if (!status)
        status = join_remote_device(w, m, c, &d, &e);
    assert(status || d);
    if (!status && !c && !(c = comm_new(w, &who, d, &e)))
        status = e.status;
    if (!status)
        status = nodes_begin(c, NULL, &e);
    if (status) {
        nodes_refuse(p, m, &e);
        join_remote_refuse(w, &m->unique_id, m->rank, c, &e);
        return;
    }
    assert(c);
    struct member *member = &c->members[m->rank];
    member->remote = true;
    member->peer = p;
    member->comm_there = m->msg.from;
    member->pid = m->pid;
    member->state = MEMBER_JOINED;
    member->arrived_ns = clock_ns();
    c->present++;
    limit_join(c, m->time_limit_ms);
    nodes_joined(c, p, m);
    if (c->present == c->nranks &&
        !c->nodes->root) /* otherwise it is not known yet that the root is here: under another name */
        comm_complete(c);
    comm_deadline_set(c);
    comm_release(c);
}
