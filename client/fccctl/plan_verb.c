/* SPDX-License-Identifier: MIT
 *
 * plan_verb.c - the verb plan: an operator's slices in the order in which they run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "client/fccctl/bench/shape.h"
#include "client/fccctl/field.h"
#include "kernels/gpu/device/tiles/tiles_order.h"
#include "kernels/plan/dtype.h"

struct plan_options {
    struct shape shape;
    int64_t rank, nodes, workgroups, slice_rows, slice_cols, limit;
    int schedule, device, route;
    bool any_order;
};

#define LAUNCHED_TEXT 128
#define DST_ROOM (6 * PLAN_MAX_RANKS + 1) /* room for five digits and a comma for each rank */

static const char *const devices[] = {[PLAN_CPU] = "cpu", [PLAN_GPU] = "gpu", NULL};

static const char *dst_text(const struct plan *plan, unsigned dst, char out[DST_ROOM])
{
    int used = 0;

    out[0] = '\0';
    if (dst == SLICE_DST_ALL)
        (void)snprintf(out, DST_ROOM, "all");
    for (int r = 0; r < plan->nranks && dst != SLICE_DST_ALL; r++)
        if (plan_reaches(plan, dst, r))
            used += snprintf(out + used, (size_t)(DST_ROOM - used), "%s%d", used ? "," : "", r);
    return out;
}

static void waits_cell(struct table *table, const struct slice *s)
{
    if (s->wait_count == 0)
        table_cell(table, "-");
    else if (s->wait_count == 1)
        table_cell(table, "flag %" PRIu32, s->wait_first);
    else if (s->wait_stride == 1)
        table_cell(table, "flags %" PRIu32 "-%" PRIu32, s->wait_first, s->wait_first + s->wait_count - 1);
    else
        table_cell(table, "%" PRIu32 " flags %" PRIu32 ", +%" PRIu32 "...", s->wait_count, s->wait_first, s->wait_stride);
}

static void slice_row(struct table *table, const struct plan *plan, uint32_t i)
{
    const struct slice *s = &plan->slices[i];
    char dst[DST_ROOM];

    table_cell(table, "%" PRIu32, i);
    table_cell(table, "%s", slice_kind_name((enum slice_kind)s->kind));
    if (s->kind == SLICE_WAIT) { /* it has no part of the result */
        for (int column = 0; column < 4; column++)
            table_cell(table, "-");
    } else {
        table_cell(table, "%s", dst_text(plan, s->dst, dst));
        table_cell(table, "%" PRIu32 "+%" PRIu32, s->row, s->rows);
        table_cell(table, "%" PRIu32 "+%" PRIu32, s->col, s->cols);
        table_cell(table, "%" PRIu32 ", %" PRIu32, s->dst_row, s->dst_col);
    }
    waits_cell(table, s);
    if (s->group == SLICE_NO_GROUP || s->group >= plan->ngroups)
        table_cell(table, "-");
    else
        table_cell(table, "flag %" PRIu32 " at %s, after %" PRIu32, plan->groups[s->group].flag,
                   dst_text(plan, plan->groups[s->group].dst, dst), plan->groups[s->group].slices);
}

/* Elements that the plan computes or moves to ranks of other nodes, to others of its own node, and to itself. */
static void destinations(const struct plan *plan, const struct problem *problem, double elements[3])
{
    elements[0] = elements[1] = elements[2] = 0;
    for (uint32_t i = 0; i < plan->nslices; i++) {
        const struct slice *s = &plan->slices[i];
        double size = (double)s->rows * s->cols;
        if (!slice_puts(s->kind))
            continue;
        for (int r = 0; r < plan->nranks; r++) {
            if (plan_reaches(plan, s->dst, r))
                elements[r == plan->rank ? 2 : problem->node_of[r] == problem->node_of[plan->rank]] += size;
        }
    }
}

static const char *plural(uint32_t n)
{
    return n == 1 ? "" : "s";
}

static void kinds_print(const struct plan *plan)
{
    uint32_t count[SLICE_KINDS] = {0};
    const char *separator = "";

    for (uint32_t i = 0; i < plan->nslices; i++) {
        if (plan->slices[i].kind < SLICE_KINDS)
            count[plan->slices[i].kind]++;
    }
    for (int kind = SLICE_COMPUTE_PUT; kind < SLICE_KINDS; kind++) {
        if (count[kind]) {
            printf("%s%" PRIu32 " %s", separator, count[kind], slice_kind_name((enum slice_kind)kind));
            separator = ", ";
        }
    }
}

/* What the slices are cut from, and how many there are of what. */
static void counts_print(const struct plan *plan)
{

    printf("%" PRIu32 " slice%s of at most %" PRIu32 " x %" PRIu32 " (", plan->nslices, plural(plan->nslices),
           plan->schedule.slice_rows, plan->schedule.slice_cols);
    kinds_print(plan);
    printf("), %" PRIu32 " signal group%s, %" PRIu32 " flag%s, %s of staging memory\n", plan->ngroups, plural(plan->ngroups),
           plan->nflags, plural(plan->nflags), format_bytes((double)plan->staging_bytes).text);
}

/* How two ranks on GPUs of one node multiply what they launch themselves (client/stream/pieces.c); false: it is no such product, or has several ways for another
 * reason. */
static bool launched_text(const struct plan_options *o, char text[LAUNCHED_TEXT])
{
    const struct shape *s = &o->shape;
    const bool gathers = s->spec->exchange == EXCHANGE_GATHER;
    const int64_t m = gathers ? 2 * s->m : s->m, row = gathers ? s->k : s->n;
    const uint64_t size = dtype_size(s->dtype), bytes = (uint64_t)m * (uint64_t)row * size / 2;
    const bool returns = !gathers && !op_scatters_rows(s->spec->number);
    const char *why = size != 2                      ? "that is for f16 and bf16"
                      : row % 8                      ? (gathers ? "K is no multiple of 8" : "N is no multiple of 8")
                      : !tiles_can(m, row, size)     ? "there is nothing to multiply"
                      : tiles_pay(m, bytes, returns) ? NULL
                      : returns                      ? "M is less than 512, or less than 4 MiB go to the other rank"
                                                     : "M is less than 512, or less than 1 MiB goes to the other rank";

    if (!why && !gathers && !tiles_fit(m / 2, m - m / 2))
        why = "half of M leaves much of its last tiles of 128 rows empty";
    if (o->device != PLAN_GPU || s->nranks != 2 || o->nodes != 1 || s->spec->compute != COMPUTE_GEMM ||
        s->spec->exchange == EXCHANGE_PUT || o->schedule)
        return false;
    if (!why)
        (void)snprintf(text, LAUNCHED_TEXT, "by tiles of %u x %" PRIu32 " on H100 and H200, elsewhere in pieces by cuBLAS",
                       TILES_ROWS, tiles_columns(m / 2, m - m / 2, s->n));
    else
        (void)snprintf(text, LAUNCHED_TEXT, "in pieces by cuBLAS, not by tiles: %s", why);
    return true;
}

static void summary_print(const struct plan_options *o, const struct problem *problem, const struct plan *plan)
{
    struct work work = plan_work(problem, plan->rank);
    struct traffic traffic;
    double elements[3], total;
    char launched[LAUNCHED_TEXT];

    if (!o->shape.spec->compute) { /* without sizes, a dtype and a schedule */
        printf("%s: rank %d of %d on %" PRId64 " node%s%s\n", o->shape.spec->name, plan->rank, plan->nranks, o->nodes,
               plural((uint32_t)o->nodes), o->device == PLAN_GPU ? ", for a GPU" : "");
        printf("%" PRIu32 " slice: the ranks meet, and nothing is computed or moved\n", plan->nslices);
        return;
    }
    printf("%s, %s, %s: rank %d of %d on %" PRId64 " node%s, %s%s%s%s\n", op_name(plan->op), shape_text(&o->shape).text,
           dtype_name(o->shape.dtype), plan->rank, plan->nranks, o->nodes, plural((uint32_t)o->nodes),
           schedule_name(plan->schedule.kind), o->nodes > 1 ? ", " : "", o->nodes > 1 ? route_name(plan->schedule.route) : "",
           o->device == PLAN_GPU ? ", for a GPU" : "");
    counts_print(plan);
    destinations(plan, problem, elements);
    total = elements[0] + elements[1] + elements[2];
    if (total > 0)
        printf("stores: %.1f %% to other nodes, %.1f %% to other ranks of the node, %.1f %% to itself\n",
               100 * elements[0] / total, 100 * elements[1] / total, 100 * elements[2] / total);
    printf("work: %s read and written, %.3g flop\n", format_bytes(work.bytes).text, work.flops);
    if (plan_traffic(problem, plan, &traffic))
        printf("memory: %s of factors read, %s of sums and results read, %s written\n",
               format_bytes((double)traffic.factors).text, format_bytes((double)traffic.read).text,
               format_bytes((double)traffic.written).text);
    if (launched_text(o, launched))
        printf("launched by the ranks: %s\n", launched);
}

static void plan_print(const struct plan_options *o, const struct problem *problem, const struct plan *plan)
{
    uint32_t shown = plan->nslices;

    summary_print(o, problem, plan);
    if (o->limit > 0 && o->limit < shown)
        shown = (uint32_t)o->limit;
    if (shown) {
        struct table *table = table_new(">SLICE|KIND|>DST|>ROWS|>COLS|>PLACE|WAITS FOR|RAISES");
        for (uint32_t i = 0; i < shown; i++)
            slice_row(table, plan, i);
        table_end(table, "");
    }
    if (shown < plan->nslices)
        printf("... and %" PRIu32 " more (--limit 0 prints all)\n", plan->nslices - shown);
}

/* A rank; -1: all; otherwise an array of ranks. */
static struct json_object *dst_json(const struct plan *plan, unsigned dst)
{
    if (dst == SLICE_DST_ALL || !(dst & SLICE_DST_SET))
        return json_int(dst == SLICE_DST_ALL ? -1 : (int)dst);
    struct json_object *ranks = json_object_new_array();
    for (int r = 0; r < plan->nranks; r++)
        if (plan_reaches(plan, dst, r))
            (void)json_object_array_add(ranks, json_int(r));
    return ranks;
}

static struct json_object *slice_json(const struct plan *plan, const struct slice *s)
{
    return JSON_OBJECT({"kind", json_text(slice_kind_name((enum slice_kind)s->kind))}, {"dst", dst_json(plan, s->dst)},
                       {"row", json_int(s->row)}, {"rows", json_int(s->rows)}, {"col", json_int(s->col)},
                       {"cols", json_int(s->cols)}, {"dst_row", json_int(s->dst_row)}, {"dst_col", json_int(s->dst_col)},
                       {"wait_first", json_int(s->wait_first)}, {"wait_count", json_int(s->wait_count)},
                       {"wait_stride", json_int(s->wait_stride)},
                       {"group", json_int(s->group == SLICE_NO_GROUP ? -1 : (int64_t)s->group)});
}

static void plan_json(const struct plan_options *options, const struct problem *problem, const struct plan *plan)
{
    struct traffic traffic;
    char launched[LAUNCHED_TEXT];
    struct json_object *o = json_object_new_object(), *slices = json_object_new_array(), *groups = json_object_new_array();

    JSON_ADD(o, {"operator", json_text(op_name(plan->op))}, {"dtype", json_text(dtype_name(options->shape.dtype))},
             {"shape", shape_json(&options->shape)}, {"rank", json_int(plan->rank)}, {"ranks", json_int(plan->nranks)},
             {"nodes", json_int(options->nodes)}, {"schedule", json_text(schedule_name(plan->schedule.kind))},
             {"route", json_text(route_name(plan->schedule.route))}, {"device", json_text(devices[options->device])},
             {"slice_rows", json_int(plan->schedule.slice_rows)}, {"slice_cols", json_int(plan->schedule.slice_cols)},
             {"flags", json_int(plan->nflags)}, {"staging_bytes", json_int(plan->staging_bytes)},
             {"any_order", json_object_new_boolean(problem->any_order)});
    if (plan_traffic(problem, plan, &traffic))
        JSON_ADD(o, {"memory", JSON_OBJECT({"factors", json_int(traffic.factors)}, {"read", json_int(traffic.read)},
                                           {"written", json_int(traffic.written)})});
    if (launched_text(options, launched))
        JSON_ADD(o, {"launched", json_text(launched)});
    for (uint32_t i = 0; i < plan->nslices; i++)
        (void)json_object_array_add(slices, slice_json(plan, &plan->slices[i]));
    for (const struct signal_group *g = plan->groups; g < plan->groups + plan->ngroups; g++)
        (void)json_object_array_add(
            groups, JSON_OBJECT({"dst", dst_json(plan, g->dst)}, {"flag", json_int(g->flag)}, {"slices", json_int(g->slices)}));
    JSON_ADD(o, {"groups", groups}, {"slices", slices});
    json_print(o, true);
    (void)json_object_put(o);
}

/* The options; 0, or the exit code through call->exit (false). */
static bool options_parse(struct call *call, struct plan_options *o)
{
    static const char *const schedules[] = {"fused", "sequential", NULL};
    static const char *const routes[] = {
        [PLAN_ROUTE_RULE] = "rule", [PLAN_FLAT] = "flat", [PLAN_HIERARCHICAL] = "hierarchical", NULL};
    struct arg args[SHAPE_ARGS + 10];
    size_t n = shape_args(&o->shape, args);
    const struct arg own[] = {
        {"rank", 0, ARG_INT, &o->rank, 0, PLAN_MAX_RANKS - 1, NULL, "R", "whose plan [0]"},
        {"nodes", 0, ARG_INT, &o->nodes, 1, PLAN_MAX_RANKS, NULL, "K", "nodes that the ranks are spread over [1]"},
        {"schedule", 0, ARG_CHOICE, &o->schedule, 0, 0, schedules, "S", "fused or sequential [fused]"},
        {"route", 0, ARG_CHOICE, &o->route, 0, 0, routes, "R", "over several nodes: flat, hierarchical or by rule [rule]"},
        {"any-order", 0, ARG_FLAG, &o->any_order, 0, 0, NULL, NULL, "products: sums may be added in any order"},
        {"device", 0, ARG_CHOICE, &o->device, 0, 0, devices, "KIND", "whose slice sizes: cpu or gpu [cpu]"},
        {"workgroups", 0, ARG_INT, &o->workgroups, 1, UINT16_MAX, NULL, "N",
         "of a cpu device, among which slices are shared [1]"},
        {"slice-rows", 0, ARG_INT, &o->slice_rows, 0, INT32_MAX, NULL, "N", "rows of a slice, 0: the operator's choice [0]"},
        {"slice-cols", 0, ARG_INT, &o->slice_cols, 0, INT32_MAX, NULL, "N", "columns of a slice, 0: the operator's choice [0]"},
        {"limit", 0, ARG_INT, &o->limit, 0, INT32_MAX, NULL, "N", "slices to print as text, 0: all [40]"},
    };

    for (size_t i = 0; i < n; i++) /* a plan may be larger than any communicator */
        if (args[i].target == &o->shape.ranks_option)
            args[i].max = PLAN_MAX_RANKS;
    memcpy(args + n, own, sizeof(own));
    if (!args_parse(call, args, n + sizeof(own) / sizeof(own[0]), 1))
        return false;
    call->exit = shape_finish(&o->shape, call);
    if (!call->exit && o->rank >= o->shape.nranks)
        call->exit = verb_error(call, EXIT_USAGE, "--rank: %" PRId64 ": allowed are 0 to %d", o->rank, o->shape.nranks - 1);
    if (!call->exit)
        call->exit = shape_nodes_check(&o->shape, call, o->nodes);
    if (!call->exit && o->any_order && !op_adds_products(o->shape.op))
        call->exit = verb_error(call, EXIT_USAGE, "--any-order: %s adds no products", o->shape.spec->name);
    return !call->exit;
}

int verb_plan(struct call *call)
{
    struct plan_options o = {.nodes = 1, .workgroups = 1, .limit = 40};
    struct problem *problem;
    struct plan *plan;
    struct error e = {0};

    if (!options_parse(call, &o))
        return call->exit;
    problem = shape_problem(&o.shape, (int)o.nodes);
    if (!problem)
        return verb_error(call, EXIT_UNWELL, "out of memory");
    problem->any_order = o.any_order;
    struct schedule schedule = {
        .kind = o.schedule ? FCC_SCHEDULE_SEQUENTIAL : FCC_SCHEDULE_FUSED,
        .target = (enum plan_target)o.device,
        .route = (enum plan_route)o.route,
        .workgroups = (uint32_t)o.workgroups,
        .slice_rows = (uint32_t)o.slice_rows,
        .slice_cols = (uint32_t)o.slice_cols,
    };
    int status = plan_make(problem, (int)o.rank, &schedule, &plan, &e);
    if (status == 0 && call->json)
        plan_json(&o, problem, plan);
    else if (status == 0)
        plan_print(&o, problem, plan);
    if (status == 0)
        plan_free(plan);
    problem_free(problem);
    return status ? verb_error(call, EXIT_UNWELL, "%s", e.text) : EXIT_WELL;
}
