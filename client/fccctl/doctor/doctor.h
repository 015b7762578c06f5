/* SPDX-License-Identifier: MIT
 *
 * doctor.h - what the parts of the verb doctor share: findings, and the checks that make them.
 */
#ifndef FCC_CLIENT_FCCCTL_DOCTOR_DOCTOR_H
#define FCC_CLIENT_FCCCTL_DOCTOR_DOCTOR_H

#include <grp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_object;

enum finding_level { FINDING_OK, FINDING_WARN, FINDING_BAD };

struct doctor {
    const char *socket;
    struct json_object *findings; /* [{"check", "level", "finding", "remedy"}] */
    int count[FINDING_BAD + 1];
    struct json_object *status; /* what the broker answered, or NULL */
    struct json_object *devices;
};

/* Add a finding. `remedy`: what to do about it, or "". */
void finding_add(struct doctor *d, enum finding_level level, const char *check, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The group's name, or its number where it has none: struct group, of getgrgid(gid), may be NULL. */
struct group_name {
    char text[64];
};
struct group_name group_name(const struct group *group, gid_t gid);

#define DOCTOR_LOG "look at fccd's log: 'journalctl -u fccd', or its LOG_FILE"

/* doctor_socket.c: the socket. False: there is none that this user can connect to. */
bool doctor_socket(struct doctor *d);
/* How to start a daemon that listens there, or one that this user can start. */
void doctor_start_remedy(const struct doctor *d, char *out, size_t room);
void doctor_own_daemon(char *out, size_t room);
/* "--socket PATH " for the commands of a remedy, or "" where they find it without. */
void doctor_socket_option(const struct doctor *d, char *out, size_t room);
/* `text` as one word of a shell, quoted where it has to be: users choose their jobs' names, and root pastes them. */
void shell_word(const char *text, char *out, size_t room);

/* doctor_daemon.c: the daemon, its configuration and its jobs. Sets d->status and d->devices. */
void doctor_daemon(struct doctor *d);
void doctor_jobs(struct doctor *d);
/* doctor_nodes.c: the nodes that the daemon knows. Uses d->status. */
void doctor_nodes(struct doctor *d);
/* doctor_machine.c: what fccd needs of the machine. Uses d->status and d->devices if they are there. */
void doctor_machine(struct doctor *d);
/* doctor_gpus.c: the GPUs, their plug-ins and device files; doctor_mps.c: NVIDIA's Multi-Process Service. The same. */
void doctor_gpus(struct doctor *d);
void doctor_mps(struct doctor *d);

#endif
