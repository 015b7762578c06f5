/* SPDX-License-Identifier: MIT
 *
 * keys.c - a sending end's cache of the receiver's memory keys. It may forget any key and ask again.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/verbs/verbs.h"

#define KEYS 2048u /* a power of two */

enum key_state { KEY_NONE, KEY_ASKED, KEY_KNOWN };

struct key {
    enum key_state state;
    struct verbs_msg m; /* KEY_ASKED: the question; KEY_KNOWN: the answer */
};

struct verbs_keys {
    uint32_t used;
    struct key keys[KEYS]; /* a hash table with open addressing */
};

struct verbs_keys *verbs_keys_new(void)
{
    return calloc(1, sizeof(struct verbs_keys));
}

void verbs_keys_free(struct verbs_keys *keys)
{
    free(keys);
}

static struct key *key_at(struct verbs_keys *keys, uint64_t comm, uint32_t rank, uint32_t region)
{
    uint64_t hash = (comm ^ ((uint64_t)rank << 32 | region) * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);

    for (uint32_t i = (uint32_t)(hash >> 40);; i++) {
        struct key *k = &keys->keys[i & (KEYS - 1)];
        if (k->state == KEY_NONE || (k->m.comm == comm && k->m.rank == rank && k->m.region == region))
            return k;
    }
}

static void key_ask(struct verbs_keys *keys, struct key *k, const struct net_place *place)
{
    if (k->state == KEY_NONE && ++keys->used > KEYS / 4 * 3) { /* mostly keys of ended communicators: forget all */
        memset(keys, 0, sizeof(*keys));
        keys->used = 1;
        k = key_at(keys, place->comm, place->rank, place->region);
    }
    *k = (struct key){
        KEY_ASKED,
        {.kind = VERBS_ASK, .comm = place->comm, .rank = place->rank, .region = place->region, .version = place->version}};
}

int verbs_keys_find(struct verbs_keys *keys, const struct net_place *place, struct verbs_msg *out, bool *ask)
{
    struct key *k = key_at(keys, place->comm, place->rank, place->region);

    *ask = k->state == KEY_NONE || k->m.version != place->version;
    if (*ask)
        key_ask(keys, k, place);
    else if (k->state == KEY_KNOWN)
        *out = k->m;
    return !*ask && k->state == KEY_KNOWN ? 0 : -EAGAIN;
}

bool verbs_keys_want(struct verbs_keys *keys, const struct net_place *place)
{
    struct key *k = key_at(keys, place->comm, place->rank, place->region);

    if (k->state != KEY_NONE) /* even if of another version: frames that are queued before this one need that version */
        return false;
    key_ask(keys, k, place);
    return true;
}

void verbs_keys_answer(struct verbs_keys *keys, const struct verbs_msg *m)
{
    struct key *k = key_at(keys, m->comm, m->rank, m->region);

    if (k->state == KEY_ASKED && k->m.version == m->version)
        *k = (struct key){KEY_KNOWN, *m};
}

void verbs_keys_end(struct verbs_keys *keys, uint64_t comm)
{
    for (uint32_t i = 0; i < KEYS; i++) {
        struct key *k = &keys->keys[i];
        if (k->state == KEY_NONE || k->m.comm != comm)
            continue;
        k->state = KEY_KNOWN; /* an answer that is in flight will be ignored */
        k->m.status = -ECANCELED;
    }
}
