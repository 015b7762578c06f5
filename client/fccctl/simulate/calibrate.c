/* SPDX-License-Identifier: MIT
 *
 * calibrate.c - what `fccctl simulate --compare` and `--fit` do: measured times beside simulated ones, and a machine's description fitted to them.
 *
 * Each measurement is simulated by itself, on the described machine with as many nodes and ranks as it was measured on. Threads take such simulations one
 * by one; what comes out does not depend on their number or order.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/fccctl/file_write.h"
#include "client/fccctl/simulate/fit.h"
#include "client/fccctl/simulate/reading.h"

struct calibration {
    const struct call *call;
    const struct calibrate_options *o;
    const atomic_bool *stop;
    struct json_object *whole, *machine; /* the file, and the machine's part of it */
    struct sim_machine m;
    struct measurements all;
    int p, parameters[PARAMETERS_MAX]; /* numbers of those that the description has */
    struct fit_parameter q[PARAMETERS_MAX];
    bool *other; /* [all.n]: of the half that is not fitted to */
    double *now; /* [all.n]: simulated seconds */
    int *fitted; /* numbers of those that are fitted to */
    int nfitted;
    struct error e;
};

/* ---- simulating ---- */

struct batch {
    struct calibration *c;
    const int *rows; /* NULL: all */
    const double *points;
    double *out;
    int n, tasks;
    _Atomic int next;
    pthread_mutex_t lock;
    int failed; /* the first task that failed; tasks: none did */
    struct error e;
};

static void machine_set(const struct calibration *c, const double *point, struct sim_machine *m)
{
    for (int j = 0; j < c->p; j++)
        *parameter_at(m, c->parameters[j]) = point[j];
}

static void row_simulate(struct batch *b, int task)
{
    const struct calibration *c = b->c;
    const int row = b->rows ? b->rows[task % b->n] : task % b->n;
    struct measured *w = &c->all.rows[row];
    struct sim_machine m = c->m;
    struct outcome out = {.variant = {.nodes = w->nodes, .route = -1, .slice_rows = -1, .slice_cols = -1}};

    machine_set(c, b->points + task / b->n * c->p, &m);
    struct description d = {.machine = measured_machine(&m, w), .operators = &w->entry, .noperators = 1};
    variant_run(&d, (uint64_t)c->o->seed, -1, c->stop, &out, NULL);
    free(out.times);
    b->out[task] = out.seconds;
    if (out.done && out.seconds > 0)
        return;
    (void)pthread_mutex_lock(&b->lock);
    if (task < b->failed) {
        b->failed = task;
        if (out.done)
            (void)error_set(&b->e, -EINVAL,
                            "%s:%d: as described it takes no time: device.hand_over, or what it needs, is missing", w->file,
                            w->line);
        else
            (void)error_set(&b->e, out.error.status, "%s:%d: %s", w->file, w->line, out.error.text);
    }
    (void)pthread_mutex_unlock(&b->lock);
}

static void *batch_take(void *argument)
{
    struct batch *b = argument;

    for (int i; !atomic_load(b->c->stop) && (i = atomic_fetch_add(&b->next, 1)) < b->tasks;)
        row_simulate(b, i);
    return NULL;
}

/* Simulates n rows at each of `many` points. 0, or what the first one failed with, which c->e says. */
static int batch_run(struct calibration *c, const int *rows, int n, const double *points, int many, double *out)
{
    struct batch b = {.c = c, .rows = rows, .points = points, .out = out, .n = n, .tasks = n * many, .failed = n * many};
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const int jobs = c->o->jobs > 0 ? (int)c->o->jobs : cores > 0 ? (int)cores : 1;
    pthread_t threads[256];
    int started = 0;

    (void)pthread_mutex_init(&b.lock, NULL);
    while (started < jobs - 1 && started < 256 && !pthread_create(&threads[started], NULL, batch_take, &b))
        started++;
    (void)batch_take(&b);
    for (int i = 0; i < started; i++)
        (void)pthread_join(threads[i], NULL);
    (void)pthread_mutex_destroy(&b.lock);
    if (atomic_load(c->stop))
        return error_set(&c->e, -ECANCELED, "stopped");
    if (b.e.status)
        c->e = b.e;
    return b.e.status;
}

static int fit_simulate(void *context, const double *points, int many, double *out)
{
    struct calibration *c = context;

    return batch_run(c, c->fitted, c->nfitted, points, many, out);
}

/* ---- what is fitted to what ---- */

static bool is_same_shape(const struct measured *a, const struct measured *b)
{
    if (a->entry.number != b->entry.number || a->entry.dtype != b->entry.dtype || a->ranks != b->ranks ||
        a->nodes != b->nodes || a->entry.nsizes != b->entry.nsizes)
        return false;
    for (int i = 0; i < a->entry.nsizes; i++)
        if (a->entry.sizes[i].name != b->entry.sizes[i].name || a->entry.sizes[i].value != b->entry.sizes[i].value)
            return false;
    return true;
}

static uint64_t random_next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Of each operator's shapes on so many nodes every other one, in a random order, is not fitted to. All schedules of a shape are of the same half. */
static void halves_draw(struct calibration *c, int *shapes, int *list)
{
    const struct measured *rows = c->all.rows;
    uint64_t state = (uint64_t)c->o->seed;

    for (int i = 0; i < c->all.n; i++) { /* shapes[i]: the first row of the same shape */
        shapes[i] = 0;
        while (!is_same_shape(&rows[shapes[i]], &rows[i]))
            shapes[i]++;
    }
    for (int i = 0; i < c->all.n; i++) {
        int n = 0;
        bool is_first = true;
        for (int k = 0; k < c->all.n; k++) {
            if (rows[k].entry.number != rows[i].entry.number || rows[k].nodes != rows[i].nodes)
                continue;
            is_first &= k >= i;
            if (shapes[k] == k)
                list[n++] = k;
        }
        for (int k = n - 1; is_first && k > 0; k--) {
            const int other = (int)(random_next(&state) % (uint64_t)(k + 1)), kept = list[k];
            list[k] = list[other];
            list[other] = kept;
        }
        for (int k = 1; is_first && k < n; k += 2)
            c->other[list[k]] = true;
    }
    for (int i = 0; i < c->all.n; i++)
        c->other[i] = c->other[shapes[i]];
}

static int halves_make(struct calibration *c)
{
    const size_t n = (size_t)c->all.n;
    int *shapes = calloc(2 * n, sizeof(*shapes));

    c->other = calloc(n, sizeof(*c->other));
    c->now = calloc(n, sizeof(*c->now));
    c->fitted = calloc(n, sizeof(*c->fitted));
    if (shapes && c->other && c->now && c->fitted) {
        if (c->o->split)
            halves_draw(c, shapes, shapes + n);
        for (int i = 0; i < c->all.n; i++)
            if (!c->other[i])
                c->fitted[c->nfitted++] = i;
    } else {
        (void)error_set(&c->e, -ENOMEM, "no memory");
    }
    free(shapes);
    return c->e.status;
}

/* The parameters that the description has, and which of them --hold names. */
static int parameters_take(struct calibration *c)
{
    struct words hold = words("%s", c->o->hold ? c->o->hold : "");
    char *rest = hold.text, *name;

    for (int i = 0; parameter_name(i); i++) {
        const double value = *parameter_at(&c->m, i);
        if (!(value > 0))
            continue;
        c->q[c->p] = (struct fit_parameter){
            .value = value, .fitted = value, .reach = parameter_reach(i, value), .group = parameter_group(i)};
        c->parameters[c->p++] = i;
    }
    while (c->o->hold && (name = strsep(&rest, ","))) {
        struct words known = {""};
        int found = -1;
        for (int j = 0; j < c->p; j++) {
            words_add(&known, "%s%s", j ? ", " : "", parameter_name(c->parameters[j]));
            found = strcmp(parameter_name(c->parameters[j]), name) ? found : j;
        }
        if (found < 0)
            return verb_error(c->call, EXIT_USAGE, "--hold: \"%s\": the description has %s", name, known.text);
        c->q[found].hold = true;
    }
    return 0;
}

/* ---- the description ---- */

static int machine_read(struct calibration *c)
{
    const char *path = c->call->operands[0];
    const struct place at = {.key = "machine"};
    struct description d = {.noperators = 0};
    struct reading r = {.name = path, .d = &d, .e = &c->e};
    size_t length = 0;
    char *text = text_read(path, DESCRIPTION_BYTES, &length, &c->e);

    r.text = text;
    c->whole = text ? text_parse(&r, length, NULL) : NULL;
    struct json_object *named = object_member(c->whole, "machine");
    c->machine = named ? named : c->whole;
    if (json_object_is_type(named, json_type_string))
        (void)reading_refuse(&r, &at, "it is described in %s: that file is what is compared or fitted",
                             json_object_get_string(named));
    else if (c->whole)
        (void)machine_take(&r, named ? &at : NULL, c->machine);
    c->m = d.machine;
    free(text);
    return c->e.status;
}

static int machine_write(struct json_object *o, FILE *out)
{
    return fprintf(out, "%s\n",
                   json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY | JSON_C_TO_STRING_SPACED |
                                                         JSON_C_TO_STRING_NOSLASHESCAPE)) > 0
               ? 0
               : -EIO;
}

/* ---- printing ---- */

static int number_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct summary {
    int n;
    double median, worst; /* parts */
};

/* A time whose own rounds are farther apart says no more of a model than that. */
#define REPEATS 0.10

/* Of one half, or of all. repeating: only of times whose rounds are known to agree. */
static struct summary summarise(const struct calibration *c, bool other, bool repeating)
{
    struct summary s = {.n = 0};
    double *parts = calloc((size_t)c->all.n, sizeof(*parts));

    for (int i = 0; i < c->all.n && parts; i++)
        if (c->other[i] == other && (!repeating || (c->all.rows[i].spread >= 0 && c->all.rows[i].spread <= REPEATS)))
            parts[s.n++] = fabs(c->now[i] / c->all.rows[i].seconds - 1);
    if (s.n) {
        qsort(parts, (size_t)s.n, sizeof(*parts), number_compare);
        s.median = (parts[(s.n - 1) / 2] + parts[s.n / 2]) / 2;
        s.worst = parts[s.n - 1];
    }
    free(parts);
    return s;
}

static struct words state_text(const struct calibration *c, int j)
{
    const struct fit_parameter *q = &c->q[j];

    switch (q->state) {
    case FIT_FITTED:
        return words("+-%.0f %%", 100 * q->error);
    case FIT_UNSEEN:
        return words("%s: no time depends on it", q->fitted == q->value ? "held" : "out of sight");
    case FIT_SHADOWED:
        return words("held: shows only together with %s", parameter_name(c->parameters[q->shadow]));
    default:
        return words("held");
    }
}

static void parameters_print(const struct calibration *c, const struct sim_machine *before)
{
    struct table *table = table_new("PARAMETER|>DESCRIBED|>FITTED|CERTAINTY");
    struct sim_machine was = *before;

    for (int j = 0; j < c->p; j++) {
        const int i = c->parameters[j];
        table_cell(table, "%s", parameter_name(i));
        table_cell(table, "%s", parameter_text(c->machine, i, *parameter_at(&was, i)).text);
        table_cell(table, "%s", parameter_text(c->machine, i, c->q[j].fitted).text);
        table_cell(table, "%s", state_text(c, j).text);
    }
    table_end(table, "");
    printf("\n");
}

static void rows_print(const struct calibration *c)
{
    struct table *table =
        table_new(c->o->split ? "OPERATOR|DTYPE|SIZES|>NODES|>RANKS|SCHEDULE|HALF|>MEASURED|>SPREAD|>SIMULATED|>OFF"
                              : "OPERATOR|DTYPE|SIZES|>NODES|>RANKS|SCHEDULE|>MEASURED|>SPREAD|>SIMULATED|>OFF");

    for (int i = 0; i < c->all.n; i++) {
        const struct measured *w = &c->all.rows[i];
        table_cell(table, "%s", op_name(w->entry.number));
        table_cell(table, "%s", dtype_name(w->entry.dtype));
        table_cell(table, "%s", measured_sizes(w).text);
        table_cell(table, "%d", w->nodes);
        table_cell(table, "%d", w->ranks);
        table_cell(table, "%s", w->schedule);
        if (c->o->split)
            table_cell(table, "%s", c->other[i] ? "other" : "fitted");
        table_cell(table, "%s", format_ns(w->seconds * 1e9).text);
        table_cell(table, "%s", w->spread < 0 ? "" : words("%.0f %%", 100 * w->spread).text);
        table_cell(table, "%s", format_ns(c->now[i] * 1e9).text);
        table_cell(table, "%+.1f %%", 100 * (c->now[i] / w->seconds - 1));
    }
    table_end(table, "");
}

static void summary_print(const char *what, struct summary s)
{
    printf("%s %d times: off by %.1f %% at the median, %.1f %% at worst\n", what, s.n, 100 * s.median, 100 * s.worst);
}

static void repeating_print(struct summary s)
{
    if (s.n)
        printf("  of these, %d whose rounds are within %.0f %%: off by %.1f %% at the median, %.1f %% at worst\n", s.n,
               100 * REPEATS, 100 * s.median, 100 * s.worst);
}

static void print(const struct calibration *c, const struct sim_machine *before)
{

    if (c->o->fit || c->o->split)
        parameters_print(c, before);
    rows_print(c);
    printf("\n");
    if (c->o->split)
        printf("seed %lld chooses the halves\n", (long long)c->o->seed);
    summary_print(c->o->fit || c->o->split ? "fitted to" : "compared with", summarise(c, false, false));
    repeating_print(summarise(c, false, true));
    if (c->o->split) {
        summary_print("compared with other shapes'", summarise(c, true, false));
        repeating_print(summarise(c, true, true));
    }
    if (c->all.left_out)
        printf("left out are %d times of what is not simulated (auto, any order, what is no operator)\n", c->all.left_out);
}

static struct json_object *summary_json(const struct calibration *c, bool other)
{
    const struct summary s = summarise(c, other, false), repeating = summarise(c, other, true);

    return JSON_OBJECT(
        {"times", json_int(s.n)}, {"median", json_number(s.median, 4)}, {"worst", json_number(s.worst, 4)},
        {"repeating", repeating.n ? JSON_OBJECT({"times", json_int(repeating.n)}, {"median", json_number(repeating.median, 4)},
                                                {"worst", json_number(repeating.worst, 4)})
                                  : NULL});
}

static void print_json(const struct calibration *c, const struct sim_machine *before)
{
    static const char *const states[] = {"held", "fitted", "no time depends on it", "shows only together with another"};
    struct json_object *rows = json_object_new_array(), *parameters = json_object_new_array(), *o;
    struct sim_machine was = *before;

    for (int i = 0; i < c->all.n; i++) {
        const struct measured *w = &c->all.rows[i];
        struct json_object *sizes = json_object_new_object();
        for (int k = 0; k < w->entry.nsizes; k++)
            JSON_ADD(sizes, {w->entry.sizes[k].name, json_int(w->entry.sizes[k].value)});
        (void)json_object_array_add(rows, JSON_OBJECT({"file", json_text(w->file)}, {"line", json_int(w->line)},
                                                      {"operator", json_text(op_name(w->entry.number))},
                                                      {"dtype", json_text(dtype_name(w->entry.dtype))}, {"shape", sizes},
                                                      {"nodes", json_int(w->nodes)}, {"ranks", json_int(w->ranks)},
                                                      {"schedule", json_text(w->schedule)},
                                                      {"fitted", json_object_new_boolean(!c->other[i])},
                                                      {"measured_us", json_number(w->seconds * 1e6, 3)},
                                                      {"spread", w->spread < 0 ? NULL : json_number(w->spread, 3)},
                                                      {"simulated_us", json_number(c->now[i] * 1e6, 3)}));
    }
    for (int j = 0; j < c->p && (c->o->fit || c->o->split); j++) {
        const int i = c->parameters[j];
        (void)json_object_array_add(
            parameters,
            JSON_OBJECT(
                {"name", json_text(parameter_name(i))},
                {"described", json_text(parameter_text(c->machine, i, *parameter_at(&was, i)).text)},
                {"fitted", json_text(parameter_text(c->machine, i, c->q[j].fitted).text)},
                {"state", json_text(states[c->q[j].state])},
                {"error", c->q[j].state == FIT_FITTED && isfinite(c->q[j].error) ? json_number(c->q[j].error, 4) : NULL}));
    }
    o = JSON_OBJECT({"seed", json_int(c->o->seed)}, {"parameters", parameters}, {"rows", rows},
                    {c->o->fit || c->o->split ? "fitted" : "compared", summary_json(c, false)},
                    {"left_out", json_int(c->all.left_out)});
    if (c->o->split)
        JSON_ADD(o, {"compared", summary_json(c, true)});
    json_print(o, true);
    (void)json_object_put(o);
}

/* ---- all of it ---- */

static int fit_run(struct calibration *c)
{
    double *seconds = calloc(2 * (size_t)c->nfitted, sizeof(*seconds)), *spread = seconds ? seconds + c->nfitted : NULL;
    struct fit f = {.n = c->nfitted,
                    .p = c->p,
                    .seconds = seconds,
                    .spread = spread,
                    .q = c->q,
                    .simulate = fit_simulate,
                    .context = c,
                    .rounds = 0};
    int status = seconds ? 0 : error_set(&c->e, -ENOMEM, "no memory");

    for (int i = 0; i < c->nfitted && seconds; i++) {
        seconds[i] = c->all.rows[c->fitted[i]].seconds;
        spread[i] = c->all.rows[c->fitted[i]].spread;
    }
    status = status ? status : fit_do(&f);
    free(seconds);
    if (status == -ERANGE)
        return error_set(&c->e, -EINVAL,
                         "%d times for %d parameters that they depend on: needed are more times than parameters; measure more "
                         "shapes, or name parameters that are known otherwise with --hold",
                         f.n, f.rounds);
    if (status && !c->e.status)
        return error_set(&c->e, status, "the fit: %s", strerror(-status));
    return status;
}

static int calibration_run(struct calibration *c)
{
    const bool fits = c->o->fit || c->o->split;
    double point[PARAMETERS_MAX];

    if (halves_make(c) || (fits && fit_run(c)))
        return c->e.status;
    for (int j = 0; j < c->p; j++) {
        c->q[j].fitted = fits ? parameter_rounded(c->machine, c->parameters[j], c->q[j].fitted) : c->q[j].value;
        point[j] = c->q[j].fitted;
    }
    return batch_run(c, NULL, c->all.n, point, 1, c->now);
}

static int calibration_report(struct calibration *c)
{
    if (c->call->json)
        print_json(c, &c->m);
    else
        print(c, &c->m);
    if (!c->o->fit)
        return EXIT_WELL;
    for (int j = 0; j < c->p; j++)
        parameter_put(c->machine, c->parameters[j], c->q[j].fitted);
    if (file_write(c->o->fit, c->whole, machine_write, &c->e))
        return verb_error(c->call, EXIT_UNWELL, "%s", c->e.text);
    if (!c->call->json)
        printf("%s has what was fitted\n", c->o->fit);
    return EXIT_WELL;
}

int calibrate(const struct call *call, const struct calibrate_options *o, const atomic_bool *stop)
{
    struct calibration c = {.call = call, .o = o, .stop = stop};
    int code = machine_read(&c) ? verb_error(call, EXIT_UNWELL, "%s", c.e.text) : parameters_take(&c);

    for (int i = 1; i < call->noperands && !code; i++)
        if (measured_read(call->operands[i], &c.m, &c.all, &c.e))
            code = verb_error(call, EXIT_UNWELL, "%s", c.e.text);
    if (!code)
        code = calibration_run(&c) ? verb_error(call, EXIT_UNWELL, "%s", c.e.text) : calibration_report(&c);
    (void)json_object_put(c.whole);
    measurements_free(&c.all);
    free(c.m.fabric.cables);
    free(c.other);
    free(c.now);
    free(c.fitted);
    return code;
}
