/* SPDX-License-Identifier: MIT
 *
 * product.c - a program's products, and its rows of tables, are the operators that everybody calls.
 */
#include "client/program/program.h"

static int64_t begin_of(const struct fcc_program *p, int64_t n, int rank)
{
    return slice_begin(n, p->nranks, rank);
}

/* Rows of each index of the first dimension: those of the dimensions up to the last. */
static int64_t rows_each(const struct value *v)
{
    int64_t n = 1;

    for (int d = 1; d < v->ndim - 1; d++)
        n *= v->shape[d];
    return n;
}

/* Rows that rank r has, if the first dimension is spread over the ranks. */
static int64_t rows_of(const struct fcc_program *p, const struct value *v, int r)
{
    return (begin_of(p, v->shape[0], r + 1) - begin_of(p, v->shape[0], r)) * rows_each(v);
}

/* This rank's part of a matrix, of which `place` has as much as `source` says: rows that are sliced are fewer, and so are columns. */
static struct fcc_tensor matrix_at(const struct fcc_program *p, const struct step_place *place, const struct value *v,
                                   const struct value *source)
{
    const int rank = p->rank, last = v->ndim - 1;
    const bool whole = source->layout != LAYOUT_SLICED, rows = v->layout == LAYOUT_SLICED && v->sliced == 0,
               columns = v->layout == LAYOUT_SLICED && v->sliced == last;
    const int64_t m = rows ? rows_of(p, v, rank) : v->shape[0] * rows_each(v),
                  n = columns ? begin_of(p, v->shape[last], rank + 1) - begin_of(p, v->shape[last], rank) : v->shape[last];
    struct fcc_tensor t = program_tensor_at(p, place);

    t = fcc_tensor_2d(t.buffer, t.offset, (enum fcc_dtype)t.dtype, m, n);
    if (!whole || v->layout != LAYOUT_SLICED)
        return t;
    t.stride[0] = source->shape[last];
    t.stride[1] = 1;
    t.offset += (size_t)(rows ? begin_of(p, v->shape[0], rank) * rows_each(v) * source->shape[last]
                              : begin_of(p, v->shape[last], rank)) *
                fcc_dtype_size((enum fcc_dtype)t.dtype);
    return t;
}

static struct fcc_tensor matrix_of(const struct fcc_program *p, const struct step_place *place, int32_t node)
{
    const struct program *q = p->program;
    int32_t source = node;

    while (q->nodes[source].op == OP_AS_SLICE || q->nodes[source].op == OP_AS_LOCAL)
        source = q->nodes[source].arg[0];
    return matrix_at(p, place, &q->nodes[node].value, &q->nodes[source].value);
}

static const struct value *value_at(const struct fcc_program *p, const struct step_place *place)
{
    return place->kind == PLACE_PARAMETER ? &p->program->parameters[place->index].value
                                          : &p->steps.temporaries[place->index].value;
}

/* Of columns that are sliced, those of this rank. */
static struct fcc_tensor bias_of(const struct fcc_program *p, const struct step_place *place, const struct value *c)
{
    struct fcc_tensor t = program_tensor_at(p, place);
    const int64_t begin = begin_of(p, c->shape[c->ndim - 1], p->rank), end = begin_of(p, c->shape[c->ndim - 1], p->rank + 1);

    if (place->kind == PLACE_NONE || c->layout != LAYOUT_SLICED || c->sliced != c->ndim - 1 ||
        value_at(p, place)->layout == LAYOUT_SLICED)
        return t;
    return fcc_tensor_1d(t.buffer, t.offset + (size_t)begin * fcc_dtype_size((enum fcc_dtype)t.dtype), (enum fcc_dtype)t.dtype,
                         end - begin);
}

/* What is added to the elements of `c` that this rank makes. */
static void epilogue_make(const struct fcc_program *p, const struct program_step *step, struct product_call *out)
{
    const struct value *c = &p->program->nodes[step->node].value;
    struct fcc_epilogue *e = &out->epilogue;

    e->bias = bias_of(p, &step->t[0], c);
    if (step->residual >= 0)
        e->residual = matrix_at(p, &step->t[1], c, value_at(p, &step->t[1]));
    e->activation = step->activation == OP_RELU   ? FCC_RELU
                    : step->activation == OP_GELU ? FCC_GELU
                    : step->activation == OP_SILU ? FCC_SILU
                                                  : FCC_NO_ACTIVATION;
    out->has_epilogue = e->bias.buffer || e->residual.buffer || e->activation;
}

void product_call_make(const struct fcc_program *p, const struct program_step *step, struct product_call *out)
{
    const struct value *v = &p->program->nodes[step->node].value;
    const struct fcc_tensor a = matrix_of(p, &step->in, step->a), b = matrix_of(p, &step->b, step->second),
                            c = matrix_at(p, &step->out, v, v);

    const uint32_t schedule = step->overlaps ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_AUTO;

    *out = (struct product_call){.has_epilogue = false};
    switch (step->product) {
    case PRODUCT_THIN:
        out->args.thin = (struct fcc_gemv_all_reduce_args){.x = a, .w = b, .y = c, .schedule = schedule};
        break;
    case PRODUCT_SCATTER:
        for (int r = 0; r < p->nranks; r++)
            out->rows[r] = rows_of(p, v, r);
        out->args.scatter =
            (struct fcc_gemm_reduce_scatter_args){.a = a, .b = b, .rows = out->rows, .c = c, .schedule = schedule};
        break;
    case PRODUCT_ALONE: /* each rank sends itself all rows */
        out->rows[p->rank] = a.shape[0];
        out->args.alone = (struct fcc_gemm_all_to_all_args){.a = a, .b = b, .send_rows = out->rows, .c = c};
        break;
    default:
        out->args.reduce = (struct fcc_gemm_all_reduce_args){.a = a, .b = b, .c = c, .schedule = schedule};
        break;
    }
    epilogue_make(p, step, out);
}

int product_run(struct fcc_program *p, const struct program_step *step)
{
    struct product_call call;

    product_call_make(p, step, &call);
    const struct fcc_epilogue *e = call.has_epilogue ? &call.epilogue : NULL;
    switch (step->product) {
    case PRODUCT_THIN:
        return e ? fcc_gemv_all_reduce_epilogue(p->group, &call.args.thin, e) : fcc_gemv_all_reduce(p->group, &call.args.thin);
    case PRODUCT_SCATTER:
        return e ? fcc_gemm_reduce_scatter_epilogue(p->group, &call.args.scatter, e)
                 : fcc_gemm_reduce_scatter(p->group, &call.args.scatter);
    case PRODUCT_ALONE:
        return e ? fcc_gemm_all_to_all_epilogue(p->group, &call.args.alone, e)
                 : fcc_gemm_all_to_all(p->group, &call.args.alone);
    default:
        return e ? fcc_gemm_all_reduce_epilogue(p->group, &call.args.reduce, e)
                 : fcc_gemm_all_reduce(p->group, &call.args.reduce);
    }
}

/* ---- rows of tables ---- */

void lookup_call_make(const struct fcc_program *p, const struct program_step *step, struct lookup_call *out)
{
    const struct node *n = &p->program->nodes[step->a];
    const struct value *tables = &p->program->nodes[n->arg[0]].value;
    const int64_t own = tables->shape[0] / p->nranks;
    const struct fcc_tensor t = program_tensor_at(p, &step->in), y = program_tensor_at(p, &step->out);
    struct fcc_embedding_all_to_all_args *args = &out->args;

    for (int64_t i = 0; i < own && i < FCC_MAX_TABLES; i++)
        out->rows[i] = tables->shape[1];
    for (int r = 0; r < p->nranks; r++)
        out->samples[r] = begin_of(p, n->value.shape[0], r + 1) - begin_of(p, n->value.shape[0], r);
    *args = (struct fcc_embedding_all_to_all_args){
        .tables = fcc_tensor_2d(t.buffer, t.offset, (enum fcc_dtype)t.dtype, own * tables->shape[1], tables->shape[2]),
        .table_rows = out->rows,
        .num_tables = (int32_t)own,
        .pooling = n->op == OP_EMBEDDING_MEAN ? FCC_POOLING_MEAN : FCC_POOLING_SUM,
        .indices = program_tensor_at(p, &step->b),
        .offsets = program_tensor_at(p, &step->t[0]),
        .batch = n->value.shape[0],
        .batch_split = out->samples,
        .out = y,
        .schedule = step->overlaps ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_AUTO};
    args->out.ndim = 3;
    args->out.shape[0] = out->samples[p->rank];
    args->out.shape[1] = n->value.shape[1];
    args->out.shape[2] = n->value.shape[2];
}

int lookup_run(struct fcc_program *p, const struct program_step *step)
{
    struct lookup_call call;

    lookup_call_make(p, step, &call);
    return fcc_embedding_all_to_all(p->group, &call.args);
}
