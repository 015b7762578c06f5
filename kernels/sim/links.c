/* SPDX-License-Identifier: MIT
 *
 * links.c - flows share links: each gets as much as the others of the link that holds it back (max-min fairness).
 *
 * A link that is full has a level: what each of its flows may have at most, such that the flows, some of which other links hold back below it, fill the
 * link. A flow's rate is the least level of its links. When a flow begins or ends, its links are looked at again; a link whose level changes
 * changes its flows' rates, and the other links of these are looked at in turn where they are full or become so. In this way a change reaches as far as it
 * matters and no farther.
 *
 * A limit that a flow has for itself is a link whose level is fixed. With a tolerance a link is looked at when its flows' rates have changed by
 * so much; then rates are fair up to as much.
 *
 * A flow belongs to the link that holds it back, its holder, whose level is its rate. All flows of a holder are served the same, so they end in the order of
 * `served` plus their bytes, and a level that changes moves one event and not one for each flow.
 *
 * Why it ends, and ends with fair shares: a link's level is never less than its bandwidth over its flows, so the link with the least such share has
 * its level for good as soon as it is looked at, whatever the others do. Without it and its flows the same holds for the next, and so on. At the end each
 * flow has a full link on which no flow has more: that is what max-min fair means. Rates are whole bytes a second, so sums are exact, and the same
 * in whatever order they are made.
 */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/inside.h"

bool links_new(struct sim *s, uint32_t n)
{
    s->links = calloc(n, sizeof(*s->links));
    s->dirty_links = calloc(n, sizeof(*s->dirty_links));
    s->nlinks = n;
    for (uint32_t i = 0; s->links && i < n; i++) {
        s->links[i].level = DBL_MAX;
        s->links[i].event = NONE;
    }
    return s->links && s->dirty_links;
}

static void link_touch(struct sim *s, uint32_t i)
{
    if (s->links[i].dirty)
        return;
    s->links[i].dirty = true;
    s->dirty_links[(s->first_dirty_link + s->ndirty_links++) % s->nlinks] = i;
}

/* What has been carried and served until now. */
static void link_advance(const struct sim *s, struct link *l)
{
    if (l->since == s->now)
        return;
    const double seconds = (double)(s->now - l->since) / PS_PER_S;
    l->carried += l->sum * seconds;
    if (l->nheld)
        l->served += l->level * seconds;
    l->since = s->now;
}

double link_carried(const struct sim *s, uint32_t link)
{
    const struct link *l = &s->links[link];

    return l->carried + l->sum * ((double)(s->now - l->since) / PS_PER_S);
}

static void rate_note(struct sim *s, uint32_t link)
{
    if (s->traced < 0 || link != s->nic_out + adapter_of(s, s->traced))
        return;
    uint32_t room = (uint32_t)s->rates_room;
    if (!array_room(&s->rates, (uint32_t)s->nrates, &room, sizeof(*s->rates))) {
        s->failed = true;
        return;
    }
    s->rates_room = room;
    s->rates[s->nrates++] = (struct sim_rate){.at_s = (double)s->now / PS_PER_S, .bytes_s = s->links[link].sum};
}

/* ---- the flows that a link holds back ---- */

static bool ends_before(const struct sim *s, uint32_t a, uint32_t b)
{
    const struct flow *x = &s->flows[a], *y = &s->flows[b];

    return x->end < y->end || (x->end == y->end && x->order < y->order);
}

static void held_store(struct sim *s, struct link *l, uint32_t i, uint32_t flow)
{
    l->held[i] = flow;
    s->flows[flow].place = i;
}

static void held_sift(struct sim *s, struct link *l, uint32_t i, uint32_t flow)
{
    for (; i > 0 && ends_before(s, flow, l->held[(i - 1) / 2]); i = (i - 1) / 2)
        held_store(s, l, i, l->held[(i - 1) / 2]);
    for (uint32_t child; (child = 2 * i + 1) < l->nheld; i = child) {
        child += child + 1 < l->nheld && ends_before(s, l->held[child + 1], l->held[child]);
        if (!ends_before(s, l->held[child], flow))
            break;
        held_store(s, l, i, l->held[child]);
    }
    held_store(s, l, i, flow);
}

/* Takes a flow from its holder. Returns the bytes that it has left. */
static double holder_leave(struct sim *s, uint32_t id)
{
    struct flow *f = &s->flows[id];
    struct link *l = &s->links[f->holder];

    link_advance(s, l);
    const double left = f->end - l->served;
    const uint32_t last = l->held[--l->nheld];
    if (last != id)
        held_sift(s, l, f->place, last);
    link_touch(s, f->holder);
    f->holder = NONE;
    return left > 0 ? left : 0;
}

static bool holder_join(struct sim *s, uint32_t id, uint32_t link, double left)
{
    struct flow *f = &s->flows[id];
    struct link *l = &s->links[link];

    link_advance(s, l);
    if (l->nheld == 0)
        l->served = 0;
    if (!array_room(&l->held, l->nheld, &l->held_room, sizeof(*l->held)))
        return false;
    f->holder = link;
    f->end = l->served + left;
    f->order = s->flow_order++;
    held_sift(s, l, l->nheld++, id);
    link_touch(s, link);
    return true;
}

uint32_t link_ended(struct sim *s, uint32_t link)
{
    struct link *l = &s->links[link];

    link_advance(s, l);
    link_touch(s, link);
    if (l->nheld == 0)
        return NONE;
    /* what would end within two picoseconds has ended: times are rounded up */
    const uint32_t first = l->held[0];
    return s->flows[first].end <= l->served + l->level * 2e-12 + s->flows[first].end * 1e-13 ? first : NONE;
}

/* ---- flows ---- */

/* Gives a flow a rate: its links and memories notice. */
static void rate_set(struct sim *s, uint32_t id, double rate)
{
    struct flow *f = &s->flows[id];
    const double change = rate - f->rate;

    f->rate = rate;
    for (unsigned k = 0; k < f->nlinks; k++) {
        struct link *l = &s->links[f->link[k]];
        link_advance(s, l);
        l->sum += change;
        l->drift += change < 0 ? -change : change;
        rate_note(s, f->link[k]);
        if (!l->fixed && (l->level < DBL_MAX || l->sum > l->bytes_s) && l->drift >= s->m.fabric.tolerance * l->bytes_s)
            link_touch(s, f->link[k]);
    }
    for (int k = 0; k < 2; k++)
        if (f->memory[k] != NONE)
            memory_take(s, f->memory[k], change, 0);
}

static uint32_t flow_new(struct sim *s)
{
    if (s->nflows_free)
        return s->flows_free[--s->nflows_free];
    if (!array_room(&s->flows, s->nflows, &s->flows_room, sizeof(*s->flows)) ||
        !array_room(&s->flows_free, s->nflows, &s->flows_free_room, sizeof(*s->flows_free))) {
        s->failed = true;
        return NONE;
    }
    return s->nflows++;
}

/* The least level of a flow's links, but for one of them, and whose it is; DBL_MAX and NONE: none of these is full. */
static double limit_of(const struct sim *s, const struct flow *f, unsigned without, uint32_t *which)
{
    double limit = DBL_MAX;

    *which = NONE;
    for (unsigned k = 0; k < f->nlinks; k++)
        if (k != without && s->links[f->link[k]].level < limit) {
            limit = s->links[f->link[k]].level;
            *which = f->link[k];
        }
    return limit;
}

/* The link that would be full first if all its flows had the same. */
static uint32_t narrowest(const struct sim *s, const struct flow *f)
{
    uint32_t best = f->link[0];

    for (unsigned k = 1; k < f->nlinks; k++)
        if (!s->links[f->link[k]].fixed &&
            s->links[f->link[k]].bytes_s / s->links[f->link[k]].n < s->links[best].bytes_s / s->links[best].n)
            best = f->link[k];
    return best;
}

uint32_t flow_begin(struct sim *s, double bytes, const uint32_t path[], unsigned nlinks, const uint32_t memory[2],
                    uint32_t owner, enum flow_kind kind)
{
    const uint32_t id = flow_new(s);
    uint32_t holder;

    if (id == NONE)
        return NONE;
    struct flow *f = &s->flows[id];
    f->rate = 0;
    f->owner = owner;
    f->kind = (uint8_t)kind;
    f->nlinks = 0;
    for (int k = 0; k < 2; k++) {
        f->memory[k] = memory[k];
        if (memory[k] != NONE)
            memory_take(s, memory[k], 0, 1);
    }
    for (unsigned k = 0; k < nlinks; k++) {
        struct link *l = &s->links[path[k]];
        f->link[k] = path[k];
        f->at[k] = l->n;
        if (!array_room(&l->flows, l->n, &l->room, sizeof(*l->flows))) {
            s->failed = true;
            return NONE;
        }
        l->flows[l->n++] = id * PATH_MAX_LINKS + k;
        f->nlinks++;
        link_advance(s, l);
    }
    const double rate = limit_of(s, f, NONE, &holder);
    /* where nothing holds it back yet, it is held by the link that it would fill first, which finds its level when it is looked at */
    s->failed |= !holder_join(s, id, holder != NONE ? holder : narrowest(s, f), bytes);
    if (holder != NONE)
        rate_set(s, id, rate);
    return id;
}

void flow_end(struct sim *s, uint32_t id)
{
    struct flow *f = &s->flows[id];

    rate_set(s, id, 0);
    (void)holder_leave(s, id);
    for (unsigned k = 0; k < f->nlinks; k++) {
        struct link *l = &s->links[f->link[k]];
        const uint32_t moved = l->flows[--l->n];
        l->flows[f->at[k]] = moved;
        s->flows[moved / PATH_MAX_LINKS].at[moved % PATH_MAX_LINKS] = f->at[k];
    }
    for (int k = 0; k < 2; k++)
        if (f->memory[k] != NONE)
            memory_take(s, f->memory[k], 0, -1);
    s->flows_free[s->nflows_free++] = id;
}

/* ---- levels ---- */

/* The level at which flows with these limits fill the bandwidth; DBL_MAX: they do not. */
static double level_of(const double limits[], uint32_t n, double bytes_s)
{
    double left = bytes_s, level = DBL_MAX;

    for (uint32_t above = n, counted = n + 1;
         above > 0 && above < counted;) { /* those with a limit below the level do not count */
        counted = above;
        level = (double)(uint64_t)(left / above);
        left = bytes_s;
        above = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (limits[i] > level)
                above++;
            else
                left -= limits[i];
        }
        if (above == 0)
            return DBL_MAX;
    }
    return level >= 1 ? level : 1;
}

static bool link_event(struct sim *s, uint32_t i)
{
    const struct link *l = &s->links[i];

    if (l->nheld == 0)
        return event_move(s, EVENT_LINK, i, NEVER);
    const double left = s->flows[l->held[0]].end - l->served;
    return event_move(s, EVENT_LINK, i, ps_after(s->now, left > 0 ? ps_of(left / l->level) : 0));
}

static bool link_settle(struct sim *s, uint32_t i)
{
    struct link *l = &s->links[i];

    if (l->fixed) {
        link_advance(s, l);
        return link_event(s, i);
    }
    while (s->limits_room < l->n)
        if (!array_room(&s->limits, s->limits_room, &s->limits_room, sizeof(*s->limits)))
            return false;
    while (s->limit_links_room < l->n)
        if (!array_room(&s->limit_links, s->limit_links_room, &s->limit_links_room, sizeof(*s->limit_links)))
            return false;
    for (uint32_t k = 0; k < l->n; k++)
        s->limits[k] = limit_of(s, &s->flows[l->flows[k] / PATH_MAX_LINKS], l->flows[k] % PATH_MAX_LINKS, &s->limit_links[k]);
    link_advance(s, l);
    l->drift = 0;
    l->level = level_of(s->limits, l->n, l->bytes_s);
    for (uint32_t k = 0; k < l->n; k++) {
        const uint32_t id = l->flows[k] / PATH_MAX_LINKS;
        const bool holds = s->limits[k] > l->level;
        const struct flow *f = &s->flows[id];
        if (holds && f->holder != i && !holder_join(s, id, i, holder_leave(s, id)))
            return false;
        if (s->limits[k] < l->level && f->holder == i && !holder_join(s, id, s->limit_links[k], holder_leave(s, id)))
            return false;
        const double rate = holds ? l->level : s->links[f->holder].level;
        if (rate != f->rate && rate < DBL_MAX)
            rate_set(s, id, rate);
    }
    return link_event(s, i);
}

bool links_settle(struct sim *s)
{
    while (s->ndirty_links) {
        const uint32_t i = s->dirty_links[s->first_dirty_link];
        s->first_dirty_link = (s->first_dirty_link + 1) % s->nlinks;
        s->ndirty_links--;
        if (!link_settle(s, i)) /* still marked, so what it changes itself does not bring it back */
            return false;
        s->links[i].dirty = false;
    }
    return true;
}
