/* SPDX-License-Identifier: MIT
 *
 * mpi_collectives.c - mpirun -np R mpi_collectives COLLECTIVE BYTES ITERS: collectives.h, done by MPI.
 */
#include <mpi.h>

#include "tests/bench/collectives.h"

static void run(int which, const float *in, float *out, int whole, int share)
{
    switch (which) {
    case 0:
        (void)MPI_Allreduce(in, out, whole, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    case 1:
        (void)MPI_Reduce_scatter_block(in, out, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        return;
    case 2:
        (void)MPI_Allgather(in, share, MPI_FLOAT, out, share, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    case 3:
        (void)MPI_Alltoall(in, share, MPI_FLOAT, out, share, MPI_FLOAT, MPI_COMM_WORLD);
        return;
    case 4: /* MPI's is in place: the root's input was copied to its result before */
        (void)MPI_Bcast(out, whole, MPI_FLOAT, 0, MPI_COMM_WORLD);
        return;
    case 5:
        (void)MPI_Reduce(in, out, whole, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
        return;
    case 6:
        (void)MPI_Gather(in, share, MPI_FLOAT, out, share, MPI_FLOAT, 0, MPI_COMM_WORLD);
        return;
    default:
        (void)MPI_Scatter(in, share, MPI_FLOAT, out, share, MPI_FLOAT, 0, MPI_COMM_WORLD);
        return;
    }
}

int main(int argc, char **argv)
{
    int rank, ranks;

    (void)MPI_Init(&argc, &argv);
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4) {
        (void)fprintf(stderr, "usage: mpi_collectives COLLECTIVE BYTES ITERS\n");
        return 2;
    }
    int which = collective_find(argv[1]), iters = atoi(argv[3]), warmup = iters / 10 + 3;
    int64_t bytes = atoll(argv[2]), whole = bytes / 4 / ranks * ranks, share = whole / ranks;
    float *in = aligned_alloc(4096, (size_t)bytes + 8192 - (size_t)bytes % 4096),
          *out = aligned_alloc(4096, (size_t)bytes + 8192 - (size_t)bytes % 4096);
    double *us = calloc((size_t)iters, sizeof(double)), *slowest = calloc((size_t)iters, sizeof(double));
    for (int64_t i = 0; i < whole; i++) {
        in[i] = element_of(rank, i);
        out[i] = which == 4 && rank == 0 ? in[i] : -1;
    }
    for (int i = -warmup; i < iters; i++) {
        (void)MPI_Barrier(MPI_COMM_WORLD);
        double start = now_us();
        run(which, in, out, (int)whole, (int)share);
        if (i >= 0)
            us[i] = now_us() - start;
    }
    (void)MPI_Reduce(us, slowest, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    int64_t wrong = result_wrong(which, rank, ranks, whole, out), all = 0;
    (void)MPI_Allreduce(&wrong, &all, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && !all)
        collective_print(which, ranks, bytes, slowest, iters);
    if (rank == 0 && all)
        (void)fprintf(stderr, "%s: %lld wrong elements\n", argv[1], (long long)all);
    (void)MPI_Finalize();
    return all ? 1 : 0;
}
