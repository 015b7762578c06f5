/* SPDX-License-Identifier: MIT
 *
 * step.h - what a GPU is told of a rank's step of a program: these numbers, and behind them the words of its code (kernels/program/code.h), which the
 * worker has checked. They are uploaded as numbers of the launch (gpu_plugin.launch_numbers) when they have changed.
 */
#ifndef FCC_KERNELS_GPU_STEP_H
#define FCC_KERNELS_GPU_STEP_H

#include "kernels/gpu/abi.h"
#include "kernels/program/code.h"

/* Tensors of a table lie apart (code.h). Numbers behind the code say, for each step's tensor that has a table, how much further element e of all lies than e
 * elements behind that tensor's begin: one for each tensor of the table. `places` says where these numbers are, in words from the struct's begin, 0: there
 * are none: of the rank's own tensors [0, CODE_OUT], and of each rank's `in` and `out`. */
enum {
    GPU_STEP_IN = CODE_TENSORS + 1,
    GPU_STEP_OUT = GPU_STEP_IN + GPU_MAX_RANKS,
    GPU_STEP_PLACES = GPU_STEP_OUT + GPU_MAX_RANKS
};

struct gpu_step {
    int64_t begin, count;              /* the rank's own elements */
    uint64_t tensor[CODE_TENSORS + 1]; /* addresses; [CODE_OUT]: `out` */
    int64_t dtype[CODE_TENSORS + 1];   /* enum fcc_dtype of each */
    uint32_t places[GPU_STEP_PLACES];
    /* Where numbers of the table's pieces (CODE_SUM_PIECE) are, if tensors are added up: for each tensor how many the rank has of those before it, and how
     * many in all. 0: there are none. */
    uint32_t pieces, zero;
};
static_assert(sizeof(struct gpu_step) % sizeof(int64_t) == 0, "numbers");

#define GPU_STEP_GENERATED "fcc_generated_step" /* a kernel that was generated (kernels/gpu/device/generated.h) */
#define GPU_STEP_NUMBERS (sizeof(struct gpu_step) / sizeof(int64_t))

#endif
