/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_tune.c - ranks on fake GPUs (fake_gpu.c) tune a program: all that is timed runs and is right, and what was chosen is kept.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

static const char text[] = "program t(N = 4000)\nin g: bf16[N] local\ninout p: f32[N]\nscalar lr\n"
                           "s = all_reduce(g)\nu = lr * f32(s)\np = p - u\n";

static void tune_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    char own[PATH_MAX];

    (void)argument;
    (void)snprintf(own, sizeof(own), "%s/cache%d", test_directory(), rank);
    const struct fcc_tune_options options = {.cache = own, .limit_ms = 60000};
    char kept[PATH_MAX] = "";
    for (int cached = 0; cached < 2; cached++) {
        struct fcc_tuning *t = NULL;
        fcc_program *p;
        OK(fcc_program_tune(comm, text, strlen(text), NULL, 0, &options, &t));
        CHECK(t->from_cache == cached && (cached || (t->nrows > 2 && t->rows[0].state == FCC_TUNE_TIMED)));
        for (int i = 0; i < t->nrows; i++)
            if (t->rows[i].state == FCC_TUNE_WRONG || t->rows[i].state == FCC_TUNE_FAILED)
                check_failed(__FILE__, __LINE__, "state %d: %s", t->rows[i].state, t->rows[i].schedule);
        (void)fprintf(stderr, "%s: %.3f s\n", cached ? "from the cache" : "from nothing", t->seconds);
        OK(fcc_program_open(comm, t->text, strlen(t->text), NULL, 0, &p));
        fcc_program_close(p);
        CHECK(!cached || strcmp(t->cache, "read") == 0);
        if (!cached)
            (void)snprintf(kept, sizeof(kept), "%s", t->cache);
        fcc_tuning_free(t);
    }
    CHECK(unlink(kept) == 0 && rmdir(own) == 0);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void tuned(void)
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, tune_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"tuned", tuned, 120}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_tune", TESTS(tests));
}
