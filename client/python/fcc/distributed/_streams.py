# SPDX-License-Identifier: MIT
"""Works of operations on GPUs, which are enqueued on a stream when their call returns."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from ._work import Work


class StreamWork(Work):
    """An operation on the group's stream. wait() orders the current stream behind it, and the host goes on.

    The tensors are held until then: their memory cannot be given to others before the operation is through, if they are of the stream that was
    the current one at the call, and that is the one that waits. On every other way their allocator is told of the group's stream
    (Tensor.record_stream()).
    """

    def __init__(self, name: str, stream: torch.cuda.Stream, held: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__(name, lambda: None, outputs)
        self._stream, self._held = stream, list(held)
        self._caller = torch.cuda.current_stream(stream.device)
        self._event: torch.cuda.Event | None = None

    def enqueued(self, error: BaseException | None) -> None:
        """All has been enqueued on the group's stream, which is the current one. With an error, too, something may have been."""
        self._event = torch.cuda.Event()
        self._event.record(self._stream)
        self.end(error)

    def wait(self, timeout: object = None) -> bool:
        """The operation's own limit is the group's timeout, on the GPU; `timeout` is for waits of the host."""
        if self._event is not None:
            current = torch.cuda.current_stream(self._stream.device)
            current.wait_event(self._event)
            self._let_go(current)
        if self._error is not None:
            raise self._error
        return True

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
        with self._lock:
            if self._future is None:
                found = self._future = torch.futures.Future(devices=[self._stream.device] if self._error is None else None)
                with torch.cuda.stream(self._stream):  # the future takes down where the current stream is
                    self._tell(found)
            return self._future

    def is_completed(self) -> bool:
        return self._error is not None or self._event is not None and self._event.query()

    def is_success(self) -> bool:
        return self._error is None and self.is_completed()
