/* SPDX-License-Identifier: MIT
 *
 * share.h - the broker says whose turn it is on GPUs that several workers use (daemon/common/share.h; law.h has the rule).
 *
 * A timer runs while two workers or more use one GPU, and at no other time. It is started by a bell: the broker sets one in the pages that it shares with
 * each worker that does not use GPUs, and who finds it set when it launches sends SESSIONS (control.h). So there is one message each time that a worker
 * begins to use GPUs again, at most one in SHARE_ACTIVE_NS, and none for an operator. A worker that is alone has no bell, no limit, and is not looked at.
 *
 * The bell is set when a worker was idle for SHARE_ACTIVE_NS. One that begins at that moment may not see it in time: it sees it at its next launch.
 */
#ifndef FCC_DAEMON_BROKER_SHARE_SHARE_H
#define FCC_DAEMON_BROKER_SHARE_SHARE_H

#include <stdint.h>

struct broker;
struct job;

/* The job has a ledger, of this descriptor. Without memory for it (logged) the job has no share: it launches as it likes, and nobody waits for it. */
void job_share_open(struct job *j, int ledger);
/* Its worker has no limits any more. To be called before the job's ledger goes. */
void job_share_close(struct job *j);
/* The worker has sent SESSIONS, perhaps because it has found its bell. */
void job_share_heard(struct job *j);
/* The configuration was read again: everybody begins anew. */
void shares_again(struct broker *b);
/* Number of GPUs that several jobs use now. */
uint64_t shares_count(const struct broker *b);
void shares_close(struct broker *b);

#endif
