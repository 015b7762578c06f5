/* SPDX-License-Identifier: MIT
 *
 * submission.c - packs a typed call into a SUBMIT message.
 *
 * This file checks only what a message cannot express: NULL pointers, buffers of other connections, numbers that do not fit
 * their fields. The daemon checks everything else. It reports each error to all ranks, those found here included (refusal.c).
 */
#include "client/submission.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/core/epilogue.h"
#include "kernels/plan/tensor.h"

void submission_fail(struct submission *s, int status, const char *format, ...)
{
    va_list ap;

    if (s->error.status)
        return;
    s->error.status = status;
    va_start(ap, format);
    (void)vsnprintf(s->error.text, sizeof(s->error.text), format, ap);
    va_end(ap);
}

/* The numbers of an attribute; NULL: the attribute is absent. *count is 0 for a list that attr_check() refuses. `room`
 * holds a single number. */
static const int64_t *attr_values(const struct submission *s, const struct attr_spec *a, int64_t *room, size_t *count)
{
    const unsigned char *at = s->args + a->at;
    const int64_t *values = room;
    int32_t n;

    *count = 1;
    if (a->kind == ATTR_NUMBER) {
        *room = a->bytes == sizeof(int64_t) ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
        return values;
    }
    values = *(const int64_t *const *)(const void *)at;
    *count = (size_t)s->comm->nranks;
    if (a->kind == ATTR_RANKS)
        return values;
    n = *(const int32_t *)(const void *)(s->args + a->count_at);
    *count = values && n > 0 && n <= a->count_most ? (size_t)n : 0;
    return values ? values : room;
}

static void attr_check(struct submission *s, const struct attr_spec *a)
{
    int32_t n;

    if (a->kind != ATTR_LIST)
        return;
    n = *(const int32_t *)(const void *)(s->args + a->count_at);
    if (n < 0 || n > a->count_most)
        submission_fail(s, -EINVAL, "%s: %d: allowed are 0 to %d", a->count_name, n, a->count_most);
    else if (n && !*(const int64_t *const *)(const void *)(s->args + a->at))
        submission_fail(s, -EINVAL, "%s: NULL: allowed only if %s is 0", a->name, a->count_name);
}

void submission_begin(struct submission *s, fcc_comm *comm, const struct op_spec *op, const void *args,
                      const struct fcc_epilogue *epilogue)
{
    int64_t number;
    size_t count;

    s->comm = comm;
    s->op = op;
    s->args = args;
    s->epilogue = epilogue;
    s->length = sizeof(*s->msg);
    s->room = sizeof(*s->msg) + (size_t)(op->ntensors + epilogue_tensors(epilogue)) * sizeof(struct fcc_wire_tensor) +
              (epilogue ? EPILOGUE_ATTR_WORDS * sizeof(int64_t) : 0);
    for (int i = 0; i < op->nattrs; i++)
        if (attr_values(s, &op->attrs[i], &number, &count))
            s->room += (1 + count) * sizeof(int64_t);
    s->error.status = 0; /* the text is not cleared: that costs time, and errors are rare */
    memset(s->places, 0, sizeof(s->places));
    s->msg = malloc(s->room);
    if (s->msg)
        *s->msg = (struct fcc_submit){.op = op->number};
    else
        submission_fail(s, -ENOMEM, "out of memory");
}

static void submission_options(struct submission *s, uint32_t schedule, const uint32_t reserved[7])
{
    struct error why = {.status = 0};
    struct op_args ignored;

    if (s->error.status)
        return;
    if (schedule > UINT8_MAX && schedule_read(schedule, &ignored, &why))
        submission_fail(s, why.status, "%s", why.text);
    for (int i = 0; i < 7; i++)
        if (reserved[i])
            submission_fail(s, -EINVAL, "reserved[%d]: %u: must be 0", i, reserved[i]);
    s->msg->schedule = (uint8_t)schedule;
}

static void *submission_extend(struct submission *s, size_t bytes)
{
    unsigned char *at = (unsigned char *)s->msg + s->length;

    assert(s->length + bytes <= s->room);
    s->length += bytes;
    return at;
}

/* Fills in the strides of a dense tensor. If it is larger than any buffer, so are its strides, and the daemon refuses it. */
static void strides_dense(struct fcc_wire_tensor *w)
{
    int64_t stride = 1;

    for (unsigned i = w->ndim; i-- > 0;) {
        w->stride[i] = stride;
        if (__builtin_mul_overflow(stride, w->shape[i], &stride))
            stride = INT64_MAX;
    }
}

static void submission_tensor(struct submission *s, const char *name, const struct fcc_tensor *t)
{
    struct fcc_wire_tensor w = {.offset = t->offset};
    struct tensor_place *place;
    bool dense = true;

    if (s->error.status)
        return;
    place = &s->places[s->msg->ntensors++];
    if (!t->buffer) {
        memset(submission_extend(s, sizeof(w)), 0, sizeof(w));
        return;
    }
    (void)pthread_mutex_lock(&s->comm->context->lock);
    w.buffer = buffer_handle(s->comm->context, t->buffer, place);
    (void)pthread_mutex_unlock(&s->comm->context->lock);
    place->address += t->offset;
    place->room = t->offset < place->room ? place->room - t->offset : 0;
    if (!w.buffer) /* another connection's buffer, or freed: sends an invalid handle, so that all ranks get the error */
        w.buffer = UINT32_MAX;
    if (t->dtype > UINT16_MAX)
        submission_fail(s, -EINVAL, "%s: dtype %u: allowed are %d to %d", name, t->dtype, FCC_F32, FCC_F8E5M2);
    if (t->ndim > FCC_MAX_DIMS)
        submission_fail(s, -EINVAL, "%s: %u dimensions: allowed are 1 to %d", name, t->ndim, FCC_MAX_DIMS);
    w.dtype = (uint16_t)t->dtype;
    w.ndim = (uint16_t)t->ndim;
    for (unsigned i = 0; !s->error.status && i < t->ndim; i++) {
        w.shape[i] = t->shape[i];
        w.stride[i] = t->stride[i];
        dense = dense && t->stride[i] == 0;
    }
    if (!s->error.status && dense)
        strides_dense(&w);
    if (!s->error.status)
        memcpy(submission_extend(s, sizeof(w)), &w, sizeof(w));
}

static void submission_attr(struct submission *s, const struct attr_spec *a)
{
    int64_t number, *words;
    size_t count;
    const int64_t *values = attr_values(s, a, &number, &count);

    if (s->error.status || !values)
        return;
    words = submission_extend(s, (1 + count) * sizeof(*words));
    words[0] = (int64_t)((uint64_t)a->key << 32 | count);
    if (count)
        memcpy(words + 1, values, count * sizeof(*words));
    if (a->kind == ATTR_RANKS)
        op_counts_in_elements(words + 1, count, op_row_elements(s->op, s->args));
    s->msg->nattrs += (uint32_t)(1 + count);
}

static void submission_epilogue_attr(struct submission *s)
{
    int64_t words[EPILOGUE_ATTR_WORDS];
    size_t n = epilogue_attr(s->epilogue, words);
    struct error why = {.status = 0};

    if (epilogue_reserved_check(s->epilogue, &why))
        submission_fail(s, why.status, "%s", why.text);
    if (s->error.status || !n)
        return;
    memcpy(submission_extend(s, n * sizeof(words[0])), words, n * sizeof(words[0]));
    s->msg->nattrs += (uint32_t)n;
}

void submission_pack(struct submission *s)
{
    const struct op_spec *op = s->op;
    const uint32_t *options = (const uint32_t *)(const void *)(s->args + op->schedule_at);

    for (int i = 0; i < op->nattrs; i++)
        attr_check(s, &op->attrs[i]);
    submission_options(s, options[0], options + 1);
    for (int i = 0; i < op->ntensors; i++)
        submission_tensor(s, op->tensors[i].name, submission_arg(s, i));
    for (int i = 0; i < epilogue_tensors(s->epilogue); i++)
        submission_tensor(s, epilogue_specs[i].name, epilogue_arg(s->epilogue, i));
    for (int i = 0; i < op->nattrs; i++)
        submission_attr(s, &op->attrs[i]);
    submission_epilogue_attr(s);
}
