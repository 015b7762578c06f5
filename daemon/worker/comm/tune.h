/* SPDX-License-Identifier: MIT
 *
 * tune.h - which schedule `auto` takes: what was measured of problems of about the same size.
 */
#ifndef FCC_DAEMON_WORKER_COMM_TUNE_H
#define FCC_DAEMON_WORKER_COMM_TUNE_H

#include <assert.h>
#include <stdint.h>

#include "proto/proto.h"

struct problem;
struct tune;

/* Problems of about the same size: what is measured of one holds for all of them. */
struct tune_class {
    uint32_t op, dtype;
    int32_t bytes, flops; /* half powers of two; a class's work is within 1.42 of each other */
};
struct tune_sample {
    struct tune_class class;
    uint32_t kind; /* enum fcc_schedule_kind */
    uint32_t zero;
    uint64_t ns; /* 0: none */
};
static_assert(sizeof(struct tune_sample) == 32, "wire: peer.h");

struct tune *tune_new(void);
/* What a problem has in common with others of about its size; and the schedule kind to run such problems with. */
struct tune_class tune_class_of(const struct problem *problem);
enum fcc_schedule_kind tune_choose(struct tune *t, const struct tune_class *class);
enum fcc_schedule_kind tune_expect(struct tune *t, const struct tune_class *class); /* ... the next time */
/* A time of a problem under a schedule; where ranks are on several nodes, all nodes record those of one (nodes/nodes.c). */
void tune_record(struct tune *t, const struct tune_sample *sample);

#endif
