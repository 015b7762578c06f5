/* SPDX-License-Identifier: MIT
 *
 * net.c - what the transports share: the queue of a sending end, and what a receiving end does with flags and signals.
 */
#include "daemon/net/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int net_queue_make(struct net_link *l, const struct net_options *options, struct error *e)
{
    if (!options->queue || options->queue & (options->queue - 1))
        return error_set(e, -EINVAL, "a queue of %u frames: not a power of two", options->queue);
    l->queue = options->queue;
    l->items = calloc(l->queue, sizeof(l->items[0]));
    return l->items ? 0 : error_set(e, -ENOMEM, "no memory for a link");
}

int net_queue_add(struct net_link *l, const struct net_item *item)
{
    if (l->queued - l->flushed == l->queue)
        return -EAGAIN;
    l->items[l->queued++ & (l->queue - 1)] = *item;
    return l->ops->queued(l, item);
}

int net_write(struct net_link *l, const struct net_place *to, const void *from, const struct net_area *area)
{
    struct net_item item = {.to = *to, .area = *area, .from = from};

    if (l->error.status || !area->rows || !area->row_bytes)
        return l->error.status;
    if (net_area_check(area, to->offset, UINT64_MAX, &item.length))
        return error_set(&l->error, -EINVAL, "an invalid area: %u rows of %llu bytes, %llu apart, at %llu", area->rows,
                         (unsigned long long)area->row_bytes, (unsigned long long)area->stride, (unsigned long long)to->offset);
    if (area->rows == 1 || area->stride == area->row_bytes)
        item.area = (struct net_area){.row_bytes = item.length, .stride = item.length, .rows = 1};
    return net_queue_add(l, &item);
}

int net_message(struct net_link *l, const void *bytes, uint32_t length)
{
    struct net_item item = {.area = {.row_bytes = length, .stride = length, .rows = 1}, .length = length, .is_message = true};

    assert(l->ops->has_messages && length && length <= NET_MESSAGE_MAX);
    if (l->error.status)
        return l->error.status;
    if (l->queued - l->flushed == l->queue)
        return -EAGAIN;
    void *copy = malloc(length);
    if (!copy)
        return error_set(&l->error, -ENOMEM, "no memory for a message");
    memcpy(copy, bytes, length);
    item.from = copy;
    return net_queue_add(l, &item);
}

int net_early(struct net_link *l, const struct net_early_head *head)
{
    const struct net_item item = {.to = {.comm = head->comm, .rank = head->rank, .region = head->node, .offset = head->turn},
                                  .area.row_bytes = head->length,
                                  .value = head->guess,
                                  .is_early = true};

    return l->error.status ? l->error.status : net_queue_add(l, &item);
}

int net_signal(struct net_link *l, const struct net_place *to, uint64_t value)
{
    return l->error.status ? l->error.status : net_queue_add(l, &(struct net_item){.to = *to, .value = value});
}

int net_refuse(struct net_receiver *r, int status, const char *why)
{
    return error_set(&r->error, status, "refused its data: %s", why);
}

int net_flag_take(struct net_receiver *r, const struct net_sink *sink, uint64_t comm, uint32_t rank, uint32_t flag,
                  uint64_t epoch)
{
    struct net_held flags;
    int status = net_regions_hold(sink->regions, comm, rank, NET_FLAGS, &flags);

    if (status)
        return status == -ECANCELED ? 0 : net_refuse(r, -EPROTO, "a flag of a rank that is not known here");
    status = flag < flags.bytes ? sink->raise(sink->ctx, comm, rank, flag, epoch) : -EPROTO;
    net_regions_release(sink->regions);
    return status ? net_refuse(r, status, "a flag that does not exist") : 0;
}

int net_signal_take(struct net_receiver *r, const struct net_sink *sink, const struct net_place *to, uint64_t value)
{
    struct net_held held;
    int status = to->region == NET_FLAGS || to->region == NET_EARLY
                     ? -ENOENT
                     : net_regions_hold(sink->regions, to->comm, to->rank, to->region, &held);

    if (status)
        return status == -ECANCELED ? 0 : net_refuse(r, -EPROTO, "a signal in a region that is not known here");
    if (to->offset % sizeof(value) || held.bytes < sizeof(value) || to->offset > held.bytes - sizeof(value))
        status = net_refuse(r, -EPROTO, "a signal past the end of a region, or not aligned");
    else /* release: after this receiver's earlier stores. Regions are page-aligned, so the word is aligned */
        atomic_store_explicit((_Atomic uint64_t *)(void *)(held.base + to->offset), value, memory_order_release);
    net_regions_release(sink->regions);
    return status;
}

int net_socket_broken(int error, const char *doing, struct error *e)
{
    if (error == EPIPE || error == ECONNRESET)
        return error_set(e, -ECONNRESET, "the other end has closed the connection");
    if (error == ETIMEDOUT)
        return error_set(e, -ETIMEDOUT, "the other end has taken nothing for too long");
    return error_set(e, -error, "%s: %s", doing, strerror(error));
}
