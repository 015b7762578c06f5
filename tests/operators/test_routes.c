/* SPDX-License-Identifier: MIT
 *
 * test_routes.c - which way gemv_all_reduce goes over two nodes, on every sort of device (FCC_TEST_DEVICE): what the bits of its results say,
 * what fccctl trace says, and what is counted between the nodes. K is 1, so that a partial sum is one product, rounded once, and
 * the result is known to the last bit: a sum of the ranks in their order, or of each node's ranks and then of the nodes.
 */
#include <string.h>

#include "tests/bed/link_see.h"

enum { NODES = 2, RANKS = 5, ROWS = 8, COLS = 1501, ELEMENTS = ROWS * COLS, ROUNDS = 3 };

static struct test_daemon *seen;

/* Of x's rows and w's: no sum of their products is exact. */
static float element(int rank, int i)
{
    return (float)(1 + (7 * i + 3 * rank) % 31) / (float)(3 + (i + rank) % 11);
}

static float product_of(int rank, int row, int col)
{
    volatile float product = element(rank, row) * element(rank + 5, col);

    return product;
}

static float sum_of(bool by_nodes, int row, int col)
{
    float total = 0;

    for (int node = 0; node < (by_nodes ? NODES : 1); node++) {
        float sum = 0;
        for (int r = by_nodes ? node : 0, n = 0; r < RANKS; r += by_nodes ? NODES : 1, n++)
            sum = n ? sum + product_of(r, row, col) : product_of(r, row, col);
        total = node ? total + sum : sum;
    }
    return total;
}

/* The last operator's, as the first node tells it. */
static bool trace_says(const char *route)
{
    static char text[1 << 20];
    const char *arguments[] = {"--socket", seen->node[0].socket, "trace", "--json", NULL};
    char words[64];

    CHECK(program_run(text, sizeof(text), fccctl_binary(), arguments) == 0);
    struct json_object *o = json_tokener_parse(text);
    CHECK(o != NULL);
    (void)snprintf(words, sizeof(words), "\"route\":\"%s\"", route);
    bool says = strstr(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN), words);
    (void)json_object_put(o);
    return says;
}

struct sums {
    fcc_comm *comm;
    int rank;
    struct fcc_gemv_all_reduce_args args;
    float *y;
};

static struct sums sums_open(const struct ranks *all, int rank)
{
    struct sums s = {.comm = comm_open(all, rank, 0), .rank = rank, .y = malloc(ELEMENTS * sizeof(float))};
    float x[ROWS], w[COLS];
    fcc_buffer *buffers[3];

    CHECK(s.y != NULL);
    for (int i = 0; i < ROWS; i++)
        x[i] = element(rank, i);
    for (int j = 0; j < COLS; j++)
        w[j] = element(rank + 5, j);
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, sizeof(x), &buffers[0]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_LOCAL, sizeof(w), &buffers[1]));
    OK(fcc_buffer_alloc(s.comm, FCC_BUFFER_SYMMETRIC, ELEMENTS * sizeof(float), &buffers[2]));
    OK(fcc_buffer_write(buffers[0], 0, x, sizeof(x)));
    OK(fcc_buffer_write(buffers[1], 0, w, sizeof(w)));
    s.args = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(buffers[0], 0, FCC_F32, ROWS, 1),
                                               .w = fcc_tensor_2d(buffers[1], 0, FCC_F32, COLS, 1),
                                               .y = fcc_tensor_2d(buffers[2], 0, FCC_F32, ROWS, COLS)};
    return s;
}

/* The result has the bits of that order. */
static void sums_check(struct sums *s, uint32_t schedule, bool by_nodes)
{
    memset(s->y, 0xff, ELEMENTS * sizeof(float));
    OK(fcc_buffer_write(s->args.y.buffer, 0, s->y, ELEMENTS * sizeof(float)));
    s->args.schedule = schedule;
    OK(fcc_gemv_all_reduce(s->comm, &s->args));
    OK(fcc_buffer_read(s->args.y.buffer, 0, s->y, ELEMENTS * sizeof(float)));
    for (int i = 0; i < ELEMENTS; i++)
        if (s->y[i] != sum_of(by_nodes, i / COLS, i % COLS))
            check_failed(__FILE__, __LINE__,
                         "rank %d, schedule 0x%x: y[%d][%d] is %.9g, expected %.9g (in the other order %.9g)", s->rank,
                         schedule, i / COLS, i % COLS, (double)s->y[i], (double)sum_of(by_nodes, i / COLS, i % COLS),
                         (double)sum_of(!by_nodes, i / COLS, i % COLS));
}

/* Some of one schedule and route; what the first node sent for each. */
static double route_run(struct sums *s, uint32_t schedule, bool by_nodes)
{
    int64_t before = 0, sent;

    sums_check(s, schedule, by_nodes); /* memory and regions are there */
    OK(fcc_noop(s->comm));
    if (s->rank == 0)
        before = link_see(seen).bytes_out;
    OK(fcc_noop(s->comm));
    for (int round = 0; round < ROUNDS; round++) {
        sums_check(s, schedule, by_nodes);
        OK(fcc_noop(s->comm)); /* nobody spoils the next one's result while another still looks */
    }
    sums_check(s, schedule, by_nodes);
    if (s->rank == 0) {
        sent = link_see(seen).bytes_out - before;
        CHECK(trace_says(by_nodes ? "hierarchical" : "flat"));
        OK(fcc_noop(s->comm));
        return (double)sent / (ROUNDS + 1);
    }
    OK(fcc_noop(s->comm));
    return 0;
}

static void routes_rank(int rank, const struct ranks *all, void *argument)
{
    struct sums s = sums_open(all, rank);

    (void)argument;
    for (uint32_t kind = FCC_SCHEDULE_FUSED; kind <= FCC_SCHEDULE_SEQUENTIAL; kind++) {
        double flat = route_run(&s, kind | FCC_SCHEDULE_FLAT, false);
        double by_nodes = route_run(&s, kind | FCC_SCHEDULE_HIERARCHICAL, true);
        double by_rule = route_run(&s, kind, true); /* of this size */
        if (rank)
            continue;
        printf("%s, %s: the first node sends %.0f bytes flat, %.0f hierarchical, %.0f by the rule\n",
               test_device() == FCC_DEVICE_CPU ? "cpu" : "GPUs", kind == FCC_SCHEDULE_FUSED ? "fused" : "sequential", flat,
               by_nodes, by_rule);
        /* The first node has 3 of the ranks: partial sums of 2 owners' columns, 3 times or once; results of 3 owners', 2 times or once. */
        CHECK(by_nodes < 0.5 * flat && by_rule < 0.5 * flat);
    }
    free(s.y);
    fcc_comm_destroy(s.comm);
    fcc_disconnect(comm_context());
}

static void routes(void)
{
    struct test_daemon d;
    struct ranks r;
    int unlike = 0;

    for (int i = 0; i < ELEMENTS; i++)
        unlike += sum_of(false, i / COLS, i % COLS) != sum_of(true, i / COLS, i % COLS);
    CHECK(unlike > ELEMENTS / 10); /* or the bits would not tell */
    daemons_start(&d, NODES, NULL);
    seen = &d;
    ranks_start(&r, RANKS, routes_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {{"routes", routes, 60}};

    if (test_device_missing())
        return EXIT_SUCCESS;
    return tests_run("routes", TESTS(tests));
}
