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
from ..communicator import Communicator, stream_await
from ..errors import CaptureError


class Host:
    """Of cpu devices: what was called is done."""

    def begin(self) -> None:
        pass

    def ready(self) -> None:
        pass

    def end(self) -> None:
        pass


class Streams:
    """Of GPUs."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._copied: torch.cuda.Event | None = None  # the last run's results are where the caller wants them

    def begin(self) -> None:
        device = self._comm.device
        if captures_elsewhere(device.index):
            raise elsewhere_error("its call", device)
        with torch.cuda.device(device):
            if torch.cuda.is_current_stream_capturing():
                raise CaptureError("the stream is being captured into a graph: not allowed",
                                   remedy="The daemon launches a program's steps when all ranks have come, which a graph cannot replay: leave the call out of the capture.")
        if self._copied is not None:
            torch.cuda.current_stream(device).wait_event(self._copied)

    def ready(self) -> None:
        stream_await(self._comm)

    def end(self) -> None:
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(self._comm.device))


def turns_of(comm: Communicator) -> Host | Streams:
    return Streams(comm) if comm.member.on_gpu else Host()
