/* SPDX-License-Identifier: MIT */
#include "blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* FCC_BLAS_LIBRARY: the library's path, from the Makefile. */

#define CORETYPE "OPENBLAS_CORETYPE" /* OpenBLAS's: the kernels that it takes, whatever the processor */

__typeof__(cblas_sgemm) *blas_sgemm;
__typeof__(cblas_sgemv) *blas_sgemv;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct error failure;

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
    if (threads && threads() == 0)
        (void)error_set(&failure, -ENOENT, "the BLAS %s: is a serial build, which several threads may not call",
                        FCC_BLAS_LIBRARY);
}

int blas_open(struct error *e)
{
    (void)pthread_once(&once, load);
    if (failure.status && e)
        *e = failure;
    return failure.status;
}
