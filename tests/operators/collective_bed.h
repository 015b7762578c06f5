/* SPDX-License-Identifier: MIT
 *
 * collective_bed.h - a rank with a buffer for inputs and one for results, and images of both.
 */
#ifndef FCC_TEST_COLLECTIVE_BED_H
#define FCC_TEST_COLLECTIVE_BED_H

#include "tests/bed/harness.h"

#ifndef ROOM
#define ROOM (1 << 20) /* bytes of each buffer */
#endif

struct rank {
    /* NULL: tensors lie in the buffers. Otherwise in this process's own GPU memory at `memory`, and operators are put onto a stream. Copies
     * the image of one of them to the GPU, or from there once the stream has come so far */
    void (*move)(const struct rank *r, int which, bool out);
    uint64_t memory[2];
    void *stream;
    fcc_comm *comm;
    int rank, n;
    fcc_buffer *local, *result;
    unsigned char *images[2]; /* of the two */
};

static inline void rank_open(struct rank *r, int rank, const struct ranks *all)
{
    *r = (struct rank){.comm = comm_open(all, rank, 0), .rank = rank, .n = all->n};
    CHECK(fcc_comm_device_kind(r->comm) == test_device());
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_LOCAL, ROOM, &r->local));
    OK(fcc_buffer_alloc(r->comm, FCC_BUFFER_RESULT, ROOM, &r->result));
    for (int i = 0; i < 2; i++) {
        r->images[i] = calloc(1, ROOM);
        CHECK(r->images[i] != NULL);
    }
}

/* Bytes of the image of `local` (0) or `result` (1) to the device, or from there; of a rank's own memory, all. */
static inline void image_move_bytes(const struct rank *r, int which, uint64_t at, size_t bytes, bool out)
{
    fcc_buffer *b = which ? r->result : r->local;
    unsigned char *image = r->images[which] + at;

    if (r->move)
        r->move(r, which, out);
    else
        OK(out ? fcc_buffer_read(b, at, image, bytes) : fcc_buffer_write(b, at, image, bytes));
}

static inline void image_move(const struct rank *r, int which, bool out)
{
    image_move_bytes(r, which, 0, ROOM, out);
}

static inline struct fcc_tensor vector_at(const struct rank *r, int which, uint64_t at, enum fcc_dtype dtype, int64_t n)
{
    if (r->move)
        return fcc_tensor_1d(FCC_ADDRESS, r->memory[which] + at, dtype, n);
    return fcc_tensor_1d(which ? r->result : r->local, at, dtype, n);
}

static inline void rank_close(struct rank *r)
{
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
    free(r->images[0]);
    free(r->images[1]);
}

#endif
