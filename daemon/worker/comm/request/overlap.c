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

/* of: of whom the result is, "" or "rank 3's " */
static int overlap_say(const struct submission *sub, int input, const struct submission *other, const char *of, struct error *e)
{
    const struct op_spec *op = op_spec(sub->args.op);
    unsigned long long first, last, other_first, other_last;

    range_of(&sub->args.tensors[input], sub->buffers[input], &first, &last);
    range_of(&other->args.tensors[op->result], other->buffers[op->result], &other_first, &other_last);
    return error_set(e, -EINVAL,
                     "%s: bytes %llu to %llu of buffer %u overlap %s%s, bytes %llu to %llu: allowed are inputs that no result "
                     "is stored into",
                     op_tensor(op, input)->name, first, last, sub->buffers[input]->handle, of, op->tensors[op->result].name,
                     other_first, other_last);
}

int overlap_check(struct submission *sub, const struct member *m, struct error *e)
{
    int result = op_spec(sub->args.op)->result;

    for (int i = 0; i < sub->args.ntensors && result >= 0; i++) {
        const struct buffer *b = sub->buffers[i];
        if (!b || i == result)
            continue;
        /* a collective's in place is checked when the parts of all ranks are known */
        if (b == sub->buffers[result] && !op_is_vector(sub->args.op) && !epilogue_may_be_result(&sub->args, i) &&
            tensors_overlap(&sub->args.tensors[i], &sub->args.tensors[result]))
            return overlap_say(sub, i, sub, "", e);
        if (!buffer_takes_results(b) || b->comm != m->comm->number || b->rank == m->rank)
            continue;
        if (m->comm->nodes) /* where not all workers can know what lies where */
            return error_set(
                e, -EINVAL,
                "%s: buffer %u: is rank %d's part of the memory for results: allowed over several nodes is this rank's own",
                op_tensor(op_spec(sub->args.op), i)->name, b->handle, b->rank);
        sub->reads_others = true;
    }
    return 0;
}

static int inputs_match(const struct comm *c, int reader, int writer, struct error *e)
{
    const struct submission *sub = c->members[reader].next, *other = c->members[writer].next;
    int result = op_spec(sub->args.op)->result;
    struct error why = {0};
    char of[32];

    for (int i = 0; i < sub->args.ntensors; i++) {
        if (i == result || !sub->buffers[i] || sub->buffers[i] != other->buffers[result] ||
            !tensors_overlap(&sub->args.tensors[i], &other->args.tensors[result]))
            continue;
        (void)snprintf(of, sizeof(of), "rank %d's ", writer);
        (void)overlap_say(sub, i, other, of, &why);
        return error_set(e, why.status, "rank %d: %s: %s", reader, submission_name(sub), why.text);
    }
    return 0;
}

int overlap_match(const struct comm *c, struct error *e)
{
    for (int reader = 0; reader < c->nranks; reader++)
        for (int writer = 0; c->members[reader].next->reads_others && writer < c->nranks; writer++)
            if (inputs_match(c, reader, writer, e))
                return e->status;
    return 0;
}
