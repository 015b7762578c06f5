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
/* The call of a message that is filled in but for its head, with the place of its reply; more fields of struct call may follow. */
#define CALL_OF(NAME, MSG, REPLY, ...)                                                                                         \
    (&(struct call){.type = FCC_MSG_##NAME,                                                                                    \
                    .msg = (struct fcc_msg *)(MSG),                                                                            \
                    .length = sizeof(*(MSG)),                                                                                  \
                    .reply = (REPLY),                                                                                          \
                    .reply_size = sizeof(*(REPLY)),                                                                            \
                    ##__VA_ARGS__})
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

/* COMM_DESTROY, or COMM_ABORT with a reason of at most FCC_ABORT_REASON_MAX characters. */
int comm_tell(struct fcc_comm *comm, enum fcc_msg_type type, const char *reason);
#define FCC_ABORT_REASON_MAX 200 /* characters of fcc_comm_abort()'s */

/* Locked. The worker is gone, and will tell no status any more: this one. */
void statuses_raise(struct fcc_context *c, int status);
/* 0: nobody has said that the communicator is over; or what its status word says. */
int status_of(const struct fcc_comm *comm);
/* Locked. Let every stream go on that waits for an operator by the words of a slot. */
void streams_release(struct fcc_context *c);

/* ---- the thread that sees the end of the worker while all others wait for streams: watch.c ---- */

/* context->accelerator_lock held. See to it that the worker's end is noticed though no thread waits for the worker. */
int watch_start(struct fcc_context *c);
void watch_stop(struct fcc_context *c);
/* Locked. The context has died: streams wait in the memory of GPUs, perhaps. */
void watch_wake(struct fcc_context *c);

#endif
