# SPDX-License-Identifier: MIT
"""Functions for use inside ``@triton.jit`` kernels over symmetric buffers.

A *table* is an int64 tensor on this rank's device: entry r is the address of rank r's part of one symmetric buffer, as this
rank's device sees it, or 0 if rank r is on another node. A *signal* is one int64 word of such a buffer: it is 0 at first, its
values only grow, one rank stores each word, and nothing resets it. *status* is the address (an int64 scalar) of the
communicator's status word: 0, or why nobody should wait for other ranks any more. ``fcc.triton.Window`` has all three.

Memory order. The same as that of fccd's own kernels::

    sender                                            receiver
      all threads store their part of the data          one load of the signal, acquire, system scope
      barrier of the program (workgroup)                barrier of the program
      one thread stores the signal, release, system     all threads load the data

Triton runs an atomic on a scalar in one thread of the program. On NVIDIA what the other threads have stored comes before it by
the barrier, and release at system scope covers all that comes before it, not only that thread's own stores: causality order is
transitive over barriers (PTX ISA, memory consistency model). On AMD Triton's barrier is the bare instruction, which waits for
nobody's stores, and the release waits for those of its own wave only; so there every wave first waits until its stores have
reached the L2 (_stored()), and then the release writes the L2 back. On the receiving side the acquire empties the L1 that all
waves of the workgroup share, before the barrier lets them go on.

Polling is done with volatile loads, which are relaxed and of system scope and are not hoisted out of loops. Only when the value
is there the acquire follows, as an atomic addition of 0 to this rank's own memory. The status word is never touched by an
atomic: it may lie in the host's memory, where a GPU's atomics need not be atomic for the CPU, and an addition of 0 could undo a
store.

A poll of one word is done by every thread of the program on its own, so threads may leave the loop in different turns: there is
no barrier in it, and what is returned comes from the atomic, which all threads get from the same one. A poll of many words
reduces them in each turn, with barriers; so there all threads must leave in the same turn, and do: no two threads load the same
word, and all get the one result of the reduction.

Every wait has an end: the value, the status word, or its time: `limit_ns`, by a clock that all of the GPU shares. reason() says
which of the two last ones it was. The status word tells of ranks that have died or left; only the time ends a wait for a rank
that is there, but does not come: because it never launched its kernel, or because its kernel finds no room. That is the mistake
to look out for: programs that wait keep their place on the GPU, and what they wait for must not need it. Ranks may share a GPU,
and under MPS their kernels take no turns: a kernel all of whose programs wait for the other rank's kernel keeps that one from
starting at all. So let programs that compute wait for nothing (two results in turn instead of "may I overwrite it?":
examples/triton_gemm_all_to_all.py), and one last program wait for all.

In Triton's interpreter the programs of a grid run one after the other in one thread, loads and stores are those of the CPU, and
atomics are C++'s std::atomic with the order that is asked for. x86 keeps the order of stores, and of loads, among each other
(TSO), and its atomics are full barriers; so the argument holds there, too. On a CPU with a weaker order the plain copies before
an atomic release and behind an atomic acquire are ordered by these. A wait in a program comes after all that the programs
before it have done, and those after it come later: waits belong into the last programs of a grid, or into a kernel of their
own.
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
        """Who is waited for may need this core. Not sched_yield(): a thread that does only that keeps others from running (Linux 6.18)."""
        time.sleep(20e-6)

    def _clock(lanes):
        """Nanoseconds since some moment, in the shape of lanes (int32), each thread's own look. Never goes back."""
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
    """Every thread: what it has stored has reached memory that the whole GPU sees."""
    if HIP:
        tl.inline_asm_elementwise("s_waitcnt vmcnt(0)\n\tv_mov_b32 $0, $1", "=v,v,~{memory}", [tl.full([], 0, tl.int32)],
                                  dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def peer(table, rank, dtype: tl.constexpr):
    """The address of ``rank``'s part, as a pointer to ``dtype``. rank: integer scalar. 0 for a rank on another node: trigger()
    is the way there."""
    return tl.load(table + rank).to(tl.pointer_type(dtype))


@triton.jit
def put_tile(table, rank, offsets, value, mask=None):
    """Store a tile into ``rank``'s part. offsets: integers, of elements of value's dtype from the part's start, of value's
    shape (int64 where the part has 2**31 elements or more). Visible there to who has seen a signal() that follows it."""
    tl.store(peer(table, rank, value.dtype) + offsets, value, mask=mask)


@triton.jit
def signal(table, rank, index, value):
    """Set word ``index`` of ``rank``'s part of a buffer of signals to ``value``, after all that this program has stored before,
    anywhere."""
    _stored()
    tl.debug_barrier()
    tl.atomic_xchg(peer(table, rank, tl.int64) + index, tl.cast(value, tl.int64), sem="release", scope="sys")


@triton.jit
def wait(table, rank, index, value, status, limit_ns=LIMIT_NS):
    """Wait until word ``index`` of the own part (``rank`` is the own rank) is at least ``value``: True. What comes after it in
    this program sees what the signal's sender had stored. False: it is not, because the communicator has come to its end
    (status), or ``limit_ns`` nanoseconds have passed: reason() says which."""
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
    """The same for the words ``first`` to ``first + count - 1``, BLOCK at a time: a power of two, at least as many as the
    program has threads. limit_ns: for all of them."""
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
    """Why a wait was given up, int32: a negative errno value, of the communicator's end, or -ETIMEDOUT: its time was over."""
    why = tl.load(status.to(tl.pointer_type(tl.int32)), volatile=True)
    return tl.where(why != 0, why, TIMED_OUT)


@triton.jit
def trigger(fifo, number, value, status, limit_ns=LIMIT_NS):
    """Have the put ``number`` sent to a rank on another node (fcc.triton.Triggers.register()), with all that this program has
    stored before in what it names, and its signal set to ``value`` there. fifo: Triggers.table. False: the communicator has
    come to its end, or found no room within limit_ns, and nothing was sent. Then no kernel may trigger any more: its place in
    the FIFO stays empty, and the proxy waits for it.

    The words of the FIFO are the CPU's, whose proxy empties a slot before it moves the tail (proto.h): so who has seen the tail
    may store there. That takes a branch on what was loaded, and no store is made before its branch is decided, on GPUs and CPUs
    alike. The tail is only loaded, never an atomic's: see status."""
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
