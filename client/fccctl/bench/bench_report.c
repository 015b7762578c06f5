/* SPDX-License-Identifier: MIT
 *
 * bench_report.c - prints a benchmark's times, as a table like nccl-tests' or as one line of JSON.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/fccctl/bench/bench.h"
#include "client/fccctl/field.h"

const struct bench_kind_row bench_kind_rows[BENCH_KINDS] = {
    [BENCH_FUSED] = {"fused", "fused_us", FCC_SCHEDULE_FUSED, true},
    [BENCH_SEQUENTIAL] = {"sequential", "sequential_us", FCC_SCHEDULE_SEQUENTIAL, true},
    [BENCH_COMPUTE] = {"compute only", "compute_us", FCC_SCHEDULE_COMPUTE_ONLY, false},
    [BENCH_COMM] = {"comm only", "comm_us", FCC_SCHEDULE_COMM_ONLY, false},
    [BENCH_AUTO] = {"auto", "auto_us", FCC_SCHEDULE_AUTO, true},
    [BENCH_FLAT] = {"flat", "flat_us", FCC_SCHEDULE_FUSED | FCC_SCHEDULE_FLAT, true},
    [BENCH_HIERARCHICAL] = {"hierarchical", "hierarchical_us", FCC_SCHEDULE_FUSED | FCC_SCHEDULE_HIERARCHICAL, true},
    [BENCH_COMM_FLAT] = {"comm, flat", "comm_flat_us", FCC_SCHEDULE_COMM_ONLY | FCC_SCHEDULE_FLAT, false},
    [BENCH_COMM_HIERARCHICAL] = {"comm, hier.", "comm_hierarchical_us", FCC_SCHEDULE_COMM_ONLY | FCC_SCHEDULE_HIERARCHICAL,
                                 false},
    [BENCH_ANY_ORDER] = {"any order", "any_order_us", FCC_SCHEDULE_FUSED | FCC_SCHEDULE_ANY_ORDER, true},
};

/* The times of one schedule, in microseconds. An iteration's time is that of its slowest rank. */
struct summary {
    bool measured;
    double min, p50, p99;
};

int64_t bench_wrong(const struct bench *b, enum bench_kind kind)
{
    int64_t wrong = 0;

    for (int r = 0; r < b->shape.nranks; r++)
        wrong += b->ranks[r].wrong[kind];
    return wrong;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The p-th percentile of sorted values. */
static double percentile(const double *sorted, int64_t n, double p)
{
    int64_t i = (int64_t)ceil(p / 100 * (double)n) - 1;
    return sorted[i < 0 ? 0 : i];
}

static void summarise(const struct bench *b, int kind, double *room, struct summary *out)
{
    for (int64_t i = 0; i < b->iters; i++) {
        room[i] = 0;
        for (int r = 0; r < b->shape.nranks; r++)
            room[i] = fmax(room[i], *bench_time(b, kind, i, r) * 1e6);
    }
    qsort(room, (size_t)b->iters, sizeof(*room), compare);
    *out = (struct summary){true, room[0], percentile(room, b->iters, 50), percentile(room, b->iters, 99)};
}

/* The bytes of the collective's message as nccl-tests counts them: all that a rank computes, or what all ranks gather. *bus: the factor from
 * algorithm bandwidth to bus bandwidth. */
static double message_bytes(const struct shape *s, double *bus)
{
    double n = s->nranks;
    int64_t rows, cols;

    computed_size(s, &rows, &cols);
    if (s->spec->exchange == EXCHANGE_GATHER) { /* A, which is gathered */
        rows = s->m * s->nranks;
        cols = s->k;
    }
    *bus = (s->spec->exchange == EXCHANGE_REDUCE && s->spec->out != VECTOR_OWN ? 2 : 1) * (n - 1) / n;
    if (s->spec->exchange == EXCHANGE_REDUCE ? s->spec->out == VECTOR_ROOT
                                             : s->spec->in == VECTOR_ROOT && s->spec->out == VECTOR_ALL)
        *bus = 1; /* reduce, broadcast */
    return (double)rows * (double)cols * (double)dtype_size(s->dtype);
}

/* sequential p50 / fused p50, and (compute + comm - fused) / min(compute, comm); NAN if not measured. */
static double speedup(const struct summary s[BENCH_KINDS])
{
    if (!s[BENCH_FUSED].measured || !s[BENCH_SEQUENTIAL].measured)
        return NAN;
    return s[BENCH_SEQUENTIAL].p50 / s[BENCH_FUSED].p50;
}

static double overlap(const struct summary s[BENCH_KINDS])
{
    double compute = s[BENCH_COMPUTE].p50, comm = s[BENCH_COMM].p50;

    if (!s[BENCH_FUSED].measured || !s[BENCH_COMPUTE].measured || !s[BENCH_COMM].measured)
        return NAN;
    return (compute + comm - s[BENCH_FUSED].p50) / fmin(compute, comm);
}

/* The nodes' addresses, each with its ranks. */
static struct json_object *placement_json(const struct bench *b)
{
    struct json_object *nodes = json_object_new_array();

    for (int i = 0; i < b->nodes; i++) {
        struct json_object *ranks = json_object_new_array();
        for (int r = 0; r < b->shape.nranks; r++) {
            if (bench_node(b, r) == i)
                (void)json_object_array_add(ranks, json_int(r));
        }
        (void)json_object_array_add(nodes, JSON_OBJECT({"address", json_text(b->addresses[i])}, {"ranks", ranks}));
    }
    return nodes;
}

static void report_json(const struct bench *b, const struct summary s[BENCH_KINDS])
{
    struct json_object *o = json_object_new_object();
    int64_t wrong = 0;

    JSON_ADD(o, {"operator", json_text(op_name(b->shape.op))}, {"device", json_text(b->device)},
             {"dtype", json_text(dtype_name(b->shape.dtype))}, {"ranks", json_int(b->shape.nranks)},
             {"nodes", json_int(b->nodes)});
    if (b->nodes > 1)
        JSON_ADD(o, {"placement", placement_json(b)});
    JSON_ADD(o, {"shape", shape_json(&b->shape)}, {"iters", json_int(b->iters)}, {"stream", json_int(b->stream)},
             {"group", json_object_new_boolean(b->group)}, {"prepared", json_object_new_boolean(b->prepared)});
    for (int kind = 0; kind < BENCH_KINDS; kind++) {
        const struct summary *m = &s[kind];
        if (!m->measured)
            continue;
        JSON_ADD(o, {bench_kind_rows[kind].json, JSON_OBJECT({"min", json_number(m->min, 3)}, {"p50", json_number(m->p50, 3)},
                                                             {"p99", json_number(m->p99, 3)})});
    }
    if (!isnan(speedup(s)))
        JSON_ADD(o, {"speedup", json_number(speedup(s), 4)});
    if (!isnan(overlap(s)))
        JSON_ADD(o, {"overlap", json_number(overlap(s), 4)});
    for (int i = 0; i < b->nkinds; i++)
        wrong += bench_wrong(b, b->kinds[i]);
    JSON_ADD(o, {"wrong", b->check ? json_int(wrong) : NULL});
    json_print(o, false);
    (void)json_object_put(o);
}

static void row_print(const struct bench *b, enum bench_kind kind, const struct summary *s)
{
    double bus, bytes = message_bytes(&b->shape, &bus), algbw = bytes / s->p50 / 1e3;
    char checked[24] = "-";

    printf("%12.0f  %5s  %5d  %-12s  %9.1f  %9.1f  %9.1f", bytes, dtype_name(b->shape.dtype), b->shape.nranks,
           bench_kind_rows[kind].text, s->min, s->p50, s->p99);
    if (kind == BENCH_COMPUTE || bytes == 0)
        printf("  %7s  %7s", "-", "-");
    else
        printf("  %7.3f  %7.3f", algbw, algbw * bus);
    if (b->check && bench_kind_rows[kind].has_result)
        (void)snprintf(checked, sizeof(checked), "%" PRId64, bench_wrong(b, kind));
    printf("  %6s\n", checked);
}

static void report_table(const struct bench *b, const struct summary s[BENCH_KINDS])
{
    const char *manner = b->group ? ", as a group," : "";

    if (b->prepared)
        manner = ", as runs of one prepared operator,";
    printf("# fccctl bench %s%s%s\n", b->shape.spec->name, b->shape.spec->compute ? "  " : "", shape_text(&b->shape).text);
    printf("# device %s, %d rank%s on %d node%s, %" PRId64 " iterations after %" PRId64
           " to warm up; time of the slowest rank, bandwidth at p50\n",
           b->device, b->shape.nranks, b->shape.nranks > 1 ? "s" : "", b->nodes, b->nodes > 1 ? "s" : "", b->iters, b->warmup);
    for (int r = 0, last; b->nodes > 1 && r < b->shape.nranks; r = last + 1) {
        for (last = r; last + 1 < b->shape.nranks && bench_node(b, last + 1) == bench_node(b, r);)
            last++;
        printf("# node %s: rank", b->addresses[bench_node(b, r)]);
        printf(last > r ? "s %d to %d\n" : " %d\n", r, last);
    }
    if (b->stream)
        printf("# each iteration enqueues %" PRId64 " on a stream%s and waits for them; times are per operator\n", b->stream,
               manner);
    printf("#\n");
    printf("#%11s  %5s  %5s  %-12s  %9s  %9s  %9s  %7s  %7s  %6s\n", "size", "type", "ranks", "schedule", "min", "p50", "p99",
           "algbw", "busbw", "#wrong");
    printf("#%11s  %5s  %5s  %-12s  %9s  %9s  %9s  %7s  %7s\n", "(B)", "", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)");
    for (int i = 0; i < b->nkinds; i++)
        row_print(b, b->kinds[i], &s[b->kinds[i]]);
    if (!isnan(speedup(s)))
        printf("# speed-up %.2f (sequential / fused)", speedup(s));
    if (!isnan(overlap(s)))
        printf(", overlap %.2f ((compute + comm - fused) / min(compute, comm))", overlap(s));
    if (!isnan(speedup(s)))
        printf("\n");
    if (s[BENCH_FLAT].measured)
        printf("# flat / hierarchical %.2f, comm only %.2f\n", s[BENCH_FLAT].p50 / s[BENCH_HIERARCHICAL].p50,
               s[BENCH_COMM_FLAT].p50 / s[BENCH_COMM_HIERARCHICAL].p50);
}

int bench_report(const struct bench *b)
{
    struct summary s[BENCH_KINDS] = {0};
    double *room = calloc((size_t)b->iters, sizeof(*room));

    if (!room)
        return -ENOMEM;
    for (int i = 0; i < b->nkinds; i++)
        summarise(b, i, room, &s[b->kinds[i]]);
    free(room);
    if (b->json)
        report_json(b, s);
    else
        report_table(b, s);
    return 0;
}
