/* SPDX-License-Identifier: MIT
 *
 * bench.h - shared by the parts of the verb bench.
 *
 * bench.c parses options, forks a process for each rank and waits for them. bench_place.c chooses each rank's node and
 * device. bench_rank.c is a rank's process, and bench_args.c makes its arguments. bench_data.c makes inputs that every
 * process can compute again, and compares a result with a plain reference. bench_report.c prints.
 */
#ifndef FCC_CLIENT_FCCCTL_BENCH_BENCH_H
#define FCC_CLIENT_FCCCTL_BENCH_BENCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/fccctl/bench/local.h"
#include "client/fccctl/bench/shape.h"
#include "client/fccctl/fccctl.h"
#include "proto/fccclient.h"
#include "proto/proto.h"

/* What is measured: a schedule, with the route by rule; or fused, or its communication alone, with a given route. */
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
    BENCH_ANY_ORDER, /* fused, of sums in any order */
    BENCH_KINDS,
};
#define BENCH_ARGS_BYTES 1024 /* room for any operator's arguments */
#define BENCH_STREAM_MAX 64   /* the most operators of a context in flight */

/* One rank's part of the memory that the parent and the ranks share. The rank writes. The parent reads `progress` at any
 * time, and the rest after the rank has ended. */
struct bench_rank {
    _Alignas(64) _Atomic uint64_t progress; /* changes while the rank makes progress */
    int status;                             /* negative errno of the failure; 0: none */
    char text[FCC_TEXT_MAX];
    int64_t wrong[BENCH_KINDS]; /* wrong elements of each schedule that was checked */
};

struct bench {
    struct shape shape;
    int64_t iters, warmup;
    int64_t stream; /* operators enqueued on a stream and timed together; 0: one call at a time */
    bool group;     /* the operators on the stream form a group */
    bool prepared;  /* the operators on the stream are runs of one prepared operator */
    bool apart;     /* one schedule after the other, instead of by turns */
    bool check, json, local;
    const char *device; /* the devices' kind: "cpu", "cuda", "hip"; or "gpu" until the kind of the GPUs is known */
    enum fcc_device_kind device_kind;
    int nodes;
    const char *sockets[LOCAL_NODES_MAX];          /* the socket of each node's fccd */
    char addresses[LOCAL_NODES_MAX][FCC_NODE_MAX]; /* the address of each node; "" if there is one node */
    char job[FCC_JOB_MAX];
    int devices[FCC_MAX_RANKS]; /* the device of each rank */
    int nkinds;
    enum bench_kind kinds[BENCH_KINDS];
    int id_pipe[2]; /* rank 0 writes the communicator's id nranks - 1 times */
    int limit_ms;   /* the longest time without progress of any rank */
    struct bench_rank *ranks;
    double *seconds; /* [nkinds][iters][nranks] */
};

static inline double *bench_time(const struct bench *b, int kind, int64_t iter, int rank)
{
    return &b->seconds[(kind * b->iters + iter) * b->shape.nranks + rank];
}

/* A rank's node. Ranks are placed in blocks, as launchers and plans place them. */
static inline int bench_node(const struct bench *b, int rank)
{
    return rank * b->nodes / b->shape.nranks;
}

static inline void bench_progress(const struct bench *b, int rank)
{
    (void)atomic_fetch_add_explicit(&b->ranks[rank].progress, 1, memory_order_relaxed);
}

/* ---- bench_place.c ---- */

/* Splits a comma-separated list of sockets, in place. 0 or -EINVAL. */
int bench_sockets_split(struct bench *b, char *list);
/* Starts the private daemons of --local. On success the caller stops *out. */
int bench_local_start(struct bench *b, struct local_nodes *out, struct error *e);
/* Places the ranks, and asks the daemons for their addresses and time limit. Returns 0, or an exit code (printed). */
int bench_devices_choose(const struct call *call, struct bench *b);

/* ---- bench_args.c: the operator's arguments, by its row ---- */

/* One rank's memory and arguments. */
struct bench_args {
    _Alignas(16) unsigned char args[BENCH_ARGS_BYTES]; /* struct fcc_NAME_args */
    fcc_buffer *result;
    int64_t *numbers[FCC_ATTR_END];   /* the values of attributes that are lists */
    int64_t recv_rows[FCC_MAX_RANKS]; /* receives the values of the completion */
    void *room;                       /* BENCH_PIECE_BYTES, for one piece of a tensor */
};
#define BENCH_PIECE (INT64_C(1) << 20) /* elements that are made and written at a time; progress is noted after each piece */
#define BENCH_PIECE_BYTES ((size_t)BENCH_PIECE * sizeof(int64_t))

/* Allocates and fills the tensors, on all ranks; *out is zeroed. Returns 0 or bench_fail()'s status. The caller frees *out
 * in both cases. */
int bench_args_make(struct bench *b, int rank, fcc_comm *comm, struct bench_args *out);
void bench_args_schedule(const struct bench *b, struct bench_args *a, uint32_t schedule);
void bench_args_free(struct bench_args *a);
/* The operator's functions. Their arguments are untyped. */
struct bench_calls {
    int (*call)(fcc_comm *comm, const void *args);
    int (*enqueue)(fcc_comm *comm, const void *args, void *stream, fcc_request **out);
    int (*prepare)(fcc_comm *comm, const void *args, fcc_prepared **out); /* NULL: the operator cannot be prepared */
};
const struct bench_calls *bench_calls(enum fcc_op op);

/* ---- bench_rank.c ---- */

/* Notes in the rank's part of the shared memory what failed, and why. Returns status. */
int bench_fail(struct bench *b, int rank, int status, const char *what, const char *why);
/* Unless status is 0: the library's function `what` failed with it. */
int bench_tried(struct bench *b, int rank, int status, const char *what);
/* A rank's process: everything from connect to disconnect. Returns 0 or a negative errno, with the reason in its bench_rank. */
int bench_rank_run(struct bench *b, int rank);

/* ---- bench_data.c: a tensor's element is a function of (tensor, rank, index), exact in the tensor's dtype ---- */

enum bench_tensor { BENCH_X, BENCH_W, BENCH_TABLES, BENCH_IDS };

/* Writes `count` elements from `first` on, densely, in the shape's dtype. */
void data_fill(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, void *out);
void data_floats(const struct shape *shape, enum bench_tensor tensor, int rank, uint64_t first, uint64_t count, float *out);
/* The id at position `index` of rank's indices: from 0 to rows - 1. */
int64_t data_id(const struct shape *shape, int rank, uint64_t index);
/* The size of the result that each rank computes, and of the result that a rank gets. */
void computed_size(const struct shape *shape, int64_t *rows, int64_t *cols);
void result_size(const struct shape *shape, int rank, int64_t *rows, int64_t *cols);
/* The correct result of a rank, dense. The caller frees it. NULL: out of memory. */
/* bench_vector.c: the same of a collective, into zeroed memory. room: BENCH_PIECE floats. */
void vector_want(const struct bench *b, int rank, double *want, float *room);
double *result_want(const struct bench *b, int rank);
/* The number of wrong elements in a rank's dense result. */
int64_t result_wrong(const struct shape *shape, int rank, const double *want, const void *result);

/* ---- bench_report.c ---- */

struct bench_kind_row {
    const char *text, *json;
    uint32_t schedule;
    bool has_result; /* false: half an operator, without a result */
};
extern const struct bench_kind_row bench_kind_rows[BENCH_KINDS];

/* Prints all ranks' times as a table or a line of JSON. 0 or -ENOMEM. */
int bench_report(const struct bench *b);
/* The number of wrong elements of one schedule on all ranks. */
int64_t bench_wrong(const struct bench *b, enum bench_kind kind);

#endif
