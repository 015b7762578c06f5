/* SPDX-License-Identifier: MIT
 *
 * puts_bed.h - puts that a program's kernels trigger, to ranks on other nodes: two nodes on this machine, threads stand for the
 * kernels. A rank with its buffers, its puts, and its wait for a signal.
 */
#ifndef FCC_TEST_PUTS_BED_H
#define FCC_TEST_PUTS_BED_H

#include <signal.h>

#include "tests/bed/harness.h"

#define NODES 2 /* rank r is on node r modulo this */
#define RANKS 4
#define DATA 4096

static inline int node_of(int rank)
{
    return rank % NODES;
}

static inline uint64_t word_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline bool signal_wait(const uint64_t *word, uint64_t value, const int32_t *status, int32_t *why)
{
    double until = await_end();

    while (word_load(word) < value) {
        *why = __atomic_load_n(status, __ATOMIC_ACQUIRE);
        if (*why)
            return word_load(word) >= value;
        CHECK(now_ms() < until);
        nap();
    }
    return true;
}

/* It must come; otherwise the next operator says why it has not. */
#define HEARD(b, word, value)                                                                                                  \
    do {                                                                                                                       \
        int32_t why_ = 0;                                                                                                      \
        if (!signal_wait(&(b)->words[word], value, (b)->status, &why_)) {                                                      \
            OK(fcc_noop((b)->comm));                                                                                           \
            check_failed(__FILE__, __LINE__, "status %d", why_);                                                               \
        }                                                                                                                      \
    } while (0)

static inline void puts_run(int n, void (*rank)(int rank, const struct ranks *all, void *argument), void *argument, int killed)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, NODES, NULL);
    ranks_start(&r, n, rank, argument);
    if (killed >= 0)
        CHECK(rank_wait(&r, killed) == SIGKILL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* A rank with a buffer of data and one of signals. */
struct bed {
    fcc_comm *comm;
    fcc_buffer *data, *signals;
    unsigned char *bytes;
    uint64_t *words;
    const int32_t *status;
};

static inline struct bed bed_open(const struct ranks *all, int rank, size_t bytes)
{
    struct bed b = {.comm = comm_open(all, rank, 0)};

    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, bytes, &b.data));
    OK(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, 64 * sizeof(uint64_t), &b.signals));
    OK(fcc_comm_status(b.comm, &b.status));
    b.bytes = fcc_buffer_data(b.data);
    b.words = fcc_buffer_data(b.signals);
    return b;
}

static inline void bed_close(const struct bed *b)
{
    fcc_comm_destroy(b->comm);
    fcc_disconnect(comm_context());
}

/* One row, and signal number `word`. */
static inline struct fcc_put put_make(const struct bed *b, int rank, uint64_t from, uint64_t to, uint64_t bytes, uint64_t word)
{
    return (struct fcc_put){.rank = rank,
                            .rows = bytes ? 1 : 0,
                            .row_bytes = bytes,
                            .from = bytes ? b->data : NULL,
                            .from_offset = from,
                            .to = bytes ? b->data : NULL,
                            .to_offset = to,
                            .signals = b->signals,
                            .signal_offset = word * 8};
}

static inline uint32_t put_new(const struct bed *b, int rank, uint64_t from, uint64_t to, uint64_t bytes, uint64_t word)
{
    struct fcc_put put = put_make(b, rank, from, to, bytes, word);
    uint32_t number = 0;

    OK(fcc_put_register(b->comm, &put, &number));
    CHECK(number > 0);
    return number;
}

#endif
