/* SPDX-License-Identifier: MIT
 *
 * bench.c - the verb bench: measure an operator, with a process for each rank.
 *
 *   parent                                   rank r
 *   (--local: starts fccd, for each node)
 *   asks each fccd for its devices
 *   forks, before it has used the library -> connects, joins (the id comes from rank 0 over a pipe)
 *   watches for progress                     fills its buffers, warms up, measures, checks
 *                                            leaves its times, or its error, in shared memory; exits
 *   reports
 *   (--local: ends fccd)
 */
#include "client/fccctl/bench/bench.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define STEP_MS 100
#define AFTER_FAILURE_MS 15000 /* time for the other ranks to report a rank's failure and end */

static volatile sig_atomic_t interrupted; /* the signal that was received; 0: none */

static void interrupt(int signal_number)
{
    interrupted = signal_number;
}

static void signals_set(void (*handler)(int))
{
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = handler};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        (void)sigaction(numbers[i], &action, NULL);
}

/* ---- options ---- */

enum { UNSAID = -1, BOTH, FUSED, SEQUENTIAL, AUTO, ROUTES, ANY_ORDER };

static void kinds_choose(struct bench *b, int schedule)
{
    static const struct {
        int n;
        enum bench_kind kinds[4];
    } rows[] = {
        [BOTH] = {4, {BENCH_FUSED, BENCH_SEQUENTIAL, BENCH_COMPUTE, BENCH_COMM}},
        [FUSED] = {1, {BENCH_FUSED}},
        [SEQUENTIAL] = {1, {BENCH_SEQUENTIAL}},
        [AUTO] = {3, {BENCH_AUTO, BENCH_FUSED, BENCH_SEQUENTIAL}}, /* and the schedules that it chooses from */
        [ROUTES] = {4, {BENCH_FLAT, BENCH_HIERARCHICAL, BENCH_COMM_FLAT, BENCH_COMM_HIERARCHICAL}},
        [ANY_ORDER] = {3, {BENCH_ANY_ORDER, BENCH_FUSED, BENCH_SEQUENTIAL}},
    };

    if (schedule == UNSAID)
        schedule = b->prepared ? FUSED : BOTH;
    if (!b->shape.spec->compute || (b->shape.spec->compute == COMPUTE_VECTOR && schedule != ROUTES))
        schedule = FUSED;                           /* the operator has one schedule */
    b->nkinds = b->prepared ? 1 : rows[schedule].n; /* prepared: auto has nothing to choose from */
    memcpy(b->kinds, rows[schedule].kinds, sizeof(rows[schedule].kinds));
}

/* Checks the options about nodes. Returns 0, or EXIT_USAGE (printed). */
static int nodes_parse(const struct call *call, struct bench *b, const char *list, char *room, size_t size)
{
    if (b->nodes > 1 && !b->local)
        return verb_error(call, EXIT_USAGE,
                          "--nodes: %d: only private daemons can be as many as wanted; --local starts them, and --sockets "
                          "takes those that there are",
                          b->nodes);
    if (list && b->local)
        return verb_error(call, EXIT_USAGE, "--sockets: \"%s\": --local brings its own", list);
    if (list && (snprintf(room, size, "%s", list) >= (int)size || bench_sockets_split(b, room)))
        return verb_error(call, EXIT_USAGE, "--sockets: \"%.80s\": allowed are 1 to %d paths with a comma between them", list,
                          LOCAL_NODES_MAX);
    return shape_nodes_check(&b->shape, call, b->nodes);
}

/* Checks the options about streams. Returns 0, or EXIT_USAGE (printed). */
static int stream_parse(const struct call *call, const struct bench *b, bool cpu)
{
    char names[512];

    if (b->stream && cpu)
        return verb_error(call, EXIT_USAGE, "--stream: %" PRId64 ": a cpu device has no streams; --device gpu has", b->stream);
    if ((b->group || b->prepared) && !b->stream)
        return verb_error(call, EXIT_USAGE, "--%s: allowed with --stream", b->group ? "group" : "prepared");
    if (b->prepared && b->group)
        return verb_error(call, EXIT_USAGE, "--prepared: allowed without --group");
    if (b->prepared && b->shape.spec->bind != BIND_PREPARED)
        return verb_error(call, EXIT_USAGE, "--prepared: %s cannot be prepared; %s can", b->shape.spec->name,
                          op_names(BIND_PREPARED, " and ", names, sizeof(names)));
    return 0;
}

static int schedule_parse(const struct call *call, const struct bench *b, int schedule, const char *name)
{
    if (b->prepared && schedule != UNSAID && schedule != FUSED && schedule != AUTO)
        return verb_error(call, EXIT_USAGE, "--schedule: %s: allowed with --prepared are fused and auto", name);
    if (schedule == ROUTES && b->shape.spec->exchange != EXCHANGE_REDUCE)
        return verb_error(call, EXIT_USAGE, "--schedule: routes: %s has one; what adds the ranks' results has several",
                          b->shape.spec->name);
    if (schedule == ANY_ORDER && !op_adds_products(b->shape.op))
        return verb_error(call, EXIT_USAGE, "--schedule: unordered: %s adds no products", b->shape.spec->name);
    return 0;
}

static bool options_parse(struct call *call, struct bench *b)
{
    static const char *const schedules[] = {"both", "fused", "sequential", "auto", "routes", "unordered", NULL};
    static const char *const devices[] = {"cpu", "gpu", "cuda", "hip", NULL};
    static char sockets[4096];
    struct arg args[SHAPE_ARGS + 11];
    size_t n = shape_args(&b->shape, args);
    const char *list = NULL;
    int64_t nodes = 1;
    int schedule = UNSAID, device = 0;
    const struct arg own[] = {
        {"device", 0, ARG_CHOICE, &device, 0, 0, devices, "KIND", "what the ranks use: cpu, gpu (any), cuda or hip [cpu]"},
        {"local", 0, ARG_FLAG, &b->local, 0, 0, NULL, NULL,
         "start a private fccd, with a cpu device for each rank, and end it"},
        {"nodes", 0, ARG_INT, &nodes, 1, LOCAL_NODES_MAX, NULL, "K",
         "with --local: as many fccds, over tcp, that the ranks are spread over [1]"},
        {"sockets", 0, ARG_TEXT, &list, 0, 0, NULL, "PATH,...", "spread the ranks over the fccds that listen there"},
        {"iters", 0, ARG_INT, &b->iters, 1, 10000000, NULL, "I", "iterations that are measured [20]"},
        {"warmup", 0, ARG_INT, &b->warmup, 0, 10000000, NULL, "W", "iterations before that [5]"},
        {"stream", 0, ARG_INT, &b->stream, 0, BENCH_STREAM_MAX, NULL, "K",
         "on GPUs: enqueue K operators on a stream, and time them together [0: one call at a time]"},
        {"group", 0, ARG_FLAG, &b->group, 0, 0, NULL, NULL,
         "with --stream: as one group, which the stream waits for at its end"},
        {"prepared", 0, ARG_FLAG, &b->prepared, 0, 0, NULL, NULL,
         "with --stream, on CUDA GPUs: as runs of one operator, prepared once"},
        {"schedule", 0, ARG_CHOICE, &schedule, 0, 0, schedules, "S",
         "both, fused, sequential, auto (beside both), routes: flat and hierarchical, or unordered: fused in any order, beside "
         "both [both]"},
        {"apart", 0, ARG_FLAG, &b->apart, 0, 0, NULL, NULL,
         "all iterations of a schedule, then those of the next one; otherwise by turns"},
        {"check", 0, ARG_FLAG, &b->check, 0, 0, NULL, NULL, "compare the results with a plain reference"},
    };

    *b = (struct bench){.shape = b->shape, .iters = 20, .warmup = 5, .id_pipe = {-1, -1}};
    memcpy(args + n, own, sizeof(own));
    if (!args_parse(call, args, n + sizeof(own) / sizeof(own[0]), 1))
        return false;
    b->json = call->json;
    b->nodes = (int)nodes;
    b->sockets[0] = call->socket;
    b->device = devices[device];
    call->exit = shape_finish(&b->shape, call);
    if (!call->exit)
        call->exit = stream_parse(call, b, device == 0);
    if (!call->exit)
        call->exit = schedule_parse(call, b, schedule, schedule == UNSAID ? "" : schedules[schedule]);
    if (!call->exit)
        call->exit = nodes_parse(call, b, list, sockets, sizeof(sockets));
    if (call->exit)
        return false;
    kinds_choose(b, schedule);
    if (!b->shape.spec->compute)
        b->check = false; /* the operator has no result */
    return true;
}

/* ---- the ranks ---- */

static size_t shared_bytes(const struct bench *b)
{
    return (size_t)b->shape.nranks * (sizeof(struct bench_rank) + (size_t)(b->nkinds * b->iters) * sizeof(double));
}

struct children {
    pid_t pid[FCC_MAX_RANKS]; /* 0: the process has ended */
    int wait_status[FCC_MAX_RANKS];
    bool killed;      /* children_kill() was called */
    int left, failed; /* left: still running. failed: ended with an error, not by children_kill() */
};

static bool child_failed(const struct children *c, int rank)
{
    int s = c->wait_status[rank];

    return s != 0 && !(c->killed && WIFSIGNALED(s) && WTERMSIG(s) == SIGKILL);
}

static void children_kill(struct children *c, int nranks)
{
    for (int r = 0; r < nranks; r++)
        if (c->pid[r] > 0)
            (void)kill(c->pid[r], SIGKILL);
    c->killed = true;
}

static sigset_t child_ends(void)
{
    sigset_t set;

    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    return set;
}

static int children_start(struct bench *b, struct children *c)
{
    const sigset_t ends = child_ends();
    pid_t parent = getpid();

    (void)sigprocmask(SIG_BLOCK, &ends, NULL);
    (void)fflush(NULL);
    for (int r = 0; r < b->shape.nranks; r++) {
        pid_t pid = fork();
        if (pid < 0)
            return -errno;
        if (pid == 0) {
            signals_set(SIG_DFL);
            (void)sigprocmask(SIG_UNBLOCK, &ends, NULL);
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(EXIT_UNWELL);
            _exit(bench_rank_run(b, r) ? EXIT_UNWELL : EXIT_WELL);
        }
        c->pid[r] = pid;
        c->left++;
    }
    return 0;
}

static void children_reap(struct children *c, int nranks)
{
    for (int r = 0; r < nranks; r++) {
        if (c->pid[r] <= 0 || waitpid(c->pid[r], &c->wait_status[r], WNOHANG) != c->pid[r])
            continue;
        c->pid[r] = 0;
        c->left--;
        c->failed += child_failed(c, r);
    }
}

/* Waits until all ranks have ended. Kills them if a signal was received, if no rank makes progress for too long, or if one
 * has failed and the others do not end. Returns 0 or -ETIMEDOUT. */
static int children_wait(struct bench *b, struct children *c)
{
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000L};
    const sigset_t ends = child_ends(); /* blocked, so a SIGCHLD between two checks is not lost */
    int64_t deadline = clock_ms() + b->limit_ms;
    uint64_t seen = 0;
    bool failure_seen = false;
    int status = 0;

    for (children_reap(c, b->shape.nranks); c->left > 0; children_reap(c, b->shape.nranks)) {
        uint64_t now = 0;
        for (int r = 0; r < b->shape.nranks; r++)
            now += atomic_load_explicit(&b->ranks[r].progress, memory_order_relaxed);
        if (c->failed && !failure_seen) {
            failure_seen = true;
            deadline = clock_ms() + AFTER_FAILURE_MS;
        } else if (now != seen && !failure_seen) {
            seen = now;
            deadline = clock_ms() + b->limit_ms;
        }
        if (!c->killed && (interrupted || clock_ms() > deadline)) {
            status = interrupted || failure_seen ? 0 : -ETIMEDOUT;
            children_kill(c, b->shape.nranks); /* SIGKILL ends them; the loop reaps them */
        }
        (void)sigtimedwait(&ends, NULL, &step); /* long steps: each check takes a core from a rank */
    }
    return status;
}

/* Reports the first cause: a rank killed by a signal; else one that failed by itself, not because another rank was gone;
 * else any. */
static int failure_report(const struct call *call, const struct bench *b, const struct children *c, int status)
{
    int first = -1, worth = -1;

    if (status == -ETIMEDOUT)
        return verb_error(call, EXIT_UNWELL, "no rank got on for %d s; 'fccctl comms' tells where each rank stands",
                          b->limit_ms / 1000);
    for (int r = 0; r < b->shape.nranks; r++) {
        int why = b->ranks[r].status, w;
        if (!child_failed(c, r))
            continue;
        w = WIFSIGNALED(c->wait_status[r]) ? 3 : why == -ECONNABORTED || why == -EPIPE ? 0 : why == -ETIMEDOUT ? 1 : 2;
        if (w > worth) {
            worth = w;
            first = r;
        }
    }
    if (first < 0)
        return EXIT_WELL;
    if (worth == 3)
        (void)verb_error(call, 0, "rank %d: killed by signal %d", first, WTERMSIG(c->wait_status[first]));
    else
        (void)verb_error(call, 0, "rank %d: %s", first, b->ranks[first].text);
    if (c->failed > 1)
        (void)fprintf(stderr, "(%d of %d ranks ended with it)\n", c->failed, b->shape.nranks);
    return b->ranks[first].status == -ECONNREFUSED ? EXIT_UNREACHABLE : EXIT_UNWELL;
}

static int ranks_run(const struct call *call, struct bench *b)
{
    struct children c = {0};
    int status = children_start(b, &c);

    /* The parent keeps no end of the pipe: if rank 0 dies, the ranks that wait for the id read an end of file. */
    (void)close(b->id_pipe[0]);
    (void)close(b->id_pipe[1]);
    if (status) {
        children_kill(&c, b->shape.nranks);
        (void)children_wait(b, &c);
        return verb_error(call, EXIT_UNWELL, "no new process: %s", strerror(-status));
    }
    status = children_wait(b, &c);
    if (interrupted)
        return EXIT_UNWELL;
    if (status || c.failed)
        return failure_report(call, b, &c, status);
    if (bench_report(b))
        return verb_error(call, EXIT_UNWELL, "out of memory");
    for (int i = 0; i < b->nkinds; i++) {
        if (bench_wrong(b, b->kinds[i]) > 0)
            return EXIT_UNWELL;
    }
    return EXIT_WELL;
}

static int bench_run(const struct call *call, struct bench *b)
{
    int code = bench_devices_choose(call, b);

    if (code)
        return code;
    (void)snprintf(b->job, sizeof(b->job), "fccctl-bench-%d", (int)getpid());
    if (pipe(b->id_pipe) != 0)
        return verb_error(call, EXIT_UNWELL, "no pipe: %s", strerror(errno));
    b->ranks = mmap(NULL, shared_bytes(b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b->ranks == MAP_FAILED)
        return verb_error(call, EXIT_UNWELL, "no memory for the times: %s", strerror(errno));
    b->seconds = (double *)(b->ranks + b->shape.nranks);
    code = ranks_run(call, b);
    (void)munmap(b->ranks, shared_bytes(b));
    return code;
}

int verb_bench(struct call *call)
{
    struct bench b;
    struct local_nodes nodes;
    struct error e = {0};
    int code;

    if (!options_parse(call, &b))
        return call->exit;
    interrupted = 0;
    signals_set(interrupt);
    if (b.local) {
        int status = bench_local_start(&b, &nodes, &e);
        if (status)
            return verb_error(call, EXIT_UNREACHABLE, "--local: %s", e.text);
    }
    code = interrupted ? EXIT_UNWELL : bench_run(call, &b);
    if (b.local && local_nodes_stop(&nodes, &e))
        code = verb_error(call, code ? code : EXIT_UNWELL, "--local: %s", e.text);
    signals_set(SIG_DFL);
    if (interrupted)
        (void)raise(interrupted); /* all is cleaned up: end as the signal would have ended this process */
    return code;
}
