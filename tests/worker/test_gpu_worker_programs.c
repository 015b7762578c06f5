/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_programs.c - the worker's side of programs on GPUs: the cases of program_cases.h on fake GPUs (fake_gpu.c), several ranks on a GPU
 * among them; over several nodes programs are refused on all ranks. And generated code: when it runs, and that a program's results come without it, too,
 * whatever is wrong with compiler or cache.
 */
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/program/program_cases.h"

static void on_gpus(void)
{
    struct test_daemon d;
    struct ranks r;

    without_products = true;
    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    for (int n = 1; n <= 3; n++) {
        ranks_start(&r, n, cases_rank, NULL);
        ranks_join(&r);
    }
    fake_stop(&d);
}

/* ---- generated code ---- */

static const struct program_case step = {
    .file = "client/programs/adam.fcc", .scheduled = true, .sizes = {{"N", 3001}}, .nsizes = 1, .tolerance = 1e-4};

/* One program, five times over, each of two runs. */
static void step_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    for (int round = 0; round < 5; round++)
        case_run(comm, rank, &step);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

enum { RUNS = 10 };

/* A job of two ranks, each with a GPU, whose worker then ends. */
static void job_run(void)
{
    const int closed = fake->closed;
    struct ranks r;

    fake->compiled = fake->generated = fake->interpreted = 0;
    ranks_start(&r, PAIR, step_rank, NULL);
    ranks_join(&r);
    for (int i = 0; i < 1000 && fake->closed == closed; i++)
        (void)usleep(20000);
    CHECK(fake->closed > closed);
}

static void expect_runs(int compiled, int generated, int interpreted)
{
    if (fake->compiled != compiled || fake->generated != generated || fake->interpreted != interpreted)
        check_failed(__FILE__, __LINE__, "%d compiled, %d launches of generated code, %d interpreted: expected are %d, %d, %d",
                     fake->compiled, fake->generated, fake->interpreted, compiled, generated, interpreted);
}

/* How many lines of the daemon's log have a text. */
static int log_count(const struct test_daemon *d, const char *text)
{
    char line[2048];
    FILE *f = fopen(d->node[0].log, "re");
    int n = 0;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, text) != NULL;
    (void)fclose(f);
    return n;
}

static void cache_path(char path[PATH_MAX])
{
    (void)snprintf(path, PATH_MAX, "%s/.code/%u", test_directory(), (unsigned)geteuid());
}

/* The two GPUs have different chips. All runs of the job are of generated code; a second job finds it on disk. */
static void generated(void)
{
    struct test_daemon d;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    job_run();
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(log_count(&d, "compiled a program's step") == 2 && log_count(&d, "the interpreter runs") == 0);
    job_run();
    expect_runs(0, PAIR * RUNS, 0);
    fake_stop(&d);
}

/* Without a compiler, and with one that fails, the interpreter goes on, and the log says so once for each step and GPU. */
static void interpreted(void)
{
    static const char *const missing[] = {"--gpu-compiler", "/nonexistent/libnvrtc.so", NULL},
                             *const none[] = {"--gpu-compiler", "none", NULL},
                             *const path[] = {"--gpu-compiler", FAKE_GPU_COMPILER, NULL};
    static const struct {
        const char *const *options;
        enum fake_call fails; /* on GPU 0 */
        int compiled, generated, told;
        const char *text;
    } ways[] = {
        {missing, FAKE_NONE, 0, 0, 2,
         "GPU 0: the interpreter runs a program's step: no compiler for GPUs (fake): /nonexistent/libnvrtc.so"},
        {none, FAKE_NONE, 0, 0, 0, NULL},
        {path, FAKE_NONE, 2, PAIR * RUNS, 0, NULL},
        {NULL, FAKE_COMPILER, 1, RUNS, 1,
         "the interpreter runs a program's step: cuda GPU 0: finding a compiler: made to fail"},
        {NULL, FAKE_CODE_COMPILE, 1, RUNS, 1, "the interpreter runs a program's step: cuda GPU 0: compiling: made to fail"},
        {NULL, FAKE_CODE_LOAD, 2, RUNS, 1, "the interpreter runs a program's step: cuda GPU 0: loading a kernel: made to fail"},
        {NULL, FAKE_LAUNCH_CODE, 2, PAIR * RUNS - 1, 1,
         "the interpreter runs a program's step: cuda GPU 0: its kernel: made to fail"},
    };
    char path_of_cache[PATH_MAX], command[PATH_MAX + 32];

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    cache_path(path_of_cache);
    (void)snprintf(command, sizeof(command), "rm -rf '%s' '%s'/.gpus '%s'/*.log", path_of_cache, test_directory(),
                   test_directory());
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct test_daemon d;
        CHECK(system(command) == 0);
        fake_start(&d, GPUS, ways[i].options);
        fake->fail = ways[i].fails;
        job_run();
        expect_runs(ways[i].compiled, ways[i].generated, PAIR * RUNS - ways[i].generated);
        CHECK(!ways[i].text || log_count(&d, ways[i].text) == 1);
        if (log_count(&d, "the interpreter runs") != ways[i].told)
            check_failed(__FILE__, __LINE__, "way %zu: %d lines of the interpreter", i, log_count(&d, "the interpreter runs"));
        fake_stop(&d);
    }
}

/* Overwrites each file of the cache. Returns how many there are. */
static int cache_damage(const char *path, bool shorter)
{
    char name[2 * PATH_MAX];
    DIR *directory = opendir(path);
    int n = 0;

    CHECK(directory != NULL);
    for (struct dirent *one; (one = readdir(directory));) {
        if (one->d_name[0] == '.')
            continue;
        (void)snprintf(name, sizeof(name), "%s/%s", path, one->d_name);
        const int fd = open(name, O_RDWR | O_CLOEXEC);
        struct stat s;
        CHECK(fd >= 0 && fstat(fd, &s) == 0 && s.st_size > 200 && (s.st_mode & 0777) == 0600);
        CHECK(shorter ? ftruncate(fd, s.st_size - 1) == 0 : pwrite(fd, "?", 1, s.st_size - 1) == 1);
        (void)close(fd);
        n++;
    }
    (void)closedir(directory);
    return n;
}

/* A damaged cache is said once in a job, and written anew; one that others may write is not used; nor is one that is not there, or full. */
static void cached(void)
{
    struct test_daemon d;
    char path[PATH_MAX];
    struct stat s;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    cache_path(path);
    fake_start(&d, GPUS, NULL);
    job_run();
    CHECK(stat(path, &s) == 0 && (s.st_mode & 07777) == 0700);
    for (int way = 0; way < 2; way++) {
        CHECK(cache_damage(path, way == 1) == 2);
        job_run();
        expect_runs(2, PAIR * RUNS, 0);
        CHECK(log_count(&d, "damaged: its length or checksum is another one") == way + 1);
        job_run();
        expect_runs(0, PAIR * RUNS, 0);
    }
    CHECK(chmod(path, 0770) == 0);
    job_run();
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(log_count(&d, "generated code is not taken from disk") == 3 && log_count(&d, "allowed is a directory of user") == 1);
    fake_stop(&d);
}

static void no_cache(void)
{
    static const char *const nowhere[] = {"--code-cache", "/proc/nothing", NULL};
    struct test_daemon d;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, nowhere);
    for (int job = 1; job <= 2; job++) {
        job_run();
        expect_runs(2, PAIR * RUNS, 0);
        CHECK(log_count(&d, "generated code is not kept on disk: /proc/nothing/") == job);
    }
    fake_stop(&d);
}

static int cache_files(const char *path)
{
    DIR *directory = opendir(path);
    int n = 0;

    CHECK(directory != NULL);
    for (struct dirent *one; (one = readdir(directory));)
        n += strcmp(one->d_name, ".") != 0 && strcmp(one->d_name, "..") != 0;
    (void)closedir(directory);
    return n;
}

static bool directory_make(char path[PATH_MAX])
{
    char *last = strrchr(path, '/');

    *last = '\0';
    CHECK(mkdir(path, 0700) == 0);
    *last = '/';
    return mkdir(path, 0700) == 0;
}

/* A file system of one page, which is taken: nothing that was written beside is left there. */
static void full_disk(void)
{
    char path[PATH_MAX], name[PATH_MAX + 8];
    static const char page[4096];
    struct test_daemon d;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    cache_path(path);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !directory_make(path) ||
        mount("none", path, "tmpfs", 0, "size=4k,mode=0700")) {
        test_skip("no file system can be mounted here");
        return;
    }
    (void)snprintf(name, sizeof(name), "%s/.full", path);
    const int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && write(fd, page, sizeof(page)) == (ssize_t)sizeof(page));
    (void)close(fd);
    fake_start(&d, GPUS, NULL);
    job_run();
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(log_count(&d, "generated code is not kept on disk") == 1 && log_count(&d, "No space left on device") == 1);
    fake_stop(&d);
    CHECK(cache_files(path) == 1 && umount(path) == 0);
}

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    static const char text[] = "program twice(N = 5)\nin x: f32[N]\nout y: f32[N]\ny = x * 2\n";
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_program *p = NULL;

    (void)argument;
    CHECK(fcc_program_open(comm, text, strlen(text), NULL, 0, &p) == -EOPNOTSUPP && !p);
    if (!strstr(fcc_last_error(), "GPUs of several nodes"))
        check_failed(__FILE__, __LINE__, "%s", fcc_last_error());
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void refused_over_nodes(void)
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_nodes_start(&d, 2, GPUS, NULL);
    ranks_start(&r, 2, refused_rank, NULL);
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"on_gpus", on_gpus, 120},
                                        {"generated", generated, 60},
                                        {"interpreted", interpreted, 120},
                                        {"cached", cached, 120},
                                        {"no_cache", no_cache, 60},
                                        {"full_disk", full_disk, 60},
                                        {"refused_over_nodes", refused_over_nodes, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_programs", TESTS(tests));
}
