/* SPDX-License-Identifier: MIT */
#include "daemon/worker/comm/request/resolve.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/worker/comm/bounce.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/request/overlap.h"
#include "daemon/worker/device/device.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/epilogue.h"
#include "kernels/plan/tensor.h"

static int tensor_form_check(const struct fcc_wire_tensor *t, const char *name, struct error *e)
{
    size_t size = dtype_size((enum fcc_dtype)t->dtype);
    int64_t most = t->ndim == 1 ? VECTOR_MOST : INT32_MAX; /* the operator may allow less */

    if (!size)
        return error_set(e, -EINVAL, "%s: dtype %u: allowed are %d to %d", name, t->dtype, FCC_F32, FCC_F8E5M2);
    if (t->ndim < 1 || t->ndim > FCC_MAX_DIMS)
        return error_set(e, -EINVAL, "%s: %u dimensions: allowed are 1 to %d", name, t->ndim, FCC_MAX_DIMS);
    for (int d = 0; d < t->ndim; d++) {
        if (t->shape[d] < 0 || t->shape[d] > most)
            return error_set(e, -EINVAL, "%s: shape[%d] %lld: allowed are 0 to %lld", name, d, (long long)t->shape[d],
                             (long long)most);
        if (t->stride[d] < 0)
            return error_set(e, -EINVAL, "%s: stride[%d] %lld: allowed are 0 and more", name, d, (long long)t->stride[d]);
    }
    if (t->offset % size)
        return error_set(e, -EINVAL, "%s: offset %llu: misaligned: allowed are multiples of %zu, the size of %s", name,
                         (unsigned long long)t->offset, size, dtype_name((enum fcc_dtype)t->dtype));
    return 0;
}

static bool tensor_is_dense(const struct fcc_wire_tensor *t)
{
    uint64_t elements = 1; /* of the dimensions behind: wraps around where the tensor lies in no buffer anyhow */

    for (int d = t->ndim - 1; d >= 0; d--) {
        if (t->shape[d] > 1 && (uint64_t)t->stride[d] != elements)
            return false;
        elements *= (uint64_t)t->shape[d];
    }
    return true;
}

static int tensor_place_check(const struct fcc_wire_tensor *t, const char *name, uint64_t bytes, struct error *e)
{
    uint64_t extent = wire_tensor_bytes(t);
    char strides[FCC_MAX_DIMS * 24 + 16] = "";

    if (extent != UINT64_MAX && extent <= bytes && t->offset <= bytes - extent)
        return 0;
    if (!tensor_is_dense(t)) {
        int n = snprintf(strides, sizeof(strides), "strides ");
        for (int d = 0; d < t->ndim; d++)
            n += snprintf(strides + n, sizeof(strides) - (size_t)n, "[%lld]", (long long)t->stride[d]);
        (void)snprintf(strides + n, sizeof(strides) - (size_t)n, ", ");
    }
    return error_set(
        e, -EINVAL,
        "%s: its elements do not lie in its buffer: offset %llu, shape [%lld][%lld][%lld][%lld] %s, %sbuffer of %llu bytes",
        name, (unsigned long long)t->offset, (long long)t->shape[0], (long long)(t->ndim > 1 ? t->shape[1] : 1),
        (long long)(t->ndim > 2 ? t->shape[2] : 1), (long long)(t->ndim > 3 ? t->shape[3] : 1),
        dtype_name((enum fcc_dtype)t->dtype), strides, (unsigned long long)bytes);
}

static void tensor_set(const struct fcc_wire_tensor *t, unsigned char *buffer, bool symmetric, struct tensor *out)
{
    out->data = buffer + t->offset;
    out->dtype = (enum fcc_dtype)t->dtype;
    out->ndim = t->ndim;
    out->symmetric = symmetric;
    memcpy(out->shape, t->shape, sizeof(out->shape));
    memcpy(out->stride, t->stride, sizeof(out->stride));
}

/* Check a tensor against its buffer and fill in its local address. */
static int tensor_resolve(const struct session *s, const struct comm *c, const struct fcc_wire_tensor *t, const char *name,
                          struct tensor *out, struct buffer **buffer, struct error *e)
{
    struct buffer *b;

    if (!t->buffer)
        return 0; /* absent: the operator checks whether it may be */
    int status = tensor_form_check(t, name, e);
    if (status)
        return status;
    b = buffer_find(s, t->buffer);
    if (!b)
        return error_set(e, -ENOENT, "%s: no such buffer: it has been freed, or belongs to another connection", name);
    status = tensor_place_check(t, name, b->bytes, e);
    if (status)
        return status;
    if (b->device->ops != c->dev.ops)
        return error_set(e, -EINVAL, "%s: buffer %u: lies in the memory of %s: the communicator's ranks are on %s", name,
                         t->buffer, b->device->ops->kind, c->dev.ops->kind);
    tensor_set(t, b->memory.data, buffer_takes_results(b) && b->comm == c->number, out);
    b->refs++;
    *buffer = b;
    return 0;
}

/* The same for a remote rank's tensor, which gets its address in the bounce buffer. A remote rank's local tensor is never accessed here; it gets
 * a dummy address that is not NULL, so that it counts as present. */
static int tensor_resolve_remote(const struct member *m, const struct fcc_wire_tensor *t, const char *name, uint64_t bytes,
                                 bool symmetric, struct tensor *out, struct buffer **buffer, struct error *e)
{
    static _Alignas(64) unsigned char elsewhere[64];
    struct buffer *b;

    if (!t->buffer)
        return 0;
    int status = tensor_form_check(t, name, e);
    if (!status)
        status = tensor_place_check(t, name, bytes, e);
    if (status)
        return status;
    tensor_set(t, elsewhere, symmetric, out);
    if (!symmetric) {
        out->data = elsewhere;
        return 0;
    }
    b = bounce_find(m, t->buffer);
    if (!b || b->bytes != bytes)
        return error_set(e, -ENOENT, "%s: buffer %u of %llu bytes, for results: it has said nothing of it", name, t->buffer,
                         (unsigned long long)bytes);
    tensor_set(t, b->memory.data, true, out);
    b->refs++;
    *buffer = b;
    return 0;
}

/* What the operator stores into must be in the rank's own memory. A client with several ranks of the communicator also has the handles of the
 * others' memory. */
static int results_check_own(const struct submission *sub, const struct member *m, const struct op_spec *op, struct error *e)
{
    const uint32_t results = epilogue_results(&sub->args);

    for (int i = 0; i < sub->args.ntensors; i++) {
        const struct buffer *b = i == op->result || results >> i & 1 ? sub->buffers[i] : NULL;
        if (b && buffer_takes_results(b) && b->comm == m->comm->number && b->rank != m->rank)
            return error_set(e, -EINVAL,
                             "%s: buffer %u: is rank %d's part of the memory for results: allowed is this rank's own",
                             op_tensor(op, i)->name, b->handle, b->rank);
    }
    return 0;
}

int submission_resolve(struct submission *sub, const struct member *member, const struct fcc_submit *m,
                       const struct remote_request *remote, struct error *e)
{
    const struct fcc_wire_tensor *tensors = (const struct fcc_wire_tensor *)(m + 1);
    const struct op_spec *op = op_spec(m->op);
    struct error schedule = {.status = 0};
    int status;

    sub->args.op = (enum fcc_op)m->op;
    status = schedule_read(m->schedule, &sub->args, &schedule);
    sub->args.attrs = m->nattrs ? sub->words : NULL; /* which are here or there from one request to the next */
    sub->args.nattrs = m->nattrs;
    sub->args.ntensors = m->ntensors;
    memset(sub->args.tensors, 0, m->ntensors * sizeof(sub->args.tensors[0]));
    memcpy(sub->words, tensors + m->ntensors, m->nattrs * sizeof(int64_t));
    if (!op || (op->exchange == EXCHANGE_RINGS && !sub->prepare))
        return error_set(e, -EINVAL, "operator %u: unknown: allowed are 0 to %d", m->op, FCC_OP_COUNT - 1);
    if (status)
        return error_set(e, status, "%s", schedule.text);
    if (!op_may_have_tensors(op, m->ntensors))
        return error_set(e, -EINVAL, "%u tensors: expected %d", m->ntensors, op->ntensors);
    if (m->ntensors != op->ntensors && (m->prepare != FCC_PREPARE_RUN || m->bound))
        return error_set(e, -EINVAL, "%s: not allowed with an operator that is to be bound", op_tensor(op, op->ntensors)->name);
    status = op_attrs_check(sub->args.attrs, sub->args.nattrs, e);
    for (int i = 0; !status && i < m->ntensors; i++)
        status = remote ? tensor_resolve_remote(member, &tensors[i], op_tensor(op, i)->name, remote->buffers[i].bytes,
                                                remote->buffers[i].symmetric, &sub->args.tensors[i], &sub->buffers[i], e)
                        : tensor_resolve(sub->session, member->comm, &tensors[i], op_tensor(op, i)->name, &sub->args.tensors[i],
                                         &sub->buffers[i], e);
    if (!status)
        status = op_check(&sub->args, member->comm->nranks, member->rank, e);
    if (!status && !remote)
        status = results_check_own(sub, member, op, e);
    if (!status && !remote)
        status = overlap_check(sub, member, e);
    return !status && member->comm->dev.ops != &device_cpu ? epilogue_check_gpu(&sub->args, member->comm->nodes != NULL, e)
                                                           : status;
}
