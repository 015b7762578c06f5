/* SPDX-License-Identifier: MIT
 *
 * denial.h - word of a rank that cannot join, from a node that cannot speak to the one where the ranks meet: it has another cluster key, another
 * version, or did not get there.
 *
 * The other ranks wait for that rank, and nobody on their side knows of it. So the rank's worker makes a denial, its broker tells it to the
 * other broker in place of a hello (auth.h), and that one hands it to the job's worker. Neither broker can judge it, nor does the other
 * broker know who says it. The worker can: whoever has the communicator's id is of its job, and the tag shows that the sender has it. The
 * id itself is not said. What is recorded and said again later is of no use: a worker takes each denial once.
 *
 * Where a launcher says who meets whom, the id is made with the cluster's key (daemon/worker/session/meeting.c). A node with another key has another id then,
 * and nothing that it could show: the other ranks wait for as long as their time limit, whose error says what NODES are not reached
 * (control.h: TROUBLE).
 */
#ifndef FCC_DAEMON_COMMON_DENIAL_H
#define FCC_DAEMON_COMMON_DENIAL_H

#include "daemon/common/auth.h"
#include "proto/proto.h"

#define DENIAL_VERSION 1u /* of this alone: the two ends may have different versions of all else */
#define DENIAL_NONCE_BYTES 16

struct denial { /* little-endian */
    struct auth_header header;
    uint32_t uid; /* whose job it is */
    int32_t rank;
    int32_t status; /* a negative errno value */
    uint32_t zero;
    char job[FCC_JOB_MAX];
    unsigned char nonce[DENIAL_NONCE_BYTES]; /* it is this denial's own, which is told more than once */
    char text[FCC_TEXT_MAX];                 /* the rank, its node, and why */
    unsigned char tag[AUTH_TAG_BYTES];       /* HMAC-SHA-256 of all before it, with the communicator's id as the key */
};
static_assert(sizeof(struct denial) == 80 + FCC_JOB_MAX + FCC_TEXT_MAX, "wire");

/* What it begins with. */
struct auth_header denial_header(void);
/* uid, rank and status are in the byte order of the host, and are turned. Header, nonce and tag are set. 0 or -EIO. */
int denial_seal(struct denial *d, const struct fcc_unique_id *id);
/* Was it made by somebody who has the id, and has its strings an end? Then its numbers are turned to the byte order of the host. */
bool denial_open(struct denial *d, const struct fcc_unique_id *id);

#endif
