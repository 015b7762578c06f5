/* SPDX-License-Identifier: MIT
 *
 * reference.h - what the operators have to compute, for all ranks at once, in one process, in double precision, the plain way.
 * It shares no code with the kernels, the daemon or the library, and knows nothing of ranks: whoever uses it says where a
 * result has to be.
 */
#ifndef FCC_REFERENCE_H
#define FCC_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

enum reference_type { REFERENCE_F32, REFERENCE_F16, REFERENCE_BF16 };

/* What the 16 bits of a half or a bfloat16 stand for. */
double reference_f16(uint16_t bits);
double reference_bf16(uint16_t bits);

/* The number of that type that is nearest to x, of two equally near ones that with an even significand. Not for f32; only for
 * numbers in the type's normal range, and 0. */
double reference_round(enum reference_type type, double x);

/* out[d] = the sum or the mean of the rows ids[0 .. count) of table [..][dim], each times its weight if there are weights. */
void reference_bag(const float *table, int64_t dim, const int64_t *ids, const float *weights, int64_t count, bool mean,
                   double *out);

/* A gated MLP's matrices, not sharded, all elements times scale: gate and up [inner][hidden], down [hidden][inner]. */
struct reference_mlp {
    int64_t hidden, inner;
    const signed char *gate, *up, *down;
    double scale;
};

/* y = down . h with h = silu(gate . x) * (up . x), which is rounded to `type` in between. inner_state[inner] is scratch. */
void reference_mlp(const struct reference_mlp *mlp, const float *x, enum reference_type type, double *inner_state, double *y);

/* y[n] = x[k] . w[k][n], elements of x times x_scale and elements of w times w_scale. */
void reference_row(const int16_t *x, double x_scale, const int16_t *w, double w_scale, int64_t k, int64_t n, double *y);

/* How many of count elements are wrong: further from what is expected than the type's tolerance allows, in proportion to the
 * element or to the root mean square of all, whichever is larger. An expected NaN means that the element must be NaN: nobody
 * was to write there. If there are any, *first is the index of the first one. */
int64_t reference_compare(enum reference_type type, const void *got, const double *expected, int64_t count, int64_t *first);

/* The i-th element of an array of that type. */
double reference_element(enum reference_type type, const void *data, int64_t i);

#endif
