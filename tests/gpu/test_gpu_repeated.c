/* SPDX-License-Identifier: MIT
 *
 * test_gpu_repeated.c - operators that come to a stream again and again, whose kernels the ranks' own processes put there ahead of the worker's
 * decision (client/stream/repeated.c), through the real daemon on NVIDIA GPUs. Whose turn it is and how it ends is tested on fake GPUs
 * (test_gpu_worker_repeated.c).
 */
#include "tests/gpu/gpu_chain.h"

/* As many as the ranks take to have them repeated, and more. */
static const struct shape row_f32 = {.dtype = FCC_F32, .m = 1, .n = 512, .steps = 48, .rounds = 60, .repeated = true};
static const struct shape row_f16 = {.dtype = FCC_F16, .m = 1, .n = 4096, .steps = 16, .rounds = 80, .repeated = true};
static const struct shape row_bf16 = {.dtype = FCC_BF16, .m = 1, .n = 1024, .steps = 32, .rounds = 60, .repeated = true};
static const struct shape rows_f16 = {.dtype = FCC_F16, .m = 8, .n = 1024, .steps = 32, .rounds = 60, .repeated = true};
static const struct shape rows_bf16 = {.dtype = FCC_BF16, .m = 32, .n = 2048, .steps = 32, .rounds = 40, .repeated = true};
/* Those that somebody attends to are the worker's. */
static const struct shape row_attended = {
    .dtype = FCC_F16, .m = 1, .n = 4096, .steps = 16, .rounds = 80, .repeated = true, .attends = 5};
static const struct shape rows_attended = {
    .dtype = FCC_F16, .m = 8, .n = 1024, .steps = 32, .rounds = 60, .repeated = true, .attends = 5};
static const struct shape rows_rarely_attended = {
    .dtype = FCC_BF16, .m = 16, .n = 2048, .steps = 300, .rounds = 4, .repeated = true, .attends = 300};
/* Rows, to and fro, some noops between them. */
static const struct shape few_f16 = {
    .dtype = FCC_F16, .m = 8, .n = 2048, .steps = 24, .rounds = 60, .per_rank = true, .repeated = true};
static const struct shape few_bf16 = {
    .dtype = FCC_BF16, .m = 64, .n = 2048, .steps = 24, .rounds = 60, .per_rank = true, .repeated = true};
static const struct shape few_f32 = {
    .dtype = FCC_F32, .m = 3, .n = 512, .steps = 24, .rounds = 60, .per_rank = true, .repeated = true};
static const struct shape large_f16 = {.dtype = FCC_F16, .m = 2048, .n = 1024, .steps = 24, .rounds = 40, .repeated = true};
static const struct shape few_attended = {
    .dtype = FCC_F16, .m = 8, .n = 2048, .steps = 24, .rounds = 60, .per_rank = true, .repeated = true, .attends = 5};

CHAIN(in_a_row_f32, row_f32)
CHAIN(in_a_row_f16, row_f16)
CHAIN(in_a_row_bf16, row_bf16)
CHAIN(of_rows_f16, rows_f16)
CHAIN(of_rows_bf16, rows_bf16)
CHAIN(attended, row_attended)
CHAIN(attended_rows, rows_attended)
CHAIN(attended_rarely, rows_rarely_attended)
SENT(sent_f16, few_f16)
SENT(sent_bf16, few_bf16)
SENT(sent_f32, few_f32)
SENT(sent_many_f16, large_f16)
SENT(sent_attended, few_attended)

int main(void)
{
    static const struct test tests[] = {
        {"in_a_row_f32", in_a_row_f32, 0},   {"in_a_row_f16", in_a_row_f16, 0},
        {"in_a_row_bf16", in_a_row_bf16, 0}, {"of_rows_f16", of_rows_f16, 0},
        {"of_rows_bf16", of_rows_bf16, 0},   {"attended", attended, 0},
        {"attended_rows", attended_rows, 0}, {"attended_rarely", attended_rarely, 0},
        {"sent_f16", sent_f16, 0},           {"sent_bf16", sent_bf16, 0},
        {"sent_f32", sent_f32, 0},           {"sent_many_f16", sent_many_f16, 0},
        {"sent_attended", sent_attended, 0},
    };
    return gpus_found() ? tests_run("gpu_repeated", TESTS(tests)) : EXIT_SUCCESS;
}
