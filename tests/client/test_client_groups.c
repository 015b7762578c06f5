/* SPDX-License-Identifier: MIT
 *
 * test_client_groups.c - operators in groups: their streams come to all of them before the first one's end, and wait for all of
 * them at the group's end; with both fake drivers, and where streams cannot wait together.
 */
#include "proto/session.h"
#include "tests/client/client_gpu_bed.h"

static const struct manner by_words = {FCC_DEVICE_CUDA, false, true};

static void *group_end_of_a_thread(void *arg)
{
    (void)arg;
    return fcc_group_end() == -EINVAL ? NULL : arg;
}

/* The worker holds all of them: their streams have come nevertheless, and wait only then. */
static void test_group(void **state)
{
    enum { N = 3 };

    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 1);
        void *stream = stream_open(&b), *result = &b;
        pthread_t thread;

        b.fake->hold = true;
        fcc_group_begin();
        fcc_group_begin(); /* counts for nothing */
        for (int n = 0; n < N; n++)
            assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
        wait_for(&b.fake->records, N);
        assert_int_equal(fcc_group_end(), 0);
        if (manners[i].gpu_words) { /* else they wait one by one */
            (void)own_driver(&b)->stream_synchronize(stream);
            for (uint32_t s = 0; s < N; s++)
                assert_int_equal(b.fake->words[GPU]->started[s].value, 1);
            assert_int_equal(driver->batches, N);
            assert_int_equal(driver->waits, 0);
        }
        (void)pthread_create(&thread, NULL, group_end_of_a_thread, &b); /* has none */
        (void)pthread_join(thread, &result);
        assert_null(result);
        assert_int_equal(fcc_group_end(), 0);
        assert_int_equal(driver->batches, manners[i].gpu_words ? N + 1 : 0);
        assert_int_equal(fcc_group_end(), -EINVAL);
        assert_error_says("no group has begun");
        _Atomic bool nothing = true;
        stream_gate(&b, stream, &nothing); /* behind it */
        release(&b);
        (void)own_driver(&b)->stream_synchronize(stream);
        for (uint32_t s = 0; s < N; s++)
            assert_int_equal(*finished_word(&b, s), 1);
        assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0); /* without a group again */
        assert_int_equal(driver->batches, manners[i].gpu_words ? N + 2 : 0);
        stream_close(&b, stream);
        gpu_close(&b);
    }
}

/* Each stream waits for its own; and for more than fit, in time. */
static void test_groups_of_many(void **state)
{
    enum { N = 5 * FCC_SLOTS };
    struct bed b = gpu_open(by_words, 1);
    void *streams[2] = {stream_open(&b), stream_open(&b)};
    _Atomic bool open = false;

    (void)state;
    b.fake->hold = true;
    stream_gate(&b, streams[1], &open);
    fcc_group_begin();
    for (int n = 0; n < 6; n++)
        assert_int_equal(fcc_noop_enqueue(b.comm, streams[n / 2 % 2], NULL), 0);
    assert_int_equal(fcc_group_end(), 0);
    assert_int_equal(driver->batches, 6 + 3); /* 0 0 1 1 0 0 */
    release(&b);
    (void)own_driver(&b)->stream_synchronize(streams[0]); /* the other one waits */
    open = true;
    (void)own_driver(&b)->stream_synchronize(streams[1]);
    fcc_group_begin();
    for (int n = 0; n < N; n++)
        assert_int_equal(fcc_noop_enqueue(b.comm, streams[0], NULL), 0);
    (void)own_driver(&b)->stream_synchronize(streams[0]);
    assert_int_equal(driver->batches, 9 + N + 4);
    assert_int_equal(fcc_group_end(), 0);
    assert_int_equal(driver->batches, 9 + N + 5);
    assert_int_equal(fcc_comm_error_wait(b.comm, -1), 0);
    stream_close(&b, streams[0]);
    stream_close(&b, streams[1]);
    gpu_close(&b);
}

static void passed_note(void *argument)
{
    *(_Atomic bool *)argument = true;
}

/* An operator that fails lets the stream go past itself and no other. */
static void test_group_ends_of_operators(void **state)
{
    struct bed b = gpu_open(by_words, 1);
    void *stream = stream_open(&b);
    _Atomic bool passed = false;
    fcc_request *request;

    (void)state;
    b.fake->hold = true;
    fcc_group_begin();
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), 0);
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    assert_int_equal(fcc_group_end(), 0);
    (void)own_driver(&b)->stream_function(stream, passed_note, &passed);
    atomic_store(&b.fake->words[GPU]->finished[1].value, 1);
    assert_int_equal(fcc_request_wait(request, 30), -EAGAIN);
    assert_false(passed);
    release(&b);
    stream_close(&b, stream);
    assert_true(passed);
    assert_int_equal(fcc_request_wait(request, -1), 0);
    fcc_request_free(request);
    gpu_close(&b);
}

/* The driver refuses: who ends the group is told, and what ran has run. */
static void test_group_end_fails(void **state)
{
    struct bed b = gpu_open(by_words, 1);
    void *stream = stream_open(&b);

    (void)state;
    fcc_group_begin();
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    driver->fail = DRIVER_stream_batch;
    assert_int_equal(fcc_group_end(), -EIO);
    driver->fail = -1;
    assert_error_says("cuStreamBatchMemOp");
    assert_error_says("a stream does not wait for them");
    assert_int_equal(fcc_group_end(), -EINVAL); /* it has ended */
    assert_int_equal(fcc_comm_error_wait(b.comm, -1), 0);
    stream_close(&b, stream);
    gpu_close(&b);
}

/* While a group is open the worker dies, and then its context is given back: nothing is left to wait for. */
static void test_group_outlives(void **state)
{
    struct bed b = gpu_open(by_words, 1);
    void *stream = stream_open(&b);
    fcc_request *request;

    (void)state;
    b.fake->hold = true;
    fcc_group_begin();
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), 0);
    wait_for(&b.fake->records, 1);
    b.fake->vanish = true;
    fake_poke(b.fake);
    assert_int_equal(fcc_request_wait(request, -1), -ECONNRESET);
    fcc_request_free(request);
    assert_int_equal(fcc_group_end(), 0); /* and its stream goes on */
    stream_close(&b, stream);
    fcc_group_begin();
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), -ECONNRESET);
    gpu_close(&b);
    assert_int_equal(fcc_group_end(), 0);

    b = gpu_open(by_words, 1);
    stream = stream_open(&b);
    fcc_group_begin();
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    assert_int_equal(fcc_comm_error_wait(b.comm, -1), 0);
    stream_close(&b, stream);
    gpu_close(&b);
    assert_int_equal(fcc_group_end(), 0);
}

int main(int argc, char *argv[])
{
    static const struct CMUnitTest tests[] = {
        T(test_group), T(test_groups_of_many), T(test_group_ends_of_operators), T(test_group_end_fails), T(test_group_outlives),
    };

    (void)argc;
    run_again(argv);
    return cmocka_run_group_tests_name("client_groups", tests, NULL, NULL);
}
