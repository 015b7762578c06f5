/* SPDX-License-Identifier: MIT */
#include "tests/bed/program.h"

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"

enum { ARGUMENTS = 64 };

int program_run(char *text, size_t room, const char *path, const char *const arguments[])
{
    char *argv[ARGUMENTS] = {(char *)(uintptr_t)path};
    size_t n = 0;
    int ends[2], input[2], status;
    ssize_t got;

    for (int i = 0; arguments[i]; i++) {
        CHECK(i + 2 < ARGUMENTS);
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    /* Its input is none, and does not end before the program does: MPICH's mpiexec passes the end on, and dies of a SIGPIPE if the
     * ranks have just ended. */
    CHECK(pipe2(ends, O_CLOEXEC) == 0 && pipe2(input, O_CLOEXEC) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (dup2(input[0], 0) < 0 || dup2(ends[1], 1) < 0 || dup2(ends[1], 2) < 0)
            _exit(126);
        (void)execvp(path, argv);
        _exit(127);
    }
    (void)close(ends[1]);
    (void)close(input[0]);
    while ((got = read(ends[0], text + n, room - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    (void)close(ends[0]);
    CHECK(waitpid(pid, &status, 0) == pid);
    (void)close(input[1]);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool program_found(const char *name)
{
    char paths[4096], *rest = paths, file[4200];
    const char *path = getenv("PATH");

    (void)snprintf(paths, sizeof(paths), "%s", path ? path : "");
    for (const char *place; (place = strsep(&rest, ":"));) {
        (void)snprintf(file, sizeof(file), "%s/%s", *place ? place : ".", name);
        if (access(file, X_OK) == 0)
            return true;
    }
    return false;
}

const char *fccctl_binary(void)
{
    const char *path = getenv("FCCCTL_BINARY");
    return path ? path : "build/bin/fccctl";
}
