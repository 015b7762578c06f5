/* SPDX-License-Identifier: MIT
 *
 * gpu_chain.h - chains of gemvs or gemms by ranks on NVIDIA GPUs, each of which multiplies what the one before it has stored, so that it
 * shows if one begins too soon or sees too little.
 */
#ifndef GPU_CHAIN_H
#define GPU_CHAIN_H

#include "tests/bed/value.h"
#include "tests/gpu/gpu_client.h"

/* Each on a GPU of its own: a power of 2, so that a division by it is exact. */
static inline int ranks_of_gpus(void)
{
    return gpus >= 8 ? 8 : gpus >= 4 ? 4 : gpus >= 2 ? 2 : 1;
}

static inline uint64_t address_of(const fcc_buffer *b)
{
    return (uint64_t)(uintptr_t)fcc_buffer_data(b);
}

static inline void *zeroes(size_t bytes)
{
    void *m = calloc(1, bytes);

    CHECK(m != NULL);
    return m;
}

/* ---- whole numbers that the dtype holds ---- */

struct shape {
    enum fcc_dtype dtype;
    int m, n, steps, rounds;
    bool mixed;    /* some steps are the daemon's */
    bool repeated; /* nothing is prepared by the program: all steps are fused operators of the daemon's */
    int attends;   /* ... of which somebody attends to each so-manieth; 0: none */
    bool per_rank; /* m is for each */
    bool graphs;   /* from the third round on, steps are replayed from graphs, beside some that are not */
};

static inline size_t bytes_of(const struct shape *s, size_t elements)
{
    return elements * (s->dtype == FCC_F32 ? 4 : 2);
}

static inline double number(const struct shape *s, int rank, int row, int col, int round)
{
    return (row * 37 + col * 11 + rank * 101 + round) % (s->dtype == FCC_BF16 ? 256 : 1024);
}

static inline void numbers_fill(const struct shape *s, void *data, int rank, int rows, int round)
{
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < s->n; j++)
            value_store(s->dtype, data, (int64_t)i * s->n + j, number(s, rank, i, j, round));
}

static inline void element_check(const struct shape *s, const void *data, int64_t at, double want, int rank, int round)
{
    unsigned char expected[4];
    size_t size = bytes_of(s, 1);

    value_store(s->dtype, expected, 0, want);
    if (memcmp((const char *)data + at * (int64_t)size, expected, size) != 0)
        check_failed(__FILE__, __LINE__, "rank %d, dtype %d, %d x %d, round %d: element %lld, %lld is not %g", rank,
                     (int)s->dtype, s->m, s->n, round, (long long)(at / s->n), (long long)(at % s->n), want);
}

/* An n x n matrix that turns rows by one element, and multiplies them by `factor`. transposed: [row of the result][element]. */
static inline fcc_buffer *turn_open(fcc_comm *comm, const struct shape *s, double factor, bool transposed)
{
    size_t bytes = bytes_of(s, (size_t)s->n * (size_t)s->n);
    void *data = zeroes(bytes);
    fcc_buffer *b;

    for (int k = 0; k < s->n; k++) {
        int64_t to = (k + 1) % s->n;
        value_store(s->dtype, data, transposed ? to * s->n + k : (int64_t)k * s->n + to, factor);
    }
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, bytes, &b));
    OK(fcc_buffer_write(b, 0, data, bytes));
    free(data);
    return b;
}

/* What ranks do round by round: now one of them is late, now another. */
static inline void be_late(int rank, int i, void *stream)
{
    if ((i + rank) % 8 == 0)
        gpu_delay(stream, 200000);
}

/* ---- chains of gemvs ---- */

/* Blocks 0 to steps of m rows on each rank, of which block i + 1 is the sum over the ranks of block i, turned by one element and divided by
 * the number of ranks: all ranks begin with the same, and end with that. */
struct chain {
    const struct shape *shape;
    fcc_comm *comm;
    fcc_buffer *w, *blocks;
    fcc_prepared *prepared[FCC_PREPARED_MAX];
    void *halves[2]; /* graphs of the first half of the steps, and of the others */
};

static inline struct fcc_gemv_all_reduce_args step_args(const struct chain *c, int from, int to)
{
    const struct shape *s = c->shape;
    uint64_t block = bytes_of(s, (size_t)s->m * (size_t)s->n);

    return (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(c->blocks, (uint64_t)from * block, s->dtype, s->m, s->n),
                                             .w = fcc_tensor_2d(c->w, 0, s->dtype, s->n, s->n),
                                             .y = fcc_tensor_2d(c->blocks, (uint64_t)to * block, s->dtype, s->m, s->n)};
}

static inline void chain_open(struct chain *c, fcc_comm *comm, const struct shape *s)
{
    size_t block = bytes_of(s, (size_t)s->m * (size_t)s->n);

    *c = (struct chain){.shape = s, .comm = comm, .w = turn_open(comm, s, 1.0 / fcc_comm_size(comm), true)};
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)(s->steps + 1) * block, &c->blocks));
    for (int step = 0; step < s->steps && !s->repeated; step++) {
        struct fcc_gemv_all_reduce_args args = step_args(c, step, step + 1);
        OK(fcc_gemv_all_reduce_prepare(comm, &args, &c->prepared[step]));
    }
}

static inline void step_enqueue(const struct chain *c, int step, void *stream)
{
    struct fcc_gemv_all_reduce_args args = step_args(c, step, step + 1);

    if (c->shape->repeated) {
        fcc_request *request = NULL;
        args.schedule = FCC_SCHEDULE_FUSED;
        bool attends = c->shape->attends && step % c->shape->attends == c->shape->attends - 1;
        OK(fcc_gemv_all_reduce_enqueue(c->comm, &args, stream, attends ? &request : NULL));
        fcc_request_free(request);
        return;
    }
    args.schedule = step % 2 ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL;
    if (c->shape->mixed && step % 3 == 2)
        OK(fcc_gemv_all_reduce_enqueue(c->comm, &args, stream, NULL));
    else
        OK(fcc_prepared_enqueue(c->prepared[step], stream));
    if (c->shape->mixed && step % 7 == 6)
        OK(fcc_noop_enqueue(c->comm, stream, NULL));
}

static inline int half_begin(const struct chain *c, int half)
{
    return c->shape->steps * half / 2;
}

static inline void chain_capture(struct chain *c, void *stream)
{
    for (int half = 0; half < 2; half++) {
        CU(gpu.capture_begin(stream, half ? CUDA_CAPTURE_GLOBAL : CUDA_CAPTURE_THREAD_LOCAL));
        for (int step = half_begin(c, half); step < half_begin(c, half + 1); step++)
            OK(fcc_prepared_enqueue(c->prepared[step], stream));
        c->halves[half] = capture_finish(stream);
    }
}

/* Each half is replayed in two rounds of three. */
static inline void steps_run(const struct chain *c, int round, void *stream)
{
    int rank = fcc_comm_rank(c->comm);

    for (int step = 0; step < c->shape->steps; step++) {
        int half = step >= half_begin(c, 1);
        if (c->halves[half] && round % 3 != half) {
            CU(gpu.graph_launch(c->halves[half], stream));
            step = half_begin(c, half + 1) - 1;
        } else {
            step_enqueue(c, step, stream);
        }
        be_late(rank, step + round, stream);
    }
}

/* The stream copies the last block as soon as it may. Before that, and the round, it wipes all blocks. */
static inline void chain_round(const struct chain *c, int round, void *stream, void *first, void *last)
{
    const struct shape *s = c->shape;
    int rank = fcc_comm_rank(c->comm);
    uint64_t at = address_of(c->blocks), block = bytes_of(s, (size_t)s->m * (size_t)s->n);

    numbers_fill(s, first, 0, s->m, round);
    CU(gpu.set(at, 0xffffffff, (size_t)(s->steps + 1) * block / 4, stream)); /* not numbers */
    CU(gpu.copy_in(at, first, block, stream));
    be_late(rank, 4 * round, stream);
    steps_run(c, round, stream);
    CU(gpu.copy_out(last, at + (uint64_t)s->steps * block, block, stream));
    CU(gpu.stream_synchronize(stream));
    for (int i = 0; i < s->m; i++)
        for (int j = 0; j < s->n; j++)
            element_check(s, last, (int64_t)i * s->n + (j + s->steps) % s->n, number(s, 0, i, j, round), rank, round);
}

static inline void chain_rank(int rank, const struct ranks *all, void *argument)
{
    const struct shape *s = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    size_t block = bytes_of(s, (size_t)s->m * (size_t)s->n);
    void *first = zeroes(block), *last = zeroes(block);
    struct chain c;

    gpu_open(comm);
    chain_open(&c, comm, s);
    void *streams[] = {stream_open(CUDA_STREAM_OWN_ORDER), stream_open(CUDA_STREAM_DEFAULT), NULL};
    for (int round = 0; round < s->rounds; round++) {
        OK(fcc_noop(comm)); /* nobody wipes what others still store to */
        if (s->graphs && round == 2)
            chain_capture(&c, streams[0]);
        chain_round(&c, round, streams[s->repeated ? 0 : round % 3], first, last);
    }
    OK(fcc_noop(comm));
    OK(fcc_comm_error_wait(comm, -1));
    for (int step = 0; step < s->steps && !s->repeated; step += 2) /* the others go with the communicator */
        fcc_prepared_free(c.prepared[step]);
    for (int half = 0; half < 2 && c.halves[half]; half++)
        CU(gpu.exec_destroy(c.halves[half]));
    free(first);
    free(last);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static inline void chain_run(int n, const struct shape *s)
{
    ranks_run(n, chain_rank, (void *)(uintptr_t)s);
}

#define CHAIN(name, shape)                                                                                                     \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        chain_run(ranks_of_gpus(), &(shape));                                                                                  \
    }

/* ---- chains of gemms ---- */

/* Equal parts of each rank's rows go to each rank, turned by one element, to and fro between two buffers. After two steps each rank has its own
 * rows again. */
struct to_and_fro {
    const struct shape *shape;
    fcc_comm *comm;
    fcc_buffer *turn, *sides[2];
    int rows;
    fcc_prepared *prepared[2];
    void *both; /* a graph of one step to and one fro */
};

static inline struct fcc_gemm_all_to_all_args way_args(const struct to_and_fro *t, int way)
{
    const struct shape *s = t->shape;

    return (struct fcc_gemm_all_to_all_args){.a = fcc_tensor_2d(t->sides[way], 0, s->dtype, t->rows, s->n),
                                             .b = fcc_tensor_2d(t->turn, 0, s->dtype, s->n, s->n),
                                             .c = fcc_tensor_2d(t->sides[1 - way], 0, s->dtype, t->rows, s->n)};
}

static inline void ways_prepare(struct to_and_fro *t)
{
    int64_t received[FCC_MAX_RANKS] = {0};

    for (int way = 0; way < 2; way++) {
        struct fcc_gemm_all_to_all_args args = way_args(t, way);
        args.recv_rows = received;
        OK(fcc_gemm_all_to_all_prepare(t->comm, &args, &t->prepared[way]));
        for (int r = 0; r < fcc_comm_size(t->comm); r++)
            CHECK(received[r] == t->rows / fcc_comm_size(t->comm));
    }
}

static inline void way_enqueue(const struct to_and_fro *t, int step, void *stream)
{
    const struct shape *s = t->shape;
    struct fcc_gemm_all_to_all_args args = way_args(t, step % 2);
    fcc_request *request = NULL;
    bool attends = s->attends && step % s->attends == s->attends - 1;

    if (!s->repeated) {
        OK(fcc_prepared_enqueue(t->prepared[step % 2], stream));
        return;
    }
    OK(fcc_gemm_all_to_all_enqueue(t->comm, &args, stream, attends ? &request : NULL));
    fcc_request_free(request);
    if (step % 3 == 2)
        OK(fcc_noop_enqueue(t->comm, stream, NULL));
}

static inline void ways_capture(struct to_and_fro *t, void *stream)
{
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_GLOBAL));
    for (int way = 0; way < 2; way++)
        OK(fcc_prepared_enqueue(t->prepared[way], stream));
    t->both = capture_finish(stream);
}

static inline void ways_run(const struct to_and_fro *t, int steps, int round, void *stream)
{
    int rank = fcc_comm_rank(t->comm);

    for (int step = 0; step < steps; step++) {
        be_late(rank, step + round, stream);
        if (t->both && step % 2 == 0 && step + 1 < steps && step % 6) {
            CU(gpu.graph_launch(t->both, stream));
            step++;
        } else {
            way_enqueue(t, step, stream);
        }
    }
}

/* data is what a rank has after so many steps. */
static inline void sent_check(const fcc_comm *comm, const struct shape *s, const void *data, int rows, int steps, int round)
{
    int rank = fcc_comm_rank(comm), part = rows / fcc_comm_size(comm);

    for (int i = 0; i < rows; i++) {
        int from = steps % 2 ? i / part : rank, row = steps % 2 ? rank * part + i % part : i;
        for (int j = 0; j < s->n; j++)
            element_check(s, data, (int64_t)i * s->n + (j + steps) % s->n, number(s, from, row, j, round), rank, round);
    }
}

static inline void sent_rank(int rank, const struct ranks *all, void *argument)
{
    const struct shape *s = argument;
    fcc_context *context = client_connect(NULL);
    struct to_and_fro t = {.shape = s, .comm = client_join(context, &all->id, all->n, rank, -1, 0)};
    t.rows = s->per_rank ? s->m * all->n : s->m;
    size_t bytes = bytes_of(s, (size_t)t.rows * (size_t)s->n);
    void *data = zeroes(bytes);

    gpu_open(t.comm);
    for (int way = 0; way < 2; way++)
        OK(fcc_buffer_alloc(t.comm, FCC_BUFFER_SYMMETRIC, bytes, &t.sides[way]));
    t.turn = turn_open(t.comm, s, 1, false);
    if (!s->repeated)
        ways_prepare(&t);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    for (int round = 0; round < s->rounds; round++) {
        int steps = s->steps + round % 2;
        OK(fcc_noop(t.comm));
        numbers_fill(s, data, rank, t.rows, round);
        CU(gpu.set(address_of(t.sides[1]), 0xffffffff, bytes / 4, stream));
        CU(gpu.copy_in(address_of(t.sides[0]), data, bytes, stream));
        if (s->graphs && round == 2)
            ways_capture(&t, stream);
        ways_run(&t, steps, round, stream);
        CU(gpu.copy_out(data, address_of(t.sides[steps % 2]), bytes, stream));
        CU(gpu.stream_synchronize(stream));
        sent_check(t.comm, s, data, t.rows, steps, round);
    }
    OK(fcc_noop(t.comm));
    OK(fcc_comm_error_wait(t.comm, -1));
    fcc_prepared_free(t.prepared[0]);
    fcc_prepared_free(t.prepared[1]);
    if (t.both)
        CU(gpu.exec_destroy(t.both));
    free(data);
    fcc_comm_destroy(t.comm);
    fcc_disconnect(context);
}

static inline void sent_run(const struct shape *s)
{
    ranks_run(ranks_of_gpus(), sent_rank, (void *)(uintptr_t)s);
}

#define SENT(name, shape)                                                                                                      \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        sent_run(&(shape));                                                                                                    \
    }

/* ---- two prepared operators, each on a stream of its own, whose order events make ---- */

static const struct shape pair_shape = {.dtype = FCC_F32, .m = 1, .n = 512, .steps = 1};

/* One makes the second row of the first, the other one the first of the second. */
struct pair {
    fcc_context *context;
    fcc_comm *comm;
    struct chain chain;
    fcc_prepared *operators[2];
    void *streams[2], *events[2];
};

static inline void pair_open(struct pair *p, int rank, const struct ranks *all)
{
    p->context = client_connect(NULL);
    p->comm = client_join(p->context, &all->id, all->n, rank, -1, 0);
    gpu_open(p->comm);
    chain_open(&p->chain, p->comm, &pair_shape);
    struct fcc_gemv_all_reduce_args back = step_args(&p->chain, 1, 0);
    p->operators[0] = p->chain.prepared[0];
    OK(fcc_gemv_all_reduce_prepare(p->comm, &back, &p->operators[1]));
    for (int i = 0; i < 2; i++) {
        p->streams[i] = stream_open(CUDA_STREAM_OWN_ORDER);
        CU(gpu.event_create(&p->events[i], 0));
    }
}

/* The first row, before the first turn. */
static inline void pair_begin(const struct pair *p)
{
    float row[512];

    numbers_fill(&pair_shape, row, 0, 1, 0);
    CU(gpu.copy_in(address_of(p->chain.blocks), row, sizeof(row), p->streams[0]));
}

/* One of the two; the other one's stream waits for it. */
static inline void pair_turn(const struct pair *p, int i)
{
    OK(fcc_prepared_enqueue(p->operators[i], p->streams[i]));
    CU(gpu.event_record(p->events[i], p->streams[i]));
    CU(gpu.event_wait(p->streams[1 - i], p->events[i], 0));
}

/* What the first row must be after so many turns. */
static inline void pair_check(const struct pair *p, int turns)
{
    float row[512];

    CU(gpu.copy_out(row, address_of(p->chain.blocks), sizeof(row), p->streams[0]));
    CU(gpu.stream_synchronize(p->streams[0]));
    for (int j = 0; j < pair_shape.n; j++)
        element_check(&pair_shape, row, (j + turns) % pair_shape.n, number(&pair_shape, 0, 0, j, 0), fcc_comm_rank(p->comm), 0);
}

static inline void pair_close(const struct pair *p)
{
    fcc_prepared_free(p->operators[1]);
    fcc_comm_destroy(p->comm);
    fcc_disconnect(p->context);
}

#endif
