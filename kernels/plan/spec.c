/* SPDX-License-Identifier: MIT
 *
 * spec.c - the rows of operators.def as a table.
 */
#include "kernels/plan/spec.h"

#include "kernels/program/code.h"

#include <stdio.h>

#define ARGS(operator) struct fcc_##operator##_args
#define MEMBER_BYTES(operator, member) sizeof(((ARGS(operator) *)0)->member)
/* Lists whose elements each end with a comma; an element without a name ends them. */
#define LIST(type, ...) ((const type[]){__VA_ARGS__{.name = NULL}})
#define COUNT(type, ...) (sizeof(LIST(type, __VA_ARGS__)) / sizeof(type) - 1)

enum { NEEDED, OPTIONAL };
enum { PLAIN, EPILOGUE };
#define TENSOR(operator, member, role_, dtypes_, ndim_, presence)                                                              \
    {.name = #member,                                                                                                          \
     .role = TENSOR_##role_,                                                                                                   \
     .dtypes = DTYPES_##dtypes_,                                                                                               \
     .ndim = (ndim_),                                                                                                          \
     .optional = (presence) == OPTIONAL,                                                                                       \
     .at = offsetof(ARGS(operator), member)},
#define ATTR_NUMBER(operator, member, key_)                                                                                    \
    {.name = #member,                                                                                                          \
     .key = FCC_ATTR_##key_,                                                                                                   \
     .kind = ATTR_NUMBER,                                                                                                      \
     .bytes = MEMBER_BYTES(operator, member),                                                                                  \
     .at = offsetof(ARGS(operator), member)},
#define ATTR_RANKS(operator, member, key_)                                                                                     \
    {.name = #member, .key = FCC_ATTR_##key_, .kind = ATTR_RANKS, .at = offsetof(ARGS(operator), member)},
#define ATTR_LIST(operator, member, key_, count, most)                                                                         \
    {.name = #member,                                                                                                          \
     .key = FCC_ATTR_##key_,                                                                                                   \
     .kind = ATTR_LIST,                                                                                                        \
     .at = offsetof(ARGS(operator), member),                                                                                   \
     .count_at = offsetof(ARGS(operator), count),                                                                              \
     .count_most = (most),                                                                                                     \
     .count_name = #count},
#define VALUES(operator, member) .values_at = offsetof(ARGS(operator), member), .values_name = #member
#define NO_VALUES .values_at = 0
#define VECTORS(in_, out_) , .in = VECTOR_##in_, .out = VECTOR_##out_
#define ROWS(out_) , .out = VECTOR_##out_
#define DEVICE_COUNTS(operator, send, receive)                                                                                 \
    , .device_counts = {{.name = #send, .at = offsetof(ARGS(operator), send)},                                                 \
                        {.name = #receive, .at = offsetof(ARGS(operator), receive)}}

/* The result is the last tensor; test_specs checks this. */
#define OPERATOR(NAME, name_, compute_, exchange_, bind_, epilogue_, tensors_, attrs_, values_)                                \
    [FCC_OP_##NAME] = {.name = #name_,                                                                                         \
                       .prepare_name = #name_ "_prepare",                                                                      \
                       .number = FCC_OP_##NAME,                                                                                \
                       .compute = COMPUTE_##compute_,                                                                          \
                       .exchange = EXCHANGE_##exchange_,                                                                       \
                       .bind = BIND_##bind_,                                                                                   \
                       .epilogue = (epilogue_) == EPILOGUE,                                                                    \
                       .ntensors = COUNT(struct tensor_spec, tensors_),                                                        \
                       .nattrs = COUNT(struct attr_spec, attrs_),                                                              \
                       .result = COUNT(struct tensor_spec, tensors_) - 1,                                                      \
                       .tensors = LIST(struct tensor_spec, tensors_),                                                          \
                       .attrs = LIST(struct attr_spec, attrs_),                                                                \
                       .args_bytes = sizeof(ARGS(name_)),                                                                      \
                       values_,                                                                                                \
                       .schedule_at = offsetof(ARGS(name_), schedule)},
#define OPERATOR_BARE(NAME, name_, compute_, exchange_, bind_)                                                                 \
    [FCC_OP_##NAME] = {.name = #name_,                                                                                         \
                       .prepare_name = #name_ "_prepare",                                                                      \
                       .number = FCC_OP_##NAME,                                                                                \
                       .compute = COMPUTE_##compute_,                                                                          \
                       .exchange = EXCHANGE_##exchange_,                                                                       \
                       .bind = BIND_##bind_,                                                                                   \
                       .result = -1},
#define OPERATOR_INSIDE(NAME, name_, compute_, exchange_)                                                                      \
    [FCC_OP_##NAME] = {.name = #name_,                                                                                         \
                       .prepare_name = #name_ "_prepare",                                                                      \
                       .number = FCC_OP_##NAME,                                                                                \
                       .compute = COMPUTE_##compute_,                                                                          \
                       .exchange = EXCHANGE_##exchange_,                                                                       \
                       .bind = BIND_PREPARED,                                                                                  \
                       .inside = true,                                                                                         \
                       .result = -1},

#define STEP_TENSOR(i)                                                                                                         \
    {.name = "t" #i,                                                                                                           \
     .dtypes = DTYPES_FLOAT,                                                                                                   \
     .ndim = 1,                                                                                                                \
     .optional = true,                                                                                                         \
     .at = offsetof(struct fcc_program_step_args, t) + (i) * sizeof(struct fcc_tensor)},
#define STEP_ATTRS(name_)                                                                                                      \
    LIST(struct attr_spec,                                                                                                     \
         ATTR_LIST(name_, code, CODE, words, CODE_WORDS_MAX) ATTR_LIST(name_, tables, TABLES, table_words, CODE_TABLES_MAX)    \
             ATTR_LIST(name_, tile, TILE, tile_words, 1) ATTR_LIST(name_, dtypes, DTYPES, dtype_words, CODE_TENSORS))
#define OPERATOR_STEP(NAME, name_, compute_, exchange_)                                                                        \
    [FCC_OP_##                                                                                                                 \
        NAME] = {.name = #name_,                                                                                               \
                 .prepare_name = #name_ "_prepare",                                                                            \
                 .number = FCC_OP_##NAME,                                                                                      \
                 .compute = COMPUTE_##compute_,                                                                                \
                 .exchange = EXCHANGE_##exchange_,                                                                             \
                 .bind = BIND_PREPARED,                                                                                        \
                 .inside = true,                                                                                               \
                 .ntensors = 2 + CODE_TENSORS,                                                                                 \
                 .nattrs = 4,                                                                                                  \
                 .result = 1,                                                                                                  \
                 .in = VECTOR_ALL,                                                                                             \
                 .out = VECTOR_ALL,                                                                                            \
                 .tensors = LIST(struct tensor_spec,                                                                           \
                                 TENSOR(name_, in, INPUT, FLOAT, 1, OPTIONAL) TENSOR(name_, out, RESULT, FLOAT, 1, OPTIONAL)   \
                                     STEP_TENSOR(0) STEP_TENSOR(1) STEP_TENSOR(2) STEP_TENSOR(3) STEP_TENSOR(4) STEP_TENSOR(5) \
                                         STEP_TENSOR(6) STEP_TENSOR(7) STEP_TENSOR(8) STEP_TENSOR(9) STEP_TENSOR(10)),         \
                 .attrs = STEP_ATTRS(name_),                                                                                   \
                 .args_bytes = sizeof(ARGS(name_)),                                                                            \
                 .schedule_at = offsetof(ARGS(name_), schedule)},

const struct op_spec op_specs[FCC_OP_COUNT] = {
#include "kernels/plan/operators.def"
};

#define STAGE(stage_, member, role_, dtypes_, ndim_)                                                                           \
    [STAGE_##stage_] = {.name = #member,                                                                                       \
                        .role = TENSOR_##role_,                                                                                \
                        .dtypes = DTYPES_##dtypes_,                                                                            \
                        .ndim = (ndim_),                                                                                       \
                        .optional = true,                                                                                      \
                        .at = offsetof(struct fcc_epilogue, member)}
#define NUMBER(number_, member, is_float_, most_)                                                                              \
    [NUMBER_##                                                                                                                 \
        number_] = {.name = #member, .at = offsetof(struct fcc_epilogue, member), .is_float = (is_float_), .most = (most_)}

const struct tensor_spec epilogue_specs[STAGES] = {
    STAGE(BIAS, bias, INPUT, FLOAT, 1),
    STAGE(RESIDUAL, residual, INPUT, FLOAT, 2),
    STAGE(SUM, sum, RESULT, FLOAT, 2),
    STAGE(NORM_WEIGHT, norm_weight, INPUT, FLOAT, 1),
    STAGE(NORM_BIAS, norm_bias, INPUT, FLOAT, 1),
    STAGE(GATE, gate, INPUT, FLOAT, 2),
    STAGE(QUANTIZED, quantized, RESULT, F8, 2),
    STAGE(QUANTIZED_SCALE, quantized_scale, RESULT, F32, 1),
    STAGE(X_SCALE, x_scale, INPUT, F32, 0), /* 1 or 2 dimensions */
    STAGE(W_SCALE, w_scale, INPUT, F32, 0),
};

const struct number_spec epilogue_numbers[EPILOGUE_NUMBERS] = {
    NUMBER(NORM, norm, false, FCC_LAYER_NORM),
    NUMBER(NORM_EPS, norm_eps, true, 0),
    NUMBER(ACTIVATION, activation, false, FCC_SILU),
    NUMBER(SCALE, scale, true, 0),
    NUMBER(QUANTIZATION, quantization, false, FCC_QUANTIZED_BY_ROW),
};

int64_t op_row_elements(const struct op_spec *op, const void *args)
{
    for (int i = 0; i < op->nattrs; i++)
        if (op->attrs[i].key == FCC_ATTR_ROW_ELEMENTS) {
            const int64_t n = *(const int64_t *)(const void *)((const unsigned char *)args + op->attrs[i].at);
            return n > 0 ? n : 1;
        }
    return 1;
}

void op_counts_in_elements(int64_t counts[], size_t n, int64_t row_elements)
{
    for (size_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(counts[i], row_elements, &counts[i]))
            counts[i] = INT64_MAX;
}

uint32_t op_shared(const struct op_spec *op)
{
    return op->result >= 0 && op->tensors[op->result].role == TENSOR_SHARED ? 1u << op->result : 0;
}

const char *op_names(enum op_bind least, const char *separator, char *out, size_t room)
{
    size_t used = 0;

    out[0] = '\0';
    for (unsigned op = 0; op < FCC_OP_COUNT && used < room; op++)
        if (op_specs[op].bind >= least && !op_specs[op].inside)
            used += (size_t)snprintf(out + used, room - used, "%s%s", used ? separator : "", op_specs[op].name);
    return out;
}
