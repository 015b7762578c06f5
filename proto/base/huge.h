/* SPDX-License-Identifier: MIT
 *
 * huge.h - maps memory at a multiple of the huge page's size, so that huge pages can be used. Linux aligns some mappings by
 * itself, shared memory seldom.
 */
#ifndef FCC_PROTO_BASE_HUGE_H
#define FCC_PROTO_BASE_HUGE_H

#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20) /* a huge page of x86, and of arm64 with 4 KiB pages; harmless elsewhere */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

/* As mmap(2) with read and write access, at any address and from offset 0. `bytes` is a multiple of the small page's size. */
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
