/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "log_limit.h"

static struct {
    enum log_level level;
    bool journal;
    char who[96];
} state = {.level = LOG_LEVEL_INFO, .who = "fccd"};

static const char *const names[LOG_LEVELS] = {
    [LOG_LEVEL_ERROR] = "error", [LOG_LEVEL_WARNING] = "warning", [LOG_LEVEL_INFO] = "info", [LOG_LEVEL_DEBUG] = "debug"};
static const int priorities[LOG_LEVELS] = {
    [LOG_LEVEL_ERROR] = 3, [LOG_LEVEL_WARNING] = 4, [LOG_LEVEL_INFO] = 6, [LOG_LEVEL_DEBUG] = 7};

void log_open(const char *who, enum log_level level)
{
    (void)snprintf(state.who, sizeof(state.who), "%s", who);
    state.level = level;
    state.journal = getenv("JOURNAL_STREAM") != NULL;
}

int log_level_by_name(const char *name)
{
    for (int i = 0; i < LOG_LEVELS; i++)
        if (!strcmp(name, names[i]))
            return i;
    return -1;
}

const char *log_level_name(enum log_level level)
{
    return names[level];
}

/* The line as it is: nothing holds it back. */
static void line_write(enum log_level level, const char *text)
{
    char line[1024];
    size_t n;

    if (state.journal) {
        n = (size_t)snprintf(line, sizeof(line), "<%d>%s: ", priorities[level], state.who);
    } else {
        struct timespec t;
        struct tm tm;
        (void)clock_gettime(CLOCK_REALTIME, &t);
        (void)localtime_r(&t.tv_sec, &tm);
        n = strftime(line, sizeof(line), "%H:%M:%S", &tm);
        n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ld fccd %s: %s: ", t.tv_nsec / 1000000, state.who, names[level]);
    }
    text_copy(line + n, sizeof(line) - n - 1, text);
    n += strlen(line + n);
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nowhere to report it */
}

static void text_write(enum log_level level, uint64_t subject, const char *format, va_list ap)
{
    bool limited = level != LOG_LEVEL_DEBUG;
    char text[1024];

    if (level > state.level || (limited && !log_limit_take(level, format, subject, clock_ns(), line_write)))
        return;
    if (vsnprintf(text, sizeof(text), format, ap) < 0)
        return;
    (void)text_clean(text);
    if (limited)
        log_limit_note(format, subject, text);
    line_write(level, text);
}

void log_write(enum log_level level, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    text_write(level, 0, format, ap);
    va_end(ap);
}

void log_about(enum log_level level, uint64_t subject, const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    text_write(level, subject, format, ap);
    va_end(ap);
}

void log_catch_up(bool all)
{
    log_limit_catch_up(clock_ns(), all, line_write);
}
