/* SPDX-License-Identifier: MIT
 *
 * auth.h - two daemons prove to each other that they hold the cluster's key. A state machine without I/O: the caller reads
 * exactly as many bytes as auth_wants(), gives them to auth_take(), and sends what auth_says(). auth.c says why it holds.
 */
#ifndef FCC_DAEMON_COMMON_AUTH_H
#define FCC_DAEMON_COMMON_AUTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/common/cluster.h"
#include "proto/proto.h"

#ifndef AUTH_VERSION                            /* a test builds another one */
#define AUTH_VERSION (500u + FCC_PROTO_VERSION) /* of all that nodes say to each other: clients' requests are among it */
#endif
static_assert(FCC_PROTO_VERSION < 100, "no two of them are one");
#define AUTH_NONCE_BYTES 32
#define AUTH_TAG_BYTES 32
#define AUTH_FRAME_MAX 1024 /* bytes of what a tag is made for */

enum auth_role { AUTH_INITIATOR, AUTH_RESPONDER };
enum auth_state { AUTH_HEADER, AUTH_REST, AUTH_PROOF, AUTH_DONE, AUTH_FAILED };

struct auth_header { /* the same in every version */
    unsigned char magic[8];
    uint32_t version; /* little-endian */
    uint32_t zero;
};
struct auth_hello {
    struct auth_header header;
    unsigned char nonce[AUTH_NONCE_BYTES];
    char address[FCC_NODE_MAX]; /* the sender's node address, zeros behind it */
};
static_assert(sizeof(struct auth_hello) == 112, "wire");

struct auth {
    const struct cluster_key *key; /* the caller's; only until it is done */
    enum auth_role role;
    enum auth_state state;
    char called[FCC_NODE_MAX];   /* initiator: whom it means to speak to */
    struct auth_hello hellos[2]; /* by role, as they were sent */
    unsigned char says[sizeof(struct auth_hello) + AUTH_TAG_BYTES];
    size_t nsays;
    unsigned char session[2][AUTH_TAG_BYTES]; /* keys of the frames that each role sends */
    uint64_t frames[2];
};

/* `called`: initiator: the address of the node that it has connected to. responder: NULL. `own` is this node's address. */
int auth_begin(struct auth *a, enum auth_role role, const struct cluster_key *key, const char *own, const char *called,
               struct error *e);
/* How many bytes of the other it needs now; 0 if it is done or has failed. */
size_t auth_wants(const struct auth *a);
/* What is to be sent now: out[room of sizeof(a->says)]; returns the number of bytes, which are handed out once. Also after a
 * failure there may be something to say. */
size_t auth_says(struct auth *a, void *out);
/* Takes exactly auth_wants() bytes. 0, or, with the reason, and for good:
 *   -EPROTO           the other is no fccd, or sends what none would
 *   -EPROTONOSUPPORT  it speaks another version
 *   -EACCES           it does not hold the key, or repeats what others said
 *   -EADDRNOTAVAIL    it holds the key, and is another node than the one that was called */
int auth_take(struct auth *a, const void *bytes, struct error *e);
static inline bool auth_done(const struct auth *a)
{
    return a->state == AUTH_DONE;
}
/* The other's node address: proven once it is done. */
const char *auth_other(const struct auth *a);

/* For what is said afterwards: a tag of the next frame that this side sends; and is this the tag of the next frame of the
 * other's? Each frame counts, so none can be changed, left out, repeated or sent back. 0; -EACCES or -EIO. n: at most
 * AUTH_FRAME_MAX. */
int auth_seal(struct auth *a, const void *frame, size_t n, unsigned char tag[AUTH_TAG_BYTES]);
int auth_open(struct auth *a, const void *frame, size_t n, const unsigned char tag[AUTH_TAG_BYTES]);

/* The key that the workers of one job meet with: the same on all nodes with the same cluster key. 0 or -EIO. */
int auth_meeting_key(const struct cluster_key *key, uint32_t uid, const char *job, unsigned char out[AUTH_TAG_BYTES]);

/* HMAC-SHA-256. 0 or -EIO. */
int auth_tag(const void *key, size_t nkey, const void *data, size_t n, unsigned char out[AUTH_TAG_BYTES]);

/* Forgets all secrets. */
void auth_end(struct auth *a);

#endif
