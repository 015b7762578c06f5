/* SPDX-License-Identifier: MIT */

#define LANES_BYTES 16
#define LANES_LOOPS lanes_16
#include "kernels/cpu/lanes/loops.h"
