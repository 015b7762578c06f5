/* SPDX-License-Identifier: MIT
 *
 * test_auth.c - the proof between daemons, without a network: what fits, and all that must not.
 */
#include <endian.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include <cmocka.h>

#include "daemon/common/auth.h"

#define A "node-a:7000"
#define B "[fd00::2]:7001"
#define C "node-c:7000"

static struct cluster_key key = {.length = 40, .bytes = "the same forty bytes on all of the nodes"};
static struct cluster_key other_key = {.length = 40, .bytes = "other bytes, of forty, on the other node"};

/* What one side has said and the other has not taken yet; and all that it ever said. */
struct wire {
    unsigned char bytes[512];
    size_t n, taken;
};

static void wire_fill(struct wire *w, struct auth *from)
{
    assert_true(w->n + sizeof(from->says) <= sizeof(w->bytes));
    w->n += auth_says(from, w->bytes + w->n);
}

/* Give `to` what it wants, as far as it is there. Its first failure. */
static int wire_drain(struct wire *w, struct auth *to, struct error *e)
{
    size_t n;

    while ((n = auth_wants(to)) && w->n - w->taken >= n) {
        int status = auth_take(to, w->bytes + w->taken, e);
        w->taken += n;
        if (status)
            return status;
    }
    return 0;
}

struct pair {
    struct auth i, r;
    struct wire out, back; /* of the initiator, of the responder */
    struct error ie, re;
    int is, rs; /* the first failures */
};

static void pair_begin(struct pair *p, const struct cluster_key *ki, const struct cluster_key *kr, const char *called)
{
    memset(p, 0, sizeof(*p));
    assert_int_equal(auth_begin(&p->i, AUTH_INITIATOR, ki, A, called, &p->ie), 0);
    assert_int_equal(auth_begin(&p->r, AUTH_RESPONDER, kr, B, NULL, &p->re), 0);
}

/* Until nobody has anything to say. */
static void pair_run(struct pair *p)
{
    for (int turn = 0; turn < 4; turn++) {
        wire_fill(&p->out, &p->i);
        if (!p->rs)
            p->rs = wire_drain(&p->out, &p->r, &p->re);
        wire_fill(&p->back, &p->r);
        if (!p->is)
            p->is = wire_drain(&p->back, &p->i, &p->ie);
    }
}

static void right_key(void **state)
{
    unsigned char frame[100], tag[AUTH_TAG_BYTES];
    struct pair p;

    (void)state;
    pair_begin(&p, &key, &key, B);
    assert_false(auth_done(&p.i) || auth_done(&p.r));
    pair_run(&p);
    assert_true(auth_done(&p.i) && auth_done(&p.r));
    assert_string_equal(auth_other(&p.i), B);
    assert_string_equal(auth_other(&p.r), A);
    assert_int_equal(auth_wants(&p.i) + auth_wants(&p.r), 0);
    assert_int_equal(p.out.n, 112 + 32);
    assert_int_equal(p.back.n, 112 + 32);
    for (int i = 0; i < 5; i++) {
        memset(frame, i, sizeof(frame));
        assert_int_equal(auth_seal(&p.i, frame, sizeof(frame), tag), 0);
        assert_int_equal(auth_open(&p.r, frame, sizeof(frame), tag), 0);
        assert_int_equal(auth_seal(&p.r, frame, sizeof(frame), tag), 0);
        assert_int_equal(auth_open(&p.i, frame, sizeof(frame), tag), 0);
    }
    auth_end(&p.i);
    for (size_t i = 0; i < sizeof(p.i); i++)
        assert_int_equal(((const unsigned char *)&p.i)[i], 0);
}

static void wrong_key(void **state)
{
    struct pair p;

    (void)state;
    pair_begin(&p, &key, &other_key, B);
    pair_run(&p);
    assert_int_equal(p.is, -EACCES);
    assert_non_null(strstr(p.ie.text, "CLUSTER_KEY"));
    assert_int_equal(p.out.n, 112); /* the initiator has not proven anything to who did not */
    assert_false(auth_done(&p.r));
    assert_int_equal(p.r.state, AUTH_PROOF);

    /* one bit, and one byte less */
    struct cluster_key near = key;
    near.bytes[39] ^= 1;
    pair_begin(&p, &near, &key, B);
    pair_run(&p);
    assert_int_equal(p.is, -EACCES);
    near = key;
    near.length--;
    pair_begin(&p, &near, &key, B);
    pair_run(&p);
    assert_int_equal(p.is, -EACCES);
}

/* An initiator that proves itself without looking: the responder finds out too. */
static void wrong_key_of_initiator(void **state)
{
    unsigned char proof[AUTH_TAG_BYTES];
    struct pair p;

    (void)state;
    pair_begin(&p, &other_key, &key, B);
    wire_fill(&p.out, &p.i);
    assert_int_equal(wire_drain(&p.out, &p.r, &p.re), 0);
    assert_int_equal(auth_wants(&p.r), sizeof(proof));
    assert_int_equal(getrandom(proof, sizeof(proof), 0), sizeof(proof));
    assert_int_equal(auth_take(&p.r, proof, &p.re), -EACCES);
    assert_int_equal(auth_wants(&p.r), 0);
    assert_int_equal(auth_take(&p.r, proof, &p.re), -EINVAL); /* no second try */
    assert_false(auth_done(&p.r));
}

/* Both sides of a good exchange, played back to either side. */
static void replay(void **state)
{
    struct pair good, p;
    struct auth again;
    struct error e;

    (void)state;
    pair_begin(&good, &key, &key, B);
    pair_run(&good);
    assert_true(auth_done(&good.r));

    good.out.taken = good.back.taken = 0;
    assert_int_equal(auth_begin(&again, AUTH_RESPONDER, &key, B, NULL, &e), 0);
    assert_int_equal(wire_drain(&good.out, &again, &e), -EACCES);
    assert_false(auth_done(&again));

    assert_int_equal(auth_begin(&again, AUTH_INITIATOR, &key, A, B, &e), 0);
    assert_int_equal(wire_drain(&good.back, &again, &e), -EACCES);
    assert_false(auth_done(&again));

    /* the proof alone, into an exchange that otherwise is a new one */
    pair_begin(&p, &key, &key, B);
    wire_fill(&p.out, &p.i);
    assert_int_equal(wire_drain(&p.out, &p.r, &p.re), 0);
    assert_int_equal(auth_take(&p.r, good.out.bytes + 112, &p.re), -EACCES);
    assert_memory_not_equal(p.i.hellos[0].nonce, good.i.hellos[0].nonce, AUTH_NONCE_BYTES);
    assert_memory_not_equal(p.r.hellos[1].nonce, good.r.hellos[1].nonce, AUTH_NONCE_BYTES);
}

/* An attacker without the key, who has nothing but what A itself says. */
static void reflection(void **state)
{
    struct auth i, r;
    struct wire out = {0}, back = {0};
    struct error e;

    (void)state;
    /* the initiator's hello and 32 bytes of it as a proof, back to it */
    assert_int_equal(auth_begin(&i, AUTH_INITIATOR, &key, A, B, &e), 0);
    wire_fill(&out, &i);
    memcpy(out.bytes + out.n, out.bytes, AUTH_TAG_BYTES);
    out.n += AUTH_TAG_BYTES;
    assert_int_equal(wire_drain(&out, &i, &e), -EACCES);

    /* the initiator's hello to A as a responder, whose answer then does fit, and names A */
    memset(&out, 0, sizeof(out));
    assert_int_equal(auth_begin(&i, AUTH_INITIATOR, &key, A, B, &e), 0);
    assert_int_equal(auth_begin(&r, AUTH_RESPONDER, &key, A, NULL, &e), 0);
    wire_fill(&out, &i);
    assert_int_equal(wire_drain(&out, &r, &e), 0);
    wire_fill(&back, &r);
    assert_int_equal(wire_drain(&back, &i, &e), -EADDRNOTAVAIL);
    assert_non_null(strstr(e.text, "this node itself"));
    assert_int_equal(auth_says(&i, out.bytes), 0); /* no proof that the responder could be given */

    /* the responder's own proof, back to it */
    assert_int_equal(auth_wants(&r), AUTH_TAG_BYTES);
    assert_int_equal(auth_take(&r, back.bytes + 112, &e), -EACCES);
}

/* The call to B is led to C, a node of the same cluster. */
static void another_place(void **state)
{
    struct pair p;

    (void)state;
    pair_begin(&p, &key, &key, C); /* A calls C, and B answers */
    pair_run(&p);
    assert_int_equal(p.is, -EADDRNOTAVAIL);
    assert_non_null(strstr(p.ie.text, "it calls itself " B));
    assert_int_equal(p.out.n, 112);
    assert_false(auth_done(&p.r));

    /* B's answer with C's name written over it */
    pair_begin(&p, &key, &key, C);
    wire_fill(&p.out, &p.i);
    assert_int_equal(wire_drain(&p.out, &p.r, &p.re), 0);
    wire_fill(&p.back, &p.r);
    memset(p.back.bytes + offsetof(struct auth_hello, address), 0, FCC_NODE_MAX);
    memcpy(p.back.bytes + offsetof(struct auth_hello, address), C, sizeof(C));
    assert_int_equal(wire_drain(&p.back, &p.i, &p.ie), -EACCES);
}

/* Every single byte of the exchange, changed on its way; and all of it, cut off before that byte. */
static void every_byte_counts(void **state)
{
    static struct pair p;
    static struct wire *const wires[2] = {&p.out, &p.back};

    (void)state;
    for (int i = 0; i < 2 * 2 * (112 + 32); i++) {
        struct wire *w = wires[i & 1];
        struct auth *from = i & 1 ? &p.r : &p.i, *to = i & 1 ? &p.i : &p.r;
        bool cut = i & 2;
        size_t at = (size_t)i / 4;
        pair_begin(&p, &key, &key, B);
        for (int turn = 0; turn < 4; turn++) {
            size_t before = w->n;
            wire_fill(w, from);
            if (before <= at && at < w->n) {
                w->bytes[at] ^= 4;
                w->n = cut ? at : w->n;
            }
            int *status = i & 1 ? &p.is : &p.rs;
            *status = *status ? *status : wire_drain(w, to, i & 1 ? &p.ie : &p.re);
            wire_fill(wires[!(i & 1)], to);
            status = i & 1 ? &p.rs : &p.is;
            *status = *status ? *status : wire_drain(wires[!(i & 1)], from, i & 1 ? &p.re : &p.ie);
        }
        assert_false(auth_done(&p.r)); /* nobody's request is ever believed */
        assert_true(cut || p.is || p.rs);
    }
}

static void other_version(void **state)
{
    const uint32_t other = AUTH_VERSION + 1;
    struct auth_hello hello;
    struct pair p;
    char words[32];

    (void)state;
    (void)snprintf(words, sizeof(words), "version %u", other);
    pair_begin(&p, &key, &key, B);
    wire_fill(&p.out, &p.i);
    memcpy(&hello, p.out.bytes, sizeof(hello));
    hello.header.version = htole32(other);
    memcpy(p.out.bytes, &hello, sizeof(hello));
    assert_int_equal(wire_drain(&p.out, &p.r, &p.re), -EPROTONOSUPPORT);
    assert_non_null(strstr(p.re.text, words));
    wire_fill(&p.back, &p.r); /* it says which one it speaks, and nothing more */
    assert_int_equal(p.back.n, sizeof(struct auth_header));
    hello.header.version = htole32(other);
    memcpy(p.back.bytes, &hello.header, sizeof(hello.header));
    assert_int_equal(wire_drain(&p.back, &p.i, &p.ie), -EPROTONOSUPPORT);
}

static void garbage(void **state)
{
    static const char *const lines[] = {"GET / HTTP/1.1\r\nHost: node-b\r\n\r\n", "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"};
    unsigned char bytes[512];
    struct auth r;
    struct error e;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(auth_begin(&r, AUTH_RESPONDER, &key, B, NULL, &e), 0);
        assert_int_equal(auth_take(&r, lines[i], &e), -EPROTO);
        assert_int_equal(auth_says(&r, bytes), 0);
    }
    for (int i = 0; i < 2000; i++) {
        size_t n;
        assert_int_equal(getrandom(bytes, sizeof(bytes), 0), sizeof(bytes));
        assert_int_equal(auth_begin(&r, i & 1 ? AUTH_RESPONDER : AUTH_INITIATOR, &key, B, i & 1 ? NULL : A, &e), 0);
        if (i & 2) /* past the header */
            memcpy(bytes, &r.hellos[r.role].header, sizeof(struct auth_header));
        for (size_t at = 0; (n = auth_wants(&r)); at += n)
            (void)auth_take(&r, bytes + at, &e);
        assert_int_equal(r.state, AUTH_FAILED);
    }
}

/* An address that is none, or has something behind its end. */
static void address_is_none(void **state)
{
    static const char *const wrong[] = {"",           "node",     "node:", "node:0",    "no de:1",
                                        "node:65536", "node\n:1", ":7000", "[fd00::1:7"};
    struct auth_hello hello;
    struct auth r;
    struct error e;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]) + 2; i++) {
        assert_int_equal(auth_begin(&r, AUTH_RESPONDER, &key, B, NULL, &e), 0);
        hello = r.hellos[AUTH_RESPONDER];
        memset(hello.address, 0, sizeof(hello.address));
        if (i < sizeof(wrong) / sizeof(wrong[0])) {
            (void)snprintf(hello.address, sizeof(hello.address), "%s", wrong[i]);
        } else {
            (void)snprintf(hello.address, sizeof(hello.address), "node:1");
            if (i % 2)
                hello.address[sizeof(hello.address) - 1] = 'x';
            else
                memset(hello.address, '1', sizeof(hello.address));
        }
        assert_int_equal(auth_take(&r, &hello, &e), 0);
        assert_int_equal(auth_take(&r, (unsigned char *)&hello + sizeof(hello.header), &e), -EPROTO);
    }
}

/* Frames: changed, repeated, left out, sent back, of another connection. */
static void frames(void **state)
{
    unsigned char frame[24] = "a request", tag[AUTH_TAG_BYTES], second[AUTH_TAG_BYTES];
    struct pair p, q;

    (void)state;
    pair_begin(&p, &key, &key, B);
    assert_int_equal(auth_seal(&p.i, frame, sizeof(frame), tag), -EINVAL); /* not before it is done */
    pair_run(&p);
    assert_int_equal(auth_seal(&p.i, frame, sizeof(frame), tag), 0);
    frame[3] ^= 1;
    assert_int_equal(auth_open(&p.r, frame, sizeof(frame), tag), -EACCES);
    frame[3] ^= 1;
    assert_int_equal(auth_open(&p.r, frame, sizeof(frame) - 1, tag), -EACCES);
    assert_int_equal(auth_open(&p.i, frame, sizeof(frame), tag), -EACCES); /* back */
    assert_int_equal(auth_open(&p.r, frame, sizeof(frame), tag), 0);
    assert_int_equal(auth_open(&p.r, frame, sizeof(frame), tag), -EACCES); /* twice */
    assert_int_equal(auth_seal(&p.i, frame, sizeof(frame), tag), 0);
    assert_int_equal(auth_seal(&p.i, frame, sizeof(frame), second), 0);
    assert_memory_not_equal(tag, second, sizeof(tag));
    assert_int_equal(auth_open(&p.r, frame, sizeof(frame), second), -EACCES); /* one left out */
    pair_begin(&q, &key, &key, B);
    pair_run(&q);
    assert_int_equal(auth_seal(&q.i, frame, sizeof(frame), tag), 0);
    assert_int_equal(auth_seal(&p.r, frame, sizeof(frame), second), 0);
    assert_int_equal(auth_open(&q.i, frame, sizeof(frame), second), -EACCES); /* elsewhere */
}

static void meeting_keys(void **state)
{
    unsigned char a[AUTH_TAG_BYTES], b[AUTH_TAG_BYTES];

    (void)state;
    assert_int_equal(auth_meeting_key(&key, 1000, "job", a), 0);
    assert_int_equal(auth_meeting_key(&key, 1000, "job", b), 0);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_equal(auth_meeting_key(&key, 1001, "job", b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(auth_meeting_key(&key, 1000, "jo", b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_int_equal(auth_meeting_key(&other_key, 1000, "job", b), 0);
    assert_memory_not_equal(a, b, sizeof(a));
}

/* The same value, made by another program. */
static void against_openssl(void **state)
{
    /* printf 'meeting\xe8\x03\x00\x00job' and 61 zero bytes | openssl dgst -sha256 -mac HMAC -macopt key:'the same forty ...' */
    static const unsigned char expected[AUTH_TAG_BYTES] = {0x15, 0x32, 0x60, 0xd8, 0x0a, 0x1c, 0xbd, 0xc1, 0xc5, 0xec, 0x86,
                                                           0xa4, 0xf0, 0x40, 0x7b, 0x7c, 0x13, 0x18, 0x31, 0x80, 0x15, 0xc2,
                                                           0xa5, 0xd8, 0x84, 0x69, 0xb3, 0x10, 0xbc, 0x33, 0x3c, 0x83};
    unsigned char got[AUTH_TAG_BYTES];

    (void)state;
    assert_int_equal(auth_meeting_key(&key, 1000, "job", got), 0);
    assert_memory_equal(got, expected, sizeof(got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_key),       cmocka_unit_test(wrong_key),         cmocka_unit_test(wrong_key_of_initiator),
        cmocka_unit_test(replay),          cmocka_unit_test(reflection),        cmocka_unit_test(another_place),
        cmocka_unit_test(other_version),   cmocka_unit_test(every_byte_counts), cmocka_unit_test(garbage),
        cmocka_unit_test(frames),          cmocka_unit_test(address_is_none),   cmocka_unit_test(meeting_keys),
        cmocka_unit_test(against_openssl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
