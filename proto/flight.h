/* SPDX-License-Identifier: MIT
 *
 * flight.h - the flight recorder of a worker: the last operators of each of its communicators, with their times and states, in memory that
 * the broker holds and the worker writes. So it can be read while the worker hangs, and after its death: by fccctl flight.
 *
 * The engine's thread of the worker is the only writer. It never waits, and readers may read at any time. A record is overwritten by the
 * operator that comes FLIGHT_OPERATORS turns later: the writer sets `turn` to 0, fills in the others (each a release), then sets `turn`
 * (release); and so with a communicator's place and its `number`. The broker copies a recorder, and leaves out what was written anew meanwhile
 * (daemon/common/ledger.c); who reads the copy drops records whose turn does not belong at their place. A worker runs as its user and may
 * write anything, so a reader checks every number that it uses.
 */
#ifndef FCC_PROTO_FLIGHT_H
#define FCC_PROTO_FLIGHT_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

#define FLIGHT_MAGIC 0x746c6663u /* "cflt" */
#define FLIGHT_VERSION 3u
#define FLIGHT_OPERATORS 1000u /* of each communicator */
#define FLIGHT_RUNS 1000u      /* of what the ranks of each communicator have launched */
#define FLIGHT_COMMS 32u       /* communicators of a worker that are recorded at a time, those that have ended included */
#define FLIGHT_RANKS 64        /* the first ranks, of which it is recorded who has come */

enum flight_state {
    FLIGHT_WAITING = 1, /* some ranks have come to it */
    FLIGHT_RUNNING = 2, /* all have; it runs, or stands in a queue of the GPUs */
    FLIGHT_ENDED = 3,   /* the ranks have been told */
};

/* One operator, or one symmetric allocation. Times are CLOCK_MONOTONIC's, in ns; 0: it has not come to that. */
struct flight_record {
    _Atomic uint64_t turn; /* counts the communicator's operators and allocations from 1. 0: no record */
    uint64_t number;     /* the operator's number, as errors and fccctl comms have it; set when it begins. 0: it has none yet */
    uint64_t arrived_ns; /* the first rank came */
    uint64_t begun_ns;   /* all ranks had come */
    uint64_t ended_ns;
    uint64_t came;        /* a bit for each of the first FLIGHT_RANKS ranks that have come */
    int32_t status;       /* ENDED: 0, or a negative errno value */
    uint16_t op;          /* enum fcc_op; FCC_OP_COUNT: a symmetric allocation */
    uint8_t schedule;     /* enum fcc_schedule_kind that was taken, once it runs */
    uint8_t state;        /* enum flight_state */
    uint16_t first, last; /* the ranks that came first and last, so far */
    uint32_t ncame;       /* how many ranks have come */
};
static_assert(sizeof(struct flight_record) == 64, "shared by processes");

/* One run that the ranks' own processes have launched (kernels/gpu/bound.h): a run of a prepared operator, or a collective or product on streams, also in graphs. These pass
 * the worker by. The ranks' kernels note their runs in the memory of their GPUs, where the worker reads the last ones now and then, so a record comes some time behind its run; of runs
 * that follow each other faster than it reads there are none. Records of one operator are in the order of its runs; those of several are as they were found. A record is
 * overwritten as a flight_record is, and written anew as long as ranks begin and end the run. */
struct flight_run {
    _Atomic uint64_t record; /* counts the communicator's records of this kind from 1. 0: no record */
    uint64_t
        number; /* of the run, from 1. All that goes through the rings of a communicator (kernels/gpu/rings.h) is counted together */
    /* Times are CLOCK_MONOTONIC's, in ns, as the GPUs' clocks tell. 0: it has not come to that, or is not known */
    uint64_t begun_ns;    /* the first rank's kernel began */
    uint64_t came_ns;     /* the last one's did */
    uint64_t ended_ns;    /* all ranks' have ended */
    uint64_t bytes;       /* of the longer one of a rank's vectors; 0: not known */
    uint32_t prepared;    /* the prepared operator's number */
    uint16_t op;          /* enum fcc_op */
    uint16_t came, ended; /* a bit for each rank: its kernel has begun, has ended. There are 16 at most */
    uint8_t dtype;        /* enum fcc_dtype; 0: not known */
    uint8_t given_up;     /* 1: the ranks did different things, and no rank has done it */
    uint8_t first, last;  /* the ranks that began first and last, so far */
    uint8_t zero[2];
};
static_assert(sizeof(struct flight_run) == 64, "shared by processes");

/* What is under way of them. */
struct flight_launched {
    _Atomic uint32_t
        prepared; /* the run that has been under way for longest, at the last look: of the operator of this number. 0: none is */
    uint32_t run, op; /* its lower half; enum fcc_op */
    uint32_t reserved;
    uint64_t since_ns; /* since when it has been seen */
    uint64_t missing;  /* a bit for each of the first FLIGHT_RANKS ranks that have not come to it */
    uint64_t ended;    /* how many have ended */
};
static_assert(sizeof(struct flight_launched) == 40, "shared by processes");

enum flight_comm_state { FLIGHT_COMM_ACTIVE = 1, FLIGHT_COMM_ABORTED = 2, FLIGHT_COMM_LEFT = 3 };

struct flight_comm {
    _Atomic uint32_t number; /* the communicator's, as fccctl comms has it. 0: this place was never used */
    uint32_t nranks;
    uint32_t state;       /* enum flight_comm_state; LEFT: all ranks of this node have left */
    int32_t status;       /* ABORTED: a negative errno value */
    uint32_t device_kind; /* enum fcc_device_kind */
    uint32_t here;        /* how many ranks are on this node */
    uint64_t formed_ns, ended_ns;
    uint64_t turns;          /* turns that have begun */
    char text[FCC_TEXT_MAX]; /* ABORTED: why */
    int32_t pids[FLIGHT_RANKS];
    uint64_t remote; /* a bit for each of the first ranks that is on another node */
    struct flight_launched launched;
    char pad[4096 - 864];
    struct flight_record records[FLIGHT_OPERATORS]; /* turn t at [(t - 1) % FLIGHT_OPERATORS] */
    struct flight_run runs[FLIGHT_RUNS];            /* record r at [(r - 1) % FLIGHT_RUNS] */
    char pad_end[135168 - 4096 - 64 * FLIGHT_OPERATORS - 64 * FLIGHT_RUNS];
};
static_assert(sizeof(struct flight_comm) == 135168 && sizeof(struct flight_comm) % 4096 == 0,
              "shared by processes; whole pages");

struct flight {
    uint32_t magic, version; /* FLIGHT_MAGIC, FLIGHT_VERSION */
    int32_t pid;             /* the worker's */
    uint32_t unrecorded;     /* communicators for which no place was free */
    int64_t realtime_ns;     /* add it to a time of this file: CLOCK_REALTIME */
    char pad[4096 - 24];
    struct flight_comm comms[FLIGHT_COMMS];
};
/* What is behind `turn`, `record` or `number`, in whole words of 8 bytes, which no number spans, written anew (from NULL: zeros), and read. Each store is a release, so whoever sees one of them does not find the
 * number from before the 0 any more; each load is an acquire, so the reader's second look at the number comes behind all of them. */
typedef uint64_t __attribute__((may_alias)) flight_word;
static inline void flight_words_store(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(flight_word); i++)
        __atomic_store_n((flight_word *)to + i, from ? ((const flight_word *)from)[i] : 0, __ATOMIC_RELEASE);
}
static inline void flight_words_load(void *to, const void *from, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(flight_word); i++)
        ((flight_word *)to)[i] = __atomic_load_n((const flight_word *)from + i, __ATOMIC_ACQUIRE);
}
static_assert(offsetof(struct flight_record, number) == sizeof(flight_word) &&
                  offsetof(struct flight_comm, state) == sizeof(flight_word) &&
                  offsetof(struct flight_run, number) == sizeof(flight_word) &&
                  offsetof(struct flight_comm, records) % sizeof(flight_word) == 0,
              "words");
static_assert(sizeof(struct flight) == 4096 + FLIGHT_COMMS * sizeof(struct flight_comm), "shared by processes");

#endif
