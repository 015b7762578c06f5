/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_limits.c - what a user and a job may have of GPUs: memory, in the driver's pages, and operators on streams. Refusals name the
 * limit on all ranks; streams go on; what is given back may be taken again, and in the end nothing is charged. With the real daemon and the real
 * library on fake GPUs.
 */
#include "tests/bed/job_status.h"
#include "tests/fake_gpu/fake_gpu_bed.h"

#define MIB (1ull << 20)
enum { MANY = 20 };

static bool fits(fcc_comm *comm, enum fcc_buffer_kind kind, uint64_t bytes, const char *key, fcc_buffer **out)
{
    int status = fcc_buffer_alloc(comm, kind, bytes, out);

    if (status)
        FAILS(status, -ENOMEM, "GPU memory: ", " bytes allowed (", key);
    return !status;
}

/* Both ranks get as many symmetric buffers, and have room again when they have freed them. */
static void memory_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_buffer *buffers[64];
    int first = 0, n = 0;

    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, PAIR, rank, 0);
    for (int round = 0; round < 3; round++) {
        for (n = 0; n < 64 && fits(comm, FCC_BUFFER_SYMMETRIC, MIB, "GPU_MEMORY_PER_JOB_MB", &buffers[n]);)
            n++;
        CHECK(n > 2 && n < 16 && (round == 0 || n == first));
        first = n;
        for (int i = 0; i < n; i++)
            fcc_buffer_free(buffers[i]);
        OK(fcc_noop(comm)); /* both have */
    }
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 33 * MIB, &buffers[0]), -ENOMEM,
          "GPU memory: ", "of the 33554432 bytes allowed (GPU_MEMORY_PER_JOB_MB)");
    fcc_comm_destroy(comm);
    client_end(context);
}

static void memory_of_a_job(void)
{
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, (const char *const[]){"--gpu-memory-per-job-mb", "32", NULL});
    struct raw *stays = job_open_raw(&d, "test", FCC_ROLE_CLIENT, &status); /* and so does the worker */
    CHECK(status == 0);
    ranks_start(&r, PAIR, memory_rank, NULL);
    ranks_join(&r);
    job_await(&d, "test", "gpu_memory_bytes", 0);
    raw_close(stays);
    fake_stop(&d);
}

/* Of a user: what another job of his has is not there for this one. An operator that finds no staging memory ends for all ranks. */
static void shared_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_buffer *buffers[64];
    _Atomic int *step = argument;
    int n = 0;

    if (rank == PAIR)
        (void)setenv("FCCD_JOB", "other", 1);
    driver_use();
    fcc_context *context = client_connect(NULL);
    if (rank == PAIR) { /* alone, in a job of its own: it takes all that is left */
        struct fcc_unique_id id;
        OK(fcc_get_unique_id(context, &id));
        await(step, PAIR);
        fcc_comm *comm = client_join(context, &id, 1, 0, 0);
        while (n < 64 && fits(comm, FCC_BUFFER_LOCAL, MIB, "GPU_MEMORY_PER_USER_MB", &buffers[n]))
            n++;
        CHECK(n > 2 && n < 64);
        (*step)++;
        await(step, 2 * PAIR + 1);
        fcc_comm_destroy(comm);
        client_end(context);
        (*step)++;
        return;
    }
    struct product p = product_open(client_join(context, &all->id, PAIR, rank, 0));
    void *stream = stream_open();
    (*step)++;
    await(step, PAIR + 1);
    FAILS(fcc_gemv_all_reduce(p.comm, &p.args), -ENOMEM, "GPU memory: ", "GPU_MEMORY_PER_USER_MB");
    (*step)++;
    await(step, 2 * PAIR + 2);
    product_works(&p, stream);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void memory_of_a_user(void)
{
    _Atomic int *step = shared_memory(sizeof(*step));
    struct fcc_unique_id id;
    struct test_daemon d;
    struct ranks r = {.n = PAIR + 1};

    fake_start(&d, GPUS, (const char *const[]){"--gpu-memory-per-user-mb", "64", NULL});
    id = id_make();
    r.id = id;
    ranks_start_some(&r, 0, PAIR + 1, shared_rank, step);
    ranks_join(&r);
    fake_stop(&d);
}

/* Operators on streams: those that are too much end with an error on both ranks, and their streams go on. */
static void streams_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *at = argument; /* at[0]: the gate of rank 1's stream; at[1]: who has enqueued; at[2]: how many have failed */
    fcc_request *requests[MANY];
    int failed = 0;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = fused_open(client_join(context, &all->id, PAIR, rank, 0));
    void *stream = stream_open();
    product_works(&p, stream);
    stream_gate(stream, &at[0]);
    for (int i = 0; i < MANY; i++)
        product_enqueue(&p, stream, &requests[i]);
    at[1]++;
    await(&at[1], PAIR);
    at[0] = 1;
    stream_sync(stream);
    for (int i = 0; i < MANY; i++) {
        int status = fcc_request_wait(requests[i], -1);
        if (status)
            FAILS(status, -EUSERS, "operators on streams: job ", " has ", " of the 6 allowed (STREAMS_PER_JOB)");
        failed += status != 0;
        fcc_request_free(requests[i]);
    }
    CHECK(failed > 0 && failed < MANY);
    at[2 + rank] = failed;
    at[1]++;
    await(&at[1], 2 * PAIR);
    CHECK(at[2] == at[3]);
    product_works(&p, stream);
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void streams(void)
{
    _Atomic int *at = shared_memory(4 * sizeof(*at));
    struct test_daemon d;
    struct ranks r;
    int status;

    fake_start(&d, GPUS, (const char *const[]){"--streams-per-job", "6", NULL});
    struct raw *stays = job_open_raw(&d, "test", FCC_ROLE_CLIENT, &status);
    CHECK(status == 0);
    ranks_start(&r, PAIR, streams_rank, at);
    ranks_join(&r);
    job_await(&d, "test", "stream_operators", 0);
    raw_close(stays);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"memory_of_a_job", memory_of_a_job, 0},
        {"memory_of_a_user", memory_of_a_user, 0},
        {"streams", streams, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_limits", TESTS(tests));
}
