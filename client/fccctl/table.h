/* SPDX-License-Identifier: MIT
 *
 * table.h - aligned columns of text.
 */
#ifndef FCC_CLIENT_FCCCTL_TABLE_H
#define FCC_CLIENT_FCCCTL_TABLE_H

#include <stdio.h>

struct table;

/* `columns` are the headings, separated by '|'; one that begins with '>' is aligned to the right. NULL if memory is used up. */
struct table *table_new(const char *columns);
void table_free(struct table *table);

/* Fill the next cell, row by row. Control characters are replaced. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print all rows, each line beginning with `indent`. Returns 0, or -ENOMEM if a cell was lost on the way. */
int table_print(const struct table *table, const char *indent, FILE *out);

#endif
