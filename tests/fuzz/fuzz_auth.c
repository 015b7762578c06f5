/* SPDX-License-Identifier: MIT
 *
 * fuzz_auth.c - the handshake between daemons, and the sealed frames behind it, with somebody in between who changes, repeats, swaps,
 * reflects and invents what is said.
 *
 * An input says how each piece is passed on. Whatever that is: a side that is done has got, byte for byte, what the other one said in this
 * exchange; the other holds the same key, and is whom the initiator called. A frame that is opened is the next one that was sealed.
 */
#include <errno.h>

#include "daemon/common/auth.h"
#include "tests/fuzz/fuzz.h"

#define A "node-a:7000"
#define B "[fd00::2]:7001"

enum { SAID_MAX = 2048, FRAMES = 12 };

/* All that a side has said, and all that it has been given. */
struct side {
    struct auth auth;
    unsigned char said[SAID_MAX], given[SAID_MAX];
    size_t nsaid, ngiven;
    int status;
};

/* Is all that `to` was given what the other one has said, in its place? Somebody in between may have known a piece before it was said: hellos
 * begin alike. */
static bool was_honest(const struct side *to, const struct side *from)
{
    return to->ngiven <= from->nsaid && !memcmp(to->given, from->said, to->ngiven);
}

static struct cluster_key key = {.length = 40, .bytes = "the same forty bytes on all of the nodes"};
static struct cluster_key other_key = {.length = 40, .bytes = "other bytes, of forty, on the other node"};

static void listen_to(struct side *s)
{
    FUZZ_CHECK(s->nsaid + sizeof(s->auth.says) <= SAID_MAX);
    s->nsaid += auth_says(&s->auth, s->said + s->nsaid);
}

/* What `to` is given of the n bytes that it wants. False: nothing now. */
static bool piece_make(struct input *in, const struct side *to, const struct side *from, unsigned char *out, size_t n)
{
    bool there = from->nsaid >= to->ngiven + n;
    uint8_t how = input_u8(in);

    if (how < 160 && !there)
        return false;
    memset(out, 0, n);
    if (there)
        memcpy(out, from->said + to->ngiven, n);
    if (how < 160)
        return true;
    switch (how % 6) {
    case 0: /* a bit is changed */
        out[input_below(in, (uint32_t)n)] ^= (unsigned char)(1u << input_below(in, 8));
        break;
    case 1: /* some bytes are others */
        for (size_t at = input_below(in, (uint32_t)n), i = input_below(in, 16); at < n && i; at++, i--)
            out[at] = input_u8(in);
        break;
    case 2: /* it comes from before */
        for (size_t i = 0, at = from->nsaid ? input_below(in, (uint32_t)from->nsaid) : 0; i < n && at < from->nsaid; i++, at++)
            out[i] = from->said[at];
        break;
    case 3: /* it gets what it said itself */
        for (size_t i = 0, at = to->nsaid ? input_below(in, (uint32_t)to->nsaid) : 0; i < n && at < to->nsaid; i++, at++)
            out[i] = to->said[at];
        break;
    case 4: /* all is invented */
        for (size_t i = 0; i < n; i++)
            out[i] = input_u8(in);
        break;
    default: /* as it was said */
        return there;
    }
    return true;
}

static void give(struct input *in, struct side *to, const struct side *from)
{
    unsigned char piece[sizeof(struct auth_hello) + AUTH_TAG_BYTES];
    struct error e = {0};
    size_t n = auth_wants(&to->auth);

    FUZZ_CHECK(n <= sizeof(piece));
    if (!n || !piece_make(in, to, from, piece, n))
        return;
    FUZZ_CHECK(to->ngiven + n <= SAID_MAX);
    memcpy(to->given + to->ngiven, piece, n);
    to->ngiven += n;
    int status = auth_take(&to->auth, piece, &e);
    FUZZ_CHECK(to->status == 0);
    to->status = status;
    if (!status)
        return;
    FUZZ_CHECK(status == -EPROTO || status == -EPROTONOSUPPORT || status == -EACCES || status == -EADDRNOTAVAIL);
    FUZZ_CHECK(e.status == status && e.text[0] && !auth_done(&to->auth) && !auth_wants(&to->auth));
}

/* One frame of `from`, passed on by somebody. */
static void frame_try(struct input *in, struct auth *from, struct auth *to)
{
    static unsigned char before[AUTH_FRAME_MAX], before_tag[AUTH_TAG_BYTES];
    static size_t nbefore;
    unsigned char frame[AUTH_FRAME_MAX + 8], other[AUTH_FRAME_MAX + 8], tag[AUTH_TAG_BYTES], other_tag[AUTH_TAG_BYTES];
    size_t n = input_below(in, AUTH_FRAME_MAX + 8), nother;

    for (size_t i = 0; i < n; i++)
        frame[i] = (unsigned char)(i * 7 + n);
    int status = auth_seal(from, frame, n, tag);
    FUZZ_CHECK((status == 0) == (n <= AUTH_FRAME_MAX));
    if (status)
        return;
    memcpy(other, frame, n);
    memcpy(other_tag, tag, sizeof(tag));
    nother = n;
    switch (input_below(in, 8)) {
    case 0:
        if (n)
            other[input_below(in, (uint32_t)n)] ^= 1u << input_below(in, 8);
        break;
    case 1:
        other_tag[input_below(in, sizeof(tag))] ^= 1u << input_below(in, 8);
        break;
    case 2:
        nother = input_below(in, AUTH_FRAME_MAX);
        break;
    case 3:
        memcpy(other, before, nbefore);
        memcpy(other_tag, before_tag, sizeof(tag));
        nother = nbefore;
        break;
    default:
        break;
    }
    bool same = nother == n && !memcmp(other, frame, n) && !memcmp(other_tag, tag, sizeof(tag));
    status = auth_open(to, other, nother, other_tag);
    FUZZ_CHECK(same ? status == 0 : status == -EACCES);
    if (!same)
        FUZZ_CHECK(auth_open(to, frame, n, tag) == 0); /* the next one is still that which was sealed */
    memcpy(before, frame, n);
    memcpy(before_tag, tag, sizeof(tag));
    nbefore = n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct side i, r;
    struct input in = {.at = data, .left = size};
    struct error e = {0};
    bool same_key = !input_rarely(&in, 4), right_name = !input_rarely(&in, 8);

    memset(&i, 0, sizeof(i));
    memset(&r, 0, sizeof(r));
    FUZZ_CHECK(!auth_begin(&i.auth, AUTH_INITIATOR, &key, A, right_name ? B : "node-c:7000", &e));
    FUZZ_CHECK(!auth_begin(&r.auth, AUTH_RESPONDER, same_key ? &key : &other_key, B, NULL, &e));
    for (int turn = 0; turn < 10; turn++) {
        listen_to(&i);
        if (!r.status)
            give(&in, &r, &i);
        listen_to(&r);
        if (!i.status)
            give(&in, &i, &r);
    }
    if (auth_done(&i.auth))
        FUZZ_CHECK(was_honest(&i, &r) && same_key && right_name && !strcmp(auth_other(&i.auth), B));
    if (auth_done(&r.auth))
        FUZZ_CHECK(was_honest(&r, &i) && same_key && !strcmp(auth_other(&r.auth), A) && auth_done(&i.auth));
    if (auth_done(&i.auth) && auth_done(&r.auth)) {
        FUZZ_CHECK(!memcmp(i.auth.session, r.auth.session, sizeof(i.auth.session)));
        for (int f = 0; f < FRAMES && in.left; f++)
            frame_try(&in, f % 2 ? &i.auth : &r.auth, f % 2 ? &r.auth : &i.auth);
    }
    auth_end(&i.auth);
    auth_end(&r.auth);
    return 0;
}
