/* SPDX-License-Identifier: MIT
 *
 * test_texts.c - what an error says, word for word: the rank, the operator and the argument by the names that a C program has for them, the
 * value, and what is allowed. That all ranks hear it, and that nothing is lost: test_errors.c.
 */
#include <errno.h>
#include <string.h>

#include "tests/bed/harness.h"

enum { N = 96, K = 64, M = 8, ROWS = 10, DIM = 4, BATCH = 3, BAGS = BATCH, POOL = 2 };

static struct {
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *in, *out;
    struct fcc_gemv_all_reduce_args gemv;
    struct fcc_gemm_all_to_all_args gemm;
    struct fcc_embedding_all_to_all_args emb;
} t;

static void says(int line, const char *call, int got, int want, const char *text)
{
    if (got != want || strcmp(fcc_last_error(), text) != 0)
        check_failed(__FILE__, line, "%s:\n%d: %s\nexpected:\n%d: %s", call, got, fcc_last_error(), want, text);
}
#define SAYS(call, status, text) says(__LINE__, #call, (call), -(status), (text))

/* The arguments are right but for one thing. */
#define GEMV(spoil, status, text)                                                                                              \
    do {                                                                                                                       \
        struct fcc_gemv_all_reduce_args gemv = t.gemv;                                                                         \
        spoil;                                                                                                                 \
        says(__LINE__, #spoil, fcc_gemv_all_reduce(t.comm, &gemv), -(status), (text));                                         \
    } while (0)
#define GEMM(spoil, status, text)                                                                                              \
    do {                                                                                                                       \
        struct fcc_gemm_all_to_all_args gemm = t.gemm;                                                                         \
        spoil;                                                                                                                 \
        says(__LINE__, #spoil, fcc_gemm_all_to_all(t.comm, &gemm), -(status), (text));                                         \
    } while (0)
#define EPILOGUE(spoil, status, text)                                                                                          \
    do {                                                                                                                       \
        struct fcc_epilogue e = {.bias = fcc_tensor_1d(t.in, 32768, FCC_F32, N),                                               \
                                 .residual = fcc_tensor_2d(t.in, 36864, FCC_F32, 1, N)};                                       \
        struct fcc_gemv_all_reduce_args gemv = t.gemv;                                                                         \
        spoil;                                                                                                                 \
        says(__LINE__, #spoil, fcc_gemv_all_reduce_epilogue(t.comm, &gemv, &e), -(status), (text));                            \
    } while (0)
#define GEMM_EPILOGUE(spoil, status, text)                                                                                     \
    do {                                                                                                                       \
        struct fcc_epilogue e = {.bias = fcc_tensor_1d(t.in, 32768, FCC_F32, N),                                               \
                                 .residual = fcc_tensor_2d(t.in, 36864, FCC_F32, M, N)};                                       \
        struct fcc_gemm_all_to_all_args gemm = t.gemm;                                                                         \
        spoil;                                                                                                                 \
        says(__LINE__, #spoil, fcc_gemm_all_to_all_epilogue(t.comm, &gemm, &e), -(status), (text));                            \
    } while (0)
#define EMB(spoil, status, text)                                                                                               \
    do {                                                                                                                       \
        struct fcc_embedding_all_to_all_args emb = t.emb;                                                                      \
        spoil;                                                                                                                 \
        says(__LINE__, #spoil, fcc_embedding_all_to_all(t.comm, &emb), -(status), (text));                                     \
    } while (0)

static void scene_open(void)
{
    static const int64_t rows = ROWS;
    struct fcc_unique_id id;

    OK(fcc_connect(NULL, &t.context));
    OK(fcc_get_unique_id(t.context, &id));
    OK(fcc_comm_init(t.context, &id, 1, 0, NULL, &t.comm));
    OK(fcc_buffer_alloc(t.comm, FCC_BUFFER_LOCAL, 65536, &t.in));
    OK(fcc_buffer_alloc(t.comm, FCC_BUFFER_SYMMETRIC, 65536, &t.out));
    t.gemv = (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(t.in, 0, FCC_F32, 1, K),
                                               .w = fcc_tensor_2d(t.in, 4096, FCC_F32, N, K),
                                               .y = fcc_tensor_2d(t.out, 0, FCC_F32, 1, N)};
    t.gemm = (struct fcc_gemm_all_to_all_args){.a = fcc_tensor_2d(t.in, 0, FCC_F32, M, K),
                                               .b = fcc_tensor_2d(t.in, 4096, FCC_F32, K, N),
                                               .c = fcc_tensor_2d(t.out, 0, FCC_F32, M, N)};
    t.emb = (struct fcc_embedding_all_to_all_args){.tables = fcc_tensor_2d(t.in, 0, FCC_F32, ROWS, DIM),
                                                   .table_rows = &rows,
                                                   .num_tables = 1,
                                                   .indices = fcc_tensor_1d(t.in, 4096, FCC_I64, BAGS * POOL),
                                                   .offsets = fcc_tensor_1d(t.in, 8192, FCC_I64, BAGS + 1),
                                                   .batch = BATCH,
                                                   .out = fcc_tensor_3d(t.out, 0, FCC_F32, BATCH, 1, DIM)};
    OK(fcc_gemv_all_reduce(t.comm, &t.gemv));
    OK(fcc_gemm_all_to_all(t.comm, &t.gemm));
    OK(fcc_embedding_all_to_all(t.comm, &t.emb));
}

/* After each error the communicator goes on. */
static void scene_close(void)
{
    OK(fcc_gemv_all_reduce(t.comm, &t.gemv));
    OK(fcc_gemm_all_to_all(t.comm, &t.gemm));
    OK(fcc_embedding_all_to_all(t.comm, &t.emb));
    fcc_comm_destroy(t.comm);
    fcc_disconnect(t.context);
}

static void in_scene(void (*run)(void))
{
    struct test_daemon d;

    daemon_start(&d, NULL);
    scene_open();
    run();
    scene_close();
    daemon_stop(&d);
}

/* ---- operators ---- */

static void gemv(void)
{
    GEMV(gemv.x.buffer = NULL, EINVAL, "rank 0: gemv_all_reduce: x: absent: it must be there");
    GEMV(gemv.y.buffer = NULL, EINVAL, "rank 0: gemv_all_reduce: y: absent: it must be there");
    GEMV(gemv.x.dtype = 0, EINVAL, "rank 0: gemv_all_reduce: x: dtype 0: allowed are 1 to 10");
    GEMV(gemv.x.dtype = 100000, EINVAL, "rank 0: gemv_all_reduce: x: dtype 100000: allowed are 1 to 10");
    GEMV(gemv.x.dtype = FCC_I32, EINVAL, "rank 0: gemv_all_reduce: x: dtype i32: allowed: f32, f16, bf16, f8e4m3");
    GEMV(gemv.w.dtype = FCC_F16, EINVAL, "rank 0: gemv_all_reduce: w: dtype f16: allowed are f32 (x's) and f8e4m3");
    GEMV(gemv.x.ndim = 0, EINVAL, "rank 0: gemv_all_reduce: x: 0 dimensions: allowed are 1 to 4");
    GEMV(gemv.x.ndim = 1, EINVAL, "rank 0: gemv_all_reduce: x: 1 dimensions: allowed is 2");
    GEMV(gemv.x.ndim = 5, EINVAL, "rank 0: gemv_all_reduce: x: 5 dimensions: allowed are 1 to 4");
    GEMV(gemv.x.shape[0] = 0, EINVAL, "rank 0: gemv_all_reduce: x: shape[0] 0: allowed are 1 to 65536");
    GEMV(gemv.x.shape[0] = -1, EINVAL, "rank 0: gemv_all_reduce: x: shape[0] -1: allowed are 0 to 2147483647");
    GEMV(gemv.w.shape[1] = K - 1, EINVAL, "rank 0: gemv_all_reduce: w: shape[1] 63: allowed is 64 (x's shape[1], K)");
    GEMV(gemv.w.shape[0] = 1 << 20, EINVAL,
         "rank 0: gemv_all_reduce: w: its elements do not lie in its buffer: offset 4096, shape [1048576][64][1][1] f32, "
         "buffer of 65536 bytes");
    GEMV(gemv.y.shape[1] = N - 1, EINVAL, "rank 0: gemv_all_reduce: y: shape[1] 95: allowed is 96 (w's shape[0], N)");
    GEMV((gemv.x.stride[0] = 1, gemv.x.stride[1] = 2), EINVAL, "rank 0: gemv_all_reduce: x: stride[1] 2: allowed is 1");
    GEMV((gemv.w.stride[0] = -K, gemv.w.stride[1] = 1), EINVAL,
         "rank 0: gemv_all_reduce: w: stride[0] -64: allowed are 0 and more");
    GEMV(gemv.x.offset = 2, EINVAL,
         "rank 0: gemv_all_reduce: x: offset 2: misaligned: allowed are multiples of 4, the size of f32");
    GEMV(gemv.x.offset = 65536, EINVAL,
         "rank 0: gemv_all_reduce: x: its elements do not lie in its buffer: offset 65536, shape [1][64][1][1] f32, buffer of "
         "65536 bytes");
    GEMV((gemv.w.stride[0] = 1 << 20, gemv.w.stride[1] = 1), EINVAL,
         "rank 0: gemv_all_reduce: w: its elements do not lie in its buffer: offset 4096, shape [96][64][1][1] f32, "
         "strides [1048576][1], buffer of 65536 bytes");
    GEMV(gemv.y.buffer = t.in, EINVAL,
         "rank 0: gemv_all_reduce: y: in a buffer that takes no results of this communicator: allowed are its symmetric and "
         "result buffers");
    GEMV(gemv.x = gemv.y, EINVAL, "rank 0: gemv_all_reduce: w: shape[1] 64: allowed is 96 (x's shape[1], K)");
    GEMV((gemv.x.buffer = t.out, gemv.x.offset = 128), EINVAL,
         "rank 0: gemv_all_reduce: x: bytes 128 to 383 of buffer 3 overlap y, bytes 0 to 383: allowed are inputs that no "
         "result is stored into");
    GEMV(gemv.schedule = 9, EINVAL,
         "rank 0: gemv_all_reduce: schedule: 9: allowed are 0 to 4, with them flat (64) or hierarchical (128), and batch "
         "invariant (32) or in any order (16)");
    GEMV(gemv.schedule = 256, EINVAL,
         "rank 0: gemv_all_reduce: schedule: 256: allowed are 0 to 4, with them flat (64) or hierarchical (128), and batch "
         "invariant (32) or in any order (16)");
    GEMV(gemv.schedule = FCC_SCHEDULE_FLAT | FCC_SCHEDULE_HIERARCHICAL, EINVAL,
         "rank 0: gemv_all_reduce: schedule: 192: allowed are 0 to 4, with them flat (64) or hierarchical (128), and batch "
         "invariant (32) or in any order (16)");
    GEMV(gemv.reserved[3] = 7, EINVAL, "rank 0: gemv_all_reduce: reserved[3]: 7: must be 0");
    GEMV(gemv.x.buffer = (fcc_buffer *)&t, ENOENT,
         "rank 0: gemv_all_reduce: x: no such buffer: it has been freed, or belongs to another connection");
}

static void gemm(void)
{
    int64_t send[1] = {M - 1}, negative[1] = {-1};

    GEMM(gemm.a.buffer = NULL, EINVAL, "rank 0: gemm_all_to_all: a: absent: it must be there");
    GEMM(gemm.b.dtype = FCC_BF16, EINVAL, "rank 0: gemm_all_to_all: b: dtype bf16: allowed are f32 (a's) and f8e4m3");
    GEMM(gemm.b.shape[0] = K - 1, EINVAL, "rank 0: gemm_all_to_all: b: shape[0] 63: allowed is 64 (a's shape[1], K)");
    GEMM(gemm.c.shape[1] = N - 1, EINVAL, "rank 0: gemm_all_to_all: c: shape[1] 95: allowed is 96 (b's shape[1], N)");
    GEMM(gemm.c.shape[0] = M - 1, EINVAL, "gemm_all_to_all: c: rank 0 receives 8 rows, its c has 7");
    GEMM(gemm.send_rows = send, EINVAL, "rank 0: gemm_all_to_all: send_rows: sum 7: allowed is 8 (a's shape[0], M)");
    GEMM(gemm.send_rows = negative, EINVAL,
         "rank 0: gemm_all_to_all: send_rows[0]: -1: allowed are 0 to 8, for all to add up to a's shape[0], M, 8");
    GEMM((gemm.c.stride[0] = 1, gemm.c.stride[1] = 1), EINVAL,
         "rank 0: gemm_all_to_all: c: stride[0] 1: elements overlap: allowed are strides beyond the inner rows");
    GEMM(gemm.reserved[0] = 1, EINVAL, "rank 0: gemm_all_to_all: reserved[0]: 1: must be 0");
    GEMM(gemm.a = gemm.c, EINVAL, "rank 0: gemm_all_to_all: b: shape[0] 64: allowed is 96 (a's shape[1], K)");
}

static void epilogue(void)
{
    const struct fcc_epilogue none = {.bias = {.buffer = NULL}};

    OK(fcc_gemv_all_reduce_epilogue(t.comm, &t.gemv, NULL));
    OK(fcc_gemv_all_reduce_epilogue(t.comm, &t.gemv, &none));
    SAYS(fcc_gemv_all_reduce_epilogue(t.comm, NULL, &none), EINVAL, "rank 0: gemv_all_reduce: args: NULL: not allowed");
    SAYS(fcc_gemv_all_reduce_epilogue_start(t.comm, &t.gemv, &none, NULL), EINVAL,
         "rank 0: gemv_all_reduce: out: NULL: not allowed");
    EPILOGUE(e.bias.dtype = FCC_F16, EINVAL, "rank 0: gemv_all_reduce: bias: dtype f16: allowed is f32 (y's)");
    EPILOGUE(e.bias.dtype = 77, EINVAL, "rank 0: gemv_all_reduce: bias: dtype 77: allowed are 1 to 10");
    EPILOGUE(e.bias.shape[0] = N + 1, EINVAL, "rank 0: gemv_all_reduce: bias: shape[0] 97: allowed is 96 (N)");
    EPILOGUE(e.residual.shape[0] = 2, EINVAL, "rank 0: gemv_all_reduce: residual: shape[0] 2: allowed is 1 (M)");
    EPILOGUE(e.residual.buffer = (fcc_buffer *)&t, ENOENT,
             "rank 0: gemv_all_reduce: residual: no such buffer: it has been freed, or belongs to another connection");
    EPILOGUE(e.residual.offset = 65536, EINVAL,
             "rank 0: gemv_all_reduce: residual: its elements do not lie in its buffer: offset 65536, shape [1][96][1][1] f32, "
             "buffer of 65536 bytes");
    EPILOGUE((e.bias.buffer = t.out, e.bias.offset = 128), EINVAL,
             "rank 0: gemv_all_reduce: bias: bytes 128 to 511 of buffer 3 overlap y, bytes 0 to 383: allowed are inputs that "
             "no result is stored into");
    EPILOGUE((e.residual.buffer = t.out, e.residual.offset = 4), EINVAL,
             "rank 0: gemv_all_reduce: residual: bytes 4 to 387 of buffer 3 overlap y, bytes 0 to 383: allowed are inputs that "
             "no result is stored into");
    GEMM_EPILOGUE(gemm.b.buffer = NULL, EINVAL,
                  "rank 0: gemm_all_to_all: c: shape[1] 96: allowed is 64 (a's shape[1], as b is absent)");
    GEMM_EPILOGUE((gemm.b.buffer = NULL, gemm.c.shape[1] = K), EINVAL,
                  "rank 0: gemm_all_to_all: bias: not allowed where b is absent");
    GEMM_EPILOGUE(e.residual.shape[0] = M - 1, EINVAL, "rank 0: gemm_all_to_all: residual: shape[0] 7: allowed is 8 (M)");
    GEMM_EPILOGUE(
        e.residual = gemm.c, EINVAL,
        "rank 0: gemm_all_to_all: residual: bytes 0 to 3071 of buffer 3 overlap c, bytes 0 to 3071: allowed are inputs "
        "that no result is stored into");
}

static void number_write(uint64_t offset, int64_t number)
{
    OK(fcc_buffer_write(t.in, offset, &number, sizeof(number)));
}

static void embedding(void)
{
    static const int64_t negative = -ROWS, wrong = ROWS - 1, split = BATCH - 1;

    EMB(emb.num_tables = -1, EINVAL, "rank 0: embedding_all_to_all: num_tables: -1: allowed are 0 to 4096");
    EMB(emb.num_tables = 100000, EINVAL, "rank 0: embedding_all_to_all: num_tables: 100000: allowed are 0 to 4096");
    EMB(emb.table_rows = NULL, EINVAL, "rank 0: embedding_all_to_all: table_rows: NULL: allowed only if num_tables is 0");
    EMB(emb.table_rows = &negative, EINVAL,
        "rank 0: embedding_all_to_all: table_rows[0]: -10: allowed are 0 to 10, for all to add up to tables' shape[0], 10");
    EMB(emb.table_rows = &wrong, EINVAL, "rank 0: embedding_all_to_all: table_rows: sum 9: allowed is 10 (tables' shape[0])");
    EMB(emb.pooling = 7, EINVAL, "rank 0: embedding_all_to_all: pooling: 7: allowed are 0 (sum) and 1 (mean)");
    EMB(emb.batch = -1, EINVAL, "rank 0: embedding_all_to_all: batch: -1: allowed are 0 to 2147483647");
    EMB(emb.batch = BATCH + 1, EINVAL,
        "rank 0: embedding_all_to_all: out: shape[0] 3: allowed is 4 (this rank's part of the batch)");
    EMB(emb.batch_split = &split, EINVAL, "rank 0: embedding_all_to_all: batch_split: sum 2: allowed is 3 (batch)");
    EMB(emb.indices.dtype = FCC_F32, EINVAL, "rank 0: embedding_all_to_all: indices: dtype f32: allowed: i32, i64");
    EMB(emb.offsets.dtype = FCC_I32, EINVAL, "rank 0: embedding_all_to_all: offsets: dtype i32: allowed is i64 (indices')");
    EMB(emb.offsets.shape[0] = BAGS, EINVAL,
        "rank 0: embedding_all_to_all: offsets: shape[0] 3: allowed is 4 (num_tables * batch + 1)");
    EMB(emb.sample_weights = fcc_tensor_1d(t.in, 0, FCC_F32, 1), EINVAL,
        "rank 0: embedding_all_to_all: sample_weights: shape[0] 1: allowed is 6 (indices' shape[0])");
    EMB(emb.sample_weights = fcc_tensor_1d(t.in, 0, FCC_F16, BAGS * POOL), EINVAL,
        "rank 0: embedding_all_to_all: sample_weights: dtype f16: allowed: f32");
    EMB((emb.sample_weights = fcc_tensor_1d(t.in, 0, FCC_F32, BAGS * POOL), emb.pooling = FCC_POOLING_MEAN), EINVAL,
        "rank 0: embedding_all_to_all: sample_weights: with mean pooling: allowed with sum only");
    EMB(emb.out.shape[1] = 2, EINVAL, "embedding_all_to_all: out: rank 0 has shape[1] 2, all ranks together have 1 tables");
    EMB(emb.out.shape[2] = DIM - 1, EINVAL,
        "rank 0: embedding_all_to_all: tables: shape[1] 4: allowed is 3 (out's shape[2], dim)");
    EMB(emb.out.ndim = 2, EINVAL, "rank 0: embedding_all_to_all: out: 2 dimensions: allowed is 3");
    EMB(emb.out.buffer = t.in, EINVAL,
        "rank 0: embedding_all_to_all: out: in a buffer that takes no results of this communicator: allowed are its symmetric "
        "and result buffers");
    EMB((emb.out.buffer = NULL), EINVAL, "rank 0: embedding_all_to_all: out: absent: it must be there");
    EMB(emb.reserved[6] = 1, EINVAL, "rank 0: embedding_all_to_all: reserved[6]: 1: must be 0");
    for (int i = 0; i <= BAGS; i++)
        number_write(8192 + 8 * (uint64_t)i, i * POOL);
    number_write(4096 + 24, ROWS);
    EMB(, ERANGE, "rank 0: embedding_all_to_all: indices[3]: 10: table 0, bag 1, position 1: allowed are 0 to 9");
    number_write(4096 + 24, -7);
    EMB(, ERANGE, "rank 0: embedding_all_to_all: indices[3]: -7: table 0, bag 1, position 1: allowed are 0 to 9");
    number_write(4096 + 24, 0);
    number_write(8192 + 16, 0);
    EMB(, ERANGE, "rank 0: embedding_all_to_all: offsets[2]: 0: table 0, end of bag 1: allowed are 2 to 6");
    number_write(8192 + 16, 2 * POOL);
}

/* ---- what is not there ---- */

static void nothing(void)
{
    struct fcc_unique_id id;
    fcc_buffer *buffer;
    void *address;
    int done;

    SAYS(fcc_noop(NULL), EINVAL, "comm: NULL: not allowed");
    SAYS(fcc_gemv_all_reduce(NULL, &t.gemv), EINVAL, "comm: NULL: not allowed");
    SAYS(fcc_gemv_all_reduce(t.comm, NULL), EINVAL, "rank 0: gemv_all_reduce: args: NULL: not allowed");
    SAYS(fcc_gemv_all_reduce_start(t.comm, &t.gemv, NULL), EINVAL, "rank 0: gemv_all_reduce: out: NULL: not allowed");
    SAYS(fcc_gemm_all_to_all(t.comm, NULL), EINVAL, "rank 0: gemm_all_to_all: args: NULL: not allowed");
    SAYS(fcc_embedding_all_to_all(t.comm, NULL), EINVAL, "rank 0: embedding_all_to_all: args: NULL: not allowed");
    SAYS(fcc_noop_start(t.comm, NULL), EINVAL, "rank 0: noop: out: NULL: not allowed");
    SAYS(fcc_get_unique_id(NULL, &id), EINVAL, "context: NULL: not allowed");
    SAYS(fcc_get_unique_id(t.context, NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_connect(NULL, NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_buffer_alloc(NULL, FCC_BUFFER_LOCAL, 8, &buffer), EINVAL, "comm: NULL: not allowed");
    SAYS(fcc_buffer_alloc(t.comm, FCC_BUFFER_LOCAL, 8, NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_buffer_write(NULL, 0, &done, 4), EINVAL, "buffer: NULL: not allowed");
    SAYS(fcc_buffer_write(t.in, 0, NULL, 4), EINVAL, "from: NULL: not allowed");
    SAYS(fcc_buffer_read(t.in, 0, NULL, 4), EINVAL, "to: NULL: not allowed");
    SAYS(fcc_buffer_peer(NULL, 0, &address), EINVAL, "buffer: NULL: not allowed");
    SAYS(fcc_buffer_peer(t.out, 0, NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_comm_status(t.comm, NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_comm_triggers(t.comm, NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_put_register(t.comm, NULL, NULL), EINVAL, "put: NULL: not allowed");
    SAYS(fcc_request_test(NULL, &done), EINVAL, "request: NULL: not allowed");
    SAYS(fcc_request_wait(NULL, -1), EINVAL, "request: NULL: not allowed");
    SAYS(fcc_comm_rank(NULL), EINVAL, "comm: NULL: not allowed");
    SAYS(fcc_comm_error(NULL), EINVAL, "comm: NULL: not allowed");
    SAYS(fcc_device_count(NULL), EINVAL, "context: NULL: not allowed");
    SAYS(fcc_comm_abort(NULL, "x"), EINVAL, "comm: NULL: not allowed");
    SAYS(fcc_env_find(NULL), EINVAL, "out: NULL: not allowed");
    SAYS(fcc_comm_init_env(NULL, NULL, &t.comm), EINVAL, "context: NULL: not allowed");
    SAYS(fcc_comm_init_env(t.context, NULL, NULL), EINVAL, "rank 0: out: NULL: not allowed");
    fcc_comm_destroy(NULL);
    fcc_disconnect(NULL);
    fcc_buffer_free(NULL);
    fcc_request_free(NULL);
    fcc_prepared_free(NULL);
}

/* ---- communicators, memory, requests ---- */

static void communicators(void)
{
    struct fcc_comm_options options = {.device = -1};
    struct fcc_unique_id id, none = {{0}};
    fcc_comm *comm;
    char reason[300];

    OK(fcc_get_unique_id(t.context, &id));
    SAYS(fcc_comm_init(t.context, NULL, 1, 0, NULL, &comm), EINVAL, "id: NULL: not allowed");
    SAYS(fcc_comm_init(t.context, &id, 1, 0, NULL, NULL), EINVAL, "rank 0: out: NULL: not allowed");
    SAYS(fcc_comm_init(t.context, &none, 1, 0, NULL, &comm), EINVAL,
         "rank 0: id: all zero: allowed is one that fcc_get_unique_id() made");
    SAYS(fcc_comm_init(t.context, &id, 0, 0, NULL, &comm), EINVAL, "rank 0: nranks: 0: allowed are 1 to 1024");
    SAYS(fcc_comm_init(t.context, &id, 1025, 0, NULL, &comm), EINVAL, "rank 0: nranks: 1025: allowed are 1 to 1024");
    SAYS(fcc_comm_init(t.context, &id, 2, 2, NULL, &comm), EINVAL, "rank: 2: allowed are 0 to 1");
    SAYS(fcc_comm_init(t.context, &id, 2, -1, NULL, &comm), EINVAL, "rank: -1: allowed are 0 to 1");
    options.device = 4;
    SAYS(fcc_comm_init(t.context, &id, 1, 0, &options, &comm), ENOENT, "rank 0: device: 4: allowed are -1 to 3");
    options.device = -2;
    SAYS(fcc_comm_init(t.context, &id, 1, 0, &options, &comm), EINVAL, "rank 0: device: -2: allowed are -1 to 3");
    options = (struct fcc_comm_options){.device = -1, .device_kind = 9};
    SAYS(fcc_comm_init(t.context, &id, 1, 0, &options, &comm), EINVAL,
         "rank 0: options.device_kind: 9: allowed are 0 (cpu), 1 (any GPU), 2 (hip) and 3 (cuda)");
    options = (struct fcc_comm_options){.device = -1, .reserved = {0, 1}};
    SAYS(fcc_comm_init(t.context, &id, 1, 0, &options, &comm), EINVAL, "rank 0: options.reserved[1]: 1: must be 0");
    memset(reason, 'x', sizeof(reason));
    reason[sizeof(reason) - 1] = '\0';
    SAYS(fcc_comm_abort(t.comm, reason), EINVAL, "reason: 299 characters: allowed are at most 200");
    SAYS(fcc_comm_error_wait(t.comm, -2), EINVAL, "timeout_ms: -2: allowed are -1 (the time limit) and more");
}

static void memory(void)
{
    fcc_request *request;
    fcc_buffer *buffer;
    void *address;
    char bytes[16];

    SAYS(fcc_buffer_alloc(t.comm, FCC_BUFFER_LOCAL, 0, &buffer), EINVAL, "bytes: 0: allowed are 1 to 70368744177664");
    SAYS(fcc_buffer_alloc(t.comm, FCC_BUFFER_SYMMETRIC, 0, &buffer), EINVAL,
         "rank 0: fcc_buffer_alloc (symmetric): bytes: 0: allowed are 1 to 70368744177664");
    SAYS(fcc_buffer_alloc(t.comm, (enum fcc_buffer_kind)9, 64, &buffer), EINVAL,
         "rank 0: fcc_buffer_alloc: kind: 9: allowed are 0 to 2");
    fcc_prepared *prepared;
    struct fcc_gemv_all_reduce_args gemv = {.x = fcc_tensor_2d(t.in, 0, FCC_F32, 1, 16),
                                            .w = fcc_tensor_2d(t.in, 64, FCC_F32, 4, 16),
                                            .y = fcc_tensor_2d(t.out, 0, FCC_F32, 1, 4)};
    SAYS(fcc_gemv_all_reduce_prepare(t.comm, &gemv, &prepared), EOPNOTSUPP,
         "gemv_all_reduce_prepare: the communicator's ranks are on cpu devices: allowed on cuda");
    gemv.x.ndim = 7;
    SAYS(fcc_gemv_all_reduce_prepare(t.comm, &gemv, &prepared), EINVAL,
         "rank 0: gemv_all_reduce_prepare: x: 7 dimensions: allowed are 1 to 4");
    SAYS(fcc_gemm_all_to_all_prepare(t.comm, NULL, &prepared), EINVAL,
         "rank 0: gemm_all_to_all_prepare: args: NULL: not allowed");
    SAYS(fcc_buffer_write(t.in, 65530, bytes, 16), EINVAL, "rank 0: offset 65530 and 16 bytes: the buffer has 65536 bytes");
    SAYS(fcc_buffer_read(t.in, UINT64_MAX, bytes, 16), EINVAL,
         "rank 0: offset 18446744073709551615 and 16 bytes: the buffer has 65536 bytes");
    SAYS(fcc_buffer_peer(t.out, 1, &address), EINVAL, "rank: 1: allowed are 0 to 0");
    SAYS(fcc_put_trigger(t.comm, 0, 1), EINVAL, "number: 0: allowed is what fcc_put_register() gave");
    SAYS(fcc_group_end(), EINVAL, "fcc_group_end: no group has begun in this thread");
    SAYS(fcc_pool_open(t.comm, -1), EINVAL, "pool: device -1: allowed are 0 to 63");
    SAYS(fcc_pool_close(1), ENOENT, "pool: device 1 has none that is open");
    OK(fcc_noop_start(t.comm, &request));
    SAYS(fcc_request_wait(request, -2), EINVAL, "timeout_ms: -2: allowed are -1 (no limit) and more");
    SAYS(fcc_request_test(request, NULL), EINVAL, "done: NULL: not allowed");
    OK(fcc_request_wait(request, -1));
    fcc_request_free(request);
}

#define IN_SCENE(name)                                                                                                         \
    static void name##_test(void)                                                                                              \
    {                                                                                                                          \
        in_scene(name);                                                                                                        \
    }
IN_SCENE(gemv)
IN_SCENE(gemm)
IN_SCENE(epilogue)
IN_SCENE(embedding)
IN_SCENE(nothing)
IN_SCENE(communicators)
IN_SCENE(memory)

int main(void)
{
    static const struct test tests[] = {
        {"gemv", gemv_test, 0},           {"gemm", gemm_test, 0},       {"epilogue", epilogue_test, 0},
        {"embedding", embedding_test, 0}, {"nothing", nothing_test, 0}, {"communicators", communicators_test, 0},
        {"memory", memory_test, 0},
    };

    return tests_run("texts", TESTS(tests));
}
