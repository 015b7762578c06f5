/* SPDX-License-Identifier: MIT
 *
 * test_client_stream.c - operators that take their place on streams of the program: order, errors, and the end of the worker;
 * with both fake drivers, by stream memory operations and by functions on the CPU.
 */
#include "proto/session.h"
#include "tests/client/client_gpu_bed.h"

static void test_stream_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 2);
        int64_t recv_rows[2] = {-1, -1};
        struct fcc_gemm_all_to_all_args args = {.recv_rows = recv_rows};
        void *stream = stream_open(&b);
        _Atomic bool open = false;
        fcc_request *request;

        stream_gate(&b, stream, &open);
        assert_int_equal(fcc_gemm_all_to_all_enqueue(b.comm, &args, stream, &request), 0);
        assert_int_equal(fcc_request_wait(request, 30), -EAGAIN); /* not before the stream */
        wait_for(&b.fake->records, 1);                            /* though the worker knows of it */
        b.fake->hold = true;
        open = true;
        assert_int_equal(fcc_request_wait(request, 30), -EAGAIN);
        _Atomic bool nothing = true;
        stream_gate(&b, stream, &nothing); /* behind it */
        release(&b);
        (void)own_driver(&b)->stream_synchronize(stream);
        assert_int_equal(*finished_word(&b, 0), 1);
        assert_int_equal(fcc_request_wait(request, -1), 0);
        assert_int_equal(recv_rows[1], 22);
        fcc_request_free(request);
        assert_int_equal(driver->functions, manners[i].functions ? 3 : 2);
        assert_int_equal(driver->fills, manners[i].functions);
        assert_int_equal(driver->writes, !manners[i].functions && !manners[i].gpu_words);
        assert_int_equal(driver->batches, manners[i].gpu_words);
        assert_int_equal(driver->waits, !manners[i].functions);
        stream_close(&b, stream);
        gpu_close(&b);
    }
}

/* A GPU whose streams cannot do it gets the functions without having been asked to. */
static void test_gpu_without_stream_memory_operations(void **state)
{
    struct bed b = gpu_connect(manners[0]);
    void *stream;

    (void)state;
    driver->no_stream_words = true;
    assert_int_equal(fcc_comm_init(b.context, &(struct fcc_unique_id){{0}}, 1, 0, &on_gpu, &b.comm), 0);
    stream = stream_open(&b);
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    stream_close(&b, stream);
    assert_int_equal(driver->functions, 1);
    assert_int_equal(driver->fills, 1);
    assert_int_equal(driver->writes, 0);
    gpu_close(&b);
}

#define STORM 300

struct storm {
    struct bed *b;
    void *stream;
};

static void *storm_of_a_thread(void *arg)
{
    struct storm *s = arg;
    fcc_request *request;
    int failed = 0;

    for (int i = 0; i < STORM; i++) {
        failed |= fcc_noop_enqueue(s->b->comm, s->stream, i % 3 ? NULL : &request);
        if (i % 3 == 0 && i % 2)
            failed |= fcc_request_wait(request, -1);
        if (i % 3 == 0)
            fcc_request_free(request);
        if (i % 16 == 0)
            failed |= fcc_noop(s->b->comm);
    }
    return failed ? s : NULL;
}

/* Threads with streams of their own, and two that share one. */
static void test_storm(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 1);
        struct storm s[4];
        pthread_t threads[4];
        void *failed;

        for (int t = 0; t < 4; t++)
            s[t] = (struct storm){&b, t < 3 ? stream_open(&b) : s[0].stream};
        for (int t = 0; t < 4; t++)
            (void)pthread_create(&threads[t], NULL, storm_of_a_thread, &s[t]);
        for (int t = 0; t < 4; t++) {
            (void)pthread_join(threads[t], &failed);
            assert_null(failed);
        }
        for (int t = 0; t < 3; t++)
            stream_close(&b, s[t].stream);
        assert_int_equal(fcc_comm_error(b.comm), 0);
        gpu_close(&b);
    }
}

/* What nobody attends to: the first error is kept, for one who asks. */
static void test_errors_without_a_request(void **state)
{
    struct bed b = gpu_open(manners[0], 1);
    void *stream = stream_open(&b);

    (void)state;
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    (void)own_driver(&b)->stream_synchronize(stream);
    set_fault(&b, DONE_ERROR);
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    (void)own_driver(&b)->stream_synchronize(stream);
    assert_int_equal(fcc_noop(b.comm), -ERANGE);
    set_fault(&b, DONE_POSITIVE);
    assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
    (void)own_driver(&b)->stream_synchronize(stream);
    assert_int_equal(fcc_noop(b.comm), -EPROTO); /* by which time those before it are completed */
    assert_int_equal(fcc_comm_error(b.comm), -ERANGE);
    assert_error_says(FAKE_TEXT);
    assert_int_equal(fcc_comm_error(b.comm), 0);
    stream_close(&b, stream);
    gpu_close(&b);
}

static void *error_wait_in_a_thread(void *arg)
{
    const struct bed *b = arg;
    return (void *)(intptr_t)fcc_comm_error_wait(b->comm, -1);
}

/* Operators that their streams have gone past, and of which it is not known yet how they went: who has waited for the stream can
 * wait for that, too, and is not held up by what another stream has not come to. */
static void test_errors_come_late(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 1);
        void *stream = stream_open(&b), *late = stream_open(&b), *status;
        _Atomic bool open = false;
        pthread_t thread;

        assert_int_equal(fcc_comm_error_wait(b.comm, -1), 0);
        stream_gate(&b, late, &open);
        b.fake->mute = true;
        set_fault(&b, DONE_ERROR);
        assert_int_equal(fcc_noop_enqueue(b.comm, late, NULL), 0);
        for (int n = 0; n < 3; n++)
            assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
        (void)own_driver(&b)->stream_synchronize(stream);
        assert_int_equal(fcc_comm_error(b.comm), 0);
        assert_int_equal(fcc_comm_error_wait(b.comm, 0), -EAGAIN);
        assert_error_says("rank 0: streams have gone past 3 operators");
        if (manners[i].gpu_words) {
            driver->fail = DRIVER_copy_out;
            assert_int_equal(fcc_comm_error_wait(b.comm, -1), -EIO);
            driver->fail = -1;
        }
        (void)pthread_create(&thread, NULL, error_wait_in_a_thread, &b);
        (void)poll(NULL, 0, 20); /* so that it waits, most likely */
        b.fake->mute = false;
        fake_poke(b.fake);
        (void)pthread_join(thread, &status);
        assert_int_equal((intptr_t)status, -ERANGE);
        assert_int_equal(fcc_comm_error_wait(b.comm, -1), 0); /* the late one is in flight */
        open = true;
        (void)own_driver(&b)->stream_synchronize(late);
        assert_int_equal(fcc_comm_error_wait(b.comm, -1), -ERANGE);
        assert_error_says(FAKE_TEXT);
        stream_close(&b, late);
        stream_close(&b, stream);
        gpu_close(&b);
    }
}

/* The wait ends with the worker, and by itself. */
static void test_errors_do_not_come(void **state)
{
    (void)state;
    for (size_t i = 0; i <= MANNERS; i++) {
        struct bed b = gpu_open(manners[i % MANNERS], 1);
        void *stream = stream_open(&b), *status;
        pthread_t thread;

        assert_int_equal(fcc_comm_error_wait(NULL, -1), -EINVAL);
        assert_int_equal(fcc_comm_error_wait(b.comm, -2), -EINVAL);
        assert_error_says("timeout_ms: -2");
        b.fake->mute = true;
        assert_int_equal(fcc_noop_enqueue(b.comm, stream, NULL), 0);
        (void)own_driver(&b)->stream_synchronize(stream);
        (void)pthread_mutex_lock(&b.context->lock); /* the library's thread that watches reads it, too */
        b.comm->time_limit_ms = i == MANNERS ? 1 : 60000;
        (void)pthread_mutex_unlock(&b.context->lock);
        if (i == MANNERS) {
            assert_int_equal(fcc_comm_error_wait(b.comm, -1), -ETIMEDOUT);
            assert_error_says("rank 0: streams have gone past 1 operators");
            b.fake->mute = false;
        } else {
            (void)pthread_create(&thread, NULL, error_wait_in_a_thread, &b);
            b.fake->vanish = true;
            fake_poke(b.fake);
            (void)pthread_join(thread, &status);
            assert_int_equal((intptr_t)status, -ECONNRESET);
        }
        stream_close(&b, stream);
        gpu_close(&b);
    }
}

static void *enqueue_in_a_thread(void *arg)
{
    struct storm *s = arg;
    return (void *)(intptr_t)fcc_noop_enqueue(s->b->comm, s->stream, NULL);
}

/* Operators that fail before their stream has come to them: their slots are not used again before that, or the stream's write
 * would undo a later one's. */
static void test_streams_are_late(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 1);
        struct storm late = {&b, stream_open(&b)}, other = {&b, stream_open(&b)};
        _Atomic bool open = false;
        pthread_t thread;
        void *status;

        stream_gate(&b, late.stream, &open);
        b.fake->early = true;
        for (unsigned n = 0; n < FCC_SLOTS; n++)
            assert_int_equal(fcc_noop_enqueue(b.comm, late.stream, NULL), 0);
        wait_for(&b.fake->completed, FCC_SLOTS);
        b.fake->early = false;
        (void)pthread_create(&thread, NULL, enqueue_in_a_thread, &other);
        (void)poll(NULL, 0, 30);
        assert_int_equal(b.fake->records, FCC_SLOTS);
        open = true;
        (void)pthread_join(thread, &status);
        assert_null(status);
        stream_close(&b, other.stream);
        stream_close(&b, late.stream);
        gpu_close(&b);
    }
}

/* The slot's numbers begin anew after 2^32 operators. */
static void test_numbers_wrap(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 1);
        struct fcc_slot *slot = &b.context->memory->slot[0];
        void *stream = stream_open(&b);
        fcc_request *request;

        b.fake->streams[0] = b.context->stream_count[0] = FCC_STREAM_LAST - 2;
        slot->stream_started = *finished_word(&b, 0) = FCC_STREAM_LAST - 2;
        for (int gpu = 0; gpu < FCC_MAX_GPUS && manners[i].gpu_words; gpu++)
            if (WORDS_GPUS >> gpu & 1u)
                b.fake->words[gpu]->started[0].value = FCC_STREAM_LAST - 2;
        for (uint32_t n = 0; n < 5; n++) {
            b.fake->hold = true;
            assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), 0);
            assert_int_equal(b.context->stream_count[0], n < 2 ? FCC_STREAM_LAST - 1 + n : n - 1);
            assert_int_equal(fcc_request_wait(request, 5), -EAGAIN);
            release(&b);
            (void)own_driver(&b)->stream_synchronize(stream);
            assert_int_equal(*finished_word(&b, 0), n < 2 ? FCC_STREAM_LAST - 1 + n : n - 1);
            assert_int_equal(fcc_request_wait(request, -1), 0);
            fcc_request_free(request);
        }
        stream_close(&b, stream);
        gpu_close(&b);
    }
}

/* The driver refuses something of it. */
static void test_enqueue_fails(void **state)
{
    (void)state;
    for (size_t i = 0; i < MANNERS; i++) {
        struct bed b = gpu_open(manners[i], 1);
        bool cuda = manners[i].kind == FCC_DEVICE_CUDA;
        void *stream = stream_open(&b);
        fcc_request *request = NULL;

        driver->capturing = true;
        assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), -EOPNOTSUPP);
        assert_error_says("rank 0: noop: stream: it is being captured");
        driver->capturing = false;
        driver->fail = manners[i].functions   ? DRIVER_stream_fill
                       : manners[i].gpu_words ? DRIVER_stream_batch
                                              : DRIVER_stream_write;
        b.fake->gaps = true;
        for (unsigned n = 0; n < 2 * FCC_SLOTS; n++) /* and costs no slot for longer than the other ranks need to hear of it */
            assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), -EIO);
        assert_error_says("rank 0: noop: ");
        assert_error_says("GPU 2: ");
        assert_null(request);
        driver->fail = -1;
        assert_int_equal(fcc_noop(b.comm), 0); /* behind them all */
        assert_int_equal(b.fake->refused, 1 + 2 * FCC_SLOTS);
        assert_int_equal(b.fake->records, 2 + 2 * FCC_SLOTS);
        if (manners[i].functions)
            driver->fail = cuda ? DRIVER_stream_function : DRIVER_stream_callback;
        else
            driver->fail = cuda ? DRIVER_stream_wait : DRIVER_stream_wait_masked;
        set_fault(&b, DONE_ERROR);
        assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), -EIO);
        assert_error_says("(the operator runs, but the stream does not wait for it)");
        assert_null(request);
        (void)own_driver(&b)->stream_synchronize(stream); /* has come to it, and so it ends before the next one */
        assert_int_equal(fcc_noop(b.comm), -ERANGE);
        assert_int_equal(fcc_comm_error(b.comm), -ERANGE);
        driver->fail = -1;
        set_fault(&b, HONEST);
        assert_int_equal(fcc_noop_enqueue(b.comm, stream, &request), 0);
        assert_int_equal(fcc_request_wait(request, -1), 0);
        fcc_request_free(request);
        stream_close(&b, stream);
        gpu_close(&b);
    }
}

static void test_enqueue_needs_the_ring(void **state)
{
    struct bed b = {.fake = fake_new(HONEST)};
    struct fcc_connect_options o = {.socket_path = b.fake->path, .job = "test", .no_ring = 1};

    (void)state;
    driver_use(FCC_DEVICE_CUDA);
    b.fake->device_kind = FCC_DEVICE_CUDA;
    b.fake->device_uuid = FAKE_UUID(GPU);
    assert_int_equal(fcc_connect(&o, &b.context), 0);
    assert_int_equal(fcc_comm_init(b.context, &(struct fcc_unique_id){{0}}, 1, 0, &on_gpu, &b.comm), 0);
    assert_int_equal(fcc_noop(b.comm), 0);
    assert_int_equal(fcc_noop_enqueue(b.comm, NULL, NULL), -EINVAL);
    assert_error_says("rank 0's connection has no_ring");
    gpu_close(&b);
}

/* ---- the end of the worker ---- */

static void *vanish_in_a_thread(void *arg)
{
    struct bed *b = arg;

    (void)poll(NULL, 0, 50);
    b->fake->vanish = true;
    fake_poke(b->fake);
    return NULL;
}

/* All threads of the program are in the driver when the worker dies: the streams end nevertheless. */
static void test_worker_vanishes(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * MANNERS; i++) {
        struct bed b = gpu_open(manners[i / 2], 1);
        int expected = i % 2 ? -ESHUTDOWN : -ECONNRESET;
        void *streams[2] = {stream_open(&b), stream_open(&b)};
        _Atomic bool open = false;
        fcc_request *request;
        pthread_t thread;

        b.fake->hold = true;
        b.fake->farewell = i % 2;
        stream_gate(&b, streams[1], &open);
        for (int n = 0; n < 20; n++)
            assert_int_equal(fcc_noop_enqueue(b.comm, streams[n % 2], NULL), 0);
        assert_int_equal(fcc_noop_enqueue(b.comm, streams[0], &request), 0);
        (void)pthread_create(&thread, NULL, vanish_in_a_thread, &b);
        (void)own_driver(&b)->stream_synchronize(streams[0]);
        (void)pthread_join(thread, NULL);
        assert_int_equal(fcc_request_wait(request, 0), expected);
        fcc_request_free(request);
        assert_int_equal(fcc_noop_enqueue(b.comm, streams[0], NULL), expected);
        assert_int_equal(fcc_comm_error(b.comm), expected);
        assert_error_says(i % 2 ? "fccd is shutting down" : "the worker of job 'test' (pid 4711) is gone");
        open = true; /* one that comes to its operators only after their end */
        stream_close(&b, streams[1]);
        stream_close(&b, streams[0]);
        gpu_close(&b);
    }
}

int main(int argc, char *argv[])
{
    static const struct CMUnitTest tests[] = {
        T(test_stream_order),
        T(test_gpu_without_stream_memory_operations),
        T(test_storm),
        T(test_errors_without_a_request),
        T(test_errors_come_late),
        T(test_errors_do_not_come),
        T(test_streams_are_late),
        T(test_numbers_wrap),
        T(test_enqueue_fails),
        T(test_enqueue_needs_the_ring),
        T(test_worker_vanishes),
    };

    (void)argc;
    run_again(argv);
    return cmocka_run_group_tests_name("client_stream", tests, NULL, NULL);
}
