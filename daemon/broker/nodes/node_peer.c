/* SPDX-License-Identifier: MIT
 *
 * node_peer.c - connections between the workers of a job on two nodes. The brokers connect, prove themselves, ask and answer;
 * then each passes its end of the connection to its own worker, as it does with a client's, and takes no further part.
 *
 * Order: the broker that was asked first passes its end to its worker, and then answers on its own copy of the socket. So the
 * worker that asked never gets a connection whose other end nobody has. As that worker sends first (control.h), nothing else is
 * on the connection while the broker answers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/nodes/node.h"
#include "daemon/broker/store.h"
#include "proto/base/log.h"

#define RETRY_MS 100      /* time between attempts to reach a broker that does not listen, as it may be restarting */
#define RETRY_FOR_MS 3000 /* how long such a broker is tried */
#define BUSY_DOUBLE 4 /* a broker that closes, or is full, is tried until the call's limit; this often the time is doubled */
#define CHANNEL_FULL_MS 5 /* when to try a worker again whose channel was full */

enum call_state {
    CALL_WAITS, /* waits for one of CALLS_AT_ONCE other calls to that node */
    CALL_TRIES, /* has a connection, or a timer for the next attempt */
    CALL_ANSWERED,
};

/* A worker's CONNECT until it is answered. Owned by nodes.calls. */
struct call {
    TAILQ_ENTRY(call) link;
    struct nodes *nodes;
    struct job *job;   /* the call is freed when the job is disconnected */
    struct user *user; /* the job's user */
    uint64_t id, since_ns, until_ns;
    char address[FCC_NODE_MAX];
    struct node_request request;
    enum call_state state;
    unsigned busy;            /* attempts that failed because the other broker was busy */
    struct conn *conn;        /* NULL between attempts */
    struct event timer;       /* WAITS: the time limit. TRIES: the next attempt. ANSWERED: when to send the answer again */
    int sock;                 /* ANSWERED: the connection, or -1 */
    struct incarnation at;    /* ANSWERED: the worker at the other end */
    char named[FCC_NODE_MAX]; /* ANSWERED: the name of the node that answered, if not `address` */
    struct error e;
};

static const struct conn_ops call_ops;

/* ---- asked for here ---- */

static int connected_send(const struct call *k)
{
    struct control_connected m = {.msg = {.type = CONTROL_CONNECTED, .id = k->id}, .status = k->e.status, .to = k->at};

    memcpy(m.named, k->named, sizeof(m.named));
    text_copy(m.text, sizeof(m.text), k->e.text);
    return channel_try(k->job, &m.msg, sizeof(m), k->sock);
}

static void call_free(struct call *k)
{
    TAILQ_REMOVE(&k->nodes->calls, k, link);
    k->user->calls--;
    user_put(k->user);
    if (k->conn)
        (void)conn_release(k->conn, false);
    if (k->state == CALL_TRIES)
        calls_next(k->nodes, k->address);
    fd_close(&k->sock);
    event_stop(&k->timer);
    free(k);
}

/* Sends the worker k->e or k->sock. Then frees the call; if the worker's channel is full, tries again later. */
static void call_answer(struct call *k)
{
    struct job *j = k->job;
    int status = connected_send(k);

    k->state = CALL_ANSWERED;
    if (channel_is_full(status)) {
        (void)event_add_ms(&k->timer, CHANNEL_FULL_MS);
        return;
    }
    if (!status && k->sock >= 0)
        k->nodes->peers_out++;
    call_free(k);
    if (status)
        job_disconnect(j);
}

static void call_fail(struct call *k, int status, const char *text)
{
    /* That the node would not says more than that time ran out in the next attempt. */
    if (status != -ETIMEDOUT || k->e.status != -EAGAIN)
        (void)error_set(&k->e, status, "node %s: %s", k->address, text);
    job_log(LOG_LEVEL_INFO, k->job, "%s", k->e.text);
    call_answer(k);
}

/* The attempt has failed. Tries again if the cause may be temporary and there is time left; otherwise tells the worker. May
 * free the call. */
static void call_retry(struct call *k, const struct error *why)
{
    uint64_t now = clock_ns();
    bool busy = why->status == -EAGAIN || why->status == -ECONNRESET;
    uint32_t ms = RETRY_MS << (busy ? k->busy : 0);
    bool may_pass = busy || (why->status == -ECONNREFUSED && now - k->since_ns < RETRY_FOR_MS * 1000000ull);

    calls_next(k->nodes, k->address);
    if (!may_pass || now + ms * 1000000ull >= k->until_ns) {
        call_fail(k, why->status, why->text);
        return;
    }
    k->busy += busy && k->busy < BUSY_DOUBLE;
    if (why->status == -EAGAIN)
        (void)error_set(&k->e, why->status, "node %s: %s", k->address, why->text);
    (void)event_add_ms(&k->timer, ms);
}

/* Are CALLS_AT_ONCE connections to that node being made? This is called once for each attempt, so walking over all calls is
 * fine. */
static bool call_must_wait(const struct call *k)
{
    const struct call *other;
    unsigned n = 0;

    TAILQ_FOREACH(other, &k->nodes->calls, link)
        n += other->conn && other->conn->state < CONN_ASKING && !strcmp(other->address, k->address);
    return n >= CALLS_AT_ONCE;
}

static void call_try(struct call *k)
{
    uint64_t now = clock_ns();
    struct error e;

    if (call_must_wait(k)) {
        k->state = CALL_WAITS;
        (void)event_add_ms(&k->timer, k->until_ns > now ? (uint32_t)((k->until_ns - now) / 1000000u) : 0);
        return;
    }
    k->state = CALL_TRIES;
    if (conn_open(k->nodes, k->address, &k->request, k->until_ns, k->request.uid, &call_ops, k, &k->conn, &e))
        call_retry(k, &e);
}

static void on_timer(evutil_socket_t sock, short what, void *arg)
{
    char text[96];
    struct call *k = arg;

    (void)sock, (void)what;
    switch (k->state) {
    case CALL_WAITS:
        (void)snprintf(text, sizeof(text), "%d other connections are being made to it, and it proved itself on none in time",
                       CALLS_AT_ONCE);
        call_fail(k, -ETIMEDOUT, text);
        return;
    case CALL_TRIES:
        call_try(k);
        return;
    case CALL_ANSWERED:
        call_answer(k);
        return;
    }
}

void calls_next(struct nodes *ns, const char *address)
{
    struct call *k;

    TAILQ_FOREACH(k, &ns->calls, link)
        if (k->state == CALL_WAITS && !strcmp(k->address, address))
            break;
    if (!k)
        return;
    k->state = CALL_TRIES;
    (void)event_add_ms(&k->timer, 0);
}

/* The other node's worker has its end of the connection: gives the other end to this node's worker. */
static void call_answered(struct conn *c)
{
    struct call *k = c->owner;

    k->conn = NULL;
    k->at = c->at;
    k->e.status = 0; /* of an earlier attempt */
    k->sock = conn_release(c, true);
    (void)node_know(k->nodes, k->address); /* only now, as a worker may name any address */
    log_debug("job %u/%s: connected to node %s", k->job->uid, k->job->name, k->address);
    call_answer(k);
}

static void call_ended(struct conn *c, const struct error *why)
{
    struct call *k = c->owner;

    k->conn = NULL;
    if (c->state == CONN_PROVING && why->status == -EADDRNOTAVAIL) /* the node has proven itself under another name */
        text_copy(k->named, sizeof(k->named), auth_other(&c->auth));
    if (conn_refused(c, why))
        nodes_complain(k->nodes, k->address, why);
    call_retry(k, why);
}

static const struct conn_ops call_ops = {.answered = call_answered, .ended = call_ended};

static int call_check(const struct job *j, const struct control_connect *m, struct error *e)
{
    const struct nodes *ns = j->broker->nodes;

    if (!memchr(m->address, 0, sizeof(m->address)))
        return error_set(e, -EINVAL, "node: allowed is " ADDRESS_ALLOWED);
    int status = node_check(ns, m->address, e);
    if (!status && (m->limit_ms == 0 || m->limit_ms > CALL_MAX_MS))
        return error_set(e, -EINVAL, "node %s: limit of %u ms: allowed are 1 to %u", m->address, m->limit_ms, CALL_MAX_MS);
    const struct user *u = user_find(j->broker, j->uid);
    if (!status && u && u->calls >= CALLS_MAX)
        return error_set(e, -EAGAIN, "node %s: %d connections are being made for uid %u already", m->address, CALLS_MAX,
                         j->uid);
    return status;
}

static struct call *call_new(struct job *j, const struct control_connect *m)
{
    struct nodes *ns = j->broker->nodes;
    struct call *k = calloc(1, sizeof(*k));
    struct user *u = k ? user_get(j->broker, j->uid) : NULL;

    if (!u) {
        free(k);
        return NULL;
    }
    *k = (struct call){.nodes = ns, .job = j, .user = u, .id = m->msg.id, .since_ns = clock_ns(), .sock = -1};
    k->until_ns = k->since_ns + m->limit_ms * 1000000ull;
    k->request = (struct node_request){
        .what = NODE_PEER, .uid = j->uid, .purpose = m->purpose, .limit_ms = m->limit_ms, .from = j->worker, .to = m->to};
    memcpy(k->request.job, j->name, sizeof(k->request.job));
    text_copy(k->address, sizeof(k->address), m->address);
    (void)evtimer_assign(&k->timer, ns->broker->base, on_timer, k);
    u->calls++;
    TAILQ_INSERT_TAIL(&ns->calls, k, link);
    return k;
}

void job_connect(struct job *j, const struct control_connect *m)
{
    struct call refused = {.job = j, .id = m->msg.id, .sock = -1}, *k;
    struct error *e = &refused.e;

    if (!call_check(j, m, e)) {
        k = call_new(j, m);
        if (k) {
            call_try(k);
            return;
        }
        (void)error_set(e, -ENOMEM, "node %s: out of memory", m->address);
    }
    if (connected_send(&refused))
        job_disconnect(j); /* the worker does not read its answers */
}

void job_peers_forget(struct job *j)
{
    struct call *k, *next;

    if (!j->broker->nodes)
        return;
    TAILQ_FOREACH_SAFE(k, &j->broker->nodes->calls, link, next) {
        if (k->job == j)
            call_free(k);
    }
}

void calls_end(struct nodes *ns)
{
    struct call *k, *next;

    TAILQ_FOREACH_SAFE(k, &ns->calls, link, next) {
        if (k->state != CALL_ANSWERED)
            (void)error_set(&k->e, -ESHUTDOWN, "node %s: this fccd is shutting down", k->address);
        if (!ns->broker->leaving)    /* otherwise the worker asks the next broker again */
            (void)connected_send(k); /* if the channel is full, no matter: the worker is about to be drained */
        call_free(k);
    }
}

/* ---- asked for elsewhere ---- */

static void on_deliver_again(evutil_socket_t sock, short what, void *arg)
{
    struct nodes *ns = arg;
    struct job *j;

    (void)sock, (void)what;
    LIST_FOREACH(j, &ns->broker->jobs, link)
        if (!j->retired)
            job_peers_deliver(j);
}

static int deliver_again(struct nodes *ns)
{
    if (!event_initialized(&ns->deliver_again))
        (void)evtimer_assign(&ns->deliver_again, ns->broker->base, on_deliver_again, ns);
    return event_add_ms(&ns->deliver_again, CHANNEL_FULL_MS);
}

static void hold_refuse(struct conn *c, int status, const char *text)
{
    (void)conn_answer(c, status, text);
    conn_end(c, status, "%s", text);
}

/* Was the connection asked for a worker that is gone? Then refuses and frees it. j: the job, or NULL if it has no worker. */
static bool peer_refuse_stale(struct conn *c, const struct job *j)
{
    if (c->request.to.number == 0 || (j && incarnation_same(&j->worker, &c->request.to)))
        return false;
    hold_refuse(c, -ESTALE, "the job's process there that was asked for is gone");
    return true;
}

/* Hands the connection to the worker, or refuses it; frees it. Returns false if it remains held: the worker is dying, or its
 * channel is full. */
static bool peer_deliver(struct conn *c, struct job *j)
{
    struct control_peer m = {.msg = {.type = CONTROL_PEER}, .from = c->request.from, .purpose = c->request.purpose};

    if (peer_refuse_stale(c, j))
        return true;
    if (j->asked) /* job_adopted() delivers it */
        return false;
    text_copy(m.address, sizeof(m.address), c->who);
    int status = channel_try(j, &m.msg, sizeof(m), c->sock);
    if (status == -EPIPE || status == -ECONNRESET)
        return false;
    if (channel_is_full(status) && !deliver_again(c->nodes)) {
        log_debug("job %u/%s: its worker's channel is full; node %s waits", j->uid, j->name, c->who);
        return false;
    }
    if (status) {
        char text[FCC_TEXT_MAX];
        (void)snprintf(text, sizeof(text), "job %u/%s: its worker there does not take connections: %s", j->uid, j->name,
                       strerror(-status));
        hold_refuse(c, status, text);
        return true;
    }
    j->handed++;
    c->at = j->worker;
    status = conn_answer(c, 0, "");
    j->answered++;
    store_job_answered(j); /* a broker that dies before this has left the connection in doubt: control.h */
    if (status)
        (void)shutdown(c->sock, SHUT_RDWR); /* so that the worker sees the connection's end */
    else
        c->nodes->peers_in++;
    log_debug("job %u/%s: node %s is connected to its worker", j->uid, j->name, c->who);
    (void)conn_release(c, false);
    return true;
}

/* Counts the held connection for its user, unless the user has too many. */
static int hold_begin(struct conn *c, struct error *e)
{
    struct user *u = user_get(c->nodes->broker, c->request.uid);

    if (!u)
        return error_set(e, -ENOMEM, "that node's fccd is out of memory");
    if (u->held >= HELD_MAX)
        return error_set(e, -EAGAIN, "uid %u has %d connections there already that wait for processes of its jobs", u->uid,
                         HELD_MAX);
    u->held++;
    c->user = u;
    return 0;
}

void peer_hold(struct conn *c)
{
    struct broker *b = c->nodes->broker;
    struct error e = {0};

    c->state = CONN_HELD;
    if (geteuid() != 0 && c->request.uid != geteuid())
        (void)error_set(&e, -EPERM, "that node's fccd runs as uid %u and serves that user only, not uid %u", geteuid(),
                        c->request.uid);
    if (e.status || hold_begin(c, &e)) {
        hold_refuse(c, e.status, e.text);
        return;
    }
    conn_limit(c, c->request.limit_ms);
    struct job *j = job_find(b, c->request.uid, c->request.job);
    if (j)
        (void)peer_deliver(c, j);
    else if (!peer_refuse_stale(c, NULL))
        log_debug("job %u/%s: the connection of node %s waits for a worker", c->request.uid, c->request.job, c->who);
}

void job_peers_deliver(struct job *j)
{
    struct conn *c, *next;
    bool takes = true;

    if (!j->broker->nodes || j->control < 0)
        return;
    for (c = TAILQ_FIRST(&j->broker->nodes->conns); c && takes; c = next) {
        next = TAILQ_NEXT(c, link);
        if (c->state == CONN_HELD && c->request.uid == j->uid && !strcmp(c->request.job, j->name))
            takes = peer_deliver(c, j);
    }
}

int job_meeting(const struct job *j, struct control_start *start)
{
    const struct broker *b = j->broker;

    memcpy(start->node, b->config.node_address, sizeof(start->node));
    if (b->nodes)
        return auth_meeting_key(&b->nodes->key, j->uid, j->name, start->meeting_key);
    return getrandom(start->meeting_key, sizeof(start->meeting_key), 0) == sizeof(start->meeting_key) ? 0 : -EIO;
}
