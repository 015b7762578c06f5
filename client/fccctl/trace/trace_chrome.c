/* SPDX-License-Identifier: MIT
 *
 * trace_chrome.c - writes a trace in the Trace Event Format: complete events ("X") with times in microseconds.
 */
#include <inttypes.h>

#include "client/fccctl/field.h"
#include "client/fccctl/trace/trace.h"

static void event_add(struct json_object *events, struct json_object *event)
{
    (void)json_object_array_add(events, event);
}

/* A metadata event: the name of a process or thread, or its position in the order. */
static struct json_object *metadata(const char *what, int64_t pid, int64_t tid, const char *key, struct json_object *value)
{
    struct json_object *o = json_object_new_object(), *args = json_object_new_object();

    json_object_object_add(o, "name", json_object_new_string(what));
    json_object_object_add(o, "ph", json_object_new_string("M"));
    json_object_object_add(o, "pid", json_object_new_int64(pid));
    json_object_object_add(o, "tid", json_object_new_int64(tid));
    json_object_object_add(args, key, value);
    json_object_object_add(o, "args", args);
    return o;
}

static struct json_object *complete_event(struct json_object *e, int64_t pid, int64_t tid)
{
    struct json_object *o = json_object_new_object(), *args = json_object_new_object();
    const char *kind = trace_kind_names[trace_kind(e)];
    int64_t dst = field_int(e, "dst", -1);
    double start = field_double(e, "start_ns", 0), end = field_double(e, "end_ns", start);
    char name[64], tile[128];

    if (trace_kind(e) == TRACE_WAIT || trace_kind(e) == TRACE_COMPUTE)
        (void)snprintf(name, sizeof(name), "%s", kind);
    else if (dst < 0)
        (void)snprintf(name, sizeof(name), "%s to several", kind);
    else
        (void)snprintf(name, sizeof(name), "%s to %" PRId64, kind, dst);
    (void)snprintf(tile, sizeof(tile), "rows %" PRId64 "+%" PRId64 ", cols %" PRId64 "+%" PRId64, field_int(e, "row", 0),
                   field_int(e, "rows", 0), field_int(e, "col", 0), field_int(e, "cols", 0));
    json_object_object_add(o, "name", json_object_new_string(name));
    json_object_object_add(o, "cat", json_object_new_string(kind));
    json_object_object_add(o, "ph", json_object_new_string("X"));
    json_object_object_add(o, "ts", json_number(start / 1e3, 3));
    json_object_object_add(o, "dur", json_number((end > start ? end - start : 0) / 1e3, 3));
    json_object_object_add(o, "pid", json_object_new_int64(pid));
    json_object_object_add(o, "tid", json_object_new_int64(tid));
    json_object_object_add(args, "slice", json_object_new_int64(field_int(e, "slice", -1)));
    json_object_object_add(args, "dst", json_object_new_int64(dst));
    json_object_object_add(args, "tile", json_object_new_string(tile));
    json_object_object_add(o, "args", args);
    return o;
}

static void rank_add(struct json_object *events, struct json_object *rank)
{
    int64_t pid = field_int(rank, "rank", 0);
    char name[64];

    (void)snprintf(name, sizeof(name), "rank %" PRId64 " (device %" PRId64 ")", pid, field_int(rank, "device", 0));
    event_add(events, metadata("process_name", pid, 0, "name", json_object_new_string(name)));
    event_add(events, metadata("process_sort_index", pid, 0, "sort_index", json_object_new_int64(pid)));
    for (size_t w = 0; w < field_count(rank, "workgroups"); w++) {
        struct json_object *workgroup = field_at(rank, "workgroups", w);
        int64_t tid = field_int(workgroup, "workgroup", (int64_t)w);
        (void)snprintf(name, sizeof(name), "workgroup %" PRId64, tid);
        event_add(events, metadata("thread_name", pid, tid, "name", json_object_new_string(name)));
        event_add(events, metadata("thread_sort_index", pid, tid, "sort_index", json_object_new_int64(tid)));
        for (size_t i = 0; i < field_count(workgroup, "events"); i++)
            event_add(events, complete_event(field_at(workgroup, "events", i), pid, tid));
    }
}

static void other_add(struct json_object *other, struct json_object *trace, const char *key)
{
    struct json_object *value;

    if (json_object_object_get_ex(trace, key, &value))
        json_object_object_add(other, key, json_object_get(value));
}

void trace_chrome(struct json_object *trace, FILE *out)
{
    static const char *const keys[] = {"op", "number", "schedule", "dtype", "nranks", "comm", "duration_ns"};
    struct json_object *o = json_object_new_object(), *events = json_object_new_array(), *other = json_object_new_object();

    for (size_t i = 0; i < field_count(trace, "ranks"); i++)
        rank_add(events, field_at(trace, "ranks", i));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        other_add(other, trace, keys[i]);
    json_object_object_add(o, "displayTimeUnit", json_object_new_string("ns"));
    json_object_object_add(o, "otherData", other);
    json_object_object_add(o, "traceEvents", events);
    (void)fprintf(out, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    (void)json_object_put(o);
}
