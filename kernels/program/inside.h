/* SPDX-License-Identifier: MIT
 *
 * inside.h - what the files of this folder have in common.
 */
#ifndef FCC_KERNELS_PROGRAM_INSIDE_H
#define FCC_KERNELS_PROGRAM_INSIDE_H

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/program/program.h"

/* Sets the error "line L, column C: ..." and returns -EINVAL; with line 0 without that. */
int program_fail(struct error *e, int32_t line, int32_t column, const char *format, ...) __attribute__((format(printf, 4, 5)));
int program_no_memory(struct error *e); /* -ENOMEM */

/* Room for one element more in an array that grows; false: no memory. */
bool room_for(void **array, uint32_t count, uint32_t *capacity, size_t bytes);

/* ---- names ---- */

/* The number of a name, which is added if it is new; -1: no memory. */
int32_t name_get(struct program *p, const char *text, size_t length);
int32_t name_find(const struct program *p, const char *text, size_t length); /* -1: there is none */
/* A name that no value has yet: the stem with an ending. -1: no memory. */
int32_t name_fresh(struct program *p, int32_t stem, const char *ending);
/* The statement whose value a name stands for, the last one; -1: none. */
int32_t statement_by_name(const struct program *p, int32_t name);
/* The error that there is none, with those that there are. -EINVAL. */
int statement_missing(const struct program *p, int32_t name, struct error *e);

/* ---- operations ---- */

/* Adds an operation without operands; -1: no memory, or there are too many (e says which). */
int32_t node_add(struct program *p, enum operation op, int32_t line, int32_t column, struct error *e);
/* The number of operands that use the value. */
uint32_t *uses_count(const struct program *p); /* [nnodes], to be freed; NULL: no memory */
/* The name of a statement, or what it is, for errors. */
const char *node_text(const struct program *p, int32_t node, char out[96]);

/* Puts operations into an order in which operands come first, parameters are read before they are updated, and each statement's own operations
 * stand together; drops those that nothing uses; and sets `statement` and `depth`. -EINVAL: they need each other in a circle. */
int program_settle(struct program *p, struct error *e);
/* The dtype, shape and layout of all operations, whose sizes are set. */
int program_infer(struct program *p, struct error *e);
int node_infer(const struct program *p, struct node *n, struct error *e);
int lookup_infer(const struct program *p, struct node *n, struct error *e);
int product_infer(const struct program *p, struct node *n, struct error *e);
int view_infer(const struct program *p, struct node *n, struct error *e);
int exchange_infer(const struct program *p, struct node *n, struct error *e);
bool dtype_is_integer(uint8_t dtype);
/* Operand a is a tensor of numbers that operations work on. */
int tensor_needed(const struct program *p, const struct node *n, int a, struct error *e);
/* Whether the program is whole: all results are stored, all values used. */
int program_check_whole(const struct program *p, struct error *e);
int size_find(const struct program *p, const struct size_text *size, int32_t line, int32_t column, int64_t *out,
              struct error *e);

/* ---- transformations: each changes the program, or leaves half of it changed with an error (program_transform() works on a copy) ---- */
int transform_split(struct program *p, const struct directive *d, struct error *e);
int transform_reorder(struct program *p, const struct directive *d, struct error *e);
int transform_as_slice(struct program *p, const struct directive *d, struct error *e);
int transform_fuse(struct program *p, const struct directive *d, struct error *e);
int transform_overlap(struct program *p, const struct directive *d, struct error *e);
int transform_chunk(struct program *p, const struct directive *d, struct error *e);
/* Whether the schedule says that the consumer begins with pieces of the producer; both are statements. */
bool overlap_is_asked(const struct program *p, int32_t producer, int32_t consumer);
/* Groups are still right after another transformation. */
int groups_check(const struct program *p, struct error *e);

/* ---- text ---- */
enum token_kind { TOKEN_END, TOKEN_LINE, TOKEN_NAME, TOKEN_NUMBER, TOKEN_SIGN };
struct token {
    enum token_kind kind;
    const char *at;
    size_t length;
    int32_t line, column;
    double number;
    bool is_integer;
    int64_t integer;
};
struct lexer {
    const char *at, *end, *line_at;
    int32_t line;
    int brackets; /* open ones, in which a line's end is a blank */
};
/* The next token, or -EINVAL. */
int token_next(struct lexer *l, struct token *t, struct error *e);
/* Parse one statement of a schedule. */
int directive_parse(struct program *p, const char *statement, struct error *e);

#endif
