/* SPDX-License-Identifier: MIT */
#include "log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

void log_write(enum log_level level, const char *format, ...)
{
    char line[1024];
    size_t n;
    va_list ap;

    if (level > state.level)
        return;
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
    va_start(ap, format);
    int m = vsnprintf(line + n, sizeof(line) - n - 1, format, ap);
    va_end(ap);
    if (m > 0)
        n += (size_t)m < sizeof(line) - n - 1 ? (size_t)m : sizeof(line) - n - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* nowhere to report it */
}
