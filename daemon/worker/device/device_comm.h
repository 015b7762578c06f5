/* SPDX-License-Identifier: MIT
 *
 * device_comm.h - a communicator as devices know it. comm/ owns it (comm.dev), fills it in and keeps it true. The engine's, but for what is
 * said otherwise.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_DEVICE_COMM_H
#define FCC_DAEMON_WORKER_DEVICE_DEVICE_COMM_H

#include <stdbool.h>

#include "daemon/worker/device/memory.h"

struct device;
struct device_ops;
struct launch;
struct worker;

/* What workgroups and the engine share of a communicator. */
struct comm_shared {
    _Atomic int32_t status; /* the word that every wait polls: not 0 means leave */
    int32_t zero;
};

/* A rank. */
struct device_rank {
    struct device *device;        /* NULL: the rank is on another node */
    struct device_memory staging; /* grows as operators need it */
    struct device_memory slots;   /* GPUs: two halves of device_comm.slots_bytes, for operators by turns */
    struct device_memory flags;   /* uint64_t[PLAN_MAX_FLAGS + 1]: epochs; workgroups of all ranks. GPUs: [GPU_FLAG_WORDS] */
    _Atomic uint64_t *arrived; /* GPUs, over nodes: [PLAN_MAX_FLAGS], flags that other nodes have raised. The proxy thread's */
};

struct device_comm {
    struct worker *worker;
    uint32_t number; /* of the communicator, for the log */
    int nranks;
    struct device_rank *ranks;    /* [nranks] */
    const struct device_ops *ops; /* of all the ranks' devices: they are of one kind */
    struct comm_shared *shared;   /* what waits look at; the device's (device_ops.comm_open) */
    uint32_t time_limit_ms;
    /* GPUs: a bit for each, if streams can hand over to it by words in the memory of all of them. 0: they cannot */
    uint32_t words_gpus;
    uint64_t slots_bytes; /* GPUs: what an operator may have of device_rank.slots. 0: there are none */
    bool over_nodes;      /* some ranks are on other nodes */
    bool exclusive;       /* no other communicator of the worker is on devices of this kind */
    bool traced;          /* somebody waits to see the times of the next operator that ends */
    bool late;            /* GPUs, over nodes: what other nodes have put for an operator that failed may still be on its way */
    /* Of those that run, the one that began first: the others follow (launch.following). NULL: none runs */
    struct launch *current;
    struct launch *newest; /* of those that run, the one that began last. On GPUs several run, one behind the other */
    unsigned running;      /* how many run */
    uint64_t turn_ns;      /* when the last turn ended. 0: there was none */
};

#endif
