/* SPDX-License-Identifier: MIT
 *
 * bench.h - what the parts of the verb bench share.
 *
 * bench.c parses, forks one process for each rank and waits for them; bench_place.c says on which node and device each is;
 * bench_rank.c is such a process, and bench_args.c has what it calls the operator with; bench_data.c makes inputs that every process can
 * compute again; bench_check.c compares a result with a plain reference; bench_report.c prints.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_BENCH_H
#define FCC_CLIENT_FCCCTL_BENCH_BENCH_H

#include <stdatomic.h>

#include "client/fccctl/bench/local.h"
#include "client/fccctl/bench/shape.h"
#include "client/fccctl/fccctl.h"
#include "proto/fccclient.h"
#include "proto/proto.h"

/* What is measured: a schedule, by rule; or fused and its communication alone by a route. */
enum bench_kind {
    BENCH_FUSED,
    BENCH_SEQUENTIAL,
    BENCH_COMPUTE,
    BENCH_COMM,
    BENCH_AUTO,
    BENCH_FLAT,
    BENCH_HIERARCHICAL,
    BENCH_COMM_FLAT,
    BENCH_COMM_HIERARCHICAL,
    BENCH_KINDS,
};
#define BENCH_ARGS_BYTES 1024 /* at least as many as an operator's arguments have */
#define BENCH_STREAM_MAX 64   /* operators of a context that may be in flight */

/* One rank's part of the memory that the parent and the ranks share. The rank writes; the parent reads progress at any time,
 * and the rest when the rank has ended. */
struct bench_rank {
    _Alignas(64) _Atomic uint64_t progress; /* changes as long as the rank gets on */
    int status;                             /* negative errno of what failed */
    char text[FCC_TEXT_MAX];
    int64_t wrong[BENCH_KINDS]; /* elements, of each schedule that was checked */
};

struct bench {
    struct shape shape;
    int64_t iters, warmup;
    int64_t stream; /* operators that are enqueued on a stream at a time and timed together; 0: one call at a time */
    bool group;     /* ... in a group */
    bool prepared;  /* ... as runs of one that is prepared once */
    bool check, json, local;
    const char *device; /* its kind: "cpu", "cuda", "hip"; until it is known which GPUs there are also "gpu" */
    enum fcc_device_kind device_kind;
    int nodes;
    const char *sockets[FCC_MAX_RANKS];          /* of each node's fccd */
    char addresses[FCC_MAX_RANKS][FCC_NODE_MAX]; /* of each node; "" if there is one */
    char job[FCC_JOB_MAX];
    int devices[FCC_MAX_RANKS]; /* of each rank */
    int nkinds;
    enum bench_kind kinds[BENCH_KINDS];
    int id_pipe[2]; /* rank 0 writes the communicator's id nranks - 1 times */
    int limit_ms;   /* without progress of any rank */
    struct bench_rank *ranks;
    double *seconds; /* [nkinds][iters][nranks] */
};

static inline double *bench_time(const struct bench *b, int kind, int64_t iter, int rank)
{
    return &b->seconds[(kind * b->iters + iter) * b->shape.nranks + rank];
}

/* A rank's node: in blocks, as launchers place them and as plans count them. */
static inline int bench_node(const struct bench *b, int rank)
{
    return rank * b->nodes / b->shape.nranks;
}

static inline void bench_progress(const struct bench *b, int rank)
{
    (void)atomic_fetch_add_explicit(&b->ranks[rank].progress, 1, memory_order_relaxed);
}

/* ---- bench_place.c ---- */

/* The daemons' sockets, from a list with commas that is cut up: 0 or -EINVAL. */
int bench_sockets_split(struct bench *b, char *list);
/* Start the private daemons of --local; on success *out is to be stopped. */
int bench_local_start(struct bench *b, struct local_nodes *out, struct error *e);
/* Place the ranks, and learn the daemons' addresses and time limit. 0, or an exit code (printed). */
int bench_devices_choose(const struct call *call, struct bench *b);

/* ---- bench_args.c: the operator's arguments, by its row ---- */

/* One rank's memory and arguments. */
struct bench_args {
    _Alignas(16) unsigned char args[BENCH_ARGS_BYTES]; /* struct fcc_NAME_args */
    fcc_buffer *result;
    int64_t *numbers[FCC_ATTR_SEND_ROWS]; /* of its attributes */
    int64_t recv_rows[FCC_MAX_RANKS];     /* where the values of the completion go */
    void *room;                           /* BENCH_PIECE_BYTES, for one piece of a tensor */
};
#define BENCH_PIECE (INT64_C(1) << 20) /* elements that are made and written at a time; a sign of life after each */
#define BENCH_PIECE_BYTES ((size_t)BENCH_PIECE * sizeof(int64_t))

/* Allocate and fill the tensors, on all ranks; *out is zeroed. 0, or what bench_fail() returned: *out is to be freed either way. */
int bench_args_make(struct bench *b, int rank, fcc_comm *comm, struct bench_args *out);
void bench_args_schedule(const struct bench *b, struct bench_args *a, uint32_t schedule);
void bench_args_free(struct bench_args *a);
/* The operator's functions, which take the arguments whatever their type. */
struct bench_calls {
    int (*call)(fcc_comm *comm, const void *args);
    int (*enqueue)(fcc_comm *comm, const void *args, void *stream, fcc_request **out);
    int (*prepare)(fcc_comm *comm, const void *args, fcc_prepared **out); /* NULL: it cannot be prepared */
};
const struct bench_calls *bench_calls(enum fcc_op op);

/* ---- bench_rank.c ---- */

/* Note in the rank's part of the shared memory what failed, and why. Returns status. */
int bench_fail(struct bench *b, int rank, int status, const char *what, const char *why);
/* A rank's process: everything from connect to disconnect. Returns 0 or a negative errno, with the reason in its bench_rank. */
int bench_rank_run(struct bench *b, int rank);

/* ---- bench_data.c: a tensor's element is a function of (tensor, rank, index), exact in the tensor's dtype ---- */

enum bench_tensor { BENCH_X, BENCH_W, BENCH_TABLES, BENCH_IDS };

/* A value in [-1, 1). */
double data_value(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t index);
/* Write count elements from `first` on, densely, in the shape's dtype; or as float. */
void data_fill(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, void *out);
void data_floats(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, float *out);
/* The id at position `index` of rank's indices: from 0 to rows - 1. */
int64_t data_id(const struct shape *shape, int rank, uint64_t index);
/* An element of a result as the operators wrote it. */
double data_read(enum fcc_dtype dtype, const void *data, uint64_t index);

/* ---- bench_check.c ---- */

/* Rows and columns of what each rank computes, and of rank's result. */
void computed_size(const struct shape *shape, int64_t *rows, int64_t *cols);
void result_size(const struct shape *shape, int rank, int64_t *rows, int64_t *cols);
/* What rank's dense result should be: to be freed by the caller; NULL if there is no memory. */
double *result_want(const struct bench *b, int rank);
/* How many elements of rank's dense result are not as they should be. */
int64_t result_wrong(const struct shape *shape, int rank, const double *want, const void *result);

/* ---- bench_report.c ---- */

struct bench_kind_row {
    const char *text, *json;
    uint32_t schedule;
    bool has_result; /* if not, it is half an operator */
};
extern const struct bench_kind_row bench_kind_rows[BENCH_KINDS];

/* Print the table or the JSON line from what all ranks found. 0 or -ENOMEM. */
int bench_report(const struct bench *b);
/* Wrong elements over all ranks, of one schedule. */
int64_t bench_wrong(const struct bench *b, enum bench_kind kind);

#endif
