/* SPDX-License-Identifier: MIT
 *
 * submission.h - a rank's request, copied out of memory that the client can write: it is accepted or refused, takes its turn, and is answered.
 */
#ifndef FCC_DAEMON_WORKER_COMM_REQUEST_SUBMISSION_H
#define FCC_DAEMON_WORKER_COMM_REQUEST_SUBMISSION_H

#include <stdbool.h>

#include "daemon/worker/comm/tune.h"
#include "kernels/plan/program.h"
#include "proto/base/list.h"

struct buffer;
struct member;
struct session;
struct worker;

enum submission_kind { SUBMISSION_OPERATOR, SUBMISSION_ALLOC };

#define BIND_REFUSED 32

/* A request of one rank, in the order of its communicator: an operator, or the rank's part of a symmetric allocation. */
struct submission {
    TAILQ_ENTRY(submission) link; /* member.queue */
    /* The client that hears of the end. NULL: it has heard, or is gone. Protected by worker.tell_lock while the launch runs. */
    struct session *session;
    enum submission_kind kind;
    uint64_t id;
    uint32_t slot;
    /* The value that a client's stream stores and waits for (struct fcc_slot). 0: the operator is on no stream */
    uint32_t stream;
    bool gpu_words;    /* the stream uses the words in the memory of GPUs */
    uint32_t own_gpus; /* gpu_words: a bit for the rank's GPU */
    bool prepare;      /* the operator is not run but bound (comm/bound/bound.c) */
    bool asks;         /* the client wants the operator bound as well as run. It is bound if all ranks want it */
    uint32_t request;  /* asks: the client's id of that request */
    uint64_t number;   /* index of the operator among its rank's in the communicator, from 1. Allocations: 0 */
    uint32_t bound;    /* number of the bound operator whose run the client has enqueued. 0: it has enqueued none */
    uint64_t run;      /* bound: the number of that run */
    bool reads_others; /* overlap.h: an input lies, or may lie, where another rank stores results */
    uint64_t arrived_ns;
    uint64_t stamp; /* over nodes: the same for the same request, on all nodes */
    uint64_t alloc_bytes;
    struct tune_sample sample; /* rank 0's, over several nodes: a measured time that all nodes record when this turn begins */
    struct op_args args;       /* attrs point into `words` */
    struct buffer *buffers[FCC_MAX_TENSORS];
    bool again;           /* submission_free() keeps the memory for the next submission */
    struct worker *payer; /* its user's account is charged with submission_bytes(). NULL: not yet */
    bool unpaid;          /* the account had no room: the submission is counted in worker.unpaid and not charged */
    bool counted;         /* it is one of the payer's operators in flight, and if it has a stream, one of those on streams */
    struct error error;   /* what is wrong with the request by itself. All ranks get it when its turn comes */
    int64_t words[];      /* the attributes, copied */
};

/* What a submission is, for error texts: the name of the function that the client has called. */
static inline const char *submission_name(const struct submission *sub)
{
    return sub->prepare                    ? op_prepare_name(sub->args.op)
           : sub->kind == SUBMISSION_ALLOC ? "fcc_buffer_alloc (symmetric)"
                                           : op_name(sub->args.op);
}

/* A remote rank's request, as its node's worker sends it (nodes/peer.h). An operator's SUBMIT follows, as the client sent it. */
struct remote_request {
    int32_t rank;
    uint32_t kind; /* enum submission_kind */
    uint64_t alloc_bytes;
    int32_t status; /* with `text`: what is wrong with the request by itself. 0: nothing */
    uint32_t zero;
    char text[FCC_TEXT_MAX];
    struct tune_sample sample; /* rank 0's: submission.sample */
    struct {
        uint64_t bytes;
        uint32_t symmetric, zero;
    } buffers[FCC_MAX_TENSORS]; /* by tensor: the buffer that it lies in */
};

/* Check a SUBMIT message, from the ring (with a slot) or the socket, and queue it in its communicator. The client cannot write *m any more. */
void submission_accept(struct session *s, const struct fcc_submit *m, size_t length);
/* The same for a remote rank, whose worker has checked the request. Its buffers for results have bounce buffers here. NULL with the reason. */
struct submission *submission_remote(struct member *m, const struct fcc_submit *submit, size_t length,
                                     const struct remote_request *from, struct error *e);
/* submission.stamp of an operator. */
uint64_t submission_stamp(const struct fcc_submit *m, size_t length);
struct submission *submission_new(struct session *s, enum submission_kind kind, uint64_t id, size_t words);
/* There is no memory for a rank's request. Its later requests would take the wrong turns, so the communicator is aborted. */
void order_lose(struct member *m);
/* Report how the submission ended to its client, if s->session is set. */
void submission_tell(struct submission *s, int status, const char *text, const int64_t *values, int nvalues);
void submission_free(struct submission *s);
/* Charge a submission that is about to be queued: its memory, and, unless its rank is on another node, which counts it, one operator. -ENOMEM or
 * -EUSERS with the reason: there is no room. Then *sub is replaced by a smaller one with that error, which is counted in worker.unpaid alone, and
 * can still take its turn. */
int submission_charge(struct submission **sub, struct worker *w, bool remote, struct error *e);

#endif
