# SPDX-License-Identifier: MIT
"""Places in the daemon's memory for an operator's arguments. Tensors elsewhere are copied there in every call: they may change in ways
that torch does not count (fused optimizers, .data, aliases in numpy, other processes), so an earlier copy may be outdated."""
from __future__ import annotations

import warnings

import torch

from ._library import ADDRESS
from .communicator import Communicator
from .errors import ArgumentError, CaptureError
from .memory import DTYPES

NO_ADDRESS = 4096  # stands for the address of an empty tensor, which has none: nothing is read or written there


def _check(comm: Communicator, op: str, name: str, tensor: torch.Tensor) -> int:
    """Returns the dtype's number."""
    number = DTYPES.get(tensor.dtype)
    if number is None or tensor.layout != torch.strided:
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: {tensor.dtype}, {tensor.layout}: allowed are dense float32, "
                            f"float16 and bfloat16, factors of float8_e4m3fn, and indices of int32 and int64")
    if tensor.ndim < 1 or tensor.ndim > 4:
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: {tensor.ndim} dimensions: allowed are 1 to 4")
    if tensor.device != comm.device:
        raise ArgumentError(f"rank {comm.rank}: {op}: {name}: it is on {tensor.device}: allowed is the communicator's device, "
                            f"{comm.device}")
    return number


def place_anywhere(comm: Communicator, op: str, name: str, tensor: torch.Tensor) -> tuple[tuple, torch.Tensor]:
    """place() of an operator that this process launches (Member.launches()): the tensor may lie anywhere on the GPU, and is copied only if
    its rows are not dense. The caller holds it until the operator is enqueued: torch's allocator gives memory to what follows on the
    stream."""
    number, padding = _check(comm, op, name, tensor), (0,) * (4 - tensor.ndim)
    if tensor.is_neg() or tensor.numel() and not is_plain(tensor):
        tensor = tensor.detach().resolve_neg().contiguous()
    stride = (0,) * tensor.ndim if tensor.numel() == 0 else (*tensor.stride()[:-1], 1)
    return (ADDRESS, tensor.data_ptr() or NO_ADDRESS, number, tensor.ndim, *tensor.shape, *padding, *stride, *padding), tensor


_ROWS_APART = frozenset((("all_gather_gemm", "a"),))  # whose rows the C library wants to lie apart


def _rows_overlap(tensor: torch.Tensor) -> bool:
    """As those of a tensor that was expanded."""
    return tensor.ndim > 1 and tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[-1]


def place(comm: Communicator, op: str, name: str, tensor: torch.Tensor, stream: int, *, weight: bool = False,
          silent: bool = False) -> tuple[tuple, torch.Tensor]:
    """(the fields of struct fcc_tensor, the tensor at that place). The caller holds the tensor until the operator is finished."""
    number = _check(comm, op, name, tensor)
    shape, padding = tuple(tensor.shape), (0,) * (4 - tensor.ndim)
    if tensor.numel() == 0:  # an empty tensor has no address; any address will do
        held, handle, offset = comm._local.take((1,), tensor.dtype, stream)
        return (handle, offset, number, tensor.ndim, *shape, *padding, 0, 0, 0, 0), held
    found = comm._member.connection.find(tensor.data_ptr())
    if found and is_plain(tensor) and not ((op, name) in _ROWS_APART and _rows_overlap(tensor)):
        stride = tensor.stride()
        if shape[-1] == 1:
            stride = (*stride[:-1], 1)
        return (*found, number, tensor.ndim, *shape, *padding, *stride, *padding), tensor
    if comm._member.on_gpu and torch.cuda.is_current_stream_capturing():  # otherwise each replay of the graph would copy
        raise CaptureError(f"rank {comm.rank}: {op}: {name}: the stream is being captured into a graph: not allowed")
    if not silent:
        comm._copies.warn(comm, op, name, tensor, weight)
    held, handle, offset = comm._local.take(shape, tensor.dtype, stream)
    held.copy_(tensor.detach())
    return (handle, offset, number, tensor.ndim, *shape, *padding, 0, 0, 0, 0), held


def is_there(comm: Communicator, tensor: torch.Tensor) -> bool:
    """Whether operators can read the tensor, and slices of its first dimension, in place."""
    if tensor.device != comm.device or tensor.numel() == 0 or not tensor.is_contiguous():
        return False
    try:
        return comm._member.connection.find(tensor.data_ptr()) is not None
    except RuntimeError:  # the tensor has no address: functorch's, or a fake tensor
        return False


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether an operator can read the tensor in place. Its rows must be dense. (All strides 0 mean "dense" to the library.)"""
    return tensor.stride(-1) == 1 or tensor.shape[-1] == 1 and any(tensor.stride()[:-1])


def forget_copies(comm: Communicator | None = None) -> None:
    """Does nothing: no copy is used in more than one call. For programs written when copies were kept."""
    warnings.warn("fcc.forget_copies(): copies are not kept any more, so it is needed no more", DeprecationWarning, stacklevel=2)
