/* SPDX-License-Identifier: MIT
 *
 * test_pool.c - buffers for allocators that know no handles: whose memory they get, who finds it, and what must be given back first. And that
 * buffers have huge pages.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base/huge.h"
#include "tests/bed/harness.h"

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

/* ---- huge pages ---- */

/* Bytes of the mapping at this address that huge pages of shared memory map. */
static size_t huge_bytes_at(const void *address)
{
    unsigned long begin, end, kib, found = 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    bool here = false;
    char line[512];

    CHECK(f);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            here = begin <= (uintptr_t)address && (uintptr_t)address < end;
        if (here && sscanf(line, "ShmemPmdMapped: %lu kB", &kib) == 1)
            found = kib * 1024;
    }
    (void)fclose(f);
    return found;
}

/* Whether this kernel makes a huge page of shared memory when it is told to, here and now. */
static bool kernel_has_huge_pages(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    void *p;
    bool has;

    CHECK(fd >= 0 && !ftruncate(fd, HUGE_BYTES) && !fallocate(fd, 0, 0, 1));
    p = huge_map(HUGE_BYTES, MAP_SHARED, fd);
    CHECK(p != MAP_FAILED);
    has = !madvise(p, HUGE_BYTES, MADV_COLLAPSE) && huge_bytes_at(p) == HUGE_BYTES;
    (void)munmap(p, HUGE_BYTES);
    (void)close(fd);
    return has;
}

/* Huge pages may be short for a moment: then a later buffer has them. */
static void huge_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    for (size_t more = 0; more <= 5000; more += 5000) { /* whole huge pages, and something behind them */
        size_t found = 0;
        for (int attempt = 0; attempt < 20 && !found; attempt++) {
            fcc_buffer *b = NULL;
            OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 2 * HUGE_BYTES + more, &b));
            const unsigned char *data = fcc_buffer_data(b);
            for (size_t i = 0; i < 2 * HUGE_BYTES + more; i++)
                CHECK(data[i] == 0);
            found = huge_bytes_at(data);
            CHECK(found <= 2 * HUGE_BYTES);
            fcc_buffer_free(b);
        }
        CHECK(found);
    }
    (void)argument;
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

static void has_huge_pages(void)
{
    if (test_device() != FCC_DEVICE_CPU)
        test_skip("on GPUs memory is made by their drivers");
    if (!kernel_has_huge_pages())
        test_skip("this kernel gives shared memory no huge pages when asked");
    one_rank(huge_rank);
}

int main(void)
{
    static const struct test tests[] = {
        {"allocates", allocates, 0},
        {"arguments", arguments, 0},
        {"threads", threads, 0},
        {"has_huge_pages", has_huge_pages, 0},
    };
    return tests_run("pool", TESTS(tests));
}
