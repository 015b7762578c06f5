/* SPDX-License-Identifier: MIT
 *
 * watch.h - the watching thread, which polls for the ends of kernels, for clients' streams that reach gated operators, and for lost contexts.
 *
 * GPUs write into host memory (release), which is polled (acquire). While the engine is awake it polls by itself between the clients' rings
 * and takes launches that are due from this thread, so neither has to wake the other. While the engine sleeps this thread polls: first
 * without pauses, then with sleeps of tens of microseconds. With nothing in flight it sleeps.
 */
#ifndef FCC_DAEMON_WORKER_DEVICE_GPU_WATCH_H
#define FCC_DAEMON_WORKER_DEVICE_GPU_WATCH_H

#include "daemon/worker/device/launch.h"

struct gpu_watch;

int gpu_watch_start(struct worker *w, const struct gpu_plugin *plugin, struct gpu_watch **out, struct error *e);
void gpu_watch_stop(struct gpu_watch *watch);
/* Watch the launch: hand it back (worker_launch_finished()) when it is due (gpu_launch_is_due()). */
void gpu_watch_add(struct gpu_watch *watch, struct launch *l);
/* Stop watching a launch. False: it has already been handed back. */
bool gpu_watch_take(struct gpu_watch *watch, struct launch *l);
/* Contexts may have been lost: check these GPUs for a while, even with nothing in flight. */
void gpu_watch_suspect(struct gpu_watch *watch, uint32_t gpus);
/* Whether contexts are lost, with the reason. Engine thread. */
bool gpu_watch_lost(struct gpu_watch *watch, struct error *e);

/* device.c: whether the launch is to be handed back. Touches only what launch.h and comm_shared allow a workgroup. */
bool gpu_launch_is_due(struct launch *l);

#endif
