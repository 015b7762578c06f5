/* SPDX-License-Identifier: MIT
 *
 * sums.c - sums, means and norms in steps. A sum of a row is whole in its step. That of a whole tensor is made of sums of pieces, which a step of its own
 * adds up; and where the tensor is sliced, the ranks' sums are added up by one more, whose result all ranks get.
 */
#include "kernels/program/inside.h"
#include "kernels/program/steps/inside.h"

#define PIECE CODE_SUM_PIECE /* elements: so few have no pieces, where each rank has them all */

static bool is_of_tensors(const struct node *n)
{
    return node_spec(n)->kind == OPERATION_TENSORS;
}

bool node_is_sum(const struct node *n)
{
    return node_spec(n)->kind == OPERATION_ROWS || node_spec(n)->kind == OPERATION_WHOLE || is_of_tensors(n);
}

static bool is_norm(const struct node *n)
{
    return n->op == OP_NORM || n->op == OP_ROW_NORM || n->op == OP_TENSOR_NORM;
}

static bool is_mean(const struct node *n)
{
    return n->op == OP_MEAN || n->op == OP_ROW_MEAN;
}

static bool is_whole(const struct node *n)
{
    return node_spec(n)->kind == OPERATION_WHOLE;
}

/* Sums of as many pieces as the rank with the longest slice has; what others have not stays 0. */
static int64_t pieces_most(const struct stepping *s, const struct value *v)
{
    int64_t n = value_elements(v), most = 0;

    for (int r = 0; r < s->p->nranks && v->layout == LAYOUT_SLICED; r++) {
        const int64_t own = value_elements_of(v, s->p->nranks, r);
        most = own > most ? own : most;
    }
    n = v->layout == LAYOUT_SLICED ? most : n;
    return n > PIECE ? (n + PIECE - 1) / PIECE : 1;
}

int sum_plan(struct stepping *s, int32_t node, struct sum_plan *out)
{
    const struct node *n = &s->p->nodes[node];
    const struct value *v = &s->p->nodes[n->arg[0]].value;
    const int64_t all = is_whole(n) ? value_elements(v) : v->shape[v->ndim - 1];

    *out = (struct sum_plan){.node = node, .square = is_norm(n), .each = all, .divisor = is_mean(n) ? (double)all : 1};
    if (is_of_tensors(n)) {
        out->tensors = true;
        out->each = 1;
        if (v->layout == LAYOUT_SLICED) {
            const struct value sums = {.dtype = FCC_F32, .layout = LAYOUT_LOCAL, .ndim = 1, .shape = {s->p->tensors}};
            return temporary_new(s, &sums, false, &out->to);
        }
        out->root = is_norm(n);
        if (stored_place(s, node))
            return s->e->status;
        out->to = s->place[node];
        return 0;
    }
    if (all == 0 && (is_mean(n) || !is_whole(n)))
        return step_refuse(n, "of 0 elements: allowed are 1 and more", s->e);
    if (!is_whole(n) || (v->layout != LAYOUT_SLICED && all <= PIECE)) {
        out->each = all ? all : 1;
        out->root = is_norm(n);
        if (stored_place(s, node))
            return s->e->status;
        out->to = s->place[node];
        return 0;
    }
    out->pieces = pieces_most(s, v);
    out->each = PIECE;
    out->divisor = 1;
    const struct value sums = {.dtype = FCC_F32, .layout = LAYOUT_LOCAL, .ndim = 1, .shape = {out->pieces}};
    return temporary_new(s, &sums, false, &out->to);
}

struct program_step *step_write(struct stepping *s, int32_t node, const struct code_head *head,
                                const struct code_operand operands[], const struct code_instruction code[])
{
    const size_t first = sizeof(*head), second = (size_t)head->operands * sizeof(*operands),
                 third = (size_t)head->instructions * sizeof(*code),
                 bytes = first + second + third + (head->tensors ? ((size_t)head->tensors + 1) * sizeof(int64_t) : 0);
    struct program_step *step = step_add(s, STEP_OF_CODE, node);
    unsigned char *words = calloc(1, bytes);

    if (!step || !words) {
        free(words);
        (void)program_no_memory(s->e);
        return NULL;
    }
    memcpy(words, head, first);
    if (operands)
        memcpy(words + first, operands, second);
    memcpy(words + first + second, code, third);
    step->words = (int64_t *)(void *)words;
    step->nwords = bytes / sizeof(int64_t);
    if (head->tensors) /* until it is said how long they are, the last one has all */
        step->words[step->nwords - 1] = head->rows * head->inner;
    return step;
}

/* Adds up the sums of pieces. */
static int pieces_add(struct stepping *s, const struct sum_plan *sum, const struct step_place *to, double divisor, bool root)
{
    const int32_t line = s->p->nodes[sum->node].line;
    const struct code_head head = {
        .kind = CODE_ELEMENTS, .rows = sum->pieces, .inner = 1, .result = CODE_NO_RESULT, .operands = 2, .instructions = 2};
    const struct code_operand operands[] = {{.tensor = 0, .index = CODE_OWN, .div = 1, .length = 1},
                                            {.tensor = 1, .index = CODE_EACH, .div = sum->pieces, .length = 1}};
    const struct code_instruction code[] = {{.op = CODE_LOAD, .line = line},
                                            {.op = CODE_SUM, .from = {0, 1}, .line = line, .number = divisor, .key = root}};
    struct program_step *step = step_write(s, sum->node, &head, operands, code);

    if (!step)
        return s->e->status;
    step->t[0] = sum->to;
    step->t[1] = *to;
    step->ntensors = 2;
    return 0;
}

/* Adds up the ranks' sums; and the mean or norm of that. Of tensors, these of each. */
static int ranks_add(struct stepping *s, const struct sum_plan *sum, const struct step_place *own)
{
    const struct node *n = &s->p->nodes[sum->node];
    struct code_instruction code[4];
    int count = 0;

    if (is_mean(n)) {
        code[count++] = (struct code_instruction){
            .op = CODE_NUMBER, .to = 1, .line = n->line, .number = (double)value_elements(&s->p->nodes[n->arg[0]].value)};
        code[count++] = (struct code_instruction){.op = OP_DIV, .from = {0, 1}, .line = n->line};
    }
    if (is_norm(n))
        code[count++] = (struct code_instruction){.op = OP_SQRT, .line = n->line};
    const struct code_head head = {.kind = CODE_REDUCE,
                                   .rows = sum->tensors ? s->p->tensors : 1,
                                   .inner = 1,
                                   .sliced = 1,
                                   .result = 0,
                                   .instructions = count};
    if (temporary_new(s, &n->value, true, &s->place[sum->node]))
        return s->e->status;
    struct program_step *step = step_write(s, sum->node, &head, NULL, code);
    if (!step)
        return s->e->status;
    step->in = *own;
    step->out = s->place[sum->node];
    return 0;
}

int sum_end(struct stepping *s, const struct sum_plan *sum)
{
    const struct node *n = &s->p->nodes[sum->node];
    const struct value *v = &s->p->nodes[n->arg[0]].value,
                       one = {.dtype = FCC_F32, .layout = LAYOUT_LOCAL, .ndim = 1, .shape = {1}};
    struct step_place own;

    if (sum->tensors)
        return v->layout == LAYOUT_SLICED ? ranks_add(s, sum, &sum->to) : 0;
    if (sum->pieces == 0)
        return 0;
    if (v->layout != LAYOUT_SLICED) {
        if (stored_place(s, sum->node))
            return s->e->status;
        return pieces_add(s, sum, &s->place[sum->node], is_mean(n) ? (double)value_elements(v) : 1, is_norm(n));
    }
    if (temporary_new(s, &one, false, &own) || pieces_add(s, sum, &own, 1, false))
        return s->e->status;
    return ranks_add(s, sum, &own);
}
