/* SPDX-License-Identifier: MIT
 *
 * node_resolve.c - resolves addresses of hosts. Resolving a name may take seconds, so a child process does it.
 */
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/nodes/node.h"

#define RESOLVERS_MAX 16

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

static void resolver_run(int out, const void *address)
{
    static struct resolved found;

    (void)lookup(address, 0, &found);
    if (write(out, &found, sizeof(found)) != sizeof(found)) /* at most PIPE_BUF bytes, so written whole */
        _exit(EXIT_FAILURE);
}
static_assert(sizeof(struct resolved) <= PIPE_BUF, "a pipe takes it at once");

int resolver_start(struct nodes *ns, const char *address, struct child **holder, int *in)
{
    if (ns->nresolvers >= RESOLVERS_MAX)
        return -EAGAIN;
    return child_start(ns->broker, resolver_run, address, holder, &ns->nresolvers, in);
}
