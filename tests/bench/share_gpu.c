/* SPDX-License-Identifier: MIT
 *
 * share_gpu.c - two jobs of two users on one GPU, whose operators their workers launch: what each has of it by USER_WEIGHTS, and how long operators take.
 *
 *     FCC_TEST_DEVICE=cuda FCC_TEST_VERBOSE=1 build/tests/share_gpu      as root; FCC_TEST_ONLY=NAME: one of the cases; BENCH_SECONDS=5
 *
 * A flood is a job of one rank that keeps FLOOD_AT_ONCE operators in flight through the CPU, so that its worker launches them and no stream of its own is on
 * the GPU: a product of one row and a matrix of 1 GiB, which takes some 0.25 ms on an H200, as long as it takes to read the matrix. Between two of them the
 * worker takes some 10 us. A light job has one small operator each millisecond, and waits for it.
 *
 *   100:100, 300:100, 1000:100   two floods. The operators of one for each of the other's should be 1, 3 and 10. (Who has the larger weight cannot use
 *                                the time between its own operators, so the other one has that, too: that takes some of a ratio of 10)
 *   free                         the same with GPU_TURNS=free: what the driver gives
 *   light                        a light job alone, beside a flood with GPU_TURNS=free, and with shares: of equal weights, and of ten times the weight
 *
 * Cases with mps_ in front have an MPS server for each user, the others none: in both the driver gives the two users' processes slices of time by turns. It prints, of each
 * job, operators in a second, and the median and the 99th percentile of what an operator took from its start to its end; and for how many seconds operators of both jobs
 * were held back. Results are checked; times decide nothing.
 */
#include <stdatomic.h>
#include <string.h>

#include "tests/bed/mps.h"
#include "tests/bed/users_bed.h"
#include "tests/gpu/gpu_client.h"

enum {
    JOBS = 2,
    FIRST = 40003,
    SECOND = 40004,
    FLOOD_AT_ONCE = 4,
    FLOOD_N = 32768,
    FLOOD_K = 8192,
    LIGHT_SIZE = 64,
    SAMPLES = 1 << 20,
    WARM_MS = 500,
    LIMIT_MS = 60000
};

struct load {
    uid_t uid;
    const char *job;
    bool is_light;
};

struct scene {
    struct load loads[JOBS];
    struct mps_domain domains[JOBS];
    _Atomic int ready, measures, stop;
    unsigned count[JOBS];
    float took_ms[JOBS][SAMPLES];
};

/* x of ones; w whose first row is of ones, and the others of zeros. */
struct work {
    fcc_comm *comm;
    struct fcc_gemv_all_reduce_args args;
    int n, k;
    fcc_buffer *y;
};

static struct work work_open(fcc_comm *comm, int n, int k)
{
    struct work w = {.comm = comm, .n = n, .k = k};
    float *ones = malloc((size_t)k * sizeof(float));
    fcc_buffer *x, *m;

    CHECK(ones != NULL);
    for (int i = 0; i < k; i++)
        ones[i] = 1;
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)k * sizeof(float), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)n * (size_t)k * sizeof(float), &m));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)n * sizeof(float), &w.y));
    OK(fcc_buffer_write(x, 0, ones, (size_t)k * sizeof(float)));
    OK(fcc_buffer_write(m, 0, ones, (size_t)k * sizeof(float)));
    free(ones);
    w.args = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(x, 0, FCC_F32, 1, k),
                                               .w = fcc_tensor_2d(m, 0, FCC_F32, n, k),
                                               .y = fcc_tensor_2d(w.y, 0, FCC_F32, 1, n)};
    return w;
}

static void work_check(const struct work *w)
{
    float y[2];

    OK(fcc_buffer_read(w->y, 0, y, sizeof(y)));
    if (y[0] != (float)w->k || y[1] != 0)
        check_failed(__FILE__, __LINE__, "y is %g, %g, expected %d, 0", (double)y[0], (double)y[1], w->k);
}

static void sample_add(struct scene *s, int job, double began)
{
    if (s->measures && s->count[job] < SAMPLES)
        s->took_ms[job][s->count[job]++] = (float)(now_ms() - began);
}

static void flood_run(struct scene *s, int job, const struct work *w)
{
    fcc_request *requests[FLOOD_AT_ONCE] = {NULL};
    double began[FLOOD_AT_ONCE];

    for (unsigned n = 0; !s->stop; n++) {
        unsigned at = n % FLOOD_AT_ONCE;
        if (requests[at]) {
            OK(fcc_request_wait(requests[at], -1));
            sample_add(s, job, began[at]);
            fcc_request_free(requests[at]);
        }
        began[at] = now_ms();
        OK(fcc_gemv_all_reduce_start(w->comm, &w->args, &requests[at]));
    }
    for (unsigned at = 0; at < FLOOD_AT_ONCE; at++)
        if (requests[at]) {
            OK(fcc_request_wait(requests[at], -1));
            fcc_request_free(requests[at]);
        }
}

static void light_run(struct scene *s, int job, const struct work *w)
{
    for (double next = now_ms(); !s->stop; next = next + 1 > now_ms() ? next + 1 : now_ms()) {
        while (now_ms() < next)
            (void)usleep(50);
        double began = now_ms();
        OK(fcc_gemv_all_reduce(w->comm, &w->args));
        sample_add(s, job, began);
    }
}

static void load_rank(int job, const struct ranks *all, void *argument)
{
    struct scene *s = argument;
    const struct load *load = &s->loads[job];
    const struct fcc_connect_options options = {.job = load->job};
    struct fcc_unique_id id;
    fcc_context *context;

    (void)all;
    mps_domain_enter(&s->domains[job]);
    become(load->uid);
    context = client_connect(&options);
    OK(fcc_get_unique_id(context, &id));
    fcc_comm *comm = client_join(context, &id, 1, 0, 0, LIMIT_MS);
    struct work w = load->is_light ? work_open(comm, LIGHT_SIZE, LIGHT_SIZE) : work_open(comm, FLOOD_N, FLOOD_K);
    OK(fcc_gemv_all_reduce(comm, &w.args));
    s->ready++;
    if (load->is_light)
        light_run(s, job, &w);
    else
        flood_run(s, job, &w);
    work_check(&w);
    OK(fcc_comm_error(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* ---- what is printed ---- */

static int is_more(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void job_print(struct scene *s, int job, double seconds)
{
    unsigned n = s->count[job];
    float *all = s->took_ms[job];

    CHECK(n > 0);
    qsort(all, n, sizeof(*all), is_more);
    printf("  %s, %s: %9.1f operators a second, median %8.4f ms, p99 %8.4f ms\n", s->loads[job].job,
           s->loads[job].is_light ? "light" : "flood", n / seconds, (double)all[n / 2], (double)all[(unsigned)(n * .99)]);
}

/* Of how many seconds. */
static double held_s(const struct test_daemon *d)
{
    static const char name[] = "\nfccd_gpu_share_wait_seconds_total ";
    static char text[1 << 18];
    const char *at;

    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"--socket", d->socket, "metrics", NULL}) == 0);
    CHECK((at = strstr(text, name)) != NULL);
    return atof(at + strlen(name));
}

/* ---- a case ---- */

struct bench {
    bool mps;
    const char *turns;
    int first, second; /* weights */
    bool light, alone; /* the second job is light; the first one is not there */
};

static void domain_open(struct mps_domain *m, const char *job, bool mps, uid_t uid)
{
    mps_domain_open(m, job, mps);
    if (mps) /* root's control daemon starts the server of the user who comes first, who reaches it here */
        CHECK(chown(m->pipe, uid, (gid_t)-1) == 0 && chown(m->log, uid, (gid_t)-1) == 0 && chmod(m->pipe, 0755) == 0);
}

static void bench_run(const struct bench *b)
{
    const char *text = getenv("BENCH_SECONDS");
    const double seconds = text ? atof(text) : 5;
    struct scene *s = shared_memory(sizeof(*s));
    struct ranks r;
    struct test_daemon d;
    char weights[64];

    needs_users();
    s->loads[0] = (struct load){.uid = FIRST, .job = "a"};
    s->loads[1] = (struct load){.uid = SECOND, .job = "b", .is_light = b->light};
    domain_open(&s->domains[0], "a", b->mps, FIRST);
    domain_open(&s->domains[1], "b", b->mps, SECOND);
    (void)snprintf(weights, sizeof(weights), "%d=%d,%d=%d", FIRST, b->first, SECOND, b->second);
    daemon_start(&d, (const char *const[]){"--user-weights", weights, "--gpu-turns", b->turns, NULL});
    open_to_all(&d);
    r.n = JOBS;
    ranks_start_some(&r, b->alone ? 1 : 0, b->alone ? 1 : JOBS, load_rank, s);
    await(&s->ready, b->alone ? 1 : JOBS);
    (void)usleep(WARM_MS * 1000);
    const double held = held_s(&d), begin = now_ms();
    s->measures = 1;
    (void)usleep((unsigned)(seconds * 1e6));
    s->measures = 0;
    const double passed = (now_ms() - begin) / 1e3, waited = held_s(&d) - held;
    s->stop = 1;
    for (int job = b->alone; job < JOBS; job++)
        CHECK(rank_wait(&r, job) == 0);
    printf("weights %d:%d, %s, GPU_TURNS=%s, %.1f s\n", b->first, b->second, b->mps ? "an MPS server for each user" : "no MPS",
           b->turns, passed);
    for (int job = b->alone; job < JOBS; job++)
        job_print(s, job, passed);
    if (!b->light)
        printf("  %.2f operators of a for each of b\n", (double)s->count[0] / (double)s->count[1]);
    printf("  operators were held back for %.2f s\n", waited);
    daemon_stop_unclean(&d);
    mps_domain_close(&s->domains[0]);
    mps_domain_close(&s->domains[1]);
}

#define CASES(X)                                                                                                               \
    X(turns_free, false, "free", 100, 100, false, false)                                                                       \
    X(weights_100_100, false, "weighted", 100, 100, false, false)                                                              \
    X(weights_300_100, false, "weighted", 300, 100, false, false)                                                              \
    X(weights_1000_100, false, "weighted", 1000, 100, false, false)                                                            \
    X(light_alone, false, "weighted", 100, 100, true, true)                                                                    \
    X(light_free, false, "free", 100, 100, true, false)                                                                        \
    X(light_equal, false, "weighted", 100, 100, true, false)                                                                   \
    X(light_heavy, false, "weighted", 100, 1000, true, false)                                                                  \
    X(mps_turns_free, true, "free", 100, 100, false, false)                                                                    \
    X(mps_weights_100_100, true, "weighted", 100, 100, false, false)                                                           \
    X(mps_weights_300_100, true, "weighted", 300, 100, false, false)                                                           \
    X(mps_weights_1000_100, true, "weighted", 1000, 100, false, false)                                                         \
    X(mps_light_alone, true, "weighted", 100, 100, true, true)                                                                 \
    X(mps_light_free, true, "free", 100, 100, true, false)                                                                     \
    X(mps_light_equal, true, "weighted", 100, 100, true, false)                                                                \
    X(mps_light_heavy, true, "weighted", 100, 1000, true, false)

#define X(name, mps, turns, first, second, light, alone)                                                                       \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        bench_run(&(struct bench){mps, turns, first, second, light, alone});                                                   \
    }
CASES(X)
#undef X

int main(void)
{
#define X(name, mps, turns, first, second, light, alone) {#name, name, 120},
    static const struct test cases[] = {CASES(X)};
#undef X

    return gpus_found() ? tests_run("share_gpu", TESTS(cases)) : EXIT_SUCCESS;
}
