/* SPDX-License-Identifier: MIT
 *
 * proto.h - the protocol between a client and its node's daemon: messages on a socket.
 * What both map is in session.h: the session memory, GPUs' stream words and trigger FIFOs.
 *
 * Transport: a Unix socket of type SOCK_SEQPACKET. One packet is one message: struct fcc_msg, then the body of its type, in
 * host byte order (both ends are on one host).
 *
 * Order: before the worker handles a message from the socket, it takes all submissions from the ring. So operators that a
 * client submitted before it sent a message are handled before that message.
 *
 *   client              broker                    worker
 *     HELLO ------------->|
 *                         | SO_PEERCRED: which user? permitted? which job?
 *                         |--- the connected socket ---->|
 *     <------------------------------------- WELCOME + 2 fds (session memory, doorbell)
 *     COMM_INIT, BUFFER_ALLOC, ... ------------------->|
 *     <----------------------------------------- reply (the request's type | FCC_REPLY), same id
 *     ring: SUBMIT ----------------------------------->|
 *     <------------------- the completion in its slot of the session memory
 *
 * Versions (ABI.md): a client says its version in HELLO. The broker takes those from FCC_PROTO_OLDEST to FCC_PROTO_VERSION, and the WELCOME repeats
 * the client's: the connection speaks that. Other versions are answered by an ERROR that says which this fccd speaks; a newer client then
 * says HELLO again with one of them. On GPUs both must be of the same version, as client and worker share kernels and plans there.
 *
 * fccctl's HELLO has the role FCC_ROLE_CONTROL and names the job to inspect; for job "" the broker itself answers. A bad HELLO
 * is answered by an ERROR message, then the connection is closed.
 */
#ifndef FCC_PROTO_PROTO_H
#define FCC_PROTO_PROTO_H

#include <assert.h>
#include <stdint.h>

#include "proto/base/address.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

#define FCC_PROTO_MAGIC 0x64636366u /* "fccd" */
/* The version changes when something is added that an older side does not know. Both sides of a connection speak the older one's version, down to
 * FCC_PROTO_OLDEST, which changes when what there was is not as it was any more: proto/ABI.md. */
#ifndef FCC_PROTO_VERSION /* tests have a fccd and a library of the oldest one */
#define FCC_PROTO_VERSION 9u
#endif
#define FCC_PROTO_OLDEST 5u
#define FCC_PROTO_TRACKERS 6u    /* TRACKER, TRACKER_FREE and RULE */
#define FCC_PROTO_STREAM_RUNS 7u /* struct fcc_rule_state has `begun` and `ran` */
#define FCC_PROTO_GROUPS 7u      /* COMM_SPLIT and COMM_ADOPT; fccctl's METRICS, FLIGHTS, FLIGHT and CONFIG */
#define FCC_PROTO_PROGRAMS                                                                                                     \
    8u /* steps of programs as code.h has them now, FCC_ATTR_TILE and FCC_ATTR_DTYPES; PREPARED's INPUT and CODE */
#define FCC_PROTO_HALVES 9u /* CODE_GATHER, CODE_REDUCE without a result, and CODE_SUM beside it */
#define FCC_SOCKET_DEFAULT "/run/fccd/fccd.sock"

#define FCC_MSG_MAX 65536u /* bytes of the longest message */
#define FCC_JOB_MAX 64     /* bytes of a job's id with its NUL */
#define FCC_MPS_PIPE_MAX 112
#define FCC_NODE_MAX ADDRESS_BYTES
#define FCC_MAX_TENSORS 14 /* tensors of one operator, with its epilogue's */
#define FCC_MAX_FDS 4      /* file descriptors with one message */
#define FCC_MAX_GPUS 16    /* GPUs of one node */

/* Every message that a client may send: X(NAME, name, bytes of the fixed part, file descriptors with the reply).
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
    X(RUN_REFUSED, run_refused, sizeof(struct fcc_run_refused_msg), 0)                                                         \
    X(TRACKER, tracker, sizeof(struct fcc_tracker_msg), 2)                                                                     \
    X(TRACKER_FREE, tracker_free, sizeof(struct fcc_tracker_msg), 0)                                                           \
    X(RULE, rule, sizeof(struct fcc_rule_msg), 0)                                                                              \
    X(COMM_SPLIT, comm_split, sizeof(struct fcc_comm_split_msg), 0)                                                            \
    X(COMM_ADOPT, comm_adopt, sizeof(struct fcc_comm_adopt_msg), 0)

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
    uint64_t id; /* chosen by the sender; the reply repeats it */
};
static_assert(sizeof(struct fcc_msg) == 16, "wire");

enum fcc_role { FCC_ROLE_CLIENT = 1, FCC_ROLE_CONTROL = 2 };

struct fcc_hello {
    struct fcc_msg msg;
    uint32_t magic;
    uint32_t version;      /* that the client wants to speak */
    uint32_t role;         /* enum fcc_role */
    uint32_t uid;          /* control: the user whose job it is. client: 0xffffffff */
    char job[FCC_JOB_MAX]; /* the job's id: NUL-terminated printable ASCII. control: "" is the broker itself */
    /* client: its CUDA_MPS_PIPE_DIRECTORY, an absolute path, or "". A worker that is started for this client joins the same MPS
     * server (NVIDIA Multi-Process Service), because streams of two processes synchronize fast only under one server.
     * NUL-terminated printable ASCII. */
    char mps_pipe[FCC_MPS_PIPE_MAX];
};
static_assert(sizeof(struct fcc_hello) == 208, "wire");

/* Opens every reply. */
struct fcc_reply {
    struct fcc_msg msg;
    int32_t status;          /* 0 or a negative errno value */
    uint32_t fds;            /* number of file descriptors with this message */
    char text[FCC_TEXT_MAX]; /* the reason, if status is not 0 */
};
static_assert(sizeof(struct fcc_reply) == 536, "wire");

/* The reply to HELLO. File descriptors for a client: the session memory, the doorbell eventfd. For control: none. */
struct fcc_welcome {
    struct fcc_reply reply;
    uint32_t version; /* that is spoken: the HELLO's */
    uint32_t devices; /* number of the node's devices */
    uint32_t worker_pid;
    uint32_t spin_us; /* how long a client may spin before it sleeps */
};
static_assert(sizeof(struct fcc_welcome) == 552, "wire");

/* The contents of a struct fcc_unique_id, which only the daemon reads. */
struct fcc_unique_id_layout {
    unsigned char secret[40];
    /* address of the node that made the id, where the ranks meet; "": that node has no network listener */
    char root[FCC_NODE_MAX];
    unsigned char zero[24];
};
static_assert(sizeof(struct fcc_unique_id_layout) == sizeof(struct fcc_unique_id) && sizeof(struct fcc_unique_id) == 128,
              "wire");

struct fcc_unique_id_reply {
    struct fcc_reply reply;
    struct fcc_unique_id unique_id;
};
static_assert(sizeof(struct fcc_unique_id_reply) == 664, "wire");

/* MEETING: a rendezvous by name. Ranks of one launcher get the same id on all nodes without exchanging anything: the worker
 * derives it from the name, the root, and a key that all workers of the job share. The reply is a fcc_unique_id_reply. */
#define FCC_MEETING_NAME_MAX 128
struct fcc_meeting {
    struct fcc_msg msg;
    char name[FCC_MEETING_NAME_MAX]; /* NUL-terminated printable ASCII, not "" */
    char root[FCC_NODE_MAX];         /* address of the node where the ranks meet; no port: this node's port. "": this node */
};
static_assert(sizeof(struct fcc_meeting) == 208, "wire");

struct fcc_comm_init_msg {
    struct fcc_msg msg;
    struct fcc_unique_id unique_id;
    int32_t nranks;
    int32_t rank;
    int32_t device;         /* index among the devices of its kind; -1: the daemon chooses */
    uint32_t time_limit_ms; /* 0: the daemon's default */
    uint32_t device_kind;   /* enum fcc_device_kind */
    /* A positive errno value: the client's library refuses to join, and the worker tells the other ranks; the reason's text
     * follows this struct. 0: a request to join; nothing follows. */
    uint32_t refused;
};
static_assert(sizeof(struct fcc_comm_init_msg) == 168, "wire");

#define FCC_NO_STATUS_WORD 0xffffffffu
struct fcc_comm_init_reply {
    struct fcc_reply reply;
    uint32_t comm; /* the communicator's handle, valid in this session */
    int32_t device;
    uint32_t time_limit_ms;        /* the limit in force */
    uint32_t device_kind;          /* enum fcc_device_kind: CPU, HIP or CUDA */
    unsigned char device_uuid[16]; /* identifies a GPU, whose index may differ in the client */
    uint32_t status_word;          /* index in fcc_session_memory.status; FCC_NO_STATUS_WORD: all of them are in use */
    /* A bit for each GPU of the communicator, if streams synchronize with it by words in the memory of all these GPUs
     * (STREAM_WORDS). 0: streams synchronize by words in the session memory; always so over several nodes. */
    uint32_t words_gpus;
};
static_assert(sizeof(struct fcc_comm_init_reply) == 576, "wire");

struct fcc_comm_msg { /* COMM_DESTROY, COMM_ABORT */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t zero;
    char reason[208]; /* NUL-terminated; may be "" */
};
static_assert(sizeof(struct fcc_comm_msg) == 232, "wire");

/* COMM_SPLIT: this rank takes part in making new communicators of the ranks of this one. The answer comes when all ranks have come that can. The
 * rank then joins the new communicator by COMM_INIT. After fcc_comm_shrink() it sends COMM_ADOPT: its buffers belong to the new one from then on.
 * REFUSED: this rank's library has refused its arguments, and all ranks get that as their error. A worker that does not know it refuses it for
 * this rank alone. */
enum fcc_regroup {
    FCC_REGROUP_SPLIT,
    FCC_REGROUP_SHRINK,
    FCC_REGROUP_SPLIT_REFUSED,
    FCC_REGROUP_SHRINK_REFUSED,
    FCC_REGROUP_COUNT
};
struct fcc_comm_split_msg {
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t how; /* enum fcc_regroup */
    int32_t color, key;
    union {
        uint64_t excluded[FCC_MAX_RANKS / 64]; /* SHRINK: a bit for each rank that is to be left out; the same on all ranks */
        char reason[FCC_MAX_RANKS / 8];        /* REFUSED: the argument, its value, what is allowed; NUL-terminated */
    };
};
static_assert(sizeof(struct fcc_comm_split_msg) == 32 + FCC_MAX_RANKS / 8, "wire");

struct fcc_comm_split_reply {
    struct fcc_reply reply;
    struct fcc_unique_id unique_id;
    int32_t nranks; /* 0: the rank is in no new communicator (FCC_UNDEFINED) */
    int32_t rank;
    uint32_t allocations; /* for COMM_ADOPT */
    uint32_t zero;
};
static_assert(sizeof(struct fcc_comm_split_reply) == 680, "wire");

struct fcc_comm_adopt_msg {
    struct fcc_msg msg;
    uint32_t comm, to;    /* handles: whose buffers they are, and whose they become */
    uint32_t allocations; /* as in the reply to COMM_SPLIT */
    uint32_t zero;
};
static_assert(sizeof(struct fcc_comm_adopt_msg) == 32, "wire");

struct fcc_buffer_alloc_msg {
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t kind; /* enum fcc_buffer_kind */
    uint64_t bytes;
};
static_assert(sizeof(struct fcc_buffer_alloc_msg) == 32, "wire");

struct fcc_buffer_alloc_reply { /* file descriptor: the memory */
    struct fcc_reply reply;
    uint32_t buffer;    /* the buffer's handle, valid in this session */
    uint32_t memory;    /* enum fcc_memory_kind */
    uint64_t map_bytes; /* size of the memory to map */
};
static_assert(sizeof(struct fcc_buffer_alloc_reply) == 552, "wire");

struct fcc_buffer_free_msg {
    struct fcc_msg msg;
    uint32_t buffer;
    uint32_t zero;
};
static_assert(sizeof(struct fcc_buffer_free_msg) == 24, "wire");

/* BUFFER_PEER: asks for the memory of another rank's part of a symmetric buffer. The reply is a fcc_buffer_alloc_reply whose
 * `buffer` is the request's. The worker keeps the other part's memory until this rank's part is freed, even if the other rank
 * frees its part first. */
struct fcc_buffer_peer_msg {
    struct fcc_msg msg;
    uint32_t buffer; /* this rank's part */
    int32_t rank;    /* the rank whose part is wanted */
};
static_assert(sizeof(struct fcc_buffer_peer_msg) == 24, "wire");

/* ---- puts to other nodes ---- */

struct fcc_triggers_msg { /* the reply's file descriptor: a struct fcc_trigger_memory */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t zero;
};
static_assert(sizeof(struct fcc_triggers_msg) == 24, "wire");

/* PUT_REGISTER: the fields of struct fcc_put, with this rank's buffers by handle. The reply is a fcc_put_reply. */
struct fcc_put_msg {
    struct fcc_msg msg;
    uint32_t comm;
    int32_t rank;
    uint32_t from, to, signals; /* buffer handles; 0: none */
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

/* ---- trackers ---- */

/* TRACKER: the rank's tracker. The reply's file descriptors: a struct fcc_tracker_memory, and the eventfd that wakes who works off rules.
 * TRACKER_FREE: when the reply comes, no rule is being worked off, and each has a status in that memory. */
struct fcc_tracker_msg {
    struct fcc_msg msg;
    uint32_t comm;
    /* TRACKER: 1: none is made; the reply's error is why the communicator has ended, or -EAGAIN if it has not */
    uint32_t tells;
};
static_assert(sizeof(struct fcc_tracker_msg) == 24, "wire");

struct fcc_await_msg {
    uint32_t buffer; /* handle of this rank's part; 0: no word */
    uint32_t lag;
    uint64_t offset;
};

/* RULE: the fields of struct fcc_rule, with this rank's buffers by handle. The reply is a fcc_rule_reply. */
struct fcc_rule_msg {
    struct fcc_msg msg;
    uint32_t comm;
    int32_t rank;
    uint32_t action; /* enum fcc_rule_action */
    uint32_t dtype;
    uint32_t from, to, signals; /* buffer handles; 0: none */
    uint32_t rows;
    uint64_t count;
    uint64_t row_bytes, from_stride, to_stride;
    uint64_t from_offset, to_offset, signal_offset;
    struct fcc_await_msg awaits[FCC_RULE_AWAITS];
    char name[FCC_RULE_NAME_MAX]; /* NUL-terminated printable ASCII; "": none */
};
static_assert(sizeof(struct fcc_rule_msg) == 168, "wire");

struct fcc_rule_reply {
    struct fcc_reply reply;
    uint32_t number; /* index in fcc_tracker_memory.rule */
    uint32_t zero;
};
static_assert(sizeof(struct fcc_rule_reply) == 544, "wire");

/* ---- operators ---- */

struct fcc_wire_tensor {
    uint32_t buffer; /* handle; 0: the tensor is absent */
    uint16_t dtype;  /* enum fcc_dtype */
    uint16_t ndim;
    uint64_t offset; /* bytes */
    int64_t shape[FCC_MAX_DIMS];
    int64_t stride[FCC_MAX_DIMS]; /* elements; never all 0: the library has computed a dense tensor's strides */
};
static_assert(sizeof(struct fcc_wire_tensor) == 80, "wire");

enum fcc_prepare {
    FCC_PREPARE_RUN, /* run the operator */
    /* Do not run the operator but bind it (PREPARED). values[0] of the completion is the bound operator's number in the
     * communicator; values[1] is its index in fcc_session_memory.bindings. */
    FCC_PREPARE_ONLY,
    /* Run the operator. If all ranks ask, bind it as well, so that the ranks launch later ones: struct fcc_binding in
     * session.h. */
    FCC_PREPARE_ASK,
};

/* SUBMIT: a request for an operator. This struct is followed by ntensors tensors in the operator's order (enum fcc_*_tensor),
 * then nattrs words of attributes. An attribute is one word (key << 32 | count) and `count` words of values. */
struct fcc_submit {
    struct fcc_msg msg;
    uint32_t comm;
    uint16_t op;      /* enum fcc_op */
    uint8_t schedule; /* enum fcc_schedule_kind | enum fcc_schedule_route */
    uint8_t ntensors; /* at most FCC_MAX_TENSORS */
    /* The completion slot; FCC_NO_SLOT: the completion is a fcc_submit_reply over the socket. So it is for all operators of
     * communicators with more than FCC_SLOT_VALUES ranks, whose values do not fit into a slot */
    uint32_t slot;
    uint32_t nattrs; /* words of attributes */
    /* 0: the operator begins when all ranks have submitted it. Otherwise (needs a slot and a rank on a GPU) it is ordered on a
     * stream of the client, and this is the slot's stream count n: struct fcc_slot in session.h. */
    uint32_t stream;
    uint16_t gpu_words; /* 1: the stream uses the words in GPU memory, which the session has on all GPUs of the communicator */
    uint16_t prepare;   /* enum fcc_prepare */
    /* RUN: number of the bound operator whose run `run` the client has enqueued on the stream for this request (struct
     * fcc_binding). 0: the client has enqueued no kernel. ASK: the client's id of its bind request, not 0. */
    uint32_t bound;
    /* A positive errno value: the client's library has refused the operator. It takes its place in the rank's order
     * nevertheless, so that all ranks get the error. Then there are no tensors, the words of attributes hold the reason's text,
     * and op may be FCC_OP_COUNT: a symmetric allocation. 0: not refused. */
    uint32_t refused;
    uint64_t run;
};
static_assert(sizeof(struct fcc_submit) == 56, "wire");
#define FCC_REFUSED_WORDS (FCC_TEXT_MAX / 8) /* the longest refusal's text with its NUL, in words */
#define FCC_QUEUE_MAX 1024u                  /* operators of one rank in flight: one more ends its communicator */
#define FCC_REFUSED_MAX 4095                 /* the largest errno value */
#define FCC_NO_SLOT 0xffffffffu
#define FCC_SLOT_VALUES 64

/* The completion of an operator without a slot. values: what the operator returns besides its status (VALUES in
 * kernels/plan/operators.def): the number of rows received from each rank. If there are more than FCC_SLOT_VALUES of them, the
 * others follow this struct. */
struct fcc_submit_reply {
    struct fcc_reply reply;
    uint32_t nvalues;
    uint32_t zero;
    int64_t values[FCC_SLOT_VALUES];
};
static_assert(sizeof(struct fcc_submit_reply) == 1056, "wire");

/* Bound operators, which clients launch themselves. When the worker completes a SUBMIT whose `prepare` asks to bind, it has
 * made for each rank a plan that the plug-in can launch (kernels/gpu/bound.h), and control memory (flags and words) that all
 * ranks' kernels address. */
enum fcc_prepared_what {
    FCC_PREPARED_PLAN,   /* this rank's plan: a sealed memfd */
    FCC_PREPARED_AREA,   /* a rank's control memory. The worker keeps it until all ranks have freed the operator */
    FCC_PREPARED_RESULT, /* the memory of a rank's result. The worker keeps it until all ranks have freed the operator */
    FCC_PREPARED_INPUT,  /* of a program's step: that of a rank's input, if all ranks' are added up; the same */
    /* of a program's step: this rank's kernel: a sealed memfd. -EAGAIN: it is being made; -EOPNOTSUPP: it cannot be. With number 0: -EAGAIN: some kernel of a
     * step, which the worker launches or not, is being made; -ENOENT: none is */
    FCC_PREPARED_CODE,
};
struct fcc_prepared_msg { /* PREPARED. PREPARED_FREE uses only comm and number */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t number; /* the bound operator's number */
    uint32_t what;   /* enum fcc_prepared_what */
    int32_t rank;    /* the rank whose memory is wanted. PLAN, CODE: this rank */
};
static_assert(sizeof(struct fcc_prepared_msg) == 32, "wire");

/* RUN_REFUSED: this rank could not launch a run of a bound operator, and the other ranks' runs wait for it; or it has launched
 * it since. */
struct fcc_run_refused_msg {
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t number;         /* the bound operator's number */
    uint32_t run;            /* lower half of the run's number */
    uint32_t refused;        /* a positive errno value: why the run was not launched; 0: it has been launched since */
    char text[FCC_TEXT_MAX]; /* the reason in words. NUL-terminated */
};
static_assert(sizeof(struct fcc_run_refused_msg) == 32 + FCC_TEXT_MAX, "wire");

#define FCC_PLUGIN_PATH_MAX 1024
struct fcc_prepared_reply { /* file descriptor: the memory, the plan or the kernel */
    struct fcc_reply reply;
    uint32_t memory; /* enum fcc_memory_kind */
    uint32_t zero;
    uint64_t map_bytes;               /* size of the memory to map */
    char plugin[FCC_PLUGIN_PATH_MAX]; /* PLAN: path of the worker's plug-in, for error texts. NUL-terminated */
};
static_assert(sizeof(struct fcc_prepared_reply) == 1576, "wire");

/* ---- stream words ---- */

struct fcc_stream_words_msg { /* STREAM_WORDS: asks for the stream words on one GPU */
    struct fcc_msg msg;
    uint32_t comm;
    uint32_t gpu; /* one of the communicator's words_gpus */
};
static_assert(sizeof(struct fcc_stream_words_msg) == 24, "wire");

/* File descriptor: the memory, which begins with a struct fcc_stream_words. Status -EOPNOTSUPP: use the words in the session
 * memory. */
struct fcc_stream_words_reply {
    struct fcc_reply reply;
    uint32_t memory; /* enum fcc_memory_kind */
    uint32_t zero;
    uint64_t map_bytes; /* size of the memory to map */
};
static_assert(sizeof(struct fcc_stream_words_reply) == 552, "wire");

/* ---- control ---- */

/* fccctl's queries: X(NAME, name). The broker answers status, devices, nodes, ping, metrics, flights (which flight recorders there are),
 * flight (one of them: the memfd holds a struct flight and no JSON) and config, and drains jobs. A worker answers comms, trace, abort, track
 * and rules (their last runs), and nodes with its job's links. The reply's file descriptor is a sealed memfd that holds JSON. */
#define FCC_QUERIES(X)                                                                                                         \
    X(STATUS, status)                                                                                                          \
    X(DEVICES, devices)                                                                                                        \
    X(COMMS, comms)                                                                                                            \
    X(TRACE, trace)                                                                                                            \
    X(ABORT, abort)                                                                                                            \
    X(NODES, nodes)                                                                                                            \
    X(PING, ping)                                                                                                              \
    X(TRACK, track) X(RULES, rules) X(METRICS, metrics) X(FLIGHTS, flights) X(FLIGHT, flight) X(CONFIG, config) X(DRAIN, drain)

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
    /* TRACE, ABORT, RULES: the communicator's number in COMMS; 0: the only one, or the one used last. PING: the number of pings.
     * FLIGHT: the recorder's number in FLIGHTS. DRAIN: whose jobs; UINT32_MAX: of all whose jobs the caller may end. */
    uint32_t comm;
    uint32_t next;    /* TRACE: 1: wait for the next operator; 0: take the last finished one */
    uint32_t wait_ms; /* TRACE with next = 1: how long to wait */
    char text[208];   /* ABORT: the reason. PING: the node's address. DRAIN: the job; "": all */
};
static_assert(sizeof(struct fcc_query) == 240, "wire");

#endif
