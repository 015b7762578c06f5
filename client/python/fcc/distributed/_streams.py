# SPDX-License-Identifier: MIT
"""Works of operations on GPUs, which are enqueued on a stream; mostly they are when their call returns."""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch

from ._work import NO_LIMIT, Work


class StreamWork(Work):
    """An operation on the group's stream, behind what is on the current stream now. wait() orders the current stream behind the operation,
    and the host goes on; it waits for an operation that is not enqueued yet, because another rank has to come first.

    The tensors are held until then: their memory cannot be given to others before the operation is through, if they are of the stream that was
    the current one at the call, and that is the one that waits. On every other way their allocator is told of the group's stream
    (Tensor.record_stream()).
    """

    def __init__(self, name: str, stream: torch.cuda.Stream, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__(name, lambda: None, outputs)
        self._stream, self._held = stream, list(held)
        self._caller = torch.cuda.current_stream(stream.device)
        self._event: torch.cuda.Event | None = None
        self._turn = threading.Lock()  # ends once
        self._before = torch.cuda.Event()
        self._before.record(self._caller)

    def begin(self) -> None:
        """The group's stream waits for what the caller's had."""
        self._stream.wait_event(self._before)

    def enqueued(self, error: BaseException | None) -> None:
        """All has been enqueued on the group's stream, which is the current one. With an error, too, something may have been."""
        with self._turn:
            if not self._is_done:
                self._event = torch.cuda.Event()
                self._event.record(self._stream)
                self.end(error)

    def is_done(self) -> bool:
        """Enqueued, or ended with an error."""
        return self._is_done

    def give_up(self, error: BaseException) -> None:
        """It is not enqueued any more."""
        with self._turn:
            if not self._is_done:
                self.end(error)

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """The operation's own limit is the group's timeout, on the GPU; `timeout` is for waits of the host."""
        try:
            return super().wait(timeout)
        finally:
            if self._event is not None:
                current = torch.cuda.current_stream(self._stream.device)
                current.wait_event(self._event)
                self._let_go(current)

    def _let_go(self, waited: torch.cuda.Stream | None) -> None:
        """Drops the tensors; their allocator gives their memory to nobody before the group's stream has gone past."""
        held, self._held = self._held, []
        if waited != self._caller:
            for tensor in held:
                if tensor.is_cuda:
                    tensor.record_stream(self._stream)

    def __del__(self) -> None:  # maybe nobody has waited
        self._let_go(None)

    def get_future(self) -> torch.futures.Future:
        """It is complete: what uses its value, on whichever stream, comes behind the operation."""
        with contextlib.suppress(Exception):  # the future has it
            super().wait()
        if self._error is not None:
            return super().get_future()
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future(devices=[self._stream.device])
                with torch.cuda.stream(self._stream):  # the future takes down where the current stream is
                    self._future.set_result(self._outputs)
            return self._future

    def is_completed(self) -> bool:
        return self._error is not None or self._event is not None and self._event.query()

    def is_success(self) -> bool:
        return self._error is None and self.is_completed()
