# SPDX-License-Identifier: MIT
"""Memory that a forked child sees, too.

A child has all tensors that its parent had at the fork, and those in the daemon's memory share it with the parent's, as after
share_memory_(). So what a pool has given out by then is not given out again as long as the child lives, or anybody who was
forked from it: they would see the parent's later results in place of what they were left.
"""
from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable

_lenders: list[tuple[Callable[[], bool], Callable[[Children], None]]] = []
_forking = threading.local()  # children: of the fork that this thread is in


class Children:
    """A child and all that are forked from it. They alone have the other end of a pipe, which ends with the last of them: a
    process that ends, or becomes another program, closes it."""

    _all: weakref.WeakSet[Children] = weakref.WeakSet()

    def __init__(self) -> None:
        try:
            self._reading, self._writing = os.pipe()
        except OSError:  # no descriptors are left: it will not be known when they have ended
            self._reading, self._writing = -1, -1
        self._ended = False
        Children._all.add(self)

    def forked(self) -> None:
        """In the parent: from now on only they have it."""
        if self._writing >= 0:
            os.close(self._writing)
        self._writing = -1

    def forget(self) -> None:
        """In a child, which has the other end."""
        if self._reading >= 0:
            os.close(self._reading)
        self._reading = -1

    def live(self) -> bool:
        """Is there one of them?"""
        if self._ended or self._reading < 0:
            return not self._ended
        looking = select.poll()
        looking.register(self._reading, 0)  # asks for the hang-up, which is always told
        if looking.poll(0):
            self._ended = True
            self.forget()
        return not self._ended

    def __del__(self) -> None:
        if self._reading >= 0:
            os.close(self._reading)


def lend_to_children(wanted: Callable[[], bool], lend: Callable[[Children], None]) -> None:
    """Whenever this process forks, and wanted() says that there is anything, lend(children) notes what they will see. It is
    called before the fork and after it, as other threads go on."""
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
