/* SPDX-License-Identifier: MIT
 *
 * flows.h - what links.c and levels.c do tens of times for each message, so that it is compiled where it is used.
 */
#ifndef FCC_KERNELS_SIM_FLOWS_H
#define FCC_KERNELS_SIM_FLOWS_H

#include <float.h>

#include "kernels/sim/inside.h"

#define MARK_NEVER (INT64_C(1) << 61) /* more than any sum: the link is not looked at */
#define MARK_ALWAYS (-MARK_NEVER)     /* less than any: it is, whatever changes */
#define SPARE_ALWAYS MARK_NEVER       /* no link has more room than this */

static inline const uint32_t *flow_path(const struct sim *s, uint32_t id)
{
    return &s->hops[(size_t)id << s->path_shift];
}

/* What a link's flows have together. */
static inline double link_sum(const struct sim *s, uint32_t i)
{
    return (double)(s->gauges[i].mark - s->gauges[i].room);
}

/* Sets `mark` and leaves what the link's flows have. Sums are less than 2^61 at all times (counts_check()), so nothing overflows. */
static inline void mark_set(struct sim *s, uint32_t i, int64_t mark)
{
    s->gauges[i].room += mark - s->gauges[i].mark;
    s->gauges[i].mark = mark;
}

/* What a conversion leaves of a number is nearer to nothing. */
static inline int64_t whole_above(double x)
{
    const int64_t whole = (int64_t)x;

    return whole + ((double)whole < x);
}

/* A full link is looked at whatever its flows have more or less; with a tolerance, if it is more than that. */
static inline void link_mark_set(struct sim *s, uint32_t i)
{
    const struct link *l = &s->links[i];
    const double slack = s->m.fabric.tolerance * l->bytes_s;
    const bool full = s->gauges[i].level < DBL_MAX;

    mark_set(s, i,
             l->fixed    ? MARK_NEVER
             : !full     ? (int64_t)l->bytes_s
             : slack > 0 ? (int64_t)(s->found[i] + slack)
                         : MARK_ALWAYS);
    s->gauges[i].spare = full && !l->fixed && slack > 0 ? s->gauges[i].mark - whole_above(s->found[i] - slack) : SPARE_ALWAYS;
}

/* The link is looked at before time moves on. */
static inline void link_touch(struct sim *s, uint32_t i)
{
    uint32_t at;

    if (s->links[i].dirty)
        return;
    s->links[i].dirty = true;
    mark_set(s, i, MARK_NEVER);
    s->gauges[i].spare = SPARE_ALWAYS;
    at = s->first_dirty_link + s->ndirty_links++;
    s->dirty_links[at < s->nlinks ? at : at - s->nlinks] = i;
}

/* Whether the flows of a link have more or less together than when its level was found, by more than the tolerance. */
static inline bool link_is_off(const struct sim *s, uint32_t i)
{
    const double off = link_sum(s, i) - s->found[i], slack = s->m.fabric.tolerance * s->links[i].bytes_s;

    return !(s->gauges[i].level < DBL_MAX) || !(slack > 0) || off > slack || off < -slack;
}

/* Counts what has been served until now. */
static inline void link_advance(const struct sim *s, uint32_t i)
{
    struct link *l = &s->links[i];

    if (l->since == s->now)
        return;
    if (l->nheld)
        l->served += s->gauges[i].level * seconds_from(l->since, s->now);
    l->since = s->now;
}

/* The least level of a flow's links; DBL_MAX: none of these is full. */
static inline double flow_limit(const struct sim *s, uint32_t id)
{
    const uint32_t *path = flow_path(s, id), n = s->paces[id].padded;
    const struct gauge *g = s->gauges;
    double limit = DBL_MAX;

    for (uint32_t k = 0; k < n; k += PATH_STEP) {
        const double a = g[path[k]].level, b = g[path[k + 1]].level, c = g[path[k + 2]].level, d = g[path[k + 3]].level;
        const double ab = a < b ? a : b, cd = c < d ? c : d, least = ab < cd ? ab : cd;
        limit = least < limit ? least : limit;
    }
    return limit;
}

/* Which of a flow's links are to be looked at again. */
static inline void flow_links_look(struct sim *s, uint32_t id)
{
    const uint32_t *path = flow_path(s, id);

    for (unsigned k = 0; k < s->paces[id].nlinks; k++)
        if (s->gauges[path[k]].room < 0 || (s->m.fabric.tolerance > 0 && s->gauges[path[k]].room > s->gauges[path[k]].spare))
            link_touch(s, path[k]);
}

/* The first of a flow's links, but for one of them, that has this level. */
static inline uint32_t flow_limited_by(const struct sim *s, uint32_t id, uint32_t without, double level)
{
    const uint32_t *path = flow_path(s, id);

    for (uint32_t k = 0; k < s->paces[id].nlinks; k++)
        if (path[k] != without && s->gauges[path[k]].level == level)
            return path[k];
    return NONE;
}

/* Gives a flow a rate: its links and memories notice. It goes through the links in steps, whatever their number, as a branch that is guessed wrong costs more
 * than links that are none; and a link that is to be looked at shows as the sign of what room it has, or with a tolerance of what it may have, so nothing is
 * compared. */
static inline void flow_rate_set(struct sim *s, uint32_t id, double rate)
{
    struct pace *p = &s->paces[id];
    const uint32_t *path = flow_path(s, id), n = p->padded;
    const bool tolerates = s->m.fabric.tolerance > 0; /* without one no link is looked at because it has too much room */
    struct gauge *g = s->gauges;
    int64_t off = 0;
    const double change = rate - p->rate;
    const int64_t whole = (int64_t)change;

    p->rate = rate;
    for (uint32_t k = 0; k < n; k += PATH_STEP) { /* a way has no link twice */
        const int64_t a = g[path[k]].room - whole, b = g[path[k + 1]].room - whole, c = g[path[k + 2]].room - whole,
                      d = g[path[k + 3]].room - whole;
        g[path[k]].room = a;
        g[path[k + 1]].room = b;
        g[path[k + 2]].room = c;
        g[path[k + 3]].room = d;
        off |= a | b | c | d;
        if (tolerates) {
            off |=
                (g[path[k]].spare - a) | (g[path[k + 1]].spare - b) | (g[path[k + 2]].spare - c) | (g[path[k + 3]].spare - d);
        }
    }
    if (off < 0)
        flow_links_look(s, id);
    if (s->traced >= 0)
        flow_rates_note(s, id);
    memory_take(s, p->memory[0], change);
    memory_take(s, p->memory[1], change);
}

/* ---- the flows that a link holds back ---- */

static inline bool ends_before(const struct held *a, const struct held *b)
{
    return a->end < b->end || (a->end == b->end && a->order < b->order);
}

static inline void held_store(struct sim *s, struct link *l, uint32_t i, struct held h)
{
    l->held[i] = h;
    s->flows[h.flow].place = i;
}

static inline void held_sift(struct sim *s, struct link *l, uint32_t i, struct held h)
{
    for (; i > 0 && ends_before(&h, &l->held[(i - 1) / 2]); i = (i - 1) / 2)
        held_store(s, l, i, l->held[(i - 1) / 2]);
    for (uint32_t child; (child = 2 * i + 1) < l->nheld; i = child) {
        child += child + 1 < l->nheld && ends_before(&l->held[child + 1], &l->held[child]);
        if (!ends_before(&l->held[child], &h))
            break;
        held_store(s, l, i, l->held[child]);
    }
    held_store(s, l, i, h);
}

/* Takes a flow from its holder. Returns the bytes that it has left. */
static inline double flow_leave(struct sim *s, uint32_t id)
{
    struct pace *p = &s->paces[id];
    struct link *l = &s->links[p->holder];

    link_advance(s, p->holder);
    const uint32_t place = s->flows[id].place;
    const double left = l->held[place].end - l->served;
    if (place != --l->nheld)
        held_sift(s, l, place, l->held[l->nheld]);
    link_touch(s, p->holder);
    p->holder = NONE;
    return left > 0 ? left : 0;
}

static inline bool flow_join(struct sim *s, uint32_t id, uint32_t link, double left)
{
    struct link *l = &s->links[link];

    link_advance(s, link);
    if (l->nheld == 0)
        l->served = 0;
    if (!array_room(&l->held, l->nheld, &l->held_room, sizeof(*l->held)))
        return false;
    s->paces[id].holder = link;
    const struct held h = {.end = l->served + left, .order = s->flow_order++, .flow = id};
    held_sift(s, l, l->nheld++, h);
    link_touch(s, link);
    return true;
}

#endif
