/* SPDX-License-Identifier: MIT
 *
 * test_names.c - a worker gets its user's groups, and the name service that knows them may be slow: nobody waits for it but who needs it.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "tests/bed/users_bed.h"

static void names_slow(const char *ms)
{
    const char *preload = getenv("FCC_TEST_SLOW_NAMES"), *asan = getenv("ASAN_OPTIONS");
    char options[512];

    CHECK(preload != NULL);
    (void)snprintf(options, sizeof(options), "%s:verify_asan_link_order=0", asan ? asan : "");
    CHECK(setenv("ASAN_OPTIONS", options, 1) == 0);
    CHECK(setenv("LD_PRELOAD", preload, 1) == 0 && setenv("SLOW_NAMES_MS", ms, 1) == 0);
}

static void names_usual(void)
{
    (void)unsetenv("LD_PRELOAD");
}

/* Who waits for his groups, and since when he does not any more. */
struct waiting {
    _Atomic int begun, status;
    _Atomic bool over;
    char text[FCC_TEXT_MAX];
};

static pid_t waiting_start(struct waiting *w, gid_t gid)
{
    double until = await_end();
    fcc_context *context;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setgroups(0, NULL) == 0 && setgid(gid) == 0 && setuid(HOSTILE) == 0);
        w->begun = 1;
        w->status = fcc_connect(NULL, &context);
        if (w->status)
            (void)snprintf(w->text, sizeof(w->text), "%s", fcc_last_error());
        else
            fcc_disconnect(context);
        w->over = true;
        _exit(0);
    }
    while (!w->begun)
        AWAITING(until);
    return pid;
}

/* Two lookups of 2 s each are for one user; nobody else waits for them. */
static void slow_names(void)
{
    struct test_daemon d;
    struct waiting *w = shared_memory(sizeof(*w));
    int status;

    needs_users();
    names_slow("3000");
    daemon_start(&d, NULL);
    names_usual();
    open_to_all(&d);
    pid_t pid = waiting_start(w, HOSTILE);
    (void)usleep(100000);
    served(&d, 0);
    served(&d, 0);
    CHECK(!w->over); /* all that was done meanwhile */
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    if (w->status)
        check_failed(__FILE__, __LINE__, "%d: %s", w->status, w->text);
    daemon_stop(&d);
}

/* A lookup that does not end has a limit, and its end is told. */
static void dead_names(void)
{
    struct test_daemon d;
    struct waiting *w = shared_memory(sizeof(*w));
    int status;

    needs_users();
    names_slow("60000");
    daemon_start(&d, NULL);
    names_usual();
    open_to_all(&d);
    pid_t pid = waiting_start(w, HOSTILE);
    (void)usleep(100000);
    served(&d, 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(w->status == -ETIMEDOUT && strstr(w->text, "uid 40001") && strstr(w->text, "name service has not answered within"));
    served(&d, 0);
    daemon_stop(&d); /* no child is left */
}

/* A user who comes with many groups has a question for each; few of them are asked at a time, and others need not wait for the rest. */
static void groups_without_number(void)
{
    enum { GROUPS = 24 };
    struct waiting *w = shared_memory(GROUPS * sizeof(*w));
    struct test_daemon d;
    pid_t pids[GROUPS];
    int status;

    needs_users();
    names_slow("2500");
    daemon_start(&d, NULL);
    names_usual();
    open_to_all(&d);
    for (int i = 0; i < GROUPS; i++)
        pids[i] = waiting_start(&w[i], (gid_t)(HOSTILE + 1 + i));
    (void)usleep(200000);
    served(&d, OTHER); /* if all of them were asked first, his limit would pass before his own */
    for (int i = 0; i < GROUPS; i++) {
        CHECK(kill(pids[i], SIGKILL) == 0);
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
    }
    daemon_stop_unclean(&d); /* some of them have children that ask */
}

/* A worker has its user's groups, as the name service has them. */
static void groups_given(void)
{
    char path[64], line[4096];
    struct test_daemon d;
    fcc_context *context;
    int status;
    bool found = false;

    needs_users();
    daemon_start(&d, NULL);
    open_to_all(&d);
    struct {
        _Atomic bool ready, done;
    } *s = shared_memory(sizeof(*s));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setgroups(0, NULL) == 0 && setgid(1) == 0 && setuid(1) == 0); /* "daemon" is in its own group, on every Debian */
        OK(fcc_connect(NULL, &context));
        s->ready = true;
        while (!s->done)
            nap();
        fcc_disconnect(context);
        _exit(0);
    }
    while (!s->ready)
        nap();
    (void)snprintf(path, sizeof(path), "/proc/%d/status", daemon_worker(&d));
    FILE *f = fopen(path, "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        found |= !strncmp(line, "Groups:\t1", 9);
    (void)fclose(f);
    s->done = true;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    CHECK(found);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"slow_names", slow_names, 0},
        {"dead_names", dead_names, 0},
        {"groups_without_number", groups_without_number, 0},
        {"groups_given", groups_given, 0},
    };
    return tests_run("names", TESTS(tests));
}
