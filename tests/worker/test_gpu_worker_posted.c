/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_posted.c - a client that lets go of memory into which the worker stores something in passing: the failure epoch of a bound
 * operator, of which the client says that it has launched a run. No libfccclient lets go before its kernels have ended; so this one speaks
 * bytes.
 */
#include "tests/fake_gpu/fake_gpu_raw.h"

enum { STORE_US = 400000 };

enum way { FREES, DESTROYS, CLOSES, ABORTS };

static void let_go(enum way way)
{
    struct test_daemon d;
    struct speaker o;

    fake_start(&d, GPUS, NULL);
    speaker_open(&o, &d);
    uint32_t number = bind_repeated(&o)->number;
    fake->store_us = STORE_US; /* who frees before it has come is seen (fake_check()); who waits does so for that long */
    (void)submit(&o, FCC_PREPARE_RUN, number, 1);
    settle(&o);
    if (way == FREES) {
        struct fcc_prepared_msg m = {.comm = o.comm, .number = number};
        CHECK(ask(o.r, &m, FCC_MSG_PREPARED_FREE, sizeof(m))->status == 0);
    } else if (way == ABORTS) { /* and then lets go of it, while its kernels are told to leave */
        struct fcc_comm_msg m = {.comm = o.comm, .reason = "enough"};
        CHECK(ask(o.r, &m, FCC_MSG_COMM_ABORT, sizeof(m))->status == 0);
    }
    if (way == DESTROYS || way == ABORTS) {
        struct fcc_comm_msg m = {.comm = o.comm};
        CHECK(ask(o.r, &m, FCC_MSG_COMM_DESTROY, sizeof(m))->status == 0);
    }
    if (way != CLOSES)
        settle(&o);
    raw_close(o.r);
    fake_stop(&d);
}

static void frees(void)
{
    let_go(FREES);
}

static void destroys(void)
{
    let_go(DESTROYS);
}

static void closes(void)
{
    let_go(CLOSES);
}

static void aborts(void)
{
    let_go(ABORTS);
}

int main(int argc, char *argv[])
{
    static const struct test tests[] = {
        {"frees", frees, 0},
        {"destroys", destroys, 0},
        {"closes", closes, 0},
        {"aborts", aborts, 0},
    };
    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_posted", TESTS(tests));
}
