/* SPDX-License-Identifier: MIT
 *
 * print.c - a program as text, which parses to the same program: an operation without a name stands inside the expression that uses it.
 */
#include <inttypes.h>
#include <locale.h>
#include <stdio.h>

#include "kernels/program/inside.h"

static const char *name_of(const struct program *p, const struct node *n)
{
    return program_name_of(p, n->parameter >= 0 ? p->parameters[n->parameter].name : n->name);
}

/* How tightly an operation holds its operands: 1 comparisons, 2 sums, 3 products, 4 signs, 5 what needs no brackets. */
static int binds(const struct node *n)
{
    return n->op >= OP_LT && n->op <= OP_NE                                                  ? 1
           : n->op == OP_ADD || n->op == OP_SUB                                              ? 2
           : n->op == OP_MUL || n->op == OP_DIV                                              ? 3
           : n->op == OP_NEG || (n->op == OP_NUMBER && (n->number < 0 || 1 / n->number < 0)) ? 4
                                                                                             : 5;
}

/* A size, with the names that it has in the text. */
static void size_print(FILE *to, const struct program *p, const struct size_text *size)
{
    for (int i = 0; i < size->count; i++) {
        const struct size_factor *f = &size->factor[i];
        (void)fprintf(to, "%s", i == 0 ? "" : f->divides ? "/" : "*");
        if (f->symbol == -1)
            (void)fprintf(to, "%" PRId64, f->integer);
        else
            (void)fprintf(to, "%s", f->symbol == SIZE_RANKS ? "ranks" : program_name_of(p, p->symbols[f->symbol].name));
    }
    if (size->plus)
        (void)fprintf(to, " + %" PRId64, size->plus);
}

/* The shortest text that reads back to the number. */
static void number_print(FILE *to, double number)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    (void)fprintf(to, "%s", text);
}

static void operand_print(FILE *to, const struct program *p, int32_t node, int tightly);

/* Recursion ends at operations with names; program_settle() bounds the depth between these. */
static void expression_print(FILE *to, const struct program *p, const struct node *n)
{
    const struct operation_spec *spec = node_spec(n);
    const int holds = binds(n);

    if (n->op == OP_NUMBER) {
        number_print(to, n->number);
    } else if (n->op == OP_SIZE) {
        size_print(to, p, &n->size[0]);
    } else if (n->op == OP_NEG) {
        (void)fprintf(to, "-");
        /* a number behind the sign would become a negative number */
        operand_print(to, p, n->arg[0], p->nodes[n->arg[0]].op == OP_NUMBER && p->nodes[n->arg[0]].name < 0 ? 6 : 4);
    } else if (holds < 4) {
        operand_print(to, p, n->arg[0], holds);
        (void)fprintf(to, " %s ", spec->name);
        operand_print(to, p, n->arg[1], holds + 1);
    } else {
        (void)fprintf(to, "%s(", spec->name);
        for (int a = 0; a < spec->arguments; a++) {
            (void)fprintf(to, "%s", a ? ", " : "");
            operand_print(to, p, n->arg[a], 0);
        }
        for (int i = 0; i < spec->integers; i++) {
            (void)fprintf(to, ", ");
            size_print(to, p, &n->size[i]);
        }
        (void)fprintf(to, ")");
    }
}

static void operand_print(FILE *to, const struct program *p, int32_t node, int tightly)
{
    const struct node *n = &p->nodes[node];

    if (n->parameter >= 0 || n->name >= 0) {
        (void)fprintf(to, "%s", name_of(p, n));
        return;
    }
    const bool brackets = binds(n) < tightly;
    (void)fprintf(to, "%s", brackets ? "(" : "");
    expression_print(to, p, n);
    (void)fprintf(to, "%s", brackets ? ")" : "");
}

static void statement_print(FILE *to, const struct program *p, const struct node *n)
{
    (void)fprintf(to, "%s = ", name_of(p, n));
    if (n->op == OP_UPDATE)
        operand_print(to, p, n->arg[0], 0);
    else
        expression_print(to, p, n);
}

static void parameter_print(FILE *to, const struct program *p, const struct parameter *t)
{
    static const char *const kinds[] = {"in", "out", "inout", "scalar"};
    char layout[24];

    (void)fprintf(to, "%s %s", kinds[t->kind], program_name_of(p, t->name));
    if (t->kind == PARAMETER_SCALAR) {
        (void)fprintf(to, "\n");
        return;
    }
    (void)fprintf(to, ": %s[", value_dtype_name(t->value.dtype));
    for (int d = 0; d < t->value.ndim; d++) {
        (void)fprintf(to, "%s", d ? ", " : "");
        size_print(to, p, &t->size[d]);
    }
    (void)fprintf(to, "] %s", layout_text(&t->value, layout));
    if (t->value.table) {
        (void)fprintf(to, " scattered(");
        size_print(to, p, &t->tensors);
        (void)fprintf(to, ")");
    }
    (void)fprintf(to, "\n");
}

/* A group as a statement of a schedule. */
static void group_print(FILE *to, const struct program *p, int32_t group)
{
    bool any = false;

    for (uint32_t i = 0; i < p->nnodes; i++) {
        if (p->nodes[i].group != group || !node_is_statement(&p->nodes[i]))
            continue;
        (void)fprintf(to, "%s%s", any ? ", " : "fuse ", name_of(p, &p->nodes[i]));
        any = true;
    }
    if (any && p->groups[group].name >= 0)
        (void)fprintf(to, " as %s", program_name_of(p, p->groups[group].name));
    if (any)
        (void)fprintf(to, "\n");
}

static void made_print(FILE *to, const struct program *p)
{
    for (uint32_t g = 0; g < p->ngroups; g++)
        group_print(to, p, (int32_t)g);
    for (uint32_t i = 0; i < p->noverlaps; i++)
        (void)fprintf(to, "overlap %s, %s\n", name_of(p, &p->nodes[p->overlaps[i].producer]),
                      name_of(p, &p->nodes[p->overlaps[i].consumer]));
    for (uint32_t i = 0; i < p->nchunks; i++)
        (void)fprintf(to, "chunk %s %" PRId64 "\n", name_of(p, &p->nodes[p->chunks[i].statement]), p->chunks[i].count);
}

static void directive_print(FILE *to, const struct program *p, const struct directive *d)
{
    (void)fprintf(to, "%s ", schedule_verbs[d->verb]);
    for (uint32_t i = 0; i < d->count; i++)
        (void)fprintf(to, "%s%s",
                      i == 0                                  ? ""
                      : i == 1 && d->verb == SCHEDULE_REORDER ? " past "
                                                              : ", ",
                      program_name_of(p, p->directive_names[d->first + i]));
    if (d->verb == SCHEDULE_CHUNK || d->verb == SCHEDULE_AS_SLICE)
        (void)fprintf(to, " %" PRId64, d->integer);
    if (d->as >= 0)
        (void)fprintf(to, " as %s", program_name_of(p, d->as));
    (void)fprintf(to, "\n");
}

static void header_print(FILE *to, const struct program *p)
{
    (void)fprintf(to, "program %s(", program_name_of(p, p->name));
    for (uint32_t i = 0; i < p->nsymbols; i++) {
        (void)fprintf(to, "%s%s", i ? ", " : "", program_name_of(p, p->symbols[i].name));
        if (p->symbols[i].value >= 0)
            (void)fprintf(to, " = %" PRId64, p->symbols[i].value);
    }
    (void)fprintf(to, ")\n");
    if (!p->rank_groups_size.count)
        return;
    (void)fprintf(to, "groups ");
    size_print(to, p, &p->rank_groups_size);
    (void)fprintf(to, "\n");
}

static void program_put(FILE *to, const struct program *p)
{
    header_print(to, p);
    for (uint32_t i = 0; i < p->nparameters; i++)
        parameter_print(to, p, &p->parameters[i]);
    (void)fprintf(to, "\n");
    for (uint32_t i = 0; i < p->nnodes; i++) {
        if (!node_is_statement(&p->nodes[i]))
            continue;
        statement_print(to, p, &p->nodes[i]);
        (void)fprintf(to, "\n");
    }
    if (p->ngroups + p->noverlaps + p->nchunks + p->ndirectives == 0)
        return;
    (void)fprintf(to, "\nschedule\n");
    made_print(to, p);
    for (uint32_t i = 0; i < p->ndirectives; i++)
        directive_print(to, p, &p->directives[i]);
}

/* The text that `put` writes; numbers have points, whatever the process's locale. */
static char *text_of(const struct program *p, int32_t statement)
{
    char *text = NULL;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    bool failed = !to || !plain;

    if (!failed) {
        const locale_t before = uselocale(plain);
        if (statement < 0)
            program_put(to, p);
        else
            statement_print(to, p, &p->nodes[statement]);
        uselocale(before);
    }
    if (plain)
        freelocale(plain);
    if (to)
        failed |= fclose(to) != 0;
    if (failed) {
        free(text);
        return NULL;
    }
    return text;
}

char *program_print(const struct program *p)
{
    return text_of(p, -1);
}

char *program_print_statement(const struct program *p, int32_t statement)
{
    return text_of(p, statement);
}
