/* SPDX-License-Identifier: MIT
 *
 * test_gpu_worker_maps.c - output maps of ranks on GPUs, with the real daemon and the real library on fake GPUs (fake_driver.c, whose
 * device memory is memory): what the driver is asked for, and when; that maps outlive what they were made of; a driver that fails.
 * A real driver's maps have been tested by no program of this folder.
 */
#include "tests/fake_gpu/fake_gpu_bed.h"

/* A piece of every rank, the last one first, and one of its own memory. */
static int pieces_of(const struct ranks *all, int rank, fcc_buffer *const b[], fcc_buffer *own, struct fcc_map_piece out[])
{
    for (int r = 0; r < all->n; r++)
        out[r] = (struct fcc_map_piece){
            .at = (uint64_t)(all->n - 1 - r) * FAKE_GRANULARITY, .bytes = FAKE_GRANULARITY, .buffer = b[rank], .rank = r};
    out[all->n] = (struct fcc_map_piece){
        .at = (uint64_t)all->n * FAKE_GRANULARITY, .bytes = FAKE_GRANULARITY + 8, .buffer = own, .rank = rank};
    return all->n + 1;
}

static void map_rank(int rank, const struct ranks *all, void *argument)
{
    driver_use();
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0);
    fcc_buffer *b[GPUS], *own, *large; /* b[s]: what rank s stores at each rank */
    struct fcc_map_piece pieces[GPUS + 1];
    size_t granularity;
    fcc_map *map = NULL, *other;
    uint64_t word = 0;
    uint32_t *data;

    (void)argument;
    FAILS(fcc_signal_wait(comm, &word, 1, -1), -EOPNOTSUPP, "on a GPU");
    OK(fcc_map_granularity(comm, &granularity));
    CHECK(granularity == FAKE_GRANULARITY);
    for (int s = 0; s < all->n; s++)
        OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, FAKE_GRANULARITY, &b[s]));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 2 * FAKE_GRANULARITY, &own));
    int n = pieces_of(all, rank, b, own, pieces);
    /* What fails leaves nothing behind. */
    static const enum driver_function functions[] = {DRIVER_memory_granularity, DRIVER_address_reserve, DRIVER_memory_retain,
                                                     DRIVER_memory_map,         DRIVER_memory_access,   DRIVER_context_retain};
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *at;
        for (int r = 0; r < all->n; r++)
            OK(fcc_buffer_peer(b[rank], r, &at));
        int addresses = driver->addresses, mappings = driver->mappings, handles = driver->handles, contexts = driver->contexts;
        driver->fail = (int)functions[i];
        FAILS(fcc_map_create(comm, pieces, n, &map), -EIO, "cuda GPU", "FAKE_FAILURE");
        driver->fail = -1;
        CHECK(!map && driver->addresses == addresses && driver->mappings == mappings && driver->handles == handles &&
              driver->contexts == contexts);
    }
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, 2 * FAKE_GRANULARITY, &large));
    struct fcc_map_piece part = {.bytes = FAKE_GRANULARITY, .buffer = large, .rank = rank};
    FAILS(fcc_map_create(comm, &part, 1, &map), -EOPNOTSUPP, "the piece at 0: bytes: 65536", "allowed is the buffer's length");
    part.offset = FAKE_GRANULARITY;
    FAILS(fcc_map_create(comm, &part, 1, &map), -EOPNOTSUPP, "allowed is 0", "a buffer for each piece");
    fcc_buffer_free(large);
    OK(fcc_map_create(comm, pieces, n, &map));
    OK(fcc_map_create(comm, pieces, n, &other));
    data = fcc_map_data(map);
    for (size_t i = 0; i < fcc_map_size(map) / 4; i++)
        data[i] = (uint32_t)(rank + 1) << 24 | (uint32_t)i;
    CHECK(((uint32_t *)fcc_map_data(other))[77] == data[77] && fcc_map_data(other) != fcc_map_data(map));
    OK(fcc_noop(comm));
    for (int s = 0; s < all->n; s++) {
        const uint32_t *mine = fcc_buffer_data(b[s]);
        size_t place = (size_t)(all->n - 1 - rank) * FAKE_GRANULARITY / 4;
        for (size_t i = 0; i < FAKE_GRANULARITY / 4; i++)
            CHECK(mine[i] == ((uint32_t)(s + 1) << 24 | (uint32_t)(place + i)));
    }
    OK(fcc_noop(comm));
    int synchronized = driver->synchronized;
    fcc_map_free(other);
    CHECK(driver->synchronized == synchronized + 1); /* before it is unmapped */
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
    CHECK(driver->contexts == 1 && driver->mappings == n && driver->addresses == 1 && driver->handles == 0);
    data[0] = data[fcc_map_size(map) / 4 - 1] = 7;
    fcc_map_free(map);
    CHECK(driver->broken == 0 && driver->contexts == 0 && driver->mappings == 0 && driver->addresses == 0);
}

static void stores_land(void)
{
    fake_ranks_run(GPUS, map_rank, NULL);
}

int main(int argc, char *argv[])
{
    const struct test tests[] = {
        {"stores_land", stores_land, 0},
    };

    (void)argc;
    run_again(argv);
    return tests_run("gpu_worker_maps", TESTS(tests));
}
