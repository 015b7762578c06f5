/* SPDX-License-Identifier: MIT */
#include "proto/base/json_fd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/fd.h"

int json_to_fd(struct json_object *object, struct error *e)
{
    size_t length = 0, done = 0;
    const char *text = object ? json_object_to_json_string_length(object, JSON_C_TO_STRING_PLAIN, &length) : NULL;
    int fd = text ? memfd_create("fccd-answer", MFD_CLOEXEC | MFD_ALLOW_SEALING) : -1;
    int status = text ? 0 : -ENOMEM;

    if (text && fd < 0)
        status = -errno;
    while (!status && done < length) {
        ssize_t n = write(fd, text + done, length - done);
        if (n < 0 && errno != EINTR)
            status = -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    if (!status && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL))
        status = -errno;
    (void)json_object_put(object);
    if (!status)
        return fd;
    fd_close(&fd);
    return error_set(e, status, "cannot make the answer: %s", strerror(-status));
}
