/* SPDX-License-Identifier: MIT
 *
 * test_views.c - memory mapped side by side (kernels/cpu/view.h), and gemm_all_to_all through the real daemon where it uses that: with
 * rows that fill whole pages, in buffers that are freed and made again between the calls.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/view.h"
#include "tests/bed/harness.h"

#define PAGES 4

static size_t page;

static unsigned char *pages_map(size_t count)
{
    unsigned char *p = mmap(NULL, count * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(p != MAP_FAILED);
    return p;
}

static struct view_piece piece(unsigned char *at, size_t bytes)
{
    return (struct view_piece){.at = at, .bytes = bytes};
}

static bool is_mapped(void *at)
{
    unsigned char there;

    return mincore(at, page, &there) == 0;
}

static void side_by_side(void)
{
    struct views *v = views_new();
    unsigned char *a = pages_map(PAGES), *b = pages_map(PAGES), *c = pages_map(PAGES);
    struct view_piece pieces[] = {piece(c + 2 * page + 100, 2 * page - 100), piece(a, 2 * page), piece(b + page, 17)};
    unsigned char *view = views_get(v, pieces, 3);

    CHECK(view);
    for (size_t i = 0; i < 4 * page - 100 + 17; i++)
        view[i] = (unsigned char)(i % 251);
    for (size_t i = 0; i < 2 * page - 100; i++)
        CHECK(c[2 * page + 100 + i] == i % 251);
    for (size_t i = 0; i < 2 * page; i++)
        CHECK(a[i] == (2 * page - 100 + i) % 251);
    for (size_t i = 0; i < 17; i++)
        CHECK(b[page + i] == (4 * page - 100 + i) % 251);
    CHECK(!c[2 * page + 99] && !a[2 * page] && !b[page - 1] && !b[page + 17]);
    a[5] = 77;
    CHECK(view[2 * page - 100 + 5] == 77);
    CHECK(views_get(v, pieces, 3) == view); /* the same once more */
    pieces[2].bytes++;
    unsigned char *other = views_get(v, pieces, 3);
    CHECK(other && other != view);
    views_release(v, other);
    views_release(v, view);
    views_release(v, view);
    views_free(v);
    CHECK(!is_mapped((unsigned char *)((uintptr_t)view / page * page)));
    CHECK(a[5] == 77 && is_mapped(a)); /* the pieces stay */
}

static void borders_between_pages(void)
{
    struct views *v = views_new();
    unsigned char *a = pages_map(PAGES), *b = pages_map(PAGES), *private = calloc(3, page);
    unsigned char *whole = (unsigned char *)(((uintptr_t) private + page - 1) / page * page);
    struct view_piece ends_inside[] = {piece(a, page + 64), piece(b, page)};
    struct view_piece begins_inside[] = {piece(a, page), piece(b + 64, page)};
    struct view_piece not_shared[] = {piece(a, page), piece(whole, page)};

    CHECK(private);
    CHECK(!views_get(v, ends_inside, 2));
    CHECK(!views_get(v, begins_inside, 2));
    CHECK(!views_get(v, not_shared, 2));
    views_free(v);
    free(private);
}

static void forgotten(void)
{
    struct views *v = views_new();
    unsigned char *a = pages_map(PAGES), *b = pages_map(PAGES), *c = pages_map(PAGES);
    struct view_piece ab[] = {piece(a, page), piece(b, page)}, ca[] = {piece(c, page), piece(a + 3 * page, page)},
                      cb[] = {piece(c, page), piece(b, page)};
    unsigned char *views[] = {views_get(v, ab, 2), views_get(v, ca, 2), views_get(v, cb, 2)};

    for (int i = 0; i < 3; i++) {
        CHECK(views[i]);
        views_release(v, views[i]);
    }
    views_forget(v, a, PAGES * page);
    CHECK(!is_mapped(views[0]) && !is_mapped(views[1]) && is_mapped(views[2]));
    /* other memory in the same place */
    CHECK(mmap(a, PAGES * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == a);
    unsigned char *again = views_get(v, ab, 2);
    CHECK(again);
    again[0] = 9;
    CHECK(a[0] == 9);
    views_release(v, again);
    CHECK(views_get(v, cb, 2) == views[2]);
    views_release(v, views[2]);
    views_free(v);
}

#define MANY 600 /* more than are kept */

/* Of shared memory: a sanitizer's own is not. */
static int mappings_count(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;

    CHECK(maps);
    while (fgets(line, sizeof(line), maps))
        n += strstr(line, "/dev/zero") != NULL;
    (void)fclose(maps);
    return n;
}

static void many(void)
{
    struct views *v = views_new();
    unsigned char *a = pages_map(MANY), *b = pages_map(1), *views[MANY];
    int before = mappings_count();

    for (int i = 0; i < MANY; i++) {
        struct view_piece pieces[] = {piece(b, page), piece(a + (size_t)i * page, page)};
        CHECK((views[i] = views_get(v, pieces, 2)));
        if (i > 0) /* the first one stays in use */
            views_release(v, views[i]);
    }
    CHECK(before >= 2 && mappings_count() - before < MANY); /* each view has two */
    CHECK(is_mapped(views[0]) && is_mapped(views[MANY - 1]));
    views[0][page] = 1;
    CHECK(a[0] == 1);
    views_free(v);
}

struct sharing {
    struct views *v;
    unsigned char *a, *b;
    unsigned char number;
};

/* A page of its own of each, in a view that another thread makes and forgets at the same time. */
static void *shares(void *argument)
{
    const struct sharing *s = argument;
    size_t own = s->number * page;

    for (int i = 0; i < 300; i++) {
        struct view_piece pieces[] = {piece(s->a + own, page), piece(s->b + own, page)};
        unsigned char *view = views_get(s->v, pieces, 2);
        CHECK(view);
        view[0] = view[page] = (unsigned char)i;
        views_release(s->v, view);
        CHECK(s->a[own] == (unsigned char)i && s->b[own] == (unsigned char)i);
        if (i % 7 == s->number)
            views_forget(s->v, s->a + own, page);
    }
    return NULL;
}

static void threads(void)
{
    struct sharing s[PAGES];
    pthread_t thread[PAGES];
    struct views *v = views_new();
    unsigned char *a = pages_map(PAGES), *b = pages_map(PAGES);

    for (int i = 0; i < PAGES; i++) {
        s[i] = (struct sharing){.v = v, .a = a, .b = b, .number = (unsigned char)i};
        CHECK(pthread_create(&thread[i], NULL, shares, &s[i]) == 0);
    }
    for (int i = 0; i < PAGES; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    views_free(v);
}

/* ---- through the daemon ---- */

#define N 1024 /* a row of f32 is a page */
#define RANKS 3

/* Uneven, and zero for one. */
static int64_t rows_to(int r, int p, int unit)
{
    return (int64_t)unit * (r == 1 && p == 2 ? 0 : 1 + (r + 2 * p) % 3);
}

static fcc_buffer *filled(fcc_comm *comm, int64_t elements)
{
    fcc_buffer *b;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (uint64_t)(elements > 0 ? elements : 1) * sizeof(float), &b));
    return b;
}

/* Row i of rank r's a is r * 1000 + i, then zeros; the first row of b is 1, 2, 3, ...: all exact. */
static void call_and_compare(fcc_comm *comm, int rank, int unit, int k, fcc_buffer *a, fcc_buffer *b, fcc_buffer *c)
{
    int64_t send[RANKS], recv[RANKS] = {0}, m = 0, received = 0;
    float *x = fcc_buffer_data(a), *y = fcc_buffer_data(b), *z = fcc_buffer_data(c);

    for (int p = 0; p < RANKS; p++) {
        m += send[p] = rows_to(rank, p, unit);
        received += rows_to(p, rank, unit);
    }
    memset(x, 0, (size_t)(m * k) * sizeof(float));
    memset(z, 0xff, (size_t)(received * N) * sizeof(float));
    for (int64_t i = 0; i < m; i++)
        x[i * k] = (float)(rank * 1000 + i);
    for (int64_t j = 0; j < (int64_t)k * N; j++)
        y[j] = j < N ? (float)(j + 1) : 1.0f;
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(a, 0, FCC_F32, m, k),
                                            .b = fcc_tensor_2d(b, 0, FCC_F32, k, N),
                                            .c = fcc_tensor_2d(c, 0, FCC_F32, received, N),
                                            .send_rows = send,
                                            .recv_rows = recv,
                                            .schedule = FCC_SCHEDULE_FUSED};
    OK(fcc_gemm_all_to_all(comm, &args));
    for (int p = 0; p < RANKS; p++) {
        int64_t first = 0;
        CHECK(recv[p] == rows_to(p, rank, unit));
        for (int q = 0; q < rank; q++)
            first += rows_to(p, q, unit);
        for (int64_t i = 0; i < recv[p]; i++, z += N)
            for (int64_t j = 0; j < N; j++)
                CHECK(z[j] == (float)((p * 1000 + first + i) * (j + 1)));
    }
}

static void products_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = comm_open(all, rank, 0);
    int unit = *(int *)argument, k = unit; /* small: the engine's own thread */
    fcc_buffer *a = filled(comm, (int64_t)3 * RANKS * unit * k), *b = filled(comm, (int64_t)k * N);

    for (int round = 0; round < 4; round++) {
        fcc_buffer *c = filled(comm, (int64_t)3 * RANKS * unit * N), *other = filled(comm, N);
        call_and_compare(comm, rank, unit, k, a, b, c);
        call_and_compare(comm, rank, unit, k, a, b, c);
        fcc_buffer_free(c); /* the next one is likely to be in its place */
        if (round % 2)
            fcc_buffer_free(other);
    }
}

static void products(const char *const options[], int unit)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, options);
    ranks_start(&r, RANKS, products_rank, &unit);
    ranks_join(&r);
    daemon_stop(&d);
}

static void by_the_engine(void)
{
    products(NULL, 2);
}

static void by_one_workgroup(void)
{
    products((const char *const[]){"--cpu-workgroups", "1", NULL}, 64);
}

static void by_many_workgroups(void)
{
    products((const char *const[]){"--cpu-workgroups", "3", NULL}, 64);
}

int main(void)
{
    const struct test tests[] = {{"side_by_side", side_by_side, 0},
                                 {"borders_between_pages", borders_between_pages, 0},
                                 {"forgotten", forgotten, 0},
                                 {"many", many, 0},
                                 {"threads", threads, 0},
                                 {"by_the_engine", by_the_engine, 0},
                                 {"by_one_workgroup", by_one_workgroup, 0},
                                 {"by_many_workgroups", by_many_workgroups, 0}};

    page = (size_t)sysconf(_SC_PAGESIZE);
    return tests_run("views", TESTS(tests));
}
