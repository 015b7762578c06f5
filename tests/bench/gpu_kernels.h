/* SPDX-License-Identifier: MIT
 *
 * gpu_kernels.h - what the parts of the kernels' bench share.
 *
 *   gpu_kernels.c           options, shapes and the table
 *   gpu_kernels_run.c       calls, and what they took
 *   gpu_kernels_prepare.c   GPUs, memory, plans and launches, as the daemon's worker has them
 *   gpu_kernels_data.c      inputs that the GPU and the CPU both know, and results in double precision
 */
#ifndef FCC_GPU_KERNELS_H
#define FCC_GPU_KERNELS_H

#include <stdatomic.h>

#include "kernels/gpu/abi.h"
#include "kernels/plan/program.h"

/* One shape; sizes as in gpu_kernels.c's table. What is not its operator's is 0. */
struct row {
    enum fcc_op op;
    enum fcc_dtype dtype;
    enum fcc_schedule_kind kind;
    int64_t m, n, k;                       /* gemv, gemm: of one rank */
    int64_t tables, dim, batch, ids, rows; /* embedding: tables of one rank, batch of all ranks */
    double zipf;                           /* 0: uniform ids */
    int64_t slice_rows, slice_cols;        /* 0: the operator's default */
    char text[200];                        /* as it was given */
};

struct options {
    const char *plugin_dir, *device; /* "", NULL: find them */
    int nranks;                      /* 0: one for each GPU */
    int samples, warmup;
    uint64_t seed;
    bool gated; /* all GPUs' kernels wait for one word of the host's, so that they begin together */
    bool verbose;
};

/* Three quartiles of one thing, in us; n is 0 where it was not seen. */
struct quartiles {
    int n;
    double low, median, high;
};

struct result {
    struct quartiles span;                 /* of the GPU that took longest, by its own clock */
    struct quartiles trace;                /* from the first slice's start to the last one's end, over all GPUs */
    struct quartiles ends[SLICE_WAIT + 1]; /* by enum slice_kind: the last one's end, from the first slice's start */
    struct quartiles idle; /* of a GPU's workgroups, on average, from their last computed slice to the GPU's last one */
    struct quartiles skew; /* from the first GPU's first start to the last GPU's first start */
    struct quartiles host; /* from before the launches to when all GPUs are done */
    double floor;          /* us; 0: none */
    const char *floor_by;
    int64_t wrong;           /* elements; -1: the schedule has no result to check */
    char what_is_wrong[200]; /* the first of them */
    char plan[200];          /* in words */
};

/* Where a call's inputs begin in its rank's sequences (gpu_kernels_data.c). */
struct input_set {
    uint64_t first, second; /* x, w; a, b: in the numbers; embedding: the ids, and nothing */
};

/* Host memory that the GPUs see. */
struct shared {
    _Atomic uint64_t done[GPU_MAX_GPUS]; /* of each GPU's part, by the last workgroup to leave: gpu_done_make() */
    _Atomic uint32_t gate;
    struct gpu_failure failures[FCC_MAX_RANKS];
};

/* One rank's memory on its GPU. It only grows, and stays filled from shape to shape. */
struct rank_memory {
    int gpu;
    struct gpu_memory numbers, ids, offsets, out, staging, slots, flags;
    enum fcc_dtype numbers_dtype;
    uint64_t numbers_filled, ids_filled; /* elements */
    int64_t ids_rows;
    double ids_zipf;
};

extern struct bench {
    const struct gpu_plugin *plugin;
    int ngpus, nranks;
    char name[128];
    uint64_t epoch; /* of the last call */
    struct shared *shared;
    uint64_t address; /* where the GPUs see it */
    struct rank_memory ranks[FCC_MAX_RANKS];
} bench;

/* A row, ready to be called. */
struct prepared {
    const struct row *row;
    const struct options *options;
    struct problem *problem;
    struct plan *plans[FCC_MAX_RANKS];
    struct gpu_launch *launches[GPU_MAX_GPUS];
    int local[GPU_MAX_GPUS][GPU_MAX_RUNS], nlocal[GPU_MAX_GPUS]; /* the ranks on each GPU */
    uint64_t staging[FCC_MAX_RANKS], slots[FCC_MAX_RANKS];       /* what every launch is told beside its call */
    uint64_t slots_bytes;                                        /* of one half */
    int64_t *attrs;
    size_t nattrs;
    struct input_set *sets;
    struct op_args *args; /* [nsets][nranks] */
    int nsets;
};

/* ---- gpu_kernels_prepare.c ---- */

/* Load a plug-in and open its GPUs. -ENODEV: there is none, and why. */
int bench_open(const struct options *o, struct error *e);
void bench_close(void);
/* p->row and p->options are set, and nothing else. After a failure, too, prepared_free() is due. */
int prepared_make(struct prepared *p, struct error *e);
void prepared_free(struct prepared *p);
int64_t result_elements(const struct row *row, int rank);
/* Fill a GPU's memory with one byte. */
int memory_fill(int gpu, uint64_t address, uint64_t bytes, int byte, struct error *e);

/* ---- gpu_kernels_run.c ---- */

int row_run(const struct row *row, const struct options *o, struct result *out, struct error *e);

/* ---- gpu_kernels_data.c ----
 *
 * All numbers are windows into one sequence, which repeats after a prime number of elements and begins elsewhere for each rank:
 * so a GPU's memory is filled once for many shapes, and element i of a rank is known without asking the GPU. The same for ids. */

int numbers_open(uint64_t seed, enum fcc_dtype dtype, struct error *e); /* draws anew only if the dtype changes */
/* The elements from `index` on as they are stored, and how many there are before the sequence begins again. */
const void *numbers_piece(int rank, uint64_t index, uint64_t *count);
int ids_open(uint64_t seed, int64_t rows, double zipf, struct error *e);
const void *ids_piece(int rank, uint64_t index, uint64_t *count);

/* Elements of rank's result (dense, in host memory) that are not as they should be: those that were not written, and of some
 * hundred that are drawn those that differ from double precision. `what` gets the first one's words. */
int64_t result_check(const struct row *row, const struct input_set *set, int nranks, int rank, const void *result,
                     int64_t count, uint64_t seed, char *what, size_t room);
uint64_t random_mix(uint64_t x);

enum { RESULT_POISON = 0xff }; /* of every byte before a checked call: NaN in every dtype */

#endif
