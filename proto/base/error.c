/* SPDX-License-Identifier: MIT */
#include "proto/base/error.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Bytes of the UTF-8 character that begins at p; 0 if none does. Reads nothing behind the text's NUL. */
static size_t character_length(const unsigned char *p)
{
    static const struct {
        unsigned char first, last; /* range of the lead byte */
        unsigned char least, most; /* range of the second byte */
        unsigned char length;      /* bytes of the character */
    } kinds[] = {{0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
                 {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
                 {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4}};

    if (*p < 0x80)
        return 1;
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        if (*p < kinds[k].first || *p > kinds[k].last)
            continue;
        if (p[1] < kinds[k].least || p[1] > kinds[k].most)
            return 0;
        for (size_t i = 2; i < kinds[k].length; i++)
            if (p[i] < 0x80 || p[i] > 0xbf)
                return 0;
        return kinds[k].length;
    }
    return 0;
}

/* Removes an incomplete UTF-8 character from the end of a text that was cut to `length` bytes. */
static void text_cut(char *text, size_t length)
{
    for (size_t back = 1; back <= 3 && back <= length; back++) {
        unsigned char c = (unsigned char)text[length - back];
        if (c >= 0xc0 && character_length((unsigned char *)text + length - back) == 0)
            text[length - back] = '\0';
        if (c < 0x80 || c >= 0xc0)
            return;
    }
}

/* Says whose limit of open files an error is about, if its text does not, as strerror() does not: who reads it knows neither that it was another
 * process that had to open something, nor which limit to raise. */
static void files_said(struct error *e)
{
    size_t n = strlen(e->text);

    if (!strstr(e->text, "RLIMIT_NOFILE"))
        (void)snprintf(e->text + n, sizeof(e->text) - n, " (process %d, RLIMIT_NOFILE)", getpid());
}

int error_set(struct error *e, int status, const char *format, ...)
{
    if (e) {
        va_list ap;
        e->status = status;
        va_start(ap, format);
        int n = vsnprintf(e->text, sizeof(e->text), format, ap);
        va_end(ap);
        if (n >= (int)sizeof(e->text))
            text_cut(e->text, sizeof(e->text) - 1);
        else if (status == -EMFILE)
            files_said(e);
    }
    return status;
}

void text_copy(char *to, size_t room, const char *from)
{
    size_t n = strnlen(from, room - 1);
    memcpy(to, from, n);
    to[n] = '\0';
    if (n == room - 1)
        text_cut(to, n);
}

char *text_clean(char *text)
{
    size_t n;

    for (unsigned char *p = (unsigned char *)text; *p; p += n) {
        n = character_length(p);
        bool control = *p < 0x20 || *p == 0x7f || (*p == 0xc2 && p[1] < 0xa0);
        if (n == 0)
            n = 1;
        else if (!control)
            continue;
        memset(p, '?', n);
    }
    return text;
}

char *text_trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}
