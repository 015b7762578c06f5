/* SPDX-License-Identifier: MIT
 *
 * records.c - each run that ranks launch by themselves, for the flight recorder: of what their kernels have noted in the memory of their GPUs
 * (kernels/plan/exchange/run_record.h), which the reading thread copies now and then (device/gpu/reader.h). What all ranks have noted of a run becomes one record,
 * which is written anew as long as a rank has not ended the run.
 *
 * When. While runs go on, at each look of the watch; otherwise more and more seldom, up to once a second, as collectives that do not wait tell the host nothing. What
 * does tell it of its begin and its end, an operator with control memory of its own or a run that waits for long, is looked at when that changes. Before the memory is freed
 * it is read once more.
 *
 * The ranks' programs can write into that memory. So a number counts if it belongs at its place and does not lead too far from the last one, operators
 * and times are checked, and what is made of them is shown and counted, and used for nothing else.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/bound/inside.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/device/gpu/reader.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/engine/flight.h"
#include "daemon/worker/engine/meter.h"
#include "kernels/gpu/bound.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/spec.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/session.h"

#define REST_LEAST_NS UINT64_C(40000000) /* between two looks that find nothing */
#define REST_MOST_NS UINT64_C(1000000000)

/* What the worker knows of an operator's runs. Those of rank r are records [r * kept, (r + 1) * kept) of `seen`; run n's is at n % kept. */
struct run_log {
    uint32_t kept;
    uint64_t at; /* where they lie in a rank's area */
    uint64_t since_ns;
    uint64_t newest[GPU_MAX_RANKS]; /* the newest run of each rank that was seen */
    uint64_t settled;               /* all up to this one have ended on all ranks, or are known no more */
    uint64_t counted;               /* rings: all of rank 0's up to this one that have ended are */
    uint64_t told;                  /* what the host had been told when the last read was asked for */
    uint64_t due_ns, rest_ns;
    bool asked, broken; /* broken: a read has failed, and there will be no more */
    struct gpu_read read;
    struct run_record *seen;
    struct flight_run *shown; /* [kept]: what the recorder has of run n, at n % kept */
};

int records_open(struct prepared *p, struct error *e)
{
    const int nranks = p->comm->nranks;
    struct run_log *log = nranks <= GPU_MAX_GPUS ? calloc(1, sizeof(*log)) : NULL;

    if (nranks > GPU_MAX_GPUS)
        return 0; /* their processes will refuse the plan (bound_check.h) */
    if (!log)
        return error_set(e, -ENOMEM, "prepare: out of memory");
    const bool rings = op_spec(p->op)->exchange == EXCHANGE_RINGS;
    log->kept = rings ? RUN_RECORDS_RINGS : RUN_RECORDS;
    log->at = rings ? GPU_PREPARED_SLOTS_AT + offsetof(struct rings_head, records) : GPU_RECORDS_AT;
    log->since_ns = clock_ns() - REST_LEAST_NS / 40;
    log->seen = calloc((size_t)nranks * log->kept, sizeof(log->seen[0]));
    log->shown = calloc(log->kept, sizeof(log->shown[0]));
    p->log = log;
    if (!log->seen || !log->shown) {
        records_free(p);
        return error_set(e, -ENOMEM, "prepare: out of memory");
    }
    log->read.n = (unsigned)nranks;
    log->read.bytes = log->kept * sizeof(log->seen[0]);
    for (int r = 0; r < nranks; r++) {
        log->read.parts[r].gpu = p->comm->members[r].dev->device->index;
        log->read.parts[r].from = (uint64_t)(uintptr_t)p->ranks[r].area.data + log->at;
        log->read.parts[r].to = log->seen + (size_t)r * log->kept;
    }
    return 0;
}

void records_free(struct prepared *p)
{
    if (!p->log)
        return;
    free(p->log->seen);
    free(p->log->shown);
    free(p->log);
    p->log = NULL;
}

/* ---- what a rank has noted ---- */

/* The rank's record of a run. NULL: it has none, or it is just being written. */
static const struct run_record *record_of(const struct run_log *log, int r, uint64_t run)
{
    const struct run_record *rec = &log->seen[(size_t)r * log->kept + run % log->kept];

    return rec->number == run && run_record_agrees(rec->what, run, log->kept) ? rec : NULL;
}

/* Kernels of a rank follow each other, so it has ended all runs but its newest one. */
static bool has_ended(const struct run_log *log, int r, uint64_t run)
{
    const struct run_record *rec = record_of(log, r, run);

    return log->newest[r] > run || (rec && (rec->ended & ~RUN_RECORD_GIVEN_UP) >= rec->begun);
}

/* The newest runs. Returns the newest of all. */
static uint64_t newest_find(struct run_log *log, int nranks)
{
    uint64_t newest = 0;

    for (int r = 0; r < nranks; r++) {
        const uint64_t most = log->newest[r] + RUNS_MOST;
        for (uint32_t i = 0; i < log->kept; i++) {
            const uint64_t number = log->seen[(size_t)r * log->kept + i].number;
            if (number % log->kept == i && number > log->newest[r] && number <= most && record_of(log, r, number))
                log->newest[r] = number;
        }
        newest = log->newest[r] > newest ? log->newest[r] : newest;
    }
    return newest;
}

/* Of rings: the run's. Ranks that are about to run a guarded step (kernels/gpu/bound.h) compare that first, in a run that is none of the step's. */
static uint16_t op_of(const struct prepared *p, const struct run_record *rec)
{
    const uint32_t op = run_record_op(rec->what);

    return (uint16_t)(op && op < FCC_OP_COUNT && !op_is_step((enum fcc_op)op) ? op : p->op);
}

/* ---- a run ---- */

/* Adds what a rank has noted. */
static void rank_add(const struct prepared *p, int r, uint64_t now, struct flight_run *run)
{
    const struct run_log *log = p->log;
    const struct run_record *rec = record_of(log, r, run->number);
    const struct gpu_moment *m = &log->read.parts[r].moment;

    run->came |= (uint16_t)((uint32_t)(rec || log->newest[r] >= run->number) << r);
    run->ended |= (uint16_t)((uint32_t)has_ended(log, r, run->number) << r);
    if (!rec)
        return;
    const uint64_t begun = gpu_moment_ns(m, rec->begun, log->since_ns, now), end = rec->ended & ~RUN_RECORD_GIVEN_UP,
                   ended = end >= rec->begun ? gpu_moment_ns(m, end, log->since_ns, now) : 0;
    run->op = op_of(p, rec);
    run->dtype = (uint8_t)run_record_dtype(rec->what);
    run->bytes = run_record_bytes(rec->what) > run->bytes ? run_record_bytes(rec->what) : run->bytes;
    run->given_up |= end >= rec->begun && rec->ended & RUN_RECORD_GIVEN_UP;
    if (begun && (!run->begun_ns || begun < run->begun_ns)) {
        run->begun_ns = begun;
        run->first = (uint8_t)r;
    }
    if (begun > run->came_ns) {
        run->came_ns = begun;
        run->last = (uint8_t)r;
    }
    run->ended_ns = ended > run->ended_ns ? ended : run->ended_ns;
}
static_assert(GPU_MAX_GPUS <= 16, "a bit for each rank");

/* False: nothing is known of the run. */
static bool run_make(const struct prepared *p, uint64_t number, uint64_t now, struct flight_run *run)
{
    const int nranks = p->comm->nranks;
    const uint16_t all = (uint16_t)((1u << nranks) - 1);

    *run = (struct flight_run){.prepared = p->number, .number = number, .op = (uint16_t)p->op};
    for (int r = 0; r < nranks; r++)
        rank_add(p, r, now, run);
    if (run->came != all)
        run->came_ns = 0;
    if (run->ended != run->came || run->came != all)
        run->ended_ns = 0;
    return run->came != 0;
}

/* The recorder gets it, if that is news. */
static bool run_show(const struct prepared *p, struct flight_run *run)
{
    struct flight_run *shown = &p->log->shown[run->number % p->log->kept];
    struct comm *c = p->comm;
    const size_t same = offsetof(struct flight_run, number);

    if (shown->number == run->number && !memcmp((char *)shown + same, (char *)run + same, sizeof(*run) - same))
        return false;
    const uint64_t before = shown->number == run->number ? atomic_load_explicit(&shown->record, memory_order_relaxed) : 0;
    atomic_store_explicit(&run->record, before ? before : ++c->recorded, memory_order_relaxed);
    memcpy(shown, run, sizeof(*run));
    if (c->recorded - atomic_load_explicit(&run->record, memory_order_relaxed) < FLIGHT_RUNS)
        flight_ran(c->flight, run);
    return true;
}

/* Rings: counts rank 0's runs that have ended. All ranks take part in each, so they are all. Runs of which more had come than there are records when they
 * were read count as the operator of the next one that is known. */
static void rings_count(struct prepared *p)
{
    struct run_log *log = p->log;
    const uint64_t newest = log->newest[0], until = newest - (newest && !has_ended(log, 0, newest));
    uint64_t n = log->counted + 1, unknown = 0;

    if (until <= log->counted)
        return;
    if (until - log->counted > log->kept) {
        unknown = until - log->counted - log->kept;
        n += unknown;
    }
    for (; n <= until; n++) {
        const struct run_record *rec = record_of(log, 0, n);
        const bool well = rec && !(rec->ended & RUN_RECORD_GIVEN_UP);
        if (rec) {
            meter_runs(p->comm->worker, op_of(p, rec), unknown + well);
            unknown = 0;
        } else {
            unknown++;
        }
    }
    p->comm->runs += until - log->counted;
    log->counted = until;
}

/* Takes in what has been read. True: there was news. */
static bool take_in(struct prepared *p, uint64_t now)
{
    struct run_log *log = p->log;
    const int nranks = p->comm->nranks;
    const uint64_t newest = newest_find(log, nranks);
    struct flight_run run;
    bool news = false, settles = true;

    if (newest - log->settled > log->kept)
        log->settled = newest - log->kept;
    for (uint64_t n = log->settled + 1; n <= newest; n++) {
        news |= run_make(p, n, now, &run) && run_show(p, &run);
        for (int r = 0; r < nranks && settles; r++)
            settles = has_ended(log, r, n);
        if (settles)
            log->settled = n;
    }
    if (op_spec(p->op)->exchange == EXCHANGE_RINGS)
        rings_count(p);
    return news;
}

/* ---- when ---- */

struct progress progress_of(const struct prepared *p, int r)
{
    const struct prepared_rank *rank = &p->ranks[r];

    if (!rank->held)
        return rank->last;
    const struct fcc_binding *words = &p->comm->members[r].session->memory->bindings[rank->place];
    return (struct progress){.begun = (uint32_t)atomic_load_explicit(&words->begun, memory_order_relaxed),
                             .ended = (uint32_t)atomic_load_explicit(&words->ended, memory_order_relaxed)};
}

/* Changes when the host is told of a run's begin or end. */
static uint64_t told_of(const struct prepared *p)
{
    uint64_t told = 1;

    for (int r = 0; r < p->comm->nranks; r++) {
        const struct progress at = progress_of(p, r);
        told = (told * 31 + at.begun) * 31 + at.ended;
    }
    return told;
}

static void ask(struct prepared *p)
{
    struct run_log *log = p->log;
    struct error why;

    log->told = told_of(p);
    log->asked = !gpu_read_ask(p->comm->worker->gpus, &log->read, &why);
    if (log->asked)
        return;
    log->broken = true;
    log_warning("comm %u: prepared %u: its runs are not recorded: %s", p->comm->number, p->number, why.text);
}

/* A read is done. */
static void take(struct prepared *p, uint64_t now)
{
    struct run_log *log = p->log;
    const bool rings = op_spec(p->op)->exchange == EXCHANGE_RINGS;

    log->asked = false;
    if (log->read.error.status) {
        log->broken = true;
        log_warning("comm %u: prepared %u: its runs are not recorded any more: %s", p->comm->number, p->number,
                    log->read.error.text);
    } else if (take_in(p, now)) {
        log->rest_ns = 0;
    } else {
        log->rest_ns = log->rest_ns ? 2 * log->rest_ns : REST_LEAST_NS;
        log->rest_ns = log->rest_ns < REST_MOST_NS ? log->rest_ns : REST_MOST_NS;
    }
    log->due_ns = rings || !log->rest_ns ? now + log->rest_ns : UINT64_MAX;
}

void records_look(struct prepared *p, uint64_t now)
{
    struct run_log *log = p->log;

    if (!log || log->broken)
        return;
    if (log->asked && !gpu_read_is_done(&log->read))
        return;
    if (log->asked)
        take(p, now);
    if (!log->broken && (now >= log->due_ns || told_of(p) != log->told))
        ask(p);
}

bool records_end(struct prepared *p)
{
    struct run_log *log = p->log;
    const bool rings = op_spec(p->op)->exchange == EXCHANGE_RINGS;

    if (!log)
        return true;
    for (int i = 0; i < 2; i++) {
        if (log->asked && !gpu_read_settle(&log->read)) {
            log_warning("comm %u: prepared %u: a GPU does not answer: its control memory stays", p->comm->number, p->number);
            p->log = NULL; /* the thread may still write there */
            return false;
        }
        if (log->asked)
            take(p, clock_ns());
        if (i == 0 && !log->broken && (rings || told_of(p) != log->told || !log->rest_ns))
            ask(p);
    }
    return true;
}
