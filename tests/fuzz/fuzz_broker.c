/* SPDX-License-Identifier: MIT
 *
 * fuzz_broker.c - a real broker in this process, visitors of any manners, another node's broker (other_node.h), and workers that are the
 * input's: what it says on their control channels is what no worker says, too. Each worker has a process, which only waits to be killed (worker_spawn() is this file's, not spawn.c's).
 *
 * Ledgers, the memory that workers share with the broker, are scribbled on while it reads them (ledgers.h).
 *
 * Expected of the broker: a worker hears nothing before it has said that it is closed; what comes to a visitor is whole, and no more than it
 * asked for; and when all have gone nothing is left of them, no visitor, no job, no account, no process, no descriptor. Metrics
 * are OpenMetrics whatever ledgers say: counters never fall, buckets of a histogram never do from one to the next, and a number is a number.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "daemon/broker/broker.h"
#include "daemon/broker/metrics/metrics.h"
#include "daemon/common/cluster.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/msg.h"
#include "tests/fuzz/ledgers.h"
#include "tests/fuzz/other_node.h"
#include "tests/fuzz/raw_send.h"

enum { VISITORS = 8, WORKERS = 8, SPAWNED = 256, ACCOUNT_BYTES = 4096, LIMIT_S = 30 };

struct visitor_end {
    int sock;             /* -1: none */
    unsigned sent, heard; /* messages */
};

struct worker_end {
    int control;            /* -1: none */
    pid_t pid;              /* 0: none, or it is dead */
    uint64_t handed;        /* SESSION messages that have come */
    unsigned char *account; /* the user's page, mapped; NULL: it has not come */
    unsigned char *ledger;  /* mapped; NULL: it has not come */
    bool closed, started, retired;
};

static struct broker broker;
static char node_listen[FCC_NODE_MAX + 16], nodes[FCC_NODE_MAX + 16], cluster_key[64], other[FCC_NODE_MAX];
static struct config config;
static char directory[] = "/tmp/fccd-fuzz.XXXXXX";
/* Which is read again by SIGHUP. */
static char *line[] = {"fccd",
                       "--config=/dev/null",
                       "--gpus=none",
                       "--log-level=error",
                       "--memory-per-user-mb=16",
                       "--jobs-per-user=4",
                       "--connections-per-job=6",
                       "--connections-per-user=10",
                       "--drain-ms=20",
                       node_listen,
                       nodes,
                       cluster_key,
                       NULL};
enum { LINE_WORDS = sizeof(line) / sizeof(line[0]) - 1 };
static struct visitor_end visitors[VISITORS];
static struct worker_end workers[WORKERS];
static pid_t spawned[SPAWNED]; /* in this program */
static unsigned nspawned;

/* ---- in place of the service manager, which takes everything, and of spawn.c ---- */

int sd_pid_notify_with_fds(pid_t pid, int unset, const char *state, const int *fds, unsigned nfds);
int sd_notifyf(int unset, const char *format, ...) __attribute__((format(printf, 2, 3)));

int sd_pid_notify_with_fds(pid_t pid, int unset, const char *state, const int *fds, unsigned nfds)
{
    (void)pid, (void)unset;
    for (unsigned i = 0; i < nfds; i++)
        FUZZ_CHECK(strstr(state, "FDSTORE=1\nFDNAME=") && fcntl(fds[i], F_GETFD) >= 0);
    return 1;
}

int sd_notifyf(int unset, const char *format, ...)
{
    (void)unset, (void)format;
    return 1;
}

pid_t worker_spawn(int exe, uid_t uid, gid_t gid, const struct groups *groups, int nicer, int control, struct error *e)
{
    struct worker_end *w = NULL;

    (void)exe, (void)uid, (void)gid, (void)groups, (void)nicer;
    for (int i = 0; i < WORKERS && !w; i++)
        if (workers[i].control < 0 && !workers[i].pid)
            w = &workers[i];
    if (!w)
        return error_set(e, -EAGAIN, "cannot start a worker: there are %d", WORKERS);
    *w = (struct worker_end){.control = fcntl(control, F_DUPFD_CLOEXEC, 0), .pid = fork()};
    FUZZ_CHECK(w->control >= 0 && w->pid >= 0);
    spawned[nspawned++ % SPAWNED] = w->pid;
    if (w->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGTERM, SIG_DFL);
        closefrom(0);
        for (;;)
            (void)pause();
    }
    return w->pid;
}

void lister_run(int out, const void *with)
{
    (void)out, (void)with;
}

/* ---- metrics ---- */

static uint64_t counted[COUNTERS]; /* at the last look */

static void metrics_look(void)
{
    size_t length = 0;
    char *text = metrics_text(&broker, 0, &length);
    const uint64_t *now = (const uint64_t *)&broker.ledgers->sum;

    FUZZ_CHECK(text && length == strlen(text) && length > 6 && !strcmp(text + length - 6, "# EOF\n"));
    for (size_t i = 0; i < COUNTERS; i++) {
        FUZZ_CHECK(now[i] >= counted[i] && now[i] <= INT64_MAX);
        counted[i] = now[i];
    }
    ledgers_metrics_check(text);
    free(text);
}

/* ---- workers ---- */

static void worker_hear(struct worker_end *w, const struct fcc_msg *m, ssize_t length, const int *fds, int nfds)
{
    FUZZ_CHECK(w->started == (m->type != CONTROL_START) && w->closed);
    if (m->type == CONTROL_START) {
        FUZZ_CHECK(length == sizeof(struct control_start) && nfds == 1);
        void *page = mmap(NULL, ACCOUNT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
        FUZZ_CHECK(page != MAP_FAILED && ftruncate(fds[0], 0) != 0);
        w->account = page;
        w->started = true;
    } else if (m->type == CONTROL_ADOPT) {
        const struct control_adopt *a = (const struct control_adopt *)m;
        FUZZ_CHECK(length == sizeof(*a) && nfds == 1 && a->pid == getpid() && a->version == CONTROL_VERSION && !w->handed);
    } else if (m->type == CONTROL_LEDGER) {
        FUZZ_CHECK(length == sizeof(*m) && nfds == 1 && ftruncate(fds[0], 0) != 0 && !w->handed && !w->ledger);
        void *memory = mmap(NULL, LEDGER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
        FUZZ_CHECK(memory != MAP_FAILED);
        w->ledger = memory;
    } else if (m->type == CONTROL_SESSION) {
        FUZZ_CHECK(length == sizeof(struct control_session) && nfds == 1 && !w->retired);
        w->handed++;
    } else if (m->type == CONTROL_CONNECTED) {
        const struct control_connected *c = (const struct control_connected *)m;
        FUZZ_CHECK(length == sizeof(*c) && c->status <= 0 && nfds == !c->status && memchr(c->text, 0, sizeof(c->text)) &&
                   !c->text[0] == !c->status && memchr(c->named, 0, sizeof(c->named)));
    } else if (m->type == CONTROL_PEER) {
        const struct control_peer *p = (const struct control_peer *)m;
        FUZZ_CHECK(length == sizeof(*p) && nfds == 1 && !w->retired && !strcmp(p->address, other));
        w->handed++;
    } else if (m->type == CONTROL_DENIED) {
        const struct control_denied *d = (const struct control_denied *)m;
        FUZZ_CHECK(length == sizeof(*d) && !nfds && memchr(d->denial.job, 0, sizeof(d->denial.job)));
    } else if (m->type == CONTROL_TROUBLE) {
        FUZZ_CHECK(length == sizeof(struct control_trouble) && !nfds &&
                   memchr(((const struct control_trouble *)m)->text, 0, CONTROL_TROUBLE_MAX));
    } else {
        FUZZ_CHECK(m->type == CONTROL_RETIRE ||
                   (m->type == CONTROL_DRAIN && (length == sizeof(*m) || length == sizeof(struct control_drain))));
        w->retired = true; /* fccctl drain, or what it has asked for */
    }
}

static void worker_leave(struct worker_end *w)
{
    if (w->control >= 0)
        (void)close(w->control);
    w->control = -1;
    if (w->account)
        (void)munmap(w->account, ACCOUNT_BYTES);
    w->account = NULL;
    ledger_leave(w->ledger);
    if (w->ledger)
        (void)munmap(w->ledger, LEDGER_BYTES);
    w->ledger = NULL;
    if (w->pid > 0)
        (void)kill(w->pid, SIGKILL); /* the broker reaps it */
    w->pid = 0;
}

static void workers_read(void)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    int fds[FCC_MAX_FDS], nfds;
    ssize_t n;

    for (int i = 0; i < WORKERS; i++)
        while (workers[i].control >= 0 &&
               (n = msg_recv(workers[i].control, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds)) != -EAGAIN) {
            if (n <= 0) { /* the broker has had enough of it: its process ends, too */
                worker_leave(&workers[i]);
                break;
            }
            worker_hear(&workers[i], (const struct fcc_msg *)buf, n, fds, nfds);
            fds_close(fds, nfds);
        }
}

/* Its place in the user's account, or another's: any number. */
static void account_scribble(const struct worker_end *w, struct input *in)
{
    uint32_t at = input_below(in, ACCOUNT_BYTES / 8);
    uint64_t value = (uint64_t)input_number(in);

    if (w->account)
        memcpy(w->account + (size_t)at * 8, &value, sizeof(value));
}

static void worker_closed_say(struct worker_end *w)
{
    struct fcc_msg m = {.type = CONTROL_CLOSED};

    w->closed = true;
    (void)msg_send(w->control, &m, sizeof(m), NULL, 0);
}

static void worker_says(struct worker_end *w, struct input *in)
{
    union {
        struct fcc_msg msg;
        struct control_sessions sessions;
        struct control_retire retire;
        struct control_adopted adopted;
        struct control_connect connect;
        struct control_deny deny;
        unsigned char bytes[512];
    } m = {.bytes = {0}};
    uint32_t what = input_u8(in), how = input_u8(in);
    size_t length = sizeof(m.msg);

    if (what < 100) {
        if (what < 50 && !w->closed)
            worker_closed_say(w);
        else if (what < 70)
            account_scribble(w, in);
        else
            ledger_scribble(w->ledger, in);
        return;
    }
    m.msg.id = how;
    if (what < 130) {
        m.msg.type = CONTROL_SESSIONS;
        m.sessions.sessions = (uint32_t)input_number(in);
        m.sessions.controls = how;
        m.sessions.got = how & 1 ? w->handed : (uint64_t)input_number(in);
        length = sizeof(m.sessions);
    } else if (what < 140) {
        m.msg.type = CONTROL_ADOPTED;
        m.msg.id = how & 15 ? broker.started_ns : how;
        m.adopted.version = how & 0x30 ? CONTROL_VERSION : how;
        m.adopted.draining = how == 0x7f;
        m.adopted.sessions = how & 1 ? 0 : (uint32_t)input_number(in);
        m.adopted.got = how & 3 ? w->handed : (uint64_t)input_number(in);
        m.adopted.handed = how & 7 ? w->handed : (uint64_t)input_number(in);
        m.adopted.arrivals = how;
        length = sizeof(m.adopted);
    } else if (what < 160) {
        m.msg.type = CONTROL_RETIRE;
        m.retire.handed = how & 7 ? w->handed : (uint64_t)input_number(in);
        length = sizeof(m.retire);
    } else if (what < 175) {
        m.msg.type = CONTROL_DENY;
        memset(m.deny.address, how & 1 ? 'a' : '1', how & 2 ? sizeof(m.deny.address) : 8);
        memset(m.deny.denial.job, 'j', how & 4 ? sizeof(m.deny.denial.job) : 1);
        m.deny.limit_ms = how;
        length = sizeof(m.deny);
    } else if (what < 190) {
        m.msg.type = CONTROL_CONNECT;
        if (how & 4)
            text_copy(m.connect.address, sizeof(m.connect.address), other);
        else
            memset(m.connect.address, how & 1 ? 'a' : '1', how & 2 ? sizeof(m.connect.address) : 8);
        m.connect.to.number = how & 8 ? 1 : 0;
        m.connect.limit_ms = how & 16 ? 1000 : how;
        length = sizeof(m.connect);
    } else if (what < 230) {
        m.msg.type = (uint16_t)(how & 0x40 ? CONTROL_CLOSED + (how & 31) : how);
        length = 16 + input_below(in, sizeof(m) - 16);
        for (size_t i = 16; i < length && in->left; i++)
            m.bytes[i] = input_u8(in);
        w->closed = w->closed || m.msg.type == CONTROL_CLOSED;
    } else {
        worker_leave(w);
        return;
    }
    m.msg.length = (uint32_t)(how == 0xff ? (uint32_t)input_number(in) : length);
    raw_send_with(w->control, &m, length, how >= 0xf0 ? input_below(in, RAW_FDS) : 0, in);
}

/* ---- visitors ---- */

static void visitor_leave(struct visitor_end *v)
{
    if (v->sock >= 0)
        (void)close(v->sock);
    *v = (struct visitor_end){.sock = -1};
}

static void visitor_come(struct visitor_end *v)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", config.socket);
    *v = (struct visitor_end){.sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    FUZZ_CHECK(v->sock >= 0);
    if (connect(v->sock, (const struct sockaddr *)&a, sizeof(a)))
        visitor_leave(v); /* the backlog is full */
}

static void visitors_read(void)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    const struct fcc_reply *r = (const struct fcc_reply *)buf;
    int fds[FCC_MAX_FDS], nfds;
    ssize_t n;

    for (int i = 0; i < VISITORS; i++)
        while (visitors[i].sock >= 0 &&
               (n = msg_recv(visitors[i].sock, buf, sizeof(buf), MSG_DONTWAIT, fds, &nfds)) != -EAGAIN) {
            if (n <= 0) {
                visitor_leave(&visitors[i]);
                break;
            }
            FUZZ_CHECK(n >= (ssize_t)sizeof(*r) && r->msg.type & FCC_REPLY && memchr(r->text, 0, sizeof(r->text)));
            FUZZ_CHECK(r->status <= 0 && (r->status == 0 || r->text[0]) && (uint32_t)nfds == r->fds);
            FUZZ_CHECK(++visitors[i].heard <=
                       visitors[i].sent + 1); /* one that makes room for another is told without asking */
            fds_close(fds, nfds);
        }
}

static void visitor_says_hello(struct visitor_end *v, struct input *in)
{
    uint32_t how = input_u8(in);
    struct fcc_hello m = {.msg = {.type = FCC_MSG_HELLO, .id = how, .length = sizeof(m)},
                          .magic = FCC_PROTO_MAGIC,
                          .version = FCC_PROTO_VERSION,
                          .role = how & 1 ? FCC_ROLE_CONTROL : FCC_ROLE_CLIENT,
                          .uid = how & 1 ? geteuid() : UINT32_MAX};

    (void)snprintf(m.job, sizeof(m.job), "%s", how & 1 && how & 2 ? "" : how & 4 ? "b" : how & 8 ? "c" : "a");
    if (how >= 0xe0) { /* something in it is otherwise */
        int64_t value = input_number(in);
        memcpy((unsigned char *)&m + input_below(in, sizeof(m) / 4 - 2) * 4, &value, sizeof(value));
    }
    raw_send_with(v->sock, &m, how == 0xff ? input_below(in, sizeof(m)) : sizeof(m), how >= 0xf8 ? input_below(in, RAW_FDS) : 0,
                  in);
}

static void visitor_says(struct visitor_end *v, struct input *in)
{
    struct fcc_query q = {.msg = {.type = FCC_MSG_QUERY, .length = sizeof(q)}, .comm = 1, .text = "127.0.0.1:1"};
    uint32_t what = input_u8(in);
    unsigned char bytes[300];
    size_t n = 0;

    v->sent++;
    if (what < 130) {
        visitor_says_hello(v, in);
    } else if (what < 200) {
        q.what = input_below(in, FCC_QUERY_COUNT + 1);
        q.comm = 1 + (what & 7); /* of flight recorders, too */
        raw_send_with(v->sock, &q, sizeof(q), what >= 195 ? input_below(in, RAW_FDS) : 0, in);
    } else if (what < 225) {
        while (n < sizeof(bytes) && in->left)
            bytes[n++] = input_u8(in);
        raw_send_with(v->sock, bytes, n, what & 3 ? 0 : input_below(in, RAW_FDS), in);
    } else {
        visitor_leave(v);
    }
}

/* ---- the program ---- */

static void turn(unsigned turns)
{
    for (; turns; turns--)
        (void)event_base_loop(broker.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
    workers_read();
    visitors_read();
    other_turn();
}

static void step(struct input *in)
{
    uint32_t which = input_u8(in), at = which & 7;

    if (which < 0x80) {
        struct visitor_end *v = &visitors[at];
        if (v->sock < 0)
            visitor_come(v);
        else
            visitor_says(v, in);
    } else if (which < 0xe0) {
        if (workers[at].control >= 0)
            worker_says(&workers[at], in);
    } else if (which < 0xf0) {
        turn(1 + at);
    } else if (which < 0xf8) {
        (void)kill(getpid(), SIGHUP);
    } else if (which < 0xfe) {
        other_step(in);
    } else if (which < 0xff) {
        (void)usleep(500);
    } else {
        metrics_look();
    }
    if (which & 0x10)
        turn(1);
}

static void directory_remove(void)
{
    other_forget();
    (void)unlink(config.socket);
    (void)rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    enum config_action action;
    struct error e = {0};

    (void)argc, (void)argv;
    if (getenv("FUZZ_LOG"))
        line[3] = "--log-level=debug";
    FUZZ_CHECK(!setenv("NOTIFY_SOCKET", "/nonexistent", 1) && !setenv("FDSTORE", "23", 1)); /* five jobs */
    FUZZ_CHECK(mkdtemp(directory) && atexit(directory_remove) == 0);
    char real[FCC_NODE_MAX];
    other_begin(directory, real, other);
    (void)snprintf(node_listen, sizeof(node_listen), "--node-listen=%s", real);
    (void)snprintf(nodes, sizeof(nodes), "--nodes=%s", other);
    (void)snprintf(cluster_key, sizeof(cluster_key), "--cluster-key=%s/key", directory);
    if (config_load(LINE_WORDS, line, &config, &action, &e))
        fuzz_failed(__FILE__, __LINE__, "%s", e.text);
    FUZZ_CHECK(cluster_check(&config, &e) == 0);
    (void)snprintf(config.socket, sizeof(config.socket), "%s/fccd.sock", directory);
    text_copy(config.socket_group, sizeof(config.socket_group), "");
    log_open("broker", (enum log_level)log_level_by_name(config.log_level), LOG_FORMAT_TEXT);
    (void)signal(SIGPIPE, SIG_IGN); /* as in the daemon */
    ledgers_begin();
    return 0;
}

static bool everything_has_gone(void)
{
    for (int i = 0; i < WORKERS; i++)
        worker_leave(&workers[i]); /* one may have been started for a visitor that has gone since */
    return LIST_EMPTY(&broker.visitors) && LIST_EMPTY(&broker.jobs) && LIST_EMPTY(&broker.users) &&
           LIST_EMPTY(&broker.children);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {.at = data, .left = size};
    int descriptors = descriptors_count(); /* the engine may have more from time to time */
    uint64_t end;

    for (int i = 0; i < VISITORS; i++)
        visitors[i] = (struct visitor_end){.sock = -1};
    for (int i = 0; i < WORKERS; i++)
        workers[i] = (struct worker_end){.control = -1};
    nspawned = 0;
    memset(counted, 0, sizeof(counted));
    other_open();
    FUZZ_CHECK(broker_open(&broker, &config, LINE_WORDS, line) == 0);
    while (in.left)
        step(&in);
    metrics_look();
    for (int i = 0; i < VISITORS; i++)
        visitor_leave(&visitors[i]);
    other_close();
    for (end = clock_ns() + LIMIT_S * UINT64_C(1000000000); !everything_has_gone(); (void)usleep(100)) {
        turn(4);
        if (clock_ns() > end)
            fuzz_failed(__FILE__, __LINE__, "after %d s the broker still has%s%s%s%s", LIMIT_S,
                        LIST_EMPTY(&broker.visitors) ? "" : " visitors", LIST_EMPTY(&broker.jobs) ? "" : " jobs",
                        LIST_EMPTY(&broker.users) ? "" : " users", LIST_EMPTY(&broker.children) ? "" : " children");
    }
    metrics_look(); /* what they have counted stays */
    broker_close(&broker);
    for (unsigned i = 0; i < nspawned && i < SPAWNED; i++)
        FUZZ_CHECK(waitpid(spawned[i], NULL, WNOHANG) == -1 && errno == ECHILD); /* reaped by the broker */
    int left = descriptors_count();
    if (left != descriptors)
        fuzz_failed(__FILE__, __LINE__, "%d file descriptors are left, of %d", left - descriptors, left);
    return 0;
}
