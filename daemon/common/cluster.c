/* SPDX-License-Identifier: MIT */
#include "daemon/common/cluster.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/common/text_file.h"

#define NODES_LINE_MAX 510 /* bytes of a line in the file NODES: an address and a comment */

/* ---- addresses ---- */

static bool host_is_well(const char *host, size_t n, bool ipv6)
{
    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)host[i];
        if (ipv6 ? !isxdigit(c) && !strchr(":.%", c) && !isalnum(c) : !isalnum(c) && !strchr(".-_", c))
            return false;
    }
    return true;
}

int address_split(const char *address, char host[FCC_NODE_MAX], char port[6])
{
    const char *colon = strrchr(address, ':'), *begin = address, *end = colon;
    bool ipv6 = address[0] == '[';

    if (!colon || strlen(address) >= FCC_NODE_MAX)
        return -EINVAL;
    if (ipv6) {
        if (colon - address < 2 || colon[-1] != ']')
            return -EINVAL;
        begin++;
        end--;
    }
    if (!host_is_well(begin, (size_t)(end - begin), ipv6))
        return -EINVAL;
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || digits > 5 || colon[1 + digits] || colon[1] == '0' || strtoul(colon + 1, NULL, 10) > 65535)
        return -EINVAL;
    if (host)
        (void)snprintf(host, FCC_NODE_MAX, "%.*s", (int)(end - begin), begin);
    if (port)
        (void)snprintf(port, 6, "%s", colon + 1);
    return 0;
}

/* Is it a wildcard address such as 0.0.0.0:port, at which one can listen but to which nobody can connect? */
static bool address_is_any(const char *address)
{
    char host[FCC_NODE_MAX];

    if (address_split(address, host, NULL))
        return false;
    return !strcmp(host, "0") || !strcmp(host, "0.0.0.0") || (address[0] == '[' && strspn(host, "0:") == strlen(host));
}

/* ---- NODES ---- */

struct list {
    const char *own;     /* this node's address */
    node_address *nodes; /* room for NODES_MAX */
    size_t n;
};

/* Appends one entry of NODES to the list unless it is this node or in the list. */
static int node_take(struct list *list, const char *entry, const char *where, struct error *e)
{
    if (address_split(entry, NULL, NULL))
        return error_set(e, -EINVAL, "NODES: %s: \"%.80s\": allowed is " ADDRESS_ALLOWED, where, entry);
    if (!strcmp(entry, list->own))
        return 0;
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->nodes[i], entry))
            return 0;
    if (list->n == NODES_MAX)
        return error_set(e, -EINVAL, "NODES: %s: allowed are at most %d nodes", where, NODES_MAX);
    text_copy(list->nodes[list->n++], sizeof(node_address), entry);
    return 0;
}

static int line_take(void *list, char *line, const char *where, struct error *e)
{
    line[strcspn(line, "#")] = '\0';
    const char *entry = text_trim(line);
    return *entry ? node_take(list, entry, where, e) : 0;
}

static int text_take(struct list *list, const struct config *c, struct error *e)
{
    char text[sizeof(c->nodes)], *rest = text, where[32];
    int status = 0;

    memcpy(text, c->nodes, sizeof(text));
    for (int number = 1; !status && rest && *c->nodes; number++) {
        (void)snprintf(where, sizeof(where), "entry %d", number);
        status = node_take(list, text_trim(strsep(&rest, ",")), where, e);
    }
    return status;
}

int cluster_nodes_read(const struct config *config, node_address **out, size_t *n, struct error *e)
{
    struct list list = {.own = config->node_address, .nodes = calloc(NODES_MAX, sizeof(node_address))};

    if (!list.nodes)
        return error_set(e, -ENOMEM, "NODES: out of memory");
    const struct text_file file = {
        .path = config->nodes, .key = "NODES", .longest = NODES_LINE_MAX, .regular = true, .take = line_take, .arg = &list};
    int status = config->nodes[0] == '/' ? text_file_read(&file, e) : text_take(&list, config, e);

    if (status || !list.n) {
        free(list.nodes);
        list.nodes = NULL;
    }
    if (status)
        return status;
    *out = list.nodes;
    *n = list.n;
    return 0;
}

/* ---- CLUSTER_KEY ---- */

#define KEY_REFUSED "CLUSTER_KEY: \"%s\": "

/* Checks and reads the opened file, so that it cannot be exchanged between check and read. */
static int key_take(int fd, const char *path, struct cluster_key *out, struct error *e)
{
    struct stat st;

    if (fstat(fd, &st))
        return error_set(e, -EINVAL, KEY_REFUSED "%m", path);
    if (!S_ISREG(st.st_mode))
        return error_set(e, -EINVAL, KEY_REFUSED "allowed is a regular file", path);
    if (st.st_uid != geteuid())
        return error_set(e, -EINVAL, KEY_REFUSED "it belongs to uid %u: it must be that of uid %u, as whom fccd runs", path,
                         st.st_uid, geteuid());
    if (st.st_mode & 07777 & ~0600u)
        return error_set(e, -EINVAL, KEY_REFUSED "its mode is %04o: allowed are 0600 and stricter", path, st.st_mode & 07777);
    if (st.st_size < CLUSTER_KEY_MIN || st.st_size > CLUSTER_KEY_MAX)
        return error_set(e, -EINVAL, KEY_REFUSED "it has %lld bytes: allowed are %d to %d", path, (long long)st.st_size,
                         CLUSTER_KEY_MIN, CLUSTER_KEY_MAX);
    ssize_t got = read(fd, out->bytes, (size_t)st.st_size);
    if (got != st.st_size)
        return error_set(e, -EINVAL, KEY_REFUSED "%s", path, got < 0 ? strerror(errno) : "it became shorter while it was read");
    out->length = (size_t)got;
    return 0;
}

int cluster_key_read(const struct config *config, struct cluster_key *out, struct error *e)
{
    const char *path = config->cluster_key;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* O_NONBLOCK: opening a FIFO must not block */

    if (fd < 0)
        return error_set(e, -EINVAL, KEY_REFUSED "%m", path);
    int status = key_take(fd, path, out, e);
    (void)close(fd);
    return status;
}

/* ---- all together ---- */

int cluster_check(struct config *c, struct error *e)
{
    struct cluster_key key;
    node_address *nodes = NULL;
    size_t n;
    int status = 0;

    if (!*c->node_listen) {
        if (*c->node_address || *c->nodes)
            return error_set(e, -EINVAL, "NODE_LISTEN is empty, so this node speaks to no other: %s must be empty too",
                             *c->nodes ? "NODES" : "NODE_ADDRESS");
    } else if (!*c->cluster_key) {
        return error_set(e, -EINVAL, "CLUSTER_KEY is empty: with NODE_LISTEN=%s allowed is the path of the cluster's key",
                         c->node_listen);
    }
    if (!*c->node_address)
        memcpy(c->node_address, c->node_listen, sizeof(c->node_address));
    if (address_is_any(c->node_address))
        return error_set(e, -EINVAL, "NODE_ADDRESS: \"%s\": others cannot connect to that: allowed is this node's own address",
                         c->node_address);
    if (*c->cluster_key)
        status = cluster_key_read(c, &key, e);
    explicit_bzero(&key, sizeof(key));
    if (status || (status = cluster_nodes_read(c, &nodes, &n, e)))
        return status;
    free(nodes);
    return 0;
}
