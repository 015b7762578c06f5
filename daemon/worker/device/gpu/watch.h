/* SPDX-License-Identifier: MIT
 *
 * watch.h - the thread that waits for GPUs: for kernels to end, for the clients' streams to reach operators that are held
 * back on the CPU's side, and for the news that a context is lost. The engine never waits for a GPU itself.
 *
 * The GPUs write what is waited for into host memory (release), and it is polled there (acquire). While the engine is awake it
 * looks by itself, between the clients' rings, and takes what is due from here: no thread has to wake another. When it sleeps,
 * this thread looks: a while without a pause, then with sleeps of tens of microseconds. With nothing in flight it sleeps until
 * there is.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_WATCH_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_WATCH_H

#include "daemon/worker/device/launch.h"

struct gpu_watch;

int gpu_watch_start(struct worker *w, const struct gpu_plugin *plugin, struct gpu_watch **out, struct error *e);
void gpu_watch_stop(struct gpu_watch *watch);
/* Hand the launch back (worker_launch_finished()) when its words say so. */
void gpu_watch_add(struct gpu_watch *watch, struct launch *l);
/* Take back a launch that was added. False: it has been handed back. */
bool gpu_watch_take(struct gpu_watch *watch, struct launch *l);
/* Something has happened that may have cost contexts: look at these GPUs for a while, also with nothing in flight. */
void gpu_watch_suspect(struct gpu_watch *watch, uint32_t gpus);
/* Why contexts are lost, if they are. Engine thread. */
bool gpu_watch_lost(struct gpu_watch *watch, struct error *e);

/* Does it have to go back to the engine? Touches only what launch.h and comm_shared allow a workgroup. (device.c) */
bool gpu_launch_is_due(struct launch *l);

#endif
