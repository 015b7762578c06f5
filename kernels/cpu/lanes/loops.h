/* SPDX-License-Identifier: MIT
 *
 * loops.h - all loops of lanes.h for vectors of LANES_BYTES, as LANES_LOOPS; both are set by the file that includes this one.
 */
#include "kernels/cpu/lanes/vectors.h"

#include "kernels/cpu/lanes/bags.h"
#include "kernels/cpu/lanes/products.h"

extern const struct lanes_loops LANES_LOOPS;
const struct lanes_loops LANES_LOOPS = {
    .bytes = LANES_BYTES,
    .multiply_f32 = multiply_f32,
    .multiply_f16 = multiply_f16,
    .multiply_bf16 = multiply_bf16,
    .multiply_f8 = multiply_f8,
    .add_f32 = add_f32,
    .add_f16 = add_f16,
    .add_bf16 = add_bf16,
    .add_f32_weighted = add_f32_weighted,
    .add_f16_weighted = add_f16_weighted,
    .add_bf16_weighted = add_bf16_weighted,
};
