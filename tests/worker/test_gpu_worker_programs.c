/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_programs.c - the worker's side of programs on GPUs: the cases of program_cases.h on fake GPUs (fake_gpu.c), several ranks on a GPU
 * among them; over several nodes programs are refused on all ranks. And generated code: when it runs, and that a program's results come without it, too,
 * whatever is wrong with compiler or cache.
 */
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

#include "tests/bed/raw.h"
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

enum { ROUNDS = 5, RUNS = 2 * ROUNDS, TRIES = 2000 };

#define GENERATED "\"code\":\"generated\""
#define INTERPRETED "\"code\":\"interpreted: "

/* What rank 0 says to the others: how many rounds it has seen, and whether the program is to be run once more before the runs that count. */
static _Atomic int *seen;

/* Whether a trace says of the last run what is to come, and nothing of kernels that are still to come. */
static bool is_settled(const char *says)
{
    static char trace[1 << 20];

    CHECK(program_run(trace, sizeof(trace), fccctl_binary(), (const char *const[]){"trace", "--json", NULL}) == 0);
    return strstr(trace, says) && !strstr(trace, "is being made") && !strstr(trace, "other operators run now");
}

/* Runs the program until what runs it is settled. */
static void settle(fcc_comm *comm, int rank, const char *says)
{
    for (int round = 1; round <= TRIES; round++) {
        case_run(comm, rank, &step);
        if (rank == 0)
            atomic_store(seen, is_settled(says) ? -round : round);
        OK(fcc_noop(comm));
        if (atomic_load(seen) < 0)
            return;
        OK(fcc_noop(comm)); /* before rank 0 says it of the next round */
    }
    check_failed(__FILE__, __LINE__, "\"%s\" is in no trace", says);
}

/* One program until it is settled who runs it; then five times over, each of two runs; and what a trace says of the last one. */
static void step_rank(int rank, const struct ranks *all, void *says)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    settle(comm, rank, says);
    if (rank == 0)
        fake->generated = fake->interpreted = 0;
    OK(fcc_noop(comm));
    for (int round = 0; round < ROUNDS; round++)
        case_run(comm, rank, &step);
    CHECK(rank || is_settled(says));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void closed_await(int closed)
{
    for (int i = 0; i < 1000 && fake->closed == closed; i++)
        (void)usleep(20000);
    CHECK(fake->closed > closed);
}

/* A job of two ranks, each with a GPU, whose worker then ends. */
static void job_run(const char *says)
{
    const int closed = fake->closed;
    struct ranks r;

    seen = seen ? seen : shared_memory(sizeof(*seen));
    fake->compiled = 0;
    ranks_start(&r, PAIR, step_rank, (void *)(uintptr_t)says);
    ranks_join(&r);
    closed_await(closed);
}

static void expect_runs(int compiled, int generated, int interpreted)
{
    if (fake->compiled != compiled || fake->generated != generated || fake->interpreted != interpreted)
        check_failed(__FILE__, __LINE__, "%d compiled, %d launches of generated code, %d interpreted: expected are %d, %d, %d",
                     fake->compiled, fake->generated, fake->interpreted, compiled, generated, interpreted);
}

static void cache_path(char path[PATH_MAX])
{
    (void)snprintf(path, PATH_MAX, "%s/.code/%u", test_directory(), (unsigned)geteuid());
}

/* The two GPUs have different chips. Once it is made all runs of the job are of generated code; a second job finds it on disk. */
static void generated(void)
{
    struct test_daemon d;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    job_run(GENERATED);
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(daemon_log_count(&d, "compiled a program's step") == 2 && daemon_log_count(&d, "the interpreter runs") == 0);
    job_run(GENERATED);
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
        {NULL, FAKE_LAUNCH_CODE, 2, PAIR * RUNS, 1,
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
        job_run(ways[i].generated == PAIR * RUNS ? GENERATED : INTERPRETED);
        expect_runs(ways[i].compiled, ways[i].generated, PAIR * RUNS - ways[i].generated);
        CHECK(!ways[i].text || daemon_log_count(&d, ways[i].text) == 1);
        if (daemon_log_count(&d, "the interpreter runs") != ways[i].told)
            check_failed(__FILE__, __LINE__, "way %zu: %d lines of the interpreter", i,
                         daemon_log_count(&d, "the interpreter runs"));
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
    job_run(GENERATED);
    CHECK(stat(path, &s) == 0 && (s.st_mode & 07777) == 0700);
    for (int way = 0; way < 2; way++) {
        CHECK(cache_damage(path, way == 1) == 2);
        job_run(GENERATED);
        expect_runs(2, PAIR * RUNS, 0);
        CHECK(daemon_log_count(&d, "damaged: its length or checksum is another one") == way + 1);
        job_run(GENERATED);
        expect_runs(0, PAIR * RUNS, 0);
    }
    CHECK(chmod(path, 0770) == 0);
    job_run(GENERATED);
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(daemon_log_count(&d, "generated code is not taken from disk") == 3 &&
          daemon_log_count(&d, "allowed is a directory of user") == 1);
    fake_stop(&d);
}

static void no_cache(void)
{
    static const char *const nowhere[] = {"--code-cache", "/proc/nothing", NULL};
    struct test_daemon d;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, nowhere);
    for (int job = 1; job <= 2; job++) {
        job_run(GENERATED);
        expect_runs(2, PAIR * RUNS, 0);
        CHECK(daemon_log_count(&d, "generated code is not kept on disk: /proc/nothing/") == job);
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
    job_run(GENERATED);
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(daemon_log_count(&d, "generated code is not kept on disk") == 1 &&
          daemon_log_count(&d, "No space left on device") == 1);
    fake_stop(&d);
    CHECK(cache_files(path) == 1 && umount(path) == 0);
}

/* ---- while a kernel is compiled ---- */

enum { COMPILING_MOST = 1000, ASKING = 1 << 20 /* more than there are rounds */ };

static void compiling_await(void)
{
    for (int i = 0; i < COMPILING_MOST && !fake->compiling; i++)
        (void)usleep(20000);
    CHECK(fake->compiling > 0);
}

/* What the worker answers a tuner, of a communicator of one rank. */
static int kernels_ask(struct raw *r, uint32_t comm)
{
    const struct fcc_prepared_msg m = {
        .msg = {.length = sizeof(m), .type = FCC_MSG_PREPARED, .id = 7}, .comm = comm, .what = FCC_PREPARED_CODE};

    raw_send(r, &m, sizeof(m), NULL, 0);
    return raw_receive(r)->status;
}

/* Of the ranks' job. */
static struct raw *asking_session(const struct test_daemon *d)
{
    struct raw *r = raw_open(d);
    struct fcc_hello h = hello_make();

    (void)snprintf(h.job, sizeof(h.job), "test");
    raw_send(r, &h, sizeof(h), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    return r;
}

static uint32_t gpu_comm(struct raw *r)
{
    const struct fcc_comm_init_msg m = {.msg = {.length = sizeof(m), .type = FCC_MSG_COMM_INIT, .id = 2},
                                        .unique_id.bytes = {9},
                                        .nranks = 1,
                                        .device = -1,
                                        .device_kind = FCC_DEVICE_CUDA};

    raw_send(r, &m, sizeof(m), NULL, 0);
    const struct fcc_comm_init_reply *reply = (const struct fcc_comm_init_reply *)(const void *)raw_receive(r);
    CHECK(reply->reply.status == 0);
    return reply->comm;
}

/* Two communicators, with the same program each, go on while its kernel is compiled, which takes until they say so. Then both get the kernel, which was
 * compiled once for each chip. */
static void meanwhile_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_comm_options options = {.device = -1, .device_kind = test_device()};
    fcc_comm *comm = comm_open(all, rank, 0), *other;

    OK(fcc_comm_init(comm_context(), argument, PAIR, rank, &options, &other));
    for (int round = 0; round < ROUNDS; round++) {
        case_run(comm, rank, &step);
        case_run(other, rank, &step);
    }
    OK(fcc_noop(comm));
    if (rank == 0) {
        CHECK(fake->interpreted == 2 * PAIR * RUNS && !fake->generated && !fake->compiled);
        compiling_await();
        atomic_store(seen, ASKING);
        for (int i = 0; i < COMPILING_MOST && atomic_load(seen) == ASKING; i++)
            (void)usleep(20000);
        fake->compile_hold = 0;
    }
    settle(comm, rank, GENERATED);
    settle(other, rank, GENERATED);
    CHECK(fake->compiled == 2);
    OK(fcc_noop(comm));
    fcc_comm_destroy(other);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void meanwhile(void)
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    seen = shared_memory(sizeof(*seen));
    fake_start(&d, GPUS, NULL);
    struct fcc_unique_id id = id_make();
    fake->compile_hold = 1;
    ranks_start(&r, PAIR, meanwhile_rank, &id);
    await(seen, ASKING);
    struct raw *asks = asking_session(&d);
    const uint32_t comm = gpu_comm(asks);
    CHECK(kernels_ask(asks, comm) == -EAGAIN);
    atomic_store(seen, 0);
    ranks_join(&r);
    CHECK(kernels_ask(asks, comm) == -ENOENT);
    raw_close(asks);
    fake_stop(&d);
}

/* Leaves while the kernel is compiled; or stays, and hears that the worker has died. */
static void leaving_rank(int rank, const struct ranks *all, void *stays)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    case_run(comm, rank, &step);
    compiling_await();
    OK(fcc_noop(comm));
    if (stays) {
        (void)atomic_fetch_add(seen, 1);
        while (fcc_noop(comm) == 0)
            (void)usleep(1000);
        CHECK(strstr(fcc_last_error(), "worker") != NULL);
    }
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* A worker ends when its compiler has. */
static void left(void)
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    const int closed = fake->closed;
    fake->compile_hold = 1;
    ranks_start(&r, PAIR, leaving_rank, NULL);
    ranks_join(&r);
    (void)usleep(100000); /* it closes its GPUs, or is about to */
    CHECK(fake->closed == closed && fake->compiled == 0);
    fake->compile_hold = 0;
    closed_await(closed);
    const int compiled = fake->compiled; /* of the second GPU's chip nothing need have been begun */
    CHECK(compiled == 1 || compiled == 2);
    job_run(GENERATED);
    expect_runs(2 - compiled, PAIR * RUNS, 0);
    fake_stop(&d);
}

/* A worker that is killed while its compiler runs leaves nothing in the cache, and the next one compiles. */
static void killed(void)
{
    char path[PATH_MAX];
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    seen = shared_memory(sizeof(*seen));
    cache_path(path);
    fake_start(&d, GPUS, NULL);
    fake->compile_hold = 1;
    ranks_start(&r, PAIR, leaving_rank, seen);
    for (int i = 0; i < COMPILING_MOST && atomic_load(seen) < PAIR; i++)
        (void)usleep(20000);
    CHECK(atomic_load(seen) == PAIR && kill(daemon_worker(&d), SIGKILL) == 0);
    ranks_join(&r);
    fake->compile_hold = 0;
    fake->compiling = 0;
    CHECK(access(path, F_OK) != 0 || cache_files(path) == 0);
    job_run(GENERATED);
    expect_runs(2, PAIR * RUNS, 0);
    CHECK(!fake->wrong);
    daemon_stop_unclean(&d);
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
                                        {"meanwhile", meanwhile, 60},
                                        {"left", left, 60},
                                        {"killed", killed, 60},
                                        {"refused_over_nodes", refused_over_nodes, 60}};

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_programs", TESTS(tests));
}
