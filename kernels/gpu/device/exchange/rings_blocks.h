/* SPDX-License-Identifier: MIT
 *
 * rings_blocks.h - how large parts of vectors travel between two ranks through rings (kernels/gpu/rings.h): as blocks, brought by couriers.
 *
 * Each workgroup has BLOCKS_COURIERS couriers. A courier is a wave that sends and a team of threads that takes. Block u of courier g is number u * RINGS_COURIERS + g of the
 * part. The couriers of the same number of both ranks have a ring at either rank, RINGS_BLOCKS_DEPTH blocks deep. The sender brings a block into the other rank's ring, waits until it has
 * been written, and tells it by `sent` there. The team waits for a block, puts it to its place or combines it with what the rank has itself, and tells by `taken` at the sender that the ring has
 * room again. A part's blocks are all of one length, as short as lets all couriers share the part, so they begin and end together.
 *
 * On Hopper one thread of the sender loads a block into shared memory and stores it from there, by the copy engine, with the next one already on its way from memory. That thread
 * waits for each block that it has stored: a thread with more blocks under way waits longer for all of them (two H200: one sender of 4 blocks reaches a third of what 4 senders do). So there are
 * many senders. What is combined with a block and was sent in the same place, the team finds in the shared memory. Elsewhere, and for what is not aligned to 16 bytes, the sender's threads copy the block. They
 * copy it to a place in the ring that is as far from being aligned as where it comes from, by wide loads and stores; `sent` says how far.
 *
 * No wave waits for ever. What happens to block u waits for nothing but what happens to earlier blocks of the same courier, and its team for its senders' block u. The sender needs shared memory, which is
 * free when block u - BLOCKS_SLOTS has been stored and combined, and room, which is there when the other rank's team has taken block u - RINGS_BLOCKS_DEPTH. So whoever has the earliest block of all can go on.
 *
 * Memory order.
 * - A block that is sent: its stores have been written (wait_group), or all lanes have stored it (a barrier of the wave); one thread: fence (system), then `sent`. The team's first thread loads
 *   `sent` (acquire), then a barrier of the team, then all read.
 * - A block that is taken: what the team's threads have loaded from the ring has arrived when they come to the team's barrier, as they have used it. Then the first thread stores `taken`. So nothing is
 *   stored into the ring before it was read.
 * - Runs alternate between two halves of the memory: a rank begins a run when the other one has begun the run before, and so ended that which used the same half. `sent` has halves, too: it says
 *   of each run how far its blocks are from being aligned.
 * - In place: the team stores the sums of block u when the barrier `full` says that the sender has read the block.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_BLOCKS_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_BLOCKS_H

#include "kernels/gpu/device/exchange/rings_packets.h"
#include "kernels/gpu/device/hopper.h"

#if defined(__CUDACC__)

enum {
    BLOCKS_COURIERS = 2, /* of a workgroup */
    BLOCKS_TEAM = 128,   /* threads */
    BLOCKS_THREADS = BLOCKS_COURIERS * (BLOCKS_TEAM + GPU_WAVE),
    BLOCKS_SLOTS = 2,  /* blocks in a sender's shared memory */
    BLOCKS_VECTORS = 4 /* of 16 bytes, which a thread combines at a time */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BLOCKS_BULK true /* the copy engine sends blocks */
#else
#define BLOCKS_BULK false
#endif

/* Of a courier, in shared memory. Barriers: full: the sender has read the block, and if the copy engine sends it, it is in its slot; empty: the team has used it. */
struct blocks_words {
    uint64_t full[BLOCKS_SLOTS], empty[BLOCKS_SLOTS];
    uint32_t copied; /* without such barriers: blocks that the sender has read */
    uint32_t go,
        shift; /* the team's first thread tells the others: the block is there; bytes from its place in the ring to its begin */
};

/* Up to 16 bytes at any place; missing ones are 0. */
GPU_DEVICE struct gpu_words sixteen_load(const char *at, int64_t bytes)
{
    const uint64_t most = bytes > 0 ? (uint64_t)bytes : 0;
    const uint64_t low = eight_load(at, most), high = eight_load(at + 8, most > 8 ? most - 8 : 0);

    return {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
}

GPU_DEVICE void sixteen_store(char *at, const struct gpu_words &v, int64_t bytes)
{
    const uint64_t most = bytes > 0 ? (uint64_t)bytes : 0;

    eight_store(at, (uint64_t)v.at[1] << 32 | v.at[0], most);
    eight_store(at + 8, (uint64_t)v.at[3] << 32 | v.at[2], most > 8 ? most - 8 : 0);
}

/* Sixteen bytes that are there. A plain load, not gpu_words_load(): sums may be stored in place during this kernel. */
GPU_DEVICE struct gpu_words vector_load(const char *at)
{
    const uint4 v = *(const uint4 *)at;

    return {{v.x, v.y, v.z, v.w}};
}

/* What seldom happens stays out of line, as its registers would be missing elsewhere, and instructions that are not needed take time to load, too. */
#define BLOCKS_SELDOM static __device__ __noinline__

/* ---- a courier's blocks ---- */

/* A part, as a courier's blocks. Both ends know the part's length, and so the blocks'. */
struct blocks_part {
    char *at;
    uint64_t bytes;
    uint32_t size, courier; /* size: bytes of a block */

    __device__ __forceinline__ blocks_part(const void *part, int64_t length, uint32_t number)
        : at((char *)part), bytes((uint64_t)length), courier(number)
    {
        const uint64_t each = (bytes + RINGS_COURIERS - 1) / RINGS_COURIERS,
                       rounds = each ? (each + RINGS_BLOCK_BYTES - 1) / RINGS_BLOCK_BYTES : 1;

        size = (uint32_t)((each + rounds - 1) / rounds + 127) / 128 * 128;
    }

    __device__ __forceinline__ uint64_t before(uint32_t u) const
    {
        return ((uint64_t)u * RINGS_COURIERS + courier) * size;
    }
    __device__ __forceinline__ uint32_t count() const
    {
        return bytes > before(0) ? (uint32_t)((bytes - before(0) - 1) / ((uint64_t)RINGS_COURIERS * size)) + 1 : 0;
    }
    __device__ __forceinline__ char *block(uint32_t u) const
    {
        return at + before(u);
    }
    __device__ __forceinline__ uint32_t length(uint32_t u) const
    {
        const uint64_t left = bytes - before(u);

        return (uint32_t)(left < size ? left : size);
    }
    /* Whether the copy engine can send it. */
    __device__ __forceinline__ bool suits(uint32_t u) const
    {
        return BLOCKS_BULK && ((uint64_t)at | length(u)) % 16 == 0;
    }
};

/* What both halves of a courier know. */
struct courier {
    const struct rings_call &c;
    struct rings_run &run;
    struct blocks_words &words;
    char *slots; /* of Hopper: BLOCKS_SLOTS * RINGS_BLOCK_BYTES */
    uint32_t number;

    __device__ __forceinline__ uint32_t other() const
    {
        return 1 - c.rank;
    }

    /* The value of `taken` when so many blocks have been, and of `sent` but for its lowest bits, which are the shift. */
    __device__ __forceinline__ uint64_t count(uint32_t blocks) const
    {
        return run.number << 28 | (uint64_t)blocks << 4;
    }

    __device__ __forceinline__ uint64_t *sent(uint32_t rank) const
    {
        return &rings_head_of(c, rank)->sent[run.number % 2][number];
    }

    __device__ __forceinline__ uint64_t *taken(uint32_t rank) const
    {
        return &rings_head_of(c, rank)->taken[number];
    }

    /* In the ring at `rank`. */
    __device__ __forceinline__ char *place(uint32_t rank, uint32_t u) const
    {
        return (char *)c.rings[rank] + rings_blocks_at(c.nranks, run.number, number) +
               u % RINGS_BLOCKS_DEPTH * RINGS_BLOCK_PLACE;
    }

    __device__ __forceinline__ char *slot(uint32_t u) const
    {
        return slots + u % BLOCKS_SLOTS * RINGS_BLOCK_BYTES;
    }

    /* One thread: waits until the sender has read block u. False: leave. */
    __device__ __forceinline__ bool read_await(uint32_t u) const
    {
        while (!is_read(u))
            if (*(volatile const bool *)&run.leave)
                return false;
        return true;
    }

#if BLOCKS_BULK
    __device__ __forceinline__ bool is_read(uint32_t u) const
    {
        return gpu_barrier_over(&words.full[u % BLOCKS_SLOTS], u / BLOCKS_SLOTS % 2);
    }

    /* All threads of the team, when one has seen it. */
    __device__ __forceinline__ void read_see(uint32_t u) const
    {
        gpu_barrier_await(&words.full[u % BLOCKS_SLOTS], u / BLOCKS_SLOTS % 2);
    }

    /* One thread of the sender: it has read block u by itself. */
    __device__ __forceinline__ void read_tell(uint32_t u) const
    {
        gpu_barrier_arrive(&words.full[u % BLOCKS_SLOTS]);
    }

    /* One thread of the team: it has used block u. */
    __device__ __forceinline__ void used_tell(uint32_t u) const
    {
        gpu_barrier_arrive(&words.empty[u % BLOCKS_SLOTS]);
    }

    __device__ __forceinline__ bool is_used(uint32_t u) const
    {
        return gpu_barrier_over(&words.empty[u % BLOCKS_SLOTS], u / BLOCKS_SLOTS % 2);
    }
#else
    __device__ __forceinline__ bool is_read(uint32_t u) const
    {
        return (int32_t)(*(volatile uint32_t *)&words.copied - u + 1) >= 0;
    }
    __device__ __forceinline__ void read_see(uint32_t) const
    {
    }
    __device__ __forceinline__ void read_tell(uint32_t u) const
    {
        *(volatile uint32_t *)&words.copied = u + 1;
    }
    __device__ __forceinline__ void used_tell(uint32_t) const
    {
    }
#endif
};

/* ---- sending ---- */

BLOCKS_SELDOM void wave_copy(char *to, const char *from, uint32_t bytes)
{
    group_copy(to, from, bytes, threadIdx.x % GPU_WAVE, GPU_WAVE);
    gpu_wave_sync();
}

/* The wave that sends `part`. gets: blocks that the team takes, each of which uses what was sent as the block of the same number. */
struct blocks_sender {
    const struct courier &its;
    const struct blocks_part &part;
    const uint32_t sends, gets;
    uint32_t loaded = 0;

    __device__ __forceinline__ blocks_sender(const struct courier &courier, const struct blocks_part &sent, uint32_t got)
        : its(courier), part(sent), sends(sent.count()), gets(got)
    {
    }

#if BLOCKS_BULK
    /* One thread: loads what there are slots for, block u at least. False: leave. */
    __device__ __forceinline__ bool load_until(uint32_t u)
    {
        for (; loaded < sends && loaded < u + BLOCKS_SLOTS; loaded++) {
            const uint32_t before = loaded - BLOCKS_SLOTS; /* in the same slot */
            while (loaded >= BLOCKS_SLOTS && before < gets && !its.is_used(before)) {
                if (loaded > u)
                    return true;
                if (*(volatile const bool *)&its.run.leave)
                    return false;
            }
            if (!part.suits(loaded))
                continue;
            uint64_t *full = &its.words.full[loaded % BLOCKS_SLOTS];
            gpu_barrier_arrive_expecting(full, part.length(loaded));
            gpu_bulk_load(its.slot(loaded), part.block(loaded), part.length(loaded), full);
        }
        return true;
    }

    /* One thread: stores block u, and waits until it has been written. */
    __device__ __forceinline__ void store(uint32_t u) const
    {
        its.read_see(u);
        gpu_bulk_store(its.place(its.other(), u), its.slot(u), part.length(u));
        gpu_bulk_end_group();
        gpu_bulk_await();
    }

    /* One thread: all loads have arrived, so the shared memory may be given up. */
    __device__ __forceinline__ void finish(uint32_t u) const
    {
        for (; u < loaded; u++)
            if (part.suits(u))
                its.read_see(u);
    }
#else
    __device__ __forceinline__ bool load_until(uint32_t) const
    {
        return true;
    }
    __device__ __forceinline__ void store(uint32_t) const
    {
    }
    __device__ __forceinline__ void finish(uint32_t) const
    {
    }
#endif

    /* One thread: all that block u needs before it can be sent. False: leave. */
    __device__ __forceinline__ bool prepare(uint32_t u)
    {
        return load_until(u) && (u < RINGS_BLOCKS_DEPTH ||
                                 rings_await(its.c, its.run, its.taken(its.c.rank), its.count(u + 1 - RINGS_BLOCKS_DEPTH)));
    }

    /* The wave. */
    __device__ __forceinline__ void send()
    {
        const uint32_t lane = threadIdx.x % GPU_WAVE;
        uint32_t u = 0;

        for (; u < sends && gpu_wave_vote(lane == 0 && !prepare(u)) == 0; u++) {
            const bool suits = part.suits(u);
            const uint32_t shift = suits ? 0 : (uint32_t)((uint64_t)part.at % 16);
            if (suits && lane == 0)
                store(u);
            if (!suits)
                wave_copy(its.place(its.other(), u) + shift, part.block(u), part.length(u));
            if (lane != 0)
                continue;
            if (!suits)
                its.read_tell(u);
            gpu_fence_system();
            gpu_store_relaxed(its.sent(its.other()), its.count(u + 1) | shift);
        }
        if (lane == 0)
            finish(u);
        gpu_wave_sync();
    }
};

/* The wave: sends the part. It has registers of its own, not what the team leaves. */
static __device__ __noinline__ void blocks_send(const struct courier its, const struct blocks_part part, uint32_t gets)
{
    blocks_sender(its, part, gets).send();
}

/* ---- taking ---- */

/* All threads of a courier's team wait for each other. (Barrier 0 is __syncthreads()'s.) */
GPU_DEVICE void team_meet()
{
    if (threadIdx.x < BLOCKS_TEAM)
        asm volatile("bar.sync 1, %0;" ::"n"((int)BLOCKS_TEAM) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"n"((int)BLOCKS_TEAM) : "memory");
}
static_assert(BLOCKS_COURIERS == 2, "a barrier for each team");

/* The team that takes blocks. sends: those that its sender sends, whose memory what is taken may overwrite. */
struct blocks_team {
    const struct courier &its;
    const uint32_t sends, thread = threadIdx.x % BLOCKS_TEAM;

    /* Waits for block u, and returns where it lies. NULL: leave. */
    __device__ __forceinline__ const char *take(uint32_t u) const
    {
        if (thread == 0) {
            const uint64_t *word = its.sent(its.c.rank), least = its.count(u + 1);
            uint64_t value = gpu_load_acquire(word);
            bool go = true;
            for (uint32_t spins = 1; value < least && go; spins++) {
                go = spins % GPU_LOOK_SPINS != 0 || !rings_look(its.c, its.run);
                value = gpu_load_acquire(word);
            }
            its.words.go = go && (u >= sends || its.read_await(u));
            its.words.shift = (uint32_t)value % 16;
        }
        team_meet();
        if (!its.words.go)
            return NULL;
        if (u < sends)
            its.read_see(u);
        return its.place(its.c.rank, u) + its.words.shift;
    }

    /* Block u has been used. */
    __device__ __forceinline__ void used(uint32_t u) const
    {
        team_meet();
        if (thread != 0)
            return;
        its.used_tell(u);
        gpu_store_relaxed(its.taken(its.other()), its.count(u + 1));
    }
};

template <typename T, enum fcc_reduction REDUCTION>
GPU_DEVICE void vectors_combine_by(const struct rings_call &c, struct gpu_words (&mine)[BLOCKS_VECTORS],
                                   const struct gpu_words (&theirs)[BLOCKS_VECTORS])
{
    typedef combine_words<T> words;

#pragma unroll
    for (uint32_t i = 0; i < BLOCKS_VECTORS; i++) {
        typename words::S sum[words::LENGTH], next[words::LENGTH];
        words::load(sum, c.rank == 0 ? mine[i] : theirs[i]);
        words::load(next, c.rank == 0 ? theirs[i] : mine[i]);
        combine_all<REDUCTION>(sum, next);
        combine_end(c.what.reduction, c.nranks, sum);
        mine[i] = words::store(sum);
    }
}

/* In rank order, into `mine`. The switch stands around all vectors: it is the same for all. */
template <typename T>
GPU_DEVICE void vectors_combine(const struct rings_call &c, struct gpu_words (&mine)[BLOCKS_VECTORS],
                                const struct gpu_words (&theirs)[BLOCKS_VECTORS])
{
    const uint32_t reduction = c.what.reduction;

    if (reduction == FCC_SUM || reduction == FCC_AVERAGE)
        return vectors_combine_by<T, FCC_SUM>(c, mine, theirs);
    if (reduction == FCC_PRODUCT)
        return vectors_combine_by<T, FCC_PRODUCT>(c, mine, theirs);
    if (reduction == FCC_MIN)
        return vectors_combine_by<T, FCC_MIN>(c, mine, theirs);
    if (reduction == FCC_MAX)
        return vectors_combine_by<T, FCC_MAX>(c, mine, theirs);
    if constexpr (!combine_is_float<typename combine_in<T>::type>()) { /* floats have no bitwise reductions */
        if (reduction == FCC_AND)
            return vectors_combine_by<T, FCC_AND>(c, mine, theirs);
        if (reduction == FCC_OR)
            return vectors_combine_by<T, FCC_OR>(c, mine, theirs);
        vectors_combine_by<T, FCC_XOR>(c, mine, theirs);
    }
}

/* A stretch of a block that the team combines. WIDE: all is aligned to 16 bytes, as is the length. */
template <typename T, bool WIDE>
GPU_DEVICE void stretch_combine_here(const struct rings_call &c, char *out, const char *own, const char *theirs, int64_t bytes,
                                     uint32_t thread)
{
    for (int64_t at = 16 * (int64_t)thread; at < bytes; at += BLOCKS_VECTORS * 16 * BLOCKS_TEAM) {
        struct gpu_words mine[BLOCKS_VECTORS], others[BLOCKS_VECTORS];
#pragma unroll
        for (uint32_t i = 0; i < BLOCKS_VECTORS; i++) {
            const int64_t here = at + i * 16 * BLOCKS_TEAM;
            mine[i] = others[i] = {{0, 0, 0, 0}};
            if (!WIDE || here < bytes) {
                mine[i] = WIDE ? vector_load(own + here) : sixteen_load(own + here, bytes - here);
                others[i] = WIDE ? vector_load(theirs + here) : sixteen_load(theirs + here, bytes - here);
            }
        }
        vectors_combine<T>(c, mine, others);
#pragma unroll
        for (uint32_t i = 0; i < BLOCKS_VECTORS; i++) {
            const int64_t here = at + i * 16 * BLOCKS_TEAM;
            if (!WIDE)
                sixteen_store(out + here, mine[i], bytes - here);
            else if (here < bytes)
                gpu_words_store(out + here, mine[i]);
        }
    }
}

template <typename T>
BLOCKS_SELDOM void stretch_combine(const struct rings_call &c, char *out, const char *own, const char *theirs, uint32_t bytes)
{
    stretch_combine_here<T, false>(c, out, own, theirs, bytes, threadIdx.x % BLOCKS_TEAM);
}

/* A block, by all threads of the team. What all three are as far from being aligned with is combined by itself. */
template <typename T>
GPU_DEVICE void block_combine(const struct rings_call &c, char *out, const char *own, const char *theirs, uint32_t bytes,
                              uint32_t thread)
{
    const uint32_t off = (uint32_t)((uint64_t)out % 16), before = (16 - off) % 16;
    const bool wide = (uint64_t)own % 16 == off && (uint64_t)theirs % 16 == off && before % sizeof(T) == 0;
    const uint32_t head = wide && before < bytes ? before : bytes, body = (bytes - head) / 16 * 16, tail = head + body;

    if (head)
        stretch_combine<T>(c, out, own, theirs, head);
    stretch_combine_here<T, true>(c, out + head, own + head, theirs + head, body, thread);
    if (tail < bytes)
        stretch_combine<T>(c, out + tail, own + tail, theirs + tail, bytes - tail);
}

/* ---- what the threads of a workgroup do ---- */

/* All threads, before anything else is done with blocks. */
GPU_DEVICE void blocks_begin(struct blocks_words words[BLOCKS_COURIERS])
{
    if (threadIdx.x < BLOCKS_COURIERS) {
        struct blocks_words &w = words[threadIdx.x];
#if BLOCKS_BULK
        for (uint32_t i = 0; i < BLOCKS_SLOTS; i++) {
            gpu_barrier_make(&w.full[i], 1);
            gpu_barrier_make(&w.empty[i], 1);
        }
        gpu_barriers_made();
#endif
        w.copied = 0;
    }
    __syncthreads();
}

/* Whether the thread is of a team; otherwise it is of a wave that sends. */
GPU_DEVICE bool is_of_team()
{
    return threadIdx.x < BLOCKS_COURIERS * BLOCKS_TEAM;
}

/* The thread's courier. `slots`: shared memory of all of the workgroup's. */
GPU_DEVICE struct courier courier_here(const struct rings_call &c, struct rings_run &run,
                                       struct blocks_words words[BLOCKS_COURIERS], char *slots)
{
    const uint32_t here = is_of_team() ? threadIdx.x / BLOCKS_TEAM : (threadIdx.x - BLOCKS_COURIERS * BLOCKS_TEAM) / GPU_WAVE;

    return {c, run, words[here], slots + here * BLOCKS_SLOTS * RINGS_BLOCK_BYTES, here * gridDim.x + blockIdx.x};
}

/* All threads: sends `sent` bytes from `in` to the other rank, and puts what comes from it, `got` bytes, to `out`; and copies what the rank has for itself. */
GPU_DEVICE void blocks_move(const struct courier &its, const char *in, int64_t sent, char *out, int64_t got,
                            const struct own_share &own)
{
    const struct blocks_part sends(in, sent, its.number), gets(out, got, its.number),
        from(own.from, (int64_t)own.bytes, its.number);
    const uint32_t takes = gets.count(), copies = from.count();

    if (!is_of_team()) {
        blocks_send(its, sends, 0); /* the team uses no slot */
        return;
    }
    const struct blocks_team team = {its, 0};
    for (uint32_t u = 0; u < takes || u < copies; u++) {
        if (u < copies)
            group_copy(own.to + from.before(u), from.block(u), from.length(u), team.thread, BLOCKS_TEAM);
        if (u >= takes)
            continue;
        const char *block = team.take(u);
        if (!block)
            return;
        group_copy(gets.block(u), block, gets.length(u), team.thread, BLOCKS_TEAM);
        team.used(u);
    }
}

/* All threads: sends `sent` bytes from `in` to the other rank, and combines what comes from it with `reduced` bytes of `own`, in rank order, to `out`. */
template <typename T>
GPU_DEVICE void blocks_reduce(const struct courier &its, const char *in, int64_t sent, const char *own, char *out,
                              int64_t reduced)
{
    const struct blocks_part sends(in, sent, its.number), gets(out, reduced, its.number), mine(own, reduced, its.number);
    const uint32_t takes = gets.count();

    if (!is_of_team()) {
        blocks_send(its, sends, takes);
        return;
    }
    const struct blocks_team team = {its, sends.count()};
    for (uint32_t u = 0; u < takes; u++) {
        const char *theirs = team.take(u);
        if (!theirs)
            return;
        const bool in_slot = own == in && u < team.sends && sends.suits(u); /* both are of one length then */
        block_combine<T>(its.c, gets.block(u), in_slot ? its.slot(u) : mine.block(u), theirs, gets.length(u), team.thread);
        team.used(u);
    }
}

#endif
#endif
