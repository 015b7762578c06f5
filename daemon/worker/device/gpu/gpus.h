/* SPDX-License-Identifier: MIT
 *
 * gpus.h - the GPUs of the node as this worker has them: shared by gpus.c (finding them, sessions), stream.c (the
 * clients' streams) and device.c (memory, operators). The engine's.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_GPUS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_GPUS_H

#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/watch.h"
#include "daemon/worker/device/helpers.h"

struct retired;
struct landing;
struct gpu_retired_host;

/* A GPU's FIFO for what leaves the node. steps.c's. */
struct gpu_sending {
    struct device_memory host; /* struct fifo, then its slots; none: no communicator here is over nodes */
    struct device_memory head; /* the producers' words, in the GPU's memory */
    struct gpu_fifo fifo;
};

/* What comes for it from other nodes. The proxy's thread's; steps.c's. */
struct gpu_receiving {
    bool is_direct; /* an adapter writes into its memory */
    unsigned told;  /* bit 0: that it does not; bit 1: that it does */
};

struct gpus {
    struct worker *worker;
    const struct gpu_plugin *plugin;
    struct device_ops ops;
    struct gpu_watch *watch;
    struct event *leave_event;                /* leave.c's */
    TAILQ_HEAD(leaving_head, launch) leaving; /* leave.c's: launches whose kernels were told to leave */
    struct helpers *helpers;
    struct lives *lives;
    int count;
    bool all_wait; /* all GPUs have stream memory operations */
    uint32_t open;
    unsigned in_flight;               /* launches, gated ones too */
    uint32_t stored;                  /* GPUs with words that were stored in passing, perhaps not yet: stream.c's */
    uint32_t posted;                  /* ... those, and others that no launch waits for */
    uint64_t stored_at[GPU_MAX_GPUS]; /* the last one of either */
    LIST_HEAD(retired_head, retired) retired;
    LIST_HEAD(retired_host_head, gpu_retired_host) retired_host;
    LIST_HEAD(landings_head, landing) landings;
    struct gpu_sending sending[GPU_MAX_GPUS];
    struct gpu_receiving receiving[GPU_MAX_GPUS];
    struct device devices[GPU_MAX_GPUS];
    struct gpu_description descriptions[GPU_MAX_GPUS];
};

/* The table of GPU devices; kind and number are filled in when a plug-in is loaded. */
extern const struct device_ops gpu_device_ops;

size_t gpu_page_round(size_t bytes);
/* No launch is in flight: sessions' memory that was kept for kernels can go. */
void gpus_retired_free(struct gpus *g);

#endif
