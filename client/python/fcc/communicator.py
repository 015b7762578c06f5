# SPDX-License-Identifier: MIT
"""Communicators: the ranks that call operators together."""
from __future__ import annotations

import atexit
import ctypes
import errno
import itertools
import os
import re
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import torch

from . import _dispatch, _library
from ._communicator.refusals import refuse, refuse_to_join
from ._communicator.waits import errors_await, noop, request_wait, stream_await
from ._connection import Buffer, Connection, Member, interruptible, reason_bytes
from ._memory.copies import Copies
from ._library import library
from ._names import Called, told_of
from ._place import INT64_MOST, excluded_check, options_check, place_check, split_check, whole
from ._memory.pool import Pool
from .errors import ArgumentError, Error, ForkedError

told_of("split")


def _member(connection: Connection, handle: ctypes.c_void_p) -> Member:
    """Completes joining. If the rank cannot stay, the other ranks get the reason at their next operator."""
    try:
        return Member(connection, handle)
    except BaseException as e:
        library().comm_abort(handle, reason_bytes(str(e)))
        raise


def _no_stream(index: int) -> int:
    return 0


class Prepared:
    """A communicator's calls that may be repeated, with all that such a call needs: _direct.py."""

    __slots__ = ("arguments", "comm", "comm_error", "connection", "count", "current_stream", "enqueue", "handle", "index",
                 "on_gpu", "places", "unlooked")

    def __init__(self, comm: Communicator) -> None:
        member = comm._member
        self.comm, self.connection, self.on_gpu = comm, member.connection, member.on_gpu
        self.handle = ctypes.c_void_p.from_param(member.handle.value)
        self.enqueue = library().untyped("fcc_gemv_all_reduce_enqueue")
        self.comm_error = library().untyped("fcc_comm_error")
        self.current_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream if self.on_gpu else _no_stream
        self.index: int = comm.device.index or 0  # torch's number of the GPU
        self.arguments: dict[int, dict[int, dict[int, Any]]] = {}  # keys: the stream, the address of w, the address of x
        self.count = 0  # number of kept calls
        self.places: Any = None  # the Connection's places for which they are valid
        self.unlooked = 0  # calls left before their errors are checked


class Communicator:
    """A set of ranks that call operators together, and this process's place among them.

    Making one waits until all ranks have joined. Every rank calls the same operators in the same order.

    Args:
        rank, size, id: this rank, the number of ranks (1 to 1024, on GPUs 64) and what unique_id() gave, the same on all ranks. None of them:
            what the launcher says (environment()); then all ranks make their communicators in the same order.
        device: "cpu", or "cuda" (torch's name for AMD's GPUs, too), the same kind on all ranks. With a number it is the device
            that `fccctl devices` shows under that number; without, devices are dealt out by rank.
        time_limit: seconds that an operator may wait for its ranks or run; None: the daemon's TIME_LIMIT_MS.
            The shortest of the ranks' is in force on all of them.
        heap_bytes: the most that this rank's results may take, in bytes: those that live at the same time must fit. None:
            $FCC_HEAP_BYTES, or as much as the daemon lets the user have. It is taken as it is needed; reserve() takes some at
            once.
        socket, job: the daemon's socket and the job; None: $FCCD_SOCKET and $FCCD_JOB, or the library's defaults. Where no socket is named and
            none listens at the default one, the ranks of a node start a private daemon, which ends with them.

    Attributes:
        rank, size: as given
        device: the torch.device where its memory lies
        name: what torch.ops.fcc.* take for it, a string; different on each rank, because graphs that torch.compile keeps may be

    It is a context manager, which closes it, and aborts it for all ranks if an exception comes through.

    Raises: ArgumentError, AlreadyJoinedError, NotFoundError (device), DriverError, OutOfMemoryError, TimeLimitError,
        AbortedError, WorkerLostError, NoDaemonError, UnreachableError.
    """

    def __init__(self, *, rank: int | None = None, size: int | None = None, id: bytes | None = None,
                 device: str | torch.device = "cpu", time_limit: float | None = None, heap_bytes: int | None = None,
                 socket: str | None = None, job: str | None = None) -> None:
        rank, size = place_check(rank, size, id, socket, job)
        try:
            options, heap = options_check(device, time_limit, heap_bytes)
        except Exception as e:
            raise refuse_to_join(e, rank, size, id, socket, job) from None
        connection = Connection.of(socket, job)
        handle = ctypes.c_void_p()

        def join() -> int:
            if id is None:
                return library().comm_init_env(connection.handle, ctypes.byref(options), ctypes.byref(handle))
            return library().comm_init(connection.handle, ctypes.byref(_library.UniqueId.from_buffer_copy(id)), size, rank,
                                       ctypes.byref(options), ctypes.byref(handle))

        status, text = interruptible(join)
        if status < 0:
            raise _library.error_of(status, text, rank)
        self._begin(_member(connection, handle), heap)

    @classmethod
    def _of(cls, member: Member, heap: int | None) -> Communicator:
        """A communicator that this process has joined already."""
        comm = cls.__new__(cls)
        comm._begin(member, heap)
        return comm

    def _begin(self, member: Member, heap: int | None) -> None:
        self._member = member
        self._heap_bytes = heap
        self.rank: int = self._member.rank
        self.size: int = self._member.size
        self.device: torch.device = self._member.device
        self.name = f"fcc{next(_numbers)}/{self.rank}of{self.size}"
        self._heap: Pool = Pool(lambda nbytes: Buffer(member, nbytes, _library.RESULT), heap,
                                f"rank {self.rank}: memory for results",
                                "Drop results earlier, or raise the limit: init(heap_bytes=...), $FCC_HEAP_BYTES, or "
                                "Communicator.reserve().")
        self._local: Pool = Pool(lambda nbytes: Buffer(member, nbytes, _library.LOCAL), None,
                                 f"rank {self.rank}: memory for inputs",
                                 "Free tensors, or raise MEMORY_PER_USER_MB in fccd.conf.")
        self._copies = Copies()
        self._prepared = Prepared(self)
        self._ones: dict[torch.dtype, torch.Tensor] = {}
        self._captured: list[torch.Tensor] = []  # tensors whose memory CUDA graphs use
        self._pool: Any = None  # the torch.cuda.MemPool of mem_pool()
        self._expected: deque[tuple] = deque()  # enqueued operators whose results are yet to be checked
        self._calls: dict[str, dict[str, Called | None]] = {}  # by operator: the functions that were called, if not the operator itself
        self._operators: weakref.WeakSet[Any] = weakref.WeakSet()  # prepared ones
        if member.on_gpu:
            _dispatch.learn(torch.empty(0, device=self.device))
        _by_name[self.name] = self
        _prepared[self.name] = self._prepared

    def __repr__(self) -> str:
        return f"<fcc.Communicator {self.name}: rank {self.rank} of {self.size} on {self.device}>"

    def __copy__(self) -> Communicator:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Communicator:
        """Returns itself: copies of objects that use a communicator use the same one."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a communicator belongs to its process and cannot be pickled: give Communicator.name to what runs in the "
                        "same process, and another process makes its own with init(). Of a module that has one, torch.save() takes the state_dict()")

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.name in _parents:
            return
        if error is not None and self.name in _by_name and not self._member.ended:
            self.abort(f"{kind.__name__ if kind else 'error'}: {error}")
        self.close()

    @property
    def member(self) -> Member:
        """The C library's part. Raises ArgumentError after close(), ForkedError in a child."""
        if self.name not in _by_name:
            forked_check(self.name)
            raise ArgumentError(f"communicator {self.name}: it has been closed", rank=self.rank)
        return self._member

    @property
    def is_open(self) -> bool:
        """It has not been closed."""
        return self.name in _by_name

    def abort(self, reason: str = "") -> None:
        """End the communicator for all ranks: their operators end with AbortedError, this rank and `reason` in its text."""
        self.member.abort(reason)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """New communicators of this one's ranks, as MPI_Comm_split() makes them. All ranks call it; those with the same color (0 and more) get
        one of their own, in the order of their keys, and of their ranks where keys are equal. color None: this rank is in none, and gets None.

        Raises: ArgumentError (on all ranks, and this communicator goes on), TimeLimitError, AbortedError (a rank is gone), and what
        Communicator() raises."""
        member, handle = self.member, ctypes.c_void_p()
        try:
            split_check(self.rank, color, key)
        except ArgumentError as e:
            raise refuse(self, "noop", e) from None
        noop(member)  # where each rank hears of a wrong argument of another one, for which it would wait
        undefined = -32766 if color is None else color
        status, text = interruptible(lambda: library().comm_split(member.handle, undefined, key, None, ctypes.byref(handle)))
        if status < 0:
            raise member.error(status, text)
        return Communicator._of(_member(member.connection, handle), self._heap_bytes) if handle.value else None

    def shrink(self, exclude: Sequence[int] = ()) -> Communicator:
        """A new communicator of the ranks that are left, when a rank or a node has died or the communicator was aborted. All that are left
        call it, and agree on who that is; they keep their order, their device and their tensors: those in the daemon's memory may be given
        to the new communicator's operators. What an operator that was broken off has stored is undefined. Ranks that are alive are
        waited for, at most for the time limit, unless they are among `exclude`, which is the same on all ranks. This communicator is
        closed; if it was the default one, the new one is.

        On GPUs under MPS a rank's death takes the contexts of the others along: WorkerLostError, and the job starts again.

        Raises: ArgumentError (exclude; on all that are left, and they may call it again), TimeLimitError (a rank did not come: the text names it),
        AbortedError (the others have excluded this rank), WorkerLostError, and what Communicator() raises."""
        global _default
        member, handle = self.member, ctypes.c_void_p()
        try:
            given = excluded_check(self.rank, self.size, exclude)
        except ArgumentError:
            interruptible(lambda: library().comm_shrink(member.handle, None, -1, ctypes.byref(handle)))  # the others hear of it
            raise
        ranks = (ctypes.c_int32 * max(len(given), 1))(*given)
        status, text = interruptible(lambda: library().comm_shrink(member.handle, ranks, len(given), ctypes.byref(handle)))
        if status < 0:
            raise member.error(status, text)
        made = Communicator._of(_member(member.connection, handle), self._heap_bytes)
        member.heir = made._member
        was_default = _default is self
        self.close()
        if was_default:
            _default = made
        return made

    def barrier(self) -> None:
        """Wait until all ranks have come here and all operators before are done; on a GPU, those on its streams, too."""
        member = self.member
        if member.on_gpu:
            self.synchronize()
        noop(member)

    def synchronize(self) -> None:
        """Wait for the current stream (on the cpu operators are done when they return), and raise what operators on it met
        with.

        Unlike torch.cuda.synchronize() it ends with Ctrl-C."""
        member = self.member
        if not member.on_gpu:
            return
        stream_await(self)
        self.check(wait=True)

    def _settle(self) -> None:
        """The same for the operators that have been called, and no more: if they have done what they should, the end of the communicator behind them is no error
        of theirs, as when another rank has left that needs nothing more."""
        if self.member.on_gpu:
            stream_await(self)
            self._check(wait=True)

    def check(self, *, wait: bool = False) -> None:
        """Raise the first error of operators on streams that have finished, if there is one. Operators do this themselves, too,
        so an error comes with one of the next calls, whose own operator runs all the same but has no result then. wait: for those whose received rows are still to be checked, and until
        it is known how those went that streams have gone past."""
        self._check(wait)
        if self._operators and self._is_over():  # nothing else reports errors of their runs
            noop(self.member)  # ends at once, with the reason

    def _check(self, wait: bool) -> None:
        member = self.member
        while self._expected:
            request, received, expected = self._expected[0]
            done = ctypes.c_int()
            library().request_test(request, ctypes.byref(done))
            if not done.value and not wait:
                break
            self._expected.popleft()
            try:
                request_wait(member, request)
                rows_check(member, list(received), expected)
            except Error as e:
                if expected.called:
                    e.renamed(expected.called, member.rank)
                raise e.of_earlier() from None
        status = errors_await(member) if wait else library().comm_error(member.handle)
        if status < 0:
            raise self._later_error(status)

    def _earlier(self) -> Error | None:
        """The first error of finished operators on streams. The call that finds it raises it after submitting its own operator. Ranks
        find an error in different calls, and each call must be an operator on all ranks, or they would get out of step."""
        member = self._member
        try:
            if self._expected:
                self.check()
                return None
        except Error as e:
            return e
        status = library().comm_error(member.handle)
        return self._later_error(status) if status < 0 else None

    def _later_error(self, status: int, text: str | None = None) -> Error:
        """The error of an operator on a stream, in the terms of the function that was called. The C library names the operator, but not
        the call. If several functions have used the operator on this communicator, all of them are named."""
        error = self._member.error(status, text)
        for operator, calls in self._calls.items():
            if not re.search(rf"\b{operator}\b", error.reason):
                continue
            if len(calls) > 1:
                error.one_of(operator, calls)
            elif called := next(iter(calls.values())):
                error.renamed(called, self.rank)
        return error.of_earlier()

    def _is_over(self) -> bool:
        member, word = self.member, ctypes.c_void_p()
        status = library().comm_status(member.handle, ctypes.byref(word))
        if status < 0:
            raise member.error(status)
        return ctypes.c_int32.from_address(word.value or 0).value != 0

    def reserve(self, nbytes: int) -> None:
        """Take `nbytes` more for results now, so that operators need not stop for it, and add it to the limit if there is one.
        Each rank by itself."""
        if whole(nbytes, 1, INT64_MOST) is None:
            raise ArgumentError(f"nbytes: {nbytes!r:.40}: allowed are 1 and more", rank=self.rank)
        _ = self.member
        self._heap.add(nbytes)

    def close(self) -> None:
        """Leave the communicator: for the other ranks it has ended then. Operators in flight are waited for. As long as tensors
        over its memory live, their memory stays, and the others are told only when the last has gone."""
        global _default
        if _by_name.pop(self.name, None) is None:
            return
        del _prepared[self.name]
        if _default is self:
            _default = None
        if self._member.on_gpu:
            torch.cuda.synchronize(self.device)
        for request, _, _ in self._expected:
            library().request_free(request)
        self._expected.clear()
        for operator in list(self._operators):
            operator.close()
        from .mem_pool import gpu_pool_close  # imported here: mem_pool imports this module
        gpu_pool_close(self)
        for name in _UNTIL_CLOSED:
            delattr(self, name)

    def __getattr__(self, name: str) -> Any:
        """What is not there. A thread that is within a call while another one closes the communicator gets the reason."""
        if name in _UNTIL_CLOSED:
            raise ArgumentError(f"communicator {self.__dict__.get('name', '')}: it has been closed, by another thread during this call", rank=self.__dict__.get("rank"),
                                remedy="Let the threads that use a communicator come to their end before it is closed; abort() ends their calls.")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def _one(self, dtype: torch.dtype) -> torch.Tensor:
        """A 1 as [1][1] in the daemon's memory."""
        found = self._ones.get(dtype)
        if found is None:
            found = self._local.take((1, 1), dtype, 0)[0]
            found.fill_(1)
            if self._member.on_gpu:  # visible to all streams
                torch.cuda.current_stream(self.device).synchronize()
            self._ones[dtype] = found
        return found


class Expected(NamedTuple):
    """How many rows the caller expects from each rank; and the function that was called, if it is not the operator."""

    op: str
    rows: list[int]
    called: Called | None = None


def rows_check(member: Member, received: list[int], expected: Expected) -> None:
    """Checks that the expected rows have come."""
    if received != expected.rows:
        raise ArgumentError(f"rank {member.rank}: {expected.op}: recv_rows: {expected.rows}: the ranks sent {received}")


_UNTIL_CLOSED = ("_heap", "_local", "_copies", "_ones", "_captured", "_prepared", "_member")  # attributes
_numbers = itertools.count()
_by_name: dict[str, Communicator] = {}
_prepared: dict[str, Prepared] = {}  # the same ones
_parents: dict[str, Communicator] = {}  # communicators that this process's parent had at the fork
_default: Communicator | None = None


def init(*, rank: int | None = None, size: int | None = None, id: bytes | None = None, device: str | torch.device = "cpu",
         time_limit: float | None = None, heap_bytes: int | None = None, socket: str | None = None,
         job: str | None = None) -> Communicator:
    """Join a communicator and make it the default one: the one that functions use which are given none.

    Without rank, size and id, under torchrun, Open MPI, MPICH or Slurm, that is the communicator of all processes that the
    launcher has started. Arguments, errors: Communicator."""
    global _default
    _default = Communicator(rank=rank, size=size, id=id, device=device, time_limit=time_limit, heap_bytes=heap_bytes,
                            socket=socket, job=job)
    return _default


def default() -> Communicator:
    """The communicator that init() has made. Raises ArgumentError if there is none."""
    if _default is None:
        raise ArgumentError("comm: no communicator is given, and there is no default one", remedy="Call fcc.init() first.")
    forked_check(_default.name)
    return _default


def chosen(comm: Communicator | None, called: str) -> Communicator:
    """The communicator that a call of that function is for: `comm`, or the default one. Raises ArgumentError for what is no communicator."""
    if comm is None:
        return default()
    if not isinstance(comm, Communicator):
        raise ArgumentError(f"{called}: comm: {type(comm).__name__}: allowed are a Communicator, and None for the default one")
    return comm


def find(name: str) -> Communicator:
    """The communicator of that name. Raises ArgumentError if there is none (any more)."""
    try:
        return _by_name[name]
    except KeyError:
        forked_check(name)
        raise ArgumentError(f"comm: \"{name}\": no such communicator in this process, or it has been closed",
                            remedy="Give Communicator.name of one that is open.") from None


def forked_check(name: str) -> None:
    """Raises ForkedError if the communicator of that name is the parent's."""
    if name in _parents:
        raise ForkedError(f"communicator {name}: it is of the process from which this one (pid {os.getpid()}) was forked: a "
                          "child cannot use what its parent connected", code=errno.ECHILD, rank=_parents[name].rank)


class _ParentsPool:
    """In a child, replaces a pool of its parent, whose memory the parent reuses."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        forked_check(self._name)
        raise AttributeError(name)


def _forked() -> None:
    """In the child of a fork: keeps the parent's communicators only to refuse them. They and all that they hold stay alive: nothing of
    the parent's may end here."""
    _parents.update(_by_name)
    _by_name.clear()
    _prepared.clear()
    for name, comm in _parents.items():
        setattr(comm, "_heap", _ParentsPool(name))
        setattr(comm, "_local", _ParentsPool(name))


os.register_at_fork(after_in_child=_forked)


def rank_of(name: str) -> int:
    """This process's rank in it; -1 if there is none (any more)."""
    found = _by_name.get(name)
    return -1 if found is None else found.rank


@atexit.register
def _close_all() -> None:
    for comm in list(_by_name.values()):
        comm.close()
