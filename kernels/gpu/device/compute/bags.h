/* SPDX-License-Identifier: MIT
 *
 * bags.h - embedding_all_to_all on GPUs: how a tile is divided among teams, and how a team reads its bags' offsets and indices.
 *
 * Offsets and indices belong to the client, which may change them at any time. So each team reads a value once, checks it, and
 * uses the checked copy. The lane that finds a wrong value describes it in a gpu_failure.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_COMPUTE_BAGS_H
#define FCC_KERNELS_GPU_DEVICE_COMPUTE_BAGS_H

#include "kernels/gpu/device/execute.h"
#include "kernels/gpu/device/vector.h"

#define EMBEDDING_SMALLEST_TEAM 8 /* lanes: a window of indices has to be worth the while */

/* A slice's tile, in shared memory. Sizes and strides of tensors are below 2^31 (tensor_check()). */
template <typename T> struct tile {
    uint32_t row_stride; /* strides in elements */
    const T *tables;
    const void *indices, *offsets;
    const float *weights; /* or NULL: 1 */
    const int64_t *table_first;
    uint32_t nnz;
    bool wide, mean;
    uint32_t dim, batch;
    uint32_t first_bag;   /* of each table: the sample at which the tile begins */
    uint32_t first_table; /* among the rank's */
    uint32_t rows, cols;  /* samples, tables */
    T *out;               /* where the first one's result goes */
    int64_t sample_stride, table_stride;
    bool out_aligned; /* results begin at multiples of 16 bytes */
    uint32_t blocks;  /* of a row */
    uint32_t lanes;   /* that one row's block needs: 1 << lanes_log2 */
    uint32_t lanes_log2;
    uint32_t team;        /* lanes that serve one bag's block: a power of 2, at least `lanes` */
    uint32_t bags;        /* that a team takes at a time, of one table: fewer than it has lanes */
    uint32_t shares;      /* of so many bags, the last one perhaps of fewer, that the samples of a table are cut into */
    struct gpu_walk step; /* of the teams, over blocks, shares and tables */
};

template <typename T> GPU_DEVICE void tile_shape(tile<T> *t, uint32_t dim)
{
    const uint32_t length = gpu_vector<T>::LENGTH;

    t->dim = dim;
    t->blocks = (dim + GPU_WAVE * length - 1) / (GPU_WAVE * length);
    t->lanes_log2 = 0;
    while (1u << t->lanes_log2 < GPU_WAVE && (length << t->lanes_log2) < dim)
        t->lanes_log2++;
    t->lanes = 1u << t->lanes_log2;
    t->team = t->lanes < EMBEDDING_SMALLEST_TEAM ? EMBEDDING_SMALLEST_TEAM : t->lanes;
}

/* Divide the tile so that every team gets about the same number of bags, in as few turns as possible. */
template <typename T> GPU_DEVICE void tile_share(tile<T> *t)
{
    const uint32_t teams = blockDim.x / t->team, most = t->rows < t->team ? t->rows : t->team - 1;
    /* The product is of the order of the result's size in bytes, which is in some GPU's memory. The number of bags for each
     * team, no larger than makes a difference: 64 bits are slow to divide. */
    uint64_t all = (uint64_t)t->rows * t->blocks * t->cols, some = all < 1u << 24 ? all : 1u << 24;
    uint32_t each = ((uint32_t)some - 1) / teams + 1, turns = (each - 1) / most + 1;

    t->shares = (t->rows - 1) / ((each - 1) / turns + 1) + 1;
    t->bags = (t->rows - 1) / t->shares + 1;
    t->step = gpu_walk_at(teams, t->blocks, t->shares);
}

template <typename T> GPU_DEVICE tile<T> tile_make(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_input &in = call.in[run];
    const struct gpu_shape &shape = call.fixed->shape;
    tile<T> t;

    t.tables = (const T *)in.embedding.tables;
    t.row_stride = (uint32_t)in.embedding.row_stride;
    t.indices = (const void *)in.embedding.indices;
    t.offsets = (const void *)in.embedding.offsets;
    t.weights = (const float *)in.embedding.weights;
    t.table_first = (const int64_t *)in.embedding.table_first;
    t.nnz = (uint32_t)in.embedding.nnz;
    t.wide = (in.embedding.flags & GPU_INDEX_WIDE) != 0;
    t.mean = (in.embedding.flags & GPU_POOL_MEAN) != 0;
    t.batch = (uint32_t)shape.batch;
    t.first_bag = (uint32_t)shape.first[s.dst] + s.row;
    t.first_table = s.col;
    t.rows = s.rows;
    t.cols = s.cols;
    tile_shape(&t, (uint32_t)shape.dim);
    tile_share(&t);
    return t;
}

/* ---- an offset or an index, as it is read ---- */

/* Read an offset or index. A 32-bit one is not sign-extended, which would wait for the load; a negative one is too large
 * anyway. */
GPU_DEVICE uint64_t number_read(const void *array, bool wide, uint32_t at)
{
    if (wide)
        return (uint64_t)gpu_read_once(array, true, at);
    return (uint32_t)gpu_read_once(array, false, at);
}

GPU_DEVICE int64_t number_value(uint64_t number, bool wide)
{
    return wide ? (int64_t)number : (int32_t)(uint32_t)number;
}

/* ---- bags ---- */

#define NO_OFFSET 0xffffffffu

/* The consecutive bags of one table that a team works on at a time. The same in all its lanes, but for `end`. */
struct bags {
    uint32_t table;
    uint32_t first;    /* number of the first bag, among the table's */
    uint32_t n;        /* 0: the team has nothing to do */
    uint32_t begin;    /* of the first bag, among the indices */
    uint32_t end;      /* of the bag with the lane's number; where there is none, of the last */
    uint32_t stop;     /* the last bag's end */
    uint32_t nrows;    /* of the table */
    int64_t first_row; /* of the table, among the rank's */
};

GPU_DEVICE void failure_fill(struct gpu_failure *what, enum gpu_failure_kind kind, const struct bags &b, uint32_t bag,
                             uint32_t at, int64_t value, uint32_t position, int64_t least, int64_t most)
{
    what->kind = kind;
    what->table = b.table;
    what->at = at;
    what->value = value;
    what->bag = b.first + bag;
    what->position = position;
    what->least = least;
    what->most = most;
}

/* All lanes of the wave; the team's lanes have read `number` each from `at` on: the first bag's begin, then the bags' ends.
 * False: there is a wrong one, and a team's first has been described. */
template <typename T>
GPU_DEVICE bool bags_check(struct gpu_failure *what, const tile<T> &t, struct bags *b, uint32_t at, uint64_t number)
{
    const uint32_t lane = gpu_team_lane(t.team), last = t.team - 1;
    uint32_t own = number <= t.nnz ? (uint32_t)number : NO_OFFSET, before = gpu_team_get(own, (lane - 1) & last, t.team),
             end = gpu_team_get(own, (lane + 1) & last, t.team);

    before = lane == 0 ? 0 : before;
    b->begin = gpu_team_get(own, 0, t.team);
    b->stop = gpu_team_get(own, b->n, t.team);
    b->end = lane < b->n ? end : b->stop;
    uint64_t bad = gpu_wave_vote(own == NO_OFFSET || (lane <= b->n && own < before));
    if (bad == 0)
        return true;
    bool tell = gpu_team_first(bad, t.team) == lane;
    if (tell && lane == 0)
        failure_fill(what, GPU_FAILURE_OFFSET_BEGIN, *b, 0, at, number_value(number, t.wide), 0, 0, t.nnz);
    else if (tell)
        failure_fill(what, GPU_FAILURE_OFFSET_END, *b, lane - 1, at + lane, number_value(number, t.wide), 0, before, t.nnz);
    return false;
}

/* All lanes of the wave: reads and checks the offsets of what each team has at its place in the tile; w: x is the block, y the
 * share of samples, z the table. */
template <typename T>
GPU_DEVICE bool bags_open(struct gpu_failure *what, const tile<T> &t, const struct gpu_walk &w, struct bags *b)
{
    const uint32_t lane = gpu_team_lane(t.team), sample = w.y * t.bags;
    const bool some = w.z < t.cols && sample < t.rows;
    uint32_t left = t.rows - sample;

    b->table = t.first_table + (some ? w.z : 0);
    b->first = t.first_bag + sample;
    b->n = left < t.bags ? left : t.bags;
    b->n = some ? b->n : 0;
    uint32_t at = b->table * t.batch + b->first;
    uint64_t number = some && lane <= b->n ? number_read(t.offsets, t.wide, at + lane) : 0;
    b->first_row = t.table_first[b->table];
    b->nrows = (uint32_t)(t.table_first[b->table + 1] - b->first_row);
    return bags_check(what, t, b, at, number);
}

/* ---- indices ---- */

/* How far a team has come in its bags. The same in all its lanes, but for what they have of windows. */
struct cursor {
    uint32_t bags;   /* how many there are to go through */
    uint32_t bag;    /* whose rows come next */
    uint32_t at;     /* the next one's place among the indices */
    uint32_t window; /* the first place in the window, to which each lane adds its number */
    uint32_t id;     /* of the window: checked */
    float weight;
    uint64_t next; /* of the window that follows: not checked yet */
    float next_weight;
};

template <bool WEIGHTED, typename T> GPU_DEVICE void window_read(const tile<T> &t, const struct bags &b, struct cursor *c)
{
    const uint32_t at = c->window + t.team + gpu_team_lane(t.team);

    c->next = at < b.stop ? number_read(t.indices, t.wide, at) : 0;
    c->next_weight = WEIGHTED && t.weights && at < b.stop ? t.weights[at] : 1.0f;
}

/* A cursor at the first bag, with a window that is used up: it ends where the bags begin. */
template <bool WEIGHTED, typename T> GPU_DEVICE struct cursor cursor_make(const tile<T> &t, const struct bags &b)
{
    struct cursor c;

    c.bags = b.n;
    c.bag = 0;
    c.at = b.begin;
    c.window = b.begin - t.team;
    c.id = 0;
    c.weight = 0;
    window_read<WEIGHTED>(t, b, &c);
    return c;
}

template <typename T> GPU_DEVICE bool next_is_bad(const tile<T> &t, const struct bags &b, const struct cursor &c)
{
    return c.window + t.team + gpu_team_lane(t.team) < b.stop && c.next >= b.nrows;
}

/* All lanes of the wave; those with `wanted`, which is the same for a team, go on to the next window. If one of them has an
 * index that is no row, all the wave's teams are through. */
template <bool WEIGHTED, typename T>
GPU_DEVICE void window_next(const tile<T> &t, const struct bags &b, struct cursor *c, bool wanted)
{
    if (gpu_wave_vote(wanted && next_is_bad(t, b, *c))) {
        c->bags = 0;
        return;
    }
    if (wanted) {
        c->id = (uint32_t)c->next;
        c->weight = c->next_weight;
        c->window += t.team;
        window_read<WEIGHTED>(t, b, c);
    }
}

/* All lanes of the wave, when their teams are through: were all indices rows? Where they were, nothing is left behind the
 * window. False: a team's first one that is none has been described. */
template <typename T>
GPU_DEVICE bool cursor_end(struct gpu_failure *what, const tile<T> &t, const struct bags &b, const struct cursor &c)
{
    const uint32_t lane = gpu_team_lane(t.team), at = c.window + t.team + lane;
    uint64_t bad = gpu_wave_vote(next_is_bad(t, b, c));
    uint32_t bag = 0, begin = b.begin;

    if (bad == 0)
        return true;
    for (uint32_t i = 0; i < t.team; i++) { /* whose is it? The first bag's that ends behind it. */
        uint32_t end = gpu_team_get(b.end, i, t.team);
        bag = end <= at ? i + 1 : bag;
        begin = end <= at ? end : begin;
    }
    if (gpu_team_first(bad, t.team) == lane)
        failure_fill(what, GPU_FAILURE_INDEX, b, bag, at, number_value(c.next, t.wide), at - begin, 0, (int64_t)b.nrows - 1);
    return false;
}

#endif
