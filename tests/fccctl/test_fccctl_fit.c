/* SPDX-License-Identifier: MIT
 *
 * test_fccctl_fit.c - fccctl simulate --fit and --compare: measurements with faults, each with the line and the key that it is about; and times that a known
 * machine was simulated to take, from which a fit must find that machine again.
 */
#include <math.h>
#include <sys/stat.h>

#include "tests/fccctl/fccctl_run.h"

/* What is to be found, and where the fit begins: every rate and time is another one, by factors of 1.4 to 5. */
#define MACHINE_OF(MEMORY, GEMV, GEMM, HAND_OVER, SLICE, BANDWIDTH, LATENCY)                                                   \
    "{\"nodes\": 2,\n"                                                                                                         \
    "\"device\": {\"kind\": \"cpu\", \"workgroups\": 1, \"memory\": \"" MEMORY "\",\n"                                         \
    "\"rates\": {\"gemv\": \"" GEMV "\", \"gemm\": \"" GEMM "\"},\n"                                                           \
    "\"hand_over\": \"" HAND_OVER "\", \"launch\": \"1 us\", \"step\": \"3 us\", \"slice\": \"" SLICE "\"},\n"                 \
    "\"node\": {\"ranks\": 1, \"link\": \"memory\"},\n"                                                                        \
    "\"fabric\": {\"kind\": \"fat tree\", \"bandwidth\": \"" BANDWIDTH "\", \"latency\": \"" LATENCY "\"}}\n"
static const char truth[] = MACHINE_OF("8 GB/s", "40 GFLOP/s", "60 GFLOP/s", "20 us", "30 us", "1 Gb/s", "30 us");
static const char begin[] = MACHINE_OF("5 GB/s", "50 GFLOP/s", "100 GFLOP/s", "9 us", "12 us", "5 Gb/s", "50 us");

#define RUN(DEVICE, RANKS, NODES, SHAPE, TIMES)                                                                                \
    "{\"operator\": \"gemm_all_reduce\", \"device\": \"" DEVICE "\", \"dtype\": \"f32\", \"ranks\": " RANKS                    \
    ", \"nodes\": " NODES ",\n\"shape\": " SHAPE                                                                               \
    ",\n\"iters\": 5, \"stream\": 0, \"group\": false, \"prepared\": false,\n" TIMES "}\n"
#define SIZES "{\"m\": 64, \"n\": 256, \"k\": 64}"
#define FUSED "\"fused_us\": {\"min\": 90, \"p50\": 100, \"p99\": 120}"
#define GOOD RUN("cpu", "2", "2", SIZES, FUSED)

static char machine[256], measured[256], fitted[256];

static void file_put(char path[256], const char *name, const char *text)
{
    (void)snprintf(path, 256, "%s/%s", test_directory(), name);
    FILE *out = fopen(path, "we");

    CHECK(out && fputs(text, out) >= 0 && fclose(out) == 0);
}

static void files_end(void)
{
    (void)unlink(machine);
    (void)unlink(measured);
    (void)unlink(fitted);
    free(output);
    output = NULL;
}

static void faults(void)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "it has no time that can be simulated"},
        {GOOD "\n{\"operator\": ", ":6: no JSON: unexpected end of data"},
        {GOOD "[1]", ":5: no measurement: needed is what `fccctl bench --json` prints"},
        {GOOD "{\"fused_us\": 3}", ":5: no measurement"},
        {GOOD RUN("cpu", "2", "2", SIZES, FUSED ",\n\"speed\": 3"), ":9: speed: unknown key"},
        {GOOD RUN("cpu", "2", "2", SIZES, FUSED ",\n" FUSED), ":9: \"fused_us\" stands twice"},
        {RUN("cpu", "2", "2", SIZES, "\"fused_us\": {\"min\": 1, \"p50\": 0}"), ":4: fused_us.p50: 0: allowed are 0.001 to"},
        {RUN("cpu", "2", "2", SIZES, "\"fused_us\": {\"min\": 1, \"p50\": -4}"), ":4: fused_us.p50: -4: allowed are 0.001 to"},
        {RUN("cpu", "2", "2", SIZES, "\"fused_us\": {\"min\": 1, \"p50\": \"12 us\"}"), ":4: fused_us.p50: needed is a number"},
        {RUN("cpu", "2", "2", SIZES, "\"fused_us\": {\"min\": 1}"), ":4: fused_us: \"p50\" is missing"},
        {RUN("cpu", "2", "2", SIZES, "\"fused_us\": 12"), ":4: fused_us: needed is an object"},
        {RUN("cpu", "2", "2", SIZES, "\"speedup\": 2"), ":1: it has no time: \"fused_us\""},
        {RUN("cpu", "2", "2", SIZES, "\"wrong\": 3, " FUSED), ":4: wrong: 3 wrong elements"},
        {RUN("cpu", "2", "2", "{\"m\": 64, \"rows\": 5}", FUSED), ":2: shape.rows: gemm_all_reduce has no such size"},
        {RUN("cpu", "2", "2", "{\"m\": 0}", FUSED), ":2: shape.m: 0: allowed are whole numbers from 1"},
        {RUN("cpu", "2", "2", "7", FUSED), ":2: shape: needed is an object"},
        {RUN("cuda", "2", "2", SIZES, FUSED), ":1: nodes: it ran on a cuda: the machine is described as a cpu"},
        {RUN("tpu", "2", "2", SIZES, FUSED), ":1: device: \"tpu\": allowed are cpu, cuda, hip, gpu"},
        {RUN("cpu", "3", "2", SIZES, FUSED), ":1: nodes: 3 ranks on 2 nodes: simulated are as many on each"},
        {RUN("cpu", "0", "2", SIZES, FUSED), ":1: ranks: 0: allowed are 1 to 4096"},
        {"{\"operator\": \"gemm\"}", ":1: \"device\" is missing"},
        {GOOD
         "{\"operator\": \"all_reduce\", \"device\": \"cpu\", \"dtype\": \"f32\", \"ranks\": 2, \"nodes\": 2, \"stream\": 4, "
         "\"shape\": {\"count\": 1024}, " FUSED "}",
         ":5: measured 4 on a stream, but what was read before one call at a time"},
        {"{\"operator\": \"map\", \"device\": \"cpu\", \"dtype\": \"f32\", \"ranks\": 2, \"nodes\": 2, \"shape\": {}, " FUSED
         "}",
         ":1: operator: \"map\": no such operator; there are"},
        {"{\"operator\": \"embedding_all_to_all\", \"device\": \"cpu\", \"dtype\": \"f32\", \"ranks\": 2, \"nodes\": 2, "
         "\"shape\": {\"dim\": 64, \"zipf\": 1.05, \"index\": \"i64\"}, " FUSED "}",
         ":1: shape.zipf: ids that come more often than others stay in caches"},
        {"{\"rows\": []}", ":1: \"ranks\" is missing"},
        {"{\"ranks\": 2, \"rows\": []}", ":1: ranks: it ran on a gpu: the machine is described as a cpu"},
    };

    file_put(machine, "machine.json", begin);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        file_put(measured, "measured.json", cases[i].text);
        CHECK(FCCCTL("simulate", "--compare", machine, measured) == 1);
        if (!says(cases[i].words))
            check_failed(__FILE__, __LINE__, "case %zu: expected \"%s\", found: %s", i, cases[i].words, output);
    }
    file_put(measured, "measured.json", GOOD);
    CHECK(FCCCTL("simulate", "--compare", machine, measured) == 0 && says("compared with 1 times: off by"));
    CHECK(FCCCTL("simulate", "--fit", "/dev/null", machine, measured) == 1 && says("1 times for 1 parameters") &&
          says("needed are more times than parameters"));
    CHECK(FCCCTL("simulate", "--compare", machine) == 2 && says("needed are the names"));
    CHECK(FCCCTL("simulate", "--compare", "--split", machine, measured) == 2 && says("--compare: not with --split"));
    CHECK(FCCCTL("simulate", "--compare", "--sweep", "nodes=2", machine, measured) == 2 &&
          says("--sweep: not with measurements"));
    CHECK(FCCCTL("simulate", "--hold", "device.memory", machine) == 2 && says("--hold: only with --fit or --split"));
    CHECK(FCCCTL("simulate", "--fit", "/dev/null", "--hold", "fabric.speed", machine, measured) == 2 &&
          says("--hold: \"fabric.speed\": the description has device.memory"));
    CHECK(FCCCTL("simulate", "--compare", machine, "not-there.json") == 1 && says("not-there.json: No such file"));
    file_put(machine, "machine.json", "{\"machine\": \"other.json\", \"workload\": []}");
    CHECK(FCCCTL("simulate", "--compare", machine, measured) == 1 && says(":1: machine: it is described in other.json"));
    files_end();
}

/* ---- a machine that is known ---- */

static const struct {
    const char *op, *sizes;
} shapes[] = {
    {"noop", "{}"},
    {"gemv_all_reduce", "{\"m\": 1, \"n\": 4096, \"k\": 512}"},
    {"gemv_all_reduce", "{\"m\": 1, \"n\": 512, \"k\": 4096}"},
    {"gemv_all_reduce", "{\"m\": 16, \"n\": 1024, \"k\": 1024}"},
    {"gemv_all_reduce", "{\"m\": 32, \"n\": 512, \"k\": 512}"},
    {"gemm_all_to_all", "{\"m\": 256, \"n\": 256, \"k\": 1024}"},
    {"gemm_all_to_all", "{\"m\": 512, \"n\": 512, \"k\": 64}"},
    {"gemm_all_reduce", "{\"m\": 64, \"n\": 256, \"k\": 2048}"},
    {"gemm_all_reduce", "{\"m\": 512, \"n\": 512, \"k\": 256}"},
    {"all_reduce", "{\"count\": 4096}"},
    {"all_reduce", "{\"count\": 262144}"},
    {"all_gather", "{\"count\": 65536}"},
};

enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* Writes what the machine is simulated to take as if bench had measured it. */
static void simulated_measure(void)
{
    char workload[256], text_of[2048];
    FILE *out;

    file_put(machine, "machine.json", truth);
    file_put(measured, "measured.json", "");
    out = fopen(measured, "we");
    CHECK(out);
    for (size_t i = 0; i < SHAPES; i++) {
        (void)snprintf(
            text_of, sizeof(text_of),
            "{\"machine\": \"machine.json\", \"workload\": [{\"name\": \"a\", \"operator\": \"%s\", \"sizes\": %s}]}",
            shapes[i].op, shapes[i].sizes);
        file_put(workload, "workload.json", text_of);
        CHECK(FCCCTL("simulate", workload, "--json", "--sweep", "schedule=fused,sequential") == 0);
        struct json_object *o = parse();
        const double fused = json_object_get_double(field(o, "rows.0.time_ns")) / 1e3,
                     sequential = json_object_get_double(field(o, "rows.1.time_ns")) / 1e3;
        CHECK(fprintf(out,
                      "{\"operator\":\"%s\",\"device\":\"cpu\",\"dtype\":\"f32\",\"ranks\":2,\"nodes\":2,\"shape\":%s,\"fused_"
                      "us\":{\"p50\":%.6f},"
                      "\"sequential_us\":{\"p50\":%.6f},\"auto_us\":{\"p50\":1}}\n",
                      shapes[i].op, shapes[i].sizes, fused, sequential) > 0);
        (void)json_object_put(o);
        CHECK(unlink(workload) == 0);
    }
    CHECK(fclose(out) == 0);
}

static double fitted_value(struct json_object *o, const char *name, const char *state)
{
    struct json_object *list = field(o, "parameters");

    for (size_t i = 0; i < json_object_array_length(list); i++) {
        struct json_object *p = json_object_array_get_idx(list, i);
        if (strcmp(text(p, "name"), name) != 0)
            continue;
        if (strcmp(text(p, "state"), state) != 0)
            check_failed(__FILE__, __LINE__, "%s is \"%s\", and not \"%s\"", name, text(p, "state"), state);
        return atof(text(p, "fitted"));
    }
    check_failed(__FILE__, __LINE__, "no parameter %s", name);
    return 0;
}

/* Each is found again within 2 %, but for what no time shows, which stays as it was; and twice the same is the same, with one thread or two. */
static void known(void)
{
    static const struct {
        const char *name;
        double value;
    } found[] = {
        {"device.memory", 8}, {"device.rates.gemm", 60}, {"device.slice", 30}, {"fabric.bandwidth", 1}, {"fabric.latency", 30}};
    char *first = NULL;

    simulated_measure();
    file_put(machine, "machine.json", begin);
    (void)snprintf(fitted, sizeof(fitted), "%s/fitted.json", test_directory());
    for (int jobs = 1; jobs <= 2; jobs++) {
        CHECK(FCCCTL("simulate", "--fit", fitted, machine, measured, "--json", "--jobs", jobs == 1 ? "1" : "2") == 0);
        CHECK(!first || !strcmp(first, output));
        first = first ? first : strdup(output);
        CHECK(first);
    }
    free(first);
    struct json_object *o = parse();
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        const double value = fitted_value(o, found[i].name, "fitted");
        if (!(fabs(value / found[i].value - 1) < 0.02))
            check_failed(__FILE__, __LINE__, "%s: fitted %g, it is %g", found[i].name, value, found[i].value);
    }
    CHECK(fabs(fitted_value(o, "device.hand_over", "fitted") - 20) < 0.5);
    CHECK(fitted_value(o, "device.launch", "shows only together with another") == 1);
    CHECK(fitted_value(o, "device.step", "no time depends on it") == 3);
    CHECK(number(o, "left_out") == SHAPES);
    CHECK(json_object_get_double(field(o, "fitted.worst")) < 0.02);
    (void)json_object_put(o);
    CHECK(FCCCTL("simulate", "--compare", fitted, measured) == 0 && says("off by 0."));
    /* what is held stays, and then the times cannot all be met */
    CHECK(FCCCTL("simulate", "--fit", fitted, "--hold", "fabric.bandwidth,device.slice", machine, measured, "--json") == 0);
    o = parse();
    CHECK(fitted_value(o, "fabric.bandwidth", "held") == 5 && json_object_get_double(field(o, "fitted.worst")) > 0.1);
    (void)json_object_put(o);
    files_end();
}

/* Half of the shapes, with all their schedules, are not fitted to; the seed says which. */
static void halves(void)
{
    char first[2 * SHAPES + 1] = "";

    simulated_measure();
    file_put(machine, "machine.json", begin);
    for (int i = 0; i < 3; i++) {
        char now[2 * SHAPES + 1] = "";
        CHECK(FCCCTL("simulate", "--split", "--seed", i < 2 ? "3" : "4", machine, measured, "--json") == 0);
        struct json_object *o = parse(), *rows = field(o, "rows");
        const size_t n = json_object_array_length(rows);
        CHECK(n == 2 * (size_t)SHAPES);
        for (size_t k = 0; k < n; k++)
            now[k] = json_object_get_boolean(field(json_object_array_get_idx(rows, k), "fitted")) ? 'f' : 'o';
        for (size_t k = 0; k < n; k += 2)
            CHECK(now[k] == now[k + 1]);
        CHECK(number(o, "fitted.times") + number(o, "compared.times") == (int64_t)n && number(o, "compared.times") >= 8);
        CHECK(i == 0 || (strcmp(first, now) == 0) == (i == 1));
        (void)snprintf(first, sizeof(first), "%s", now);
        (void)json_object_put(o);
    }
    files_end();
}

/* A file of compare_gpu: rows of operators on a stream are taken, others are left out and counted. */
static void gpus(void)
{
    static const char gpu[] =
        "{\"nodes\": 1, \"device\": {\"kind\": \"gpu\", \"workgroups\": 132, \"memory\": \"4 TB/s\", \"rates\": {\"gemm\": "
        "\"600 TFLOP/s\"}, \"hand_over\": \"4 us\"}, \"node\": {\"ranks\": 4, \"link\": \"switch\", \"bandwidth\": \"300 "
        "GB/s\"}}";
    static const char rows[] =
        "{\"ranks\": 2, \"facts\": {}, \"rows\": [\n"
        "{\"part\": \"gemm_all_to_all\", \"operator\": \"gemm_all_to_all\", \"shape\": \"M1024 N4096 K4096\", \"dtype\": "
        "\"float16\",\n"
        " \"times\": {\"fused stream\": {\"median\": 90.5}, \"sequential stream\": \"failed\", \"nccl\": {\"median\": 99}}},\n"
        "{\"part\": \"gemv_all_reduce\", \"operator\": \"gemv_all_reduce\", \"shape\": \"M1 N8192 K2048\", \"dtype\": "
        "\"bfloat16\",\n"
        " \"times\": {\"fused stream\": {\"median\": 20}, \"sequential stream\": {\"median\": 25}}},\n"
        "{\"part\": \"decode\", \"operator\": \"decode\", \"shape\": \"M1 N2048 K256\", \"dtype\": \"bfloat16\", \"times\": "
        "{}}]}";

    file_put(machine, "machine.json", gpu);
    file_put(measured, "measured.json", rows);
    CHECK(FCCCTL("simulate", "--compare", machine, measured, "--json") == 0);
    struct json_object *o = parse();
    CHECK(json_object_array_length(field(o, "rows")) == 3 && number(o, "left_out") == 1 && number(o, "rows.1.line") == 4);
    CHECK(!strcmp(text(o, "rows.0.dtype"), "f16") && number(o, "rows.0.shape.k") == 4096 && number(o, "rows.0.ranks") == 2);
    (void)json_object_put(o);
    files_end();
}

int main(void)
{
    static const struct test tests[] = {
        {"faults", faults, 120}, {"known", known, 120}, {"halves", halves, 120}, {"gpus", gpus, 60}};

    return tests_run("fccctl_fit", TESTS(tests));
}
