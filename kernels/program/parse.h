/* SPDX-License-Identifier: MIT
 *
 * parse.h - a parser's state, and what declarations and expressions ask of it.
 */
#ifndef FCC_KERNELS_PROGRAM_PARSE_H
#define FCC_KERNELS_PROGRAM_PARSE_H

#include "kernels/program/inside.h"

struct parser {
    struct program *p;
    struct lexer lexer;
    struct token now; /* the token that is looked at */
    int depth;        /* open brackets and signs of the expression, at most PROGRAM_DEPTH */
    int32_t *meaning; /* by name: the operation that it stands for; -1: none yet */
    uint32_t meanings, meanings_capacity;
    struct error *e;
};

/* All return 0 or a negative errno value with the reason in parser->e. */
int parser_advance(struct parser *q);
int parser_fail(struct parser *q, const char *expected); /* of the token that is looked at */
bool parser_is(const struct parser *q, const char *text);
int parser_take(struct parser *q, const char *sign); /* this sign must come */
/* A name that the program may choose; its number to *name. */
int parser_name(struct parser *q, int32_t *name);
int32_t *parser_meaning(struct parser *q, int32_t name);       /* NULL: no memory */
int32_t parameter_find(const struct program *p, int32_t name); /* -1: none */
int symbol_find(const struct parser *q, int32_t name);         /* -1: no size has the name */
/* An operand of `op` is set; depth and bounds are checked. */
int node_depth(struct parser *q, int32_t node);

int parse_size(struct parser *q, struct size_text *out);
int parse_header(struct parser *q);      /* program NAME(SIZES) */
int parse_groups(struct parser *q);      /* groups SIZE */
int parse_declaration(struct parser *q); /* in, out, inout, scalar */
int parse_expression(struct parser *q, int32_t *node);
int parse_directive(struct parser *q);
/* What a name stands for besides values: a word of the language. */
bool word_is_reserved(const char *text, size_t length);
int operation_by_name(const char *text, size_t length); /* enum operation, or -1 */
int dtype_of_word(const char *text, size_t length);     /* enum fcc_dtype of a tensor of a program, or 0 */

#endif
