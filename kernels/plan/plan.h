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
 * with the lowest level is in a workgroup's hands on its rank, and waits for nothing. A plan says its slices' levels
 * (plan.level_first): enum plan_level, but in hierarchical plans for cores (kernels/plan/exchange/reduce_nodes.c).
 */
#ifndef FCC_KERNELS_PLAN_PLAN_H
#define FCC_KERNELS_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/plan/problem.h"
#include "kernels/plan/slice.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"

struct fcc_wire_tensor;
#include "proto/operators.h"

/* The device that default slice sizes suit: a few threads with caches, or hundreds of workgroups. */
enum plan_target { PLAN_CPU, PLAN_GPU };

/* How an operator reaches the ranks of other nodes. Flat: every rank sends to every rank. Hierarchical: partial sums are
 * reduced inside each node first, each node sends one sum to the owner, and the result goes to one rank of each node, which
 * forwards it to the others there. All-to-all slices have one destination and are the same either way.
 *
 * The rule is a function of the problem alone, never of measurements (`auto`): the route decides the order of additions and so
 * the bits of a result, which must be the same in every run and on every kind of device. */
enum plan_route { PLAN_ROUTE_RULE, PLAN_FLAT, PLAN_HIERARCHICAL };

/* How an operator is executed. Slice sizes of 0 mean the operator's default for the problem. Units of slice_rows and
 * slice_cols: embedding: samples, tables; gemv: unused, columns of y; gemm: rows of C, columns of C. */
struct schedule {
    enum fcc_schedule_kind kind; /* not AUTO */
    enum plan_target target;
    enum plan_route route;
    uint32_t workgroups; /* cpu: number of workgroups that share the slices; 0 means 1 */
    uint32_t slice_rows;
    uint32_t slice_cols;
};

/* How a rank learns that data from another rank has arrived. NONE: no data goes to other ranks. FLAGS: the sender raises a flag
 * after the data. PACKETS: each partial sum travels with its operator's stamp, as in NCCL's LL protocol (kernels/gpu/abi.h,
 * struct gpu_stamped); reduced results may still use flags. */
enum plan_transport { TRANSPORT_NONE, TRANSPORT_FLAGS, TRANSPORT_PACKETS };

/* The levels of flat plans, and of all plans for GPUs, where each is a phase of the kernels (enum gpu_phase). What is of which level where rows
 * are gathered before a product: kernels/plan/exchange/gather.c. */
enum plan_level {
    LEVEL_FREE,    /* waits for nothing */
    LEVEL_PUT,     /* waits for this rank's slices, then puts */
    LEVEL_NODE,    /* waits for this node's ranks, then reduces their partial sums */
    LEVEL_REDUCE,  /* waits for all ranks, then reduces */
    LEVEL_FORWARD, /* waits for another node, then forwards its result to ranks of this node */
    LEVEL_WAIT,    /* waits only */
    LEVEL_ROWS,    /* waits for this rank's whole rows, then makes its result of them */
    LEVELS
};

#define PLAN_SETS 2
/* Ranks of a plan, as many as a slice can name (slice.dst). What a communicator or a device has room for is another limit, which whoever joins one is
 * told: FCC_MAX_RANKS, GPU_MAX_RANKS. */
#define PLAN_MAX_RANKS 32768
static_assert(PLAN_MAX_RANKS <= SLICE_DST_SET, "sets are numbered from there on");

struct plan {
    enum fcc_op op;
    int rank, nranks;
    struct schedule schedule; /* with the chosen sizes and route */
    /* Destinations that are several ranks but not all: bit r % 64 of sets[i][r / 64] is rank r. The words lie behind the plan, in its memory */
    uint64_t *sets[PLAN_SETS];
    struct slice *slices;
    uint32_t nslices;
    uint32_t *level_first; /* level l has the slices [level_first[l], level_first[l + 1]), which may be none; l < nlevels */
    uint32_t nlevels;
    /* Slices of lower levels neither store to nor read from another rank, so they may run before any other rank has come */
    uint32_t start_level;
    struct signal_group *groups;
    uint32_t ngroups;
    uint32_t nflags;        /* flags used at every rank: [0, nflags) */
    uint64_t staging_bytes; /* memory that this rank needs besides the tensors */
    uint64_t gather_bytes;  /* of that, for rows of A which are gathered (kernels/plan/exchange/gather.h) */
    enum plan_transport transport;
    uint64_t packet_bytes; /* packet memory that each rank needs, the same on all ranks */
    uint32_t shared;       /* tensors that other ranks store into under this plan, a bit each */
    /* The rows that ranks store lie in staging memory, dense, from the same byte rows_at of every rank on: rows slices make the result of them */
    bool has_rows;
    uint64_t rows_at, rows_bytes;
    uint32_t rows_flag; /* which the last wait slice raises at the rank itself (kernels/plan/exchange/rows.h) */
    /* cpu, sums in any order: ranks add their products up where they compute them, in so many tiles of each rank's, which is the same number on all ranks
     * (kernels/cpu/execute.h, struct added_tile). 0: they store partial sums */
    uint32_t added_tiles;
    bool adds_into_result; /* in the owner's result; otherwise in its staging memory */
    void *layout;          /* cpu: the exchange's memory layout (struct put_layout, reduce_layout, gather_layout); NULL: none */
};

#define PLAN_MAX_FLAGS 16384u
#define PLAN_MAX_SLICES (1u << 20)

/* Make rank's plan. Returns 0 and *out, to be freed with plan_free(), or -EINVAL (sizes beyond PLAN_MAX_*: the text says which)
 * or -ENOMEM. The same arguments give the same plan on every rank and machine; but of a rank elsewhere (problem_is_here()) only
 * the sizes: it has no slices, groups, levels and layout. */
int plan_make(const struct problem *problem, int rank, const struct schedule *schedule, struct plan **out, struct error *e);
void plan_free(struct plan *plan);

/* Whether all slices of the plan may run before any other rank has come. */
static inline bool plan_starts_alone(const struct plan *plan)
{
    return plan->start_level >= plan->nlevels;
}

/* Whether tiles may be computed into staging memory. */
static inline bool plan_stages_tiles(const struct plan *plan)
{
    return plan->staging_bytes > plan->rows_bytes + plan->gather_bytes;
}

/* Whether some of the plan's compute may run before any other rank has come: either whole slices, or, fused with staging
 * memory, the compute of tiles whose puts follow later. */
static inline bool plan_starts_early(const struct plan *plan)
{
    return plan->start_level > 0 || (plan->schedule.kind == FCC_SCHEDULE_FUSED && plan_stages_tiles(plan));
}

/* Whether a slice or a signal group with this destination goes to that rank, too. */
static inline bool plan_reaches(const struct plan *plan, unsigned dst, int rank)
{
    if (dst == SLICE_DST_ALL || !(dst & SLICE_DST_SET))
        return dst == SLICE_DST_ALL || dst == (unsigned)rank;
    return plan->sets[dst - SLICE_DST_SET][rank / 64] >> rank % 64 & 1u;
}

/* Bytes read and written and floating point operations of one rank: an estimate for choosing how to run it. */
struct work {
    double bytes, flops;
};
struct work plan_work(const struct problem *problem, int rank);

/* About how long one core takes. Where it is less than WORK_INLINE_NS for all ranks together, they are of one node and use cores, the worker's engine runs the operator
 * itself: waking the workgroups and being woken by them would take longer. */
#define WORK_INLINE_NS 40000.0
double work_core_ns(struct work work, enum fcc_dtype dtype);

/* Bytes that a plan's slices read and write in memory, whichever rank's it is: of the factors, once; of partial sums and results (traffic.c). */
struct traffic {
    uint64_t factors, read, written;
};
/* A function of the plan. False: it is none of a product whose sums are added up, or of a rank elsewhere, which has no slices. */
bool plan_traffic(const struct problem *problem, const struct plan *plan, struct traffic *out);

/* The name of a slice kind: "compute+put", "compute", "put", "reduce", "wait", "reduce in node", "forward", "rows". */
const char *slice_kind_name(enum slice_kind kind);
const char *route_name(enum plan_route route);          /* "by rule", "flat", "hierarchical" */
const char *invariance_name(bool batch_invariant);      /* "batch invariant", "no batch invariance" */
const char *order_name(bool any_order);                 /* "any order", "rank order" */
const char *schedule_name(enum fcc_schedule_kind kind); /* "auto", "fused", ... */
const char *op_prepare_name(enum fcc_op op);            /* "gemv_all_reduce_prepare", ...; "unknown" */
const char *op_name(enum fcc_op op);                    /* "gemv_all_reduce", ...; "unknown" */
int op_by_name(const char *name);                       /* enum fcc_op that programs call, or -ENOENT */
const char *dtype_name(enum fcc_dtype dtype);           /* "f32", "f16", "bf16", "i32", ...; "unknown" */
int dtype_by_name(const char *name);                    /* enum fcc_dtype, or -ENOENT */
size_t dtype_size(enum fcc_dtype dtype);                /* bytes, or 0 */
/* Bytes from a tensor's first element to behind its last one; 0 if it has none. UINT64_MAX: that is no number. */
uint64_t wire_tensor_bytes(const struct fcc_wire_tensor *t);

/* ---- for the operators' plan functions ---- */

/* A plan under construction: arrays that grow. The first failure is kept, later calls do nothing. */
struct plan_builder {
    struct plan *plan;
    uint32_t slices_room, groups_room, levels_room;
    bool sizes_only; /* of a rank elsewhere: slices, groups and levels are not added */
    int status;
    struct scratch *scratch; /* what plan_scratch() has given, the last first; freed with the builder */
};
uint32_t plan_add_group(struct plan_builder *b, unsigned dst, uint32_t flag); /* returns its index */
/* Sets the level of the slices added from now on, initially 0; it never descends. */
void plan_add_level(struct plan_builder *b, uint32_t level);
void plan_add_slice(struct plan_builder *b, struct slice slice); /* counts it in its group */
/* Zeroed memory for plan.layout, at most once for a plan. NULL: the builder's status says so. */
void *plan_layout_new(struct plan_builder *b, size_t bytes);

static inline void plan_set_add(struct plan *plan, unsigned set, int rank)
{
    plan->sets[set][rank / 64] |= UINT64_C(1) << rank % 64;
}
/* Zeroed memory for `n` elements of that size, until the plan is made. NULL: the builder's status says so. */
void *plan_scratch(struct plan_builder *b, size_t n, size_t size);
void plan_scratch_free(struct plan_builder *b); /* all of it */

/* How many of the result's lines are owned by ranks before p, of 0 to nranks: each owns as many as the others, or the first ones one more.
 * Over nodes, of fewer lines than ranks, one rank of each block of ranks owns one, at another place of its node than the one before, the first
 * rank among them: each rank begins to send with the next owner, so these begin with different ones, and every adapter of a node has some to
 * send for. node_ranks: of a node; 0: all are on one. */
int64_t plan_lines_before(int64_t lines, int nranks, int64_t node_ranks, int p);

/* The order in which `rank` serves the destinations: ranks of other nodes first, then those of its own node, each beginning
 * with the next rank so that no two ranks begin with the same one; itself last. order[nranks]. */
void plan_destination_order(const struct problem *problem, int rank, int order[]);

#endif
