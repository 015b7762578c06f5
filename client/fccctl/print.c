/* SPDX-License-Identifier: MIT */
#include "client/fccctl/print.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/field.h"

#define COLUMNS_MAX 16
#define NAME_CHARACTERS "abcdefghijklmnopqrstuvwxyz_"

struct table {
    int ncolumns;
    bool right[COLUMNS_MAX];
    const char *fields[COLUMNS_MAX]; /* of table_new()'s columns, up to the next '|' */
    char **cells;                    /* the headings, then the rows */
    size_t ncells;
    bool is_cut; /* a cell was lost for want of memory */
};

/* Adds a cell and takes ownership of its text. NULL: out of memory. */
static void cell_add(struct table *t, char *text)
{
    char **cells = text ? reallocarray(t->cells, t->ncells + 1, sizeof(*cells)) : NULL;

    if (cells) {
        t->cells = cells;
        t->cells[t->ncells++] = text_clean(text);
    } else {
        t->is_cut = true;
        free(text);
    }
}

struct table *table_new(const char *columns)
{
    struct table *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    for (const char *p = columns; t->ncolumns < COLUMNS_MAX;) {
        t->right[t->ncolumns] = *p == '>';
        p += t->right[t->ncolumns++];
        size_t n = strcspn(p, "=|");
        cell_add(t, strndup(p, n));
        t->fields[t->ncolumns - 1] = p + n + (p[n] == '=');
        p += strcspn(p, "|");
        if (!*p++)
            break;
    }
    return t;
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

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* A field as table_row() shows it; "" if there is nothing to show. */
static const char *field_show(struct json_object *object, const char *name, char *out, size_t room)
{
    double number = field_double(object, name, -1);
    char text[FORMAT_ROOM] = "";

    if (field_count(object, name))
        return field_list(object, name, out, room);
    if (number >= 0 && strstr(name, "bytes"))
        (void)format_bytes(number, text);
    else if (number >= 0 && ends_with(name, "_us"))
        (void)format_ns(number * 1e3, text);
    else if (number >= 0 && (ends_with(name, "_s") || ends_with(name, "_ms")))
        (void)format_duration(ends_with(name, "_ms") ? number / 1e3 : number, text);
    else if (number >= 0)
        (void)snprintf(text, sizeof(text), "%" PRId64, field_int(object, name, 0));
    (void)snprintf(out, room, "%s", *text ? text : field_text(object, name));
    return out;
}

/* Fills the next cell by a column's fields and what is to stand between them. */
static void cell_show(struct table *t, struct json_object *object, const char *fields)
{
    char cell[2 * FCC_TEXT_MAX] = "", shown[FCC_TEXT_MAX], name[32];

    for (const char *between = fields, *p = fields; *p && *p != '|';) {
        size_t used = strlen(cell), n = strspn(p, NAME_CHARACTERS);
        (void)snprintf(name, sizeof(name), "%.*s", (int)n, p);
        if (*field_show(object, name, shown, sizeof(shown)) && !(used && *between == '/'))
            (void)snprintf(cell + used, sizeof(cell) - used, "%.*s%s", used ? (int)(p - between) : 0, between, shown);
        between = p + n;
        p = between + strcspn(between, NAME_CHARACTERS "|");
    }
    table_cell(t, "%s", *cell ? cell : "-");
}

void table_row(struct table *t, struct json_object *object)
{
    for (int c = 0; t && c < t->ncolumns; c++)
        cell_show(t, object, t->fields[c]);
}

/* The text's number of UTF-8 characters, each of which takes one column. */
static int text_width(const char *text)
{
    int width = 0;

    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

void table_end(struct table *t, const char *indent)
{
    int width[COLUMNS_MAX] = {0};

    if (!t || t->is_cut)
        (void)fprintf(stderr, "fccctl: out of memory\n");
    for (size_t i = 0; t && i < t->ncells; i++) {
        int w = text_width(t->cells[i]), c = (int)(i % (size_t)t->ncolumns);
        width[c] = w > width[c] ? w : width[c];
    }
    for (size_t i = 0; t && i < t->ncells; i++) {
        int c = (int)(i % (size_t)t->ncolumns), pad = width[c] - text_width(t->cells[i]);
        bool last = c == t->ncolumns - 1;
        if (!t->is_cut)
            printf("%s%*s%s%*s%s", c ? "  " : indent, t->right[c] ? pad : 0, "", t->cells[i], t->right[c] || last ? 0 : pad, "",
                   last ? "\n" : "");
        free(t->cells[i]);
    }
    if (t)
        free(t->cells);
    free(t);
}

void table_of(struct json_object *object, const char *array, const char *columns, const char *indent)
{
    struct table *table = table_new(columns);

    for (size_t i = 0; i < field_count(object, array); i++)
        table_row(table, field_at(object, array, i));
    table_end(table, indent);
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
