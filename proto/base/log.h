/* SPDX-License-Identifier: MIT
 *
 * log.h - what the daemon says, line by line, to standard error: with systemd's level prefixes where that is the journal, with date
 * and time elsewhere, or as JSON.
 */
#ifndef FCC_PROTO_BASE_LOG_H
#define FCC_PROTO_BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG, LOG_LEVELS };

/* JSON: one object a line, {"time": UTC as RFC 3339 writes it, "level", "process": who, "pid", "message"}. */
enum log_format { LOG_FORMAT_TEXT, LOG_FORMAT_JSON, LOG_FORMATS };

/* `who` opens each line ("broker", "worker 1000/default"); it is copied. Call while the process has one thread. */
void log_open(const char *who, enum log_level level, enum log_format format);
/* The level or format of that name, or -1. */
int log_level_by_name(const char *name);
int log_format_by_name(const char *name);
const char *log_level_name(enum log_level level);

/* Append to that file instead of where standard error leads now: for this process and those that it starts. Returns 0 or -errno,
 * and then nothing has changed. A symbolic link is -ELOOP. */
int log_to_file(const char *path);

/* One line, without newline, written with one write(2). Control characters in it become '?'. The format is a string literal. Lines of
 * the same format are not written without end (log_limit.h), except those of level debug. */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for what one subject among many, as a user, can cause: each has lines of its own. 0 is log_write()'s. */
void log_about(enum log_level level, uint64_t subject, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A user as a subject. */
static inline uint64_t log_user(uint32_t uid)
{
    return (uint64_t)uid + 1;
}
/* Say how many lines were not written; to be called every LOG_WINDOW_S, and, with `all`, before the process ends. */
void log_catch_up(bool all);

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
