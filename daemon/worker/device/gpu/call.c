/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/call.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/pool.h"

static_assert(PLAN_MAX_FLAGS == GPU_FLAGS, "flags are numbered by the plan, and the failure epoch follows them");
static_assert(PLAN_SETS == GPU_SETS, "of a plan");

void gpu_shape_make(const struct problem *problem, const struct plan *plan, struct gpu_shape *out)
{
    memset(out, 0, sizeof(*out));
    out->op = problem->op;
    out->dtype = problem->dtype;
    out->nranks = (uint32_t)problem->nranks;
    out->over_nodes = plan_is_over_nodes(problem);
    op_get(problem->op)->gpu_shape(problem, &plan->schedule, out);
}

static enum gpu_phase phase_of(const struct slice *s)
{
    switch (s->kind) {
    case SLICE_WAIT:
        return GPU_PHASE_WAIT;
    case SLICE_FORWARD:
        return GPU_PHASE_FORWARD;
    case SLICE_REDUCE:
        return GPU_PHASE_REDUCE;
    case SLICE_REDUCE_NODE:
        return GPU_PHASE_NODE;
    default:
        return s->wait_count == 0 ? GPU_PHASE_FREE : GPU_PHASE_PUT;
    }
}

int gpu_run_make(const struct plan *plan, struct gpu_run *out, struct error *e)
{
    uint32_t i = 0;

    *out = (struct gpu_run){
        .rank = plan->rank, .slices = plan->slices, .groups = plan->groups, .sets = plan->sets, .ngroups = plan->ngroups};
    for (unsigned phase = 0; phase < GPU_PHASES; phase++) {
        out->first[phase] = i;
        while (i < plan->nslices && phase_of(&plan->slices[i]) == phase)
            i++;
    }
    out->first[GPU_PHASES] = i;
    return i == plan->nslices ? 0 : error_set(e, -EINVAL, "plan: slice %u stands behind what waits for it", i);
}

int gpu_prepared_make(const struct problem *problem, const struct plan *plan, uint64_t slots_bytes,
                      struct gpu_prepared_plan **out, struct error *e)
{
    uint64_t slices = plan->nslices * sizeof(struct slice), groups = plan->ngroups * sizeof(struct signal_group);
    struct gpu_run run;
    int status = gpu_run_make(plan, &run, e);

    if (status)
        return status;
    struct gpu_prepared_plan *p = calloc(1, sizeof(*p) + slices + groups);
    if (!p)
        return error_set(e, -ENOMEM, "prepare: no memory for a plan of %u slices", plan->nslices);
    *p = (struct gpu_prepared_plan){.abi = GPU_PLUGIN_ABI,
                                    .rank = (uint32_t)plan->rank,
                                    .bytes = sizeof(*p) + slices + groups,
                                    .only_slots = plan->only_slots,
                                    .ngroups = plan->ngroups,
                                    .slices = sizeof(*p),
                                    .groups = sizeof(*p) + slices,
                                    .slots_at = GPU_PREPARED_SLOTS_AT,
                                    .slots_bytes = slots_bytes};
    gpu_shape_make(problem, plan, &p->shape);
    memcpy(p->first, run.first, sizeof(p->first));
    memcpy(p->sets, run.sets, sizeof(p->sets));
    memcpy((unsigned char *)p + p->slices, run.slices, slices);
    if (groups) /* in one step there are none */
        memcpy((unsigned char *)p + p->groups, run.groups, groups);
    *out = p;
    return 0;
}

/* The first row of each table, to the GPU. */
static int tables_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, int run, const struct op_args *args,
                       struct gpu_input *in, struct error *e)
{
    size_t ntables;
    const int64_t *rows = op_attr(args, FCC_ATTR_TABLE_ROWS, &ntables);
    int64_t *first = calloc(ntables + 1, sizeof(first[0]));

    if (!first)
        return error_set(e, -ENOMEM, "table_rows: no memory for %zu", ntables);
    for (size_t t = 0; t < ntables; t++)
        first[t + 1] = first[t] + rows[t];
    int status = plugin->launch_tables(launch, run, first, (uint32_t)ntables, &in->embedding.table_first, e);
    free(first);
    return status;
}

int gpu_call_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, const struct op_args args[], int nranks,
                  const int ranks[], int nruns, struct gpu_call *out, struct error *e)
{
    const struct op *op = op_get(args[0].op);
    struct gpu_input ignored;
    int status = 0;

    out->nodes = (struct gpu_nodes){.phase_next = GPU_PHASES};
    for (int r = 0; r < nranks; r++)
        op->gpu_rank(&args[r], &out->out[r], &ignored);
    for (int i = 0; i < nruns && status == 0; i++) {
        struct gpu_output unused;
        op->gpu_rank(&args[ranks[i]], &unused, &out->in[i]);
        if (args[0].op == FCC_OP_EMBEDDING_ALL_TO_ALL)
            status = tables_fill(plugin, launch, i, &args[ranks[i]], &out->in[i], e);
    }
    return status;
}

int gpu_failure_explain(const struct gpu_failure *f, struct error *e)
{
    switch (f->kind) {
    case GPU_FAILURE_NONE:
        return 0;
    case GPU_FAILURE_OFFSET_BEGIN:
    case GPU_FAILURE_OFFSET_END:
        return pool_offset_error(e, f->at, f->value, (int)f->table, f->kind == GPU_FAILURE_OFFSET_END, f->bag, f->least,
                                 f->most);
    default:
        return pool_index_error(e, f->at, f->value, (int)f->table, f->bag, f->position, f->most + 1);
    }
}
