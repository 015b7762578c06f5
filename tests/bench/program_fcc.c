/* SPDX-License-Identifier: MIT
 *
 * program_fcc.c - program_fcc RANKS ITERS SOCKET FILE cpu|cuda SIZES TENSORS SCALARS: runs of the program in FILE by RANKS processes, as N=1048576 and
 * g:f32,p:bf16 and lr=0.1,step=1 say (- : none). Tensors are zero. Prints each run's longest time; what comes of it is checked by tests, not here.
 *
 * On GPUs a program that can be bound is: its runs are replays of a CUDA graph, whose times are the GPUs'. Otherwise "unbound" says why, and fccd runs it.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/program_ranks.h"

enum { TEXT_MOST = 65536, LIST_MOST = 32, WARM = 3 };

struct shared {
    struct meeting meeting;
    char unbound[512]; /* rank 0's reason */
};

/* ---- CUDA's driver, prototypes as in cuda.h ---- */

static struct {
    int (*init)(unsigned flags);
    int (*device_get)(int *device, int ordinal);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_synchronize)(void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_elapsed)(float *ms, void *begin, void *end);
    int (*capture_begin)(void *stream, int mode);
    int (*capture_end)(void *stream, void **graph);
    int (*graph_instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*graph_launch)(void *exec, void *stream);
} gpu;

/* In the order of the members. */
static const char *const gpu_names[] = {"cuInit",
                                        "cuDeviceGet",
                                        "cuDevicePrimaryCtxRetain",
                                        "cuCtxSetCurrent",
                                        "cuStreamCreate",
                                        "cuStreamSynchronize",
                                        "cuEventCreate",
                                        "cuEventRecord",
                                        "cuEventElapsedTime",
                                        "cuStreamBeginCapture_v2",
                                        "cuStreamEndCapture",
                                        "cuGraphInstantiateWithFlags",
                                        "cuGraphLaunch"};
enum { GPU_NAMES = sizeof(gpu_names) / sizeof(gpu_names[0]) };
static_assert(sizeof(gpu) == GPU_NAMES * sizeof(void *), "a name for each");

static void cuda(int result)
{
    if (!result)
        return;
    (void)fprintf(stderr, "CUDA's driver: error %d\n", result);
    exit(1);
}

static void cuda_open(int ordinal)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *functions[GPU_NAMES], *context;
    int device;

    for (int i = 0; i < GPU_NAMES; i++) {
        functions[i] = library ? dlsym(library, gpu_names[i]) : NULL;
        if (!functions[i]) {
            (void)fprintf(stderr, "libcuda.so.1: no %s\n", gpu_names[i]);
            exit(1);
        }
    }
    memcpy(&gpu, functions, sizeof(functions));
    cuda(gpu.init(0));
    cuda(gpu.device_get(&device, ordinal));
    cuda(gpu.context_retain(&context, device));
    cuda(gpu.context_set(context));
}

/* Cuts a list like a=1,b=2 in place, at `by`: names and what is behind them. Returns their number. */
static int list_cut(char *list, char by, char *names[LIST_MOST], char *rest[LIST_MOST])
{
    int n = 0;

    for (char *at = strtok(list, ","); at && strcmp(list, "-") != 0 && n < LIST_MOST; at = strtok(NULL, ",")) {
        names[n] = at;
        rest[n] = strchr(at, by);
        if (!rest[n]) {
            (void)fprintf(stderr, "\"%s\": allowed are a name, %c, and more\n", at, by);
            exit(2);
        }
        *rest[n]++ = '\0';
        n++;
    }
    return n;
}

static void tensors_give(fcc_program *p, fcc_comm *comm, char *list)
{
    char *names[LIST_MOST], *dtypes[LIST_MOST];
    const int n = list_cut(list, ':', names, dtypes);

    for (int i = 0; i < n; i++) {
        const enum fcc_dtype dtype = !strcmp(dtypes[i], "f32") ? FCC_F32 : !strcmp(dtypes[i], "f16") ? FCC_F16 : FCC_BF16;
        const int64_t elements = fcc_program_elements(p, names[i]);
        fcc_buffer *b;
        if (elements < 0)
            must((int)elements);
        must(fcc_buffer_alloc(comm, fcc_program_shares(p, names[i]) ? FCC_BUFFER_RESULT : FCC_BUFFER_LOCAL,
                              (size_t)elements * fcc_dtype_size(dtype) + 4, &b));
        const struct fcc_tensor t = fcc_tensor_1d(b, 0, dtype, elements);
        must(fcc_program_tensor(p, names[i], &t));
    }
}

/* Replays of one run, by the GPU's own clock. False: the program cannot be bound. */
static bool replays_time(struct shared *s, fcc_comm *comm, fcc_program *p, int rank, int iters, double *us)
{
    void *stream, *graph, *exec, *begin, *end;
    float ms = 0;
    const int status = fcc_program_prepare(p);

    if (status == -EOPNOTSUPP) {
        if (rank == 0)
            (void)snprintf(s->unbound, sizeof(s->unbound), "%s", fcc_last_error());
        return false;
    }
    must(status);
    cuda_open(fcc_comm_device(comm));
    cuda(gpu.stream_create(&stream, 1));
    cuda(gpu.event_create(&begin, 0));
    cuda(gpu.event_create(&end, 0));
    cuda(gpu.capture_begin(stream, 0));
    must(fcc_program_enqueue(p, stream));
    cuda(gpu.capture_end(stream, &graph));
    cuda(gpu.graph_instantiate(&exec, graph, 0));
    for (int i = -WARM; i < iters; i++) {
        must(fcc_noop(comm));
        cuda(gpu.event_record(begin, stream));
        cuda(gpu.graph_launch(exec, stream));
        cuda(gpu.event_record(end, stream));
        cuda(gpu.stream_synchronize(stream));
        cuda(gpu.event_elapsed(&ms, begin, end));
        if (i >= 0)
            us[i] = (double)ms * 1e3;
    }
    must(fcc_comm_error(comm));
    return true;
}

static void runs_time(fcc_comm *comm, fcc_program *p, bool compiles, int iters, double *us)
{
    for (int i = -WARM; i < iters; i++) {
        must(fcc_noop(comm));
        const double begin = now_us();
        must(fcc_program_run(p));
        if (i == -WARM) /* generated code is made meanwhile */
            (void)usleep(compiles ? 3000000 : 0);
        if (i >= 0)
            us[i] = now_us() - begin;
    }
}

static void rank_run(struct shared *s, double *us, int rank, int ranks, char **argv)
{
    static char text[TEXT_MOST];
    const struct fcc_connect_options options = {.socket_path = argv[3], .job = "program"};
    const struct fcc_comm_options kind = {.device = -1,
                                          .device_kind = strcmp(argv[5], "cuda") ? FCC_DEVICE_CPU : FCC_DEVICE_CUDA};
    struct fcc_program_size sizes[LIST_MOST];
    char *names[LIST_MOST], *values[LIST_MOST];
    const int iters = atoi(argv[2]), nsizes = list_cut(argv[6], '=', names, values);
    FILE *f = fopen(argv[4], "r");
    const size_t length = f ? fread(text, 1, sizeof(text), f) : 0;
    fcc_context *context;
    fcc_comm *comm;
    fcc_program *p;

    for (int i = 0; i < nsizes; i++)
        sizes[i] = (struct fcc_program_size){names[i], atoll(values[i])};
    comm = meeting_join(&s->meeting, rank, ranks, &options, &kind, &context);
    must(fcc_program_open(comm, text, length, sizes, nsizes, &p));
    tensors_give(p, comm, argv[7]);
    const int nscalars = list_cut(argv[8], '=', names, values);
    for (int i = 0; i < nscalars; i++)
        must(fcc_program_scalar(p, names[i], atof(values[i])));
    const bool on_gpus = kind.device_kind == FCC_DEVICE_CUDA;
    if (!on_gpus || !replays_time(s, comm, p, rank, iters, us + rank * iters))
        runs_time(comm, p, on_gpus, iters, us + rank * iters);
    fcc_program_close(p);
    fcc_comm_destroy(comm);
    fcc_disconnect(context);
}

int main(int argc, char **argv)
{
    const int ranks = argc == 9 ? atoi(argv[1]) : 0, iters = ranks ? atoi(argv[2]) : 0;

    if (ranks < 1 || ranks > RANKS_MOST || iters < 1) {
        (void)fprintf(stderr, "usage: program_fcc RANKS ITERS SOCKET FILE cpu|cuda SIZES TENSORS SCALARS\n");
        return 2;
    }
    double *us;
    struct shared *s = ranks_share(sizeof(*s), ranks, iters, &us);
    if (!s)
        return 1;
    for (int r = 0; r < ranks; r++) {
        if (fork() == 0) {
            rank_run(s, us, r, ranks, argv);
            _exit(0);
        }
    }
    if (ranks_wait(ranks))
        return 1;
    printf("{\"us\": [");
    longest_print(us, ranks, iters);
    for (char *at = s->unbound; *at; at++) /* as JSON has it */
        if ((unsigned char)*at < ' ' || *at == '"' || *at == '\\')
            *at = '\'';
    printf("], \"unbound\": \"%s\"}\n", s->unbound);
    return 0;
}
