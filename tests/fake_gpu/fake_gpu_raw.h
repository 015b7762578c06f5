/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_raw.h - a rank on a fake GPU that speaks bytes, for what no libfccclient does: its operators take their places on a stream that
 * there is not, as it writes the stream's words itself.
 */
#ifndef FAKE_GPU_RAW_H
#define FAKE_GPU_RAW_H

#include "proto/session.h"
#include "tests/bed/raw.h"
#include "tests/fake_gpu/fake_gpu_bed.h"

enum { K = 16, N = 64, BYTES = 1 << 18 };

struct speaker {
    struct raw *r;
    uint32_t comm, in, out;
    uint64_t head;
    uint32_t count[FCC_SLOTS]; /* of each slot's operators on a stream */
    uint64_t operators;
    /* The next operator: */
    bool noop;  /* is none that computes */
    bool again; /* has the slot of the one before */
};

static inline const struct fcc_reply *ask(struct raw *r, void *message, uint16_t type, size_t length)
{
    struct fcc_msg *m = message;

    *m = (struct fcc_msg){.length = (uint32_t)length, .type = type, .id = 9};
    raw_send(r, message, length, NULL, 0);
    return raw_receive(r);
}

static inline uint32_t buffer_ask(struct speaker *o, enum fcc_buffer_kind kind)
{
    struct fcc_buffer_alloc_msg m = {.comm = o->comm, .kind = kind, .bytes = BYTES};

    CHECK(ask(o->r, &m, FCC_MSG_BUFFER_ALLOC, sizeof(m))->status == 0);
    return ((struct fcc_buffer_alloc_reply *)o->r->in)->buffer;
}

/* A communicator of one rank, on a GPU. */
static inline void speaker_open(struct speaker *o, const struct test_daemon *d)
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

static inline struct fcc_wire_tensor tensor_make(uint32_t buffer, uint64_t offset, int64_t rows, int64_t columns)
{
    return (struct fcc_wire_tensor){
        .buffer = buffer, .dtype = FCC_F32, .ndim = 2, .offset = offset, .shape = {rows, columns}, .stride = {columns, 1}};
}

/* An operator on a stream, which does not come to it. Its slot. */
static inline uint32_t submit_silently(struct speaker *o, enum fcc_prepare prepare, uint32_t bound, uint64_t run)
{
    struct {
        struct fcc_submit m;
        struct fcc_wire_tensor tensors[FCC_GEMV_TENSORS];
        char room[FCC_RECORD_ALIGN];
    } s = {.tensors = {tensor_make(o->in, 0, 1, K), tensor_make(o->in, 1024, N, K), tensor_make(o->out, 0, 1, N)}};
    uint32_t slot = (uint32_t)((++o->operators - o->again) % FCC_SLOTS),
             length = o->noop ? sizeof(s.m) : offsetof(__typeof__(s), room);
    struct fcc_slot *at = &o->r->memory->slot[slot];
    uint64_t one = 1;

    s.m = (struct fcc_submit){.msg = {.length = length, .type = FCC_MSG_SUBMIT, .id = o->operators},
                              .comm = o->comm,
                              .op = o->noop ? FCC_OP_NOOP : FCC_OP_GEMV_ALL_REDUCE,
                              .ntensors = o->noop ? 0 : FCC_GEMV_TENSORS,
                              .slot = slot,
                              .stream = ++o->count[slot],
                              .prepare = (uint16_t)prepare,
                              .bound = bound,
                              .run = run};
    atomic_store(&at->state, FCC_SLOT_PENDING);
    for (uint32_t i = 0; i < length; i++)
        o->r->memory->data[(o->head + i) % FCC_RING_BYTES] = ((unsigned char *)&s)[i];
    o->head += (length + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;
    atomic_store(&o->r->memory->head, o->head);
    CHECK(write(o->r->doorbell, &one, sizeof(one)) == sizeof(one));
    return slot;
}

/* ... which comes to it at once. */
static inline uint32_t submit(struct speaker *o, enum fcc_prepare prepare, uint32_t bound, uint64_t run)
{
    uint32_t slot = submit_silently(o, prepare, bound, run);

    atomic_store(&o->r->memory->slot[slot].stream_started, o->count[slot]);
    return slot;
}

static inline void submit_and_wait(struct speaker *o, enum fcc_prepare prepare, uint32_t bound)
{
    double until = await_end();
    uint32_t slot = submit(o, prepare, bound, 0);

    while (atomic_load(&o->r->memory->slot[slot].state) != FCC_SLOT_DONE) {
        CHECK(now_ms() < until);
        nap();
    }
    CHECK(o->r->memory->slot[slot].status == 0);
}

/* Have an operator bound, until the next one is a run. Its words. */
static inline const struct fcc_binding *bind_repeated(struct speaker *o)
{
    struct fcc_binding *words = NULL;

    for (int i = 0; i < 40 && !words; i++) {
        submit_and_wait(o, FCC_PREPARE_ASK, 1);
        for (uint32_t p = FCC_PREPARED_MAX; p < FCC_BINDINGS && !words; p++)
            if (atomic_load(&o->r->memory->bindings[p].number))
                words = &o->r->memory->bindings[p];
    }
    CHECK(words != NULL);
    atomic_store(&words->adopted, 1);
    while (!words->first || o->operators + 1 < words->first)
        submit_and_wait(o, FCC_PREPARE_RUN, 0);
    return words;
}

/* The worker has done with what it was sent before. */
static inline void settle(struct speaker *o)
{
    struct fcc_msg id;

    CHECK(ask(o->r, &id, FCC_MSG_UNIQUE_ID, sizeof(id))->status == 0);
}

#endif
