# SPDX-License-Identifier: MIT
"""Functions for ``@triton.jit`` kernels that use symmetric buffers.

A *table* is an int64 tensor on this rank's device: entry r is the address of rank r's part of one symmetric buffer, as this rank's device
sees it, or 0 if rank r is on another node. A *signal* is one int64 word of such a buffer: it starts at 0, its values only grow, one rank
stores it, and nothing resets it. *status* is the address (an int64 scalar) of the communicator's status word: 0, or the reason why no rank
should wait any more. ``fcc.triton.Window`` has all three.

Memory order. The same as in fccd's own kernels::

    sender                                            receiver
      all threads store their part of the data          one load of the signal, acquire, system scope
      barrier of the program (workgroup)                barrier of the program
      one thread stores the signal, release, system     all threads load the data

Triton runs an atomic on a scalar in one thread of the program. On NVIDIA the barrier orders the other threads' stores before the atomic,
and a release at system scope covers all earlier stores, not only that thread's own: causality order is transitive over barriers (PTX ISA,
memory consistency model). On AMD Triton's barrier is the bare instruction, which waits for no stores, and the release waits only for those
of its own wave. So every wave first waits until its stores have reached the L2 (_stored()); then the release writes the L2 back. On the
receiving side the acquire empties the L1, which all waves of the workgroup share, before the barrier lets them go on.

Polls are volatile loads: relaxed, of system scope, and not hoisted out of loops. Only when the value has come does the acquire follow, as
an atomic addition of 0 to this rank's own memory. No atomic ever touches the status word: it may lie in the host's memory, where a GPU's
atomics may not be atomic for the CPU, and an addition of 0 could undo a store.

In a poll of one word every thread of the program polls by itself, so threads may leave the loop in different iterations. The loop has no
barrier, and the result comes from the atomic, which gives all threads the same value. A poll of many words reduces them in each iteration,
with barriers, so all threads must leave in the same iteration. They do: no two threads load the same word, and all get the same result of
the reduction.

Every wait ends: by the value, by the status word, or after `limit_ns` on a clock that the whole GPU shares. reason() says which of the last
two it was. The status word tells of ranks that have died or left. Only the time limit ends a wait for a rank that is alive but never
launches its kernel, or whose kernel finds no room on the GPU. Beware of the latter: programs that wait keep their place on the GPU, and
what they wait for must not need that place. Ranks may share a GPU, and under MPS their kernels run at the same time: if all programs of a
kernel wait for the other rank's kernel, that kernel may never start. So let programs that compute wait for nothing (use two results in turn
instead of asking "may I overwrite it?": examples/triton_gemm_*.py), and let one last program wait for all.

In Triton's interpreter the programs of a grid run one after the other in one thread. Loads and stores are those of the CPU, and atomics are
C++'s std::atomic with the given order. x86 keeps stores in order, and loads in order (TSO), and its atomics are full barriers, so the
argument holds. On a CPU with a weaker order, plain copies before an atomic release and after an atomic acquire are ordered by these
atomics. A wait in a program comes after everything that earlier programs have done and before everything in later ones: put waits into the
last programs of a grid, or into a kernel of their own.
"""

import errno
import os
import time

import torch
import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # as Triton looks, when a kernel is defined
# compiled for AMD's GPUs (CDNA: Window refuses others, whose stores are counted elsewhere)
HIP = tl.constexpr(torch.version.hip is not None and not INTERPRETED)

LIMIT_NS = tl.constexpr(30_000_000_000)  # of a wait, unless it says otherwise: as the daemon's TIME_LIMIT_MS
TIMED_OUT = tl.constexpr(-errno.ETIMEDOUT)

if INTERPRETED:

    def _pause():
        """Yields the core, which the awaited rank may need. Not sched_yield(): a thread that calls only that keeps others from running
        (Linux 6.18)."""
        time.sleep(20e-6)

    def _clock(lanes):
        """Nanoseconds since some fixed moment, in the shape of lanes (int32); each thread reads the clock itself. Never goes back."""
        return tl.cast(time.monotonic_ns(), tl.int64) + lanes
else:

    @triton.jit
    def _pause():
        pass

    @triton.jit
    def _clock(lanes):
        if HIP:  # 100 MHz on CDNA
            return 10 * tl.inline_asm_elementwise("s_memrealtime $0\n\ts_waitcnt lgkmcnt(0)", "=s,v", [lanes], dtype=tl.int64,
                                                  is_pure=False, pack=1)
        return tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l,r", [lanes], dtype=tl.int64, is_pure=False, pack=1)


@triton.jit
def _no_lane():
    return tl.full([], 0, tl.int32)


@triton.jit
def _stored():
    """Called by every thread: its stores have reached memory that the whole GPU sees."""
    if HIP:
        tl.inline_asm_elementwise("s_waitcnt vmcnt(0)\n\tv_mov_b32 $0, $1", "=v,v,~{memory}", [tl.full([], 0, tl.int32)],
                                  dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def peer(table, rank, dtype: tl.constexpr):
    """The address of ``rank``'s part, as a pointer to ``dtype``. rank: integer scalar. 0 for a rank on another node: use trigger() for
    such a rank."""
    return tl.load(table + rank).to(tl.pointer_type(dtype))


@triton.jit
def put_tile(table, rank, offsets, value, mask=None):
    """Store a tile into ``rank``'s part. offsets: integers of value's shape, counted in elements of value's dtype from the part's start
    (int64 where the part has 2**31 elements or more). A receiver that has seen a later signal() sees the tile."""
    tl.store(peer(table, rank, value.dtype) + offsets, value, mask=mask)


@triton.jit
def signal(table, rank, index, value):
    """Set word ``index`` of ``rank``'s part of a buffer of signals to ``value``, after all that this program has stored before,
    anywhere."""
    _stored()
    tl.debug_barrier()
    tl.atomic_xchg(peer(table, rank, tl.int64) + index, tl.cast(value, tl.int64), sem="release", scope="sys")


@triton.jit
def produced(count, n):
    """Add ``n`` to a rule's count (``fcc.Rule.count``, an int64 scalar), after all that this program has stored before: the rule's run that it
    completes moves that too. fccd's worker looks at counts every 2 ms at the latest; ``Rule.add(0)`` lets it look at once."""
    _stored()
    tl.debug_barrier()
    tl.atomic_add(count.to(tl.pointer_type(tl.int64)), tl.cast(n, tl.int64), sem="release", scope="sys")


@triton.jit
def wait(table, rank, index, value, status, limit_ns=LIMIT_NS):
    """Wait until word ``index`` of the own part (``rank`` is the own rank) is at least ``value``: True. The rest of the program then
    sees what the signal's sender had stored. False: the communicator has ended (status), or ``limit_ns`` nanoseconds have passed;
    reason() says which."""
    word = peer(table, rank, tl.int64) + index
    why = status.to(tl.pointer_type(tl.int32))
    begun = _clock(_no_lane())
    over = 0
    while (tl.load(word, volatile=True) < value) & (over == 0):
        _pause()
        over = ((tl.load(why, volatile=True) != 0) | (_clock(_no_lane()) - begun >= limit_ns)).to(tl.int32)
    seen = tl.atomic_add(word, tl.cast(0, tl.int64), sem="acquire", scope="sys")
    tl.debug_barrier()
    return seen >= value


@triton.jit
def wait_all(table, rank, first, count, value, status, BLOCK: tl.constexpr, limit_ns=LIMIT_NS):
    """wait() for the words ``first`` to ``first + count - 1``, BLOCK at a time: a power of two, at least the number of the program's
    threads. limit_ns: for all words together."""
    base = peer(table, rank, tl.int64) + first
    why = status.to(tl.pointer_type(tl.int32))
    least = tl.cast(value, tl.int64)
    begun = tl.max(_clock(tl.arange(0, BLOCK) * 0), axis=0)  # one for all threads
    over = 0
    start = 0
    while start < count:  # range(count) is none to the interpreter with NumPy from 2.5 on: an array of one element is no index there
        at = start + tl.arange(0, BLOCK)
        inside = at < count
        come = tl.min(tl.load(base + at, mask=inside, other=least, volatile=True), axis=0)
        while (come < value) & (over == 0):
            _pause()
            # one load and one look at the clock for each thread, and one value for all of them: they leave in the same turn
            ended = (tl.load(why + at * 0, volatile=True) != 0) | (_clock(at * 0) - begun >= limit_ns)
            over = tl.max(ended.to(tl.int32), axis=0)
            come = tl.min(tl.load(base + at, mask=inside, other=least, volatile=True), axis=0)
        seen = tl.atomic_add(base + at, tl.zeros([BLOCK], tl.int64), mask=inside, sem="acquire", scope="sys")
        least = tl.minimum(least, tl.min(tl.where(inside, seen, least), axis=0))
        start += BLOCK
    tl.debug_barrier()
    return least >= value


@triton.jit
def reason(status):
    """Why a wait returned False, int32: a negative errno value, of the communicator's end, or -ETIMEDOUT after the time limit."""
    why = tl.load(status.to(tl.pointer_type(tl.int32)), volatile=True)
    return tl.where(why != 0, why, TIMED_OUT)


@triton.jit
def run_begin(runs):
    """The number of this run of the kernel, int64: 1, 2, ... ``runs``: an int64 tensor of two zeros on this rank's device, of its own for each kernel
    and communicator. With it as the value of signals a launch carries nothing that changes from run to run, so a CUDA graph can hold
    it, and be replayed by turns with launches outside. Every program calls run_begin() once, and after it run_end(), also when a wait() has
    returned False. The n-th runs of all ranks have the same number if all run the kernel equally often. Streams order the runs of one rank: no
    two are under way at a time."""
    return tl.load(runs, volatile=True) + 1


@triton.jit
def run_end(runs, programs):
    """The program has done its part of the run. programs: how many the grid has, an integer scalar. The last one that calls this makes the number that
    the next run finds: by then all programs have read this one's, because each reads it before it counts itself."""
    tl.debug_barrier()
    if tl.atomic_add(runs + 1, tl.cast(1, tl.int64), sem="acq_rel", scope="gpu") == programs - 1:
        tl.store(runs + 1, tl.cast(0, tl.int64))
        tl.store(runs, tl.load(runs, volatile=True) + 1)


@triton.jit
def trigger(fifo, number, value, status, limit_ns=LIMIT_NS):
    """Send the put ``number`` to a rank on another node (fcc.triton.Triggers.register()), with all that this program has stored before in
    the put's source, and set the put's signal there to ``value``. fifo: Triggers.table. False: the communicator has ended, or the FIFO had
    no room within limit_ns, and nothing was sent. After that no kernel may trigger any more: the place in the FIFO stays empty, and the
    proxy waits for it.

    The words of the FIFO belong to the CPU, whose proxy empties a slot before it moves the tail (session.h). So whoever has seen the tail may
    store there. Seeing it takes a branch on the loaded tail, and neither GPUs nor CPUs make a store before its branch is decided. The tail
    is only loaded, never touched by an atomic, for the same reason as the status word.
    """
    _stored()
    tl.debug_barrier()
    head = tl.load(fifo).to(tl.pointer_type(tl.int64))
    tail = tl.load(fifo + 1).to(tl.pointer_type(tl.int64))
    slots = tl.load(fifo + 2).to(tl.pointer_type(tl.int64))
    capacity = tl.load(fifo + 3)
    why = status.to(tl.pointer_type(tl.int32))
    at = tl.atomic_add(head, tl.cast(1, tl.int64), sem="acq_rel", scope="sys")
    lanes = tl.arange(0, 1024) * 0  # as many as a program has threads, or more: all threads leave in the same turn
    full = at - tl.min(tl.load(tail + lanes, volatile=True), axis=0) >= capacity
    begun = tl.max(_clock(lanes), axis=0)
    over = 0
    while full & (over == 0):
        _pause()
        ended = (tl.load(why + lanes, volatile=True) != 0) | (_clock(lanes) - begun >= limit_ns)
        over = tl.max(ended.to(tl.int32), axis=0)
        full = at - tl.min(tl.load(tail + lanes, volatile=True), axis=0) >= capacity
    if full == 0:
        slot = slots + (at & (capacity - 1)) * 2
        tl.atomic_xchg(slot + 1, tl.cast(value, tl.int64), sem="relaxed", scope="sys")
        tl.atomic_xchg(slot, tl.cast(number, tl.int64), sem="release", scope="sys")
    return full == 0
