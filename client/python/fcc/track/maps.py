# SPDX-License-Identifier: MIT
"""Output maps: tensors whose rows are memory of several ranks.

    parts = fcc.map_parts(comm.size, rows, n)                        # part s of each rank is for what rank s sends to it
    out = fcc.output_map([(parts[comm.rank], r) for r in range(comm.size)])   # rows for rank 0, then those for rank 1, ...
    mine = fcc.output_map([(part, comm.rank) for part in parts])     # what this rank gets from all, as one matrix
    torch.matmul(a, b, out=out)                                      # the All-to-All, by torch's own product
    comm.barrier()                                                   # ... or a signal: all ranks have stored theirs
"""
from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .. import communicator
from .._connection import Buffer, Member, bytes_at
from .._library import SYMMETRIC
from .._place import INT32_MOST, whole
from .._communicator.refusals import refuse
from ..communicator import Communicator
from ..errors import ArgumentError
from ._functions import Piece, functions, memory_of, number, place


def _check_rows(tensor: Any, name: str, comm: Communicator) -> None:
    if tensor.dim() != 2 or not tensor.numel() or tensor.stride(1) != 1 or tensor.stride(0) < tensor.shape[1]:
        raise ArgumentError(f"output_map: {name}: {tuple(tensor.shape)}, strides {tuple(tensor.stride())}: allowed are rows, each of them dense",
                            rank=comm.rank)


def map_parts(parts: int, rows: int, cols: int, dtype: torch.dtype | None = None, comm: Communicator | None = None) -> tuple[torch.Tensor, ...]:
    """Symmetric matrices [rows, cols], zeroed, that fit into output maps: each begins where a piece may, and their rows lie so far apart that
    a piece ends where the next one may begin (at most 1.1 times as far as they are long). Collective: all ranks call it alike.

    Raises: UnsupportedError: no distance of rows fits, and the text has the smallest one; and what fcc.empty(symmetric=True) does.
    """
    comm = communicator.chosen(comm, "map_parts")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    stride = ctypes.c_uint64()
    try:
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError(f"map_parts: dtype: {dtype!r:.40}: allowed is a torch.dtype", rank=comm.rank)
        if None in (whole(parts, 1), whole(rows, 1), whole(cols, 1)):
            raise ArgumentError(f"map_parts: parts {parts!r:.40}, rows {rows!r:.40}, cols {cols!r:.40}: allowed are 1 to {INT32_MOST}", rank=comm.rank)
        status = functions().fcc_map_stride(comm.member.handle, cols * dtype.itemsize, rows, dtype.itemsize, ctypes.byref(stride))
        if status < 0:
            raise comm.member.error(status)
    except Exception as e:
        raise refuse(comm, "fcc_buffer_alloc", e) from None
    width = stride.value // dtype.itemsize
    made = []
    for _ in range(parts):
        buffer = Buffer(comm.member, rows * stride.value, SYMMETRIC)
        made.append(buffer.view(0, rows * stride.value).view(dtype).view(rows, width)[:, :cols])
    return tuple(made)


def output_map(pieces: Sequence[tuple[torch.Tensor, int]], comm: Communicator | None = None) -> torch.Tensor:
    """A tensor whose rows are memory of several ranks of this node: what any kernel or library stores there lands at its place.

    It is an ordinary tensor: torch.matmul(out=), copy_() and views work as with any other. Nothing says by itself that another rank's rows
    have come: barrier(), a Tracker's rule, or a signal. The ranks' memory stays while the tensor does, also when the communicator is closed.
    On a GPU its end waits for the GPU.

    Args:
        pieces: (tensor, rank) of each: a matrix in this rank's part of symmetric memory, as map_parts() makes it, or rows of it, and the rank
            whose part of that memory is meant (for this rank, any tensor in the daemon's memory). All have the same number of columns, dtype
            and distance of rows. The map has their rows, in this order
        comm: None: the default communicator

    Raises: ArgumentError: the pieces do not fit, or miss the granularity, which the text has; UnsupportedError, UnreachableError (a rank on
        another node: rows go there by a Tracker's rule).
    """
    comm = communicator.chosen(comm, "output_map")
    if not isinstance(pieces, (list, tuple)) or not all(isinstance(piece, (list, tuple)) and len(piece) == 2 for piece in pieces):
        raise ArgumentError(f"output_map: pieces: {pieces!r:.40}: allowed is a list of (tensor, rank)", rank=comm.rank)
    if not pieces:
        raise ArgumentError("output_map: pieces: none: allowed are 1 and more", rank=comm.rank)
    first = pieces[0][0]
    structs, at, rows = (Piece * len(pieces))(), 0, 0
    for i, (tensor, to) in enumerate(pieces):
        rank = number(to, f"output_map: pieces[{i}]: rank", comm, 0, INT32_MOST)
        buffer, offset = place(tensor, f"output_map: pieces[{i}]", comm)
        _check_rows(tensor, f"pieces[{i}]", comm)
        if (tensor.dtype, tensor.shape[1], tensor.stride(0)) != (first.dtype, first.shape[1], first.stride(0)):
            raise ArgumentError(f"output_map: pieces[{i}]: {tensor.dtype}, {tensor.shape[1]} columns, rows {tensor.stride(0)} apart: the first piece has "
                                f"{first.dtype}, {first.shape[1]}, {first.stride(0)}", rank=comm.rank)
        nbytes = tensor.shape[0] * tensor.stride(0) * tensor.element_size()
        if i == len(pieces) - 1:  # behind the last row's elements the buffer may end
            nbytes -= (tensor.stride(0) - tensor.shape[1]) * tensor.element_size()
        structs[i] = Piece(at=at, bytes=nbytes, offset=offset, buffer=buffer, rank=rank)
        at += nbytes
        rows += tensor.shape[0]
    handle = ctypes.c_void_p()
    status = functions().fcc_map_create(comm.member.handle, structs, len(pieces), ctypes.byref(handle))
    if status < 0:
        raise comm.member.error(status)
    whole = _Map(comm.member, handle, at, [memory_of(tensor, comm) for tensor, _ in pieces]).view()
    return whole.view(first.dtype).as_strided((rows, first.shape[1]), (first.stride(0), 1))


class _Map:
    """An fcc_map, which a tensor's storage keeps."""

    def __init__(self, member: Member, handle: ctypes.c_void_p, nbytes: int, memory: list) -> None:
        self.member, self.nbytes, self.memory = member, nbytes, memory
        self.address: int = functions().fcc_map_data(handle)
        weakref.finalize(self, _map_end, os.getpid(), handle).atexit = False

    def view(self) -> torch.Tensor:
        return bytes_at(self.member, self.address, self.nbytes, self)


def _map_end(pid: int, handle: ctypes.c_void_p) -> None:
    if os.getpid() == pid:
        functions().fcc_map_free(handle)
