# SPDX-License-Identifier: MIT
"""The binding of libfccclient. proto/fccclient.h is the contract; the structs here are copies of its structs (tests/test_library.py
compiles the header and compares them).

ctypes, not cffi: both cost about 0.3 us a call, and ctypes needs no package. An operator's arguments are packed by `struct` in one call,
because filling a ctypes structure field by field takes ten times as long. The library lists its operators and their arguments itself
(fcc_operators()).
"""
from __future__ import annotations

import contextlib
import ctypes
import keyword
import os
import pathlib
import struct
from collections.abc import Callable
from ctypes import POINTER, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_uint32, c_void_p
from typing import Any

from .errors import Error, LibraryError, error_of

NAME = "libfccclient.so.0"
MAX_DIMS = 4
MAX_RANKS = 1024
SCHEDULES = {"auto": 0, "fused": 1, "sequential": 2, "compute_only": 3, "comm_only": 4, "batch_invariant": 32, "any_order": 16}
POOLINGS = {"sum": 0, "mean": 1}
REDUCTIONS = {"sum": 0, "product": 1, "min": 2, "max": 3, "average": 4, "and": 5, "or": 6, "xor": 7}
NORMS = {"": 0, "rms": 1, "layer": 2}
ACTIVATIONS = {"": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
QUANTIZATIONS = {"": 0, "static": 1, "row": 2}
LOCAL, SYMMETRIC, RESULT = range(3)
ADDRESS = (1 << 64) - 1  # in the place of a tensor's buffer: its offset is an address on the rank's GPU
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


class ProgramSize(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_int64)]


class CTensor(ctypes.Structure):
    """struct fcc_tensor; an operator's are packed by struct (below)."""

    _fields_ = [("buffer", c_void_p), ("offset", c_size_t), ("dtype", c_uint32), ("ndim", c_uint32), ("shape", c_int64 * MAX_DIMS),
                ("stride", c_int64 * MAX_DIMS)]


_TENSOR = "QQII8q"  # struct fcc_tensor: buffer, offset, dtype, ndim, shape[4], stride[4]
# struct fcc_epilogue: bias, residual, sum, norm_weight, norm_bias, gate, quantized, quantized_scale, x_scale, w_scale; norm, norm_eps, activation, scale, quantization
EPILOGUE = struct.Struct("=" + 10 * _TENSOR + "IfIfI28x")
ABSENT = (0,) * 12  # an absent tensor
# The kinds of members in fcc_operators(). Reserved numbers are zeros.
_MEMBERS = {"input": _TENSOR, "result": _TENSOR, "shared": _TENSOR, "i32": "i", "i64": "q", "numbers": "Q", "values": "Q",
            "device": "Q", "schedule": "I28x"}


class Operator:
    """An operator of the C library, by its line of fcc_operators().

    Attributes:
        layout: of struct fcc_NAME_args
        offsets: of its members
        pack: makes one of keywords: tensors as tuples (dense()), pointers as addresses. What is not given is 0. `in` is
            spelled in_, because it is a word of Python's
        start, enqueue, prepare: the C functions, which take the arguments packed. prepare is None if there is none
        epilogue_start, epilogue_enqueue: the same with an epilogue, packed by EPILOGUE, behind the arguments. None if there is none
        is_collective: whether it is a plain collective
        many_enqueue: of those: many at once, whose arguments follow each other, packed
    """

    def __init__(self, line: str, function: Callable[[str, list[Any]], Callable[..., int]]) -> None:
        self.name, bind, *members = line.split()
        kinds = {name: kind.rstrip("?") for name, _, kind in (member.partition(":") for member in members)}
        formats = [_MEMBERS[kind] for kind in kinds.values()]
        padding = -struct.calcsize("=" + "".join(formats)) % 8  # the struct is aligned like its pointers
        self.layout = struct.Struct("=" + "".join(formats) + f"{padding}x")
        self.offsets = {name: struct.calcsize("=" + "".join(formats[:i])) for i, name in enumerate(kinds)}
        tensors = {name for name, kind in kinds.items() if _MEMBERS[kind] == _TENSOR}
        self.is_collective = tensors == {"in", "out"}
        # A function with these keywords, as fast as one that is written out; the names are the C library's.
        spelled = {name: name + "_" if keyword.iskeyword(name) else name for name in kinds}
        keywords = ", ".join(f"{spelled[name]}={'absent' if name in tensors else 0}" for name in kinds)
        numbers = ", ".join(f"*{spelled[name]}" if name in tensors else name for name in kinds)
        self.pack: Callable[..., bytes] = eval(f"lambda *, {keywords}: pack({numbers})" if kinds else "lambda: b\"\"",
                                               {"pack": self.layout.pack, "absent": ABSENT})
        given = [c_char_p] if kinds else []
        self.start = function(f"fcc_{self.name}_start", [c_void_p, *given, POINTER(c_void_p)])
        self.enqueue = function(f"fcc_{self.name}_enqueue", [c_void_p, *given, c_void_p, c_void_p])
        self.prepare: Any = (function(f"fcc_{self.name}_prepare", [c_void_p, *given, POINTER(c_void_p)])
                             if bind == "prepared" else None)
        self.many_enqueue: Any = (function(f"fcc_{self.name}_many_enqueue", [c_void_p, c_char_p, c_int, c_void_p])
                                  if self.is_collective else None)
        self.epilogue_start: Any = None
        self.epilogue_enqueue: Any = None
        with contextlib.suppress(LibraryError):  # not every operator may have one
            self.epilogue_start = function(f"fcc_{self.name}_epilogue_start", [c_void_p, *given, c_char_p, POINTER(c_void_p)])
            self.epilogue_enqueue = function(f"fcc_{self.name}_epilogue_enqueue", [c_void_p, *given, c_char_p, c_void_p, c_void_p])


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
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
    "fcc_comm_split": (c_int, [c_void_p, c_int32, c_int32, POINTER(CommOptions), POINTER(c_void_p)]),
    "fcc_comm_shrink": (c_int, [c_void_p, POINTER(c_int32), c_int, POINTER(c_void_p)]),
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
    "fcc_collectives_prepare": (c_int, [c_void_p]),
    "fcc_products_prepare": (c_int, [c_void_p]),
    "fcc_refuse_enqueue": (c_int, [c_void_p, c_char_p, c_char_p, c_void_p]),
    "fcc_refuse_start": (c_int, [c_void_p, c_char_p, c_int, c_char_p, POINTER(c_void_p)]),
    "fcc_operators": (c_char_p, []),
    "fcc_program_open": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(ProgramSize), c_int, POINTER(c_void_p)]),
    "fcc_program_tensor": (c_int, [c_void_p, c_char_p, POINTER(CTensor)]),
    "fcc_program_table": (c_int, [c_void_p, POINTER(c_int64), c_int]),
    "fcc_program_tensors": (c_int, [c_void_p, c_char_p, POINTER(CTensor), c_int]),
    "fcc_program_scalar": (c_int, [c_void_p, c_char_p, c_double]),
    "fcc_program_run": (c_int, [c_void_p]),
    "fcc_program_prepare": (c_int, [c_void_p]),
    "fcc_program_prepare_guarded": (c_int, [c_void_p]),
    "fcc_program_refuse_enqueue": (c_int, [c_void_p, c_char_p, c_void_p]),
    "fcc_program_enqueue": (c_int, [c_void_p, c_void_p]),
    "fcc_program_scalars_enqueue": (c_int, [c_void_p, c_void_p]),
    "fcc_program_elements": (c_int64, [c_void_p, c_char_p]),
    "fcc_program_shares": (c_int, [c_void_p, c_char_p]),
    "fcc_program_text": (c_char_p, [c_void_p]),
    "fcc_program_close": (None, [c_void_p]),
    "fcc_program_print": (c_int, [c_char_p, c_size_t, c_int, POINTER(ProgramSize), c_int, c_char_p, c_size_t]),
}


def _candidates() -> list[str]:
    """Where the library may be: $FCC_LIBRARY, in the package (of a wheel), in the build tree that contains the package, or where the loader
    looks."""
    named = os.environ.get("FCC_LIBRARY")
    if named:
        return [named]
    package = pathlib.Path(__file__).resolve().parent
    brought = package / "_fccd" / "lib" / NAME
    if brought.exists():
        return [str(brought)]
    beside = package.parents[2] / "build" / "lib" / NAME
    return [str(beside), NAME] if beside.exists() else [NAME]


class Library:
    """The functions of libfccclient as typed attributes, without the prefix `fcc_`."""

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
            setattr(self, name.removeprefix("fcc_"), self._typed(name, arguments, result))
        lines = self._functions.fcc_operators().decode().splitlines()
        self.operators = {operator.name: operator for operator in (Operator(line, self._typed) for line in lines)}

    def _typed(self, name: str, arguments: list[Any], result: Any = c_int) -> Callable[..., Any]:
        try:
            function: Callable[..., Any] = getattr(self._functions, name)
        except AttributeError:
            raise LibraryError(f"{self.path} has no {name}: it is older than this package") from None
        setattr(function, "restype", result)
        setattr(function, "argtypes", arguments)
        return function

    def file(self) -> str:
        """The library's file, as the kernel has mapped it."""
        address = ctypes.cast(self._functions.fcc_version, c_void_p).value or 0
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                start, _, end = line.partition(" ")[0].partition("-")
                if int(start, 16) <= address < int(end, 16):
                    return line.rstrip("\n").split(maxsplit=5)[5]
        raise LibraryError(f"{self.path}: the kernel has no file of it")

    def untyped(self, name: str) -> Callable[..., int]:
        """A function of the library without types, for callers to whom nanoseconds matter: ctypes converts nothing. It takes bytes,
        None, and results of c_void_p.from_param() for addresses; an int would be cut to a C int."""
        function: Callable[..., int] = self._functions[name]  # another object than the typed one
        return function

    def __getattr__(self, name: str) -> Any:  # for type checkers only: attributes that __init__ sets are found first
        raise AttributeError(name)

    def error(self, status: int, rank: int | None = None) -> Error:
        """The exception for the status that the last call of this thread returned."""
        return error_of(status, self.last_error_text(), rank)

    def last_error_text(self) -> str:
        return self._functions.fcc_last_error().decode(errors="replace")

    def check(self, status: int, rank: int | None = None) -> int:
        if status < 0:
            raise self.error(status, rank)
        return status


_library: Library | None = None


def library() -> Library:
    """The library, loaded at the first use."""
    global _library
    if _library is None:
        _library = Library()
    return _library
