/* SPDX-License-Identifier: MIT */
#include "error.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct error *e, int status, const char *format, ...)
{
    if (e) {
        va_list ap;
        e->status = status;
        va_start(ap, format);
        (void)vsnprintf(e->text, sizeof(e->text), format, ap);
        va_end(ap);
    }
    return status;
}

void text_copy(char *to, size_t room, const char *from)
{
    size_t n = strnlen(from, room - 1);
    memcpy(to, from, n);
    to[n] = '\0';
}

char *text_clean(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
        else if (*p == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) /* C1 controls in UTF-8 */
            *p = p[1] = '?';
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
