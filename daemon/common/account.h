/* SPDX-License-Identifier: MIT
 *
 * account.h - how much memory one user's workers use: a page that the broker makes for each user and shares with that user's
 * workers. So a worker can charge memory without a message to the broker.
 *
 * Each worker writes only its own entry of the page; the user's total is the sum of all entries. When a worker dies, the broker
 * clears its entry, so a death in the middle of a charge leaves nothing wrong. To charge, a worker first adds to its entry
 * (sequentially consistent), then sums up all entries. Of two workers that charge at the same time at least one sees the
 * other's bytes, so together they never exceed the limit. Both may see too much and take their bytes back although there was
 * room for one; then both try again.
 *
 * The page is a sealed memfd, so neither process can shrink it under the other. A worker runs as its user and may write
 * anything into the page. The broker bases no decision on it for other users, who have pages of their own.
 */
#ifndef FCC_DAEMON_COMMON_ACCOUNT_H
#define FCC_DAEMON_COMMON_ACCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct account {
    _Atomic uint64_t *places; /* bytes charged, an entry for each worker; NULL: the account is not open */
    uint32_t nplaces;
};

/* Broker: makes a page with at least that many entries. The caller closes *fd. Returns 0 or -errno. */
int account_make(struct account *a, uint32_t places, int *fd);
/* Worker: maps the page behind fd, which the caller keeps. Returns 0, -errno, or -EPROTO if it is not such a page. */
int account_open(struct account *a, int fd);
void account_close(struct account *a);

/* Bytes charged by all workers, and by one. A misbehaving worker may store any number, but the result is always 0 to
 * INT64_MAX. */
uint64_t account_used(const struct account *a);
uint64_t account_used_by(const struct account *a, uint32_t place);

/* Adds bytes to an entry unless the sum of all entries would exceed `limit`. Returns false then, and sets *used to the sum. */
bool account_charge(struct account *a, uint32_t place, uint64_t bytes, uint64_t limit, uint64_t *used);
void account_release(struct account *a, uint32_t place, uint64_t bytes);
/* To be called when the entry's worker is gone. */
void account_clear(struct account *a, uint32_t place);

#endif
