/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/request/overlap.h"

#include <errno.h>

#include "daemon/worker/comm/buffer.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

/* The first and the last byte of a tensor in its buffer; it has elements. */
static void range_of(const struct tensor *t, const struct buffer *b, unsigned long long *first, unsigned long long *last)
{
    *first = (unsigned long long)(t->data - (const unsigned char *)b->memory.data);
    *last = *first + (unsigned long long)tensor_reach(t) - 1;
}

/* to: a tensor of the other request that is stored into. of: of whom it is, "" or "rank 3's " */
static int overlap_say(const struct submission *sub, int input, const struct submission *other, int to, const char *of,
                       struct error *e)
{
    const struct op_spec *op = op_spec(sub->args.op);
    unsigned long long first, last, other_first, other_last;

    range_of(&sub->args.tensors[input], sub->buffers[input], &first, &last);
    range_of(&other->args.tensors[to], other->buffers[to], &other_first, &other_last);
    return error_set(e, -EINVAL, "%s: bytes %llu to %llu of buffer %u overlap %s%s, bytes %llu to %llu: allowed are %s",
                     op_tensor(op, input)->name, first, last, sub->buffers[input]->handle, of, op_tensor(op, to)->name,
                     other_first, other_last,
                     epilogue_results(&sub->args) >> input & 1 ? "results that lie apart from all else"
                                                               : "inputs that no result is stored into");
}

/* Tensors of an epilogue that the rank stores into lie apart from all others. */
static int results_apart(const struct submission *sub, struct error *e)
{
    const uint32_t results = epilogue_results(&sub->args);

    for (int to = 0; results >> to; to++)
        for (int i = 0; results >> to & 1 && i < sub->args.ntensors; i++)
            if (i != to && sub->buffers[i] && sub->buffers[i] == sub->buffers[to] && !epilogue_may_share(&sub->args, i, to) &&
                tensors_overlap(&sub->args.tensors[i], &sub->args.tensors[to]))
                return overlap_say(sub, i, sub, to, "", e);
    return 0;
}

/* Whether another rank of the operator is the same client's, which may give both ranks the same buffers. */
static bool shares_client(const struct submission *sub, const struct member *m)
{
    bool any = false;

    for (int r = 0; r < m->comm->nranks; r++)
        any |= r != m->rank && m->comm->members[r].session == sub->session;
    return any;
}

int overlap_check(struct submission *sub, const struct member *m, struct error *e)
{
    int result = op_spec(sub->args.op)->result;

    for (int i = 0; i < sub->args.ntensors && result >= 0; i++) {
        const struct buffer *b = sub->buffers[i];
        if (!b || i == result)
            continue;
        /* a collective's in place is checked when the parts of all ranks are known */
        const bool own = !op_is_vector(sub->args.op) || i >= op_spec(sub->args.op)->ntensors;
        if (b == sub->buffers[result] && own && !epilogue_may_share(&sub->args, i, result) &&
            tensors_overlap(&sub->args.tensors[i], &sub->args.tensors[result]))
            return overlap_say(sub, i, sub, result, "", e);
        if (!buffer_takes_results(b) || b->comm != m->comm->number || b->rank == m->rank)
            continue;
        if (m->comm->nodes) /* where not all workers can know what lies where */
            return error_set(
                e, -EINVAL,
                "%s: buffer %u: is rank %d's part of the memory for results: allowed over several nodes is this rank's own",
                op_tensor(op_spec(sub->args.op), i)->name, b->handle, b->rank);
        sub->reads_others = true;
    }
    if (op_spec(sub->args.op)->exchange == EXCHANGE_GATHER && !m->comm->nodes && shares_client(sub, m))
        sub->reads_others = true; /* ranks read each other's rows, whatever buffer they lie in */
    return results_apart(sub, e);
}

static int inputs_match(const struct submission *sub, int reader, const struct submission *other, int writer, struct error *e)
{
    const int result = op_spec(sub->args.op)->result;
    const uint32_t results = epilogue_results(&other->args) | 1u << result;
    struct error why = {0};
    char of[32];

    for (int i = 0; i < sub->args.ntensors; i++)
        for (int to = 0; i != result && sub->buffers[i] && results >> to; to++) {
            const bool own = reader == writer && (i == to || epilogue_may_share(&sub->args, i, to));
            if (own || !(results >> to & 1) || sub->buffers[i] != other->buffers[to] ||
                !tensors_overlap(&sub->args.tensors[i], &other->args.tensors[to]))
                continue;
            (void)snprintf(of, sizeof(of), "rank %d's ", writer);
            (void)overlap_say(sub, i, other, to, of, &why);
            return error_set(e, why.status, "rank %d: %s: %s", reader, submission_name(sub), why.text);
        }
    return 0;
}

int overlap_match(const struct comm *c, struct error *e)
{
    for (int reader = 0; reader < c->nranks; reader++)
        for (int writer = 0; c->members[reader].next->reads_others && writer < c->nranks; writer++)
            if (inputs_match(c->members[reader].next, reader, c->members[writer].next, writer, e))
                return e->status;
    return 0;
}

/* The submission of another member that belongs to the turn of m's next submission but `behind`. NULL: it has not come. */
static const struct submission *submission_beside(const struct member *other, unsigned behind)
{
    const struct submission *sub = other->next;

    for (; sub && behind; behind--)
        sub = TAILQ_NEXT(sub, link);
    return sub;
}

int overlap_nodes_check(const struct submission *sub, const struct member *m, struct error *e)
{
    const struct submission *before;
    unsigned behind = 0;

    if (!m->comm->nodes || op_spec(sub->args.op)->exchange != EXCHANGE_GATHER)
        return 0;
    for (before = m->next; before; before = TAILQ_NEXT(before, link))
        behind++;
    for (int r = 0; r < m->comm->nranks; r++) {
        const struct member *member = &m->comm->members[r];
        if (member == m || member->session != sub->session)
            continue;
        const struct submission *other = submission_beside(member, behind);
        if (!other || other->kind != SUBMISSION_OPERATOR || other->error.status || other->args.op != sub->args.op)
            continue; /* it has not come, or the ranks hear of another error */
        if (inputs_match(sub, m->rank, other, r, e) || inputs_match(other, r, sub, m->rank, e))
            return e->status;
    }
    return 0;
}
