# SPDX-License-Identifier: MIT
"""Where results and copies lie: pieces of large buffers, given out again and again.

A communicator's results lie in symmetric memory, and allocating that is a collective call, which an operator must not make:
when one rank needs memory the others may not. So each communicator has a heap from its beginning, of the same size on all
ranks, and each rank gives out pieces of it as it needs them: an operator does not ask results to lie at the same place on all
ranks.

A block is free again when nothing but the pool refers to its storage: the number of references says so, and no tensor needs to
be told of its end. On GPUs a block belongs to the stream that it was given out for, as with torch's own allocator: what is
enqueued there later comes after all that used it.
"""
from __future__ import annotations

import gc
import math
import threading
from collections import deque
from collections.abc import Callable

import torch

from ._connection import Buffer
from .errors import OutOfMemoryError

ALIGNMENT = 512  # bytes

_references = torch._C._storage_Use_Count  # of a storage, by its address


class Block:
    """A piece of a buffer, with a tensor that shows it."""

    __slots__ = ("bare", "handle", "nbytes", "offset", "packed", "buffer", "storage", "tensor")

    def __init__(self, buffer: Buffer, offset: int, nbytes: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.buffer, self.offset, self.nbytes = buffer, offset, nbytes
        self.handle = buffer.handle
        self.packed = b""  # as a result, for the C library: _direct.py
        count = math.prod(shape)
        with torch.inference_mode(False):  # what is first needed under inference_mode is given out without it, too
            self.tensor = buffer.view(offset, nbytes)[: count * dtype.itemsize].view(dtype).view(shape).data
        self.storage = self.tensor.untyped_storage()._cdata
        self.bare = _references(self.storage)  # when nobody has it

    def free(self) -> bool:
        return _references(self.storage) == self.bare


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
        if _references(block.storage) == block.bare:
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
        """The first one was not free: look at the others."""
        for _ in range(len(blocks) - 1):
            try:
                block = blocks.popleft()
            except IndexError:
                return None
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
                if block.free():
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
