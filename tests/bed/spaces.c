/* SPDX-License-Identifier: MIT */
#include "tests/bed/spaces.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

#define WORDS_MAX 24

/* What no network that this machine may be in uses: it is set aside for tests of networks. */
const char *spaces_host(int node)
{
    static const char *const hosts[SPACES_MAX] = {"198.18.0.1", "198.18.0.2", "198.18.0.3", "198.18.0.4"};

    return hosts[node];
}

const char *spaces_missing(enum spaces_kind kind)
{
    static char why[160];
    char text[512];
    int status;

    if (program_run(text, sizeof(text), "ip", (const char *const[]){"-Version", NULL}) != 0 ||
        program_run(text, sizeof(text), "tc", (const char *const[]){"-Version", NULL}) != 0)
        return "no ip and tc (Debian's iproute2)";
    if (kind == SPACES_WIRE && access("/dev/net/tun", R_OK | W_OK) != 0) {
        (void)snprintf(why, sizeof(why), "/dev/net/tun: %s", strerror(errno));
        return why;
    }
    pid_t pid = fork(); /* to try it without moving */
    CHECK(pid >= 0);
    if (pid == 0)
        _exit(unshare(CLONE_NEWNET) ? errno : 0);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (!WEXITSTATUS(status))
        return NULL;
    (void)snprintf(why, sizeof(why), "no network namespaces (%s): they need root", strerror(WEXITSTATUS(status)));
    return why;
}

void spaces_enter(const struct spaces *s, int node)
{
    CHECK(setns(node < 0 ? s->home : s->node[node], CLONE_NEWNET) == 0);
}

void spaces_run(const struct spaces *s, int node, const char *words)
{
    const char *argv[WORDS_MAX] = {NULL};
    char copy[512], text[2048], *rest = copy, *word;
    int n = 0;

    CHECK(snprintf(copy, sizeof(copy), "%s", words) < (int)sizeof(copy));
    while ((word = strsep(&rest, " "))) {
        CHECK(n + 1 < WORDS_MAX);
        argv[n++] = word;
    }
    spaces_enter(s, node);
    int status = program_run(text, sizeof(text), argv[0], argv + 1);
    spaces_enter(s, -1);
    if (status)
        check_failed(__FILE__, __LINE__, "%s: exit status %d: %s", words, status, text);
}

static int namespace_open(void)
{
    int fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);

    CHECK(fd >= 0);
    return fd;
}

static int namespace_new(void)
{
    CHECK(unshare(CLONE_NEWNET) == 0);
    return namespace_open();
}

/* One node's cable to the bridge. */
static void cable_make(const struct spaces *s, int i)
{
    char words[160];

    (void)snprintf(words, sizeof(words), "ip link add port%d type veth peer name net0 netns /proc/%d/fd/%d", i, getpid(),
                   s->node[i]);
    spaces_run(s, -1, words);
    (void)snprintf(words, sizeof(words), "ip link set port%d master switch up", i);
    spaces_run(s, -1, words);
}

static void wire_start(struct spaces *s)
{
    int ports[SPACES_MAX] = {0};

    s->wire = shared_memory(sizeof(*s->wire));
    for (int i = 0; i < s->n; i++) {
        spaces_enter(s, i);
        ports[i] = wire_port();
        if (ports[i] < 0)
            check_failed(__FILE__, __LINE__, "a tun device: %s", strerror(-ports[i]));
    }
    spaces_enter(s, -1);
    s->wire_pid = fork();
    CHECK(s->wire_pid >= 0);
    if (s->wire_pid == 0)
        wire_run(s->wire, ports, s->n);
    for (int i = 0; i < s->n; i++)
        (void)close(ports[i]);
}

void spaces_open(struct spaces *s, enum spaces_kind kind, int n)
{
    char words[160];

    *s = (struct spaces){.n = n, .original = namespace_open()};
    for (int i = 0; i < n; i++)
        s->node[i] = namespace_new();
    s->home = namespace_new();
    if (kind == SPACES_WIRE) {
        wire_start(s);
    } else {
        spaces_run(s, -1, "ip link add switch type bridge");
        spaces_run(s, -1, "ip link set switch up");
    }
    for (int i = 0; i < n; i++) {
        if (kind == SPACES_BRIDGE)
            cable_make(s, i);
        (void)snprintf(words, sizeof(words), "ip address add %s/24 dev net0", spaces_host(i));
        spaces_run(s, i, words);
        spaces_run(s, i, "ip link set lo up");
        spaces_run(s, i, "ip link set net0 up");
    }
}

void spaces_close(struct spaces *s)
{
    if (s->wire_pid) {
        CHECK(kill(s->wire_pid, SIGKILL) == 0);
        CHECK(waitpid(s->wire_pid, NULL, 0) == s->wire_pid);
    }
    CHECK(setns(s->original, CLONE_NEWNET) == 0);
    for (int i = 0; i < s->n; i++)
        (void)close(s->node[i]);
    (void)close(s->home);
    (void)close(s->original);
}
