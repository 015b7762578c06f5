/* SPDX-License-Identifier: MIT
 *
 * fake_gpu_rings.h - collectives and products that a client's process runs on fake GPUs, through rings (kernels/gpu/rings.h). A run is a function on a
 * stream of the fake driver. It says and hears what the kernels' one workgroup would (kernels/gpu/device/exchange/rings_run.h), but all
 * parts travel as pieces of one channel, and who gets a reduction's result combines all ranks' terms.
 */
#ifndef FAKE_GPU_RINGS_H
#define FAKE_GPU_RINGS_H

#include "kernels/gpu/bound.h"
#include "kernels/plan/spec.h"
#include "tests/fake_gpu/fake_gpu_inside.h"

/* A communicator's rings in a rank's process. */
struct rings {
    struct gpu gpu; /* has nothing but its number */
    struct client_driver driver;
    uint32_t rank, nranks;
    bool has_library;                      /* all ranks have */
    uint32_t level;                        /* enum pieces_level, of all ranks */
    struct rings_head *heads[RINGS_RANKS]; /* all ranks' */
    _Atomic uint64_t *failures[RINGS_RANKS];
    _Atomic uint64_t *products;                       /* how many runs of products there were */
    _Atomic uint64_t *begun, *ended, *failed, *clash; /* struct fcc_binding's, `failed` being `until` */
    struct rings_call *captured;                      /* the newest call of a graph */
    _Atomic int enqueued;                             /* calls that have not ended */
};

/* A call; one of a graph is run any number of times. */
struct rings_call {
    struct rings *rings;
    struct gpu_collective what; /* of a product: the sum of the ranks' products, in f32 */
    struct rings_product product;
    bool multiplies;     /* it is a product */
    int64_t *table_rows; /* of bags: the product's */
    struct rings_pieces pieces;
    bool in_pieces; /* it is a product in pieces: run `part` of `parts` */
    int64_t part, parts;
    bool is_captured;
    struct rings_call *before; /* rings.captured */
};

/* What travels, in elements, as struct rings_run of the device code has it. */
struct rings_run {
    struct rings *rings;
    const struct gpu_collective *what;
    struct gpu_collective *moved;        /* the same: products set where their parts lie */
    const struct rings_product *product; /* NULL: a collective */
    uint64_t number;
    bool over, told; /* told: it has waited, and so the host knows of it */
    bool noted;      /* it has a record */
    uint32_t wrong;  /* the rank whose count in memory is wrong; `nranks`: none */
    int64_t send_at[RINGS_RANKS], send[RINGS_RANKS];
    int64_t get_at[RINGS_RANKS], get[RINGS_RANKS];
    int64_t other[RINGS_RANKS];  /* `own` of the ranks' headers */
    int64_t tables[RINGS_RANKS]; /* of embedding_all_to_all: the ranks' */
};

static inline bool rings_gets_all(const struct rings_run *run, uint32_t rank)
{
    return run->what->out_share == VECTOR_ALL || (run->what->out_share == VECTOR_ROOT && rank == run->what->root);
}

/* Words in memory that ranks share. */
static inline _Atomic uint64_t *rings_word(uint64_t *word)
{
    return (_Atomic uint64_t *)word;
}

/* A run that waits. The host knows of it from then on; false: it is to leave. */
bool rings_nap(struct rings_run *run);

/* A call's run, by a thread of the fake driver. */
void rings_call_run(void *argument);

/* Compares all ranks' headers, each as soon as it has come. False: leave. */
bool rings_headers_meet(struct rings_run *run);
/* They have been compared: finds what goes where, and moves or reduces it. False: leave. */
bool rings_exchange(struct rings_run *run);
/* Moves or reduces all parts. False: leave. */
bool rings_parts_run(struct rings_run *run);

/* Counts that lie in memory: what goes to each rank. Returns the rank whose count is wrong, or the number of ranks. */
uint32_t rings_counts_take(struct gpu_collective *w, uint32_t nranks);
/* How many rows come from each rank, for whoever follows on the stream. */
void rings_received_tell(const struct rings_run *run);

/* A product's sum over the ranks, as a collective: this rank's part is computed into its input, memory for M * N numbers each. To be freed. Then the
 * result is rounded into y. */
float *rings_product_begin(const struct rings_product *p, struct gpu_collective *out);
void rings_product_end(const struct rings_product *p, const float *sums);
/* A product's rows, which go to the ranks: the same as a collective with counts; then the rows that have come into y. */
void *rings_rows_begin(const struct rings_product *p, struct gpu_collective *out, uint32_t nranks);
void rings_rows_end(const struct rings_product *p, uint64_t from, int64_t rows);
/* The same of embedding_all_to_all: its pooled samples. *why: a wrong number in its data, if why->why is not RINGS_WELL. tables: those of each rank, in
 * order, which have come. */
void *rings_bags_begin(const struct rings_product *p, struct gpu_collective *out, uint32_t nranks, struct rings_failure *why);
void rings_bags_end(const struct rings_product *p, uint64_t from, const int64_t tables[], uint32_t nranks, uint32_t rank);
/* fake_gpu_pieces.c: a product in pieces, whose run has begun. */
void rings_pieces_run(struct rings_run *run, const struct rings_call *call);
/* The same, whose run, which continues one that was given up, is none. */
void rings_pieces_left(const struct rings_call *call);
/* fake_gpu_stages.c. gate: NULL: none. scale: 0: 1 */
float fake_each(uint32_t activation, float scale, const float *gate, float v);
void fake_rows(const struct gpu_rows *p);

/* A rank's rings, of a plan and memory that were checked; what the driver does for them. */
struct rings *rings_open(int gpu, const struct gpu_prepared_plan *plan, const struct gpu_prepared_memory *memory,
                         const struct client_driver *driver);
int rings_collective(struct rings *r, const struct gpu_collective *what, void *stream, struct error *e);
int rings_product(struct rings *r, const struct rings_product *what, void *stream, struct error *e);
int rings_in_pieces(struct rings *r, const struct rings_pieces *what, void *stream, struct error *e);
/* Puts a copy of the call onto a stream. 0, or the driver's error. */
int rings_call_push(const struct rings_call *what, void *stream);
void rings_close(struct rings *r);

#endif
