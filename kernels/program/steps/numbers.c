/* SPDX-License-Identifier: MIT
 *
 * numbers.c - what is the same for all elements, in double precision: found from the scalars before each run, and filled into the steps' code.
 */
#include <math.h>

#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

static double number_of(int op, double x, double y, double z)
{
    switch (op) {
    case OP_ADD:
        return x + y;
    case OP_SUB:
        return x - y;
    case OP_MUL:
        return x * y;
    case OP_DIV:
        return x / y;
    case OP_LT:
        return x < y;
    case OP_LE:
        return x <= y;
    case OP_GT:
        return x > y;
    case OP_GE:
        return x >= y;
    case OP_EQ:
        return x == y;
    case OP_NE:
        return x != y;
    case OP_NEG:
        return -x;
    case OP_MAX:
        return x > y || x != x ? x : y;
    case OP_MIN:
        return x < y || x != x ? x : y;
    case OP_POW:
        return pow(x, y);
    case OP_ABS:
        return fabs(x);
    case OP_SQRT:
        return sqrt(x);
    case OP_RSQRT:
        return 1 / sqrt(x);
    case OP_EXP:
        return exp(x);
    case OP_LOG:
        return log(x);
    case OP_TANH:
        return tanh(x);
    case OP_SIGMOID:
        return 1 / (1 + exp(-x));
    case OP_RELU:
        return x > 0 || x != x ? x : 0;
    case OP_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case OP_SILU:
        return x / (1 + exp(-x));
    default: /* select */
        return x != 0 ? y : z;
    }
}

void program_numbers(const struct program *p, const double scalars[], double numbers[])
{
    for (uint32_t i = 0; i < p->nnodes; i++) {
        const struct node *n = &p->nodes[i];
        numbers[i] = 0;
        if (n->op == OP_NUMBER)
            numbers[i] = n->number;
        else if (n->op == OP_SIZE)
            numbers[i] = (double)n->integer[0];
        else if (n->op == OP_SCALAR)
            numbers[i] = scalars[n->parameter];
        else if (n->value.dtype == DTYPE_PLAIN && node_spec(n)->kind == OPERATION_POINT)
            numbers[i] = number_of(n->op, numbers[n->arg[0]], n->arg[1] >= 0 ? numbers[n->arg[1]] : 0,
                                   n->arg[2] >= 0 ? numbers[n->arg[2]] : 0);
    }
}

int step_numbers_set(struct program_step *step, const struct program *p, const double numbers[], struct error *e)
{
    const struct code_head *h = (const struct code_head *)(const void *)step->words;
    struct code_instruction *i = (struct code_instruction *)(void *)((unsigned char *)(step->words) + sizeof(*h) +
                                                                     (size_t)h->operands * sizeof(struct code_operand));

    for (uint32_t k = 0; k < step->nnumbers; k++) {
        const struct node *n = &p->nodes[step->numbers[k].node];
        struct code_instruction *to = &i[step->numbers[k].instruction];
        if (to->op == CODE_NUMBER) {
            to->number = numbers[step->numbers[k].node];
            continue;
        }
        to->number = numbers[n->arg[1]];
        to->key = dropout_key(numbers[n->arg[2]], numbers[n->arg[3]], n->integer[0]);
        if (!(to->number >= 0 && to->number < 1))
            return error_set(e, -EINVAL, "line %d: dropout: probability %g: allowed are 0 to less than 1", n->line, to->number);
    }
    return 0;
}
