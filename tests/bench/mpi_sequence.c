/* SPDX-License-Identifier: MIT
 *
 * mpi_sequence.c - mpirun -np R mpi_sequence OPERATOR [SHAPE] [--iters I] [--warmup W] [--check] [--json]
 *
 * For each iteration and variant: the ranks meet in a barrier, each takes the time of its computation and its call of MPI, and
 * the slowest rank's counts. Variants take turns, every other iteration backwards. See sequence.h.
 */
#include "tests/bench/sequence.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/field.h"

/* Where computing ends and where the iteration ends, in seconds from its start: [variant][iteration], of this rank or of the
 * slowest. */
struct times {
    double *computed, *ended;
};

struct summary {
    double min, p50, p99;
};

void sequence_fail(const struct sequence *s, const char *format, ...)
{
    va_list ap;

    (void)fprintf(stderr, "mpi_sequence: rank %d: ", s->rank);
    va_start(ap, format);
    (void)vfprintf(stderr, format, ap);
    va_end(ap);
    (void)fprintf(stderr, "\n");
    (void)MPI_Abort(MPI_COMM_WORLD, 1);
    abort(); /* MPI_Abort() does not say that it does not return */
}

static bool options_parse(struct call *call, struct sequence *s)
{
    struct bench *b = &s->bench;
    struct arg args[SHAPE_ARGS + 3];
    size_t n = shape_args(&b->shape, args);
    const struct arg own[] = {
        {"iters", 0, ARG_INT, &b->iters, 1, 1000000, NULL, "I", "iterations that are measured [20]"},
        {"warmup", 0, ARG_INT, &b->warmup, 0, 1000000, NULL, "W", "iterations before that [5]"},
        {"check", 0, ARG_FLAG, &b->check, 0, 0, NULL, NULL, "compare the results with a plain reference"},
    };

    b->iters = 20;
    b->warmup = 5;
    memcpy(args + n, own, sizeof(own));
    if (!args_parse(call, args, n + sizeof(own) / sizeof(own[0]), 1))
        return false;
    call->exit = shape_finish(&b->shape, call);
    if (!call->exit && b->shape.dtype != FCC_F32)
        call->exit = verb_error(call, EXIT_USAGE, "--dtype: allowed is f32: MPI adds no other");
    if (!call->exit && s->nranks > FCC_MAX_RANKS)
        call->exit = verb_error(call, EXIT_USAGE, "%d ranks: allowed are 1 to %d", s->nranks, FCC_MAX_RANKS);
    b->shape.nranks = s->nranks;
    b->json = call->json;
    if (b->shape.op == FCC_OP_NOOP)
        b->check = false;
    return call->exit == 0;
}

/* Runs the first or the second half of a variant. */
static void half_run(struct sequence *s, const struct variant *v, bool first)
{
    if (first == v->gathers)
        v->communicate(s);
    else if (v->compute)
        v->compute(s);
}

static void iterate(struct sequence *s, int64_t iter, struct times *times)
{
    for (int i = 0; i < s->nvariants; i++) {
        int which = iter & 1 ? s->nvariants - 1 - i : i;
        const struct variant *v = &s->variants[which];
        double start, middle, ended;
        if (v->compute)
            (void)MPI_Barrier(MPI_COMM_WORLD);
        start = MPI_Wtime();
        half_run(s, v, true);
        middle = MPI_Wtime();
        half_run(s, v, false);
        ended = MPI_Wtime();
        if (iter >= 0) {
            times->computed[which * s->bench.iters + iter] = v->gathers ? ended - middle : middle - start;
            times->ended[which * s->bench.iters + iter] = ended - start;
        }
    }
}

static double *times_alloc(const struct sequence *s)
{
    double *p = calloc((size_t)(s->nvariants * s->bench.iters), sizeof(*p));

    if (!p)
        sequence_fail(s, "no memory for the times");
    return p;
}

/* The slowest rank's, at rank 0. */
static double *times_slowest(const struct sequence *s, double *mine)
{
    double *slowest = times_alloc(s);

    (void)MPI_Reduce(mine, slowest, s->nvariants * (int)s->bench.iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    free(mine);
    return slowest;
}

/* Run each variant once more, onto poison, and compare. At rank 0: the wrong elements of all ranks. */
static int64_t check(struct sequence *s)
{
    double *want = result_want(&s->bench, s->rank);
    int64_t wrong = 0, total = 0;

    if (!want)
        sequence_fail(s, "--check: no memory for the reference");
    for (int i = 0; i < s->nvariants; i++) {
        memset(s->out, 0xff, s->out_elements * sizeof(float));
        half_run(s, &s->variants[i], true);
        half_run(s, &s->variants[i], false);
        wrong += result_wrong(&s->bench.shape, s->rank, want, s->out);
    }
    free(want);
    (void)MPI_Reduce(&wrong, &total, 1, MPI_INT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    return total;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The value that so much of the sorted ones do not exceed, in microseconds. */
static double percentile(const double *sorted, int64_t n, double share)
{
    int64_t i = (int64_t)ceil(share * (double)n) - 1;

    return sorted[i < 0 ? 0 : i] * 1e6;
}

/* Sorts the times. */
static struct summary summarise(double *seconds, int64_t n)
{
    qsort(seconds, (size_t)n, sizeof(*seconds), compare);
    return (struct summary){seconds[0] * 1e6, percentile(seconds, n, 0.5), percentile(seconds, n, 0.99)};
}

static struct json_object *summary_json(const struct summary *m)
{
    struct json_object *o = json_object_new_object();

    (void)json_object_object_add(o, "min", json_number(m->min, 3));
    (void)json_object_object_add(o, "p50", json_number(m->p50, 3));
    (void)json_object_object_add(o, "p99", json_number(m->p99, 3));
    return o;
}

static void report_json(const struct sequence *s, const struct summary *ended, const struct summary *computed, int best,
                        int64_t wrong)
{
    const struct shape *shape = &s->bench.shape;
    struct json_object *o = json_object_new_object(), *variants = json_object_new_object();
    char version[MPI_MAX_LIBRARY_VERSION_STRING], blas[512];
    int length;

    (void)MPI_Get_library_version(version, &length);
    (void)json_object_object_add(o, "operator", json_object_new_string(op_name(shape->op)));
    (void)json_object_object_add(o, "dtype", json_object_new_string(dtype_name(shape->dtype)));
    (void)json_object_object_add(o, "ranks", json_object_new_int(s->nranks));
    (void)json_object_object_add(o, "nodes", json_object_new_int(1));
    (void)json_object_object_add(o, "shape", shape_json(shape));
    (void)json_object_object_add(o, "iters", json_object_new_int64(s->bench.iters));
    (void)json_object_object_add(o, "mpi", json_object_new_string_len(version, (int)strcspn(version, ",\n")));
    (void)json_object_object_add(o, "blas", json_object_new_string(sequence_blas(blas, sizeof(blas))));
    (void)json_object_object_add(o, "variant", json_object_new_string(s->variants[best].name));
    (void)json_object_object_add(o, "sequence_us", summary_json(&ended[best]));
    (void)json_object_object_add(o, "compute_us", summary_json(&computed[best]));
    for (int i = 0; i < s->nvariants; i++)
        (void)json_object_object_add(variants, s->variants[i].name, summary_json(&ended[i]));
    (void)json_object_object_add(o, "variants_us", variants);
    (void)json_object_object_add(o, "wrong", s->bench.check ? json_object_new_int64(wrong) : NULL);
    json_print(o, false);
    (void)json_object_put(o);
}

static void report(const struct sequence *s, const struct times *times, int64_t wrong)
{
    struct summary ended[SEQUENCE_VARIANTS] = {{0}}, computed[SEQUENCE_VARIANTS] = {{0}};
    int best = 0;

    for (int i = 0; i < s->nvariants; i++) {
        ended[i] = summarise(times->ended + i * s->bench.iters, s->bench.iters);
        computed[i] = summarise(times->computed + i * s->bench.iters, s->bench.iters);
        if (ended[i].p50 < ended[best].p50)
            best = i;
    }
    if (s->bench.json) {
        report_json(s, ended, computed, best, wrong);
        return;
    }
    printf("%-32s  %9s  %9s  %9s  %12s\n", "us, slowest rank", "min", "p50", "p99", "compute p50");
    for (int i = 0; i < s->nvariants; i++)
        printf("%-32s  %9.1f  %9.1f  %9.1f  %12.1f\n", s->variants[i].name, ended[i].min, ended[i].p50, ended[i].p99,
               computed[i].p50);
    if (s->bench.check)
        printf("%lld wrong elements\n", (long long)wrong);
}

int main(int argc, char **argv)
{
    static const struct verb verb = {"mpi_sequence", NULL, "Measure an operator done in sequence with Open MPI",
                                     "OPERATOR [SHAPE] [--iters I] [--warmup W] [--check] [--json]"};
    static struct sequence s;
    static struct bench_rank progress[FCC_MAX_RANKS];
    struct call call = {.verb = &verb, .socket = ""};
    int64_t wrong = 0;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS)
        return 1;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &s.nranks);
    call.argc = argc;
    call.argv = argv;
    if (!options_parse(&call, &s)) {
        (void)MPI_Finalize();
        return call.exit;
    }
    s.bench.ranks = progress;
    sequence_setup(&s);
    struct times times = {.computed = times_alloc(&s), .ended = times_alloc(&s)};
    for (int64_t i = -s.bench.warmup; i < s.bench.iters; i++)
        iterate(&s, i, &times);
    times.computed = times_slowest(&s, times.computed);
    times.ended = times_slowest(&s, times.ended);
    if (s.bench.check)
        wrong = check(&s);
    if (s.rank == 0)
        report(&s, &times, wrong);
    (void)MPI_Finalize();
    return wrong ? 1 : 0;
}
