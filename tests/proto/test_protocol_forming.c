/* SPDX-License-Identifier: MIT
 *
 * test_protocol_forming.c - a client that names a communicator before all its ranks have joined, which no libfccclient does.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "proto/session.h"
#include "tests/bed/harness.h"
#include "tests/bed/program.h"
#include "tests/bed/raw.h"

/* Are there no communicators in this user's jobs, as fccctl says? */
static bool no_comms(void)
{
    static char text[1 << 16];
    const char *arguments[] = {"comms", "--json", NULL};

    CHECK(program_run(text, sizeof(text), fccctl_binary(), arguments) == 0 && strstr(text, "\"comms\":"));
    return !strstr(text, "\"comm\":");
}

/* Rank 0 of two joins, and the other does not come. */
static void forming_begin(struct raw *r, uint32_t limit_ms)
{
    struct fcc_msg ask = {.length = sizeof(ask), .type = FCC_MSG_UNIQUE_ID, .id = 1};
    struct fcc_comm_init_msg m = {
        .msg = {.length = sizeof(m), .type = FCC_MSG_COMM_INIT, .id = 2}, .nranks = 2, .device = -1, .time_limit_ms = limit_ms};

    raw_send(r, &ask, sizeof(ask), NULL, 0);
    CHECK(raw_receive(r)->status == 0);
    m.unique_id = ((struct fcc_unique_id_reply *)r->in)->unique_id;
    raw_send(r, &m, sizeof(m), NULL, 0);
}

/* By the ring, which is empty; its status. */
static int ring_submit(struct raw *r, const struct fcc_submit *m)
{
    const double until = await_end();
    uint64_t one = 1, room = (sizeof(*m) + FCC_RECORD_ALIGN - 1) / FCC_RECORD_ALIGN * FCC_RECORD_ALIGN;

    memcpy(r->memory->data, m, sizeof(*m));
    atomic_store(&r->memory->slot[m->slot].state, FCC_SLOT_PENDING);
    atomic_store(&r->memory->head, room);
    CHECK(write(r->doorbell, &one, sizeof(one)) == sizeof(one));
    while (atomic_load(&r->memory->slot[m->slot].state) != FCC_SLOT_DONE) {
        CHECK(now_ms() < until);
        nap();
    }
    return r->memory->slot[m->slot].status;
}

/* Handles count from 1, so a client can name a communicator that it has not been told of yet. There is nothing that it can do with it... */
static void used_while_it_forms(void)
{
    struct test_daemon d;
    struct {
        struct fcc_msg msg;
        uint32_t comm;
        unsigned char more[232];
    } m = {.comm = 1};
    static const struct {
        uint16_t type, bytes;
    } kinds[] = {
        {FCC_MSG_BUFFER_ALLOC, sizeof(struct fcc_buffer_alloc_msg)}, {FCC_MSG_TRIGGERS, sizeof(struct fcc_triggers_msg)},
        {FCC_MSG_PUT_REGISTER, sizeof(struct fcc_put_msg)},          {FCC_MSG_TRACKER, sizeof(struct fcc_tracker_msg)},
        {FCC_MSG_TRACKER_FREE, sizeof(struct fcc_tracker_msg)},      {FCC_MSG_RULE, sizeof(struct fcc_rule_msg)},
        {FCC_MSG_STREAM_WORDS, sizeof(struct fcc_stream_words_msg)}, {FCC_MSG_PREPARED, sizeof(struct fcc_prepared_msg)},
        {FCC_MSG_PREPARED_FREE, sizeof(struct fcc_prepared_msg)}};

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    forming_begin(r, 30000);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        for (uint32_t kind = FCC_BUFFER_LOCAL; kind <= (kinds[i].type == FCC_MSG_BUFFER_ALLOC ? FCC_BUFFER_SYMMETRIC : 0);
             kind++) {
            memset(m.more, 0, sizeof(m.more));
            m.msg = (struct fcc_msg){.length = kinds[i].bytes, .type = kinds[i].type, .id = 40 + i};
            if (kinds[i].type == FCC_MSG_BUFFER_ALLOC) {
                ((struct fcc_buffer_alloc_msg *)(void *)&m)->kind = kind;
                ((struct fcc_buffer_alloc_msg *)(void *)&m)->bytes = 4096;
            }
            raw_send(r, &m, kinds[i].bytes, NULL, 0);
            const struct fcc_reply *reply = raw_receive(r);
            CHECK(reply->msg.id == 40 + i && reply->status == -EAGAIN &&
                  strstr(reply->text, "rank 0: comm: 1: it still forms"));
        }
    struct fcc_submit submit = noop_make(1, FCC_NO_SLOT);
    CHECK(submit_socket(r, &submit, sizeof(submit))->status == -EAGAIN);
    submit = noop_make(1, 0);
    CHECK(ring_submit(r, &submit) == -EAGAIN);
    raw_close(r);
    daemon_stop(&d);
}

/* ... also if it ends at once: each message in turn, and then the end, often. */
static void used_and_ended(void)
{
    static const struct {
        uint16_t type, bytes;
    } kinds[] = {
        {FCC_MSG_BUFFER_ALLOC, sizeof(struct fcc_buffer_alloc_msg)}, {FCC_MSG_SUBMIT, sizeof(struct fcc_submit)},
        {FCC_MSG_TRIGGERS, sizeof(struct fcc_triggers_msg)},         {FCC_MSG_PUT_REGISTER, sizeof(struct fcc_put_msg)},
        {FCC_MSG_STREAM_WORDS, sizeof(struct fcc_stream_words_msg)}, {FCC_MSG_PREPARED, sizeof(struct fcc_prepared_msg)},
        {FCC_MSG_PREPARED_FREE, sizeof(struct fcc_prepared_msg)},    {FCC_MSG_BUFFER_PEER, sizeof(struct fcc_buffer_peer_msg)},
        {FCC_MSG_BUFFER_FREE, sizeof(struct fcc_buffer_free_msg)},   {FCC_MSG_TRACKER, sizeof(struct fcc_tracker_msg)},
        {FCC_MSG_TRACKER_FREE, sizeof(struct fcc_tracker_msg)},      {FCC_MSG_RULE, sizeof(struct fcc_rule_msg)}};
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    struct test_daemon d;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    for (uint32_t i = 0; i < 20 * KINDS; i++) {
        struct {
            struct fcc_msg msg;
            uint32_t comm;
            unsigned char more[232];
        } m = {.msg = {.length = kinds[i % KINDS].bytes, .type = kinds[i % KINDS].type, .id = 40}, .comm = 1 + i};
        struct fcc_submit submit = noop_make(1 + i, FCC_NO_SLOT);
        struct fcc_comm_msg end = {
            .msg = {.length = sizeof(end), .type = i % 2 ? FCC_MSG_COMM_ABORT : FCC_MSG_COMM_DESTROY, .id = 3}, .comm = 1 + i};
        bool is_submit = m.msg.type == FCC_MSG_SUBMIT, is_ended = false, is_init = false;
        forming_begin(r, 30000);
        raw_send(r, is_submit ? (const void *)&submit : &m, is_submit ? sizeof(submit) : m.msg.length, NULL, 0);
        raw_send(r, &end, sizeof(end), NULL, 0);
        for (int told = 0; told < 3; told++) {
            const struct fcc_reply *reply = raw_receive(r);
            uint16_t of = reply->msg.type & ~FCC_REPLY;
            is_ended |= of == end.msg.type;
            is_init |= of == FCC_MSG_COMM_INIT;
            CHECK(of == end.msg.type ? reply->status == 0
                  : of == m.msg.type ? reply->status < 0
                                     : of == FCC_MSG_COMM_INIT && reply->status == -ECONNABORTED);
        }
        CHECK(is_ended && is_init);
    }
    CHECK(no_comms());
    raw_close(r);
    daemon_stop(&d);
}

/* ... but end it, which all hear; nothing of it stays, however often that is done. */
static void ended_while_it_forms(void)
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    struct raw *r = raw_session(&d);
    CHECK(no_comms());
    for (uint32_t i = 0; i < 200; i++) {
        struct fcc_comm_msg m = {
            .msg = {.length = sizeof(m), .type = i % 2 ? FCC_MSG_COMM_ABORT : FCC_MSG_COMM_DESTROY, .id = 3}, .comm = 1 + i};
        forming_begin(r, i % 20 == 19 ? 1 : 30000); /* or it ends by its time limit, perhaps before that */
        raw_send(r, &m, sizeof(m), NULL, 0);
        for (int told = 0; told < 2; told++) {
            const struct fcc_reply *reply = raw_receive(r);
            bool is_init = reply->msg.type == (FCC_MSG_COMM_INIT | FCC_REPLY);
            CHECK(is_init || reply->msg.type == (m.msg.type | FCC_REPLY));
            if (i % 20 != 19)
                CHECK(is_init == !told && reply->status == (is_init ? -ECONNABORTED : 0));
        }
    }
    CHECK(no_comms());
    CHECK(raw_comm(r) == 201);
    raw_close(r);
    daemon_stop(&d);
}

int main(void)
{
    static const struct test tests[] = {
        {"used_while_it_forms", used_while_it_forms, 0},
        {"used_and_ended", used_and_ended, 60},
        {"ended_while_it_forms", ended_while_it_forms, 60},
    };

    return tests_run("protocol_forming", TESTS(tests));
}
