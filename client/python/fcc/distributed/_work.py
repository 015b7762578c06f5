# SPDX-License-Identifier: MIT
"""Works, which torch.distributed's calls return, and lanes, which run them in order."""
from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import ArgumentError, Error, TimeLimitError

NO_LIMIT = timedelta(0)  # torch's word for it: kNoTimeout


def as_torch_error(error: BaseException) -> BaseException:
    """The error that torch's users expect: a dist.DistBackendError, which is a RuntimeError, with the fcc.Error as its cause. What is no
    error of fcc's stays as it is."""
    if not isinstance(error, Error):
        return error
    if isinstance(error, ArgumentError):
        error.remedy = error.remedy_default  # others name arguments of fcc's own functions
    found = dist.DistBackendError(f"fcc: Timed out ({error})" if isinstance(error, TimeLimitError) else str(error))
    found.__cause__ = error
    return found


class Work(dist.Work):
    """An operation that a lane runs.

    C++ knows of wait() and get_future() only; Python programs use the other methods, too.

    Args:
        run: does it. Its tensors are held until it has run
        outputs: what the future and result() give
        source: the rank that a received message is from
    """

    def __init__(self, name: str, run: Callable[[], None], outputs: Sequence[torch.Tensor] = (), source: int = -1) -> None:
        super().__init__()
        self._name, self._run, self._outputs, self._source = name, run, list(outputs), source
        self._lock = threading.Lock()
        self._ended: threading.Event | None = None
        self._told: torch.futures.Future | None = None  # completes when the work has ended
        self._future: torch.futures.Future | None = None  # what get_future() gives: its value follows from the first
        self._error: BaseException | None = None
        self._is_done = False

    def run(self) -> None:
        """In the lane. An interrupt (Ctrl-C) goes on to the caller."""
        try:
            # Also tensors of inference mode may be written to, and none becomes part of a graph.
            with torch.inference_mode():
                self._run()
        except Exception as e:
            self.end(e)
        except BaseException as e:
            self.end(e)
            raise
        else:
            self.end(None)

    def end(self, error: BaseException | None) -> None:
        with self._lock:
            self._error = None if error is None else as_torch_error(error)
            self._is_done = True
            self._run = _nothing
            ended, told = self._ended, self._told
        if ended is not None:
            ended.set()
        if told is not None:
            told.set_result(None)

    def _value(self, _: torch.futures.Future) -> list[torch.Tensor]:
        """What a future's then() calls. An exception that is raised here is one for C++, too, which waits for futures (DistributedDataParallel's
        reducer). What set_exception() leaves is a value to C++, which takes it for tensors."""
        if self._error is not None:
            raise self._error
        return self._outputs

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        if not self._is_done:
            with self._lock:
                if self._ended is None:
                    self._ended = threading.Event()
                    if self._is_done:
                        self._ended.set()
                ended = self._ended
            seconds = timeout.total_seconds()
            if not ended.wait(seconds if seconds > 0 else None):
                raise dist.DistBackendError(f"fcc: {self._name}: Timed out: not finished after {seconds} s")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            told = self._told = torch.futures.Future()
            found = self._future = told.then(self._value)
            done = self._is_done
        if done:
            told.set_result(None)
        return found

    def is_completed(self) -> bool:
        return self._is_done

    def is_success(self) -> bool:
        return self._is_done and self._error is None

    def exception(self) -> Any:
        return self._error

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def came_from(self, source: int) -> None:
        self._source = source

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank


class Works(Work):
    """Several works as one: what a coalescing manager returns."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__("coalesced", _nothing, [tensor for work in works for tensor in work._outputs])
        self._works = list(works)

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        return all([work.wait(timeout) for work in self._works])

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is None:
                futures = [work.get_future() for work in self._works]
                outputs = self._outputs
                self._future = torch.futures.collect_all(futures).then(lambda all_: [one.wait() for one in all_.wait()] and outputs)
            return self._future

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next((work.exception() for work in self._works if work.exception() is not None), None)


class Lane:
    """Runs works one after the other: in a thread of its own, or in the caller's if that waits anyway and nothing else is to be done."""

    def __init__(self, name: str) -> None:
        self._state = _State()
        self._name = name
        weakref.finalize(self, self._state.close).atexit = False

    def submit(self, work: Work, at_once: bool = False) -> Work:
        """at_once: the caller will wait for it."""
        state = self._state
        state.check()
        if state.owner == threading.get_ident():  # a future's callback in the lane's own thread: it cannot wait for itself
            work.run()
            return work
        with state.changed:
            if at_once and state.owner is None and not state.works:
                state.owner = threading.get_ident()
            else:
                state.works.append(work)
                if state.thread is None:
                    state.thread = threading.Thread(target=state.serve, name=self._name, daemon=True)
                    state.thread.start()
                state.changed.notify_all()
                return work
        state.run(work)
        return work

    def check(self) -> None:
        """RuntimeError if the lane is closed."""
        self._state.check()

    def close(self, error: Exception | None = None) -> None:
        """Ends the thread when it has run what it has; with an error it runs no more, and the works that wait get it."""
        state = self._state
        with state.changed:
            left = list(state.works) if error else []
            if error:
                state.works.clear()
        for work in left:
            work.end(error)
        state.close()
        if not error and state.thread is not None and state.thread is not threading.current_thread():
            state.thread.join()


class _State:
    """A lane's works. It is apart from the lane so that the thread does not keep the lane alive."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.works: deque[Work] = deque()
        self.owner: int | None = None  # the thread that runs a work
        self.thread: threading.Thread | None = None
        self.closed = False
        self.pid = os.getpid()

    def check(self) -> None:
        if self.closed:
            raise RuntimeError("fcc: the process group has been destroyed or aborted")

    def run(self, work: Work) -> None:
        try:
            work.run()
        finally:
            with self.changed:
                self.owner = None
                self.changed.notify_all()

    def serve(self) -> None:
        while True:
            with self.changed:
                while self.owner is not None or not self.works:
                    if self.closed and not self.works:
                        return
                    self.changed.wait()
                work = self.works.popleft()
                self.owner = threading.get_ident()
            self.run(work)
            del work

    def close(self) -> None:
        if self.pid != os.getpid():  # a forked child drops its copy of the lane. The parent's thread may have had the lock at the fork
            return
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def _nothing() -> None:
    pass
