/* SPDX-License-Identifier: MIT
 *
 * library.hip - products by cuBLAS: what of its C interface (NVIDIA, cuBLAS 12 and 13, cublas_api.h) products need is declared here, so that
 * the plug-in is built without it. On HIP there is none yet.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/library.h"

#if defined(__CUDACC__)

enum blas_constants {
    BLAS_OP_N = 0,
    BLAS_OP_T = 1,
    BLAS_F32 = 0,
    BLAS_F16 = 2,
    BLAS_BF16 = 14,
    BLAS_COMPUTE_F32 = 68,
    BLAS_DEFAULT = -1, /* algorithm */
    /* Math mode: parts of a sum along K that kernels add up afterwards are f32, not of the result's dtype: so a sum is rounded once. */
    BLAS_SUMS_IN_F32 = 16
};

struct blas {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, hipStream_t stream);
    int (*set_math_mode)(void *handle, int mode);
    int (*set_workspace)(void *handle, void *memory, size_t bytes);
    int (*gemm)(void *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, const void *a, int a_type,
                int a_stride, const void *b, int b_type, int b_stride, const void *beta, void *c, int c_type, int c_stride,
                int compute, int algorithm);
};

struct library {
    void *handle;
    uint64_t workspace;
};

/* The process's own, if there is one. */
static void *blas_open(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    void *library = NULL;

    for (int pass = 0; pass < 2 && !library; pass++)
        for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]) && !library; i++)
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | (pass ? 0 : RTLD_NOLOAD));
    return library;
}

template <typename Function> static bool blas_find(void *library, const char *name, Function *out)
{
    *out = (Function)dlsym(library, name);
    return *out != NULL;
}

static bool blas_load(struct blas *out)
{
    void *library = blas_open();

    return library && blas_find(library, "cublasCreate_v2", &out->create) &&
           blas_find(library, "cublasDestroy_v2", &out->destroy) &&
           blas_find(library, "cublasSetStream_v2", &out->set_stream) &&
           blas_find(library, "cublasSetMathMode", &out->set_math_mode) &&
           blas_find(library, "cublasSetWorkspace_v2", &out->set_workspace) && blas_find(library, "cublasGemmEx", &out->gemm);
}

/* NULL: it cannot be loaded. It stays loaded. */
static const struct blas *blas(void)
{
    static struct blas functions;
    static const bool loaded = blas_load(&functions);

    return loaded ? &functions : NULL;
}

bool library_is_there(void)
{
    return blas() != NULL;
}

static int blas_error(int gpu, const char *doing, int status, struct error *e)
{
    return error_set(e, status == 3 ? -ENOMEM : -EIO, "%s GPU %d: %s: cuBLAS says %d", GPU_KIND, gpu, doing, status);
}

int library_open(int gpu, uint64_t workspace, struct library **out, struct error *e)
{
    struct library *l = (struct library *)calloc(1, sizeof(*l));

    if (!l)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for cuBLAS", GPU_KIND, gpu);
    l->workspace = workspace;
    int status = blas()->create(&l->handle);
    if (status) {
        free(l);
        return blas_error(gpu, "opening cuBLAS", status, e);
    }
    status = blas()->set_math_mode(l->handle, BLAS_SUMS_IN_F32);
    if (status) {
        library_close(l);
        return blas_error(gpu, "opening cuBLAS", status, e);
    }
    *out = l;
    return 0;
}

void library_close(struct library *l)
{
    if (!l)
        return;
    (void)blas()->destroy(l->handle);
    free(l);
}

/* cuBLAS's matrices are stored by columns: the transposed result is w . x^T. */
int library_product(struct library *l, int gpu, const struct rings_product *what, int64_t row, int64_t rows, uint64_t to,
                    hipStream_t stream, struct error *e)
{
    static const float one = 1.0f, zero = 0.0f;
    const int type = what->dtype == FCC_F32 ? BLAS_F32 : what->dtype == FCC_F16 ? BLAS_F16 : BLAS_BF16;
    const uint64_t size = what->dtype == FCC_F32 ? 4 : 2;

    if (what->k == 0 || rows == 0) {
        hipError_t status = hipMemsetAsync((void *)to, 0, (uint64_t)(rows * what->n) * size, stream);
        return status == hipSuccess ? 0 : gpu_error(e, gpu, "an empty product", status);
    }
    /* A matrix of one row may have any stride; to cuBLAS it is at least its length. */
    const int64_t x_stride = what->x_stride > what->k ? what->x_stride : what->k,
                  w_stride = what->w_stride > what->k ? what->w_stride : what->k;
    int status = blas()->set_stream(l->handle, stream); /* which forgets the workspace */
    if (!status)
        status = blas()->set_workspace(l->handle, (void *)l->workspace, LIBRARY_WORKSPACE);
    if (!status)
        status =
            blas()->gemm(l->handle, BLAS_OP_T, BLAS_OP_N, (int)what->n, (int)rows, (int)what->k, &one, (const void *)what->w,
                         type, (int)w_stride, (const void *)(what->x + (uint64_t)(row * what->x_stride) * size), type,
                         (int)x_stride, &zero, (void *)to, type, (int)what->n, BLAS_COMPUTE_F32, BLAS_DEFAULT);
    return status ? blas_error(gpu, "a product", status, e) : 0;
}

#else

bool library_is_there(void)
{
    return false;
}

int library_open(int gpu, uint64_t, struct library **, struct error *e)
{
    return error_set(e, -EOPNOTSUPP, "%s GPU %d: no library of products", GPU_KIND, gpu);
}

int library_product(struct library *, int gpu, const struct rings_product *, int64_t, int64_t, uint64_t, hipStream_t,
                    struct error *e)
{
    return error_set(e, -EOPNOTSUPP, "%s GPU %d: no library of products", GPU_KIND, gpu);
}

void library_close(struct library *)
{
}

#endif
