/* SPDX-License-Identifier: MIT
 *
 * user.c - counts what each user has at the broker, so that no user takes all of it.
 */
#include <stdlib.h>

#include "daemon/broker/broker.h"

struct user *user_find(const struct broker *b, uid_t uid)
{
    struct user *u;

    LIST_FOREACH(u, &b->users, link)
        if (u->uid == uid)
            return u;
    return NULL;
}

struct user *user_get(struct broker *b, uid_t uid)
{
    struct user *u = user_find(b, uid);

    if (u)
        return u;
    u = calloc(1, sizeof(*u));
    if (u) {
        u->uid = uid;
        LIST_INSERT_HEAD(&b->users, u, link);
    }
    return u;
}

void user_put(struct user *u)
{
    if (u->visitors || u->calls || u->held || u->tellings)
        return;
    LIST_REMOVE(u, link);
    free(u);
}
