/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_guard_lookups.c - guarded programs that look rows of tables up, with the real daemon and the real library on fake GPUs: in their last step, on
 * streams and in graphs, also where a rank refuses a run, or has a wrong index; elsewhere they are refused.
 */
#include "tests/fake_gpu/fake_gpu_steps.h"

#define WHY "the loss is not a number"

#define LOOKUP                                                                                                                 \
    "program lookup(B = 4)\nin t: f32[4, 8, 3] sliced(0)\nin i: i32[8] local\nin o: i32[9] local\n"                            \
    "out y: f32[B, 4, 3] sliced(0)\ninout z: f32[8]\n"
#define ROWS "all_to_all(embedding(t, i, o), 0)\n"
enum { TABLE = 2 * 8 * 3, BAGS = 8, OUT = 2 * 4 * 3 };

/* Two tables on each rank of two, whose elements are the rank + 1; a bag has one index. */
struct lookup {
    float t[TABLE], y[OUT], z[BAGS];
    int32_t i[BAGS], o[BAGS + 1];
};

static fcc_program *lookup_open(fcc_comm *comm, const char *text, struct lookup *l, int rank)
{
    const struct {
        const char *name;
        void *at;
        enum fcc_dtype dtype;
        int64_t n;
    } given[] = {{"t", l->t, FCC_F32, TABLE},
                 {"i", l->i, FCC_I32, BAGS},
                 {"o", l->o, FCC_I32, BAGS + 1},
                 {"y", l->y, FCC_F32, OUT},
                 {"z", l->z, FCC_F32, BAGS}};
    fcc_program *p;

    *l = (struct lookup){.z = {0}};
    for (int i = 0; i < TABLE; i++)
        l->t[i] = (float)(rank + 1);
    for (int i = 0; i <= BAGS; i++)
        l->o[i] = i;
    OK(fcc_program_open(comm, text, strlen(text), NULL, 0, &p));
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
        const struct fcc_tensor t = fcc_tensor_1d(FCC_ADDRESS, (uint64_t)(uintptr_t)given[i].at, given[i].dtype, given[i].n);
        OK(fcc_program_tensor(p, given[i].name, &t));
    }
    return p;
}

/* The last run has stored the ranks' rows, or nothing; `count` runs have changed z. */
static void lookup_check(fcc_comm *comm, struct lookup *l, bool was, bool wrong, int count)
{
    OK(fcc_noop(comm));
    for (int at = 0; at < OUT; at++) {
        if (!wrong) /* a run that an index has ended may have stored other rows */
            CHECK(l->y[at] == (was ? (float)(at / 6 % 2 + 1) : -1));
        l->y[at] = -1;
    }
    for (int at = 0; at < BAGS; at++)
        CHECK(l->z[at] == (float)count);
}

/* Runs, replays, a run that the second rank refuses, and one whose index of it is wrong, which is found when the elements before have been made. */
static void lookup_rank(int rank, const struct ranks *all, void *argument)
{
    struct lookup *l = calloc(1, sizeof(*l));
    void *on, *graph;

    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    on = stream_open();
    fcc_program *p = lookup_open(comm, LOOKUP "z = z + 1\ny = " ROWS, l, rank);
    OK(fcc_program_prepare_guarded(p));
    driver->capture_begin();
    OK(fcc_program_enqueue(p, on));
    graph = driver->capture_end();
    for (int i = 0; i < OUT; i++)
        l->y[i] = -1;
    for (int round = 0, count = 0; round < 8; round++) {
        const bool refused = round % 4 == 1, wrong = round % 4 == 2;
        l->i[3] = wrong && rank ? 8 : 0;
        if (refused && rank)
            OK(fcc_program_refuse_enqueue(p, WHY, on));
        else if (round < 4)
            OK(fcc_program_enqueue(p, on));
        else
            driver->graph_launch(graph, on);
        count += !refused;
        stream_sync(on);
        FAILS(fcc_comm_error_wait(comm, -1),
              wrong              ? -ERANGE
              : refused && !rank ? -EINVAL
                                 : 0,
              wrong              ? "rank 1: embedding_all_to_all: "
              : refused && !rank ? WHY
                                 : "");
        lookup_check(comm, l, !refused, wrong, count);
    }
    fcc_program_close(p);
    driver->graph_destroy(graph);
    stream_close(on);
    fcc_comm_destroy(comm);
    client_end(context);
    free(l);
}

static void lookup(void)
{
    guarded_run(PAIR, lookup_rank, NULL);
}

/* Elements behind a lookup, which a wrong index ends on some ranks when others may have ended it well. */
static void unfit_rank(int rank, const struct ranks *all, void *argument)
{
    struct lookup *l = calloc(1, sizeof(*l));

    (void)argument;
    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    fcc_program *p = lookup_open(comm, LOOKUP "y = " ROWS "z = z + 1\n", l, rank);
    FAILS(fcc_program_prepare_guarded(p), -EOPNOTSUPP,
          "line 7: rows of tables: allowed in guarded programs as their last step, since");
    OK(fcc_program_prepare(p));
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    client_end(context);
    free(l);
}

static void unfit(void)
{
    guarded_run(PAIR, unfit_rank, NULL);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"lookup", lookup, 0},
        {"unfit", unfit, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_guard_lookups", TESTS(tests));
}
