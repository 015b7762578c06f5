/* SPDX-License-Identifier: MIT
 *
 * main.c - the demonstration from the outside: inputs, daemon, rank processes, table and picture. See demo.h.
 *
 * All inputs are made before the fork, so that the ranks and the reference work on the same memory. A rank that fails says why
 * in the shared memory; the others hear it from fccd and end too, or are ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/fccctl/bench/local.h"
#include "tests/demo/demo.h"

#define TEXT_DEFAULT "/usr/share/common-licenses/GPL-3"
#define OUT_DEFAULT "build/demo"
#define GRACE_S 10 /* for the others when one rank has failed, and for the ranks to leave */
#define TRACE_LIMIT_S 30

struct options {
    const char *text, *out, *socket;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pause_ms(long ms)
{
    const struct timespec t = {.tv_nsec = ms * 1000000};

    (void)nanosleep(&t, NULL);
}

static void usage(FILE *out)
{
    (void)fprintf(out,
                  "usage: demo [--text FILE] [--out DIR] [--socket PATH]\n\n"
                  "  --text FILE    the words to work on [%s]\n"
                  "  --out DIR      where the timeline goes [%s]\n"
                  "  --socket PATH  use the fccd that listens there, instead of a private one\n",
                  TEXT_DEFAULT, OUT_DEFAULT);
}

/* True: go on; else *exit_status is set. */
static bool options_parse(int argc, char **argv, struct options *o, int *exit_status)
{
    static const struct option options[] = {{"text", required_argument, NULL, 't'},
                                            {"out", required_argument, NULL, 'o'},
                                            {"socket", required_argument, NULL, 's'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    int c;

    *o = (struct options){.text = TEXT_DEFAULT, .out = OUT_DEFAULT};
    while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (c == 't')
            o->text = optarg;
        else if (c == 'o')
            o->out = optarg;
        else if (c == 's')
            o->socket = optarg;
        else {
            usage(c == 'h' ? stdout : stderr);
            *exit_status = c == 'h' ? 0 : 2;
            return false;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "demo: \"%s\": no such argument\n", argv[optind]);
        usage(stderr);
        *exit_status = 2;
        return false;
    }
    return true;
}

/* mkdir -p */
static int directory_make(const char *path, struct error *e)
{
    char part[4096];

    if (snprintf(part, sizeof(part), "%s", path) >= (int)sizeof(part) || !*path)
        return error_set(e, -EINVAL, "--out: \"%s\": allowed are names of 1 to %zu bytes", path, sizeof(part) - 1);
    for (char *p = part + 1;; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return error_set(e, -errno, "--out: %s: %s", part, strerror(errno));
        if (c == '\0')
            return 0;
        *p = c;
    }
}

/* fccd and fccctl: beside $FCCD_BINARY, or where `make` puts them as seen from here. */
static int program_find(const char *name, char *out, size_t room, struct error *e)
{
    const char *named = getenv("FCCD_BINARY");
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (named && *named)
        n = (ssize_t)snprintf(self, sizeof(self), "%s", named);
    if (n <= 0 || n >= (ssize_t)sizeof(self))
        return error_set(e, -ENOENT, "%s: not found", name);
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    int length = slash ? (int)(slash - self) : 0;
    int used = snprintf(out, room, "%.*s%s/%s", slash ? length : 1, slash ? self : ".", named && *named ? "" : "/../bin", name);
    if (used >= (int)room || access(out, X_OK) != 0)
        return error_set(e, -ENOENT, "%s: %s; $FCCD_BINARY may name another fccd", out, strerror(errno));
    return 0;
}

static void *shared_alloc(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static int shared_make(struct demo *d)
{
    size_t total = 0;
    unsigned char *at;

    d->shared = shared_alloc(sizeof(*d->shared));
    for (int w = 0; w < DEMO_WORKLOADS; w++)
        total += demo_result_bytes(d, (enum demo_workload)w) * DEMO_SCHEDULES * DEMO_RANKS;
    at = shared_alloc(total);
    if (!d->shared || !at)
        return -ENOMEM;
    for (int w = 0; w < DEMO_WORKLOADS; w++) {
        for (int s = 0; s < DEMO_SCHEDULES; s++) {
            for (int r = 0; r < DEMO_RANKS; r++) {
                d->results[w][s][r] = at;
                at += demo_result_bytes(d, (enum demo_workload)w);
            }
        }
    }
    return 0;
}

static int inputs_make(struct demo *d, const char *path, struct error *e)
{
    int status = text_load(path, &d->text, e);

    if (status)
        return status;
    if (dlrm_make(&d->text, &d->dlrm) || mlp_make(&d->text, &d->mlp) || moe_make(&d->text, &d->moe) || shared_make(d))
        return error_set(e, -ENOMEM, "no memory for the workloads of %s", path);
    (void)snprintf(d->job, sizeof(d->job), "demo-%d", (int)getpid());
    return 0;
}

/* Forks a process that dies with this one. Returns its id, 0 in it, or a negative errno. */
static pid_t fork_bound(void)
{
    pid_t parent = getpid(), pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        (void)signal(SIGINT, SIG_IGN); /* the parent ends its children */
        (void)signal(SIGTERM, SIG_DFL);
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

/* How a child ended, or that it was ended, goes to the first rank's report that has no reason yet. */
static void note_end(struct demo *d, int rank, int wait_status)
{
    struct error *e = &d->shared->ranks[rank].error;

    atomic_store_explicit(&d->shared->failed, 1, memory_order_relaxed);
    if (e->status == 0 && WIFSIGNALED(wait_status))
        (void)error_set(e, -ECONNABORTED, "was killed by signal %d", WTERMSIG(wait_status));
    else if (e->status == 0)
        (void)error_set(e, -ECONNABORTED, "ended with exit status %d", WEXITSTATUS(wait_status));
}

/* The rank processes, 0 for those that have ended. */
struct ranks {
    pid_t pids[DEMO_RANKS];
    int alive;
    int first_failed; /* -1: none */
};

static int ranks_start(struct demo *d, struct ranks *ranks, struct error *e)
{
    *ranks = (struct ranks){.first_failed = -1};
    for (int r = 0; r < DEMO_RANKS; r++) {
        pid_t pid = fork_bound();
        if (pid < 0) {
            atomic_store_explicit(&d->shared->failed, 1, memory_order_relaxed);
            return error_set(e, (int)pid, "no process for rank %d: %s", r, strerror(-(int)pid));
        }
        if (pid == 0)
            _exit(rank_main(d, r));
        ranks->pids[r] = pid;
        ranks->alive++;
    }
    return 0;
}

static void ranks_reap(struct demo *d, struct ranks *ranks)
{
    int wait_status;

    for (int r = 0; r < DEMO_RANKS; r++) {
        if (ranks->pids[r] == 0 || waitpid(ranks->pids[r], &wait_status, WNOHANG) != ranks->pids[r])
            continue;
        ranks->pids[r] = 0;
        ranks->alive--;
        if (wait_status == 0)
            continue;
        note_end(d, r, wait_status);
        if (ranks->first_failed < 0)
            ranks->first_failed = r;
    }
}

/* Until all ranks have ended, or (if until_traced) are ready to be drawn; at most until the deadline, and not long after one
 * has failed. */
static int ranks_wait(struct demo *d, struct ranks *ranks, double deadline, bool until_traced, struct error *e)
{
    while (ranks->alive > 0) {
        ranks_reap(d, ranks);
        if (until_traced && atomic_load_explicit(&d->shared->traced, memory_order_acquire) == DEMO_RANKS)
            return 0;
        if (interrupted)
            return error_set(e, -EINTR, "interrupted by signal %d", (int)interrupted);
        if (ranks->first_failed >= 0 && deadline > now_s() + GRACE_S)
            deadline = now_s() + GRACE_S;
        if (now_s() > deadline)
            break;
        pause_ms(5);
    }
    if (ranks->first_failed >= 0)
        return error_set(e, d->shared->ranks[ranks->first_failed].error.status, "rank %d: %s", ranks->first_failed,
                         d->shared->ranks[ranks->first_failed].error.text);
    if (ranks->alive > 0)
        return error_set(e, -ETIMEDOUT, "%d ranks were not finished in time", ranks->alive);
    return until_traced ? error_set(e, -ECONNABORTED, "the ranks ended before the timeline was drawn") : 0;
}

static void ranks_end(struct ranks *ranks)
{
    for (int r = 0; r < DEMO_RANKS; r++) {
        if (ranks->pids[r] == 0)
            continue;
        (void)kill(ranks->pids[r], SIGKILL);
        (void)waitpid(ranks->pids[r], NULL, 0);
        ranks->pids[r] = 0;
    }
    ranks->alive = 0;
}

/* In the child: fccctl, whose own words are not part of the demonstration's. */
static void become_trace(const struct demo *d, const char *fccctl, const char *svg, const char *chrome)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (null >= 0)
        (void)dup2(null, STDOUT_FILENO);
    (void)execl(fccctl, "fccctl", "trace", "--socket", d->socket, "--job", d->job, "--svg", svg, "--chrome", chrome,
                (char *)NULL);
    _exit(127);
}

/* Let fccctl draw the last operator into out/. */
static int timeline_draw(const struct demo *d, const char *out, struct error *e)
{
    char svg[4200], chrome[4200], fccctl[4200];
    int wait_status = 0, status = program_find("fccctl", fccctl, sizeof(fccctl), e);
    pid_t pid, ended = 0;

    if (status)
        return status;
    (void)snprintf(svg, sizeof(svg), "%s/demo.svg", out);
    (void)snprintf(chrome, sizeof(chrome), "%s/demo-trace.json", out);
    pid = fork_bound();
    if (pid < 0)
        return error_set(e, (int)pid, "no process for fccctl: %s", strerror(-(int)pid));
    if (pid == 0)
        become_trace(d, fccctl, svg, chrome);
    for (double end = now_s() + TRACE_LIMIT_S; ended == 0 && now_s() < end && !interrupted; pause_ms(5))
        ended = waitpid(pid, &wait_status, WNOHANG);
    if (ended == 0) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        return error_set(e, -ETIMEDOUT, "fccctl trace: not finished in %d s", TRACE_LIMIT_S);
    }
    if (wait_status != 0)
        return error_set(e, -EIO, "fccctl trace ended with exit status %d",
                         WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1);
    return 0;
}

/* From the fork to the last rank's end. */
static int ranks_run(struct demo *d, const char *out, struct error *e)
{
    double deadline = now_s() + DEMO_LIMIT_S;
    struct ranks ranks;
    int status = ranks_start(d, &ranks, e);

    if (status == 0)
        status = ranks_wait(d, &ranks, deadline, true, e);
    if (status == 0)
        status = timeline_draw(d, out, e);
    if (status == 0) {
        atomic_store_explicit(&d->shared->leave, 1, memory_order_release);
        status = ranks_wait(d, &ranks, now_s() + GRACE_S, false, e);
    }
    ranks_end(&ranks);
    return status;
}

static int demo_run(struct demo *d, const struct options *o, struct error *e)
{
    char binary[4200];
    struct local_options local = {.devices = DEMO_RANKS, .binary = binary};
    struct local_daemon daemon = {0};
    int status;

    d->socket = o->socket;
    if (!o->socket) {
        status = program_find("fccd", binary, sizeof(binary), e);
        if (status == 0)
            status = local_daemon_start(&local, &daemon, e);
        if (status)
            return status;
        d->socket = daemon.socket;
    }
    status = ranks_run(d, o->out, e);
    d->socket = NULL;
    if (!o->socket) {
        struct error stop = {0};
        if (local_daemon_stop(&daemon, &stop) && status == 0)
            status = error_set(e, stop.status, "%s", stop.text);
    }
    return status;
}

int main(int argc, char **argv)
{
    const struct sigaction action = {.sa_handler = on_signal};
    static struct demo d;
    struct error e = {0};
    struct options o;
    int64_t wrong;
    int status;

    if (!options_parse(argc, argv, &o, &status))
        return status;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    if (directory_make(o.out, &e) || inputs_make(&d, o.text, &e)) {
        (void)fprintf(stderr, "demo: %s\n", e.text);
        return 1;
    }
    printf("%s: %d words, %d different\n%d ranks, each a process with a cpu device; %ld cores\n\n", o.text, (int)d.text.nwords,
           (int)d.text.ndistinct, DEMO_RANKS, sysconf(_SC_NPROCESSORS_ONLN));
    if (demo_run(&d, &o, &e)) {
        (void)fprintf(stderr, "demo: %s\n", e.text);
        return 1;
    }
    wrong = report_print(&d);
    if (wrong < 0) {
        (void)fprintf(stderr, "demo: no memory for the reference\n");
        return 1;
    }
    printf("\nTimeline of the fused embedding_all_to_all: %s/demo.svg, for a browser\n"
           "                           and as a trace: %s/demo-trace.json, for https://ui.perfetto.dev\n",
           o.out, o.out);
    return wrong == 0 && fflush(stdout) == 0 ? 0 : 1;
}
