/* SPDX-License-Identifier: MIT
 *
 * process.h - hears that a client's process has ended, whoever else has its socket.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_PROCESS_H
#define FCC_DAEMON_WORKER_ENGINE_PROCESS_H

#include <sys/types.h>

#include "proto/base/error.h"

/* *out is readable once the process has ended that made the connection at the other end of a Unix socket (pid: as the broker knows it). It is
 * the caller's to close. 0 with *out -1: this kernel has no such thing, or the process is one of another namespace (logged). -ESRCH: it
 * has ended already. -EMFILE, -ENFILE, -ENOMEM. */
int process_watch(int sock, pid_t pid, int *out, struct error *e);

#endif
