/* SPDX-License-Identifier: MIT
 *
 * store.h - what a broker leaves to the next one, so that a restart ends no job: descriptors that the service manager keeps (FDSTORE=1 of
 * sd_notify(3), where FDSTORE in the environment says how many it takes), and in one of them what the broker knows about its workers.
 *
 *   page               the jobs: struct store_page, in a memfd that only brokers have
 *   worker-N           the broker's end of the channel to the worker of page.jobs[N] (control.h)
 *   process-N          that worker's process, a pidfd. So a pid that is used again harms nobody
 *   ledger-N           that worker's ledger
 *   account-UID        the account of that user's workers
 *   counts             what workers that have ended have counted (metrics/ledgers.c)
 *   listen             the listening socket, if this broker has made it
 *
 * Who is a worker. The next broker believes that a descriptor is the channel to a job's worker because the service manager says so,
 * which takes descriptors from the service's main process only and hands them to the process that it starts. Nothing that a worker says,
 * and no name in the file system, leads to a job: a user's process that would pose as a worker has no way in.
 *
 * A broker may die at any instruction. Descriptors are kept before the worker has START, and page.jobs[N].state is stored last. So in
 * each state what the state needs is there: an entry that is STARTING has a worker that knows nothing yet, which the next broker
 * kills; no client has been handed to it. What the broker knows otherwise - how many connections, which memory is charged - the worker
 * says (ADOPTED), or it lies in the account's page, where no charge is ever in flight between two processes (account.h).
 *
 * The service manager drops a channel by itself when the worker has closed its end.
 */
#ifndef FCC_DAEMON_BROKER_STORE_H
#define FCC_DAEMON_BROKER_STORE_H

#include "daemon/broker/broker.h"

#define STORE_JOBS 1024u
#define STORE_FOR_JOB 4u /* descriptors of a job whose user has no other */
#define STORE_FOR_ALL 3u

enum store_state { STORE_FREE, STORE_STARTING, STORE_LIVE, STORE_RETIRED };

struct store_job {
    _Atomic uint32_t state; /* enum store_state. Stored last (release), read first (acquire) */
    uint32_t version;       /* of control.h, that the worker speaks */
    uint32_t uid;
    int32_t pid;
    uint32_t place;                 /* in the account */
    uint32_t sessions, connections; /* as the worker has said last */
    _Atomic uint32_t answered;      /* job.answered */
    uint32_t proto, proto_oldest;   /* the versions of proto.h that the worker speaks with clients */
    struct incarnation worker;
    uint64_t started_ns;
    char name[FCC_JOB_MAX];
};

#define STORE_MAGIC UINT64_C(0x65726f7473636366)
#define STORE_VERSION 1u /* to be raised when this changes, or what lies in accounts */
struct store_page {
    uint64_t magic;
    uint32_t version, bytes;
    struct incarnation last; /* of the worker started last */
    struct store_job jobs[STORE_JOBS];
};
static_assert(sizeof(struct store_job) == 64 + FCC_JOB_MAX, "version 1");

/* Takes what the service manager has passed. If it keeps nothing, or there is none, the functions below do nothing. 0 or -ENOMEM. */
int store_open(struct broker *b);
void store_close(struct broker *b);
/* All that is wanted of what came has been taken: the rest is closed, and dropped. */
void store_settle(struct broker *b);
bool store_keeps(const struct broker *b);
/* For how many jobs there is room; 0: nothing is kept, and store_why_not() says why, for people, and whether a service manager is there at all. */
unsigned store_room(const struct broker *b);
const char *store_why_not(const struct broker *b, bool *managed);

/* Another broker has left its page. */
bool store_followed(const struct broker *b);
/* The listening sockets that came and are not of the store. Returns their number and the first. */
int store_sockets(struct broker *b, int *sock);
/* What came under that name, which is the caller's; -1: nothing. */
struct store_name {
    char text[24];
};
struct store_name store_name(const char *what, uint32_t number);
int store_take(struct broker *b, const char *name);
/* Lets the service manager keep a copy. 0, or -errno: it could not be asked. */
int store_keep(struct broker *b, const char *name, int fd);
void store_drop(struct broker *b, const char *name);

/* Gives the job an entry, and keeps its channel; false: it has none, and a restart ends the job. */
bool store_job_begin(struct job *j);
/* The job's worker runs: keeps its process, and sets j->process. */
void store_job_spawned(struct job *j);
void store_job_is(const struct job *j, enum store_state state);
void store_job_says(const struct job *j); /* its connections */
void store_job_answered(const struct job *j);
void store_job_end(struct job *j);
/* Entry `slot` of the page. NULL: there is no page. */
struct store_job *store_job(const struct broker *b, unsigned slot);

#endif
