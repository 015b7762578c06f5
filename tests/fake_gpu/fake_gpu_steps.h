/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_steps.h - a rank on a fake GPU with a bound program, whose values are easy to tell.
 */
#ifndef FAKE_GPU_STEPS_H
#define FAKE_GPU_STEPS_H

#include "tests/fake_gpu/fake_gpu_bed.h"

/* m is this rank's own; other ranks read g, and store into p. */
static const char sgd[] = "program sgd(N = 3001)\nin g: f32[N] local\ninout p, m: f32[N] replicated\nscalar lr, momentum\n\n"
                          "s = all_reduce(g)\nm = momentum * m + s\np = p - lr * m\n\n"
                          "schedule\nsplit s\nreorder s\nas_slice m\nfuse s_part, m_part, m, p as step\n";
enum { ELEMENTS = 3001 };

struct bound {
    fcc_context *context;
    fcc_comm *comm;
    fcc_program *program;
    void *stream;
    fcc_buffer *g, *p;
    float *m; /* anywhere */
    int rank, n;
    float moment, sum; /* what m and -p are times the sum of the gradients */
};

static inline float gradient(int rank, int i)
{
    return (float)((rank + 1) * (i % 7 + 1));
}

static inline void tensor_give(const struct bound *b, const char *name, fcc_buffer *buffer, const float *at, int64_t n)
{
    const struct fcc_tensor t = fcc_tensor_1d(buffer, buffer == FCC_ADDRESS ? (uint64_t)(uintptr_t)at : 0, FCC_F32, n);

    OK(fcc_program_tensor(b->program, name, &t));
}

static inline int64_t own_elements(const struct bound *b)
{
    return fcc_program_elements(b->program, "m");
}

static inline void bound_tensors(struct bound *b)
{
    float *g = calloc(ELEMENTS, sizeof(*g));

    CHECK(g != NULL);
    for (int i = 0; i < ELEMENTS; i++)
        g[i] = gradient(b->rank, i);
    OK(fcc_buffer_alloc(b->comm, FCC_BUFFER_LOCAL, ELEMENTS * sizeof(float), &b->g));
    OK(fcc_buffer_alloc(b->comm, FCC_BUFFER_RESULT, ELEMENTS * sizeof(float), &b->p));
    OK(fcc_buffer_write(b->g, 0, g, ELEMENTS * sizeof(float)));
    free(g);
    b->m = calloc((size_t)own_elements(b) + 1, sizeof(float));
    CHECK(b->m != NULL);
    tensor_give(b, "g", b->g, NULL, ELEMENTS);
    tensor_give(b, "p", b->p, NULL, ELEMENTS);
    tensor_give(b, "m", FCC_ADDRESS, b->m, own_elements(b));
}

static inline void scalars_give(const struct bound *b, double lr, double momentum)
{
    OK(fcc_program_scalar(b->program, "lr", lr));
    OK(fcc_program_scalar(b->program, "momentum", momentum));
}

/* With a connection that is there. */
static inline void bound_join(struct bound *b, fcc_context *context, const struct fcc_unique_id *id, int n, int rank,
                              uint32_t time_limit_ms)
{
    *b = (struct bound){.context = context, .rank = rank, .n = n};
    b->comm = client_join(context, id, n, rank, time_limit_ms);
    OK(fcc_program_open(b->comm, sgd, strlen(sgd), NULL, 0, &b->program));
    bound_tensors(b);
    scalars_give(b, 1, 1);
    b->stream = stream_open();
}

static inline struct bound bound_open(const struct ranks *all, int rank, uint32_t time_limit_ms)
{
    struct bound b;

    driver_use();
    bound_join(&b, client_connect(NULL), &all->id, all->n, rank, time_limit_ms);
    return b;
}

static inline void bound_leave(struct bound *b)
{
    stream_close(b->stream);
    fcc_program_close(b->program);
    fcc_comm_destroy(b->comm);
    free(b->m);
}

static inline void bound_close(struct bound *b)
{
    bound_leave(b);
    client_end(b->context);
}

/* A run has these scalars. */
static inline void bound_count(struct bound *b, float lr, float momentum)
{
    b->moment = momentum * b->moment + 1;
    b->sum += lr * b->moment;
}

static inline void bound_check(const struct bound *b)
{
    const float ranks = (float)(b->n * (b->n + 1)) / 2, *p = fcc_buffer_data(b->p);

    for (int i = 0; i < ELEMENTS; i++)
        if (p[i] != -b->sum * ranks * (float)(i % 7 + 1))
            check_failed(__FILE__, __LINE__, "rank %d of %d: element %d is %g, expected is %g", b->rank, b->n, i, (double)p[i],
                         (double)(-b->sum * ranks * (float)(i % 7 + 1)));
}

/* Ranks of a job on fake GPUs that have a library of products. */
static inline void guarded_run(int n, void (*rank)(int, const struct ranks *, void *), void *argument)
{
    struct test_daemon d;
    struct ranks r;

    CHECK(setenv("FCC_TEST_DEVICE", "cuda", 1) == 0);
    fake_start(&d, GPUS, NULL);
    fake->library = 1;
    ranks_start(&r, n, rank, argument);
    ranks_join(&r);
    fake_stop(&d);
}

#endif
