/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_adopt.c - brokers that are killed at any instant while ranks on fake GPUs prepare operators, repeat some until they are bound and
 * taken back, shrink their communicator, leave, and come again: the worker, its GPUs and its clients' streams go on, with right results, and
 * nothing is left. ROUNDS=n: so many kills, rather than 6.
 */
#include <stdatomic.h>

#include "tests/bed/keeper.h"
#include "tests/bed/random.h"
#include "tests/fake_gpu/fake_gpu_repeated.h"

struct scene {
    struct fcc_unique_id id;
    _Atomic long offered, taken, stop; /* communicators that there were; stop: the last one's number */
};

/* A communicator's life, once more and once more. */
static void lives_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;

    for (long i = 1; !scene->stop || i <= scene->stop; i++) {
        struct ranks here = {.n = all->n};
        struct lane l;
        fcc_comm *left;
        if (rank == 0) {
            scene->id = id_make();
            scene->offered = i;
        }
        while (scene->offered < i)
            nap();
        here.id = scene->id;
        lane_open(&l, &here, rank, 60000);
        fcc_prepared *p = prepare(&l, ONE_STEP);
        for (int n = 0; n < 20; n++)
            work_run(&l, ONE_STEP, p, l.stream);
        stream_sync(l.stream);
        fcc_prepared_free(p);
        sum_runs(&l, UNTIL + MORE);
        all_well(&l);
        OK(fcc_comm_shrink(l.comm, NULL, 0, &left));
        fcc_comm_destroy(l.comm);
        l.comm = left;
        sum_runs(&l, 20);
        all_well(&l);
        lane_close(&l);
        if (rank == all->n - 1)
            scene->taken = i;
        while (scene->taken < i)
            nap();
    }
}

static void lives(void)
{
    const int rounds = number_of("ROUNDS", test_rounds(6));
    struct scene *scene = shared_memory(sizeof(*scene));
    char directory[PATH_MAX];
    const char *const options[] = {"--gpus", "cuda", "--plugin-dir", directory, NULL};
    struct test_daemon d;
    struct ranks r;

    random_state = test_seed();
    keepers_start(1, 64);
    fake_start(&d, GPUS, NULL);
    (void)snprintf(directory, sizeof(directory), "%s/.gpus", test_directory());
    ranks_start(&r, PAIR, lives_rank, scene);
    for (int i = 0; i < rounds; i++) {
        long from = scene->taken;
        (void)usleep((unsigned)random_below(60000));
        keeper_kill(&d, 0, i % 3 ? SIGKILL : SIGTERM);
        (void)usleep((unsigned)random_below(60000));
        keeper_next(&d, 0, options);
        for (double until = now_ms() + 60e3; scene->taken < from + 1; (void)usleep(1000))
            CHECK(now_ms() < until && waitpid(r.pid[0], NULL, WNOHANG) == 0);
    }
    scene->stop = scene->taken + 2;
    ranks_join(&r);
    CHECK(fake->bound > 0);
    keepers_stop(&d);
    fake_check();
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"lives", lives, 120}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_adopt", TESTS(tests));
}
