/* SPDX-License-Identifier: MIT
 *
 * layout.c - the dtype, shape and layout of an operation's value, by its operands'; or why they do not go together.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels/program/inside.h"

const char *value_dtype_name(uint8_t dtype)
{
    return dtype == FCC_F32      ? "f32"
           : dtype == FCC_F16    ? "f16"
           : dtype == FCC_BF16   ? "bf16"
           : dtype == DTYPE_BOOL ? "bool"
                                 : "number";
}

const char *layout_text(const struct value *v, char out[24])
{
    static const char *const names[] = {"number", "local", "replicated"};

    if (v->layout == LAYOUT_SLICED)
        (void)snprintf(out, 24, "sliced(%d)", v->sliced);
    else
        (void)snprintf(out, 24, "%s", names[v->layout]);
    return out;
}

const char *value_text(const struct value *v, char *out, size_t room)
{
    char layout[24], shape[96] = "";
    size_t n = 0;

    if (v->dtype == DTYPE_PLAIN) {
        (void)snprintf(out, room, "number");
        return out;
    }
    for (int d = 0; d < v->ndim && n < sizeof(shape) - 24; d++)
        n += (size_t)snprintf(shape + n, sizeof(shape) - n, "%s%" PRId64, d ? ", " : "", v->shape[d]);
    (void)snprintf(out, room, "%s[%s] %s", value_dtype_name(v->dtype), shape, layout_text(v, layout));
    return out;
}

int64_t value_elements(const struct value *v)
{
    int64_t n = 1;

    for (int d = 0; d < v->ndim; d++)
        n *= v->shape[d];
    return n;
}

int64_t value_elements_of(const struct value *v, int nranks, int rank)
{
    const int64_t n = value_elements(v);

    if (v->layout != LAYOUT_SLICED || n == 0)
        return n;
    const int64_t size = v->shape[v->sliced];
    return n / size * (slice_begin(size, nranks, rank + 1) - slice_begin(size, nranks, rank));
}

/* ---- pointwise ---- */

static bool is_plain(const struct value *v)
{
    return v->dtype == DTYPE_PLAIN;
}

static bool is_comparison(int op)
{
    return op >= OP_LT && op <= OP_NE;
}

/* Operands from `first` on have one dtype, but numbers take it. Sets out's. */
static int dtypes_join(const struct program *p, const struct node *n, int first, struct value *out, struct error *e)
{
    int with = -1;

    for (int a = first; a < node_spec(n)->arguments; a++) {
        const struct value *v = &p->nodes[n->arg[a]].value;
        if (n->op == OP_DROPOUT && a > 0) {
            if (!is_plain(v))
                return program_fail(e, n->line, n->column,
                                    "dropout: argument %d is a tensor: allowed are numbers: dropout(x, p, seed, step)", a + 1);
            continue;
        }
        if (v->dtype == DTYPE_BOOL)
            return program_fail(e, n->line, n->column,
                                "%s: argument %d is the result of a comparison: allowed is that as the first of select",
                                node_spec(n)->name, a + 1);
        if (is_plain(v))
            continue;
        if (with < 0)
            with = a;
        else if (v->dtype != p->nodes[n->arg[with]].value.dtype)
            return program_fail(
                e, n->line, n->column,
                "%s: one argument is %s, the other %s: allowed are equal dtypes: %s(...) makes one of the other",
                node_spec(n)->name, value_dtype_name(p->nodes[n->arg[with]].value.dtype), value_dtype_name(v->dtype),
                value_dtype_name(v->dtype));
    }
    out->dtype = with < 0 ? DTYPE_PLAIN : p->nodes[n->arg[with]].value.dtype;
    return 0;
}

/* The operand decides about the shape, beside elements of a table: one number for each of its tensors goes with all their elements. */
static bool is_shaping(const struct program *p, const struct node *n, int a)
{
    bool elements = false;

    for (int k = 0; k < node_spec(n)->arguments; k++)
        elements |= p->nodes[n->arg[k]].value.table == TABLE_OF_ELEMENTS;
    return !elements || p->nodes[n->arg[a]].value.table != TABLE_OF_TENSORS;
}

/* Elements of a table give such, and one number for each of its tensors does, as long as the shape stays. */
static int tables_join(const struct program *p, const struct node *n, struct value *out, struct error *e)
{
    for (int a = 0; a < node_spec(n)->arguments; a++) {
        const struct value *v = &p->nodes[n->arg[a]].value;
        const bool shaped = out->ndim == 1 && v->ndim == 1 && v->shape[0] == out->shape[0];
        if (v->table == TABLE_OF_ELEMENTS && !shaped)
            return program_fail(e, n->line, n->column,
                                "%s: elements of a table of tensors would be stretched: allowed are tensors of [%" PRId64 "]",
                                node_spec(n)->name, p->tensor_elements);
        if (v->table == TABLE_OF_ELEMENTS || (v->table == TABLE_OF_TENSORS && !out->table && shaped))
            out->table = v->table;
    }
    return 0;
}

/* The shape that operands have together: sizes of 1 and missing first ones are stretched. */
static int shapes_join(const struct node *n, const struct value *v, struct value *out, struct error *e)
{
    const int more = v->ndim - out->ndim;

    if (more > 0) {
        memmove(out->shape + more, out->shape, (size_t)out->ndim * sizeof(*out->shape));
        for (int d = 0; d < more; d++)
            out->shape[d] = 1;
        out->ndim = v->ndim;
    }
    for (int d = 0; d < v->ndim; d++) {
        int64_t *to = &out->shape[out->ndim - v->ndim + d];
        if (*to == 1)
            *to = v->shape[d];
        else if (v->shape[d] != 1 && v->shape[d] != *to)
            return program_fail(e, n->line, n->column,
                                "%s: one argument has %" PRId64 " where another has %" PRId64
                                " (dimension %d from the last): allowed are equal sizes, or 1",
                                node_spec(n)->name, *to, v->shape[d], v->ndim - d);
    }
    return 0;
}

static int layouts_fail(const struct program *p, const struct node *n, int32_t a, int32_t b, struct error *e)
{
    char text[2][96], layout[2][24];
    const struct value *x = &p->nodes[a].value, *y = &p->nodes[b].value;
    const bool local = x->layout == LAYOUT_LOCAL || y->layout == LAYOUT_LOCAL;

    return program_fail(e, n->line, n->column, "%s: %s is %s, %s is %s: %s", node_spec(n)->name, node_text(p, a, text[0]),
                        layout_text(x, layout[0]), node_text(p, b, text[1]), layout_text(y, layout[1]),
                        local ? "ranks have different values of one of them; all_reduce(...) makes a local tensor replicated, "
                                "as_local(...) a replicated one local"
                              : "they are sliced along different dimensions; all_gather(...) makes them replicated");
}

/* The dimension of a slice, counted from the last. */
static int sliced_from_last(const struct value *v)
{
    return v->ndim - v->sliced;
}

/* The layout that operands have together. */
static int layouts_join(const struct program *p, const struct node *n, struct value *out, struct error *e)
{
    int32_t with = -1; /* the operand that decides */

    for (int a = 0; a < node_spec(n)->arguments; a++) {
        const struct value *v = &p->nodes[n->arg[a]].value;
        if (is_plain(v))
            continue;
        if (with < 0) {
            with = n->arg[a];
            continue;
        }
        const struct value *w = &p->nodes[with].value;
        if ((v->layout == LAYOUT_LOCAL) != (w->layout == LAYOUT_LOCAL) ||
            (v->layout == LAYOUT_SLICED && w->layout == LAYOUT_SLICED && sliced_from_last(v) != sliced_from_last(w)))
            return layouts_fail(p, n, with, n->arg[a], e);
        if (v->layout == LAYOUT_SLICED)
            with = n->arg[a];
    }
    if (with < 0)
        return 0;
    const struct value *w = &p->nodes[with].value;
    out->layout = w->layout;
    if (w->layout != LAYOUT_SLICED)
        return 0;
    out->sliced = (uint8_t)(out->ndim - sliced_from_last(w));
    if (out->shape[out->sliced] != w->shape[w->sliced])
        return program_fail(e, n->line, n->column,
                            "%s: a tensor that is sliced along a dimension of size %" PRId64
                            " would be stretched along it: not allowed",
                            node_spec(n)->name, w->shape[w->sliced]);
    return 0;
}

static int point_infer(const struct program *p, struct node *n, struct error *e)
{
    struct value out = {.dtype = DTYPE_PLAIN};
    int first = 0;

    if (n->op == OP_SELECT) {
        const struct value *condition = &p->nodes[n->arg[0]].value;
        if (condition->dtype != DTYPE_BOOL && !is_plain(condition))
            return program_fail(e, n->line, n->column, "select: argument 1 is %s: allowed is the result of a comparison",
                                value_dtype_name(condition->dtype));
        first = 1;
    }
    if (dtypes_join(p, n, first, &out, e))
        return e->status;
    for (int a = 0; a < node_spec(n)->arguments; a++)
        if (is_shaping(p, n, a) && shapes_join(n, &p->nodes[n->arg[a]].value, &out, e))
            return e->status;
    if (tables_join(p, n, &out, e) || layouts_join(p, n, &out, e))
        return e->status;
    if (n->op == OP_DROPOUT && is_plain(&out))
        return program_fail(e, n->line, n->column, "dropout: of a number: allowed are tensors");
    if (out.dtype == DTYPE_PLAIN && out.layout != LAYOUT_PLAIN)
        return program_fail(e, n->line, n->column, "select: both values are numbers: allowed is at least one tensor");
    if (is_comparison(n->op) && out.dtype != DTYPE_PLAIN)
        out.dtype = DTYPE_BOOL;
    if (n->op == OP_F32 || n->op == OP_F16 || n->op == OP_BF16) {
        if (is_plain(&out))
            return program_fail(e, n->line, n->column,
                                "%s: of a number: allowed are tensors; numbers take the dtype of what they are used with",
                                node_spec(n)->name);
        out.dtype = n->op == OP_F32 ? FCC_F32 : n->op == OP_F16 ? FCC_F16 : FCC_BF16;
    }
    n->value = out;
    return 0;
}

/* ---- the rest: one operand that is a tensor, but for products ---- */

static int tensor_needed(const struct program *p, const struct node *n, int a, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[a]].value;

    if (is_plain(v) || v->dtype == DTYPE_BOOL)
        return program_fail(e, n->line, n->column, "%s: argument %d is a %s: allowed are tensors", node_spec(n)->name, a + 1,
                            is_plain(v) ? "number" : "comparison");
    return 0;
}

static int rows_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[0]].value;

    if (tensor_needed(p, n, 0, e))
        return e->status;
    if (v->ndim == 0)
        return program_fail(e, n->line, n->column, "%s: of a tensor without dimensions: allowed are those with rows",
                            node_spec(n)->name);
    if (v->layout == LAYOUT_SLICED && v->sliced == v->ndim - 1)
        return program_fail(e, n->line, n->column,
                            "%s: rows are sliced over the ranks: allowed is a tensor whose last dimension is whole",
                            node_spec(n)->name);
    n->value = *v;
    n->value.shape[v->ndim - 1] = 1;
    n->value.table = TABLE_NONE;
    return 0;
}

static int whole_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[0]].value;

    if (tensor_needed(p, n, 0, e))
        return e->status;
    n->value = (struct value){.dtype = v->dtype, .layout = v->layout == LAYOUT_LOCAL ? LAYOUT_LOCAL : LAYOUT_REPLICATED};
    return 0;
}

static int tensors_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[0]].value;

    if (tensor_needed(p, n, 0, e))
        return e->status;
    if (v->table != TABLE_OF_ELEMENTS)
        return program_fail(e, n->line, n->column,
                            "%s: of what is no table of tensors: allowed are values made of a parameter that is scattered(...)",
                            node_spec(n)->name);
    n->value = (struct value){.dtype = v->dtype,
                              .layout = v->layout == LAYOUT_LOCAL ? LAYOUT_LOCAL : LAYOUT_REPLICATED,
                              .ndim = 1,
                              .table = TABLE_OF_TENSORS,
                              .shape = {p->tensors}};
    return 0;
}

/* The layout of a product: a[M, K] . b[K, N]. */
static bool product_layout(const struct value *a, const struct value *b, struct value *out)
{
    const bool a_sliced = a->layout == LAYOUT_SLICED, b_sliced = b->layout == LAYOUT_SLICED;

    out->layout = LAYOUT_LOCAL;
    if (a->layout == LAYOUT_LOCAL || b->layout == LAYOUT_LOCAL)
        return !a_sliced && !b_sliced;
    if (a_sliced && b_sliced)
        return a->sliced == 1 && b->sliced == 0;
    out->layout = LAYOUT_REPLICATED;
    if (!a_sliced && !b_sliced)
        return true;
    out->layout = LAYOUT_SLICED;
    out->sliced = a_sliced ? 0 : 1;
    return a_sliced ? a->sliced == 0 : b->sliced == 1;
}

static int product_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct value *a = &p->nodes[n->arg[0]].value, *b = &p->nodes[n->arg[1]].value;
    char layout[2][24];

    if (tensor_needed(p, n, 0, e) || tensor_needed(p, n, 1, e))
        return e->status;
    if (a->ndim != 2 || b->ndim != 2 || a->shape[1] != b->shape[0])
        return program_fail(e, n->line, n->column,
                            "matmul: of %d and %d dimensions, %" PRId64 " columns and %" PRId64
                            " rows: allowed are two matrices, [M, K] and [K, N]",
                            a->ndim, b->ndim, a->ndim ? a->shape[a->ndim - 1] : 0, b->ndim ? b->shape[0] : 0);
    if (a->dtype != b->dtype)
        return program_fail(e, n->line, n->column, "matmul: one argument is %s, the other %s: allowed are equal dtypes",
                            value_dtype_name(a->dtype), value_dtype_name(b->dtype));
    struct value out = {.dtype = a->dtype, .ndim = 2, .shape = {a->shape[0], b->shape[1]}};
    if (!product_layout(a, b, &out))
        return program_fail(e, n->line, n->column,
                            "matmul: of a %s and a %s matrix: allowed are sliced(1) and sliced(0), which gives each rank its "
                            "part of the sum (local); sliced(0) with replicated; replicated with sliced(1); and neither sliced",
                            layout_text(a, layout[0]), layout_text(b, layout[1]));
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

static int view_infer(const struct program *p, struct node *n, struct error *e)
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

static int exchange_infer(const struct program *p, struct node *n, struct error *e)
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

static int update_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct parameter *to = &p->parameters[n->parameter];
    const struct value *v = &p->nodes[n->arg[0]].value, *w = &to->value;
    const char *name = program_name_of(p, to->name);
    char text[2][160];

    bool same = v->dtype == w->dtype && v->ndim == w->ndim && v->layout == w->layout &&
                (v->layout != LAYOUT_SLICED || v->sliced == w->sliced);
    for (int d = 0; d < w->ndim && same; d++)
        same = v->shape[d] == w->shape[d];
    n->value = *w;
    n->value.table = v->table ? v->table : w->table;
    if (same || (is_plain(v) && w->dtype != DTYPE_PLAIN))
        return 0;
    return program_fail(e, n->line, n->column, "`%s` is declared as %s, what is assigned is %s: allowed is the same", name,
                        value_text(w, text[0], sizeof(text[0])), value_text(v, text[1], sizeof(text[1])));
}

int node_infer(const struct program *p, struct node *n, struct error *e)
{
    switch (node_spec(n)->kind) {
    case OPERATION_LEAF:
        n->value = n->op == OP_PARAMETER ? p->parameters[n->parameter].value : (struct value){.dtype = DTYPE_PLAIN};
        return 0;
    case OPERATION_UPDATE:
        return update_infer(p, n, e);
    case OPERATION_POINT:
        return point_infer(p, n, e);
    case OPERATION_ROWS:
        return rows_infer(p, n, e);
    case OPERATION_WHOLE:
        return whole_infer(p, n, e);
    case OPERATION_TENSORS:
        return tensors_infer(p, n, e);
    case OPERATION_PRODUCT:
        return product_infer(p, n, e);
    case OPERATION_VIEW:
        return view_infer(p, n, e);
    default:
        return exchange_infer(p, n, e);
    }
}
