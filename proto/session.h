/* SPDX-License-Identifier: MIT
 *
 * session.h - the memory that a client and its worker share: the session memory (submission ring, completion slots, status words
 * and bound operators), the stream words in the memory of a GPU, a rank's trigger FIFO, and a rank's tracker. Messages are in proto.h.
 *
 * Session memory: struct fcc_session_memory, a sealed memfd that the worker allocates. The submission ring carries the
 * same SUBMIT messages as the socket. The client writes `head`, `data`, `life` and `slot[].state` (only FCC_SLOT_PENDING and
 * FCC_SLOT_WAITING), and `status` when the worker is gone; the client and its kernels write `bindings`; the worker writes the rest.
 *
 * Neither side trusts the other's values.
 */
#ifndef FCC_PROTO_SESSION_H
#define FCC_PROTO_SESSION_H

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/error.h"
#include "proto/fccclient.h"
#include "proto/proto.h"

#define FCC_RING_BYTES (256u * 1024u)    /* a power of two */
#define FCC_RECORD_ALIGN 16u             /* records in the ring start at multiples of this */
#define FCC_ENGINE_CORE_STAY 0x80000000u /* in fcc_session_memory.engine_core */
#define FCC_SLOTS 64u
static_assert(FCC_RING_BYTES >= 2 * FCC_MSG_MAX, "the ring holds every message");

enum fcc_slot_state {
    FCC_SLOT_FREE = 0,
    FCC_SLOT_PENDING = 1, /* submitted */
    FCC_SLOT_WAITING = 2, /* submitted, and a thread sleeps on the state's futex */
    FCC_SLOT_RUNNING =
        4, /* written by the worker: workgroups have begun and need the cores, so a waiting thread sleeps, not spins */
    FCC_SLOT_DONE = 3, /* completed: the rest of the slot is valid (release by the worker, acquire by the client) */
};

/* A completion slot. */
struct fcc_slot {
    _Atomic uint32_t state; /* enum fcc_slot_state; a futex */
    int32_t status;         /* the operator's result: 0 or a negative errno value */
    uint64_t id;            /* id of the SUBMIT message */
    uint32_t nvalues;       /* number of `values`; as in fcc_submit_reply */
    uint32_t zero;
    int64_t values[FCC_SLOT_VALUES];
    char text[FCC_TEXT_MAX]; /* the reason, if status is not 0 */
    /* Stream order, for an operator that is submitted with stream = n. Each slot counts n from 1. Counts are compared
     * cyclically; HIP's streams compare unsigned values, so a HIP client starts again at 1 before n wraps.
     * The client's stream sets stream_started to n, then waits until stream_finished reaches n. The worker's GPU waits for
     * stream_started, runs the operator, and sets stream_finished. If the operator ends in another way, the worker's CPU sets
     * stream_finished; if the worker has died, the client's CPU does. So no stream waits for ever. If the worker's GPU must
     * stop waiting before the client's stream has arrived, the worker sets stream_started to fcc_stream_passed(n). The stream's
     * store of n still follows, and the slot's words are not reused before it.
     *
     * With gpu_words = 1 the words of struct fcc_stream_words take the place of these. After them stream_started is set to n as
     * well, for the CPUs; stream_finished is not set. */
    _Atomic uint32_t stream_started;
    _Atomic uint32_t stream_finished;
};
static_assert(sizeof(struct fcc_slot) == 1056, "wire");

#define FCC_STREAM_LAST (UINT32_MAX - 1) /* the largest n */

/* A value that differs from n and is past it in both signed (cyclic) and unsigned comparison. */
static inline uint32_t fcc_stream_passed(uint32_t n)
{
    return UINT32_MAX - n < 1u << 30 ? UINT32_MAX : n + (1u << 30);
}

/* The state of a bound operator on this rank: an operator that the ranks' own processes launch. Its kernels write `begun`,
 * `ended` and `clash`, the client writes `adopted`, the worker writes the rest.
 *
 * A program can have an operator bound (FCC_PREPARE_ONLY) and enqueue its runs. The worker binds an operator that all ranks
 * have repeated and asked for (FCC_PREPARE_ASK). A client numbers the operators of each communicator from 1, in the order of
 * submission. The worker announces the bound operator by `comm`, `request` and `number`. Each client maps what the runs need
 * and sets `adopted`; then the worker sets `first`. From operator `first` on, each operator with the bound arguments is the
 * next run: the client enqueues the run's kernel on the stream, and says so in the request (fcc_submit.bound), for which it
 * need not wake the worker (worker_sleeps). When the worker finds that not all ranks launch an operator so, or that it wants to
 * launch it itself, it sets `until` and recalls the runs that some ranks have enqueued: their kernels leave, hand over to the
 * worker by the slot's stream words, and the worker launches the operator. daemon/worker/comm/bound/launcher.h has the argument
 * why no run meets another operator's. */
struct fcc_binding {
    _Alignas(64) _Atomic uint64_t begun; /* number of the last run that has begun */
    /* gpu_done_make(n, ticks) of the last run n that has ended (kernels/gpu/abi.h). Of an operator that the worker binds, the
     * first run is the one behind the value that the client finds here: the word never falls. */
    _Atomic uint64_t ended;
    /* The announcement. It is valid if `number` has the same value before and after the others are read: the worker sets
     * `number` to 0 before it changes them. */
    _Atomic uint32_t comm;    /* the client's communicator handle */
    _Atomic uint32_t request; /* the client's id of its bind request */
    _Atomic uint32_t number;  /* the worker's number of the bound operator (release); 0: this place is not announced */
    _Atomic uint32_t adopted; /* 1: the client can launch the runs (release) */
    _Atomic uint64_t first;   /* number of the first operator that is a run; 0: none yet */
    /* Number of the first operator that is none any more; 0: it is not known yet. Of rings (kernels/gpu/rings.h), which their kernels write:
     * the number of the last run that was given up */
    _Atomic uint64_t until;
    /* Of an operator that a program has bound: its kernels set it to a run's number if two runs were under way at a time. 0: none
     * were */
    _Atomic uint64_t clash;
};
#define FCC_REPEATED_MAX 64u
#define FCC_BINDINGS (FCC_PREPARED_MAX + FCC_REPEATED_MAX) /* those bound by the program, then those bound by the worker */
static_assert(sizeof(struct fcc_binding) == 64, "wire");

/* Has run n of a bound operator ended? `ended` is its fcc_binding.ended. */
static inline bool fcc_run_ended(uint64_t ended, uint32_t n)
{
    return (uint32_t)ended - n < 1u << 30;
}

/* Whether the worker has to be woken. SOUNDLY: no rank waits for another, as far as the worker knows, so a run of a bound operator
 * needs no doorbell. */
enum fcc_worker_sleeps { FCC_WORKER_AWAKE, FCC_WORKER_SLEEPS, FCC_WORKER_SLEEPS_SOUNDLY };

#define FCC_STATUS_WORDS 1024u /* communicators of one session that can have a status word at a time */

/* Session memory, shared by a client and its worker.
 *
 * Submission ring: head and tail count all bytes ever written and read; they never wrap. The record at count `offset` begins at
 * data[offset % FCC_RING_BYTES] and may continue at data[0].
 *
 * Doorbell: the client stores head, then loads worker_sleeps; the worker stores worker_sleeps, then loads head once more
 * before it sleeps; all four sequentially consistent. So either the client sees the flag and rings, or the worker sees the
 * record. For a run of a bound operator a client rings only if the worker does not sleep soundly (enum fcc_worker_sleeps). */
struct fcc_session_memory {
    _Alignas(64) _Atomic uint64_t head;          /* client writes */
    _Alignas(64) _Atomic uint64_t tail;          /* worker writes */
    _Alignas(64) _Atomic uint32_t worker_sleeps; /* worker writes: enum fcc_worker_sleeps */
    /* worker writes, now and then: if cores are scarce, 1 + the core that its engine runs on, else 0. The client leaves that core; with
     * FCC_ENGINE_CORE_STAY it goes there. */
    _Atomic uint32_t engine_core;
    _Atomic uint32_t time_limit_ms; /* worker writes, once: the limit of communicators whose ranks ask for none */
    /* Tells the worker of the death of a client that has a rank on a GPU: a robust futex (man 2 get_robust_list) that a thread
     * of the client holds until it disconnects. 0: not held. While held: the thread's TID. When the process dies, the kernel
     * sets FUTEX_OWNER_DIED. The worker adds FUTEX_WAITERS. */
    _Alignas(64) _Atomic uint32_t life;
    /* The status word of each of the session's communicators, for kernels of the client that wait for other ranks. 0: keep
     * waiting. A negative errno value: nobody should wait any more. Stored with release: all stores of ranks that are gone
     * happen before it. */
    _Alignas(64) _Atomic int32_t status[FCC_STATUS_WORDS];
    _Alignas(64) struct fcc_slot slot[FCC_SLOTS];
    _Alignas(64) unsigned char data[FCC_RING_BYTES]; /* the submission ring's records */
    /* Worker writes (release): how many entries of `bindings` have ever been announced. */
    _Alignas(64) _Atomic uint32_t announced;
    _Alignas(64) struct fcc_binding bindings[FCC_BINDINGS];
};
static_assert(sizeof(struct fcc_session_memory) % 64 == 0, "layout");

/* ---- stream words ---- */

/* A session's stream words in the memory of one GPU. A GPU waits for a word in its own memory much faster than for one in host
 * memory. The worker allocates them at the client's request. The memory lives as long as either process maps it, even if the
 * other dies. The client's stream sets started[slot] on every GPU of the communicator, and each GPU waits for its own copy. The
 * operator's kernel on the rank's GPU sets finished[slot] last. If no kernel will set a word, or a wait must be cut short, the
 * worker sets the word by a stream of its own; if the worker is dead, the client does. If the worker has set started[slot] to
 * fcc_stream_passed(n), it sets it to n before it completes the operator. So started[slot] is n when the slot is reused,
 * whoever has stored it. */
struct fcc_stream_word {
    _Atomic uint32_t value;
    uint32_t zero; /* padding: values that a GPU's stream stores are 8 bytes long */
};
struct fcc_stream_words {
    struct fcc_stream_word started[FCC_SLOTS], finished[FCC_SLOTS];
};
static_assert(sizeof(struct fcc_stream_words) == 1024, "shared by GPUs");

/* ---- puts to other nodes ---- */

/* A rank's trigger FIFO: a sealed memfd that the worker makes at the rank's first TRIGGERS message. The program's kernels write
 * `head` and the slots. The worker writes `tail` and empties the slots. A producer
 *   - takes the position p = head++ (acquire, release);
 *   - waits until p - tail < FCC_TRIGGER_SLOTS (tail: acquire). If the communicator's status becomes not 0, it leaves
 *     for good: its position stays empty and the worker never passes it, which does no harm as the communicator has ended;
 *   - stores `second` of slot p % FCC_TRIGGER_SLOTS, then `first` (release).
 * The worker takes the slots in order: it waits until `first` is not 0 (acquire), copies both words out, stores 0 into `first`,
 * then stores tail (release). So a producer stores into a slot only after the worker has emptied it, and the producer's earlier
 * stores happen before the put. The worker trusts nothing in this memory: it has its own tail, and looks the number up in its
 * own table. */
#define FCC_TRIGGER_SLOTS 4096u
struct fcc_trigger_memory {
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) struct {
        _Atomic uint64_t first;  /* the number of a put; 0: empty */
        _Atomic uint64_t second; /* the signal's value */
    } slot[FCC_TRIGGER_SLOTS];
};
static_assert(sizeof(struct fcc_trigger_memory) == 128 + 16 * FCC_TRIGGER_SLOTS, "wire");

/* ---- trackers ---- */

/* A rule of a rank's tracker, as both see it. */
struct fcc_rule_state {
    /* Producers add to it (release). It only grows; the worker believes nothing but that a larger value is more. */
    _Alignas(64) _Atomic uint64_t count;
    /* The client writes it: the last run that a thread of it has waited for. A run that is waited for has begun, for the time limit. */
    _Atomic uint64_t awaited;
    /* What kernels of the rank's GPU add to (release): counted besides `count`, as additions of a CPU and of a GPU to one word in host memory
     * may be lost. Of a rank on a cpu device: 0. */
    _Alignas(64) _Atomic uint64_t streams;
    /* Of a rule that streams of the rank work off themselves (fcc_tracker_run_enqueue()). Kernels of them write these: the last run that has begun,
     * which counts for the time limit as a run that is waited for; the last that is done (release), which the worker repeats in `done`. */
    _Atomic uint64_t begun, ran;
    _Alignas(
        64) _Atomic uint64_t need; /* the worker writes it, once: how much of the count makes a run. 0: there is no such rule */
    _Atomic uint64_t done;         /* the worker writes it (release): the last run that is done */
    _Atomic int32_t status;        /* the worker writes it: 0, or why the rule does nothing any more */
};
static_assert(sizeof(struct fcc_rule_state) == 192, "wire");

/* The count of a rule: what the CPU and the GPU have added. */
static inline uint64_t fcc_rule_counted(const struct fcc_rule_state *r)
{
    return atomic_load_explicit(&r->count, memory_order_seq_cst) + atomic_load_explicit(&r->streams, memory_order_seq_cst);
}

/* A rank's tracker: a sealed memfd that the worker makes at the rank's TRACKER message. The worker keeps rules and the numbers of runs
 * itself; `done`, `need` and `status` are copies for the client.
 *
 * Waking. A producer adds to a count, then loads `sleeps`, and rings the eventfd, which is the rank's alone, if that is 1; the worker's thread stores `sleeps`, then
 * looks at all counts once more before it waits for the eventfd; all sequentially consistent. So either the producer sees that the thread
 * sleeps, or the thread sees the count. The other way, the worker adds 1 to `news` when a run is done, or a rule has ended, and then wakes
 * who sleeps on it as a futex if `sleepers` is not 0; a thread of the client adds itself to `sleepers`, then looks at `done` once more, then
 * sleeps on the value of `news` that it has loaded before. */
struct fcc_tracker_memory {
    _Alignas(64) _Atomic uint32_t sleeps; /* worker writes */
    /* Client writes: 1: counts are raised by who does not ring, so the thread looks now and then */
    _Atomic uint32_t polls;
    _Alignas(64) _Atomic uint32_t news; /* worker writes: a futex */
    _Atomic uint32_t sleepers;          /* client writes */
    /* For kernels of the client that wait. 0, or why nobody is to wait any more: a negative errno value, which no one takes back. The worker
     * writes it when the communicator ends, the client when the worker is gone, or it frees the tracker. */
    _Atomic int32_t ended;
    struct fcc_rule_state rule[FCC_RULES_MAX];
};
static_assert(sizeof(struct fcc_tracker_memory) == 128 + 192 * FCC_RULES_MAX, "wire");

#endif
