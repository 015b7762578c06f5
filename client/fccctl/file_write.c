/* SPDX-License-Identifier: MIT */
#include "client/fccctl/file_write.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/clock.h"

int file_write(const char *path, struct json_object *o, int (*write)(struct json_object *o, FILE *out), struct error *e)
{
    struct stat st;
    bool replaced = lstat(path, &st) != 0 || S_ISREG(st.st_mode);
    char name[PATH_MAX + 32];
    FILE *file;

    (void)snprintf(name, sizeof(name), replaced ? "%s.%" PRIx64 : "%s", path, clock_ns());
    file = fopen(name, replaced ? "wxe" : "we");
    int status = file ? write(o, file) : -errno;
    if (file && ferror(file))
        status = -EIO;
    if (file && fclose(file) != 0 && !status)
        status = -errno;
    if (!status && replaced && rename(name, path) != 0)
        status = -errno;
    if (status && replaced && file)
        (void)unlink(name);
    return status ? error_set(e, status, "%s: %s", path, strerror(-status)) : 0;
}
