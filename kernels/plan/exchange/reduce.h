/* SPDX-License-Identifier: MIT
 *
 * reduce.h - an AllReduce's plans: what reduce.c, reduce_nodes.c and reduce_packets.c have of each other.
 */
#ifndef FCC_KERNELS_PLAN_EXCHANGE_REDUCE_H
#define FCC_KERNELS_PLAN_EXCHANGE_REDUCE_H

#include "kernels/plan/program.h"

/* ---- reduce.c ---- */

int64_t reduce_columns_per_line(const struct problem *problem);
/* Where each rank's chunk of the columns begins, and the end: whole cache lines of y. The first is as long as any. */
void reduce_chunks(const struct problem *problem, int64_t columns[FCC_MAX_RANKS + 1]);
/* The wait for `count` flags; is_here: as in struct slice. */
struct slice reduce_wait(int rank, int64_t first, int64_t count, bool is_here);

/* ---- reduce_nodes.c: on the cpu, and on GPUs of several nodes ---- */

/* Where chunks, tiles, slots and flags are: a function of the problem, the tile's size and the route, so the same on all ranks.
 *
 * A tile's partial sums meet in the slots of ranks that reduce it. Its owner has slots 0, 1, ... for the ranks of its own node,
 * in rank order, and behind them one for each other node. On each of those that has several ranks one of them, the owner's
 * deputy there, has a slot for each rank of the node. Slot s of tile t has flag s * ntiles + t, at the owner and at deputies. A
 * flat plan is one in which all ranks count as ranks of one node.
 *
 * In a rank's staging memory, behind the partial sums that it keeps, all its slots lie one after the other, each of slot_bytes:
 * first those of its own chunk, then those of each chunk that it is deputy for, in the order of their owners. Slices name a slot by
 * its number there (reduce_slot_number()): so a kernel finds it without all this. */
struct reduce_layout {
    int64_t columns[FCC_MAX_RANKS + 1]; /* chunk p is columns [columns[p], columns[p + 1]) */
    int64_t tiles[FCC_MAX_RANKS + 1];   /* and tiles [tiles[p], tiles[p + 1]) */
    int64_t ntiles;
    uint64_t slot_bytes;  /* of partial sums of one chunk */
    uint64_t local_bytes; /* of one rank's partial sums of all of y; 0: fused, which keeps none */
    int nnodes;           /* in order of their first ranks */
    int owner_slots;      /* the most that an owner has */
    unsigned char node[FCC_MAX_RANKS], place[FCC_MAX_RANKS]; /* of a rank: its node, and where among its ranks */
    unsigned char size[FCC_MAX_RANKS];                       /* of a node: its ranks */
    unsigned char member[FCC_MAX_RANKS];                     /* node j's ranks are member[first[j]] ..., in rank order */
    unsigned char first[FCC_MAX_RANKS];
};
void reduce_layout_make(const struct problem *problem, const struct schedule *schedule, struct reduce_layout *out);
/* The flags of the slots; behind them ntiles flags of results, then one that the own partial sums are computed. */
int64_t reduce_slot_flags(const struct reduce_layout *l);
/* The owner of a column; its deputy on a node. */
int reduce_owner(const struct reduce_layout *l, int64_t col);
int reduce_deputy(const struct reduce_layout *l, int owner, int node);
/* Where a rank's partial sums of an owner's tiles go, and into which slot for the flags there. */
int reduce_collector(const struct reduce_layout *l, int owner, int source);
int reduce_slot(const struct reduce_layout *l, int owner, int source);
/* The same for a node's sum, which goes to the owner. */
int reduce_node_slot(const struct reduce_layout *l, int owner, int node);
/* Which of all its slots in the staging memory of the owner or of a deputy. */
int reduce_slot_number(const struct reduce_layout *l, int owner, int at, int slot);
/* How much staging memory any rank needs. */
uint64_t reduce_staging_bytes(const struct reduce_layout *l);
/* Slices and groups of all schedules, of which sizes and route are chosen. */
void reduce_flags_plan(const struct problem *problem, int rank, struct plan_builder *b);

/* ---- reduce_packets.c: on GPUs of one node ---- */

#define PACKET_BYTES 8u /* a partial sum and the stamp of its operator */

void reduce_packets_plan(const struct problem *problem, int rank, struct plan_builder *b);
/* Bytes of one rank's packets in another one's memory for them; and the first column of those that each rank reduces: first[nranks]. */
uint64_t reduce_packets_place(const struct problem *problem, int64_t first[]);

#endif
