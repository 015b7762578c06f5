/* SPDX-License-Identifier: MIT
 *
 * log_limit.h - limits the rate of log lines, so that nobody who can cause lines fills the log. The limit is per kind of line.
 * A kind is a format and a subject, such as a user's number, so that one user's flood does not hide another user's lines.
 * LOG_BURST lines of each kind are written in a window of LOG_WINDOW_S; further lines are counted, and one line at the window's
 * end says the count. A kind that exceeded its limit in one window has a limit of one line in the next. If more than LOG_KINDS
 * kinds have lines at a time, the further kinds share one limit.
 *
 * All functions may be called from any thread.
 */
#ifndef FCC_PROTO_BASE_LOG_LIMIT_H
#define FCC_PROTO_BASE_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/log.h"

#define LOG_BURST 20
#define LOG_WINDOW_S 10
#define LOG_KINDS 128

/* Writes the line that says a count. */
typedef void (*log_say)(enum log_level level, const char *text);

/* May a line of that kind be written now? If not, it is counted. Before that the kind's last window is closed if it has ended,
 * and an old kind may be replaced; their counts are written by say(). */
bool log_limit_take(enum log_level level, const char *format, uint64_t subject, uint64_t now_ns, log_say say);
/* Records the text of a line that was written. The line with the count will quote it. */
void log_limit_note(const char *format, uint64_t subject, const char *text);
/* Writes the counts of windows that have ended by now_ns; with `all` those of all windows. To be called every LOG_WINDOW_S, and
 * at the end. */
void log_limit_catch_up(uint64_t now_ns, bool all, log_say say);

#endif
