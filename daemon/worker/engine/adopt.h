/* SPDX-License-Identifier: MIT
 *
 * adopt.h - what a worker does when its broker ends: it goes on, and waits for another one (daemon/common/control.h, "another broker").
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_ADOPT_H
#define FCC_DAEMON_WORKER_ENGINE_ADOPT_H

#include <stddef.h>

#include "daemon/common/control.h"

struct worker;

/* ADOPT has come. The descriptor becomes the worker's. */
void broker_adopts(struct worker *w, const struct control_adopt *m, int process);
/* The channel has ended: closes it. */
void channel_over(struct worker *w);
/* The channel is being closed: no broker is awaited any more. */
void broker_forget(struct worker *w);

/* Drains; the kernel ends this process if it has not ended by itself CONTROL_LEAVE_MS after DRAIN_MS, as no broker does. */
void drain_within(struct worker *w, const char *why);

/* A message is being sent: keeps it if the next broker is to be asked the same. */
void question_keep(struct worker *w, const struct fcc_msg *m, size_t length);
/* The CONNECT of this id has its answer. */
void question_answered(struct worker *w, uint64_t id);

#endif
