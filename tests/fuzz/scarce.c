/* SPDX-License-Identifier: MIT
 *
 * scarce.c - linked with --wrap=sendmsg.
 */
#include "tests/fuzz/scarce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "tests/fuzz/fuzz.h"

static rlim_t places;                /* 0: as many as the process has */
static unsigned in_flight;           /* messages that are still refused */
static struct rlimit enough;         /* the process's */
static _Thread_local bool is_worker; /* not the broker's thread, whose messages nobody keeps */

void scarce_places(unsigned more)
{
    places = 0;
    for (int fd = 0; more || fcntl(fd, F_GETFD) >= 0; fd++) {
        more -= more && fcntl(fd, F_GETFD) < 0;
        places = (rlim_t)fd + 1;
    }
}

void scarce_in_flight(unsigned messages)
{
    in_flight = messages;
}

void scarce_lift(void)
{
    places = 0;
    in_flight = 0;
}

void scarce_begin(void)
{
    is_worker = true;
    if (!places)
        return;
    FUZZ_CHECK(getrlimit(RLIMIT_NOFILE, &enough) == 0);
    struct rlimit few = {.rlim_cur = places < enough.rlim_max ? places : enough.rlim_max, .rlim_max = enough.rlim_max};
    FUZZ_CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
}

void scarce_end(void)
{
    is_worker = false;
    if (places)
        FUZZ_CHECK(setrlimit(RLIMIT_NOFILE, &enough) == 0);
}

ssize_t __real_sendmsg(int sock, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *m, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *m, int flags)
{
    if (!is_worker || !in_flight || !m->msg_controllen)
        return __real_sendmsg(sock, m, flags);
    in_flight--;
    errno = ETOOMANYREFS;
    return -1;
}
