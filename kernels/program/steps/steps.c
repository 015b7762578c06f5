/* SPDX-License-Identifier: MIT
 *
 * steps.c - cuts a program into steps. Statements are taken in order, each a step of its own, a group's together. What is pointwise becomes code
 * (code_make.c); exchanges and products stand between.
 */
#include <inttypes.h>
#include <stdio.h>

#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

int32_t step_unit_of(const struct program *p, int32_t node)
{
    const int32_t statement = p->nodes[node].statement, group = statement >= 0 ? p->nodes[statement].group : -1;

    return statement < 0 ? -1 : group >= 0 ? (int32_t)p->nnodes + group : statement;
}

int step_refuse(const struct node *n, const char *why, struct error *e)
{
    return error_set(e, -EOPNOTSUPP, "line %d, column %d: %s: %s", n->line, n->column, node_spec(n)->name, why);
}

struct program_step *step_add(struct stepping *s, enum step_kind kind, int32_t node)
{
    if (s->out->nsteps == STEPS_MAX ||
        !room_for((void **)&s->out->steps, s->out->nsteps, &s->out->steps_capacity, sizeof(*s->out->steps))) {
        (void)program_no_memory(s->e);
        return NULL;
    }
    struct program_step *step = &s->out->steps[s->out->nsteps++];
    *step = (struct program_step){.kind = (uint8_t)kind, .node = node, .line = s->p->nodes[node].line};
    return step;
}

int temporary_new(struct stepping *s, const struct value *v, bool symmetric, struct step_place *out)
{
    if (!room_for((void **)&s->out->temporaries, s->out->ntemporaries, &s->out->temporaries_capacity,
                  sizeof(*s->out->temporaries)))
        return program_no_memory(s->e);
    s->out->temporaries[s->out->ntemporaries] = (struct step_temporary){.value = *v, .symmetric = symmetric};
    *out = (struct step_place){.kind = PLACE_TEMPORARY, .index = (int32_t)s->out->ntemporaries++};
    return 0;
}

static int temporary_add(struct stepping *s, int32_t node, bool symmetric)
{
    return temporary_new(s, &s->p->nodes[node].value, symmetric, &s->place[node]);
}

/* Memory for a result that ranks of this group store into, or, of a send, of another one. */
static int group_temporary_add(struct stepping *s, int32_t node)
{
    if (temporary_add(s, node, true))
        return s->e->status;
    s->out->temporaries[s->place[node].index].across = s->p->rank_groups > 1 && s->p->nodes[node].op == OP_SEND;
    return 0;
}

/* Where an exchange's or a group's result goes: into a parameter, if its statement stores it there and nothing else uses it. */
int result_place(struct stepping *s, int32_t node)
{
    const struct program *p = s->p;
    const struct node *n = &p->nodes[node], *root = &p->nodes[n->statement];

    if (n->op != OP_REDUCE && !node_is_statement(n) && root->op == OP_UPDATE && root->arg[0] == node) {
        s->stored[n->statement] = true;
        if (p->rank_groups > 1)
            return group_temporary_add(s, node);
        s->place[node] = (struct step_place){.kind = PLACE_PARAMETER, .index = root->parameter};
        s->out->results += !s->out->shared[root->parameter];
        s->out->shared[root->parameter] = true;
        return 0;
    }
    return group_temporary_add(s, node);
}

int result_stored(struct stepping *s, int32_t node)
{
    const struct program *p = s->p;
    const int32_t statement = p->nodes[node].statement;
    const struct value *v = &p->nodes[node].value;

    if (p->rank_groups == 1 || !s->stored[statement] || p->nodes[statement].arg[0] != node)
        return 0;
    const int64_t elements = value_elements(v), tensors = table_tensors(p, v);
    const bool sliced = v->layout == LAYOUT_SLICED;
    const struct code_head head = {.kind = CODE_ELEMENTS,
                                   .rows = sliced && elements ? v->shape[0] : elements,
                                   .inner = sliced && elements ? elements / v->shape[0] : 1,
                                   .sliced = sliced,
                                   .result = CODE_NO_RESULT,
                                   .operands = 2,
                                   .instructions = 2,
                                   .tensors = tensors};
    struct program_step *step = copy_write(s, node, &head);
    if (!step)
        return s->e->status;
    step->t[0] = s->place[node];
    step->t[1] = (struct step_place){.kind = PLACE_PARAMETER, .index = p->nodes[statement].parameter};
    step->ntensors = 2;
    return 0;
}

int stored_place(struct stepping *s, int32_t node)
{
    return s->place[node].kind ? 0 : temporary_add(s, node, false);
}

/* Views are what they are of. */
int32_t step_source(const struct program *p, int32_t node)
{
    while (p->nodes[node].op == OP_AS_SLICE || p->nodes[node].op == OP_AS_LOCAL)
        node = p->nodes[node].arg[0];
    return node;
}

/* ---- exchanges ---- */

static int exchange_check(const struct program *p, const struct node *n, struct error *e)
{
    if (p->nodes[n->arg[0]].op == OP_AS_SLICE)
        return step_refuse(n, "of as_slice: nothing runs it yet", e);
    return 0;
}

/* Whether rows of tables go to the ranks that have their samples as they are added up. */
static bool lookup_is_sent(const struct stepping *s, int32_t node)
{
    const struct program *p = s->p;
    bool sent = false;

    if (node_spec(&p->nodes[node])->kind != OPERATION_LOOKUP || s->uses[node] != 1)
        return false;
    for (uint32_t i = (uint32_t)node + 1; i < p->nnodes; i++)
        sent |= p->nodes[i].op == OP_ALL_TO_ALL && p->nodes[i].arg[0] == node && p->nodes[i].value.sliced == 0;
    return sent;
}

static int lookup_make(struct stepping *s, int32_t lookup, int32_t node)
{
    const struct node *n = &s->p->nodes[lookup];

    for (int a = 0; a < 3; a++)
        if (!s->place[step_source(s->p, n->arg[a])].kind)
            return step_refuse(n, "of values without memory: nothing runs it yet", s->e);
    struct program_step *step = step_add(s, STEP_OF_LOOKUP, node);
    if (!step || result_place(s, node))
        return s->e->status;
    step->a = lookup;
    step->overlaps = overlap_is_asked(s->p, lookup, s->p->nodes[node].statement);
    step->in = s->place[step_source(s->p, n->arg[0])];
    step->b = s->place[n->arg[1]];
    step->t[0] = s->place[n->arg[2]];
    step->ntensors = 1;
    step->out = s->place[node];
    return result_stored(s, node);
}

static int exchange_make(struct stepping *s, int32_t node)
{
    const struct program *p = s->p;
    const struct node *n = &p->nodes[node];
    const int32_t from = step_source(p, n->arg[0]);

    if (n->arg[0] == from && p->nodes[from].op == OP_MATMUL && product_is_summed(s, from))
        return product_make(s, from, node);
    if (lookup_is_sent(s, from) && n->arg[0] == from)
        return lookup_make(s, from, node);
    if (exchange_check(p, n, s->e))
        return s->e->status;
    if (exchange_is_along(p, node))
        return exchange_along_make(s, node);
    struct step_place in = s->place[from], out;
    if (table_in(s, node, false, &in))
        return s->e->status;
    if (result_place(s, node))
        return s->e->status;
    out = s->place[node];
    if (table_out(s, node, false, &out))
        return s->e->status;
    struct program_step *step = step_add(s, STEP_OF_EXCHANGE, node);
    if (!step)
        return s->e->status;
    step->in = in;
    step->out = out;
    return table_stored(s, node, &out) ? s->e->status : result_stored(s, node);
}

/* ---- units ---- */

static bool is_of_code(const struct node *n)
{
    return node_spec(n)->kind == OPERATION_POINT || n->op == OP_UPDATE || n->op == OP_AS_SLICE || n->op == OP_AS_LOCAL ||
           node_is_sum(n);
}

/* The statement's elements are those of the step that is open. */
static bool goes_with(const struct program *p, int32_t a, int32_t b)
{
    const struct value *v = &p->nodes[a].value, *w = &p->nodes[b].value;

    return v->ndim == w->ndim && memcmp(v->shape, w->shape, (size_t)v->ndim * sizeof(*v->shape)) == 0 &&
           (v->layout == LAYOUT_SLICED) == (w->layout == LAYOUT_SLICED) &&
           (v->layout != LAYOUT_SLICED || v->sliced == w->sliced) &&
           (v->table == TABLE_OF_TENSORS) == (w->table == TABLE_OF_TENSORS);
}

/* Values that something needs outside of the code that makes them. `open`: the first operation of the code; by `in_code`. */
static void outside_mark(struct stepping *s)
{
    const struct program *p = s->p;

    for (uint32_t i = 0; i < p->nnodes; i++)
        for (int a = 0; a < node_spec(&p->nodes[i])->arguments; a++) {
            const int32_t arg = step_source(p, p->nodes[i].arg[a]);
            if (p->nodes[arg].value.dtype != DTYPE_PLAIN && s->step_of[arg] != s->step_of[i])
                s->outside[arg] = true;
        }
}

/* Whose elements are worked on: those of the statement, or of what a sum, an exchange or a product within it is of. */
static void domains_find(struct stepping *s)
{
    const struct program *p = s->p;

    for (uint32_t i = 0; i < p->nnodes; i++)
        s->domain[i] = p->nodes[i].statement;
    for (uint32_t i = p->nnodes; i-- > 0;) {
        const struct node *n = &p->nodes[i];
        for (int a = 0; n->statement >= 0 && a < node_spec(n)->arguments; a++) {
            const int32_t arg = n->arg[a];
            if (p->nodes[arg].statement == n->statement && !node_is_statement(&p->nodes[arg]))
                s->domain[arg] = is_of_code(n) && !node_is_sum(n) ? s->domain[i] : arg;
        }
    }
    for (uint32_t i = 0; i < p->nnodes; i++)
        if (node_is_sum(&p->nodes[i]))
            s->domain[i] = p->nodes[i].arg[0];
}

/* What a step is while operations are given to it. */
struct step_open {
    int32_t number, unit, domain;
    int sums, sums_kind;
};

/* Whether an operation cannot be in the open step because of its sums: it uses one, or is a sum for which there is no room. */
static bool sums_end(const struct stepping *s, const struct step_open *o, const struct node *n)
{
    bool ends = node_is_sum(n) && o->sums > 0 && (o->sums == CODE_SUMS_MAX || o->sums_kind != node_spec(n)->kind);

    for (int a = 0; a < node_spec(n)->arguments; a++) {
        const int32_t arg = step_source(s->p, n->arg[a]);
        ends |= node_is_sum(&s->p->nodes[arg]) && s->step_of[arg] == o->number;
    }
    return ends;
}

/* Gives each operation the number of the step that makes it, so that what is needed outside is known before code is made. */
static void steps_number(struct stepping *s)
{
    const struct program *p = s->p;
    struct step_open o = {.unit = -1, .domain = -1};

    for (uint32_t i = 0; i < p->nnodes; i++) {
        const struct node *n = &p->nodes[i];
        s->step_of[i] = -1;
        if (n->statement < 0)
            continue;
        const bool code = is_of_code(n) || s->fused[i] || n->value.dtype == DTYPE_PLAIN;
        const bool again = step_unit_of(p, (int32_t)i) == o.unit && (s->fused[i] || goes_with(p, o.domain, s->domain[i])) &&
                           !sums_end(s, &o, n);
        if (!again || !code)
            o = (struct step_open){.number = o.number + 1};
        o.unit = step_unit_of(p, (int32_t)i);
        o.domain = s->domain[i];
        o.sums += node_is_sum(n);
        o.sums_kind = node_is_sum(n) ? node_spec(n)->kind : o.sums_kind;
        s->step_of[i] = o.number;
        o.number += !code;
    }
}

/* All that use it are products that it is the second factor of. */
static bool transpose_is_factor(const struct program *p, int32_t node)
{
    bool factor = node_spec(&p->nodes[node])->arguments == 1 && p->nodes[node].name < 0;

    for (uint32_t i = (uint32_t)node + 1; i < p->nnodes; i++)
        for (int a = 0; a < node_spec(&p->nodes[i])->arguments; a++)
            factor &= p->nodes[i].arg[a] != node || (p->nodes[i].op == OP_MATMUL && a == 1);
    return factor;
}

static int node_make(struct stepping *s, int32_t node)
{
    const struct node *n = &s->p->nodes[node];

    if (n->value.dtype == DTYPE_PLAIN)
        return 0;
    if (node_spec(n)->kind == OPERATION_EXCHANGE)
        return exchange_make(s, node);
    if (n->op == OP_MATMUL)
        return product_is_summed(s, node) ? 0 : product_make(s, node, -1);
    if (node_spec(n)->kind == OPERATION_LOOKUP)
        return lookup_is_sent(s, node) ? 0
                                       : step_refuse(n,
                                                     "of which all_to_all(..., 0) is not the only use: nothing runs it yet: "
                                                     "allowed is all_to_all of it, and then what else is done",
                                                     s->e);
    if (n->op == OP_SLICE)
        return slice_make(s, node);
    if (n->op == OP_TRANSPOSE && transpose_is_factor(s->p, node))
        return 0;
    return step_refuse(
        n, n->op == OP_TRANSPOSE ? "of what is not the second factor of a matmul: nothing runs it yet" : "nothing runs it yet",
        s->e);
}

static int steps_make(struct stepping *s)
{
    const struct program *p = s->p;

    for (uint32_t i = 0, end; i < p->nnodes; i = end) {
        const struct node *n = &p->nodes[i];
        for (end = i + 1; end < p->nnodes && s->step_of[end] == s->step_of[i];)
            end++;
        if (s->step_of[i] < 0) {
            end = i + 1;
            if (n->op == OP_PARAMETER)
                s->place[i] = (struct step_place){.kind = PLACE_PARAMETER, .index = n->parameter};
            continue;
        }
        bool code = false;
        for (uint32_t k = i; k < end; k++)
            code |= s->fused[k] || (is_of_code(&p->nodes[k]) && p->nodes[k].value.dtype != DTYPE_PLAIN);
        const bool product = s->fused[i] && product_is_group(s, (int32_t)i, (int32_t)end);
        if (product ? product_group_make(s, (int32_t)i, (int32_t)end) : code && code_make(s, (int32_t)i, (int32_t)end))
            return s->e->status;
        for (uint32_t k = i; k < end && !code; k++)
            if (node_make(s, (int32_t)k))
                return s->e->status;
    }
    return 0;
}

int program_steps(const struct program *p, struct program_steps *out, struct error *e)
{
    const size_t n = p->nnodes + 1;
    struct stepping s = {.p = p,
                         .out = out,
                         .e = e,
                         .place = calloc(n, sizeof(*s.place)),
                         .stored = calloc(n, 1),
                         .outside = calloc(n, 1),
                         .fused = calloc(n, 1),
                         .domain = calloc(n, sizeof(*s.domain)),
                         .step_of = calloc(n, sizeof(*s.step_of)),
                         .reg = calloc(n, sizeof(*s.reg)),
                         .touched = calloc(n, sizeof(*s.touched)),
                         .uses = uses_count(p)};
    int status = s.place && s.stored && s.outside && s.fused && s.domain && s.step_of && s.reg && s.touched && s.uses
                     ? 0
                     : program_no_memory(e);

    *out = (struct program_steps){.program = p};
    if (status == 0) {
        groups_choose(&s);
        domains_find(&s);
        steps_number(&s);
        outside_mark(&s);
        status = steps_make(&s);
    }
    free(s.place);
    free(s.stored);
    free(s.outside);
    free(s.fused);
    free(s.domain);
    free(s.step_of);
    free(s.reg);
    free(s.touched);
    free(s.uses);
    if (status)
        program_steps_free(out);
    return status;
}

enum fcc_dtype step_place_dtype(const struct program_steps *s, const struct step_place *place)
{
    return place->kind == PLACE_PARAMETER   ? (enum fcc_dtype)s->program->parameters[place->index].value.dtype
           : place->kind == PLACE_TEMPORARY ? (enum fcc_dtype)s->temporaries[place->index].value.dtype
                                            : FCC_F32;
}

void program_steps_free(struct program_steps *s)
{
    for (uint32_t i = 0; i < s->nsteps; i++) {
        free(s->steps[i].words);
        free(s->steps[i].numbers);
    }
    free(s->steps);
    free(s->temporaries);
    s->steps = NULL;
    s->temporaries = NULL;
    s->nsteps = s->ntemporaries = 0;
}
