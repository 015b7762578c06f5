/* SPDX-License-Identifier: MIT
 *
 * error.h - the thread's last error, and statuses that come from elsewhere.
 *
 * The function that finds an error sets the thread's last error with last_error_set() and returns the status; its callers pass
 * the status on.
 */
#ifndef FCC_CLIENT_CORE_ERROR_H
#define FCC_CLIENT_CORE_ERROR_H

#include <stdint.h>

/* Sets the calling thread's last error (cut to fit) and returns status. */
int last_error_set(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Check a status written by another process: 0 and negative errno values are returned as they are, anything else becomes
 * -EPROTO. */
int status_taken(int32_t status);
/* The status for an errno value of a failed creation of a file descriptor: -EMFILE (also for the system's limit), -ENOMEM or
 * -EIO. */
int status_of_file(int error);

#endif
