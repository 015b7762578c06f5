/* SPDX-License-Identifier: MIT
 *
 * blas.h - the BLAS, loaded when the first dense tile or cpu device needs it, with its own threads off: workgroups are the
 * threads.
 *
 * It is OpenBLAS's build with locks (Debian's openblas-pthread), told before it is loaded to start no threads. Its serial build
 * must not be used: it gives the same work memory to two threads that call it at the same time (seen with 0.3.21).
 */
#ifndef FCC_KERNELS_CPU_BLAS_H
#define FCC_KERNELS_CPU_BLAS_H

#include <cblas.h>

#include "proto/base/error.h"

/* Set by blas_open(). */
extern __typeof__(cblas_sgemm) *blas_sgemm;
extern __typeof__(cblas_sgemv) *blas_sgemv; /* what benchmarks compare with */

/* Loads the BLAS if it is not loaded. Any thread. Returns 0, or -ENOENT with the reason. A later call tries again, as
 * descriptors or memory may have been short. */
int blas_open(struct error *e);

/* Lets `calls` more threads call the BLAS at the same time. The BLAS needs work memory for each call, keeps it, and retries
 * for ever if there is none. If RLIMIT_AS or RLIMIT_DATA limits the process, the memory is allocated here. Returns 0, or
 * -ENOMEM with the reason. One thread at a time. */
int blas_reserve(unsigned calls, struct error *e);

#endif
