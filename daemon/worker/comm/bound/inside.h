/* SPDX-License-Identifier: MIT
 *
 * bound_inside.h - what bound.c and bind.c offer each other.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_INSIDE_H
#define FCC_DAEMON_WORKER_COMM_BOUND_INSIDE_H

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/device/memory.h"

/* How far a rank's runs are: numbers' lower halves. */
struct progress {
    uint32_t begun, ended;
};

/* Why a rank has not come to a run. */
struct refused_run {
    uint32_t run;
    uint64_t since_ns;
    struct error why;
};

/* What one rank has of it. */
struct prepared_rank {
    bool held;      /* it has not freed it */
    uint32_t place; /* of its words in the session's memory */
    int plan_fd;
    struct device_memory area;
    int area_fd;
    struct buffer *buffers[FCC_MAX_TENSORS]; /* a reference each */
    struct progress last;                    /* when it freed it */
    struct refused_run *refused;             /* NULL: none */
    uint32_t last_run;                       /* offered: the newest of this rank that was decided; its lower half */
    /* The watch's: the run that had begun when it looked last, and since when. */
    uint32_t seen;
    uint64_t since_ns;
};

struct prepared {
    LIST_ENTRY(prepared) link; /* comm.prepared */
    struct comm *comm;
    uint32_t number;
    enum fcc_op op;
    int holders;
    /* By the ranks' asking (offers.h), not by the program's. */
    bool offered;
    uint32_t request;             /* as rank 0 calls it */
    uint64_t first;               /* from this one of the communicator's operators on; FCC_OFFERS_END: no more */
    uint64_t runs;                /* the newest that was decided */
    unsigned some;                /* runs, one after the other, that not all ranks have offered */
    struct prepared_rank ranks[]; /* [comm.nranks] */
};

/* NULL: there is none (any more). */
struct prepared *prepared_find(const struct comm *c, uint32_t number);
/* A place in the session's memory is not used any more. */
void prepared_place_free(struct session *s, uint32_t place);
void prepared_free(struct prepared *p);
/* Prepare c's next operator, for which all ranks ask, to be offered from operator `first` on. Nothing of c runs. */
int prepared_make_offered(struct comm *c, uint64_t first, struct error *e);
/* None of its runs will be granted any more. */
void prepared_offers_end(struct prepared *p);
/* Look at the communicator's runs now and then, from now on. */
int prepared_watch_begin(struct comm *c, struct error *e);

#endif
