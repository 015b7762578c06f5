/* SPDX-License-Identifier: MIT */
#include "proto/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/error.h"
#include "proto/base/fd.h"
#include "proto/base/log_limit.h"

#define MESSAGE_MAX 1024 /* bytes of a message with its NUL; a longer one is cut */

static struct {
    enum log_level level;
    enum log_format format;
    bool journal;
    char who[96];
} state = {.level = LOG_LEVEL_INFO, .who = "fccd"};

static const char *const names[LOG_LEVELS] = {
    [LOG_LEVEL_ERROR] = "error", [LOG_LEVEL_WARNING] = "warning", [LOG_LEVEL_INFO] = "info", [LOG_LEVEL_DEBUG] = "debug"};
static const char *const format_names[LOG_FORMATS] = {[LOG_FORMAT_TEXT] = "text", [LOG_FORMAT_JSON] = "json"};
static const int priorities[LOG_LEVELS] = {
    [LOG_LEVEL_ERROR] = 3, [LOG_LEVEL_WARNING] = 4, [LOG_LEVEL_INFO] = 6, [LOG_LEVEL_DEBUG] = 7};

/* JOURNAL_STREAM is "DEVICE:INODE" of the stream to the journal (systemd.exec(5)). A process inherits the variable even if its
 * standard error was redirected, so the two are compared. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 && !fstat(STDERR_FILENO, &st) && st.st_dev == device &&
           st.st_ino == inode;
}

void log_open(const char *who, enum log_level level, enum log_format format)
{
    (void)snprintf(state.who, sizeof(state.who), "%s", who);
    state.level = level;
    state.format = format;
    state.journal = stderr_is_journal();
}

static int name_find(const char *const list[], int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, list[i]))
            return i;
    return -1;
}

int log_level_by_name(const char *name)
{
    return name_find(names, LOG_LEVELS, name);
}

int log_format_by_name(const char *name)
{
    return name_find(format_names, LOG_FORMATS, name);
}

int log_to_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0640);
    int status = fd >= 0 && dup2(fd, STDERR_FILENO) >= 0 ? 0 : -errno;

    fd_close(&fd);
    state.journal = stderr_is_journal();
    return status;
}

static void json_line_write(enum log_level level, const struct timespec *t, const char *message)
{
    struct json_object *o = json_object_new_object();
    char time[64];
    struct tm tm;

    (void)gmtime_r(&t->tv_sec, &tm);
    size_t n = strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(time + n, sizeof(time) - n, ".%06ldZ", t->tv_nsec / 1000);
    json_object_object_add(o, "time", json_object_new_string(time));
    json_object_object_add(o, "level", json_object_new_string(names[level]));
    json_object_object_add(o, "process", json_object_new_string(state.who));
    json_object_object_add(o, "pid", json_object_new_int(getpid()));
    json_object_object_add(o, "message", json_object_new_string(message));
    const char *text = json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
    struct iovec line[] = {{.iov_base = (char *)text, .iov_len = text ? strlen(text) : 0}, {.iov_base = "\n", .iov_len = 1}};
    if (!text || writev(STDERR_FILENO, line, 2) < 0)
        text = NULL; /* nowhere to report it */
    (void)json_object_put(o);
}

static void text_line_write(enum log_level level, const struct timespec *t, const char *message)
{
    char line[MESSAGE_MAX + 192], time[64];
    struct tm tm;
    int n;

    if (state.journal) {
        n = snprintf(line, sizeof(line), "<%d>%s: %s\n", priorities[level], state.who, message);
    } else {
        (void)localtime_r(&t->tv_sec, &tm);
        (void)strftime(time, sizeof(time), "%Y-%m-%d %H:%M:%S", &tm);
        n = snprintf(line, sizeof(line), "%s.%03ld fccd %s: %s: %s\n", time, t->tv_nsec / 1000000, state.who, names[level],
                     message);
    }
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0)
        return; /* nowhere to report it */
}

/* Writes a line without a rate limit. */
static void line_write(enum log_level level, const char *message)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (state.format == LOG_FORMAT_JSON)
        json_line_write(level, &t, message);
    else
        text_line_write(level, &t, message);
}

static void text_write(enum log_level level, uint64_t subject, const char *format, va_list ap)
{
    bool limited = level != LOG_LEVEL_DEBUG;
    char text[MESSAGE_MAX];

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
