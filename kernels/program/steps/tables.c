/* SPDX-License-Identifier: MIT
 *
 * tables.c - parameters that are many tensors, each where it lies. Code reads and stores them there. What other operators need in one piece is copied
 * by a step of its own, which is left out while the parameter is given as one tensor.
 */
#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

int64_t table_tensors(const struct program *p, const struct value *domain)
{
    return p->tensors > 0 && domain->ndim == 1 && domain->shape[0] == p->tensor_elements && domain->table != TABLE_OF_TENSORS
               ? p->tensors
               : 0;
}

static bool is_scattered(const struct stepping *s, const struct step_place *place)
{
    if (place->kind != PLACE_PARAMETER)
        return false;
    const struct value *v = &s->p->parameters[place->index].value;
    return v->table == TABLE_OF_ELEMENTS && v->layout != LAYOUT_SLICED;
}

struct program_step *copy_write(struct stepping *s, int32_t node, const struct code_head *head)
{
    const int32_t line = s->p->nodes[node].line;
    const struct code_operand operands[] = {{.tensor = 0, .index = CODE_OWN, .div = 1, .length = 1},
                                            {.tensor = 1, .index = CODE_OWN, .div = 1, .length = 1}};
    const struct code_instruction code[] = {{.op = CODE_LOAD, .line = line}, {.op = CODE_STORE, .from = {0, 1}, .line = line}};

    return step_write(s, node, head, operands, code);
}

static int copy_add(struct stepping *s, int32_t node, const struct step_place *from, const struct step_place *to,
                    int32_t parameter)
{
    const struct program *p = s->p;
    const struct code_head head = {.kind = CODE_ELEMENTS,
                                   .rows = p->tensor_elements,
                                   .inner = 1,
                                   .result = CODE_NO_RESULT,
                                   .operands = 2,
                                   .instructions = 2,
                                   .tensors = p->tensors};
    struct program_step *step = copy_write(s, node, &head);

    if (!step)
        return s->e->status;
    step->t[0] = *from;
    step->t[1] = *to;
    step->ntensors = 2;
    step->copies = parameter + 1;
    return 0;
}

static int stand_in(struct stepping *s, bool symmetric, bool by_code, struct step_place *place)
{
    const int32_t parameter = place->index;

    if (temporary_new(s, &s->p->parameters[parameter].value, symmetric, place))
        return s->e->status;
    s->out->temporaries[place->index].stands_for = parameter + 1;
    s->out->temporaries[place->index].by_code = by_code;
    return 0;
}

int table_in(struct stepping *s, int32_t node, bool by_code, struct step_place *place)
{
    const struct step_place from = *place;

    if (!is_scattered(s, place))
        return 0;
    return stand_in(s, false, by_code, place) ? s->e->status : copy_add(s, node, &from, place, from.index);
}

int table_out(struct stepping *s, int32_t node, bool by_code, struct step_place *place)
{
    const struct step_place from = *place;

    if (!is_scattered(s, place))
        return 0;
    if (stand_in(s, true, by_code, place))
        return s->e->status;
    /* code may read what was there before */
    return by_code && s->p->parameters[from.index].kind == PARAMETER_INOUT ? copy_add(s, node, &from, place, from.index) : 0;
}

int table_stored(struct stepping *s, int32_t node, const struct step_place *place)
{
    if (place->kind != PLACE_TEMPORARY || !s->out->temporaries[place->index].stands_for)
        return 0;
    const struct step_place to = {.kind = PLACE_PARAMETER, .index = s->out->temporaries[place->index].stands_for - 1};
    return copy_add(s, node, place, &to, to.index);
}

void step_begins_set(struct program_step *step, const int64_t begins[])
{
    const struct code_head *h = (const struct code_head *)(const void *)step->words;

    if (step->words && h->tensors)
        memcpy(step->words + step->nwords - (h->tensors + 1), begins, ((size_t)h->tensors + 1) * sizeof(*begins));
}
