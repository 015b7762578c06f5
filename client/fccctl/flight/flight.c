/* SPDX-License-Identifier: MIT
 *
 * flight.c - the verb flight: the last operators of a job's communicators, from its worker's flight recorder, which the broker has: also when
 * the worker hangs or is dead.
 */
#include "client/fccctl/flight/flight.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/file_write.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"

#define SHOWN 10

/* Which recorder: the one of that number, otherwise that of the worker of those that match that was started last. Returns it; NULL: none. */
static struct json_object *choose(struct json_object *all, int64_t flight, int64_t uid, const char *job, unsigned *matching)
{
    struct json_object *best = NULL;

    *matching = 0;
    for (size_t i = 0; i < field_count(all, "flights"); i++) {
        struct json_object *o = field_at(all, "flights", i);
        if ((flight && field_int(o, "flight", 0) != flight) || (uid >= 0 && field_int(o, "uid", -1) != uid) ||
            (job && strcmp(field_text(o, "job"), job) != 0))
            continue;
        ++*matching;
        if (!best || field_int(o, "flight", 0) > field_int(best, "flight", 0))
            best = o;
    }
    return best;
}

/* What a person reads instead of fields: who has come, and how it ended. */
static void operators_explain(struct json_object *comm)
{
    for (size_t i = 0; i < field_count(comm, "operators"); i++) {
        struct json_object *o = field_at(comm, "operators", i);
        int64_t status = field_int(o, "status", 0);
        if (field_count(o, "missing"))
            JSON_ADD(o, {"ended", json_text(words("MISSING: %s", field_list(o, "missing").text).text)});
        else if (status)
            JSON_ADD(o, {"ended", json_text(strerror((int)(status < 0 && status > -4096 ? -status : EPROTO)))});
        if (field_double(o, "wait_ns", -1) >= 0)
            JSON_ADD(o, {"wait", json_text(format_ns(field_double(o, "wait_ns", 0)).text)});
        if (field_double(o, "run_ns", -1) >= 0)
            JSON_ADD(o, {"run", json_text(format_ns(field_double(o, "run_ns", 0)).text)});
    }
}

/* What a person reads of runs that ranks have launched: who is missing or still in it, and for how long it waited and ran. */
static void launched_explain(struct json_object *comm)
{
    for (size_t i = 0; i < field_count(comm, "launched"); i++) {
        struct json_object *o = field_at(comm, "launched", i);
        const bool ended = strcmp(field_text(o, "state"), "ended") == 0;
        if (!ended && field_count(o, "missing"))
            JSON_ADD(o, {"left", json_text(words("MISSING: %s", field_list(o, "missing").text).text)});
        else if (!ended && field_count(o, "inside"))
            JSON_ADD(o, {"left", json_text(words("in it: %s", field_list(o, "inside").text).text)});
        if (field_double(o, "wait_ns", -1) >= 0)
            JSON_ADD(o, {"wait", json_text(format_ns(field_double(o, "wait_ns", 0)).text)});
        if (field_double(o, "run_ns", -1) >= 0)
            JSON_ADD(o, {"ran", json_text(format_ns(field_double(o, "run_ns", 0)).text)});
        if (!field_int(o, "bytes", 0))
            json_object_object_del(o, "bytes");
    }
}

/* What the ranks have launched by themselves. */
static void runs_print(struct json_object *comm)
{
    struct json_object *run = field_object(comm, "run");

    if (field_int(comm, "runs", 0))
        printf("    %" PRId64 " runs that its ranks have launched by themselves have ended\n", field_int(comm, "runs", 0));
    if (run)
        print_clean("    under way: %s, prepared as %" PRId64 ", run %" PRId64 ", since %s%s%s\n", field_text(run, "op"),
                    field_int(run, "prepared", 0), field_int(run, "run", 0),
                    format_duration(field_double(run, "since_ms", 0) / 1e3).text,
                    field_count(run, "missing") ? ", MISSING: rank " : "", field_list(run, "missing").text);
    launched_explain(comm);
    if (field_count(comm, "launched"))
        table_of(comm, "launched",
                 "LAUNCHED=op|PREPARED=prepared|>RUN=run|DTYPE=dtype|>SIZE=bytes|STATE=state|>FIRST=first|>LAST=last|>WAITED="
                 "wait|>RAN="
                 "ran|>AGO=since_ms|=left",
                 "    ");
}

static void flight_print(struct json_object *f)
{
    struct words ended = words(", which ended %s ago", format_duration(field_double(f, "ended_s", 0)).text);

    print_clean("job \"%s\" of uid %" PRId64 ", worker %" PRId64 "%s (flight %" PRId64 ")\n", field_text(f, "job"),
                field_int(f, "uid", -1), field_int(f, "pid", 0), field_double(f, "ended_s", -1) < 0 ? "" : ended.text,
                field_int(f, "flight", 0));
    for (size_t i = 0; i < field_count(f, "comms"); i++) {
        struct json_object *c = field_at(f, "comms", i);
        print_clean("  communicator %" PRId64 ": %" PRId64 " ranks on %s, %s%s%s; %" PRId64 " turns so far\n",
                    field_int(c, "comm", 0), field_int(c, "nranks", 0), field_text(c, "device"), field_text(c, "state"),
                    *field_text(c, "error") ? ": " : "", field_text(c, "error"), field_int(c, "turns", 0));
        runs_print(c);
        operators_explain(c);
        if (field_count(c, "operators"))
            table_of(
                c, "operators",
                ">TURN=turn|OPERATOR=op #number|SCHEDULE=schedule|STATE=state|>CAME=came|>FIRST=first|>LAST=last|>WAITED=wait|"
                ">RAN=run|>AGO=since_ms|=ended",
                "    ");
    }
    if (!field_count(f, "comms"))
        printf("  no communicator has formed\n");
    if (field_int(f, "others", 0))
        printf("%" PRId64 " other flight recorder%s: --job, --uid or --flight names one; --json lists them\n",
               field_int(f, "others", 0), field_int(f, "others", 0) == 1 ? "" : "s");
}

/* The recorder `chosen`, with what the list of `all` says of it. NULL: the error has the reason. */
static struct json_object *flight_get(const char *socket, struct json_object *chosen, int64_t comm, int64_t last,
                                      struct error *e)
{
    struct flight *f;

    if (control_ask_flight(socket, (uint32_t)field_int(chosen, "flight", 0), &f, e))
        return NULL;
    struct json_object *o = flight_parse(f, comm, (unsigned)last, clock_ns());
    free(f);
    JSON_ADD(o, {"flight", json_int(field_int(chosen, "flight", 0))}, {"uid", json_int(field_int(chosen, "uid", -1))},
             {"job", json_text(field_text(chosen, "job"))}, {"ended_s", json_double(field_double(chosen, "ended_s", -1))});
    return o;
}

int verb_flight(struct call *call)
{
    int64_t uid = -1, comm = 0, number = 0, last = SHOWN;
    const char *job = NULL, *svg = NULL;
    const struct arg args[] = {
        {"job", 0, ARG_TEXT, &job, 0, 0, NULL, "JOB", "of this job [the one whose worker was started last]"},
        {"uid", 0, ARG_INT, &uid, 0, UINT32_MAX - 1, NULL, "UID", "of this user's jobs"},
        {"flight", 0, ARG_INT, &number, 1, UINT32_MAX, NULL, "N", "the flight recorder of this number"},
        {"comm", 0, ARG_INT, &comm, 1, UINT32_MAX, NULL, "N", "only this communicator [all]"},
        {"last", 0, ARG_INT, &last, 1, FLIGHT_OPERATORS, NULL, "N", "how many operators of each, and runs of its ranks [10]"},
        {"svg", 0, ARG_TEXT, &svg, 0, 0, NULL, "FILE", "draw them into this file"},
    };
    struct json_object *all = NULL, *chosen, *list = NULL, *f = NULL;
    unsigned matching;
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 0))
        return call->exit;
    if (control_ask_broker(call->socket, FCC_QUERY_FLIGHTS, &all, &e))
        return control_fail(call, &e);
    chosen = choose(all, number, uid, job, &matching);
    if (chosen)
        f = flight_get(call->socket, chosen, comm, last, &e);
    else
        (void)error_set(&e, -ENOENT,
                        "no flight recorder%s: there are those of workers that run, and of the last that have ended",
                        number || uid >= 0 || job ? " of those" : "");
    if (f && json_object_object_get_ex(all, "flights", &list))
        JSON_ADD(f, {"others", json_int(matching - 1)}, {"flights", json_object_get(list)});
    (void)json_object_put(all);
    if (!f)
        return control_fail(call, &e);
    int code = svg && file_write(svg, f, flight_draw, &e) ? verb_error(call, EXIT_UNWELL, "--svg: %s", e.text) : EXIT_WELL;
    int shown = control_show(call, f, true, flight_print);
    return code ? code : shown;
}
