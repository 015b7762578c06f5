/* SPDX-License-Identifier: MIT
 *
 * net_bench.c - links over loopback TCP beside plain sockets in the same run, and how soon a trigger is in the socket.
 *
 *     net_bench [MIB]   each transfer's size, 2048 if not given; prints, judges nothing
 *
 * A transfer goes from a thread of this process to another one, each waiting in poll() when there is nothing to do. Plain: send() and
 * recv() of pieces, between two memories of the same sizes. The median of ROUNDS, the two in turns.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/frame.h"
#include "daemon/net/proxy.h"
#include "proto/base/clock.h"
#include "tests/bench/must.h"

enum { ROUNDS = 5, MEMORY = 8 << 20, TRIGGERS = 4000, COMM = 1, PAUSE_US = 20 };

struct transfer {
    int sockets[2];
    uint64_t bytes, piece;
    struct net_area area; /* of a piece */
    unsigned char *from, *to;
    struct net_regions *regions;
    _Atomic uint32_t is_over;
};

static void sockets_open(int out[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);

    must(!bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1), "listen");
    must(!getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
    out[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(!connect(out[0], (struct sockaddr *)&address, sizeof(address)), "connect");
    out[1] = accept(listener, NULL, NULL);
    must(out[1] >= 0 && !setsockopt(out[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "accept");
    (void)close(listener);
}

static void fd_wait(int fd, short events)
{
    struct pollfd p = {.fd = fd, .events = events};
    (void)poll(&p, 1, -1);
}

/* ---- plain ---- */

static void *plain_receive(void *arg)
{
    struct transfer *t = arg;

    for (uint64_t done = 0; done < t->bytes;) {
        uint64_t at = done % MEMORY;
        ssize_t n = recv(t->sockets[1], t->to + at, MEMORY - at < t->piece ? MEMORY - at : t->piece, 0);
        must(n > 0, "recv");
        done += (uint64_t)n;
    }
    return NULL;
}

static void plain_send(struct transfer *t)
{
    for (uint64_t done = 0; done < t->bytes; done += t->piece) {
        for (uint64_t sent = 0; sent < t->piece;) {
            ssize_t n = send(t->sockets[0], t->from + done % MEMORY + sent, t->piece - sent, MSG_NOSIGNAL);
            must(n > 0, "send");
            sent += (uint64_t)n;
        }
    }
}

/* ---- a link ---- */

static const struct net_options net_options = {.beat_ms = NET_BEAT_MS, .silent_ms = 60000, .queue = NET_QUEUE};

static int transfer_raise(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    struct transfer *t = ctx;

    (void)comm;
    (void)rank;
    (void)flag;
    (void)epoch;
    atomic_store(&t->is_over, 1);
    return 0;
}

static void *link_receive(void *arg)
{
    struct transfer *t = arg;
    struct net_sink sink = {.regions = t->regions, .raise = transfer_raise, .ctx = t};
    struct net_counts counts = {0};
    struct net_receiver *r;
    struct error e;

    must(!net_tcp.receiver_open(t->sockets[1], &net_options, &sink, &counts, &r, &e), "receiver");
    while (!atomic_load(&t->is_over)) {
        int status = net_receive(r, clock_ns());
        must(status >= 0, r->error.text);
        if (!status && !atomic_load(&t->is_over))
            fd_wait(r->fd, POLLIN);
    }
    net_tcp.receiver_close(r);
    return NULL;
}

/* Returns whether something is under way. */
static int link_turn(struct net_link *l)
{
    int status = net_progress(l, clock_ns());

    must(status >= 0, l->error.text);
    if (l->is_blocked)
        fd_wait(l->fd, POLLOUT);
    return status;
}

static void link_send(struct transfer *t)
{
    struct net_counts counts = {0};
    struct net_link *l;
    struct error e;

    must(!net_tcp.link_open(t->sockets[0], &net_options, &counts, &l, &e), "link");
    for (uint64_t done = 0; done < t->bytes; done += t->piece) {
        uint64_t at = done % (MEMORY / 2); /* rows lie twice as far apart as they are long */
        struct net_place to = {COMM, 0, NET_STAGING, at, 0};
        while (net_write(l, &to, t->from + at, &t->area) == -EAGAIN)
            (void)link_turn(l);
        if (done / t->piece % 16 == 0)
            (void)link_turn(l);
    }
    while (net_flag(l, COMM, 0, 0, 1) == -EAGAIN)
        (void)link_turn(l);
    while (link_turn(l)) {
    }
    while (!atomic_load(&t->is_over))
        (void)usleep(10);
    net_tcp.link_close(l);
}

/* ---- both ---- */

/* GB/s */
static double transfer_time(struct transfer *t, int is_link)
{
    pthread_t thread;

    sockets_open(t->sockets);
    atomic_store(&t->is_over, 0);
    uint64_t begin = clock_ns();
    must(!pthread_create(&thread, NULL, is_link ? link_receive : plain_receive, t), "pthread_create");
    if (is_link)
        link_send(t);
    else
        plain_send(t);
    (void)pthread_join(thread, NULL);
    double seconds = (double)(clock_ns() - begin) / 1e9;
    if (!is_link) {
        (void)close(t->sockets[0]);
        (void)close(t->sockets[1]);
    }
    return (double)t->bytes / seconds / 1e9;
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof(*values), double_compare);
    return values[n / 2];
}

static void throughput(struct transfer *t, struct net_area area)
{
    double plain[ROUNDS], link[ROUNDS];

    t->area = area;
    t->piece = area.row_bytes * area.rows;
    for (int i = 0; i < ROUNDS; i++) {
        plain[i] = transfer_time(t, 0);
        link[i] = transfer_time(t, 1);
    }
    double p = median(plain, ROUNDS), l = median(link, ROUNDS);
    (void)printf(
        "slices of %7llu bytes, %4u rows of %7llu: link %5.2f GB/s, plain send/recv of as many bytes %5.2f GB/s, ratio %.2f\n",
        (unsigned long long)t->piece, area.rows, (unsigned long long)area.row_bytes, l, p, l / p);
}

/* ---- trigger to the socket ---- */

static uint64_t pushed_ns, first_ns;

static bool latency_resolve(void *ctx, const struct fcc_trigger *trigger, struct proxy_send *out)
{
    const struct transfer *t = ctx;

    (void)trigger;
    out->to = (struct net_place){COMM, 0, NET_STAGING, 0, 0};
    out->from = t->from;
    out->area = t->area;
    return true;
}

static void latency_done(void *ctx, uint32_t launch)
{
    (void)ctx;
    (void)launch;
}

static void latency_failed(void *ctx, uint32_t node, const struct error *e)
{
    (void)ctx;
    (void)fprintf(stderr, "node %u: %s\n", node, e->text);
    exit(1);
}

/* The socket's own part: a thread that looks at a word, then calls send(). */
static _Atomic uint64_t plain_turn;

static void *plain_trigger(void *arg)
{
    const struct transfer *t = arg;

    for (uint64_t n = 1; n <= TRIGGERS; n++) {
        while (atomic_load_explicit(&plain_turn, memory_order_acquire) != n)
            spin_pause();
        must(send(t->sockets[0], t->from, t->piece, MSG_NOSIGNAL) == (ssize_t)t->piece, "send");
    }
    return NULL;
}

static void pause_briefly(void)
{
    uint64_t until = clock_ns() + PAUSE_US * 1000ull;

    while (clock_ns() < until)
        spin_pause();
}

/* The rest of what the first byte belongs to; us since pushed_ns. */
static double first_byte(const struct transfer *t, unsigned char *buffer, size_t bytes)
{
    ssize_t n;

    do
        n = recv(t->sockets[1], buffer, bytes, MSG_DONTWAIT);
    while (n < 0);
    first_ns = clock_ns();
    size_t rest = bytes - (size_t)n;
    must(!rest || recv(t->sockets[1], buffer, rest, MSG_WAITALL) == (ssize_t)rest, "recv");
    return (double)(first_ns - pushed_ns) / 1e3;
}

static void latency_plain(struct transfer *t, uint32_t bytes)
{
    static double times[TRIGGERS];
    unsigned char *buffer = malloc(bytes);
    pthread_t thread;

    must(buffer != NULL, "malloc");
    sockets_open(t->sockets);
    t->piece = bytes;
    atomic_store(&plain_turn, 0);
    must(!pthread_create(&thread, NULL, plain_trigger, t), "pthread_create");
    for (uint64_t i = 0; i < TRIGGERS; i++) {
        pause_briefly();
        pushed_ns = clock_ns();
        atomic_store_explicit(&plain_turn, i + 1, memory_order_release);
        times[i] = first_byte(t, buffer, bytes);
    }
    (void)pthread_join(thread, NULL);
    double p50 = median(times, TRIGGERS);
    (void)printf("a word and send() of %u bytes to the first byte read: p50 %.1f us, p99 %.1f us\n", bytes, p50,
                 times[TRIGGERS * 99 / 100]);
    (void)close(t->sockets[0]);
    (void)close(t->sockets[1]);
    free(buffer);
}

/* From before the push to after the recv() that got its first byte, by a thread that looks all the time. */
static void latency(struct transfer *t, uint32_t bytes, uint32_t spin_us, const char *how)
{
    static double times[TRIGGERS];
    unsigned char *buffer = malloc(bytes + sizeof(struct net_frame));
    struct proxy_owner owner = {
        .resolve = latency_resolve, .done = latency_done, .failed = latency_failed, .raise = transfer_raise, .ctx = t};
    struct proxy_options options = {
        .net_ops = &net_tcp, .net = net_options, .regions = t->regions, .capacity = 64, .producers = 1, .spin_us = spin_us};
    struct proxy *p;
    struct error e;

    must(buffer != NULL, "malloc");
    options.net.beat_ms = 1000000; /* none in between */
    sockets_open(t->sockets);
    t->area = (struct net_area){bytes, bytes, 1};
    must(!proxy_start(&owner, &options, &p, &e) && !proxy_link_add(p, 0, 0, t->sockets[0], &e), "proxy");
    must(recv(t->sockets[1], buffer, sizeof(struct net_frame), MSG_WAITALL) == sizeof(struct net_frame), "recv"); /* a beat */
    for (int i = 0; i < TRIGGERS; i++) {
        pause_briefly();
        while (!spin_us && !atomic_load(&proxy_fifo(p)->sleeps))
            spin_pause();
        pushed_ns = clock_ns();
        (void)fifo_push(proxy_fifo(p), (struct fcc_trigger){.launch = 1, .what = FCC_TRIGGER_PUT}, NULL);
        times[i] = first_byte(t, buffer, bytes + sizeof(struct net_frame));
    }
    double p50 = median(times, TRIGGERS);
    (void)printf("trigger to the first byte read, slice of %6u bytes, proxy %s: p50 %.1f us, p99 %.1f us\n", bytes, how, p50,
                 times[TRIGGERS * 99 / 100]);
    proxy_stop(p);
    proxy_free(p);
    (void)close(t->sockets[1]);
    free(buffer);
}

int main(int argc, char **argv)
{
    uint64_t mib = argc > 1 ? strtoull(argv[1], NULL, 10) : 2048;
    struct transfer t = {.bytes = (mib << 20) / MEMORY * MEMORY, .from = malloc(MEMORY), .to = malloc(MEMORY)};
    struct error e;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    must(t.from && t.to && t.bytes, "memory");
    memset(t.from, 1, MEMORY);
    memset(t.to, 1, MEMORY);
    must(!net_regions_open(&t.regions, &e) && !net_region_add(t.regions, COMM, 0, NET_STAGING, t.to, MEMORY, &e) &&
             !net_region_add(t.regions, COMM, 0, NET_FLAGS, NULL, 1, &e),
         "regions");
    throughput(&t, (struct net_area){1 << 20, 1 << 20, 1});
    throughput(&t, (struct net_area){1 << 18, 1 << 18, 1});
    throughput(&t, (struct net_area){1 << 16, 1 << 16, 1});
    throughput(&t, (struct net_area){1 << 14, 1 << 14, 1});
    throughput(&t, (struct net_area){1 << 13, 1 << 14, 8});
    throughput(&t, (struct net_area){1 << 10, 1 << 11, 64});
    latency_plain(&t, 64 + sizeof(struct net_frame));
    latency(&t, 64, 1000000, "spinning");
    latency_plain(&t, 65536 + sizeof(struct net_frame));
    latency(&t, 65536, 1000000, "spinning");
    latency(&t, 64, 0, "asleep");
    net_regions_close(t.regions);
    free(t.from);
    free(t.to);
    return 0;
}
