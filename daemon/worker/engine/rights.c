/* SPDX-License-Identifier: MIT
 *
 * rights.c - how a worker becomes its user's process without ever being that user's to look into.
 *
 * A process may trace another one, read its memory, or take its descriptors (ptrace(2), /proc/PID/fd, pidfd_getfd(2)) if both are the
 * same user's and the other is dumpable. execve() makes a process dumpable whose real and effective users are the same. So a worker that
 * became its user's before execve() could be looked into from there until it called prctl(): long enough for any process of that user
 * to take the control channel, and with it the job's keys and its clients' sockets, or to write into the worker's memory. Nothing that is
 * said afterwards mends that: who has the channel's descriptor can read it at any later time, and who has written into the memory says
 * whatever the worker would say.
 *
 * Therefore there is no such time. The broker's child remains root in execve(); here, as root, it makes itself not dumpable; then it
 * changes its user, at which the kernel makes it not dumpable once more (commit_creds(), to fs.suid_dumpable); and then it says so to
 * the broker, which has told it nothing before. Where an administrator has set fs.suid_dumpable to 1, for debugging, every program
 * that changes its user can be traced: there a moment remains between two system calls, and the broker's log warns of it (broker.c).
 *
 * A broker that is not root's has workers of its own user: whoever could look into them could look into the broker.
 */
#include "daemon/worker/engine/rights.h"

#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAPABILITIES 64 /* more than any kernel has; those that it lacks answer EINVAL */

/* Of a process of root's, too. */
static int capabilities_drop(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    return syscall(SYS_capset, &header, none) ? -errno : 0;
}

static int user_become(uid_t uid)
{
    for (int c = 0; c < CAPABILITIES; c++)
        (void)prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
    return setresuid(uid, uid, uid) ? -errno : capabilities_drop();
}

int rights_take(uid_t uid, struct error *e)
{
    int status;

    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        return error_set(e, -errno, "cannot shut other processes out: %s", strerror(errno));
    status = geteuid() == 0 ? user_become(uid) : 0;
    if (status)
        return error_set(e, status, "cannot become user %u: %s", uid, strerror(-status));
    if (geteuid() != uid || getuid() != uid)
        return error_set(e, -EPERM, "user %u: allowed is %u, the user that fccd runs as", uid, geteuid());
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return error_set(e, -errno, "cannot shut other processes out: %s", strerror(errno));
    return 0;
}
