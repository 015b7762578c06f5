/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_products.h - a rank on a fake GPU whose products (product_cases.h, put_cases.h) lie in memory of its own.
 */
#ifndef FAKE_GPU_PRODUCTS_H
#define FAKE_GPU_PRODUCTS_H

#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/operators/product_cases.h"

static inline void own_move(const struct rank *r, enum part part, size_t bytes, bool out)
{
    unsigned char *memory = (unsigned char *)(uintptr_t)r->memory[part];

    stream_sync(r->stream);
    memcpy(out ? r->image : memory, out ? memory : r->image, bytes);
}

static inline void stream_settle(const struct rank *r)
{
    stream_sync(r->stream);
}

static inline fcc_context *own_open_limited(struct rank *r, int rank, const struct ranks *all, uint32_t limit_ms)
{
    driver_use();
    fcc_context *context = client_connect(NULL);
    *r = (struct rank){.move = own_move, .rank = rank, .n = all->n, .stream = stream_open()};
    r->comm = client_join(context, &all->id, all->n, rank, limit_ms);
    for (int i = 0; i < TENSORS; i++) {
        r->memory[i] = (uintptr_t)calloc(1, ROOM);
        CHECK(r->memory[i] != 0);
    }
    r->image = calloc(1, ROOM);
    CHECK(r->image != NULL);
    return context;
}

static inline fcc_context *own_open(struct rank *r, int rank, const struct ranks *all)
{
    return own_open_limited(r, rank, all, 0);
}

static inline void own_close(struct rank *r, fcc_context *context)
{
    stream_sync(r->stream);
    fcc_comm_destroy(r->comm);
    stream_close(r->stream);
    for (int i = 0; i < TENSORS; i++)
        free((void *)(uintptr_t)r->memory[i]);
    free(r->image);
    client_end(context);
}

#endif
