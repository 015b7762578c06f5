/* SPDX-License-Identifier: MIT
 *
 * doctor_daemon.c - checks the socket, the daemon, its configuration, its jobs, and its connections to other nodes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/fccctl/bench/local.h"
#include "client/fccctl/control.h"
#include "client/fccctl/doctor/doctor.h"
#include "client/fccctl/field.h"
#include "proto/base/error.h"

/* The remedy for an error in place of an answer. */
static struct words answer_remedy(const struct doctor *d, int status)
{
    if (status == -ECONNREFUSED)
        return doctor_start_remedy(d);
    if (status == -EHOSTDOWN)
        return words(
            "'ps -C fccd -o pid,stat,args' shows it; where STAT begins with T it was stopped, and 'kill -CONT PID' lets it go "
            "on; " DOCTOR_LOG);
    return status == -EPERM ? doctor_own_daemon() : words(DOCTOR_LOG);
}

static void check_reachable(struct doctor *d)
{
    struct error e;

    if (control_ask_broker(d->socket, FCC_QUERY_STATUS, &d->status, &e)) {
        d->status = NULL;
        finding_add(d, FINDING_BAD, "daemon", answer_remedy(d, e.status).text, "%s", e.text);
        return;
    }
    if (control_ask_broker(d->socket, FCC_QUERY_DEVICES, &d->devices, &e)) {
        d->devices = NULL;
        finding_add(d, FINDING_BAD, "daemon", answer_remedy(d, e.status).text, "it does not tell its devices: %s", e.text);
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

/* Runs `fccd --check-config` and reads the first line of its output. Returns its wait status, or -1. */
static int config_run(const char *binary, char *said, size_t room)
{
    FILE *output = popen(words("timeout -s KILL 10 %s --check-config 2>&1", shell_word(binary).text).text, "re");

    said[0] = '\0';
    if (!output)
        return -1;
    if (fgets(said, (int)room, output))
        said[strcspn(said, "\n")] = '\0';
    return pclose(output);
}

/* Did the check fail only because this user may not read the configuration or the cluster's key? That is not an error. */
static bool is_for_root(const char *said)
{
    return strstr(said, strerror(EACCES)) || (strstr(said, "CLUSTER_KEY") && strstr(said, "belongs to"));
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
    else if (geteuid() != 0 && is_for_root(said))
        finding_add(d, FINDING_OK, "config", "", "root's to check, whom alone it lets read all of it: %s", said);
    else
        finding_add(d, FINDING_BAD, "config", "mend the line or the variable that it names; fccd.conf(5) lists the keys",
                    "'%s --check-config': %s", binary, *said ? said : "failed");
}

void doctor_daemon(struct doctor *d)
{
    if (doctor_socket(d))
        check_reachable(d);
    check_config(d);
}

/* What to do with a process for which a communicator waits, as the begin of a sentence; "": none is known. One that is stopped goes first. */
static struct words awaited_remedy(struct json_object *unwell)
{
    struct words found = {""};

    for (size_t i = 0; i < field_count(unwell, "awaited"); i++) {
        struct json_object *r = field_at(unwell, "awaited", i);
        int64_t pid = field_int(r, "pid", 0), rank = field_int(r, "rank", -1);
        const char *process = field_text(r, "process");
        if (strcmp(process, "stopped") == 0)
            return words("'kill -CONT %" PRId64 "' lets rank %" PRId64 " go on; ", pid, rank);
        if (*found.text || !pid)
            continue;
        if (*process)
            found =
                words("'gdb -p %" PRId64 "', or 'py-spy dump --pid %" PRId64 "' of Python, shows where rank %" PRId64 " is; ",
                      pid, pid, rank);
        else if (*field_text(r, "node"))
            found = words("look at process %" PRId64 " on %s, by 'fccctl doctor' there, too; ", pid, field_text(r, "node"));
    }
    return found;
}

/* What ends a communicator that waits, or what is left of one that has ended. */
static struct words unwell_remedy(struct doctor *d, struct json_object *u)
{
    struct words socket = doctor_socket_option(d), job = shell_word(field_text(u, "job"));
    int64_t uid = field_int(u, "uid", 0);

    if (field_bool(u, "ended")) /* commands with a job's name are at the end, where no quotes are around them */
        return words("it has ended and stays until its ranks leave it; %swhat was before: fccctl %sflight --uid %" PRId64
                     " --job %s",
                     awaited_remedy(u).text, socket.text, uid, job.text);
    return words("%slook at 'fccctl %scomms'; this ends it: fccctl %sabort --uid %" PRId64 " --job %s --comm %" PRId64,
                 awaited_remedy(u).text, socket.text, socket.text, uid, job.text, field_int(u, "comm", 0));
}

static void check_comms(struct doctor *d, struct json_object *all)
{
    size_t comms = 0, found = field_count(all, "unwell") + field_count(all, "silent");
    struct words remedy;

    for (size_t i = 0; i < field_count(all, "unwell"); i++) {
        struct json_object *u = field_at(all, "unwell", i);
        remedy = unwell_remedy(d, u);
        finding_add(d, FINDING_BAD, "comms", remedy.text, "job \"%s\", communicator %" PRId64 ": %s", field_text(u, "job"),
                    field_int(u, "comm", 0), field_text(u, "reason"));
    }
    for (size_t i = 0; i < field_count(all, "silent"); i++) {
        struct json_object *s = field_at(all, "silent", i);
        int64_t pid = field_int(s, "pid", 0);
        remedy = words("'ps -o pid,stat,args %" PRId64
                       "' shows it; where STAT begins with T it was stopped, and 'kill -CONT %" PRId64
                       "' lets it go on; 'kill -KILL %" PRId64 "' ends the job",
                       pid, pid, pid);
        finding_add(d, FINDING_BAD, "comms", remedy.text, "job \"%s\" of uid %" PRId64 ": %s", field_text(s, "job"),
                    field_int(s, "uid", -1), field_text(s, "error"));
    }
    for (size_t i = 0; i < field_count(all, "workers"); i++)
        comms += field_count(field_at(all, "workers", i), "comms");
    if (!found)
        finding_add(d, FINDING_OK, "comms", "", "%zu jobs, %zu communicators, none has waited for its ranks for %.0f s",
                    field_count(all, "workers"), comms, COMMS_STUCK_AFTER_S);
}

/* Whether a restart of fccd ends jobs. Without a service manager it does, which is no fault. */
static void check_restart(struct doctor *d)
{
    struct json_object *restart = field_object(d->status, "restart");
    int64_t jobs = field_int(restart, "jobs", 0), kept = field_int(restart, "jobs_kept", 0),
            room = field_int(restart, "room_for_jobs", 0);

    if (!restart)
        return; /* a daemon that does not say it */
    if (!field_bool(restart, "keeps_jobs"))
        finding_add(
            d, field_bool(restart, "service_manager") ? FINDING_WARN : FINDING_OK, "restart",
            field_bool(restart, "service_manager")
                ? "FileDescriptorStoreMax= and Environment=FDSTORE= in the unit, as fccd.service has them (systemctl edit "
                  "fccd)"
                : "",
            "a restart of fccd ends its jobs: %s", field_text(restart, "why_not"));
    else if (kept < jobs)
        finding_add(
            d, FINDING_WARN, "restart",
            "raise FileDescriptorStoreMax= and FDSTORE, four for each job (systemctl edit fccd); 'fccctl status' has the "
            "jobs",
            "a restart of fccd ends %" PRId64 " of %" PRId64 " jobs: the service manager keeps the descriptors of %" PRId64,
            jobs - kept, jobs, room);
    else
        finding_add(d, FINDING_OK, "restart", "",
                    "a restart of fccd ends no job: the service manager keeps the descriptors of %" PRId64 " jobs; %" PRId64
                    " workers were taken over from an earlier fccd",
                    room, field_int(restart, "adopted", 0));
}

void doctor_jobs(struct doctor *d)
{
    struct json_object *all;
    struct error e;
    int64_t died;

    if (!d->status)
        return;
    check_restart(d);
    died = field_int(d->status, "workers_died", 0);
    if (died > 0)
        finding_add(d, FINDING_WARN, "workers",
                    "fccd's log ('journalctl -u fccd', or its LOG_FILE) tells which job, and how its worker ended",
                    "%" PRId64 " of %" PRId64 " workers died", died, field_int(d->status, "workers_started", 0));
    else
        finding_add(d, FINDING_OK, "workers", "", "%" PRId64 " started, none died", field_int(d->status, "workers_started", 0));
    if (comms_collect(d->socket, -1, NULL, COMMS_STUCK_AFTER_S, &all, &e)) {
        finding_add(d, FINDING_BAD, "comms", DOCTOR_LOG, "%s", e.text);
        return;
    }
    check_comms(d, all);
    (void)json_object_put(all);
}

/* ---- other nodes ---- */

#define COMING_S 10 /* nodes that are started at the same time connect sooner than this */

/* The remedy for a node in that state. */
static const char *node_remedy(const char *state)
{
    if (!strcmp(state, "refused"))
        return "both nodes need the same bytes in CLUSTER_KEY, the same version of fccd, and the name by which they call each "
               "other "
               "(NODE_ADDRESS); the other's log says more";
    if (!strcmp(state, "lost"))
        return "is fccd running there, and does the network between the nodes work? 'fccctl ping NODE' tries it at once";
    return "is fccd running there, at that address? does a firewall let its port through? NODES in fccd.conf names it";
}

/* Returns true if the node is connected or is this node; otherwise adds a finding. */
static bool check_node(struct doctor *d, struct json_object *node)
{
    const char *state = field_text(node, "state"), *why = field_text(node, "why");
    double since_s = field_double(node, "since_s", -1);

    if (!strcmp(state, "connected") || !strcmp(state, "here"))
        return true;
    /* A node that was never connected may still be starting, which is not an error. */
    bool is_coming = !strcmp(state, "connecting") && since_s < COMING_S;
    finding_add(d, is_coming ? FINDING_WARN : FINDING_BAD, "nodes", node_remedy(state), "%s: %s for %s%s%s",
                field_text(node, "address"), state, format_duration(since_s).text, *why ? ": " : "", why);
    return false;
}

void doctor_nodes(struct doctor *d)
{
    struct json_object *answer;
    struct error e;
    size_t well = 0, n;

    if (!d->status)
        return;
    if (control_ask_broker(d->socket, FCC_QUERY_NODES, &answer, &e)) {
        finding_add(d, FINDING_BAD, "nodes", DOCTOR_LOG, "%s", e.text);
        return;
    }
    n = field_count(answer, "nodes");
    for (size_t i = 0; i < n; i++)
        well += check_node(d, field_at(answer, "nodes", i));
    if (!n)
        finding_add(d, FINDING_OK, "nodes", "", "this fccd speaks to no other node: NODE_LISTEN is empty");
    else if (well == n)
        finding_add(d, FINDING_OK, "nodes", "", "%zu other nodes, all connected", n - 1);
    (void)json_object_put(answer);
}
