/* SPDX-License-Identifier: MIT
 *
 * groups.c - groups of a program's statements that are one step with their sum over the ranks.
 */
#include <string.h>

#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

static bool in_group(const struct program *p, int32_t node, int32_t group)
{
    return p->nodes[node].statement >= 0 && p->nodes[p->nodes[node].statement].group == group;
}

/* Whether a group of operations [begin, end) is one step with its sum: reduce_scatter, what works on slices, and one all_gather; or all_reduce and what
 * makes one value of it. */
static bool group_find(const struct program *p, int32_t begin, int32_t end, struct group_shape *out)
{
    *out = (struct group_shape){-1, -1, -1};
    for (int32_t i = begin; i < end; i++) {
        const struct node *n = &p->nodes[i];
        const bool sums = n->op == OP_REDUCE_SCATTER || n->op == OP_ALL_REDUCE;
        if (n->value.table == TABLE_OF_TENSORS && n->op != OP_PARAMETER)
            return false;
        if (sums && out->head < 0)
            out->head = i;
        else if (n->op == OP_ALL_GATHER && out->gather < 0)
            out->gather = i;
        else if (node_spec(n)->kind != OPERATION_POINT && n->op != OP_UPDATE && node_spec(n)->kind != OPERATION_LEAF)
            return false;
    }
    if (out->head < 0)
        return false;
    const struct node *head = &p->nodes[out->head];
    const struct value *v = &head->value;
    const bool scatters = head->op == OP_REDUCE_SCATTER;
    if (scatters != (out->gather >= 0) || (scatters && v->sliced != 0) ||
        in_group(p, head->arg[0], p->nodes[head->statement].group) || (p->nodes[head->arg[0]].op == OP_AS_LOCAL))
        return false;
    return !scatters || in_group(p, p->nodes[out->gather].arg[0], p->nodes[head->statement].group);
}

/* The one value of a group with an all_reduce that something else needs; -1: there are several. */
static int32_t sink_find(const struct program *p, int32_t begin, int32_t end)
{
    int32_t sink = -1;
    const int32_t group = p->nodes[p->nodes[begin].statement].group;

    for (int32_t i = begin; i < (int32_t)p->nnodes; i++) {
        const struct node *n = &p->nodes[i];
        if (i < end && n->op == OP_UPDATE) {
            if ((sink >= 0 && sink != n->arg[0]) || !in_group(p, n->arg[0], group))
                return -1;
            sink = n->arg[0];
        }
        for (int a = 0; i >= end && a < node_spec(n)->arguments; a++) {
            if (!in_group(p, n->arg[a], group) || p->nodes[n->arg[a]].value.dtype == DTYPE_PLAIN)
                continue;
            if (sink >= 0 && sink != n->arg[a])
                return -1;
            sink = n->arg[a];
        }
    }
    return sink;
}

/* Statements of a group with a reduce_scatter are slices of the sum's shape, but for what is gathered. */
static bool slices_check(const struct program *p, int32_t begin, int32_t end, const struct group_shape *g)
{
    const struct value *v = &p->nodes[g->head].value;

    for (int32_t i = begin; i < end; i++) {
        const struct node *n = &p->nodes[i];
        if (!node_is_statement(n) || i == g->gather || n->value.dtype == DTYPE_PLAIN ||
            (n->op == OP_UPDATE && n->arg[0] == g->gather))
            continue;
        if (n->value.layout != LAYOUT_SLICED || n->value.sliced != 0 || n->value.ndim != v->ndim ||
            memcmp(n->value.shape, v->shape, (size_t)v->ndim * sizeof(*v->shape)) != 0)
            return false;
    }
    return true;
}

bool group_is_step(const struct program *p, int32_t begin, int32_t end, struct group_shape *g)
{
    if (!group_find(p, begin, end, g))
        return false;
    if (g->gather >= 0) {
        g->result = p->nodes[g->gather].arg[0];
        return slices_check(p, begin, end, g);
    }
    g->result = sink_find(p, begin, end);
    if (g->result < 0)
        return false;
    const struct value *v = &p->nodes[g->result].value, *w = &p->nodes[g->head].value;
    const struct node *root = &p->nodes[p->nodes[g->result].statement];
    return v->dtype != DTYPE_BOOL && v->layout == w->layout && v->ndim == w->ndim &&
           memcmp(v->shape, w->shape, (size_t)v->ndim * sizeof(*v->shape)) == 0 &&
           (node_is_statement(&p->nodes[g->result]) || root->arg[0] == g->result);
}

void groups_choose(struct stepping *s)
{
    const struct program *p = s->p;

    for (int32_t i = 0, end; i < (int32_t)p->nnodes; i = end) {
        struct group_shape g;
        const int32_t unit = step_unit_of(p, i);
        for (end = i + 1; end < (int32_t)p->nnodes && step_unit_of(p, end) == unit;)
            end++;
        if (unit >= (int32_t)p->nnodes && (group_is_step(p, i, end, &g) || product_is_group(s, i, end)))
            memset(s->fused + i, 1, (size_t)(end - i));
    }
}
