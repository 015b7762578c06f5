# SPDX-License-Identifier: MIT
"""Puts to ranks on other nodes, triggered by kernels."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING

import torch

from .. import communicator
from .window import functions, memory_of, place

if TYPE_CHECKING:
    from ..communicator import Communicator


class Put(ctypes.Structure):  # struct fcc_put
    _fields_ = [("rank", c_int32), ("rows", c_uint32), ("row_bytes", c_uint64), ("stride", c_uint64), ("from_", c_void_p),
                ("from_offset", c_uint64), ("to", c_void_p), ("to_offset", c_uint64), ("signals", c_void_p),
                ("signal_offset", c_uint64), ("reserved", c_uint32 * 4)]


class Fifo(ctypes.Structure):  # struct fcc_triggers
    _fields_ = [("head", c_uint64), ("tail", c_uint64), ("slots", c_uint64), ("capacity", c_uint64)]


class Triggers:
    """Puts from kernels on cpu devices to ranks on other nodes. (Triggers from GPUs are refused with an error that says so.)

    Args:
        comm: None: the default communicator

    Attributes:
        table: int64 [4] on the communicator's device: the argument `fifo` of trigger()

    Raises: fcc.errors.Error: all ranks are on this node, where a Window has their addresses; or the ranks are on GPUs.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm = communicator.chosen(comm, "Triggers")
        self._functions = functions()
        self._functions.fcc_comm_triggers.restype, self._functions.fcc_put_register.restype = c_int, c_int
        self._functions.fcc_comm_triggers.argtypes = [c_void_p, POINTER(Fifo)]
        self._functions.fcc_put_register.argtypes = [c_void_p, POINTER(Put), POINTER(c_uint32)]
        self._kept: list[tuple] = []  # a put ends with its buffers
        fifo = Fifo()
        self._check(self._functions.fcc_comm_triggers(self._comm.member.handle, ctypes.byref(fifo)))
        self.table = torch.tensor([fifo.head, fifo.tail, fifo.slots, fifo.capacity], dtype=torch.int64,
                                  device=self._comm.device)

    def register(self, rank: int, source: torch.Tensor | None, to: torch.Tensor | None, signals: torch.Tensor | None = None,
                 index: int = 0) -> int:
        """Register a put; returns the number that trigger() takes.

        Args:
            rank: the target: a rank on another node
            source: the data to send, in the daemon's memory: one or two dimensions, the last one dense. It must not change until the target
                has said, by a signal of its own, that it has the data. None: no data, only the signal
            to: where the data goes, given as this rank's view of a symmetric tensor: of source's shape, dtype and strides. The data goes
                into the target's part
            signals: a symmetric int64 tensor. Word `index` of the target's part is set after the data; None: no signal

        Raises: ValueError, and fcc.errors.Error.
        """
        put, number = Put(rank=rank), c_uint32()
        if source is not None:
            self._rows(put, source, to)
        if signals is not None:
            if signals.dtype != torch.int64 or not signals.is_contiguous() or not 0 <= index < signals.numel():
                raise ValueError(f"rank {self._comm.rank}: signals: {signals.dtype} {tuple(signals.shape)}, index: {index}: "
                                 f"allowed are words of a dense tensor of int64")
            put.signals, offset = place(signals, self._comm)
            put.signal_offset = offset + 8 * index
        self._check(self._functions.fcc_put_register(self._comm.member.handle, ctypes.byref(put), ctypes.byref(number)))
        self._kept += [memory_of(tensor, self._comm) for tensor in (source, to, signals) if tensor is not None]
        return number.value

    def _rows(self, put: Put, source: torch.Tensor, to: torch.Tensor | None) -> None:
        if to is None or to.shape != source.shape or to.dtype != source.dtype or to.stride() != source.stride():
            what = "None" if to is None else f"{to.dtype} {tuple(to.shape)}, strides {to.stride()}"
            raise ValueError(f"rank {self._comm.rank}: to: {what}: allowed is what source is: {source.dtype} "
                             f"{tuple(source.shape)}, strides {source.stride()}")
        if source.dim() not in (1, 2) or not source.numel() or source.stride(-1) != 1:
            raise ValueError(f"rank {self._comm.rank}: source: {tuple(source.shape)}, strides {source.stride()}: allowed are 1 "
                             f"or 2 dimensions of at least one element, the last one dense")
        size = source.element_size()
        put.rows = source.shape[0] if source.dim() == 2 else 1
        put.row_bytes = source.shape[-1] * size
        put.stride = source.stride(0) * size if source.dim() == 2 else put.row_bytes
        put.from_, put.from_offset = place(source, self._comm)
        put.to, put.to_offset = place(to, self._comm)

    def _check(self, status: int) -> None:
        if status < 0:
            raise self._comm.member.error(status)
