/* SPDX-License-Identifier: MIT
 *
 * bounce.h - send bounce buffers: local memory of the layout of a remote rank's memory. Slices for that rank are stored there, and the
 * proxy sends them from there (nodes/data.c).
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUNCE_H
#define FCC_DAEMON_WORKER_COMM_BOUNCE_H

#include <stdint.h>

struct comm;
struct device_memory;
struct error;

/* Allocate a bounce buffer, which GPUs can access if the communicator's ranks are on GPUs. Its pages are allocated when first written; for GPUs
 * at once. */
int bounce_make(struct comm *c, uint64_t bytes, struct device_memory *out, struct error *e);
void bounce_free(struct device_memory *m);

#endif
