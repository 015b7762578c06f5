# SPDX-License-Identifier: MIT
"""What compare_gpu calls of libfccclient, by ctypes. proto/fccclient.h is the contract; the structs here are copies of its."""
import contextlib
import ctypes
import errno
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

MAX_DIMS = 4
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "int32": 4, "int64": 5}
SCHEDULES = {"auto": 0, "fused": 1, "sequential": 2, "compute_only": 3, "comm_only": 4}
LOCAL, SYMMETRIC = 0, 1
DEVICE_CPU, DEVICE_CUDA = 0, 3


class FccError(Exception):
    pass


class Unsupported(FccError):
    """This library, or these ranks' GPUs, do not have it."""


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", c_char * 128)]


class ConnectOptions(ctypes.Structure):
    _fields_ = [("socket_path", c_char_p), ("job", c_char_p), ("no_ring", c_uint32), ("reserved", c_uint32 * 7)]


class CommOptions(ctypes.Structure):
    _fields_ = [("device", c_int32), ("time_limit_ms", c_uint32), ("device_kind", c_uint32), ("reserved", c_uint32 * 5)]


class Tensor(ctypes.Structure):
    _fields_ = [("buffer", c_void_p), ("offset", c_uint64), ("dtype", c_uint32), ("ndim", c_uint32),
                ("shape", c_int64 * MAX_DIMS), ("stride", c_int64 * MAX_DIMS)]


class EmbeddingArgs(ctypes.Structure):
    _fields_ = [("tables", Tensor), ("table_rows", POINTER(c_int64)), ("num_tables", c_int32), ("pooling", c_int32),
                ("indices", Tensor), ("offsets", Tensor), ("sample_weights", Tensor), ("batch", c_int64),
                ("batch_split", POINTER(c_int64)), ("out", Tensor), ("schedule", c_uint32), ("reserved", c_uint32 * 7)]


class GemvArgs(ctypes.Structure):
    _fields_ = [("x", Tensor), ("w", Tensor), ("y", Tensor), ("schedule", c_uint32), ("reserved", c_uint32 * 7)]


class GemmArgs(ctypes.Structure):
    _fields_ = [("a", Tensor), ("b", Tensor), ("send_rows", POINTER(c_int64)), ("c", Tensor),
                ("recv_rows", POINTER(c_int64)), ("schedule", c_uint32), ("reserved", c_uint32 * 7)]


class Buffer:
    """Memory of the daemon's: a handle, an address in this process and a size. Freed with its connection."""

    def __init__(self, handle, address, size):
        self.handle, self.address, self.size = handle, address, size

    def tensor(self, offset, dtype, *shape):
        """A dense tensor `offset` bytes into the buffer."""
        t = Tensor(self.handle, offset, DTYPES[dtype], len(shape))
        t.shape[:len(shape)] = shape
        return t


class Client:
    """One connection to fccd and at most one communicator. close() frees all that it made."""

    def __init__(self, library, socket, job):
        self.functions = ctypes.CDLL(str(library))
        self.functions.fcc_last_error.restype = c_char_p
        self.functions.fcc_buffer_data.restype = c_void_p
        self.functions.fcc_disconnect.restype = None
        self.functions.fcc_group_begin.restype = None
        self.context, self.comm = c_void_p(), c_void_p()
        options = ConnectOptions(os.fsencode(socket), job.encode())
        self.call("fcc_connect", byref(options), byref(self.context))

    def function(self, name):
        try:
            return getattr(self.functions, name)
        except AttributeError:
            raise Unsupported(f"{self.functions._name} has no {name}; it is older than this program") from None

    def check(self, name, status):
        if status < 0:
            error = Unsupported if status == -errno.EOPNOTSUPP else FccError
            raise error(f"{name}: {self.functions.fcc_last_error().decode(errors='replace')} ({os.strerror(-status)})")

    def call(self, name, *args):
        self.check(name, self.function(name)(*args))

    def unique_id(self):
        uid = UniqueId()
        self.call("fcc_get_unique_id", self.context, byref(uid))
        return ctypes.string_at(byref(uid), ctypes.sizeof(uid))

    def join(self, uid, ranks, rank, device, device_kind, time_limit_ms):
        options = CommOptions(device, time_limit_ms, device_kind)
        self.call("fcc_comm_init", self.context, byref(UniqueId.from_buffer_copy(uid)), c_int(ranks), c_int(rank),
                  byref(options), byref(self.comm))

    def buffer(self, kind, size):
        handle = c_void_p()
        self.call("fcc_buffer_alloc", self.comm, c_int(kind), c_size_t(size), byref(handle))
        address = self.function("fcc_buffer_data")(handle)
        if not address:
            raise FccError(f"fcc_buffer_data: a buffer of {size} bytes is mapped nowhere")
        return Buffer(handle, address, size)

    def run(self, operator, args):
        """Call an operator and wait for its result."""
        self.call(f"fcc_{operator}", self.comm, byref(args))

    def noop(self):
        """All ranks meet."""
        self.call("fcc_noop", self.comm)

    def noop_enqueuer(self, stream):
        """A function that puts a meeting of all ranks on the stream and does not wait."""
        function, handle = self.function("fcc_noop_enqueue"), c_void_p(stream)

        def enqueue():
            status = function(self.comm, handle, None)
            if status < 0:
                self.check("fcc_noop_enqueue", status)
        return enqueue

    def enqueuer(self, operator, stream):
        """A function of the operator's arguments that puts it on the stream and does not wait. error() tells how it went."""
        name = f"fcc_{operator}_enqueue"
        function, handle = self.function(name), c_void_p(stream)

        def enqueue(args):
            status = function(self.comm, byref(args), handle, None)
            if status < 0:
                self.check(name, status)
        return enqueue

    def attended_enqueuer(self, operator, stream):
        """The same, of one that the daemon launches: its end is asked for, though nobody waits for that."""
        name = f"fcc_{operator}_enqueue"
        function, handle = self.function(name), c_void_p(stream)

        def enqueue(args):
            request = c_void_p()
            status = function(self.comm, byref(args), handle, byref(request))
            if status < 0:
                self.check(name, status)
            self.functions.fcc_request_free(request)
        return enqueue

    def prepare(self, operator, args):
        """The operator, to run many times: a handle for prepared_free(). All ranks together. Unsupported where there is no such
        thing."""
        handle = c_void_p()
        self.call(f"fcc_{operator}_prepare", self.comm, byref(args), byref(handle))
        return handle

    def prepared_enqueuer(self, handle, stream):
        """A function that puts a run of what was prepared on the stream and does not wait. noop() tells how it went."""
        function, on = self.function("fcc_prepared_enqueue"), c_void_p(stream)

        def enqueue():
            status = function(handle, on)
            if status < 0:
                self.check("fcc_prepared_enqueue", status)
        return enqueue

    def prepared_free(self, handle):
        """The streams have finished its runs."""
        self.function("fcc_prepared_free")(handle)

    @contextlib.contextmanager
    def group(self):
        """What is enqueued within it by this thread: the streams wait for it only at the end."""
        self.function("fcc_group_begin")()
        try:
            yield
        finally:
            self.call("fcc_group_end")

    def enqueue_and_wait(self, operator, args, stream):
        """Put it on the stream and wait until the daemon, too, is done with it."""
        request = c_void_p()
        self.call(f"fcc_{operator}_enqueue", self.comm, byref(args), c_void_p(stream), byref(request))
        try:
            self.call("fcc_request_wait", request, c_int(-1))
        finally:
            self.functions.fcc_request_free(request)

    def error(self):
        """Raise what went wrong with an operator that was enqueued, if anything."""
        self.call("fcc_comm_error", self.comm)

    def close(self):
        if self.comm:
            self.functions.fcc_comm_destroy(self.comm)
        if self.context:
            self.functions.fcc_disconnect(self.context)
        self.context, self.comm = c_void_p(), c_void_p()
