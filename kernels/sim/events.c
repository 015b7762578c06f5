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

static bool before(const struct event *a, const struct event *b)
{
    /* one number of both, so that no branch is guessed: which of two comes first is as good as random */
    return ((unsigned __int128)a->at << 64 | a->order) < ((unsigned __int128)b->at << 64 | b->order);
}

/* Which of those that can be moved an event is; the one after the last: none. */
static uint32_t moved_of(const struct sim *s, const struct event *e)
{
    const uint32_t none = s->nlinks + s->nmemories, memory = e->kind == EVENT_MEMORY ? s->nlinks + e->id : none;

    return e->kind == EVENT_LINK ? e->id : memory;
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

static void store(struct sim *s, uint32_t i, struct event e)
{
    s->events.heap[i] = e;
    s->events.places[moved_of(s, &e)] = i;
}

static void up(struct sim *s, uint32_t i, struct event e)
{
    while (i > 0 && before(&e, &s->events.heap[(i - 1) / 4])) {
        store(s, i, s->events.heap[(i - 1) / 4]);
        i = (i - 1) / 4;
    }
    store(s, i, e);
}

static void down(struct sim *s, uint32_t i, struct event e)
{
    const struct event *heap = s->events.heap;
    const uint32_t n = s->events.n;

    for (uint32_t child; (child = 4 * i + 1) < n;) {
        if (child + 3 < n) { /* all four: which of them comes first is found without a branch */
            const uint32_t a = child + before(&heap[child + 1], &heap[child]);
            const uint32_t b = child + 2 + before(&heap[child + 3], &heap[child + 2]);
            child = a + (b - a) * before(&heap[b], &heap[a]);
        } else {
            for (uint32_t k = child + 1; k < n; k++)
                child = before(&heap[k], &heap[child]) ? k : child;
        }
        if (!before(&heap[child], &e))
            break;
        store(s, i, heap[child]);
        i = child;
    }
    store(s, i, e);
}

bool event_put(struct sim *s, enum event_kind kind, uint32_t id, uint64_t at)
{
    const struct event e = {.at = at, .order = s->events.order++, .kind = kind, .id = id};

    if (!array_room(&s->events.heap, s->events.n, &s->events.room, sizeof(e))) {
        s->failed = true;
        return false;
    }
    up(s, s->events.n++, e);
    return true;
}

/* Takes out the first event of the heap. */
static void first_take(struct sim *s)
{
    const struct event last = s->events.heap[--s->events.n];

    s->events.places[moved_of(s, &s->events.heap[0])] = NONE;
    if (s->events.n)
        down(s, 0, last);
}

bool event_move(struct sim *s, enum event_kind kind, uint32_t id, uint64_t at)
{
    struct event e = {.at = at, .kind = kind, .id = id};
    const uint32_t which = moved_of(s, &e), place = s->events.places[which];
    struct moved *m = &s->events.moved[which];

    if (place == NONE && at == NEVER)
        return true;
    m->at = at;
    m->order = e.order = s->events.order;
    if (place == NONE)
        return event_put(s, kind, id, at);
    s->events.order++;
    if (at < s->events.heap[place].at)
        up(s, place, e);
    return true;
}

/* The heap's first event, which stands where it belongs; NULL: there is none. */
static const struct event *first_of(struct sim *s)
{
    while (s->events.n) {
        struct event *e = &s->events.heap[0];
        const uint32_t which = moved_of(s, e);
        const struct moved *m = &s->events.moved[which];
        if (!is_moved(s, which) || m->order == e->order)
            return e;
        if (m->at == NEVER)
            first_take(s);
        else
            down(s, 0, (struct event){.at = m->at, .order = m->order, .kind = e->kind, .id = e->id});
    }
    return NULL;
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

/* Where the earliest event stands: a lane, or LANES: the heap. */
static unsigned earliest(struct sim *s, const struct event **out)
{
    unsigned where = LANES;

    *out = first_of(s);
    for (unsigned k = 0; k < LANES; k++) {
        const struct lane *l = &s->events.lane[k];
        if (l->n && (!*out || before(&l->ring[l->first], *out))) {
            *out = &l->ring[l->first];
            where = k;
        }
    }
    return where;
}

bool event_due(struct sim *s)
{
    const struct events *q = &s->events;
    const uint32_t first = q->n ? moved_of(s, &q->heap[0]) : NONE;
    const struct event *e;

    for (unsigned k = 0; k < LANES; k++)
        if (q->lane[k].n && q->lane[k].ring[q->lane[k].first].at <= s->now)
            return true;
    if (is_moved(s, first) &&
        q->moved[first].at ==
            NEVER) { /* it has just been taken: it goes down once it is known where to, and none comes before those below it */
        bool due = false;
        for (uint32_t k = 1; k <= 4 && k < q->n; k++)
            due |= q->heap[k].at <= s->now;
        if (!due)
            return false;
    }
    e = first_of(s);
    return e && e->at <= s->now;
}

bool event_take(struct sim *s, struct event *out)
{
    const struct event *e;
    const unsigned where = earliest(s, &e);

    if (!e)
        return false;
    *out = *e;
    if (where == LANES) {
        const uint32_t which = moved_of(s, out);
        if (is_moved(s, which)) { /* it stays where it stands, as it will soon be moved again */
            s->events.moved[which] = (struct moved){.at = NEVER, .order = s->events.order++};
        } else {
            first_take(s);
        }
    } else {
        struct lane *l = &s->events.lane[where];
        l->first = (l->first + 1) & (l->room - 1);
        l->n--;
    }
    return true;
}
