/* SPDX-License-Identifier: MIT
 *
 * bags.h - rows of a table are added up (pool.c): sums stay in registers, 64 elements at a time, and rows are prefetched ahead of their use.
 *
 * A row is read in blocks of 16 elements. If its length is not a multiple of 16, the last block begins early, so that it ends with the row.
 */
/* The first element of a block of a row. */
FCC_INLINE int64_t block_start(int64_t dim, int64_t block)
{
    return (block + 1) * LANES > dim ? dim - LANES : block * LANES;
}

FCC_INLINE void row_prefetch(const struct lanes_table *p, uint32_t id, int64_t bytes)
{
    enum { TO_READ = 0, INTO_L2 = 2 };
    uintptr_t at = (uintptr_t)(p->rows + (size_t)id * p->row_bytes), end = at + (size_t)bytes;

    for (at &= ~(uintptr_t)63; bytes && at < end; at += 64)
        __builtin_prefetch((const void *)at, TO_READ, INTO_L2);
}

/* sums[first .. first + blocks) += the rows' blocks. dtype, blocks, weighted and prefetch are compile-time constants; dim
 * is at least 16. */
FCC_INLINE void add_blocks(float *sums, const struct lanes_table *p, enum fcc_dtype dtype, const uint32_t *ids, int64_t n,
                           const float *weights, int64_t first, const int blocks, const bool weighted, const bool prefetch)
{
    const int64_t size = dtype == FCC_F32 ? 4 : 2;
    const int64_t bytes = p->prefetched_bytes;
    const unsigned char *rows = p->rows + first * LANES * size;
    int64_t last = (block_start(p->dim, first + blocks - 1) - first * LANES) * size;
    lanes sum[4], v;

    memcpy(sum, sums + first * LANES, (size_t)blocks * sizeof(v));
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *row = rows + (size_t)ids[i] * p->row_bytes;
        if (prefetch)
            row_prefetch(p, ids[i + LANES_AHEAD], bytes);
#pragma GCC unroll 4
        for (int j = 0; j < blocks; j++) {
            lanes_load(&v, row + (j == blocks - 1 ? last : (int64_t)j * LANES * size), dtype);
            lanes_add_times(&sum[j], &v, weighted ? weights[i] : 1, weighted);
        }
    }
    memcpy(sums + first * LANES, sum, (size_t)blocks * sizeof(v));
}

/* add_blocks() for rows shorter than a block. */
FCC_INLINE void add_short(float *sums, const struct lanes_table *p, enum fcc_dtype dtype, const uint32_t *ids, int64_t n,
                          const float *weights, const bool weighted)
{
    const size_t size = dtype == FCC_F32 ? 4 : 2;
    const int64_t bytes = p->prefetched_bytes;
    unsigned char row[sizeof(lanes)] = {0};
    lanes sum, v;

    memcpy(&sum, sums, sizeof(sum));
    for (int64_t i = 0; i < n; i++) {
        memcpy(row, p->rows + (size_t)ids[i] * p->row_bytes, (size_t)p->dim * size);
        row_prefetch(p, ids[i + LANES_AHEAD], bytes);
        lanes_load(&v, row, dtype);
        lanes_add_times(&sum, &v, weighted ? weights[i] : 1, weighted);
    }
    memcpy(sums, &sum, sizeof(sum));
}

FCC_INLINE void add_rows(float *sums, const struct lanes_table *p, enum fcc_dtype dtype, const uint32_t *ids, int64_t n,
                         const float *weights, const bool weighted)
{
    int64_t block = 0, blocks = (p->dim + LANES - 1) / LANES;

    if (p->dim < LANES) {
        add_short(sums, p, dtype, ids, n, weights, weighted);
        return;
    }
    if (blocks >= 4)
        add_blocks(sums, p, dtype, ids, n, weights, 0, 4, weighted, true);
    else if (blocks >= 2)
        add_blocks(sums, p, dtype, ids, n, weights, 0, 2, weighted, true);
    else
        add_blocks(sums, p, dtype, ids, n, weights, 0, 1, weighted, true);
    block = blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1;
    for (; block + 4 <= blocks; block += 4)
        add_blocks(sums, p, dtype, ids, n, weights, block, 4, weighted, false);
    for (; block < blocks; block++)
        add_blocks(sums, p, dtype, ids, n, weights, block, 1, weighted, false);
}

#define ADD_ROWS(name, dtype, weighted)                                                                                        \
    static void name(float *sums, const struct lanes_table *p, const uint32_t *ids, int64_t n, const float *weights)           \
    {                                                                                                                          \
        add_rows(sums, p, dtype, ids, n, weights, weighted);                                                                   \
    }
ADD_ROWS(add_f32, FCC_F32, false)
ADD_ROWS(add_f16, FCC_F16, false)
ADD_ROWS(add_bf16, FCC_BF16, false)
ADD_ROWS(add_f32_weighted, FCC_F32, true)
ADD_ROWS(add_f16_weighted, FCC_F16, true)
ADD_ROWS(add_bf16_weighted, FCC_BF16, true)
