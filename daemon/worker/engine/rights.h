/* SPDX-License-Identifier: MIT
 *
 * rights.h - the first step of a new worker process: it takes its user's rights, and protects itself from that user's other processes.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_RIGHTS_H
#define FCC_DAEMON_WORKER_ENGINE_RIGHTS_H

#include <sys/types.h>

#include "proto/base/error.h"

/* Become this user, without capabilities and without a way to gain any. Afterwards only root may trace the process, read its memory or take
 * its descriptors. On failure, -errno with the reason, the process must end. */
int rights_take(uid_t uid, struct error *e);

#endif
