/* SPDX-License-Identifier: MIT
 *
 * print.h - what people read: figures, lines with text of others, and tables.
 */
#ifndef FCC_CLIENT_FCCCTL_PRINT_H
#define FCC_CLIENT_FCCCTL_PRINT_H

#include <stdint.h>
#include <stdio.h>

#define FORMAT_ROOM 32

/* printf() of a line that has text of the daemon or of other users: cleaned (text_clean()), and cut to FORMAT_LINE bytes. A newline
 * at the end of `format` is printed. */
void print_clean(const char *format, ...) __attribute__((format(printf, 1, 2)));
#define FORMAT_LINE 2048

/* All other functions write into out and return it. */
const char *format_duration(double seconds,
                            char out[FORMAT_ROOM]);            /* "12 ms", "3.4 s", "5 min 2 s", "2 d 3 h"; "-" if negative */
const char *format_bytes(double bytes, char out[FORMAT_ROOM]); /* "512 B", "1.5 GiB" */
const char *format_ns(double ns, char out[FORMAT_ROOM]);       /* "850 ns", "12.3 us", "4.56 ms", "1.2 s" */

/* A table of text in aligned columns. */
struct table;

/* `columns` has the headings, separated by '|'. A column whose heading begins with '>' is aligned to the right. NULL: out of
 * memory. */
struct table *table_new(const char *columns);
void table_free(struct table *table);

/* Fills the next cell, row by row. Replaces control characters. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Fills the next cell with a number or a text; "-" if it is negative or empty. */
void table_number(struct table *table, int64_t number);
void table_text(struct table *table, const char *text);

/* Prints all rows, each line beginning with `indent`. Returns 0, or -ENOMEM if a cell was lost for want of memory. */
int table_print(const struct table *table, const char *indent, FILE *out);

#endif
