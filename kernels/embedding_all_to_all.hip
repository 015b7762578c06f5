/* SPDX-License-Identifier: MIT
 *
 * embedding_all_to_all.hip - EmbeddingBag, then All-to-All, on GPUs. The plan and its phases are embedding_all_to_all.c's,
 * the rest is gpu_execute.h's.
 *
 * In compute+put a bag is summed in registers and stored straight into the destination's out, which may be a peer GPU's
 * memory. Staging, unless fused: all pooled vectors, dense, [destination][sample][own table][dim].
 *
 * The rows of a bag lie anywhere in a table that is larger than the caches, so this is bound by how many reads are under way.
 * A row is cut into blocks of as many elements as a wave reads with 16 bytes each. A block of a bag is the work of one team:
 * the lanes that the block needs, at least 8. Where a row needs fewer, the team reads several rows at a time and adds what
 * its lanes have at the end. The team's lanes read the bag's indices side by side, check them, and hand them round;
 * ROWS_AHEAD rows are under way. The next indices, and the next bag's offsets, are read before the rows of the present ones.
 *
 * Offsets and indices are the client's, who may change them meanwhile: each is read once by each team that needs it, and what
 * was checked is what is used.
 */
#include "gpu_execute.h"
#include "gpu_vector.h"

enum {
    THREADS = 256,
    SMALLEST_TEAM = 8, /* two offsets have to fit, and a few indices at a time */
    ROWS_AHEAD = 8,    /* rows that a lane has under way */
};

/* What the bags of a slice have in common, in shared memory. Sizes and strides of tensors are below 2^31 (tensor_check()). */
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
    struct gpu_walk step; /* of the teams, over blocks, samples and tables */
};

/* One bag, the same for all lanes of a team. */
struct bag {
    uint32_t table;
    uint32_t number; /* of the table's */
    uint32_t begin, end;
    uint32_t nrows;
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
    t->team = t->lanes < SMALLEST_TEAM ? (uint32_t)SMALLEST_TEAM : t->lanes;
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
    t.step = gpu_walk_at(blockDim.x / t.team, t.blocks, t.rows);
    return t;
}

/* ---- where results go ---- */

template <typename T> struct place {
    T *at;
    int64_t sample_stride, table_stride;
};

template <typename T> GPU_DEVICE place<T> place_in_out(const struct gpu_call &call, const struct slice &s)
{
    const struct gpu_output &out = call.out[s.dst];
    place<T> p = {(T *)out.data + (int64_t)s.dst_row * out.stride[0] + (int64_t)s.dst_col * out.stride[1], out.stride[0],
                  out.stride[1]};

    return p;
}

template <typename T> GPU_DEVICE place<T> place_in_staging(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    const struct gpu_shape &shape = call.fixed->shape;
    int64_t ntables = call.in[run].embedding.ntables, sample = shape.first[s.dst] + s.row;
    T *staging = (T *)call.fixed->staging[gpu_plan_of(call, run)->rank];
    place<T> p = {staging + (sample * ntables + s.col) * shape.dim, ntables * shape.dim, shape.dim};

    return p;
}

/* ---- checks ---- */

#define NO_OFFSET 0xffffffffu

GPU_DEVICE void fail(const struct gpu_call &call, uint32_t run, enum gpu_failure_kind kind, const struct bag &b, uint32_t at,
                     int64_t value, int64_t least, int64_t most)
{
    struct gpu_failure what;

    what.kind = kind;
    what.table = b.table;
    what.at = at;
    what.value = value;
    what.bag = b.number;
    what.position = kind == GPU_FAILURE_INDEX ? at - b.begin : 0;
    what.least = least;
    what.most = most;
    gpu_fail(call, run, what);
}

/* All lanes of the wave; the bag's begin was read by its team's first lane, its end by the second: `offset`. NO_OFFSET stands
 * for what lies outside the indices. False: there is a wrong one, and this has been told. */
template <typename T>
GPU_DEVICE bool bag_check(const struct gpu_call &call, uint32_t run, const tile<T> &t, const struct bag &b, int64_t offset)
{
    bool begins = b.begin != NO_OFFSET, ends = b.end != NO_OFFSET && b.end >= b.begin;
    uint32_t lane = gpu_team_lane(t.team), at = b.table * t.batch + b.number;

    if (gpu_wave_vote(!begins || !ends) == 0)
        return true;
    if (lane == 0 && !begins)
        fail(call, run, GPU_FAILURE_OFFSET_BEGIN, b, at, offset, 0, t.nnz);
    if (lane == 1 && begins && !ends)
        fail(call, run, GPU_FAILURE_OFFSET_END, b, at + 1, offset, b.begin, t.nnz);
    return false;
}

/* All lanes of the wave, each with the index that it has read, if any. False: one of them is no row, and a bag's first has been
 * told. */
template <typename T>
GPU_DEVICE bool index_check(const struct gpu_call &call, uint32_t run, const tile<T> &t, const struct bag &b, uint32_t at,
                            int64_t id)
{
    uint64_t bad = gpu_wave_vote(at < b.end && (uint64_t)id >= b.nrows);

    if (bad == 0)
        return true;
    if (gpu_team_first(bad, t.team) == gpu_team_lane(t.team))
        fail(call, run, GPU_FAILURE_INDEX, b, at, id, 0, (int64_t)b.nrows - 1);
    return false;
}

/* ---- pooling ---- */

/* A lane's part of a block: WIDTH elements, then as many again `lanes` * WIDTH further on, ..., LENGTH in all. WIDTH is LENGTH
 * where rows may be read 16 bytes at a time, else 1: neighbouring lanes read neighbouring elements. */
template <typename T, int WIDTH> struct part {
    enum { LENGTH = gpu_vector<T>::LENGTH, STEPS = LENGTH / WIDTH, ROWS = WIDTH == 1 ? 8 / LENGTH : ROWS_AHEAD };
    uint32_t first; /* element of the row */
    uint32_t step;  /* to the next WIDTH elements */

    /* Not `wanted`, or beyond dim: 0. */
    static __device__ __forceinline__ struct gpu_words load(const T *row, const struct part &p, uint32_t dim, bool wanted)
    {
        if constexpr (WIDTH == LENGTH) {
            return gpu_words_load_once(row + p.first, wanted && p.first < dim);
        } else {
            typedef typename gpu_vector<T>::bits bits;
            struct gpu_words w = {{0, 0, 0, 0}};
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                if (wanted && p.first + i * p.step < dim)
                    w.at[i * 4 / LENGTH] |= (uint32_t)gpu_bits_load((const bits *)row + p.first + i * p.step)
                                            << (sizeof(T) == 2 ? i % 2 * 16 : 0);
            return w;
        }
    }

    static __device__ __forceinline__ void store(T *out, const struct part &p, uint32_t dim, bool aligned, const float sum[])
    {
        if (WIDTH == LENGTH && aligned) {
            if (p.first < dim)
                gpu_words_store(out + p.first, gpu_vector<T>::from_f32(sum));
            return;
        }
#pragma unroll
        for (int i = 0; i < LENGTH; i++) {
            uint32_t at = p.first + i / WIDTH * p.step + i % WIDTH;
            if (at < dim)
                gpu_from_f32(out + at, sum[i]);
        }
    }
};

template <typename T, int WIDTH> GPU_DEVICE part<T, WIDTH> part_make(const tile<T> &t, uint32_t block)
{
    part<T, WIDTH> p;

    p.first = block * GPU_WAVE * gpu_vector<T>::LENGTH + (threadIdx.x & (t.lanes - 1)) * WIDTH;
    p.step = t.lanes * WIDTH;
    return p;
}

/* Adds rows to the lanes' sums: those whose indices the team's first n lanes hold, a weight each. */
template <typename T, int WIDTH>
GPU_DEVICE void add_rows(float sum[], const tile<T> &t, const part<T, WIDTH> &p, const T *table, uint32_t id, float weight,
                         uint32_t n)
{
    typedef part<T, WIDTH> own_part;
    const uint32_t at_a_time = t.team >> t.lanes_log2, own = gpu_team_lane(t.team) >> t.lanes_log2;

    for (uint32_t done = own; gpu_wave_vote(done < n); done += at_a_time * own_part::ROWS) {
        struct gpu_words row[own_part::ROWS];
#pragma unroll
        for (int i = 0; i < own_part::ROWS; i++) {
            uint32_t at = done + i * at_a_time;
            uint64_t row_id = gpu_team_get(id, at & (t.team - 1), t.team);
            row[i] = p.load(table + row_id * t.row_stride, p, t.dim, at < n);
        }
#pragma unroll
        for (int i = 0; i < own_part::ROWS; i++) {
            uint32_t at = done + i * at_a_time;
            float v[own_part::LENGTH], factor = gpu_team_get(weight, at & (t.team - 1), t.team);
            factor = at < n ? factor : 0;
            gpu_vector<T>::to_f32(v, row[i]);
#pragma unroll
            for (int j = 0; j < own_part::LENGTH; j++)
                sum[j] = fmaf(v[j], factor, sum[j]);
        }
    }
}

/* One block of one bag by each team of the wave; `out` is NULL where a team has none, and the bag empty. False: an index was
 * wrong, and this has been told. */
template <typename T, int WIDTH>
GPU_DEVICE bool pool_block(const struct gpu_call &call, uint32_t run, const tile<T> &t, const struct bag &b, uint32_t block,
                           const T *table, T *out)
{
    typedef part<T, WIDTH> own_part;
    const own_part p = part_make<T, WIDTH>(t, block);
    float sum[own_part::LENGTH] = {0};
    uint32_t at = b.begin + gpu_team_lane(t.team);
    int64_t next = at < b.end ? gpu_read_once(t.indices, t.wide, at) : 0;

    for (uint32_t left = b.end - b.begin, n; gpu_wave_vote(left > 0); left -= n, at += t.team) {
        n = left < t.team ? left : t.team;
        int64_t id = next;
        if (!index_check(call, run, t, b, at, id))
            return false;
        next = at + t.team < b.end ? gpu_read_once(t.indices, t.wide, at + t.team) : 0;
        float weight = t.weights && at < b.end ? t.weights[at] : 1.0f;
        add_rows(sum, t, p, table, (uint32_t)id, weight, n);
    }
    for (uint32_t bit = t.lanes; bit < t.team; bit *= 2)
#pragma unroll
        for (int i = 0; i < own_part::LENGTH; i++)
            sum[i] += gpu_lane_across(sum[i], bit);
    float share = t.mean && b.end > b.begin ? 1.0f / (float)(b.end - b.begin) : 1.0f;
#pragma unroll
    for (int i = 0; i < own_part::LENGTH; i++)
        sum[i] *= share;
    if (out && gpu_team_lane(t.team) < t.lanes)
        p.store(out, p, t.dim, t.out_aligned, sum);
    return true;
}

/* The offsets of the next bag: its begin in the team's first lane, its end in the second. 0: there is none. */
template <typename T> GPU_DEVICE int64_t offset_read(const tile<T> &t, const struct gpu_walk &w)
{
    uint32_t lane = gpu_team_lane(t.team);

    if (w.z >= t.cols || lane > 1)
        return 0;
    return gpu_read_once(t.offsets, t.wide, (t.first_table + w.z) * t.batch + t.first_bag + w.y + lane);
}

/* All bags of the tile, by all teams of the workgroup; x is the block, y the sample, z the table. */
template <typename T, int WIDTH> GPU_DEVICE bool pool_tile(const struct gpu_call &call, uint32_t run, const tile<T> &t)
{
    struct gpu_walk next = gpu_walk_at(threadIdx.x / t.team, t.blocks, t.rows);
    int64_t offset = offset_read(t, next);

    while (gpu_wave_vote(next.z < t.cols)) {
        struct bag b;
        bool some = next.z < t.cols;
        uint32_t block = next.x;
        T *out = some ? t.out + next.y * t.sample_stride + next.z * t.table_stride : NULL;
        b.table = t.first_table + (some ? next.z : 0);
        b.number = t.first_bag + next.y;
        uint32_t known = (uint64_t)offset <= t.nnz ? (uint32_t)offset : NO_OFFSET;
        b.begin = gpu_team_get(known, 0, t.team);
        b.end = gpu_team_get(known, 1, t.team);
        if (!bag_check(call, run, t, b, offset))
            return false;
        gpu_walk_next(&next, t.step, t.blocks, t.rows);
        offset = offset_read(t, next);
        int64_t first = t.table_first[b.table];
        b.nrows = (uint32_t)(t.table_first[b.table + 1] - first);
        if (!pool_block<T, WIDTH>(call, run, t, b, block, t.tables + first * t.row_stride, out))
            return false;
    }
    return true;
}

/* ---- slices ---- */

template <typename T> GPU_DEVICE bool compute_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    __shared__ tile<T> t;

    if (threadIdx.x == 0) {
        place<T> place = s.kind == SLICE_COMPUTE_PUT ? place_in_out<T>(call, s) : place_in_staging<T>(call, run, s);
        t = tile_make<T>(call, run, s);
        t.out = place.at;
        t.sample_stride = place.sample_stride;
        t.table_stride = place.table_stride;
        t.out_aligned = gpu_rows_aligned(t.out, s.rows, t.sample_stride) && gpu_rows_aligned(t.out, s.cols, t.table_stride);
    }
    __syncthreads();
    if (t.dim % gpu_vector<T>::LENGTH == 0 && gpu_rows_aligned(t.tables, 2, t.row_stride))
        return pool_tile<T, gpu_vector<T>::LENGTH>(call, run, t);
    return pool_tile<T, 1>(call, run, t);
}

/* Each wave copies what lies together at both ends: a sample's tables, or one of them. */
template <typename T> GPU_DEVICE void put_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    place<T> to = place_in_out<T>(call, s), from = place_in_staging<T>(call, run, s);
    bool together = to.table_stride == from.table_stride;
    uint32_t pieces = together ? 1 : s.cols;
    int64_t length = from.table_stride * (together ? s.cols : 1);
    struct gpu_walk w = gpu_walk_at(threadIdx.x / GPU_WAVE, pieces, s.rows),
                    step = gpu_walk_at(blockDim.x / GPU_WAVE, pieces, s.rows);

    for (; w.z < 1; gpu_walk_next(&w, step, pieces, s.rows))
        gpu_wave_copy(to.at + w.y * to.sample_stride + w.x * to.table_stride,
                      (const T *)from.at + w.y * from.sample_stride + w.x * from.table_stride, length);
}

template <typename T> struct embedding {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        if (s.kind != SLICE_PUT)
            return compute_tile<T>(call, run, s);
        put_tile<T>(call, run, s);
        return true;
    }
};

template <typename T> __global__ void __launch_bounds__(THREADS, 2) embedding_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct embedding<T> op;

    gpu_execute(call, op);
}

struct gpu_kernel gpu_embedding_kernel(enum fcc_dtype dtype)
{
    struct gpu_kernel k = {NULL, THREADS, 0, 0, 0};

    k.function = dtype == FCC_F16    ? (const void *)embedding_kernel<gpu_f16>
                 : dtype == FCC_BF16 ? (const void *)embedding_kernel<gpu_bf16>
                                     : (const void *)embedding_kernel<float>;
    return k;
}
