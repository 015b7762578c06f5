/* SPDX-License-Identifier: MIT
 *
 * epilogue.h - the stages of an operator's epilogue on CPU cores (kernels/plan/epilogue.h).
 */
#ifndef FCC_KERNELS_CPU_EPILOGUE_H
#define FCC_KERNELS_CPU_EPILOGUE_H

#include "kernels/cpu/execute.h"

/* A tensor's elements for a tile's first row and column. */
struct stage_rows {
    const unsigned char *at; /* NULL: absent */
    int64_t ld;              /* elements from row to row */
};

/* The stages that are applied to a tile's sums in f32. */
struct tile_stages {
    enum fcc_dtype dtype;
    struct stage_rows bias, residual, gate;
    enum fcc_activation activation;
    float scale; /* 1: none */
};

/* Returns out, filled in for the slice and the rank that executes it, or NULL: nothing is to be done with the sums. */
const struct tile_stages *tile_stages_at(const struct run *run, const struct slice *s, struct tile_stages *out);
/* Applies the stages to n sums of a row of the tile, from column `col` on. */
void tile_stages_apply(const struct tile_stages *p, int64_t row, int64_t col, float *sums, size_t n);
/* v = activation(v), times silu(gate) (NULL: no gate), times scale: n elements. */
void stages_each(enum fcc_activation activation, float scale, const unsigned char *gate, enum fcc_dtype dtype, float *v,
                 size_t n);

/* Where ranks store a rank's rows: in its result, or, with rows stages, in its staging memory. *room may be used for the tensor. */
const struct tensor *result_rows(const struct run *run, int rank, struct tensor *room);
/* The tensor that this is of: of the result, or PUT_STAGING. */
int result_rows_place(const struct run *run);
/* Executes a rows slice. 0 or -ENOMEM. */
int cpu_rows(const struct run *run, const struct slice *s, struct workgroup *wg, struct error *e);

#endif
