/* SPDX-License-Identifier: MIT
 *
 * test_client_waits.c - a worker that lives, holds the connection, and does nothing: every wait for it ends, the connection is given up, and what
 * it says later is taken for nothing. The library's patience is short here, by --wrap.
 *
 * The alarm of each test (client_bed.h) is what ends a wait that has no end of its own.
 */
#include "proto/session.h"
#include "tests/client/client_calls.h"
#include "tests/client/client_gpu_bed.h"

#define SHORT_MS 100
#define LONG_MS 10000 /* while the worker answers, on a machine that may be busy */
#define GIVEN_UP "(pid 4711) does not answer"

static _Atomic int64_t patience = LONG_MS;

static _Atomic unsigned limits_seen; /* bit n: somebody's patience was for n time limits of the worker's */

int64_t __real_patience_ms(uint32_t time_limit_ms, unsigned limits);
int64_t __wrap_patience_ms(uint32_t time_limit_ms, unsigned limits);
int64_t __wrap_patience_ms(uint32_t time_limit_ms, unsigned limits)
{
    assert_true(time_limit_ms == 0 || time_limit_ms == FAKE_TIME_LIMIT_MS || time_limit_ms == 77);
    limits_seen |= 1u << limits;
    return patience;
}

/* The worker's own limit speaks first, and a stopped one is found out some seconds later. */
static void test_patience(void **state)
{
    static const uint32_t time_limits[] = {10, 200, 2000, 30000, 86400000};

    (void)state;
    assert_int_equal(__real_patience_ms(0, LIMITS_OF_CALL), 10000);
    assert_int_equal(__real_patience_ms(2000, LIMITS_OF_CALL), 7000);
    assert_int_equal(__real_patience_ms(2000, LIMITS_OF_OPERATOR), 9000);
    for (size_t i = 0; i < sizeof(time_limits) / sizeof(time_limits[0]); i++)
        for (unsigned limits = LIMITS_OF_CALL; limits <= LIMITS_OF_OPERATOR; limits++)
            assert_int_equal(__real_patience_ms(time_limits[i], limits), (int64_t)limits * time_limits[i] + 5000);
}

/* The patience is short from when all that the worker has to answer is answered. */
static struct bed bed_short(bool no_ring)
{
    patience = LONG_MS;
    struct bed b = bed_open(no_ring, 2);
    patience = SHORT_MS;
    return b;
}

static void wait_for_calls(const struct fake *f, int type, unsigned n)
{
    while (f->calls[type] < n)
        (void)poll(NULL, 0, 1);
}

/* ---- calls ---- */

/* The text begins with the name of what is called now, whoever has found the worker out. */
static void call_fails(struct bed *b, const struct called *called)
{
    char words[160];

    assert_int_equal(called->call(b), -ETIMEDOUT);
    (void)snprintf(words, sizeof(words), "%s: the worker of job 'test' " GIVEN_UP, called->name);
    assert_error_says(words);
    assert_int_equal(strncmp(fcc_last_error(), words, strlen(words)), 0);
}

/* The connection has been given up: every call says so at once, whatever the worker does now. */
static void is_given_up(struct bed *b)
{
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < CALLS; k++)
            if (calls[k].without_comm || (b->comm && !(b->comm->triggers && calls[k].call == call_triggers))) /* it has them */
                call_fails(b, &calls[k]);
        b->fake->hold = b->fake->hold_calls = b->fake->deaf = false; /* it goes on, and finds that its client has gone */
        fake_poke(b->fake);
        while (!b->fake->ended)
            (void)poll(NULL, 0, 1);
    }
}

static void given_up_close(struct bed *b)
{
    is_given_up(b);
    bed_close(b);
}

/* ---- calls ---- */

static void test_calls(void **state)
{
    (void)state;
    (void)setenv("FCC_RANK", "0", 1);
    (void)setenv("FCC_SIZE", "2", 1);
    (void)setenv("FCC_MEETING", "", 1);
    for (size_t i = 0; i < 2 * CALLS; i++) {
        const struct called *called = &calls[i / 2];
        if (called->call == call_init_refuse) /* the fake knows no such message, and waits for none */
            continue;
        struct bed b = bed_short(i % 2);
        b.fake->hold = b.fake->hold_calls = true;
        b.fake->deaf = !called->is_operator && i % 4 > 1;
        limits_seen = 0;
        call_fails(&b, called);
        assert_int_equal(limits_seen, called->is_operator ? 1u << LIMITS_OF_OPERATOR : 1u << LIMITS_OF_CALL);
        given_up_close(&b);
    }
}

/* Functions that return nothing: they come back, and the first one that has waited spares the others the wait. */
static void test_ends(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_short(i);
        fcc_buffer *buffers[20];
        patience = LONG_MS;
        for (int k = 0; k < 20; k++)
            assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 64, &buffers[k]), 0);
        b.fake->hold_calls = true;
        patience = SHORT_MS;
        for (int k = 0; k < 20; k++)
            fcc_buffer_free(buffers[k]);
        assert_int_equal(b.fake->calls[FCC_MSG_BUFFER_FREE], 1); /* the others were not even asked for */
        fcc_comm_destroy(b.comm);
        b.comm = NULL;
        given_up_close(&b);
    }
}

/* A worker that does not even read: the socket is full. */
static void test_socket_is_full(void **state)
{
    struct bed b = bed_short(true);
    fcc_request *requests[4096];
    int n = 0, status = 0;

    (void)state;
    b.fake->hold = b.fake->hold_calls = true;
    assert_int_equal(fcc_noop_start(b.comm, &requests[n++]), 0);
    wait_for(&b.fake->records, 1);
    b.fake->deaf = true;
    fake_poke(b.fake);
    while (n < 4096 && !(status = fcc_noop_start(b.comm, &requests[n])))
        n++;
    assert_int_equal(status, -ETIMEDOUT);
    assert_error_says(GIVEN_UP);
    for (int i = 0; i < n; i++) {
        assert_int_equal(fcc_request_wait(requests[i], -1), -ETIMEDOUT);
        fcc_request_free(requests[i]);
    }
    given_up_close(&b);
}

/* ---- operators ---- */

static void test_operators(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct bed b = bed_short(i % 2);
        int64_t recv_rows[2] = {-1, -1};
        struct fcc_gemm_all_to_all_args args = {.recv_rows = recv_rows};
        fcc_request *request;
        int status = -EAGAIN, done = 0;

        b.fake->hold = true;
        if (i / 2 == 0) {
            assert_int_equal(fcc_gemm_all_to_all(b.comm, &args), -ETIMEDOUT);
            assert_error_says("gemm_all_to_all: the worker of job 'test' " GIVEN_UP);
            assert_int_equal(recv_rows[0], -1);
            given_up_close(&b);
            continue;
        }
        assert_int_equal(fcc_gemm_all_to_all_start(b.comm, &args, &request), 0);
        if (i / 2 == 1)
            status = fcc_request_wait(request, -1);
        while (i / 2 == 2 && status == -EAGAIN)
            status = fcc_request_wait(request, 10);
        while (i / 2 == 3 && !done) {
            assert_int_equal(fcc_request_test(request, &done), 0);
            (void)poll(NULL, 0, 1);
        }
        if (i / 2 == 3)
            status = fcc_request_wait(request, 0);
        assert_int_equal(status, -ETIMEDOUT);
        assert_error_says("gemm_all_to_all: the worker of job 'test' " GIVEN_UP);
        is_given_up(&b); /* by now the worker has completed it */
        assert_int_equal(fcc_request_wait(request, -1), -ETIMEDOUT);
        assert_int_equal(recv_rows[0], -1);
        fcc_request_free(request);
        bed_close(&b);
    }
}

/* Slots, then the ring, that are full of operators that nobody completes. */
static void test_places_are_taken(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_short(false);
        int64_t rows[FCC_MAX_TABLES] = {0};
        struct fcc_embedding_all_to_all_args args = {.num_tables = i ? FCC_MAX_TABLES : 0, .table_rows = rows, .batch = 1};
        fcc_request *requests[FCC_SLOTS + 1];
        int n = 0, status = 0;

        b.fake->hold = b.fake->stall = true;
        while (n <= (int)FCC_SLOTS && !(status = fcc_embedding_all_to_all_start(b.comm, &args, &requests[n])))
            n++;
        assert_int_equal(status, -ETIMEDOUT);
        assert_error_says(GIVEN_UP);
        assert_true(i ? n < (int)FCC_SLOTS : n == (int)FCC_SLOTS);
        for (int k = 0; k < n; k++) {
            assert_int_equal(fcc_request_wait(requests[k], -1), -ETIMEDOUT);
            fcc_request_free(requests[k]);
        }
        fcc_disconnect(b.context);
        (void)fake_free(b.fake); /* which wonders about the ring that it reads now */
    }
}

static void test_ring_of_triggers(void **state)
{
    struct bed b = bed_short(false);
    int status = 0, n = 1;

    (void)state;
    patience = LONG_MS;
    assert_int_equal(fcc_put_trigger(b.comm, 1, 1), 0); /* the first one asks the worker for the ring */
    patience = SHORT_MS;
    while (n <= (int)FCC_TRIGGER_SLOTS && !(status = fcc_put_trigger(b.comm, 1, 1)))
        n++;
    assert_int_equal(n, FCC_TRIGGER_SLOTS);
    assert_int_equal(status, -ETIMEDOUT);
    assert_error_says(GIVEN_UP);
    given_up_close(&b);
}

static void *noop_of_a_thread(void *arg)
{
    const struct bed *b = arg;
    return (void *)(intptr_t)fcc_noop(b->comm);
}

/* Whoever waits hears it, whatever for. */
static void test_threads(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_short(i);
        pthread_t threads[4];
        void *status;

        b.fake->hold = b.fake->hold_calls = true;
        (void)pthread_create(&threads[0], NULL, call_of_a_thread, &b);
        for (int t = 1; t < 4; t++)
            (void)pthread_create(&threads[t], NULL, noop_of_a_thread, &b);
        (void)pthread_join(threads[0], &status);
        assert_ptr_equal(status, &b);
        for (int t = 1; t < 4; t++) {
            (void)pthread_join(threads[t], &status);
            assert_int_equal((intptr_t)status, -ETIMEDOUT);
        }
        given_up_close(&b);
    }
}

/* ---- a worker that is slow ---- */

static void *alloc_of_a_thread(void *arg)
{
    return (void *)(intptr_t)call_alloc_symmetric(arg);
}

/* Each operator ends well before the patience with it does, all of them long after that of who waits for the last. A slow machine makes it later
 * only; the fake's thread would have to stand still for more than a second for a worker to be given up that should not be. */
static void slow_operators(bool no_ring, bool wait_for_call)
{
    struct bed b = bed_short(no_ring);
    fcc_request *requests[4];
    pthread_t thread;
    void *status;

    patience = 1500;
    b.fake->hold = b.fake->hold_calls = true;
    for (int i = 0; i < 4; i++)
        assert_int_equal(fcc_noop_start(b.comm, &requests[i]), 0);
    wait_for(&b.fake->records, 4);
    (void)pthread_create(&thread, NULL, wait_for_call ? alloc_of_a_thread : noop_of_a_thread, &b);
    if (!wait_for_call)
        wait_for(&b.fake->records, 5);
    for (int i = 0; i < 4; i++) {
        (void)poll(NULL, 0, 500);
        b.fake->let++;
        fake_poke(b.fake);
    }
    (void)poll(NULL, 0, 500);
    release(&b);
    (void)pthread_join(thread, &status);
    assert_int_equal((intptr_t)status, 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(fcc_request_wait(requests[i], -1), 0);
        fcc_request_free(requests[i]);
    }
    patience = SHORT_MS;
    bed_close(&b);
}

static void test_slow_operators(void **state)
{
    (void)state;
    slow_operators(false, false);
    slow_operators(true, false);
}

static void test_slow_operators_before_a_call(void **state)
{
    (void)state;
    slow_operators(false, true);
}

/* ---- waits that the library does not see ---- */

static int32_t word_await(const int32_t *word)
{
    while (!__atomic_load_n(word, __ATOMIC_ACQUIRE))
        (void)poll(NULL, 0, 1);
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* A thread that looks at the status word and at nothing else. The worker does not answer, or does not even read. */
static void test_status_word(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct bed b = bed_short(i);
        const int32_t *word;

        b.fake->hold_calls = true;
        b.fake->deaf = i;
        assert_int_equal(fcc_comm_status(b.comm, &word), 0);
        assert_int_equal(word_await(word), -ETIMEDOUT);
        assert_int_equal(fcc_noop(b.comm), -ETIMEDOUT);
        assert_error_says("noop: the worker of job 'test' " GIVEN_UP);
        given_up_close(&b);
    }
}

/* One that answers is left in peace, however long nothing else happens; and a context may be closed while a question is open. */
static void test_status_word_of_one_that_is_well(void **state)
{
    const int32_t *word;

    (void)state;
    struct bed b = bed_short(false);
    patience = 3000;
    assert_int_equal(fcc_comm_status(b.comm, &word), 0);
    wait_for_calls(b.fake, FCC_MSG_UNIQUE_ID, 2);
    assert_int_equal(__atomic_load_n(word, __ATOMIC_ACQUIRE), 0);
    assert_int_equal(fcc_noop(b.comm), 0);
    b.fake->hold_calls = true;
    wait_for_calls(b.fake, FCC_MSG_UNIQUE_ID, 3);
    patience = SHORT_MS;
    bed_close(&b);
    /* nobody asks where nobody waits */
    b = bed_short(false);
    (void)poll(NULL, 0, 1500);
    assert_int_equal(b.fake->calls[FCC_MSG_UNIQUE_ID], 0);
    bed_close(&b);
}

/* ---- streams ---- */

/* Nobody waits on the CPU: the streams go on nevertheless, whatever they wait by. */
static void test_streams(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        patience = LONG_MS;
        struct bed b = gpu_open(manners[i], 2);
        void *stream = stream_open(&b);
        const int32_t *word;

        patience = SHORT_MS;
        assert_int_equal(fcc_comm_status(b.comm, &word), 0);
        b.fake->hold = true;
        for (int k = 0; k < 3; k++)
            assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
        (void)own_driver(&b)->stream_synchronize(stream);
        assert_int_equal(b.context->memory->status[b.comm->status_word], -ETIMEDOUT); /* set before the streams go on */
        assert_int_equal(fcc_comm_error_wait(b.comm, -1), -ETIMEDOUT);
        assert_error_says(GIVEN_UP);
        stream_close(&b, stream);
        is_given_up(&b);
        gpu_close(&b);
    }
}

/* A stream that does not come to its operators is its program's: the call that finds no place for one more says so. The other ranks will
 * submit that operator, and what this rank submitted next would be taken for it: so the communicator is over, and they are told. */
static void test_stream_does_not_come(void **state)
{
    patience = LONG_MS;
    struct bed b = gpu_open(manners[4], 2);
    void *stream = stream_open(&b);
    _Atomic bool open = false;

    (void)state;
    patience = 1500; /* the worker hears of the communicator's end, and has to answer */
    stream_gate(&b, stream, &open);
    b.fake->early = true; /* the worker is through with them at once */
    for (unsigned k = 0; k < FCC_SLOTS; k++)
        assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    wait_for(&b.fake->completed, FCC_SLOTS);
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), -ETIMEDOUT);
    assert_error_says("streams that have not come");
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_ABORT], 1);
    open = true;
    (void)own_driver(&b)->stream_synchronize(stream);
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), -ETIMEDOUT);
    assert_error_says("rank 0: an operator could not be submitted, so the communicator is over for this rank");
    assert_int_equal(b.fake->records, FCC_SLOTS);
    stream_close(&b, stream);
    gpu_close(&b);
}

int main(int argc, char *argv[])
{
    static const struct CMUnitTest tests[] = {
        T(test_patience),
        T(test_calls),
        T(test_ends),
        T(test_socket_is_full),
        T(test_operators),
        T(test_places_are_taken),
        T(test_ring_of_triggers),
        T(test_threads),
        T(test_slow_operators),
        T(test_slow_operators_before_a_call),
        T(test_status_word),
        T(test_status_word_of_one_that_is_well),
        T(test_streams),
        T(test_stream_does_not_come),
    };

    (void)argc;
    run_again(argv);
    return cmocka_run_group_tests_name("client_waits", tests, NULL, NULL);
}
