/* SPDX-License-Identifier: MIT
 *
 * client_bed.h - what test_client.c and test_client_submit.c share: every test has a time limit and must leave as many file
 * descriptors as it found, and most have a fake worker with a client that has joined a communicator.
 */
#ifndef CLIENT_BED_H
#define CLIENT_BED_H

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "tests/client/fake_worker.h"

#define TEST_LIMIT_S 60

static char directory[64];
static int descriptors;

static inline int count_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

static inline int setup(void **state)
{
    (void)state;
    (void)alarm(TEST_LIMIT_S * (getenv("FCC_TEST_SLOW") ? 4 : 1)); /* as of tests with a daemon */
    descriptors = count_descriptors();
    (void)snprintf(directory, sizeof(directory), "/tmp/test_client.XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static inline int teardown(void **state)
{
    int left = count_descriptors() - descriptors;

    (void)state;
    (void)alarm(0);
    if (left)
        print_error("%d file descriptors leaked\n", left);
    if (rmdir(directory))
        print_error("%s: %s\n", directory, strerror(errno));
    return left ? -1 : 0;
}

static inline double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a worker with a client that has joined a communicator ---- */

struct bed {
    struct fake *fake;
    fcc_context *context;
    fcc_comm *comm;
};

static inline struct fake *fake_new(enum fault welcome_fault)
{
    struct fake *f = aligned_alloc(_Alignof(struct fake), sizeof(*f));

    memset(f, 0, sizeof(*f));
    f->welcome_fault = welcome_fault;
    f->spin_us = 50;
    fake_start(f, directory);
    return f;
}

static inline struct bed bed_connect(bool no_ring)
{
    struct bed b = {.fake = fake_new(HONEST)};
    struct fcc_connect_options o = {.socket_path = b.fake->path, .job = "test", .no_ring = no_ring};

    assert_int_equal(fcc_connect(&o, &b.context), 0);
    return b;
}

static inline struct bed bed_open(bool no_ring, int nranks)
{
    struct bed b = bed_connect(no_ring);
    struct fcc_unique_id id = {{0}};

    assert_int_equal(fcc_comm_init(b.context, &id, nranks, 0, NULL, &b.comm), 0);
    return b;
}

/* Returns how many messages were not as they should be. */
static inline unsigned fake_free(struct fake *f)
{
    unsigned broken;

    fake_stop(f);
    broken = f->broken;
    free(f);
    return broken;
}

static inline void bed_close(struct bed *b)
{
    fcc_disconnect(b->context);
    assert_int_equal(fake_free(b->fake), 0);
}

static inline void set_fault(struct bed *b, enum fault fault)
{
    b->fake->fault = fault;
}

static inline void release(struct bed *b)
{
    b->fake->hold = false;
    b->fake->hold_calls = false;
    fake_poke(b->fake);
}

static inline void assert_error_says(const char *words)
{
    if (!strstr(fcc_last_error(), words))
        fail_msg("last error is '%s', not '%s'", fcc_last_error(), words);
}

static inline void wait_for(_Atomic unsigned *counter, unsigned value)
{
    while (*counter < value)
        (void)poll(NULL, 0, 1);
}

static inline void *call_of_a_thread(void *arg)
{
    struct bed *b = arg;
    struct fcc_unique_id id;

    return fcc_get_unique_id(b->context, &id) ? b : NULL;
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
