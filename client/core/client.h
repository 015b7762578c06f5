/* SPDX-License-Identifier: MIT
 *
 * client.h - libfccclient inside: its objects, their locks, and what its files offer each other.
 *
 *   operators.c   a typed call becomes a SUBMIT message
 *   completion.c  the request: submit, test, wait, free
 *   stream.c      the request that has its place on a stream of the program
 *   ring.c        its way through the session memory: a slot, a record in the submission ring, the doorbell
 *   call.c        messages over the socket: calls and their replies, and how the end of the worker is noticed
 *   words.c       the words of streams in the memory of GPUs
 *   group.c       operators whose streams wait for them later, together
 *   watch.c       the thread that sees the end of the worker while all others wait for streams
 *   connect.c, client/comm.c, memory/buffer.c   the objects
 *   memory/pool.c        buffers for allocators that know no handles
 *   symmetric.c   what the program's own kernels need: other ranks' buffers, a communicator's status
 *   put.c         ... and puts to other nodes
 *   env.c, hostlist.c   what launchers say: the job, the rank, where to meet
 *   comm_env.c    communicators of all processes that a launcher has started
 *   accelerator.c, driver.c   a GPU as this process uses it, and its driver
 *   process.c     whose objects they are: a forked child's, or its parent's
 *   wait.c        the clock, and how a thread spins before it sleeps
 *   core.c        it does not stay on the engine's core
 *   error.c       fcc_last_error()
 *
 * Locks. context->ring_lock orders the records in the ring; context->lock guards everything else that changes. A thread that
 * takes both takes ring_lock first. Nobody sleeps with a lock held. Functions that say "locked" are called with context->lock
 * held and return with it held; those that may sleep release it meanwhile, and say so. context->accelerator_lock is for what
 * takes long and is rare: opening GPUs. It is taken before any other. No driver is called with context->lock or ring_lock
 * held: a driver may wait for a function of ours on another thread.
 *
 * Errors. Who finds one puts its words into the thread's last error with last_error_set() and returns the status; callers
 * pass the status on.
 */
#ifndef FCC_CLIENT_CORE_CLIENT_H
#define FCC_CLIENT_CORE_CLIENT_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "client/device/accelerator.h"
#include "proto/base/error.h"
#include "proto/msg.h"
#include "proto/proto.h"

/* ---- error.c ---- */

/* Sets the calling thread's last error (cut to fit) and returns status. */
int last_error_set(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A status as another process wrote it: what errno can be comes back as it is, anything else is no status, and becomes -EPROTO. */
int status_taken(int32_t status);
/* Of an errno value with which a file descriptor could not be made: -EMFILE (the system's limit, too), -ENOMEM or -EIO. */
int status_of_file(int error);

/* ---- wait.c ---- */

/* How long a thread sleeps at most before it looks whether the worker still lives. */
#define WAIT_SLICE_NS 50000000LL

#define NEVER INT64_MAX

int64_t now_ns(void);               /* CLOCK_MONOTONIC */
int64_t deadline_in_ms(int64_t ms); /* now + ms; negative: NEVER */
int ms_until(int64_t deadline);     /* rounded up, 0 if it has passed, at most WAIT_SLICE_NS: for poll() */

#define CONNECT_ATTEMPTS 3 /* of fcc_connect(), where the worker dies before it has read the connection */
#define CALL_LIMIT_MS                                                                                                          \
    10000            /* connecting, and where no time limit is known: the job's worker has to be started first, perhaps */
#define SLOW_MS 5000 /* how late a worker that is well may be with what a time limit of its own has ended */

#define LIMITS_OF_CALL 1     /* the worker waits for other ranks, at most */
#define LIMITS_OF_OPERATOR 2 /* ... and then it runs */

/* The longest that a worker can take to do something in which `limits` times a communicator's time limit may pass, one after the other, and to say
 * that it has ended. The worker's own limits end before, as what it says tells more. Whoever has waited for so long, and has seen nothing come,
 * gives the worker up: it is stopped, or it hangs. Time limit 0: there is no communicator. */
int64_t patience_ms(uint32_t time_limit_ms, unsigned limits);

/* How much longer somebody waits for a worker that does nothing. Time in which this process itself did not run (it was stopped, or its machine
 * was) is not held against the worker: a look counts a second at most. So who looks less often than once a second waits longer. All zero:
 * it has not begun. */
struct patience {
    int64_t left_ns, looked_ns;
};
void patience_begin(struct patience *p, int64_t ms);
bool patience_has_begun(const struct patience *p);
/* A look: is it used up? */
bool patience_over(struct patience *p);

struct spin {
    unsigned taken; /* yields that let somebody run */
    unsigned pauses;
    int64_t until, keep_until;
};
void spin_begin(struct spin *s, uint32_t spin_us, int64_t deadline);
/* True: has waited a moment, look again. False: the time for spinning is over, sleep. */
bool spin_more(struct spin *s);

/* After a spin: the engine's core (struct fcc_session_memory). */
void core_share(const struct spin *s, uint32_t engine_core);
/* The calling thread goes on elsewhere, and may come back. False: there is nowhere else that it may run. */
bool core_leave(unsigned core);

/* ---- objects ---- */

/* A message that went over the socket and whose reply is awaited. Owned by who waits for it. */
struct pending {
    LIST_ENTRY(pending) link; /* context->pending, while not done */
    uint64_t id;
    uint16_t type;      /* of the message: enum fcc_msg_type */
    const char *called; /* what the program called, for texts; NULL: nothing */
    bool done; /* `reply` and fds are valid; reply->status is -EPROTO if what came was malformed, and the context's end's
                      status if nothing came */
    struct fcc_reply
        *reply; /* room for `size` bytes, the whole of a reply with status 0. And with -EMFILE: all is well but that
                                this process had no room for the descriptors, so the worker has what was asked for */
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

/* Memory that the worker made, mapped where a rank's device is. */
struct mapping {
    void *data;                    /* on a GPU: gpu.address. NULL: none */
    size_t bytes;                  /* mapped */
    struct accelerator_memory gpu; /* if the rank is on one */
};

struct fcc_buffer {
    struct fcc_comm *comm;
    LIST_ENTRY(fcc_buffer) link; /* context->buffers */
    uint32_t handle;
    enum fcc_buffer_kind kind;
    size_t bytes; /* as asked for */
    struct mapping map;
    struct mapping *peers; /* [nranks] other ranks' parts, only ever more of them; or NULL. context->lock */
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
    struct error lost;          /* why one could not be: this rank is out of step for good. status 0: it is not. order */
    struct offers *offers;      /* offer.c's; NULL: none yet. order */
    const void *stream;         /* ... of the newest operator that is on one. order */
    bool has_stream;            /* ... there was one. order */
    uint64_t in_order_from;     /* ... from this operator on all in flight are on it. order */
    uint64_t completed;         /* operators, as far as this side has seen. context->lock */
    struct patience watched;    /* the watch's, with what is in flight. context->lock */
    uint64_t watched_completed; /* `completed` when that began. context->lock */
    struct error error;         /* the first of its unattended requests' that was not asked for yet. context->lock */
    uint64_t error_id;          /* that request's. context->lock */
};

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

/* ---- process.c ---- */

/* Where the number of this process is: of a forked child 0 until it connects. */
extern const _Atomic uint32_t *_Atomic process_number __attribute__((visibility("hidden")));
/* The context is this process's. -ENOMEM. */
int process_begin(struct fcc_context *c);
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

static inline int buffer_check(const struct fcc_buffer *b)
{
    return handle_check("buffer", b ? b->comm->context : NULL);
}

static inline int request_check(const struct fcc_request *r)
{
    return handle_check("request", r ? r->context : NULL);
}

/* In the child of a fork: what other threads of the parent held is free. */
void env_forked(void);
void pools_forked(void);
void prepared_forked(void);

/* ---- call.c ---- */

/* One message and its reply. */
struct call {
    enum fcc_msg_type type;
    struct fcc_msg *msg; /* the rest of it filled in */
    size_t length;
    void *reply; /* opens with struct fcc_reply */
    size_t reply_size;
    int *fds;         /* room for the reply's descriptors; NULL if it has none */
    int64_t limit_ms; /* 0: the patience with a call; if `behind` has operators in flight, with an operator */
    int64_t more_ms;  /* ... and what the worker may take beyond that */
    /* Not NULL: it comes behind the operators of this communicator, so each of them that ends makes the limit begin anew. */
    const struct fcc_comm *behind;
    const char *called; /* by the program, for texts; NULL: the function that the message is for */
};
/* Send the message and wait for the reply. 0, or what the reply says, or -EPROTO, or the context's end, which a worker that has not
 * answered within the limit brings about (-ETIMEDOUT). */
int context_call(struct fcc_context *c, const struct call *call);

/* Locked. Register p (whose type, reply and size are set) under a new id. */
void pending_add(struct fcc_context *c, struct pending *p);
/* Send one message whole, waiting while the socket is full. The context's end, as with context_call(). Not locked. */
int context_send(struct fcc_context *c, struct fcc_msg *msg, size_t length, const char *called);
/* Locked; releases the lock. One step of waiting for a reply: read the socket, or sleep while another thread reads it,
 * until something has come, `deadline`, or WAIT_SLICE_NS. A deadline that has passed reads what is there. */
void context_pump(struct fcc_context *c, int64_t deadline);
/* Locked; releases the lock. One step of waiting for anything that the worker does: spins, then sleeps a millisecond. */
void context_nap(struct fcc_context *c, struct spin *spin);
/* The worker has closed the socket, or does so within the given time. Needs no lock. What to do then: context_pump(). */
bool context_hung_up(const struct fcc_context *c, int wait_ms);
/* Locked. End the context: the first reason counts. Every call, request and stream that waits ends with it. */
void context_die(struct fcc_context *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Locked. 0, or the reason for the context's end as the thread's last error, after the name of what the program has called. */
int context_dead(const struct fcc_context *c, const char *called);
/* Locked. The same words: why something that the program has called (NULL: nothing) ends with the context. */
void dead_text(const struct fcc_context *c, const char *called, char text[FCC_TEXT_MAX]);
int64_t context_patience_ms(const struct fcc_context *c); /* with operators, by the longest of its communicators' limits */
int64_t comm_patience_ms(const struct fcc_comm *comm);    /* with an operator */
/* Locked. Give the worker up: the context dies, and the socket is shut down. So nothing that a worker says later is taken for anything, and when
 * it goes on it finds that this client has gone. Returns the context's end. */
int context_give_up(struct fcc_context *c, const char *called, int64_t waited_ms);

/* ---- env.c ---- */

/* The job's id: what `option` says, or FCCD_JOB, or the launcher; the same for all ranks of a launcher. -EINVAL. */
int job_find(const char *option, char job[FCC_JOB_MAX]);
/* fcc_env_find() for that job. */
int env_find(const char *job, struct fcc_env *out);

/* ---- ring.c ---- */

/* Locked; releases the lock while there is none. Take a free slot and mark it PENDING: r->slot. -ETIMEDOUT, or the context's
 * end. */
int slot_take(struct fcc_context *c, struct fcc_request *r);
/* Locked. Streams have caught up with some slots, perhaps. */
void slots_catch_up(struct fcc_context *c);
/* Needs no lock. As its kernel has said. */
bool run_is_over(const struct fcc_context *c, const struct slot_run *run);
/* Locked. Give back a slot whose request was not submitted. */
void slot_return(struct fcc_context *c, uint32_t slot);
void slot_return_late(struct fcc_context *c, uint32_t slot); /* ... and whose word a stream has still to write */
/* Locked. If the worker has completed r: r->result is filled, the slot is free, and true. */
bool slot_collect(struct fcc_request *r);
/* Needs no lock. A look at the slot without taking anything: maybe it is worth to take the lock now. */
bool slot_is_done(const struct fcc_request *r);
bool slot_is_running(const struct fcc_request *r); /* the worker asks not to spin for it */
bool ring_is_taken(const struct fcc_context *c);   /* the worker has read all that is in it */
/* Sleep until the slot is done (or the state changes, or for nothing), at most until the deadline or WAIT_SLICE_NS. */
void slot_sleep(struct fcc_request *r, int64_t deadline);
void slot_wake(const struct fcc_request *r);
/* Append a message to the ring and ring the doorbell if the worker sleeps. -ETIMEDOUT, -EPROTO, or the context's end. */
int ring_push(struct fcc_context *c, const struct fcc_submit *msg);

/* ---- completion.c ---- */

/* Fill in a request and its message, but for the slot and the id. */
void request_begin(struct fcc_request *r, struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows);
/* Submit a message as an operator of comm. Blocking if out is NULL: returns its result. Else *out is the request. */
int comm_submit(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, int64_t *recv_rows, fcc_request **out);
/* Locked. True if r has finished; makes it so if its completion is there or the context is dead. */
bool request_poll(struct fcc_request *r);
/* Locked. Take every completion that is there; frees orphans that have finished. */
void context_collect(struct fcc_context *c);

/* ---- refusal.c ---- */

/* Behind the "rank N: " that it may begin with. */
const char *text_without_rank(int rank, const char *text);
/* The operator (FCC_OP_COUNT: a symmetric allocation; with OP_PREPARED what prepares it) is refused in this process; its text says which
 * argument and why, without the rank and the operator. It takes its place among the rank's operators, so that all ranks hear of it and stay in step. comm->order is not held. `wait`: until
 * that is so. Returns status, or what has ended the communicator, as the last error. */
int comm_refuse(struct fcc_comm *comm, unsigned op, int status, const char *text, bool wait);
/* The same with the last error as text, unless it is one that has ended the communicator for this rank already. Does not wait. */
int comm_refuse_last(struct fcc_comm *comm, unsigned op, int status);
/* comm->order held. An operator that others may be in could not be submitted, and what comes later would be taken for it: the communicator
 * is over for this rank, and the others are told, if that can be. Returns status, with the last error. */
int comm_lose(struct fcc_comm *comm, int status);
/* comm->order held. 0, or as the last error why the communicator is over for this rank. */
int comm_lost(const struct fcc_comm *comm);

/* ---- stream.c ---- */

/* Submit a message as an operator of comm that takes its place on a stream. With out NULL nobody attends to it. addresses: where its tensors'
 * first elements are on the rank's GPU. */
int comm_enqueue(struct fcc_comm *comm, struct fcc_submit *msg, size_t length, const uint64_t addresses[], int64_t *recv_rows,
                 void *stream, fcc_request **out);
/* Locked. Let every stream go on that waits for an operator by the words of a slot. */
void streams_release(struct fcc_context *c);
bool stream_word_reached(const _Atomic uint32_t *word, uint32_t value);
/* Mark the communicator's unattended operators, up to message `last`, that their streams have gone past. Not locked: it may ask the
 * GPU. 0 or -EIO. */
int streams_look(struct fcc_comm *comm, uint64_t last);

/* ---- operators.c ---- */

#define OP_PREPARED 0x8000u /* with an operator's number: it is not called, but prepared */
const char *operator_name(uint16_t op);

/* ---- client/comm.c ---- */

/* fcc_get_unique_id() and fcc_comm_init() for what the program has called; NULL: those. The arguments that must be there are. */
int unique_id_ask(struct fcc_context *c, struct fcc_unique_id *out, const char *called);
int comm_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
              const struct fcc_comm_options *options, fcc_comm **out, const char *called);
/* fcc_comm_init_refuse() with an id. */
int comm_join_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                     const char *reason);
#define FCC_ABORT_REASON_MAX 200 /* characters of fcc_comm_abort()'s */

/* Locked. Is an operator of comm in flight, with or without a handle? */
bool comm_is_busy(const struct fcc_comm *comm);
/* All that this process has of it; nobody else knows of it any more. */
void comm_free(struct fcc_comm *comm);

/* ---- words.c ---- */

/* context->accelerator_lock held, and the watch runs. Get the words of the communicator's streams in the memory of these GPUs
 * (struct fcc_comm_init_reply): comm->words_gpus; 0, if they cannot be used here. -ENOMEM, -EPROTO, or the context's end. */
int words_open(struct fcc_comm *comm, struct accelerator *a, uint32_t gpus);
/* Let every stream go on that waits by such words. Not locked. The context is dead, or about to be freed. */
void words_release(struct fcc_context *c);
/* The GPU is the current one. The request's place on its stream: what comes before it is submitted, and after. */
int words_begin(const struct fcc_request *r, const struct accelerator *a, uint64_t started, void *stream);
int words_end(const struct fcc_request *r, const struct accelerator *a, void *stream);
/* What `finished` says on the communicator's GPU now, for each slot. Not locked. 0 or -EIO. */
int words_finished(const struct fcc_comm *comm, uint32_t out[FCC_SLOTS]);

/* ---- group.c ---- */

/* Has the calling thread begun a group that has not ended? */
bool group_is_open(void);
/* ... in which a stream is still to wait for an operator? */
bool group_is_waiting(void);
/* The thread's group: the request's stream is to wait for the word when the group ends. 0, or the first error of those before, which
 * did not fit any more and have been put onto their streams. */
int group_add(const struct fcc_request *r, const struct accelerator *a, void *stream, uint64_t word);
/* The context is about to be freed: its operators are over. */
void group_forget(const struct fcc_context *c);

/* ---- watch.c ---- */

/* context->accelerator_lock held. See to it that the worker's end is noticed though no thread waits for the worker. */
int watch_start(struct fcc_context *c);
void watch_stop(struct fcc_context *c);
/* Locked. The context has died: streams wait in the memory of GPUs, perhaps. */
void watch_wake(struct fcc_context *c);

/* ---- memory/buffer.c ---- */

/* Map a descriptor that the worker sent. Closes it. -EPROTO if it is smaller than `bytes` or could be made smaller (so that
 * touching it would kill us), -ENOMEM. `what` names it in the error's text. */
int shared_map(int fd, size_t bytes, const char *what, void **out);
/* The buffer's memory, or that of another rank's part of it, from a descriptor, which is closed. Sets m->data and m->gpu; bytes
 * is set. */
int buffer_map(const struct fcc_buffer *b, int fd, uint32_t memory, struct mapping *m);
void buffer_unmap(struct fcc_buffer *b); /* with all its peers */
void mapping_end(const struct fcc_comm *comm, const struct mapping *m);
/* Locked. The handle of a live buffer of this context, and, unless `address` is NULL, where it is on its rank's GPU; 0: it is none (any
 * more). Compares only, never follows the pointer. */
uint32_t buffer_handle(const struct fcc_context *c, const struct fcc_buffer *buffer, uint64_t *address);

/* ---- symmetric.c ---- */

/* Locked. The worker is gone, and will tell no status any more: this one. */
void statuses_raise(struct fcc_context *c, int status);
/* 0: nobody has said that the communicator is over; or what its status word says. */
int status_of(const struct fcc_comm *comm);

/* ---- put.c ---- */

/* Locked. Has the worker not taken all triggers yet, and may it still? */
bool triggers_left(const struct fcc_comm *comm);
void triggers_unmap(struct fcc_comm *comm);

#endif
