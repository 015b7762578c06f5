/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/bed.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/worker/comm/comm.h"
#include "daemon/worker/engine/engine.h"
#include "daemon/worker/run.h"
#include "proto/base/clock.h"
#include "proto/msg.h"
#include "tests/fuzz/scarce.h"

struct bed bed;

static struct config config;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* channels, and what belongs to them */
static int channels;                                     /* epoll */

/* ---- the broker ---- */

static struct bed_node *node_called(const char *address)
{
    for (int i = 0; i < bed.n; i++)
        if (bed.nodes[i].channel >= 0 && !strcmp(bed.nodes[i].address, address))
            return &bed.nodes[i];
    return NULL;
}

/* Takes the socket. */
static int outside_arrive(int sock, uint32_t purpose)
{
    struct bed_outside *o = &bed.outside;

    if (o->n == (int)(sizeof(o->arrived) / sizeof(o->arrived[0]))) {
        (void)close(sock);
        return -ECONNREFUSED;
    }
    o->arrived[o->n].sock = sock;
    o->arrived[o->n++].purpose = purpose;
    return 0;
}

int bed_outside_take(uint32_t *purpose)
{
    struct bed_outside *o = &bed.outside;
    int sock = -1;

    (void)pthread_mutex_lock(&lock);
    if (o->n) {
        sock = o->arrived[0].sock;
        *purpose = o->arrived[0].purpose;
        memmove(&o->arrived[0], &o->arrived[1], (size_t)--o->n * sizeof(o->arrived[0]));
    }
    (void)pthread_mutex_unlock(&lock);
    return sock;
}

static void connect_answer(struct bed_node *n, const struct control_connect *m)
{
    struct control_connected answer = {.msg = {.type = CONTROL_CONNECTED, .id = m->msg.id}};
    struct control_peer peer = {.msg.type = CONTROL_PEER, .from = n->self, .purpose = m->purpose};
    struct bed_node *to = node_called(m->address);
    bool is_outside = *bed.outside.address && !strcmp(bed.outside.address, m->address);
    const struct incarnation *self = is_outside ? &bed.outside.self : to ? &to->self : NULL;
    int pair[2] = {-1, -1};

    text_copy(peer.address, sizeof(peer.address), n->address);
    if (!self || to == n || n->refuses) {
        n->refuses -= n->refuses > 0;
        answer.status = -EHOSTUNREACH;
    } else if (m->to.number && !incarnation_same(&m->to, self)) {
        answer.status = -ESTALE;
    } else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
        answer.status = -EMFILE;
    } else if (is_outside) {
        answer.status = outside_arrive(pair[1], m->purpose);
        pair[1] = -1;
    } else if (msg_send(to->channel, &peer.msg, sizeof(peer), &pair[1], 1)) {
        answer.status = -ECONNRESET;
    }
    if (!answer.status)
        answer.to = *self;
    else
        (void)snprintf(answer.text, sizeof(answer.text), "node %.63s: it is not there", m->address);
    (void)msg_send(n->channel, &answer.msg, sizeof(answer), pair, !answer.status);
    for (int i = 0; i < 2; i++)
        if (pair[i] >= 0)
            (void)close(pair[i]);
}

static void channel_read(struct bed_node *n)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX]; /* one thread */
    const struct fcc_msg *m = (const struct fcc_msg *)buf;
    int fds[FCC_MAX_FDS], nfds;
    ssize_t length;

    while ((length = msg_recv(n->channel, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds)) > 0) {
        fds_close(fds, nfds);
        if (m->type == CONTROL_CONNECT && length == sizeof(struct control_connect))
            connect_answer(n, (const struct control_connect *)buf);
    }
}

static void *broker_run(void *nothing)
{
    struct epoll_event ready;

    for (;;) {
        if (epoll_wait(channels, &ready, 1, -1) != 1)
            continue;
        (void)pthread_mutex_lock(&lock);
        for (int i = 0; i < bed.n; i++)
            if (bed.nodes[i].channel >= 0)
                channel_read(&bed.nodes[i]);
        (void)pthread_mutex_unlock(&lock);
    }
    return nothing;
}

/* ---- workers ---- */

static void silent(int severity, const char *text)
{
    (void)severity, (void)text; /* libevent, of signals: several loops have some */
}

void bed_begin(const char *plugin_dir)
{
    char *argv[] = {"fccd", "--config=/dev/null", NULL};
    enum config_action action;
    struct error e = {0};
    pthread_t thread;

    if (config_load(2, argv, &config, &action, &e))
        fuzz_failed(__FILE__, __LINE__, "%s", e.text);
    config.cpu_devices = 2;
    config.cpu_workgroups = 1;
    config.time_limit_ms = 50;
    config.memory_per_user_mb = 1 << 14;
    config.spin_us = 0;
    config.worker_idle_ms = 86400000;
    config.silence_ms = 60000; /* this process may be slow */
    text_copy(config.transport, sizeof(config.transport), "tcp");
    text_copy(config.gpus, sizeof(config.gpus), *plugin_dir ? "cuda" : "none");
    text_copy(config.plugin_dir, sizeof(config.plugin_dir), plugin_dir);
    text_copy(config.code_cache, sizeof(config.code_cache), "/proc/nothing"); /* nothing is kept */
    text_copy(config.log_level, sizeof(config.log_level), getenv("FUZZ_LOG") ? "debug" : "error");
    event_set_log_callback(silent);
    (void)signal(SIGPIPE, SIG_IGN); /* as in the daemon */
    channels = epoll_create1(EPOLL_CLOEXEC);
    FUZZ_CHECK(channels >= 0 && pthread_create(&thread, NULL, broker_run, NULL) == 0 && pthread_detach(thread) == 0);
}

static void node_open(struct bed_node *n, int number, bool alone)
{
    static uint64_t incarnations;
    struct control_start start = {.msg.type = CONTROL_START, .config = config, .uid = geteuid(), .job = "fuzz"};
    int pair[2], account, room = 1 << 20;

    config_limits(&config, &start.limits);
    start.limits.of[ACCOUNT_USER][ACCOUNT_MEMORY] = INT64_MAX;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    (void)setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    *n = (struct bed_node){.w = WORKER_CLOSED(pair[1]), .channel = pair[0], .self = {77, ++incarnations}};
    if (!alone)
        (void)snprintf(n->address, sizeof(n->address), "node-%d:7000", number);
    memcpy(start.node, n->address, sizeof(start.node));
    memset(start.meeting_key, 42, sizeof(start.meeting_key));
    start.self = n->self;
    FUZZ_CHECK(account_make(&n->account, 1, &account) == 0 && worker_open(&n->w, &start, account) == 0);
    (void)close(account);
    struct epoll_event what = {.events = EPOLLIN};
    FUZZ_CHECK(epoll_ctl(channels, EPOLL_CTL_ADD, n->channel, &what) == 0);
}

static void node_close(struct bed_node *n)
{
    worker_close(&n->w);
    account_close(&n->account);
    (void)pthread_mutex_lock(&lock);
    (void)epoll_ctl(channels, EPOLL_CTL_DEL, n->channel, NULL);
    (void)close(n->channel);
    n->channel = -1;
    (void)pthread_mutex_unlock(&lock);
}

void bed_open(int nodes)
{
    (void)pthread_mutex_lock(&lock);
    for (int i = 0; i < nodes; i++)
        node_open(&bed.nodes[i], i, nodes == 1 && !*bed.outside.address);
    bed.n = nodes;
    (void)pthread_mutex_unlock(&lock);
}

int bed_connect(int node, enum fcc_role role, bool small)
{
    struct control_session m = {
        .msg = {.type = CONTROL_SESSION, .id = UINT64_MAX}, .role = role, .uid = geteuid(), .pid = getpid()};
    int pair[2], room = 1; /* the kernel makes it more */

    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    FUZZ_CHECK(!small || setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)) == 0);
    FUZZ_CHECK(msg_send(bed.nodes[node].channel, &m.msg, sizeof(m), &pair[1], 1) == 0);
    (void)close(pair[1]);
    return pair[0];
}

void bed_outside_open(const char *address)
{
    static uint64_t incarnations;

    (void)pthread_mutex_lock(&lock);
    bed.outside = (struct bed_outside){.self = {78, ++incarnations}};
    text_copy(bed.outside.address, sizeof(bed.outside.address), address);
    (void)pthread_mutex_unlock(&lock);
}

int bed_outside_connect(int node, uint32_t purpose)
{
    struct control_peer m = {.msg.type = CONTROL_PEER, .from = bed.outside.self, .purpose = purpose};
    int pair[2];

    text_copy(m.address, sizeof(m.address), bed.outside.address);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0);
    FUZZ_CHECK(msg_send(bed.nodes[node].channel, &m.msg, sizeof(m), &pair[1], 1) == 0);
    (void)close(pair[1]);
    return pair[0];
}

void bed_turn(unsigned turns)
{
    scarce_begin();
    for (; turns; turns--)
        for (int i = 0; i < bed.n; i++)
            if (!bed.nodes[i].frozen) {
                (void)worker_turn(&bed.nodes[i].w, &bed.nodes[i].spin);
                (void)event_base_loop(bed.nodes[i].w.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
            }
    scarce_end();
}

void bed_wait(bool (*until)(char missing[BED_TEXT]))
{
    uint64_t end = clock_ns() + BED_WAIT_S * UINT64_C(1000000000);
    char missing[BED_TEXT] = "";

    for (unsigned turns = 0; !until(missing); turns++) {
        bed_turn(1);
        if (turns > 50)
            (void)usleep(turns > 500 ? 1000 : 50); /* others have to run: workgroups, proxies, the broker */
        if (clock_ns() > end)
            fuzz_failed(__FILE__, __LINE__, "after %d s: %s", BED_WAIT_S, missing);
    }
}

/* ---- the end ---- */

/* Neither in the account, but for what the worker keeps charged, nor in the worker. */
static bool nothing_is_counted(const struct worker *w)
{
    for (int kind = 0; kind < ACCOUNT_COUNT; kind++)
        if (kind != ACCOUNT_MEMORY &&
            (w->counted[kind].used || account_used(&w->account, (enum account_kind)kind) != w->counted[kind].charged))
            return false;
    return true;
}

static bool nothing_is_left(char missing[BED_TEXT])
{
    for (int i = 0; i < bed.n; i++) {
        const struct worker *w = &bed.nodes[i].w;
        uint64_t charged = account_used(&w->account, ACCOUNT_MEMORY);
        if (TAILQ_EMPTY(&w->sessions) && LIST_EMPTY(&w->comms) && charged == w->small_charged && !w->small_used && !w->unpaid &&
            nothing_is_counted(w))
            continue;
        const struct comm *c = LIST_FIRST(&w->comms);
        (void)snprintf(missing, BED_TEXT,
                       "worker %d has %s sessions, %s communicators (%u: state %d, %d of %d ranks, running %u: %.60s), %llu "
                       "bytes, %llu of small things, %u that are not paid for",
                       i, TAILQ_EMPTY(&w->sessions) ? "no" : "still", c ? "still" : "no", c ? c->number : 0,
                       c ? (int)c->state : 0, c ? c->present : 0, c ? c->nranks : 0, c ? c->dev.running : 0,
                       c ? c->error.text : "", (unsigned long long)charged, (unsigned long long)w->small_used, w->unpaid);
        return false;
    }
    return true;
}

void bed_close(void)
{
    for (int i = 0; i < bed.n; i++)
        bed.nodes[i].frozen = false;
    bed_wait(nothing_is_left);
    for (int i = 0; i < bed.n; i++)
        node_close(&bed.nodes[i]);
    (void)pthread_mutex_lock(&lock);
    bed.n = 0;
    (void)pthread_mutex_unlock(&lock);
}
