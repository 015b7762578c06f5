/* SPDX-License-Identifier: MIT
 *
 * log.h - what the daemon says, to standard error: with systemd's level prefixes under systemd, with a time stamp elsewhere.
 */
#ifndef FCCD_LOG_H
#define FCCD_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVELS };

/* `who` opens each line ("broker", "worker 1000/default"); it is copied. Call before other threads exist. */
void log_open(const char *who, enum log_level level);
/* The level of that name, or -1. */
int log_level_by_name(const char *name);
const char *log_level_name(enum log_level level);

/* One line, without newline, written with one write(2). */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
