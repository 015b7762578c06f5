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

static inline const uint32_t *flow_path(const struct sim *s, uint32_t id)
{
    return &s->hops[(size_t)id << s->path_shift];
}

/* What a link's flows have together. */
static inline double link_sum(const struct sim *s, uint32_t i)
{
    return (double)(s->marks[i] - s->rooms[i]);
}

/* Whether the flows of a link have more or less together than when its level was found, by more than the tolerance. */
static inline bool link_is_off(const struct sim *s, uint32_t i)
{
    const double off = link_sum(s, i) - s->links[i].found, slack = s->m.fabric.tolerance * s->links[i].bytes_s;

    return !(s->levels[i] < DBL_MAX) || !(slack > 0) || off > slack || off < -slack;
}

/* Counts what has been served until now. */
static inline void link_advance(const struct sim *s, uint32_t i)
{
    struct link *l = &s->links[i];

    if (l->since == s->now)
        return;
    if (l->nheld)
        l->served += s->levels[i] * ((double)(s->now - l->since) / PS_PER_S);
    l->since = s->now;
}

/* The least level of a flow's links; DBL_MAX: none of these is full. */
static inline double flow_limit(const struct sim *s, uint32_t id)
{
    const uint32_t *path = flow_path(s, id), n = s->flows[id].padded;
    const double *levels = s->levels;
    double limit = DBL_MAX;

    for (uint32_t k = 0; k < n; k += PATH_STEP) {
        const double a = levels[path[k]], b = levels[path[k + 1]], c = levels[path[k + 2]], d = levels[path[k + 3]];
        const double ab = a < b ? a : b, cd = c < d ? c : d, least = ab < cd ? ab : cd;
        limit = least < limit ? least : limit;
    }
    return limit;
}

/* Gives a flow a rate: its links and memories notice. It goes through the links in steps, whatever their number, as a branch that is guessed wrong costs more
 * than links that are none; and a link that is to be looked at shows as the sign of what room it has, so nothing is compared. */
static inline void flow_rate_set(struct sim *s, uint32_t id, double rate)
{
    const struct flow *f = &s->flows[id];
    const uint32_t *path = flow_path(s, id);
    int64_t *rooms = s->rooms, off = 0;
    const double change = rate - s->rates_now[id];
    const int64_t whole = (int64_t)change;

    s->rates_now[id] = rate;
    for (unsigned k = 0; k < f->padded; k += PATH_STEP) { /* a way has no link twice */
        const int64_t a = rooms[path[k]] - whole, b = rooms[path[k + 1]] - whole, c = rooms[path[k + 2]] - whole,
                      d = rooms[path[k + 3]] - whole;
        rooms[path[k]] = a;
        rooms[path[k + 1]] = b;
        rooms[path[k + 2]] = c;
        rooms[path[k + 3]] = d;
        off |= a | b | c | d;
    }
    if (s->m.fabric.tolerance > 0) /* without one no link is looked at because it has too much room */
        for (unsigned k = 0; k < f->padded; k++)
            off |= -(int64_t)(rooms[path[k]] > s->spares[path[k]]);
    if (off < 0)
        flow_links_look(s, id);
    if (s->traced >= 0)
        flow_rates_note(s, id);
    if (f->memory[0] != NONE)
        memory_take(s, f->memory[0], change);
    if (f->memory[1] != NONE)
        memory_take(s, f->memory[1], change);
}

#endif
