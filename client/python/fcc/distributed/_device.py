# SPDX-License-Identifier: MIT
"""A group's collectives on one kind of device: its communicator, and the lane or the stream that they run on in order."""
from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import torch

from ..communicator import TOLD, Communicator, refuse
from ..errors import Error
from ._collectives import Collectives
from ._work import Lane, Work, as_torch_error

Operation = Callable[[Collectives], None]


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
            self._on = Collectives(self._join())
        try:
            operation(self._on)
        except Exception as e:
            self._tell(name, e)
            raise

    def _tell(self, name: str, error: Exception) -> None:
        """The other ranks are in the operation, or will be: they get the error of what this rank did not submit."""
        assert self._on is not None
        if getattr(error, TOLD, False):
            return
        op = name if name != "barrier" else "noop"
        refuse(self._on.comm, op, error)

    def _enqueue(self, name: str, operation: Operation, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Work:
        """On GPUs: behind the current stream's work, on a stream of the group's own. (Not run yet: fccd refuses collectives on GPUs.)"""
        device = tensors[0].device
        work = _StreamWork(name, device, tensors, outputs)
        with self._lock, torch.cuda.device(device), torch.inference_mode():
            if self._stream is None:
                self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(self._stream):
                try:
                    self._run(name, operation)
                except Error as e:
                    work.end(e)
                    return work
                work.enqueued(self._stream)
        return work

    def close(self) -> None:
        self._lane.close()
        if self._on is not None:
            self._on.comm.close()
        self._on = None

    def abort(self, error: Exception) -> None:
        self._error = error
        on = self._on
        if on is not None and not on.comm._member.ended:
            on.comm.abort("the process group was aborted")
        self._lane.close(error)


class _StreamWork(Work):
    """An operation on a stream. wait() orders the current stream behind it, not the host. The tensors are held until then."""

    def __init__(self, name: str, device: torch.device, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__(name, lambda: None, outputs)
        self._device, self._held = device, [*tensors, *outputs]
        self._event: torch.cuda.Event | None = None

    def enqueued(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event()
        self._event.record(stream)
        self._future = torch.futures.Future(devices=[self._device])
        self.end(None)

    def wait(self, timeout: object = None) -> bool:
        if self._error is not None:
            raise as_torch_error(self._error)
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
            self._held = []
        return True

    def is_completed(self) -> bool:
        return self._error is not None or self._event is not None and self._event.query()


def current_gpu() -> str:
    """The current GPU as a device of fccd's, which counts those that this process does not see, too."""
    index = torch.cuda.current_device()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return f"cuda:{visible[index] if index < len(visible) and visible[index].isdigit() else index}"
