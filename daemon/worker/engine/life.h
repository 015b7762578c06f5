/* SPDX-License-Identifier: MIT
 *
 * life.h - notices at once that a client's process has died.
 *
 * The connection of a killed process is closed late: with a GPU context to take down, more than a tenth of a second after the kill. But the
 * kernel marks the robust futexes of each of its threads first. So a thread of a client with a rank on a GPU holds a robust futex during the
 * connection (fcc_session_memory.life), and a thread here waits for the words of all such sessions. On kernels without futex_waitv (before
 * 5.16) only the end of the connection is noticed.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_LIFE_H
#define FCC_DAEMON_WORKER_ENGINE_LIFE_H

#include "daemon/worker/engine/endpoint.h"

struct lives;

int lives_start(struct worker *w, struct lives **out, struct error *e);
void lives_stop(struct lives *l);
/* Begin, and end, to watch the session's client. The session memory must be mapped meanwhile. */
void lives_add(struct lives *l, struct session *s);
void lives_remove(struct lives *l, struct session *s);
/* Break the sessions whose clients have died. Engine thread; one load if none has. */
void lives_sweep(struct lives *l);

#endif
