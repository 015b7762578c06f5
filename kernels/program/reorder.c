/* SPDX-License-Identifier: MIT
 *
 * reorder.c - an all_gather goes behind the pointwise operations that use what it gathers: these work on slices, and what they made is gathered
 * where the whole is needed.
 *
 *   g = all_gather(s)              y_part = s * 2 + b
 *   y = g * 2 + b          ->      y = all_gather(y_part)
 *
 * A sum, mean or norm of the whole tensor, or of each tensor of a table, takes slices, too: the ranks' sums are added up. An element of a pointwise result depends on elements at its own place only, so the values stay the same, bit by bit. Replicated operands are
 * sliced by being used together with slices. An update is passed through: who uses the parameter afterwards uses the slice that was stored.
 */
#include "kernels/program/inside.h"

struct reordering {
    struct program *p;
    int32_t gather;
    int32_t *slice;    /* [n]: the operation whose value is this rank's slice of this one; -1: there is none */
    int32_t *gathered; /* [n]: the all_gather of such an operation; -1: none yet */
    bool *listed;      /* [n]: a statement that is to work on slices */
    uint32_t n;        /* operations before the transformation */
    struct error *e;
};

/* Marks the statements that a directive lists; without a list, all. */
static int listed_mark(struct reordering *r, const struct directive *d)
{
    memset(r->listed, d->count == 1, r->n);
    for (uint32_t i = 1; i < d->count; i++) {
        const int32_t name = r->p->directive_names[d->first + i], statement = statement_by_name(r->p, name);
        if (statement < 0)
            return statement_missing(r->p, name, r->e);
        r->listed[statement] = true;
    }
    return 0;
}

/* Why an operation cannot work on slices; NULL: it can. */
static const char *hindrance(const struct reordering *r, const struct node *n)
{
    const struct value *s = &r->p->nodes[r->gather].value;
    const int from_last = s->ndim - r->p->nodes[r->p->nodes[r->gather].arg[0]].value.sliced;

    if (node_spec(n)->kind != OPERATION_POINT && !(n->op == OP_SEND && program_has_groups(r->p)))
        return "it is not pointwise";
    if (n->group >= 0)
        return "it is fused already";
    if (n->value.layout != LAYOUT_REPLICATED)
        return "it is not replicated";
    if (n->value.shape[n->value.ndim - from_last] != s->shape[s->ndim - from_last])
        return "the slices would be stretched";
    return NULL;
}

static bool uses_slices(const struct reordering *r, const struct node *n)
{
    bool any = false;

    for (int a = 0; a < node_spec(n)->arguments; a++)
        any |= r->slice[n->arg[a]] >= 0;
    return any;
}

/* A sum of the whole, or of each tensor, is made of slices as well: its value is the same on all ranks. */
static bool sums_slices(const struct reordering *r, int32_t node)
{
    const struct node *n = &r->p->nodes[node];

    return (node_spec(n)->kind == OPERATION_WHOLE || node_spec(n)->kind == OPERATION_TENSORS) && n->statement >= 0 &&
           r->listed[n->statement] && n->group < 0;
}

/* What an operation is given instead of an operand, where the whole is needed. */
static int32_t whole_of(struct reordering *r, int32_t node)
{
    struct program *p = r->p;

    if (node == r->gather || r->slice[node] < 0 || p->nodes[node].op == OP_UPDATE)
        return node;
    if (r->gathered[node] >= 0)
        return r->gathered[node];
    const int32_t gather = node_add(p, OP_ALL_GATHER, p->nodes[node].line, p->nodes[node].column, r->e);
    if (gather < 0)
        return -1;
    struct node *n = &p->nodes[node];
    p->nodes[gather].arg[0] = node;
    p->nodes[gather].name = n->name; /* who needs the whole says so by the name that it had */
    n->name = n->name >= 0 ? name_fresh(p, n->name, "part") : -1;
    return r->gathered[node] = gather;
}

/* Decides, in the order of the program, which operations work on slices. */
static int slices_choose(struct reordering *r, const struct directive *d, bool *any)
{
    struct program *p = r->p;

    r->slice[r->gather] = p->nodes[r->gather].arg[0];
    for (uint32_t i = 0; i < r->n; i++) {
        const struct node *n = &p->nodes[i];
        if ((int32_t)i == r->gather || n->statement < 0 || !uses_slices(r, n))
            continue;
        if (n->op == OP_UPDATE && p->parameters[n->parameter].value.layout == LAYOUT_REPLICATED) {
            r->slice[i] = r->slice[n->arg[0]];
            continue;
        }
        if (!r->listed[n->statement])
            continue;
        if (sums_slices(r, (int32_t)i)) {
            *any = true;
            continue;
        }
        const char *why = hindrance(r, n);
        if (!why)
            r->slice[i] = (int32_t)i;
        else if (d->count > 1)
            return program_fail(r->e, 0, 0, "%s (line %d) needs `%s`, and cannot work on slices of it: %s", node_spec(n)->name,
                                n->line, program_name_of(p, p->nodes[r->gather].name), why);
        *any |= !why;
    }
    return 0;
}

/* Gives every operation slices or wholes for operands, as it needs. */
static int operands_set(struct reordering *r)
{
    struct program *p = r->p;

    for (uint32_t i = 0; i < r->n; i++) {
        const bool sliced = r->slice[i] == (int32_t)i || sums_slices(r, (int32_t)i);
        for (int a = 0; a < node_spec(&p->nodes[i])->arguments; a++) {
            const int32_t arg = p->nodes[i].arg[a];
            if (p->nodes[i].statement < 0 || r->slice[arg] < 0)
                continue;
            const int32_t given = sliced ? r->slice[arg] : whole_of(r, arg);
            if (given < 0)
                return r->e->status;
            p->nodes[i].arg[a] = given;
        }
    }
    return 0;
}

/* A value that several operations use has a name. */
static int names_give(struct program *p, struct error *e)
{
    uint32_t *uses = uses_count(p);

    if (!uses)
        return program_no_memory(e);
    for (uint32_t i = 0; i < p->nnodes; i++) {
        struct node *n = &p->nodes[i];
        if (uses[i] < 2 || node_is_statement(n) || n->parameter >= 0)
            continue;
        const struct node *root = n->statement >= 0 ? &p->nodes[n->statement] : NULL;
        n->name = name_fresh(p,
                             root && root->parameter >= 0 ? p->parameters[root->parameter].name
                             : root                       ? root->name
                                                          : -1,
                             "part");
        if (n->name < 0) {
            free(uses);
            return program_no_memory(e);
        }
    }
    free(uses);
    return 0;
}

static int reorder(struct reordering *r, const struct directive *d)
{
    struct program *p = r->p;
    bool any = false;

    memset(r->slice, 0xff, r->n * sizeof(*r->slice));
    memset(r->gathered, 0xff, r->n * sizeof(*r->gathered));
    if (listed_mark(r, d))
        return r->e->status;
    if (slices_choose(r, d, &any))
        return r->e->status;
    if (!any)
        return program_fail(r->e, 0, 0, "no pointwise operation uses `%s` (line %d): allowed is an all_gather that one uses",
                            program_name_of(p, p->nodes[r->gather].name), p->nodes[r->gather].line);
    return operands_set(r) ? r->e->status : names_give(p, r->e);
}

int transform_reorder(struct program *p, const struct directive *d, struct error *e)
{
    const int32_t name = p->directive_names[d->first];
    struct reordering r = {.p = p, .gather = statement_by_name(p, name), .n = p->nnodes, .e = e};

    if (r.gather < 0)
        return statement_missing(p, name, e);
    const struct node *g = &p->nodes[r.gather];
    if (g->op != OP_ALL_GATHER)
        return program_fail(e, 0, 0, "`%s` (line %d) is made by %s: allowed is all_gather (`split` makes one of an all_reduce)",
                            program_name_of(p, name), g->line, node_spec(g)->name);
    if (g->group >= 0)
        return program_fail(e, 0, 0, "`%s` (line %d) is fused already: allowed is to reorder before", program_name_of(p, name),
                            g->line);
    r.slice = malloc((r.n + 1) * sizeof(*r.slice));
    r.gathered = malloc((r.n + 1) * sizeof(*r.gathered));
    r.listed = malloc(r.n + 1);
    const int status = r.slice && r.gathered && r.listed ? reorder(&r, d) : program_no_memory(e);
    free(r.slice);
    free(r.gathered);
    free(r.listed);
    return status;
}
