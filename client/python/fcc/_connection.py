# SPDX-License-Identifier: MIT
"""Connections to the daemon (one for each socket and job), a rank's membership of a communicator, and buffers.

References keep an object's owner alive: a tensor's storage holds its Buffer, a Buffer its Member, a Member its Connection. Each frees
its C object when the last reference goes. A forked child cannot use its parent's connection (the C library refuses it), so nothing is
freed there.
"""
from __future__ import annotations

import ctypes
import errno
import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch

from . import _library, _private
from ._library import library
from .errors import CaptureError, DriverError, Error, NoDaemonError, error_of

WAIT_SLICE_S = 0.05  # time until Ctrl-C is noticed while waiting for other ranks


def interruptible(call: Callable[[], int], interrupted: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run what may wait for other ranks so that Ctrl-C ends the wait at once. Returns (status, error text).

    Python runs signal handlers in its main thread, between instructions: so there the call runs in another thread.
    `interrupted` is called before the interrupt goes on; the call itself ends when it ends, or with the process.
    """
    found: list[tuple[int, str]] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            status = call()
            found.append((status, library().last_error_text() if status < 0 else ""))
        except BaseException as e:  # the caller gets the exception
            raised.append(e)

    def result() -> tuple[int, str]:
        if raised:
            raise raised[0]
        return found[0]

    if threading.current_thread() is not threading.main_thread():
        run()
        return result()
    thread = threading.Thread(target=run, name="fcc-call", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(WAIT_SLICE_S)
    except BaseException:
        if interrupted:
            interrupted()
        raise
    return result()


class Connection:
    """A connection to fccd and through it to the worker of this user's job, and the memory that this process has through it."""

    _all: weakref.WeakValueDictionary[tuple, Connection] = weakref.WeakValueDictionary()
    _all_lock = threading.RLock()

    def __init__(self, socket: str | None, job: str | None) -> None:
        options = _library.ConnectOptions(os.fsencode(socket) if socket else None, job.encode() if job else None)
        handle = ctypes.c_void_p()
        library().check(library().connect(ctypes.byref(options), ctypes.byref(handle)))
        self.handle = handle
        # address -> (end, fcc_buffer *). Buffers may be added in any thread, and removed at any moment (by the garbage collector).
        self._buffers: dict[int, tuple[int, int]] = {}
        self._owners: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()  # key: fcc_buffer *
        self._pooled: dict[int, tuple[int, int]] = {}  # like _places, for buffers of torch's allocator, which may free them without notice
        self._pool_frees = ctypes.c_uint64.from_address(library().pool_frees())  # but counts the frees
        self._seen_frees = self._pool_frees.value
        self._version = 0
        # _places for searching: starts, ends and handles, sorted. The first row is an empty buffer at 0, so that the search always finds
        # one. Never changed, only replaced.
        self.places: tuple[list[int], list[int], list[int]] = ([0], [0], [0])
        weakref.finalize(self, _connection_end, os.getpid(), handle).atexit = False

    @classmethod
    def of(cls, socket: str | None, job: str | None) -> Connection:
        """This process's connection to that socket and job. None: the library's defaults."""
        key = (os.getpid(), socket or os.environ.get("FCCD_SOCKET"), job or os.environ.get("FCCD_JOB"))
        with cls._all_lock:
            found = cls._all.get(key)
            if found is None:
                found = cls._all[key] = cls._open(socket, job)
            return found

    @classmethod
    def _open(cls, socket: str | None, job: str | None) -> Connection:
        """A new one: where no socket is named, to the job's private fccd if there is one, or to the default socket, or to a private fccd that is
        started."""
        named = socket or os.environ.get("FCCD_SOCKET") or _private.find()
        if named:
            return cls(named, job)
        try:
            return cls(None, job)
        except NoDaemonError:
            pass
        return cls(_private.start(), job)

    def current(self) -> tuple[list[int], list[int], list[int]]:
        """The places, without buffers that torch's allocator has freed meanwhile."""
        if self._pool_frees.value != self._seen_frees:
            self._seen_frees = self._pool_frees.value
            self._pooled.clear()
            self._sort()
        return self.places

    def find(self, address: int) -> tuple[int, int] | None:
        """(fcc_buffer *, offset) of an address in the daemon's memory; None for any other."""
        starts, ends, handles = self.current()
        i = bisect_right(starts, address) - 1
        if address < ends[i]:
            return handles[i], address - starts[i]
        handle = library().buffer_find(self.handle, address)
        if not handle:
            return None
        start = library().buffer_data(handle)  # a buffer of torch's allocator, from mem_pool()
        self._pooled[start] = (start + library().buffer_size(handle), handle)
        self._sort()
        return handle, address - start

    def owner(self, handle: int) -> Buffer | None:
        """The owner of that buffer: whoever holds it keeps the memory, whatever becomes of tensors over it. None for a buffer of torch's
        allocator, which a storage keeps."""
        return self._owners.get(handle)

    def place_set(self, start: int, end_and_handle: tuple[int, int] | None) -> None:
        """Adds a buffer, or (None) removes it."""
        if end_and_handle is None:
            del self._buffers[start]
        else:
            self._buffers[start] = end_and_handle
        self._sort()

    def _sort(self) -> None:
        """Makes the sorted places again. Without a lock, because the garbage collector may remove a buffer while this thread is in here:
        a thread that was overtaken sees another version and sorts again."""
        seen = None
        self._version += 1
        while seen != self._version:
            seen = self._version
            rows = [(0, (0, 0)), *sorted((self._buffers | self._pooled).items())]
            self.places = ([start for start, _ in rows], [row[0] for _, row in rows], [row[1] for _, row in rows])


def _forked() -> None:
    """In the child of a fork: replaces the lock, which another thread of the parent may have held."""
    Connection._all_lock = threading.RLock()
    Connection._all.clear()


os.register_at_fork(after_in_child=_forked)


def _connection_end(pid: int, handle: ctypes.c_void_p) -> None:
    if os.getpid() == pid:
        library().disconnect(handle)


def reason_bytes(reason: str) -> bytes:
    """The first 200 bytes of a reason. Bytes that are not text (as in file names in errors) are replaced."""
    return reason.encode(errors="replace")[:200].decode(errors="ignore").encode()


class Member:
    """This process as a rank of one communicator: what the C library calls fcc_comm."""

    def __init__(self, connection: Connection, handle: ctypes.c_void_p) -> None:
        self.connection, self.handle = connection, handle
        self.ended = False  # aborted by this process: no more calls
        self.heir: Member | None = None  # to which the buffers belong since shrink(): it stays as long as they do
        self._launches: bool | None = None
        self._multiplies: bool | None = None
        weakref.finalize(self, _member_end, os.getpid(), handle, connection).atexit = False
        self.rank: int = library().comm_rank(handle)
        self.size: int = library().comm_size(handle)
        self.on_gpu: bool = library().comm_device_kind(handle) != _library.DEVICE_CPU
        self.device = torch.device("cpu")
        if self.on_gpu:  # torch's number of the GPU is that of a first buffer on it
            self.device = torch.as_tensor(_CudaMemory(*(probe := Buffer(self, 1, _library.LOCAL), probe.address, 1))).device

    @torch.compiler.assume_constant_result  # it does not change, and a compiler cannot trace how it is found
    def launches(self) -> bool:
        """Whether this process launches the communicator's plain collectives itself, with tensors anywhere on its GPU. The first call is
        collective: all ranks make it for their first collective, or when they compile that."""
        if self._launches is None:
            self._launches = self.on_gpu and self._launches_find()
        return self._launches

    def multiplies(self) -> bool:
        """The same for gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm."""
        if self._multiplies is None:
            self._multiplies = self.on_gpu and self._launches_find(library().products_prepare)
        return self._multiplies

    def _launches_find(self, prepare: Callable[[Any], int] | None = None) -> bool:
        if torch.cuda.is_current_stream_capturing():  # it allocates and maps memory, which a capture does not permit
            raise CaptureError(f"rank {self.rank}: the communicator's first collective: its stream is being captured into a graph: not allowed",
                               rank=self.rank, remedy="Call a collective of this communicator once before the capture.")
        status, text = interruptible(lambda: (prepare or library().collectives_prepare)(self.handle), self.interrupted)
        if status < 0 and status != -errno.EOPNOTSUPP:
            raise self.error(status, text)
        return status == 0

    def abort(self, reason: str) -> None:
        """Aborts the communicator; all ranks get the reason (its first 200 bytes). Errors are ignored: the communicator has ended in any
        case."""
        self.ended = True
        library().comm_abort(self.handle, reason_bytes(reason))

    def interrupted(self) -> None:
        self.abort("interrupted (Ctrl-C or another signal)")

    def error(self, status: int, text: str | None = None) -> Error:
        return error_of(status, library().last_error_text() if text is None else text, self.rank)


def _member_end(pid: int, handle: ctypes.c_void_p, _connection: Connection) -> None:
    if os.getpid() == pid:
        library().comm_destroy(handle)


class Buffer:
    """Memory that the daemon allocated and this process has mapped, zeroed at first. It goes with the last reference to it,
    which the storage of a tensor over it may be.

    On a GPU its end waits for the GPU, as cudaFree does, because kernels of any stream may use it. Where that is not possible
    (a stream is being captured), the buffer stays until its communicator ends.
    """

    def __init__(self, member: Member, nbytes: int, kind: int) -> None:
        handle, asked = ctypes.c_void_p(), min(nbytes, (1 << 63) - 1)  # of a number that is longer ctypes would take the last 64 bits

        def call() -> int:
            return library().buffer_alloc(member.handle, kind, asked, ctypes.byref(handle))

        if kind == _library.SYMMETRIC:  # a symmetric allocation waits for the other ranks
            status, text = interruptible(call, member.interrupted)
        else:
            status = call()
            text = library().last_error_text() if status < 0 else ""
        if status < 0:
            raise member.error(status, text.replace(f"bytes: {asked}: ", f"bytes: {nbytes}: "))
        self.member = member
        self.handle: int = handle.value or 0
        self.address: int = library().buffer_data(handle)
        self.nbytes, self.kind = nbytes, kind
        member.connection._owners[self.handle] = self
        member.connection.place_set(self.address, (self.address + nbytes, self.handle))
        weakref.finalize(self, _buffer_end, os.getpid(), member, self.handle, self.address).atexit = False

    def view(self, offset: int, nbytes: int, holder: object = None) -> torch.Tensor:
        """Some of the buffer's bytes as a tensor [nbytes] of uint8 with a storage of its own, which holds the buffer, or `holder`, which
        holds the buffer."""
        return bytes_at(self.member, self.address + offset, nbytes, self if holder is None else holder)


def bytes_at(member: Member, address: int, nbytes: int, holder: object) -> torch.Tensor:
    """Memory of the member's device as a tensor [nbytes] of uint8, whose storage holds `holder`."""
    if not member.on_gpu:
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        setattr(memory, "owner", holder)
        return torch.frombuffer(memory, dtype=torch.uint8)
    found = torch.as_tensor(_CudaMemory(holder, address, nbytes), device=member.device)
    if found.data_ptr() != address:
        raise DriverError(f"memory at {address:#x} is not memory of {found.device}", rank=member.rank)
    return found


class _CudaMemory:
    """GPU memory in the form that torch takes without a copy. The storage holds this object, and so the buffer."""

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self.owner = owner
        self.__cuda_array_interface__ = {"data": (address, False), "typestr": "|u1", "shape": (nbytes,), "strides": None,
                                         "version": 3}


def _buffer_end(pid: int, member: Member, handle: int, address: int) -> None:
    if os.getpid() != pid:
        return
    member.connection.place_set(address, None)
    if member.on_gpu:
        try:
            torch.cuda.synchronize(member.device)
        except RuntimeError:  # not possible while a stream is captured; a failed GPU needs no care
            return
    library().buffer_free(handle)
