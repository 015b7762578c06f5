# SPDX-License-Identifier: MIT
"""A communicator's copies of tensors that lie outside of the daemon's memory."""
from __future__ import annotations

import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from . import errors
from .errors import CopyWarning

if TYPE_CHECKING:
    from .communicator import Communicator

_HOW_ACTIVATION = ("Make it in the daemon's memory: fcc.empty(), or what fcc.mem_pool() surrounds.")
_HOW_WEIGHT = ("Move it there: fcc.to_daemon(module). The copy is kept and used again until the tensor changes, as far as "
               "torch counts its changes: those through .data, numpy or other aliases are not seen; call fcc.forget_copies() "
               "after them.")


_OURS = tuple(os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (errors, torch))


def _level_of_caller() -> int:
    """How many frames above warn() the first one is that is neither ours nor torch's."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back and os.path.abspath(frame.f_code.co_filename).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


class _Copy:
    __slots__ = ("alive", "handle", "offset", "tensor", "version")

    def __init__(self, alive: StorageWeakRef, version: int, placed: tuple[torch.Tensor, int, int]) -> None:
        self.alive, self.version = alive, version
        self.tensor, self.handle, self.offset = placed


class Copies:
    """A communicator's copies of tensors that lie outside of the daemon's memory, and what has been warned of."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kept: dict[tuple, _Copy] = {}
        self.warned: set[tuple[str, str]] = set()

    def warn(self, comm: Communicator, op: str, name: str, tensor: torch.Tensor, weight: bool) -> None:
        if (op, name) in self.warned:
            return
        self.warned.add((op, name))
        size = "x".join(map(str, tensor.shape))
        warnings.warn(f"rank {comm.rank}: {op}: {name} ({size}, {str(tensor.dtype).removeprefix('torch.')}) does not lie dense "
                      f"in the daemon's memory and is copied there{'' if weight else ' in every call'}. "
                      f"{_HOW_WEIGHT if weight else _HOW_ACTIVATION}", CopyWarning, stacklevel=_level_of_caller())

    def once(self, comm: Communicator, tensor: torch.Tensor, stream: int) -> tuple[torch.Tensor, int, int]:
        """The copy of a tensor that is expected to come again: made when it is new or has changed."""
        storage = tensor.untyped_storage()
        shape = tuple(tensor.shape)
        key = (storage._cdata, tensor.storage_offset(), shape, tensor.stride(), tensor.dtype, stream)
        with self.lock:
            kept = self.kept.get(key)
            if kept is None or kept.alive.expired():
                for old in [k for k, copy in self.kept.items() if copy.alive.expired()]:
                    del self.kept[old]
                # the weak reference keeps the address of the storage from being used again
                kept = _Copy(StorageWeakRef(storage), tensor._version - 1, comm._local.take(shape, tensor.dtype, stream))
                self.kept[key] = kept
            if kept.version != tensor._version:
                kept.version = tensor._version
                kept.tensor.copy_(tensor.detach())
            return kept.tensor, kept.handle, kept.offset
