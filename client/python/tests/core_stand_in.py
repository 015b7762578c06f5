# SPDX-License-Identifier: MIT
"""What fcc.triton uses of the package's core, for a tree that has no core. use() does nothing where there is one."""
from __future__ import annotations

import ctypes
import math
import os
import pathlib
import sys
import types
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

import torch

PYTHON = pathlib.Path(__file__).resolve().parents[1]
DTYPES = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}


class Tensor(ctypes.Structure):
    _fields_ = [("buffer", c_void_p), ("offset", c_uint64), ("dtype", c_uint32), ("ndim", c_uint32), ("shape", c_int64 * 4),
                ("stride", c_int64 * 4)]


class Gemm(ctypes.Structure):
    _fields_ = [("a", Tensor), ("b", Tensor), ("send_rows", c_void_p), ("c", Tensor), ("recv_rows", c_void_p), ("schedule", c_uint32),
                ("reserved", c_uint32 * 7)]


class CommOptions(ctypes.Structure):
    _fields_ = [("device", c_int32), ("time_limit_ms", c_uint32), ("device_kind", c_uint32), ("reserved", c_uint32 * 5)]


class Library:
    def __init__(self):
        self.path = os.environ.get("FCC_LIBRARY") or str(PYTHON.parents[1] / "build" / "lib" / "libfccclient.so.0")
        self.c = ctypes.CDLL(self.path)
        self.c.fcc_last_error.restype = c_char_p
        self.c.fcc_buffer_data.restype = c_void_p
        self.c.fcc_buffer_data.argtypes = self.c.fcc_comm_destroy.argtypes = self.c.fcc_disconnect.argtypes = [c_void_p]
        self.c.fcc_buffer_free.argtypes = [c_void_p]
        self.c.fcc_connect.argtypes = [c_void_p, POINTER(c_void_p)]
        self.c.fcc_comm_init_env.argtypes = [c_void_p, POINTER(CommOptions), POINTER(c_void_p)]
        self.c.fcc_buffer_alloc.argtypes = [c_void_p, c_int, c_size_t, POINTER(c_void_p)]
        self.c.fcc_gemm_all_to_all.argtypes = [c_void_p, POINTER(Gemm)]
        self.c.fcc_comm_abort.argtypes = [c_void_p, c_char_p]
        for name in ("fcc_noop", "fcc_comm_rank", "fcc_comm_size"):
            getattr(self.c, name).argtypes = [c_void_p]


class FccError(RuntimeError):
    pass


class Member:
    def __init__(self, library, context, handle):
        self.library, self.context, self.handle, self.connection, self.buffers = library, context, handle, self, []

    def error(self, status):
        return FccError(self.library.c.fcc_last_error().decode())

    def check(self, status):
        if status < 0:
            raise self.error(status)

    def find(self, address):
        for start, nbytes, handle in self.buffers:
            if start <= address < start + nbytes:
                return handle, address - start
        return None


class Communicator:
    def __init__(self, device):
        if device != "cpu":
            raise NotImplementedError("this stand-in is for the cpu")
        c, context, handle = library().c, c_void_p(), c_void_p()
        self.member = Member(library(), context, handle)
        self.member.check(c.fcc_connect(None, ctypes.byref(context)))
        options = CommOptions(device=-1, device_kind=0)
        self.member.check(c.fcc_comm_init_env(context, ctypes.byref(options), ctypes.byref(handle)))
        self.rank, self.size, self.device = c.fcc_comm_rank(handle), c.fcc_comm_size(handle), torch.device(device)

    def barrier(self):
        self.member.check(library().c.fcc_noop(self.member.handle))

    def abort(self, reason=""):
        self.member.check(library().c.fcc_comm_abort(self.member.handle, reason.encode()))

    def close(self):
        library().c.fcc_comm_destroy(self.member.handle)
        library().c.fcc_disconnect(self.member.context)


_library = _default = None


def library():
    global _library
    _library = _library or Library()
    return _library


def init(device="cpu"):
    global _default
    _default = Communicator(device)
    return _default


def default():
    return _default


def zeros(*shape, dtype=torch.float32, symmetric=False, comm=None):
    comm = comm or _default
    nbytes, handle = math.prod(shape) * dtype.itemsize, c_void_p()
    comm.member.check(library().c.fcc_buffer_alloc(comm.member.handle, int(symmetric), nbytes, ctypes.byref(handle)))
    address = library().c.fcc_buffer_data(handle)
    comm.member.buffers.append((address, nbytes, handle.value))
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8).view(dtype).view(shape)


_results = {}  # by shape: one is as good as another


def gemm_all_to_all(a, b, comm=None):
    comm = comm or _default
    key = (a.shape[0], b.shape[1], a.dtype)
    out = _results[key] = _results[key] if key in _results else zeros(*key[:2], dtype=a.dtype, symmetric=True, comm=comm)

    def tensor(t):
        buffer, offset = comm.member.find(t.data_ptr())
        return Tensor(buffer, offset, DTYPES[t.dtype], 2, (c_int64 * 4)(*t.shape), (c_int64 * 4)(*t.stride()))

    comm.member.check(library().c.fcc_gemm_all_to_all(comm.member.handle, ctypes.byref(Gemm(a=tensor(a), b=tensor(b), c=tensor(out)))))
    return out


def use() -> None:
    """Call this before fcc.triton is imported."""
    sys.path.insert(0, str(PYTHON))
    try:
        import fcc.communicator
    except ImportError:
        import fcc
        fcc._library, fcc.communicator = types.ModuleType("fcc._library"), types.ModuleType("fcc.communicator")
        fcc._library.library, fcc.communicator.default = library, default
        sys.modules |= {"fcc._library": fcc._library, "fcc.communicator": fcc.communicator}
        fcc.init, fcc.zeros, fcc.empty, fcc.gemm_all_to_all = init, zeros, zeros, gemm_all_to_all
