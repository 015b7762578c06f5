/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_plugin.c - the code that a rank's process loads to launch prepared operators: it comes from where the library or the user says,
 * whatever file the worker names. Where it cannot be had, all ranks hear why, and the communicator goes on.
 */
#include <limits.h>

#include "tests/fake_gpu/fake_gpu_runs.h"

#define VARIABLE "FCC_PLUGIN_DIR"

struct scene {
    const char
        *variable;    /* FCC_PLUGIN_DIR of rank 1, within the test's directory if it begins with a slash; NULL: it is not set */
    int status;       /* 0: rank 1 prepares with what it loads */
    const char *says; /* the error, on both ranks */
    const char *loaded, *not_loaded; /* what rank 1 has mapped afterwards, and what it has not; or NULL */
    _Atomic int step;
};

static bool is_mapped(const char *part)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[2 * PATH_MAX];
    bool found = false;

    CHECK(maps);
    while (!found && fgets(line, sizeof(line), maps))
        found = strstr(line, part);
    (void)fclose(maps);
    return found;
}

static void plugin_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *scene = argument;
    char path[2 * PATH_MAX];
    int step = 0;
    struct lane l;
    fcc_prepared *p;

    if (rank == 1 && scene->variable) {
        (void)snprintf(path, sizeof(path), "%s%s", scene->variable[0] == '/' ? test_directory() : "", scene->variable);
        CHECK(setenv(VARIABLE, path, 1) == 0);
    } else if (rank == 1) {
        CHECK(unsetenv(VARIABLE) == 0 && chdir("/") == 0);
    }
    lane_open(&l, all, rank, 0);
    if (scene->status)
        FAILS(work_prepare(&l, ONE_STEP, &p), scene->status, "rank 1: gemv_all_reduce_prepare: ", scene->says);
    else
        p = prepare(&l, ONE_STEP);
    if (rank == 1 && scene->loaded)
        CHECK(is_mapped(scene->loaded));
    if (rank == 1 && scene->not_loaded)
        CHECK(!is_mapped(scene->not_loaded));
    step_meet(&scene->step, all->n, &step);
    CHECK(unsetenv(VARIABLE) == 0); /* what is loaded stays; what was refused may be tried again */
    (void)snprintf(path, sizeof(path), "%s/.gpus", test_directory());
    CHECK(setenv(VARIABLE, path, 1) == 0);
    if (!scene->status)
        fcc_prepared_free(p);
    lane_works(&l);
    lane_close(&l);
}

static void plugin_run(struct scene what)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    char path[PATH_MAX];
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    (void)snprintf(path, sizeof(path), "%s/.own", test_directory());
    CHECK(symlink(".gpus", path) == 0); /* the fake looks beside itself for what all of them share */
    (void)snprintf(path, sizeof(path), "%s/.empty", test_directory());
    CHECK(mkdir(path, 0755) == 0);
    *scene = what;
    ranks_start(&r, PAIR, plugin_rank, scene);
    ranks_join(&r);
    fake_stop(&d);
    (void)rmdir(path);
    (void)snprintf(path, sizeof(path), "%s/.own", test_directory());
    (void)unlink(path);
}

/* The worker names .gpus/cuda.so; the rank is told another place. */
static void as_the_user_says(void)
{
    plugin_run((struct scene){.variable = "/.own", .loaded = "fake_plugin/cuda.so"});
}

/* The worker's file is there, and is one that would run. */
static void not_as_the_worker_says(void)
{
    plugin_run((struct scene){.variable = "/.empty",
                              .status = -ENODEV,
                              .says = "/.empty/cuda.so: cannot open shared object file",
                              .not_loaded = "fake_plugin/cuda.so"});
}

static void relative(void)
{
    plugin_run((struct scene){.variable = "lib/fccd",
                              .status = -EINVAL,
                              .says = VARIABLE ": \"lib/fccd\": allowed is an absolute path",
                              .not_loaded = "fake_plugin/cuda.so"});
}

/* Where the library itself lies, also in a process that is somewhere else by now. A plug-in for real GPUs may lie there, which has none here. */
static void beside_the_library(void)
{
    char self[PATH_MAX], expected[2 * PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    CHECK(n > 0);
    self[n] = '\0';
    for (int i = 0; i < 2; i++)
        *strrchr(self, '/') = '\0';
    (void)snprintf(expected, sizeof(expected), "%s/lib/fccd/cuda.so", self);
    if (access(expected, F_OK) == 0)
        return;
    char *says = shared_memory(sizeof(expected));
    memcpy(says, expected, sizeof(expected));
    plugin_run((struct scene){.status = -ENODEV, .says = says, .not_loaded = "fake_plugin/cuda.so"});
}

/* When the communicator begins, the file is not there for the ranks, whose worker has it loaded; later it is. */
static void gone_rank(int rank, const struct ranks *all, void *argument)
{
    char there[PATH_MAX], nowhere[PATH_MAX];
    struct scene *scene = argument;
    int step = 0;
    struct lane l;
    fcc_prepared *p;

    (void)snprintf(there, sizeof(there), "%s/.gpus", test_directory());
    (void)snprintf(nowhere, sizeof(nowhere), "%s/.nowhere", test_directory());
    CHECK(setenv("FCC_PLUGIN_DIR", nowhere, 1) == 0);
    lane_open(&l, all, rank, 0);
    FAILS(work_prepare(&l, ONE_STEP, &p), -ENODEV, "cuda.so");
    step_meet(&scene->step, all->n, &step);
    CHECK(setenv("FCC_PLUGIN_DIR", there, 1) == 0);
    lane_works(&l);
    lane_close(&l);
}

static void file_is_gone(void)
{
    struct scene *scene = shared_memory(sizeof(*scene));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, gone_rank, scene);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"as_the_user_says", as_the_user_says, 0},
        {"not_as_the_worker_says", not_as_the_worker_says, 0},
        {"relative", relative, 0},
        {"beside_the_library", beside_the_library, 0},
        {"file_is_gone", file_is_gone, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_plugin", TESTS(tests));
}
