# SPDX-License-Identifier: MIT
"""With what a process joins a communicator: what its launcher says of it, ids, and checks of the arguments, of split() and shrink() too."""
from __future__ import annotations

import ctypes
import dataclasses
import operator
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch

from . import _library
from ._connection import Connection
from ._library import library
from .errors import ArgumentError


INT32_MOST, INT64_MOST = (1 << 31) - 1, (1 << 63) - 1


@dataclasses.dataclass(frozen=True)
class Environment:
    """A launcher's variables for this process (C: struct fcc_env)."""

    rank: int
    size: int
    local_rank: int  # -1: unknown
    local_size: int
    launcher: str
    job: str


def environment() -> Environment:
    """Rank and size as torchrun, Open MPI, MPICH, Slurm or FCC_RANK and FCC_SIZE say them; no launcher: rank 0 of 1.

    Raises ArgumentError when a variable is missing, wrong, or contradicts another one."""
    found = _library.Env()
    library().check(library().env_find(ctypes.byref(found)))
    return Environment(found.rank, found.size, found.local_rank, found.local_size, found.launcher.decode(), found.job.decode())


def unique_id(*, socket: str | None = None, job: str | None = None) -> bytes:
    """A new communicator's id, 128 bytes: a secret. One rank makes it and gives it to the others by any means it has."""
    found = _library.UniqueId()
    connection = Connection.of(socket, job)
    library().check(library().get_unique_id(connection.handle, ctypes.byref(found)))
    return ctypes.string_at(ctypes.byref(found), ctypes.sizeof(found))


def whole(value: Any, least: int, most: int = INT32_MOST) -> int | None:
    """The whole number, also one of numpy's, if it is in the range. (Of what is not, ctypes would take the last bits.)"""
    try:
        found: int = operator.index(value)
    except TypeError:
        return None
    return found if least <= found <= most else None


def _kinds_check(**arguments: tuple[Any, tuple[type, ...], str]) -> None:
    """Checks that each argument is None or of one of these types."""
    for name, (value, types, allowed) in arguments.items():
        if value is not None and (not isinstance(value, types) or isinstance(value, bool)):
            raise ArgumentError(f"{name}: {type(value).__name__} {value!r:.40}: allowed is {allowed}")


def _device_options(device: str | torch.device) -> tuple[int, int]:
    """(fccd's number of the device or -1, enum fcc_device_kind)"""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device: {device}: allowed are cpu and cuda, with or without fccd's number of the device")
    gpu = _library.DEVICE_HIP if torch.version.hip else _library.DEVICE_CUDA
    return -1 if found.index is None else found.index, _library.DEVICE_CPU if found.type == "cpu" else gpu


def _milliseconds(time_limit: float | None) -> int:
    if time_limit is None:
        return 0
    if not 0 < time_limit <= 4e6:
        raise ArgumentError(f"time_limit: {time_limit}: allowed are seconds, more than 0 and at most 4e6, and None")
    return max(1, round(time_limit * 1000))


def _heap_bytes(heap_bytes: int | None) -> int | None:
    """The limit for results; None: only the daemon's limit."""
    text = os.environ.get("FCC_HEAP_BYTES")
    if heap_bytes is None and text:
        if not text.isdigit():
            raise ArgumentError(f"FCC_HEAP_BYTES: \"{text}\": allowed is a number of bytes, 0 or more")
        heap_bytes = int(text)
    if heap_bytes is not None and heap_bytes < 0:
        raise ArgumentError(f"heap_bytes: {heap_bytes}: allowed are 0 and more")
    return heap_bytes


def _ids_check(rank: int | None, size: int | None, id: bytes | None) -> None:
    given = [value is not None for value in (rank, size, id)]
    if any(given) and not all(given):
        raise ArgumentError("rank, size, id: allowed are all of them, or none (then the launcher says)")
    for name, value in ("rank", rank), ("size", size):
        if value is not None and abs(value) > 0x7FFFFFFF:
            raise ArgumentError(f"{name}: {value}: allowed are the ranks and sizes of {_library.MAX_RANKS} ranks at most")
    if id is not None and len(id) != 128:
        raise ArgumentError(f"id: {len(id)} bytes: allowed are the 128 that unique_id() gave")


def place_check(rank: int | None, size: int | None, id: bytes | None, socket: str | None, job: str | None) -> tuple[int | None, int | None]:
    """Checks which rank of which communicator it is, and by which daemon. While these are not known, the other ranks cannot be given
    errors. Returns rank and size."""
    _kinds_check(rank=(rank, (Integral,), "a whole number"), size=(size, (Integral,), "a whole number"),
                 id=(id, (bytes, bytearray), "what unique_id() gave, 128 bytes"),
                 socket=(socket, (str, os.PathLike), "a path"), job=(job, (str,), "a string"))
    rank, size = (None if n is None else int(n) for n in (rank, size))
    _ids_check(rank, size, id)
    return rank, size


def options_check(device: str | torch.device, time_limit: float | None, heap_bytes: int | None) -> tuple[_library.CommOptions, int | None]:
    """Checks all other arguments. Returns the options of the C library, and the limit for results (None: only the daemon's)."""
    _kinds_check(time_limit=(time_limit, (Real,), "a number of seconds"),
                 heap_bytes=(heap_bytes, (Integral,), "a whole number of bytes"))
    number, kind = _device_options(device)
    heap = _heap_bytes(heap_bytes)
    return _library.CommOptions(number, _milliseconds(time_limit), kind), heap


def split_check(rank: int, color: Any, key: Any) -> None:
    if color is not None and whole(color, 0) is None:
        raise ArgumentError(f"rank {rank}: split: color: {color!r:.40}: allowed are 0 to {INT32_MOST}, and None")
    if whole(key, -INT32_MOST) is None:
        raise ArgumentError(f"rank {rank}: split: key: {key!r:.40}: allowed are {-INT32_MOST} to {INT32_MOST}")


def excluded_check(rank: int, size: int, exclude: Any) -> list[int]:
    """The ranks that shrink() is to leave out."""
    given = [whole(other, 0, size - 1) for other in exclude] if isinstance(exclude, Iterable) else [None]
    found = [other for other in given if other is not None]
    if len(found) != len(given) or rank in found:
        raise ArgumentError(f"rank {rank}: shrink: exclude: {exclude!r:.60}: allowed is a list of other ranks, 0 to {size - 1}")
    return found
