/* SPDX-License-Identifier: MIT
 *
 * metrics.h - what the broker knows in numbers, as OpenMetrics text; and the ledgers of its workers (daemon/common/ledger.h).
 *
 *   ledgers.c   the ledgers of jobs: their counters, added up, and the flight recorders of workers that have ended
 *   families.h  the list of all metrics
 *   metrics.c   their samples
 *   http.c      METRICS_LISTEN: a listener that answers GET /metrics
 *
 * daemon/OPERATIONS.md says what each metric means.
 */
#ifndef FCC_DAEMON_BROKER_METRICS_METRICS_H
#define FCC_DAEMON_BROKER_METRICS_METRICS_H

#include "daemon/broker/broker.h"
#include "daemon/common/ledger.h"

/* ---- ledgers.c ---- */

#define USERS_MAX 100 /* users with jobs who have rows of their own; more are shown together, as uid "other" */
#define LINKS_MAX 128 /* nodes and transports that are counted one by one; more are counted together, as node "other" */

/* The counters of a link; the order is that of the fields of struct meter_node. */
enum link_count { LINK_BYTES_OUT, LINK_BYTES_IN, LINK_MESSAGES_OUT, LINK_MESSAGES_IN, LINK_WAITS, LINK_LOST, LINK_COUNTS };
struct link_total {
    char node[FCC_NODE_MAX];
    const char *transport;
    uint64_t n[LINK_COUNTS];
};

/* broker.ledgers: what all workers have counted, also those that have ended. */
struct ledgers {
    struct counters sum;
    struct ledgers_kept *kept; /* ledgers.c, in memory that the next broker gets. NULL: there is none */
    unsigned nlinks;
    struct link_total links[LINKS_MAX + 1];
    unsigned npast;
    TAILQ_HEAD(past_head, past) past; /* flight recorders of workers that have ended, the oldest first */
    char *page;                       /* http.c: the text that was sent last */
    size_t page_length;
    uint64_t page_ns; /* when it was made */
};

/* Makes a job's ledger. Returns its descriptor, which is the caller's and the worker's, or -errno: then the worker will count nothing. */
int job_ledger_open(struct job *j);
/* The same for a worker that another broker has started, with the descriptor, which becomes this function's. One that is not understood is left. */
void job_ledger_adopt(struct job *j, int fd);
/* The job's worker has ended: its counts stay, and so does its flight recorder for a while. */
void job_ledger_close(struct job *j);
int ledgers_open(struct broker *b); /* 0 or -ENOMEM */
void ledgers_close(struct broker *b);
/* The store is open: goes on with what the last broker has counted, and counts for the next one. */
void ledgers_keep(struct broker *b);
/* Takes what workers have counted since. */
void ledgers_take(const struct broker *b);
/* The meters of the job's worker. NULL: it has none. */
const struct meters *job_meters(const struct job *j);

/* ---- metrics.c ---- */

/* All metrics as OpenMetrics text, which the caller frees. Of users only `asks` is shown, or all if that is root or the daemon's own user. NULL:
 * no memory. */
char *metrics_text(const struct broker *b, uid_t asks, size_t *length);

#endif
