/* SPDX-License-Identifier: MIT
 *
 * program_fcc.c - program_fcc RANKS ITERS SOCKET FILE cpu|cuda SIZES TENSORS SCALARS [[fill:]CHECKED]: runs of the program in FILE by RANKS processes, as N=1048576
 * and g:f32,p:bf16 and lr=0.1,step=1 say (- : none). Prints each run's longest time. With CHECKED, sizes like SIZES, the tensors have numbers, and what the
 * first run makes of them is compared, element by element, with the program of these sizes in double precision (program_check.h). With fill:CHECKED they have
 * the numbers, and nothing is compared; without it they are zero.
 *
 * On GPUs a program that can be bound is: its runs are replays of a CUDA graph, whose times are the GPUs'. Otherwise "unbound" says why, and fccd runs it.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "tests/bench/program_check.h"

#define FILL "fill:"
enum { TEXT_MOST = 65536, LIST_MOST = 32, WARM = 3 };

struct shared {
    struct meeting meeting;
    char unbound[512]; /* rank 0's reason */
    struct check_found found;
};

/* A program on one rank. */
struct running {
    struct shared *shared;
    const struct check *check; /* NULL: not checked */
    fcc_comm *comm;
    fcc_program *program;
    fcc_buffer *buffers[LIST_MOST]; /* of the tensors in the order of TENSORS */
    char *names[LIST_MOST];
    int tensors, rank, iters;
    double *us;
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

static enum fcc_dtype dtype_of(const char *name, const char *text)
{
    static const struct {
        const char *text;
        enum fcc_dtype dtype;
    } dtypes[] = {{"f32", FCC_F32}, {"f16", FCC_F16}, {"bf16", FCC_BF16}};

    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (strcmp(text, dtypes[i].text) == 0)
            return dtypes[i].dtype;
    (void)fprintf(stderr, "TENSORS: `%s`: \"%s\": allowed are f32, f16 and bf16\n", name, text);
    exit(2);
}

/* The number of the tensor among the program's parameters. */
static uint32_t parameter_of(const struct check *c, const char *name)
{
    uint32_t i = 0;

    while (i < c->whole->nparameters && strcmp(name, program_name_of(c->whole, c->whole->parameters[i].name)) != 0)
        i++;
    return i; /* there is one: the library has taken the name */
}

static void tensors_give(struct running *r, char *list)
{
    char *dtypes[LIST_MOST];

    r->tensors = list_cut(list, ':', r->names, dtypes);
    for (int i = 0; i < r->tensors; i++) {
        const enum fcc_dtype dtype = dtype_of(r->names[i], dtypes[i]);
        const int64_t elements = fcc_program_elements(r->program, r->names[i]);
        if (elements < 0)
            must((int)elements);
        must(fcc_buffer_alloc(r->comm, fcc_program_shares(r->program, r->names[i]) ? FCC_BUFFER_RESULT : FCC_BUFFER_LOCAL,
                              (size_t)elements * fcc_dtype_size(dtype) + 4, &r->buffers[i]));
        const struct fcc_tensor t = fcc_tensor_1d(r->buffers[i], 0, dtype, elements);
        must(fcc_program_tensor(r->program, r->names[i], &t));
        if (r->check)
            check_fill(r->check, parameter_of(r->check, r->names[i]), r->rank, r->buffers[i]);
    }
}

/* What the first run has made. */
static void tensors_check(const struct running *r)
{
    for (int i = 0; r->check && r->check->compares && i < r->tensors; i++)
        check_compare(r->check, parameter_of(r->check, r->names[i]), r->rank, r->buffers[i], &r->shared->found);
}

/* Replays of one run, by the GPU's own clock. False: the program cannot be bound. */
static bool replays_time(const struct running *r)
{
    void *stream, *graph, *exec, *begin, *end;
    float ms = 0;
    const int status = fcc_program_prepare(r->program);

    if (status == -EOPNOTSUPP) {
        if (r->rank == 0)
            (void)snprintf(r->shared->unbound, sizeof(r->shared->unbound), "%s", fcc_last_error());
        return false;
    }
    must(status);
    cuda_open(fcc_comm_device(r->comm));
    cuda(gpu.stream_create(&stream, 1));
    cuda(gpu.event_create(&begin, 0));
    cuda(gpu.event_create(&end, 0));
    cuda(gpu.capture_begin(stream, 0));
    must(fcc_program_enqueue(r->program, stream));
    cuda(gpu.capture_end(stream, &graph));
    cuda(gpu.graph_instantiate(&exec, graph, 0));
    for (int i = -WARM; i < r->iters; i++) {
        must(fcc_noop(r->comm));
        cuda(gpu.event_record(begin, stream));
        cuda(gpu.graph_launch(exec, stream));
        cuda(gpu.event_record(end, stream));
        cuda(gpu.stream_synchronize(stream));
        cuda(gpu.event_elapsed(&ms, begin, end));
        if (i == -WARM)
            tensors_check(r);
        if (i >= 0)
            r->us[i] = (double)ms * 1e3;
    }
    must(fcc_comm_error(r->comm));
    return true;
}

static void runs_time(const struct running *r, bool compiles)
{
    for (int i = -WARM; i < r->iters; i++) {
        must(fcc_noop(r->comm));
        const double begin = now_us();
        must(fcc_program_run(r->program));
        if (i >= 0)
            r->us[i] = now_us() - begin;
        if (i == -WARM) {
            tensors_check(r);
            (void)usleep(compiles ? 3000000 : 0); /* generated code is made meanwhile */
        }
    }
}

static int sizes_cut(char *list, struct program_size sizes[LIST_MOST])
{
    char *names[LIST_MOST], *values[LIST_MOST];
    const int n = list_cut(list, '=', names, values);

    for (int i = 0; i < n; i++)
        sizes[i] = (struct program_size){names[i], atoll(values[i])};
    return n;
}

static size_t text_read(const char *path, char text[TEXT_MOST])
{
    FILE *f = fopen(path, "r");
    const size_t length = f ? fread(text, 1, TEXT_MOST, f) : 0;

    if (f)
        (void)fclose(f);
    else
        (void)fprintf(stderr, "%s: %s\n", path, strerror(errno));
    if (!f)
        exit(1);
    return length;
}

/* What the ranks, which are made afterwards, are to find. */
static void check_begin(struct check *c, int ranks, char **argv)
{
    static char text[TEXT_MOST];
    const size_t length = text_read(argv[4], text);
    struct program_size sizes[LIST_MOST], small[LIST_MOST];
    char *names[LIST_MOST], *values[LIST_MOST];
    const size_t fill = strncmp(argv[9], FILL, strlen(FILL)) ? 0 : strlen(FILL);
    /* the ranks cut argv's once more */
    char *lists[] = {strdup(argv[6]), strdup(argv[8]), strdup(argv[9] + fill)};
    const int n = sizes_cut(lists[0], sizes), nscalars = list_cut(lists[1], '=', names, values),
              nsmall = sizes_cut(lists[2], small);

    check_make(c, text, length, ranks, sizes, n, small, nsmall);
    check_scalars(c, names, values, nscalars);
    c->compares = !fill;
    if (c->compares)
        check_compute(c);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        free(lists[i]);
}

static void rank_run(struct running *r, int ranks, char **argv)
{
    static char text[TEXT_MOST];
    const struct fcc_connect_options options = {.socket_path = argv[3], .job = "program"};
    const struct fcc_comm_options kind = {.device = -1,
                                          .device_kind = strcmp(argv[5], "cuda") ? FCC_DEVICE_CPU : FCC_DEVICE_CUDA};
    const bool on_gpus = kind.device_kind == FCC_DEVICE_CUDA;
    const size_t length = text_read(argv[4], text);
    struct program_size given[LIST_MOST];
    struct fcc_program_size sizes[LIST_MOST];
    char *names[LIST_MOST], *values[LIST_MOST];
    const int nsizes = sizes_cut(argv[6], given);
    fcc_context *context;

    for (int i = 0; i < nsizes; i++)
        sizes[i] = (struct fcc_program_size){given[i].name, given[i].value};
    r->comm = meeting_join(&r->shared->meeting, r->rank, ranks, &options, &kind, &context);
    must(fcc_program_open(r->comm, text, length, sizes, nsizes, &r->program));
    tensors_give(r, argv[7]);
    const int nscalars = list_cut(argv[8], '=', names, values);
    for (int i = 0; i < nscalars; i++)
        must(fcc_program_scalar(r->program, names[i], atof(values[i])));
    if (!on_gpus || !replays_time(r))
        runs_time(r, on_gpus);
    fcc_program_close(r->program);
    fcc_comm_destroy(r->comm);
    fcc_disconnect(context);
}

/* As JSON has it. */
static const char *text_plain(char *text)
{
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == '"' || *at == '\\')
            *at = '\'';
    return text;
}

int main(int argc, char **argv)
{
    const int ranks = argc == 9 || argc == 10 ? atoi(argv[1]) : 0, iters = ranks ? atoi(argv[2]) : 0;
    static struct check check;

    if (ranks < 1 || ranks > RANKS_MOST || iters < 1) {
        (void)fprintf(stderr, "usage: program_fcc RANKS ITERS SOCKET FILE cpu|cuda SIZES TENSORS SCALARS [[fill:]CHECKED]\n");
        return 2;
    }
    double *us;
    struct shared *s = ranks_share(sizeof(*s), ranks, iters, &us);
    if (!s)
        return 1;
    if (argc == 10)
        check_begin(&check, ranks, argv);
    for (int r = 0; r < ranks; r++) {
        if (fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a program that is ended leaves no rank behind */
            struct running running = {
                .shared = s, .check = argc == 10 ? &check : NULL, .rank = r, .iters = iters, .us = us + r * iters};
            rank_run(&running, ranks, argv);
            _exit(0);
        }
    }
    if (ranks_wait(ranks))
        return 1;
    printf("{\"us\": [");
    longest_print(us, ranks, iters);
    printf("], \"unbound\": \"%s\", \"checked\": %lld, \"wrong\": %lld, \"first\": \"%s\"}\n", text_plain(s->unbound),
           (long long)s->found.elements, (long long)s->found.wrong, text_plain(s->found.first));
    return 0;
}
