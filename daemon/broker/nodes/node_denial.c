/* SPDX-License-Identifier: MIT
 *
 * node_denial.c - denials (denial.h). Those of workers here are sent to the brokers of other nodes. Those from other nodes are
 * handed to the workers here, which verify them.
 *
 * The receiving broker stores nothing of a denial, as anybody may send one. A denial may arrive before the worker there, or the
 * communicator, exists. So it is sent repeatedly, for as long as the ranks there may wait. The receiver never answers, whether
 * it accepts a denial or not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/broker/nodes/node.h"
#include "proto/base/log.h"

#define TELLINGS_OF_USER 16 /* denials of one user that are being sent */
#define TELL_FIRST_MS 500   /* time between two attempts to send a denial; doubled each time */
#define TELL_LAST_MS 2000
#define HEARD_PER_SECOND 64 /* received denials that are handed to workers, from all senders; the others will be sent again */
#define SECOND_NS 1000000000ull

/* A denial that is being sent. Owned by nodes.tellings. May outlive the worker that made it. */
struct telling {
    TAILQ_ENTRY(telling) link;
    struct nodes *nodes;
    struct user *user;
    char address[FCC_NODE_MAX];
    struct denial denial;
    uint64_t until_ns;
    uint32_t again_ms;
    struct conn *conn; /* NULL between attempts */
    struct event timer;
};

static void telling_free(struct telling *t)
{
    TAILQ_REMOVE(&t->nodes->tellings, t, link);
    t->user->tellings--;
    user_put(t->user);
    if (t->conn)
        (void)conn_release(t->conn, false);
    event_stop(&t->timer);
    free(t);
}

void tellings_end(struct nodes *ns)
{
    struct telling *t, *next;

    TAILQ_FOREACH_SAFE(t, &ns->tellings, link, next)
        telling_free(t);
}

/* ---- telling ---- */

static void telling_wait(struct telling *t)
{
    if (clock_ns() + t->again_ms * 1000000ull >= t->until_ns || event_add_ms(&t->timer, t->again_ms))
        telling_free(t);
    else
        t->again_ms = 2 * t->again_ms < TELL_LAST_MS ? 2 * t->again_ms : TELL_LAST_MS;
}

static void telling_ended(struct conn *c, const struct error *why)
{
    struct telling *t = c->owner;

    log_debug("node %s: to be told that a rank of job %u/%s cannot join: %s", t->address, t->user->uid, t->denial.job,
              why->text);
    t->conn = NULL;
    if (why->status == -EPERM) /* the user may not make this broker connect there */
        telling_free(t);
    else
        telling_wait(t);
}

static const struct conn_ops telling_ops = {.ended = telling_ended};

static void on_timer(evutil_socket_t sock, short what, void *arg)
{
    const struct node_request none = {.what = NODE_PEER};
    struct telling *t = arg;
    struct error e;

    (void)sock, (void)what;
    if (conn_open(t->nodes, t->address, &none, 0, t->user->uid, &telling_ops, t, &t->conn, &e))
        telling_wait(t);
    else
        t->conn->denial = &t->denial;
}

/* Checks a DENY. The worker runs as its user, so it may send denials for that user's job only. */
static bool deny_is_good(const struct job *j, const struct control_deny *m)
{
    const struct denial *d = &m->denial;
    const struct user *u = user_find(j->broker, j->uid);
    struct error ignored;

    return memchr(m->address, 0, sizeof(m->address)) && !node_check(j->broker->nodes, m->address, &ignored) &&
           m->limit_ms <= CALL_MAX_MS && d->uid == j->uid && memchr(d->job, 0, sizeof(d->job)) && !strcmp(d->job, j->name) &&
           !(u && u->tellings >= TELLINGS_OF_USER);
}

void job_deny(struct job *j, const struct control_deny *m)
{
    struct nodes *ns = j->broker->nodes;
    struct telling *t = deny_is_good(j, m) ? calloc(1, sizeof(*t)) : NULL;
    struct user *u = t ? user_get(j->broker, j->uid) : NULL;

    if (!u) {
        free(t);
        return; /* the other ranks will time out */
    }
    *t = (struct telling){.nodes = ns,
                          .user = u,
                          .denial = m->denial,
                          .until_ns = clock_ns() + m->limit_ms * 1000000ull,
                          .again_ms = TELL_FIRST_MS};
    t->denial.header = denial_header();
    text_copy(t->address, sizeof(t->address), m->address);
    (void)evtimer_assign(&t->timer, ns->broker->base, on_timer, t);
    u->tellings++;
    TAILQ_INSERT_TAIL(&ns->tellings, t, link);
    if (event_add_ms(&t->timer, 0))
        telling_free(t);
}

/* ---- hearing ---- */

bool denial_begins(struct conn *c)
{
    const struct auth_header header = denial_header();

    if (c->ours || c->denies || c->auth.state != AUTH_HEADER || memcmp(c->in, &header, sizeof(header)) != 0)
        return false;
    c->denies = true;
    c->want = sizeof(struct denial) - sizeof(header);
    return true;
}

static bool may_be_heard(struct nodes *ns)
{
    uint64_t now = clock_ns();

    if (now - ns->denials_since_ns >= SECOND_NS) {
        ns->denials_since_ns = now;
        ns->ndenials = 0;
    }
    return ns->ndenials++ < HEARD_PER_SECOND;
}

void denial_hear(struct conn *c)
{
    struct control_denied m = {.msg = {.type = CONTROL_DENIED}, .denial = {.header = denial_header()}};
    struct nodes *ns = c->nodes;
    struct job *j;

    log_debug("node %s: it says, without proof, that a rank cannot join", c->who);
    memcpy((unsigned char *)&m.denial + sizeof(m.denial.header), c->in, sizeof(m.denial) - sizeof(m.denial.header));
    if (memchr(m.denial.job, 0, sizeof(m.denial.job)) && may_be_heard(ns) &&
        (j = job_find(ns->broker, m.denial.uid, m.denial.job)))
        (void)channel_try(j, &m.msg, sizeof(m), -1); /* if the channel is full, the denial will be sent again */
    (void)conn_release(c, false);
}
