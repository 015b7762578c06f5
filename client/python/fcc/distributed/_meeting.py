# SPDX-License-Identifier: MIT
"""How ranks of a process group meet: one makes a communicator's id and leaves it in the group's store."""
from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch

from .._place import unique_id
from ..communicator import Communicator
from ..errors import Error, TimeLimitError, error_of

_FIRST_S, _LONGEST_S = 0.0005, 0.02  # pauses between two looks
_TAKEN = "taken"  # stands in an id's place when the other one of two ranks has it


def await_key(store: Any, key: str, limit: float, what: str) -> bytes:
    """The store's value. It is looked for again and again, because a store that waits for a key keeps this process's other threads from
    using it, of which the one may be that lets the key be set."""
    until, pause = time.monotonic() + limit, _FIRST_S
    while not store.check([key]):
        if time.monotonic() >= until:
            raise TimeLimitError(f"{what}: not within {limit:g} s", code=110)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_S)
    found: bytes = store.get(key)
    return found


def _refusal(code: int, reason: str) -> str:
    """What stands in an id's place where there will be none."""
    return f"!{code} {reason}"


class Invitation:
    """What the first of two ranks leaves for the other one: an id, which it may take back until the other one has taken it, or why it does not come."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self._lock = threading.Lock()
        self._said = ""
        self._refused: Exception | None = None

    def say(self, identity: str) -> None:
        with self._lock:
            if self._refused is not None:
                raise self._refused
            self._store.set(self._key, identity)
            self._said = identity

    def refuse(self, error: Exception) -> bool:
        """The other rank gets the error. False: it has taken the id, and joins."""
        no = _refusal(errno.ECONNABORTED, str(error))
        with self._lock:
            self._refused = error
            if self._said:
                return bool(self._store.compare_set(self._key, self._said, no).decode() != _TAKEN)
            self._store.set(self._key, no)
            return True


def meet(store: Any, key: str, rank: int, size: int, timeout: timedelta, device: str, invitation: Invitation | None = None) -> Communicator:
    """A communicator of all ranks that call this with the same key. invitation: of two, by the first one."""
    limit = timeout.total_seconds()
    if rank == 0:
        try:
            identity = unique_id()
        except Error as e:
            store.set(key, _refusal(e.code, e.reason))
            raise
        if invitation is None:
            store.set(key, identity.hex())
        else:
            invitation.say(identity.hex())
    else:
        said = await_key(store, key, limit, f"rank {rank}: waiting for rank 0's part of the communicator {key}").decode()
        if size == 2 and not said.startswith("!"):
            now = store.compare_set(key, said, _TAKEN).decode()
            said = said if now == _TAKEN else now
        if said.startswith("!"):
            code, _, reason = said[1:].partition(" ")
            raise error_of(-int(code), f"rank 0: {reason}", 0)
        identity = bytes.fromhex(said)
    comm = Communicator(rank=rank, size=size, id=identity, device=device, time_limit=min(max(limit, 0.001), 4e6))
    if rank == 0:
        store.delete_key(key)  # all have joined
    return comm


class Meetings:
    """Of the ranks of a group: all of them, or two. limit: how long they wait for each other, and the time limit of what they make."""

    def __init__(self, store: Any, rank: int, size: int, limit: timedelta) -> None:
        self._store, self._rank, self._size, self.limit = store, rank, size, limit
        self._lock = threading.Lock()
        self._invitations: dict[str, Invitation] = {}

    def _invitation(self, key: str) -> Invitation:
        with self._lock:
            return self._invitations.setdefault(key, Invitation(self._store, key))

    def of_all(self, kind: str) -> Communicator:
        return meet(self._store, f"fcc/{kind}", self._rank, self._size, self.limit, _device_of(kind))

    def refuse(self, key: str, error: Exception) -> bool:
        """This rank, the first of the two that know the key, is not going to come: the other one, which may wait for it already, gets the error. False:
        the other one joins already, and so does this one."""
        with contextlib.suppress(RuntimeError):  # a store whose process has ended: nobody can be told
            return self._invitation(f"fcc/{key}").refuse(error)
        return True

    def of_two(self, kind: str, key: str, end: int) -> Communicator:
        """end: 0 or 1, this rank in a communicator that the two know by the key."""
        invitation = self._invitation(f"fcc/{key}") if end == 0 else None
        return meet(self._store, f"fcc/{key}", end, 2, self.limit, _device_of(kind), invitation)


def _device_of(kind: str) -> str:
    """The cpu, or the current GPU as a device of fccd's, which counts those that this process does not see, too."""
    if kind == "cpu":
        return kind
    index = torch.cuda.current_device()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return f"cuda:{visible[index] if index < len(visible) and visible[index].isdigit() else index}"
