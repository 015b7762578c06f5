/* SPDX-License-Identifier: MIT
 *
 * first.h - the library's interface as it was when the house was finished, of the version node FCC_0 alone: proto/fccclient.h of that time,
 * without its comments. tests/abi/check builds a program with it, which must run on today's library. It never changes.
 */
#ifndef FCCCLIENT_H
#define FCCCLIENT_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#define FCC_VERSION_MAJOR 0
#define FCC_VERSION_MINOR 1
#define FCC_VERSION_PATCH 0
#define FCC_MAX_RANKS 1024
#define FCC_MAX_DIMS 4
#define FCC_TIME_LIMIT_DEFAULT 0
typedef struct fcc_context fcc_context;
typedef struct fcc_comm fcc_comm;
typedef struct fcc_buffer fcc_buffer;
typedef struct fcc_request fcc_request;
typedef struct fcc_prepared fcc_prepared;
enum fcc_dtype { FCC_F32 = 1, FCC_F16 = 2, FCC_BF16 = 3, FCC_I32 = 4, FCC_I64 = 5 };
enum fcc_schedule_kind {
    FCC_SCHEDULE_AUTO = 0,
    FCC_SCHEDULE_FUSED = 1,
    FCC_SCHEDULE_SEQUENTIAL = 2,
    FCC_SCHEDULE_COMPUTE_ONLY = 3,
    FCC_SCHEDULE_COMM_ONLY = 4,
};
enum fcc_schedule_route {
    FCC_SCHEDULE_FLAT = 0x40,
    FCC_SCHEDULE_HIERARCHICAL = 0x80,
};
#define FCC_SCHEDULE_ROUTES 0xc0u
enum fcc_buffer_kind {
    FCC_BUFFER_LOCAL = 0,
    FCC_BUFFER_SYMMETRIC = 1,
    FCC_BUFFER_RESULT = 2,
};
enum fcc_device_kind {
    FCC_DEVICE_CPU = 0,
    FCC_DEVICE_GPU = 1,
    FCC_DEVICE_HIP = 2,
    FCC_DEVICE_CUDA = 3,
};
enum fcc_pooling { FCC_POOLING_SUM = 0, FCC_POOLING_MEAN = 1 };
struct fcc_unique_id {
    unsigned char bytes[128];
};
struct fcc_connect_options {
    const char *socket_path;
    const char *job;
    uint32_t no_ring;
    uint32_t no_stream_memory_operations;
    uint32_t reserved[6];
};
int fcc_connect(const struct fcc_connect_options *options, fcc_context **out);
void fcc_disconnect(fcc_context *context);
int fcc_device_count(const fcc_context *context);
const char *fcc_last_error(void);
const char *fcc_version(void);
int fcc_get_unique_id(fcc_context *context, struct fcc_unique_id *out);
struct fcc_comm_options {
    int32_t device;
    uint32_t time_limit_ms;
    uint32_t device_kind;
    uint32_t reserved[5];
};
int fcc_comm_init(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank,
                  const struct fcc_comm_options *options, fcc_comm **out);
struct fcc_env {
    int32_t rank, size;
    int32_t local_rank, local_size;
    char launcher[16];
    char job[64];
    char world[64];
    char meeting[64];
};
int fcc_env_find(struct fcc_env *out);
int fcc_comm_init_env(fcc_context *context, const struct fcc_comm_options *options, fcc_comm **out);
int fcc_comm_init_refuse(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int status,
                         const char *reason);
void fcc_comm_destroy(fcc_comm *comm);
int fcc_comm_abort(fcc_comm *comm, const char *reason);
int fcc_comm_rank(const fcc_comm *comm);
int fcc_comm_size(const fcc_comm *comm);
int fcc_comm_device(const fcc_comm *comm);
enum fcc_device_kind fcc_comm_device_kind(const fcc_comm *comm);
int fcc_buffer_alloc(fcc_comm *comm, enum fcc_buffer_kind kind, size_t bytes, fcc_buffer **out);
void fcc_buffer_free(fcc_buffer *buffer);
void *fcc_buffer_data(const fcc_buffer *buffer);
size_t fcc_buffer_size(const fcc_buffer *buffer);
fcc_buffer *fcc_buffer_find(const fcc_context *context, const void *address);
int fcc_buffer_write(fcc_buffer *buffer, uint64_t offset, const void *from, size_t bytes);
int fcc_buffer_read(const fcc_buffer *buffer, uint64_t offset, void *to, size_t bytes);
#define FCC_POOL_DEVICES 64
int fcc_pool_open(fcc_comm *comm, int device);
int fcc_pool_close(int device);
void *fcc_pool_alloc(ptrdiff_t bytes, int device, void *stream);
void fcc_pool_free(void *memory, ptrdiff_t bytes, int device, void *stream);
const volatile uint64_t *fcc_pool_frees(void);
int fcc_buffer_peer(fcc_buffer *buffer, int rank, void **out);
int fcc_comm_status(fcc_comm *comm, const int32_t **out);
struct fcc_put {
    int32_t rank;
    uint32_t rows;
    uint64_t row_bytes;
    uint64_t stride;
    fcc_buffer *from;
    uint64_t from_offset;
    fcc_buffer *to;
    uint64_t to_offset;
    fcc_buffer *signals;
    uint64_t signal_offset;
    uint32_t reserved[4];
};
int fcc_put_register(fcc_comm *comm, const struct fcc_put *put, uint32_t *number);
int fcc_put_trigger(fcc_comm *comm, uint32_t number, uint64_t value);
struct fcc_triggers {
    uint64_t *head;
    const uint64_t *tail;
    uint64_t (*slots)[2];
    uint64_t capacity;
};
int fcc_comm_triggers(fcc_comm *comm, struct fcc_triggers *out);
struct fcc_tensor {
    fcc_buffer *buffer;
    uint64_t offset;
    uint32_t dtype;
    uint32_t ndim;
    int64_t shape[FCC_MAX_DIMS];
    int64_t stride[FCC_MAX_DIMS];
};
static inline struct fcc_tensor fcc_tensor_1d(fcc_buffer *buffer, uint64_t offset, enum fcc_dtype dtype, int64_t n)
{
    struct fcc_tensor t = {buffer, offset, (uint32_t)dtype, 1, {n, 0, 0, 0}, {0, 0, 0, 0}};
    return t;
}
static inline struct fcc_tensor fcc_tensor_2d(fcc_buffer *buffer, uint64_t offset, enum fcc_dtype dtype, int64_t rows,
                                              int64_t cols)
{
    struct fcc_tensor t = {buffer, offset, (uint32_t)dtype, 2, {rows, cols, 0, 0}, {0, 0, 0, 0}};
    return t;
}
static inline struct fcc_tensor fcc_tensor_3d(fcc_buffer *buffer, uint64_t offset, enum fcc_dtype dtype, int64_t n0, int64_t n1,
                                              int64_t n2)
{
    struct fcc_tensor t = {buffer, offset, (uint32_t)dtype, 3, {n0, n1, n2, 0}, {0, 0, 0, 0}};
    return t;
}
size_t fcc_dtype_size(enum fcc_dtype dtype);
struct fcc_embedding_all_to_all_args {
    struct fcc_tensor tables;
    const int64_t *table_rows;
    int32_t num_tables;
    int32_t pooling;
    struct fcc_tensor indices;
    struct fcc_tensor offsets;
    struct fcc_tensor sample_weights;
    int64_t batch;
    const int64_t *batch_split;
    struct fcc_tensor out;
    uint32_t schedule;
    uint32_t reserved[7];
};
#define FCC_MAX_TABLES 4096
int fcc_embedding_all_to_all(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args);
int fcc_embedding_all_to_all_start(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, fcc_request **out);
int fcc_embedding_all_to_all_enqueue(fcc_comm *comm, const struct fcc_embedding_all_to_all_args *args, void *stream,
                                     fcc_request **out);
struct fcc_epilogue {
    struct fcc_tensor bias;
    struct fcc_tensor residual;
};
struct fcc_gemv_all_reduce_args {
    struct fcc_tensor x;
    struct fcc_tensor w;
    struct fcc_tensor y;
    uint32_t schedule;
    uint32_t reserved[7];
};
#define FCC_GEMV_MAX_M 64
int fcc_gemv_all_reduce(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args);
int fcc_gemv_all_reduce_start(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_request **out);
int fcc_gemv_all_reduce_enqueue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, void *stream, fcc_request **out);
int fcc_gemv_all_reduce_epilogue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_gemv_all_reduce_epilogue_start(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemv_all_reduce_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);
struct fcc_gemm_all_to_all_args {
    struct fcc_tensor a;
    struct fcc_tensor b;
    const int64_t *send_rows;
    struct fcc_tensor c;
    int64_t *recv_rows;
    uint32_t schedule;
    uint32_t reserved[7];
};
int fcc_gemm_all_to_all(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args);
int fcc_gemm_all_to_all_start(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_request **out);
int fcc_gemm_all_to_all_enqueue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, void *stream, fcc_request **out);
int fcc_gemm_all_to_all_epilogue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_gemm_all_to_all_epilogue_start(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemm_all_to_all_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);
struct fcc_gemm_all_reduce_args {
    struct fcc_tensor a;
    struct fcc_tensor b;
    struct fcc_tensor c;
    uint32_t schedule;
    uint32_t reserved[7];
};
int fcc_gemm_all_reduce(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args);
int fcc_gemm_all_reduce_start(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args, fcc_request **out);
int fcc_gemm_all_reduce_enqueue(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args, void *stream, fcc_request **out);
int fcc_gemm_all_reduce_epilogue(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args,
                                 const struct fcc_epilogue *epilogue);
int fcc_gemm_all_reduce_epilogue_start(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args,
                                       const struct fcc_epilogue *epilogue, fcc_request **out);
int fcc_gemm_all_reduce_epilogue_enqueue(fcc_comm *comm, const struct fcc_gemm_all_reduce_args *args,
                                         const struct fcc_epilogue *epilogue, void *stream, fcc_request **out);
int fcc_noop(fcc_comm *comm);
int fcc_noop_start(fcc_comm *comm, fcc_request **out);
int fcc_noop_enqueue(fcc_comm *comm, void *stream, fcc_request **out);
int fcc_refuse_start(fcc_comm *comm, const char *op, int status, const char *reason, fcc_request **out);
const char *fcc_operators(void);
void fcc_group_begin(void);
int fcc_group_end(void);
#define FCC_PREPARED_MAX 64
int fcc_gemv_all_reduce_prepare(fcc_comm *comm, const struct fcc_gemv_all_reduce_args *args, fcc_prepared **out);
int fcc_gemm_all_to_all_prepare(fcc_comm *comm, const struct fcc_gemm_all_to_all_args *args, fcc_prepared **out);
int fcc_prepared_enqueue(fcc_prepared *prepared, void *stream);
void fcc_prepared_free(fcc_prepared *prepared);
int fcc_comm_error(fcc_comm *comm);
int fcc_comm_error_wait(fcc_comm *comm, int timeout_ms);
int fcc_request_test(fcc_request *request, int *done);
int fcc_request_wait(fcc_request *request, int timeout_ms);
void fcc_request_free(fcc_request *request);
#ifdef __cplusplus
}
#if __cplusplus >= 201103L
constexpr uint32_t operator|(fcc_schedule_kind kind, fcc_schedule_route route)
{
    return static_cast<uint32_t>(kind) | static_cast<uint32_t>(route);
}
constexpr uint32_t operator|(fcc_schedule_route route, fcc_schedule_kind kind)
{
    return kind | route;
}
#endif
#endif
#endif
