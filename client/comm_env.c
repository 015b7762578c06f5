/* SPDX-License-Identifier: MIT
 *
 * comm_env.c - communicators of all processes that a launcher has started. The ranks agree on the id by a name, so nobody
 * exchanges it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

#include "client/comm.h"
#include "client/core/call.h"
#include "client/launchers/env.h"

/* Orders the communicators of all contexts of this process; all ranks must make them in the same order. Taken before any
 * context's lock, and held while ranks join. */
static pthread_mutex_t env_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t env_comms; /* number of communicators made by this process. env_lock */

void env_forked(void)
{
    (void)pthread_mutex_init(&env_lock, NULL);
}

/* env_lock held. Asks for the id that all ranks compute from the same name. The job is part of the key. */
static int meeting_call(struct fcc_context *c, const struct fcc_env *e, struct fcc_unique_id *out, const char *called)
{
    struct fcc_meeting msg = {.name = ""};
    struct fcc_unique_id_reply reply;

    (void)snprintf(msg.name, sizeof(msg.name), "%s %s size %d number %u", e->launcher, e->world, e->size, env_comms);
    text_copy(msg.root, sizeof(msg.root), e->meeting);
    int status = context_call(c, CALL_OF(MEETING, &msg, &reply, .called = called));
    if (!status)
        *out = reply.unique_id;
    return status;
}

/* env_lock held. The next communicator's id, and this process's rank and size. */
static int next_find(struct fcc_context *c, struct fcc_env *e, struct fcc_unique_id *id, const char *called)
{
    int status = env_find(c->job, e);

    if (status)
        return status;
    /* A single rank takes a random id: two such processes of one job must not join each other. */
    return e->size == 1 ? unique_id_ask(c, id, called) : meeting_call(c, e, id, called);
}

int fcc_comm_init_env(fcc_context *context, const struct fcc_comm_options *options, fcc_comm **out)
{
    static const char name[] = "fcc_comm_init_env";
    struct fcc_unique_id id;
    struct fcc_env e;

    int status = context_check(context);
    if (status)
        return status;
    (void)pthread_mutex_lock(&env_lock);
    status = next_find(context, &e, &id, name);
    if (!status)
        status = comm_join(context, &id, e.size, e.rank, options, out, name);
    if (!status)
        env_comms++;
    (void)pthread_mutex_unlock(&env_lock);
    return status;
}

int fcc_comm_init_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                         const char *reason)
{
    struct fcc_unique_id next;
    struct fcc_env e;

    int failed = context_check(context);
    if (failed)
        return failed;
    if (!reason)
        return last_error_set(-EINVAL, "reason: NULL: not allowed");
    if (status >= 0 || status < -FCC_REFUSED_MAX)
        return last_error_set(-EINVAL, "status: %d: allowed are -1 to -%d", status, FCC_REFUSED_MAX);
    if (id)
        return comm_join_refuse(context, id, nranks, rank, status, reason);
    (void)pthread_mutex_lock(&env_lock);
    failed = next_find(context, &e, &next, "fcc_comm_init_refuse");
    if (!failed)
        failed = comm_join_refuse(context, &next, e.size, e.rank, status, reason);
    (void)pthread_mutex_unlock(&env_lock);
    return failed;
}
