/* SPDX-License-Identifier: MIT
 *
 * simulate.h - shared by the parts of the verb simulate: what is varied, what comes out, and how it is drawn.
 */
#ifndef FCC_CLIENT_FCCCTL_SIMULATE_SIMULATE_H
#define FCC_CLIENT_FCCCTL_SIMULATE_SIMULATE_H

#include <stdatomic.h>

#include "client/fccctl/simulate/describe.h"

#define VARIED_MAX 32 /* values of one key of --sweep */

/* One simulation: the description with other values. */
struct variant {
    int nodes;
    enum fcc_schedule_kind schedule; /* AUTO: as the description says */
    int route;                       /* enum plan_route; -1: as the description says */
    int64_t slice_rows, slice_cols;  /* -1: as the description says */
};
struct outcome {
    struct variant variant;
    bool done;
    struct error error;
    int ranks;
    double seconds, wall_s; /* simulated, and taken */
    struct sim_counts counts;
    uint64_t bytes;
    struct sim_times *times; /* [noperators]: of each entry, its repetitions together */
};
/* Runs one. trace: a rank whose timeline is kept in *traced, to be freed with sim_free(); -1: none. */
void variant_run(const struct description *d, uint64_t seed, int trace, const atomic_bool *stop, struct outcome *out, struct sim **traced);
void variant_text(const struct variant *v, struct words *out);

/* ---- picture.c: SVG. 0, or -errno ---- */

/* Time against ranks, a line for each schedule and route. */
int picture_times(const char *path, const struct description *d, const struct outcome rows[], int n);
/* One rank's workgroups and the use of its adapter. */
int picture_timeline(const char *path, const struct description *d, const struct outcome *row, const struct sim *s, int rank);

#endif
