/* SPDX-License-Identifier: MIT */
#include "daemon/common/text_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

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
        if (number == 1 && length >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) /* UTF-8 byte order mark */
            memmove(line, line + 3, (size_t)(length -= 3) + 1);
        if ((size_t)length > file->longest)
            status = error_set(e, -EINVAL, "%s: allowed are lines of at most %zu characters", where, file->longest);
        else if (strlen(line) != (size_t)length)
            status = error_set(e, -EINVAL, "%s: the line holds a NUL byte: allowed is text", where);
        else
            status = file->take(file->arg, line, where, e);
    }
    if (!status && !feof(f))
        status = file_refuse(file, strerror(errno ? errno : EIO), e);
    free(line);
    return status;
}

/* Allows regular files, and /dev/null as the empty file. Other files may have no end, may block the reader, or may have other
 * contents when they are read again. */
static int kind_check(const struct text_file *file, int fd, struct error *e)
{
    struct stat st;

    if (fstat(fd, &st))
        return file_refuse(file, strerror(errno), e);
    if (S_ISDIR(st.st_mode) && !file->regular)
        return file_refuse(file, strerror(EISDIR), e);
    if (S_ISREG(st.st_mode) || (!file->regular && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3)))
        return 0;
    return file_refuse(file, file->regular ? "allowed is a regular file" : "allowed is a regular file, or /dev/null", e);
}

int text_file_read(const struct text_file *file, struct error *e)
{
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* O_NONBLOCK: opening a FIFO must not block */
    int status;
    FILE *f;

    if (fd < 0)
        return errno == ENOENT && file->may_be_gone ? 0 : file_refuse(file, strerror(errno), e);
    status = kind_check(file, fd, e);
    f = status ? NULL : fdopen(fd, "r");
    if (!status && !f)
        status = file_refuse(file, strerror(errno), e);
    if (!f) {
        (void)close(fd);
        return status;
    }
    status = lines_read(file, f, e);
    (void)fclose(f);
    return status;
}
