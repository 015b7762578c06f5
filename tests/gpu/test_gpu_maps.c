/* SPDX-License-Identifier: MIT
 *
 * test_gpu_maps.c - output maps on NVIDIA GPUs, through the real daemon: what kernels, copies and an unmodified product of cuBLAS store through one
 * lies in the memory of the rank whose piece it is, and a map outlives its buffers, its communicator and a rank that dies. tests/memory/test_maps.c
 * has the rest, on cpu devices, and test_gpu_worker_maps.c what is refused.
 */
#include "tests/gpu/gpu_client.h"

enum { RANKS_MOST = 4 };

struct maps {
    int rank, n;
    size_t piece; /* bytes */
    fcc_comm *comm;
    void *stream;
    fcc_buffer *part[RANKS_MOST]; /* part[s]: symmetric: what rank s stores here */
};

static void maps_open(struct maps *m, int rank, const struct ranks *all)
{
    *m = (struct maps){.rank = rank, .n = all->n, .comm = comm_open(all, rank, 0)};
    CHECK(all->n <= RANKS_MOST);
    gpu_open(m->comm);
    m->stream = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_map_granularity(m->comm, &m->piece));
    for (int s = 0; s < m->n; s++)
        OK(fcc_buffer_alloc(m->comm, FCC_BUFFER_SYMMETRIC, m->piece, &m->part[s]));
    OK(fcc_noop(m->comm));
}

static void maps_close(const struct maps *m)
{
    OK(fcc_noop(m->comm));
    fcc_comm_destroy(m->comm);
    fcc_disconnect(comm_context());
}

static uint64_t address(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

/* A map of this rank's part of every rank's memory, the ranks in this order or the other way round. */
static fcc_map *map_of(const struct maps *m, bool backwards)
{
    struct fcc_map_piece piece[RANKS_MOST];
    fcc_map *map;

    for (int r = 0; r < m->n; r++)
        piece[r] = (struct fcc_map_piece){.at = (uint64_t)(backwards ? m->n - 1 - r : r) * m->piece,
                                          .bytes = m->piece,
                                          .buffer = m->part[m->rank],
                                          .rank = r};
    OK(fcc_map_create(m->comm, piece, m->n, &map));
    CHECK(fcc_map_size(map) == (size_t)m->n * m->piece);
    return map;
}

/* The words of part[s], from byte `from` on, to gpu.host. */
static const uint32_t *part_words(const struct maps *m, int s, size_t from, size_t bytes)
{
    CHECK(bytes <= GPU_HOST_BYTES);
    CU(gpu.copy_out(gpu.host, address(fcc_buffer_data(m->part[s])) + from, bytes, m->stream));
    CU(gpu.stream_synchronize(m->stream));
    return (const uint32_t *)(const void *)gpu.host;
}

static void words_check(const struct maps *m, int s, size_t from, size_t bytes, uint32_t want)
{
    const uint32_t *words = part_words(m, s, from, bytes);

    for (size_t i = 0; i < bytes / 4; i++)
        if (words[i] != want)
            check_failed(__FILE__, __LINE__, "rank %d: what rank %d stored, byte %zu: %u, expected %u", m->rank, s,
                         from + i * 4, words[i], want);
}

/* ---- where stores land ---- */

static uint32_t mark(int by, int to)
{
    return (uint32_t)(1000 + 10 * by + to);
}

static void land_rank(int rank, const struct ranks *all, void *argument)
{
    struct maps m;

    (void)argument;
    maps_open(&m, rank, all);
    fcc_map *map = map_of(&m, true);
    const uint64_t at = address(fcc_map_data(map));
    for (int place = 0; place < m.n; place++)
        CU(gpu.set(at + (uint64_t)place * m.piece, mark(rank, m.n - 1 - place), m.piece / 4, m.stream));
    /* a copy over the border of two pieces, of this rank's number */
    const uint32_t words[2] = {77, 88};
    if (m.n > 1)
        CU(gpu.copy_in(at + m.piece - 4, words, sizeof(words), m.stream));
    /* and a kernel, the last words of the map: they are rank 0's */
    const uint64_t last = at + (uint64_t)m.n * m.piece - 64, word = word_address(WORD_WRITTEN);
    const uint32_t count = 16;
    const float value = 0.5f;
    kernel_launch(gpu.kernel_fill, 128, m.stream, (void *[]){(void *)&last, (void *)&count, (void *)&value, (void *)&word});
    CU(gpu.stream_synchronize(m.stream));
    OK(fcc_noop(m.comm));
    const bool ends = rank == m.n - 1,
               begins = rank == m.n - 2; /* of the copy: the last word, and the first, of this rank's piece */
    for (int s = 0; s < m.n; s++) {
        const size_t from = begins ? 4 : 0, to = m.piece - (ends ? 4 : 0) - (rank == 0 ? 64 : 0);
        if (begins)
            words_check(&m, s, 0, 4, 88);
        if (ends)
            words_check(&m, s, m.piece - 4, 4, 77);
        if (rank == 0)
            words_check(&m, s, m.piece - 64, 64, 0x3f000000u);
        words_check(&m, s, from, to - from, mark(s, rank));
    }
    fcc_map_free(map);
    maps_close(&m);
}

static void stores_land(void)
{
    ranks_run(gpus, land_rank, NULL);
}

/* ---- an unmodified product of a library ---- */

/* As in NVIDIA's cublas_api.h. */
struct cublas {
    int (*create)(void **handle);
    int (*set_stream)(void *handle, void *stream);
    int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, uint64_t a, int a_stride,
                 uint64_t b, int b_stride, const float *beta, uint64_t c, int c_stride);
};

static bool cublas_load(struct cublas *out)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    void *library = NULL;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return false;
    *(void **)&out->create = dlsym(library, "cublasCreate_v2");
    *(void **)&out->set_stream = dlsym(library, "cublasSetStream_v2");
    *(void **)&out->sgemm = dlsym(library, "cublasSgemm_v2");
    CHECK(out->create && out->set_stream && out->sgemm);
    return true;
}

enum { COLS = 1024, INNER = 64 };

/* Element [row][col] of a rank's product, whose factors have two columns, or rows, that are not 0: integers, so that every order of additions is
 * exact. */
static float product_at(int rank, int row, int col)
{
    return (float)((row % 7 + rank) * (col % 5 + 1) + 2 * (row % 3));
}

static void factors_fill(const struct maps *m, int rows, uint64_t a, uint64_t b)
{
    float *left = calloc((size_t)rows * INNER, sizeof(float)), *right = calloc((size_t)INNER * COLS, sizeof(float));

    CHECK(left && right);
    for (int i = 0; i < rows; i++) {
        left[i * INNER + 3] = (float)(i % 7 + m->rank);
        left[i * INNER + INNER - 1] = (float)(i % 3);
    }
    for (int j = 0; j < COLS; j++) {
        right[3 * COLS + j] = (float)(j % 5 + 1);
        right[(INNER - 1) * COLS + j] = 2;
    }
    CU(gpu.copy_in(a, left, (size_t)rows * INNER * sizeof(float), m->stream));
    CU(gpu.copy_in(b, right, (size_t)INNER * COLS * sizeof(float), m->stream));
    CU(gpu.stream_synchronize(m->stream));
    free(left);
    free(right);
}

/* A product's rows, as many for each rank, stored by cuBLAS into a map: an All-to-All. */
static void product_rank(int rank, const struct ranks *all, void *argument)
{
    const float one = 1, zero = 0;
    struct cublas blas = {.create = NULL};
    uint64_t a, b;
    void *handle;
    struct maps m;

    (void)argument;
    maps_open(&m, rank, all);
    CHECK(cublas_load(&blas));
    const int each = (int)(m.piece / (COLS * sizeof(float))), rows = each * m.n;
    fcc_map *map = map_of(&m, false);
    CU(gpu.memory_alloc(&a, (size_t)rows * INNER * sizeof(float)));
    CU(gpu.memory_alloc(&b, (size_t)INNER * COLS * sizeof(float)));
    factors_fill(&m, rows, a, b);
    CHECK(blas.create(&handle) == 0);
    CHECK(blas.set_stream(handle, m.stream) == 0);
    /* stored by columns, as cuBLAS has matrices: the transposed result */
    CHECK(blas.sgemm(handle, 0, 0, COLS, rows, INNER, &one, b, COLS, a, INNER, &zero, address(fcc_map_data(map)), COLS) == 0);
    CU(gpu.stream_synchronize(m.stream));
    OK(fcc_noop(m.comm));
    for (int s = 0; s < m.n; s++) {
        const float *got = (const float *)(const void *)part_words(&m, s, 0, m.piece);
        for (int i = 0; i < each * COLS; i++) {
            const float want = product_at(s, rank * each + i / COLS, i % COLS);
            if (got[i] != want)
                check_failed(__FILE__, __LINE__, "rank %d: of rank %d's product: [%d][%d] is %g, expected %g", rank, s,
                             i / COLS, i % COLS, (double)got[i], (double)want);
        }
    }
    fcc_map_free(map);
    maps_close(&m);
}

static void product(void)
{
    struct cublas blas = {.create = NULL};

    if (!cublas_load(&blas))
        test_skip("no cuBLAS");
    ranks_run(gpus, product_rank, NULL);
}

/* ---- ends ---- */

/* The buffers are freed, a rank dies, the communicator and the connection end: stores through the map go on, and its end waits for them. */
static void outlive_rank(int rank, const struct ranks *all, void *argument)
{
    struct maps m;

    (void)argument;
    maps_open(&m, rank, all);
    fcc_map *map = map_of(&m, false);
    const uint64_t at = address(fcc_map_data(map));
    CU(gpu.set(at, 1, (size_t)m.n * m.piece / 4, m.stream));
    CU(gpu.stream_synchronize(m.stream));
    OK(fcc_noop(m.comm));
    if (rank == m.n - 1 && m.n > 1)
        _exit(0); /* without a word */
    if (m.n > 1)
        FAILS(fcc_noop(m.comm), -ECONNABORTED, "is gone");
    CU(gpu.set(at, 2, (size_t)m.n * m.piece / 4, m.stream));
    CU(gpu.stream_synchronize(m.stream));
    for (int s = 0; s < m.n; s++)
        fcc_buffer_free(m.part[s]);
    fcc_comm_destroy(m.comm);
    fcc_disconnect(comm_context());
    CU(gpu.set(at, 3, (size_t)m.n * m.piece / 4, m.stream));
    CU(gpu.copy_out(gpu.host, at + (uint64_t)rank * m.piece, m.piece, m.stream));
    CU(gpu.stream_synchronize(m.stream));
    CHECK(((const uint32_t *)(const void *)gpu.host)[m.piece / 4 - 1] == 3);
    gpu_delay(m.stream, 100000000); /* what is stored behind this is stored before the map ends */
    CU(gpu.set(at, 4, (size_t)m.n * m.piece / 4, m.stream));
    fcc_map_free(map);
    CU(gpu.stream_synchronize(m.stream));
}

static void outlives(void)
{
    ranks_run(gpus, outlive_rank, NULL);
}

int main(void)
{
    static const struct test tests[] = {
        {"stores_land", stores_land, 60}, {"product", product, 100}, {"outlives", outlives, 60}};

    if (!gpus_found())
        return EXIT_SUCCESS;
    return tests_run("gpu_maps", TESTS(tests));
}
