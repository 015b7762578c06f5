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
           : dtype == FCC_I32    ? "i32"
           : dtype == FCC_I64    ? "i64"
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

static int integers_fail(const struct node *n, int a, struct error *e)
{
    return program_fail(e, n->line, n->column,
                        "%s: argument %d is a tensor of integers: allowed are such as indices and offsets of embedding",
                        node_spec(n)->name, a + 1);
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
        if (dtype_is_integer(v->dtype))
            return integers_fail(n, a, e);
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
    const struct node *chance = n->op == OP_DROPOUT ? &p->nodes[n->arg[1]] : NULL;
    if (chance && chance->op == OP_NUMBER &&
        !(chance->number >= 0 && chance->number < 1)) /* others are looked at before each run */
        return program_fail(e, n->line, n->column, "dropout: probability %g: allowed are 0 to less than 1", chance->number);
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

bool dtype_is_integer(uint8_t dtype)
{
    return dtype == FCC_I32 || dtype == FCC_I64;
}

int tensor_needed(const struct program *p, const struct node *n, int a, struct error *e)
{
    const struct value *v = &p->nodes[n->arg[a]].value;

    if (dtype_is_integer(v->dtype))
        return integers_fail(n, a, e);

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

static int update_infer(const struct program *p, struct node *n, struct error *e)
{
    const struct parameter *to = &p->parameters[n->parameter];
    const struct value *v = &p->nodes[n->arg[0]].value, *w = &to->value;
    const char *name = program_name_of(p, to->name);
    char text[2][160];

    if (dtype_is_integer(w->dtype))
        return program_fail(e, n->line, n->column, "`%s` is a tensor of integers: allowed to be assigned are f32, f16 and bf16",
                            name);
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
    case OPERATION_LOOKUP:
        return lookup_infer(p, n, e);
    case OPERATION_PRODUCT:
        return product_infer(p, n, e);
    case OPERATION_VIEW:
        return view_infer(p, n, e);
    default:
        return exchange_infer(p, n, e);
    }
}
