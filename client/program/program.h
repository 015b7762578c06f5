/* SPDX-License-Identifier: MIT
 *
 * program.h - programs in the library: what fcc_program_open() has made of a text.
 */
#ifndef FCC_CLIENT_PROGRAM_PROGRAM_H
#define FCC_CLIENT_PROGRAM_PROGRAM_H

#include "client/core/context.h"
#include "client/stream/bound.h"
#include "kernels/program/steps.h"

struct fcc_program {
    struct fcc_comm *comm;
    struct fcc_comm *group; /* the ranks of this rank's group: one of its own if there are several (`groups`), otherwise comm */
    int rank, nranks;       /* in the group */
    struct program *program;
    struct program_steps steps;
    char *text;                 /* scheduled */
    struct fcc_tensor *tensors; /* by parameter; no buffer: not said yet */
    int64_t *begins;            /* of the table's tensors, [program->tensors + 1]; NULL: not said yet */
    int64_t **places;           /* by parameter: where the table's tensors lie in `tensors`; NULL: one behind the other */
    bool copies;                /* what is added up over several nodes is copied together */
    double *scalars;            /* by parameter */
    bool *given;                /* by parameter: the scalar was said */
    fcc_buffer **temporaries;   /* by temporary */
    double *numbers;            /* by operation */
    /* Bound (bound.c): by step, NULL: a collective, or nothing is to be done. NULL: the program is not bound */
    fcc_prepared **bound;
    /* Guarded: by step, NULL: none. Where a product is made whose result is moved to its place by a run that is guarded (product.c) */
    fcc_buffer **staged;
    /* The ranks compare each run before they make it, by `key` (client/stream/guard.c) */
    bool is_guarded;
    uint32_t key;
    bool is_moved;   /* tensors have been said anew since */
    bool is_changed; /* scalars have been said anew since they were put onto a stream */
};

/* Sizes that a caller gives: so many, each with a name. 0 or -EINVAL. */
int program_sizes_check(const struct fcc_program_size sizes[], int n, struct error *e);
/* Whether a temporary is needed as the program's tensors lie; otherwise the parameter that it stands for is used. */
bool temporary_is_needed(const struct fcc_program *p, const struct step_temporary *t);
/* Allocates temporaries that stand for a parameter and are needed now. */
int stand_ins_make(struct fcc_program *p);
/* All ranks' code without tables is to be taken from now on: over several nodes nothing else runs. */
bool step_copies(struct fcc_program *p, const struct program_step *step, int status);
/* Elements of a tensor without gaps; -1: it has some. */
int64_t dense_elements(const struct fcc_tensor *t);
/* The number of the parameter of this name, or -ENOENT. */
int program_parameter(const struct fcc_program *p, const char *name);
/* The tensor of a place; no buffer: PLACE_NONE. */
struct fcc_tensor program_tensor_at(const struct fcc_program *p, const struct step_place *place);

/* A product's step as a call of its operator. */
struct product_call {
    union {
        struct fcc_gemm_all_reduce_args reduce;
        struct fcc_gemv_all_reduce_args thin;
        struct fcc_gemm_reduce_scatter_args scatter;
        struct fcc_gemm_all_to_all_args alone;
    } args;
    struct fcc_epilogue epilogue;
    bool has_epilogue;
    int64_t rows[FCC_MAX_RANKS];
};
/* args points into *out. */
void product_call_make(const struct fcc_program *p, const struct program_step *step, struct product_call *out);
/* The same of a step that looks rows of tables up. */
struct lookup_call {
    struct fcc_embedding_all_to_all_args args;
    int64_t rows[FCC_MAX_TABLES], samples[FCC_MAX_RANKS];
};
void lookup_call_make(const struct fcc_program *p, const struct program_step *step, struct lookup_call *out);
/* on: NULL: it is waited for. Otherwise it is put onto the stream *on by this process; captures: that is under capture. */
int lookup_run(struct fcc_program *p, const struct program_step *step, void *const *on, bool captures);
int product_run(struct fcc_program *p, const struct program_step *step, void *const *on, bool captures);
/* Allocates p->staged, and what is needed of it, of a guarded program whose tensors have been given. 0, or an error of this rank alone. */
int products_stage(struct fcc_program *p);
/* Whether this process launches it as a product in pieces (fcc_products_prepare()), which has no epilogue. */
bool product_is_in_pieces(const struct program_step *step);
/* A step of code as a call of its operator. */
struct code_call {
    int64_t tile, tables[CODE_TABLES_MAX];
    struct fcc_program_step_args args; /* points into this */
};
/* False: the step has nothing to do as the program's tensors lie. */
bool code_call_make(const struct fcc_program *p, const struct program_step *step, struct code_call *out);
/* on: NULL: it is waited for. Otherwise it is put onto the stream *on. */
int exchange_run(struct fcc_program *p, const struct program_step *step, void *const *on);
/* The last error, with the step's line. Returns status. */
int program_step_error(const struct fcc_program *p, const struct program_step *step, int status);
/* A rank has said all: its steps' numbers are those of its scalars. -EINVAL */
int program_ready(struct fcc_program *p, struct error *e);
/* The program is not bound any more: bound.c. */
void program_unbind(struct fcc_program *p);
/* Runs one step. 0 or a negative errno value with fcc_last_error(). */
int program_step_run(struct fcc_program *p, struct program_step *step);
#define PROGRAM_HASH_BEGIN UINT64_C(1469598103934665603)
/* A hash of what was hashed before, and these bytes. */
uint64_t program_hash(uint64_t hash, const void *bytes, size_t n);
/* All ranks' texts and sizes are the same, or all ranks get the error. of_one_node: its steps are; -EOPNOTSUPP: the ranks are on several. */
int program_agree(struct fcc_comm *comm, const char *text, size_t length, const struct program *p, bool of_one_node);

#endif
