/* SPDX-License-Identifier: MIT
 *
 * relay_broker.c - the broker, and in place of its workers a relay: whatever the broker says on the control channel goes, with its
 * descriptors, to the job's first client, and whatever that sends goes to the broker. So a test is the worker.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/broker.h"
#include "daemon/common/gpus.h"
#include "proto/msg.h"

static int client; /* the job's first */

/* Messages from one end to the other, until one is closed. Each direction has a thread: neither waits for the other. */
static void relay(int from, int to)
{
    unsigned char *buf = malloc(FCC_MSG_MAX);
    struct fcc_msg *m = (struct fcc_msg *)(void *)buf;
    int fds[FCC_MAX_FDS], nfds = 0, status = 0;
    struct pollfd p = {.fd = from, .events = POLLIN};
    ssize_t n;

    while (buf && !status && poll(&p, 1, -1) > 0) { /* the client's socket does not block: so the broker left it */
        n = msg_recv(from, buf, FCC_MSG_MAX, 0, fds, &nfds);
        if (n <= 0 && n != -EAGAIN)
            break;
        while (n > 0 && (status = msg_send(to, m, (size_t)n, fds, nfds)) == -EAGAIN)
            (void)poll(NULL, 0, 1);
        fds_close(fds, nfds);
    }
    free(buf);
}

static void *to_client(void *nothing)
{
    relay(CONTROL_FD, client);
    return nothing; /* the broker is gone: the test goes on with what it has */
}

static int relay_run(void)
{
    static _Alignas(16) unsigned char start[FCC_MSG_MAX], session[FCC_MSG_MAX];
    const struct fcc_msg *m = (const struct fcc_msg *)(const void *)session;
    struct fcc_msg closed = {.type = CONTROL_CLOSED};
    ssize_t bytes;
    int fds[FCC_MAX_FDS], nfds;
    pthread_t thread;

    if (msg_send(CONTROL_FD, &closed, sizeof(closed), NULL, 0))
        return 2;
    ssize_t length = msg_recv(CONTROL_FD, start, sizeof(start), 0, fds, &nfds);
    if (length != sizeof(struct control_start) || nfds != 1)
        return 2;
    (void)close(fds[0]); /* the account */
    do {
        bytes = msg_recv(CONTROL_FD, session, sizeof(session), 0, fds, &nfds);
        if (bytes <= 0 || nfds != 1)
            return 0;
        if (m->type == CONTROL_LEDGER) /* this worker counts nothing */
            (void)close(fds[0]);
    } while (m->type == CONTROL_LEDGER);
    if (m->type != CONTROL_SESSION || bytes != sizeof(struct control_session))
        return 0;
    client = fds[0];
    if (msg_send(client, (struct fcc_msg *)(void *)start, (size_t)length, NULL, 0) ||
        pthread_create(&thread, NULL, to_client, NULL) || pthread_detach(thread))
        return 1;
    relay(client, CONTROL_FD);
    _exit(0); /* the client is gone */
}

int main(int argc, char *argv[])
{
    struct config config;
    enum config_action action;
    struct error e = {0};

    if (argc == 3 && !strcmp(argv[1], "--worker"))
        return relay_run();
    if (config_load(argc, argv, &config, &action, &e) || action != CONFIG_RUN) {
        (void)fprintf(stderr, "relay_broker: %s\n", e.text);
        return 2;
    }
    return broker_run(&config, argc, argv);
}
