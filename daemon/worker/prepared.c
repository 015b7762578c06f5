/* SPDX-License-Identifier: MIT */
#include "prepared.h"

#include <errno.h>
#include <fcntl.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device.h"
#include "gpu_call.h"
#include "gpu_node.h"
#include "gpu_prepared.h"
#include "gpu_stream.h"
#include "plugin.h"

#define WATCH_MS 50 /* between looks at the runs */

/* How far a rank's runs are: numbers' lower halves. */
struct progress {
    uint32_t begun, ended;
};

/* What one rank has of it. */
struct prepared_rank {
    bool held;      /* it has not freed it */
    uint32_t place; /* of its words in the session's memory */
    int plan_fd;
    struct device_memory area;
    int area_fd;
    struct buffer *buffers[FCC_MAX_TENSORS]; /* a reference each */
    struct progress last;                    /* when it freed it */
    /* The watch's: the run that had begun when it looked last, and since when. */
    uint32_t seen;
    uint64_t since_ns;
};

struct prepared {
    LIST_ENTRY(prepared) link; /* comm.prepared */
    struct comm *comm;
    uint32_t number;
    enum fcc_op op;
    int holders;
    struct prepared_rank ranks[]; /* [comm.nranks] */
};

static struct prepared *prepared_find(const struct comm *c, uint32_t number)
{
    struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link)
        if (p->number == number)
            return p;
    return NULL;
}

static int result_tensor(enum fcc_op op)
{
    return op == FCC_OP_GEMV_ALL_REDUCE ? FCC_GEMV_Y : FCC_GEMM_C;
}

/* ---- the runs ---- */

/* What a rank's kernels have said, or had when it let go of the operator. */
static struct progress progress_of(const struct prepared *p, int r)
{
    const struct prepared_rank *rank = &p->ranks[r];

    if (!rank->held)
        return rank->last;
    const struct fcc_prepared_words *words = &p->comm->members[r].session->memory->prepared[rank->place];
    return (struct progress){.begun = (uint32_t)atomic_load_explicit(&words->begun, memory_order_relaxed),
                             .ended = (uint32_t)atomic_load_explicit(&words->ended, memory_order_relaxed)};
}

static bool is_running(const struct prepared *p, int r, struct progress *out)
{
    *out = progress_of(p, r);
    return p->ranks[r].held && (int32_t)(out->begun - out->ended) > 0;
}

/* Has the rank not come to the run? One that is gone need not only have come, but have done its part. */
static bool is_missing(const struct prepared *p, int r, uint32_t run)
{
    struct progress at = progress_of(p, r);

    return (int32_t)((p->ranks[r].held ? at.begun : at.ended) - run) < 0;
}

bool prepared_awaits(const struct member *m, bool dead)
{
    const struct prepared *p;
    struct progress at, mine;

    LIST_FOREACH(p, &m->comm->prepared, link) {
        mine = progress_of(p, m->rank);
        for (int r = 0; r < m->comm->nranks; r++)
            if (r != m->rank && is_running(p, r, &at) && (int32_t)((dead ? mine.ended : mine.begun) - at.begun) < 0)
                return true;
    }
    return false;
}

/* "rank 1, rank 3": those that have not come to the run. Returns how many. */
static int ranks_missing(const struct prepared *p, uint32_t run, char *text, size_t room)
{
    size_t n = 0;
    int count = 0;

    text[0] = '\0';
    for (int r = 0; r < p->comm->nranks && n < room; r++)
        if (is_missing(p, r, run))
            n += (size_t)snprintf(text + n, room - n, "%srank %d", count++ ? ", " : "", r);
    return count;
}

/* ---- the end ---- */

static void prepared_free(struct prepared *p)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        struct prepared_rank *rank = &p->ranks[r];
        if (rank->plan_fd >= 0)
            (void)close(rank->plan_fd);
        if (rank->area_fd >= 0)
            (void)close(rank->area_fd);
        device_memory_free(p->comm->members[r].device, &rank->area);
        for (int t = 0; t < FCC_MAX_TENSORS; t++)
            if (rank->buffers[t])
                buffer_unref(rank->buffers[t]);
    }
    free(p);
}

/* A rank lets go of it: others' kernels may use its memory yet. */
static void rank_drop(struct prepared *p, const struct member *m)
{
    struct prepared_rank *rank = &p->ranks[m->rank];

    if (!rank->held)
        return;
    rank->last = progress_of(p, m->rank);
    rank->held = false;
    m->session->prepared_places &= ~(UINT64_C(1) << rank->place);
    if (--p->holders)
        return;
    LIST_REMOVE(p, link);
    prepared_free(p);
}

int prepared_drop(struct member *m, uint32_t number, struct error *e)
{
    struct prepared *p = prepared_find(m->comm, number);

    if (!p || !p->ranks[m->rank].held)
        return error_set(e, -ENOENT, "prepared: %u: no such operator of this rank", number);
    rank_drop(p, m);
    return 0;
}

void prepared_leave(struct member *m)
{
    struct prepared *p, *next;

    for (p = LIST_FIRST(&m->comm->prepared); p; p = next) {
        next = LIST_NEXT(p, link);
        rank_drop(p, m);
    }
}

void prepared_close(struct comm *c)
{
    struct prepared *p;

    while ((p = LIST_FIRST(&c->prepared))) {
        LIST_REMOVE(p, link);
        prepared_free(p);
    }
    if (c->prepared_watch)
        event_free(c->prepared_watch);
    c->prepared_watch = NULL;
}

void prepared_abort(struct comm *c)
{
    const struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link)
        for (int r = 0; r < c->nranks; r++)
            gpus_word_store(c->worker->gpus, c->members[r].device->index,
                            (uint64_t)(uintptr_t)p->ranks[r].area.data + GPU_PREPARED_FAILURE_AT, UINT64_MAX);
}

/* ---- watching ---- */

/* One rank's run: has it taken too long, or does it wait for a rank that is gone? True: the communicator has been aborted. */
static bool run_watch(struct prepared *p, int r, uint64_t now)
{
    struct comm *c = p->comm;
    struct prepared_rank *rank = &p->ranks[r];
    struct progress at;
    char missing[256];

    if (!is_running(p, r, &at)) {
        rank->since_ns = 0;
        return false;
    }
    if (!rank->since_ns || rank->seen != at.begun) {
        rank->seen = at.begun;
        rank->since_ns = now;
    }
    int count = ranks_missing(p, at.begun, missing, sizeof(missing));
    if (count && c->present < c->nranks && c->error.status) {
        comm_abort(c, c->error.status, "%s", c->error.text); /* who, and how he went */
    } else if (count && c->present < c->nranks) {
        comm_abort(c, -ECONNABORTED, "%s, prepared as %u, run %u: %s has left the communicator", op_name(p->op), p->number,
                   at.begun, missing);
    } else if (now - rank->since_ns < (uint64_t)c->time_limit_ms * 1000000u) {
        return false;
    } else if (count) {
        comm_abort(c, -ETIMEDOUT, "%s, prepared as %u, run %u: %s did not come within the time limit of %u ms", op_name(p->op),
                   p->number, at.begun, missing, c->time_limit_ms);
    } else {
        comm_abort(c, -ETIMEDOUT, "%s, prepared as %u, run %u: rank %d ran longer than the time limit of %u ms", op_name(p->op),
                   p->number, at.begun, r, c->time_limit_ms);
    }
    return true;
}

static void runs_watch(evutil_socket_t sock, short what, void *arg)
{
    struct comm *c = arg;
    uint64_t now = clock_ns();
    struct prepared *p;

    (void)sock, (void)what;
    if (c->state != COMM_ACTIVE || LIST_EMPTY(&c->prepared)) {
        (void)event_del(c->prepared_watch);
        return;
    }
    LIST_FOREACH(p, &c->prepared, link)
        for (int r = 0; r < c->nranks; r++)
            if (run_watch(p, r, now))
                return;
}

static int watch_begin(struct comm *c, struct error *e)
{
    static const struct timeval period = {.tv_usec = WATCH_MS * 1000};

    if (!c->prepared_watch)
        c->prepared_watch = event_new(c->worker->base, -1, EV_PERSIST, runs_watch, c);
    if (!c->prepared_watch || event_add(c->prepared_watch, &period))
        return error_set(e, -ENOMEM, "prepare: out of memory");
    return 0;
}

static struct json_object *run_describe(const struct prepared *p, uint32_t run, uint64_t since_ns)
{
    struct json_object *o = json_object_new_object(), *missing = json_object_new_array();

    for (int r = 0; r < p->comm->nranks; r++)
        if (is_missing(p, r, run))
            (void)json_object_array_add(missing, json_object_new_int(r));
    (void)json_object_object_add(o, "prepared", json_object_new_int64(p->number));
    (void)json_object_object_add(o, "op", json_object_new_string(op_name(p->op)));
    (void)json_object_object_add(o, "run", json_object_new_int64(run));
    (void)json_object_object_add(o, "since_ms", json_object_new_double(since_ns ? (double)(clock_ns() - since_ns) / 1e6 : 0));
    (void)json_object_object_add(o, "missing", missing);
    return o;
}

struct json_object *prepared_describe(const struct comm *c)
{
    struct json_object *list = NULL;
    const struct prepared *p;

    LIST_FOREACH(p, &c->prepared, link) {
        struct progress at;
        uint32_t newest = 0;
        uint64_t since_ns = 0;
        bool runs = false;
        for (int r = 0; r < c->nranks; r++) {
            if (!is_running(p, r, &at) || (runs && (int32_t)(at.begun - newest) <= 0))
                continue;
            runs = true;
            newest = at.begun;
            since_ns = p->ranks[r].seen == at.begun ? p->ranks[r].since_ns : 0;
        }
        if (runs && !list)
            list = json_object_new_array();
        if (runs)
            (void)json_object_array_add(list, run_describe(p, newest, since_ns));
    }
    return list;
}

/* ---- making ---- */

/* Whether the communicator's ranks can have such operators at all. */
static int ranks_check(const struct comm *c, const char *name, struct error *e)
{
    uint64_t gpus = 0;

    if (c->nodes)
        return error_set(e, -EOPNOTSUPP, "%s: prepare: the communicator's ranks are on several nodes: allowed on one", name);
    if (c->ops->number != FCC_DEVICE_CUDA)
        return error_set(e, -EOPNOTSUPP, "%s: prepare: the communicator's ranks are on %s devices: allowed on cuda", name,
                         c->ops->kind);
    if (!strcmp(c->worker->config.gpu_sharing, "ipc"))
        return error_set(e, -EOPNOTSUPP, "%s: prepare: GPU_SHARING is ipc: its memory ends with the process that made it",
                         name);
    for (int r = 0; r < c->nranks; r++) {
        uint64_t bit = UINT64_C(1) << c->members[r].device->index;
        if (gpus & bit)
            return error_set(e, -EOPNOTSUPP, "%s: prepare: rank %d: another rank is on its GPU, %d: each must have its own",
                             name, r, c->members[r].device->index);
        gpus |= bit;
    }
    return 0;
}

static int request_check(const struct comm *c, struct error *e)
{
    const struct op_args *args = &c->members[0].next->args;
    const char *name = op_name(args->op);

    if (args->op != FCC_OP_GEMV_ALL_REDUCE && args->op != FCC_OP_GEMM_ALL_TO_ALL)
        return error_set(e, -EOPNOTSUPP, "%s: prepare: allowed for gemv_all_reduce and gemm_all_to_all", name);
    if (args->schedule != FCC_SCHEDULE_AUTO && args->schedule != FCC_SCHEDULE_FUSED)
        return error_set(e, -EINVAL, "%s: prepare: schedule: %s: allowed are auto and fused", name,
                         schedule_name(args->schedule));
    return ranks_check(c, name, e);
}

/* A number in a tensor's memory; what is absent has none. */
static uint64_t place_in(uint64_t address, const struct buffer *b)
{
    return b ? address - (uint64_t)(uintptr_t)b->memory.data : 0;
}

/* What gpu_rank() has filled in are this process's addresses. */
static void places_set(struct gpu_prepared_plan *plan, const struct comm *c, const struct op_args args[])
{
    const struct op *op = op_get(args[0].op);
    struct buffer *const *own = c->members[plan->rank].next->buffers;

    for (int r = 0; r < c->nranks; r++) {
        struct gpu_input in;
        op->gpu_rank(&args[r], &plan->out[r], &in);
        plan->out[r].data = place_in(plan->out[r].data, c->members[r].next->buffers[result_tensor(args[0].op)]);
        if (r == (int)plan->rank)
            plan->in = in;
    }
    plan->in.failure = 0; /* these operators have no data that could be wrong */
    if (args[0].op == FCC_OP_GEMV_ALL_REDUCE) {
        plan->in.gemv.x = place_in(plan->in.gemv.x, own[FCC_GEMV_X]);
        plan->in.gemv.w = place_in(plan->in.gemv.w, own[FCC_GEMV_W]);
    } else {
        plan->in.gemm.a = place_in(plan->in.gemm.a, own[FCC_GEMM_A]);
        plan->in.gemm.b = place_in(plan->in.gemm.b, own[FCC_GEMM_B]);
    }
}

static uint64_t slots_at(void)
{
    return (GPU_FLAG_WORDS * sizeof(uint64_t) + 255) / 256 * 256;
}

/* A rank's plan as a sealed file. */
static int plan_write(const struct launch *l, int rank, uint64_t slots_bytes, const struct op_args args[], int *fd,
                      struct error *e)
{
    const struct plan *plan = l->runs[rank].plan;
    uint64_t slices = plan->nslices * sizeof(struct slice), groups = plan->ngroups * sizeof(struct signal_group);
    struct gpu_run run;
    int status = gpu_run_make(plan, &run, e);

    if (status)
        return status;
    struct gpu_prepared_plan *p = calloc(1, sizeof(*p) + slices + groups);
    if (!p)
        return error_set(e, -ENOMEM, "prepare: no memory for a plan of %u slices", plan->nslices);
    *p = (struct gpu_prepared_plan){.abi = GPU_PLUGIN_ABI,
                                    .rank = (uint32_t)rank,
                                    .bytes = sizeof(*p) + slices + groups,
                                    .only_slots = plan->only_slots,
                                    .ngroups = plan->ngroups,
                                    .slices = sizeof(*p),
                                    .groups = sizeof(*p) + slices,
                                    .slots_at = slots_at(),
                                    .slots_bytes = slots_bytes};
    gpu_shape_make(l->problem, l->runs[0].plan, &p->shape);
    memcpy(p->first, run.first, sizeof(p->first));
    memcpy(p->sets, run.sets, sizeof(p->sets));
    memcpy((unsigned char *)p + p->slices, run.slices, slices);
    if (groups) /* in one step there are none */
        memcpy((unsigned char *)p + p->groups, run.groups, groups);
    places_set(p, l->comm, args);
    int file = memfd_create("fccd-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || write(file, p, p->bytes) != (ssize_t)p->bytes ||
        fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
        status = error_set(e, -ENOMEM, "prepare: a plan of %llu bytes: %s", (unsigned long long)p->bytes, strerror(errno));
        if (file >= 0)
            (void)close(file);
    } else {
        *fd = file;
    }
    free(p);
    return status;
}

/* A place in the session's memory for its words. */
static int place_take(struct session *s, int rank, uint32_t *place, struct error *e)
{
    if (s->prepared_places == UINT64_MAX)
        return error_set(e, -ENOMEM, "rank %d: prepare: its context has %d prepared operators: no more are allowed", rank,
                         FCC_PREPARED_MAX);
    *place = (uint32_t)__builtin_ctzll(~s->prepared_places);
    s->prepared_places |= UINT64_C(1) << *place;
    atomic_store_explicit(&s->memory->prepared[*place].begun, 0, memory_order_relaxed);
    atomic_store_explicit(&s->memory->prepared[*place].ended, 0, memory_order_relaxed);
    return 0;
}
static_assert(FCC_PREPARED_MAX == 64, "session.prepared_places has a bit for each");

static int rank_make(struct prepared *p, const struct launch *l, struct member *m, uint64_t slots_bytes,
                     const struct op_args args[], struct error *e)
{
    struct prepared_rank *rank = &p->ranks[m->rank];
    struct error why = {0};
    int status = place_take(m->session, m->rank, &rank->place, e);

    if (status)
        return status;
    rank->held = true;
    p->holders++;
    for (int t = 0; t < FCC_MAX_TENSORS; t++)
        if ((rank->buffers[t] = m->next->buffers[t]))
            rank->buffers[t]->refs++;
    if (device_memory_alloc(m->device, slots_at() + 2 * slots_bytes, &rank->area, &rank->area_fd, &why))
        return error_set(e, why.status, "rank %d: prepare: memory for flags and words: %s", m->rank, why.text);
    if (rank->area.kind != FCC_MEMORY_GPU_FD)
        return error_set(e, -EOPNOTSUPP, "rank %d: prepare: its GPU's memory is not shared by file descriptors", m->rank);
    return plan_write(l, m->rank, slots_bytes, args, &rank->plan_fd, e);
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
        p->ranks[r].plan_fd = p->ranks[r].area_fd = -1;
    return p;
}

/* As if it had never been. */
static void prepared_undo(struct prepared *p)
{
    for (int r = 0; r < p->comm->nranks; r++)
        if (p->ranks[r].held)
            p->comm->members[r].session->prepared_places &= ~(UINT64_C(1) << p->ranks[r].place);
    prepared_free(p);
}

/* Tell the ranks: its number, the place of the words, and what the operator itself has to say. */
static void ranks_tell(const struct prepared *p, const struct launch *l)
{
    for (int r = 0; r < p->comm->nranks; r++) {
        int64_t values[2 + FCC_MAX_RANKS] = {p->number, p->ranks[r].place};
        int n = op_get(p->op)->values(l->problem, r, values + 2);
        assert(2 + n <= FCC_MAX_RANKS);
        submission_tell(p->comm->members[r].next, 0, "", values, 2 + n);
    }
}

int prepared_make(struct comm *c, struct error *e)
{
    struct op_args args[FCC_MAX_RANKS];
    uint64_t slots_bytes = 0;
    struct prepared *p;
    int status = request_check(c, e);

    assert(!c->current && c->nranks > 0);
    for (int r = 0; r < c->nranks; r++)
        op_args_copy(&args[r], &c->members[r].next->args);
    if (!status)
        status = launch_match(c, args, e);
    struct launch *l = status ? NULL : launch_get(c, FCC_SCHEDULE_FUSED, args[0].route, e);
    if (!l)
        return e->status;
    p = prepared_new(c, args[0].op);
    if (!p)
        status = error_set(e, -ENOMEM, "prepare: out of memory");
    for (int r = 0; r < c->nranks && !status; r++) {
        const struct plan *plan = l->runs[r].plan;
        slots_bytes = plan->slots_bytes > slots_bytes ? plan->slots_bytes : slots_bytes;
        if (plan->staging_bytes)
            status = error_set(e, -EOPNOTSUPP, "%s: prepare: its plan needs staging memory", op_name(args[0].op));
    }
    for (int r = 0; r < c->nranks && !status; r++)
        status = rank_make(p, l, &c->members[r], slots_bytes, args, e);
    if (!status)
        status = watch_begin(c, e);
    if (!status) {
        LIST_INSERT_HEAD(&c->prepared, p, link);
        ranks_tell(p, l);
    } else if (p) {
        prepared_undo(p);
    }
    launch_keep(c, l); /* its plans may serve again */
    return status;
}

/* ---- giving ---- */

static int result_give(const struct prepared *p, int rank, struct fcc_prepared_reply *out, int *fd, struct error *e)
{
    const struct buffer *b = p->ranks[rank].buffers[result_tensor(p->op)];

    if (!b || b->fd < 0)
        return error_set(e, -ENOENT, "prepared %u: rank %d: it has no result that others could store into", p->number, rank);
    out->memory = b->memory.kind;
    out->map_bytes = b->memory.bytes;
    *fd = b->fd;
    return 0;
}

int prepared_give(const struct member *m, const struct fcc_prepared_msg *msg, struct fcc_prepared_reply *out, int *fd,
                  struct error *e)
{
    const struct comm *c = m->comm;
    const struct prepared *p = prepared_find(c, msg->number);

    if (!p || !p->ranks[m->rank].held)
        return error_set(e, -ENOENT, "prepared: %u: no such operator of this rank", msg->number);
    if (msg->rank < 0 || msg->rank >= c->nranks || msg->what > FCC_PREPARED_RESULT)
        return error_set(e, -EINVAL, "prepared %u: memory %u of rank %d: allowed are 0 to %d of ranks 0 to %d", p->number,
                         msg->what, msg->rank, FCC_PREPARED_RESULT, c->nranks - 1);
    if (msg->what == FCC_PREPARED_RESULT)
        return result_give(p, msg->rank, out, fd, e);
    if (msg->what == FCC_PREPARED_AREA) {
        out->memory = p->ranks[msg->rank].area.kind;
        out->map_bytes = p->ranks[msg->rank].area.bytes;
        *fd = p->ranks[msg->rank].area_fd;
        return 0;
    }
    if (msg->rank != m->rank)
        return error_set(e, -EPERM, "prepared %u: rank %d asks for the plan of rank %d", p->number, m->rank, msg->rank);
    off_t bytes = lseek(p->ranks[m->rank].plan_fd, 0, SEEK_END);
    out->memory = FCC_MEMORY_HOST;
    out->map_bytes = (uint64_t)bytes;
    *fd = p->ranks[m->rank].plan_fd;
    return plugin_file(c->ops->kind, c->worker->config.plugin_dir, out->plugin, sizeof(out->plugin), e);
}
