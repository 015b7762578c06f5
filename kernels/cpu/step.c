/* SPDX-License-Identifier: MIT
 *
 * step.c - the interpreter of steps. Each instruction is a loop over a block, of constant length, of which the compiler makes vector code; no two
 * instructions are joined, so an element has the same bits in whatever group its statement runs.
 */
#include "kernels/cpu/step.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/plan/dtype.h"

/* to[i] = EXPRESSION of x = a[i], y = b[i]. `to` may be a or b. */
#define PAIR(name, EXPRESSION)                                                                                                 \
    FCC_CLONES static void name(float *to, const float *a, const float *b)                                                     \
    {                                                                                                                          \
        for (int i = 0; i < COMBINE_BLOCK; i++) {                                                                              \
            const float x = a[i], y = b[i];                                                                                    \
            to[i] = (float)(EXPRESSION);                                                                                       \
        }                                                                                                                      \
    }
#define SINGLE(name, EXPRESSION)                                                                                               \
    FCC_CLONES static void name(float *to, const float *a)                                                                     \
    {                                                                                                                          \
        for (int i = 0; i < COMBINE_BLOCK; i++) {                                                                              \
            const float x = a[i];                                                                                              \
            to[i] = (float)(EXPRESSION);                                                                                       \
        }                                                                                                                      \
    }

PAIR(step_add, x + y)
PAIR(step_sub, x - y)
PAIR(step_mul, x *y)
PAIR(step_div, x / y)
PAIR(step_lt, x < y)
PAIR(step_le, x <= y)
PAIR(step_gt, x > y)
PAIR(step_ge, x >= y)
PAIR(step_eq, x == y)
PAIR(step_ne, x != y)
PAIR(step_max, x > y || x != x ? x : y)
PAIR(step_min, x < y || x != x ? x : y)
PAIR(step_pow, powf(x, y))
SINGLE(step_neg, -x)
SINGLE(step_abs, fabsf(x))
SINGLE(step_sqrt, sqrtf(x))
SINGLE(step_rsqrt, 1.0f / sqrtf(x))
SINGLE(step_exp, expf(x))
SINGLE(step_log, logf(x))
SINGLE(step_tanh, tanhf(x))
SINGLE(step_sigmoid, 1.0f / (1.0f + expf(-x)))
SINGLE(step_relu, x > 0 || x != x ? x : 0)
SINGLE(step_gelu, 0.5f * x * (1.0f + erff(x * 0.70710678f)))
SINGLE(step_silu, x / (1.0f + expf(-x)))

static void (*const pairs[OPERATIONS])(float *, const float *, const float *) = {
    [OP_ADD] = step_add, [OP_SUB] = step_sub, [OP_MUL] = step_mul, [OP_DIV] = step_div, [OP_LT] = step_lt,
    [OP_LE] = step_le,   [OP_GT] = step_gt,   [OP_GE] = step_ge,   [OP_EQ] = step_eq,   [OP_NE] = step_ne,
    [OP_MAX] = step_max, [OP_MIN] = step_min, [OP_POW] = step_pow,
};
static void (*const singles[OPERATIONS])(float *, const float *) = {
    [OP_NEG] = step_neg,   [OP_ABS] = step_abs,   [OP_SQRT] = step_sqrt, [OP_RSQRT] = step_rsqrt,
    [OP_EXP] = step_exp,   [OP_LOG] = step_log,   [OP_TANH] = step_tanh, [OP_SIGMOID] = step_sigmoid,
    [OP_RELU] = step_relu, [OP_GELU] = step_gelu, [OP_SILU] = step_silu,
};

FCC_CLONES static void step_select(float *to, const float *condition, const float *a, const float *b)
{
    for (int i = 0; i < COMBINE_BLOCK; i++)
        to[i] = condition[i] != 0 ? a[i] : b[i];
}

FCC_CLONES static void step_dropout(float *to, const float *a, const struct code_instruction *d, int64_t at)
{
    const uint32_t dropped = (uint32_t)ceil(d->number * 0x1p24);
    const float keep = (float)(1 - d->number);

    for (int i = 0; i < COMBINE_BLOCK; i++)
        to[i] = dropout_bits(d->key, (uint64_t)(at + i)) < dropped ? 0 : a[i] / keep;
}

/* What a dtype of 16 bits leaves of the elements. */
static void step_round(float *to, const float *a, unsigned op)
{
    const enum fcc_dtype dtype = op == OP_F16 ? FCC_F16 : FCC_BF16;
    uint16_t halves[COMBINE_BLOCK];

    dtype_from_f32(halves, a, dtype, COMBINE_BLOCK);
    dtype_to_f32(to, halves, dtype, COMBINE_BLOCK);
}

/* Elements of a tensor that is repeated. */
static void stretched_load(float *to, const struct tensor *t, const struct code_operand *o, int64_t at, size_t n)
{
    const size_t size = dtype_size(t->dtype);

    for (size_t done = 0, count; done < n; done += count) {
        const int64_t element = at + (int64_t)done,
                      index = o->index == CODE_EACH ? element / o->div : element / o->div % o->length;
        float value;
        if (o->div == 1 && o->index == CODE_STRETCHED) { /* a piece of a row */
            count = (size_t)(o->length - index) < n - done ? (size_t)(o->length - index) : n - done;
            dtype_to_f32(to + done, t->data + (size_t)index * size, t->dtype, count);
            continue;
        }
        const int64_t left = o->div - element % o->div;
        count = (size_t)left < n - done ? (size_t)left : n - done;
        dtype_to_f32(&value, t->data + (size_t)index * size, t->dtype, 1);
        for (size_t i = 0; i < count; i++)
            to[done + i] = value;
    }
}

/* Where element `at` of all is in an operand's tensor, and those of its block behind it. */
static int64_t element_at(const struct step *s, const struct code_operand *o, int64_t at)
{
    const int64_t *places = s->places[o->tensor == CODE_OUT ? STEP_OUT : STEP_TENSOR + o->tensor];

    assert(!places || s->code.begins);
    if (places)
        return places[s->tensor] + at - s->code.begins[s->tensor];
    return o->index == CODE_OWN ? at - s->begin : at;
}

unsigned char *step_place(const struct step *s, const struct op_args *args, int index, int64_t at)
{
    const int64_t *places = s->code.begins ? step_places(args, &s->code, index) : NULL;
    const int64_t tensor = places ? code_tensor_of(&s->code, at) : 0;

    return args->tensors[index].data +
           (size_t)(places ? places[tensor] + at - s->code.begins[tensor] : at) * dtype_size(args->tensors[index].dtype);
}

size_t step_block_size(const struct step *s, int64_t at, int64_t left)
{
    if (s->code.begins) {
        const int64_t tensor = s->code.begins[code_tensor_of(&s->code, at) + 1] - at;
        left = tensor < left ? tensor : left;
    }
    return left < COMBINE_BLOCK ? (size_t)left : COMBINE_BLOCK;
}

/* The number of a table's tensor, for all elements of the block. */
static void tensor_load(float *to, const struct tensor *t, int64_t tensor)
{
    float value;

    dtype_to_f32(&value, t->data + (size_t)tensor * dtype_size(t->dtype), t->dtype, 1);
    for (int i = 0; i < COMBINE_BLOCK; i++)
        to[i] = value;
}

/* Where the rank's own element of this number is in rows of which the step works on the first some. Returns how many of `left` follow it there. */
static size_t part_place(const struct code_operand *o, int64_t element, size_t left, int64_t *at)
{
    const int64_t in_row = element % o->length, row = o->length - in_row;

    *at = element / o->length * o->div + in_row;
    return row < (int64_t)left ? (size_t)row : left;
}

static void part_load(float *to, const struct tensor *t, const struct code_operand *o, int64_t first, size_t n)
{
    int64_t at;

    for (size_t done = 0, count; done < n; done += count) {
        count = part_place(o, first + (int64_t)done, n - done, &at);
        dtype_to_f32(to + done, t->data + (size_t)at * dtype_size(t->dtype), t->dtype, count);
    }
}

static void part_store(const float *from, const struct tensor *t, const struct code_operand *o, int64_t first, size_t n)
{
    int64_t at;

    for (size_t done = 0, count; done < n; done += count) {
        count = part_place(o, first + (int64_t)done, n - done, &at);
        dtype_from_f32(t->data + (size_t)at * dtype_size(t->dtype), from + done, t->dtype, count);
    }
}

/* A whole block of f32 is read where it is; anything else is converted into the register's block, and so is what the code stores into: the register
 * keeps what was there before. */
static void load(struct step *s, const struct code_instruction *i, int64_t at, size_t n)
{
    const struct code_operand *o = &s->code.operands[i->from[1]];
    const struct tensor *t = step_tensor(s->args, o);
    const int64_t first = element_at(s, o, at);

    s->value[i->to] = s->block[i->to];
    if (o->index == CODE_PART)
        part_load(s->block[i->to], t, o, at - s->begin, n);
    else if (o->index == CODE_TENSOR)
        tensor_load(s->block[i->to], t, s->tensor);
    else if (o->index == CODE_STRETCHED || o->index == CODE_EACH)
        stretched_load(s->block[i->to], t, o, o->index == CODE_EACH ? at - s->begin : at, n);
    else if (t->dtype == FCC_F32 && n == COMBINE_BLOCK && !(s->stores >> o->tensor & 1))
        s->value[i->to] = (const float *)(const void *)t->data + first;
    else
        dtype_to_f32(s->block[i->to], t->data + (size_t)first * dtype_size(t->dtype), t->dtype, n);
}

static void store(const struct step *s, const struct code_instruction *i, int64_t at, size_t n)
{
    const struct code_operand *o = &s->code.operands[i->from[1]];
    const struct tensor *t = step_tensor(s->args, o);

    if (o->index == CODE_PART) {
        part_store(s->value[i->from[0]], t, o, at - s->begin, n);
        return;
    }
    dtype_from_f32(t->data + (size_t)element_at(s, o, at) * dtype_size(t->dtype), s->value[i->from[0]], t->dtype, n);
}

void step_begin(struct step *s, const struct op_args *args, struct code code, int64_t begin, int64_t end)
{
    s->args = args;
    s->code = code;
    s->stores = code_stores(&s->code);
    s->begin = begin;
    s->end = end;
    s->tensor = 0;
    for (int i = 0; i < STEP_TENSOR + CODE_TENSORS; i++)
        s->places[i] = s->code.begins ? step_places(args, &s->code, i) : NULL;
    for (int64_t k = 0, sums = 0; k < s->code.head->instructions; k++)
        if (s->code.instructions[k].op == CODE_SUM)
            memset(&s->sums[sums++], 0, sizeof(s->sums[0]));
    memset(s->block[0], 0, sizeof(s->block[0]));
    s->value[0] = s->block[0];
    for (int64_t k = 0; k < s->code.head->instructions && s->code.instructions[k].op == CODE_NUMBER; k++) {
        const struct code_instruction *i = &s->code.instructions[k];
        for (int j = 0; j < COMBINE_BLOCK; j++)
            s->block[i->to][j] = (float)i->number;
        s->value[i->to] = s->block[i->to];
    }
}

/* Adds n elements, of which the first is element `index` of its sum, to their lanes, which follow each other. */
FCC_CLONES static void lanes_run(double *lanes, const float *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        lanes[i] += (double)a[i];
}

static void lanes_add(struct step_sum *sum, const float *a, int64_t index, size_t n)
{
    for (size_t done = 0, count; done < n; done += count) {
        const size_t lane = (size_t)((index + (int64_t)done) % CODE_SUM_LANES);
        count = CODE_SUM_LANES - lane < n - done ? CODE_SUM_LANES - lane : n - done;
        lanes_run(sum->lanes + lane, a + done, count);
        if (lane + count > sum->used)
            sum->used = (lane + count + 3) / 4 * 4;
    }
}

/* Adds lane k + d to lane k, wherever both are used, for the k of whose bits d is none. */
FCC_CLONES static void lanes_pair(double *lanes, size_t used, size_t d)
{
    for (size_t k = 0; k + d < used; k += 2 * d)
        for (size_t i = k; i < k + d && i + d < used; i++)
            lanes[i] += lanes[i + d];
}

/* The sum of all lanes, which are 0 then. */
static double lanes_total(struct step_sum *sum)
{
    for (size_t d = 4; d < sum->used; d *= 2)
        lanes_pair(sum->lanes, sum->used, d);
    for (size_t d = 2; d; d /= 2)
        lanes_pair(sum->lanes, 2 * d, d);
    const double total = sum->lanes[0];
    memset(sum->lanes, 0, sum->used * sizeof(sum->lanes[0]));
    sum->used = 0;
    return total;
}

static double pieces_total(struct step_sum *sum)
{
    for (size_t d = 1; d < CODE_SUM_PIECES; d *= 2)
        lanes_pair(sum->pieces, CODE_SUM_PIECES, d);
    const double total = sum->pieces[0];
    memset(sum->pieces, 0, sizeof(sum->pieces));
    return total;
}

static void sum_store(const struct code_instruction *i, const struct tensor *t, int64_t index, double total)
{
    const float result = (float)(i->key ? sqrt(total / i->number) : total / i->number);

    dtype_from_f32(t->data + (size_t)index * dtype_size(t->dtype), &result, t->dtype, 1);
}

/* Of the block's tensor, piece by piece. Tensors that the rank has no element of have the sum 0, which the first block stores. */
static void tensor_sum(struct step *s, const struct code_instruction *i, struct step_sum *sum, int64_t at, size_t n)
{
    const struct tensor *t = step_tensor(s->args, &s->code.operands[i->from[1]]);
    const float *a = s->value[i->from[0]];
    const int64_t *begins = s->code.begins;

    assert(begins);
    if (at == s->begin)
        memset(t->data, 0, (size_t)s->code.head->tensors * dtype_size(t->dtype));
    for (size_t done = 0, count; done < n; done += count) {
        const int64_t index = at + (int64_t)done - begins[s->tensor], piece = index / CODE_SUM_PIECE,
                      left = (piece + 1) * CODE_SUM_PIECE - index;
        count = (size_t)left < n - done ? (size_t)left : n - done;
        lanes_add(sum, a + done, index, count);
        const int64_t end = at + (int64_t)(done + count);
        const bool ends = end == begins[s->tensor + 1] || end == s->end;
        if (ends || count == (size_t)left)
            sum->pieces[piece % CODE_SUM_PIECES] += lanes_total(sum);
        if (ends)
            sum_store(i, t, s->tensor, pieces_total(sum));
    }
}

static void sum(struct step *s, const struct code_instruction *i, struct step_sum *sum, int64_t at, size_t n)
{
    const struct code_operand *o = &s->code.operands[i->from[1]];
    const struct tensor *t = step_tensor(s->args, o);
    const float *a = s->value[i->from[0]];

    for (size_t done = 0, count; done < n; done += count) {
        const int64_t own = at - s->begin + (int64_t)done, index = own % o->div, left = o->div - index;
        count = (size_t)left < n - done ? (size_t)left : n - done;
        lanes_add(sum, a + done, index, count);
        if (count < (size_t)left && own + (int64_t)count < s->end - s->begin)
            continue;
        sum_store(i, t, own / o->div, lanes_total(sum));
    }
}

static void instruction_do(struct step *s, const struct code_instruction *i, int64_t at, size_t n)
{
    float *to = s->block[i->to];
    const float *const a = s->value[i->from[0]];

    if (i->op == CODE_LOAD) {
        load(s, i, at, n);
        return;
    }
    if (i->op == CODE_STORE) {
        store(s, i, at, n);
        return;
    }
    if (i->op == CODE_NUMBER)
        return;
    if (i->op == OP_SELECT)
        step_select(to, a, s->value[i->from[1]], s->value[i->from[2]]);
    else if (i->op == OP_DROPOUT)
        step_dropout(to, a, i, at);
    else if (i->op == OP_F16 || i->op == OP_BF16)
        step_round(to, a, i->op);
    else if (i->op == OP_F32)
        memmove(to, a, sizeof(s->block[0]));
    else if (pairs[i->op])
        pairs[i->op](to, a, s->value[i->from[1]]);
    else
        singles[i->op](to, a);
    s->value[i->to] = to;
}

void step_block(struct step *s, int64_t at, size_t n)
{
    int sums = 0;

    s->value[0] = s->block[0];
    s->tensor = s->code.begins ? code_tensor_of(&s->code, at) : 0;
    for (int64_t k = 0; k < s->code.head->instructions; k++) {
        const struct code_instruction *i = &s->code.instructions[k];
        if (i->op != CODE_SUM)
            instruction_do(s, i, at, n);
        else if (s->code.operands[i->from[1]].index == CODE_TENSOR)
            tensor_sum(s, i, &s->sums[sums++], at, n);
        else
            sum(s, i, &s->sums[sums++], at, n);
    }
}
