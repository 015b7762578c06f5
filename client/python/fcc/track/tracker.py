# SPDX-License-Identifier: MIT
"""Trackers: rules by which what is counted as produced is stored, added and told at other ranks.

    come = fcc.zeros(2, dtype=torch.int64, symmetric=True)          # words: what has come here, and what the next rank has used
    tracker = fcc.Tracker()
    send = tracker.store(mine, place, rank=next, count=4, signal=(come, 0), awaits=[(come, 1, 1)])
    for run in range(1, runs + 1):
        for piece in range(4):
            ...                                                      # a quarter of `mine`
            send.add()                                               # the fourth lets it go
        fcc.signal_wait(come, 0, run)                                # the rank before has stored into `place`
"""
from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import communicator
from .._connection import Member, interruptible
from .._place import INT32_MOST, INT64_MOST
from .._communicator.waits import WAIT_SLICE_MS
from ..communicator import Communicator
from ..errors import ArgumentError
from ._functions import AWAITS, Await, RuleStruct, functions, memory_of, milliseconds, number, place

SIGNAL, STORE, ADD = range(3)
AGAIN = -11  # -EAGAIN
_SUMS = {torch.float32: 1, torch.float16: 2, torch.bfloat16: 3}
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64)


def _waited(member: Member, wait: Callable[[int], int], milliseconds: int | None) -> bool:
    """Waits in slices, so that Ctrl-C is noticed. False: it has not come within so many milliseconds."""
    if milliseconds is not None:
        status = wait(milliseconds)
    else:
        status = wait(WAIT_SLICE_MS)
        if status == AGAIN:  # it takes long: then by the library's own limit
            status, text = interruptible(lambda: wait(-1), member.interrupted)
            if status < 0:
                raise member.error(status, text)
    if status < 0 and status != AGAIN:
        raise member.error(status)
    return status >= 0


def _word(words: Any, index: Any, what: str, comm: Communicator) -> tuple[int, int]:
    """(fcc_buffer *, offset) of a word."""
    if not isinstance(words, torch.Tensor) or not isinstance(index, int):
        raise ArgumentError(f"{what}: {type(words).__name__}, index {index!r:.40}: allowed are words of a dense tensor of int64", rank=comm.rank)
    if words.layout != torch.strided or words.dtype != torch.int64 or not words.is_contiguous() or not 0 <= index < words.numel():
        raise ArgumentError(f"{what}: {words.dtype} {tuple(words.shape)}, index {index}: allowed are words of a dense tensor of int64",
                            rank=comm.rank)
    buffer, offset = place(words, what, comm)
    return buffer, offset + 8 * index


def signal_wait(words: torch.Tensor, index: int, value: int, timeout: float | None = None, comm: Communicator | None = None) -> bool:
    """Wait until word `index` of a symmetric int64 tensor is at least `value`; what was stored before it is there then. `timeout`: seconds,
    then False; None: the communicator's time limit, which ends the communicator on all ranks. On cpu devices.

    Raises: ArgumentError, TimeLimitError, and what has ended the communicator.
    """
    comm = communicator.chosen(comm, "signal_wait")
    _word(words, index, "signal_wait: words", comm)
    least = number(value, "signal_wait: value", comm, 0)
    member, address = comm.member, words.data_ptr() + 8 * index
    return _waited(member, lambda ms: functions().fcc_signal_wait(member.handle, address, least, ms), milliseconds(timeout, "signal_wait: timeout", comm))


def _tuple(value: Any, n: int, what: str, allowed: str, comm: Communicator) -> Sequence[Any]:
    if not isinstance(value, (tuple, list)) or len(value) != n:
        raise ArgumentError(f"{what}: {type(value).__name__}: allowed is {allowed}", rank=comm.rank)
    return value


class Rule:
    """A rule of a Tracker. Run n is produced when n times its count have been added."""

    def __init__(self, tracker: Tracker, number: int) -> None:
        self.tracker, self.number = tracker, number
        self._add = functions().fcc_tracker_add

    def add(self, n: int = 1) -> None:
        """Count n. What this thread has stored before is part of the run."""
        if type(n) is not int or not 0 <= n <= INT64_MOST:
            n = number(n, "Rule.add: n", self.tracker.comm, 0)
        status = self._add(self.tracker._live(), self.number, n)
        if status < 0:
            raise self.tracker._member.error(status)

    def add_enqueue(self, n: int = 1) -> None:
        """Count n when the GPU's current stream (torch's, of the communicator's device) has come to this point: what it has stored before is part of
        the run. May be captured into a CUDA graph, whose replays count again.

        Raises: UnsupportedError (a cpu device), ArgumentError."""
        count = number(n, "Rule.add_enqueue: n", self.tracker.comm, 0)
        self._enqueue(lambda handle, stream: functions().fcc_tracker_add_enqueue(handle, self.number, count, stream))

    def wait_enqueue(self) -> None:
        """Let the GPU's current stream wait until the last run is done that has been counted for when the stream comes to this point. What follows
        there sees what the rule's words, and those that it awaits, have told of; so a signal() rule that awaits another rank's word lets the
        stream wait for that rank. The stream goes on, too, when the rule or the communicator has ended: the next call of the communicator
        says why. May be captured, as add_enqueue().

        Raises: UnsupportedError (a cpu device), ArgumentError."""
        self._enqueue(lambda handle, stream: functions().fcc_tracker_wait_enqueue(handle, self.number, stream))

    def run_enqueue(self) -> None:
        """Let the GPU's current stream itself work off the rule's next run when it comes to this point: it waits for the words that the rule awaits, a copy
        engine stores its rows (or a few workgroups add them) behind all that the stream has done before, and the signal is raised. What follows
        on the stream sees all of it. No thread of the CPU has a part in it. May be captured: replays are further runs. Such a rule is not
        counted for, and the program orders the streams that have its runs.

        Raises: UnsupportedError (a cpu device), ArgumentError (it is counted for), NotFoundError (a tensor's memory has been freed)."""
        self._enqueue(lambda handle, stream: functions().fcc_tracker_run_enqueue(handle, self.number, stream))

    def _enqueue(self, call: Callable[[Any, int], int]) -> None:
        on_gpu = self.tracker.comm.device.type == "cuda"
        status = call(self.tracker._live(), torch.cuda.current_stream(self.tracker.comm.device).cuda_stream if on_gpu else 0)
        if status < 0:
            raise self.tracker._member.error(status)

    @property
    def count(self) -> int:
        """The address of the count, for kernels that raise it themselves: fcc.triton.produced(rule.count, n). Valid until the tracker's end."""
        address = functions().fcc_tracker_count(self.tracker._live(), self.number)
        if not address:
            raise self.tracker._member.error(-22)  # -EINVAL
        return int(address)

    def wait(self, run: int, timeout: float | None = None) -> bool:
        """Wait until run `run` (1, 2, ...) is done, so that its source may be changed (one that goes to another node only when the receiver
        has signalled that it has come). `timeout`: seconds, then False; None: the communicator's time limit.

        Raises: ArgumentError, NotFoundError (a tensor's memory has been freed), TimeLimitError, and what has ended the communicator."""
        handle, comm = self.tracker._live(), self.tracker.comm
        which = number(run, "Rule.wait: run", comm, 0)
        return _waited(self.tracker._member, lambda ms: functions().fcc_tracker_wait(handle, self.number, which, ms), milliseconds(timeout, "Rule.wait: timeout", comm))


class Tracker:
    """This rank's rules; a rank has one Tracker of a communicator at a time. Not collective. `fccctl track` shows the rules.

    A rule of run n works when it has been produced (Rule.add()) and the words that it awaits are there: `awaits` has up to two (words, index,
    lag), words of this rank's part of a symmetric int64 tensor, which must be at least n - lag. Then, without a thread of this program, rows
    are moved; then the word `signal` = (words, index) of the other rank's part becomes n. Runs need no reset. A rule that has begun and
    sees nothing new for the communicator's time limit ends the communicator, with the rule, its count and what it waits for in the text.

    Raises: ArgumentError, AlreadyJoinedError (there is one), and what has ended the communicator.
    """

    def __init__(self, comm: Communicator | None = None) -> None:
        self.comm = communicator.chosen(comm, "Tracker")
        self._member = self.comm.member
        self._handle: Any = ctypes.c_void_p()
        status = functions().fcc_tracker_create(self._member.handle, ctypes.byref(self._handle))
        if status < 0:
            raise self._member.error(status)
        self._kept: list = []  # memory, and functions that are called
        self._end = weakref.finalize(self, _tracker_end, os.getpid(), self._member, self._handle, self._kept)
        self._end.atexit = False
        self.comm._operators.add(self)  # which its close() closes

    def _live(self) -> Any:
        _ = self.comm.member  # raises if it has been closed, and so freed the tracker
        if not self._end.alive:
            raise ArgumentError("tracker: it has been closed", rank=self._member.rank)
        return self._handle

    @property
    def is_open(self) -> bool:
        """Neither it nor its communicator has been closed."""
        return self._end.alive

    def close(self) -> None:
        """Ends the rules. The communicator's close() and the end of the last reference to the tracker do the same."""
        self._end()

    def store(self, source: torch.Tensor, to: torch.Tensor, rank: int, **more: Any) -> Rule:
        """A rule that copies rows. `source`: in the daemon's memory, one or two dimensions, rows dense. `to`: where they go, given as this rank's
        view of a symmetric tensor: of source's shape and dtype; they go into the part of `rank`. Further arguments: those of signal()."""
        return self._rule(STORE, rank, source, to, **more)

    def add(self, source: torch.Tensor, to: torch.Tensor, rank: int, **more: Any) -> Rule:
        """A rule that adds rows to those of `rank`, in float32, and rounds: float32, float16 or bfloat16; for ranks of this node."""
        return self._rule(ADD, rank, source, to, **more)

    def signal(self, rank: int, **more: Any) -> Rule:
        """A rule that moves nothing.

        Args (of all rules, by name):
            count: how much makes a run
            signal: (words, index), raised at `rank`; None: no signal
            awaits: [(words, index, lag), ...]
            call: call(run) is called in a thread of the library when a run is done
            name: for errors and fccctl
        """
        return self._rule(SIGNAL, rank, None, None, **more)

    def _rule(self, action: int, rank: int, source: torch.Tensor | None, to: torch.Tensor | None, *, count: int = 1,
              signal: tuple[torch.Tensor, int] | None = None, awaits: Sequence[tuple[torch.Tensor, int, int]] = (),
              call: Callable[[int], None] | None = None, name: str = "") -> Rule:
        if not isinstance(name, str):
            raise ArgumentError(f"name: {type(name).__name__} {name!r:.40}: allowed is a string", rank=self._member.rank)
        rule = RuleStruct(name=name.encode(errors="replace"), count=number(count, "count", self.comm, 0), action=action,
                          rank=number(rank, "rank", self.comm, 0, INT32_MOST))
        kept: list = []
        if action != SIGNAL:
            self._rows(rule, source, to)
            kept += [memory_of(tensor, self.comm) for tensor in (source, to) if tensor is not None]
        if signal is not None:
            words, index = _tuple(signal, 2, "signal", "(words, index)", self.comm)
            rule.signals, rule.signal_offset = _word(words, index, "signal", self.comm)
            kept.append(memory_of(words, self.comm))
        if not isinstance(awaits, Sequence) or len(awaits) > AWAITS:
            raise ArgumentError(f"awaits: {f'{len(awaits)} words' if isinstance(awaits, Sequence) else type(awaits).__name__}: allowed are at most {AWAITS}", rank=self._member.rank)
        for i, one in enumerate(awaits):
            words, index, lag = _tuple(one, 3, f"awaits[{i}]", "(words, index, lag)", self.comm)
            buffer, offset = _word(words, index, f"awaits[{i}]", self.comm)
            rule.awaits[i] = Await(buffer=buffer, offset=offset, lag=number(lag, f"awaits[{i}]: lag", self.comm, 0, INT32_MOST))
            kept.append(memory_of(words, self.comm))
        if call is not None and not callable(call):
            raise ArgumentError(f"call: {type(call).__name__} {call!r:.40}: allowed is a function of a run's number", rank=self._member.rank)
        if call is not None:
            function = call
            told = _CALL(lambda _, run: function(run))
            rule.call = ctypes.cast(told, ctypes.c_void_p)
            kept.append(told)
        made = ctypes.c_uint32()
        status = functions().fcc_tracker_rule(self._live(), ctypes.byref(rule), ctypes.byref(made))
        if status < 0:
            raise self._member.error(status)
        self._kept += kept
        return Rule(self, made.value)

    def _rows(self, rule: RuleStruct, source: Any, to: Any) -> None:
        for tensor, name in ((source, "source"), (to, "to")):
            if not isinstance(tensor, torch.Tensor):
                raise ArgumentError(f"{name}: {type(tensor).__name__} {tensor!r:.40}: allowed is a torch.Tensor", rank=self._member.rank)
        for tensor, name in ((source, "source"), (to, "to")):
            if tensor.dim() not in (1, 2) or not tensor.numel() or tensor.stride(-1) != 1 or tensor.shape != source.shape or tensor.dtype != source.dtype:
                raise ArgumentError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}, strides {tuple(tensor.stride())}: allowed are 1 or 2 dimensions of at "
                                    "least one element, rows dense, the same of source and to", rank=self._member.rank)
        if rule.action == ADD and source.dtype not in _SUMS:
            raise ArgumentError(f"source: {source.dtype}: added are float32, float16 and bfloat16", rank=self._member.rank)
        size = source.element_size()
        rule.dtype = _SUMS.get(source.dtype, 0)
        rule.rows = source.shape[0] if source.dim() == 2 else 1
        rule.row_bytes = source.shape[-1] * size
        rule.from_stride = source.stride(0) * size if source.dim() == 2 else rule.row_bytes
        rule.to_stride = to.stride(0) * size if to.dim() == 2 else rule.row_bytes
        rule.from_, rule.from_offset = place(source, "source", self.comm)
        rule.to, rule.to_offset = place(to, "to", self.comm)


def _tracker_end(pid: int, member: Member, handle: ctypes.c_void_p, kept: list) -> None:
    if os.getpid() == pid:
        functions().fcc_tracker_free(handle)  # the communicator, which would free it, too, is held by `member`
    kept.clear()
