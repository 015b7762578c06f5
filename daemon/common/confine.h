/* SPDX-License-Identifier: MIT
 *
 * confine.h - the system calls that broker and workers may make, as a seccomp filter. A process that somebody has taken over can then neither
 * execute a program, trace another, mount, load code into the kernel, nor reach parts of the kernel that fccd does not need.
 *
 * The list says what may be called; all else does not exist for the process (-ENOSYS), so that a library takes the older call that it has for old
 * kernels. A worker inherits its broker's filter, and adds its own when it has become its user's process. A filter cannot be taken back.
 */
#ifndef FCC_DAEMON_COMMON_CONFINE_H
#define FCC_DAEMON_COMMON_CONFINE_H

#include "proto/base/error.h"

enum confine_who {
    CONFINE_BROKER, /* what workers may, and start programs and become another user */
    CONFINE_WORKER,
};

/* Confines this thread and those that it starts from now on. `mode` is SECCOMP of the configuration: "on"; "log", by which calls that are not in
 * the list are carried out, and the kernel's audit log tells of them; or "off". The process gains no privileges by executing programs any more
 * (PR_SET_NO_NEW_PRIVS). Returns 0, or -errno with the reason: then nothing was confined. */
int confine(enum confine_who who, const char *mode, struct error *e);

#endif
