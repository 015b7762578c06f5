/* SPDX-License-Identifier: MIT
 *
 * wide.h - FCC_LANES_WIDE: the compiler can make code for wider vectors than all processors have, and there are such.
 */
#ifndef FCC_KERNELS_CPU_LANES_WIDE_H
#define FCC_KERNELS_CPU_LANES_WIDE_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FCC_LANES_WIDE 1
#endif

#endif
