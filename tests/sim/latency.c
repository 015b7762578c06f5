/* SPDX-License-Identifier: MIT
 *
 * latency.c - latency SECONDS: two network devices, wire0 and wire1, as the ends of a cable that is so long.
 *
 * What comes in at one goes out at the other, SECONDS later and in order, until this process is ended, or its parent. It runs in the network namespace that
 * has them, and of which nothing else is there (tests/sim/measure). A packet comes with the kernel's notes on it (virtio_net_hdr), and goes on with them: so a large one
 * stays one, and its checksum is left for whoever needs it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "proto/base/clock.h"

#define PLACES 4096u      /* packets on their way in one direction; more wait in the socket */
#define PACKET_MOST 66000 /* bytes, with the kernel's notes */
#define SOCKET_BYTES (64 << 20)

struct packet {
    uint64_t due_ns;
    uint32_t bytes;
    unsigned char data[PACKET_MOST];
};

struct direction {
    int in, out;
    uint32_t first, n;
    struct packet *packets; /* [PLACES], a ring in the order in which they have come, and so in that in which they leave */
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "latency: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int device_open(const char *name)
{
    const struct sockaddr_ll at = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
    const int on = 1, bytes = SOCKET_BYTES;
    int sock = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (!at.sll_ifindex || sock < 0 || setsockopt(sock, SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) ||
        setsockopt(sock, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof(on)) ||
        setsockopt(sock, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof(bytes)) ||
        bind(sock, (const struct sockaddr *)&at, sizeof(at)))
        fail(name);
    return sock;
}

static void take(struct direction *d, uint64_t latency_ns)
{
    while (d->n < PLACES) {
        struct packet *p = &d->packets[(d->first + d->n) % PLACES];
        const ssize_t n = recv(d->in, p->data, sizeof(p->data), 0);
        if (n < 0)
            return; /* nothing is there; a device that has gone shows when it is written to */
        p->bytes = (uint32_t)n;
        p->due_ns = clock_ns() + latency_ns;
        d->n++;
    }
}

/* Lets go what is due. Returns when the next one is. */
static uint64_t let_go(struct direction *d)
{
    while (d->n && d->packets[d->first].due_ns <= clock_ns()) {
        const struct packet *p = &d->packets[d->first];
        if (send(d->out, p->data, p->bytes, 0) < 0 && errno != ENOBUFS && errno != EAGAIN) /* as a cable loses a packet */
            fail("send");
        d->first = (d->first + 1) % PLACES;
        d->n--;
    }
    return d->n ? d->packets[d->first].due_ns : UINT64_MAX;
}

int main(int argc, char *argv[])
{
    char *end = NULL;
    const double seconds = argc == 2 ? strtod(argv[1], &end) : -1;

    if (!(seconds >= 0 && seconds <= 1) || !end || *end) {
        (void)fprintf(stderr, "usage: latency SECONDS (0 to 1)\n");
        return 2;
    }
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || prctl(PR_SET_TIMERSLACK, 1)) /* ns */
        fail("prctl");
    const int devices[2] = {device_open("wire0"), device_open("wire1")};
    struct direction d[2];
    struct pollfd polled[2];
    for (int i = 0; i < 2; i++) {
        d[i] = (struct direction){.in = devices[i], .out = devices[!i], .packets = malloc(PLACES * sizeof(struct packet))};
        if (!d[i].packets)
            fail("memory");
        polled[i].fd = devices[i];
    }
    (void)puts("ready");
    (void)fflush(stdout);
    for (;;) {
        uint64_t next = UINT64_MAX;
        for (int i = 0; i < 2; i++) {
            take(&d[i], (uint64_t)(seconds * 1e9));
            const uint64_t due = let_go(&d[i]);
            next = due < next ? due : next;
            polled[i].events = d[i].n < PLACES ? POLLIN : 0;
        }
        const uint64_t now = clock_ns(), wait = next > now ? next - now : 0;
        const struct timespec limit = {.tv_sec = (time_t)(wait / 1000000000), .tv_nsec = (long)(wait % 1000000000)};
        if (ppoll(polled, 2, next == UINT64_MAX ? NULL : &limit, NULL) < 0 && errno != EINTR)
            fail("ppoll");
    }
}
