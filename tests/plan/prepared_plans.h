/* SPDX-License-Identifier: MIT
 *
 * prepared_plans.h - plans as a worker hands them to clients that launch kernels themselves, and somebody who follows one: it stores wherever
 * a kernel would, into memory that is no larger than what the client has mapped. So a sanitizer sees a plan that leads out of it.
 */
#ifndef PREPARED_PLANS_H
#define PREPARED_PLANS_H

#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/gpu/call.h"
#include "kernels/gpu/bound_check.h"
#include "kernels/plan/plan.h"

/* The plan of one rank of a small problem, with places as the worker sets them for dense tensors. NULL: there is no such plan. */
static inline struct gpu_prepared_plan *prepared_plan_make(const struct problem *problem, int rank)
{
    struct schedule schedule = {.kind = FCC_SCHEDULE_FUSED, .target = PLAN_GPU, .route = PLAN_ROUTE_RULE};
    struct gpu_prepared_plan *out = NULL;
    struct plan *plan = NULL;
    struct error e = {.status = 0};

    if (plan_make(problem, rank, &schedule, &plan, &e))
        return NULL;
    if ((!plan->staging_bytes || problem->op == FCC_PROGRAM_STEP) &&
        !gpu_prepared_make(problem, plan, NULL, plan->packet_bytes, &out, &e)) {
        for (int r = 0; r < problem->nranks && problem->op != FCC_PROGRAM_STEP; r++)
            out->out[r].stride[0] = problem->dim[DIM_N];
        if (problem->op == FCC_OP_GEMV_ALL_REDUCE) {
            out->in.gemv.m = problem->dim[DIM_M];
            out->in.gemv.n = problem->dim[DIM_N];
            out->in.gemv.k = out->in.gemv.x_stride = out->in.gemv.w_stride = problem->rank_dim[DIM_K][rank];
        } else if (problem->op == FCC_OP_GEMM_ALL_TO_ALL) {
            out->in.gemm.k = out->in.gemm.a_stride = problem->rank_dim[DIM_K][rank];
            out->in.gemm.b_stride = problem->dim[DIM_N];
        }
    }
    plan_free(plan);
    return out;
}

struct followed {
    const struct gpu_prepared_plan *plan;
    unsigned char *areas[GPU_MAX_GPUS], *results[GPU_MAX_GPUS]; /* of as many bytes as `sizes` says */
    uint32_t *counters;
    uint64_t slots_at; /* of this run, in an area */
};

static inline void followed_flag(struct followed *f, uint32_t rank, uint64_t flag)
{
    memset(f->areas[rank] + flag * sizeof(uint64_t), 1, sizeof(uint64_t));
}

/* The words of a tile's corners, of `source` at `owner`. */
static inline void followed_words(struct followed *f, const struct slice *s, uint32_t owner, uint32_t source)
{
    const struct gpu_shape *shape = &f->plan->shape;
    unsigned char *slot = f->areas[owner] + f->slots_at + source * shape->slot_bytes;
    uint32_t cols[2] = {s->col - (uint32_t)shape->first[owner], s->col + s->cols - 1 - (uint32_t)shape->first[owner]};
    uint32_t rows[2] = {0, s->rows - 1};

    for (int i = 0; i < 4; i++)
        memset(slot + (((uint64_t)(cols[i / 2] / 8) * (uint32_t)shape->m + rows[i % 2]) * 8 + cols[i / 2] % 8) *
                          sizeof(struct gpu_stamped),
               2, sizeof(struct gpu_stamped));
}

/* The elements of a tile's corners, in a rank's result. */
static inline void followed_result(struct followed *f, const struct slice *s, uint32_t rank)
{
    const struct gpu_output *out = &f->plan->out[rank];
    uint64_t size = gpu_prepared_element_bytes(f->plan);

    for (int i = 0; i < 4; i++) {
        uint64_t row = s->dst_row + (i % 2 ? s->rows - 1 : 0), col = s->dst_col + (i / 2 ? s->cols - 1 : 0);
        memset(f->results[rank] + out->data + (row * (uint64_t)out->stride[0] + col) * size, 3, size);
    }
}

static inline void followed_slice(struct followed *f, const struct slice *s)
{
    const struct gpu_prepared_plan *plan = f->plan;
    uint32_t nranks = plan->shape.nranks;
    bool all = s->dst == SLICE_DST_ALL;

    if (s->wait_count) {
        followed_flag(f, plan->rank, s->wait_first);
        followed_flag(f, plan->rank, s->wait_first + (uint64_t)(s->wait_count - 1) * s->wait_stride);
    }
    for (uint32_t r = 0; s->kind != SLICE_WAIT && r < nranks; r++) {
        bool reaches = all || s->dst == r;
        if (s->kind == SLICE_REDUCE)
            followed_words(f, s, plan->rank, r);
        if (reaches && s->kind == SLICE_COMPUTE_PUT && plan->shape.compute == COMPUTE_GEMV)
            followed_words(f, s, r, plan->rank);
        else if (reaches)
            followed_result(f, s, r);
    }
    if (s->group == SLICE_NO_GROUP)
        return;
    const struct signal_group *g = &gpu_prepared_groups(plan)[s->group];
    f->counters[s->group] = g->slices;
    for (uint32_t r = 0; r < nranks; r++)
        if (g->dst == SLICE_DST_ALL || g->dst == r)
            followed_flag(f, r, g->flag);
}

/* A plan that has been found right, with memory of these sizes; `sizes` of which nothing is used are 0. */
static inline void plan_follow(const struct gpu_prepared_plan *plan, const struct gpu_prepared_sizes *sizes)
{
    struct followed f = {.plan = plan, .counters = calloc(plan->ngroups + 1, sizeof(uint32_t))};

    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        f.areas[r] = malloc(sizes->areas[r] + !sizes->areas[r]);
        f.results[r] = malloc(sizes->results[r] + !sizes->results[r]);
    }
    for (uint64_t run = 0; run < 2; run++) {
        f.slots_at = plan->slots_at + run * plan->slots_bytes;
        for (uint32_t r = 0; r < plan->shape.nranks; r++)
            followed_flag(&f, r, GPU_FLAG_WORDS - 1);
        for (uint32_t i = 0; plan->shape.compute != COMPUTE_NONE && i < plan->first[GPU_PHASES]; i++)
            followed_slice(&f, &gpu_prepared_slices(plan)[i]);
    }
    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        free(f.areas[r]);
        free(f.results[r]);
    }
    free(f.counters);
}

#endif
