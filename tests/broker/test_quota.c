/* SPDX-License-Identifier: MIT
 *
 * test_quota.c - what counts as a user's memory besides buffers: connections, requests that wait for other ranks, replies that nobody
 * reads, communicators; and a control group that has less than the node.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "proto/session.h"
#include "tests/bed/job_status.h"

#define MIB (1 << 20)

static const char *error_text(const struct raw *r)
{
    return ((const struct fcc_reply *)r->in)->text;
}

/* It says how much is asked for, used and allowed, and what allows it. */
static void says_memory(const struct raw *r, unsigned allowed_mib)
{
    char allowed[64];

    (void)snprintf(allowed, sizeof(allowed), "of the %u bytes allowed (MEMORY_PER_USER_MB)", allowed_mib * MIB);
    if (!strstr(error_text(r), allowed) || !strstr(error_text(r), " has "))
        check_failed(__FILE__, __LINE__, "\"%s\": expected \"%s\"", error_text(r), allowed);
}

/* What there is stays below what is allowed and is given back: after a user's connections have gone there is room for as many. */
static void connections(void)
{
    enum { LIMIT = 8, MOST = LIMIT * MIB / (int)sizeof(struct fcc_session_memory) };
    static struct raw *all[MOST + 2];
    char limit[8];
    struct test_daemon d;

    (void)snprintf(limit, sizeof(limit), "%d", LIMIT);
    daemon_start(&d, (const char *const[]){"--memory-per-user-mb", limit, "--worker-idle-ms", "10000", NULL});
    for (int round = 0; round < 3; round++) {
        int n = 0, status = 0;
        while (n <= MOST) {
            all[n] = job_open_raw(&d, n % 2 ? "even" : "odd", FCC_ROLE_CLIENT, &status); /* of all jobs together */
            if (status)
                break;
            n++;
        }
        CHECK(status == -ENOMEM && n > MOST - 2 && n <= MOST);
        says_memory(all[n], LIMIT);
        CHECK(raw_closed(all[n]));
        raw_close(all[n]);
        int64_t used = job_number(&d, "odd", "memory_bytes") + job_number(&d, "even", "memory_bytes");
        CHECK(used <= LIMIT * MIB && used >= n * (int64_t)sizeof(struct fcc_session_memory));
        struct raw *looks =
            job_open_raw(&d, "odd", FCC_ROLE_CONTROL, &status); /* fccctl may look at a job that has no memory left */
        CHECK(status == 0);
        raw_close(looks);
        while (n)
            raw_close(all[--n]);
        job_await(&d, "odd", "connections", 0);
        job_await(&d, "even", "connections", 0);
        CHECK(job_number(&d, "odd", "memory_bytes") < MIB);
    }
    daemon_stop_unclean(&d);
}

static void unique_id(struct raw *r, struct fcc_unique_id *id)
{
    struct fcc_msg ask = {.length = sizeof(ask), .type = FCC_MSG_UNIQUE_ID, .id = 1};

    raw_send(r, &ask, sizeof(ask), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    *id = ((struct fcc_unique_id_reply *)r->in)->unique_id;
}

static void join(struct raw *r, const struct fcc_unique_id *id, int nranks, int rank)
{
    struct fcc_comm_init_msg m = {.msg = {.length = sizeof(m), .type = FCC_MSG_COMM_INIT, .id = 2},
                                  .unique_id = *id,
                                  .nranks = nranks,
                                  .rank = rank,
                                  .time_limit_ms = 60000,
                                  .device = -1};

    raw_send(r, &m, sizeof(m), NULL, 0);
}

/* A communicator of two ranks, of a user who may have so much. */
struct two_ranks {
    struct test_daemon d;
    struct raw *r[2];
    uint32_t comm[2];
    int64_t before; /* bytes charged */
};

static void ranks_open(struct two_ranks *p, const char *allowed_mib)
{
    struct fcc_unique_id id;
    int status;

    daemon_start(&p->d, (const char *const[]){"--memory-per-user-mb", allowed_mib, NULL});
    for (int i = 0; i < 2; i++) {
        p->r[i] = job_open_raw(&p->d, "raw", FCC_ROLE_CLIENT, &status);
        CHECK(status == 0);
    }
    unique_id(p->r[0], &id);
    for (int i = 0; i < 2; i++)
        join(p->r[i], &id, 2, i);
    for (int i = 0; i < 2; i++) {
        CHECK(raw_receive(p->r[i])->status == 0);
        p->comm[i] = ((struct fcc_comm_init_reply *)p->r[i]->in)->comm;
    }
    p->before = job_number(&p->d, "raw", "memory_bytes");
}

static void ranks_close(struct two_ranks *p)
{
    raw_close(p->r[0]);
    raw_close(p->r[1]);
    daemon_stop(&p->d);
}

/* A request of rank 0, which waits for rank 1's. A large one has an attribute that no operator has: it is refused when its turn comes. */
static void ranks_ask(struct two_ranks *p, int number, bool large)
{
    static struct {
        struct fcc_submit m;
        int64_t words[8000];
    } big;

    big.m = noop_make(p->comm[0], FCC_NO_SLOT);
    big.m.msg.id = 1000 + (uint64_t)number;
    if (large) {
        big.m.nattrs = 8000;
        for (int w = 0; w < 8000; w += 2)
            big.words[w] = 77ll << 32 | 1;
        big.m.msg.length = sizeof(big);
    }
    raw_send(p->r[0], &big, big.m.msg.length, NULL, 0);
}

/* Ask until a few requests have had no room: small ones are charged in steps, and the next step has not come. Returns how many were asked. */
static int ranks_fill(struct two_ranks *p, bool large)
{
    int asked = 0, grown = 0, steps = 0, longest = 0;
    int64_t now, last = p->before;
    struct fcc_unique_id id;

    while (steps < 8 || asked - grown <= longest + 2) {
        CHECK(asked < 1000);
        ranks_ask(p, asked++, large);
        unique_id(p->r[0], &id); /* the worker has read it */
        now = job_number(&p->d, "raw", "memory_bytes");
        if (now == last)
            continue;
        if (steps++ && asked - grown > longest)
            longest = asked - grown;
        grown = asked;
        last = now;
    }
    printf("%lld bytes, with %d requests waiting %lld\n", (long long)p->before, asked, (long long)last);
    return asked;
}

/* When there is no room for a request it takes its turn as an error of both ranks, and they stay in step. */
static void requests(bool large)
{
    const int allowed = large ? 4 : 2; /* MiB */
    int status, fine = 0, refused = 0;
    struct two_ranks p;

    ranks_open(&p, large ? "4" : "2");
    int asked = ranks_fill(&p, large);
    int64_t waiting = job_number(&p.d, "raw", "memory_bytes");
    CHECK(waiting > p.before + (large ? 2 * MIB : 100000) && waiting <= allowed * MIB);
    for (int i = 0; i < asked; i++) {
        struct fcc_submit m = noop_make(p.comm[1], FCC_NO_SLOT);
        m.msg.id = 1000 + (uint64_t)i;
        raw_send(p.r[1], &m, sizeof(m), NULL, 0);
        status = raw_receive(p.r[1])->status;
        CHECK(raw_receive(p.r[0])->status == status && ((struct fcc_reply *)p.r[0]->in)->msg.id == 1000 + (uint64_t)i);
        CHECK(!strcmp(error_text(p.r[0]), error_text(p.r[1])));
        if (status == -ENOMEM)
            says_memory(p.r[1], (unsigned)allowed);
        CHECK(status == -ENOMEM || status == (large ? -EINVAL : 0));
        fine += status != -ENOMEM;
        refused += status == -ENOMEM;
    }
    printf("%d had room, %d had none\n", fine, refused);
    CHECK(large || (fine > 0 && refused > 0)); /* a large one has been wrong before */
    struct fcc_submit m[2] = {noop_make(p.comm[0], FCC_NO_SLOT), noop_make(p.comm[1], FCC_NO_SLOT)};
    raw_send(p.r[0], &m[0], sizeof(m[0]), NULL, 0);
    raw_send(p.r[1], &m[1], sizeof(m[1]), NULL, 0);
    CHECK(raw_receive(p.r[0])->status == 0 && raw_receive(p.r[1])->status == 0);
    CHECK(job_number(&p.d, "raw", "memory_bytes") <= p.before + 2 * 65536); /* steps of what is charged, no more */
    ranks_close(&p);
}

/* Those that have no room take some memory, too. When they are very many, the next one's communicator ends, and its ranks hear why; but who does
 * not read that many answers loses its connection. */
static void requests_flood(void)
{
    enum { COMMS = 10, EACH = 1000 };
    uint32_t comms[2][COMMS];
    struct fcc_unique_id id;
    struct two_ranks p;
    int ended = 0;

    ranks_open(&p, "5");
    for (int k = 0; k < COMMS; k++) {
        unique_id(p.r[0], &id);
        for (int i = 0; i < 2; i++)
            join(p.r[i], &id, 2, i);
        for (int i = 0; i < 2; i++) {
            CHECK(raw_receive(p.r[i])->status == 0);
            comms[i][k] = ((struct fcc_comm_init_reply *)p.r[i]->in)->comm;
        }
    }
    for (int k = 0; k < COMMS; k++)
        for (int i = 0; i < EACH; i++) {
            struct fcc_submit m = noop_make(comms[0][k], FCC_NO_SLOT);
            (void)send(p.r[0]->sock, &m, sizeof(m), MSG_NOSIGNAL); /* it may have ended by then */
        }
    CHECK(daemon_logged(&p.d, "aborted: rank 0: noop: memory: ", true));
    for (int k = 0; k < COMMS; k++) {
        struct fcc_submit m = noop_make(comms[1][k], FCC_NO_SLOT);
        raw_send(p.r[1], &m, sizeof(m), NULL, 0);
        int status = raw_receive(p.r[1])->status;
        if (status && !strstr(error_text(p.r[1]), "rank 0"))
            check_failed(__FILE__, __LINE__, "communicator %d: %d: %s", k, status, error_text(p.r[1]));
        ended += status != 0;
    }
    printf("%d of %d communicators have ended\n", ended, COMMS);
    CHECK(ended > 0 && job_number(&p.d, "raw", "memory_bytes") <= 5 * MIB);
    unique_id(p.r[1], &id);
    ranks_close(&p);
}

static void requests_small(void)
{
    requests(false);
}

static void requests_large(void)
{
    requests(true);
}

/* Replies that nobody reads: they count, and when there is no more room that connection ends. */
static void replies(void)
{
    struct fcc_msg ask = {.length = sizeof(ask), .type = FCC_MSG_UNIQUE_ID, .id = 1};
    struct test_daemon d;
    int status;
    long sent = 0;

    daemon_start(&d, (const char *const[]){"--memory-per-user-mb", "1", NULL});
    struct raw *r = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status),
               *other = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status);
    CHECK(status == 0);
    for (double until = await_end();; sent++) {
        CHECK(now_ms() < until);
        if (send(r->sock, &ask, sizeof(ask), MSG_NOSIGNAL) < 0)
            break;
    }
    printf("ended after %ld requests\n", sent);
    CHECK(sent < 4000); /* not for their number */
    CHECK(daemon_logged(&d, "its replies, which it does not read, take more memory than is allowed", true));
    CHECK(daemon_logged(&d, "MEMORY_PER_USER_MB", false));
    raw_close(r);
    CHECK(raw_comm(other) != 0);
    raw_close(other);
    daemon_stop(&d);
}

/* Communicators of one session, each with a page of flags and what the worker keeps of it. */
static void communicators(void)
{
    struct test_daemon d;
    int status, n = 0;

    daemon_start(&d, (const char *const[]){"--memory-per-user-mb", "2", NULL});
    struct raw *r = job_open_raw(&d, "raw", FCC_ROLE_CLIENT, &status);
    do {
        struct fcc_unique_id id;
        unique_id(r, &id);
        join(r, &id, 1, 0);
        status = raw_receive(r)->status;
        n += !status;
    } while (!status && n < 100);
    printf("%d communicators\n", n);
    CHECK(status == -ENOMEM && n > 5 && n < 60); /* each has 36 KiB, and flags */
    says_memory(r, 2);
    raw_close(r);
    daemon_stop(&d);
}

/* ---- over nodes ---- */

enum way { STAGING, PLANS, WAYS };

/* Rank 0's node has no memory left for its user, the other one has: what the operator needs there is lacking, and both ranks hear of it. */
static void full_rank(int rank, const struct ranks *all, void *argument)
{
    const enum way way = *(const enum way *)argument;
    fcc_comm *comm = comm_open(all, rank, 0);
    fcc_buffer *in, *out, *hoard, *last = NULL;
    struct fcc_unique_id id;
    int status = 0;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, MIB, &in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, MIB, &out));
    for (size_t bytes = MIB; rank == 0 && bytes >= (32u << 10); bytes /= 2)
        while (!fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, bytes, &hoard))
            last = hoard;
    fcc_buffer_free(last); /* requests have room */
    OK(fcc_noop(comm));
    for (int i = 1; i <= 1000 && !status; i++) {
        struct fcc_tensor from = fcc_tensor_1d(in, 0, FCC_F32, i * 100), to = fcc_tensor_1d(out, 0, FCC_F32, i * 200);
        struct fcc_tensor all_of = fcc_tensor_1d(in, 0, FCC_F32, MIB / 4), sum = fcc_tensor_1d(out, 0, FCC_F32, MIB / 4);
        if (way == STAGING)
            status = fcc_all_reduce(comm, &(struct fcc_all_reduce_args){.in = all_of, .out = sum});
        else
            status = fcc_all_gather(comm, &(struct fcc_all_gather_args){.in = from, .out = to});
    }
    if (status != -ENOMEM || !strstr(fcc_last_error(), "MEMORY_PER_USER_MB"))
        check_failed(__FILE__, __LINE__, "rank %d: status %d: \"%s\"", rank, status, fcc_last_error());
    OK(fcc_get_unique_id(comm_context(), &id)); /* its worker lives */
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void full_on_one_node(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 2, (const char *const[]){"--memory-per-user-mb", "16", NULL});
    for (enum way way = STAGING; way < WAYS; way++) {
        printf("way %d\n", (int)way);
        ranks_start(&r, 2, full_rank, &way);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

/* ---- control groups ---- */

static char group[300], procs[340];

static void group_enter(int node)
{
    int fd = open(procs, O_WRONLY | O_CLOEXEC);

    (void)node;
    CHECK(fd >= 0 && write(fd, "0", 1) == 1);
    (void)close(fd);
}

static bool file_set(const char *name, const char *text)
{
    char path[400];

    (void)snprintf(path, sizeof(path), "%s/%s", group, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool set = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        (void)close(fd);
    return set;
}

/* A group of this test's own with 64 MiB. False: this machine does not let it. */
static bool group_make(void)
{
    static const char *const above[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    static const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};

    for (int i = 0; i < 2; i++) {
        (void)snprintf(group, sizeof(group), "%s/fccd-test-%d", above[i], getpid());
        (void)snprintf(procs, sizeof(procs), "%s/cgroup.procs", group);
        if (mkdir(group, 0755))
            continue;
        if (file_set(limits[i], "67108864"))
            return true;
        (void)rmdir(group);
    }
    return false;
}

/* Without MEMORY_PER_USER_MB a user has half of what the group allows. With more than the group allows the worker refuses what the group
 * has not, and lives. */
static void control_group(void)
{
    struct test_daemon d;
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *b, *all[8];
    struct fcc_unique_id id;
    int n = 0, status;

#if defined(__SANITIZE_THREAD__)
    test_skip("skipped: the sanitizer's own tables take most of what the group has");
#endif
    if (geteuid() || !group_make())
        test_skip("skipped: needs root and a memory controller, to make a control group");
    daemons_place(NULL, group_enter);
    for (int more = 0; more < 2; more++) {
        daemon_start(&d, more ? (const char *const[]){"--memory-per-user-mb", "1000", NULL} : NULL);
        OK(fcc_connect(NULL, &context));
        OK(fcc_get_unique_id(context, &id));
        OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
        pid_t worker = daemon_worker(&d);
        if (more) {
            FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 200 * MIB, &b), -ENOMEM, "209715200 bytes", "control group",
                  "67108864 bytes allowed", group);
            for (n = 0; n < 8 && !(status = fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 10 * MIB, &all[n])); n++)
                memset(fcc_buffer_data(all[n]), 1, 10 * MIB);
            FAILS(status, -ENOMEM, "control group", group);
            CHECK(n >= 2 && n <= 6);
        } else {
            FAILS(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 40 * MIB, &b), -ENOMEM, "33554432 bytes allowed",
                  "MEMORY_PER_USER_MB");
            OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 20 * MIB, &b));
            memset(fcc_buffer_data(b), 1, 20 * MIB);
        }
        OK(fcc_noop(comm));
        CHECK(daemon_worker(&d) == worker);
        fcc_disconnect(context);
        daemon_stop(&d);
    }
    for (double until = await_end(); rmdir(group) && now_ms() < until;) /* the last process has just ended */
        (void)usleep(5000);
    CHECK(access(group, F_OK) != 0);
}

int main(void)
{
    static const struct test tests[] = {
        {"connections", connections, 0},
        {"requests_small", requests_small, 0},
        {"requests_large", requests_large, 0},
        {"requests_flood", requests_flood, 0},
        {"replies", replies, 0},
        {"communicators", communicators, 0},
        {"full_on_one_node", full_on_one_node, 0},
        {"control_group", control_group, 0},
    };
    return tests_run("quota", TESTS(tests));
}
