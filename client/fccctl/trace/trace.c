/* SPDX-License-Identifier: MIT
 *
 * trace.c - the verb trace, and the common part of its two pictures.
 */
#include "client/fccctl/trace/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/fccctl/control.h"
#include "client/fccctl/fccctl.h"
#include "client/fccctl/field.h"
#include "client/fccctl/print.h"
#include "proto/base/error.h"

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

/* Calls f for every event of a rank. */
static void rank_each(struct json_object *rank, void (*f)(struct json_object *event, void *arg), void *arg)
{
    for (size_t w = 0; w < field_count(rank, "workgroups"); w++) {
        struct json_object *workgroup = field_at(rank, "workgroups", w);
        for (size_t i = 0; i < field_count(workgroup, "events"); i++)
            f(field_at(workgroup, "events", i), arg);
    }
}

static void latest(struct json_object *event, void *arg)
{
    double end = field_double(event, "end_ns", 0), *most = arg;
    *most = end > *most ? end : *most;
}

/* At least the end of every event, whatever duration the worker has sent. */
double trace_duration(struct json_object *trace)
{
    double most = field_double(trace, "duration_ns", 0);

    for (size_t i = 0; i < field_count(trace, "ranks"); i++)
        rank_each(field_at(trace, "ranks", i), latest, &most);
    return most >= 1 ? fmin(most, DURATION_MOST_NS) : 1;
}

static void count(struct json_object *event, void *arg)
{
    (void)event;
    ++*(size_t *)arg;
}

/* Can the trace be drawn? Returns 0, or -EPROTO if it has no events. */
static int trace_check(struct json_object *trace, struct error *e)
{
    size_t events = 0;

    for (size_t i = 0; i < field_count(trace, "ranks"); i++)
        rank_each(field_at(trace, "ranks", i), count, &events);
    if (events == 0)
        return error_set(e, -EPROTO, "the trace has no slices of any rank");
    return 0;
}

/* ---- files ---- */

/* Opens a new temporary file beside `path`, which nobody else can have made. If `path` is not a regular file, such as
 * /dev/stdout, opens `path` itself and sets `temporary` to "". */
static FILE *file_open(const char *path, char temporary[PATH_MAX])
{
    struct stat st;
    FILE *file;

    *temporary = '\0';
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return fopen(path, "we");
    if (snprintf(temporary, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX) {
        *temporary = '\0';
        errno = ENAMETOOLONG;
        return NULL;
    }
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) {
        *temporary = '\0';
        return NULL;
    }
    mode_t mask = umask(0);
    (void)umask(mask);
    file = fchmod(fd, 0666 & ~mask) ? NULL : fdopen(fd, "w");
    if (!file)
        (void)close(fd);
    return file;
}

/* Draws into a temporary file that is then renamed, so that a viewer never sees half a picture. */
static int file_write(struct json_object *trace, const char *path, int (*draw)(struct json_object *, FILE *), struct error *e)
{
    char temporary[PATH_MAX];
    FILE *file = file_open(path, temporary);
    int status = file ? draw(trace, file) : -errno;

    if (file && ferror(file))
        status = -EIO;
    if (file && fclose(file) != 0 && !status)
        status = -errno;
    if (!status && *temporary && rename(temporary, path) != 0)
        status = -errno;
    if (status && *temporary)
        (void)unlink(temporary);
    return status ? error_set(e, status, "%s: %s", path, strerror(-status)) : 0;
}

/* ---- summary ---- */

struct spent {
    double ns[TRACE_KINDS];
    size_t slices;
};

static void spend(struct json_object *event, void *arg)
{
    struct spent *s = arg;
    double start = field_double(event, "start_ns", 0), end = field_double(event, "end_ns", start);

    s->ns[trace_kind(event)] += end > start ? end - start : 0;
    s->slices++;
}

/* Prints how each rank's time was spent, one line for each. */
static void trace_summary(struct json_object *trace)
{
    struct table *table = table_new(">RANK|>DEVICE|>WORKGROUPS|>SLICES|>COMPUTE+PUT|>COMPUTE|>PUT|>REDUCE|>WAIT|>IDLE|>BUSY");
    double duration = trace_duration(trace);

    print_clean("%s #%" PRId64 ", %s, %s: %s\n", field_text(trace, "op"), field_int(trace, "number", 0),
                field_text(trace, "schedule"), field_text(trace, "dtype"), format_ns(duration).text);
    for (size_t i = 0; i < field_count(trace, "ranks"); i++) {
        struct json_object *rank = field_at(trace, "ranks", i);
        double whole = duration * (double)field_count(rank, "workgroups"), sum = 0;
        struct spent s = {0};
        rank_each(rank, spend, &s);
        table_cell(table, "%" PRId64, field_int(rank, "rank", -1));
        table_cell(table, "%" PRId64, field_int(rank, "device", -1));
        table_cell(table, "%zu", field_count(rank, "workgroups"));
        table_cell(table, "%zu", s.slices);
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
    bool next;
};

/* Reads a trace from a file that was written with --json. */
static int trace_read(const char *path, struct json_object **out, struct error *e)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), status = 0;

    *out = NULL;
    if (fd < 0)
        return error_set(e, -EINVAL, "--from: \"%s\": %s", path, strerror(errno));
    if (!fstat(fd, &st) && S_ISDIR(st.st_mode))
        status = error_set(e, -EINVAL, "--from: \"%s\": %s", path, strerror(EISDIR));
    else if (!(*out = json_object_from_fd(fd)))
        status = error_set(e, -EINVAL, "--from: \"%s\": allowed is what 'fccctl trace --json' has printed", path);
    (void)close(fd);
    return status;
}

/* Refuses options that would have no effect. */
static int trace_usage(const struct call *call, const struct trace_options *o)
{
    if (o->from && (o->job || o->uid >= 0 || o->comm || o->next || o->wait_s >= 0))
        return usage_error(call, "--from: allowed without %s",
                           o->job        ? "--job"
                           : o->uid >= 0 ? "--uid"
                           : o->comm     ? "--comm"
                           : o->next     ? "--next"
                                         : "--wait");
    if (o->wait_s >= 0 && !o->next)
        return usage_error(call, "--wait: allowed with --next");
    return 0;
}

static int trace_ask(const struct call *call, const struct trace_options *o, struct json_object **out, struct error *e)
{
    struct fcc_query query = {
        .what = FCC_QUERY_TRACE,
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
        status = file_write(trace, o->chrome, trace_chrome, e);
    if (!status && o->svg)
        status = file_write(trace, o->svg, trace_svg, e);
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
    status = trace_check(trace, &e);
    if (!status)
        status = trace_draw(call, &o, trace, &e);
    (void)json_object_put(trace);
    return status ? verb_error(call, EXIT_UNWELL, "%s", e.text) : EXIT_WELL;
}
