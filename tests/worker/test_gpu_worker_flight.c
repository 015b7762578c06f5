/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_flight.c - each run that ranks launch by themselves has a record in the flight recorder, with the real daemon and the real library on fake GPUs: what their kernels note
 * in the GPUs' memory is read, put together, and outlives the worker; whatever a program writes there harms nobody. Those of real GPUs: test_gpu_collectives.c and test_gpu_prepared.c.
 */
#include "kernels/gpu/bound.h"
#include "tests/bed/flight_runs.h"
#include "tests/bed/random.h"
#include "tests/fake_gpu/fake_gpu_own.h"

enum {
    REPLAYS = 20,
    IN_GRAPH = 3,
    OUTSIDE = 7,
    LOOK_MS = 40,     /* the worker's */
    SLACK_NS = 50000, /* by which fake GPUs' clocks are off: they are read while processes take turns */
    TOO_MANY = 3000,  /* more than a GPU keeps, and than the recorder does */
    LATE_MS = 300,
};

struct meeting {
    _Atomic int ready, go;
};

static void metric_await(const char *op, int64_t runs)
{
    static char text[1 << 18];
    char line[128];

    (void)snprintf(line, sizeof(line), "fccd_operators_total{operator=\"%s\",schedule=\"prepared\"} %lld\n", op,
                   (long long)runs);
    for (double until = await_end();; (void)usleep(1000)) {
        CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"metrics", NULL}) == 0);
        if (strstr(text, line))
            return;
        if (now_ms() >= until)
            check_failed(__FILE__, __LINE__, "\"%s\" is not in: %.3000s", line, strstr(text, "fccd_operators_total"));
    }
}

/* The rank waits for the test, and leaves. */
static void rank_rest(struct meeting *stage, struct rank *r, fcc_context *context)
{
    stage->ready++;
    await(&stage->go, 1);
    own_close(r, context);
}

/* ---- collectives, enqueued and replayed ---- */

static void collectives_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    driver->capture_begin();
    for (int i = 0; i < IN_GRAPH; i++)
        OK(sum_enqueue(&r, FEW));
    void *graph = driver->capture_end();
    for (int i = 0; i < OUTSIDE; i++)
        OK(sum_enqueue(&r, FEW));
    for (int i = 0; i < REPLAYS; i++)
        driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    driver->graph_destroy(graph);
    rank_rest(argument, &r, context);
}

/* Also when the worker has been killed. */
static void collectives(void)
{
    enum { ALL = OUTSIDE + REPLAYS * IN_GRAPH };
    const struct flight_expected expected = {"all_reduce", 0, 1, ALL, FEW * 4, flight_clock()};
    struct meeting *stage = shared_memory(sizeof(*stage));
    static char text[1 << 16], svg[300];
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, GPUS, collectives_rank, stage);
    await(&stage->ready, GPUS);
    flight_await_runs("test", &expected, SLACK_NS);
    metric_await("all_reduce", ALL);
    struct json_object *o = flight_read("test");
    struct json_object *last = json_object_array_get_idx(flight_launched(o), ALL - 1);
    CHECK(flight_says(last, "dtype", "f32") && flight_number(last, "run") == ALL);
    CHECK(flight_number(json_object_array_get_idx(flight_field(o, "comms"), 0), "runs") == ALL);
    (void)json_object_put(o);
    CHECK(kill(daemon_worker(&d), SIGKILL) == 0);
    (void)snprintf(svg, sizeof(svg), "%s/flight.svg", test_directory());
    CHECK(program_run(text, sizeof(text), fccctl_binary(),
                      (const char *const[]){"flight", "--job", "test", "--last", "1000", "--svg", svg, NULL}) == 0);
    CHECK(strstr(text, "LAUNCHED") && strstr(text, "all_reduce") && strstr(text, "ended") && unlink(svg) == 0);
    flight_await_runs("test", &expected, SLACK_NS);
    stage->go = 1;
    ranks_join(&r);
    daemon_stop_unclean(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"collectives", collectives, 60}};
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_flight", TESTS(tests));
}
