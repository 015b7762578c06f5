/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_bed.h - the real daemon on fake GPUs (fake_gpu.c), and clients with streams of the fake driver (fake_driver.c),
 * which such a program finds by running itself again with LD_LIBRARY_PATH set. No GPU is needed, so all this runs under the
 * sanitizers.
 *
 * GPU i of the plug-in has the UUID of the driver's device i.
 */
#ifndef FAKE_GPU_BED_H
#define FAKE_GPU_BED_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/device/driver.h"
#include "tests/bed/harness.h"
#include "tests/bed/program.h"
#include "tests/fake_gpu/fake_driver.h"
#include "tests/fake_gpu/fake_gpu.h"

enum { GPUS = 3, PAIR = 2 }; /* of most tests: GPUs, and ranks */
#define ALL_GPUS 0xffffu

static struct fake_gpus *fake;     /* the plug-in's; while a daemon runs */
static struct driver gpu;          /* this client's */
static struct fake_driver *driver; /* its control */

/* ---- the daemon ---- */

/* The directory that this program lies in. */
static inline void self_directory(char path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);

    CHECK(n > 0);
    path[n] = 0;
    *strrchr(path, '/') = 0;
}

/* A plug-in of `from` in the daemon's directory of plug-ins. */
static inline void plugin_link(const char *directory, const char *name, const char *from)
{
    char self[PATH_MAX], path[2 * PATH_MAX], target[2 * PATH_MAX];

    self_directory(self);
    (void)snprintf(target, sizeof(target), "%s/%s/%s", self, from, name);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
    CHECK(access(target, R_OK) == 0 && symlink(target, path) == 0);
}

/* Whose directory has the verbs transport: "direct_plugin" is that of direct_verbs.c, and then it is what data goes over. */
static const char *fake_transport = "../lib/fccd";

/* The nodes that a test's ranks are on; and how many of its ranks that follow each other are on one before the next one comes. */
static int fake_nodes = 1, fake_together = 1;

static inline int fake_node_of(int rank)
{
    return rank / fake_together % fake_nodes;
}

/* Like daemons_start(), with this many fake GPUs, which all nodes have. */
static inline void fake_nodes_start(struct test_daemon *d, int nodes, uint32_t gpus, const char *const options[])
{
    char directory[PATH_MAX], path[2 * PATH_MAX];
    const char *all[16] = {"--gpus", "cuda", "--plugin-dir", directory};
    int n = 4;

    fake_nodes = nodes;
    (void)snprintf(directory, sizeof(directory), "%s/.gpus", test_directory());
    CHECK(mkdir(directory, 0755) == 0);
    plugin_link(directory, "cuda.so", "fake_plugin");
    CHECK(setenv("FCC_PLUGIN_DIR", directory, 1) == 0); /* the ranks take no plug-in from the worker */
    if (!strcmp(fake_transport, "direct_plugin")) {
        all[n++] = "--transport";
        all[n++] = "verbs";
    }
    if (test_over_verbs() || n > 4)
        plugin_link(directory, "verbs.so", fake_transport);
    (void)snprintf(path, sizeof(path), "%s/%s", directory, FAKE_GPU_CONTROL);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    CHECK(fd >= 0 && ftruncate(fd, sizeof(*fake)) == 0);
    fake = mmap(NULL, sizeof(*fake), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(fake != MAP_FAILED);
    (void)close(fd);
    fake->gpus = gpus;
    fake->store_us = 2000; /* far beyond what the worker may hope for */
    for (; options && *options; options++)
        all[n++] = *options;
    daemons_start(d, nodes, all);
}

static inline void fake_start(struct test_daemon *d, uint32_t gpus, const char *const options[])
{
    fake_nodes_start(d, 1, gpus, options);
}

/* No call was wrong, and the last worker, and clients, have let everything go. */
static inline void fake_check(void)
{
    if (fake->wrong)
        check_failed(__FILE__, __LINE__, "%d wrong calls of the plug-in, first: %s", fake->wrong, fake->what_is_wrong);
    if (fake->contexts || fake->codes || fake->memories || fake->registered || fake->launches || fake->sessions ||
        fake->prepared)
        check_failed(__FILE__, __LINE__,
                     "left: %d contexts, %d generated kernels, %d pieces of memory, %d of host memory, %d launches, %d "
                     "sessions, %d prepared",
                     fake->contexts, fake->codes, fake->memories, fake->registered, fake->launches, fake->sessions,
                     fake->prepared);
}

static inline void fake_stop(struct test_daemon *d)
{
    daemon_stop(d);
    fake_check();
}

/* Run `rank` as n processes on fake GPUs. */
static inline void fake_ranks_run(int n, void (*rank)(int, const struct ranks *, void *), void *argument)
{
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, n, rank, argument);
    ranks_join(&r);
    fake_stop(&d);
}

/* Cases drawn at random, by 1 to GPUS ranks, whose argument is a seed (uint64_t): FCC_TEST_SEED=N repeats a run. */
static inline void fake_cases_run(void (*rank)(int, const struct ranks *, void *))
{
    uint64_t seed = test_seed();
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    for (int n = 1; n <= GPUS; n++) {
        seed += 1000;
        ranks_start(&r, n, rank, &seed);
        ranks_join(&r);
        CHECK(fake->runs > 0);
    }
    fake_stop(&d);
}

/* ---- waiting ---- */

/* A word that processes share becomes at least `value`; and while it does not, no rank (of the process that started them) has
 * failed. */
static inline void await(const _Atomic int *word, int value)
{
    double until = await_end();

    while (*word < value) {
        siginfo_t ended = {.si_pid = 0};
        CHECK(now_ms() < until);
        if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid && ended.si_status)
            check_failed(__FILE__, __LINE__, "pid %d ended with %d while this waited", ended.si_pid, ended.si_status);
        (void)usleep(200);
    }
}

/* All n ranks come to the step with this number: 1, 2, ... *mine is this rank's, and *step counts those who have come, of all. */
static inline void step_meet(_Atomic int *step, int n, int *mine)
{
    (*step)++;
    await(step, ++*mine * n);
}

/* A word that processes share becomes at most `value`. */
static inline void await_less(const _Atomic int *word, int value)
{
    double until = await_end();

    while (*word > value) {
        CHECK(now_ms() < until);
        (void)usleep(200);
    }
}

/* The call that is to fail has been made. */
static inline void await_failure(void)
{
    double until = await_end();

    while (fake->fail != FAKE_NONE) {
        CHECK(now_ms() < until);
        (void)usleep(200);
    }
}

/* The time limit of a communicator whose kernels are made to hang, and which has to do something well before. */
static inline uint32_t hang_limit_ms(void)
{
    return getenv("FCC_TEST_SLOW") ? 6000 : 1500;
}

/* ---- a client ---- */

static inline void driver_use(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    CHECK(library != NULL);
    driver = dlsym(library, FAKE_DRIVER_SYMBOL);
    CHECK(driver != NULL);
#define X(result, member, cuda, hip, parameters)                                                                               \
    {                                                                                                                          \
        void *function = dlsym(library, cuda);                                                                                 \
        CHECK(function != NULL);                                                                                               \
        memcpy(&gpu.member, &function, sizeof(function));                                                                      \
    }
    DRIVER_COMMON(X)
    DRIVER_CUDA(X)
#undef X
}

static inline fcc_context *client_connect(const struct fcc_connect_options *options)
{
    fcc_context *context;

    OK(fcc_connect(options, &context));
    return context;
}

static inline struct fcc_unique_id id_make(void)
{
    fcc_context *context = client_connect(NULL);
    struct fcc_unique_id id;

    OK(fcc_get_unique_id(context, &id));
    fcc_disconnect(context);
    return id;
}

static inline fcc_comm *client_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
                                    uint32_t time_limit_ms)
{
    const struct fcc_comm_options options = {.device = -1, .time_limit_ms = time_limit_ms, .device_kind = FCC_DEVICE_CUDA};
    fcc_comm *comm;

    ranks_meet(time_limit_ms != 0);
    OK(fcc_comm_init(context, id, nranks, rank, &options, &comm));
    CHECK(fcc_comm_device_kind(comm) == FCC_DEVICE_CUDA);
    return comm;
}

/* The client has let everything of the driver go. */
static inline void client_end(fcc_context *context)
{
    fcc_disconnect(context);
    CHECK(driver->broken == 0 && driver->contexts == 0 && driver->streams == 0 && driver->handles == 0 &&
          driver->addresses == 0 && driver->mappings == 0 && driver->registered == 0);
}

/* ---- its streams ---- */

static inline void *stream_open(void)
{
    void *stream, *popped;

    CHECK(gpu.context_push(driver) == 0 && gpu.stream_create(&stream, DRIVER_STREAM_OWN_ORDER) == 0 &&
          gpu.context_pop(&popped) == 0);
    return stream;
}

static inline void stream_sync(void *stream)
{
    CHECK(gpu.stream_synchronize(stream) == 0);
}

static inline void stream_close(void *stream)
{
    stream_sync(stream);
    CHECK(gpu.stream_destroy(stream) == 0);
}

static inline void gate_wait(void *open)
{
    while (!*(const _Atomic int *)open)
        (void)usleep(100);
}

/* What comes onto the stream from now on waits until *open is not 0. */
static inline void stream_gate(void *stream, _Atomic int *open)
{
    CHECK(gpu.stream_function(stream, gate_wait, open) == 0);
}

static inline void late_wait(void *argument)
{
    (void)argument;
    (void)usleep(300);
}

/* What comes onto the stream from now on comes some time later. */
static inline void stream_be_late(void *stream)
{
    CHECK(gpu.stream_function(stream, late_wait, NULL) == 0);
}

/* ---- a communicator's end, as a program sees it ---- */

/* Its status word says that it has ended. */
static inline void status_await(fcc_comm *comm)
{
    double until = await_end();
    const int32_t *word;

    OK(fcc_comm_status(comm, &word));
    while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
        AWAITING(until);
}

/* It has ended, and what the stream has, and replays of the graph, if there is one, are over before they have begun. */
static inline void stream_over(fcc_comm *comm, void *stream, void *graph)
{
    status_await(comm);
    stream_sync(stream);
    for (int i = 0; i < 3 && graph; i++)
        driver->graph_launch(graph, stream);
    stream_sync(stream);
}

/* The end has ended a run of this rank, whose result is undefined: the program hears of it, once, when it has synchronized the stream. */
static inline void cut_check(fcc_comm *comm, void *stream, int status, const char *says)
{
    stream_sync(stream);
    FAILS(fcc_comm_error_wait(comm, -1), status, says);
    OK(fcc_comm_error_wait(comm, -1));
    OK(fcc_comm_error(comm));
}

/* ---- an operator with buffers of its own. Nothing is computed ---- */

/* Too many sums for one step, also of one rank (kernels/plan/exchange/reduce_packets.c). */
#ifdef __SANITIZE_THREAD__
enum { PRODUCT_M = 32 }; /* what kernels add up, word by word, is most of the time there */
#else
enum { PRODUCT_M = 64 };
#endif
enum { PRODUCT_N = 2056, PRODUCT_K = 32 };

struct product {
    fcc_comm *comm;
    struct fcc_gemv_all_reduce_args args;
    bool has_epilogue;       /* product_epilogue_check()'s: what is expected of its results */
    int row_first, rows_all; /* of sums whose rows are scattered: y's first row among all of so many; 0: they are y's */
};

static inline struct product product_open(fcc_comm *comm)
{
    struct product p = {.comm = comm};
    fcc_buffer *x, *w, *y;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, PRODUCT_M * PRODUCT_K * sizeof(float), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, PRODUCT_N * PRODUCT_K * sizeof(float), &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, PRODUCT_M * PRODUCT_N * sizeof(float), &y));
    p.args = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(x, 0, FCC_F32, PRODUCT_M, PRODUCT_K),
                                               .w = fcc_tensor_2d(w, 0, FCC_F32, PRODUCT_N, PRODUCT_K),
                                               .y = fcc_tensor_2d(y, 0, FCC_F32, PRODUCT_M, PRODUCT_N)};
    return p;
}

/* Of which as many run at a time as may: `auto` would try the other schedule, too, and that one needs more staging memory, which
 * does not grow while anything runs. */
static inline struct product fused_open(fcc_comm *comm)
{
    struct product p = product_open(comm);

    p.args.schedule = FCC_SCHEDULE_FUSED;
    return p;
}

static inline void product_enqueue(const struct product *p, void *stream, fcc_request **out)
{
    OK(fcc_gemv_all_reduce_enqueue(p->comm, &p->args, stream, out));
}

/* All of a rank's ways work: through the CPU and on a stream. */
static inline void product_works(const struct product *p, void *stream)
{
    fcc_request *request;

    OK(fcc_gemv_all_reduce(p->comm, &p->args));
    product_enqueue(p, stream, &request);
    OK(fcc_noop_enqueue(p->comm, stream, NULL));
    stream_sync(stream);
    OK(fcc_request_wait(request, -1));
    OK(fcc_noop(p->comm));
    OK(fcc_comm_error(p->comm));
    fcc_request_free(request);
}

/* ---- programs ---- */

/* Run again with the fake driver in front of any real one. */
static inline void run_again(char *argv[])
{
    const char *others = getenv("LD_LIBRARY_PATH");
    char self[PATH_MAX], path[2 * PATH_MAX];

    if (getenv("FCC_TEST_FAKE_DRIVER"))
        return;
    self_directory(self);
    (void)snprintf(path, sizeof(path), "%s/fake_driver%s%s", self, others ? ":" : "", others ? others : "");
    (void)setenv("LD_LIBRARY_PATH", path, 1);
    (void)setenv("FCC_TEST_FAKE_DRIVER", path, 1);
    (void)execv("/proc/self/exe", argv);
    perror("/proc/self/exe");
    exit(EXIT_FAILURE);
}

#endif
