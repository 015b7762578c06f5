/* SPDX-License-Identifier: MIT
 *
 * links.c - flows share links: each gets as much as the others of the link that holds it back (max-min fairness).
 *
 * A link that is full has a level: what each of its flows may have at most, such that the flows, some of which other links hold back below it, fill the
 * link. A flow's rate is the least level of its links. When a flow begins or ends, its links are looked at again; a link whose level changes
 * changes its flows' rates, and the other links of these are looked at in turn where they are full or become so. In this way a change reaches as far as it
 * matters and no farther.
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
    for (uint32_t i = 0; s->links && i < n; i++)
        s->links[i].level = DBL_MAX;
    return s->links && s->dirty_links;
}

static void link_touch(struct sim *s, uint32_t i)
{
    if (s->links[i].dirty)
        return;
    s->links[i].dirty = true;
    s->dirty_links[(s->first_dirty_link + s->ndirty_links++) % s->nlinks] = i;
}

static void link_carry(const struct sim *s, struct link *l)
{
    l->carried += l->sum * ((double)(s->now - l->since) / PS_PER_S);
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

/* Gives a flow a rate: its links and memories notice, and its end moves. */
static void rate_set(struct sim *s, uint32_t id, double rate)
{
    struct flow *f = &s->flows[id];
    const double change = rate - f->rate;

    f->left -= f->rate * ((double)(s->now - f->since) / PS_PER_S);
    f->left = f->left > 0 ? f->left : 0;
    f->since = s->now;
    f->rate = rate;
    for (unsigned k = 0; k < f->nlinks; k++) {
        struct link *l = &s->links[f->link[k]];
        link_carry(s, l);
        l->sum += change;
        rate_note(s, f->link[k]);
        if (l->level < DBL_MAX || l->sum > l->bytes_s)
            link_touch(s, f->link[k]);
    }
    for (int k = 0; k < 2; k++)
        if (f->memory[k] != NONE)
            memory_take(s, f->memory[k], change, 0);
    (void)event_move(s, EVENT_FLOW, id, rate > 0 ? s->now + ps_of(f->left / rate) : NEVER);
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
    s->flows[s->nflows].event = NONE;
    return s->nflows++;
}

uint32_t flow_begin(struct sim *s, double bytes, double most, const uint32_t path[], unsigned nlinks, const uint32_t memory[2],
                    uint32_t owner, bool is_store)
{
    const uint32_t id = flow_new(s);

    if (id == NONE)
        return NONE;
    struct flow *f = &s->flows[id];
    f->left = bytes;
    f->most = most > 0 ? most : DBL_MAX;
    f->rate = 0;
    f->since = s->now;
    f->owner = owner;
    f->is_store = is_store;
    f->nlinks = (uint16_t)nlinks;
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
            f->nlinks = (uint16_t)k;
            return NONE;
        }
        l->flows[l->n++] = id * PATH_MAX_LINKS + k;
        link_touch(s, path[k]);
    }
    return id;
}

void flow_end(struct sim *s, uint32_t id)
{
    struct flow *f = &s->flows[id];

    rate_set(s, id, 0);
    for (unsigned k = 0; k < f->nlinks; k++) {
        struct link *l = &s->links[f->link[k]];
        const uint32_t moved = l->flows[--l->n];
        l->flows[f->at[k]] = moved;
        s->flows[moved / PATH_MAX_LINKS].at[moved % PATH_MAX_LINKS] = f->at[k];
        if (l->level < DBL_MAX)
            link_touch(s, f->link[k]);
    }
    for (int k = 0; k < 2; k++)
        if (f->memory[k] != NONE)
            memory_take(s, f->memory[k], 0, -1);
    s->flows_free[s->nflows_free++] = id;
}

/* What a flow may have for all that its other links say. */
static double limit_of(const struct sim *s, const struct flow *f, unsigned without)
{
    double limit = f->most;

    for (unsigned k = 0; k < f->nlinks; k++)
        if (k != without && s->links[f->link[k]].level < limit)
            limit = s->links[f->link[k]].level;
    return limit;
}

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
    }
    if (level < 1)
        level = 1;
    for (uint32_t i = 0; i < n; i++)
        if (limits[i] > level)
            return level;
    return DBL_MAX;
}

static bool link_settle(struct sim *s, uint32_t i)
{
    struct link *l = &s->links[i];

    while (s->limits_room < l->n)
        if (!array_room(&s->limits, s->limits_room, &s->limits_room, sizeof(*s->limits)))
            return false;
    for (uint32_t k = 0; k < l->n; k++)
        s->limits[k] = limit_of(s, &s->flows[l->flows[k] / PATH_MAX_LINKS], l->flows[k] % PATH_MAX_LINKS);
    l->level = level_of(s->limits, l->n, l->bytes_s);
    for (uint32_t k = 0; k < l->n; k++) {
        const uint32_t flow = l->flows[k] / PATH_MAX_LINKS;
        const double rate = s->limits[k] < l->level ? s->limits[k] : l->level;
        if (rate < DBL_MAX && rate != s->flows[flow].rate)
            rate_set(s, flow, rate);
    }
    return true;
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
