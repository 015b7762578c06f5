/* SPDX-License-Identifier: MIT
 *
 * links.c - flows share links: each gets as much as the others of the link that holds it back (max-min fairness).
 *
 * A link that is full has a level: what each of its flows may have at most, such that the flows, some of which other links hold back below it, fill the
 * link. A flow's rate is the least level of its links. When a flow begins or ends, its links are looked at again; a link whose level changes
 * changes its flows' rates, and the other links of these are looked at in turn where they are full or become so. In this way a change reaches as far as it
 * matters and no farther.
 *
 * A limit that a flow has for itself is a link whose level is fixed. With a tolerance a full link is looked at when its flows together have more or less than they
 * had by so much: where one ends and another begins with as much, nothing is shared anew. Then rates are fair, and links full, up to as much.
 *
 * A link that cannot be full (`wide`) takes part in nothing. How levels are found: levels.c.
 *
 * A flow belongs to the link that holds it back, its holder, whose level is its rate. All flows of a holder are served the same, so they end in the order of
 * `served` plus their bytes, and a level that changes moves one event and not one for each flow.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/flows.h"

static_assert(sizeof(double) == sizeof(int64_t), "sums of whole rates");

bool links_new(struct sim *s, uint32_t n, unsigned path_most)
{
    s->links = aligned_alloc(sizeof(*s->links), n * sizeof(*s->links));
    if (s->links)
        memset(s->links, 0, n * sizeof(*s->links));
    s->found = calloc(n, sizeof(*s->found));
    s->carried = calloc(n, sizeof(*s->carried));
    s->gauges = aligned_alloc(64, (n + PATH_STEP + 1) / 2 * 2 * sizeof(*s->gauges));
    s->dirty_links = calloc(n, sizeof(*s->dirty_links));
    s->timed_links = calloc(n, sizeof(*s->timed_links));
    s->nlinks = n;
    while (1u << s->path_shift < path_most)
        s->path_shift++;
    s->path_round = path_most > 2 * PATH_STEP ? 2 * PATH_STEP : PATH_STEP;
    for (uint32_t i = 0; s->gauges && i < n + PATH_STEP; i++)
        s->gauges[i] = (struct gauge){.room = MARK_NEVER, .mark = MARK_NEVER, .spare = SPARE_ALWAYS, .level = DBL_MAX};
    return s->gauges && s->links && s->found && s->carried && s->dirty_links && s->timed_links && moved_new(s);
}

void link_make(struct sim *s, uint32_t i, double bytes_s, bool fixed)
{
    s->links[i].fixed = fixed;
    s->links[i].bytes_s = bytes_s;
    s->gauges[i].room = s->gauges[i].mark;
    s->gauges[i].level = fixed ? bytes_s : DBL_MAX;
    link_mark_set(s, i);
}

/* Of one moment the last rate stays: those before are what flows had until links were shared among them. */
static void rate_note(struct sim *s, uint32_t link)
{
    const struct sim_rate now = {.at_s = (double)s->now / PS_PER_S, .bytes_s = link_sum(s, link)};

    if (link != s->traced_link)
        return;
    if (s->nrates && s->rates[s->nrates - 1].at_s == now.at_s) {
        s->rates[s->nrates - 1] = now;
        return;
    }
    uint32_t room = (uint32_t)s->rates_room;
    if (!array_room(&s->rates, (uint32_t)s->nrates, &room, sizeof(*s->rates))) {
        s->failed = true;
        return;
    }
    s->rates_room = room;
    s->rates[s->nrates++] = now;
}

/* ---- flows ---- */

uint32_t link_ended(struct sim *s, uint32_t link)
{
    struct link *l = &s->links[link];

    link_advance(s, link);
    link_touch(s, link);
    if (l->nheld == 0)
        return NONE;
    /* what would end within two picoseconds has ended: times are rounded up */
    const struct held *first = &l->held[0];
    return first->end <= l->served + s->gauges[link].level * 2e-12 + first->end * 1e-13 ? first->flow : NONE;
}

void flow_rates_note(struct sim *s, uint32_t id)
{
    for (unsigned k = 0; k < s->paces[id].nlinks; k++)
        rate_note(s, flow_path(s, id)[k]);
}

/* Rows of a flow's links begin with a cache line. */
static bool rows_grow(uint32_t **rows, size_t was, size_t size)
{
    uint32_t *more = aligned_alloc(64, size);

    if (!more)
        return false;
    if (was)
        memcpy(more, *rows, was);
    free(*rows);
    *rows = more;
    return true;
}

/* Room for one more flow, in all arrays of them. */
static bool flows_grow(struct sim *s)
{
    const size_t was = s->flows_room, row = sizeof(*s->hops) << s->path_shift;
    struct pace *more;

    if (!array_room(&s->flows, s->nflows, &s->flows_room, sizeof(*s->flows)))
        return false;
    if (s->flows_room == was)
        return true;
    if (!rows_grow(&s->hops, was * row, s->flows_room * row) || !rows_grow(&s->hop_at, was * row, s->flows_room * row))
        return false;
    more = realloc(s->paces, s->flows_room * sizeof(*s->paces));
    if (!more)
        return false;
    s->paces = more;
    return true;
}

static uint32_t flow_new(struct sim *s)
{
    if (s->nflows_free)
        return s->flows_free[--s->nflows_free];
    if (!flows_grow(s) || !array_room(&s->flows_free, s->nflows, &s->flows_free_room, sizeof(*s->flows_free))) {
        s->failed = true;
        return NONE;
    }
    return s->nflows++;
}

/* The link that would be full first if all its flows had the same. */
static uint32_t narrowest(const struct sim *s, uint32_t id)
{
    const uint32_t *path = flow_path(s, id);
    uint32_t best = path[0];

    for (unsigned k = 1; k < s->paces[id].nlinks; k++)
        if (!s->links[path[k]].fixed &&
            s->links[path[k]].bytes_s / s->links[path[k]].n < s->links[best].bytes_s / s->links[best].n)
            best = path[k];
    return best;
}

/* It has its links: it gets a rate. Where nothing holds it back yet, it is held by the link that it would fill first, which finds its level when it is looked
 * at. */
static void flow_start(struct sim *s, uint32_t id, double bytes)
{
    const double rate = flow_limit(s, id);

    s->failed |= !flow_join(s, id, rate < DBL_MAX ? flow_limited_by(s, id, NONE, rate) : narrowest(s, id), bytes);
    if (rate < DBL_MAX)
        flow_rate_set(s, id, rate);
}

/* Puts a flow on the links of its way. Those that are wide are counted alone. */
static bool flow_links(struct sim *s, uint32_t id, double bytes, const uint32_t path[], unsigned nlinks)
{
    const uint32_t first = id << s->path_shift;
    uint32_t wide[PATH_MAX_LINKS];
    struct pace *p = &s->paces[id];

    p->nlinks = p->nwide = 0;
    for (unsigned k = 0; k < nlinks; k++) {
        struct link *l = &s->links[path[k]];
        const uint32_t hop = first + p->nlinks;
        s->carried[path[k]] += bytes;
        if (l->wide && s->traced < 0) { /* a traced rank's use is to be drawn */
            wide[p->nwide++] = path[k];
            continue;
        }
        s->hops[hop] = path[k];
        s->hop_at[hop] = l->n;
        if (!array_room(&l->flows, l->n, &l->room, sizeof(*l->flows)))
            return false;
        l->flows[l->n++] = hop;
        p->nlinks++;
    }
    for (unsigned k = 0; k < p->nwide; k++)
        s->hop_at[first + p->nlinks + k] = wide[k];
    for (p->padded = p->nlinks; p->padded % s->path_round; p->padded++)
        s->hops[first + p->padded] = s->nlinks + p->padded % PATH_STEP;
    return true;
}

uint32_t flow_begin(struct sim *s, double bytes, const uint32_t path[], unsigned nlinks, const uint32_t memory[2],
                    uint32_t owner, enum flow_kind kind)
{
    stopped_end(s);
    const uint32_t id = flow_new(s);

    if (id == NONE)
        return NONE;
    struct flow *f = &s->flows[id];
    struct pace *p = &s->paces[id];
    p->rate = 0;
    f->owner = owner;
    f->kind = (uint8_t)kind;
    for (int k = 0; k < 2; k++) {
        p->memory[k] = memory[k] == NONE ? s->nmemories : memory[k];
        s->memories[p->memory[k]].nflows++;
        memory_look(s, p->memory[k]);
    }
    if (!flow_links(s, id, bytes, path, nlinks)) {
        s->failed = true;
        return NONE;
    }
    flow_start(s, id, bytes);
    return id;
}

/* Takes a flow that has ended off its links. */
static void flow_off(struct sim *s, uint32_t id)
{
    const struct pace *p = &s->paces[id];
    const uint32_t first = id << s->path_shift;

    for (uint32_t hop = first; hop < first + p->nlinks; hop++) {
        struct link *l = &s->links[s->hops[hop]];
        const uint32_t moved = l->flows[--l->n];
        l->flows[s->hop_at[hop]] = moved;
        s->hop_at[moved] = s->hop_at[hop];
    }
    for (int k = 0; k < 2; k++) {
        s->memories[p->memory[k]].nflows--;
        memory_look(s, p->memory[k]);
    }
    s->flows_free[s->nflows_free++] = id;
}

void flow_end(struct sim *s, uint32_t id)
{
    flow_rate_set(s, id, 0);
    (void)flow_leave(s, id);
    flow_off(s, id);
}

void flow_stop(struct sim *s, uint32_t id, const struct message *m)
{
    flow_rate_set(s, id, 0);
    (void)flow_leave(s, id);
    s->stopped = (struct stopped){.flow = id, .adapter = m->adapter, .to = m->to, .latency = m->latency};
}

void stopped_end(struct sim *s)
{
    if (s->stopped.flow != NONE)
        flow_off(s, s->stopped.flow);
    s->stopped.flow = NONE;
}

/* As if it had ended and another one had begun: of each link's flows it becomes the last one. */
void flow_again(struct sim *s, double bytes, uint32_t owner)
{
    const uint32_t id = s->stopped.flow, first = id << s->path_shift;
    const struct pace *p = &s->paces[id];
    uint32_t hop = first;

    s->stopped.flow = NONE;
    s->flows[id].owner = owner;
    memory_look(s, p->memory[0]);
    memory_look(s, p->memory[1]);
    for (; hop < first + p->nlinks; hop++) {
        struct link *l = &s->links[s->hops[hop]];
        const uint32_t last = l->n - 1, at = s->hop_at[hop], moved = l->flows[last];
        s->carried[s->hops[hop]] += bytes;
        l->flows[at] = moved;
        s->hop_at[moved] = at;
        l->flows[last] = hop;
        s->hop_at[hop] = last;
    }
    for (; hop < first + p->nlinks + p->nwide; hop++)
        s->carried[s->hop_at[hop]] += bytes;
    flow_start(s, id, bytes);
}
