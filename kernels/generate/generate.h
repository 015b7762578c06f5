/* SPDX-License-Identifier: MIT
 *
 * generate.h - a step's code as the source of a GPU's kernel, in CUDA's and HIP's common spelling: what the interpreter would do (step.hip), with all values
 * in registers. The source is made of checked words alone, and has no text of a user's in it: the lines that the words name are numbers. It is written
 * with kernels/gpu/device/generated.h. Numbers of the program that a run may have anew are arguments, so runs share one source.
 */
#ifndef FCC_KERNELS_PROGRAM_GENERATE_H
#define FCC_KERNELS_PROGRAM_GENERATE_H

#include "kernels/program/code.h"

#ifdef __cplusplus
extern "C" {
#endif

struct generate {
    const struct code *code;
    enum fcc_dtype dtypes[CODE_TENSORS + 1]; /* of the tensors that it uses; CODE_OUT: of `out` */
    enum fcc_dtype in;                       /* REDUCE: of what is added up */
    int nranks;
    /* For a reader who knows the program, comments: a line's text, and what a tensor is called; NULL: nothing. No functions: none of this. */
    const char *(*line_text)(const void *context, int32_t line, size_t *length);
    const char *(*tensor_name)(const void *context, int tensor);
    const void *context;
};

/* The source, to be freed. NULL: -EOPNOTSUPP, and *e says which line the interpreter alone can run; or -ENOMEM. */
char *code_generate(const struct generate *g, struct error *e);

#ifdef __cplusplus
}
#endif
#endif
