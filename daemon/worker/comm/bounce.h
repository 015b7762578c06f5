/* SPDX-License-Identifier: MIT
 *
 * bounce.h - send bounce buffers: local memory of the layout of a remote rank's memory. Slices for that rank are stored there, and the
 * proxy sends them from there (nodes/data.c).
 */
#ifndef FCC_DAEMON_WORKER_COMM_BOUNCE_H
#define FCC_DAEMON_WORKER_COMM_BOUNCE_H

#include <stdint.h>

struct buffer;
struct comm;
struct device_memory;
struct error;
struct member;

/* Memory that GPUs see if the communicator's ranks are on GPUs. A page of it is there when it has been written (of GPUs' ranks: at once). */
int bounce_make(struct comm *c, uint64_t bytes, struct device_memory *out, struct error *e);
void bounce_free(struct device_memory *m);
/* The same for a remote rank's buffer for results: one reference, which is its rank's. */
int bounce_add(struct member *m, uint32_t handle, uint64_t bytes, struct buffer **out, struct error *e);
struct buffer *bounce_find(const struct member *m, uint32_t handle); /* NULL: the rank has none of that handle */
void bounce_drop(struct buffer *b);

#endif
