/* SPDX-License-Identifier: MIT
 *
 * neighbour.c - what a hostile job of another user costs a job, and how much of that is fccd's doing.
 *
 *     neighbour FCCD [ROUNDS [MS [OPTION...]]]    starts that fccd, with these further options of fccd's; as root, to be two users
 *
 * The victim has two ranks, which run a noop and an all_reduce of 64 KiB by turns, and, a hundred times a second, somebody connects to another of its
 * jobs, which is what the broker has to do for it. They are measured alone; beside a neighbour, of each kind; and
 * beside as many processes that only compute as the neighbour keeps cores busy with: what those cost is the kernel's scheduler's, and what the
 * neighbour costs beyond it is fccd's. In each round all of them come, one after the other, so what changes on the machine concerns all.
 *
 * NEIGHBOUR_NICE=19: the neighbour's processes, and those that compute, are as nice as an operator would make those of a user with a small weight;
 * fccd's part of that is --user-weights 40002=1.
 *
 * It prints, for each, how many there were of the three, their median and 99th percentile, and the ratio of these to those alone.
 */
#include <errno.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/fccclient.h"

enum {
    VICTIM = 40001, /* users */
    HOSTILE,
    BLOCK = 50, /* pairs of operators between two looks whether the phase is over */
    SAMPLES = 1 << 19,
    ELEMENTS = 16384, /* of the all_reduce: 64 KiB */
    COMMS = 8,        /* of the flood */
    AHEAD = 4,        /* operators that each of them has in flight */
    SIDE = 512,       /* of the products */
    PIDS = 16,
    WARM_MS = 200, /* of a neighbour, before it counts */
};

static const char *const measured[] = {"noop", "all_reduce", "connect"};
enum { OPERATORS = 2, CONNECT = OPERATORS, MEASURED };

struct shared {
    char socket[108];
    struct fcc_unique_id victim, flood[COMMS], products;
    _Atomic int met, over;   /* the victim's: ranks that have come to a block's end; whether the phase is over */
    _Atomic int phase, quit; /* the phase that runs; -1: none */
    _Atomic int hostile_met;
    _Atomic uint64_t hostile_done; /* what the neighbour has done in this phase */
};

static struct shared *s;
static double *samples; /* [phase][measured][SAMPLES] */

static double now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void must(int status, const char *what)
{
    if (!status)
        return;
    (void)fprintf(stderr, "%s: %d: %s\n", what, status, fcc_last_error());
    _exit(1);
}

static void become(uid_t uid)
{
    if (geteuid() == 0 && (setgroups(0, NULL) || setgid(uid) || setuid(uid)))
        _exit(3);
}

static void become_hostile(void)
{
    const char *nicer = getenv("NEIGHBOUR_NICE");

    if (nicer && setpriority(PRIO_PROCESS, 0, atoi(nicer)))
        _exit(5);
    become(HOSTILE);
}

static void meet(_Atomic int *at, int *turn)
{
    int wanted = 2 * ++*turn;

    (void)atomic_fetch_add(at, 1);
    while (atomic_load(at) < wanted)
        (void)usleep(50);
}

static fcc_context *context_open(const char *job)
{
    const struct fcc_connect_options options = {.socket_path = s->socket, .job = job};
    fcc_context *context;

    must(fcc_connect(&options, &context), "fcc_connect");
    return context;
}

static struct fcc_tensor tensor_new(fcc_comm *comm, enum fcc_buffer_kind kind, int64_t rows, int64_t cols)
{
    fcc_buffer *b;

    must(fcc_buffer_alloc(comm, kind, (size_t)(rows * cols) * sizeof(float), &b), "fcc_buffer_alloc");
    return rows == 1 ? fcc_tensor_1d(b, 0, FCC_F32, cols) : fcc_tensor_2d(b, 0, FCC_F32, rows, cols);
}

static struct fcc_all_reduce_args reduce_new(fcc_comm *comm)
{
    return (struct fcc_all_reduce_args){.in = tensor_new(comm, FCC_BUFFER_LOCAL, 1, ELEMENTS),
                                        .out = tensor_new(comm, FCC_BUFFER_RESULT, 1, ELEMENTS)};
}

/* ---- the victim ---- */

static unsigned (*counts)[MEASURED]; /* [phase]: shared; each is of one process */

static void sample_add(int phase, int what, double us)
{
    unsigned *n = &counts[phase][what];

    if (*n < SAMPLES)
        samples[((size_t)phase * MEASURED + (size_t)what) * SAMPLES + (*n)++] = us;
}

static void victim_block(fcc_comm *comm, const struct fcc_all_reduce_args *args, int phase, int rank)
{
    for (int i = 0; i < BLOCK; i++) {
        double t[OPERATORS + 1];
        t[0] = now_us();
        must(fcc_noop(comm), "noop");
        t[1] = now_us();
        must(fcc_all_reduce(comm, args), "all_reduce");
        t[2] = now_us();
        for (int op = 0; rank == 0 && phase >= 0 && op < OPERATORS; op++)
            sample_add(phase, op, t[op + 1] - t[op]);
    }
}

static void victim_connects(void)
{
    become(VICTIM);
    fcc_context *stays = context_open("connects"); /* and so does the worker */
    while (!s->quit) {
        int phase = s->phase;
        double begin = now_us();
        fcc_context *context = context_open("connects");
        double us = now_us() - begin;
        if (phase >= 0 && phase == s->phase)
            sample_add(phase, CONNECT, us);
        fcc_disconnect(context);
        (void)usleep(10000);
    }
    fcc_disconnect(stays);
    _exit(0);
}

static void victim_rank(int rank)
{
    fcc_comm *comm;
    int turn = 0, phase;

    become(VICTIM);
    fcc_context *context = context_open("victim");
    must(fcc_comm_init(context, &s->victim, 2, rank, NULL, &comm), "fcc_comm_init");
    struct fcc_all_reduce_args args = reduce_new(comm);
    while (!s->over) {
        phase = s->phase;
        victim_block(comm, &args, phase == s->phase ? phase : -1, rank);
        if (rank == 0)
            s->over = s->quit;
        meet(&s->met, &turn);
    }
    fcc_disconnect(context);
    _exit(0);
}

/* ---- the neighbour, until it is killed ---- */

/* Floods: COMMS communicators with operators in flight all the time. */
static void flood_rank(int rank)
{
    fcc_comm *comms[COMMS];
    struct fcc_all_reduce_args args[COMMS];
    fcc_request *requests[COMMS][AHEAD];
    fcc_context *context = context_open("flood");

    for (int c = 0; c < COMMS; c++) {
        must(fcc_comm_init(context, &s->flood[c], 2, rank, NULL, &comms[c]), "fcc_comm_init");
        args[c] = reduce_new(comms[c]);
    }
    for (unsigned long n = 0;; n++)
        for (int c = 0; c < COMMS; c++) {
            fcc_request **r = &requests[c][n % AHEAD];
            if (n >= AHEAD) {
                must(fcc_request_wait(*r, -1), "fcc_request_wait");
                fcc_request_free(*r);
            }
            must(n % 2 ? fcc_all_reduce_start(comms[c], &args[c], r) : fcc_noop_start(comms[c], r), "start");
            s->hostile_done++;
        }
}

/* Big products, one after the other. */
static void products_rank(int rank)
{
    fcc_context *context = context_open("products");
    fcc_comm *comm;

    must(fcc_comm_init(context, &s->products, 2, rank, NULL, &comm), "fcc_comm_init");
    struct fcc_gemm_all_reduce_args args = {.a = tensor_new(comm, FCC_BUFFER_LOCAL, SIDE, SIDE),
                                            .b = tensor_new(comm, FCC_BUFFER_LOCAL, SIDE, SIDE),
                                            .c = tensor_new(comm, FCC_BUFFER_RESULT, SIDE, SIDE)};
    for (;; s->hostile_done++)
        must(fcc_gemm_all_reduce(comm, &args), "gemm_all_reduce");
}

/* Connects and leaves, in many jobs: each has a worker, which ends when it has had no client for a while. */
static void connect_rank(int rank)
{
    for (unsigned n = 0;; n++) {
        char job[32];
        const struct fcc_connect_options options = {.socket_path = s->socket, .job = job};
        fcc_context *context;

        (void)snprintf(job, sizeof(job), "connect-%u", n % 5 + 5 * (unsigned)rank);
        if (!fcc_connect(&options, &context))
            fcc_disconnect(context);
        s->hostile_done++;
    }
}

/* Asks for what it does not get. */
static void refused_rank(int rank)
{
    fcc_context *context = context_open("refused");
    struct fcc_unique_id id;
    fcc_comm *comm, *wrong;
    fcc_buffer *b;

    (void)rank;
    must(fcc_get_unique_id(context, &id), "fcc_get_unique_id");
    must(fcc_comm_init(context, &id, 1, 0, NULL, &comm), "fcc_comm_init");
    struct fcc_all_reduce_args args = reduce_new(comm);
    args.out.shape[0] = ELEMENTS / 2; /* not as long as the other one */
    for (;; s->hostile_done++) {
        if (!fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)1 << 45, &b) || !fcc_all_reduce(comm, &args) ||
            !fcc_comm_init(context, &id, 1, 0, NULL, &wrong))
            _exit(4);
    }
}

/* ---- phases ---- */

static const struct phase {
    const char *name;
    void (*rank[4])(int); /* what the neighbour does, each with two processes */
    int busy;             /* how many processes only compute */
    int like;             /* the phase that says what so much computing costs, for the ratio. 0: none */
} phases[] = {
    {"alone", {NULL}, 0, 0},
    {"2 that compute", {NULL}, 2, 0},
    {"3 that compute", {NULL}, 3, 0},
    {"9 that compute", {NULL}, 9, 0},
    {"flood", {flood_rank}, 0, 2},
    {"products", {products_rank}, 0, 2},
    {"connections", {connect_rank}, 0, 2},
    {"refusals", {refused_rank}, 0, 2},
    {"all of these", {flood_rank, products_rank, connect_rank, refused_rank}, 0, 3},
};
enum { PHASES = sizeof(phases) / sizeof(phases[0]) };

static void compute(void)
{
    for (volatile unsigned n = 0;; n++)
        ;
}

static unsigned neighbour_start(const struct phase *p, pid_t pids[PIDS])
{
    unsigned n = 0;

    for (int i = 0; i < p->busy; i++)
        if (!(pids[n++] = fork())) {
            become_hostile();
            compute();
        }
    for (int k = 0; k < 4 && p->rank[k]; k++)
        for (int rank = 0; rank < 2; rank++)
            if (!(pids[n++] = fork())) {
                become_hostile();
                p->rank[k](rank);
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

static bool phase_run(int number, unsigned ms)
{
    pid_t pids[PIDS];
    int status;
    bool well = true;

    if (phases[number].rank[0])
        ids_make();
    unsigned n = neighbour_start(&phases[number], pids);
    (void)usleep(WARM_MS * 1000);
    s->phase = number;
    (void)usleep(ms * 1000);
    s->phase = -1;
    for (unsigned i = 0; i < n; i++)
        well &= waitpid(pids[i], &status, WNOHANG) == 0;
    for (unsigned i = 0; i < n; i++)
        (void)kill(pids[i], SIGKILL);
    for (unsigned i = 0; i < n; i++)
        (void)waitpid(pids[i], &status, 0);
    (void)usleep(WARM_MS * 1000); /* fccd has ended what they had */
    if (!well)
        (void)fprintf(stderr, "%s: a process of the neighbour has ended\n", phases[number].name);
    return well;
}

/* ---- figures ---- */

static int is_more(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void figures_print(void)
{
    double alone[MEASURED][2], of[PHASES][MEASURED][2];

    printf("%-16s", "beside");
    for (int m = 0; m < MEASURED; m++)
        printf("  %10s: number  p50 us (ratio)   p99 us (ratio)", measured[m]);
    printf("  p99 to that of as much computing\n");
    for (int p = 0; p < PHASES; p++) {
        printf("%-16s", phases[p].name);
        for (int m = 0; m < MEASURED; m++) {
            double *v = &samples[((size_t)p * MEASURED + (size_t)m) * SAMPLES];
            unsigned n = counts[p][m];
            qsort(v, n, sizeof(*v), is_more);
            of[p][m][0] = n ? v[n / 2] : 0;
            of[p][m][1] = n ? v[(size_t)n * 99 / 100] : 0;
            if (p == 0)
                memcpy(alone[m], of[p][m], sizeof(alone[m]));
            printf("  %19u %7.1f %6.2f %9.1f %6.2f", n, of[p][m][0], of[p][m][0] / alone[m][0], of[p][m][1],
                   of[p][m][1] / alone[m][1]);
        }
        for (int m = 0; m < MEASURED && phases[p].like; m++)
            printf(" %6.2f", of[p][m][1] / of[phases[p].like][m][1]);
        printf("\n");
    }
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

/* The victim's processes measure until they are told to end. */
static bool measure(int rounds, unsigned ms, double work[PHASES])
{
    pid_t pids[3];
    int status;
    bool well = true;

    for (int i = 0; i < 3; i++)
        if (!(pids[i] = fork())) {
            if (i == 2)
                victim_connects();
            victim_rank(i);
        }
    (void)usleep(1000000);
    for (int i = 0; i < rounds; i++)
        for (int p = 0; p < PHASES; p++) {
            s->hostile_done = 0;
            well &= phase_run(p, ms);
            work[p] += (double)s->hostile_done;
        }
    s->quit = 1;
    for (int i = 0; i < 3; i++)
        well &= waitpid(pids[i], &status, 0) == pids[i] && !status;
    return well;
}

static void *memory_new(size_t bytes)
{
    void *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (m != MAP_FAILED)
        return m;
    perror("neighbour");
    exit(1);
}

int main(int argc, char *argv[])
{
    int rounds = argc > 2 ? atoi(argv[2]) : 3, ms = argc > 3 ? atoi(argv[3]) : 2000, status;
    double work[PHASES] = {0};

    if (argc < 2 || rounds < 1 || ms < 1) {
        (void)fprintf(stderr, "usage: neighbour FCCD [ROUNDS [MS [OPTION...]]]\n");
        return 2;
    }
    s = memory_new(sizeof(*s));
    samples = memory_new(sizeof(*samples) * PHASES * MEASURED * SAMPLES);
    counts = memory_new(sizeof(*counts) * PHASES);
    if (!mkdtemp(directory)) {
        perror(directory);
        return 1;
    }
    pid_t fccd = daemon_start(argv[1], argv + (argc > 4 ? 4 : argc));
    s->phase = -1;
    fcc_context *context = context_open("ids");
    must(fcc_get_unique_id(context, &s->victim), "fcc_get_unique_id");
    fcc_disconnect(context);
    bool well = measure(rounds, (unsigned)ms, work);
    figures_print();
    for (int p = 0; p < PHASES; p++)
        if (phases[p].rank[0])
            printf("%s: the neighbour has done %.0f\n", phases[p].name, work[p]);
    (void)kill(fccd, SIGTERM);
    (void)waitpid(fccd, &status, 0);
    (void)rmdir(directory);
    return well ? 0 : 1;
}
