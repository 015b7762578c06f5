/* SPDX-License-Identifier: MIT
 *
 * deny.c - a rank here cannot join a communicator that forms on another node: its ranks are told. Over the connection to the worker
 * there (DENY) if there can be one; otherwise by a denial (denial.h).
 */
#include <errno.h>
#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/engine/channel.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/base/log.h"

/* ---- denials from here ---- */

/* Sends the root a denial: this rank of the communicator with this id was refused here. */
static void denial_send(struct worker *w, const char *root, const struct fcc_unique_id *id, int rank, uint32_t limit_ms,
                        const struct error *why)
{
    struct control_deny m = {.msg = {.type = CONTROL_DENY}, .limit_ms = limit_ms, .denial = {.uid = w->uid}};
    struct denial *d = &m.denial;

    if (w->control < 0)
        return;
    d->rank = rank;
    d->status = why->status;
    text_copy(d->text, sizeof(d->text), why->text);
    memcpy(d->job, w->job, sizeof(d->job));
    text_copy(m.address, sizeof(m.address), root);
    if (!denial_seal(d, id))
        (void)control_send(w, &m.msg, sizeof(m));
}

/* Sends the denial that a DENY message asks for. Its text names the rank; the rank's node, which a receiver of DENY knows,
 * is added. */
static void denial_send_deny(struct worker *w, const char *root, const struct peer_deny *d, uint32_t limit_ms)
{
    struct error why;

    (void)error_set(&why, d->status, "%.400s (node %s)", d->text, w->node);
    denial_send(w, root, &d->unique_id, d->rank, limit_ms, &why);
}

void nodes_deny(struct worker *w, const char *root, const struct fcc_comm_init_msg *m, const struct error *e)
{
    struct peer_deny d = {.unique_id = m->unique_id, .rank = m->rank, .status = e->status};
    struct error ignored = {0};
    struct peer *p = peer_get(w, root, NULL, &ignored);

    text_copy(d.text, sizeof(d.text), e->text);
    if (p)
        peer_send(p, &d.msg, id_number(&m->unique_id), PEER_DENY, sizeof(d));
    else
        denial_send_deny(w, root, &d, m->time_limit_ms ? m->time_limit_ms : w->config.time_limit_ms);
}

void nodes_deny_rank(const struct member *m, const char *root, const struct error *e)
{
    const struct comm *c = m->comm;
    struct error why;

    (void)error_set(&why, e->status, "rank %d on node %s cannot join: %.380s", m->rank, c->worker->node, e->text);
    denial_send(c->worker, root, &c->unique_id, m->rank, c->dev.time_limit_ms, &why);
}

void nodes_deny_unsaid(const struct peer *p)
{
    struct evbuffer_ptr at;
    struct peer_deny d;
    struct peer_msg m;

    (void)evbuffer_ptr_set(p->waiting, &at, 0, EVBUFFER_PTR_SET);
    while (evbuffer_copyout_from(p->waiting, &at, &m, sizeof(m)) == (ssize_t)sizeof(m)) {
        if (m.type == PEER_DENY && evbuffer_copyout_from(p->waiting, &at, &d, sizeof(d)) == (ssize_t)sizeof(d))
            denial_send_deny(p->worker, p->address, &d, p->worker->config.time_limit_ms);
        if (evbuffer_ptr_set(p->waiting, &at, m.length, EVBUFFER_PTR_ADD))
            break;
    }
}

/* ---- denials from elsewhere ---- */

/* Has it been taken before? It has now. */
static bool denial_is_old(struct worker *w, const struct denial *d)
{
    for (int i = 0; i < DENIALS_KEPT; i++)
        if (!memcmp(w->denials[i], d->nonce, sizeof(d->nonce)))
            return true;
    memcpy(w->denials[w->ndenials++ % DENIALS_KEPT], d->nonce, sizeof(d->nonce));
    return false;
}

void nodes_denial_heard(struct worker *w, const struct control_denied *m)
{
    struct denial d;
    struct comm *c;
    struct error e;

    LIST_FOREACH(c, &w->comms, link) {
        d = m->denial;
        if (c->state == COMM_FORMING && (!c->nodes || !c->nodes->root) && denial_open(&d, &c->unique_id))
            break;
    }
    if (!c || denial_is_old(w, &d))
        return;
    (void)error_set(&e, d.status < 0 && d.status >= -FCC_REFUSED_MAX ? d.status : -EPROTO, "%s", text_clean(d.text));
    log_warning("comm %u: %s", c->number, e.text);
    nodes_comm_deny(c, d.rank, &e);
}
