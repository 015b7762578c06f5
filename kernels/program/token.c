/* SPDX-License-Identifier: MIT
 *
 * token.c - a program's text as tokens: names, numbers, signs and ends of lines. Comments go from # to the end of the line.
 */
#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>

#include "kernels/program/inside.h"

static int32_t column_of(const struct lexer *l)
{
    return (int32_t)(l->at - l->line_at) + 1;
}

static bool is_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static void blanks_skip(struct lexer *l)
{
    for (; l->at < l->end; l->at++) {
        if (*l->at == '#')
            while (l->at + 1 < l->end && l->at[1] != '\n')
                l->at++;
        else if (*l->at == '\n' && l->brackets > 0)
            l->line++, l->line_at = l->at + 1;
        else if (*l->at != ' ' && *l->at != '\t' && *l->at != '\r')
            return;
    }
}

/* Digits, a point and an exponent. strtod() reads the copy. */
static int number_read(struct lexer *l, struct token *t, struct error *e)
{
    char text[64] = {0}, *rest;
    size_t n = 0;
    bool integer = true;

    while (l->at + n < l->end &&
           (is_name(l->at[n]) || l->at[n] == '.' ||
            ((l->at[n] == '-' || l->at[n] == '+') && n > 0 && (l->at[n - 1] == 'e' || l->at[n - 1] == 'E')))) {
        integer &= isdigit((unsigned char)l->at[n]) != 0;
        if (n + 1 == sizeof(text))
            return program_fail(e, t->line, t->column, "a number of more than %zu characters: allowed are at most so many",
                                sizeof(text) - 1);
        text[n] = l->at[n];
        n++;
    }
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* whatever the process has set */
    if (!plain)
        return program_no_memory(e);
    t->number = strtod_l(text, &rest, plain);
    freelocale(plain);
    if (*rest || !isfinite(t->number) || text[1] == 'x' || text[1] == 'X')
        return program_fail(e, t->line, t->column, "%s: no number: allowed are finite decimal ones, as 3, 0.1 and 1e-8",
                            text_clean(text));
    t->kind = TOKEN_NUMBER;
    t->is_integer = integer && t->number <= 9e15;
    t->integer = t->is_integer ? (int64_t)t->number : 0;
    t->length = n;
    return 0;
}

static int sign_read(struct lexer *l, struct token *t, struct error *e)
{
    static const char two[][3] = {"<=", ">=", "==", "!=", "**"};
    char text[8] = {*l->at};

    t->kind = TOKEN_SIGN;
    t->length = 1;
    for (size_t i = 0; i < sizeof(two) / sizeof(two[0]); i++)
        if (l->end - l->at >= 2 && memcmp(l->at, two[i], 2) == 0)
            t->length = 2;
    if (t->length == 1 && (!*l->at || !strchr("()[]=,:+-*/<>", *l->at)))
        return program_fail(e, t->line, t->column, "'%s': no character of a program", text_clean(text));
    if (strchr("([", *l->at))
        l->brackets++;
    if (strchr(")]", *l->at) && l->brackets > 0)
        l->brackets--;
    return 0;
}

int token_next(struct lexer *l, struct token *t, struct error *e)
{
    blanks_skip(l);
    *t = (struct token){.kind = TOKEN_END, .at = l->at, .line = l->line, .column = column_of(l)};
    if (l->at == l->end)
        return 0;
    if (*l->at == '\n') {
        t->kind = TOKEN_LINE;
        l->at++;
        l->line++;
        l->line_at = l->at;
        return 0;
    }
    if (isdigit((unsigned char)*l->at) || (*l->at == '.' && l->at + 1 < l->end && isdigit((unsigned char)l->at[1]))) {
        if (number_read(l, t, e))
            return e->status;
    } else if (is_name(*l->at)) {
        t->kind = TOKEN_NAME;
        while (l->at + t->length < l->end && is_name(l->at[t->length]))
            t->length++;
        if (t->length > PROGRAM_NAME_MAX)
            return program_fail(e, t->line, t->column, "a name of %zu characters: allowed are at most %d", t->length,
                                PROGRAM_NAME_MAX);
    } else if (sign_read(l, t, e)) {
        return e->status;
    }
    l->at += t->length;
    return 0;
}
