/* SPDX-License-Identifier: MIT
 *
 * peer.c - connections between the workers of a job: made when a communicator needs them, kept for the job's life.
 *
 * Who sends nothing else sends a PING every half second. A peer that is silent for too long, or whose connection ends, is lost: its communicators
 * end with an error that names it, and the next one connects anew. Silence is counted in our own pings: when this process does not run, as it
 * is stopped or the machine has too much to do, it hears nobody, and that is nobody's silence. What came meanwhile is read before the next ping.
 * When only the connection ends on which we send, the other one is read to its end, for one SILENCE_MS at most.
 *
 * A PING is the engine's, which may be busy for seconds: it opens GPUs, maps memory and gives it back. So too long is SILENCES times SILENCE_MS.
 * A process that stops altogether is lost after one SILENCE_MS wherever there are operators: the proxies, which have no such work, send signs of
 * life, too (net.h).
 */
#include "peer.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "msg.h"
#include "nodes.h"

#define PING_MS 500
#define SILENCES 4
#define CONNECT_MS 20000        /* for a peer whose processes have not come yet, too */
#define WAITING_MAX (16u << 20) /* bytes that a peer has not taken */
#define PEER_SERIAL_MAX 0xffffffu

const char *peer_type_name(unsigned type)
{
    static const char *const names[PEER_TYPES] = {
        [PEER_PING] = "ping",     [PEER_JOIN] = "join",   [PEER_JOINED] = "joined", [PEER_REFUSE] = "refuse",
        [PEER_FORMED] = "formed", [PEER_READY] = "ready", [PEER_GO] = "go",         [PEER_SUBMIT] = "submit",
        [PEER_MEMORY] = "memory", [PEER_FREE] = "free",   [PEER_STAGED] = "staged", [PEER_FAIL] = "fail",
        [PEER_ABORT] = "abort",   [PEER_LEAVE] = "leave"};

    return type < PEER_TYPES && names[type] ? names[type] : "unknown";
}

void peer_break(struct peer *p, int status, const char *format, ...)
{
    char text[FCC_TEXT_MAX - FCC_NODE_MAX - 16];
    va_list ap;

    if (p->broken.status)
        return;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    (void)error_set(&p->broken, status, "node %s: %s", p->address, text_clean(text));
    p->worker->sweep = true;
}

bool peer_is_open(const struct peer *p)
{
    return p->out == PEER_OPEN && p->data[0] == PEER_OPEN && !p->broken.status && !p->ending.status;
}

/* ---- messages out ---- */

void peer_send(struct peer *p, struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length)
{
    struct evbuffer *to = p->writer ? bufferevent_get_output(p->writer) : p->waiting;

    if (p->broken.status || p->ending.status)
        return;
    m->length = (uint32_t)length;
    m->type = (uint16_t)type;
    m->comm = comm;
    if (evbuffer_get_length(to) + length > WAITING_MAX)
        peer_break(p, -ETIMEDOUT, "it does not take what it is sent");
    else if (evbuffer_add(to, m, length))
        peer_break(p, -ENOMEM, "no memory for a message to it");
}

static void on_writer_event(struct bufferevent *b, short what, void *arg)
{
    struct peer *p = arg;
    char text[FCC_TEXT_MAX / 2];

    (void)snprintf(text, sizeof(text), "the connection to it has ended%s%s", what & BEV_EVENT_ERROR ? ": " : "",
                   what & BEV_EVENT_ERROR ? strerror(EVUTIL_SOCKET_ERROR()) : "");
    if (!p->reader) {
        peer_break(p, -ECONNRESET, "%s", text);
        return;
    }
    /* Its worker may have ended in good order. What it said last, as that its ranks have left, comes on the other connection, and may
     * come later than this; then that ends, too. */
    (void)error_set(&p->ending, -ECONNRESET, "%s", text);
    p->is_past = true;
    (void)bufferevent_disable(b, EV_READ | EV_WRITE);
}

/* Nothing comes on a connection of ours: only its end. */
static void on_writer_read(struct bufferevent *b, void *arg)
{
    (void)b;
    peer_break(arg, -EPROTO, "it sends on a connection that is not its own");
}

/* ---- messages in ---- */

static void on_read(struct bufferevent *b, void *arg)
{
    static _Alignas(16) unsigned char buf[PEER_MSG_MAX]; /* the engine is one thread */
    struct peer *p = arg;
    struct evbuffer *in = bufferevent_get_input(b);
    const struct peer_msg *m = (const struct peer_msg *)buf;

    p->silent = 0;
    while (!p->broken.status && evbuffer_copyout(in, buf, sizeof(*m)) == (ssize_t)sizeof(*m)) {
        if (m->length < sizeof(*m) || m->length > sizeof(buf) || m->zero) {
            peer_break(p, -EPROTO, "a message of %u bytes: allowed are %zu to %zu", m->length, sizeof(*m), sizeof(buf));
            return;
        }
        if (evbuffer_get_length(in) < m->length)
            return;
        (void)evbuffer_remove(in, buf, m->length);
        if (m->type != PEER_PING)
            nodes_message(p, m);
    }
}

static void on_reader_event(struct bufferevent *b, short what, void *arg)
{
    (void)b;
    peer_break(arg, -ECONNRESET, "its connection has ended%s%s", what & BEV_EVENT_ERROR ? ": " : "",
               what & BEV_EVENT_ERROR ? strerror(EVUTIL_SOCKET_ERROR()) : "");
}

/* ---- heartbeat ---- */

static void on_ping(evutil_socket_t sock, short what, void *arg)
{
    struct worker *w = arg;
    struct peer *p;

    (void)sock, (void)what;
    uint64_t limit_ms = (uint64_t)SILENCES * w->config.silence_ms;
    LIST_FOREACH(p, &w->peers, link) {
        struct peer_msg m = {0};
        if (p->ending.status && p->ended++ * PING_MS >= w->config.silence_ms)
            peer_break(p, p->ending.status, "%s", p->ending.text);
        else if (p->writer && !p->ending.status)
            peer_send(p, &m, 0, PEER_PING, sizeof(m));
        if (p->reader && !w->retiring && p->silent++ * PING_MS >= limit_ms)
            peer_break(p, -ETIMEDOUT, "it has been silent for %llu ms", (unsigned long long)limit_ms);
    }
}

static int ping_start(struct worker *w)
{
    const struct timeval every = {.tv_usec = PING_MS * 1000};

    if (w->ping_event)
        return 0;
    w->ping_event = event_new(w->base, -1, EV_PERSIST, on_ping, w);
    return !w->ping_event || event_add(w->ping_event, &every) ? -ENOMEM : 0;
}

/* ---- coming and going ---- */

/* That worker of that node. who NULL: the one that came last and takes new communicators. One that is being connected and not known yet
 * is expected to be the one that is asked for; if it turns out to be another one, that breaks it (peer_is()). */
static struct peer *peer_find(const struct worker *w, const char *address, const struct incarnation *who)
{
    struct peer *p, *unknown = NULL;

    LIST_FOREACH(p, &w->peers, link) {
        if (p->broken.status || strcmp(p->address, address) != 0)
            continue;
        if (who ? incarnation_same(&p->who, who) : !p->is_past)
            return p;
        if (who && !p->who.number)
            unknown = p;
    }
    if (unknown)
        unknown->who = *who;
    return unknown;
}

/* A worker of that node has been heard of: those whose place it has taken are gone, whenever the end of their connections comes. */
static void past_end(const struct worker *w, const char *address, const struct incarnation *who)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->who.number && incarnation_before(&p->who, who) && !strcmp(p->address, address))
            peer_break(p, -ECONNRESET, "its worker has ended, and another one has taken its place");
}

/* Our connection to p has come out at that worker. False: not at whom it was to be, and p is broken. */
static bool peer_is(struct peer *p, const struct incarnation *who)
{
    past_end(p->worker, p->address, who);
    if (!p->who.number)
        p->who = *who;
    if (!incarnation_same(&p->who, who))
        peer_break(p, -ESTALE, "another worker has taken its worker's place");
    return !p->broken.status;
}

/* In turns: the data connections of one that has gone may end later, and are not to be taken for those of its successor. */
static unsigned index_free(struct worker *w)
{
    uint64_t used = 0;
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        used |= UINT64_C(1) << p->index;
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        unsigned index = w->peer_index++ % PEERS_MAX;
        if (!(used >> index & 1u))
            return index;
    }
    return PEERS_MAX;
}

static struct peer *peer_new(struct worker *w, const char *address, struct error *e)
{
    unsigned index = index_free(w);
    struct peer *p = index < PEERS_MAX ? calloc(1, sizeof(*p)) : NULL;

    if (!p || !(p->waiting = evbuffer_new()) || ping_start(w)) {
        if (p && p->waiting)
            evbuffer_free(p->waiting);
        free(p);
        (void)error_set(e, -ENOMEM, "node %s: %s", address,
                        index < PEERS_MAX ? "no memory" : "this job is on 64 others already");
        return NULL;
    }
    p->worker = w;
    p->index = index;
    p->serial = w->peer_serial = w->peer_serial % PEER_SERIAL_MAX + 1;
    text_copy(p->address, sizeof(p->address), address);
    LIST_INSERT_HEAD(&w->peers, p, link);
    nodes_link_begin(p);
    return p;
}

/* Ask the broker for a connection. */
static int connect_ask(struct peer *p, enum peer_purpose purpose, uint32_t rail, uint64_t *id, enum peer_state *state)
{
    struct worker *w = p->worker;
    struct control_connect m = {.msg = {.type = CONTROL_CONNECT, .id = ++w->connect_id},
                                .to = p->who,
                                .purpose = PEER_PURPOSE(purpose, rail, p->serial),
                                .limit_ms = CONNECT_MS};

    if (*state != PEER_CLOSED)
        return 0;
    text_copy(m.address, sizeof(m.address), p->address);
    if (w->control < 0 || msg_send(w->control, &m.msg, sizeof(m), NULL, 0))
        return -EPIPE;
    *id = m.msg.id;
    *state = PEER_CONNECTING;
    return 0;
}

static int data_ask(struct peer *p, uint32_t rail)
{
    return connect_ask(p, PEER_DATA, rail, &p->data_request[rail], &p->data[rail]);
}

bool peer_rail_open(struct peer *p, uint32_t rail)
{
    if (p->broken.status)
        return false;
    if (data_ask(p, rail))
        peer_break(p, -EPIPE, "this node's broker is gone: nobody can connect");
    return p->data[rail] == PEER_OPEN;
}

struct peer *peer_get(struct worker *w, const char *address, const struct incarnation *who, struct error *e)
{
    struct peer *p = peer_find(w, address, who);

    if (!p && !(p = peer_new(w, address, e)))
        return NULL;
    if (who)
        p->who = *who;
    if (connect_ask(p, PEER_MESSAGES, 0, &p->out_request, &p->out) || data_ask(p, 0)) {
        (void)error_set(e, -EPIPE, "node %s: this node's broker is gone: nobody can connect", address);
        peer_break(p, -EPIPE, "this node's broker is gone: nobody can connect");
        return NULL;
    }
    return p;
}

static void writer_open(struct peer *p, int sock)
{
    p->writer = bufferevent_socket_new(p->worker->base, sock, BEV_OPT_CLOSE_ON_FREE);
    if (!p->writer) {
        (void)close(sock);
        peer_break(p, -ENOMEM, "no memory for its connection");
        return;
    }
    p->out = PEER_OPEN;
    bufferevent_setcb(p->writer, on_writer_read, NULL, on_writer_event, p);
    (void)bufferevent_enable(p->writer, EV_READ | EV_WRITE);
    (void)evbuffer_add_buffer(bufferevent_get_output(p->writer), p->waiting);
}

static void socket_prepare(int sock)
{
    int one = 1;

    (void)evutil_make_socket_nonblocking(sock);
    (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* The broker's text names the node, as ours do. */
static void peer_unreachable(struct peer *p, const struct control_connected *m)
{
    char text[FCC_TEXT_MAX], names[FCC_NODE_MAX + 16];
    int n = snprintf(names, sizeof(names), "node %s: ", p->address);

    text_copy(text, sizeof(text), m->text);
    text_copy(p->named, sizeof(p->named), m->named);
    p->is_unreachable = m->status != -ESTALE;
    peer_break(p, m->status < 0 ? m->status : -EPROTO, "%s", text + (strncmp(text, names, (size_t)n) ? 0 : n));
}

static void rail_open(struct peer *p, uint32_t rail, int sock)
{
    struct error e = {0};

    if (nodes_data_open(p, rail, sock, &e))
        peer_break(p, e.status, "%s", e.text);
    else
        p->data[rail] = PEER_OPEN;
}

void peer_connected(struct worker *w, const struct control_connected *m, int sock)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link) {
        bool out = p->out == PEER_CONNECTING && p->out_request == m->msg.id;
        uint32_t rail = 0;
        while (rail < NET_RAILS_MAX && (p->data[rail] != PEER_CONNECTING || p->data_request[rail] != m->msg.id))
            rail++;
        if (p->broken.status || (!out && rail == NET_RAILS_MAX))
            continue;
        if (m->status || sock < 0) {
            peer_unreachable(p, m);
            break;
        }
        if (!peer_is(p, &m->to))
            break;
        socket_prepare(sock);
        if (out)
            writer_open(p, sock);
        else
            rail_open(p, rail, sock);
        if (peer_is_open(p))
            nodes_peer_open(p);
        return;
    }
    if (sock >= 0)
        (void)close(sock); /* nobody waits for it any more */
}

/* Of a worker's serials: do they count on from a to b? */
static bool serial_before(uint32_t a, uint32_t b)
{
    return (b + PEER_SERIAL_MAX - a) % PEER_SERIAL_MAX < PEER_SERIAL_MAX / 2;
}

/* Whose a connection is that this worker has made, for that one of its peers. NULL with the reason. */
static struct peer *arrival_peer(struct worker *w, const char *address, const struct incarnation *who, uint32_t serial,
                                 struct error *e)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (incarnation_before(who, &p->who) && !strcmp(p->address, address)) {
            (void)error_set(e, -ESTALE, "its worker has ended, and another one has taken its place");
            return NULL;
        }
    past_end(w, address, who);
    p = peer_find(w, address, who);
    if (p && p->theirs && p->theirs != serial) {
        if (serial_before(serial, p->theirs)) {
            (void)error_set(e, -ESTALE, "it has been given up, and the worker has connected anew");
            return NULL;
        }
        peer_break(p, -ECONNRESET, "it has connected anew"); /* and we have not heard of the end */
        p = NULL;
    }
    if (!p && (p = peer_new(w, address, e)))
        p->who = *who;
    if (p)
        p->theirs = serial;
    return p;
}

void peer_arrived(struct worker *w, const struct control_peer *m, int sock)
{
    uint32_t purpose = PEER_PURPOSE_OF(m->purpose), rail = PEER_RAIL_OF(m->purpose), serial = PEER_SERIAL_OF(m->purpose);
    char address[FCC_NODE_MAX];
    struct error e = {0};
    struct peer *p = NULL;

    text_copy(address, sizeof(address), m->address);
    if (m->from.number && serial)
        p = arrival_peer(w, address, &m->from, serial, &e);
    socket_prepare(sock);
    if (p && purpose == PEER_MESSAGES && !p->reader) {
        p->reader = bufferevent_socket_new(w->base, sock, BEV_OPT_CLOSE_ON_FREE);
        if (p->reader) {
            p->silent = 0;
            bufferevent_setcb(p->reader, on_read, NULL, on_reader_event, p);
            (void)bufferevent_enable(p->reader, EV_READ);
            return;
        }
        (void)error_set(&e, -ENOMEM, "no memory for its connection");
    } else if (p && purpose == PEER_DATA) {
        if (!nodes_data_accept(p, rail, sock, &e))
            return;
        sock = -1; /* closed */
    }
    log_warning("node %s: a connection of it is refused: %s", address, e.status ? e.text : "it has no purpose, or comes twice");
    if (sock >= 0)
        (void)close(sock);
}

static void peer_free(struct peer *p)
{
    LIST_REMOVE(p, link);
    if (p->writer)
        bufferevent_free(p->writer);
    if (p->reader)
        bufferevent_free(p->reader);
    evbuffer_free(p->waiting);
    free(p);
}

void peers_sweep(struct worker *w)
{
    struct peer *p, *next;

    for (p = LIST_FIRST(&w->peers); p; p = next) {
        next = LIST_NEXT(p, link);
        if (!p->broken.status)
            continue;
        bool was_needed = nodes_peer_lost(p);
        nodes_link_end(p, was_needed);
        if (was_needed) {
            log_warning("%s", p->broken.text);
            nodes_data_forget(p);
        } else {
            log_info("%s", p->broken.text); /* its last rank had left: its worker may go, when what it sent has been read */
        }
        peer_free(p);
    }
}

bool peers_are_busy(const struct worker *w)
{
    const struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (!p->broken.status && !p->ending.status &&
            evbuffer_get_length(p->writer ? bufferevent_get_output(p->writer) : p->waiting)) /* until its time limit at most */
            return true;
    return false;
}

void peers_pause(struct worker *w)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->reader)
            (void)bufferevent_disable(p->reader, EV_READ);
}

void peers_resume(struct worker *w)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->reader) {
            p->silent = 0; /* it was not listened to */
            (void)bufferevent_enable(p->reader, EV_READ);
        }
}

void peers_close(struct worker *w)
{
    struct peer *p, *next;

    for (p = LIST_FIRST(&w->peers); p; p = next) {
        next = LIST_NEXT(p, link);
        peer_free(p);
    }
    if (w->ping_event)
        event_free(w->ping_event);
    w->ping_event = NULL;
}
