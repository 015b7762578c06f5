/* SPDX-License-Identifier: MIT
 *
 * net_mix.h - random writes and flags over a link of any transport. Include after cmocka.h.
 */
#ifndef FCC_TEST_NET_MIX_H
#define FCC_TEST_NET_MIX_H

#include "tests/net/net_bed.h"

/* Sources that the link says it does not need are gone at once. */
static inline void bed_free_flushed(struct bed *b)
{
    for (; b->freed < b->added && b->log[b->freed % LOG].frame < b->link->flushed; b->freed++) {
        struct entry *entry = &b->log[b->freed % LOG];
        if (entry->data)
            memset(entry->data, 0xee, entry->bytes);
        free(entry->data);
        entry->data = NULL;
    }
}

/* One turn of both ends; returns whether anything is under way at the sender. */
static inline bool bed_turn(struct bed *b)
{
    uint64_t now = clock_ns();
    int sending = net_progress(b->link, now);

    assert_string_equal(b->link->error.text, "");
    assert_int_equal(b->ops->look(b->link), 0);
    if (random_below(3))
        assert_true(net_receive(b->receiver, now) >= 0);
    return sending > 0;
}

static inline void bed_drain(struct bed *b)
{
    while (bed_turn(b)) {
    }
    uint64_t bytes = atomic_load(&b->sent.bytes);
    while (atomic_load(&b->received.bytes) < bytes) {
        struct pollfd p = {.fd = b->receiver->fd, .events = POLLIN};
        (void)poll(&p, 1, -1);
        assert_true(net_receive(b->receiver, clock_ns()) >= 0);
    }
}

/* The source is the link's, if this succeeds. */
static inline int bed_put(struct bed *b, struct entry entry)
{
    int status = net_write(b->link, &entry.to, entry.data, &entry.area);

    if (status)
        return status;
    entry.frame = b->link->queued - 1;
    entry.copy = malloc(entry.bytes);
    assert_non_null(entry.copy);
    memcpy(entry.copy, entry.data, entry.bytes);
    b->log[b->added++ % LOG] = entry;
    return 0;
}

static inline int bed_flag(struct bed *b, uint32_t flag, uint64_t epoch)
{
    int status = net_flag(b->link, COMM, 3, flag, epoch);

    if (!status)
        b->log[b->added++ % LOG] = (struct entry){.is_flag = true, .flag = flag, .epoch = epoch, .frame = b->link->queued - 1};
    return status;
}

/* A signal is a write of its 8 bytes, to the model. */
static inline int bed_signal(struct bed *b, uint32_t region, uint64_t offset, uint64_t value)
{
    struct entry entry = {.to = {.comm = COMM, .rank = 3, .region = region, .offset = offset}, .area = {8, 8, 1}, .bytes = 8};
    int status = net_signal(b->link, &entry.to, value);

    if (status)
        return status;
    entry.copy = malloc(8);
    assert_non_null(entry.copy);
    memcpy(entry.copy, &value, 8);
    entry.frame = b->link->queued - 1;
    b->log[b->added++ % LOG] = entry;
    return 0;
}

static inline struct entry random_entry(void)
{
    static const uint64_t sizes[] = {1, 7, 64, 500, 4095, 4096, 5000, 40000};
    struct entry entry = {.to = {.comm = COMM, .rank = 3, .region = (uint32_t)random_below(REGIONS)}};
    struct net_area *a = &entry.area;

    a->row_bytes = 1 + (uint64_t)random_below((int64_t)sizes[random_below(8)]);
    a->stride = a->row_bytes + (uint64_t)(random_size(2000));
    uint64_t most = 1 + (DATA_BYTES - a->row_bytes) / a->stride;
    a->rows = 1 + (uint32_t)random_below(random_below(4) ? (int64_t)(most < 20 ? most : 20) : (int64_t)most);
    entry.bytes = (a->rows - 1) * a->stride + a->row_bytes;
    entry.to.offset = (uint64_t)random_below((int64_t)(DATA_BYTES - entry.bytes + 1));
    entry.data = malloc(entry.bytes);
    assert_non_null(entry.data);
    memset(entry.data, 0xdd, entry.bytes); /* between the rows: is not sent */
    for (uint32_t i = 0; i < a->rows; i++)
        memset(entry.data + i * a->stride, (int)(random_u32() & 255), a->row_bytes);
    for (int i = 0; i < 16; i++)
        entry.data[random_below(a->rows) * (int64_t)a->stride + random_below((int64_t)a->row_bytes)] =
            (unsigned char)random_u32();
    return entry;
}

static inline void random_mix(enum bed_kind kind, uint32_t buffer_bytes, uint32_t queue, unsigned frames)
{
    struct bed *b = malloc(sizeof(*b));
    struct net_options options = BED_OPTIONS;
    unsigned flags = 0, signals = 0;

    assert_non_null(b);
    options.buffer_bytes = buffer_bytes;
    options.queue = queue;
    bed_open(b, kind, &options, NULL);
    b->check_all = true;
    for (unsigned n = 0; n < frames; n++) {
        struct entry entry = random_entry();
        while (b->added - b->freed > LOG / 2 || bed_put(b, entry) == -EAGAIN) {
            (void)bed_turn(b);
            bed_free_flushed(b);
        }
        if (!bed_bounced && random_below(2)) { /* nobody waits for a signal in a receive bounce buffer */
            uint32_t region = (uint32_t)random_below(REGIONS);
            uint64_t offset = DATA_BYTES + (uint64_t)random_below((REGION_BYTES - DATA_BYTES) / 8) * 8,
                     value = (uint64_t)random_u32() << 32 | random_u32();
            while (b->added - b->freed > LOG / 2 || bed_signal(b, region, offset, value) == -EAGAIN) {
                (void)bed_turn(b);
                bed_free_flushed(b);
            }
            signals++;
        }
        for (int64_t more = random_size(2); more > 0; more--) {
            while (bed_flag(b, flags % FLAGS, flags * 3ull) == -EAGAIN)
                (void)bed_turn(b);
            flags++;
        }
        if (random_below(4) == 0)
            (void)bed_turn(b);
        bed_free_flushed(b);
    }
    while (bed_flag(b, 0, 1) == -EAGAIN)
        (void)bed_turn(b);
    bed_drain(b);
    bed_free_flushed(b);
    assert_int_equal(b->freed, b->added);
    assert_int_equal(b->raised, flags + 1);
    assert_int_equal(b->applied, b->added);
    assert_int_equal(atomic_load(&b->received.messages), frames + signals + flags + 1);
    assert_int_equal(atomic_load(&b->sent.messages), frames + signals + flags + 1);
    assert_int_equal(b->link->flushed, b->link->queued);
    assert_int_equal(b->bounced, bed_bounced ? frames : 0);
    bool gives = bed_bounced && b->ops != &net_tcp; /* each is written with so many frames */
    assert_true(b->given == (gives ? REGIONS : 0) && b->not_direct == (gives ? REGIONS / 2 : 0));
    bed_close(b);
    free(b);
}

#endif
