/* SPDX-License-Identifier: MIT
 *
 * test_doctor.c - the advice of fccctl doctor: it fits what is wrong, can be pasted as it stands, and harms nobody who does so. To whom it
 * advises which group: test_users.c.
 */
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

#define STRANGER 40001

static char output[65536]; /* of the last doctor */

static int doctor(void)
{
    int status = program_run(output, sizeof(output), fccctl_binary(), (const char *const[]){"doctor", NULL});

    (void)fprintf(stderr, "%d: %s\n", status, output);
    return status;
}

static bool says(const char *text)
{
    return strstr(output, text);
}

/* `check` in another user's process, with what doctor tells him in `output`. */
static void as_stranger(gid_t gid, void (*check)(void))
{
    int status;
    pid_t pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(setgroups(0, NULL) == 0 && setgid(gid) == 0 && setuid(STRANGER) == 0);
        if (access(fccctl_binary(), X_OK) != 0)
            _exit(77);
        (void)doctor();
        check();
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        test_skip("skipped: another user cannot reach the fccctl that is to be tested");
    CHECK(WEXITSTATUS(status) == 0);
}

/* ---- nobody listens ---- */

static void start_by_hand(void)
{
    char path[128], command[4096], *from, *to;

    /* the command that it names starts a daemon there, though the name needs quotes */
    (void)snprintf(path, sizeof(path), "%s/it's mine.sock", test_directory());
    (void)setenv("FCCD_SOCKET", path, 1);
    CHECK(doctor() == 1 && says("start the daemon: '"));
    from = strstr(output, "start the daemon: '") + strlen("start the daemon: '");
    to = strchr(from, '\n');
    CHECK(to && to[-1] == '\'');
    (void)snprintf(command, sizeof(command), "%.*s --gpus none >/dev/null", (int)(to - 1 - from), from);
    CHECK(system(command) == 0);
    CHECK(doctor() == 0 && says("takes connections"));
    (void)snprintf(
        command, sizeof(command),
        "cd '%s' && read pid <it\\'s\\ mine.pid && kill $pid && while kill -0 $pid 2>&-; do sleep 0.05; done; rm *.log",
        test_directory());
    CHECK(system(command) == 0);
    /* where no daemon can be started it does not say so */
    (void)setenv("FCCD_SOCKET", "/nonexistent/fccd.sock", 1);
    CHECK(doctor() == 1 && says("name fccd's socket with --socket or $FCCD_SOCKET"));
    CHECK(!strstr(output, "--socket /nonexistent"));
    (void)unsetenv("FCCD_SOCKET");
}

/* ---- who may not ---- */

static void told_mode(void)
{
    CHECK(says("restart fccd, which makes it 0660") && !strstr(output, "usermod"));
}

static void told_folder(void)
{
    CHECK(says("a folder above it is closed to you") && !strstr(output, "start the daemon"));
}

static void told_owner(void)
{
    CHECK(says("serves nobody else; start one for yourself: '") && !strstr(output, "usermod"));
    CHECK(says("/tmp/fccd-40001.sock"));
}

static void told_nothing_of_config(void)
{
    CHECK(says("ok    config        root's to check") && says("Permission denied"));
}

static void not_allowed(void)
{
    struct test_daemon d;
    char key[128];

    if (geteuid())
        test_skip("skipped: needs root, to be another user than the daemon");
    CHECK(chmod(test_directory(), 0755) == 0);
    daemon_start(&d, (const char *const[]){"--socket-group", "daemon", NULL});
    CHECK(chmod(d.socket, 0600) == 0);
    as_stranger(1, told_mode);
    CHECK(chown(d.socket, 40002, 40002) == 0 && chmod(d.socket, 0660) == 0);
    as_stranger(STRANGER, told_owner);
    CHECK(chmod(test_directory(), 0700) == 0);
    as_stranger(STRANGER, told_folder);
    CHECK(chmod(test_directory(), 0755) == 0 && chown(d.socket, 0, 0) == 0);
    /* the cluster's key is closed to him, as it has to be: no fault */
    (void)snprintf(key, sizeof(key), "%s/key", test_directory());
    FILE *f = fopen(key, "we");
    CHECK(f && fprintf(f, "%064d", 1) == 64 && fclose(f) == 0 && chmod(key, 0600) == 0);
    (void)setenv("FCCD_NODE_LISTEN", "127.0.0.1:1", 1);
    (void)setenv("FCCD_CLUSTER_KEY", key, 1);
    as_stranger(STRANGER, told_nothing_of_config);
    (void)unsetenv("FCCD_NODE_LISTEN");
    (void)unsetenv("FCCD_CLUSTER_KEY");
    CHECK(unlink(key) == 0);
    daemon_stop(&d);
}

/* ---- jobs ---- */

/* A user has named his job so that root's shell would run a command of his. */
static void hostile_name(void)
{
    struct test_daemon d;
    struct fcc_connect_options options = {.job = "x;touch${IFS}harm;'"};
    fcc_context *context;
    fcc_comm *comm;
    struct fcc_unique_id id;
    char command[1024], *from;

    daemon_start(&d, NULL);
    CHECK(chdir(test_directory()) == 0);
    OK(fcc_connect(&options, &context));
    OK(fcc_get_unique_id(context, &id));
    OK(fcc_comm_init(context, &id, 1, 0, NULL, &comm));
    OK(fcc_comm_abort(comm, NULL));
    CHECK(doctor() == 1 && says("what was before: fccctl flight --uid "));
    from = strstr(output, "--job ");
    (void)snprintf(command, sizeof(command), "set -- %.*s && test \"$2\" = 'x;touch${IFS}harm;'\\'''", (int)strcspn(from, "\n"),
                   from);
    CHECK(system(command) == 0 && access("harm", F_OK) != 0);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    daemon_stop(&d);
}

static void stopped_worker(void)
{
    struct test_daemon d;
    fcc_context *context;
    char pid[64];

    daemon_start(&d, NULL);
    OK(fcc_connect(NULL, &context));
    pid_t worker = daemon_worker(&d);
    (void)snprintf(pid, sizeof(pid), "'kill -CONT %d' lets it go on", worker);
    CHECK(kill(worker, SIGSTOP) == 0);
    CHECK(doctor() == 1 && says(pid) && says("does not answer"));
    CHECK(kill(worker, SIGCONT) == 0);
    CHECK(doctor() == 0);
    fcc_disconnect(context);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"start_by_hand", start_by_hand, 0},
        {"not_allowed", not_allowed, 0},
        {"hostile_name", hostile_name, 0},
        {"stopped_worker", stopped_worker, 60}, /* doctor gives it 5 s */
    };
    return tests_run("doctor", TESTS(tests));
}
