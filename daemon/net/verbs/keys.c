/* SPDX-License-Identifier: MIT
 *
 * keys.c - a sending end's cache of the receiver's memory keys. It may forget any key and ask again.
 */
#include <errno.h>
#include <string.h>

#include "daemon/net/verbs/verbs.h"

static struct verbs_key *key_at(struct verbs_keys *keys, uint64_t comm, uint32_t rank, uint32_t region)
{
    uint64_t hash = (comm ^ ((uint64_t)rank << 32 | region) * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);

    for (uint32_t i = (uint32_t)(hash >> 40);; i++) {
        struct verbs_key *k = &keys->keys[i & (VERBS_KEYS - 1)];
        if (k->state == KEY_NONE || (k->m.comm == comm && k->m.rank == rank && k->m.region == region))
            return k;
    }
}

static void key_ask(struct verbs_keys *keys, struct verbs_key *k, const struct net_place *place)
{
    if (k->state == KEY_NONE && ++keys->used > VERBS_KEYS / 4 * 3) { /* mostly keys of ended communicators: forget all */
        memset(keys, 0, sizeof(*keys));
        keys->used = 1;
        k = key_at(keys, place->comm, place->rank, place->region);
    }
    *k = (struct verbs_key){
        KEY_ASKED,
        {.kind = VERBS_ASK, .comm = place->comm, .rank = place->rank, .region = place->region, .version = place->version}};
}

int verbs_keys_find(struct verbs_keys *keys, const struct net_place *place, struct verbs_msg *out, bool *ask)
{
    struct verbs_key *k = key_at(keys, place->comm, place->rank, place->region);

    *ask = k->state == KEY_NONE || k->m.version != place->version;
    if (*ask)
        key_ask(keys, k, place);
    else if (k->state == KEY_KNOWN)
        *out = k->m;
    return !*ask && k->state == KEY_KNOWN ? 0 : -EAGAIN;
}

bool verbs_keys_want(struct verbs_keys *keys, const struct net_place *place)
{
    struct verbs_key *k = key_at(keys, place->comm, place->rank, place->region);

    if (k->state != KEY_NONE) /* even if of another version: frames that are queued before this one need that version */
        return false;
    key_ask(keys, k, place);
    return true;
}

void verbs_keys_answer(struct verbs_keys *keys, const struct verbs_msg *m)
{
    struct verbs_key *k = key_at(keys, m->comm, m->rank, m->region);

    if (k->state == KEY_ASKED && k->m.version == m->version)
        *k = (struct verbs_key){KEY_KNOWN, *m};
}

void verbs_keys_end(struct verbs_keys *keys, uint64_t comm)
{
    for (uint32_t i = 0; i < VERBS_KEYS; i++) {
        struct verbs_key *k = &keys->keys[i];
        if (k->state == KEY_NONE || k->m.comm != comm)
            continue;
        k->state = KEY_KNOWN; /* an answer that is in flight will be ignored */
        k->m.status = -ECANCELED;
    }
}
