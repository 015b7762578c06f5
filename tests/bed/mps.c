/* SPDX-License-Identifier: MIT */
#include "tests/bed/mps.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

static int shell(char *text, size_t room, const char *command)
{
    return program_run(text, room, "sh", (const char *const[]){"-c", command, NULL});
}

bool mps_answers(void)
{
    char text[256];

    return !shell(text, sizeof(text), "echo get_default_active_thread_percentage | nvidia-cuda-mps-control");
}

void mps_domain_enter(const struct mps_domain *m)
{
    (void)setenv("FCCD_JOB", m->job, 1);
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", m->pipe, 1);
    (void)setenv("CUDA_MPS_LOG_DIRECTORY", m->log, 1);
}

/* Ends the MPS daemon when the test's process and all that it forked have ended, however they did: it is in none of their
 * groups. */
static void guard_run(int end)
{
    char byte;

    (void)setsid();
    (void)close_range(3, (unsigned)end - 1, 0);
    (void)close_range((unsigned)end + 1, ~0u, 0);
    while (read(end, &byte, 1) > 0) {
    }
    (void)execl("/bin/sh", "sh", "-c",
                "echo quit -t 5 | nvidia-cuda-mps-control >/dev/null 2>&1; rm -rf \"$CUDA_MPS_PIPE_DIRECTORY\"", NULL);
    _exit(127);
}

static void server_start(struct mps_domain *m)
{
    double until = now_ms() + 10e3;
    char text[1024];
    int ends[2];

    if (shell(text, sizeof(text), "command -v nvidia-cuda-mps-control"))
        test_skip("skipped: this machine has no nvidia-cuda-mps-control");
    (void)snprintf(m->pipe, sizeof(m->pipe), "/tmp/fccd-mps.XXXXXX");
    CHECK(mkdtemp(m->pipe) && mkdir(m->log, 0755) == 0);
    mps_domain_enter(m);
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t guard = fork();
    CHECK(guard >= 0);
    if (guard == 0)
        guard_run(ends[0]);
    m->guard = guard; /* set by this process alone: the memory may be shared */
    (void)close(ends[0]);
    m->guard_end = ends[1];
    CHECK(shell(text, sizeof(text), "nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1") == 0);
    while (!mps_answers()) {
        CHECK(now_ms() < until);
        (void)usleep(20000);
    }
}

void mps_domain_open(struct mps_domain *m, const char *job, bool mps)
{
    *m = (struct mps_domain){.job = job};
    (void)snprintf(m->log, sizeof(m->log), "%s/.mps-%s", test_directory(), job);
    if (mps)
        server_start(m);
    else /* where no MPS server is: then there is none for this job, even if the machine has one */
        (void)snprintf(m->pipe, sizeof(m->pipe), "%s/.none", test_directory());
}

void mps_domain_close(const struct mps_domain *m)
{
    int status;

    if (!m->guard)
        return;
    (void)close(m->guard_end);
    CHECK(waitpid(m->guard, &status, 0) == m->guard && status == 0);
}

void mps_domain_check(const struct mps_domain *m)
{
    char text[256];

    mps_domain_enter(m);
    CHECK(!m->guard || (shell(text, sizeof(text), "echo get_server_list | nvidia-cuda-mps-control") == 0 && atoi(text) > 0));
}
