/* SPDX-License-Identifier: MIT
 *
 * gpu_client.h - what the test_gpu_*.c share: a client that has GPU work of its own. It uses CUDA's driver, loaded at run
 * time, in the primary context of its rank's GPU, as CUDA's runtime, its libraries and PyTorch do; and a product whose right
 * result is easy to tell.
 *
 * No process that has used a GPU may fork one that does: the process of a test uses none, its ranks do.
 */
#ifndef FCC_TEST_GPU_CLIENT_H
#define FCC_TEST_GPU_CLIENT_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bed/harness.h"
#include "tests/bed/program.h"

/* ---- the driver: prototypes as in cuda.h. A CUdeviceptr is an uint64_t; handles are void *; a CUresult is an int, 0 is
 * success ---- */

#define CUDA_FUNCTIONS(X)                                                                                                      \
    X(init, "cuInit", (unsigned flags))                                                                                        \
    X(device_count, "cuDeviceGetCount", (int *count))                                                                          \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                                                                   \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                                                \
    X(context_set, "cuCtxSetCurrent", (void *context))                                                                         \
    X(context_get, "cuCtxGetCurrent", (void **context))                                                                        \
    X(module_load, "cuModuleLoadData", (void **module, const void *image))                                                     \
    X(module_function, "cuModuleGetFunction", (void **function, void *module, const char *name))                               \
    X(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                                                        \
    X(stream_synchronize, "cuStreamSynchronize", (void *stream))                                                               \
    X(stream_wait, "cuStreamWaitValue32_v2", (void *stream, uint64_t address, uint32_t value, unsigned flags))                 \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                                                           \
    X(event_record, "cuEventRecord", (void *event, void *stream))                                                              \
    X(event_wait, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))                                            \
    X(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                                                      \
    X(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                                                         \
    X(graph_destroy, "cuGraphDestroy", (void *graph))                                                                          \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", (void **exec, void *graph, unsigned long long flags))                  \
    X(graph_launch, "cuGraphLaunch", (void *exec, void *stream))                                                               \
    X(exec_destroy, "cuGraphExecDestroy", (void *exec))                                                                        \
    X(host_alloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                             \
    X(host_address, "cuMemHostGetDevicePointer_v2", (uint64_t * address, void *memory, unsigned flags))                        \
    X(memory_alloc, "cuMemAlloc_v2", (uint64_t * at, size_t bytes))                                                            \
    X(memory_free, "cuMemFree_v2", (uint64_t at))                                                                              \
    X(memory_left, "cuMemGetInfo_v2", (size_t * left, size_t * all))                                                           \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, uint64_t from, size_t bytes, void *stream))                                 \
    X(copy_in, "cuMemcpyHtoDAsync_v2", (uint64_t to, const void *from, size_t bytes, void *stream))                            \
    X(copy_there, "cuMemcpyDtoDAsync_v2", (uint64_t to, uint64_t from, size_t bytes, void *stream))                            \
    X(set, "cuMemsetD32Async", (uint64_t at, unsigned value, size_t count, void *stream))                                      \
    X(launch, "cuLaunchKernel",                                                                                                \
      (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,                  \
       unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra))                                \
    X(error_name, "cuGetErrorName", (int result, const char **name))

enum {
    CUDA_STREAM_DEFAULT = 0,   /* in order with the default stream */
    CUDA_STREAM_OWN_ORDER = 1, /* CU_STREAM_NON_BLOCKING */
    CUDA_HOST_PORTABLE = 1,
    CUDA_HOST_MAPPED = 2,
    CUDA_WAIT_REACHED = 0,         /* CU_STREAM_WAIT_VALUE_GEQ */
    CUDA_CAPTURE_GLOBAL = 0,       /* CU_STREAM_CAPTURE_MODE_GLOBAL: no thread may call what is not safe */
    CUDA_CAPTURE_THREAD_LOCAL = 1, /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
};

/* Words in host memory between a process and its kernels. */
enum gpu_word { WORD_BEGUN, WORD_GO, WORD_WRITTEN, WORD_BLOCK, WORDS };
enum { GPU_HOST_BYTES = 4 << 20 }; /* for results */

#define KERNELS(X) X(delay) X(fill) X(increment) X(hold) X(stray) X(watch)

static struct {
#define X(member, name, parameters) int(*member) parameters;
    CUDA_FUNCTIONS(X)
#undef X
#define X(name) void *kernel_##name;
    KERNELS(X)
#undef X
    int number;               /* of the GPU, as fccd counts */
    volatile uint32_t *words; /* enum gpu_word */
    uint64_t words_address;
    float *host; /* GPU_HOST_BYTES, which a copy from the GPU need not wait for */
} gpu;

/* A call that must work. */
#define CU(call) cuda_check(__FILE__, __LINE__, #call, (call))
static inline void cuda_check(const char *file, int line, const char *call, int result)
{
    const char *name = NULL;

    if (!result)
        return;
    (void)gpu.error_name(result, &name);
    check_failed(file, line, "%s: %d (%s)", call, result, name ? name : "?");
}

/* delay(ns); fill(f32 *at, u32 n, f32 value, u32 *word): word = 1 afterwards; increment(f32 *at, u32 n);
 * hold(u32 *begun, u32 *go): begun = 1, then runs until go is not 0; stray(void *at): stores there;
 * watch(u64 (*log)[2], u32 most, u64 least, u32 *begun, u32 *go): looks at the GPU's clock until go is not 0. log[0] is when it began and how many entries follow,
 * each since when and for how long the clock was not looked at, if that was `least` ns or longer. */
static const char kernels_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry delay(.param .u64 ns) {\n"
    "  .reg .u64 %t<4>; .reg .pred %p;\n"
    "  ld.param.u64 %t0, [ns]; mov.u64 %t1, %globaltimer;\n"
    "again: mov.u64 %t2, %globaltimer; sub.u64 %t3, %t2, %t1; setp.lt.u64 %p, %t3, %t0; @%p bra again;\n"
    "  ret;\n}\n"
    ".visible .entry fill(.param .u64 at, .param .u32 n, .param .f32 value, .param .u64 word) {\n"
    "  .reg .u64 %a<4>; .reg .u32 %i<4>; .reg .f32 %v; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [at]; ld.param.u32 %i0, [n]; ld.param.f32 %v, [value]; ld.param.u64 %a1, [word];\n"
    "  mov.u32 %i1, %tid.x; mov.u32 %i2, %ntid.x;\n"
    "next: setp.ge.u32 %p, %i1, %i0; @%p bra done;\n"
    "  mul.wide.u32 %a2, %i1, 4; add.u64 %a3, %a0, %a2; st.global.f32 [%a3], %v; add.u32 %i1, %i1, %i2; bra next;\n"
    "done: bar.sync 0; mov.u32 %i1, %tid.x; setp.ne.u32 %p, %i1, 0; @%p bra out;\n"
    "  membar.sys; mov.u32 %i3, 1; st.volatile.global.u32 [%a1], %i3;\n"
    "out: ret;\n}\n"
    ".visible .entry increment(.param .u64 at, .param .u32 n) {\n"
    "  .reg .u64 %a<4>; .reg .u32 %i<3>; .reg .f32 %v; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [at]; ld.param.u32 %i0, [n]; mov.u32 %i1, %tid.x; mov.u32 %i2, %ntid.x;\n"
    "next: setp.ge.u32 %p, %i1, %i0; @%p bra out;\n"
    "  mul.wide.u32 %a2, %i1, 4; add.u64 %a3, %a0, %a2; ld.global.f32 %v, [%a3]; add.f32 %v, %v, 0f3F800000;\n"
    "  st.global.f32 [%a3], %v; add.u32 %i1, %i1, %i2; bra next;\n"
    "out: ret;\n}\n"
    ".visible .entry hold(.param .u64 begun, .param .u64 go) {\n"
    "  .reg .u64 %a<2>; .reg .u32 %i; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [begun]; ld.param.u64 %a1, [go]; mov.u32 %i, 1; st.volatile.global.u32 [%a0], %i; membar.sys;\n"
    "again: ld.volatile.global.u32 %i, [%a1]; setp.eq.u32 %p, %i, 0; @%p bra again;\n"
    "  ret;\n}\n"
    ".visible .entry stray(.param .u64 at) {\n"
    "  .reg .u64 %a; .reg .u32 %i;\n"
    "  ld.param.u64 %a, [at]; mov.u32 %i, 1; st.volatile.global.u32 [%a], %i;\n"
    "  ret;\n}\n"
    ".visible .entry watch(.param .u64 log, .param .u32 most, .param .u64 least, .param .u64 begun, .param .u64 go) {\n"
    "  .reg .u64 %a<4>; .reg .u64 %t<4>; .reg .u64 %n; .reg .u32 %i<6>; .reg .pred %p;\n"
    "  ld.param.u64 %a0, [log]; ld.param.u32 %i0, [most]; ld.param.u64 %t0, [least]; ld.param.u64 %a1, [begun];\n"
    "  ld.param.u64 %a2, [go]; mov.u32 %i1, 0; mov.u32 %i2, 0; mov.u32 %i3, 1;\n"
    "  mov.u64 %t1, %globaltimer; st.volatile.global.u64 [%a0], %t1; st.volatile.global.u32 [%a1], %i3; membar.sys;\n"
    "again: mov.u64 %t2, %globaltimer; sub.u64 %t3, %t2, %t1; setp.lt.u64 %p, %t3, %t0; @%p bra look;\n"
    "  add.u32 %i1, %i1, 1; setp.ge.u32 %p, %i1, %i0; @%p bra look;\n"
    "  mul.wide.u32 %a3, %i1, 16; add.u64 %a3, %a0, %a3; st.volatile.global.u64 [%a3], %t1; st.volatile.global.u64 [%a3+8], "
    "%t3;\n"
    "  cvt.u64.u32 %n, %i1; st.volatile.global.u64 [%a0+8], %n;\n"
    "look: mov.u64 %t1, %t2; add.u32 %i2, %i2, 1; and.b32 %i4, %i2, 255; setp.ne.u32 %p, %i4, 0; @%p bra again;\n"
    "  ld.volatile.global.u32 %i5, [%a2]; setp.eq.u32 %p, %i5, 0; @%p bra again;\n"
    "  ret;\n}\n";

static inline uint64_t word_address(enum gpu_word word)
{
    return gpu.words_address + word * sizeof(uint32_t);
}

static inline void cuda_load(void)
{
    static const struct {
        const char *name;
        size_t offset;
    } functions[] = {
#define X(member, name, parameters) {name, offsetof(__typeof__(gpu), member)},
        CUDA_FUNCTIONS(X)
#undef X
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (!library)
        check_failed(__FILE__, __LINE__, "%s", dlerror());
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function)
            check_failed(__FILE__, __LINE__, "libcuda.so.1 has no %s", functions[i].name);
        memcpy((char *)&gpu + functions[i].offset, &function, sizeof(function));
    }
    CU(gpu.init(0));
}

/* Once in a process: the primary context of this GPU becomes the thread's. */
static inline void gpu_open_number(int number)
{
    void *context, *module, *host;
    int device;

    cuda_load();
    CU(gpu.context_get(&context));
    CHECK(context == NULL); /* the library has left it as it was */
    gpu.number = number;
    CU(gpu.device_get(&device, gpu.number));
    CU(gpu.context_retain(&context, device));
    CU(gpu.context_set(context));
    CU(gpu.module_load(&module, kernels_ptx));
#define X(name) CU(gpu.module_function(&gpu.kernel_##name, module, #name));
    KERNELS(X)
#undef X
    CU(gpu.host_alloc(&host, GPU_HOST_BYTES, CUDA_HOST_PORTABLE));
    gpu.host = host;
    CU(gpu.host_alloc(&host, WORDS * sizeof(uint32_t), CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED));
    gpu.words = host;
    CU(gpu.host_address(&gpu.words_address, host, 0));
    memset(host, 0, WORDS * sizeof(uint32_t));
}

/* The same of a rank's, after its first communicator. */
static inline void gpu_open(const fcc_comm *comm)
{
    gpu_open_number(fcc_comm_device(comm));
}

static inline void *stream_open(unsigned flags)
{
    void *stream;

    CU(gpu.stream_create(&stream, flags));
    return stream;
}

static inline void kernel_launch(void *kernel, unsigned threads, void *stream, void *parameters[])
{
    CU(gpu.launch(kernel, 1, 1, 1, threads, 1, 1, 0, stream, parameters, NULL));
}

static inline void gpu_delay(void *stream, uint64_t ns)
{
    kernel_launch(gpu.kernel_delay, 1, stream, (void *[]){&ns});
}

static inline void gpu_fill(void *stream, const fcc_buffer *b, uint32_t n, float value)
{
    void *at = fcc_buffer_data(b);
    uint64_t word = word_address(WORD_WRITTEN);

    kernel_launch(gpu.kernel_fill, 128, stream, (void *[]){&at, &n, &value, &word});
}

static inline void gpu_increment(void *stream, const fcc_buffer *b, uint32_t n)
{
    void *at = fcc_buffer_data(b);

    kernel_launch(gpu.kernel_increment, 128, stream, (void *[]){&at, &n});
}

/* What was captured since capture_begin(), ready to be launched. */
static inline void *capture_finish(void *stream)
{
    void *graph, *exec;

    CU(gpu.capture_end(stream, &graph));
    CU(gpu.graph_instantiate(&exec, graph, 0));
    CU(gpu.graph_destroy(graph));
    return exec;
}

/* The stream goes on when words[WORD_GO] is set. */
static inline void gpu_hold(void *stream)
{
    uint64_t begun = word_address(WORD_BEGUN), go = word_address(WORD_GO);

    kernel_launch(gpu.kernel_hold, 1, stream, (void *[]){&begun, &go});
}

/* ---- a client ---- */

static inline fcc_context *client_connect(const struct fcc_connect_options *options)
{
    fcc_context *context;

    OK(fcc_connect(options, &context));
    return context;
}

/* On the device of this number; -1: rank modulo GPUs. time_limit_ms 0: the daemon's. */
static inline fcc_comm *client_join(fcc_context *context, const struct fcc_unique_id *id, int nranks, int rank, int device,
                                    uint32_t time_limit_ms)
{
    const struct fcc_comm_options options = {.device = device, .time_limit_ms = time_limit_ms, .device_kind = FCC_DEVICE_CUDA};
    fcc_comm *comm;

    OK(fcc_comm_init(context, id, nranks, rank, &options, &comm));
    CHECK(fcc_comm_device_kind(comm) == FCC_DEVICE_CUDA);
    return comm;
}

/* ---- a product that is easy to check: all elements of x are the same on all ranks ---- */

enum { PRODUCT_N = 64, PRODUCT_K = 32, SENT_ROWS = 8 /* of a gemm, to each rank */ };

/* y[row] = x . w^T, rows of y being the results of so many calls. f32. */
struct product {
    fcc_comm *comm;
    fcc_buffer *x, *w, *y;
};

static inline struct product product_open(fcc_comm *comm, int rows)
{
    struct product p = {.comm = comm};
    float w[PRODUCT_N * PRODUCT_K];

    for (int i = 0; i < PRODUCT_N * PRODUCT_K; i++)
        w[i] = (float)((i / PRODUCT_K % 7 + 1) * (fcc_comm_rank(comm) + 1));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, PRODUCT_K * sizeof(float), &p.x));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_LOCAL, sizeof(w), &p.w));
    OK(fcc_buffer_alloc(comm, FCC_BUFFER_SYMMETRIC, (size_t)rows * PRODUCT_N * sizeof(float), &p.y));
    OK(fcc_buffer_write(p.w, 0, w, sizeof(w)));
    return p;
}

static inline struct fcc_gemv_all_reduce_args product_args(const struct product *p, int row)
{
    uint64_t offset = (uint64_t)row * PRODUCT_N * sizeof(float);

    return (struct fcc_gemv_all_reduce_args){.x = fcc_tensor_2d(p->x, 0, FCC_F32, 1, PRODUCT_K),
                                             .w = fcc_tensor_2d(p->w, 0, FCC_F32, PRODUCT_N, PRODUCT_K),
                                             .y = fcc_tensor_2d(p->y, offset, FCC_F32, 1, PRODUCT_N)};
}

static inline void product_enqueue(const struct product *p, int row, void *stream, fcc_request **out)
{
    struct fcc_gemv_all_reduce_args args = product_args(p, row);

    OK(fcc_gemv_all_reduce_enqueue(p->comm, &args, stream, out));
}

/* Prepared: the gemv, or a gemm of the same factors whose rows are sent; y has SENT_ROWS rows for each rank. */
static inline fcc_prepared *product_prepare(const struct product *p, bool rows)
{
    struct fcc_gemv_all_reduce_args gemv = product_args(p, 0);
    int64_t m = SENT_ROWS * fcc_comm_size(p->comm);
    struct fcc_gemm_all_to_all_args gemm = {.a = fcc_tensor_2d(p->w, 0, FCC_F32, m, PRODUCT_K),
                                            .b = fcc_tensor_2d(p->w, 0, FCC_F32, PRODUCT_K, PRODUCT_N),
                                            .c = fcc_tensor_2d(p->y, 0, FCC_F32, m, PRODUCT_N)};
    fcc_prepared *prepared;

    if (rows)
        OK(fcc_gemm_all_to_all_prepare(p->comm, &gemm, &prepared));
    else
        OK(fcc_gemv_all_reduce_prepare(p->comm, &gemv, &prepared));
    return prepared;
}

/* Onto the stream: row 0 of y comes to gpu.host. */
static inline void product_fetch(const struct product *p, void *stream)
{
    CU(gpu.copy_out(gpu.host, (uint64_t)(uintptr_t)fcc_buffer_data(p->y), PRODUCT_N * sizeof(float), stream));
}

/* What an element of the result is for x = 1. */
static inline float product_unit(const struct product *p, int column)
{
    int n = fcc_comm_size(p->comm), factors = n * (n + 1) / 2; /* of the ranks' w */

    return (float)(PRODUCT_K * (column % 7 + 1) * factors);
}

/* These are the results for x = value. Whole numbers, which f32 holds exactly up to 2^24 in any order of addition. */
static inline void product_check(const struct product *p, const float *y, float value)
{
    for (int i = 0; i < PRODUCT_N; i++) {
        float want = value * product_unit(p, i);
        if (y[i] != want)
            check_failed(__FILE__, __LINE__, "rank %d of %d: y[%d] = %g, expected %g (x is %g)", fcc_comm_rank(p->comm),
                         fcc_comm_size(p->comm), i, (double)y[i], (double)want, (double)value);
    }
}

/* x = value everywhere, an operator through the CPU, and the right result. */
static inline void product_works(const struct product *p, float value)
{
    struct fcc_gemv_all_reduce_args args = product_args(p, 0);
    float x[PRODUCT_K], y[PRODUCT_N];

    for (int i = 0; i < PRODUCT_K; i++)
        x[i] = value;
    OK(fcc_buffer_write(p->x, 0, x, sizeof(x)));
    OK(fcc_gemv_all_reduce(p->comm, &args));
    OK(fcc_buffer_read(p->y, 0, y, sizeof(y)));
    product_check(p, y, value);
}

/* ---- the test's process ---- */

static int gpus;      /* the node's GPUs, times the ranks on each that launch operators themselves: ranks_on_gpu() */
#define GPUS_EXIT 100 /* plus their number: how the process that counts them ends */

/* How many ranks on each GPU launch operators themselves (tests/on_gpus --share). With several, the GPU switches between their processes whenever
 * one waits for another, which takes milliseconds. */
static inline int ranks_on_gpu(void)
{
    const char *text = getenv("FCC_TEST_RANKS_ON_GPU");
    int ranks = text ? atoi(text) : 1;

    if (ranks > 1)
        (void)setenv("FCCD_GPU_BIND", "shared", 1);
    return ranks > 1 ? ranks : 1;
}

/* How often a test repeats what it does `times` times where each rank has a GPU of its own. */
static inline int repeats(int times)
{
    return ranks_on_gpu() > 1 ? times / 10 : times;
}

/* Prepares the environment. False, after one line that says so, if there is nothing to test with. */
static inline bool gpus_found(void)
{
    int status;

    if (test_device() != FCC_DEVICE_CUDA) {
        (void)printf("skipped: no GPU (FCC_TEST_DEVICE is not cuda)\n");
        return false;
    }
    if (test_device_missing())
        return false;
    (void)setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1); /* the numbers that fccd uses */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 1);    /* no kernel is loaded while another one is held */
    (void)setenv("CUDA_CACHE_DISABLE", "1", 1);
    (void)fflush(stdout);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        int count = 0;
        cuda_load();
        CU(gpu.device_count(&count));
        _exit(GPUS_EXIT + count);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) > GPUS_EXIT);
    gpus = (WEXITSTATUS(status) - GPUS_EXIT) * ranks_on_gpu();
    return true;
}

/* A child of this process has failed. */
static inline void child_check(idtype_t which, pid_t pid)
{
    siginfo_t ended = {.si_pid = 0};

    if (waitid(which, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid && ended.si_status)
        check_failed(__FILE__, __LINE__, "pid %d ended with %d while this waited", ended.si_pid, ended.si_status);
}

/* A word that ranks and the test's process share becomes at least `value`, within a minute; and while it does not, no rank
 * (of the process that started them) has failed. */
static inline void await(const _Atomic int *word, int value)
{
    double until = now_ms() + 60e3;

    while (*word < value) {
        CHECK(now_ms() < until);
        child_check(P_ALL, 0);
        (void)usleep(200);
    }
}

/* The same where brokers are killed: what they leave ends as the test's children, and however it likes, so only these ranks are looked at. */
static inline void ranks_await(const struct ranks *r, const _Atomic int *word, int value)
{
    double until = now_ms() + 60e3;

    while (*word < value) {
        CHECK(now_ms() < until);
        for (int rank = 0; rank < r->n; rank++)
            child_check(P_PID, r->pid[rank]);
        (void)usleep(200);
    }
}

#endif
