/* SPDX-License-Identifier: MIT
 *
 * field.h - texts, the fields of JSON objects, and what people read of them: figures, lines and tables. A field that is missing or
 * of another type has a default value, so that fccctl works with a daemon of another version.
 */
#ifndef FCC_CLIENT_FCCCTL_FIELD_H
#define FCC_CLIENT_FCCCTL_FIELD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/base/json_fd.h"

/* A text by value, cut to fit. */
struct words {
    char text[2048];
};
struct words words(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Appends to the text. */
void words_add(struct words *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* printf() of a line that has text of the daemon or of other users: cleaned (text_clean()), and cut to the room of struct words. A
 * newline at the end of `format` is printed. */
void print_clean(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct words format_duration(double seconds); /* "12 ms", "3.4 s", "5 min 2 s", "2 d 3 h"; "-" if negative */
struct words format_bytes(double bytes);      /* "512 B", "1.5 GiB" */
struct words format_ns(double ns);            /* "850 ns", "12.3 us", "4.56 ms", "1.2 s" */

/* ---- fields ---- */

int64_t field_int(struct json_object *object, const char *name, int64_t otherwise);
double field_double(struct json_object *object, const char *name, double otherwise);
bool field_bool(struct json_object *object, const char *name);                  /* default: false */
const char *field_text(struct json_object *object, const char *name);           /* default: ""; belongs to object */
struct json_object *field_object(struct json_object *object, const char *name); /* default: NULL; belongs to object */

/* The number of an array's elements, and one element; 0 and NULL if the field is not an array. */
size_t field_count(struct json_object *object, const char *name);
struct json_object *field_at(struct json_object *object, const char *name, size_t index);

/* An array of numbers or texts as "1, 3", cleaned. */
struct words field_list(struct json_object *object, const char *name);

/* A number that is printed with so many decimals. */
struct json_object *json_number(double value, int decimals);

/* Prints the object to stdout, indented or on one line, with a newline. */
void json_print(struct json_object *object, bool indented);

/* ---- tables ---- */

/* A table of text in aligned columns. */
struct table;

/* `columns` has the headings, separated by '|'. A column whose heading begins with '>' is aligned to the right. NULL:
 * out of memory. */
struct table *table_new(const char *columns);

/* Fills the next cell, row by row. Replaces control characters. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Prints a table with a row for each object of an array. In `columns`, each heading is followed by '=' and the fields that the
 * column shows: "AGE=age_s"; "USER=user/uid": the uid if there is no user; "OPERATOR=op #number": both, with " #" between them.
 * The unit of a number is what its field's name ends with (_s, _ms, _us), or bytes if it speaks of bytes. "-": the field is
 * missing, empty or negative. */
void table_of(struct json_object *object, const char *array, const char *columns, const char *indent);

/* Prints the rows, each line beginning with `indent`, and frees the table. Prints nothing but an error if a cell was lost for
 * want of memory. */
void table_end(struct table *table, const char *indent);

#endif
