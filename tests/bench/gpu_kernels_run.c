/* SPDX-License-Identifier: MIT
 *
 * gpu_kernels_run.c - calls, and what they took.
 *
 * One thread launches on all GPUs, one after the other; a call begins when the one before has ended on all of them. Host memory
 * that the GPUs see says when that is. With a gate, each GPU's stream first waits for a word there, as it waits for a client's
 * stream in use, and the word is set when all launches are enqueued.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/worker/device/gpu/call.h"
#include "tests/bench/gpu_kernels.h"

enum {
    CALL_LIMIT_S = 10,
    ABORT_LIMIT_S = 3,
    TRACE_BURST = 3, /* calls of which the last one is traced: a GPU that is looked at is not busy */
    WORKGROUPS_MOST = 1024,
    LOOK_SPINS = 1 << 16,
    KINDS = SLICE_WAIT + 1,
};

/* Rates that floors are taken from: bytes and operations per second of one GPU. Matrix units have no f32. */
static const double memory_rate = 4.3e12, link_rate = 367e9, matrix_rate = 660e12, f32_rate = 60e12;

static double now_us(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- one call ---- */

/* What the worker gives a launch: daemon/worker/device/gpu/device.c's part_fill() and part_start(). */
static int gpu_start(struct prepared *p, const struct op_args *args, int gpu, struct error *e)
{
    struct gpu_waits waits = {.words = {bench.address + offsetof(struct shared, gate)},
                              .values = {(uint32_t)bench.epoch},
                              .count = p->options->gated,
                              .before = p->options->gated};
    struct gpu_factor_scales scales[GPU_MAX_RUNS];
    struct gpu_call call = {
        .epoch = bench.epoch,
        .stamp = (uint32_t)bench.epoch,
        .slots_at = bench.epoch % 2 * p->slots_bytes,
        .end.done = bench.address + offsetof(struct shared, done) + (uint64_t)gpu * sizeof(uint64_t),
    };

    for (int i = 0; i < p->nlocal[gpu]; i++)
        call.in[i].failure =
            bench.address + offsetof(struct shared, failures) + (uint64_t)p->local[gpu][i] * sizeof(struct gpu_failure);
    int status =
        gpu_call_fill(bench.plugin, p->launches[gpu], p->problem, args, p->local[gpu], p->nlocal[gpu], scales, &call, e);
    if (status)
        return status;
    return bench.plugin->launch_start(p->launches[gpu], &call, p->staging, p->slots, &waits, 0, e);
}

/* The first GPU that has not ended after so many seconds, or whose context is lost; -1 if all have. */
static int done_await(int limit_s, struct error *e)
{
    double until = now_us() + limit_s * 1e6;

    for (int g = 0; g < bench.ngpus; g++) {
        const _Atomic uint64_t *done = &bench.shared->done[g];
        for (uint64_t spins = 1; !gpu_done_reached(atomic_load_explicit(done, memory_order_acquire), bench.epoch); spins++) {
            if (spins % LOOK_SPINS)
                continue;
            if (bench.plugin->health(g, e) || now_us() > until)
                return g;
        }
    }
    return -1;
}

static void gate_open(void)
{
    atomic_store_explicit(&bench.shared->gate, (uint32_t)bench.epoch, memory_order_release);
}

/* The kernels are told to leave. If one does not, nothing of this process can be freed: it ends at once. */
static int call_abort(const struct prepared *p, struct error *e)
{
    struct error ignored = {0};

    gate_open();
    for (int r = 0; r < bench.nranks; r++) {
        const struct rank_memory *m = &bench.ranks[r];
        (void)bench.plugin->word_store(m->gpu, m->flags.address + GPU_FLAGS * sizeof(uint64_t), bench.epoch, &ignored);
    }
    if (done_await(ABORT_LIMIT_S, &ignored) < 0)
        return e->status;
    (void)fflush(stdout);
    (void)fprintf(stderr, "gpu_kernels: %s: %s; its kernels do not leave either\n", p->row->text, e->text);
    _Exit(EXIT_FAILURE);
}

/* Run it on inputs `set` and wait for the end. *us: from before the launches, or from the gate's opening. */
static int call_run(struct prepared *p, int set, double *us, struct error *e)
{
    const struct op_args *args = &p->args[set * bench.nranks];
    int status = 0;

    bench.epoch++;
    memset(bench.shared->failures, 0, sizeof(bench.shared->failures));
    double begin = now_us();
    for (int g = 0; g < bench.ngpus && status == 0; g++) {
        status = gpu_start(p, args, g, e);
        if (status)
            for (int late = g; late < bench.ngpus; late++) /* these have nothing to end */
                atomic_store_explicit(&bench.shared->done[late], gpu_done_make((uint32_t)bench.epoch, 0), memory_order_release);
    }
    if (p->options->gated)
        begin = now_us();
    gate_open();
    if (status)
        return call_abort(p, e);
    int gpu = done_await(CALL_LIMIT_S, e);
    *us = now_us() - begin;
    if (gpu >= 0) {
        if (e->status == 0)
            (void)error_set(e, -ETIMEDOUT, "GPU %d does not end", gpu);
        return call_abort(p, e);
    }
    for (int r = 0; r < bench.nranks && status == 0; r++)
        status = gpu_failure_explain(&bench.shared->failures[r], e);
    return status;
}

/* ---- figures ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct quartiles quartiles_of(double *samples, int n)
{
    if (n == 0)
        return (struct quartiles){0};
    qsort(samples, (size_t)n, sizeof(samples[0]), by_value);
    return (struct quartiles){.n = n,
                              .low = samples[(n - 1) / 4],
                              .median = (samples[(n - 1) / 2] + samples[n / 2]) / 2,
                              .high = samples[n - 1 - (n - 1) / 4]};
}

/* Samples of everything, [samples] each. */
struct samples {
    double *memory;
    double *host, *trace, *skew, *idle;
    double *span[GPU_MAX_GPUS], *ends[KINDS];
    int nhost, ntrace, nends[KINDS];
};

static bool samples_make(struct samples *s, int samples)
{
    size_t n = (size_t)samples;
    double *at = calloc(n * (4 + GPU_MAX_GPUS + KINDS), sizeof(at[0]));

    if (!at)
        return false;
    *s = (struct samples){.memory = at, .host = at, .trace = at + n, .skew = at + 2 * n, .idle = at + 3 * n};
    at += 4 * n;
    for (int g = 0; g < GPU_MAX_GPUS; g++, at += n)
        s->span[g] = at;
    for (int k = 0; k < KINDS; k++, at += n)
        s->ends[k] = at;
    return true;
}

/* The GPUs' clocks count ns only on NVIDIA; elsewhere the trace tells. */
static struct quartiles slowest_span(const struct samples *s, int *gpu)
{
    struct quartiles worst = {0};

    for (int g = 0; g < bench.ngpus && strcmp(bench.plugin->kind, "cuda") == 0; g++) {
        struct quartiles q = quartiles_of(s->span[g], s->nhost);
        if (q.median > worst.median) {
            worst = q;
            *gpu = g;
        }
    }
    return worst;
}

/* The longest of each rank's bytes and operations at these rates. */
static void floor_find(const struct row *s, struct result *out)
{
    double size = (double)dtype_size(s->dtype), m = (double)s->m, n = (double)s->n, k = (double)s->k, memory = 0, flops = 0;
    double peers = (double)(bench.nranks - 1) / bench.nranks, sent = 0;
    bool computes = s->kind != FCC_SCHEDULE_COMM_ONLY, sends = s->kind != FCC_SCHEDULE_COMPUTE_ONLY;

    if (s->op == FCC_OP_GEMV_ALL_REDUCE) {
        memory = n * k * size;
        sent = m * n * (4 + size) * peers;
    } else if (s->op == FCC_OP_GEMM_ALL_TO_ALL) {
        memory = (m * k + k * n + m * n) * size;
        flops = 2 * m * n * k;
        sent = m * n * size * peers;
    } else if (s->op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        double results = (double)(s->tables * s->batch * s->dim) * size;
        memory = s->zipf > 0 ? results : results * (double)s->ids; /* frequent rows stay in the cache */
        sent = results * peers;
    }
    const struct {
        const char *by;
        double us;
    } terms[] = {{"memory", computes ? memory / memory_rate * 1e6 : 0},
                 {"matrix", computes ? flops / (s->dtype == FCC_F32 ? f32_rate : matrix_rate) * 1e6 : 0},
                 {"link", sends ? sent / link_rate * 1e6 : 0}};
    out->floor_by = "";
    for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++) {
        if (terms[i].us > out->floor) {
            out->floor = terms[i].us;
            out->floor_by = terms[i].by;
        }
    }
}

/* ---- many calls ---- */

static int calls_time(struct prepared *p, struct samples *s, struct error *e)
{
    int status = 0;

    for (int i = -p->options->warmup; i < p->options->samples && status == 0; i++) {
        double us = 0;
        status = call_run(p, (i + p->options->warmup) % p->nsets, &us, e);
        if (status || i < 0)
            continue;
        for (int g = 0; g < bench.ngpus; g++)
            s->span[g][i] = (double)gpu_done_ticks(atomic_load_explicit(&bench.shared->done[g], memory_order_relaxed)) / 1e3;
        s->host[i] = us;
        s->nhost = i + 1;
    }
    return status;
}

/* The last call's slices, of all ranks. */
struct trace {
    uint64_t first, last;                             /* ns; 0: no slice was seen */
    uint64_t gpu_first[GPU_MAX_GPUS];                 /* the first start on each GPU */
    uint64_t ends[KINDS];                             /* the last end of each kind */
    uint64_t computed[GPU_MAX_GPUS][WORKGROUPS_MOST]; /* a workgroup's last computed slice's end; 0: it had none */
};

static void computed_note(struct trace *t, int gpu, enum slice_kind kind, const struct slice_time *time)
{
    uint64_t *end = &t->computed[gpu][time->workgroup % WORKGROUPS_MOST];

    if ((kind == SLICE_COMPUTE || kind == SLICE_COMPUTE_PUT) && time->end_ns > *end)
        *end = time->end_ns;
}

/* How long a GPU's workgroups have had nothing to compute before its last one ended, on average, in ns. */
static double idle_find(const uint64_t computed[WORKGROUPS_MOST])
{
    uint64_t last = 0;
    double sum = 0;
    int n = 0;

    for (int w = 0; w < WORKGROUPS_MOST; w++)
        last = computed[w] > last ? computed[w] : last;
    for (int w = 0; w < WORKGROUPS_MOST; w++) {
        sum += computed[w] ? (double)(last - computed[w]) : 0;
        n += computed[w] != 0;
    }
    return n ? sum / n : 0;
}

static void trace_add(struct trace *t, const struct plan *plan, const struct slice_time *times, int gpu)
{
    for (uint32_t i = 0; i < plan->nslices; i++) {
        uint64_t start = times[i].start_ns, end = times[i].end_ns, *kind = &t->ends[plan->slices[i].kind % KINDS];
        if (!start)
            continue;
        if (!t->gpu_first[gpu] || start < t->gpu_first[gpu])
            t->gpu_first[gpu] = start;
        t->first = !t->first || start < t->first ? start : t->first;
        t->last = end > t->last ? end : t->last;
        *kind = end > *kind ? end : *kind;
        computed_note(t, gpu, plan->slices[i].kind, &times[i]);
    }
}

static int trace_fetch(const struct prepared *p, struct trace *t, struct error *e)
{
    int status = 0;

    *t = (struct trace){0};
    for (int g = 0; g < bench.ngpus && status == 0; g++) {
        for (int i = 0; i < p->nlocal[g] && status == 0; i++) {
            const struct plan *plan = p->plans[p->local[g][i]];
            struct slice_time *times = calloc(plan->nslices, sizeof(times[0]));
            if (!times)
                return error_set(e, -ENOMEM, "no memory for the times of %u slices", plan->nslices);
            status = bench.plugin->launch_times(p->launches[g], i, times, e);
            if (status == 0)
                trace_add(t, plan, times, g);
            free(times);
        }
    }
    return status;
}

static void trace_note(const struct trace *t, struct samples *s)
{
    int n = s->ntrace;
    uint64_t latest = 0;
    double idle = 0;

    if (!t->first)
        return;
    for (int g = 0; g < bench.ngpus; g++) {
        double its = idle_find(t->computed[g]);
        latest = t->gpu_first[g] > latest ? t->gpu_first[g] : latest;
        idle = its > idle ? its : idle;
    }
    s->idle[n] = idle / 1e3;
    s->trace[n] = (double)(t->last - t->first) / 1e3;
    s->skew[n] = (double)(latest - t->first) / 1e3;
    for (int k = 0; k < KINDS; k++)
        if (t->ends[k])
            s->ends[k][s->nends[k]++] = (double)(t->ends[k] - t->first) / 1e3;
    s->ntrace = n + 1;
}

static int calls_trace(struct prepared *p, struct samples *s, struct error *e)
{
    int status = 0;

    for (int i = 0; i < p->options->samples && status == 0; i++) {
        struct trace t;
        double us = 0;
        for (int k = 0; k < TRACE_BURST && status == 0; k++)
            status = call_run(p, (i * TRACE_BURST + k) % p->nsets, &us, e);
        if (status == 0)
            status = trace_fetch(p, &t, e);
        if (status == 0)
            trace_note(&t, s);
    }
    return status;
}

/* ---- checking ---- */

/* Rank's result after a call on inputs `set`. *first is rank 0's, for the caller to free. */
static int rank_check(const struct prepared *p, int set, int rank, void **first, struct result *out, struct error *e)
{
    const struct row *row = p->row;
    int64_t count = result_elements(row, rank), wrong;
    size_t bytes = (size_t)count * dtype_size(row->dtype);
    char what[sizeof(out->what_is_wrong)] = "";
    void *result = malloc(bytes + 1);

    if (!result)
        return error_set(e, -ENOMEM, "no memory for %zu bytes of results", bytes);
    int status = bench.plugin->memory_copy(result, bench.ranks[rank].gpu, bench.ranks[rank].out.address, bytes, e);
    if (status) {
        free(result);
        return status;
    }
    wrong =
        result_check(row, &p->sets[set], bench.nranks, rank, result, count, p->options->seed + bench.epoch, what, sizeof(what));
    if (wrong == 0 && row->op == FCC_OP_GEMV_ALL_REDUCE && *first && memcmp(*first, result, bytes) != 0) {
        wrong = 1;
        (void)snprintf(what, sizeof(what), "rank %d's result has other bits than rank 0's", rank);
    }
    if (wrong && !out->what_is_wrong[0])
        memcpy(out->what_is_wrong, what, sizeof(what));
    out->wrong += wrong;
    if (rank == 0)
        *first = result;
    else
        free(result);
    return 0;
}

/* One call on inputs `set` with poisoned results, which are then looked at. */
static int call_check(struct prepared *p, int set, struct result *out, struct error *e)
{
    void *first = NULL;
    double us = 0;
    int status = 0;

    for (int r = 0; r < bench.nranks && status == 0; r++)
        status = memory_fill(bench.ranks[r].gpu, bench.ranks[r].out.address,
                             (uint64_t)result_elements(p->row, r) * dtype_size(p->row->dtype), RESULT_POISON, e);
    if (status == 0)
        status = call_run(p, set, &us, e);
    for (int r = 0; r < bench.nranks && status == 0; r++)
        status = rank_check(p, set, r, &first, out, e);
    free(first);
    return status;
}

/* ---- a row ---- */

static void plan_describe(const struct prepared *p, int slowest, struct result *out)
{
    const struct plan *plan = p->plans[0];

    (void)snprintf(out->plan, sizeof(out->plan),
                   "%d input sets; rank 0: %u slices of %u x %u, %u groups, %u flags, %" PRIu64
                   " bytes of staging; %u workgroups; "
                   "GPU %d took longest",
                   p->nsets, plan->nslices, plan->schedule.slice_rows, plan->schedule.slice_cols, plan->ngroups, plan->nflags,
                   plan->staging_bytes, bench.plugin->launch_workgroups(p->launches[0]), slowest);
}

int row_run(const struct row *row, const struct options *o, struct result *out, struct error *e)
{
    struct prepared p = {.row = row, .options = o};
    struct samples s = {0};
    int slowest = 0;
    bool checked = row->op != FCC_OP_NOOP && row->kind <= FCC_SCHEDULE_SEQUENTIAL;
    int status;

    *out = (struct result){.wrong = checked ? 0 : -1};
    if (!samples_make(&s, o->samples))
        return error_set(e, -ENOMEM, "no memory for %d samples", o->samples);
    status = prepared_make(&p, e);
    if (status == 0 && checked)
        status = call_check(&p, 0, out, e);
    if (status == 0)
        status = calls_time(&p, &s, e);
    if (status == 0)
        status = calls_trace(&p, &s, e);
    if (status == 0 && checked)
        status = call_check(&p, p.nsets - 1, out, e);
    if (status == 0) {
        out->span = slowest_span(&s, &slowest);
        out->host = quartiles_of(s.host, s.nhost);
        out->trace = quartiles_of(s.trace, s.ntrace);
        out->skew = quartiles_of(s.skew, s.ntrace);
        out->idle = quartiles_of(s.idle, s.ntrace);
        for (int k = 0; k < KINDS; k++)
            out->ends[k] = quartiles_of(s.ends[k], s.nends[k]);
        floor_find(row, out);
        plan_describe(&p, slowest, out);
    }
    prepared_free(&p);
    free(s.memory);
    return status;
}
