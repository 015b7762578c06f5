/* SPDX-License-Identifier: MIT
 *
 * charge.c - each user's memory account (account.h), which exists as long as the user has workers. MEMORY_PER_USER_MB limits
 * what all of the user's workers together have; the workers enforce that themselves.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/broker/broker.h"

/* Entries of an account: more than there are jobs, as a retired worker keeps its entry until its process has ended. */
#define PLACES(jobs) (2 * (jobs) + 16)

struct user_account {
    LIST_ENTRY(user_account) link; /* broker.accounts */
    uid_t uid;
    int jobs; /* number of jobs with an entry */
    int fd;   /* the account's page, for workers */
    struct account page;
};

static struct user_account *account_find(const struct broker *b, uid_t uid)
{
    struct user_account *u;

    LIST_FOREACH(u, &b->accounts, link)
        if (u->uid == uid)
            return u;
    return NULL;
}

static struct user_account *account_get(struct broker *b, uid_t uid, struct error *e)
{
    struct user_account *u = account_find(b, uid);
    int status;

    if (u)
        return u;
    u = calloc(1, sizeof(*u));
    status = u ? account_make(&u->page, PLACES(b->config.jobs_per_user), &u->fd) : -ENOMEM;
    if (status) {
        (void)error_set(e, status, "uid %u: no memory account for its jobs: %s", uid, strerror(-status));
        free(u);
        return NULL;
    }
    u->uid = uid;
    LIST_INSERT_HEAD(&b->accounts, u, link);
    return u;
}

static bool place_taken(const struct broker *b, uid_t uid, uint32_t place)
{
    const struct job *j;

    LIST_FOREACH(j, &b->jobs, link)
        if (j->account && j->uid == uid && j->place == place)
            return true;
    return false;
}

int job_account_open(struct job *j, struct error *e)
{
    struct user_account *u = account_get(j->broker, j->uid, e);
    uint32_t place = 0;

    if (!u)
        return e->status;
    while (place < u->page.nplaces && place_taken(j->broker, j->uid, place))
        place++;
    if (place == u->page.nplaces)
        return error_set(e, -EAGAIN, "uid %u: %u of its workers have not ended yet: no room for another one", j->uid, place);
    j->account = u;
    j->place = place;
    u->jobs++;
    return 0;
}

void job_account_close(struct job *j)
{
    struct user_account *u = j->account;

    if (!u)
        return;
    account_clear(&u->page, j->place); /* the worker's memory was freed with its process */
    j->account = NULL;
    if (--u->jobs)
        return;
    LIST_REMOVE(u, link);
    account_close(&u->page);
    (void)close(u->fd);
    free(u);
}

int job_account_fd(const struct job *j)
{
    return j->account->fd;
}

uint64_t job_memory(const struct job *j)
{
    return j->account ? account_used_by(&j->account->page, j->place) : 0;
}
