/* SPDX-License-Identifier: MIT
 *
 * denial.h - a message that a rank cannot join, from a node that has no connection to the node where the ranks meet: its
 * cluster key or its version differs, or connecting failed.
 *
 * The other ranks wait for that rank, and their nodes do not know why it is missing. So the rank's worker makes a denial. Its
 * broker sends it to the other broker in place of a hello (auth.h), and the other broker hands it to the job's worker. The
 * other broker cannot verify the denial, and does not know its sender. The worker can: everybody who has the communicator's id
 * belongs to the job, and the denial's tag proves that its sender has the id. The id itself is not sent. A worker accepts each
 * denial once, so replaying one is useless.
 *
 * If the ranks meet by a launcher's environment, the id is derived from the cluster's key (daemon/worker/session/meeting.c). A
 * node with another key then has another id, and cannot prove anything. The other ranks wait until their time limit, whose
 * error says which NODES cannot be reached (control.h: TROUBLE).
 */
#ifndef FCC_DAEMON_COMMON_DENIAL_H
#define FCC_DAEMON_COMMON_DENIAL_H

#include <stdbool.h>

#include "daemon/common/auth.h"
#include "proto/proto.h"

#define DENIAL_VERSION 1u /* of this message alone: all else may have different versions on the two nodes */
#define DENIAL_NONCE_BYTES 16

struct denial { /* little-endian */
    struct auth_header header;
    uint32_t uid; /* the job's user */
    int32_t rank;
    int32_t status; /* a negative errno value */
    uint32_t zero;
    char job[FCC_JOB_MAX];
    unsigned char nonce[DENIAL_NONCE_BYTES]; /* identifies this denial, which may be sent several times */
    char text[FCC_TEXT_MAX];                 /* the rank, its node, and the reason */
    unsigned char tag[AUTH_TAG_BYTES];       /* HMAC-SHA-256 of all fields before it, with the communicator's id as the key */
};
static_assert(sizeof(struct denial) == 80 + FCC_JOB_MAX + FCC_TEXT_MAX, "wire");

/* The header of every denial. */
struct auth_header denial_header(void);
/* Sets header, nonce and tag. Returns 0 or -EIO. */
int denial_seal(struct denial *d, const struct fcc_unique_id *id);
/* Returns true if the denial's maker has the id and its strings are NUL-terminated. */
bool denial_open(const struct denial *d, const struct fcc_unique_id *id);

#endif
