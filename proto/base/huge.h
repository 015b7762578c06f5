/* SPDX-License-Identifier: MIT
 *
 * huge.h - mapping memory where a huge page can begin, so that those it has are mapped as such. Kernels do so by themselves for
 * some memory, for shared memory seldom.
 */
#ifndef FCC_PROTO_BASE_HUGE_H
#define FCC_PROTO_BASE_HUGE_H

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20) /* of x86, and of arm64 with small pages of 4 KiB; elsewhere this does no harm */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* As mmap(2), to read and write, anywhere and from offset 0 on. `bytes` are whole small pages. */
static inline void *huge_map(size_t bytes, int flags, int fd)
{
    size_t room = bytes + HUGE_BYTES, before;
    unsigned char *place;
    void *data;

    if (bytes < HUGE_BYTES || room < bytes)
        return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    place = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return MAP_FAILED;
    before = -(uintptr_t)place % HUGE_BYTES;
    data = mmap(place + before, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
    if (data == MAP_FAILED) {
        int status = errno;
        (void)munmap(place, room);
        errno = status;
        return MAP_FAILED;
    }
    if (before)
        (void)munmap(place, before);
    (void)munmap(place + before + bytes, room - before - bytes);
    return data;
}

#endif
