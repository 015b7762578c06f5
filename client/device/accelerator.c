/* SPDX-License-Identifier: MIT
 *
 * accelerator.c - a GPU as this process uses it: the GPU itself, and memory on it.
 */
#include "client/device/accelerator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/core/context.h"
#include "proto/sealed.h"

#define HIP_IMPORTS_BY_FD 70100000 /* hipRuntimeGetVersion() of HIP 7.1; older versions take the descriptor's address */

#define CALL ACCELERATOR_CALL

int accelerator_result(const struct accelerator *a, enum driver_function f, int result)
{
    char words[256];

    if (!result)
        return 0;
    driver_explain(a->driver, result, words, sizeof(words));
    return last_error_set(result == DRIVER_OUT_OF_MEMORY ? -ENOMEM : -EIO, "%s GPU %d: %s: %s", a->driver->name, a->number,
                          driver_function_name(a->driver, f), words);
}

int accelerator_enter(const struct accelerator *a, int *before)
{
    int status;

    if (a->driver->context_push) {
        status = CALL(a, context_push, a->context);
        *before = DRIVER_CAPTURE_RELAXED;
        return status ? status : CALL(a, capture_mode, before);
    }
    status = CALL(a, device_current, before);
    return status ? status : CALL(a, device_set, a->device);
}

void accelerator_leave(const struct accelerator *a, int before)
{
    void *popped;

    if (!a->driver->context_pop) {
        (void)a->driver->device_set(before);
        return;
    }
    (void)a->driver->capture_mode(&before);
    (void)a->driver->context_pop(&popped);
}

/* ---- the GPU ---- */

/* The error that this process does not see the rank's GPU. */
static int device_not_there(const struct accelerator *a, int count)
{
    const char *visible = getenv(a->driver->visible);
    const unsigned char *u = a->uuid.bytes;

    return last_error_set(
        -ENOENT,
        "%s GPU %d (UUID %02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x) is not among the "
        "%d that this process sees: its %s, now %s%s, must let it see the GPU of its rank",
        a->driver->name, a->number, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13],
        u[14], u[15], count, a->driver->visible, visible ? "" : "not set", visible ? visible : "");
}

/* Sets a->device. */
static int device_find(struct accelerator *a)
{
    int count = 0, result = a->driver->init(0), status;
    enum driver_function f = DRIVER_init;
    struct driver_uuid uuid;
    char words[256];

    if (!result) {
        f = DRIVER_device_count;
        result = a->driver->device_count(&count);
    }
    if (result) {
        driver_explain(a->driver, result, words, sizeof(words));
        return last_error_set(-ENODEV, "%s GPU %d: this process cannot use any %s GPU: %s: %s", a->driver->name, a->number,
                              a->driver->name, driver_function_name(a->driver, f), words);
    }
    for (int i = 0; i < count; i++) {
        a->ordinal = i;
        status = CALL(a, device_get, &a->device, i);
        if (!status)
            status = CALL(a, device_uuid, &uuid, a->device);
        if (status)
            return status;
        if (!memcmp(&uuid, &a->uuid, sizeof(uuid)))
            return 0;
    }
    return device_not_there(a, count);
}

/* The GPU is current. Asks the driver what it supports. */
static int device_ask(struct accelerator *a)
{
    int value = 0, status;

    status = CALL(a, device_attribute, &value, a->driver->stream_attribute, a->device);
    a->stream_words = value != 0;
    if (!status && a->driver->runtime_version)
        status = CALL(a, runtime_version, &value);
    a->import_by_fd = !a->driver->runtime_version || value >= HIP_IMPORTS_BY_FD;
    return status;
}

/* The GPU is current. Registers the session memory, once per driver for all its GPUs. */
static int session_memory_share(struct fcc_context *c, struct accelerator *a)
{
    const struct accelerator *other;
    int status = 0;

    SLIST_FOREACH(other, &c->accelerators, link)
    if (other->driver == a->driver && other->has_memory)
        break;
    if (!other) {
        status = CALL(a, host_register, c->memory, sizeof(*c->memory), DRIVER_HOST_PORTABLE | DRIVER_HOST_MAPPED);
        a->has_memory = !status;
    }
    return status ? status : CALL(a, host_address, &a->memory, c->memory, 0);
}

/* Frees an accelerator that may be only partly built. Keeps the last error. */
static void accelerator_free(struct fcc_context *c, struct accelerator *a)
{
    const struct driver *d = a->driver;
    struct error why;
    int before = 0;

    (void)error_set(&why, -EIO, "%s", fcc_last_error());
    for (unsigned gpu = 0; gpu < FCC_MAX_GPUS; gpu++)
        if (a->words_gpus >> gpu & 1u)
            accelerator_unmap(a, &a->words[gpu]);
    if (a->side && !accelerator_enter(a, &before)) { /* the side stream is made last */
        if (a->has_memory)
            (void)d->host_unregister(c->memory);
        (void)d->stream_destroy(a->side);
        accelerator_leave(a, before);
    }
    if (a->context)
        (void)d->context_release(a->device);
    free(a);
    (void)last_error_set(why.status, "%s", why.text);
}

static int accelerator_make(struct fcc_context *c, struct accelerator *a)
{
    int before = 0, status = device_find(a);

    if (!status && a->driver->context_retain)
        status = CALL(a, context_retain, &a->context, a->device);
    if (!status)
        status = accelerator_enter(a, &before);
    if (status)
        return status;
    status = device_ask(a);
    if (!status)
        status = CALL(a, stream_create, &a->side, DRIVER_STREAM_OWN_ORDER);
    if (!status)
        status = session_memory_share(c, a);
    accelerator_leave(a, before);
    return status;
}

int accelerator_open(struct fcc_context *c, enum fcc_device_kind kind, int number, const unsigned char uuid[16],
                     struct accelerator **out)
{
    const struct driver *d;
    struct accelerator *a;
    int status = driver_load(kind, &d);

    if (status)
        return status;
    SLIST_FOREACH(a, &c->accelerators, link)
    {
        if (a->driver == d && !memcmp(&a->uuid, uuid, sizeof(a->uuid))) {
            *out = a;
            return 0;
        }
    }
    a = calloc(1, sizeof(*a));
    if (!a)
        return last_error_set(-ENOMEM, "%s GPU %d: out of memory", d->name, number);
    a->driver = d;
    a->number = number;
    memcpy(&a->uuid, uuid, sizeof(a->uuid));
    status = accelerator_make(c, a);
    if (status) {
        accelerator_free(c, a);
        return status;
    }
    SLIST_INSERT_HEAD(&c->accelerators, a, link);
    *out = a;
    return 0;
}

void accelerators_close(struct fcc_context *c)
{
    struct accelerator *a;

    while ((a = SLIST_FIRST(&c->accelerators))) {
        SLIST_REMOVE_HEAD(&c->accelerators, link);
        accelerator_free(c, a);
    }
}

int accelerators_synchronize(struct fcc_context *c)
{
    const struct accelerator *a;
    int before = 0, status = 0;

    (void)pthread_mutex_lock(&c->accelerator_lock);
    SLIST_FOREACH(a, &c->accelerators, link)
    {
        status = accelerator_enter(a, &before);
        if (!status) {
            status = CALL(a, synchronize);
            accelerator_leave(a, before);
        }
        if (status)
            break;
    }
    (void)pthread_mutex_unlock(&c->accelerator_lock);
    return status;
}

/* ---- memory ---- */

/* The GPU is current. Maps an IPC handle, which is not needed afterwards. */
static int handle_map(const struct accelerator *a, uint64_t handle, struct accelerator_memory *m)
{
    struct driver_access access = {DRIVER_LOCATION_DEVICE, a->device, DRIVER_ACCESS_READWRITE};
    int status = CALL(a, address_reserve, &m->address, m->bytes, 0, 0, 0);

    if (status)
        return status;
    status = CALL(a, memory_map, m->address, m->bytes, 0, handle, 0);
    if (!status) {
        status = CALL(a, memory_access, m->address, m->bytes, &access, 1);
        if (status)
            (void)a->driver->memory_unmap(m->address, m->bytes);
    }
    if (status)
        (void)a->driver->address_free(m->address, m->bytes);
    return status;
}

static int fd_map(const struct accelerator *a, int fd, struct accelerator_memory *m)
{
    void *from = a->import_by_fd ? (void *)(intptr_t)fd : &fd;
    uint64_t handle = 0;
    int status = CALL(a, memory_import, &handle, from, DRIVER_HANDLE_FD);

    if (status)
        return status;
    status = handle_map(a, handle, m);
    (void)a->driver->memory_release(handle);
    return status;
}

static int ipc_map(const struct accelerator *a, int fd, struct accelerator_memory *m)
{
    struct driver_ipc_handle handle;
    struct error e = {.status = 0};
    void *data = NULL;
    size_t bytes;
    int result, status = sealed_read(fd, sizeof(handle), sizeof(handle), "the worker's IPC handle", &data, &bytes, &e);

    if (status)
        return last_error_set(status, "%s GPU %d: %s", a->driver->name, a->number, e.text);
    memcpy(&handle, data, sizeof(handle));
    free(data);
    /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is 1. hipIpcMemLazyEnablePeerAccess is 0 in HIP 5.2 and 1 later; each version
     * refuses the other's value. */
    result = a->driver->ipc_open(&m->address, handle, 1);
    if (result == DRIVER_INVALID_VALUE && a->driver->kind == FCC_DEVICE_HIP)
        result = a->driver->ipc_open(&m->address, handle, 0);
    return accelerator_result(a, DRIVER_ipc_open, result);
}

int accelerator_map(const struct accelerator *a, int fd, uint32_t kind, size_t bytes, struct accelerator_memory *out)
{
    struct accelerator_memory m = {.bytes = bytes, .kind = kind};
    int before = 0, status;

    if (kind != FCC_MEMORY_GPU_FD && kind != FCC_MEMORY_GPU_IPC) {
        (void)close(fd);
        return last_error_set(-EPROTO, "%s GPU %d: the worker sent memory of kind %u: allowed are %d and %d", a->driver->name,
                              a->number, kind, FCC_MEMORY_GPU_FD, FCC_MEMORY_GPU_IPC);
    }
    status = accelerator_enter(a, &before);
    if (!status) {
        status = kind == FCC_MEMORY_GPU_FD ? fd_map(a, fd, &m) : ipc_map(a, fd, &m);
        accelerator_leave(a, before);
    }
    (void)close(fd);
    if (!status)
        *out = m;
    return status;
}

void accelerator_unmap(const struct accelerator *a, const struct accelerator_memory *m)
{
    int before = 0;

    if (accelerator_enter(a, &before))
        return;
    if (m->kind == FCC_MEMORY_GPU_FD) {
        (void)a->driver->memory_unmap(m->address, m->bytes);
        (void)a->driver->address_free(m->address, m->bytes);
    } else {
        (void)a->driver->ipc_close(m->address);
    }
    accelerator_leave(a, before);
}

/* Waits for a copy on the side stream. That stream is ordered with no other, so the copy waits for no stream of the
 * program, which may wait for an operator. */
static int copy_finish(const struct accelerator *a, int before, int status)
{
    if (!status)
        status = CALL(a, stream_synchronize, a->side);
    accelerator_leave(a, before);
    return status;
}

int accelerator_copy_in(const struct accelerator *a, uint64_t to, const void *from, size_t bytes)
{
    int before = 0, status = accelerator_enter(a, &before);

    return status ? status : copy_finish(a, before, CALL(a, copy_in, to, from, bytes, a->side));
}

int accelerator_copy_out(const struct accelerator *a, void *to, uint64_t from, size_t bytes)
{
    int before = 0, status = accelerator_enter(a, &before);

    return status ? status : copy_finish(a, before, CALL(a, copy_out, to, from, bytes, a->side));
}
