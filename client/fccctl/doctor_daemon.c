/* SPDX-License-Identifier: MIT
 *
 * doctor_daemon.c - the socket, the daemon behind it, its configuration and its jobs.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "comms.h"
#include "control.h"
#include "devices.h"
#include "doctor.h"
#include "field.h"
#include "local.h"
#include "workers.h"

#define CHECK_LIMIT_MS 10000

static const char *const start_remedy =
    "start the daemon: 'systemctl start fccd.socket fccd', or 'fccd --cpu-devices 2' by hand";

/* How this user comes to be allowed to open the socket. Who joins the group root may do more than that, so root's socket gets a group. */
static void access_remedy(gid_t gid, const struct group *group, char *remedy, size_t room)
{
    const struct passwd *user = getpwuid(getuid());
    const char *name = user ? user->pw_name : "USER";

    if (gid == 0)
        (void)snprintf(
            remedy, room,
            "as root: 'groupadd -r fcc', SOCKET_GROUP=fcc in fccd.conf (SocketGroup=fcc in fccd.socket), restart fccd, "
            "'usermod -aG fcc %s', then log in again",
            name);
    else if (group)
        (void)snprintf(remedy, room,
                       "as root: 'usermod -aG %s %s', then log in again; SOCKET_GROUP in fccd.conf says which group",
                       group->gr_name, name);
    else
        (void)snprintf(remedy, room, "as root: set SOCKET_GROUP in fccd.conf to a group that %s is in, and restart fccd", name);
}

/* False: there is no socket to connect to. */
static bool check_socket(struct doctor *d)
{
    struct stat st;
    const struct group *group;
    char remedy[384];

    if (stat(d->socket, &st) != 0) {
        finding_add(d, FINDING_BAD, "socket", start_remedy, "%s: %s", d->socket, strerror(errno));
        return false;
    }
    if (!S_ISSOCK(st.st_mode)) {
        finding_add(d, FINDING_BAD, "socket", "name fccd's socket with --socket or $FCCD_SOCKET", "%s: is not a socket",
                    d->socket);
        return false;
    }
    group = getgrgid(st.st_gid);
    if (access(d->socket, R_OK | W_OK) != 0) {
        access_remedy(st.st_gid, group, remedy, sizeof(remedy));
        finding_add(d, FINDING_BAD, "socket", remedy, "%s: you may not open it (group %s, mode %04o)", d->socket,
                    group_name(group, st.st_gid).text, (unsigned)st.st_mode & 07777u);
        return false;
    }
    if (st.st_mode & S_IWOTH)
        finding_add(d, FINDING_WARN, "socket", "fccd makes it 0660; was it changed by hand?",
                    "%s: every user may open it (mode %04o)", d->socket, (unsigned)st.st_mode & 07777u);
    else
        finding_add(d, FINDING_OK, "socket", "", "%s, group %s, mode %04o: you may open it", d->socket,
                    group_name(group, st.st_gid).text, (unsigned)st.st_mode & 07777u);
    return true;
}

static void check_reachable(struct doctor *d)
{
    struct error e;

    if (control_ask_broker(d->socket, FCC_QUERY_STATUS, &d->status, &e)) {
        d->status = NULL;
        finding_add(d, FINDING_BAD, "daemon", e.status == -ECONNREFUSED ? start_remedy : "look at 'journalctl -u fccd'", "%s",
                    e.text);
        return;
    }
    if (devices_ask(d->socket, &d->devices, &e)) {
        d->devices = NULL;
        finding_add(d, FINDING_BAD, "daemon", "look at 'journalctl -u fccd'", "it does not tell its devices: %s", e.text);
        return;
    }
    if (strcmp(field_text(d->status, "version"), fcc_version()) != 0)
        finding_add(d, FINDING_WARN, "daemon", "restart fccd after an upgrade, or upgrade this side",
                    "fccd %s runs, and this library is %s", field_text(d->status, "version"), fcc_version());
    else if (field_bool(d->status, "draining"))
        finding_add(d, FINDING_WARN, "daemon", "", "fccd is draining: it ends when its jobs have ended and takes no new ones");
    else
        finding_add(d, FINDING_OK, "daemon", "", "fccd %s, pid %" PRId64 ", takes connections", fcc_version(),
                    field_int(d->status, "pid", 0));
}

/* Run `fccd --check-config` and read what it says. Returns its wait status, or -1. */
static int config_run(const char *binary, char *said, size_t room)
{
    const struct timespec step = {.tv_nsec = 5000000L};
    int pipe_fds[2], wait_status = -1;
    ssize_t n;
    pid_t pid;

    said[0] = '\0';
    if (pipe2(pipe_fds, O_CLOEXEC) != 0)
        return -1;
    (void)fflush(NULL);
    pid = fork();
    if (pid == 0) {
        (void)dup2(pipe_fds[1], 1);
        (void)dup2(pipe_fds[1], 2);
        (void)execl(binary, "fccd", "--check-config", (char *)NULL);
        _exit(127);
    }
    (void)close(pipe_fds[1]);
    for (int waited = 0; pid > 0 && waitpid(pid, &wait_status, WNOHANG) == 0; waited += 5) {
        if (waited == CHECK_LIMIT_MS)
            (void)kill(pid, SIGKILL);
        (void)nanosleep(&step, NULL);
    }
    (void)fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK);
    n = read(pipe_fds[0], said, room - 1);
    said[n > 0 ? n : 0] = '\0';
    said[strcspn(said, "\n")] = '\0';
    (void)close(pipe_fds[0]);
    return pid > 0 ? wait_status : -1;
}

static void check_config(struct doctor *d)
{
    char binary[4096], said[512];
    struct error e;
    int wait_status;

    if (local_find_daemon(binary, sizeof(binary), &e)) {
        finding_add(d, FINDING_WARN, "config", "install fccd, or name it in $FCCD_BINARY", "not checked: %s", e.text);
        return;
    }
    wait_status = config_run(binary, said, sizeof(said));
    if (wait_status == 0)
        finding_add(d, FINDING_OK, "config", "", "'%s --check-config' finds no error", binary);
    else
        finding_add(d, FINDING_BAD, "config", "mend the line that it names; fccd.conf(5) lists the keys",
                    "'%s --check-config': %s", binary, *said ? said : "failed");
}

void doctor_daemon(struct doctor *d)
{
    if (check_socket(d))
        check_reachable(d);
    check_config(d);
}

static void check_comms(struct doctor *d, struct json_object *all)
{
    char text[FCC_TEXT_MAX + 256], remedy[256];
    size_t found = 0, comms = 0;

    for (size_t w = 0; w < field_count(all, "workers"); w++) {
        struct json_object *worker = field_at(all, "workers", w);
        for (size_t i = 0; i < field_count(worker, "comms"); i++, comms++) {
            struct json_object *comm = field_at(worker, "comms", i);
            if (!comm_is_unwell(comm, COMMS_STUCK_AFTER_S, text, sizeof(text)))
                continue;
            (void)snprintf(remedy, sizeof(remedy),
                           "look at 'fccctl comms'; 'fccctl abort --uid %" PRId64 " --job %s --comm %" PRId64 "' ends it",
                           field_int(worker, "uid", 0), field_text(worker, "job"), field_int(comm, "comm", 0));
            finding_add(d, FINDING_BAD, "comms", remedy, "job \"%s\", communicator %" PRId64 ": %s", field_text(worker, "job"),
                        field_int(comm, "comm", 0), text);
            found++;
        }
    }
    for (size_t i = 0; i < field_count(all, "silent"); i++, found++) {
        struct json_object *s = field_at(all, "silent", i);
        finding_add(d, FINDING_BAD, "comms", "look at 'journalctl -u fccd'", "job \"%s\" of uid %" PRId64 ": %s",
                    field_text(s, "job"), field_int(s, "uid", -1), field_text(s, "error"));
    }
    if (!found)
        finding_add(d, FINDING_OK, "comms", "", "%zu jobs, %zu communicators, none waits for its ranks",
                    field_count(all, "workers"), comms);
}

void doctor_jobs(struct doctor *d)
{
    struct json_object *all;
    struct error e;
    int64_t died;

    if (!d->status)
        return;
    died = field_int(d->status, "workers_died", 0);
    if (died > 0)
        finding_add(d, FINDING_WARN, "workers", "'journalctl -u fccd' tells which job, and how its worker ended",
                    "%" PRId64 " of %" PRId64 " workers died", died, field_int(d->status, "workers_started", 0));
    else
        finding_add(d, FINDING_OK, "workers", "", "%" PRId64 " started, none died", field_int(d->status, "workers_started", 0));
    if (workers_collect(d->socket, FCC_QUERY_COMMS, -1, NULL, &all, &e)) {
        finding_add(d, FINDING_BAD, "comms", "look at 'journalctl -u fccd'", "%s", e.text);
        return;
    }
    check_comms(d, all);
    (void)json_object_put(all);
}
