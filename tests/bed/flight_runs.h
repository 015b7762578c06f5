/* SPDX-License-Identifier: MIT
 *
 * flight_runs.h - what fccctl flight has of runs that ranks launched by themselves, for tests on fake GPUs and on real ones.
 */
#ifndef FCC_TEST_BED_FLIGHT_RUNS_H
#define FCC_TEST_BED_FLIGHT_RUNS_H

#include <json-c/json.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

static inline struct json_object *flight_field(struct json_object *o, const char *name)
{
    struct json_object *value = NULL;

    if (!json_object_object_get_ex(o, name, &value))
        check_failed(__FILE__, __LINE__, "no \"%s\" in %s", name, json_object_to_json_string(o));
    return value;
}

static inline int64_t flight_number(struct json_object *o, const char *name)
{
    return json_object_get_int64(flight_field(o, name));
}

static inline bool flight_says(struct json_object *o, const char *name, const char *text)
{
    return strcmp(json_object_get_string(flight_field(o, name)), text) == 0;
}

/* The recorder of the job's worker, which may be dead; to be put. */
static inline struct json_object *flight_read(const char *job)
{
    static char text[4u << 20];
    const int code = program_run(text, sizeof(text), fccctl_binary(),
                                 (const char *const[]){"flight", "--json", "--last", "1000", "--job", job, NULL});
    struct json_object *o = json_tokener_parse(text);

    if (code || !o)
        check_failed(__FILE__, __LINE__, "fccctl flight: %d: %.2000s", code, text);
    return o;
}

/* The first communicator's runs, which are the recorder's. NULL: none has formed yet. */
static inline struct json_object *flight_launched(struct json_object *flight)
{
    struct json_object *comms = flight_field(flight, "comms");

    return json_object_array_length(comms) ? flight_field(json_object_array_get_idx(comms, 0), "launched") : NULL;
}

/* What is expected of the runs of an operator. */
struct flight_expected {
    const char *op;
    int prepared;                /* 0: any */
    int64_t first, last;         /* numbers: each is there once */
    int64_t bytes;               /* -1: any */
    uint64_t since_ns, until_ns; /* they have begun and ended between these times; until_ns 0: until now */
};

static inline uint64_t flight_clock(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How many of the operator's runs have ended; all that are there are as they must be. slack_ns: how far clocks may be off. */
static inline int64_t flight_ended(struct json_object *flight, const struct flight_expected *expected, int64_t slack_ns)
{
    struct json_object *runs = flight_launched(flight);
    const int64_t now = (int64_t)flight_clock(), since = (int64_t)expected->since_ns,
                  until = expected->until_ns ? (int64_t)expected->until_ns + slack_ns : now;
    int64_t number = expected->first - 1, begun_before = 0, ended = 0;

    for (size_t i = 0; runs && i < json_object_array_length(runs); i++) {
        struct json_object *r = json_object_array_get_idx(runs, i);
        const int64_t begun = flight_number(r, "begun_ns"), came = flight_number(r, "came_ns"),
                      end = flight_number(r, "ended_ns");
        if (!flight_says(r, "op", expected->op) || (expected->prepared && flight_number(r, "prepared") != expected->prepared))
            continue;
        if (flight_number(r, "run") != ++number || begun < begun_before - slack_ns || begun < since - slack_ns ||
            begun > until || (expected->bytes >= 0 && flight_number(r, "bytes") != expected->bytes))
            check_failed(__FILE__, __LINE__, "run %lld of %s was to be there, begun between %lld, %lld and %lld: %s",
                         (long long)number, expected->op, (long long)since, (long long)begun_before, (long long)until,
                         json_object_to_json_string(r));
        begun_before = begun;
        if (!flight_says(r, "state", "ended"))
            continue;
        if (came < begun || end < came - slack_ns || end > until || !flight_says(r, "missing", "[ ]") ||
            !flight_says(r, "inside", "[ ]"))
            check_failed(__FILE__, __LINE__, "run %lld of %s has ended by %lld: %s", (long long)number, expected->op,
                         (long long)until, json_object_to_json_string(r));
        ended++;
    }
    CHECK(number <= expected->last);
    return ended;
}

/* Waits until the recorder has them all: the worker reads them some time behind. */
static inline void flight_await_runs(const char *job, const struct flight_expected *expected, int64_t slack_ns)
{
    const int64_t all = expected->last - expected->first + 1;
    const double until = now_ms() + 10000;

    for (int64_t ended = -1; ended < all; (void)usleep(1000)) {
        struct json_object *o = flight_read(job);
        ended = flight_ended(o, expected, slack_ns);
        if (now_ms() > until)
            check_failed(__FILE__, __LINE__, "%lld of %lld runs of %s are there: %.4000s", (long long)ended, (long long)all,
                         expected->op, json_object_to_json_string(flight_launched(o)));
        (void)json_object_put(o);
    }
}

#endif
