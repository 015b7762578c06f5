/* SPDX-License-Identifier: MIT
 *
 * test_limits.c - a daemon that runs under resource limits, as a batch system or a shell sets them: too little is an error that names it,
 * never a process that dies or looks for memory for ever.
 */
#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* their own tables need terabytes of address space */
#else
#define SANITIZED 0
#endif
#define TOO_LITTLE (300u << 20) /* the worker starts with that, but the work memory of a BLAS has no room */
#define ENOUGH (UINT64_C(3) << 30)

static const char *const options[] = {"--cpu-devices", "1", "--cpu-workgroups", "2", NULL};

/* From now on workers start under this limit. */
static void limit_set(const struct test_daemon *d, int resource, rlim_t bytes)
{
    struct rlimit l;

    CHECK(prlimit(d->pid, resource, NULL, &l) == 0);
    l.rlim_cur = bytes;
    CHECK(prlimit(d->pid, resource, &l, NULL) == 0);
}

/* Nobody is connected any more: the next client gets another worker. */
static void worker_leaves(const struct test_daemon *d, pid_t worker)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "worker %d ended", worker);
    CHECK(daemon_logged(d, text, true));
}

/* One rank's product by the BLAS, of which the value is known. */
static void product(void)
{
    enum { K = 512, N = 1024 };
    struct fcc_comm_options how = {.device = -1, .time_limit_ms = 20000};
    struct fcc_unique_id id;
    fcc_buffer *x, *w, *y;
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, &how, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * sizeof(float), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)N * K * sizeof(float), &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &y));
    for (int i = 0; i < K; i++)
        ((float *)fcc_buffer_data(x))[i] = 1;
    for (int i = 0; i < N * K; i++)
        ((float *)fcc_buffer_data(w))[i] = (float)(i / K % 7);
    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(w, 0, FCC_F32, N, K),
                                            .y = fcc_tensor_2d(y, 0, FCC_F32, 1, N)};
    OK(fcc_gemv_all_reduce(comm, &args));
    for (int i = 0; i < N; i++)
        CHECK(((float *)fcc_buffer_data(y))[i] == (float)(K * (i % 7)));
    fcc_disconnect(context);
}

static void stack(void)
{
    struct test_daemon d;

    if (SANITIZED)
        test_skip("skipped: a sanitizer's frames are larger");
    daemon_start(&d, options);
    limit_set(&d, RLIMIT_STACK, 64u << 10);
    product();
    daemon_stop(&d);
}

/* Where the limit cannot be raised, it is told at the start. */
static void stack_is_bounded(void)
{
    static const char *const version[] = {"--version", NULL};
    struct rlimit little = {64u << 10, 64u << 10};
    char text[1024];

    if (SANITIZED)
        test_skip("skipped: a sanitizer's frames are larger");
    CHECK(setrlimit(RLIMIT_STACK, &little) == 0);
    CHECK(program_run(text, sizeof(text), daemon_binary(), version) == 2);
    CHECK(strstr(text, "RLIMIT_STACK (ulimit -s): needed are 1024 KiB") != NULL);
}

/* The files are memfds: the account is the broker's, and the session memory the worker's. */
static void file_size(void)
{
    struct test_daemon d;
    fcc_context *context;

    daemon_start(&d, options);
    OK(fcc_connect(NULL, &context)); /* the log is written to a file, too: what stands there comes from before */
    pid_t worker = daemon_worker(&d);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
    fcc_context *second;
    CHECK(prlimit(worker, RLIMIT_FSIZE, &none, NULL) == 0);
    FAILS(fcc_connect(NULL, &second), -EFBIG, "session memory", "File too large");
    CHECK(prlimit(worker, RLIMIT_FSIZE, &any, NULL) == 0);
    OK(fcc_connect(NULL, &second)); /* it lives on */
    fcc_disconnect(second);
    fcc_disconnect(context);
    worker_leaves(&d, worker);
    limit_set(&d, RLIMIT_FSIZE, 0);
    FAILS(fcc_connect(NULL, &context), -EFBIG, "no account for its jobs", "File too large");
    limit_set(&d, RLIMIT_FSIZE, RLIM_INFINITY);
    expect_alive(2);
    daemon_stop(&d);
}

static void memory_of_a_buffer(void)
{
    struct test_daemon d;
    struct fcc_comm_options how = {.device = -1, .time_limit_ms = 5000};
    struct fcc_unique_id id;
    struct rlimit some = {.rlim_cur = 1u << 20, .rlim_max = RLIM_INFINITY};
    fcc_context *context;
    fcc_buffer *buffer;
    fcc_comm *comm;

    daemon_start(&d, options);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, &how, &comm));
    CHECK(prlimit(daemon_worker(&d), RLIMIT_FSIZE, &some, NULL) == 0);
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 4u << 20, &buffer), -EFBIG, "File too large");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 4u << 20, &buffer), -EFBIG, "File too large");
    OK(fcc_noop(comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, 1u << 19, &buffer));
    fcc_disconnect(context);
    daemon_stop(&d);
}

static void space_is_short(int resource, const char *name)
{
    struct test_daemon d;
    struct fcc_comm_options how = {.device = -1, .time_limit_ms = 20000};
    struct fcc_unique_id id;
    fcc_context *context;
    fcc_comm *comm;

    if (SANITIZED)
        test_skip("skipped: a sanitizer's tables need more address space than any limit");
    daemon_start(&d, options);
    limit_set(&d, resource, TOO_LITTLE);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    FAILS(fcc_comm_init(context, &id, 1, 0, &how, &comm), -ENOMEM, "BLAS", name, "300 MiB", "CPU_WORKGROUPS");
    FAILS(fcc_comm_init(context, &id, 1, 0, &how, &comm), -ENOMEM, "BLAS", name, "300 MiB", "CPU_WORKGROUPS"); /* again */
    pid_t worker = daemon_worker(&d);
    fcc_disconnect(context);
    worker_leaves(&d, worker);
    limit_set(&d, resource, ENOUGH);
    product();
    daemon_stop(&d);
}

static void address_space(void)
{
    space_is_short(RLIMIT_AS, "RLIMIT_AS");
}

static void data(void)
{
    space_is_short(RLIMIT_DATA, "RLIMIT_DATA");
}

int main(void)
{
    static const struct test tests[] = {{"file_size", file_size, 0},
                                        {"memory_of_a_buffer", memory_of_a_buffer, 0},
                                        {"address_space", address_space, 0},
                                        {"data", data, 0},
                                        {"stack", stack, 0},
                                        {"stack_is_bounded", stack_is_bounded, 0}};

    return tests_run("limits", TESTS(tests));
}
