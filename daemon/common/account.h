/* SPDX-License-Identifier: MIT
 *
 * account.h - how much one user's workers have of what is limited: a page that the broker makes for each user and shares with
 * that user's workers. So a worker can charge without a message to the broker.
 *
 * Each worker writes only its own entry of the page, which has a number for each kind; the user's total is the sum of all
 * entries. When a worker dies, the broker clears its entry, so a death in the middle of a charge leaves nothing wrong. To
 * charge, a worker compares its own number with the job's limit, which nobody else changes. Then it adds to its number
 * (sequentially consistent), and sums up all entries. Of two workers that charge at the same time at least one sees what the
 * other has added, so together they never exceed the user's limit. Both may see too much and take theirs back although there
 * was room for one; then both try again.
 *
 * The page is a sealed memfd, so neither process can shrink it under the other. A worker runs as its user and may write
 * anything into the page. The broker bases no decision on it for other users, who have pages of their own.
 */
#ifndef FCC_DAEMON_COMMON_ACCOUNT_H
#define FCC_DAEMON_COMMON_ACCOUNT_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What is limited, for a user and for a job: X(NAME, key of a user's limit, key of a job's, text). */
#define ACCOUNT_KINDS(X)                                                                                                       \
    X(MEMORY, MEMORY_PER_USER_MB, MEMORY_PER_JOB_MB, "memory")                                                                 \
    X(GPU_MEMORY, GPU_MEMORY_PER_USER_MB, GPU_MEMORY_PER_JOB_MB, "GPU memory")                                                 \
    X(COMMS, COMMS_PER_USER, COMMS_PER_JOB, "communicators")                                                                   \
    X(OPERATORS, OPERATORS_PER_USER, OPERATORS_PER_JOB, "operators in flight")                                                 \
    X(STREAMS, STREAMS_PER_USER, STREAMS_PER_JOB, "operators on streams")

#define X(NAME, user, job, text) ACCOUNT_##NAME,
enum account_kind { ACCOUNT_KINDS(X) ACCOUNT_COUNT };
#undef X

/* Whose limit it is. */
enum account_whose { ACCOUNT_USER, ACCOUNT_JOB, ACCOUNT_WHOSE };

/* The limits of a user and of each of his jobs, by kind. Nothing is unlimited: INT64_MAX is what nobody reaches. Brokers and workers of several
 * versions have room for as many kinds, as entries do. */
struct account_limits {
    uint64_t of[ACCOUNT_WHOSE][8];
};

/* The name of the key that sets a limit, and what it limits, for people. */
const char *account_key(enum account_whose whose, enum account_kind kind);
const char *account_text(enum account_kind kind);

/* A worker's entry: a cache line, which only that worker writes, but for `owner`. */
struct account_place {
    _Atomic uint64_t used[7]; /* by kind; bytes, or a number */
    /* The broker writes it: the worker's process; while that is being started, the broker's; 0: the entry is free. So the next broker gives
     * nobody the entry of a worker that it does not know, as one whose channel nobody could keep, and finds those that are dead. */
    _Atomic int32_t owner;
    int32_t zero;
};
static_assert(ACCOUNT_COUNT <= 7 && sizeof(struct account_place) == 64, "an entry is a cache line");

struct account {
    struct account_place *places; /* an entry for each worker; NULL: the account is not open */
    uint32_t nplaces;
};

/* Broker: makes a page with at least that many entries. The caller closes *fd. Returns 0 or -errno. */
int account_make(struct account *a, uint32_t places, int *fd);
/* Worker: maps the page behind fd, which the caller keeps. Returns 0, -errno, or -EPROTO if it is not such a page. */
int account_open(struct account *a, int fd);
void account_close(struct account *a);

/* What all workers have of a kind, and what one has. A misbehaving worker may store any number, but the result is always 0 to
 * INT64_MAX. */
uint64_t account_used(const struct account *a, enum account_kind kind);
uint64_t account_used_by(const struct account *a, uint32_t place, enum account_kind kind);

/* Whose limit is in the way of a charge, and how much that user or job has. */
struct account_refusal {
    enum account_whose whose;
    uint64_t used;
};

/* Adds `more` to an entry unless it, or the sum of all entries, would exceed its limit. Returns false then, and says why. */
bool account_charge(struct account *a, uint32_t place, enum account_kind kind, uint64_t more,
                    const struct account_limits *limits, struct account_refusal *why);
void account_release(struct account *a, uint32_t place, enum account_kind kind, uint64_t less);
/* To be called when the entry's worker is gone. The entry is free then. */
void account_clear(struct account *a, uint32_t place);
/* Broker: whose entry it is from now on. */
void account_own(struct account *a, uint32_t place, int32_t owner);
/* Whether the entry has an owner whose process is there. */
bool account_is_owned(const struct account *a, uint32_t place);

#endif
