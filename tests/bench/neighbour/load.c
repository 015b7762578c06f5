/* SPDX-License-Identifier: MIT
 *
 * load.c - who has had the machine's processors, by /proc: as root, since other users' workers cannot be looked into.
 *
 * A worker that ends is counted on: what it has taken is then among what the broker's children have taken (getrusage(2), RUSAGE_CHILDREN), and no other
 * user's worker ends during a phase. A thread that ends takes what it has waited for a core with it.
 */
#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/neighbour/neighbour.h"

/* The beginning of a file of /proc. "": there is none any more. */
static const char *text_of(const char *path)
{
    static char text[1 << 18];
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

    if (f)
        (void)fclose(f);
    text[n] = 0;
    return text;
}

static double field_of(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    return at ? strtod(at + strlen(name) + strspn(at + strlen(name), " \t:"), NULL) : -1;
}

struct process {
    int parent;
    double user, system, children_user, children_system; /* us */
};

static double ticks_us(const char *text)
{
    return strtod(text, NULL) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

static struct process process_read(pid_t pid)
{
    char path[64], *at;
    const char *field[18] = {NULL};
    struct timespec t;
    clockid_t clock;

    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    char *text = strrchr(text_of(path), ')'); /* behind the name: state, parent, ... */
    if (!text)
        return (struct process){.parent = -1};
    at = text + 1;
    for (int i = 0; i < 16 && at; i++) {
        field[i] = ++at;
        at = strchr(at, ' ');
    }
    if (!at)
        return (struct process){.parent = -1};
    struct process p = {.parent = (int)strtol(field[1], NULL, 10),
                        .user = ticks_us(field[11]),
                        .system = ticks_us(field[12]),
                        .children_user = ticks_us(field[13]),
                        .children_system = ticks_us(field[14])};
    /* Ticks are coarse: its clock says what both are together. */
    if (!clock_getcpuclockid(pid, &clock) && !clock_gettime(clock, &t) && p.user + p.system > 0) {
        double more = ((double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3) / (p.user + p.system);
        p.user *= more;
        p.system *= more;
    }
    return p;
}

/* ---- threads ---- */

struct threads {
    double ran, waits, preempted, moved;
};

static void thread_add(struct threads *all, const char *folder, const char *tid)
{
    char path[400], *end;

    (void)snprintf(path, sizeof(path), "%s/%s/schedstat", folder, tid);
    all->ran += strtod(text_of(path), &end) / 1e3;
    all->waits += strtod(end, NULL) / 1e3;
    (void)snprintf(path, sizeof(path), "%s/%s/status", folder, tid);
    double preempted = field_of(text_of(path), "nonvoluntary_ctxt_switches");
    all->preempted += preempted > 0 ? preempted : 0;
    (void)snprintf(path, sizeof(path), "%s/%s/sched", folder, tid);
    double moved = field_of(text_of(path), "nr_migrations");
    all->moved = moved < 0 || all->moved < 0 ? -1 : all->moved + moved; /* not every kernel says it */
}

static void threads_add(struct threads *all, pid_t pid)
{
    char folder[64];
    const struct dirent *entry;

    (void)snprintf(folder, sizeof(folder), "/proc/%d/task", (int)pid);
    DIR *d = opendir(folder);
    while (d && (entry = readdir(d)))
        if (isdigit((unsigned char)entry->d_name[0]))
            thread_add(all, folder, entry->d_name);
    if (d)
        (void)closedir(d);
}

/* ---- the machine ---- */

static void machine_read(struct load *l)
{
    double of[8] = {0}; /* user, nice, system, idle, iowait, irq, softirq, steal */
    const char *text = text_of("/proc/stat");
    char *at = strchr(text, ' ');

    for (int i = 0; at && i < 8; i++)
        of[i] = strtod(at, &at) * 1e6 / (double)sysconf(_SC_CLK_TCK);
    l->user = of[0] + of[1];
    l->system = of[2];
    l->interrupts = of[5] + of[6];
    l->stolen = of[7];
    l->switches = field_of(text, "\nctxt");
}

/* The sum over all cores of a line of /proc/interrupts. */
static double interrupts_of(const char *text, const char *name)
{
    const char *line = strstr(text, name);
    double sum = 0;

    if (!line)
        return 0;
    for (char *at = strchr(line, ':') + 1, *next;; at = next) {
        double n = strtod(at, &next);
        if (next == at)
            return sum;
        sum += n;
    }
}

static int uid_of(const char *pid)
{
    char path[300];

    (void)snprintf(path, sizeof(path), "/proc/%s/status", pid);
    return (int)field_of(text_of(path), "\nUid");
}

/* Calls each(pid, arg) for all processes of that user. */
static void processes_each(uid_t uid, void (*each)(pid_t, void *), void *arg)
{
    const struct dirent *entry;
    DIR *d = opendir("/proc");

    while (d && (entry = readdir(d)))
        if (isdigit((unsigned char)entry->d_name[0]) && uid_of(entry->d_name) == (int)uid)
            each((pid_t)strtol(entry->d_name, NULL, 10), arg);
    if (d)
        (void)closedir(d);
}

struct hostile {
    double user, system;
    struct threads threads;
};

static void hostile_add(pid_t pid, void *arg)
{
    struct hostile *h = arg;
    struct process p = process_read(pid);

    h->user += p.user;
    h->system += p.system;
    threads_add(&h->threads, pid);
}

void load_read(struct load *l, pid_t broker, const pid_t victims[3])
{
    struct hostile h = {0};
    struct threads v = {0};

    struct process b = process_read(broker);
    processes_each(HOSTILE, hostile_add, &h);
    for (int i = 0; i < 3; i++)
        threads_add(&v, victims[i]);
    *l = (struct load){.at = now_us(),
                       .hostile_user = h.user + b.children_user,
                       .hostile_system = h.system + b.children_system,
                       .hostile_waits = h.threads.waits,
                       .broker = b.user + b.system,
                       .victim = v.ran,
                       .victim_waits = v.waits,
                       .preempted = v.preempted,
                       .moved = v.moved};
    machine_read(l);
    const char *text = text_of("/proc/interrupts");
    l->shootdowns = interrupts_of(text, "TLB:");
    l->calls = interrupts_of(text, "CAL:");
    l->wakeups = interrupts_of(text, "RES:");
}

struct load load_between(const struct load *begin, const struct load *end)
{
    struct load l = *end;

#define SINCE(field) l.field -= begin->field
    SINCE(at), SINCE(hostile_user), SINCE(hostile_system), SINCE(hostile_waits), SINCE(broker), SINCE(victim),
        SINCE(victim_waits);
    SINCE(preempted), SINCE(user), SINCE(system), SINCE(interrupts), SINCE(stolen), SINCE(switches), SINCE(shootdowns),
        SINCE(calls), SINCE(wakeups);
    l.moved = begin->moved < 0 || end->moved < 0 ? -1 : end->moved - begin->moved;
#undef SINCE
    return l;
}

struct found {
    pid_t broker, pid;
    int n;
};

static void worker_find(pid_t pid, void *arg)
{
    struct found *f = arg;

    if (process_read(pid).parent != f->broker)
        return;
    f->pid = pid;
    f->n++;
}

pid_t worker_of(uid_t uid, pid_t broker)
{
    struct found f = {.broker = broker};

    processes_each(uid, worker_find, &f);
    return f.n == 1 ? f.pid : 0;
}

static void process_end(pid_t pid, void *arg)
{
    (void)kill(pid, SIGTERM);
    ++*(int *)arg;
}

int processes_end(uid_t uid)
{
    int n = 0;

    processes_each(uid, process_end, &n);
    return n;
}
