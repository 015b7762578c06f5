/* SPDX-License-Identifier: MIT
 *
 * variant.c - one simulation of a description: its problems are made, its operators added, and it is run.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/fccctl/simulate/simulate.h"

static double seconds_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A torus of so many nodes with as many dimensions, as even as their factors allow. */
static void torus_fit(struct sim_fabric *f, int nodes)
{
    int left = nodes;

    for (int d = f->dimensions; d > 0; d--) {
        int best = 1;
        for (int side = 1; side <= left; side++) { /* the largest side whose power of d is not more */
            int64_t power = 1;
            for (int k = 0; k < d; k++)
                power *= side;
            if (power <= left && left % side == 0)
                best = side;
        }
        f->shape[d - 1] = d == 1 ? left : best;
        left /= f->shape[d - 1];
    }
}

/* The problem, and how many rows a table of it has. */
static struct problem *problem_of(const struct described *d, int size, double *table_rows)
{
    struct shape shape;

    shape_begin(&shape, d->number, size, d->dtype);
    for (int i = 0; i < d->nsizes; i++)
        (void)shape_size_set(&shape, d->sizes[i].name, d->sizes[i].value);
    shape_default(&shape);
    *table_rows = (double)shape.rows;
    return shape_problem(&shape, 1);
}

static void schedule_vary(const struct variant *v, const struct described *d, struct schedule *s)
{
    if (v->schedule != FCC_SCHEDULE_AUTO && d->sequential_too)
        s->kind = v->schedule;
    if (v->route >= 0)
        s->route = (enum plan_route)v->route;
    if (v->slice_rows >= 0)
        s->slice_rows = (uint32_t)v->slice_rows;
    if (v->slice_cols >= 0)
        s->slice_cols = (uint32_t)v->slice_cols;
}

/* An entry as it was added. */
struct added {
    struct problem *problem; /* NULL: it is no operator */
    double table_rows;
    int first, last; /* numbers of its repetitions in the simulation */
};

/* Adds an entry as often as it repeats, each repetition after the one before. all[i].problem is set. */
static int entry_add(struct sim *s, const struct description *d, int i, const struct variant *v, struct added all[],
                     struct error *e)
{
    const struct described *entry = &d->operators[i];
    const int described = d->machine.node.ranks * d->machine.nodes, now = d->machine.node.ranks * v->nodes;
    struct sim_operator op = entry->op;

    op.problem = all[i].problem;
    op.table_rows = all[i].table_rows;
    op.size = op.size == described ? now : op.size;
    op.nafter = entry->op.nafter;
    for (int k = 0; k < op.nafter; k++)
        op.after[k] = all[entry->op.after[k]].last;
    schedule_vary(v, entry, &op.schedule);
    for (int k = 0; k < entry->repeat; k++) {
        const int number = sim_add(s, &op, e);
        if (number < 0)
            return number;
        all[i].first = k ? all[i].first : number;
        all[i].last = op.after[0] = number;
        op.nafter = 1;
    }
    return 0;
}

static int operators_add(struct sim *s, const struct description *d, const struct variant *v, struct added all[],
                         struct error *e)
{
    const int described = d->machine.node.ranks * d->machine.nodes, now = d->machine.node.ranks * v->nodes;
    int status = 0;

    for (int i = 0; i < d->noperators && !status; i++) {
        const struct described *entry = &d->operators[i];
        const int size = entry->op.size == described ? now : entry->op.size;
        if (now % ((int64_t)size * entry->op.stride))
            return error_set(e, -EINVAL, "%s: groups of %d ranks, %d apart, do not divide %d ranks", entry->op.name, size,
                             entry->op.stride, now);
        if (entry->number != FCC_OP_COUNT && !(all[i].problem = problem_of(entry, size, &all[i].table_rows)))
            return error_set(e, -ENOMEM, "%s: no memory", entry->op.name);
        status = entry_add(s, d, i, v, all, e);
    }
    return status;
}

static void results_take(const struct description *d, const struct sim *s, const struct added all[], struct outcome *out)
{
    out->seconds = sim_seconds(s);
    out->counts = sim_counts(s);
    out->bytes = sim_bytes(s);
    for (int i = 0; i < d->noperators; i++) {
        out->times[i] = sim_operator_times(s, all[i].last);
        out->times[i].begin_s = sim_operator_times(s, all[i].first).begin_s;
    }
    out->done = true;
}

/* Makes and runs the simulation. *s is the caller's whatever it returns. */
static int variant_simulate(const struct description *d, const struct sim_machine *m, uint64_t seed, int trace,
                            const atomic_bool *stop, struct added all[], struct outcome *out, struct sim **s)
{
    int status = sim_new(m, seed, s, &out->error);

    status = status ? status : operators_add(*s, d, &out->variant, all, &out->error);
    if (!status && trace >= 0)
        sim_trace(*s, trace);
    status = status ? status : sim_run(*s, stop, &out->error);
    if (!status)
        results_take(d, *s, all, out);
    return status;
}

void variant_run(const struct description *d, uint64_t seed, int trace, const atomic_bool *stop, struct outcome *out,
                 struct sim **traced)
{
    struct sim_machine m = d->machine;
    struct added *all = calloc((size_t)d->noperators, sizeof(*all));
    const double begin = seconds_now();
    struct sim *s = NULL;
    int status;

    error_clear(&out->error);
    out->times = calloc((size_t)d->noperators, sizeof(*out->times));
    out->ranks = m.node.ranks * out->variant.nodes;
    m.nodes = out->variant.nodes;
    if (m.fabric.kind == SIM_TORUS && m.nodes != d->machine.nodes)
        torus_fit(&m.fabric, m.nodes);
    if (all && out->times)
        status = variant_simulate(d, &m, seed, trace, stop, all, out, &s);
    else
        status = error_set(&out->error, -ENOMEM, "no memory");
    out->cpu_s = seconds_now() - begin;
    for (int i = 0; all && i < d->noperators; i++)
        problem_free(all[i].problem);
    free(all);
    if (traced && !status)
        *traced = s;
    else
        sim_free(s);
}

void variant_text(const struct variant *v, struct words *out)
{
    static const char *const kinds[] = {
        [FCC_SCHEDULE_AUTO] = "as described", [FCC_SCHEDULE_FUSED] = "fused", [FCC_SCHEDULE_SEQUENTIAL] = "sequential"};

    *out = words("%s", kinds[v->schedule]);
    if (v->route >= 0)
        words_add(out, ", %s", route_name((enum plan_route)v->route));
    if (v->slice_rows >= 0)
        words_add(out, ", slice_rows %lld", (long long)v->slice_rows);
    if (v->slice_cols >= 0)
        words_add(out, ", slice_cols %lld", (long long)v->slice_cols);
}
