# SPDX-License-Identifier: MIT
"""Where results and copies lie: pieces of large buffers, given out again and again.

A communicator's results lie in symmetric memory, and allocating that is a collective call, which an operator must not make:
when one rank needs memory the others may not. So each communicator has a heap from its beginning, of the same size on all
ranks, and each rank gives out pieces of it as it needs them: an operator does not ask results to lie at the same place on all
ranks.

A block is free again when nobody but the pool can see its memory. No tensor needs to be told of its end, because two numbers
say so: how many tensors, and what else torch makes of tensors (arrays of numpy, DLPack, what autograd saved), refer to the
block's storage; and how many of Python's variables refer to the object that Python has for the storage (untyped_storage()),
which torch counts as one however many they are.

A storage can be given other memory: share_memory_() and queues of torch.multiprocessing move a tensor's elements to memory that
other processes map. A block whose storage has gone elsewhere like that is given a storage anew when nobody has the old one.

On GPUs a block belongs to the stream that it was given out for, as with torch's own allocator: what is enqueued there later
comes after all that used it.
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

from ._connection import Buffer
from .errors import OutOfMemoryError

ALIGNMENT = 512  # bytes

_references = torch._C._storage_Use_Count  # of a storage, by its address
_variables = sys.getrefcount


class Block:
    """A piece of a buffer, with a tensor that shows it."""

    __slots__ = ("__weakref__", "alone", "bare", "buffer", "dtype", "handle", "held", "nbytes", "offset", "packed", "shape",
                 "storage", "tensor", "unseen")

    def __init__(self, buffer: Buffer, offset: int, nbytes: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.buffer, self.offset, self.nbytes, self.shape, self.dtype = buffer, offset, nbytes, shape, dtype
        self.handle = buffer.handle
        self.packed = b""  # as a result, for the C library: _direct.py
        self.show()

    def show(self) -> None:
        """Make a tensor of the memory, with a storage that nobody has."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        with torch.inference_mode(False):  # whoever is given the memory first, it is an ordinary tensor
            view = self.buffer.view(self.offset, max(1, nbytes), _Hold(self))
            self.tensor = view[:nbytes].view(self.dtype).view(self.shape).data
        del view
        self.held = self.tensor.untyped_storage()
        self.storage = self.held._cdata
        self.alone = _variables(self.held)  # when nobody has it
        self.unseen = _references(self.storage)  # the same
        self.bare = self.unseen  # -1: the storage has other memory now, so the block is not free before it is shown again

    def free(self) -> bool:
        return _references(self.storage) == self.bare and _variables(self.held) == self.alone

    def forsaken(self) -> bool:
        """Has its storage gone elsewhere, and does nobody have it any more?"""
        return self.bare < 0 and _references(self.storage) == self.unseen and _variables(self.held) == self.alone


class _Hold:
    """What a block's storage holds, as long as it has the block's memory."""

    __slots__ = ("block", "buffer")

    def __init__(self, block: Block) -> None:
        self.block, self.buffer = weakref.ref(block), block.buffer

    def __del__(self) -> None:
        block = self.block()
        if block is not None:
            block.bare = -1


class Pool:
    """Blocks of the buffers that `allocate` makes. With `grow` it makes them as needed; else there is only what add()
    brings."""

    def __init__(self, allocate: Callable[[int], Buffer], grow: int, what: str, remedy: str) -> None:
        self._allocate, self._grow, self._what, self._remedy = allocate, grow, what, remedy
        self._lock = threading.RLock()  # the garbage collector may come back in here
        self._ready: dict[tuple, deque[Block]] = {}  # all blocks, by (shape, dtype, stream)
        self._spaces: list[tuple[Buffer, int, int]] = []  # what is in no block: (buffer, begin, end)
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        """One more buffer. Collective if the pool's buffers are symmetric."""
        nbytes = _aligned(nbytes)
        buffer = self._allocate(nbytes)
        with self._lock:
            self._spaces.append((buffer, 0, nbytes))
            self.nbytes += nbytes

    def take(self, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> tuple[torch.Tensor, int, int]:
        """A tensor whose elements are not set, and where it lies: (tensor, fcc_buffer *, offset)."""
        try:
            blocks = self._ready[shape, dtype, stream]
            block = blocks.popleft()  # taken out, so that no other thread looks at it
        except (KeyError, IndexError):  # there are none, or none now
            return self._take_new(shape, dtype, stream)
        if _references(block.storage) == block.bare and _variables(block.held) == block.alone:
            tensor = block.tensor.data
            blocks.append(block)
            return tensor, block.handle, block.offset
        blocks.append(block)
        return self._take_later(blocks) or self._take_new(shape, dtype, stream)

    def ready(self, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> deque[Block]:
        """All blocks of that kind: always the same object."""
        with self._lock:
            return self._ready.setdefault((shape, dtype, stream), deque())

    @staticmethod
    def _take_later(blocks: deque[Block]) -> tuple[torch.Tensor, int, int] | None:
        """The first one was not free: look at the others, and whether one is to be shown again."""
        for _ in range(len(blocks)):
            try:
                block = blocks.popleft()
            except IndexError:
                return None
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
            place = self._cut(nbytes) or self._reclaim(nbytes)
            if place is None and self._grow:
                self.add(max(nbytes, self._grow))
                place = self._cut(nbytes)
            if place is None:
                gc.collect()
                place = self._reclaim(nbytes)
            if place is None:
                raise OutOfMemoryError(f"{self._what}: {nbytes} bytes do not fit: {self._used()} of {self.nbytes} bytes are "
                                       "used by tensors that live, the rest is in smaller pieces", code=12, remedy=self._remedy)
            block = Block(*place, nbytes, shape, dtype)
            tensor = block.tensor.data
            self._ready.setdefault((shape, dtype, stream), deque()).append(block)
            return tensor, block.handle, block.offset

    def _cut(self, nbytes: int) -> tuple[Buffer, int] | None:
        for i, (buffer, begin, end) in enumerate(self._spaces):
            if end - begin >= nbytes:
                if end - begin == nbytes:
                    del self._spaces[i]
                else:
                    self._spaces[i] = (buffer, begin + nbytes, end)
                return buffer, begin
        return None

    def _reclaim(self, nbytes: int) -> tuple[Buffer, int] | None:
        """Take back all blocks that are free, and join what lies side by side."""
        freed = []
        for blocks in list(self._ready.values()):  # which stay there, also empty: another thread may hold one
            for _ in range(len(blocks)):
                block = blocks.popleft()
                if block.free() or block.forsaken():
                    freed.append(block)
                else:
                    blocks.append(block)
        if not freed:
            return None
        if freed[0].buffer.member.on_gpu:  # they go to other streams
            torch.cuda.synchronize(freed[0].buffer.member.device)
        spaces = self._spaces + [(block.buffer, block.offset, block.offset + block.nbytes) for block in freed]
        self._spaces = []
        for buffer, begin, end in sorted(spaces, key=lambda space: (space[0].address, space[1])):
            if self._spaces and self._spaces[-1][0] is buffer and self._spaces[-1][2] == begin:
                self._spaces[-1] = (buffer, self._spaces[-1][1], end)
            else:
                self._spaces.append((buffer, begin, end))
        return self._cut(nbytes)

    def _used(self) -> int:
        return sum(block.nbytes for blocks in self._ready.values() for block in blocks if not block.free())


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
