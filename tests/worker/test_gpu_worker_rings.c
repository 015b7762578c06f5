/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_rings.c - collectives that the ranks launch themselves, with the real daemon and the real library on fake GPUs
 * (fake_gpu_rings.c): the cases of collective_cases.h in memory of the ranks' own and in buffers; what ranks hear if they differ;
 * several communicators. Graphs are in test_gpu_worker_rings_graphs.c, real GPUs in test_gpu_collectives.c.
 */
#include <pthread.h>

#include "tests/fake_gpu/fake_gpu_own.h"

enum { CASES = 150 };

/* ---- results ---- */

static void random_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    OK(fcc_collectives_prepare(r.comm)); /* again: nothing happens */
    int before = fake->enqueued;
    OK(fcc_noop(r.comm));
    cases_run(&r, *(const uint64_t *)argument, test_rounds(CASES));
    OK(fcc_comm_error(r.comm));
    CHECK(fake->enqueued > before); /* the noops between them, and nothing else, are the worker's */
    own_close(&r, context);
}

static void random_cases(void)
{
    fake_cases_run(random_rank);
}

/* All ranks have refused: each has returned its own reason, and hears no other rank's. */
static void refused_by_all(const struct rank *r)
{
    stream_sync(r->stream);
    OK(fcc_comm_error_wait(r->comm, -1));
}

/* The first collective takes what all need. Tensors lie in buffers, of any kind, or not, and runs alternate with the worker's operators. */
static void buffers_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    struct product p = product_open(r.comm);
    const float *y = fcc_buffer_data(p.args.y.buffer);
    fcc_buffer *freed;

    (void)argument;
    struct fcc_all_reduce_args sum = sum_args(&r, FEW);
    sum.out = fcc_tensor_1d(p.args.y.buffer, 4 * sizeof(float), FCC_F32, FEW);
    for (int i = 0; i < 20; i++) {
        sum_inputs(&r, FEW, (float)i);
        OK(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, NULL));
        stream_sync(r.stream);
        CHECK(y[4] == ranks_sum(&r, (float)i) && y[3 + FEW] == y[4]);
        product_enqueue(&p, r.stream, NULL);
    }
    sum.in = fcc_tensor_1d(p.args.x.buffer, 0, FCC_F32, PRODUCT_M * PRODUCT_K + 1);
    sum.out = fcc_tensor_1d(p.args.y.buffer, 0, FCC_F32, PRODUCT_M * PRODUCT_K + 1);
    error_is(&r, fcc_all_reduce_enqueue(r.comm, &sum, r.stream, NULL), "bytes from byte 0 on: its buffer has");
    OK(fcc_buffer_alloc(r.comm, FCC_BUFFER_LOCAL, 4096, &freed));
    sum = sum_args(&r, 1024);
    sum.in = fcc_tensor_1d(freed, 0, FCC_F32, 1024);
    fcc_buffer_free(freed);
    FAILS(fcc_all_reduce_enqueue(r.comm, &sum, r.stream, NULL), -ENOENT,
          "in: its buffer is not there, or not on this rank's GPU");
    refused_by_all(&r);
    sum_works(&r, FEW, 3);
    own_close(&r, context);
}

static void buffers(void)
{
    fake_ranks_run(PAIR, buffers_rank, NULL);
}

/* ---- ranks that differ ---- */

/* Which only this rank can see, and which its header would not say. */
static void arguments_are_wrong(const struct rank *r, bool last)
{
    struct fcc_all_reduce_args sum = sum_args(r, FEW);

    sum.in.offset += last; /* not aligned */
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "in: address 0x");
    sum = sum_args(r, FEW);
    sum.in.offset = last ? 0 : sum.in.offset;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "in: address 0: not allowed");
    sum = sum_args(r, FEW);
    sum.in.stride[0] = last ? 2 : 0;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "in: stride");
    sum = sum_args(r, FEW);
    sum.in.ndim = last ? 2 : 1;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "in: 2 dimensions: allowed is 1");
    sum = sum_args(r, FEW);
    sum.in.shape[0] = last ? -1 : FEW;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "in: shape[0] -1: allowed are 0 to");
    sum = sum_args(r, FEW);
    sum.out.offset = last ? sum.in.offset + 4 : sum.out.offset;
    error_is(r, fcc_all_reduce_enqueue(r->comm, &sum, r->stream, NULL), "in: overlaps out: allowed is the same place");
}

static void errors_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    errors_work(&r);
    arguments_are_wrong(&r, rank == all->n - 1);
    own_close(&r, context);
}

static void errors(void)
{
    fake_ranks_run(GPUS, errors_rank, NULL);
}

static void refusals_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    char reason[300];

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    FAILS(fcc_refuse_enqueue(r.comm, NULL, "why", r.stream), -EINVAL, "op: NULL");
    FAILS(fcc_refuse_enqueue(r.comm, "all_reduce", NULL, r.stream), -EINVAL, "reason: NULL");
    FAILS(fcc_refuse_enqueue(r.comm, "noop", "why", r.stream), -EINVAL, "op: \"noop\"", "collectives and products");
    FAILS(fcc_refuse_enqueue(r.comm, "rings", "why", r.stream), -EINVAL, "op: \"rings\"");
    if (rank == 0)
        OK(fcc_refuse_enqueue(r.comm, "all_reduce", "rank 0: all_reduce: tensor: on cpu: allowed are cuda ones", r.stream));
    else
        OK(sum_enqueue(&r, FEW));
    stream_sync(r.stream);
    if (rank == 0)
        OK(fcc_comm_error(r.comm));
    else
        FAILS(fcc_comm_error_wait(r.comm, -1), -EINVAL, "rank 0: all_reduce: tensor: on cpu: allowed are cuda ones");
    OK(fcc_comm_error_wait(r.comm, -1));
    sum_works(&r, FEW, 2);
    (void)snprintf(reason, sizeof(reason), "%*d", 290, rank); /* is cut */
    OK(fcc_refuse_enqueue(r.comm, "broadcast", reason, r.stream));
    refused_by_all(&r);
    OK(rank ? sum_enqueue(&r, FEW) : fcc_refuse_enqueue(r.comm, "all_reduce", "\x1b[2J\xff", r.stream));
    stream_sync(r.stream);
    if (rank) {
        FAILS(fcc_comm_error_wait(r.comm, -1), -EINVAL, "rank 0: all_reduce: ");
        CHECK(!strchr(fcc_last_error(), 0x1b)); /* it is no text for a terminal */
    }
    refused_by_all(&r);
    sum_works(&r, MANY, 2);
    own_close(&r, context);
}

static void refusals(void)
{
    fake_ranks_run(PAIR, refusals_rank, NULL);
}

/* Rank 0 hears of a run in which the ranks differed, though its refusal of the next one has taken the place of what it had found. */
static void refusal_behind_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < 10; i++) {
        OK(sum_enqueue(&r, FEW + rank));
        stream_sync(r.stream);
        OK(rank ? sum_enqueue(&r, FEW) : fcc_refuse_enqueue(r.comm, "all_reduce", "not today", r.stream));
        stream_sync(r.stream);
        FAILS(fcc_comm_error_wait(r.comm, -1), -EINVAL,
              rank ? "rank 0: all_reduce: not today" : "all_reduce: in: rank 1 has 5001 elements, rank 0's in has 5000");
        OK(fcc_comm_error_wait(r.comm, -1));
        sum_works(&r, FEW, (float)i);
    }
    own_close(&r, context);
}

static void refusal_behind_another_error(void)
{
    fake_ranks_run(PAIR, refusal_behind_rank, NULL);
}

/* ---- many at once ---- */

enum { AT_ONCE = 100, EACH = 37 };

static void many_fill(const struct rank *r, struct fcc_all_reduce_args args[AT_ONCE])
{
    int32_t *in = (int32_t *)(void *)r->images[0];

    for (int i = 0; i < AT_ONCE * EACH; i++)
        in[i] = i * (r->rank + 1);
    image_move(r, 0, false);
    for (int i = 0; i < AT_ONCE; i++)
        args[i] = (struct fcc_all_reduce_args){.in = vector_at(r, 0, (uint64_t)i * EACH * 4, FCC_I32, EACH - i % 3),
                                               .out = vector_at(r, 1, (uint64_t)i * EACH * 4, FCC_I32, EACH - i % 3)};
}

/* All of them but these two. */
static void many_check(const struct rank *r, int but, int and)
{
    const int32_t *out = (const int32_t *)(const void *)r->images[1];

    image_move(r, 1, true);
    for (int i = 0; i < AT_ONCE; i++)
        for (int k = 0; i != but && i != and&&k < EACH - i % 3; k++)
            CHECK(out[i * EACH + k] == (i * EACH + k) * r->n * (r->n + 1) / 2);
    memset(r->images[1], 0, ROOM);
    image_move(r, 1, false);
}

/* More than a context's operators in flight, while the stream has not come to the first: the host waits for none. Then a graph has them. */
static void many_rank(int rank, const struct ranks *all, void *argument)
{
    struct fcc_all_reduce_args args[AT_ONCE];
    _Atomic int open = 0;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    (void)argument;
    OK(fcc_collectives_prepare(r.comm));
    many_fill(&r, args);
    stream_gate(r.stream, &open);
    OK(fcc_all_reduce_many_enqueue(r.comm, args, AT_ONCE, r.stream));
    open = 1;
    many_check(&r, -1, -1);
    driver->capture_begin();
    OK(fcc_all_reduce_many_enqueue(r.comm, args, AT_ONCE, r.stream));
    void *graph = driver->capture_end();
    for (int i = 0; i < 3; i++) {
        driver->graph_launch(graph, r.stream);
        many_check(&r, -1, -1);
    }
    driver->graph_destroy(graph);
    OK(fcc_comm_error(r.comm));
    OK(fcc_all_reduce_many_enqueue(r.comm, NULL, 0, r.stream));
    FAILS(fcc_all_reduce_many_enqueue(r.comm, NULL, 1, r.stream), -EINVAL, "args: NULL: not allowed with n 1");
    FAILS(fcc_all_reduce_many_enqueue(r.comm, args, -1, r.stream), -EINVAL, "n: -1: allowed are 0 and more");
    args[10].in.dtype = rank ? FCC_F64 : FCC_I32; /* known to one rank, which gives the run up; the others run */
    args[50].reduction = rank ? FCC_MAX : FCC_SUM;
    int status = fcc_all_reduce_many_enqueue(r.comm, args, AT_ONCE, r.stream);
    if (rank)
        FAILS(status, -EINVAL, "rank 1: all_reduce: out: dtype i32: allowed is f64");
    else
        OK(status);
    many_check(&r, 10, 50);
    FAILS(fcc_comm_error(r.comm), -EINVAL, "all_reduce: ");
    OK(fcc_comm_error(r.comm));
    own_close(&r, context);
}

static void many(void)
{
    fake_ranks_run(PAIR, many_rank, NULL);
}

/* ---- several communicators, whose collectives no order binds ---- */

enum { COMMS = 4 };

static void comms_run(int n, void (*rank)(int, const struct ranks *, void *))
{
    struct fcc_unique_id *ids = shared_memory(COMMS * sizeof(*ids));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    for (int c = 1; c < COMMS; c++)
        ids[c] = id_make();
    ranks_start(&r, n, rank, ids);
    ranks_join(&r);
    fake_stop(&d);
}

static void several_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_unique_id *ids = argument;
    struct rank r[COMMS];
    fcc_context *context = own_open(&r[0], all, rank, 0);

    for (int c = 1; c < COMMS; c++)
        own_join(&r[c], context, &ids[c], all->n, rank, 0);
    for (int c = 0; c < COMMS; c++) {
        OK(fcc_collectives_prepare(r[c].comm));
        sum_inputs(&r[c], MANY, (float)(c + 1));
    }
    for (int i = 0; i < test_rounds(50); i++)
        for (int k = 0; k < COMMS; k++) {
            int c = rank % 2 ? COMMS - 1 - k : k;
            OK(sum_enqueue(&r[c], (i + c) % 3 ? FEW : MANY));
        }
    for (int c = COMMS - 1; c >= 0; c--) {
        sum_check(&r[c], FEW, ranks_sum(&r[c], (float)(c + 1)));
        OK(fcc_comm_error(r[c].comm));
        OK(fcc_noop(r[c].comm));
        if (c)
            own_leave(&r[c]);
    }
    own_close(&r[0], context);
}

static void several_communicators(void)
{
    comms_run(PAIR, several_rank);
}

struct binder {
    pthread_t thread;
    struct rank r;
    fcc_context *context;
    const struct ranks *all;
    const struct fcc_unique_id *id;
    int rank;
};

static void *binder_main(void *argument)
{
    struct binder *b = argument;

    own_join(&b->r, b->context, b->id, b->all->n, b->rank, 0);
    OK(fcc_collectives_prepare(b->r.comm));
    return NULL;
}

/* While a thread captures, another one joins and binds: that captures nothing and spoils nothing, and both work. */
static void binds_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_unique_id *ids = argument;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);
    struct binder b = {.context = context, .all = all, .id = &ids[1], .rank = rank};

    OK(fcc_collectives_prepare(r.comm));
    driver->capture_begin();
    OK(sum_enqueue(&r, FEW));
    CHECK(pthread_create(&b.thread, NULL, binder_main, &b) == 0);
    CHECK(pthread_join(b.thread, NULL) == 0);
    OK(sum_enqueue(&r, MANY));
    void *graph = driver->capture_end();
    for (int i = 1; i < 4; i++) {
        sum_inputs(&r, MANY, (float)i);
        driver->graph_launch(graph, r.stream);
        sum_works(&b.r, MANY, (float)i + 5);
        sum_check(&r, MANY, ranks_sum(&r, (float)i));
    }
    OK(fcc_comm_error(r.comm));
    OK(fcc_comm_error(b.r.comm));
    driver->graph_destroy(graph);
    own_leave(&b.r);
    own_close(&r, context);
}

static void binds_beside_a_capture(void)
{
    comms_run(PAIR, binds_rank);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"random_cases", random_cases, 120},
                                        {"buffers", buffers, 60},
                                        {"errors", errors, 90},
                                        {"refusals", refusals, 60},
                                        {"refusal_behind_another_error", refusal_behind_another_error, 60},
                                        {"binds_beside_a_capture", binds_beside_a_capture, 60},
                                        {"many", many, 60},
                                        {"several_communicators", several_communicators, 90}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_rings", TESTS(tests));
}
