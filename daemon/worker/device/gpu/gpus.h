/* SPDX-License-Identifier: MIT
 *
 * gpus.h - the worker's state of the node's GPUs, shared by gpus.c (discovery, sessions), stream.c (clients' streams) and device.c
 * (memory, operators). Engine thread.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_GPUS_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_GPUS_H

#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/share.h"
#include "daemon/worker/device/gpu/watch.h"
#include "daemon/worker/device/helpers.h"

struct retired;
struct receive_bounce;
struct gpu_retired_host;
struct gpu_reader;

/* A GPU's FIFO of triggers for the proxy (nodes/gpu_data.c). */
struct gpu_sending {
    struct device_memory host; /* struct fifo and its slots, in host memory. None: no communicator here is over several nodes */
    struct device_memory head; /* the producers' head, in the GPU's memory */
    struct gpu_fifo fifo;
};

/* How data from other nodes comes into a GPU's memory (nodes/gpu_data.c). */
struct gpu_receiving {
    bool is_direct; /* network adapters write into the GPU's memory */
    unsigned told;  /* logged: bit 0: that adapters do not; bit 1: that they do */
};

struct gpus {
    struct worker *worker;
    const struct gpu_plugin *plugin;
    struct device_ops ops;
    struct gpu_watch *watch;
    struct event *leave_event;                /* leave.c */
    TAILQ_HEAD(leaving_head, launch) leaving; /* leave.c: launches whose kernels were told to leave */
    struct helpers *helpers;
    struct lives *lives;
    struct gpu_reader *reader; /* reader.c; NULL: nothing was read yet */
    struct gpu_codes *codes;   /* code.c; NULL: none was needed yet */
    int count;
    bool all_wait;                    /* all GPUs have stream memory operations */
    uint32_t open;                    /* a bit for each open GPU */
    unsigned in_flight;               /* number of launches in flight, including gated ones */
    uint32_t stored;                  /* stream.c: a bit for each GPU with gpus_word_store()s not known to be complete */
    uint64_t stored_at[GPU_MAX_GPUS]; /* by GPU: the address of the last such store */
    LIST_HEAD(retired_head, retired) retired;
    LIST_HEAD(retired_host_head, gpu_retired_host) retired_host;
    LIST_HEAD(receive_bounces_head, receive_bounce) receive_bounces;
    struct gpu_use use[GPU_MAX_GPUS]; /* share.c */
    struct gpu_sending sending[GPU_MAX_GPUS];
    struct gpu_receiving receiving[GPU_MAX_GPUS];
    struct device devices[GPU_MAX_GPUS];
    struct gpu_description descriptions[GPU_MAX_GPUS];
};

/* device_ops of GPUs; kind and number are set when a plug-in is loaded. */
extern const struct device_ops gpu_device_ops;

size_t gpu_page_round(size_t bytes);
/* No launch is in flight: unmap the sessions' memory that was kept for kernels. */
void gpus_retired_free(struct gpus *g);

#endif
