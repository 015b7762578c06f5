/* SPDX-License-Identifier: MIT */
#include "daemon/net/region.h"

#include <errno.h>
#include <pthread.h>
#include <search.h>
#include <stdbool.h>
#include <stdlib.h>

#include "daemon/net/net.h"
#include "proto/base/list.h"

struct name {
    uint64_t comm;
    uint32_t rank, region;
};

struct registration {
    struct name name; /* the first member: the tree compares names */
    struct net_held memory;
    struct net_grant *grants;
    LIST_ENTRY(registration) link;
};

/* The last NET_ENDED_KEPT names that were added. */
struct ring {
    struct name names[NET_ENDED_KEPT];
    uint64_t added;
};

struct net_regions {
    pthread_rwlock_t lock; /* protects all fields: held shared by receivers, exclusively for changes */
    void *tree;            /* of tsearch(3): the entries by name */
    LIST_HEAD(entries, registration) entries;
    uint64_t serial;
    struct ring ended; /* communicators: rank and region are 0 */
    struct ring retired;
};

int net_area_check(const struct net_area *area, uint64_t offset, uint64_t bytes, uint64_t *length)
{
    uint64_t span, end;

    if (!area->rows || !area->row_bytes || (area->rows > 1 && area->stride < area->row_bytes))
        return -EINVAL;
    /* The last row begins rows - 1 strides after the first one. */
    if (__builtin_mul_overflow((uint64_t)area->rows - 1, area->rows > 1 ? area->stride : 0, &span) ||
        __builtin_add_overflow(span, area->row_bytes, &span) || __builtin_add_overflow(offset, span, &end) || end > bytes)
        return -ERANGE;
    *length = area->rows * area->row_bytes; /* at most span, so no overflow */
    return 0;
}

int net_regions_open(struct net_regions **out, struct error *e)
{
    struct net_regions *regions = calloc(1, sizeof(*regions));
    pthread_rwlockattr_t attr;

    if (!regions)
        return error_set(e, -ENOMEM, "no memory for the registry of regions");
    (void)pthread_rwlockattr_init(&attr);
    /* Without this attribute, receivers that hold the lock in turns could keep a removal waiting for ever. */
    (void)pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    (void)pthread_rwlock_init(&regions->lock, &attr);
    (void)pthread_rwlockattr_destroy(&attr);
    *out = regions;
    return 0;
}

static int name_order(const void *one, const void *other)
{
    const struct name *a = one, *b = other;

    if (a->comm != b->comm)
        return a->comm < b->comm ? -1 : 1;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return a->region < b->region ? -1 : a->region > b->region;
}

static bool ring_has(const struct ring *r, struct name name)
{
    for (uint64_t i = 0; i < r->added && i < NET_ENDED_KEPT; i++)
        if (!name_order(&r->names[i], &name))
            return true;
    return false;
}

static void ring_add(struct ring *r, struct name name)
{
    r->names[r->added++ % NET_ENDED_KEPT] = name;
}

static bool has_ended(const struct net_regions *regions, uint64_t comm)
{
    return ring_has(&regions->ended, (struct name){comm, 0, 0});
}

static struct registration *registration_find(const struct net_regions *regions, struct name name)
{
    struct registration **at = tfind(&name, &regions->tree, name_order);

    return at ? *at : NULL;
}

/* Frees a registration and revokes its grants or, with has_ended, ends them. The lock is held exclusively, or no receiver is
 * left. */
static void registration_free(struct net_regions *regions, struct registration *r, bool has_ended)
{
    struct net_grant *grant, *next;

    for (grant = r->grants; grant; grant = next) {
        next = grant->next;
        (has_ended ? grant->end : grant->revoke)(grant);
    }
    (void)tdelete(r, &regions->tree, name_order);
    LIST_REMOVE(r, link);
    free(r);
}

void net_regions_close(struct net_regions *regions)
{
    while (!LIST_EMPTY(&regions->entries))
        registration_free(regions, LIST_FIRST(&regions->entries), false);
    (void)pthread_rwlock_destroy(&regions->lock);
    free(regions);
}

int net_region_add(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base, uint64_t bytes,
                   struct error *e)
{
    return net_region_add_bounce(regions, comm, rank, region, base, bytes, &(struct net_bounce){.received = NULL}, e);
}

int net_region_add_bounce(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base,
                          uint64_t bytes, const struct net_bounce *bounce, struct error *e)
{
    struct registration *r = calloc(1, sizeof(*r));
    int status = 0;

    (void)pthread_rwlock_wrlock(&regions->lock);
    if (r)
        *r = (struct registration){.name = {comm, rank, region}, .memory = {base, bytes, ++regions->serial, *bounce, NULL}};
    if (registration_find(regions, (struct name){comm, rank, region}))
        status = error_set(e, -EEXIST, "region %u of rank %u is known already", region, rank);
    else if (has_ended(regions, comm))
        status = error_set(e, -ECANCELED, "a region of a communicator that has ended");
    else if (!r || !tsearch(r, &regions->tree, name_order))
        status = error_set(e, -ENOMEM, "no memory to register a region");
    else {
        LIST_INSERT_HEAD(&regions->entries, r, link);
        r = NULL;
    }
    (void)pthread_rwlock_unlock(&regions->lock);
    free(r);
    return status;
}

/* Removes a region if there is one. With is_retired its name is remembered. */
static void region_forget(struct net_regions *regions, struct name name, bool is_retired)
{
    (void)pthread_rwlock_wrlock(&regions->lock);
    struct registration *r = registration_find(regions, name);
    if (r)
        registration_free(regions, r, false);
    if (is_retired && !has_ended(regions, name.comm))
        ring_add(&regions->retired, name);
    (void)pthread_rwlock_unlock(&regions->lock);
}

void net_region_remove(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region)
{
    region_forget(regions, (struct name){comm, rank, region}, false);
}

void net_region_retire(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region)
{
    region_forget(regions, (struct name){comm, rank, region}, true);
}

void net_comm_end(struct net_regions *regions, uint64_t comm)
{
    struct registration *r, *next;

    (void)pthread_rwlock_wrlock(&regions->lock);
    LIST_FOREACH_SAFE(r, &regions->entries, link, next) {
        if (r->name.comm == comm)
            registration_free(regions, r, true);
    }
    if (!has_ended(regions, comm))
        ring_add(&regions->ended, (struct name){comm, 0, 0});
    (void)pthread_rwlock_unlock(&regions->lock);
}

int net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out)
{
    const struct name name = {comm, rank, region};

    (void)pthread_rwlock_rdlock(&regions->lock);
    struct registration *r = registration_find(regions, name);
    if (r) {
        *out = r->memory;
        out->grants = &r->grants;
        return 0;
    }
    bool is_gone = has_ended(regions, comm) || ring_has(&regions->retired, name);
    (void)pthread_rwlock_unlock(&regions->lock);
    return is_gone ? -ECANCELED : -ENOENT;
}

void net_regions_release(struct net_regions *regions)
{
    (void)pthread_rwlock_unlock(&regions->lock);
}
