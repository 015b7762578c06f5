/* SPDX-License-Identifier: MIT
 *
 * bind.c - binds an operator: each rank gets a plan for its plug-in, and control memory for its kernels.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/worker/comm/bound/inside.h"
#include "daemon/worker/comm/buffer.h"
#include "daemon/worker/comm/turn.h"
#include "daemon/worker/device/device.h"
#include "daemon/worker/device/gpu/call.h"
#include "daemon/worker/device/gpu/code/code.h"
#include "daemon/worker/device/gpu/gpus.h"
#include "daemon/worker/engine/endpoint.h"
#include "kernels/gpu/bound.h"
#include "kernels/plan/compute/step.h"
#include "kernels/plan/spec.h"
#include "proto/session.h"

/* Whether operators can be bound in this communicator. */
static int ranks_check(const struct comm *c, const char *name, struct error *e)
{
    uint64_t gpus = 0;

    if (c->nodes)
        return error_set(e, -EOPNOTSUPP, "%s: the communicator's ranks are on several nodes: allowed on one", name);
    if (c->dev.ops->number != FCC_DEVICE_CUDA)
        return error_set(e, -EOPNOTSUPP, "%s: the communicator's ranks are on %s devices: allowed on cuda", name,
                         c->dev.ops->kind);
    if (!strcmp(c->worker->config.gpu_sharing, "ipc"))
        return error_set(e, -EOPNOTSUPP, "%s: GPU_SHARING is ipc: its memory ends with the process that made it", name);
    if (!strcmp(c->worker->config.gpu_bind, "shared"))
        return 0;
    for (int r = 0; r < c->nranks; r++) {
        uint64_t bit = UINT64_C(1) << c->members[r].dev->device->index;
        if (gpus & bit)
            return error_set(e, -EOPNOTSUPP, "%s: rank %d: another rank is on its GPU, %d: each must have its own", name, r,
                             c->members[r].dev->device->index);
        gpus |= bit;
    }
    return 0;
}

static int request_check(const struct comm *c, bool repeated, struct error *e)
{
    const struct op_args *args = &c->members[0].next->args;
    const char *name = submission_name(c->members[0].next);
    enum op_bind bind = (enum op_bind)op_spec(args->op)->bind;
    char names[256];

    if (repeated && bind == BIND_REPEATED)
        return ranks_check(c, name, e);
    if (op_is_step(args->op) && !step_dtypes(args))
        return error_set(e, -EINVAL, "%s: dtypes: absent: allowed are a step's", name);
    if (bind != BIND_PREPARED)
        return error_set(e, -EOPNOTSUPP, "%s: allowed for %s", name, op_names(BIND_PREPARED, " and ", names, sizeof(names)));
    if (args->schedule > FCC_SCHEDULE_SEQUENTIAL)
        return error_set(e, -EINVAL, "%s: schedule: %s: allowed are auto, fused and sequential", name,
                         schedule_name(args->schedule));
    return ranks_check(c, name, e);
}

/* A number in a tensor's memory; what is absent has none. */
static uint64_t place_in(uint64_t address, const struct buffer *b)
{
    return b ? address - (uint64_t)(uintptr_t)b->memory.data : 0;
}

/* What gpu_rank_fill() has filled in are this process's addresses. repeated: each run brings its own rank's. */
static void places_set(struct gpu_prepared_plan *plan, const struct comm *c, const struct op_args args[], bool repeated)
{
    struct buffer *const *own = c->members[plan->rank].next->buffers;
    int result = op_spec(args[0].op)->result;

    for (int r = 0; r < c->nranks; r++) {
        struct gpu_input in;
        gpu_rank_fill(&args[r], &plan->out[r], &in);
        plan->out[r].data = result < 0 ? 0 : place_in(plan->out[r].data, c->members[r].next->buffers[result]);
        if (plan->shape.compute == COMPUTE_STEP)
            plan->out[r].in = place_in(plan->out[r].in, c->members[r].next->buffers[STEP_IN]);
        if (r == (int)plan->rank)
            plan->in = in;
    }
    plan->in.failure = 0; /* operators that can be bound have no data that could be wrong */
    if (repeated)
        plan->out[plan->rank].data = 0;
    if (plan->shape.compute == COMPUTE_STEP) {
        plan->in.vector.in = 0;
    } else if (plan->shape.compute == COMPUTE_GEMV) {
        plan->in.gemv.x = repeated ? 0 : place_in(plan->in.gemv.x, own[FCC_GEMV_X]);
        plan->in.gemv.w = repeated ? 0 : place_in(plan->in.gemv.w, own[FCC_GEMV_W]);
    } else if (plan->shape.compute == COMPUTE_GEMM) {
        plan->in.gemm.a = repeated ? 0 : place_in(plan->in.gemm.a, own[FCC_GEMM_A]);
        plan->in.gemm.b = repeated ? 0 : place_in(plan->in.gemm.b, own[FCC_GEMM_B]);
    }
}

/* Whether the ranks are two whose GPUs NVLink joins, or that share one. */
static bool ranks_have_lines(const struct comm *c)
{
    const struct gpus *g = c->worker->gpus;

    if (c->nranks != 2)
        return false;
    const int first = c->members[0].dev->device->index, second = c->members[1].dev->device->index;
    return first == second || !strcmp(g->descriptions[first].links[second], "NVLink");
}

int sealed_make(const char *name, const void *data, size_t bytes, int *fd, struct error *e)
{
    int file = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (file < 0 || write(file, data, bytes) != (ssize_t)bytes ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
        (void)error_set(e, -ENOMEM, "prepare: %s of %zu bytes: %s", name, bytes, strerror(errno));
        if (file >= 0)
            (void)close(file);
        return e->status;
    }
    *fd = file;
    return 0;
}

/* A rank's plan as a sealed file. */
static int plan_write(const struct launch *l, int rank, uint64_t slots_bytes, const struct op_args args[], bool repeated,
                      int *fd, struct error *e)
{
    struct gpu_prepared_plan *p = NULL;
    int status = gpu_prepared_make(l->problem, l->runs[rank].plan, args, slots_bytes, &p, e);

    if (status)
        return status;
    places_set(p, launch_comm(l), args, repeated);
    p->lines = p->shape.exchange == EXCHANGE_RINGS && ranks_have_lines(launch_comm(l));
    status = sealed_make("fccd-plan", p, p->bytes, fd, e);
    free(p);
    return status;
}

/* A program's step: its kernel is made from now on, and its input is the other ranks', too, if they add it up. */
static int step_make(struct prepared *p, const struct launch *l, const struct member *m, const struct op_args args[],
                     struct error *e)
{
    struct prepared_rank *rank = &p->ranks[m->rank];
    const struct buffer *in = rank->buffers[STEP_IN];
    const struct gpus *g = p->comm->worker->gpus;
    struct error why = {0};
    int status = gpu_code_ask(p->comm->worker->gpus, m->dev->device->index, &args[m->rank], p->comm->nranks, &rank->code, &why);

    if (!status && step_reduces(l->problem) && in && p->comm->nranks > 1)
        status = g->plugin->memory_share(&in->memory.gpu, &rank->input_fd, &why);
    return status ? error_set(e, status, "rank %d: prepare: %s", m->rank, why.text) : 0;
}

/* Take an index in the session memory for the operator's words. */
static int place_take(struct session *s, const struct prepared *p, int rank, uint32_t *place, struct error *e)
{
    uint64_t *taken = p->repeated ? &s->repeated_places : &s->prepared_places;

    if (*taken == UINT64_MAX)
        return error_set(e, -ENOMEM, "rank %d: prepare: its context has %d prepared operators: no more are allowed", rank,
                         FCC_PREPARED_MAX);
    *place = (uint32_t)__builtin_ctzll(~*taken);
    *taken |= UINT64_C(1) << *place;
    *place += p->repeated ? FCC_PREPARED_MAX : 0;
    struct fcc_binding *words = &s->memory->bindings[*place];
    atomic_store_explicit(&words->number, 0, memory_order_relaxed);
    atomic_store_explicit(&words->adopted, 0, memory_order_release);
    atomic_store_explicit(&words->first, 0, memory_order_release);
    atomic_store_explicit(&words->until, 0, memory_order_release);
    if (!p->repeated) {
        atomic_store_explicit(&words->begun, 0, memory_order_relaxed);
        atomic_store_explicit(&words->ended, 0, memory_order_relaxed);
        atomic_store_explicit(&words->clash, 0, memory_order_relaxed);
    }
    return 0;
}
static_assert(FCC_PREPARED_MAX == 64 && FCC_REPEATED_MAX == 64, "the session has a bit for each");

/* The runs of all ranks are numbered from one number on. A stream may still wait for the end of a run that had a rank's place
 * before, so `ended` must not fall: the number is the largest that the places have. */
static void runs_number(struct prepared *p)
{
    uint32_t most = 0;

    for (int r = 0; r < p->comm->nranks; r++) {
        struct fcc_binding *words = &p->comm->members[r].session->memory->bindings[p->ranks[r].place];
        uint32_t ended = (uint32_t)atomic_load_explicit(&words->ended, memory_order_relaxed);
        most = r == 0 || (int32_t)(ended - most) > 0 ? ended : most;
    }
    for (int r = 0; r < p->comm->nranks; r++) {
        struct fcc_binding *words = &p->comm->members[r].session->memory->bindings[p->ranks[r].place];
        atomic_store_explicit(&words->begun, most, memory_order_relaxed);
        atomic_store_explicit(&words->ended, most, memory_order_relaxed);
    }
    p->runs = most;
}

void prepared_place_free(struct session *s, uint32_t place)
{
    if (place < FCC_PREPARED_MAX)
        s->prepared_places &= ~(UINT64_C(1) << place);
    else
        s->repeated_places &= ~(UINT64_C(1) << (place - FCC_PREPARED_MAX));
}

static int rank_make(struct prepared *p, const struct launch *l, struct member *m, uint64_t slots_bytes,
                     const struct op_args args[], struct error *e)
{
    struct prepared_rank *rank = &p->ranks[m->rank];
    struct error why = {0};
    uint32_t shared = l->runs[m->rank].plan->shared;
    int status = place_take(m->session, p, m->rank, &rank->place, e);

    if (status)
        return status;
    rank->held = true;
    p->holders++;
    for (int t = 0; t < FCC_MAX_TENSORS; t++)
        if ((!p->repeated || shared >> t & 1) && (rank->buffers[t] = m->next->buffers[t]))
            rank->buffers[t]->refs++;
    if (device_memory_alloc(m->dev->device, GPU_PREPARED_SLOTS_AT + 2 * slots_bytes + l->runs[m->rank].plan->staging_bytes,
                            &rank->area, &rank->area_fd, &why))
        return error_set(e, why.status, "rank %d: prepare: memory for flags and words: %s", m->rank, why.text);
    if (rank->area.kind != FCC_MEMORY_GPU_FD)
        return error_set(e, -EOPNOTSUPP, "rank %d: prepare: its GPU's memory is not shared by file descriptors", m->rank);
    if (op_is_step(p->op) && step_make(p, l, m, args, e))
        return e->status;
    return plan_write(l, m->rank, slots_bytes, args, p->repeated, &rank->plan_fd, e);
}

static struct prepared *prepared_new(struct comm *c, enum fcc_op op)
{
    struct prepared *p = calloc(1, sizeof(*p) + (size_t)c->nranks * sizeof(p->ranks[0]));

    if (!p)
        return NULL;
    p->comm = c;
    p->op = op;
    p->number = ++c->prepared_number;
    for (int r = 0; r < c->nranks; r++)
        p->ranks[r].plan_fd = p->ranks[r].area_fd = p->ranks[r].input_fd = p->ranks[r].code_fd = -1;
    return p;
}

/* Undo a binding that has failed. */
static void prepared_undo(struct prepared *p)
{
    for (int r = 0; r < p->comm->nranks; r++)
        if (p->ranks[r].held)
            prepared_place_free(p->comm->members[r].session, p->ranks[r].place);
    prepared_free(p);
}

/* Tell the ranks: its number, the place of the words, and what the operator itself has to say. */
static void ranks_tell(const struct prepared *p, const struct launch *l)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        int64_t values[2 + GPU_MAX_RANKS] = {p->number, p->ranks[r].place};
        int n = op_values(l->problem, r, values + 2);
        assert(2 + n <= FCC_SLOT_VALUES);
        submission_tell(p->comm->members[r].next, 0, "", values, 2 + n);
    }
}

/* Announce it to the clients, which see that when they look. */
static void ranks_announce(const struct prepared *p)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        const struct member *m = &p->comm->members[r];
        struct fcc_binding *words = &m->session->memory->bindings[p->ranks[r].place];
        /* Released: behind the 0 that place_take() has put into `number`. See session.h. */
        atomic_store_explicit(&words->comm, m->handle, memory_order_release);
        atomic_store_explicit(&words->request, m->next->request, memory_order_release);
        atomic_store_explicit(&words->number, p->number, memory_order_release);
        (void)atomic_fetch_add_explicit(&m->session->memory->announced, 1, memory_order_release);
    }
}

/* c->problem has been matched: the plans, and what each rank has of it. */
static int ranks_make(struct prepared *p, const struct launch *l, const struct op_args args[], struct error *e)
{
    struct comm *c = p->comm;
    uint64_t slots_bytes = 0;
    int status = 0;

    for (int r = 0; r < c->nranks && !status; r++) {
        const struct plan *plan = l->runs[r].plan;
        slots_bytes = plan->packet_bytes > slots_bytes ? plan->packet_bytes : slots_bytes;
        if (p->repeated && plan->shared & ~op_shared(op_spec(p->op)))
            status = error_set(e, -EOPNOTSUPP, "its ranks store into each other's results, which may lie elsewhere each time");
    }
    for (int r = 0; r < c->nranks && !status; r++)
        status = rank_make(p, l, &c->members[r], slots_bytes, args, e);
    return status || p->repeated ? status : records_open(p, e);
}

/* The schedule to bind c->problem with: what was asked for; for `auto` see tune_best(), or fused while that is not known. -EAGAIN: an
 * operator that is repeated is bound when it is known. */
static int kind_find(const struct comm *c, enum fcc_schedule_kind asked, bool repeated, enum fcc_schedule_kind *out)
{
    bool computes = op_spec(c->problem->op)->compute != COMPUTE_NONE;

    *out = asked == FCC_SCHEDULE_AUTO ? FCC_SCHEDULE_FUSED : asked;
    if (asked != FCC_SCHEDULE_AUTO || !computes)
        return 0;
    struct tune_class class = launch_class(c);
    return tune_best(c->tune, &class, out) || !repeated ? 0 : -EAGAIN;
}

/* repeated: by the ranks' asking, and it is announced; otherwise by the program's wish, and the ranks are told. */
static int make(struct comm *c, bool repeated, struct error *e)
{
    struct op_args *args = c->args;
    enum fcc_schedule_kind kind = FCC_SCHEDULE_FUSED;
    struct prepared *p;
    int status = request_check(c, repeated, e);

    assert(!c->dev.current && c->nranks > 0);
    for (int r = 0; r < c->nranks; r++)
        op_args_copy(&args[r], &c->members[r].next->args);
    if (!status)
        status = launch_match(c, args, e);
    if (!status)
        status = kind_find(c, args[0].schedule, repeated, &kind);
    struct launch *l = status ? NULL : launch_get(c, kind, args[0].route, e);
    if (!l)
        return status ? status : e->status;
    p = prepared_new(c, args[0].op);
    if (!p) {
        launch_keep(c, l);
        return error_set(e, -ENOMEM, "%s: out of memory", submission_name(c->members[0].next));
    }
    p->repeated = repeated;
    p->request = c->members[0].next->request;
    status = ranks_make(p, l, args, e);
    if (!status)
        status = prepared_watch_begin(c, e);
    if (status) {
        prepared_undo(p);
        launch_keep(c, l);
        return status;
    }
    LIST_INSERT_HEAD(&c->prepared, p, link);
    if (!repeated) {
        ranks_tell(p, l);
        launch_keep(c, l); /* the plans may be used again */
        return 0;
    }
    p->planned = l;
    p->since = c->operators;
    c->adopting = p;
    runs_number(p);
    ranks_announce(p);
    return 0;
}

int prepared_make(struct comm *c, struct error *e)
{
    return make(c, false, e);
}

int prepared_make_repeated(struct comm *c, struct error *e)
{
    return make(c, true, e);
}
