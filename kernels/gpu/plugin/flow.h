/* SPDX-License-Identifier: MIT
 *
 * flow.h - pieces of matrices that copy engines take to the other one of two ranks, inside of the plug-in, for products (pieces.hip).
 *
 *   stream      the caller's: kernels, and all waits for words of the other rank
 *   out         pieces to the other rank, by a copy engine, each with its word behind it, by the same
 *   in          copies within this GPU beside the caller's kernels
 *
 * `out` and `in` branch off the caller's stream and join it again, also in a graph. Beside a product there is no kernel of ours: the product's workgroups may
 * leave no room on any multiprocessor, so a kernel that tells of something, or waits, would itself wait for them. A call is one run
 * (kernels/gpu/device/exchange/rings_run.h), of a kernel in front of `out`: it compares the ranks' headers, and when it has ended the other rank has ended its
 * run before, so its memory for arrivals is free. Words count the pieces of the run that have come, and that have been used, so they only grow
 * (rings_piece_count()); copy engines store them, from where that kernel has put all that there may be.
 *
 * Memory order. On a stream a copy has ended before the next one begins, so a word is stored behind its piece. Who waits for the word loads it (acquire), and
 * what follows on its stream reads the piece. A piece that has been used is told of in the same way, behind its reader.
 *
 * Why nothing deadlocks. In the order in which a rank enqueues, every wait stands behind what the other rank's wait for the same piece needs of this one:
 * so it would come to an end even if all streams were one. Of several communicators this holds only where both ranks enqueue, or replay, their calls in the same
 * order: the driver may give streams of one communicator, or branches of a graph, the hardware queue in which another one's wait stands. Products by tiles
 * (kernels/gpu/device/tiles/tiles.hip) need the same, for another reason: they wait while they fill the GPU. Every wait ends when
 * the rank's failure epoch says so, at the time limit at the latest.
 */
#ifndef FCC_KERNELS_GPU_PLUGIN_FLOW_H
#define FCC_KERNELS_GPU_PLUGIN_FLOW_H

#include "kernels/gpu/plugin/inside.h"
#include "kernels/gpu/plugin/library.h"
#include "kernels/gpu/plugin/rings.h"

#define FLOW_PLACES                                                                                                            \
    2 /* of a flow, in the receiver's memory for arrivals; and in the sender's own memory, in which products are made */
#define FLOW_OWN_BYTES                                                                                                         \
    ((uint64_t)64 << 20) /* the process's own memory: where products are made that are sent, or exchanged as a whole */

/* Of a communicator's rings. */
struct flows {
    hipStream_t out, in;
    hipEvent_t forked, begun, joined, made[FLOW_PLACES], sent[FLOW_PLACES];
    void *own; /* FLOW_OWN_BYTES; NULL: flow_own() was not called yet */
};

/* The streams and events, on the thread's current GPU. */
int flows_open(int gpu, struct flows **out, struct error *e);
void flows_close(struct flows *flows, int gpu);
const void *flows_kernel(void); /* one of flow.hip's; loading it loads the others */

/* Rows that travel in pieces, of `row` elements each, which lie as far apart in memory for arrivals. */
struct flow_cut {
    int64_t rows, row;
    uint32_t count;           /* of pieces */
    int64_t tile;             /* large pieces are multiples of so many rows */
    uint64_t place_bytes, at; /* at: where the places begin, in the receiver's memory */
};

/* The first row of a piece, and how many there are. */
int64_t flow_at(const struct flow_cut *cut, uint32_t piece);
int64_t flow_rows(const struct flow_cut *cut, uint32_t piece);
/* Whether all pieces have room in a place. size: bytes of an element. */
bool flow_fits(const struct flow_cut *cut, uint64_t size);

/* A call that is being enqueued. After the first error nothing more is. */
struct flow {
    struct flows *p;
    struct rings_call rings; /* with what its header says */
    hipStream_t stream;
    int gpu;
    uint32_t other; /* the other rank */
    uint64_t size;  /* of an element */
    struct error *e;
    int status;
};

struct flow flow_of(struct flows *flows, int gpu, const struct rings_call *rings, uint64_t size, hipStream_t stream,
                    struct error *e);
/* The first call takes the memory, also while its stream is under capture. */
void flow_own(struct flow *f);
/* Between streams: what `second` does next begins behind what `first` has been given. */
void flow_behind(struct flow *f, hipEvent_t event, hipStream_t first, hipStream_t second);
void flow_record(struct flow *f, hipEvent_t event, hipStream_t stream);
void flow_follow(struct flow *f, hipEvent_t event, hipStream_t stream);
void flow_note(struct flow *f, hipError_t status, const char *doing);
/* Rows of `row` elements, which lie apart by their strides. */
void flow_copy(struct flow *f, uint64_t to, int64_t to_stride, uint64_t from, int64_t from_stride, int64_t rows, int64_t row,
               hipStream_t stream);
/* The run begins, on `out`, beside what the caller's stream does next. That must follow p->begun before it awaits a word. goes_on: it will await words. The run's
 * record (run_record.h) says that it has ended when the last word has come: what follows on the stream is this rank's own. */
void flow_begin(struct flow *f, bool goes_on);
/* Where a piece lies in a rank's memory for arrivals. */
uint64_t flow_place(const struct flow *f, uint32_t rank, const struct flow_cut *cut, uint32_t piece);
/* Sends a piece of a flow (0 to RINGS_FLOWS - 1), whose rows are there in the caller's stream, by one of the streams: behind those before it of its flow, when its
 * place is free. row: elements of each row that are sent. */
void flow_send(struct flow *f, const struct flow_cut *cut, uint32_t flow, uint32_t piece, uint64_t from, int64_t from_stride,
               int64_t row);
/* Tells the other rank that so many pieces of a flow have come, behind what the stream has been given. */
void flow_tell_come(struct flow *f, hipStream_t stream, uint32_t flow, uint32_t pieces);
/* What the caller's stream does next needs the piece. last: no other wait for one is behind it in this run. */
void flow_come(struct flow *f, uint32_t flow, uint32_t piece, bool last);
/* A piece has been used, by what `stream` has been given: its place is free, if another one is to come there. */
void flow_used(struct flow *f, const struct flow_cut *cut, uint32_t flow, uint32_t piece, hipStream_t stream);

#endif
