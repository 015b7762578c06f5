/* SPDX-License-Identifier: MIT
 *
 * test_protocol_tracker.c - trackers of clients that are no friends: rules on what is not theirs, numbers that fit nowhere, and counts and
 * words that jump. Each gets an answer, nothing is stored outside of what a rule names, and the daemon serves on.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bed/raw.h"

/* A whole message with its answer, and the descriptors that come with it. */
static int32_t ask(struct raw *r, struct fcc_msg *m, size_t length, uint16_t type, int fds[FCC_MAX_FDS])
{
    int got[FCC_MAX_FDS], n = 0;

    *m = (struct fcc_msg){.length = (uint32_t)length, .type = type, .id = 9};
    raw_send(r, m, length, NULL, 0);
    CHECK(msg_recv(r->sock, r->in, sizeof(r->in), 0, got, &n) > 0);
    for (int i = 0; i < n; i++)
        if (fds)
            fds[i] = got[i];
        else
            (void)close(got[i]);
    CHECK(((const struct fcc_reply *)r->in)->msg.type == (type | FCC_REPLY) && (!fds || n == 0 || n == 2));
    return ((const struct fcc_reply *)r->in)->status;
}

static int32_t tracker_ask(struct raw *r, uint32_t comm, uint16_t type, uint32_t tells)
{
    struct fcc_tracker_msg m = {.comm = comm, .tells = tells};

    return ask(r, &m.msg, sizeof(m), type, NULL);
}

static uint32_t buffer_make(struct raw *r, uint32_t comm, uint32_t kind, void **at)
{
    struct fcc_buffer_alloc_msg m = {
        .msg = {.length = sizeof(m), .type = FCC_MSG_BUFFER_ALLOC, .id = 9}, .comm = comm, .kind = kind, .bytes = 4096};
    int fds[FCC_MAX_FDS], n;

    raw_send(r, &m, sizeof(m), NULL, 0);
    CHECK(msg_recv(r->sock, r->in, sizeof(r->in), 0, fds, &n) > 0 && n == 1);
    *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    CHECK(*at != MAP_FAILED);
    (void)close(fds[0]);
    return ((struct fcc_buffer_alloc_reply *)r->in)->buffer;
}

static int32_t rule_ask(struct raw *r, const struct fcc_rule_msg *rule)
{
    struct fcc_rule_msg m = *rule;

    return ask(r, &m.msg, sizeof(m), FCC_MSG_RULE, NULL);
}

static void refuses_what_is_not_its_own(void)
{
    struct test_daemon d;
    void *at;

    daemon_start(&d, NULL);
    struct raw *a = raw_session(&d), *b = raw_session(&d);
    uint32_t comm = raw_comm(a), other = raw_comm(b);
    CHECK(tracker_ask(a, comm + 7, FCC_MSG_TRACKER, 0) == -ENOENT);
    CHECK(tracker_ask(a, comm, FCC_MSG_TRACKER_FREE, 0) == -ENOENT);
    CHECK(tracker_ask(a, comm, FCC_MSG_TRACKER, 1) == -EAGAIN && tracker_ask(a, comm, FCC_MSG_TRACKER, UINT32_MAX) == -EAGAIN);
    struct fcc_rule_msg rule = {.comm = comm, .action = FCC_RULE_STORE, .rows = 1, .row_bytes = 8, .count = 1};
    CHECK(rule_ask(a, &rule) == -ENOENT); /* there is no tracker */
    CHECK(tracker_ask(a, comm, FCC_MSG_TRACKER, 0) == 0);
    CHECK(tracker_ask(a, comm, FCC_MSG_TRACKER, 0) == -EALREADY);
    CHECK(tracker_ask(b, other, FCC_MSG_TRACKER, 0) == 0);
    uint32_t mine = buffer_make(a, comm, FCC_BUFFER_SYMMETRIC, &at), again = buffer_make(a, comm, FCC_BUFFER_LOCAL, &at),
             theirs = buffer_make(b, other, FCC_BUFFER_SYMMETRIC, &at), far = theirs + 1000;
    rule.from = again;
    rule.to = mine;
    CHECK(rule_ask(a, &rule) == 0);
#define REFUSED(STATUS, ...)                                                                                                   \
    do {                                                                                                                       \
        struct fcc_rule_msg bad = rule;                                                                                        \
        __VA_ARGS__;                                                                                                           \
        CHECK(rule_ask(a, &bad) == (STATUS));                                                                                  \
    } while (0)
    REFUSED(-ENOENT, bad.from = far);
    REFUSED(-ENOENT, bad.to = 0);
    REFUSED(-ENOENT, bad.signals = far);
    REFUSED(-ENOENT, bad.awaits[1].buffer = UINT32_MAX);
    REFUSED(-ENOENT, bad.comm = comm + 7);
    REFUSED(-EINVAL, bad.rank = INT32_MAX);
    REFUSED(-EINVAL, bad.rank = INT32_MIN);
    REFUSED(-EINVAL, bad.action = UINT32_MAX);
    REFUSED(-EINVAL, bad.count = UINT64_MAX);
    REFUSED(-EINVAL, bad.from_offset = UINT64_MAX);
    REFUSED(-EINVAL, bad.to_offset = UINT64_MAX - 7);
    REFUSED(-EINVAL, (bad.row_bytes = UINT64_MAX, bad.from_offset = 8));
    REFUSED(-EINVAL, (bad.rows = UINT32_MAX, bad.from_stride = bad.to_stride = UINT64_MAX));
    REFUSED(-EINVAL, (bad.signals = mine, bad.signal_offset = UINT64_MAX - 7));
    REFUSED(-EINVAL, (bad.action = FCC_RULE_ADD, bad.dtype = UINT32_MAX));
    struct fcc_rule_msg odd = rule;
    memset(odd.name, 0x1b, sizeof(odd.name)); /* without an end, and nothing for a terminal */
    CHECK(rule_ask(a, &odd) == 0);
    CHECK(tracker_ask(a, comm, FCC_MSG_TRACKER_FREE, 0) == 0 && rule_ask(a, &rule) == -ENOENT);
    struct fcc_comm_msg abort = {.comm = comm};
    CHECK(ask(a, &abort.msg, sizeof(abort), FCC_MSG_COMM_ABORT, NULL) == 0);
    CHECK(tracker_ask(a, comm, FCC_MSG_TRACKER, 1) == -ECONNABORTED &&
          tracker_ask(a, comm, FCC_MSG_TRACKER, 0) == -ECONNABORTED);
    raw_close(a);
    raw_close(b);
    daemon_stop(&d);
}

/* Counts jump to the largest number and back, so do words; the rule stores its rows and nothing else, and raises its signal by one. */
static void counts_jump(void)
{
    struct fcc_tracker_memory *memory;
    struct test_daemon d;
    int fds[FCC_MAX_FDS] = {-1, -1};
    unsigned char *from, *to;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    uint32_t comm = raw_comm(r);
    struct fcc_tracker_msg m = {.comm = comm};
    CHECK(ask(r, &m.msg, sizeof(m), FCC_MSG_TRACKER, fds) == 0);
    CHECK(fcntl(fds[0], F_GET_SEALS) & F_SEAL_SHRINK);
    memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    CHECK(memory != MAP_FAILED);
    uint32_t source = buffer_make(r, comm, FCC_BUFFER_LOCAL, (void **)&from),
             target = buffer_make(r, comm, FCC_BUFFER_SYMMETRIC, (void **)&to);
    memset(from, 7, 4096);
    const struct fcc_rule_msg rule = {.comm = comm,
                                      .action = FCC_RULE_STORE,
                                      .rows = 2,
                                      .row_bytes = 8,
                                      .from_stride = 64,
                                      .to_stride = 1024,
                                      .to_offset = 512,
                                      .count = 3,
                                      .from = source,
                                      .to = target,
                                      .signals = target,
                                      .signal_offset = 4088,
                                      .awaits = {{.buffer = target, .lag = 1, .offset = 8}}};
    CHECK(rule_ask(r, &rule) == 0);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(to + 8), *signal = (_Atomic uint64_t *)(void *)(to + 4088);
    for (int i = 0; i < 2000; i++) {
        atomic_store(&memory->rule[0].count, i % 3 ? UINT64_MAX - (uint64_t)i : (uint64_t)i);
        atomic_store(&memory->rule[i % FCC_RULES_MAX].count, UINT64_MAX);
        atomic_store(word, i % 2 ? UINT64_MAX : (uint64_t)i);
        atomic_store(&memory->rule[0].done, (uint64_t)i);
        atomic_store(&memory->rule[0].need, (uint64_t)(i % 5));
        atomic_store(&memory->sleeps, (uint32_t)i % 3);
        atomic_store(&memory->sleepers, UINT32_MAX);
        (void)eventfd_write(fds[1], 1);
        CHECK((i == 0 || i % 50) || tracker_ask(r, comm, FCC_MSG_TRACKER, 1) == -EAGAIN);
    }
    atomic_store(word, UINT64_MAX / 2);
    atomic_store(&memory->rule[0].count, UINT64_MAX);
    for (uint64_t seen = atomic_load(signal), until = seen + 100; atomic_load(signal) < until;)
        (void)eventfd_write(fds[1], 1);
    for (int i = 16; i < 4088; i++)
        CHECK(to[i] == (i >= 512 && i < 520 ? 7 : i >= 1536 && i < 1544 ? 7 : 0));
    (void)close(fds[0]);
    (void)close(fds[1]);
    raw_close(r);
    daemon_stop(&d);
}

/* A store of 8 bytes whenever the count is raised, and, if `awaits`, the word at byte 8 is: its signal is the word at byte 16. */
static _Atomic uint64_t *rule_arm(struct raw *r, uint32_t comm, bool awaits, _Atomic uint64_t **word)
{
    unsigned char *at, *to;
    struct fcc_rule_msg rule = {.comm = comm,
                                .action = FCC_RULE_STORE,
                                .rows = 1,
                                .row_bytes = 8,
                                .count = 1,
                                .from = buffer_make(r, comm, FCC_BUFFER_LOCAL, (void **)&at),
                                .to = buffer_make(r, comm, FCC_BUFFER_SYMMETRIC, (void **)&to),
                                .signal_offset = 16};

    rule.signals = rule.to;
    if (awaits)
        rule.awaits[0].buffer = rule.to;
    rule.awaits[0].offset = 8;
    CHECK(rule_ask(r, &rule) == 0);
    *word = (_Atomic uint64_t *)(void *)(to + 8);
    return (_Atomic uint64_t *)(void *)(to + 16);
}

static struct fcc_tracker_memory *tracker_take(struct raw *r, uint32_t comm, int *bell)
{
    struct fcc_tracker_msg m = {.comm = comm};
    struct fcc_tracker_memory *memory;
    int fds[FCC_MAX_FDS] = {-1, -1};

    CHECK(ask(r, &m.msg, sizeof(m), FCC_MSG_TRACKER, fds) == 0);
    memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    CHECK(memory != MAP_FAILED);
    (void)close(fds[0]);
    *bell = fds[1];
    return memory;
}

/* Numbers of runs that streams would have worked off: they are believed as far as they go for a rule that is not counted for, and of one that is they are not. */
static void streams_jump(void)
{
    static const uint64_t wild[] = {1, UINT64_MAX, 0, UINT64_MAX / 2, 7, UINT64_MAX - 1};
    _Atomic uint64_t *word, *signal;
    struct test_daemon d;
    int bell;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    uint32_t comm = raw_comm(r);
    struct fcc_tracker_memory *m = tracker_take(r, comm, &bell);
    signal = rule_arm(r, comm, false, &word);
    (void)rule_arm(r, comm, true, &word);
    for (int i = 0; i < 600; i++) {
        atomic_store(&m->rule[1].begun, wild[i % 6]);
        atomic_store(&m->rule[1].ran, wild[(i + 1) % 6]);
        if (i)
            atomic_store(&m->rule[0].ran, wild[i % 6]); /* counted for since i was 0 */
        else
            atomic_store(&m->rule[0].count, 1);
        (void)eventfd_write(bell, 1);
        while (i == 0 && atomic_load(signal) < 1)
            nap();
        CHECK(i % 50 || tracker_ask(r, comm, FCC_MSG_TRACKER, 1) == -EAGAIN);
    }
    atomic_store(&m->rule[0].count, 2);
    (void)eventfd_write(bell, 1);
    while (atomic_load(signal) < 2)
        nap();
    while (atomic_load(&m->rule[1].done) != UINT64_MAX)
        (void)eventfd_write(bell, 1);
    CHECK(tracker_ask(r, comm, FCC_MSG_TRACKER_FREE, 0) == 0);
    (void)close(bell);
    raw_close(r);
    daemon_stop(&d);
}

/* Who waits in the memory of a tracker that is freed is told: by each rule's status, and as news. */
static void tells_the_end(void)
{
    _Atomic uint64_t *word, *signal;
    struct test_daemon d;
    int bell;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    uint32_t comm = raw_comm(r);
    struct fcc_tracker_memory *m = tracker_take(r, comm, &bell);
    signal = rule_arm(r, comm, false, &word);
    (void)rule_arm(r, comm, true, &word);
    atomic_store(&m->rule[0].count, 1);
    (void)eventfd_write(bell, 1);
    while (atomic_load(signal) < 1)
        nap();
    const uint32_t news = atomic_load(&m->news);
    CHECK(atomic_load(&m->rule[0].status) == 0 && atomic_load(&m->rule[1].status) == 0);
    CHECK(tracker_ask(r, comm, FCC_MSG_TRACKER_FREE, 0) == 0);
    CHECK(atomic_load(&m->rule[0].status) == -ENOENT && atomic_load(&m->rule[1].status) == -ENOENT);
    CHECK(atomic_load(&m->rule[0].done) == 1 && atomic_load(&m->rule[1].done) == 0 && atomic_load(&m->news) != news);
    (void)close(bell);
    raw_close(r);
    daemon_stop(&d);
}

/* A client whose bell blocks who writes it, as it is full, and then who reads it, as it is empty: neither the engine nor the thread does,
 * so another client is served. */
static void spoils_its_own_bell(void)
{
    _Atomic uint64_t *word, *signal, *theirs;
    struct test_daemon d;
    int bell, other_bell;
    eventfd_t n;

    daemon_start(&d, NULL);
    struct raw *a = raw_session(&d), *b = raw_session(&d);
    uint32_t comm = raw_comm(a), other = raw_comm(b);
    struct fcc_tracker_memory *m = tracker_take(a, comm, &bell), *o;
    signal = rule_arm(a, comm, true, &word);
    /* A run waits for its word: the thread does not sleep, so it hears no bell. */
    atomic_store(&m->rule[0].count, 1);
    (void)eventfd_write(bell, 1);
    for (int i = 0; i < 3; i++)
        for (nap(); atomic_load(&m->sleeps);)
            nap();
    CHECK(fcntl(bell, F_SETFL, O_NONBLOCK) == 0);
    (void)eventfd_read(bell, &n);
    CHECK(eventfd_write(bell, UINT64_MAX - 1) == 0);
    CHECK(fcntl(bell, F_SETFL, 0) == 0);
    CHECK(tracker_ask(b, other, FCC_MSG_TRACKER, 0) == 0 && tracker_ask(b, other, FCC_MSG_TRACKER_FREE, 0) == 0);
    o = tracker_take(b, other, &other_bell);
    atomic_store(word, 1);
    while (atomic_load(signal) < 1)
        nap();
    /* Now the thread sleeps, for a moment at a time, and is not rung for. */
    CHECK(fcntl(bell, F_SETFL, O_NONBLOCK) == 0);
    (void)eventfd_read(bell, &n);
    CHECK(fcntl(bell, F_SETFL, 0) == 0);
    theirs = rule_arm(b, other, false, &word);
    atomic_store(&m->polls, 1);
    atomic_store(&o->polls, 1);
    (void)eventfd_write(other_bell, 1);
    for (uint64_t run = 1; run <= 5; run++) {
        (void)usleep(20000); /* it sleeps meanwhile */
        atomic_store(&o->rule[0].count, run);
        while (atomic_load(theirs) < run)
            nap();
    }
    (void)close(bell);
    (void)close(other_bell);
    raw_close(a);
    raw_close(b);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"refuses_what_is_not_its_own", refuses_what_is_not_its_own, 0},
        {"counts_jump", counts_jump, 0},
        {"streams_jump", streams_jump, 0},
        {"tells_the_end", tells_the_end, 0},
        {"spoils_its_own_bell", spoils_its_own_bell, 0},
    };

    return tests_run("protocol_tracker", TESTS(tests));
}
