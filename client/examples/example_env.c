/* SPDX-License-Identifier: MIT
 *
 * example_env.c - the ranks that a launcher has started compute y = x . w^T, each with its columns of x and w, and all get the sum.
 *
 *     cc example_env.c $(pkg-config --cflags --libs libfccclient) -o example_env
 *     mpirun -n 4 ./example_env     or mpiexec, srun -n 4, torchrun --nproc_per_node 4 --no_python
 */
#include <fccclient.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call) ((call) ? (fprintf(stderr, "%s\n", fcc_last_error()), exit(1)) : (void)0)

enum { N = 512, K = 256 /* columns of each rank */ };

int main(void)
{
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *x, *w, *y;

    OK(fcc_connect(NULL, &context));
    OK(fcc_comm_init_env(context, NULL, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * sizeof(float), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * K * sizeof(float), &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &y));

    int rank = fcc_comm_rank(comm), size = fcc_comm_size(comm);
    float *px = fcc_buffer_data(x), *pw = fcc_buffer_data(w), *py = fcc_buffer_data(y);
    for (int k = 0; k < K; k++)
        px[k] = (float)(rank + 1);
    for (int i = 0; i < N * K; i++)
        pw[i] = (float)(i / K % 7);

    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(w, 0, FCC_F32, N, K),
                                            .y = fcc_tensor_2d(y, 0, FCC_F32, 1, N)};
    OK(fcc_gemv_all_reduce(comm, &args));

    int wrong = 0, sum = K * size * (size + 1) / 2; /* of all ranks' x */
    for (int n = 0; n < N; n++)
        wrong += py[n] != (float)(sum * (n % 7));
    printf("rank %d of %d: y[1] = %g, %d of %d wrong\n", rank, size, (double)py[1], wrong, N);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    return wrong != 0;
}
