/* SPDX-License-Identifier: MIT
 *
 * fuse.c - what runs together: groups of statements in one pass over the elements, pieces of a producer with its consumer, and how many pieces.
 * None of these changes a value, so the checks here are about what can run together at all.
 */
#include <inttypes.h>

#include "kernels/program/inside.h"

/* Why an operation cannot be part of a group; NULL: it can. */
static const char *barrier(const struct node *n)
{
    switch (node_spec(n)->kind) {
    case OPERATION_EXCHANGE:
        return n->op == OP_ALL_REDUCE || n->op == OP_REDUCE_SCATTER || n->op == OP_ALL_GATHER
                   ? NULL
                   : "it moves what other elements wait for, which is a barrier";
    case OPERATION_LOOKUP:
        return "it reads rows that integers choose; the all_to_all of it runs with it anyhow";
    case OPERATION_VIEW:
        return n->op == OP_SLICE ? "it moves elements to another place" : NULL;
    default:
        return NULL;
    }
}

/* A sum may end a group: nothing in it may use the sum before all is added up. */
static const char *sum_barrier(const struct node *n)
{
    return node_spec(n)->kind == OPERATION_ROWS      ? "whole rows"
           : node_spec(n)->kind == OPERATION_WHOLE   ? "the whole tensor"
           : node_spec(n)->kind == OPERATION_TENSORS ? "whole tensors"
                                                     : NULL;
}

static int32_t statement_find(const struct program *p, int32_t name, struct error *e)
{
    const int32_t statement = statement_by_name(p, name);

    if (statement < 0)
        (void)statement_missing(p, name, e);
    return statement;
}

/* Nothing outside of the group stands between two of its statements: such would have to run in the middle of the group. */
static int between_check(const struct program *p, int32_t group, struct error *e)
{
    int32_t *by =
        malloc((p->nnodes + 1) * sizeof(*by)); /* of the group, what an operation outside of it depends on; -1: nothing */
    char text[2][96];
    int status = 0;

    if (!by)
        return program_no_memory(e);
    for (uint32_t i = 0; i < p->nnodes && status == 0; i++) {
        const struct node *n = &p->nodes[i];
        const bool inside = n->statement >= 0 && p->nodes[n->statement].group == group;
        by[i] = -1;
        for (int a = 0; a < node_spec(n)->arguments && status == 0; a++) {
            const int32_t arg = n->arg[a];
            const struct node *x = &p->nodes[arg];
            const bool arg_inside = x->statement >= 0 && p->nodes[x->statement].group == group;
            if (inside && !arg_inside && by[arg] >= 0)
                status = program_fail(
                    e, 0, 0,
                    "%s (line %d) needs %s (line %d), which is outside of the group and needs %s (line %d) of the group",
                    node_text(p, n->statement, text[0]), n->line, program_name_of(p, x->name), x->line,
                    node_text(p, by[arg], text[1]), p->nodes[by[arg]].line);
            if (!inside && by[i] < 0)
                by[i] = arg_inside ? arg : by[arg];
        }
    }
    free(by);
    return status;
}

/* An all_gather ends a group, what is reduced over the ranks begins it, a product precedes that; and all work on elements of one tensor shape. */
static int members_check(const struct program *p, int32_t group, struct error *e)
{
    const struct node *head = NULL, *product = NULL, *shaped = NULL;

    for (uint32_t i = 0; i < p->nnodes; i++) {
        const struct node *n = &p->nodes[i];
        if (n->statement < 0 || p->nodes[n->statement].group != group)
            continue;
        const char *why = barrier(n);
        if (why)
            return program_fail(e, 0, 0, "%s (line %d): %s", node_spec(n)->name, n->line, why);
        for (int a = 0; a < node_spec(n)->arguments; a++) {
            const struct node *x = &p->nodes[n->arg[a]];
            while (n->op == OP_MATMUL && node_spec(x)->kind == OPERATION_VIEW) /* nothing is computed */
                x = &p->nodes[x->arg[0]];
            if (x->statement < 0 || p->nodes[x->statement].group != group)
                continue;
            if (sum_barrier(x))
                return program_fail(e, 0, 0,
                                    "%s (line %d) needs what %s (line %d) makes of %s in the same group, which is a barrier: "
                                    "allowed are sums that only others use",
                                    node_spec(n)->name, n->line, node_spec(x)->name, x->line, sum_barrier(x));
            if (x->op == OP_ALL_GATHER && n->op != OP_UPDATE)
                return program_fail(e, 0, 0,
                                    "%s (line %d) needs the whole of what all_gather (line %d) gathers in the same group: "
                                    "allowed are its slices; `reorder` makes such",
                                    node_spec(n)->name, n->line, x->line);
            if (n->op == OP_MATMUL)
                return program_fail(
                    e, 0, 0,
                    "matmul (line %d) needs whole rows and columns of what the group makes: allowed is a product at its begin",
                    n->line);
            if ((n->op == OP_ALL_REDUCE || n->op == OP_REDUCE_SCATTER) && x->op != OP_MATMUL)
                return program_fail(
                    e, 0, 0,
                    "%s (line %d) needs all ranks' %s (line %d) of the same group: allowed in front of it is a product",
                    node_spec(n)->name, n->line, node_spec(x)->name, x->line);
        }
        const bool reduces = n->op == OP_ALL_REDUCE || n->op == OP_REDUCE_SCATTER;
        if ((reduces && head) || (n->op == OP_MATMUL && product))
            return program_fail(e, 0, 0, "%s (line %d) is the second one of the group, after line %d: allowed is one",
                                node_spec(n)->name, n->line,
                                reduces && head ? head->line
                                : product       ? product->line
                                                : n->line);
        head = reduces ? n : head;
        product = n->op == OP_MATMUL ? n : product;
        if (n->value.layout == LAYOUT_PLAIN || n->value.ndim == 0 || sum_barrier(n))
            continue;
        if (shaped && value_elements(&n->value) != value_elements(&shaped->value) && node_is_statement(n))
            return program_fail(e, 0, 0,
                                "%s (line %d) has %" PRId64 " elements, %s (line %d) of the same group %" PRId64
                                ": allowed are equal numbers",
                                node_spec(n)->name, n->line, value_elements(&n->value), node_spec(shaped)->name, shaped->line,
                                value_elements(&shaped->value));
        shaped = node_is_statement(n) ? n : shaped;
    }
    return 0;
}

int transform_fuse(struct program *p, const struct directive *d, struct error *e)
{
    const int32_t group = (int32_t)p->ngroups;

    if (d->count < 2)
        return program_fail(e, 0, 0, "one statement: allowed are two and more");
    struct group *grown = realloc(p->groups, (p->ngroups + 1) * sizeof(*grown));
    if (!grown)
        return program_no_memory(e);
    p->groups = grown;
    p->groups[p->ngroups++] = (struct group){.name = d->as, .line = d->line};
    for (uint32_t i = 0; i < d->count; i++) {
        const int32_t name = p->directive_names[d->first + i], statement = statement_find(p, name, e);
        if (statement < 0)
            return e->status;
        if (p->nodes[statement].group >= 0)
            return program_fail(e, 0, 0, "`%s` (line %d) is %s: allowed are statements of no group", program_name_of(p, name),
                                p->nodes[statement].line,
                                p->nodes[statement].group == group ? "named twice" : "part of another group");
        p->nodes[statement].group = group;
    }
    return members_check(p, group, e) ? e->status : between_check(p, group, e);
}

/* Whether a statement or one of its group uses the value of another, and directly. */
static bool uses_directly(const struct program *p, int32_t consumer, int32_t producer)
{
    const int32_t group = p->nodes[consumer].group, made = p->nodes[producer].group;

    for (uint32_t i = 0; i < p->nnodes; i++) {
        const struct node *n = &p->nodes[i];
        if (n->statement < 0 || (n->statement != consumer && (group < 0 || p->nodes[n->statement].group != group)))
            continue;
        for (int a = 0; a < node_spec(n)->arguments; a++) {
            const struct node *x = &p->nodes[n->arg[a]];
            if (n->arg[a] == producer || (made >= 0 && x->statement >= 0 && p->nodes[x->statement].group == made))
                return true;
        }
    }
    return false;
}

/* The consumer uses pieces of what the producer makes. */
static int overlap_check(const struct program *p, const struct overlap *o, struct error *e)
{
    const struct node *c = &p->nodes[o->consumer];
    char text[2][96];
    const char *consumer = node_text(p, o->consumer, text[0]), *producer = node_text(p, o->producer, text[1]);
    const int32_t line = p->nodes[o->producer].line;

    if (o->producer == o->consumer || (c->group >= 0 && c->group == p->nodes[o->producer].group))
        return program_fail(e, 0, 0, "%s and %s run together already: not allowed to overlap", producer, consumer);
    if (!uses_directly(p, o->consumer, o->producer))
        return program_fail(e, 0, 0, "%s (line %d) does not use %s (line %d): allowed to overlap is what uses its pieces",
                            consumer, c->line, producer, line);
    if (sum_barrier(c) || c->op == OP_MATMUL)
        return program_fail(e, 0, 0, "%s (line %d) by %s needs the whole of %s (line %d), which is a barrier", consumer,
                            c->line, node_spec(c)->name, producer, line);
    return 0;
}

bool overlap_is_asked(const struct program *p, int32_t producer, int32_t consumer)
{
    bool asked = false;

    for (uint32_t i = 0; i < p->noverlaps; i++)
        asked |= p->overlaps[i].producer == producer && p->overlaps[i].consumer == consumer;
    return asked;
}

int groups_check(const struct program *p, struct error *e)
{
    for (uint32_t g = 0; g < p->ngroups; g++)
        if (members_check(p, (int32_t)g, e) || between_check(p, (int32_t)g, e))
            return e->status;
    for (uint32_t i = 0; i < p->noverlaps; i++)
        if (overlap_check(p, &p->overlaps[i], e))
            return e->status;
    return 0;
}

int transform_overlap(struct program *p, const struct directive *d, struct error *e)
{
    for (uint32_t i = 0; i + 1 < d->count; i++) {
        struct overlap o = {.producer = statement_find(p, p->directive_names[d->first + i], e)};
        o.consumer = o.producer < 0 ? -1 : statement_find(p, p->directive_names[d->first + i + 1], e);
        if (o.consumer < 0 || overlap_check(p, &o, e))
            return e->status;
        if (p->noverlaps == PROGRAM_SCHEDULE_MAX)
            return program_fail(e, 0, 0, "more than %u pairs that overlap: allowed are at most so many", PROGRAM_SCHEDULE_MAX);
        struct overlap *grown = realloc(p->overlaps, (p->noverlaps + 1) * sizeof(*grown));
        if (!grown)
            return program_no_memory(e);
        p->overlaps = grown;
        p->overlaps[p->noverlaps++] = o;
    }
    return 0;
}

int transform_chunk(struct program *p, const struct directive *d, struct error *e)
{
    const int32_t statement = statement_find(p, p->directive_names[d->first], e);

    if (statement < 0)
        return e->status;
    const int64_t elements = value_elements(&p->nodes[statement].value);
    if (d->integer < 1 || d->integer > 65536 || d->integer > elements)
        return program_fail(e, 0, 0, "%" PRId64 " pieces: allowed are 1 to %" PRId64, d->integer,
                            elements < 65536 ? elements : 65536);
    for (uint32_t i = 0; i < p->nchunks; i++)
        if (p->chunks[i].statement == statement)
            return program_fail(e, 0, 0, "`%s` is cut already, into %" PRId64 " pieces",
                                program_name_of(p, p->directive_names[d->first]), p->chunks[i].count);
    struct chunks *grown = realloc(p->chunks, (p->nchunks + 1) * sizeof(*grown));
    if (!grown)
        return program_no_memory(e);
    p->chunks = grown;
    p->chunks[p->nchunks++] = (struct chunks){statement, d->integer};
    return 0;
}
