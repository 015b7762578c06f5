/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_nodes_ends.c - GPUs of several nodes: real daemons and the real library, on fake GPUs. What fails on one node is
 * heard on all: by operators, and by those who join.
 */
#include "tests/fake_gpu/fake_gpu_exchange.h"

enum { NODES = 2, RANKS = 4, ROUNDS = 6 };

static int join_on(fcc_context *context, const struct ranks *all, int rank, int device, enum fcc_device_kind kind,
                   fcc_comm **out)
{
    const struct fcc_comm_options options = {.device = device, .device_kind = kind};

    return fcc_comm_init(context, &all->id, all->n, rank, &options, out);
}

/* What a kernel finds wrong, all ranks hear, wherever they are; and the next operator works. */
struct failing {
    _Atomic int quiet, ready; /* ranks that have ended all before; rounds that are made to fail */
};

static void fails_rank(int rank, const struct ranks *all, void *argument)
{
    struct failing *f = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    product_check(&p, FCC_SCHEDULE_FUSED);
    for (int round = 0; round < ROUNDS; round++) {
        f->quiet++;
        if (rank == 1) {
            await(&f->quiet, (round + 1) * all->n);
            fake->failing_rank = (uint32_t)(round % all->n);
            fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX, .at = 5, .value = 99, .most = 6};
            fake->failing = 1;
            f->ready = round + 1;
        }
        await(&f->ready, round + 1);
        FAILS(fcc_gemv_all_reduce(p.comm, &p.args), -ERANGE, "gemv_all_reduce", "99");
        product_check(&p, round % 2 ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL);
    }
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void kernels_fail(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, fails_rank, shared_memory(sizeof(struct failing)));
    ranks_join(&r);
    fake_stop(&d);
}

/* What was on its way to one GPU when an operator failed may come while another GPU's kernel, of the next operator, already stores there.
 * The two schedules lay their partial sums out differently. */
static void late_rank(int rank, const struct ranks *all, void *argument)
{
    enum { HELD = 2 }; /* a rank, and its GPU, which no other rank has */
    struct failing *f = argument;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = fused_open(client_join(context, &all->id, all->n, rank, 0));
    product_check(&p, FCC_SCHEDULE_SEQUENTIAL);
    for (int round = 0; round < ROUNDS; round++) {
        int copied = fake->copied;
        f->quiet++;
        await(&f->quiet, (2 * round + 1) * all->n);
        if (rank == HELD) {
            fake->failing_rank = HELD;
            fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX, .at = 5, .value = 99, .most = 6};
            fake->failing = 1;
            fake->hold = 1u << HELD;
        }
        f->quiet++;
        await(&f->quiet, (2 * round + 2) * all->n);
        OK(fcc_gemv_all_reduce_start(p.comm, &p.args, &request));
        if (rank == HELD) { /* the other node's kernels have put all that they have: it is being copied */
            await(&fake->copied, copied + 1);
            (void)usleep(20000);
            fake->hold = 0;
        }
        FAILS(fcc_request_wait(request, -1), -ERANGE, "gemv_all_reduce", "99");
        fcc_request_free(request);
        product_check(&p, FCC_SCHEDULE_SEQUENTIAL);
    }
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void fails_with_copies_under_way(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    fake->copy_us = 2000;
    ranks_start(&r, RANKS, late_rank, shared_memory(sizeof(struct failing)));
    ranks_join(&r);
    fake_stop(&d);
}

/* The same where one rank has only to wait for the other's, which fails, or does not end. */
static void idle_rank(int rank, const struct ranks *all, void *argument)
{
    struct failing *f = argument;
    struct exchange x;

    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, hang_limit_ms());
    exchange_open(&x, comm, 1);
    exchange_works(&x, FCC_SCHEDULE_FUSED, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        f->quiet++;
        if (rank == 0) {
            await(&f->quiet, (round + 1) * all->n);
            fake->failing_rank = 0;
            fake->failure = (struct gpu_failure){.kind = GPU_FAILURE_INDEX, .at = 5, .value = 99, .most = 6};
            fake->failing = 1;
            f->ready = round + 1;
        }
        await(&f->ready, round + 1);
        FAILS(fcc_embedding_all_to_all(comm, &x.embedding), -ERANGE, "embedding_all_to_all", "99");
        exchange_works(&x, round % 2 ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_SEQUENTIAL, NULL);
    }
    f->quiet++;
    await(&f->quiet, (ROUNDS + 1) * all->n);
    fake->hold = 1u;
    FAILS(fcc_embedding_all_to_all(comm, &x.embedding), -ETIMEDOUT, "embedding_all_to_all", "time limit");
    exchange_close(&x);
    fcc_comm_destroy(comm);
    client_end(context);
}

static void one_only_waits(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    fake->copy_us = 300;
    ranks_start(&r, PAIR, idle_rank, shared_memory(sizeof(struct failing)));
    ranks_join(&r);
    fake_stop(&d);
}

/* A rank's process dies while kernels run: those of the other node leave, too. */
struct death {
    _Atomic int ready, heard;
};
enum { VICTIM = 1 };

static void death_rank(int rank, const struct ranks *all, void *argument)
{
    struct death *death = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    product_check(&p, FCC_SCHEDULE_FUSED);
    death->ready++;
    if (rank == VICTIM)
        (void)pause();
    FAILS(fcc_gemv_all_reduce(p.comm, &p.args), -ECONNABORTED, "rank 1");
    death->heard++;
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void a_rank_dies(void)
{
    struct test_daemon d;
    struct ranks r;
    struct death *death = shared_memory(sizeof(*death));

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, death_rank, death);
    await(&death->ready, RANKS);
    (void)usleep(50000);
    CHECK(kill(r.pid[VICTIM], SIGKILL) == 0 && waitpid(r.pid[VICTIM], NULL, 0) == r.pid[VICTIM]);
    for (int i = 0; i < RANKS; i++)
        CHECK(i == VICTIM || rank_wait(&r, i) == 0);
    CHECK(death->heard == RANKS - 1);
    fake_stop(&d);
}

/* One node's kernels do not end: the time limit ends them on all. */
static void held_rank(int rank, const struct ranks *all, void *argument)
{
    struct death *death = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, hang_limit_ms()));
    product_reshape(&p, FCC_F32, 3, 700, 700); /* soon done, where nothing hangs */
    product_check(&p, FCC_SCHEDULE_FUSED);
    death->ready++;
    await(&death->ready, all->n);
    if (rank == 0)
        fake->hold = 1u << VICTIM;
    death->heard++;
    await(&death->heard, all->n);
    FAILS(fcc_gemv_all_reduce(p.comm, &p.args), -ETIMEDOUT, "gemv_all_reduce");
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void a_kernel_hangs(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, held_rank, shared_memory(sizeof(struct death)));
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- who may join ---- */

static void kinds_rank(int rank, const struct ranks *all, void *argument)
{
    static const enum fcc_device_kind kind[] = {FCC_DEVICE_CUDA, FCC_DEVICE_CPU};
    static const char *const says[][2] = {{"rank 0: device_kind: cuda", "the ranks that joined before are on cpu"},
                                          {"rank 1: device_kind: cpu", "the ranks that joined before are on cuda"}};
    _Atomic int *refused = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;
    int status = join_on(context, all, rank, -1, kind[rank], &comm);
    int second = strstr(fcc_last_error(), "rank 1: device_kind") != NULL;
    check_error(__FILE__, __LINE__, "fcc_comm_init", status, -EINVAL,
                (const char *const[]){says[second][0], says[second][1], NULL});
    *refused += 1 + 10 * second;
    OK(join_on(context, all, rank, -1, kind[0], &comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    client_end(context);
}

/* One comes with a cpu where another one is on a GPU: both hear, with who came second, that this does not go together, and come again. */
static void kinds(void)
{
    _Atomic int *refused = shared_memory(sizeof(*refused));
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, PAIR, kinds_rank, (void *)refused);
    ranks_join(&r);
    CHECK(*refused == 2 || *refused == 22); /* of the same */
    fake_stop(&d);
}

/* There is no room for what comes from other nodes: the communicator ends with that, everywhere. */
static void no_room_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *ready = argument;
    fcc_buffer *buffer;

    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    if (rank == 0) {
        fake->fail_gpu = 0;
        fake->fail = FAKE_HOST_ALLOC;
    }
    ++*ready;
    await(ready, all->n);
    int status = fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 4096, &buffer);
    check_error(__FILE__, __LINE__, "a symmetric allocation", status, -ENOMEM, (const char *const[]){"made to fail", NULL});
    fcc_comm_destroy(comm);
    client_end(context);
}

static void no_room(void)
{
    struct test_daemon d;
    struct ranks r;

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, PAIR, no_room_rank, shared_memory(sizeof(int)));
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"kernels_fail", kernels_fail, 60},
        {"fails_with_copies_under_way", fails_with_copies_under_way, 60},
        {"one_only_waits", one_only_waits, 60},
        {"a_rank_dies", a_rank_dies, 60},
        {"a_kernel_hangs", a_kernel_hangs, 60},
        {"kinds", kinds, 0},
        {"no_room", no_room, 0},
    };

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_nodes_ends", TESTS(tests));
}
