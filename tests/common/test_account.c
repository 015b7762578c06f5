/* SPDX-License-Identifier: MIT
 *
 * test_account.c - a user's account between processes that charge at the same time, and what control groups of both versions
 * say, from files as the kernel writes them.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/common/account.h"
#include "proto/base/cgroup.h"

/* ---- the account ---- */

#define KIND ACCOUNT_MEMORY

/* An entry is its owner's until it is cleared, or the owner's process has ended. */
static void owners(void **state)
{
    struct account a;
    int fd, status;

    (void)state;
    assert_int_equal(account_make(&a, 4, &fd), 0);
    assert_false(account_is_owned(&a, 0));
    account_own(&a, 0, getpid());
    assert_true(account_is_owned(&a, 0));
    account_clear(&a, 0);
    assert_false(account_is_owned(&a, 0));
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        for (;;)
            (void)pause();
    account_own(&a, 1, pid);
    assert_true(account_is_owned(&a, 1) && !account_is_owned(&a, 2));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_false(account_is_owned(&a, 1));
    account_close(&a);
    (void)close(fd);
}

/* With a limit of the user alone. */
static bool charge(struct account *a, uint32_t place, uint64_t more, uint64_t limit, uint64_t *used)
{
    const struct account_limits limits = {.of = {[ACCOUNT_USER] = {[KIND] = limit}, [ACCOUNT_JOB] = {[KIND] = UINT64_MAX}}};
    struct account_refusal why = {ACCOUNT_USER, 0};
    bool charged = account_charge(a, place, KIND, more, &limits, &why);

    if (!charged) {
        assert_int_equal(why.whose, ACCOUNT_USER);
        *used = why.used;
    }
    return charged;
}

static void charges(void **state)
{
    struct account a, b;
    uint64_t used = 0;
    int fd;

    (void)state;
    assert_int_equal(account_make(&a, 3, &fd), 0);
    assert_true(a.nplaces >= 3);
    assert_int_equal(account_open(&b, fd), 0);
    assert_true(ftruncate(fd, 0) != 0); /* nobody takes the page from under the other */
    assert_true(charge(&a, 0, 60, 100, &used));
    assert_true(charge(&b, 1, 40, 100, &used)); /* exactly */
    assert_false(charge(&b, 2, 1, 100, &used));
    assert_int_equal(used, 100);
    assert_int_equal(account_used_by(&a, 1, KIND), 40);
    account_release(&b, 1, KIND, 15);
    assert_false(charge(&a, 2, 16, 100, &used));
    assert_int_equal(used, 85);
    assert_true(charge(&a, 2, 15, 100, &used));
    account_clear(&a, 0); /* that worker has died */
    assert_int_equal(account_used(&b, KIND), 40);
    assert_false(charge(&a, 0, UINT64_MAX, 100, &used));
    assert_false(charge(&a, 0, UINT64_MAX - 10, UINT64_MAX, &used));
    assert_int_equal(account_used(&a, KIND), 40);
    account_close(&a);
    account_close(&b);
    assert_int_equal(account_open(&b, STDERR_FILENO), -EPROTO);
    (void)close(fd);
}

/* What a worker writes there that lies is of no consequence but for its own user, whose sum is bounded. */
static void nonsense(void **state)
{
    struct account a;
    uint64_t used = 0;
    int fd;

    (void)state;
    assert_int_equal(account_make(&a, 2, &fd), 0);
    account_release(&a, 0, KIND, 5000);
    assert_int_equal(account_used(&a, KIND), INT64_MAX);
    assert_false(charge(&a, 1, 1, 1 << 20, &used));
    account_release(&a, 1, KIND, 1);
    assert_int_equal(account_used(&a, KIND), INT64_MAX);
    account_clear(&a, 0);
    account_clear(&a, 1);
    assert_true(charge(&a, 1, 1, 1 << 20, &used));
    account_close(&a);
    (void)close(fd);
}

/* Processes that charge and release at the same time never have more than is allowed, and in the end nothing is left. Those that are
 * killed in the middle of it leave nothing when their places are cleared. */
static void races(void **state)
{
    enum { WORKERS = 4, ROUNDS = 20000, LIMIT = 100 };
    struct account a;
    pid_t pids[WORKERS];
    int fd, status;

    (void)state;
    assert_int_equal(account_make(&a, WORKERS + 1, &fd), 0);
    for (uint32_t w = 0; w < WORKERS; w++) {
        pids[w] = fork();
        assert_true(pids[w] >= 0);
        if (pids[w])
            continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves none behind */
        uint64_t used, have = 0, got = 0;
        for (uint64_t i = 0; i < ROUNDS || w == 0 || !got; i++) { /* the first one ends only by being killed */
            uint64_t bytes = 1 + (i * 7 + w) % 60;
            if (charge(&a, w, bytes, LIMIT, &used)) {
                have += bytes;
                got++;
                if (account_used_by(&a, w, KIND) != have)
                    _exit(1);
            }
            if (have > LIMIT)
                _exit(2);
            if (i % 3 == 0) {
                account_release(&a, w, KIND, have);
                have = 0;
            }
        }
        account_release(&a, w, KIND, have);
        _exit(0);
    }
    for (uint32_t w = 1; w < WORKERS; w++) {
        assert_int_equal(waitpid(pids[w], &status, 0), pids[w]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(kill(pids[0], SIGKILL), 0);
    assert_int_equal(waitpid(pids[0], &status, 0), pids[0]);
    account_clear(&a, 0);
    assert_int_equal(account_used(&a, KIND), 0);
    account_close(&a);
    (void)close(fd);
}

/* Who asks for far too much, again and again, is refused, and no other worker takes that for used, not for a moment. */
static void far_too_much(void **state)
{
    enum { ROUNDS = 200000, LIMIT = 100 };
    struct account a;
    uint64_t used = 0;
    int fd, status;

    (void)state;
    assert_int_equal(account_make(&a, 2, &fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0;; i++)
            if (charge(&a, 1, i % 2 ? UINT64_C(1) << 45 : LIMIT + 1, LIMIT, &used))
                _exit(1);
    }
    for (int i = 0; i < ROUNDS; i++) {
        assert_true(charge(&a, 0, LIMIT, LIMIT, &used));
        account_release(&a, 0, KIND, LIMIT);
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    account_close(&a);
    (void)close(fd);
}

/* A job's limit is its own: it is named when it is in the way, and another job of the user has room. Kinds have nothing to do with each other. */
static void jobs(void **state)
{
    struct account_limits limits;
    struct account_refusal why;
    struct account a;
    int fd;

    (void)state;
    assert_int_equal(account_make(&a, 2, &fd), 0);
    for (int kind = 0; kind < ACCOUNT_COUNT; kind++) {
        limits.of[ACCOUNT_USER][kind] = 100 + (uint64_t)kind;
        limits.of[ACCOUNT_JOB][kind] = 60;
    }
    for (int i = 0; i < ACCOUNT_COUNT; i++) {
        enum account_kind kind = (enum account_kind)i;
        assert_true(account_charge(&a, 0, kind, 60, &limits, &why));
        assert_false(account_charge(&a, 0, kind, 1, &limits, &why));
        assert_true(why.whose == ACCOUNT_JOB && why.used == 60);
        assert_false(account_charge(&a, 1, kind, 61, &limits, &why));
        assert_true(why.whose == ACCOUNT_JOB && why.used == 0);
        assert_true(account_charge(&a, 1, kind, 40, &limits, &why));
        assert_true(account_charge(&a, 1, kind, (uint64_t)kind, &limits, &why));
        assert_false(account_charge(&a, 1, kind, 1, &limits, &why));
        assert_true(why.whose == ACCOUNT_USER && why.used == 100 + (uint64_t)kind);
        assert_int_equal(account_used(&a, kind), 100 + kind);
    }
    account_clear(&a, 1);
    for (int kind = 0; kind < ACCOUNT_COUNT; kind++)
        assert_int_equal(account_used(&a, (enum account_kind)kind), 60);
    account_close(&a);
    (void)close(fd);
}

/* ---- control groups ---- */

static char root[] = "/tmp/fccd-test-cgroup.XXXXXX";

static void file_write(const char *path, const char *text)
{
    char whole[512];

    (void)snprintf(whole, sizeof(whole), "%s%s", root, path);
    for (char *p = whole + strlen(root) + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = '\0';
        (void)mkdir(whole, 0755);
    }
    FILE *f = fopen(whole, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int root_make(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/fccd-test-cgroup.XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int root_remove(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -r '%s'", root);
    return system(command);
}

/* One look at so many bytes. */
static int look(struct cgroup *g, uint64_t bytes, bool *limited, struct error *e)
{
    g->unlooked = UINT32_MAX;
    return cgroup_check(g, bytes, limited, e);
}

static void version_2(void **state)
{
    struct cgroup g;
    struct error e = {0};
    bool limited = false;

    (void)state;
    file_write("/proc/self/cgroup", "0::/system.slice/fccd.service\n");
    file_write("/proc/self/mountinfo", "24 1 0:22 / /proc rw shared:1 - proc proc rw\n"
                                       "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n");
    file_write("/sys/fs/cgroup/system.slice/fccd.service/memory.max", "max\n");
    file_write("/sys/fs/cgroup/system.slice/fccd.service/memory.current", "50000000\n");
    file_write("/sys/fs/cgroup/system.slice/memory.max", "268435456\n");
    file_write("/sys/fs/cgroup/system.slice/memory.current", "200000000\n");
    file_write("/sys/fs/cgroup/system.slice/memory.stat",
               "anon 1\nfile 90000000\ninactive_file 30000000\nactive_file 10000000\n");
    cgroup_find(&g, root, 0);
    assert_int_equal(g.version, 2);
    assert_int_equal(cgroup_limit(&g), 268435456);
    assert_int_equal(look(&g, 50 << 20, &limited, &e), 0);
    assert_true(limited);
    assert_int_equal(look(&g, 80 << 20, &limited, &e), 0); /* the file cache makes room */
    assert_int_equal(look(&g, 120 << 20, &limited, &e), -ENOMEM);
    assert_non_null(strstr(e.text, "125829120 bytes"));
    assert_non_null(strstr(e.text, "160000000 of the 268435456 bytes allowed"));
    assert_non_null(strstr(e.text, "/sys/fs/cgroup/system.slice/memory.max"));
    assert_int_equal(look(&g, UINT64_MAX, &limited, &e), -ENOMEM);
    file_write("/sys/fs/cgroup/system.slice/fccd.service/memory.max", "60000000\n"); /* what is set later counts */
    assert_int_equal(cgroup_limit(&g), 60000000);
    assert_int_equal(look(&g, 20 << 20, &limited, &e), -ENOMEM);
    assert_non_null(strstr(e.text, "fccd.service/memory.max"));
    file_write("/sys/fs/cgroup/system.slice/fccd.service/memory.max", "max\n");
    file_write("/sys/fs/cgroup/system.slice/memory.max", "max\n");
    assert_true(cgroup_limit(&g) == UINT64_MAX);
    assert_int_equal(look(&g, 1ull << 40, &limited, &e), 0);
    assert_false(limited);
}

/* Version 1 beside an empty hierarchy of version 2, as systemd mounts them; and its "no limit". */
static void version_1(void **state)
{
    struct cgroup g;
    struct error e = {0};
    bool limited = false;

    (void)state;
    file_write("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/jobs/one\n0::/\n");
    file_write("/proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                                       "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
                                       "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,cpu,memory\n"
                                       "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    file_write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    file_write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "123456789\n");
    file_write("/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "9223372036854771712\n");
    file_write("/sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "104857600\n");
    file_write("/sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "90000000\n");
    file_write("/sys/fs/cgroup/memory/jobs/one/memory.stat", "cache 1\ntotal_inactive_file 4000\ntotal_active_file 96000\n");
    cgroup_find(&g, root, 0);
    assert_int_equal(g.version, 1);
    assert_int_equal(cgroup_limit(&g), 104857600);
    assert_int_equal(look(&g, 10 << 20, &limited, &e), 0);
    assert_int_equal(look(&g, 14 << 20, &limited, &e), -ENOMEM); /* it would fit, with nothing left for anything else */
    assert_non_null(strstr(e.text, "89900000 of the 104857600 bytes allowed"));
    assert_non_null(strstr(e.text, "/sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes"));
    /* small pieces are not looked at each by itself, but all together */
    file_write("/sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "104857600\n");
    g.unlooked = 0;
    int allowed = 0;
    while (allowed < 100 && !cgroup_check(&g, 64 << 10, &limited, &e))
        allowed++;
    assert_int_equal(allowed, 15);
}

/* A container that sees its own group as the outermost, but is told its path as the host has it; and one without any. */
static void containers(void **state)
{
    struct cgroup g;

    (void)state;
    file_write("/proc/self/cgroup", "5:memory:/docker/abc/inner\n");
    file_write("/proc/self/mountinfo", "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    file_write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2000000000\n");
    file_write("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1000000000\n");
    cgroup_find(&g, root, 0);
    assert_int_equal(cgroup_limit(&g), 1000000000);
    file_write("/proc/self/cgroup", "5:memory:/docker/abc\n");
    cgroup_find(&g, root, 0);
    assert_int_equal(cgroup_limit(&g), 2000000000);
    file_write("/proc/self/cgroup", "5:memory:/elsewhere\n"); /* outside of what is mounted */
    cgroup_find(&g, root, 0);
    assert_int_equal(cgroup_limit(&g), 2000000000);
    file_write("/proc/self/cgroup", "0::/\n"); /* a namespace of version 2: its root has the container's limit */
    file_write("/proc/self/mountinfo", "35 31 0:32 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
    file_write("/sys/fs/cgroup/memory.max", "3000000000\n");
    cgroup_find(&g, root, 0);
    assert_int_equal(cgroup_limit(&g), 3000000000);
    file_write("/proc/self/mountinfo", "24 1 0:22 / /proc rw - proc proc rw\n");
    cgroup_find(&g, root, 0);
    assert_true(cgroup_limit(&g) == UINT64_MAX);
    file_write("/proc/self/cgroup", "");
    cgroup_find(&g, root, 0);
    assert_true(cgroup_limit(&g) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners),
        cmocka_unit_test(charges),
        cmocka_unit_test(nonsense),
        cmocka_unit_test(races),
        cmocka_unit_test(far_too_much),
        cmocka_unit_test(jobs),
        cmocka_unit_test_setup_teardown(version_2, root_make, root_remove),
        cmocka_unit_test_setup_teardown(version_1, root_make, root_remove),
        cmocka_unit_test_setup_teardown(containers, root_make, root_remove),
    };
    return cmocka_run_group_tests_name("account", tests, NULL, NULL);
}
