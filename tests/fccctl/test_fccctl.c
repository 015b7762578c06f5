/* SPDX-License-Identifier: MIT
 *
 * test_fccctl.c - every verb of fccctl against the real daemon: what it prints, as text and as JSON, and its exit codes; and
 * the example programs that need no launcher. What a trace shows: test_fccctl_trace.c.
 */
#include <signal.h>
#include <stdarg.h>
#include <sys/wait.h>

#include "tests/fccctl/fccctl_run.h"

#define ARGUMENTS_MAX 40

static const char *program(const char *variable, const char *standard)
{
    const char *path = getenv(variable);
    return path ? path : standard;
}

/* ---- without a daemon ---- */

static void stream_usage(void)
{
    CHECK(FCCCTL("bench", "noop", "--stream", "4") == 2 && says("--stream") && says("--device gpu"));
    CHECK(FCCCTL("bench", "noop", "--group") == 2 && says("--group") && says("--stream"));
    CHECK(FCCCTL("bench", "gemv_all_reduce", "--prepared") == 2 && says("--prepared") && says("--stream"));
    CHECK(FCCCTL("bench", "gemv_all_reduce", "--device", "gpu", "--stream", "4", "--prepared", "--group") == 2);
    CHECK(says("--prepared") && says("--group"));
    CHECK(FCCCTL("bench", "embedding_all_to_all", "--device", "gpu", "--stream", "4", "--prepared") == 2);
    CHECK(says("--prepared: embedding_all_to_all") && says("noop and gemv_all_reduce and gemm_all_to_all"));
    CHECK(FCCCTL("bench", "gemm_all_to_all", "--device", "gpu", "--stream", "4", "--prepared", "--schedule", "both") == 2);
    CHECK(says("--schedule: both") && says("fused and auto"));
}

static void usage(void)
{
    static const char *const verbs[] = {"status", "devices", "comms", "plan",   "bench",
                                        "trace",  "track",   "abort", "doctor", "version"};

    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        CHECK(FCCCTL(verbs[i], "--help") == 0 && says("usage: fccctl ") && says(verbs[i]) && says("--json"));
        CHECK(FCCCTL("help", verbs[i]) == 0 && says("usage: fccctl "));
        CHECK(FCCCTL(verbs[i], "--frobnicate") == 2);
    }
    CHECK(FCCCTL("frobnicate") == 2 && says("frobnicate"));
    CHECK(fccctl((const char *const[]){NULL}) == 2);
    CHECK(FCCCTL("bench", "gemv_all_reduce", "--dtype", "f64") == 2 && says("f64") && says("bf16"));
    CHECK(FCCCTL("bench", "noop", "--nodes", "2") == 2 && says("--local") && says("--sockets"));
    CHECK(FCCCTL("bench", "noop", "--local", "--ranks", "3", "--nodes", "4") == 2 && says("--nodes") && says("1 to 3"));
    CHECK(FCCCTL("bench", "noop", "--sockets", "/a,,/b") == 2 && says("/a,,/b"));
    CHECK(FCCCTL("bench", "noop", "--sockets", "/a", "--local") == 2 && says("--local"));
    CHECK(FCCCTL("bench", "frobnicate") == 2 && says("frobnicate"));
    stream_usage();
    CHECK(FCCCTL("plan", "gemv_all_reduce", "-m", "65537") == 2 && says("allowed are 1 to 65536"));
    CHECK(FCCCTL("plan", "gemv_all_reduce", "-m", "65536", "-n", "128", "-k", "64") == 0);
    CHECK(FCCCTL("abort") == 2);
    CHECK(FCCCTL("status", "--json=1") == 2 && says("--json takes no value"));
    CHECK(FCCCTL("status", "--help=all") == 2 && says("--help takes no value"));
    CHECK(FCCCTL("status", "--all=1") == 2 && says("--all=1: no such option"));
    CHECK(FCCCTL("plan", "gemm_all_to_all", "-m", "2000000000", "-k", "2000000000") == 2);
    CHECK(says("-m 2000000000 -k 2000000000: allowed are 274877906944 elements"));
    CHECK(FCCCTL("plan", "gemv_all_reduce", "-n", "2000000000", "-k", "2000000000") == 2 &&
          says("-n 2000000000 -k 2000000000"));
    CHECK(FCCCTL("plan", "gemm_all_to_all", "-m", "2000000000", "-n", "1000", "-k", "1") == 2 &&
          says("--ranks 2 -m 2000000000"));
    CHECK(FCCCTL("bench", "embedding_all_to_all", "--rows", "2000000000") == 2 &&
          says("--rows 2000000000 --dim 64: the tables"));
    CHECK(FCCCTL("bench", "embedding_all_to_all", "--pooling", "2000000000") == 2 && says("--pooling 2000000000: the ids"));
    CHECK(FCCCTL("trace", "--wait", "3") == 2 && says("--wait: allowed with --next"));
    CHECK(FCCCTL("trace", "--from", "x", "--next") == 2 && says("--from: allowed without --next"));
    CHECK(FCCCTL("trace", "--from", "x", "--comm", "1") == 2 && says("--from: allowed without --comm"));
    CHECK(FCCCTL("trace", "--from", "/nonexistent") == 1 && says("--from: \"/nonexistent\": No such file or directory"));
    CHECK(FCCCTL("trace", "--from", "/") == 1 && says("--from: \"/\": Is a directory"));
    CHECK(FCCCTL("trace", "--from", "/dev/null") == 1 && says("--from: \"/dev/null\": allowed is what"));
    CHECK(FCCCTL("version", "--json") == 0);
    struct json_object *o = parse();
    CHECK(json_object_object_length(o) > 0);
    (void)json_object_put(o);
    free(output);
    output = NULL;
}

static void unreachable(void)
{
    static const char *const verbs[] = {"status", "devices", "comms", "trace", "track"};

    for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
        CHECK(FCCCTL(verbs[i], "--socket", "/nonexistent/fccd.sock") == 3 && says("/nonexistent/fccd.sock"));
    CHECK(FCCCTL("abort", "--comm", "1", "--socket", "/nonexistent/fccd.sock") == 3);
    CHECK(FCCCTL("bench", "noop", "--socket", "/nonexistent/fccd.sock") == 3);
    CHECK(FCCCTL("doctor", "--socket", "/nonexistent/fccd.sock") == 1 && says("bad") && says("systemctl start"));
    free(output);
    output = NULL;
}

/* What is read and written of a sum of 256 x 512 on two ranks: two partial sums of each element of this rank's 128 rows, and the result; the first
 * rank that adds in any order does not read. */
static void memory(void)
{
    enum { M = 256, N = 512, K = 64, SUMS = M * N * 4 };
    static const struct {
        const char *options[2];
        int64_t read, written;
    } rows[] = {{{"--schedule", "fused"}, SUMS, SUMS + SUMS / 2},
                {{"--schedule", "sequential"}, 2 * SUMS, 2 * SUMS + SUMS / 2},
                {{"--any-order", "--json"}, SUMS / 2, SUMS}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(FCCCTL("plan", "gemm_reduce_scatter", "-m", "256", "-n", "512", "-k", "64", "--json", rows[i].options[0],
                     rows[i].options[1]) == 0);
        struct json_object *o = parse();
        CHECK(number(field(o, "memory"), "factors") == (M + N) * K * 4);
        CHECK(number(field(o, "memory"), "read") == rows[i].read && number(field(o, "memory"), "written") == rows[i].written);
        (void)json_object_put(o);
    }
    CHECK(FCCCTL("plan", "gemm_reduce_scatter", "-m", "256", "-n", "512", "-k", "64") == 0);
    CHECK(says("memory: 192 KiB of factors read, 512 KiB of sums and results read, 768 KiB written\n"));
    static const char *const launched[][2] = {
        {"2048", "launched by the ranks: by tiles of 128 x 192 on H100 and H200, elsewhere in pieces by cuBLAS\n"},
        {"1088", "launched by the ranks: in pieces by cuBLAS, not by tiles: half of M leaves much of its last tiles of 128 "
                 "rows empty\n"},
        {"511", "launched by the ranks: in pieces by cuBLAS, not by tiles: M is less than 512, or less than 1 MiB goes to the "
                "other rank\n"}};
    for (size_t i = 0; i < sizeof(launched) / sizeof(launched[0]); i++)
        CHECK(FCCCTL("plan", "gemm_reduce_scatter", "-m", launched[i][0], "-n", "3072", "-k", "64", "--dtype", "bf16",
                     "--device", "gpu") == 0 &&
              says(launched[i][1]));
    CHECK(FCCCTL("plan", "gemm_reduce_scatter", "-m", "2048", "-n", "3076", "-k", "64", "--dtype", "bf16", "--device", "gpu") ==
              0 &&
          says("not by tiles: N is no multiple of 8\n"));
    CHECK(FCCCTL("plan", "all_gather_gemm", "-m", "4096", "-n", "64", "-k", "8196", "--dtype", "f16", "--device", "gpu",
                 "--json") == 0 &&
          says("not by tiles: K is no multiple of 8"));
    CHECK(FCCCTL("plan", "gemm_all_to_all", "--any-order") == 2 && says("--any-order: gemm_all_to_all adds no products"));
    CHECK(FCCCTL("bench", "gemv_all_reduce", "--schedule", "unordered") == 2 &&
          says("unordered: gemv_all_reduce adds no products"));
}

static void plan(void)
{
    CHECK(FCCCTL("plan", "embedding_all_to_all", "--ranks", "4", "--rank", "1", "--nodes", "2", "--batch", "64", "--json") ==
          0);
    struct json_object *o = parse();
    CHECK(number(o, "rank") == 1 && number(o, "ranks") == 4 && number(o, "nodes") == 2);
    /* other nodes first, beginning with the next rank; its own node's other rank; itself last */
    struct json_object *slices = field(o, "slices");
    int order[4], n = 0;
    for (size_t i = 0; i < json_object_array_length(slices); i++) {
        struct json_object *slice = json_object_array_get_idx(slices, i);
        if (strcmp(text(slice, "kind"), "compute+put") == 0 && (n == 0 || order[n - 1] != number(slice, "dst"))) {
            CHECK(n < 4);
            order[n++] = (int)number(slice, "dst");
        }
    }
    CHECK(n == 4 && order[0] == 2 && order[1] == 3 && order[2] == 0 && order[3] == 1);
    (void)json_object_put(o);
    CHECK(FCCCTL("plan", "gemm_all_to_all", "--schedule", "sequential", "--ranks", "2") == 0);
    CHECK(says("compute") && says("put") && says("wait") && says("staging"));
    CHECK(FCCCTL("plan", "noop", "--ranks", "3", "--rank", "1") == 0);
    CHECK(strcmp(output, "noop: rank 1 of 3 on 1 node\n"
                         "1 slice: the ranks meet, and nothing is computed or moved\n"
                         "SLICE  KIND  DST  ROWS  COLS  PLACE  WAITS FOR  RAISES\n"
                         "    0  wait    -     -     -      -  -          -\n") == 0 ||
          !says("what plan noop printed"));
    CHECK(FCCCTL("plan", "gemm_all_to_all", "--ranks", "1", "-m", "8") == 0);
    CHECK(says("2 slices of at most 64 x 1024 (1 compute+put, 1 wait), 1 signal group, 2 flags, 32.0 KiB of staging memory\n"));
    CHECK(!says("memory: "));
    memory();
    free(output);
    output = NULL;
}

/* ---- with one ---- */

/* Three ranks run a gemv; then rank 2 does not come to the next operator until it is aborted from outside. */
static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_comm *comm = comm_open(all, rank, 0);

    gemv_once(comm, 3);
    stage->ready++;
    if (rank == 2)
        while (!stage->go)
            (void)usleep(1000);
    FAILS(fcc_noop(comm), -ECONNABORTED, "fccctl", "night shift");
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void check_status(void)
{
    CHECK(FCCCTL("status", "--json") == 0);
    struct json_object *o = parse();
    CHECK(number(o, "devices") == 4 && number(o, "time_limit_ms") == 30000);
    CHECK(strcmp(text(o, "jobs.0.job"), "test") == 0 && number(o, "jobs.0.connections") == 3);
    CHECK(number(o, "jobs.0.memory_bytes") > 3 * 8 << 20);
    CHECK(number(o, "jobs.0.communicators") == 1 && number(o, "jobs.0.operators") <= 64);
    CHECK(number(o, "jobs.0.gpu_memory_bytes") == 0 && number(o, "jobs.0.stream_operators") == 0);
    CHECK(number(o, "limits.COMMS_PER_JOB") == 4096 && number(o, "limits.OPERATORS_PER_USER") == 262144);
    CHECK(number(o, "limits.MEMORY_PER_USER_MB") == number(o, "memory_per_user"));
    struct json_object *none = o;
    CHECK(json_object_object_get_ex(field(o, "limits"), "MEMORY_PER_JOB_MB", &none) && !none); /* there is no such limit */
    (void)json_object_put(o);
    CHECK(FCCCTL("status") == 0 && says("test") && says("of a user    memory ") &&
          says("jobs 16, connections 2048, communicators 4096"));
    CHECK(says("of a job     connections 1024, communicators 4096, operators in flight 65536"));
    CHECK(FCCCTL("devices", "--json") == 0);
    o = parse();
    CHECK(json_object_array_length(field(o, "devices")) == 4 && strcmp(text(o, "devices.3.kind"), "cpu") == 0);
    CHECK(json_object_array_length(field(o, "devices.0.peers")) == 3);
    (void)json_object_put(o);
    CHECK(FCCCTL("devices") == 0 && says("cpu") && says("shared memory"));
}

static void check_comms(void)
{
    double until = await_end();
    struct json_object *o, *comm;

    do { /* until ranks 0 and 1 have come */
        CHECK(now_ms() < until && FCCCTL("comms", "--json") == 0);
        o = parse();
        comm = field(o, "workers.0.comms.0");
        if (json_object_is_type(field(comm, "ranks"), json_type_array) &&
            strcmp(text(comm, "ranks.0.state"), "in operator") == 0 && strcmp(text(comm, "ranks.1.state"), "in operator") == 0)
            break;
        (void)json_object_put(o);
    } while (true);
    CHECK(number(comm, "nranks") == 3 && strcmp(text(comm, "state"), "active") == 0);
    CHECK(strcmp(text(comm, "operator.op"), "noop") == 0 && strcmp(text(comm, "operator.state"), "waiting") == 0);
    CHECK(json_object_array_length(field(comm, "operator.missing")) == 1 && number(comm, "operator.missing.0") == 2);
    CHECK(strcmp(text(comm, "ranks.2.state"), "idle") == 0);
    (void)json_object_put(o);
    CHECK(FCCCTL("comms") == 0 && says("noop") && says("rank 2"));
    CHECK(FCCCTL("comms", "--stuck-after", "0") == 1 && says("rank 2"));
    CHECK(FCCCTL("doctor") <= 1 && says("none has waited for its ranks for 10 s"));
}

static void check_trace(const char *directory)
{
    char chrome[128], svg[128];

    (void)snprintf(chrome, sizeof(chrome), "%s/trace.json", directory);
    (void)snprintf(svg, sizeof(svg), "%s/trace.svg", directory);
    CHECK(FCCCTL("trace", "--json") == 0);
    struct json_object *o = parse();
    CHECK(strcmp(text(o, "op"), "gemv_all_reduce") == 0 && strcmp(text(o, "schedule"), "fused") == 0);
    CHECK(number(o, "nranks") == 3 && number(o, "duration_ns") > 0);
    int64_t duration = number(o, "duration_ns");
    for (int r = 0; r < 3; r++) {
        char path[64];
        (void)snprintf(path, sizeof(path), "ranks.%d.workgroups.0.events", r);
        struct json_object *events = field(o, path);
        CHECK(json_object_array_length(events) > 1);
        for (size_t i = 0; i < json_object_array_length(events); i++) {
            struct json_object *e = json_object_array_get_idx(events, i);
            CHECK(number(e, "start_ns") >= 0 && number(e, "end_ns") >= number(e, "start_ns") &&
                  number(e, "end_ns") <= duration);
        }
    }
    (void)json_object_put(o);
    CHECK(FCCCTL("trace", "--chrome", chrome, "--svg", svg) == 0 && says("BUSY"));
    o = json_object_from_file(chrome);
    CHECK(o && json_object_array_length(field(o, "traceEvents")) > 6);
    (void)json_object_put(o);
    FILE *f = fopen(svg, "re");
    char head[6] = "";
    CHECK(f && fread(head, 1, 5, f) == 5 && (!strcmp(head, "<?xml") || !strcmp(head, "<svg ")));
    (void)fclose(f);
    CHECK(unlink(chrome) == 0 && unlink(svg) == 0);
    CHECK(FCCCTL("trace", "--comm", "77", "--json") == 1 && says("77"));
    CHECK(FCCCTL("trace", "--next", "--wait", "0.1", "--json") == 1 && says("no operator finished"));
}

/* What there is not is named, and so is what there is. */
static void check_names(void)
{
    char there[64];

    (void)snprintf(there, sizeof(there), "; there are: \"test\" of uid %u", getuid());
    CHECK(FCCCTL("comms", "--job", "absent") == 1 && says("no such job is connected: \"absent\"") && says(there));
    CHECK(FCCCTL("comms", "--job", "test", "--uid", "4242") == 1 && says("\"test\" of uid 4242") && says(there));
    CHECK(FCCCTL("comms", "--uid", "4242") == 1 && says("no job is connected of uid 4242") && says(there));
    CHECK(FCCCTL("trace", "--job", "absent") == 1 && says("no such job is connected: \"absent\"") && says(there));
    CHECK(FCCCTL("abort", "--job", "absent", "--comm", "1") == 1 && says("no such job is connected: \"absent\"") &&
          says(there));
    CHECK(FCCCTL("abort", "--comm", "99") == 1 && says("comm: 99: job \"test\" has no such communicator; there are: 1"));
    CHECK(FCCCTL("trace", "--comm", "99") == 1 && says("comm: 99: job \"test\" has no such communicator; there are: 1"));
}

/* Rank 2 is stopped: who looks is told which process that is, and how it goes on, before the communicator is aborted and after. */
static void check_stopped(pid_t pid)
{
    char who[64], remedy[96];
    double until = await_end();

    (void)snprintf(who, sizeof(who), "ranks: 2 (pid %d, stopped)", pid);
    (void)snprintf(remedy, sizeof(remedy), "'kill -CONT %d' lets rank 2 go on", pid);
    CHECK(kill(pid, SIGSTOP) == 0);
    while (!(FCCCTL("comms", "--stuck-after", "0") == 1 && strstr(output, who)))
        AWAITING(until);
    CHECK(FCCCTL("abort", "--comm", "1", "--reason", "night shift") == 0);
    while (!(FCCCTL("comms") == 1 && strstr(output, "not left by") && strstr(output, who))) /* ranks 0 and 1 leave it */
        AWAITING(until);
    CHECK(FCCCTL("doctor") == 1 && says(remedy) && says("it has ended and stays until its ranks leave it"));
    CHECK(kill(pid, SIGCONT) == 0);
}

static void live(void)
{
    struct test_daemon d;
    struct ranks r;
    struct stage *stage = shared_memory(sizeof(*stage));

    daemon_start(&d, NULL);
    ranks_start(&r, 3, late_rank, stage);
    double until = await_end();
    while (stage->ready < 3)
        AWAITING(until);
    check_comms();
    check_status();
    check_trace(test_directory());
    check_names();
    check_stopped(r.pid[2]);
    stage->go = 1;
    ranks_join(&r);
    CHECK(FCCCTL("abort", "--comm", "1", "--job", "test") == 1); /* no such job any more */
    daemon_stop(&d);
    free(output);
    output = NULL;
}

/* ---- bench ---- */

/* The ranks of each node are neighbours, and all have a node. */
static void placement_check(struct json_object *o, int nodes, int ranks)
{
    struct json_object *list = field(o, "placement");
    int next = 0;

    CHECK(json_object_array_length(list) == (size_t)nodes);
    for (int i = 0; i < nodes; i++) {
        struct json_object *node = json_object_array_get_idx(list, (size_t)i), *its = field(node, "ranks");
        CHECK(strncmp(text(node, "address"), "127.0.0.1:", 10) == 0 && json_object_array_length(its) > 0);
        for (size_t r = 0; r < json_object_array_length(its); r++)
            CHECK(json_object_get_int(json_object_array_get_idx(its, r)) == next++);
        for (int other = 0; other < i; other++)
            CHECK(strcmp(text(node, "address"), text(json_object_array_get_idx(list, (size_t)other), "address")) != 0);
    }
    CHECK(next == ranks);
}

static void bench_one(const char *op, const char *dtype, const char *ranks, const char *nodes, const char *schedule,
                      const char *const shape[])
{
    const char *arguments[ARGUMENTS_MAX] = {"bench",   op,        "--local", "--dtype",    dtype,    "--ranks", ranks, "--json",
                                            "--check", "--iters", "3",       "--schedule", schedule, "--nodes", nodes};
    int n = 15;

    while (*shape)
        arguments[n++] = *shape++;
    CHECK(fccctl(arguments) == 0);
    struct json_object *o = parse();
    CHECK(strcmp(text(o, "operator"), op) == 0 && strcmp(text(o, "dtype"), dtype) == 0 && number(o, "ranks") == atoi(ranks));
    if (atoi(nodes) > 1)
        placement_check(o, atoi(nodes), atoi(ranks));
    CHECK(number(o, "nodes") == atoi(nodes) && number(o, "wrong") == 0 && strcmp(text(o, "device"), "cpu") == 0);
    bool automatic = strcmp(schedule, "auto") == 0;
    const char *const times[] = {"fused_us", "sequential_us", automatic ? "auto_us" : "compute_us",
                                 automatic ? "auto_us" : "comm_us"};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        double p50 = json_object_get_double(field(field(o, times[i]), "p50"));
        CHECK(p50 > 0 && json_object_get_double(field(field(o, times[i]), "min")) <= p50 &&
              json_object_get_double(field(field(o, times[i]), "p99")) >= p50);
    }
    CHECK(!json_object_get_boolean(field(o, "group")) && !json_object_get_boolean(field(o, "prepared")));
    (void)field(o, "shape");
    (void)field(o, "speedup");
    if (!automatic)
        (void)field(o, "overlap");
    (void)json_object_put(o);
}

static void bench(void)
{
    static const char *const gemv[] = {"-m", "3", "-n", "200", "-k", "130", NULL};
    static const char *const gemm[] = {"-m", "77", "-n", "33", "-k", "50", NULL};
    static const char *const apart[] = {"-m", "77", "-n", "33", "-k", "50", "--apart", NULL};
    static const char *const embedding[] = {"--tables", "3",  "--rows",    "100", "--dim", "20",
                                            "--batch",  "37", "--pooling", "5",   NULL};

    (void)unsetenv("FCCD_SOCKET");
    (void)setenv("TMPDIR", test_directory(), 1); /* the private daemons' directories are to be gone at the end */
    bench_one("gemv_all_reduce", "bf16", "3", "1", "both", gemv);
    bench_one("gemm_all_to_all", "f16", "4", "1", "both", gemm);
    bench_one("gemm_all_to_all", "f32", "2", "1", "both", apart);
    bench_one("embedding_all_to_all", "f32", "2", "1", "both", embedding);
    bench_one("embedding_all_to_all", "f16", "3", "1", "auto", embedding);
    bench_one("gemv_all_reduce", "f32", "5", "2", "both", gemv);
    bench_one("gemm_all_to_all", "bf16", "4", "4", "both", gemm);
    bench_one("embedding_all_to_all", "f16", "3", "2", "auto", embedding);
    CHECK(FCCCTL("bench", "noop", "--local", "--ranks", "1", "--iters", "10") == 0 && says("noop"));
    CHECK(FCCCTL("bench", "all_to_all", "--local", "--ranks", "3", "--count", "1000", "--iters", "2", "--check", "--json") ==
              0 &&
          says("\"wrong\":0"));
    CHECK(FCCCTL("bench", "send_receive", "--local", "--ranks", "3", "--count", "1000", "--iters", "2", "--check", "--json") ==
              0 &&
          says("\"wrong\":0"));
    free(output);
    output = NULL;
}

/* Over daemons that run already; and one that speaks to no other cannot be among them. */
static void bench_sockets(void)
{
    struct test_daemon d;
    char sockets[300];

    daemons_start(&d, 2, NULL);
    (void)snprintf(sockets, sizeof(sockets), "%s,%s", d.node[0].socket, d.node[1].socket);
    CHECK(FCCCTL("bench", "gemv_all_reduce", "-n", "512", "-k", "512", "--sockets", sockets, "--ranks", "4", "--iters", "3",
                 "--check") == 0);
    CHECK(says("4 ranks on 2 nodes") && says(d.node[0].address) && says(d.node[1].address) && says("ranks 0 to 1"));
    daemon_stop(&d);
    daemons_start(&d, 1, NULL);
    (void)snprintf(sockets, sizeof(sockets), "%s,%s", d.socket, d.socket);
    CHECK(FCCCTL("bench", "noop", "--sockets", sockets) == 1 && says("NODE_LISTEN"));
    daemon_stop(&d);
    free(output);
    output = NULL;
}

static void example(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    CHECK(run(program("FCC_TEST_EXAMPLE", "build/bin/example_gemv"), (const char *const[]){NULL}) == 0);
    CHECK(says("rank 0 of 2") && says("rank 1 of 2") && says("0 of 512 wrong"));
    CHECK(run(program("FCC_TEST_EXAMPLE_RING", "build/bin/example_ring"), (const char *const[]){NULL}) == 0);
    CHECK(says("rank 0 of 3") && says("rank 1 of 3") && says("rank 2 of 3") && says(" 0 of 327680 wrong in 20 runs"));
    CHECK(run(program("FCC_TEST_EXAMPLE_PROGRAM", "build/bin/example_program"), (const char *const[]){NULL}) == 0);
    CHECK(says("rank 0: y[3] = 9") && says("rank 1: y[3] = 9"));
    daemon_stop(&d);
    free(output);
    output = NULL;
}

/* The source of each step, with the program's lines; of what is no step's code it is said. */
static void show_code(void)
{
    CHECK(FCCCTL("program", "client/programs/adam.fcc", "--show-code") == 0 && says("GENERATED_KERNEL(step)") &&
          says("/* line 9: a = s * scale */") && says("float *t0; /* m */") && says("RANKS = 2") &&
          says("step 0, line 12: sum + elements + gather"));
    CHECK(FCCCTL("program", "client/programs/lamb.fcc", "--show-code") == 0 && says("SUMS = 1") &&
          !says("no code is generated: line "));
    CHECK(FCCCTL("program", "client/programs/mlp.fcc", "--show-code") == 0 &&
          says("no code is generated: an operator of its own"));
}

static void tune(void)
{
    char cache[256], path[320];

    (void)snprintf(cache, sizeof(cache), "%s/cache", test_directory());
    CHECK(FCCCTL("tune") == 2 && says("needed is the name of a program's file"));
    CHECK(FCCCTL("tune", "/nonexistent") == 1 && says("/nonexistent: No such file"));
    CHECK(FCCCTL("tune", "client/programs/sgd.fcc", "--device", "tpu") == 2 && says("allowed are cpu, gpu, cuda, hip"));
    CHECK(FCCCTL("tune", "client/programs/sgd.fcc", "--socket", "/nonexistent/fccd.sock") == 3 &&
          says("/nonexistent/fccd.sock"));
    CHECK(FCCCTL("tune", "client/programs/lamb.fcc", "-D", "M=1", "--local", "--cache", cache) == 1 && says("M"));
    CHECK(FCCCTL("tune", "client/programs/sgd.fcc", "-D", "N=5000", "--local", "--cache", cache) == 0 && says("winner") &&
          says("fuse"));
    CHECK(FCCCTL("tune", "client/programs/sgd.fcc", "-D", "N=5000", "--local", "--cache", cache, "--json") == 0);
    struct json_object *o = parse();
    CHECK(number(o, "from_cache") == 1 && strstr(json_object_get_string(o), "schedule"));
    (void)json_object_put(o);
    (void)snprintf(path, sizeof(path), "rm -r '%s'", cache);
    CHECK(system(path) == 0);
    free(output);
    output = NULL;
}

int main(void)
{
    static const struct test tests[] = {
        {"usage", usage, 0},     {"show_code", show_code, 0}, {"tune", tune, 60},   {"unreachable", unreachable, 0},
        {"plan", plan, 0},       {"live", live, 0},           {"bench", bench, 60}, {"bench_sockets", bench_sockets, 0},
        {"example", example, 0},
    };
    return tests_run("fccctl", TESTS(tests));
}
