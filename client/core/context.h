/* SPDX-License-Identifier: MIT
 *
 * context.h - libfccclient's objects: connections (contexts), communicators and requests, with their locks and the process they
 * belong to.
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

#include "client/core/wait.h"
#include "proto/base/error.h"
#include "proto/base/list.h"
#include "proto/msg.h"
#include "proto/proto.h"
#include "proto/session.h"

/* ---- the thread's last error, and statuses that come from elsewhere: error.c ----
 *
 * The function that finds an error sets the thread's last error with last_error_set() and returns the status; its callers pass
 * the status on. */

/* Sets the calling thread's last error (cut to fit) and returns status. */
int last_error_set(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Check a status written by another process: 0 and negative errno values are returned as they are, anything else becomes
 * -EPROTO. */
int status_taken(int32_t status);
/* The status for an errno value of a failed creation of a file descriptor: -EMFILE (also for the system's limit), -ENOMEM or
 * -EIO. */
int status_of_file(int error);

struct accelerator;

/* ---- objects ---- */

/* A message sent over the socket whose reply is awaited. Owned by the thread that waits for it. */
struct pending {
    LIST_ENTRY(pending) link; /* context->pending, while not done */
    uint64_t id;
    uint16_t type;      /* the message's enum fcc_msg_type */
    const char *called; /* the function that the program called, for error texts; NULL: none */
    /* `reply` and fds are valid. reply->status is -EPROTO for a malformed reply, and the context's error if no reply came. */
    bool done;
    /* Room for `size` bytes. A reply is complete with status 0, and with -EMFILE: the worker did what was asked, but this
     * process could not take the descriptors. */
    struct fcc_reply *reply;
    size_t size;
    int fds[FCC_MAX_FDS]; /* with status 0: as many as FCC_MESSAGES says; the owner of this struct closes them */
};

/* A run of an operator that the worker has bound (stream/repeated.c): the index of its words in the session memory (0: no run),
 * and the lower half of the run's number. */
struct slot_run {
    uint32_t place, number;
};

struct fcc_request {
    struct fcc_context *context;
    struct fcc_comm *comm;        /* NULL: the communicator has been destroyed */
    LIST_ENTRY(fcc_request) link; /* context->requests */
    uint64_t id;                  /* the message's id */
    uint16_t op;                  /* enum fcc_op, with OP_PREPARED if the operator is only prepared */
    uint32_t slot;                /* the completion slot; FCC_NO_SLOT: the completion comes as `pending` */
    uint32_t stream;              /* the request's number in the stream words of its slot (stream.c); 0: it is on no stream */
    struct slot_run run;          /* the run whose kernel this process has put onto the stream, if there is one */
    bool orphan;                  /* the program has freed it before it had finished. context->lock */
    bool unattended;              /* an orphan from the start, whose error is kept for fcc_comm_error() */
    /* how much longer threads that wait for the request or test it give the worker. context->lock */
    struct patience patience;
    uint64_t seen_completed;   /* comm->completed when `patience` began. context->lock */
    bool past;                 /* the stream is known to have passed the request. context->lock */
    _Atomic bool finished;     /* `result` is valid. Set once, under context->lock */
    _Atomic uint32_t sleepers; /* number of threads that are in, or about to enter, the futex of the slot */
    int nranks;
    int64_t *recv_rows;   /* the caller's array [nranks], filled by the first test or wait that sees the result; NULL: none */
    int64_t row_elements; /* what the result's values are divided by for that */
    struct pending pending;
    struct fcc_submit_reply result;
    int64_t more[]; /* [values_more()]: the values that follow `result` */
};

/* The end of an operator that is on a stream of the program. */
struct stream_end {
    const void *stream;
    uint64_t word;  /* address, for the rank's GPU, of the word that says so. 0: there is no such operator yet */
    uint32_t value; /* what the word reaches */
    bool is_run;    /* this process has launched the operator */
    bool deferred;  /* the stream does not wait for the word yet: a group is open */
};

enum { GUARD_NAMES = 16, GUARD_TEXT = 96 };

struct fcc_comm {
    struct fcc_context *context;
    LIST_ENTRY(fcc_comm) link; /* context->comms */
    uint32_t handle;
    int rank, nranks, device;
    /* Of a group of ranks of a program: the communicator of all of its ranks, whose abort ends this one, too. NULL: none. context->lock */
    struct fcc_comm *whole;
    bool whole_aborted; /* it has been told so. context->lock */
    enum fcc_device_kind kind;
    const struct accelerator *accelerator; /* the context's; NULL: this rank is on the cpu */
    /* bit g: GPU g has this communicator's stream words in its memory; 0: streams use the words of the slots */
    uint32_t words_gpus;
    uint32_t time_limit_ms;
    bool is_over_nodes; /* its ranks are on several nodes, as a program has found out. context->lock */
    /* the index of the status word in the session memory; FCC_NO_STATUS_WORD: there is none */
    uint32_t status_word;
    struct fcc_trigger_memory *triggers; /* mapped; NULL: not asked for. context->lock */
    struct fcc_tracker *tracker;         /* memory/tracker.c's; NULL: none. context->lock */
    _Atomic int32_t *tracker_ended;      /* what its kernels look at; NULL: there are none. context->lock */
    pthread_mutex_t order;               /* held while an operator is submitted and put onto its stream: one at a time */
    uint64_t operators;                  /* number of operators submitted. order */
    /* why an operator could not be submitted: this rank is then out of step with the others. status 0: it is in step. order */
    struct error lost;
    /* comm->order not held. A buffer is about to be freed. NULL: that is of no interest. Constant after fcc_comm_init() */
    void (*buffer_forget)(struct fcc_comm *comm, uint32_t handle);
    struct repeats *repeats;     /* stream/repeated.c's; NULL: none yet. order */
    struct graphs *graphs;       /* into which its operators have been captured; NULL: none yet. context->prepared_lock */
    struct stream_end last;      /* of the newest operator that is on a stream. order */
    bool has_streams;            /* its operators have been on several streams. order */
    _Atomic uint32_t streamless; /* number of operators on no stream that this process has not seen complete */
    uint64_t completed;          /* number of operators that this process has seen complete. context->lock */
    struct patience watched;     /* how much longer the watch thread waits for the operators in flight. context->lock */
    uint64_t watched_completed;  /* `completed` when `watched` began. context->lock */
    pthread_mutex_t rings_lock;  /* what follows. Never waited for with context->lock held */
    struct fcc_prepared *rings;  /* stream/rings.c's; NULL: not asked for, or none */
    struct error rings_none;     /* why there are none; status 0: they were not asked for, or there are */
    uint32_t rings_calls;        /* the newest call's number */
    uint64_t rings_reported;     /* the newest run that was given up, when errors were looked for last */
    bool rings_over;             /* the communicator's end has ended runs, or will end those that come */
    bool rings_over_told;        /* the program has heard of that */
    /* Of the guarded programs that this process has prepared last, by what their runs' headers say: the texts' first lines. Key 0: none */
    struct {
        uint32_t key;
        char name[GUARD_TEXT];
    } guarded[GUARD_NAMES];
    unsigned guarded_next;
    struct error error; /* the first error of unattended requests that was not reported yet. context->lock */
    uint64_t error_id;  /* the id of that error's request. context->lock */
};

/* How many values of an operator of the communicator a struct fcc_submit_reply has no room for. */
static inline size_t values_more(const struct fcc_comm *comm)
{
    return comm->nranks > FCC_SLOT_VALUES ? (size_t)comm->nranks - FCC_SLOT_VALUES : 0;
}

SLIST_HEAD(accelerators, accelerator);

struct fcc_context {
    /* constant after fcc_connect() */
    uint32_t process; /* process.c's number of the process that connected */
    pid_t pid;        /* the pid of that process */
    int sock;
    int doorbell; /* eventfd */
    bool no_ring;
    bool no_stream_words;
    uint32_t version; /* of the protocol, that this connection speaks */
    uint32_t devices;
    uint32_t spin_us;
    uint32_t worker_pid; /* 0: not known yet */
    char job[FCC_JOB_MAX];
    struct fcc_session_memory *memory; /* shared with the worker */
    /* Not locked. Called when the context is dead or about to be freed: releases all streams and kernels that wait in GPU
     * memory. */
    void (*release)(struct fcc_context *c);

    pthread_mutex_t accelerator_lock;
    struct accelerators accelerators; /* the GPUs that are open; none is closed before fcc_disconnect(). accelerator_lock */
    pthread_t watch;
    int watch_wake; /* eventfd that wakes the watch thread; -1: there is none. Changes under accelerator_lock and lock */

    pthread_mutex_t prepared_lock;                   /* never waited for with `lock` held */
    LIST_HEAD(prepared_head, fcc_prepared) prepared; /* stream/bound.c's. prepared_lock */

    pthread_mutex_t ring_lock;
    uint64_t head; /* bytes written to the ring; memory->head is a copy for the worker. ring_lock */
    uint64_t tail; /* memory->tail as last read. ring_lock */

    pthread_mutex_t lock;   /* guards everything below */
    pthread_cond_t changed; /* signalled when a reply has come, no thread reads the socket any more, or the context is dead */
    bool reading;           /* a thread is the reader, and alone uses `inbox`, without the lock */
    struct error dead; /* why the connection ended, without the name of the function that found out; status 0: it is alive */
    struct error farewell; /* an ERROR message that answers no call: why the worker will close the connection */
    bool watch_end;        /* the watch thread is to end */
    bool waits_unseen; /* the program may wait for a status word or inside a kernel, so the watch thread checks the worker */
    /* Words in GPU memory that streams of this context wait for. They are written when the context dies. */
    struct stream_words {
        const struct accelerator *accelerator; /* the GPU that has the words in its memory */
        uint64_t finished;                     /* struct fcc_stream_word[FCC_SLOTS] */
    } stream_words[FCC_MAX_GPUS];
    unsigned nstream_words;
    uint64_t last_id;
    uint64_t free_slots; /* bit s: slot s is free. A slot is free until it is taken and after its DONE was read */
    uint64_t late_slots; /* bit s: slot s becomes free when a stream has written stream_count[s] into its stream_started */
    uint32_t stream_count[FCC_SLOTS]; /* the last number given out in each slot's stream words; 0: none yet */
    /* the run whose kernel stood on the stream in place of those words, if there was one */
    struct slot_run slot_runs[FCC_SLOTS];
    /* The longest time limit of the communicators. It only grows, and is written with the lock held. A reader without the lock
     * may miss a communicator that another thread is joining; the reader's waits do not depend on that one. */
    _Atomic uint32_t time_limit_ms;
    LIST_HEAD(pending_head, pending) pending;
    LIST_HEAD(comms_head, fcc_comm) comms;
    LIST_HEAD(buffers_head, fcc_buffer) buffers;
    LIST_HEAD(requests_head, fcc_request) requests; /* all that have not been freed, and orphans */

    _Alignas(16) unsigned char inbox[FCC_MSG_MAX];
};
static_assert(FCC_SLOTS == 64, "fcc_context.free_slots and late_slots have a bit for each");

/* ---- whose process they are of: process.c ---- */

/* Points to this process's number; in a forked child the number is 0 until the child connects. */
extern const _Atomic uint32_t *_Atomic process_number __attribute__((visibility("hidden")));
/* The context is this process's. `forked` is called in a child of a fork, in which what other threads of the parent held is
 * free. -ENOMEM. */
int process_begin(struct fcc_context *c, void (*forked)(void));
/* Sets the error for a handle that is NULL (-EINVAL) or was made by another process (-ECHILD), and returns it. */
int handle_refuse(const char *name, const struct fcc_context *c) __attribute__((cold));

static inline bool context_is_ours(const struct fcc_context *c)
{
    const _Atomic uint32_t *number = atomic_load_explicit(&process_number, memory_order_relaxed);

    return c->process == atomic_load_explicit(number, memory_order_relaxed);
}

/* Checks a handle given to a public function: 0, -EINVAL (NULL) or -ECHILD. Called before any lock is taken; needs none. */
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
