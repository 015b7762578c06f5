/* SPDX-License-Identifier: MIT */
#include "client/stream/counts.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/plan/compute/vector.h"

static int64_t **member(const struct op_spec *op, const void *args, enum device_counts which)
{
    return (int64_t **)(uintptr_t)((const unsigned char *)args + op->device_counts[which].at);
}

uint64_t device_counts(const struct op_spec *op, const void *args, enum device_counts which)
{
    return args && op->device_counts[which].name ? (uint64_t)(uintptr_t)*member(op, args, which) : 0;
}

bool device_counts_given(const struct op_spec *op, const void *args)
{
    return device_counts(op, args, DEVICE_COUNTS_SEND) || device_counts(op, args, DEVICE_COUNTS_RECEIVE);
}

static const struct attr_spec *send_attr(const struct op_spec *op)
{
    const struct attr_spec *a = op->attrs;

    while (a->name && a->key != FCC_ATTR_SEND_COUNTS)
        a++;
    return a;
}

static const void *pointer_at(const void *args, size_t at)
{
    return *(const void *const *)(const void *)((const unsigned char *)args + at);
}

int device_counts_check(const struct op_spec *op, const void *args, struct error *e)
{
    for (int i = 0; i < DEVICE_COUNTS; i++) {
        const uint64_t address = device_counts(op, args, (enum device_counts)i);
        const char *other = i == DEVICE_COUNTS_SEND ? send_attr(op)->name : op->values_name;
        if (!address)
            continue;
        if (address % sizeof(int64_t))
            return error_set(e, -EINVAL, "%s: address 0x%" PRIx64 ": allowed are multiples of 8", op->device_counts[i].name,
                             address);
        if (pointer_at(args, i == DEVICE_COUNTS_SEND ? send_attr(op)->at : op->values_at))
            return error_set(e, -EINVAL, "%s, %s: allowed is one of them", other, op->device_counts[i].name);
    }
    return 0;
}

uint32_t counts_wrong(const int64_t counts[], uint32_t n, int64_t most)
{
    uint32_t i = 0;

    for (int64_t left = most; i < n && counts[i] >= 0 && counts[i] <= left; i++)
        left -= counts[i];
    return i;
}

void counts_wrong_text(const struct op_spec *op, int64_t count, uint32_t rank, int64_t most, char text[FCC_TEXT_MAX])
{
    const char *name = op->device_counts[DEVICE_COUNTS_SEND].name; /* another rank says which operator it is */

    (void)snprintf(text, FCC_TEXT_MAX,
                   "%s: %" PRId64 " for rank %u: allowed are 0 and more, together at most the %" PRId64 " rows of in",
                   name ? name : "counts", count, rank, most);
}

static int sends_read(const struct op_spec *op, const int64_t *from, int nranks, struct counts_read *out, struct error *e)
{
    struct fcc_tensor *in = (struct fcc_tensor *)(void *)(out->args.bytes + op->tensors[FCC_VECTOR_IN].at);
    const int64_t row = op_row_elements(op, out->args.bytes), most = in->shape[0] / row;
    const int64_t *counts = out->counts;
    int64_t sum = 0;
    uint32_t wrong;

    memcpy(out->counts, from, (size_t)nranks * sizeof(from[0]));
    wrong = counts_wrong(counts, (uint32_t)nranks, most);
    if (wrong < (uint32_t)nranks) {
        char text[FCC_TEXT_MAX];
        counts_wrong_text(op, counts[wrong], wrong, most, text);
        return error_set(e, -EINVAL, "%s", text);
    }
    for (int r = 0; r < nranks; r++)
        sum += counts[r];
    in->shape[0] = sum * row;
    memcpy(out->args.bytes + send_attr(op)->at, &counts, sizeof(counts));
    return 0;
}

int device_counts_read(const struct op_spec *op, const void *args, int nranks, struct counts_read *out, struct error *e)
{
    int status = device_counts_check(op, args, e);

    static_assert(sizeof(struct fcc_all_to_all_args) <= sizeof(out->args.bytes), "room for arguments with counts");
    memcpy(out->args.bytes, args, op->args_bytes);
    if (!status && device_counts(op, args, DEVICE_COUNTS_SEND))
        status = sends_read(op, *member(op, args, DEVICE_COUNTS_SEND), nranks, out, e);
    if (device_counts(op, args, DEVICE_COUNTS_RECEIVE))
        memcpy(out->args.bytes + op->values_at, member(op, args, DEVICE_COUNTS_RECEIVE), sizeof(int64_t *));
    return status;
}
