/* SPDX-License-Identifier: MIT
 *
 * pool.c - pools the bags of one embedding table on a CPU core.
 *
 * The rows of a bag are anywhere in a table larger than the caches, so the speed depends on the number of cache misses in
 * flight. Indices are read and checked ahead of their use, into a short array. From there, rows are prefetched AHEAD of the
 * one that is being added, across bags, into the second-level cache, which has more misses in flight than the first. lanes/bags.h adds them up, in
 * blocks of 16 elements. If a row's length is not a multiple of 16, the last block begins early, so that it ends
 * with the row. The overlap with the block before is summed twice, separately, with the same result.
 */
#include "kernels/cpu/pool.h"

#include <errno.h>

#include "kernels/cpu/lanes/lanes.h"
#include "kernels/plan/compute/bag.h"
#include "kernels/plan/dtype.h"

enum {
    AHEAD = LANES_AHEAD,
    BAGS = 256,            /* bags whose offsets are read at a time */
    IDS = 1024,            /* indices that are read at a time */
    PREFETCH_BYTES = 1024, /* prefetched bytes of one row: the hardware prefetcher follows longer rows */
    /* tables up to this size stay in the second-level cache: there prefetching costs a fifth and gains nothing */
    NEAR_BYTES = 1 << 19,
    BLOCK = LANES, /* elements */
};

/* The bags and indices in use: private, checked copies. */
struct window {
    int64_t offsets[BAGS + 1];
    int64_t nbags, bag;        /* nbags: bags whose offsets are here. bag: the bag of the table that offsets[0] belongs to */
    int64_t position;          /* position of ids[0] among all indices */
    int64_t count;             /* number of valid ids */
    uint32_t ids[IDS + AHEAD]; /* behind the last id of all AHEAD copies of it follow */
};

/* Reads a value that the client may be changing, once. */
FCC_INLINE int64_t read_once(const void *array, bool wide, int64_t i)
{
    return wide ? ((const volatile int64_t *)array)[i] : ((const volatile int32_t *)array)[i];
}

/* ---- offsets and indices ---- */

static int window_open(struct window *w, const struct pool *p, int64_t bag, int64_t nbags, struct error *e)
{
    int64_t least = 0;

    for (int64_t i = 0; i <= nbags; i++) {
        int64_t at = p->first_bag + bag + i, offset = read_once(p->offsets, p->wide, at);
        if (offset < least || offset > p->nnz)
            return bag_offset_error(e, at, offset, p->table, i > 0, i ? bag + i - 1 : bag, least, p->nnz);
        w->offsets[i] = least = offset;
    }
    w->bag = bag;
    w->nbags = nbags;
    w->position = w->offsets[0];
    w->count = 0;
    return 0;
}

static int bad_index(const struct window *w, const struct pool *p, int64_t position, int64_t id, struct error *e)
{
    int64_t bag = 0;

    while (bag + 1 < w->nbags && w->offsets[bag + 1] <= position)
        bag++;
    return bag_index_error(e, position, id, p->table, w->bag + bag, position - w->offsets[bag], p->nrows);
}

/* Drops ids before `position`, of which at most AHEAD stay, and refills the window. */
static int window_fill(struct window *w, const struct pool *p, int64_t position, struct error *e)
{
    int64_t keep = w->position + w->count - position, end = w->offsets[w->nbags], room, id;

    memmove(w->ids, w->ids + (position - w->position), (size_t)keep * sizeof(w->ids[0]));
    w->position = position;
    w->count = keep;
    room = end - position < IDS ? end - position : IDS;
    for (; w->count < room; w->count++) {
        id = read_once(p->indices, p->wide, position + w->count);
        if ((uint64_t)id >= (uint64_t)p->nrows)
            return bad_index(w, p, position + w->count, id, e);
        w->ids[w->count] = (uint32_t)id;
    }
    if (position + w->count == end)
        for (int i = 0; i < AHEAD; i++)
            w->ids[w->count + i] = w->ids[w->count - 1];
    return 0;
}

/* The end of the ids that may be used. Unless the indices end here, the last AHEAD ids are for prefetching only. */
static int64_t window_end(const struct window *w)
{
    int64_t end = w->position + w->count;

    return end == w->offsets[w->nbags] ? end : end - AHEAD;
}

/* ---- sums ---- */

static int64_t blocks_of(int64_t dim)
{
    return (dim + BLOCK - 1) / BLOCK;
}

/* The prefetched bytes of each row. */
static int64_t prefetched_bytes(const struct pool *p)
{
    int64_t bytes = p->dim * (int64_t)dtype_size(p->dtype);

    if ((uint64_t)p->nrows * p->row_bytes <= NEAR_BYTES)
        return 0;
    return bytes < PREFETCH_BYTES ? bytes : PREFETCH_BYTES;
}

static lanes_add *add_choose(const struct pool *p)
{
    const struct lanes_loops *loops = lanes_loops(LANES_WIDEST);

    if (p->dtype == FCC_F16)
        return p->weights ? loops->add_f16_weighted : loops->add_f16;
    if (p->dtype == FCC_BF16)
        return p->weights ? loops->add_bf16_weighted : loops->add_bf16;
    return p->weights ? loops->add_f32_weighted : loops->add_f32;
}

/* Stores the sums as elements; for a mean divided by the number of rows. */
static void store_result(unsigned char *out, float *sums, const struct pool *p, int64_t nrows)
{
    int64_t blocks = blocks_of(p->dim), size = (int64_t)dtype_size(p->dtype);

    if (p->mean && nrows > 1)
        for (int64_t i = 0; i < blocks * BLOCK; i++)
            sums[i] /= (float)nrows;
    if (p->dim < BLOCK) {
        dtype_from_f32(out, sums, p->dtype, (size_t)p->dim);
        return;
    }
    dtype_from_f32(out, sums, p->dtype, (size_t)(p->dim / BLOCK * BLOCK));
    if (p->dim % BLOCK)
        dtype_from_f32(out + (p->dim - BLOCK) * size, sums + (blocks - 1) * BLOCK, p->dtype, BLOCK);
}

static int pool_window(struct window *w, const struct pool *p, unsigned char *out, size_t out_bytes, float *sums,
                       struct error *e)
{
    const struct lanes_table table = {p->rows, p->row_bytes, p->dim, prefetched_bytes(p)};
    lanes_add *add = add_choose(p);

    for (int64_t i = 0; i < w->nbags; i++) {
        int64_t end = w->offsets[i + 1];
        memset(sums, 0, (size_t)(blocks_of(p->dim) * BLOCK) * sizeof(float));
        for (int64_t at = w->offsets[i]; at < end;) {
            int64_t stop = window_end(w);
            if (at >= stop) {
                int status = window_fill(w, p, at, e);
                if (status)
                    return status;
                continue;
            }
            stop = stop < end ? stop : end;
            add(sums, &table, w->ids + (at - w->position), stop - at, p->weights ? p->weights + at : NULL);
            at = stop;
        }
        store_result(out + (size_t)i * out_bytes, sums, p, end - w->offsets[i]);
    }
    return 0;
}

int pool_bags(const struct pool *p, int64_t bag, int64_t n, unsigned char *out, size_t out_bytes, struct workgroup *wg,
              struct error *e)
{
    size_t nsums = (size_t)(blocks_of(p->dim) * BLOCK), bytes = nsums * sizeof(float) + sizeof(struct window);
    float *sums = workgroup_scratch(wg, bytes);

    if (!sums)
        return error_set(e, -ENOMEM, "scratch memory: %zu bytes: not there", bytes);
    struct window *w = (struct window *)(void *)(sums + nsums);
    for (int64_t done = 0; done < n; done += w->nbags) {
        int status = window_open(w, p, bag + done, n - done < BAGS ? n - done : BAGS, e);
        if (status == 0)
            status = pool_window(w, p, out + (size_t)done * out_bytes, out_bytes, sums, e);
        if (status)
            return status;
    }
    return 0;
}
