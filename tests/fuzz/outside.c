/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/outside.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/frame.h"
#include "daemon/net/hello.h"
#include "daemon/worker/nodes/inside.h"
#include "tests/fuzz/client.h"
#include "tests/fuzz/outside_wire.h"
#include "tests/fuzz/submit.h"

enum { HANDLES = 4, CLAIMS = 4, RANKS = 4, HERE = 1 /* what this node calls each communicator (peer_msg.from) */ };

/* What it knows of a communicator: one for each of ids[]. */
struct claim {
    struct fcc_unique_id id;
    uint64_t number;
    uint32_t there;  /* what the worker calls it, as it has said last; 0: it has not */
    int nranks;      /* RANKS at most; 0: nothing */
    uint32_t theirs; /* ranks that have joined at the worker, a bit each */
    uint32_t node;   /* this node's number in it */
    uint64_t turns;  /* that have ended at the worker */
    uint32_t handles[RANKS][HANDLES], nhandles[RANKS];
};

static struct claim claims[CLAIMS];
static uint32_t reflexes;

static bool is_reflex(uint32_t which)
{
    return reflexes & which;
}

/* ---- communicators ---- */

struct fcc_unique_id outside_id(uint32_t number)
{
    struct fcc_unique_id_layout l = {.root = OUTSIDE_ADDRESS};
    struct fcc_unique_id id;

    memset(l.secret, (int)(0x40 + number), sizeof(l.secret));
    memcpy(&id, &l, sizeof(id));
    return id;
}

/* Of the communicators' ids that there are in the program. */
static struct claim *claim_of_id(uint32_t which)
{
    const struct client_id *id = &ids[which % IDS];
    struct claim *c = &claims[which % CLAIMS];
    uint64_t number = id_number(&id->id);

    if (!id->there)
        return NULL;
    if (c->number != number)
        *c = (struct claim){.id = id->id, .number = number, .nranks = id->nranks, .node = 1};
    return c;
}

static struct claim *claim_of_number(uint64_t number)
{
    for (uint32_t i = 0; i < IDS; i++)
        if (ids[i].there && id_number(&ids[i].id) == number)
            return claim_of_id(i);
    return NULL;
}

static void claim_say(const struct claim *c, struct peer_msg *m, enum peer_type type, size_t length, struct input *in)
{
    m->from = HERE;
    m->to = c->there;
    wire_say(m, c->number, type, length, in);
}

static int32_t own_rank(const struct claim *c, uint32_t which)
{
    for (uint32_t r = which; r < which + RANKS; r++)
        if ((int)(r % RANKS) < c->nranks && !(c->theirs >> r % RANKS & 1u))
            return (int32_t)(r % RANKS);
    return 0;
}

static void formed_say(const struct claim *c, struct input *in)
{
    struct peer_formed f = {.nranks = (uint32_t)c->nranks, .nnodes = 2, .time_limit_ms = 50};

    text_copy(f.addresses[0], FCC_NODE_MAX, OUTSIDE_ADDRESS);
    text_copy(f.addresses[1], FCC_NODE_MAX, bed.nodes[0].address);
    f.workers[0] = bed.outside.self;
    f.workers[1] = bed.nodes[0].self;
    f.comms[0] = HERE;
    f.comms[1] = c->there;
    for (int r = 0; r < c->nranks; r++)
        f.node_of[r] = (uint16_t)(c->theirs >> r & 1u);
    claim_say(c, &f.msg, PEER_FORMED, sizeof(f), in);
}

/* ---- reflexes ---- */

static void join_heard(struct claim *c, const struct peer_join *m)
{
    struct peer_joined j = {.rank = m->rank};

    if (m->rank < 0 || m->rank >= RANKS)
        return;
    c->theirs |= 1u << m->rank;
    c->node = 0;
    if (is_reflex(REFLEX_JOIN)) {
        claim_say(c, &j.msg, PEER_JOINED, sizeof(j), NULL);
        if ((uint32_t)__builtin_popcount(c->theirs) * 2 >= (uint32_t)c->nranks) /* the others are here */
            formed_say(c, NULL);
    }
}

static void formed_heard(struct claim *c, const struct peer_formed *m)
{
    struct peer_msg ready = {0};

    c->theirs = 0;
    for (int r = 0; r < c->nranks; r++)
        c->theirs |= (uint32_t)incarnation_same(&m->workers[m->node_of[r]], &bed.nodes[0].self) << r;
    for (uint32_t i = 0; i < m->nnodes; i++)
        if (incarnation_same(&m->workers[i], &bed.outside.self))
            c->node = i;
    if (is_reflex(REFLEX_JOIN))
        claim_say(c, &ready, PEER_READY, sizeof(ready), NULL);
}

/* Once for each rank of the worker; with as many here, they come in step. */
static void submit_heard(const struct claim *c, struct peer_submit *m)
{
    m->request.rank = own_rank(c, (uint32_t)m->request.rank);
    if (is_reflex(REFLEX_SUBMIT))
        claim_say(c, &m->msg, PEER_SUBMIT, m->msg.length, NULL);
}

static void memory_heard(struct claim *c, struct peer_memory *m)
{
    if (m->rank < 0 || m->rank >= RANKS)
        return;
    c->handles[m->rank][c->nhandles[m->rank]++ % HANDLES] = m->handle;
    m->rank = own_rank(c, (uint32_t)m->rank);
    if (is_reflex(REFLEX_MEMORY))
        claim_say(c, &m->msg, PEER_MEMORY, sizeof(*m), NULL);
}

void outside_hear(struct peer_msg *m)
{
    struct claim *c = claim_of_number(m->comm);

    if (!c)
        return;
    c->there = m->from ? m->from : c->there;
    if (m->type == PEER_JOIN)
        join_heard(c, (const struct peer_join *)m);
    else if (m->type == PEER_FORMED)
        formed_heard(c, (const struct peer_formed *)m);
    else if (m->type == PEER_READY && is_reflex(REFLEX_JOIN))
        claim_say(c, m, PEER_GO, sizeof(*m), NULL);
    else if (m->type == PEER_SUBMIT)
        submit_heard(c, (struct peer_submit *)m);
    else if (m->type == PEER_MEMORY)
        memory_heard(c, (struct peer_memory *)m);
    else if (m->type == PEER_STAGED && is_reflex(REFLEX_MEMORY))
        claim_say(c, m, PEER_STAGED, m->length, NULL);
}

/* Which of a rank's flags stand for its own slices follows from the plan; it raises the first ones, all of them. */
static void flags_raise(const struct net_frame *f, uint32_t rank)
{
    struct net_frame own = *f;

    own.rank = rank;
    for (own.region = 0; own.region < 16; own.region++)
        wire_frame(&own, 0, NULL);
}

void outside_hear_frame(struct net_frame *f)
{
    struct claim *c = claim_of_number(f->comm - HERE);
    bool is_done = f->region >= FLAG_DONE && f->region < FLAG_LEFT;

    if (!c || f->kind != NET_FRAME_FLAG)
        return;
    c->turns = is_done ? f->offset : c->turns;
    f->comm = c->number + c->there;
    for (uint32_t r = 0; r < (uint32_t)c->nranks && is_reflex(REFLEX_FLAG) && f->region < FLAG_LEFT; r++) {
        if (!(c->theirs >> r & 1u))
            continue;
        if (!is_done) {
            flags_raise(f, r);
            continue;
        }
        f->rank = r;
        f->region = FLAG_DONE + done_number(c->node, 1, 0);
        wire_frame(f, 0, NULL);
        return; /* once for the node */
    }
}

/* ---- what the input wants ---- */

static void join_want(const struct claim *c, struct input *in)
{
    struct peer_join m = {.unique_id = c->id,
                          .nranks = c->nranks,
                          .rank = (int32_t)input_below(in, RANKS),
                          .time_limit_ms = 20u + input_below(in, 2) * 30,
                          .device_kind = FCC_DEVICE_CPU,
                          .pid = 77};

    claim_say(c, &m.msg, PEER_JOIN, sizeof(m), in);
}

static void submit_want(const struct claim *c, struct input *in)
{
    static _Alignas(16) unsigned char buf[PEER_MSG_MAX];
    struct peer_submit *m = (struct peer_submit *)buf;
    uint32_t how = input_u8(in);
    struct client like = {.comms = {1}, .nranks = {c->nranks}, .sock = -1};
    struct submit s;

    memset(m, 0, sizeof(*m));
    m->request.rank = own_rank(c, how & 3);
    m->request.kind = how & 4 ? SUBMISSION_ALLOC : SUBMISSION_OPERATOR;
    m->request.alloc_bytes = how & 8 ? 4096 : 65536;
    m->request.status = how >= 0xf0 ? -EINVAL : 0;
    if (m->request.status)
        text_copy(m->request.text, sizeof(m->request.text), "not so");
    for (uint32_t i = 0; i < FCC_MAX_TENSORS; i++)
        m->request.buffers[i].bytes = 65536, m->request.buffers[i].symmetric = how >> 4 & 1u;
    for (uint32_t i = 0; i < BUFFERS; i++)
        like.buffers[i].handle = i + 1;
    size_t length = sizeof(*m);
    if (m->request.kind == SUBMISSION_OPERATOR) {
        submit_make(&s, &like, in, FCC_DEVICE_CPU);
        s.m.msg.length = (uint32_t)s.length;
        memcpy(buf + length, &s.m, s.length);
        length += s.length;
    }
    claim_say(c, &m->msg, PEER_SUBMIT, length, in);
}

static void memory_want(const struct claim *c, struct input *in)
{
    uint32_t how = input_u8(in);
    struct peer_memory m = {.rank = own_rank(c, how & 3),
                            .status = how >= 0xf0 ? -ENOMEM : 0,
                            .handle = 2 + (how >> 2 & 3),
                            .bytes = how & 0x10 ? 4096 : 65536,
                            .turn = c->turns + (how >> 5 & 1)};

    claim_say(c, &m.msg, PEER_MEMORY, sizeof(m), in);
}

static void turn_want(const struct claim *c, struct input *in, enum peer_type type)
{
    uint32_t how = input_u8(in);
    struct peer_turn m = {.turn = c->turns + (how & 0x10 ? (uint64_t)input_number(in) : how & 3),
                          .status = type == PEER_STAGED || type == PEER_LEAVE ? 0 : -EIO,
                          .rank = own_rank(c, how >> 2 & 3)};

    text_copy(m.text, sizeof(m.text), how & 0x80 ? "it is so on node x" : how & 0x40 ? "it\033 is so" : "");
    claim_say(c, &m.msg, type, sizeof(m), in);
}

static void small_want(struct claim *c, struct input *in)
{
    union {
        struct peer_msg msg;
        struct peer_joined joined;
        struct peer_refuse refuse;
        struct peer_here here;
        struct peer_free freed;
    } m = {.msg = {0}};
    uint32_t how = input_u8(in);
    int32_t rank = own_rank(c, how >> 3 & 3);

    switch (how & 7) {
    case 0:
        m.joined.rank = how & 0x40 ? (int32_t)input_number(in) : (int32_t)(how >> 3 & 3);
        claim_say(c, &m.msg, PEER_JOINED, sizeof(m.joined), in);
        break;
    case 1:
        m.refuse.rank = how & 0x40 ? (int32_t)input_number(in) : (int32_t)(how >> 3 & 3);
        m.refuse.status = how & 0x80 ? -ESTALE : -EACCES;
        text_copy(m.refuse.text, sizeof(m.refuse.text), "may not");
        claim_say(c, &m.msg, PEER_REFUSE, sizeof(m.refuse), in);
        break;
    case 2:
        m.here.node = how & 0x40 ? (uint32_t)input_number(in) : how >> 3 & 3;
        claim_say(c, &m.msg, PEER_HERE, sizeof(m.here), in);
        break;
    case 3:
        claim_say(c, &m.msg, PEER_READY, sizeof(m.msg), in);
        break;
    case 4:
        claim_say(c, &m.msg, PEER_GO, sizeof(m.msg), in);
        break;
    case 5:
        m.freed.rank = rank;
        m.freed.handle = 2 + (how >> 5);
        claim_say(c, &m.msg, PEER_FREE, sizeof(m.freed), in);
        break;
    case 6: /* of ranks whose JOIN nobody has heard */
        c->theirs = how >> 3 & 15;
        formed_say(c, in);
        break;
    default:
        wire_say(&m.msg, (uint64_t)input_number(in), (enum peer_type)(how >> 3), sizeof(m), in);
        break;
    }
}

/* Into memory of the worker's ranks, which it knows from their MEMORY; and flags. */
static void frame_want(const struct claim *c, struct input *in)
{
    uint32_t how = input_u8(in), rank = input_below(in, RANKS), n = c->nhandles[rank] < HANDLES ? c->nhandles[rank] : HANDLES;
    struct net_frame f = {.comm = c->number + c->there, .rank = rank, .kind = NET_FRAME_BEAT};

    f.region = how & 0x80 || !n ? NET_STAGING : c->handles[rank][how >> 5 & 3];
    switch (how & 7) {
    case 0:
        break;
    case 1:
        f.kind = NET_FRAME_FLAG;
        f.region = input_below(in, 8);
        f.offset = 1 + (how >> 3 & 7);
        break;
    case 2:
        f.kind = NET_FRAME_FLAG;
        f.region = FLAG_DONE + done_number(c->node, 1 + (how >> 7), how >> 6 & 1);
        f.offset = c->turns + (how >> 3 & 7);
        break;
    case 3:
        f.kind = NET_FRAME_FLAG;
        f.region = FLAG_LEFT + (how >> 3 & 3);
        break;
    case 4:
        f.kind = NET_FRAME_SIGNAL;
        f.offset = 8 * input_below(in, 64);
        f.stride = how;
        break;
    case 5:
        f.kind = NET_FRAME_EARLY;
        f.region = c->node + (how >> 6);
        f.offset = c->turns + (how >> 3 & 3);
        f.stride = c->turns;
        f.row_bytes = 8u << input_below(in, 16);
        wire_frame(&f, f.row_bytes, in);
        return;
    default:
        f.kind = NET_FRAME_PUT;
        f.rows = 1 + (how >> 3 & 3);
        f.row_bytes = 8u << (how >> 5);
        f.stride = f.row_bytes + 8 * input_below(in, 3);
        f.offset = 8 * input_below(in, 512);
        break;
    }
    wire_frame(&f, (size_t)f.rows * f.row_bytes, in);
}

void outside_step(struct input *in)
{
    static const enum peer_type turns[] = {PEER_STAGED, PEER_FAIL, PEER_ABORT, PEER_LEAVE};
    uint32_t which = input_u8(in), what = which >> 3;
    struct claim *c;

    outside_read();
    if (what >= 29) {
        wire_step(in);
        return;
    }
    if (!(c = claim_of_id(which & 7)))
        return;
    if (what < 5)
        join_want(c, in);
    else if (what < 10)
        submit_want(c, in);
    else if (what < 13)
        memory_want(c, in);
    else if (what < 17)
        turn_want(c, in, turns[what - 13]);
    else if (what < 22)
        small_want(c, in);
    else
        frame_want(c, in);
}

/* ---- life ---- */

void outside_open(uint32_t which)
{
    reflexes = which;
    memset(claims, 0, sizeof(claims));
    wire_open(is_reflex(REFLEX_CONNECT));
}

void outside_read(void)
{
    wire_read();
}

void outside_close(void)
{
    wire_close();
}
