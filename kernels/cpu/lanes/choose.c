/* SPDX-License-Identifier: MIT
 *
 * choose.c - the loops of the widest vectors that the processor has. The levels of the architecture say so (psABI: x86-64-v3 has AVX2, v4 has AVX-512).
 */
#include "kernels/cpu/lanes/lanes.h"
#include "kernels/cpu/lanes/wide.h"

extern const struct lanes_loops lanes_16;
#ifdef FCC_LANES_WIDE
extern const struct lanes_loops lanes_32, lanes_64;
#endif

const struct lanes_loops *lanes_loops(int bytes)
{
#ifdef FCC_LANES_WIDE
    if (bytes >= 64 && __builtin_cpu_supports("x86-64-v4"))
        return &lanes_64;
    if (bytes >= 32 && __builtin_cpu_supports("x86-64-v3"))
        return &lanes_32;
#endif
    (void)bytes;
    return &lanes_16;
}
