# SPDX-License-Identifier: MIT
"""The C library's functions and structs of maps and trackers."""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

import torch

from .. import _library
from .._dispatch import is_wrapped
from .._place import INT32_MOST, INT64_MOST, whole
from ..communicator import Communicator
from ..errors import ArgumentError

AWAITS = 2


class Piece(ctypes.Structure):  # struct fcc_map_piece
    _fields_ = [("at", c_uint64), ("bytes", c_uint64), ("offset", c_uint64), ("buffer", c_void_p), ("rank", c_int32),
                ("reserved", c_uint32 * 5)]


class Await(ctypes.Structure):  # struct fcc_rule_await
    _fields_ = [("buffer", c_void_p), ("offset", c_uint64), ("lag", c_uint32), ("reserved", c_uint32)]


class RuleStruct(ctypes.Structure):  # struct fcc_rule
    _fields_ = [("name", c_char_p), ("count", c_uint64), ("action", c_uint32), ("rank", c_int32), ("awaits", Await * AWAITS),
                ("rows", c_uint32), ("dtype", c_uint32), ("row_bytes", c_uint64), ("from_stride", c_uint64), ("to_stride", c_uint64),
                ("from_", c_void_p), ("from_offset", c_uint64), ("to", c_void_p), ("to_offset", c_uint64), ("signals", c_void_p),
                ("signal_offset", c_uint64), ("call", c_void_p), ("argument", c_void_p), ("reserved", c_uint32 * 4)]


STRUCTS = {"fcc_map_piece": Piece, "fcc_rule_await": Await, "fcc_rule": RuleStruct}
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "fcc_map_granularity": (c_int, [c_void_p, POINTER(c_size_t)]),
    "fcc_map_create": (c_int, [c_void_p, POINTER(Piece), c_int, POINTER(c_void_p)]),
    "fcc_map_free": (None, [c_void_p]),
    "fcc_map_data": (c_void_p, [c_void_p]),
    "fcc_map_stride": (c_int, [c_void_p, c_uint64, c_uint64, c_uint64, POINTER(c_uint64)]),
    "fcc_tracker_create": (c_int, [c_void_p, POINTER(c_void_p)]),
    "fcc_tracker_free": (None, [c_void_p]),
    "fcc_tracker_rule": (c_int, [c_void_p, POINTER(RuleStruct), POINTER(c_uint32)]),
    "fcc_tracker_add": (c_int, [c_void_p, c_uint32, c_uint64]),
    "fcc_tracker_wait": (c_int, [c_void_p, c_uint32, c_uint64, c_int]),
    "fcc_tracker_count": (c_void_p, [c_void_p, c_uint32]),
    "fcc_tracker_add_enqueue": (c_int, [c_void_p, c_uint32, c_uint64, c_void_p]),
    "fcc_tracker_wait_enqueue": (c_int, [c_void_p, c_uint32, c_void_p]),
    "fcc_tracker_run_enqueue": (c_int, [c_void_p, c_uint32, c_void_p]),
    "fcc_signal_wait": (c_int, [c_void_p, c_void_p, c_uint64, c_int]),
}


@functools.cache
def functions() -> Any:
    """libfccclient's functions of maps and trackers."""
    found = ctypes.CDLL(_library.library().path)  # the library that is loaded already
    for name, (result, arguments) in FUNCTIONS.items():
        function: Callable[..., Any] = getattr(found, name)
        setattr(function, "restype", result)
        setattr(function, "argtypes", arguments)
    return found


def number(value: Any, what: str, comm: Communicator, least: int, most: int = INT64_MOST) -> int:
    """A whole number of that range. (Of what is none, ctypes would take the last bits, or raise an error of its own.)"""
    found = whole(value, least, most)
    if found is None:
        allowed = f"{least} to {most}" if most not in (INT32_MOST, INT64_MOST) else f"{least} and more"
        raise ArgumentError(f"{what}: {type(value).__name__} {value!r:.40}: allowed are whole numbers, {allowed}", rank=comm.rank)
    return found


def milliseconds(timeout: Any, what: str, comm: Communicator) -> int | None:
    """Of a timeout in seconds; None: none is given."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 <= timeout <= INT32_MOST / 1000:
        raise ArgumentError(f"{what}: {type(timeout).__name__} {timeout!r:.40}: allowed are seconds, 0 to {INT32_MOST // 1000}, and None for the communicator's "
                            "time limit", rank=comm.rank)
    return int(timeout * 1000)


def place(tensor: torch.Tensor, what: str, comm: Communicator) -> tuple[int, int]:
    """(fcc_buffer *, offset in bytes) of a tensor in the daemon's memory."""
    if not isinstance(tensor, torch.Tensor) or is_wrapped(tensor):
        raise ArgumentError(f"{what}: {type(tensor).__name__}: allowed are tensors that have an address", rank=comm.rank)
    if tensor.layout != torch.strided or tensor.device != comm.device:
        raise ArgumentError(f"{what}: {tensor.layout} on {tensor.device}: allowed are dense tensors on {comm.device}", rank=comm.rank)
    found = comm.member.connection.find(tensor.data_ptr())
    if found is None:
        raise ArgumentError(f"{what}: it does not lie in the daemon's memory", rank=comm.rank,
                            remedy="Make it by fcc.map_parts(), or by fcc.zeros(..., symmetric=True).")
    return found


def memory_of(tensor: torch.Tensor, comm: Communicator) -> tuple:
    """The object that keeps a tensor's memory, also after the tensor gets other memory."""
    found = comm.member.connection.find(tensor.data_ptr())
    return tensor.detach(), comm.member.connection.owner(found[0]) if found else None
