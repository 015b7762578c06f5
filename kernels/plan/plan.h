/* SPDX-License-Identifier: MIT
 *
 * plan.h - an operator's slices for one problem, one rank and one schedule, in the order in which they run.
 *
 * A plan is plain data, made by a pure function (no I/O, no device, no pointers into buffers). Workgroups take its slices in
 * order, each slice once. A slice may first wait for flags of its own rank, then computes and/or puts its tile; the last slice
 * of a signal group to finish raises the group's flag at the group's destination.
 *
 * Flags are epochs: in the n-th operator of a communicator, raising a flag stores n and waiting for it means waiting for at
 * least n. So flags are never reset and one that is left over cannot lie.
 *
 * Every plan has at least one slice. Staging memory and flag numbers are used again by the communicator's next operator, so
 * that one must not start on any rank before this one has finished on all.
 *
 * Why no plan can deadlock: every slice has a level, such that levels never descend along a plan, and a slice waits only for
 * slices, of whichever rank, that have a lower level. Workgroups take slices in order; so of all slices that are not done, one
 * with the lowest level is in a workgroup's hands on its rank, and waits for nothing. In flat plans the levels are: what does
 * not wait; PUT that waits for the rank's own COMPUTE slices; REDUCE; the final WAIT. Hierarchical ones: kernels/plan/exchange/reduce_nodes.c.
 */
#ifndef FCC_KERNELS_PLAN_PLAN_H
#define FCC_KERNELS_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/plan/slice.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/operators.h"

/* What is to be done, for all ranks together. */
struct problem {
    enum fcc_op op;
    enum fcc_dtype dtype;
    int nranks;
    int32_t node_of[FCC_MAX_RANKS]; /* topology: the node that each rank is on */
    union {
        struct {
            int64_t dim, batch;
            int64_t tables[FCC_MAX_RANKS]; /* T_r */
            int64_t split[FCC_MAX_RANKS];  /* samples of each rank; sum is batch */
            int64_t nnz[FCC_MAX_RANKS];    /* indices of each rank: an estimate of the work, not of the shape */
        } embedding;
        struct {
            int64_t m, n;
            int64_t k[FCC_MAX_RANKS];
        } gemv;
        struct {
            int64_t n;
            int64_t k[FCC_MAX_RANKS];
            int64_t rows[FCC_MAX_RANKS][FCC_MAX_RANKS]; /* [source][destination] */
        } gemm;
    };
};

/* What the default slice sizes are made for: a few threads with caches, or hundreds of workgroups. */
enum plan_target { PLAN_CPU, PLAN_GPU };

/* How an operator reaches the ranks of other nodes. Flat: every rank's slices go to every rank by themselves. Hierarchical: what
 * is reduced is reduced inside each node first, one message goes to each other node, and what comes back goes to one rank of a
 * node, which hands it to the others there. Slices with one destination (the all-to-alls') are the same either way.
 *
 * The rule is a function of the problem alone, and `auto` does not measure it: the way decides the order of additions, and so
 * the bits of a result, which are to be the same in every run and on every sort of device. */
enum plan_route { PLAN_ROUTE_RULE, PLAN_FLAT, PLAN_HIERARCHICAL };

/* How it is to be done. Slice sizes of 0 mean the operator's default for the problem. The units of rows and cols are the
 * operator's (embedding: samples, tables; gemv: -, columns of y; gemm: rows of C, columns of C). */
struct schedule {
    enum fcc_schedule_kind kind; /* not AUTO */
    enum plan_target target;
    enum plan_route route;
    uint32_t workgroups; /* of a cpu device, among which the slices are shared; 0: 1 */
    uint32_t slice_rows;
    uint32_t slice_cols;
};

#define PLAN_SETS 2
static_assert(FCC_MAX_RANKS <= 64, "a bit each");

struct plan {
    enum fcc_op op;
    int rank, nranks;
    struct schedule schedule; /* with the sizes and the route that were chosen */
    uint64_t sets[PLAN_SETS]; /* ranks, a bit each: destinations of several ranks that are not all */
    struct slice *slices;
    uint32_t nslices;
    struct signal_group *groups;
    uint32_t ngroups;
    uint32_t nflags;        /* flags used at every rank: [0, nflags) */
    uint64_t staging_bytes; /* memory that this rank needs besides the tensors */
    uint64_t slots_bytes;   /* GPUs: memory for words that carry their epoch (kernels/gpu/abi.h), the same on all ranks */
    bool only_slots;        /* GPUs: it uses such words and no flags, so a rank may begin before others have come */
    uint32_t
        shared; /* tensors, a bit each, that other ranks store into: a result with the role SHARED, and RESULT if this plan does */
    void *layout; /* the operator's: where things are, for those who execute its slices on the cpu. NULL: it keeps none */
};

#define PLAN_MAX_FLAGS 16384u
#define PLAN_MAX_SLICES (1u << 20)

/* Make rank's plan. Returns 0 and *out, to be freed with plan_free(), or -EINVAL (sizes beyond PLAN_MAX_*: the text says which)
 * or -ENOMEM. The same arguments give the same plan on every rank and machine. */
int plan_make(const struct problem *problem, int rank, const struct schedule *schedule, struct plan **out, struct error *e);
void plan_free(struct plan *plan);

/* Whether a slice or a signal group with this destination goes to that rank, too. */
static inline bool plan_reaches(const struct plan *plan, unsigned dst, int rank)
{
    if (dst == SLICE_DST_ALL || !(dst & SLICE_DST_SET))
        return dst == SLICE_DST_ALL || dst == (unsigned)rank;
    return plan->sets[dst - SLICE_DST_SET] >> rank & 1;
}

/* If there are several nodes: how many ranks the largest one has. 1: a hierarchical plan would be the flat one. */
int plan_node_ranks(const struct problem *problem);

/* Bytes read and written and floating point operations of one rank: an estimate for choosing how to run it. */
struct work {
    double bytes, flops;
};
struct work plan_work(const struct problem *problem, int rank);

/* The name of a slice kind: "compute+put", "compute", "put", "reduce", "wait", "reduce in node", "forward". */
const char *slice_kind_name(enum slice_kind kind);
const char *route_name(enum plan_route route);          /* "by rule", "flat", "hierarchical" */
const char *schedule_name(enum fcc_schedule_kind kind); /* "auto", "fused", ... */
const char *op_prepare_name(enum fcc_op op);            /* "gemv_all_reduce_prepare", ...; "unknown" */
const char *op_name(enum fcc_op op);                    /* "gemv_all_reduce", ...; "unknown" */
int op_by_name(const char *name);                       /* enum fcc_op, or -ENOENT */
const char *dtype_name(enum fcc_dtype dtype);           /* "f32", "f16", "bf16", "i32", "i64"; "unknown" */
int dtype_by_name(const char *name);                    /* enum fcc_dtype, or -ENOENT */
size_t dtype_size(enum fcc_dtype dtype);                /* bytes, or 0 */

/* ---- for the operators' plan functions ---- */

/* A plan under construction: arrays that grow. The first failure is kept, later calls do nothing. */
struct plan_builder {
    struct plan *plan;
    uint32_t slices_room, groups_room;
    int status;
};
uint32_t plan_add_group(struct plan_builder *b, unsigned dst, uint32_t flag);    /* returns its index */
void plan_add_slice(struct plan_builder *b, struct slice slice);                 /* counts it in its group */
void plan_keep_layout(struct plan_builder *b, const void *layout, size_t bytes); /* a copy, once for a plan */

/* Are its ranks on more than one node? */
bool plan_is_over_nodes(const struct problem *problem);

/* The order in which `rank` serves the destinations: ranks of other nodes first, then those of its own node, each beginning
 * with the next rank so that no two ranks begin with the same one; itself last. order[nranks]. */
void plan_destination_order(const struct problem *problem, int rank, int order[]);

#endif
