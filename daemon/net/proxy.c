/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/net/proxy_inside.h"
#include "proto/base/clock.h"
#include "proto/base/fd.h"

#define PROXY_BATCH 64  /* triggers that are taken between two polls of the sockets */
#define PROXY_EVENTS 32 /* events of one epoll_wait() */

/* ---- triggers ---- */

static int end_add(struct proxy *p, uint32_t launch)
{
    if (p->ends_next - p->ends_first == PROXY_ENDS)
        return -EAGAIN;
    struct end *end = &p->ends[p->ends_next++ % PROXY_ENDS];
    end->launch = launch;
    for (uint32_t r = 0; r < p->nrails; r++)
        for (uint32_t i = 0; i < p->nnodes; i++) {
            const struct source *s = p->nodes[i].links[r];
            end->mark[r][i].serial = p->nodes[i].serials[r];
            end->mark[r][i].queued = s ? s->link->queued : 0;
        }
    return 0;
}

/* Are all links' sends from before the END flushed? A link that is gone, or was replaced, uses no source memory any more. */
static bool end_is_due(const struct proxy *p, const struct end *end)
{
    for (uint32_t r = 0; r < p->nrails; r++)
        for (uint32_t i = 0; i < p->nnodes; i++) {
            const struct source *s = p->nodes[i].links[r];
            if (s && p->nodes[i].serials[r] == end->mark[r][i].serial && s->link->flushed < end->mark[r][i].queued)
                return false;
        }
    return true;
}

/* Answers ENDs that are due. Each END's marks are at least those of the one before it, so they become due in order. */
static bool ends_finish(struct proxy *p)
{
    bool any = false;

    for (; p->ends_first != p->ends_next && end_is_due(p, &p->ends[p->ends_first % PROXY_ENDS]); any = true) {
        uint32_t launch = p->ends[p->ends_first++ % PROXY_ENDS].launch;
        p->owner.done(p->owner.ctx, launch);
    }
    return any;
}

/* Queues a put's areas one after the other. Returns 0, -EAGAIN, or the link's error. */
static int areas_write(struct net_link *l, struct proxy_send *send)
{
    for (;;) {
        int status = net_write(l, &send->to, send->from, &send->area);
        if (status || !send->more)
            return status;
        send->more--;
        send->from = (const unsigned char *)send->from + send->plane_bytes;
        send->to.offset += send->plane_bytes;
    }
}

/* Has every GPU's FIFO been seen empty since the last END was taken? Then no trigger from before that END is in a FIFO any
 * more. */
static bool feeds_are_done(const struct proxy *p)
{
    for (uint32_t i = 1; i < atomic_load_explicit(&p->nfeeds, memory_order_acquire); i++)
        if (!p->feeds[i].is_done)
            return false;
    return true;
}

/* Queues rows, then a signal. Returns 0, -EAGAIN (not everything is queued yet), or the link's error. */
static int put_send(struct net_link *l, struct proxy_send *send)
{
    int status = send->is_written || !send->area.rows ? 0 : areas_write(l, send);

    send->is_written |= !status;
    return !status && send->has_signal ? net_signal(l, &send->signal, send->epoch) : status;
}

/* Queues what the held trigger means. Returns 0 (also if it was dropped because the link failed), or -EAGAIN. */
static int held_send(struct proxy *p, struct feed *f)
{
    uint32_t kind = f->held.what & FCC_TRIGGER_KIND;
    struct proxy_send *send = &f->send;
    struct node *node = &p->nodes[send->node];
    int status;

    if (kind == FCC_TRIGGER_END)
        return feeds_are_done(p) ? end_add(p, f->held.launch) : -EAGAIN;
    struct source *s = node->links[send->rail];
    if (!s && node->is_ending)
        return 0;
    if (!s) {
        struct error e;
        (void)error_set(&e, -ENOTCONN, "there is no connection to send over");
        node_failed(p, send->node, &e);
        return 0;
    }
    if (kind == FCC_TRIGGER_PUT)
        status = put_send(s->link, send);
    else
        status = net_flag(s->link, send->to.comm, send->to.rank, send->flag, send->epoch);
    if (status && status != -EAGAIN) {
        link_failed(p, s);
        return 0;
    }
    return status;
}

/* Resolves the trigger that was just taken. Returns false if it is to be dropped. */
static bool held_resolve(struct proxy *p, struct feed *f)
{
    uint32_t kind = f->held.what & FCC_TRIGGER_KIND;

    assert(kind);
    if (kind == FCC_TRIGGER_END) {
        for (uint32_t i = 1; i < PROXY_FEEDS; i++)
            p->feeds[i].is_done = false;
        return true;
    }
    f->send = (struct proxy_send){0};
    bool is_wanted = p->owner.resolve(p->owner.ctx, &f->held, &f->send);
    assert(f->send.node < PROXY_NODES && f->send.rail < NET_RAILS_MAX);
    return is_wanted;
}

/* Takes the feed's next trigger into `held` and resolves it. The proxy's own feed also takes from owner.more(). Returns false
 * if there is none. Sets *is_wanted to false if the trigger is to be dropped. */
static bool trigger_next(struct proxy *p, struct feed *f, bool *is_wanted)
{
    bool is_own = f == &p->feeds[0];

    *is_wanted = true;
    for (int i = 0; i < (is_own ? 2 : 1); i++) {
        p->more_next ^= is_own;
        if (!is_own || p->more_next) {
            if (!fifo_pop(f->fifo, &f->held))
                continue;
            (void)arrivals_take(
                p); /* finds links that were added before the push, as the pop acquires what the push released */
            *is_wanted = held_resolve(p, f);
            return true;
        }
        f->send = (struct proxy_send){0};
        if (p->owner.more && p->owner.more(p->owner.ctx, &f->send)) {
            assert(f->send.node < PROXY_NODES && f->send.rail < NET_RAILS_MAX);
            (void)arrivals_take(p); /* finds the link, which was added before more() returned a send for it */
            f->held = (struct fcc_trigger){.what = FCC_TRIGGER_PUT};
            return true;
        }
    }
    return false;
}

static bool feed_take(struct proxy *p, struct feed *f)
{
    for (int n = 0; n < PROXY_BATCH; n++) {
        bool is_new = !f->is_held, is_wanted;
        if (is_new && !trigger_next(p, f, &is_wanted)) {
            f->is_done = true;
            return n > 0;
        }
        if (is_new && !is_wanted)
            continue;
        f->is_held = held_send(p, f) != 0;
        if (f->is_held) {
            if (is_new && (f->held.what & FCC_TRIGGER_KIND) != FCC_TRIGGER_END)
                net_count(&p->nodes[f->send.node].sent.full, 1);
            return n > 0;
        }
    }
    return true;
}

/* Takes triggers from all FIFOs. Returns true if there were any, or if an END waits for the GPUs' FIFOs to be seen empty. */
static bool triggers_take(struct proxy *p)
{
    uint32_t nfeeds = atomic_load_explicit(&p->nfeeds, memory_order_acquire);
    const struct feed *own = &p->feeds[0];
    bool any = false;

    for (uint32_t i = 0; i < nfeeds; i++)
        any |= feed_take(p, &p->feeds[i]);
    return any || (own->is_held && (own->held.what & FCC_TRIGGER_KIND) == FCC_TRIGGER_END && nfeeds > 1);
}

/* ---- the thread ---- */

static void link_event(struct proxy *p, struct source *s, uint32_t events)
{
    if (events & EPOLLOUT)
        s->link->is_blocked = false;
    if (!(events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
        return;
    if (s->link->ops->look(s->link))
        link_failed(p, s);
    else /* relaxed suffices: the name is a string of the verbs library, older than the link */
        atomic_store_explicit(&p->nodes[s->node].devices[s->rail], s->link->device, memory_order_relaxed);
}

/* Handles epoll events. Receivers are only marked as ready. */
static bool sockets_look(struct proxy *p)
{
    struct epoll_event events[PROXY_EVENTS];
    uint64_t rings;
    int n = epoll_wait(p->epoll, events, PROXY_EVENTS, 0);

    p->now_ns = p->looked_ns = clock_ns();
    for (int i = 0; i < n; i++) {
        struct source *s = events[i].data.ptr;
        if (s->of == EVENT_DOORBELL) {
            ssize_t got = read(p->doorbell, &rings, sizeof(rings));
            (void)got;
        } else if (s->link) {
            link_event(p, s, events[i].events);
        } else if (s->receiver) {
            s->is_ready = true;
        }
    }
    closed_free(&p->closed);
    return n > 0;
}

static bool link_progress(struct proxy *p, struct source *s)
{
    struct net_link *l = s->link;
    bool has_work = l->queued != l->flushed && !l->is_blocked;

    if (!has_work && p->now_ns < l->due_ns && !l->error.status)
        return false;
    if (net_progress(l, p->now_ns) < 0)
        link_failed(p, s);
    return has_work;
}

static bool links_progress(struct proxy *p)
{
    bool any = false;

    for (uint32_t r = 0; r < p->nrails; r++)
        for (uint32_t i = 0; i < p->nnodes; i++) {
            if (r == 0 && p->nodes[i].links[0] && !TAILQ_EMPTY(&p->nodes[i].letters))
                any |= node_letters_send(p, i);
            if (p->nodes[i].links[r])
                any |= link_progress(p, p->nodes[i].links[r]);
        }
    return any;
}

static bool incoming_progress(struct proxy *p)
{
    struct source *s, *next;
    bool any = false;

    TAILQ_FOREACH_SAFE(s, &p->incoming, entry, next) {
        if (!s->is_ready && p->now_ns < incoming_due(s))
            continue;
        any |= s->is_ready;
        (void)incoming_take(p, s);
    }
    return any;
}

int proxy_due_ms(const struct proxy *p)
{
    uint64_t due = UINT64_MAX, now = clock_ns();
    int more_ms = p->owner.more_ms && !p->feeds[0].is_held ? p->owner.more_ms(p->owner.ctx) : -1;
    const struct source *s;

    if (more_ms >= 0)
        due = now + (uint64_t)more_ms * 1000000;

    for (uint32_t r = 0; r < p->nrails; r++)
        for (uint32_t i = 0; i < p->nnodes; i++) {
            s = p->nodes[i].links[r];
            if (s && s->link->due_ns < due)
                due = s->link->due_ns;
        }
    TAILQ_FOREACH(s, &p->incoming, entry) {
        if (incoming_due(s) < due)
            due = incoming_due(s);
    }
    if (due == UINT64_MAX)
        return -1;
    return due > now ? (int)((due - now + 999999) / 1000000) : 0;
}

/* May there be a trigger in a GPU's FIFO, now or soon? `awake` is loaded first: if it is 0, the load acquires what was pushed
 * before it became 0. */
static bool feeds_keep_awake(const struct proxy *p)
{
    if (atomic_load_explicit(&p->awake, memory_order_seq_cst))
        return true;
    for (uint32_t i = 1; i < atomic_load_explicit(&p->nfeeds, memory_order_acquire); i++)
        if (!p->feeds[i].is_held && !fifo_is_empty(p->feeds[i].fifo))
            return true;
    return false;
}

/* GPUs cannot wake the proxy. It polls their FIFOs without a pause for FEEDS_PATIENCE times SPIN_US, then every FEEDS_NAP_NS,
 * which is little compared with the time that has passed. It naps sooner if other threads need the core. */
enum { FEEDS_PATIENCE = 25, FEEDS_NAP_NS = 100000 };

static void feeds_await(const struct proxy *p, const struct spin *spin)
{
    uint64_t patience = (uint64_t)p->options.spin_us * 1000 * (FEEDS_PATIENCE - 1);

    if (spin->taken < SPIN_TAKEN && clock_ns() < spin->until_ns + patience)
        spin_pause();
    else
        (void)nanosleep(&(struct timespec){.tv_nsec = FEEDS_NAP_NS}, NULL);
}

/* Sleeps until there is something to do. While a trigger is held, the FIFO need not be watched: epoll wakes the thread when the
 * link drains. New connections, proxy_stay_awake() and proxy_stop() store their change before they ring, and the ring lasts
 * until it is read. The thread waits with poll(), which takes no event, so another thread may do a turn meanwhile. */
static void proxy_sleep(struct proxy *p, const struct spin *spin)
{
    struct pollfd fds[] = {{.fd = p->epoll, .events = POLLIN}, {.fd = p->relief, .events = POLLIN}};
    uint64_t rings;

    if (feeds_keep_awake(p)) {
        feeds_await(p, spin);
        return;
    }
    (void)pthread_mutex_lock(&p->turn);
    bool sleeps = !proxy_is_led(p) && (p->feeds[0].is_held || fifo_sleep(&p->fifo));
    int limit_ms = proxy_due_ms(p);
    (void)pthread_mutex_unlock(&p->turn);
    if (!sleeps)
        return;
    (void)poll(fds, 2, limit_ms);
    ssize_t n =
        read(p->relief, &rings, sizeof(rings)); /* never blocks. There is a leader now, or no more, or the proxy stops */
    (void)n;
    (void)pthread_mutex_lock(&p->turn);
    if (!proxy_is_led(p)) /* otherwise the leader has announced its own sleep */
        fifo_wake(&p->fifo);
    (void)pthread_mutex_unlock(&p->turn);
}

bool proxy_turn(struct proxy *p)
{
    bool at_once = proxy_reads_at_once(p), any = !at_once && sockets_look(p);

    any |= arrivals_take(p);
    any |= triggers_take(p);
    any |= links_progress(p);
    any |= at_once ? proxy_incoming_try(p) : incoming_progress(p);
    any |= ends_finish(p);
    return any;
}

static void *proxy_main(void *arg)
{
    struct proxy *p = arg;
    struct spin spin = {0};

    while (!atomic_load_explicit(&p->stop, memory_order_acquire)) {
        if (proxy_is_led(p)) {
            proxy_stand_in(p);
            continue;
        }
        (void)pthread_mutex_lock(&p->turn);
        bool any = proxy_turn(p);
        (void)pthread_mutex_unlock(&p->turn);
        if (any)
            spin_reset(&spin);
        else if (!spin_once(&spin, p->options.spin_us))
            proxy_sleep(p, &spin);
    }
    return NULL;
}

/* ---- for others ---- */

void proxy_free(struct proxy *p)
{
    struct source *s;

    TAILQ_CONCAT(&p->incoming, &p->arrivals, entry);
    while ((s = TAILQ_FIRST(&p->incoming))) {
        TAILQ_REMOVE(&p->incoming, s, entry);
        source_close(p, s);
    }
    for (uint32_t i = 0; i < PROXY_NODES; i++)
        node_links_close(p, &p->nodes[i]);
    closed_free(&p->closed);
    fd_close(&p->epoll);
    fd_close(&p->doorbell);
    fd_close(&p->relief);
    (void)pthread_mutex_destroy(&p->turn);
    (void)pthread_mutex_destroy(&p->lock);
    free(p->slots);
    free(p->ends);
    free(p);
}

static int proxy_prepare(struct proxy *p, struct error *e)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &p->bell};

    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    p->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->relief = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->epoll < 0 || p->doorbell < 0 || p->relief < 0 || epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->doorbell, &event))
        return error_set(e, -errno, "cannot watch the proxy's sockets: %m");
    p->slots = calloc(p->options.capacity, sizeof(*p->slots));
    p->ends = calloc(PROXY_ENDS, sizeof(*p->ends));
    if (!p->slots || !p->ends)
        return error_set(e, -ENOMEM, "no memory for the proxy");
    if (fifo_init(&p->fifo, p->slots, p->options.capacity, p->options.producers, p->doorbell))
        return error_set(e, -EINVAL, "a trigger FIFO of %u for %u threads", p->options.capacity, p->options.producers);
    p->feeds[0].fifo = &p->fifo;
    atomic_init(&p->nfeeds, 1);
    return 0;
}

int proxy_start(const struct proxy_owner *owner, const struct proxy_options *options, struct proxy **out, struct error *e)
{
    struct proxy *p = aligned_alloc(_Alignof(struct proxy), sizeof(*p));

    if (!p)
        return error_set(e, -ENOMEM, "no memory for the proxy");
    memset(p, 0, sizeof(*p));
    p->owner = *owner;
    p->options = *options;
    p->sink = (struct net_sink){.regions = options->regions,
                                .raise = owner->raise,
                                .message = owner->message,
                                .early = owner->early,
                                .ctx = owner->ctx};
    p->epoll = p->doorbell = p->relief = -1;
    p->bell.of = EVENT_DOORBELL;
    TAILQ_INIT(&p->arrivals);
    TAILQ_INIT(&p->incoming);
    TAILQ_INIT(&p->closed);
    for (uint32_t i = 0; i < PROXY_NODES; i++)
        TAILQ_INIT(&p->nodes[i].letters);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_mutex_init(&p->turn, NULL);
    int status = proxy_prepare(p, e);
    if (!status) {
        status = -pthread_create(&p->thread, NULL, proxy_main, p);
        if (status)
            (void)error_set(e, status, "cannot start the proxy's thread: %s", strerror(-status));
    }
    if (status) {
        proxy_free(p);
        return status;
    }
    *out = p;
    return 0;
}

void proxy_stop(struct proxy *p)
{
    atomic_store_explicit(&p->stop, 1, memory_order_release);
    proxy_look(p);
    proxy_relieve(p);
    (void)pthread_join(p->thread, NULL);
}

struct fifo *proxy_fifo(struct proxy *p)
{
    return &p->fifo;
}

int proxy_feed_add(struct proxy *p, struct fifo *fifo, struct error *e)
{
    int status = 0;

    proxy_lead_end(p); /* a GPU's FIFO needs a thread that polls it */
    (void)pthread_mutex_lock(&p->lock);
    uint32_t n = atomic_load_explicit(&p->nfeeds, memory_order_relaxed);
    if (n == PROXY_FEEDS) {
        status = error_set(e, -ENOMEM, "the proxy has %u trigger FIFOs already", PROXY_FEEDS);
    } else {
        p->feeds[n].fifo = fifo;
        atomic_store_explicit(&p->nfeeds, n + 1, memory_order_release);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return status;
}

void proxy_stay_awake(struct proxy *p, bool awake)
{
    if (!awake)
        (void)atomic_fetch_sub_explicit(&p->awake, 1, memory_order_seq_cst);
    else if (!atomic_fetch_add_explicit(&p->awake, 1, memory_order_seq_cst))
        proxy_look(p);
}

const struct net_counts *proxy_sent(const struct proxy *p, uint32_t node)
{
    return &p->nodes[node].sent;
}

const struct net_counts *proxy_received(const struct proxy *p, uint32_t node)
{
    return &p->nodes[node].received;
}

struct net_rails proxy_rails(const struct proxy *p, uint32_t node, uint32_t rail)
{
    return p->nodes[node].rails[rail];
}

const char *proxy_rail_device(const struct proxy *p, uint32_t node, uint32_t rail)
{
    return atomic_load_explicit(&p->nodes[node].devices[rail], memory_order_relaxed);
}
