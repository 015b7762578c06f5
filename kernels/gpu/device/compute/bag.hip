/* SPDX-License-Identifier: MIT
 *
 * bag.hip - EmbeddingBag, then All-to-All, on GPUs. The plan and its phases are kernels/plan/exchange/put.c's,
 * the rest is kernels/gpu/device/execute.h's.
 *
 * In compute+put a bag is summed in registers and stored straight into the destination's out, which may be a peer GPU's
 * memory. Staging, unless fused: all pooled vectors, dense, [destination][sample][own table][dim].
 *
 * The rows of a bag lie anywhere in a table that is larger than the caches, so this is bound by how many reads are under way.
 * A row is cut into blocks of as many elements as a wave reads with 16 bytes each. A block of a bag is the work of one team:
 * the lanes that the block needs, at least 8. Where a row needs fewer, the team reads several rows at a time and adds what
 * its lanes have at the end.
 *
 * A team takes bags in succession (bags.h), so that what it reads of offsets and indices lies together and can be had
 * before it is needed:
 *   - the offsets of all its bags, one for each lane, at once;
 *   - a window of as many indices as the team has lanes, across the ends of bags. While the present window, checked, is handed
 *     round, the next one is on its way;
 *   - rows in batches of up to ROWS_AHEAD reads, each of one bag.
 * So a short bag costs one latency of the memory for each batch, and not one more for its offsets and one for its indices. What
 * remains is hidden by the other waves: there are 24 on a multiprocessor, with 4 KiB under way each. (A second
 * batch for each wave instead of more waves gives nothing on NVIDIA: the compiler has one counter for all reads of rows, and
 * waits for both batches where it needs the first.)
 */
#include "kernels/gpu/device/compute/bags.h"
#include "kernels/gpu/device/exchange/landing.h"

enum {
    THREADS = 128,   /* few, because a workgroup's waves wait for each other at the end of a slice */
    ROWS_AHEAD = 8,  /* reads of rows in a batch */
    PUT_BYTES = 4096 /* bytes that a wave copies at a time */
};

/* 96 KiB of rows in flight on a multiprocessor, and enough registers for the loops: 80 on NVIDIA; 168 on AMD, where waves
 * are twice as wide and the compiler keeps more of the loops' addresses in registers. */
#if defined(__CUDACC__)
enum { RESIDENT = 6 }; /* workgroups on a multiprocessor */
#else
enum { RESIDENT = 3 }; /* waves on a SIMD unit */
#endif

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

/* The same through rings: another rank's out is this one's slot there, in which the slice has the place of its part, s.slot. In this rank's the
 * columns begin behind those of the ranks before it. */
template <typename T> GPU_DEVICE place<T> place_through_rings(const struct gpu_call &call, const struct slice &s)
{
    const uint32_t own = call.plans[0].rank;
    place<T> p = place_in_out<T>(call, s);

    if (s.dst == own)
        p.at += (int64_t)((volatile struct gpu_numbers *)gpu_numbers_here())->rows_at[own] * p.table_stride;
    else
        p.at = (T *)((char *)p.at + (uint64_t)(s.slot % LANDING_PLACES) * call.rings.place_bytes);
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

/* ---- rows ---- */

#define NO_BAG 0xffffffffu

/* A lane's part of a block: WIDTH elements, then again WIDTH elements every `lanes` * WIDTH, LENGTH in all. WIDTH is LENGTH
 * if rows may be read 16 bytes at a time, otherwise 1: neighbouring lanes read neighbouring elements. PLAIN: there are no
 * weights, and a team reads one row at a time. */
template <typename T, int WIDTH, bool PLAIN> struct part {
    enum { LENGTH = gpu_vector<T>::LENGTH, STEPS = LENGTH / WIDTH, ROWS = WIDTH == 1 ? 8 / LENGTH : ROWS_AHEAD };
    uint32_t first; /* index of the first element in the row */
    uint32_t step;  /* distance to the next WIDTH elements */

    /* Loads from `at`, which is element `first` of a row. Zeros if not `wanted` or beyond dim. Rows that many samples share
     * stay in the cache. */
    static __device__ __forceinline__ struct gpu_words load(const T *at, const struct part &p, uint32_t dim, bool wanted)
    {
        if constexpr (WIDTH == LENGTH) {
            return gpu_words_load(at, wanted && p.first < dim);
        } else {
            typedef typename gpu_vector<T>::bits bits;
            struct gpu_words w = {{0, 0, 0, 0}};
#pragma unroll
            for (int i = 0; i < LENGTH; i++)
                if (wanted && p.first + i * p.step < dim)
                    w.at[i * 4 / LENGTH] |= (uint32_t)gpu_bits_load((const bits *)at + i * p.step)
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

template <typename T, int WIDTH, bool PLAIN> GPU_DEVICE part<T, WIDTH, PLAIN> part_make(const tile<T> &t, uint32_t block)
{
    part<T, WIDTH, PLAIN> p;

    p.first = block * GPU_WAVE * gpu_vector<T>::LENGTH + (threadIdx.x & (t.lanes - 1)) * WIDTH;
    p.step = t.lanes * WIDTH;
    return p;
}

/* Reads of rows in flight, all of one bag. Slot i of a lane has row skip + i * at_a_time of them, if that exists. The lanes
 * that add up a row depend only on the row's position among the indices, so the result's bits do not depend on how bags are
 * divided among teams. */
template <typename T, int WIDTH, bool PLAIN> struct batch {
    struct gpu_words slot[part<T, WIDTH, PLAIN>::ROWS];
    uint32_t n;    /* number of rows */
    uint32_t skip; /* rows to skip; a negative number is too large to be a row, so slot 0 is empty */
    uint32_t from; /* position in the window of the first row's index */
    uint32_t bag;  /* the bag that ends with these rows, or NO_BAG */
};

template <typename T, bool PLAIN> GPU_DEVICE uint32_t rows_at_a_time(const tile<T> &t)
{
    return PLAIN ? 1 : t.team >> t.lanes_log2;
}

/* All lanes of the wave: start reading the next rows of each team, if any. `table` is the lane's first element of row 0. */
template <typename T, int WIDTH, bool PLAIN>
GPU_DEVICE void batch_read(batch<T, WIDTH, PLAIN> *r, const tile<T> &t, const part<T, WIDTH, PLAIN> &p, const struct bags &b,
                           struct cursor *c, const T *table)
{
    const uint32_t at_a_time = rows_at_a_time<T, PLAIN>(t), last = t.team - 1;
    uint32_t end = gpu_team_get(b.end, c->bag & last, t.team), left = c->bag < c->bags ? end - c->at : 0;
    const bool used_up = left > 0 && c->at == c->window + t.team;

    if (gpu_wave_vote(used_up))
        window_next<!PLAIN>(t, b, c, used_up);
    const bool some = c->bag < c->bags;
    const uint32_t odd = c->at & (at_a_time - 1), in_window = c->window + t.team - c->at,
                   most = at_a_time * part<T, WIDTH, PLAIN>::ROWS - odd;
    left = some ? left : 0;
    r->n = left < in_window ? left : in_window;
    r->n = r->n < most ? r->n : most;
    r->skip = PLAIN ? 0 : (gpu_team_lane(t.team) >> t.lanes_log2) - odd;
    r->from = c->at - c->window;
    r->bag = some && r->n == left ? c->bag : NO_BAG;
    c->at += r->n;
    c->bag += r->bag != NO_BAG;
#pragma unroll
    for (int i = 0; i < part<T, WIDTH, PLAIN>::ROWS; i++) {
        uint32_t at = r->skip + i * at_a_time;
        uint64_t id = gpu_team_get(c->id, (r->from + at) & last, t.team);
        r->slot[i] = p.load(table + id * t.row_stride, p, t.dim, at < r->n);
    }
}

/* All lanes of the wave: adds a batch. `weight`: the window's weights. */
template <typename T, int WIDTH, bool PLAIN>
GPU_DEVICE void batch_add(float sum[], const tile<T> &t, const batch<T, WIDTH, PLAIN> &r, float weight)
{
    typedef part<T, WIDTH, PLAIN> own_part;
    const uint32_t at_a_time = rows_at_a_time<T, PLAIN>(t), last = t.team - 1;
    float v[own_part::LENGTH];

    /* In a branch of its own, so that no compiler moves additions, which wait, before reads. */
    if (gpu_wave_vote(r.n > 0) == 0)
        return;
#pragma unroll
    for (int i = 0; i < own_part::ROWS; i++) {
        float factor = 1; /* a missing row is 0, but 0 times infinity would be NaN */
        if constexpr (!PLAIN) {
            uint32_t at = r.skip + i * at_a_time;
            factor = gpu_team_get(weight, (r.from + at) & last, t.team);
            factor = at < r.n ? factor : 0;
        }
        gpu_vector<T>::to_f32(v, r.slot[i]);
#pragma unroll
        for (int j = 0; j < own_part::LENGTH; j++)
            sum[j] = fmaf(v[j], factor, sum[j]);
    }
}

/* All lanes of the wave: stores the sums of bags that end, and resets them. */
template <typename T, int WIDTH, bool PLAIN>
GPU_DEVICE void bag_end(float sum[], const tile<T> &t, const part<T, WIDTH, PLAIN> &p, const struct bags &b, uint32_t bag,
                        T *out)
{
    const bool ends = bag != NO_BAG;
    float total[part<T, WIDTH, PLAIN>::LENGTH], share = 1.0f;

    if (gpu_wave_vote(ends) == 0)
        return;
    if (t.mean) {
        uint32_t end = gpu_team_get(b.end, bag & (t.team - 1), t.team),
                 before = gpu_team_get(b.end, (bag - 1) & (t.team - 1), t.team), begin = bag == 0 ? b.begin : before;
        share = ends && end > begin ? 1.0f / (float)(end - begin) : 1.0f;
    }
#pragma unroll
    for (int i = 0; i < part<T, WIDTH, PLAIN>::LENGTH; i++) {
        total[i] = sum[i];
        sum[i] = ends ? 0 : sum[i];
    }
    for (uint32_t bit = t.lanes; !PLAIN && bit < t.team; bit *= 2)
#pragma unroll
        for (int i = 0; i < part<T, WIDTH, PLAIN>::LENGTH; i++)
            total[i] += gpu_lane_across(total[i], bit);
#pragma unroll
    for (int i = 0; i < part<T, WIDTH, PLAIN>::LENGTH; i++)
        total[i] *= share;
    if (ends && gpu_team_lane(t.team) < t.lanes)
        p.store(out + (int64_t)bag * t.sample_stride, p, t.dim, t.out_aligned, total);
}

/* All lanes of the wave: pools one block of each team's bags. `out`: where the first bag's result goes. False: an index was
 * wrong, and is described. */
template <typename T, int WIDTH, bool PLAIN>
GPU_DEVICE bool bags_pool(struct gpu_failure *what, const tile<T> &t, const struct bags &b, uint32_t block, T *out)
{
    const part<T, WIDTH, PLAIN> p = part_make<T, WIDTH, PLAIN>(t, block);
    const T *table = t.tables + b.first_row * t.row_stride + p.first;
    struct cursor c = cursor_make<!PLAIN>(t, b);
    float sum[part<T, WIDTH, PLAIN>::LENGTH] = {0};
    batch<T, WIDTH, PLAIN> r;

    while (gpu_wave_vote(c.bag < c.bags)) {
        batch_read(&r, t, p, b, &c, table);
        batch_add(sum, t, r, c.weight);
        bag_end(sum, t, p, b, r.bag, out);
    }
    return cursor_end(what, t, b, c);
}

/* All teams of the workgroup: pools all bags of the tile. */
template <typename T, int WIDTH, bool PLAIN> GPU_DEVICE bool pool_tile(struct gpu_failure *what, const tile<T> &t)
{
    struct gpu_walk w = gpu_walk_at(threadIdx.x / t.team, t.blocks, t.shares);

    for (; gpu_wave_vote(w.z < t.cols); gpu_walk_next(&w, t.step, t.blocks, t.shares)) {
        struct bags b;
        if (!bags_open(what, t, w, &b))
            return false;
        T *out = t.out + (b.first - t.first_bag) * t.sample_stride + (b.table - t.first_table) * t.table_stride;
        if (!bags_pool<T, WIDTH, PLAIN>(what, t, b, w.x, out))
            return false;
    }
    return true;
}

/* ---- slices ---- */

template <typename T, bool RINGS = false>
GPU_DEVICE bool compute_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    __shared__ tile<T> t;
    struct gpu_failure what;
    bool well;

    if (threadIdx.x == 0) {
        place<T> place = RINGS                         ? place_through_rings<T>(call, s)
                         : s.kind == SLICE_COMPUTE_PUT ? place_in_out<T>(call, s)
                                                       : place_in_staging<T>(call, run, s);
        t = tile_make<T>(call, run, s);
        t.out = place.at;
        t.sample_stride = place.sample_stride;
        t.table_stride = place.table_stride;
        t.out_aligned = gpu_rows_aligned(t.out, s.rows, t.sample_stride) && gpu_rows_aligned(t.out, s.cols, t.table_stride);
    }
    what.kind = GPU_FAILURE_NONE;
    __syncthreads();
    if (t.dim % gpu_vector<T>::LENGTH || !gpu_rows_aligned(t.tables, 2, t.row_stride))
        well = pool_tile<T, 1, false>(&what, t);
    else if (t.weights || t.lanes < t.team)
        well = pool_tile<T, gpu_vector<T>::LENGTH, false>(&what, t);
    else
        well = pool_tile<T, gpu_vector<T>::LENGTH, true>(&what, t);
    if (!well && what.kind != GPU_FAILURE_NONE)
        gpu_fail(call, run, what);
    return well;
}

/* Each wave copies a piece that is contiguous at both ends: a sample's tables, or one of them. */
template <typename T> GPU_DEVICE void put_tile(const struct gpu_call &call, uint32_t run, const struct slice &s)
{
    place<T> to = place_in_out<T>(call, s), from = place_in_staging<T>(call, run, s);
    bool together = to.table_stride == from.table_stride;
    int64_t length = from.table_stride * (together ? s.cols : 1), piece = together ? PUT_BYTES / (int64_t)sizeof(T) : length;
    uint32_t pieces = together ? (uint32_t)((length + piece - 1) / piece) : s.cols;
    int64_t to_piece = together ? piece : to.table_stride;
    struct gpu_walk w = gpu_walk_at(threadIdx.x / GPU_WAVE, pieces, s.rows),
                    step = gpu_walk_at(blockDim.x / GPU_WAVE, pieces, s.rows);

    for (; w.z < 1; gpu_walk_next(&w, step, pieces, s.rows)) {
        int64_t left = together ? length - w.x * piece : piece;
        gpu_wave_copy(to.at + w.y * to.sample_stride + w.x * to_piece,
                      (const T *)from.at + w.y * from.sample_stride + w.x * piece, left < piece ? left : piece);
    }
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

template <typename T> __global__ void __launch_bounds__(THREADS, RESIDENT) embedding_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct embedding<T> op;

    gpu_execute(call, op);
}

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) embedding_over_nodes_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct embedding<T> op;

    gpu_execute_over_nodes(call, op);
}

/* Through rings: what goes to other ranks lands there. */
template <typename T> struct embedding_through_rings {
    __device__ __forceinline__ bool slice(const struct gpu_call &call, uint32_t run, const struct slice &s)
    {
        return landing_open<T, true>(call, s) && compute_tile<T, true>(call, run, s);
    }
};

template <typename T>
__global__ void __launch_bounds__(THREADS, RESIDENT) embedding_rings_kernel(GPU_PARAMETER struct gpu_call call)
{
    struct embedding_through_rings<T> op;

    gpu_execute(call, op, landing_end<T, true>());
}

template <typename T> static const void *function_of(const struct gpu_shape *shape)
{
    if (shape->through_rings)
        return (const void *)embedding_rings_kernel<T>;
    return shape->over_nodes ? (const void *)embedding_over_nodes_kernel<T> : (const void *)embedding_kernel<T>;
}

bool gpu_bag_fits(const struct gpu_shape *shape, int, const struct gpu_run[], int, struct gpu_choice *out)
{
    out->kernel = {GPU_BY_DTYPE(shape->dtype, function_of, shape), THREADS, 0, 0};
    return true;
}
