/* SPDX-License-Identifier: MIT
 *
 * rings.c - collectives that this process's own kernels run: kernels/gpu/rings.h says how. (Products, and epilogues: products.c.)
 *
 * The rings are an operator that the library prepares for itself (bound.c) at a communicator's first collective on a stream. From then on
 * nothing needs the worker: a collective is one kernel. The worker watches runs as it does those of prepared operators, by the words of
 * the binding, so limits, aborts and deaths end them.
 *
 * A rank whose arguments are wrong launches a run, too, which gives itself up on all ranks. So the ranks' runs have the same numbers.
 */
#include "client/stream/rings.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/request.h"
#include "client/stream/bound.h"
#include "client/stream/counts.h"
#include "kernels/plan/compute/vector.h"
#include "kernels/plan/tensor.h"

#define FUSED_VARIABLE "FCC_FUSED"
enum { HOPPER_MAJOR = 9 };

/* ---- opening ---- */

/* A plug-in that cannot be loaded is told of when the rings are opened. */
static bool library_is_there(struct fcc_comm *comm)
{
    const struct gpu_prepared_functions *functions;

    return !prepared_functions_load(comm, "another", &functions) && functions->library && functions->library();
}

/* What this rank's process has, as far as FCC_FUSED asks for it. The GPU's major version is asked for, as only CUDA has tiles that are fast. */
static enum pieces_level pieces_level(struct fcc_comm *comm, const char *wish)
{
    const bool always = wish && !strcmp(wish, "tiles"), choose = !wish || !strcmp(wish, "auto");
    int before = 0, major = 0;

    if (!library_is_there(comm))
        return PIECES_NONE;
    if ((!always && !choose) || !comm->accelerator->driver->major_attribute || accelerator_enter(comm->accelerator, &before))
        return PIECES_LIBRARY;
    if (ACCELERATOR_CALL(comm->accelerator, device_attribute, &major, comm->accelerator->driver->major_attribute,
                         comm->accelerator->device))
        major = 0;
    accelerator_leave(comm->accelerator, before);
    return always ? PIECES_WISH : major == HOPPER_MAJOR ? PIECES_HOPPER : PIECES_LIBRARY;
}

static int rings_prepare(struct fcc_comm *comm)
{
    const char *wish = getenv(FUSED_VARIABLE);
    struct {
        struct fcc_submit msg;
        int64_t library[2];
    } ask = {.msg = {.op = FCC_RINGS, .nattrs = 2},
             .library = {(int64_t)((uint64_t)FCC_ATTR_LIBRARY << 32 | 1), pieces_level(comm, wish)}};
    static_assert(offsetof(__typeof__(ask), library) == sizeof(struct fcc_submit), "attributes follow");

    if (wish && strcmp(wish, "auto") != 0 && strcmp(wish, "tiles") != 0 && strcmp(wish, "pieces") != 0)
        return last_error_set(-EINVAL, "rank %d: " FUSED_VARIABLE "=%.40s: allowed are auto, tiles and pieces", comm->rank,
                              wish);
    return comm_prepare(comm, &ask.msg, sizeof(ask), NULL, &(struct prepared_buffers){.result = NULL}, &comm->rings);
}

bool rings_have_library(struct fcc_comm *comm)
{
    bool yes;

    (void)pthread_mutex_lock(&comm->rings_lock);
    yes = comm->rings && comm->rings->has_library;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return yes;
}

int rings_get(struct fcc_comm *comm, struct error *why)
{
    int status = 0;

    (void)pthread_mutex_lock(&comm->rings_lock);
    if (!comm->rings && !comm->rings_none.status) {
        status = rings_prepare(comm);
        if (status == -EOPNOTSUPP) {
            (void)error_set(&comm->rings_none, status, "%s", fcc_last_error());
            status = 0;
        }
    }
    *why = comm->rings_none;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return status ? status : !why->status;
}

bool rings_run_products(struct fcc_comm *comm)
{
    bool yes;

    (void)pthread_mutex_lock(&comm->rings_lock);
    yes = comm->rings && comm->rings->functions->product;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return yes;
}

enum pieces_level rings_pieces_level(struct fcc_comm *comm)
{
    enum pieces_level level;

    (void)pthread_mutex_lock(&comm->rings_lock);
    level = comm->rings ? (enum pieces_level)comm->rings->level : PIECES_NONE;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return level;
}

bool rings_run_pieces(struct fcc_comm *comm)
{
    bool yes;

    (void)pthread_mutex_lock(&comm->rings_lock);
    yes = comm->rings && comm->rings->functions->pieces && comm->rings->has_library;
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return yes;
}

/* ---- a call's arguments ---- */

static const struct fcc_tensor *tensor_of(const struct op_spec *op, const void *args, int i)
{
    return (const struct fcc_tensor *)(const void *)((const unsigned char *)args + op->tensors[i].at);
}

const char *rings_needed(const struct fcc_comm *comm, const struct op_spec *op, const void *args,
                         const struct fcc_epilogue *epilogue)
{
    bool anywhere = op_is_run_as_product(op, epilogue) && product_needs_rings(op, args, epilogue);

    for (int i = 0; args && i < op->ntensors; i++)
        anywhere |= tensor_of(op, args, i)->buffer == FCC_ADDRESS;
    return anywhere ? "FCC_ADDRESS" : comm->accelerator && device_counts_given(op, args) ? "counts in the GPU's memory" : NULL;
}

int rings_address(struct fcc_comm *comm, const char *name, const struct fcc_tensor *t, uint64_t *out, uint64_t *room,
                  struct error *e)
{
    struct tensor_place place = {.comm = NULL};
    uint32_t handle;

    *out = t->offset;
    *room = UINT64_MAX;
    if (t->buffer == FCC_ADDRESS)
        return t->offset ? 0 : error_set(e, -EINVAL, "%s: address 0: not allowed", name);
    (void)pthread_mutex_lock(&comm->context->lock);
    handle = buffer_handle(comm->context, t->buffer, &place);
    (void)pthread_mutex_unlock(&comm->context->lock);
    if (!handle || place.comm->accelerator != comm->accelerator)
        return error_set(e, -ENOENT, "%s: its buffer is not there, or not on this rank's GPU", name);
    *out = place.address + t->offset;
    *room = t->offset < place.room ? place.room - t->offset : 0;
    return 0;
}

/* The address of a vector, which lies in its buffer. */
static int address_find(struct fcc_comm *comm, const char *name, const struct fcc_tensor *t, uint64_t *out, struct error *e)
{
    const uint64_t bytes = t->shape[0] > 0 ? (uint64_t)t->shape[0] * dtype_size((enum fcc_dtype)t->dtype) : 0;
    uint64_t room = 0;

    if (rings_address(comm, name, t, out, &room, e))
        return e->status;
    if (t->shape[0] <= VECTOR_MOST && bytes > room)
        return error_set(e, -EINVAL, "%s: %" PRIu64 " bytes from byte %" PRIu64 " on: its buffer has %" PRIu64 " from there on",
                         name, bytes, t->offset, room);
    return 0;
}

static int tensor_find(struct fcc_comm *comm, const char *name, const struct fcc_tensor *t, struct tensor *out, struct error *e)
{
    uint64_t address = 0;

    *out = (struct tensor){.dtype = (enum fcc_dtype)t->dtype, .ndim = (int)t->ndim, .symmetric = true};
    if (!t->buffer)
        return 0;
    if (t->ndim != 1)
        return error_set(e, -EINVAL, "%s: %u dimensions: allowed is 1", name, t->ndim);
    if (t->shape[0] < 0 || t->shape[0] > RINGS_ELEMENTS_MOST)
        return error_set(e, -EINVAL, "%s: shape[0] %" PRId64 ": allowed are 0 to %" PRId64, name, t->shape[0],
                         RINGS_ELEMENTS_MOST);
    if (address_find(comm, name, t, &address, e))
        return e->status;
    size_t size = dtype_size(out->dtype);
    if (size && address % size)
        return error_set(e, -EINVAL, "%s: address 0x%" PRIx64 ": allowed are multiples of its elements' %zu bytes", name,
                         address, size);
    out->shape[0] = t->shape[0];
    out->stride[0] = t->stride[0] ? t->stride[0] : 1;
    out->data = (unsigned char *)(uintptr_t)address;
    return 0;
}

void rings_attrs_find(const struct fcc_comm *comm, const struct op_spec *op, const void *args, int64_t words[RINGS_ATTR_WORDS],
                      struct op_args *out)
{
    out->attrs = words;
    for (int i = 0; i < op->nattrs; i++) {
        const struct attr_spec *a = &op->attrs[i];
        const unsigned char *at = (const unsigned char *)args + a->at;
        const int64_t number = a->kind != ATTR_NUMBER        ? 0
                               : a->bytes == sizeof(int64_t) ? *(const int64_t *)(const void *)at
                                                             : *(const int32_t *)(const void *)at;
        const int64_t *values = a->kind == ATTR_NUMBER ? &number : *(const int64_t *const *)(const void *)at;
        size_t n = a->kind == ATTR_NUMBER ? 1 : (size_t)comm->nranks;
        if (a->kind == ATTR_LIST)
            n = (size_t) * (const int32_t *)(const void *)((const unsigned char *)args + a->count_at);
        if (!values && n > 0) /* absent; a list of none may be NULL */
            continue;
        words[out->nattrs] = (int64_t)((uint64_t)a->key << 32 | n);
        if (values && n)
            memcpy(&words[out->nattrs + 1], values, n * sizeof(values[0]));
        if (a->kind == ATTR_RANKS)
            op_counts_in_elements(&words[out->nattrs + 1], n, op_row_elements(op, args));
        out->nattrs += 1 + n;
    }
}

/* In the place of counts that only the kernel will know: some that would do. */
static void counts_stand_in(const struct fcc_comm *comm, int64_t words[RINGS_ATTR_WORDS], struct op_args *out)
{
    int64_t *at = &words[out->nattrs];

    at[0] = (int64_t)((uint64_t)FCC_ATTR_SEND_COUNTS << 32 | (uint64_t)comm->nranks);
    memset(&at[1], 0, (size_t)comm->nranks * sizeof(at[1]));
    at[1] = out->tensors[FCC_VECTOR_IN].shape[0];
    out->nattrs += 1 + (size_t)comm->nranks;
}

static bool memory_overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes)
{
    return a && b && a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes;
}

/* What the kernel stores must not lie where it reads, and no two things that it stores in one place. */
static int counts_apart(const struct fcc_comm *comm, const struct op_spec *op, const void *args, const struct op_args *found,
                        struct error *e)
{
    const uint64_t bytes = (uint64_t)comm->nranks * sizeof(int64_t), sent = device_counts(op, args, DEVICE_COUNTS_SEND),
                   received = device_counts(op, args, DEVICE_COUNTS_RECEIVE);

    for (int i = 0; i < op->ntensors; i++) {
        const struct tensor *t = &found->tensors[i];
        const uint64_t at = (uint64_t)(uintptr_t)t->data, size = (uint64_t)t->shape[0] * dtype_size(t->dtype);
        for (int k = 0; k < DEVICE_COUNTS; k++)
            if (memory_overlaps(k == DEVICE_COUNTS_SEND ? sent : received, bytes, at, size) &&
                (k == DEVICE_COUNTS_RECEIVE || i == op->result))
                return error_set(e, -EINVAL, "%s: overlaps %s: not allowed", op->device_counts[k].name, op->tensors[i].name);
    }
    if (memory_overlaps(sent, bytes, received, bytes))
        return error_set(e, -EINVAL, "%s: overlaps %s: not allowed", op->device_counts[DEVICE_COUNTS_RECEIVE].name,
                         op->device_counts[DEVICE_COUNTS_SEND].name);
    return 0;
}

/* Where the rank's part lies in its whole vector: elements from the begin, and one. 0: they are apart; -1: where no part of it can. */
static int64_t place_of_part(const struct tensor *part, const struct tensor *whole)
{
    const int64_t size = (int64_t)dtype_size(part->dtype), bytes = (int64_t)((uintptr_t)part->data - (uintptr_t)whole->data);

    if (!part->data || !whole->data || !tensors_overlap(part, whole))
        return 0;
    return bytes < 0 || bytes % size || bytes / size > whole->shape[0] - part->shape[0] ? -1 : bytes / size + 1;
}

static bool has_part(const struct op_spec *op)
{
    return (op->in == VECTOR_OWN) != (op->out == VECTOR_OWN);
}

static int64_t part_place(const struct op_spec *op, const struct op_args *args)
{
    const bool in = op->in == VECTOR_OWN;

    return has_part(op) ? place_of_part(&args->tensors[in ? FCC_VECTOR_IN : FCC_VECTOR_OUT],
                                        &args->tensors[in ? FCC_VECTOR_OUT : FCC_VECTOR_IN])
                        : 0;
}

/* In place, or apart: what lies elsewhere in the result is refused. Of a part whose place depends on other ranks' parts, the kernel knows the
 * place. */
static int places_check(const struct op_spec *op, const struct op_args *args, struct error *e)
{
    const struct tensor *in = &args->tensors[FCC_VECTOR_IN], *out = &args->tensors[FCC_VECTOR_OUT];

    if (has_part(op))
        return part_place(op, args) < 0 ? error_set(e, -EINVAL, "in: overlaps out: allowed is in place") : 0;
    if (!in->data || !out->data || !tensors_overlap(in, out) || (op->in != VECTOR_COUNTED && in->data == out->data))
        return 0;
    return error_set(e, -EINVAL, "in: overlaps out: allowed is %s",
                     op->in == VECTOR_COUNTED ? "apart from it" : "the same place");
}

static int args_find(struct fcc_comm *comm, const struct op_spec *op, const void *args, int64_t words[RINGS_ATTR_WORDS],
                     struct op_args *out, struct error *e)
{
    int status = device_counts_check(op, args, e);

    *out = (struct op_args){.op = (enum fcc_op)op->number, .ntensors = op->ntensors};
    rings_attrs_find(comm, op, args, words, out);
    for (int i = 0; i < op->ntensors && !status; i++)
        status = tensor_find(comm, op->tensors[i].name, tensor_of(op, args, i), &out->tensors[i], e);
    if (!status && device_counts(op, args, DEVICE_COUNTS_SEND))
        counts_stand_in(comm, words, out);
    if (!status)
        status = vector_check(out, comm->nranks, comm->rank, e);
    if (!status)
        status = counts_apart(comm, op, args, out, e);
    return status ? status : places_check(op, out, e);
}

/* Who gets what of this rank, and what it expects. */
static void counts_fill(const struct fcc_comm *comm, const struct op_spec *op, const void *given_args,
                        const struct op_args *args, struct gpu_collective *out)
{
    size_t count;
    const int64_t *given = op_attr(args, FCC_ATTR_SEND_COUNTS, &count),
                  *expected = op_attr(args, FCC_ATTR_EXPECTED_COUNTS, &count);
    const int64_t to = vector_number(args, FCC_ATTR_DESTINATION, -2), from = vector_number(args, FCC_ATTR_SOURCE, -2);

    for (int r = 0; r < comm->nranks; r++) {
        out->send[r] = to == r ? out->in_elements : to > -2 ? 0 : given ? given[r] : out->in_elements / comm->nranks;
        out->expected[r] = expected ? expected[r] : from > -2 && from != r ? 0 : -1;
    }
    out->row_elements = op_attr(args, FCC_ATTR_ROW_ELEMENTS, &count) ? vector_row_elements(args) : 0;
    out->counts = device_counts(op, given_args, DEVICE_COUNTS_SEND);
    out->received = device_counts(op, given_args, DEVICE_COUNTS_RECEIVE);
    out->rows_most = out->row_elements ? out->in_elements / out->row_elements : 0;
}

/* given: the public arguments; args: what has been found in them. */
static void collective_fill(const struct fcc_comm *comm, const struct op_spec *op, const void *given,
                            const struct op_args *args, struct gpu_collective *out)
{
    const struct tensor *in = &args->tensors[FCC_VECTOR_IN], *to = &args->tensors[FCC_VECTOR_OUT];

    out->dtype = in->data ? in->dtype : to->data ? to->dtype : 0;
    out->element_bytes = out->dtype ? (uint32_t)dtype_size((enum fcc_dtype)out->dtype) : 1;
    out->reduction = (uint32_t)vector_number(args, FCC_ATTR_REDUCTION, FCC_SUM);
    out->root = (uint32_t)vector_number(args, FCC_ATTR_ROOT, 0);
    out->in = (uint64_t)(uintptr_t)in->data;
    out->out = (uint64_t)(uintptr_t)to->data;
    out->in_elements = in->data ? in->shape[0] : 0;
    out->out_elements = to->data ? to->shape[0] : 0;
    out->place = part_place(op, args);
    if (op->in == VECTOR_COUNTED)
        counts_fill(comm, op, given, args, out);
}

/* What goes from a rank to itself, which no other rank sees. (Of counts in memory the kernel checks it.) */
static int own_part_check(const struct fcc_comm *comm, const struct op_spec *op, const struct gpu_collective *what,
                          struct error *e)
{
    const int64_t sent = what->send[comm->rank], expected = what->expected[comm->rank];

    if (op->in != VECTOR_COUNTED || what->counts || expected < 0 || sent == expected)
        return 0;
    return error_set(e, -EINVAL, "expected_counts: rank %d sends %" PRId64 " elements to rank %d, which expects %" PRId64,
                     comm->rank, sent, comm->rank, expected);
}

/* ---- launching ---- */

static _Thread_local bool continuing;

void rings_continue(bool continues)
{
    continuing = continues;
}

static int task_launch(struct fcc_prepared *p, const struct rings_task *task, bool capturing, void *stream, struct error *e)
{
    if (task->collective)
        return p->functions->collective(p->gpu, task->collective, stream, e);
    if (task->pieces)
        return p->functions->pieces(p->gpu, task->pieces, stream, e);
    task->product->captured = capturing;
    return p->functions->product(p->gpu, task->product, stream, e);
}

/* The GPU is the current one; comm->rings_lock held. A graph keeps the buffers that it uses. */
static int task_start(struct fcc_comm *comm, const struct rings_task *task, void *stream, int *capturing)
{
    struct fcc_prepared *p = comm->rings;
    struct error e = {.status = 0};
    int status = ACCELERATOR_CALL(comm->accelerator, stream_capturing, stream, capturing);

    if (!status && *capturing != DRIVER_NOT_CAPTURING)
        status = prepared_capture(p, stream);
    if (status)
        return status;
    for (int i = 0; i < task->ntensors && *capturing != DRIVER_NOT_CAPTURING; i++)
        if (task->tensors[i]->buffer != FCC_ADDRESS)
            buffer_capture(comm->context, task->tensors[i]->buffer, comm->graphs);
    for (int i = 0; i < DEVICE_COUNTS && *capturing != DRIVER_NOT_CAPTURING; i++)
        if (task->counts[i])
            buffer_capture(comm->context, fcc_buffer_find(comm->context, (const void *)(uintptr_t)task->counts[i]),
                           comm->graphs);
    if (task->collective && task->collective->refusal[0]) {
        if (*capturing != DRIVER_NOT_CAPTURING)
            return 0; /* the capture fails on this rank alone; nothing has run */
        rings_error_keep(comm);
    }
    comm->rings_calls = comm->rings_calls % INT32_MAX + 1;
    *(task->collective ? &task->collective->number
      : task->pieces   ? &task->pieces->number
                       : &task->product->number) = comm->rings_calls;
    *(task->collective ? &task->collective->continues
      : task->pieces   ? &task->pieces->continues
                       : &task->product->continues) = continuing;
    status = task_launch(p, task, *capturing != DRIVER_NOT_CAPTURING, stream, &e);
    return status ? last_error_set(status, "rank %d: %s", comm->rank, e.text) : 0;
}

/* A kernel that could not be launched is no run: other ranks, whose kernels may wait for it, get the reason from the worker, unless the program
 * tries again in time. */
int rings_task_enqueue(struct fcc_comm *comm, const struct rings_task *task, void *stream)
{
    int before = 0, capturing = DRIVER_NOT_CAPTURING, status;

    (void)pthread_mutex_lock(&comm->rings_lock);
    status = accelerator_enter(comm->accelerator, &before);
    if (!status) {
        status = task_start(comm, task, stream, &capturing);
        accelerator_leave(comm->accelerator, before);
    }
    if (capturing == DRIVER_NOT_CAPTURING && (status || comm->rings->is_refused))
        prepared_run_tell(comm->rings, 0, status);
    (void)pthread_mutex_unlock(&comm->rings_lock);
    return status;
}

/* args: NULL: the call is refused. */
static int collective_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, struct gpu_collective *what,
                              void *stream)
{
    struct rings_task task = {.collective = what, .ntensors = args ? op->ntensors : 0};

    for (int i = 0; i < task.ntensors; i++)
        task.tensors[i] = tensor_of(op, args, i);
    for (int i = 0; i < DEVICE_COUNTS; i++)
        task.counts[i] = device_counts(op, args, (enum device_counts)i);
    return rings_task_enqueue(comm, &task, stream);
}

static struct gpu_collective collective_of(const struct op_spec *op)
{
    return (struct gpu_collective){.op = op->number,
                                   .in_share = op->in,
                                   .out_share = op->out,
                                   .reduces = op->exchange == EXCHANGE_REDUCE,
                                   .element_bytes = 1};
}

int rings_refuse(struct fcc_comm *comm, const struct op_spec *op, const char *text, void *stream)
{
    struct gpu_collective what = collective_of(op);

    text_copy(what.refusal, sizeof(what.refusal), *text ? text : "refused");
    return collective_enqueue(comm, op, NULL, &what, stream);
}

int rings_enqueue(struct fcc_comm *comm, const struct op_spec *op, const void *args, void *stream)
{
    struct gpu_collective what = collective_of(op);
    int64_t words[RINGS_ATTR_WORDS];
    struct op_args found;
    struct error why = {.status = 0};
    int status = status_of(comm), wrong;
    char called[64];

    (void)snprintf(called, sizeof(called), "fcc_%s_enqueue", op->name);
    if (status)
        return prepared_over_explain(comm, status, called);
    wrong = args_find(comm, op, args, words, &found, &why);
    if (!wrong) {
        collective_fill(comm, op, args, &found, &what);
        wrong = own_part_check(comm, op, &what, &why);
    }
    if (wrong) {
        what = collective_of(op);
        text_copy(what.refusal, sizeof(what.refusal), why.text);
    }
    status = collective_enqueue(comm, op, args, &what, stream);
    return wrong ? last_error_set(wrong, "rank %d: %s: %s", comm->rank, op->name, why.text) : status;
}

/* The operator of this name, a collective or a product; NULL: there is none. */
static const struct op_spec *op_by_its_name(const char *name)
{
    for (unsigned i = 0; i < FCC_OP_COUNT; i++)
        if (op_has_rings(op_spec(i)) && !strcmp(name, op_spec(i)->name))
            return op_spec(i);
    return NULL;
}

int fcc_refuse_enqueue(fcc_comm *comm, const char *op, const char *reason, void *stream)
{
    const struct op_spec *spec = op ? op_by_its_name(op) : NULL;
    struct error why = {.status = 0};
    int status = comm_check(comm), launches;
    size_t n;

    if (status)
        return status;
    if (!op || !reason)
        return last_error_set(-EINVAL, "%s: NULL: not allowed", !op ? "op" : "reason");
    if (!spec)
        return last_error_set(-EINVAL, "op: \"%.40s\": allowed are the names of collectives and products", op);
    launches = comm->accelerator ? rings_get(comm, &why) : 0;
    if (launches != 1)
        return launches ? launches
                        : last_error_set(-EOPNOTSUPP, "%s", why.status ? why.text : "collectives: the rank is on a cpu device");
    status = status_of(comm);
    if (status)
        return prepared_over_explain(comm, status, "fcc_refuse_enqueue");
    reason = text_without_rank(comm->rank, reason);
    n = strlen(spec->name);
    if (!strncmp(reason, spec->name, n) && !strncmp(reason + n, ": ", 2)) /* rings_error() puts both in front */
        reason += n + 2;
    return rings_refuse(comm, spec, reason, stream);
}
