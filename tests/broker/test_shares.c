/* SPDX-License-Identifier: MIT
 *
 * test_shares.c - what a user and a job may have besides memory: communicators, and operators in flight. What is too much is refused with the
 * limit's name, who has how much, and what is allowed, on all ranks, and on all nodes; what is given back may be taken again; and one job's or
 * user's limit is not another's.
 */
#include <errno.h>
#include <sys/wait.h>

#include "tests/bed/job_status.h"

enum { LIMIT_MS = 20000 };

static fcc_context *context_of(const struct test_daemon *d, int node, const char *job)
{
    struct fcc_connect_options options = {.job = job, .socket_path = d->node[node].socket};
    fcc_context *context;

    OK(fcc_connect(&options, &context));
    return context;
}

/* A communicator of one rank. */
static int comm_new(fcc_context *context, fcc_comm **out)
{
    struct fcc_unique_id id;

    OK(fcc_get_unique_id(context, &id));
    return fcc_comm_init(context, &id, 1, 0, NULL, out);
}

static const char *words_of(const char *job, unsigned used, unsigned allowed, const char *key)
{
    static char text[4][200];
    static unsigned next;
    char *t = text[next++ % 4];

    (void)snprintf(t, sizeof(text[0]), "%s %u%s%s has %u of the %u allowed (%s)", job ? "job" : "user", geteuid(),
                   job ? "/" : "", job ? job : "", used, allowed, key);
    return t;
}

/* A job has as many as a job may have, another one has its own, and both together what the user may have. */
static void communicators(void)
{
    fcc_context *one, *two;
    fcc_comm *of_one[4], *of_two[4];
    struct test_daemon d;

    daemon_start(&d, (const char *const[]){"--comms-per-job", "3", "--comms-per-user", "5", NULL});
    one = context_of(&d, 0, "one");
    two = context_of(&d, 0, "two");
    for (int i = 0; i < 3; i++)
        OK(comm_new(one, &of_one[i]));
    FAILS(comm_new(one, &of_one[3]), -EUSERS, "rank 0: communicators: ", words_of("one", 3, 3, "COMMS_PER_JOB"));
    for (int i = 0; i < 2; i++)
        OK(comm_new(two, &of_two[i]));
    FAILS(comm_new(two, &of_two[2]), -EUSERS, "rank 0: communicators: ", words_of(NULL, 5, 5, "COMMS_PER_USER"));
    CHECK(job_number(&d, "one", "communicators") == 3 && job_number(&d, "two", "communicators") == 2);
    OK(fcc_comm_abort(of_one[0], "not needed"));
    FAILS(comm_new(two, &of_two[2]), -EUSERS, "COMMS_PER_USER"); /* it has ended, but its rank has it still */
    fcc_comm_destroy(of_one[0]);
    OK(comm_new(two, &of_two[2]));
    fcc_comm_destroy(of_one[1]);
    FAILS(comm_new(two, &of_two[3]), -EUSERS, words_of("two", 3, 3, "COMMS_PER_JOB"));
    OK(fcc_noop(of_two[2]));
    fcc_disconnect(two); /* what a process leaves behind is given back */
    job_await(&d, "two", "communicators", 0);
    for (int i = 0; i < 2; i++)
        OK(comm_new(one, &of_one[i]));
    fcc_disconnect(one);
    job_await(&d, "one", "communicators", 0);
    daemon_stop(&d);
}

/* All ranks hear of it, those that have come, those that come, and those on the other node. */
static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    const struct fcc_unique_id *ids = argument;
    fcc_context *context;
    struct fcc_comm_options options = {.time_limit_ms = LIMIT_MS};
    fcc_comm *own = NULL, *comm;
    _Atomic int *ready = (_Atomic int *)(uintptr_t)&ids[2];

    OK(fcc_connect(NULL, &context));
    if (rank == all->n - 1) /* on the last node, where one is all that there may be */
        OK(comm_new(context, &own));
    (*ready)++;
    while (*ready < all->n)
        nap();
    FAILS(fcc_comm_init(context, &ids[0], all->n, rank, &options, &comm), -EUSERS,
          "communicators: ", words_of("test", 1, 1, "COMMS_PER_JOB"));
    (*ready)++;
    while (*ready < 2 * all->n)
        nap();
    if (own)
        fcc_comm_destroy(own);
    (*ready)++;
    while (*ready < 3 * all->n)
        nap();
    OK(fcc_comm_init(context, &ids[1], all->n, rank, &options, &comm));
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void refused_on(int nodes)
{
    struct fcc_unique_id *ids = shared_memory(3 * sizeof(*ids));
    fcc_context *context;
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, (const char *const[]){"--comms-per-job", "1", NULL});
    context = context_of(&d, 0, "test");
    for (int i = 0; i < 2; i++)
        OK(fcc_get_unique_id(context, &ids[i]));
    ranks_start(&r, 2, refused_rank, ids);
    ranks_join(&r);
    fcc_disconnect(context);
    daemon_stop(&d);
}

static void refused_everywhere(void)
{
    refused_on(1);
}

static void refused_on_nodes(void)
{
    refused_on(2);
}

/* ---- operators in flight ---- */

enum { MANY = 12, ALLOWED = 8 };

/* Rank 0 is ahead, and takes all that is allowed. What is too much takes its turn as an error of both ranks, which stay in step. */
static void operators_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *at = argument;
    fcc_context *context;
    struct fcc_comm_options options = {.time_limit_ms = LIMIT_MS};
    fcc_request *requests[MANY];
    int status[MANY], fine = 0;
    fcc_comm *comm;

    OK(fcc_connect(NULL, &context));
    OK(fcc_comm_init(context, &all->id, all->n, rank, &options, &comm));
    for (int i = 0; rank == 0 && i < MANY; i++)
        OK(fcc_noop_start(comm, &requests[i]));
    if (rank == 0)
        OK(fcc_comm_error(comm));
    at[MANY] += rank == 0;
    while (!at[MANY + 1]) /* they have been seen to be in flight */
        nap();
    for (int i = 0; i < MANY; i++) {
        status[i] = rank == 0 ? fcc_request_wait(requests[i], -1) : fcc_noop(comm);
        fine += !status[i];
        if (status[i])
            FAILS(status[i], -EUSERS, "noop: operators in flight: job ", " of the 8 allowed (OPERATORS_PER_JOB)");
        at[i] += status[i] ? 1 : 100;
        if (rank == 0)
            fcc_request_free(requests[i]);
    }
    CHECK(fine > 0 && fine < MANY);
    at[MANY + 2]++;
    while (at[MANY + 2] < all->n)
        nap();
    for (int i = 0; i < MANY; i++)
        CHECK(at[i] == all->n || at[i] == 100 * all->n); /* the same for all */
    for (int i = 0; i < 3 * ALLOWED; i++)
        OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void operators_on(int nodes)
{
    _Atomic int *at = shared_memory((MANY + 3) * sizeof(*at));
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, nodes, (const char *const[]){"--operators-per-job", "8", NULL});
    ranks_start(&r, 2, operators_rank, at);
    while (!at[MANY])
        nap();
    job_await(&d, "test", "operators", ALLOWED);
    at[MANY + 1] = 1;
    ranks_join(&r);
    daemon_stop(&d);
}

static void operators(void)
{
    operators_on(1);
}

static void operators_on_nodes(void)
{
    operators_on(2);
}

/* A large limit is charged in steps, of which a worker keeps some; what is kept is never more than a small part of it. */
static void steps(void)
{
    enum { LIMIT = 2560, SLACK = LIMIT / 256 };
    struct fcc_unique_id id;
    fcc_context *context;
    fcc_comm *comm;
    fcc_request *requests[1000];
    struct test_daemon d;

    daemon_start(&d, (const char *const[]){"--operators-per-user", "2560", NULL});
    context = context_of(&d, 0, "one");
    OK(fcc_get_unique_id(context, &id));
    pid_t other = fork();
    CHECK(other >= 0);
    if (!other) {
        fcc_context *own = context_of(&d, 0, "one");
        OK(fcc_comm_init(own, &id, 2, 1, NULL, &comm));
        for (int i = 0; i < 1000; i++)
            OK(fcc_noop(comm));
        fcc_disconnect(own);
        _exit(0);
    }
    OK(fcc_comm_init(context, &id, 2, 0, NULL, &comm));
    for (int i = 0; i < 1000; i++)
        OK(fcc_noop_start(comm, &requests[i]));
    for (int i = 0; i < 1000; i++) {
        OK(fcc_request_wait(requests[i], -1));
        fcc_request_free(requests[i]);
    }
    CHECK(job_number(&d, "one", "operators") <= SLACK);
    int status;
    CHECK(waitpid(other, &status, 0) == other && status == 0);
    fcc_disconnect(context);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"communicators", communicators, 0},           {"refused_everywhere", refused_everywhere, 0},
        {"refused_on_nodes", refused_on_nodes, 0},     {"operators", operators, 0},
        {"operators_on_nodes", operators_on_nodes, 0}, {"steps", steps, 0},
    };
    return tests_run("shares", TESTS(tests));
}
