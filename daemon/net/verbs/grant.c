/* SPDX-License-Identifier: MIT
 *
 * grant.c - hands out keys to memory of this process, and revokes them (verbs.h says when).
 *
 * A grant is a region's registration at a device. A lease is one sender's use of a grant. The engine's thread removes regions
 * and ends communicators. Each sender belongs to one receiving end, which is called by one thread.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/net/verbs/verbs.h"
#include "proto/base/fd.h"

struct grant {
    struct net_grant grant; /* owner: the device. next: after has_ended, the next grant to be freed */
    struct verbs_device *device;
    struct ibv_mr *mr;
    uint64_t address; /* remote address of the region's first byte */
    bool bounces;     /* the memory is a bounce buffer */
    uint64_t comm;
    bool has_ended; /* the communicator has ended, so the grant is freed with its last lease */
    struct verbs_leases leases;
};

struct verbs_lease {
    struct grant *grant;
    struct verbs_party *party;
    uint64_t end_sent_ns; /* when the sender was sent the communicator's end; 0: not yet */
    LIST_ENTRY(verbs_lease) of_grant, of_party;
};

/* Protects the registrations' lists of grants, all leases, and the parties' lists. Taken while the registry of regions is held:
 * exclusively by a removal, shared by verbs_grant(). */
static pthread_mutex_t grants_lock = PTHREAD_MUTEX_INITIALIZER;

/* Deregisters the memory. When this returns, no write by the key reaches the memory: the device refuses the key. */
static void grant_free(struct grant *g)
{
    if (ibv_dereg_mr(g->mr)) { /* the memory will be used for something else while the device can still write it */
        (void)fprintf(stderr, "fccd: cannot take a memory key back: %s\n", strerror(errno));
        abort();
    }
    verbs_device_put(g->device);
    free(g);
}

/* Frees the grants in a list. They are unused and in no other list, so this needs no lock, although it may take long. */
static void grants_free(struct net_grant *list)
{
    while (list) {
        struct net_grant *next = list->next;
        grant_free((struct grant *)list); /* `grant` is the first member */
        list = next;
    }
}

/* Ends a lease. If its grant is unused now and has ended, adds the grant to the list. */
static void lease_end(struct verbs_lease *l, struct net_grant **unused)
{
    struct grant *g = l->grant;

    LIST_REMOVE(l, of_grant);
    LIST_REMOVE(l, of_party);
    l->party->waits -= l->end_sent_ns != 0;
    free(l);
    if (!g->has_ended || !LIST_EMPTY(&g->leases))
        return;
    g->grant.next = *unused;
    *unused = &g->grant;
}

/* ---- the engine's side ---- */

static void grant_revoke(struct net_grant *net)
{
    struct grant *g = (struct grant *)net;
    struct net_grant *none = NULL;
    struct verbs_lease *l;

    (void)pthread_mutex_lock(&grants_lock);
    while ((l = LIST_FIRST(&g->leases)))
        lease_end(l, &none);
    (void)pthread_mutex_unlock(&grants_lock);
    grant_free(g);
}

static void grant_end(struct net_grant *net)
{
    static const uint64_t one = 1;
    struct grant *g = (struct grant *)net;
    const struct verbs_lease *l;

    (void)pthread_mutex_lock(&grants_lock);
    bool is_used = !LIST_EMPTY(&g->leases);
    g->has_ended = true;
    LIST_FOREACH(l, &g->leases, of_grant) {
        ssize_t n = write(l->party->bell, &one, sizeof(one)); /* fails only if the counter is full, so the bell rings already */
        (void)n;
    }
    (void)pthread_mutex_unlock(&grants_lock);
    if (!is_used) /* no lease refers to the grant; with a lease it may have been freed by another thread already */
        grant_free(g);
}

/* ---- the receiving ends' ---- */

/* Registers the memory behind a bounce buffer, if the device can write it. If this fails, the caller registers the bounce
 * buffer. */
static int direct_register(struct grant *g, const struct net_held *held, int access)
{
    const struct net_bounce *bounce = &held->bounce;
    struct error why;

    int status = verbs_register_direct(g->device, bounce->direct, held->bytes, access, &g->mr, &why);
    if (!status) {
        g->address = bounce->direct->address;
        g->bounces = false;
        bounce->given(bounce->ctx, verbs_device_name(g->device), true, NULL);
    } else {
        bounce->given(bounce->ctx, verbs_device_name(g->device), false, &why);
    }
    return status;
}

static int region_register(struct grant *g, const struct net_held *held, struct error *e)
{
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

    g->address = (uintptr_t)held->base;
    g->bounces = held->bounce.received != NULL;
    if (g->bounces && held->bounce.direct && !direct_register(g, held, access))
        return 0;
    if (g->bounces && !held->bounce.direct)
        held->bounce.given(held->bounce.ctx, verbs_device_name(g->device), false, NULL);
    return verbs_register(g->device, held->base, held->bytes, access, &g->mr, e);
}

/* Registers a region for writing by other nodes. Without IBV_ACCESS_RELAXED_ORDERING, as flags rely on the order of writes. */
static struct grant *grant_new(struct verbs_device *d, const struct net_held *held, uint64_t comm, struct error *e)
{
    struct grant *g = calloc(1, sizeof(*g));

    if (!g) {
        (void)error_set(e, -ENOMEM, "no memory for a memory key");
        return NULL;
    }
    *g = (struct grant){.grant = {.owner = d, .revoke = grant_revoke, .end = grant_end}, .device = d, .comm = comm};
    if (region_register(g, held, e)) {
        free(g);
        return NULL;
    }
    verbs_device_hold(d);
    g->grant.next = *held->grants;
    *held->grants = &g->grant;
    return g;
}

static struct grant *grant_get(struct verbs_device *d, const struct net_held *held, uint64_t comm, struct error *e)
{
    struct net_grant *g;

    for (g = *held->grants; g; g = g->next)
        if (g->owner == d)
            return (struct grant *)g;
    return grant_new(d, held, comm, e);
}

static int lease_add(struct verbs_party *p, struct grant *g, struct error *e)
{
    struct verbs_lease *l;

    LIST_FOREACH(l, &g->leases, of_grant)
        if (l->party == p)
            return 0;
    l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(e, -ENOMEM, "no memory for a memory key");
    l->grant = g;
    l->party = p;
    LIST_INSERT_HEAD(&g->leases, l, of_grant);
    LIST_INSERT_HEAD(&p->has, l, of_party);
    return 0;
}

int verbs_grant(struct verbs_party *p, struct verbs_device *d, const struct net_held *held, struct verbs_msg *key,
                struct error *e)
{
    key->bytes = held->bytes;
    if (!held->bytes)
        return 0; /* an empty region needs no key */
    (void)pthread_mutex_lock(&grants_lock);
    struct grant *g = grant_get(d, held, key->comm, e);
    int status = g ? lease_add(p, g, e) : e->status;
    if (g && !status) {
        key->address = g->address;
        key->rkey = g->mr->rkey;
        key->bounces = g->bounces;
    }
    (void)pthread_mutex_unlock(&grants_lock);
    return status;
}

int verbs_party_open(struct verbs_party *p, struct error *e)
{
    LIST_INIT(&p->has);
    p->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return p->bell < 0 ? error_set(e, -errno, "cannot make a link: %s", strerror(errno)) : 0;
}

void verbs_party_close(struct verbs_party *p)
{
    struct net_grant *unused = NULL;
    struct verbs_lease *l;

    (void)pthread_mutex_lock(&grants_lock);
    while ((l = LIST_FIRST(&p->has)))
        lease_end(l, &unused);
    (void)pthread_mutex_unlock(&grants_lock);
    grants_free(unused);
    fd_close(&p->bell);
}

bool verbs_party_next(struct verbs_party *p, uint64_t now_ns, uint64_t *comm)
{
    struct verbs_lease *l;
    bool found = false;

    (void)pthread_mutex_lock(&grants_lock);
    LIST_FOREACH(l, &p->has, of_party) {
        if (!l->grant->has_ended || l->end_sent_ns || (found && l->grant->comm != *comm))
            continue;
        *comm = l->grant->comm;
        l->end_sent_ns = now_ns;
        p->waits++;
        found = true;
    }
    (void)pthread_mutex_unlock(&grants_lock);
    return found;
}

int verbs_party_ended(struct verbs_party *p, uint64_t comm)
{
    struct net_grant *unused = NULL;
    struct verbs_lease *l, *next;
    int status = -ENOENT;

    (void)pthread_mutex_lock(&grants_lock);
    LIST_FOREACH_SAFE(l, &p->has, of_party, next) {
        if (!l->end_sent_ns || l->grant->comm != comm)
            continue;
        lease_end(l, &unused);
        status = 0;
    }
    (void)pthread_mutex_unlock(&grants_lock);
    grants_free(unused);
    return status;
}

uint64_t verbs_party_owes(struct verbs_party *p)
{
    const struct verbs_lease *l;
    uint64_t since = 0;

    (void)pthread_mutex_lock(&grants_lock);
    if (p->waits) {
        LIST_FOREACH(l, &p->has, of_party)
            if (l->end_sent_ns && (!since || l->end_sent_ns < since))
                since = l->end_sent_ns;
    }
    (void)pthread_mutex_unlock(&grants_lock);
    return since;
}
