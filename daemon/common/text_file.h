/* SPDX-License-Identifier: MIT
 *
 * text_file.h - read a file of lines: a configuration, a list of nodes.
 */
#ifndef FCC_DAEMON_COMMON_TEXT_FILE_H
#define FCC_DAEMON_COMMON_TEXT_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/error.h"

struct text_file {
    const char *path;
    const char *key;  /* The setting that names the file: it opens error texts. NULL: the file is named directly. */
    size_t longest;   /* Bytes of the longest line that is allowed, without its newline. */
    bool may_be_gone; /* A file that does not exist is an empty one. */
    bool regular;     /* /dev/null is an error, too, as other devices, FIFOs and directories always are. */
    /* Called for each line. `line` ends where its newline was, and may be changed; `where` is "PATH:NUMBER". Returns 0 or an
     * error, which ends the reading. */
    int (*take)(void *arg, char *line, const char *where, struct error *e);
    void *arg;
};

/* Returns 0 when the whole file has been read. A file that cannot be opened or read, a line that is too long and one that
 * holds a NUL byte are -EINVAL with the path and, where there is one, the line's number. A byte order mark before the first line is left out. */
int text_file_read(const struct text_file *file, struct error *e);

#endif
