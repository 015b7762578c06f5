/* SPDX-License-Identifier: MIT
 *
 * test_pool.c - buffers for allocators that know no handles: whose memory they get, who finds it, and what must be given back first.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "harness.h"

static void one_rank(void (*run)(int, const struct ranks *, void *))
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, NULL);
    ranks_start(&r, 1, run, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void allocates_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    uint64_t before = *fcc_pool_frees();

    (void)argument;
    CHECK(!fcc_pool_alloc(4096, 3, NULL)); /* not open yet */
    OK(fcc_pool_open(comm, 3));
    CHECK(fcc_pool_open(comm, 3) == -EALREADY);
    unsigned char *a = fcc_pool_alloc(5000, 3, NULL), *b = fcc_pool_alloc(1, 3, NULL);
    CHECK(a && b && a != b);
    CHECK(!fcc_pool_alloc(4096, 4, NULL)); /* another device's */
    for (int i = 0; i < 5000; i++)
        CHECK(!a[i]);
    memset(a, 1, 5000);

    fcc_buffer *found = fcc_buffer_find(comm_context(), a + 4999);
    CHECK(found && fcc_buffer_data(found) == a && fcc_buffer_size(found) == 5000);
    CHECK(fcc_buffer_find(comm_context(), b) != found);
    CHECK(!fcc_buffer_find(comm_context(), a + 5000));
    CHECK(!fcc_buffer_find(comm_context(), &found));
    CHECK(!fcc_buffer_find(comm_context(), NULL));
    CHECK(!fcc_buffer_find(NULL, a));

    CHECK(fcc_pool_close(3) == -EBUSY);
    CHECK(*fcc_pool_frees() == before);
    fcc_pool_free(a, 5000, 3, NULL);
    CHECK(*fcc_pool_frees() == before + 1);
    CHECK(!fcc_buffer_find(comm_context(), a));
    fcc_pool_free(a, 5000, 3, NULL); /* once more, and nothing: neither is there */
    fcc_pool_free(NULL, 0, 3, NULL);
    CHECK(fcc_pool_close(3) == -EBUSY);
    fcc_pool_free(b, 1, 3, NULL);
    CHECK(*fcc_pool_frees() == before + 2);
    OK(fcc_pool_close(3));
    CHECK(fcc_pool_close(3) == -ENOENT);
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void allocates(void)
{
    one_rank(allocates_rank);
}

static void arguments_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    (void)argument;
    CHECK(fcc_pool_open(NULL, 0) == -EINVAL);
    CHECK(fcc_pool_open(comm, -1) == -EINVAL);
    CHECK(fcc_pool_open(comm, FCC_POOL_DEVICES) == -EINVAL && strstr(fcc_last_error(), "allowed are 0 to 63"));
    CHECK(fcc_pool_close(-1) == -EINVAL && fcc_pool_close(FCC_POOL_DEVICES) == -EINVAL);
    CHECK(!fcc_pool_alloc(1, -1, NULL) && !fcc_pool_alloc(1, FCC_POOL_DEVICES, NULL));
    OK(fcc_pool_open(comm, 0));
    CHECK(!fcc_pool_alloc(0, 0, NULL) && strstr(fcc_last_error(), "0 bytes"));
    CHECK(!fcc_pool_alloc(-1, 0, NULL));
    CHECK(!fcc_pool_alloc(PTRDIFF_MAX, 0, NULL)); /* what the daemon refuses */
    fcc_pool_free(&rank, 1, -1, NULL);
    fcc_pool_free(&rank, 1, FCC_POOL_DEVICES, NULL);
    OK(fcc_pool_close(0));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void arguments(void)
{
    one_rank(arguments_rank);
}

/* Threads allocate and free at a time while another one tries to close the pool. */
static void *allocate_often(void *argument)
{
    unsigned char *kept[4] = {0};

    for (int i = 0; i < 200; i++) {
        fcc_pool_free(kept[i % 4], 1, 1, NULL);
        kept[i % 4] = fcc_pool_alloc(1 + i * 37, 1, NULL);
        if (!kept[i % 4])
            return argument;
        memset(kept[i % 4], i, 1 + (size_t)i * 37);
    }
    for (int i = 0; i < 4; i++)
        fcc_pool_free(kept[i], 1, 1, NULL);
    return NULL;
}

static void threads_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    pthread_t threads[3];
    void *failed = NULL;

    (void)argument;
    OK(fcc_pool_open(comm, 1));
    void *held = fcc_pool_alloc(8, 1, NULL); /* so that it does not close between theirs */
    for (int i = 0; i < 3; i++)
        CHECK(!pthread_create(&threads[i], NULL, allocate_often, comm));
    for (int i = 0; i < 100; i++)
        CHECK(fcc_pool_close(1) == -EBUSY);
    for (int i = 0; i < 3; i++) {
        (void)pthread_join(threads[i], &failed);
        CHECK(!failed);
    }
    fcc_pool_free(held, 8, 1, NULL);
    OK(fcc_pool_close(1));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void threads(void)
{
    one_rank(threads_rank);
}

int main(void)
{
    static const struct test tests[] = {
        {"allocates", allocates, 0},
        {"arguments", arguments, 0},
        {"threads", threads, 0},
    };
    return tests_run("pool", TESTS(tests));
}
