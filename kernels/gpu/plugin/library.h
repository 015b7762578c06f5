/* SPDX-License-Identifier: MIT
 *
 * library.h - the vendor's library of dense products (cuBLAS), inside of the plug-in: loaded at run time, where the process has it or finds it.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_LIBRARY_H
#define FCC_KERNELS_GPU_PLUGIN_LIBRARY_H

#include "kernels/gpu/rings.h"
#include "kernels/gpu/runtime.h"
#include "proto/base/error.h"

struct library;

#define LIBRARY_WORKSPACE (32u << 20) /* bytes */

/* Whether it can be loaded. Any thread. */
bool library_is_there(void);
/* Opens it for the thread's current GPU. workspace: the address of LIBRARY_WORKSPACE bytes there, which its kernels use, one at a time. */
int library_open(int gpu, uint64_t workspace, struct library **out, struct error *e);
/* Enqueues `rows` rows of x . w^T, from row `row` on, [rows][n] dense, at the address `to`. */
int library_product(struct library *library, int gpu, const struct rings_product *what, int64_t row, int64_t rows, uint64_t to,
                    hipStream_t stream, struct error *e);
/* d[m][n] = a[m][k] . b[k][n], and c if it is there, rounded once. Addresses; strides are in elements, last strides 1. */
struct library_matrix {
    uint64_t a, b, c, d; /* c: 0: nothing is added. d may be c */
    int64_t a_stride, b_stride, c_stride, d_stride;
    int64_t m, n, k;
    uint32_t dtype; /* f32, f16 or bf16, of all */
};
int library_multiply(struct library *library, int gpu, const struct library_matrix *what, hipStream_t stream, struct error *e);
void library_close(struct library *library);

#endif
