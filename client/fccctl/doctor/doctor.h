/* SPDX-License-Identifier: MIT
 *
 * doctor.h - shared by the parts of the verb doctor: findings, and the checks that make them.
 */
#ifndef FCC_CLIENT_FCCCTL_DOCTOR_DOCTOR_H
#define FCC_CLIENT_FCCCTL_DOCTOR_DOCTOR_H

#include <grp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "client/fccctl/field.h"

struct json_object;

enum finding_level { FINDING_OK, FINDING_WARN, FINDING_BAD };

struct doctor {
    const char *socket;
    struct json_object *findings; /* [{"check", "level", "finding", "remedy"}] */
    int count[FINDING_BAD + 1];
    struct json_object *status;  /* the broker's answer to STATUS, or NULL */
    struct json_object *devices; /* the broker's answer to DEVICES, or NULL */
};

/* All findings: {"well", "findings": [...]}. */
struct json_object *doctor_collect(const char *socket);

/* Adds a finding. `remedy`: what the user can do about it, or "". */
void finding_add(struct doctor *d, enum finding_level level, const char *check, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The group's name, or its number if it has no name. `group` is the result of getgrgid(gid), and may be NULL. */
struct words group_name(const struct group *group, gid_t gid);

/* Reads a file, cut to fit, with a NUL behind it. Anybody may have made it: only what is a regular file is read, without waiting.
 * Returns the bytes, or -1. */
ssize_t file_read(const char *path, char *out, size_t room);

#define DOCTOR_LOG "look at fccd's log: 'journalctl -u fccd', or its LOG_FILE"

/* doctor_socket.c: checks the socket. Returns false if this user cannot connect to it. */
bool doctor_socket(struct doctor *d);
/* Remedies: how to start the daemon that listens at the socket, and how to start a daemon of one's own. */
struct words doctor_start_remedy(const struct doctor *d);
struct words doctor_own_daemon(void);
/* "--socket PATH " for the commands of a remedy, or "" if they find the socket without it. */
struct words doctor_socket_option(const struct doctor *d);
/* Quotes `text` as one word for a shell, if necessary: users choose their jobs' names, and root may paste them. */
struct words shell_word(const char *text);

/* doctor_daemon.c: checks the daemon, its configuration and its jobs. Sets d->status and d->devices. */
void doctor_daemon(struct doctor *d);
void doctor_jobs(struct doctor *d);
/* Checks the nodes that the daemon knows. Uses d->status. */
void doctor_nodes(struct doctor *d);
/* doctor_machine.c: checks what fccd needs of the machine. Uses d->status and d->devices if they are set. */
void doctor_machine(struct doctor *d);
/* doctor_gpus.c: checks the GPUs, their plug-ins and device files. doctor_mps.c: checks NVIDIA's Multi-Process Service. Both
 * use d->status and d->devices if they are set. */
void doctor_gpus(struct doctor *d);
void doctor_mps(struct doctor *d);

#endif
