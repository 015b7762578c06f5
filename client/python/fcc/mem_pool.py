# SPDX-License-Identifier: MIT
"""Ordinary allocations of torch from the daemon's memory."""
from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from . import communicator
from ._connection import Member
from ._library import library
from .communicator import Communicator
from .memory import empty, is_daemon_memory

_EMPTY = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default, torch.ops.aten.empty_like.default,
          torch.ops.aten.new_empty.default}


@contextlib.contextmanager
def mem_pool(comm: Communicator | None = None) -> Iterator[None]:
    """A context in which tensors that torch allocates on the communicator's device lie in the daemon's memory, so that operators use them
    without a copy. Put it around the code that makes a model:

        with fcc.mem_pool():
            model = Model().to(comm.device)

    On GPUs it is a torch.cuda.MemPool over the daemon's memory (of this thread, as torch.cuda.use_mem_pool()). It serves every allocation,
    activations too, at the speed of torch's own allocator.

    On the cpu torch has no pools, and its allocator cannot be replaced without a compiler. So a dispatch mode serves factory functions
    (empty, and what uses it: zeros, nn.Linear, ...) from the daemon's memory. What other operators return in fresh memory it copies there
    once. That costs some microseconds for each operator: fine for making and loading models, but not for running them.

    comm: None: the default communicator. Memory allocated in the context stays valid after the communicator is closed.
    """
    comm = communicator.chosen(comm, "mem_pool")
    if comm.member.on_gpu:
        pool = _gpu_pool(comm)
        with torch.cuda.use_mem_pool(pool, device=comm.device):
            yield
    else:
        with _FromDaemon(comm):
            yield


class _FromDaemon(TorchDispatchMode):
    """On the cpu: moves operators' results that would have memory of their own into the daemon's memory."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__()
        self.comm = comm

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.comm.name in communicator._parents:  # a child forked within the context: its tensors are its own
            return func(*args, **kwargs)
        if func in _EMPTY and _asks_for_cpu(args, kwargs):  # the tensor is empty, so nothing is copied
            return self._like(func(*args, **{**kwargs, "device": "meta"}))
        # (torch.tensor() allocates unseen, and passes its result to lift_fresh first)
        given = set() if func is torch.ops.aten.lift_fresh.default else {
            tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if _is_dense(tensor)}
        return tree_map(lambda result: self._moved(result, given), func(*args, **kwargs))

    def _moved(self, result: Any, given: set[int]) -> Any:
        if not _is_dense(result) or result.untyped_storage()._cdata in given or is_daemon_memory(result, self.comm):
            return result
        return self._like(result).copy_(result)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the same shape, strides and dtype."""
        count = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
        return empty(count, dtype=tensor.dtype, comm=self.comm).as_strided(tensor.shape, tensor.stride())


def _is_dense(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.layout == torch.strided
            and not value.is_quantized)


def _asks_for_cpu(args: tuple, kwargs: dict[str, Any]) -> bool:
    device = kwargs.get("device") or (args[0].device if isinstance(args[0], torch.Tensor) else "cpu")
    return torch.device(device).type == "cpu" and kwargs.get("layout") in (None, torch.strided) and not kwargs.get("pin_memory")


# ---- GPUs ----

_allocators: list[Any] = []  # torch's allocators, which must outlive their memory
_lingering: list[Member] = []  # members whose memory torch still uses


def _gpu_pool(comm: Communicator) -> Any:
    if comm._pool is None:
        library().check(library().pool_open(comm.member.handle, comm.device.index), comm.rank)
        allocator = torch.cuda.memory.CUDAPluggableAllocator(library().path, "fcc_pool_alloc", "fcc_pool_free")
        _allocators.append(allocator)
        with torch.cuda.device(comm.device):  # a pool belongs to the current device
            comm._pool = torch.cuda.MemPool(allocator.allocator())
    return comm._pool


def gpu_pool_close(comm: Communicator) -> None:
    """The communicator is being closed: torch gives unused memory back. Memory in use keeps the communicator's membership."""
    if comm._pool is None:
        return
    comm._pool = None
    gc.collect()
    torch.cuda.empty_cache()
    if library().pool_close(comm.device.index) < 0:
        _lingering.append(comm._member)
