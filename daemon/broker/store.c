/* SPDX-License-Identifier: MIT
 *
 * store.c - what a broker leaves to the next one: store.h.
 */
#include "daemon/broker/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "proto/base/log.h"
#include "proto/sealed.h"

#define PAGE_NAME "page"

struct store {
    unsigned nslots; /* entries that may be used. 0: nothing is kept */
    bool followed;   /* the page came */
    bool failed;     /* the service manager could not be asked to keep the page */
    struct store_page *page;
    int page_fd;
    int ncame; /* descriptors that the service manager has passed, from SD_LISTEN_FDS_START on */
    char **names;
    bool *taken;
};

bool store_keeps(const struct broker *b)
{
    return b->store && b->store->nslots;
}

bool store_followed(const struct broker *b)
{
    return b->store && b->store->followed;
}

unsigned store_room(const struct broker *b)
{
    return b->store ? b->store->nslots : 0;
}

const char *store_why_not(const struct broker *b, bool *managed)
{
    const char *notify = getenv("NOTIFY_SOCKET");

    *managed = notify && *notify;
    if (store_keeps(b))
        return "";
    if (!*managed)
        return "no service manager has started it";
    return b->store && b->store->failed ? "the service manager could not be asked to keep descriptors; the log has the reason"
                                        : "the service manager keeps too few descriptors (FileDescriptorStoreMax=, FDSTORE)";
}

struct store_name store_name(const char *what, uint32_t number)
{
    struct store_name name;

    (void)snprintf(name.text, sizeof(name.text), "%s-%u", what, number);
    return name;
}

/* ---- what came ---- */

static bool is_ours(const char *name)
{
    static const char *const kinds[] = {PAGE_NAME, "listen", "counts", "worker-", "process-", "ledger-", "account-"};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (i < 3 ? !strcmp(name, kinds[i]) : !strncmp(name, kinds[i], strlen(kinds[i])))
            return true;
    return false;
}

int store_take(struct broker *b, const char *name)
{
    struct store *s = b->store;

    for (int i = 0; i < s->ncame; i++)
        if (!s->taken[i] && !strcmp(s->names[i], name)) {
            s->taken[i] = true;
            return SD_LISTEN_FDS_START + i;
        }
    return -1;
}

int store_sockets(struct broker *b, int *sock)
{
    struct store *s = b->store;
    int n = 0;

    for (int i = 0; i < s->ncame; i++) {
        if (s->taken[i] || is_ours(s->names[i]))
            continue;
        s->taken[i] = true;
        *sock = n++ ? *sock : SD_LISTEN_FDS_START + i;
    }
    return n;
}

void store_settle(struct broker *b)
{
    struct store *s = b->store;

    for (int i = 0; i < s->ncame; i++) {
        if (s->taken[i])
            continue;
        s->taken[i] = true;
        store_drop(b, s->names[i]);
        (void)close(SD_LISTEN_FDS_START + i);
    }
}

/* ---- the page ---- */

static int page_map(struct store *s, int fd)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) || st.st_size < (off_t)sizeof(*s->page))
        return -EPROTO;
    void *there = mmap(NULL, sizeof(*s->page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (there == MAP_FAILED)
        return -errno;
    s->page = there;
    if (s->page->magic == STORE_MAGIC && s->page->version == STORE_VERSION && s->page->bytes == sizeof(*s->page)) {
        s->page_fd = fd;
        return 0;
    }
    (void)munmap(there, sizeof(*s->page));
    s->page = NULL;
    return -EPROTONOSUPPORT;
}

/* The page of the last broker, or a new one. Of a page that this program does not understand it takes over nothing: what came is
 * dropped, so the channels end, and the workers drain. */
static int page_open(struct broker *b)
{
    struct store *s = b->store;
    int fd = store_take(b, PAGE_NAME), status = fd < 0 ? -ENOENT : page_map(s, fd);
    void *there = NULL;

    if (!status) {
        b->last = s->page->last;
        s->followed = true;
        return 0;
    }
    if (fd >= 0) {
        log_warning("what the last fccd has left is of another version (%s): its jobs are not taken over, and end",
                    strerror(-status));
        (void)close(fd);
        for (int i = 0; i < s->ncame; i++)
            if (!s->taken[i] && is_ours(s->names[i]) && strcmp(s->names[i], "listen") != 0) {
                s->taken[i] = true;
                store_drop(b, s->names[i]);
                (void)close(SD_LISTEN_FDS_START + i);
            }
        store_drop(b, PAGE_NAME);
    }
    if (!s->nslots)
        return 0;
    status = sealed_memory_make("fccd-page", sizeof(*s->page), &there, &s->page_fd);
    if (status)
        return status;
    s->page = there;
    s->page->version = STORE_VERSION;
    s->page->bytes = sizeof(*s->page);
    s->page->last = b->last;
    s->page->magic = STORE_MAGIC;
    return store_keep(b, PAGE_NAME, s->page_fd);
}

/* How many descriptors the service manager keeps. systemd sets FDSTORE from version 254 on, and the unit does for older ones. */
static unsigned keeps(void)
{
    const char *most = getenv("FDSTORE"), *notify = getenv("NOTIFY_SOCKET");
    long n = most && notify && *notify ? strtol(most, NULL, 10) : 0;

    return n < (long)(STORE_FOR_ALL + STORE_FOR_JOB) ? 0 : n > INT32_MAX ? INT32_MAX : (unsigned)n;
}

int store_open(struct broker *b)
{
    struct store *s = b->store = calloc(1, sizeof(*s));
    unsigned most = keeps();

    if (!s)
        return -ENOMEM;
    s->page_fd = -1;
    s->nslots = most ? (most - STORE_FOR_ALL) / STORE_FOR_JOB : 0;
    s->nslots = s->nslots < STORE_JOBS ? s->nslots : STORE_JOBS;
    s->ncame = sd_listen_fds_with_names(1, &s->names);
    s->ncame = s->ncame > 0 ? s->ncame : 0;
    s->taken = calloc((size_t)s->ncame + 1, sizeof(s->taken[0]));
    if (!s->taken)
        return -ENOMEM;
    int status = page_open(b);
    if (status) {
        log_warning("the service manager cannot be asked to keep descriptors: %s: a restart ends this fccd's jobs",
                    strerror(-status));
        s->nslots = 0;
        s->failed = true;
    }
    return 0;
}

void store_close(struct broker *b)
{
    struct store *s = b->store;

    if (!s)
        return;
    if (s->page)
        (void)munmap(s->page, sizeof(*s->page));
    fd_close(&s->page_fd);
    for (int i = 0; i < s->ncame; i++) {
        if (s->taken && !s->taken[i])
            (void)close(SD_LISTEN_FDS_START + i);
        free(s->names[i]);
    }
    free(s->names);
    free(s->taken);
    free(s);
    b->store = NULL;
}

int store_keep(struct broker *b, const char *name, int fd)
{
    char text[64];
    int status;

    if (!store_keeps(b))
        return 0;
    (void)snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s", name);
    status = sd_pid_notify_with_fds(0, 0, text, &fd, 1);
    return status > 0 ? 0 : status < 0 ? status : -ENOTCONN;
}

void store_drop(struct broker *b, const char *name)
{
    if (store_keeps(b))
        (void)sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

/* ---- jobs ---- */

struct store_job *store_job(const struct broker *b, unsigned slot)
{
    return b->store && b->store->page && slot < STORE_JOBS ? &b->store->page->jobs[slot] : NULL;
}

/* The job's entry; NULL: it has none. */
static struct store_job *entry(const struct job *j)
{
    return j->slot < 0 ? NULL : store_job(j->broker, (unsigned)j->slot);
}

void store_job_is(const struct job *j, enum store_state state)
{
    struct store_job *s = entry(j);

    if (s)
        atomic_store_explicit(&s->state, state, memory_order_release);
}

void store_job_says(const struct job *j)
{
    struct store_job *s = entry(j);

    if (s) {
        s->sessions = j->sessions;
        s->connections = j->connections;
    }
}

void store_job_answered(const struct job *j)
{
    struct store_job *s = entry(j);

    if (s)
        atomic_store_explicit(&s->answered, j->answered, memory_order_release);
}

bool store_job_begin(struct job *j)
{
    struct store *st = j->broker->store;
    unsigned slot = 0;

    j->slot = -1;
    if (!store_keeps(j->broker))
        return false;
    st->page->last = j->broker->last; /* before anybody hears of this worker */
    while (slot < st->nslots && atomic_load_explicit(&st->page->jobs[slot].state, memory_order_relaxed) != STORE_FREE)
        slot++;
    if (slot == st->nslots) {
        job_log(
            LOG_LEVEL_WARNING, j,
            "the service manager keeps the descriptors of %u jobs at most (FileDescriptorStoreMax=): a restart ends this one",
            st->nslots);
        return false;
    }
    struct store_job *s = &st->page->jobs[slot];
    s->version = CONTROL_VERSION;
    s->proto = j->proto;
    s->proto_oldest = j->proto_oldest;
    s->uid = j->uid;
    s->pid = 0;
    s->sessions = s->connections = 0;
    atomic_store_explicit(&s->answered, 0, memory_order_relaxed);
    s->worker = j->worker;
    s->started_ns = j->started_ns;
    memcpy(s->name, j->name, sizeof(s->name));
    j->slot = (int)slot;
    store_job_is(j, STORE_STARTING);
    if (!store_keep(j->broker, store_name("worker", slot).text, j->control))
        return true;
    store_job_end(j);
    return false;
}

void store_job_spawned(struct job *j)
{
    struct store_job *s = entry(j);

    if (!s)
        return;
    s->pid = j->pid;
    s->place = j->place;
    j->process = pidfd_open(j->pid, 0); /* of a child that has not been reaped: it is the one */
    if (j->process < 0 || store_keep(j->broker, store_name("process", (unsigned)j->slot).text, j->process)) {
        job_log(LOG_LEVEL_WARNING, j, "its worker %d cannot be kept: %s: a restart ends the job", j->pid, strerror(errno));
        store_job_end(j);
    }
}

void store_job_end(struct job *j)
{
    static const char *const kinds[] = {"worker", "process", "ledger"};
    struct broker *b = j->broker;

    if (j->slot < 0)
        return;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        store_drop(b, store_name(kinds[i], (unsigned)j->slot).text);
    store_job_is(j, STORE_FREE);
    j->slot = -1;
}
