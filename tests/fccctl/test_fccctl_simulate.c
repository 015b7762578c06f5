/* SPDX-License-Identifier: MIT
 *
 * test_fccctl_simulate.c - fccctl simulate: descriptions with faults, each with the line and the key that it is about; the same bits for the same seed; sweeps,
 * pictures, and the descriptions that are shipped.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/fccctl/fccctl_run.h"

#define DEVICE                                                                                                                 \
    "\"device\": {\"kind\": \"gpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": {\"gemm\": \"1 TFLOP/s\"}}"
#define NODE "\"node\": {\"ranks\": 2, \"link\": \"switch\", \"bandwidth\": \"50 GB/s\"}"
#define FABRIC "\"fabric\": {\"kind\": \"fat tree\", \"bandwidth\": \"10 GB/s\", \"latency\": \"1 us\"}"
#define MACHINE "\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE ",\n" FABRIC "},\n"
#define WORK "{\"name\": \"a\", \"operator\": \"gemm_all_reduce\", \"sizes\": {\"m\": 64, \"n\": 256, \"k\": 64}}"

static char path[256];

static int simulate_bytes(const char *description, size_t length, const char *const more[4])
{
    (void)snprintf(path, sizeof(path), "%s/described.json", test_directory());
    FILE *out = fopen(path, "we");

    CHECK(out && fwrite(description, 1, length, out) == length && fclose(out) == 0);
    const int code = FCCCTL("simulate", path, more[0], more[1], more[2], more[3]);
    return unlink(path) ? -1 : code;
}

static int simulate(const char *description, const char *const more[4])
{
    return simulate_bytes(description, strlen(description), more);
}

static const char *const nothing[4] = {NULL};

#define NAME_OF_64 "1234567890123456789012345678901234567890123456789012345678901234"

static void faults(void)
{
    static const struct {
        const char *description, *words;
    } cases[] = {
        {"", "no JSON: unexpected end of data"},
        {"{\n\n\"machine\": }", ":3: no JSON"},
        {"{" MACHINE "\"workload\": [" WORK "],\n\"speed\": 3}",
         ":6: speed: unknown key; there are name, seed, machine, workload"},
        {"{" MACHINE "\"workload\": [" WORK "],\n\"name\": 5}", ":6: name: needed is a text of at most 127 characters"},
        {"{" MACHINE "\"workload\": [" WORK "],\n\"name\": \"" NAME_OF_64 NAME_OF_64 "\"}",
         ":6: name: needed is a text of at most 127 characters"},
        {"{" MACHINE "\"workload\": [" WORK "],\n\n\"workload\": [" WORK "]}", ":7: \"workload\" stands twice"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"torus\", \"bandwidth\": \"10\"}}, \"workload\": [" WORK "]}",
         ":4: machine.fabric.bandwidth: \"10\": the unit is missing: GB/s"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"torus\", \"bandwidth\": \"0 GB/s\"}}, \"workload\": [" WORK "]}",
         ":4: machine.fabric.bandwidth: 0 GB/s: allowed is more than 0"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"torus\", \"bandwidth\": \"-1 GB/s\"}}, \"workload\": [" WORK "]}",
         ":4: machine.fabric.bandwidth: -1 GB/s: allowed is more than 0"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"torus\", \"shape\": [3], \"bandwidth\": \"1 GB/s\"}}, \"workload\": [" WORK "]}",
         "fabric: shape: a torus of 3 nodes: there are 2"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"ring\", \"bandwidth\": \"1 GB/s\"}}, \"workload\": [" WORK "]}",
         ":4: machine.fabric.kind: \"ring\": allowed are fat tree, rail, torus, dragonfly, graph"},
        {"{\"machine\": {\"nodes\": 3,\n" DEVICE ",\n" NODE ",\n\"fabric\": {\"kind\": \"graph\", \"bandwidth\": \"1 GB/s\", "
         "\"cables\": [[\"node 0\", \"switch 0\", \"1 GB/s\"],\n"
         "[\"node 1\", \"switch 0\", \"1 GB/s\"]]}}, \"workload\": [" WORK "]}",
         "fabric: disconnected: no way from node 0 to node 2"},
        {"{\"machine\": {\"nodes\": 1,\n\"device\": {\"kind\": \"cpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": "
         "{\"gemm\": \"1 TFLOP/s\"},\n\"tiles\": {\"load\": \"68 GB/s\"}},\n" NODE "},\n\"workload\": [" WORK "]}",
         ":3: machine.device.tiles: only a gpu's products are computed in such"},
        {"{\"machine\": {\"nodes\": 1,\n\"device\": {\"kind\": \"gpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": "
         "{\"gemm\": \"1 TFLOP/s\"},\n\"tiles\": {\"sums\": \"25 GB/s\"}},\n" NODE "},\n\"workload\": [" WORK "]}",
         ":3: machine.device.tiles: \"load\" is missing"},
        {"{\"machine\": {\"nodes\": 1,\n\"device\": {\"kind\": \"gpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": "
         "{\"gemm\": \"1 TFLOP/s\"},\n\"tiles\": {\"load\": \"68 GB/s\", \"store\": \"51 GB/s\"}},\n" NODE
         "},\n\"workload\": [" WORK "]}",
         ":3: machine.device.tiles: store: allowed is at most the node's \"bandwidth\""},
        {"{\"machine\": {\"nodes\": 1,\n\"device\": {\"kind\": \"cpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": "
         "{\"gemm\": \"1 TFLOP/s\"},\n\"cache\": \"1 MiB\", \"cache_memory\": \"1 TB/s\", \"near_cache\": \"1 MiB\"},\n" NODE
         "},\n\"workload\": [" WORK "]}",
         "machine.device: \"near_cache\" and \"near_memory\" go together"},
        {"{\"machine\": {\"nodes\": 1,\n\"device\": {\"kind\": \"cpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": "
         "{\"gemm\": \"1 TFLOP/s\"},\n\"cache_ranks\": 1},\n" NODE "},\n\"workload\": [" WORK "]}",
         "machine.device: \"near_cache\" and \"cache_ranks\" need a \"cache\""},
        {"{\"machine\": {\"nodes\": 1,\n\"device\": {\"kind\": \"cpu\", \"workgroups\": 8, \"memory\": \"1 TB/s\", \"rates\": "
         "{\"gemm\": \"1 TFLOP/s\"},\n\"cache\": \"1 MiB\", \"cache_memory\": \"1 TB/s\", \"cache_ranks\": 0},\n" NODE
         "},\n\"workload\": [" WORK "]}",
         ":3: machine.device.cache_ranks: 0: allowed are 1 to 4096"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE "},\n\"workload\": [" WORK "]}",
         ":1: machine: \"fabric\" is missing: there are 2 nodes"},
        {"{\"machine\": {\"nodes\": 1024,\n" DEVICE ",\n\"node\": {\"ranks\": 8, \"link\": \"memory\"},\n" FABRIC
         "},\n\"workload\": [" WORK "]}",
         ":3: machine.node: 8 ranks on each of 1024 nodes: allowed are 4096 in all"},
        {"{" MACHINE "\"workload\": [\n{\"name\": \"a\", \"operator\": \"gemm\"}]}",
         ":6: workload[0].operator: \"gemm\": no such operator"},
        {"{" MACHINE "\"workload\": [\n{\"name\": \"a\", \"operator\": \"gemm_all_reduce\",\n\"sizes\": {\"tables\": 3}}]}",
         ":7: workload[0].sizes.tables: gemm_all_reduce has no such size"},
        {"{" MACHINE "\"workload\": [" WORK
         ",\n{\"name\": \"b\", \"compute\": \"gemm\", \"flops\": \"1 GFLOP\", \"after\": [\"c\"]}]}",
         ":6: workload[1].after[0]: \"c\": no entry has this name"},
        {"{" MACHINE "\"workload\": [\n{\"name\": \"a\", \"compute\": \"gemm\", \"flops\": \"1 GFLOP\", \"after\": [\"b\"]},\n"
         "{\"name\": \"b\", \"compute\": \"gemm\", \"flops\": \"1 GFLOP\", \"after\": [\"a\"]}]}",
         ":6: workload: \"a\" waits for itself"},
        {"{" MACHINE "\"workload\": [\n{\"name\": \"a\", \"operator\": \"all_to_all\", \"ranks\": {\"size\": 3}}]}",
         ":6: workload[0].ranks: groups of 3 ranks, 1 apart, do not divide the 4 ranks that there are"},
        {"{" MACHINE "\"workload\": [\n{\"name\": \"a\", \"flops\": \"1 GFLOP\"}]}", ":6: workload[0]: \"compute\" is missing"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"torus\", \"bandwidth\": \"1e301 TB/s\"}}, \"workload\": [" WORK "]}",
         ":4: machine.fabric.bandwidth: \"1e301 TB/s\": more than any machine has"},
        {"{\"machine\": {\"nodes\": 2,\n" DEVICE ",\n" NODE
         ",\n\"fabric\": {\"kind\": \"fat tree\", \"bandwidth\": \"1 GB/s\", \"latency\": \"1e9 s\"}}, \"workload\": [" WORK
         "]}",
         "takes more than 53 days"},
        {"{\"machine\": \"not-there.json\", \"workload\": [" WORK "]}", "not-there.json: No such file or directory"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK(simulate(cases[i].description, nothing) == 1);
        if (!says(cases[i].words))
            check_failed(__FILE__, __LINE__, "case %zu: expected \"%s\", found: %s", i, cases[i].words, output);
    }
    static const char cut[] = "{" MACHINE "\"workload\": [" WORK "]}\0and more";
    CHECK(simulate_bytes(cut, sizeof(cut), nothing) == 1 && says("a NUL byte"));
    CHECK(FCCCTL("simulate") == 2 && says("needed is the name"));
    CHECK(FCCCTL("simulate", path, "--sweep", "speed=3") == 2 &&
          says("allowed are nodes, schedule, route, slice_rows, slice_cols"));
    CHECK(FCCCTL("simulate", path, "--sweep", "nodes=0") == 2 && says("whole numbers from 1 to 1024"));
    free(output);
    output = NULL;
}

static double time_of(struct json_object *o, int row)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "rows.%d.time_ns", row);
    return json_object_get_double(field(o, name));
}

static void seeds(void)
{
    static const char description[] =
        "{\"machine\": {\"nodes\": 2, " DEVICE ", " NODE ", " FABRIC
        ", \"stragglers\": {\"distribution\": \"exponential\", \"ranks\": \"20 %\", \"slices\": \"5 %\"}}, \"workload\": [" WORK
        "]}";
    double first = 0;

    for (int i = 0; i < 3; i++) {
        CHECK(simulate(description, (const char *const[4]){"--json", "--seed", i < 2 ? "7" : "8"}) == 0);
        struct json_object *o = parse();
        CHECK(i == 0 || (time_of(o, 1) == first) == (i == 1));
        first = time_of(o, 1);
        (void)json_object_put(o);
    }
    free(output);
    output = NULL;
}

/* Every combination has a row, fused is not slower than sequential here, and the pictures are SVG. */
static void sweeps(void)
{
    static const char description[] =
        "{" MACHINE "\"workload\": [" WORK
        ", {\"name\": \"b\", \"compute\": \"gemm\", \"flops\": \"1 GFLOP\", \"after\": [\"a\"]}]}";
    char svg[sizeof(path) + 8], timeline[sizeof(path) + 16];
    struct stat at;

    CHECK(simulate(description, (const char *const[4]){
                                    "--json", "--sweep",
                                    "nodes=1,2,4 route=flat,hierarchical slice_cols=32,64 schedule=sequential,fused"}) == 0);
    struct json_object *o = parse();
    CHECK(json_object_array_length(field(o, "rows")) == 3 * 2 * 2 * 2);
    for (int i = 0; i < 24; i += 2) {
        char name[40];
        (void)snprintf(name, sizeof(name), "rows.%d.schedule", i + 1);
        CHECK(!strcmp(text(o, name), "fused"));
        (void)snprintf(name, sizeof(name), "rows.%d.ranks", i);
        CHECK(number(o, name) == (i < 8 ? 2 : i < 16 ? 4 : 8));
        CHECK(time_of(o, i) > 1e6 && time_of(o, i + 1) > 1e6); /* of the product that each rank computes by itself */
    }
    (void)json_object_put(o);
    (void)snprintf(svg, sizeof(svg), "%s.svg", path);
    (void)snprintf(timeline, sizeof(timeline), "%s.timeline.svg", path);
    CHECK(simulate(description, (const char *const[4]){"--svg", svg, "--timeline", timeline}) == 0 &&
          says("AGAINST SEQUENTIAL"));
    CHECK(stat(svg, &at) == 0 && at.st_size > 500 && stat(timeline, &at) == 0 && at.st_size > 500);
    CHECK(unlink(svg) == 0 && unlink(timeline) == 0);
    free(output);
    output = NULL;
}

/* Side by side or one after the other: the same bits. */
static void side_by_side(void)
{
    static const char description[] = "{" MACHINE "\"workload\": [" WORK "]}";
    static const char *const jobs[] = {"1", "2", "7"};
    double times[9];

    for (size_t k = 0; k < 3; k++) {
        CHECK(simulate(description, (const char *const[4]){"--json", "--jobs", jobs[k],
                                                           "--sweep=nodes=1,2,4 slice_cols=32,64,128 schedule=described"}) ==
              0);
        struct json_object *o = parse();
        CHECK(json_object_array_length(field(o, "rows")) == 9);
        for (int i = 0; i < 9; i++) {
            CHECK(k == 0 || time_of(o, i) == times[i]);
            times[i] = time_of(o, i);
        }
        (void)json_object_put(o);
    }
    free(output);
    output = NULL;
}

/* Reads from a terminal until it has said this, or has ended, and from then on all that it says. */
static void terminal_await(int terminal, const char *what)
{
    static char said[1 << 16];
    size_t n = 0;

    for (ssize_t got; n + 1 < sizeof(said) && (got = read(terminal, said + n, sizeof(said) - n - 1)) > 0;) {
        n += (size_t)got;
        said[n] = '\0';
        if (strstr(said, what))
            return;
    }
    check_failed(__FILE__, __LINE__, "\"%s\" is not in: %s", what, said);
}

/* On a terminal there is a bar. After Ctrl-C what has ended is printed, and how much that is. */
static void interrupted(void)
{
    static const char description[] =
        "{" MACHINE
        "\"workload\": [{\"name\": \"a\", \"operator\": \"gemm_all_reduce\", \"repeat\": 1000, \"sizes\": {\"m\": 64, "
        "\"n\": 256, \"k\": 64}}]}";
    char file[300], printed[8192] = "";
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), out[2], status = 0;
    size_t n = 0;

    (void)snprintf(file, sizeof(file), "%s/long.json", test_directory());
    FILE *described = fopen(file, "we");
    CHECK(described && fputs(description, described) >= 0 && fclose(described) == 0);
    CHECK(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0 && pipe2(out, O_CLOEXEC) == 0);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        const int side = open(ptsname(terminal), O_RDWR | O_NOCTTY);
        if (side < 0 || dup2(out[1], STDOUT_FILENO) < 0 || dup2(side, STDERR_FILENO) < 0)
            _exit(99);
        (void)execl(fccctl_binary(), "fccctl", "simulate", file, "--jobs", "1", "--sweep", "nodes=1,2,64 schedule=described",
                    (char *)NULL);
        _exit(98);
    }
    CHECK(close(out[1]) == 0);
    terminal_await(terminal, "2 of 3 simulations");
    CHECK(kill(pid, SIGINT) == 0);
    terminal_await(terminal, "stopped: 2 of 3 simulations have ended");
    for (ssize_t got; n + 1 < sizeof(printed) && (got = read(out[0], printed + n, sizeof(printed) - n - 1)) > 0;
         n += (size_t)got)
        ;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 1);
    CHECK(strstr(printed, "EVENTS/S") && strstr(printed, "\n    1      2  ") && strstr(printed, "\n    2      4  ") &&
          !strstr(printed, "\n   64    128  "));
    CHECK(close(out[0]) == 0 && close(terminal) == 0 && unlink(file) == 0);
}

/* What is shipped is described well; those that are quick are simulated. */
static void shipped(void)
{
    static const char *const files[] = {"sc24-4", "sc24-2-nodes", "t3-8", "t3-16", "h200-products", "nvlink-32"};
    char name[128];

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        (void)snprintf(name, sizeof(name), "kernels/sim/described/%s.json", files[i]);
        CHECK(FCCCTL("simulate", name, "--json") == 0);
        struct json_object *o = parse();
        CHECK(time_of(o, 1) < time_of(o, 0)); /* fused, sequential */
        (void)json_object_put(o);
    }
    free(output);
    output = NULL;
}

int main(void)
{
    static const struct test tests[] = {{"faults", faults, 60},
                                        {"seeds", seeds, 60},
                                        {"sweeps", sweeps, 120},
                                        {"side_by_side", side_by_side, 60},
                                        {"interrupted", interrupted, 120},
                                        {"shipped", shipped, 120}};

    return tests_run("fccctl_simulate", TESTS(tests));
}
