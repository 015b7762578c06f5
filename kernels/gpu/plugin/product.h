/* SPDX-License-Identifier: MIT
 *
 * product.h - products through rings, inside of the plug-in: launches that a rank makes by itself, one for each shape, and keeps.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_PRODUCT_H
#define FCC_KERNELS_GPU_PLUGIN_PRODUCT_H

#include "kernels/gpu/bound.h"
#include "kernels/gpu/plugin/flow.h"
#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/library.h"
#include "kernels/gpu/plugin/rings.h"

struct product_launch;

#if defined(__CUDACC__)
/* While a stream is under capture, a thread may not allocate, unless it says that this is meant to be no part of it. */
struct outside_captures {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    outside_captures()
    {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
    ~outside_captures()
    {
        (void)cudaThreadExchangeStreamCaptureMode(&mode);
    }
};
#else
struct outside_captures {
    outside_captures()
    {
    }
};
#endif

/* What a launch is made for. All of it is compared as bytes, so there are no gaps. */
struct product_shape {
    int64_t m, n, k;
    uint32_t dtype, stages;
    uint32_t two_steps;         /* of sums: 1: each rank reduces some of the columns, its chunk; 0: all */
    uint32_t puts;              /* 1: rows go to the ranks; 0: the ranks add up their partial sums */
    uint32_t factors, zero;     /* enum factors */
    int64_t rows[GPU_MAX_GPUS]; /* of puts: for each rank */
    int64_t dim,
        ntables; /* of bags (embedding_all_to_all), whose n is ntables * dim and k the indices of a bag; 0: another one */
};

/* Of a communicator's rings. */
struct products {
    struct product_launch *launches; /* the one that was used last comes first */
    uint32_t n;                      /* of those that may be freed */
    struct library *library;         /* NULL: not all ranks have it */
    struct flows *flows;             /* NULL: likewise */
};

/* The epilogue's stages of each element, as gpu_shape has them. */
uint32_t product_stages(const struct rings_product *what);
/* Enqueues a product on the stream. rings: as of every collective of the communicator. */
int product_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                  hipStream_t stream, struct error *e);
/* pieces.hip: enqueues a product with its exchange, in pieces or in sequence. */
int pieces_start(struct products *products, int gpu, const struct rings_call *rings, const struct rings_pieces *what,
                 hipStream_t stream, struct error *e);
/* pieces_tiles.hip: one by tiles; of what is gathered, by the library where a rank's own product takes less time that way. */
void pieces_by_tiles(struct flow *f, struct library *library, const struct rings_pieces *what);
/* Enqueues a collective, rings->what: bound.hip. */
int rings_start(int gpu, const struct rings_call *rings, hipStream_t stream, struct error *e);
/* Enqueues the sum of the ranks' rows (what->copies), or of products that the library makes (what->library) or a kernel for e4m3
 * (sums_made_first()), with its epilogue. */
int sums_rows_start(const struct products *products, int gpu, const struct rings_call *rings, const struct rings_product *what,
                    hipStream_t stream, struct error *e);
/* Whether a product of factors in e4m3 has so many rows that they are made, and rounded, before they are sent. The same on all ranks. */
bool sums_made_first(const struct rings_product *what);
/* Whether a collective is an all_reduce that is run as rows that the ranks add up; enqueues it. */
bool sums_vector_suits(const struct rings_call *rings);
hipError_t sums_vector_start(int gpu, const struct rings_call *rings, hipStream_t stream);
/* device/compute/factors_rows.hip: enqueues the rows from `row` on, rounded, dense, of a product with factors in e4m3. */
int factor_rows_product(int gpu, const struct rings_product *what, int64_t row, int64_t rows, uint64_t to, hipStream_t stream,
                        struct error *e);
/* One of its kernels, which are loaded together. */
const void *factor_rows_kernel(void);
/* The library's workspace, in memory of the rings. */
uint64_t sums_workspace(const struct rings_call *rings);
/* All runs have ended. */
void products_free(struct products *products, int gpu);

/* ---- product_sums.hip, product_puts.hip, product_bags.hip: for product.hip ---- */

/* Makes a plan: *run's phases, slices and groups, which are to be freed, even after an error, and *shape. */
int sums_plan(const struct product_shape *s, const struct rings_call *rings, int gpu, struct gpu_run *run,
              struct gpu_shape *shape, struct error *e);
int puts_plan(const struct product_shape *s, const struct rings_call *rings, int gpu, struct gpu_run *run,
              struct gpu_shape *shape, struct error *e);
/* Fill in what a call has of the product's tensors. */
/* What a product's factors have to their elements' dtypes: bytes of an element of the first (0) or second (1) one. */
uint64_t factor_bytes(const struct rings_product *what, int factor);
/* scales: room for those of the columns. */
void sums_call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what, int64_t col,
                    int64_t cols, struct gpu_factor_scales *scales);
void puts_call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what);
/* product_bags.hip. first_rows: the address of the tables' first rows, as gpu_input.embedding has it. */
int bags_plan(const struct product_shape *s, const struct rings_call *rings, int gpu, struct gpu_run *run,
              struct gpu_shape *shape, struct error *e);
void bags_call_fill(struct gpu_call *call, const struct rings_call *rings, const struct rings_product *what,
                    uint64_t first_rows);
/* Indices of a bag, rounded up to a power of 2: bags with about as many have the same plan. */
int64_t bags_depth(const struct rings_product *what);
/* Uploads the first row of each table. *out: its address. */
int bags_first_rows(struct gpu_launch *l, int gpu, const struct rings_product *what, uint64_t *out, struct error *e);
/* The rows from `row` on, at most `most`, of what an epilogue does with whole rows. */
void rows_part(const struct gpu_rows *all, int64_t row, int64_t most, struct gpu_rows *out);
/* What an epilogue does with the sums, f32 and without bias and residual; *rows has what concerns whole rows, if there is such. */
void sums_rows_fill(const struct rings_product *what, struct gpu_rows *rows);
/* Whether an epilogue is done by a kernel behind the product's: then *out is the product without it, and with out->whole_rows. */
bool sums_widen(const struct rings_call *rings, const struct rings_product *what, struct rings_product *out);
bool sums_in_two_steps(const struct rings_call *rings, const struct rings_product *what);
/* The most columns that are computed in one run. */
int64_t sums_columns(const struct rings_call *rings, const struct rings_product *what);

#endif
