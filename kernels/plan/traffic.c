/* SPDX-License-Identifier: MIT
 *
 * traffic.c - the bytes that the slices of a plan read and write in memory, of products whose sums are added up.
 *
 * What is counted is what a slice has to load and store, each byte once: factors that a rank multiplies, once whatever the tiles; partial sums
 * where they are stored and where they are added; results. What caches spare is not counted, nor what the BLAS copies for itself.
 */
#include "kernels/plan/epilogue.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/program.h"

#define PARTIAL_BYTES 4u         /* of a partial sum, f32 */
#define STAMPED_PARTIAL_BYTES 8u /* as a packet */

static unsigned destinations(const struct plan *plan, unsigned dst)
{
    unsigned n = 0;

    for (int r = 0; r < plan->nranks; r++)
        n += plan_reaches(plan, dst, r);
    return n;
}

/* The tensors of an epilogue, of the result's shape, that are read with each element: before sums are rounded, or with whole rows. */
static unsigned stages_read(const struct epilogue *p, bool rows)
{
    const bool gate = epilogue_has(p, STAGE_GATE), late = epilogue_rounds_first(p);

    return (!rows && epilogue_has(p, STAGE_RESIDUAL)) + (gate && late == rows);
}

static void reduce_count(const struct problem *problem, const struct plan *plan, const struct slice *s, uint64_t n,
                         uint64_t size, struct traffic *out)
{
    const bool packets = plan->transport == TRANSPORT_PACKETS;
    const uint64_t terms = packets ? (uint64_t)plan->nranks : plan->added_tiles ? 1 : s->wait_count;

    out->read +=
        terms * n * (packets ? STAMPED_PARTIAL_BYTES : PARTIAL_BYTES) + stages_read(&problem->epilogue, false) * n * size;
    out->written += destinations(plan, s->dst) * n * size;
}

static void rows_count(const struct epilogue *p, uint64_t n, uint64_t size, struct traffic *out)
{
    out->read += (1 + stages_read(p, true)) * n * size;
    out->written += (1 + epilogue_has(p, STAGE_SUM)) * n * size + (epilogue_has(p, STAGE_QUANTIZED) ? n : 0);
}

static void slice_count(const struct problem *problem, const struct plan *plan, const struct slice *s, struct traffic *out)
{
    const uint64_t n = (uint64_t)s->rows * s->cols, size = dtype_size(problem->dtype);
    const uint64_t put =
        destinations(plan, s->dst) * n * (plan->transport == TRANSPORT_PACKETS ? STAMPED_PARTIAL_BYTES : PARTIAL_BYTES);

    switch (s->kind) {
    case SLICE_COMPUTE:
        out->written += n * PARTIAL_BYTES;
        break;
    case SLICE_COMPUTE_PUT: /* whoever is the first does not read what is there: the owner, it is said here */
        out->read += plan->added_tiles && s->dst != plan->rank ? n * PARTIAL_BYTES : 0;
        out->written += put;
        break;
    case SLICE_PUT:
        out->read += n * PARTIAL_BYTES;
        out->written += put;
        break;
    case SLICE_REDUCE_NODE:
        out->read += s->wait_count * n * PARTIAL_BYTES;
        out->written += n * PARTIAL_BYTES;
        break;
    case SLICE_REDUCE:
        reduce_count(problem, plan, s, n, size, out);
        break;
    case SLICE_FORWARD:
        out->read += n * size;
        out->written += destinations(plan, s->dst) * n * size;
        break;
    case SLICE_ROWS:
        rows_count(&problem->epilogue, n, size, out);
        break;
    default:
        break;
    }
}

bool plan_traffic(const struct problem *problem, const struct plan *plan, struct traffic *out)
{
    const enum compute_kind compute = (enum compute_kind)op_spec(problem->op)->compute;
    const uint64_t k = (uint64_t)problem->rank_dim[DIM_K][plan->rank];
    bool multiplies = false;

    *out = (struct traffic){0};
    if ((compute != COMPUTE_GEMM && compute != COMPUTE_GEMV) || op_spec(problem->op)->exchange != EXCHANGE_REDUCE ||
        !plan->nslices)
        return false;
    for (uint32_t i = 0; i < plan->nslices; i++) {
        multiplies |= plan->slices[i].kind == SLICE_COMPUTE || plan->slices[i].kind == SLICE_COMPUTE_PUT;
        slice_count(problem, plan, &plan->slices[i], out);
    }
    if (multiplies)
        out->factors = (uint64_t)(problem->dim[DIM_M] + problem->dim[DIM_N]) * k * dtype_size(problem->dtype);
    return true;
}
