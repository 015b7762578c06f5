/* SPDX-License-Identifier: MIT
 *
 * plain.c - processes that use the machine without fccd, until they are killed: each keeps about one core busy.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/neighbour/neighbour.h"

enum {
    STREAM_BYTES = 64 << 20, /* of each of two pieces of memory: more than caches hold */
    MEMORY_BYTES = 1 << 18,
    CALLS = 4, /* rounds of calls between two wake-ups of the other thread */
};

void plain_computes(void)
{
    for (volatile unsigned n = 0;; n++)
        ;
}

/* From memory to memory. */
void plain_streams(void)
{
    char *one = malloc(STREAM_BYTES), *other = malloc(STREAM_BYTES);

    if (!one || !other)
        _exit(6);
    memset(one, 1, STREAM_BYTES);
    for (;;) {
        memcpy(other, one, STREAM_BYTES);
        ((volatile char *)one)[STREAM_BYTES - 1] = ((volatile char *)other)[0]; /* the copy is used */
        memcpy(one, other, STREAM_BYTES);
    }
}

static void *echo_main(void *arg)
{
    const int *fds = arg;
    uint64_t n;

    while (read(fds[0], &n, sizeof(n)) == sizeof(n) && write(fds[1], &n, sizeof(n)) == sizeof(n))
        ;
    return NULL;
}

/* Passes a descriptor through a socket, as a connection does. */
static void descriptor_pass(const int sockets[2], int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {.bytes = {0}};
    char byte = 0;
    struct iovec io = {.iov_base = &byte, .iov_len = 1};
    struct msghdr m = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    if (sendmsg(sockets[0], &m, 0) != 1)
        _exit(7);
    m.msg_controllen = sizeof(control.bytes);
    if (recvmsg(sockets[1], &m, MSG_CMSG_CLOEXEC) != 1 || !(c = CMSG_FIRSTHDR(&m)))
        _exit(7);
    memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    (void)close(fd);
}

/* Calls of the kernel as connections need them: sockets, descriptors, shared memory; and it wakes another thread, and is woken by it. */
void plain_calls(void)
{
    int there = eventfd(0, 0), back = eventfd(0, 0), fds[2] = {there, back}, sockets[2];
    pthread_t echo;
    uint64_t n = 1;

    if (there < 0 || back < 0 || pthread_create(&echo, NULL, echo_main, fds))
        _exit(7);
    for (;;) {
        for (int i = 0; i < CALLS; i++) {
            int fd = memfd_create("neighbour", MFD_CLOEXEC);
            if (fd < 0 || ftruncate(fd, MEMORY_BYTES) || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets))
                _exit(7);
            char *memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (memory == MAP_FAILED)
                _exit(7);
            memory[0] = memory[MEMORY_BYTES / 2] = 1;
            descriptor_pass(sockets, fd);
            (void)munmap(memory, MEMORY_BYTES);
            (void)close(fd), (void)close(sockets[0]), (void)close(sockets[1]);
        }
        if (write(there, &n, sizeof(n)) != sizeof(n) || read(back, &n, sizeof(n)) != sizeof(n))
            _exit(7);
    }
}
