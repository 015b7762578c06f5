/* SPDX-License-Identifier: MIT
 *
 * background.h - fccd --background: the started process ends when the daemon listens, or reports why it does not.
 */
#ifndef FCC_DAEMON_BROKER_BACKGROUND_H
#define FCC_DAEMON_BROKER_BACKGROUND_H

#include "daemon/common/config.h"

/* Returns in a child process that has left the terminal's session. The calling process does not return: it waits for
 * background_ready(), prints where the process id and the log are, and exits with 0. If the child ends before that, it exits
 * with the child's status. To be called while the process has one thread. Returns 0 or -errno. */
int background_enter(const struct config *config);

/* Writes PID_FILE, if it is set, and keeps it locked as long as the process lives. Returns 0 or -errno (logged): -EWOULDBLOCK
 * if another fccd has locked it and does not end within 2 s. */
int pid_file_write(const struct config *config);
void pid_file_remove(const struct config *config);

/* To be called when the daemon listens: lets the process of background_enter() exit. Without background_enter() it does
 * nothing. */
void background_ready(void);

#endif
