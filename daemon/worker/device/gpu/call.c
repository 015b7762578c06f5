/* SPDX-License-Identifier: MIT */
#include "daemon/worker/device/gpu/call.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gpu/scales.h"
#include "kernels/gpu/step_numbers.h"
#include "kernels/plan/compute/bag.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/exchange/gather.h"
#include "kernels/plan/exchange/reduce.h"

static_assert(PLAN_MAX_FLAGS == GPU_FLAGS, "flags are numbered by the plan, and the failure epoch follows them");
static_assert(PLAN_SETS == GPU_SETS, "of a plan");
static_assert((int)LEVEL_PUT == GPU_PHASE_PUT && (int)LEVEL_NODE == GPU_PHASE_NODE && (int)LEVEL_REDUCE == GPU_PHASE_REDUCE &&
                  (int)LEVEL_FORWARD == GPU_PHASE_FORWARD && (int)LEVEL_WAIT == GPU_PHASE_WAIT && (int)LEVEL_ROWS == GPU_PHASES,
              "a level is a phase");
static_assert(PACKET_BYTES == sizeof(struct gpu_stamped), "as plans have room for them");

/* ---- what the operators' kernels are told: of the operator, and of one rank. What is not the operator's is zero ---- */

static void gemm_rank(const struct op_args *args, struct gpu_output *out, struct gpu_input *in)
{
    const struct op_spec *op = op_spec(args->op);
    const struct tensor *a = &args->tensors[FCC_GEMM_A], *b = &args->tensors[FCC_GEMM_B], *c = &args->tensors[op->result];
    const struct tensor *gathered = op->exchange == EXCHANGE_GATHER ? &args->tensors[FCC_GATHER_GATHERED] : NULL;

    *out = (struct gpu_output){.data = (uint64_t)(uintptr_t)c->data, .stride = {c->stride[0]}};
    in->gemm.a = (uint64_t)(uintptr_t)a->data;
    in->gemm.a_stride = a->stride[0];
    in->gemm.b = (uint64_t)(uintptr_t)b->data;
    in->gemm.b_stride = b->data ? b->stride[0] : 0;
    in->gemm.k = a->shape[1];
    in->gemm.gathered = (uint64_t)(uintptr_t)(gathered ? gathered->data : NULL);
    in->gemm.gathered_stride = gathered && gathered->data ? gathered->stride[0] : 0;
}

static void gemv_shape(const struct problem *problem, struct gpu_shape *out)
{
    out->k = problem_longest_k(problem);
}

static void reduce_shape(const struct problem *problem, const struct plan *plan, struct gpu_shape *out)
{
    const struct reduce_layout *l = plan->layout;

    if (!l && op_is_vector(problem->op)) /* a plan that does nothing */
        return;
    if (!l) { /* packets */
        out->slot_bytes = reduce_packets_place(problem, out->first);
        return;
    }
    out->slot_bytes = l->slot_bytes;
    out->local_bytes = l->local_bytes;
    out->nodes = (uint32_t)l->nnodes;
    out->by_rows = l->by_rows;
    memcpy(out->first, l->columns, ((size_t)problem->nranks + 1) * sizeof(out->first[0]));
    if (op_is_vector(problem->op))
        memcpy(out->elements, l->elements, ((size_t)problem->nranks + 1) * sizeof(out->elements[0]));
}

static void gather_shape(const struct problem *problem, struct gpu_shape *out)
{
    out->k = problem->dim[DIM_K];
    for (int r = 0; r < problem->nranks; r++)
        out->first[r + 1] = out->first[r] + gather_rows(problem, r);
}

static void gemv_rank(const struct op_args *args, struct gpu_output *out, struct gpu_input *in)
{
    const struct tensor *x = &args->tensors[FCC_GEMV_X], *w = &args->tensors[FCC_GEMV_W], *y = &args->tensors[FCC_GEMV_Y];

    *out = (struct gpu_output){.data = (uint64_t)(uintptr_t)y->data, .stride = {y->stride[0]}};
    in->gemv.x = (uint64_t)(uintptr_t)x->data;
    in->gemv.x_stride = x->stride[0];
    in->gemv.w = (uint64_t)(uintptr_t)w->data;
    in->gemv.w_stride = w->stride[0];
    in->gemv.m = x->shape[0];
    in->gemv.n = w->shape[0];
    in->gemv.k = x->shape[1];
}

static void embedding_shape(const struct problem *problem, struct gpu_shape *out)
{
    out->dim = problem->dim[DIM_VECTOR];
    out->batch = problem->dim[DIM_M];
    for (int p = 0; p <= problem->nranks; p++)
        out->first[p] = p ? out->first[p - 1] + problem->rank_dim[DIM_M][p - 1] : 0;
}

static void embedding_rank(const struct op_args *args, struct gpu_output *out, struct gpu_input *in)
{
    const struct tensor *tables = &args->tensors[FCC_EMB_TABLES], *indices = &args->tensors[FCC_EMB_INDICES],
                        *to = &args->tensors[FCC_EMB_OUT];
    size_t ntables, count;
    const int64_t *pooling = op_attr(args, FCC_ATTR_POOLING, &count);

    (void)op_attr(args, FCC_ATTR_TABLE_ROWS, &ntables);
    *out = (struct gpu_output){.data = (uint64_t)(uintptr_t)to->data, .stride = {to->stride[0], to->stride[1]}};
    in->embedding.tables = (uint64_t)(uintptr_t)tables->data;
    in->embedding.row_stride = tables->stride[0];
    in->embedding.indices = (uint64_t)(uintptr_t)indices->data;
    in->embedding.offsets = (uint64_t)(uintptr_t)args->tensors[FCC_EMB_OFFSETS].data;
    in->embedding.weights = (uint64_t)(uintptr_t)args->tensors[FCC_EMB_WEIGHTS].data;
    in->embedding.nnz = indices->shape[0];
    in->embedding.ntables = (uint32_t)ntables;
    in->embedding.flags =
        (indices->dtype == FCC_I64 ? GPU_INDEX_WIDE : 0u) | (*pooling == FCC_POOLING_MEAN ? GPU_POOL_MEAN : 0u);
}

static void vector_shape(const struct problem *problem, struct gpu_shape *out)
{
    out->unit = vector_unit(problem);
    out->element_bytes = (uint32_t)dtype_size(problem->dtype);
    out->reduction = (uint32_t)problem->dim[DIM_REDUCTION];
    out->keeps_own = op_spec(problem->op)->out == VECTOR_OWN;
}

static void vector_rank(const struct op_args *args, struct gpu_output *out, struct gpu_input *in)
{
    in->vector.in = (uint64_t)(uintptr_t)args->tensors[FCC_VECTOR_IN].data;
    *out = (struct gpu_output){.data = (uint64_t)(uintptr_t)args->tensors[FCC_VECTOR_OUT].data, .in = in->vector.in};
}

static const struct {
    void (*shape)(const struct problem *problem, struct gpu_shape *out);
    void (*rank)(const struct op_args *args, struct gpu_output *out, struct gpu_input *in);
} computes[COMPUTE_KINDS] = {
    [COMPUTE_BAG] = {embedding_shape, embedding_rank},
    [COMPUTE_GEMV] = {gemv_shape, gemv_rank},
    [COMPUTE_GEMM] = {NULL, gemm_rank},
    [COMPUTE_VECTOR] = {vector_shape, vector_rank},
    [COMPUTE_STEP] = {vector_shape, vector_rank},
};

void gpu_rank_fill(const struct op_args *args, struct gpu_output *out, struct gpu_input *in)
{
    const struct op_spec *op = op_spec(args->op);
    const struct tensor *bias = epilogue_tensor(args, STAGE_BIAS), *residual = epilogue_tensor(args, STAGE_RESIDUAL);

    if (computes[op->compute].rank)
        computes[op->compute].rank(args, out, in);
    in->bias = (uint64_t)(uintptr_t)(bias ? bias->data : NULL);
    in->residual = (uint64_t)(uintptr_t)(residual ? residual->data : NULL);
    in->residual_stride = residual ? residual->stride[0] : 0;
}

void gpu_shape_make(const struct problem *problem, const struct plan *plan, struct gpu_shape *out)
{
    const struct op_spec *op = op_spec(problem->op);

    memset(out, 0, sizeof(*out));
    out->compute = op->compute;
    out->exchange = op->exchange;
    out->dtype = problem->dtype;
    out->nranks = (uint32_t)problem->nranks;
    out->over_nodes = plan_is_over_nodes(problem);
    out->stages = epilogue_each(&problem->epilogue);
    out->factors = problem->factors;
    out->m = problem->dim[DIM_M];
    out->n = problem->dim[DIM_N];
    if (computes[op->compute].shape)
        computes[op->compute].shape(problem, out);
    if (op->exchange == EXCHANGE_REDUCE)
        reduce_shape(problem, plan, out);
    if (op->exchange == EXCHANGE_GATHER)
        gather_shape(problem, out);
}

int gpu_run_make(const struct plan *plan, struct gpu_run *out, struct error *e)
{
    if (plan->nlevels > GPU_PHASES)
        return error_set(e, -EINVAL, "plan: %u levels: kernels have %d phases", plan->nlevels, GPU_PHASES);
    *out = (struct gpu_run){.rank = plan->rank, .slices = plan->slices, .groups = plan->groups, .ngroups = plan->ngroups};
    for (unsigned i = 0; i < GPU_SETS; i++)
        out->sets[i] = plan->sets[i][0];
    for (unsigned phase = 0; phase <= GPU_PHASES; phase++)
        out->first[phase] = plan->level_first[phase < plan->nlevels ? phase : plan->nlevels];
    return 0;
}

/* Words for each rank, if others read or store into tensors of a table: as FCC_ATTR_TABLES of `in` and `out`. 0: there are none. */
static size_t tables_words(const struct problem *problem, const struct op_args args[])
{
    const struct code code = problem->op == FCC_PROGRAM_STEP && args ? step_code(&args[0]) : (struct code){.head = NULL};

    return code.begins && step_is_shared(problem) ? 1 + 2 * (size_t)code.head->tensors : 0;
}

static void tables_put(const struct problem *problem, const struct op_args args[], size_t pitch, int64_t *out)
{
    for (int r = 0; r < problem->nranks && pitch; r++, out += pitch) {
        const struct code code = step_code(&args[r]);
        size_t n = 1;
        for (int t = STEP_IN; t <= STEP_OUT; t++) {
            const int64_t *places = step_places(&args[r], &code, t);
            if (!places)
                continue;
            out[0] |= INT64_C(1) << t;
            memcpy(out + n, places, (size_t)code.head->tensors * sizeof(out[0]));
            n += (size_t)code.head->tensors;
        }
    }
}

int gpu_prepared_make(const struct problem *problem, const struct plan *plan, const struct op_args args[], uint64_t slots_bytes,
                      struct gpu_prepared_plan **out, struct error *e)
{
    const size_t pitch = tables_words(problem, args);
    uint64_t slices = plan->nslices * sizeof(struct slice), groups = plan->ngroups * sizeof(struct signal_group),
             tables = (uint64_t)problem->nranks * pitch * sizeof(int64_t), bytes = sizeof(struct gpu_prepared_plan) + tables;
    struct gpu_run run = {.rank = plan->rank};
    int status = gpu_run_make(plan, &run, e);

    if (status)
        return status;
    struct gpu_prepared_plan *p = calloc(1, bytes + slices + groups);
    if (!p)
        return error_set(e, -ENOMEM, "prepare: no memory for a plan of %u slices", plan->nslices);
    *p = (struct gpu_prepared_plan){.abi = GPU_PLUGIN_ABI,
                                    .rank = (uint32_t)plan->rank,
                                    .bytes = bytes + slices + groups,
                                    .only_slots = plan_starts_alone(plan),
                                    .shares_result = plan->shared != 0,
                                    .reads_inputs = op_is_step(problem->op) && step_reduces(problem),
                                    .ngroups = plan->ngroups,
                                    .tables = sizeof(*p),
                                    .table_words = (uint32_t)pitch,
                                    .slices = bytes,
                                    .groups = bytes + slices,
                                    .slots_at = GPU_PREPARED_SLOTS_AT,
                                    .slots_bytes = slots_bytes,
                                    .staging_at = GPU_PREPARED_SLOTS_AT + 2 * slots_bytes,
                                    .staging_bytes = plan->staging_bytes};
    gpu_shape_make(problem, plan, &p->shape);
    memcpy(p->first, run.first, sizeof(p->first));
    memcpy(p->sets, run.sets, sizeof(p->sets));
    tables_put(problem, args, pitch, (int64_t *)(void *)(p + 1));
    memcpy((unsigned char *)p + p->slices, plan->slices, slices);
    if (groups) /* in one step there are none */
        memcpy((unsigned char *)p + p->groups, plan->groups, groups);
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
    int status = plugin->launch_numbers(launch, run, first, (uint32_t)ntables + 1, &in->embedding.table_first, e);
    free(first);
    return status;
}

/* The parts that a rank has for each rank, to the GPU. */
static int parts_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, int run, const struct problem *problem,
                      int rank, struct gpu_input *in, struct error *e)
{
    int64_t parts[3 * GPU_MAX_RANKS];
    uint64_t begin[FCC_MAX_RANKS]; /* bytes */
    int n = problem->nranks;

    vector_parts_at(problem, rank, begin);
    for (int p = 0; p < n; p++) {
        const struct vector_part part = vector_part(problem, rank, p);
        parts[p] = (int64_t)(begin[p] / dtype_size(problem->dtype));
        parts[n + p] = part.to;
        parts[2 * n + p] = part.count;
    }
    return plugin->launch_numbers(launch, run, parts, 3 * (uint32_t)n, &in->vector.parts, e);
}

/* A step's elements, tensors, code and table, to the GPU. */
static int step_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, int run, const struct problem *problem,
                     const struct op_args args[], int rank, struct gpu_input *in, struct error *e)
{
    struct step_numbers n;

    if (!step_numbers_make(args, problem->nranks, rank, problem->rank_dim[DIM_N][rank], problem->rank_dim[DIM_K][rank], &n))
        return error_set(e, -ENOMEM, "program: no memory for a step's numbers");
    const int status = plugin->launch_numbers(launch, run, n.words, (uint32_t)n.count, &in->vector.parts, e);
    free(n.words);
    return status;
}

static int numbers_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, int run, const struct problem *problem,
                        const struct op_args args[], int rank, struct gpu_input *in, struct error *e)
{
    const struct op_spec *op = op_spec(problem->op);

    if (op->compute == COMPUTE_BAG)
        return tables_fill(plugin, launch, run, &args[rank], in, e);
    if (op->compute == COMPUTE_STEP)
        return step_fill(plugin, launch, run, problem, args, rank, in, e);
    if (op->compute == COMPUTE_VECTOR && op->exchange == EXCHANGE_PUT)
        return parts_fill(plugin, launch, run, problem, rank, in, e);
    return 0;
}

int gpu_call_fill(const struct gpu_plugin *plugin, struct gpu_launch *launch, const struct problem *problem,
                  const struct op_args args[], const int ranks[], int nruns, struct gpu_factor_scales scales[],
                  struct gpu_call *out, struct error *e)
{
    struct gpu_input ignored;
    int status = 0;

    out->nodes = (struct gpu_nodes){.phase_next = GPU_PHASES};
    for (int r = 0; r < problem->nranks; r++)
        gpu_rank_fill(&args[r], &out->out[r], &ignored);
    out->scales = problem->factors & FACTORS_F8 ? scales : NULL;
    for (int i = 0; i < nruns && status == 0; i++) {
        struct gpu_output unused;
        gpu_rank_fill(&args[ranks[i]], &unused, &out->in[i]);
        for (int factor = 0; factor < 2 && out->scales; factor++)
            scales[i].of[factor] = gpu_scales_of(&args[ranks[i]], factor);
        status = numbers_fill(plugin, launch, i, problem, args, ranks[i], &out->in[i], e);
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
        return bag_offset_error(e, f->at, f->value, (int)f->table, f->kind == GPU_FAILURE_OFFSET_END, f->bag, f->least,
                                f->most);
    default:
        return bag_index_error(e, f->at, f->value, (int)f->table, f->bag, f->position, f->most + 1);
    }
}
