# SPDX-License-Identifier: MIT
"""Errors as exceptions. Each has the C library's errno value, its text, the rank that the text is about, and a remedy."""
from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable

from . import _names


class Error(Exception):
    """An error of fccd or of its client library.

    Attributes:
        code:   the errno value, positive (errno.EINVAL, ...)
        reason: what is wrong, in words: the rank, the argument, the value and what is allowed
        rank:   the rank that the reason is about (whose argument was wrong, which died or aborted), or this rank if it names
                none; None outside of a communicator
        remedy: what to do about it
    """

    remedy_default = "See fccd's log, and `fccctl doctor`."
    earlier = False  # the error of an operator on a GPU, raised by a later call

    def __init__(self, reason: str, *, code: int = errno.EINVAL, rank: int | None = None, remedy: str | None = None) -> None:
        self.code = code
        self.reason = reason
        named = re.search(r"\brank (\d+)\b", reason)
        self.rank = int(named.group(1)) if named else rank
        self.remedy = remedy or _remedy_of(reason) or self.remedy_default
        super().__init__(reason)

    def __str__(self) -> str:
        return f"{self.reason} ({errno.errorcode.get(self.code, self.code)}). {self.remedy}"

    def one_of(self, operator: str, names: Iterable[str]) -> Error:
        """The same error, about the operator of one of these calls."""
        self.reason = _names.one_of(self.reason, operator, names)
        self.args = (self.reason,)
        return self

    def of_earlier(self) -> Error:
        """The same error, about an earlier call than the one that raises it."""
        self.earlier = True
        return self

    def for_operator(self, operator: str) -> Error:
        """The same error; that of an allocation becomes one of the operator that needed the memory."""
        self.reason = _names.for_operator(self.reason, operator)
        self.args = (self.reason,)
        return self

    def of_rank(self, rank: int) -> Error:
        """The same error, whose reason names the rank."""
        self.rank, self.reason = rank, f"rank {rank}: {self.reason}"
        self.args = (self.reason,)
        return self

    def renamed(self, called: _names.Called, rank: int) -> Error:
        """The same error in the terms of the function that was called (_names.py); unchanged if it is about an earlier call."""
        if self.earlier:
            return self
        self.reason = _names.as_called(self.reason, called, rank)
        self.remedy = _remedy_of(self.reason) or self.remedy
        self.args = (self.reason,)
        return self

    def __reduce__(self) -> tuple:
        return _rebuild, (type(self), self.reason, self.code, self.rank, self.remedy)


_COUNTS = "Where ranks have different numbers of rows, all of them say how many each has: {}=[...]."
_REMEDIES = tuple((re.compile(pattern), remedy) for pattern, remedy in (  # of errors whose reasons do not say what would work
    (r"\bgemv_all_reduce: x: shape\[0\] [1-9]\d*: allowed are 1 to", "fcc.gemm_all_reduce(x, w.t()) takes any number of rows."),
    (r"\b(?:all_)?gather: x: (?:elements that are expected of all ranks:|the ranks' have)", _COUNTS.format("counts")),
    (r"\ball_gather_gemm: rows: their sum:", _COUNTS.format("rows")),
    (r"\bmap: .*: the smallest stride with which", "Take a number of columns with which rows fit, or do as the text says."),
    (r"\btracker: it has one of this", "Close the Tracker that there is, or the RingReduceScatter or RingAllGather of which it is; another communicator (Communicator.split()) has its own.")))


def _remedy_of(reason: str) -> str | None:
    return next((remedy for pattern, remedy in _REMEDIES if pattern.search(reason)), None)


def _rebuild(kind: type[Error], reason: str, code: int, rank: int | None, remedy: str) -> Error:
    return kind(reason, code=code, rank=rank, remedy=remedy)


class ArgumentError(Error, ValueError):
    """An argument is wrong, or the ranks' arguments do not fit together. The communicator goes on."""

    remedy_default = "Correct the argument, on the rank that is named; a communicator that there is can be used further."


class IndexRangeError(Error, IndexError):
    """An index in the data is out of its table's range. The communicator goes on."""

    remedy_default = "Correct the indices on the rank that is named; the communicator can be used further."


class OutOfMemoryError(Error, MemoryError):
    """The memory, this user's share of it, or the communicator's heap for results is used up."""

    remedy_default = "Free tensors, or raise the limit that is named in fccd.conf, such as MEMORY_PER_USER_MB."


class TooManyError(Error):
    """A user or job has as many connections, communicators or operators in flight as allowed, or a process as many open files."""

    remedy_default = "Close communicators, wait for operators, or raise the limit that is named (fccd.conf, `ulimit -n`)."


class PermissionDeniedError(Error, PermissionError):
    """The caller may not use fccd, or not this communicator."""

    remedy_default = "`fccctl doctor` tells whether you may use fccd, and what helps; JOBS_PER_USER in fccd.conf limits a user's jobs."


class NotFoundError(Error, LookupError):
    """No such communicator, buffer or device, or this process does not see the GPU of its rank."""

    remedy_default = "`fccctl devices` lists the devices; CUDA_VISIBLE_DEVICES must let this process see its rank's."


class DriverError(Error):
    """The GPU's driver cannot be used by this process, refused, or failed."""

    remedy_default = "`fccctl doctor` looks at the GPUs and their driver."


class AlreadyJoinedError(Error):
    """This rank has joined already."""

    remedy_default = "Give each process a rank of its own, and each communicator an id of its own."


class UnsupportedError(Error):
    """Not for ranks like these: on one node, on several, or on GPUs, as the reason says."""

    remedy_default = "Give the communicator other ranks: `fccctl comms` shows where they are."


class BusyError(Error):
    """A pool of memory that is still in use."""

    remedy_default = "Drop the tensors that were made in mem_pool()."


class ProtocolError(Error):
    """The library and the daemon do not speak the same protocol."""

    remedy_default = "Install fccd and libfccclient of one version (`fccctl version`)."


class UnreachableError(Error, ConnectionError):
    """A node that cannot be reached from here."""

    remedy_default = "`fccctl nodes` and `fccctl ping ADDRESS` show what this node's fccd can reach."


class TimeLimitError(Error, TimeoutError):
    """A time limit passed. An operator's time limit ends the communicator."""

    remedy_default = "`fccctl comms` shows whom a communicator waits for. Make a new one, with a longer time_limit if need be."


class AbortedError(Error, ConnectionAbortedError):
    """The communicator was aborted, or one of its ranks died or left."""

    remedy_default = "This communicator has ended; make a new one when the rank that is named is back."


class ForkedError(Error, ChildProcessError):
    """A communicator of the process from which this one was forked. The parent goes on; what it has in memory on the cpu can be
    read."""

    remedy_default = ("Call fcc.init() in the child for a communicator of its own, or leave operators to the parent (as with "
                      "workers of a DataLoader).")


class WorkerLostError(Error, ConnectionResetError):
    """The job's worker process is gone, and what it held with it."""

    remedy_default = "Close the communicators of this job and make new ones: the next connection gets a fresh worker."


class NoDaemonError(Error, ConnectionRefusedError):
    """No fccd listens at the socket."""

    remedy_default = "Start fccd (`systemctl start fccd.socket`), or name its socket: $FCCD_SOCKET or init(socket=...)."


class ShutdownError(Error):
    """fccd is shutting down, or the job's worker process was told to end."""

    remedy_default = "Connect again when it is back."


class CaptureError(Error):
    """An operator that a CUDA graph cannot hold, on a stream that is being captured; or any while a stream of another GPU is."""

    remedy_default = (
        "The daemon launches operators when all ranks have come, which a graph cannot replay: prepare the operator, where fcc has "
        "a function whose name begins with prepare_, and capture its runs; or leave it out of the capture, "
        "and capture what is before and behind it as graphs of their own (torch.compile: mode=\"default\", not "
        "\"reduce-overhead\")."
    )


class LibraryError(Error, ImportError):
    """libfccclient cannot be loaded, or it is not the one that this package is for."""

    remedy_default = "Install it (`make install`, `ldconfig`), or name it: FCC_LIBRARY=/path/libfccclient.so.0."


class CopyWarning(UserWarning):
    """A tensor that an operator was given lies outside of the daemon's memory, so it was copied into it."""


_KINDS: dict[int, type[Error]] = {
    errno.EINVAL: ArgumentError,
    errno.ERANGE: IndexRangeError,
    errno.ECHILD: ForkedError,
    errno.ENOMEM: OutOfMemoryError,
    errno.EUSERS: TooManyError,
    errno.EMFILE: TooManyError,
    errno.EPERM: PermissionDeniedError,
    errno.EACCES: PermissionDeniedError,
    errno.ENOENT: NotFoundError,
    errno.ENODEV: DriverError,
    errno.EIO: DriverError,
    errno.EALREADY: AlreadyJoinedError,
    errno.EBUSY: BusyError,
    errno.EOPNOTSUPP: UnsupportedError,
    errno.EXDEV: UnsupportedError,
    errno.EPROTO: ProtocolError,
    errno.EPROTONOSUPPORT: ProtocolError,
    errno.ENETUNREACH: UnreachableError,
    errno.EHOSTUNREACH: UnreachableError,
    errno.ESTALE: WorkerLostError,
    errno.ETIMEDOUT: TimeLimitError,
    errno.ECONNABORTED: AbortedError,
    errno.ECONNRESET: WorkerLostError,
    errno.ECONNREFUSED: NoDaemonError,
    errno.ESHUTDOWN: ShutdownError,
}


def error_of(status: int, reason: str, rank: int | None = None) -> Error:
    """The exception for a negative status of the C library."""
    code = -status
    if code == errno.EOPNOTSUPP and "being captured into a graph" in reason:
        return CaptureError(reason, code=code, rank=rank)
    if code == errno.ETIMEDOUT and "does not answer" in reason:
        return TimeLimitError(_names.in_python(reason), code=code, rank=rank, remedy=(
            "The process that is named is stopped or hangs: continue or end it (`fccctl status` shows it), close the communicators "
            "of this job, and make new ones."))
    return _KINDS.get(code, Error)(_names.in_python(reason) or os.strerror(code), code=code, rank=rank)
