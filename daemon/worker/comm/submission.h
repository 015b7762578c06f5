/* SPDX-License-Identifier: MIT
 *
 * submission.h - a rank's request, copied out of what the client can write, checked, and resolved to memory.
 */
#ifndef FCC_DAEMON_WORKER_COMM_SUBMISSION_H
#define FCC_DAEMON_WORKER_COMM_SUBMISSION_H

#include <stdbool.h>
#include <sys/queue.h>

#include "daemon/worker/comm/tune.h"
#include "kernels/plan/program.h"

struct buffer;
struct member;
struct session;
struct worker;

enum submission_kind { SUBMISSION_OPERATOR, SUBMISSION_ALLOC };

#define OFFERS_REFUSED 32

/* Where it is decided whether an offered operator's kernel may run (offers.h). */
struct offer_word {
    uint64_t address;
    int gpu;
};

/* One rank's turn in a communicator's order: an operator, or its part of a symmetric allocation. */
struct submission {
    TAILQ_ENTRY(submission) link; /* member.queue */
    struct session *session;      /* who is to be told; NULL: gone, or told. While its launch runs: worker.tell_lock */
    enum submission_kind kind;
    uint64_t id;
    uint32_t slot;
    uint32_t stream;   /* not 0: it has its place on a stream of the client (struct fcc_slot) */
    bool gpu_words;    /* ... by the words in the memory of GPUs */
    uint32_t own_gpus; /* ... a bit for the rank's */
    bool prepare;      /* the operator is not to run, but to be prepared (comm/bound.c) */
    bool asks;         /* ... or, if all ranks ask, to be prepared beside, as what the client calls `request` */
    uint32_t request;
    uint64_t number; /* the how-manieth operator of its rank in the communicator; an allocation: 0 */
    uint32_t offer;  /* offers.c: the prepared operator whose run stands on the stream; 0: none */
    uint64_t run;    /* ... */
    bool decided;    /* ... whether it may run, by this word: */
    struct offer_word word;
    bool reads_others; /* overlap.c: an input lies in memory for results that is another rank's */
    uint64_t arrived_ns;
    uint64_t alloc_bytes;
    struct tune_sample sample; /* rank 0's, over several nodes: all record it when this turn begins */
    struct op_args args;       /* attrs point into `words` */
    struct buffer *buffers[FCC_MAX_TENSORS];
    bool again;           /* its memory is used again (submission_new()) */
    struct worker *payer; /* charged with submission_bytes() of it; NULL: nobody yet */
    bool unpaid;          /* there was no room for it: counted in worker.unpaid, and not charged */
    struct error error;   /* what is wrong with the request by itself: told to all ranks when its turn comes */
    int64_t words[];      /* the attributes: our copy */
};

/* What another node's worker says of a request of a rank there, besides its SUBMIT as the client sent it. The wire (nodes/peer.h). */
struct remote_request {
    int32_t rank;
    uint32_t kind; /* enum submission_kind */
    uint64_t alloc_bytes;
    int32_t status; /* what is wrong with the request by itself, and text; 0: nothing */
    uint32_t zero;
    char text[FCC_TEXT_MAX];
    struct tune_sample sample; /* rank 0's */
    struct {
        uint64_t bytes;
        uint32_t symmetric, zero;
    } buffers[FCC_MAX_TENSORS]; /* that its tensors lie in */
};

/* Handle a SUBMIT message that lies in our own memory: check it and queue it in its communicator. The message came through
 * the ring (with a slot) or over the socket. */
void submission_accept(struct session *s, const struct fcc_submit *m, size_t length);
/* The same for a rank on another node, whose worker has checked it: its buffers for results have bounce buffers here. NULL with the reason. */
struct submission *submission_remote(struct member *m, const struct fcc_submit *submit, size_t length,
                                     const struct remote_request *from, struct error *e);
struct submission *submission_new(struct session *s, enum submission_kind kind, uint64_t id, size_t words);
/* There is no memory for a rank's turn, and what it submits later would be taken for it: the communicator is over. */
void order_lose(struct member *m);
/* Tell the client how it ended, if it has not been told and is still there. */
void submission_tell(struct submission *s, int status, const char *text, const int64_t *values, int nvalues);
void submission_free(struct submission *s);
/* It is about to wait in a queue: charge it to the user's account. If there is no room, *sub becomes a smaller one that has that as its error,
 * and is not charged but counted: so it can take its turn nevertheless. -ENOMEM then, with the reason. */
int submission_charge(struct submission **sub, struct worker *w, struct error *e);

#endif
