/* SPDX-License-Identifier: MIT
 *
 * table.h - prints text in aligned columns.
 */
#ifndef FCC_CLIENT_FCCCTL_TABLE_H
#define FCC_CLIENT_FCCCTL_TABLE_H

#include <stdint.h>
#include <stdio.h>

struct table;

/* `columns` has the headings, separated by '|'. A column whose heading begins with '>' is aligned to the right. NULL: out of
 * memory. */
struct table *table_new(const char *columns);
void table_free(struct table *table);

/* Fills the next cell, row by row. Replaces control characters. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same of a number or a text; "-" if it is negative or empty. */
void table_number(struct table *table, int64_t number);
void table_text(struct table *table, const char *text);

/* Prints all rows, each line beginning with `indent`. Returns 0, or -ENOMEM if a cell was lost for want of memory. */
int table_print(const struct table *table, const char *indent, FILE *out);

#endif
