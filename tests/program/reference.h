/* SPDX-License-Identifier: MIT
 *
 * reference.h - what a bound program computes, by plain loops in double precision over all ranks' values at once.
 *
 * A local value is one array for each rank; any other is one array, of the whole tensor: slices are parts of it. So all_gather and as_slice copy,
 * and where a transformation is right the same operations meet the same numbers: results are equal bit by bit.
 */
#ifndef FCC_TESTS_PROGRAM_REFERENCE_H
#define FCC_TESTS_PROGRAM_REFERENCE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/program/program.h"

struct reference {
    const struct program *p;
    double **values;             /* [nnodes]: copies x elements */
    double **parameters;         /* [nparameters]: the same before the run; after it what was stored */
    const struct reference *all; /* of all groups of ranks, of which this is one */
    int group;
};

static int reference_copies(const struct program *p, const struct value *v)
{
    return v->layout == LAYOUT_LOCAL ? p->nranks : 1;
}

static size_t reference_count(const struct program *p, const struct value *v)
{
    return (size_t)reference_copies(p, v) * (size_t)value_elements(v);
}

/* The first element of each of the table's tensors: some have none, and each has more than the one before. */
static int64_t reference_begin(const struct program *p, int64_t tensor)
{
    return (int64_t)((__int128)p->tensor_elements * tensor * tensor / (p->tensors * p->tensors));
}

static int64_t reference_tensor(const struct program *p, int64_t element)
{
    int64_t tensor = 0;

    while (reference_begin(p, tensor + 1) <= element)
        tensor++;
    return tensor;
}

/* Where element i of this rank's part is among the reference's, of the rank's group. */
static inline int64_t reference_own(const struct program *p, const struct value *v, int of_all, int64_t i)
{
    const int rank = of_all % p->nranks;
    const int64_t first = of_all / p->nranks * (int64_t)reference_count(p, v);
    int64_t inner = 1;

    if (v->layout == LAYOUT_LOCAL)
        return first + rank * value_elements(v) + i;
    if (v->layout != LAYOUT_SLICED)
        return first + i;
    for (int d = v->sliced + 1; d < v->ndim; d++)
        inner *= v->shape[d];
    const int64_t size = v->shape[v->sliced], begin = slice_begin(size, p->nranks, rank),
                  own = slice_begin(size, p->nranks, rank + 1) - begin;
    return first + i / (own * inner) * size * inner + (begin + i / inner % own) * inner + i % inner;
}

/* The element of an operand that belongs to an element of the result. */
static int64_t reference_at(const struct value *out, const struct value *v, int64_t element)
{
    int64_t at = 0, stride = 1;

    for (int d = out->ndim - 1, k = v->ndim - 1; k >= 0; d--, k--) {
        const int64_t index = element % out->shape[d];
        element /= out->shape[d];
        at += (v->shape[k] == 1 ? 0 : index) * stride;
        stride *= v->shape[k];
    }
    return at;
}

/* The mathematics of operations, by other formulas than those of kernels/program/ and kernels/cpu/: a fault of one shows against the other. */
static double reference_unary(int op, double x)
{
    switch (op) {
    case OP_NEG:
        return -1 * x;
    case OP_ABS:
        return copysign(x, 1);
    case OP_SQRT:
        return sqrt(x);
    case OP_RSQRT:
        return sqrt(1 / x);
    case OP_EXP:
        return exp2(x * M_LOG2E);
    case OP_LOG:
        return log2(x) * M_LN2;
    case OP_TANH:
        return fabs(x) > 20 ? copysign(1, x) : expm1(2 * x) / (expm1(2 * x) + 2);
    case OP_SIGMOID:
        return (1 + tanh(x / 2)) / 2;
    case OP_RELU:
        return isnan(x) ? x : fmax(x, 0);
    case OP_GELU:
        return x * erfc(-x * M_SQRT1_2) / 2;
    case OP_SILU:
        return x * (1 + tanh(x / 2)) / 2;
    default: /* f32, f16, bf16: double precision keeps all */
        return x;
    }
}

/* Where one is a NaN, a comparison is false but for !=, and the larger and the smaller are NaN. */
static double reference_pair(int op, double x, double y)
{
    const bool ordered = !isunordered(x, y);

    switch (op) {
    case OP_ADD:
        return y + x;
    case OP_SUB:
        return -y + x;
    case OP_MUL:
        return y * x;
    case OP_DIV:
        return x / y;
    case OP_LT:
        return ordered && isless(x, y);
    case OP_LE:
        return ordered && !isgreater(x, y);
    case OP_GT:
        return ordered && isgreater(x, y);
    case OP_GE:
        return ordered && !isless(x, y);
    case OP_EQ:
        return ordered && !islessgreater(x, y);
    case OP_NE:
        return !ordered || islessgreater(x, y);
    case OP_MAX:
        return ordered ? fmax(x, y) : NAN;
    case OP_MIN:
        return ordered ? fmin(x, y) : NAN;
    default: /* pow */
        return x > 0 ? exp(y * log(x)) : pow(x, y);
    }
}

static double reference_point(int op, const double *x)
{
    if (op == OP_SELECT)
        return x[0] == 0 ? x[2] : x[1];
    return operation_specs[op].arguments == 2 ? reference_pair(op, x[0], x[1]) : reference_unary(op, x[0]);
}

static void reference_points(const struct reference *r, const struct node *n, double *out)
{
    const int64_t elements = value_elements(&n->value);
    const int copies = reference_copies(r->p, &n->value);

    for (int c = 0; c < copies; c++) {
        for (int64_t i = 0; i < elements; i++) {
            double x[PROGRAM_ARGUMENTS] = {0};
            for (int a = 0; a < node_spec(n)->arguments; a++) {
                const struct value *v = &r->p->nodes[n->arg[a]].value;
                const int64_t copy = v->layout == LAYOUT_LOCAL ? c * value_elements(v) : 0;
                x[a] = r->values[n->arg[a]][copy + (v->table == TABLE_OF_TENSORS && n->value.table == TABLE_OF_ELEMENTS
                                                        ? reference_tensor(r->p, i)
                                                        : reference_at(&n->value, v, i))];
            }
            if (n->op == OP_DROPOUT)
                out[c * elements + i] =
                    dropout_bits(dropout_key(x[2], x[3], n->integer[0]), (uint64_t)i) < x[1] * 0x1p24 ? 0 : x[0] / (1 - x[1]);
            else
                out[c * elements + i] = reference_point(n->op, x);
        }
    }
}

/* Sums of rows, or of the whole, of each copy. */
static void reference_sums(const struct reference *r, const struct node *n, double *out)
{
    const struct value *v = &r->p->nodes[n->arg[0]].value;
    const bool rows = node_spec(n)->kind == OPERATION_ROWS;
    const int64_t length = rows ? v->shape[v->ndim - 1] : value_elements(v);
    const size_t sums = reference_count(r->p, &n->value);

    for (size_t i = 0; i < sums; i++) {
        double sum = 0;
        for (int64_t k = 0; k < length; k++) {
            const double x = r->values[n->arg[0]][(int64_t)i * length + k];
            sum += n->op == OP_NORM || n->op == OP_ROW_NORM ? x * x : x;
        }
        out[i] = n->op == OP_NORM || n->op == OP_ROW_NORM   ? sqrt(sum)
                 : n->op == OP_MEAN || n->op == OP_ROW_MEAN ? sum / (double)length
                                                            : sum;
    }
}

/* Sums of each tensor of the table, of each copy. */
static void reference_tensors(const struct reference *r, const struct node *n, double *out)
{
    const int64_t elements = r->p->tensor_elements;

    for (int c = 0; c < reference_copies(r->p, &n->value); c++) {
        for (int64_t i = 0; i < elements; i++) {
            const double x = r->values[n->arg[0]][c * elements + i];
            out[c * r->p->tensors + reference_tensor(r->p, i)] += n->op == OP_TENSOR_NORM ? x * x : x;
        }
        for (int64_t t = 0; t < r->p->tensors && n->op == OP_TENSOR_NORM; t++)
            out[c * r->p->tensors + t] = sqrt(out[c * r->p->tensors + t]);
    }
}

/* Of two slices each rank has its part of the sum: the indices of K that are its own. */
static void reference_product(const struct reference *r, const struct node *n, double *out)
{
    const struct value *a = &r->p->nodes[n->arg[0]].value, *b = &r->p->nodes[n->arg[1]].value;
    const int64_t k = b->shape[0], w = b->shape[1];
    int64_t m = 1;
    const bool parts = a->layout == LAYOUT_SLICED && b->layout == LAYOUT_SLICED;

    for (int d = 0; d < a->ndim - 1; d++)
        m *= a->shape[d];
    for (int c = 0; c < reference_copies(r->p, &n->value); c++) {
        const double *x = r->values[n->arg[0]] + (a->layout == LAYOUT_LOCAL ? c * m * k : 0);
        const double *y = r->values[n->arg[1]] + (b->layout == LAYOUT_LOCAL ? c * k * w : 0);
        const int64_t begin = parts ? slice_begin(k, r->p->nranks, c) : 0,
                      end = parts ? slice_begin(k, r->p->nranks, c + 1) : k;
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < w; j++) {
                double sum = 0;
                for (int64_t l = begin; l < end; l++)
                    sum += x[i * k + l] * y[l * w + j];
                out[c * m * w + i * w + j] = sum;
            }
        }
    }
}

/* Each rank's bags of its tables. */
static void reference_lookup(const struct reference *r, const struct node *n, double *out)
{
    const struct value *tables = &r->p->nodes[n->arg[0]].value, *v = &n->value;
    const int64_t own = tables->shape[0] / r->p->nranks, rows = tables->shape[1], d = tables->shape[2], samples = v->shape[0];

    for (int rank = 0; rank < r->p->nranks; rank++) {
        const double *indices = r->values[n->arg[1]] + rank * r->p->nodes[n->arg[1]].value.shape[0];
        const double *offsets = r->values[n->arg[2]] + rank * r->p->nodes[n->arg[2]].value.shape[0];
        for (int64_t t = 0; t < own; t++)
            for (int64_t s = 0; s < samples; s++) {
                const int64_t begin = (int64_t)offsets[t * samples + s], end = (int64_t)offsets[t * samples + s + 1];
                for (int64_t i = 0; i < d; i++) {
                    double sum = 0;
                    for (int64_t k = begin; k < end; k++)
                        sum += r->values[n->arg[0]][((rank * own + t) * rows + (int64_t)indices[k]) * d + i];
                    out[(s * tables->shape[0] + rank * own + t) * d + i] =
                        n->op == OP_EMBEDDING_MEAN && end > begin ? sum / (double)(end - begin) : sum;
                }
            }
    }
}

static void reference_slice(const struct reference *r, const struct node *n, double *out)
{
    const struct value *v = &r->p->nodes[n->arg[0]].value;
    int64_t inner = 1;

    for (int d = (int)n->integer[0] + 1; d < v->ndim; d++)
        inner *= v->shape[d];
    const int64_t whole = v->shape[n->integer[0]] * inner, part = (n->integer[2] - n->integer[1]) * inner;
    const size_t count = reference_count(r->p, &n->value);
    for (size_t i = 0; i < count; i++)
        out[i] = r->values[n->arg[0]][(int64_t)i / part * whole + n->integer[1] * inner + (int64_t)i % part];
}

static void reference_transpose(const struct reference *r, const struct node *n, double *out)
{
    const int64_t rows = n->value.shape[0], columns = n->value.shape[1], elements = rows * columns;

    for (size_t i = 0; i < reference_count(r->p, &n->value); i++) {
        const int64_t at = (int64_t)i % elements;
        out[i] = r->values[n->arg[0]][(int64_t)i - at + at % columns * rows + at / columns];
    }
}

static void reference_move(const struct reference *r, const struct node *n, double *out)
{
    const struct value *v = &r->p->nodes[n->arg[0]].value;
    const double *x = r->values[n->arg[0]];
    const int64_t elements = value_elements(v);
    const int ranks = r->p->nranks, copies = reference_copies(r->p, &n->value), groups = r->p->rank_groups;

    if (n->op == OP_SEND && program_has_groups(r->p))
        x = r->all[((r->group - n->integer[0]) % groups + groups) % groups].values[n->arg[0]];
    for (int c = 0; c < copies; c++) {
        for (int64_t i = 0; i < elements; i++) {
            double sum = x[i];
            for (int s = 1; s < ranks && (n->op == OP_ALL_REDUCE || n->op == OP_REDUCE_SCATTER || n->op == OP_REDUCE); s++)
                sum += x[s * elements + i];
            if (n->op == OP_REDUCE && c != n->integer[0])
                sum = 0;
            if (n->op == OP_BROADCAST)
                sum = x[n->integer[0] * elements + i];
            if (n->op == OP_SEND && program_has_groups(r->p))
                sum = x[c * elements + i];
            else if (n->op == OP_SEND)
                sum = x[((c - n->integer[0]) % ranks + ranks) % ranks * elements + i];
            out[c * elements + i] = sum;
        }
    }
}

static void reference_node(struct reference *r, int32_t node)
{
    const struct node *n = &r->p->nodes[node];
    const size_t count = reference_count(r->p, &n->value);
    double *out = r->values[node] = calloc(count ? count : 1, sizeof(*out));

    switch (node_spec(n)->kind) {
    case OPERATION_LEAF:
        for (size_t i = 0; i < count; i++)
            out[i] = n->op == OP_NUMBER ? n->number : n->op == OP_SIZE ? (double)n->integer[0] : r->parameters[n->parameter][i];
        break;
    case OPERATION_UPDATE:
        for (size_t i = 0; i < count; i++)
            out[i] = r->values[n->arg[0]][r->p->nodes[n->arg[0]].value.dtype == DTYPE_PLAIN ? 0 : i];
        memcpy(r->parameters[n->parameter], out, count * sizeof(*out));
        break;
    case OPERATION_POINT:
        reference_points(r, n, out);
        break;
    case OPERATION_ROWS:
    case OPERATION_WHOLE:
        reference_sums(r, n, out);
        break;
    case OPERATION_TENSORS:
        reference_tensors(r, n, out);
        break;
    case OPERATION_LOOKUP:
        reference_lookup(r, n, out);
        break;
    case OPERATION_PRODUCT:
        reference_product(r, n, out);
        break;
    default:
        if (n->op == OP_TRANSPOSE)
            reference_transpose(r, n, out);
        else if (n->op == OP_SLICE)
            reference_slice(r, n, out);
        else if (n->op == OP_AS_LOCAL || n->op == OP_AS_SLICE)
            for (size_t i = 0; i < count; i++)
                out[i] = r->values[n->arg[0]][i % (size_t)value_elements(&n->value)];
        else
            reference_move(r, n, out);
    }
}

/* Runs the program. parameters[i] has reference_count() numbers of parameter i, 1 of a scalar, of each group one behind the other, and gets what is
 * stored. */
static void reference_run(const struct program *p, double *parameters[])
{
    struct reference *r = calloc((size_t)p->rank_groups, sizeof(*r));

    for (int g = 0; g < p->rank_groups; g++) {
        r[g] = (struct reference){.p = p, .values = calloc(p->nnodes, sizeof(*r->values)), .all = r, .group = g};
        r[g].parameters = calloc(p->nparameters, sizeof(*r->parameters));
        for (uint32_t i = 0; i < p->nparameters; i++)
            r[g].parameters[i] = parameters[i] + (size_t)g * reference_count(p, &p->parameters[i].value);
    }
    for (uint32_t i = 0; i < p->nnodes; i++)
        for (int g = 0; g < p->rank_groups; g++)
            reference_node(&r[g], (int32_t)i);
    for (int g = 0; g < p->rank_groups; g++) {
        for (uint32_t i = 0; i < p->nnodes; i++)
            free(r[g].values[i]);
        free(r[g].values);
        free(r[g].parameters);
    }
    free(r);
}

#endif
