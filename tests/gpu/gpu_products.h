/* SPDX-License-Identifier: MIT
 *
 * gpu_products.h - a rank on an NVIDIA GPU whose products (product_cases.h) lie in memory that this process has allocated.
 */
#ifndef FCC_TEST_GPU_PRODUCTS_H
#define FCC_TEST_GPU_PRODUCTS_H

#include "tests/gpu/gpu_client.h"
#include "tests/operators/product_cases.h"

static inline void memory_move(const struct rank *r, enum part part, size_t bytes, bool out)
{
    if (out)
        CU(gpu.copy_out(r->image, r->memory[part], bytes, r->stream));
    else
        CU(gpu.copy_in(r->memory[part], r->image, bytes, r->stream));
    CU(gpu.stream_synchronize(r->stream));
}

static inline void rank_open(struct rank *r, int rank, const struct ranks *all, uint32_t limit_ms)
{
    *r = (struct rank){.move = memory_move, .comm = comm_open(all, rank, limit_ms), .rank = rank, .n = all->n};
    gpu_open(r->comm);
    r->stream = stream_open(CUDA_STREAM_OWN_ORDER);
    for (int i = 0; i < TENSORS; i++)
        CU(gpu.memory_alloc(&r->memory[i], ROOM));
    r->image = malloc(ROOM);
    CHECK(r->image != NULL);
}

static inline void rank_close(const struct rank *r)
{
    OK(fcc_noop(r->comm));
    fcc_comm_destroy(r->comm);
    fcc_disconnect(comm_context());
}

/* A sum of products, drawn at random, between others' operators. */
static inline void sum_between(const struct rank *r, int number)
{
    struct product_case c;

    case_draw(&c, r->n);
    case_fill(r, &c);
    OK(case_enqueue(r, &c));
    case_check(r, &c, number);
}

/* A rank on each GPU. */
static inline void ranks_of_gpus_run(void (*run)(int, const struct ranks *, void *), void *argument)
{
    ranks_run(gpus < RANKS_MOST ? gpus : RANKS_MOST, run, argument);
}

#endif
