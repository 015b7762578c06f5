/* SPDX-License-Identifier: MIT
 *
 * test_client.c - libfccclient's connection, calls, buffers and arguments, against a worker that is honest, or is not
 * (fake_worker.h). test_client_submit.c has the way of a request.
 */
#include "tests/client/client_bed.h"

/* ---- connecting ---- */

static void connect_with_fault(enum fault fault, int status, const char *words)
{
    struct fake *f = fake_new(fault);
    struct fcc_connect_options o = {.socket_path = f->path};
    fcc_context *context = (fcc_context *)&o;

    assert_int_equal(fcc_connect(&o, &context), status);
    assert_ptr_equal(context, &o);
    assert_error_says(words);
    fake_stop(f);
    assert_int_equal(f->unanswered, fault == REPLY_NONE ? 3 : 0);
    free(f);
}

static void test_welcome_faults(void **state)
{
    char says[96];

    (void)state;
    connect_with_fault(FD_MISSING, -EPROTO, "552 bytes with 1 file descriptors");
    connect_with_fault(FD_SURPLUS, -EPROTO, "552 bytes with 3 file descriptors");
    connect_with_fault(FD_UNSEALED, -EPROTO, "not sealed");
    connect_with_fault(FD_SMALL, -EPROTO, "less than");
    connect_with_fault(REPLY_TRUNCATED, -EPROTO, "544 bytes");
    connect_with_fault(REPLY_LENGTH_LIES, -EPROTO, "malformed message");
    connect_with_fault(REPLY_WRONG_TYPE, -EPROTO, "malformed reply to hello");
    connect_with_fault(REPLY_ERROR, -EPERM, FAKE_TEXT);
    connect_with_fault(REPLY_NONE, -ECONNRESET, "closed the connection before it answered");
    (void)snprintf(says, sizeof(says), "fccd speaks version %u of the protocol, this library version %u", FCC_PROTO_VERSION + 1,
                   FCC_PROTO_VERSION);
    connect_with_fault(VERSION_WRONG, -EPROTO, says);
}

static void test_connect_refused(void **state)
{
    char path[200];
    struct fcc_connect_options o = {.socket_path = path};
    fcc_context *context;

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/nobody", directory);
    assert_int_equal(fcc_connect(&o, &context), -ECONNREFUSED);
    assert_error_says(path);
    assert_error_says("fccctl doctor");
    memset(path, 'x', sizeof(path));
    path[sizeof(path) - 1] = 0;
    assert_int_equal(fcc_connect(&o, &context), -EINVAL);
    o = (struct fcc_connect_options){.reserved = {0, 1}};
    assert_int_equal(fcc_connect(&o, &context), -EINVAL);
    assert_error_says("options.reserved[1]: 1");
    o = (struct fcc_connect_options){.job = "a b"};
    assert_int_equal(fcc_connect(&o, &context), -EINVAL);
    assert_error_says("options.job: character 1 is 0x20");
    assert_int_equal(fcc_connect(NULL, NULL), -EINVAL);
}

static void job_is(const char *option, const char *expected)
{
    struct fake *f = fake_new(HONEST);
    struct fcc_connect_options o = {.job = option};
    fcc_context *context;

    (void)setenv("FCCD_SOCKET", f->path, 1);
    assert_int_equal(fcc_connect(&o, &context), 0);
    assert_int_equal(fcc_device_count(context), 4);
    fcc_disconnect(context);
    fake_stop(f);
    assert_string_equal(f->hello.job, expected);
    free(f);
    (void)unsetenv("FCCD_SOCKET");
}

static void test_job(void **state)
{
    static const char *const variables[] = {"FCCD_JOB",       "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID",  "OMPI_MCA_ess_base_jobid",
                                            "PMIX_NAMESPACE", "PMI_JOBID",    "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID",
                                            "MASTER_ADDR",    "MASTER_PORT"};

    (void)state;
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        (void)unsetenv(variables[i]);
    job_is(NULL, "default");
    (void)setenv("PMIX_NAMESPACE", "a-name-that-is-much-longer-than-a-job-may-be-and-has-its-number-behind 17@1", 1);
    job_is(NULL, "pmix-ch-longer-than-a-job-may-be-and-has-its-number-behind_17@1");
    (void)setenv("SLURM_JOB_ID", "123", 1);
    job_is(NULL, "slurm-123");
    (void)setenv("OMPI_MCA_ess_base_jobid", "77", 1); /* left over: no rank of Open MPI */
    job_is(NULL, "slurm-123");
    (void)setenv("OMPI_COMM_WORLD_RANK", "0", 1); /* Slurm's are not on every node if mpirun started its daemons by ssh */
    job_is(NULL, "ompi-77");
    (void)setenv("TORCHELASTIC_RUN_ID", "run", 1);
    job_is(NULL, "torch-run");
    (void)setenv("TORCHELASTIC_RUN_ID", "none", 1); /* torchrun's own, for everybody */
    (void)setenv("MASTER_ADDR", "n1", 1);
    (void)setenv("MASTER_PORT", "29500", 1);
    job_is(NULL, "torch-n1:29500");
    (void)setenv("FCCD_JOB", "mine", 1);
    job_is(NULL, "mine");
    job_is("option", "option");
    for (size_t i = 0; i < sizeof(variables) / sizeof(variables[0]); i++)
        (void)unsetenv(variables[i]);
}

static void mps_pipe_is(const char *value, const char *expected)
{
    struct fake *f = fake_new(HONEST);
    struct fcc_connect_options o = {.socket_path = f->path};
    fcc_context *context;

    (void)(value ? setenv("CUDA_MPS_PIPE_DIRECTORY", value, 1) : unsetenv("CUDA_MPS_PIPE_DIRECTORY"));
    assert_int_equal(fcc_connect(&o, &context), 0);
    fcc_disconnect(context);
    fake_stop(f);
    assert_string_equal(f->hello.mps_pipe, expected);
    free(f);
    (void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
}

/* The worker is told where the MPS server's pipe is, if it can be told. */
static void test_mps_pipe(void **state)
{
    char longest[FCC_MPS_PIPE_MAX + 1];

    (void)state;
    mps_pipe_is(NULL, "");
    mps_pipe_is("", "");
    mps_pipe_is("/tmp/nvidia mps", "/tmp/nvidia mps");
    mps_pipe_is("relative", "");
    mps_pipe_is("/with\ttab", "");
    mps_pipe_is("/\xc3\xbc", "");
    memset(longest, 'x', sizeof(longest));
    longest[0] = '/';
    longest[FCC_MPS_PIPE_MAX] = 0;
    mps_pipe_is(longest, "");
    longest[FCC_MPS_PIPE_MAX - 1] = 0;
    mps_pipe_is(longest, longest);
}

/* ---- calls ---- */

static void *calls_of_a_thread(void *arg)
{
    struct bed *b = arg;
    struct fcc_unique_id id;
    fcc_buffer *buffer;

    for (int i = 0; i < 100; i++) {
        if (fcc_get_unique_id(b->context, &id) || fcc_buffer_alloc(b->comm, FCC_BUFFER_LOCAL, 100, &buffer))
            return b;
        memset(fcc_buffer_data(buffer), i, 100);
        fcc_buffer_free(buffer);
    }
    return NULL;
}

static void test_calls_of_threads(void **state)
{
    struct bed b = bed_open(false, 1);
    pthread_t threads[4];
    void *failed;

    (void)state;
    for (int i = 0; i < 4; i++)
        (void)pthread_create(&threads[i], NULL, calls_of_a_thread, &b);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    bed_close(&b);
}

/* Replies in another order than the calls: whoever reads has to hand them over. */
static void test_replies_out_of_order(void **state)
{
    struct bed b = bed_open(false, 1);
    pthread_t threads[8];
    void *failed;

    (void)state;
    b.fake->hold_calls = true;
    for (int i = 0; i < 8; i++)
        (void)pthread_create(&threads[i], NULL, call_of_a_thread, &b);
    wait_for(&b.fake->calls[FCC_MSG_UNIQUE_ID], 8);
    release(&b);
    for (int i = 0; i < 8; i++) {
        (void)pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    bed_close(&b);
}

static void alloc_with_fault(struct bed *b, enum fault fault, const char *words)
{
    fcc_buffer *buffer;

    set_fault(b, fault);
    assert_int_equal(fcc_buffer_alloc(b->comm, FCC_BUFFER_SYMMETRIC, 5000, &buffer), fault == REPLY_ERROR ? -EPERM : -EPROTO);
    assert_error_says(words);
}

/* A tracker whose memory could not be mapped is given back: the worker gives a rank one at a time. The first error is the one told. */
static void test_trackers(void **state)
{
    struct bed b = bed_open(false, 1);
    fcc_tracker *tracker = NULL;

    (void)state;
    assert_int_equal(fcc_tracker_create(b.comm, &tracker), -EOPNOTSUPP);
    assert_int_equal(b.fake->calls[FCC_MSG_TRACKER_FREE], 0); /* which the worker has not made */
    set_fault(&b, FD_UNSEALED);
    assert_int_equal(fcc_tracker_create(b.comm, &tracker), -EPROTO);
    assert_error_says("tracker: the worker sent a descriptor that is not sealed");
    assert_int_equal(b.fake->calls[FCC_MSG_TRACKER_FREE], 1);
    set_fault(&b, FD_SMALL);
    assert_int_equal(fcc_tracker_create(b.comm, &tracker), -EPROTO);
    assert_error_says("tracker: the worker sent a descriptor of less than");
    assert_int_equal(b.fake->calls[FCC_MSG_TRACKER_FREE], 2);
    assert_null(tracker);
    bed_close(&b);
}

static void test_buffers(void **state)
{
    struct bed b = bed_open(false, 1);
    fcc_buffer *buffer;

    (void)state;
    alloc_with_fault(&b, FD_MISSING, "malformed reply to buffer_alloc");
    alloc_with_fault(&b, FD_SURPLUS, "552 bytes with 2 file descriptors");
    alloc_with_fault(&b, REPLY_TRUNCATED, "malformed reply to buffer_alloc");
    alloc_with_fault(&b, REPLY_WRONG_TYPE, "malformed reply to buffer_alloc");
    alloc_with_fault(&b, REPLY_ERROR, FAKE_TEXT);
    assert_int_equal(b.fake->calls[FCC_MSG_BUFFER_FREE], 0);
    alloc_with_fault(&b, FD_UNSEALED, "buffer: the worker sent a descriptor that is not sealed");
    alloc_with_fault(&b, FD_SMALL, "less than 8192 bytes");
    wait_for(&b.fake->calls[FCC_MSG_BUFFER_FREE], 2); /* what could not be mapped is given back */
    set_fault(&b, HONEST);
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_SYMMETRIC, 5000, &buffer), 0);
    assert_int_equal(fcc_buffer_size(buffer), 5000);
    assert_int_equal(((unsigned char *)fcc_buffer_data(buffer))[4999], 0);
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 1, &buffer), 0);
    assert_int_equal(fcc_comm_device(b.comm), 2);
    assert_int_equal(fcc_comm_abort(b.comm, "because"), 0);
    fcc_comm_destroy(b.comm); /* with its buffers */
    assert_int_equal(b.fake->calls[FCC_MSG_BUFFER_FREE], 4);
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_DESTROY], 1);
    set_fault(&b, REPLY_LENGTH_LIES);
    struct fcc_unique_id id;
    assert_int_equal(fcc_get_unique_id(b.context, &id), -EPROTO);
    assert_int_equal(fcc_get_unique_id(b.context, &id), -EPROTO); /* and that is its end */
    bed_close(&b);
}

/* On the cpu; test_client_gpu.c has the other side. */
static void test_write_and_read(void **state)
{
    struct bed b = bed_open(false, 1);
    unsigned char out[100], in[100];
    fcc_buffer *buffer;

    (void)state;
    for (int i = 0; i < 100; i++)
        out[i] = (unsigned char)(i + 1);
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 100, &buffer), 0);
    assert_int_equal(fcc_buffer_write(buffer, 0, out, 100), 0);
    assert_memory_equal(fcc_buffer_data(buffer), out, 100);
    assert_int_equal(fcc_buffer_write(buffer, 90, out, 10), 0);
    assert_int_equal(fcc_buffer_read(buffer, 89, in, 11), 0);
    assert_int_equal(in[0], 90);
    assert_memory_equal(in + 1, out, 10);
    assert_int_equal(fcc_buffer_write(buffer, 100, NULL, 0), 0);
    assert_int_equal(fcc_buffer_read(buffer, 0, NULL, 0), 0);
    /* the mapping is larger than the buffer, and offset + bytes may wrap */
    assert_int_equal(fcc_buffer_write(buffer, 91, out, 10), -EINVAL);
    assert_error_says("rank 0: offset 91 and 10 bytes: the buffer has 100 bytes");
    assert_int_equal(fcc_buffer_read(buffer, 101, in, 0), -EINVAL);
    assert_int_equal(fcc_buffer_read(buffer, UINT64_MAX - 4, in, 8), -EINVAL);
    assert_int_equal(fcc_buffer_read(buffer, 8, in, SIZE_MAX - 4), -EINVAL);
    assert_int_equal(fcc_buffer_read(buffer, 0, NULL, 1), -EINVAL);
    assert_error_says("to: NULL");
    assert_int_equal(fcc_buffer_write(NULL, 0, out, 1), -EINVAL);
    b.fake->memory_kind = FCC_MEMORY_GPU_FD;
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 100, &buffer), -EPROTO);
    assert_error_says("memory of kind 1 to a rank on the cpu");
    bed_close(&b);
}

/* ---- devices ---- */

static void test_device_kinds(void **state)
{
    struct bed b = bed_connect(false);
    struct fcc_comm_options o = {.device = 3, .device_kind = 4};
    struct fcc_unique_id id = {{0}};
    fcc_comm *comm;

    (void)state;
    assert_int_equal(fcc_comm_init(b.context, &id, 1, 0, &o, &comm), -EINVAL);
    assert_error_says("rank 0: options.device_kind: 4: allowed are 0 (cpu), 1 (any GPU), 2 (hip) and 3 (cuda)");
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_INIT], 1); /* the worker is told, for the other ranks */
    assert_int_equal(b.fake->comm_init.refused, EINVAL);
    o.device_kind = FCC_DEVICE_GPU;
    assert_int_equal(fcc_comm_init(b.context, &id, 1, 0, &o, &comm), -EPROTO); /* the fake's answer is a cpu all the same */
    assert_error_says("rank 0: the worker put it on a device of kind 0: it had asked for kind 1");
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_INIT], 2);
    assert_int_equal(b.fake->comm_init.device_kind, FCC_DEVICE_GPU);
    assert_int_equal(b.fake->comm_init.device, 3);
    assert_int_equal(b.fake->comm_init.refused, 0);
    b.fake->device_kind = FCC_DEVICE_GPU; /* which no device is */
    assert_int_equal(fcc_comm_init(b.context, &id, 2, 1, &o, &comm), -EPROTO);
    assert_error_says("rank 1: the worker put it on a device of kind 1");
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_DESTROY], 2);
    bed_close(&b);
}

/* The rank is on a GPU whose driver this machine lacks, or has without this GPU: it leaves again. */
static void gpu_is_missing(enum fcc_device_kind kind, const char *name)
{
    struct bed b = bed_connect(false);
    struct fcc_unique_id id = {{0}};
    fcc_comm *comm = NULL;
    int status;

    b.fake->device_kind = kind;
    status = fcc_comm_init(b.context, &id, 1, 0, &(struct fcc_comm_options){.device = -1, .device_kind = kind}, &comm);
    assert_true(status == -ENODEV || status == -ENOENT);
    assert_null(comm);
    assert_error_says("rank 0: ");
    assert_error_says(name);
    if (status == -ENODEV)
        assert_error_says("cannot");
    assert_int_equal(b.fake->calls[FCC_MSG_COMM_DESTROY], 1);
    bed_close(&b);
}

static void test_gpu_is_missing(void **state)
{
    (void)state;
    gpu_is_missing(FCC_DEVICE_CUDA, "cuda");
    gpu_is_missing(FCC_DEVICE_HIP, "hip");
}

static void test_enqueue_on_cpu(void **state)
{
    struct bed b = bed_open(false, 1);
    struct fcc_gemv_all_reduce_args gemv = {.schedule = 0};
    struct fcc_gemm_all_to_all_args gemm = {.recv_rows = (int64_t[1]){0}};
    struct fcc_embedding_all_to_all_args embedding = {.schedule = 0};
    fcc_request *request = NULL;

    (void)state;
    assert_int_equal(fcc_noop_enqueue(b.comm, NULL, &request), -EINVAL);
    assert_error_says("stream: rank 0 is on a cpu device");
    assert_null(request);
    assert_int_equal(fcc_gemv_all_reduce_enqueue(b.comm, &gemv, NULL, NULL), -EINVAL);
    assert_error_says("stream: rank 0 is on a cpu device");
    assert_int_equal(fcc_embedding_all_to_all_enqueue(b.comm, &embedding, NULL, NULL), -EINVAL);
    assert_error_says("stream: rank 0 is on a cpu device");
    assert_int_equal(fcc_gemm_all_to_all_enqueue(b.comm, &gemm, NULL, NULL), -EINVAL);
    assert_error_says("rank 0: gemm_all_to_all: recv_rows: not NULL: allowed only with a request");
    assert_int_equal(fcc_gemm_all_to_all_enqueue(b.comm, &gemm, NULL, &request), -EINVAL);
    assert_error_says("stream: rank 0 is on a cpu device");
    assert_int_equal(fcc_comm_error(b.comm), 0);
    assert_int_equal(fcc_comm_error(NULL), -EINVAL);
    assert_int_equal(fcc_noop(b.comm), 0);
    assert_int_equal(b.fake->refused, 5); /* all have taken their turns, for the other ranks to hear of */
    assert_int_equal(b.fake->records, 6);
    bed_close(&b);
}

/* ---- arguments ---- */

static void gemv_is_refused(struct bed *b, struct fcc_gemv_all_reduce_args args, const char *words)
{
    assert_int_equal(fcc_gemv_all_reduce(b->comm, &args), -EINVAL);
    assert_error_says(words);
}

/* Wrong, but the daemon's to judge, so that all ranks hear of it; this one accepts everything. */
static void gemv_is_sent(struct bed *b, struct fcc_gemv_all_reduce_args args)
{
    assert_int_equal(fcc_gemv_all_reduce(b->comm, &args), 0);
}

/* The text that bindings make their structs from. */
static void test_operators_text(void **state)
{
    const char *text = fcc_operators();
    int lines = 0;

    (void)state;
    for (const char *at = text; *at; at++)
        lines += *at == '\n';
    assert_int_equal(lines, FCC_OP_COUNT - 2); /* all that programs call */
    assert_ptr_equal(strstr(text, "noop prepared\n"), text);
    assert_non_null(strstr(text, "\ngemv_all_reduce prepared x:input w:input y:result schedule:schedule\n"));
    assert_non_null(strstr(text, "\ngemm_all_to_all prepared a:input b:input? send_rows:numbers? c:shared recv_rows:values "
                                 "schedule:schedule\n"));
    assert_non_null(strstr(text, "\nembedding_all_to_all never tables:input? table_rows:numbers num_tables:i32 pooling:i32 "
                                 "indices:input? offsets:input? sample_weights:input? batch:i64 batch_split:numbers? "
                                 "out:shared schedule:schedule\n"));
    assert_string_equal(text, fcc_operators());
}

static void test_arguments(void **state)
{
    struct bed b = bed_open(false, 1);
    fcc_buffer *buffer, *freed;
    fcc_request *request;

    (void)state;
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 100, &buffer), 0);
    assert_int_equal(fcc_buffer_alloc(b.comm, FCC_BUFFER_LOCAL, 100, &freed), 0);
    struct fcc_gemv_all_reduce_args good = {.x = fcc_tensor_2d(buffer, 0, FCC_F32, 1, 2)}, bad = good;
    assert_int_equal(fcc_gemv_all_reduce(b.comm, &good), 0); /* w and y are absent: the daemon's to judge */
    bad.x.ndim = 5;
    gemv_is_refused(&b, bad, "rank 0: gemv_all_reduce: x: 5 dimensions: allowed are 1 to 4");
    bad = good;
    bad.x.shape[1] = -3;
    gemv_is_sent(&b, bad);
    bad = good;
    bad.x.shape[0] = INT64_MAX;
    gemv_is_sent(&b, bad);
    bad = good;
    bad.x.dtype = 65537;
    gemv_is_refused(&b, bad, "x: dtype 65537");
    bad = good;
    bad.schedule = 256;
    gemv_is_refused(&b, bad,
                    "schedule: 256: allowed are 0 to 4, with them flat (64) or hierarchical (128), and batch invariant (32) or "
                    "in any order (16)");
    bad = good;
    bad.reserved[6] = 1;
    gemv_is_refused(&b, bad, "reserved[6]: 1: must be 0");
    bad = good;
    bad.w = fcc_tensor_2d((fcc_buffer *)&b, 0, FCC_F32, 1, 1);
    gemv_is_sent(&b, bad);
    bad.w = fcc_tensor_2d(freed, 0, FCC_F32, 1, 1);
    fcc_buffer_free(freed);
    gemv_is_sent(&b, bad);
    struct fcc_embedding_all_to_all_args e = {.num_tables = FCC_MAX_TABLES + 1};
    assert_int_equal(fcc_embedding_all_to_all(b.comm, &e), -EINVAL);
    assert_error_says("num_tables: 4097: allowed are 0 to 4096");
    e.num_tables = 1;
    assert_int_equal(fcc_embedding_all_to_all(b.comm, &e), -EINVAL);
    assert_error_says("table_rows: NULL");
    assert_int_equal(fcc_noop(NULL), -EINVAL);
    assert_int_equal(fcc_noop_start(b.comm, NULL), -EINVAL);
    assert_int_equal(fcc_gemm_all_to_all(b.comm, NULL), -EINVAL);
    assert_int_equal(fcc_noop_start(b.comm, &request), 0);
    assert_int_equal(fcc_request_wait(request, -2), -EINVAL);
    assert_int_equal(fcc_request_test(request, NULL), -EINVAL);
    fcc_request_free(request);
    assert_int_equal(fcc_dtype_size(FCC_BF16) + fcc_dtype_size(FCC_I64) + fcc_dtype_size((enum fcc_dtype)11), 10);
    assert_string_equal(fcc_version(), "0.1.0");
    bed_close(&b);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        T(test_welcome_faults), T(test_connect_refused),  T(test_job),
        T(test_mps_pipe),       T(test_calls_of_threads), T(test_replies_out_of_order),
        T(test_buffers),        T(test_trackers),         T(test_write_and_read),
        T(test_device_kinds),   T(test_gpu_is_missing),   T(test_enqueue_on_cpu),
        T(test_arguments),      T(test_operators_text),
    };
    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
