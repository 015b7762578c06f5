/* SPDX-License-Identifier: MIT */
#include "client/fccctl/bench/local_nodes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/fd.h"

#define KEY_BYTES 64

int local_cores(int index, int n, cpu_set_t *out)
{
    cpu_set_t all;
    int cores, seen = 0;

    if (sched_getaffinity(0, sizeof(all), &all))
        return -errno;
    cores = CPU_COUNT(&all);
    CPU_ZERO(out);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &all))
            continue;
        if (cores < n || seen * n / cores == index) /* neighbours stay together */
            CPU_SET(c, out);
        seen++;
    }
    return 0;
}

static int key_make(struct local_nodes *l, char path[112], struct error *e)
{
    unsigned char key[KEY_BYTES];
    int fd, status = local_directory_make(l->directory, e);

    if (status)
        return status;
    (void)snprintf(path, 112, "%s/cluster.key", l->directory);
    if (getrandom(key, sizeof(key), 0) != (ssize_t)sizeof(key))
        return error_set(e, -EIO, "no random bytes for a key: %s", strerror(errno));
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, key, sizeof(key)) != (ssize_t)sizeof(key))
        status = error_set(e, -errno, "%s: %s", path, strerror(errno));
    fd_close(&fd);
    explicit_bzero(key, sizeof(key));
    return status;
}

/* A socket that holds a free port; its address. */
static int port_hold(char address[FCC_NODE_MAX], struct error *e)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (sock < 0 || bind(sock, (struct sockaddr *)&a, size) || getsockname(sock, (struct sockaddr *)&a, &size)) {
        int status = error_set(e, -errno, "no port on 127.0.0.1: %s", strerror(errno));
        fd_close(&sock);
        return status;
    }
    (void)snprintf(address, FCC_NODE_MAX, "127.0.0.1:%d", ntohs(a.sin_port));
    return sock;
}

/* All ports are held until the last is found, so they differ. */
static int ports_find(struct local_nodes *l, struct error *e)
{
    int held[FCC_MAX_RANKS], n = 0, status = 0;

    for (; n < l->n && !status; n += !status) {
        held[n] = port_hold(l->addresses[n], e);
        status = held[n] < 0 ? held[n] : 0;
    }
    while (n > 0)
        (void)close(held[--n]);
    return status;
}

static int node_start(struct local_options *options, const char *key, int index, struct local_nodes *l, struct error *e)
{
    cpu_set_t cores;
    int status = local_cores(index, l->n, &cores);
    struct error why = {0};

    if (status)
        return error_set(e, status, "the cores of this process: %s", strerror(-status));
    options->cores = &cores;
    options->listen = *l->addresses[index] ? l->addresses[index] : NULL;
    options->key = key;
    if (key && !options->log_level)
        options->log_level = "error"; /* at the end each would warn that the others are lost */
    status = local_daemon_start(options, &l->daemons[index], &why);
    options->cores = NULL;
    if (status && l->n > 1)
        return error_set(e, status, "node %s: %s", l->addresses[index], why.text);
    return status ? error_set(e, status, "%s", why.text) : 0;
}

int local_nodes_start(struct local_options options[], int n, struct local_nodes *out, struct error *e)
{
    char key[112];
    int status = 0;

    memset(out, 0, sizeof(*out));
    out->n = n;
    if (n > 1 && !(status = key_make(out, key, e)))
        status = ports_find(out, e);
    for (int i = 0; i < n && !status; i++)
        status = node_start(&options[i], n > 1 ? key : NULL, i, out, e);
    if (status)
        (void)local_nodes_stop(out, NULL);
    return status;
}

int local_nodes_stop(struct local_nodes *l, struct error *e)
{
    int status = 0;

    for (int i = 0; i < l->n; i++) /* all at the same time */
        local_daemon_terminate(&l->daemons[i]);
    for (int i = l->n; i-- > 0;) {
        struct error why = {0};
        int s = local_daemon_stop(&l->daemons[i], &why);
        if (s && !status)
            status = error_set(e, s, "%s%s%s", l->addresses[i], *l->addresses[i] ? ": " : "", why.text);
    }
    local_directory_remove(l->directory);
    l->n = 0;
    return status;
}
