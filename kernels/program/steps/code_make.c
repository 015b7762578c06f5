/* SPDX-License-Identifier: MIT
 *
 * code_make.c - the code of a step: instructions are made in the order of the operations, on as many values as there are; then values get registers
 * (code_words.c).
 */
#include <stdio.h>

#include "kernels/program/inside.h"
#include "kernels/program/steps/code_maker.h"

/* Memory of a step's that other ranks use. */
struct shared_places {
    struct step_place in, out;
};

/* ---- operands ---- */

static int too_large(struct maker *m, const struct node *n)
{
    return step_refuse(
        n, "its group has too many operations, tensors or values at a time for one step: allowed is to fuse fewer statements",
        m->s->e);
}

/* The rank's own elements are not some of the whole tensor's, one behind the other: it is known how many they are, and nothing of where they are. */
static bool other_slices(const struct value *domain)
{
    return domain->layout == LAYOUT_SLICED && domain->sliced != 0;
}

/* Where a tensor's elements are, seen from the elements that are worked on. */
static int operand_index(struct maker *m, const struct node *n, const struct value *v, bool whole, struct code_operand *o)
{
    const struct value *d = &m->domain;
    int first = d->ndim, last = -1;

    o->div = o->length = 1;
    if (v->table == TABLE_OF_TENSORS && d->table != TABLE_OF_TENSORS && m->tensors) {
        o->index = CODE_TENSOR;
        return 0;
    }
    bool same = v->ndim == d->ndim;
    for (int k = 0; k < v->ndim; k++)
        same = same && v->shape[k] == d->shape[k];
    o->index = same ? (m->sliced && (whole || v->layout != LAYOUT_SLICED) ? CODE_WHOLE : CODE_OWN) : CODE_STRETCHED;
    if (other_slices(d) && same && v->layout != LAYOUT_SLICED)
        return step_refuse(
            n,
            "of a whole tensor together with slices along another dimension than 0: nothing runs it yet: allowed "
            "is as_slice of a parameter that is sliced, or slices along dimension 0",
            m->s->e);
    if (same)
        return 0;
    for (int k = 0; k < v->ndim; k++) {
        const int at = d->ndim - v->ndim + k;
        if (v->shape[k] == 1)
            continue;
        first = first == d->ndim ? at : first;
        last = at;
    }
    for (int k = first; k <= last; k++) {
        if (v->shape[k - (d->ndim - v->ndim)] != d->shape[k])
            return step_refuse(n, "of a tensor that is stretched within its rows: nothing runs it yet", m->s->e);
        o->length *= d->shape[k];
    }
    for (int k = (last >= 0 ? last : -1) + 1; k < d->ndim; k++)
        o->div *= d->shape[k];
    o->length = o->length ? o->length : 1;
    o->div = o->div ? o->div : 1;
    if (other_slices(d) && (v->layout == LAYOUT_SLICED || first != d->ndim))
        return step_refuse(
            n,
            "of a tensor that is stretched to slices along another dimension than 0: nothing runs it yet: allowed "
            "are single elements, or a bias fused with its product",
            m->s->e);
    if (v->layout != LAYOUT_SLICED)
        return 0;
    if ((first != 0 && first != d->ndim) || v->sliced != v->ndim - d->ndim) /* rows of the slice, from its first dimension on */
        return step_refuse(n, "of slices that are stretched along another dimension than the last: nothing runs it yet",
                           m->s->e);
    o->index = CODE_EACH;
    o->length = 1;
    return 0;
}

/* The number of a place among the step's tensors; -1: there are too many. */
static int tensor_number(struct maker *m, const struct step_place *place)
{
    struct program_step *step = m->step;

    if (m->gives && memcmp(&m->result, place, sizeof(*place)) == 0)
        return CODE_OUT;
    for (int i = 0; i < step->ntensors; i++)
        if (memcmp(&step->t[i], place, sizeof(*place)) == 0)
            return i;
    if (step->ntensors == CODE_TENSORS)
        return -1;
    step->t[step->ntensors] = *place;
    return step->ntensors++;
}

static int operand_get(struct maker *m, const struct node *n, int32_t node)
{
    const struct step_place *place = &m->s->place[node];
    struct code_operand o = {.tensor = place->kind ? tensor_number(m, place) : -1};

    if (!place->kind) {
        (void)step_refuse(n, "of a value that has no memory: nothing runs it yet", m->s->e);
        return -1;
    }
    if (o.tensor < 0) {
        (void)too_large(m, n);
        return -1;
    }
    if (operand_index(m, n, &m->s->p->nodes[node].value, o.tensor == CODE_OUT, &o))
        return -1;
    for (int i = 0; i < m->noperands; i++)
        if (memcmp(&m->operands[i], &o, sizeof(o)) == 0)
            return i;
    if (m->noperands == CODE_OPERANDS_MAX) {
        (void)too_large(m, n);
        return -1;
    }
    m->operands[m->noperands] = o;
    m->loaded[m->noperands] = 0;
    return m->noperands++;
}

/* ---- instructions ---- */

/* Adds an instruction; its value, or 0: there are too many. */
static int instruction_add(struct maker *m, const struct node *n, unsigned op, const int from[3], int32_t node)
{
    if (m->nbody == CODE_INSTRUCTIONS_MAX || m->values + 1 >= VALUES_MAX) {
        (void)too_large(m, n);
        return 0;
    }
    m->body[m->nbody].code = (struct code_instruction){.op = (uint8_t)op, .line = n->line};
    for (int k = 0; k < 3; k++) {
        m->body[m->nbody].from[k] = from ? from[k] : 0;
        m->last[m->body[m->nbody].from[k]] = m->nbody;
    }
    m->body[m->nbody].node = node;
    m->body[m->nbody].to = ++m->values;
    m->last[m->values] = m->nbody;
    m->place[m->values] = -1;
    m->nbody++;
    return m->values;
}

/* An operation has its value. Those without an instruction of their own (f32 of f32) are as many as the program has. */
static void value_set(struct maker *m, int32_t node, int value)
{
    if (!m->s->reg[node])
        m->s->touched[m->ntouched++] = node;
    m->s->reg[node] = value;
}

/* The value of an operand: made in this code, a number, or loaded. 0 with the error. */
static int value_of(struct maker *m, const struct node *n, int32_t node)
{
    const struct program *p = m->s->p;

    if (m->s->reg[node])
        return m->s->reg[node];
    if (p->nodes[node].value.dtype == DTYPE_PLAIN) {
        const int value = instruction_add(m, n, CODE_NUMBER, NULL, node);
        if (value)
            value_set(m, node, value);
        return value;
    }
    if (p->nodes[node].op == OP_AS_SLICE || p->nodes[node].op == OP_AS_LOCAL)
        return value_of(m, n, step_source(p, node));
    const int operand = operand_get(m, n, node);
    if (operand < 0)
        return 0;
    if (!m->loaded[operand]) {
        m->loaded[operand] = instruction_add(m, n, CODE_LOAD, NULL, -1);
        if (m->loaded[operand])
            m->body[m->nbody - 1].code.from[1] = (uint8_t)operand;
    }
    return m->loaded[operand];
}

static int store_add(struct maker *m, const struct node *n, int32_t node, int value)
{
    const int operand = operand_get(m, n, node);

    if (operand < 0)
        return m->s->e->status;
    if (m->operands[operand].index != CODE_OWN)
        return step_refuse(n, "it stores a whole tensor beside slices: allowed is to fuse these apart", m->s->e);
    const int from[3] = {value};
    if (!instruction_add(m, n, CODE_STORE, from, -1))
        return m->s->e->status;
    m->body[m->nbody - 1].code.from[1] = (uint8_t)operand;
    return 0;
}

/* A sum of elements: its own operand has the numbers of its elements. */
static int sum_add(struct maker *m, int32_t node)
{
    const struct node *n = &m->s->p->nodes[node];
    const int x = value_of(m, n, n->arg[0]);
    struct sum_plan plan;

    if (!x || sum_plan(m->s, node, &plan))
        return m->s->e->status;
    const int square = plan.square ? instruction_add(m, n, OP_MUL, (const int[]){x, x, 0}, -1) : x;
    const int tensor = tensor_number(m, &plan.to);
    if (!square)
        return m->s->e->status;
    if (tensor < 0 || m->noperands == CODE_OPERANDS_MAX || m->nsums == CODE_SUMS_MAX)
        return too_large(m, n);
    m->operands[m->noperands] =
        (struct code_operand){.tensor = tensor, .index = plan.tensors ? CODE_TENSOR : CODE_EACH, .div = plan.each, .length = 1};
    m->loaded[m->noperands] = 0;
    if (!instruction_add(m, n, CODE_SUM, (const int[]){square, 0, 0}, -1))
        return m->s->e->status;
    struct code_instruction *code = &m->body[m->nbody - 1].code;
    code->from[1] = (uint8_t)m->noperands++;
    code->number = plan.divisor;
    code->key = plan.root;
    m->sums[m->nsums++] = plan;
    return 0;
}

/* Rounds the value to the operation's dtype. */
static int rounded(struct maker *m, const struct node *n, int value)
{
    const int from[3] = {value};

    if (!value || (n->value.dtype != FCC_F16 && n->value.dtype != FCC_BF16) || n->op == OP_F16 || n->op == OP_BF16)
        return value;
    return instruction_add(m, n, n->value.dtype == FCC_F16 ? OP_F16 : OP_BF16, from, -1);
}

static int point_make(struct maker *m, int32_t node)
{
    const struct node *n = &m->s->p->nodes[node];
    const int arguments = n->op == OP_DROPOUT ? 1 : node_spec(n)->arguments;
    int from[3] = {0};

    if (n->op == OP_DROPOUT && other_slices(&m->domain))
        return step_refuse(n, "of slices along another dimension than 0: nothing runs it yet", m->s->e);
    /* its elements' numbers would be those of the step, not of the tensor */
    if (n->op == OP_DROPOUT && value_elements(&n->value) != value_elements(&m->domain))
        return step_refuse(n, "of a tensor that is stretched then: allowed is to give dropout's result a name", m->s->e);
    for (int a = 0; a < arguments; a++)
        if (!(from[a] = value_of(m, n, n->arg[a])))
            return m->s->e->status;
    const int value = n->op == OP_F32 ? from[0] : instruction_add(m, n, n->op, from, n->op == OP_DROPOUT ? node : -1);
    const int result = rounded(m, n, value);
    if (!result)
        return m->s->e->status;
    value_set(m, node, result);
    return 0;
}

static int node_code(struct maker *m, int32_t node, const struct group_shape *g)
{
    const struct program *p = m->s->p;
    const struct node *n = &p->nodes[node];

    if (n->value.dtype == DTYPE_PLAIN || node == g->head || node == g->gather || n->op == OP_AS_SLICE || n->op == OP_AS_LOCAL)
        return 0;
    if (n->op == OP_UPDATE) {
        if (m->s->stored[node] && m->gives) { /* stored as the result; who uses it here uses the part of this rank */
            const int part = value_of(m, n, n->arg[0] == g->gather ? g->result : n->arg[0]);
            return part ? (value_set(m, node, part), 0) : m->s->e->status;
        }
        if (m->s->stored[node])
            return 0;
        const int made = value_of(m, n, n->arg[0]),
                  value = p->nodes[n->arg[0]].value.dtype == DTYPE_PLAIN ? rounded(m, n, made) : made;
        m->s->place[node] = (struct step_place){.kind = PLACE_PARAMETER, .index = n->parameter};
        return !value || store_add(m, n, node, value) ? m->s->e->status : (value_set(m, node, value), 0);
    }
    if (node_is_sum(n))
        return sum_add(m, node);
    if (point_make(m, node))
        return m->s->e->status;
    if (!m->s->outside[node] || (node == g->result && g->gather < 0))
        return 0;
    if (n->value.dtype == DTYPE_BOOL)
        return step_refuse(n, "a comparison that another step needs: nothing runs it yet", m->s->e);
    return stored_place(m->s, node) ? m->s->e->status : store_add(m, n, node, m->s->reg[node]);
}

/* ---- the step ---- */

/* The operation whose value all ranks get; -1: none. */
static int32_t shared_result(const struct group_shape *g)
{
    return g->gather >= 0 ? g->gather : g->result;
}

/* Where what is added up lies, and the result, as far as there are such: a table's tensors may have to be copied together before. */
static int shared_places(struct stepping *s, const struct group_shape *g, struct shared_places *out)
{
    const struct node *head = g->head >= 0 ? &s->p->nodes[g->head] : NULL;
    const int32_t from = head ? step_source(s->p, head->arg[0]) : -1, to = shared_result(g);

    if (head && !s->place[from].kind)
        return step_refuse(head, "of a value that has no memory: nothing runs it yet", s->e);
    if (to >= 0 && result_place(s, to))
        return s->e->status;
    if (head)
        out->in = s->place[from];
    if (to >= 0)
        out->out = s->place[to];
    if (head && table_in(s, g->head, true, &out->in))
        return s->e->status;
    return to >= 0 ? table_out(s, to, true, &out->out) : 0;
}

static int sum_begin(struct maker *m, int32_t head)
{
    struct stepping *s = m->s;
    const struct node *n = &s->p->nodes[head];

    m->place[++m->values] = 0; /* register 0 has the sum */
    const int value = rounded(m, n, m->values);
    if (!value)
        return s->e->status;
    value_set(m, head, value);
    if (n->op != OP_REDUCE_SCATTER || !s->outside[head])
        return 0;
    return stored_place(s, head) ? s->e->status : store_add(m, n, head, value);
}

static int code_fill(struct maker *m, int32_t begin, int32_t end, const struct group_shape *g,
                     const struct shared_places *places)
{
    m->step->in = places->in;
    m->step->out = places->out;
    m->result = m->gives ? m->s->place[shared_result(g)] : (struct step_place){.kind = PLACE_NONE};
    if (m->reduces && sum_begin(m, g->head))
        return m->s->e->status;
    for (int32_t i = begin; i < end; i++)
        if (node_code(m, i, g))
            return m->s->e->status;
    int result = CODE_NO_RESULT;
    if (m->gives) {
        result = value_of(m, &m->s->p->nodes[shared_result(g)], g->result);
        if (!result)
            return m->s->e->status;
        m->last[result] = m->nbody;
    }
    if (!registers_give(m))
        return too_large(m, &m->s->p->nodes[end - 1]);
    return words_write(m, m->gives ? m->place[result] : CODE_NO_RESULT);
}

/* Operations that only say what another step has stored for them need no step. */
static bool is_needed(const struct stepping *s, int32_t begin, int32_t end)
{
    for (int32_t i = begin; i < end; i++) {
        const struct node *n = &s->p->nodes[i];
        if (n->op == OP_UPDATE ? !s->stored[i]
                               : node_is_sum(n) || (node_spec(n)->kind == OPERATION_POINT && n->value.dtype != DTYPE_PLAIN))
            return true;
    }
    return false;
}

int code_make(struct stepping *s, int32_t begin, int32_t end)
{
    struct group_shape g = {-1, -1, -1};
    const bool shares = s->fused[begin] && group_is_step(s->p, begin, end, &g), reduces = shares && g.head >= 0,
               gives = shares && g.result >= 0;
    int32_t root = reduces ? g.head : gives ? g.result : s->domain[begin];

    for (int32_t i = end; i-- > begin && !shares;) /* numbers have no elements */
        if (s->p->nodes[i].value.dtype != DTYPE_PLAIN)
            root = s->domain[i];
    const struct value *v = &s->p->nodes[root].value;

    for (int32_t i = begin; i < end; i++)
        if (s->p->nodes[i].op == OP_UPDATE)
            s->place[i] = (struct step_place){.kind = PLACE_PARAMETER, .index = s->p->nodes[i].parameter};
    if (!shares && !is_needed(s, begin, end))
        return 0;
    struct shared_places places = {.in.kind = PLACE_NONE};
    if (shares && shared_places(s, &g, &places))
        return s->e->status;
    struct maker *m = calloc(1, sizeof(*m));
    struct program_step *step = step_add(s, STEP_OF_CODE, s->p->nodes[end - 1].statement);
    if (!m || !step) {
        free(m);
        return program_no_memory(s->e);
    }
    for (uint32_t i = 0; i < s->p->nchunks; i++)
        if (s->p->chunks[i].statement >= begin && s->p->chunks[i].statement < end && s->p->chunks[i].count > step->pieces)
            step->pieces = s->p->chunks[i].count;
    *m = (struct maker){.s = s,
                        .step = step,
                        .domain = *v,
                        .sliced = shares || v->layout == LAYOUT_SLICED,
                        .reduces = reduces,
                        .gives = gives,
                        .tensors = table_tensors(s->p, v),
                        .kind = reduces ? CODE_REDUCE
                                : gives ? CODE_GATHER
                                        : CODE_ELEMENTS};
    int status = code_fill(m, begin, end, &g, &places);
    if (status == 0 && gives)
        status = table_stored(s, shared_result(&g), &places.out) ? s->e->status : result_stored(s, shared_result(&g));
    if (status == 0)
        status = sums_finish(s, m->sums, m->nsums);
    for (uint32_t i = 0; i < m->ntouched; i++)
        s->reg[s->touched[i]] = 0;
    free(m);
    return status;
}
