/* SPDX-License-Identifier: MIT
 *
 * tune.h - chooses the schedule for `auto`, from times measured of problems of about the same size.
 */
#ifndef FCC_DAEMON_WORKER_COMM_TUNE_H
#define FCC_DAEMON_WORKER_COMM_TUNE_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/proto.h"

struct problem;
struct tune;

/* A class of problems of about the same size, which share their measured times. */
struct tune_class {
    uint16_t op, factors; /* factors: enum factors: reading e4m3 takes half as long, and other kernels run */
    uint32_t dtype;
    int32_t bytes, flops; /* logarithms, in half powers of two: within a class they differ by a factor of at most 1.42 */
};
struct tune_sample {
    struct tune_class class;
    uint32_t kind; /* enum fcc_schedule_kind */
    uint32_t zero;
    uint64_t ns; /* 0: none */
};
static_assert(sizeof(struct tune_sample) == 32, "wire: peer.h");

struct tune *tune_new(void);
struct tune_class tune_class_of(const struct problem *problem);
/* The schedule kind for the next run of a problem of this class. */
enum fcc_schedule_kind tune_choose(struct tune *t, const struct tune_class *class);
/* Whether both schedules have been measured; then *out is the one for an operator that keeps it, as a bound one does: fused, unless the
 * sequential one is clearly faster. Unlike a choice of tune_choose(), this one is not tried again. */
bool tune_best(struct tune *t, const struct tune_class *class, enum fcc_schedule_kind *out);
/* What tune_choose() will return the next time. */
enum fcc_schedule_kind tune_expect(struct tune *t, const struct tune_class *class);
/* Record a measured time. Over several nodes all nodes record the times of rank 0's node (nodes/nodes.c). */
void tune_record(struct tune *t, const struct tune_sample *sample);

#endif
