/* SPDX-License-Identifier: MIT
 *
 * gather.h - where the rows of A are that a slice multiplies, on CPU cores (kernels/plan/exchange/gather.h).
 */
#ifndef FCC_KERNELS_CPU_GATHER_H
#define FCC_KERNELS_CPU_GATHER_H

#include "kernels/cpu/dense.h"

/* The first factor of the slice's product. */
struct factor gathered_factor(const struct run *run, const struct slice *slice);

#endif
