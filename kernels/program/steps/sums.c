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

/* ---- behind the step ---- */

#define ADDED_AT_ONCE (CODE_TENSORS / 2) /* sums of pieces that one step adds up: each has two tensors */

/* Adds up the sums of pieces of n sums, which all have as many: to[i] gets the i-th. */
static int pieces_add(struct stepping *s, const struct sum_plan sums[], int n, const struct step_place to[], double divisor,
                      const bool roots[])
{
    struct code_operand operands[2 * ADDED_AT_ONCE];
    struct code_instruction code[2 * ADDED_AT_ONCE];

    for (int i = 0; i < n; i++) {
        const int32_t line = s->p->nodes[sums[i].node].line;
        const uint8_t in = (uint8_t)(2 * i), out = (uint8_t)(2 * i + 1);
        operands[in] = (struct code_operand){.tensor = in, .index = CODE_OWN, .div = 1, .length = 1};
        operands[out] = (struct code_operand){.tensor = out, .index = CODE_EACH, .div = sums[i].pieces, .length = 1};
        code[in] = (struct code_instruction){.op = CODE_LOAD, .from = {0, in}, .line = line};
        code[out] =
            (struct code_instruction){.op = CODE_SUM, .from = {0, out}, .line = line, .number = divisor, .key = roots[i]};
    }
    const struct code_head head = {.kind = CODE_ELEMENTS,
                                   .rows = sums[0].pieces,
                                   .inner = 1,
                                   .result = CODE_NO_RESULT,
                                   .operands = 2 * n,
                                   .instructions = 2 * n};
    struct program_step *step = step_write(s, sums[0].node, &head, operands, code);
    if (!step)
        return s->e->status;
    for (int i = 0; i < n; i++) {
        step->t[2 * i] = sums[i].to;
        step->t[2 * i + 1] = to[i];
    }
    step->ntensors = 2 * n;
    return 0;
}

/* Adds up the ranks' n sums, one behind the other from *own on; and makes the mean or norm of each, which all of them are. Of tensors, these of each. */
static int ranks_add(struct stepping *s, const struct sum_plan sums[], int n, const struct step_place *own)
{
    const struct node *node = &s->p->nodes[sums[0].node];
    const int64_t each = sums[0].tensors ? s->p->tensors : 1;
    const struct value all = {.dtype = FCC_F32, .layout = LAYOUT_REPLICATED, .ndim = 1, .shape = {n * each}};
    struct code_instruction code[4];
    struct step_place out;
    int count = 0;

    if (is_mean(node)) {
        code[count++] = (struct code_instruction){
            .op = CODE_NUMBER, .to = 1, .line = node->line, .number = (double)value_elements(&s->p->nodes[node->arg[0]].value)};
        code[count++] = (struct code_instruction){.op = OP_DIV, .from = {0, 1}, .line = node->line};
    }
    if (is_norm(node))
        code[count++] = (struct code_instruction){.op = OP_SQRT, .line = node->line};
    const struct code_head head = {
        .kind = CODE_REDUCE, .rows = n * each, .inner = 1, .sliced = 1, .result = 0, .instructions = count};
    if (temporary_new(s, &all, true, &out))
        return s->e->status;
    struct program_step *step = step_write(s, sums[0].node, &head, NULL, code);
    if (!step)
        return s->e->status;
    step->in = *own;
    step->out = out;
    for (int i = 0; i < n; i++) {
        s->place[sums[i].node] = out;
        s->place[sums[i].node].offset = i * each;
        s->place[sums[i].node].length = each;
    }
    return 0;
}

/* Sums that are made of pieces, of a tensor of which each rank has all: the same is done with all of them at the end, or not, but for roots. */
static int whole_finish(struct stepping *s, const struct sum_plan sums[], int n)
{
    const struct node *node = &s->p->nodes[sums[0].node];
    struct step_place to[ADDED_AT_ONCE];
    bool roots[ADDED_AT_ONCE];

    for (int i = 0; i < n; i++) {
        if (stored_place(s, sums[i].node))
            return s->e->status;
        to[i] = s->place[sums[i].node];
        roots[i] = is_norm(&s->p->nodes[sums[i].node]);
    }
    return pieces_add(s, sums, n, to, is_mean(node) ? (double)value_elements(&s->p->nodes[node->arg[0]].value) : 1, roots);
}

/* ... of which each rank has a slice. */
static int slices_finish(struct stepping *s, const struct sum_plan sums[], int n)
{
    const struct value own = {.dtype = FCC_F32, .layout = LAYOUT_LOCAL, .ndim = 1, .shape = {n}};
    struct step_place to[ADDED_AT_ONCE];
    const bool roots[ADDED_AT_ONCE] = {false};

    if (temporary_new(s, &own, false, &to[0]))
        return s->e->status;
    const struct step_place all = to[0];
    for (int i = 0; i < n; i++) {
        to[i] = all;
        to[i].offset = i;
        to[i].length = 1;
    }
    return pieces_add(s, sums, n, to, 1, roots) ? s->e->status : ranks_add(s, sums, n, &all);
}

/* Whether what is done with both at the end is the same. */
static bool ends_alike(const struct stepping *s, const struct sum_plan *a, const struct sum_plan *b)
{
    const struct node *x = &s->p->nodes[a->node], *y = &s->p->nodes[b->node];
    const struct value *v = &s->p->nodes[x->arg[0]].value, *w = &s->p->nodes[y->arg[0]].value;

    return is_norm(x) == is_norm(y) && is_mean(x) == is_mean(y) && a->pieces == b->pieces && v->layout == w->layout &&
           value_elements(v) == value_elements(w);
}

int sums_finish(struct stepping *s, const struct sum_plan sums[], int n)
{
    for (int i = 0, some; i < n; i += some) {
        const struct value *v = &s->p->nodes[s->p->nodes[sums[i].node].arg[0]].value;
        const bool sliced = v->layout == LAYOUT_SLICED;
        for (some = 1; i + some < n && some < ADDED_AT_ONCE && !sums[i].tensors && ends_alike(s, &sums[i], &sums[i + some]);)
            some++;
        int status = 0;
        if (sums[i].tensors)
            status = sliced ? ranks_add(s, &sums[i], 1, &sums[i].to) : 0;
        else if (sums[i].pieces)
            status = sliced ? slices_finish(s, &sums[i], some) : whole_finish(s, &sums[i], some);
        if (status)
            return status;
    }
    return 0;
}
