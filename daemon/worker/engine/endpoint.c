/* SPDX-License-Identifier: MIT
 *
 * endpoint.c - where a client is told: replies over its socket, completion slots and status words in the memory that it shares with the
 * worker. The client may write anything into that memory at any time: what the worker writes there it never reads back.
 */
#include "daemon/worker/engine/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/worker/engine/account.h"
#include "proto/base/clock.h"
#include "proto/base/json_fd.h"
#include "proto/base/log.h"
#include "proto/msg.h"
#include "proto/session.h"

#define OUTBOX_MAX 4096   /* replies that a client has not fetched */
#define AGAIN_MS 10       /* interval at which a reply that the kernel does not take is sent again */
#define AGAIN_FOR_MS 8000 /* time after which it is given up; less than a client waits for a reply */

/* A reply that waits for room in the socket. */
struct outgoing {
    TAILQ_ENTRY(outgoing) link; /* session.outbox */
    int fds[FCC_MAX_FDS], nfds; /* owned */
    size_t length;
    _Alignas(16) unsigned char bytes[];
};

/* ---- replies ---- */

static void outgoing_free(struct session *s, struct outgoing *o)
{
    TAILQ_REMOVE(&s->outbox, o, link);
    s->outbox_length--;
    worker_small_release(s->worker, sizeof(*o) + o->length);
    fds_close(o->fds, o->nfds);
    free(o);
}

/* The socket has room, but the kernel has not: for descriptors that are on their way (too many of this user's are, perhaps other processes'), or
 * for memory. */
static bool passes(int status)
{
    return status == -ETOOMANYREFS || status == -ENOBUFS || status == -ENOMEM;
}

static bool peer_is_gone(int status)
{
    return status == -EPIPE || status == -ECONNRESET || status == -ENOTCONN;
}

/* The first reply was not sent: when to try again, if at all. */
static void outbox_wait(struct session *s, int status)
{
    uint64_t now = clock_ns();

    if (status == -EAGAIN) {
        s->outbox_since_ns = 0;
        (void)event_add(s->write_event, NULL);
        return;
    }
    if (!s->outbox_since_ns)
        s->outbox_since_ns = now;
    if (passes(status) && now - s->outbox_since_ns < AGAIN_FOR_MS * 1000000ull) {
        (void)event_add_ms(s->again_event, AGAIN_MS);
        return;
    }
    log_warning("pid %d: its connection ends: a reply could not be sent: %s", s->pid, strerror(-status));
    session_break(s, "a reply could not be sent to it");
}

void session_on_room(evutil_socket_t sock, short what, void *arg)
{
    struct session *s = arg;
    struct outgoing *o, *next;

    (void)sock, (void)what;
    for (o = s->broken ? NULL : TAILQ_FIRST(&s->outbox); o; o = next) {
        next = TAILQ_NEXT(o, link);
        int status = msg_send(s->sock, (struct fcc_msg *)o->bytes, o->length, o->fds, o->nfds);
        if (status && !peer_is_gone(status)) {
            outbox_wait(s, status);
            return;
        }
        s->outbox_since_ns = 0;
        outgoing_free(s, o); /* if the peer is gone, the read event says so */
    }
}

/* Why there is no room for a reply that is to be sent later. text: a literal. */
struct no_room {
    int status;
    const char *text;
};

/* Room for a reply that is to be sent later, with its descriptors. NULL with the reason, which is logged. */
static struct outgoing *outgoing_new(struct session *s, size_t length, const int *fds, int nfds, struct no_room *why)
{
    struct outgoing *o = NULL;
    struct error e = {0};

    if (s->outbox_length >= OUTBOX_MAX)
        *why = (struct no_room){-ENOBUFS, "it does not read its replies"};
    else if (worker_small_charge(s->worker, sizeof(*o) + length, &e))
        *why = (struct no_room){-ENOMEM, "its replies, which it does not read, take more memory than is allowed"};
    else if (!(o = malloc(sizeof(*o) + length)))
        *why = (struct no_room){-ENOMEM, "no memory for a reply to it"};
    for (int i = 0; o && i < nfds; i++) {
        o->fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
        if (o->fds[i] >= 0)
            continue;
        *why = (struct no_room){-EMFILE, "no file descriptor is left to keep a reply to it (RLIMIT_NOFILE)"};
        fds_close(o->fds, i);
        free(o);
        o = NULL;
    }
    if (o)
        return o;
    if (s->outbox_length < OUTBOX_MAX && !e.status)
        worker_small_release(s->worker, sizeof(*o) + length);
    log_warning("pid %d: its connection ends: %s%s%s", s->pid, why->text, e.status ? ": " : "", e.text);
    return NULL;
}

/* The connection ends, and a reply that could not be sent cannot be kept either. Where that may be for its descriptors, the kernel may take one without
 * any: who waits hears why. */
static void reply_lose(struct session *s, const struct fcc_reply *reply, const struct no_room *why)
{
    struct fcc_reply r = {.msg = {.type = reply->msg.type, .id = reply->msg.id}};
    struct error e = {0};

    if (reply->fds && TAILQ_EMPTY(&s->outbox)) {
        r.status = error_set(&e, why->status, "the connection ends, as its reply can be neither sent now nor kept");
        text_copy(r.text, sizeof(r.text), e.text);
        (void)msg_send(s->sock, &r.msg, sizeof(r), NULL, 0);
    }
    session_break(s, why->text);
}

/* status: why it cannot be sent now. */
static void outbox_add(struct session *s, const struct fcc_reply *reply, size_t length, const int *fds, int nfds, int status)
{
    struct no_room why = {0};
    struct outgoing *o = outgoing_new(s, length, fds, nfds, &why);

    if (!o) {
        reply_lose(s, reply, &why);
        return;
    }
    memcpy(o->bytes, reply, length);
    o->length = length;
    o->nfds = nfds;
    TAILQ_INSERT_TAIL(&s->outbox, o, link);
    s->outbox_length++;
    if (s->outbox_length == 1)
        outbox_wait(s, status);
}

void session_reply(struct session *s, struct fcc_reply *reply, size_t length, const int *fds, int nfds)
{
    reply->fds = (uint32_t)nfds;
    if (s->broken)
        return;
    int status = TAILQ_EMPTY(&s->outbox) ? msg_send(s->sock, &reply->msg, length, fds, nfds) : -EAGAIN;
    if (!status || peer_is_gone(status)) /* which the read event says */
        return;
    reply->msg.length = (uint32_t)length;
    outbox_add(s, reply, length, fds, nfds, status);
}

void session_reply_status(struct session *s, const struct fcc_msg *request, int status, const char *text)
{
    struct fcc_reply r = {.msg = {.type = (uint16_t)(request->type | FCC_REPLY), .id = request->id}, .status = status};

    if (status)
        text_copy(r.text, sizeof(r.text), text);
    session_reply(s, &r, sizeof(r), NULL, 0);
}

void session_reply_json(struct session *s, uint64_t id, struct json_object *o, struct error *e)
{
    struct fcc_reply r = {.msg = {.type = FCC_MSG_QUERY | FCC_REPLY, .id = id}};
    int fd = e->status ? -1 : json_to_fd(o, e);

    r.status = e->status;
    text_copy(r.text, sizeof(r.text), e->text);
    session_reply(s, &r, sizeof(r), &fd, fd >= 0);
    fd_close(&fd);
}

void session_farewell(struct session *s, int status, const char *text)
{
    struct fcc_reply r = {.msg = {.type = FCC_MSG_ERROR}, .status = status};

    text_copy(r.text, sizeof(r.text), text);
    session_reply(s, &r, sizeof(r), NULL, 0);
}

void session_break(struct session *s, const char *why)
{
    if (s->broken)
        return;
    s->broken = why;
    s->worker->sweep = true;
}

void session_outbox_free(struct session *s)
{
    struct outgoing *o, *next;

    TAILQ_FOREACH_SAFE(o, &s->outbox, link, next)
        outgoing_free(s, o);
}

/* ---- completion slots ---- */

void slot_running(struct session *s, uint32_t slot)
{
    uint32_t pending = FCC_SLOT_PENDING; /* in state WAITING the client sleeps already */

    (void)atomic_compare_exchange_strong_explicit(&s->memory->slot[slot].state, &pending, FCC_SLOT_RUNNING,
                                                  memory_order_relaxed, memory_order_relaxed);
}

/* Tell the client the engine's core if there are too few cores for all that spin: clients had better share a core with each other, or, where
 * others than this worker's clients take the engine's core, with it. */
static void engine_core_tell(struct session *s)
{
    const struct worker *w = s->worker;
    bool stays = w->contended && (int)w->nclients < w->cores;
    uint32_t core = stays || (int)w->nclients >= w->cores ? (uint32_t)sched_getcpu() + 1 : 0;

    core |= stays ? FCC_ENGINE_CORE_STAY : 0;

    if (core != s->engine_core)
        atomic_store_explicit(&s->memory->engine_core, core, memory_order_relaxed);
    s->engine_core = core;
}

static void slot_finish(const struct session *s, uint32_t slot, uint64_t id, int status, const char *text,
                        const int64_t *values, int nvalues)
{
    struct fcc_slot *t = &s->memory->slot[slot];

    assert(nvalues <= FCC_SLOT_VALUES);
    t->id = id;
    t->status = status;
    t->nvalues = (uint32_t)nvalues;
    if (nvalues)
        memcpy(t->values, values, (size_t)nvalues * sizeof(values[0]));
    t->text[0] = '\0';
    if (status)
        text_copy(t->text, sizeof(t->text), text);
    /* Release: the client that sees DONE (acquire) sees the rest. The exchange tells whether it may be asleep. */
    if (atomic_exchange_explicit(&t->state, FCC_SLOT_DONE, memory_order_acq_rel) == FCC_SLOT_WAITING)
        (void)syscall(SYS_futex, &t->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void slot_complete(struct session *s, uint32_t slot, uint64_t id, int status, const char *text, const int64_t *values,
                   int nvalues)
{
    engine_core_tell(s);
    s->worker->told = true;
    slot_finish(s, slot, id, status, text, values, nvalues);
}

void slot_succeed(const struct session *s, uint32_t slot, uint64_t id, const int64_t *values, int nvalues)
{
    slot_finish(s, slot, id, 0, "", values, nvalues);
}

uint32_t status_word_take(struct session *s)
{
    for (uint32_t i = 0; i < FCC_STATUS_WORDS; i++) {
        if (s->status_words[i / 64] >> i % 64 & 1u)
            continue;
        s->status_words[i / 64] |= UINT64_C(1) << i % 64;
        atomic_store_explicit(&s->memory->status[i], 0, memory_order_relaxed);
        return i;
    }
    return FCC_NO_STATUS_WORD;
}

void status_word_give(struct session *s, uint32_t word)
{
    if (word != FCC_NO_STATUS_WORD)
        s->status_words[word / 64] &= ~(UINT64_C(1) << word % 64);
}

void status_word_raise(struct session *s, uint32_t word, int status)
{
    int32_t none = 0;

    /* Release: the engine has heard of what a rank did last before it tells its end to others (session.h). */
    if (word != FCC_NO_STATUS_WORD)
        (void)atomic_compare_exchange_strong_explicit(&s->memory->status[word], &none, status, memory_order_release,
                                                      memory_order_relaxed);
}

void slot_stream_finish(struct session *s, uint32_t slot, uint32_t value)
{
    /* Release: the stream sees what the engine wrote for this operator. The GPU polls the word, so no wake-up is needed. */
    atomic_store_explicit(&s->memory->slot[slot].stream_finished, value, memory_order_release);
}
