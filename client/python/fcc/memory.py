# SPDX-License-Identifier: MIT
"""Tensors over the daemon's memory."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from . import communicator
from ._capture import captures_elsewhere, elsewhere_error
from ._dispatch import has_tangent, is_wrapped
from ._connection import Buffer
from ._library import LOCAL, SYMMETRIC
from ._communicator.refusals import refuse
from .communicator import Communicator
from .errors import ArgumentError, OutOfMemoryError

OWN_BUFFER_BYTES = 1 << 20  # tensors from this size on have a buffer of their own, which is freed with them
DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3, torch.int32: 4, torch.int64: 5, torch.float8_e4m3fn: 9}

T = TypeVar("T", torch.Tensor, torch.nn.Module)


def empty(*shape: int | Sequence[int], dtype: torch.dtype | None = None, device: str | torch.device | None = None,
          requires_grad: bool = False, symmetric: bool = False, comm: Communicator | None = None) -> torch.Tensor:
    """A dense tensor in the daemon's memory, on the communicator's device: operators use it without a copy.

    It is an ordinary tensor: its views, slices and parameters lie in the daemon's memory, too. The memory is freed with the last reference
    to its storage. On a GPU, freeing waits for the GPU, as cudaFree does. Small tensors (less than 1 MiB) share buffers: a program that
    uses one on another stream than the one it was made on must keep a reference until that stream has finished (Tensor.record_stream() has
    no effect on memory that is not from torch's allocator). A tensor made while a CUDA graph is captured stays until the communicator is
    closed, because the graph uses it.

    Args:
        shape: any, also with 0 elements
        dtype: any; None: torch's default. Operators take float32, float16 and bfloat16, and indices of int32 and int64; products with an
            epilogue float8_e4m3fn; plain collectives more (fcc.collectives).
        device: None, or the communicator's device: for readers of the program
        requires_grad: as torch.empty()'s
        symmetric: memory that the other ranks' operators can store into. Collective: all ranks call it in the same order, also among their
            operators, with the same number of bytes.
        comm: None: the default communicator

    Raises: ArgumentError, OutOfMemoryError, and for symmetric memory TimeLimitError and AbortedError.
    """
    comm = communicator.chosen(comm, "empty")
    try:
        sizes, dtype, nbytes = _wanted(comm, shape, dtype, device)
    except Exception as e:
        raise (refuse(comm, "fcc_buffer_alloc", e) if symmetric else e) from None
    if symmetric or nbytes >= OWN_BUFFER_BYTES:
        buffer = _buffer(comm, max(1, nbytes), symmetric)
        made = buffer.view(0, max(1, nbytes))[:nbytes].view(dtype).view(sizes)
    else:
        _ = comm.member
        made = comm._local.take(sizes, dtype, raw_stream_of(comm))[0]
    if torch._C._are_functorch_transforms_active():
        made = torch.ops.aten.alias(made)  # a tensor of the transformation, as torch.empty() returns there, so that it may be written to
    if comm._member.on_gpu and torch.cuda.is_current_stream_capturing():
        comm._captured.append(made)  # a graph uses the memory at each replay, also after the tensor is gone
    return made.requires_grad_() if requires_grad else made


def _wanted(comm: Communicator, shape: tuple, dtype: torch.dtype | None,
            device: str | torch.device | None) -> tuple[tuple[int, ...], torch.dtype, int]:
    """Checks empty()'s arguments: sizes, dtype and number of bytes."""
    given: Any = shape[0] if len(shape) == 1 and isinstance(shape[0], Iterable) and not hasattr(shape[0], "__index__") else shape
    sizes: tuple[Any, ...] = tuple(n.__index__() if hasattr(n, "__index__") else n for n in given)  # accepts numpy's numbers, too
    if any(not isinstance(n, int) or n < 0 for n in sizes):
        raise ArgumentError(f"shape: {sizes}: allowed are integers, 0 and more", rank=comm.rank)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"dtype: {dtype!r:.40}: allowed is a torch.dtype", rank=comm.rank)
    try:
        wanted = comm.device if device is None else torch.device(device)
    except (RuntimeError, TypeError):
        raise ArgumentError(f"device: {device!r:.40}: the communicator's memory is on {comm.device}", rank=comm.rank) from None
    if wanted.type != comm.device.type or wanted.index not in (None, comm.device.index):
        raise ArgumentError(f"device: {wanted}: the communicator's memory is on {comm.device}", rank=comm.rank)
    return sizes, dtype, math.prod(sizes) * dtype.itemsize


def _buffer(comm: Communicator, nbytes: int, symmetric: bool) -> Buffer:
    if symmetric:
        return Buffer(comm.member, nbytes, SYMMETRIC)
    try:
        return Buffer(comm.member, nbytes, LOCAL)
    except OutOfMemoryError:
        if not (comm._local.trim() | comm._heap.trim()):
            raise
    return Buffer(comm.member, nbytes, LOCAL)


def zeros(*shape: int | Sequence[int], dtype: torch.dtype | None = None, device: str | torch.device | None = None,
          requires_grad: bool = False, symmetric: bool = False, comm: Communicator | None = None) -> torch.Tensor:
    """Like empty(), with all elements 0. They are 0 before any other rank's store: another rank's call may return earlier and the rank
    may store at once."""
    tensor = empty(*shape, dtype=dtype, device=device, symmetric=symmetric, comm=communicator.chosen(comm, "zeros"))
    if not symmetric:  # symmetric buffers are zeroed when allocated; other ranks may have stored since
        tensor.zero_()
    return tensor.requires_grad_() if requires_grad else tensor


def raw_stream_of(comm: Communicator) -> int:
    """The current stream's handle on the communicator's GPU; 0 on the cpu."""
    return torch._C._cuda_getCurrentRawStream(comm.device.index) if comm._member.on_gpu else 0


def stream_of(comm: Communicator) -> int:
    """The same, for an operator. Raises CaptureError if a stream of another GPU is being captured."""
    if comm._member.on_gpu and captures_elsewhere(comm.device.index):
        raise elsewhere_error(f"rank {comm.rank}", comm.device)
    return raw_stream_of(comm)


def is_daemon_memory(tensor: torch.Tensor, comm: Communicator | None = None) -> bool:
    """Does the tensor lie in the daemon's memory, so that operators of the communicator use it without a copy? (All communicators of one
    connection share that memory.)"""
    comm = communicator.chosen(comm, "is_daemon_memory")
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"is_daemon_memory: {type(tensor).__name__}: allowed is a torch.Tensor", rank=comm.rank)
    while is_wrapped(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.numel() == 0 or comm.member.connection.find(tensor.data_ptr()) is not None


def to_daemon(what: T, comm: Communicator | None = None) -> T:
    """Move a tensor, or a module's parameters and buffers, into the daemon's memory on the communicator's device.

    A module is changed in place and returned. Each parameter stays the same object with other storage, so optimizers that hold it keep
    working. A tensor is copied, and the copy is returned; a tensor that lies there already is returned as it is. Strides become dense (of
    the weights of layers with sequence_parallel=True, whose columns lie beside each other, those of the transpose). For
    autograd the copy is an operation if the tensor was computed by autograd or has a tangent. The copy of a leaf is a leaf, except in
    torch.func's transformations.

    Raises: ArgumentError for a tensor that is not dense (sparse, quantized, ...), for an object that is neither tensor nor module, and for
        a module within torch.vmap or a transformation of torch.func; and what empty() does.
    """
    comm = communicator.chosen(comm, "to_daemon")
    if isinstance(what, torch.Tensor):
        return _moved(what, comm)
    if not isinstance(what, torch.nn.Module):
        raise ArgumentError(f"to_daemon: {type(what).__name__}: allowed are a torch.Tensor and a torch.nn.Module", rank=comm.rank)
    if torch._C._are_functorch_transforms_active():
        raise ArgumentError("to_daemon: a module: torch allows no change of its tensors within torch.vmap and torch.func's transformations",
                            rank=comm.rank, remedy="Move it before.")
    done: dict[int, torch.Tensor] = {}  # tied parameters stay tied
    with torch.no_grad():
        module: torch.nn.Module
        for module in what.modules():
            columns = getattr(module, "fcc_columns", ())  # names of parameters whose columns are to lie beside each other
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                if id(tensor) not in done:
                    done[id(tensor)] = tensor
                    tensor.data = _of_columns(tensor.data, comm) if name in columns else _moved(tensor.data, comm)
    return what


def _of_columns(tensor: torch.Tensor, comm: Communicator) -> torch.Tensor:
    transposed = tensor.t()
    return _moved(transposed if transposed.is_contiguous() else transposed.contiguous(), comm).t()


def _moved(tensor: torch.Tensor, comm: Communicator) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ArgumentError(f"to_daemon: {tensor.dtype}, {tensor.layout} on {tensor.device}: allowed are dense tensors",
                            rank=comm.rank)
    if torch._C._are_functorch_transforms_active():  # where a tensor may have no address, and whatever is done is a step
        return empty(tuple(tensor.shape), dtype=tensor.dtype, comm=comm).copy_(tensor)
    if tensor.device == comm.device and is_daemon_memory(tensor, comm):
        return tensor
    made = empty(tuple(tensor.shape), dtype=tensor.dtype, comm=comm)
    if has_tangent(tensor) or tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled():
        return made.copy_(tensor)
    return made.copy_(tensor.detach()).requires_grad_(tensor.requires_grad)
