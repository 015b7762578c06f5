/* SPDX-License-Identifier: MIT
 *
 * test_client_trust.c - libfccclient and a worker whose words make no sense: numbers that are indices, sizes and statuses here. Each costs
 * the call that met it an error that says so, and nothing else.
 */
#include <fcntl.h>
#include <limits.h>

#include "proto/session.h"
#include "tests/client/client_bed.h"

/* ---- replies ---- */

/* What a twist puts where; the fake's thread reads it behind the call's message. */
static _Atomic int64_t twisted;

static void twist_devices(const struct fcc_msg *to, struct fcc_reply *reply)
{
    if (to->type == FCC_MSG_HELLO)
        ((struct fcc_welcome *)reply)->devices = (uint32_t)twisted;
}

static void twist_spin(const struct fcc_msg *to, struct fcc_reply *reply)
{
    if (to->type == FCC_MSG_HELLO)
        ((struct fcc_welcome *)reply)->spin_us = UINT32_MAX;
}

static void twist_status(const struct fcc_msg *to, struct fcc_reply *reply)
{
    if (to->type != FCC_MSG_UNIQUE_ID)
        return;
    reply->status = (int32_t)twisted;
    memset(reply->text, '\033', sizeof(reply->text)); /* without its NUL */
}

static void twist_gpu(const struct fcc_msg *to, struct fcc_reply *reply)
{
    if (to->type != FCC_MSG_COMM_INIT)
        return;
    ((struct fcc_comm_init_reply *)reply)->device = (int32_t)twisted;
    ((struct fcc_comm_init_reply *)reply)->device_kind = FCC_DEVICE_CUDA;
}

static void twist_comm(const struct fcc_msg *to, struct fcc_reply *reply)
{
    if (to->type == FCC_MSG_COMM_INIT)
        ((struct fcc_comm_init_reply *)reply)->comm = (uint32_t)twisted;
}

static void twist_status_word(const struct fcc_msg *to, struct fcc_reply *reply)
{
    if (to->type == FCC_MSG_COMM_INIT)
        ((struct fcc_comm_init_reply *)reply)->status_word = (uint32_t)twisted;
}

static struct bed bed_twisted(void (*twist)(const struct fcc_msg *, struct fcc_reply *))
{
    struct bed b = {.fake = fake_new(HONEST)};
    struct fcc_connect_options o = {.socket_path = b.fake->path, .job = "test"};

    b.fake->twist = twist;
    assert_int_equal(fcc_connect(&o, &b.context), 0);
    return b;
}

static int join(struct bed *b, int nranks, int rank, uint32_t kind)
{
    struct fcc_comm_options options = {.device = -1, .device_kind = kind};

    return fcc_comm_init(b->context, &(struct fcc_unique_id){{0}}, nranks, rank, &options, &b->comm);
}

static void test_welcome(void **state)
{
    struct fake *f = fake_new(HONEST);
    struct fcc_connect_options o = {.socket_path = f->path, .job = "test"};
    fcc_context *context = NULL;

    (void)state;
    twisted = UINT32_MAX;
    f->twist = twist_devices;
    assert_int_equal(fcc_connect(&o, &context), -EPROTO);
    assert_error_says("4294967295 devices");
    assert_null(context);
    assert_int_equal(fake_free(f), 0);

    struct bed b = bed_twisted(twist_spin); /* an hour and more, but nobody spins for longer than he sleeps */
    assert_int_equal(join(&b, 1, 0, FCC_DEVICE_CPU), 0);
    b.fake->slow = true;
    for (int i = 0; i < 10; i++)
        assert_int_equal(fcc_noop(b.comm), 0);
    bed_close(&b);
}

/* A file that is full, where the doorbell should be: who rings does not wait. */
static void test_doorbell_is_full(void **state)
{
    struct fake *f = fake_new(HONEST);
    struct fcc_connect_options o = {.socket_path = f->path, .job = "test"};
    struct bed b = {.fake = f};
    char bytes[4096] = {0};
    int ends[2];

    (void)state;
    assert_int_equal(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    while (write(ends[1], bytes, sizeof(bytes)) > 0) {
    }
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
    f->bell = ends[1];
    f->slow = true; /* it looks by itself, every millisecond */
    assert_int_equal(fcc_connect(&o, &b.context), 0);
    assert_int_equal(join(&b, 1, 0, FCC_DEVICE_CPU), 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(fcc_noop(b.comm), 0);
    bed_close(&b);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void test_statuses_of_replies(void **state)
{
    static const int32_t none[] = {1, INT32_MAX, INT32_MIN, -4096};
    struct bed b = bed_twisted(twist_status);
    struct fcc_unique_id id;

    (void)state;
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        twisted = none[i];
        assert_int_equal(fcc_get_unique_id(b.context, &id), -EPROTO);
        assert_error_says("malformed reply to unique_id");
    }
    bed_close(&b);
}

static void test_ranks_and_devices(void **state)
{
    static const struct {
        int nranks, rank;
    } ranks[] = {{FCC_MAX_RANKS + 1, 0}, {INT_MAX, 5}, {0, 0}, {-1, -2}, {2, 2}, {2, -1}, {INT_MIN, INT_MIN}};
    static const int gpus[] = {-1, FCC_MAX_GPUS, INT32_MAX, INT32_MIN};
    struct bed b = bed_connect(false);
    unsigned left = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) { /* which the worker lets pass */
        assert_int_equal(join(&b, ranks[i].nranks, ranks[i].rank, FCC_DEVICE_CPU), -EPROTO);
        assert_error_says("allowed are 1 to 1024 ranks");
        assert_int_equal(b.fake->calls[FCC_MSG_COMM_DESTROY], ++left);
    }
    b.fake->twist = twist_gpu;
    for (size_t i = 0; i < sizeof(gpus) / sizeof(gpus[0]); i++) {
        twisted = gpus[i];
        assert_int_equal(join(&b, 1, 0, i % 2 ? FCC_DEVICE_GPU : FCC_DEVICE_CUDA), -EPROTO);
        assert_error_says("allowed are 0 to 15");
        assert_int_equal(b.fake->calls[FCC_MSG_COMM_DESTROY], ++left);
    }
    twisted = 0;
    assert_int_equal(join(&b, 1, 0, FCC_DEVICE_HIP), -EPROTO);
    assert_error_says("on a device of kind 3: it had asked for kind 2");
    assert_int_equal(join(&b, 1, 0, FCC_DEVICE_CPU), -EPROTO);
    assert_error_says("on a device of kind 3: it had asked for kind 0");
    b.fake->twist = twist_comm;
    assert_int_equal(join(&b, 1, 0, FCC_DEVICE_CPU), -EPROTO);
    assert_error_says("communicator 0");
    bed_close(&b);
}

static void test_ranks_of_peers(void **state)
{
    static const int ranks[] = {-1, 2, FCC_MAX_RANKS, INT_MAX, INT_MIN};
    struct bed b = bed_open(false, 2);
    fcc_buffer *buffer;
    void *at = NULL;

    (void)state;
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, 100, &buffer), 0);
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        assert_int_equal(fcc_buffer_peer(buffer, ranks[i], &at), -EINVAL);
        assert_error_says("allowed are 0 to 1");
    }
    assert_int_equal(b.fake->calls[FCC_MSG_BUFFER_PEER], 0);
    assert_null(at);
    assert_int_equal(fcc_buffer_peer(buffer, 0, &at), 0);
    assert_ptr_equal(at, fcc_buffer_data(buffer));
    bed_close(&b);
}

/* ---- memory that both see ---- */

static void twist_slot_status(struct fcc_submit_reply *reply)
{
    reply->reply.status = (int32_t)twisted;
    memset(reply->reply.text, '\033', sizeof(reply->reply.text));
}

static void twist_slot_values(struct fcc_submit_reply *reply)
{
    reply->nvalues = (uint32_t)twisted;
}

static void completions(bool no_ring)
{
    static const int32_t none[] = {1, INT32_MAX, INT32_MIN, -4096};
    struct bed b = bed_open(no_ring, 2);
    int64_t rows[2] = {-1, -1};
    struct fcc_gemm_all_to_all_args args = {.recv_rows = rows};

    b.fake->twist_slot = twist_slot_status;
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        twisted = none[i];
        assert_int_equal(fcc_noop(b.comm), -EPROTO);
        assert_error_says("status");
    }
    twisted = -ERANGE;
    assert_int_equal(fcc_noop(b.comm), -ERANGE);
    assert_null(strchr(fcc_last_error(), '\033')); /* which a terminal would obey */
    b.fake->twist_slot = twist_slot_values;
    for (uint32_t n = 0; n < 40; n++) {
        twisted = n < 32 ? UINT32_C(1) << n : UINT32_MAX - n;
        assert_int_equal(fcc_gemm_all_to_all(b.comm, &args), twisted == 2 ? 0 : -EPROTO);
    }
    assert_int_equal(rows[0], 11);
    assert_int_equal(rows[1], 22);
    bed_close(&b);
}

static void test_completions(void **state)
{
    (void)state;
    completions(false);
    completions(true);
}

/* Where it is looked for by who waits for room in the ring of triggers. */
static void status_word(int32_t value, int expected)
{
    struct bed b = bed_twisted(twist_status_word);
    int status = 0;

    twisted = 3;
    assert_int_equal(join(&b, 1, 0, FCC_DEVICE_CPU), 0);
    atomic_store(&b.fake->memory->status[3], value);
    for (unsigned i = 0; i <= FCC_TRIGGER_SLOTS && !status; i++)
        status = fcc_put_trigger(b.comm, 1, i);
    assert_int_equal(status, expected);
    assert_error_says("the communicator has ended");
    bed_close(&b);
}

static void test_status_words(void **state)
{
    (void)state;
    status_word(-ETIMEDOUT, -ETIMEDOUT);
    status_word(1, -EPROTO);
    status_word(INT32_MIN, -EPROTO);
    status_word(-4096, -EPROTO);
}

/* One that is beyond the session memory is none. */
static void test_status_word_lies_outside(void **state)
{
    static const uint32_t words[] = {FCC_STATUS_WORDS, UINT32_MAX - 1, UINT32_C(1) << 31};
    const int32_t *at;

    (void)state;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct bed b = bed_twisted(twist_status_word);
        twisted = words[i];
        assert_int_equal(join(&b, 1, 0, FCC_DEVICE_CPU), 0);
        assert_int_equal(fcc_comm_status(b.comm, &at), -ENOMEM);
        assert_int_equal(fcc_noop(b.comm), 0);
        bed_close(&b);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        T(test_welcome),        T(test_doorbell_is_full), T(test_statuses_of_replies), T(test_ranks_and_devices),
        T(test_ranks_of_peers), T(test_completions),      T(test_status_words),        T(test_status_word_lies_outside),
    };

    return cmocka_run_group_tests_name("client_trust", tests, NULL, NULL);
}
