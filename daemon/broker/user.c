/* SPDX-License-Identifier: MIT
 *
 * user.c - users. What each has at the broker is counted, so that no user takes all of it; and each has an account (account.h)
 * of what his workers have, which exists as long as there are workers. They enforce its limits themselves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/store.h"

/* Entries of an account: more than there are jobs, as a retired worker keeps its entry until its process has ended. */
#define PLACES(jobs) (2 * (jobs) + 16)

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
    if (u->visitors || u->calls || u->held || u->tellings || u->jobs)
        return;
    LIST_REMOVE(u, link);
    free(u);
}

static bool place_taken(const struct broker *b, uid_t uid, uint32_t place)
{
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->user && j->uid == uid && j->place == place)
            return true;
    return false;
}

/* The account is open: the job has this entry in it. */
static void place_give(struct job *j, struct user *u, uint32_t place)
{
    j->user = u;
    j->place = place;
    u->jobs++;
}

/* A place of the account that no job has, and no worker of another broker; those of workers that are dead are cleared. nplaces: there is none. */
static uint32_t place_find(const struct broker *b, struct user *u)
{
    uint32_t found = u->account.nplaces;

    for (uint32_t i = u->account.nplaces; i-- > 0;) {
        if (place_taken(b, u->uid, i) || account_is_owned(&u->account, i))
            continue;
        account_clear(&u->account, i);
        found = i;
    }
    return found;
}

static int account_new(struct broker *b, struct user *u)
{
    int status = account_make(&u->account, PLACES(b->config.jobs_per_user), &u->account_fd);

    if (!status)
        (void)store_keep(b, store_name("account", u->uid).text, u->account_fd);
    return status;
}

int job_account_adopt(struct job *j, uint32_t place, struct error *e)
{
    struct user *u = user_get(j->broker, j->uid);
    int status = u ? 0 : -ENOMEM;

    if (u && !u->jobs) {
        u->account_fd = store_take(j->broker, store_name("account", j->uid).text);
        status = u->account_fd < 0 ? -ENOENT : account_open(&u->account, u->account_fd);
        if (status)
            fd_close(&u->account_fd);
    }
    if (!status && (place >= u->account.nplaces || place_taken(j->broker, j->uid, place)))
        status = -EPROTO;
    if (!status)
        place_give(j, u, place);
    else if (u)
        user_put(u);
    return status ? error_set(e, status, "uid %u: the memory account of its jobs is not there: %s", j->uid, strerror(-status))
                  : 0;
}

int job_account_open(struct job *j, struct error *e)
{
    struct user *u = user_get(j->broker, j->uid);
    uint32_t place = 0;
    int status = !u ? -ENOMEM : u->jobs ? 0 : account_new(j->broker, u);

    if (status)
        (void)error_set(e, status, "uid %u: no account for its jobs: %s", j->uid, strerror(-status));
    if (!status)
        place = place_find(j->broker, u);
    if (!status && place == u->account.nplaces)
        status =
            error_set(e, -EAGAIN,
                      "uid %u: no room for another worker beside %u that have not ended: if JOBS_PER_USER was raised, that "
                      "holds when all jobs of this user have ended",
                      j->uid, place);
    if (!status) {
        place_give(j, u, place);
        account_own(&u->account, place, getpid()); /* until its worker has a process */
    } else if (u) {
        user_put(u);
    }
    return status;
}

void job_account_owned(const struct job *j)
{
    account_own(&j->user->account, j->place, j->pid);
}

void job_account_close(struct job *j)
{
    struct user *u = j->user;

    if (!u)
        return;
    if (!j->broker->leaving)
        account_clear(&u->account, j->place); /* the worker's memory was freed with its process */
    j->user = NULL;
    if (!--u->jobs) {
        account_close(&u->account);
        (void)close(u->account_fd);
        if (!j->broker->leaving)
            store_drop(j->broker, store_name("account", u->uid).text);
    }
    user_put(u);
}

uint64_t job_used(const struct job *j, enum account_kind kind)
{
    return j->user ? account_used_by(&j->user->account, j->place, kind) : 0;
}
