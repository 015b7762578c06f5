/* SPDX-License-Identifier: MIT
 *
 * notice.c - handles messages on a queue pair at the receiving end: flags, signals, rows in bounce buffers. Messages are not
 * trusted.
 */
#include <errno.h>

#include "daemon/net/verbs/receiver.h"

/* Passes on rows that are in a bounce buffer: the writes before this message are in memory (verbs.h). If the region was removed
 * and added again since the writes, they went to the old registration. Then an operator has failed, and the rows that are
 * passed on are unused. */
static int landed_take(struct verbs_receiver *v, const struct verbs_notice *n)
{
    const struct net_area area = {.row_bytes = n->value, .stride = n->stride, .rows = n->number};
    struct net_regions *regions = v->sink->regions;
    struct net_held held;
    uint64_t length;

    int status = n->region == NET_FLAGS ? -ENOENT : net_regions_hold(regions, n->comm, n->rank, n->region, &held);
    if (status == -ECANCELED)
        return 0;
    if (status)
        return net_refuse(&v->receiver, -EPROTO, "rows in a region that is not known here");
    if (!held.bounce.received || net_area_check(&area, n->offset, held.bytes, &length))
        status = net_refuse(&v->receiver, -EPROTO,
                            held.bounce.received ? "rows past the end of a region"
                                                 : "rows for a region that is not a bounce buffer");
    else
        status = held.bounce.received(held.bounce.ctx, n->offset, &area, &v->receiver.error);
    net_regions_release(regions);
    return status;
}

int verbs_notice_take(struct verbs_receiver *v, struct verbs_notice n)
{
    const struct net_place word = {.comm = n.comm, .rank = n.rank, .region = n.region, .offset = n.offset};
    net_count(&v->receiver.counts->bytes, n.bytes - v->bytes);
    net_count(&v->receiver.counts->messages, n.messages - v->messages);
    v->bytes = n.bytes;
    v->messages = n.messages;
    if (n.zero)
        return net_refuse(&v->receiver, -EPROTO, "a message whose reserved field is not 0");
    switch (n.kind) {
    case VERBS_FLAG:
        if (n.region != NET_FLAGS)
            return net_refuse(&v->receiver, -EPROTO, "a flag with a region");
        return net_flag_take(&v->receiver, v->sink, n.comm, n.rank, n.number, n.value);
    case VERBS_SIGNAL:
        return net_signal_take(&v->receiver, v->sink, &word, n.value);
    case VERBS_WRITTEN:
        return landed_take(v, &n);
    default:
        return net_refuse(&v->receiver, -EPROTO, "a message of an unknown kind");
    }
}
