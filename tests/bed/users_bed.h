/* SPDX-License-Identifier: MIT
 *
 * users_bed.h - a broker of root's, and several users of it.
 */
#ifndef FCC_TEST_USERS_BED_H
#define FCC_TEST_USERS_BED_H

#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/program.h"
#include "tests/bed/raw.h"

#define HOSTILE 40001
#define OTHER 40002

static inline void become(uid_t uid)
{
    CHECK(setgroups(0, NULL) == 0 && setgid(uid) == 0 && setuid(uid) == 0);
}

static inline void needs_users(void)
{
    if (geteuid())
        test_skip("skipped: needs root, to be several users");
}

static inline void open_to_all(const struct test_daemon *d)
{
    CHECK(chmod(test_directory(), 0711) == 0 && chmod(d->socket, 0666) == 0);
}

/* A user connects, as a program and as fccctl. Is he served? */
static inline bool is_served(const struct test_daemon *d, uid_t uid)
{
    char text[8192];
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        const char *const arguments[] = {"--socket", d->socket, "status", NULL};
        fcc_context *context;

        become(uid);
        OK(fcc_connect(NULL, &context));
        fcc_disconnect(context);
        struct raw *r = raw_open(d);
        struct fcc_hello h = hello_make();
        h.role = FCC_ROLE_CONTROL;
        h.job[0] = '\0';
        raw_send(r, &h, sizeof(h), NULL, 0);
        CHECK(raw_receive(r)->status == 0);
        raw_close(r);
        if (access(fccctl_binary(), X_OK) == 0 && program_run(text, sizeof(text), fccctl_binary(), arguments) != 0)
            check_failed(__FILE__, __LINE__, "uid %u: fccctl status: %s", uid, text);
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid);
    return status == 0;
}

static inline void served(const struct test_daemon *d, uid_t uid)
{
    CHECK(is_served(d, uid));
}

#endif
