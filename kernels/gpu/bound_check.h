/* SPDX-License-Identifier: MIT
 *
 * bound_check.h - checks whether a plan from another process may be launched. Plain C and C++, for the client, the plug-ins and
 * the tests' plug-in.
 *
 * The plan is a private copy, which nobody changes. Every index, length, divisor and offset in it is checked here, so a kernel
 * that follows the plan stores only into the control memory and results that the client has mapped for it. Whether the plan is
 * correct (its waits end, its sums are the operator's) is not checked: a wrong plan harms its own ranks only.
 */
#ifndef FCC_KERNELS_GPU_BOUND_CHECK_H
#define FCC_KERNELS_GPU_BOUND_CHECK_H

#include <errno.h>

#include "kernels/gpu/bound.h"
#include "kernels/gpu/rings.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPU_PREPARED_SLICES_MAX (1u << 20) /* the same as PLAN_MAX_SLICES */
#define GPU_PREPARED_ALIGN 256u            /* alignment of packet memory, its halves and each rank's part of them */

/* Bytes of the memory that the client has mapped. Its own rank's result: UINT64_MAX if each run has another one. */
struct gpu_prepared_sizes {
    uint64_t areas[GPU_MAX_RANKS], results[GPU_MAX_RANKS], ins[GPU_MAX_RANKS];
};

static inline uint64_t gpu_prepared_element_bytes(const struct gpu_prepared_plan *plan)
{
    return plan->shape.dtype == FCC_F32 ? 4 : 2;
}

static inline const struct slice *gpu_prepared_slices(const struct gpu_prepared_plan *plan)
{
    return (const struct slice *)(const void *)((const char *)plan + plan->slices);
}

static inline const struct signal_group *gpu_prepared_groups(const struct gpu_prepared_plan *plan)
{
    return (const struct signal_group *)(const void *)((const char *)plan + plan->groups);
}

static inline bool gpu_prepared_part_fits(const struct gpu_prepared_plan *plan, uint64_t at, uint64_t count, size_t size)
{
    return at >= sizeof(*plan) && at <= plan->bytes && at % 4 == 0 && count <= (plan->bytes - at) / size;
}

static inline int gpu_prepared_head_check(const struct gpu_prepared_plan *plan, size_t bytes, struct error *e)
{
    const struct gpu_shape *s = &plan->shape;
    bool is_noop, known;

    if (bytes < sizeof(*plan) || plan->bytes != bytes || plan->abi != GPU_PLUGIN_ABI)
        return error_set(e, -EPROTO, "plan: %zu bytes, which are not of this plug-in", bytes);
    is_noop = s->compute == COMPUTE_NONE;
    known = s->stages ? false
            : is_noop ? s->exchange == EXCHANGE_NONE || s->exchange == EXCHANGE_RINGS
            : s->compute == COMPUTE_GEMV || s->compute == COMPUTE_STEP
                ? s->exchange == EXCHANGE_REDUCE
                : s->compute == COMPUTE_GEMM && s->exchange == EXCHANGE_PUT;
    if (!known || (!is_noop && s->dtype != FCC_F32 && s->dtype != FCC_F16 && s->dtype != FCC_BF16))
        return error_set(e, -EINVAL, "plan: compute %u, exchange %u, dtype %u: no client launches such kernels", s->compute,
                         s->exchange, s->dtype);
    if (s->nranks < 1 || s->nranks > GPU_MAX_GPUS || plan->rank >= s->nranks)
        return error_set(e, -EINVAL, "plan: rank %u of %u: allowed are 1 to %d ranks", plan->rank, s->nranks, GPU_MAX_GPUS);
    if (s->over_nodes || plan->only_slots > (s->compute == COMPUTE_GEMV))
        return error_set(e, -EINVAL, "plan: over_nodes %u, only_slots %u: allowed are 0, and 0 or, of sums, 1", s->over_nodes,
                         plan->only_slots);
    return 0;
}

#define GPU_PREPARED_ELEMENTS_MOST ((int64_t)1 << 48) /* the same as VECTOR_MOST */

/* A program's step: its elements, those that each rank reduces, and the table's words. */
static inline int gpu_prepared_step_check(const struct gpu_prepared_plan *plan, struct error *e)
{
    const struct gpu_shape *s = &plan->shape;
    const uint64_t words = (uint64_t)plan->table_words * s->nranks;

    if (s->n < 0 || s->n > GPU_PREPARED_ELEMENTS_MOST || s->unit < 1 || s->unit > INT32_MAX || s->keeps_own ||
        s->reduction != FCC_SUM || s->element_bytes != gpu_prepared_element_bytes(plan))
        return error_set(e, -EINVAL, "plan: a step of %lld elements of %u bytes, %lld in a column, reduction %u",
                         (long long)s->n, s->element_bytes, (long long)s->unit, s->reduction);
    for (uint32_t r = 0; r <= s->nranks; r++) {
        const int64_t elements = r ? s->elements[r - 1] : 0, first = r ? s->first[r - 1] : 0;
        if (s->elements[r] < elements || s->elements[r] > s->n || s->first[r] < first || s->first[r] > UINT32_MAX)
            return error_set(
                e, -EINVAL, "plan: rank %u reduces from element %lld, column %lld on: allowed are %lld to %lld, %lld and more",
                r, (long long)s->elements[r], (long long)s->first[r], (long long)elements, (long long)s->n, (long long)first);
    }
    if (plan->tables % sizeof(int64_t) || plan->tables < sizeof(*plan) || plan->tables > plan->bytes ||
        words > (plan->bytes - plan->tables) / sizeof(int64_t))
        return error_set(e, -EINVAL, "plan: %llu words of tables at %llu: not in its %llu bytes", (unsigned long long)words,
                         (unsigned long long)plan->tables, (unsigned long long)plan->bytes);
    return 0;
}

static inline int gpu_prepared_shape_check(const struct gpu_prepared_plan *plan, struct error *e)
{
    const struct gpu_shape *s = &plan->shape;
    const int64_t most = s->compute == COMPUTE_STEP ? GPU_PREPARED_ELEMENTS_MOST : INT32_MAX;
    int64_t k = s->compute == COMPUTE_GEMV ? plan->in.gemv.k : s->compute == COMPUTE_GEMM ? plan->in.gemm.k : 0;
    int64_t before = 0;

    if (s->m < 0 || s->m > INT32_MAX || s->n < 0 || s->n > most || s->k < 0 || s->k > INT32_MAX || k < 0 || k > INT32_MAX)
        return error_set(e, -EINVAL, "plan: m %lld, n %lld, k %lld and %lld: allowed are 0 to %d", (long long)s->m,
                         (long long)s->n, (long long)s->k, (long long)k, INT32_MAX);
    if (s->compute == COMPUTE_STEP)
        return gpu_prepared_step_check(plan, e);
    if (s->compute != COMPUTE_GEMV)
        return 0;
    if (k > s->k || (plan->in.gemv.m && plan->in.gemv.m != s->m) || (plan->in.gemv.n && plan->in.gemv.n != s->n))
        return error_set(e, -EINVAL, "plan: inputs of %lld x %lld x %lld for an operator of %lld x %lld x %lld",
                         (long long)plan->in.gemv.m, (long long)plan->in.gemv.n, (long long)k, (long long)s->m, (long long)s->n,
                         (long long)s->k);
    for (uint32_t r = 0; r < s->nranks; before = s->first[r++])
        if (s->first[r] < before || s->first[r] > s->n)
            return error_set(e, -EINVAL, "plan: rank %u reduces from column %lld on: allowed are %lld to %lld", r,
                             (long long)s->first[r], (long long)before, (long long)s->n);
    return 0;
}

/* Checks the packet memory, of which each half has a part for each rank, and the staging memory. */
static inline int gpu_prepared_slots_check(const struct gpu_prepared_plan *plan, struct error *e)
{
    const struct gpu_shape *s = &plan->shape;
    uint64_t words = GPU_RECORDS_AT + RUN_RECORDS * sizeof(struct run_record);

    if (plan->slots_at < words || plan->slots_at > UINT32_MAX || plan->slots_at % GPU_PREPARED_ALIGN ||
        plan->slots_bytes % GPU_PREPARED_ALIGN || plan->slots_bytes > UINT64_MAX / 4)
        return error_set(e, -EINVAL, "plan: %llu bytes of slots from %llu on: they begin behind %llu bytes of words",
                         (unsigned long long)plan->slots_bytes, (unsigned long long)plan->slots_at, (unsigned long long)words);
    if (plan->staging_at < plan->slots_at + 2 * plan->slots_bytes || plan->staging_at % GPU_PREPARED_ALIGN ||
        plan->staging_at > UINT64_MAX / 4 || plan->staging_bytes > UINT64_MAX / 4)
        return error_set(e, -EINVAL, "plan: %llu bytes of staging memory from %llu on: it begins behind the slots",
                         (unsigned long long)plan->staging_bytes, (unsigned long long)plan->staging_at);
    if (s->exchange == EXCHANGE_RINGS && 2 * plan->slots_bytes < rings_bytes(s->nranks))
        return error_set(e, -EINVAL, "plan: %llu bytes for rings of %u ranks: they need %llu",
                         (unsigned long long)(2 * plan->slots_bytes), s->nranks, (unsigned long long)rings_bytes(s->nranks));
    if (plan->lines > (s->exchange == EXCHANGE_RINGS && s->nranks == 2 ? 1u : 0u))
        return error_set(e, -EINVAL, "plan: lines %u of %u ranks, exchange %u: allowed are 0, and 1 for rings of 2 ranks",
                         plan->lines, s->nranks, s->exchange);
    if (s->compute == COMPUTE_GEMV && (s->slot_bytes % GPU_PREPARED_ALIGN || s->slot_bytes > plan->slots_bytes / s->nranks))
        return error_set(e, -EINVAL, "plan: slots of %llu bytes for each of %u ranks, in %llu bytes",
                         (unsigned long long)s->slot_bytes, s->nranks, (unsigned long long)plan->slots_bytes);
    return 0;
}

/* Whether a slice that is computed into staging memory, or put from there, fits: the memory is dense, [rows][n], with sums in f32. */
static inline bool gpu_prepared_staging_fits(const struct gpu_prepared_plan *plan, const struct slice *s)
{
    uint64_t size = plan->shape.compute == COMPUTE_GEMV ? sizeof(float) : gpu_prepared_element_bytes(plan);

    if (plan->shape.compute == COMPUTE_STEP) /* client/stream/bound_step.c, which knows what is put there */
        return true;
    if (s->kind != SLICE_COMPUTE && s->kind != SLICE_PUT)
        return true;
    return plan->shape.n && (uint64_t)s->row + s->rows <= plan->staging_bytes / size / (uint64_t)plan->shape.n;
}

/* Checks the offsets of slices and groups, and the phases. */
static inline int gpu_prepared_parts_check(const struct gpu_prepared_plan *plan, struct error *e)
{
    uint32_t nslices = plan->first[GPU_PHASES];

    for (int phase = 0; phase < GPU_PHASES; phase++)
        if (plan->first[phase] > plan->first[phase + 1] || plan->first[0])
            return error_set(e, -EINVAL, "plan: phase %d has slices %u to %u: phases follow each other, from slice 0 on", phase,
                             plan->first[phase], plan->first[phase + 1]);
    if (nslices > GPU_PREPARED_SLICES_MAX || (!nslices && plan->shape.compute != COMPUTE_NONE))
        return error_set(e, -EINVAL, "plan: %u slices: allowed are 1 to %u", nslices, GPU_PREPARED_SLICES_MAX);
    if (!gpu_prepared_part_fits(plan, plan->slices, nslices, sizeof(struct slice)) ||
        !gpu_prepared_part_fits(plan, plan->groups, plan->ngroups, sizeof(struct signal_group)))
        return error_set(e, -EINVAL, "plan: %u slices at %llu, %u groups at %llu: not in its %llu bytes", nslices,
                         (unsigned long long)plan->slices, plan->ngroups, (unsigned long long)plan->groups,
                         (unsigned long long)plan->bytes);
    return 0;
}

static inline int gpu_prepared_groups_check(const struct gpu_prepared_plan *plan, struct error *e)
{
    for (uint32_t i = 0; i < plan->ngroups; i++) {
        const struct signal_group *g = &gpu_prepared_groups(plan)[i];
        if ((g->dst != SLICE_DST_ALL && g->dst >= plan->shape.nranks) || g->flag >= GPU_FLAGS || !g->slices ||
            g->slices > plan->first[GPU_PHASES])
            return error_set(e, -EINVAL, "plan: group %u of %u slices: flag %u at rank %u", i, g->slices, g->flag, g->dst);
    }
    return 0;
}

/* Do a slice's packets fit into the part of the rank that reduces its tile (owner)? Packets are stored in blocks of 8 columns,
 * beginning with that rank's first column. */
static inline bool gpu_prepared_words_fit(const struct gpu_prepared_plan *plan, const struct slice *s, uint32_t owner)
{
    const struct gpu_shape *shape = &plan->shape;
    uint64_t end = (uint64_t)s->col + s->cols;

    if (s->col < (uint64_t)shape->first[owner])
        return false;
    uint64_t columns = (end - (uint64_t)shape->first[owner] + 7) / 8 * 8;
    return !shape->m || columns <= shape->slot_bytes / sizeof(struct gpu_stamped) / (uint64_t)shape->m;
}

static inline bool gpu_prepared_gemv_fits(const struct gpu_prepared_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &plan->shape;
    bool all = s->dst == SLICE_DST_ALL, reduces = s->kind == SLICE_REDUCE;
    bool fits = s->row == 0 && s->dst_row == 0 && s->dst_col == s->col && s->rows <= (uint64_t)shape->m &&
                (uint64_t)s->col + s->cols <= (uint64_t)shape->n && (all || s->dst < shape->nranks);

    if (reduces) /* with only_slots a rank stores only into its own result */
        return fits && (all ? !plan->only_slots : s->dst == plan->rank) && gpu_prepared_words_fit(plan, s, plan->rank);
    for (uint32_t r = all ? 0 : s->dst; fits && r < (all ? shape->nranks : s->dst + 1u); r++)
        fits = gpu_prepared_words_fit(plan, s, r);
    return fits;
}

static inline bool gpu_prepared_gemm_fits(const struct gpu_prepared_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &plan->shape;

    return s->dst < shape->nranks && (uint64_t)s->row + s->rows <= INT32_MAX && (uint64_t)s->dst_row + s->rows <= INT32_MAX &&
           (uint64_t)s->col + s->cols <= (uint64_t)shape->n && (uint64_t)s->dst_col + s->cols <= (uint64_t)shape->n;
}

/* A step's slices: columns of what the rank reduces, or works on by itself; and one behind them (PUT). */
static inline bool gpu_prepared_columns_fit(const struct gpu_prepared_plan *plan, const struct slice *s)
{
    const struct gpu_shape *shape = &plan->shape;
    const uint32_t own = plan->rank;
    const bool shares = plan->reads_inputs || plan->shares_result;

    if (s->dst != own && (s->dst != SLICE_DST_ALL || !plan->shares_result))
        return false;
    if (!shares || s->kind != SLICE_REDUCE)
        return true; /* the kernel stays in the rank's elements: they end where these do */
    return s->col >= shape->first[own] && (int64_t)s->col + s->cols <= shape->first[own + 1] &&
           (s->col - shape->first[own]) <= (shape->elements[own + 1] - shape->elements[own]) / shape->unit;
}

static inline bool gpu_prepared_slice_fits(const struct gpu_prepared_plan *plan, enum gpu_phase phase, const struct slice *s)
{
    /* A bit for each kind. 0: a phase that has no slices on one node. */
    static const uint32_t kinds[GPU_PHASES] = {1u << SLICE_COMPUTE_PUT | 1u << SLICE_COMPUTE,
                                               1u << SLICE_COMPUTE_PUT | 1u << SLICE_PUT,
                                               0,
                                               1u << SLICE_REDUCE,
                                               0,
                                               1u << SLICE_WAIT};
    static const uint32_t step_kinds[GPU_PHASES] = {
        1u << SLICE_REDUCE | 1u << SLICE_WAIT, 1u << SLICE_PUT | 1u << SLICE_WAIT, 0, 0, 0, 1u << SLICE_WAIT};
    bool is_gemv = plan->shape.compute == COMPUTE_GEMV, is_step = plan->shape.compute == COMPUTE_STEP,
         waits = s->wait_count != 0;

    if (s->kind >= 32 || !((is_step ? step_kinds : kinds)[phase] >> s->kind & 1) || !gpu_prepared_staging_fits(plan, s) ||
        (waits && phase == GPU_PHASE_FREE) || (s->kind == SLICE_REDUCE && !is_gemv && !is_step))
        return false;
    if (waits &&
        (s->wait_first >= GPU_FLAGS || (uint64_t)(s->wait_count - 1) * s->wait_stride >= (uint64_t)GPU_FLAGS - s->wait_first))
        return false;
    if (s->group != SLICE_NO_GROUP && s->group >= plan->ngroups)
        return false;
    if (s->kind == SLICE_WAIT)
        return true; /* a WAIT slice has no tile */
    if (is_step)
        return s->rows == 1 && s->cols && gpu_prepared_columns_fit(plan, s);
    return s->rows && s->cols && (is_gemv ? gpu_prepared_gemv_fits(plan, s) : gpu_prepared_gemm_fits(plan, s));
}

static inline int gpu_prepared_slices_check(const struct gpu_prepared_plan *plan, struct error *e)
{
    if (plan->shape.compute == COMPUTE_NONE)
        return 0; /* its kernel uses no slices */
    for (int phase = 0; phase < GPU_PHASES; phase++)
        for (uint32_t i = plan->first[phase]; i < plan->first[phase + 1]; i++) {
            const struct slice *s = &gpu_prepared_slices(plan)[i];
            if (!gpu_prepared_slice_fits(plan, (enum gpu_phase)phase, s))
                return error_set(e, -EINVAL,
                                 "plan: slice %u, in phase %d: kind %u to rank %u, rows %u+%u, columns %u+%u, to %u and %u, "
                                 "group %u, waits for %u flags from %u on: not in an operator of %lld x %lld with %u groups",
                                 i, phase, s->kind, s->dst, s->row, s->rows, s->col, s->cols, s->dst_row, s->dst_col, s->group,
                                 s->wait_count, s->wait_first, (long long)plan->shape.m, (long long)plan->shape.n,
                                 plan->ngroups);
        }
    return 0;
}

/* Returns 0, or with the reason -EPROTO (a plan for another plug-in) or -EINVAL. */
static inline int gpu_prepared_plan_check(const struct gpu_prepared_plan *plan, size_t bytes, struct error *e)
{
    int status = gpu_prepared_head_check(plan, bytes, e);

    if (!status)
        status = gpu_prepared_shape_check(plan, e);
    if (!status)
        status = gpu_prepared_slots_check(plan, e);
    if (!status)
        status = gpu_prepared_parts_check(plan, e);
    if (!status)
        status = gpu_prepared_groups_check(plan, e);
    return status ? status : gpu_prepared_slices_check(plan, e);
}

/* The end, in bytes, of `rows` rows of `cols` elements that begin at byte `at`; UINT64_MAX: more than any memory has. */
static inline uint64_t gpu_prepared_extent(const struct gpu_prepared_plan *plan, uint64_t at, uint64_t rows, int64_t stride,
                                           uint64_t cols)
{
    if (!rows || !cols)
        return 0;
    if (rows > INT32_MAX || cols > INT32_MAX || (rows > 1 && (stride < 0 || stride > INT32_MAX)) || at > UINT64_MAX / 2)
        return UINT64_MAX;
    uint64_t elements = (rows > 1 ? (rows - 1) * (uint64_t)stride : 0) + cols;
    return elements > UINT64_MAX / 16 ? UINT64_MAX : at + elements * gpu_prepared_element_bytes(plan);
}

/* Whether the kernels store sums into that rank's result. */
static inline bool gpu_prepared_sum_reaches(const struct gpu_prepared_plan *plan, uint32_t rank)
{
    bool reaches = rank == plan->rank;

    for (uint32_t i = 0; i < plan->first[GPU_PHASES] && !reaches; i++)
        reaches = gpu_prepared_slices(plan)[i].kind == SLICE_REDUCE && gpu_prepared_slices(plan)[i].dst == SLICE_DST_ALL;
    return reaches;
}

/* The end, in bytes, of what the plan's kernels may store into a rank's result. The plan has been checked. */
static inline uint64_t gpu_prepared_result_bytes(const struct gpu_prepared_plan *plan, uint32_t rank)
{
    const struct gpu_output *out = &plan->out[rank];
    uint64_t rows = 0, cols = 0;

    if (plan->shape.compute == COMPUTE_STEP) /* client/stream/bound_step.c */
        return 0;
    if (plan->shape.compute == COMPUTE_NONE || (plan->shape.compute == COMPUTE_GEMV && !gpu_prepared_sum_reaches(plan, rank)))
        return 0;
    if (plan->shape.compute == COMPUTE_GEMV)
        return gpu_prepared_extent(plan, out->data, (uint64_t)plan->shape.m, out->stride[0], (uint64_t)plan->shape.n);
    for (uint32_t i = 0; i < plan->first[GPU_PHASE_WAIT]; i++) {
        const struct slice *s = &gpu_prepared_slices(plan)[i];
        if (s->dst != rank)
            continue;
        rows = (uint64_t)s->dst_row + s->rows > rows ? (uint64_t)s->dst_row + s->rows : rows;
        cols = (uint64_t)s->dst_col + s->cols > cols ? (uint64_t)s->dst_col + s->cols : cols;
    }
    return gpu_prepared_extent(plan, out->data, rows, out->stride[0], cols);
}

/* Checks that all memory is mapped into which a plan's kernels store. The plan itself has been checked. */
static inline int gpu_prepared_sizes_check(const struct gpu_prepared_plan *plan, const struct gpu_prepared_sizes *sizes,
                                           struct error *e)
{
    uint64_t packets = plan->slots_at + 2 * plan->slots_bytes;

    for (uint32_t r = 0; r < plan->shape.nranks; r++) {
        uint64_t area = r == plan->rank && plan->staging_bytes ? plan->staging_at + plan->staging_bytes : packets;
        uint64_t result = gpu_prepared_result_bytes(plan, r);
        if (sizes->areas[r] < area || sizes->results[r] < result)
            return error_set(
                e, -EINVAL, "plan: rank %u has an area of %llu bytes and a result of %llu: its kernels would use %llu and %llu",
                r, (unsigned long long)sizes->areas[r], (unsigned long long)sizes->results[r], (unsigned long long)area,
                (unsigned long long)result);
    }
    return 0;
}

#ifdef __cplusplus
}
#endif
#endif
