/* SPDX-License-Identifier: MIT
 *
 * groups.c - groups of a program's statements that are one step with their sum over the ranks, with the all_gather of what they make, or with both.
 */
#include <string.h>

#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

static bool in_unit(const struct program *p, int32_t node, int32_t unit)
{
    return step_unit_of(p, node) == unit;
}

/* Whether an all_gather is of slices along dimension 0 that its group makes. */
static bool gather_fits(const struct program *p, int32_t gather, int32_t unit)
{
    const int32_t from = p->nodes[gather].arg[0];

    return in_unit(p, from, unit) && p->nodes[from].value.layout == LAYOUT_SLICED && p->nodes[from].value.sliced == 0 &&
           p->nodes[from].op != OP_PARAMETER && !exchange_is_along(p, gather);
}

/* Whether a step that ranks share may have the operation besides its sum over them and its all_gather. */
static bool is_of_elements(const struct program *p, const struct node *n)
{
    const enum operation_kind kind = (enum operation_kind)node_spec(n)->kind;

    return kind == OPERATION_POINT || kind == OPERATION_LEAF || n->op == OP_UPDATE ||
           (!p->over_nodes && (kind == OPERATION_WHOLE || n->op == OP_AS_SLICE));
}

/* Whether a group of operations [begin, end) is one step with what its ranks do together: reduce_scatter, what works on slices, and one all_gather, or the
 * begin or the end of that, on one node; or all_reduce and what makes one value of it. */
static bool group_find(const struct program *p, int32_t begin, int32_t end, struct group_shape *out)
{
    const int32_t unit = step_unit_of(p, begin);
    bool sums = false;

    *out = (struct group_shape){-1, -1, -1};
    for (int32_t i = begin; i < end; i++) {
        const struct node *n = &p->nodes[i];
        const bool reduces = n->op == OP_REDUCE_SCATTER || n->op == OP_ALL_REDUCE;
        if (n->value.table == TABLE_OF_TENSORS && n->op != OP_PARAMETER &&
            (p->over_nodes || node_is_statement(n) || node_is_sum(n))) /* others are numbers in the elements' code */
            return false;
        sums |= node_is_sum(n);
        if (reduces && out->head < 0)
            out->head = i;
        else if (n->op == OP_ALL_GATHER && out->gather < 0)
            out->gather = i;
        else if (!is_of_elements(p, n))
            return false;
    }
    const bool gathers = out->gather >= 0;
    if (gathers && !gather_fits(p, out->gather, unit))
        return false;
    if (out->head < 0)
        return gathers && !p->over_nodes;
    const struct node *head = &p->nodes[out->head];
    const bool scatters = head->op == OP_REDUCE_SCATTER;
    if (in_unit(p, head->arg[0], unit) || (p->nodes[head->arg[0]].op == OP_AS_LOCAL))
        return false;
    return scatters ? head->value.sliced == 0 && (gathers || !p->over_nodes) : !gathers && !sums;
}

/* The one value of a group with an all_reduce that something else needs; -1: there are several. */
static int32_t sink_find(const struct program *p, int32_t begin, int32_t end)
{
    int32_t sink = -1;
    const int32_t unit = step_unit_of(p, begin);

    for (int32_t i = begin; i < (int32_t)p->nnodes; i++) {
        const struct node *n = &p->nodes[i];
        if (i < end && n->op == OP_UPDATE) {
            if ((sink >= 0 && sink != n->arg[0]) || !in_unit(p, n->arg[0], unit))
                return -1;
            sink = n->arg[0];
        }
        for (int a = 0; i >= end && a < node_spec(n)->arguments; a++) {
            if (!in_unit(p, n->arg[a], unit) || p->nodes[n->arg[a]].value.dtype == DTYPE_PLAIN)
                continue;
            if (sink >= 0 && sink != n->arg[a])
                return -1;
            sink = n->arg[a];
        }
    }
    return sink;
}

static bool is_slice_like(const struct value *v, const struct value *w)
{
    return v->layout == LAYOUT_SLICED && v->sliced == 0 && v->ndim == w->ndim &&
           memcmp(v->shape, w->shape, (size_t)v->ndim * sizeof(*v->shape)) == 0;
}

/* Statements of a group with a reduce_scatter or an all_gather are slices of one shape, but for what is gathered; and so is what sums are of. */
static bool slices_check(const struct program *p, int32_t begin, int32_t end, const struct group_shape *g)
{
    const struct value *v = &p->nodes[g->head >= 0 ? g->head : g->result].value;

    for (int32_t i = begin; i < end; i++) {
        const struct node *n = &p->nodes[i];
        if (node_is_sum(n) && !is_slice_like(&p->nodes[n->arg[0]].value, v))
            return false;
        if (!node_is_statement(n) || i == g->gather || n->value.dtype == DTYPE_PLAIN || node_is_sum(n) ||
            (n->op == OP_UPDATE && (n->arg[0] == g->gather || node_is_sum(&p->nodes[n->arg[0]]))))
            continue;
        if (!is_slice_like(&n->value, v))
            return false;
    }
    return true;
}

bool group_is_step(const struct program *p, int32_t begin, int32_t end, struct group_shape *g)
{
    if (!group_find(p, begin, end, g))
        return false;
    if (g->gather >= 0)
        g->result = p->nodes[g->gather].arg[0];
    if (g->gather >= 0 || p->nodes[g->head].op == OP_REDUCE_SCATTER)
        return slices_check(p, begin, end, g);
    g->result = sink_find(p, begin, end);
    if (g->result < 0)
        return false;
    const struct value *v = &p->nodes[g->result].value, *w = &p->nodes[g->head].value;
    const struct node *root = &p->nodes[p->nodes[g->result].statement];
    return v->dtype != DTYPE_BOOL && v->layout == w->layout && v->ndim == w->ndim &&
           memcmp(v->shape, w->shape, (size_t)v->ndim * sizeof(*v->shape)) == 0 &&
           (node_is_statement(&p->nodes[g->result]) || root->arg[0] == g->result);
}

/* Whether the operations [begin, end) of a unit are one step: a group's; or those of one statement, which gathers what it has computed. */
static bool unit_is_step(struct stepping *s, int32_t unit, int32_t begin, int32_t end)
{
    struct group_shape g;
    const bool is_group = unit >= (int32_t)s->p->nnodes;

    return group_is_step(s->p, begin, end, &g) ? is_group || g.head < 0 : is_group && product_is_group(s, begin, end);
}

void groups_choose(struct stepping *s)
{
    const struct program *p = s->p;

    for (int32_t i = 0, end; i < (int32_t)p->nnodes; i = end) {
        const int32_t unit = step_unit_of(p, i);
        for (end = i + 1; end < (int32_t)p->nnodes && step_unit_of(p, end) == unit;)
            end++;
        if (unit >= 0 && unit_is_step(s, unit, i, end))
            memset(s->fused + i, 1, (size_t)(end - i));
    }
}
