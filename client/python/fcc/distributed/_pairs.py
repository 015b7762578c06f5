# SPDX-License-Identifier: MIT
"""Messages from one rank of a group to another.

All ranks of a communicator call each of its operators, so each direction between two ranks has a communicator of its own, made when its
first message is sent or awaited. A message on the cpu is one operator of at most MESSAGE_BYTES, which begins with a head (tag, dtype, size)
and has the data behind it if they fit; otherwise more operators bring the data. What comes with another tag than any receive has asked for
is kept until one does.
"""
from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable

import torch

from .._calls import run
from .._library import library
from ..communicator import Communicator
from ..errors import ArgumentError
from ..memory import stream_of
from . import _vectors
from ._vectors import Pieces, Vector, pieces
from ._work import Lane, Work

MESSAGE_BYTES = 4096
_HEAD = struct.Struct("=qq48s")  # tag, bytes, dtype
JOINS_S = 10  # that a rank which leaves waits for another one that is joining already, and may have died since


class _Direction:
    """Bytes between the two ranks of a communicator, from its rank 0 to its rank 1."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self._pieces = Pieces(comm)

    def _one(self, count: int) -> torch.Tensor:
        """Sends or receives the first `count` bytes of the piece. To receive, a count may be larger than what comes."""
        place, here = self._pieces.at(0, count, torch.uint8)
        end = {"in_": place, "destination": 1, "source": -1} if self.comm.rank == 0 else {"out": place, "destination": -1, "source": 0}
        run(self.comm, "send_receive", library().operators["send_receive"].pack(**end), stream_of(self.comm))
        return here

    def _rest(self, data: torch.Tensor) -> None:
        for begin, count in pieces(data.numel(), _vectors.PIECE_BYTES):
            self._pieces.reserve(count)
            here = self._pieces.at(0, count, torch.uint8)[1]
            if self.comm.rank == 0:
                here.copy_(data[begin:begin + count])
            self._one(count)
            if self.comm.rank == 1:
                data[begin:begin + count].copy_(here)

    def send(self, tag: int, dtype: torch.dtype, data: torch.Tensor) -> None:
        self._pieces.reserve(MESSAGE_BYTES)
        head = torch.frombuffer(bytearray(_HEAD.pack(tag, data.numel(), str(dtype).encode())), dtype=torch.uint8)
        inside = data.numel() if _HEAD.size + data.numel() <= MESSAGE_BYTES else 0
        here = self._pieces.at(0, _HEAD.size + inside, torch.uint8)[1]
        here[:_HEAD.size].copy_(head)
        if inside:
            here[_HEAD.size:].copy_(data)
        self._one(_HEAD.size + inside)
        if data.numel() > inside:
            self._rest(data)

    def receive(self, wanted: Callable[[int, str, int], torch.Tensor]) -> None:
        """wanted(tag, dtype, bytes): where the data go."""
        self._pieces.reserve(MESSAGE_BYTES)
        here = self._one(MESSAGE_BYTES)
        tag, nbytes, dtype = _HEAD.unpack(bytes(here[:_HEAD.size].numpy()))
        data = wanted(tag, dtype.rstrip(b"\0").decode(), nbytes)
        if _HEAD.size + nbytes <= MESSAGE_BYTES:
            data.copy_(here[_HEAD.size:_HEAD.size + nbytes])
        else:
            self._rest(data)


class Sender:
    """The messages of this rank to one other. refuse(error): this rank is not going to join, and has messages that the other may wait for; False: both
    are joining already."""

    def __init__(self, name: str, join: Callable[[], Communicator], refuse: Callable[[Exception], bool]) -> None:
        self._lane = Lane(name)
        self._join, self._refuse = join, refuse
        self._tried = threading.Event()
        self._direction: _Direction | None = None

    def send(self, tensor: torch.Tensor, tag: int) -> Work:
        def deliver() -> None:
            if self._direction is None:
                try:
                    self._direction = _Direction(self._join())
                finally:
                    self._tried.set()
            vector = Vector("send", [tensor])
            parts = vector.parts(0, vector.count)
            self._direction.send(tag, tensor.dtype, parts[0].view(torch.uint8) if parts else torch.empty(0, dtype=torch.uint8, device="cpu"))
        return self._lane.submit(Work("send", deliver))

    def communicator(self) -> Communicator | None:
        return self._direction.comm if self._direction else None

    def close(self, error: Exception | None) -> None:
        self._lane.close(error)
        if error is None or self._direction is not None or self._refuse(error):
            return
        self._tried.wait(JOINS_S)
        comm = self.communicator()
        if comm is not None:
            comm.abort(str(error))


class _Receive(Work):
    """A receive that waits for its message."""

    def __init__(self, tensor: torch.Tensor, tag: int, source: int) -> None:
        super().__init__("recv", lambda: None, [tensor], source)
        self.tensor, self.tag = tensor, tag

    def fits(self, dtype: str, nbytes: int) -> None:
        if dtype != str(self.tensor.dtype) or nbytes != self.tensor.numel() * self.tensor.element_size():
            size = getattr(torch, dtype.removeprefix("torch."), torch.uint8).itemsize
            raise ArgumentError(f"recv: {self.tensor.numel()} elements of {self.tensor.dtype}: rank {self._source} of the group has sent "
                                f"{nbytes // size} of {dtype}", rank=self._source)

    def take(self, dtype: str, data: torch.Tensor) -> None:
        try:
            self.fits(dtype, data.numel())
            with torch.inference_mode():
                vector = Vector("recv", [self.tensor])
                if vector.count:
                    vector.put(0, vector.count, data.view(vector.dtype))
                vector.done()
        except Exception as e:
            self.end(e)
        else:
            self.end(None)


class Receiver:
    """The messages of one other rank to this one. A thread receives as long as somebody waits for one."""

    def __init__(self, name: str, source: int, join: Callable[[], Communicator]) -> None:
        self._name, self._source, self._join = name, source, join
        self._changed = threading.Condition()
        self._waiting: deque[_Receive] = deque()
        self._kept: deque[tuple[int, str, torch.Tensor]] = deque()
        self._thread: threading.Thread | None = None
        self._direction: _Direction | None = None
        self._error: Exception | None = None
        self._closed = False

    def receive(self, tensor: torch.Tensor, tag: int) -> Work:
        work = _Receive(tensor, tag, self._source)
        found = None
        with self._changed:
            if self._error is not None:
                work.end(self._error)
                return work
            for message in self._kept:
                if message[0] == tag:
                    found = message
                    break
            if found is None:
                self._waiting.append(work)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                    self._thread.start()
                self._changed.notify()
            else:
                self._kept = deque(message for message in self._kept if message is not found)
        if found is not None:
            work.take(found[1], found[2])
        return work

    def _serve(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._waiting and not self._closed:
                        self._changed.wait()
                    if not self._waiting:
                        return
                if self._direction is None:
                    self._direction = _Direction(self._join())
                with torch.inference_mode():
                    self._receive_one(self._direction)
        except Exception as e:
            self.close(e)

    def _receive_one(self, direction: _Direction) -> None:
        came: list[tuple[int, str, torch.Tensor]] = []

        def wanted(tag: int, dtype: str, nbytes: int) -> torch.Tensor:
            came.append((tag, dtype, torch.empty(nbytes, dtype=torch.uint8, device="cpu")))
            return came[0][2]
        direction.receive(wanted)
        with self._changed:
            work = next((one for one in self._waiting if one.tag == came[0][0]), None)
            if work is None:
                self._kept.append(came[0])
                return
            self._waiting.remove(work)
        work.take(came[0][1], came[0][2])

    def communicator(self) -> Communicator | None:
        return self._direction.comm if self._direction else None

    def close(self, error: Exception | None) -> None:
        with self._changed:
            self._closed = True
            left = list(self._waiting) if error else []
            if error:
                self._error = error
                self._waiting.clear()
            self._changed.notify_all()
        for work in left:
            work.end(error)


class Pairs:
    """All messages of a rank of a group. join(key, rank): a communicator of two. refuse(key, error): its first rank does not come."""

    def __init__(self, name: str, rank: int, join: Callable[[str, int], Communicator], refuse: Callable[[str, Exception], bool]) -> None:
        self._name, self._rank, self._join, self._refuse = name, rank, join, refuse
        self._lock = threading.Lock()
        self._senders: dict[int, Sender] = {}
        self._receivers: dict[int, Receiver] = {}

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        with self._lock:
            if peer not in self._senders:
                key = f"{self._rank}>{peer}"
                self._senders[peer] = Sender(f"{self._name} {key}", lambda: self._join(key, 0), lambda error: self._refuse(key, error))
            sender = self._senders[peer]
        return sender.send(tensor, tag)

    def receive(self, tensor: torch.Tensor, peer: int, tag: int) -> Work:
        with self._lock:
            if peer not in self._receivers:
                key = f"{peer}>{self._rank}"
                self._receivers[peer] = Receiver(f"{self._name} {key}", peer, lambda: self._join(key, 1))
            receiver = self._receivers[peer]
        return receiver.receive(tensor, tag)

    def close(self, error: Exception | None = None) -> None:
        """With an error it aborts what is under way."""
        ends: list[Sender | Receiver] = [*self._senders.values(), *self._receivers.values()]
        for end in ends:
            comm = end.communicator()
            if error is not None and comm is not None and not comm._member.ended:
                comm.abort(str(error))
        for end in ends:
            end.close(error)
        for end in ends:
            comm = end.communicator()
            if error is None and comm is not None:
                comm.close()


