/* SPDX-License-Identifier: MIT
 *
 * args.c - requests: their tensors and their attributes.
 */
#include "kernels/plan/program.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

void op_args_copy(struct op_args *to, const struct op_args *from)
{
    memcpy(to, from, offsetof(struct op_args, tensors) + (size_t)from->ntensors * sizeof(from->tensors[0]));
}

static bool tensor_equal(const struct tensor *a, const struct tensor *b)
{
    return a->data == b->data && a->dtype == b->dtype && a->ndim == b->ndim && a->symmetric == b->symmetric &&
           !memcmp(a->shape, b->shape, sizeof(a->shape)) && !memcmp(a->stride, b->stride, sizeof(a->stride));
}

bool op_args_equal(const struct op_args *a, const struct op_args *b)
{
    return a->attrs == b->attrs && a->nattrs == b->nattrs && op_tensors_equal(a, b);
}

bool op_tensors_equal(const struct op_args *a, const struct op_args *b)
{
    bool equal = a->op == b->op && a->ntensors == b->ntensors && a->batch_invariant == b->batch_invariant &&
                 a->any_order == b->any_order;

    for (int i = 0; equal && i < a->ntensors; i++)
        equal = tensor_equal(&a->tensors[i], &b->tensors[i]);
    return equal;
}

static uint32_t attr_key(int64_t word)
{
    return (uint32_t)((uint64_t)word >> 32);
}

static size_t attr_count(int64_t word)
{
    return (uint32_t)word;
}

int op_attrs_check(const int64_t *attrs, size_t nattrs, struct error *e)
{
    uint32_t seen = 0;

    for (size_t i = 0; i < nattrs;) {
        uint32_t key = attr_key(attrs[i]);
        size_t count = attr_count(attrs[i]);
        if (key < FCC_ATTR_TABLE_ROWS || key >= FCC_ATTR_END)
            return error_set(e, -EINVAL, "attributes: key %u: allowed are %d to %d", key, FCC_ATTR_TABLE_ROWS,
                             FCC_ATTR_END - 1);
        if (seen & (1u << key))
            return error_set(e, -EINVAL, "attributes: key %u twice: allowed is once", key);
        if (count > nattrs - i - 1)
            return error_set(e, -EINVAL, "attributes: key %u has %zu values: allowed are at most the %zu words that follow",
                             key, count, nattrs - i - 1);
        seen |= 1u << key;
        i += 1 + count;
    }
    return 0;
}

const int64_t *op_attr(const struct op_args *args, enum fcc_attr key, size_t *count)
{
    for (size_t i = 0; i < args->nattrs; i += 1 + attr_count(args->attrs[i])) {
        if (attr_key(args->attrs[i]) == (uint32_t)key) {
            *count = attr_count(args->attrs[i]);
            return args->attrs + i + 1;
        }
    }
    *count = 0;
    return NULL;
}
