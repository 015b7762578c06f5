/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_exchange.h - operators on fake GPUs of several nodes, where they give what fake_gpu.c says.
 */
#ifndef FAKE_GPU_EXCHANGE_H
#define FAKE_GPU_EXCHANGE_H

#include <math.h>

#include "tests/fake_gpu/fake_gpu_bed.h"

enum { ROWS = 192, COLS = 320, K = 8, DIM = 12, BATCH = 40, TABLES = 3, NOBODY = -1 };

/* One of the ranks, or nobody, has nothing to send: no rows, no tables. What it gets comes all from others. */
struct exchange {
    fcc_comm *comm;
    int n, rank, idle;
    fcc_buffer *in, *out;
    int64_t rows[TABLES], send[FCC_MAX_RANKS], received[FCC_MAX_RANKS];
    struct fcc_gemm_all_to_all_args gemm;
    struct fcc_embedding_all_to_all_args embedding;
};

static inline int64_t exchange_rows(const struct exchange *x, int source)
{
    return source == x->idle ? 0 : ROWS / x->n;
}

static inline int exchange_tables(const struct exchange *x, int source)
{
    return source == x->idle ? 0 : TABLES;
}

static inline void exchange_open(struct exchange *x, fcc_comm *comm, int idle)
{
    int64_t sent = 0, got = 0, tables = 0;

    *x =
        (struct exchange){.comm = comm, .n = fcc_comm_size(comm), .rank = fcc_comm_rank(comm), .idle = idle, .rows = {9, 9, 9}};
    for (int r = 0; r < x->n; r++) {
        sent += x->send[r] = exchange_rows(x, x->rank);
        got += exchange_rows(x, r);
        tables += exchange_tables(x, r);
    }
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, ROWS * COLS * sizeof(float), &x->in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, ROWS * COLS * sizeof(float), &x->out));
    int own = exchange_tables(x, x->rank);
    x->gemm = (struct fcc_gemm_all_to_all_args){.a = fcc_tensor_2d(x->in, 0, FCC_F32, sent, K),
                                                .b = fcc_tensor_2d(x->in, 0, FCC_F32, K, COLS),
                                                .send_rows = x->send,
                                                .c = fcc_tensor_2d(x->out, 0, FCC_F32, got, COLS),
                                                .recv_rows = x->received};
    x->embedding = (struct fcc_embedding_all_to_all_args){
        .tables = fcc_tensor_2d(x->in, 0, FCC_F32, 9 * own, DIM),
        .table_rows = x->rows,
        .num_tables = (uint32_t)own,
        .indices = fcc_tensor_1d(x->in, 65536, FCC_I64, 0),
        .offsets = fcc_tensor_1d(x->in, 65536, FCC_I64, own * BATCH + 1),
        .batch = BATCH,
        .out = fcc_tensor_3d(x->out, 0, FCC_F32, BATCH / x->n + (x->rank < BATCH % x->n), tables, DIM)};
    x->gemm.c.stride[0] = COLS;
    x->embedding.out.stride[0] = tables * DIM;
    x->embedding.out.stride[1] = DIM;
    x->gemm.c.stride[1] = x->embedding.out.stride[2] = 1;
}

static inline void exchange_close(struct exchange *x)
{
    fcc_buffer_free(x->in);
    fcc_buffer_free(x->out);
}

static inline void exchange_poison(const struct exchange *x, float image[ROWS * COLS])
{
    for (int i = 0; i < ROWS * COLS; i++)
        image[i] = NAN;
    OK(fcc_buffer_write(x->out, 0, image, ROWS * COLS * sizeof(float)));
}

/* A part of the result is its source's number and one, in every element. */
static inline void part_check(const struct exchange *x, const struct fcc_tensor *t, const float *image, int source,
                              const int64_t begin[3], const int64_t end[3])
{
    for (int64_t i = begin[0]; i < end[0]; i++)
        for (int64_t j = begin[1]; j < end[1]; j++)
            for (int64_t k = begin[2]; k < end[2]; k++) {
                float got = image[i * t->stride[0] + j * t->stride[1] + k * (t->ndim > 2 ? t->stride[2] : 0)];
                if (got != (float)(source + 1))
                    check_failed(__FILE__, __LINE__, "rank %d of %d, %d idle: [%d][%d][%d] is %g, expected %d", x->rank, x->n,
                                 x->idle, (int)i, (int)j, (int)k, (double)got, source + 1);
            }
}

static inline void products_check(const struct exchange *x, const float *image)
{
    int64_t row = 0;

    for (int r = 0; r < x->n; r++) {
        CHECK(x->received[r] == exchange_rows(x, r));
        part_check(x, &x->gemm.c, image, r, (int64_t[]){row, 0, 0}, (int64_t[]){row + x->received[r], COLS, 1});
        row += x->received[r];
    }
}

static inline void vectors_check(const struct exchange *x, const float *image)
{
    int64_t table = 0;

    for (int r = 0; r < x->n; r++) {
        int64_t after = table + exchange_tables(x, r);
        part_check(x, &x->embedding.out, image, r, (int64_t[]){0, table, 0},
                   (int64_t[]){x->embedding.out.shape[0], after, DIM});
        table = after;
    }
}

static inline void exchange_works(struct exchange *x, uint32_t schedule, void *stream)
{
    static float image[ROWS * COLS];
    bool whole = schedule <= FCC_SCHEDULE_SEQUENTIAL;

    x->gemm.schedule = x->embedding.schedule = schedule;
    exchange_poison(x, image);
    OK(fcc_gemm_all_to_all(x->comm, &x->gemm));
    OK(fcc_buffer_read(x->out, 0, image, sizeof(image)));
    if (whole)
        products_check(x, image);
    OK(fcc_noop(x->comm)); /* nobody spoils the next one's result while another still looks */
    exchange_poison(x, image);
    if (stream) {
        OK(fcc_embedding_all_to_all_enqueue(x->comm, &x->embedding, stream, NULL));
        stream_sync(stream);
    } else {
        OK(fcc_embedding_all_to_all(x->comm, &x->embedding));
    }
    OK(fcc_buffer_read(x->out, 0, image, sizeof(image)));
    if (whole)
        vectors_check(x, image);
    OK(fcc_noop(x->comm));
}

/* ---- a gemv_all_reduce ---- */

/* The same buffers with other sizes; rows of y lie `stride` elements apart. */
static inline void product_reshape(struct product *p, enum fcc_dtype dtype, int m, int n, int stride)
{
    struct fcc_gemv_all_reduce_args *a = &p->args;

    CHECK(m <= PRODUCT_M && stride >= n && (m - 1) * stride + n <= PRODUCT_M * PRODUCT_N && n <= PRODUCT_N);
    a->x = fcc_tensor_2d(a->x.buffer, 0, dtype, m, PRODUCT_K);
    a->w = fcc_tensor_2d(a->w.buffer, 0, dtype, n, PRODUCT_K);
    a->y = fcc_tensor_2d(a->y.buffer, 0, dtype, m, n);
    a->y.stride[0] = stride;
    a->y.stride[1] = 1;
}

/* Ranks of the node with the most, which the first one is; nodes have their numbers in order of their first ranks. */
static inline int node_ranks_most(int nranks)
{
    int n = 0;

    for (int r = 0; r < nranks; r++)
        n += fake_node_of(r) == 0;
    return n;
}

/* By nodes: as asked for, or by the rule. */
static inline bool product_by_nodes(const struct product *p, uint32_t schedule)
{
    int64_t sums = (p->rows_all ? p->rows_all : p->args.y.shape[0]) * p->args.y.shape[1] * (int64_t)sizeof(float);

    if (schedule & FCC_SCHEDULE_ROUTES)
        return schedule & FCC_SCHEDULE_HIERARCHICAL;
    return sums * (node_ranks_most(fcc_comm_size(p->comm)) - 1) >= 32768;
}

/* The sum of an element: of each node's ranks in their order, then of the nodes in the order of their first ranks; or of all ranks. */
static inline float product_sum(enum fcc_dtype dtype, int nranks, bool by_nodes, int row, int col)
{
    float total = 0;

    for (int node = 0; node < (by_nodes ? fake_nodes : 1); node++) {
        float sum = 0; /* and no partial sum is less than 0: what is added to 0 keeps its bits */
        for (int r = 0; r < nranks; r++)
            if (!by_nodes || fake_node_of(r) == node)
                sum += fake_partial(dtype, (uint32_t)r, (uint32_t)row, (uint32_t)col);
        total += sum;
    }
    return total;
}

static inline void product_poison(const struct product *p)
{
    static unsigned char y[PRODUCT_M * PRODUCT_N * sizeof(float)];

    memset(y, 0xff, sizeof(y));
    OK(fcc_buffer_write(p->args.y.buffer, 0, y, sizeof(y)));
}

enum { PRODUCT_BIAS = 2 };

/* Every element of y is that, to the last bit, and nothing beside them was touched. */
static inline void product_verify(const struct product *p, uint32_t schedule)
{
    static unsigned char y[PRODUCT_M * PRODUCT_N * sizeof(float)], expected[sizeof(y)];
    const struct fcc_tensor *t = &p->args.y;
    int n = fcc_comm_size(p->comm), rows = (int)t->shape[0], cols = (int)t->shape[1];
    int64_t stride = t->stride[0] ? t->stride[0] : cols;
    size_t size = t->dtype == FCC_F32 ? 4 : 2, bad = 0;
    unsigned char element[FAKE_PERIOD][4];

    for (int i = 0; i < FAKE_PERIOD; i++) {
        float sum = product_sum(t->dtype, n, product_by_nodes(p, schedule), i, 0);
        if (p->has_epilogue)
            sum = (sum + PRODUCT_BIAS) + (float)i;
        fake_round(t->dtype, sum, element[i]);
    }
    memset(expected, 0xff, sizeof(expected));
    OK(fcc_buffer_read(t->buffer, 0, y, sizeof(y)));
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            memcpy(expected + (size_t)(i * stride + j) * size, element[(p->row_first + i + j) % FAKE_PERIOD], size);
    if (memcmp(y, expected, sizeof(y)) != 0) {
        while (y[bad] == expected[bad])
            bad++;
        check_failed(__FILE__, __LINE__,
                     "rank %d of %d, %d nodes, schedule %u, dtype %d, %d x %d: byte %zu of y is %02x, expected %02x",
                     fcc_comm_rank(p->comm), n, fake_nodes, schedule, (int)t->dtype, rows, cols, bad, y[bad], expected[bad]);
    }
    OK(fcc_noop(p->comm)); /* nobody spoils the next one's while another still looks */
}

static inline void product_check(const struct product *p, uint32_t schedule)
{
    struct fcc_gemv_all_reduce_args args = p->args;

    product_poison(p);
    args.schedule = schedule;
    OK(fcc_gemv_all_reduce(p->comm, &args));
    product_verify(p, schedule);
}

/* With an epilogue: a bias that is the same in all columns, and a residual of the sums' period, m x n in `stages` behind it. In place, the
 * residual is y. On a stream, if there is one. */
static inline void product_epilogue_check(struct product *p, fcc_buffer *stages, int m, int n, uint32_t schedule, bool in_place,
                                          void *stream)
{
    static float values[PRODUCT_N + PRODUCT_M * PRODUCT_N];
    struct fcc_gemv_all_reduce_args args;

    product_reshape(p, FCC_F32, m, n, n);
    product_poison(p);
    for (int j = 0; j < n; j++)
        values[j] = PRODUCT_BIAS;
    for (int i = 0; i < m * n; i++)
        values[n + i] = (float)((i / n + i % n) % FAKE_PERIOD);
    OK(fcc_buffer_write(stages, 0, values, (size_t)(n + m * n) * sizeof(float)));
    if (in_place)
        OK(fcc_buffer_write(p->args.y.buffer, 0, values + n, (size_t)(m * n) * sizeof(float)));
    args = p->args;
    args.schedule = schedule;
    struct fcc_epilogue epilogue = {.bias = fcc_tensor_1d(stages, 0, FCC_F32, n),
                                    .residual =
                                        in_place ? args.y : fcc_tensor_2d(stages, (uint64_t)n * sizeof(float), FCC_F32, m, n)};
    if (stream) {
        OK(fcc_gemv_all_reduce_epilogue_enqueue(p->comm, &args, &epilogue, stream, NULL));
        stream_sync(stream);
    } else {
        OK(fcc_gemv_all_reduce_epilogue(p->comm, &args, &epilogue));
    }
    p->has_epilogue = true;
    product_verify(p, schedule);
    p->has_epilogue = false;
}

/* gemm_all_reduce into the same y, of other sizes: m * (n + 3) are at most PRODUCT_M * PRODUCT_N elements, and m at most 5 PRODUCT_M. */
static inline void product_gemm_check(struct product *p, enum fcc_dtype dtype, int m, int n, uint32_t schedule)
{
    enum { DEPTH = 6 };
    struct fcc_gemm_all_reduce_args args = {.a = fcc_tensor_2d(p->args.x.buffer, 0, dtype, m, DEPTH),
                                            .b = fcc_tensor_2d(p->args.w.buffer, 0, dtype, DEPTH, n),
                                            .c = fcc_tensor_2d(p->args.y.buffer, 0, dtype, m, n),
                                            .schedule = schedule};

    args.c.stride[0] = n + 3;
    args.c.stride[1] = 1;
    p->args.y = args.c;
    product_poison(p);
    OK(fcc_gemm_all_reduce(p->comm, &args));
    product_verify(p, schedule);
}

/* gemm_reduce_scatter into the same y: each rank gets its part of the rows, every third one none if `uneven`. */
static inline void product_scatter_check(struct product *p, enum fcc_dtype dtype, int m, int n, uint32_t schedule, bool uneven)
{
    enum { DEPTH = 6, RANKS_MOST = 16 };
    const int nranks = fcc_comm_size(p->comm), rank = fcc_comm_rank(p->comm);
    int64_t rows[RANKS_MOST], left = m;

    CHECK(nranks <= RANKS_MOST);
    p->row_first = 0;
    for (int r = 0; r < nranks; r++) {
        rows[r] = !uneven ? m / nranks + (r < m % nranks) : r == nranks - 1 ? left : r % 3 == 1 ? 0 : left / 2;
        left -= rows[r];
        p->row_first += r < rank ? (int)rows[r] : 0;
    }
    struct fcc_gemm_reduce_scatter_args args = {.a = fcc_tensor_2d(p->args.x.buffer, 0, dtype, m, DEPTH),
                                                .b = fcc_tensor_2d(p->args.w.buffer, 0, dtype, DEPTH, n),
                                                .rows = uneven ? rows : NULL,
                                                .c = fcc_tensor_2d(p->args.y.buffer, 0, dtype, rows[rank], n),
                                                .schedule = schedule};
    args.c.stride[0] = n + 3;
    args.c.stride[1] = 1;
    p->args.y = args.c;
    p->rows_all = m;
    product_poison(p);
    OK(fcc_gemm_reduce_scatter(p->comm, &args));
    product_verify(p, schedule);
    p->row_first = p->rows_all = 0;
}

#endif
