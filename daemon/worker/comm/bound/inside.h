/* SPDX-License-Identifier: MIT
 *
 * inside.h - bound operators, as bound.c, bind.c and records.c share them.
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUND_INSIDE_H
#define FCC_DAEMON_WORKER_COMM_BOUND_INSIDE_H

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/device/memory.h"

#define RUNS_MOST (1u << 20) /* that a GPU ends between two looks, by far. More is what a program has scribbled there */

struct run_log;

/* The newest runs of a rank that have begun and ended: the lower halves of their numbers. */
struct progress {
    uint32_t begun, ended;
};

/* A run that a rank cannot take part in, and why. */
struct refused_run {
    uint32_t run; /* 0: the next one that others wait for */
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
    /* A program's step: its input, if others read it (-1: not), and its kernel (-1: nobody has asked for it when it was there) */
    int input_fd, code_fd;
    struct gpu_code_entry *code;             /* NULL: it is no step. The GPUs' */
    struct buffer *buffers[FCC_MAX_TENSORS]; /* a reference each */
    struct progress last;                    /* the rank's progress when it freed the operator */
    struct refused_run *refused;             /* NULL: the rank has refused no run */
    uint32_t last_run;                       /* repeated: the newest run that the worker knows of; its lower half */
    /* For the watch: the newest run that had begun at its last look, and since when. */
    uint32_t seen;
    uint64_t since_ns;
};

/* OPEN: the ranks launch it, or will. ENDS: they were told not to, which not all may have seen. RECALLED: kernels that still come
 * hand over to the worker. */
enum bound_state { BOUND_OPEN, BOUND_ENDS, BOUND_RECALLED };

struct prepared {
    LIST_ENTRY(prepared) link; /* comm.prepared */
    struct comm *comm;
    uint32_t number;
    enum fcc_op op;
    int holders;
    /* Bound by the worker, since all ranks repeat it (launcher.h). Otherwise by the program. */
    bool repeated;
    enum bound_state state;
    uint32_t request;             /* rank 0's id of its bind request */
    uint64_t runs;                /* number of the newest run that the worker has counted as running */
    uint64_t since;               /* comm.operators when it was announced */
    int running;                  /* number of runs that it counts as running now */
    uint32_t counted;             /* rank 0's runs that have ended and are counted; the lower half */
    struct run_log *log;          /* records.c: what is known of its runs. NULL: it is repeated, so they are operators */
    struct launch *planned;       /* has the problem, and the plans that the ranks were given */
    struct prepared_rank ranks[]; /* [comm.nranks] */
};

/* The bound operator of that number. NULL: there is none, or no rank holds it any more. */
struct prepared *prepared_find(const struct comm *c, uint32_t number);
/* Free an index in the session memory. */
void prepared_place_free(struct session *s, uint32_t place);
void prepared_free(struct prepared *p);
/* Free it if no rank holds it and no run is left. */
void prepared_release(struct prepared *p);
/* Let the kernels of all its ranks leave, also those that come later. */
void prepared_kernels_end(const struct prepared *p);
/* Bind c's next operator, for which all ranks ask, and announce it. Nothing of c runs. -EAGAIN: which schedule is the better one is
 * not known yet. */
int prepared_make_repeated(struct comm *c, struct error *e);
/* records.c. A rank's progress, as its kernels report it to the host; or as it was when the rank freed the operator. */
struct progress progress_of(const struct prepared *p, int r);
/* All ranks have their areas: what their runs note there is read from now on. */
int records_open(struct prepared *p, struct error *e);
/* Takes in what has been read, and reads more if there may be more. */
void records_look(struct prepared *p, uint64_t now);
/* Reads and takes in the rest, before the ranks' areas are freed. False: they are still being read, and must stay. */
bool records_end(struct prepared *p);
void records_free(struct prepared *p);
/* A sealed file with these bytes. */
int sealed_make(const char *name, const void *data, size_t bytes, int *fd, struct error *e);
/* Start the timer that watches the communicator's runs. */
int prepared_watch_begin(struct comm *c, struct error *e);

#endif
