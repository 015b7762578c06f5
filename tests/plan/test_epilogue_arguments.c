/* SPDX-License-Identifier: MIT
 *
 * test_epilogue_arguments.c - what the operators say to bad epilogues, and to factors in f8e4m3 and scales that do not fit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>

#include "tests/plan/arguments.h"

/* ---- epilogues ---- */

static struct request with_epilogue(struct request q, int64_t rows, int64_t cols)
{
    for (int r = 0; r < RANKS; r++) {
        enum fcc_dtype dtype = q.args[r].tensors[FCC_GEMM_A].dtype;
        q.args[r].ntensors = FCC_GEMM_TENSORS + STAGES;
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_BIAS] = tensor_of(dtype, 1, cols, 0, 0);
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_RESIDUAL] = tensor_of(dtype, 2, rows, cols, 0);
    }
    return q;
}

static struct request gemv_epilogue(void)
{
    return with_epilogue(gemv(), 2, 30);
}

/* Numbers of rank 1, or of all ranks. */
static void numbers_add(struct request *q, int first, enum epilogue_number at, int64_t value)
{
    int64_t numbers[EPILOGUE_NUMBERS] = {[NUMBER_NORM] = FCC_RMS_NORM};

    for (int r = 0; r < RANKS; r++) {
        numbers[at] = r >= first ? value : at == NUMBER_NORM ? FCC_RMS_NORM : 0;
        attr_add(q, r, FCC_ATTR_EPILOGUE, numbers, EPILOGUE_NUMBERS);
    }
}

#define STAGE(stage) q.args[1].tensors[FCC_GEMM_TENSORS + (stage)]
#define BIAS q.args[1].tensors[FCC_GEMM_TENSORS + STAGE_BIAS]
#define RESIDUAL q.args[1].tensors[FCC_GEMM_TENSORS + STAGE_RESIDUAL]

static void test_epilogue(void **state)
{
    (void)state;
    SPOIL(gemv_epilogue, (void)0, mismatch, "");
    SPOIL(gemv_epilogue, q.args[1].ntensors = 2, refuse, "tensors: 2: allowed is 3");
    SPOIL(gemv_epilogue, q.args[1].ntensors = 14, refuse, "tensors: 14: allowed is 3");
    SPOIL(gemv_epilogue, BIAS.data = NULL, mismatch, "bias: rank 1 has none, rank 0 has one");
    SPOIL(gemv_epilogue, RESIDUAL.data = NULL, mismatch, "residual: rank 1 has none, rank 0 has one");
    SPOIL(gemv_epilogue, q.args[0].tensors[FCC_GEMM_TENSORS + STAGE_BIAS].data = NULL, mismatch,
          "bias: rank 1 has one, rank 0 has none");
    SPOIL(gemv_epilogue, q.args[1].ntensors = FCC_GEMV_TENSORS, mismatch, "bias: rank 1 has none, rank 0 has one");
    SPOIL(gemv_epilogue, BIAS.dtype = FCC_F32, refuse, "bias: dtype f32: allowed is f16 (y's)");
    SPOIL(gemv_epilogue, BIAS.shape[0] = 29, refuse, "bias: shape[0] 29: allowed is 30 (N)");
    SPOIL(gemv_epilogue, BIAS.ndim = 2, refuse, "bias: 2 dimensions: allowed is 1");
    SPOIL(gemv_epilogue, RESIDUAL.dtype = FCC_I64, refuse, "residual: dtype i64: allowed: f32, f16, bf16");
    SPOIL(gemv_epilogue, RESIDUAL.shape[0] = 3, refuse, "residual: shape[0] 3: allowed is 2 (M)");
    SPOIL(gemv_epilogue, RESIDUAL.shape[1] = 31, refuse, "residual: shape[1] 31: allowed is 30 (N)");
    SPOIL(gemv_epilogue, RESIDUAL.stride[1] = 2, refuse, "residual: stride[1] 2: allowed is 1");
}

#define F32_BITS(number)                                                                                                       \
    (union {                                                                                                                   \
        float f;                                                                                                               \
        uint32_t u;                                                                                                            \
    }){.f = (number)}                                                                                                          \
        .u

static void test_epilogue_numbers(void **state)
{
    (void)state;
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM, 1), mismatch, "");
    SPOIL(gemv_epilogue, attr_add(&q, 1, FCC_ATTR_EPILOGUE, (int64_t[]){1}, 1), refuse, "epilogue: 1 numbers: expected 5");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM, 3), refuse, "norm: 3: allowed are 0 to 2");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM, -1), refuse, "norm: -1: allowed are 0 to 2");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_ACTIVATION, 5), refuse, "activation: 5: allowed are 0 to 4");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_QUANTIZATION, 3), refuse, "quantization: 3: allowed are 0 to 2");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM_EPS, F32_BITS(-1e-5f)), refuse,
          "norm_eps: -1e-05: allowed are finite numbers, 0 and more");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_NORM_EPS, INT64_C(1) << 40), refuse,
          "norm_eps: 1099511627776: allowed are the bits of an f32");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_SCALE, F32_BITS(INFINITY)), refuse,
          "scale: inf: allowed are finite numbers");
    SPOIL(gemv_epilogue, numbers_add(&q, 1, NUMBER_NORM, 2), mismatch, "norm: rank 1 has 2, rank 0 has 1");
    SPOIL(gemv_epilogue, numbers_add(&q, 1, NUMBER_NORM_EPS, F32_BITS(0.5f)), mismatch,
          "norm_eps: rank 1 has 0.5, rank 0 has 0");
    SPOIL(gemv_epilogue, STAGE(STAGE_NORM_WEIGHT) = BIAS, refuse, "norm_weight: given: allowed only with a norm");
    SPOIL(gemv_epilogue, (numbers_add(&q, 0, NUMBER_NORM, 1), STAGE(STAGE_NORM_BIAS) = BIAS), refuse,
          "norm_bias: given: allowed only with a LayerNorm (norm 2)");
    SPOIL(gemv_epilogue, (numbers_add(&q, 0, NUMBER_NORM, 1), STAGE(STAGE_NORM_WEIGHT) = BIAS), mismatch,
          "norm_weight: rank 1 has one, rank 0 has none");
    SPOIL(gemv_epilogue,
          (numbers_add(&q, 0, NUMBER_NORM, 1), STAGE(STAGE_NORM_WEIGHT) = BIAS, STAGE(STAGE_NORM_WEIGHT).shape[0] = 29), refuse,
          "norm_weight: shape[0] 29: allowed is 30 (N)");
    SPOIL(gemv_epilogue, (STAGE(STAGE_SUM) = RESIDUAL, STAGE(STAGE_SUM).stride[0] = 29), refuse,
          "sum: stride[0] 29: rows overlap: allowed are 30 and more");
    SPOIL(gemv_epilogue, numbers_add(&q, 0, NUMBER_QUANTIZATION, 1), refuse, "quantized: absent: needed with quantization 1");
    SPOIL(gemv_epilogue, STAGE(STAGE_QUANTIZED) = tensor_of(FCC_F8E4M3, 2, 2, 30, 0), refuse,
          "quantized: given: allowed only with a quantization");
    SPOIL(gemv_epilogue,
          (numbers_add(&q, 0, NUMBER_QUANTIZATION, 2), STAGE(STAGE_QUANTIZED) = tensor_of(FCC_F8E4M3, 2, 2, 30, 0),
           STAGE(STAGE_QUANTIZED_SCALE) = tensor_of(FCC_F32, 1, 1, 0, 0)),
          refuse, "quantized_scale: shape[0] 1: allowed is 2 (one scale for each row)");
    SPOIL(gemv_epilogue,
          (numbers_add(&q, 0, NUMBER_QUANTIZATION, 1), STAGE(STAGE_QUANTIZED) = tensor_of(FCC_F8E4M3, 2, 2, 30, 0),
           STAGE(STAGE_QUANTIZED_SCALE) = tensor_of(FCC_F32, 1, 2, 0, 0)),
          refuse, "quantized_scale: shape[0] 2: allowed is 1 (one scale)");
}

/* ---- factors in f8e4m3 ---- */

static struct request f8_of(struct request q)
{
    for (int r = 0; r < RANKS; r++) {
        const struct tensor *a = &q.args[r].tensors[FCC_GEMM_A];
        q.args[r].ntensors = FCC_GEMM_TENSORS + STAGES;
        q.args[r].tensors[FCC_GEMM_A].dtype = q.args[r].tensors[FCC_GEMM_B].dtype = FCC_F8E4M3;
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_X_SCALE] = tensor_of(FCC_F32, 1, a->shape[0], 0, 0);
        q.args[r].tensors[FCC_GEMM_TENSORS + STAGE_W_SCALE] = tensor_of(FCC_F32, 1, 30, 0, 0);
    }
    return q;
}

static struct request gemv_f8(void)
{
    return f8_of(gemv());
}

static struct request sums_f8(void)
{
    return f8_of(sums());
}

#define X_SCALE STAGE(STAGE_X_SCALE)
#define W_SCALE STAGE(STAGE_W_SCALE)

static void test_factors(void **state)
{
    (void)state;
    SPOIL(gemv_f8, (void)0, mismatch, "");
    SPOIL(gemv_f8, X_SCALE = tensor_of(FCC_F32, 1, 1, 0, 0), mismatch, "");
    SPOIL(gemv_f8, X_SCALE = tensor_of(FCC_F32, 2, 1, 1, 0), mismatch, "");
    SPOIL(gemv_f8, X_SCALE = tensor_of(FCC_F32, 2, 2, 1, 0), mismatch, "");
    SPOIL(gemv_f8, W_SCALE = tensor_of(FCC_F32, 2, 1, 1, 0), mismatch, "");
    SPOIL(sums_f8, X_SCALE = tensor_of(FCC_F32, 2, 2, 1, 0), mismatch, "");
    SPOIL(sums_f8, X_SCALE = tensor_of(FCC_F32, 2, 200, 1, 0), mismatch, "");
    SPOIL(sums_f8, X_SCALE = tensor_of(FCC_F32, 2, 3, 1, 0), refuse,
          "x_scale: shape [3][1]: allowed are [1], [200] (each row of a), [2][1] (each block of 128 x 128), [200][1] (each 128 "
          "elements "
          "of a row)");
    SPOIL(sums_f8, X_SCALE.shape[0] = 199, refuse,
          "x_scale: shape [199]: allowed are [1], [200] (each row of a), [2][1] (each block of 128 x 128), [200][1] (each 128 "
          "elements "
          "of a row)");
    SPOIL(sums_f8, W_SCALE.shape[0] = 11, refuse,
          "w_scale: shape [11]: allowed are [1], [30] (each column of b), [1][1] (each block of 128 x 128)");
    SPOIL(gemv_f8, W_SCALE = tensor_of(FCC_F32, 2, 30, 1, 0), refuse,
          "w_scale: shape [30][1]: allowed are [1], [30] (each row of w), [1][1] (each block of 128 x 128)");
    SPOIL(gemv_f8, W_SCALE.ndim = 3, refuse, "w_scale: 3 dimensions: allowed are 1 and 2");
    SPOIL(gemv_f8, W_SCALE.stride[0] = 2, refuse, "w_scale: stride[0] 2: allowed is 1");
    SPOIL(gemv_f8, W_SCALE.dtype = FCC_F16, refuse, "w_scale: dtype f16: allowed: f32");
    SPOIL(gemv_f8, W_SCALE.data = NULL, mismatch, "w_scale: rank 1 has none, rank 0 has one");
    SPOIL(gemv_f8, W.dtype = FCC_F16, refuse, "w_scale: given: allowed only where w is f8e4m3");
    SPOIL(gemv_f8, (W.dtype = FCC_F16, W_SCALE.data = NULL), mismatch, "w: dtype: rank 1 has f16, rank 0 has f8e4m3");
    SPOIL(gemv_f8, (W.dtype = FCC_F32, W_SCALE.data = NULL), refuse, "y: dtype f16: allowed is f32 (w's)");
    SPOIL(gemv_f8, Y.dtype = FCC_F8E4M3, refuse, "y: dtype f8e4m3: allowed: f32, f16, bf16");
    SPOIL(gemv_f8, Y.dtype = FCC_BF16, mismatch, "y: dtype: rank 1 has bf16, rank 0 has f16");
    SPOIL(gemv, X.dtype = FCC_F8E4M3, mismatch, "x: dtype: rank 1 has f8e4m3, rank 0 has f16");
    SPOIL(gemv, X.dtype = FCC_F8E5M2, refuse, "x: dtype f8e5m2: allowed: f32, f16, bf16, f8e4m3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_epilogue), cmocka_unit_test(test_epilogue_numbers),
                                       cmocka_unit_test(test_factors)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
