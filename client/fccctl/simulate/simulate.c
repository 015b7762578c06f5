/* SPDX-License-Identifier: MIT
 *
 * simulate.c - the verb simulate: reads a description, runs it in all variants that are asked for, on all cores, and prints what came out.
 *
 * Variants are independent. Threads take them one by one; the first thread draws the bar. Ctrl-C ends what runs, and what has ended is printed.
 */
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/fccctl/simulate/fit.h"

#define ROWS_MAX 4096
#define OPERANDS_MAX 1024
#define KEPT_LARGEST (32 << 20) /* bytes of one piece: the most that glibc takes */

static atomic_bool stopped; /* set by SIGINT */

struct simulate_options {
    const char *sweep, *svg, *timeline;
    int64_t seed, rank, jobs, nodes;
    bool compare;
    struct calibrate_options calibrate;
};

struct sweep {
    int64_t nodes[VARIED_MAX], rows[VARIED_MAX], cols[VARIED_MAX];
    int routes[VARIED_MAX], schedules[VARIED_MAX];
    int nnodes, nrows, ncols, nroutes, nschedules;
};

struct runs {
    const struct description *d;
    uint64_t seed;
    struct outcome *rows;
    int n;
    _Atomic int next, ended;
};

static void on_interrupt(int signal)
{
    (void)signal;
    atomic_store_explicit(&stopped, true, memory_order_relaxed);
}

/* ---- what is varied ---- */

static int numbers_take(const struct call *call, const char *key, char *list, int64_t least, int64_t most, int64_t out[],
                        int *n)
{
    char *value, *end;

    for (*n = 0; (value = strsep(&list, ",")); out[(*n)++] = strtoll(value, &end, 10)) {
        const long long number = strtoll(value, &end, 10);
        if (end == value || *end || number < least || number > most || *n == VARIED_MAX)
            return verb_error(call, EXIT_USAGE, "--sweep: %s=%s: allowed are at most %d whole numbers from %lld to %lld", key,
                              value, VARIED_MAX, (long long)least, (long long)most);
    }
    return 0;
}

static int names_take(const struct call *call, const char *key, char *list, const char *const names[], int first, int out[],
                      int *n)
{
    char *value;

    for (*n = 0; (value = strsep(&list, ","));) {
        struct words known = {""};
        int i = first;
        for (; names[i] && strcmp(names[i], value) != 0; i++)
            words_add(&known, "%s%s", i > first ? ", " : "", names[i]);
        if (!names[i] || *n == VARIED_MAX)
            return verb_error(call, EXIT_USAGE, "--sweep: %s=%s: allowed are %s", key, value, known.text);
        out[(*n)++] = i;
    }
    return 0;
}

static int sweep_parse(const struct call *call, char *text, struct sweep *s)
{
    static const char *const routes[] = {
        [PLAN_ROUTE_RULE] = "rule", [PLAN_FLAT] = "flat", [PLAN_HIERARCHICAL] = "hierarchical", NULL};
    static const char *const schedules[] = {
        [FCC_SCHEDULE_AUTO] = "described", [FCC_SCHEDULE_FUSED] = "fused", [FCC_SCHEDULE_SEQUENTIAL] = "sequential", NULL};
    char *part;

    while ((part = strsep(&text, " ;"))) {
        char *list = strchr(part, '=');
        int code = 0;
        if (!*part)
            continue;
        if (list)
            *list++ = '\0';
        if (!list)
            code = verb_error(call, EXIT_USAGE, "--sweep: \"%s\": needed is KEY=VALUE,VALUE,...", part);
        else if (!strcmp(part, "nodes"))
            code = numbers_take(call, part, list, 1, SIM_MAX_NODES, s->nodes, &s->nnodes);
        else if (!strcmp(part, "slice_rows"))
            code = numbers_take(call, part, list, 0, INT32_MAX, s->rows, &s->nrows);
        else if (!strcmp(part, "slice_cols"))
            code = numbers_take(call, part, list, 0, INT32_MAX, s->cols, &s->ncols);
        else if (!strcmp(part, "route"))
            code = names_take(call, part, list, routes, 0, s->routes, &s->nroutes);
        else if (!strcmp(part, "schedule"))
            code = names_take(call, part, list, schedules, 0, s->schedules, &s->nschedules);
        else
            code = verb_error(call, EXIT_USAGE, "--sweep: \"%s\": allowed are nodes, schedule, route, slice_rows, slice_cols",
                              part);
        if (code)
            return code;
    }
    return 0;
}

/* Without a sweep: fused and sequential, if an entry leaves it open. */
static void sweep_default(const struct description *d, struct sweep *s)
{
    bool open = false;

    for (int i = 0; i < d->noperators; i++)
        open |= d->operators[i].sequential_too && d->operators[i].number != FCC_OP_COUNT;
    if (!s->nnodes)
        s->nodes[s->nnodes++] = d->machine.nodes;
    if (!s->nrows)
        s->rows[s->nrows++] = -1;
    if (!s->ncols)
        s->cols[s->ncols++] = -1;
    if (!s->nroutes)
        s->routes[s->nroutes++] = -1;
    if (!s->nschedules && open)
        s->schedules[s->nschedules++] = FCC_SCHEDULE_SEQUENTIAL;
    if (!s->nschedules || (s->nschedules == 1 && open && s->schedules[0] == FCC_SCHEDULE_SEQUENTIAL))
        s->schedules[s->nschedules++] = open ? FCC_SCHEDULE_FUSED : FCC_SCHEDULE_AUTO;
}

static struct outcome *rows_make(const struct sweep *s, int *n)
{
    const size_t all = (size_t)(s->nnodes * s->nschedules) * (size_t)(s->nroutes * s->nrows) * (size_t)s->ncols;
    struct outcome *rows = all <= ROWS_MAX ? calloc(all, sizeof(*rows)) : NULL;

    *n = 0;
    for (int a = 0; rows && a < s->nnodes; a++)
        for (int c = 0; c < s->nroutes; c++)
            for (int r = 0; r < s->nrows; r++)
                for (int k = 0; k < s->ncols; k++)
                    for (int b = 0; b < s->nschedules; b++)
                        rows[(*n)++].variant = (struct variant){.nodes = (int)s->nodes[a],
                                                                .schedule = (enum fcc_schedule_kind)s->schedules[b],
                                                                .route = s->routes[c],
                                                                .slice_rows = s->rows[r],
                                                                .slice_cols = s->cols[k]};
    return rows;
}

/* ---- running ---- */

static void *runs_take(void *argument)
{
    struct runs *r = argument;

    for (int i; !atomic_load(&stopped) && (i = atomic_fetch_add(&r->next, 1)) < r->n;) {
        variant_run(r->d, r->seed, -1, &stopped, &r->rows[i], NULL);
        (void)atomic_fetch_add(&r->ended, 1);
    }
    return NULL;
}

static void bar_draw(const struct runs *r)
{
    enum { WIDE = 40 };
    const int ended = atomic_load(&r->ended), full = r->n ? WIDE * ended / r->n : WIDE;

    (void)fprintf(stderr, "\r  [%.*s%.*s] %d of %d simulations", full, "########################################", WIDE - full,
                  "                                        ", ended, r->n);
    (void)fflush(stderr);
}

static void runs_do(struct runs *r, int jobs, bool draws)
{
    pthread_t threads[256];
    int started = 0;

    while (started < jobs && started < r->n && started < 256 && !pthread_create(&threads[started], NULL, runs_take, r))
        started++;
    if (!started)
        (void)runs_take(r);
    while (draws && atomic_load(&r->ended) < r->n && !atomic_load(&stopped)) {
        bar_draw(r);
        (void)usleep(100000);
    }
    for (int i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    if (draws)
        (void)fprintf(stderr, "\r%*s\r", 76, "");
}

/* ---- printing ---- */

/* The row with the same values and the sequential schedule, that this one is compared with; NULL: there is none. */
static const struct outcome *sequential_of(const struct runs *r, const struct outcome *row)
{
    for (int i = 0; i < r->n && row->variant.schedule == FCC_SCHEDULE_FUSED; i++) {
        struct variant v = r->rows[i].variant;
        if (v.schedule != FCC_SCHEDULE_SEQUENTIAL || !r->rows[i].done)
            continue;
        if (v.nodes == row->variant.nodes && v.route == row->variant.route && v.slice_rows == row->variant.slice_rows &&
            v.slice_cols == row->variant.slice_cols)
            return &r->rows[i];
    }
    return NULL;
}

static void rows_print(const struct runs *r)
{
    struct table *table =
        table_new(">NODES|>RANKS|SCHEDULE|>TIME|>AGAINST SEQUENTIAL|>SLICES|>MESSAGES|>EVENTS|>EVENTS/S|>CORE|>BUSIEST|LINK");

    for (int i = 0; i < r->n; i++) {
        const struct outcome *o = &r->rows[i], *other = sequential_of(r, o);
        struct words what;
        if (!o->done)
            continue;
        variant_text(&o->variant, &what);
        table_cell(table, "%d", o->variant.nodes);
        table_cell(table, "%d", o->ranks);
        table_cell(table, "%s", what.text);
        table_cell(table, "%s", format_ns(o->seconds * 1e9).text);
        if (other)
            table_cell(table, "%+.1f %%", 100 * (o->seconds / other->seconds - 1));
        else
            table_cell(table, "-");
        table_cell(table, "%llu", (unsigned long long)o->counts.slices);
        table_cell(table, "%llu", (unsigned long long)o->counts.messages);
        table_cell(table, "%llu", (unsigned long long)o->counts.events);
        table_cell(table, "%.3g", o->cpu_s > 0 ? (double)o->counts.events / o->cpu_s : 0);
        table_cell(table, "%s", format_ns(o->cpu_s * 1e9).text);
        table_cell(table, "%.0f %%", 100 * o->counts.busiest);
        table_cell(table, "%s", o->counts.busiest_name);
    }
    table_end(table, "");
}

static void operators_print(const struct description *d, const struct outcome *o)
{
    struct table *table = table_new("OPERATOR|>BEGINS|>ENDS|>TAKES");
    struct words what;

    variant_text(&o->variant, &what);
    printf("\n%s:\n", what.text);
    for (int i = 0; i < d->noperators; i++) {
        table_cell(table, "%s%s", d->operators[i].op.name,
                   d->operators[i].repeat > 1 ? words(" x %d", d->operators[i].repeat).text : "");
        table_cell(table, "%s", format_ns(o->times[i].begin_s * 1e9).text);
        table_cell(table, "%s", format_ns(o->times[i].end_s * 1e9).text);
        table_cell(table, "%s", format_ns((o->times[i].end_s - o->times[i].begin_s) * 1e9).text);
    }
    table_end(table, "");
}

static struct json_object *outcome_json(const struct description *d, const struct outcome *o)
{
    static const char *const kinds[] = {
        [FCC_SCHEDULE_AUTO] = "described", [FCC_SCHEDULE_FUSED] = "fused", [FCC_SCHEDULE_SEQUENTIAL] = "sequential"};
    struct json_object *row = json_object_new_object(), *operators = json_object_new_array();

    for (int i = 0; o->done && i < d->noperators; i++)
        (void)json_object_array_add(operators, JSON_OBJECT({"name", json_text(d->operators[i].op.name)},
                                                           {"begin_ns", json_number(o->times[i].begin_s * 1e9, 3)},
                                                           {"end_ns", json_number(o->times[i].end_s * 1e9, 3)}));
    JSON_ADD(row, {"nodes", json_int(o->variant.nodes)}, {"ranks", json_int(o->ranks)},
             {"schedule", json_text(kinds[o->variant.schedule])},
             {"route", json_text(o->variant.route < 0 ? "described" : route_name((enum plan_route)o->variant.route))},
             {"slice_rows", json_int(o->variant.slice_rows)}, {"slice_cols", json_int(o->variant.slice_cols)});
    if (!o->done) {
        JSON_ADD(row, {"error", json_text(o->error.text)});
        (void)json_object_put(operators);
        return row;
    }
    JSON_ADD(row, {"time_ns", json_number(o->seconds * 1e9, 3)}, {"slices", json_int((int64_t)o->counts.slices)},
             {"messages", json_int((int64_t)o->counts.messages)}, {"message_bytes", json_number(o->counts.message_bytes, 0)},
             {"events", json_int((int64_t)o->counts.events)}, {"cpu_s", json_number(o->cpu_s, 3)},
             {"busiest", json_number(o->counts.busiest, 4)}, {"busiest_link", json_text(o->counts.busiest_name)},
             {"operators", operators});
    return row;
}

/* The most memory that this process has had, of all simulations that ran at one time. */
static double memory_most(void)
{
    struct rusage used = {.ru_maxrss = 0};

    (void)getrusage(RUSAGE_SELF, &used);
    return 1024.0 * (double)used.ru_maxrss;
}

static int report(const struct call *call, const struct runs *r)
{
    int ended = 0, code = EXIT_WELL;

    for (int i = 0; i < r->n; i++)
        ended += r->rows[i].done;
    if (call->json) {
        struct json_object *rows = json_object_new_array(), *o = NULL;
        for (int i = 0; i < r->n; i++)
            if (r->rows[i].done || (r->rows[i].error.status && r->rows[i].error.status != -ECANCELED))
                (void)json_object_array_add(rows, outcome_json(r->d, &r->rows[i]));
        o = JSON_OBJECT({"name", json_text(r->d->name)}, {"seed", json_int((int64_t)r->seed)},
                        {"tolerance", json_number(r->d->machine.fabric.tolerance, 6)},
                        {"memory_bytes", json_number(memory_most(), 0)}, {"rows", rows});
        json_print(o, true);
        (void)json_object_put(o);
    } else if (ended) {
        if (*r->d->name)
            printf("%s\n\n", r->d->name);
        rows_print(r);
        printf("\nmemory: %s at most\n", format_bytes(memory_most()).text);
        if (r->d->machine.fabric.tolerance > 0)
            printf("tolerance: what the flows of a link or a memory have together is off by at most %g %% of its bandwidth\n",
                   100 * r->d->machine.fabric.tolerance);
        for (int i = 0; i < r->n && r->n <= 2; i++)
            if (r->rows[i].done)
                operators_print(r->d, &r->rows[i]);
    }
    for (int i = 0; i < r->n; i++)
        if (r->rows[i].error.status && r->rows[i].error.status != -ECANCELED) {
            struct words what;
            variant_text(&r->rows[i].variant, &what);
            code =
                verb_error(call, EXIT_UNWELL, "%d nodes, %s: %s", r->rows[i].variant.nodes, what.text, r->rows[i].error.text);
        }
    return ended < r->n && !code ? verb_error(call, EXIT_UNWELL, "stopped: %d of %d simulations have ended", ended, r->n)
                                 : code;
}

/* ---- pictures ---- */

static int pictures_draw(const struct call *call, const struct simulate_options *o, const struct runs *r)
{
    struct sim *traced = NULL;
    int status = o->svg ? picture_times(o->svg, r->d, r->rows, r->n) : 0;

    if (status)
        return verb_error(call, EXIT_UNWELL, "%s: %s", o->svg, strerror(-status));
    if (!o->timeline)
        return EXIT_WELL;
    struct outcome row = {.variant = r->rows[r->n - 1].variant}; /* fused, where both are run */
    if (o->rank >= (int64_t)row.variant.nodes * r->d->machine.node.ranks)
        return verb_error(call, EXIT_USAGE, "--rank: %lld: allowed are 0 to %d", (long long)o->rank,
                          row.variant.nodes * r->d->machine.node.ranks - 1);
    variant_run(r->d, r->seed, (int)o->rank, &stopped, &row, &traced);
    if (traced)
        status = picture_timeline(o->timeline, r->d, &row, traced, (int)o->rank);
    sim_free(traced);
    free(row.times);
    if (!row.done)
        return verb_error(call, EXIT_UNWELL, "%s", row.error.text);
    return status ? verb_error(call, EXIT_UNWELL, "%s: %s", o->timeline, strerror(-status)) : EXIT_WELL;
}

/* What one simulation frees the next one takes. Given back, hundreds of MiB would come again page by page. */
static void memory_keep(void)
{
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_LARGEST);
    (void)mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

static int described_run(const struct call *call, const struct simulate_options *o, const struct description *d,
                         struct sweep *sweep)
{
    struct runs r = {.d = d, .seed = o->seed >= 0 ? (uint64_t)o->seed : d->seed};
    const struct sigaction interrupt = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);

    sweep_default(d, sweep);
    r.rows = rows_make(sweep, &r.n);
    if (!r.rows)
        return verb_error(call, EXIT_USAGE, "--sweep: more than %d simulations", ROWS_MAX);
    (void)sigaction(SIGINT, &interrupt, NULL);
    runs_do(&r, o->jobs > 0 ? (int)o->jobs : cores > 0 ? (int)cores : 1, isatty(STDERR_FILENO) && !call->json);
    int code = report(call, &r), drawn = atomic_load(&stopped) ? EXIT_WELL : pictures_draw(call, o, &r);
    for (int i = 0; i < r.n; i++)
        free(r.rows[i].times);
    free(r.rows);
    return code ? code : drawn;
}

/* --compare, --fit and --split: the operands are a machine and measurements. */
static int measured_run(const struct call *call, struct simulate_options *o)
{
    const struct sigaction interrupt = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};

    if (o->sweep || o->svg || o->timeline)
        return verb_error(call, EXIT_USAGE, "%s: not with measurements",
                          o->sweep ? "--sweep"
                          : o->svg ? "--svg"
                                   : "--timeline");
    if (o->compare && (o->calibrate.fit || o->calibrate.split))
        return verb_error(call, EXIT_USAGE, "--compare: not with %s, which compares, too",
                          o->calibrate.fit ? "--fit" : "--split");
    if (call->noperands < 2)
        return verb_error(call, EXIT_USAGE, "needed are the names of a machine's description and of files with measured times");
    o->calibrate.seed = o->seed >= 0 ? o->seed : 1;
    o->calibrate.jobs = o->jobs;
    (void)sigaction(SIGINT, &interrupt, NULL);
    return calibrate(call, &o->calibrate, &stopped);
}

int verb_simulate(struct call *call)
{
    struct simulate_options o = {.seed = -1};
    struct description d = {.noperators = 0};
    struct sweep sweep = {.nnodes = 0};
    struct error e = {0};
    const struct arg args[] = {
        {"sweep", 0, ARG_TEXT, &o.sweep, 0, 0, NULL, "KEY=V,V...",
         "all combinations of these: nodes, schedule, route, slice_rows, slice_cols; several keys with blanks between them"},
        {"jobs", 0, ARG_INT, &o.jobs, 1, 256, NULL, "N", "simulations at a time [one for each core]"},
        {"seed", 0, ARG_INT, &o.seed, 0, INT32_MAX, NULL, "N", "of random numbers [the description's, or 1]"},
        {"svg", 0, ARG_TEXT, &o.svg, 0, 0, NULL, "FILE", "draw time against ranks"},
        {"timeline", 0, ARG_TEXT, &o.timeline, 0, 0, NULL, "FILE",
         "draw what one rank and its adapter do, in the last simulation"},
        {"rank", 0, ARG_INT, &o.rank, 0, SIM_MAX_RANKS - 1, NULL, "R", "which rank [0]"},
        {"compare", 0, ARG_FLAG, &o.compare, 0, 0, NULL, NULL, "how far simulated times are from those in MEASURED"},
        {"fit", 0, ARG_TEXT, &o.calibrate.fit, 0, 0, NULL, "FITTED",
         "fit MACHINE's rates and times to MEASURED, and write it to the file FITTED"},
        {"hold", 0, ARG_TEXT, &o.calibrate.hold, 0, 0, NULL, "KEY,KEY...", "do not fit these, such as fabric.bandwidth"},
        {"split", 0, ARG_FLAG, &o.calibrate.split, 0, 0, NULL, NULL,
         "fit to a half of the shapes, which --seed chooses, and compare with the others"},
    };

    if (!args_parse(call, args, sizeof(args) / sizeof(args[0]), OPERANDS_MAX))
        return call->exit;
    if (o.compare || o.calibrate.fit || o.calibrate.split)
        return measured_run(call, &o);
    if (o.calibrate.hold)
        return verb_error(call, EXIT_USAGE, "--hold: only with --fit or --split");
    if (call->noperands != 1)
        return verb_error(call, EXIT_USAGE, "needed is the name of a description's file");
    char *text = strdup(o.sweep ? o.sweep : "");
    int code = text ? sweep_parse(call, text, &sweep) : verb_error(call, EXIT_UNWELL, "out of memory");
    free(text);
    if (!code && description_read(call->operands[0], &d, &e))
        return verb_error(call, EXIT_UNWELL, "%s", e.text);
    memory_keep();
    if (!code)
        code = described_run(call, &o, &d, &sweep);
    description_free(&d);
    return code;
}
