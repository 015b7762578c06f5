/* SPDX-License-Identifier: MIT */
#include "text_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int file_refuse(const struct text_file *file, const char *why, struct error *e)
{
    if (file->key)
        return error_set(e, -EINVAL, "%s: \"%.200s\": %s", file->key, file->path, why);
    return error_set(e, -EINVAL, "%.200s: %s", file->path, why);
}

static int lines_read(const struct text_file *file, FILE *f, struct error *e)
{
    char *line = NULL, where[256];
    size_t room = 0;
    ssize_t length;
    int status = 0;

    for (int number = 1; !status && (errno = 0, length = getline(&line, &room, f)) >= 0; number++) {
        (void)snprintf(where, sizeof(where), "%.200s:%d", file->path, number);
        if (length && line[length - 1] == '\n')
            line[--length] = '\0';
        if (number == 1 && length >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) /* some editors' mark that a file is UTF-8 */
            memmove(line, line + 3, (size_t)(length -= 3) + 1);
        if ((size_t)length > file->longest)
            status = error_set(e, -EINVAL, "%s: allowed are lines of at most %zu characters", where, file->longest);
        else if (strlen(line) != (size_t)length)
            status = error_set(e, -EINVAL, "%s: the line holds a NUL byte: allowed is text", where);
        else
            status = file->take(file->arg, line, where, e);
    }
    if (!status && !feof(f)) /* a directory can be opened, and only a read fails */
        status = file_refuse(file, strerror(errno ? errno : EIO), e);
    free(line);
    return status;
}

int text_file_read(const struct text_file *file, struct error *e)
{
    FILE *f = fopen(file->path, "re");
    struct stat st;
    int status;

    if (!f)
        return errno == ENOENT && file->may_be_gone ? 0 : file_refuse(file, strerror(errno), e);
    if (file->regular && (fstat(fileno(f), &st) || !S_ISREG(st.st_mode)))
        status = file_refuse(file, "allowed is a regular file", e);
    else
        status = lines_read(file, f, e);
    (void)fclose(f);
    return status;
}
