/* SPDX-License-Identifier: MIT
 *
 * sim.h - a discrete-event simulation of plans on devices and links that need not exist. Plans in, times out: no device, no daemon, no I/O.
 *
 * What runs are the product's own plans (kernels/plan/plan.h), slice by slice, made by the same functions with the same schedule. What each slice does
 * is counted in one place (kernels/plan/cost.h). A machine is data: rates, latencies, numbers of workgroups and of links. README.md in this folder says
 * what is modelled and what is not.
 *
 * Time is counted in picoseconds, rates in whole bytes a second, and random numbers are made of whole numbers; so the same machine, operators and seed
 * give the same bits everywhere. A simulation belongs to one thread; several may run side by side.
 */
#ifndef FCC_KERNELS_SIM_SIM_H
#define FCC_KERNELS_SIM_SIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"
#include "proto/base/error.h"

#define SIM_MAX_RANKS 4096
#define SIM_MAX_NODES 1024
#define SIM_MAX_AFTER 16 /* operators that one operator waits for */
#define SIM_NAME 48
#define SIM_MAX_FLYING 16

/* What one rank runs on. */
struct sim_device {
    enum plan_target target;
    uint32_t workgroups;
    double flops_s
        [COMPUTE_KINDS]; /* of all workgroups together, by what is computed; VECTOR: additions of partial sums of products; 0: unlimited */
    double memory_bytes_s; /* read and written, of all workgroups together */
    /* Of an operator that touches at most cache_bytes, all is in a cache from the time before, and is read and written at cache_bytes_s; of one that touches
     * more, the less of it the more that is (operators.c). 0: no cache */
    double cache_bytes, cache_bytes_s;
    int cache_ranks; /* ranks of a node that share such a cache; 0: all. Of a GPU each has its own */
    /* The same of a smaller cache before it, of each core. 0: there is none */
    double near_bytes, near_bytes_s;
    /* Of a table whose rows an embedding reads at random, so much stays in a cache while it reads on: of the rows that it reads again so many come from
     * there, as fast as a workgroup can read. 0: none do */
    double table_cache_bytes;
    /* The most that one workgroup reads of tables' rows, which lie at random: it asks for rows ahead, so computing is no longer exposed. 0: as all else */
    double table_bytes_s;
    double
        exposed; /* of the shorter of computing and of reading and storing, the part that a workgroup does not do meanwhile: 0 to 1 */
    double workgroup_bytes_s; /* the most of one workgroup; 0: memory_bytes_s */
    /* GPUs: what the tiles of products take (struct cost_tile). Bytes of factors a second that come to one workgroup, from wherever; of partial sums, to one that
     * shares its tile's K with others. 0: slices take what their flops and bytes take, however their kernel computes them */
    double tile_bytes_s, tile_sums_bytes_s;
    double tile_begin_s; /* what a product's kernel takes at its begin and end, longer than others */
    double
        tile_store_bytes_s; /* to another rank of the node: bandwidth of a link that is full of tiles' rows; 0: link_bytes_s */
    double hand_over_s;     /* from a call to the launch, and from the end to the caller */
    /* Cores: the hand-over of an operator that the worker's engine runs itself (WORK_INLINE_NS), the ranks of a node one after the other on its core.
     * 0: it runs none */
    double inline_s;
    double launch_s; /* of a kernel */
    double step_s;   /* GPUs over nodes: of each further kernel of an operator */
    double slice_s;  /* what each slice costs its workgroup besides its work */
    double row_s;    /* and what each row of its tile does that it stores by itself */
    bool
        stores_wait; /* a workgroup waits for its stores over links to end; otherwise it begins its next slice meanwhile, but no further stores */
};

/* MEMORY: ranks of a node store into each other's memory as into their own; with shared_memory they share its bandwidth, too. MESH: a link for each pair of
 * ranks, in each direction. SWITCH: a link of each rank to a switch that never is the bottleneck, in each direction. */
enum sim_link_kind { SIM_LINK_MEMORY, SIM_LINK_MESH, SIM_LINK_SWITCH };
struct sim_node {
    int ranks;
    bool shared_memory;
    enum sim_link_kind link;
    double link_bytes_s, link_latency_s;
    double store_bytes_s; /* the most that one workgroup stores over a link; 0: link_bytes_s */
    int rails;            /* adapters; rank i of a node uses adapter i modulo rails */
};

/* FAT_TREE: leaves of `leaf` nodes, each with one bundle to the spines. RAIL: adapter i of all nodes is in network i, a fat tree. TORUS: `shape`, links to
 * both neighbours in each dimension, shortest ways, one dimension after the other. DRAGONFLY: groups of `leaf` nodes, a link between each two
 * groups. GRAPH: switches and cables as listed, the shortest way. */
enum sim_fabric_kind { SIM_FAT_TREE, SIM_RAIL, SIM_TORUS, SIM_DRAGONFLY, SIM_GRAPH, SIM_FABRICS };
struct sim_cable {
    int from, to; /* a node, or SIM_MAX_NODES plus a switch */
    double bytes_s;
};
struct sim_fabric {
    enum sim_fabric_kind kind;
    double bytes_s;   /* of an adapter, or of a torus's link, in each direction */
    double latency_s; /* of a message between neighbours */
    double hop_s;     /* of each further switch, or node of a torus */
    int leaf;
    double oversubscription; /* what a leaf's nodes can send over what its bundle carries */
    double global_bytes_s;   /* DRAGONFLY: between two groups */
    double inject_bytes_s;   /* TORUS: of an adapter; 0: of all its links */
    int shape[3], dimensions;
    struct sim_cable *cables; /* GRAPH, both directions */
    int ncables, nswitches;
    /* A node's proxy, one thread. message_s, receive_s: of each message that it sends, and receives. copy_bytes_s: data that it copies itself (tcp); 0: none */
    double message_s, receive_s, copy_bytes_s;
    /* How long a proxy that has something to do waits for a core at most, while all workgroups of its node compute: a scheduler's time slice. 0: it has one for
     * itself */
    double core_wait_s;
    /* Of a link's bandwidth, or a memory's: how far what its flows have together may be from what it was when it was shared, before it is shared anew.
     * 0: every change is shared; more makes large fabrics quicker */
    double tolerance;
    int in_flight; /* messages that an adapter sends at once, each to another node */
};

/* How much longer than others ranks and slices take: 1 + spread times a random number of 0 or more, whose mean is about 1. */
enum sim_spread_kind { SIM_UNIFORM, SIM_NORMAL, SIM_EXPONENTIAL };
struct sim_stragglers {
    enum sim_spread_kind kind;
    double rank_spread, slice_spread;
    double start_s; /* ranks come so much later to an operator, times such a number */
};

struct sim_machine {
    struct sim_device device;
    struct sim_node node;
    struct sim_fabric fabric;
    struct sim_stragglers stragglers;
    int nodes;
};

/* An operator of a workload. All ranks are divided into groups of `size` ranks that are `stride` apart, each a communicator that runs it. */
struct sim_operator {
    char name[SIM_NAME];
    /* The problem of one group, whose node_of is set here; NULL: each rank computes by itself, as much as `compute`, `flops` and `bytes` say */
    const struct problem *problem;
    struct schedule schedule; /* AUTO is not a schedule */
    int size, stride;
    enum compute_kind compute;
    double flops, bytes;
    double table_rows;                /* of each table of an embedding; 0: it reads no row twice */
    double share;                     /* of a device's workgroups, more than 0, at most 1 */
    int after[SIM_MAX_AFTER], nafter; /* each rank begins when it has ended these */
};

struct sim;
/* 0 and *out; -EINVAL with what is wrong with the machine, -ENOMEM. The machine is copied, but `cables`, which is to stay. */
int sim_new(const struct sim_machine *machine, uint64_t seed, struct sim **out, struct error *e);
void sim_free(struct sim *s);
/* Makes the plans. Returns the operator's number, from 0 on, or -EINVAL or -ENOMEM. */
int sim_add(struct sim *s, const struct sim_operator *op, struct error *e);
/* Plans made elsewhere, of one group of all ranks, for tests of what no plan of the product does. `plans`: [ranks], given away. */
int sim_add_plans(struct sim *s, const struct sim_operator *op, struct plan *plans[], struct error *e);
/* Records what a rank's workgroups do, and the use of its adapter's link out of the node; of one node, of its link to the switch. To be called before sim_run(). */
void sim_trace(struct sim *s, int rank);
/* Runs all that was added, once. -EDEADLK: it cannot progress, and the text says which slice waits for what; -EINVAL: it takes weeks; -ECANCELED: *stop is true.
 * stop: may be NULL. */
int sim_run(struct sim *s, const atomic_bool *stop, struct error *e);

struct sim_times {
    double begin_s, end_s; /* of the first rank that begins, and the last one that ends */
    double first_end_s;    /* of the first rank that ends */
};
struct sim_times sim_operator_times(const struct sim *s, int op);
double sim_seconds(const struct sim *s); /* until all has ended */

struct sim_counts {
    uint64_t events, slices, messages;
    double message_bytes;
    double busiest; /* use of the busiest link of the fabric, 0 to 1, over the whole time */
    char busiest_name[SIM_NAME];
};
struct sim_counts sim_counts(const struct sim *s);

/* What was traced. */
struct sim_span {
    uint32_t op, workgroup;
    uint8_t kind;                  /* enum slice_kind */
    double wait_s, begin_s, end_s; /* wait_s: when it began to wait */
};
struct sim_rate {
    double at_s, bytes_s;
};
const struct sim_span *sim_spans(const struct sim *s, size_t *n);
const struct sim_rate *sim_rates(const struct sim *s, size_t *n);

/* The bytes of memory that plans and states of the operators take, for those who ask before they run many. */
uint64_t sim_bytes(const struct sim *s);

#endif
