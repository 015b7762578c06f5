/* SPDX-License-Identifier: MIT
 *
 * operators.h - the operators' numbers, tensors and attributes, and kinds of memory, on the wire and in all processes. Plain C
 * and C++.
 */
#ifndef FCC_PROTO_OPERATORS_H
#define FCC_PROTO_OPERATORS_H

/* Every operator: X(NAME, name, number). Numbers never change. kernels/plan/operators.def has the rest of each operator. */
#define FCC_OPERATORS(X)                                                                                                       \
    X(NOOP, noop, 0)                                                                                                           \
    X(EMBEDDING_ALL_TO_ALL, embedding_all_to_all, 1)                                                                           \
    X(GEMV_ALL_REDUCE, gemv_all_reduce, 2)                                                                                     \
    X(GEMM_ALL_TO_ALL, gemm_all_to_all, 3)                                                                                     \
    X(GEMM_ALL_REDUCE, gemm_all_reduce, 4)                                                                                     \
    X(ALL_REDUCE, all_reduce, 5)                                                                                               \
    X(REDUCE_SCATTER, reduce_scatter, 6)                                                                                       \
    X(ALL_GATHER, all_gather, 7)                                                                                               \
    X(ALL_TO_ALL, all_to_all, 8)                                                                                               \
    X(BROADCAST, broadcast, 9)                                                                                                 \
    X(REDUCE, reduce, 10)                                                                                                      \
    X(GATHER, gather, 11)                                                                                                      \
    X(SCATTER, scatter, 12)                                                                                                    \
    X(SEND_RECEIVE, send_receive, 13)                                                                                          \
    X(RINGS, rings, 14)                                                                                                        \
    X(GEMM_REDUCE_SCATTER, gemm_reduce_scatter, 15)                                                                            \
    X(ALL_GATHER_GEMM, all_gather_gemm, 16)                                                                                    \
    X(PROGRAM_STEP, program_step, 17)

enum fcc_op {
#define X(NAME, name, number) FCC_OP_##NAME = (number),
    FCC_OPERATORS(X)
#undef X
        FCC_OP_COUNT
};
#define FCC_BARRIER FCC_OP_NOOP              /* ranks meet in it, and nothing else */
#define FCC_RINGS FCC_OP_RINGS               /* collectives that ranks launch themselves */
#define FCC_PROGRAM_STEP FCC_OP_PROGRAM_STEP /* a step of a program, as the library calls it */

enum fcc_embedding_tensor { FCC_EMB_TABLES, FCC_EMB_INDICES, FCC_EMB_OFFSETS, FCC_EMB_WEIGHTS, FCC_EMB_OUT, FCC_EMB_TENSORS };
enum fcc_gemv_tensor { FCC_GEMV_X, FCC_GEMV_W, FCC_GEMV_Y, FCC_GEMV_TENSORS };
enum fcc_gemm_tensor { FCC_GEMM_A, FCC_GEMM_B, FCC_GEMM_C, FCC_GEMM_TENSORS };
/* a and b are those of enum fcc_gemm_tensor. */
enum fcc_gather_tensor { FCC_GATHER_A, FCC_GATHER_B, FCC_GATHER_GATHERED, FCC_GATHER_C, FCC_GATHER_TENSORS };
enum fcc_vector_tensor { FCC_VECTOR_IN, FCC_VECTOR_OUT, FCC_VECTOR_TENSORS };

enum fcc_attr {
    FCC_ATTR_TABLE_ROWS = 1,       /* [num_tables]; always present, may be empty */
    FCC_ATTR_POOLING = 2,          /* [1] enum fcc_pooling */
    FCC_ATTR_BATCH = 3,            /* [1] */
    FCC_ATTR_BATCH_SPLIT = 4,      /* [nranks]; absent: even */
    FCC_ATTR_SEND_ROWS = 5,        /* [nranks]; absent: equal */
    FCC_ATTR_REDUCTION = 6,        /* [1] enum fcc_reduction */
    FCC_ATTR_ROOT = 7,             /* [1] a rank */
    FCC_ATTR_SEND_COUNTS = 8,      /* [nranks]; absent: equal */
    FCC_ATTR_DESTINATION = 9,      /* [1] a rank, or -1 */
    FCC_ATTR_SOURCE = 10,          /* [1] a rank, or -1 */
    FCC_ATTR_EXPECTED_COUNTS = 11, /* [nranks]; absent: any */
    FCC_ATTR_ROW_ELEMENTS = 12, /* [1] of the rows that a program's counts are in; 0: 1. Counts on the wire are in elements */
    FCC_ATTR_EPILOGUE =
        13, /* [5] of an epilogue: norm, the bits of norm_eps, activation, the bits of scale, quantization; absent: all 0 */
    FCC_ATTR_LIBRARY = 14, /* [1] of rings: what the rank's process has for products: enum pieces_level; absent: 0 */
    FCC_ATTR_ROWS = 15,    /* [nranks] of the sum that each rank gets, the same on all ranks; absent: equal */
    FCC_ATTR_CODE = 16,    /* of a program's step: kernels/program/code.h */
    FCC_ATTR_TABLES = 17,  /* of a program's step, where a table's tensors lie: code_places() in kernels/program/code.h */
    FCC_ATTR_TILE =
        18, /* [1] of a program's step, the elements of a tile, the same on all ranks; absent: as many as suit the device */
    /* [11] of a program's step that is to be bound: the dtypes of its tensors t, which are the rank's process's own and so are absent; -1: there is
     * none. Absent: the step is to be run */
    FCC_ATTR_DTYPES = 19,
    FCC_ATTR_END = 20,
};

/* What a file descriptor of memory is, and so how a client maps it. */
enum fcc_memory_kind {
    FCC_MEMORY_HOST = 0, /* a memfd, sealed against shrinking */
    /* a GPU allocation's shareable handle (hipMemExportToShareableHandle, cuMemExportToShareableHandle) */
    FCC_MEMORY_GPU_FD = 1,
    FCC_MEMORY_GPU_IPC = 2, /* a memfd that holds the allocation's IPC handle (hipIpcMemHandle_t, CUipcMemHandle: 64 bytes) */
};

#endif
