/* SPDX-License-Identifier: MIT
 *
 * test_net_early.c - messages between the data, and frames that come before their operator has begun: taken, kept and handled later, or dropped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/net/frame.h"
#include "tests/net/net_mix.h"

enum { MESSAGES = 64, KEEP_BYTES = 512 << 10 };

/* What the receiver was told, and what it says. */
static struct {
    struct bed *bed;
    uint32_t nodes[MESSAGES], lengths[MESSAGES];
    uint64_t raised_before[MESSAGES]; /* how many flags had been raised */
    unsigned messages, heads, kept;
    unsigned char last[NET_MESSAGE_MAX];
    struct net_early_head head;
    int fate;
    unsigned messages_before; /* when the head came */
    unsigned char *keep;
} told;

static int message_take(void *ctx, uint32_t node, const void *bytes, uint32_t length)
{
    (void)ctx;
    assert_true(told.messages < MESSAGES);
    told.nodes[told.messages] = node;
    told.lengths[told.messages] = length;
    told.raised_before[told.messages++] = told.bed->raised;
    memcpy(told.last, bytes, length);
    return length == 13 ? -EPROTO : 0;
}

static int early_take(void *ctx, const struct net_early_head *head, uint64_t *offset)
{
    (void)ctx;
    told.head = *head;
    told.heads++;
    told.messages_before = told.messages;
    *offset = 64;
    return told.fate;
}

static int kept_take(void *ctx, uint64_t offset, const struct net_area *area, struct error *e)
{
    (void)ctx, (void)e;
    assert_true(offset == 64 && area->row_bytes == told.head.length);
    told.kept++;
    return 0;
}

static struct bed *early_open(int fate, int *raw)
{
    const struct net_bounce bounce = {.received = kept_take};
    struct bed *b = malloc(sizeof(*b));
    struct error e;

    assert_non_null(b);
    memset(&told, 0, sizeof(told));
    told.bed = b;
    told.fate = fate;
    told.keep = calloc(1, KEEP_BYTES);
    assert_non_null(told.keep);
    bed_open(b, BED_UNIX, &BED_OPTIONS, raw);
    b->sink.message = message_take;
    b->sink.early = early_take;
    b->sink.node = 9;
    assert_int_equal(net_region_add_bounce(b->regions, COMM, 3, NET_EARLY, told.keep, KEEP_BYTES, &bounce, &e), 0);
    return b;
}

static void early_close(struct bed *b)
{
    bed_close(b);
    free(b);
    free(told.keep);
}

/* The receiver may have stopped behind a message. */
static void drain(struct bed *b)
{
    bed_drain(b);
    while (net_receive(b->receiver, clock_ns()) > 0)
        ;
}

/* In the order of the other frames, whole, of any length. */
static void messages(void **state)
{
    static const uint32_t sizes[] = {1, 56, 4095, 4096, 65535, 65536, 65537, NET_MESSAGE_MAX};
    static unsigned char bytes[NET_MESSAGE_MAX];
    struct bed *b = early_open(NET_EARLY_TAKE, NULL);

    (void)state;
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (uint32_t n = 0; n < sizes[i]; n++)
            bytes[n] = (unsigned char)(n * 7 + i);
        assert_int_equal(net_flag(b->link, COMM, 3, 1, i + 1), 0);
        assert_int_equal(net_message(b->link, bytes, sizes[i]), 0);
        memset(bytes, 0, sizes[i]); /* it was copied */
        drain(b);
        assert_int_equal(told.messages, i + 1);
        assert_int_equal(told.lengths[i], sizes[i]);
        assert_int_equal(told.nodes[i], 9);
        assert_int_equal(told.raised_before[i], i + 1);
        for (uint32_t n = 0; n < sizes[i]; n++)
            assert_int_equal(told.last[n], (unsigned char)(n * 7 + i));
    }
    assert_int_equal(net_message(b->link, bytes, 64), 0); /* one that is never sent: the sanitizers look for its memory */
    early_close(b);
}

/* A message, and behind it a put and a flag that come early. */
static void early_send(struct bed *b, const unsigned char *rows, uint64_t bytes)
{
    const struct net_early_head head = {
        .comm = COMM, .rank = 3, .node = 5, .turn = 17, .guess = 12, .length = bytes + 2 * sizeof(struct net_frame)};
    const struct net_place to = {.comm = COMM, .rank = 3, .region = 0, .offset = 128};

    assert_int_equal(net_message(b->link, "request", 8), 0);
    assert_int_equal(net_early(b->link, &head), 0);
    assert_int_equal(net_write(b->link, &to, rows, &(struct net_area){bytes, bytes, 1}), 0);
    assert_int_equal(net_flag(b->link, COMM, 3, 1, 1), 0);
}

static bool are_stored(const struct bed *b, const unsigned char *rows, uint64_t bytes)
{
    return !memcmp(b->memory[0] + GUARD + 128, rows, bytes);
}

static void rows_fill(unsigned char *rows, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        rows[i] = (unsigned char)(i % 250 + 1);
}

static void fates(void **state)
{
    static unsigned char rows[REGION_BYTES - 256];
    const uint64_t sizes[] = {64, sizeof(rows)};
    struct error e;

    (void)state;
    rows_fill(rows, sizeof(rows));
    for (unsigned i = 0; i < 6; i++) {
        uint64_t bytes = sizes[i & 1];
        struct bed *b = early_open((int)(i / 2), NULL);
        early_send(b, rows, bytes);
        drain(b);
        assert_int_equal(told.messages, 1);
        assert_int_equal(told.heads, 1);
        assert_int_equal(told.messages_before, 1);
        assert_true(told.head.turn == 17 && told.head.guess == 12 && told.head.node == 5 && told.head.rank == 3);
        bool now = told.fate == NET_EARLY_TAKE;
        assert_int_equal(are_stored(b, rows, bytes), now);
        assert_int_equal(b->raised, now);
        assert_int_equal(told.kept, told.fate == NET_EARLY_KEEP);
        if (told.fate == NET_EARLY_KEEP) {
            assert_int_equal(net_replay(&b->sink, told.keep + 64, told.head.length, &e), 0);
            assert_true(are_stored(b, rows, bytes) && b->raised == 1);
        }
        assert_int_equal(net_flag(b->link, COMM, 3, 1, 2), 0); /* the stream goes on behind it */
        drain(b);
        assert_int_equal(b->raised, now || told.fate == NET_EARLY_KEEP ? 2 : 1);
        early_close(b);
    }
}

/* The receiver stops behind a message that has early frames behind it, and goes on there. */
static void pauses(void **state)
{
    unsigned char rows[64];
    struct bed *b = early_open(NET_EARLY_TAKE, NULL);

    (void)state;
    rows_fill(rows, sizeof(rows));
    early_send(b, rows, sizeof(rows));
    early_send(b, rows, sizeof(rows));
    assert_true(net_progress(b->link, 1) >= 0);
    assert_int_equal(net_receive(b->receiver, 1), 1);
    assert_true(told.messages == 1 && !told.heads);
    assert_int_equal(net_receive(b->receiver, 1), 1);
    assert_true(told.messages == 2 && told.heads == 1 && b->raised == 1);
    assert_int_equal(net_receive(b->receiver, 1), 0);
    assert_true(told.heads == 2 && b->raised == 2);
    early_close(b);
}

/* What is not sent at once is copied: the source may change. */
static void settled(void **state)
{
    unsigned char *rows = malloc(NET_EARLY_MOST), *first = malloc(NET_EARLY_MOST);
    struct net_options options = BED_OPTIONS;
    struct bed *b = early_open(NET_EARLY_KEEP, NULL);

    (void)state;
    assert_true(rows && first);
    bed_close(b);
    options.buffer_bytes = 8192; /* which does not take all of it */
    bed_open(b, BED_UNIX, &options, NULL);
    struct error e;
    const struct net_bounce bounce = {.received = kept_take};
    b->sink.message = message_take;
    b->sink.early = early_take;
    assert_int_equal(net_region_add_bounce(b->regions, COMM, 3, NET_EARLY, told.keep, KEEP_BYTES, &bounce, &e), 0);
    rows_fill(rows, NET_EARLY_MOST);
    memcpy(first, rows, NET_EARLY_MOST);
    early_send(b, rows, NET_EARLY_MOST);
    assert_int_equal(net_progress(b->link, 1), 1);
    b->link->ops->settle(b->link);
    memset(rows, 0xee, NET_EARLY_MOST);
    drain(b);
    assert_int_equal(told.kept, 1);
    assert_memory_equal(told.keep + 64 + sizeof(struct net_frame), first, NET_EARLY_MOST);
    free(rows);
    free(first);
    early_close(b);
}

/* ---- hostile peers ---- */

static struct net_frame frame(unsigned kind, uint32_t region, uint64_t offset, uint64_t row_bytes, uint32_t rows)
{
    return (struct net_frame){.magic = NET_FRAME_MAGIC,
                              .version = NET_FRAME_VERSION,
                              .kind = (uint16_t)kind,
                              .comm = COMM,
                              .rank = 3,
                              .region = region,
                              .offset = offset,
                              .row_bytes = row_bytes,
                              .stride = row_bytes,
                              .rows = rows};
}

static void sent_is_refused(struct net_frame f, int fate, const char *says)
{
    static const unsigned char payload[8192];
    int raw, status;
    struct bed *b = early_open(fate, &raw);

    assert_int_equal(send(raw, &f, sizeof(f), MSG_NOSIGNAL), sizeof(f));
    assert_int_equal(send(raw, payload, sizeof(payload), MSG_NOSIGNAL), sizeof(payload));
    while ((status = net_receive(b->receiver, 1)) > 0)
        ;
    if (status != -EPROTO || !strstr(b->receiver->error.text, says))
        fail_msg("%d \"%s\" does not say \"%s\"", status, b->receiver->error.text, says);
    (void)close(raw);
    early_close(b);
}

static void replay_is_refused(const struct net_frame *f, uint64_t length, const char *says)
{
    struct bed *b = early_open(NET_EARLY_KEEP, NULL);
    unsigned char frames[1024] = {0};
    struct error e;

    memcpy(frames, f, sizeof(*f));
    assert_int_equal(net_replay(&b->sink, frames, length, &e), -EPROTO);
    if (!strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
    assert_int_equal(b->raised, 0);
    early_close(b);
}

static void hostile(void **state)
{
    struct net_frame f = {.magic = NET_FRAME_MAGIC, .version = NET_FRAME_VERSION, .kind = NET_FRAME_MESSAGE};

    (void)state;
    sent_is_refused(f, 0, "empty or too long");
    f.row_bytes = NET_MESSAGE_MAX + 1;
    sent_is_refused(f, 0, "empty or too long");
    f.row_bytes = UINT64_MAX;
    sent_is_refused(f, 0, "empty or too long");
    f.row_bytes = 13;
    sent_is_refused(f, 0, "a message that is none");
    f.row_bytes = 16;
    f.offset = 1;
    sent_is_refused(f, 0, "with a place");
    sent_is_refused(frame(NET_FRAME_EARLY, 0, 1, 0, 0), NET_EARLY_KEEP, "without a length");
    sent_is_refused(frame(NET_FRAME_EARLY, 0, 1, KEEP_BYTES, 0), NET_EARLY_KEEP, "past the end");
    sent_is_refused(frame(NET_FRAME_EARLY, 0, 1, UINT64_MAX, 0), NET_EARLY_KEEP, "past the end");
    sent_is_refused(frame(NET_FRAME_EARLY, 0, 1, 64, 0), -EPROTO, "nobody may send");
    f = frame(NET_FRAME_EARLY, 0, 1, 64, 0);
    f.rank = 4;
    sent_is_refused(f, NET_EARLY_KEEP, "a rank that is not known");

    f = frame(NET_FRAME_PUT, 0, 0, 64, 1);
    replay_is_refused(&f, 40, "a part of a frame");
    replay_is_refused(&f, sizeof(f) + 63, "not whole");
    f = frame(NET_FRAME_PUT, 0, REGION_BYTES - 32, 64, 1);
    replay_is_refused(&f, sizeof(f) + 64, "past the end");
    f = frame(NET_FRAME_PUT, NET_FLAGS, 0, 64, 1);
    replay_is_refused(&f, sizeof(f) + 64, "not whole");
    f = frame(NET_FRAME_PUT, NET_EARLY, 0, 64, 1);
    replay_is_refused(&f, sizeof(f) + 64, "not whole");
    f = frame(NET_FRAME_PUT, REGIONS, 0, 64, 1);
    replay_is_refused(&f, sizeof(f) + 64, "not known");
    f = frame(NET_FRAME_PUT, 0, 0, UINT64_MAX, UINT32_MAX);
    replay_is_refused(&f, sizeof(f) + 64, "not whole");
    f = frame(NET_FRAME_PUT, 0, 0, 0, 0);
    replay_is_refused(&f, sizeof(f), "not whole");
    f = frame(NET_FRAME_FLAG, FLAGS, 1, 0, 0);
    f.stride = 0;
    replay_is_refused(&f, sizeof(f), "does not exist");
    f = frame(NET_FRAME_EARLY, 0, 1, 64, 0);
    replay_is_refused(&f, sizeof(f) + 64, "neither a put nor a flag");
    f = frame(NET_FRAME_MESSAGE, 0, 1, 64, 0);
    replay_is_refused(&f, sizeof(f) + 64, "neither a put nor a flag");
    f = frame(NET_FRAME_PUT, 0, 0, 64, 1);
    f.magic++;
    replay_is_refused(&f, sizeof(f) + 64, "no frame");
}

/* Frames with bits turned: whatever comes of it, the guards and the heap stay whole. */
static void fuzz(void **state)
{
    unsigned refusals = 0, taken = 0;

    (void)state;
    random_state = 11;
    for (int round = 0; round < 3000; round++) {
        struct bed *b = early_open(NET_EARLY_KEEP, NULL);
        unsigned char *frames = malloc(2048);
        uint64_t at = 0;
        struct error e;
        assert_non_null(frames);
        for (unsigned i = random_below(4); i > 0; i--) {
            uint64_t bytes = 1 + random_below(300);
            struct net_frame f = random_below(3) ? frame(NET_FRAME_PUT, random_below(REGIONS), random_below(64), bytes, 1)
                                                 : frame(NET_FRAME_FLAG, random_below(FLAGS), 1, 0, 0);
            f.stride = f.kind == NET_FRAME_FLAG ? 0 : f.stride;
            if (!random_below(3))
                ((unsigned char *)&f)[random_below(sizeof(f))] ^= (unsigned char)(1u << random_below(8));
            memcpy(frames + at, &f, sizeof(f));
            memset(frames + at + sizeof(f), 0x5a, bytes);
            at += sizeof(f) + (f.kind == NET_FRAME_PUT ? bytes : 0);
        }
        unsigned char *exact = malloc(at ? at : 1); /* so that the sanitizer sees what is read beyond */
        assert_non_null(exact);
        memcpy(exact, frames, at);
        int status = net_replay(&b->sink, exact, at, &e);
        assert_true(status == 0 || status == -EPROTO);
        refusals += status != 0;
        taken += !status;
        for (uint32_t r = 0; r < REGIONS; r++)
            for (int i = 0; i < GUARD; i++)
                assert_true(!b->memory[r][i] && !b->memory[r][GUARD + REGION_BYTES + i]);
        free(exact);
        free(frames);
        early_close(b);
    }
    assert_true(refusals > 100 && taken > 100);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {cmocka_unit_test(messages), cmocka_unit_test(fates),   cmocka_unit_test(pauses),
                                              cmocka_unit_test(settled),  cmocka_unit_test(hostile), cmocka_unit_test(fuzz)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
