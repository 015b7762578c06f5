# SPDX-License-Identifier: MIT
"""libfccclient as Python sees it. proto/fccclient.h is the contract; the structs here are copies of its (tests/test_library.py
compiles the header and compares them).

ctypes, not cffi: both cost about 0.3 us a call, and ctypes needs no package. What operators are given is packed by `struct`, in
one call, because filling a ctypes structure field by field takes ten times as long.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import struct
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_size_t, c_ssize_t, c_uint32, c_void_p
from typing import Any

from .errors import Error, LibraryError, error_of

NAME = "libfccclient.so.0"
MAX_DIMS = 4
MAX_RANKS = 64
SCHEDULES = {"auto": 0, "fused": 1, "sequential": 2, "compute_only": 3, "comm_only": 4}
POOLINGS = {"sum": 0, "mean": 1}
LOCAL, SYMMETRIC, RESULT = range(3)
OPERATORS = ("embedding_all_to_all", "gemv_all_reduce", "gemm_all_to_all")
PREPARED = ("gemv_all_reduce", "gemm_all_to_all")  # those that can be prepared
DEVICE_CPU, DEVICE_GPU, DEVICE_HIP, DEVICE_CUDA = range(4)


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", c_char * 128)]


class ConnectOptions(ctypes.Structure):
    _fields_ = [("socket_path", c_char_p), ("job", c_char_p), ("no_ring", c_uint32),
                ("no_stream_memory_operations", c_uint32), ("reserved", c_uint32 * 6)]


class CommOptions(ctypes.Structure):
    _fields_ = [("device", c_int32), ("time_limit_ms", c_uint32), ("device_kind", c_uint32), ("reserved", c_uint32 * 5)]


class Env(ctypes.Structure):
    _fields_ = [("rank", c_int32), ("size", c_int32), ("local_rank", c_int32), ("local_size", c_int32),
                ("launcher", c_char * 16), ("job", c_char * 64), ("world", c_char * 64), ("meeting", c_char * 64)]


# struct fcc_tensor: buffer, offset, dtype, ndim, shape[4], stride[4]; and the operators' arguments, each with its tail.
TENSOR = "QQII8q"
EMBEDDING_ARGS = struct.Struct(f"={TENSOR}Qii{TENSOR * 3}qQ{TENSOR}I7I")  # tables, table_rows, num_tables, pooling, ...
GEMV_ARGS = struct.Struct(f"={TENSOR * 3}I7I")  # x, w, y, schedule
GEMM_ARGS = struct.Struct(f"={TENSOR * 2}Q{TENSOR}QI7I")  # a, b, send_rows, c, recv_rows, schedule
TENSORS = tuple(n * struct.calcsize(f"={TENSOR}") for n in range(4))  # the bytes of so many
ABSENT = (0,) * 12  # a tensor that is not there
RESERVED = (0,) * 7

_FUNCTIONS = {
    "fcc_version": (c_char_p, []),
    "fcc_last_error": (c_char_p, []),
    "fcc_connect": (c_int, [POINTER(ConnectOptions), POINTER(c_void_p)]),
    "fcc_disconnect": (None, [c_void_p]),
    "fcc_device_count": (c_int, [c_void_p]),
    "fcc_get_unique_id": (c_int, [c_void_p, POINTER(UniqueId)]),
    "fcc_env_find": (c_int, [POINTER(Env)]),
    "fcc_comm_init": (c_int, [c_void_p, POINTER(UniqueId), c_int, c_int, POINTER(CommOptions), POINTER(c_void_p)]),
    "fcc_comm_init_env": (c_int, [c_void_p, POINTER(CommOptions), POINTER(c_void_p)]),
    "fcc_comm_init_refuse": (c_int, [c_void_p, POINTER(UniqueId), c_int, c_int, c_int, c_char_p]),
    "fcc_comm_destroy": (None, [c_void_p]),
    "fcc_comm_abort": (c_int, [c_void_p, c_char_p]),
    "fcc_comm_rank": (c_int, [c_void_p]),
    "fcc_comm_size": (c_int, [c_void_p]),
    "fcc_comm_device": (c_int, [c_void_p]),
    "fcc_comm_device_kind": (c_int, [c_void_p]),
    "fcc_comm_status": (c_int, [c_void_p, POINTER(c_void_p)]),
    "fcc_comm_error": (c_int, [c_void_p]),
    "fcc_comm_error_wait": (c_int, [c_void_p, c_int]),
    "fcc_buffer_alloc": (c_int, [c_void_p, c_int, c_size_t, POINTER(c_void_p)]),
    "fcc_buffer_free": (None, [c_void_p]),
    "fcc_buffer_data": (c_void_p, [c_void_p]),
    "fcc_buffer_find": (c_void_p, [c_void_p, c_void_p]),
    "fcc_buffer_size": (c_size_t, [c_void_p]),
    "fcc_pool_open": (c_int, [c_void_p, c_int]),
    "fcc_pool_close": (c_int, [c_int]),
    "fcc_pool_alloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "fcc_pool_frees": (c_void_p, []),
    "fcc_pool_free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    "fcc_group_begin": (None, []),
    "fcc_group_end": (c_int, []),
    "fcc_request_test": (c_int, [c_void_p, POINTER(c_int)]),
    "fcc_request_wait": (c_int, [c_void_p, c_int]),
    "fcc_request_free": (None, [c_void_p]),
    "fcc_prepared_enqueue": (c_int, [c_void_p, c_void_p]),
    "fcc_prepared_free": (None, [c_void_p]),
    "fcc_refuse_start": (c_int, [c_void_p, c_char_p, c_int, c_char_p, POINTER(c_void_p)]),
    "fcc_noop_start": (c_int, [c_void_p, POINTER(c_void_p)]),
    "fcc_noop_enqueue": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
}
for _op in OPERATORS:
    # the arguments come packed, as bytes
    _FUNCTIONS[f"fcc_{_op}_start"] = (c_int, [c_void_p, c_char_p, POINTER(c_void_p)])
    _FUNCTIONS[f"fcc_{_op}_enqueue"] = (c_int, [c_void_p, c_char_p, c_void_p, c_void_p])
    if _op in PREPARED:
        _FUNCTIONS[f"fcc_{_op}_prepare"] = (c_int, [c_void_p, c_char_p, POINTER(c_void_p)])


def _candidates() -> list[str]:
    """Where the library may be: what $FCC_LIBRARY names, or the build tree that this package lies in, or where the loader
    looks."""
    named = os.environ.get("FCC_LIBRARY")
    if named:
        return [named]
    beside = pathlib.Path(__file__).resolve().parents[3] / "build" / "lib" / NAME
    return [str(beside), NAME] if beside.exists() else [NAME]


class Library:
    """The functions of libfccclient, as attributes without their `fcc_`, with types."""

    def __init__(self) -> None:
        tried = []
        for path in _candidates():
            try:
                self._functions = ctypes.CDLL(path)
                break
            except OSError as e:
                tried.append(f"{path}: {e}")
        else:
            raise LibraryError(f"libfccclient cannot be loaded: {'; '.join(tried)}")
        self.path = path
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(self._functions, name)
            except AttributeError:
                raise LibraryError(f"{path} has no {name}: it is older than this package") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("fcc_"), function)
        self.start = {op: getattr(self, f"{op}_start") for op in OPERATORS}
        self.enqueue = {op: getattr(self, f"{op}_enqueue") for op in OPERATORS}
        self.prepare = {op: getattr(self, f"{op}_prepare") for op in PREPARED}

    def untyped(self, name: str) -> Callable[..., int]:
        """A function of the library for whoever counts nanoseconds: without types, so ctypes converts nothing. It takes bytes,
        None, and what c_void_p.from_param() made of an address; an int would be cut to C's."""
        function: Callable[..., int] = self._functions[name]  # not the one that has types, but one of its own
        return function

    def __getattr__(self, name: str) -> Any:  # for type checkers: what __init__ has set is found before
        raise AttributeError(name)

    def error(self, status: int, rank: int | None = None) -> Error:
        """The exception for what the last call of this thread returned."""
        return error_of(status, self.last_error_text(), rank)

    def last_error_text(self) -> str:
        return self._functions.fcc_last_error().decode(errors="replace")

    def check(self, status: int, rank: int | None = None) -> int:
        if status < 0:
            raise self.error(status, rank)
        return status


_library: Library | None = None


def library() -> Library:
    """The library, loaded when it is first needed."""
    global _library
    if _library is None:
        _library = Library()
    return _library
