/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_own.h - a rank on a fake GPU that launches collectives itself, in memory of its own.
 */
#ifndef FAKE_GPU_OWN_H
#define FAKE_GPU_OWN_H

#define MANY 100001 /* as pieces: more than there is room for at a time, and the last one is not whole */
#include "tests/fake_gpu/fake_gpu_bed.h"
#include "tests/operators/collective_cases.h"
#include "tests/operators/collective_errors.h"

static inline void own_move(const struct rank *r, int which, bool out)
{
    unsigned char *memory = (unsigned char *)(uintptr_t)r->memory[which];

    stream_sync(r->stream);
    memcpy(out ? r->images[which] : memory, out ? memory : r->images[which], ROOM);
}

/* Another communicator of a process. */
static inline void own_join(struct rank *r, fcc_context *context, const struct fcc_unique_id *id, int n, int rank,
                            uint32_t limit_ms)
{
    *r = (struct rank){.rank = rank, .n = n, .move = own_move, .stream = stream_open()};
    r->comm = client_join(context, id, n, rank, limit_ms);
    for (int i = 0; i < 2; i++) {
        r->images[i] = calloc(1, ROOM);
        r->memory[i] = (uintptr_t)calloc(1, ROOM);
        CHECK(r->images[i] && r->memory[i]);
    }
}

static inline fcc_context *own_open(struct rank *r, const struct ranks *all, int rank, uint32_t limit_ms)
{
    driver_use();
    fcc_context *context = client_connect(NULL);
    own_join(r, context, &all->id, all->n, rank, limit_ms);
    return context;
}

/* Its communicator has gone. */
static inline void own_free(struct rank *r)
{
    stream_close(r->stream);
    for (int i = 0; i < 2; i++) {
        free(r->images[i]);
        free((void *)(uintptr_t)r->memory[i]);
    }
}

static inline void own_leave(struct rank *r)
{
    stream_sync(r->stream);
    fcc_comm_destroy(r->comm);
    own_free(r);
}

static inline void own_close(struct rank *r, fcc_context *context)
{
    own_leave(r);
    CHECK(driver->graphs == 0 && driver->objects == 0);
    client_end(context);
}

#endif
