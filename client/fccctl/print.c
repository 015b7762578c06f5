/* SPDX-License-Identifier: MIT */
#include "client/fccctl/print.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- figures and lines ---- */

void print_clean(const char *format, ...)
{
    bool is_line = format[strlen(format) - 1] == '\n';
    char text[FORMAT_LINE];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (is_line)
        text[strlen(text) - 1] = '\0';
    printf("%s%s", text_clean(text), is_line ? "\n" : "");
}

const char *format_duration(double seconds, char out[FORMAT_ROOM])
{
    long whole = seconds < 1e15 ? (long)seconds : 0;

    if (!(seconds >= 0))
        (void)snprintf(out, FORMAT_ROOM, "-");
    else if (seconds < 0.9995)
        (void)snprintf(out, FORMAT_ROOM, seconds < 0.00995 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
    else if (seconds < 60)
        (void)snprintf(out, FORMAT_ROOM, "%.1f s", seconds);
    else if (seconds < 3600)
        (void)snprintf(out, FORMAT_ROOM, "%ld min %ld s", whole / 60, whole % 60);
    else if (seconds < 86400)
        (void)snprintf(out, FORMAT_ROOM, "%ld h %ld min", whole / 3600, whole / 60 % 60);
    else
        (void)snprintf(out, FORMAT_ROOM, "%ld d %ld h", whole / 86400, whole / 3600 % 24);
    return out;
}

static const char *scaled(double value, double step, const char *const units[], int nunits, char out[FORMAT_ROOM])
{
    int i = 0, decimals = 0;

    while (i < nunits - 1 && value >= step * 0.9995) {
        value /= step;
        i++;
    }
    if (i > 0)
        decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    (void)snprintf(out, FORMAT_ROOM, "%.*f %s", decimals, value, units[i]);
    return out;
}

const char *format_bytes(double bytes, char out[FORMAT_ROOM])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, 1024, units, 6, out);
}

const char *format_ns(double ns, char out[FORMAT_ROOM])
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    return scaled(ns, 1000, units, 4, out);
}
