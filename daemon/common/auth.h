/* SPDX-License-Identifier: MIT
 *
 * auth.h - two daemons prove to each other that they hold the cluster's key. A state machine without I/O: the caller reads
 * exactly auth_wants() bytes, passes them to auth_take(), and sends what auth_says() returns. auth.c has the security argument.
 */
#ifndef FCC_DAEMON_COMMON_AUTH_H
#define FCC_DAEMON_COMMON_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/common/cluster.h"
#include "proto/proto.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages between nodes are sent as they lie in memory");

#ifndef AUTH_VERSION                            /* a test builds another version */
#define AUTH_VERSION (600u + FCC_PROTO_VERSION) /* of the protocol between nodes, which carries clients' requests */
#endif
static_assert(FCC_PROTO_VERSION < 100, "AUTH_VERSION is unique for each FCC_PROTO_VERSION");
#define AUTH_NONCE_BYTES 32
#define AUTH_TAG_BYTES 32
#define AUTH_FRAME_MAX 1024 /* bytes of the longest frame that is sealed with a tag */

enum auth_role { AUTH_INITIATOR, AUTH_RESPONDER };
enum auth_state { AUTH_HEADER, AUTH_REST, AUTH_PROOF, AUTH_DONE, AUTH_FAILED };

struct auth_header { /* its layout never changes, so that versions can be compared */
    unsigned char magic[8];
    uint32_t version; /* little-endian */
    uint32_t zero;
};
struct auth_hello {
    struct auth_header header;
    unsigned char nonce[AUTH_NONCE_BYTES];
    char address[FCC_NODE_MAX]; /* the sender's node address, padded with zeros */
};
static_assert(sizeof(struct auth_hello) == 112, "wire");

struct auth {
    const struct cluster_key *key; /* owned by the caller; not used after the exchange */
    enum auth_role role;
    enum auth_state state;
    char called[FCC_NODE_MAX];                                      /* initiator: address of the intended peer */
    struct auth_hello hellos[2];                                    /* of each role, as sent */
    unsigned char says[sizeof(struct auth_hello) + AUTH_TAG_BYTES]; /* bytes to be sent */
    size_t nsays;
    unsigned char session[2][AUTH_TAG_BYTES]; /* keys that seal the frames of each role */
    uint64_t frames[2];                       /* frames that each role has sent */
};

/* `called`: for the initiator the address of the node that it has connected to; for the responder NULL. `own` is this node's
 * address. */
int auth_begin(struct auth *a, enum auth_role role, const struct cluster_key *key, const char *own, const char *called,
               struct error *e);
/* Number of bytes that are needed from the peer now; 0 when the exchange is done or has failed. */
size_t auth_wants(const struct auth *a);
/* Copies the bytes that are to be sent now to `out` (room for sizeof(a->says)), once, and returns their number. There may be
 * some after a failure, too. */
size_t auth_says(struct auth *a, void *out);
/* Takes exactly auth_wants() bytes. Returns 0, or a final error with the reason:
 *   -EPROTO           the peer is not an fccd, or sends malformed data
 *   -EPROTONOSUPPORT  the peer speaks another version
 *   -EACCES           the peer does not hold the key, or replays other messages
 *   -EADDRNOTAVAIL    the peer holds the key but is not the node that was called */
int auth_take(struct auth *a, const void *bytes, struct error *e);
static inline bool auth_done(const struct auth *a)
{
    return a->state == AUTH_DONE;
}
/* The peer's node address; proven once auth_done(). */
const char *auth_other(const struct auth *a);

/* Frames after the exchange: auth_seal() makes the tag of the next frame that this side sends; auth_open() checks the tag of
 * the next frame of the peer. Frames are numbered, so none can be changed, left out, repeated or reflected. Return 0, -EACCES
 * (wrong tag) or
 * -EIO. n is at most AUTH_FRAME_MAX. */
int auth_seal(struct auth *a, const void *frame, size_t n, unsigned char tag[AUTH_TAG_BYTES]);
int auth_open(struct auth *a, const void *frame, size_t n, const unsigned char tag[AUTH_TAG_BYTES]);

/* The rendezvous key of one job's workers: the same on all nodes with the same cluster key. Returns 0 or -EIO. */
int auth_meeting_key(const struct cluster_key *key, uint32_t uid, const char *job, unsigned char out[AUTH_TAG_BYTES]);

/* HMAC-SHA-256. Returns 0 or -EIO. */
int auth_tag(const void *key, size_t nkey, const void *data, size_t n, unsigned char out[AUTH_TAG_BYTES]);

/* Erases all secrets. */
void auth_end(struct auth *a);

#endif
