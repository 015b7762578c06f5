/* SPDX-License-Identifier: MIT
 *
 * meeting.c - makes the unique id of a communicator whose ranks have agreed on a name.
 *
 * Each rank asks its own node's worker. The ids must be the same on all nodes, and secret to other users and jobs. So the id's secret is
 * expanded from the name and the root with a key that follows from the cluster's key, the user and the job (without a cluster's
 * key: a random one of this worker's, for ranks on this node): HKDF-Expand of RFC 5869 with SHA-256, whose info is the name and the
 * root, each padded with zeros to its whole length, so that no two pairs give the same bytes.
 */
#include "daemon/worker/session/meeting.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/address.h"

#define HASH_BYTES 32

/* One block of the expansion: HMAC(key, block before | name | root | number). */
struct block {
    unsigned char before[HASH_BYTES];
    char name[FCC_MEETING_NAME_MAX];
    char root[FCC_NODE_MAX];
    unsigned char number;
};
static_assert(sizeof(struct block) == HASH_BYTES + FCC_MEETING_NAME_MAX + FCC_NODE_MAX + 1, "no padding");

static bool expand(const unsigned char key[MEETING_KEY_BYTES], const char *name, const char *root, unsigned char *to,
                   size_t bytes)
{
    struct block b = {.number = 0};

    text_copy(b.name, sizeof(b.name), name);
    text_copy(b.root, sizeof(b.root), root);
    while (bytes) {
        size_t before = b.number ? 0 : HASH_BYTES, n = bytes < HASH_BYTES ? bytes : HASH_BYTES, length = 0;
        unsigned char hash[HASH_BYTES];
        b.number++; /* the first block has none before it */
        if (!EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, key, MEETING_KEY_BYTES, (const unsigned char *)&b + before,
                       sizeof(b) - before, hash, sizeof(hash), &length) ||
            length != HASH_BYTES)
            return false;
        memcpy(to, hash, n);
        memcpy(b.before, hash, HASH_BYTES);
        to += n;
        bytes -= n;
    }
    return true;
}

/* The root's address: the client's, with this node's port if it names none; nodes of a cluster usually have the same port. */
static int root_find(const char *node, const char *given, char root[FCC_NODE_MAX], struct error *e)
{
    const char *ours = strrchr(node, ':');
    uint32_t port;

    if (!*given) {
        text_copy(root, FCC_NODE_MAX, node);
        return 0;
    }
    int status = address_check("meeting", given, &port, e);
    if (status)
        return status;
    if (!ours)
        return error_set(e, -ENETUNREACH, "meeting: %s: this node's fccd speaks to no other node (NODE_LISTEN is not set)",
                         given);
    if (snprintf(root, FCC_NODE_MAX, "%s%s", given, port ? "" : ours) >= FCC_NODE_MAX)
        return error_set(e, -EINVAL, "meeting: %s%s: more than %d characters", given, ours, FCC_NODE_MAX - 1);
    return 0;
}

/* NUL-terminated printable ASCII. */
static bool text_is_good(const char *text, size_t room)
{
    size_t length = strnlen(text, room);

    for (size_t i = 0; i < length; i++)
        if (text[i] < ' ' || text[i] > '~')
            return false;
    return length < room;
}

int meeting_id(const unsigned char key[MEETING_KEY_BYTES], const char *node, const struct fcc_meeting *m,
               struct fcc_unique_id *out, struct error *e)
{
    struct fcc_unique_id_layout id = {.zero = {0}};

    if (!text_is_good(m->name, sizeof(m->name)) || !text_is_good(m->root, sizeof(m->root)) || !m->name[0])
        return error_set(e, -EINVAL, "meeting: its name has 1 to %d, its root at most %d printable characters",
                         FCC_MEETING_NAME_MAX - 1, FCC_NODE_MAX - 1);
    int status = root_find(node, m->root, id.root, e);
    if (status)
        return status;
    if (!expand(key, m->name, id.root, id.secret, sizeof(id.secret)))
        return error_set(e, -EIO, "meeting: libcrypto cannot make HMAC-SHA-256");
    memcpy(out, &id, sizeof(*out));
    return 0;
}
