/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_join.c - which ranks may join a communicator on GPUs, and what those are told that may not, with the real
 * daemon and the real library on fake GPUs; also that what lies on another device is no operator's argument.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

static int join(fcc_context *context, const struct ranks *all, int rank, int device, enum fcc_device_kind kind, fcc_comm **out)
{
    const struct fcc_comm_options options = {.device = device, .device_kind = kind};

    return fcc_comm_init(context, &all->id, all->n, rank, &options, out);
}

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;

    (void)argument;
    FAILS(join(context, all, 0, 0, FCC_DEVICE_HIP, &comm), -ENODEV, "rank 0", "hip: not allowed by GPUS=cuda");
    FAILS(join(context, all, 0, GPUS, FCC_DEVICE_CUDA, &comm), -ENOENT, "rank 0: device: 3: allowed are -1 to 2");
    FAILS(join(context, all, 0, -2, FCC_DEVICE_GPU, &comm), -EINVAL, "rank 0: device: -2: allowed are -1 to 2");
    FAILS(join(context, all, 0, 0, FCC_DEVICE_HIP, &comm), -ENODEV, "this job uses cuda");
    OK(join(context, all, rank, GPUS - 1, FCC_DEVICE_GPU, &comm)); /* any kind: the one that there is */
    CHECK(fcc_comm_device(comm) == GPUS - 1 && fcc_comm_device_kind(comm) == FCC_DEVICE_CUDA);
    OK(fcc_noop(comm));
    fcc_disconnect(context);
}

/* The runtime does not start, and would not in this process any more: the next connection gets another worker. */
static void not_now(void)
{
    struct test_daemon d;
    struct ranks all = {.n = 1};
    fcc_comm *comm;

    fake_start(&d, GPUS, NULL);
    fake->gpus = FAKE_NOT_NOW;
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &all.id));
    FAILS(join(context, &all, 0, 0, FCC_DEVICE_CUDA, &comm), -EAGAIN, "rank 0", "does not start", "connect again");
    fake->gpus = GPUS;
    FAILS(fcc_get_unique_id(context, &all.id), -EAGAIN, "does not start", "connect again");
    fcc_disconnect(context);
    context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &all.id));
    OK(join(context, &all, 0, 0, FCC_DEVICE_CUDA, &comm));
    OK(fcc_noop(comm));
    fcc_disconnect(context);
    daemon_stop_unclean(&d); /* the log has the error that was wanted */
    fake_check();
}

static void refused(void)
{
    fake_ranks_run(1, refused_rank, NULL);
}

/* Both want what does not go together. Both hear it, with who came second, and then agree. */
struct clash {
    enum fcc_device_kind kind[2];
    int device[2];
    int status;
    const char *says[2];
    _Atomic int refused;
};

static void clash_rank(int rank, const struct ranks *all, void *argument)
{
    struct clash *clash = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;
    int status = join(context, all, rank, clash->device[rank], clash->kind[rank], &comm);
    int second = strstr(fcc_last_error(), "rank 1: device") ? 1 : 0;

    check_error(__FILE__, __LINE__, "fcc_comm_init", status, clash->status,
                (const char *const[]){second ? "rank 1: device" : "rank 0: device", clash->says[second], NULL});
    clash->refused += 1 + 10 * second;
    OK(join(context, all, rank, clash->device[0], clash->kind[0], &comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void clash_run(const struct clash *clash)
{
    struct clash *shared = shared_memory(sizeof(*shared));
    struct test_daemon d;
    struct ranks r;

    *shared = *clash;
    fake_start(&d, GPUS, NULL);
    fake->lonely = 4;
    ranks_start(&r, 2, clash_rank, shared);
    ranks_join(&r);
    CHECK(shared->refused == 2 || shared->refused == 22); /* of the same */
    fake_stop(&d);
}

static void kinds_differ(void)
{
    clash_run(&(struct clash){
        .kind = {FCC_DEVICE_CPU, FCC_DEVICE_CUDA},
        .status = -EINVAL,
        .says = {"cpu: the ranks that joined before are on cuda", "cuda: the ranks that joined before are on cpu"}});
}

static void no_peers(void)
{
    clash_run(&(struct clash){.kind = {FCC_DEVICE_CUDA, FCC_DEVICE_CUDA},
                              .device = {1, 2},
                              .status = -EXDEV,
                              .says = {"cuda 1 and cuda 2, which rank 1 has, cannot address each other's memory",
                                       "cuda 2 and cuda 1, which rank 0 has, cannot address each other's memory"}});
}

/* Nine ranks want GPU 0, which has room for eight of a communicator. */
static void crowd_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *told = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;

    FAILS(join(context, all, rank, 0, FCC_DEVICE_CUDA, &comm), -EINVAL,
          "device: cuda 0 has 8 ranks of the communicator: allowed are 8");
    (*told)++;
    OK(join(context, all, rank, rank == GPU_MAX_RUNS, FCC_DEVICE_CUDA, &comm));
    struct product p = product_open(comm);
    OK(fcc_gemv_all_reduce(comm, &p.args));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void too_many_on_one(void)
{
    _Atomic int *told = shared_memory(sizeof(*told));

    fake_ranks_run(GPU_MAX_RUNS + 1, crowd_rank, told);
    CHECK(*told == GPU_MAX_RUNS + 1);
}

static void foreign_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    const struct fcc_unique_id *second = argument;
    fcc_comm *on_cpu, *on_gpu;

    OK(fcc_comm_init(context, second, all->n, rank, NULL, &on_cpu));
    on_gpu = client_join(context, &all->id, all->n, rank, 0);
    struct product p = product_open(on_cpu), q = product_open(on_gpu), mixed = q;
    mixed.args.w = p.args.w;
    FAILS(fcc_gemv_all_reduce(on_gpu, &mixed.args), -EINVAL, "rank 0", "w: buffer",
          "lies in the memory of cpu: the communicator's ranks are on cuda");
    mixed.args = p.args;
    mixed.args.x = q.args.x;
    FAILS(fcc_gemv_all_reduce(on_cpu, &mixed.args), -EINVAL, "rank 0", "x: buffer",
          "lies in the memory of cuda: the communicator's ranks are on cpu");
    FAILS(fcc_noop_enqueue(on_cpu, NULL, NULL), -EINVAL, "rank", "is on a cpu device");
    OK(fcc_gemv_all_reduce(on_gpu, &q.args));
    OK(fcc_gemv_all_reduce(on_cpu, &p.args));
    fcc_comm_destroy(on_cpu);
    fcc_disconnect(context);
}

static void foreign_buffers(void)
{
    struct fcc_unique_id *second = shared_memory(sizeof(*second));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    *second = id_make();
    ranks_start(&r, 2, foreign_rank, second);
    ranks_join(&r);
    fake_stop(&d);
}

/* Joining is refused, and the worker serves on. */
static void join_refused_rank(int rank, const struct ranks *all, void *argument)
{
    static const enum fake_call calls[] = {FAKE_OPEN, FAKE_HOST_REGISTER, FAKE_MEMORY_ALLOC};
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm;

    (void)argument;
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        fake->fail = calls[i];
        FAILS(join(context, all, rank, 0, FCC_DEVICE_CUDA, &comm), calls[i] == FAKE_MEMORY_ALLOC ? -ENOMEM : -EIO,
              "made to fail");
        CHECK(fake->fail == FAKE_NONE);
        await_less(&fake->registered, calls[i] == FAKE_MEMORY_ALLOC); /* the session's; the answer comes before the end */
    }
    OK(join(context, all, rank, 0, FCC_DEVICE_CUDA, &comm));
    OK(fcc_noop(comm));
    fcc_disconnect(context);
}

static void join_refused(void)
{
    fake_ranks_run(1, join_refused_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"refused", refused, 0},
        {"not_now", not_now, 0},
        {"kinds_differ", kinds_differ, 0},
        {"no_peers", no_peers, 0},
        {"too_many_on_one", too_many_on_one, 0},
        {"join_refused", join_refused, 0},
        {"foreign_buffers", foreign_buffers, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_join", TESTS(tests));
}
