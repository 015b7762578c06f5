/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_posted.c - a client that lets go of memory into which the worker has just stored something in passing: the word by which it
 * is decided whether an operator that was offered may run. No libfccclient does that, which waits for its kernels; so this one speaks bytes.
 */
#include "fake_gpu_bed.h"
#include "raw.h"

enum { K = 16, N = 64, BYTES = 1 << 18, STORE_US = 400000 };

struct offerer {
    struct raw *r;
    uint32_t comm, in, out;
    uint64_t head;
    uint32_t count[FCC_SLOTS]; /* of each slot's operators on a stream */
    uint64_t operators;
};

static const struct fcc_reply *ask(struct raw *r, void *message, uint16_t type, size_t length)
{
    struct fcc_msg *m = message;

    *m = (struct fcc_msg){.length = (uint32_t)length, .type = type, .id = 9};
    raw_send(r, message, length, NULL, 0);
    return raw_receive(r);
}

static uint32_t buffer_ask(struct offerer *o, enum fcc_buffer_kind kind)
{
    struct fcc_buffer_alloc_msg m = {.comm = o->comm, .kind = kind, .bytes = BYTES};

    CHECK(ask(o->r, &m, FCC_MSG_BUFFER_ALLOC, sizeof(m))->status == 0);
    return ((struct fcc_buffer_alloc_reply *)o->r->in)->buffer;
}

/* A communicator of one rank, on a GPU. */
static void offerer_open(struct offerer *o, const struct test_daemon *d)
{
    struct fcc_msg id;
    struct fcc_comm_init_msg m = {.nranks = 1, .device = -1, .device_kind = FCC_DEVICE_GPU};

    memset(o, 0, sizeof(*o));
    o->r = raw_session(d);
    CHECK(ask(o->r, &id, FCC_MSG_UNIQUE_ID, sizeof(id))->status == 0);
    m.unique_id = ((struct fcc_unique_id_reply *)o->r->in)->unique_id;
    CHECK(ask(o->r, &m, FCC_MSG_COMM_INIT, sizeof(m))->status == 0);
    o->comm = ((struct fcc_comm_init_reply *)o->r->in)->comm;
    o->in = buffer_ask(o, FCC_BUFFER_LOCAL);
    o->out = buffer_ask(o, FCC_BUFFER_SYMMETRIC);
}

static struct fcc_wire_tensor tensor_make(uint32_t buffer, uint64_t offset, int64_t rows, int64_t columns)
{
    return (struct fcc_wire_tensor){
        .buffer = buffer, .dtype = FCC_F32, .ndim = 2, .offset = offset, .shape = {rows, columns}, .stride = {columns, 1}};
}

/* A product on a stream, which comes to it at once. Its slot. */
static uint32_t submit(struct offerer *o, enum fcc_prepare prepare, uint32_t offer, uint64_t run)
{
    struct {
        struct fcc_submit m;
        struct fcc_wire_tensor tensors[FCC_GEMV_TENSORS];
        char room[FCC_RECORD_ALIGN];
    } s = {.tensors = {tensor_make(o->in, 0, 1, K), tensor_make(o->in, 1024, N, K), tensor_make(o->out, 0, 1, N)}};
    uint32_t slot = (uint32_t)(++o->operators % FCC_SLOTS), length = offsetof(__typeof__(s), room);
    struct fcc_slot *at = &o->r->memory->slot[slot];
    uint64_t one = 1;

    s.m = (struct fcc_submit){.msg = {.length = length, .type = FCC_MSG_SUBMIT, .id = o->operators},
                              .comm = o->comm,
                              .op = FCC_OP_GEMV_ALL_REDUCE,
                              .ntensors = FCC_GEMV_TENSORS,
                              .slot = slot,
                              .stream = ++o->count[slot],
                              .prepare = (uint16_t)prepare,
                              .offer = offer,
                              .run = run};
    atomic_store(&at->state, FCC_SLOT_PENDING);
    for (uint32_t i = 0; i < length; i++)
        o->r->memory->data[(o->head + i) % FCC_RING_BYTES] = ((unsigned char *)&s)[i];
    o->head += (length + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;
    atomic_store(&o->r->memory->head, o->head);
    CHECK(write(o->r->doorbell, &one, sizeof(one)) == sizeof(one));
    atomic_store(&at->stream_started, o->count[slot]);
    return slot;
}

static void submit_and_wait(struct offerer *o, enum fcc_prepare prepare, uint32_t offer)
{
    double until = now_ms() + 20e3;
    uint32_t slot = submit(o, prepare, offer, 0);

    while (atomic_load(&o->r->memory->slot[slot].state) != FCC_SLOT_DONE) {
        CHECK(now_ms() < until);
        nap();
    }
    CHECK(o->r->memory->slot[slot].status == 0);
}

/* Until the next one may be offered: what the worker calls it. */
static uint32_t offered(struct offerer *o)
{
    const struct fcc_prepared_words *words = NULL;

    for (int i = 0; i < 40 && !words; i++) {
        submit_and_wait(o, FCC_PREPARE_ASK, 1);
        for (uint32_t p = FCC_PREPARED_MAX; p < FCC_PREPARED_PLACES && !words; p++)
            if (atomic_load(&o->r->memory->prepared[p].first))
                words = &o->r->memory->prepared[p];
    }
    CHECK(words != NULL);
    while (o->operators + 1 < words->first)
        submit_and_wait(o, FCC_PREPARE_ASK, 1);
    return words->number;
}

/* The worker has done with what it was sent before. */
static void settle(struct offerer *o)
{
    struct fcc_msg id;

    CHECK(ask(o->r, &id, FCC_MSG_UNIQUE_ID, sizeof(id))->status == 0);
}

enum way { FREES, DESTROYS, CLOSES, ABORTS };

static void let_go(enum way way)
{
    struct test_daemon d;
    struct offerer o;

    fake_start(&d, GPUS, NULL);
    offerer_open(&o, &d);
    uint32_t number = offered(&o);
    fake->store_us = STORE_US; /* who frees before it has come is seen (fake_check()); who waits does so for that long */
    (void)submit(&o, FCC_PREPARE_RUN, number, 1);
    settle(&o);
    if (way == FREES) {
        struct fcc_prepared_msg m = {.comm = o.comm, .number = number};
        CHECK(ask(o.r, &m, FCC_MSG_PREPARED_FREE, sizeof(m))->status == 0);
    } else if (way == ABORTS) { /* and then lets go of it, while its kernels are told to leave */
        struct fcc_comm_msg m = {.comm = o.comm, .reason = "enough"};
        CHECK(ask(o.r, &m, FCC_MSG_COMM_ABORT, sizeof(m))->status == 0);
    }
    if (way == DESTROYS || way == ABORTS) {
        struct fcc_comm_msg m = {.comm = o.comm};
        CHECK(ask(o.r, &m, FCC_MSG_COMM_DESTROY, sizeof(m))->status == 0);
    }
    if (way != CLOSES)
        settle(&o);
    raw_close(o.r);
    fake_stop(&d);
}

static void frees(void)
{
    let_go(FREES);
}

static void destroys(void)
{
    let_go(DESTROYS);
}

static void closes(void)
{
    let_go(CLOSES);
}

static void aborts(void)
{
    let_go(ABORTS);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"frees", frees, 0},
        {"destroys", destroys, 0},
        {"closes", closes, 0},
        {"aborts", aborts, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_posted", TESTS(tests));
}
