/* SPDX-License-Identifier: MIT */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

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
