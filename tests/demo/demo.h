/* SPDX-License-Identifier: MIT
 *
 * demo.h - the demonstration: one step of three workloads, on the words of a text, by four ranks that are processes of their
 * own.
 *
 * main.c makes all inputs, starts a private fccd, forks the ranks and waits for them; rank.c is such a process, a client of
 * fccd; dlrm.c, mlp.c and moe.c are the workloads; report.c compares every element with the reference and prints.
 */
#ifndef FCC_DEMO_H
#define FCC_DEMO_H

#include <stdatomic.h>
#include <stdbool.h>

#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "tests/demo/reference.h"

#define DEMO_RANKS 4
#define DEMO_ITERS 51
#define DEMO_LIMIT_S 100 /* for all ranks together */

/* ---- text.c: the words of a text ---- */

struct word {
    const unsigned char *bytes; /* as they stand in the text */
    uint32_t length;
    uint64_t hash; /* of the word in lower case */
};

struct text {
    unsigned char *bytes;
    struct word *words;
    int64_t nwords, ndistinct;
};

/* Read a file. *out is to be freed with text_free(). -EINVAL if it has no words. */
int text_load(const char *path, struct text *out, struct error *e);
void text_free(struct text *text);
/* The i-th word; after the last one comes the first one again. */
const struct word *text_word(const struct text *text, int64_t i);

uint64_t hash_mix(uint64_t x);
uint64_t hash_join(uint64_t a, uint64_t b);

/* ---- number.c: the short formats, from numbers ---- */

uint16_t number_bf16(float value); /* nearest even; finite numbers */
uint16_t number_f16(float value);  /* exact: only for what f16 holds as a normal number, and 0 */

/* ---- the workloads' inputs, of all ranks ---- */

#define DLRM_DIM 64
#define DLRM_BATCH 4096
#define DLRM_MAX_TABLES 4 /* of a rank */

/* One rank's embedding tables and the bags of ids for them, in CSR form. */
struct dlrm_rank {
    int ntables;
    int64_t rows[DLRM_MAX_TABLES], total_rows;
    bool mean, weighted, wide; /* wide: ids are handed over as i64, else i32 */
    float *tables;             /* [total_rows][DLRM_DIM] */
    int64_t *ids, *offsets;    /* [nnz], [ntables * DLRM_BATCH + 1] */
    float *weights;            /* [nnz] if weighted */
    int64_t nnz;
};

struct dlrm {
    struct dlrm_rank ranks[DEMO_RANKS];
    int64_t split[DEMO_RANKS]; /* samples of each rank */
    int total_tables;
};

#define MLP_HIDDEN 2048
#define MLP_INNER 5632
#define MLP_SCALE 0x1p-12

struct mlp {
    int64_t first[DEMO_RANKS + 1]; /* rank r has the columns [first[r], first[r + 1]) of the inner dimension */
    float x[MLP_HIDDEN];           /* the token's hidden state */
    signed char *gate, *up, *down; /* as in struct reference_mlp */
};

#define MOE_TOKENS 1536
#define MOE_K 1024
#define MOE_N 512
#define MOE_TOKEN_SCALE 0x1p-10
#define MOE_EXPERT_SCALE 0x1p-13

struct moe {
    int64_t first[DEMO_RANKS + 1]; /* rank r owns the tokens [first[r], first[r + 1]) */
    int64_t most;                  /* tokens of a rank */
    int expert[MOE_TOKENS];        /* the rank that holds the token's expert */
    int16_t *tokens;               /* [MOE_TOKENS][MOE_K] */
    int16_t *experts;              /* [DEMO_RANKS][MOE_K][MOE_N] */
};

/* 0 or -ENOMEM. What was made is freed with the process. */
int dlrm_make(const struct text *text, struct dlrm *out);
int mlp_make(const struct text *text, struct mlp *out);
int moe_make(const struct text *text, struct moe *out);

/* ---- what is run ---- */

enum demo_workload { DEMO_DLRM, DEMO_MLP_BF16, DEMO_MLP_F32, DEMO_MOE, DEMO_WORKLOADS };
enum demo_schedule { DEMO_FUSED, DEMO_SEQUENTIAL, DEMO_SCHEDULES };

/* Memory that the parent and the ranks share. A rank writes its report; the parent reads it when the rank has ended. */
struct demo_report {
    struct error error;
    double seconds[DEMO_WORKLOADS][DEMO_SCHEDULES][DEMO_ITERS];
    int64_t wrong_counts[DEMO_WORKLOADS]; /* of recv_rows */
};

struct demo_shared {
    _Atomic int failed; /* somebody: all others give up */
    _Atomic int have_id;
    _Atomic int traced; /* ranks whose last operator is the one to draw */
    _Atomic int leave;  /* the parent has drawn it */
    struct fcc_unique_id id;
    struct demo_report ranks[DEMO_RANKS];
};

struct demo {
    struct text text;
    struct dlrm dlrm;
    struct mlp mlp;
    struct moe moe;
    const char *socket;
    char job[64];
    struct demo_shared *shared;
    unsigned char *results[DEMO_WORKLOADS][DEMO_SCHEDULES][DEMO_RANKS]; /* shared too: copies of the checked runs' results */
};

/* A rank in its own process. */
struct member {
    const struct demo *demo;
    int rank;
    struct demo_report *report;
    fcc_context *context;
    fcc_comm *comm;
    fcc_buffer *out[DEMO_WORKLOADS];
    struct fcc_embedding_all_to_all_args dlrm;
    struct fcc_gemv_all_reduce_args mlp[2]; /* bf16, f32 */
    struct fcc_gemm_all_to_all_args moe;
    int64_t send_rows[DEMO_RANKS], recv_rows[DEMO_RANKS];
};

struct workload {
    const char *op;
    enum fcc_dtype dtype;
    enum reference_type type;
    void (*describe)(const struct demo *demo, char *out, size_t room);
    int64_t (*elements)(const struct demo *demo, int rank);          /* of the rank's result */
    int (*open)(struct member *m);                                   /* allocate and fill the rank's buffers */
    int (*run)(struct member *m, enum fcc_schedule_kind kind);       /* the operator */
    int (*expected)(const struct demo *demo, int rank, double *out); /* the reference's result. 0 or -ENOMEM */
};

extern const struct workload dlrm_workload, mlp_bf16_workload, mlp_f32_workload, moe_workload;
extern const struct workload *const demo_workloads[DEMO_WORKLOADS]; /* in rank.c */

/* Bytes of the result buffer: those of the rank that has most. */
size_t demo_result_bytes(const struct demo *demo, enum demo_workload which);

/* Run a rank from connect to disconnect. Returns its exit status; the reason is in its report. */
int rank_main(const struct demo *demo, int rank);
/* For the workloads: a buffer of at least one byte. 0, or the error is in the report. */
int member_alloc(struct member *m, enum fcc_buffer_kind kind, size_t bytes, fcc_buffer **out);

/* Compare all results and print the table. Returns the number of wrong elements, or -ENOMEM. */
int64_t report_print(const struct demo *demo);

#endif
