/* SPDX-License-Identifier: MIT
 *
 * refusal.c - operators that this process refuses.
 *
 * The worker matches the ranks' operators by their order alone. So a refused operator keeps its place: it is submitted with the
 * reason instead of its arguments (fcc_submit.refused), and all ranks get the error in its turn. If even that cannot be
 * submitted, the communicator is over for this rank, because its next operator would be matched with the missing one.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "client/core/call.h"
#include "client/core/request.h"
#include "kernels/plan/spec.h"

const char *operator_name(uint16_t op)
{
    const struct op_spec *spec = op_spec(op & ~OP_PREPARED);

    return !spec ? "fcc_buffer_alloc" : op & OP_PREPARED ? spec->prepare_name : spec->name;
}

/* The operator, or symmetric allocation, of this name, as comm_refuse() takes it; -1: there is none. */
static int operator_by_name(const char *name)
{
    for (unsigned op = 0; op <= FCC_OP_COUNT; op++) {
        const struct op_spec *spec = op_spec(op);
        if (!strcmp(name, operator_name((uint16_t)op)))
            return (int)op;
        if (spec && spec->bind == BIND_PREPARED && !strcmp(name, spec->prepare_name))
            return (int)(op | OP_PREPARED);
    }
    return -1;
}

const char *text_without_rank(int rank, const char *text)
{
    char head[24];
    int n = snprintf(head, sizeof(head), "rank %d: ", rank);

    return strncmp(text, head, (size_t)n) != 0 ? text : text + n;
}

/* The text without the rank and the operator: the worker puts both in front. */
static const char *text_bare(const struct fcc_comm *comm, unsigned op, const char *text)
{
    char head[64];
    int n = snprintf(head, sizeof(head), "%s: ", operator_name((uint16_t)op));

    text = text_without_rank(comm->rank, text);
    text = strncmp(text, head, (size_t)n) != 0 ? text : text + n;
    return op & OP_PREPARED && !strncmp(text, "prepare: ", 9) ? text + 9 : text;
}

/* The SUBMIT message of a refused operator, with the reason. */
struct refusal {
    struct fcc_submit submit;
    char text[FCC_REFUSED_WORDS * sizeof(int64_t)];
};

/* Returns the message's length. */
static size_t refusal_make(const struct fcc_comm *comm, unsigned op, int status, const char *text, struct refusal *out)
{
    memset(out, 0, sizeof(*out));
    out->submit.op = (uint16_t)(op & ~OP_PREPARED);
    out->submit.prepare = op & OP_PREPARED ? FCC_PREPARE_ONLY : 0;
    out->submit.refused = (uint32_t)-status;
    text_copy(out->text, sizeof(out->text), text_bare(comm, op, text));
    out->submit.nattrs = (uint32_t)(strlen(out->text) / sizeof(int64_t) + 1);
    return sizeof(out->submit) + out->submit.nattrs * sizeof(int64_t);
}

int comm_refuse(struct fcc_comm *comm, unsigned op, int status, const char *text, bool wait)
{
    struct refusal msg;
    size_t length = refusal_make(comm, op, status, text, &msg);
    fcc_request *request = NULL;
    char bare[FCC_TEXT_MAX];
    int told;

    text_copy(bare, sizeof(bare), msg.text);
    told = comm_submit(comm, &msg.submit, length, NULL, wait ? NULL : &request);
    if (told == -ENOMEM && !wait) /* no memory for the request: submit without one, and wait */
        told = comm_submit(comm, &msg.submit, length, NULL, NULL);
    fcc_request_free(request); /* the caller knows the result already */
    if (told)
        return told;
    return last_error_set(status, "rank %d: %s: %.400s", comm->rank, operator_name((uint16_t)op), bare);
}

int comm_refuse_last(struct fcc_comm *comm, unsigned op, int status)
{
    char text[FCC_TEXT_MAX];
    bool over;

    text_copy(text, sizeof(text), fcc_last_error());
    (void)pthread_mutex_lock(&comm->order);
    over = comm->lost.status != 0;
    (void)pthread_mutex_unlock(&comm->order);
    return over ? status : comm_refuse(comm, op, status, text, false);
}

int comm_lose(struct fcc_comm *comm, int status)
{
    char reason[FCC_ABORT_REASON_MAX + 1], text[FCC_TEXT_MAX];
    bool dead;

    text_copy(text, sizeof(text), fcc_last_error());
    (void)pthread_mutex_lock(&comm->context->lock);
    dead = comm->context->dead.status != 0;
    (void)pthread_mutex_unlock(&comm->context->lock);
    if (dead || comm->lost.status) /* every later call reports the loss */
        return status;
    (void)error_set(&comm->lost, status,
                    "rank %d: an operator could not be submitted, so the communicator is over for this rank: %.300s",
                    comm->rank, text);
    (void)snprintf(reason, sizeof(reason), "one of its operators could not be submitted: %.140s", text);
    (void)comm_tell(comm, FCC_MSG_COMM_ABORT, reason);
    return last_error_set(status, "%s", text);
}

int comm_lost(const struct fcc_comm *comm)
{
    return comm->lost.status ? last_error_set(comm->lost.status, "%s", comm->lost.text) : 0;
}

int fcc_refuse_start(fcc_comm *comm, const char *op, int status, const char *reason, fcc_request **out)
{
    struct refusal msg;
    int number, failed = comm_check(comm);

    if (failed)
        return failed;
    if (!op || !reason || !out)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", !op ? "op" : !reason ? "reason" : "out");
    number = operator_by_name(op);
    if (number < 0)
        return last_error_set(-EINVAL, "op: \"%.40s\": allowed are the operators' names and %s", op,
                              operator_name(FCC_OP_COUNT));
    if (status >= 0 || status < -FCC_REFUSED_MAX)
        return last_error_set(-EINVAL, "status: %d: allowed are -1 to -%d", status, FCC_REFUSED_MAX);
    return comm_submit(comm, &msg.submit, refusal_make(comm, (unsigned)number, status, reason, &msg), NULL, out);
}
