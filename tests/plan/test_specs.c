/* SPDX-License-Identifier: MIT
 *
 * test_specs.c - every row of operators.def is whole: its names, its parts, and that its tensors and attributes lie in the public struct,
 * beside each other, and in the order of the wire.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <errno.h>

#include "kernels/gpu/bound.h"
#include "kernels/plan/plan.h"
#include "kernels/plan/spec.h"
#include "proto/proto.h"

/* The bytes of a public struct that a row speaks of, once each. */
struct bytes {
    char taken[2048];
    size_t size;
};

static void take(struct bytes *b, size_t at, size_t size)
{
    assert_true(at + size <= b->size);
    for (size_t i = at; i < at + size; i++) {
        assert_false(b->taken[i]);
        b->taken[i] = 1;
    }
}

static void expect_tensors(const struct op_spec *op, struct bytes *b)
{
    assert_true(op->ntensors + (op->epilogue ? STAGES : 0) <= FCC_MAX_TENSORS);
    for (int i = 0; i < op->ntensors; i++) {
        const struct tensor_spec *t = &op->tensors[i];
        assert_true(t->name && *t->name);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(t->name, op->tensors[j].name);
        assert_true(t->dtypes && t->ndim >= 1 && t->ndim <= FCC_MAX_DIMS);
        assert_false(i == op->result && t->role == TENSOR_INPUT);
        assert_true(i == op->result || t->role == TENSOR_INPUT ||
                    (t->role == TENSOR_RESULT && t->optional)); /* of the rank alone */
        assert_false(i == op->result && t->optional && op->compute != COMPUTE_VECTOR && op->compute != COMPUTE_STEP);
        take(b, t->at, sizeof(struct fcc_tensor));
    }
    assert_null(op->tensors[op->ntensors].name);
}

static void expect_attrs(const struct op_spec *op, struct bytes *b)
{
    for (int i = 0; i < op->nattrs; i++) {
        const struct attr_spec *a = &op->attrs[i];
        assert_true(a->name && *a->name && a->key);
        assert_true(i == 0 || a->key > op->attrs[i - 1].key); /* in the order of the keys, each once */
        assert_true(a->kind == ATTR_NUMBER ? a->bytes == 4 || a->bytes == 8 : a->bytes == 0);
        take(b, a->at, a->kind == ATTR_NUMBER ? a->bytes : sizeof(void *));
        assert_int_equal(a->kind == ATTR_LIST, a->count_name && a->count_most > 0);
        if (a->kind == ATTR_LIST)
            take(b, a->count_at, sizeof(int32_t));
    }
    assert_null(op->attrs[op->nattrs].name);
}

static void expect_args(const struct op_spec *op)
{
    struct bytes b = {.size = op->args_bytes};

    assert_true(op->args_bytes <= sizeof(b.taken));
    expect_tensors(op, &b);
    expect_attrs(op, &b);
    if (op->values_at)
        take(&b, op->values_at, sizeof(void *));
    for (int i = 0; i < DEVICE_COUNTS; i++)
        if (op->device_counts[i].name)
            take(&b, op->device_counts[i].at, sizeof(void *));
    assert_true(!op->device_counts[DEVICE_COUNTS_SEND].name || op->in == VECTOR_COUNTED);
    take(&b, op->schedule_at, 8 * sizeof(uint32_t));
    for (size_t i = 0; i < b.size; i++)
        assert_true(b.taken[i] || (op->inside && i + sizeof(uint32_t) >= b.size)); /* a hole behind the last member */
}

static void test_rows(void **state)
{
    (void)state;
    for (unsigned i = 0; i < FCC_OP_COUNT; i++) {
        const struct op_spec *op = op_spec(i);
        char prepare[80];
        assert_non_null(op);
        assert_string_equal(op->name, op_name((enum fcc_op)i));
        assert_int_equal(op_by_name(op->name), op->inside ? -ENOENT : (int)i);
        (void)snprintf(prepare, sizeof(prepare), "%s_prepare", op->name);
        assert_string_equal(op->prepare_name, prepare);
        assert_int_equal(op->compute == COMPUTE_NONE, op->exchange == EXCHANGE_NONE || op->exchange == EXCHANGE_RINGS);
        assert_int_equal(op->inside, op->exchange == EXCHANGE_RINGS || op->compute == COMPUTE_STEP);
        assert_int_equal(op->result, op->compute == COMPUTE_STEP ? FCC_VECTOR_OUT : op->ntensors - 1);
        assert_int_equal(op->compute == COMPUTE_VECTOR || op->compute == COMPUTE_STEP,
                         op->in != VECTOR_NONE && op->out != VECTOR_NONE);
        if (op->bind == BIND_PREPARED && op->args_bytes) /* as many inputs as struct gpu_prepared_memory has, and a result */
            assert_true(op->inside || op->ntensors == GPU_PREPARED_INPUTS + 1);
        if (op->args_bytes)
            expect_args(op);
        else
            assert_true(!op->ntensors && !op->nattrs && op->result == -1);
    }
    assert_null(op_spec(FCC_OP_COUNT));
    assert_null(op_spec(UINT32_MAX));
}

/* Who stores into results: what an exchange puts is stored by other ranks whatever the plan, and sums need not be. */
static void test_roles(void **state)
{
    (void)state;
    for (unsigned i = 0; i < FCC_OP_COUNT; i++) {
        const struct op_spec *op = op_spec(i);
        assert_int_equal(op_shared(op), op->exchange == EXCHANGE_PUT ? 1u << op->result : 0);
        if (op->result >= 0)
            assert_int_equal(op->tensors[op->result].role, op->exchange == EXCHANGE_PUT ? TENSOR_SHARED : TENSOR_RESULT);
    }
}

static void test_names(void **state)
{
    char out[200];

    (void)state;
    assert_string_equal(op_names(BIND_PREPARED, " and ", out, sizeof(out)), "noop and gemv_all_reduce and gemm_all_to_all");
    assert_string_equal(op_names(BIND_REPEATED, ", ", out, sizeof(out)), "noop, gemv_all_reduce, gemm_all_to_all");
    assert_string_equal(op_names(BIND_NEVER, ", ", out, 8), "noop, e");
}

/* The wire's order, which clients and workers of one protocol version share. */
static void test_order(void **state)
{
    static const struct {
        unsigned op;
        int at;
        const char *name;
    } wire[] = {
        {FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_EMB_TABLES, "tables"},
        {FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_EMB_INDICES, "indices"},
        {FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_EMB_OFFSETS, "offsets"},
        {FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_EMB_WEIGHTS, "sample_weights"},
        {FCC_OP_EMBEDDING_ALL_TO_ALL, FCC_EMB_OUT, "out"},
        {FCC_OP_GEMV_ALL_REDUCE, FCC_GEMV_X, "x"},
        {FCC_OP_GEMV_ALL_REDUCE, FCC_GEMV_W, "w"},
        {FCC_OP_GEMV_ALL_REDUCE, FCC_GEMV_Y, "y"},
        {FCC_OP_GEMM_ALL_TO_ALL, FCC_GEMM_A, "a"},
        {FCC_OP_GEMM_ALL_TO_ALL, FCC_GEMM_B, "b"},
        {FCC_OP_GEMM_ALL_TO_ALL, FCC_GEMM_C, "c"},
        {FCC_OP_GEMM_ALL_REDUCE, FCC_GEMM_A, "a"},
        {FCC_OP_GEMM_ALL_REDUCE, FCC_GEMM_B, "b"},
        {FCC_OP_GEMM_ALL_REDUCE, FCC_GEMM_C, "c"},
        {FCC_OP_GEMM_REDUCE_SCATTER, FCC_GEMM_A, "a"},
        {FCC_OP_GEMM_REDUCE_SCATTER, FCC_GEMM_B, "b"},
        {FCC_OP_GEMM_REDUCE_SCATTER, FCC_GEMM_C, "c"},
        {FCC_OP_ALL_GATHER_GEMM, FCC_GATHER_A, "a"},
        {FCC_OP_ALL_GATHER_GEMM, FCC_GATHER_B, "b"},
        {FCC_OP_ALL_GATHER_GEMM, FCC_GATHER_GATHERED, "gathered"},
        {FCC_OP_ALL_GATHER_GEMM, FCC_GATHER_C, "c"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wire) / sizeof(wire[0]); i++)
        assert_string_equal(op_spec(wire[i].op)->tensors[wire[i].at].name, wire[i].name);
    assert_int_equal(op_spec(FCC_OP_EMBEDDING_ALL_TO_ALL)->ntensors, FCC_EMB_TENSORS);
    assert_int_equal(op_spec(FCC_OP_GEMV_ALL_REDUCE)->ntensors, FCC_GEMV_TENSORS);
    assert_int_equal(op_spec(FCC_OP_GEMM_ALL_TO_ALL)->ntensors, FCC_GEMM_TENSORS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
