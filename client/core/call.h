/* SPDX-License-Identifier: MIT
 *
 * call.h - messages over the socket: calls and their replies; the end of the connection, and how it is noticed.
 */
#ifndef FCC_CLIENT_CORE_CALL_H
#define FCC_CLIENT_CORE_CALL_H

#include "client/core/context.h"

/* One message and its reply. */
struct call {
    enum fcc_msg_type type;
    struct fcc_msg *msg; /* filled in but for its head */
    size_t length;
    void *reply; /* opens with struct fcc_reply */
    size_t reply_size;
    int *fds;         /* room for the reply's descriptors; NULL if it has none */
    int64_t limit_ms; /* 0: the default limit of a call, or of an operator if `behind` has operators in flight */
    int64_t more_ms;  /* time that the worker may take beyond the limit */
    /* The worker handles the call after this communicator's operators: the limit starts again with each of them that ends. Or
     * NULL. */
    const struct fcc_comm *behind;
    const char *called; /* the function that the program called, for error texts; NULL: the function that the message is for */
};
/* The call of a message that is filled in but for its head, with the place of its reply; more fields of struct call may
 * follow. */
#define CALL_OF(NAME, MSG, REPLY, ...)                                                                                         \
    (&(struct call){.type = FCC_MSG_##NAME,                                                                                    \
                    .msg = (struct fcc_msg *)(MSG),                                                                            \
                    .length = sizeof(*(MSG)),                                                                                  \
                    .reply = (REPLY),                                                                                          \
                    .reply_size = sizeof(*(REPLY)),                                                                            \
                    ##__VA_ARGS__})
/* Send the message and wait for the reply. Returns 0, the reply's status, -EPROTO, or the error that ended the context. A
 * worker that does not answer within the limit ends the context with -ETIMEDOUT. */
int context_call(struct fcc_context *c, const struct call *call);
/* context_call() after an error that the caller will report: the thread's last error stays. */
void context_tell(struct fcc_context *c, const struct call *call);

/* Locked. Register p (whose type, reply and size are set) under a new id. */
void pending_add(struct fcc_context *c, struct pending *p);
/* Not locked. Send one whole message, waiting while the socket is full. Returns 0 or the error that ended the context. */
int context_send(struct fcc_context *c, struct fcc_msg *msg, size_t length, const char *called);
/* Locked; releases the lock. One step of waiting for a reply: read the socket, or sleep while another thread reads it,
 * until something has come, `deadline`, or WAIT_SLICE_NS. A deadline that has passed reads what is there. */
void context_pump(struct fcc_context *c, int64_t deadline);
/* Locked; releases the lock. One step of waiting for anything that the worker does: spins, then sleeps a millisecond. */
void context_nap(struct fcc_context *c, struct spin *spin);
/* Needs no lock. True: the worker has closed the socket, or does so within wait_ms. The caller then calls context_pump(). */
bool context_hung_up(const struct fcc_context *c, int wait_ms);
/* Locked. End the context: the first reason counts. Every call, request and stream that waits ends with it. */
void context_die(struct fcc_context *c, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Locked. 0 while the context is alive. Otherwise sets the thread's last error to `called` and why the context ended. */
int context_dead(const struct fcc_context *c, const char *called);
/* Locked. Write the text that context_dead() sets; called may be NULL. */
void dead_text(const struct fcc_context *c, const char *called, char text[FCC_TEXT_MAX]);
/* How long to wait for an operator of any communicator of the context, by the longest of their limits. */
int64_t context_patience_ms(const struct fcc_context *c);
/* How long to wait for an operator of this communicator. */
int64_t comm_patience_ms(const struct fcc_comm *comm);
/* Locked. Give the worker up: end the context and shut the socket down, so that later messages of the worker are ignored and a
 * worker that resumes sees the client gone. Returns the error that ended the context. */
int context_give_up(struct fcc_context *c, const char *called, int64_t waited_ms);

/* COMM_DESTROY, or COMM_ABORT with a reason of at most FCC_ABORT_REASON_MAX characters. */
int comm_tell(struct fcc_comm *comm, enum fcc_msg_type type, const char *reason);
#define FCC_ABORT_REASON_MAX 200 /* the most characters of the reason given to fcc_comm_abort() */

/* Locked. Called when the worker is gone: writes `status` into the communicators' status words in the worker's place. */
void statuses_raise(struct fcc_context *c, int status);
/* The communicator's status word; 0: nobody has ended the communicator. */
int status_of(const struct fcc_comm *comm);
/* Locked. Release every stream that waits for an operator by a slot's stream words. */
void streams_release(struct fcc_context *c);

/* ---- the thread that sees the end of the worker while all others wait for streams: watch.c ---- */

/* context->accelerator_lock held. Start the watch thread, which notices the worker's end when no other thread waits for the
 * worker. */
int watch_start(struct fcc_context *c);
void watch_stop(struct fcc_context *c);
/* Locked. The context has died: wake the watch thread, which releases streams that wait in GPU memory. */
void watch_wake(struct fcc_context *c);

#endif
