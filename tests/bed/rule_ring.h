/* SPDX-License-Identifier: MIT
 *
 * rule_ring.h - ranks of a ring whose streams send rows to the next rank by rules of trackers, and wait for those of the rank before: on GPUs, and on fake
 * ones.
 */
#ifndef FCC_TEST_RULE_RING_H
#define FCC_TEST_RULE_RING_H

#include <stddef.h>

#include "tests/bed/harness.h"

/* Of each rank: raised by the rank before it when rows have come, and by the next one when they have been used. */
struct ring_words {
    uint64_t come, used;
};

struct ring {
    int rank, to, from;
    fcc_context *context;
    fcc_comm *comm;
    fcc_tracker *tracker;
    fcc_buffer *source, *place, *words;
    void *stream;
    uint32_t send, come, used, free; /* rules */
};

/* The rank's rules, which send `rows` of `cols` f32 from its source to the next rank's place, rows of so many. */
static inline void ring_rules(struct ring *r, enum fcc_rule_action action, uint32_t rows, uint32_t cols, uint32_t from_cols,
                              uint32_t to_cols)
{
    const struct fcc_rule send = {.name = "send",
                                  .count = 2,
                                  .action = action,
                                  .rank = r->to,
                                  .rows = rows,
                                  .dtype = FCC_F32,
                                  .row_bytes = cols * sizeof(float),
                                  .from_stride = from_cols * sizeof(float),
                                  .to_stride = to_cols * sizeof(float),
                                  .from = r->source,
                                  .to = r->place,
                                  .signals = r->words,
                                  .signal_offset = offsetof(struct ring_words, come)},
                          come = {.name = "come",
                                  .count = 1,
                                  .rank = r->rank,
                                  .awaits = {{.buffer = r->words, .offset = offsetof(struct ring_words, come)}}},
                          used = {.name = "used",
                                  .count = 1,
                                  .rank = r->from,
                                  .signals = r->words,
                                  .signal_offset = offsetof(struct ring_words, used)},
                          free = {.name = "free",
                                  .count = 1,
                                  .rank = r->rank,
                                  .awaits = {{.buffer = r->words, .offset = offsetof(struct ring_words, used)}}};

    OK(fcc_tracker_create(r->comm, &r->tracker));
    OK(fcc_tracker_rule(r->tracker, &send, &r->send));
    OK(fcc_tracker_rule(r->tracker, &come, &r->come));
    OK(fcc_tracker_rule(r->tracker, &used, &r->used));
    OK(fcc_tracker_rule(r->tracker, &free, &r->free));
}

#endif
