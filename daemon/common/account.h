/* SPDX-License-Identifier: MIT
 *
 * account.h - what one user's workers have of the node's memory: a page that the broker makes for each user and shares with that
 * user's workers, so that a worker can charge memory without asking anybody, and need not wait for a broker that is stopped.
 *
 * Each worker has a place of its own in it and writes there only; what the user has is the sum over the places. So a worker that dies
 * in the middle leaves nothing wrong: the broker clears its place. A worker that charges adds to its place first (sequentially
 * consistent) and looks at the sum then: of two that charge at the same time at least one sees the other's bytes, so together they never
 * get more than is allowed. It may be that both see too much and give up though there was room for one: both then try again, a little
 * later.
 *
 * The page is a sealed memfd, which neither end can shrink under the other. A worker is its user's process and may write what it wants
 * there, as it may send what it wants: the broker follows nothing that stands there, and other users have other pages.
 */
#ifndef FCC_DAEMON_COMMON_ACCOUNT_H
#define FCC_DAEMON_COMMON_ACCOUNT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct account {
    _Atomic uint64_t *places; /* NULL: it is not open */
    uint32_t nplaces;
};

/* The broker: a new page with at least that many places. *fd is the caller's. -errno otherwise. */
int account_make(struct account *a, uint32_t places, int *fd);
/* A worker: the page behind fd, which stays the caller's. -EPROTO if that is no such page. */
int account_open(struct account *a, int fd);
void account_close(struct account *a);

/* What all have; what that one has. Numbers of a worker that writes nonsense are nonsense, but in these bounds: 0 to INT64_MAX. */
uint64_t account_used(const struct account *a);
uint64_t account_used_by(const struct account *a, uint32_t place);

/* Add bytes to that place if all together then have at most `limit`; false, and *used what they have, if not. */
bool account_charge(struct account *a, uint32_t place, uint64_t bytes, uint64_t limit, uint64_t *used);
void account_release(struct account *a, uint32_t place, uint64_t bytes);
/* Its worker is gone. */
void account_clear(struct account *a, uint32_t place);

#endif
