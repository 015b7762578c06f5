/* SPDX-License-Identifier: MIT
 *
 * relay_broker.c - the broker, and in place of its workers a relay: whatever the broker says on the control channel goes, with its
 * descriptors, to the job's last client, and whatever clients send goes to the broker. So a test is the worker.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/broker.h"
#include "gpus.h"
#include "msg.h"

/* One message. False: that end is closed. */
static bool pass(int from, int to, bool *session)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds = 0, status;
    ssize_t n = msg_recv(from, buf, sizeof(buf), 0, fds, &nfds);
    struct fcc_msg *m = (struct fcc_msg *)buf;

    if (n <= 0)
        return false;
    if (session && m->type == CONTROL_SESSION && nfds == 1) {
        *session = true;
        return dup2(fds[0], to) == to && close(fds[0]) == 0;
    }
    while ((status = msg_send(to, m, (size_t)n, fds, nfds)) == -EAGAIN)
        (void)poll(NULL, 0, 1);
    fds_close(fds, nfds);
    return status == 0;
}

static int relay_run(void)
{
    static _Alignas(16) unsigned char start[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds, client = dup(CONTROL_FD); /* a number for later */
    ssize_t length = msg_recv(CONTROL_FD, start, sizeof(start), 0, fds, &nfds);
    bool session = false;

    if (length != sizeof(struct control_start))
        return 2;
    while (!session)
        if (!pass(CONTROL_FD, client, &session))
            return 0;
    if (msg_send(client, (struct fcc_msg *)start, (size_t)length, NULL, 0))
        return 1;
    for (;;) {
        struct pollfd p[] = {{.fd = CONTROL_FD, .events = POLLIN}, {.fd = client, .events = POLLIN}};
        if (poll(p, 2, -1) < 0)
            return 1;
        if (p[1].revents && !pass(client, CONTROL_FD, NULL))
            return 0;
        if (p[0].revents && !pass(CONTROL_FD, client, &session))
            p[0].fd = -1; /* the broker is gone: the test goes on with what it has */
        while (p[0].fd < 0) {
            if (poll(p + 1, 1, -1) < 0 || msg_recv(client, start, sizeof(start), 0, fds, &nfds) <= 0)
                return 0;
            fds_close(fds, nfds);
        }
    }
}

int main(int argc, char *argv[])
{
    struct config config;
    enum config_action action;
    struct error e = {0};

    if (argc == 2 && !strcmp(argv[1], "--worker"))
        return relay_run();
    if (config_load(argc, argv, &config, &action, &e) || action != CONFIG_RUN) {
        (void)fprintf(stderr, "relay_broker: %s\n", e.text);
        return 2;
    }
    return broker_run(&config);
}
