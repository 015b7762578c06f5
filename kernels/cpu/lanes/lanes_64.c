/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/lanes/wide.h"

#ifdef FCC_LANES_WIDE
#pragma GCC target("arch=x86-64-v4")
#define LANES_BYTES 64
#define LANES_LOOPS lanes_64
#include "kernels/cpu/lanes/loops.h"
#endif
