/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_bags.c - embedding_all_to_alls that the ranks launch themselves, with the real daemon and the real library on fake GPUs
 * (fake_gpu_bags.c): the cases of bag_cases.h in memory of the ranks' own and in graphs, whose indices change from replay to replay; in buffers, which are
 * fccd's outside of graphs; and what ranks hear if they differ, or if data is wrong. Real GPUs are in test_gpu_bags.c.
 */
#include "tests/fake_gpu/fake_gpu_products.h"
#include "tests/operators/bag_errors.h"

enum { CASES = 40 };

/* ---- results ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct bag_case c;
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    draw_state = *(const uint64_t *)argument;
    if (draw(2))
        OK(fcc_collectives_prepare(r.comm)); /* otherwise the first operator does it */
    for (int i = 0; i < test_rounds(CASES); i++) {
        bag_draw(&c, r.n);
        bag_fill(&r, &c);
        OK(bag_enqueue(&r, &c));
        for (int again = (int)draw(3); again > 0; again--)
            OK(bag_enqueue(&r, &c));
        bag_check_all(&r, &c, i);
        if (i % 7 == 3)
            OK(fcc_noop_enqueue(r.comm, r.stream, NULL));
    }
    own_close(&r, context);
}

static void random_cases(void)
{
    fake_cases_run(random_rank);
}

/* ---- graphs ---- */

static void graphs_rank(int rank, const struct ranks *all, void *argument)
{
    enum { REPLAYS = 30 };
    struct bag_case c;
    struct bag_call call;
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);
    void *graph;

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    c = bag_of(&r, FCC_F32, 33, 3, 20);
    c.depth = 9;
    bag_call_make(&r, &c, &call);
    call.args.indices.shape[0] = c.tables[0] * c.batch * c.depth; /* what any replay has */
    driver->capture_begin();
    for (int layer = 0; layer < 4; layer++)
        OK(fcc_embedding_all_to_all_enqueue(r.comm, &call.args, r.stream, NULL));
    graph = driver->capture_end();
    memset(call.table_rows, 0, sizeof(call.table_rows)); /* the call has read them */
    for (int i = 0; i < REPLAYS; i++) {
        c.depth = i % 10; /* other lengths of bags, and other indices */
        bag_fill(&r, &c);
        if (i % 4 == 3)
            OK(bag_enqueue(&r, &c));
        else
            driver->graph_launch(graph, r.stream);
        bag_check_all(&r, &c, i);
    }
    driver->graph_destroy(graph);
    own_close(&r, context);
}

static void graphs(void)
{
    fake_ranks_run(PAIR, graphs_rank, NULL);
}

/* ---- ranks that differ, and what is wrong ---- */

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);

    (void)argument;
    bag_differences(&r);
    bag_arguments(&r);
    bag_data(&r);
    own_close(&r, context);
}

static void errors(void)
{
    fake_ranks_run(PAIR, errors_rank, NULL);
}

static void errors_of_three(void)
{
    fake_ranks_run(GPUS, errors_rank, NULL);
}

/* A program that sees that it cannot call the operator tells all ranks, and why. */
static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);
    const struct bag_case c = bag_of(&r, FCC_F16, 40, 3, 64);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    bag_fill(&r, &c);
    if (rank) {
        bag_error_is(&r, bag_enqueue(&r, &c), -EINVAL, "rank 0: embedding_all_to_all: no tables");
    } else { /* whoever refuses hears nothing more of it */
        OK(fcc_refuse_enqueue(r.comm, "embedding_all_to_all", "no tables", r.stream));
        bag_works(&r, 8, 1, 32);
        bag_works(&r, 10, 2, 64);
        bag_works(&r, 200, 3, 128);
    }
    own_close(&r, context);
}

static void refused(void)
{
    fake_ranks_run(PAIR, refused_rank, NULL);
}

/* ---- in buffers: fccd stores results where they belong, so only graphs go through rings ---- */

static void buffers_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, rank, all);
    struct bag_case c = bag_of(&r, FCC_F32, 12, 2, 16);
    struct bag_call call;
    fcc_buffer *buffers[4];
    void *graph;

    (void)argument;
    c.depth = 0; /* what is in the buffers is 0 */
    for (int i = 0; i < 4; i++)
        OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_SYMMETRIC, 1 << 16, &buffers[i]));
    bag_call_make(&r, &c, &call);
    struct fcc_tensor *tensors[4] = {&call.args.tables, &call.args.indices, &call.args.offsets, &call.args.out};
    for (int i = 0; i < 4; i++) {
        tensors[i]->buffer = buffers[i];
        tensors[i]->offset = 0;
    }
    OK(fcc_collectives_prepare(r.comm));
    OK(fcc_noop(r.comm));
    const int before = fake->enqueued;
    OK(fcc_embedding_all_to_all_enqueue(r.comm, &call.args, r.stream, NULL));
    stream_sync(r.stream);
    OK(fcc_noop(r.comm));
    CHECK(fake->enqueued > before); /* fccd's */
    driver->capture_begin();
    OK(fcc_embedding_all_to_all_enqueue(r.comm, &call.args, r.stream, NULL));
    graph = driver->capture_end();
    driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    OK(fcc_comm_error(r.comm));
    driver->graph_destroy(graph);
    for (int i = 0; i < 4; i++)
        fcc_buffer_free(buffers[i]);
    bag_works(&r, 40, 3, 64);
    own_close(&r, context);
}

static void buffers(void)
{
    fake_ranks_run(PAIR, buffers_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"random_cases", random_cases, 120},       {"graphs", graphs, 60},   {"errors", errors, 120},
        {"errors_of_three", errors_of_three, 120}, {"refused", refused, 60}, {"buffers", buffers, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_bags", TESTS(tests));
}
