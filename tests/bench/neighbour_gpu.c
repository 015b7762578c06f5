/* SPDX-License-Identifier: MIT
 *
 * neighbour_gpu.c - what it costs a job that a process of another job on the same GPU dies, and which part of the machine takes the time.
 *
 *     FCC_TEST_DEVICE=cuda FCC_TEST_VERBOSE=1 build/tests/neighbour_gpu      FCC_TEST_ONLY=NAME: one of the cases
 *
 * The neighbour is a job with an MPS server of its own, or none. Its processes look, each in its own way, all the time:
 *
 *   operators   two ranks of fccd's, an operator after the other, launched by the worker: enqueued on a stream, which is then awaited
 *   launches    one process without fccd: a kernel, which is then awaited
 *   calls       one process without fccd that asks the driver how much memory is free, and runs nothing on the GPU
 *   clock       one process without fccd, whose one kernel of one thread looks at the GPU's clock: gaps are times in which the GPU did not run it. It is there in the
 *               cases with "clock" in their name alone, as a GPU runs contexts otherwise when one always has work
 *
 * What stalls `launches` as it stalls `operators` is not fccd's. What stalls `calls`, too, is a lock of the driver's. A gap of `clock` is the GPU, which runs other contexts, or
 * none; a launch that takes long without a gap waits in front of it.
 *
 * The process that dies is killed while its kernel runs, or without one; or ends by itself; it is a rank of a job of fccd's, or one without fccd: so what fccd does about a
 * death is seen apart from what the driver does. Later a process of that job makes a new context.
 *
 * For each of these moments it prints, of each who looks: how many there were before and their median, the longest, and all that were longer than SLOW_MS, from when to when,
 * in ms since the moment; of operators, how much of it was the call that enqueues. And what the threads of the neighbour's worker, its MPS server and those who look were at
 * during that: the place in the kernel (/proc: wchan, syscall), as root. Behind an operator that took HOLD_MS there are no more until its flight recorder's last have been printed.
 * Times decide nothing.
 */
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

#include "tests/bed/mps.h"
#include "tests/gpu/gpu_client.h"

enum {
    MEMBERS = 2,
    SAMPLES = 1 << 21,
    LIMIT_MS = 60000,
    BEFORE_MS = 1000, /* that nothing happens, before a moment */
    AFTER_MS = 1500,
    LOG = 4096, /* of the clock */
    SHOWN = 8,
    PLACES = 256,
    EACH_MS = 2 /* between two looks at /proc */
};
#define SLOW_MS 2.0
#define HOLD_MS 10.0
#define GAP_NS UINT64_C(100000)

enum eye { OPERATORS, LAUNCHES, CALLS, CLOCK, EYES };
static const char *const eyes[] = {"operators", "launches", "calls", "clock"};
enum death { IN_KERNEL, IDLE, BY_ITSELF };

struct sample {
    double begin, enqueued, end; /* ms */
};

struct scene {
    enum death death;
    _Atomic int begun, go, stop;
    _Atomic int looked[EYES];   /* who looks has begun */
    _Atomic int allowed, ended; /* operators: rounds that rank 0 has begun; there are no more */
    _Atomic int armed, held;    /* operators: the next one that takes HOLD_MS is the last for now; they wait */
    double heard_ms, lost_ms, made_ms;
    _Atomic unsigned count[EYES];
    struct sample samples[EYES][SAMPLES];
};

static void sample_add(struct scene *s, enum eye eye, double begin, double enqueued, double end)
{
    unsigned n = s->count[eye];

    if (n >= SAMPLES)
        return;
    s->samples[eye][n] = (struct sample){begin, enqueued, end};
    s->count[eye] = n + 1;
}

/* ---- those who look ---- */

static void operators_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *s = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, LIMIT_MS);

    gpu_open(comm);
    struct product p = product_open(comm, 1);
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    gpu_fill(stream, p.x, PRODUCT_K, 3);
    for (int round = 0;; round++) {
        if (rank == 0) {
            while (s->held && !s->stop)
                (void)usleep(100);
            s->ended = s->stop;
            s->allowed = round + !s->stop;
        }
        while (s->allowed <= round && !s->ended)
            (void)usleep(20);
        if (s->allowed <= round)
            break;
        double begin = now_ms();
        product_enqueue(&p, 0, stream, NULL);
        double enqueued = now_ms();
        CU(gpu.stream_synchronize(stream));
        if (rank == 0) {
            double end = now_ms();
            sample_add(s, OPERATORS, begin, enqueued, end);
            s->looked[OPERATORS] = 1;
            if (end - begin >= HOLD_MS && atomic_exchange(&s->armed, 0))
                s->held = 1;
        }
    }
    product_fetch(&p, stream);
    CU(gpu.stream_synchronize(stream));
    product_check(&p, gpu.host, 3);
    OK(fcc_comm_error(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void launches_run(struct scene *s)
{
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);

    while (!s->stop) {
        double begin = now_ms();
        gpu_delay(stream, 0);
        double enqueued = now_ms();
        CU(gpu.stream_synchronize(stream));
        sample_add(s, LAUNCHES, begin, enqueued, now_ms());
        s->looked[LAUNCHES] = 1;
    }
}

static void calls_run(struct scene *s)
{
    size_t left, whole;

    while (!s->stop) {
        double begin = now_ms();
        CU(gpu.memory_left(&left, &whole));
        double end = now_ms();
        sample_add(s, CALLS, begin, end, end);
        s->looked[CALLS] = 1;
        (void)usleep(100);
    }
}

/* The GPU's clock and ours are related by when its kernel is seen to have begun. */
static void clock_run(struct scene *s)
{
    uint64_t address, begun = word_address(WORD_BEGUN), go = word_address(WORD_GO), least = GAP_NS;
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER), *memory;
    uint32_t most = LOG;

    CU(gpu.host_alloc(&memory, LOG * 2 * sizeof(uint64_t), CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED));
    CU(gpu.host_address(&address, memory, 0));
    memset(memory, 0, LOG * 2 * sizeof(uint64_t));
    kernel_launch(gpu.kernel_watch, 1, stream, (void *[]){&address, &most, &least, &begun, &go});
    while (!gpu.words[WORD_BEGUN])
        continue;
    const double began = now_ms();
    s->looked[CLOCK] = 1;
    while (!s->stop)
        (void)usleep(1000);
    gpu.words[WORD_GO] = 1;
    CU(gpu.stream_synchronize(stream));
    const uint64_t *log = memory;
    for (uint64_t i = 1; i <= log[1]; i++) {
        const double begin = began + ((double)log[2 * i] - (double)log[0]) / 1e6, end = begin + (double)log[2 * i + 1] / 1e6;
        sample_add(s, CLOCK, begin, begin, end);
    }
}

/* A process without fccd on the first GPU. */
static pid_t process_start(struct scene *s, void (*run)(struct scene *))
{
    pid_t pid;

    (void)fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        cuda_load();
        gpu_open_number(0);
        run(s);
        _exit(0);
    }
    return pid;
}

static void process_end(pid_t pid)
{
    int status;

    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* ---- who dies ---- */

static void death_await(struct scene *s)
{
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);

    if (s->death == IN_KERNEL) {
        gpu_hold(stream);
        while (!gpu.words[WORD_BEGUN])
            (void)usleep(100);
    } else {
        gpu_delay(stream, 1000);
        CU(gpu.stream_synchronize(stream));
    }
    s->begun++;
    await(&s->go, 1);
    if (s->death != BY_ITSELF)
        (void)pause(); /* killed */
}

static void hit_rank(int rank, const struct ranks *all, void *argument)
{
    struct scene *s = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, LIMIT_MS);
    struct fcc_unique_id id;
    fcc_request *request;

    gpu_open(comm);
    struct product p = product_open(comm, 1);
    product_works(&p, 2);
    if (rank == 1) {
        death_await(s);
        _exit(0); /* without a word to fccd */
    }
    void *stream = stream_open(CUDA_STREAM_OWN_ORDER);
    product_enqueue(&p, 0, stream, &request);
    s->begun++;
    FAILS(fcc_request_wait(request, -1), -ECONNABORTED, "rank 1", "gone");
    s->heard_ms = now_ms();
    if (getenv("CUDA_MPS_LOG_DIRECTORY") && s->death == IN_KERNEL && mps_answers()) {
        double until = now_ms() + 5e3;
        while (!fcc_get_unique_id(context, &id) && now_ms() < until)
            (void)usleep(500);
        s->lost_ms = now_ms();
    }
    _exit(0); /* its contexts may be lost */
}

static void again_run(struct scene *s)
{
    s->made_ms = now_ms();
}

/* ---- where threads are ---- */

struct place {
    char text[200];
    unsigned count;
};

struct places {
    struct place place[PLACES];
    int n;
    unsigned looks;
};

static bool line_read(const char *path, char *out, size_t room)
{
    FILE *f = fopen(path, "re");
    bool well = f && fgets(out, (int)room, f);

    if (f)
        (void)fclose(f);
    if (well)
        out[strcspn(out, "\n")] = '\0';
    return well;
}

static void place_add(struct places *all, const char *text)
{
    int i = 0;

    while (i < all->n && strcmp(all->place[i].text, text) != 0)
        i++;
    if (i == PLACES)
        return;
    if (i == all->n)
        (void)snprintf(all->place[all->n++].text, sizeof(all->place[0].text), "%s", text);
    all->place[i].count++;
}

static void places_look(struct places *all, const char *who, pid_t pid)
{
    char path[300], name[32] = "?", place[64] = "?", called[96] = "?", text[200];
    struct dirent *entry;

    (void)snprintf(path, sizeof(path), "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    while (tasks && (entry = readdir(tasks)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", pid, entry->d_name);
        (void)line_read(path, name, sizeof(name));
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%s/wchan", pid, entry->d_name);
        (void)line_read(path, place, sizeof(place));
        (void)snprintf(path, sizeof(path), "/proc/%d/task/%s/syscall", pid, entry->d_name);
        (void)line_read(path, called, sizeof(called));
        called[strcspn(called, " ")] = '\0'; /* its number, or "running" */
        (void)snprintf(text, sizeof(text), "%s, thread %s: call %s, in %s", who, name, called, place);
        place_add(all, text);
    }
    if (tasks)
        (void)closedir(tasks);
}

/* The MPS servers of a domain, by its control daemon. */
static pid_t server_of(const struct mps_domain *m)
{
    char text[256];

    mps_domain_enter(m);
    if (!m->guard || program_run(text, sizeof(text), "sh",
                                 (const char *const[]){"-c", "echo get_server_list | nvidia-cuda-mps-control", NULL}))
        return 0;
    return atoi(text);
}

/* ---- what is printed ---- */

static int is_more(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_of(const struct scene *s, enum eye eye, unsigned from, unsigned to)
{
    double *all = calloc(to - from + 1, sizeof(*all));

    CHECK(all != NULL);
    for (unsigned i = from; i < to; i++)
        all[i - from] = s->samples[eye][i].end - s->samples[eye][i].begin;
    qsort(all, to - from, sizeof(*all), is_more);
    double median = to > from ? all[(to - from) / 2] : 0;
    free(all);
    return median;
}

/* Of who looks, what ended in this time; `since`: what times are printed relative to. */
static void eye_print(const struct scene *s, enum eye eye, const char *when, double from, double to, double since)
{
    unsigned first = 0, count = s->count[eye], end, slow = 0;
    double longest = 0;

    while (first < count && s->samples[eye][first].end < from)
        first++;
    for (end = first; end < count && s->samples[eye][end].end < to; end++) {
        const struct sample *x = &s->samples[eye][end];
        longest = x->end - x->begin > longest ? x->end - x->begin : longest;
        slow += x->end - x->begin >= SLOW_MS;
    }
    printf("  %-10s %-7s %7u, median %.4f ms, longest %.3f ms, %u of %.0f ms and more\n", eyes[eye], when, end - first,
           median_of(s, eye, first, end), longest, slow, SLOW_MS);
    for (unsigned i = first, shown = 0; i < end && shown < SHOWN; i++) {
        const struct sample *x = &s->samples[eye][i];
        if (x->end - x->begin < SLOW_MS)
            continue;
        printf("      %9.3f to %9.3f: %.3f ms", x->begin - since, x->end - since, x->end - x->begin);
        if (eye == OPERATORS || eye == LAUNCHES)
            printf(", of them %.3f to enqueue it", x->enqueued - x->begin);
        printf("\n");
        shown++;
    }
}

static void places_print(const struct places *all)
{
    printf("  where threads were, of %u looks:\n", all->looks);
    for (int i = 0; i < all->n; i++)
        printf("      %5u %s\n", all->place[i].count, all->place[i].text);
}

/* ---- a case ---- */

struct bench {
    enum death death;
    bool mps, fccd, clock; /* fccd: who dies is a rank; clock: it looks, too */
};

struct watched {
    const char *who;
    pid_t pid;
};

/* Waits, and looks at where these are. */
static void pass(double ms, const struct watched *w, int n, struct places *out)
{
    for (double until = now_ms() + ms; now_ms() < until; out->looks++, (void)usleep(EACH_MS * 1000))
        for (int i = 0; i < n; i++)
            if (w[i].pid)
                places_look(out, w[i].who, w[i].pid);
}

static void moment_print(const struct scene *s, const char *what, double at, double end)
{
    printf("%s\n", what);
    for (enum eye eye = 0; eye < EYES; eye++) {
        if (!s->looked[eye])
            continue;
        if (eye != CLOCK)
            eye_print(s, eye, "before", at - BEFORE_MS, at, at);
        eye_print(s, eye, eye == CLOCK ? "gaps" : "after", eye == CLOCK ? at - BEFORE_MS : at, end, at);
    }
}

/* If an operator took long: the flight recorder's last ones, and they go on. */
static void flight_print(struct scene *s, const struct test_daemon *d)
{
    static char text[1 << 16];

    s->armed = 0;
    (void)usleep(20000); /* it may be about to find that */
    if (!s->held)
        return;

    (void)program_run(text, sizeof(text), fccctl_binary(),
                      (const char *const[]){"flight", "--socket", d->socket, "--job", "b", "--last", "6", NULL});
    printf("the neighbour's flight recorder, whose last operator took %.0f ms or more:\n%s", HOLD_MS, text);
    s->held = 0;
}

static void bench_run(const struct bench *b)
{
    struct scene *s = shared_memory(sizeof(*s));
    struct mps_domain theirs, ours;
    struct ranks hit, operators;
    struct test_daemon d;
    struct places places = {.n = 0}, later = {.n = 0};
    pid_t launches, calls, clock = 0, dies = 0;
    int status;

    s->death = b->death;
    mps_domain_open(&theirs, "a", b->mps);
    mps_domain_open(&ours, "b", b->mps);
    daemon_start(&d, NULL);
    mps_domain_enter(&ours);
    ranks_start(&operators, MEMBERS, operators_rank, s);
    await(&s->looked[OPERATORS], 1);
    pid_t worker = daemon_worker(&d); /* the only one yet */
    launches = process_start(s, launches_run);
    calls = process_start(s, calls_run);
    await(&s->looked[LAUNCHES], 1);
    await(&s->looked[CALLS], 1);
    if (b->clock) {
        clock = process_start(s, clock_run);
        await(&s->looked[CLOCK], 1);
    }
    mps_domain_check(&ours);
    const struct watched watched[] = {{"worker", worker},
                                      {"MPS server", server_of(&ours)},
                                      {"operators", operators.pid[0]},
                                      {"launches", launches},
                                      {"calls", calls}};
    const int n = sizeof(watched) / sizeof(watched[0]);
    mps_domain_enter(&theirs);
    if (b->fccd) {
        ranks_start(&hit, MEMBERS, hit_rank, s);
        await(&s->begun, MEMBERS);
        dies = hit.pid[1];
    } else {
        dies = process_start(s, death_await);
        await(&s->begun, 1);
    }
    mps_domain_check(&theirs);
    (void)usleep(BEFORE_MS * 1000);
    const double died = now_ms();
    s->armed = s->go = 1;
    CHECK(b->death == BY_ITSELF || kill(dies, SIGKILL) == 0);
    pass(AFTER_MS, watched, n, &places);
    const double over = now_ms();
    flight_print(s, &d);
    if (b->fccd) {
        (void)rank_wait(&hit, 1);
        (void)rank_wait(&hit, 0);
    } else {
        CHECK(waitpid(dies, &status, 0) == dies);
    }
    (void)usleep(BEFORE_MS * 1000);
    const double again = now_ms();
    mps_domain_enter(&theirs);
    s->armed = 1;
    pid_t fresh = process_start(s, again_run);
    pass(AFTER_MS, watched, n, &later);
    const double end = now_ms();
    (void)waitpid(fresh, &status, 0); /* under MPS a server that is about to end may refuse it */
    flight_print(s, &d);
    s->stop = 1;
    ranks_join(&operators);
    process_end(launches);
    process_end(calls);
    if (clock)
        process_end(clock);
    moment_print(s, "a process dies", died, over);
    if (s->heard_ms > 0)
        printf("  its job's other rank heard after %.1f ms\n", s->heard_ms - died);
    if (s->lost_ms > 0)
        printf("  its worker said that the contexts were lost after %.1f ms\n", s->lost_ms - died);
    places_print(&places);
    moment_print(s, "a process makes a new context", again, end);
    printf("  it was there after %.1f ms, exit status %#x\n", s->made_ms - again, (unsigned)status);
    places_print(&later);
    if (b->mps)
        daemon_stop_unclean(&d);
    else
        daemon_stop(&d);
    mps_domain_close(&theirs);
    mps_domain_close(&ours);
}

#define CASES(X)                                                                                                               \
    X(mps_rank_in_kernel, IN_KERNEL, true, true, false)                                                                        \
    X(mps_process_in_kernel, IN_KERNEL, true, false, false)                                                                    \
    X(mps_process_in_kernel_clock, IN_KERNEL, true, false, true)                                                               \
    X(mps_process_idle, IDLE, true, false, false)                                                                              \
    X(mps_process_ends, BY_ITSELF, true, false, false)                                                                         \
    X(mps_rank_idle, IDLE, true, true, false)                                                                                  \
    X(process_in_kernel, IN_KERNEL, false, false, false)                                                                       \
    X(rank_in_kernel, IN_KERNEL, false, true, false)

#define X(name, death, mps, fccd, clock)                                                                                       \
    static void name(void)                                                                                                     \
    {                                                                                                                          \
        bench_run(&(struct bench){death, mps, fccd, clock});                                                                   \
    }
CASES(X)
#undef X

int main(void)
{
#define X(name, death, mps, fccd, clock) {#name, name, 60},
    static const struct test cases[] = {CASES(X)};
#undef X

    return gpus_found() ? tests_run("neighbour_gpu", TESTS(cases)) : EXIT_SUCCESS;
}
