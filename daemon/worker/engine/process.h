/* SPDX-License-Identifier: MIT
 *
 * process.h - notices that a client's process has ended, even if another process keeps its socket open.
 */
#ifndef FCC_DAEMON_WORKER_ENGINE_PROCESS_H
#define FCC_DAEMON_WORKER_ENGINE_PROCESS_H

#include <sys/types.h>

#include "proto/base/error.h"

/* *out becomes readable when the process ends that connected the Unix socket `sock`; pid: its pid by the broker. The caller closes *out. 0 with
 * *out -1: the kernel does not support this, or the process is in another namespace (logged). -ESRCH: the process has ended already. -EMFILE,
 * -ENFILE, -ENOMEM. */
int process_watch(int sock, pid_t pid, int *out, struct error *e);

#endif
