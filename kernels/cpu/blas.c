/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* FCC_BLAS_LIBRARY: the library's path, from the Makefile. */
#define BESIDE "lib/fccd/libopenblas.so.0" /* where it lies below DIR if this program is DIR/bin/fccd and brings it along */

#define CORETYPE "OPENBLAS_CORETYPE" /* OpenBLAS's variable that chooses kernels, whatever the processor */

#define WORK_BYTES (136u << 20) /* work memory of one call: slightly over 128 MiB, touched only as needed */
#define CALLS_MAX 128u          /* every build of OpenBLAS supports so many calls at a time */

__typeof__(cblas_sgemm) *blas_sgemm;
__typeof__(cblas_sgemv) *blas_sgemv;

/* Undocumented functions of OpenBLAS; NULL if the library lacks them. */
static void *(*work_take)(int side);
static void (*work_give)(void *work);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `failure`, `path` and loading */
static atomic_bool is_loaded;                            /* the functions above are set, for good */
static struct error failure;                             /* why the last attempt to load has failed */
static char path[PATH_MAX];                              /* of the library */

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);

    if (!address && !failure.status)
        (void)error_set(&failure, -ENOENT, "the BLAS %s: has no %s", path, name);
    return address;
}

/* OpenBLAS chooses kernels by the processor's model. For models that are newer than the library it takes its oldest kernels
 * (Prescott's: SSE3), which are four times slower. Returns the name of better kernels; NULL: OpenBLAS knows this processor,
 * or has no better ones. */
static const char *better_kernels(void *library)
{
#if defined(__x86_64__)
    char *(*name)(void);

    *(void **)&name = dlsym(library, "openblas_get_corename");
    if (!name || strcmp(name(), "Prescott") != 0 || getenv(CORETYPE))
        return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#else
    (void)library;
#endif
    return NULL;
}

/* Sets `path`: that of the library that came with this program, or else the system's. */
static void library_find(void)
{
    char program[PATH_MAX] = "";

    if (readlink("/proc/self/exe", program, sizeof(program) - 1) <= 0 ||
        snprintf(path, sizeof(path), "%s/" BESIDE, dirname(dirname(program))) >= (int)sizeof(path) || access(path, R_OK) != 0)
        (void)snprintf(path, sizeof(path), "%s", FCC_BLAS_LIBRARY);
}

static void *library_open(void)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *better = library ? better_kernels(library) : NULL;

    if (!better)
        return library;
    (void)dlclose(library); /* the library reads the variable only when it is loaded */
    (void)setenv(CORETYPE, better, 1);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void load(void)
{
    int (*threads)(void);
    void *library;

    failure = (struct error){0};
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
    library_find();
    library = library_open();
    if (!library) {
        (void)error_set(&failure, -ENOENT, "the BLAS cannot be loaded: %s", dlerror());
        return;
    }
    /* POSIX allows these conversions; C has no expression for them. */
    *(void **)&blas_sgemm = symbol(library, "cblas_sgemm");
    *(void **)&blas_sgemv = symbol(library, "cblas_sgemv");
    *(void **)&threads = symbol(library, "openblas_get_parallel");
    *(void **)&work_take = dlsym(library, "blas_memory_alloc");
    *(void **)&work_give = dlsym(library, "blas_memory_free");
    if (threads && threads() == 0)
        (void)error_set(&failure, -ENOENT, "the BLAS %s: is a serial build, which several threads may not call", path);
    if (failure.status)
        (void)dlclose(library);
    else
        atomic_store_explicit(&is_loaded, true, memory_order_release);
}

/* If descriptors or memory were short, a later call tries again. */
int blas_open(struct error *e)
{
    if (atomic_load_explicit(&is_loaded, memory_order_acquire))
        return 0;
    (void)pthread_mutex_lock(&lock);
    if (!is_loaded)
        load();
    int status = failure.status;
    if (status && e)
        *e = failure;
    (void)pthread_mutex_unlock(&lock);
    return status;
}

static rlim_t limit_of(int resource)
{
    struct rlimit l = {.rlim_cur = RLIM_INFINITY};

    return getrlimit(resource, &l) ? RLIM_INFINITY : l.rlim_cur;
}

/* Whether the process has this much address space left. */
static bool space_is_left(size_t bytes)
{
    void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return probe != MAP_FAILED && munmap(probe, bytes) == 0;
}

int blas_reserve(unsigned calls, struct error *e)
{
    static unsigned reserved;
    rlim_t space = limit_of(RLIMIT_AS), data = limit_of(RLIMIT_DATA), less = space < data ? space : data;
    void *work[CALLS_MAX];
    unsigned n = 0, all = reserved + calls < CALLS_MAX ? reserved + calls : CALLS_MAX;

    if (less == RLIM_INFINITY || !work_take || !work_give)
        return 0;
    while (n < all && (n < reserved || space_is_left(WORK_BYTES))) /* the BLAS already has the first `reserved` */
        work[n++] = work_take(0);
    for (unsigned i = 0; i < n; i++)
        work_give(work[i]);
    if (n < all)
        return error_set(
            e, -ENOMEM,
            "the BLAS: %u threads may call it, each with %u MiB of work memory, and %s is %llu MiB, of which %u have "
            "room; fewer CPU_WORKGROUPS or CPU_DEVICES need less",
            all, WORK_BYTES >> 20, space < data ? "RLIMIT_AS (ulimit -v)" : "RLIMIT_DATA (ulimit -d)",
            (unsigned long long)less >> 20, n);
    reserved = all;
    return 0;
}
