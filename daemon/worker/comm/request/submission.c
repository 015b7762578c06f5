/* SPDX-License-Identifier: MIT
 *
 * submission.c - accepts or refuses a copied request for an operator, and answers it.
 *
 * A wrong request still takes its turn: it is queued with its error, which all ranks get when the turn comes. So the ranks' order stays the
 * same on all nodes, and no rank waits for one that was refused.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/bound/bound.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/request/overlap.h"
#include "daemon/worker/comm/request/resolve.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/engine/account.h"
#include "daemon/worker/engine/endpoint.h"
#include "kernels/plan/compute/step.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/session.h"

/* Every operator of every rank needs a submission of more than a kilobyte, so freed ones are kept. Engine thread. */
#define AGAIN_MAX 64  /* submissions that are kept */
#define AGAIN_WORDS 8 /* words of attributes that these have room for */
static TAILQ_HEAD(, submission) unused = TAILQ_HEAD_INITIALIZER(unused);
static unsigned nunused;

struct submission *submission_new(struct session *s, enum submission_kind kind, uint64_t id, size_t words)
{
    bool again = words <= AGAIN_WORDS;
    struct submission *sub = again ? TAILQ_FIRST(&unused) : NULL;

    if (sub) {
        TAILQ_REMOVE(&unused, sub, link);
        nunused--;
    } else {
        sub = malloc(sizeof(*sub) + (again ? AGAIN_WORDS : words) * sizeof(sub->words[0]));
    }
    if (!sub)
        return NULL;
    sub->alloc_bytes = sub->stamp = 0;
    sub->stream = 0;
    sub->gpu_words = false;
    sub->own_gpus = 0;
    sub->prepare = sub->asks = sub->reads_others = false;
    sub->bound = 0;
    sub->run = 0;
    sub->number = 0;
    sub->sample = (struct tune_sample){.ns = 0};
    memset(&sub->args, 0, offsetof(struct op_args, tensors));
    memset(sub->buffers, 0, sizeof(sub->buffers));
    error_clear(&sub->error);
    sub->again = again;
    sub->payer = NULL;
    sub->unpaid = sub->counted = false;
    sub->session = s;
    sub->kind = kind;
    sub->id = id;
    sub->slot = FCC_NO_SLOT;
    sub->arrived_ns = s && s->worker->arrivals_ns ? s->worker->arrivals_ns : clock_ns();
    return sub;
}

static uint64_t submission_bytes(const struct submission *sub)
{
    return sizeof(*sub) + (sub->again ? AGAIN_WORDS : (size_t)sub->args.nattrs) * sizeof(sub->words[0]);
}

/* Count an operator of a rank here. Runs of bound operators are not: their ranks have enqueued them, whatever is said here. */
static int submission_count(struct submission *sub, struct worker *w, struct error *e)
{
    if (sub->kind != SUBMISSION_OPERATOR || sub->bound)
        return 0;
    int status = worker_count_take(w, ACCOUNT_OPERATORS, e);
    if (!status && sub->stream && (status = worker_count_take(w, ACCOUNT_STREAMS, e)))
        worker_count_give(w, ACCOUNT_OPERATORS);
    sub->counted = !status;
    return status;
}

static void submission_uncount(const struct submission *sub)
{
    if (!sub->counted)
        return;
    worker_count_give(sub->payer, ACCOUNT_OPERATORS);
    if (sub->stream)
        worker_count_give(sub->payer, ACCOUNT_STREAMS);
}

int submission_charge(struct submission **out, struct worker *w, bool remote, struct error *e)
{
    struct submission *sub = *out, *less;
    struct error why = {0};

    sub->payer = w;
    int status = worker_small_charge(w, submission_bytes(sub), &why);
    if (!status && !remote && (status = submission_count(sub, w, &why)))
        worker_small_release(w, submission_bytes(sub));
    if (!status)
        return 0;
    sub->unpaid = true;
    w->unpaid++;
    (void)error_set(e, why.status, "%s: %s", submission_name(sub), why.text);
    if (!sub->error.status)
        sub->error = *e;
    sub->args.attrs = NULL;
    sub->args.nattrs = 0;
    less = sub->again ? NULL : realloc(sub, sizeof(*sub));
    if (less)
        *out = less;
    return e->status;
}

void submission_free(struct submission *sub)
{
    for (int i = 0; i < FCC_MAX_TENSORS; i++)
        if (sub->buffers[i])
            buffer_unref(sub->buffers[i]);
    submission_uncount(sub);
    if (sub->payer && sub->unpaid)
        sub->payer->unpaid--;
    else if (sub->payer)
        worker_small_release(sub->payer, submission_bytes(sub));
    if (sub->again && nunused < AGAIN_MAX) {
        TAILQ_INSERT_HEAD(&unused, sub, link);
        nunused++;
    } else {
        free(sub);
    }
}

void order_lose(struct member *m)
{
    comm_abort(m->comm, -ENOMEM, "rank %d: no memory for one of its operators", m->rank);
}

/* The answer of an operator over the socket. */
static void submit_reply(struct session *s, uint64_t id, int status, const char *text, const int64_t *values, int nvalues)
{
    struct {
        struct fcc_submit_reply r;
        int64_t more[FCC_MAX_RANKS - FCC_SLOT_VALUES];
    } m;
    int more = nvalues > FCC_SLOT_VALUES ? nvalues - FCC_SLOT_VALUES : 0;

    m.r = (struct fcc_submit_reply){
        .reply.msg = {.type = FCC_MSG_SUBMIT | FCC_REPLY, .id = id}, .reply.status = status, .nvalues = (uint32_t)nvalues};
    if (values) {
        memcpy(m.r.values, values, (size_t)(nvalues - more) * sizeof(values[0]));
        memcpy(m.more, values + nvalues - more, (size_t)more * sizeof(values[0]));
    }
    if (status)
        text_copy(m.r.reply.text, sizeof(m.r.reply.text), text);
    session_reply(s, &m.r.reply, sizeof(m.r) + (size_t)more * sizeof(values[0]), NULL, 0);
}

static void request_answer(struct session *s, uint64_t id, uint32_t slot, int status, const char *text, const int64_t *values,
                           int nvalues)
{
    if (slot != FCC_NO_SLOT)
        slot_complete(s, slot, id, status, text, values, nvalues);
    else
        submit_reply(s, id, status, text, values, nvalues);
}

/* A request that is refused before it has become a submission. */
static void request_refuse(struct session *s, const struct fcc_submit *m, const struct error *e)
{
    if (m->slot != FCC_NO_SLOT && m->stream) {
        slot_stream_finish(s, m->slot, m->stream);
        gpus_stream_finish(s, UINT32_MAX, m->slot, m->stream); /* it is not known what waits for which */
    }
    request_answer(s, m->msg.id, m->slot, e->status, e->text, NULL, 0);
}

static uint64_t slot_bit(uint32_t slot)
{
    return UINT64_C(1) << slot;
}

void submission_tell(struct submission *sub, int status, const char *text, const int64_t *values, int nvalues)
{
    struct fcc_msg m = {.type = FCC_MSG_BUFFER_ALLOC, .id = sub->id};

    if (sub->session && sub->kind == SUBMISSION_OPERATOR && sub->slot != FCC_NO_SLOT && sub->stream) {
        sub->session->stream_slots &= ~slot_bit(sub->slot);
        if (!sub->gpu_words)
            slot_stream_finish(sub->session, sub->slot, sub->stream);
        else if (status) /* otherwise its kernel has */
            gpus_stream_finish(sub->session, sub->own_gpus, sub->slot, sub->stream);
    }
    if (sub->session && sub->kind == SUBMISSION_OPERATOR)
        request_answer(sub->session, sub->id, sub->slot, status, text, values, nvalues);
    else if (sub->session)
        session_reply_status(sub->session, &m, status, text);
    sub->session = NULL; /* told */
}

static int submit_form_check(const struct fcc_submit *m, size_t length, struct error *e)
{
    if (length >= sizeof(*m) && m->ntensors <= FCC_MAX_TENSORS && m->nattrs <= FCC_MSG_MAX &&
        sizeof(*m) + m->ntensors * sizeof(struct fcc_wire_tensor) + (uint64_t)m->nattrs * sizeof(int64_t) == length)
        return 0;
    return error_set(e, -EPROTO, "submit: %zu bytes with %u tensors and %u words of attributes: they do not add up", length,
                     length >= sizeof(*m) ? m->ntensors : 0, length >= sizeof(*m) ? m->nattrs : 0);
}

/* A hash of what the operator is and where its tensors lie, without what differs between two requests of the same. Whoever makes two of its own
 * collide harms its own job. */
uint64_t submission_stamp(const struct fcc_submit *m, size_t length)
{
    uint64_t h = (uint64_t)m->op << 32 | (uint64_t)m->schedule << 24 | (uint64_t)m->ntensors << 16 | m->prepare, word;
    const unsigned char *bytes = (const unsigned char *)(m + 1);

    for (size_t at = 0; at + sizeof(word) <= length - sizeof(*m); at += sizeof(word)) {
        memcpy(&word, bytes + at, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* The operator of a refused request; an arbitrary one if the number is invalid. */
static enum fcc_op op_or_any(unsigned op)
{
    return op < FCC_OP_COUNT ? (enum fcc_op)op : (enum fcc_op)0;
}

/* A request that the client's library has refused has the reason in place of arguments. */
static void refusal_take(struct submission *sub, const struct member *member, const struct fcc_submit *m)
{
    const char *name = m->op >= FCC_OP_COUNT            ? "fcc_buffer_alloc (symmetric)"
                       : m->prepare == FCC_PREPARE_ONLY ? op_prepare_name((enum fcc_op)m->op)
                                                        : op_name((enum fcc_op)m->op);
    size_t bytes = m->nattrs * sizeof(int64_t);
    char text[FCC_TEXT_MAX];

    text_copy(text, bytes < sizeof(text) ? bytes + 1 : sizeof(text), (const char *)(m + 1));
    sub->args.op = op_or_any(m->op);
    (void)error_set(&sub->error, -(int)(m->refused <= FCC_REFUSED_MAX ? m->refused : EPROTO), "rank %d: %s: %.400s",
                    member->rank, name, text_clean(text));
}

struct submission *submission_remote(struct member *m, const struct fcc_submit *submit, size_t length,
                                     const struct remote_request *from, struct error *e)
{
    struct submission *sub;

    if (from->kind == SUBMISSION_OPERATOR && submit_form_check(submit, length, e))
        return NULL;
    sub = submission_new(NULL, (enum submission_kind)from->kind, 0, from->kind == SUBMISSION_OPERATOR ? submit->nattrs : 0);
    if (!sub) {
        (void)error_set(e, -ENOMEM, "no memory for a request");
        return NULL;
    }
    sub->alloc_bytes = from->alloc_bytes;
    sub->prepare = from->kind == SUBMISSION_OPERATOR && submit->prepare == FCC_PREPARE_ONLY;
    sub->sample = from->sample;
    if (from->status)
        (void)error_set(&sub->error, from->status, "%.*s", (int)sizeof(from->text) - 1, from->text);
    if (from->kind != SUBMISSION_OPERATOR)
        return sub;
    sub->stamp = submission_stamp(submit, length);
    if (submit->refused) {
        refusal_take(sub, m, submit);
        if (from->status) /* as its own node has put it */
            (void)error_set(&sub->error, from->status, "%.*s", (int)sizeof(from->text) - 1, from->text);
        return sub;
    }
    /* The rank's own node has accepted the request. If this node does not, that is an error of its own. */
    struct error why = {.status = 0};
    if (submission_resolve(sub, m, submit, from, &why) && !from->status) {
        *e = why;
        submission_free(sub);
        return NULL;
    }
    return sub;
}

static bool words_are_there(const struct session *s, const struct comm *c)
{
    return c->dev.words_gpus && (s->words_gpus & c->dev.words_gpus) == c->dev.words_gpus;
}

/* Log once for each rank that its streams use words in host memory although words in the memory of GPUs are possible. */
static void words_note(struct member *m, bool gpu_words)
{
    if (!m->words_noted && !gpu_words && m->comm->dev.words_gpus)
        log_info(
            "comm %u: rank %d: its streams hand over by words in the host's memory, not in that of GPUs: its program wants it "
            "so, or its driver did not let it have those",
            m->comm->number, m->rank);
    m->words_noted = true;
}

/* Queue a request that is only an error: *told, which the client knows already; NULL: the one in *m. Other nodes get only the error. */
static void refusal_accept(struct session *s, struct member *member, const struct fcc_submit *m, const struct error *told)
{
    struct fcc_submit bare = {.msg = {.length = sizeof(bare), .type = FCC_MSG_SUBMIT}, .op = m->op, .refused = EPROTO};
    struct submission *sub = submission_new(told ? NULL : s, SUBMISSION_OPERATOR, m->msg.id, 0);

    if (!sub) {
        order_lose(member);
        return;
    }
    sub->slot = m->slot;
    sub->number = member->operators;
    sub->prepare = m->prepare == FCC_PREPARE_ONLY && m->op < FCC_OP_COUNT;
    if (told) {
        sub->args.op = op_or_any(m->op);
        (void)error_set(&sub->error, told->status, "rank %d: %.400s", member->rank, told->text);
    } else {
        refusal_take(sub, member, m);
    }
    comm_submit(member, sub, &bare);
}

/* Note the request's stream, and the run that is on it. */
static void submission_place(struct submission *sub, struct member *member, const struct fcc_submit *m)
{
    struct session *s = sub->session;

    sub->slot = m->slot;
    sub->stream = m->stream;
    sub->prepare = m->prepare == FCC_PREPARE_ONLY;
    sub->asks = m->prepare == FCC_PREPARE_ASK && m->stream;
    sub->request = m->bound;
    sub->number = member->operators;
    if (m->prepare == FCC_PREPARE_RUN && m->bound && m->stream) {
        sub->bound = m->bound;
        sub->run = m->run;
        if (!prepared_holds(member, m->bound))
            session_break(s, "it runs what was not bound");
    }
    sub->gpu_words = m->gpu_words && words_are_there(s, member->comm);
    sub->own_gpus = sub->gpu_words ? 1u << member->dev->device->index : 0;
    if (m->gpu_words && !sub->gpu_words)
        session_break(s, "it names stream words that it has not got");
    if (!m->stream)
        return;
    words_note(member, sub->gpu_words);
    if (m->slot >= FCC_SLOTS)
        return;
    /* A GPU may still wait for the slot's word to reach the previous operator's value; storing the new value could block it. */
    if (s->stream_slots & slot_bit(m->slot)) {
        (void)error_set(&sub->error, -EBUSY, "rank %d: %s: slot %u: has another operator, which is not over", member->rank,
                        op_name((enum fcc_op)m->op), m->slot);
        session_break(s, "it uses a slot again whose operator on a stream is not over");
    }
    s->stream_slots |= slot_bit(m->slot);
}

void submission_accept(struct session *s, const struct fcc_submit *m, size_t length)
{
    struct member *member = member_find(s, m->comm);
    struct submission *sub;
    struct error e;
    int malformed;

    error_clear(&e);
    malformed = submit_form_check(m, length, &e);
    if (!member && !malformed)
        (void)error_set(&e, -ENOENT, "comm: %u: no such communicator in this session", m->comm);
    bool outside = !member || member_may_use(member, &e);
    if (outside || malformed)
        request_refuse(s, m, &e);
    if (outside)
        return;
    member->operators++;
    if (malformed || m->refused) {
        refusal_accept(s, member, m, malformed ? &e : NULL);
        return;
    }
    sub = submission_new(s, SUBMISSION_OPERATOR, m->msg.id, m->nattrs);
    if (!sub) {
        (void)error_set(&e, -ENOMEM, "submit: out of memory");
        request_refuse(s, m, &e);
        order_lose(member);
        return;
    }
    submission_place(sub, member, m);
    if (sub->prepare && m->stream)
        (void)error_set(&sub->error, -EINVAL, "rank %d: %s: with a stream: not allowed", member->rank, submission_name(sub));
    else if (m->stream && (m->slot == FCC_NO_SLOT || member->comm->dev.ops->number == FCC_DEVICE_CPU))
        (void)error_set(&sub->error, -EINVAL, "rank %d: %s: stream: allowed for ranks on a GPU, with a completion slot",
                        member->rank, op_name((enum fcc_op)m->op));
    else if (m->slot != FCC_NO_SLOT && member->comm->nranks > FCC_SLOT_VALUES)
        (void)error_set(&sub->error, -EINVAL, "rank %d: %s: slot: allowed with at most %d ranks", member->rank,
                        op_name((enum fcc_op)m->op), FCC_SLOT_VALUES);
    else if (submission_resolve(sub, member, m, NULL, &e))
        (void)error_set(&sub->error, e.status, "rank %d: %s: %s", member->rank, submission_name(sub), e.text);
    else if (op_is_step(sub->args.op) && step_dtypes(&sub->args) && !sub->prepare)
        (void)error_set(&sub->error, -EINVAL, "rank %d: %s: dtypes: present: allowed where the step is bound", member->rank,
                        submission_name(sub));
    else
        (void)overlap_nodes_check(sub, member, &sub->error);
    if (member->comm->nodes)
        sub->stamp = submission_stamp(m, length);
    comm_submit(member, sub, m);
}
