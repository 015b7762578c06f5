/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_share.c - jobs that share fake GPUs, with the real daemon and library: operators that workers launch are launched by weight, counted in
 * operators and not in times; who is alone on a GPU is never held back; what one does not use the others have at once; jobs whose GPUs would stop each
 * other go on; so do those whose broker is stopped, killed and restarted while they are held back, or is told anything by another worker.
 *
 * Kernels of two workers run side by side on a fake GPU without being slower. So one of two equal jobs loses nothing, and one of a small weight has
 * twice the operators that it would have on a GPU.
 */
#include <signal.h>
#include <stdatomic.h>

#include "daemon/common/share.h"
#include "tests/bed/keeper.h"
#include "tests/bed/users_bed.h"
#include "tests/fake_gpu/fake_gpu_bed.h"

enum { SEATS = 8, AT_ONCE = 4, KERNEL_US = 2000, OPERATORS = 250, FIRST = 40003, SECOND = 40004, /* users */ LIMIT_MS = 60000 };

/* A process: a rank of a job's communicator. */
struct seat {
    uid_t uid; /* 0: the test's own */
    const char *job;
    int gpu, rank, nranks;
    int node;
    bool stays; /* when it runs nothing any more, until the end */
    int mates;  /* the seat whose process makes the communicator's id */
};

struct scene {
    struct seat seats[SEATS];
    int nseats;
    char sockets[2][PATH_MAX]; /* of nodes, if there are two */
    struct fcc_unique_id ids[SEATS];
    _Atomic int made[SEATS], joined, idle, leave;
    _Atomic int stop[SEATS];   /* by the seat of rank 0: its communicator runs no more */
    _Atomic long last[SEATS];  /* ... after so many operators: all its ranks run as many */
    _Atomic long count[SEATS]; /* operators that have ended */
};

static void seat_run(int number, const struct ranks *all, void *argument)
{
    struct scene *s = argument;
    const struct seat *seat = &s->seats[number];
    const struct fcc_connect_options options = {.job = seat->job};
    const struct fcc_comm_options how = {.device = seat->gpu, .time_limit_ms = LIMIT_MS, .device_kind = FCC_DEVICE_CUDA};
    fcc_context *context;
    fcc_comm *comm;
    fcc_request *requests[AT_ONCE] = {NULL};

    (void)all;
    if (seat->uid)
        become(seat->uid);
    if (*s->sockets[seat->node])
        CHECK(setenv("FCCD_SOCKET", s->sockets[seat->node], 1) == 0);
    driver_use();
    context = client_connect(&options);
    if (seat->mates == number) {
        OK(fcc_get_unique_id(context, &s->ids[number]));
        s->made[number] = 1;
    }
    await(&s->made[seat->mates], 1);
    ranks_meet(true);
    OK(fcc_comm_init(context, &s->ids[seat->mates], seat->nranks, seat->rank, &how, &comm));
    s->joined++;
    await(&s->joined, s->nseats);
    for (long n = 1; n <= s->last[seat->mates]; n++) {
        /* Another rank has waited for its operator AT_ONCE before, so for one that this rank has started: it has started none beyond n + AT_ONCE. */
        if (seat->mates == number && s->stop[number] && s->last[number] == LONG_MAX)
            s->last[number] = n + AT_ONCE;
        fcc_request **r = &requests[n % AT_ONCE];
        if (*r) {
            OK(fcc_request_wait(*r, -1));
            fcc_request_free(*r);
            s->count[number] = n - AT_ONCE;
        }
        OK(fcc_noop_start(comm, r));
    }
    for (int i = 0; i < AT_ONCE; i++)
        if (requests[i]) {
            OK(fcc_request_wait(requests[i], -1));
            fcc_request_free(requests[i]);
        }
    if (seat->stays) {
        s->idle++;
        await(&s->leave, 1);
    }
    OK(fcc_comm_error(comm));
    fcc_comm_destroy(comm);
    client_end(context);
}

static struct scene *scene_make(const struct seat *seats, int n)
{
    struct scene *s = shared_memory(sizeof(*s));

    s->nseats = n;
    memcpy(s->seats, seats, (size_t)n * sizeof(*seats));
    for (int i = 0; i < n; i++)
        s->last[i] = LONG_MAX;
    return s;
}

static void await_count(const struct scene *s, int seat, long more)
{
    long from = s->count[seat];

    for (double until = await_end(); s->count[seat] < from + more;)
        AWAITING(until);
}

static void stop(struct scene *s, int seat)
{
    s->stop[seat] = 1;
}

/* The value of a metric without labels. */
static double metric(const struct test_daemon *d, const char *name)
{
    const char *const arguments[] = {"--socket", d->socket, "metrics", NULL};
    static char text[1 << 18];
    char line[96];

    CHECK(program_run(text, sizeof(text), fccctl_binary(), arguments) == 0);
    (void)snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text, line);
    if (!at)
        check_failed(__FILE__, __LINE__, "no metric %s", name);
    return atof(at + strlen(line));
}

static double waits(const struct test_daemon *d)
{
    return metric(d, "fccd_gpu_share_waits_total");
}

static void await_waits(const struct test_daemon *d, double more)
{
    double from = waits(d);

    for (double until = await_end(); waits(d) < from + more;)
        AWAITING(until);
}

static void open_for_users(const struct test_daemon *d)
{
    char path[PATH_MAX];

    open_to_all(d);
    (void)snprintf(path, sizeof(path), "%s/.gpus/%s", test_directory(), FAKE_GPU_CONTROL);
    CHECK(chmod(path, 0666) == 0);
}

/* ---- weights ---- */

/* Two jobs of users of these weights flood a GPU. How many operators the first one has for each of the second's. */
static double ratio_of(int first, int second, double *held)
{
    const struct seat seats[] = {{.uid = FIRST, .job = "a", .nranks = 1}, {.uid = SECOND, .job = "b", .nranks = 1, .mates = 1}};
    struct scene *s = scene_make(seats, 2);
    struct test_daemon d;
    struct ranks r;
    char list[64];

    (void)snprintf(list, sizeof(list), "%d=%d,%d=%d", FIRST, first, SECOND, second);
    fake_start(&d, 1, (const char *const[]){"--user-weights", list, NULL});
    open_for_users(&d);
    fake->run_us = KERNEL_US;
    ranks_start(&r, 2, seat_run, s);
    await_count(s, 1, 20); /* the broker has seen both, and what kernels take is known */
    const long a = s->count[0], b = s->count[1];
    await_count(s, 0, OPERATORS);
    const double ratio = (double)(s->count[0] - a) / (double)(s->count[1] - b);
    CHECK(s->count[1] > b);
    *held = waits(&d);
    stop(s, 0);
    stop(s, 1);
    ranks_join(&r);
    fake_stop(&d);
    return ratio;
}

static void equal_weights(void)
{
    double held, ratio;

    needs_users();
    ratio = ratio_of(100, 100, &held);
    if (ratio < .5 || ratio > 2)
        check_failed(__FILE__, __LINE__, "100:100: %.2f operators of one for each of the other", ratio);
}

static void other_weights(void)
{
    double held, three;

    needs_users();
    three = ratio_of(300, 100, &held);
    CHECK(held > 0);
    if (three < 1) /* 2, on a machine that does nothing else; less where the first one's engine waits for a core */
        check_failed(__FILE__, __LINE__, "300:100: %.2f operators of one for each of the other", three);
}

static void large_weights(void)
{
    double held, ten;

    needs_users();
    ten = ratio_of(1000, 100, &held);
    CHECK(held > 0);
    if (ten < 1.5) /* 5.5, likewise */
        check_failed(__FILE__, __LINE__, "1000:100: %.2f operators of one for each of the other", ten);
}

/* ---- who is not held back ---- */

/* Jobs that are alone on their GPUs, and a job beside one that has a GPU and does not use it. */
static void alone(void)
{
    const struct seat seats[] = {{.job = "a", .gpu = 0, .nranks = 1},
                                 {.job = "b", .gpu = 1, .nranks = 1, .mates = 1},
                                 {.job = "c", .gpu = 0, .nranks = 1, .mates = 2, .stays = true}};
    struct scene *s = scene_make(seats, 3);
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    fake->run_us = KERNEL_US;
    stop(s, 2); /* after its first operator */
    ranks_start(&r, 3, seat_run, s);
    await_count(s, 0, 1);
    await(&s->idle, 1);
    (void)usleep(2 * SHARE_ACTIVE_NS / 1000);
    double before = waits(&d);
    await_count(s, 0, OPERATORS);
    CHECK(waits(&d) == before && s->count[1] > 0 && metric(&d, "fccd_gpu_shared") == 0);
    s->leave = 1;
    stop(s, 0);
    stop(s, 1);
    ranks_join(&r);
    fake_stop(&d);
}

/* One of two jobs stops: the other one is not held back any more, and the broker's timer has ended. */
static void the_rest(void)
{
    const struct seat seats[] = {{.uid = FIRST, .job = "a", .nranks = 1}, {.uid = SECOND, .job = "b", .nranks = 1, .mates = 1}};
    struct scene *s = scene_make(seats, 2);
    struct test_daemon d;
    struct ranks r;
    char list[64];

    needs_users();
    (void)snprintf(list, sizeof(list), "%d=10000,%d=1", FIRST, SECOND);
    fake_start(&d, 1, (const char *const[]){"--user-weights", list, NULL});
    open_for_users(&d);
    fake->run_us = KERNEL_US;
    ranks_start(&r, 2, seat_run, s);
    await_waits(&d, 3);
    CHECK(metric(&d, "fccd_gpu_shared") == 1 && metric(&d, "fccd_gpu_share_wait_seconds_total") > 0);
    stop(s, 0);
    CHECK(rank_wait(&r, 0) == 0);
    for (double until = await_end(); metric(&d, "fccd_gpu_shared") > 0;)
        AWAITING(until);
    await_count(s, 1, 2); /* what was held back then is counted when it begins */
    double before = waits(&d);
    await_count(s, 1, OPERATORS);
    CHECK(waits(&d) == before);
    stop(s, 1);
    CHECK(rank_wait(&r, 1) == 0);
    fake_stop(&d);
}

/* GPU_TURNS=free: nobody waits. */
static void free_turns(void)
{
    const struct seat seats[] = {{.job = "a", .nranks = 1}, {.job = "b", .nranks = 1, .mates = 1}};
    struct scene *s = scene_make(seats, 2);
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, 1, (const char *const[]){"--gpu-turns", "free", NULL});
    fake->run_us = KERNEL_US;
    ranks_start(&r, 2, seat_run, s);
    await_count(s, 0, OPERATORS);
    await_count(s, 1, 1);
    CHECK(waits(&d) == 0 && metric(&d, "fccd_gpu_shared") == 0);
    stop(s, 0);
    stop(s, 1);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- several GPUs ---- */

/* Six seats, of which the last four are two communicators beside the floods of the first two: operators are held back, and all seats go on. */
static void all_go_on(struct test_daemon *d, struct scene *s)
{
    struct ranks r;

    fake->run_us = KERNEL_US;
    ranks_start(&r, 6, seat_run, s);
    await_count(s, 2, OPERATORS / 2);
    await_count(s, 4, OPERATORS / 2);
    await_count(s, 0, 1);
    await_count(s, 1, 1);
    CHECK(waits(d) > 0);
    for (int i = 0; i < 6; i++)
        stop(s, i);
    ranks_join(&r);
    fake_stop(d);
}

/* Two jobs have a communicator over both GPUs each; each floods another GPU besides, where it then has had more than its share. All go on. */
static void opposite_debts(void)
{
    const struct seat seats[] = {
        {.job = "a", .gpu = 0, .nranks = 1, .mates = 0},
        {.job = "b", .gpu = 1, .nranks = 1, .mates = 1},
        {.job = "a", .gpu = 0, .nranks = 2, .rank = 0, .mates = 2},
        {.job = "a", .gpu = 1, .nranks = 2, .rank = 1, .mates = 2},
        {.job = "b", .gpu = 0, .nranks = 2, .rank = 0, .mates = 4},
        {.job = "b", .gpu = 1, .nranks = 2, .rank = 1, .mates = 4},
    };
    struct scene *s = scene_make(seats, 6);
    struct test_daemon d;

    fake_start(&d, 2, NULL);
    all_go_on(&d, s);
}

/* The same over two nodes, with a GPU each: on one node the first job has had more than its share, on the other one the second. */
static void opposite_nodes(void)
{
    const struct seat seats[] = {
        {.job = "a", .nranks = 1, .mates = 0},
        {.job = "b", .node = 1, .nranks = 1, .mates = 1},
        {.job = "a", .nranks = 2, .rank = 0, .mates = 2},
        {.job = "a", .node = 1, .nranks = 2, .rank = 1, .mates = 2},
        {.job = "b", .nranks = 2, .rank = 0, .mates = 4},
        {.job = "b", .node = 1, .nranks = 2, .rank = 1, .mates = 4},
    };
    struct scene *s = scene_make(seats, 6);
    struct test_daemon d;

    fake_nodes_start(&d, 2, 1, NULL);
    for (int node = 0; node < 2; node++)
        (void)snprintf(s->sockets[node], sizeof(s->sockets[node]), "%s", d.node[node].socket);
    all_go_on(&d, s);
}

/* ---- the broker ---- */

/* The job that is held back all the time goes on without a broker, and is held back again when there is one. */
static void broker_ends(void)
{
    const struct seat seats[] = {{.uid = FIRST, .job = "a", .nranks = 1}, {.uid = SECOND, .job = "b", .nranks = 1, .mates = 1}};
    struct scene *s = scene_make(seats, 2);
    char directory[PATH_MAX], list[64];
    const char *const options[] = {"--gpus", "cuda", "--plugin-dir", directory, "--user-weights", list, NULL};
    struct test_daemon d;
    struct ranks r;

    needs_users();
    (void)snprintf(list, sizeof(list), "%d=10000,%d=1", FIRST, SECOND);
    keepers_start(1, 64);
    fake_start(&d, 1, options + 4);
    (void)snprintf(directory, sizeof(directory), "%s/.gpus", test_directory());
    open_for_users(&d);
    fake->run_us = KERNEL_US;
    ranks_start(&r, 2, seat_run, s);
    await_waits(&d, 3);
    CHECK(kill(d.pid, SIGSTOP) == 0); /* it hangs */
    await_count(s, 1, OPERATORS);
    CHECK(kill(d.pid, SIGCONT) == 0);
    for (int i = 0; i < 2; i++) {
        await_waits(&d, 3);
        keeper_kill(&d, 0, i ? SIGTERM : SIGKILL);
        await_count(s, 1, OPERATORS);
        await_count(s, 0, 1);
        keeper_next(&d, 0, options);
        open_for_users(&d);
    }
    await_waits(&d, 3);
    stop(s, 0);
    stop(s, 1);
    ranks_join(&r);
    keepers_stop(&d);
    fake_check();
}

/* A job that is drained while its operator is held back ends. */
static void drained(void)
{
    const struct seat seats[] = {{.uid = FIRST, .job = "a", .nranks = 1}, {.uid = SECOND, .job = "b", .nranks = 1, .mates = 1}};
    struct scene *s = scene_make(seats, 2);
    struct test_daemon d;
    struct ranks r;
    char list[64], text[4096];

    needs_users();
    (void)snprintf(list, sizeof(list), "%d=10000,%d=1", FIRST, SECOND);
    fake_start(&d, 1, (const char *const[]){"--user-weights", list, NULL});
    open_for_users(&d);
    fake->run_us = KERNEL_US;
    ranks_start(&r, 2, seat_run, s);
    await_waits(&d, 3);
    const char *const drain[] = {"--socket", d.socket, "drain", "b", NULL};
    if (program_run(text, sizeof(text), fccctl_binary(), drain) != 0)
        check_failed(__FILE__, __LINE__, "fccctl drain: %s", text);
    CHECK(rank_wait(&r, 1) != 0); /* its check has failed: -ESHUTDOWN */
    await_count(s, 0, OPERATORS);
    stop(s, 0);
    CHECK(rank_wait(&r, 0) == 0);
    daemon_stop_unclean(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"equal_weights", equal_weights, 60},
                                        {"other_weights", other_weights, 60},
                                        {"large_weights", large_weights, 60},
                                        {"alone", alone, 60},
                                        {"the_rest", the_rest, 60},
                                        {"free_turns", free_turns, 60},
                                        {"opposite_debts", opposite_debts, 60},
                                        {"opposite_nodes", opposite_nodes, 60},
                                        {"broker_ends", broker_ends, 90},
                                        {"drained", drained, 60}};

    (void)argc;
    run_again(argv);
    (void)setenv("FCCD_GPU_TURNS", "weighted", 1); /* of the daemons, if no option says something else */
    return tests_run("gpu_worker_share", TESTS(tests));
}
