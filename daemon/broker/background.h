/* SPDX-License-Identifier: MIT
 *
 * background.h - fccd --background: the process that was started returns when the daemon listens, or says why it does not.
 */
#ifndef FCC_DAEMON_BROKER_BACKGROUND_H
#define FCC_DAEMON_BROKER_BACKGROUND_H

#include "daemon/common/config.h"

/* Returns in a child process that has left the terminal's session; the one that was started waits here for background_ready(),
 * prints where the process id and the log are, and exits with 0. If the child ends before that, it exits with the child's status. Call
 * while the process has one thread. Returns 0 or -errno. */
int background_enter(const struct config *config);

/* PID_FILE, if there is one: written, and locked for as long as the process lives. Returns 0 or -errno (logged): -EWOULDBLOCK if another
 * fccd holds it, and does not end within 2 s. */
int pid_file_write(const struct config *config);
void pid_file_remove(const struct config *config);

/* The daemon listens: who started it is told. Does nothing without background_enter(). */
void background_ready(void);

#endif
