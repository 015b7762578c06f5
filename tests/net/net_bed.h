/* SPDX-License-Identifier: MIT
 *
 * net_bed.h - a receiving end with regions to write, and a sending end, or a raw socket that says what it likes. The model says
 * what the regions should hold. Include after cmocka.h.
 */
#ifndef FCC_TEST_NET_BED_H
#define FCC_TEST_NET_BED_H

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/net/frame.h"
#include "proto/base/clock.h"
#include "tests/bed/random.h"
#include "tests/net/net_sockets.h"

/* Of a region, what is written is in the first DATA_BYTES, and signals lie behind it: those are stored by the receiver, and may
 * come after writes that were sent later. */
enum { REGIONS = 4, REGION_BYTES = 300000, DATA_BYTES = REGION_BYTES - 1024, FLAGS = 16, COMM = 77, GUARD = 64, LOG = 4096 };

/* What was queued, in order, and not yet applied to the model. */
struct entry {
    bool is_flag;
    struct net_place to;
    struct net_area area;
    unsigned char *data; /* laid out as at the receiver: the link's source */
    unsigned char *copy; /* the model's */
    uint64_t bytes;
    uint32_t flag;
    uint64_t epoch;
    uint64_t frame; /* its number in link.queued */
};

/* The transport of BED_VERBS. */
static const struct net_ops *bed_verbs;

/* Regions are receive bounce buffers, from which what comes goes on into the memory that is compared with the model. */
static bool bed_bounced;

struct bed {
    const struct net_ops *ops;
    struct net_regions *regions;
    struct net_sink sink;
    struct net_counts sent, received;
    struct net_link *link;
    struct net_receiver *receiver;
    unsigned char *memory[REGIONS], *model[REGIONS]; /* with GUARD bytes on either side */
    unsigned char *bounce[REGIONS];                  /* NULL: writes go to the memory itself */
    unsigned bounced;                                /* areas */
    unsigned given, not_direct; /* receive bounce buffers to an adapter; of these, where it had been offered more */
    struct entry log[LOG];
    unsigned added, applied, freed;
    unsigned raised;
    bool check_all;
};

static inline void entry_apply(struct bed *b, const struct entry *entry)
{
    for (uint32_t i = 0; i < entry->area.rows; i++)
        memcpy(b->model[entry->to.region] + GUARD + entry->to.offset + i * entry->area.stride,
               entry->copy + i * entry->area.stride, entry->area.row_bytes);
    free(entry->copy);
}

/* Writes of a queue pair arrive without anybody at the receiver, so some that were queued after a flag may have come when the
 * flag is found: what differs from the model is of one of these. */
static inline bool bed_is_of_later(const struct bed *b, uint32_t region, uint64_t at)
{
    for (unsigned n = b->applied; n < b->added; n++) {
        const struct entry *entry = &b->log[n % LOG];
        uint64_t inside = at - GUARD - entry->to.offset; /* wraps if it is before: then it is large */
        if (!entry->is_flag && entry->to.region == region && at >= GUARD && inside < entry->bytes &&
            inside % entry->area.stride < entry->area.row_bytes && entry->copy[inside] == b->memory[region][at])
            return true;
    }
    return false;
}

static inline bool bed_region_is_right(const struct bed *b, uint32_t region)
{
    for (uint64_t i = 0; i < REGION_BYTES + 2 * GUARD; i++)
        if (b->memory[region][i] != b->model[region][i] && (b->ops == &net_tcp || !bed_is_of_later(b, region, i)))
            return false;
    return true;
}

/* All that was queued before the flag is there, and, of a stream, nothing that was queued after it. */
static inline int bed_raise(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    struct bed *b = ctx;

    b->raised++;
    if (!b->check_all)
        return 0;
    for (; !b->log[b->applied % LOG].is_flag; b->applied++)
        entry_apply(b, &b->log[b->applied % LOG]);
    const struct entry *entry = &b->log[b->applied++ % LOG];
    assert_int_equal(comm, COMM);
    assert_int_equal(rank, 3);
    assert_int_equal(flag, entry->flag);
    assert_int_equal(epoch, entry->epoch);
    for (uint32_t r = 0; r < REGIONS; r++)
        EXPECT(!memcmp(b->memory[r], b->model[r], REGION_BYTES + 2 * GUARD) || bed_region_is_right(b, r));
    return 0;
}

/* What has come to receive bounce buffer r: its number is where the context points. */
struct bed_bounce {
    struct bed *bed;
    uint32_t region;
};
static struct bed_bounce bed_bounces[REGIONS];

static inline int bed_received(void *ctx, uint64_t offset, const struct net_area *area, struct error *e)
{
    const struct bed_bounce *l = ctx;
    uint64_t length;

    (void)e;
    assert_int_equal(net_area_check(area, offset, REGION_BYTES, &length), 0);
    for (uint32_t i = 0; i < area->rows; i++)
        memcpy(l->bed->memory[l->region] + GUARD + offset + i * area->stride,
               l->bed->bounce[l->region] + offset + i * area->stride, area->row_bytes);
    l->bed->bounced++;
    return 0;
}

/* No adapter of these tests takes what it is offered. */
static inline void bed_given(void *ctx, const char *adapter, bool is_direct, const struct error *why)
{
    const struct bed_bounce *l = ctx;

    assert_true(*adapter && !is_direct);
    l->bed->given++;
    l->bed->not_direct += why != NULL;
    assert_true(!why || strstr(why->text, "cannot register"));
}

static inline void bed_region_add(struct bed *b, uint32_t r)
{
    struct error e;

    bed_bounces[r] = (struct bed_bounce){b, r};
    /* Half of them are offered as a device's memory, too, by a descriptor that is none of a device. */
    static const struct net_direct direct = {.fd = 2, .address = 4096};
    const struct net_bounce bounce = {
        .received = bed_received, .ctx = &bed_bounces[r], .direct = r % 2 ? &direct : NULL, .given = bed_given};
    if (!bed_bounced) {
        assert_int_equal(net_region_add(b->regions, COMM, 3, r, b->memory[r] + GUARD, REGION_BYTES, &e), 0);
        return;
    }
    b->bounce[r] = calloc(1, REGION_BYTES);
    assert_non_null(b->bounce[r]);
    assert_int_equal(net_region_add_bounce(b->regions, COMM, 3, r, b->bounce[r], REGION_BYTES, &bounce, &e), 0);
}

static inline void bed_open(struct bed *b, enum bed_kind kind, const struct net_options *options, int *raw)
{
    struct net_options receiving = *options;
    struct error e;
    int sockets[2];

    if (kind == BED_TCP) /* a small window makes TCP wait for its timers */
        receiving.buffer_bytes = 0;
    memset(b, 0, sizeof(*b));
    b->ops = kind == BED_VERBS ? bed_verbs : &net_tcp;
    bed_sockets(kind, sockets);
    assert_int_equal(net_regions_open(&b->regions, &e), 0);
    b->sink = (struct net_sink){.regions = b->regions, .raise = bed_raise, .ctx = b};
    if (raw)
        *raw = sockets[0];
    else
        assert_int_equal(b->ops->link_open(sockets[0], options, &b->sent, &b->link, &e), 0);
    assert_int_equal(b->ops->receiver_open(sockets[1], &receiving, &b->sink, &b->received, &b->receiver, &e), 0);
    for (uint32_t r = 0; r < REGIONS; r++) {
        b->memory[r] = calloc(1, REGION_BYTES + 2 * GUARD);
        b->model[r] = calloc(1, REGION_BYTES + 2 * GUARD);
        assert_true(b->memory[r] && b->model[r]);
        bed_region_add(b, r);
    }
    assert_int_equal(net_region_add(b->regions, COMM, 3, NET_FLAGS, NULL, FLAGS, &e), 0);
}

static inline void bed_close(struct bed *b)
{
    if (b->link)
        b->ops->link_close(b->link);
    if (b->receiver)
        b->ops->receiver_close(b->receiver);
    net_regions_close(b->regions);
    for (int r = 0; r < REGIONS; r++) {
        free(b->memory[r]);
        free(b->model[r]);
        free(b->bounce[r]);
    }
}

#endif
