/* SPDX-License-Identifier: MIT
 *
 * rights.h - what a new worker process does before anything else: it takes its user's rights, and shuts itself off from that user's
 * other processes.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_RIGHTS_H
#define FCC_DAEMON_WORKER_ENGINE_RIGHTS_H

#include <sys/types.h>

#include "proto/base/error.h"

/* From then on: that user, no capabilities and no way to gain any, and nobody but root may trace the process, read its memory or take its
 * descriptors. 0, or -errno with the reason: it must not go on. */
int rights_take(uid_t uid, struct error *e);

#endif
