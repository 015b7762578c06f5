/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_gather.c - all_gather_gemm on GPUs of one node and of several: real daemons and the real library, on fake GPUs, which compute.
 */
#include "tests/bed/value.h"
#include "tests/fake_gpu/fake_gpu_bed.h"

enum { MOST = 600 * 70, ROUNDS = 12 };
static const uint32_t kinds[] = {FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL, FCC_SCHEDULE_AUTO};

struct gather {
    fcc_comm *comm;
    int rank, n, k, cols, rows[8], all;
    fcc_buffer *a, *b, *c, *gathered, *stages;
};

static void buffer_fill(fcc_buffer *b, unsigned seed, int n)
{
    static float values[MOST];

    CHECK(n <= MOST);
    for (int i = 0; i < n; i++)
        values[i] = (float)value(seed, i);
    OK(fcc_buffer_write(b, 0, values, (size_t)n * sizeof(float)));
}

/* Sizes of a round; large: rows of several chunks. */
static void sizes_set(struct gather *g, int round)
{
    const bool large = round % 6 == 5;

    g->k = large ? 600 : round % 4 == 3 ? 0 : 5 + round;
    g->cols = round % 5 == 4 && g->rank == 0 ? 0 : 3 + g->rank + round;
    g->all = 0;
    for (int r = 0; r < g->n; r++)
        g->all += g->rows[r] = large ? (r == 1 ? 20 : 3) : (r + round) % 4;
}

static void result_check(struct gather *g, bool has_gathered, bool has_stages)
{
    static float c[MOST], every[MOST];

    CHECK(g->all * g->cols <= MOST && g->all * g->k <= MOST);
    OK(fcc_buffer_read(g->c, 0, c, (size_t)(g->all * g->cols) * sizeof(float)));
    OK(fcc_buffer_read(g->gathered, 0, every, (size_t)(g->all * g->k) * sizeof(float)));
    for (int s = 0, row = 0; s < g->n; s++)
        for (int i = 0; i < g->rows[s]; i++, row++) {
            for (int j = 0; j < g->cols; j++) {
                double sum =
                    has_stages ? value(70u + (unsigned)g->rank, j) + value(70u + (unsigned)g->rank, g->cols + row * g->cols + j)
                               : 0;
                for (int q = 0; q < g->k; q++)
                    sum += value((unsigned)s, (int64_t)i * g->k + q) * value(40u + (unsigned)g->rank, (int64_t)q * g->cols + j);
                if ((double)c[row * g->cols + j] != sum) /* multiples of 1/64, few enough to be exact */
                    check_failed(__FILE__, __LINE__, "rank %d of %d, %d nodes, k %d: c[%d][%d] is %g, expected %g", g->rank,
                                 g->n, fake_nodes, g->k, row, j, (double)c[row * g->cols + j], sum);
            }
            for (int q = 0; q < g->k && has_gathered; q++)
                CHECK((double)every[row * g->k + q] == value((unsigned)s, (int64_t)i * g->k + q));
        }
}

static void gather_round(struct gather *g, int round, uint32_t schedule, void *stream)
{
    static float poison[MOST];
    const bool has_gathered = round % 2, has_stages = round % 3 == 0;

    sizes_set(g, round);
    buffer_fill(g->a, (unsigned)g->rank, g->rows[g->rank] * g->k);
    buffer_fill(g->b, 40u + (unsigned)g->rank, g->k * g->cols);
    buffer_fill(g->stages, 70u + (unsigned)g->rank, (1 + g->all) * g->cols);
    memset(poison, 0xff, sizeof(poison));
    OK(fcc_buffer_write(g->c, 0, poison, sizeof(poison)));
    OK(fcc_noop(g->comm));
    struct fcc_all_gather_gemm_args args = {.a = fcc_tensor_2d(g->a, 0, FCC_F32, g->rows[g->rank], g->k),
                                            .b = fcc_tensor_2d(g->b, 0, FCC_F32, g->k, g->cols),
                                            .c = fcc_tensor_2d(g->c, 0, FCC_F32, g->all, g->cols),
                                            .schedule = schedule};
    const struct fcc_epilogue e = {.bias = fcc_tensor_1d(g->stages, 0, FCC_F32, g->cols),
                                   .residual =
                                       fcc_tensor_2d(g->stages, (uint64_t)g->cols * sizeof(float), FCC_F32, g->all, g->cols)};
    if (has_gathered)
        args.gathered = fcc_tensor_2d(g->gathered, 0, FCC_F32, g->all, g->k);
    if (stream) {
        OK(fcc_all_gather_gemm_epilogue_enqueue(g->comm, &args, has_stages ? &e : NULL, stream, NULL));
        stream_sync(stream);
    } else {
        OK(fcc_all_gather_gemm_epilogue(g->comm, &args, has_stages ? &e : NULL));
    }
    if (schedule <= FCC_SCHEDULE_SEQUENTIAL)
        result_check(g, has_gathered, has_stages);
    OK(fcc_noop(g->comm)); /* nobody fills memory anew while another looks */
}

static void gather_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct gather g = {.comm = client_join(context, &all->id, all->n, rank, 0), .rank = rank, .n = all->n};
    void *stream = stream_open();

    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_LOCAL, MOST * sizeof(float), &g.a));
    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_LOCAL, MOST * sizeof(float), &g.b));
    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_SYMMETRIC, MOST * sizeof(float), &g.c));
    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_LOCAL, MOST * sizeof(float), &g.gathered));
    OK(fcc_buffer_alloc(g.comm, FCC_BUFFER_LOCAL, MOST * sizeof(float), &g.stages));
    for (int round = 0; round < ROUNDS; round++)
        for (int kind = 0; kind < 3; kind++)
            gather_round(&g, round, kinds[kind], (round + kind) % 2 ? stream : NULL);
    for (uint32_t kind = FCC_SCHEDULE_COMPUTE_ONLY; kind <= FCC_SCHEDULE_COMM_ONLY; kind++)
        gather_round(&g, 1, kind, NULL);
    gather_round(&g, 5, FCC_SCHEDULE_FUSED, NULL);
    /* e4m3 is refused on all ranks */
    struct fcc_all_gather_gemm_args args = {.a = fcc_tensor_2d(g.a, 0, FCC_F8E4M3, 2, 3),
                                            .b = fcc_tensor_2d(g.b, 0, FCC_F32, 3, 4),
                                            .c = fcc_tensor_2d(g.c, 0, FCC_F32, 2 * all->n, 4)};
    FAILS(fcc_all_gather_gemm(g.comm, &args), -EOPNOTSUPP, "factors in f8e4m3: not on GPUs yet");
    stream_close(stream);
    fcc_comm_destroy(g.comm);
    client_end(context);
}

static void gather_on(int nodes, int nranks, uint32_t copy_us)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, nodes, GPUS, NULL);
    fake->copy_us = copy_us;
    ranks_start(&r, nranks, gather_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

static void one_node(void)
{
    gather_on(1, 5, 0); /* on three GPUs */
}

static void two_nodes(void)
{
    gather_on(2, 5, 0);
}

static void three_nodes(void)
{
    gather_on(3, 7, 0);
}

/* A kernel that did not wait for copies would multiply what has not come. */
static void slow_copies(void)
{
    gather_on(2, 4, 300);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"one_node", one_node, 60},
        {"two_nodes", two_nodes, 60},
        {"three_nodes", three_nodes, 60},
        {"slow_copies", slow_copies, 60},
    };

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_gather", TESTS(tests));
}
