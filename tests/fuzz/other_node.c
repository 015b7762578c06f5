/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/other_node.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/broker/nodes/node.h"

enum { WIRES = 6, ROOM = 4096 };

/* A connection with the real broker. */
struct wire {
    int sock;         /* -1: none */
    bool ours;        /* this one has asked for it */
    bool asked;       /* the request has been sent, or has come */
    bool answered;    /* so has the answer */
    bool is_link;     /* ... and it is a link: beats */
    bool is_handed;   /* ... or a worker's, and nothing of what comes is the broker's */
    bool spoilt;      /* it has said what is not sealed: nothing is expected of the answer */
    struct auth auth; /* done: what follows is sealed */
    size_t have;
    unsigned char in[ROOM];
};

static struct cluster_key key;
static char key_path[256], own[FCC_NODE_MAX], called[FCC_NODE_MAX];
static int listener = -1;
static struct sockaddr_in real_at;
static struct wire wires[WIRES];
static bool is_there; /* otherwise whoever connects to it waits */
static bool silent;   /* it does not answer by itself */

/* ---- life ---- */

static int sock_make(struct sockaddr_in *at)
{
    socklen_t length = sizeof(*at);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    FUZZ_CHECK(sock >= 0 && bind(sock, (const struct sockaddr *)at, sizeof(*at)) == 0 &&
               getsockname(sock, (struct sockaddr *)at, &length) == 0);
    return sock;
}

void other_begin(const char *directory, char real[FCC_NODE_MAX], char other[FCC_NODE_MAX])
{
    struct sockaddr_in at;
    int sock = sock_make(&real_at); /* a port that nobody has */

    (void)close(sock);
    listener = sock_make(&at);
    FUZZ_CHECK(listen(listener, WIRES) == 0);
    (void)snprintf(called, sizeof(called), "127.0.0.1:%u", ntohs(real_at.sin_port));
    (void)snprintf(own, sizeof(own), "127.0.0.1:%u", ntohs(at.sin_port));
    (void)snprintf(key_path, sizeof(key_path), "%s/key", directory);
    key.length = CLUSTER_KEY_MIN;
    memset(key.bytes, 'k', key.length);
    int fd = open(key_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, key.bytes, key.length) == (ssize_t)key.length && close(fd) == 0);
    memcpy(real, called, FCC_NODE_MAX);
    memcpy(other, own, FCC_NODE_MAX);
}

void other_forget(void)
{
    (void)unlink(key_path);
}

/* Reset, so that nothing of it lingers: the next input has the same addresses. */
static void wire_close(struct wire *w)
{
    static const struct linger at_once = {.l_onoff = 1};

    if (w->sock >= 0) {
        (void)setsockopt(w->sock, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        (void)close(w->sock);
        auth_end(&w->auth);
    }
    *w = (struct wire){.sock = -1};
}

void other_open(void)
{
    is_there = true;
    silent = false;
    for (int i = 0; i < WIRES; i++)
        wires[i] = (struct wire){.sock = -1};
}

void other_close(void)
{
    int sock;

    is_there = false;
    for (int i = 0; i < WIRES; i++)
        wire_close(&wires[i]);
    while ((sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        (void)close(sock);
}

/* ---- saying ---- */

static void say(struct wire *w, const void *bytes, size_t n)
{
    (void)send(w->sock, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void proof_say(struct wire *w)
{
    unsigned char says[sizeof(w->auth.says)];
    size_t n = auth_says(&w->auth, says);

    if (n)
        say(w, says, n);
}

static void frame_say(struct wire *w, const void *frame, size_t n)
{
    unsigned char bytes[NODE_FRAME_MAX];

    memcpy(bytes, frame, n);
    if (auth_seal(&w->auth, frame, n, bytes + n) == 0)
        say(w, bytes, n + AUTH_TAG_BYTES);
}

static void wire_begin(struct wire *w, int sock, bool ours)
{
    struct error e;
    int on = 1;

    *w = (struct wire){.sock = sock, .ours = ours};
    if (sock >= 0) /* what is said behind a proof is not to wait for an acknowledgement */
        (void)setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (sock >= 0 && auth_begin(&w->auth, ours ? AUTH_INITIATOR : AUTH_RESPONDER, &key, own, ours ? called : NULL, &e) == 0)
        proof_say(w);
    else if (sock >= 0)
        wire_close(w);
}

static void wire_connect(struct wire *w)
{
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    FUZZ_CHECK(sock >= 0);
    if (connect(sock, (const struct sockaddr *)&real_at, sizeof(real_at)) && errno != EINPROGRESS) {
        (void)close(sock);
        sock = -1;
    }
    wire_begin(w, sock, true); /* the loopback takes what is sent before the broker has accepted */
}

static void answer_say(struct wire *w, const struct node_answer *answer)
{
    frame_say(w, answer, sizeof(*answer));
    w->answered = w->answered || !w->ours;
}

/* ---- hearing ---- */

static void request_hear(struct wire *w, const struct node_request *r)
{
    struct node_answer yes = {.at = {.broker = htole64(7), .number = htole64(1)}};
    uint32_t what = le32toh(r->what);

    FUZZ_CHECK((what == NODE_LINK || what == NODE_PEER) && memchr(r->job, 0, sizeof(r->job)));
    w->asked = true;
    w->is_link = what == NODE_LINK;
    if (!silent)
        answer_say(w, &yes);
}

static void answer_hear(struct wire *w, const struct node_answer *a)
{
    int32_t status = (int32_t)le32toh((uint32_t)a->status);

    FUZZ_CHECK(w->asked && status <= 0 && status >= -4095 && memchr(a->text, 0, sizeof(a->text)) && (!status || a->text[0]));
    w->answered = true;
    w->is_handed = !w->is_link && !status;
}

static void beat_hear(struct wire *w, const struct node_beat *b)
{
    FUZZ_CHECK(w->is_link && w->answered);
    if (!w->ours && !silent)
        frame_say(w, b, sizeof(*b));
}

/* How much the next frame has, with its tag; 0: nothing may come. */
static size_t frame_bytes(const struct wire *w)
{
    if (!auth_done(&w->auth))
        return auth_wants(&w->auth);
    if (!w->ours && !w->asked)
        return sizeof(struct node_request) + AUTH_TAG_BYTES;
    if (w->ours && !w->answered)
        return sizeof(struct node_answer) + AUTH_TAG_BYTES;
    return sizeof(struct node_beat) + AUTH_TAG_BYTES;
}

static void frame_take(struct wire *w, size_t n)
{
    struct error e;

    if (!auth_done(&w->auth)) {
        FUZZ_CHECK(auth_take(&w->auth, w->in, &e) == 0 || w->spoilt); /* otherwise both are honest so far */
        proof_say(w);
        return;
    }
    n -= AUTH_TAG_BYTES;
    FUZZ_CHECK(auth_open(&w->auth, w->in, n, w->in + n) == 0);
    if (!w->ours && !w->asked) {
        struct node_request r;
        memcpy(&r, w->in, sizeof(r));
        request_hear(w, &r);
    } else if (w->ours && !w->answered) {
        struct node_answer a;
        memcpy(&a, w->in, sizeof(a));
        answer_hear(w, &a);
    } else {
        struct node_beat b;
        memcpy(&b, w->in, sizeof(b));
        beat_hear(w, &b);
    }
}

static void wire_read(struct wire *w)
{
    ssize_t n = 0;

    while (w->sock >= 0 && (n = recv(w->sock, w->in + w->have, sizeof(w->in) - w->have, MSG_DONTWAIT)) >= 0) {
        if (n == 0) {
            wire_close(w);
            return;
        }
        w->have += (size_t)n;
        for (size_t bytes; !w->is_handed && (bytes = frame_bytes(w)) > 0 && bytes <= w->have;) {
            frame_take(w, bytes);
            w->have -= bytes;
            memmove(w->in, w->in + bytes, w->have);
        }
        if (w->is_handed)
            w->have = 0;
    }
    if (w->sock >= 0 && n < 0 && errno != EAGAIN)
        wire_close(w);
}

void other_turn(void)
{
    for (int i = 0; is_there && i < WIRES; i++) {
        if (wires[i].sock < 0)
            wire_begin(&wires[i], accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), false);
        wire_read(&wires[i]);
    }
}

/* ---- what the input wants ---- */

/* Some bytes of it are others. */
static void spoil(void *bytes, size_t n, struct input *in)
{
    int64_t value = input_number(in);
    size_t at = input_below(in, (uint32_t)n);

    memcpy((unsigned char *)bytes + at, &value, n - at < sizeof(value) ? n - at : sizeof(value));
}

static void request_want(struct wire *w, struct input *in)
{
    uint32_t how = input_u8(in);
    struct node_request r = {.what = htole32(how & 1 ? NODE_PEER : NODE_LINK),
                             .uid = htole32(how & 2 ? 12345 : (uint32_t)geteuid()),
                             .purpose = htole32(how),
                             .limit_ms = htole32(how & 4 ? 30 : 1),
                             .from = {.broker = htole64(7), .number = htole64(1 + (how >> 3 & 1))},
                             .to = {.number = htole64(how >> 4 & 1)}};

    (void)snprintf(r.job, sizeof(r.job), "%s", how & 32 ? "b" : "a");
    if (how >= 0xc0)
        spoil(&r, sizeof(r), in);
    w->is_link = w->ours && !w->asked ? le32toh(r.what) == NODE_LINK : w->is_link;
    w->asked = w->asked || w->ours;
    frame_say(w, &r, sizeof(r));
}

static void answer_want(struct wire *w, struct input *in)
{
    uint32_t how = input_u8(in);
    struct node_answer a = {.status = (int32_t)htole32((uint32_t)(how & 1 ? -(int32_t)(how >> 1) : 0)),
                            .at = {.broker = htole64(7), .number = htole64(how >> 4 & 3)}};

    memset(a.text, how & 2 ? '\033' : 'x', how & 4 ? sizeof(a.text) : 7);
    if (how >= 0xc0)
        spoil(&a, sizeof(a), in);
    answer_say(w, &a);
}

static void beat_want(struct wire *w, struct input *in)
{
    struct node_beat b = {.number = htole64((uint64_t)input_number(in)), .zero = input_rarely(in, 8)};

    frame_say(w, &b, sizeof(b));
}

/* Bytes of any length, sealed or not; or a frame whose rest does not come. */
static void bytes_want(struct wire *w, struct input *in, bool sealed)
{
    unsigned char bytes[NODE_FRAME_MAX - AUTH_TAG_BYTES];
    size_t n = 1 + input_below(in, sizeof(bytes) - 1);

    for (size_t i = 0; i < n; i++)
        bytes[i] = input_u8(in);
    if (sealed)
        frame_say(w, bytes, n);
    else
        say(w, bytes, n);
    w->spoilt = w->spoilt || !sealed;
}

void other_step(struct input *in)
{
    uint32_t how = input_u8(in);
    struct wire *w = &wires[(how >> 3) % WIRES];
    bool proven = w->sock >= 0 && auth_done(&w->auth);

    other_turn();
    if (w->sock < 0) {
        if ((how & 7) < 6)
            wire_connect(w);
        else
            silent = !silent;
        return;
    }
    switch (how & 7) {
    case 0:
    case 1:
        if (proven)
            request_want(w, in);
        break;
    case 2:
        if (proven)
            answer_want(w, in);
        break;
    case 3:
        if (proven)
            beat_want(w, in);
        break;
    case 4:
        if (proven)
            bytes_want(w, in, true);
        break;
    case 5:
        bytes_want(w, in, false);
        break;
    case 6:
        if (how & 0x80)
            (void)shutdown(w->sock, SHUT_WR);
        else
            wire_close(w);
        break;
    default:
        silent = !silent;
        break;
    }
}
