/* SPDX-License-Identifier: MIT
 *
 * work.c - what a rank does in a step of a program.
 */
#include "kernels/tune/schedules.h"

static double bytes_of(const struct value *v, double elements)
{
    const size_t size = v->dtype == FCC_F32 || v->dtype == FCC_I32 ? sizeof(float)
                        : v->dtype == FCC_I64                      ? sizeof(int64_t)
                                                                   : sizeof(uint16_t);
    return elements * (double)size;
}

static const struct value *place_value(const struct program_steps *s, const struct step_place *place)
{
    return place->kind == PLACE_PARAMETER   ? &s->program->parameters[place->index].value
           : place->kind == PLACE_TEMPORARY ? &s->temporaries[place->index].value
                                            : NULL;
}

/* The part of a tensor that one of R ranks has for itself; 1: all of it. */
static double share(const struct value *v, int nranks)
{
    return v->layout == LAYOUT_SLICED ? 1.0 / nranks : 1.0;
}

/* Elements that the code passes over, and what it loads and stores. A sum over the ranks reads all ranks' parts, and its result goes to all. */
static void code_count(const struct program_steps *s, const struct program_step *step, struct cost_work *w)
{
    const struct code_head *h = (const struct code_head *)(const void *)step->words;
    const struct code_operand *operands = (const struct code_operand *)(const void *)(h + 1);
    const struct code_instruction *code = (const struct code_instruction *)(const void *)(operands + h->operands);
    const int ranks = s->program->nranks;
    const double own = (double)h->rows * (double)h->inner / (h->sliced ? ranks : 1);
    const struct value *in = place_value(s, &step->in), *out = place_value(s, &step->out);

    for (int64_t i = 0; i < h->instructions; i++) {
        const bool moves = code[i].op == CODE_LOAD || code[i].op == CODE_STORE;
        w->instructions += code[i].op == CODE_NUMBER ? 0 : own;
        if (!moves)
            continue;
        const struct code_operand *o = &operands[code[i].from[1]];
        const struct value *v = o->tensor == CODE_OUT ? out : place_value(s, &step->t[o->tensor]);
        if (v && o->index != CODE_STRETCHED && o->index != CODE_TENSOR)
            w->bytes += bytes_of(v, own);
    }
    if (in) {
        w->instructions += own * ranks; /* additions */
        w->bytes += bytes_of(in, own);
        w->link_bytes += bytes_of(in, own * (ranks - 1));
    }
    if (!out)
        return;
    w->bytes += bytes_of(out, own);
    if (out->layout != LAYOUT_SLICED)
        w->link_bytes += bytes_of(out, own * (ranks - 1));
}

static void exchange_count(const struct program_steps *s, const struct program_step *step, struct cost_work *w)
{
    const struct node *n = &s->program->nodes[step->node];
    const struct value *in = place_value(s, &step->in), *out = place_value(s, &step->out);
    const int ranks = s->program->nranks;
    const enum cost_exchange kind = n->op == OP_ALL_REDUCE       ? COST_ALL_REDUCE
                                    : n->op == OP_REDUCE_SCATTER ? COST_REDUCE_SCATTER
                                    : n->op == OP_ALL_GATHER     ? COST_ALL_GATHER
                                                                 : COST_SEND;

    if (in && out)
        *w = cost_exchange(kind, ranks, bytes_of(in, (double)value_elements(in)) * share(in, ranks),
                           bytes_of(out, (double)value_elements(out)) * share(out, ranks));
}

static void product_count(const struct program_steps *s, const struct program_step *step, struct cost_work *w)
{
    const struct value *a = place_value(s, &step->in), *b = place_value(s, &step->b), *c = place_value(s, &step->out);
    const int ranks = s->program->nranks;

    if (!a || !b || !c || a->ndim < 2)
        return;
    const double elements = (double)value_elements(c);
    *w = cost_product(step->product == PRODUCT_ALONE     ? COST_ALONE
                      : step->product == PRODUCT_SCATTER ? COST_OWN_SUMS
                                                         : COST_ALL_SUMS,
                      ranks, elements, (double)a->shape[a->ndim - 1] * share(a, ranks),
                      bytes_of(a, (double)value_elements(a) * share(a, ranks)) +
                          bytes_of(b, (double)value_elements(b) * share(b, ranks)),
                      bytes_of(c, elements));
}

/* Rows of tables that are added up where the tables are: as many as there are indices. */
static void lookup_count(const struct program_steps *s, const struct program_step *step, struct cost_work *w)
{
    const struct value *tables = place_value(s, &step->in), *indices = place_value(s, &step->b),
                       *out = place_value(s, &step->out);
    const int ranks = s->program->nranks;

    if (!tables || !indices || !out)
        return;
    const double rows = (double)indices->shape[0], elements = rows * (double)tables->shape[2],
                 own = (double)value_elements(out) / ranks;
    w->instructions = elements;
    w->bytes = bytes_of(indices, rows) + bytes_of(tables, elements) + bytes_of(out, own);
    w->link_bytes = bytes_of(out, own) * (double)(ranks - 1) / ranks;
}

struct cost_work step_work(const struct program_steps *s, const struct program_step *step)
{
    struct cost_work w = {.operators = 1};

    if (step->kind == STEP_OF_CODE)
        code_count(s, step, &w);
    else if (step->kind == STEP_OF_EXCHANGE)
        exchange_count(s, step, &w);
    else if (step->kind == STEP_OF_LOOKUP)
        lookup_count(s, step, &w);
    else
        product_count(s, step, &w);
    return w;
}

struct cost_work steps_work(const struct program_steps *s)
{
    struct cost_work sum = {.operators = 0};

    for (uint32_t i = 0; i < s->nsteps; i++) {
        const struct cost_work one = step_work(s, &s->steps[i]);
        cost_add(&sum, &one);
    }
    return sum;
}
