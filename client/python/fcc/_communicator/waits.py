# SPDX-License-Identifier: MIT
"""Waits for operators and streams, in slices, so that Ctrl-C is noticed. It aborts the communicator, and the other ranks end, too."""
from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING

import torch

from .._connection import Member
from .._library import library

if TYPE_CHECKING:
    from ..communicator import Communicator

WAIT_SLICE_MS = 50  # time until Ctrl-C is noticed while waiting for an operator
STREAM_LOOK_S, STREAM_LOOK_MOST_S = 10e-6, 500e-6  # between two looks at a stream that is waited for: at first, and in the end


def stream_await(comm: Communicator) -> None:
    """Waits until the current stream of the communicator's GPU has done what it was given. Ctrl-C aborts the communicator."""
    event, pause = torch.cuda.Event(), threading.Event()
    event.record(torch.cuda.current_stream(comm.device))
    seconds = STREAM_LOOK_S
    try:
        while not event.query():
            pause.wait(seconds)
            seconds = min(2 * seconds, STREAM_LOOK_MOST_S)
    except KeyboardInterrupt:
        comm._member.interrupted()
        raise


def errors_await(member: Member) -> int:
    """The result of fcc_comm_error_wait(), waited for in slices. Ctrl-C aborts the communicator."""
    try:
        status = library().comm_error_wait(member.handle, WAIT_SLICE_MS)
        while status == -11:
            status = library().comm_error_wait(member.handle, WAIT_SLICE_MS)
        return status
    except KeyboardInterrupt:
        member.interrupted()
        raise


def noop(member: Member) -> None:
    """Wait until all ranks have called it."""
    request = ctypes.c_void_p()
    status = library().operators["noop"].start(member.handle, ctypes.byref(request))
    if status < 0:
        raise member.error(status)
    request_wait(member, request)


def request_wait(member: Member, request: ctypes.c_void_p) -> None:
    """Wait for an operator, in slices, and free its request. Ctrl-C aborts the communicator, so that the other ranks end,
    too."""
    try:
        status = library().request_wait(request, WAIT_SLICE_MS)
        while status == -11:
            status = library().request_wait(request, WAIT_SLICE_MS)
        if status < 0:
            raise member.error(status)
    except KeyboardInterrupt:
        member.interrupted()
        raise
    finally:
        library().request_free(request)
