/* SPDX-License-Identifier: MIT
 *
 * parse_declaration.c - the header with its sizes, parameters, and statements of the schedule.
 */
#include <stdio.h>

#include "kernels/program/parse.h"

/* ---- sizes ---- */

int symbol_find(const struct parser *q, int32_t name)
{
    for (uint32_t i = 0; i < q->p->nsymbols; i++)
        if (q->p->symbols[i].name == name)
            return (int)i;
    return -1;
}

static int factor_parse(struct parser *q, struct size_factor *out)
{
    if (q->now.kind == TOKEN_NUMBER && q->now.is_integer) {
        out->symbol = -1;
        out->integer = q->now.integer;
        return parser_advance(q);
    }
    if (parser_is(q, "ranks")) {
        out->symbol = SIZE_RANKS;
        return parser_advance(q);
    }
    if (q->now.kind == TOKEN_NAME) {
        const int32_t name = name_find(q->p, q->now.at, q->now.length);
        out->symbol = name >= 0 ? symbol_find(q, name) : -1;
        if (out->symbol >= 0)
            return parser_advance(q);
    }
    return parser_fail(q, "a size: an integer, `ranks`, or a name of the program's sizes");
}

/* `+ INTEGER` behind a size's factors. */
static int size_plus(struct parser *q, struct size_text *out)
{
    if (!parser_is(q, "+"))
        return 0;
    if (parser_advance(q))
        return q->e->status;
    if (q->now.kind != TOKEN_NUMBER || !q->now.is_integer)
        return parser_fail(q, "an integer that is added to the size");
    out->plus = q->now.integer;
    return parser_advance(q);
}

int parse_size(struct parser *q, struct size_text *out)
{
    bool divides = false;

    *out = (struct size_text){.count = 0};
    for (;;) {
        if (out->count == PROGRAM_FACTORS)
            return parser_fail(q, "a size of at most 4 factors");
        struct size_factor *f = &out->factor[out->count++];
        if (factor_parse(q, f))
            return q->e->status;
        f->divides = divides;
        divides = parser_is(q, "/");
        if (!divides && !parser_is(q, "*"))
            return size_plus(q, out);
        if (parser_advance(q))
            return q->e->status;
    }
}

static int symbol_parse(struct parser *q)
{
    struct symbol s = {.value = -1, .line = q->now.line};

    if (q->p->nsymbols == PROGRAM_SIZES_MAX)
        return parser_fail(q, "at most 32 sizes");
    if (parser_name(q, &s.name))
        return q->e->status;
    if (symbol_find(q, s.name) >= 0)
        return program_fail(q->e, s.line, 0, "line %d: size `%s` stands twice", s.line, program_name_of(q->p, s.name));
    if (parser_is(q, "=")) {
        if (parser_advance(q))
            return q->e->status;
        if (q->now.kind != TOKEN_NUMBER || !q->now.is_integer)
            return parser_fail(q, "an integer");
        s.value = q->now.integer;
        if (parser_advance(q))
            return q->e->status;
    }
    q->p->symbols[q->p->nsymbols++] = s;
    return 0;
}

int parse_header(struct parser *q)
{
    if (parser_advance(q))
        return q->e->status;
    if (q->now.kind != TOKEN_NAME)
        return parser_fail(q, "a name");
    q->p->name = name_get(q->p, q->now.at, q->now.length); /* any: a program is no value */
    if (q->p->name < 0)
        return program_no_memory(q->e);
    if (parser_advance(q) || parser_take(q, "("))
        return q->e->status;
    while (!parser_is(q, ")")) {
        if (symbol_parse(q))
            return q->e->status;
        if (!parser_is(q, ")") && parser_take(q, ","))
            return q->e->status;
    }
    return parser_advance(q);
}

int parse_groups(struct parser *q)
{
    struct program *p = q->p;

    if (p->rank_groups_size.count)
        return program_fail(q->e, q->now.line, q->now.column, "`groups` stands a second time, after line %d: allowed is once",
                            p->rank_groups_line);
    p->rank_groups_line = q->now.line;
    p->rank_groups_column = q->now.column;
    return parser_advance(q) ? q->e->status : parse_size(q, &p->rank_groups_size);
}

/* ---- parameters ---- */

static int type_parse(struct parser *q, struct parameter *type)
{
    const int dtype = q->now.kind == TOKEN_NAME ? dtype_of_word(q->now.at, q->now.length) : 0;

    if (!dtype)
        return parser_fail(q, "a dtype: f32, f16 or bf16, or i32 or i64 of what chooses rows of tables");
    type->value.dtype = (uint8_t)dtype;
    if (parser_advance(q) || parser_take(q, "["))
        return q->e->status;
    while (!parser_is(q, "]")) {
        if (type->value.ndim == FCC_MAX_DIMS)
            return parser_fail(q, "at most 4 dimensions");
        if (parse_size(q, &type->size[type->value.ndim++]))
            return q->e->status;
        if (!parser_is(q, "]") && parser_take(q, ","))
            return q->e->status;
    }
    return parser_advance(q);
}

static int layout_parse(struct parser *q, struct value *v)
{
    v->layout = LAYOUT_REPLICATED;
    if (parser_is(q, "scattered"))
        return 0;
    if (parser_is(q, "replicated"))
        return parser_advance(q);
    if (parser_is(q, "local")) {
        v->layout = LAYOUT_LOCAL;
        return parser_advance(q);
    }
    if (!parser_is(q, "sliced"))
        return q->now.kind == TOKEN_LINE || q->now.kind == TOKEN_END
                   ? 0
                   : parser_fail(q, "a layout: local, replicated or sliced(DIMENSION), and then scattered(TENSORS)");
    v->layout = LAYOUT_SLICED;
    if (parser_advance(q) || parser_take(q, "("))
        return q->e->status;
    if (q->now.kind != TOKEN_NUMBER || !q->now.is_integer || q->now.integer >= v->ndim)
        return parser_fail(q, "the number of one of the tensor's dimensions, from 0 on");
    v->sliced = (uint8_t)q->now.integer;
    return parser_advance(q) ? q->e->status : parser_take(q, ")");
}

static int scattered_parse(struct parser *q, struct parameter *type)
{
    if (!parser_is(q, "scattered"))
        return 0;
    type->value.table = TABLE_OF_ELEMENTS;
    if (type->value.ndim != 1)
        return parser_fail(q, "a layout: scattered are tensors of one dimension");
    if (parser_advance(q) || parser_take(q, "(") || parse_size(q, &type->tensors))
        return q->e->status;
    return parser_take(q, ")");
}

/* Adds a parameter of this type and its operation. */
static int parameter_add(struct parser *q, const struct parameter *type, const struct token *at, int32_t name)
{
    const bool scalar = type->kind == PARAMETER_SCALAR;
    struct parameter *grown = realloc(q->p->parameters, (q->p->nparameters + 1) * sizeof(*grown));
    int32_t *meaning = parser_meaning(q, name);

    if (grown)
        q->p->parameters = grown;
    if (!grown || !meaning)
        return program_no_memory(q->e);
    if (*meaning >= 0 || parameter_find(q->p, name) >= 0 || symbol_find(q, name) >= 0)
        return program_fail(q->e, at->line, at->column, "`%s` is declared twice: allowed is a new name",
                            program_name_of(q->p, name));
    const int32_t node = node_add(q->p, scalar ? OP_SCALAR : OP_PARAMETER, at->line, at->column, q->e);
    if (node < 0)
        return q->e->status;
    struct parameter *to = &q->p->parameters[q->p->nparameters];
    *to = *type;
    to->name = name;
    to->line = at->line;
    to->column = at->column;
    to->node = node;
    to->update = -1;
    q->p->nodes[node].parameter = (int32_t)q->p->nparameters++;
    if (type->kind != PARAMETER_OUT) /* what is only stored has no value before */
        *meaning = node;
    return 0;
}

int parse_declaration(struct parser *q)
{
    struct parameter type = {.kind = (uint8_t)(parser_is(q, "in")      ? PARAMETER_IN
                                               : parser_is(q, "out")   ? PARAMETER_OUT
                                               : parser_is(q, "inout") ? PARAMETER_INOUT
                                                                       : PARAMETER_SCALAR)};
    struct token at[64];
    int32_t name[64];
    int n = 0;

    do {
        if (n == 64 || q->p->nparameters + (uint32_t)n == PROGRAM_PARAMETERS_MAX)
            return parser_fail(q, "at most 64 names in a line, and 256 in a program");
        if (parser_advance(q))
            return q->e->status;
        at[n] = q->now;
        if (parser_name(q, &name[n++]))
            return q->e->status;
    } while (parser_is(q, ","));
    if (type.kind == PARAMETER_SCALAR)
        type.value = (struct value){.dtype = DTYPE_PLAIN};
    else if (parser_take(q, ":") || type_parse(q, &type) || layout_parse(q, &type.value) || scattered_parse(q, &type))
        return q->e->status;
    for (int i = 0; i < n; i++)
        if (parameter_add(q, &type, &at[i], name[i]))
            return q->e->status;
    return 0;
}

/* ---- schedules ---- */

static int directive_name(struct parser *q, struct directive *d)
{
    int32_t name;

    if (parser_name(q, &name))
        return q->e->status;
    if (q->p->ndirective_names == PROGRAM_OPERATIONS_MAX)
        return program_fail(q->e, d->line, d->column, "a schedule of more than %u names: not allowed", PROGRAM_OPERATIONS_MAX);
    if (!room_for((void **)&q->p->directive_names, q->p->ndirective_names, &q->p->directive_names_capacity, sizeof(int32_t)))
        return program_no_memory(q->e);
    q->p->directive_names[q->p->ndirective_names++] = name;
    d->count++;
    return 0;
}

static int directive_integer(struct parser *q, struct directive *d, const char *expected)
{
    if (q->now.kind != TOKEN_NUMBER || !q->now.is_integer)
        return parser_fail(q, expected);
    d->integer = q->now.integer;
    return parser_advance(q);
}

static int directive_rest(struct parser *q, struct directive *d)
{
    if (directive_name(q, d))
        return q->e->status;
    if (d->verb == SCHEDULE_CHUNK)
        return directive_integer(q, d, "a number of pieces");
    if (d->verb == SCHEDULE_AS_SLICE)
        return q->now.kind == TOKEN_NUMBER ? directive_integer(q, d, "a dimension") : 0;
    while (parser_is(q, ",") || (d->verb == SCHEDULE_REORDER && d->count == 1 && parser_is(q, "past")))
        if (parser_advance(q) || directive_name(q, d))
            return q->e->status;
    if (d->verb == SCHEDULE_FUSE && parser_is(q, "as"))
        return parser_advance(q) ? q->e->status : parser_name(q, &d->as);
    if (d->verb == SCHEDULE_OVERLAP && d->count < 2)
        return parser_fail(q, "`,` and the name of what uses the value");
    return 0;
}

int parse_directive(struct parser *q)
{
    struct directive d = {.line = q->now.line, .column = q->now.column, .first = q->p->ndirective_names, .as = -1};

    while (d.verb < SCHEDULE_VERBS && !parser_is(q, schedule_verbs[d.verb]))
        d.verb++;
    if (d.verb == SCHEDULE_VERBS)
        return parser_fail(q, "split, reorder, as_slice, fuse, overlap or chunk");
    if (q->p->ndirectives == PROGRAM_SCHEDULE_MAX)
        return parser_fail(q, "a schedule of at most 256 statements");
    if (parser_advance(q) || directive_rest(q, &d))
        return q->e->status;
    struct directive *grown = realloc(q->p->directives, (q->p->ndirectives + 1) * sizeof(*grown));
    if (!grown)
        return program_no_memory(q->e);
    q->p->directives = grown;
    q->p->directives[q->p->ndirectives++] = d;
    return 0;
}
