/* SPDX-License-Identifier: MIT
 *
 * cost.h - what an operator is expected to take, of what a device and its links were measured to do. One place for all who estimate: the tuner of
 * programs, and whatever runs plans by a model.
 *
 * Work is counted: of a plan's slices (cost_plan.c), which the simulation runs one by one; and of whole collectives and products by their sizes, for the library, which
 * makes no plans, and its tuner (kernels/tune/work.c). Both count the same: test_cost compares them. A model is measured (the tuner's calibration:
 * client/tune/calibrate.c), and cost_time() joins both. Nothing here has a figure of its own.
 */
#ifndef FCC_KERNELS_PLAN_COST_H
#define FCC_KERNELS_PLAN_COST_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What one rank does a second while all the others do the same. Rates that are 0 were not measured: work of that kind then has no estimate. */
struct cost_model {
    double launch_s; /* an operator of next to no work, from its call to its end: launch, hand-over, meeting of the ranks */
    double memory_bytes_s; /* bytes read and written in memory */
    double flops_s;        /* operations of matrix products */
    double instructions_s; /* instructions of steps' code, of one element each (kernels/program/code.h) */
    double link_bytes_s;   /* bytes that go to other ranks, or come from them */
    bool
        link_works_alone; /* data travels while the device computes: what is fused overlaps. False: the same workgroups do both */
};

/* What one rank does in one operator. */
struct cost_work {
    double bytes, flops, instructions, link_bytes;
    double worked_bytes; /* read and written by what computes the flops, at the same time; not in `bytes` */
    double operators;    /* so many are launched, one after the other */
    double pieces;       /* the slices in which it is computed and sent: 0 and 1 are one after the other */
};

/* Bytes a second at which something that computes moves its bytes: at most `most`, and no faster than it computes, for so many seconds, what belongs to
 * them. So it takes the longer of both times, and of the shorter one the part that is exposed, 0 to 1: what it does not do meanwhile. The simulation of each slice and
 * cost_time() have this from one place. */
static inline double cost_pace(double bytes, double seconds, double most, double exposed)
{
    const double pace = seconds > 0 && bytes / seconds < most ? bytes / seconds : most;

    if (!(exposed > 0) || !(seconds > 0))
        return pace;
    const double moving = bytes / most, shorter = moving < seconds ? moving : seconds;
    return bytes / (bytes / pace + (exposed < 1 ? exposed : 1) * shorter);
}

/* Seconds; negative: the model has no rate for some of the work. */
double cost_time(const struct cost_model *model, const struct cost_work *work);
void cost_add(struct cost_work *sum, const struct cost_work *one);

/* What a rank does in a collective by which it has `in` bytes to give and gets `out` bytes, on one node. SEND: whatever else. */
enum cost_exchange { COST_ALL_REDUCE, COST_REDUCE_SCATTER, COST_ALL_GATHER, COST_SEND };
struct cost_work cost_exchange(enum cost_exchange kind, int nranks, double in, double out);

/* What a rank does in a product of `elements` elements, each of k multiplications, whose factors have so many bytes and whose result, all of it, has `result`: alone; or
 * its elements are partial sums, which are added up, and each rank gets its part of the result, or all ranks get all of it. */
enum cost_sums { COST_ALONE, COST_OWN_SUMS, COST_ALL_SUMS };
struct cost_work cost_product(enum cost_sums sums, int nranks, double elements, double k, double factors, double result);

/* A model of measured times: each row of work took so many seconds. Each rate is found from the rows that have work of its kind and otherwise only of
 * kinds that rows before it have; the first row is nothing but a launch. A rate that comes out at
 * nothing or less, because noise was larger than the work, is -1 in *out with false: what was measured says nothing. */
struct cost_row {
    struct cost_work work;
    double seconds;
};
bool cost_fit(const struct cost_row rows[], int n, struct cost_model *out);

struct problem;
struct plan;
struct slice;

/* What one slice does: the one place that counts it, for the sum of a plan and for the simulation of each slice (kernels/sim/). */
struct slice_cost {
    double flops;   /* operations of a product, or additions of pooling, or of partial sums of a product */
    double read;    /* bytes that its rank reads: factors, partial sums, what is put */
    double payload; /* bytes that it stores at each of its destinations */
    /* Bytes that it reads from each other rank's memory, of collectives on one node, whose owners read all inputs. Otherwise 0 */
    double pulled;
    bool is_random; /* it reads rows of tables */
    double fresh;   /* of what it reads, partial sums that other ranks have just stored */
    double added;   /* additions of a collective, which are no part of flops: their time is that of their bytes, but on cores */
};
/* A plan's slices, of which costs are asked. */
struct slice_costs {
    const struct problem *problem;
    const struct plan *plan;
    double flops, read;     /* of an element that is computed */
    double partial, result; /* bytes of an element of a partial sum, and of a result */
    double rows_bytes;      /* gather: of an element of A; otherwise 0 */
    bool reads_tables;      /* the plan adds up rows of tables; otherwise it moves what has been added up, if anything */
    double unit;            /* elements of a collective that a slice counts as one; otherwise 1 */
    bool direct, packets;   /* owners read inputs; partial sums travel as packets */
};
void slice_costs_begin(const struct problem *problem, const struct plan *plan, struct slice_costs *out);
struct slice_cost slice_cost(const struct slice_costs *c, const struct slice *s);
/* Bytes of memory that the plan's rank reads and writes, whichever rank's it is: each once, but for rows of tables, each as often as it is read. */
double cost_touched(const struct slice_costs *c);
/* Pieces of memory, each by itself, that what it stores is at a destination. */
double slice_rows(const struct slice_costs *c, const struct slice *s);

/* A tile of a product, as a GPU's kernel computes it. It goes through K as long however few of its rows are used: the matrix units multiply all of them, and
 * the columns' factors come anyway. Slices of several destinations that lie side by side are one tile, and where there are few tiles several workgroups
 * share one's K. */
struct cost_tile {
    double flops,
        loaded;  /* of one workgroup: operations with all of the tile's rows, and bytes of both factors that come to it */
    double sums; /* bytes of partial sums that it gives to those that share the tile's K */
    /* For a slice of a tile that has several: rounds in which the workgroups compute all tiles, for each round in which they would compute all slices */
    double rounds;
};
/* flops 0: the plan is no product for a GPU, or has nothing to compute. */
struct cost_tile cost_tile(const struct problem *problem, const struct plan *plan, uint32_t workgroups);

/* What a plan's rank does: the sum of its slices. */
struct cost_work cost_plan(const struct problem *problem, const struct plan *plan);

/* Rows of its tables that an embedding's rank reads, evenly at random, one table after the other. */
struct cost_tables {
    double again; /* the part of the rows that it has read before */
    double table; /* bytes of one table that it reads, each once */
};
/* table_rows: of each table. Zeros: the operator is no embedding, or reads nothing. */
struct cost_tables cost_tables(const struct problem *problem, int rank, double table_rows);

#ifdef __cplusplus
}
#endif
#endif
