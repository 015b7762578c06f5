/* SPDX-License-Identifier: MIT
 *
 * fake_gpu.h - what a test and the fake GPU plug-in (fake_gpu.c) share: a file FAKE_GPU_CONTROL that the test puts beside the
 * plug-in, and that both map. A worker's environment is not the test's to set, so nothing else would reach the plug-in.
 */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include <stdatomic.h>
#include <string.h>

#include "kernels/gpu/abi.h"

#define FAKE_GPU_CONTROL "control"
#define FAKE_GPU_COMPILER "/fake/compiler" /* the one path at which there is one */

/* A plug-in's function that can be made to fail. */
enum fake_call {
    FAKE_NONE,
    FAKE_OPEN,
    FAKE_MEMORY_ALLOC,
    FAKE_HOST_REGISTER,
    FAKE_LAUNCH_MAKE,
    FAKE_LAUNCH_START,
    FAKE_LAUNCH_TIMES,
    FAKE_HOST_ALLOC,
    FAKE_COMPILER, /* there is none */
    FAKE_CODE_COMPILE,
    FAKE_CODE_LOAD,
    FAKE_LAUNCH_CODE,
    FAKE_PREPARED_OPEN, /* from here on: of a client's process */
    FAKE_PREPARED_CODE,
    FAKE_PREPARED_START,
};

/* What adapters are offered to write GPUs' memory by: nothing; a descriptor of it, which is no dma-buf, so a real adapter does not take it;
 * one that nobody takes. */
enum fake_exports { FAKE_EXPORTS_NONE, FAKE_EXPORTS_MEMORY, FAKE_EXPORTS_USELESS };

#define FAKE_NOT_NOW UINT32_MAX

enum { FAKE_PERIOD = 9 };

/* Over nodes: a rank's partial sum of an element of y, the same again FAKE_PERIOD columns or rows further. Of f32's the sum has other bits in
 * another order; the others' survive rounding. */
static inline float fake_partial(enum fcc_dtype dtype, uint32_t rank, uint32_t row, uint32_t col)
{
    return dtype == FCC_F32 ? (float)(3 * rank + 1) / (float)(7 + (rank + row + col) % FAKE_PERIOD) : (float)(rank + 1);
}

/* A number as an element. Of two bytes: positive whole ones below 256, which need no rounding. */
static inline void fake_round(enum fcc_dtype dtype, float value, unsigned char out[4])
{
    uint32_t bits, exponent;
    uint16_t half;

    memcpy(&bits, &value, sizeof(bits));
    memcpy(out, &bits, sizeof(bits));
    if (dtype == FCC_F32)
        return;
    exponent = bits >> 23;
    half = (uint16_t)(dtype == FCC_BF16 || bits == 0 ? bits >> 16 : (exponent - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
    memcpy(out, &half, sizeof(half));
}

/* Masks have a bit for each GPU. */
struct fake_gpus {
    /* what the test wants */
    _Atomic uint32_t gpus;            /* how many there are; FAKE_NOT_NOW: the runtime does not start */
    _Atomic uint32_t lonely;          /* mask: no peers of the others */
    _Atomic uint32_t no_stream_waits; /* they cannot tie kernels to streams */
    _Atomic uint32_t no_gpu_words;    /* ... or only by words in the host's memory */
    _Atomic uint32_t store_us;        /* how long a store in passing takes */
    _Atomic uint32_t hold;            /* mask: kernels there go on until they are to leave */
    _Atomic uint32_t hold_phase;      /* ... over nodes: those whose first phase this is */
    _Atomic uint32_t deaf;            /* mask: ... and do not look whether they are to leave */
    _Atomic uint32_t run_us;          /* how long kernels run */
    _Atomic uint32_t busy_us;         /* how long ranks' own runs compute before they wait for anybody, on GPU busy_gpu */
    _Atomic uint32_t busy_gpu;
    _Atomic uint32_t
        library; /* 1: processes have the vendor's library of products, but for those with FAKE_GPU_WITHOUT_LIBRARY set */
    _Atomic uint32_t linger;   /* mask: kernels there stay so long once more when their work is done */
    _Atomic uint32_t untold;   /* mask: kernels there have told the streams, and do not tell the host */
    _Atomic uint32_t alloc_ms; /* how long an allocation takes */
    _Atomic uint32_t copy_us;  /* how long a copy takes that comes from another node, and a run of a rule */
    _Atomic uint32_t exports;  /* enum fake_exports */
    _Atomic uint32_t lost;     /* mask: the context is lost: nothing runs there any more */
    _Atomic uint32_t fail;     /* enum fake_call: its next call on GPU fail_gpu fails */
    _Atomic uint32_t fail_gpu;
    _Atomic uint32_t failing; /* 1: the next kernel with rank failing_rank reports `failure` */
    uint32_t failing_rank;
    _Atomic uint32_t failing_epoch; /* ... that is its communicator's launch of this number; 0: any */
    struct gpu_failure failure;
    _Atomic uint32_t by_tiles;     /* products by tiles that ranks have launched */
    _Atomic uint32_t by_lanes;     /* launches that came by another lane than the first */
    _Atomic uint32_t compile_hold; /* 1: the compiler does not end */
    char compile_refuses[32];      /* a source with this text does not compile; "": all do. Set while nothing compiles */
    /* what there is, and must be gone when the worker closes its GPUs */
    _Atomic int contexts, memories, registered, launches;
    _Atomic int codes;    /* generated kernels that are loaded */
    _Atomic int prepared; /* ... and when its clients have gone: operators that they had open */
    _Atomic int sessions; /* then: mappings of session memory that the worker still has */
    /* what has happened */
    _Atomic int enqueued;               /* kernels that were started */
    _Atomic int begun, ended;           /* kernels; those that begin have seen their words come */
    _Atomic int holding;                /* kernels that are held now */
    _Atomic int runs;                   /* of prepared operators that have begun */
    _Atomic int bound, recalled;        /* runs of operators that the worker has bound: that ran, and that handed over */
    _Atomic int copied;                 /* areas that came from other nodes */
    _Atomic int exported;               /* pieces of memory for adapters */
    _Atomic int flushed;                /* before flags: what adapters have written */
    _Atomic int closed;                 /* workers that have closed their GPUs */
    _Atomic int compiling, compiled;    /* steps of programs: now; in all */
    _Atomic int generated, interpreted; /* launches of steps that had a generated kernel, and that had none */
    _Atomic int wrong;                  /* calls that the contract forbids */
    char what_is_wrong[128];            /* the first of them */
};

#endif
