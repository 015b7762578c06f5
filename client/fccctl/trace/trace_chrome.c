/* SPDX-License-Identifier: MIT
 *
 * trace_chrome.c - writes a trace in the Trace Event Format: complete events ("X") with times in microseconds.
 */
#include <inttypes.h>

#include "client/fccctl/field.h"
#include "client/fccctl/trace/trace.h"

/* A metadata event: the name of a process or thread, or its position in the order. */
static struct json_object *metadata(const char *what, int64_t pid, int64_t tid, const char *key, struct json_object *value)
{
    return JSON_OBJECT({"name", json_text(what)}, {"ph", json_text("M")}, {"pid", json_int(pid)}, {"tid", json_int(tid)},
                       {"args", JSON_OBJECT({key, value})});
}

static struct json_object *complete_event(struct json_object *e, int64_t pid, int64_t tid)
{
    const char *kind = trace_kind_names[trace_kind(e)];
    int64_t dst = field_int(e, "dst", -1);
    double start = field_double(e, "start_ns", 0), end = field_double(e, "end_ns", start);
    char name[64], tile[128];

    if (!trace_has_destination(trace_kind(e)))
        (void)snprintf(name, sizeof(name), "%s", kind);
    else if (dst < 0)
        (void)snprintf(name, sizeof(name), "%s to several", kind);
    else
        (void)snprintf(name, sizeof(name), "%s to %" PRId64, kind, dst);
    (void)snprintf(tile, sizeof(tile), "rows %" PRId64 "+%" PRId64 ", cols %" PRId64 "+%" PRId64, field_int(e, "row", 0),
                   field_int(e, "rows", 0), field_int(e, "col", 0), field_int(e, "cols", 0));
    struct json_object *args =
        JSON_OBJECT({"slice", json_int(field_int(e, "slice", -1))}, {"dst", json_int(dst)}, {"tile", json_text(tile)});
    return JSON_OBJECT({"name", json_text(name)}, {"cat", json_text(kind)}, {"ph", json_text("X")},
                       {"ts", json_number(start / 1e3, 3)}, {"dur", json_number((end > start ? end - start : 0) / 1e3, 3)},
                       {"pid", json_int(pid)}, {"tid", json_int(tid)}, {"args", args});
}

static void rank_add(struct json_object *events, struct json_object *rank)
{
    int64_t pid = field_int(rank, "rank", 0);
    char name[64];

    (void)snprintf(name, sizeof(name), "rank %" PRId64 " (device %" PRId64 ")", pid, field_int(rank, "device", 0));
    (void)json_object_array_add(events, metadata("process_name", pid, 0, "name", json_text(name)));
    (void)json_object_array_add(events, metadata("process_sort_index", pid, 0, "sort_index", json_int(pid)));
    for (size_t w = 0; w < field_count(rank, "workgroups"); w++) {
        struct json_object *workgroup = field_at(rank, "workgroups", w);
        int64_t tid = field_int(workgroup, "workgroup", (int64_t)w);
        (void)snprintf(name, sizeof(name), "workgroup %" PRId64, tid);
        (void)json_object_array_add(events, metadata("thread_name", pid, tid, "name", json_text(name)));
        (void)json_object_array_add(events, metadata("thread_sort_index", pid, tid, "sort_index", json_int(tid)));
        for (size_t i = 0; i < field_count(workgroup, "events"); i++)
            (void)json_object_array_add(events, complete_event(field_at(workgroup, "events", i), pid, tid));
    }
}

int trace_chrome(struct json_object *trace, FILE *out)
{
    static const char *const keys[] = {"op", "number", "schedule", "dtype", "nranks", "comm", "duration_ns"};
    struct json_object *events = json_object_new_array(), *other = json_object_new_object(), *value;

    for (size_t i = 0; i < field_count(trace, "ranks"); i++)
        rank_add(events, field_at(trace, "ranks", i));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (json_object_object_get_ex(trace, keys[i], &value))
            JSON_ADD(other, {keys[i], json_object_get(value)});
    struct json_object *o = JSON_OBJECT({"displayTimeUnit", json_text("ns")}, {"otherData", other}, {"traceEvents", events});
    (void)fprintf(out, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    (void)json_object_put(o);
    return 0;
}
