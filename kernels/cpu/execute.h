/* SPDX-License-Identifier: MIT
 *
 * execute.h - executing slices on CPU cores. For a slice that computes, the operator's compute makes the tile, and its exchange
 * says where the tile goes. All other slices are executed by the exchange alone.
 */
#ifndef FCC_KERNELS_CPU_EXECUTE_H
#define FCC_KERNELS_CPU_EXECUTE_H

#include <pthread.h>

#include "kernels/plan/program.h"
#include "kernels/plan/spec.h"

/* A tile that all ranks add into, in any order. Who adds holds the lock from before it looks whether it is the first one, which stores, until its sums
 * are there. So additions exclude each other, and each sees what was added before. A holder waits for nothing, so everybody who waits for the lock gets it: it
 * takes as long as the products of the tile. Ranks begin with different owners' tiles, so they rarely meet. The last rank leaves the tile as it
 * was before the first: ready for the next run, which begins when all ranks have finished this one. The owner reads the sums after all ranks' flags, which they raise
 * behind the unlock. */
struct added_tile {
    pthread_mutex_t lock;
    int added; /* the number of ranks whose sums are there */
};

static inline void added_tiles_init(struct added_tile tiles[], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        (void)pthread_mutex_init(&tiles[i].lock, NULL); /* a plain one holds nothing that would have to be freed */
        tiles[i].added = 0;
    }
}

/* One rank's execution of its plan on a device whose memory this process can address. */
struct run {
    const struct plan *plan;
    const struct problem *problem;
    int rank;
    const struct op_args *args;    /* [nranks]: all ranks' requests */
    unsigned char *const *staging; /* [nranks]: all ranks' staging memory, plan->staging_bytes each, 64-byte aligned */
    struct added_tile *const
        *added; /* [nranks]: plan->added_tiles each, added_tiles_init() before the first run; NULL: the plan has none */
};

/* Where the data of a slice that stores (all kinds but COMPUTE and WAIT) lies at one destination, by addresses of this process:
 * `planes` planes, plane_bytes apart, each of `rows` rows of row_bytes, row_stride bytes apart. Used to send the data to
 * another node. */
struct put_area {
    int tensor; /* the destination's, whose memory it is; PUT_STAGING: its staging memory */
    uint32_t planes, rows;
    unsigned char *at;
    uint64_t plane_bytes, row_bytes, row_stride;
    /* NULL: the slice stores the data at `at`. Otherwise one row, which lies there before the operator's end: it is sent from there, and
     * the slice stores nothing at `at`. */
    const unsigned char *from;
    /* NULL, or one row, which lies there until the slice's operator begins, for who copies it before. */
    const unsigned char *before;
};
#define PUT_STAGING (-1)

/* One thread of a cpu device. Its scratch memory grows and is reused from slice to slice. */
struct workgroup {
    void *scratch;
    size_t scratch_bytes;
    bool alone;          /* the only workgroup that takes slices of its runs */
    struct views *views; /* of the worker's shared memory; NULL: there are none */
};
/* At least `bytes` of 64-byte aligned memory with undefined contents, valid until the next call; or NULL. */
void *workgroup_scratch(struct workgroup *wg, size_t bytes);
void workgroup_release(struct workgroup *wg);

/* Execute one slice (never a SLICE_WAIT): its compute and its stores, not its waits and signals. Indices and offsets are read
 * from the client's memory once and checked before use. 0, -ERANGE or -ENOMEM with the reason. */
int cpu_slice(const struct run *run, const struct slice *slice, struct workgroup *wg, struct error *e);
/* For a workgroup that is alone: how many slices from `first` on, which wait for nothing, to execute together (at least 1), and
 * their execution. */
uint32_t cpu_slices_together(const struct run *run, uint32_t first);
int cpu_slices(const struct run *run, uint32_t first, uint32_t count, struct workgroup *wg, struct error *e);
/* Where a slice's data lies at rank dst, one of its destinations. */
void cpu_slice_area(const struct run *run, const struct slice *slice, int dst, struct put_area *out);

/* ---- the functions of computes and exchanges ---- */

/* Where a tile lies: its columns (elements of `dtype`, or groups of them) are col_bytes apart, its rows row_bytes apart. */
struct place {
    unsigned char *at;
    size_t row_bytes, col_bytes;
    enum fcc_dtype dtype;    /* of what is computed */
    struct added_tile *tile; /* NULL: the tile is stored. Otherwise it is f32 */
    bool adds;               /* to what is there */
};

/* Computes the slice's tile. */
typedef int cpu_compute(const struct run *run, const struct slice *slice, const struct place *to, struct workgroup *wg,
                        struct error *e);
cpu_compute cpu_bag, cpu_gemv, cpu_gemm, cpu_vector;

/* Whether a collective's slice for a rank on another node is sent from the rank's input, bit for bit: a copy at `at` would only be
 * read once. NULL: it is not. */
const unsigned char *cpu_vector_sent(const struct run *run, const struct slice *slice);
/* The same, but of an input that the rank may overwrite before it has been sent. */
const unsigned char *cpu_vector_before(const struct run *run, const struct slice *slice);

/* The same for a slice that would copy the rank's input into a slot of a rank of this node, which reads the input instead. */
bool cpu_vector_read(const struct run *run, int rank);

/* The elements of a collective's slice: of the part that it belongs to, or, where they are reduced, of the whole vector. */
struct vector_piece {
    int64_t at, count;
};
struct vector_piece vector_piece(const struct run *run, const struct slice *slice);

struct cpu_exchange {
    struct place (*place)(const struct run *run, const struct slice *slice); /* of a tile that is computed */
    void (*move)(const struct run *run, const struct slice *slice);          /* any other slice */
    void (*area)(const struct run *run, const struct slice *slice, int dst, struct put_area *out);
};
extern const struct cpu_exchange cpu_put, cpu_reduce, cpu_gather;

/* As cpu_slices_together() and cpu_slices(), for gemm: slices with adjacent rows are computed as one product. */
uint32_t gemm_together(const struct run *run, uint32_t first);
int gemm_slices(const struct run *run, uint32_t first, uint32_t count, struct workgroup *wg, struct error *e);

/* Copy rows of `bytes` from one place to another. */
void rows_copy(unsigned char *dst, size_t dst_stride, const unsigned char *src, size_t src_stride, uint32_t rows, size_t bytes);

#endif
