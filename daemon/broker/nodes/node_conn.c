/* SPDX-License-Identifier: MIT
 *
 * node_conn.c - the protocol on a TCP connection between two brokers. It reads no more than the expected message, whose size is
 * fixed in every state, because what follows may be for a worker.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/nodes/node.h"
#include "proto/base/log.h"

static void on_readable(evutil_socket_t sock, short what, void *arg);
static void on_writable(evutil_socket_t sock, short what, void *arg);
static void on_limit(evutil_socket_t sock, short what, void *arg);

/* ---- life ---- */

struct conn *conn_new(struct nodes *ns, const struct conn_ops *ops, void *owner, bool ours)
{
    struct conn *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    *c = (struct conn){.nodes = ns, .ops = ops, .owner = owner, .ours = ours, .sock = -1, .awaited_ns = clock_ns()};
    (void)evtimer_assign(&c->limit, ns->broker->base, on_limit, c);
    TAILQ_INSERT_TAIL(&ns->conns, c, link);
    ns->nguests += !ours;
    ns->nstrangers += !ours;
    c->state = CONN_PROVING;
    return c;
}

bool conn_is_stranger(const struct conn *c)
{
    return !c->ours && c->state == CONN_PROVING;
}

void conn_state_set(struct conn *c, enum conn_state state, size_t want)
{
    c->nodes->nstrangers -= conn_is_stranger(c) && state != CONN_PROVING;
    c->state = state;
    c->want = want;
}

/* The connection has no socket yet. */
void conn_sock_set(struct conn *c, int sock)
{
    c->sock = sock;
    (void)event_assign(&c->readable, c->nodes->broker->base, sock, EV_READ | EV_PERSIST, on_readable, c);
    (void)event_assign(&c->writable, c->nodes->broker->base, sock, EV_WRITE, on_writable, c);
}

void conn_sock_close(struct conn *c)
{
    event_stop(&c->readable);
    event_stop(&c->writable);
    fd_close(&c->sock);
    if (c->resolver)
        child_kill(c->resolver);
    c->resolver = NULL;
}

int conn_release(struct conn *c, bool keep)
{
    int sock = keep ? c->sock : -1;

    c->nodes->nstrangers -= conn_is_stranger(c);
    c->nodes->nguests -= !c->ours;
    if (c->user) {
        c->user->held--;
        user_put(c->user);
    }
    TAILQ_REMOVE(&c->nodes->conns, c, link);
    event_stop(&c->limit);
    if (keep)
        c->sock = -1;
    conn_sock_close(c);
    auth_end(&c->auth);
    free(c->resolved);
    free(c);
    return sock;
}

void conn_end(struct conn *c, int status, const char *format, ...)
{
    struct error e = {.status = status};
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(e.text, sizeof(e.text), format, ap);
    va_end(ap);
    c->ops->ended(c, &e);
    (void)conn_release(c, false);
}

bool conn_refused(const struct conn *c, const struct error *why)
{
    switch (why->status) {
    case -EACCES:
    case -EPROTO:
    case -EPROTONOSUPPORT:
    case -EADDRNOTAVAIL:
        return c->state >= CONN_PROVING;
    default:
        return false;
    }
}

void conn_limit(struct conn *c, uint32_t ms)
{
    uint64_t now = clock_ns();

    if (c->until_ns && c->state < CONN_ASKING && c->until_ns < now + ms * 1000000ull)
        ms = c->until_ns > now ? (uint32_t)((c->until_ns - now) / 1000000u) : 0;
    c->limit_ms = ms;
    (void)event_add_ms(&c->limit, ms);
}

/* ---- saying ---- */

/* Sends pending bytes; what the kernel does not take now is sent when the socket becomes writable. */
static int conn_flush(struct conn *c)
{
    while (c->pending) {
        ssize_t n = send(c->sock, c->out, c->pending, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return event_add(&c->writable, NULL) ? -ENOMEM : 0;
        if (n < 0)
            return errno == EPIPE ? -ECONNRESET : -errno; /* after a reset either error may be reported */
        c->pending -= (size_t)n;
        memmove(c->out, c->out + n, c->pending);
        if (c->node)
            c->node->bytes_out += (size_t)n;
    }
    return 0;
}

int conn_say(struct conn *c, const void *bytes, size_t n)
{
    if (n > sizeof(c->out) - c->pending)
        return -ENOBUFS; /* the other node does not read its answers */
    memcpy(c->out + c->pending, bytes, n);
    c->pending += n;
    return conn_flush(c);
}

static int conn_say_sealed(struct conn *c, const void *frame, size_t n)
{
    unsigned char message[NODE_FRAME_MAX];

    memcpy(message, frame, n);
    int status = auth_seal(&c->auth, frame, n, message + n);
    return status ? status : conn_say(c, message, n + AUTH_TAG_BYTES);
}

/* Sends a node_beat. If that fails, ends the connection. */
static void beat_say(struct conn *c, uint64_t number)
{
    struct node_beat beat = {.number = number};
    int status = conn_say_sealed(c, &beat, sizeof(beat));

    if (status)
        conn_end(c, status, "%s", strerror(-status));
}

void conn_beat(struct conn *c)
{
    c->beats = true;
    c->beat_ns = clock_ns();
    conn_limit(c, LOST_MS);
    beat_say(c, ++c->number);
}

/* Handles a node_beat: ours is the answer to one, theirs is answered. */
static void beat_take(struct conn *c, uint64_t number)
{
    if (!c->ours) {
        conn_limit(c, LINK_IDLE_MS);
        beat_say(c, number);
    } else if (!c->beats || number != c->number) {
        conn_end(c, -EPROTO, "it answered heartbeat %llu, which was not sent", (unsigned long long)number);
    } else {
        c->beats = false;
        c->ops->beat(c, clock_ns() - c->beat_ns);
    }
}

int conn_answer(struct conn *c, int status, const char *text)
{
    struct node_answer answer = {.status = status, .at = c->at};
    int failed;

    text_copy(answer.text, sizeof(answer.text), text);
    failed = conn_say_sealed(c, &answer, sizeof(answer));
    if (failed)
        return failed;
    if (status == 0 && c->request.what == NODE_LINK)
        conn_state_set(c, CONN_LINKED, sizeof(struct node_beat) + AUTH_TAG_BYTES);
    return c->pending ? -EAGAIN : 0; /* does not happen: a new connection's socket has room for an answer */
}

static int request_send(struct conn *c)
{
    struct node_request r = c->request;
    uint64_t now = clock_ns();

    if (c->until_ns) /* the time that is left */
        r.limit_ms = c->until_ns > now ? (uint32_t)((c->until_ns - now) / 1000000u) : 0;
    conn_limit(c, r.limit_ms + PROVE_MS);
    return conn_say_sealed(c, &r, sizeof(r));
}

/* ---- hearing ---- */

/* Waits for the next part of the other node's hello or proof. n bytes were sent in answer to the last one; if there were any,
 * the wait begins anew. */
static void conn_await(struct conn *c, size_t n)
{
    conn_state_set(c, CONN_PROVING, auth_wants(&c->auth));
    if (!n)
        return;
    c->awaited_ns = clock_ns();
    TAILQ_REMOVE(&c->nodes->conns, c, link);
    TAILQ_INSERT_TAIL(&c->nodes->conns, c, link);
}

/* The other node has proven itself. Ours: sends the rest of this side's proof (n bytes) and the request. Theirs: waits for the
 * request. */
static void conn_ask(struct conn *c, const void *says, size_t n)
{
    int status;

    if (!c->ours) {
        text_copy(c->who, sizeof(c->who), auth_other(&c->auth));
        conn_state_set(c, CONN_ASKING, sizeof(struct node_request) + AUTH_TAG_BYTES);
        return;
    }
    conn_state_set(c, CONN_ASKING, sizeof(struct node_answer) + AUTH_TAG_BYTES);
    status = conn_say(c, says, n);
    if (!status)
        status = request_send(c);
    if (!status)
        calls_next(c->nodes, c->who);
    else if (status == -ECONNRESET)
        conn_closed(c, ECONNRESET);
    else
        conn_end(c, status, "%s", strerror(-status));
}

static void proof_take(struct conn *c)
{
    unsigned char says[sizeof(c->auth.says)];
    struct error e = {0};

    if (c->denies) {
        denial_hear(c);
        return;
    }
    if (denial_begins(c))
        return;
    int status = auth_take(&c->auth, c->in, &e);
    size_t n = auth_says(&c->auth, says);

    if (auth_done(&c->auth)) {
        conn_ask(c, says, n);
        return;
    }
    int said = n ? conn_say(c, says, n) : 0;
    if (!status && !said) {
        conn_await(c, n);
        return;
    }
    if (status && n) { /* the bytes just sent tell this fccd's version. Closing with unread data would discard them */
        (void)shutdown(c->sock, SHUT_WR);
        (void)recv(c->sock, c->in, sizeof(c->in), MSG_DONTWAIT);
    }
    conn_end(c, status ? status : said, "%s", status ? e.text : strerror(-said));
}

/* Calls an operation of the connection's owner, who has it in every state in which it can be called. */
static void owner_call(struct conn *c, void (*op)(struct conn *c))
{
    if (op)
        op(c);
    else
        conn_end(c, -EPROTO, "a message came that has no place on this connection");
}

static void answer_take(struct conn *c)
{
    struct node_answer answer;

    memcpy(&answer, c->in, sizeof(answer));
    answer.text[sizeof(answer.text) - 1] = '\0';
    c->at = answer.at;
    if (answer.status > 0 || answer.status < -4095) {
        conn_end(c, -EPROTO, "its answer has status %d", answer.status);
    } else if (answer.status) {
        conn_end(c, answer.status, "%s", text_clean(answer.text));
    } else {
        if (c->request.what == NODE_LINK)
            conn_state_set(c, CONN_LINKED, sizeof(struct node_beat) + AUTH_TAG_BYTES);
        owner_call(c, c->ops->answered);
    }
}

static void request_take(struct conn *c)
{
    struct node_request *r = &c->request;

    memcpy(r, c->in, sizeof(*r));
    if ((r->what != NODE_LINK && r->what != NODE_PEER) || !memchr(r->job, 0, sizeof(r->job)) || r->limit_ms > CALL_MAX_MS) {
        conn_end(c, -EPROTO, "its request is malformed: purpose %u, %u ms", r->what, r->limit_ms);
        return;
    }
    owner_call(c, c->ops->asked);
}

/* Handles a complete message in c->in. May free the connection. */
static void message_take(struct conn *c)
{
    size_t n = c->want - AUTH_TAG_BYTES;
    struct node_beat beat;

    if (c->state == CONN_PROVING) {
        proof_take(c);
        return;
    }
    if (c->state == CONN_TELLING) {
        conn_end(c, -EPROTO, "it answers a message that needs no answer");
        return;
    }
    int status = auth_open(&c->auth, c->in, n, c->in + n);
    if (status) {
        conn_end(c, status, "its message was changed in transit");
    } else if (c->state == CONN_LINKED) {
        memcpy(&beat, c->in, sizeof(beat));
        beat_take(c, beat.number);
    } else if (c->ours) {
        answer_take(c);
    } else {
        request_take(c);
    }
}

void conn_closed(struct conn *c, int error)
{
    const char *how = error ? strerror(error) : "closed";

    if (c->ours && (c->state == CONN_PROVING || c->state == CONN_ASKING))
        conn_end(c, -ECONNRESET, "%s before it had %s", how, c->state == CONN_PROVING ? "proven itself" : "answered");
    else if (conn_is_stranger(c) && c->auth.state == AUTH_PROOF)
        conn_end(c, -EACCES,
                 "%s when it had seen this node's proof: it has another CLUSTER_KEY, or calls this node by another name", how);
    else if (conn_is_stranger(c))
        conn_end(c, -EPROTO, "%s before it had %s", how,
                 c->have || c->auth.state != AUTH_HEADER ? "proven itself" : "said anything");
    else
        conn_end(c, -ECONNRESET, "its connection ended: %s", how);
}

void conn_hear(struct conn *c)
{
    bool held = c->state == CONN_HELD;
    unsigned char early;
    ssize_t n;

    n = held ? recv(c->sock, &early, 1, MSG_DONTWAIT | MSG_PEEK)
             : recv(c->sock, c->in + c->have, c->want - c->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        conn_closed(c, n < 0 ? errno : 0);
        return;
    }
    if (held) {
        conn_end(c, -EPROTO, "it sends before it was answered");
        return;
    }
    c->have += (size_t)n;
    if (c->node)
        c->node->bytes_in += (size_t)n;
    if (c->have < c->want)
        return;
    c->have = 0;
    message_take(c);
}

static void on_readable(evutil_socket_t sock, short what, void *arg)
{
    (void)sock, (void)what;
    conn_hear(arg);
}

static void on_writable(evutil_socket_t sock, short what, void *arg)
{
    struct conn *c = arg;

    (void)sock, (void)what;
    if (c->state == CONN_CONNECTING) {
        conn_connected(c);
        return;
    }
    int status = conn_flush(c);
    if (status)
        conn_closed(c, -status);
}

/* ---- time limits ---- */

static void on_limit(evutil_socket_t sock, short what, void *arg)
{
    struct conn *c = arg;

    (void)sock, (void)what;
    switch (c->state) {
    case CONN_RESOLVING:
        conn_end(c, -EHOSTUNREACH, "the name of its host is not resolved in time");
        return;
    case CONN_CONNECTING:
        conn_connect_failed(c, c->failed ? c->failed : ETIMEDOUT);
        return;
    case CONN_PROVING:
        conn_end(c, -ETIMEDOUT, "%s %u ms",
                 c->have || c->auth.state != AUTH_HEADER ? "has not proven itself within" : "said nothing for", c->limit_ms);
        return;
    case CONN_TELLING:
        conn_end(c, -ETIMEDOUT, "it has not closed the connection");
        return;
    case CONN_ASKING:
        conn_end(c, -ETIMEDOUT, "%s", c->ours ? "did not answer in time" : "has not said in time what it wants");
        return;
    case CONN_LINKED:
    case CONN_HELD:
        if (c->beats)
            conn_end(c, -ETIMEDOUT, "has not answered for %d ms", LOST_MS);
        else
            owner_call(c, c->ops->late);
        return;
    }
}
