/* SPDX-License-Identifier: MIT
 *
 * levels.c - links that have been marked find their levels anew (links.c says what these are).
 *
 * What each flow may have on its other links need not be looked for: it is the flow's rate, but for those flows that the link itself holds back, and these need
 * it only when the level rises. A full link begins with its level so far: what it does not hold back has at most that, and what it holds back could have at
 * least that elsewhere. So when the level falls only flows that have more now are added, and when it rises only flows that may have less elsewhere go.
 *
 * Why it ends, and ends with fair shares: a link's level is never less than its bandwidth over its flows, so the link with the least such share has
 * its level for good as soon as it is looked at, whatever the others do. Without it and its flows the same holds for the next, and so on. At the end each
 * flow has a full link on which no flow has more: that is what max-min fair means. Rates are whole bytes a second, so sums are exact, and the same
 * in whatever order they are made.
 */
#include <float.h>

#include "kernels/sim/flows.h"

static bool link_event(struct sim *s, uint32_t i)
{
    struct link *l = &s->links[i];

    l->timed = false;
    if (l->nheld == 0)
        return event_move(s, EVENT_LINK, i, NEVER);
    const double left = l->held[0].end - l->served;
    return event_move(s, EVENT_LINK, i, ps_after(s->now, left > 0 ? ps_of(left / s->gauges[i].level) : 0));
}

static bool limits_room(struct sim *s, uint32_t n)
{
    while (s->limits_room < n)
        if (!array_room(&s->limits, s->limits_room, &s->limits_room, sizeof(*s->limits)))
            return false;
    return true;
}

static double share_of(double bytes_s, uint32_t n)
{
    const double level = (double)(int64_t)(bytes_s / n);

    return level >= 1 ? level : 1;
}

/* The level at which flows with these limits fill the bandwidth; DBL_MAX: they do not. */
static double level_of(const struct limit limits[], uint32_t n, double bytes_s)
{
    double left = bytes_s, level = DBL_MAX;

    for (uint32_t above = n, counted = n + 1;
         above > 0 && above < counted;) { /* those with a limit below the level do not count */
        counted = above;
        level = (double)(int64_t)(left / above);
        left = bytes_s;
        above = 0;
        for (uint32_t i = 0; i < n; i++) {
            const bool more = limits[i].rate > level;
            above += more;
            left -= more ? 0 : limits[i].rate;
        }
        if (above == 0)
            return DBL_MAX;
    }
    return level >= 1 ? level : 1;
}

/* A link becomes the holder of a flow of another one, and gives it its level. */
static bool flow_take(struct sim *s, uint32_t i, uint32_t id)
{
    if (!flow_join(s, id, i, flow_leave(s, id)))
        return false;
    flow_rate_set(s, id, s->gauges[i].level);
    return true;
}

/* A flow goes from the link that held it back to the one that lets it have less. */
static bool flow_give(struct sim *s, uint32_t i, uint32_t id, double rate)
{
    if (!flow_join(s, id, flow_limited_by(s, id, i, rate), flow_leave(s, id)))
        return false;
    if (s->paces[id].rate != rate)
        flow_rate_set(s, id, rate);
    return true;
}

/* The level of a link that was not full, by what each flow may have elsewhere: for those that it does not hold back, what they have. */
static bool level_find(struct sim *s, uint32_t i)
{
    const struct link *l = &s->links[i];

    if (!limits_room(s, l->n))
        return false;
    for (uint32_t k = 0; k < l->n; k++) {
        const uint32_t id = l->flows[k] >> s->path_shift;
        const bool known = s->paces[id].holder != i && s->paces[id].rate > 0;
        s->limits[k] = (struct limit){.rate = known ? s->paces[id].rate : flow_limit(s, id), .flow = id};
    }
    const uint32_t n = l->n;
    s->gauges[i].level = level_of(s->limits, n, l->bytes_s);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t id = s->limits[k].flow;
        const double limit = s->limits[k].rate;
        bool well = true;
        if (limit > s->gauges[i].level && s->paces[id].holder != i)
            well = flow_take(s, i, id);
        else if (limit < s->gauges[i].level && s->paces[id].holder == i)
            well = flow_give(s, i, id, limit);
        else if (s->paces[id].holder == i && s->paces[id].rate != s->gauges[i].level)
            flow_rate_set(s, id, s->gauges[i].level);
        if (!well)
            return false;
    }
    return true;
}

/* All flows that a link holds back get its level. */
static void level_set(struct sim *s, uint32_t i, double level)
{
    const struct link *l = &s->links[i];

    s->gauges[i].level = level;
    for (uint32_t k = 0; k < l->nheld; k++)
        flow_rate_set(s, l->held[k].flow, level);
}

/* A full link whose held flows may have more than before: each as much as its other links let it have, and those that are held back there leave. */
static bool level_rise(struct sim *s, uint32_t i, double left, double level)
{
    const struct link *l = &s->links[i];
    const uint32_t n = l->nheld;
    uint32_t stay = n;

    if (!limits_room(s, n))
        return false;
    s->gauges[i].level = DBL_MAX; /* so it limits none of its flows meanwhile */
    for (uint32_t k = 0; k < n; k++)
        s->limits[k] = (struct limit){.rate = flow_limit(s, l->held[k].flow), .flow = l->held[k].flow};
    for (uint32_t counted = 0; counted != stay;) { /* those that leave let the level rise further */
        double rest = left;
        counted = stay;
        stay = 0;
        for (uint32_t k = 0; k < n; k++) {
            const bool stays = s->limits[k].rate >= level;
            stay += stays;
            rest -= stays ? 0 : s->limits[k].rate;
        }
        if (stay != counted)
            level = stay ? share_of(rest, stay) : DBL_MAX;
    }
    s->gauges[i].level = level;
    for (uint32_t k = 0; k < n; k++) {
        if (s->limits[k].rate >= level)
            flow_rate_set(s, s->limits[k].flow, level);
        else if (!flow_give(s, i, s->limits[k].flow, s->limits[k].rate))
            return false;
    }
    return true;
}

/* A full link whose flows are to have less than before: those of others that have more than this now are held back here. */
static bool level_fall(struct sim *s, uint32_t i, double left, double level)
{
    const struct link *l = &s->links[i];
    uint32_t more = 0;

    if (!limits_room(s, l->n))
        return false;
    for (uint32_t k = 0; k < l->n; k++) {
        const uint32_t id = l->flows[k] >> s->path_shift;
        s->limits[more] = (struct limit){.rate = s->paces[id].rate, .flow = id};
        more += (s->paces[id].rate > level) & (s->paces[id].holder != i);
    }
    for (bool fewer = more > 0; fewer;) { /* with these the level is higher, so that some of them may be below it */
        double all = left;
        uint32_t kept = 0;
        for (uint32_t k = 0; k < more; k++)
            all += s->limits[k].rate;
        level = share_of(all, l->nheld + more);
        for (uint32_t k = 0; k < more; k++)
            if (s->limits[k].rate > level)
                s->limits[kept++] = s->limits[k];
        fewer = kept > 0 && kept < more;
        more = kept;
    }
    level_set(s, i, level);
    for (uint32_t k = 0; k < more; k++)
        if (!flow_take(s, i, s->limits[k].flow))
            return false;
    return true;
}

/* A full link finds its new level from the one before: what it does not hold back has at most that, wherever it is held back. */
static bool level_move(struct sim *s, uint32_t i)
{
    const struct link *l = &s->links[i];
    const double left = l->bytes_s - (link_sum(s, i) - s->gauges[i].level * l->nheld);

    if (l->nheld == 0 && left >= 0) {
        s->gauges[i].level = DBL_MAX;
        return true;
    }
    if (l->nheld == 0) {
        s->gauges[i].level = DBL_MAX;
        return level_find(s, i);
    }
    const double level = share_of(left, l->nheld);
    return level > s->gauges[i].level ? level_rise(s, i, left, level)
                                      : level == s->gauges[i].level || level_fall(s, i, left, level);
}

static bool link_settle(struct sim *s, uint32_t i)
{
    struct link *l = &s->links[i];

    link_advance(s, i);
    if (l->fixed || !link_is_off(s, i)) /* it is looked at because the flow that ends first is another one */
        return true;
    if (s->gauges[i].level < DBL_MAX ? !level_move(s, i) : (l->nheld > 0 || link_sum(s, i) > l->bytes_s) && !level_find(s, i))
        return false;
    s->found[i] = link_sum(s, i);
    return true;
}

bool links_settle(struct sim *s)
{
    uint32_t ntimed = 0;

    while (s->ndirty_links) {
        const uint32_t i = s->dirty_links[s->first_dirty_link++];
        if (s->first_dirty_link == s->nlinks)
            s->first_dirty_link = 0;
        s->ndirty_links--;
        if (!link_settle(s, i)) /* still marked, so what it changes itself does not bring it back */
            return false;
        s->links[i].dirty = false;
        link_mark_set(s, i);
        if (!s->links[i].timed)
            s->timed_links[ntimed++] = i;
        s->links[i].timed = true;
    }
    for (uint32_t k = 0; k < ntimed; k++) /* once each, however often its level changed */
        if (!link_event(s, s->timed_links[k]))
            return false;
    return true;
}
