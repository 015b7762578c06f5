/* SPDX-License-Identifier: MIT
 *
 * parse_expression.c - expressions: comparisons, then sums, then products, then signs, then calls, names and numbers.
 */
#include <ctype.h>
#include <stdio.h>

#include "kernels/program/parse.h"

static int sum_parse(struct parser *q, int32_t *out);
static int unary_parse(struct parser *q, int32_t *out);

int node_depth(struct parser *q, int32_t node)
{
    struct node *n = &q->p->nodes[node];

    for (int a = 0; a < node_spec(n)->arguments; a++) {
        const struct node *arg = &q->p->nodes[n->arg[a]];
        const int depth = node_is_statement(arg) || arg->parameter >= 0 ? 0 : arg->depth;
        n->depth = n->depth > depth ? n->depth : (uint8_t)depth;
    }
    if (++n->depth > PROGRAM_DEPTH)
        return program_fail(q->e, n->line, n->column,
                            "an expression of more than %d operations on each other: allowed is to give a part of it a name",
                            PROGRAM_DEPTH);
    return 0;
}

static int deeper(struct parser *q)
{
    return ++q->depth > PROGRAM_DEPTH
               ? program_fail(q->e, q->now.line, q->now.column,
                              "more than %d brackets and signs within each other: allowed are at most so many", PROGRAM_DEPTH)
               : 0;
}

/* An operation of two operands. */
static int pair_make(struct parser *q, int op, const struct token *at, int32_t left, int32_t right, int32_t *out)
{
    const int32_t n = node_add(q->p, (enum operation)op, at->line, at->column, q->e);

    if (n < 0)
        return q->e->status;
    q->p->nodes[n].arg[0] = left;
    q->p->nodes[n].arg[1] = right;
    *out = n;
    return node_depth(q, n);
}

static int number_make(struct parser *q, const struct token *at, double number, int32_t *out)
{
    *out = node_add(q->p, OP_NUMBER, at->line, at->column, q->e);
    if (*out < 0)
        return q->e->status;
    q->p->nodes[*out].number = number;
    return node_depth(q, *out);
}

/* A size, or `ranks`, as a number. */
static int size_make(struct parser *q, int32_t symbol, int32_t *out)
{
    *out = node_add(q->p, OP_SIZE, q->now.line, q->now.column, q->e);
    if (*out < 0)
        return q->e->status;
    q->p->nodes[*out].size[0] = (struct size_text){.count = 1, .factor = {{.symbol = symbol}}};
    return node_depth(q, *out) ? q->e->status : parser_advance(q);
}

/* The integers behind a call's operands. Those of dropout and of exchanges may be missing. */
static int integers_parse(struct parser *q, int op, int32_t node)
{
    const struct operation_spec *spec = &operation_specs[op];

    for (int i = 0; i < spec->integers; i++) {
        struct size_text size = {.count = 1, .factor = {{.symbol = -1, .integer = op == OP_SEND ? 1 : 0}}};
        if (op == OP_DROPOUT)
            size.factor[0].integer = q->p->dropouts++;
        if (parser_is(q, ",")) {
            if (parser_advance(q) || parse_size(q, &size))
                return q->e->status;
        } else if (op == OP_SLICE || op == OP_ALL_TO_ALL) {
            return parser_fail(q, op == OP_SLICE ? "`,` and the dimension, the first index and the end of a slice"
                                                 : "`,` and the dimension that is to be sliced");
        }
        q->p->nodes[node].size[i] = size;
    }
    return 0;
}

/* How an operation is called. */
static const char *signature_text(int op, char text[64])
{
    static const char *const others[OPERATIONS] = {[OP_DROPOUT] = "x, p, seed, step",
                                                   [OP_SELECT] = "condition, a, b",
                                                   [OP_EMBEDDING] = "tables, indices, offsets",
                                                   [OP_EMBEDDING_MEAN] = "tables, indices, offsets"};

    (void)snprintf(text, 64, "%s(%s)", operation_specs[op].name, others[op] ? others[op] : "a, b");
    return text;
}

static int call_parse(struct parser *q, int op, int32_t *out)
{
    const struct operation_spec *spec = &operation_specs[op];
    const struct token at = q->now;
    int32_t arg[PROGRAM_ARGUMENTS] = {-1, -1, -1, -1};
    char text[64];

    if (parser_advance(q) || parser_take(q, "(") || deeper(q))
        return q->e->status;
    for (int a = 0; a < spec->arguments; a++) {
        if (a > 0 && parser_is(q, ")"))
            return program_fail(q->e, at.line, at.column, "%s: %d arguments: allowed are %s", spec->name, a,
                                signature_text(op, text));
        if (a > 0 && parser_take(q, ","))
            return q->e->status;
        if (parse_expression(q, &arg[a]))
            return q->e->status;
    }
    *out = node_add(q->p, (enum operation)op, at.line, at.column, q->e);
    if (*out < 0)
        return q->e->status;
    memcpy(q->p->nodes[*out].arg, arg, sizeof(arg));
    if (integers_parse(q, op, *out))
        return q->e->status;
    q->depth--;
    return parser_take(q, ")") ? q->e->status : node_depth(q, *out);
}

/* What is expected instead of a name that is not known: of AllReduce, all_reduce. */
static const char *alike_text(const char *at, size_t length, char text[96])
{
    for (int op = OP_ADD; op < OPERATIONS; op++) {
        const char *name = operation_specs[op].name;
        size_t i = 0, k = 0;
        for (; i < length && name[k]; i++, k++) {
            i += at[i] == '_';
            k += name[k] == '_';
            if (i >= length || tolower((unsigned char)at[i]) != name[k])
                break;
        }
        if (i == length && !name[k]) {
            (void)snprintf(text, 96, "a value of a line above, an operation (%s) or a number", name);
            return text;
        }
    }
    return "a value of a line above, an operation or a number";
}

static int name_parse(struct parser *q, int32_t *out)
{
    char text[96];
    const int op = operation_by_name(q->now.at, q->now.length);

    if (op >= 0)
        return call_parse(q, op, out);
    const int32_t name = name_find(q->p, q->now.at, q->now.length);
    if (parser_is(q, "ranks"))
        return size_make(q, SIZE_RANKS, out);
    if (symbol_find(q, name) >= 0)
        return size_make(q, symbol_find(q, name), out);
    *out = name >= 0 && (uint32_t)name < q->meanings ? q->meaning[name] : -1;
    if (*out < 0)
        return parser_fail(q, name >= 0 && parameter_find(q->p, name) >= 0
                                  ? "a value: this `out` has none before it is assigned"
                                  : alike_text(q->now.at, q->now.length, text));
    return parser_advance(q);
}

static int primary_parse(struct parser *q, int32_t *out)
{
    if (q->now.kind == TOKEN_NUMBER)
        return number_make(q, &q->now, q->now.number, out) ? q->e->status : parser_advance(q);
    if (q->now.kind == TOKEN_NAME)
        return name_parse(q, out);
    if (!parser_is(q, "("))
        return parser_fail(q, "a name, a number, an operation or `(`");
    if (parser_advance(q) || deeper(q) || parse_expression(q, out))
        return q->e->status;
    q->depth--;
    return parser_take(q, ")");
}

/* x ** y is pow(x, y), of which the exponent is taken together first, as in Python. */
static int power_parse(struct parser *q, int32_t *out)
{
    int32_t exponent = -1;

    if (primary_parse(q, out))
        return q->e->status;
    const struct token at = q->now;
    if (!parser_is(q, "**"))
        return 0;
    if (parser_advance(q) || deeper(q) || unary_parse(q, &exponent))
        return q->e->status;
    q->depth--;
    return pair_make(q, OP_POW, &at, *out, exponent, out);
}

static int unary_parse(struct parser *q, int32_t *out)
{
    const struct token at = q->now;

    if (!parser_is(q, "-"))
        return power_parse(q, out);
    if (parser_advance(q) || deeper(q) || unary_parse(q, out))
        return q->e->status;
    q->depth--;
    struct node *n = &q->p->nodes[*out];
    if (n->op == OP_NUMBER && n->name < 0) {
        n->number = -n->number;
        return 0;
    }
    return pair_make(q, OP_NEG, &at, *out, -1, out);
}

/* Operands joined by signs of one rank, from left to right. */
static int chain_parse(struct parser *q, const char *const signs[], const int ops[], int n,
                       int (*operand)(struct parser *, int32_t *), int32_t *out)
{
    if (operand(q, out))
        return q->e->status;
    for (;;) {
        const struct token at = q->now;
        int i = 0;
        int32_t right = -1;
        while (i < n && !parser_is(q, signs[i]))
            i++;
        if (i == n)
            return 0;
        if (parser_advance(q) || operand(q, &right) || pair_make(q, ops[i], &at, *out, right, out))
            return q->e->status;
    }
}

static int product_parse(struct parser *q, int32_t *out)
{
    static const char *const signs[] = {"*", "/"};
    static const int ops[] = {OP_MUL, OP_DIV};

    return chain_parse(q, signs, ops, 2, unary_parse, out);
}

static int sum_parse(struct parser *q, int32_t *out)
{
    static const char *const signs[] = {"+", "-"};
    static const int ops[] = {OP_ADD, OP_SUB};

    return chain_parse(q, signs, ops, 2, product_parse, out);
}

int parse_expression(struct parser *q, int32_t *out)
{
    static const char *const signs[] = {"<", "<=", ">", ">=", "==", "!="};
    static const int ops[] = {OP_LT, OP_LE, OP_GT, OP_GE, OP_EQ, OP_NE};

    return chain_parse(q, signs, ops, 6, sum_parse, out);
}
