/* SPDX-License-Identifier: MIT */
#include "daemon/net/region.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/net.h"

struct entry {
    uint64_t comm;
    uint32_t rank, region;
    struct net_held memory;
    struct net_grant *grants;
};

struct net_regions {
    pthread_rwlock_t lock; /* protects all fields: held shared by receivers, exclusively for changes */
    struct entry *entries; /* sorted by (comm, rank, region) */
    uint32_t count, room;
    uint64_t serial;
    uint64_t ended[NET_ENDED_KEPT]; /* a ring: the oldest communicator is overwritten */
    uint32_t nended;                /* entries in use */
    uint32_t ended_next;
    struct {
        uint64_t comm;
        uint32_t rank, region;
    } retired[NET_ENDED_KEPT]; /* a ring, as `ended` */
    uint32_t nretired, retired_next;
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

int net_area_simplify(struct net_area *area, uint64_t offset, uint64_t *length, struct error *e)
{
    if (net_area_check(area, offset, UINT64_MAX, length))
        return error_set(e, -EINVAL, "an invalid area: %u rows of %llu bytes, %llu apart, at %llu", area->rows,
                         (unsigned long long)area->row_bytes, (unsigned long long)area->stride, (unsigned long long)offset);
    if (area->rows == 1 || area->stride == area->row_bytes)
        *area = (struct net_area){.row_bytes = *length, .stride = *length, .rows = 1};
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

/* Revokes an entry's grants. The lock is held exclusively, or no receiver is left. */
static void grants_revoke(const struct entry *entry)
{
    struct net_grant *grant, *next;

    for (grant = entry->grants; grant; grant = next) {
        next = grant->next;
        grant->revoke(grant);
    }
}

static void grants_end(const struct entry *entry)
{
    struct net_grant *grant, *next;

    for (grant = entry->grants; grant; grant = next) {
        next = grant->next;
        grant->end(grant);
    }
}

void net_regions_close(struct net_regions *regions)
{
    for (uint32_t i = 0; i < regions->count; i++)
        grants_revoke(&regions->entries[i]);
    (void)pthread_rwlock_destroy(&regions->lock);
    free(regions->entries);
    free(regions);
}

/* The entry's index or, if it is not *found, the index at which to insert it. */
static uint32_t entry_find(const struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, bool *found)
{
    uint32_t low = 0, high = regions->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct entry *entry = &regions->entries[middle];
        bool before = entry->comm != comm   ? entry->comm < comm
                      : entry->rank != rank ? entry->rank < rank
                                            : entry->region < region;
        if (before)
            low = middle + 1;
        else
            high = middle;
    }
    const struct entry *at = low < regions->count ? &regions->entries[low] : NULL;
    *found = at && at->comm == comm && at->rank == rank && at->region == region;
    return low;
}

static int entries_grow(struct net_regions *regions)
{
    if (regions->count < regions->room)
        return 0;
    uint32_t room = regions->room ? regions->room * 2 : 64;
    struct entry *entries = realloc(regions->entries, room * sizeof(*entries));
    if (!entries)
        return -ENOMEM;
    regions->entries = entries;
    regions->room = room;
    return 0;
}

static bool has_ended(const struct net_regions *regions, uint64_t comm)
{
    for (uint32_t i = 0; i < regions->nended; i++) {
        if (regions->ended[i] == comm)
            return true;
    }
    return false;
}

static bool has_retired(const struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region)
{
    for (uint32_t i = 0; i < regions->nretired; i++) {
        if (regions->retired[i].comm == comm && regions->retired[i].rank == rank && regions->retired[i].region == region)
            return true;
    }
    return false;
}

int net_region_add(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base, uint64_t bytes,
                   struct error *e)
{
    static const struct net_bounce none;

    return net_region_add_bounce(regions, comm, rank, region, base, bytes, &none, e);
}

int net_region_add_bounce(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, void *base,
                          uint64_t bytes, const struct net_bounce *bounce, struct error *e)
{
    bool found;
    int status = 0;

    (void)pthread_rwlock_wrlock(&regions->lock);
    uint32_t at = entry_find(regions, comm, rank, region, &found);
    if (found) {
        status = error_set(e, -EEXIST, "region %u of rank %u is known already", region, rank);
    } else if (has_ended(regions, comm)) {
        status = error_set(e, -ECANCELED, "a region of a communicator that has ended");
    } else if (entries_grow(regions)) {
        status = error_set(e, -ENOMEM, "no memory to register a region");
    } else {
        struct entry *entry = &regions->entries[at];
        memmove(entry + 1, entry, (regions->count - at) * sizeof(*entry));
        regions->count++;
        *entry = (struct entry){comm, rank, region, {base, bytes, ++regions->serial, *bounce, NULL}, NULL};
    }
    (void)pthread_rwlock_unlock(&regions->lock);
    return status;
}

/* The lock is held exclusively. */
static void region_forget(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region)
{
    bool found;
    uint32_t at = entry_find(regions, comm, rank, region, &found);
    if (found) {
        struct entry *entry = &regions->entries[at];
        grants_revoke(entry);
        memmove(entry, entry + 1, (regions->count - at - 1) * sizeof(*entry));
        regions->count--;
    }
}

void net_region_remove(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region)
{
    (void)pthread_rwlock_wrlock(&regions->lock);
    region_forget(regions, comm, rank, region);
    (void)pthread_rwlock_unlock(&regions->lock);
}

void net_region_retire(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region)
{
    (void)pthread_rwlock_wrlock(&regions->lock);
    region_forget(regions, comm, rank, region);
    if (!has_ended(regions, comm)) {
        regions->retired[regions->retired_next].comm = comm;
        regions->retired[regions->retired_next].rank = rank;
        regions->retired[regions->retired_next].region = region;
        regions->retired_next = (regions->retired_next + 1) % NET_ENDED_KEPT;
        regions->nretired += regions->nretired < NET_ENDED_KEPT;
    }
    (void)pthread_rwlock_unlock(&regions->lock);
}

void net_comm_end(struct net_regions *regions, uint64_t comm)
{
    uint32_t kept = 0;

    (void)pthread_rwlock_wrlock(&regions->lock);
    for (uint32_t i = 0; i < regions->count; i++) {
        if (regions->entries[i].comm != comm)
            regions->entries[kept++] = regions->entries[i];
        else
            grants_end(&regions->entries[i]);
    }
    regions->count = kept;
    if (!has_ended(regions, comm)) {
        regions->ended[regions->ended_next] = comm;
        regions->ended_next = (regions->ended_next + 1) % NET_ENDED_KEPT;
        if (regions->nended < NET_ENDED_KEPT)
            regions->nended++;
    }
    (void)pthread_rwlock_unlock(&regions->lock);
}

int net_regions_hold(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, struct net_held *out)
{
    bool found;

    (void)pthread_rwlock_rdlock(&regions->lock);
    uint32_t at = entry_find(regions, comm, rank, region, &found);
    if (found) {
        *out = regions->entries[at].memory;
        out->grants = &regions->entries[at].grants;
        return 0;
    }
    found = has_ended(regions, comm) || has_retired(regions, comm, rank, region);
    (void)pthread_rwlock_unlock(&regions->lock);
    return found ? -ECANCELED : -ENOENT;
}

void net_regions_release(struct net_regions *regions)
{
    (void)pthread_rwlock_unlock(&regions->lock);
}

/* Stores an 8-byte word with release. Returns 0, also if the communicator has ended or the region was retired. -ENOENT: there
 * is no such region. -ERANGE: the word is not aligned, or not within the region. */
static int net_regions_signal(struct net_regions *regions, uint64_t comm, uint32_t rank, uint32_t region, uint64_t offset,
                              uint64_t value)
{
    struct net_held memory;
    int status = region == NET_FLAGS ? -ENOENT : net_regions_hold(regions, comm, rank, region, &memory);

    if (status)
        return status == -ECANCELED ? 0 : status;
    if (offset % sizeof(value) || memory.bytes < sizeof(value) || offset > memory.bytes - sizeof(value))
        status = -ERANGE;
    else /* release: after this receiver's earlier stores. Regions are page-aligned, so the word is aligned */
        atomic_store_explicit((_Atomic uint64_t *)(void *)(memory.base + offset), value, memory_order_release);
    net_regions_release(regions);
    return status;
}

/* ---- what transports share ---- */

int net_refuse(struct net_receiver *r, int status, const char *why)
{
    return error_set(&r->error, status, "refused its data: %s", why);
}

int net_flag_take(struct net_receiver *r, const struct net_sink *sink, uint64_t comm, uint32_t rank, uint32_t flag,
                  uint64_t epoch)
{
    struct net_held flags;
    int status = net_regions_hold(sink->regions, comm, rank, NET_FLAGS, &flags);

    if (status == -ECANCELED)
        return 0;
    if (status)
        return net_refuse(r, -EPROTO, "a flag of a rank that is not known here");
    status = flag < flags.bytes ? sink->raise(sink->ctx, comm, rank, flag, epoch) : -EPROTO;
    net_regions_release(sink->regions);
    return status ? net_refuse(r, status, "a flag that does not exist") : 0;
}

int net_signal_take(struct net_receiver *r, const struct net_sink *sink, const struct net_place *to, uint64_t value)
{
    int status = net_regions_signal(sink->regions, to->comm, to->rank, to->region, to->offset, value);

    if (!status)
        return 0;
    return net_refuse(r, -EPROTO,
                      status == -ENOENT ? "a signal in a region that is not known here"
                                        : "a signal past the end of a region, or not aligned");
}

int net_socket_broken(int error, const char *doing, struct error *e)
{
    if (error == EPIPE || error == ECONNRESET)
        return error_set(e, -ECONNRESET, "the other end has closed the connection");
    if (error == ETIMEDOUT)
        return error_set(e, -ETIMEDOUT, "the other end has taken nothing for too long");
    return error_set(e, -error, "%s: %s", doing, strerror(error));
}
