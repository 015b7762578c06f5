/* SPDX-License-Identifier: MIT
 *
 * log_limit.h - how often a line of one kind may be written, so that nobody who can cause lines fills the log. A kind is a format and a
 * subject: a user's number, say, so that one user's flood does not hide another's lines. Of each kind LOG_BURST lines are written in
 * LOG_WINDOW_S; what comes beyond is counted, and when the time is over one line says the count. A kind that had too many lines in one
 * window has one line in the next. Lines of more than LOG_KINDS kinds at a time share one place more.
 *
 * Any thread may call any of it.
 */
#ifndef FCC_PROTO_BASE_LOG_LIMIT_H
#define FCC_PROTO_BASE_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/log.h"

#define LOG_BURST 20
#define LOG_WINDOW_S 10
#define LOG_KINDS 128

/* What says a count: log.c's line, in the daemon. */
typedef void (*log_say)(enum log_level level, const char *text);

/* May a line of that kind be written at that time? If not, it is counted. Counts whose time is over and that had to make room are
 * said first. */
bool log_limit_take(enum log_level level, const char *format, uint64_t subject, uint64_t now_ns, log_say say);
/* That is what the line says: the count will quote it. */
void log_limit_note(const char *format, uint64_t subject, const char *text);
/* Say the counts whose time is over at now_ns; all: and the others, too. To be called every LOG_WINDOW_S, and at the end. */
void log_limit_catch_up(uint64_t now_ns, bool all, log_say say);

#endif
