/* SPDX-License-Identifier: MIT
 *
 * mlp.c - one decode step through the gated MLP of a language model, tensor-parallel: each rank has some of the inner
 * dimension. It computes its part of the inner state by itself, then the down projection with its AllReduce is the fused
 * operator. The token's hidden state is a pooling of the text's last words.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/demo/demo.h"

#define CONTEXT_WORDS 64

static void fill(signed char *w, int64_t n, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        w[i] = (signed char)(hash_mix(stream << 40 | (uint64_t)i) & 255);
}

static void hidden_state(const struct text *t, float x[MLP_HIDDEN])
{
    double squares = 0;

    for (int64_t i = 0; i < MLP_HIDDEN; i++) {
        double sum = 0, weight = 1;
        for (int64_t age = 0; age < CONTEXT_WORDS && age < t->nwords; age++, weight *= 0.9)
            sum += weight * (double)(signed char)(hash_join(text_word(t, t->nwords - 1 - age)->hash, (uint64_t)i) & 255);
        x[i] = (float)sum;
        squares += sum * sum;
    }
    for (int64_t i = 0; i < MLP_HIDDEN && squares > 0; i++)
        x[i] /= (float)sqrt(squares / MLP_HIDDEN);
}

int mlp_make(const struct text *text, struct mlp *out)
{
    static const int64_t inner[DEMO_RANKS] = {1280, 1536, 1408, 1408};
    const int64_t n = (int64_t)MLP_INNER * MLP_HIDDEN;

    *out = (struct mlp){.gate = malloc((size_t)n), .up = malloc((size_t)n), .down = malloc((size_t)n)};
    if (!out->gate || !out->up || !out->down)
        return -ENOMEM;
    for (int r = 0; r < DEMO_RANKS; r++)
        out->first[r + 1] = out->first[r] + inner[r];
    hidden_state(text, out->x);
    fill(out->gate, n, 1);
    fill(out->up, n, 2);
    fill(out->down, n, 3);
    return 0;
}

static void mlp_describe(const struct demo *demo, char *out, size_t room)
{
    (void)demo;
    (void)snprintf(out, room, "M 1, N %d, K %d over the ranks", MLP_HIDDEN, MLP_INNER);
}

static int64_t mlp_elements(const struct demo *demo, int rank)
{
    (void)demo;
    (void)rank;
    return MLP_HIDDEN;
}

/* silu(gate . x) * (up . x) of one row of the rank's part. */
static float inner_element(const struct mlp *mlp, int64_t row)
{
    const signed char *g = mlp->gate + row * MLP_HIDDEN, *u = mlp->up + row * MLP_HIDDEN;
    float gate = 0, up = 0;

    for (int64_t j = 0; j < MLP_HIDDEN; j++) {
        gate += (float)g[j] * mlp->x[j];
        up += (float)u[j] * mlp->x[j];
    }
    gate *= (float)MLP_SCALE;
    up *= (float)MLP_SCALE;
    return gate / (1 + expf(-gate)) * up;
}

static void store(fcc_buffer *buffer, int64_t i, enum fcc_dtype dtype, float value)
{
    void *data = fcc_buffer_data(buffer);

    if (dtype == FCC_F32)
        ((float *)data)[i] = value;
    else
        ((uint16_t *)data)[i] = number_bf16(value);
}

static int mlp_open(struct member *m, enum demo_workload which, enum fcc_dtype dtype, struct fcc_gemv_all_reduce_args *args)
{
    const struct mlp *mlp = &m->demo->mlp;
    int64_t first = mlp->first[m->rank], k = mlp->first[m->rank + 1] - first;
    size_t size = fcc_dtype_size(dtype);
    fcc_buffer *x, *w;
    int status;

    if ((status = member_alloc(m, FCC_BUFFER_SYMMETRIC, demo_result_bytes(m->demo, which), &m->out[which])) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, (size_t)k * size, &x)) ||
        (status = member_alloc(m, FCC_BUFFER_LOCAL, (size_t)(MLP_HIDDEN * k) * size, &w)))
        return status;
    for (int64_t i = 0; i < k; i++)
        store(x, i, dtype, inner_element(mlp, first + i));
    for (int64_t i = 0; i < MLP_HIDDEN; i++)
        for (int64_t j = 0; j < k; j++)
            store(w, i * k + j, dtype, (float)mlp->down[i * MLP_INNER + first + j] * (float)MLP_SCALE);
    *args = (struct fcc_gemv_all_reduce_args){
        .x = fcc_tensor_2d(x, 0, dtype, 1, k),
        .w = fcc_tensor_2d(w, 0, dtype, MLP_HIDDEN, k),
        .y = fcc_tensor_2d(m->out[which], 0, dtype, 1, MLP_HIDDEN),
    };
    return 0;
}

static int mlp_expected(const struct demo *demo, enum reference_type type, double *out)
{
    const struct reference_mlp mlp = {.hidden = MLP_HIDDEN,
                                      .inner = MLP_INNER,
                                      .gate = demo->mlp.gate,
                                      .up = demo->mlp.up,
                                      .down = demo->mlp.down,
                                      .scale = MLP_SCALE};
    double *inner_state = malloc(MLP_INNER * sizeof(double));

    if (!inner_state)
        return -ENOMEM;
    reference_mlp(&mlp, demo->mlp.x, type, inner_state, out);
    free(inner_state);
    return 0;
}

static int bf16_open(struct member *m)
{
    return mlp_open(m, DEMO_MLP_BF16, FCC_BF16, &m->mlp[0]);
}

static int f32_open(struct member *m)
{
    return mlp_open(m, DEMO_MLP_F32, FCC_F32, &m->mlp[1]);
}

static int bf16_run(struct member *m, enum fcc_schedule_kind kind)
{
    m->mlp[0].schedule = (uint32_t)kind;
    return fcc_gemv_all_reduce(m->comm, &m->mlp[0]);
}

static int f32_run(struct member *m, enum fcc_schedule_kind kind)
{
    m->mlp[1].schedule = (uint32_t)kind;
    return fcc_gemv_all_reduce(m->comm, &m->mlp[1]);
}

static int bf16_expected(const struct demo *demo, int rank, double *out)
{
    (void)rank;
    return mlp_expected(demo, REFERENCE_BF16, out);
}

static int f32_expected(const struct demo *demo, int rank, double *out)
{
    (void)rank;
    return mlp_expected(demo, REFERENCE_F32, out);
}

const struct workload mlp_bf16_workload = {
    .op = "gemv_all_reduce",
    .dtype = FCC_BF16,
    .type = REFERENCE_BF16,
    .describe = mlp_describe,
    .elements = mlp_elements,
    .open = bf16_open,
    .run = bf16_run,
    .expected = bf16_expected,
};

const struct workload mlp_f32_workload = {
    .op = "gemv_all_reduce",
    .dtype = FCC_F32,
    .type = REFERENCE_F32,
    .describe = mlp_describe,
    .elements = mlp_elements,
    .open = f32_open,
    .run = f32_run,
    .expected = f32_expected,
};
