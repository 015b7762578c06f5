/* SPDX-License-Identifier: MIT
 *
 * rings_bulk.h - pieces of rings moved by Hopper's copy engine: from memory into shared memory and from there into other memory, tile by
 * tile. One thread loads and one of another warp stores, so neither waits for what the other waits for, and the bytes on their way are
 * limited neither by registers nor by fences. Where a piece is sent, a thread of a third warp tells it: a fence waits for the farthest store,
 * and meanwhile the one that stores would store nothing. Elsewhere, and for memory that is not aligned to 16 bytes, rings_pieces.h moves the pieces by
 * all threads; both have the same rings.
 *
 * Memory order, beyond rings_run.h. The copy engine's accesses are of another proxy than a thread's loads and stores.
 * - A piece that is sent: its bulk stores have been written (wait_group), so they are as this thread's own stores: fence (system), then `full`.
 *   If another thread tells it, `written` passes that on (a fence of the workgroup at either end), and the fence (system) is cumulative.
 * - A piece that has come: `full` (acquire), then a fence between the proxies, then the bulk loads.
 * - A piece that has been read: its bulk loads have arrived at the barrier that the thread has awaited; then `free`.
 *
 * A thread that finds that the run was given up sets run.leave, and the others of the workgroup look at it while they wait for barriers.
 */
#ifndef FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_BULK_H
#define FCC_KERNELS_GPU_DEVICE_EXCHANGE_RINGS_BULK_H

#include "kernels/gpu/device/exchange/rings_pieces.h"
#include "kernels/gpu/device/hopper.h"

enum {
    BULK_BYTES = 64 << 10, /* shared memory for tiles */
    BULK_LOADER = 0,       /* threads */
    BULK_STORER = 32,
    BULK_TELLER = 64,   /* of a mover, which combines nothing */
    BULK_IDLE = 96,     /* the first of those that have nothing to do with what a mover moves */
    BULK_COMBINERS = 64 /* the first of those that combine terms */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define BULK_MOVES true /* the copy engine moves pieces, and most threads are idle meanwhile */

enum {
    BULK_TILE = 16 << 10,
    BULK_TILES = BULK_BYTES / BULK_TILE,
    BULK_READ = 1, /* groups of stores that need not have been read from shared memory */
    BULK_NOTES = 32,
    BULK_BARRIERS = 4
};

/* A piece that is to be told when its last tile has been written. */
struct bulk_note {
    struct ring ring;
    uint64_t number;
    uint32_t tiles; /* that have been stored when it was */
};

/* In shared memory. Barriers: of the tiles that lie there, full: loaded; done: combined; empty: stored, and the memory read. */
struct __align__(128) bulk_shared
{
    char tiles[BULK_BYTES];
    uint64_t full[BULK_BARRIERS], done[BULK_BARRIERS], empty[BULK_BARRIERS];
    struct bulk_note notes[BULK_NOTES];
    uint32_t written; /* tiles of a mover that sends */
};

/* All threads. `combiners`: threads that arrive at `done`. */
GPU_DEVICE void bulk_begin(struct bulk_shared *s, uint32_t combiners)
{
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < BULK_BARRIERS; i++) {
            gpu_barrier_make(&s->full[i], 1);
            gpu_barrier_make(&s->done[i], combiners);
            gpu_barrier_make(&s->empty[i], 1);
        }
        s->written = 0;
        gpu_barriers_made();
    }
    __syncthreads();
}

GPU_DEVICE bool bulk_suits(const void *memory, uint64_t bytes)
{
    return ((uint64_t)memory | bytes) % 16 == 0;
}

/* Waits for the barrier of tile number `tile`, of `n` that lie in shared memory. False: leave. */
GPU_DEVICE bool bulk_await(uint64_t barriers[], uint32_t tile, uint32_t n, const struct rings_run &run)
{
    while (!gpu_barrier_over(&barriers[tile % n], tile / n % 2))
        if (*(volatile const bool *)&run.leave)
            return false;
    return true;
}

/* What the thread BULK_LOADER does: it brings tiles into shared memory. */
struct bulk_loader {
    struct rings_run &run;
    struct bulk_shared &s;
    const uint32_t slots; /* tiles that lie in shared memory */
    uint32_t loaded = 0;

    /* Waits until there is room for the next tile, and lets its barrier expect so many bytes. False: leave. */
    __device__ __forceinline__ bool begin(uint32_t bytes)
    {
        if (loaded >= slots && !bulk_await(s.empty, loaded - slots, slots, run))
            return false;
        gpu_barrier_arrive_expecting(&s.full[loaded % slots], bytes);
        return true;
    }

    __device__ __forceinline__ void load(void *to, const char *from, uint32_t bytes) const
    {
        gpu_bulk_load(to, from, bytes, &s.full[loaded % slots]);
    }

    __device__ __forceinline__ void end()
    {
        loaded++;
    }

    /* All loads have arrived: shared memory may be used for something else. */
    __device__ __forceinline__ void finish() const
    {
        for (uint32_t i = loaded > slots ? loaded - slots : 0; i < loaded; i++)
            gpu_barrier_await(&s.full[i % slots], i / slots % 2);
    }
};

/* What the thread BULK_STORER does: it stores tiles, and gives their shared memory back. */
struct bulk_stores {
    const struct rings_call &c;
    struct rings_run &run;
    struct bulk_shared &s;
    const uint32_t slots;
    uint32_t stored = 0, emptied = 0; /* tiles */

    /* Behind the bulk stores of a tile. */
    __device__ __forceinline__ void end_tile()
    {
        gpu_bulk_end_group();
        stored++;
        gpu_bulk_await_read_but<BULK_READ>();
        empty(stored > BULK_READ ? stored - BULK_READ : 0);
    }

    __device__ __forceinline__ void empty(uint32_t until)
    {
        for (; emptied < until; emptied++)
            gpu_barrier_arrive(&s.empty[emptied % slots]);
    }
};

/* One that sends pieces, or takes them. BEHIND: tiles that need not have been written when the next one is stored. */
struct bulk_mover_stores : bulk_stores {
    enum { BEHIND = 4 };

    /* The first `tiles` tiles have been written. */
    __device__ __forceinline__ void pass_on(uint32_t tiles)
    {
        __threadfence_block();
        *(volatile uint32_t *)&s.written = tiles;
    }

    __device__ __forceinline__ void pass_some_on()
    {
        gpu_bulk_await_but<BEHIND>();
        if (stored > BEHIND)
            pass_on(stored - BEHIND);
    }

    __device__ __forceinline__ void drain()
    {
        gpu_bulk_await();
        empty(stored);
        pass_on(stored);
    }

    /* Waits for a word; if it is not there yet, others hear first what they may wait for. False: leave. */
    __device__ __forceinline__ bool await(const struct piece_word &w)
    {
        if (gpu_load_relaxed(w.word) >= w.value)
            return true;
        drain();
        return rings_await(c, run, w.word, w.value);
    }
};

/* One that tells pieces itself. WRITTEN: a piece is told when so many tiles have been stored behind it: then it has been written, most likely, and
 * nobody waits. But the receiver waits for it. */
template <int WRITTEN> struct bulk_storer : bulk_stores {
    static_assert(WRITTEN + 1 < BULK_NOTES, "pieces that are not told");

    uint32_t noted = 0, told = 0; /* pieces */

    /* All tiles of a piece have been stored, and are to be told when they are written. */
    __device__ __forceinline__ void note(const struct ring &ring, uint64_t number)
    {
        s.notes[noted++ % BULK_NOTES] = {ring, number, stored};
    }

    __device__ __forceinline__ void tell(uint32_t written)
    {
        bool fenced = false;

        for (; told < noted && s.notes[told % BULK_NOTES].tiles <= written; told++) {
            if (!fenced)
                gpu_fence_system();
            fenced = true;
            piece_tell(c, run, s.notes[told % BULK_NOTES].ring, s.notes[told % BULK_NOTES].number);
        }
    }

    /* Now and then: tells what has been written long ago. */
    __device__ __forceinline__ void tell_some()
    {
        if (told == noted || stored < s.notes[told % BULK_NOTES].tiles + WRITTEN)
            return;
        gpu_bulk_await_but<WRITTEN>();
        tell(stored - WRITTEN);
    }

    /* All tiles have been written, and are told. */
    __device__ __forceinline__ void drain()
    {
        gpu_bulk_await();
        empty(stored);
        tell(stored);
    }

    /* Waits for a word; if it is not there yet, others hear first what they may wait for. False: leave. */
    __device__ __forceinline__ bool await(const struct piece_word &w)
    {
        if (gpu_load_relaxed(w.word) >= w.value)
            return true;
        drain();
        return rings_await(c, run, w.word, w.value);
    }
};

/* Moves pieces into rings, or (TAKES) out of them: all threads call its functions with the same arguments. */
template <bool TAKES> struct bulk_mover {
    const struct rings_call &c;
    struct rings_run &run;
    struct bulk_loader loader;
    struct bulk_mover_stores storer;
    uint32_t told = 0; /* tiles of pieces that were told */

    __device__ __forceinline__ bulk_mover(const struct rings_call &call, struct rings_run &r, struct bulk_shared &s)
        : c(call), run(r), loader{r, s, BULK_TILES}, storer{{call, r, s, BULK_TILES}}
    {
    }

    /* A piece, from or to `memory`. Once the run was given up, nothing is moved. */
    __device__ __forceinline__ void move(const struct ring &ring, uint64_t number, char *memory, uint64_t bytes)
    {
        if (threadIdx.x == BULK_LOADER && !run.leave)
            load(ring, number, memory, bytes);
        else if (threadIdx.x == BULK_STORER && !run.leave)
            store(ring, number, memory, bytes);
        else if (!TAKES && threadIdx.x == BULK_TELLER)
            tell(ring, number, bytes);
    }

    /* Waits until the piece has been written, unless the run was given up. */
    __device__ __forceinline__ void tell(const struct ring &ring, uint64_t number, uint64_t bytes)
    {
        told += (uint32_t)((bytes + BULK_TILE - 1) / BULK_TILE);
        while ((int32_t)(*(volatile uint32_t *)&loader.s.written - told) < 0)
            if (*(volatile const bool *)&run.leave)
                return;
        __threadfence_block();
        gpu_fence_system();
        piece_tell(c, run, ring, number);
    }

    __device__ __forceinline__ void load(const struct ring &ring, uint64_t number, const char *memory, uint64_t bytes)
    {
        const char *from = TAKES ? piece_at(c, ring, number) : memory;

        if (TAKES) {
            const struct piece_word w = come_word(c, run, ring, number);
            if (!rings_await(c, run, w.word, w.value))
                return;
            gpu_fence_proxies();
        }
        for (uint64_t at = 0; at < bytes; at += BULK_TILE) {
            const uint32_t length = bytes - at < BULK_TILE ? (uint32_t)(bytes - at) : (uint32_t)BULK_TILE;
            if (!loader.begin(length))
                return;
            loader.load(tile(loader.loaded), from + at, length);
            loader.end();
        }
    }

    __device__ __forceinline__ void store(const struct ring &ring, uint64_t number, char *memory, uint64_t bytes)
    {
        char *to = TAKES ? memory : piece_at(c, ring, number);

        if (!TAKES && (!storer.await(room_word(c, run, ring, number)) ||
                       (run.twins && !storer.await(room_word(c, run, twin_ring(ring), number)))))
            return;
        for (uint64_t at = 0; at < bytes; at += BULK_TILE) {
            if (!bulk_await(storer.s.full, storer.stored, BULK_TILES, run))
                return;
            gpu_bulk_store(to + at, tile(storer.stored), bytes - at < BULK_TILE ? (uint32_t)(bytes - at) : (uint32_t)BULK_TILE);
            storer.end_tile();
            if (!TAKES)
                storer.pass_some_on();
        }
        if (TAKES)
            room_tell(c, run, ring, number);
        else
            read_tell(c, run, ring.channel, number);
    }

    __device__ __forceinline__ char *tile(uint32_t i) const
    {
        return loader.s.tiles + i % BULK_TILES * BULK_TILE;
    }

    /* Before all threads move a piece, and at the end. */
    __device__ __forceinline__ void drain()
    {
        if (threadIdx.x == BULK_LOADER)
            loader.finish();
        else if (threadIdx.x == BULK_STORER)
            storer.drain();
    }
};

#else
#define BULK_MOVES false

/* All threads move the pieces. */
struct bulk_shared {
    char none;
};

GPU_DEVICE void bulk_begin(struct bulk_shared *, uint32_t)
{
    __syncthreads();
}

GPU_DEVICE bool bulk_suits(const void *, uint64_t)
{
    return false;
}

template <bool TAKES> struct bulk_mover {
    __device__ __forceinline__ bulk_mover(const struct rings_call &, struct rings_run &, struct bulk_shared &)
    {
    }
    __device__ __forceinline__ void move(const struct ring &, uint64_t, char *, uint64_t)
    {
    }
    __device__ __forceinline__ void drain()
    {
    }
};

#endif
#endif
