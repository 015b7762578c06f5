/* SPDX-License-Identifier: MIT
 *
 * test_client_submit.c - a request's way through libfccclient: the submission ring, the completion slots, waiting, and the
 * end of the worker, against a worker that is honest, or is not (fake_worker.h).
 */
#include <signal.h>
#include <sys/wait.h>

#include "proto/session.h"
#include "tests/client/client_bed.h"

/* ---- the ring ---- */

static int submit_tables(fcc_comm *comm, size_t n, int64_t *rows, fcc_request **out)
{
    struct fcc_embedding_all_to_all_args args = {
        .table_rows = rows, .num_tables = (int32_t)n, .pooling = FCC_POOLING_MEAN, .batch = (int64_t)n};

    for (size_t i = 0; i < n; i++)
        rows[i] = (int64_t)(n * 1000003 + i);
    return out ? fcc_embedding_all_to_all_start(comm, &args, out) : fcc_embedding_all_to_all(comm, &args);
}

#define STORM 400

/* Requests of all sizes, some blocking, some not, some freed while they run. */
static void *storm_of_a_thread(void *arg)
{
    struct bed *b = arg;
    int64_t *rows = malloc(FCC_MAX_TABLES * sizeof(*rows));
    unsigned seed = (unsigned)(uintptr_t)&rows;
    fcc_request *requests[8] = {0};
    int failed = 0;

    for (int i = 0; i < STORM; i++) {
        size_t n = (size_t)rand_r(&seed) % (i % 8 ? 100 : FCC_MAX_TABLES + 1);
        fcc_request **r = &requests[i % 8];
        if (i % 3 == 0) {
            failed |= submit_tables(b->comm, n, rows, NULL);
            continue;
        }
        if (*r && i % 5)
            failed |= fcc_request_wait(*r, -1);
        fcc_request_free(*r);
        *r = NULL;
        failed |= submit_tables(b->comm, n, rows, r);
    }
    for (int i = 0; i < 8; i++) {
        failed |= requests[i] ? fcc_request_wait(requests[i], -1) : 0;
        fcc_request_free(requests[i]);
    }
    free(rows);
    return failed ? b : NULL;
}

static void storm(bool no_ring, bool slow)
{
    struct bed b = bed_open(no_ring, 1);
    pthread_t threads[4];
    void *failed;

    b.fake->slow = slow;
    for (int i = 0; i < 4; i++)
        (void)pthread_create(&threads[i], NULL, storm_of_a_thread, &b);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(b.fake->records, 4 * STORM);
    if (!no_ring)
        assert_true(atomic_load(&b.fake->memory->head) > 8ULL * FCC_RING_BYTES);
    assert_int_equal(b.fake->calls[FCC_MSG_SUBMIT], no_ring ? 4 * STORM : 0);
    bed_close(&b);
}

static void test_ring_wraps(void **state)
{
    (void)state;
    storm(false, false);
}

static void test_ring_is_slow(void **state)
{
    (void)state;
    storm(false, true);
}

static void *tables_in_a_thread(void *arg)
{
    int64_t *rows = malloc(FCC_MAX_TABLES * sizeof(*rows));
    int status = submit_tables(((struct bed *)arg)->comm, FCC_MAX_TABLES, rows, NULL);

    free(rows);
    return (void *)(intptr_t)status;
}

/* More than the ring holds while nobody reads: who submits waits, writes over nothing, and goes on when the worker does. */
static void test_ring_is_full(void **state)
{
    struct bed b = bed_open(false, 1);
    pthread_t threads[12];
    void *status;

    (void)state;
    b.fake->stall = true;
    for (int i = 0; i < 12; i++)
        (void)pthread_create(&threads[i], NULL, tables_in_a_thread, &b);
    while (atomic_load(&b.fake->memory->head) <= FCC_RING_BYTES / 2)
        (void)poll(NULL, 0, 1);
    (void)poll(NULL, 0, 100); /* in which the others would write over what is there */
    assert_true(atomic_load(&b.fake->memory->head) <= FCC_RING_BYTES);
    b.fake->stall = false;
    fake_poke(b.fake);
    for (int i = 0; i < 12; i++) {
        (void)pthread_join(threads[i], &status);
        assert_null(status);
    }
    bed_close(&b);
}

static void test_socket_storm(void **state)
{
    (void)state;
    storm(true, false);
}

/* The library looks at the tail when there is no more room by what it was before. */
static void test_tail_wrong(void **state)
{
    struct bed b = bed_open(false, 1);
    unsigned records = 0;
    int status;

    (void)state;
    set_fault(&b, TAIL_WRONG);
    while (!(status = fcc_noop(b.comm)) && ++records <= FCC_RING_BYTES / sizeof(struct fcc_submit))
        ;
    assert_int_equal(status, -EPROTO);
    assert_error_says("wrong tail");
    assert_int_equal(fcc_noop(b.comm), -EPROTO);
    bed_close(&b);
}

/* The fake sleeps without a time limit, so each of these hangs unless the bell is rung. */
static void test_doorbell(void **state)
{
    struct bed b = bed_open(false, 1);

    (void)state;
    for (int i = 0; i < 20; i++) {
        (void)poll(NULL, 0, 2); /* let it fall asleep */
        assert_int_equal(fcc_noop(b.comm), 0);
    }
    assert_true(b.fake->rings > 0);
    bed_close(&b);
}

/* ---- completions ---- */

static void completions_with_faults(bool no_ring)
{
    static const struct {
        enum fault fault;
        int status;
        const char *words;
    } cases[] = {
        {DONE_ERROR, -ERANGE, FAKE_TEXT},
        {DONE_POSITIVE, -EPROTO, "status"},
        {DONE_TOO_MANY_VALUES, -EPROTO, "with 65 values"},
        {DONE_TOO_FEW_VALUES, -EPROTO, "request of 2 ranks with 1 values"},
        {DONE_WRONG_ID, -EPROTO, "in the slot of request"},
    };
    struct bed b = bed_open(no_ring, 2);
    int64_t recv_rows[2] = {-1, -1};
    struct fcc_gemm_all_to_all_args args = {.recv_rows = recv_rows};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]) - no_ring; i++) { /* a wrong id over the socket is nobody's */
        set_fault(&b, cases[i].fault);
        assert_int_equal(fcc_gemm_all_to_all(b.comm, &args), cases[i].status);
        assert_error_says(cases[i].words);
        assert_true(strlen(fcc_last_error()) < FCC_TEXT_MAX);
        assert_int_equal(recv_rows[0], -1);
    }
    set_fault(&b, HONEST);
    assert_int_equal(fcc_gemm_all_to_all(b.comm, &args), 0);
    assert_int_equal(recv_rows[0], 11);
    assert_int_equal(recv_rows[1], 22);
    bed_close(&b);
}

static void test_completion_faults(void **state)
{
    (void)state;
    completions_with_faults(false);
    completions_with_faults(true);
}

static void request_life(bool no_ring)
{
    struct bed b = bed_open(no_ring, 2);
    int64_t recv_rows[2] = {-1, -1};
    struct fcc_gemm_all_to_all_args args = {.recv_rows = recv_rows};
    fcc_request *request;
    double begun = now_s();
    int done = 7;

    b.fake->hold = true;
    assert_int_equal(fcc_gemm_all_to_all_start(b.comm, &args, &request), 0);
    assert_int_equal(fcc_request_test(request, &done), 0);
    assert_int_equal(done, 0);
    assert_int_equal(fcc_request_wait(request, 0), -EAGAIN);
    assert_int_equal(fcc_request_wait(request, 120), -EAGAIN);
    assert_error_says("not finished within 120 ms");
    assert_true(now_s() - begun >= 0.12);
    assert_int_equal(recv_rows[0], -1);
    release(&b);
    while (!done)
        assert_int_equal(fcc_request_test(request, &done), 0);
    assert_int_equal(recv_rows[1], 22);
    recv_rows[1] = -1;
    for (int i = 0; i < 2; i++)
        assert_int_equal(fcc_request_wait(request, 1000), 0);
    assert_int_equal(recv_rows[1], -1); /* set once */
    fcc_request_free(request);
    bed_close(&b);
}

static void test_request(void **state)
{
    (void)state;
    request_life(false);
    request_life(true);
}

static void *wait_in_a_thread(void *arg)
{
    return (void *)(intptr_t)fcc_request_wait(arg, -1);
}

static void test_many_wait_for_one(void **state)
{
    struct bed b = bed_open(false, 1);
    pthread_t threads[4];
    fcc_request *request;
    void *status;

    (void)state;
    for (int round = 0; round < 10; round++) {
        b.fake->hold = true;
        assert_int_equal(fcc_noop_start(b.comm, &request), 0);
        for (int i = 0; i < 4; i++)
            (void)pthread_create(&threads[i], NULL, wait_in_a_thread, request);
        (void)poll(NULL, 0, round);
        release(&b);
        for (int i = 0; i < 4; i++) {
            (void)pthread_join(threads[i], &status);
            assert_null(status);
        }
        fcc_request_free(request);
    }
    bed_close(&b);
}

static void *noop_in_a_thread(void *arg)
{
    return (void *)(intptr_t)fcc_noop(((struct bed *)arg)->comm);
}

/* All slots in use, with handles or without: the next request waits for one, and finds it when the worker has finished some. */
static void slots_exhausted(bool orphans, bool no_ring)
{
    struct bed b = bed_open(no_ring, 2);
    int64_t recv_rows[2] = {-1, -1};
    struct fcc_gemm_all_to_all_args args = {.recv_rows = recv_rows};
    fcc_request *requests[FCC_SLOTS];
    pthread_t thread;
    void *status;

    b.fake->hold = true;
    for (unsigned i = 0; i < FCC_SLOTS; i++) {
        assert_int_equal(fcc_gemm_all_to_all_start(b.comm, &args, &requests[i]), 0);
        if (orphans)
            fcc_request_free(requests[i]);
    }
    wait_for(&b.fake->records, FCC_SLOTS);
    (void)pthread_create(&thread, NULL, noop_in_a_thread, &b);
    wait_for(&b.fake->records, FCC_SLOTS + no_ring); /* over the socket there is no end of slots */
    (void)poll(NULL, 0, 30);
    assert_int_equal(b.fake->records, FCC_SLOTS + no_ring);
    release(&b);
    (void)pthread_join(thread, &status);
    assert_null(status);
    assert_int_equal(recv_rows[0], -1);
    for (unsigned i = 0; i < FCC_SLOTS && !orphans; i++) {
        recv_rows[0] = -1;
        assert_int_equal(fcc_request_wait(requests[i], -1), 0);
        assert_int_equal(recv_rows[0], 11);
        fcc_request_free(requests[i]);
    }
    for (unsigned i = 0; i < 3 * FCC_SLOTS; i++)
        assert_int_equal(fcc_noop(b.comm), 0);
    bed_close(&b);
}

static void test_slots(void **state)
{
    (void)state;
    slots_exhausted(false, false);
    slots_exhausted(true, false);
    slots_exhausted(true, true);
}

static void *destroy_in_a_thread(void *arg)
{
    fcc_comm_destroy(((struct bed *)arg)->comm);
    return NULL;
}

/* The communicator that is being destroyed in that thread is not before its operator has ended. */
static void destroyed_behind(struct bed *b, pthread_t thread, fcc_request *kept)
{
    (void)poll(NULL, 0, 30);
    assert_int_equal(b->fake->calls[FCC_MSG_COMM_DESTROY], 0);
    release(b);
    (void)pthread_join(thread, NULL);
    assert_int_equal(b->fake->calls[FCC_MSG_COMM_DESTROY], 1);
    assert_int_equal(fcc_request_wait(kept, 0), 0);
    fcc_request_free(kept);
    bed_close(b);
}

/* The communicator goes when its operators have finished; a request outlives it. */
static void test_destroy_waits(void **state)
{
    struct bed b = bed_open(false, 1);
    fcc_request *kept, *freed;
    pthread_t thread;

    (void)state;
    b.fake->hold = true;
    assert_int_equal(fcc_noop_start(b.comm, &kept), 0);
    assert_int_equal(fcc_noop_start(b.comm, &freed), 0);
    fcc_request_free(freed);
    (void)pthread_create(&thread, NULL, destroy_in_a_thread, &b);
    destroyed_behind(&b, thread, kept);
}

static void be_stopped(int ms)
{
    pid_t program = getpid(), child = fork();

    if (!child) {
        (void)kill(program, SIGSTOP);
        (void)poll(NULL, 0, ms);
        (void)kill(program, SIGCONT);
        _exit(0);
    }
    assert_true(child > 0 && waitpid(child, NULL, 0) == child);
}

/* Time in which this process could not look, because it or the machine was stopped, does not count as time that the worker has had. */
static void test_destroy_waits_though_stopped(void **state)
{
    struct bed b = bed_connect(false);
    fcc_request *kept;
    pthread_t thread;

    (void)state;
    b.fake->time_limit_ms = 1000;
    assert_int_equal(fcc_comm_init(b.context, &(struct fcc_unique_id){{0}}, 1, 0, NULL, &b.comm), 0);
    b.fake->hold = true;
    assert_int_equal(fcc_noop_start(b.comm, &kept), 0);
    (void)pthread_create(&thread, NULL, destroy_in_a_thread, &b);
    (void)poll(NULL, 0, 10); /* so that it waits, most likely */
    be_stopped(2200);        /* longer than it would wait */
    destroyed_behind(&b, thread, kept);
}

/* ---- the end of the worker ---- */

static void *vanish_in_a_thread(void *arg)
{
    struct bed *b = arg;

    (void)poll(NULL, 0, 150); /* so that those who wait sleep by then */
    b->fake->vanish = true;
    fake_poke(b->fake);
    return NULL;
}

static void vanish(bool no_ring, bool by_test, bool farewell)
{
    struct bed b = bed_open(no_ring, 1);
    fcc_request *request;
    pthread_t thread;
    struct fcc_unique_id id;
    int done = 0, expected = farewell ? -ESHUTDOWN : -ECONNRESET;

    b.fake->hold = true;
    b.fake->farewell = farewell;
    assert_int_equal(fcc_noop_start(b.comm, &request), 0);
    (void)pthread_create(&thread, NULL, vanish_in_a_thread, &b);
    while (by_test && !done)
        assert_int_equal(fcc_request_test(request, &done), 0);
    assert_int_equal(fcc_request_wait(request, -1), expected);
    assert_error_says(farewell ? "fccd is shutting down" : "the worker of job 'test' (pid 4711) is gone");
    fcc_request_free(request);
    assert_int_equal(fcc_noop(b.comm), expected);
    assert_int_equal(fcc_get_unique_id(b.context, &id), expected);
    fcc_comm_destroy(b.comm);
    (void)pthread_join(thread, NULL);
    bed_close(&b);
}

static void test_worker_vanishes(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        vanish(i & 1, i & 2, i & 4);
}

/* In the middle of calls: one thread reads the socket, one waits for the one who reads; one submits and finds no slot. */
static void test_worker_vanishes_in_calls(void **state)
{
    struct bed b = bed_open(false, 1);
    pthread_t threads[4];
    fcc_request *requests[FCC_SLOTS];
    struct fcc_unique_id id = {{0}};
    fcc_comm *comm;
    void *failed;

    (void)state;
    b.fake->hold = b.fake->hold_calls = true;
    for (unsigned i = 0; i < FCC_SLOTS; i++)
        assert_int_equal(fcc_noop_start(b.comm, &requests[i]), 0);
    (void)pthread_create(&threads[0], NULL, vanish_in_a_thread, &b);
    (void)pthread_create(&threads[1], NULL, call_of_a_thread, &b);
    (void)pthread_create(&threads[2], NULL, call_of_a_thread, &b);
    (void)pthread_create(&threads[3], NULL, noop_in_a_thread, &b);
    assert_int_equal(fcc_comm_init(b.context, &id, 2, 1, NULL, &comm), -ECONNRESET);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], &failed);
        assert_true(i == 0 ? !failed : i == 3 ? (intptr_t)failed == -ECONNRESET : failed == &b);
    }
    bed_close(&b); /* frees the requests too */
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        T(test_ring_wraps),        T(test_ring_is_slow),
        T(test_ring_is_full),      T(test_socket_storm),
        T(test_tail_wrong),        T(test_doorbell),
        T(test_completion_faults), T(test_request),
        T(test_many_wait_for_one), T(test_slots),
        T(test_destroy_waits),     T(test_destroy_waits_though_stopped),
        T(test_worker_vanishes),   T(test_worker_vanishes_in_calls),
    };
    return cmocka_run_group_tests_name("client_submit", tests, NULL, NULL);
}
