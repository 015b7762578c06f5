/* SPDX-License-Identifier: MIT
 *
 * step.h - what a GPU is told of a rank's step of a program: these numbers, and behind them the words of its code (kernels/program/code.h), which the
 * worker has checked. They are uploaded as numbers of the launch (gpu_plugin.launch_numbers) when they have changed.
 */
#ifndef FCC_KERNELS_GPU_STEP_H
#define FCC_KERNELS_GPU_STEP_H

#include "kernels/program/code.h"

struct gpu_step {
    int64_t begin, count;              /* the rank's own elements */
    uint64_t tensor[CODE_TENSORS + 1]; /* addresses; [CODE_OUT]: `out` */
    int64_t dtype[CODE_TENSORS + 1];   /* enum fcc_dtype of each */
};
static_assert(sizeof(struct gpu_step) % sizeof(int64_t) == 0, "numbers");

#define GPU_STEP_GENERATED "fcc_generated_step" /* a kernel that was generated (kernels/gpu/device/generated.h) */
#define GPU_STEP_NUMBERS (sizeof(struct gpu_step) / sizeof(int64_t))

#endif
