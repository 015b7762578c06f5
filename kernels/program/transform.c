/* SPDX-License-Identifier: MIT
 *
 * transform.c - split and as_slice.
 */
#include <inttypes.h>

#include "kernels/program/inside.h"

/* The statement that a directive names. */
static int32_t directive_statement(const struct program *p, const struct directive *d, uint32_t i, struct error *e)
{
    const int32_t name = p->directive_names[d->first + i], statement = statement_by_name(p, name);

    if (statement < 0)
        (void)statement_missing(p, name, e);
    return statement;
}

/* s = all_reduce(x) becomes s_part = reduce_scatter(x), s = all_gather(s_part). */
static int split_one(struct program *p, int32_t s, struct error *e)
{
    const struct node *before = &p->nodes[s];

    if (before->op != OP_ALL_REDUCE)
        return program_fail(e, 0, 0, "`%s` (line %d) is made by %s: allowed is all_reduce", program_name_of(p, before->name),
                            before->line, node_spec(before)->name);
    if (before->value.ndim == 0)
        return program_fail(e, 0, 0, "`%s` (line %d) has no dimension along which it could be sliced",
                            program_name_of(p, before->name), before->line);
    if (before->group >= 0)
        return program_fail(e, 0, 0, "`%s` (line %d) is fused already: allowed is to split before",
                            program_name_of(p, before->name), before->line);
    const int32_t part = node_add(p, OP_REDUCE_SCATTER, before->line, before->column, e);
    if (part < 0)
        return e->status;
    struct node *gather = &p->nodes[s], *scatter = &p->nodes[part];
    scatter->arg[0] = gather->arg[0];
    scatter->size[0] = (struct size_text){.count = 1, .factor = {{.symbol = -1}}};
    scatter->name = name_fresh(p, gather->name, "part");
    gather->op = OP_ALL_GATHER;
    gather->arg[0] = part;
    return scatter->name < 0 ? program_no_memory(e) : 0;
}

int transform_split(struct program *p, const struct directive *d, struct error *e)
{
    for (uint32_t i = 0; i < d->count; i++) {
        const int32_t s = directive_statement(p, d, i, e);
        if (s < 0 || p->nodes[s].op == OP_UPDATE)
            return s < 0 ? e->status
                         : program_fail(e, 0, 0, "`%s` is a parameter: allowed is the name of an all_reduce",
                                        program_name_of(p, p->directive_names[d->first + i]));
        if (split_one(p, s, e))
            return e->status;
    }
    return 0;
}

/* What is stored into the parameter is now a slice: what the all_gather gathered, or what all ranks have. */
static int update_slice(struct program *p, const struct parameter *t, int64_t dimension, struct error *e)
{
    struct node *update = &p->nodes[t->update];
    const struct node *stored = &p->nodes[update->arg[0]];

    if (stored->op != OP_ALL_GATHER)
        return program_fail(e, 0, 0,
                            "what is stored into `%s` (line %d) is made by %s, on all ranks: allowed is all_gather, whose "
                            "slices are stored then",
                            program_name_of(p, t->name), update->line, node_spec(stored)->name);
    const struct value *slices = &p->nodes[stored->arg[0]].value;
    if (slices->sliced != dimension)
        return program_fail(e, 0, 0, "what is stored into `%s` (line %d) is sliced along dimension %d, not %" PRId64,
                            program_name_of(p, t->name), update->line, slices->sliced, dimension);
    update->arg[0] = stored->arg[0];
    return 0;
}

/* The operations that use the parameter's value need no more than slices, before and after the update: what it changes is pointwise work, up to where
 * other slices come in. */
static int uses_check(struct program *p, const struct parameter *t, struct error *e)
{
    bool *changed = calloc(p->nnodes + 1, sizeof(*changed));
    int status = 0;

    if (!changed)
        return program_no_memory(e);
    for (uint32_t i = 0; i < p->nnodes && status == 0; i++) {
        struct node *n = &p->nodes[i];
        const struct value before = n->value;
        bool given = false;
        for (int a = 0; a < node_spec(n)->arguments; a++)
            given |= changed[n->arg[a]];
        if (given && node_spec(n)->kind != OPERATION_POINT && n->op != OP_UPDATE &&
            !(n->op == OP_SEND && program_has_groups(p)))
            status = program_fail(e, 0, 0,
                                  "%s (line %d) needs the whole of `%s`: allowed are uses together with slices; `reorder` of "
                                  "an all_gather makes such",
                                  node_spec(n)->name, n->line, program_name_of(p, t->name));
        else
            status = node_infer(p, n, e);
        changed[i] = before.layout != n->value.layout;
    }
    free(changed);
    return status;
}

/* as_slice(t) of the parameter is the parameter itself now. */
static void as_slice_skip(struct program *p, const struct parameter *t)
{
    for (uint32_t i = 0; i < p->nnodes; i++) {
        for (int a = 0; a < node_spec(&p->nodes[i])->arguments; a++) {
            const struct node *arg = &p->nodes[p->nodes[i].arg[a]];
            if (arg->op == OP_AS_SLICE && p->nodes[arg->arg[0]].op == OP_PARAMETER &&
                &p->parameters[p->nodes[arg->arg[0]].parameter] == t)
                p->nodes[i].arg[a] = arg->arg[0];
        }
    }
}

int transform_as_slice(struct program *p, const struct directive *d, struct error *e)
{
    const int32_t name = p->directive_names[d->first];
    struct parameter *t = NULL;

    for (uint32_t i = 0; i < p->nparameters; i++)
        if (p->parameters[i].name == name)
            t = &p->parameters[i];
    if (!t || t->kind == PARAMETER_SCALAR)
        return program_fail(e, 0, 0, "`%s`: allowed is a parameter that is a tensor", program_name_of(p, name));
    if (t->value.layout != LAYOUT_REPLICATED)
        return program_fail(e, 0, 0, "`%s` (line %d): not replicated: allowed are replicated parameters",
                            program_name_of(p, name), t->line);
    if (d->integer >= t->value.ndim)
        return program_fail(e, 0, 0, "`%s`: dimension %" PRId64 ": allowed are those of the tensor, %d of them, from 0 on",
                            program_name_of(p, name), d->integer, t->value.ndim);
    if (t->update >= 0 && update_slice(p, t, d->integer, e))
        return e->status;
    t->value.layout = LAYOUT_SLICED;
    t->value.sliced = (uint8_t)d->integer;
    as_slice_skip(p, t);
    return uses_check(p, t, e);
}
