/* SPDX-License-Identifier: MIT
 *
 * test_metrics.c - metrics: the text is OpenMetrics; they count what was run, on one node and over two; they stay when a worker ends; users have
 * rows of their own, as many as there may be.
 */
#include <signal.h>
#include <sys/wait.h>

#include "tests/bed/users_bed.h"
#include "tests/fccctl/fccctl_run.h"
#include "tests/fccctl/openmetrics.h"

static struct om *metrics(void)
{
    CHECK(FCCCTL("metrics") == 0);
    return om_parse(output);
}

static double value(const char *name, const char *labels)
{
    struct om *om = metrics();
    double v = om_value(om, name, labels);

    free(om);
    return v;
}

static void output_free(void)
{
    free(output);
    output = NULL;
}

/* ---- counts ---- */

#define NOOPS 7
#define GEMVS 5

/* COMMS_PER_JOB is 1. */
static bool one_is_all;

static void counted_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    for (int i = 0; i < NOOPS; i++)
        OK(fcc_noop(comm));
    gemv_once(comm, GEMVS);
    if (rank == 0 && one_is_all) {
        struct fcc_unique_id id;
        fcc_comm *more;
        OK(fcc_get_unique_id(comm_context(), &id));
        FAILS(fcc_comm_init(comm_context(), &id, 1, 0, NULL, &more), -EUSERS, "COMMS_PER_JOB");
    }
    struct fcc_gemv_all_reduce_args wrong = {.schedule = FCC_SCHEDULE_FUSED};
    CHECK(fcc_gemv_all_reduce(comm, &wrong) == -EINVAL); /* ends with an error for all ranks */
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void expect_counts(const struct om *om)
{
    CHECK(om_value(om, "fccd_operators_total", "operator=\"noop\",schedule=\"none\"") == NOOPS);
    CHECK(om_value(om, "fccd_operators_total", "operator=\"gemv_all_reduce\",schedule=\"fused\"") == GEMVS);
    CHECK(om_value(om, "fccd_operators_failed_total", "operator=\"gemv_all_reduce\"") == 1);
    CHECK(om_value(om, "fccd_operator_wait_seconds_count", "operator=\"noop\"") == NOOPS);
    CHECK(om_value(om, "fccd_operator_run_seconds_count", "operator=\"gemv_all_reduce\"") == GEMVS + 1);
    CHECK(om_value(om, "fccd_operator_run_seconds_sum", "operator=\"gemv_all_reduce\"") > 0);
    CHECK(om_value(om, "fccd_communicators_formed_total", "") == 1);
    CHECK(om_value(om, "fccd_workers_started_total", "") >= 1 && om_value(om, "fccd_workers_died_total", "") == 0);
}

/* What a worker has counted is shown while it runs, and stays when it has ended. */
static void counts_what_was_run(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    char uid[32];
    struct om *om;

    daemon_start(&d, (const char *const[]){"--worker-idle-ms", "50", "--jobs-per-user", "9", "--comms-per-user", "3",
                                           "--comms-per-job", "1", NULL});
    om = metrics();
    CHECK(om_value(om, "fccd_operators_total", "operator=\"noop\",schedule=\"none\"") == -1);
    CHECK(om_value(om, "fccd_build_info", "version=\"0.1.0\"") == 1 && om_value(om, "fccd_limit_jobs", "") == 9);
    free(om);
    one_is_all = true;
    ranks_start(&r, 2, counted_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    om = metrics();
    expect_counts(om);
    (void)snprintf(uid, sizeof(uid), "uid=\"%u\"", getuid());
    CHECK(om_value(om, "fccd_user_jobs", uid) == 1 && om_value(om, "fccd_user_connections", uid) == 2);
    CHECK(om_value(om, "fccd_user_memory_bytes", uid) > 1024 * 2048 * 4);
    CHECK(om_value(om, "fccd_user_communicators", uid) == 1 && om_value(om, "fccd_user_operators", uid) <= 64);
    CHECK(om_value(om, "fccd_user_gpu_memory_bytes", uid) == 0 && om_value(om, "fccd_user_stream_operators", uid) == 0);
    CHECK(om_value(om, "fccd_limit_communicators", "") == 3 && om_value(om, "fccd_limit_gpu_memory_bytes", "") == -1);
    CHECK(om_value(om, "fccd_limit_operators", "") == 262144 && om_value(om, "fccd_limit_stream_operators", "") == 65536);
    CHECK(om_value(om, "fccd_limit_refusals_total", "limit=\"COMMS_PER_JOB\"") == 1);
    CHECK(om_value(om, "fccd_limit_refusals_total", "limit=\"COMMS_PER_USER\"") == 0);
    CHECK(om_value(om, "fccd_communicators", "") == 1 && om_value(om, "fccd_operators_running", "") == 0);
    CHECK(om_value(om, "fccd_operators_queued", "") == 0);
    free(om);
    CHECK(FCCCTL("metrics", "--json") == 0);
    struct json_object *o = parse();
    CHECK(json_object_array_length(field(o, "metrics")) > 30 && *text(o, "metrics.0.name") == 'f');
    (void)json_object_put(o);
    stage->go = 1;
    ranks_join(&r);
    for (double until = await_end(); value("fccd_user_jobs", uid) > 0; (void)usleep(10000))
        CHECK(now_ms() < until);
    om = metrics();
    expect_counts(om);
    CHECK(om_value(om, "fccd_communicators", "") == 0 && om_value(om, "fccd_user_jobs", uid) == -1);
    free(om);
    daemon_stop(&d);
    output_free();
}

static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 1500);

    if (rank == 0)
        CHECK(fcc_noop(comm) == -ETIMEDOUT);
    stage->ready++;
    while (stage->ready < 2)
        (void)usleep(1000);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void killed_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    OK(fcc_noop(comm));
    if (rank == 1)
        (void)raise(SIGKILL);
    CHECK(fcc_noop(comm) == -ECONNABORTED);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void asked_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    OK(fcc_noop(comm));
    stage->ready++;
    while (!stage->go)
        (void)usleep(1000);
    CHECK(fcc_noop(comm) == -ECONNABORTED);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void counts_aborts(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    struct om *om;

    daemon_start(&d, NULL);
    ranks_start(&r, 2, late_rank, stage);
    ranks_join(&r);
    ranks_start(&r, 2, killed_rank, NULL);
    CHECK(rank_wait(&r, 0) == 0 && WIFSIGNALED(rank_wait(&r, 1)));
    stage->ready = 0;
    ranks_start(&r, 2, asked_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    CHECK(FCCCTL("abort") == 2);
    CHECK(FCCCTL("comms", "--json") == 0);
    struct json_object *o = parse();
    char comm[16];
    (void)snprintf(comm, sizeof(comm), "%d", (int)number(o, "workers.0.comms.0.comm"));
    (void)json_object_put(o);
    CHECK(FCCCTL("abort", "--comm", comm) == 0);
    stage->go = 1;
    ranks_join(&r);
    om = metrics();
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"time_limit\"") == 1);
    CHECK(om_value(om, "fccd_time_limits_total", "what=\"come\"") == 1);
    CHECK(om_value(om, "fccd_time_limits_total", "what=\"form\"") == 0 &&
          om_value(om, "fccd_time_limits_total", "what=\"run\"") == 0);
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"rank_gone\"") == 1);
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"asked\"") == 1);
    CHECK(om_value(om, "fccd_aborts_total", "reason=\"other\"") == 0 && om_value(om, "fccd_operators_queued", "") == 0);
    free(om);
    daemon_stop(&d);
    output_free();
}

/* Both nodes count what was sent; one that ends is a loss at the other. */
static void counts_over_nodes(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    char labels[128], node[96];
    struct om *om;

    daemons_start(&d, 2, NULL);
    ranks_start(&r, 2, counted_rank, stage);
    while (stage->ready < 2)
        (void)usleep(1000);
    (void)snprintf(labels, sizeof(labels), "node=\"%.64s\",transport=\"%s\"", d.node[1].address,
                   test_over_verbs() ? "verbs" : "tcp");
    (void)snprintf(node, sizeof(node), "node=\"%s\"", d.node[1].address);
    for (double until = await_end(); value("fccd_link_sent_messages_total", labels) < GEMVS; (void)usleep(10000))
        CHECK(now_ms() < until);
    om = metrics();
    CHECK(om_value(om, "fccd_link_sent_bytes_total", labels) > 0 && om_value(om, "fccd_link_received_bytes_total", labels) > 0);
    CHECK(om_value(om, "fccd_link_sent_messages_total", labels) > 0 && om_value(om, "fccd_link_losses_total", labels) == 0);
    CHECK(om_value(om, "fccd_node_up", node) == 1 && om_value(om, "fccd_node_link_losses_total", node) == 0);
    CHECK(om_value(om, "fccd_proxy_lag_seconds_count", "") >= GEMVS);
    expect_counts(om);
    free(om);
    stage->go = 1;
    ranks_join(&r);
    CHECK(kill(d.node[1].pid, SIGKILL) == 0 && waitpid(d.node[1].pid, NULL, 0) == d.node[1].pid);
    for (double until = await_end(); value("fccd_node_up", node) != 0; (void)usleep(10000))
        CHECK(now_ms() < until);
    CHECK(value("fccd_node_up", node) == 0 && value("fccd_node_link_losses_total", node) == 1);
    node_restart(&d, 1);
    for (double until = await_end(); value("fccd_node_up", node) != 1; (void)usleep(10000))
        CHECK(now_ms() < until);
    CHECK(value("fccd_node_up", node) == 1 && value("fccd_node_link_losses_total", node) == 1);
    daemon_stop_unclean(&d);
    output_free();
}

/* ---- users ---- */

enum { ROWS = 100, MANY = ROWS + 3, FIRST_UID = 41000, AT_ONCE = 8 };

static void user_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_context *context;

    (void)all;
    become(FIRST_UID + (uid_t)rank);
    for (double until = await_end(); stage->ready + AT_ONCE <= rank;
         (void)usleep(10000)) /* each has a worker, whose start takes a core for a while */
        CHECK(now_ms() < until);
    OK(fcc_connect(NULL, &context));
    stage->ready++;
    while (!stage->go)
        (void)usleep(10000);
    fcc_disconnect(context);
}

/* However many users there are, only so many have rows; the others are shown together. */
static void users_are_bounded(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));
    unsigned rows = 0;
    double jobs = 0;

    needs_users();
    daemon_start(&d, NULL);
    open_to_all(&d);
    ranks_start(&r, MANY, user_rank, stage);
    for (double until = await_end(); stage->ready < MANY; (void)usleep(10000))
        CHECK(now_ms() < until);
    struct om *om = metrics();
    for (unsigned i = 0; i < om->nsamples; i++)
        if (!strcmp(om->samples[i].name, "fccd_user_jobs")) {
            rows++;
            jobs += om->samples[i].value;
        }
    CHECK(rows == ROWS + 1 && jobs == MANY && om_value(om, "fccd_user_jobs", "uid=\"other\"") == MANY - ROWS);
    CHECK(om_value(om, "fccd_user_connections", "uid=\"other\"") == MANY - ROWS);
    free(om);
    stage->go = 1;
    ranks_join(&r);
    daemon_stop(&d);
    output_free();
}

int main(void)
{
    const struct test tests[] = {{"counts_what_was_run", counts_what_was_run, 0},
                                 {"counts_aborts", counts_aborts, 0},
                                 {"counts_over_nodes", counts_over_nodes, 60},
                                 {"users_are_bounded", users_are_bounded, 60}};

    return tests_run("metrics", TESTS(tests));
}
