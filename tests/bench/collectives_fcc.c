/* SPDX-License-Identifier: MIT
 *
 * collectives_fcc.c - collectives_fcc RANKS COLLECTIVE BYTES ITERS SOCKET...: collectives.h, done by fccd. Ranks are processes, spread in
 * blocks over the fccds that listen at these sockets.
 */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/fccclient.h"
#include "tests/bench/collectives.h"

enum { RANKS_MOST = 256, ITERS_MOST = 100000 };

struct shared {
    struct fcc_unique_id id;
    _Atomic int known; /* the id is */
    _Atomic int64_t wrong;
};

static void must(int status, const char *what)
{
    if (!status)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, fcc_last_error());
    exit(1);
}

static void run(fcc_comm *comm, int which, int rank, const struct fcc_tensor *in, const struct fcc_tensor *out)
{
    const struct fcc_tensor none = {.buffer = NULL}, *root_in = rank ? &none : in, *root_out = rank ? &none : out;

    switch (which) {
    case 0:
        must(fcc_all_reduce(comm, &(struct fcc_all_reduce_args){.in = *in, .out = *out}), "all_reduce");
        return;
    case 1:
        must(fcc_reduce_scatter(comm, &(struct fcc_reduce_scatter_args){.in = *in, .out = *out}), "reduce_scatter");
        return;
    case 2:
        must(fcc_all_gather(comm, &(struct fcc_all_gather_args){.in = *in, .out = *out}), "all_gather");
        return;
    case 3:
        must(fcc_all_to_all(comm, &(struct fcc_all_to_all_args){.in = *in, .out = *out}), "all_to_all");
        return;
    case 4: /* in place, as MPI's */
        must(fcc_broadcast(comm, &(struct fcc_broadcast_args){.in = rank ? none : *out, .out = *out}), "broadcast");
        return;
    case 5:
        must(fcc_reduce(comm, &(struct fcc_reduce_args){.in = *in, .out = *root_out}), "reduce");
        return;
    case 6:
        must(fcc_gather(comm, &(struct fcc_gather_args){.in = *in, .out = *root_out}), "gather");
        return;
    default:
        must(fcc_scatter(comm, &(struct fcc_scatter_args){.in = *root_in, .out = *out}), "scatter");
        return;
    }
}

static void rank_run(struct shared *s, double *us, int rank, int ranks, char **argv, const char *socket)
{
    int which = collective_find(argv[2]), iters = atoi(argv[4]), warmup = iters / 10 + 3;
    int64_t bytes = atoll(argv[3]), whole = bytes / 4 / ranks * ranks, share = whole / ranks;
    const struct fcc_connect_options options = {.socket_path = socket, .job = "collectives"};
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *in, *out;

    must(fcc_connect(&options, &context), "connect");
    if (rank == 0) {
        must(fcc_get_unique_id(context, &s->id), "id");
        atomic_store(&s->known, 1);
    }
    while (!atomic_load(&s->known))
        (void)usleep(1000);
    must(fcc_comm_init(context, &s->id, ranks, rank, NULL, &comm), "init");
    must(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)bytes + 64, &in), "alloc");
    must(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, (size_t)bytes + 64, &out), "alloc");
    float *from = fcc_buffer_data(in), *to = fcc_buffer_data(out);
    for (int64_t i = 0; i < whole; i++) {
        from[i] = element_of(rank, i);
        to[i] = which == 4 && rank == 0 ? from[i] : -1;
    }
    struct fcc_tensor a = fcc_tensor_1d(in, 0, FCC_F32, collectives[which].in_is_share ? share : whole);
    struct fcc_tensor b = fcc_tensor_1d(out, 0, FCC_F32, collectives[which].out_is_share ? share : whole);
    for (int i = -warmup; i < iters; i++) {
        must(fcc_noop(comm), "noop");
        double start = now_us();
        run(comm, which, rank, &a, &b);
        if (i >= 0)
            us[(size_t)rank * (size_t)iters + (size_t)i] = now_us() - start;
    }
    (void)atomic_fetch_add(&s->wrong, result_wrong(which, rank, ranks, whole, to));
    must(fcc_noop(comm), "noop");
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    exit(0);
}

int main(int argc, char **argv)
{
    int ranks = argc > 5 ? atoi(argv[1]) : 0, iters = argc > 5 ? atoi(argv[4]) : 0, failed = 0, status;

    if (ranks < 1 || ranks > RANKS_MOST || iters < 1 || iters > ITERS_MOST) {
        (void)fprintf(stderr, "usage: collectives_fcc RANKS COLLECTIVE BYTES ITERS SOCKET...\n");
        return 2;
    }
    struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    double *us =
        mmap(NULL, sizeof(double) * (size_t)(ranks * iters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED || us == MAP_FAILED)
        return 1;
    for (int r = 0; r < ranks; r++)
        if (fork() == 0)
            rank_run(s, us, r, ranks, argv, argv[5 + (long)r * (argc - 5) / ranks]);
    while (wait(&status) > 0)
        failed |= status;
    if (!failed && atomic_load(&s->wrong))
        (void)fprintf(stderr, "%s: %lld wrong elements\n", argv[2], (long long)atomic_load(&s->wrong));
    if (failed || atomic_load(&s->wrong))
        return 1;
    for (int i = 0; i < iters; i++)
        for (int r = 1; r < ranks; r++)
            if (us[r * iters + i] > us[i])
                us[i] = us[r * iters + i];
    collective_print(collective_find(argv[2]), ranks, atoll(argv[3]), us, iters);
    return 0;
}
