/* SPDX-License-Identifier: MIT
 *
 * library.hip - products by cuBLAS: what of its C interface (NVIDIA, cuBLAS 12 and 13, cublas_api.h, cublasLt.h) products need is declared here, so
 * that the plug-in is built without it. On HIP there is none yet.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
    BLAS_SUMS_IN_F32 = 16,
    /* cublasLt: attributes of a preference; how parts of a sum along K may be added up: apart, in f32 */
    LT_WORKSPACE_BYTES = 1,
    LT_SUMS = 3,
    LT_ALIGNMENT_A = 5, /* of b, c and d: the next three */
    LT_SUMS_IN_F32 = 2,
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

/* What cublasLt's heuristic has found (cublasLtMatmulHeuristicResult_t). */
struct lt_found {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
};

/* A handle of cuBLAS's is one of cublasLt's, too. */
struct lt {
    int (*operation_create)(void **operation, int compute, int scale_type);
    int (*operation_destroy)(void *operation);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t stride);
    int (*layout_destroy)(void *layout);
    int (*preference_create)(void **preference);
    int (*preference_destroy)(void *preference);
    int (*preference_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*find)(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most,
                struct lt_found *found, int *n);
    int (*multiply)(void *handle, void *operation, const void *alpha, const void *a, void *a_layout, const void *b,
                    void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                    const void *algorithm, void *workspace, size_t workspace_bytes, hipStream_t stream);
};

/* What a product's kernel is chosen for; compared as bytes, so there are no gaps. */
struct lt_shape {
    int64_t m, n, k, strides[4];
    uint32_t alignments[4];
    uint32_t dtype, adds;
};

/* A product that has come before. */
struct lt_kept {
    struct lt_shape shape;
    void *operation, *layouts[4]; /* NULL: cublasLt knows no kernel for it */
    struct lt_found found;
};

enum { KEPT_MOST = 64 };

struct library {
    int gpu;
    void *handle; /* the GPU's, which others have, too */
    uint64_t workspace;
    struct lt_kept kept[KEPT_MOST]; /* the first n, then in turns */
    uint32_t n;
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

static void *lt_open(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *library = NULL;

    for (int pass = 0; pass < 2 && !library; pass++)
        for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]) && !library; i++)
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | (pass ? 0 : RTLD_NOLOAD));
    return library;
}

static bool lt_load(struct lt *out)
{
    void *library = lt_open();

    return library && blas_find(library, "cublasLtMatmulDescCreate", &out->operation_create) &&
           blas_find(library, "cublasLtMatmulDescDestroy", &out->operation_destroy) &&
           blas_find(library, "cublasLtMatrixLayoutCreate", &out->layout_create) &&
           blas_find(library, "cublasLtMatrixLayoutDestroy", &out->layout_destroy) &&
           blas_find(library, "cublasLtMatmulPreferenceCreate", &out->preference_create) &&
           blas_find(library, "cublasLtMatmulPreferenceDestroy", &out->preference_destroy) &&
           blas_find(library, "cublasLtMatmulPreferenceSetAttribute", &out->preference_set) &&
           blas_find(library, "cublasLtMatmulAlgoGetHeuristic", &out->find) &&
           blas_find(library, "cublasLtMatmul", &out->multiply);
}

/* NULL: it cannot be loaded. It stays loaded. */
static const struct lt *lt(void)
{
    static struct lt functions;
    static const bool loaded = lt_load(&functions);

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

/* ---- handles ----
 *
 * A handle takes some 66 MiB of an H200, so a process has one for each GPU, which its communicators share. */

struct shared_handle {
    void *handle;
    unsigned users;
};
static struct shared_handle shared_handles[GPU_MAX_GPUS];
static pthread_mutex_t shared_handles_mutex = PTHREAD_MUTEX_INITIALIZER;

/* Whoever uses a handle has it alone, from setting its stream and workspace until cuBLAS has enqueued what follows from them. */
struct handle_alone {
    handle_alone()
    {
        (void)pthread_mutex_lock(&shared_handles_mutex);
    }
    handle_alone(const handle_alone &) = delete;
    handle_alone &operator=(const handle_alone &) = delete;
    ~handle_alone()
    {
        (void)pthread_mutex_unlock(&shared_handles_mutex);
    }
};

/* Returns what cuBLAS says; 0: it is there. */
static int shared_handle_take(int gpu, void **handle)
{
    struct shared_handle *h = &shared_handles[gpu];
    const handle_alone alone;
    int status = 0;

    if (h->users == 0) {
        void *made = NULL;
        status = blas()->create(&made);
        if (!status)
            status = blas()->set_math_mode(made, BLAS_SUMS_IN_F32);
        if (status && made)
            (void)blas()->destroy(made);
        h->handle = made;
    }
    h->users += status ? 0 : 1;
    *handle = h->handle;
    return status;
}

static void shared_handle_give(int gpu)
{
    struct shared_handle *h = &shared_handles[gpu];
    const handle_alone alone;

    if (--h->users == 0)
        (void)blas()->destroy(h->handle);
}

int library_open(int gpu, uint64_t workspace, struct library **out, struct error *e)
{
    struct library *l = (struct library *)calloc(1, sizeof(*l));

    if (!l)
        return error_set(e, -ENOMEM, "%s GPU %d: no memory for cuBLAS", GPU_KIND, gpu);
    const int status = shared_handle_take(gpu, &l->handle);
    if (status) {
        free(l);
        return blas_error(gpu, "opening cuBLAS", status, e);
    }
    l->workspace = workspace;
    l->gpu = gpu;
    *out = l;
    return 0;
}

static void kept_drop(struct lt_kept *kept)
{
    for (int i = 0; i < 4; i++)
        if (kept->layouts[i])
            (void)lt()->layout_destroy(kept->layouts[i]);
    if (kept->operation)
        (void)lt()->operation_destroy(kept->operation);
    memset(kept, 0, sizeof(*kept));
}

void library_close(struct library *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; i < KEPT_MOST && i < l->n; i++)
        kept_drop(&l->kept[i]);
    shared_handle_give(l->gpu);
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
    const handle_alone alone;
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

/* ---- any two matrices ----
 *
 * cuBLAS's matrices are stored by columns: the transposed d is the transposed b . the transposed a. Sums of c and the product are made before they are
 * rounded, by cublasLt, which takes c and d apart; without it c is copied into d first, and added to there. */

static int type_of(uint32_t dtype)
{
    return dtype == FCC_F32 ? BLAS_F32 : dtype == FCC_F16 ? BLAS_F16 : BLAS_BF16;
}

static uint32_t alignment_of(uint64_t address)
{
    const uint64_t least = (address | 256) & ~((address | 256) - 1);

    return (uint32_t)least;
}

static int layouts_make(struct lt_kept *k)
{
    const struct lt_shape *s = &k->shape;
    const uint64_t m = (uint64_t)s->m, n = (uint64_t)s->n, inner = (uint64_t)s->k;
    const uint64_t rows[4] = {n, inner, n, n}, cols[4] = {inner, m, m, m}; /* of b, a, c, d, by columns */
    int status = lt()->operation_create(&k->operation, BLAS_COMPUTE_F32, BLAS_F32);

    for (int i = 0; i < 4 && !status; i++)
        status = lt()->layout_create(&k->layouts[i], type_of(s->dtype), rows[i], cols[i], s->strides[i]);
    return status;
}

/* Finds the kernel for a shape. */
static int kept_make(struct library *l, struct lt_kept *k)
{
    const size_t workspace = LIBRARY_WORKSPACE;
    const uint32_t sums = LT_SUMS_IN_F32;
    void *preference = NULL;
    int n = 0, status = layouts_make(k);

    if (!status)
        status = lt()->preference_create(&preference);
    if (!status)
        status = lt()->preference_set(preference, LT_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    if (!status)
        status = lt()->preference_set(preference, LT_SUMS, &sums, sizeof(sums));
    for (int i = 0; i < 4 && !status; i++)
        status = lt()->preference_set(preference, LT_ALIGNMENT_A + i, &k->shape.alignments[i], sizeof(uint32_t));
    if (!status)
        status = lt()->find(l->handle, k->operation, k->layouts[0], k->layouts[1], k->layouts[2], k->layouts[3], preference, 1,
                            &k->found, &n);
    if (preference)
        (void)lt()->preference_destroy(preference);
    return status ? status : n < 1 || k->found.status ? -1 : 0;
}

/* NULL: cublasLt knows no kernel for the shape. */
static const struct lt_kept *kept_get(struct library *l, const struct lt_shape *shape)
{
    for (uint32_t i = 0; i < l->n && i < KEPT_MOST; i++)
        if (!memcmp(&l->kept[i].shape, shape, sizeof(*shape)))
            return l->kept[i].operation ? &l->kept[i] : NULL;
    struct lt_kept *k = &l->kept[l->n++ % KEPT_MOST];
    kept_drop(k);
    k->shape = *shape;
    if (kept_make(l, k) == 0)
        return k;
    kept_drop(k);
    k->shape = *shape;
    return NULL;
}

static int multiply_by_blas(struct library *l, const struct library_matrix *w, hipStream_t stream)
{
    static const float one = 1.0f, zero = 0.0f;
    const uint64_t size = w->dtype == FCC_F32 ? 4 : 2;
    const int type = type_of(w->dtype);
    const handle_alone alone;
    int status = 0;

    if (w->c && w->c != w->d)
        status =
            (int)hipMemcpy2DAsync((void *)w->d, (uint64_t)w->d_stride * size, (const void *)w->c, (uint64_t)w->c_stride * size,
                                  (uint64_t)w->n * size, (uint64_t)w->m, hipMemcpyDeviceToDevice, stream);
    if (!status)
        status = blas()->set_stream(l->handle, stream);
    if (!status)
        status = blas()->set_workspace(l->handle, (void *)l->workspace, LIBRARY_WORKSPACE);
    if (!status)
        status = blas()->gemm(l->handle, BLAS_OP_N, BLAS_OP_N, (int)w->n, (int)w->m, (int)w->k, &one, (const void *)w->b, type,
                              (int)w->b_stride, (const void *)w->a, type, (int)w->a_stride, w->c ? &one : &zero, (void *)w->d,
                              type, (int)w->d_stride, BLAS_COMPUTE_F32, BLAS_DEFAULT);
    return status;
}

/* A product without elements along K. */
static int multiply_nothing(int gpu, const struct library_matrix *w, hipStream_t stream, struct error *e)
{
    const uint64_t size = w->dtype == FCC_F32 ? 4 : 2, pitch = (uint64_t)w->d_stride * size, wide = (uint64_t)w->n * size;
    hipError_t status = w->c == w->d ? hipSuccess
                        : w->c ? hipMemcpy2DAsync((void *)w->d, pitch, (const void *)w->c, (uint64_t)w->c_stride * size, wide,
                                                  (uint64_t)w->m, hipMemcpyDeviceToDevice, stream)
                               : hipMemset2DAsync((void *)w->d, pitch, 0, wide, (uint64_t)w->m, stream);
    return status == hipSuccess ? 0 : gpu_error(e, gpu, "an empty product", status);
}

int library_multiply(struct library *l, int gpu, const struct library_matrix *what, hipStream_t stream, struct error *e)
{
    static const float one = 1.0f, zero = 0.0f;
    struct library_matrix w = *what;
    struct lt_shape shape;

    if (w.m == 0 || w.n == 0)
        return 0;
    /* A matrix of one row may have any stride; to cuBLAS it is at least its length. */
    w.a_stride = w.a_stride > w.k ? w.a_stride : w.k;
    w.b_stride = w.b_stride > w.n ? w.b_stride : w.n;
    w.d_stride = w.d_stride > w.n ? w.d_stride : w.n;
    w.c_stride = !w.c ? w.d_stride : w.c_stride > w.n ? w.c_stride : w.n;
    if (w.k == 0)
        return multiply_nothing(gpu, &w, stream, e);
    const uint64_t c = w.c ? w.c : w.d;
    shape = {w.m,
             w.n,
             w.k,
             {w.b_stride, w.a_stride, w.c_stride, w.d_stride},
             {alignment_of(w.b), alignment_of(w.a), alignment_of(c), alignment_of(w.d)},
             w.dtype,
             w.c != 0};
    const struct lt_kept *k = lt() ? kept_get(l, &shape) : NULL;
    const int status =
        !k ? multiply_by_blas(l, &w, stream)
           : lt()->multiply(l->handle, k->operation, &one, (const void *)w.b, k->layouts[0], (const void *)w.a, k->layouts[1],
                            w.c ? &one : &zero, (const void *)c, k->layouts[2], (void *)w.d, k->layouts[3], k->found.algorithm,
                            (void *)l->workspace, k->found.workspace_bytes, stream);
    return status ? blas_error(gpu, "a product", status, e) : 0;
}

#else

bool library_is_there(void)
{
    return false;
}

int library_multiply(struct library *, int gpu, const struct library_matrix *, hipStream_t, struct error *e)
{
    return error_set(e, -EOPNOTSUPP, "%s GPU %d: no library of products", GPU_KIND, gpu);
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
