# SPDX-License-Identifier: MIT
"""Messages between GPUs, from one rank of a group to another, on streams.

Each direction between two ranks has a communicator and a stream of its own, made when its first message is sent or awaited: so a rank's sends
do not wait for what it receives. A message is one send_receive of both ranks, so a send ends when it is received. Messages are taken in the
order of the calls, and tags are not looked at, as with NCCL.

To make a communicator takes both ranks, of which the other may be waiting for a third one. A thread does that; from then on calls enqueue
what they are asked for themselves, and a CUDA graph can hold it.
"""
from __future__ import annotations

import re
import threading
from collections.abc import Callable

import torch

from ..communicator import Communicator
from ..errors import Error
from ._collectives import Collectives
from ._device import Device, Operation
from ._pairs import JOINS_S
from ._streams import StreamWork
from ._vectors import Vector
from ._work import Work


class Direction(Device):
    """ranks: in the group, of the sender and of the receiver, which are rank 0 and rank 1 of the direction's communicator. refuse(error), of the sender:
    this rank is not going to join, and has messages that the other one may wait for; False: both are joining already."""

    def __init__(self, name: str, ranks: tuple[int, int], join: Callable[[], Communicator], refuse: Callable[[Exception], bool] | None) -> None:
        super().__init__(name, "cuda", join)
        self._ranks, self._refuse = ranks, refuse
        self._tried = threading.Event()  # to join
        self._waiting: list[StreamWork] = []  # for the other rank to join

    def _hand_over(self, work: StreamWork, deliver: Callable[[], None]) -> None:
        self._waiting = [one for one in self._waiting if not one.is_done()] + [work]
        self._lane.submit(Work("message", deliver), at_once=self._on is not None)

    def _run(self, name: str, operation: Operation) -> None:
        try:
            super()._run(name, operation)
        except Error as e:
            raise self.in_group(e) from None
        finally:
            self._tried.set()

    def synchronize(self) -> None:
        try:
            super().synchronize()
        except Error as e:
            raise self.in_group(e) from None

    def in_group(self, error: Error) -> Error:
        """The same error, with the group's ranks."""
        def ranked(found: re.Match[str]) -> str:
            return f"rank {self._ranks[int(found[1])]}"
        error.reason = re.sub(r"\brank ([01])\b", ranked, error.reason).replace("send_receive: shape: ", "recv: ")
        error.rank = error.rank if error.rank not in (0, 1) else self._ranks[error.rank]
        error.args = (error.reason,)
        return error

    def end(self, error: Exception) -> None:
        """Ends it when what was enqueued is done; what waits for the other rank to join ends with the error, on both ranks."""
        if self._on is None:
            self._let_go(error)
        else:
            self.close()

    def _let_go(self, error: Exception) -> None:
        self._lane.close(error)
        for work in self._waiting:
            work.give_up(error)
        if self._refuse is None or not self._waiting or self._on is not None or self._refuse(error):
            return
        self._tried.wait(JOINS_S)
        if self._on is not None:
            self._on.comm.abort(str(error))

    def abort(self, error: Exception) -> None:
        super().abort(error)
        self._let_go(error)


class Messages:
    """All messages of a rank of a group to and from other GPUs. join(key, rank): a communicator of two. refuse(key, error): its first rank does not
    come."""

    def __init__(self, name: str, rank: int, join: Callable[[str, int], Communicator], refuse: Callable[[str, Exception], bool]) -> None:
        self._name, self._rank, self._join, self._refuse = name, rank, join, refuse
        self._lock = threading.Lock()
        self._directions: dict[tuple[int, int], Direction] = {}

    def _direction(self, source: int, destination: int) -> Direction:
        ranks = source, destination
        with self._lock:
            if ranks not in self._directions:
                key, end = f"cuda {source}>{destination}", ranks.index(self._rank)
                self._directions[ranks] = Direction(f"{self._name} {key}", ranks, lambda: self._join(key, end),
                                                    None if end else lambda error: self._refuse(key, error))
            return self._directions[ranks]

    def send(self, tensor: torch.Tensor, peer: int) -> Work:
        def operation(on: Collectives) -> None:
            on.send_receive(None, Vector("send", [tensor]), 1)
        return self._direction(self._rank, peer).submit("send", operation, [tensor], (), False)

    def receive(self, tensor: torch.Tensor, peer: int) -> Work:
        def operation(on: Collectives) -> None:
            on.send_receive(Vector("recv", [tensor]), None, 0)
        work = self._direction(peer, self._rank).submit("recv", operation, [tensor], [tensor], False)
        work.came_from(peer)
        return work

    def _all(self) -> list[Direction]:
        with self._lock:
            return list(self._directions.values())

    def synchronize(self) -> None:
        """Waits for what was enqueued, and raises the first error that no call has raised yet."""
        for direction in self._all():
            direction.synchronize()

    def close(self, error: Exception) -> None:
        for direction in self._all():
            direction.end(error)

    def abort(self, error: Exception) -> None:
        for direction in self._all():
            direction.abort(error)
