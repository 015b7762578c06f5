/* SPDX-License-Identifier: MIT
 *
 * pieces.c - memory on GPUs a second time: addresses are reserved, then each piece's allocation is mapped at its place.
 *
 * An allocation lives while it is mapped anywhere, so pieces outlive the mappings that they were made from. A range retains the
 * primary context itself, so that it outlives the connection, too.
 */
#include "client/device/pieces.h"

#include <errno.h>
#include <stdlib.h>

#define CALL ACCELERATOR_CALL

struct accelerator_pieces {
    struct accelerator on; /* a copy, with a context of its own; its lists and words are not used */
    uint64_t address;
    size_t bytes;  /* reserved */
    size_t mapped; /* of them, from the begin on */
    int n;
    size_t piece[]; /* [n] bytes of each */
};

int accelerator_granularity(const struct accelerator *a, size_t *out)
{
    const struct driver_allocation what = {.type = DRIVER_ALLOCATION_PINNED,
                                           .handles = DRIVER_HANDLE_FD,
                                           .location_type = DRIVER_LOCATION_DEVICE,
                                           .location_device = a->device};
    int before = 0, status = accelerator_enter(a, &before);

    if (status)
        return status;
    status = CALL(a, memory_granularity, out, &what, DRIVER_GRANULARITY_MINIMUM);
    accelerator_leave(a, before);
    return status;
}

/* The GPU is current. */
static int piece_map(struct accelerator_pieces *p, const struct accelerator_piece *piece)
{
    const struct driver_access access = {DRIVER_LOCATION_DEVICE, p->on.device, DRIVER_ACCESS_READWRITE};
    uint64_t at = p->address + p->mapped, handle = 0;
    int status = CALL(&p->on, memory_retain, &handle, (void *)(uintptr_t)piece->memory->address);

    if (status)
        return status;
    status = CALL(&p->on, memory_map, at, piece->bytes, 0, handle, 0);
    (void)p->on.driver->memory_release(handle);
    if (status)
        return status;
    p->mapped += piece->bytes;
    p->piece[p->n++] = piece->bytes;
    return CALL(&p->on, memory_access, at, piece->bytes, &access, 1);
}

/* The GPU is current. */
static void all_unmap(struct accelerator_pieces *p)
{
    uint64_t at = p->address;

    for (int i = 0; i < p->n; at += p->piece[i++])
        (void)p->on.driver->memory_unmap(at, p->piece[i]);
    if (p->address)
        (void)p->on.driver->address_free(p->address, p->bytes);
}

/* The GPU is current. */
static int all_map(struct accelerator_pieces *p, const struct accelerator_piece pieces[], int n)
{
    int status = CALL(&p->on, address_reserve, &p->address, p->bytes, 0, 0, 0);

    if (status)
        p->address = 0;
    for (int i = 0; i < n && !status; i++)
        status = piece_map(p, &pieces[i]);
    if (status)
        all_unmap(p);
    return status;
}

int accelerator_pieces_map(const struct accelerator *a, const struct accelerator_piece pieces[], int n,
                           struct accelerator_pieces **out)
{
    struct accelerator_pieces *p = calloc(1, sizeof(*p) + (size_t)n * sizeof(p->piece[0]));
    int before = 0, status = 0;

    if (!p)
        return last_error_set(-ENOMEM, "%s GPU %d: out of memory", a->driver->name, a->number);
    p->on = *a;
    for (int i = 0; i < n && !status; i++) {
        p->bytes += pieces[i].bytes;
        if (pieces[i].memory->kind != FCC_MEMORY_GPU_FD)
            status = last_error_set(-EOPNOTSUPP,
                                    "%s GPU %d: its memory is shared by IPC handles, which cannot be mapped piece by piece",
                                    a->driver->name, a->number);
    }
    p->on.context = NULL;
    if (!status && a->driver->context_retain)
        status = CALL(a, context_retain, &p->on.context, a->device);
    if (!status && !(status = accelerator_enter(&p->on, &before))) {
        status = all_map(p, pieces, n);
        accelerator_leave(&p->on, before);
    }
    if (!status) {
        *out = p;
        return 0;
    }
    if (p->on.context)
        (void)a->driver->context_release(a->device);
    free(p);
    return status;
}

uint64_t accelerator_pieces_address(const struct accelerator_pieces *p)
{
    return p->address;
}

void accelerator_pieces_unmap(struct accelerator_pieces *p)
{
    int before = 0;

    if (!accelerator_enter(&p->on, &before)) {
        if (!CALL(&p->on, synchronize))
            all_unmap(p);
        accelerator_leave(&p->on, before);
    }
    if (p->on.context)
        (void)p->on.driver->context_release(p->on.device);
    free(p);
}
