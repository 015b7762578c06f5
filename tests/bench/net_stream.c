/* SPDX-License-Identifier: MIT
 *
 * net_stream.c - a node's proxy that sends to another one's, over tcp or a plug-in's transport: bytes/s, from the first byte to the last one stored; and how long a
 * trigger takes to the wire.
 *
 *     net_stream receive HOST PORT           prints {"bytes": ..., "seconds": ..., "gbytes_per_s": ...}
 *     net_stream send HOST PORT MIB [SLICE]  slices of that many bytes [262144], each a trigger
 *     net_stream trigger HOST PORT COUNT     slices of 64 bytes, one at a time; prints {"p50_us": ..., "p99_us": ...}
 *
 * With --plugin PATH before these, an absolute path, over that plug-in (verbs.so), and "the wire" is where the device has been given the request:
 * the proxy counts it then, and this program looks all the time.
 *
 * Both ends are a proxy as a worker has it: triggers in a FIFO, its thread, regions, flags. "The wire" is where the network device takes
 * the packet over: the kernel notes the time then (SO_TIMESTAMPING), and this program that before the push.
 */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/proxy.h"
#include "proto/base/clock.h"
#include "tests/bench/must.h"

enum { TRIGGERS_MAX = 100000, TRIGGER_BYTES = 64, TRIGGER_PAUSE_US = 50, TRIGGER_LIMIT_MS = 2000, END_LIMIT_MS = 60000 };
enum { COMM = 1, MEMORY = 16 << 20, SPIN_US = 200, CONNECT_TRIES = 500 };

struct stream {
    unsigned char *memory;
    uint64_t slice, next; /* bytes of a slice; the proxy's thread: slices that were resolved */
    const struct proxy *proxy;
    _Atomic uint32_t is_over, is_gone;
};

static const struct net_ops *transport = &net_tcp;

static bool stream_resolve(void *ctx, const struct fcc_trigger *t, struct proxy_send *out)
{
    struct stream *s = ctx;
    uint64_t at = s->next++ * s->slice % (MEMORY / s->slice * s->slice);

    out->node = 0;
    out->to = (struct net_place){.comm = COMM, .region = NET_STAGING, .offset = at};
    out->from = s->memory + at;
    out->area = (struct net_area){s->slice, s->slice, 1};
    out->flag = 0;
    out->epoch = t->epoch;
    return true;
}

static void stream_done(void *ctx, uint32_t launch)
{
    struct stream *s = ctx;

    (void)launch;
    atomic_store(&s->is_over, 1);
}

static void stream_failed(void *ctx, uint32_t node, const struct error *e)
{
    struct stream *s = ctx;

    (void)node;
    atomic_store(&s->is_gone, 1);
    if (atomic_load(&s->is_over))
        return; /* the other end goes when it has all */
    (void)fprintf(stderr, "%s\n", e->text);
    exit(1);
}

static int stream_raise(void *ctx, uint64_t comm, uint32_t rank, uint32_t flag, uint64_t epoch)
{
    struct stream *s = ctx;

    (void)comm, (void)rank, (void)flag, (void)epoch;
    atomic_store(&s->is_over, 1);
    return 0;
}

static struct proxy *stream_open(struct stream *s, struct net_regions **regions)
{
    const struct proxy_owner owner = {
        .resolve = stream_resolve, .done = stream_done, .failed = stream_failed, .raise = stream_raise, .ctx = s};
    struct proxy_options options = {
        .net_ops = transport,
        .net = {.beat_ms = NET_BEAT_MS, .silent_ms = NET_SILENT_MS, .queue = NET_QUEUE},
        .capacity = 8192,
        .producers = 1,
        .spin_us = SPIN_US,
    };
    struct proxy *p;
    struct error e;

    s->memory = malloc(MEMORY);
    must(s->memory != NULL, "memory");
    memset(s->memory, 1, MEMORY);
    must(!net_regions_open(regions, &e) && !net_region_add(*regions, COMM, 0, NET_STAGING, s->memory, MEMORY, &e) &&
             !net_region_add(*regions, COMM, 0, NET_FLAGS, NULL, 1, &e),
         "regions");
    options.regions = *regions;
    must(!proxy_start(&owner, &options, &p, &e), "proxy");
    return p;
}

static int socket_open(const char *host, const char *port, struct sockaddr_in *address)
{
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    must(inet_pton(AF_INET, host, &address->sin_addr) == 1, host);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(sock >= 0, "socket");
    return sock;
}

static void receive(struct stream *s, const char *host, const char *port)
{
    struct net_regions *regions;
    struct sockaddr_in address;
    int one = 1, listener = socket_open(host, port, &address);
    struct proxy *p = stream_open(s, &regions);
    struct error e;

    must(!setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), "SO_REUSEADDR");
    must(!bind(listener, (struct sockaddr *)&address, sizeof(address)) && !listen(listener, 1), "listen");
    int sock = accept(listener, NULL, NULL);
    must(sock >= 0, "accept");
    uint64_t begin = clock_ns();
    must(!proxy_receive(p, 0, 0, sock, &e), "receive");
    while (!atomic_load(&s->is_over))
        (void)usleep(100);
    double seconds = (double)(clock_ns() - begin) / 1e9;
    uint64_t bytes = atomic_load(&proxy_received(p, 0)->bytes);
    (void)printf("{\"bytes\": %llu, \"seconds\": %.6f, \"gbytes_per_s\": %.4f}\n", (unsigned long long)bytes, seconds,
                 (double)bytes / seconds / 1e9);
    (void)fflush(stdout);
    _exit(0); /* the connection ends with the process */
}

static int socket_connect(const char *host, const char *port)
{
    struct sockaddr_in address;
    int sock = socket_open(host, port, &address), tries = 0;

    while (connect(sock, (struct sockaddr *)&address, sizeof(address))) {
        must(errno == ECONNREFUSED && ++tries < CONNECT_TRIES, "connect"); /* it is about to listen */
        (void)usleep(10000);
    }
    return sock;
}

/* Behind all that was pushed: the receiver ends, and so does this. */
static void stream_end(struct stream *s, struct proxy *p, struct net_regions *regions)
{
    (void)fifo_push(proxy_fifo(p), (struct fcc_trigger){.launch = 1, .what = FCC_TRIGGER_FLAG, .epoch = 1}, NULL);
    (void)fifo_push(proxy_fifo(p), (struct fcc_trigger){.launch = 1, .what = FCC_TRIGGER_END}, NULL);
    while (!atomic_load(&s->is_over))
        (void)usleep(100);
    /* A device may have more on its way than a closed link waits for. */
    for (uint64_t until = clock_ns() + END_LIMIT_MS * 1000000ull; !atomic_load(&s->is_gone) && clock_ns() < until;)
        (void)usleep(100);
    proxy_stop(p);
    proxy_free(p);
    net_regions_close(regions);
}

static void put_push(struct proxy *p)
{
    (void)fifo_push(proxy_fifo(p), (struct fcc_trigger){.launch = 1, .what = FCC_TRIGGER_PUT}, NULL);
}

static void send_all(struct stream *s, const char *host, const char *port, uint64_t bytes)
{
    int sock = socket_connect(host, port);
    struct net_regions *regions;
    struct proxy *p = stream_open(s, &regions);
    struct error e;

    must(!proxy_link_add(p, 0, 0, sock, &e), "link");
    for (uint64_t done = 0; done < bytes; done += s->slice)
        put_push(p);
    stream_end(s, p, regions);
}

/* ---- to the wire ---- */

static uint64_t real_ns(const struct timespec *t)
{
    return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

static uint64_t real_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t); /* the kernel's notes have it, too */
    return real_ns(&t);
}

/* When the packet that was sent last went to the device. */
static uint64_t wire_time(int sock)
{
    uint64_t until = real_now() + TRIGGER_LIMIT_MS * UINT64_C(1000000);

    for (;;) {
        _Alignas(struct cmsghdr) char control[512];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof(control)};
        must(real_now() < until, "no note of the time");
        if (recvmsg(sock, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            continue;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct scm_timestamping times;
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_TIMESTAMPING)
                continue;
            memcpy(&times, CMSG_DATA(c), sizeof(times));
            return real_ns(&times.ts[0]);
        }
    }
}

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void triggers_print(double us[], unsigned count)
{
    qsort(us, count, sizeof(us[0]), double_compare);
    (void)printf("{\"p50_us\": %.2f, \"p99_us\": %.2f}\n", us[count / 2], us[count * 99 / 100]);
}

/* Over a plug-in. */
static void triggers_posted(struct stream *s, const char *host, const char *port, unsigned count)
{
    static double us[TRIGGERS_MAX];
    int sock = socket_connect(host, port);
    struct net_regions *regions;
    struct proxy *p = stream_open(s, &regions);
    const _Atomic uint64_t *bytes = &proxy_sent(p, 0)->bytes;
    struct error e;

    must(count >= 2 && count <= TRIGGERS_MAX, "COUNT");
    must(!proxy_link_add(p, 0, 0, sock, &e), "link");
    put_push(p);
    while (!atomic_load(bytes)) /* its queue pair comes about */
        (void)usleep(1000);
    for (unsigned i = 0; i < count; i++) {
        uint64_t before = atomic_load(bytes);
        for (uint64_t until = clock_ns() + TRIGGER_PAUSE_US * 1000; clock_ns() < until;)
            spin_pause();
        uint64_t begin = clock_ns();
        put_push(p);
        while (atomic_load_explicit(bytes, memory_order_relaxed) == before)
            spin_pause();
        us[i] = (double)(clock_ns() - begin) / 1e3;
    }
    stream_end(s, p, regions);
    triggers_print(us, count);
}

static void triggers(struct stream *s, const char *host, const char *port, unsigned count)
{
    static double us[TRIGGERS_MAX];
    int flags = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_TSONLY;
    int sock = socket_connect(host, port), notes = dup(sock);
    struct net_regions *regions;
    struct proxy *p = stream_open(s, &regions);
    struct error e;

    must(count >= 2 && count <= TRIGGERS_MAX, "COUNT");
    must(notes >= 0 && !proxy_link_add(p, 0, 0, sock, &e), "link");
    (void)usleep(10000); /* its first sign of life */
    must(!setsockopt(notes, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof(flags)), "SO_TIMESTAMPING");
    for (unsigned i = 0; i < count; i++) {
        for (uint64_t until = real_now() + TRIGGER_PAUSE_US * 1000; real_now() < until;)
            spin_pause();
        uint64_t begin = real_now();
        put_push(p);
        us[i] = (double)(int64_t)(wire_time(notes) - begin) / 1e3;
    }
    flags = 0;
    must(!setsockopt(notes, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof(flags)), "SO_TIMESTAMPING");
    stream_end(s, p, regions);
    (void)close(notes);
    triggers_print(us, count);
}

static void plugin_load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    net_plugin_function *function;
    void *symbol = library ? dlsym(library, NET_PLUGIN_SYMBOL) : NULL;

    must(symbol != NULL, path);
    memcpy(&function, &symbol, sizeof(function)); /* the way from an object's address to a function's that C allows */
    must(function()->abi == NET_PLUGIN_ABI, path);
    transport = function()->ops;
}

int main(int argc, char **argv)
{
    struct stream s = {.slice = 262144};

    if (argc > 2 && !strcmp(argv[1], "--plugin")) {
        plugin_load(argv[2]);
        argc -= 2;
        argv += 2;
    }
    if (argc == 4 && !strcmp(argv[1], "receive")) {
        receive(&s, argv[2], argv[3]);
    } else if ((argc == 5 || argc == 6) && !strcmp(argv[1], "send")) {
        s.slice = argc == 6 ? strtoull(argv[5], NULL, 10) : s.slice;
        if (s.slice && s.slice <= MEMORY) {
            send_all(&s, argv[2], argv[3], strtoull(argv[4], NULL, 10) << 20);
            free(s.memory);
            return 0;
        }
    } else if (argc == 5 && !strcmp(argv[1], "trigger")) {
        s.slice = TRIGGER_BYTES;
        (transport == &net_tcp ? triggers : triggers_posted)(&s, argv[2], argv[3], (unsigned)strtoul(argv[4], NULL, 10));
        free(s.memory);
        return 0;
    }
    (void)fprintf(
        stderr, "usage: net_stream [--plugin PATH] receive HOST PORT | send HOST PORT MIB [SLICE] | trigger HOST PORT COUNT\n");
    return 2;
}
