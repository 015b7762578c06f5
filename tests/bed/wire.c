/* SPDX-License-Identifier: MIT */
#include "tests/bed/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define PACKET_MAX 2048
#define QUEUE_MAX 8192 /* packets under way to a port: more are dropped, as by any network */
#define BATCH 64       /* of one port, before the others are looked at */

struct packet {
    uint64_t due_ns;
    unsigned length;
    unsigned char bytes[PACKET_MAX];
};

/* On their way to a port: all wait equally long, so the first one is due first. */
struct queue {
    uint64_t first, next; /* the n-th at [n % QUEUE_MAX] */
    struct packet packets[QUEUE_MAX];
};

int wire_port(void)
{
    struct ifreq request = {.ifr_name = "net0"};
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK), status;

    if (fd < 0)
        return -errno;
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    if (!ioctl(fd, TUNSETIFF, &request))
        return fd;
    status = -errno;
    (void)close(fd);
    return status;
}

static uint64_t now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The same numbers in every run. */
static bool chance(uint32_t ppm)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 32) % 1000000 < ppm;
}

/* The port that an IPv4 packet is for; -1: none. */
static int destination(const unsigned char *bytes, unsigned length, int n)
{
    int port = length >= 20 && bytes[0] >> 4 == 4 ? bytes[19] - 1 : -1;

    return port < n ? port : -1;
}

/* A device that is down takes nothing: the packet is gone, as on any cable that ends nowhere. */
static void deliver(int fd, const struct packet *p)
{
    ssize_t n = write(fd, p->bytes, p->length);
    (void)n;
}

static void take(struct wire *w, struct queue *queues, const int ports[], int n, int from)
{
    struct packet p;

    for (int i = 0; i < BATCH; i++) {
        ssize_t length = read(ports[from], p.bytes, sizeof(p.bytes));
        if (length <= 0)
            return;
        int to = destination(p.bytes, (unsigned)length, n);
        if (to < 0)
            continue;
        struct queue *q = &queues[to];
        p.length = (unsigned)length;
        p.due_ns = now() + (uint64_t)w->delay_us * 1000;
        w->packets++;
        w->bytes += (uint64_t)length;
        if (chance(w->lost_ppm) || q->next - q->first == QUEUE_MAX) {
            w->lost++;
        } else if (chance(w->overtake_ppm) || (!w->delay_us && q->next == q->first)) {
            w->overtook += q->next != q->first;
            deliver(ports[to], &p);
        } else {
            q->packets[q->next++ % QUEUE_MAX] = p;
        }
    }
}

/* Give away what is due. When the next one is, at most a second from now. */
static uint64_t give(struct queue *q, int fd, uint64_t until)
{
    for (; q->first != q->next; q->first++) {
        const struct packet *p = &q->packets[q->first % QUEUE_MAX];
        if (p->due_ns > now())
            return p->due_ns < until ? p->due_ns : until;
        deliver(fd, p);
    }
    return until;
}

void wire_run(struct wire *w, const int ports[], int n)
{
    struct queue *queues = calloc((size_t)n, sizeof(*queues));
    struct pollfd polled[WIRE_PORTS];

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!queues || n > WIRE_PORTS)
        _exit(1);
    for (int i = 0; i < n; i++)
        polled[i] = (struct pollfd){.fd = ports[i], .events = POLLIN};
    for (;;) {
        uint64_t begin = now(), until = begin + 1000000000;
        for (int i = 0; i < n; i++)
            until = give(&queues[i], ports[i], until);
        uint64_t wait = until > begin ? until - begin : 0;
        const struct timespec t = {.tv_sec = (time_t)(wait / 1000000000), .tv_nsec = (long)(wait % 1000000000)};
        if (ppoll(polled, (nfds_t)n, &t, NULL) < 0 && errno != EINTR)
            _exit(1);
        for (int i = 0; i < n; i++) {
            if (polled[i].revents)
                take(w, queues, ports, n, i);
        }
    }
}
