/* SPDX-License-Identifier: MIT */
#include "proto/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Checks that the descriptor is a sealed memfd of an allowed size. Only memfds have seals, so reading it cannot block. */
static int file_check(int fd, uint64_t least, uint64_t most, const char *what, uint64_t *bytes, struct error *e)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_WRITE;
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    if (seals < 0 || (seals & wanted) != wanted)
        return error_set(e, -EPROTO, "%s: a descriptor that is not sealed against shrinking and writing", what);
    if (fstat(fd, &st) || st.st_size < 0)
        return error_set(e, -EPROTO, "%s: a descriptor of no size", what);
    if ((uint64_t)st.st_size < least || (uint64_t)st.st_size > most)
        return error_set(e, -EPROTO, "%s: %lld bytes: allowed are %llu to %llu", what, (long long)st.st_size,
                         (unsigned long long)least, (unsigned long long)most);
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int file_read(int fd, unsigned char *to, size_t bytes, const char *what, struct error *e)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, to + done, bytes - done, (off_t)done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_set(e, -EPROTO, "%s: reading: %s", what, n ? strerror(errno) : "it has ended");
        done += (size_t)n;
    }
    return 0;
}

int sealed_read(int fd, uint64_t least, uint64_t most, const char *what, void **out, size_t *bytes, struct error *e)
{
    uint64_t size = 0;
    unsigned char *data = NULL;
    int status = file_check(fd, least, most, what, &size, e);

    if (!status && (size > SIZE_MAX || !(data = malloc(size ? (size_t)size : 1))))
        status = error_set(e, -ENOMEM, "%s: no memory for %llu bytes", what, (unsigned long long)size);
    if (!status)
        status = file_read(fd, data, (size_t)size, what, e);
    if (status) {
        free(data);
        return status;
    }
    *out = data;
    *bytes = (size_t)size;
    return 0;
}

int sealed_memory_make(const char *name, size_t bytes, void **memory, int *fd)
{
    int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), status;
    void *there = MAP_FAILED;

    if (file < 0)
        return -errno;
    if (!ftruncate(file, (off_t)bytes) && !fallocate(file, 0, 0, (off_t)bytes) &&
        !fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        there = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (there == MAP_FAILED) {
        status = -errno;
        (void)close(file);
        return status;
    }
    *memory = there;
    *fd = file;
    return 0;
}
