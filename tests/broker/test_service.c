/* SPDX-License-Identifier: MIT
 *
 * test_service.c - the daemon as whoever starts it meets it: in the background, with a file for its process id and one for its
 * log, told to read its configuration again, and warning of settings that nothing reads.
 */
#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

static char *in_directory(const char *name)
{
    static char paths[64][256];
    static int next;
    char *path = paths[next++ % 64];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", test_directory(), name);
    return path;
}

static void file_write(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void file_read(const char *path, char *text, size_t room)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, room - 1, f) : 0;

    text[n] = '\0';
    if (f)
        (void)fclose(f);
}

/* Waits until the log says so. */
static void logged(const char *says)
{
    struct test_node node = {0};

    (void)snprintf(node.log, sizeof(node.log), "%s", in_directory("b.log"));
    if (!node_logged(&node, says, true)) {
        static char text[65536];
        file_read(node.log, text, sizeof(text));
        check_failed(__FILE__, __LINE__, "the log does not say \"%s\": %s", says, text);
    }
}

#define BACKGROUND(...)                                                                                                        \
    program_run(said, sizeof(said), daemon_binary(),                                                                           \
                (const char *const[]){"--background", "--socket", in_directory("b.sock"), "--gpus", "none",                    \
                                      "--worker-idle-ms", "50", ##__VA_ARGS__, NULL})
static char said[8192];

static pid_t pid_in_file(const char *path)
{
    char text[64];

    file_read(path, text, sizeof(text));
    return (pid_t)atoi(text);
}

/* The thread sanitizer's runtime takes signals for the program, and now and then loses one that comes before the daemon's first epoll_wait():
 * of 4,600 that were sent at once it lost 3, and a plain build none of 24,000. There the daemon answers once before it gets one. The job is one that every test here may have, also where JOBS_PER_USER limits them. */
static void loop_await(void)
{
#ifdef __SANITIZE_THREAD__
    struct fcc_connect_options options = {.socket_path = in_directory("b.sock"), .job = "first"};
    fcc_context *context;

    OK(fcc_connect(&options, &context));
    fcc_disconnect(context);
#endif
}

/* The daemon is nobody's child here: it has ended when its process is gone. */
static void background_end(pid_t pid)
{
    double until = await_end();

    loop_await();
    CHECK(pid > 1 && kill(pid, SIGTERM) == 0);
    while (kill(pid, 0) == 0) {
        CHECK(now_ms() < until);
        (void)usleep(2000);
    }
    CHECK(access(in_directory("b.pid"), F_OK) != 0 && access(in_directory("b.sock"), F_OK) != 0);
}

static void background(void)
{
    fcc_context *context;
    char expect[512];

    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    CHECK(BACKGROUND("--config", "/dev/null") == 0);
    pid_t pid = pid_in_file(in_directory("b.pid"));
    (void)snprintf(expect, sizeof(expect), "fccd listens at %s: process %d (%s), log %s\n", in_directory("b.sock"), pid,
                   in_directory("b.pid"), in_directory("b.log"));
    if (strcmp(said, expect) != 0)
        check_failed(__FILE__, __LINE__, "it said \"%s\", not \"%s\"", said, expect);
    OK(fcc_connect(NULL, &context)); /* it listens when the command returns: no second try */
    fcc_disconnect(context);
    CHECK(getsid(pid) == pid);
    /* a second one: told at once, and the first is not disturbed */
    CHECK(BACKGROUND("--config", "/dev/null") == 1);
    CHECK(strstr(said, "another fccd has it"));
    OK(fcc_connect(NULL, &context));
    fcc_disconnect(context);
    background_end(pid);
    /* one that was killed leaves its files, which are no hindrance */
    CHECK(BACKGROUND("--config", "/dev/null") == 0);
    pid = pid_in_file(in_directory("b.pid"));
    CHECK(kill(pid, SIGKILL) == 0);
    while (kill(pid, 0) == 0)
        (void)usleep(2000);
    CHECK(BACKGROUND("--config", "/dev/null") == 0);
    background_end(pid_in_file(in_directory("b.pid")));
    (void)unlink(in_directory("b.log"));
}

/* One that was told to end, and is slow at it, is waited for; its successor's file is there, and names it. */
static void background_again(void)
{
    fcc_context *context;
    pid_t pid, waker;

    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    CHECK(BACKGROUND("--config", "/dev/null") == 0);
    for (int i = 0; i < 20; i++) {
        pid = pid_in_file(in_directory("b.pid"));
        loop_await();
        if (i == 0)
            CHECK(kill(pid, SIGSTOP) == 0);
        CHECK(kill(pid, SIGTERM) == 0);
        waker = i == 0 ? fork() : -1;
        if (waker == 0) {
            (void)usleep(300000);
            _exit(kill(pid, SIGCONT) ? 1 : 0);
        }
        if (BACKGROUND("--config", "/dev/null") != 0)
            check_failed(__FILE__, __LINE__, "round %d: it said \"%s\"", i, said);
        CHECK(waker < 0 || waitpid(waker, NULL, 0) == waker);
        CHECK(pid_in_file(in_directory("b.pid")) > 1 && pid_in_file(in_directory("b.pid")) != pid);
        OK(fcc_connect(NULL, &context));
        fcc_disconnect(context);
    }
    background_end(pid_in_file(in_directory("b.pid")));
    (void)unlink(in_directory("b.log"));
}

/* What keeps it from listening is said where it was started, with the exit status of a daemon in the foreground. */
static void background_fails(void)
{
    CHECK(BACKGROUND("--config", "/dev/null", "--socket-group", "no-such-group") == 1);
    CHECK(strstr(said, "SOCKET_GROUP no-such-group: no such group"));
    CHECK(BACKGROUND("--config", "/dev/null", "--cpu-devices", "0") == 2);
    CHECK(strstr(said, "allowed is a number from 1 to 64"));
    CHECK(BACKGROUND("--config", "/dev/null", "--log-file", "/nonexistent/log") == 1);
    CHECK(strstr(said, "LOG_FILE /nonexistent/log: No such file or directory"));
    CHECK(symlink("/dev/null", in_directory("b.pid")) == 0);
    CHECK(BACKGROUND("--config", "/dev/null") == 1);
    CHECK(strstr(said, "PID_FILE"));
    (void)unlink(in_directory("b.pid"));
    CHECK(mkfifo(in_directory("b.pid"), 0600) == 0);
    CHECK(BACKGROUND("--config", "/dev/null") == 1);
    CHECK(strstr(said, "allowed is a regular file of uid"));
    (void)unlink(in_directory("b.pid"));
    CHECK(access(in_directory("b.sock"), F_OK) != 0);
    file_write(in_directory("b.sock"), "mine");
    CHECK(BACKGROUND("--config", "/dev/null") == 1);
    CHECK(strstr(said, "something is there that is no socket") && access(in_directory("b.sock"), F_OK) == 0);
    (void)unlink(in_directory("b.sock"));
    CHECK(BACKGROUND("--config", "/dev/null", "--socket", "/nonexistent/b.sock") == 1);
    CHECK(strstr(said, "PID_FILE /nonexistent/b.pid: No such file or directory (it is beside the socket"));
}

static pid_t holder_start(const char *path)
{
    int ready[2];
    char byte;

    CHECK(pipe(ready) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_SH) || write(ready[1], "", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    (void)close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1 && close(ready[0]) == 0);
    return pid;
}

static void holder_kill(pid_t pid)
{
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static void file_await_end(const char *path)
{
    for (double until = await_end(); access(path, F_OK) == 0; (void)usleep(2000))
        CHECK(now_ms() < until);
}

/* It stays while one process of several has its lock, and goes, with its files, when the last one was killed. */
static void held(void)
{
    static const char *const files[] = {"b.log", "b.pid", "b.sock"};
    char *hold = in_directory("b.hold");
    fcc_context *context;
    pid_t holders[2];

    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    CHECK(BACKGROUND("--config", "/dev/null", "--hold-file", hold) == 1);
    CHECK(strstr(said, "HOLD_FILE ") && strstr(said, "b.hold: No such file or directory"));
    CHECK(mkfifo(hold, 0600) == 0);
    CHECK(BACKGROUND("--config", "/dev/null", "--hold-file", hold) == 1 && strstr(said, "allowed is a regular file of uid"));
    CHECK(unlink(hold) == 0);
    file_write(hold, "");
    for (int i = 0; i < 2; i++)
        holders[i] = holder_start(hold);
    CHECK(BACKGROUND("--config", "/dev/null", "--log-level", "warning", "--hold-file", hold) == 0);
    holder_kill(holders[0]);
    (void)usleep(1200000); /* it has looked twice */
    OK(fcc_connect(NULL, &context));
    fcc_disconnect(context);
    holder_kill(holders[1]);
    file_await_end(hold); /* the last thing that it removes */
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        CHECK(access(in_directory(files[i]), F_OK) != 0);
}

/* After a signal the file stays for those that have it locked, and what was logged stays in any case. */
static void held_and_told_to_end(void)
{
    char *hold = in_directory("b.hold");

    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    file_write(hold, "");
    pid_t holder = holder_start(hold);
    CHECK(BACKGROUND("--config", "/dev/null", "--log-level", "warning", "--hold-file", hold) == 0);
    background_end(pid_in_file(in_directory("b.pid")));
    CHECK(access(hold, F_OK) == 0 && unlink(in_directory("b.log")) == 0);
    holder_kill(holder);
    CHECK(BACKGROUND("--config", "/dev/null", "--hold-file", hold) == 0);
    file_await_end(hold);
    logged("no process holds HOLD_FILE any more");
    CHECK(unlink(in_directory("b.log")) == 0);
}

static void hangup(void)
{
    char *config = in_directory("b.conf"), *moved = in_directory("b.log.1"), text[4096];
    fcc_context *context;
    pid_t worker;

    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    file_write(config, "JOBS_PER_USER=1\nCPU_DEVICES=1\n");
    CHECK(BACKGROUND("--config", config) == 0);
    pid_t pid = pid_in_file(in_directory("b.pid"));
    struct fcc_connect_options first = {.job = "first"}, second = {.job = "second"};
    fcc_context *other;
    OK(fcc_connect(&first, &context));
    FAILS(fcc_connect(&second, &other), -EPERM, "JOBS_PER_USER");
    /* what can change does, and it says what cannot */
    file_write(config, "JOBS_PER_USER=2\nCPU_DEVICES=2\n");
    CHECK(rename(in_directory("b.log"), moved) == 0); /* as logrotate does: the log goes on in a new file */
    CHECK(kill(pid, SIGHUP) == 0);
    logged("JOBS_PER_USER has changed: it holds");
    logged("CPU_DEVICES has changed: that takes a restart");
    OK(fcc_connect(&second, &other));
    fcc_disconnect(other);
    /* a mistake changes nothing */
    file_write(config, "JOBS_PER_USER=2\nDRAIN_MS=soon\n");
    CHECK(kill(pid, SIGHUP) == 0);
    logged("the configuration stays as it was");
    logged("b.conf:2: DRAIN_MS: \"soon\": allowed is a number");
    OK(fcc_connect(&second, &other));
    fcc_disconnect(other);
    /* a worker says that it ignores the signal, and serves on */
    struct test_daemon d = {.pid = pid};
    worker = daemon_worker(&d);
    CHECK(kill(worker, SIGHUP) == 0);
    fcc_context *again;
    OK(fcc_connect(&first, &again));
    fcc_disconnect(again);
    fcc_disconnect(context);
    file_read(moved, text, sizeof(text));
    CHECK(strstr(text, "serves "));
    background_end(pid);
    (void)unlink(config);
    (void)unlink(moved);
    (void)unlink(in_directory("b.log"));
}

/* A configuration whose name is relative is found again by a daemon that has gone into the background. */
static void hangup_relative(void)
{
    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    CHECK(chdir(in_directory("")) == 0);
    file_write("b.conf", "JOBS_PER_USER=1\n");
    CHECK(BACKGROUND("--config", "b.conf") == 0);
    pid_t pid = pid_in_file(in_directory("b.pid"));
    loop_await();
    file_write("b.conf", "JOBS_PER_USER=2\n");
    CHECK(kill(pid, SIGHUP) == 0);
    logged("JOBS_PER_USER has changed: it holds");
    file_write("b.conf", "JOBS_PER_USER=soon\n");
    CHECK(kill(pid, SIGHUP) == 0);
    logged(in_directory("b.conf:1: JOBS_PER_USER: \"soon\""));
    background_end(pid);
    (void)unlink("b.conf");
    (void)unlink("b.log");
}

/* Each line of the log is one JSON object with what log.h says, also of workers. */
static void json_lines(void)
{
    fcc_context *context;
    char line[4096], name[64];
    int broker = 0, worker = 0;

    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    CHECK(BACKGROUND("--config", "/dev/null", "--log-format", "json", "--log-level", "debug") == 0);
    OK(fcc_connect(NULL, &context));
    fcc_disconnect(context);
    (void)usleep(300000); /* the worker ends, and tells; if it is late there is less to look at */
    background_end(pid_in_file(in_directory("b.pid")));
    FILE *f = fopen(in_directory("b.log"), "re");
    CHECK(f);
    (void)snprintf(name, sizeof(name), "worker %u/", geteuid());
    while (fgets(line, sizeof(line), f)) {
        struct json_object *o = json_tokener_parse(line), *field;
        struct tm tm = {0};
        if (!o)
            check_failed(__FILE__, __LINE__, "not JSON: %s", line);
        CHECK(json_object_object_length(o) == 5);
        CHECK(json_object_object_get_ex(o, "time", &field));
        const char *rest = strptime(json_object_get_string(field), "%Y-%m-%dT%H:%M:%S.", &tm);
        CHECK(rest && strlen(rest) == 7 && rest[6] == 'Z');
        CHECK(json_object_object_get_ex(o, "level", &field) && json_object_is_type(field, json_type_string));
        CHECK(json_object_object_get_ex(o, "pid", &field) && json_object_get_int(field) > 1);
        CHECK(json_object_object_get_ex(o, "message", &field) && json_object_get_string_len(field) > 0);
        CHECK(json_object_object_get_ex(o, "process", &field));
        broker += !strcmp(json_object_get_string(field), "broker");
        worker += !strncmp(json_object_get_string(field), name, strlen(name));
        (void)json_object_put(o);
    }
    (void)fclose(f);
    CHECK(broker > 2 && worker > 0);
    (void)unlink(in_directory("b.log"));
}

/* A line has the date, where standard error is no journal, whatever JOURNAL_STREAM says. */
static void dates(void)
{
    char text[4096];
    struct tm tm = {0};

    (void)setenv("JOURNAL_STREAM", "1:2", 1);
    CHECK(BACKGROUND("--config", "/dev/null") == 0);
    background_end(pid_in_file(in_directory("b.pid")));
    file_read(in_directory("b.log"), text, sizeof(text));
    const char *rest = strptime(text, "%Y-%m-%d %H:%M:%S.", &tm);
    if (!rest || !strstr(rest, " fccd broker: info: "))
        check_failed(__FILE__, __LINE__, "no date: %s", text);
    (void)unlink(in_directory("b.log"));
}

/* Where standard error is the stream that JOURNAL_STREAM names, the journal has the date: a line has its level for it instead, the broker's and
 * its workers'. */
static void journal(void)
{
    char stream[64], text[16384], all[sizeof(text)], *line, *rest = text;
    struct test_daemon d;
    fcc_context *context;
    struct stat st;
    int lines = 0, workers = 0, fds[2];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0 && fstat(fds[1], &st) == 0);
    (void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    (void)setenv("JOURNAL_STREAM", stream, 1);
    (void)setenv("FCCD_SOCKET", in_directory("b.sock"), 1);
    (void)fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        (void)dup2(fds[1], STDERR_FILENO);
        (void)execl(daemon_binary(), "fccd", "--config", "/dev/null", "--socket", in_directory("b.sock"), "--gpus", "none",
                    "--log-level", "debug", (char *)NULL);
        _exit(127);
    }
    (void)close(fds[1]);
    d.pid = pid;
    double until = await_end();
    while (fcc_connect(NULL, &context)) { /* until it listens */
        CHECK(now_ms() < until);
        (void)usleep(10000);
    }
    (void)daemon_worker(&d);
    fcc_disconnect(context);
    loop_await();
    CHECK(kill(pid, SIGTERM) == 0);
    size_t n = 0;
    for (ssize_t got; n < sizeof(text) - 1 && (got = read(fds[0], text + n, sizeof(text) - 1 - n)) > 0;)
        n += (size_t)got; /* to the end of all who have it */
    text[n] = '\0';
    CHECK(waitpid(pid, NULL, 0) == pid && close(fds[0]) == 0);
    memcpy(all, text, sizeof(all));
    while ((line = strsep(&rest, "\n")) && *line) {
        bool broker = !strncmp(line + 3, "broker: ", 8), worker = !strncmp(line + 3, "worker ", 7);
        if (line[0] != '<' || !strchr("3467", line[1]) || line[2] != '>' || !(broker || worker))
            check_failed(__FILE__, __LINE__, "not as the journal takes it: %s", line);
        lines++;
        workers += worker;
    }
    if (lines <= 2 || workers == 0)
        check_failed(__FILE__, __LINE__, "%d lines, %d of workers: %s", lines, workers, all);
}

static void unknown_variables(void)
{
    static const char *const warned[] = {
        "FCCD_CPU_DEVICE is unknown and does nothing: the nearest known one is FCCD_CPU_DEVICES",
        "FCCD_TIMELIMIT_MS is unknown and does nothing: the nearest known one is FCCD_TIME_LIMIT_MS",
        "FCC_MEETNIG is unknown and does nothing: the nearest known one is FCC_MEETING"};

    (void)setenv("FCCD_CPU_DEVICE", "2", 1);
    (void)setenv("FCCD_TIMELIMIT_MS", "2", 1);
    (void)setenv("FCC_MEETNIG", "here", 1);
    (void)setenv("FCC_RANK", "0", 1);
    (void)setenv("FCCD_DRAIN_MS", "1000", 1);
    CHECK(BACKGROUND("--config", "/dev/null") == 0);
    background_end(pid_in_file(in_directory("b.pid")));
    for (size_t i = 0; i < sizeof(warned) / sizeof(warned[0]); i++)
        CHECK(strstr(said, warned[i])); /* it is said before the log moves to its file */
    CHECK(!strstr(said, "FCC_RANK is") && !strstr(said, "FCCD_DRAIN_MS is") && !strstr(said, "FCCD_SOCKET is"));
    (void)unlink(in_directory("b.log"));
    /* the library says it, too, once */
    int code = program_run(said, sizeof(said), fccctl_binary(), (const char *const[]){"status", NULL});
    CHECK(code != 0); /* nobody listens */
    const char *first = strstr(said, "FCC_MEETNIG");
    CHECK(first && strstr(first, "FCC_MEETING") && strstr(said, "FCCD_CPU_DEVICES"));
}

int main(void)
{
    static const struct test tests[] = {
        {"background", background, 0},
        {"background_again", background_again, 0},
        {"background_fails", background_fails, 0},
        {"held", held, 0},
        {"held_and_told_to_end", held_and_told_to_end, 0},
        {"hangup", hangup, 0},
        {"json_lines", json_lines, 0},
        {"dates", dates, 0},
        {"journal", journal, 0},
        {"unknown_variables", unknown_variables, 0},
        {"hangup_relative", hangup_relative, 0},
    };
    return tests_run("service", TESTS(tests));
}
