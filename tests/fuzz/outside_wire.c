/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/outside_wire.h"

#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/hello.h"
#include "tests/fuzz/outside.h"

enum { INS = 8, ROOM = 2 * PEER_MSG_MAX };

/* A connection that the worker has made. */
struct in {
    int sock; /* -1: none */
    bool is_data, has_greeted;
    bool is_ours; /* by which the worker receives: it greets where it expects data, and says nothing more */
    size_t filled;
    uint64_t drop; /* bytes of a put's payload that are still to come */
    _Alignas(16) unsigned char bytes[ROOM];
};

static struct in ins[INS];
static int out[2]; /* [is_data]; -1: none */
static uint32_t serial;
static bool connects;

static void out_open(bool is_data)
{
    if (out[is_data] < 0)
        out[is_data] = bed_outside_connect(0, PEER_PURPOSE(is_data ? PEER_DATA : PEER_MESSAGES, 0, serial));
}

static void out_close(bool is_data)
{
    if (out[is_data] >= 0)
        (void)close(out[is_data]);
    out[is_data] = -1;
}

static void in_close(struct in *in)
{
    if (in->sock >= 0)
        (void)close(in->sock);
    in->sock = -1;
}

/* Words of it are others. */
static void spoil(void *bytes, size_t length, struct input *in)
{
    uint32_t how = in ? input_u8(in) : 0;

    for (uint32_t i = 0; how >= 0xd8 && i < 1 + how % 3; i++) {
        size_t at = input_below(in, (uint32_t)(length / 2)) * 2, n = how & 8 ? 8 : how & 16 ? 4 : 2;
        int64_t value = input_number(in);
        memcpy((unsigned char *)bytes + at, &value, n < length - at ? n : length - at);
    }
}

void wire_say(struct peer_msg *m, uint64_t comm, enum peer_type type, size_t length, struct input *in)
{
    m->length = (uint32_t)length;
    m->type = (uint16_t)type;
    m->comm = comm;
    spoil(m, length, in);
    out_open(false);
    (void)send(out[0], m, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void wire_frame(const struct net_frame *f, size_t payload, struct input *in)
{
    unsigned char bytes[sizeof(*f) + 4096];
    struct net_frame wire = *f;

    wire.magic = NET_FRAME_MAGIC;
    wire.version = NET_FRAME_VERSION;
    payload = payload < 4096 ? payload : 4096;
    spoil(&wire, sizeof(wire), in);
    memcpy(bytes, &wire, sizeof(wire));
    memset(bytes + sizeof(wire), 0x3c, payload);
    out_open(true);
    (void)send(out[1], bytes, sizeof(wire) + payload, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void wire_step(struct input *in)
{
    uint32_t how = input_u8(in);
    unsigned char bytes[64];
    size_t n = 0;

    switch (how & 7) {
    case 0:
    case 1:
        out_close(how & 1);
        break;
    case 2: /* as what begins anew */
        out_close(false);
        out_close(true);
        serial += 1 + (how >> 6);
        break;
    case 3: /* a second one, a rail that there is not, no purpose */
        in_close(&ins[how >> 5]);
        ins[how >> 5] =
            (struct in){.sock = bed_outside_connect(0, PEER_PURPOSE(how >> 3 & 3, input_below(in, 16), serial + (how >> 7))),
                        .is_ours = true};
        break;
    case 4:
        in_close(&ins[how >> 5]);
        break;
    case 5: /* it sends where the worker sends */
        if (ins[how >> 5].sock >= 0)
            (void)send(ins[how >> 5].sock, &how, 1 + (how >> 3 & 3), MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    default:
        while (n < sizeof(bytes) && in->left)
            bytes[n++] = input_u8(in);
        out_open(how & 1);
        (void)send(out[how & 1], bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    }
}

/* ---- what comes ---- */

static void arrivals_take(void)
{
    uint32_t purpose;
    int sock;

    while ((sock = bed_outside_take(&purpose)) >= 0) {
        struct in *free_one = &ins[0];
        for (int i = 0; i < INS; i++)
            if (ins[i].sock < 0)
                free_one = &ins[i];
        in_close(free_one);
        free_one->sock = sock;
        free_one->is_data = PEER_PURPOSE_OF(purpose) == PEER_DATA;
        free_one->has_greeted = free_one->is_ours = false;
        free_one->filled = 0;
        free_one->drop = 0;
        if (connects) {
            out_open(false);
            out_open(true);
        }
    }
}

/* One message or frame from the front, if it is whole: its bytes; otherwise 0. */
static size_t message_take(const struct in *in, size_t at)
{
    static _Alignas(16) unsigned char copy[PEER_MSG_MAX];
    struct peer_msg head;

    if (in->filled < at + sizeof(head))
        return 0;
    memcpy(&head, in->bytes + at, sizeof(head));
    FUZZ_CHECK(head.length >= sizeof(head) && head.length <= PEER_MSG_MAX && head.type < PEER_TYPES && !head.zero);
    if (in->filled < at + head.length)
        return 0;
    memcpy(copy, in->bytes + at, head.length);
    outside_hear((struct peer_msg *)copy);
    return head.length;
}

static size_t frame_take(struct in *in)
{
    struct net_frame f;

    if (in->drop) {
        size_t n = in->drop < in->filled ? (size_t)in->drop : in->filled;
        in->drop -= n;
        return n;
    }
    if (in->filled < sizeof(f))
        return 0;
    memcpy(&f, in->bytes, sizeof(f));
    FUZZ_CHECK(f.magic == NET_FRAME_MAGIC && f.version == NET_FRAME_VERSION);
    if (f.kind == NET_FRAME_MESSAGE) {
        size_t n = message_take(in, sizeof(f));
        FUZZ_CHECK(!n || n == f.row_bytes);
        return n ? sizeof(f) + n : 0;
    }
    in->drop = f.kind == NET_FRAME_PUT ? f.rows * f.row_bytes : 0;
    outside_hear_frame(&f);
    return sizeof(f);
}

static void in_read(struct in *in)
{
    struct error e = {0};
    ssize_t n;

    while (in->sock >= 0 && (n = recv(in->sock, in->bytes + in->filled, ROOM - in->filled, MSG_DONTWAIT)) >= 0) {
        if (n == 0) {
            in_close(in);
            return;
        }
        if (in->is_ours)
            continue;
        if (in->is_data && !in->has_greeted)
            (void)net_hello_send(in->sock, NET_TCP, NULL, &e);
        in->has_greeted = true;
        in->filled += (size_t)n;
        for (size_t taken; (taken = in->is_data ? frame_take(in) : message_take(in, 0)) > 0;) {
            in->filled -= taken;
            memmove(in->bytes, in->bytes + taken, in->filled);
        }
    }
}

void wire_read(void)
{
    unsigned char nothing[1024];

    arrivals_take();
    for (int i = 0; i < INS; i++)
        in_read(&ins[i]);
    for (int i = 0; i < 2; i++) /* the receiver's greeting, and the end */
        if (out[i] >= 0 && recv(out[i], nothing, sizeof(nothing), MSG_DONTWAIT) == 0)
            out_close(i);
}

void wire_open(bool by_itself)
{
    connects = by_itself;
    serial = 1;
    out[0] = out[1] = -1;
    for (int i = 0; i < INS; i++)
        ins[i].sock = -1;
}

void wire_close(void)
{
    uint32_t purpose;
    int sock;

    bed.outside.address[0] = '\0';
    while ((sock = bed_outside_take(&purpose)) >= 0)
        (void)close(sock);
    out_close(false);
    out_close(true);
    for (int i = 0; i < INS; i++)
        in_close(&ins[i]);
}
