/* SPDX-License-Identifier: MIT
 *
 * reduce.h - the plans of an AllReduce: declarations shared by reduce.c, reduce_nodes.c and reduce_packets.c.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_REDUCE_H
#define FCC_KERNELS_PLAN_EXCHANGE_REDUCE_H

#include "kernels/plan/program.h"

/* ---- reduce.c ---- */

int64_t reduce_columns_per_line(const struct problem *problem);
/* Sets where each rank's chunk of the columns of a product begins, and the end: columns[nranks + 1]. Chunks are whole cache lines of y; the first is the
 * longest. Of sums whose rows are scattered: the rows that each rank gets; none if they have no columns. */
void reduce_chunks(const struct problem *problem, int64_t columns[]);
/* Whether each rank adds up the whole vector for itself: a small all_reduce whose ranks, of few nodes, are alone on theirs. All that a rank needs comes
 * in one step between nodes instead of two, and of two ranks it is as many bytes. */
bool reduce_is_by_all(const struct problem *problem, const struct schedule *schedule);
/* A WAIT slice for `count` flags from `first` on; is_here: as in struct slice. */
struct slice reduce_wait(int rank, int64_t first, int64_t count, bool is_here);

/* ---- reduce_layout.c, reduce_nodes.c: with flags: on the cpu, on GPUs of several nodes, and of gemm on all ---- */

/* Where chunks, tiles, receive slots and flags are: a function of the problem, the tile's size and the route, so the same on
 * all ranks (but `chunks`).
 *
 * The partial sums of a tile are received in slots. The tile's owner has slots 0, 1, ... for the ranks of its own node, in rank
 * order, and behind them one for each other node. Another node with several ranks first adds up its partial sums at one of its
 * ranks, the owner's deputy, which has a slot for each rank of that node. A flat plan treats all ranks as ranks of one node.
 *
 * Sums whose rows are scattered (op_scatters_rows()) have chunks of rows instead, wherever `columns` says where a chunk is: a tile is all
 * columns of some rows, and its slices, which are some of its columns each, lie in it one after the other, each dense. Each slice has
 * the tile's full height, so a kernel finds its place without the tile's size: sums_before() of kernels/cpu/reduce.c.
 *
 * A rank's staging memory has first the partial sums that it keeps, then its slots, each of slot_bytes: those of its own chunk,
 * then those of each chunk that it is deputy for, in the order of the owners. Slices name a slot by its index there
 * (reduce_slot_number()), so kernels need nothing of this layout.
 *
 * Each slot has a flag for each tile that it is for. Of few ranks, all ranks' tiles have flags: slot s of tile t has flag
 * s * ntiles + t, at the owner and at deputies. Of many ranks these would be more than PLAN_MAX_FLAGS however large the tiles
 * are, so a rank only has flags for its slots, each as many as the longest chunk has tiles: the slot of index i has flag
 * i * flag_stride + j for the j-th tile of its chunk. */
struct reduce_layout {
    int64_t ntiles;
    int64_t flag_stride;  /* distance between the flags of one tile in two adjacent slots */
    bool flags_by_index;  /* flags are numbered by slot index, because there are many ranks */
    uint64_t slot_bytes;  /* bytes of the partial sums of one chunk */
    uint64_t local_bytes; /* bytes of one rank's partial sums of all of y; 0: the fused schedule, which keeps none */
    int nranks;
    int nnodes; /* nodes are numbered in the order of their first ranks */
    /* No partial sums are moved: an owner reads all ranks' inputs (collectives on one node). */
    bool direct;
    bool by_all; /* reduce_is_by_all(): chunk 0 is the whole vector, and each rank owns one */
    bool
        adds; /* in any order: all ranks add into one slot of the owner's, or into its result (plan.h, adds_into_result), which is no slot */
    bool by_rows;          /* chunks are rows, not columns */
    int64_t across;        /* the size of the other dimension: rows of a chunk of columns, columns of a chunk of rows */
    uint32_t column_bytes; /* of one partial sum; of a collective, of a column's */
    int64_t longest;       /* columns of the longest chunk */
    int owner_slots;       /* the largest number of slots of any owner */
    int slots;             /* the largest number of slots of any rank */
    int64_t *columns;      /* [nranks + 1]: chunk p is columns (by_rows: rows) [columns[p], columns[p + 1]) */
    int64_t *elements;     /* [nranks + 1]: of a collective, where the chunks begin in the whole vector */
    int64_t *tiles;        /* [nranks + 1]: and tiles [tiles[p], tiles[p + 1]) */
    /* [nranks] each. */
    uint16_t *node, *place; /* of each rank: its node, and its index among that node's ranks */
    uint16_t *chunks; /* of each rank of other nodes: chunks of lower ranks with the same deputy on the plan's rank's node */
    uint16_t *size;   /* of each node: the number of its ranks */
    uint16_t *member; /* node j's ranks are member[first[j]] ..., in rank order */
    uint16_t *first;
};
/* Makes the layout of the builder's plan for the chosen route, without tiles. NULL: the builder's status has the reason. */
struct reduce_layout *reduce_layout_new(const struct problem *problem, struct plan_builder *b);
void reduce_layout_by_all(const struct problem *problem, struct reduce_layout *l);
void reduce_layout_cut(struct reduce_layout *l, int64_t tile_columns); /* cuts the chunks into tiles */
/* The number of slot flags. Behind them are ntiles flags of results, then one flag: this rank's partial sums are computed. */
int64_t reduce_slot_flags(const struct reduce_layout *l);
/* The owner of a column (by_rows: of a row), or of a slice; and the owner's deputy on a node. */
int reduce_owner(const struct reduce_layout *l, int64_t col);
int reduce_slice_owner(const struct reduce_layout *l, const struct slice *s);
int reduce_deputy(const struct reduce_layout *l, int owner, int node);
/* The rank that receives a source's partial sums of an owner's tiles, and the slot (for flags) that they go into there. */
int reduce_collector(const struct reduce_layout *l, int owner, int source);
int reduce_slot(const struct reduce_layout *l, int owner, int source);
/* The owner's slot for the sum of another node. */
int reduce_node_slot(const struct reduce_layout *l, int owner, int node);
/* The index of a slot among all slots in the staging memory of rank `at`: the owner, or its deputy on the plan's rank's node. */
int reduce_slot_number(const struct reduce_layout *l, int owner, int at, int slot);
/* Staging memory that each rank needs, the same on all ranks. */
uint64_t reduce_staging_bytes(const struct reduce_layout *l);
/* The number of the slice's tile among those that ranks add into at its owner; `pieces` of a tile are numbered apart. */
uint32_t reduce_added_tile(const struct reduce_layout *l, const struct schedule *schedule, const struct slice *s);
uint32_t reduce_added_tiles(const struct reduce_layout *l, const struct schedule *schedule);
/* Add the slices and groups of a plan whose sizes, route and layout are chosen, for any schedule. */
void reduce_flags_plan(const struct problem *problem, int rank, struct plan_builder *b);

/* ---- reduce_packets.c: of gemv on GPUs of one node ---- */

#define PACKET_BYTES 8u /* bytes of a packet: a partial sum and its operator's stamp */

void reduce_packets_plan(const struct problem *problem, int rank, struct plan_builder *b);
/* Returns the bytes of one rank's packets in another rank's packet memory. Sets first[nranks]: the first column that each rank
 * reduces. */
uint64_t reduce_packets_place(const struct problem *problem, int64_t first[]);

#endif
