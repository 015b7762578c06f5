/* SPDX-License-Identifier: MIT
 *
 * device.h - devices, which hold memory and run plans. Callers use the device_* functions, which assert the contract, not device_ops.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_DEVICE_H
#define FCC_DAEMON_WORKER_DEVICE_DEVICE_H

#include "daemon/worker/device/launch.h"

struct device;

struct device_ops {
    const char *kind; /* "cpu", "hip", "cuda" */
    enum fcc_device_kind number;
    /* Make the device ready: threads, contexts. Called once, before anything else. */
    int (*open)(struct device *d, struct error *e);
    /* Zeroed memory that all devices of the kind can address. fd is NULL, or gets the caller's descriptor for a client to
     * import. */
    int (*memory_alloc)(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e);
    void (*memory_free)(struct device *d, struct device_memory *m);
    /* Make c->shared: the communicator's status word and, for GPUs, where kernels report. */
    int (*comm_open)(struct device *d, struct device_comm *c, struct error *e);
    void (*comm_close)(struct device *d, struct device_comm *c);
    /* Whether a launch with a stream of every rank may begin while others of the communicator run. Launches are handed back in the order
     * in which they began. */
    bool (*launch_follows)(const struct device_comm *c, const struct op_args *next);
    /* Begin all parts of a launch on their devices, of which d is the first, without waiting. When the last workgroup has left the last
     * part, worker_launch_finished() is called. Failures are reported by launch_fail(). */
    void (*launch)(struct device *d, struct launch *l);
    /* The launch was handed back. True: it is over. False: it was gated and has begun only now; it will be handed back again. */
    bool (*launch_collect)(struct device *d, struct launch *l);
    /* Free everything that the device keeps with a launch. */
    void (*launch_release)(struct device *d, struct launch *l);
    /* Fill in launch_times_shown() for all ranks of a launch that has finished. */
    int (*times_fetch)(struct device *d, struct launch *l, struct error *e);
    /* To be called when all parts have ended. */
    void (*close)(struct device *d);
};

struct device {
    const struct device_ops *ops;
    struct worker *worker;
    int index; /* among the devices of its kind */
    unsigned workgroups;
    void *state; /* the implementation's. NULL: the device is not open */
};

extern const struct device_ops device_cpu;

/* Open the device, if it is not open. */
int device_open(struct device *d, struct error *e);
int device_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e);
void device_memory_free(struct device *d, struct device_memory *m); /* does nothing if m->data is NULL */
void device_launch(struct launch *l);
void device_close(struct device *d);

/* ---- device/cpu/device.c ---- */

/* Any thread: raise a flag of a rank on this device, and wake threads that sleep on it. */
void device_cpu_flag_raise(struct device *d, _Atomic uint64_t *flag, uint64_t epoch);
/* Run a launch (l->inline_) in the calling thread, the engine's, with the help of worker.helpers; returns when it is done. */
void device_cpu_run_inline(struct launch *l);
/* The engine runs on any of the worker's cores again: to be called before it starts threads, which then may, too. */
void device_cpu_engine_release(struct worker *w);
/* The engine: run some of the slices that can be run of the launches that it runs in steps (struct launch: stepwise). True if there were any. */
bool device_cpu_steps_poll(struct worker *w);
/* Whether there are such slices: the engine must not sleep then. Flags are loaded sequentially consistent: who raises one then wakes the
 * engine (worker_wake()). */
bool device_cpu_steps_ready(const struct worker *w);
/* device/cpu/early.c: of a launch (l->inline_) that has not begun, run slices of a rank that need no other rank and compute into staging
 * memory. True if there were any. */
bool device_cpu_run_early(struct launch *l, int rank);

/* ---- device/gpu/gpus.c, device/gpu/device.c ---- */

/* The node's GPUs of this kind; FCC_DEVICE_GPU: of either kind. The first call finds them. -ENODEV with the reason if there are none. */
int gpus_find(struct worker *w, enum fcc_device_kind kind, struct device **devices, int *ndevices, struct error *e);
/* Whether the devices of two ranks can address each other's memory. 0, or -EXDEV with the reason. */
int gpus_check_peers(const struct device *a, int rank_a, const struct device *b, int rank_b, struct error *e);
void gpu_device_uuid(const struct device *d, unsigned char out[16]);
/* Map the memory of a session with a rank on a GPU into the GPUs' address space (session.gpu_address). */
int gpus_session_open(struct session *s, struct error *e);
/* Open a communicator whose first ranks were remote, when its first rank here has joined and that rank's GPU is open. */
int gpus_comm_open(struct device_comm *c, struct error *e);
/* Release what GPUs have of the session. False: no kernel can touch its memory, so the caller may unmap it. True: kernels may, and the GPUs
 * unmap it later (gpus_retired_free()). */
bool gpus_session_close(struct session *s);
/* A bit for each of the communicator's GPUs, if client streams can synchronize with it by words in the memory of all of them; otherwise 0.
 * All ranks have joined. */
uint32_t gpus_words_of(const struct device_comm *c);
/* A session's stream words in the memory of one of a communicator's GPUs, made by the first call. The descriptor stays the session's.
 * -EOPNOTSUPP: the client has to use the words in the session memory. */
int gpus_stream_words(struct session *s, const struct device_comm *c, uint32_t gpu, struct device_memory *out, int *fd,
                      struct error *e);
/* Let a client's stream go on that waits for the slot's operator by a word in the memory of one of these GPUs. The session need not have
 * words on all of them. */
void gpus_stream_finish(struct session *s, uint32_t gpus, uint32_t slot, uint32_t value);
/* Let all kernels of a communicator leave. Kernels that still wait for a client's stream start and leave. */
void gpus_comm_abort(struct device_comm *c);
/* As gpus_comm_abort(), for the kernels of one launch, which must be the communicator's current one. */
void gpus_launch_abort(struct launch *l);
/* If the launch is due to be handed back, take it from the watching thread. True: the launch is the caller's now. */
bool gpus_launch_take(struct launch *l);
/* Write the ranks whose streams have not reached the operator, as "rank 1, rank 3". Returns how many. */
int gpus_launch_missing(const struct launch *l, char *text, size_t room);
/* Whether GPU contexts are lost, with the reason. A lost context never comes back. */
bool gpus_are_lost(const struct worker *w, struct error *e);
/* device/gpu/share.c: whether the job has used up its share of the communicator's GPUs, so that its next operator is to be held back. */
bool gpus_share_is_used_up(const struct device_comm *c);
/* The communicator's next operator begins to be held back, or is not any more. */
void gpus_share_wait(const struct device_comm *c, bool begins);
/* Break the sessions whose clients have died. */
void gpus_sweep(struct worker *w);
void gpus_close(struct worker *w);

#endif
