/* SPDX-License-Identifier: MIT
 *
 * endpoint.h - where a client is told: its connection, and the completion slots and status words in the memory that it shares with the
 * worker. Who reads what the client says is session/session.h.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_ENDPOINT_H
#define FCC_DAEMON_WORKER_ENGINE_ENDPOINT_H

#include <stdbool.h>
#include <sys/types.h>

#include "daemon/worker/engine/engine.h"
#include "proto/base/list.h"
#include "proto/proto.h"
#include "proto/session.h"

struct buffer;
struct gpu_words;
struct json_object;
struct member;
struct outgoing;

struct session {
    struct worker *worker;
    TAILQ_ENTRY(session) link; /* worker.sessions */
    int sock;
    uint32_t role;    /* enum fcc_role */
    uint32_t version; /* of the protocol, that the client speaks */
    uid_t uid;
    pid_t pid;
    int process; /* a descriptor of the client's process (process.h). -1: there is none */
    struct event *event, *write_event, *again_event, *doorbell_event, *process_event;
    TAILQ_HEAD(outbox_head, outgoing) outbox; /* replies that the socket had no room for */
    unsigned outbox_length;
    uint64_t outbox_since_ns; /* since when the first reply cannot be sent though the socket has room. 0: that is not so */
    uint64_t charged;         /* bytes that the account was charged for the session itself */
    struct fcc_session_memory *memory; /* shared with the client. NULL: a control session has none */
    uint64_t gpu_address;              /* where GPUs see `memory`. 0: they do not */
    TAILQ_ENTRY(session) life_link;    /* life.c: a link, while gpu_address is not 0 */
    _Atomic bool life_over;            /* life.c: the client's process has died */
    struct gpu_words *words; /* device/gpu/stream.c: the words of the client's streams in the memory of GPUs. NULL: none */
    uint32_t words_gpus;     /* device/gpu/stream.c: of which GPUs, a bit each */
    int doorbell;
    uint64_t tail;        /* bytes read from the ring. memory->tail is a copy of this for the client */
    uint32_t engine_core; /* as written to memory */
    LIST_HEAD(members_head, member) members;
    LIST_HEAD(buffers_head, buffer) buffers;
    uint32_t last_handle;
    uint64_t status_words[FCC_STATUS_WORDS / 64]; /* a bit for each status word that is in use */
    uint64_t prepared_places;                     /* comm/bound/bound.c: a bit for each of memory->prepared[] that is in use */
    uint64_t repeated_places;                     /* comm/bound/bound.c: the same for those behind them */
    uint64_t stream_slots; /* comm/request/submission.c: a bit for each slot whose operator has its place on a stream */
    const char *broken;    /* why the session is about to be freed. NULL: it is not */
};

/* ---- replies over the socket ---- */

/* Send a reply. A full socket, and a kernel that takes no more descriptors for a while, only delay it. fds are duplicated as needed; the
 * caller keeps its own. A reply that cannot be sent ends the connection. */
void session_reply(struct session *s, struct fcc_reply *reply, size_t length, const int *fds, int nfds);
/* A reply without a body. */
void session_reply_status(struct session *s, const struct fcc_msg *request, int status, const char *text);
/* Answer a query with a JSON object, whose reference this takes, or with the error *e. */
void session_reply_json(struct session *s, uint64_t id, struct json_object *o, struct error *e);
/* Say why the connection ends: the client's calls end with this rather than with -ECONNRESET. */
void session_farewell(struct session *s, int status, const char *text);
/* The connection has ended or broken the protocol (why: a literal, for the log and for the other ranks). Nothing more is read
 * from it; the loop frees it, when no function is in the middle of using it. */
void session_break(struct session *s, const char *why);
/* Replies that wait for the socket go on when it has room: the callback of write_event and again_event. */
void session_on_room(evutil_socket_t sock, short what, void *session);
/* Replies that wait are never sent. */
void session_outbox_free(struct session *s);

/* ---- completion slots ---- */

/* The slot's operator has begun and needs the cores: a client that waits for it is to sleep. */
void slot_running(struct session *s, uint32_t slot);
/* Write a completion into a slot and wake the client that sleeps on it. */
void slot_complete(struct session *s, uint32_t slot, uint64_t id, int status, const char *text, const int64_t *values,
                   int nvalues);
/* As slot_complete(), for an operator that has succeeded. Any thread. */
void slot_succeed(const struct session *s, uint32_t slot, uint64_t id, const int64_t *values, int nvalues);
/* Let the client's stream go on that waits for the slot's operator by the slot's own words. */
void slot_stream_finish(struct session *s, uint32_t slot, uint32_t value);

/* ---- status words ---- */

/* Take a word for a communicator's status. The word is 0. FCC_NO_STATUS_WORD: there is none left. */
uint32_t status_word_take(struct session *s);
void status_word_give(struct session *s, uint32_t word);
/* The word says why the communicator ended from now on, unless it does already. */
void status_word_raise(struct session *s, uint32_t word, int status);

#endif
