/* SPDX-License-Identifier: MIT
 *
 * launches.c - a communicator's cache of launches.
 *
 * Plans depend only on the problem and the schedule. So finished launches are cached with their plans, and an operator with the same problem
 * needs no planning.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/comm/span.h"
#include "daemon/worker/comm/turn.h"

#define CACHE_MAX 32 /* launches in a communicator's cache. A problem that runs several times at a time has several */

struct tune_class launch_class(const struct comm *c)
{
    for (const struct launch *l = c->cache; l; l = l->next_cached)
        if (problem_equal(l->problem, c->problem))
            return *l->class;
    return tune_class_of(c->problem);
}

void launch_forget(struct launch *l)
{
    struct comm *c = launch_comm(l);

    if (c->last == l)
        c->last = NULL;
    if (c->early == l)
        c->early = NULL;
    launch_free(l);
}

const struct launch_ops launch_ops_here = {.ended = launch_end};

static struct launch *launch_new(struct comm *c, enum fcc_schedule_kind kind, enum plan_route route, struct error *e)
{
    const struct schedule schedule = {.kind = kind, .route = route};
    struct launch *l = launch_make(&c->dev, c->problem, &schedule, c->nodes ? span(c)->launch_ops : &launch_ops_here, e);

    if (!l)
        return NULL;
    l->class = malloc(sizeof(*l->class));
    if (!l->class) {
        (void)error_set(e, -ENOMEM, "no memory for a launch");
        launch_free(l);
        return NULL;
    }
    *l->class = launch_class(c);
    return l;
}

/* Keep the CACHE_MAX most recently used launches, and the one whose times are shown, which bound operators and noops may have followed. */
static void cache_trim(struct comm *c)
{
    struct launch **at = &c->cache;

    for (int i = 0; *at; i++) {
        struct launch *l = *at;
        if (i < CACHE_MAX || l == c->last) {
            at = &l->next_cached;
            continue;
        }
        *at = l->next_cached;
        launch_forget(l);
    }
}

void launch_keep(struct comm *c, struct launch *l)
{
    l->next_cached = c->cache;
    c->cache = l;
    cache_trim(c);
}

struct launch *launch_get(struct comm *c, enum fcc_schedule_kind kind, enum plan_route route, struct error *e)
{
    for (struct launch **at = &c->cache; *at; at = &(*at)->next_cached) {
        struct launch *l = *at;
        if (l->schedule.kind == kind && l->schedule.route == route && problem_equal(l->problem, c->problem)) {
            *at = l->next_cached;
            l->next_cached = NULL;
            return l;
        }
    }
    return launch_new(c, kind, route, e);
}
