/* SPDX-License-Identifier: MIT
 *
 * error.c - the reason of the last error, one for each thread.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/core/context.h"
#include "proto/base/error.h"
#include "proto/fccclient.h"

static _Thread_local char last_error[FCC_TEXT_MAX];

int last_error_set(int status, const char *format, ...)
{
    char text[sizeof(last_error)]; /* a copy first: the arguments may include the old text */
    va_list ap;

    va_start(ap, format);
    (void)vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    (void)snprintf(last_error, sizeof(last_error), "%s", text);
    return status;
}

int status_taken(int32_t status)
{
    return status <= 0 && status >= -STATUS_LAST ? status : -EPROTO;
}

int status_of_file(int error)
{
    return error == ENFILE || error == EMFILE ? -EMFILE : error == ENOMEM || error == ENOBUFS ? -ENOMEM : -EIO;
}

const char *fcc_last_error(void)
{
    return last_error;
}
