# SPDX-License-Identifier: MIT
"""How a program's run takes its turn among what torch's streams do. Both classes have the same methods, and every run calls them in this order:

    begin()   what the run needs is copied behind this, on the current stream
    ready()   the caller's tensors and the copies are as the run is to see them
    end()     results have been copied back, on the current stream

Order. A run is a row of operators that the worker launches one by one, and the thread waits for each: one that is refused leaves those behind it unrun, so a step of
an optimizer that fails has changed nothing. So on a GPU ready() waits for the current stream, and what any stream is given after the run sees its results, without an
event. Only the copies back are still under way then. Their source is memory of the program, which the next run's copies and kernels overwrite: it begins behind the
event of end(), whichever stream it is called on.
"""
from __future__ import annotations

import torch

from .._capture import captures_elsewhere, elsewhere_error
from .._communicator.waits import stream_await
from ..communicator import Communicator
from ..errors import CaptureError


BIND = "compile(bound=True), or bind() of the compiled program, makes one that is captured; or leave the call out of the capture"


def capture_check(comm: Communicator, what: str, remedy: str = BIND) -> None:
    """Raises CaptureError if a stream that a run on this GPU would wait for is being captured into a graph. what: is called."""
    if not comm.member.on_gpu:
        return
    if captures_elsewhere(comm.device.index):
        raise elsewhere_error(f"rank {comm.rank}: {what}", comm.device)
    with torch.cuda.device(comm.device):
        if torch.cuda.is_current_stream_capturing():
            raise CaptureError(f"rank {comm.rank}: {what}: the stream is being captured into a graph: not allowed", rank=comm.rank, remedy=(
                f"The daemon launches a program's steps when all ranks have come, which a graph cannot replay: {remedy}."))


class Host:
    """Of cpu devices: what was called is done. And of what is put onto a stream as the run is."""

    unbound: str | None = None  # why the program could not be bound

    def begin(self) -> None:
        pass

    def ready(self) -> None:
        pass

    def end(self) -> None:
        pass


class Streams:
    """Of GPUs."""

    unbound: str | None = None

    def __init__(self, comm: Communicator, what: str) -> None:
        self._comm, self._what = comm, what
        self._copied: torch.cuda.Event | None = None  # the last run's results are where the caller wants them

    def begin(self) -> None:
        device = self._comm.device
        capture_check(self._comm, self._what, BIND if self.unbound is None else f"and it could not be bound ({self.unbound}): leave the call out of the capture")
        if self._copied is not None:
            torch.cuda.current_stream(device).wait_event(self._copied)

    def ready(self) -> None:
        stream_await(self._comm)

    def end(self) -> None:
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(self._comm.device))


def turns_of(comm: Communicator, what: str) -> Host | Streams:
    """what: is run, for errors."""
    return Streams(comm, what) if comm.member.on_gpu else Host()
