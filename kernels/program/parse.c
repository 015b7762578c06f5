/* SPDX-License-Identifier: MIT
 *
 * parse.c - a text, line by line: a header, declarations, assignments, and a schedule at its end.
 */
#include <stdio.h>

#include "kernels/program/parse.h"

/* ---- tokens ---- */

int parser_advance(struct parser *q)
{
    return token_next(&q->lexer, &q->now, q->e);
}

int parser_fail(struct parser *q, const char *expected)
{
    char text[PROGRAM_NAME_MAX + 2];
    const size_t n = q->now.length < sizeof(text) - 1 ? q->now.length : sizeof(text) - 1;

    memcpy(text, q->now.at, n);
    text[n] = '\0';
    if (q->now.kind == TOKEN_LINE || q->now.kind == TOKEN_END)
        return program_fail(q->e, q->now.line, q->now.column, "the line ends: expected is %s", expected);
    return program_fail(q->e, q->now.line, q->now.column, "`%s`: expected is %s", text_clean(text), expected);
}

bool parser_is(const struct parser *q, const char *text)
{
    return (q->now.kind == TOKEN_SIGN || q->now.kind == TOKEN_NAME) && q->now.length == strlen(text) &&
           memcmp(q->now.at, text, q->now.length) == 0;
}

int parser_take(struct parser *q, const char *sign)
{
    char text[16];

    (void)snprintf(text, sizeof(text), "`%s`", sign);
    return parser_is(q, sign) ? parser_advance(q) : parser_fail(q, text);
}

int operation_by_name(const char *text, size_t length)
{
    for (int op = OP_ADD; op < OPERATIONS; op++)
        if (strlen(operation_specs[op].name) == length && memcmp(operation_specs[op].name, text, length) == 0)
            return op;
    return -1;
}

int dtype_of_word(const char *text, size_t length)
{
    return length == 3 && memcmp(text, "f32", 3) == 0    ? FCC_F32
           : length == 3 && memcmp(text, "f16", 3) == 0  ? FCC_F16
           : length == 4 && memcmp(text, "bf16", 4) == 0 ? FCC_BF16
           : length == 3 && memcmp(text, "i32", 3) == 0  ? FCC_I32
           : length == 3 && memcmp(text, "i64", 3) == 0  ? FCC_I64
                                                         : 0;
}

bool word_is_reserved(const char *text, size_t length)
{
    static const char *const words[] = {"program", "groups", "in",     "out",        "inout",  "scalar",    "schedule",
                                        "ranks",   "local",  "sliced", "replicated", "split",  "reorder",   "fuse",
                                        "overlap", "chunk",  "past",   "as",         "update", "parameter", "number"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strlen(words[i]) == length && memcmp(words[i], text, length) == 0)
            return true;
    return operation_by_name(text, length) >= 0;
}

int parser_name(struct parser *q, int32_t *name)
{
    if (q->now.kind != TOKEN_NAME)
        return parser_fail(q, "a name");
    if (word_is_reserved(q->now.at, q->now.length))
        return parser_fail(q, operation_by_name(q->now.at, q->now.length) >= 0
                                  ? "a name that is no word of the language: this is an operation"
                                  : "a name that is no word of the language");
    *name = name_get(q->p, q->now.at, q->now.length);
    return *name < 0 ? program_no_memory(q->e) : parser_advance(q);
}

int32_t *parser_meaning(struct parser *q, int32_t name)
{
    while (q->meanings <= (uint32_t)name) {
        if (!room_for((void **)&q->meaning, q->meanings, &q->meanings_capacity, sizeof(*q->meaning)))
            return NULL;
        q->meaning[q->meanings++] = -1;
    }
    return &q->meaning[name];
}

int32_t parameter_find(const struct program *p, int32_t name)
{
    for (uint32_t i = 0; i < p->nparameters; i++)
        if (p->parameters[i].name == name)
            return (int32_t)i;
    return -1;
}

/* ---- statements ---- */

/* `NAME = expression` of a parameter: it is stored into it. */
static int update_make(struct parser *q, int32_t parameter, int32_t value, const struct token *at)
{
    struct parameter *to = &q->p->parameters[parameter];
    const char *name = program_name_of(q->p, to->name);

    if (to->kind != PARAMETER_OUT && to->kind != PARAMETER_INOUT)
        return program_fail(q->e, at->line, at->column,
                            "`%s` is declared `%s` in line %d: allowed to be assigned are `out` and `inout`", name,
                            to->kind == PARAMETER_IN ? "in" : "scalar", to->line);
    if (to->update >= 0)
        return program_fail(q->e, at->line, at->column, "`%s` is assigned a second time, after line %d: allowed is once", name,
                            q->p->nodes[to->update].line);
    const int32_t update = node_add(q->p, OP_UPDATE, at->line, at->column, q->e);
    if (update < 0)
        return q->e->status;
    q->p->nodes[update].arg[0] = value;
    q->p->nodes[update].parameter = parameter;
    q->p->parameters[parameter].update = update;
    return node_depth(q, update);
}

static int assignment_parse(struct parser *q)
{
    const struct token at = q->now;
    int32_t name = -1, value = -1;

    if (q->now.kind != TOKEN_NAME)
        return parser_fail(q, "a declaration (in, out, inout, scalar), `NAME = ...`, or `schedule`");
    if (parser_name(q, &name) || parser_take(q, "="))
        return q->e->status;
    const int32_t parameter = parameter_find(q->p, name);
    int32_t *meaning = parser_meaning(q, name);
    if (!meaning)
        return program_no_memory(q->e);
    if (parameter < 0 && *meaning >= 0)
        return program_fail(q->e, at.line, at.column, "`%s` has a value already, of line %d: allowed is a new name",
                            program_name_of(q->p, name), q->p->nodes[*meaning].line);
    for (uint32_t i = 0; i < q->p->nsymbols; i++)
        if (q->p->symbols[i].name == name)
            return program_fail(q->e, at.line, at.column, "`%s` is a size: allowed is a new name", program_name_of(q->p, name));
    if (parse_expression(q, &value))
        return q->e->status;
    if (parameter >= 0) {
        if (update_make(q, parameter, value, &at))
            return q->e->status;
        value = q->p->parameters[parameter].update;
    } else {
        struct node *n = &q->p->nodes[value];
        if (n->name >= 0 || n->parameter >= 0)
            return program_fail(q->e, at.line, at.column,
                                "`%s` would be a second name of the same value: allowed is to use that",
                                program_name_of(q->p, name));
        n->name = name;
        n->line = at.line;
        n->column = at.column;
    }
    meaning = parser_meaning(q, name); /* the expression may have moved it */
    if (!meaning)
        return program_no_memory(q->e);
    *meaning = value;
    return 0;
}

static int statement_parse(struct parser *q, bool *in_schedule, bool first)
{
    if (first != parser_is(q, "program"))
        return first ? parser_fail(q, "`program NAME(SIZES)`") : parser_fail(q, "one program in a text");
    if (first)
        return parse_header(q);
    if (*in_schedule)
        return parse_directive(q);
    if (parser_is(q, "schedule")) {
        *in_schedule = true;
        return parser_advance(q);
    }
    if (parser_is(q, "groups"))
        return parse_groups(q);
    if (parser_is(q, "in") || parser_is(q, "out") || parser_is(q, "inout") || parser_is(q, "scalar"))
        return parse_declaration(q);
    return assignment_parse(q);
}

static int text_parse(struct parser *q)
{
    bool in_schedule = false, first = true;

    for (;;) {
        if (parser_advance(q))
            return q->e->status;
        while (q->now.kind == TOKEN_LINE)
            if (parser_advance(q))
                return q->e->status;
        if (q->now.kind == TOKEN_END)
            return first
                       ? program_fail(q->e, q->now.line, q->now.column, "the text is empty: expected is `program NAME(SIZES)`")
                       : 0;
        if (statement_parse(q, &in_schedule, first))
            return q->e->status;
        first = false;
        if (q->now.kind == TOKEN_END)
            return 0;
        if (q->now.kind != TOKEN_LINE)
            return parser_fail(q, "the end of the line");
    }
}

static void lexer_begin(struct lexer *l, const char *text, size_t length)
{
    *l = (struct lexer){.at = text, .end = text + length, .line_at = text, .line = 1};
}

int program_parse(const char *text, size_t length, struct program **out, struct error *e)
{
    struct error none = {.status = 0};
    struct parser q = {.e = e ? e : &none};

    error_clear(q.e);
    if (length > PROGRAM_TEXT_MAX)
        return program_fail(e, 0, 0, "a text of %zu bytes: allowed are at most %u", length, PROGRAM_TEXT_MAX);
    q.p = calloc(1, sizeof(*q.p));
    if (!q.p)
        return program_no_memory(e);
    q.p->name = -1;
    lexer_begin(&q.lexer, text, length);
    int status = text_parse(&q);
    if (status == 0)
        status = program_check_whole(q.p, q.e);
    if (status == 0)
        status = program_settle(q.p, q.e);
    free(q.meaning);
    if (status)
        program_free(q.p);
    else
        *out = q.p;
    return status;
}

int directive_parse(struct program *p, const char *statement, struct error *e)
{
    struct parser q = {.e = e, .p = p};

    if (strlen(statement) > PROGRAM_TEXT_MAX)
        return program_fail(e, 0, 0, "a statement of more than %u bytes: not allowed", PROGRAM_TEXT_MAX);
    lexer_begin(&q.lexer, statement, strlen(statement));
    if (parser_advance(&q) || parse_directive(&q))
        return e->status;
    return q.now.kind == TOKEN_END ? 0 : parser_fail(&q, "the end of the statement");
}
