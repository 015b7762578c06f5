/* SPDX-License-Identifier: MIT
 *
 * text_file.h - reads a text file line by line: a configuration, a list of nodes.
 */
#ifndef FCC_DAEMON_COMMON_TEXT_FILE_H
#define FCC_DAEMON_COMMON_TEXT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/error.h"

struct text_file {
    const char *path;
    const char *key;  /* the setting that names the file, with which error texts begin; NULL: none */
    size_t longest;   /* bytes of the longest allowed line, without its newline */
    bool may_be_gone; /* a file that does not exist counts as empty */
    bool regular;     /* only a regular file is allowed; otherwise /dev/null is, too */
    /* Called for each line. `line` has no newline and may be changed; `where` is "PATH:NUMBER". Returns 0, or an error, which
     * ends the reading. */
    int (*take)(void *arg, char *line, const char *where, struct error *e);
    void *arg;
};

/* Returns 0 when the whole file has been read. A file that cannot be opened or read, a line that is too long, or a line with a
 * NUL byte is -EINVAL; the text has the path and the line's number. A byte order mark at the file's beginning is skipped. */
int text_file_read(const struct text_file *file, struct error *e);

#endif
