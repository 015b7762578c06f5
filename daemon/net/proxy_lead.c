/* SPDX-License-Identifier: MIT
 *
 * proxy_lead.c - a thread of the owner that does the proxy's work in the place of the proxy's own thread.
 *
 * Handing data from thread to thread costs two context switches where cores are short, and a wake-up elsewhere: more than sending
 * a small slice takes. So the thread that runs an operator and waits for others' data sends and receives by itself.
 *
 * One at a time. Whoever does a turn holds proxy.turn, so all that belongs to the proxy's thread has one user at a time, and each
 * sees what the one before has stored. The order that a link promises, data before flags, is that of the calls on it, whichever
 * thread made them: the store of a write's bytes by one thread happens before (mutex) the flag's store by the next, which is a
 * release, so who loads the flag with acquire sees the bytes.
 *
 * Nothing is left lying. While the leader is awake it drives. Before it sleeps it announces so to the FIFO's producers (fifo.h) and
 * finds what was pushed before; then it waits for proxy.epoll, which the doorbell and all sockets are in. Other threads take events
 * from there only by doing a turn, which goes on until nothing is left that is not announced by a later event. The thread that
 * stands in wakes up every LEAD_NAP_MS (LEAD_REST_MS while the leader sleeps), and earlier for what falls due. Where the leader has
 * driven nothing in between and does not sleep, it is busy with something long, and that thread does the work until it drives again.
 */
#include <poll.h>
#include <unistd.h>

#include "daemon/net/proxy_inside.h"
#include "proto/base/clock.h"

#define LEAD_NAP_MS 10   /* how often a leader that is awake must have driven */
#define LEAD_REST_MS 100 /* how often the thread looks whether a leader that sleeps has woken up */
#define LEAD_AWAY_MS 1   /* how long the thread sleeps between two turns while the leader is away: nobody rings for pushes */

void proxy_relieve(struct proxy *p)
{
    static const uint64_t one = 1;
    ssize_t n = write(p->relief, &one, sizeof(one)); /* fails only if it rings already */
    (void)n;
}

void proxy_lead(struct proxy *p)
{
    (void)pthread_mutex_lock(&p->turn);
    atomic_store_explicit(&p->led, !p->may_not_lead, memory_order_release);
    (void)pthread_mutex_unlock(&p->turn);
    proxy_relieve(p); /* the thread may sleep, and is to stand in from now on */
}

void proxy_lead_end(struct proxy *p)
{
    (void)pthread_mutex_lock(&p->turn);
    p->may_not_lead = true;
    atomic_store_explicit(&p->led, 0, memory_order_release);
    (void)pthread_mutex_unlock(&p->turn);
    proxy_relieve(p);
}

bool proxy_leads(const struct proxy *p)
{
    return proxy_is_led(p);
}

bool proxy_drive(struct proxy *p)
{
    if (!proxy_is_led(p))
        return false;
    (void)atomic_fetch_add_explicit(&p->drives, 1, memory_order_relaxed);
    if (pthread_mutex_trylock(&p->turn))
        return false; /* the thread that stands in is at it */
    bool any = proxy_turn(p);
    (void)pthread_mutex_unlock(&p->turn);
    return any;
}

bool proxy_has_sent(struct proxy *p)
{
    if (!proxy_is_led(p) || pthread_mutex_trylock(&p->turn))
        return false; /* the thread that stands in is at it */
    bool all = proxy_is_led(p) && !p->feeds[0].is_held && fifo_is_drained(&p->fifo) && p->ends_first == p->ends_next;
    for (uint32_t r = 0; all && r < p->nrails; r++)
        for (uint32_t i = 0; i < p->nnodes; i++) {
            const struct source *s = p->nodes[i].links[r];
            all &= !s || s->link->flushed == s->link->queued;
        }
    (void)pthread_mutex_unlock(&p->turn);
    return all;
}

bool proxy_rest(struct proxy *p)
{
    bool may = true;

    (void)pthread_mutex_lock(&p->turn);
    if (proxy_is_led(p)) /* the stand-in's last turn may have taken events and left work for which no other event will come */
        may = !proxy_turn(p) && (p->feeds[0].is_held || fifo_sleep(&p->fifo));
    atomic_store_explicit(&p->rests, may, memory_order_relaxed);
    (void)pthread_mutex_unlock(&p->turn);
    return may;
}

void proxy_wake(struct proxy *p)
{
    (void)atomic_fetch_add_explicit(&p->drives, 1, memory_order_relaxed);
    atomic_store_explicit(&p->rests, 0, memory_order_relaxed);
    (void)pthread_mutex_lock(&p->turn);
    if (proxy_is_led(p)) /* otherwise the announcement is that of the proxy's thread */
        fifo_wake(&p->fifo);
    (void)pthread_mutex_unlock(&p->turn);
}

int proxy_rest_fd(const struct proxy *p)
{
    return p->epoll;
}

/* ---- reading at once ----
 *
 * A leader that waits for an operator's data looks again and again, and then few connections come here, mostly one. To read it takes as long as
 * to ask epoll whether there is anything, and spares that where there is. So it is read in each turn, and epoll is asked every PROXY_LOOK_NS, or at once
 * where a link waits for room. What is not asked for is not lost: epoll keeps it, and whoever sleeps until its descriptor is readable is woken by it.
 */
#define PROXY_AT_ONCE 2u     /* the most connections that are read at once */
#define PROXY_LOOK_NS 100000 /* how long epoll may wait */

static bool links_are_blocked(const struct proxy *p)
{
    for (uint32_t r = 0; r < p->nrails; r++)
        for (uint32_t i = 0; i < p->nnodes; i++)
            if (p->nodes[i].links[r] && p->nodes[i].links[r]->link->is_blocked)
                return true;
    return false;
}

bool proxy_reads_at_once(struct proxy *p)
{
    const struct source *s;
    unsigned n = 0;

    if (!proxy_is_led(p))
        return false;
    p->now_ns = clock_ns();
    if (p->now_ns - p->looked_ns >= PROXY_LOOK_NS || links_are_blocked(p))
        return false;
    TAILQ_FOREACH(s, &p->incoming, entry) {
        if (++n > PROXY_AT_ONCE)
            return false;
    }
    return n > 0;
}

bool proxy_incoming_try(struct proxy *p)
{
    struct source *s, *next;
    bool any = false;

    TAILQ_FOREACH_SAFE(s, &p->incoming, entry, next) {
        const struct net_counts *counts = s->receiver->counts;
        uint64_t before = atomic_load_explicit(&counts->bytes, memory_order_relaxed);
        bool more = s->is_ready;
        any |= incoming_take(p, s) || more || atomic_load_explicit(&counts->bytes, memory_order_relaxed) != before;
    }
    return any;
}

/* ---- the proxy's thread ---- */

static bool is_away(const struct proxy *p, uint32_t drives)
{
    return proxy_is_led(p) && !atomic_load_explicit(&p->stop, memory_order_acquire) &&
           !atomic_load_explicit(&p->rests, memory_order_relaxed) &&
           atomic_load_explicit(&p->drives, memory_order_relaxed) == drives;
}

static bool turn_do(struct proxy *p, int *due_ms)
{
    (void)pthread_mutex_lock(&p->turn);
    bool any = proxy_turn(p), rests = atomic_load_explicit(&p->rests, memory_order_relaxed);
    *due_ms = proxy_due_ms(p);
    (void)pthread_mutex_unlock(&p->turn);
    if (any && rests) /* this turn has taken what would have woken the leader, who does the rest */
        proxy_look(p);
    return any;
}

void proxy_stand_in(struct proxy *p)
{
    uint32_t drives = atomic_load_explicit(&p->drives, memory_order_relaxed);
    bool rests = atomic_load_explicit(&p->rests, memory_order_relaxed);
    struct pollfd relief = {.fd = p->relief, .events = POLLIN}, sockets = {.fd = p->epoll, .events = POLLIN};
    int due_ms, limit_ms = rests ? LEAD_REST_MS : LEAD_NAP_MS;
    uint64_t rings;

    (void)pthread_mutex_lock(&p->turn);
    due_ms = proxy_due_ms(p);
    (void)pthread_mutex_unlock(&p->turn);
    if (poll(&relief, 1, due_ms >= 0 && due_ms < limit_ms ? due_ms : limit_ms) > 0) {
        ssize_t n = read(p->relief, &rings, sizeof(rings));
        (void)n;
        return; /* the proxy stops, or is not led any more */
    }
    if (due_ms >= 0 && due_ms <= limit_ms)
        (void)turn_do(p, &due_ms); /* what has fallen due */
    while (is_away(p, drives)) {
        if (!turn_do(p, &due_ms))
            (void)poll(&sockets, 1, LEAD_AWAY_MS);
    }
}
