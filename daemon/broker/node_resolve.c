/* SPDX-License-Identifier: MIT
 *
 * node_resolve.c - addresses of hosts. A name may take seconds to look up, and the library's way to do that without waiting is
 * threads, which a process that forks must not have. So a child looks it up, says what it found, and ends.
 */
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node.h"

#define RESOLVERS_MAX 16
#define FIRST_FD 3

static int lookup(const char *address, int flags, struct resolved *out)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags}, *all, *a;
    char host[FCC_NODE_MAX], port[6];
    int status = address_split(address, host, port) ? EAI_NONAME : getaddrinfo(host, port, &hints, &all);

    memset(out, 0, sizeof(*out));
    if (status) {
        text_copy(out->why, sizeof(out->why), gai_strerror(status));
        return status;
    }
    for (a = all; a && out->n < RESOLVED_MAX; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(out->all[0].address))
            continue;
        memcpy(out->all[out->n].address, a->ai_addr, a->ai_addrlen);
        out->all[out->n++].length = a->ai_addrlen;
    }
    freeaddrinfo(all);
    return 0;
}

int resolve_number(const char *address, struct resolved *out)
{
    return lookup(address, AI_NUMERICHOST, out) ? -EAGAIN : 0;
}

int resolve_name(const char *address, struct resolved *out)
{
    return lookup(address, 0, out) ? -EAGAIN : 0;
}

static void resolver_run(const char *address, int sock, pid_t parent)
{
    static struct resolved found;

    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* it may have the broker's listening socket */
    if (getppid() != parent || dup2(sock, FIRST_FD) < 0)
        _exit(EXIT_FAILURE);
    (void)close_range(FIRST_FD + 1, ~0u, 0); /* else what the broker closes stays open meanwhile; a kernel may lack the call */
    (void)lookup(address, 0, &found);
    _exit(send(FIRST_FD, &found, sizeof(found), MSG_NOSIGNAL) == sizeof(found) ? EXIT_SUCCESS : EXIT_FAILURE);
}

int resolver_start(struct nodes *ns, const char *address, struct resolver **out, int *sock)
{
    struct resolver *r = ns->nresolvers < RESOLVERS_MAX ? calloc(1, sizeof(*r)) : NULL;
    pid_t parent = getpid();
    int pair[2];

    if (!r)
        return ns->nresolvers < RESOLVERS_MAX ? -ENOMEM : -EAGAIN;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        free(r);
        return -errno;
    }
    r->pid = fork();
    if (r->pid == 0)
        resolver_run(address, pair[1], parent);
    (void)close(pair[1]);
    if (r->pid < 0) {
        int status = -errno;
        (void)close(pair[0]);
        free(r);
        return status;
    }
    LIST_INSERT_HEAD(&ns->resolvers, r, link);
    ns->nresolvers++;
    *out = r;
    *sock = pair[0];
    return 0;
}

void resolver_kill(struct resolver *r)
{
    (void)kill(r->pid, SIGKILL); /* it may have ended: it is not reaped yet, so the number is its own */
}

void resolvers_reap(struct nodes *ns)
{
    struct resolver *r, *next;

    for (r = LIST_FIRST(&ns->resolvers); r; r = next) {
        next = LIST_NEXT(r, link);
        if (waitpid(r->pid, NULL, WNOHANG) == 0)
            continue;
        struct conn *c;
        TAILQ_FOREACH(c, &ns->conns, link)
            if (c->resolver == r)
                c->resolver = NULL;
        LIST_REMOVE(r, link);
        ns->nresolvers--;
        free(r);
    }
}
