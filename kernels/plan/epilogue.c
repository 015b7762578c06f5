/* SPDX-License-Identifier: MIT
 *
 * epilogue.c - checks and compares the epilogues of requests.
 */
#include "kernels/plan/epilogue.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/plan/compute/factors.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/tensor.h"

/* Those of requests that have none. */
static const int64_t no_numbers[EPILOGUE_NUMBERS];

const struct tensor *epilogue_tensor(const struct op_args *args, enum stage stage)
{
    int at = op_spec(args->op)->ntensors + (int)stage;

    return at < args->ntensors && args->tensors[at].data ? &args->tensors[at] : NULL;
}

static const int64_t *numbers_of(const struct op_args *args)
{
    size_t count;
    const int64_t *numbers = op_attr(args, FCC_ATTR_EPILOGUE, &count);

    return numbers ? numbers : no_numbers;
}

static float float_of(int64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float value;

    memcpy(&value, &word, sizeof(value));
    return value;
}

float epilogue_float(const struct epilogue *p, enum epilogue_number number)
{
    const float value = float_of((int64_t)p->number[number]);

    return number == NUMBER_SCALE && value == 0 ? 1 : value;
}

/* ---- one rank's ---- */

static int number_check(const struct number_spec *spec, int64_t value, bool may_be_negative, struct error *e)
{
    if (!spec->is_float && (value < 0 || value > (int64_t)spec->most))
        return error_set(e, -EINVAL, "%s: %lld: allowed are 0 to %u", spec->name, (long long)value, spec->most);
    if (spec->is_float && (value < 0 || value > UINT32_MAX))
        return error_set(e, -EINVAL, "%s: %lld: allowed are the bits of an f32", spec->name, (long long)value);
    if (spec->is_float && (!isfinite(float_of(value)) || (!may_be_negative && float_of(value) < 0)))
        return error_set(e, -EINVAL, "%s: %g: allowed are finite numbers%s", spec->name, (double)float_of(value),
                         may_be_negative ? "" : ", 0 and more");
    return 0;
}

static int numbers_check(const struct op_args *args, struct error *e)
{
    size_t count;
    const int64_t *numbers = op_attr(args, FCC_ATTR_EPILOGUE, &count);
    int status = 0;

    if (numbers && count != EPILOGUE_NUMBERS)
        return error_set(e, -EINVAL, "epilogue: %zu numbers: expected %d", count, EPILOGUE_NUMBERS);
    for (int i = 0; numbers && i < EPILOGUE_NUMBERS && status == 0; i++)
        status = number_check(&epilogue_numbers[i], numbers[i], i == NUMBER_SCALE, e);
    return status;
}

/* Whether a stage's tensor belongs to what the numbers say. */
static int presence_check(const struct op_args *args, struct error *e)
{
    const int64_t *number = numbers_of(args);
    const bool puts = op_spec(args->op)->exchange == EXCHANGE_PUT;
    const struct {
        enum stage stage;
        bool wrong;
        const char *allowed;
    } rules[] = {
        {STAGE_NORM_WEIGHT, !number[NUMBER_NORM], "with a norm"},
        {STAGE_NORM_BIAS, number[NUMBER_NORM] != FCC_LAYER_NORM, "with a LayerNorm (norm 2)"},
        {STAGE_QUANTIZED, !number[NUMBER_QUANTIZATION], "with a quantization"},
        {STAGE_QUANTIZED_SCALE, !number[NUMBER_QUANTIZATION], "with a quantization"},
        {STAGE_GATE, puts && (number[NUMBER_NORM] || epilogue_tensor(args, STAGE_SUM)),
         "without norm and sum, where rows go to other ranks"},
    };

    for (int i = STAGE_X_SCALE; i < STAGES && op_spec(args->op)->compute == COMPUTE_VECTOR; i++)
        if (epilogue_tensor(args, (enum stage)i))
            return error_set(e, -EINVAL, "%s: given: allowed only of products", epilogue_specs[i].name);
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (rules[i].wrong && epilogue_tensor(args, rules[i].stage))
            return error_set(e, -EINVAL, "%s: given: allowed only %s", epilogue_specs[rules[i].stage].name, rules[i].allowed);
    for (int i = STAGE_QUANTIZED; number[NUMBER_QUANTIZATION] && i <= STAGE_QUANTIZED_SCALE; i++)
        if (!epilogue_tensor(args, (enum stage)i))
            return error_set(e, -EINVAL, "%s: absent: needed with quantization %d", epilogue_specs[i].name,
                             (int)number[NUMBER_QUANTIZATION]);
    return 0;
}

/* Factors' scales are checked with the factors (factors_scales_check()). */
static bool stage_is_of_factor(enum stage stage)
{
    return stage == STAGE_X_SCALE || stage == STAGE_W_SCALE;
}

/* The sizes that a stage's tensor needs. */
struct extent {
    int64_t rows, result_rows, cols;
};

static int tensor_stage_check(const struct op_args *args, enum stage stage, const char *dtype_of, enum fcc_dtype dtype,
                              const struct extent *x, struct error *e)
{
    const struct tensor_spec *spec = &epilogue_specs[stage];
    const struct tensor *t = epilogue_tensor(args, stage);
    const bool of_result = spec->role == TENSOR_RESULT;
    if (!t || stage_is_of_factor(stage))
        return 0;
    int status = tensor_check(t, spec->name, spec->dtypes, spec->ndim, e);
    if (status)
        return status;
    if (spec->dtypes == DTYPES_FLOAT)
        status = tensor_check_dtype(t, spec->name, dtype, dtype_of, e);
    if (stage == STAGE_QUANTIZED_SCALE)
        return numbers_of(args)[NUMBER_QUANTIZATION] == FCC_QUANTIZED_STATIC
                   ? tensor_check_shape(t, spec->name, 0, 1, "one scale", e)
                   : tensor_check_shape(t, spec->name, 0, x->result_rows, "one scale for each row", e);
    if (status == 0 && spec->ndim > 1)
        status = tensor_check_shape(t, spec->name, 0, of_result ? x->result_rows : x->rows, "M", e);
    if (status == 0)
        status = tensor_check_shape(t, spec->name, spec->ndim - 1, x->cols, "N", e);
    if (status == 0 && of_result && t->stride[0] < x->cols && t->shape[0] > 1)
        status = error_set(e, -EINVAL, "%s: stride[0] %lld: rows overlap: allowed are %lld and more", spec->name,
                           (long long)t->stride[0], (long long)x->cols);
    return status;
}

int epilogue_check(const struct op_args *args, const char *dtype_of, enum fcc_dtype dtype, int64_t rows, int64_t result_rows,
                   int64_t cols, struct error *e)
{
    const struct extent x = {rows, result_rows, cols};
    int status = numbers_check(args, e);

    if (status == 0)
        status = presence_check(args, e);
    for (int i = 0; i < STAGES && status == 0; i++)
        status = tensor_stage_check(args, (enum stage)i, dtype_of, dtype, &x, e);
    return status;
}

/* ---- all ranks' ---- */

struct epilogue epilogue_of(const struct op_args *args, int64_t cols)
{
    struct epilogue found;
    struct error none = {.status = 0};

    (void)epilogue_match(args, 1, cols, &found, &none); /* one rank is like itself */
    return found;
}

uint32_t epilogue_hash(const struct epilogue *p)
{
    uint32_t hash = 2166136261u, any = 0; /* FNV-1a of the words (Fowler, Noll, Vo) */

    for (int i = 0; i < EPILOGUE_NUMBERS; i++) {
        any |= p->number[i];
        hash = (hash ^ p->number[i]) * 16777619u;
    }
    hash = (hash ^ hash >> 16) & 0xffff;
    return !any ? 0 : hash ? hash : 1;
}

int epilogue_match(const struct op_args args[], int nranks, int64_t cols, struct epilogue *out, struct error *e)
{
    const int64_t *first_numbers = numbers_of(&args[0]);

    *out = (struct epilogue){.cols = epilogue_is_there(&args[0]) ? cols : 0};
    for (int i = 0; i < STAGES; i++) {
        const bool first = epilogue_tensor(&args[0], (enum stage)i);
        for (int r = 1; r < nranks; r++)
            if (!epilogue_tensor(&args[r], (enum stage)i) == first)
                return error_set(e, -EINVAL, "%s: rank %d has %s, rank 0 has %s", epilogue_specs[i].name, r,
                                 first ? "none" : "one", first ? "one" : "none");
        out->stages |= first ? 1u << i : 0;
    }
    for (int i = 0; i < EPILOGUE_NUMBERS; i++) {
        const struct number_spec *spec = &epilogue_numbers[i];
        for (int r = 1; r < nranks; r++) {
            const int64_t value = numbers_of(&args[r])[i];
            if (value != first_numbers[i] && spec->is_float)
                return error_set(e, -EINVAL, "%s: rank %d has %g, rank 0 has %g", spec->name, r, (double)float_of(value),
                                 (double)float_of(first_numbers[i]));
            if (value != first_numbers[i])
                return match_value(spec->name, r, value, first_numbers[i], e);
        }
        out->number[i] = (uint32_t)first_numbers[i];
    }
    return 0;
}

int64_t epilogue_cols(const struct op_args *args, int64_t otherwise)
{
    for (int i = 0; i < STAGES; i++) {
        const struct tensor *t = epilogue_tensor(args, (enum stage)i);
        if (t && i != STAGE_QUANTIZED_SCALE && !stage_is_of_factor((enum stage)i) && t->ndim >= 1)
            return t->shape[t->ndim - 1];
    }
    return otherwise;
}

int64_t epilogue_rows(const struct op_args *args)
{
    for (int i = 0; i < STAGES; i++) {
        const struct tensor *t = epilogue_tensor(args, (enum stage)i);
        if (t && t->ndim > 1 && !stage_is_of_factor((enum stage)i))
            return t->shape[0];
    }
    return 0;
}

bool epilogue_is_there(const struct op_args *args)
{
    const int first = op_spec(args->op)->ntensors;
    bool any = false;

    for (int i = 0; i < STAGES && first + i < args->ntensors; i++)
        any |= epilogue_tensor(args, (enum stage)i) != NULL;
    for (int i = 0; i < EPILOGUE_NUMBERS; i++)
        any |= numbers_of(args)[i] != 0;
    return any;
}

static int sums_check_gpu(const struct op_args *args, struct error *e)
{
    const struct code code = step_code(args);

    return code_mixes_sums(&code) ? error_set(e, -EOPNOTSUPP,
                                              "programs: sums of tensors and others in one step: not on GPUs: allowed is to "
                                              "fuse them apart")
                                  : 0;
}

int epilogue_check_gpu(const struct op_args *args, bool over_nodes, struct error *e)
{
    if (op_is_step(args->op))
        return over_nodes ? error_set(e, -EOPNOTSUPP,
                                      "programs: not on GPUs of several nodes yet: allowed on those of one, and on cpu devices")
                          : sums_check_gpu(args, e);
    const struct epilogue p = epilogue_of(args, 0);

    if (epilogue_has_rows(&p) || epilogue_has_each(&p))
        return error_set(
            e, -EOPNOTSUPP,
            "%s: not of what fccd launches on GPUs, only bias and residual: allowed where this process launches the operator",
            p.number[NUMBER_NORM]           ? "norm"
            : epilogue_has(&p, STAGE_SUM)   ? "sum"
            : p.number[NUMBER_QUANTIZATION] ? "quantization"
            : epilogue_has(&p, STAGE_GATE)  ? "gate"
            : p.number[NUMBER_ACTIVATION]   ? "activation"
                                            : "scale");
    if (op_spec(args->op)->compute == COMPUTE_VECTOR && epilogue_is_there(args))
        return error_set(e, -EOPNOTSUPP, "epilogue: not on GPUs yet: allowed of products");
    const uint8_t compute = op_spec(args->op)->compute;
    if (compute == COMPUTE_GEMV && args->tensors[0].shape[0] > FCC_GEMV_MAX_M)
        return error_set(e, -EINVAL, "%s: shape[0] %lld: allowed are 1 to %d of what fccd launches on GPUs",
                         op_spec(args->op)->tensors[0].name, (long long)args->tensors[0].shape[0], FCC_GEMV_MAX_M);
    const uint32_t factors = compute == COMPUTE_GEMM || compute == COMPUTE_GEMV ? factors_of(args) : 0; /* others have none */
    if (op_spec(args->op)->exchange == EXCHANGE_GATHER && factors)
        return error_set(e, -EOPNOTSUPP, "%s: not on GPUs yet: allowed on cpu devices",
                         factors & FACTORS_BATCH_INVARIANT ? "schedule: batch invariant" : "factors in f8e4m3");
    return 0;
}

bool epilogue_fits(const struct epilogue *p, const struct op_args *args)
{
    const int64_t *numbers = numbers_of(args);
    bool fit = true;

    for (int i = 0; i < EPILOGUE_NUMBERS; i++)
        fit &= (uint32_t)numbers[i] == p->number[i];
    return fit;
}

bool epilogue_may_share(const struct op_args *args, int tensor, int other)
{
    const struct op_spec *op = op_spec(args->op);
    const int residual = op->ntensors + STAGE_RESIDUAL, result = tensor == residual ? other : tensor;

    if ((tensor != residual && other != residual) || op->exchange != EXCHANGE_REDUCE ||
        (result != op->result && result != op->ntensors + STAGE_SUM))
        return false;
    const struct tensor *t = &args->tensors[residual], *to = &args->tensors[result];
    const int64_t stride = to->ndim > 1 ? to->stride[0] : t->shape[1]; /* a vector's rows are dense */
    return t->data == to->data && (t->stride[0] == stride || t->shape[0] <= 1);
}

uint32_t epilogue_results(const struct op_args *args)
{
    if (op_is_step(args->op))
        return step_results(args);
    const struct op_spec *op = op_spec(args->op);
    const int first = op->ntensors;
    const bool by_row = numbers_of(args)[NUMBER_QUANTIZATION] == FCC_QUANTIZED_BY_ROW;
    uint32_t results = 0;

    for (int i = 0; i < op->result; i++)
        results |= op->tensors[i].role == TENSOR_RESULT && args->tensors[i].data ? 1u << i : 0;
    for (int i = 0; i < STAGES && first + i < args->ntensors; i++)
        if (epilogue_tensor(args, (enum stage)i) && epilogue_specs[i].role == TENSOR_RESULT &&
            (i != STAGE_QUANTIZED_SCALE || by_row))
            results |= 1u << (first + i);
    return results;
}
