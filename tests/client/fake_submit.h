/* SPDX-License-Identifier: MIT
 *
 * fake_submit.h - fake_worker.h's state, and how it judges submissions and completes them.
 */
#ifndef FAKE_SUBMIT_H
#define FAKE_SUBMIT_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "proto/msg.h"
#include "proto/proto.h"
#include "proto/session.h"

enum fault {
    HONEST,
    /* about descriptors and the reply that they come with: WELCOME, or BUFFER_ALLOC's */
    FD_MISSING,
    FD_SURPLUS,
    FD_UNSEALED,
    FD_SMALL,
    REPLY_TRUNCATED,
    REPLY_LENGTH_LIES,
    REPLY_WRONG_TYPE,
    REPLY_ERROR,
    REPLY_NONE, /* closes instead */
    /* of the WELCOME only */
    VERSION_WRONG,
    /* of completions */
    DONE_WRONG_ID,
    DONE_POSITIVE,
    DONE_TOO_MANY_VALUES,
    DONE_TOO_FEW_VALUES,
    DONE_ERROR,
    /* of the ring */
    TAIL_WRONG,
};

#define FAKE_COMM 7u
#define FAKE_DEVICE 2 /* that the rank is on */
#define FAKE_TIME_LIMIT_MS 3000
#define FAKE_TEXT "rank 3: gemv_all_reduce: n: 7: rank 0 has 8"

struct fake_operator {
    uint32_t slot;
    uint64_t id;
    uint16_t op;
    uint32_t stream;
    bool gpu_words;
    bool past; /* its stream has gone on */
    int status;
    char text[FCC_TEXT_MAX];
};

struct fake {
    enum fault welcome_fault;
    _Atomic enum fault fault;   /* of everything later */
    _Atomic bool hold;          /* do not answer submissions until it is false */
    _Atomic unsigned let;       /* but so many of those that are held, the oldest first */
    _Atomic bool hold_calls;    /* nor calls */
    _Atomic bool early;         /* do not wait for streams, as when operators fail at once */
    _Atomic bool mute;          /* let streams go past their operators, and do not complete these until it is false */
    _Atomic bool slow;          /* read the ring a record at a time, and sleep in between */
    _Atomic bool stall;         /* do not read the ring */
    _Atomic bool deaf;          /* do nothing at all */
    _Atomic bool ended;         /* it has closed the connection */
    _Atomic bool gaps;          /* numbers of streams may be missing: of operators that the driver refused */
    int unanswered;             /* connections whose HELLO was read and not answered */
    _Atomic bool vanish;        /* close the connection */
    _Atomic bool farewell;      /* say why before */
    _Atomic unsigned records;   /* SUBMIT messages seen; what steers the fake has been looked at for each */
    _Atomic unsigned refused;   /* ... that the library has refused, of these */
    _Atomic unsigned completed; /* ... whose completions the client can see */
    _Atomic unsigned broken;    /* that were not as they should be */
    _Atomic unsigned rings;     /* of the doorbell */
    _Atomic unsigned calls[FCC_MSG_TYPES];
    _Atomic uint32_t device_kind, memory_kind; /* of the replies */
    _Atomic unsigned char device_uuid;         /* every byte of it */
    _Atomic uint32_t words_gpus;               /* likewise: streams may use words on these */
    _Atomic bool no_words;                     /* but there are none */
    struct fcc_hello hello;                    /* as it came */
    struct fcc_comm_init_msg comm_init;        /* the last one; look at calls[] first */
    struct fcc_meeting meeting;                /* likewise */
    uint32_t spin_us, time_limit_ms;           /* 0: FAKE_TIME_LIMIT_MS */
    /* Not NULL: changes a reply, or what a slot gets, as no worker would make it. */
    void (*_Atomic twist)(const struct fcc_msg *to, struct fcc_reply *reply);
    void (*_Atomic twist_slot)(struct fcc_submit_reply *reply);
    int bell; /* not 0: sent in place of the doorbell */

    char path[108];
    int listener, sock, doorbell, poke;
    struct fcc_session_memory *memory;
    uint64_t tail;
    uint32_t last_buffer;
    struct fake_operator held[256];
    unsigned nheld;
    _Atomic uint32_t streams[FCC_SLOTS];           /* the last number of each slot */
    struct fcc_stream_words *words[FCC_MAX_GPUS];  /* that the client has asked for */
    _Alignas(16) unsigned char held_call[64][256]; /* messages */
    unsigned nheld_calls;
    _Alignas(16) unsigned char inbox[FCC_MSG_MAX];
    pthread_t thread;
};

static void fake_stream_finish(struct fake *f, struct fake_operator *o)
{
    if (o->stream && o->gpu_words)
        atomic_store(&f->words[FAKE_DEVICE]->finished[o->slot].value, o->stream);
    else if (o->stream)
        atomic_store(&f->memory->slot[o->slot].stream_finished, o->stream);
    o->past = true;
}

static void fake_complete(struct fake *f, const struct fake_operator *o, enum fault fault)
{
    struct fcc_submit_reply r = {.reply.msg = {.type = FCC_MSG_SUBMIT | FCC_REPLY, .id = o->id}};

    if (o->op == FCC_OP_GEMM_ALL_TO_ALL)
        r.nvalues = 2;
    r.values[0] = 11;
    r.values[1] = 22;
    if (o->status) {
        r.reply.status = o->status;
        (void)snprintf(r.reply.text, sizeof(r.reply.text), "%s", o->text);
    }
    if (fault == DONE_WRONG_ID)
        r.reply.msg.id++;
    if (fault == DONE_POSITIVE)
        r.reply.status = 5;
    if (fault == DONE_TOO_MANY_VALUES)
        r.nvalues = FCC_SLOT_VALUES + 1;
    if (fault == DONE_TOO_FEW_VALUES)
        r.nvalues = 1;
    if (fault == DONE_ERROR) {
        r.reply.status = -ERANGE;
        memset(r.reply.text, 'x', sizeof(r.reply.text)); /* without its NUL */
        memcpy(r.reply.text, FAKE_TEXT, strlen(FAKE_TEXT));
    }
    void (*twist)(struct fcc_submit_reply *) = f->twist_slot;
    if (twist)
        twist(&r);
    if (o->slot == FCC_NO_SLOT) {
        (void)msg_send(f->sock, &r.reply.msg, sizeof(r), NULL, 0);
        return;
    }
    struct fcc_slot *s = &f->memory->slot[o->slot];
    s->status = r.reply.status;
    s->id = r.reply.msg.id;
    s->nvalues = r.nvalues;
    memcpy(s->values, r.values, sizeof(s->values));
    memcpy(s->text, r.reply.text, sizeof(s->text));
    if (atomic_exchange(&s->state, FCC_SLOT_DONE) == FCC_SLOT_WAITING)
        (void)syscall(SYS_futex, &s->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* The fault is read before the operator's stream goes on: a test that has waited for the stream may set another one. */
static void fake_end(struct fake *f, struct fake_operator *o)
{
    enum fault fault = f->fault;

    if (!o->past)
        fake_stream_finish(f, o);
    fake_complete(f, o, fault);
    f->completed++;
}

/* The test's embedding requests: from the number of tables follows every byte. */
static bool fake_embedding_is_right(const struct fcc_submit *m)
{
    const int64_t *words =
        (const int64_t *)(const void *)((const unsigned char *)(m + 1) + FCC_EMB_TENSORS * sizeof(struct fcc_wire_tensor));
    const struct fcc_wire_tensor *tensors = (const struct fcc_wire_tensor *)(m + 1);
    size_t n = (size_t)(words[0] & 0xffffffff);

    if (m->ntensors != FCC_EMB_TENSORS || m->nattrs != n + 5 || words[0] != (int64_t)((1ULL << 32) | n))
        return false;
    for (int i = 0; i < FCC_EMB_TENSORS; i++)
        if (tensors[i].buffer || tensors[i].offset || tensors[i].dtype || tensors[i].shape[0] || tensors[i].stride[0])
            return false;
    for (size_t i = 0; i < n; i++)
        if (words[1 + i] != (int64_t)(n * 1000003 + i))
            return false;
    return words[n + 1] == (int64_t)((2ULL << 32) | 1) && words[n + 2] == FCC_POOLING_MEAN &&
           words[n + 3] == (int64_t)((3ULL << 32) | 1) && words[n + 4] == (int64_t)n;
}

/* A slot's numbers follow each other, leaving out 0. */
static bool fake_stream_is_right(struct fake *f, const struct fcc_submit *m)
{
    uint32_t last;

    if (!m->stream)
        return !m->gpu_words;
    for (uint32_t gpu = 0; gpu < FCC_MAX_GPUS && m->gpu_words; gpu++)
        if (m->gpu_words > 1 || !f->words_gpus || ((f->words_gpus >> gpu & 1u) && !f->words[gpu]))
            return false;
    if (m->slot >= FCC_SLOTS || !f->device_kind)
        return false;
    last = f->streams[m->slot];
    f->streams[m->slot] = m->stream;
    return m->stream == last + 1 || (f->gaps && m->stream > last) || (m->stream == 1 && last == FCC_STREAM_LAST);
}

/* On every GPU, as the worker's wait there. */
static bool fake_stream_has_come(const struct fake *f, const struct fake_operator *o)
{
    if (!o->stream || o->past || f->early)
        return true;
    for (uint32_t gpu = 0; gpu < FCC_MAX_GPUS && o->gpu_words; gpu++)
        if ((f->words_gpus >> gpu & 1u) && (int32_t)(atomic_load(&f->words[gpu]->started[o->slot].value) - o->stream) < 0)
            return false;
    return o->gpu_words || (int32_t)(atomic_load(&f->memory->slot[o->slot].stream_started) - o->stream) >= 0;
}

/* The stream is looked at first: if a test holds operators back and then lets a stream come to one, that one is held. */
static bool fake_may_end(const struct fake *f, const struct fake_operator *o)
{
    return fake_stream_has_come(f, o) && !f->hold;
}

static const char *const fake_op_names[FCC_OP_COUNT + 1] = {
#define X(NAME, name, number) [number] = #name,
    FCC_OPERATORS(X)
#undef X
        [FCC_OP_COUNT] = "fcc_buffer_alloc (symmetric)",
};

/* What is refused has no tensors, no stream, and a text. */
static bool fake_refusal_is_right(const struct fcc_submit *m)
{
    const char *text = (const char *)(m + 1);

    return !m->ntensors && m->nattrs && m->nattrs <= FCC_REFUSED_WORDS && !m->stream && m->refused <= FCC_REFUSED_MAX &&
           strnlen(text, m->nattrs * sizeof(int64_t)) / sizeof(int64_t) == m->nattrs - 1;
}

static bool fake_operator_is_right(struct fake *f, const struct fcc_submit *m)
{
    if (m->refused)
        return fake_refusal_is_right(m);
    return fake_stream_is_right(f, m) && (m->op != FCC_OP_EMBEDDING_ALL_TO_ALL || fake_embedding_is_right(m));
}

static void fake_submit(struct fake *f, const struct fcc_submit *m)
{
    bool right = m->msg.type == FCC_MSG_SUBMIT && !m->msg.zero && m->comm == FAKE_COMM && m->op < FCC_OP_COUNT + !!m->refused &&
                 m->msg.length == sizeof(*m) + m->ntensors * sizeof(struct fcc_wire_tensor) + m->nattrs * sizeof(int64_t) &&
                 (m->slot < FCC_SLOTS || m->slot == FCC_NO_SLOT) && f->nheld < sizeof(f->held) / sizeof(f->held[0]);

    struct fake_operator o = {.slot = m->slot,
                              .id = m->msg.id,
                              .op = m->op,
                              .stream = m->stream,
                              .gpu_words = m->gpu_words,
                              .status = -(int)m->refused};
    bool ends;

    f->refused += m->refused != 0;
    if (!right || !fake_operator_is_right(f, m)) {
        f->broken++;
        f->records++;
        return;
    }
    if (m->refused) /* as the daemon tells all ranks; in these tests the rank is 0 */
        (void)snprintf(o.text, sizeof(o.text), "rank 0: %s: %.400s", fake_op_names[m->op], (const char *)(m + 1));
    ends = fake_may_end(f, &o) && !f->mute;
    if (!ends)
        f->held[f->nheld++] = o;
    f->records++; /* between what a test may change when it has seen this, and what lets the test see the operator's end */
    if (ends)
        fake_end(f, &o);
}

#endif
