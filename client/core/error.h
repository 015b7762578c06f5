/* SPDX-License-Identifier: MIT
 *
 * error.h - the thread's last error, and statuses that come from elsewhere.
 *
 * Who finds an error puts its words into the thread's last error with last_error_set() and returns the status; callers pass the status on.
 */
#ifndef FCC_CLIENT_CORE_ERROR_H
#define FCC_CLIENT_CORE_ERROR_H

#include <stdint.h>

/* Sets the calling thread's last error (cut to fit) and returns status. */
int last_error_set(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A status as another process wrote it: what errno can be comes back as it is, anything else is no status, and becomes -EPROTO. */
int status_taken(int32_t status);
/* Of an errno value with which a file descriptor could not be made: -EMFILE (the system's limit, too), -ENOMEM or -EIO. */
int status_of_file(int error);

#endif
