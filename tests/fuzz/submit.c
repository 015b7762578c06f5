/* SPDX-License-Identifier: MIT */
#include "tests/fuzz/submit.h"

#include "proto/session.h"

enum { WORDS = 48 };

struct request {
    struct fcc_wire_tensor tensors[FCC_MAX_TENSORS];
    int64_t words[WORDS];
    uint32_t ntensors, nwords;
};

static struct fcc_wire_tensor tensor(const struct client_buffer *b, enum fcc_dtype dtype, uint16_t ndim, int64_t rows,
                                     int64_t cols, int64_t depth)
{
    return (struct fcc_wire_tensor){
        .buffer = b->handle,
        .dtype = (uint16_t)dtype,
        .ndim = ndim,
        .shape = {rows, cols, depth},
        .stride = {ndim == 1   ? 1
                   : ndim == 2 ? cols
                               : cols * depth,
                   ndim == 2 ? 1 : depth, 1},
    };
}

static void attr(struct request *r, enum fcc_attr key, const int64_t *values, uint32_t n)
{
    r->words[r->nwords++] = (int64_t)((uint64_t)key << 32 | n);
    for (uint32_t i = 0; i < n; i++)
        r->words[r->nwords++] = values[i];
}

/* Sizes that fit buffers of 64 KiB, and that many inputs have in common: so ranks' requests match. */
static void request_make(struct request *r, enum fcc_op op, const struct client_buffer *b[3], int nranks, uint32_t sizes)
{
    static const int64_t widths[] = {8, 16, 64, 1, 3, 24, 33, 0};
    static const enum fcc_dtype dtypes[] = {FCC_F32, FCC_F16, FCC_BF16, FCC_F32};
    int64_t m = 1 + (sizes & 3), n = widths[sizes >> 2 & 7], k = widths[sizes >> 5 & 7];
    enum fcc_dtype dtype = dtypes[sizes >> 8 & 3];

    memset(r, 0, sizeof(*r));
    if (op == FCC_OP_GEMV_ALL_REDUCE) {
        r->ntensors = FCC_GEMV_TENSORS;
        r->tensors[FCC_GEMV_X] = tensor(b[0], dtype, 2, m, k, 0);
        r->tensors[FCC_GEMV_W] = tensor(b[1], dtype, 2, n, k, 0);
        r->tensors[FCC_GEMV_Y] = tensor(b[2], dtype, 2, m, n, 0);
    } else if (op == FCC_OP_GEMM_REDUCE_SCATTER) {
        int64_t rows[4] = {m, m, m, m};
        r->ntensors = FCC_GEMM_TENSORS;
        r->tensors[FCC_GEMM_A] = tensor(b[0], dtype, 2, m * nranks, k, 0);
        r->tensors[FCC_GEMM_B] = tensor(b[1], dtype, 2, k, n, 0);
        r->tensors[FCC_GEMM_C] = tensor(b[2], dtype, 2, m, n, 0);
        if (sizes & 0x400 && nranks <= 4)
            attr(r, FCC_ATTR_ROWS, rows, (uint32_t)nranks);
    } else if (op == FCC_OP_GEMM_ALL_REDUCE) {
        r->ntensors = FCC_GEMM_TENSORS;
        r->tensors[FCC_GEMM_A] = tensor(b[0], dtype, 2, m, k, 0);
        r->tensors[FCC_GEMM_B] = tensor(b[1], dtype, 2, k, n, 0);
        r->tensors[FCC_GEMM_C] = tensor(b[2], dtype, 2, m, n, 0);
    } else if (op == FCC_OP_ALL_GATHER_GEMM) {
        r->ntensors = FCC_GATHER_TENSORS;
        r->tensors[FCC_GATHER_A] = tensor(b[0], dtype, 2, m, k, 0);
        r->tensors[FCC_GATHER_B] = tensor(b[1], dtype, 2, k, n, 0);
        r->tensors[FCC_GATHER_C] = tensor(b[2], dtype, 2, m * nranks, n, 0);
        if (sizes & 0x400) {
            r->tensors[FCC_GATHER_GATHERED] = tensor(b[1], dtype, 2, m * nranks, k, 0);
            r->tensors[FCC_GATHER_GATHERED].offset = 32768;
        }
    } else if (op == FCC_OP_GEMM_ALL_TO_ALL) {
        int64_t rows[4] = {m, m, m, m};
        r->ntensors = FCC_GEMM_TENSORS;
        r->tensors[FCC_GEMM_A] = tensor(b[0], dtype, 2, m * nranks, k, 0);
        r->tensors[FCC_GEMM_B] = tensor(b[1], dtype, 2, k, n, 0);
        r->tensors[FCC_GEMM_C] = tensor(b[2], dtype, 2, m * nranks, n, 0);
        if (sizes & 0x400 && nranks <= 4)
            attr(r, FCC_ATTR_SEND_ROWS, rows, (uint32_t)nranks);
    } else if (op == FCC_OP_EMBEDDING_ALL_TO_ALL) {
        int64_t rows[] = {4 + k, 2}, pooling = sizes >> 11 & 1, batch = m * nranks;
        uint32_t tables = 1 + (sizes >> 12 & 1);
        r->ntensors = FCC_EMB_TENSORS;
        r->tensors[FCC_EMB_TABLES] = tensor(b[0], dtype, 2, rows[0] + (tables > 1 ? rows[1] : 0), n + 1, 0);
        r->tensors[FCC_EMB_INDICES] = tensor(b[1], FCC_I32, 1, 32, 0, 0);
        r->tensors[FCC_EMB_OFFSETS] = tensor(b[1], FCC_I32, 1, tables * batch + 1, 0, 0);
        r->tensors[FCC_EMB_OFFSETS].offset = 1024;
        r->tensors[FCC_EMB_OUT] = tensor(b[2], dtype, 3, m, (int64_t)tables * nranks, n + 1);
        attr(r, FCC_ATTR_TABLE_ROWS, rows, tables);
        attr(r, FCC_ATTR_POOLING, &pooling, 1);
        attr(r, FCC_ATTR_BATCH, &batch, 1);
    }
}

static void request_spoil(struct request *r, struct fcc_submit *m, struct input *in)
{
    struct fcc_wire_tensor *t = &r->tensors[input_below(in, FCC_MAX_TENSORS)];
    int64_t value = input_number(in);
    uint32_t at = input_below(in, FCC_MAX_DIMS);

    switch (input_below(in, 14)) {
    case 0:
        t->shape[at] = value;
        break;
    case 1:
        t->stride[at] = value;
        break;
    case 2:
        t->offset = (uint64_t)value;
        break;
    case 3:
        t->dtype = (uint16_t)value;
        break;
    case 4:
        t->ndim = (uint16_t)value;
        break;
    case 5:
        t->buffer = (uint32_t)value;
        break;
    case 6:
        r->words[(uint64_t)value % WORDS] = input_number(in);
        break;
    case 7:
        r->ntensors = (uint32_t)((uint64_t)value % (FCC_MAX_TENSORS + 1));
        break;
    case 8:
        r->nwords = (uint32_t)((uint64_t)value % WORDS);
        break;
    case 9:
        m->op = (uint16_t)value;
        break;
    case 10:
        m->schedule = (uint8_t)value;
        break;
    case 11:
        m->prepare = (uint16_t)value;
        break;
    case 12:
        m->run = (uint64_t)value;
        break;
    default:
        m->bound = (uint32_t)value;
        break;
    }
}

/* What the worker has bound since it was repeated, which this client says it can launch; or what it was asked to bind. */
static uint32_t bound_choose(const struct client *c, uint32_t which)
{
    for (uint32_t i = 0; i < FCC_REPEATED_MAX; i++) {
        struct fcc_binding *p = &c->memory->bindings[FCC_PREPARED_MAX + (which + i) % FCC_REPEATED_MAX];
        if (atomic_load(&p->number) && !atomic_load(&p->until)) {
            atomic_store(&p->adopted, 1);
            return p->number;
        }
    }
    return c->prepared[which % PREPARED];
}

/* Where the completion goes; on a GPU sometimes with a place on a stream. */
static void slot_choose(struct submit *s, struct client *c, struct input *in, enum fcc_device_kind device)
{
    uint32_t how = input_u8(in), slot = how % FCC_SLOTS;

    s->m.slot = FCC_NO_SLOT;
    s->over_ring = how >= 0x40;
    if (!s->over_ring)
        return;
    s->m.slot = how == 0xff ? (uint32_t)input_number(in) : slot;
    if (how == 0xff)
        return; /* its slot is nobody's */
    if (device == FCC_DEVICE_CPU || how < 0x80)
        return;
    s->m.stream = ++c->sequence[slot];
    s->m.gpu_words = how % 16 == 15;
    s->m.prepare = how % 4 == 1 ? FCC_PREPARE_ASK : FCC_PREPARE_RUN;
    s->m.bound = how % 4 == 1 ? 1 + how % 8 : how % 8 == 2 ? bound_choose(c, how / 8) : 0;
    s->m.run = s->m.bound && s->m.prepare == FCC_PREPARE_RUN ? how % 3 : 0;
    if (how % 8 != 7) /* the client's stream has come that far */
        atomic_store(&c->memory->slot[slot].stream_started, s->m.stream);
}

void submit_make(struct submit *s, struct client *c, struct input *in, enum fcc_device_kind device)
{
    struct request r;
    uint32_t which = input_u8(in), sizes = (uint32_t)input_bits(in, 2), comm = which % COMMS, spoilt = which >> 6;
    static const enum fcc_op ops[] = {FCC_OP_NOOP, FCC_OP_GEMV_ALL_REDUCE, FCC_OP_GEMM_ALL_TO_ALL, FCC_OP_EMBEDDING_ALL_TO_ALL};
    const struct client_buffer *b[3];
    enum fcc_op op = ops[which >> 3 & 3];

    if (op == FCC_OP_GEMV_ALL_REDUCE && sizes & 0x800)
        op = sizes & 0x2000 ? FCC_OP_ALL_GATHER_GEMM : sizes & 0x1000 ? FCC_OP_GEMM_REDUCE_SCATTER : FCC_OP_GEMM_ALL_REDUCE;
    comm = c->comms[comm] ? comm : 0;
    for (int i = 0; i < 3; i++)
        b[i] = &c->buffers[i]; /* the same places at all ranks, if their clients do the same */
    if (which & 0x20)
        for (int i = 0; i < 3; i++)
            b[i] = &c->buffers[input_below(in, BUFFERS)];
    memset(s, 0, sizeof(*s));
    s->m.comm = c->comms[comm];
    s->m.op = (uint16_t)op;
    s->m.schedule = (uint8_t)(sizes >> 13);
    s->m.schedule = s->m.schedule > FCC_SCHEDULE_COMM_ONLY ? 0 : s->m.schedule;
    s->m.msg.type = FCC_MSG_SUBMIT;
    s->m.prepare = spoilt == 2 ? FCC_PREPARE_ONLY : FCC_PREPARE_RUN;
    slot_choose(s, c, in, device);
    request_make(&r, op, b, c->nranks[comm] > 0 ? c->nranks[comm] : 1, sizes);
    for (uint32_t i = 0; spoilt == 3 && i < 1 + sizes % 3; i++)
        request_spoil(&r, &s->m, in);
    s->m.ntensors = (uint8_t)r.ntensors;
    s->m.nattrs = r.nwords;
    memcpy(s->rest, r.tensors, r.ntensors * sizeof(r.tensors[0]));
    memcpy(s->rest + r.ntensors * sizeof(r.tensors[0]), r.words, r.nwords * sizeof(r.words[0]));
    s->length = sizeof(s->m) + r.ntensors * sizeof(r.tensors[0]) + r.nwords * sizeof(r.words[0]);
}
