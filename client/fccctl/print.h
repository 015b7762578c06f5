/* SPDX-License-Identifier: MIT
 *
 * print.h - what people read: figures, lines with text of others, and tables.
 */
#ifndef FCC_CLIENT_FCCCTL_PRINT_H
#define FCC_CLIENT_FCCCTL_PRINT_H

#include <stdint.h>
#include <stdio.h>

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

/* A table of text in aligned columns. */
struct table;
struct json_object;

/* `columns` has the headings, separated by '|'. A column whose heading begins with '>' is aligned to the right. For
 * table_row(), a heading is followed by '=' and the fields of an object that the column shows: "AGE=age_s"; "USER=user/uid":
 * the uid if there is no user; "OPERATOR=op #number": both, with " #" between them. NULL: out of memory. */
struct table *table_new(const char *columns);

/* Fills the next cell, row by row. Replaces control characters. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Adds an object's row. The unit of a number is what its field's name ends with (_s, _ms, _us), or bytes if it speaks of
 * bytes. "-": the field is missing, empty or negative. */
void table_row(struct table *table, struct json_object *object);
/* Prints a table with a row for each object of an array. */
void table_of(struct json_object *object, const char *array, const char *columns, const char *indent);

/* Prints the rows, each line beginning with `indent`, and frees the table. Prints nothing but an error if a cell was lost for
 * want of memory. */
void table_end(struct table *table, const char *indent);

#endif
