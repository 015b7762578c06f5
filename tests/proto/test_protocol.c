/* SPDX-License-Identifier: MIT
 *
 * test_protocol.c - bytes that no libfccclient would send, to the real broker and the real worker: each gets a clear answer or
 * a closed connection, and the daemon serves on.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/session.h"
#include "tests/bed/harness.h"
#include "tests/bed/raw.h"

static void refused(const struct test_daemon *d, const void *bytes, size_t length, const int *fds, int nfds, int status,
                    const char *says)
{
    struct raw *r = raw_open(d);

    raw_send(r, bytes, length, fds, nfds);
    const struct fcc_reply *reply = raw_receive(r);
    (void)fprintf(stderr, "%d: %s\n", reply->status, reply->text);
    CHECK(reply->msg.type == FCC_MSG_ERROR && reply->status == status && strstr(reply->text, says));
    CHECK(raw_closed(r));
    raw_close(r);
}

static void hello(void)
{
    static unsigned char huge[FCC_MSG_MAX + 4096];
    struct test_daemon d;
    struct fcc_hello h = hello_make(), good = h;
    int fds[6] = {0, 0, 0, 0, 0, 0};

    daemon_start(&d, NULL);
    h.version = 99;
    char says[64];
    (void)snprintf(says, sizeof(says), "speaks versions %u to %u: upgrade fccd", FCC_PROTO_OLDEST, FCC_PROTO_VERSION);
    refused(&d, &h, sizeof(h), NULL, 0, -EPROTO, says);
    h = good;
    h.magic = 1;
    refused(&d, &h, sizeof(h), NULL, 0, -EPROTO, "expected a HELLO");
    h = good;
    h.msg.type = FCC_MSG_SUBMIT;
    refused(&d, &h, sizeof(h), NULL, 0, -EPROTO, "expected a HELLO");
    h = good;
    h.role = 9;
    refused(&d, &h, sizeof(h), NULL, 0, -EPROTO, "role 9");
    h = good;
    memset(h.job, 'a', sizeof(h.job));
    refused(&d, &h, sizeof(h), NULL, 0, -EINVAL, "1 to 63 characters");
    (void)snprintf(h.job, sizeof(h.job), "a\nb");
    refused(&d, &h, sizeof(h), NULL, 0, -EINVAL, "printable");
    h.job[0] = 0;
    refused(&d, &h, sizeof(h), NULL, 0, -EINVAL, "1 to 63 characters");
    h = good;
    memset(h.mps_pipe, '/', sizeof(h.mps_pipe));
    refused(&d, &h, sizeof(h), NULL, 0, -EINVAL, "mps_pipe");
    (void)snprintf(h.mps_pipe, sizeof(h.mps_pipe), "relative");
    refused(&d, &h, sizeof(h), NULL, 0, -EINVAL, "mps_pipe");
    (void)snprintf(h.mps_pipe, sizeof(h.mps_pipe), "/tmp/\x1b[2J");
    refused(&d, &h, sizeof(h), NULL, 0, -EINVAL, "mps_pipe");
    h = good;
    refused(&d, &h, 10, NULL, 0, -EPROTO, "malformed");
    refused(&d, &h, sizeof(h) - 8, NULL, 0, -EPROTO, "malformed"); /* its length field lies */
    h.msg.length = sizeof(h) - 8;
    refused(&d, &h, sizeof(h) - 8, NULL, 0, -EPROTO, "expected 208");
    memcpy(huge, &good, sizeof(good));
    refused(&d, huge, sizeof(huge), NULL, 0, -EPROTO, "longer than 65536");
    refused(&d, &good, sizeof(good), fds, 1, -EPROTO, "1 file descriptors: expected none");
    refused(&d, &good, sizeof(good), fds, 6, -EPROTO, "malformed");
    h = good;
    h.role = FCC_ROLE_CONTROL;
    h.uid = geteuid();
    (void)snprintf(h.job, sizeof(h.job), "nobody-has-this");
    refused(&d, &h, sizeof(h), NULL, 0, -ENOENT, "no such job");
    raw_close(raw_session(&d)); /* and it still serves */
    daemon_stop(&d);
}

static void silence(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    double start = now_ms();
    struct raw *r = raw_open(&d);
    CHECK(raw_closed(r));
    CHECK(now_ms() - start > 4000);
    raw_close(r);
    daemon_stop(&d);
}

static void requests(void)
{
    struct test_daemon d;
    int fd = 0;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    struct {
        struct fcc_msg msg;
        unsigned char more[400];
    } m = {.msg = {.length = 16, .type = 999, .id = 5}};
    const struct fcc_reply *reply;

    raw_send(r, &m, 16, NULL, 0);
    reply = raw_receive(r);
    CHECK(reply->status == -EPROTO && reply->msg.id == 5 && strstr(reply->text, "type 999"));
    m.msg.type = FCC_MSG_COMM_INIT;
    raw_send(r, &m, 16, NULL, 0);
    CHECK(raw_receive(r)->status == -EPROTO &&
          strstr(((struct fcc_reply *)r->in)->text, "comm_init: 16 bytes: expected at least 168"));
    m.msg.type = FCC_MSG_BUFFER_FREE;
    m.msg.length = 300;
    raw_send(r, &m, 300, NULL, 0);
    CHECK(raw_receive(r)->status == -EPROTO &&
          strstr(((struct fcc_reply *)r->in)->text, "buffer_free: 300 bytes: expected 24"));
    m.msg.length = 24;
    raw_send(r, &m, 24, &fd, 1);
    CHECK(raw_receive(r)->status == -EPROTO && strstr(((struct fcc_reply *)r->in)->text, "1 file descriptors"));
    raw_send(r, &m, 24, NULL, 0);
    CHECK(raw_receive(r)->status == -ENOENT);
    m.msg.type = FCC_MSG_QUERY;
    m.msg.length = sizeof(struct fcc_query);
    raw_send(r, &m, sizeof(struct fcc_query), NULL, 0);
    CHECK(raw_receive(r)->status == -EPERM);
    m.msg.type = FCC_MSG_HELLO;
    m.msg.length = sizeof(struct fcc_hello);
    raw_send(r, &m, sizeof(struct fcc_hello), NULL, 0);
    CHECK(raw_receive(r)->status == -EPROTO);
    CHECK(raw_comm(r) != 0); /* after all this it still serves this very session */
    m.msg.length = 17;
    raw_send(r, &m, 16, NULL, 0); /* a length that lies ends it */
    CHECK(raw_receive(r)->status == -EPROTO);
    CHECK(raw_closed(r));
    raw_close(r);
    daemon_stop(&d);
}

static void submit_over_socket(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    uint32_t comm = raw_comm(r);
    struct fcc_submit m = noop_make(comm, FCC_NO_SLOT);

    CHECK(submit_socket(r, &m, sizeof(m))->status == 0 && r->length == sizeof(struct fcc_submit_reply));
    m.op = 77;
    CHECK(submit_socket(r, &m, sizeof(m))->status == -EINVAL && strstr(((struct fcc_reply *)r->in)->text, "operator 77"));
    m = noop_make(comm + 1000, FCC_NO_SLOT);
    CHECK(submit_socket(r, &m, sizeof(m))->status == -ENOENT);
    m = noop_make(comm, FCC_NO_SLOT);
    m.ntensors = 3; /* that do not follow */
    CHECK(submit_socket(r, &m, sizeof(m))->status == -EPROTO);
    m.ntensors = 200;
    CHECK(submit_socket(r, &m, sizeof(m))->status == -EPROTO);
    m.ntensors = 0;
    m.nattrs = UINT32_MAX;
    CHECK(submit_socket(r, &m, sizeof(m))->status == -EPROTO);
    struct {
        struct fcc_submit m;
        int64_t word[2];
    } attr = {.m = noop_make(comm, FCC_NO_SLOT), .word = {(int64_t)FCC_ATTR_BATCH << 32 | 9, 1}};
    attr.m.msg.length = sizeof(attr);
    attr.m.nattrs = 2; /* an attribute that says it has nine words */
    CHECK(submit_socket(r, &attr, sizeof(attr))->status == -EINVAL);
    m = noop_make(comm, FCC_NO_SLOT);
    CHECK(submit_socket(r, &m, sizeof(m))->status == 0);
    m.slot = FCC_SLOTS; /* a slot that there is not: nowhere to answer */
    raw_send(r, &m, sizeof(m), NULL, 0);
    CHECK(raw_closed(r));
    raw_close(r);
    daemon_stop(&d);
}

/* Where the next record goes. */
static unsigned char *ring_next(const struct raw *r)
{
    return r->memory->data + r->memory->head % FCC_RING_BYTES;
}

static void ring_publish(struct raw *r, uint64_t claim)
{
    uint64_t one = 1;

    atomic_store(&r->memory->head, r->memory->head + claim);
    CHECK(write(r->doorbell, &one, sizeof(one)) == sizeof(one));
}

static void ring_put(struct raw *r, const void *record, size_t length, uint64_t claim)
{
    memcpy(ring_next(r), record, length);
    ring_publish(r, claim);
}

#define SUBMIT_ROOM ((sizeof(struct fcc_submit) + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN)

/* Until the operator has finished. False: the session has been closed instead, or has answered over the socket. */
static bool slot_await(const struct raw *r, uint32_t slot)
{
    struct pollfd p = {.fd = r->sock, .events = POLLIN};
    double until = await_end();

    while (atomic_load(&r->memory->slot[slot].state) != FCC_SLOT_DONE) {
        if (poll(&p, 1, 0) > 0)
            return false;
        CHECK(now_ms() < until);
    }
    return true;
}

/* What the engine of a daemon on these cores says of where it runs, after one operator of a single client. */
static uint32_t engine_core_on(const cpu_set_t *cores)
{
    struct test_daemon d;
    cpu_set_t all;

    CHECK(sched_getaffinity(0, sizeof(all), &all) == 0 && sched_setaffinity(0, sizeof(*cores), cores) == 0);
    daemon_start(&d, NULL);
    CHECK(sched_setaffinity(0, sizeof(all), &all) == 0);
    struct raw *r = raw_session(&d);
    struct fcc_submit m = noop_make(raw_comm(r), 0);
    ring_put(r, &m, sizeof(m), SUBMIT_ROOM);
    CHECK(slot_await(r, 0));
    uint32_t core = atomic_load(&r->memory->engine_core);
    raw_close(r);
    daemon_stop(&d);
    return core;
}

/* It says so where there is no core for each client and itself. */
static void engine_core(void)
{
    cpu_set_t all, one;
    int core = 0;

    CHECK(sched_getaffinity(0, sizeof(all), &all) == 0);
    while (!CPU_ISSET(core, &all))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CHECK(engine_core_on(&one) == (uint32_t)core + 1);
    if (CPU_COUNT(&all) > 1)
        CHECK(engine_core_on(&all) == 0);
}

/* What a thread writes over, again and again. */
struct scribble {
    _Atomic(_Atomic uint64_t *) at; /* a record; NULL: nothing */
    struct fcc_submit right;
    _Atomic bool resting, over;
    _Atomic unsigned rounds; /* that it has gone over a record */
};

/* So that a word is wrong for about as long as it is right, and whoever looks, or interrupts the thread, finds either. */
static void linger(void)
{
    for (volatile int i = 0; i < 20; i++)
        ;
}

/* Now a word of the record is wrong, now it is right: length and type; id; comm and operator; slot. */
static void *scribble(void *argument)
{
    struct scribble *s = argument;
    uint64_t word[4];

    while (!s->over) {
        _Atomic uint64_t *at = s->at;
        s->resting = !at;
        if (!at)
            continue;
        memcpy(word, &s->right, sizeof(word));
        for (unsigned i = 0; i < 4; i++) {
            atomic_store_explicit(&at[i], ~word[i], memory_order_relaxed);
            linger();
            atomic_store_explicit(&at[i], word[i], memory_order_relaxed);
            linger();
        }
        s->rounds++;
    }
    return NULL;
}

static void scribble_stop(struct scribble *s)
{
    s->at = NULL;
    s->resting = false;
    while (!s->resting)
        (void)sched_yield();
}

/* The client writes on in its ring while the worker reads: the copy that was judged is what runs. Where that is no record, or none
 * for this slot, the session ends, and another one is as good as new. */
static void ring_changes(void)
{
    struct test_daemon d;
    struct scribble s = {.over = false};
    int done = 0, closed = 0;
    pthread_t thread;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    uint32_t comm = raw_comm(r);
    CHECK(pthread_create(&thread, NULL, scribble, &s) == 0);
    for (double until = now_ms() + 20e3; (done < 300 || closed < 30) && now_ms() < until;) {
        s.right = noop_make(comm, (uint32_t)done % FCC_SLOTS);
        memcpy(ring_next(r), &s.right, sizeof(s.right));
        atomic_store(&r->memory->slot[s.right.slot].state, FCC_SLOT_PENDING);
        const unsigned rounds = s.rounds;
        s.at = (_Atomic uint64_t *)(void *)ring_next(r);
        while (s.rounds == rounds) /* it writes by now, however busy the machine is */
            (void)sched_yield();
        ring_publish(r, SUBMIT_ROOM);
        bool ran = slot_await(r, s.right.slot);
        scribble_stop(&s);
        done += ran;
        closed += !ran;
        if (!ran || r->memory->head > FCC_RING_BYTES / 2) { /* no record here goes on at the ring's begin */
            raw_close(r);
            r = raw_session(&d);
            comm = raw_comm(r);
        }
    }
    s.over = true;
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%d operators ran, %d sessions had to end\n", done, closed);
    CHECK(done > 0 && closed > 0);
    raw_close(r);
    daemon_stop(&d);
}

static void ring_closes(const struct test_daemon *d, const void *record, size_t length, uint64_t claim)
{
    struct raw *r = raw_session(d);

    ring_put(r, record, length, claim);
    CHECK(raw_closed(r));
    raw_close(r);
}

static void ring_lies(void)
{
    struct test_daemon d;
    struct fcc_submit m = noop_make(1, 0);

    daemon_start(&d, NULL);
    struct raw *bystander = raw_session(&d);
    uint32_t comm = raw_comm(bystander);
    ring_closes(&d, &m, sizeof(m), UINT64_MAX);          /* a head from nowhere */
    ring_closes(&d, &m, sizeof(m), FCC_RING_BYTES + 16); /* more than fits */
    ring_closes(&d, &m, sizeof(m), 8);                   /* less than a record */
    m.msg.length = 4;
    ring_closes(&d, &m, sizeof(m), sizeof(m)); /* shorter than its header */
    m.msg.length = FCC_MSG_MAX + 1;
    ring_closes(&d, &m, sizeof(m), FCC_RING_BYTES);
    m.msg.length = 4096; /* longer than what was published */
    ring_closes(&d, &m, sizeof(m), 64);
    m = noop_make(1, FCC_SLOTS); /* a slot that there is not */
    ring_closes(&d, &m, sizeof(m), sizeof(m));
    m = noop_make(1, 0);
    m.msg.type = FCC_MSG_COMM_ABORT; /* not for the ring */
    ring_closes(&d, &m, sizeof(m), sizeof(m));
    m = noop_make(comm, FCC_NO_SLOT); /* the same worker, another session: not disturbed */
    CHECK(submit_socket(bystander, &m, sizeof(m))->status == 0);
    raw_close(bystander);
    daemon_stop(&d);
}

/* Replies that nobody reads are kept, up to a bound; past it the session ends, and only that one. */
static void never_reads(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d), *other = raw_session(&d);
    struct fcc_msg ask = {.length = sizeof(ask), .type = FCC_MSG_UNIQUE_ID, .id = 1};
    double until = await_end();
    long sent = 0;

    for (;;) {
        CHECK(now_ms() < until);
        ssize_t n = send(r->sock, &ask, sizeof(ask), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            (void)usleep(200);
            continue;
        }
        if (n < 0)
            break;
        sent++;
    }
    printf("closed after %ld requests whose replies were not read\n", sent);
    CHECK(sent > 1000);
    CHECK(raw_comm(other) != 0);
    raw_close(other);
    raw_close(r);
    daemon_stop(&d);
}

/* Bytes at random, to broker and worker, with a seed that is printed. */
static void noise(void)
{
    static _Alignas(16) unsigned char bytes[2048];
    struct test_daemon d;
    const char *given = getenv("FCC_TEST_SEED");
    unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : 20261120u;

    printf("FCC_TEST_SEED=%u\n", seed);
    srandom(seed);
    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    for (int i = 0; i < 3000; i++) {
        bool to_worker = i % 3;
        size_t length = 1 + (size_t)random() % sizeof(bytes);
        for (size_t k = 0; k < length; k++)
            bytes[k] = (unsigned char)(random() % 4 ? 0 : random());
        struct fcc_msg m = {.length = (uint32_t)length, .type = (uint16_t)(random() % (FCC_MSG_TYPES + 2)), .id = (uint64_t)i};
        if (m.type == FCC_MSG_COMM_INIT)
            m.type = FCC_MSG_SUBMIT; /* a join is answered when all have come, which this test does not wait for */
        memcpy(bytes, &m, length < sizeof(m) ? length : sizeof(m));
        if (m.type == FCC_MSG_SUBMIT) /* the answer is to come over the socket */
            memset(bytes + offsetof(struct fcc_submit, slot), 0xff, sizeof(uint32_t));
        struct raw *to = to_worker ? r : raw_open(&d);
        raw_send(to, bytes, length, NULL, 0);
        int fds[FCC_MAX_FDS], nfds;
        ssize_t n = msg_recv(to->sock, to->in, sizeof(to->in), 0, fds, &nfds);
        CHECK(n >= 0); /* an answer, or the end; never silence */
        fds_close(fds, n > 0 ? nfds : 0);
        if (!to_worker) {
            raw_close(to);
        } else if (n == 0 || ((struct fcc_reply *)to->in)->msg.id != (uint64_t)i) {
            raw_close(r);
            r = raw_session(&d);
        }
    }
    CHECK(raw_comm(r) != 0);
    raw_close(r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"hello", hello, 0},
        {"silence", silence, 0},
        {"requests", requests, 0},
        {"submit_over_socket", submit_over_socket, 0},
        {"engine_core", engine_core, 0},
        {"ring_changes", ring_changes, 0},
        {"ring_lies", ring_lies, 0},
        {"never_reads", never_reads, 60},
        {"noise", noise, 60},
    };
    return tests_run("protocol", TESTS(tests));
}
