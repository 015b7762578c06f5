/* SPDX-License-Identifier: MIT */
#include "tests/bed/slurm.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

#define KEY_BYTES 128
#define PORTS 4 /* slurmctld's, slurmd's that is not used, the nodes' */

/* Ends with the test, however that ends. Its output goes to NAME.log. */
static pid_t start(const struct slurm *s, const char *name, char *const argv[])
{
    char path[160];
    pid_t parent = getpid(), pid;

    (void)snprintf(path, sizeof(path), "%s/%s.log", s->directory, name);
    pid = fork();
    CHECK(pid >= 0);
    if (pid)
        return pid;
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(126);
    (void)execvp(argv[0], argv);
    _exit(127);
}

static void end(pid_t *pid)
{
    if (*pid > 0) {
        CHECK(kill(*pid, SIGTERM) == 0);
        CHECK(waitpid(*pid, NULL, 0) == *pid);
    }
    *pid = 0;
}

void slurm_stop(struct slurm *s)
{
    end(&s->slurmd[0]);
    end(&s->slurmd[1]);
    end(&s->slurmctld);
    end(&s->munged);
}

/* The last line of a log. */
static void last_line(const struct slurm *s, const char *name, char *line, size_t room)
{
    char path[160], text[512];

    (void)snprintf(path, sizeof(path), "%s/%s.log", s->directory, name);
    (void)snprintf(line, room, "it says nothing");
    FILE *f = fopen(path, "re");
    while (f && fgets(text, sizeof(text), f))
        if (strlen(text) > 1)
            (void)snprintf(line, room, "%.*s", (int)strcspn(text, "\n"), text);
    if (f)
        (void)fclose(f);
}

static void give_up(struct slurm *s, const char *name)
{
    char line[256], reason[512];

    last_line(s, name, line, sizeof(line));
    (void)snprintf(reason, sizeof(reason), "skipped: Slurm cannot be started here: %s: %s", name, line);
    slurm_stop(s);
    test_skip(reason);
}

/* A process that was started has ended: it could not serve. */
static void must_run(struct slurm *s, pid_t *pid, const char *name)
{
    if (waitpid(*pid, NULL, WNOHANG) == 0)
        return;
    *pid = 0;
    give_up(s, name);
}

static void munge_start(struct slurm *s)
{
    char key[128], bytes[KEY_BYTES], options[5][160];
    char *const argv[] = {"munged", "--foreground", options[0], options[1], options[2], options[3], options[4], NULL};
    static const char *const names[] = {"key-file", "socket", "pid-file", "log-file", "seed-file"};

    for (int i = 0; i < 5; i++)
        (void)snprintf(options[i], sizeof(options[i]), "--%s=%s/munge.%s", names[i], s->directory, names[i]);
    (void)snprintf(key, sizeof(key), "%s/munge.key-file", s->directory);
    CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
    int fd = open(key, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
    CHECK(fd >= 0 && write(fd, bytes, sizeof(bytes)) == sizeof(bytes) && close(fd) == 0);
    s->munged = start(s, "munged", argv);
    for (double until = await_end(); access(strchr(options[1], '/'), F_OK); (void)usleep(10000)) {
        must_run(s, &s->munged, "munged");
        if (now_ms() > until)
            give_up(s, "munged");
    }
}

static void configuration_write(const struct slurm *s)
{
    char path[128];
    int ports[PORTS];

    for (int i = 0; i < PORTS; i++)
        ports[i] = port_choose();
    (void)snprintf(path, sizeof(path), "%s/slurm.conf", s->directory);
    FILE *f = fopen(path, "we");
    CHECK(f != NULL);
    (void)fprintf(f,
                  "ClusterName=test\nSlurmctldHost=localhost\nSlurmUser=root\nSlurmdUser=root\n"
                  "SlurmctldPort=%d\nSlurmdPort=%d\nAuthType=auth/munge\nAuthInfo=socket=%s/munge.socket\nCredType=cred/munge\n"
                  "ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n"
                  "JobAcctGatherType=jobacct_gather/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n"
                  "ReturnToService=2\nMailProg=/bin/true\n",
                  ports[0], ports[1], s->directory);
    (void)fprintf(f,
                  "StateSaveLocation=%1$s/state\nSlurmdSpoolDir=%1$s/spool.%%n\nSlurmctldPidFile=%1$s/slurmctld.pid\n"
                  "SlurmdPidFile=%1$s/slurmd.%%n.pid\n",
                  s->directory);
    for (int i = 0; i < 2; i++) /* more CPUs than there are: what is tested is not how fast it is */
        (void)fprintf(f, "NodeName=a%d NodeHostname=localhost NodeAddr=127.0.0.1 Port=%d CPUs=4 State=UNKNOWN\n", i + 1,
                      ports[2 + i]);
    (void)fprintf(f, "SlurmdParameters=config_overrides\nPartitionName=p Nodes=a1,a2 Default=YES MaxTime=INFINITE State=UP "
                     "OverSubscribe=FORCE:8\n");
    CHECK(fclose(f) == 0);
    (void)setenv("SLURM_CONF", path, 1);
}

static void nodes_await(struct slurm *s)
{
    static const char *const names[] = {"slurmd.a1", "slurmd.a2"};
    char text[4096];

    for (double until = await_end();; (void)usleep(50000)) {
        int status = program_run(text, sizeof(text), "sinfo", (const char *const[]){"-h", "-N", "-o", "%N %T", NULL});
        if (!status && strstr(text, "a1 idle\n") && strstr(text, "a2 idle\n"))
            return;
        must_run(s, &s->slurmctld, "slurmctld");
        for (int i = 0; i < 2; i++)
            must_run(s, &s->slurmd[i], names[i]);
        if (now_ms() > until)
            give_up(s, "slurmctld");
    }
}

void slurm_start(struct slurm *s)
{
    static const char *const programs[] = {"munged", "slurmctld", "slurmd", "srun", "sinfo"};
    char path[128];

    *s = (struct slurm){.munged = 0};
    if (geteuid())
        test_skip("skipped: needs root, to be Slurm's user");
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (!program_found(programs[i]))
            test_skip("skipped: no Slurm and munge (make deps-launchers)");
    (void)snprintf(s->directory, sizeof(s->directory), "%s/.slurm", test_directory());
    CHECK(mkdir(s->directory, 0755) == 0);
    (void)snprintf(path, sizeof(path), "%s/state", s->directory);
    CHECK(mkdir(path, 0755) == 0);
    munge_start(s);
    configuration_write(s);
    s->slurmctld = start(s, "slurmctld", (char *const[]){"slurmctld", "-D", NULL});
    s->slurmd[0] = start(s, "slurmd.a1", (char *const[]){"slurmd", "-D", "-N", "a1", NULL});
    s->slurmd[1] = start(s, "slurmd.a2", (char *const[]){"slurmd", "-D", "-N", "a2", NULL});
    nodes_await(s);
}
