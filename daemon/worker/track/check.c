/* SPDX-License-Identifier: MIT
 *
 * check.c - what a rule may be. The message is the worker's copy of what a client has sent: nothing of it is believed.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/net/net.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/track/inside.h"
#include "kernels/plan/plan.h"

#define COUNT_MAX (1ull << 32)

/* The buffer of this rank that a rule names. NULL with the reason. */
static struct buffer *own_find(const struct member *m, uint32_t handle, const char *name, struct error *e)
{
    struct buffer *b = buffer_find(m->session, handle);

    if (b && b->comm == m->comm->number && b->rank == m->rank)
        return b;
    (void)error_set(e, -ENOENT, "rank %d: rule: %s: buffer %u: no such buffer of this rank", m->rank, name, handle);
    return NULL;
}

/* The part of rank `other`, on this node, of the allocation of one of this rank's buffers. NULL with the reason. */
static struct buffer *part_of(const struct member *m, const struct member *other, struct buffer *mine, const char *name,
                              struct error *e)
{
    struct buffer *b = other == m ? mine : NULL;

    if (!b && !mine->number)
        (void)error_set(e, -EINVAL, "rank %d: rule: %s: it is not symmetric: rank %d has no part of it", m->rank, name,
                        other->rank);
    else if (!b && !(b = buffer_part(other, mine->number)))
        (void)error_set(e, -ENOENT, "rank %d: rule: %s: rank %d has freed its part of the buffer", m->rank, name, other->rank);
    return b;
}

static int word_check(const struct member *m, uint64_t offset, const struct buffer *b, const char *name, struct error *e)
{
    if (offset % 8 == 0 && b->bytes >= 8 && offset <= b->bytes - 8)
        return 0;
    return error_set(e, -EINVAL, "rank %d: rule: %s: %" PRIu64 ": allowed are multiples of 8 up to %" PRId64, m->rank, name,
                     offset, (int64_t)b->bytes - 8);
}

static int awaits_check(const struct member *m, const struct fcc_rule_msg *msg, struct rule *out, struct error *e)
{
    for (int i = 0; i < FCC_RULE_AWAITS; i++) {
        const struct fcc_await_msg *w = &msg->awaits[i];
        const struct buffer *b = w->buffer ? own_find(m, w->buffer, "awaits", e) : NULL;
        if (!w->buffer)
            continue;
        if (!b || word_check(m, w->offset, b, "awaits.offset", e))
            return e->status;
        if (w->lag > 1)
            return error_set(e, -EINVAL, "rank %d: rule: awaits[%d].lag: %u: allowed are 0 and 1", m->rank, i, w->lag);
        out->awaits[i] = (struct rule_word){.word = (const _Atomic uint64_t *)(const void *)(b->memory.data + w->offset),
                                            .lag = w->lag,
                                            .offset = w->offset,
                                            .buffer = b};
    }
    return 0;
}

/* Rows at one end. */
static int rows_check(const struct member *m, const struct fcc_rule_msg *msg, uint64_t offset, uint64_t stride,
                      const struct buffer *b, const char *name, struct error *e)
{
    const struct net_area area = {.row_bytes = msg->row_bytes, .stride = stride, .rows = msg->rows};
    const size_t element = msg->action == FCC_RULE_ADD ? dtype_size((enum fcc_dtype)msg->dtype) : 1;
    uint64_t length;

    if (net_area_check(&area, offset, b->bytes, &length))
        return error_set(e, -EINVAL,
                         "rank %d: rule: %u rows of %" PRIu64 " bytes, %" PRIu64 " apart, from offset %" PRIu64
                         ": they do not lie in %s, which has %" PRIu64 " bytes, or within each other",
                         m->rank, msg->rows, msg->row_bytes, stride, offset, name, b->bytes);
    if (offset % element || msg->row_bytes % element || (msg->rows > 1 && stride % element))
        return error_set(e, -EINVAL,
                         "rank %d: rule: %s: offset %" PRIu64 ", rows of %" PRIu64 " bytes, %" PRIu64
                         " apart: they must be multiples of an element's %zu bytes",
                         m->rank, name, offset, msg->row_bytes, stride, element);
    return 0;
}

static uint64_t length_of(uint64_t rows, uint64_t row_bytes, uint64_t stride)
{
    return (rows - 1) * stride + row_bytes;
}

/* Rows that are moved on this node. */
static int near_rows(const struct member *m, const struct member *other, const struct fcc_rule_msg *msg, struct rule *out,
                     struct error *e)
{
    struct buffer *from = own_find(m, msg->from, "from", e), *to = from ? own_find(m, msg->to, "to", e) : NULL, *part;
    const uint64_t from_stride = msg->rows > 1 ? msg->from_stride : 0, to_stride = msg->rows > 1 ? msg->to_stride : 0;

    if (!to || !(part = part_of(m, other, to, "to", e)) ||
        rows_check(m, msg, msg->from_offset, msg->from_stride, from, "from", e) ||
        rows_check(m, msg, msg->to_offset, msg->to_stride, part, "to", e))
        return e->status;
    if (from == part && msg->from_offset < msg->to_offset + length_of(msg->rows, msg->row_bytes, to_stride) &&
        msg->to_offset < msg->from_offset + length_of(msg->rows, msg->row_bytes, from_stride))
        return error_set(e, -EINVAL, "rank %d: rule: from and to: they overlap in the same buffer", m->rank);
    out->from = from->memory.data + msg->from_offset;
    out->to = part->memory.data + msg->to_offset;
    out->rows = msg->rows;
    out->row_bytes = msg->row_bytes;
    out->from_stride = from_stride;
    out->to_stride = to_stride;
    out->buffers[0] = from;
    out->buffers[1] = to;
    out->buffers[2] = part;
    return 0;
}

static int near_check(const struct member *m, const struct member *other, const struct fcc_rule_msg *msg, struct rule *out,
                      struct error *e)
{
    struct buffer *b, *part;

    if (msg->action != FCC_RULE_SIGNAL && near_rows(m, other, msg, out, e))
        return e->status;
    if (!msg->signals)
        return 0;
    if (!(b = own_find(m, msg->signals, "signals", e)) || word_check(m, msg->signal_offset, b, "signal_offset", e) ||
        !(part = part_of(m, other, b, "signals", e)))
        return e->status;
    out->signal = (_Atomic uint64_t *)(void *)(part->memory.data + msg->signal_offset);
    out->buffers[3] = b;
    out->buffers[4] = part;
    return 0;
}

/* What goes to another node is a put, which is checked as programs' own are. */
static int far_check(struct member *m, const struct fcc_rule_msg *msg, struct rule *out, struct error *e)
{
    const bool moves = msg->action == FCC_RULE_STORE;
    const struct fcc_put_msg put = {.rank = msg->rank,
                                    .from = moves ? msg->from : 0,
                                    .to = moves ? msg->to : 0,
                                    .signals = msg->signals,
                                    .rows = moves ? msg->rows : 0,
                                    .row_bytes = msg->row_bytes,
                                    .stride = msg->from_stride,
                                    .from_offset = msg->from_offset,
                                    .to_offset = msg->to_offset,
                                    .signal_offset = msg->signal_offset};

    if (msg->action == FCC_RULE_ADD)
        return error_set(
            e, -EOPNOTSUPP,
            "rank %d: rule: rank %d is on another node: rows cannot be added there, only stored; add them there by "
            "a rule of that rank, which awaits this one's signal",
            m->rank, msg->rank);
    if (moves && msg->rows > 1 && msg->from_stride != msg->to_stride)
        return error_set(e, -EINVAL,
                         "rank %d: rule: to_stride: %" PRIu64 ": to a rank on another node it must be from_stride, %" PRIu64,
                         m->rank, msg->to_stride, msg->from_stride);
    return puts_rule_register(m, &put, &out->put, e);
}

int rule_check(struct member *m, const struct fcc_rule_msg *msg, struct rule *out, struct error *e)
{
    const struct comm *c = m->comm;
    const struct member *other;

    *out = (struct rule){.need = msg->count,
                         .action = (enum fcc_rule_action)msg->action,
                         .dtype = (enum fcc_dtype)msg->dtype,
                         .rank = msg->rank,
                         .run_bytes = msg->action == FCC_RULE_SIGNAL ? 0 : msg->rows * msg->row_bytes};
    memcpy(out->name, msg->name, sizeof(out->name));
    out->name[sizeof(out->name) - 1] = '\0';
    (void)text_clean(out->name);
    if (msg->count < 1 || msg->count > COUNT_MAX)
        return error_set(e, -EINVAL, "rank %d: rule: count: %" PRIu64 ": allowed are 1 to %llu", m->rank, msg->count,
                         COUNT_MAX);
    if (msg->action > FCC_RULE_ADD)
        return error_set(e, -EINVAL, "rank %d: rule: action: %u: allowed are %d (signal), %d (store) and %d (add)", m->rank,
                         msg->action, FCC_RULE_SIGNAL, FCC_RULE_STORE, FCC_RULE_ADD);
    if (msg->action == FCC_RULE_ADD && msg->dtype != FCC_F32 && msg->dtype != FCC_F16 && msg->dtype != FCC_BF16)
        return error_set(e, -EINVAL, "rank %d: rule: dtype: %u: added are %d (f32), %d (f16) and %d (bf16)", m->rank,
                         msg->dtype, FCC_F32, FCC_F16, FCC_BF16);
    if (msg->rank < 0 || msg->rank >= c->nranks)
        return error_set(e, -EINVAL, "rank %d: rule: rank: %d: allowed are 0 to %d", m->rank, msg->rank, c->nranks - 1);
    other = &c->members[msg->rank];
    if (other->state != MEMBER_JOINED)
        return error_set(e, -ENOENT, "rank %d: rule: rank %d has left the communicator", m->rank, msg->rank);
    if (awaits_check(m, msg, out, e))
        return e->status;
    out->gpu = msg->action == FCC_RULE_ADD && !other->remote ? other->dev->device->index : m->dev->device->index;
    if (other->remote && m->dev->device->ops->number != FCC_DEVICE_CPU)
        return error_set(e, -EOPNOTSUPP,
                         "rank %d: rule: rank: %d is on another node: rules of ranks on GPUs reach ranks of their node only",
                         m->rank, msg->rank);
    if (other->remote && (msg->action != FCC_RULE_SIGNAL || msg->signals))
        return far_check(m, msg, out, e);
    return other->remote ? 0 : near_check(m, other, msg, out, e);
}
