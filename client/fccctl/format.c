/* SPDX-License-Identifier: MIT */
#include "client/fccctl/format.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/error.h"

void print_clean(const char *format, ...)
{
    bool is_line = format[strlen(format) - 1] == '\n';
    char text[FORMAT_LINE];
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (is_line)
        text[strlen(text) - 1] = '\0';
    printf("%s%s", text_clean(text), is_line ? "\n" : "");
}

const char *format_duration(double seconds, char out[FORMAT_ROOM])
{
    long whole = seconds < 1e15 ? (long)seconds : 0;

    if (!(seconds >= 0))
        (void)snprintf(out, FORMAT_ROOM, "-");
    else if (seconds < 0.9995)
        (void)snprintf(out, FORMAT_ROOM, seconds < 0.00995 ? "%.1f ms" : "%.0f ms", seconds * 1e3);
    else if (seconds < 60)
        (void)snprintf(out, FORMAT_ROOM, "%.1f s", seconds);
    else if (seconds < 3600)
        (void)snprintf(out, FORMAT_ROOM, "%ld min %ld s", whole / 60, whole % 60);
    else if (seconds < 86400)
        (void)snprintf(out, FORMAT_ROOM, "%ld h %ld min", whole / 3600, whole / 60 % 60);
    else
        (void)snprintf(out, FORMAT_ROOM, "%ld d %ld h", whole / 86400, whole / 3600 % 24);
    return out;
}

static const char *scaled(double value, double step, const char *const units[], int nunits, char out[FORMAT_ROOM])
{
    int i = 0, decimals = 0;

    while (i < nunits - 1 && value >= step * 0.9995) {
        value /= step;
        i++;
    }
    if (i > 0)
        decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    (void)snprintf(out, FORMAT_ROOM, "%.*f %s", decimals, value, units[i]);
    return out;
}

const char *format_bytes(double bytes, char out[FORMAT_ROOM])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, 1024, units, 6, out);
}

const char *format_ns(double ns, char out[FORMAT_ROOM])
{
    static const char *const units[] = {"ns", "us", "ms", "s"};
    return scaled(ns, 1000, units, 4, out);
}
