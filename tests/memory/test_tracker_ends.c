/* SPDX-License-Identifier: MIT
 *
 * test_tracker_ends.c - rules that are refused, in words; and what ends rules and those who wait for them: a time limit, which names the
 * rule, a death, an abort, the worker's end, and buffers that are freed.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/bed/harness.h"

enum { BYTES = 4096 };

struct place {
    fcc_comm *comm;
    fcc_tracker *t;
    fcc_buffer *own, *there, *words;
    struct fcc_rule rule; /* that stores 100 bytes at the next rank, each run of 4 */
};

static struct place place_make(const struct ranks *all, int rank, uint32_t limit_ms)
{
    struct place p = {.comm = comm_open(all, rank, limit_ms)};

    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_LOCAL, BYTES, &p.own));
    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_SYMMETRIC, BYTES, &p.there));
    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_SYMMETRIC, 64, &p.words));
    OK(fcc_tracker_create(p.comm, &p.t));
    p.rule = (struct fcc_rule){.name = "halo",
                               .count = 4,
                               .action = FCC_RULE_STORE,
                               .rank = (rank + 1) % all->n,
                               .rows = 1,
                               .row_bytes = 100,
                               .from = p.own,
                               .to = p.there,
                               .signals = p.words};
    return p;
}

static void leave(fcc_comm *comm)
{
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* ---- what rules may be ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    struct place p = place_make(all, rank, 0);
    struct fcc_unique_id id;
    fcc_buffer *foreign;
    fcc_comm *other;
    uint32_t number = 77;
    struct fcc_rule r;

    (void)argument;
#define REFUSED(STATUS, CHANGE, ...)                                                                                           \
    do {                                                                                                                       \
        r = p.rule;                                                                                                            \
        CHANGE;                                                                                                                \
        FAILS(fcc_tracker_rule(p.t, &r, &number), STATUS, __VA_ARGS__);                                                        \
    } while (0)
    REFUSED(-EINVAL, r.count = 0, "count: 0", "allowed are 1 to 4294967296");
    REFUSED(-EINVAL, r.count = 1ull << 33, "count: 8589934592");
    REFUSED(-EINVAL, r.action = 3, "action: 3", "2 (add)");
    REFUSED(-EINVAL, r.rank = all->n, "rank: 2: allowed are 0 to 1");
    REFUSED(-EINVAL, r.rank = -1, "rank: -1");
    REFUSED(-EINVAL, r.rows = 0, "0 rows of 100 bytes", "do not lie in from");
    REFUSED(-EINVAL, r.row_bytes = 0, "do not lie in from");
    REFUSED(-EINVAL, r.from_offset = BYTES - 99, "from offset 3997", "from, which has 4096 bytes");
    REFUSED(-EINVAL, r.to_offset = BYTES - 99, "to, which has 4096 bytes");
    REFUSED(-EINVAL, (r.rows = 2, r.from_stride = 99), "99 apart", "or within each other");
    REFUSED(-EINVAL, (r.rows = UINT32_MAX, r.from_stride = UINT64_MAX / 2), "do not lie in from");
    REFUSED(-EINVAL, r.to = p.own, "to: it is not symmetric");
    REFUSED(-EINVAL, (r.from = p.there, r.rank = rank, r.to_offset = 99), "from and to", "overlap");
    REFUSED(-EINVAL, (r.action = FCC_RULE_ADD, r.dtype = FCC_I32), "dtype: 4", "1 (f32)");
    REFUSED(-EINVAL, (r.action = FCC_RULE_ADD, r.dtype = FCC_F32, r.from_offset = 2), "from: offset 2", "4 bytes");
    REFUSED(-EINVAL, (r.action = FCC_RULE_ADD, r.dtype = FCC_F32, r.row_bytes = 102), "rows of 102 bytes");
    REFUSED(-EINVAL, r.signal_offset = 4, "signal_offset: 4", "multiples of 8 up to 56");
    REFUSED(-EINVAL, r.signal_offset = 64, "signal_offset: 64");
    REFUSED(-EINVAL, r.signals = p.own, "signals: it is not symmetric");
    REFUSED(-EINVAL, (r.awaits[0].buffer = p.words, r.awaits[0].offset = 57), "awaits.offset: 57");
    REFUSED(-EINVAL, (r.awaits[1].buffer = p.words, r.awaits[1].lag = 2), "awaits[1].lag: 2: allowed are 0 and 1");
    REFUSED(-EINVAL, r.awaits[1].reserved = 1, "awaits[1].reserved: 1: must be 0");
    REFUSED(-EINVAL, r.reserved[2] = 9, "reserved[2]: 9: must be 0");
    REFUSED(-EINVAL, r.name = "12345678901234567890123456789012", "name: 32 characters", "31");
    REFUSED(-EINVAL, r.name = "a\nb", "name", "printable");
    REFUSED(-ENOENT, r.from = NULL, "from: buffer 0");
    REFUSED(-ENOENT, r.from = (fcc_buffer *)&p, "from: no buffer of this job");
    REFUSED(-ENOENT, r.awaits[0].buffer = (fcc_buffer *)&p, "awaits: no buffer of this job");
    OK(fcc_get_unique_id(comm_context(), &id));
    OK(fcc_comm_init(comm_context(), &id, 1, 0, NULL, &other));
    OK(fcc_buffer_alloc(other, FCC_BUFFER_SYMMETRIC, BYTES, &foreign));
    REFUSED(-ENOENT, r.from = foreign, "no such buffer of this rank");
    REFUSED(-ENOENT, r.signals = foreign, "no such buffer of this rank");
    fcc_comm_destroy(other);
    FAILS(fcc_tracker_rule(p.t, NULL, &number), -EINVAL, "rule: NULL");
    FAILS(fcc_tracker_rule(p.t, &p.rule, NULL), -EINVAL, "number: NULL");
    FAILS(fcc_tracker_rule(NULL, &p.rule, &number), -EINVAL, "tracker: NULL");
    FAILS(fcc_tracker_create(p.comm, NULL), -EINVAL, "out: NULL");
    CHECK(number == 77);
    FAILS(fcc_tracker_add(p.t, 0, 1), -EINVAL, "rule: 0: it has 0 rules");
    FAILS(fcc_signal_wait(p.comm, NULL, 1, 0), -EINVAL, "word");
    FAILS(fcc_signal_wait(p.comm, (const uint64_t *)4, 1, 0), -EINVAL, "aligned to 8");
    for (uint32_t i = 0; i < FCC_RULES_MAX; i++) {
        OK(fcc_tracker_rule(p.t, &p.rule, &number));
        CHECK(number == i);
    }
    FAILS(fcc_tracker_rule(p.t, &p.rule, &number), -ENOMEM, "256 rules", "no more");
    FAILS(fcc_tracker_wait(p.t, 0, 0, 0), -EINVAL, "run: 0");
    FAILS(fcc_tracker_wait(p.t, FCC_RULES_MAX, 1, 0), -EINVAL, "rule: 256");
    fcc_tracker_free(NULL);
    leave(p.comm);
}

static void refuses_rules(void)
{
    ranks_run(2, refused_rank, NULL);
}

/* To another node rows are stored, never added, and their stride is the same at both ends. */
static void far_rank(int rank, const struct ranks *all, void *argument)
{
    struct place p = place_make(all, rank, 0);
    uint32_t number;
    struct fcc_rule r;

    (void)argument;
    REFUSED(-EOPNOTSUPP, (r.action = FCC_RULE_ADD, r.dtype = FCC_F32), "another node", "only stored");
    REFUSED(-EINVAL, (r.rows = 2, r.from_stride = 100, r.to_stride = 200), "to_stride: 200", "100");
    REFUSED(-EINVAL, r.to_offset = BYTES, "do not lie in to");
    leave(p.comm);
}

static void refuses_far_rules(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 2, NULL);
    ranks_start(&r, 2, far_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- what never comes ---- */

/* Rank 0 counts 3 of 4; or all of them, and the receiver's word does not come; or nobody counts, and it waits. */
static void late_rank(int rank, const struct ranks *all, void *argument)
{
    struct place p = place_make(all, rank, 300);
    const int which = *(const int *)argument;
    uint32_t number;

    if (which == 1) {
        p.rule.awaits[0] = (struct fcc_rule_await){.buffer = p.words, .offset = 16, .lag = 1};
        p.rule.awaits[1] = (struct fcc_rule_await){.buffer = p.words, .offset = 24};
    }
    OK(fcc_tracker_rule(p.t, &p.rule, &number));
    OK(fcc_noop(p.comm));
    if (rank == 0 && which < 2)
        OK(fcc_tracker_add(p.t, number, which ? 4 : 3));
    const char *waits = which == 1 ? "awaits[1], the word at byte 24, is 0 of 1"
                        : which    ? "its count is 0 of 4"
                                   : "its count is 3 of 4";
    if (rank == 0)
        FAILS(fcc_tracker_wait(p.t, number, 1, -1), -ETIMEDOUT, "rule 0 \"halo\" (store to rank 1): run 1", waits, "300 ms");
    else
        FAILS(fcc_signal_wait(p.comm, fcc_buffer_data(p.words), 1, -1), -ETIMEDOUT, "rank 0", "rule 0 \"halo\"", waits);
    FAILS(fcc_noop(p.comm), -ETIMEDOUT, "rule 0 \"halo\"", waits);
    FAILS(fcc_tracker_rule(p.t, &p.rule, &number), -ETIMEDOUT, "rule 0");
    fcc_comm_destroy(p.comm);
    fcc_disconnect(comm_context());
}

static void names_what_is_late(void)
{
    for (int which = 0; which < 3; which++)
        ranks_run(2, late_rank, &which);
}

/* A word that no rule raises: who waits for it ends the communicator. */
static void word_rank(int rank, const struct ranks *all, void *argument)
{
    struct place p = place_make(all, rank, 300);

    (void)argument;
    OK(fcc_noop(p.comm));
    if (rank == 0) {
        FAILS(fcc_signal_wait(p.comm, fcc_buffer_data(p.words), 5, 10), -EAGAIN, "the word is 0: 5 has not come yet");
        FAILS(fcc_signal_wait(p.comm, fcc_buffer_data(p.words), 5, -1), -ETIMEDOUT,
              "a word is 0, and 5 has not come within 300 ms");
        FAILS(fcc_noop(p.comm), -ECONNABORTED, "rank 0", "5 has not come");
    } else {
        const int32_t *status;
        OK(fcc_comm_status(p.comm, &status));
        while (!__atomic_load_n(status, __ATOMIC_ACQUIRE))
            nap();
        FAILS(fcc_noop(p.comm), -ECONNABORTED, "rank 0", "a word is 0, and 5 has not come");
    }
    fcc_comm_destroy(p.comm);
    fcc_disconnect(comm_context());
}

static void ends_a_word_that_is_late(void)
{
    ranks_run(2, word_rank, NULL);
}

/* ---- ends from elsewhere, while rules are armed ---- */

enum end { END_DEATH, END_ABORT, END_WORKER, END_LEAVE, ENDS };
struct scene {
    enum end end;
    _Atomic int waiting;
};

static void armed_rank(int rank, const struct ranks *all, void *argument)
{
    static const int32_t statuses[ENDS] = {-ECONNABORTED, -ECONNABORTED, -ECONNRESET, -ECONNABORTED};
    struct scene *s = argument;
    struct place p = place_make(all, rank, 0);
    uint32_t number[2];
    uint64_t *mine = fcc_buffer_data(p.words);

    p.rule.awaits[0] = (struct fcc_rule_await){.buffer = p.words, .offset = 16};
    OK(fcc_tracker_rule(p.t, &p.rule, &number[0]));
    OK(fcc_tracker_rule(p.t, &p.rule, &number[1]));
    OK(fcc_noop(p.comm));
    OK(fcc_tracker_add(p.t, number[0], 4)); /* produced, and not due */
    OK(fcc_tracker_add(p.t, number[1], 1));
    if (rank == 2 && s->end != END_WORKER) {
        while (s->waiting < 2)
            nap();
        (void)usleep(20000);
        if (s->end == END_DEATH)
            _exit(0);
        if (s->end == END_ABORT)
            OK(fcc_comm_abort(p.comm, "for the test"));
        fcc_comm_destroy(p.comm);
        fcc_disconnect(comm_context());
        return;
    }
    s->waiting++;
    const char *why = s->end == END_ABORT ? "for the test" : "";
    if (rank == 0)
        FAILS(fcc_tracker_wait(p.t, number[0], 1, -1), statuses[s->end], why);
    else
        FAILS(fcc_signal_wait(p.comm, mine, 1, -1), statuses[s->end], why);
    FAILS(fcc_tracker_wait(p.t, number[1], 1, 0), statuses[s->end], why);
    OK(fcc_tracker_add(p.t, number[1], 3)); /* nobody minds */
    fcc_tracker_free(p.t);
    fcc_comm_destroy(p.comm);
    fcc_disconnect(comm_context());
}

static void ends(enum end end)
{
    struct scene *s = shared_memory(sizeof(*s));
    struct test_daemon d;
    struct ranks r;

    s->end = end;
    daemons_start(&d, 1, NULL);
    ranks_start(&r, 3, armed_rank, s);
    if (end == END_WORKER) {
        while (s->waiting < 3)
            nap();
        (void)usleep(20000);
        CHECK(kill(daemon_worker(&d), SIGKILL) == 0);
    }
    ranks_join(&r);
    expect_alive(3);
    if (end == END_WORKER)
        daemon_stop_unclean(&d);
    else
        daemon_stop(&d);
}

static void death_releases(void)
{
    ends(END_DEATH);
}

static void abort_releases(void)
{
    ends(END_ABORT);
}

static void worker_releases(void)
{
    ends(END_WORKER);
}

static void leaving_releases(void)
{
    ends(END_LEAVE);
}

/* ---- buffers that are freed ---- */

/* Rank 0 frees what its first rule reads, rank 1 what rank 0's second rule stores into. A third one goes on. */
static void freed_rank(int rank, const struct ranks *all, void *argument)
{
    struct place p = place_make(all, rank, 0);
    fcc_buffer *other, *local;
    uint32_t number[3];
    struct fcc_rule r = p.rule;

    (void)argument;
    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_SYMMETRIC, BYTES, &other));
    OK(fcc_buffer_alloc(p.comm, FCC_BUFFER_LOCAL, BYTES, &local));
    r.from = local;
    OK(fcc_tracker_rule(p.t, &r, &number[0]));
    r = p.rule;
    r.to = other;
    OK(fcc_tracker_rule(p.t, &r, &number[1]));
    OK(fcc_tracker_rule(p.t, &p.rule, &number[2]));
    OK(fcc_noop(p.comm));
    for (int i = 0; i < 3; i++)
        OK(fcc_tracker_add(p.t, number[i], 4 + (uint64_t)i));
    for (int i = 0; i < 3; i++)
        OK(fcc_tracker_wait(p.t, number[i], 1, -1));
    OK(fcc_noop(p.comm));
    if (rank == 0)
        fcc_buffer_free(local);
    else
        fcc_buffer_free(other);
    OK(fcc_noop(p.comm));
    for (int i = 0; i < 3; i++)
        OK(fcc_tracker_add(p.t, number[i], 4));
    if (rank == 0) {
        FAILS(fcc_tracker_wait(p.t, number[0], 2, -1), -ENOENT, "rule 0", "freed");
        FAILS(fcc_tracker_wait(p.t, number[1], 2, -1), -ENOENT, "rule 1", "freed");
        r.to = other;
        FAILS(fcc_tracker_rule(p.t, &r, &number[0]), -ENOENT, "rank 1 has freed its part");
    }
    OK(fcc_tracker_wait(p.t, number[2], 2, -1));
    OK(fcc_tracker_wait(p.t, number[0], 1, -1)); /* that one was done */
    leave(p.comm);
}

static void freed_buffers(void)
{
    ranks_run(2, freed_rank, NULL);
}

/* ---- trackers that are freed while others wait ---- */

/* Who waits for a run that does not come: a function of a rule, and a thread. */
struct waiter {
    fcc_tracker *t;
    uint32_t rule;
    _Atomic int waiting, ended;
};

static void wait_for_ever(struct waiter *w)
{
    w->waiting++;
    FAILS(fcc_tracker_wait(w->t, w->rule, 1, -1), -ENOENT, "rule 0", "the tracker has been freed");
    w->ended++;
}

static void waiter_called(void *waiter, uint64_t run)
{
    CHECK(run == 1);
    wait_for_ever(waiter);
}

static void *waiter_main(void *waiter)
{
    wait_for_ever(waiter);
    return NULL;
}

/* By fcc_tracker_free(), and by fcc_comm_destroy(). */
static void freed_tracker_rank(int rank, const struct ranks *all, void *argument)
{
    const int which = *(const int *)argument;
    struct place p = place_make(all, rank, 0);
    struct waiter w = {.t = p.t};
    const struct fcc_rule caller = {.count = 1, .call = which ? waiter_called : NULL, .argument = &w};
    uint32_t number;
    pthread_t thread;

    OK(fcc_tracker_rule(p.t, &p.rule, &w.rule));
    OK(fcc_tracker_rule(p.t, &caller, &number));
    OK(fcc_tracker_add(p.t, number, 1));
    CHECK(pthread_create(&thread, NULL, waiter_main, &w) == 0);
    while (w.waiting < (which ? 2 : 1))
        nap();
    (void)usleep(20000); /* they sleep */
    OK(fcc_noop(p.comm));
    if (which < 2) {
        fcc_tracker_free(p.t);
        CHECK(w.ended == (which ? 2 : 1));
        OK(fcc_tracker_create(p.comm, &p.t));
    }
    fcc_comm_destroy(p.comm);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(w.ended == (which ? 2 : 1));
    fcc_disconnect(comm_context());
}

static void freed_trackers(void)
{
    for (int which = 0; which < 3; which++)
        ranks_run(1, freed_tracker_rank, &which); /* another rank, that left before, would end the communicator */
}

/* ---- a tracker that is made, and has no room here ---- */

static void no_room_rank(int rank, const struct ranks *all, void *argument)
{
    struct place p = place_make(all, rank, 0);
    struct rlimit before, none;
    int lowest;

    (void)argument;
    fcc_tracker_free(p.t);
    lowest = dup(STDERR_FILENO); /* that is free: what is below is in use */
    CHECK(lowest >= 0 && close(lowest) == 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    for (rlim_t room = 0; room < 2; room++) { /* of two */
        none = before;
        none.rlim_cur = (rlim_t)lowest + room;
        CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
        FAILS(fcc_tracker_create(p.comm, &p.t), -EMFILE, "RLIMIT_NOFILE");
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    }
    OK(fcc_tracker_create(p.comm, &p.t)); /* it has none that it does not know of */
    leave(p.comm);
}

static void no_room(void)
{
    ranks_run(1, no_room_rank, NULL);
}

int main(void)
{
    const struct test tests[] = {
        {"refuses_rules", refuses_rules, 0},
        {"refuses_far_rules", refuses_far_rules, 0},
        {"names_what_is_late", names_what_is_late, 0},
        {"ends_a_word_that_is_late", ends_a_word_that_is_late, 0},
        {"death_releases", death_releases, 0},
        {"abort_releases", abort_releases, 0},
        {"worker_releases", worker_releases, 0},
        {"leaving_releases", leaving_releases, 0},
        {"freed_buffers", freed_buffers, 0},
        {"freed_trackers", freed_trackers, 0},
        {"no_room", no_room, 0},
    };

    return tests_run("tracker_ends", TESTS(tests));
}
