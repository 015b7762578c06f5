/* SPDX-License-Identifier: MIT
 *
 * file_write.h - files that fccctl writes.
 */
#ifndef FCC_CLIENT_FCCCTL_FILE_WRITE_H
#define FCC_CLIENT_FCCCTL_FILE_WRITE_H

#include <stdio.h>

#include "proto/base/error.h"

struct json_object;

/* Writes a new file beside `path`, which nobody else can have made, with write(o), and renames it, so that nobody sees half of it. What is not a
 * regular file, such as /dev/stdout, is written itself. Returns 0, or an error that names the path. */
int file_write(const char *path, struct json_object *o, int (*write)(struct json_object *o, FILE *out), struct error *e);

#endif
