/* SPDX-License-Identifier: MIT
 *
 * code.c - the check of an element step's words, which come from another process.
 */
#include "kernels/program/code.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define HEAD_WORDS (sizeof(struct code_head) / sizeof(int64_t))
#define OPERAND_WORDS (sizeof(struct code_operand) / sizeof(int64_t))
#define INSTRUCTION_WORDS (sizeof(struct code_instruction) / sizeof(int64_t))

static int head_check(const struct code_head *h, size_t count, struct error *e)
{
    if (h->kind < CODE_ELEMENTS || h->kind > CODE_GATHER)
        return error_set(e, -EINVAL, "code: kind %" PRId64 ": allowed are %d to %d", h->kind, CODE_TEXT, CODE_GATHER);
    if (h->rows < 0 || h->inner < 1 || h->rows > PROGRAM_ELEMENTS_MAX || h->inner > PROGRAM_ELEMENTS_MAX ||
        (__int128)h->rows * h->inner > PROGRAM_ELEMENTS_MAX)
        return error_set(e, -EINVAL,
                         "code: %" PRId64 " rows of %" PRId64
                         " elements: allowed are 0 and more, of 1 and more, together at most %" PRId64,
                         h->rows, h->inner, PROGRAM_ELEMENTS_MAX);
    if (h->sliced < 0 || h->sliced > 1 || (h->kind != CODE_ELEMENTS && !h->sliced))
        return error_set(e, -EINVAL, "code: sliced %" PRId64 ": allowed is 1, and without a sum or a result 0", h->sliced);
    if (h->operands < 0 || h->operands > CODE_OPERANDS_MAX || h->instructions < 0 || h->instructions > CODE_INSTRUCTIONS_MAX)
        return error_set(e, -EINVAL, "code: %" PRId64 " operands, %" PRId64 " instructions: allowed are 0 to %d and %d",
                         h->operands, h->instructions, CODE_OPERANDS_MAX, CODE_INSTRUCTIONS_MAX);
    if (h->tensors < 0 || h->tensors > PROGRAM_TABLE_MAX)
        return error_set(e, -EINVAL, "code: a table of %" PRId64 " tensors: allowed are 0 to %d", h->tensors,
                         PROGRAM_TABLE_MAX);
    const size_t words = HEAD_WORDS + (size_t)h->operands * OPERAND_WORDS + (size_t)h->instructions * INSTRUCTION_WORDS +
                         (h->tensors ? (size_t)h->tensors + 1 : 0);
    if (count != words)
        return error_set(e, -EINVAL, "code: %zu words: its head says %zu", count, words);
    return 0;
}

static int operand_check(const struct code_operand *o, const struct code_head *h, struct error *e)
{
    if (o->tensor < 0 || o->tensor > CODE_OUT ||
        (o->tensor == CODE_OUT && (h->kind == CODE_ELEMENTS || h->result == CODE_NO_RESULT)))
        return error_set(e, -EINVAL, "code: operand's tensor %" PRId64 ": allowed are 0 to %d, and %d with a result", o->tensor,
                         CODE_TENSORS - 1, CODE_OUT);
    if (o->index < CODE_OWN || o->index > CODE_PART || (o->index == CODE_TENSOR && !h->tensors))
        return error_set(e, -EINVAL, "code: operand's index %" PRId64 ": allowed are 0 to %d, and %d with a table", o->index,
                         CODE_PART, CODE_TENSOR);
    if (o->div < 1 || o->length < 1 || o->div > PROGRAM_ELEMENTS_MAX || o->length > PROGRAM_ELEMENTS_MAX)
        return error_set(e, -EINVAL, "code: operand's div %" PRId64 ", length %" PRId64 ": allowed are 1 to %" PRId64, o->div,
                         o->length, PROGRAM_ELEMENTS_MAX);
    if (o->index == CODE_PART && (o->tensor == CODE_OUT || o->div < o->length))
        return error_set(e, -EINVAL,
                         "code: %" PRId64 " elements of rows of %" PRId64 ", in tensor %" PRId64
                         ": allowed are at most as many, in another one than out",
                         o->length, o->div, o->tensor);
    if ((o->index == CODE_EACH || o->index == CODE_TENSOR) &&
        (o->length != 1 || o->tensor == CODE_OUT || (o->index == CODE_TENSOR && o->div != 1)))
        return error_set(e, -EINVAL,
                         "code: one for each %" PRId64 " elements, of length %" PRId64 ", in tensor %" PRId64
                         ": allowed is length 1, in another one than out",
                         o->div, o->length, o->tensor);
    return 0;
}

/* How many registers an instruction reads; -1: there is no such instruction. */
static int reads(unsigned op)
{
    if (op == CODE_LOAD || op == CODE_NUMBER)
        return 0;
    if (op == CODE_STORE || op == CODE_SUM || op == OP_DROPOUT)
        return 1;
    return op < OPERATIONS && operation_specs[op].kind == OPERATION_POINT ? operation_specs[op].arguments : -1;
}

static int instruction_check(const struct code_head *h, const struct code_operand *operands, const struct code_instruction *i,
                             uint64_t *set, bool *begun, struct error *e)
{
    static const uint8_t zeros[3];
    const int n = reads(i->op);
    const bool moves = i->op == CODE_LOAD || i->op == CODE_STORE || i->op == CODE_SUM;

    if (n < 0 || memcmp(i->zero, zeros, sizeof(zeros)) != 0 || i->zero_too)
        return error_set(e, -EINVAL, "code: line %d: instruction %u: there is none of this form", i->line, i->op);
    if (i->to >= CODE_REGISTERS || (moves && i->from[1] >= h->operands))
        return error_set(e, -EINVAL, "code: line %d: register %u, operand %u: allowed are 0 to %d, and operands that there are",
                         i->line, i->to, i->from[1], CODE_REGISTERS - 1);
    for (int k = n; k < 3; k++)
        if (i->from[k] && !(moves && k == 1))
            return error_set(e, -EINVAL, "code: line %d: instruction %u: register %u, which it does not read: allowed is 0",
                             i->line, i->op, i->from[k]);
    for (int k = 0; k < n; k++)
        if (i->from[k] >= CODE_REGISTERS || !(*set >> i->from[k] & 1))
            return error_set(e, -EINVAL, "code: line %d: register %u has no value", i->line, i->from[k]);
    if (i->op == CODE_STORE && ((operands[i->from[1]].index != CODE_OWN && operands[i->from[1]].index != CODE_PART) ||
                                operands[i->from[1]].tensor == CODE_OUT))
        return error_set(e, -EINVAL, "code: line %d: a store to what is not the rank's own", i->line);
    if (i->op == CODE_SUM &&
        (operands[i->from[1]].index != CODE_EACH && (operands[i->from[1]].index != CODE_TENSOR || h->kind != CODE_ELEMENTS)))
        return error_set(e, -EINVAL,
                         "code: line %d: a sum whose operand is of another kind, or of tensors in a step that other ranks "
                         "have a part in",
                         i->line);
    if (i->op == CODE_SUM && (i->key > 1 || !(i->number > 0)))
        return error_set(e, -EINVAL, "code: line %d: a sum divided by %g: allowed is more than 0", i->line, i->number);
    if (i->op == CODE_NUMBER && *begun)
        return error_set(e, -EINVAL, "code: line %d: a number behind other instructions", i->line);
    if (i->op == OP_DROPOUT && !(i->number >= 0 && i->number < 1))
        return error_set(e, -EINVAL, "line %d: dropout: probability %g: allowed are 0 to less than 1", i->line, i->number);
    *begun |= i->op != CODE_NUMBER;
    if (i->op != CODE_STORE && i->op != CODE_SUM)
        *set |= UINT64_C(1) << i->to;
    return 0;
}

/* Sums of a step are as many elements each, and each is stored by one instruction, as tiles keep them for themselves until then. */
static int sums_check(const struct code *code, struct error *e)
{
    uint32_t stored = 0;
    int64_t each = 0;
    int sums = 0;

    for (int64_t k = 0; k < code->head->instructions; k++) {
        const struct code_instruction *i = &code->instructions[k];
        if (i->op != CODE_SUM)
            continue;
        const struct code_operand *o = &code->operands[i->from[1]];
        each = each || o->index == CODE_TENSOR ? each : o->div;
        if (++sums > CODE_SUMS_MAX || (o->index == CODE_EACH && o->div != each) || stored >> o->tensor & 1)
            return error_set(e, -EINVAL,
                             "code: line %d: a sum of %" PRId64 " elements: allowed are %d sums, all of %" PRId64
                             " elements, each in a tensor of its own",
                             i->line, o->div, CODE_SUMS_MAX, each);
        stored |= 1u << o->tensor;
    }
    for (int64_t k = 0; k < code->head->instructions; k++) {
        const struct code_instruction *i = &code->instructions[k];
        if ((i->op == CODE_LOAD || i->op == CODE_STORE) && stored >> code->operands[i->from[1]].tensor & 1)
            return error_set(e, -EINVAL, "code: line %d: a tensor of sums: not allowed to use in the same step", i->line);
    }
    return 0;
}

/* Tensors follow each other, and together they are all elements. */
static int begins_check(const struct code *code, struct error *e)
{
    const int64_t n = code->head->tensors, *begins = code->begins;
    bool well = n == 0 || (begins[0] == 0 && begins[n] == code->head->rows * code->head->inner);

    for (int64_t i = 0; i < n && well; i++)
        well = begins[i] <= begins[i + 1];
    return well ? 0
                : error_set(e, -EINVAL,
                            "code: the table's %" PRId64 " tensors: allowed are such that have the step's %" PRId64
                            " elements together, one after the other",
                            n, code->head->rows * code->head->inner);
}

int code_read(const int64_t *words, size_t count, struct code *out, struct error *e)
{
    const struct code_head *h = (const struct code_head *)(const void *)words;
    uint64_t set = 0;
    bool begun = false;

    if (!words || count < HEAD_WORDS || count > CODE_WORDS_MAX)
        return error_set(e, -EINVAL, "code: %zu words: allowed are %zu to %d", words ? count : 0, HEAD_WORDS, CODE_WORDS_MAX);
    out->head = h;
    out->operands = (const struct code_operand *)(const void *)(words + HEAD_WORDS);
    out->instructions = NULL;
    out->begins = NULL;
    if (h->kind == CODE_TEXT)
        return 0;
    if (head_check(h, count, e))
        return e->status;
    out->instructions = (const struct code_instruction *)(const void *)(out->operands + h->operands);
    for (int64_t i = 0; i < h->operands; i++)
        if (operand_check(&out->operands[i], h, e))
            return e->status;
    if (code_reduces(out))
        set = 1;
    for (int64_t i = 0; i < h->instructions; i++)
        if (instruction_check(h, out->operands, &out->instructions[i], &set, &begun, e))
            return e->status;
    out->begins = h->tensors ? (const int64_t *)(const void *)(out->instructions + h->instructions) : NULL;
    if (begins_check(out, e) || sums_check(out, e))
        return e->status;
    if (code_has_result(out) ? h->result < 0 || h->result >= CODE_REGISTERS || !(set >> h->result & 1)
                             : h->result != CODE_NO_RESULT)
        return error_set(e, -EINVAL,
                         "code: result %" PRId64 ": allowed is a register that has a value, or, but for kind %d, %d", h->result,
                         CODE_GATHER, CODE_NO_RESULT);
    if (!code_has_result(out) && h->rows > 0 &&
        !code_stores(out)) /* no tensor would bound its elements, which may be very many; and it would do nothing */
        return error_set(e, -EINVAL, "code: it stores nothing: allowed is that with 0 rows");
    return 0;
}

static uint32_t tensors_of(const struct code *code, unsigned op)
{
    uint32_t tensors = 0;

    for (int64_t i = 0; i < code->head->instructions && code->instructions; i++)
        if (code->instructions[i].op == op)
            tensors |= 1u << code->operands[code->instructions[i].from[1]].tensor;
    return tensors;
}

uint32_t code_stores(const struct code *code)
{
    return tensors_of(code, CODE_STORE) | tensors_of(code, CODE_SUM);
}

/* Whether there is a sum whose operand has such an index. */
static bool has_sum(const struct code *code, enum code_index index)
{
    bool any = false;

    for (int64_t i = 0; code->instructions && i < code->head->instructions; i++)
        any |= code->instructions[i].op == CODE_SUM && code->operands[code->instructions[i].from[1]].index == (int64_t)index;
    return any;
}

bool code_sums_tensors(const struct code *code)
{
    return has_sum(code, CODE_TENSOR);
}

bool code_mixes_sums(const struct code *code)
{
    return has_sum(code, CODE_TENSOR) && has_sum(code, CODE_EACH);
}

int64_t code_operand_elements(const struct code *code, const struct code_operand *o, int64_t own)
{
    switch (o->index) {
    case CODE_OWN:
        return own;
    case CODE_WHOLE:
        return code->head->rows * code->head->inner;
    case CODE_EACH:
        return (own + o->div - 1) / o->div;
    case CODE_TENSOR:
        return code->head->tensors;
    case CODE_PART: /* both factors may be large: no tensor has INT64_MAX elements */
        return own == 0 ? 0
               : (__int128)((own - 1) / o->length) * o->div > PROGRAM_ELEMENTS_MAX
                   ? INT64_MAX
                   : (own - 1) / o->length * o->div + (own - 1) % o->length + 1;
    default:
        return o->length;
    }
}

int64_t code_sum_elements(const struct code *code)
{
    int64_t n = 0;

    for (int64_t i = 0; i < code->head->instructions && code->instructions; i++) {
        const struct code_operand *o = &code->operands[code->instructions[i].from[1]];
        if (code->instructions[i].op == CODE_SUM && o->index == CODE_TENSOR)
            return code->head->rows * code->head->inner; /* a tensor's elements may be any: one tile has all */
        n = code->instructions[i].op == CODE_SUM ? o->div : n;
    }
    return n;
}

int64_t code_tensor_of(const struct code *code, int64_t element)
{
    int64_t low = 0, high = code->head->tensors;

    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (code->begins[middle] <= element)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const int64_t *code_places(const struct code *code, const int64_t *tables, size_t count, int tensor)
{
    if (!tables || !count || !((uint64_t)tables[0] >> tensor & 1))
        return NULL;
    const uint64_t before = (uint64_t)tables[0] & ((UINT64_C(1) << tensor) - 1);
    return tables + 1 + __builtin_popcountll(before) * code->head->tensors;
}

int code_tables_check(const struct code *code, const int64_t *tables, size_t count, struct error *e)
{
    if (!tables)
        return 0;
    if (count < 1 || count > CODE_TABLES_MAX || !code->begins || (uint64_t)tables[0] >> (2 + CODE_TENSORS) ||
        count != 1 + (size_t)__builtin_popcountll((uint64_t)tables[0]) * (size_t)code->head->tensors)
        return error_set(e, -EINVAL,
                         "tables: %zu words: allowed are, with a table of the code, a bit for each tensor that has it, and as "
                         "many words for each as the table has tensors, together at most %d",
                         count, CODE_TABLES_MAX);
    for (int64_t i = 0; i < code->head->operands; i++) {
        const struct code_operand *o = &code->operands[i];
        const int slot = o->tensor == CODE_OUT ? 1 : 2 + (int)o->tensor;
        if ((uint64_t)tables[0] >> slot & 1 &&
            (o->index == CODE_STRETCHED || o->index >= CODE_EACH || (o->index == CODE_OWN && code->head->sliced)))
            return error_set(e, -EINVAL, "tables: tensor %d: its elements have other places: not allowed", slot);
    }
    return 0;
}

uint32_t code_loads(const struct code *code)
{
    return tensors_of(code, CODE_LOAD);
}

/* The text's words: kind, number of lines for each hash, the hash of the sizes, and of the parameters, whether its steps are of one node, then those of
 * lines. */
static int text_match(const int64_t *words, size_t count, int rank, const int64_t *first, size_t first_count, struct error *e)
{
    size_t i = HEAD_WORDS;

    if (words[2] != first[2])
        return error_set(e, -EINVAL, "program: rank %d has other sizes than rank 0", rank);
    if (words[3] != first[3])
        return error_set(e, -EINVAL, "program: rank %d has tensors of other shapes or layouts than rank 0", rank);
    while (i < count && i < first_count && words[i] == first[i])
        i++;
    if (i == count && i == first_count)
        return error_set(
            e, -EINVAL,
            "program: rank %d's library cuts it into other steps than rank 0's: allowed is one version on all ranks", rank);
    return error_set(e, -EINVAL, "program: rank %d has another text than rank 0, from line %" PRId64 " on", rank,
                     (int64_t)(i - HEAD_WORDS) * words[1] + 1);
}

/* Of a number, since a NaN is the same as itself here, and -0 is another number than 0. */
static uint64_t number_bits(const struct code_instruction *i)
{
    uint64_t bits;

    memcpy(&bits, &i->number, sizeof(bits));
    return bits;
}

/* Of instructions that were checked: the members that have to be 0 are. */
static bool instructions_same(const struct code_instruction *x, const struct code_instruction *y)
{
    return x->op == y->op && x->to == y->to && memcmp(x->from, y->from, sizeof(x->from)) == 0 && x->line == y->line &&
           number_bits(x) == number_bits(y) && x->key == y->key;
}

int code_match(const int64_t *words, size_t count, int rank, const int64_t *first, size_t first_count, struct error *e)
{
    struct code a = {0}, b = {0};

    if (count == first_count && memcmp(words, first, count * sizeof(*words)) == 0)
        return 0;
    if (words[0] == CODE_TEXT && first[0] == CODE_TEXT)
        return text_match(words, count, rank, first, first_count, e);
    if (code_read(words, count, &a, e) || code_read(first, first_count, &b, e))
        return e->status;
    for (int64_t i = 0; a.begins && b.begins && a.head->tensors == b.head->tensors && i < a.head->tensors; i++)
        if (a.begins[i + 1] != b.begins[i + 1])
            return error_set(e, -EINVAL,
                             "program: tensor %" PRId64 " of the table: rank %d has %" PRId64 " elements, rank 0 has %" PRId64,
                             i, rank, a.begins[i + 1] - a.begins[i], b.begins[i + 1] - b.begins[i]);
    for (int64_t i = 0; a.instructions && b.instructions && i < a.head->instructions && i < b.head->instructions; i++) {
        const struct code_instruction *x = &a.instructions[i], *y = &b.instructions[i];
        if (x->op == CODE_NUMBER && y->op == CODE_NUMBER && number_bits(x) != number_bits(y))
            return error_set(e, -EINVAL, "program: line %d: a number: rank %d has %.17g, rank 0 has %.17g", x->line, rank,
                             x->number, y->number);
        if (!instructions_same(x, y))
            return error_set(e, -EINVAL, "program: line %d: rank %d has another operation, or another number, than rank 0",
                             x->line, rank);
    }
    return error_set(e, -EINVAL, "program: rank %d is at another step than rank 0, or has other tensors", rank);
}
