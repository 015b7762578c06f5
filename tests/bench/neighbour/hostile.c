/* SPDX-License-Identifier: MIT
 *
 * hostile.c - what the neighbour does, each with two processes, until they are killed.
 */
#include <unistd.h>

#include "tests/bench/neighbour/neighbour.h"

enum {
    AHEAD = 4,  /* operators that each communicator of the flood has in flight */
    SIDE = 512, /* of the products */
    BIG = 8 << 20,
};

/* Floods: COMMS communicators with operators in flight all the time. */
void flood_rank(int rank)
{
    fcc_comm *comms[COMMS];
    struct fcc_all_reduce_args args[COMMS];
    fcc_request *requests[COMMS][AHEAD];
    fcc_context *context = context_open("flood");

    for (int c = 0; c < COMMS; c++) {
        must(fcc_comm_init(context, &s->flood[c], 2, rank, NULL, &comms[c]), "fcc_comm_init");
        args[c] = reduce_new(comms[c]);
    }
    for (unsigned long n = 0;; n++)
        for (int c = 0; c < COMMS; c++) {
            fcc_request **r = &requests[c][n % AHEAD];
            if (n >= AHEAD) {
                must(fcc_request_wait(*r, -1), "fcc_request_wait");
                fcc_request_free(*r);
            }
            must(n % 2 ? fcc_all_reduce_start(comms[c], &args[c], r) : fcc_noop_start(comms[c], r), "start");
            s->hostile_done++;
        }
}

/* Big products, one after the other. */
void products_rank(int rank)
{
    fcc_context *context = context_open("products");
    fcc_comm *comm;

    must(fcc_comm_init(context, &s->products, 2, rank, NULL, &comm), "fcc_comm_init");
    struct fcc_gemm_all_reduce_args args = {.a = tensor_new(comm, FCC_BUFFER_LOCAL, SIDE, SIDE),
                                            .b = tensor_new(comm, FCC_BUFFER_LOCAL, SIDE, SIDE),
                                            .c = tensor_new(comm, FCC_BUFFER_RESULT, SIDE, SIDE)};
    for (;; s->hostile_done++)
        must(fcc_gemm_all_reduce(comm, &args), "gemm_all_reduce");
}

/* Connects and leaves, in many jobs: each has a worker, which ends when it has had no client for a while. */
void connect_rank(int rank)
{
    for (unsigned n = 0;; n++) {
        char job[32];
        const struct fcc_connect_options options = {.socket_path = s->socket, .job = job};
        fcc_context *context;

        (void)snprintf(job, sizeof(job), "connect-%u", n % 5 + 5 * (unsigned)rank);
        if (!fcc_connect(&options, &context))
            fcc_disconnect(context);
        s->hostile_done++;
    }
}

/* Asks for what it does not get. */
void refused_rank(int rank)
{
    fcc_context *context = context_open("refused");
    struct fcc_unique_id id;
    fcc_comm *comm, *wrong;
    fcc_buffer *b;

    (void)rank;
    must(fcc_get_unique_id(context, &id), "fcc_get_unique_id");
    must(fcc_comm_init(context, &id, 1, 0, NULL, &comm), "fcc_comm_init");
    struct fcc_all_reduce_args args = reduce_new(comm);
    args.out.shape[0] = ELEMENTS / 2; /* not as long as the other one */
    for (;; s->hostile_done++) {
        if (!fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, (size_t)1 << 45, &b) || !fcc_all_reduce(comm, &args) ||
            !fcc_comm_init(context, &id, 1, 0, NULL, &wrong))
            _exit(4);
    }
}

/* Allocates and frees: the kernel makes huge pages of these buffers, which concerns all cores. */
void buffers_rank(int rank)
{
    fcc_context *context = context_open("buffers");
    struct fcc_unique_id id;
    fcc_comm *comm;
    fcc_buffer *b;

    (void)rank;
    must(fcc_get_unique_id(context, &id), "fcc_get_unique_id");
    must(fcc_comm_init(context, &id, 1, 0, NULL, &comm), "fcc_comm_init");
    for (;; s->hostile_done++) {
        must(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, BIG, &b), "fcc_buffer_alloc");
        fcc_buffer_free(b);
    }
}
