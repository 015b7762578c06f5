/* SPDX-License-Identifier: MIT
 *
 * runs.c - when rules were worked off: the last runs of each tracker, in memory of a fixed size, for fccctl trace --rules.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/track/inside.h"
#include "proto/base/clock.h"
#include "proto/base/json_fd.h"

void runs_add(struct rule_runs *runs, const struct rule *r)
{
    runs->kept[runs->n++ % RUNS_KEPT] = (struct rule_run){
        .rule = r->number, .run = r->done, .produced_ns = r->produced_ns, .begun_ns = r->begun_ns, .done_ns = clock_ns()};
}

static uint64_t begin_of(const struct rule_run *run)
{
    return run->produced_ns ? run->produced_ns : run->begun_ns;
}

static uint64_t runs_kept(const struct rule_runs *runs)
{
    return runs->n < RUNS_KEPT ? runs->n : RUNS_KEPT;
}

/* The tracker whose rule was worked off last, of communicator `number` (0: of any). NULL: no rule was. */
static const struct tracker *last_find(struct tracking *all, uint32_t number)
{
    const struct tracker *t, *found = NULL;
    uint64_t latest = 0, done;

    tracking_lock(all);
    LIST_FOREACH(t, &all->trackers, link) {
        if (!t->runs->n || (number && t->member->comm->number != number))
            continue;
        done = t->runs->kept[(t->runs->n - 1) % RUNS_KEPT].done_ns;
        if (done >= latest) {
            latest = done;
            found = t;
        }
    }
    tracking_unlock(all);
    return found;
}

/* How people call what a rule does in a timeline: as slices that do the same. */
static const char *kind_of(const struct rule *r)
{
    return r->action == FCC_RULE_STORE ? "put" : r->action == FCC_RULE_ADD ? "reduce" : rule_actions[r->action];
}

static struct json_object *event_of(const struct rule *r, const struct rule_run *run, const char *kind, uint64_t from,
                                    uint64_t to, uint64_t zero)
{
    return JSON_OBJECT({"run", json_int((int64_t)run->run)}, {"kind", json_text(kind)}, {"dst", json_int(r->rank)},
                       {"bytes", json_int((int64_t)r->run_bytes)}, {"start_ns", json_int((int64_t)(from - zero))},
                       {"end_ns", json_int((int64_t)(to - zero))});
}

/* A rank, with a lane for each of its rules. Its rules change in the engine's turn only, which this is. */
static struct json_object *rank_of(const struct tracker *t, const struct rule_runs *runs, uint64_t zero)
{
    struct json_object *rules = json_object_new_array(), *events[FCC_RULES_MAX];

    for (uint32_t i = 0; i < t->nrules; i++) {
        events[i] = json_object_new_array();
        json_object_array_add(rules,
                              JSON_OBJECT({"workgroup", json_int(i)}, {"name", json_text(t->rules[i]->name)},
                                          {"action", json_text(rule_actions[t->rules[i]->action])}, {"events", events[i]}));
    }
    for (uint64_t i = runs->n - runs_kept(runs); i < runs->n; i++) {
        const struct rule_run *run = &runs->kept[i % RUNS_KEPT];
        const struct rule *r = t->rules[run->rule];
        if (run->produced_ns)
            json_object_array_add(events[run->rule], event_of(r, run, "wait", run->produced_ns, run->begun_ns, zero));
        json_object_array_add(events[run->rule], event_of(r, run, kind_of(r), run->begun_ns, run->done_ns, zero));
    }
    return JSON_OBJECT({"rank", json_int(t->member->rank)}, {"device", json_int(t->member->dev->device->index)},
                       {"kind", json_text(t->member->dev->device->ops->kind)},
                       {"dropped", json_int((int64_t)(runs->n - runs_kept(runs)))}, {"workgroups", rules});
}

/* What the trackers of c's ranks on this node have kept, each copied under the lock, which is held for no longer. copies[r] is NULL where
 * rank r has none. 0 or -ENOMEM. */
static int runs_copy(struct tracking *all, const struct comm *c, struct rule_runs **copies)
{
    for (int r = 0; r < c->nranks; r++) {
        const struct tracker *t = c->members[r].tracker;
        if (!t)
            continue;
        if (!(copies[r] = malloc(sizeof(**copies))))
            return -ENOMEM;
        tracking_lock(all);
        memcpy(copies[r], t->runs, sizeof(**copies));
        tracking_unlock(all);
    }
    return 0;
}

static struct json_object *runs_describe(const struct comm *c, struct rule_runs *const *copies)
{
    struct json_object *ranks = json_object_new_array();
    uint64_t zero = UINT64_MAX, end = 0, dropped = 0;

    for (int r = 0; r < c->nranks; r++)
        for (uint64_t i = 0; copies[r] && i < runs_kept(copies[r]); i++) {
            const struct rule_run *run = &copies[r]->kept[i];
            zero = begin_of(run) < zero ? begin_of(run) : zero;
            end = run->done_ns > end ? run->done_ns : end;
        }
    for (int r = 0; r < c->nranks; r++) {
        if (!copies[r])
            continue;
        dropped += copies[r]->n - runs_kept(copies[r]);
        json_object_array_add(ranks, rank_of(c->members[r].tracker, copies[r], zero));
    }
    return JSON_OBJECT({"comm", json_int(c->number)}, {"op", json_text("rules")}, {"nranks", json_int(c->nranks)},
                       {"started_ns", json_int((int64_t)zero)}, {"duration_ns", json_int((int64_t)(end - zero))},
                       {"dropped", json_int((int64_t)dropped)}, {"ranks", ranks});
}

struct json_object *track_runs_describe(struct worker *w, uint32_t comm, struct error *e)
{
    const struct tracker *last = w->tracking ? last_find(w->tracking, comm) : NULL;
    const struct comm *c = last ? last->member->comm : NULL;
    struct rule_runs **copies = c ? calloc((size_t)c->nranks, sizeof(struct rule_runs *)) : NULL;
    struct json_object *o = NULL;

    if (!c && comm)
        (void)error_set(e, -ENOENT, "comm: %u: job \"%s\" has no rule there that has been worked off", comm, w->job);
    else if (!c)
        (void)error_set(e, -ENOENT, "job \"%s\" has no rule that has been worked off", w->job);
    else if (!copies || runs_copy(w->tracking, c, copies))
        (void)error_set(e, -ENOMEM, "rules: out of memory");
    else
        o = runs_describe(c, copies);
    for (int r = 0; copies && r < c->nranks; r++)
        free(copies[r]);
    free(copies);
    return o;
}
