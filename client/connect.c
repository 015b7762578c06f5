/* SPDX-License-Identifier: MIT
 *
 * connect.c - the connection to fccd: where its socket is, HELLO and WELCOME.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/comm.h"
#include "client/core/call.h"
#include "client/launchers/env.h"
#include "client/memory/buffer.h"
#include "client/memory/tracker.h"
#include "client/stream/bound.h"
#include "client/stream/stream.h"
#include "proto/base/fd.h"
#include "proto/variables.h"
#include "proto/version.h"

const char *fcc_version(void)
{
    return VERSION_TEXT;
}

/* ---- the socket ---- */

static int connect_failed(const char *path, int error)
{
    struct stat st;

    if (error == ECONNREFUSED && !stat(path, &st) && !S_ISSOCK(st.st_mode))
        return last_error_set(-ECONNREFUSED, "%s: it is a %s: allowed is fccd's socket", path,
                              S_ISDIR(st.st_mode) ? "directory" : "file");
    switch (error) {
    case EACCES:
    case EPERM:
        return last_error_set(
            -EPERM,
            "%s: %s: this user may not use fccd: is it in the socket's group (SOCKET_GROUP of fccd.conf)? fccctl doctor tells",
            path, strerror(error));
    case EAGAIN:
        return last_error_set(-ETIMEDOUT, "%s: fccd has not accepted the connection within %d s: it does not answer", path,
                              CALL_LIMIT_MS / 1000);
    case EPROTOTYPE:
        return last_error_set(-EPROTO, "%s: %s: this is not fccd's socket", path, strerror(error));
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:
        return last_error_set(-ECONNREFUSED, "%s: no fccd listens there (%s): is fccd running? try fccctl doctor", path,
                              strerror(error));
    default:
        return last_error_set(-error, "%s: %s", path, strerror(error));
    }
}

/* Returns 0 or a positive errno value; EAGAIN: nobody has accepted the connection by the deadline. Signals do not extend
 * it. */
static int connect_within(int sock, const struct sockaddr_un *address, int64_t deadline)
{
    for (;;) {
        int64_t left_us = (deadline - now_ns()) / 1000;
        struct timeval limit = {.tv_sec = left_us / 1000000, .tv_usec = left_us % 1000000};
        if (left_us <= 0)
            return EAGAIN;
        /* later sends do not block, so the limit does not affect them */
        (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        if (!connect(sock, (const struct sockaddr *)address, sizeof(*address)))
            return 0;
        if (errno != EINTR)
            return errno;
    }
}

/* Returns the connected socket or a negative errno value. */
static int socket_connect(const struct fcc_connect_options *options, int64_t deadline)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = options->socket_path;
    int sock, status;

    if (!path)
        path = getenv("FCCD_SOCKET");
    if (!path || (!*path && !options->socket_path))
        path = FCC_SOCKET_DEFAULT;
    if (!*path || strlen(path) >= sizeof(address.sun_path))
        return last_error_set(-EINVAL, "%s: %zu characters: allowed are 1 to %zu",
                              options->socket_path ? "options.socket_path" : "FCCD_SOCKET", strlen(path),
                              sizeof(address.sun_path) - 1);
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);

    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return last_error_set(status_of_file(errno), "socket: %s", strerror(errno));
    status = connect_within(sock, &address, deadline);
    if (status) {
        (void)close(sock);
        return connect_failed(path, status);
    }
    return sock;
}

/* ---- which MPS server ---- */

/* The directory of CUDA's MPS server, as this process's driver uses it. A value that the daemon would refuse (such as a
 * relative path) is left out; the worker then uses its own. */
static void mps_pipe_find(char pipe[FCC_MPS_PIPE_MAX])
{
    const char *value = getenv("CUDA_MPS_PIPE_DIRECTORY");

    pipe[0] = 0;
    if (!value || value[0] != '/' || strlen(value) >= FCC_MPS_PIPE_MAX)
        return;
    for (const char *p = value; *p; p++)
        if (*p < ' ' || *p > '~')
            return;
    (void)snprintf(pipe, FCC_MPS_PIPE_MAX, "%s", value);
}

/* ---- the context ---- */

static void gpus_release(struct fcc_context *c)
{
    words_release(c);
    prepared_release(c);
}

static struct fcc_context *context_new(void)
{
    struct fcc_context *c = aligned_alloc(_Alignof(struct fcc_context), sizeof(*c));
    pthread_condattr_t attr;

    if (!c)
        return NULL;
    memset(c, 0, offsetof(struct fcc_context, inbox)); /* so all lists are empty */
    c->release = gpus_release;
    c->sock = -1;
    c->doorbell = -1;
    c->watch_wake = -1;
    c->free_slots = ~UINT64_C(0);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_mutex_init(&c->ring_lock, NULL);
    (void)pthread_mutex_init(&c->accelerator_lock, NULL);
    (void)pthread_mutex_init(&c->prepared_lock, NULL);
    return c;
}

/* Frees a context that may be only partly built. */
static void context_free(struct fcc_context *c)
{
    if (c->memory)
        (void)munmap(c->memory, sizeof(*c->memory));
    fd_close(&c->doorbell);
    if (c->sock >= 0) {
        (void)shutdown(c->sock, SHUT_RDWR); /* close() alone does not end a connection that a forked child also has */
        (void)close(c->sock);
    }
    (void)pthread_mutex_destroy(&c->prepared_lock);
    (void)pthread_mutex_destroy(&c->accelerator_lock);
    (void)pthread_mutex_destroy(&c->ring_lock);
    (void)pthread_mutex_destroy(&c->lock);
    (void)pthread_cond_destroy(&c->changed);
    free(c);
}

static int context_greet(struct fcc_context *c, int64_t deadline)
{
    struct fcc_hello hello = {.magic = FCC_PROTO_MAGIC, .version = c->version, .role = FCC_ROLE_CLIENT, .uid = UINT32_MAX};
    struct fcc_welcome welcome;
    int64_t left_ms = (deadline - now_ns()) / 1000000;
    int fds[2], status;
    void *memory = NULL;

    memcpy(hello.job, c->job, sizeof(hello.job));
    mps_pipe_find(hello.mps_pipe);
    status = context_call(c, CALL_OF(HELLO, &hello, &welcome, .fds = fds, .limit_ms = left_ms > 0 ? left_ms : 1));
    if (status)
        return status;
    c->doorbell = fds[1];
    /* The worker chose this file. Non-blocking, so that ringing it cannot block whatever it is. */
    (void)fcntl(c->doorbell, F_SETFL, O_NONBLOCK);
    status = shared_map(fds[0], sizeof(*c->memory), "session memory", &memory);
    if (status)
        return status;
    c->memory = memory;
    if (welcome.version != c->version)
        return last_error_set(-EPROTO, "fccd speaks version %u of the protocol, this library version %u", welcome.version,
                              c->version);
    if (welcome.devices > INT_MAX)
        return last_error_set(-EPROTO, "the worker says that it has %u devices", welcome.devices);
    c->devices = welcome.devices;
    c->worker_pid = welcome.worker_pid;
    c->spin_us = welcome.spin_us;
    c->head = atomic_load_explicit(&c->memory->head, memory_order_relaxed);
    c->tail = c->head;
    return 0;
}

static void variable_unknown(const char *name, const char *nearest)
{
    (void)fprintf(
        stderr,
        "libfccclient: warning: the environment's variable %s is unknown and does nothing: the nearest known one is %s\n", name,
        nearest);
}

static void variables_warn(void)
{
    variables_check(variable_unknown);
}

static void locks_forked(void)
{
    env_forked();
    pools_forked();
    prepared_forked();
    graphs_forked();
}

/* context_open() has failed with -EPROTO: returns true if it is to be tried again with *version, which has been changed. */
static bool version_changed(uint32_t *version)
{
    char told[FCC_TEXT_MAX];

    if (version_agree(fcc_last_error(), version))
        return true;
    version_explain(fcc_last_error(), told, sizeof(told));
    (void)last_error_set(-EPROTO, "%s", told);
    return false;
}

static int context_open(const struct fcc_connect_options *options, int64_t deadline, uint32_t version, struct fcc_context **out)
{
    struct fcc_context *c = context_new();
    int status;

    if (!c)
        return last_error_set(-ENOMEM, "context: out of memory");
    c->version = version;
    c->no_ring = options->no_ring != 0;
    c->no_stream_words = options->no_stream_memory_operations != 0;
    status = process_begin(c, locks_forked);
    if (!status)
        status = job_find(options->job, c->job);
    if (!status) {
        c->sock = socket_connect(options, deadline);
        status = c->sock < 0 ? c->sock : context_greet(c, deadline);
    }
    if (status) {
        context_free(c);
        return status;
    }
    *out = c;
    return 0;
}

int fcc_connect(const struct fcc_connect_options *options, fcc_context **out)
{
    static pthread_once_t warned = PTHREAD_ONCE_INIT;
    static const struct fcc_connect_options defaults;
    int64_t deadline = deadline_in_ms(CALL_LIMIT_MS);
    uint32_t version = FCC_PROTO_VERSION;
    int status = -ECONNRESET;

    if (!out)
        return last_error_set(-EINVAL, "out: NULL: not allowed");
    if (!options)
        options = &defaults;
    for (size_t i = 0; i < sizeof(options->reserved) / sizeof(options->reserved[0]); i++)
        if (options->reserved[i])
            return last_error_set(-EINVAL, "options.reserved[%zu]: %u: must be 0", i, options->reserved[i]);
    (void)pthread_once(&warned, variables_warn);
    /* If a worker dies before it has read a new connection, the connection is lost, or the broker answers it with
     * -ECONNRESET. The next attempt gets a new worker. */
    for (int attempt = 0; attempt < CONNECT_ATTEMPTS && status == -ECONNRESET; attempt++) {
        status = context_open(options, deadline, version, out);
        if (status == -EPROTO && version_changed(&version))
            status = context_open(options, deadline, version, out);
    }
    return status;
}

void fcc_disconnect(fcc_context *context)
{
    struct fcc_request *r;
    struct fcc_buffer *b;
    struct fcc_comm *comm;

    if (!context || context_check(context))
        return;
    group_forget(context);
    graphs_look();
    watch_stop(context);
    /* Sends no messages: the end of the socket tells the worker to free everything. Streams that wait are released first. */
    (void)pthread_mutex_lock(&context->lock);
    streams_release(context);
    (void)pthread_mutex_unlock(&context->lock);
    context->release(context);
    prepared_forget_all(context);
    while ((r = LIST_FIRST(&context->requests))) {
        LIST_REMOVE(r, link);
        free(r);
    }
    while ((b = LIST_FIRST(&context->buffers))) {
        LIST_REMOVE(b, link);
        buffer_unmap(b);
        free(b);
    }
    while ((comm = LIST_FIRST(&context->comms))) {
        LIST_REMOVE(comm, link);
        tracker_end(comm); /* graphs may keep its memory */
        graphs_leave(comm->graphs);
        comm_free(comm);
    }
    graphs_look(); /* of communicators that were gone before their buffers */
    accelerators_close(context);
    context_free(context);
}

int fcc_device_count(const fcc_context *context)
{
    int status = context_check(context);

    return status ? status : (int)context->devices;
}
