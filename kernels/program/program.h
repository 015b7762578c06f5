/* SPDX-License-Identifier: MIT
 *
 * program.h - programs that users write: computation and communication in one text (client/PROGRAMS.md teaches the language).
 *
 * A program is a list of operations in the order of its text, each of which uses earlier ones. Everything here is a pure function of texts and
 * sizes: no I/O, no device. Texts may be hostile: memory is bounded by PROGRAM_* below, recursion by PROGRAM_DEPTH.
 *
 * The way of a program:
 *
 *   program_parse()       text -> operations, as they are written                    (token.c, parse.c)
 *   program_bind()        sizes and the number of ranks -> dtypes, shapes, layouts   (check.c, layout.c)
 *   program_transform()   split, reorder, as_slice, fuse, overlap, chunk             (transform.c, reorder.c, fuse.c)
 *   program_print()       the program as text, whose program is the same             (print.c)
 *
 * Ranks may be groups (`groups S`): group g of S groups of R ranks has the ranks [g R, (g + 1) R). Layouts, and exchanges but `send`, are those of one
 * group; `send` goes from each rank to the one at its place in another group.
 *
 * A bound program stays bound: each transformation checks its result, and leaves the program as it was if it is refused.
 */
#ifndef FCC_KERNELS_PROGRAM_PROGRAM_H
#define FCC_KERNELS_PROGRAM_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/fccclient.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PROGRAM_TEXT_MAX (1u << 20)   /* bytes of a text */
#define PROGRAM_OPERATIONS_MAX 32768u /* numbers and parameters among them */
#define PROGRAM_PARAMETERS_MAX 256u
#define PROGRAM_SIZES_MAX 32u
#define PROGRAM_SCHEDULE_MAX 256u /* statements of the schedule */
#define PROGRAM_DEPTH 48          /* of an expression */
#define PROGRAM_NAME_MAX 63       /* bytes of a name */
#define PROGRAM_ARGUMENTS 4
#define PROGRAM_INTEGERS 3
#define PROGRAM_FACTORS 4                     /* of a size: 4*H, B*S/2 */
#define PROGRAM_ELEMENTS_MAX INT64_C(1) << 48 /* of one tensor */
#define PROGRAM_TABLE_MAX 1024                /* tensors of a table */

enum operation_kind {
    OPERATION_LEAF,
    OPERATION_UPDATE,   /* stores into a parameter */
    OPERATION_POINT,    /* each element by itself */
    OPERATION_ROWS,     /* of each row, the last dimension */
    OPERATION_WHOLE,    /* of a whole tensor */
    OPERATION_TENSORS,  /* of each tensor of a table */
    OPERATION_LOOKUP,   /* rows of tables that integers choose */
    OPERATION_PRODUCT,  /* of matrices */
    OPERATION_VIEW,     /* nothing is computed */
    OPERATION_EXCHANGE, /* between ranks */
};

enum operation {
#define OPERATION(NAME, name, arguments, integers, kind) OP_##NAME,
#include "kernels/program/operations.def"
#undef OPERATION
    OPERATIONS
};

struct operation_spec {
    const char *name;
    uint8_t arguments, integers, kind; /* kind: enum operation_kind */
};
extern const struct operation_spec operation_specs[OPERATIONS];

/* What an element is: enum fcc_dtype, or one of these. */
enum { DTYPE_BOOL = 32 /* of a comparison */, DTYPE_PLAIN = 33 /* a number: in double precision, the same on all ranks */ };

/* Where a tensor's elements are. PLAIN: a number has no layout. LOCAL: each rank has values of its own. REPLICATED: all ranks have the same.
 * SLICED: rank r of R has the indices [r * n / R, (r + 1) * n / R) of one dimension. */
enum layout { LAYOUT_PLAIN, LAYOUT_LOCAL, LAYOUT_REPLICATED, LAYOUT_SLICED };

/* Many tensors that are one value of a program, one behind the other, are its table. OF_ELEMENTS: the value has their elements. OF_TENSORS: it has
 * one number for each of them, which goes with all elements of its tensor. */
enum value_table { TABLE_NONE, TABLE_OF_ELEMENTS, TABLE_OF_TENSORS };

/* What is the same of all elements. Shapes are those of the whole tensor, of slices, too. */
struct value {
    uint8_t dtype;          /* enum fcc_dtype, DTYPE_BOOL or DTYPE_PLAIN */
    uint8_t layout, sliced; /* enum layout; SLICED: the dimension */
    uint8_t ndim;
    uint8_t table; /* enum value_table */
    int64_t shape[FCC_MAX_DIMS];
};

/* A size as it is written: a product and quotient of integers and of sizes' names, and an integer that is added to that. */
struct size_factor {
    bool divides;
    int32_t symbol; /* index of a size; -1: an integer; SIZE_RANKS: the number of ranks */
    int64_t integer;
};
#define SIZE_RANKS (-2)
struct size_text {
    uint8_t count;
    struct size_factor factor[PROGRAM_FACTORS];
    int64_t plus;
};

/* One operation. Indices of operations are those of struct program; an operand comes before what uses it. */
struct node {
    uint8_t op; /* enum operation */
    uint8_t depth;
    int32_t line, column;
    int32_t name; /* program->names; -1: none, and one operation uses the value */
    int32_t arg[PROGRAM_ARGUMENTS];
    int32_t parameter; /* PARAMETER, SCALAR, UPDATE: index in program->parameters */
    int32_t group;     /* of `fuse`; -1: none */
    int32_t statement; /* the operation whose expression this is part of: a named one or an UPDATE */
    double number;     /* NUMBER */
    struct size_text size[PROGRAM_INTEGERS];
    int64_t integer[PROGRAM_INTEGERS]; /* bound */
    struct value value;                /* bound */
};

enum parameter_kind { PARAMETER_IN, PARAMETER_OUT, PARAMETER_INOUT, PARAMETER_SCALAR };
struct parameter {
    int32_t name, line, column;
    uint8_t kind;         /* enum parameter_kind */
    int32_t node, update; /* the operations PARAMETER or SCALAR, and UPDATE (-1: none) */
    struct size_text size[FCC_MAX_DIMS];
    struct size_text tensors; /* `scattered`: how many */
    struct value value;       /* as declared; the shape when it is bound */
};

struct symbol {
    int32_t name, line;
    int64_t value; /* -1: it has none yet */
};

enum schedule_verb {
    SCHEDULE_SPLIT,
    SCHEDULE_REORDER,
    SCHEDULE_AS_SLICE,
    SCHEDULE_FUSE,
    SCHEDULE_OVERLAP,
    SCHEDULE_CHUNK,
    SCHEDULE_VERBS
};
extern const char *const schedule_verbs[SCHEDULE_VERBS];
/* A statement of the schedule: `verb name, name, ... as name` or `chunk name count`. */
struct directive {
    uint8_t verb; /* enum schedule_verb */
    int32_t line, column;
    uint32_t first, count; /* its names: program->directive_names[first, first + count) */
    int32_t as;            /* FUSE: the group's name; -1: none */
    int64_t integer;       /* CHUNK: pieces; AS_SLICE: the dimension */
};

struct group {
    int32_t name; /* -1: none */
    int32_t line;
};
/* The consumer begins with pieces of what the producer has made. Operations are statements. */
struct overlap {
    int32_t producer, consumer;
};
struct chunks {
    int32_t statement;
    int64_t count;
};

struct program {
    int32_t name;
    bool bound;
    struct size_text rank_groups_size; /* `groups`, as written; of no factor: not written */
    int32_t rank_groups_line, rank_groups_column;
    int rank_groups; /* bound: so many groups of ranks, each of which has all the program's tensors; 1: not written */
    int nranks;      /* bound: of one group */
    bool over_nodes; /* its ranks may be on several nodes: only a sum over them that has a result is one step with elements */
    bool on_gpus;    /* its ranks are on GPUs: what follows a product is elements */
    int64_t tensors, tensor_elements; /* bound: of the table, and how many elements they have together; -1: there is none */
    char *names_text;                 /* all names, each with its NUL */
    size_t names_bytes, names_room;
    int32_t *names; /* by number: where in names_text */
    uint32_t nnames, names_capacity;
    int32_t *hash; /* of names: open addressing, -1: free */
    uint32_t hash_size;
    struct node *nodes;
    uint32_t nnodes, nodes_capacity;
    struct parameter *parameters;
    uint32_t nparameters;
    struct symbol symbols[PROGRAM_SIZES_MAX];
    uint32_t nsymbols;
    struct directive *directives; /* as written; program_schedule() carries them out */
    uint32_t ndirectives;
    int32_t *directive_names;
    uint32_t ndirective_names, directive_names_capacity;
    struct group *groups;
    uint32_t ngroups;
    struct overlap *overlaps;
    uint32_t noverlaps;
    struct chunks *chunks;
    uint32_t nchunks;
    uint32_t dropouts; /* so many have a stream of their own */
};

/* ---- text ---- */

/* Parse a text of `length` bytes, which may contain anything. 0 and *out, to be freed with program_free(); -EINVAL with "line L, column C: what is
 * wrong: what is allowed"; -ENOMEM. */
int program_parse(const char *text, size_t length, struct program **out, struct error *e);
void program_free(struct program *p);
/* A copy; NULL: no memory. */
struct program *program_copy(const struct program *p);
/* The program as text, NUL-terminated, to be freed with free(); NULL: no memory. Transformations appear as what they made of the program; groups,
 * overlaps and chunks as its schedule. Of a program that is not scheduled yet, the schedule is as it was written. */
char *program_print(const struct program *p);
/* The text of one statement, for tables and errors; the same rules. */
char *program_print_statement(const struct program *p, int32_t statement);
/* Do both have the same operations, parameters, sizes and schedule? Lines and columns do not matter. */
bool program_equal(const struct program *a, const struct program *b);
const char *program_name_of(const struct program *p, int32_t name); /* "" if name is -1 */
const char *layout_text(const struct value *v, char out[24]);       /* "local", "replicated", "sliced(0)", "number" */
const char *value_dtype_name(uint8_t dtype);
/* "bf16[64, 3072] sliced(0)". Returns out. */
const char *value_text(const struct value *v, char *out, size_t room);

/* ---- meaning ---- */

/* A size given by name (-D N=...). */
struct program_size {
    const char *name;
    int64_t value;
};
/* Set sizes and the number of all ranks, and find the dtype, shape and layout of every value. 0, or -EINVAL: a size is missing, unknown or not allowed,
 * or an operation does not go with its operands; the text says where and why. */
int program_bind(struct program *p, int nranks, const struct program_size sizes[], size_t nsizes, struct error *e);
/* Carry out the text's schedule, or that and then one statement more ("split s", "fuse a, b as g"). 0, or -EINVAL with the dependence that forbids it; then
 * the program is as it was before that statement. */
int program_transform(struct program *p, const char *statement, struct error *e);
int program_schedule(struct program *p, struct error *e);

/* Elements of a rank's part of the value, and of the whole value. */
int64_t value_elements(const struct value *v);
int64_t value_elements_of(const struct value *v, int nranks, int rank);
/* The first index of a rank's slice of a dimension. */
static inline int64_t slice_begin(int64_t n, int nranks, int rank)
{
    return (int64_t)((__int128)n * rank / nranks);
}

/* The mask of dropout: 24 random bits of an element's number in the whole tensor. The same for every schedule, rank and device. */
uint64_t dropout_key(double seed, double step, int64_t stream);
static inline uint32_t dropout_bits(uint64_t key, uint64_t element)
{
    uint64_t x = key + element * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((x ^ x >> 31) >> 40);
}

static inline bool program_has_groups(const struct program *p)
{
    return p->rank_groups_size.count > 0;
}
static inline const struct operation_spec *node_spec(const struct node *n)
{
    return &operation_specs[n->op];
}
static inline bool node_is_statement(const struct node *n)
{
    return n->name >= 0 || n->op == OP_UPDATE;
}

#ifdef __cplusplus
}
#endif
#endif
