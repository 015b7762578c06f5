/* SPDX-License-Identifier: MIT
 *
 * main.c - fccctl, which inspects fccd: the table of its verbs, and their dispatch.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/fccctl.h"
#include "proto/proto.h"
#include "proto/variables.h"

static const struct verb verbs[] = {
    {"status", verb_status, "Show the daemon, its counters and its jobs", "[--json]"},
    {"devices", verb_devices, "Show the node's devices", "[--json]"},
    {"comms", verb_comms, "Show communicators, the operators they are in and the ranks that have not come",
     "[--job JOB] [--uid UID] [--stuck-after SECONDS] [--json]"},
    {"nodes", verb_nodes, "Show the other nodes, and whether this one can speak to them", "[--json]"},
    {"ping", verb_ping, "Measure round trips to another node's daemon", "NODE [--count N] [--json]"},
    {"plan", verb_plan, "Print the slices of an operator in the order in which they run; needs no daemon",
     "OPERATOR [SHAPE] [--ranks N] [--rank R] [--nodes K] [--schedule fused|sequential]\n"
     "                    [--route rule|flat|hierarchical] [--device cpu|gpu] [--json]"},
    {"program", verb_program,
     "Check a program of computation and exchange, and print what its schedule makes of it; needs no daemon",
     "FILE [-D N=SIZE,...] [--ranks N] [--schedule STATEMENT] [--written] [--steps] [--json]"},
    {"tune", verb_tune, "Find the schedule with which a program takes least time on this node's ranks, by running it",
     "FILE [-D N=SIZE,...] [--ranks N] [--device KIND] [--local] [--again] [--limit SECONDS] [--cache DIRECTORY] [--json]"},
    {"simulate", verb_simulate, "Simulate a workload on a described machine, with the product's own plans; needs no daemon",
     "FILE [--sweep KEY=VALUE,...] [--jobs N] [--seed N] [--svg FILE] [--timeline FILE [--rank R]] [--json]\n"
     "       fccctl simulate MACHINE MEASURED... --compare | --fit FITTED | --split [--hold KEY,...] [--jobs N] [--seed N] "
     "[--json]\n\n"
     "From measurements to an answer (man fccctl, CALIBRATION and EXAMPLES):\n"
     "  fccctl bench gemm_all_reduce -m 64 -n 1024 -k 1024 --local --json >> measured.json   # and other shapes\n"
     "  fccctl simulate --fit mine.json guess.json measured.json\n"
     "  fccctl simulate mine.json --sweep nodes=1,2,8,64"},
    {"bench", verb_bench, "Measure an operator, fused and in sequence",
     "OPERATOR [SHAPE] [--local] [--device cpu|gpu|cuda|hip] [--ranks N] [--dtype f32|f16|bf16]\n"
     "                    [--stream K] [--iters I] [--warmup W] [--schedule both|fused|sequential|auto|routes] [--check] "
     "[--json]"},
    {"trace", verb_trace, "Draw the slices of the last or the next operator: Chrome trace JSON for Perfetto, SVG for a browser",
     "[--job JOB] [--uid UID] [--comm N] [--rules | --next [--wait SECONDS]] [--chrome FILE] [--svg FILE] [--json]"},
    {"track", verb_track, "Show the rules of ranks' trackers, their counts and what they wait for",
     "[--job JOB] [--uid UID] [--stuck-after SECONDS] [--json]"},
    {"flight", verb_flight, "Show the last operators of a job's communicators, also when its worker hangs or is dead",
     "[--job JOB] [--uid UID] [--flight N] [--comm N] [--last N] [--svg FILE] [--json]"},
    {"metrics", verb_metrics, "Print what fccd counts, as OpenMetrics text", "[--json]"},
    {"abort", verb_abort, "End a communicator for all of its ranks",
     "--comm N [--job JOB] [--uid UID] [--reason TEXT] [--json]"},
    {"drain", verb_drain, "End jobs gently: what runs is finished, and nothing new begins", "[JOB] [--uid UID] [--json]"},
    {"doctor", verb_doctor, "Find what is wrong with this machine and how to mend it", "[--json]"},
    {"report", verb_report, "Gather what a maintainer needs to know of this node into one file, without secrets",
     "FILE [--json]"},
    {"version", verb_version, "Print the versions of fccctl, of the library and of the protocol", "[--json]"},
};
#define NVERBS (sizeof(verbs) / sizeof(verbs[0]))

static const struct verb *verb_find(const char *name)
{
    for (size_t i = 0; i < NVERBS; i++) {
        if (strcmp(verbs[i].name, name) == 0)
            return &verbs[i];
    }
    return NULL;
}

static void usage_print(FILE *out)
{
    (void)fprintf(out, "usage: fccctl [--socket PATH] [--json] VERB [OPTIONS]\n\n");
    for (size_t i = 0; i < NVERBS; i++)
        (void)fprintf(out, "  %-9s %s\n", verbs[i].name, verbs[i].summary);
    (void)fprintf(out, "\n'fccctl help VERB' tells more. Exit codes: 0 well, 1 unwell, 2 usage, 3 daemon not reachable.\n");
}

static int verb_unknown(const char *name)
{
    (void)fprintf(stderr, "fccctl: \"%s\": no such verb; there are", name);
    for (size_t i = 0; i < NVERBS; i++)
        (void)fprintf(stderr, "%s %s", i ? "," : "", verbs[i].name);
    (void)fprintf(stderr, ", help\n");
    return EXIT_USAGE;
}

/* Closes stdout, so that a full disk or a closed pipe becomes an error. */
static int finish(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("fccctl: standard output");
        return code ? code : EXIT_UNWELL;
    }
    return code;
}

static char unknown[64][64]; /* unknown variables; if there are more, the next call reports them */
static size_t nunknown;

static void variable_unknown(const char *name, const char *nearest)
{
    (void)fprintf(stderr,
                  "fccctl: warning: the environment's variable %s is unknown and does nothing: the nearest known one is %s\n",
                  name, nearest);
    if (nunknown < sizeof(unknown) / sizeof(unknown[0]))
        text_copy(unknown[nunknown++], sizeof(unknown[0]), name);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},
        {NULL, 0, NULL, 0},
    };
    const char *socket = getenv("FCCD_SOCKET");
    struct call call = {.socket = socket && *socket ? socket : FCC_SOCKET_DEFAULT};
    char version[] = "version", *version_argv[] = {version, NULL}, help[] = "--help";
    int option;

    variables_check(variable_unknown);
    while (nunknown) /* so that programs started by fccctl do not warn again */
        (void)unsetenv(unknown[--nunknown]);
    while ((option = getopt_long(argc, argv, "+h", options, NULL)) != -1) {
        if (option == 's')
            call.socket = optarg;
        else if (option == 'j')
            call.json = true;
        else if (option == 'h') {
            usage_print(stdout);
            return finish(EXIT_WELL);
        } else if (option == 'v') {
            call.verb = verb_find(version);
            call.argc = 1;
            call.argv = version_argv;
            return finish(verb_version(&call));
        } else
            return EXIT_USAGE;
    }
    if (optind >= argc) {
        usage_print(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[optind], "help") == 0) {
        if (optind + 1 == argc) {
            usage_print(stdout);
            return finish(EXIT_WELL);
        }
        argc = optind + 2; /* "help VERB" is "VERB --help" */
        argv[optind] = argv[optind + 1];
        argv[optind + 1] = help;
    }
    call.verb = verb_find(argv[optind]);
    if (!call.verb)
        return verb_unknown(argv[optind]);
    call.argc = argc - optind;
    call.argv = argv + optind;
    return finish(call.verb->run(&call));
}
