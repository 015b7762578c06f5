/* SPDX-License-Identifier: MIT
 *
 * client_calls.h - calls of the library that wait for the worker, with the names that their errors begin with.
 */
#ifndef CLIENT_CALLS_H
#define CLIENT_CALLS_H

#include "tests/client/client_bed.h"

static inline int call_unique_id(struct bed *b)
{
    struct fcc_unique_id id;
    return fcc_get_unique_id(b->context, &id);
}

static inline int call_comm_init(struct bed *b)
{
    struct fcc_comm_options options = {.device = -1, .time_limit_ms = 77};
    struct fcc_unique_id id = {{0}};
    fcc_comm *comm;
    return fcc_comm_init(b->context, &id, 2, 0, &options, &comm);
}

static inline int call_comm_init_default(struct bed *b)
{
    struct fcc_unique_id id = {{0}};
    fcc_comm *comm;
    return fcc_comm_init(b->context, &id, 2, 0, NULL, &comm);
}

static inline int call_comm_init_env(struct bed *b)
{
    fcc_comm *comm;
    return fcc_comm_init_env(b->context, NULL, &comm);
}

static inline int call_alloc_local(struct bed *b)
{
    fcc_buffer *buffer;
    return fcc_buffer_alloc(b->comm, FCC_BUFFER_LOCAL, 4096, &buffer);
}

static inline int call_alloc_symmetric(struct bed *b)
{
    fcc_buffer *buffer;
    return fcc_buffer_alloc(b->comm, FCC_BUFFER_SYMMETRIC, 4096, &buffer);
}

static inline int call_abort(struct bed *b)
{
    return fcc_comm_abort(b->comm, "reason");
}

static inline int call_triggers(struct bed *b)
{
    struct fcc_triggers triggers;
    return fcc_comm_triggers(b->comm, &triggers);
}

static inline int call_put_register(struct bed *b)
{
    struct fcc_put put = {.rank = 1};
    uint32_t number;
    return fcc_put_register(b->comm, &put, &number);
}

static inline int call_put_trigger(struct bed *b)
{
    return fcc_put_trigger(b->comm, 1, 1);
}

static inline int call_tracker(struct bed *b)
{
    fcc_tracker *tracker;
    return fcc_tracker_create(b->comm, &tracker);
}

static inline int call_init_refuse(struct bed *b)
{
    struct fcc_unique_id id = {{0}};
    return fcc_comm_init_refuse(b->context, &id, 2, 0, -EINVAL, "why");
}

static inline int call_noop(struct bed *b)
{
    return fcc_noop(b->comm);
}

static inline int call_noop_start(struct bed *b)
{
    fcc_request *request;
    int status = fcc_noop_start(b->comm, &request);

    if (!status) {
        status = fcc_request_wait(request, -1);
        fcc_request_free(request);
    }
    return status;
}

static inline int call_gemv(struct bed *b)
{
    static const struct fcc_gemv_all_reduce_args args;
    return fcc_gemv_all_reduce(b->comm, &args);
}

static inline int call_embedding(struct bed *b)
{
    static const int64_t rows[1];
    static const struct fcc_embedding_all_to_all_args args = {.table_rows = rows, .pooling = FCC_POOLING_MEAN};
    return fcc_embedding_all_to_all(b->comm, &args);
}

/* An argument that this process refuses is an operator nevertheless. */
static inline int call_refused(struct bed *b)
{
    static const struct fcc_gemm_all_to_all_args args = {.reserved = {1}};
    return fcc_gemm_all_to_all(b->comm, &args);
}

static const struct called {
    const char *name; /* as the error's text begins */
    int (*call)(struct bed *b);
    bool without_comm, is_operator;
} calls[] = {
    {.name = "fcc_get_unique_id", .call = call_unique_id, .without_comm = true},
    {.name = "fcc_comm_init", .call = call_comm_init, .without_comm = true},
    {.name = "fcc_comm_init", .call = call_comm_init_default, .without_comm = true},
    {.name = "fcc_comm_init_env", .call = call_comm_init_env, .without_comm = true},
    {.name = "fcc_comm_init_refuse", .call = call_init_refuse, .without_comm = true},
    {.name = "fcc_comm_abort", .call = call_abort},
    {.name = "fcc_buffer_alloc", .call = call_alloc_local},
    {.name = "fcc_buffer_alloc", .call = call_alloc_symmetric},
    {.name = "fcc_comm_triggers", .call = call_triggers},
    {.name = "fcc_put_register", .call = call_put_register},
    {.name = "fcc_put_trigger", .call = call_put_trigger},
    {.name = "fcc_tracker_create", .call = call_tracker},
    {.name = "noop", .call = call_noop, .is_operator = true},
    {.name = "noop", .call = call_noop_start, .is_operator = true},
    {.name = "gemv_all_reduce", .call = call_gemv, .is_operator = true},
    {.name = "embedding_all_to_all", .call = call_embedding, .is_operator = true},
    {.name = "gemm_all_to_all", .call = call_refused, .is_operator = true},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

#endif
