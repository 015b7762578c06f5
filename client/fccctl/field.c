/* SPDX-License-Identifier: MIT */
#include "client/fccctl/field.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/error.h"

static struct json_object *field(struct json_object *object, const char *name, enum json_type type)
{
    struct json_object *value;

    if (!json_object_is_type(object, json_type_object) || !json_object_object_get_ex(object, name, &value))
        return NULL;
    if (json_object_is_type(value, type) || (type == json_type_double && json_object_is_type(value, json_type_int)))
        return value;
    return NULL;
}

int64_t field_int(struct json_object *object, const char *name, int64_t otherwise)
{
    struct json_object *value = field(object, name, json_type_int);
    return value ? json_object_get_int64(value) : otherwise;
}

double field_double(struct json_object *object, const char *name, double otherwise)
{
    struct json_object *value = field(object, name, json_type_double);
    return value ? json_object_get_double(value) : otherwise;
}

bool field_bool(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name, json_type_boolean);
    return value && json_object_get_boolean(value);
}

const char *field_text(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name, json_type_string);
    return value ? json_object_get_string(value) : "";
}

struct json_object *field_object(struct json_object *object, const char *name)
{
    return field(object, name, json_type_object);
}

size_t field_count(struct json_object *object, const char *name)
{
    struct json_object *value = field(object, name, json_type_array);
    return value ? json_object_array_length(value) : 0;
}

struct json_object *field_at(struct json_object *object, const char *name, size_t index)
{
    struct json_object *value = field(object, name, json_type_array);
    return value ? json_object_array_get_idx(value, index) : NULL;
}

struct words field_list(struct json_object *object, const char *name)
{
    struct words list = {""};

    for (size_t i = 0; i < field_count(object, name); i++) {
        const char *text = json_object_get_string(field_at(object, name, i)); /* NULL: null */
        words_add(&list, "%s%s", i ? ", " : "", text ? text : "?");
    }
    (void)text_clean(list.text);
    return list;
}

struct json_object *json_number(double value, int decimals)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%.*f", decimals, value);
    return json_object_new_double_s(value, text);
}

void json_print(struct json_object *object, bool indented)
{
    int flags = indented ? JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED : JSON_C_TO_STRING_PLAIN;
    printf("%s\n", json_object_to_json_string_ext(object, flags | JSON_C_TO_STRING_NOSLASHESCAPE));
}

/* ---- tables ---- */

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

/* A field as table_of() shows it; "" if there is nothing to show. */
static struct words field_show(struct json_object *object, const char *name)
{
    double number = field_double(object, name, -1);

    if (number < 0)
        return field_count(object, name) ? field_list(object, name) : words("%s", field_text(object, name));
    if (strstr(name, "bytes"))
        return format_bytes(number);
    if (ends_with(name, "_us"))
        return format_ns(number * 1e3);
    if (ends_with(name, "_s") || ends_with(name, "_ms"))
        return format_duration(ends_with(name, "_ms") ? number / 1e3 : number);
    return words("%" PRId64, field_int(object, name, 0));
}

/* Fills the next cell by a column's fields and what is to stand between them. */
static void cell_show(struct table *t, struct json_object *object, const char *fields)
{
    struct words cell = {""};

    for (const char *between = fields, *p = fields; *p && *p != '|';) {
        size_t n = strspn(p, NAME_CHARACTERS);
        struct words shown = field_show(object, words("%.*s", (int)n, p).text);
        bool is_first = !*cell.text;
        if (*shown.text && (is_first || *between != '/'))
            words_add(&cell, "%.*s%s", is_first ? 0 : (int)(p - between), between, shown.text);
        between = p + n;
        p = between + strcspn(between, NAME_CHARACTERS "|");
    }
    table_cell(t, "%s", *cell.text ? cell.text : "-");
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

    for (size_t i = 0; table && i < field_count(object, array); i++)
        for (int c = 0; c < table->ncolumns; c++)
            cell_show(table, field_at(object, array, i), table->fields[c]);
    table_end(table, indent);
}

/* ---- figures and lines ---- */

struct words words(const char *format, ...)
{
    struct words w;
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(w.text, sizeof(w.text), format, ap);
    va_end(ap);
    return w;
}

void words_add(struct words *w, const char *format, ...)
{
    size_t used = strlen(w->text);
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(w->text + used, sizeof(w->text) - used, format, ap);
    va_end(ap);
}

void print_clean(const char *format, ...)
{
    bool is_line = format[strlen(format) - 1] == '\n';
    struct words w;
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(w.text, sizeof(w.text), format, ap);
    va_end(ap);
    if (is_line)
        w.text[strlen(w.text) - 1] = '\0';
    printf("%s%s", text_clean(w.text), is_line ? "\n" : "");
}

struct words format_duration(double seconds)
{
    long whole = seconds < 1e15 ? (long)seconds : 0;

    if (!(seconds >= 0))
        return words("-");
    if (seconds < 0.9995)
        return words(seconds < 0.00995 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
    if (seconds < 60)
        return words("%.1f s", seconds);
    if (seconds < 3600)
        return words("%ld min %ld s", whole / 60, whole % 60);
    return seconds < 86400 ? words("%ld h %ld min", whole / 3600, whole / 60 % 60)
                           : words("%ld d %ld h", whole / 86400, whole / 3600 % 24);
}

static struct words scaled(double value, double step, const char *const units[], int nunits)
{
    int i = 0, decimals = 0;

    for (; i < nunits - 1 && value >= step * 0.9995; i++)
        value /= step;
    if (i > 0)
        decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return words("%.*f %s", decimals, value, units[i]);
}

struct words format_bytes(double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, 1024, units, 6);
}

struct words format_ns(double ns)
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    return scaled(ns, 1000, units, 4);
}
