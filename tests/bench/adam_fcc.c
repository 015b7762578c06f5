/* SPDX-License-Identifier: MIT
 *
 * adam_fcc.c - adam_fcc RANKS N ITERS SOCKET FILE [cuda|cpu [TILE]]: steps of the program in FILE (client/programs/adam.fcc) on N parameters, by RANKS
 * processes; in tiles of TILE elements. Prints each step's longest time, and how many of the first step's parameters are not those of Adam in double
 * precision.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/program_ranks.h"

enum { TEXT_MOST = 65536, CHUNK_MOST = 64 };
static const char *const scalars[] = {"lr", "beta1", "beta2", "epsilon", "scale"};
static const double values[] = {0.001, 0.9, 0.999, 1e-8, 0.5};

struct shared {
    struct meeting meeting;
    _Atomic int64_t wrong;
};

static float gradient(int rank, int64_t i)
{
    return (float)((i * 7 + rank * 3) % 31 - 15) / 16;
}

static fcc_buffer *tensor_give(fcc_program *p, fcc_comm *comm, const char *name)
{
    const int64_t n = fcc_program_elements(p, name);
    fcc_buffer *b;

    must(fcc_buffer_alloc(comm, fcc_program_shares(p, name) ? FCC_BUFFER_RESULT : FCC_BUFFER_LOCAL, (size_t)n * 4 + 4, &b));
    const struct fcc_tensor t = fcc_tensor_1d(b, 0, FCC_F32, n);
    must(fcc_program_tensor(p, name, &t));
    return b;
}

/* Of parameters that were 1, after one step. */
static int64_t wrong_count(const float *p, int64_t n, int ranks)
{
    int64_t wrong = 0;

    for (int64_t i = 0; i < n; i++) {
        double g = 0;
        for (int r = 0; r < ranks; r++)
            g += gradient(r, i);
        g *= 0.5;
        wrong += !(fabs((double)p[i] - (1 - 0.001 * g / (fabs(g) + 1e-8))) < 1e-6);
    }
    return wrong;
}

static void rank_run(struct shared *s, double *us, int rank, int ranks, char **argv)
{
    static char text[TEXT_MOST];
    const struct fcc_connect_options options = {.socket_path = argv[4], .job = "adam"};
    const struct fcc_comm_options kind = {
        .device = -1, .device_kind = argv[6] && !strcmp(argv[6], "cuda") ? FCC_DEVICE_CUDA : FCC_DEVICE_CPU};
    const int64_t n = atoll(argv[2]);
    const int iters = atoi(argv[3]);
    const struct fcc_program_size size = {"N", n};
    FILE *f = fopen(argv[5], "r");
    size_t length = f ? fread(text, 1, sizeof(text) - CHUNK_MOST, f) : 0;
    fcc_context *context;
    fcc_comm *comm;
    fcc_program *p;

    if (argv[6] && argv[7]) {
        const int64_t tile = atoll(argv[7]) * ranks;
        length += (size_t)snprintf(text + length, CHUNK_MOST, "chunk p %lld\n", (long long)((n + tile - 1) / tile));
    }
    comm = meeting_join(&s->meeting, rank, ranks, &options, &kind, &context);
    must(fcc_program_open(comm, text, length, &size, 1, &p));
    float *values_of = calloc((size_t)n + 1, sizeof(*values_of));
    fcc_buffer *g = tensor_give(p, comm, "g"), *w = tensor_give(p, comm, "p");
    if (!values_of)
        exit(1);
    (void)tensor_give(p, comm, "m");
    (void)tensor_give(p, comm, "v");
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        must(fcc_program_scalar(p, scalars[i], values[i]));
    for (int64_t i = 0; i < n; i++)
        values_of[i] = gradient(rank, i);
    must(fcc_buffer_write(g, 0, values_of, (size_t)n * sizeof(float)));
    for (int64_t i = 0; i < n; i++)
        values_of[i] = 1;
    must(fcc_buffer_write(w, 0, values_of, (size_t)n * sizeof(float)));
    for (int i = -3; i < iters; i++) {
        must(fcc_program_scalar(p, "step", i + 4));
        must(fcc_noop(comm));
        const double begin = now_us();
        must(fcc_program_run(p));
        if (i >= 0)
            us[rank * iters + i] = now_us() - begin;
        if (i == -3) {
            must(fcc_buffer_read(w, 0, values_of, (size_t)n * sizeof(float)));
            (void)atomic_fetch_add(&s->wrong, wrong_count(values_of, n, ranks));
        }
    }
    free(values_of);
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

int main(int argc, char **argv)
{
    const bool more = (argc == 7 || (argc == 8 && atoll(argv[7]) > 0)) && (!strcmp(argv[6], "cuda") || !strcmp(argv[6], "cpu"));
    const int ranks = argc == 6 || more ? atoi(argv[1]) : 0, iters = ranks ? atoi(argv[3]) : 0;

    if (ranks < 1 || ranks > RANKS_MOST || iters < 1) {
        (void)fprintf(stderr, "usage: adam_fcc RANKS N ITERS SOCKET FILE [cuda|cpu [TILE]]\n");
        return 2;
    }
    double *us;
    struct shared *s = ranks_share(sizeof(*s), ranks, iters, &us);
    if (!s)
        return 1;
    for (int r = 0; r < ranks; r++) {
        if (fork() == 0) {
            rank_run(s, us, r, ranks, argv);
            _exit(0);
        }
    }
    if (ranks_wait(ranks))
        return 1;
    printf("{\"wrong\": %lld, \"us\": [", (long long)s->wrong);
    longest_print(us, ranks, iters);
    printf("]}\n");
    return 0;
}
