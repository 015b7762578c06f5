/* SPDX-License-Identifier: MIT
 *
 * regroup.c - new communicators of a communicator's ranks: split, and shrink when some are gone. The workers agree on who is in which
 * (daemon/worker/comm/regroup/regroup.h); then the ranks join as with fcc_comm_init().
 */
#include <errno.h>

#include "client/comm.h"
#include "client/core/call.h"
#include "client/core/request.h"
#include "client/memory/buffer.h"

#define ROUNDS 16 /* ranks may die while the others agree, and those that are left agree anew: so often at most */

static struct fcc_comm_options options_of(const struct fcc_comm *comm)
{
    return (struct fcc_comm_options){
        .device = comm->device, .time_limit_ms = comm->time_limit_ms, .device_kind = (uint32_t)comm->kind};
}

static int regroup_ask(struct fcc_comm *comm, struct fcc_comm_split_msg *msg, struct fcc_comm_split_reply *reply,
                       const char *called)
{
    if (comm->context->version < FCC_PROTO_GROUPS)
        return last_error_set(
            -EOPNOTSUPP,
            "rank %d: %s: this node's fccd speaks version %u of the protocol, which has no new groups: upgrade fccd",
            comm->rank, called, comm->context->version);
    msg->comm = comm->handle;
    int status = context_call(comm->context, CALL_OF(COMM_SPLIT, msg, reply, .called = called,
                                                     .limit_ms = patience_ms(comm->time_limit_ms, LIMITS_OF_CALL)));
    if (!status && (reply->nranks < 0 || reply->nranks > comm->nranks || reply->rank < 0 ||
                    (reply->nranks && reply->rank >= reply->nranks)))
        status = last_error_set(-EPROTO, "%s: the worker made it rank %d of %d: there are %d", called, reply->rank,
                                reply->nranks, comm->nranks);
    return status;
}

/* This rank's arguments are wrong, as the last error says, which stays: all ranks get it, when they have come. Returns its status. */
static int regroup_refuse(struct fcc_comm *comm, enum fcc_regroup how, const char *called)
{
    struct fcc_comm_split_msg msg = {.how = how};
    struct fcc_comm_split_reply reply = {.nranks = 0};
    struct error why;

    (void)error_set(&why, -EINVAL, "%s", fcc_last_error());
    text_copy(msg.reason, sizeof(msg.reason), text_without_rank(comm->rank, why.text));
    (void)regroup_ask(comm, &msg, &reply, called);
    return last_error_set(why.status, "%s", why.text);
}

int fcc_comm_split(fcc_comm *comm, int32_t color, int32_t key, const struct fcc_comm_options *options, fcc_comm **out)
{
    static const char called[] = "fcc_comm_split";
    struct fcc_comm_split_msg msg = {.how = FCC_REGROUP_SPLIT, .color = color, .key = key};
    struct fcc_comm_split_reply reply = {.nranks = 0};
    struct fcc_comm_options same;
    int status = comm_check(comm);

    if (status)
        return status;
    if (!out) {
        (void)last_error_set(-EINVAL, "rank %d: out: NULL: not allowed", comm->rank);
        return regroup_refuse(comm, FCC_REGROUP_SPLIT_REFUSED, called);
    }
    if (color < 0 && color != FCC_UNDEFINED) {
        (void)last_error_set(-EINVAL, "rank %d: color: %d: allowed are 0 and more, and FCC_UNDEFINED (%d)", comm->rank, color,
                             FCC_UNDEFINED);
        return regroup_refuse(comm, FCC_REGROUP_SPLIT_REFUSED, called);
    }
    same = options_of(comm);
    status = regroup_ask(comm, &msg, &reply, called);
    if (!status && reply.nranks)
        return comm_join(comm->context, &reply.unique_id, reply.nranks, reply.rank, options ? options : &same, out, called);
    if (!status)
        *out = NULL;
    return status;
}

static int excluded_read(const struct fcc_comm *comm, const int32_t *excluded, int n, struct fcc_comm_split_msg *msg)
{
    if (n < 0 || n >= comm->nranks || (n && !excluded))
        return last_error_set(-EINVAL, "rank %d: nexcluded: %d%s: allowed are 0 to %d", comm->rank, n,
                              n && !excluded ? ", and excluded is NULL" : "", comm->nranks - 1);
    for (int i = 0; i < n; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->nranks || excluded[i] == comm->rank)
            return last_error_set(-EINVAL, "rank %d: excluded[%d]: %d: allowed are other ranks, 0 to %d", comm->rank, i,
                                  excluded[i], comm->nranks - 1);
        msg->excluded[excluded[i] / 64] |= 1ull << excluded[i] % 64;
    }
    return 0;
}

/* Whether joining has failed because somebody else has died, or is late. A rank that dies before it joins is one that did not come in time; if it
 * only hangs, nobody decides in the next round, which ends at the time limit. */
static bool is_others(int status)
{
    return status == -ECONNABORTED || status == -ECONNRESET || status == -EHOSTUNREACH || status == -ECONNREFUSED ||
           status == -ESTALE || status == -ETIMEDOUT;
}

int fcc_comm_shrink(fcc_comm *comm, const int32_t *excluded, int nexcluded, fcc_comm **out)
{
    static const char called[] = "fcc_comm_shrink";
    struct fcc_comm_split_msg msg = {.how = FCC_REGROUP_SHRINK};
    struct fcc_comm_split_reply reply;
    struct fcc_comm *made = NULL;
    int status = comm_check(comm);

    if (status)
        return status;
    if (!out) {
        (void)last_error_set(-EINVAL, "rank %d: out: NULL: not allowed", comm->rank);
        return regroup_refuse(comm, FCC_REGROUP_SHRINK_REFUSED, called);
    }
    if (excluded_read(comm, excluded, nexcluded, &msg))
        return regroup_refuse(comm, FCC_REGROUP_SHRINK_REFUSED, called);
    const struct fcc_comm_options same = options_of(comm);
    for (int round = 0; round < ROUNDS && !made; round++) {
        reply = (struct fcc_comm_split_reply){.nranks = 0};
        status = regroup_ask(comm, &msg, &reply, called);
        if (!status)
            status = comm_join(comm->context, &reply.unique_id, reply.nranks, reply.rank, &same, &made, called);
        if (status && (!is_others(status) || !reply.nranks))
            return status; /* no decision, or nothing that another round would mend */
    }
    if (status)
        return status;
    struct fcc_comm_adopt_msg adopt = {.comm = comm->handle, .to = made->handle, .allocations = reply.allocations};
    struct fcc_reply done;
    status = context_call(comm->context, CALL_OF(COMM_ADOPT, &adopt, &done, .called = called));
    if (status) {
        fcc_comm_destroy(made);
        return status;
    }
    buffers_move(comm, made);
    *out = made;
    return 0;
}
