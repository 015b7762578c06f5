/* SPDX-License-Identifier: MIT
 *
 * sim_case.h - machines and problems for tests of the simulation.
 */
#ifndef SIM_CASE_H
#define SIM_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "kernels/plan/compute/vector.h"
#include "kernels/sim/sim.h"
#include "tests/bed/random.h"

enum { EACH = 1 << 20 }; /* elements, of 4 bytes */
#define BYTES (4.0 * EACH)
#define RATE 1e9

/* Everything is free but what a test sets. A second is long beside what rounding to picoseconds adds. */
static inline struct sim_machine machine_of(int nodes, int ranks)
{
    return (struct sim_machine){
        .device = {.target = PLAN_CPU, .workgroups = 1, .memory_bytes_s = 1e15},
        .node = {.ranks = ranks, .link = SIM_LINK_SWITCH, .link_bytes_s = 1e15, .rails = 1},
        .fabric = {.kind = SIM_FAT_TREE, .bytes_s = 1e15, .in_flight = 8},
        .nodes = nodes,
    };
}

static inline struct problem *problem_begun(enum fcc_op op, int n, int nodes)
{
    struct problem *p = problem_new(n);

    assert_non_null(p);
    for (int r = 0; r < n; r++)
        p->node_of[r] = (int32_t)((int64_t)r * nodes / n);
    assert_int_equal(problem_begin(p, op), 0);
    p->dtype = FCC_F32;
    return p;
}

/* A collective of `each` elements of every rank. */
static inline struct problem *vector_of(enum fcc_op op, int n, int nodes, int64_t each)
{
    struct problem *p = problem_begun(op, n, nodes);
    int64_t *to = calloc((size_t)n, sizeof(*to));

    assert_non_null(to);
    p->dim[DIM_M] = p->dim[DIM_K] = 1;
    p->dim[DIM_N] = op_spec(op)->in == VECTOR_COUNTED ? 0 : each * n;
    for (int r = 0; r < n; r++) {
        p->rank_dim[DIM_N][r] = each * r;
        p->rank_dim[DIM_K][r] = each;
    }
    for (int r = 0; r < n && op_counts(op); r++) {
        for (int q = 0; q < n; q++)
            to[q] = q == (r + 1) % n || op != FCC_OP_SEND_RECEIVE ? each : 0;
        problem_counts_set(p, r, to);
    }
    free(to);
    return p;
}

static inline struct sim_operator operator_of(const struct problem *p, enum fcc_schedule_kind kind, enum plan_target target)
{
    struct sim_operator o = {.problem = p, .size = p->nranks, .stride = 1, .share = 1};

    o.schedule.kind = kind;
    o.schedule.target = target;
    o.schedule.workgroups = 1;
    (void)snprintf(o.name, sizeof(o.name), "%s", op_name(p->op));
    return o;
}

static inline struct sim *run_of(const struct sim_machine *m, const struct sim_operator *o, uint64_t seed)
{
    struct sim *s = NULL;
    struct error e = {0};

    if (sim_new(m, seed, &s, &e) || sim_add(s, o, &e) < 0 || sim_run(s, NULL, &e))
        fail_msg("%s: %s", o->name, e.text);
    return s;
}

/* Seconds of one operator; the problem is freed. */
static inline double seconds_of(const struct sim_machine *m, struct problem *p)
{
    const struct sim_operator o = operator_of(p, FCC_SCHEDULE_FUSED, m->device.target);
    struct sim *s = run_of(m, &o, 1);
    const double seconds = sim_seconds(s);

    sim_free(s);
    problem_free(p);
    return seconds;
}

/* The same up to a part in `parts`. */
static inline void expect_near(double found, double expected, double parts)
{
    if (!(found >= expected * (1 - 1 / parts) && found <= expected * (1 + 1 / parts)))
        fail_msg("found %.9g s, expected %.9g s", found, expected);
}

#endif
