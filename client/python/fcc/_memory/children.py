# SPDX-License-Identifier: MIT
"""Memory that forked children share.

A child has all tensors that its parent had at the fork. Those in the daemon's memory are shared with the parent's, as after
share_memory_(). So a pool does not reuse the blocks that were in use at a fork while the child or a process forked from it lives: they
would see the parent's later results there.
"""
from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable

_lenders: list[tuple[Callable[[], bool], Callable[[Children], None]]] = []
_forking = threading.local()  # children: those of the fork that this thread is in


class Children:
    """A child and all processes forked from it. Only they have the other end of a pipe, which closes when the last of them has ended or
    executed another program."""

    _all: weakref.WeakSet[Children] = weakref.WeakSet()

    def __init__(self) -> None:
        try:
            self._reading, self._writing = os.pipe()
        except OSError:  # no descriptors are left: the end of the children will go unnoticed
            self._reading, self._writing = -1, -1
        self._ended = False
        Children._all.add(self)

    def forked(self) -> None:
        """In the parent: closes its copy of the children's end."""
        if self._writing >= 0:
            os.close(self._writing)
        self._writing = -1

    def forget(self) -> None:
        """In a child: closes the parent's end."""
        if self._reading >= 0:
            os.close(self._reading)
        self._reading = -1

    def live(self) -> bool:
        """Whether one of them lives."""
        if self._ended or self._reading < 0:
            return not self._ended
        looking = select.poll()
        looking.register(self._reading, 0)  # polls for the hang-up, which is always reported
        if looking.poll(0):
            self._ended = True
            self.forget()
        return not self._ended

    def __del__(self) -> None:
        if self._reading >= 0:
            os.close(self._reading)


def lend_to_children(wanted: Callable[[], bool], lend: Callable[[Children], None]) -> None:
    """Arranges that lend(children) is called whenever this process forks and wanted() is true. It notes the blocks that the children
    share. It is called before and after the fork, because other threads continue."""
    _lenders.append((wanted, lend))


def _before() -> None:
    _forking.children = None
    if any(wanted() for wanted, _ in _lenders):
        _forking.children = Children()
        for _, lend in _lenders:
            lend(_forking.children)


def _in_parent() -> None:
    children, _forking.children = _forking.children, None
    if children is not None:
        for _, lend in _lenders:
            lend(children)
        children.forked()


def _in_child() -> None:
    _forking.children = None
    for children in list(Children._all):
        children.forget()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

__all__ = ["Children", "lend_to_children"]
