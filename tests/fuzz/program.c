/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/program.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/session.h"
#include "tests/fuzz/client.h"
#include "tests/fuzz/misbehave.h"
#include "tests/fuzz/outside.h"
#include "tests/fuzz/scarce.h"
#include "tests/fuzz/submit.h"

static const struct program_kind *kind;

/* ---- what is chosen ---- */

static uint32_t comm_choose(struct input *in, const struct client *c)
{
    uint32_t which = input_below(in, 64);

    return which < 60 ? c->comms[which % COMMS] ? c->comms[which % COMMS] : c->comms[0] : which - 59;
}

static uint32_t buffer_choose(struct input *in, const struct client *c)
{
    uint32_t which = input_below(in, 64);

    return which < 60 ? c->buffers[which % BUFFERS].handle : which - 59;
}

static uint32_t prepared_choose(struct input *in, const struct client *c)
{
    uint32_t which = input_below(in, 32);

    return which < 24 ? c->prepared[which % PREPARED] : which - 24;
}

/* ---- what a client does; `c` is open, and its memory is mapped if it is no control session ---- */

static void ask_id(struct client *c, struct input *in)
{
    struct fcc_msg m = {0};

    if (kind->outside && input_below(in, 2))
        client_id_add(outside_id(ids_made));
    else
        client_send(c, &m, sizeof(m), FCC_MSG_UNIQUE_ID);
}

static void ask_meeting(struct client *c, struct input *in)
{
    struct fcc_meeting m = {.name = "x"};

    m.name[0] = (char)input_u8(in);
    if (input_rarely(in, 4))
        memset(m.name, 'a', sizeof(m.name));
    (void)snprintf(m.root, sizeof(m.root), "%s", kind->nodes > 1 ? input_below(in, 2) ? "node-0:7000" : "node-1" : "");
    client_send(c, &m.msg, sizeof(m), FCC_MSG_MEETING);
}

static void ask_comm(struct client *c, struct input *in)
{
    struct client_id *id = &ids[input_below(in, IDS)];
    uint32_t how = input_u8(in);
    struct fcc_comm_init_msg m = {.unique_id = id->id,
                                  .nranks = id->nranks,
                                  .rank = id->next,
                                  .device = -1,
                                  .time_limit_ms = 10u + how % 4 * 20,
                                  .device_kind = (uint32_t)kind->device};

    if (!id->there)
        return;
    if (how % 16 == 15) /* anybody's rank, which may be there */
        m.rank = (int32_t)input_below(in, (uint32_t)id->nranks);
    else
        id->next = (id->next + 1) % id->nranks;
    if (how / 16 == 15) {
        m.nranks = (int32_t)input_number(in);
        m.rank = (int32_t)input_number(in);
        m.device = (int32_t)input_number(in);
        m.device_kind = (uint32_t)input_number(in);
        m.time_limit_ms = 10 + input_u8(in);
    } else if (how / 16 == 14) {
        m.device = (int32_t)input_below(in, 3);
    }
    if (c->requests + 1 < REQUESTS)
        c->bytes_asked[c->requests + 1] = (uint64_t)m.nranks;
    client_send(c, &m.msg, sizeof(m), FCC_MSG_COMM_INIT);
}

static void ask_end(struct client *c, struct input *in)
{
    struct fcc_comm_msg m = {.comm = comm_choose(in, c)};
    uint32_t how = input_u8(in);

    /* What forms has no handle yet, but the next one in the session will be its own. */
    if (how & 1)
        m.comm = (how >> 2) & 15;
    memset(m.reason, how & 2 ? 0x1b : 0, sizeof(m.reason));
    for (int i = 0; i < COMMS; i++)
        if (c->comms[i] == m.comm && how & 0x80)
            c->comms[i] = 0;
    client_send(c, &m.msg, sizeof(m), how & 0x80 ? FCC_MSG_COMM_DESTROY : FCC_MSG_COMM_ABORT);
}

static void ask_alloc(struct client *c, struct input *in)
{
    static const uint64_t sizes[] = {4096, 65536, 1 << 18, 64, 1, 4097, 1 << 20, 0};
    uint32_t how = input_u8(in);
    struct fcc_buffer_alloc_msg m = {.comm = comm_choose(in, c),
                                     .kind = how & 3       ? FCC_BUFFER_SYMMETRIC
                                             : how == 0x80 ? FCC_BUFFER_RESULT
                                                           : FCC_BUFFER_LOCAL,
                                     .bytes = sizes[how >> 2 & 7]};

    if (how >= 0xf8)
        m.bytes = (uint64_t)input_number(in) % (UINT64_C(1) << 22);
    if (how == 0xff)
        m = (struct fcc_buffer_alloc_msg){.comm = m.comm, .kind = input_u8(in), .bytes = UINT64_MAX - input_u8(in)};
    if (c->requests + 1 < REQUESTS)
        c->bytes_asked[c->requests + 1] = m.bytes;
    client_send(c, &m.msg, sizeof(m), FCC_MSG_BUFFER_ALLOC);
}

static void ask_free(struct client *c, struct input *in)
{
    struct fcc_buffer_free_msg m = {.buffer = buffer_choose(in, c)};

    for (int i = 0; i < BUFFERS; i++)
        if (c->buffers[i].handle == m.buffer) {
            if (c->buffers[i].at)
                (void)munmap(c->buffers[i].at, c->buffers[i].bytes);
            c->buffers[i] = (struct client_buffer){0};
        }
    client_send(c, &m.msg, sizeof(m), FCC_MSG_BUFFER_FREE);
}

static void ask_peer_buffer(struct client *c, struct input *in)
{
    struct fcc_buffer_peer_msg m = {.buffer = buffer_choose(in, c)};

    m.rank = (int32_t)input_below(in, 6) - 1;
    client_send(c, &m.msg, sizeof(m), FCC_MSG_BUFFER_PEER);
}

static void ask_triggers(struct client *c, struct input *in)
{
    struct fcc_triggers_msg m = {.comm = comm_choose(in, c)};

    client_send(c, &m.msg, sizeof(m), FCC_MSG_TRIGGERS);
}

static void ask_put(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);
    struct fcc_put_msg m = {.comm = comm_choose(in, c),
                            .rank = (int32_t)(how & 3),
                            .rows = how >> 3 & 3,
                            .row_bytes = 64,
                            .stride = 256,
                            .signal_offset = 8};

    m.from = buffer_choose(in, c);
    m.to = buffer_choose(in, c);
    m.signals = how & 4 ? buffer_choose(in, c) : 0;
    if (how >= 0xe0) {
        m.rows = (uint32_t)input_number(in);
        m.row_bytes = (uint64_t)input_number(in);
        m.stride = (uint64_t)input_number(in);
        m.from_offset = (uint64_t)input_number(in);
        m.to_offset = (uint64_t)input_number(in);
        m.signal_offset = (uint64_t)input_number(in);
    }
    client_send(c, &m.msg, sizeof(m), FCC_MSG_PUT_REGISTER);
}

static void trigger(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);

    if (!c->triggers)
        return;
    uint64_t p = atomic_load(&c->triggers->head) + (how >= 0xf0 ? (uint64_t)input_number(in) : 0);
    atomic_store(&c->triggers->slot[p % FCC_TRIGGER_SLOTS].second, how);
    atomic_store(&c->triggers->slot[p % FCC_TRIGGER_SLOTS].first, how >= 0xe0 ? (uint64_t)input_number(in) : (how & 7) + 1);
    atomic_store(&c->triggers->head, p + 1);
}

static void ask_tracker(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);
    struct fcc_tracker_msg m = {.comm = comm_choose(in, c), .tells = how >> 4 & 1};

    client_send(c, &m.msg, sizeof(m), (how & 3) == 3 ? FCC_MSG_TRACKER_FREE : FCC_MSG_TRACKER);
}

static void ask_rule(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);
    struct fcc_rule_msg m = {.comm = comm_choose(in, c),
                             .rank = (int32_t)(how & 3),
                             .action = how >> 2 & 3,
                             .dtype = 1 + (how >> 4 & 3),
                             .rows = 1 + (how >> 6),
                             .count = 1 + (how & 7),
                             .row_bytes = 64,
                             .from_stride = 128,
                             .to_stride = 256,
                             .signal_offset = 8,
                             .name = "fuzzed"};

    m.from = buffer_choose(in, c);
    m.to = buffer_choose(in, c);
    m.signals = how & 4 ? buffer_choose(in, c) : 0;
    m.awaits[how & 1] = (struct fcc_await_msg){.buffer = how & 8 ? buffer_choose(in, c) : 0, .lag = how & 1, .offset = 16};
    if (how >= 0xe0) {
        m.rows = (uint32_t)input_number(in);
        m.row_bytes = (uint64_t)input_number(in);
        m.from_stride = (uint64_t)input_number(in);
        m.to_offset = (uint64_t)input_number(in);
        m.count = (uint64_t)input_number(in);
        m.awaits[0].offset = (uint64_t)input_number(in);
    }
    client_send(c, &m.msg, sizeof(m), FCC_MSG_RULE);
}

/* Counts: as a producer does, or anything. */
static void count(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);

    if (!c->tracker)
        return;
    struct fcc_rule_state *r = &c->tracker->rule[how & 7];
    if (how >= 0xf0)
        atomic_store(&r->count, (uint64_t)input_number(in));
    else
        (void)atomic_fetch_add(&r->count, how >> 3);
    atomic_store(&r->awaited, how & 1 ? atomic_load(&r->done) + 1 : 0);
    (void)eventfd_write(c->bell, 1);
}

static void ask_words(struct client *c, struct input *in)
{
    struct fcc_stream_words_msg m = {.comm = comm_choose(in, c)};

    m.gpu = input_below(in, 5);
    client_send(c, &m.msg, sizeof(m), FCC_MSG_STREAM_WORDS);
}

static void ask_prepared(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);
    struct fcc_prepared_msg m = {.comm = comm_choose(in, c), .what = how & 3, .rank = (int32_t)(how >> 2 & 3)};

    m.number = prepared_choose(in, c);
    if (how >= 0xf0)
        m.what = (uint32_t)input_number(in), m.rank = (int32_t)input_number(in);
    client_send(c, &m.msg, sizeof(m), how & 0x40 ? FCC_MSG_PREPARED_FREE : FCC_MSG_PREPARED);
}

static void ask_look(struct client *c, struct input *in)
{
    uint32_t how = input_u8(in);
    struct fcc_query m = {.what = how & 7, .comm = how >> 3 & 3, .next = how >> 5 & 1, .wait_ms = how >> 6, .text = "looked"};

    client_send(c, &m.msg, sizeof(m), FCC_MSG_QUERY);
}

static void submit_ring(struct client *c, struct submit *s)
{
    bool is_awaited = false;

    if (s->m.slot < FCC_SLOTS) {
        struct fcc_slot *slot = &c->memory->slot[s->m.slot];
        is_awaited =
            atomic_load(&slot->state) % FCC_SLOT_DONE == 0; /* two operators in one slot: the one's end is the other's, too */
        atomic_store(&slot->state, FCC_SLOT_PENDING);
    }
    bool is_there = client_ring(c, &s->m, s->length);
    if (s->m.slot < FCC_SLOTS)
        c->slots_awaited[s->m.slot] = is_there && is_awaited && !c->ring_spoilt;
}

static void submit(struct client *c, struct input *in)
{
    struct submit s;

    submit_make(&s, c, in, kind->device);
    if (s.over_ring)
        submit_ring(c, &s);
    else
        client_send(c, &s.m.msg, s.length, FCC_MSG_SUBMIT);
}

/* ---- other ways ---- */

static void leave(struct client *c, struct input *in)
{
    (void)in;
    client_close(c);
}

static void listen_to(struct client *c, struct input *in)
{
    (void)in;
    c->deaf = false;
    client_read(c);
}

/* Replies to it wait unread from now on, with what comes with them. */
static void be_deaf(struct client *c, struct input *in)
{
    (void)in;
    c->deaf = true;
}

/* ---- the program ---- */

struct operation {
    void (*run)(struct client *c, struct input *in);
    uint8_t weight;
};

static const struct operation operations[] = {
    {submit, 60},         {ask_comm, 40},       {ask_alloc, 30},   {ask_id, 12},      {listen_to, 30},  {ask_end, 10},
    {ask_free, 8},        {ask_peer_buffer, 6}, {ask_triggers, 5}, {ask_put, 8},      {ask_tracker, 4}, {ask_rule, 8},
    {count, 8},           {trigger, 8},         {ask_words, 5},    {ask_prepared, 8}, {ask_meeting, 2}, {scribble, 5},
    {scribble_buffer, 5}, {send_anything, 6},   {leave, 3},        {be_deaf, 4},
};

static void operate(struct client *c, struct input *in)
{
    uint32_t which = input_u8(in);

    if (!c->deaf)
        client_read(c);
    if (!client_is_open(c)) {
        client_close(c);
        return;
    }
    if (c->role == FCC_ROLE_CONTROL) {
        if (which < 220)
            ask_look(c, in);
        else if (which < 240)
            send_anything(c, in);
        else
            leave(c, in);
        return;
    }
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]) && c->memory; i++) {
        if (which < operations[i].weight) {
            operations[i].run(c, in);
            return;
        }
        which -= operations[i].weight;
    }
}

static void step(struct input *in)
{
    uint32_t which = input_u8(in);
    struct client *c = &clients[which % CLIENTS];

    switch (which / CLIENTS) {
    case 0: /* many bytes of an input are 0: this costs no time */
        bed_turn(1);
        break;
    case 1: { /* a worker stands still, or goes on */
        struct bed_node *n = &bed.nodes[input_below(in, (uint32_t)bed.n)];
        n->frozen = !n->frozen;
        break;
    }
    case 2: /* the workers have time for what there is */
        (void)usleep(100);
        bed_turn(1 + input_below(in, 8));
        break;
    case 3:
        bed.nodes[input_below(in, (uint32_t)bed.n)].refuses = input_below(in, 3);
        break;
    case 4:
        if (kind->device_step)
            kind->device_step(in);
        break;
    case 5:
        scarce_places(input_below(in, 16));
        break;
    case 6:
        scarce_in_flight(input_u8(in));
        break;
    case 7: /* time passes */
        (void)usleep(1000u * (1 + input_below(in, 8)));
        bed_turn(2);
        break;
    default:
        if (kind->outside && which >= 0xc0) {
            outside_step(in);
        } else if (c->sock < 0) {
            uint32_t how = input_u8(in);
            client_open(c, (int)(how % (uint32_t)bed.n), how >= 0xe0 ? FCC_ROLE_CONTROL : FCC_ROLE_CLIENT, (how & 0x40) != 0);
            bed_turn(how & 0x10 ? 0 : 3);
        } else {
            operate(c, in);
        }
        bed_turn(which & 0x80 ? 1 : 0);
        break;
    }
    if (kind->outside)
        outside_read();
}

static bool all_are_answered(char missing[BED_TEXT])
{
    if (kind->outside)
        outside_read();
    for (int i = 0; i < CLIENTS; i++) {
        client_read(&clients[i]);
        if (!client_is_answered(&clients[i], missing))
            return false;
    }
    return true;
}

void program_run(const struct program_kind *program, const uint8_t *data, size_t size)
{
    struct input in = {.at = data, .left = size};
    bool to_the_end = input_rarely(&in, 4);
    static int descriptors;

    kind = program;
    memset(ids, 0, sizeof(ids));
    ids_made = 0;
    for (int i = 0; i < CLIENTS; i++)
        clients[i].sock = -1;
    if (!descriptors)
        descriptors = descriptors_count();
    if (program->outside) {
        bed_outside_open(OUTSIDE_ADDRESS);
        outside_open(input_u8(&in) ^ 0xffu);
    }
    bed_open(program->nodes);
    while (in.left)
        step(&in);
    for (int i = 0; i < bed.n; i++)
        bed.nodes[i].frozen = false;
    scarce_lift();
    if (to_the_end)
        bed_wait(all_are_answered);
    for (int i = 0; i < CLIENTS; i++)
        client_close(&clients[i]);
    if (program->outside)
        outside_close();
    bed_close();
    int left = descriptors_count();
    if (left > descriptors + 8) /* what the process needs once, as a plug-in's */
        fuzz_failed(__FILE__, __LINE__, "%d file descriptors are left, of %d", left - descriptors, left);
    descriptors = left > descriptors ? left : descriptors;
}
