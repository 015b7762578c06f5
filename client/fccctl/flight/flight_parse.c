/* SPDX-License-Identifier: MIT
 *
 * flight_parse.c - what a flight recorder says, as JSON. Its writer runs as a user and may write anything, so every number is checked, and a
 * record counts if its turn belongs at its place.
 */
#include <stdlib.h>
#include <string.h>

#include "client/fccctl/field.h"
#include "client/fccctl/flight/flight.h"
#include "kernels/plan/plan.h"
#include "proto/base/error.h"

static const char *const recorded_ops[] = {
#define X(NAME, name, number) [number] = #name,
    FCC_OPERATORS(X)
#undef X
        [FCC_OP_COUNT] = "buffer_alloc"};

static const char *op_of(uint32_t op)
{
    return op <= FCC_OP_COUNT && recorded_ops[op] ? recorded_ops[op] : "?";
}

static const char *recorded_schedule(unsigned schedule)
{
    static const char *const names[] = {"", "fused", "sequential", "compute_only", "comm_only"};

    return schedule < sizeof(names) / sizeof(names[0]) ? names[schedule] : "?";
}

/* From an earlier time to a later one; -1: one of them is missing, or they make no sense. */
static double span(uint64_t from, uint64_t to)
{
    return from && to >= from && to - from < 1000000000000000000u ? (double)(to - from) : -1;
}

static struct json_object *missing_of(const struct flight_record *r, uint32_t nranks)
{
    struct json_object *list = json_object_new_array();

    for (uint32_t i = 0; i < nranks && i < FLIGHT_RANKS && r->state == FLIGHT_WAITING; i++)
        if (!(r->came >> i & 1))
            (void)json_object_array_add(list, json_int(i));
    return list;
}

static struct json_object *record_parse(const struct flight_record *r, uint64_t turn, uint32_t nranks, uint64_t now)
{
    static const char *const states[] = {"?", "waiting", "running", "ended"};
    const char *state = r->state <= FLIGHT_ENDED ? states[r->state] : "?";

    struct json_object *o =
        JSON_OBJECT({"turn", json_int(turn)}, {"number", json_int(r->number)}, {"op", json_text(op_of(r->op))},
                    {"schedule", json_text(recorded_schedule(r->schedule))},
                    {"state", json_text(r->state == FLIGHT_ENDED && r->status ? "failed" : state)},
                    {"status", json_int(r->status)}, {"came", json_int(r->ncame)}, {"missing", missing_of(r, nranks)},
                    {"first", json_int(r->first)}, {"last", json_int(r->last)});
    JSON_ADD(o, {"arrived_ns", json_int(r->arrived_ns)}, {"begun_ns", json_int(r->begun_ns)},
             {"ended_ns", json_int(r->ended_ns)}, {"since_ms", json_double(span(r->arrived_ns, now) / 1e6)},
             {"wait_ns", json_double(span(r->arrived_ns, r->begun_ns))},
             {"run_ns", json_double(span(r->begun_ns, r->ended_ns))});
    return o;
}

/* The last records, the oldest first. */
static struct json_object *records_parse(const struct flight_comm *c, unsigned most, uint64_t now)
{
    struct json_object *list = json_object_new_array();
    uint64_t last = 0;

    for (unsigned i = 0; i < FLIGHT_OPERATORS; i++) {
        uint64_t turn = atomic_load_explicit(&c->records[i].turn, memory_order_relaxed);
        if (turn && (turn - 1) % FLIGHT_OPERATORS == i && turn > last && turn < UINT64_MAX / 2)
            last = turn;
    }
    for (uint64_t turn = last > most ? last - most + 1 : 1; last && turn <= last; turn++) {
        const struct flight_record *r = &c->records[(turn - 1) % FLIGHT_OPERATORS];
        if (atomic_load_explicit(&r->turn, memory_order_relaxed) == turn)
            (void)json_object_array_add(list, record_parse(r, turn, c->nranks, now));
    }
    return list;
}

/* The run that has been under way for longest of those that ranks have launched. NULL: there is none. */
static struct json_object *launched_parse(const struct flight_comm *c, uint64_t now)
{
    const struct flight_launched *l = &c->launched;
    const uint32_t prepared = atomic_load_explicit(&l->prepared, memory_order_relaxed);
    struct json_object *missing = prepared ? json_object_new_array() : NULL;

    for (uint32_t i = 0; missing && i < c->nranks && i < FLIGHT_RANKS; i++)
        if (l->missing >> i & 1)
            (void)json_object_array_add(missing, json_int(i));
    return prepared ? JSON_OBJECT({"prepared", json_int(prepared)}, {"op", json_text(op_of(l->op))}, {"run", json_int(l->run)},
                                  {"since_ms", json_double(span(l->since_ns, now) / 1e6)}, {"missing", missing})
                    : NULL;
}

/* The ranks whose bits are `bit` in `mask`. */
static struct json_object *ranks_of(uint16_t mask, uint32_t nranks, bool bit)
{
    struct json_object *list = json_object_new_array();

    for (uint32_t i = 0; i < nranks && i < 16; i++)
        if ((mask >> i & 1u) == bit)
            (void)json_object_array_add(list, json_int(i));
    return list;
}

/* A rank that has begun the run, and not ended it, is in it. */
static struct json_object *run_parse(const struct flight_run *r, uint32_t nranks, uint64_t now)
{
    const uint16_t all = (uint16_t)((1u << (nranks < 16 ? nranks : 16)) - 1);
    const char *state = r->given_up               ? "given up"
                        : (r->ended & all) == all ? "ended"
                        : (r->came & all) == all  ? "running"
                                                  : "waiting";
    const char *dtype = r->dtype ? dtype_name((enum fcc_dtype)r->dtype) : "";
    struct json_object *o = JSON_OBJECT(
        {"record", json_int(atomic_load_explicit(&r->record, memory_order_relaxed))}, {"prepared", json_int(r->prepared)},
        {"run", json_int(r->number)}, {"op", json_text(op_of(r->op))}, {"dtype", json_text(dtype ? dtype : "?")},
        {"bytes", json_int(r->bytes)}, {"state", json_text(state)}, {"missing", ranks_of(r->came, nranks, false)},
        {"inside", ranks_of((uint16_t)(r->came & ~r->ended), nranks, true)}, {"first", json_int(r->first)},
        {"last", json_int(r->last)});

    JSON_ADD(o, {"begun_ns", json_int(r->begun_ns)}, {"came_ns", json_int(r->came_ns)}, {"ended_ns", json_int(r->ended_ns)},
             {"since_ms", json_double(span(r->begun_ns, now) / 1e6)}, {"wait_ns", json_double(span(r->begun_ns, r->came_ns))},
             {"run_ns", json_double(span(r->begun_ns, r->ended_ns))});
    return o;
}

/* By when they began; what has no time comes first. */
struct found_run {
    uint64_t begun_ns, record;
    const struct flight_run *run;
};

static int found_compare(const void *a, const void *b)
{
    const struct found_run *x = a, *y = b;

    if (x->begun_ns != y->begun_ns)
        return x->begun_ns < y->begun_ns ? -1 : 1;
    return x->record < y->record ? -1 : x->record > y->record;
}

/* The last runs that ranks have launched, the oldest first. */
static struct json_object *runs_parse(const struct flight_comm *c, unsigned most, uint64_t now)
{
    struct found_run found[FLIGHT_RUNS] = {{0, 0, NULL}};
    struct json_object *list = json_object_new_array();
    unsigned n = 0;

    for (unsigned i = 0; i < FLIGHT_RUNS; i++) {
        const uint64_t record = atomic_load_explicit(&c->runs[i].record, memory_order_relaxed);
        if (record && (record - 1) % FLIGHT_RUNS == i && record < UINT64_MAX / 2)
            found[n++] = (struct found_run){c->runs[i].begun_ns, record, &c->runs[i]};
    }
    qsort(found, n, sizeof(found[0]), found_compare);
    for (unsigned i = n > most ? n - most : 0; i < n; i++)
        (void)json_object_array_add(list, run_parse(found[i].run, c->nranks, now));
    return list;
}

static struct json_object *comm_parse(const struct flight_comm *c, unsigned most, uint64_t now)
{
    static const char *const states[] = {"?", "active", "aborted", "left"}, *const kinds[] = {"cpu", "gpu", "hip", "cuda"};
    struct json_object *pids = json_object_new_array();
    char text[FCC_TEXT_MAX];

    memcpy(text, c->text, sizeof(text));
    text[sizeof(text) - 1] = '\0';
    for (uint32_t i = 0; i < c->nranks && i < FLIGHT_RANKS; i++)
        (void)json_object_array_add(pids, json_int(c->pids[i]));
    return JSON_OBJECT(
        {"comm", json_int(atomic_load_explicit(&c->number, memory_order_relaxed))}, {"nranks", json_int(c->nranks)},
        {"here", json_int(c->here)}, {"device", json_text(c->device_kind < 4 ? kinds[c->device_kind] : "?")},
        {"state", json_text(c->state <= FLIGHT_COMM_LEFT ? states[c->state] : "?")}, {"status", json_int(c->status)},
        {"error", json_text(text_clean(text))}, {"age_ms", json_double(span(c->formed_ns, now) / 1e6)},
        {"ended_ms", json_double(span(c->ended_ns, now) / 1e6)}, {"turns", json_int(c->turns)}, {"pids", pids},
        {"operators", records_parse(c, most, now)}, {"runs", json_int(c->launched.ended)}, {"run", launched_parse(c, now)},
        {"launched", runs_parse(c, most, now)});
}

struct json_object *flight_parse(const struct flight *f, int64_t comm, unsigned most, uint64_t now_ns)
{
    struct json_object *comms = json_object_new_array();

    for (unsigned i = 0; i < FLIGHT_COMMS; i++) {
        uint32_t number = atomic_load_explicit(&f->comms[i].number, memory_order_relaxed);
        if (number && (!comm || number == comm))
            (void)json_object_array_add(comms, comm_parse(&f->comms[i], most, now_ns));
    }
    return JSON_OBJECT({"pid", json_int(f->pid)}, {"unrecorded", json_int(f->unrecorded)}, {"comms", comms});
}
