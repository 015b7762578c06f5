/* SPDX-License-Identifier: MIT
 *
 * proto.h - all that passes between a client and its node's daemon.
 *
 * Transport: a Unix socket of type SOCK_SEQPACKET. One packet is one message: struct fcc_msg, then the body that its type
 * says, host byte order (both ends are on one host). The choreography:
 *
 * Order: before the worker handles a message from the socket it takes what is in the ring, so what a client submitted before it
 * sent the message comes before it.
 *
 *   client              broker                    worker
 *     HELLO ------------->|
 *                         | SO_PEERCRED: who is it? may he? which job?
 *                         |--- the connected socket ---->|
 *     <------------------------------------- WELCOME + 2 fds (session memory, doorbell)
 *     COMM_INIT, BUFFER_ALLOC, ... ------------------->|
 *     <----------------------------------------- reply (the request's type | FCC_REPLY), same id
 *     ring: SUBMIT ----------------------------------->|
 *     <------------------- the completion in its slot of the session memory
 *
 * fccctl says in its HELLO that it comes to look (FCC_ROLE_CONTROL) and at which job; to job "" the broker answers itself.
 * Whatever is wrong with a HELLO is answered by an ERROR message, then the connection is closed.
 *
 * Session memory: struct fcc_session_memory, a sealed memfd that the worker made. The submission ring carries the
 * same SUBMIT messages as the socket. The client writes `head`, `data`, `life` and `slot[].state` (only FCC_SLOT_PENDING and
 * FCC_SLOT_WAITING), and `status` when the worker is gone, its kernels `prepared`; the worker writes the rest. Neither trusts what the other wrote.
 */
#ifndef FCC_PROTO_PROTO_H
#define FCC_PROTO_PROTO_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

#define FCC_PROTO_MAGIC 0x64636366u /* "fccd" */
#define FCC_PROTO_VERSION 4u
#define FCC_SOCKET_DEFAULT "/run/fccd/fccd.sock"

#define FCC_MSG_MAX 65536u /* bytes of the longest message */
#define FCC_JOB_MAX 64     /* bytes of a job's id with its NUL */
#define FCC_MPS_PIPE_MAX 112
#define FCC_NODE_MAX 64   /* bytes of a node's address, "host:port", with its NUL */
#define FCC_MAX_TENSORS 8 /* tensors of one operator */
#define FCC_MAX_FDS 4     /* file descriptors with one message */
#define FCC_MAX_GPUS 16   /* of a node */

/* Every message that a client may send: X(NAME, name, bytes of the fixed part, fds that come with the reply).
 * The enum, the names, the size checks and the worker's table of handlers are made from this list. */
#define FCC_MESSAGES(X)                                                                                                        \
    X(HELLO, hello, sizeof(struct fcc_hello), 2)                                                                               \
    X(UNIQUE_ID, unique_id, sizeof(struct fcc_msg), 0)                                                                         \
    X(COMM_INIT, comm_init, sizeof(struct fcc_comm_init_msg), 0)                                                               \
    X(COMM_DESTROY, comm_destroy, sizeof(struct fcc_comm_msg), 0)                                                              \
    X(COMM_ABORT, comm_abort, sizeof(struct fcc_comm_msg), 0)                                                                  \
    X(BUFFER_ALLOC, buffer_alloc, sizeof(struct fcc_buffer_alloc_msg), 1)                                                      \
    X(BUFFER_FREE, buffer_free, sizeof(struct fcc_buffer_free_msg), 0)                                                         \
    X(SUBMIT, submit, sizeof(struct fcc_submit), 0)                                                                            \
    X(QUERY, query, sizeof(struct fcc_query), 1)                                                                               \
    X(MEETING, meeting, sizeof(struct fcc_meeting), 0)                                                                         \
    X(BUFFER_PEER, buffer_peer, sizeof(struct fcc_buffer_peer_msg), 1)                                                         \
    X(TRIGGERS, triggers, sizeof(struct fcc_triggers_msg), 1)                                                                  \
    X(PUT_REGISTER, put_register, sizeof(struct fcc_put_msg), 0)                                                               \
    X(STREAM_WORDS, stream_words, sizeof(struct fcc_stream_words_msg), 1)                                                      \
    X(PREPARED, prepared, sizeof(struct fcc_prepared_msg), 1)                                                                  \
    X(PREPARED_FREE, prepared_free, sizeof(struct fcc_prepared_msg), 0)                                                        \
    X(RUN_REFUSED, run_refused, sizeof(struct fcc_run_refused_msg), 0)

enum fcc_msg_type {
    FCC_MSG_NONE = 0,
#define X(NAME, name, size, fds) FCC_MSG_##NAME,
    FCC_MESSAGES(X)
#undef X
        FCC_MSG_TYPES,
    FCC_REPLY = 0x8000, /* or'ed to the type of the request */
    FCC_MSG_ERROR = FCC_REPLY,
};

/* Opens every message. */
struct fcc_msg {
    uint32_t length; /* of the whole message */
    uint16_t type;   /* enum fcc_msg_type */
    uint16_t zero;
    uint64_t id; /* the sender's; repeated in the reply */
};
static_assert(sizeof(struct fcc_msg) == 16, "wire");

enum fcc_role { FCC_ROLE_CLIENT = 1, FCC_ROLE_CONTROL = 2 };

struct fcc_hello {
    struct fcc_msg msg;
    uint32_t magic;
    uint32_t version;
    uint32_t role;         /* enum fcc_role */
    uint32_t uid;          /* control: whose job. client: 0xffffffff */
    char job[FCC_JOB_MAX]; /* NUL-terminated printable ASCII. control: "" speaks to the broker */
    /* client: its CUDA_MPS_PIPE_DIRECTORY, or "". The worker that is started for it joins the same MPS server: stream order
     * between two processes is fast only there (NVIDIA Multi-Process Service). NUL-terminated printable ASCII, absolute */
    char mps_pipe[FCC_MPS_PIPE_MAX];
};
static_assert(sizeof(struct fcc_hello) == 208, "wire");

/* Opens every reply. */
struct fcc_reply {
    struct fcc_msg msg;
    int32_t status;          /* 0 or a negative errno value */
    uint32_t fds;            /* file descriptors that came along */
    char text[FCC_TEXT_MAX]; /* the reason, if status is not 0 */
};
static_assert(sizeof(struct fcc_reply) == 536, "wire");

struct fcc_welcome { /* reply to HELLO; fds (client): session memory, doorbell eventfd. (control): none */
    struct fcc_reply reply;
    uint32_t version;
    uint32_t devices;
    uint32_t worker_pid;
    uint32_t spin_us; /* how long a client may spin before it sleeps */
};
static_assert(sizeof(struct fcc_welcome) == 552, "wire");

/* What lies in a struct fcc_unique_id; nobody but the daemon looks into it. */
struct fcc_unique_id_layout {
    unsigned char secret[40];
    char root[FCC_NODE_MAX]; /* address of the node that made it, where the ranks meet; "": that node speaks to no other */
    unsigned char zero[24];
};
static_assert(sizeof(struct fcc_unique_id_layout) == sizeof(struct fcc_unique_id) && sizeof(struct fcc_unique_id) == 128,
              "wire");

struct fcc_unique_id_reply {
    struct fcc_reply reply;
    struct fcc_unique_id unique_id;
};
static_assert(sizeof(struct fcc_unique_id_reply) == 664, "wire");

/* MEETING: ranks that know each other's launcher, and have exchanged nothing, get the same id on all nodes: it follows from the
 * name, the root, and a key that the workers of the job have in common. */
#define FCC_MEETING_NAME_MAX 128
struct fcc_meeting { /* answered with a fcc_unique_id_reply */
    struct fcc_msg msg;
    char name[FCC_MEETING_NAME_MAX]; /* NUL-terminated printable ASCII, not "" */
    char root[FCC_NODE_MAX];         /* a node; without a port: this node's port. "": this node */
};
static_assert(sizeof(struct fcc_meeting) == 208, "wire");

struct fcc_comm_init_msg {
    struct fcc_msg msg;
    struct fcc_unique_id unique_id;
    int32_t nranks;
    int32_t rank;
    int32_t device;         /* among those of its kind; -1: the daemon's choice */
    uint32_t time_limit_ms; /* 0: the daemon's */
    uint32_t device_kind;   /* enum fcc_device_kind */
    /* 0, or a positive errno value: the client's library has refused to join, and the other ranks are to hear of it. A text follows that says
     * why; without, nothing does. */
    uint32_t refused;
};
static_assert(sizeof(struct fcc_comm_init_msg) == 168, "wire");

struct fcc_comm_init_reply {
    struct fcc_reply reply;
    uint32_t comm; /* handle, valid in this session */
    int32_t device;
    uint32_t time_limit_ms;        /* in force */
    uint32_t device_kind;          /* enum fcc_device_kind: CPU, HIP or CUDA */
    unsigned char device_uuid[16]; /* of a GPU: the client may number them differently */
    uint32_t status_word;          /* in fcc_session_memory.status; FCC_NO_STATUS_WORD: they are all in use */
    /* The communicator's GPUs, a bit for each device, if streams can hand over to it by words in the memory of all of them
     * (STREAM_WORDS). 0: by words in the session memory only; over several nodes, too. */
    uint32_t words_gpus;
};
static_assert(sizeof(struct fcc_comm_init_reply) == 576, "wire");

struct fcc_comm_msg { /* COMM_DESTROY; COMM_ABORT */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t zero;
    char reason[208]; /* NUL-terminated; may be "" */
};
static_assert(sizeof(struct fcc_comm_msg) == 232, "wire");

struct fcc_buffer_alloc_msg {
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t kind; /* enum fcc_buffer_kind */
    uint64_t bytes;
};
static_assert(sizeof(struct fcc_buffer_alloc_msg) == 32, "wire");

struct fcc_buffer_alloc_reply { /* fd: the memory */
    struct fcc_reply reply;
    uint32_t buffer;    /* handle, valid in this session */
    uint32_t memory;    /* enum fcc_memory_kind */
    uint64_t map_bytes; /* of the memory */
};
static_assert(sizeof(struct fcc_buffer_alloc_reply) == 552, "wire");

struct fcc_buffer_free_msg {
    struct fcc_msg msg;
    uint32_t buffer;
    uint32_t zero;
};
static_assert(sizeof(struct fcc_buffer_free_msg) == 24, "wire");

/* The memory of another rank's part of a symmetric allocation. Answered with a fcc_buffer_alloc_reply (buffer: the one that was
 * named). The worker keeps that memory until the named buffer is freed, also if the other rank frees its own before. */
struct fcc_buffer_peer_msg {
    struct fcc_msg msg;
    uint32_t buffer; /* this rank's part */
    int32_t rank;    /* whose is wanted */
};
static_assert(sizeof(struct fcc_buffer_peer_msg) == 24, "wire");

/* ---- puts to other nodes ---- */

/* A rank's trigger FIFO, a sealed memfd that the worker made with the first of these messages. Its programs' kernels write
 * `head` and the slots, the worker `tail` and the zeroes. A producer
 *   - takes the position p = head++ (acquire, release);
 *   - waits until p - tail < FCC_TRIGGER_SLOTS (tail: acquire), or leaves for good when the communicator's status is not 0: the
 *     position stays empty, and nothing behind it is ever taken, but the communicator is over;
 *   - stores `second` of slot p % FCC_TRIGGER_SLOTS, then `first` (release).
 * The worker takes the slots in their order: waits until `first` is not 0 (acquire), copies both words out, stores 0 there,
 * then tail (release). So a producer stores into a slot after the worker has emptied it, and what it had stored before comes
 * before the put. The worker believes nothing: it has a tail of its own, and looks a number up in its own table. */
#define FCC_TRIGGER_SLOTS 4096u
struct fcc_trigger_memory {
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) struct {
        _Atomic uint64_t first;  /* the number of a put; 0: empty */
        _Atomic uint64_t second; /* the signal's value */
    } slot[FCC_TRIGGER_SLOTS];
};
static_assert(sizeof(struct fcc_trigger_memory) == 128 + 16 * FCC_TRIGGER_SLOTS, "wire");

struct fcc_triggers_msg { /* fd of the reply: the memory */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t zero;
};
static_assert(sizeof(struct fcc_triggers_msg) == 24, "wire");

struct fcc_put_msg { /* struct fcc_put; buffers are this rank's. Answered with a fcc_put_reply */
    struct fcc_msg msg;
    uint32_t comm;
    int32_t rank;
    uint32_t from, to, signals; /* 0: none */
    uint32_t rows;
    uint64_t row_bytes, stride;
    uint64_t from_offset, to_offset, signal_offset;
};
static_assert(sizeof(struct fcc_put_msg) == 80, "wire");

struct fcc_put_reply {
    struct fcc_reply reply;
    uint32_t number;
    uint32_t zero;
};
static_assert(sizeof(struct fcc_put_reply) == 544, "wire");

/* ---- operators ---- */

struct fcc_wire_tensor {
    uint32_t buffer; /* handle; 0: the tensor is absent */
    uint16_t dtype;  /* enum fcc_dtype */
    uint16_t ndim;
    uint64_t offset; /* bytes */
    int64_t shape[FCC_MAX_DIMS];
    int64_t stride[FCC_MAX_DIMS]; /* elements; the library has filled in the dense ones */
};
static_assert(sizeof(struct fcc_wire_tensor) == 80, "wire");

enum fcc_prepare {
    FCC_PREPARE_RUN,
    FCC_PREPARE_ONLY, /* do not run it, but prepare it (PREPARED). values[0] of the completion is its number, in the communicator, values[1]
                         its place in the session memory */
    FCC_PREPARE_ASK, /* run it; and if all ranks ask, prepare it, so that later ones can be offered: struct fcc_prepared_words */
};

/* A request for an operator: this, then ntensors tensors in the operator's order (enum fcc_*_tensor), then nattrs words of
 * attributes. An attribute is one word (key << 32 | count) and `count` words of values. */
struct fcc_submit {
    struct fcc_msg msg;
    uint32_t comm;
    uint16_t op;      /* enum fcc_op */
    uint8_t schedule; /* enum fcc_schedule_kind | enum fcc_schedule_route */
    uint8_t ntensors; /* at most FCC_MAX_TENSORS */
    uint32_t slot;    /* where the completion goes; FCC_NO_SLOT: a fcc_submit_reply over the socket */
    uint32_t nattrs;  /* words */
    uint32_t
        stream; /* 0: begins when all ranks have submitted. Otherwise, with a slot, on a GPU: the operator has its place on a
                         stream of the client, see struct fcc_slot */
    uint16_t gpu_words; /* 1: by the words in the memory of GPUs, which the session has on all of the communicator's */
    uint16_t prepare;   /* enum fcc_prepare */
    /* RUN: the number of what was prepared, in the communicator, whose run `run` stands on the stream: see struct fcc_prepared_words. 0: no
     * kernel stands there. ASK: the client's own number of the request, not 0. */
    uint32_t offer;
    /* 0, or a positive errno value: the client's library has refused the operator, which takes its turn nevertheless, so that all ranks hear of
     * it. It has no tensors; the words of attributes are a text that says why. op may be FCC_OP_COUNT then: a symmetric allocation. */
    uint32_t refused;
    uint64_t run;
};
static_assert(sizeof(struct fcc_submit) == 56, "wire");
#define FCC_REFUSED_WORDS (FCC_TEXT_MAX / 8) /* at most, the text's NUL among them */
#define FCC_QUEUE_MAX 1024u                  /* operators of one rank in flight: one more ends its communicator */
#define FCC_REFUSED_MAX 4095                 /* the largest errno value */
#define FCC_NO_SLOT 0xffffffffu

/* What a finished operator returns besides its status: gemm_all_to_all the rows received from each rank. */
struct fcc_submit_reply {
    struct fcc_reply reply;
    uint32_t nvalues;
    uint32_t zero;
    int64_t values[FCC_MAX_RANKS];
};
static_assert(sizeof(struct fcc_submit_reply) == 1056, "wire");

/* Operators that clients launch themselves. With the completion of a SUBMIT with `prepare` the worker has made, for each rank, a plan that
 * the plug-in understands (kernels/gpu/bound.h), and memory for flags and words that all ranks' kernels address. */
enum fcc_prepared_what {
    FCC_PREPARED_PLAN,   /* this rank's plan: a sealed memfd */
    FCC_PREPARED_AREA,   /* the memory of a rank's flags and words */
    FCC_PREPARED_RESULT, /* the memory of a rank's result. The worker keeps both until all ranks have freed the operator */
};
struct fcc_prepared_msg { /* PREPARED; PREPARED_FREE: only comm and number */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t number;
    uint32_t what; /* enum fcc_prepared_what */
    int32_t rank;  /* whose; PLAN: this one's */
};
static_assert(sizeof(struct fcc_prepared_msg) == 32, "wire");

/* This rank has not come to a run of a prepared operator that it was to launch by itself: the others' runs wait for it. */
struct fcc_run_refused_msg {
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t number;         /* of the operator */
    uint32_t run;            /* its lower half */
    uint32_t refused;        /* why: a positive errno value; 0: it has come after all */
    char text[FCC_TEXT_MAX]; /* ... in words. NUL-terminated */
};
static_assert(sizeof(struct fcc_run_refused_msg) == 32 + FCC_TEXT_MAX, "wire");

#define FCC_PLUGIN_PATH_MAX 1024
struct fcc_prepared_reply { /* fd: the memory */
    struct fcc_reply reply;
    uint32_t memory; /* enum fcc_memory_kind */
    uint32_t zero;
    uint64_t map_bytes;               /* of the memory */
    char plugin[FCC_PLUGIN_PATH_MAX]; /* PLAN: the worker's file of the plug-in, for texts. NUL-terminated */
};
static_assert(sizeof(struct fcc_prepared_reply) == 1576, "wire");

/* ---- session memory ---- */

#define FCC_RING_BYTES (256u * 1024u) /* a power of two, at least 2 * FCC_MSG_MAX */
#define FCC_SLOTS 64u
#define FCC_RECORD_ALIGN 16u /* records in the ring start at multiples of this */

enum fcc_slot_state {
    FCC_SLOT_FREE = 0,
    FCC_SLOT_PENDING = 1, /* submitted */
    FCC_SLOT_WAITING = 2, /* submitted, and a thread sleeps on the state's futex */
    FCC_SLOT_RUNNING = 4, /* the workgroups have begun and need the cores: who waits sleeps rather than spins (worker writes) */
    FCC_SLOT_DONE = 3,    /* the rest of the slot is valid (release by the worker, acquire by the client) */
};

struct fcc_slot {
    _Atomic uint32_t state; /* futex */
    int32_t status;
    uint64_t id; /* of the message */
    uint32_t nvalues;
    uint32_t zero;
    int64_t values[FCC_MAX_RANKS];
    char text[FCC_TEXT_MAX];
    /* Stream order. For an operator that is submitted with stream = n (each slot counts its own, from 1; compared cyclically,
     * but a HIP client begins anew at 1 before its counts wrap, because HIP's streams compare without sign): the client's
     * stream sets stream_started to n, then waits for stream_finished to reach n. The worker's GPU waits for stream_started,
     * runs the operator, and sets stream_finished. The worker's CPU sets stream_finished too when an operator ends otherwise,
     * and the client's when the worker has died: so no stream waits for ever. If the operator is to leave before the stream
     * has come, the worker sets stream_started, for its own GPU, to fcc_stream_passed(n). The stream's write of n still
     * follows: until it has come, the slot's words are not used again.
     *
     * With gpu_words this is said by the words of struct fcc_stream_words instead. stream_started is set to n nevertheless,
     * after those, for the CPUs; stream_finished is not. */
    _Atomic uint32_t stream_started;
    _Atomic uint32_t stream_finished;
};
static_assert(sizeof(struct fcc_slot) == 1056, "wire");

#define FCC_STREAM_LAST (UINT32_MAX - 1) /* the largest n */

/* A prepared operator's runs on this rank, as its kernels say: run n has begun; it has ended (kernels/gpu/abi.h: gpu_done_make(n, ticks)).
 *
 * Offers. An operator that all ranks asked for (FCC_PREPARE_ASK) is prepared beside the ranks' requests, and the rest of this says so to the
 * client, who need not hear of it at a certain time. Its operators are numbered, in each communicator, from 1 on, as they are submitted.
 * From number `first` on each one of the kind that was asked for is the next run, 1, 2, 3, ..., if the client has been able to get what the
 * run needs: it puts the run's kernel onto the stream, and says so (fcc_submit.offer). The kernel waits for a word of its rank's area,
 * by which the worker decides: it begins; or it stands back, and the operator is run as if it had not been offered, the kernel doing
 * at the stream's words what the stream would have done. All ranks have the same number of runs, or none is granted any more. */
struct fcc_prepared_words {
    _Alignas(64) _Atomic uint64_t begun;
    _Atomic uint64_t ended;
    /* The client's handle; what the client called it; what the worker does. Of the offering that `first` tells of, if that is the same before
     * and after they are read: the worker sets it to 0 before it writes them anew. */
    _Atomic uint32_t comm, request, number;
    uint32_t zero;
    _Atomic uint64_t first; /* release; 0: it is none to be offered; FCC_OFFERS_END: it is no more */
};
#define FCC_OFFERS_END UINT64_MAX
#define FCC_OFFERED_MAX 64u
#define FCC_PREPARED_PLACES (FCC_PREPARED_MAX + FCC_OFFERED_MAX) /* the program's, then those that are offered */
static_assert(sizeof(struct fcc_prepared_words) == 64, "wire");

#define FCC_STATUS_WORDS 1024u /* communicators that a session's programs can look at, at a time */
#define FCC_NO_STATUS_WORD 0xffffffffu

/* A session's words in the memory of one GPU: for a GPU to wait for a word in its own memory takes a fraction of what one
 * in the host's takes. The worker makes them, when the client asks for them, and they live as long as either has them, whoever
 * dies. The client's stream sets started[slot] on every GPU of the communicator, each of which waits for its own; the last one to set
 * finished[slot], on the rank's GPU, is its kernel. What no kernel finishes, and what is to leave, the worker sets by a
 * stream of its own; when it is dead, the client does. Where the worker has set started[slot] to fcc_stream_passed(n), it sets it to
 * n before it completes the operator: so it is n, by whomever, when the slot is used again. */
struct fcc_stream_word {
    _Atomic uint32_t value;
    uint32_t zero; /* what GPUs' streams store in passing is 8 bytes */
};
struct fcc_stream_words {
    struct fcc_stream_word started[FCC_SLOTS], finished[FCC_SLOTS];
};
static_assert(sizeof(struct fcc_stream_words) == 1024, "shared by GPUs");

struct fcc_stream_words_msg { /* STREAM_WORDS: those on one GPU */
    struct fcc_msg msg;
    uint32_t comm; /* of which it is one of words_gpus */
    uint32_t gpu;
};
static_assert(sizeof(struct fcc_stream_words_msg) == 24, "wire");

struct fcc_stream_words_reply { /* fd: the memory, which begins with a struct fcc_stream_words. -EOPNOTSUPP: use the others */
    struct fcc_reply reply;
    uint32_t memory; /* enum fcc_memory_kind */
    uint32_t zero;
    uint64_t map_bytes; /* of the memory */
};
static_assert(sizeof(struct fcc_stream_words_reply) == 552, "wire");

/* Not n, and past it by either way to compare. */
static inline uint32_t fcc_stream_passed(uint32_t n)
{
    return UINT32_MAX - n < 1u << 30 ? UINT32_MAX : n + (1u << 30);
}

/* Has run n of a prepared operator ended, by its word `ended`? Where one of the worker's own kernels stands behind the run and is to leave, the
 * worker sets the word to fcc_stream_passed(n): then that one waits no more, but the run has not ended for that. */
static inline bool fcc_run_ended(uint64_t ended, uint32_t n)
{
    return (uint32_t)ended - n < 1u << 30;
}

/* head and tail count bytes ever written and ever read; they never wrap. Record n lies at data[offset % FCC_RING_BYTES] and may
 * continue at data[0].
 *
 * Doorbell: the client stores head, then loads worker_sleeps; the worker stores worker_sleeps, then loads head once more
 * before it sleeps; all four sequentially consistent. So either the client sees the flag and rings, or the worker sees the
 * record. */
struct fcc_session_memory {
    _Alignas(64) _Atomic uint64_t head;          /* client writes */
    _Alignas(64) _Atomic uint64_t tail;          /* worker writes */
    _Alignas(64) _Atomic uint32_t worker_sleeps; /* worker writes: 1 means ring the doorbell */
    _Atomic uint32_t engine_core;   /* worker writes, now and then: 1 + the core it runs on, where cores are short; or 0 */
    _Atomic uint32_t time_limit_ms; /* worker writes, once: of communicators whose ranks name none */
    /* A client with a rank on a GPU: a robust futex (man 2 get_robust_list) that a thread of it holds until it disconnects. 0
     * before and after; the thread's TID; with FUTEX_OWNER_DIED, by the kernel, when the process dies. The worker adds
     * FUTEX_WAITERS. */
    _Alignas(64) _Atomic uint32_t life;
    /* Of each of the session's communicators, for kernels of the client that wait for other ranks: 0, or (negative errno value)
     * why nobody should wait any more. Release: what the ranks that are gone had stored before comes before it. */
    _Alignas(64) _Atomic int32_t status[FCC_STATUS_WORDS];
    _Alignas(64) struct fcc_slot slot[FCC_SLOTS];
    _Alignas(64) unsigned char data[FCC_RING_BYTES];
    _Alignas(
        64) _Atomic uint32_t offers; /* worker writes (release): how many of `prepared` have ever been ones to be offered */
    _Alignas(64) struct fcc_prepared_words prepared[FCC_PREPARED_PLACES];
};
static_assert(sizeof(struct fcc_session_memory) % 64 == 0, "layout");

/* ---- control ---- */

/* What fccctl asks. X(NAME, name): the broker answers status, devices, nodes and ping; a worker the rest, and nodes for its job's
 * links. The reply's fd is a sealed memfd of JSON. */
#define FCC_QUERIES(X)                                                                                                         \
    X(STATUS, status) X(DEVICES, devices) X(COMMS, comms) X(TRACE, trace) X(ABORT, abort) X(NODES, nodes) X(PING, ping)

#define FCC_PINGS_MAX 1000u

enum fcc_query_kind {
#define X(NAME, name) FCC_QUERY_##NAME,
    FCC_QUERIES(X)
#undef X
        FCC_QUERY_COUNT
};

struct fcc_query {
    struct fcc_msg msg;
    uint32_t what; /* enum fcc_query_kind */
    uint32_t
        comm; /* TRACE, ABORT: the communicator's number in COMMS; 0: the only one, or the one used last. PING: how often */
    uint32_t next;    /* TRACE: 1 waits for the next operator, 0 takes the last finished one */
    uint32_t wait_ms; /* TRACE next: how long */
    char text[208];   /* ABORT: the reason. PING: the node's address */
};
static_assert(sizeof(struct fcc_query) == 240, "wire");

#endif
