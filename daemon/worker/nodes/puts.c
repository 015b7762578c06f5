/* SPDX-License-Identifier: MIT */
#include "daemon/worker/nodes/puts.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/endpoint.h"
#include "daemon/worker/nodes/nodes.h"
#include "proto/sealed.h"
#include "proto/session.h"

#define PUTS_MAX 65536u /* puts of a rank */
#define POLL_MS 1       /* interval at which FIFOs are polled: kernels that push do not wake the proxy thread */

/* A reference on a buffer whose put was removed, until the proxy has sent its rows. */
struct retired {
    SLIST_ENTRY(retired) link;
    struct buffer *buffer;
    uint64_t after; /* released when ends_done has reached this */
};

struct puts {
    TAILQ_ENTRY(puts) open_link; /* all->open, unless closed */
    LIST_ENTRY(puts) owned_link; /* all->owned */
    struct puts_all *all;
    struct comm *comm; /* unless closed */
    int rank;
    bool is_closed;
    struct fcc_trigger_memory *memory;
    int fd;
    uint32_t entry;                /* nodes_puts_enter()'s, for END triggers */
    uint64_t ends_pushed;          /* the engine's */
    _Atomic uint64_t ends_done;    /* the proxy thread's */
    SLIST_HEAD(, retired) retired; /* the engine's */
    /* all->lock: */
    uint64_t tail; /* memory->tail is a copy of this for the client */
    struct put *table;
    uint32_t count, room, first_free;
    uint64_t serial;             /* of the newest put */
    uint32_t due[FCC_RULES_MAX]; /* a ring: indices of puts that rules have triggered, some of them removed meanwhile */
    uint32_t due_first, due_count;
    bool is_wrong; /* the client has pushed an invalid put: nothing more is read from the FIFO */
    uint64_t wrong_number;
};

struct puts_all {
    struct worker *worker;
    pthread_mutex_t lock;
    TAILQ_HEAD(, puts) open; /* lock: the engine adds and removes, the proxy thread rotates */
    _Atomic uint32_t count;  /* length of `open` */
    LIST_HEAD(, puts) owned; /* the engine's: open and closed ones */
};

struct puts_all *puts_all_new(struct worker *w, struct error *e)
{
    struct puts_all *all = calloc(1, sizeof(*all));

    if (!all) {
        (void)error_set(e, -ENOMEM, "no memory for puts");
        return NULL;
    }
    all->worker = w;
    (void)pthread_mutex_init(&all->lock, NULL);
    TAILQ_INIT(&all->open);
    LIST_INIT(&all->owned);
    return all;
}

/* ---- the FIFO's memory ---- */

static int memory_make(struct puts *p, struct error *e)
{
    void *memory;
    int status = sealed_memory_make("fccd-triggers", sizeof(*p->memory), &memory, &p->fd);

    if (status)
        return error_set(e, status == -ENOSPC ? -ENOMEM : status, "triggers: %s", strerror(-status));
    p->memory = memory;
    return 0;
}

static void puts_free(struct puts *p)
{
    struct retired *r;

    while ((r = SLIST_FIRST(&p->retired))) {
        SLIST_REMOVE_HEAD(&p->retired, link);
        buffer_unref(r->buffer);
        free(r);
    }
    if (p->memory) {
        (void)munmap(p->memory, sizeof(*p->memory));
        (void)close(p->fd);
        worker_memory_release(p->all->worker, sizeof(*p->memory));
    }
    if (p->entry) {
        nodes_puts_leave(p->all->worker, p->entry);
        LIST_REMOVE(p, owned_link);
    }
    free(p->table);
    free(p);
}

void puts_all_free(struct puts_all *all)
{
    struct puts *p;

    while ((p = LIST_FIRST(&all->owned)))
        puts_free(p);
    (void)pthread_mutex_destroy(&all->lock);
    free(all);
}

/* The member's puts, made by the first call. */
static int puts_get(struct member *m, struct puts **out, struct error *e)
{
    struct puts_all *all = nodes_puts(m->comm->worker);
    struct puts *p = m->puts;

    if (m->comm->state != COMM_ACTIVE)
        return m->comm->error.status ? error_set(e, m->comm->error.status, "%s", m->comm->error.text)
                                     : error_set(e, -EINVAL, "rank %d: not all ranks have joined yet", m->rank);
    if (!m->comm->nodes)
        return error_set(
            e, -EOPNOTSUPP, "rank %d: triggers are for ranks on other nodes: all ranks are on this one%s", m->rank,
            m->dev->device->ops->number == FCC_DEVICE_CPU ? "" : ", and its kernels' triggers are not there yet on GPUs");
    if (p) {
        *out = p;
        return 0;
    }
    p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(e, -ENOMEM, "triggers: out of memory");
    p->all = all;
    p->comm = m->comm;
    p->rank = m->rank;
    SLIST_INIT(&p->retired);
    int status = worker_memory_charge(all->worker, sizeof(*p->memory), e);
    if (!status && (status = memory_make(p, e)))
        worker_memory_release(all->worker, sizeof(*p->memory));
    if (!status && (status = nodes_puts_enter(all->worker, p, &p->entry, e)) == 0)
        LIST_INSERT_HEAD(&all->owned, p, owned_link);
    if (status) {
        puts_free(p);
        return status;
    }
    (void)pthread_mutex_lock(&all->lock);
    TAILQ_INSERT_TAIL(&all->open, p, open_link);
    (void)pthread_mutex_unlock(&all->lock);
    (void)atomic_fetch_add_explicit(&all->count, 1, memory_order_release);
    nodes_puts_look(all->worker);
    m->puts = p;
    *out = p;
    return 0;
}

int puts_open(struct member *m, int *fd, struct error *e)
{
    struct puts *p = NULL;
    int status = puts_get(m, &p, e);

    if (status)
        return status;
    assert(p);
    *fd = p->fd;
    return 0;
}

/* ---- registering ---- */

/* Locked. Find a free element of the table, which may grow. Returns its index, or PUTS_MAX. */
static uint32_t table_place(struct puts *p)
{
    while (p->first_free < p->count && p->table[p->first_free].used)
        p->first_free++;
    if (p->first_free < p->count || p->count == PUTS_MAX)
        return p->first_free < p->count ? p->first_free : PUTS_MAX;
    if (p->count == p->room) {
        uint32_t room = p->room ? p->room * 2 : 16;
        struct put *table = realloc(p->table, room * sizeof(*table));
        if (!table)
            return PUTS_MAX;
        p->table = table;
        p->room = room;
    }
    return p->count++;
}

int puts_register(struct member *m, const struct fcc_put_msg *msg, uint32_t *number, struct error *e)
{
    struct put put = {.used = true};
    struct puts *p = NULL;
    int status = puts_get(m, &p, e);

    if (!status)
        status = put_check(m, msg, &put, e);
    if (status)
        return status;
    assert(p);
    (void)pthread_mutex_lock(&p->all->lock);
    uint32_t at = table_place(p);
    put.serial = ++p->serial;
    if (at < PUTS_MAX)
        p->table[at] = put;
    (void)pthread_mutex_unlock(&p->all->lock);
    if (at == PUTS_MAX)
        return error_set(e, -ENOMEM, "rank %d: put: no memory for it, or more than %u", m->rank, PUTS_MAX);
    if (put.from)
        put.from->refs++;
    *number = at + 1;
    return 0;
}

int puts_rule_register(struct member *m, const struct fcc_put_msg *msg, struct rule_put *out, struct error *e)
{
    uint32_t number = 0;
    int status = puts_register(m, msg, &number, e);

    if (status)
        return status;
    (void)pthread_mutex_lock(&m->puts->all->lock);
    *out = (struct rule_put){.puts = m->puts, .number = number, .serial = m->puts->table[number - 1].serial};
    (void)pthread_mutex_unlock(&m->puts->all->lock);
    return 0;
}

/* Locked. NULL: it has been removed. */
static struct put *rule_put_find(const struct rule_put *put)
{
    struct put *found = &put->puts->table[put->number - 1];

    return found->used && found->serial == put->serial ? found : NULL;
}

int puts_rule_trigger(const struct rule_put *rule, uint64_t value)
{
    struct puts *p = rule->puts;
    struct put *put;
    int status = 0;

    (void)pthread_mutex_lock(&p->all->lock);
    put = rule_put_find(rule);
    if (!put) {
        status = -ENOENT;
    } else if (put->is_due || p->due_count == FCC_RULES_MAX) {
        status = -EAGAIN;
    } else {
        put->is_due = true;
        put->value = value;
        p->due[(p->due_first + p->due_count++) % FCC_RULES_MAX] = rule->number - 1;
    }
    (void)pthread_mutex_unlock(&p->all->lock);
    if (!status)
        nodes_puts_look(p->all->worker);
    return status;
}

int puts_rule_taken(const struct rule_put *rule)
{
    const struct put *put;
    int status;

    (void)pthread_mutex_lock(&rule->puts->all->lock);
    put = rule_put_find(rule);
    status = !put ? -ENOENT : put->is_due ? -EAGAIN : 0;
    (void)pthread_mutex_unlock(&rule->puts->all->lock);
    return status;
}

/* ---- the end of puts ---- */

/* Keep the reference of a removed put until the proxy has sent its rows. */
static void put_retire(struct puts *p, struct buffer *from)
{
    struct retired *r = malloc(sizeof(*r));

    if (!r)
        return; /* the buffer stays for the process's life: better than to go too early */
    *r = (struct retired){.buffer = from, .after = p->ends_pushed + 1};
    SLIST_INSERT_HEAD(&p->retired, r, link);
}

enum ending { ENDS_ALL, ENDS_BUFFER, ENDS_TARGET, ENDS_RANK };

static bool put_ends(const struct put *put, enum ending what, const struct buffer *b, const struct net_place *target)
{
    if (what == ENDS_BUFFER)
        return put->from == b || put->to == b || put->signal == b;
    if (what == ENDS_TARGET)
        return (put->from && put->send.to.rank == target->rank && put->send.to.region == target->region) ||
               (put->signal && put->send.signal.rank == target->rank && put->send.signal.region == target->region);
    if (what == ENDS_RANK)
        return (put->from && put->send.to.rank == target->rank) || (put->signal && put->send.signal.rank == target->rank);
    return true;
}

static void puts_end_some(struct puts *p, enum ending what, const struct buffer *b, const struct net_place *target)
{
    bool any = what == ENDS_ALL;

    (void)pthread_mutex_lock(&p->all->lock);
    for (uint32_t i = 0; i < p->count; i++) {
        struct put *put = &p->table[i];
        if (!put->used || !put_ends(put, what, b, target))
            continue;
        put->used = false;
        if (i < p->first_free)
            p->first_free = i;
        if (put->from)
            put_retire(p, put->from);
        any |= put->from != NULL;
    }
    (void)pthread_mutex_unlock(&p->all->lock);
    if (any) {
        p->ends_pushed++;
        nodes_puts_push_end(p->all->worker, p->entry);
    }
}

void puts_rule_end(const struct rule_put *rule)
{
    struct puts *p = rule->puts;
    struct put *put;
    bool sends = false;

    if (!p)
        return;
    (void)pthread_mutex_lock(&p->all->lock);
    put = rule_put_find(rule);
    if (put) {
        put->used = false;
        if (rule->number - 1 < p->first_free)
            p->first_free = rule->number - 1;
        if (put->from)
            put_retire(p, put->from);
        sends = put->from != NULL;
    }
    (void)pthread_mutex_unlock(&p->all->lock);
    if (sends) {
        p->ends_pushed++;
        nodes_puts_push_end(p->all->worker, p->entry);
    }
}

void puts_close(struct member *m)
{
    struct puts *p = m->puts;

    if (!p)
        return;
    m->puts = NULL;
    (void)pthread_mutex_lock(&p->all->lock);
    TAILQ_REMOVE(&p->all->open, p, open_link);
    (void)pthread_mutex_unlock(&p->all->lock);
    (void)atomic_fetch_sub_explicit(&p->all->count, 1, memory_order_release);
    p->is_closed = true;
    p->comm = NULL;
    puts_end_some(p, ENDS_ALL, NULL, NULL);
}

void puts_buffer_freed(const struct buffer *b)
{
    struct member *m;

    LIST_FOREACH(m, &b->session->members, link)
        if (m->comm->number == b->comm && m->puts)
            puts_end_some(m->puts, ENDS_BUFFER, b, NULL);
}

void puts_target_freed(const struct comm *c, int rank, uint32_t handle)
{
    const struct net_place target = {.rank = (uint32_t)rank, .region = handle};

    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].puts)
            puts_end_some(c->members[r].puts, ENDS_TARGET, NULL, &target);
}

void puts_rank_gone(const struct comm *c, int rank)
{
    const struct net_place target = {.rank = (uint32_t)rank};

    for (int r = 0; r < c->nranks; r++)
        if (c->members[r].puts)
            puts_end_some(c->members[r].puts, ENDS_RANK, NULL, &target);
}

/* Release the references that the last END to come back has covered. */
static void retired_free(struct puts *p)
{
    uint64_t done = atomic_load_explicit(&p->ends_done, memory_order_acquire);
    struct retired *r, *next;

    for (r = SLIST_FIRST(&p->retired); r; r = next) {
        next = SLIST_NEXT(r, link);
        if (r->after > done)
            continue;
        SLIST_REMOVE(&p->retired, r, retired, link);
        buffer_unref(r->buffer);
        free(r);
    }
}

void puts_poll(struct puts_all *all)
{
    struct puts *p, *next;

    LIST_FOREACH_SAFE(p, &all->owned, owned_link, next) {
        retired_free(p);
        if (p->is_closed && atomic_load_explicit(&p->ends_done, memory_order_acquire) == p->ends_pushed) {
            puts_free(p);
            continue;
        }
        (void)pthread_mutex_lock(&all->lock);
        bool is_wrong = p->is_wrong && !p->is_closed;
        uint64_t number = p->wrong_number;
        uint32_t count = p->count;
        (void)pthread_mutex_unlock(&all->lock);
        if (is_wrong)
            comm_abort(p->comm, -EINVAL, "rank %d: a trigger of put %llu: registered are 1 to %u", p->rank,
                       (unsigned long long)number, count);
    }
}

/* ---- the proxy thread ---- */

int puts_next_ms(struct puts_all *all)
{
    return atomic_load_explicit(&all->count, memory_order_acquire) ? POLL_MS : -1;
}

void puts_end(struct puts *p)
{
    (void)atomic_fetch_add_explicit(&p->ends_done, 1, memory_order_release);
}

/* The order of all this is in session.h. */
static bool slot_take(struct puts *p, uint64_t words[2])
{
    uint32_t at = p->tail % FCC_TRIGGER_SLOTS;

    words[0] = atomic_load_explicit(&p->memory->slot[at].first, memory_order_acquire);
    if (!words[0])
        return false;
    words[1] = atomic_load_explicit(&p->memory->slot[at].second, memory_order_relaxed);
    atomic_store_explicit(&p->memory->slot[at].first, 0, memory_order_relaxed);
    atomic_store_explicit(&p->memory->tail, ++p->tail, memory_order_release);
    return true;
}

/* Locked. Take the next put that a rule has triggered. */
static bool due_take(struct puts *p, struct proxy_send *out)
{
    while (p->due_count) {
        struct put *put = &p->table[p->due[p->due_first]];
        p->due_first = (p->due_first + 1) % FCC_RULES_MAX;
        p->due_count--;
        if (!put->used || !put->is_due)
            continue;
        put->is_due = false;
        *out = put->send;
        out->epoch = put->value;
        return true;
    }
    return false;
}

/* Locked. Take the next valid trigger. Triggers of an ended communicator or a removed put are dropped, so that producers get room. */
static bool put_take(struct puts *p, struct proxy_send *out)
{
    uint64_t words[2];

    for (uint32_t dropped = 0; dropped < FCC_TRIGGER_SLOTS && !p->is_wrong && slot_take(p, words); dropped++) {
        if (atomic_load_explicit(&p->comm->dev.shared->status, memory_order_relaxed))
            continue;
        if (words[0] > p->count) {
            p->is_wrong = true;
            p->wrong_number = words[0];
            nodes_puts_news(p->all->worker);
        } else if (p->table[words[0] - 1].used) {
            *out = p->table[words[0] - 1].send;
            out->epoch = words[1];
            return true;
        }
    }
    return false;
}

bool puts_next(struct puts_all *all, struct proxy_send *out)
{
    struct puts *p;

    if (!atomic_load_explicit(&all->count, memory_order_acquire))
        return false;
    (void)pthread_mutex_lock(&all->lock);
    TAILQ_FOREACH(p, &all->open, open_link)
        if (due_take(p, out) || put_take(p, out))
            break;
    if (p) { /* the others' turn */
        TAILQ_REMOVE(&all->open, p, open_link);
        TAILQ_INSERT_TAIL(&all->open, p, open_link);
    }
    (void)pthread_mutex_unlock(&all->lock);
    return p != NULL;
}
