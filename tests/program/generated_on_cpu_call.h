/* SPDX-License-Identifier: MIT
 *
 * generated_on_cpu_call.h - how test_generate.c calls a step that was compiled for a cpu. C and C++.
 */
#ifndef FCC_TESTS_PROGRAM_GENERATED_ON_CPU_CALL_H
#define FCC_TESTS_PROGRAM_GENERATED_ON_CPU_CALL_H

#include <stdint.h>

struct generated_conversions {
    float (*from_f16)(uint16_t), (*from_bf16)(uint16_t);
    uint16_t (*to_f16)(float), (*to_bf16)(float);
};

struct generated_call {
    const void *step; /* struct gpu_step */
    const int64_t *words;
    const void *const *in; /* of each rank */
    void *result;
    int64_t begin, end;
    struct generated_conversions conversions;
};

#endif
