/* SPDX-License-Identifier: MIT
 *
 * code_words.c - registers for the values of a step's code, and the words of it.
 */
#include "kernels/program/inside.h"
#include "kernels/program/steps/code_maker.h"

static bool is_without_register(const struct code_instruction *i)
{
    return i->op == CODE_STORE || i->op == CODE_SUM;
}

/* Numbers are kept for all blocks. */
static void numbers_keep(struct maker *m)
{
    for (int i = 0; i < m->nbody; i++)
        if (m->body[i].code.op == CODE_NUMBER)
            m->last[m->body[i].to] = m->nbody;
}

bool registers_give(struct maker *m)
{
    uint64_t taken = m->reduces ? 1 : 0;

    numbers_keep(m);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < m->nbody; i++) {
            const bool number = m->body[i].code.op == CODE_NUMBER;
            for (int k = 0; pass == 1 && !number && k < 3; k++) {
                const int value = m->body[i].from[k];
                if (value && m->last[value] == i && m->place[value] >= 0 && m->place[value] < CODE_REGISTERS)
                    taken &= ~(UINT64_C(1) << m->place[value]);
            }
            if (number != (pass == 0) || is_without_register(&m->body[i].code))
                continue;
            if (taken == UINT64_MAX)
                return false;
            m->place[m->body[i].to] = __builtin_ctzll(~taken);
            taken |= UINT64_C(1) << m->place[m->body[i].to];
        }
    }
    return true;
}

int words_write(struct maker *m, int result)
{
    struct program_step *step = m->step;
    const struct value *d = &m->domain;
    const bool rows = m->sliced && !(m->reduces && d->layout != LAYOUT_SLICED);
    const int64_t elements = value_elements(d),
                  first = rows && elements ? d->shape[d->layout == LAYOUT_SLICED ? d->sliced : 0] : elements;
    const struct code_head head = {.kind = m->kind,
                                   .rows = first,
                                   .inner = first > 0 ? (elements / first > 0 ? elements / first : 1) : 1,
                                   .sliced = m->sliced,
                                   .result = result,
                                   .operands = m->noperands,
                                   .instructions = m->nbody,
                                   .tensors = m->tensors};
    const size_t operands = (size_t)m->noperands * sizeof(m->operands[0]),
                 bytes = sizeof(head) + operands + (size_t)m->nbody * sizeof(struct code_instruction) +
                         (m->tensors ? ((size_t)m->tensors + 1) * sizeof(int64_t) : 0);
    unsigned char *to = calloc(1, bytes);
    uint32_t n = 0;

    step->numbers = calloc((size_t)m->nbody + 1, sizeof(*step->numbers));
    step->words = (int64_t *)(void *)to;
    step->nwords = bytes / sizeof(int64_t);
    if (!to || !step->numbers)
        return program_no_memory(m->s->e);
    memcpy(to, &head, sizeof(head));
    if (m->tensors) /* until it is said how long they are, the last one has all */
        step->words[step->nwords - 1] = elements;
    memcpy(to + sizeof(head), m->operands, operands);
    struct code_instruction *code = (struct code_instruction *)(void *)(to + sizeof(head) + operands);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < m->nbody; i++) {
            if ((m->body[i].code.op == CODE_NUMBER) != (pass == 0))
                continue;
            struct code_instruction *c = &code[n];
            *c = m->body[i].code;
            c->to = is_without_register(c) ? 0 : (uint8_t)m->place[m->body[i].to];
            for (int k = 0; k < 3; k++)
                if (m->body[i].from[k])
                    c->from[k] = (uint8_t)m->place[m->body[i].from[k]];
            if (m->body[i].node >= 0)
                step->numbers[step->nnumbers++] = (struct step_number){n, m->body[i].node};
            n++;
        }
    }
    return 0;
}
