/* SPDX-License-Identifier: MIT
 *
 * inside.h - bound operators, as bound.c and bind.c share them.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_INSIDE_H
#define FCC_DAEMON_WORKER_COMM_BOUND_INSIDE_H

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/device/memory.h"

/* The newest runs of a rank that have begun and ended: the lower halves of their numbers. */
struct progress {
    uint32_t begun, ended;
};

/* A run that a rank cannot take part in, and why. */
struct refused_run {
    uint32_t run;
    uint64_t since_ns;
    struct error why;
};

/* One rank's part of a bound operator. */
struct prepared_rank {
    bool held;      /* the rank has not freed the operator */
    uint32_t place; /* index of its words in the session memory */
    int plan_fd;
    struct device_memory area;
    int area_fd;
    struct buffer *buffers[FCC_MAX_TENSORS]; /* a reference each */
    struct progress last;                    /* the rank's progress when it freed the operator */
    struct refused_run *refused;             /* NULL: the rank has refused no run */
    uint32_t last_run;                       /* offered: the newest of this rank that was decided; its lower half */
    /* For the watch: the newest run that had begun at its last look, and since when. */
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

/* The bound operator of that number. NULL: there is none, or no rank holds it any more. */
struct prepared *prepared_find(const struct comm *c, uint32_t number);
/* Free an index in the session memory. */
void prepared_place_free(struct session *s, uint32_t place);
void prepared_free(struct prepared *p);
/* Prepare c's next operator, for which all ranks ask, to be offered from operator `first` on. Nothing of c runs. */
int prepared_make_offered(struct comm *c, uint64_t first, struct error *e);
/* None of its runs will be granted any more. */
void prepared_offers_end(struct prepared *p);
/* Start the timer that watches the communicator's runs. */
int prepared_watch_begin(struct comm *c, struct error *e);

#endif
