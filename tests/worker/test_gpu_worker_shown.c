/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_shown.c - what people are shown of GPUs, with the real daemon and the real library on fake ones: fccctl
 * devices, fccctl trace and fccctl comms, and what the log says of MPS. Traces of real GPUs are in test_gpu_ranks.c.
 */
#include <json-c/json.h>

#include "tests/bed/flight_runs.h"
#include "tests/fake_gpu/fake_gpu_runs.h"

/* ---- what fccctl shows ---- */

static struct json_object *field(struct json_object *o, const char *name)
{
    struct json_object *value = NULL;

    if (!json_object_object_get_ex(o, name, &value))
        check_failed(__FILE__, __LINE__, "no \"%s\" in %s", name, json_object_to_json_string(o));
    return value;
}

static bool field_is(struct json_object *o, const char *name, const char *text)
{
    return !strcmp(json_object_get_string(field(o, name)), text);
}

static struct json_object *fccctl_json(const char *verb)
{
    static char text[1 << 20];
    int code = program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){verb, "--json", NULL});
    struct json_object *o = json_tokener_parse(text);

    if (code || !o)
        check_failed(__FILE__, __LINE__, "fccctl %s: %d: %s", verb, code, text);
    return o;
}

/* A worker is in its first client's MPS server; one that comes from another is told of in the log. */
static void another_mps(void)
{
    struct test_daemon d;
    fcc_context *first, *other;

    fake_start(&d, GPUS, NULL);
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/one", 1);
    OK(fcc_connect(NULL, &first));
    CHECK(!daemon_logged(&d, "its CUDA_MPS_PIPE_DIRECTORY is", false));
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/two", 1);
    OK(fcc_connect(NULL, &other));
    CHECK(daemon_logged(&d, "its CUDA_MPS_PIPE_DIRECTORY is \"/nonexistent/two\"", true));
    fcc_disconnect(other);
    fcc_disconnect(first);
    fake_stop(&d);
}

static void devices(void)
{
    struct test_daemon d;
    int n = 0;

    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/mps", 1);
    fake_start(&d, GPUS, NULL);
    CHECK(daemon_logged(&d, "no MPS control daemon at /nonexistent/mps/control", true));
    struct json_object *o = fccctl_json("devices"), *list = field(o, "devices");
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *device = json_object_array_get_idx(list, i);
        if (!field_is(device, "kind", "cuda"))
            continue;
        if (n == 1)
            CHECK(field_is(device, "name", "Fake GPU 1") && field_is(device, "peers", "[ 0, 2 ]") &&
                  field_is(device, "links", "[ \"NVLink\", \"PCIe\" ]") &&
                  field_is(device, "uuid", "a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1") && field_is(device, "pci", "0000:02:00.0"));
        CHECK(json_object_get_int(field(device, "device")) == n++);
    }
    CHECK(n == GPUS);
    (void)json_object_put(o);
    daemon_stop(&d);
}

/* ---- trace ---- */

/* All slices of both ranks are there, in order in time. */
static void trace_check(struct json_object *o)
{
    struct json_object *ranks = field(o, "ranks");

    CHECK(field_is(o, "op", "gemv_all_reduce") && json_object_array_length(ranks) == 2);
    for (size_t r = 0; r < 2; r++) {
        struct json_object *rank = json_object_array_get_idx(ranks, r), *workgroups = field(rank, "workgroups");
        CHECK(field_is(rank, "kind", "cuda") && json_object_get_int(field(rank, "device")) == (int)r);
        CHECK(json_object_array_length(workgroups) == 1);
        struct json_object *events = field(json_object_array_get_idx(workgroups, 0), "events");
        int64_t last = 0, duration = json_object_get_int64(field(o, "duration_ns"));
        CHECK(json_object_array_length(events) > 2);
        for (size_t i = 0; i < json_object_array_length(events); i++) {
            struct json_object *event = json_object_array_get_idx(events, i);
            int64_t start = json_object_get_int64(field(event, "start_ns")),
                    end = json_object_get_int64(field(event, "end_ns"));
            CHECK(last <= start && start <= end && end <= duration);
            last = end;
        }
    }
}

struct trace {
    _Atomic int run, stop;
};

static void trace_rank(int rank, const struct ranks *all, void *argument)
{
    struct trace *trace = argument;

    driver_use();
    fcc_context *context = client_connect(NULL);
    struct product p = product_open(client_join(context, &all->id, all->n, rank, 0));
    void *stream = stream_open();
    p.args.schedule = FCC_SCHEDULE_FUSED;
    for (int i = 0; i < 2; i++) {
        product_enqueue(&p, stream, NULL);
        stream_sync(stream);
        OK(fcc_noop(p.comm)); /* the worker knows that the operator has ended */
        trace->run++;
        await(&trace->stop, i + 1);
    }
    stream_close(stream);
    fcc_comm_destroy(p.comm);
    client_end(context);
}

static void traced(void)
{
    struct trace *trace = shared_memory(sizeof(*trace));
    struct test_daemon d;
    char text[4096];
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, 2, trace_rank, trace);
    await(&trace->run, 2);
    struct json_object *o = fccctl_json("trace");
    trace_check(o);
    (void)json_object_put(o);
    fake->fail = FAKE_LAUNCH_TIMES;
    CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"trace", NULL}) != 0 &&
          strstr(text, "made to fail"));
    fake->hold = ALL_GPUS; /* the same operator once more, which will overwrite its times: it is waited for */
    trace->stop = 1;
    await(&fake->begun, 6);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)usleep(100000);
        fake->hold = 0;
        _exit(0);
    }
    o = fccctl_json("trace");
    CHECK(fake->hold == 0);
    trace_check(o);
    (void)json_object_put(o);
    CHECK(waitpid(pid, NULL, 0) == pid);
    await(&trace->run, 4);
    trace->stop = 2;
    ranks_join(&r);
    fake_stop(&d);
}

enum { MORE_THAN_ARE_KEPT = 40 };

/* One operator runs; then more are prepared, each of a shape of its own, than plans are kept. */
static void behind_rank(int rank, const struct ranks *all, void *argument)
{
    struct trace *trace = argument;
    fcc_prepared *prepared[MORE_THAN_ARE_KEPT];
    struct lane l;

    lane_open(&l, all, rank, 0);
    struct fcc_gemv_all_reduce_args args = gemv_args(&l, ONE_STEP);
    OK(fcc_gemv_all_reduce(l.comm, &args));
    trace->run++;
    await(&trace->stop, 1);
    for (int i = 0; i < MORE_THAN_ARE_KEPT; i++) {
        struct fcc_gemv_all_reduce_args other = {.x = fcc_tensor_2d(l.left, X_AT * sizeof(float), FCC_F32, 1, LANE_K),
                                                 .w = fcc_tensor_2d(l.right, W_AT * sizeof(float), FCC_F32, 8 + 8 * i, LANE_K),
                                                 .y = fcc_tensor_2d(l.out, Y_AT * sizeof(float), FCC_F32, 1, 8 + 8 * i)};
        OK(fcc_gemv_all_reduce_prepare(l.comm, &other, &prepared[i]));
    }
    trace->run++;
    await(&trace->stop, 2);
    OK(fcc_gemv_all_reduce(l.comm, &args));
    trace->run++;
    await(&trace->stop, 3);
    for (int i = 0; i < MORE_THAN_ARE_KEPT; i++)
        fcc_prepared_free(prepared[i]);
    OK(fcc_noop(l.comm));
    lane_close(&l);
}

/* The last operator's times are there as long as no other one has run, whatever has been prepared meanwhile. */
static void traced_behind_prepared(void)
{
    struct trace *trace = shared_memory(sizeof(*trace));
    int64_t number[3], started[3];
    struct test_daemon d;
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, behind_rank, trace);
    for (int i = 0; i < 3; i++) {
        await(&trace->run, PAIR * (i + 1));
        struct json_object *o = fccctl_json("trace");
        trace_check(o);
        number[i] = json_object_get_int64(field(o, "number"));
        started[i] = json_object_get_int64(field(o, "started_ns"));
        (void)json_object_put(o);
        trace->stop = i + 1;
    }
    CHECK(number[1] == number[0] && started[1] == started[0]);
    /* a preparation ends with a noop, and the operator comes behind them */
    CHECK(number[2] == number[0] + MORE_THAN_ARE_KEPT + 1 && started[2] > started[0]);
    ranks_join(&r);
    fake_stop(&d);
}

/* ---- prepared operators ---- */

enum { ABSENT = 1, RUNS = 3, CLOCKS_NS = 1000000 /* clocks of fake GPUs are read while other processes have the core */ };

static void runs_rank(int rank, const struct ranks *all, void *argument)
{
    _Atomic int *come = argument;
    struct lane l;

    lane_open(&l, all, rank, 0);
    fcc_prepared *first = prepare(&l, ONE_STEP), *second = prepare(&l, ROWS_SENT);
    work_run(&l, ONE_STEP, first, l.stream);
    for (int i = 0; i < RUNS; i++) {
        if (i == RUNS - 1 && rank == ABSENT)
            await(come, 1);
        work_run(&l, ROWS_SENT, second, l.stream);
    }
    stream_sync(l.stream);
    await(come, 2);
    work_run(&l, ROWS_SENT, second, l.stream);
    stream_sync(l.stream);
    fcc_prepared_free(first);
    fcc_prepared_free(second);
    lane_close(&l);
}

/* fccctl metrics has these runs of prepared operators, soon. */
static void counted_await(const char *op, int runs)
{
    static char text[1 << 18];
    char line[128];

    (void)snprintf(line, sizeof(line), "fccd_operators_total{operator=\"%s\",schedule=\"prepared\"} %d\n", op, runs);
    for (double until = await_end();; (void)usleep(1000)) {
        CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"metrics", NULL}) == 0);
        if (strstr(text, line))
            return;
        CHECK(now_ms() < until);
    }
}

/* So does the flight recorder. */
static void flight_await(const char *says, const char *and)
{
    static char text[1 << 16];

    for (double until = await_end();; (void)usleep(1000)) {
        CHECK(program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"flight", "--job", "test", NULL}) == 0);
        if (strstr(text, says) && strstr(text, and))
            return;
        if (now_ms() >= until)
            check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", says, text);
    }
}

static void runs_shown(void)
{
    static const char line[] = "prepared 2: gemm_all_to_all, run 3 for ", missing[] = "MISSING: rank 1\n";
    _Atomic int *come = shared_memory(sizeof(*come));
    const uint64_t since = flight_clock();
    struct test_daemon d;
    char text[4096];
    struct ranks r;

    fake_start(&d, GPUS, NULL);
    ranks_start(&r, PAIR, runs_rank, come);
    await(&fake->runs, PAIR * RUNS + 1); /* all but the last one of the rank that is absent */
    struct json_object *o = fccctl_json("comms"), *workers = field(o, "workers");
    struct json_object *comms = field(json_object_array_get_idx(workers, 0), "comms");
    struct json_object *runs = field(json_object_array_get_idx(comms, 0), "runs");
    struct json_object *run = json_object_array_get_idx(runs, 0);
    CHECK(json_object_array_length(runs) == 1 && field_is(run, "op", "gemm_all_to_all") && field_is(run, "prepared", "2") &&
          field_is(run, "run", "3") && field_is(run, "missing", "[ 1 ]"));
    (void)json_object_put(o);
    int code = program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"comms", "--stuck-after", "0", NULL});
    if (!strstr(text, line) || !strstr(strstr(text, line), missing))
        check_failed(__FILE__, __LINE__, "fccctl comms: %d: %s", code, text);
    flight_await("under way: gemm_all_to_all, prepared as 2, run 3, since ", "MISSING: rank 1");
    *come = 1;
    await(&fake->runs, PAIR * RUNS + PAIR);
    double until = await_end();
    do { /* the kernel has yet to say that it has ended */
        CHECK(now_ms() < until);
        code = program_run(text, sizeof(text), fccctl_binary(), (const char *const[]){"comms", NULL});
    } while (strstr(text, "MISSING") || strstr(text, "prepared 2"));
    CHECK(code == 0);
    counted_await("gemv_all_reduce", 1);
    counted_await("gemm_all_to_all", RUNS);
    flight_await("4 runs that its ranks have launched by themselves have ended", "LAUNCHED");
    flight_await_runs("test", &(struct flight_expected){"gemv_all_reduce", 1, 1, 1, 0, since, 0}, CLOCKS_NS);
    flight_await_runs("test", &(struct flight_expected){"gemm_all_to_all", 2, 1, RUNS, 0, since, 0}, CLOCKS_NS);
    *come = 2;
    ranks_join(&r);
    counted_await("gemm_all_to_all", RUNS + 1); /* the last of them was freed behind it */
    flight_await_runs("test", &(struct flight_expected){"gemm_all_to_all", 2, 1, RUNS + 1, 0, since, 0}, CLOCKS_NS);
    fake_stop(&d);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"devices", devices, 0},       {"another_mps", another_mps, 0},
        {"traced", traced, 0},         {"traced_behind_prepared", traced_behind_prepared, 0},
        {"runs_shown", runs_shown, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_shown", TESTS(tests));
}
