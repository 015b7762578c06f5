/* SPDX-License-Identifier: MIT
 *
 * test_fccctl_answers.c - fccctl, which root may run, and answers that make no sense, as any user's worker may give: files that are not what
 * they should be, and traces without an end.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/msg.h"
#include "tests/bed/harness.h"
#include "tests/bed/program.h"
#include "tests/fccctl/played.h"

static char output[1 << 16]; /* of the last fccctl */

#define FCCCTL(...) program_run(output, sizeof(output), fccctl_binary(), (const char *const[]){__VA_ARGS__, NULL})

enum answer { HONEST, UNSEALED, NOT_WRITE, NOT_SHRINK, PIPE, NO_FILE, EMPTY, LARGE, NO_JSON, CUT, WAYS };

static int file_make(const char *words, off_t bytes, int seals)
{
    int fd = memfd_create("answer", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    CHECK(pwrite(fd, words, strlen(words), 0) == (ssize_t)strlen(words));
    if (seals)
        CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static int answer_make(enum answer way)
{
    static const char json[] = "{\"devices\":[]}";
    const int all = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    int ends[2];

    switch (way) {
    case UNSEALED:
        return file_make(json, sizeof(json) - 1, 0);
    case NOT_WRITE:
        return file_make(json, sizeof(json) - 1, F_SEAL_SHRINK | F_SEAL_GROW);
    case NOT_SHRINK:
        return file_make(json, sizeof(json) - 1, F_SEAL_GROW | F_SEAL_WRITE);
    case PIPE: /* from which nothing ever comes */
        CHECK(pipe2(ends, O_CLOEXEC) == 0);
        return ends[0];
    case NO_FILE:
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case EMPTY:
        return file_make("", 0, all);
    case LARGE:
        return file_make(json, (off_t)1 << 40, all);
    case NO_JSON:
        return file_make("\033[2J no JSON", 12, all);
    case CUT:
        return file_make("{\"devices\":[", 12, all);
    default:
        return file_make(json, sizeof(json) - 1, all);
    }
}

/* Until the test has ended. */
static void fccd_play(int listener, enum answer way)
{
    struct fcc_reply answer = {.fds = 1};
    int sock;

    while ((sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        (void)query_hear(sock, &answer);
        int fd = answer_make(way);
        CHECK(msg_send(sock, &answer.msg, sizeof(answer), &fd, 1) == 0);
        (void)close(fd);
        (void)close(sock);
    }
}

static void answers(void)
{
    static const char *const words[WAYS] = {[HONEST] = "\"devices\"",
                                            [UNSEALED] = "not sealed",
                                            [NOT_WRITE] = "not sealed",
                                            [NOT_SHRINK] = "not sealed",
                                            [PIPE] = "not sealed",
                                            [NO_FILE] = "not sealed",
                                            [EMPTY] = "0 bytes: allowed are 2",
                                            [LARGE] = "1099511627776 bytes: allowed",
                                            [NO_JSON] = "not JSON",
                                            [CUT] = "not JSON"};

    for (int way = 0; way < WAYS; way++) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/sock", test_directory());
        CHECK(bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(listener, 4) == 0);
        pid_t pid = fork();
        if (pid == 0) {
            fccd_play(listener, (enum answer)way);
            _exit(0);
        }
        int code = FCCCTL("--socket", a.sun_path, "devices", "--json");
        if (code < 1 || code > 2 || !strstr(output, words[way])) /* a node without devices is unwell */
            check_failed(__FILE__, __LINE__, "way %d: %d: %s", way, code, output);
        CHECK(!strchr(output, '\033'));
        CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
        (void)close(listener);
        (void)unlink(a.sun_path);
    }
}

/* Times that no clock tells. The picture has an end, and is no larger than one of a microsecond's. */
static void traces(void)
{
    static const char *const numbers[] = {"1.7976931348623157e308", "1e308", "Infinity", "NaN", "-1e308",
                                          "9223372036854775807",    "0"};
    char path[300], svg[300], chrome[300];
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/trace", test_directory());
    (void)snprintf(svg, sizeof(svg), "%s/svg", test_directory());
    (void)snprintf(chrome, sizeof(chrome), "%s/chrome", test_directory());
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        FILE *f = fopen(path, "we");
        CHECK(f != NULL);
        (void)fprintf(
            f,
            "{\"op\":\"x\",\"duration_ns\":%s,\"nranks\":9223372036854775807,\"ranks\":[{\"rank\":-1,\"workgroups\":[{"
            "\"events\":[{\"kind\":\"put\",\"dst\":9223372036854775807,\"start_ns\":%s,\"end_ns\":%s}]}]}]}",
            numbers[i], numbers[(i + 1) % 7], numbers[i]);
        CHECK(fclose(f) == 0);
        CHECK(FCCCTL("trace", "--from", path, "--svg", svg, "--chrome", chrome) == 0);
        CHECK(stat(svg, &st) == 0 && st.st_size < 100000);
        CHECK(stat(chrome, &st) == 0 && st.st_size < 100000);
        (void)unlink(svg);
        (void)unlink(chrome);
    }
    (void)unlink(path);
}

/* In a directory that anybody can write, names may be taken, and lead elsewhere: to a file of root's, or to a FIFO that nobody reads. */
static void trace_names(void)
{
    static const char json[] = "{\"op\":\"x\",\"duration_ns\":1000,\"nranks\":1,\"ranks\":[{\"rank\":0,\"workgroups\":[{"
                               "\"events\":[{\"kind\":\"put\",\"dst\":0,\"start_ns\":0,\"end_ns\":9}]}]}]}",
                      other[] = "somebody else's";
    char path[300], svg[300], part[310], victim[300], line[64] = "";
    struct stat st;

    (void)snprintf(path, sizeof(path), "%s/trace", test_directory());
    (void)snprintf(svg, sizeof(svg), "%s/svg", test_directory());
    (void)snprintf(part, sizeof(part), "%s.part", svg);
    (void)snprintf(victim, sizeof(victim), "%s/victim", test_directory());
    FILE *f = fopen(path, "we");
    CHECK(f && fputs(json, f) >= 0 && fclose(f) == 0);
    f = fopen(victim, "we");
    CHECK(f && fputs(other, f) >= 0 && fclose(f) == 0);
    CHECK(symlink(victim, part) == 0);
    CHECK(FCCCTL("trace", "--from", path, "--svg", svg) == 0);
    CHECK(lstat(svg, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 0600) == 0600 && unlink(svg) == 0);
    f = fopen(victim, "re");
    CHECK(f && fgets(line, sizeof(line), f) && strcmp(line, other) == 0 && fclose(f) == 0);
    CHECK(unlink(part) == 0 && mkfifo(part, 0600) == 0);
    CHECK(FCCCTL("trace", "--from", path, "--svg", svg) == 0);
    CHECK(lstat(svg, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0);
    CHECK(unlink(svg) == 0 && unlink(part) == 0 && unlink(path) == 0 && unlink(victim) == 0);
    CHECK(FCCCTL("trace", "--from", "/nonexistent", "--svg", svg) != 0 && access(svg, F_OK) != 0);
}

/* Answers whatever it is asked with a GPU of NVIDIA's. */
static void gpus_play(int listener)
{
    static const char json[] = "{\"devices\":[{\"device\":0,\"kind\":\"cuda\"}]}";
    static _Alignas(16) unsigned char in[FCC_MSG_MAX];
    const struct fcc_msg *m = (const struct fcc_msg *)in;
    int fds[FCC_MAX_FDS], nfds, sock;

    while ((sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        while (msg_recv(sock, in, sizeof(in), 0, fds, &nfds) > 0) {
            struct fcc_welcome welcome = {.version = FCC_PROTO_VERSION,
                                          .reply.msg = {.type = m->type | FCC_REPLY, .id = m->id}};
            bool hello = m->type == FCC_MSG_HELLO;
            int fd = hello ? -1 : file_make(json, sizeof(json) - 1, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
            welcome.reply.fds = !hello;
            (void)msg_send(sock, &welcome.reply.msg, hello ? sizeof(welcome) : sizeof(welcome.reply), &fd, !hello);
            if (fd >= 0)
                (void)close(fd);
        }
        (void)close(sock);
    }
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    CHECK(strlen(path) < sizeof(a.sun_path));
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(listener, 4) == 0);
    return listener;
}

/* Anybody may have made the directory of an MPS server, and what lies in it: doctor waits for nothing there. */
static void mps_directory(void)
{
    char sock[100], control[100], pid_file[200];

    (void)snprintf(sock, sizeof(sock), "%s/sock", test_directory());
    (void)snprintf(control, sizeof(control), "%s/control", test_directory());
    (void)snprintf(pid_file, sizeof(pid_file), "%s/nvidia-cuda-mps-control.pid", test_directory());
    int listener = listen_at(sock), mps = listen_at(control);
    pid_t pid = fork();
    if (pid == 0) {
        gpus_play(listener);
        _exit(0);
    }
    CHECK(mkfifo(pid_file, 0600) == 0 && setenv("CUDA_MPS_PIPE_DIRECTORY", test_directory(), 1) == 0);
    (void)FCCCTL("--socket", sock, "doctor");
    CHECK(strstr(output, "an MPS control daemon of") != NULL);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    (void)close(listener);
    (void)close(mps);
    CHECK(unlink(sock) == 0 && unlink(control) == 0 && unlink(pid_file) == 0);
}

int main(void)
{
    static const struct test tests[] = {
        {"answers", answers, 0},
        {"traces", traces, 0},
        {"trace_names", trace_names, 0},
        {"mps_directory", mps_directory, 0},
    };
    return tests_run("fccctl_answers", TESTS(tests));
}
