/* SPDX-License-Identifier: MIT
 *
 * comm_join.c - how this process becomes a rank of a communicator: by an id, or by what its launcher says; and how others hear that it does not.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/comm.h"
#include "client/core/call.h"
#include "client/core/request.h"
#include "client/launchers/env.h"
#include "client/stream/bound.h"
#include "client/stream/stream.h"
#include "proto/version.h"

#define GPU_OPEN_MS 30000

/* `called` names the public function for error texts; NULL: the message's own. */
static int unique_id_ask(struct fcc_context *c, struct fcc_unique_id *out, const char *called)
{
    struct fcc_msg msg = {0};
    struct fcc_unique_id_reply reply;
    int status = context_call(c, CALL_OF(UNIQUE_ID, &msg, &reply, .called = called));

    if (!status)
        *out = reply.unique_id;
    return status;
}

int fcc_get_unique_id(fcc_context *context, struct fcc_unique_id *out)
{
    int status = context_check(context);

    if (status)
        return status;
    return out ? unique_id_ask(context, out, NULL) : last_error_set(-EINVAL, "out: NULL: not allowed");
}

static int comm_options_check(const struct fcc_comm_options *options)
{
    for (size_t i = 0; i < sizeof(options->reserved) / sizeof(options->reserved[0]); i++)
        if (options->reserved[i])
            return last_error_set(-EINVAL, "options.reserved[%zu]: %u: must be 0", i, options->reserved[i]);
    if (options->device_kind > FCC_DEVICE_CUDA)
        return last_error_set(-EINVAL, "options.device_kind: %u: allowed are %d (cpu), %d (any GPU), %d (hip) and %d (cuda)",
                              options->device_kind, FCC_DEVICE_CPU, FCC_DEVICE_GPU, FCC_DEVICE_HIP, FCC_DEVICE_CUDA);
    return 0;
}

/* How long joining may take. The worker waits for all ranks for one time limit, and a GPU's driver may need time to open
 * first. */
static int64_t join_patience_ms(const struct fcc_context *c, const struct fcc_comm_options *options)
{
    uint32_t default_ms = atomic_load_explicit(&c->memory->time_limit_ms, memory_order_relaxed);
    uint32_t limit_ms = options->time_limit_ms ? options->time_limit_ms : default_ms;
    uint32_t longest_ms = atomic_load_explicit(&c->time_limit_ms, memory_order_relaxed);
    int64_t limit = patience_ms(limit_ms > longest_ms ? limit_ms : longest_ms, LIMITS_OF_CALL);

    return options->device_kind == FCC_DEVICE_CPU ? limit : limit + GPU_OPEN_MS;
}

/* Checks the worker's reply: its device kind is the one asked for, and rank and GPU fit this library's arrays. */
static int joined_check(const struct fcc_comm *comm, const struct fcc_comm_options *options,
                        const struct fcc_comm_init_reply *reply)
{
    uint32_t asked = options->device_kind, kind = reply->device_kind;
    bool is_gpu = kind == FCC_DEVICE_HIP || kind == FCC_DEVICE_CUDA;
    int most = is_gpu ? GPU_MAX_RANKS : FCC_MAX_RANKS;

    if (comm->nranks < 1 || comm->nranks > most || comm->rank < 0 || comm->rank >= comm->nranks || !reply->comm)
        return last_error_set(-EPROTO, "rank %d: the worker made it a rank of communicator %u of %d: allowed are 1 to %d ranks",
                              comm->rank, reply->comm, comm->nranks, most);
    if (asked == FCC_DEVICE_GPU ? !is_gpu : kind != asked)
        return last_error_set(-EPROTO, "rank %d: the worker put it on a device of kind %u: it had asked for kind %u",
                              comm->rank, kind, asked);
    if (is_gpu && (reply->device < 0 || reply->device >= FCC_MAX_GPUS))
        return last_error_set(-EPROTO, "rank %d: the worker put it on GPU %d: allowed are 0 to %d", comm->rank, reply->device,
                              FCC_MAX_GPUS - 1);
    return 0;
}

/* The rank has joined: opens its GPU and maps what streams need. */
static int comm_open(struct fcc_comm *comm, const struct fcc_comm_options *options, const struct fcc_comm_init_reply *reply)
{
    struct fcc_context *c = comm->context;
    struct accelerator *a = NULL;
    int status = joined_check(comm, options, reply);

    if (status || reply->device_kind == FCC_DEVICE_CPU)
        return status;
    (void)pthread_mutex_lock(&c->accelerator_lock);
    status = accelerator_open(c, (enum fcc_device_kind)reply->device_kind, reply->device, reply->device_uuid, &a);
    if (!status)
        status = watch_start(c);
    if (!status)
        status = words_open(comm, a, reply->words_gpus);
    (void)pthread_mutex_unlock(&c->accelerator_lock);
    comm->accelerator = a;
    if (comm->words_gpus) {
        comm->buffer_forget = repeats_forget;
        prepared_load(comm);
    }
    return status;
}

/* The rank has joined but could not open its GPU: leaves. The other ranks get the reason with their next operator. Returns
 * status. */
static int comm_leave(struct fcc_comm *comm, int status)
{
    char reason[FCC_ABORT_REASON_MAX + 1];
    struct error why;

    (void)error_set(&why, status, "rank %d: %s", comm->rank, fcc_last_error());
    text_copy(reason, sizeof(reason), fcc_last_error());
    (void)comm_tell(comm, FCC_MSG_COMM_ABORT, reason);
    (void)comm_tell(comm, FCC_MSG_COMM_DESTROY, "");
    (void)pthread_mutex_destroy(&comm->order);
    (void)pthread_mutex_destroy(&comm->rings_lock);
    free(comm);
    return last_error_set(status, "%s", why.text);
}

/* A COMM_INIT message, with room behind it for the reason why the rank refuses to join. */
struct joining {
    struct fcc_comm_init_msg msg;
    char text[FCC_TEXT_MAX];
    const char *called;
};

/* Joins with a refusal, so that the ranks that wait for this one get `status` and `text`. Returns 0, or why they could not
 * be told. */
static int join_refuse(fcc_context *context, struct joining *j, int status, const char *text)
{
    struct fcc_reply reply;
    size_t length;
    int told;

    text_copy(j->text, sizeof(j->text), text);
    length = offsetof(struct joining, text) + (strlen(j->text) + sizeof(uint64_t)) / sizeof(uint64_t) * sizeof(uint64_t);
    j->msg.refused = (uint32_t)-status;
    told = context_call(context, &(struct call){.type = FCC_MSG_COMM_INIT,
                                                .msg = &j->msg.msg,
                                                .length = length,
                                                .reply = &reply,
                                                .reply_size = sizeof(reply),
                                                .called = j->called});
    return told == status ? 0 : told;
}

/* join_refuse() with the last error as text. The last error stays unchanged. Returns status. */
static int join_refuse_last(fcc_context *context, struct joining *j, int status)
{
    struct error why;

    (void)error_set(&why, status, "rank %d: %s", j->msg.rank, fcc_last_error());
    (void)join_refuse(context, j, status, fcc_last_error());
    return last_error_set(status, "%s", why.text);
}

/* fcc_comm_init_refuse() with an id. */
static int comm_join_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                            const char *reason)
{
    struct joining j = {.msg = {.unique_id = *id, .nranks = nranks, .rank = rank, .device = -1},
                        .called = "fcc_comm_init_refuse"};

    return join_refuse(context, &j, status, text_without_rank(rank, reason));
}

/* Sends COMM_INIT and fills in `comm` from the reply. Frees `comm` on failure. */
static int join_ask(fcc_context *context, struct joining *j, const struct fcc_comm_options *options, struct fcc_comm *comm)
{
    struct fcc_comm_init_reply reply = {.comm = 0};
    int status = context_call(
        context, CALL_OF(COMM_INIT, &j->msg, &reply, .limit_ms = join_patience_ms(context, options), .called = j->called));

    if (status) {
        free(comm);
        return status;
    }
    *comm = (struct fcc_comm){.context = context,
                              .handle = reply.comm,
                              .rank = j->msg.rank,
                              .nranks = j->msg.nranks,
                              .device = reply.device,
                              .kind = (enum fcc_device_kind)reply.device_kind,
                              .time_limit_ms = reply.time_limit_ms,
                              .status_word = reply.status_word};
    (void)pthread_mutex_init(&comm->order, NULL);
    (void)pthread_mutex_init(&comm->rings_lock, NULL);
    status = comm_open(comm, options, &reply);
    return status ? comm_leave(comm, status) : 0;
}

int comm_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
              const struct fcc_comm_options *options, fcc_comm **out, const char *called)
{
    static const struct fcc_comm_options defaults = {.device = -1};
    struct fcc_comm *comm;
    int status;

    if (!options)
        options = &defaults;
    struct joining j = {.msg = {.unique_id = *id,
                                .nranks = nranks,
                                .rank = rank,
                                .device = options->device,
                                .time_limit_ms = options->time_limit_ms,
                                .device_kind = options->device_kind},
                        .called = called};
    if (!out)
        return join_refuse_last(context, &j, last_error_set(-EINVAL, "out: NULL: not allowed"));
    status = comm_options_check(options);
    if (!status && options->device_kind != FCC_DEVICE_CPU && context->version != FCC_PROTO_VERSION)
        status = last_error_set(-EPROTO,
                                "device_kind: this fccd speaks version %u of the protocol, this library (" VERSION_TEXT
                                ") version %u: on GPUs both must speak the same: upgrade fccd",
                                context->version, FCC_PROTO_VERSION);
    comm = status ? NULL : calloc(1, sizeof(*comm));
    if (!comm)
        return join_refuse_last(context, &j, status ? status : last_error_set(-ENOMEM, "communicator: out of memory"));
    status = join_ask(context, &j, options, comm);
    if (status)
        return status;
    (void)pthread_mutex_lock(&context->lock);
    LIST_INSERT_HEAD(&context->comms, comm, link);
    if (atomic_load_explicit(&context->time_limit_ms, memory_order_relaxed) < comm->time_limit_ms)
        atomic_store_explicit(&context->time_limit_ms, comm->time_limit_ms, memory_order_relaxed);
    (void)pthread_mutex_unlock(&context->lock);
    *out = comm;
    return 0;
}

int fcc_comm_init(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
                  const struct fcc_comm_options *options, fcc_comm **out)
{
    int status = context_check(context);

    if (status)
        return status;
    return id ? comm_join(context, id, nranks, rank, options, out, NULL) : last_error_set(-EINVAL, "id: NULL: not allowed");
}

/* ---- communicators of all processes that a launcher has started. The ranks agree on the id by a name, so nobody exchanges it. ---- */

/* Orders the communicators of all contexts of this process; all ranks must make them in the same order. Taken before any
 * context's lock, and held while ranks join. */
static pthread_mutex_t env_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t env_comms; /* number of communicators made by this process. env_lock */

void env_forked(void)
{
    (void)pthread_mutex_init(&env_lock, NULL);
}

/* env_lock held. The next communicator's id, and this process's rank and size. */
static int next_find(struct fcc_context *c, struct fcc_env *e, struct fcc_unique_id *id, const char *called)
{
    struct fcc_meeting msg = {.name = ""};
    struct fcc_unique_id_reply reply;
    int status = env_find(c->job, e);

    if (!status && e->size == 1) /* takes a random id: two such processes of one job must not join each other */
        return unique_id_ask(c, id, called);
    if (status)
        return status;
    /* All ranks compute the same name, and the job is part of the key. */
    (void)snprintf(msg.name, sizeof(msg.name), "%s %s size %d number %u", e->launcher, e->world, e->size, env_comms);
    text_copy(msg.root, sizeof(msg.root), e->meeting);
    status = context_call(c, CALL_OF(MEETING, &msg, &reply, .called = called));
    if (!status)
        *id = reply.unique_id;
    return status;
}

int fcc_comm_init_env(fcc_context *context, const struct fcc_comm_options *options, fcc_comm **out)
{
    static const char name[] = "fcc_comm_init_env";
    struct fcc_unique_id id;
    struct fcc_env e;

    int status = context_check(context);
    if (status)
        return status;
    (void)pthread_mutex_lock(&env_lock);
    status = next_find(context, &e, &id, name);
    if (!status)
        status = comm_join(context, &id, e.size, e.rank, options, out, name);
    if (!status)
        env_comms++;
    (void)pthread_mutex_unlock(&env_lock);
    return status;
}

int fcc_comm_init_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                         const char *reason)
{
    struct fcc_unique_id next;
    struct fcc_env e;

    int failed = context_check(context);
    if (failed)
        return failed;
    if (!reason)
        return last_error_set(-EINVAL, "reason: NULL: not allowed");
    if (status >= 0 || status < -FCC_REFUSED_MAX)
        return last_error_set(-EINVAL, "status: %d: allowed are -1 to -%d", status, FCC_REFUSED_MAX);
    if (id)
        return comm_join_refuse(context, id, nranks, rank, status, reason);
    (void)pthread_mutex_lock(&env_lock);
    failed = next_find(context, &e, &next, "fcc_comm_init_refuse");
    if (!failed)
        failed = comm_join_refuse(context, &next, e.size, e.rank, status, reason);
    (void)pthread_mutex_unlock(&env_lock);
    return failed;
}
