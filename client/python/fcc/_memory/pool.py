# SPDX-License-Identifier: MIT
"""Where results and copies lie: pieces of large buffers, given out again and again.

An operator does not ask results to lie at the same place on all ranks, so each rank makes buffers for them when it needs some
(FCC_BUFFER_RESULT), and gives out pieces of them. What a rank has once taken it keeps, until it would need more than it may
have.

A block is free again when nobody but the pool can see its memory. No tensor needs to be told of its end, because two numbers
say so: how many tensors, and what else torch makes of tensors (arrays of numpy, DLPack, what autograd saved), refer to the
block's storage; and how many of Python's variables refer to the object that Python has for the storage (untyped_storage()),
which torch counts as one however many they are.

A storage can be given other memory: share_memory_() and queues of torch.multiprocessing move a tensor's elements to memory that
other processes map. A block whose storage has gone elsewhere like that is given a storage anew when nobody has the old one.

A forked child has what its parent had, and sees the same memory: children.py. What is in use at a fork is lent to the child,
and free again when that has ended, too.

On GPUs a block belongs to the stream that it was given out for, as with torch's own allocator: what is enqueued there later
comes after all that used it. So does the space that it leaves, until all streams have been waited for.
"""
from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

import torch

from .children import Children, lend_to_children
from .._connection import Buffer
from ..errors import OutOfMemoryError

ALIGNMENT = 512  # bytes
LEAST_CHUNK, MOST_CHUNK = 2 << 20, 16 << 20  # bytes of a buffer: a huge page; beyond the other, larger ones save nothing

# (buffer, begin, end, the stream that may still use the space; None: no stream does)
Space = tuple[Buffer, int, int, int | None]

_references = torch._C._storage_Use_Count  # the reference count of a storage, by its address
_variables = sys.getrefcount


class Block:
    """A piece of a buffer, with a tensor over it."""

    __slots__ = ("__weakref__", "alone", "bare", "buffer", "dtype", "handle", "held", "lent", "nbytes", "offset", "packed", "shape",
                 "storage", "tensor", "unseen")

    def __init__(self, buffer: Buffer, offset: int, nbytes: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.buffer, self.offset, self.nbytes, self.shape, self.dtype = buffer, offset, nbytes, shape, dtype
        self.handle = buffer.handle
        self.packed = b""  # the block as a result for the C library: _direct.py
        self.lent: list[Children] = []
        self.show()

    def show(self) -> None:
        """Make a tensor over the memory, with a fresh storage."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        # An ordinary tensor, whatever modes the first caller is in.
        with torch.inference_mode(False), torch._C._DisableFuncTorch():
            view = self.buffer.view(self.offset, max(1, nbytes), _Hold(self))
            self.tensor = view[:nbytes].view(self.dtype).view(self.shape).data
        del view
        self.held = self.tensor.untyped_storage()
        self.storage = self.held._cdata
        self.alone = _variables(self.held)  # the count when the block is free
        self.unseen = _references(self.storage)  # the same
        # -1: the storage has other memory now, or children share it: the block needs a fresh storage before it is free.
        self.bare = -1 if self.lent else self.unseen

    def free(self) -> bool:
        return _references(self.storage) == self.bare and _variables(self.held) == self.alone

    def end(self) -> None:
        """Ends the block: its memory is reused. (_direct.py may still hold the block.)"""
        del self.tensor, self.held, self.buffer

    def forsaken(self) -> bool:
        """Whether its storage was given other memory, or to children, and has no user any more."""
        if self.bare >= 0 or _references(self.storage) != self.unseen or _variables(self.held) != self.alone:
            return False
        return not self.is_lent()

    def is_lent(self) -> bool:
        self.lent = [children for children in self.lent if children.live()]
        return bool(self.lent)

    def lend(self, children: Children) -> None:
        """Children share the block, if it is in use here."""
        if self.lent:
            self.is_lent()  # drops children that have ended
        if not self.free() and not self.forsaken() and children not in self.lent:
            self.lent.append(children)
            self.bare = -1


class _Hold:
    """Held by a block's storage while the storage has the block's memory."""

    __slots__ = ("block", "buffer")

    def __init__(self, block: Block) -> None:
        self.block, self.buffer = weakref.ref(block), block.buffer

    def __del__(self) -> None:
        block = self.block()
        if block is not None:
            block.bare = -1


class Pool:
    """Blocks of the buffers that `allocate` makes as they are needed, up to `limit` bytes (None: as much as the daemon gives).
    `what` and `remedy` are for the error when there are no more.

    The first buffer is small, and each is as large as all before, up to MOST_CHUNK: a communicator that is hardly used takes
    little, and one with many results few buffers."""

    def __init__(self, allocate: Callable[[int], Buffer], limit: int | None, what: str, remedy: str) -> None:
        self._allocate, self.limit, self._what, self._remedy = allocate, limit, what, remedy
        self._lock = threading.RLock()  # reentrant: the garbage collector may call back
        # Blocks, by (shape, dtype, stream). Such as have been found to be lent are together, out of the way of those that look
        # for a free one.
        self._lent: deque[Block] = deque()
        self._ready: dict[tuple, deque[Block]] = {((), None, 0): self._lent}
        self._blocks: set[Block] = set()  # all blocks
        self._spaces: list[Space] = []  # free space: parts of buffers that are in no block
        self.nbytes = 0  # bytes of all buffers
        _pools.add(self)

    def add(self, nbytes: int) -> None:
        """Add a buffer now, beyond the limit."""
        nbytes = _aligned(nbytes)
        with self._lock:
            self._allocated(nbytes)
            if self.limit is not None:
                self.limit += nbytes

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> tuple[torch.Tensor, int, int]:
        """A tensor with undefined elements and its place: (tensor, fcc_buffer *, offset)."""
        try:
            blocks = self._ready[shape, dtype, stream]
            block = blocks.popleft()  # taken out, so that no other thread looks at it
        except (KeyError, IndexError):  # no block of this kind, or none free
            return self._take_new(shape, dtype, stream)
        if _references(block.storage) == block.bare and _variables(block.held) == block.alone:
            tensor = block.tensor.data
            blocks.append(block)
            return tensor, block.handle, block.offset
        blocks.append(block)
        return self._take_later(blocks) or self._take_new(shape, dtype, stream)

    def ready(self, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> deque[Block]:
        """All blocks of that kind, always the same object."""
        with self._lock:
            return self._ready.setdefault((shape, dtype, stream), deque())

    def _take_later(self, blocks: deque[Block]) -> tuple[torch.Tensor, int, int] | None:
        """The first block was not free: looks at the others, and whether one needs a fresh storage."""
        for _ in range(len(blocks)):
            try:
                block = blocks.popleft()
            except IndexError:
                return None
            if block.lent:
                self._lent.append(block)
                continue
            if block.forsaken():
                block.show()
            tensor = block.tensor.data if block.free() else None
            blocks.append(block)
            if tensor is not None:
                return tensor, block.handle, block.offset
        return None

    def _take_new(self, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> tuple[torch.Tensor, int, int]:
        nbytes = _aligned(max(1, math.prod(shape) * dtype.itemsize))
        with self._lock:
            block = Block(*self._place(nbytes, stream), nbytes, shape, dtype)
            self._blocks.add(block)
            tensor = block.tensor.data
            self._ready.setdefault((shape, dtype, stream), deque()).append(block)
            return tensor, block.handle, block.offset

    def _place(self, nbytes: int, stream: int) -> tuple[Buffer, int]:
        """Find space in the cheapest way: first the stream's own, which needs no wait; then a new buffer, which needs no wait for
        others. OutOfMemoryError."""
        place = self._cut(nbytes, stream) or self._reclaim(nbytes, stream, False)
        refused = None
        if place is None:
            place, refused = self._grow(nbytes, stream)
        if place is None:
            place = self._reclaim(nbytes, stream, True)
        if place is None:
            gc.collect()
            place = self._reclaim(nbytes, stream, True)
        if place is None and self._trim():
            place, refused = self._grow(nbytes, stream)
        if place is None and refused is not None:
            raise OutOfMemoryError(f"{self._what}: {refused.reason}", code=refused.code, remedy=refused.remedy)
        if place is None:
            raise OutOfMemoryError(f"{self._what}: {nbytes} bytes do not fit: the limit is {self.limit} bytes, {self._used()} "
                                   f"of {self.nbytes} bytes are used by tensors that live{self._used_by_children()}, the rest "
                                   "is in smaller pieces",
                                   code=12, remedy=self._remedy)
        return place

    def _cut(self, nbytes: int, stream: int) -> tuple[Buffer, int] | None:
        for i, (buffer, begin, end, last) in enumerate(self._spaces):
            if end - begin >= nbytes and last in (None, stream):
                if end - begin == nbytes:
                    del self._spaces[i]
                else:
                    self._spaces[i] = (buffer, begin + nbytes, end, last)
                return buffer, begin
        return None

    def _grow(self, nbytes: int, stream: int) -> tuple[tuple[Buffer, int] | None, OutOfMemoryError | None]:
        """Space in a new buffer, or the error why the daemon has none."""
        refused = None
        left = nbytes if self.limit is None else self.limit - self.nbytes
        if left < nbytes:
            return None, None
        chunk = max(nbytes, min(MOST_CHUNK, max(LEAST_CHUNK, self.nbytes)))
        for size in dict.fromkeys((chunk if self.limit is None else min(chunk, left), nbytes)):
            try:
                self._allocated(size)
                return self._cut(nbytes, stream), None
            except OutOfMemoryError as e:
                refused = e
        return None, refused

    def _allocated(self, nbytes: int) -> None:
        buffer = self._allocate(nbytes)
        self._spaces.append((buffer, 0, nbytes, None))
        self.nbytes += nbytes

    def _reclaim(self, nbytes: int, stream: int, wait: bool) -> tuple[Buffer, int] | None:
        """Reclaims the stream's free blocks, and joins adjacent space. wait: all streams' blocks, after their work is done."""
        freed = []
        for (_, _, last), blocks in list(self._ready.items()):  # the queues stay, even empty: another thread may hold one
            for _ in range(len(blocks) if wait or last == stream else 0):
                try:
                    block = blocks.popleft()
                except IndexError:  # another thread has taken it
                    break
                if block.free() or block.forsaken():
                    self._blocks.discard(block)
                    freed.append((block.buffer, block.offset, block.offset + block.nbytes, last))
                    block.end()
                else:
                    blocks.append(block)
        spaces = self._spaces + freed
        if wait and spaces and spaces[0][0].member.on_gpu:
            torch.cuda.synchronize(spaces[0][0].member.device)
        if wait:
            spaces = [(buffer, begin, end, None) for buffer, begin, end, _ in spaces]
        self._spaces = _joined(spaces)
        return self._cut(nbytes, stream)

    def _trim(self) -> bool:
        """Give unused buffers back. Returns whether there were any."""
        idle = [space for space in self._spaces if space[1] == 0 and space[2] == space[0].nbytes]
        self._spaces = [space for space in self._spaces if space not in idle]
        self.nbytes -= sum(space[2] for space in idle)
        return bool(idle)

    def trim(self) -> bool:
        """Reclaims all free blocks and gives unused buffers back to the daemon. Returns whether there were any."""
        with self._lock:
            self._reclaim(1 << 62, 0, True)
            return self._trim()

    def _used(self) -> int:
        return sum(block.nbytes for blocks in self._ready.values() for block in list(blocks) if not block.free())

    def _used_by_children(self) -> str:
        nbytes = sum(block.nbytes for block in list(self._blocks) if block.lent and block.is_lent())
        return f", {nbytes} of them by such as forked children have" if nbytes else ""

    def is_used(self) -> bool:
        return bool(self._blocks)

    def lend(self, children: Children) -> None:
        """Children are being forked: they share the blocks in use. (On a GPU they share nothing: no driver survives a fork.)"""
        for block in list(self._blocks):
            try:
                if not block.buffer.member.on_gpu:
                    block.lend(children)
            except AttributeError:  # another thread has ended the block meanwhile
                continue


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _lend(children: Children) -> None:
    for pool in list(_pools):
        pool.lend(children)


lend_to_children(lambda: any(pool.is_used() for pool in list(_pools)), _lend)


def _joined(spaces: list[Space]) -> list[Space]:
    found: list[Space] = []
    for buffer, begin, end, last in sorted(spaces, key=lambda space: (space[0].address, space[1])):
        before = found[-1] if found else None
        if before and before[0] is buffer and before[2] == begin and (None in (before[3], last) or before[3] == last):
            found[-1] = (buffer, before[1], end, before[3] if last is None else last)
        else:
            found.append((buffer, begin, end, last))
    return found


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
