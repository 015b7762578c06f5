/* SPDX-License-Identifier: MIT
 *
 * test_maps.c - output maps: what is stored through one lands in the memory of the rank whose piece it is; what pieces may be; and maps
 * outlive their buffers, their communicator, and ranks that die.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"

#define RANKS 3

static size_t page;

static fcc_buffer *buffer_new(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes)
{
    fcc_buffer *b;

    OK(fcc_buffer_alloc(comm, kind, bytes, &b));
    return b;
}

static fcc_comm *map_comm(const struct ranks *all, int rank)
{
    fcc_comm *comm = comm_open(all, rank, 0);

    OK(fcc_map_granularity(comm, &page));
    CHECK(page == (size_t)sysconf(_SC_PAGESIZE));
    return comm;
}

static void leave(fcc_comm *comm)
{
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(comm_context());
}

/* ---- where stores land ---- */

/* Of every rank the pages that are this rank's, the ranks in descending order, and two pages of a local buffer behind them, the second of
 * which ends within a page. Given in no order. */
static void land_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = map_comm(all, rank);
    const int n = all->n;
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, (size_t)n * 2 * page),
               *own = buffer_new(comm, FCC_BUFFER_LOCAL, 4 * page);
    struct fcc_map_piece piece[RANKS + 2], found;
    uint32_t *data;
    fcc_map *map;

    (void)argument;
    for (int r = 0; r < n; r++)
        piece[r] = (struct fcc_map_piece){.at = (uint64_t)(n - 1 - r) * 2 * page,
                                          .bytes = 2 * page,
                                          .offset = (uint64_t)rank * 2 * page,
                                          .buffer = b,
                                          .rank = r};
    piece[n] =
        (struct fcc_map_piece){.at = ((uint64_t)n * 2 + 1) * page, .bytes = 100, .offset = 0, .buffer = own, .rank = rank};
    piece[n + 1] =
        (struct fcc_map_piece){.at = (uint64_t)n * 2 * page, .bytes = page, .offset = 3 * page, .buffer = own, .rank = rank};
    OK(fcc_map_create(comm, piece, n + 2, &map));
    data = fcc_map_data(map);
    CHECK(data && fcc_map_size(map) == ((size_t)n * 2 + 1) * page + 100);
    for (size_t i = 0; i < fcc_map_size(map) / 4; i++)
        data[i] = (uint32_t)rank << 24 | (uint32_t)i;
    OK(fcc_noop(comm));
    for (int from = 0; from < n; from++) {
        const uint32_t *mine = (const uint32_t *)fcc_buffer_data(b) + (size_t)from * 2 * page / 4;
        for (size_t i = 0; i < 2 * page / 4; i++)
            CHECK(mine[i] == ((uint32_t)from << 24 | (uint32_t)((size_t)(n - 1 - rank) * 2 * page / 4 + i)));
    }
    const uint32_t *local = fcc_buffer_data(own);
    CHECK(local[3 * page / 4] == ((uint32_t)rank << 24 | (uint32_t)((size_t)n * 2 * page / 4)));
    CHECK(local[24] == data[((size_t)n * 2 + 1) * page / 4 + 24] && local[2 * page / 4] == 0);
    OK(fcc_map_find(map, ((uint64_t)n * 2 + 1) * page + 99, &found));
    CHECK(found.buffer == own && found.offset == 0 && found.bytes == 100);
    FAILS(fcc_map_find(map, ((uint64_t)n * 2 + 1) * page + 100, &found), -EINVAL, "offset");
    FAILS(fcc_map_find(map, UINT64_MAX, &found), -EINVAL, "offset");
    fcc_map_free(map);
    leave(comm);
}

static void stores_land(void)
{
    ranks_run(RANKS, land_rank, NULL);
}

static void stores_land_alone(void)
{
    ranks_run(1, land_rank, NULL);
}

/* ---- what pieces may be ---- */

static void refused_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = map_comm(all, rank), *other = NULL;
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 4 * page - 100), *own = buffer_new(comm, FCC_BUFFER_LOCAL, 4 * page);
    struct fcc_unique_id id;
    char granularity[32];
    fcc_map *map = NULL;
    const int next = (rank + 1) % all->n;

    (void)argument;
    (void)snprintf(granularity, sizeof(granularity), "multiple of %zu", page);
#define PIECE(AT, BYTES, OFFSET, RANK)                                                                                         \
    ((struct fcc_map_piece){.at = (AT), .bytes = (BYTES), .offset = (OFFSET), .buffer = b, .rank = (RANK)})
#define MAP(...)                                                                                                               \
    fcc_map_create(comm, (struct fcc_map_piece[]){__VA_ARGS__},                                                                \
                   sizeof((struct fcc_map_piece[]){__VA_ARGS__}) / sizeof(struct fcc_map_piece), &map)
    FAILS(MAP(PIECE(0, 2 * page, 0, next), PIECE(page, page, 2 * page, next)), -EINVAL, "overlaps the piece before it");
    FAILS(MAP(PIECE(page, page, 0, next), PIECE(page, page, 0, rank)), -EINVAL, "hole");
    FAILS(MAP(PIECE(0, page, 0, next), PIECE(2 * page, page, page, next)), -EINVAL, "hole before it");
    FAILS(MAP(PIECE(0, 2 * page, 0, next), PIECE(2 * page, page, page, next)), -EINVAL, "overlap in the memory of rank");
    FAILS(MAP(PIECE(0, 4 * page, 0, next)), -EINVAL, "do not lie in the buffer", "bytes");
    FAILS(MAP(PIECE(0, 1, 4 * page, next)), -EINVAL, "do not lie in the buffer");
    FAILS(MAP(PIECE(0, UINT64_MAX, page, next)), -EINVAL, "do not lie in the buffer");
    FAILS(MAP(PIECE(0, 0, 0, next)), -EINVAL, "do not lie in the buffer");
    FAILS(MAP(PIECE(0, page, 64, next)), -EINVAL, "offset: 64", granularity);
    FAILS(MAP(PIECE(0, page, 0, next), PIECE(page + 8, page, 0, rank)), -EINVAL, "at: ", granularity);
    FAILS(MAP(PIECE(0, page + 8, 0, next), PIECE(page + 8, page, 0, rank)), -EINVAL, "at: ", granularity);
    FAILS(MAP(PIECE(0, page, 0, all->n)), -EINVAL, "pieces[0]: rank: ", "allowed are 0 to");
    FAILS(MAP(PIECE(0, page, 0, -1)), -EINVAL, "rank: -1");
    FAILS(MAP(((struct fcc_map_piece){.bytes = page, .buffer = NULL, .rank = next})), -EINVAL, "pieces[0]: buffer");
    FAILS(MAP(((struct fcc_map_piece){.bytes = page, .buffer = own, .rank = next})), -EINVAL, "not symmetric");
    FAILS(MAP(((struct fcc_map_piece){.bytes = page, .buffer = b, .rank = next, .reserved = {0, 7}})), -EINVAL,
          "reserved[1]: 7: must be 0");
    FAILS(fcc_map_create(comm, NULL, 1, &map), -EINVAL, "pieces: NULL");
    FAILS(fcc_map_create(comm, &PIECE(0, page, 0, next), 1, NULL), -EINVAL, "out: NULL");
    FAILS(fcc_map_create(comm, &PIECE(0, page, 0, next), 0, &map), -EINVAL, "n: 0 pieces");
    FAILS(fcc_map_create(comm, &PIECE(0, page, 0, next), FCC_MAP_PIECES + 1, &map), -EINVAL, "1 to 1024");
    OK(fcc_get_unique_id(comm_context(), &id));
    OK(fcc_comm_init(comm_context(), &id, 1, 0, NULL, &other));
    FAILS(fcc_map_create(other, &PIECE(0, page, 0, next), 1, &map), -EINVAL, "another communicator");
    fcc_comm_destroy(other);
    CHECK(!map && !fcc_map_data(NULL) && fcc_map_size(NULL) == 0);
    OK(MAP(PIECE(0, 4 * page - 100, 0, next))); /* all of it */
    fcc_map_free(map);
    fcc_map_free(NULL);
    leave(comm);
}

static void refuses_pieces(void)
{
    ranks_run(2, refused_rank, NULL);
}

static void stride_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = map_comm(all, rank);
    uint64_t stride;

    (void)argument;
    OK(fcc_map_stride(comm, 4096 * 4, 3, 4, &stride)); /* rows of whole pages */
    CHECK(stride == 4096 * 4 || page != 4096);
    for (uint64_t rows = 1; rows < 70; rows++)
        for (uint64_t cols = 1; cols < 9000; cols += 101)
            if (!fcc_map_stride(comm, cols * 6, rows, 6, &stride))
                CHECK(stride >= cols * 6 && stride % 6 == 0 && rows * stride % page == 0 &&
                      (stride == cols * 6 || (stride - cols * 6) * 10 <= cols * 6));
    FAILS(fcc_map_stride(comm, 100, 3, 4, &stride), -EOPNOTSUPP, "3 rows of 100 bytes", "a tensor", "for each piece");
    OK(fcc_map_stride(comm, page / 64, 64, 4, &stride));
    CHECK(stride == page / 64);
    FAILS(fcc_map_stride(comm, 0, 3, 4, &stride), -EINVAL, "row_bytes 0");
    FAILS(fcc_map_stride(comm, 100, 0, 4, &stride), -EINVAL, "rows 0");
    FAILS(fcc_map_stride(comm, 100, 1, 0, &stride), -EINVAL, "element 0");
    FAILS(fcc_map_stride(comm, UINT64_MAX, 1, 1, &stride), -EINVAL, "row_bytes");
    leave(comm);
}

static void finds_strides(void)
{
    ranks_run(1, stride_rank, NULL);
}

static void far_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = map_comm(all, rank);
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, page);
    fcc_map *map;

    (void)argument;
    FAILS(fcc_map_create(comm, &(struct fcc_map_piece){.bytes = page, .buffer = b, .rank = 1 - rank}, 1, &map), -EXDEV,
          "another node");
    leave(comm);
}

static void refuses_other_nodes(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 2, NULL);
    ranks_start(&r, 2, far_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

/* ---- how long maps live ---- */

static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = map_comm(all, rank);
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 2 * page);
    const struct fcc_map_piece pieces[] = {{.bytes = page, .buffer = b, .rank = 0},
                                           {.at = page, .bytes = page, .buffer = b, .offset = page, .rank = 1}};
    const int32_t *status;
    unsigned char *data;
    fcc_map *map;

    (void)argument;
    OK(fcc_map_create(comm, pieces, 2, &map));
    data = fcc_map_data(map);
    memset(data, rank + 1, 2 * page);
    OK(fcc_noop(comm));
    OK(fcc_comm_status(comm, &status));
    if (rank == 0)
        _exit(0); /* without a word */
    for (double until = await_end(); !__atomic_load_n(status, __ATOMIC_ACQUIRE);)
        AWAITING(until);
    memset(data, 7, 2 * page);
    CHECK(((unsigned char *)fcc_buffer_data(b))[page] == 7);
    fcc_buffer_free(b);
    memset(data, 8, 2 * page);
    fcc_comm_destroy(comm);
    memset(data, 9, 2 * page);
    fcc_disconnect(comm_context());
    CHECK(data[0] == 9 && data[2 * page - 1] == 9);
    pid_t child = fork();
    if (!child) { /* the map is its parent's */
        CHECK(!fcc_map_data(map));
        fcc_map_free(map);
        _exit(0);
    }
    int how;
    CHECK(waitpid(child, &how, 0) == child && how == 0);
    CHECK(data[page] == 9);
    fcc_map_free(map);
}

static void outlives_all(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, 2, outlive_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void *writes(void *at)
{
    for (volatile unsigned char *to = at;; (*to)++) {
    }
    return NULL;
}

/* Rank 0 frees a map to which its thread stores: that process ends. Rank 1 hears of it, and its memory has what was stored before. */
static void free_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_comm *comm = map_comm(all, rank);
    fcc_buffer *b = buffer_new(comm, FCC_BUFFER_SYMMETRIC, 2 * page);
    const struct fcc_map_piece piece = {.bytes = page, .buffer = b, .rank = 1};
    unsigned char *data;
    pthread_t thread;
    fcc_map *map;

    (void)argument;
    if (rank == 1) {
        FAILS(fcc_noop(comm), -ECONNABORTED, "rank 0");
        data = fcc_buffer_data(b);
        for (size_t i = 1; i < 2 * page; i++)
            CHECK(data[i] == (i < page ? 3 : 0));
        fcc_disconnect(comm_context());
        return;
    }
    OK(fcc_map_create(comm, &piece, 1, &map));
    data = fcc_map_data(map);
    memset(data, 3, page);
    CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR && !pthread_create(&thread, NULL, writes, data));
    while (*(volatile unsigned char *)data == 3)
        nap();
    fcc_map_free(map);
    (void)pthread_join(thread, NULL);
}

static void free_while_stored_to(void)
{
    struct test_daemon d;
    struct ranks r;

    daemons_start(&d, 1, NULL);
    ranks_start(&r, 2, free_rank, NULL);
    int how = rank_wait(&r, 0);
    CHECK(how != 0); /* of the signal, or of what a sanitizer makes of it */
    CHECK(rank_wait(&r, 1) == 0);
    expect_alive(2);
    daemon_stop(&d);
}

int main(void)
{
    const struct test tests[] = {
        {"stores_land", stores_land, 0},
        {"stores_land_alone", stores_land_alone, 0},
        {"refuses_pieces", refuses_pieces, 0},
        {"finds_strides", finds_strides, 0},
        {"refuses_other_nodes", refuses_other_nodes, 0},
        {"outlives_all", outlives_all, 0},
        {"free_while_stored_to", free_while_stored_to, 0},
    };

    return tests_run("maps", TESTS(tests));
}
