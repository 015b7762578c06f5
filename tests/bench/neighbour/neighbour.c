/* SPDX-License-Identifier: MIT
 *
 * neighbour.c - what a hostile job of another user costs a job, and how much of that is fccd's doing.
 *
 *     neighbour FCCD [ROUNDS [MS [OPTION...]]]    starts that fccd, with these further options of fccd's; as root, to be two users
 *
 * The victim has two ranks, which run a noop and an all_reduce of 64 KiB by turns, and, a hundred times a second, somebody connects to another of its
 * jobs, which is what the broker has to do for it. They are measured alone, and beside a neighbour of each kind. Its processes, its workers, and the
 * broker for it keep some cores busy, as any program of any user may, which costs the victim something without fccd: caches, clocks, whose turn it is.
 * So after each kind come as many processes as that, without fccd: once such as only compute, and once such as use the kernel for as much time as the
 * neighbour did, the others streaming through memory. What the neighbour costs beyond these is fccd's. How many cores each kind keeps busy is
 * measured before the rounds. In each round all of them come, one after the other, so what changes on the machine concerns all. At last
 * come all kinds but one, to find which it is.
 *
 * NEIGHBOUR_NICE=19: the neighbour's processes, and those without fccd, are as nice as an operator would make those of a user with a small weight;
 * fccd's part of that is --user-weights 40002=1.
 *
 * It prints, for each: what it kept busy; the median and 99th percentile of the three, and the ratio of these to those alone; and for each
 * kind the ratios to as much without fccd. All are medians over the rounds; of ratios, two in the same round are compared, and the least and the most
 * are printed, too.
 */
#include <errno.h>
#include <grp.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/neighbour/neighbour.h"

enum {
    PIDS = 512,     /* of a phase, at most */
    WARM_MS = 200,  /* of a neighbour, before it counts */
    GONE_MS = 3000, /* the most that is waited for its workers to end, before the next phase */
};

static const struct phase kinds[KINDS + WAYS] = {
    {.name = "flood", .ways = {flood_rank}},
    {.name = "products", .ways = {products_rank}},
    {.name = "connections", .ways = {connect_rank}},
    {.name = "refusals", .ways = {refused_rank}},
    {.name = "all four", .ways = {flood_rank, products_rank, connect_rank, refused_rank}},
    {.name = "buffers", .ways = {buffers_rank}},
    {.name = "all but flood", .ways = {products_rank, connect_rank, refused_rank}},
    {.name = "all but products", .ways = {flood_rank, connect_rank, refused_rank}},
    {.name = "all but connections", .ways = {flood_rank, products_rank, refused_rank}},
    {.name = "all but refusals", .ways = {flood_rank, products_rank, connect_rank}},
};

struct phase phases[PHASES];
struct result results[ROUNDS_MOST][PHASES];
int nrounds;
static pid_t broker, victims[4]; /* its ranks, their worker, who connects */
struct shared *s;

double now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

void must(int status, const char *what)
{
    if (!status)
        return;
    if (!s->ends) /* the neighbour's processes are killed one after the other */
        (void)fprintf(stderr, "%s: %d: %s\n", what, status, fcc_last_error());
    _exit(1);
}

void become(uid_t uid)
{
    /* If the bench is killed, so are its processes; after the change of users, which would take that back. */
    if (setgroups(0, NULL) || setgid(uid) || setuid(uid) || prctl(PR_SET_PDEATHSIG, SIGKILL))
        _exit(3);
}

static void become_hostile(void)
{
    const char *nicer = getenv("NEIGHBOUR_NICE");

    if (nicer && setpriority(PRIO_PROCESS, 0, (int)strtol(nicer, NULL, 10)))
        _exit(5);
    become(HOSTILE);
}

fcc_context *context_open(const char *job)
{
    const struct fcc_connect_options options = {.socket_path = s->socket, .job = job};
    fcc_context *context;

    must(fcc_connect(&options, &context), "fcc_connect");
    return context;
}

struct fcc_tensor tensor_new(fcc_comm *comm, enum fcc_buffer_kind kind, int64_t rows, int64_t cols)
{
    fcc_buffer *b;

    must(fcc_buffer_alloc(comm, kind, (size_t)(rows * cols) * sizeof(float), &b), "fcc_buffer_alloc");
    return rows == 1 ? fcc_tensor_1d(b, 0, FCC_F32, cols) : fcc_tensor_2d(b, 0, FCC_F32, rows, cols);
}

struct fcc_all_reduce_args reduce_new(fcc_comm *comm)
{
    return (struct fcc_all_reduce_args){.in = tensor_new(comm, FCC_BUFFER_LOCAL, 1, ELEMENTS),
                                        .out = tensor_new(comm, FCC_BUFFER_RESULT, 1, ELEMENTS)};
}

/* ---- phases ---- */

static unsigned plain_start(int n, void (*main_)(void), pid_t pids[], unsigned at)
{
    for (int i = 0; i < n && at < PIDS; i++)
        if (!(pids[at++] = fork())) {
            become_hostile();
            main_();
        }
    return at;
}

static unsigned neighbour_start(const struct phase *p, pid_t pids[PIDS])
{
    unsigned n = plain_start(p->computes, plain_computes, pids, 0);

    n = plain_start(p->streams, plain_streams, pids, n);
    n = plain_start(p->calls, plain_calls, pids, n);
    for (int k = 0; k < WAYS && p->ways[k]; k++)
        for (int rank = 0; rank < 2; rank++)
            if (!(pids[n++] = fork())) {
                become_hostile();
                p->ways[k](rank);
            }
    return n;
}

static void ids_make(void)
{
    fcc_context *context = context_open("ids");

    for (int c = 0; c < COMMS; c++)
        must(fcc_get_unique_id(context, &s->flood[c]), "fcc_get_unique_id");
    must(fcc_get_unique_id(context, &s->products), "fcc_get_unique_id");
    fcc_disconnect(context);
}

static void times_take(struct result *r)
{
    for (int m = 0; m < MEASURED; m++) {
        unsigned n = r->n[m] = atomic_load_explicit(&s->counts[m], memory_order_acquire);
        qsort(s->samples[m], n, sizeof(double), is_more);
        r->p50[m] = n ? s->samples[m][n / 2] : NAN;
        r->p99[m] = n ? s->samples[m][(size_t)n * 99 / 100] : NAN;
    }
}

static bool phase_run(const struct phase *p, unsigned ms, struct result *r)
{
    pid_t pids[PIDS];
    struct load begin, end;
    int status;
    bool well = true;

    if (p->ways[0])
        ids_make();
    s->hostile_done = 0;
    unsigned n = neighbour_start(p, pids);
    (void)usleep(WARM_MS * 1000);
    for (int m = 0; m < MEASURED; m++)
        s->counts[m] = 0;
    uint64_t done = s->hostile_done;
    load_read(&begin, broker, victims);
    s->measures = 1;
    (void)usleep(ms * 1000);
    s->measures = 0;
    load_read(&end, broker, victims); /* in this time the last samples have been written */
    r->load = load_between(&begin, &end);
    r->done = (double)(s->hostile_done - done) / r->load.at * 1e6;
    times_take(r);
    for (unsigned i = 0; i < n; i++)
        well &= waitpid(pids[i], &status, WNOHANG) == 0;
    s->ends = 1;
    for (unsigned i = 0; i < n; i++)
        (void)kill(pids[i], SIGKILL);
    for (unsigned i = 0; i < n; i++)
        (void)waitpid(pids[i], &status, 0);
    for (int i = 0; i < GONE_MS && processes_end(HOSTILE); i += 20) /* workers: otherwise they would stay for a while */
        (void)usleep(20000);
    s->ends = 0;
    if (!well)
        (void)fprintf(stderr, "%s: a process of the neighbour has ended\n", p->name);
    return well;
}

/* Cores that the neighbour keeps busy, and the broker for it, which has other things to do, too. */
static double hostile_cores(const struct load *l, const struct load *alone, bool system_only)
{
    double more = l->broker / l->at - alone->broker / alone->at;

    return (l->hostile_system + (system_only ? 0 : l->hostile_user)) / l->at + (more > 0 ? more : 0);
}

/* Measures what each kind keeps busy, and makes the phases of a round. */
static bool phases_make(unsigned ms)
{
    struct result alone, r;
    struct phase *p = phases;
    bool well = true;

    *p = (struct phase){.name = "alone"};
    well &= phase_run(p++, ms, &alone);
    for (int k = 0; k < KINDS + WAYS; k++) {
        *p = kinds[k];
        if (k >= KINDS) {
            p++;
            continue;
        }
        well &= phase_run(p++, ms, &r);
        int all = (int)lround(hostile_cores(&r.load, &alone.load, false)),
            calls = (int)lround(hostile_cores(&r.load, &alone.load, true));
        all = all < 1 ? 1 : all > PIDS ? PIDS : all;
        calls = calls < all ? calls : all;
        *p = (struct phase){.computes = all};
        (void)snprintf(p->name, sizeof(p->name), "%d that compute", all);
        p++;
        *p = (struct phase){.streams = all - calls, .calls = calls};
        (void)snprintf(p->name, sizeof(p->name), "%d stream, %d call", all - calls, calls);
        p++;
    }
    return well;
}

/* The victim's processes measure until they are told to end. */
static bool measure(unsigned ms)
{
    int status;
    bool well = true;

    for (int i = 0; i < 2; i++)
        if (!(victims[i] = fork()))
            victim_rank(i);
    for (int i = 0; i < 1000 && s->formed < 2; i++)
        (void)usleep(10000);
    victims[2] = worker_of(VICTIM, broker);
    if (s->formed < 2 || !victims[2]) {
        (void)fprintf(stderr, "neighbour: the victim has %d ranks after 10 s, and %s\n", s->formed,
                      victims[2] ? "a worker" : "not one worker");
        return false;
    }
    if (!(victims[3] = fork()))
        victim_connects();
    (void)usleep(1000000);
    well &= phases_make(ms);
    for (int i = 0; i < nrounds; i++)
        for (int p = 0; p < PHASES; p++)
            well &= phase_run(&phases[p], ms, &results[i][p]);
    s->quit = 1;
    for (int i = 0; i < 4; i++)
        if (i != 2)
            well &= waitpid(victims[i], &status, 0) == victims[i] && !status;
    return well;
}

/* ---- the daemon ---- */

static char directory[] = "/tmp/fccd-neighbour.XXXXXX";

static pid_t daemon_start(const char *fccd, char *const more[])
{
    const char *fixed[] = {fccd, "--socket", s->socket, "--cpu-devices", "2", "--gpus", "none", "--log-level", "error"};
    char *argv[64];
    size_t n = sizeof(fixed) / sizeof(fixed[0]);
    struct stat st;

    for (size_t i = 0; i < n; i++)
        argv[i] = (char *)(uintptr_t)fixed[i];
    for (; *more && n < 63; more++)
        argv[n++] = *more;
    argv[n] = NULL;
    (void)snprintf(s->socket, sizeof(s->socket), "%s/fccd.sock", directory);
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        (void)execv(fccd, argv);
        perror(fccd);
        _exit(1);
    }
    for (int i = 0; i < 500 && stat(s->socket, &st); i++)
        (void)usleep(10000);
    if (chmod(directory, 0711) || chmod(s->socket, 0666))
        perror(s->socket);
    return pid;
}

static void daemon_end(void)
{
    int status;

    (void)kill(broker, SIGTERM);
    (void)waitpid(broker, &status, 0);
    (void)unlink(s->socket);
    (void)rmdir(directory);
}

int main(int argc, char *argv[])
{
    int ms = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 500;

    nrounds = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 4;
    if (argc < 2 || nrounds < 1 || nrounds > ROUNDS_MOST || ms < 1) {
        (void)fprintf(stderr, "usage: neighbour FCCD [ROUNDS [MS [OPTION...]]]    ROUNDS: 1 to %d\n", ROUNDS_MOST);
        return 2;
    }
    if (geteuid()) {
        (void)fprintf(stderr, "neighbour: it has to be root, to be two users, and to see what their workers take\n");
        return 2;
    }
    s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s == MAP_FAILED || !mkdtemp(directory)) {
        perror("neighbour");
        return 1;
    }
    broker = daemon_start(argv[1], argv + (argc > 4 ? 4 : argc));
    fcc_context *context = context_open("ids");
    must(fcc_get_unique_id(context, &s->victim), "fcc_get_unique_id");
    fcc_disconnect(context);
    bool well = measure((unsigned)ms);
    if (well)
        figures_print();
    daemon_end();
    return well ? 0 : 1;
}
