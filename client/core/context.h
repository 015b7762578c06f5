/* SPDX-License-Identifier: MIT
 *
 * context.h - libfccclient's objects: a connection (context), its communicators and its requests, their locks, and whose process they are of.
 *
 * Locks. context->ring_lock orders the records in the ring; context->lock guards everything else that changes. A thread that
 * takes both takes ring_lock first. Nobody sleeps with a lock held. Functions that say "locked" are called with context->lock
 * held and return with it held; those that may sleep release it meanwhile, and say so. context->accelerator_lock is for what
 * takes long and is rare: opening GPUs. It is taken before any other. No driver is called with context->lock or ring_lock
 * held: a driver may wait for a function of ours on another thread.
 */
#ifndef FCC_CLIENT_CORE_CONTEXT_H
#define FCC_CLIENT_CORE_CONTEXT_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "client/core/error.h"
#include "client/core/wait.h"
#include "proto/base/error.h"
#include "proto/msg.h"
#include "proto/proto.h"

struct accelerator;

/* ---- objects ---- */

/* A message that went over the socket and whose reply is awaited. Owned by who waits for it. */
struct pending {
    LIST_ENTRY(pending) link; /* context->pending, while not done */
    uint64_t id;
    uint16_t type;      /* of the message: enum fcc_msg_type */
    const char *called; /* what the program called, for texts; NULL: nothing */
    bool done; /* `reply` and fds are valid; reply->status is -EPROTO if what came was malformed, and the context's end's
                      status if nothing came */
    /* Room for `size` bytes, the whole of a reply with status 0. And with -EMFILE: all is well but that this process had no
     * room for the descriptors, so the worker has what was asked for */
    struct fcc_reply *reply;
    size_t size;
    int fds[FCC_MAX_FDS]; /* with status 0: as many as FCC_MESSAGES says. They belong to the owner then */
};

/* A run of a prepared operator that was offered (offer.c): the place of its words in the session memory, 0: there is none; its number's lower
 * half. */
struct slot_run {
    uint32_t place, number;
};

struct fcc_request {
    struct fcc_context *context;
    struct fcc_comm *comm;        /* NULL when that is destroyed */
    LIST_ENTRY(fcc_request) link; /* context->requests, or context->orphans if it was freed before it had finished */
    uint64_t id;                  /* of its message */
    uint16_t op;                  /* ... enum fcc_op, and OP_PREPARED */
    uint32_t slot;                /* its completion's; FCC_NO_SLOT: the completion comes as `pending` */
    uint32_t stream;              /* its number in the slot's words of its stream (stream.c); 0: it is on none */
    struct slot_run run;          /* what stands on the stream, if it was offered */
    bool unattended;              /* an orphan from the start, whose error is kept for fcc_comm_error() */
    struct patience patience;     /* of who waits for it or asks for it. context->lock */
    uint64_t seen_completed;      /* comm->completed when that began. context->lock */
    bool past;                    /* ... and its stream is known to have gone past it. context->lock */
    _Atomic bool finished;        /* `result` is valid. Set under context->lock, and for ever */
    _Atomic uint32_t sleepers;    /* threads that are in, or on their way to, the futex of the slot */
    int nranks;
    int64_t *recv_rows; /* the caller's, [nranks], filled by the first test or wait that sees the result; or NULL */
    struct pending pending;
    struct fcc_submit_reply result;
};

/* What else is to be told of a communicator's operators and buffers. */
struct comm_hooks {
    /* comm->order held. An operator that comes to no stream is about to be submitted: msg is finished but for what this adds. */
    void (*submit)(struct fcc_comm *comm, struct fcc_submit *msg);
    /* comm->order not held. A buffer of the communicator is about to be freed. */
    void (*buffer_free)(struct fcc_comm *comm, uint32_t handle);
};

struct fcc_comm {
    struct fcc_context *context;
    LIST_ENTRY(fcc_comm) link; /* context->comms */
    uint32_t handle;
    int rank, nranks, device;
    enum fcc_device_kind kind;
    const struct accelerator *accelerator; /* the context's; NULL: this rank is on the cpu */
    uint32_t words_gpus; /* its streams hand over by the accelerator's words for these GPUs; 0: by those of the slots */
    uint32_t time_limit_ms;
    uint32_t status_word;                /* in the session memory; FCC_NO_STATUS_WORD: there is none */
    struct fcc_trigger_memory *triggers; /* mapped; NULL: not asked for. context->lock */
    pthread_mutex_t order;               /* its operators are submitted, and put onto their streams, one at a time */
    uint64_t operators;                  /* that have been submitted. order */
    struct error lost;              /* why one could not be: this rank is out of step for good. status 0: it is not. order */
    const struct comm_hooks *hooks; /* NULL: none. Constant after fcc_comm_init() */
    struct offers *offers;          /* offer.c's; NULL: none yet. order */
    const void *stream;             /* ... of the newest operator that is on one. order */
    bool has_stream;                /* ... there was one. order */
    uint64_t in_order_from;         /* ... from this operator on all in flight are on it. order */
    uint64_t completed;             /* operators, as far as this side has seen. context->lock */
    struct patience watched;        /* the watch's, with what is in flight. context->lock */
    uint64_t watched_completed;     /* `completed` when that began. context->lock */
    struct error error;             /* the first of its unattended requests' that was not asked for yet. context->lock */
    uint64_t error_id;              /* that request's. context->lock */
};

SLIST_HEAD(accelerators, accelerator);

struct fcc_context {
    /* constant after fcc_connect() */
    uint32_t process; /* process.c's number of the process that connected */
    pid_t pid;        /* ... its id */
    int sock;
    int doorbell; /* eventfd */
    bool no_ring;
    bool no_stream_words;
    uint32_t devices;
    uint32_t spin_us;
    uint32_t worker_pid; /* 0: not known yet */
    char job[FCC_JOB_MAX];
    struct fcc_session_memory *memory; /* shared with the worker */
    /* The context is dead, or about to be freed: lets every stream and kernel go on that waits in the memory of a GPU. Not locked. */
    void (*release)(struct fcc_context *c);

    pthread_mutex_t accelerator_lock;
    struct accelerators accelerators; /* only ever more of them, until fcc_disconnect(). accelerator_lock */
    pthread_t watch;
    int watch_wake; /* eventfd that makes the watch look; -1: there is none. Changes under accelerator_lock and lock */

    pthread_mutex_t prepared_lock;                   /* never waited for with `lock` held */
    LIST_HEAD(prepared_head, fcc_prepared) prepared; /* stream/bound.c's. prepared_lock */

    pthread_mutex_t ring_lock;
    uint64_t head; /* bytes written to the ring: the truth, memory->head is for the worker. ring_lock */
    uint64_t tail; /* what memory->tail was when it was last looked at. ring_lock */

    pthread_mutex_t lock;   /* everything below */
    pthread_cond_t changed; /* a reply came, or nobody reads the socket any more, or the context is dead */
    bool reading;           /* a thread reads the socket; it alone uses `inbox`, without the lock */
    struct error dead;      /* why the connection is of no use any more, but not who found it; status 0: it is of use */
    struct error farewell;  /* an ERROR message that answers no call: why the connection will be closed */
    bool watch_end;         /* the watch is to end */
    bool waits_unseen; /* the program may wait for a status word, or in a kernel of its own: the watch asks for the worker */
    /* Words that streams of this context wait for in the memory of GPUs: what is to be written there when the context dies. */
    struct stream_words {
        const struct accelerator *accelerator; /* the GPU's own */
        uint64_t finished;                     /* struct fcc_stream_word[FCC_SLOTS] */
    } stream_words[FCC_MAX_GPUS];
    unsigned nstream_words;
    uint64_t last_id;
    uint64_t free_slots;              /* bit s: slot s is free. A slot is free until it is taken and after its DONE was read */
    uint64_t late_slots;              /* bit s: ... and when a stream has written stream_count[s] into its stream_started */
    uint32_t stream_count[FCC_SLOTS]; /* the last number given out in each slot's words; 0: none yet */
    struct slot_run slot_runs[FCC_SLOTS]; /* ... and what then stood on the stream instead of those words */
    /* The longest of its communicators'. It only grows, and is written with the lock held; who reads it without the lock may miss a
     * communicator that another thread joins at that moment, and no wait of his depends on that one. */
    _Atomic uint32_t time_limit_ms;
    LIST_HEAD(pending_head, pending) pending;
    LIST_HEAD(comms_head, fcc_comm) comms;
    LIST_HEAD(buffers_head, fcc_buffer) buffers;
    LIST_HEAD(requests_head, fcc_request) requests; /* everything that has not been freed */
    LIST_HEAD(orphans_head, fcc_request) orphans;

    _Alignas(16) unsigned char inbox[FCC_MSG_MAX];
};
static_assert(FCC_SLOTS == 64, "fcc_context.free_slots and late_slots have a bit for each");

/* ---- whose process they are of: process.c ---- */

/* Where the number of this process is: of a forked child 0 until it connects. */
extern const _Atomic uint32_t *_Atomic process_number __attribute__((visibility("hidden")));
/* The context is this process's. `forked` is called in a child of a fork, in which what other threads of the parent held is free. -ENOMEM. */
int process_begin(struct fcc_context *c, void (*forked)(void));
/* c is NULL, or not this process's: -EINVAL or -ECHILD. */
int handle_refuse(const char *name, const struct fcc_context *c) __attribute__((cold));

static inline bool context_is_ours(const struct fcc_context *c)
{
    const _Atomic uint32_t *number = atomic_load_explicit(&process_number, memory_order_relaxed);

    return c->process == atomic_load_explicit(number, memory_order_relaxed);
}

/* What a public function is given: 0, or -EINVAL (NULL) or -ECHILD. No lock is needed, and none may be taken before. */
static inline int handle_check(const char *name, const struct fcc_context *c)
{
    return c && context_is_ours(c) ? 0 : handle_refuse(name, c);
}

static inline int context_check(const struct fcc_context *c)
{
    return handle_check("context", c);
}

static inline int comm_check(const struct fcc_comm *comm)
{
    return handle_check("comm", comm ? comm->context : NULL);
}

static inline int request_check(const struct fcc_request *r)
{
    return handle_check("request", r ? r->context : NULL);
}

#endif
