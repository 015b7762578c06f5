/* SPDX-License-Identifier: MIT
 *
 * victim.c - the job that is measured: two ranks, which run a noop and an all_reduce by turns, and somebody who connects a hundred times a second.
 */
#include <stdbool.h>
#include <unistd.h>

#include "tests/bench/neighbour/neighbour.h"

enum {
    BLOCK = 50,         /* pairs of operators between two looks whether the bench is over */
    MEET_MOST = 200000, /* looks whether the other rank has come, 50 us apart and more */
};

static void meet(_Atomic int *at, int *turn)
{
    int wanted = 2 * ++*turn;

    (void)atomic_fetch_add(at, 1);
    for (int i = 0; atomic_load(at) < wanted; i++) {
        if (i == MEET_MOST)
            _exit(8); /* the other rank has ended, and has said why */
        (void)usleep(50);
    }
}

static void sample_add(enum measured what, double us)
{
    unsigned n = atomic_load_explicit(&s->counts[what], memory_order_relaxed);

    if (n == SAMPLES)
        return;
    s->samples[what][n] = us;
    atomic_store_explicit(&s->counts[what], n + 1, memory_order_release);
}

static void block(fcc_comm *comm, const struct fcc_all_reduce_args *args, bool measures)
{
    for (int i = 0; i < BLOCK; i++) {
        double begin = now_us();
        must(fcc_noop(comm), "noop");
        double middle = now_us();
        must(fcc_all_reduce(comm, args), "all_reduce");
        double end = now_us();
        if (measures && atomic_load_explicit(&s->measures, memory_order_relaxed)) {
            sample_add(NOOP, middle - begin);
            sample_add(ALL_REDUCE, end - middle);
        }
    }
}

void victim_rank(int rank)
{
    fcc_comm *comm;
    int turn = 0;

    become(VICTIM);
    fcc_context *context = context_open("victim");
    must(fcc_comm_init(context, &s->victim, 2, rank, NULL, &comm), "fcc_comm_init");
    struct fcc_all_reduce_args args = reduce_new(comm);
    s->formed++;
    while (!s->over) {
        block(comm, &args, rank == 0);
        if (rank == 0)
            s->over = s->quit;
        meet(&s->met, &turn);
    }
    fcc_disconnect(context);
    _exit(0);
}

void victim_connects(void)
{
    become(VICTIM);
    fcc_context *stays = context_open("connects"); /* and so does the worker */
    while (!s->quit) {
        bool measures = s->measures;
        double begin = now_us();
        fcc_context *context = context_open("connects");
        double us = now_us() - begin;
        if (measures && s->measures)
            sample_add(CONNECT, us);
        fcc_disconnect(context);
        (void)usleep(10000);
    }
    fcc_disconnect(stays);
    _exit(0);
}
