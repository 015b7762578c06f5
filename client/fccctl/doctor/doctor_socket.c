/* SPDX-License-Identifier: MIT
 *
 * doctor_socket.c - checks whether this user may open the socket, and finds a remedy if not. Users paste remedies as they are,
 * often as root. So a remedy names the actual socket and fccd, grants no more rights than necessary, and quotes names that
 * others have chosen.
 */
#include <errno.h>
#include <grp.h>
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

void shell_word(const char *text, char *out, size_t room)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:,@%=";
    size_t n = 0;

    if (*text && strspn(text, plain) == strlen(text) && strlen(text) < room) {
        (void)snprintf(out, room, "%s", text);
        return;
    }
    out[n++] = '\'';
    for (; *text && n + 6 < room; text++) {
        if (*text == '\'') {
            memcpy(out + n, "'\\''", 4);
            n += 4;
        } else {
            out[n++] = *text;
        }
    }
    out[n++] = '\'';
    out[n] = '\0';
}

void doctor_socket_option(const struct doctor *d, char *out, size_t room)
{
    const char *named = getenv("FCCD_SOCKET");
    char word[512];

    shell_word(d->socket, word, sizeof(word));
    (void)snprintf(out, room, strcmp(d->socket, named && *named ? named : SOCKET_DEFAULT) != 0 ? "--socket %s " : "", word);
}

/* The path of fccd, quoted for a shell. */
static void daemon_word(char *out, size_t room)
{
    char binary[4096];

    if (local_find_daemon(binary, sizeof(binary), NULL))
        (void)snprintf(binary, sizeof(binary), "fccd");
    shell_word(binary, out, room);
}

static void own_daemon(char *out, size_t room)
{
    char binary[512];

    daemon_word(binary, sizeof(binary));
    (void)snprintf(out, room, "%s --background --socket /tmp/fccd-%u.sock; export FCCD_SOCKET=/tmp/fccd-%u.sock", binary,
                   (unsigned)getuid(), (unsigned)getuid());
}

void doctor_own_daemon(char *out, size_t room)
{
    char own[1024];

    own_daemon(own, sizeof(own));
    (void)snprintf(out, room, "start one for yourself: '%s'", own);
}

void doctor_start_remedy(const struct doctor *d, char *out, size_t room)
{
    char own[1024], binary[512], path[512], folder[512];

    own_daemon(own, sizeof(own));
    (void)snprintf(folder, sizeof(folder), "%s", d->socket);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    if (!strcmp(d->socket, SOCKET_DEFAULT))
        (void)snprintf(out, room, "start the daemon: 'systemctl start fccd.socket'%s, or one for yourself: '%s'",
                       geteuid() ? " as root" : "", own);
    else if (!slash || access(folder, W_OK | X_OK) != 0)
        (void)snprintf(out, room,
                       "name fccd's socket with --socket or $FCCD_SOCKET (by default it is " SOCKET_DEFAULT
                       ", which 'systemctl start fccd.socket' makes), or start one for yourself: '%s'",
                       own);
    else {
        daemon_word(binary, sizeof(binary));
        shell_word(d->socket, path, sizeof(path));
        (void)snprintf(out, room, "start the daemon: '%s --background --socket %s'", binary, path);
    }
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
static void access_remedy(const struct stat *st, const struct group *group, char *remedy, size_t room)
{
    const struct passwd *user = getpwuid(getuid());
    char name[128], own[1024];

    (void)snprintf(name, sizeof(name), "%s", user ? user->pw_name : "USER");
    own_daemon(own, sizeof(own));
    if (st->st_uid != 0) {
        (void)snprintf(remedy, room, "it is uid %u's, whose fccd serves nobody else; start one for yourself: '%s'",
                       (unsigned)st->st_uid, own);
    } else if ((st->st_mode & (S_IRGRP | S_IWGRP)) != (S_IRGRP | S_IWGRP))
        (void)snprintf(
            remedy, room,
            "as root: restart fccd, which makes it 0660 (with systemd 'systemctl restart fccd.socket', SocketMode=0660)");
    else if (st->st_gid == 0)
        (void)snprintf(
            remedy, room,
            "as root: 'groupadd -r fcc', SOCKET_GROUP=fcc in fccd.conf (SocketGroup=fcc in fccd.socket), restart fccd, "
            "'usermod -aG fcc %s', then log in again",
            name);
    else if (group && is_member(st->st_gid))
        (void)snprintf(remedy, room, "log in again: %s is in the group %s, and the processes of this login are not", name,
                       group->gr_name);
    else if (group)
        (void)snprintf(remedy, room,
                       "as root: 'usermod -aG %s %s', then log in again; SOCKET_GROUP in fccd.conf says which group",
                       group->gr_name, name);
    else
        (void)snprintf(remedy, room, "as root: set SOCKET_GROUP in fccd.conf to a group that %s is in, and restart fccd", name);
}

bool doctor_socket(struct doctor *d)
{
    struct stat st;
    const struct group *group;
    char remedy[2048];

    if (stat(d->socket, &st) != 0) {
        int why = errno;
        if (why == EACCES)
            (void)snprintf(
                remedy, sizeof(remedy),
                "a folder above it is closed to you: name another fccd's socket with --socket or $FCCD_SOCKET, or have "
                "this one listen elsewhere (SOCKET in fccd.conf)");
        else
            doctor_start_remedy(d, remedy, sizeof(remedy));
        finding_add(d, FINDING_BAD, "socket", remedy, "%s: %s", d->socket, strerror(why));
        return false;
    }
    if (!S_ISSOCK(st.st_mode)) {
        finding_add(d, FINDING_BAD, "socket", "name fccd's socket with --socket or $FCCD_SOCKET", "%s: is not a socket",
                    d->socket);
        return false;
    }
    group = getgrgid(st.st_gid);
    if (access(d->socket, R_OK | W_OK) != 0) {
        access_remedy(&st, group, remedy, sizeof(remedy));
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
