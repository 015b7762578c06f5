# SPDX-License-Identifier: MIT
"""A group's collectives on one kind of device: its communicator, and the lane or the stream that they run on in order."""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from .._capture import captures_elsewhere, elsewhere_error
from .._communicator.refusals import TOLD, refuse
from ..communicator import Communicator
from ..errors import ArgumentError, CaptureError
from ._collectives import Collectives
from ._direct import Direct
from ._streams import StreamWork
from ._words import in_torchs_words
from ._work import Lane, Work, as_torch_error

Operation = Callable[[Collectives], None]
_OPERATORS = {"barrier": "noop", "send": "send_receive", "recv": "send_receive"}  # of operations that have other names


class Device:
    """kind: "cpu" or "cuda". join() makes the communicator when the first operation needs it."""

    def __init__(self, name: str, kind: str, join: Callable[[], Communicator]) -> None:
        self._kind, self._join = kind, join
        self._lane = Lane(name)
        self._on: Collectives | None = None
        self._error: Exception | None = None  # why the group has ended
        self._stream: torch.cuda.Stream | None = None
        self._lock = threading.RLock()

    def submit(self, name: str, operation: Operation, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
               at_once: bool) -> Work:
        if self._kind == "cuda":
            return self._enqueue(name, operation, tensors, outputs)
        return self._lane.submit(Work(name, lambda: self._run(name, operation), outputs), at_once)

    def _run(self, name: str, operation: Operation) -> None:
        if self._error is not None:
            raise self._error
        if self._on is None:
            comm = self._join()
            self._on = Direct(comm) if comm.member.launches() else Collectives(comm)
        try:
            operation(self._on)
        except Exception as e:
            self._tell(name, e)
            in_torchs_words(name, e, self._on.rank)
            raise
        finally:
            found = self._on.errors_take()
        if found is not None:
            in_torchs_words(name, found, self._on.rank)
            raise found

    def _tell(self, name: str, error: Exception) -> None:
        """The other ranks are in the operation, or will be: they get the error of what this rank did not submit."""
        assert self._on is not None
        if getattr(error, TOLD, False):
            return
        if isinstance(error, ArgumentError) and not error.reason.startswith("rank "):
            error.of_rank(self._on.rank)
        refuse(self._on.comm, _OPERATORS.get(name, name), error)

    def _enqueue(self, name: str, operation: Operation, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Work:
        """On GPUs: behind the current stream's work, on a stream of the group's own, so that all of the group's collectives are in order,
        whichever streams the program uses. A capture of the current stream into a CUDA graph comprises the group's stream by that, until
        wait() brings it back."""
        self._lane.check()
        device = tensors[0].device

        def here(on: Collectives) -> None:
            if device != on.comm.device:
                raise ArgumentError(f"rank {on.rank}: {name}: tensors on {device}: allowed is {on.comm.device}, where the group's first were")
            operation(on)
        if captures_elsewhere(device.index):
            raise as_torch_error(elsewhere_error(name, device))
        with self._lock, torch.cuda.device(device):
            self._may_begin(name)
            if self._stream is None:
                self._stream = torch.cuda.Stream(device)
            stream = self._stream
            work = StreamWork(name, stream, [*tensors, *outputs], outputs)

            def deliver() -> None:
                with torch.cuda.device(device), torch.inference_mode(), torch.cuda.stream(stream):
                    try:
                        work.begin()
                        self._run(name, here)
                    except Exception as e:
                        work.enqueued(e)
                    else:
                        work.enqueued(None)
            self._hand_over(work, deliver)
        return work

    def _hand_over(self, work: StreamWork, deliver: Callable[[], None]) -> None:
        """Enqueues an operation. All ranks of the group call it, so joining, which waits for them, may be part of it."""
        deliver()

    def _may_begin(self, name: str) -> None:
        if self._on is None and torch.cuda.is_current_stream_capturing():  # joining allocates and maps memory
            raise as_torch_error(CaptureError(
                f"{name}: the process group's first collective on this GPU: its stream is being captured into a graph: not allowed",
                remedy="Call a collective of the group once before the capture."))

    def synchronize(self) -> None:
        """Waits for the group's stream, and raises the first error of its operators that no call has raised yet."""
        if self._on is None or self._stream is None or torch.cuda.is_current_stream_capturing():
            return
        with torch.cuda.stream(self._stream):
            self._on.comm.synchronize()

    def has_joined(self) -> bool:
        return self._on is not None

    def communicator(self) -> Communicator:
        """That of operations that have run."""
        if self._on is None:
            raise ArgumentError(f"the process group has run nothing on {self._kind} yet: it has no communicator there")
        return self._on.comm

    def take(self, comm: Communicator) -> None:
        """Operations use this communicator, which all ranks of the group have joined."""
        self._on = Direct(comm) if comm.member.launches() else Collectives(comm)

    def close(self) -> None:
        self._lane.close()
        if self._on is not None:
            self._on.comm.close()
        self._on = None

    def abort(self, error: Exception) -> None:
        self._error = error
        on = self._on
        if on is not None and on.comm.is_open and not on.comm._member.ended:
            on.comm.abort("the process group was aborted")
        self._lane.close(error)
