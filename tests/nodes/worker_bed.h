/* SPDX-License-Identifier: MIT
 *
 * worker_bed.h - a real worker whose broker the test is, and whose job's workers on other nodes the test is, too: so it decides in which
 * order things come.
 */
#ifndef FCC_TEST_WORKER_BED_H
#define FCC_TEST_WORKER_BED_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/net/frame.h"
#include "daemon/worker/nodes/peer.h"
#include "proto/msg.h"
#include "tests/bed/harness.h"

#define BED_ADDRESS "192.0.2.1:7000" /* of the worker's node: nobody connects to it */
enum { BED_BROKER = 100 };           /* the worker's: incarnations of others have other ones */
enum { BED_THERE = 41 };             /* what other workers call each communicator (peer_msg.from) */

/* The worker, and the broker's end of its control channel. */
struct bed {
    pid_t pid;
    int control;
    uint64_t handed;        /* SESSION and PEER messages that were sent */
    struct account account; /* the worker's is the only place in it */
};

/* A worker on another node, and the four connections between it and the bed's. */
struct other {
    const char *address;
    struct incarnation who;
    uint32_t serial;            /* of its peer that the bed's worker is */
    uint32_t told;              /* the bed's worker's serial of it */
    int in, in_data, out, data; /* in: the worker sends on it. 0: there is none */
};

/* What the worker has said last that it calls the communicator of that number between nodes. */
enum { BED_COMMS = 16 };
static struct {
    uint64_t comm;
    uint32_t here;
} bed_comms_heard[BED_COMMS];
static unsigned bed_ncomms_heard;

static inline uint32_t *bed_comm_heard(uint64_t comm)
{
    unsigned i = 0;

    while (i < bed_ncomms_heard && bed_comms_heard[i].comm != comm)
        i++;
    CHECK(i < BED_COMMS);
    if (i == bed_ncomms_heard) {
        bed_comms_heard[i].comm = comm;
        bed_comms_heard[i].here = 0;
        bed_ncomms_heard++;
    }
    return &bed_comms_heard[i].here;
}

/* ---- signs of life ---- */

enum { BED_LIVING = 16 };
static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    int sock[BED_LIVING];
    bool is_data[BED_LIVING];
    int n;
    bool begun;
} bed_living = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* What is silent is given up after 2.5 s, and the test may be stopped for longer. */
static inline void *bed_beat(void *nothing)
{
    struct net_frame beat = (struct net_frame){.magic = NET_FRAME_MAGIC, .version = NET_FRAME_VERSION, .kind = NET_FRAME_BEAT};
    struct peer_msg ping = {.length = sizeof(ping), .type = PEER_PING};

    for (;;) {
        (void)pthread_mutex_lock(&bed_living.lock);
        for (int i = 0; i < bed_living.n; i++)
            (void)send(bed_living.sock[i], bed_living.is_data[i] ? (void *)&beat : (void *)&ping,
                       bed_living.is_data[i] ? sizeof(beat) : sizeof(ping), MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)pthread_mutex_unlock(&bed_living.lock);
        (void)usleep(200000);
    }
    return nothing;
}

static inline void bed_keep(int sock, bool is_data)
{
    (void)pthread_mutex_lock(&bed_living.lock);
    CHECK(bed_living.n < BED_LIVING);
    bed_living.sock[bed_living.n] = sock;
    bed_living.is_data[bed_living.n++] = is_data;
    (void)pthread_mutex_unlock(&bed_living.lock);
    if (!bed_living.begun)
        CHECK(pthread_create(&bed_living.thread, NULL, bed_beat, NULL) == 0);
    bed_living.begun = true;
}

/* The socket is closed here, and perhaps its number used again. */
static inline void bed_close(int *sock)
{
    (void)pthread_mutex_lock(&bed_living.lock);
    for (int i = 0; i < bed_living.n; i++)
        if (bed_living.sock[i] == *sock) {
            bed_living.sock[i] = bed_living.sock[--bed_living.n];
            bed_living.is_data[i] = bed_living.is_data[bed_living.n];
            break;
        }
    (void)pthread_mutex_unlock(&bed_living.lock);
    if (*sock)
        (void)close(*sock);
    *sock = 0;
}

/* ---- the broker's part ---- */

static inline void bed_start(struct bed *b, const char *idle_ms)
{
    char *argv[] = {"fccd",
                    "--config",
                    "/dev/null",
                    "--gpus",
                    "none",
                    "--cpu-devices",
                    "2",
                    "--cpu-workgroups",
                    "1",
                    "--transport",
                    "tcp",
                    "--log-level",
                    "debug",
                    "--worker-idle-ms",
                    (char *)(uintptr_t)idle_ms,
                    NULL};
    struct control_start start = {
        .msg.type = CONTROL_START, .uid = geteuid(), .job = "test", .node = BED_ADDRESS, .self = {BED_BROKER, 1}};
    char user[16];
    struct fcc_msg closed;
    int account_fd, fds[FCC_MAX_FDS], nfds;
    enum config_action action;
    struct error e;
    int pair[2];

    bed_ncomms_heard = 0;
    CHECK(config_load(15, argv, &start.config, &action, &e) == 0);
    config_limits(&start.config, &start.limits);
    start.limits.of[ACCOUNT_USER][ACCOUNT_MEMORY] = INT64_MAX;
    (void)snprintf(user, sizeof(user), "%u", geteuid());
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    *b = (struct bed){.control = pair[0], .pid = fork()};
    CHECK(account_make(&b->account, 1, &account_fd) == 0);
    CHECK(b->pid >= 0);
    if (b->pid == 0) {
        int end = dup(pair[1]); /* 3 may be the other end */
        if (dup2(end, CONTROL_FD) < 0)
            _exit(126);
        (void)execl(daemon_binary(), "fccd: worker", "--worker", user, NULL);
        _exit(127);
    }
    (void)close(pair[1]);
    CHECK(msg_recv(b->control, &closed, sizeof(closed), 0, fds, &nfds) == sizeof(closed));
    CHECK(closed.type == CONTROL_CLOSED && nfds == 0);
    CHECK(msg_send(b->control, &start.msg, sizeof(start), &account_fd, 1) == 0);
    (void)close(account_fd);
}

/* The worker's next message, but for those that tell how many clients it has; NULL: it has closed the channel. */
static inline const struct fcc_msg *bed_hear(struct bed *b)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    const struct fcc_msg *m = (const struct fcc_msg *)buf;
    int fds[FCC_MAX_FDS], nfds;

    for (;;) {
        ssize_t n = msg_recv(b->control, buf, sizeof(buf), 0, fds, &nfds);
        CHECK(n >= 0 && nfds == 0);
        if (n == 0)
            return NULL;
        if (m->type != CONTROL_SESSIONS)
            return m;
    }
}

/* It asks whether it may go, and has got that many connections. */
static inline void bed_hear_retire(struct bed *b, uint64_t handed)
{
    const struct control_retire *m = (const struct control_retire *)bed_hear(b);

    CHECK(m && m->msg.type == CONTROL_RETIRE && m->msg.length == sizeof(*m) && m->handed == handed);
}

/* Let it go; it ends well. */
static inline void bed_retire(struct bed *b)
{
    struct fcc_msg yes = {.type = CONTROL_RETIRE};
    int status;

    CHECK(msg_send(b->control, &yes, sizeof(yes), NULL, 0) == 0);
    CHECK(bed_hear(b) == NULL);
    CHECK(waitpid(b->pid, &status, 0) == b->pid && status == 0);
    (void)close(b->control);
}

/* ---- a client's part ---- */

static inline int bed_session(struct bed *b, uint32_t role)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    struct control_session m = {.msg = {.type = CONTROL_SESSION, .id = 1}, .role = role, .uid = geteuid(), .pid = getpid()};
    int pair[2], fds[FCC_MAX_FDS], nfds;

    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    CHECK(msg_send(b->control, &m.msg, sizeof(m), &pair[1], 1) == 0);
    b->handed++;
    (void)close(pair[1]);
    CHECK(msg_recv(pair[0], buf, sizeof(buf), 0, fds, &nfds) == sizeof(struct fcc_welcome));
    CHECK(nfds == (role == FCC_ROLE_CLIENT ? 2 : 0));
    fds_close(fds, nfds);
    return pair[0];
}

static inline int bed_client(struct bed *b)
{
    return bed_session(b, FCC_ROLE_CLIENT);
}

/* What fccctl comms is told. */
static inline void bed_comms(struct bed *b, char *text, size_t room)
{
    struct fcc_query query = {.msg = {.type = FCC_MSG_QUERY, .id = 2}, .what = FCC_QUERY_COMMS};
    struct fcc_reply reply;
    int fds[FCC_MAX_FDS], nfds, sock = bed_session(b, FCC_ROLE_CONTROL);

    CHECK(msg_send(sock, &query.msg, sizeof(query), NULL, 0) == 0);
    CHECK(msg_recv(sock, &reply, sizeof(reply), 0, fds, &nfds) == sizeof(reply) && !reply.status && nfds == 1);
    ssize_t n = pread(fds[0], text, room - 1, 0);
    CHECK(n > 0);
    text[n] = '\0';
    fds_close(fds, nfds);
    (void)close(sock);
}

static inline struct fcc_unique_id id_make(unsigned char seed, const char *root)
{
    struct fcc_unique_id_layout l = {.zero = {0}};
    struct fcc_unique_id id;

    memset(l.secret, seed, sizeof(l.secret));
    (void)snprintf(l.root, sizeof(l.root), "%s", root);
    memcpy(&id, &l, sizeof(id));
    return id;
}

/* The answer to a message of that type; its text has these words. */
static inline void client_answered(int client, uint16_t type, int status, const char *words)
{
    static _Alignas(16) unsigned char buf[FCC_MSG_MAX];
    const struct fcc_reply *r = (const struct fcc_reply *)buf;
    int fds[FCC_MAX_FDS], nfds;

    CHECK(msg_recv(client, buf, sizeof(buf), 0, fds, &nfds) >= (ssize_t)sizeof(*r));
    fds_close(fds, nfds);
    const char *at = strstr(r->text, words + (words[0] == '^')); /* "^...": the text begins with it */
    if (r->msg.type != (type | FCC_REPLY) || r->status != status || !at || (words[0] == '^' && at != r->text))
        check_failed(__FILE__, __LINE__, "type %u, status %d: %s: expected type %u, status %d: %s", r->msg.type, r->status,
                     r->text, type | FCC_REPLY, status, words);
}

/* What the worker has charged, all told: when it has done with what it was sent before. */
static inline uint64_t bed_balance(struct bed *b)
{
    char text[4096];

    bed_comms(b, text, sizeof(text));
    return account_used(&b->account, ACCOUNT_MEMORY);
}

/* That is as it was: what is small is charged in steps, of which some may be left. */
static inline bool bed_balanced(struct bed *b, uint64_t before)
{
    uint64_t now = bed_balance(b);

    if (now < before || now - before > (16u << 10))
        printf("%llu bytes are charged: there were %llu\n", (unsigned long long)now, (unsigned long long)before);
    return now >= before && now - before <= (16u << 10);
}

static inline void client_join_within(int client, const struct fcc_unique_id *id, int nranks, int rank, uint32_t limit_ms)
{
    struct fcc_comm_init_msg m = {.msg = {.type = FCC_MSG_COMM_INIT, .id = 100},
                                  .unique_id = *id,
                                  .nranks = nranks,
                                  .rank = rank,
                                  .time_limit_ms = limit_ms,
                                  .device = -1,
                                  .device_kind = FCC_DEVICE_CPU};

    CHECK(msg_send(client, &m.msg, sizeof(m), NULL, 0) == 0);
}

static inline void client_join(int client, const struct fcc_unique_id *id, int nranks, int rank)
{
    client_join_within(client, id, nranks, rank, 0);
}

/* What came of it; the text has these words. */
static inline void client_joined(int client, int status, const char *words)
{
    client_answered(client, FCC_MSG_COMM_INIT, status, words);
}

/* The worker goes on: this client asks for a unique id, and gets it. */
static inline void client_is_served(int client)
{
    struct fcc_msg ask = {.type = FCC_MSG_UNIQUE_ID, .id = 3};

    CHECK(msg_send(client, &ask, sizeof(ask), NULL, 0) == 0);
    client_answered(client, FCC_MSG_UNIQUE_ID, 0, "");
}

/* ---- other workers' parts ---- */

static inline void bed_sockets(int pair[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK(bind(listener, (struct sockaddr *)&a, size) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&a, &size) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(pair[0] >= 0 && connect(pair[0], (struct sockaddr *)&a, size) == 0);
    pair[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(pair[1] >= 0);
    (void)close(listener);
}

/* The worker asks for a connection to that node, to that worker or (NULL) to any: its CONNECT. */
static inline struct control_connect bed_asked(struct bed *b, const char *address, const struct incarnation *who)
{
    static const struct incarnation any;
    const struct control_connect *m = (const struct control_connect *)bed_hear(b);

    CHECK(m && m->msg.type == CONTROL_CONNECT && m->msg.length == sizeof(*m));
    if (strcmp(m->address, address) != 0)
        check_failed(__FILE__, __LINE__, "CONNECT to %s: expected %s", m->address, address);
    CHECK(incarnation_same(&m->to, who ? who : &any));
    return *m;
}

/* It gets one, to that worker. */
static inline void bed_answer(const struct bed *b, const struct control_connect *asked, struct other *o)
{
    struct control_connected m = {.msg = {.type = CONTROL_CONNECTED, .id = asked->msg.id}, .to = o->who};
    bool is_data = PEER_PURPOSE_OF(asked->purpose) == PEER_DATA;
    int pair[2];

    CHECK(is_data || PEER_PURPOSE_OF(asked->purpose) == PEER_MESSAGES);
    o->told = PEER_SERIAL_OF(asked->purpose);
    bed_sockets(pair);
    CHECK(msg_send(b->control, &m.msg, sizeof(m), &pair[1], 1) == 0);
    (void)close(pair[1]);
    *(is_data ? &o->in_data : &o->in) = pair[0];
}

static inline void bed_answer_error(const struct bed *b, const struct control_connect *asked, int status, const char *named,
                                    const char *text)
{
    struct control_connected m = {.msg = {.type = CONTROL_CONNECTED, .id = asked->msg.id}, .status = status};

    (void)snprintf(m.named, sizeof(m.named), "%s", named);
    (void)snprintf(m.text, sizeof(m.text), "%s", text);
    CHECK(msg_send(b->control, &m.msg, sizeof(m), NULL, 0) == 0);
}

/* Both connections to o: the worker asks for them, for that worker or (NULL) for any, and gets them. */
static inline void bed_connect(struct bed *b, struct other *o, const struct incarnation *who)
{
    for (int i = 0; i < 2; i++) {
        struct control_connect asked = bed_asked(b, o->address, who);
        bed_answer(b, &asked, o);
    }
}

/* o connects to the worker; its end. */
static inline int bed_hand(struct bed *b, struct other *o, enum peer_purpose purpose)
{
    struct control_peer m = {.msg = {.type = CONTROL_PEER}, .from = o->who, .purpose = PEER_PURPOSE(purpose, 0, o->serial)};
    int pair[2];

    (void)snprintf(m.address, sizeof(m.address), "%s", o->address);
    bed_sockets(pair);
    CHECK(msg_send(b->control, &m.msg, sizeof(m), &pair[1], 1) == 0);
    b->handed++;
    (void)close(pair[1]);
    *(purpose == PEER_DATA ? &o->data : &o->out) = pair[0];
    bed_keep(pair[0], purpose == PEER_DATA);
    return pair[0];
}

static inline void other_close(struct other *o)
{
    bed_close(&o->in);
    bed_close(&o->in_data);
    bed_close(&o->out);
    bed_close(&o->data);
}

/* n bytes; false: the worker has closed the connection. */
static inline bool other_read(int sock, void *to, size_t n)
{
    ssize_t got = recv(sock, to, n, MSG_WAITALL);

    CHECK(got == (ssize_t)n || got == 0 || errno == ECONNRESET);
    return got == (ssize_t)n;
}

/* Whether the next message comes on the connection for data, behind flags; then it comes next there. The messages before MOVED are read
 * first, all of which have been sent before. */
static inline bool other_hears_data(const struct other *o)
{
    for (;;) {
        struct pollfd ends[2] = {{.fd = o->in, .events = POLLIN}, {.fd = o->in_data ? o->in_data : -1, .events = POLLIN}};
        struct net_frame f;
        CHECK(poll(ends, 2, -1) > 0);
        if (ends[0].revents || !other_read(o->in_data, &f, sizeof(f)))
            return false;
        CHECK(f.magic == NET_FRAME_MAGIC && f.kind != NET_FRAME_PUT);
        if (f.kind == NET_FRAME_MESSAGE)
            return true;
    }
}

/* The next message that the worker sends to o, but for signs of life; NULL: it has closed the connection. */
static inline const struct peer_msg *other_hear(const struct other *o)
{
    static _Alignas(16) unsigned char buf[PEER_MSG_MAX];
    const struct peer_msg *m = (const struct peer_msg *)buf;

    do {
        int sock = other_hears_data(o) ? o->in_data : o->in;
        if (!other_read(sock, buf, sizeof(*m)))
            return NULL;
        CHECK(m->length >= sizeof(*m) && m->length <= sizeof(buf));
        CHECK(m->length == sizeof(*m) || other_read(sock, buf + sizeof(*m), m->length - sizeof(*m)));
    } while (m->type == PEER_PING || m->type == PEER_MOVED);
    if (m->from)
        *bed_comm_heard(m->comm) = m->from;
    return m;
}

static inline const struct peer_msg *other_heard(const struct other *o, enum peer_type type, uint64_t comm)
{
    const struct peer_msg *m = other_hear(o);

    if (!m || m->type != type || m->comm != comm)
        check_failed(__FILE__, __LINE__, "node %s: message of type %u: expected %d", o->address, m ? m->type : 0, (int)type);
    return m;
}

/* Of a communicator that it calls `from`, and the bed's worker `to`. */
static inline void other_say_of(const struct other *o, struct peer_msg *m, enum peer_type type, uint64_t comm, uint32_t from,
                                uint32_t to, size_t length)
{
    m->length = (uint32_t)length;
    m->type = (uint16_t)type;
    m->comm = comm;
    m->from = from;
    m->to = to;
    CHECK(send(o->out, m, length, MSG_NOSIGNAL) == (ssize_t)length);
}

/* Of the one that the worker has told of last. */
static inline void other_say(const struct other *o, struct peer_msg *m, enum peer_type type, uint64_t comm, size_t length)
{
    other_say_of(o, m, type, comm, BED_THERE, *bed_comm_heard(comm), length);
}

static inline void other_say_join(const struct other *o, const struct fcc_unique_id *id, int nranks, int rank,
                                  uint32_t limit_ms)
{
    struct peer_join m = {.unique_id = *id,
                          .nranks = nranks,
                          .rank = rank,
                          .time_limit_ms = limit_ms,
                          .device_kind = FCC_DEVICE_CPU,
                          .pid = 4711};

    other_say(o, &m.msg, PEER_JOIN, id_number(id), sizeof(m));
}

/* Has the worker closed that connection? Waits for it; what it had sent is dropped. */
static inline bool closed(int sock)
{
    char bytes[4096];
    ssize_t n;

    do
        n = recv(sock, bytes, sizeof(bytes), 0);
    while (n > 0);
    return n == 0 || errno == ECONNRESET;
}

#endif
