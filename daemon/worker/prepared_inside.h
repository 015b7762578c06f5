/* SPDX-License-Identifier: MIT
 *
 * prepared_inside.h - what prepared.c and prepared_make.c offer each other.
 */
#ifndef FCCD_PREPARED_INSIDE_H
#define FCCD_PREPARED_INSIDE_H

#include "prepared.h"

/* How far a rank's runs are: numbers' lower halves. */
struct progress {
    uint32_t begun, ended;
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
    struct prepared_rank ranks[]; /* [comm.nranks] */
};

int prepared_result_tensor(enum fcc_op op);
void prepared_free(struct prepared *p);
/* Look at the communicator's runs now and then, from now on. */
int prepared_watch_begin(struct comm *c, struct error *e);

#endif
