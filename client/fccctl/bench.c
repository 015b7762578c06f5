/* SPDX-License-Identifier: MIT
 *
 * bench.c - the verb bench: measure an operator, with a process for each rank.
 *
 *   parent                                   rank r
 *   (--local: starts fccd)
 *   asks fccd for its devices
 *   forks, before it has used the library -> connects, joins (the id comes from rank 0 over a pipe)
 *   watches for progress                     fills its buffers, warms up, measures, checks
 *                                            leaves its times, or its error, in shared memory; exits
 *   reports
 *   (--local: ends fccd)
 */
#include "bench.h"

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

#include "control.h"
#include "devices.h"
#include "field.h"
#include "local.h"

#define STEP_MS 5
#define AFTER_FAILURE_MS 15000 /* what the other ranks get to hear of a rank's failure and end */
#define SLACK_MS 30000         /* beyond the daemon's time limit, until a benchmark counts as hanging */

static volatile sig_atomic_t interrupted; /* the signal that came */

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

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- options ---- */

enum { BOTH, FUSED, SEQUENTIAL, AUTO };

static void kinds_choose(struct bench *b, int schedule)
{
    static const enum fcc_schedule_kind kinds[][4] = {
        [BOTH] = {FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL, FCC_SCHEDULE_COMPUTE_ONLY, FCC_SCHEDULE_COMM_ONLY},
        [FUSED] = {FCC_SCHEDULE_FUSED},
        [SEQUENTIAL] = {FCC_SCHEDULE_SEQUENTIAL},
        [AUTO] = {FCC_SCHEDULE_AUTO, FCC_SCHEDULE_FUSED, FCC_SCHEDULE_SEQUENTIAL}, /* and what it chooses from */
    };
    static const int count[] = {[BOTH] = 4, [FUSED] = 1, [SEQUENTIAL] = 1, [AUTO] = 3};

    if (b->shape.op == FCC_OP_NOOP)
        schedule = FUSED; /* it has one schedule */
    b->nkinds = count[schedule];
    memcpy(b->kinds, kinds[schedule], sizeof(kinds[schedule]));
}

static bool options_parse(struct call *call, struct bench *b)
{
    static const char *const schedules[] = {"both", "fused", "sequential", "auto", NULL};
    static const char *const devices[] = {"cpu", "gpu", "cuda", "hip", NULL};
    struct arg args[SHAPE_ARGS + 8];
    size_t n = shape_args(&b->shape, args);
    int schedule = BOTH, device = 0;
    const struct arg own[] = {
        {"device", 0, ARG_CHOICE, &device, 0, 0, devices, "KIND", "what the ranks use: cpu, gpu (any), cuda or hip [cpu]"},
        {"local", 0, ARG_FLAG, &b->local, 0, 0, NULL, NULL,
         "start a private fccd, with a cpu device for each rank, and end it"},
        {"iters", 0, ARG_INT, &b->iters, 1, 10000000, NULL, "I", "iterations that are measured [20]"},
        {"warmup", 0, ARG_INT, &b->warmup, 0, 10000000, NULL, "W", "iterations before that [5]"},
        {"stream", 0, ARG_INT, &b->stream, 0, BENCH_STREAM_MAX, NULL, "K",
         "on GPUs: enqueue K operators on a stream, and time them together [0: one call at a time]"},
        {"schedule", 0, ARG_CHOICE, &schedule, 0, 0, schedules, "S", "both, fused, sequential or auto (beside both) [both]"},
        {"check", 0, ARG_FLAG, &b->check, 0, 0, NULL, NULL, "compare the results with a plain reference"},
    };

    *b = (struct bench){.shape = b->shape, .iters = 20, .warmup = 5, .id_pipe = {-1, -1}};
    memcpy(args + n, own, sizeof(own));
    if (!args_parse(call, args, n + sizeof(own) / sizeof(own[0]), 1))
        return false;
    b->json = call->json;
    b->socket = call->socket;
    if (call->noperands == 0)
        call->exit = usage_error(call, "which operator?");
    else
        call->exit = shape_finish(&b->shape, call, call->operands[0]);
    b->device = devices[device];
    if (!call->exit && b->stream && device == 0)
        call->exit = usage_error(call, "--stream: %" PRId64 ": a cpu device has no streams; --device gpu has", b->stream);
    if (call->exit)
        return false;
    kinds_choose(b, schedule);
    if (b->shape.op == FCC_OP_NOOP)
        b->check = false; /* it has no result */
    return true;
}

/* ---- before the ranks ---- */

/* The kind of device that the ranks will use, among those that the daemon has: "gpu" is the first GPU's. */
static void kind_resolve(struct bench *b, struct json_object *answer)
{
    static const struct {
        const char *name;
        enum fcc_device_kind kind;
    } kinds[] = {{"cpu", FCC_DEVICE_CPU}, {"cuda", FCC_DEVICE_CUDA}, {"hip", FCC_DEVICE_HIP}};
    const char *name = b->device;

    for (size_t i = 0; i < field_count(answer, "devices") && strcmp(name, "gpu") == 0; i++) {
        if (device_is_gpu(field_at(answer, "devices", i)))
            name = field_text(field_at(answer, "devices", i), "kind");
    }
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, name) == 0) {
            b->device = kinds[i].name;
            b->device_kind = kinds[i].kind;
        }
    }
}

/* Give each rank a device of the kind asked for. 0, or an exit code (printed). */
static int ranks_place(const struct call *call, struct bench *b, struct json_object *answer)
{
    int found[1024], nfound = 0;
    char why[1024];

    kind_resolve(b, answer);
    for (size_t i = 0; i < field_count(answer, "devices") && nfound < 1024; i++) {
        struct json_object *d = field_at(answer, "devices", i);
        if (strcmp(field_text(d, "kind"), b->device) == 0)
            found[nfound++] = (int)field_int(d, "device", 0);
    }
    if (nfound == 0) {
        (void)devices_why_none(answer, strcmp(b->device, "gpu") == 0 ? NULL : b->device, why, sizeof(why));
        return verb_error(call, EXIT_UNWELL, "--device: \"%s\": this fccd has none%s%s%s; 'fccctl devices' lists what it has",
                          b->device, *why ? " (" : "", why, *why ? ")" : "");
    }
    for (int r = 0; r < b->shape.nranks; r++)
        b->devices[r] = found[r % nfound];
    return 0;
}

/* Place the ranks, and learn the daemon's time limit. 0, or an exit code (printed). */
static int devices_choose(const struct call *call, struct bench *b)
{
    struct json_object *answer;
    struct error e;
    int code;

    if (devices_ask(b->socket, &answer, &e))
        return verb_error(call, control_exit(&e), "%s", e.text);
    code = ranks_place(call, b, answer);
    (void)json_object_put(answer);
    if (code)
        return code;
    if (control_ask_broker(b->socket, FCC_QUERY_STATUS, &answer, &e))
        return verb_error(call, control_exit(&e), "%s", e.text);
    b->limit_ms = (int)(field_int(answer, "time_limit_ms", 30000) % 86400001) + SLACK_MS;
    (void)json_object_put(answer);
    return 0;
}

static size_t shared_bytes(const struct bench *b)
{
    return (size_t)b->shape.nranks * (sizeof(struct bench_rank) + (size_t)(b->nkinds * b->iters) * sizeof(double));
}

static int shared_map(struct bench *b)
{
    void *memory = mmap(NULL, shared_bytes(b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return -errno;
    b->ranks = memory;
    b->seconds = (double *)(b->ranks + b->shape.nranks);
    return 0;
}

/* ---- the ranks ---- */

struct children {
    pid_t pid[FCC_MAX_RANKS]; /* 0: has ended */
    int wait_status[FCC_MAX_RANKS];
    bool killed[FCC_MAX_RANKS]; /* by children_kill() */
    int left, failed;           /* failed: ended other than well, by themselves */
};

static void children_kill(struct children *c, int nranks)
{
    for (int r = 0; r < nranks; r++) {
        if (c->pid[r] > 0) {
            (void)kill(c->pid[r], SIGKILL);
            c->killed[r] = true;
        }
    }
}

static int children_start(struct bench *b, struct children *c)
{
    pid_t parent = getpid();

    (void)fflush(NULL);
    for (int r = 0; r < b->shape.nranks; r++) {
        pid_t pid = fork();
        if (pid < 0)
            return -errno;
        if (pid == 0) {
            signals_set(SIG_DFL);
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
        c->failed += c->wait_status[r] != 0 && !c->killed[r];
    }
}

static uint64_t progress_sum(const struct bench *b)
{
    uint64_t sum = 0;

    for (int r = 0; r < b->shape.nranks; r++)
        sum += atomic_load_explicit(&b->ranks[r].progress, memory_order_relaxed);
    return sum;
}

/* Wait until all ranks have ended; kill them when a signal came, when none gets on for too long, or when one has failed and the
 * others do not end by themselves. Returns 0 or -ETIMEDOUT. */
static int children_wait(struct bench *b, struct children *c)
{
    const struct timespec step = {.tv_nsec = STEP_MS * 1000000L};
    int64_t deadline = now_ms() + b->limit_ms;
    uint64_t seen = 0;
    bool killed = false, failure_seen = false;
    int status = 0;

    for (children_reap(c, b->shape.nranks); c->left > 0; children_reap(c, b->shape.nranks)) {
        uint64_t now = progress_sum(b);
        if (c->failed && !failure_seen) {
            failure_seen = true;
            deadline = now_ms() + AFTER_FAILURE_MS;
        } else if (now != seen && !failure_seen) {
            seen = now;
            deadline = now_ms() + b->limit_ms;
        }
        if (!killed && (interrupted || now_ms() > deadline)) {
            status = interrupted || failure_seen ? 0 : -ETIMEDOUT;
            children_kill(c, b->shape.nranks);
            killed = true; /* SIGKILL ends them; the loop reaps them */
        }
        (void)nanosleep(&step, NULL);
    }
    return status;
}

/* Report the failure that came first: a rank that a signal killed; else one that failed for a reason of its own and not because
 * another had gone; else any. */
static int failure_report(const struct call *call, const struct bench *b, const struct children *c, int status)
{
    int first = -1, worth = -1;

    if (status == -ETIMEDOUT)
        return verb_error(call, EXIT_UNWELL, "no rank got on for %d s; 'fccctl comms' tells where each rank stands",
                          b->limit_ms / 1000);
    for (int r = 0; r < b->shape.nranks; r++) {
        int why = b->ranks[r].status, w;
        if (c->wait_status[r] == 0 || c->killed[r])
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

    /* The parent keeps neither end: a rank 0 that dies is an end of file to the ranks that wait for the id. */
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
    int code = devices_choose(call, b), status;

    if (code)
        return code;
    (void)snprintf(b->job, sizeof(b->job), "fccctl-bench-%d", (int)getpid());
    if (pipe(b->id_pipe) != 0)
        return verb_error(call, EXIT_UNWELL, "no pipe: %s", strerror(errno));
    status = shared_map(b);
    if (status)
        return verb_error(call, EXIT_UNWELL, "no memory for the times: %s", strerror(-status));
    code = ranks_run(call, b);
    (void)munmap(b->ranks, shared_bytes(b));
    return code;
}

/* A private daemon with what the ranks need, and no more: listing GPUs takes time. */
static int local_start(const struct bench *b, struct local_daemon *out, struct error *e)
{
    struct local_options options = {.devices = 1, .gpus = b->device};

    if (strcmp(b->device, "cpu") == 0) {
        options.devices = b->shape.nranks;
        options.gpus = "none";
    } else if (strcmp(b->device, "gpu") == 0) {
        options.gpus = "auto";
    }
    return local_daemon_start(&options, out, e);
}

int verb_bench(struct call *call)
{
    struct bench b;
    struct local_daemon daemon;
    struct error e = {0};
    int code;

    if (!options_parse(call, &b))
        return call->exit;
    interrupted = 0;
    signals_set(interrupt);
    if (b.local) {
        int status = local_start(&b, &daemon, &e);
        if (status)
            return verb_error(call, EXIT_UNREACHABLE, "--local: %s", e.text);
        b.socket = daemon.socket;
    }
    code = interrupted ? EXIT_UNWELL : bench_run(call, &b);
    if (b.local && local_daemon_stop(&daemon, &e))
        code = verb_error(call, code ? code : EXIT_UNWELL, "--local: %s", e.text);
    signals_set(SIG_DFL);
    if (interrupted)
        (void)raise(interrupted); /* now that all is cleaned up, end as the signal would have */
    return code;
}
