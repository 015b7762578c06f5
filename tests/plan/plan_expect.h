/* SPDX-License-Identifier: MIT
 *
 * plan_expect.h - all that is expected of a case's plans.
 */
#ifndef PLAN_EXPECT_H
#define PLAN_EXPECT_H

#include "kernels/plan/spec.h"
#include "tests/plan/plan_case.h"
#include "tests/plan/plan_delivery.h"
#include "tests/plan/plan_order.h"
#include "tests/plan/plan_run.h"

static inline void expect_same_again(const struct test_case *c)
{
    struct error e = {0};

    for (int r = 0; r < c->problem->nranks; r++) {
        const struct plan *a = c->plans[r];
        struct plan *b = NULL;
        EXPECT(plan_make(c->problem, r, &c->schedule, &b, &e) == 0);
        EXPECT(a->nslices == b->nslices && a->ngroups == b->ngroups && a->staging_bytes == b->staging_bytes);
        EXPECT(memcmp(a->slices, b->slices, a->nslices * sizeof(*a->slices)) == 0);
        EXPECT(a->ngroups == 0 || memcmp(a->groups, b->groups, a->ngroups * sizeof(*a->groups)) == 0);
        plan_free(b);
    }
}

/* A GPU's phases follow each other in the plan, and no slice waits in a phase for what comes in the same one or later. */
static inline void expect_gpu_phases(const struct test_case *c, const struct plan *plan)
{
    struct gpu_run run;
    struct error e = {0};

    if (gpu_run_make(plan, &run, &e))
        fail_msg("%s: %s", case_text, e.text);
    EXPECT(run.first[0] == 0 && run.first[GPU_PHASES] == plan->nslices && run.ngroups == plan->ngroups);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        unsigned phase = 0;
        while (i >= run.first[phase + 1])
            phase++;
        EXPECT(phase == GPU_PHASE_WAIT ? s->kind == SLICE_WAIT : s->kind != SLICE_WAIT);
        EXPECT(phase != GPU_PHASE_FREE || s->wait_count == 0);
        EXPECT(phase == GPU_PHASE_FREE || phase == GPU_PHASE_WAIT || s->wait_count > 0 ||
               (phase == GPU_PHASE_REDUCE && carries_words(c, s)));
        EXPECT((s->kind == SLICE_REDUCE) == (phase == GPU_PHASE_REDUCE));
        EXPECT((s->kind == SLICE_REDUCE_NODE) == (phase == GPU_PHASE_NODE));
        EXPECT((s->kind == SLICE_FORWARD) == (phase == GPU_PHASE_FORWARD));
        EXPECT(!s->is_here || (s->kind == SLICE_WAIT && is_hierarchical(c)));
    }
}

/* Of a slice of a GPU's plan: its phase, and which of the kernels of an operator over nodes it is in (kernels/plan/exchange/reduce_nodes.c). */
static inline int phase_of(const struct slice *s)
{
    return s->kind == SLICE_WAIT          ? GPU_PHASE_WAIT
           : s->kind == SLICE_FORWARD     ? GPU_PHASE_FORWARD
           : s->kind == SLICE_REDUCE      ? GPU_PHASE_REDUCE
           : s->kind == SLICE_REDUCE_NODE ? GPU_PHASE_NODE
           : s->wait_count                ? GPU_PHASE_PUT
                                          : GPU_PHASE_FREE;
}

static inline int kernel_of(const struct slice *s)
{
    return phase_of(s) < GPU_PHASE_REDUCE ? 0 : phase_of(s) == GPU_PHASE_REDUCE ? 1 : 2;
}

/* Slice s of rank r raises a flag that slice t of rank q waits for. */
static inline void expect_gpu_wait(const struct test_case *c, int r, const struct slice *s, int q, const struct slice *t)
{
    bool looks = kernel_of(t) == 0 || t->is_here, apart = c->problem->node_of[r] != c->problem->node_of[q];

    EXPECT(phase_of(s) < phase_of(t));
    if (!plan_is_over_nodes(c->problem))
        return;
    EXPECT(!(looks && apart));                    /* no kernel waits for another node */
    EXPECT(looks || kernel_of(s) < kernel_of(t)); /* what it does not look at has come before it begins */
    EXPECT(kernel_of(s) <= kernel_of(t));
}

/* Nobody waits for what comes in his own phase or later, and over nodes for what his kernel cannot see. */
static inline void expect_gpu_waits(const struct test_case *c)
{
    static const struct slice *raises[RANKS][FLAGS];
    static int by[RANKS][FLAGS];

    memset(raises, 0, sizeof(raises));
    for (int r = 0; r < c->problem->nranks; r++)
        for (uint32_t i = 0; i < c->plans[r]->nslices; i++) {
            const struct slice *s = &c->plans[r]->slices[i];
            for (int q = 0; q < c->problem->nranks && s->group != SLICE_NO_GROUP; q++) {
                const struct signal_group *g = &c->plans[r]->groups[s->group];
                if (!plan_reaches(c->plans[r], g->dst, q) ||
                    (raises[q][g->flag] && phase_of(raises[q][g->flag]) >= phase_of(s)))
                    continue; /* the last of its group */
                raises[q][g->flag] = s;
                by[q][g->flag] = r;
            }
        }
    for (int q = 0; q < c->problem->nranks; q++)
        for (uint32_t i = 0; i < c->plans[q]->nslices; i++) {
            const struct slice *t = &c->plans[q]->slices[i];
            for (uint32_t w = 0; w < t->wait_count; w++) {
                uint32_t flag = t->wait_first + w * t->wait_stride;
                EXPECT(raises[q][flag] != NULL);
                expect_gpu_wait(c, by[q][flag], raises[q][flag], q, t);
            }
        }
}

/* The level of a slice: the last one that begins at it or before. */
static inline uint32_t level_of(const struct plan *plan, uint32_t slice)
{
    uint32_t level = 0;

    while (plan->level_first[level + 1] <= slice)
        level++;
    return level;
}

/* Why no plan can deadlock (plan.h): levels never descend, and a slice waits only for slices of lower levels. */
static inline void expect_levels(const struct test_case *c)
{
    static uint32_t raised[RANKS][FLAGS]; /* the highest level of the slices that raise the flag */

    memset(raised, 0, sizeof(raised));
    for (int r = 0; r < c->problem->nranks; r++) {
        const struct plan *plan = c->plans[r];
        EXPECT(plan->nlevels > 0 && plan->level_first[0] == 0 && plan->level_first[plan->nlevels] == plan->nslices);
        for (uint32_t l = 0; l < plan->nlevels; l++)
            EXPECT(plan->level_first[l] <= plan->level_first[l + 1]);
        for (uint32_t i = 0; i < plan->nslices; i++)
            for (int q = 0; q < c->problem->nranks && plan->slices[i].group != SLICE_NO_GROUP; q++) {
                const struct signal_group *g = &plan->groups[plan->slices[i].group];
                if (plan_reaches(plan, g->dst, q) && level_of(plan, i) > raised[q][g->flag])
                    raised[q][g->flag] = level_of(plan, i);
            }
    }
    for (int q = 0; q < c->problem->nranks; q++)
        for (uint32_t i = 0; i < c->plans[q]->nslices; i++) {
            const struct slice *s = &c->plans[q]->slices[i];
            for (uint32_t w = 0; w < s->wait_count; w++)
                EXPECT(raised[q][s->wait_first + w * s->wait_stride] < level_of(c->plans[q], i));
            if (c->schedule.target == PLAN_GPU)
                EXPECT(level_of(c->plans[q], i) == (uint32_t)phase_of(s));
        }
}

/* What a plan says of itself is what its slices do. */
static inline void expect_facts(const struct test_case *c, int r)
{
    const struct plan *plan = c->plans[r];
    bool shares = false, sends = plan->packet_bytes > 0;

    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        for (int q = 0; q < plan->nranks; q++) {
            bool others = q != r && plan_reaches(plan, s->dst, q) && stores_result(c, s);
            shares |= others;
            EXPECT(!others || level_of(plan, i) >= plan->start_level);
        }
        sends |= slice_puts(s->kind);
    }
    EXPECT(!op_scatters_rows(plan->op) || (!shares && !plan->shared));
    EXPECT(!shares || plan->shared == (plan->has_rows ? 0 : 1u << op_spec(plan->op)->result));
    EXPECT(!sends || plan->transport == (has_words(c) ? TRANSPORT_PACKETS : TRANSPORT_FLAGS));
    EXPECT(plan->schedule.kind != FCC_SCHEDULE_COMPUTE_ONLY || (plan->transport == TRANSPORT_NONE && !plan->shared));
}

static inline void expect_plans(const struct test_case *c)
{
    enum fcc_op op = c->problem->op;

    expect_route(c);
    if (reduces(op))
        expect_all_reduce(c);
    else if (op != FCC_OP_NOOP)
        expect_all_to_all(c);
    if (op_spec(op)->epilogue)
        expect_whole_rows(c);
    for (int r = 0; r < c->problem->nranks; r++) {
        for (int kind = SLICE_COMPUTE_PUT; kind <= SLICE_PUT; kind++)
            expect_order(c, r, (enum slice_kind)kind);
        expect_phases(c, c->plans[r]);
        if ((c->schedule.target == PLAN_GPU || !is_hierarchical(c)) && !c->plans[r]->has_rows)
            expect_gpu_phases(c, c->plans[r]);
        expect_groups(c, c->plans[r]);
        expect_facts(c, r);
    }
    expect_levels(c);
    if (c->schedule.target == PLAN_GPU)
        expect_gpu_waits(c);
    expect_flags(c);
    expect_termination(c);
    expect_same_again(c);
}

#endif
