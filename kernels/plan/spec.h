/* SPDX-License-Identifier: MIT
 *
 * spec.h - operators described as data: the rows of operators.def. The client packs calls and the worker checks requests by
 * them, without code for single operators. No I/O, no device, no kernels. Plain C and C++.
 */
#ifndef FCC_KERNELS_PLAN_SPEC_H
#define FCC_KERNELS_PLAN_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/fccclient.h"
#include "proto/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The parts that operators are made of: what each rank computes, and how the results are exchanged. */
/* VECTOR: nothing is computed, a rank's part of the result is its input (kernels/plan/compute/vector.h). STEP: elements of a program
 * (kernels/plan/compute/step.h). */
enum compute_kind { COMPUTE_NONE, COMPUTE_BAG, COMPUTE_GEMV, COMPUTE_GEMM, COMPUTE_VECTOR, COMPUTE_STEP, COMPUTE_KINDS };
/* GATHER: what is exchanged are rows of the first input, before the product. */
enum exchange_kind { EXCHANGE_NONE, EXCHANGE_PUT, EXCHANGE_REDUCE, EXCHANGE_RINGS, EXCHANGE_GATHER };

/* INPUT: the operator reads it. RESULT: the operator stores into it, and the plan says whether other ranks do (with packets
 * only its own rank does). SHARED: under every plan other ranks store into it, so it lies where they can map it. */
enum tensor_role { TENSOR_INPUT, TENSOR_RESULT, TENSOR_SHARED };

#define DTYPES_F32 (1u << FCC_F32)
#define DTYPES_F8 (1u << FCC_F8E4M3)
#define DTYPES_HALF (1u << FCC_F16 | 1u << FCC_BF16)
#define DTYPES_FLOAT (DTYPES_F32 | DTYPES_HALF)
#define DTYPES_FACTOR (DTYPES_FLOAT | DTYPES_F8) /* of a product; what else it must be: dense_check() */
#define DTYPES_INDEX (1u << FCC_I32 | 1u << FCC_I64)
#define DTYPES_INTEGER (DTYPES_INDEX | 1u << FCC_U8 | 1u << FCC_I8)
#define DTYPES_ADDED (DTYPES_FLOAT | 1u << FCC_F64 | DTYPES_INTEGER)
#define DTYPES_ANY (DTYPES_ADDED | 1u << FCC_F8E4M3 | 1u << FCC_F8E5M2)

/* What a product's kernels depend on besides the dtype of its result, a bit each: which factor is f8e4m3, and whether the request is batch
 * invariant (FCC_SCHEDULE_BATCH_INVARIANT). */
enum factors { FACTORS_FIRST_F8 = 1, FACTORS_SECOND_F8 = 2, FACTORS_F8 = 3, FACTORS_BATCH_INVARIANT = 4, FACTORS_ALL = 7 };

/* A collective's vectors: which ranks have one, and how much of the whole vector it is. OWN: every rank its part. ALL: every rank the
 * whole. ROOT: the root alone, the whole. COUNTED: what the request's counts say. */
enum vector_share { VECTOR_NONE, VECTOR_OWN, VECTOR_ALL, VECTOR_ROOT, VECTOR_COUNTED };

struct tensor_spec {
    const char *name;
    uint8_t role; /* enum tensor_role */
    uint8_t ndim;
    uint16_t dtypes; /* allowed dtypes, a bit (1 << enum fcc_dtype) each */
    bool optional;   /* it may be absent; the operator's compute says when */
    uint16_t at;     /* the offset of its struct fcc_tensor in the arguments */
};

/* NUMBER: the arguments contain the number itself. RANKS, LIST: the arguments contain a pointer to the numbers. */
enum attr_kind { ATTR_NUMBER, ATTR_RANKS, ATTR_LIST };

struct attr_spec {
    const char *name;
    uint8_t key;   /* enum fcc_attr */
    uint8_t kind;  /* enum attr_kind */
    uint8_t bytes; /* NUMBER: the size of the member, 4 or 8, signed */
    uint16_t at;   /* the offset of the member in the arguments */
    /* LIST: the int32_t member that says how many numbers there are. */
    uint16_t count_at;
    int32_t count_most;
    const char *count_name;
};

/* The tensors of an epilogue (kernels/plan/epilogue.h), in the order of the wire, where later ones may be missing. */
enum stage {
    STAGE_BIAS,
    STAGE_RESIDUAL,
    STAGES_ADDED, /* what is added to sums in f32 */
    STAGE_SUM = STAGES_ADDED,
    STAGE_NORM_WEIGHT,
    STAGE_NORM_BIAS,
    STAGE_GATE,
    STAGE_QUANTIZED,
    STAGE_QUANTIZED_SCALE,
    STAGE_X_SCALE, /* no stages of the sums, but of a product's factors (kernels/plan/compute/factors.h) */
    STAGE_W_SCALE,
    STAGES
};
/* Its numbers, which are the words of FCC_ATTR_EPILOGUE. Those in f32 are their bits. */
enum epilogue_number { NUMBER_NORM, NUMBER_NORM_EPS, NUMBER_ACTIVATION, NUMBER_SCALE, NUMBER_QUANTIZATION, EPILOGUE_NUMBERS };

/* Who may launch an operator on GPUs besides the worker. REPEATED: the ranks' own processes, when the operator is repeated.
 * PREPARED: the same, and a program may ask for it (fcc_NAME_prepare). */
enum op_bind { BIND_NEVER, BIND_REPEATED, BIND_PREPARED };

/* Counts in memory of a rank's device: what it sends to each rank, and where is stored what has come from each. */
enum device_counts { DEVICE_COUNTS_SEND, DEVICE_COUNTS_RECEIVE, DEVICE_COUNTS };
struct device_counts_spec {
    const char *name; /* NULL: the operator has none */
    uint16_t at;      /* the offset in the arguments of its member, a pointer to [nranks] int64_t; NULL: absent */
};

struct op_spec {
    const char *name, *prepare_name; /* prepare_name: "NAME_prepare", whether it can be prepared or not */
    uint16_t number;                 /* enum fcc_op */
    uint8_t compute, exchange, bind; /* enum compute_kind, exchange_kind, op_bind */
    uint8_t ntensors, nattrs;
    bool inside;     /* no program calls it: the client library prepares it for itself, or calls it for programs (STEP) */
    bool epilogue;   /* requests may have tensors of epilogue_specs, too, behind the operator's own, and FCC_ATTR_EPILOGUE */
    uint8_t in, out; /* COMPUTE_VECTOR: enum vector_share of its two tensors. Products whose sums are scattered: out is OWN */
    /* The last tensor, whose role is not INPUT; -1: the operator has none. Others whose role is RESULT are optional, and only their own rank
     * stores into them */
    int16_t result;
    const struct tensor_spec *tensors;
    const struct attr_spec *attrs;
    uint16_t args_bytes; /* of the public struct; 0: the operator takes none */
    uint16_t values_at;  /* the offset of its member int64_t *, [nranks], for the values of the completion; 0: none */
    const char *values_name;
    struct device_counts_spec device_counts[DEVICE_COUNTS];
    uint16_t schedule_at; /* of its members uint32_t schedule, reserved[7] */
};

extern const struct op_spec op_specs[FCC_OP_COUNT];
extern const struct tensor_spec epilogue_specs[STAGES]; /* offsets are those in struct fcc_epilogue */
/* A number of an epilogue; `at`: the offset of the 4 bytes in struct fcc_epilogue. */
struct number_spec {
    const char *name;
    uint16_t at;
    bool is_float;
    uint32_t most; /* of those that are no float */
};
extern const struct number_spec epilogue_numbers[EPILOGUE_NUMBERS];

/* The operator's row, or NULL for an unknown number. */
static inline const struct op_spec *op_spec(unsigned op)
{
    return op < FCC_OP_COUNT ? &op_specs[op] : NULL;
}

/* Whether a request of the operator may have so many tensors. */
static inline bool op_may_have_tensors(const struct op_spec *op, int n)
{
    return n >= op->ntensors && n <= op->ntensors + (op->epilogue ? STAGES : 0);
}

/* The row of a request's tensor. */
static inline const struct tensor_spec *op_tensor(const struct op_spec *op, int i)
{
    return i < op->ntensors ? &op->tensors[i] : &epilogue_specs[i - op->ntensors];
}

/* Whether each rank gets some rows of a product's sums (gemm_reduce_scatter); otherwise it gets all of them, or rows of one product. */
static inline bool op_scatters_rows(unsigned op)
{
    return op_specs[op].compute == COMPUTE_GEMM && op_specs[op].exchange == EXCHANGE_REDUCE && op_specs[op].out == VECTOR_OWN;
}

/* Whether partial sums of matrix products are added up. */
static inline bool op_adds_products(unsigned op)
{
    return op_specs[op].compute == COMPUTE_GEMM && op_specs[op].exchange == EXCHANGE_REDUCE;
}

/* The elements of a row that the counts of public arguments are in, 1 or more. */
int64_t op_row_elements(const struct op_spec *op, const void *args);
/* Counts of rows become counts of elements. What does not fit becomes INT64_MAX, which no vector has. */
void op_counts_in_elements(int64_t counts[], size_t n, int64_t row_elements);
/* The tensors, a bit each, that other ranks store into under every plan. */
uint32_t op_shared(const struct op_spec *op);
/* The names of the operators whose `bind` is at least `least`, joined by the separator. Returns out. */
const char *op_names(enum op_bind least, const char *separator, char *out, size_t room);

#ifdef __cplusplus
}
#endif
#endif
