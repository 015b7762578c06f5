/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_flight.c - each run that ranks launch by themselves has a record in the flight recorder, with the real daemon and the real library on fake GPUs: what their kernels note
 * in the GPUs' memory is read, put together, and outlives the worker; whatever a program writes there harms nobody. Those of real GPUs: test_gpu_collectives.c and test_gpu_prepared.c.
 */
#include "kernels/gpu/bound.h"
#include "proto/flight.h"
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
    const struct flight_expected expected = {"all_reduce", 0, 1, ALL, FEW * 4, flight_clock(), 0};
    struct meeting *stage = shared_memory(sizeof(*stage));
    static char text[1 << 20], svg[300];
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

/* ---- a rank that comes late ---- */

static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct meeting *meeting = argument;
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    OK(sum_enqueue(&r, FEW));
    stream_sync(r.stream);
    if (rank == 1)
        await(&meeting->go, 1);
    OK(sum_enqueue(&r, MANY));
    stream_sync(r.stream);
    meeting->ready++;
    await(&meeting->go, 2);
    own_close(&r, context);
}

/* The second run in the recorder, in that state; to be put with *flight. */
static struct json_object *second_await(const char *state, struct json_object **flight)
{
    for (double until = await_end();; (void)usleep(1000)) {
        *flight = flight_read("test");
        struct json_object *runs = flight_launched(*flight);
        struct json_object *second = runs && json_object_array_length(runs) == 2 ? json_object_array_get_idx(runs, 1) : NULL;
        if (second && flight_says(second, "state", state))
            return second;
        if (now_ms() >= until)
            check_failed(__FILE__, __LINE__, "not %s: %s", state, json_object_to_json_string(runs));
        (void)json_object_put(*flight);
    }
}

static void late(void)
{
    struct meeting *meeting = shared_memory(sizeof(*meeting));
    struct json_object *flight, *second;
    static char text[1 << 20];
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, PAIR, NULL);
    ranks_start(&r, PAIR, late_rank, meeting);
    second = second_await("waiting", &flight);
    CHECK(flight_says(second, "missing", "[ 1 ]") && flight_says(second, "inside", "[ 0 ]") &&
          flight_number(second, "run") == 2);
    CHECK(flight_number(second, "begun_ns") > 0 && flight_number(second, "came_ns") == 0 &&
          flight_number(second, "ended_ns") == 0);
    const int64_t record = flight_number(second, "record"), begun = flight_number(second, "begun_ns");
    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"flight", "--job", "test", NULL}) == 0);
    CHECK(strstr(text, "MISSING: 1") && strstr(text, "waiting"));
    (void)json_object_put(flight);
    (void)usleep(LATE_MS * 1000);
    meeting->go = 1;
    second = second_await("ended", &flight); /* the same record, written anew */
    CHECK(flight_number(second, "record") == record && flight_number(second, "begun_ns") == begun);
    CHECK(flight_number(second, "first") == 0 && flight_number(second, "last") == 1);
    CHECK(json_object_get_double(flight_field(second, "wait_ns")) >= LATE_MS * 1e6 - SLACK_NS);
    CHECK(flight_number(second, "ended_ns") >= flight_number(second, "came_ns") && flight_number(second, "bytes") == MANY * 4);
    (void)json_object_put(flight);
    await(&meeting->ready, PAIR);
    meeting->go = 2;
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- runs that are given up are records, and do not count as ended well ---- */

static void differ_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < 3; i++) {
        (void)sum_enqueue(&r, i == 1 ? FEW + rank : FEW);
        stream_sync(r.stream);
        if (i == 1)
            FAILS(fcc_comm_error(r.comm), -EINVAL, "all_reduce: in: rank");
        OK(fcc_comm_error(r.comm));
    }
    rank_rest(argument, &r, context);
}

static void given_up(void)
{
    struct meeting *meeting = shared_memory(sizeof(*meeting));
    struct json_object *flight, *runs;
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, PAIR, NULL);
    ranks_start(&r, PAIR, differ_rank, meeting);
    await(&meeting->ready, PAIR);
    metric_await("all_reduce", 2);
    flight = flight_read("test");
    runs = flight_launched(flight);
    CHECK(json_object_array_length(runs) == 3);
    for (size_t i = 0; i < 3; i++)
        CHECK(flight_says(json_object_array_get_idx(runs, i), "state", i == 1 ? "given up" : "ended"));
    (void)json_object_put(flight);
    meeting->go = 1;
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- more than are kept ---- */

static void many_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    driver->capture_begin();
    for (int i = 0; i < TOO_MANY / REPLAYS; i++)
        OK(sum_enqueue(&r, 1));
    void *graph = driver->capture_end();
    for (int i = 0; i < REPLAYS; i++)
        driver->graph_launch(graph, r.stream);
    stream_sync(r.stream);
    driver->graph_destroy(graph);
    rank_rest(argument, &r, context);
}

/* The last ones are there, and all are counted. */
static void many(void)
{
    struct meeting *meeting = shared_memory(sizeof(*meeting));
    const uint64_t since = flight_clock();
    struct json_object *flight, *runs;
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, PAIR, NULL);
    ranks_start(&r, PAIR, many_rank, meeting);
    await(&meeting->ready, PAIR);
    metric_await("all_reduce", TOO_MANY);
    flight = flight_read("test");
    runs = flight_launched(flight);
    const size_t n = json_object_array_length(runs);
    CHECK(n == FLIGHT_RUNS);
    const int64_t first = flight_number(json_object_array_get_idx(runs, 0), "run");
    CHECK(first >= 1 && flight_number(json_object_array_get_idx(runs, n - 1), "run") == TOO_MANY);
    for (size_t i = 1; i < n; i++) {
        struct json_object *before = json_object_array_get_idx(runs, i - 1), *o = json_object_array_get_idx(runs, i);
        CHECK(flight_number(o, "run") > flight_number(before, "run") &&
              flight_number(o, "begun_ns") >= flight_number(before, "begun_ns"));
        CHECK(flight_number(before, "begun_ns") > (int64_t)since && flight_says(o, "state", "ended"));
    }
    (void)json_object_put(flight);
    meeting->go = 1;
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- a communicator that ends at once ---- */

static void hasty_rank(int rank, const struct ranks *all, void *argument)
{
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    OK(fcc_collectives_prepare(r.comm));
    for (int i = 0; i < OUTSIDE; i++)
        OK(sum_enqueue(&r, FEW));
    own_leave(&r);
    ((struct meeting *)argument)->ready++;
    await(&((struct meeting *)argument)->go, 1);
    client_end(context);
}

/* What was not read when its memory is freed is read then. */
static void hasty(void)
{
    const struct flight_expected expected = {"all_reduce", 0, 1, OUTSIDE, FEW * 4, flight_clock(), 0};
    struct meeting *meeting = shared_memory(sizeof(*meeting));
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, PAIR, NULL);
    ranks_start(&r, PAIR, hasty_rank, meeting);
    await(&meeting->ready, PAIR);
    struct json_object *flight = flight_read("test");
    CHECK(flight_says(json_object_array_get_idx(flight_field(flight, "comms"), 0), "state", "left"));
    CHECK(flight_ended(flight, &expected, SLACK_NS) == OUTSIDE);
    (void)json_object_put(flight);
    metric_await("all_reduce", OUTSIDE);
    meeting->go = 1;
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- programs that write into control memory ---- */

enum { MAPPINGS = 64, WRITES = 40 };

/* Each piece of GPU memory that this process has mapped and that may be control memory: all ranks' rings. */
static int rings_find(struct run_record *records[MAPPINGS])
{
    const size_t at = GPU_PREPARED_SLOTS_AT + offsetof(struct rings_head, records);
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;

    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f) && n < MAPPINGS) {
        unsigned long from, end;
        char access[8];
        if (sscanf(line, "%lx-%lx %7s", &from, &end, access) == 3 && access[1] == 'w' && strstr(line, "memfd:fake-gpu") &&
            end - from >= rings_bytes(PAIR))
            records[n++] = (struct run_record *)(from + at);
    }
    (void)fclose(f);
    return n;
}

/* Random words; or such as might be a record, of a run that is about to come, or of none that ever will. */
static void scribble(struct run_record *records[], int n, int write)
{
    for (int m = 0; m < n; m++)
        for (uint32_t i = 0; i < RUN_RECORDS_RINGS; i++) {
            struct run_record r = {(uint64_t)random_u32() << 32 | random_u32(), (uint64_t)random_u32() << 32 | random_u32(),
                                   (uint64_t)random_u32() << 32 | random_u32(), (uint64_t)random_u32() << 32 | random_u32()};
            if (write % 4 == 1)
                memset(&r, 0xff, sizeof(r));
            if (write % 4 >= 2) {
                r.number = (uint64_t)(random_u32() % (write % 4 == 2 ? 4 : 1u << 30)) * RUN_RECORDS_RINGS + i;
                r.what = run_record_what(r.number, RUN_RECORDS_RINGS, random_u32(), random_u32(), r.what);
            }
            for (size_t w = 0; w < sizeof(r) / sizeof(uint64_t); w++)
                atomic_store((_Atomic uint64_t *)(void *)&records[m][i] + w, ((uint64_t *)(void *)&r)[w]);
        }
}

static void vandal_rank(int rank, const struct ranks *all, void *argument)
{
    struct run_record *records[MAPPINGS];
    struct rank r;
    fcc_context *context = own_open(&r, all, rank, 0);

    random_state = test_seed();
    OK(fcc_collectives_prepare(r.comm));
    OK(sum_enqueue(&r, FEW));
    stream_sync(r.stream);
    const int n = rings_find(records);
    CHECK(n >= PAIR);
    for (int i = 0; i < WRITES; i++) {
        if (rank == 1)
            scribble(records, n, i);
        OK(sum_enqueue(&r, FEW));
        stream_sync(r.stream);
        (void)usleep(LOOK_MS / 2 * 1000);
    }
    OK(fcc_comm_error(r.comm));
    rank_rest(argument, &r, context);
}

/* The worker goes on, and so does fccctl, whose times and numbers are such as can be. */
static void scribbled(void)
{
    struct meeting *meeting = shared_memory(sizeof(*meeting));
    static char text[1 << 20], svg[300];
    struct test_daemon d;
    struct ranks r;

    (void)snprintf(svg, sizeof(svg), "%s/flight.svg", test_directory());
    fake_start(&d, PAIR, NULL);
    ranks_start(&r, PAIR, vandal_rank, meeting);
    const pid_t worker = daemon_worker(&d);
    for (double until = await_end(); meeting->ready < PAIR;) {
        CHECK(now_ms() < until + 30000);
        struct json_object *flight = flight_read("test");
        struct json_object *runs = flight_launched(flight);
        for (size_t i = 0; runs && i < json_object_array_length(runs); i++) {
            struct json_object *o = json_object_array_get_idx(runs, i);
            const int64_t begun = flight_number(o, "begun_ns"), now = (int64_t)flight_clock();
            CHECK(flight_number(o, "run") > 0 && begun >= 0 && begun <= now && flight_number(o, "ended_ns") <= now);
            CHECK(!flight_says(o, "op", "?"));
        }
        (void)json_object_put(flight);
        CHECK(program_run(text, sizeof(text), fccctl_binary(),
                          (const char *const[]){"flight", "--job", "test", "--last", "1000", "--svg", svg, NULL}) == 0);
        CHECK(unlink(svg) == 0);
    }
    CHECK(daemon_worker(&d) == worker);
    meeting->go = 1;
    ranks_join(&r);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {{"collectives", collectives, 60},
                                        {"late", late, 60},
                                        {"given_up", given_up, 60},
                                        {"many", many, 90},
                                        {"hasty", hasty, 60},
                                        {"scribbled", scribbled, 90}};
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_flight", TESTS(tests));
}
