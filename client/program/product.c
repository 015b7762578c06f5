/* SPDX-License-Identifier: MIT
 *
 * product.c - a program's products, and its rows of tables, are the operators that everybody calls.
 */
#include "client/program/program.h"

#include <errno.h>
#include <stdlib.h>

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

/* ---- calls: waited for, or, with a stream's address, enqueued ---- */

/* The buffers of a call whose tensors have become addresses. */
struct kept {
    fcc_buffer *buffers[6];
    int n;
};

/* Memory of a buffer as any other: a call whose tensors lie anywhere is launched by this process. */
static void tensor_anywhere(struct fcc_tensor *t, struct kept *kept)
{
    if (!t->buffer || t->buffer == FCC_ADDRESS)
        return;
    kept->buffers[kept->n++] = t->buffer;
    t->offset += (uint64_t)(uintptr_t)fcc_buffer_data(t->buffer);
    t->buffer = FCC_ADDRESS;
}

static void tensors_anywhere(struct fcc_tensor *a, struct fcc_tensor *b, struct fcc_tensor *c, struct kept *kept)
{
    tensor_anywhere(a, kept);
    tensor_anywhere(b, kept);
    tensor_anywhere(c, kept);
}

/* The call has been captured: its graph keeps the buffers. */
static void kept_capture(const struct fcc_program *p, const struct kept *kept)
{
    for (int i = 0; i < kept->n; i++)
        buffer_capture(p->group->context, kept->buffers[i], p->group->graphs);
}

bool product_is_in_pieces(const struct program_step *step)
{
    return step->product == PRODUCT_REDUCE || step->product == PRODUCT_SCATTER;
}

#define PRODUCT(name, member)                                                                                                  \
    (on ? (e ? fcc_##name##_epilogue_enqueue(p->group, &call->args.member, e, *on, NULL)                                       \
             : fcc_##name##_enqueue(p->group, &call->args.member, *on, NULL))                                                  \
        : (e ? fcc_##name##_epilogue(p->group, &call->args.member, e) : fcc_##name(p->group, &call->args.member)))

static int product_call(struct fcc_program *p, const struct program_step *step, struct product_call *call, void *const *on)
{
    const struct fcc_epilogue *e = call->has_epilogue ? &call->epilogue : NULL;

    switch (step->product) {
    case PRODUCT_THIN:
        return PRODUCT(gemv_all_reduce, thin);
    case PRODUCT_SCATTER:
        return PRODUCT(gemm_reduce_scatter, scatter);
    case PRODUCT_ALONE:
        return PRODUCT(gemm_all_to_all, alone);
    default:
        return PRODUCT(gemm_all_reduce, reduce);
    }
}

static void product_anywhere(const struct program_step *step, struct product_call *call, struct kept *kept)
{
    tensor_anywhere(&call->epilogue.bias, kept);
    tensor_anywhere(&call->epilogue.residual, kept);
    switch (step->product) {
    case PRODUCT_THIN:
        tensors_anywhere(&call->args.thin.x, &call->args.thin.w, &call->args.thin.y, kept);
        break;
    case PRODUCT_SCATTER:
        tensors_anywhere(&call->args.scatter.a, &call->args.scatter.b, &call->args.scatter.c, kept);
        break;
    case PRODUCT_ALONE:
        tensors_anywhere(&call->args.alone.a, &call->args.alone.b, &call->args.alone.c, kept);
        break;
    default:
        tensors_anywhere(&call->args.reduce.a, &call->args.reduce.b, &call->args.reduce.c, kept);
        break;
    }
}

/* ---- results of guarded programs ---- */

/* The vendor's library multiplies whether the run is one or not. So a product in pieces that stores into a tensor of the caller's is made in memory of the
 * program's own, and goes from there to its place by a collective, which is none where the product was none: each rank sends itself all elements. */
static bool needs_stage(const struct fcc_program *p, const struct program_step *step)
{
    return step->kind == STEP_OF_PRODUCT && product_is_in_pieces(step) &&
           (step->out.kind == PLACE_PARAMETER || p->steps.temporaries[step->out.index].stands_for);
}

static struct fcc_tensor *result_of(const struct program_step *step, struct product_call *call)
{
    return step->product == PRODUCT_SCATTER ? &call->args.scatter.c : &call->args.reduce.c;
}

int products_stage(struct fcc_program *p)
{
    struct product_call call;
    int status = 0;

    if (!p->staged && !(p->staged = calloc(p->steps.nsteps + 1, sizeof(fcc_buffer *))))
        return last_error_set(-ENOMEM, "out of memory");
    for (uint32_t i = 0; i < p->steps.nsteps && status == 0; i++) {
        const struct program_step *step = &p->steps.steps[i];
        if (p->staged[i] || !needs_stage(p, step))
            continue;
        product_call_make(p, step, &call);
        const struct fcc_tensor *c = result_of(step, &call);
        const size_t bytes = (size_t)(c->shape[0] * c->shape[1]) * fcc_dtype_size((enum fcc_dtype)c->dtype);
        status = fcc_buffer_alloc(p->group, FCC_BUFFER_LOCAL, bytes + !bytes, &p->staged[i]);
    }
    return status;
}

/* from, to: dense matrices. */
static int staged_move(const struct fcc_program *p, const struct fcc_tensor *from, const struct fcc_tensor *to, void *const *on)
{
    const int64_t n = to->shape[0] * to->shape[1];
    const enum fcc_dtype dtype = (enum fcc_dtype)to->dtype;
    int64_t counts[FCC_MAX_RANKS] = {0};

    counts[p->rank] = n;
    return fcc_all_to_all_enqueue(p->group,
                                  &(struct fcc_all_to_all_args){.in = fcc_tensor_1d(from->buffer, from->offset, dtype, n),
                                                                .send_counts = counts,
                                                                .out = fcc_tensor_1d(to->buffer, to->offset, dtype, n)},
                                  *on, NULL);
}

int product_run(struct fcc_program *p, const struct program_step *step, void *const *on, bool captures)
{
    fcc_buffer *staged = on && p->is_guarded && p->staged ? p->staged[step - p->steps.steps] : NULL;
    struct product_call call;
    struct kept kept = {.n = 0};
    struct fcc_tensor to = {.buffer = NULL};

    product_call_make(p, step, &call);
    if (staged) {
        struct fcc_tensor *c = result_of(step, &call);
        to = *c;
        *c = fcc_tensor_2d(staged, 0, (enum fcc_dtype)to.dtype, to.shape[0], to.shape[1]);
        tensor_anywhere(&to, &kept);
    }
    if (on)
        product_anywhere(step, &call, &kept);
    int status = product_call(p, step, &call, on);
    if (status == 0 && staged)
        status = staged_move(p, result_of(step, &call), &to, on);
    if (status == 0 && captures)
        kept_capture(p, &kept);
    return status;
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

int lookup_run(struct fcc_program *p, const struct program_step *step, void *const *on, bool captures)
{
    struct lookup_call call;
    struct kept kept = {.n = 0};

    lookup_call_make(p, step, &call);
    if (!on)
        return fcc_embedding_all_to_all(p->group, &call.args);
    tensor_anywhere(&call.args.out, &kept);
    tensors_anywhere(&call.args.tables, &call.args.indices, &call.args.offsets, &kept);
    const int status = fcc_embedding_all_to_all_enqueue(p->group, &call.args, *on, NULL);
    if (status == 0 && captures)
        kept_capture(p, &kept);
    return status;
}
