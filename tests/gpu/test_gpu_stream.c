/* SPDX-License-Identifier: MIT
 *
 * test_gpu_stream.c - operators that take their place on a client's streams, through the real daemon on NVIDIA GPUs: the CPU
 * waits for nothing, the operator sees what came before it on its stream, and what follows sees its result. Once by the
 * streams' memory operations and once by functions on the CPU. Several streams, several communicators in opposite orders.
 */
#include "tests/gpu/gpu_client.h"

struct mode {
    const struct fcc_connect_options connect;
    int device; /* -1: ranks are dealt to the GPUs */
    int nranks; /* 0: as many as there are GPUs, from 2 to 4 */
    int rounds;
};

static const struct mode by_words = {.device = -1, .nranks = 2, .rounds = 3000};
static const struct mode by_functions = {
    .connect = {.no_stream_memory_operations = 1}, .device = -1, .nranks = 2, .rounds = 1000};
static const struct mode one_gpu = {.device = 0, .nranks = 4, .rounds = 1000};
static const struct mode all_gpus = {.device = -1, .rounds = 2000};
static const struct mode all_gpus_by_functions = {.connect = {.no_stream_memory_operations = 1}, .device = -1, .rounds = 500};

static int ranks_of(const struct mode *mode)
{
    int n = gpus < 2 ? 2 : gpus > 4 ? 4 : gpus;
    return mode->nranks ? mode->nranks : n;
}

static void mode_run(const struct mode *mode, void (*rank)(int, const struct ranks *, void *))
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, ranks_of(mode), rank, (void *)(uintptr_t)mode);
    ranks_join(&r);
    daemon_stop(&d);
}

static struct product client_open(int rank, const struct ranks *all, const struct mode *mode, int rows, fcc_context **context)
{
    *context = client_connect(&mode->connect);
    fcc_comm *comm = client_join(*context, &all->id, all->n, rank, mode->device, 0);
    gpu_open(comm);
    return product_open(comm, rows);
}

/* The results of `rounds` calls, for x = 1, 2, 3, ... */
static void rows_check(const struct product *p, int rounds)
{
    size_t bytes = (size_t)rounds * PRODUCT_N * sizeof(float);
    float *y = malloc(bytes);

    CHECK(y != NULL);
    OK(fcc_buffer_read(p->y, 0, y, bytes));
    for (int i = 0; i < rounds; i++)
        product_check(p, y + (size_t)i * PRODUCT_N, (float)(i + 1));
    free(y);
}

/* ---- the place on a stream ---- */

/* The stream is held while a kernel that writes the input, the operator and the copy of its result are put onto it: so all
 * calls return without what is before them, and nothing overtakes. */
static void order_on(const struct product *p, void *stream, float value)
{
    fcc_request *request;
    void *before, *after;
    int done = 0;

    gpu.words[WORD_GO] = gpu.words[WORD_BEGUN] = gpu.words[WORD_WRITTEN] = 0;
    CU(gpu.context_get(&before));
    gpu_hold(stream);
    gpu_fill(stream, p->x, PRODUCT_K, value);
    product_enqueue(p, 0, stream, &request);
    product_fetch(p, stream);
    CU(gpu.context_get(&after));
    CHECK(before == after);
    while (!gpu.words[WORD_BEGUN])
        (void)usleep(100);
    OK(fcc_request_test(request, &done));
    CHECK(!gpu.words[WORD_WRITTEN] && !done);
    gpu.words[WORD_GO] = 1;
    CU(gpu.stream_synchronize(stream));
    CHECK(gpu.words[WORD_WRITTEN]);
    product_check(p, gpu.host, value);
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
}

/* The same without a hold: the input comes 20 ms late, by the GPU's own clock. */
static void order_late(const struct product *p, void *stream, float value)
{
    double start = now_ms();

    gpu.words[WORD_WRITTEN] = 0;
    gpu_delay(stream, 20000000);
    gpu_fill(stream, p->x, PRODUCT_K, value);
    product_enqueue(p, 0, stream, NULL);
    product_fetch(p, stream);
    double enqueued = now_ms();
    CU(gpu.stream_synchronize(stream));
    product_check(p, gpu.host, value);
    printf("rank %d: enqueued after %.3f ms, done after %.3f ms\n", fcc_comm_rank(p->comm), enqueued - start, now_ms() - start);
}

static void order_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context;
    struct product p = client_open(rank, all, argument, 1, &context);
    void *streams[] = {stream_open(CUDA_STREAM_OWN_ORDER), stream_open(CUDA_STREAM_DEFAULT), NULL};
    float value = 1;

    for (int round = 0; round < 3; round++)
        for (size_t s = 0; s < sizeof(streams) / sizeof(streams[0]); s++) {
            order_on(&p, streams[s], value++);
            order_late(&p, streams[s], value++);
        }
    OK(fcc_comm_error(p.comm));
    fcc_comm_destroy(p.comm);
    fcc_disconnect(context);
}

static void order(void)
{
    mode_run(&by_words, order_rank);
}

static void order_on_one_gpu(void)
{
    mode_run(&one_gpu, order_rank);
}

static void order_by_functions(void)
{
    mode_run(&by_functions, order_rank);
}

/* ---- a rank that comes late: the others' GPUs may have begun, and store nothing at it before ---- */

enum { LATE_ROWS = 16, LATE_N = 4096, LATE_K = 512, LATE_HOST = GPU_HOST_BYTES / 2, LATE_OLD = 0x7777 };

static void halves_set(void *stream, const fcc_buffer *b, uint16_t half, size_t count)
{
    CU(gpu.set((uint64_t)(uintptr_t)fcc_buffer_data(b), (uint32_t)half << 16 | half, count / 2, stream));
}

/* f16 of 8 times 1, 2, 3 or 4; of 1, 2, 3 or 4 it is three powers of two less. */
static uint16_t eights(int n)
{
    static const uint16_t bits[] = {0x4800, 0x4c00, 0x4e00, 0x5000};

    return bits[n - 1];
}

static void late_check(const char *what, const fcc_comm *comm, const uint16_t *c, bool is_old)
{
    for (int r = 0; r < fcc_comm_size(comm); r++)
        for (int i = 0; i < LATE_ROWS * LATE_N; i++) {
            uint16_t got = c[(size_t)r * LATE_ROWS * LATE_N + i], want = is_old ? LATE_OLD : eights(r + 1);
            if (got != want)
                check_failed(__FILE__, __LINE__, "rank %d: %s: element %d from rank %d is 0x%x: expected 0x%x",
                             fcc_comm_rank(comm), what, i, r, got, want);
        }
}

static void late_rank(int rank, const struct ranks *all, void *argument)
{
    const int m = LATE_ROWS * all->n;
    const size_t c_bytes = (size_t)m * LATE_N * 2;
    fcc_context *context;
    struct product p = client_open(rank, all, argument, 1, &context);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    fcc_buffer *a, *b, *c;

    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_LOCAL, (size_t)m * LATE_K * 2, &a));
    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_LOCAL, (size_t)LATE_K * LATE_N * 2, &b));
    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_SYMMETRIC, c_bytes, &c));
    CHECK(c_bytes <= LATE_HOST);
    halves_set(stream, a, (uint16_t)(eights(rank + 1) - (3u << 10)), (size_t)m * LATE_K);
    halves_set(stream, b, 0x2400, (size_t)LATE_K * LATE_N); /* 1 / 64 */
    for (int round = 0; round < 5 * all->n; round++) {
        halves_set(stream, c, LATE_OLD, (size_t)m * LATE_N);
        if (round % all->n == rank)
            gpu_delay(stream, 5000000);
        CU(gpu.copy_out(gpu.host, (uint64_t)(uintptr_t)fcc_buffer_data(c), c_bytes, stream));
        OK(fcc_gemm_all_to_all_enqueue(p.comm,
                                       &(struct fcc_gemm_all_to_all_args){.a = fcc_tensor_2d(a, 0, FCC_F16, m, LATE_K),
                                                                          .b = fcc_tensor_2d(b, 0, FCC_F16, LATE_K, LATE_N),
                                                                          .c = fcc_tensor_2d(c, 0, FCC_F16, m, LATE_N)},
                                       stream, NULL));
        CU(gpu.copy_out((char *)gpu.host + LATE_HOST, (uint64_t)(uintptr_t)fcc_buffer_data(c), c_bytes, stream));
        product_enqueue(&p, 0, stream, NULL);
        CU(gpu.stream_synchronize(stream));
        late_check("before its stream came", p.comm, (const uint16_t *)(void *)gpu.host, true);
        late_check("the result", p.comm, (const uint16_t *)(void *)((char *)gpu.host + LATE_HOST), false);
    }
    OK(fcc_comm_error(p.comm));
    fcc_comm_destroy(p.comm);
    fcc_disconnect(context);
}

static void late(void)
{
    mode_run(&all_gpus, late_rank);
}

static void late_on_one_gpu(void)
{
    mode_run(&one_gpu, late_rank);
}

/* ---- many, one after the other ---- */

static void back_to_back_rank(int rank, const struct ranks *all, void *argument)
{
    const struct mode *mode = argument;
    fcc_context *context;
    struct product p = client_open(rank, all, mode, mode->rounds, &context);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);

    double start = now_ms();
    for (int i = 0; i < mode->rounds; i++) {
        if ((i + rank) % 16 == 0) /* now one rank is late, now another */
            gpu_delay(stream, 50000);
        gpu_increment(stream, p.x, PRODUCT_K);
        product_enqueue(&p, i, stream, NULL);
    }
    CU(gpu.stream_synchronize(stream));
    printf("rank %d: %d operators after %.1f ms\n", rank, mode->rounds, now_ms() - start);
    OK(fcc_comm_error(p.comm));
    rows_check(&p, mode->rounds);
    fcc_comm_destroy(p.comm);
    fcc_disconnect(context);
}

static void back_to_back(void)
{
    mode_run(&by_words, back_to_back_rank);
}

static void back_to_back_on_one_gpu(void)
{
    mode_run(&one_gpu, back_to_back_rank);
}

static void back_to_back_by_functions(void)
{
    mode_run(&by_functions, back_to_back_rank);
}

/* ---- two streams of one rank: its operators run in the order of the calls ---- */

/* The second operator, on a stream that is free, computes from the first one's result, whose stream is held. */
static void two_streams_round(const struct product *p, void *const streams[2], float value)
{
    struct fcc_gemv_all_reduce_args second = product_args(p, 1);
    float y[2 * PRODUCT_N], x = 0;
    fcc_request *request;
    int done = 0;

    second.x = fcc_tensor_2d(p->y, 0, FCC_F32, 1, PRODUCT_K);
    gpu.words[WORD_GO] = gpu.words[WORD_BEGUN] = 0;
    gpu_hold(streams[0]);
    gpu_fill(streams[0], p->x, PRODUCT_K, value);
    product_enqueue(p, 0, streams[0], NULL);
    OK(fcc_gemv_all_reduce_enqueue(p->comm, &second, streams[1], &request));
    while (!gpu.words[WORD_BEGUN])
        (void)usleep(100);
    OK(fcc_request_test(request, &done));
    CHECK(!done);
    gpu.words[WORD_GO] = 1;
    CU(gpu.stream_synchronize(streams[1])); /* the first one is done then, too */
    OK(fcc_buffer_read(p->y, 0, y, sizeof(y)));
    CU(gpu.stream_synchronize(streams[0]));
    product_check(p, y, value);
    for (int i = 0; i < PRODUCT_K; i++)
        x += y[i] / PRODUCT_K; /* their mean; whole numbers still */
    product_check(p, y + PRODUCT_N, x);
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
}

static void two_streams_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context;
    struct product p = client_open(rank, all, argument, 2, &context);
    void *a = stream_open(CUDA_STREAM_OWN_ORDER), *b = stream_open(CUDA_STREAM_OWN_ORDER);

    for (int round = 0; round < 40; round++)
        two_streams_round(&p, round % 2 ? (void *[]){a, b} : (void *[]){b, a}, (float)(round % 10 + 1));
    OK(fcc_comm_error(p.comm));
    fcc_comm_destroy(p.comm);
    fcc_disconnect(context);
}

static void two_streams(void)
{
    mode_run(&by_words, two_streams_rank);
}

static void two_streams_by_functions(void)
{
    mode_run(&by_functions, two_streams_rank);
}

/* ---- communicators that share the GPUs, in opposite orders ---- */

struct opposite {
    const struct mode *mode;
    struct fcc_unique_id second; /* the first one is the ranks' */
};

static void opposite_rank(int rank, const struct ranks *all, void *argument)
{
    const struct opposite *o = argument;
    int rounds = o->mode->rounds;
    fcc_context *context;
    struct product p[2];
    void *streams[2];

    p[0] = client_open(rank, all, o->mode, rounds, &context);
    p[1] = product_open(client_join(context, &o->second, all->n, rank, o->mode->device, 0), rounds);
    for (int c = 0; c < 2; c++)
        streams[c] = stream_open(CUDA_STREAM_OWN_ORDER);
    for (int i = 0; i < rounds; i++)
        for (int turn = 0; turn < 2; turn++) {
            int c = (turn + rank) % 2;
            gpu_increment(streams[c], p[c].x, PRODUCT_K);
            product_enqueue(&p[c], i, streams[c], NULL);
        }
    for (int c = 0; c < 2; c++)
        CU(gpu.stream_synchronize(streams[c]));
    for (int c = 0; c < 2; c++) {
        OK(fcc_comm_error(p[c].comm));
        rows_check(&p[c], rounds);
        fcc_comm_destroy(p[c].comm);
    }
    fcc_disconnect(context);
}

static void opposite_run(const struct mode *mode)
{
    struct opposite *o = shared_memory(sizeof(*o));
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    o->mode = mode;
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &o->second));
    fcc_disconnect(context);
    ranks_start(&r, ranks_of(mode), opposite_rank, o);
    ranks_join(&r);
    daemon_stop(&d);
}

static void opposite_orders(void)
{
    opposite_run(&all_gpus);
}

static void opposite_orders_on_one_gpu(void)
{
    opposite_run(&one_gpu);
}

static void opposite_orders_by_functions(void)
{
    opposite_run(&all_gpus_by_functions);
}

/* ---- errors ---- */

enum { ROWS = 50, DIM = 8, BATCH = 40, POOL = 5 };

/* Bags of one table per rank. */
struct bags {
    fcc_buffer *table, *indices, *offsets, *out;
    struct fcc_embedding_all_to_all_args args;
};

static void index_set(const struct bags *b, int64_t at, int64_t value)
{
    OK(fcc_buffer_write(b->indices, (uint64_t)at * sizeof(value), &value, sizeof(value)));
}

static struct bags bags_open(fcc_comm *comm)
{
    static const int64_t rows = ROWS;
    int n = fcc_comm_size(comm);
    int64_t offsets[BATCH + 1];
    struct bags b;

    for (int i = 0; i <= BATCH; i++)
        offsets[i] = i * POOL;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, ROWS * DIM * sizeof(float), &b.table));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, BATCH * POOL * sizeof(int64_t), &b.indices));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(offsets), &b.offsets));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)BATCH * (size_t)n * DIM * sizeof(float), &b.out));
    OK(fcc_buffer_write(b.offsets, 0, offsets, sizeof(offsets)));
    b.args = (struct fcc_embedding_all_to_all_args){.tables = fcc_tensor_2d(b.table, 0, FCC_F32, ROWS, DIM),
                                                    .table_rows = &rows,
                                                    .num_tables = 1,
                                                    .indices = fcc_tensor_1d(b.indices, 0, FCC_I64, BATCH * POOL),
                                                    .offsets = fcc_tensor_1d(b.offsets, 0, FCC_I64, BATCH + 1),
                                                    .batch = BATCH,
                                                    .out = fcc_tensor_3d(b.out, 0, FCC_F32, BATCH / n, n, DIM)};
    return b;
}

enum { ERROR_ROUNDS = 100 };

/* Rank 1's data is wrong, or its arguments are; nobody holds a request. All ranks' streams go on, a little before the CPU has heard of
 * the error perhaps, and all hear of it once. */
static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context;
    struct product p = client_open(rank, all, argument, 1, &context);
    struct bags b = bags_open(p.comm);
    struct fcc_gemv_all_reduce_args wrong = product_args(&p, 0);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER), *graph = NULL;
    fcc_request *request;

    if (rank == 1) {
        index_set(&b, 7 * POOL + 3, ROWS);
        wrong.x.shape[1] = PRODUCT_K + 1;
    }
    for (uint32_t schedule = FCC_SCHEDULE_FUSED; schedule <= FCC_SCHEDULE_SEQUENTIAL; schedule++) {
        b.args.schedule = schedule;
        OK(fcc_embedding_all_to_all_enqueue(p.comm, &b.args, stream, NULL));
        gpu_fill(stream, p.x, PRODUCT_K, 3);
        product_enqueue(&p, 0, stream, NULL); /* the next operator is not touched by it */
        product_fetch(&p, stream);
        CU(gpu.stream_synchronize(stream));
        product_check(&p, gpu.host, 3);
        FAILS(fcc_comm_error_wait(p.comm, -1), -ERANGE, "rank 1", "50", "table 0", "bag 7", "position 3");
        OK(fcc_comm_error(p.comm));
        for (int round = 0; round < ERROR_ROUNDS; round++) {
            OK(fcc_gemv_all_reduce_enqueue(p.comm, &wrong, stream, NULL));
            CU(gpu.stream_synchronize(stream));
            FAILS(fcc_comm_error_wait(p.comm, -1), -EINVAL, "rank 1", "x");
            OK(fcc_embedding_all_to_all_enqueue(p.comm, &b.args, stream, NULL));
            CU(gpu.stream_synchronize(stream));
            FAILS(fcc_comm_error_wait(p.comm, -1), -ERANGE, "rank 1");
            OK(fcc_comm_error_wait(p.comm, -1));
        }
        OK(fcc_embedding_all_to_all_enqueue(p.comm, &b.args, stream, &request)); /* with one, it has the error */
        FAILS(fcc_request_wait(request, -1), -ERANGE, "rank 1");
        CU(gpu.stream_synchronize(stream));
        OK(fcc_comm_error(p.comm));
        fcc_request_free(request);
    }
    CU(gpu.capture_begin(stream, CUDA_CAPTURE_THREAD_LOCAL));
    FAILS(fcc_noop_enqueue(p.comm, stream, NULL), -EOPNOTSUPP, "stream", "captured");
    CU(gpu.capture_end(stream, &graph));
    if (graph)
        CU(gpu.graph_destroy(graph));
    product_works(&p, 5);
    fcc_comm_destroy(p.comm);
    fcc_disconnect(context);
}

static void errors_without_request(void)
{
    mode_run(&by_words, errors_rank);
}

static void errors_by_functions(void)
{
    mode_run(&by_functions, errors_rank);
}

int main(void)
{
    static const struct test tests[] = {
        {"order", order, 0},
        {"order_on_one_gpu", order_on_one_gpu, 0},
        {"order_by_functions", order_by_functions, 0},
        {"late", late, 0},
        {"late_on_one_gpu", late_on_one_gpu, 0},
        {"back_to_back", back_to_back, 0},
        {"back_to_back_on_one_gpu", back_to_back_on_one_gpu, 0},
        {"back_to_back_by_functions", back_to_back_by_functions, 0},
        {"two_streams", two_streams, 0},
        {"two_streams_by_functions", two_streams_by_functions, 0},
        {"opposite_orders", opposite_orders, 0},
        {"opposite_orders_on_one_gpu", opposite_orders_on_one_gpu, 0},
        {"opposite_orders_by_functions", opposite_orders_by_functions, 0},
        {"errors_without_request", errors_without_request, 0},
        {"errors_by_functions", errors_by_functions, 0},
    };
    return gpus_found() ? tests_run("gpu_stream", TESTS(tests)) : EXIT_SUCCESS;
}
