/* SPDX-License-Identifier: MIT
 *
 * track.c - the verb track: the rules of ranks' trackers, their counts, and what each waits for.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"

#define STUCK_AFTER_S 10

static void track_print(struct json_object *all)
{
    for (size_t w = 0; w < field_count(all, "workers"); w++) {
        struct json_object *worker = field_at(all, "workers", w);
        struct words uid = words("uid %" PRId64, field_int(worker, "uid", -1));
        print_clean("job \"%s\" of %s, worker %" PRId64 "%s\n", field_text(worker, "job"),
                    *field_text(worker, "user") ? field_text(worker, "user") : uid.text, field_int(worker, "pid", 0),
                    field_count(worker, "rules") ? "" : ": no rules");
        if (field_count(worker, "rules"))
            table_of(worker, "rules",
                     ">COMM=comm|>RANK=rank|>RULE=rule|NAME=name|ACTION=action|>TO=to|>RUNS=done|>COUNT=counted|STATE=state|"
                     ">SINCE=since_ms|WAITS FOR=waits_for",
                     "    ");
    }
    if (!field_count(all, "workers") && !field_count(all, "silent"))
        printf("no jobs\n");
    workers_silent_print(all);
    for (size_t i = 0; i < field_count(all, "unwell"); i++)
        print_clean("UNWELL: %s\n", field_text(field_at(all, "unwell", i), "reason"));
}

/* Adds to each rule how much of its next run has been counted, and returns the rules that have waited for too long. */
static struct json_object *rules_look(struct json_object *all, double stuck_after_s)
{
    struct json_object *unwell = json_object_new_array();

    for (size_t w = 0; w < field_count(all, "workers"); w++) {
        struct json_object *worker = field_at(all, "workers", w);
        for (size_t i = 0; i < field_count(worker, "rules"); i++) {
            struct json_object *rule = field_at(worker, "rules", i);
            const int64_t need = field_int(rule, "need", 1), done = field_int(rule, "done", 0);
            JSON_ADD(rule, {"counted",
                            json_text(words("%" PRId64 " of %" PRId64, field_int(rule, "count", 0) - done * need, need).text)});
            const double since_ms = field_double(rule, "since_ms", -1); /* -1: the next run has not begun */
            if (since_ms < 0 || since_ms < stuck_after_s * 1e3)
                continue;
            struct words why =
                words("job \"%s\" of uid %" PRId64 ", communicator %" PRId64 ", rank %" PRId64 ", rule %" PRId64
                      ": nothing new for %s: %s",
                      field_text(worker, "job"), field_int(worker, "uid", -1), field_int(rule, "comm", 0),
                      field_int(rule, "rank", 0), field_int(rule, "rule", 0),
                      format_duration(field_double(rule, "since_ms", 0) / 1e3).text, field_text(rule, "waits_for"));
            (void)json_object_array_add(unwell, JSON_OBJECT({"uid", json_int(field_int(worker, "uid", -1))},
                                                            {"job", json_text(field_text(worker, "job"))},
                                                            {"comm", json_int(field_int(rule, "comm", 0))},
                                                            {"reason", json_text(why.text)}));
        }
    }
    return unwell;
}

int verb_track(struct call *call)
{
    int64_t uid = -1;
    const char *job = NULL;
    double stuck_after = STUCK_AFTER_S;
    const struct arg args[] = {
        {"job", 0, ARG_TEXT, &job, 0, 0, NULL, "JOB", "only this job [all that you may see]"},
        {"uid", 0, ARG_INT, &uid, 0, UINT32_MAX - 1, NULL, "UID", "only this user's jobs"},
        {"stuck-after", 0, ARG_NUMBER, &stuck_after, 0, 1000000, NULL, "SECONDS", "how long a rule may see nothing new [10]"},
    };
    struct json_object *all = NULL;
    struct error e;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 0))
        return call->exit;
    if (workers_collect(call->socket, FCC_QUERY_TRACK, uid, job, &all, &e))
        return control_fail(call, &e);
    JSON_ADD(all, {"unwell", rules_look(all, stuck_after)});
    return control_show(call, all, !field_count(all, "unwell") && !field_count(all, "silent"), track_print);
}
