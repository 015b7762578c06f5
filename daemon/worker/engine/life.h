/* SPDX-License-Identifier: MIT
 *
 * life.h - hears at once that a client's process has died.
 *
 * A process that is killed closes its connection late in its end: with work on a GPU, and the memory of a GPU context to take
 * down, more than a tenth of a second later. But the kernel marks the robust futexes of each of its threads first of all. So
 * a thread of a client with a rank on a GPU holds one for the connection's life (fcc_session_memory.life), and a thread here
 * waits for the words of all such sessions. On a kernel without futex_waitv (before 5.16) the end of the connection has to
 * do.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_LIFE_H
#define FCC_DAEMON_WORKER_ENGINE_LIFE_H

#include "daemon/worker/engine/endpoint.h"

struct lives;

int lives_start(struct worker *w, struct lives **out, struct error *e);
void lives_stop(struct lives *l);
/* Watch the session's client, or no longer. Its memory is mapped as long as it is watched. */
void lives_add(struct lives *l, struct session *s);
void lives_remove(struct lives *l, struct session *s);
/* Break the sessions whose clients have died. Engine thread; costs nothing while nobody has. */
void lives_sweep(struct lives *l);

#endif
