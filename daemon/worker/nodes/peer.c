/* SPDX-License-Identifier: MIT
 *
 * peer.c - connections between the workers of a job: made when a communicator needs them (peer_connect.c), kept for the job's life.
 *
 * A worker that has nothing else to send sends a PING every half second. A peer that is silent for too long, or whose connection ends, is lost:
 * its communicators end with an error that names it, and the next one connects again. Silence is counted in our own pings: while this process
 * is stopped or the machine is overloaded it sends none, so that time does not count as the peer's silence. Messages that came meanwhile are
 * read before the next ping.
 *
 * If a connection ends, the peer's worker may have ended in good order, and its last messages, as that its ranks have left, may still be
 * unread. So those connections on which its messages come are read to their ends, for at most one SILENCE_MS.
 *
 * Messages over the first rail, between the data. A rank's request on a connection of its own costs a system call on either side, and a look of
 * the event loop. On the rail it leaves with the data that the proxy sends anyway, and comes with it. A worker's messages to a peer have one order.
 * Those before the rail was open go over the connection for messages; the last one there is MOVED, and all later ones go over the rail, but for
 * pings, which say nothing of any communicator. What comes over the rail before MOVED has been read is held. So a peer handles all messages in the
 * order in which they were sent. The thread that receives (the proxy's, or the engine in its stead) only keeps what comes; the engine handles it,
 * after its clients' requests, and not while the worker asks its broker whether it may end.
 *
 * The engine sends PINGs, and may be busy for seconds when it opens GPUs or maps memory. So the limit is SILENCES times SILENCE_MS. Where
 * operators run, a process that stops is lost after one SILENCE_MS, because the proxies, which have no such work, send signs of life (net.h).
 */
#include "daemon/worker/nodes/peer.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/worker/nodes/inside.h"
#include "proto/base/log.h"

#define PING_MS 500
#define SILENCES 4
#define WAITING_MAX (16u << 20)  /* unsent bytes to a peer, at most */
#define LETTERS_MOST (16u << 20) /* bytes of a peer's messages that the engine has not handled */

static_assert(PEER_MSG_MAX <= NET_MESSAGE_MAX, "a message fits into a frame");

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

void peer_ends(struct peer *p, int status, const char *format, ...)
{
    char text[FCC_TEXT_MAX - FCC_NODE_MAX - 16];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (!p->ending.status)
        (void)error_set(&p->ending, status, "%s", text);
    bool reads = p->reader && !p->reader_over, receives = p->moved && !p->rail_over;
    if (!reads && !receives)
        peer_break(p, p->ending.status, "%s", p->ending.text);
    p->is_past = true;
}

bool peer_is_open(const struct peer *p)
{
    return p->out == PEER_OPEN && p->data[0] == PEER_OPEN && !p->broken.status && !p->ending.status;
}

/* ---- messages out ---- */

/* Sends at once what the socket takes, if nothing waits there already: the loop would only send it in its next round, and ask the kernel
 * about the socket before and after. Returns how many bytes were sent. An error shows again when the rest is sent. */
static size_t send_now(const struct peer *p, const struct peer_msg *m, size_t length)
{
    ssize_t n = send(bufferevent_getfd(p->writer), m, length, MSG_DONTWAIT | MSG_NOSIGNAL);

    return n > 0 ? (size_t)n : 0;
}

void peer_send(struct peer *p, struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length)
{
    peer_send_with(p, m, comm, type, length, NULL);
}

void peer_send_with(struct peer *p, struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length,
                    struct proxy_early *early)
{
    struct evbuffer *to = p->writer ? bufferevent_get_output(p->writer) : p->waiting;
    size_t sent = 0;

    if (p->broken.status || p->ending.status)
        return;
    m->length = (uint32_t)length;
    m->type = (uint16_t)type;
    m->comm = comm;
    if (p->by_rail && type != PEER_PING) {
        peer_send_by_rail(p, m, early);
        return;
    }
    if (p->writer && !evbuffer_get_length(to))
        sent = send_now(p, m, length);
    if (sent == length)
        return;
    if (evbuffer_get_length(to) + length > WAITING_MAX)
        peer_break(p, -ETIMEDOUT, "it does not take what it is sent");
    else if (evbuffer_add(to, (const unsigned char *)m + sent, length - sent))
        peer_break(p, -ENOMEM, "no memory for a message to it");
}

static void on_writer_event(struct bufferevent *b, short what, void *arg)
{
    (void)bufferevent_disable(b, EV_READ | EV_WRITE);
    peer_ends(arg, -ECONNRESET, "the connection to it has ended%s%s", what & BEV_EVENT_ERROR ? ": " : "",
              what & BEV_EVENT_ERROR ? strerror(EVUTIL_SOCKET_ERROR()) : "");
}

/* The peer must not send on our connection. */
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
    p->heard = true;
    while (!p->broken.status && evbuffer_copyout(in, buf, sizeof(*m)) == (ssize_t)sizeof(*m)) {
        if (m->length < sizeof(*m) || m->length > sizeof(buf) || m->zero) {
            peer_break(p, -EPROTO, "a message of %u bytes: allowed are %zu to %zu", m->length, sizeof(*m), sizeof(buf));
            return;
        }
        if (evbuffer_get_length(in) < m->length)
            return;
        (void)evbuffer_remove(in, buf, m->length);
        if (m->type == PEER_MOVED)
            peer_moved(p);
        else if (m->type != PEER_PING)
            nodes_message(p, m);
    }
}

void peer_reader_drop(struct peer *p)
{
    bufferevent_free(p->reader);
    p->reader = NULL;
}

static void on_reader_event(struct bufferevent *b, short what, void *arg)
{
    struct peer *p = arg;

    if (!p->heard) {
        /* It was lost between the brokers before the peer had it (daemon/broker/nodes/node_peer.c). If the peer lives it connects again;
         * otherwise nothing depends on it but what is sent to it, and so ends with our own connection. */
        peer_reader_drop(p);
        return;
    }
    p->reader_over = true;
    (void)bufferevent_disable(b, EV_READ);
    peer_ends(arg, -ECONNRESET, "its connection has ended%s%s", what & BEV_EVENT_ERROR ? ": " : "",
              what & BEV_EVENT_ERROR ? strerror(EVUTIL_SOCKET_ERROR()) : "");
}

/* ---- messages over the first rail ---- */

void peers_letters_free(struct peer_letters *letters)
{
    struct peer_letter *letter;

    while ((letter = STAILQ_FIRST(letters))) {
        STAILQ_REMOVE_HEAD(letters, link);
        free(letter);
    }
}

/* Takes the letter over. */
static int letter_post(struct nodes_data *d, struct peer_letter *letter)
{
    (void)pthread_mutex_lock(&d->letters_lock);
    bool has_room = d->letters_of[letter->node] + letter->length <= LETTERS_MOST;
    if (has_room) {
        d->letters_of[letter->node] += letter->length;
        STAILQ_INSERT_TAIL(&d->letters, letter, link);
    }
    (void)pthread_mutex_unlock(&d->letters_lock);
    if (!has_room) {
        free(letter);
        return -ENOBUFS;
    }
    nodes_news_post(d);
    return 0;
}

int peers_message(void *nodes_data, uint32_t node, const void *bytes, uint32_t length)
{
    struct nodes_data *d = nodes_data;

    if (length < sizeof(struct peer_msg) || length > PEER_MSG_MAX)
        return -EPROTO;
    struct peer_letter *letter = aligned_alloc(_Alignof(struct peer_letter), (sizeof(*letter) + length + 15) / 16 * 16);
    if (!letter)
        return -ENOMEM;
    letter->node = node;
    letter->length = length;
    memcpy(letter->message, bytes, length);
    return letter_post(d, letter);
}

/* Handle a message and free it. */
static void letter_open(struct peer *p, struct peer_letter *letter)
{
    const struct peer_msg *m = (const struct peer_msg *)(const void *)letter->message;

    if (p->broken.status)
        ; /* what a lost peer has said is dropped */
    else if (m->length != letter->length || m->zero)
        peer_break(p, -EPROTO, "a message of %u bytes: it has %u", m->length, letter->length);
    else
        nodes_message(p, m);
    free(letter);
}

static void letter_hold(struct peer *p, struct peer_letter *letter)
{
    p->held_bytes += letter->length;
    if (p->held_bytes > LETTERS_MOST)
        peer_break(p, -EPROTO, "%llu bytes of messages before moved", (unsigned long long)p->held_bytes);
    STAILQ_INSERT_TAIL(&p->held, letter, link);
}

static void letter_take(const struct worker *w, struct peer_letter *letter)
{
    struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (p->index == letter->node)
            break;
    if (!p)
        free(letter); /* the peer has been given up */
    else if (p->moved)
        letter_open(p, letter);
    else
        letter_hold(p, letter);
}

void peers_take(struct worker *w)
{
    struct nodes_data *d = w->data;
    struct peer_letters taken = STAILQ_HEAD_INITIALIZER(taken);
    struct peer_letter *letter;

    if (w->retiring)
        return;
    (void)pthread_mutex_lock(&d->letters_lock);
    STAILQ_CONCAT(&taken, &d->letters);
    memset(d->letters_of, 0, sizeof(d->letters_of));
    (void)pthread_mutex_unlock(&d->letters_lock);
    while ((letter = STAILQ_FIRST(&taken))) {
        STAILQ_REMOVE_HEAD(&taken, link);
        letter_take(w, letter);
    }
}

void peer_move(struct peer *p)
{
    struct peer_msg m = {0};

    if (p->by_rail || atomic_load_explicit(&nodes_counts(p, true)->transport, memory_order_acquire) != net_tcp.name)
        return;
    peer_send(p, &m, 0, PEER_MOVED, sizeof(m));
    p->by_rail = true;
}

void peer_moved(struct peer *p)
{
    struct peer_letter *letter;

    if (p->moved)
        peer_break(p, -EPROTO, "moved: it has said so before");
    p->moved = true;
    while ((letter = STAILQ_FIRST(&p->held))) {
        STAILQ_REMOVE_HEAD(&p->held, link);
        letter_open(p, letter);
    }
}

void peer_send_by_rail(struct peer *p, const struct peer_msg *m, struct proxy_early *early)
{
    int status = proxy_message(p->worker->data->proxy, p->index, m, m->length, early);

    if (status == -ENOBUFS)
        peer_break(p, -ETIMEDOUT, "it does not take what it is sent");
    /* Of a rail that has failed the engine hears by nodes_data.lost. */
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

int peers_ping_start(struct worker *w)
{
    if (w->ping_event)
        return 0;
    w->ping_event = event_new(w->base, -1, EV_PERSIST, on_ping, w);
    return !w->ping_event || event_add_ms(w->ping_event, PING_MS) ? -ENOMEM : 0;
}

/* ---- coming and going ---- */

void peer_writer_open(struct peer *p, int sock)
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

bool peer_reader_open(struct peer *p, int sock)
{
    p->reader = bufferevent_socket_new(p->worker->base, sock, BEV_OPT_CLOSE_ON_FREE);
    if (!p->reader)
        return false;
    p->silent = 0;
    p->heard = false;
    bufferevent_setcb(p->reader, on_read, NULL, on_reader_event, p);
    (void)bufferevent_enable(p->reader, EV_READ);
    return true;
}

static void peer_free(struct peer *p)
{
    LIST_REMOVE(p, link);
    if (p->writer)
        bufferevent_free(p->writer);
    if (p->reader)
        bufferevent_free(p->reader);
    evbuffer_free(p->waiting);
    peers_letters_free(&p->held);
    free(p);
}

void peers_sweep(struct worker *w)
{
    struct peer *p, *next;

    LIST_FOREACH_SAFE(p, &w->peers, link, next) {
        if (!p->broken.status)
            continue;
        bool was_needed = nodes_peer_lost(p);
        nodes_link_end(p, was_needed);
        if (was_needed) {
            log_warning("%s", p->broken.text);
            nodes_data_forget(p);
        } else {
            log_info("%s", p->broken.text); /* all its ranks had left. The proxy reads its data to the end */
        }
        peer_free(p);
    }
}

bool peers_are_busy(const struct worker *w)
{
    const struct peer *p;

    LIST_FOREACH(p, &w->peers, link)
        if (!p->broken.status && !p->ending.status && /* until its time limit at most */
            (evbuffer_get_length(p->writer ? bufferevent_get_output(p->writer) : p->waiting) || nodes_rail_is_busy(p)))
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
            p->silent = 0; /* nothing was read from it while paused */
            if (!p->reader_over)
                (void)bufferevent_enable(p->reader, EV_READ);
        }
    if (w->data)
        nodes_puts_news(w); /* what has come over rails meanwhile */
}

void peers_close(struct worker *w)
{
    struct peer *p, *next;

    LIST_FOREACH_SAFE(p, &w->peers, link, next)
        peer_free(p);
    event_drop(&w->ping_event);
}

/* ---- the form of messages ---- */

/* A message: its name, its bytes, and where its status and text are (0: it has none). SUBMIT may be longer. */
#define PLAIN(TYPE, type_name, type) [PEER_##TYPE] = {.name = (type_name), .bytes = sizeof(struct type)}
#define SAYING(TYPE, type_name, type, says)                                                                                    \
    [PEER_##TYPE] = {.name = (type_name),                                                                                      \
                     .bytes = sizeof(struct type),                                                                             \
                     .status_at = offsetof(struct type, says status),                                                          \
                     .text_at = offsetof(struct type, says text)}
static const struct form {
    const char *name;
    size_t bytes, status_at, text_at;
} forms[PEER_TYPES] = {
    [PEER_PING] = {.name = "ping"}, /* handled where they are read, as is MOVED */
    [PEER_MOVED] = {.name = "moved"},
    PLAIN(JOIN, "join", peer_join),
    PLAIN(JOINED, "joined", peer_joined),
    SAYING(REFUSE, "refuse", peer_refuse, ),
    SAYING(DENY, "deny", peer_deny, ),
    PLAIN(FORMED, "formed", peer_formed),
    PLAIN(HERE, "here", peer_here),
    PLAIN(READY, "ready", peer_msg),
    PLAIN(GO, "go", peer_msg),
    SAYING(SUBMIT, "submit", peer_submit, request.),
    SAYING(MEMORY, "memory", peer_memory, ),
    PLAIN(FREE, "free", peer_free),
    PLAIN(STAGED, "staged", peer_turn),
    SAYING(FAIL, "fail", peer_turn, ),
    SAYING(ABORT, "abort", peer_turn, ),
    SAYING(LEAVE, "leave", peer_turn, ),
    PLAIN(RESULT, "result", peer_result),
    PLAIN(REGROUP, "regroup", peer_regroup),
    SAYING(REGROUPED, "regrouped", peer_regrouped, decision.),
};

const char *peer_type_name(unsigned type)
{
    return type < PEER_TYPES && forms[type].name ? forms[type].name : "unknown";
}

int peer_message_check(const struct peer_msg *m, struct error *e)
{
    const struct form *f = m->type < PEER_TYPES ? &forms[m->type] : &forms[0];
    const char *bytes = (const char *)m;
    int32_t status = 0;

    if (!f->bytes || m->length < f->bytes || (m->length != f->bytes && m->type != PEER_SUBMIT))
        return error_set(e, -EPROTO, "a message of type %u and %u bytes: there is no such message", m->type, m->length);
    if (!f->text_at)
        return 0;
    memcpy(&status, bytes + f->status_at, sizeof(status));
    if (!memchr(bytes + f->text_at, '\0', FCC_TEXT_MAX))
        return error_set(e, -EPROTO, "%s: a text without an end", f->name);
    if (status > 0 || status < -STATUS_LAST)
        return error_set(e, -EPROTO, "%s: status %d: allowed are 0 and negative errno values", f->name, status);
    return 0;
}
