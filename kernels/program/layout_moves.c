/* SPDX-License-Identifier: MIT
 *
 * layout_moves.c - the dtype, shape and layout of what is not made element by element: products, rows of tables, views and exchanges.
 */
#include <inttypes.h>

#include "kernels/program/inside.h"

/* Of T tables, which are spread over the ranks, the rows of each bag of integers, added up: [B, T, D], of which each rank has its tables. A rank's bag
 * (t, s) is indices[offsets[t B + s]] up to, not including, indices[offsets[t B + s + 1]]. */
int lookup_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *tables = &p->nodes[n->arg[0]].value, *indices = &p->nodes[n->arg[1]].value,
                       *offsets = &p->nodes[n->arg[2]].value;
    char text[160];

    if (tensor_needed(p, n, 0, e))
        return e->status;
    if (tables->ndim != 3 || tables->layout != LAYOUT_SLICED || tables->sliced != 0 || tables->shape[0] % p->nranks)
        return program_fail(e, n->line, n->column,
                            "%s: argument 1 is %s: allowed are tables [T, rows, D] sliced(0), as many on each of %d ranks",
                            node_spec(n)->name, value_text(tables, text, sizeof(text)), p->nranks);
    for (int a = 1; a < 3; a++) {
        const struct value *v = &p->nodes[n->arg[a]].value;
        if (!dtype_is_integer(v->dtype) || v->ndim != 1 || v->layout != LAYOUT_LOCAL)
            return program_fail(e, n->line, n->column, "%s: argument %d is %s: allowed are %s, i32 or i64 [N] local",
                                node_spec(n)->name, a + 1, value_text(v, text, sizeof(text)), a == 1 ? "indices" : "offsets");
    }
    const int64_t own = tables->shape[0] / p->nranks, bags = offsets->shape[0] - 1;
    if (indices->dtype != offsets->dtype)
        return program_fail(e, n->line, n->column, "%s: indices are %s, offsets %s: allowed are equal dtypes",
                            node_spec(n)->name, value_dtype_name(indices->dtype), value_dtype_name(offsets->dtype));
    if (own < 1 || own > FCC_MAX_TABLES || tables->shape[2] < 1 || bags < 0 || bags % own)
        return program_fail(
            e, n->line, n->column,
            "%s: %" PRId64 " offsets, %" PRId64 " tables on each rank, of %" PRId64
            " columns: allowed are 1 to %d tables, 1 and more columns, and for each table as many bags, and one "
            "offset more",
            node_spec(n)->name, offsets->shape[0], own, tables->shape[2], FCC_MAX_TABLES);
    n->value = (struct value){.dtype = tables->dtype,
                              .layout = LAYOUT_SLICED,
                              .sliced = 1,
                              .ndim = 3,
                              .shape = {bags / own, tables->shape[0], tables->shape[2]}};
    return 0;
}

/* The layout of a product: a[..., M, K] . b[K, N]. */
static bool product_layout(const struct value *a, const struct value *b, struct value *out)
{
    const bool a_sliced = a->layout == LAYOUT_SLICED, b_sliced = b->layout == LAYOUT_SLICED;
    const int last = a->ndim - 1;

    out->layout = LAYOUT_LOCAL;
    if (a->layout == LAYOUT_LOCAL || b->layout == LAYOUT_LOCAL)
        return !a_sliced && !b_sliced;
    if (a_sliced && b_sliced)
        return a->sliced == last && b->sliced == 0;
    out->layout = LAYOUT_REPLICATED;
    if (!a_sliced && !b_sliced)
        return true;
    out->layout = LAYOUT_SLICED;
    out->sliced = (uint8_t)(a_sliced ? 0 : last);
    return a_sliced ? a->sliced == 0 : b->sliced == 1;
}

int product_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *a = &p->nodes[n->arg[0]].value, *b = &p->nodes[n->arg[1]].value;
    char layout[2][24];

    if (tensor_needed(p, n, 0, e) || tensor_needed(p, n, 1, e))
        return e->status;
    if (a->ndim < 2 || b->ndim != 2 || a->shape[a->ndim - 1] != b->shape[0])
        return program_fail(e, n->line, n->column,
                            "matmul: of %d and %d dimensions, %" PRId64 " columns and %" PRId64
                            " rows: allowed are [M, K], or more dimensions in front, and [K, N]",
                            a->ndim, b->ndim, a->ndim ? a->shape[a->ndim - 1] : 0, b->ndim ? b->shape[0] : 0);
    if (a->dtype != b->dtype)
        return program_fail(e, n->line, n->column, "matmul: one argument is %s, the other %s: allowed are equal dtypes",
                            value_dtype_name(a->dtype), value_dtype_name(b->dtype));
    struct value out = {.dtype = a->dtype, .ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++)
        out.shape[d] = d < a->ndim - 1 ? a->shape[d] : b->shape[1];
    if (!product_layout(a, b, &out))
        return program_fail(e, n->line, n->column,
                            "matmul: of a %s and a %s matrix: allowed are sliced(%d) and sliced(0), which gives each rank its "
                            "part of the sum (local); sliced(0) with replicated; replicated with sliced(1); and neither sliced",
                            layout_text(a, layout[0]), layout_text(b, layout[1]), a->ndim - 1);
    n->value = out;
    return 0;
}

static int dimension_check(const struct node *n, const struct value *v, int64_t dimension, struct error *e)
{
    if (dimension >= 0 && dimension < v->ndim)
        return 0;
    return program_fail(e, n->line, n->column,
                        "%s: dimension %" PRId64 ": allowed are those of the tensor, %d of them, from 0 on", node_spec(n)->name,
                        dimension, v->ndim);
}

/* Slices of what has a number for each tensor are numbers like others. */
static void table_slice(struct value *v)
{
    v->table = v->table == TABLE_OF_TENSORS ? TABLE_NONE : v->table;
}

int view_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[0]].value;
    char layout[24];

    if (tensor_needed(p, n, 0, e))
        return e->status;
    n->value = *v;
    if (n->op == OP_SLICE) {
        const int64_t d = n->integer[0], from = n->integer[1], end = n->integer[2];
        if (dimension_check(n, v, d, e))
            return e->status;
        if (v->layout == LAYOUT_SLICED && v->sliced == d)
            return program_fail(e, n->line, n->column,
                                "slice: along dimension %" PRId64 ", which is sliced over the ranks: allowed are the others",
                                d);
        if (from < 0 || end < from || end > v->shape[d])
            return program_fail(e, n->line, n->column,
                                "slice: from %" PRId64 " to %" PRId64 ": allowed are indices in order, up to %" PRId64, from,
                                end, v->shape[d]);
        n->value.shape[d] = end - from;
        n->value.table = TABLE_NONE;
        return 0;
    }
    if (n->op == OP_TRANSPOSE) {
        if (v->ndim != 2)
            return program_fail(e, n->line, n->column, "transpose: of %d dimensions: allowed are matrices", v->ndim);
        n->value.shape[0] = v->shape[1];
        n->value.shape[1] = v->shape[0];
        n->value.sliced = v->layout == LAYOUT_SLICED ? 1 - v->sliced : 0;
        return 0;
    }
    if (v->layout != LAYOUT_REPLICATED)
        return program_fail(e, n->line, n->column, "%s: of a %s tensor: allowed are replicated ones", node_spec(n)->name,
                            layout_text(v, layout));
    n->value.layout = n->op == OP_AS_LOCAL ? LAYOUT_LOCAL : LAYOUT_SLICED;
    if (n->op == OP_AS_LOCAL)
        return 0;
    if (dimension_check(n, v, n->integer[0], e))
        return e->status;
    n->value.sliced = (uint8_t)n->integer[0];
    table_slice(&n->value);
    return 0;
}

static int root_check(const struct program *p, const struct node *n, struct error *e)
{
    if (n->integer[0] >= 0 && n->integer[0] < p->nranks)
        return 0;
    return program_fail(e, n->line, n->column, "%s: rank %" PRId64 ": allowed are 0 to %d", node_spec(n)->name, n->integer[0],
                        p->nranks - 1);
}

int exchange_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[0]].value;
    const bool of_slices = n->op == OP_ALL_GATHER || n->op == OP_ALL_TO_ALL;
    char layout[24];

    if (tensor_needed(p, n, 0, e))
        return e->status;
    if (n->op == OP_SEND && program_has_groups(p)) { /* the receiver has the sender's place in a group of the same size */
        n->value = *v;
        return 0;
    }
    if (v->layout != (of_slices ? LAYOUT_SLICED : LAYOUT_LOCAL))
        return program_fail(e, n->line, n->column, "%s: of a %s tensor: allowed are %s ones%s", node_spec(n)->name,
                            layout_text(v, layout), of_slices ? "sliced" : "local",
                            n->op == OP_SEND ? ", and with `groups` all" : "");
    n->value = *v;
    switch (n->op) {
    case OP_ALL_REDUCE:
    case OP_ALL_GATHER:
        n->value.layout = LAYOUT_REPLICATED;
        return 0;
    case OP_BROADCAST:
        n->value.layout = LAYOUT_REPLICATED;
        return root_check(p, n, e);
    case OP_REDUCE:
        return root_check(p, n, e);
    case OP_SEND:
        return 0;
    default: /* reduce_scatter, all_to_all */
        n->value.layout = LAYOUT_SLICED;
        n->value.sliced = (uint8_t)n->integer[0];
        table_slice(&n->value);
        return dimension_check(n, v, n->integer[0], e);
    }
}
