/* SPDX-License-Identifier: MIT
 *
 * measured.c - reads measured times: what `fccctl bench --json` prints, one run after the other, and the files of tests/bench/compare_gpu.
 *
 * What a description cannot simulate is refused, since a fit to part of what was measured would look better than it is. Only times of what has no
 * simulation whatever the machine (a schedule that the daemon chooses, sums in any order, parts of compare_gpu that are no operator) are left out and
 * counted.
 */
#include "client/fccctl/simulate/reading.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/simulate/fit.h"

#define US_LEAST 1e-3
#define US_MOST 1e9

/* The times that bench prints. */
static const struct {
    const char *key, *name;
    enum fcc_schedule_kind kind; /* AUTO: not simulated */
    enum plan_route route;
} times[] = {
    {"fused_us", "fused", FCC_SCHEDULE_FUSED, PLAN_ROUTE_RULE},
    {"sequential_us", "sequential", FCC_SCHEDULE_SEQUENTIAL, PLAN_ROUTE_RULE},
    {"compute_us", "compute only", FCC_SCHEDULE_COMPUTE_ONLY, PLAN_ROUTE_RULE},
    {"comm_us", "comm only", FCC_SCHEDULE_COMM_ONLY, PLAN_ROUTE_RULE},
    {"flat_us", "flat", FCC_SCHEDULE_FUSED, PLAN_FLAT},
    {"hierarchical_us", "hierarchical", FCC_SCHEDULE_FUSED, PLAN_HIERARCHICAL},
    {"comm_flat_us", "comm, flat", FCC_SCHEDULE_COMM_ONLY, PLAN_FLAT},
    {"comm_hierarchical_us", "comm, hier.", FCC_SCHEDULE_COMM_ONLY, PLAN_HIERARCHICAL},
    {"auto_us", "auto", FCC_SCHEDULE_AUTO, PLAN_ROUTE_RULE},
    {"any_order_us", "any order", FCC_SCHEDULE_AUTO, PLAN_ROUTE_RULE},
};
#define NTIMES (sizeof(times) / sizeof(times[0]))

static const char *const dtypes[] = {"f32", "f16", "bf16", NULL};
static const enum fcc_dtype dtype_of[] = {FCC_F32, FCC_F16, FCC_BF16};
static const char *const devices[] = {"cpu", "cuda", "hip", "gpu", NULL};

struct run {
    int device, dtype, ranks, nodes, iters, stream, wrong;
    bool group, prepared;
};
static const struct field run_fields[] = {
    OTHER("operator", true),
    {"device", FIELD_CHOICE, true, AT(run, device), .choices = devices},
    {"dtype", FIELD_CHOICE, true, AT(run, dtype), .choices = dtypes},
    {"ranks", FIELD_INT, true, AT(run, ranks), 1, SIM_MAX_RANKS},
    {"nodes", FIELD_INT, true, AT(run, nodes), 1, SIM_MAX_NODES},
    OTHER("placement", false),
    OTHER("shape", true),
    {"iters", FIELD_INT, false, AT(run, iters), 1, INT32_MAX},
    {"stream", FIELD_INT, false, AT(run, stream), 0, INT32_MAX},
    {.key = "group", .kind = FIELD_BOOL, AT(run, group)},
    {.key = "prepared", .kind = FIELD_BOOL, AT(run, prepared)},
    OTHER("fused_us", false),
    OTHER("sequential_us", false),
    OTHER("compute_us", false),
    OTHER("comm_us", false),
    OTHER("flat_us", false),
    OTHER("hierarchical_us", false),
    OTHER("comm_flat_us", false),
    OTHER("comm_hierarchical_us", false),
    OTHER("auto_us", false),
    OTHER("any_order_us", false),
    OTHER("speedup", false),
    OTHER("overlap", false),
    OTHER("wrong", false),
    {.key = NULL},
};
struct quantiles {
    double min, p50, p99, spread;
};
static const struct field quantile_fields[] = {
    {"min", FIELD_NUMBER, false, AT(quantiles, min), US_LEAST, US_MOST},
    {"p50", FIELD_NUMBER, true, AT(quantiles, p50), US_LEAST, US_MOST},
    {"p99", FIELD_NUMBER, false, AT(quantiles, p99), US_LEAST, US_MOST},
    {"spread", FIELD_NUMBER, false, AT(quantiles, spread), 0, 1000},
    {.key = NULL},
};

struct reader {
    struct reading r;
    const struct sim_machine *m;
    struct measurements *all;
};

static int row_add(struct reader *in, const struct place *at, const struct measured *like, const char *schedule,
                   enum fcc_schedule_kind kind, enum plan_route route, double us, double spread)
{
    struct measurements *all = in->all;

    if (all->n == MEASURED_MAX)
        return reading_refuse(&in->r, at, "more than %d times", MEASURED_MAX);
    if (all->n == all->room) {
        const int room = all->room ? 2 * all->room : 64;
        struct measured *rows = realloc(all->rows, (size_t)room * sizeof(*rows));
        if (!rows)
            return error_set(in->r.e, -ENOMEM, "%s: no memory", in->r.name);
        all->rows = rows;
        all->room = room;
    }
    struct measured *w = &all->rows[all->n++];
    *w = *like;
    w->file = in->r.name;
    w->line = in->r.lines_before + place_line(in->r.text, at);
    w->schedule = schedule;
    w->seconds = us * 1e-6;
    w->spread = spread;
    w->entry.line = w->line;
    w->entry.op.size = w->ranks;
    w->entry.op.stride = 1;
    w->entry.op.share = 1;
    w->entry.op.schedule =
        (struct schedule){.kind = kind, .target = in->m->device.target, .route = route, .workgroups = in->m->device.workgroups};
    w->entry.repeat = 1;
    text_copy(w->entry.op.name, sizeof(w->entry.op.name), op_name(w->entry.number));
    return 0;
}

/* How it was launched has its share in every time, and the description has one hand-over: so all must have been launched alike. */
static int manner_take(struct reader *in, const struct place *at, const char *manner)
{
    if (!*in->all->manner)
        text_copy(in->all->manner, MANNER_MAX, manner);
    if (!strcmp(in->all->manner, manner))
        return 0;
    return reading_refuse(&in->r, at, "measured %s, but what was read before %s: they are fitted or compared in two commands",
                          manner, in->all->manner);
}

/* Whether the machine as described has what the operator ran on. */
static int machine_has(struct reader *in, const struct place *at, const char *device, int ranks, int nodes)
{
    const struct sim_machine *m = in->m;
    const bool is_cpu = !strcmp(device, "cpu");

    if (is_cpu != (m->device.target == PLAN_CPU))
        return reading_refuse(&in->r, at, "it ran on a %s: the machine is described as a %s", device,
                              m->device.target == PLAN_CPU ? "cpu" : "gpu");
    if (ranks % nodes)
        return reading_refuse(&in->r, at, "%d ranks on %d nodes: simulated are as many on each", ranks, nodes);
    if (nodes > 1 && !(m->fabric.bytes_s > 0))
        return reading_refuse(&in->r, at, "it ran on %d nodes: the machine is described without \"fabric\"", nodes);
    if (ranks > nodes && m->node.link != SIM_LINK_MEMORY && !(m->node.link_bytes_s > 0))
        return reading_refuse(&in->r, at, "%d ranks of a node: the machine's node is described without \"bandwidth\"",
                              ranks / nodes);
    return 0;
}

static int operator_find(struct reader *in, const struct place *at, struct json_object *o, struct described *d)
{
    struct json_object *named = object_member(o, "operator");
    const int number = json_object_is_type(named, json_type_string) ? op_by_name(json_object_get_string(named)) : -1;
    char names[512];

    if (number < 0)
        return reading_refuse(&in->r, at, "\"%.40s\": no such operator; there are %s", json_object_get_string(named),
                              op_names(BIND_NEVER, ", ", names, sizeof(names)));
    if (op_spec((unsigned)number)->inside)
        return reading_refuse(&in->r, at, "%s: it is part of a program, and cannot be simulated by itself",
                              op_name((unsigned)number));
    d->number = (enum fcc_op)number;
    return 0;
}

static int time_take(struct reader *in, const struct place *at, struct json_object *o, size_t i, const struct measured *like)
{
    const struct place here = {.up = at, .key = times[i].key};
    struct json_object *value = object_member(o, times[i].key);
    struct quantiles q = {.spread = -1};

    if (!value)
        return 0;
    if (reading_object(&in->r, &here, value, quantile_fields, &q))
        return in->r.e->status;
    if (times[i].kind == FCC_SCHEDULE_AUTO) {
        in->all->left_out++;
        return 0;
    }
    return row_add(in, &here, like, times[i].name, times[i].kind, times[i].route, q.p50, q.spread);
}

/* The sizes of a shape, and what else bench says of it. */
static int shape_take(struct reader *in, const struct place *at, struct json_object *shape, struct described *d)
{
    const struct place zipf = {.up = at, .key = "zipf"};

    if (json_object_get_double(object_member(shape, "zipf")) != 0)
        return reading_refuse(&in->r, &zipf, "ids that come more often than others stay in caches, which are not simulated");
    if (json_object_is_type(shape, json_type_object)) {
        json_object_object_del(shape, "zipf");
        json_object_object_del(shape, "index");
    }
    return sizes_take(&in->r, at, shape, d);
}

/* One object of `fccctl bench --json`. */
static int run_take(struct reader *in, struct json_object *o)
{
    const struct place operator= {.key = "operator"}, shape = {.key = "shape"}, wrong = {.key = "wrong"},
                       nodes = {.key = "nodes"};
    struct run run = {.iters = 1};
    struct measured like = {.ranks = 0};
    char manner[MANNER_MAX];
    int before = in->all->n + in->all->left_out;

    if (reading_object(&in->r, NULL, o, run_fields, &run) || operator_find(in, &operator, o, &like.entry) ||
        shape_take(in, &shape, object_member(o, "shape"), &like.entry) ||
        machine_has(in, &nodes, devices[run.device], run.ranks, run.nodes))
        return in->r.e->status;
    if (json_object_get_int64(object_member(o, "wrong")) > 0)
        return reading_refuse(&in->r, &wrong, "%s wrong elements: the time of what is wrong says nothing",
                              json_object_get_string(object_member(o, "wrong")));
    like.entry.dtype = dtype_of[run.dtype];
    like.ranks = run.ranks;
    like.nodes = run.nodes;
    (void)snprintf(manner, sizeof(manner), run.stream ? "%d on a stream%s%s" : "one call at a time", run.stream,
                   run.group ? ", as a group" : "", run.prepared ? ", prepared" : "");
    if (manner_take(in, NULL, manner))
        return in->r.e->status;
    for (size_t i = 0; i < NTIMES; i++)
        if (time_take(in, NULL, o, i, &like))
            return in->r.e->status;
    return in->all->n + in->all->left_out > before
               ? 0
               : reading_refuse(&in->r, NULL, "it has no time: \"fused_us\", \"sequential_us\" and so on are missing");
}

/* ---- compare_gpu ---- */

/* "M8192 N4096 K3584", "T64 D128 B4096 L32": its sizes. False: it is no such name, or ids are skewed. */
static bool name_sizes(const char *name, struct json_object *out)
{
    static const char *const sizes[][2] = {{"M", "m"},   {"N", "n"},     {"K", "k"},      {"T", "tables"},
                                           {"D", "dim"}, {"B", "batch"}, {"L", "pooling"}};
    int used = 0, n = 0;

    for (; *name; name += used, n++) {
        char letter[2];
        long long value;
        size_t i = 0;
        if (sscanf(name, " %1[MNKTDBL]%lld%n", letter, &value, &used) != 2)
            return false;
        while (strcmp(sizes[i][0], letter) != 0)
            i++;
        (void)json_object_object_add(out, sizes[i][1], json_int(value));
    }
    return n > 0;
}

static int gpu_row_take(struct reader *in, const struct place *at, struct json_object *row, int ranks)
{
    static const struct {
        const char *key;
        enum fcc_schedule_kind kind;
    } taken[] = {{"fused stream", FCC_SCHEDULE_FUSED}, {"sequential stream", FCC_SCHEDULE_SEQUENTIAL}};
    static const struct {
        const char *name;
        enum fcc_dtype dtype;
    } types[] = {{"float32", FCC_F32}, {"float16", FCC_F16}, {"bfloat16", FCC_BF16}};
    const struct place measured = {.up = at, .key = "times"}, name = {.up = at, .key = "shape"};
    struct json_object *all = object_member(row, "times"), *sizes = json_object_new_object();
    const char *part = json_object_get_string(object_member(row, "operator")),
               *shape = json_object_get_string(object_member(row, "shape")),
               *type = json_object_get_string(object_member(row, "dtype"));
    struct measured like = {.ranks = ranks, .nodes = 1};
    const int number = part ? op_by_name(part) : -1;
    size_t t = 0;
    int status = 0;

    while (t < 3 && strcmp(types[t].name, type ? type : "") != 0)
        t++;
    if (!all || !shape || !part) {
        status = reading_refuse(&in->r, at, "\"operator\", \"shape\" or \"times\" is missing");
    } else if (number < 0 || op_spec((unsigned)number)->inside || t == 3 || !sizes || !name_sizes(shape, sizes)) {
        in->all->left_out++;
    } else {
        like.entry.number = (enum fcc_op)number;
        like.entry.dtype = types[t].dtype;
        status = sizes_take(&in->r, &name, sizes, &like.entry);
        for (size_t i = 0; !status && i < sizeof(taken) / sizeof(taken[0]); i++) {
            const struct place here = {.up = &measured, .key = taken[i].key};
            const struct place place = {.up = &here, .key = "median"};
            const struct field field = {.kind = FIELD_NUMBER, .least = US_LEAST, .most = US_MOST};
            struct json_object *value = object_member(all, taken[i].key);
            double us = 0;
            if (!json_object_is_type(value, json_type_object)) /* it was not measured, or is a word that says why */
                continue;
            status = reading_number(&in->r, &place, &field, object_member(value, "median"), &us);
            if (!status)
                status = row_add(in, at, &like, i ? "sequential" : "fused", taken[i].kind, PLAN_ROUTE_RULE, us, -1);
        }
    }
    (void)json_object_put(sizes);
    return status;
}

/* A file of compare_gpu: ranks of one node, on a stream. */
static int gpu_take(struct reader *in, struct json_object *o)
{
    const struct place ranks = {.key = "ranks"}, rows = {.key = "rows"};
    const struct field field = {.kind = FIELD_INT, .least = 1, .most = SIM_MAX_RANKS};
    struct json_object *list = object_member(o, "rows");
    int n = 0;

    if (!object_member(o, "ranks"))
        return reading_refuse(&in->r, NULL, "\"ranks\" is missing");
    if (!json_object_is_type(list, json_type_array))
        return reading_refuse(&in->r, &rows, "needed is a list");
    if (reading_number(&in->r, &ranks, &field, object_member(o, "ranks"), &n) || machine_has(in, &ranks, "gpu", n, 1) ||
        manner_take(in, NULL, "by compare_gpu on a stream"))
        return in->r.e->status;
    for (size_t i = 0; i < json_object_array_length(list); i++) {
        const struct place at = {.up = &rows, .index = i};
        if (gpu_row_take(in, &at, json_object_array_get_idx(list, i), n))
            return in->r.e->status;
    }
    return 0;
}

/* ---- files ---- */

int measured_parse(const char *text, size_t length, const char *name, const struct sim_machine *m, struct measurements *all,
                   struct error *e)
{
    struct reader in = {.r = {.text = text, .name = name, .e = e}, .m = m, .all = all};
    const char *end = text + length;
    const int before = all->n;

    error_clear(e);
    for (size_t used; !e->status; in.r.text += used) {
        for (; in.r.text < end && strchr(" \t\r\n", *in.r.text) && *in.r.text; in.r.text++)
            in.r.lines_before += *in.r.text == '\n';
        if (in.r.text == end)
            break;
        struct json_object *o = text_parse(&in.r, (size_t)(end - in.r.text), &used);
        if (!o)
            break;
        if (object_member(o, "rows"))
            (void)gpu_take(&in, o);
        else if (object_member(o, "operator"))
            (void)run_take(&in, o);
        else
            (void)reading_refuse(&in.r, NULL,
                                 "no measurement: needed is what `fccctl bench --json` prints, or a file of compare_gpu");
        (void)json_object_put(o);
        for (size_t i = 0; i < used; i++)
            in.r.lines_before += in.r.text[i] == '\n';
    }
    if (!e->status && all->n == before)
        return error_set(e, -EINVAL, "%s: it has no time that can be simulated", name);
    return e->status;
}

int measured_read(const char *path, const struct sim_machine *m, struct measurements *all, struct error *e)
{
    size_t length = 0;
    char *text;

    error_clear(e);
    text = text_read(path, MEASURED_BYTES, &length, e);
    if (text)
        (void)measured_parse(text, length, path, m, all, e);
    free(text);
    return e->status;
}

void measurements_free(struct measurements *all)
{
    free(all->rows);
    *all = (struct measurements){.n = 0};
}

struct sim_machine measured_machine(const struct sim_machine *m, const struct measured *w)
{
    struct sim_machine out = *m;

    out.nodes = w->nodes;
    out.node.ranks = w->ranks / w->nodes;
    out.node.rails = out.node.rails < out.node.ranks ? out.node.rails : out.node.ranks;
    return out;
}

struct words measured_sizes(const struct measured *w)
{
    struct words out = {""};

    for (int i = 0; i < w->entry.nsizes; i++)
        words_add(&out, "%s%s %lld", i ? " " : "", w->entry.sizes[i].name, (long long)w->entry.sizes[i].value);
    return out;
}
