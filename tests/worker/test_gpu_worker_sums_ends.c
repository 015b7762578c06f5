/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_sums_ends.c - gemv_all_reduce on GPUs of two nodes, hierarchical, that does not end well: a GPU takes no more kernels, a
 * kernel of one step hangs, or a rank's process dies. Real daemons and the real library, on fake GPUs. test_gpu_worker_sums.c: those that
 * end well.
 */
#include "tests/fake_gpu/fake_gpu_exchange.h"

enum { NODES = 2, RANKS = 6 };

/* A GPU does not take the last step's kernel: the others here, which wait for what it would hand on, leave; and the next operator works. */
struct not_taken {
    _Atomic int ready, set, failed;
};

static void not_taken_rank(int rank, const struct ranks *all, void *argument)
{
    struct not_taken *h = argument;
    fcc_request *request;
    int status;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    p.args.schedule = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL;
    product_check(&p, p.args.schedule);
    h->ready++;
    await(&h->ready, all->n);
    if (rank == 0) {
        fake->hold_phase = GPU_PHASE_REDUCE;
        fake->hold = 1u << 0;
        h->set = 1;
    }
    await(&h->set, 1);
    OK(fcc_gemv_all_reduce_start(p.comm, &p.args, &request));
    if (rank == 0) {
        await(&fake->holding, NODES);
        fake->fail_gpu = 1; /* whose next one is of the last step, on each node; one of them */
        fake->fail = FAKE_LAUNCH_START;
        fake->hold = 0;
    }
    status = fcc_request_wait(request, -1);
    if (status) { /* where it had ended already, it has ended well */
        check_error(__FILE__, __LINE__, "an operator", status, -EIO,
                    (const char *const[]){"gemv_all_reduce", "made to fail", NULL});
        h->failed++;
    }
    fcc_request_free(request);
    product_check(&p, p.args.schedule);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void not_taken(void)
{
    struct test_daemon d;
    struct ranks r;
    struct not_taken *h = shared_memory(sizeof(*h));

    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, not_taken_rank, h);
    ranks_join(&r);
    CHECK(h->failed == RANKS / NODES || h->failed == RANKS);
    fake_stop(&d);
}

/* A kernel of one step hangs, on one GPU of each node: the others wait for it in theirs (for its partial sums, in the first step, and for
 * what it hands on, in the last), or are between two steps. They all leave, when the time limit says so or a rank's process has died. */
struct hang {
    enum gpu_phase phase; /* that the step begins with */
    bool dies;
    _Atomic int ready, set, heard;
};
enum { VICTIM = 3 };

static void hang_rank(int rank, const struct ranks *all, void *argument)
{
    struct hang *h = argument;
    fcc_request *request;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, h->dies ? 0 : hang_limit_ms()));
    product_reshape(&p, FCC_F32, 3, 700, 700); /* soon done, where nothing hangs */
    p.args.schedule = FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL;
    product_check(&p, p.args.schedule);
    h->ready++;
    await(&h->ready, all->n);
    if (rank == 0) {
        fake->hold_phase = h->phase;
        fake->hold = 1u << 1;
        h->set = 1;
    }
    await(&h->set, 1);
    OK(fcc_gemv_all_reduce_start(p.comm, &p.args, &request));
    if (rank == VICTIM && h->dies)
        (void)pause();
    FAILS(fcc_request_wait(request, -1), h->dies ? -ECONNABORTED : -ETIMEDOUT, h->dies ? "rank 3" : "gemv_all_reduce");
    h->heard++;
    fcc_request_free(request);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void hangs(enum gpu_phase phase, bool dies)
{
    struct test_daemon d;
    struct ranks r;
    struct hang *h = shared_memory(sizeof(*h));

    h->phase = phase;
    h->dies = dies;
    fake_nodes_start(&d, NODES, GPUS, NULL);
    ranks_start(&r, RANKS, hang_rank, h);
    await(&fake->holding, NODES);
    if (dies)
        CHECK(kill(r.pid[VICTIM], SIGKILL) == 0 && waitpid(r.pid[VICTIM], NULL, 0) == r.pid[VICTIM]);
    for (int i = 0; i < RANKS; i++)
        CHECK((dies && i == VICTIM) || rank_wait(&r, i) == 0);
    CHECK(h->heard == RANKS - dies);
    await_less(&fake->holding, 0); /* the ranks are told first */
    fake_stop(&d);
}

static void send_hangs(void)
{
    hangs(GPU_PHASE_FREE, false);
}

static void reduce_hangs(void)
{
    hangs(GPU_PHASE_REDUCE, false);
}

static void forward_hangs(void)
{
    hangs(GPU_PHASE_FORWARD, false);
}

static void dies_in_send(void)
{
    hangs(GPU_PHASE_FREE, true);
}

static void dies_in_reduce(void)
{
    hangs(GPU_PHASE_REDUCE, true);
}

static void dies_in_forward(void)
{
    hangs(GPU_PHASE_FORWARD, true);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"not_taken", not_taken, 60},
        {"send_hangs", send_hangs, 60},
        {"reduce_hangs", reduce_hangs, 60},
        {"forward_hangs", forward_hangs, 60},
        {"dies_in_send", dies_in_send, 60},
        {"dies_in_reduce", dies_in_reduce, 60},
        {"dies_in_forward", dies_in_forward, 60},
    };

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_sums_ends", TESTS(tests));
}
