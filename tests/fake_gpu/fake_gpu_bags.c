/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_bags.c - embedding_all_to_all through rings on fake GPUs: a rank's pooled samples, [samples of a rank][own tables][dim] for one rank after the
 * other; and what has come from the ranks, where it belongs.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/dtype.h"
#include "kernels/plan/plan.h"
#include "tests/fake_gpu/fake_gpu_rings.h"

static int64_t number_at(const struct rings_bags *b, uint64_t array, int64_t i)
{
    return b->flags & GPU_INDEX_WIDE ? ((const int64_t *)pointer(array))[i] : ((const int32_t *)pointer(array))[i];
}

static void failure_fill(struct rings_failure *why, enum gpu_failure_kind kind, const int64_t numbers[RINGS_DATA_WORDS])
{
    if (why->why != RINGS_WELL)
        return;
    why->why = RINGS_DATA;
    why->data[0] = (uint64_t)numbers[0] << 32 | kind;
    for (int i = 1; i < RINGS_DATA_WORDS; i++)
        why->data[i] = (uint64_t)numbers[i];
}

/* The indices [*first, *end) of a bag. False: an offset is wrong. */
static bool bag_find(const struct rings_product *p, int64_t table, int64_t sample, int64_t *first, int64_t *end,
                     struct rings_failure *why)
{
    const struct rings_bags *b = &p->bags;
    const int64_t at = table * p->m + sample;

    *first = number_at(b, b->offsets, at);
    *end = number_at(b, b->offsets, at + 1);
    if (*first < 0 || *first > b->nnz)
        failure_fill(why, GPU_FAILURE_OFFSET_BEGIN, (const int64_t[]){table, at, *first, sample, 0, 0, b->nnz});
    else if (*end < *first || *end > b->nnz)
        failure_fill(why, GPU_FAILURE_OFFSET_END, (const int64_t[]){table, at + 1, *end, sample, 0, *first, b->nnz});
    return why->why == RINGS_WELL;
}

/* One bag, in f32. */
static void bag_pool(const struct rings_product *p, float *out, float *row, int64_t table, int64_t table_at, int64_t sample,
                     struct rings_failure *why)
{
    const struct rings_bags *b = &p->bags;
    const size_t size = dtype_size((enum fcc_dtype)p->dtype);
    int64_t first = 0, end = 0;

    for (int64_t i = 0; i < b->dim; i++)
        out[i] = 0;
    if (!bag_find(p, table, sample, &first, &end, why))
        return;
    for (int64_t at = first; at < end; at++) {
        const int64_t index = number_at(b, b->indices, at);
        const float weight = b->weights ? ((const float *)pointer(b->weights))[at] : 1;
        if (index < 0 || index >= b->table_rows[table]) {
            failure_fill(why, GPU_FAILURE_INDEX,
                         (const int64_t[]){table, at, index, sample, at - first, 0, b->table_rows[table] - 1});
            return;
        }
        dtype_to_f32(row, (const unsigned char *)pointer(p->w) + (size_t)((table_at + index) * p->w_stride) * size,
                     (enum fcc_dtype)p->dtype, (size_t)b->dim);
        for (int64_t i = 0; i < b->dim; i++)
            out[i] += weight * row[i];
    }
    for (int64_t i = 0; i < b->dim && b->flags & GPU_POOL_MEAN && end > first; i++)
        out[i] *= 1.0f / (float)(end - first);
}

void *rings_bags_begin(const struct rings_product *p, struct gpu_collective *out, uint32_t nranks, struct rings_failure *why)
{
    const struct rings_bags *b = &p->bags;
    const size_t size = dtype_size((enum fcc_dtype)p->dtype);
    const int64_t sent = p->m * p->n, come = p->room * b->tables * b->dim;
    unsigned char *rows = calloc((size_t)(sent + come) + 1, size);
    float *sum = calloc(2 * (size_t)b->dim, sizeof(*sum));
    int64_t table_at = 0;

    wrong(!rows || !sum, "no memory");
    for (int64_t table = 0; table < b->ntables; table_at += b->table_rows[table++])
        for (int64_t sample = 0; sample < p->m; sample++) {
            bag_pool(p, sum, sum + b->dim, table, table_at, sample, why);
            dtype_from_f32(rows + (size_t)(sample * p->n + table * b->dim) * size, sum, (enum fcc_dtype)p->dtype,
                           (size_t)b->dim);
        }
    free(sum);
    *out = (struct gpu_collective){.op = p->op,
                                   .dtype = p->dtype,
                                   .in_share = VECTOR_COUNTED,
                                   .out_share = VECTOR_COUNTED,
                                   .element_bytes = (uint32_t)size,
                                   .number = p->number,
                                   .in = (uintptr_t)rows,
                                   .out = (uintptr_t)(rows + (size_t)sent * size),
                                   .in_elements = sent,
                                   .out_elements = come};
    for (uint32_t r = 0; r < nranks; r++) {
        out->send[r] = p->rows[r] * p->n;
        out->expected[r] = -1;
    }
    return rows;
}

void rings_bags_end(const struct rings_product *p, uint64_t from, const int64_t tables[], uint32_t nranks, uint32_t rank)
{
    const size_t size = dtype_size((enum fcc_dtype)p->dtype), bytes = (size_t)p->bags.dim * size;
    const unsigned char *at = pointer(from);
    int64_t before = 0;

    for (uint32_t r = 0; r < nranks; before += tables[r++])
        for (int64_t sample = 0; sample < p->rows[rank]; sample++)
            for (int64_t table = before; table < before + tables[r]; table++, at += bytes)
                memcpy((unsigned char *)pointer(p->y) + (size_t)(sample * p->y_stride + table * p->bags.table_stride) * size,
                       at, bytes);
}
