/* SPDX-License-Identifier: MIT
 *
 * device.h - what holds memory and runs plans. Callers use the device_* functions, which assert the contract, not the table.
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
    /* What a communicator's waits look at (comm.status and, for GPUs, where kernels report). Fills in c->shared. */
    int (*comm_open)(struct device *d, struct device_comm *c, struct error *e);
    void (*comm_close)(struct device *d, struct device_comm *c);
    /* Whether a launch that has its place on a stream of every rank may begin now, while others of the communicator run. They
     * are handed back in the order in which they began. */
    bool (*launch_follows)(const struct device_comm *c);
    /* Begin all parts of a launch, on all their devices, of which d is the first. When all workgroups have left the last part,
     * worker_launch_finished() is called. Does not wait. Failures are the launch's (launch_fail()). */
    void (*launch)(struct device *d, struct launch *l);
    /* The launch was handed back: true if it is over, false if it has only now been able to begin (launch()'s promise holds
     * again). */
    bool (*launch_collect)(struct device *d, struct launch *l);
    /* Everything that the device keeps with a launch. */
    void (*launch_release)(struct device *d, struct launch *l);
    /* Fill in launch_times_shown() of all runs of a launch that has finished. */
    int (*times_fetch)(struct device *d, struct launch *l, struct error *e);
    /* All parts are done. */
    void (*close)(struct device *d);
};

struct device {
    const struct device_ops *ops;
    struct worker *worker;
    int index; /* among the devices of its kind */
    unsigned workgroups;
    void *state; /* the implementation's; NULL: not open */
};

extern const struct device_ops device_cpu;

/* Opens it if it is not. */
int device_open(struct device *d, struct error *e);
int device_memory_alloc(struct device *d, uint64_t bytes, struct device_memory *out, int *fd, struct error *e);
void device_memory_free(struct device *d, struct device_memory *m); /* none: nothing */
void device_launch(struct launch *l);
void device_close(struct device *d);

/* ---- device/cpu/device.c ---- */

/* Any thread: a flag of a rank of this device, and whoever sleeps for it is woken. */
void device_cpu_flag_raise(struct device *d, _Atomic uint64_t *flag, uint64_t epoch);
/* Run a launch (l->inline_) in the calling thread, the engine's, with what help there is, and return when it is done. */
void device_cpu_run_inline(struct launch *l);
/* device/cpu/early.c: run of a launch (l->inline_) that has not begun what a rank may run by itself: it computes into staging memory. True if
 * that was something. */
bool device_cpu_run_early(struct launch *l, int rank);

/* ---- device/gpu/gpus.c, device/gpu/device.c ---- */

/* The devices of the GPUs of a kind (or, FCC_DEVICE_GPU, of whichever there are), found when they are first asked for.
 * -ENODEV with the reason if there are none. */
int gpus_find(struct worker *w, enum fcc_device_kind kind, struct device **devices, int *ndevices, struct error *e);
/* Whether the devices of two ranks can address each other's memory: 0, or -EXDEV in words. */
int gpus_check_peers(const struct device *a, int rank_a, const struct device *b, int rank_b, struct error *e);
void gpu_device_uuid(const struct device *d, unsigned char out[16]);
/* A session whose rank is on a GPU: let the GPUs see its memory (session.gpu_address). */
int gpus_session_open(struct session *s, struct error *e);
/* A communicator that began with ranks on other nodes: its first rank here has come, and its GPU is open. */
int gpus_comm_open(struct device_comm *c, struct error *e);
/* The session's memory may be unmapped: at once if no kernel can touch it, otherwise later, by gpus_session_close(). True:
 * later. */
bool gpus_session_close(struct session *s);
/* The communicator's GPUs, a bit each, if streams can hand over to it by words in the memory of all of them; otherwise 0. All
 * ranks have joined. */
uint32_t gpus_words_of(const struct device_comm *c);
/* A session's words on one of a communicator's GPUs, made when they are first asked for. The descriptor stays the session's.
 * -EOPNOTSUPP: it has to use those in its own memory. */
int gpus_stream_words(struct session *s, const struct device_comm *c, uint32_t gpu, struct device_memory *out, int *fd,
                      struct error *e);
/* Let the client's stream go on that waits for the slot's operator by one of the session's words in the memory of these GPUs, of
 * which it has some perhaps. */
void gpus_stream_finish(struct session *s, uint32_t gpus, uint32_t slot, uint32_t value);
/* Let the kernels of a communicator leave, and those that stand behind a client's stream come and leave. */
void gpus_comm_abort(struct device_comm *c);
/* ... those of one launch. It is the communicator's current one: those before it would have to leave, too. */
void gpus_launch_abort(struct launch *l);
/* If the launch is to be handed back, take it from the watching thread: true if it is the caller's now. */
bool gpus_launch_take(struct launch *l);
/* "rank 1, rank 3": the ranks whose streams have not come to the operator. Returns how many. */
int gpus_launch_missing(const struct launch *l, char *text, size_t room);
/* Why the GPU contexts are lost, if they are; they stay so for ever. */
bool gpus_are_lost(const struct worker *w, struct error *e);
/* Break the sessions whose clients have died. */
void gpus_sweep(struct worker *w);
void gpus_close(struct worker *w);

#endif
