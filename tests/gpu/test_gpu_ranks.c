/* SPDX-License-Identifier: MIT
 *
 * test_gpu_ranks.c - the daemon's memory in a client's own kernels, and every operator at a middle size with several ranks on
 * one GPU and ranks on all GPUs, against the cpu device of the same daemon; and what fccctl trace says of them.
 */
#include <json-c/json.h>
#include <math.h>

#include "tests/bed/value.h"
#include "tests/demo/reference.h"
#include "tests/gpu/gpu_client.h"

/* ---- memory ---- */

#define LARGE ((size_t)1 << 30)
static const char *const large_options[] = {"--memory-per-user-mb", "4096", NULL};
static const char *const ipc_options[] = {"--gpu-sharing", "ipc", NULL}; /* for drivers without shareable descriptors */

static void zero_check(const fcc_buffer *b, char *host)
{
    OK(fcc_buffer_read(b, 0, host, LARGE));
    CHECK(host[0] == 0 && memcmp(host, host + 1, LARGE - 1) == 0);
}

/* Fresh memory is zero; then it is poisoned and freed, which the next owner must not see. */
static void fresh_rank(int rank, const struct ranks *all, void *argument)
{
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, 0, 0);
    void *stream;
    char *host = malloc(LARGE);
    fcc_buffer *b;

    (void)argument;
    CHECK(host != NULL);
    gpu_open(comm);
    stream = stream_open(CUDA_STREAM_OWN_ORDER);
    for (int round = 0; round < 2; round++) {
        OK(fcc_buffer_alloc(comm, round ? FCC_BUFFER_SYMMETRIC : FCC_BUFFER_LOCAL, LARGE, &b));
        zero_check(b, host);
        CU(gpu.set((uint64_t)(uintptr_t)fcc_buffer_data(b), 0x5ec2e7ed, LARGE / 4, stream));
        CU(gpu.stream_synchronize(stream));
        OK(fcc_buffer_read(b, LARGE - 4, host, 4));
        CHECK(!memcmp(host, &(uint32_t){0x5ec2e7ed}, 4));
        fcc_buffer_free(b);
    }
    free(host);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

/* One job after the other, on the same GPU. */
static void fresh_memory(void)
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, large_options);
    for (int i = 0; i < 2; i++) {
        (void)setenv("FCCD_JOB", i ? "second" : "first", 1);
        ranks_start(&r, 1, fresh_rank, NULL);
        ranks_join(&r);
    }
    daemon_stop(&d);
}

static void pointer_rank(int rank, const struct ranks *all, void *argument)
{
    enum { N = 5000 };
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    fcc_buffer *b[2];
    float x[N];
    void *stream;

    (void)argument;
    gpu_open(comm);
    stream = stream_open(CUDA_STREAM_OWN_ORDER);
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(x), &b[0]));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, sizeof(x), &b[1]));
    for (int k = 0; k < 2; k++) {
        CHECK(fcc_buffer_data(b[k]) != NULL && (uintptr_t)fcc_buffer_data(b[k]) % 4096 == 0);
        for (int i = 0; i < N; i++)
            x[i] = (float)(i + 1000 * rank);
        OK(fcc_buffer_write(b[k], 0, x, sizeof(x)));
        gpu_increment(stream, b[k], N);
        gpu_increment(stream, b[k], N);
        CU(gpu.stream_synchronize(stream));
        memset(x, 0xff, sizeof(x));
        OK(fcc_buffer_read(b[k], 0, x, sizeof(x)));
        for (int i = 0; i < N; i++)
            CHECK(x[i] == (float)(i + 1000 * rank + 2));
        OK(fcc_buffer_read(b[k], 4 * 17, x, 4));
        CHECK(x[0] == (float)(17 + 1000 * rank + 2));
        FAILS(fcc_buffer_read(b[k], 4 * N - 2, x, 4), -EINVAL, "bytes");
    }
    OK(fcc_noop(comm));
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static void pointers_run(const char *const options[])
{
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, options);
    ranks_start(&r, gpus > 4 ? 8 : 2 * gpus, pointer_rank, NULL);
    ranks_join(&r);
    daemon_stop(&d);
}

static void pointer_in_kernels(void)
{
    pointers_run(NULL);
}

static void pointer_by_ipc_handle(void)
{
    pointers_run(ipc_options);
}

/* ---- against the cpu ---- */

enum { MIDDLE = 512, GEMV_ROWS = 4, TABLES = 3, TABLE_ROWS = 1000, DIM = 64, POOL = 8, INPUTS = 4 };
#define ARRAY_BYTES ((size_t)1 << 20) /* the largest: MIDDLE x MIDDLE of f32, or TABLES x TABLE_ROWS x DIM */

static const struct type {
    enum fcc_dtype fcc;
    enum reference_type reference;
    size_t size;
    double tolerance; /* of the error's Frobenius norm, relative to the result's */
} types[] = {{FCC_F32, REFERENCE_F32, 4, 1e-5}, {FCC_F16, REFERENCE_F16, 2, 1e-2}, {FCC_BF16, REFERENCE_BF16, 2, 1e-2}};

/* One rank on a GPU and on the cpu, with the same inputs. */
struct twin {
    int rank, n;
    struct {
        fcc_comm *comm;
        fcc_buffer *in[INPUTS], *out;
    } side[2];
    unsigned char *host, *result[2];
};

static void twin_open(struct twin *t, int rank, const struct ranks *all, const struct fcc_unique_id *cpu_id, int device)
{
    fcc_context *context = client_connect(NULL);

    *t = (struct twin){.rank = rank, .n = all->n, .host = malloc(ARRAY_BYTES)};
    t->side[0].comm = client_join(context, &all->id, all->n, rank, device, 0);
    OK(fcc_comm_init(context, cpu_id, all->n, rank, NULL, &t->side[1].comm));
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < INPUTS; i++)
            OK(fcc_buffer_alloc(t->side[s].comm, FCC_BUFFER_LOCAL, ARRAY_BYTES, &t->side[s].in[i]));
        OK(fcc_buffer_alloc(t->side[s].comm, FCC_BUFFER_SYMMETRIC, ARRAY_BYTES, &t->side[s].out));
        t->result[s] = malloc(ARRAY_BYTES);
        CHECK(t->host && t->result[s]);
    }
}

/* What t->host has, into input i of both. */
static void twin_send(const struct twin *t, int i, size_t bytes)
{
    for (int s = 0; s < 2; s++)
        OK(fcc_buffer_write(t->side[s].in[i], 0, t->host, bytes));
}

static void twin_fill(const struct twin *t, const struct type *type, int i, int64_t n)
{
    CHECK((size_t)n * type->size <= ARRAY_BYTES);
    for (int64_t e = 0; e < n; e++)
        value_store(type->fcc, t->host, e, value((unsigned)(10 * t->rank + i), e));
    twin_send(t, i, (size_t)n * type->size);
}

static void twin_poison(const struct twin *t)
{
    memset(t->host, 0xff, ARRAY_BYTES);
    for (int s = 0; s < 2; s++)
        OK(fcc_buffer_write(t->side[s].out, 0, t->host, ARRAY_BYTES));
    for (int s = 0; s < 2; s++) /* nobody's result is overwritten by a poison that comes late */
        OK(fcc_noop(t->side[s].comm));
}

static void twin_compare(struct twin *t, const struct type *type, int64_t n, const char *what, uint32_t schedule)
{
    double error = 0, norm = 0;

    for (int s = 0; s < 2; s++)
        OK(fcc_buffer_read(t->side[s].out, 0, t->result[s], (size_t)n * type->size));
    for (int64_t i = 0; i < n; i++) {
        double want = reference_element(type->reference, t->result[1], i);
        double difference = reference_element(type->reference, t->result[0], i) - want;
        error += difference * difference;
        norm += want * want;
    }
    error = sqrt(error / norm);
    if (!(norm > 0 && error <= type->tolerance))
        check_failed(__FILE__, __LINE__, "%s, rank %d of %d, dtype %d, schedule %u: relative error %g, allowed is %g", what,
                     t->rank, t->n, (int)type->fcc, schedule, error, type->tolerance);
}

static void twin_gemv(struct twin *t, const struct type *type, uint32_t schedule)
{
    twin_fill(t, type, 0, GEMV_ROWS * MIDDLE);
    twin_fill(t, type, 1, MIDDLE * MIDDLE);
    twin_poison(t);
    for (int s = 0; s < 2; s++) {
        struct fcc_gemv_all_reduce_args args = {.x = fcc_tensor_2d(t->side[s].in[0], 0, type->fcc, GEMV_ROWS, MIDDLE),
                                                .w = fcc_tensor_2d(t->side[s].in[1], 0, type->fcc, MIDDLE, MIDDLE),
                                                .y = fcc_tensor_2d(t->side[s].out, 0, type->fcc, GEMV_ROWS, MIDDLE),
                                                .schedule = schedule};
        OK(fcc_gemv_all_reduce(t->side[s].comm, &args));
    }
    twin_compare(t, type, GEMV_ROWS * MIDDLE, "gemv_all_reduce", schedule);
}

static void twin_gemm(struct twin *t, const struct type *type, uint32_t schedule)
{
    int64_t rows = MIDDLE / t->n * t->n;

    twin_fill(t, type, 0, rows * MIDDLE);
    twin_fill(t, type, 1, MIDDLE * MIDDLE);
    twin_poison(t);
    for (int s = 0; s < 2; s++) {
        struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(t->side[s].in[0], 0, type->fcc, rows, MIDDLE),
                                                .b = fcc_tensor_2d(t->side[s].in[1], 0, type->fcc, MIDDLE, MIDDLE),
                                                .c = fcc_tensor_2d(t->side[s].out, 0, type->fcc, rows, MIDDLE),
                                                .schedule = schedule};
        OK(fcc_gemm_all_to_all(t->side[s].comm, &args));
    }
    twin_compare(t, type, rows * MIDDLE, "gemm_all_to_all", schedule);
}

static void twin_embedding(struct twin *t, const struct type *type, uint32_t schedule)
{
    static const int64_t table_rows[TABLES] = {TABLE_ROWS, TABLE_ROWS, TABLE_ROWS};
    int64_t bags = (int64_t)TABLES * MIDDLE, nnz = bags * POOL, samples = MIDDLE / t->n + (t->rank < MIDDLE % t->n);
    int64_t *words = (int64_t *)(void *)t->host;

    twin_fill(t, type, 0, (int64_t)TABLES * TABLE_ROWS * DIM);
    for (int64_t i = 0; i < nnz; i++)
        words[i] = (int64_t)((value(77, i) + 2) * 8) * 31 + i % 31; /* 0 to 991 */
    twin_send(t, 1, (size_t)nnz * sizeof(int64_t));
    for (int64_t i = 0; i <= bags; i++) /* full and empty ones in turn */
        words[i] = (i + 1) / 2 * POOL;
    twin_send(t, 2, (size_t)(bags + 1) * sizeof(int64_t));
    twin_fill(t, &types[0], 3, nnz);
    twin_poison(t);
    for (int s = 0; s < 2; s++) {
        struct fcc_embedding_all_to_all_args args = {
            .tables = fcc_tensor_2d(t->side[s].in[0], 0, type->fcc, (int64_t)TABLES * TABLE_ROWS, DIM),
            .table_rows = table_rows,
            .num_tables = TABLES,
            .indices = fcc_tensor_1d(t->side[s].in[1], 0, FCC_I64, nnz),
            .offsets = fcc_tensor_1d(t->side[s].in[2], 0, FCC_I64, bags + 1),
            .sample_weights = fcc_tensor_1d(t->side[s].in[3], 0, FCC_F32, nnz),
            .batch = MIDDLE,
            .out = fcc_tensor_3d(t->side[s].out, 0, type->fcc, samples, (int64_t)TABLES * t->n, DIM),
            .schedule = schedule};
        OK(fcc_embedding_all_to_all(t->side[s].comm, &args));
    }
    twin_compare(t, type, samples * TABLES * t->n * DIM, "embedding_all_to_all", schedule);
}

struct placing {
    int device; /* -1: ranks are dealt to the GPUs */
    struct fcc_unique_id cpu_id;
};

static void twin_rank(int rank, const struct ranks *all, void *argument)
{
    const struct placing *placing = argument;
    struct twin t;

    twin_open(&t, rank, all, &placing->cpu_id, placing->device);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        for (uint32_t schedule = FCC_SCHEDULE_FUSED; schedule <= FCC_SCHEDULE_SEQUENTIAL; schedule++) {
            twin_gemv(&t, &types[i], schedule);
            twin_gemm(&t, &types[i], schedule);
            twin_embedding(&t, &types[i], schedule);
        }
    /* what is left goes with the process */
}

static void twins_run(int device, int nranks, const char *const options[])
{
    struct placing *placing = shared_memory(sizeof(*placing));
    struct test_daemon d;
    struct ranks r;

    daemon_start(&d, options);
    placing->device = device;
    fcc_context *context = client_connect(NULL);
    OK(fcc_get_unique_id(context, &placing->cpu_id));
    fcc_disconnect(context);
    ranks_start(&r, nranks, twin_rank, placing);
    ranks_join(&r);
    daemon_stop(&d);
}

static void several_ranks_on_one_gpu(void)
{
    twins_run(0, 4, NULL);
}

static void ranks_on_all_gpus(void)
{
    twins_run(-1, gpus < 2 ? 2 : gpus > 8 ? 8 : gpus, NULL);
}

static void ranks_by_ipc_handles(void)
{
    twins_run(-1, gpus < 2 ? 2 : gpus > 8 ? 8 : gpus, ipc_options);
}

static void several_ranks_on_all_gpus(void)
{
    twins_run(-1, gpus > 4 ? 8 : 2 * gpus, NULL);
}

/* ---- traces ---- */

enum { TRACED = 1024, TRACE_ROOM = 32 << 20 };
#define CLOCK_TOLERANCE_NS 1000000 /* how well a GPU's clock is known in the CPU's time */

struct stage {
    _Atomic int ready, go;
};

static void traced_rank(int rank, const struct ranks *all, void *argument)
{
    struct stage *stage = argument;
    fcc_context *context = client_connect(NULL);
    fcc_comm *comm = client_join(context, &all->id, all->n, rank, -1, 0);
    size_t bytes = (size_t)TRACED * TRACED * 4;
    int64_t rows = TRACED / all->n * all->n;
    fcc_buffer *a, *b, *c;

    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, bytes, &a));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, bytes, &b));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, bytes, &c));
    struct fcc_gemm_all_to_all_args args = {.a = fcc_tensor_2d(a, 0, FCC_F32, rows, TRACED),
                                            .b = fcc_tensor_2d(b, 0, FCC_F32, TRACED, TRACED),
                                            .c = fcc_tensor_2d(c, 0, FCC_F32, rows, TRACED),
                                            .schedule = FCC_SCHEDULE_FUSED};
    for (int i = 0; i < 3; i++)
        OK(fcc_gemm_all_to_all(comm, &args));
    stage->ready++;
    await(&stage->go, 1);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

static struct json_object *field(struct json_object *o, const char *name)
{
    struct json_object *value = NULL;

    if (!json_object_object_get_ex(o, name, &value))
        check_failed(__FILE__, __LINE__, "no \"%s\" in the trace", name);
    return value;
}

static int64_t number(struct json_object *o, const char *name)
{
    return json_object_get_int64(field(o, name));
}

/* One rank's events: each in the operator's time; *first and *last of them all. */
static void trace_rank_check(struct json_object *rank, int64_t duration, int64_t *first, int64_t *last)
{
    struct json_object *workgroups = field(rank, "workgroups");
    int puts = 0, waits = 0;

    *first = INT64_MAX;
    *last = INT64_MIN;
    CHECK(strcmp(json_object_get_string(field(rank, "kind")), "cuda") == 0);
    for (size_t w = 0; w < json_object_array_length(workgroups); w++) {
        struct json_object *events = field(json_object_array_get_idx(workgroups, w), "events");
        for (size_t i = 0; i < json_object_array_length(events); i++) {
            struct json_object *e = json_object_array_get_idx(events, i);
            const char *kind = json_object_get_string(field(e, "kind"));
            int64_t start = number(e, "start_ns"), end = number(e, "end_ns");
            if (start > end || start < -CLOCK_TOLERANCE_NS || end > duration + CLOCK_TOLERANCE_NS)
                check_failed(__FILE__, __LINE__, "%s from %ld to %ld ns, in an operator of %ld ns", kind, (long)start,
                             (long)end, (long)duration);
            puts += !strcmp(kind, "compute+put");
            waits += !strcmp(kind, "wait");
            *first = start < *first ? start : *first;
            *last = end > *last ? end : *last;
        }
    }
    CHECK(puts > 0 && waits > 0);
}

static void trace_check(const char *text, int nranks)
{
    struct json_object *o = json_tokener_parse(text);
    int64_t first[RANKS_MAX], last[RANKS_MAX];

    if (!o)
        check_failed(__FILE__, __LINE__, "not JSON: %.200s", text);
    CHECK(strcmp(json_object_get_string(field(o, "op")), "gemm_all_to_all") == 0);
    CHECK(number(o, "nranks") == nranks);
    int64_t duration = number(o, "duration_ns");
    for (int r = 0; r < nranks; r++) {
        trace_rank_check(json_object_array_get_idx(field(o, "ranks"), (size_t)r), duration, &first[r], &last[r]);
        printf("rank %d: %.1f to %.1f us of %.1f us\n", r, (double)first[r] / 1e3, (double)last[r] / 1e3,
               (double)duration / 1e3);
    }
    for (int r = 0; r < nranks; r++)
        for (int s = 0; s < nranks; s++)
            CHECK(first[r] < last[s]); /* side by side */
    (void)json_object_put(o);
}

static void traces(void)
{
    int n = gpus < 2 ? 2 : gpus > 4 ? 8 : 2 * gpus;
    struct stage *stage = shared_memory(sizeof(*stage));
    char *text = malloc(TRACE_ROOM);
    struct test_daemon d;
    struct ranks r;

    CHECK(text != NULL);
    daemon_start(&d, NULL);
    ranks_start(&r, n, traced_rank, stage);
    await(&stage->ready, n);
    int code = program_run(text, TRACE_ROOM, fccctl_binary(), (const char *const[]){"trace", "--json", NULL});
    if (code)
        check_failed(__FILE__, __LINE__, "fccctl trace: %d: %s", code, text);
    trace_check(text, n);
    stage->go = 1;
    ranks_join(&r);
    daemon_stop(&d);
    free(text);
}

int main(void)
{
    static const struct test tests[] = {
        {"fresh_memory", fresh_memory, 0},
        {"pointer_in_kernels", pointer_in_kernels, 0},
        {"pointer_by_ipc_handle", pointer_by_ipc_handle, 0},
        {"several_ranks_on_one_gpu", several_ranks_on_one_gpu, 0},
        {"ranks_on_all_gpus", ranks_on_all_gpus, 0},
        {"ranks_by_ipc_handles", ranks_by_ipc_handles, 0},
        {"several_ranks_on_all_gpus", several_ranks_on_all_gpus, 0},
        {"traces", traces, 0},
    };
    return gpus_found() ? tests_run("gpu_ranks", TESTS(tests)) : EXIT_SUCCESS;
}
