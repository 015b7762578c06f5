/* SPDX-License-Identifier: MIT
 *
 * log.h - the daemon's log: lines on standard error, as text or as JSON. Text has systemd's level prefixes if standard error is
 * the journal, else date and time.
 */
#ifndef FCC_PROTO_BASE_LOG_H
#define FCC_PROTO_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVELS };

/* JSON: one object a line, {"time": UTC in RFC 3339 form, "level", "process": who, "pid", "message"}. */
enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON, LOG_FORMATS };

/* `who` names the process in each line ("broker", "worker 1000/default"); it is copied. To be called while the process has one
 * thread. */
void log_open(const char *who, enum log_level level, enum log_format format);
/* Returns the level or format of that name, or -1. */
int log_level_by_name(const char *name);
int log_format_by_name(const char *name);

/* Redirects standard error to the end of that file, for this process and its future children. Returns 0, or -errno with nothing
 * changed. A symbolic link is -ELOOP. */
int log_to_file(const char *path);

/* Writes one line with one write(2). The format is a string literal without newline. Control characters become '?'. The rate of
 * lines of one format is limited (log_limit.h), except at level debug. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As log_write(), with a rate limit for each subject, for lines that a subject such as a user can cause. Subject 0 is
 * log_write()'s. */
void log_about(enum log_level level, uint64_t subject, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The subject of a user's lines. */
static inline uint64_t log_user(uint32_t uid)
{
    return (uint64_t)uid + 1;
}
/* Writes how many lines were suppressed. To be called every LOG_WINDOW_S, and with `all` before the process ends. */
void log_catch_up(bool all);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
