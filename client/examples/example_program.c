/* SPDX-License-Identifier: MIT
 *
 * example_program.c - a program of computation and exchange on two ranks: the sum of both ranks' vectors, times a number (client/PROGRAMS.md).
 *
 *     FCCD_SOCKET=... example_program
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fccclient.h>

#define RANKS 2
#define N 8
#define OK(call) ((call) ? (fprintf(stderr, "%s\n", fcc_last_error()), exit(1)) : (void)0)

static const char text[] = "program scaled(N)\n"
                           "in x: f32[N] local\n"
                           "scalar k\n"
                           "out y: f32[N] replicated\n"
                           "s = all_reduce(x)\n"
                           "y = s * k + 1\n"
                           "schedule\n"
                           "fuse s, y\n";

static void run(const struct fcc_unique_id *id, int rank)
{
    const struct fcc_program_size size = {"N", N};
    fcc_context *context;
    fcc_comm *comm;
    fcc_program *program;
    fcc_buffer *x, *y;

    OK(fcc_connect(NULL, &context));
    OK(fcc_comm_init(context, id, RANKS, rank, NULL, &comm));
    OK(fcc_program_open(comm, text, strlen(text), &size, 1, &program));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, N * sizeof(float), &x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_RESULT, N * sizeof(float), &y)); /* fcc_program_shares(program, "y") is 1 */
    const struct fcc_tensor tx = fcc_tensor_1d(x, 0, FCC_F32, N), ty = fcc_tensor_1d(y, 0, FCC_F32, N);
    float *px = fcc_buffer_data(x), *py = fcc_buffer_data(y);
    for (int i = 0; i < N; i++)
        px[i] = (float)(i + 10 * rank);
    OK(fcc_program_tensor(program, "x", &tx));
    OK(fcc_program_tensor(program, "y", &ty));
    OK(fcc_program_scalar(program, "k", 0.5));
    OK(fcc_program_run(program)); /* y[i] = (i + i + 10) * 0.5 + 1 */
    printf("rank %d: y[3] = %g\n", rank, (double)py[3]);
    fcc_program_close(program);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

int main(void)
{
    struct fcc_unique_id id;
    fcc_context *context;
    int status, wrong = 0;

    OK(fcc_connect(NULL, &context));
    OK(fcc_get_unique_id(context, &id));
    fcc_disconnect(context);
    for (int rank = 0; rank < RANKS; rank++) {
        if (fork() == 0) {
            run(&id, rank);
            exit(0);
        }
    }
    for (int rank = 0; rank < RANKS; rank++)
        wrong |= wait(&status) < 0 || status;
    return wrong;
}
