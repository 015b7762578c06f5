/* SPDX-License-Identifier: MIT
 *
 * cost_plan.c - what a plan's rank does, counted from its slices.
 *
 * A tile's share of a rank's flops and of the bytes of its factors is its share of the elements that the rank computes.
 */
#include "kernels/plan/compute/gemm_tiles.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/cost.h"
#include "kernels/plan/exchange/reduce.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/program.h"

static double elements_of(const struct slice *s)
{
    return (double)s->rows * (double)s->cols;
}

static bool computes(const struct slice *s)
{
    return s->kind == SLICE_COMPUTE_PUT || s->kind == SLICE_COMPUTE;
}

/* Bytes of an element of what is put, or added up, and of the result. */
static void sizes_set(const struct problem *problem, const struct plan *plan, struct slice_costs *c)
{
    const struct op_spec *op = op_spec(problem->op);
    const double unit = op_is_vector(problem->op) ? (double)vector_unit(problem) : 1;
    const double vector = op->compute == COMPUTE_BAG ? (double)problem->dim[DIM_VECTOR] : 1;

    c->unit = unit;
    c->result = (double)dtype_size(problem->dtype) * unit * vector;
    c->partial = c->result;
    if (op->exchange == EXCHANGE_REDUCE) {
        const struct reduce_layout *l = plan->layout;
        c->packets = plan->transport == TRANSPORT_PACKETS;
        c->partial = c->packets ? (double)PACKET_BYTES : l ? (double)l->column_bytes : (double)sizeof(float);
        c->direct = l && l->direct;
    }
    if (op->exchange == EXCHANGE_GATHER)
        c->rows_bytes = (double)problem->dim[DIM_FACTOR_BYTES];
}

void slice_costs_begin(const struct problem *problem, const struct plan *plan, struct slice_costs *out)
{
    const struct work work = plan_work(problem, plan->rank);
    const bool reduces = op_spec(problem->op)->exchange == EXCHANGE_REDUCE;
    double elements = 0;

    *out = (struct slice_costs){.problem = problem, .plan = plan};
    sizes_set(problem, plan, out);
    for (uint32_t i = 0; i < plan->nslices; i++)
        elements += computes(&plan->slices[i]) ? elements_of(&plan->slices[i]) : 0;
    if (op_is_vector(problem->op) || elements <= 0)
        return;
    /* what is stored is counted with the slice that stores it */
    const double stored = elements * (out->result + (reduces ? 2.0 * sizeof(float) : 0));
    out->flops =
        (work.flops - (reduces ? elements : 0)) / elements; /* additions of partial sums are counted with the slices that add */
    out->read = work.bytes > stored ? (work.bytes - stored) / elements : 0;
    out->reads_tables = op_spec(problem->op)->compute == COMPUTE_BAG;
}

/* Vectors of a bag lie by themselves; partial sums of products, and a piece of a collective's vector, in one piece; other tiles have rows. */
double slice_rows(const struct slice_costs *c, const struct slice *s)
{
    const struct op_spec *op = op_spec(c->problem->op);

    if (op->compute == COMPUTE_BAG)
        return elements_of(s);
    if (op_is_vector(c->problem->op) ||
        (op->exchange == EXCHANGE_REDUCE && s->kind != SLICE_REDUCE && s->kind != SLICE_FORWARD))
        return 1;
    return s->rows;
}

struct slice_cost slice_cost(const struct slice_costs *c, const struct slice *s)
{
    const double n = elements_of(s), terms = c->packets ? (double)c->plan->nranks : (double)s->wait_count;
    const bool is_vector = op_is_vector(c->problem->op);
    struct slice_cost out = {.flops = 0};

    switch (s->kind) {
    case SLICE_COMPUTE_PUT:
    case SLICE_COMPUTE:
        out.flops = n * c->flops;
        out.is_random = op_spec(c->problem->op)->compute == COMPUTE_BAG;
        out.read = n * (is_vector ? c->partial : c->read);
        out.payload = n * (c->rows_bytes > 0 ? c->result : c->partial);
        break;
    case SLICE_PUT:
        out.read = out.payload = n * (c->rows_bytes > 0 ? c->rows_bytes : c->partial);
        break;
    case SLICE_REDUCE:
        if (c->direct)
            out.pulled = n * c->result;
        out.read = n * (c->direct ? c->result : c->partial * terms);
        out.fresh = !c->direct && terms > 1 ? n * c->partial * (terms - 1) : 0;
        *(is_vector ? &out.added : &out.flops) = n * c->unit * (c->direct ? (double)c->plan->nranks : terms);
        out.payload = n * c->result;
        break;
    case SLICE_REDUCE_NODE:
        out.read = n * c->partial * s->wait_count;
        out.fresh = s->wait_count > 1 ? n * c->partial * (s->wait_count - 1) : 0;
        *(is_vector ? &out.added : &out.flops) = n * c->unit * s->wait_count;
        out.payload = n * c->partial;
        break;
    case SLICE_FORWARD:
        out.read = out.payload = n * (c->rows_bytes > 0 ? c->rows_bytes : c->result);
        break;
    case SLICE_ROWS:
        out.read = out.payload = n * c->result;
        break;
    default: /* WAIT, TAKE */
        break;
    }
    return out;
}

/* The computing slices, and the tiles that they are: those that follow each other with the same columns share one that has room for all their rows. */
struct tile_count {
    uint32_t slices, tiles, rows, cols; /* rows, cols: of the largest tile */
};

static struct tile_count tiles_count(const struct plan *plan)
{
    struct tile_count c = {.slices = 0};
    const struct slice *last = NULL;
    uint32_t high = 0; /* rows of the tile that `last` is in */

    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        if (!computes(s))
            continue;
        const bool joins =
            last && s->col == last->col && s->row == last->row + last->rows && high + s->rows <= GEMM_ROWS_TOGETHER;
        high = joins ? high + s->rows : s->rows;
        c.slices++;
        c.tiles += !joins;
        c.rows = high > c.rows ? high : c.rows;
        c.cols = s->cols > c.cols ? s->cols : c.cols;
        last = s;
    }
    return c;
}

struct cost_tile cost_tile(const struct problem *problem, const struct plan *plan, uint32_t workgroups)
{
    const struct tile_count c = tiles_count(plan);
    const double k = (double)problem->rank_dim[DIM_K][plan->rank], size = (double)dtype_size(problem->dtype);

    if (op_spec(problem->op)->compute != COMPUTE_GEMM || plan->schedule.target != PLAN_GPU || !c.slices || !(k > 0) ||
        !workgroups)
        return (struct cost_tile){.flops = 0};
    const uint32_t parts = gemm_split_parts(c.tiles, c.cols, workgroups),
                   rounds = (c.tiles * parts + workgroups - 1) / workgroups,
                   slice_rounds = (c.slices + workgroups - 1) / workgroups;
    const double high = c.rows <= GEMM_ROWS_LOW ? GEMM_ROWS_LOW : GEMM_ROWS_TOGETHER, each = k / parts;
    return (struct cost_tile){.flops = 2 * high * c.cols * each,
                              .loaded =
                                  ((double)c.rows + c.cols) * each * size, /* rows that a tile has no use for are not loaded */
                              .sums = high * c.cols * sizeof(float) * (parts - 1) / parts,
                              .rounds = (double)rounds / slice_rounds};
}

/* Ranks other than the plan's own that a slice stores at. */
static unsigned others(const struct plan *plan, unsigned dst)
{
    unsigned n = 0;

    if (dst == SLICE_DST_ALL)
        return (unsigned)plan->nranks - 1;
    if (!(dst & SLICE_DST_SET))
        return dst != (unsigned)plan->rank;
    for (size_t i = 0; i < ((size_t)plan->nranks + 63) / 64; i++)
        n += (unsigned)__builtin_popcountll(plan->sets[dst - SLICE_DST_SET][i]);
    return n - plan_reaches(plan, dst, plan->rank);
}

/* What a slice puts that the plan itself has computed is counted where it is computed. */
double cost_touched(const struct slice_costs *c)
{
    const struct plan *plan = c->plan;
    const bool is_vector = op_is_vector(c->problem->op);
    bool any = false;
    double sum = 0;

    for (uint32_t i = 0; i < plan->nslices && !is_vector; i++)
        any |= computes(&plan->slices[i]);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        const struct slice_cost cost = slice_cost(c, s);
        const bool reads = s->kind != SLICE_PUT || !any;
        sum += (reads ? cost.read : 0) + cost.pulled * (plan->nranks - 1) +
               cost.payload * (slice_puts(s->kind) ? others(plan, s->dst) + plan_reaches(plan, s->dst, plan->rank) : 1);
    }
    return sum;
}

struct cost_work cost_plan(const struct problem *problem, const struct plan *plan)
{
    struct cost_work out = {.operators = 1};
    struct slice_costs costs;
    uint32_t sends = 0;

    slice_costs_begin(problem, plan, &costs);
    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        const unsigned ranks = slice_puts(s->kind) ? others(plan, s->dst) : 0;
        const struct slice_cost cost = slice_cost(&costs, s);
        const bool keeps = slice_puts(s->kind) ? plan_reaches(plan, s->dst, plan->rank) : true;
        out.flops += cost.flops;
        *(cost.flops > 0 ? &out.worked_bytes : &out.bytes) += cost.read + (keeps ? cost.payload : 0);
        out.link_bytes += cost.payload * ranks + cost.pulled * (plan->nranks - 1);
        sends += ranks > 0;
    }
    out.pieces = plan->schedule.kind == FCC_SCHEDULE_FUSED ? sends : 1;
    return out;
}

/* x^n by products alone, which are the same everywhere. x: from 0 to 1. */
static double power(double x, uint64_t n)
{
    double out = 1;

    for (; n; n >>= 1, x *= x)
        out *= n & 1 ? x : 1;
    return out;
}

struct cost_tables cost_tables(const struct problem *problem, int rank, double table_rows)
{
    const double tables = (double)problem->rank_dim[DIM_N][rank];
    const double reads = tables > 0 ? (double)problem->rank_dim[DIM_K][rank] / tables : 0;

    if (op_spec(problem->op)->compute != COMPUTE_BAG || !(reads >= 1) || !(table_rows >= 1))
        return (struct cost_tables){.again = 0};
    /* a row is not among so many reads with this probability */
    const double rows = table_rows * (1 - power(1 - 1 / table_rows, (uint64_t)reads));
    return (struct cost_tables){.again = 1 - rows / reads,
                                .table = rows * (double)problem->dim[DIM_VECTOR] * (double)dtype_size(problem->dtype)};
}
