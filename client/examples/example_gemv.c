/* SPDX-License-Identifier: MIT
 *
 * example_gemv.c - two ranks compute y = x . w^T, each with its half of the columns of x and w, and both get the sum.
 *
 *     cc example_gemv.c $(pkg-config --cflags --libs libfccclient) && ./a.out
 */
#include <fccclient.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define OK(call) ((call) ? (fprintf(stderr, "%s\n", fcc_last_error()), exit(1)) : (void)0)

enum { RANKS = 2, N = 512, K = 256 /* columns of each rank */ };

static int run(const struct fcc_unique_id *id, int rank)
{
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *x, *w, *y;

    OK(fcc_connect(NULL, &context));
    OK(fcc_comm_init(context, id, RANKS, rank, NULL, &comm));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, K * sizeof(float), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * K * sizeof(float), &w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, N * sizeof(float), &y));

    float *px = fcc_buffer_data(x), *pw = fcc_buffer_data(w), *py = fcc_buffer_data(y);
    for (int k = 0; k < K; k++)
        px[k] = (float)(rank + 1);
    for (int i = 0; i < N * K; i++)
        pw[i] = (float)(i / K % 7);

    struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(x, 0, FCC_F32, 1, K),
                                            .w = fcc_tensor_2d(w, 0, FCC_F32, N, K),
                                            .y = fcc_tensor_2d(y, 0, FCC_F32, 1, N)};
    OK(fcc_gemv_all_reduce(comm, &args));

    int wrong = 0;
    for (int n = 0; n < N; n++)
        wrong += py[n] != (float)(K * (1 + 2) * (n % 7));
    printf("rank %d of %d: y[1] = %g, %d of %d wrong\n", rank, RANKS, (double)py[1], wrong, N);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    return wrong != 0;
}

int main(void)
{
    fcc_context *context;
    struct fcc_unique_id id;
    int failed = 0, status;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    fcc_disconnect(context); /* a child connects anew */
    for (int rank = 0; rank < RANKS; rank++)
        if (fork() == 0)
            return run(&id, rank);
    while (wait(&status) > 0)
        failed |= status;
    return failed != 0;
}
