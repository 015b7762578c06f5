/* SPDX-License-Identifier: MIT
 *
 * doctor_socket.c - checks whether this user may open the socket, and finds a remedy if not. Users paste remedies as they are,
 * often as root. So a remedy names the actual socket and fccd, grants no more rights than necessary, and quotes names that
 * others have chosen.
 */
#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/fccctl/bench/local.h"
#include "client/fccctl/doctor/doctor.h"

#define SOCKET_DEFAULT "/run/fccd/fccd.sock"

struct words shell_word(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,@%=";
    struct words w = {"'"};
    size_t n = 1;

    if (*text && strspn(text, plain) == strlen(text))
        return words("%s", text);
    for (; *text && n + 6 < sizeof(w.text); text++)
        n += (size_t)snprintf(w.text + n, sizeof(w.text) - n, *text == '\'' ? "'\\''" : "%c", *text);
    (void)snprintf(w.text + n, sizeof(w.text) - n, "'");
    return w;
}

struct words doctor_socket_option(const struct doctor *d)
{
    const char *named = getenv("FCCD_SOCKET");
    struct words option = {""};

    if (strcmp(d->socket, named && *named ? named : SOCKET_DEFAULT) != 0)
        words_add(&option, "--socket %s ", shell_word(d->socket).text);
    return option;
}

/* The path of fccd, quoted for a shell. */
static struct words daemon_word(void)
{
    char binary[PATH_MAX];

    return shell_word(local_find_daemon(binary, sizeof(binary), NULL) ? "fccd" : binary);
}

static struct words own_daemon(void)
{
    unsigned uid = (unsigned)getuid();

    return words("%s --background --socket /tmp/fccd-%u.sock; export FCCD_SOCKET=/tmp/fccd-%u.sock", daemon_word().text, uid,
                 uid);
}

struct words doctor_own_daemon(void)
{
    return words("start one for yourself: '%s'", own_daemon().text);
}

struct words doctor_start_remedy(const struct doctor *d)
{
    struct words folder = words("%s", d->socket);
    char *slash = strrchr(folder.text, '/');

    if (slash)
        slash[slash == folder.text] = '\0';
    if (!strcmp(d->socket, SOCKET_DEFAULT))
        return words("start the daemon: 'systemctl start fccd.socket'%s, or one for yourself: '%s'",
                     geteuid() ? " as root" : "", own_daemon().text);
    if (!slash || access(folder.text, W_OK | X_OK) != 0)
        return words("name fccd's socket with --socket or $FCCD_SOCKET (by default it is " SOCKET_DEFAULT
                     ", which 'systemctl start fccd.socket' makes), or start one for yourself: '%s'",
                     own_daemon().text);
    return words("start the daemon: '%s --background --socket %s'", daemon_word().text, shell_word(d->socket).text);
}

/* Is this user a member of the group by the group database? Processes that are older than the entry have not got the group
 * yet. */
static bool is_member(gid_t gid)
{
    const struct passwd *user = getpwuid(getuid());
    gid_t groups[1024];
    int n = sizeof(groups) / sizeof(groups[0]);

    if (!user || getgrouplist(user->pw_name, user->pw_gid, groups, &n) < 0)
        return false;
    for (int i = 0; i < n; i++)
        if (groups[i] == gid)
            return true;
    return false;
}

/* The remedy for a user who may not open the socket. If the socket's group is root, it gets another group, as members of the
 * group root could do more than use fccd. If fccd runs as another user, no group helps, as it serves that user only. */
static struct words access_remedy(const struct stat *st, const struct group *group)
{
    const struct passwd *user = getpwuid(getuid());
    const char *name = user ? user->pw_name : "USER";

    if (st->st_uid != 0)
        return words("it is uid %u's, whose fccd serves nobody else; start one for yourself: '%s'", (unsigned)st->st_uid,
                     own_daemon().text);
    if ((st->st_mode & (S_IRGRP | S_IWGRP)) != (S_IRGRP | S_IWGRP))
        return words(
            "as root: restart fccd, which makes it 0660 (with systemd 'systemctl restart fccd.socket', SocketMode=0660)");
    if (st->st_gid == 0)
        return words(
            "as root: 'groupadd -r fcc', SOCKET_GROUP=fcc in fccd.conf (SocketGroup=fcc in fccd.socket), restart fccd, "
            "'usermod -aG fcc %s', then log in again",
            name);
    if (group && is_member(st->st_gid))
        return words("log in again: %s is in the group %s, and the processes of this login are not", name, group->gr_name);
    if (group)
        return words("as root: 'usermod -aG %s %s', then log in again; SOCKET_GROUP in fccd.conf says which group",
                     group->gr_name, name);
    return words("as root: set SOCKET_GROUP in fccd.conf to a group that %s is in, and restart fccd", name);
}

bool doctor_socket(struct doctor *d)
{
    struct stat st;
    const struct group *group;

    if (stat(d->socket, &st) != 0) {
        int why = errno;
        struct words remedy = doctor_start_remedy(d);
        if (why == EACCES)
            remedy =
                words("a folder above it is closed to you: name another fccd's socket with --socket or $FCCD_SOCKET, or have "
                      "this one listen elsewhere (SOCKET in fccd.conf)");
        finding_add(d, FINDING_BAD, "socket", remedy.text, "%s: %s", d->socket, strerror(why));
        return false;
    }
    if (!S_ISSOCK(st.st_mode)) {
        finding_add(d, FINDING_BAD, "socket", "name fccd's socket with --socket or $FCCD_SOCKET", "%s: is not a socket",
                    d->socket);
        return false;
    }
    group = getgrgid(st.st_gid);
    if (access(d->socket, R_OK | W_OK) != 0) {
        finding_add(d, FINDING_BAD, "socket", access_remedy(&st, group).text, "%s: you may not open it (group %s, mode %04o)",
                    d->socket, group_name(group, st.st_gid).text, (unsigned)st.st_mode & 07777u);
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
