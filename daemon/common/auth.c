/* SPDX-License-Identifier: MIT
 *
 * auth.c - mutual challenge and response with the cluster's key K.
 *
 *   initiator                                        responder
 *     HI = magic, version, nonce NI, address AI -------->
 *     <-------- HR = magic, version, nonce NR, address AR;  PR = HMAC(K, "responder" | HI | HR)
 *     PI = HMAC(K, "initiator" | HI | HR) -------------->
 *
 * HMAC is HMAC-SHA-256. Every part of its input has a fixed length, so an input can be parsed in one way only. Before its proof
 * each side sends only a random number and its name, and it does not use what the other sent before the other's proof is
 * verified. Proofs are compared in constant time.
 *
 * The sender of a valid proof holds K, and made the proof in this very exchange:
 * - Replay: PR covers NI, and PI covers NR. The verifying side has drawn its nonce from the kernel for this connection;
 * recorded
 *   proofs cover other nonces.
 * - Reflection: a proof begins with the label of its sender's role, and no side accepts the label of its own role. So a side's
 * proof
 *   is not valid when it is sent back to that side, nor on another connection on which that side has the same role. An attacker
 *   who sends a daemon's own HI back to that daemon does get a valid PR. But this PR names the daemon itself as the node
 *   called, and no daemon calls itself, so no PI follows.
 * - Another node: both names are covered. The initiator goes on only if AR is the node that it called. So an attacker who
 * pretends to
 *   be that node cannot use a proof of another node, which he obtained by calling it in the initiator's name.
 * - Another version: the versions are covered too, so an attacker cannot downgrade two daemons to an old one.
 *
 * A responder proves itself to anybody who asks, over a nonce of the asker's choice. That yields one HMAC with the responder's
 * label and its fresh NR, which is valid nowhere else. To guess K from it is to guess at least 256 bits if K is random;
 * fccd.conf(5) says how to make such a key.
 *
 * An attacker may still forward all messages unchanged, and then be a man in the middle. So the frames that the two daemons
 * exchange afterwards are sealed: each frame carries HMAC(S, number | frame). S is derived from K and both hellos, one for each
 * direction; number counts the frames. Nothing is encrypted.
 */
#include "daemon/common/auth.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/random.h>

#define LABEL_BYTES 32

static const unsigned char magic[8] = {'f', 'c', 'c', 'd', 'n', 'o', 'd', 'e'};
static const char proof_label[2][LABEL_BYTES] = {"fccd: initiator's proof", "fccd: responder's proof"};
static const char frames_label[2][LABEL_BYTES] = {"fccd: initiator's frames", "fccd: responder's frames"};

int auth_tag(const void *key, size_t nkey, const void *data, size_t n, unsigned char out[AUTH_TAG_BYTES])
{
    size_t length = 0;

    return EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, key, nkey, data, n, out, AUTH_TAG_BYTES, &length) &&
                   length == AUTH_TAG_BYTES
               ? 0
               : -EIO;
}

/* HMAC of a label and both hellos with the cluster's key. */
static int transcript_hmac(const struct auth *a, const char label[LABEL_BYTES], unsigned char out[AUTH_TAG_BYTES])
{
    unsigned char input[LABEL_BYTES + sizeof(a->hellos)];

    memcpy(input, label, LABEL_BYTES);
    memcpy(input + LABEL_BYTES, a->hellos, sizeof(a->hellos));
    return auth_tag(a->key->bytes, a->key->length, input, sizeof(input), out);
}

static void say(struct auth *a, const void *bytes, size_t n)
{
    memcpy(a->says + a->nsays, bytes, n);
    a->nsays += n;
}

int auth_begin(struct auth *a, enum auth_role role, const struct cluster_key *key, const char *own, const char *called,
               struct error *e)
{
    struct auth_hello *hello = &a->hellos[role];

    *a = (struct auth){.key = key, .role = role, .state = AUTH_HEADER};
    memcpy(hello->header.magic, magic, sizeof(magic));
    hello->header.version = AUTH_VERSION;
    text_copy(hello->address, sizeof(hello->address), own);
    if (called)
        text_copy(a->called, sizeof(a->called), called);
    if (getrandom(hello->nonce, sizeof(hello->nonce), 0) != sizeof(hello->nonce)) {
        a->state = AUTH_FAILED;
        return error_set(e, -EIO, "no random numbers: %m");
    }
    if (role == AUTH_INITIATOR)
        say(a, hello, sizeof(*hello));
    return 0;
}

size_t auth_wants(const struct auth *a)
{
    switch (a->state) {
    case AUTH_HEADER:
        return sizeof(struct auth_header);
    case AUTH_REST: /* a responder's proof comes with its hello */
        return sizeof(struct auth_hello) - sizeof(struct auth_header) + (a->role == AUTH_INITIATOR ? AUTH_TAG_BYTES : 0);
    case AUTH_PROOF:
        return AUTH_TAG_BYTES;
    case AUTH_DONE:
    case AUTH_FAILED:
        break;
    }
    return 0;
}

size_t auth_says(struct auth *a, void *out)
{
    size_t n = a->nsays;

    memcpy(out, a->says, n);
    a->nsays = 0;
    return n;
}

const char *auth_other(const struct auth *a)
{
    return a->hellos[!a->role].address;
}

static int header_take(struct auth *a, const void *bytes, struct error *e)
{
    struct auth_header *h = &a->hellos[!a->role].header;

    memcpy(h, bytes, sizeof(*h));
    if (memcmp(h->magic, magic, sizeof(magic)) != 0 || h->zero)
        return error_set(e, -EPROTO, "it does not speak fccd's protocol");
    if (h->version != AUTH_VERSION) {
        if (a->role == AUTH_RESPONDER) /* so that the initiator can report the version */
            say(a, &a->hellos[AUTH_RESPONDER].header, sizeof(struct auth_header));
        return error_set(e, -EPROTONOSUPPORT, "it speaks version %u between nodes, this fccd version %u", h->version,
                         AUTH_VERSION);
    }
    a->state = AUTH_REST;
    return 0;
}

static int proof_check(struct auth *a, const unsigned char proof[AUTH_TAG_BYTES], struct error *e)
{
    unsigned char expected[AUTH_TAG_BYTES];

    if (transcript_hmac(a, proof_label[!a->role], expected))
        return error_set(e, -EIO, "libcrypto fails");
    if (CRYPTO_memcmp(proof, expected, sizeof(expected)) != 0)
        return error_set(e, -EACCES, "its proof is wrong: it has another CLUSTER_KEY, or replays other nodes' messages");
    if (transcript_hmac(a, frames_label[AUTH_INITIATOR], a->session[AUTH_INITIATOR]) ||
        transcript_hmac(a, frames_label[AUTH_RESPONDER], a->session[AUTH_RESPONDER]))
        return error_set(e, -EIO, "libcrypto fails");
    return 0;
}

/* Makes this side's proof and queues it; the responder's hello goes before its proof. */
static int prove(struct auth *a, struct error *e)
{
    unsigned char proof[AUTH_TAG_BYTES];

    if (transcript_hmac(a, proof_label[a->role], proof))
        return error_set(e, -EIO, "libcrypto fails");
    if (a->role == AUTH_RESPONDER)
        say(a, &a->hellos[AUTH_RESPONDER], sizeof(a->hellos[AUTH_RESPONDER]));
    say(a, proof, sizeof(proof));
    a->state = a->role == AUTH_RESPONDER ? AUTH_PROOF : AUTH_DONE;
    return 0;
}

static int rest_take(struct auth *a, const unsigned char *bytes, struct error *e)
{
    struct auth_hello *other = &a->hellos[!a->role];
    size_t n = sizeof(*other) - sizeof(other->header), used;

    memcpy((unsigned char *)other + sizeof(other->header), bytes, n);
    used = strnlen(other->address, sizeof(other->address));
    if (used == sizeof(other->address) || address_split(other->address, NULL, NULL) ||
        memcmp(other->address + used, (const char[FCC_NODE_MAX]){""}, sizeof(other->address) - used) != 0)
        return error_set(e, -EPROTO, "it does not speak fccd's protocol: its address is malformed");
    if (a->role == AUTH_RESPONDER)
        return prove(a, e);
    int status = proof_check(a, bytes + n, e);
    if (status)
        return status;
    if (!strcmp(other->address, a->hellos[AUTH_INITIATOR].address))
        return error_set(e, -EADDRNOTAVAIL, "it is this node itself, which is called %s", other->address);
    if (strcmp(other->address, a->called) != 0)
        return error_set(e, -EADDRNOTAVAIL, "it calls itself %s (NODE_ADDRESS there): it must be called by that name",
                         other->address);
    return prove(a, e);
}

int auth_take(struct auth *a, const void *bytes, struct error *e)
{
    int status = -EINVAL;

    switch (a->state) {
    case AUTH_HEADER:
        status = header_take(a, bytes, e);
        break;
    case AUTH_REST:
        status = rest_take(a, bytes, e);
        break;
    case AUTH_PROOF:
        status = proof_check(a, bytes, e);
        if (!status)
            a->state = AUTH_DONE;
        break;
    case AUTH_DONE:
    case AUTH_FAILED:
        return error_set(e, status, "nothing was to be taken");
    }
    if (status)
        a->state = AUTH_FAILED;
    return status;
}

static int frame_hmac(const struct auth *a, enum auth_role sender, const void *frame, size_t n,
                      unsigned char tag[AUTH_TAG_BYTES])
{
    unsigned char input[sizeof(uint64_t) + AUTH_FRAME_MAX];

    if (n > AUTH_FRAME_MAX || a->state != AUTH_DONE)
        return -EINVAL;
    memcpy(input, &a->frames[sender], sizeof(uint64_t));
    memcpy(input + sizeof(uint64_t), frame, n);
    return auth_tag(a->session[sender], AUTH_TAG_BYTES, input, sizeof(uint64_t) + n, tag);
}

int auth_seal(struct auth *a, const void *frame, size_t n, unsigned char tag[AUTH_TAG_BYTES])
{
    int status = frame_hmac(a, a->role, frame, n, tag);

    a->frames[a->role] += !status;
    return status;
}

int auth_open(struct auth *a, const void *frame, size_t n, const unsigned char tag[AUTH_TAG_BYTES])
{
    unsigned char expected[AUTH_TAG_BYTES];
    int status = frame_hmac(a, !a->role, frame, n, expected);

    if (status)
        return status;
    if (CRYPTO_memcmp(tag, expected, sizeof(expected)) != 0)
        return -EACCES;
    a->frames[!a->role]++;
    return 0;
}

int auth_meeting_key(const struct cluster_key *key, uint32_t uid, const char *job, unsigned char out[AUTH_TAG_BYTES])
{
    struct {
        char label[7]; /* "meeting". No other input of an HMAC with this key has the length of this struct */
        unsigned char uid[4];
        char job[FCC_JOB_MAX]; /* padded with zeros */
    } input = {.label = {'m', 'e', 'e', 't', 'i', 'n', 'g'}};

    memcpy(input.uid, &uid, sizeof(uid));
    text_copy(input.job, sizeof(input.job), job);
    return auth_tag(key->bytes, key->length, &input, sizeof(input), out);
}

void auth_end(struct auth *a)
{
    explicit_bzero(a, sizeof(*a));
}
