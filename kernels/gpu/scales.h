/* SPDX-License-Identifier: MIT
 *
 * scales.h - the scales of a product's factors, as kernels are told them.
 */
#ifndef FCC_KERNELS_GPU_SCALES_H
#define FCC_KERNELS_GPU_SCALES_H

#include "kernels/gpu/abi.h"
#include "kernels/plan/compute/factors.h"

/* kernels/gpu/device/factors.h says what they mean. */
static_assert(FACTOR_BLOCK == 1 << GPU_SCALES_BLOCK, "the elements of a block");

static inline uint8_t gpu_scales_shift(int64_t elements)
{
    return elements == FACTOR_WHOLE ? GPU_SCALES_WHOLE : elements == FACTOR_BLOCK ? GPU_SCALES_BLOCK : 0;
}

/* Those of a checked request's first (0) or second (1) factor. */
static inline struct gpu_scales gpu_scales_of(const struct op_args *args, int factor)
{
    const struct factor_scale s = factor_scale_of(args, factor);

    return (struct gpu_scales){.at = (uint64_t)(uintptr_t)s.at,
                               .stride = (uint32_t)s.stride,
                               .rows = gpu_scales_shift(s.rows),
                               .cols = gpu_scales_shift(s.cols)};
}

#endif
