/* SPDX-License-Identifier: MIT
 *
 * wait.h - how a thread waits: the clock, how long a worker may take, and how it spins before it sleeps.
 */
#ifndef FCC_CLIENT_CORE_WAIT_H
#define FCC_CLIENT_CORE_WAIT_H

#include <stdbool.h>
#include <stdint.h>

/* The longest sleep of a thread before it checks that the worker lives. */
#define WAIT_SLICE_NS 50000000LL

#define NEVER INT64_MAX

int64_t now_ns(void);               /* CLOCK_MONOTONIC */
int64_t deadline_in_ms(int64_t ms); /* now + ms; negative: NEVER */
int ms_until(int64_t deadline);     /* rounded up, 0 if it has passed, at most WAIT_SLICE_NS: for poll() */

#define CONNECT_ATTEMPTS 3 /* attempts of fcc_connect() while workers die before they have read the connection */
#define CALL_LIMIT_MS                                                                                                          \
    10000            /* limit for connecting and for calls without a communicator: the worker may have to be started first */
#define SLOW_MS 5000 /* how late a healthy worker may report what its own time limit has ended */

#define LIMITS_OF_CALL 1 /* time limits that a call takes at most: the worker waits for other ranks */
/* time limits that an operator takes at most: the worker waits for other ranks, then the operator runs */
#define LIMITS_OF_OPERATOR 2

/* The longest that a working worker can take for something that includes `limits` consecutive time limits of a communicator.
 * The worker's own limits expire earlier, because its error says more. A thread that has waited this long without any progress
 * gives the worker up as stopped or hanging. Time limit 0: there is no communicator. */
int64_t patience_ms(uint32_t time_limit_ms, unsigned limits);

/* How much longer a thread waits for a worker that makes no progress. Each check (patience_over()) subtracts at most one
 * second, so time in which this process was itself stopped does not count against the worker. A thread that checks less
 * than once a second waits longer. All zero: patience_begin() was not called. */
struct patience {
    int64_t left_ns, looked_ns;
};
void patience_begin(struct patience *p, int64_t ms);
bool patience_has_begun(const struct patience *p);
/* Subtracts the time since the last check. True: nothing is left. */
bool patience_over(struct patience *p);

struct spin {
    unsigned taken; /* yields that let another thread run */
    unsigned pauses;
    int64_t until, keep_until;
};
void spin_begin(struct spin *s, uint32_t spin_us, int64_t deadline);
/* Wait a moment. False: the time for spinning is over, the caller should sleep. */
bool spin_more(struct spin *s);

/* Called after a spin with what the worker says of its engine's core (struct fcc_session_memory): may move the thread there, or away. */
void core_share(const struct spin *s, uint32_t engine_core);
/* Move the calling thread to another core; it may return later. False: it may run on no other core. */
bool core_leave(unsigned core);

#endif
