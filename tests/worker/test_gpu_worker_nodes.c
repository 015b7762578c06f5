/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_nodes.c - GPUs of several nodes: real daemons and the real library, on fake GPUs. What operators give there shows
 * whether all ranks' slices have come: through send bounce buffers, the GPUs' FIFOs, the proxies, receive bounce buffers and copies.
 */
#include "tests/fake_gpu/fake_gpu_exchange.h"

enum { NODES = 2, RANKS = 4 };

/* Even, and at least 4: fused and sequential, flat and hierarchical. */
static int rounds(void)
{
    return getenv("FCC_TEST_SLOW") ? 4 : 6;
}

/* ---- what works ---- */

static void all_to_alls(fcc_comm *comm, void *stream)
{
    const int n = fcc_comm_size(comm), step = getenv("FCC_TEST_SLOW") ? n : 1; /* then nobody, and the last one */

    for (int idle = NOBODY; idle < n; idle += step) {
        struct exchange x;
        exchange_open(&x, comm, idle);
        for (uint32_t schedule = FCC_SCHEDULE_AUTO; schedule <= FCC_SCHEDULE_COMM_ONLY; schedule++)
            exchange_works(&x, schedule, NULL);
        exchange_works(&x, FCC_SCHEDULE_FUSED, stream);
        /* Tables that do not lie side by side: a slice is several areas. */
        x.embedding.out.stride[0] *= 2;
        x.embedding.out.stride[1] *= 2;
        exchange_works(&x, FCC_SCHEDULE_FUSED, NULL);
        exchange_close(&x);
    }
}

static void works_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();

    for (int round = 0; round < rounds(); round++)
        product_check(&p, (round % 2 ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED) | (round < 2 ? FCC_SCHEDULE_FLAT : 0));
    product_check(&p, FCC_SCHEDULE_AUTO);
    all_to_alls(p.comm, stream);
    for (int round = 0; round < rounds() - 2; round++)
        product_works(&p, stream);
    product_check(&p, FCC_SCHEDULE_FUSED);
    CHECK(driver->batches == 0 && driver->writes > 0); /* over nodes the words of streams are the host's */
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void ranks_work(int nodes, int nranks, uint32_t copy_us)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, nodes, GPUS, NULL);
    fake->copy_us = copy_us;
    ranks_start(&r, nranks, works_rank, NULL);
    ranks_join(&r);
    CHECK(fake->copied > 0);
    fake_stop(&d);
}

static void two_ranks(void)
{
    ranks_work(NODES, PAIR, 0);
}

static void more_ranks_than_nodes(void)
{
    ranks_work(NODES, RANKS + 1, 0);
}

static void three_nodes(void)
{
    ranks_work(3, RANKS, 0);
}

/* A kernel that did not wait for the copies would add up what is not there. */
static void slow_copies(void)
{
    ranks_work(NODES, PAIR, 300);
}

/* A program's communicators of one node and of several, by turns on one stream: they take the same slots, and the words of those of
 * one node lie in the GPU's memory. */
static void beside_one_node_rank(int rank, const struct ranks *all, void *argument)
{
    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product several = product_open(client_join(context, &all->id, all->n, rank, 0));
    struct fcc_unique_id id;
    void *stream = stream_open();

    OK(fcc_get_unique_id(context, &id));
    struct product one = product_open(client_join(context, &id, 1, 0, 0));
    for (int round = 0; round < 4 * (rounds() - 2); round++) {
        int batches = driver->batches, writes = driver->writes;
        product_enqueue(round % 2 ? &one : &several, stream, NULL);
        CHECK(driver->batches == batches + round % 2 && driver->writes == writes + (round + 1) % 2);
    }
    stream_sync(stream);
    product_works(&one, stream);
    product_works(&several, stream);
    OK(fcc_comm_error(one.comm));
    OK(fcc_comm_error(several.comm));
    stream_close(stream);
    fcc_comm_destroy(one.comm);
    fcc_comm_destroy(several.comm);
    client_end(context);
}

static void beside_one_node(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, beside_one_node_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

/* One node's engine is busy for longer than a process may be silent that has stopped. */
static void busy_rank(int rank, const struct ranks *all, void *argument)
{
    enum { BUSY_MS = 4000 };
    _Atomic int *busy = argument;
    fcc_buffer *b;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    product_check(&p, FCC_SCHEDULE_FUSED);
    ++*busy;
    await(busy, all->n);
    if (rank == 0) {
        double since = now_ms();
        fake->alloc_ms = BUSY_MS;
        OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_LOCAL, 4096, &b));
        CHECK(now_ms() - since >= BUSY_MS);
        fake->alloc_ms = 0;
    }
    product_check(&p, FCC_SCHEDULE_FUSED);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void busy(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, PAIR, busy_rank, shared_memory(sizeof(int)));
    ranks_join(&r);
    fake_stop(&d);
}

/* An adapter writes into the GPUs' memory: nothing is copied, and no kernel is started behind a flag before the GPU sees what came. */
static void written_directly(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_transport = "direct_plugin";
    fake_nodes_start(&d, NODES, GPUS, NULL);
    fake->exports = FAKE_EXPORTS_MEMORY;
    ranks_start(&r, RANKS, works_rank, NULL);
    ranks_join(&r);
    CHECK(fake->copied == 0 && fake->exported > 0 && fake->flushed > 0);
    for (int i = 0; i < NODES; i++)
        CHECK(node_logged(&d.node[i], "direct0 writes into its memory what comes from other nodes", false));
    fake_stop(&d);
}

/* Or it cannot: what comes lands, and the log says why. */
static void lands(enum fake_exports exports, const char *why)
{
    struct test_daemon d;
    struct ranks r;

    fake_transport = "direct_plugin";
    fake_nodes_start(&d, NODES, GPUS, NULL);
    fake->exports = exports;
    ranks_start(&r, PAIR, works_rank, NULL);
    ranks_join(&r);
    CHECK(fake->copied > 0 && fake->flushed == 0);
    for (int i = 0; i < NODES; i++)
        CHECK(node_logged(&d.node[i], why, false));
    fake_stop(&d);
}

static void nothing_exported(void)
{
    lands(FAKE_EXPORTS_NONE, "the test has no descriptor for adapters");
}

static void export_not_taken(void)
{
    lands(FAKE_EXPORTS_USELESS, "over direct0 lands in host memory: direct0: the descriptor cannot be mapped");
}

/* ---- communicators in another order at each rank: no kernel may hold up another node's ---- */

enum { COMMS = 3 };

static void orders_rank(int rank, const struct ranks *all, void *argument)
{
    struct ranks each = *all;
    const struct fcc_unique_id *ids = argument;
    struct product p[COMMS];
    fcc_request *requests[COMMS];

    driver_use();
    fcc_context *context = client_connect(NULL);
    for (int c = 0; c < COMMS; c++) {
        each.id = ids[c];
        p[c] = fused_open(client_join(context, &each.id, all->n, rank, 0));
    }
    for (int round = 0; round < 4 * (rounds() - 2); round++) {
        for (int i = 0; i < COMMS; i++) {
            int c = (rank % 2 ? COMMS - 1 - i : i + round) % COMMS;
            OK(fcc_gemv_all_reduce_start(p[c].comm, &p[c].args, &requests[c]));
        }
        for (int c = 0; c < COMMS; c++) {
            OK(fcc_request_wait(requests[c], -1));
            fcc_request_free(requests[c]);
        }
    }
    for (int c = 0; c < COMMS; c++) {
        product_check(&p[c], FCC_SCHEDULE_FUSED);
        fcc_comm_destroy(p[c].comm);
    }
    client_end(context);
}

static void opposite_orders(void)
{
    struct test_daemon d;
    struct ranks r;
    struct fcc_unique_id *ids = shared_memory(COMMS * sizeof(*ids));

    fake_nodes_start(&d, NODES, GPUS, NULL);
    for (int c = 0; c < COMMS; c++)
        ids[c] = id_make();
    ranks_start(&r, RANKS, orders_rank, ids);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"two_ranks", two_ranks, 60},
        {"more_ranks_than_nodes", more_ranks_than_nodes, 60},
        {"three_nodes", three_nodes, 60},
        {"slow_copies", slow_copies, 60},
        {"beside_one_node", beside_one_node, 60},
        {"busy", busy, 0},
        {"written_directly", written_directly, 60},
        {"nothing_exported", nothing_exported, 60},
        {"export_not_taken", export_not_taken, 60},
        {"opposite_orders", opposite_orders, 60},
    };

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_nodes", TESTS(tests));
}
