/* SPDX-License-Identifier: MIT */
#include "blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* FCC_BLAS_LIBRARY: the library's path, from the Makefile. */

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

static void load(void)
{
    int (*threads)(void);
    void *library;

    (void)setenv("OPENBLAS_NUM_THREADS", "1", 1);
    library = dlopen(FCC_BLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
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
