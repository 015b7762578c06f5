/* SPDX-License-Identifier: MIT
 *
 * regroup_bed.h - ranks that add up vectors, before and after their communicator is split or has lost ranks; and processes that die of a message.
 */
#ifndef FCC_TEST_REGROUP_BED_H
#define FCC_TEST_REGROUP_BED_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/proto.h"
#include "tests/bed/harness.h"
#include "tests/bed/value.h"

#define N 5000

struct scene {
    _Atomic int ready, go, done;
    _Atomic uint64_t killed_ns;
    double limit_ms;    /* from there to the first right operator */
    _Atomic int victim; /* shared: who dies */
    _Atomic pid_t worker;
};

/* What this process dies of: when the library has sent such a message, or when it is about to. 0: nothing. */
static uint16_t last_sent, never_sent;

ssize_t sendmsg(int sock, const struct msghdr *h, int flags)
{
    const struct fcc_msg *m = h->msg_iovlen && h->msg_iov[0].iov_len >= sizeof(*m) ? h->msg_iov[0].iov_base : NULL;

    if (m && never_sent && m->type == never_sent)
        (void)raise(SIGKILL);
    ssize_t n = syscall(SYS_sendmsg, sock, h, flags);
    if (m && last_sent && m->type == last_sent && n > 0)
        (void)raise(SIGKILL);
    return n;
}

static inline double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* in: every element is `mine`; then all ranks' sum is in out. */
static inline int sum_run(fcc_comm *comm, fcc_buffer *in, fcc_buffer *out)
{
    struct fcc_all_reduce_args args = {.in = fcc_tensor_1d(in, 0, FCC_F32, N), .out = fcc_tensor_1d(out, 0, FCC_F32, N)};

    return fcc_all_reduce(comm, &args);
}

static inline void expect_sum(fcc_buffer *out, float want)
{
    const float *p = fcc_buffer_data(out);

    for (int i = 0; i < N; i++)
        if (p[i] != want)
            check_failed(__FILE__, __LINE__, "element %d is %g: it should be %g", i, (double)p[i], (double)want);
}

static inline void fill(fcc_buffer *b, float value)
{
    float *p = fcc_buffer_data(b);

    for (int i = 0; i < N; i++)
        p[i] = value;
}

static inline void buffers_make(fcc_comm *comm, fcc_buffer **in, fcc_buffer **out)
{
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * sizeof(float), in));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), out));
}

#endif
