/* SPDX-License-Identifier: MIT
 *
 * fuzz_fds.c - messages with file descriptors, as anybody may send them: any number, of any kind, in one or several control messages, with
 * lengths that lie, to a process that has few places left or none.
 *
 * Whatever comes: no descriptor is lost (all that msg_recv() has not given to its caller are closed), those that it gives are those that
 * were sent, in their order and close-on-exec, and the next message comes whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/msg.h"
#include "tests/fuzz/fuzz.h"

enum { FDS_MAX = 64, PLACES = 160 };

static int places_used(void)
{
    int n = 0;

    for (int fd = 0; fd < PLACES; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int some_fd(uint32_t kind)
{
    int pair[2];

    switch (kind) {
    case 0:
        return memfd_create("fuzz", MFD_CLOEXEC);
    case 1:
        return eventfd(0, EFD_CLOEXEC);
    case 2:
        return open("/", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
    case 3:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    case 4:
        return pipe2(pair, O_CLOEXEC) ? -1 : (close(pair[1]), pair[0]);
    case 5:
        return open("/", O_PATH | O_CLOEXEC);
    default:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
}

/* Send these bytes and so many descriptors, in one control message or in two. */
static bool send_raw(int sock, const void *bytes, size_t length, const int *fds, size_t nfds)
{
    _Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(int) * FDS_MAX)] = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = length};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds) {
        h.msg_control = room;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * nfds);
    }
    return sendmsg(sock, &h, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)length;
}

static bool is_same_file(int a, int b)
{
    struct stat sa, sb;

    return !fstat(a, &sa) && !fstat(b, &sb) && sa.st_dev == sb.st_dev && sa.st_ino == sb.st_ino;
}

/* A message that its sender made well: it must come as it was sent if there are places for its descriptors, otherwise without any; with too many
 * of them, as far as that can be seen, it is none. */
static void expect_message(ssize_t n, size_t length, const int *got, int ngot, const int *sent, size_t nsent, size_t places)
{
    if (nsent > places && places <= FCC_MAX_FDS) {
        FUZZ_CHECK(n == (ssize_t)length && ngot == MSG_FDS_LOST);
        return;
    }
    if (nsent > FCC_MAX_FDS) {
        FUZZ_CHECK(n == -EPROTO);
        return;
    }
    FUZZ_CHECK(n == (ssize_t)length && ngot == (int)nsent);
    for (int i = 0; i < ngot; i++)
        FUZZ_CHECK(is_same_file(got[i], sent[i]));
}

static void message_try(struct input *in, const int pair[2], unsigned char *bytes, unsigned char *buf)
{
    static const uint32_t lengths[] = {16, 24, 0, 1, 15, 17, 208, 552, 4096, FCC_MSG_MAX - 1, FCC_MSG_MAX, FCC_MSG_MAX + 1};
    struct fcc_msg m = {.type = (uint16_t)input_below(in, 40), .id = input_u8(in)};
    uint32_t pick = input_below(in, sizeof(lengths) / sizeof(lengths[0]) + 4), length = lengths[pick < 12 ? pick : 0];
    struct rlimit limit = {.rlim_cur = PLACES, .rlim_max = PLACES};
    int sent[FDS_MAX], got[FCC_MAX_FDS], ngot = -1, before;
    size_t nsent = input_rarely(in, 4) ? input_below(in, FDS_MAX) : input_below(in, FCC_MAX_FDS + 3), places = PLACES;

    m.length = input_rarely(in, 4) ? (uint32_t)input_number(in) : length;
    m.zero = input_rarely(in, 8);
    memcpy(bytes, &m, sizeof(m));
    for (size_t i = 0; i < nsent; i++) {
        sent[i] = some_fd(input_below(in, 7));
        FUZZ_CHECK(sent[i] >= 0);
    }
    if (!send_raw(pair[0], bytes, length, sent, nsent))
        goto out; /* longer than the socket takes, or nothing at all */
    before = places_used();
    if (input_rarely(in, 3)) { /* only so many places are left */
        places = input_below(in, FCC_MAX_FDS + 3);
        int free_place = 0;
        for (size_t left = places; left || fcntl(free_place, F_GETFD) >= 0; free_place++)
            left -= left && fcntl(free_place, F_GETFD) < 0;
        limit.rlim_cur = (rlim_t)free_place;
        FUZZ_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    ssize_t n = msg_recv(pair[1], buf, FCC_MSG_MAX, MSG_DONTWAIT, got, &ngot);
    limit.rlim_cur = PLACES;
    FUZZ_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    FUZZ_CHECK(((ngot >= 0 && ngot <= FCC_MAX_FDS) || ngot == MSG_FDS_LOST) && (n > 0 || ngot == 0));
    FUZZ_CHECK(places_used() == before + (ngot > 0 ? ngot : 0));
    for (int i = 0; i < ngot; i++)
        FUZZ_CHECK(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
    if (length >= sizeof(m) && length <= FCC_MSG_MAX && m.length == length && !m.zero)
        expect_message(n, length, got, ngot, sent, nsent, places);
    else
        FUZZ_CHECK(n == -EPROTO || (n == 0 && length == 0));
    fds_close(got, ngot);
out:
    fds_close(sent, (int)nsent);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct rlimit limit = {.rlim_cur = PLACES, .rlim_max = PLACES};

    (void)argc, (void)argv;
    FUZZ_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static _Alignas(16) unsigned char bytes[FCC_MSG_MAX + 1], buf[FCC_MSG_MAX];
    struct input in = {.at = data, .left = size};
    int pair[2], room = 1 << 20, got[FCC_MAX_FDS], ngot;
    struct fcc_msg last = {.type = FCC_MSG_UNIQUE_ID, .id = 77};

    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    int before = places_used();
    do
        message_try(&in, pair, bytes, buf);
    while (in.left);
    FUZZ_CHECK(msg_send(pair[0], &last, sizeof(last), NULL, 0) == 0);
    FUZZ_CHECK(msg_recv(pair[1], buf, sizeof(buf), MSG_DONTWAIT, got, &ngot) == sizeof(last) && ngot == 0);
    FUZZ_CHECK(((struct fcc_msg *)(void *)buf)->id == 77);
    (void)close(pair[0]);
    FUZZ_CHECK(msg_recv(pair[1], buf, sizeof(buf), MSG_DONTWAIT, got, &ngot) == 0 && ngot == 0);
    FUZZ_CHECK(places_used() == before - 1);
    (void)close(pair[1]);
    return 0;
}
