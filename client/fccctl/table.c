/* SPDX-License-Identifier: MIT */
#include "client/fccctl/table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/format.h"
#include "proto/base/error.h"

#define COLUMNS_MAX 16

struct table {
    int ncolumns;
    bool right[COLUMNS_MAX];
    char **cells; /* the headings, then the rows */
    size_t ncells, room;
    int status; /* the first error */
};

/* Adds a cell and takes ownership of its text. NULL: out of memory. */
static void cell_add(struct table *t, char *text)
{
    if (text && t->ncells == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        char **cells = reallocarray(t->cells, room, sizeof(*cells));
        if (cells) {
            t->cells = cells;
            t->room = room;
        } else {
            free(text);
            text = NULL;
        }
    }
    if (!text) {
        t->status = -ENOMEM;
        return;
    }
    t->cells[t->ncells++] = text_clean(text);
}

struct table *table_new(const char *columns)
{
    struct table *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    for (const char *p = columns; t->ncolumns < COLUMNS_MAX;) {
        t->right[t->ncolumns] = *p == '>';
        p += t->right[t->ncolumns++];
        size_t n = strcspn(p, "|");
        cell_add(t, strndup(p, n));
        if (!p[n])
            break;
        p += n + 1;
    }
    return t;
}

void table_free(struct table *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->ncells; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t);
}

void table_cell(struct table *t, const char *format, ...)
{
    char *text = NULL;
    va_list ap;

    if (!t)
        return;
    va_start(ap, format);
    if (vasprintf(&text, format, ap) < 0)
        text = NULL;
    va_end(ap);
    cell_add(t, text);
}

void table_number(struct table *t, int64_t number)
{
    table_cell(t, number < 0 ? "-" : "%" PRId64, number);
}

void table_text(struct table *t, const char *text)
{
    table_cell(t, "%s", *text ? text : "-");
}

/* The text's number of UTF-8 characters, each of which takes one column. */
static int text_width(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

int table_print(const struct table *t, const char *indent, FILE *out)
{
    int width[COLUMNS_MAX] = {0};

    if (!t || t->status)
        return -ENOMEM;
    for (size_t i = 0; i < t->ncells; i++) {
        int w = text_width(t->cells[i]), c = (int)(i % (size_t)t->ncolumns);
        if (w > width[c])
            width[c] = w;
    }
    for (size_t i = 0; i < t->ncells; i++) {
        int c = (int)(i % (size_t)t->ncolumns), pad = width[c] - text_width(t->cells[i]);
        bool last = c == t->ncolumns - 1 || i == t->ncells - 1;
        (void)fprintf(out, "%s%*s%s", c ? "  " : indent, t->right[c] ? pad : 0, "", t->cells[i]);
        if (last)
            (void)fputc('\n', out);
        else
            (void)fprintf(out, "%*s", t->right[c] ? 0 : pad, "");
    }
    return 0;
}
