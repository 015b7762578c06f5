/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* FCC_BLAS_LIBRARY: the library's path, from the Makefile. */

#define CORETYPE "OPENBLAS_CORETYPE" /* OpenBLAS's: the kernels that it takes, whatever the processor */

#define WORK_BYTES (136u << 20) /* of one call: 128 MiB and a little, of which it touches what it needs */
#define CALLS_MAX 128u          /* OpenBLAS has room for that many in any build */

__typeof__(cblas_sgemm) *blas_sgemm;
__typeof__(cblas_sgemv) *blas_sgemv;

/* OpenBLAS's own, which its documentation lacks: NULL where they are not. */
static void *(*work_take)(int side);
static void (*work_give)(void *work);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* failure, and the loading */
static atomic_bool is_loaded;                            /* what is above is there, for ever */
static struct error failure;                             /* of the last attempt */

static void *symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);

    if (!address && !failure.status)
        (void)error_set(&failure, -ENOENT, "the BLAS %s: has no %s", FCC_BLAS_LIBRARY, name);
    return address;
}

/* OpenBLAS goes by the processor's model, and gives one that is newer than itself its oldest kernels (Prescott's: SSE3), which
 * take four times as long. The name of those that it should have taken; NULL: it knows this processor, or there are none. */
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

static void *library_open(void)
{
    void *library = dlopen(FCC_BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const char *better = library ? better_kernels(library) : NULL;

    if (!better)
        return library;
    (void)dlclose(library); /* it looks when it is loaded, and never again */
    (void)setenv(CORETYPE, better, 1);
    return dlopen(FCC_BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static void load(void)
{
    int (*threads)(void);
    void *library;

    failure = (struct error){0};
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
    library = library_open();
    if (!library) {
        (void)error_set(&failure, -ENOENT, "the BLAS cannot be loaded: %s", dlerror());
        return;
    }
    /* POSIX says that these conversions work; C has no word for them. */
    *(void **)&blas_sgemm = symbol(library, "cblas_sgemm");
    *(void **)&blas_sgemv = symbol(library, "cblas_sgemv");
    *(void **)&threads = symbol(library, "openblas_get_parallel");
    *(void **)&work_take = dlsym(library, "blas_memory_alloc");
    *(void **)&work_give = dlsym(library, "blas_memory_free");
    if (threads && threads() == 0)
        (void)error_set(&failure, -ENOENT, "the BLAS %s: is a serial build, which several threads may not call",
                        FCC_BLAS_LIBRARY);
    if (failure.status)
        (void)dlclose(library);
    else
        atomic_store_explicit(&is_loaded, true, memory_order_release);
}

/* A library for which there was no file descriptor or no memory is looked for again the next time. */
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

/* Has the process so much address space left? */
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
    while (n < all && (n < reserved || space_is_left(WORK_BYTES))) /* the first ones the BLAS has already */
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
