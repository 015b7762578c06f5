/* SPDX-License-Identifier: MIT
 *
 * trace.c - the verb trace, what its two pictures have in common, and the one in the Trace Event Format: complete events ("X") with
 * times in microseconds.
 */
#include "client/fccctl/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/file_write.h"
#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/fd.h"

#define DURATION_MOST_NS 1e18 /* thirty years */

const char *const trace_kind_names[TRACE_KINDS] = {
    [TRACE_COMPUTE_PUT] = "compute+put", [TRACE_COMPUTE] = "compute", [TRACE_PUT] = "put",
    [TRACE_REDUCE] = "reduce",           [TRACE_WAIT] = "wait",       [TRACE_OTHER] = "other",
};

enum trace_kind trace_kind(struct json_object *event)
{
    const char *name = field_text(event, "kind");

    if (strcmp(name, "reduce in node") == 0) /* the pictures do not distinguish it from "reduce" */
        return TRACE_REDUCE;
    if (strcmp(name, "forward") == 0)
        return TRACE_PUT;
    for (int kind = 0; kind < TRACE_OTHER; kind++) {
        if (strcmp(name, trace_kind_names[kind]) == 0)
            return (enum trace_kind)kind;
    }
    return TRACE_OTHER;
}

bool trace_is_rules(struct json_object *trace)
{
    return strcmp(field_text(trace, "op"), "rules") == 0;
}

struct words trace_tile(struct json_object *event)
{
    const int64_t bytes = field_int(event, "bytes", -1);

    if (bytes >= 0)
        return words("%" PRId64 " bytes", bytes);
    return words("rows %" PRId64 "+%" PRId64 ", cols %" PRId64 "+%" PRId64, field_int(event, "row", 0),
                 field_int(event, "rows", 0), field_int(event, "col", 0), field_int(event, "cols", 0));
}

bool trace_has_destination(enum trace_kind kind)
{
    return kind != TRACE_WAIT && kind != TRACE_COMPUTE;
}

struct trace_sum trace_sum(struct json_object *trace, size_t first, size_t n)
{
    struct trace_sum sum = {.latest_ns = 0};

    for (size_t r = first; r - first < n && r < field_count(trace, "ranks"); r++) {
        struct json_object *rank = field_at(trace, "ranks", r);
        for (size_t w = 0; w < field_count(rank, "workgroups"); w++, sum.workgroups++) {
            struct json_object *workgroup = field_at(rank, "workgroups", w);
            for (size_t i = 0; i < field_count(workgroup, "events"); i++, sum.all_slices++) {
                struct json_object *event = field_at(workgroup, "events", i);
                enum trace_kind kind = trace_kind(event);
                double start = field_double(event, "start_ns", 0), end = field_double(event, "end_ns", start);
                sum.ns[kind] += end > start ? end - start : 0;
                sum.slices[kind]++;
                sum.latest_ns = end > sum.latest_ns ? end : sum.latest_ns;
                sum.to_several |= trace_has_destination(kind) && field_int(event, "dst", 0) == -1;
            }
        }
    }
    return sum;
}

double trace_duration(struct json_object *trace)
{
    return fmax(1,
                fmin(fmax(field_double(trace, "duration_ns", 0), trace_sum(trace, 0, SIZE_MAX).latest_ns), DURATION_MOST_NS));
}

/* ---- trace events for chrome://tracing and Perfetto ---- */

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
    char name[64];

    if (!trace_has_destination(trace_kind(e)))
        (void)snprintf(name, sizeof(name), "%s", kind);
    else if (dst < 0)
        (void)snprintf(name, sizeof(name), "%s to several", kind);
    else
        (void)snprintf(name, sizeof(name), "%s to %" PRId64, kind, dst);
    const char *what = field_int(e, "run", 0) ? "run" : "slice";
    struct json_object *args =
        JSON_OBJECT({what, json_int(field_int(e, what, -1))}, {"dst", json_int(dst)}, {"tile", json_text(trace_tile(e).text)});
    return JSON_OBJECT({"name", json_text(name)}, {"cat", json_text(kind)}, {"ph", json_text("X")},
                       {"ts", json_number(start / 1e3, 3)}, {"dur", json_number((end > start ? end - start : 0) / 1e3, 3)},
                       {"pid", json_int(pid)}, {"tid", json_int(tid)}, {"args", args});
}

static void rank_add(struct json_object *events, struct json_object *rank, const char *lane)
{
    int64_t pid = field_int(rank, "rank", 0);
    char name[128];

    (void)snprintf(name, sizeof(name), "rank %" PRId64 " (device %" PRId64 ")", pid, field_int(rank, "device", 0));
    (void)json_object_array_add(events, metadata("process_name", pid, 0, "name", json_text(name)));
    (void)json_object_array_add(events, metadata("process_sort_index", pid, 0, "sort_index", json_int(pid)));
    for (size_t w = 0; w < field_count(rank, "workgroups"); w++) {
        struct json_object *workgroup = field_at(rank, "workgroups", w);
        int64_t tid = field_int(workgroup, "workgroup", (int64_t)w);
        const char *given = field_text(workgroup, "name");
        (void)snprintf(name, sizeof(name), "%s %" PRId64 "%s%s", lane, tid, *given ? " " : "", given);
        (void)json_object_array_add(events, metadata("thread_name", pid, tid, "name", json_text(name)));
        (void)json_object_array_add(events, metadata("thread_sort_index", pid, tid, "sort_index", json_int(tid)));
        for (size_t i = 0; i < field_count(workgroup, "events"); i++)
            (void)json_object_array_add(events, complete_event(field_at(workgroup, "events", i), pid, tid));
    }
}

/* A process for each rank, a thread for each workgroup. Returns 0. */
static int trace_chrome(struct json_object *trace, FILE *out)
{
    static const char *const keys[] = {"op", "number", "schedule", "dtype", "nranks", "comm", "duration_ns", "dropped"};
    struct json_object *events = json_object_new_array(), *other = json_object_new_object(), *value;

    for (size_t i = 0; i < field_count(trace, "ranks"); i++)
        rank_add(events, field_at(trace, "ranks", i), trace_is_rules(trace) ? "rule" : "workgroup");
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (json_object_object_get_ex(trace, keys[i], &value))
            JSON_ADD(other, {keys[i], json_object_get(value)});
    struct json_object *o = JSON_OBJECT({"displayTimeUnit", json_text("ns")}, {"otherData", other}, {"traceEvents", events});
    (void)fprintf(out, "%s\n", json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE));
    (void)json_object_put(o);
    return 0;
}

/* ---- summary ---- */

/* Prints how each rank's time was spent, one line for each. */
static void trace_summary(struct json_object *trace)
{
    const bool rules = trace_is_rules(trace);
    struct table *table =
        table_new(rules ? ">RANK|>DEVICE|>RULES|>RUNS|>COMPUTE+PUT|>COMPUTE|>PUT|>REDUCE|>WAIT|>IDLE|>BUSY"
                        : ">RANK|>DEVICE|>WORKGROUPS|>SLICES|>COMPUTE+PUT|>COMPUTE|>PUT|>REDUCE|>WAIT|>IDLE|>BUSY");
    double duration = trace_duration(trace);

    if (rules)
        printf("rules of communicator %" PRId64 ": %s; %" PRId64 " earlier runs are dropped\n", field_int(trace, "comm", 0),
               format_ns(duration).text, field_int(trace, "dropped", 0));
    else
        print_clean("%s #%" PRId64 ", %s, %s: %s\n", field_text(trace, "op"), field_int(trace, "number", 0),
                    field_text(trace, "schedule"), field_text(trace, "dtype"), format_ns(duration).text);
    for (size_t i = 0; i < field_count(trace, "ranks"); i++) {
        struct json_object *rank = field_at(trace, "ranks", i);
        struct trace_sum s = trace_sum(trace, i, 1);
        double whole = duration * (double)s.workgroups, sum = 0;
        table_cell(table, "%" PRId64, field_int(rank, "rank", -1));
        table_cell(table, "%" PRId64, field_int(rank, "device", -1));
        table_cell(table, "%zu", s.workgroups);
        table_cell(table, "%zu", s.all_slices);
        for (int kind = 0; kind <= TRACE_WAIT; kind++) {
            table_cell(table, "%.1f %%", 100 * s.ns[kind] / whole);
            sum += s.ns[kind];
        }
        sum += s.ns[TRACE_OTHER];
        table_cell(table, "%.1f %%", 100 * (whole > sum ? whole - sum : 0) / whole);
        table_cell(table, "%.1f %%", 100 * (sum - s.ns[TRACE_WAIT]) / whole);
    }
    table_end(table, "");
}

/* ---- the verb ---- */

#define WAIT_S 30

struct trace_options {
    const char *job, *chrome, *svg, *from;
    int64_t uid, comm;
    double wait_s; /* negative: not given */
    bool next, rules;
};

/* Reads a trace from a file that was written with --json. */
static int trace_read(const char *path, struct json_object **out, struct error *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    *out = fd >= 0 ? json_object_from_fd(fd) : NULL;
    if (fd < 0 || (!*out && errno == EISDIR))
        (void)error_set(e, -EINVAL, "--from: \"%s\": %s", path, strerror(errno));
    else if (!*out)
        (void)error_set(e, -EINVAL, "--from: \"%s\": allowed is what 'fccctl trace --json' has printed", path);
    fd_close(&fd);
    return *out ? 0 : -EINVAL;
}

/* Refuses options that would have no effect. */
static int trace_usage(const struct call *call, const struct trace_options *o)
{
    if (o->from && (o->job || o->uid >= 0 || o->comm || o->rules || o->next || o->wait_s >= 0))
        return verb_error(call, EXIT_USAGE, "--from: allowed without %s",
                          o->job        ? "--job"
                          : o->uid >= 0 ? "--uid"
                          : o->comm     ? "--comm"
                          : o->rules    ? "--rules"
                          : o->next     ? "--next"
                                        : "--wait");
    if (o->rules && o->next)
        return verb_error(call, EXIT_USAGE, "--rules: allowed without --next");
    if (o->wait_s >= 0 && !o->next)
        return verb_error(call, EXIT_USAGE, "--wait: allowed with --next");
    return 0;
}

static int trace_ask(const struct call *call, const struct trace_options *o, struct json_object **out, struct error *e)
{
    struct fcc_query query = {
        .what = o->rules ? FCC_QUERY_RULES : FCC_QUERY_TRACE,
        .comm = (uint32_t)o->comm,
        .next = o->next,
        .wait_ms = o->next ? (uint32_t)((o->wait_s < 0 ? WAIT_S : o->wait_s) * 1e3) : 0,
    };
    char job[FCC_JOB_MAX];
    uint32_t owner;
    int status;

    if (o->from)
        return trace_read(o->from, out, e);
    status = control_find_job(call->socket, o->uid, o->job, &owner, job, e);
    if (status)
        return status;
    return control_ask(call->socket, owner, job, &query, CONTROL_LIMIT_MS + (int)query.wait_ms, out, e);
}

/* Draws the requested files; both, if none was requested and no JSON goes to stdout. */
static int trace_draw(const struct call *call, struct trace_options *o, struct json_object *trace, struct error *e)
{
    int status = 0;

    if (!o->chrome && !o->svg && !call->json) {
        o->chrome = "fccd-trace.json";
        o->svg = "fccd-trace.svg";
    }
    if (o->chrome)
        status = file_write(o->chrome, trace, trace_chrome, e);
    if (!status && o->svg)
        status = file_write(o->svg, trace, trace_svg, e);
    if (status)
        return status;
    if (call->json) {
        json_print(trace, false);
        return 0;
    }
    trace_summary(trace);
    if (o->chrome)
        printf("%s: open it at https://ui.perfetto.dev\n", o->chrome);
    if (o->svg)
        printf("%s: open it in a browser\n", o->svg);
    return 0;
}

int verb_trace(struct call *call)
{
    struct trace_options o = {.uid = -1, .wait_s = -1};
    const struct arg args[] = {
        {"job", 0, ARG_TEXT, &o.job, 0, 0, NULL, "JOB", "whose operator [the only job]"},
        {"uid", 0, ARG_INT, &o.uid, 0, UINT32_MAX - 1, NULL, "UID", "whose job [yours]"},
        {"comm", 0, ARG_INT, &o.comm, 1, UINT32_MAX, NULL, "N",
         "the communicator's number in 'fccctl comms' [the one used last]"},
        {"next", 0, ARG_FLAG, &o.next, 0, 0, NULL, NULL, "the next operator [the last one that has finished]"},
        {"rules", 0, ARG_FLAG, &o.rules, 0, 0, NULL, NULL, "the last runs of the rules of ranks' trackers instead"},
        {"wait", 0, ARG_NUMBER, &o.wait_s, 0, 86400, NULL, "SECONDS", "how long to wait for it [30]"},
        {"chrome", 0, ARG_TEXT, &o.chrome, 0, 0, NULL, "FILE", "write Chrome trace JSON [fccd-trace.json]"},
        {"svg", 0, ARG_TEXT, &o.svg, 0, 0, NULL, "FILE", "write a picture [fccd-trace.svg]"},
        {"from", 0, ARG_TEXT, &o.from, 0, 0, NULL, "FILE", "draw what --json printed before; asks no daemon"},
    };
    struct json_object *trace;
    struct error e = {0};
    int status;

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), 0))
        return call->exit;
    if ((status = trace_usage(call, &o)))
        return status;
    if (trace_ask(call, &o, &trace, &e))
        return control_fail(call, &e);
    if (trace_sum(trace, 0, SIZE_MAX).all_slices)
        status = trace_draw(call, &o, trace, &e);
    else
        status = error_set(&e, -EPROTO, "the trace has no slices of any rank");
    (void)json_object_put(trace);
    return status ? verb_error(call, EXIT_UNWELL, "%s", e.text) : EXIT_WELL;
}
