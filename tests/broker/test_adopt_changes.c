/* SPDX-License-Identifier: MIT
 *
 * test_adopt_changes.c - the next broker is not as the last one was: its configuration has changed, or it cannot start with that; the service manager
 * has kept less than it said; what the last one has left is of another version. Jobs go on by what holds for them, or end and say why.
 */
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "daemon/broker/store.h"
#include "daemon/common/ledger.h"
#include "tests/broker/adopt_bed.h"

/* ---- another configuration ---- */

/* What a job has beyond a lower limit it keeps, and gets no more; when the limit is raised, it does. */
static void limits(void)
{
    static const char *const high[] = {"--connections-per-job", "8", "--memory-per-user-mb", "64", NULL};
    static const char *const low[] = {"--connections-per-job", "2", "--memory-per-user-mb", "44", NULL};
    struct test_daemon d;
    struct ranks alone = {.n = 1};
    fcc_context *context[4], *more;
    fcc_comm *comm;
    fcc_buffer *buffer, *second;

    keepers_start(1, 64);
    daemons_start(&d, 1, high);
    while (worker_of("probe"))
        nap();
    for (int i = 0; i < 4; i++)
        OK(fcc_connect(NULL, &context[i]));
    OK(fcc_get_unique_id(context[0], &alone.id));
    OK(fcc_comm_init(context[0], &alone.id, 1, 0, NULL, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 40u << 20, &buffer));
    keeper_kill(&d, 0, SIGKILL);
    keeper_next(&d, 0, low);
    FAILS(fcc_connect(NULL, &more), -EUSERS, "it has 4 connections, and CONNECTIONS_PER_JOB allows 2");
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 8u << 20, &second), -ENOMEM, "MEMORY_PER_USER_MB");
    OK(fcc_noop(comm));
    fcc_buffer_free(buffer);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 4u << 20, &second));
    FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 41u << 20, &buffer), -ENOMEM, "MEMORY_PER_USER_MB");
    keeper_kill(&d, 0, SIGKILL);
    keeper_next(&d, 0, high);
    OK(fcc_connect(NULL, &more));
    fcc_disconnect(more);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 40u << 20, &buffer));
    fcc_comm_destroy(comm);
    for (int i = 0; i < 4; i++)
        fcc_disconnect(context[i]);
    keepers_stop(&d);
}

/* A worker keeps the devices with which it was started; jobs that come later have the new ones. */
static void devices(void)
{
    const struct fcc_connect_options other = {.job = "other"};
    const struct fcc_comm_options last = {.device = 3};
    struct fcc_unique_id id;
    struct test_daemon d;
    fcc_context *context, *late, *later;
    fcc_comm *comm, *again, *none;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, &last, &comm));
    keeper_kill(&d, 0, SIGKILL);
    keeper_next(&d, 0, (const char *const[]){"--cpu-devices", "2", NULL});
    expect_restart("status", "devices      2");
    OK(fcc_noop(comm));
    OK(fcc_connect(NULL, &late));
    OK(fcc_get_unique_id(late, &id));
    OK(fcc_comm_init(late, &id, 1, 0, &last, &again));
    OK(fcc_noop(again));
    OK(fcc_connect(&other, &later));
    OK(fcc_get_unique_id(later, &id));
    FAILS(fcc_comm_init(later, &id, 1, 0, &last, &none), -ENOENT, "device: 3: allowed are -1 to 1");
    fcc_comm_destroy(again);
    fcc_comm_destroy(comm);
    fcc_disconnect(later);
    fcc_disconnect(late);
    fcc_disconnect(context);
    keepers_stop(&d);
}

static void group_is(const struct test_daemon *d, gid_t gid)
{
    struct stat st;

    CHECK(!stat(d->socket, &st) && st.st_gid == gid && (st.st_mode & 0777) == 0660);
}

/* The socket, which outlives the broker that has made it, has the group that is configured now. */
static void group(void)
{
    struct test_daemon d;

    if (geteuid())
        test_skip("skipped: needs root, to give a socket to another group");
    keepers_start(1, 64);
    daemons_start(&d, 1, (const char *const[]){"--socket-group", "daemon", NULL});
    group_is(&d, 1);
    keeper_restart(&d, 0, SIGKILL);
    group_is(&d, getegid());
    keepers_stop(&d);
}

/* The next broker cannot start: a port is somebody else's, then a group is none. Jobs go on meanwhile, and clients that come find the socket and
 * wait there for one that can. */
static void cannot_start(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(a);
    int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char where[32];
    struct test_daemon d;
    struct ranks r;
    struct stat before, after;

    CHECK(taken >= 0 && !bind(taken, (const struct sockaddr *)&a, length) && !listen(taken, 1) &&
          !getsockname(taken, (struct sockaddr *)&a, &length));
    (void)snprintf(where, sizeof(where), "127.0.0.1:%d", ntohs(a.sin_port));
    struct story *story = story_begin(&d, 1, 64, &r);
    pid_t worker = worker_of("test");
    CHECK(!stat(d.socket, &before));
    keeper_kill(&d, 0, SIGKILL);
    node_start_fails(&d, 0, (const char *const[]){"--metrics-listen", where, NULL});
    CHECK(daemon_logged(&d, "METRICS_LISTEN", true));
    node_start_fails(&d, 0, (const char *const[]){"--socket-group", "no-such-group-here", NULL});
    operators_await(story, 10);
    CHECK(!stat(d.socket, &after) && before.st_ino == after.st_ino);
    keeper_next(&d, 0, NULL);
    CHECK(worker_of("test") == worker);
    operators_await(story, 10);
    story_end(story, &r);
    (void)close(taken);
    keepers_stop(&d);
}

/* One node's key is another one now: what has its connections goes on; what needs new ones hears why there are none. When the other node has that
 * key, too, workers that have outlived both changes meet again. */
struct keys {
    struct fcc_unique_id id;
    _Atomic int agree; /* 1: they are to meet */
};

static void keys_rank(int rank, const struct ranks *all, void *argument)
{
    const struct keys *keys = argument;
    const struct fcc_comm_options options = {.device = -1, .time_limit_ms = keys->agree ? 20000 : 3000};
    fcc_context *context;
    fcc_comm *comm;

    OK(fcc_connect(NULL, &context));
    if (keys->agree) {
        OK(fcc_comm_init(context, &keys->id, all->n, rank, &options, &comm));
        OK(fcc_noop(comm));
        fcc_comm_destroy(comm);
    } else {
        FAILS(fcc_comm_init(context, &keys->id, all->n, rank, &options, &comm), -EACCES, "another CLUSTER_KEY");
    }
    fcc_disconnect(context);
}

static void keys_run(struct keys *keys, bool agree)
{
    struct ranks r = {.n = RANKS};
    fcc_context *context;

    keys->agree = agree;
    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &keys->id));
    fcc_disconnect(context);
    ranks_start_some(&r, 0, RANKS, keys_rank, keys);
    ranks_join(&r);
}

static void key(void)
{
    struct keys *keys = shared_memory(sizeof(*keys));
    char path[160];
    const char *const options[] = {"--cluster-key", path, NULL};
    struct test_daemon d;
    struct ranks r;

    (void)snprintf(path, sizeof(path), "%s/other.key", test_directory());
    FILE *f = fopen(path, "we");
    CHECK(f && fprintf(f, "%064d", 1) == 64 && fclose(f) == 0 && chmod(path, 0600) == 0);
    struct story *story = story_begin(&d, 2, 64, &r);
    keeper_kill(&d, 1, SIGKILL);
    keeper_next(&d, 1, options);
    operators_await(story, 10);
    CHECK(!setenv("FCCD_JOB", "fresh", 1));
    keys_run(keys, false);
    CHECK(!setenv("FCCD_JOB", "test", 1));
    keeper_kill(&d, 0, SIGKILL);
    keeper_next(&d, 0, options);
    operators_await(story, 10);
    keys_run(keys, true);
    CHECK(!setenv("FCCD_JOB", "fresh", 1));
    keys_run(keys, true);
    story_end(story, &r);
    CHECK(!unlink(path));
    keepers_stop(&d);
}

/* ---- what is kept ---- */

/* A job runs on, or hears that it is over. */
static void any_rank(int rank, const struct ranks *all, void *argument)
{
    struct ending *e = argument;
    fcc_comm *comm = comm_open(all, rank, 60000);
    int status;

    while (!(status = fcc_noop(comm)) && !e->ended[0])
        e->operators[rank]++;
    if (status && status != -ESHUTDOWN && status != -ECONNRESET && status != -ECONNABORTED)
        check_failed(__FILE__, __LINE__, "%d: %s", status, fcc_last_error());
    if (status)
        e->ended[1] = 1;
    _exit(EXIT_SUCCESS);
}

/* The service manager takes less than it has said, whichever descriptor is the last one: FileDescriptorStoreMax= and FDSTORE differ. */
static void kept_in_part(void)
{
    struct test_daemon d;
    struct ranks r;
    int lived = 0, ended = 0;

    for (int most = 0; most < 10; most++) {
        struct ending *e = shared_memory(sizeof(*e));
        keepers_take(most);
        keepers_start(1, 64);
        daemons_start(&d, 1, NULL);
        while (worker_of("probe"))
            nap();
        ranks_start(&r, RANKS, any_rank, e);
        for (double until = await_end(); !e->operators[0] || !e->operators[1]; nap())
            CHECK(now_ms() < until);
        pid_t worker = worker_of("test");
        keeper_restart(&d, 0, SIGKILL);
        for (double until = await_end(); worker_of("test") != worker && !e->ended[1]; (void)usleep(1000))
            CHECK(now_ms() < until);
        bool lives = worker_of("test") == worker;
        for (long from = e->operators[0], i = 0; lives && i < 20000 && e->operators[0] < from + 10 && !e->ended[1]; i++)
            (void)usleep(1000);
        lives = lives && !e->ended[1];
        lived += lives;
        ended += !lives;
        e->ended[0] = 1;
        ranks_join(&r);
        expect_alive(RANKS);
        printf("%d descriptors kept: the job %s\n", most, lives ? "goes on" : "has ended");
        keepers_stop(&d);
    }
    CHECK(lived && ended);
}

/* Opens what a process has open under that name of a memfd. -1: nothing. */
static int memfd_of(pid_t pid, const char *name)
{
    char path[300], target[64];
    struct dirent *entry;
    int fd = -1;

    (void)snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *folder = opendir(path);
    CHECK(folder != NULL);
    while (fd < 0 && (entry = readdir(folder))) {
        (void)snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, entry->d_name);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n < 0)
            continue;
        target[n] = '\0';
        if (strstr(target, name))
            CHECK((fd = open(path, O_RDWR | O_CLOEXEC)) >= 0);
    }
    (void)closedir(folder);
    return fd;
}

static struct store_page *page_of(pid_t broker)
{
    int fd = memfd_of(broker, "fccd-page");
    struct store_page *page = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    CHECK(page != MAP_FAILED && !close(fd) && page->magic == STORE_MAGIC);
    return page;
}

/* A page that this fccd does not understand: all jobs drain, none is taken for what it is not, and others come. */
static void other_page(void)
{
    struct test_daemon d;
    struct ranks r;

    keepers_start(1, 64);
    daemons_start(&d, 1, NULL);
    (void)ending_start(&r, "fccd was stopped");
    page_of(d.pid)->version = STORE_VERSION + 1;
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "what the last fccd has left is of another version", true));
    ranks_join(&r);
    expect_alive(RANKS);
    keeper_restart(&d, 0, SIGKILL); /* which this one's page survives */
    expect_alive(RANKS);
    keepers_stop(&d);
}

/* A worker whose ledger has other counters goes on, and is not counted any more. */
static void other_ledger(void)
{
    const uint64_t other = COUNTERS + 1;
    char path[64];
    struct test_daemon d;
    struct ranks r;
    int child, fd = -1;

    struct story *story = story_begin(&d, 1, 64, &r);
    while (worker_of("probe")) /* which daemons_start() has started: only one ledger is left */
        nap();
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
    FILE *f = fopen(path, "re");
    while (f && fd < 0 && fscanf(f, "%d", &child) == 1) /* one of them is the keeper, which has it */
        fd = memfd_of(child, "fccd-ledger");
    CHECK(f && !fclose(f) && fd >= 0);
    CHECK(pwrite(fd, &other, sizeof(other), (off_t)(LEDGER_METERS + offsetof(struct meters, ncounters))) == sizeof(other));
    CHECK(!close(fd));
    pid_t worker = worker_of("test");
    keeper_restart(&d, 0, SIGKILL);
    CHECK(daemon_logged(&d, "has a ledger of another version: its operators are not counted any more", true));
    operators_await(story, 10);
    CHECK(worker_of("test") == worker);
    story_end(story, &r);
    keepers_stop(&d);
}

/* Entries that are broken, each in another way. Who is not a worker's job for sure is ended; the others go on. */
static void broken_entries(void)
{
    struct test_daemon d;
    struct ranks r;

    struct story *story = story_begin(&d, 1, 128, &r);
    pid_t worker = worker_of("test");
    for (int way = 0; way < 6; way++) {
        fcc_context *context;
        char job[32];
        (void)snprintf(job, sizeof(job), "broken-%d", way);
        OK(fcc_connect(&(struct fcc_connect_options){.job = job}, &context));
        struct store_page *page = page_of(d.pid);
        struct store_job *s = NULL, *test = NULL;
        for (unsigned i = 0; i < STORE_JOBS; i++) {
            s = page->jobs[i].state != STORE_FREE && !strcmp(page->jobs[i].name, job) ? &page->jobs[i] : s;
            test = page->jobs[i].state != STORE_FREE && !strcmp(page->jobs[i].name, "test") ? &page->jobs[i] : test;
        }
        CHECK(s && test);
        switch (way) {
        case 0:
            memset(s->name, 'x', sizeof(s->name));
            break;
        case 1:
            s->pid = 0;
            break;
        case 2:
            s->place = UINT32_MAX;
            break;
        case 3:
            s->place = test->place; /* another one's */
            break;
        case 4:
            s->state = STORE_STARTING;
            break;
        default:
            s->uid = 40009; /* whose account is not there */
        }
        CHECK(!munmap(page, sizeof(*page)));
        keeper_restart(&d, 0, SIGKILL);
        operators_await(story, 10);
        CHECK(worker_of(job) == 0 && worker_of("test") == worker);
        fcc_disconnect(context);
        OK(fcc_connect(&(struct fcc_connect_options){.job = job}, &context));
        fcc_disconnect(context);
    }
    story_end(story, &r);
    keepers_stop(&d);
}

int main(void)
{
    const struct test tests[] = {{"limits", limits, 0},
                                 {"devices", devices, 0},
                                 {"group", group, 0},
                                 {"cannot_start", cannot_start, 0},
                                 {"key", key, 60},
                                 {"kept_in_part", kept_in_part, 120},
                                 {"other_page", other_page, 0},
                                 {"other_ledger", other_ledger, 0},
                                 {"broken_entries", broken_entries, 0}};

    return tests_run("adopt_changes", TESTS(tests));
}
