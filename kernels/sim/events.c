/* SPDX-License-Identifier: MIT
 *
 * events.c - the queue of events: a heap of four children a node. Events of memories and links know their place, so they can be moved:
 * to an earlier time at once, and to a later one when they come to be the first, as most of them are moved again before. Those which always come
 * the same time after they are put need no heap: they stand in lanes.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/inside.h"

bool array_grow(void *array, uint32_t *room, size_t size)
{
    void **p = array, *grown;

    const uint32_t more = *room ? 2 * *room : 16;
    grown = realloc(*p, more * size);
    if (!grown)
        return false;
    *p = grown;
    *room = more;
    return true;
}

bool ring_grow(void *ring, uint32_t first, uint32_t *room, size_t size)
{
    const uint32_t was = *room;

    if (!array_grow(ring, room, size))
        return false;
    if (was) { /* what stood at the ring's beginning follows what stands at its end, now that there is room */
        char *bytes = *(void **)ring;
        memcpy(bytes + was * size, bytes, first * size);
    }
    return true;
}

static unsigned __int128 key(uint64_t at, uint64_t order)
{
    return (unsigned __int128)at << 64 |
           order; /* one number of both, so that no branch is guessed: which of two comes first is as good as random */
}

static bool before(const struct when *a, const struct when *b)
{
    return key(a->at, a->order) < key(b->at, b->order);
}

/* Where an event stands among those that can be moved; the one after the last: it cannot. */
static uint32_t moved_of(const struct sim *s, enum event_kind kind, uint32_t id)
{
    return kind == EVENT_LINK ? id : kind == EVENT_MEMORY ? s->nlinks + id : s->nlinks + s->nmemories;
}

static bool is_moved(const struct sim *s, uint32_t moved)
{
    return moved < s->nlinks + s->nmemories;
}

bool moved_new(struct sim *s)
{
    const size_t n = (size_t)s->nlinks + s->nmemories + 1;

    s->events.moved = calloc(n, sizeof(*s->events.moved));
    s->events.places = malloc(n * sizeof(*s->events.places));
    if (s->events.places)
        memset(s->events.places, 0xff, n * sizeof(*s->events.places)); /* NONE */
    return s->events.moved && s->events.places;
}

/* Room for twice as many. The first stands so that the four children of each are a cache line, wherever the memory lies; it is not taken anew, as what is
 * freed makes malloc() keep more. */
static bool heap_grow(struct events *q)
{
    const size_t line = 64 / sizeof(*q->heap), was = q->heap ? (size_t)(q->heap - q->heap_begin) : 0;
    uint32_t room = q->room;

    if (!array_grow(&q->whats, &room, sizeof(*q->whats)))
        return false;
    struct when *begin = realloc(q->heap_begin, (line + room) * sizeof(*begin));
    if (!begin)
        return false;
    const size_t at = (uintptr_t)(begin + 1) / sizeof(*begin) % line, skipped = at ? line - at : 0;
    memmove(begin + skipped, begin + was, q->n * sizeof(*begin));
    q->heap_begin = begin;
    q->heap = begin + skipped;
    q->room = room;
    return true;
}

void events_free(struct sim *s)
{
    struct events *q = &s->events;

    free(q->heap_begin);
    for (unsigned k = 0; k < LANES; k++)
        free(q->lane[k].ring);
    free(q->whats);
    free(q->moved);
    free(q->places);
}

static void store(struct events *q, uint32_t i, struct when when, struct what what)
{
    q->heap[i] = when;
    q->whats[i] = what;
    q->places[what.moved] = i;
}

static void up(struct events *q, uint32_t i, struct when when, struct what what)
{
    while (i > 0 && before(&when, &q->heap[(i - 1) / 4])) {
        store(q, i, q->heap[(i - 1) / 4], q->whats[(i - 1) / 4]);
        i = (i - 1) / 4;
    }
    store(q, i, when, what);
}

static void down(struct events *q, uint32_t i, struct when when, struct what what)
{
    const struct when *heap = q->heap;
    const uint32_t n = q->n;

    for (uint32_t child; (child = 4 * i + 1) < n;) {
        if (child + 3 < n) { /* all four: which of them comes first is found without a branch */
            const uint32_t a = child + before(&heap[child + 1], &heap[child]);
            const uint32_t b = child + 2 + before(&heap[child + 3], &heap[child + 2]);
            child = a + (b - a) * before(&heap[b], &heap[a]);
        } else {
            for (uint32_t k = child + 1; k < n; k++)
                child = before(&heap[k], &heap[child]) ? k : child;
        }
        if (!before(&heap[child], &when))
            break;
        store(q, i, heap[child], q->whats[child]);
        i = child;
    }
    store(q, i, when, what);
}

bool event_put(struct sim *s, enum event_kind kind, uint32_t id, uint64_t at)
{
    struct events *q = &s->events;
    const struct when when = {.at = at, .order = q->order++};

    if (q->n == q->room && !heap_grow(q)) {
        s->failed = true;
        return false;
    }
    up(q, q->n++, when, (struct what){.kind = kind, .id = id, .moved = moved_of(s, kind, id)});
    return true;
}

/* Takes out the first event of the heap. */
static void first_take(struct events *q)
{
    const uint32_t last = --q->n;

    q->places[q->whats[0].moved] = NONE;
    if (last)
        down(q, 0, q->heap[last], q->whats[last]);
}

bool event_move(struct sim *s, enum event_kind kind, uint32_t id, uint64_t at)
{
    struct events *q = &s->events;
    const uint32_t which = moved_of(s, kind, id), place = q->places[which];

    if (place == NONE && at == NEVER)
        return true;
    const struct when when = {.at = at, .order = q->order};
    q->moved[which] = when;
    if (place == NONE)
        return event_put(s, kind, id, at);
    q->order++;
    if (at < q->heap[place].at)
        up(q, place, when, q->whats[place]);
    return true;
}

/* The heap's first event stands where it belongs; false: there is none. */
static bool first_settle(struct sim *s)
{
    struct events *q = &s->events;

    while (q->n) {
        const struct what what = q->whats[0];
        const struct when when = q->moved[what.moved];
        if (!is_moved(s, what.moved) || when.order == q->heap[0].order)
            return true;
        if (when.at == NEVER)
            first_take(q);
        else
            down(q, 0, when, what);
    }
    return false;
}

bool event_put_lane(struct sim *s, enum lane_kind lane, enum event_kind kind, uint32_t id, uint64_t after)
{
    struct lane *l = &s->events.lane[lane];

    if (!ring_room(&l->ring, l->first, l->n, &l->room, sizeof(*l->ring))) {
        s->failed = true;
        return false;
    }
    l->ring[(l->first + l->n++) & (l->room - 1)] =
        (struct event){.at = ps_after(s->now, after), .order = s->events.order++, .kind = kind, .id = id};
    return true;
}

/* Where the earliest event stands: a lane, or LANES: the heap; more: there is none. */
static unsigned earliest(struct sim *s)
{
    const struct events *q = &s->events;
    unsigned __int128 first = ~(unsigned __int128)0;
    unsigned where = LANES + 1;

    if (first_settle(s)) {
        first = key(q->heap[0].at, q->heap[0].order);
        where = LANES;
    }
    for (unsigned k = 0; k < LANES; k++) {
        const struct lane *l = &q->lane[k];
        if (l->n && key(l->ring[l->first].at, l->ring[l->first].order) < first) {
            first = key(l->ring[l->first].at, l->ring[l->first].order);
            where = k;
        }
    }
    return where;
}

bool event_due(struct sim *s)
{
    const struct events *q = &s->events;
    const uint32_t first = q->n ? q->whats[0].moved : NONE;

    for (unsigned k = 0; k < LANES; k++)
        if (q->lane[k].n && q->lane[k].ring[q->lane[k].first].at <= s->now)
            return true;
    if (is_moved(s, first) && q->moved[first].at == NEVER) {
        /* it has just been taken: it goes down once it is known where to, and none comes before those below it */
        bool due = false;
        for (uint32_t k = 1; k <= 4 && k < q->n; k++)
            due |= q->heap[k].at <= s->now;
        if (!due)
            return false;
    }
    return first_settle(s) && q->heap[0].at <= s->now;
}

bool event_take(struct sim *s, struct event *out)
{
    struct events *q = &s->events;
    const unsigned where = earliest(s);

    if (where > LANES)
        return false;
    if (where < LANES) {
        struct lane *l = &q->lane[where];
        *out = l->ring[l->first];
        l->first = (l->first + 1) & (l->room - 1);
        l->n--;
        return true;
    }
    const struct what what = q->whats[0];
    *out = (struct event){.at = q->heap[0].at, .order = q->heap[0].order, .kind = what.kind, .id = what.id};
    if (is_moved(s, what.moved)) /* it stays where it stands, as it will soon be moved again */
        q->moved[what.moved] = (struct when){.at = NEVER, .order = q->order++};
    else
        first_take(q);
    return true;
}
