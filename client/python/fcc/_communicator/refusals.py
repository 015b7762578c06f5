# SPDX-License-Identifier: MIT
"""Refusals: what is wrong with this rank's arguments, of which all other ranks are told, so that none waits for it."""
from __future__ import annotations

import ctypes
import errno
from typing import TYPE_CHECKING

import torch

from .. import _library
from .._capture import captures_elsewhere
from .._connection import Connection
from .._library import library
from ..errors import Error
from .waits import request_wait

if TYPE_CHECKING:
    from ..communicator import Communicator

TOLD = "_fcc_told"  # marks an exception of which the other ranks have been told
IN_PIECES = ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")  # which ranks launch where Member.multiplies()


def told(error: Exception) -> tuple[int, bytes]:
    """The status and reason that the other ranks are told, whatever the exception is."""
    if isinstance(error, Error):
        return -error.code, error.reason.encode(errors="replace")
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception as e:  # raised by the exception's own __str__()
        text = f"{type(error).__name__} ({type(e).__name__} in its text)"
    return -errno.EINVAL, text.encode(errors="replace")


def refuse_to_join(error: Exception, rank: int | None, size: int | None, id: bytes | None, socket: str | None,
                   job: str | None) -> Exception:
    """Tells the other ranks, which wait, why this one does not join. Returns the error."""
    if isinstance(error, Error) and error.rank is None:
        error.rank = rank
    try:
        connection = Connection.of(socket, job)
    except Error:
        return error  # there is no daemon through which they could be told
    at = None if id is None else ctypes.byref(_library.UniqueId.from_buffer_copy(id))
    library().comm_init_refuse(connection.handle, at, size or 0, rank or 0, *told(error))
    return error


def refuse(comm: Communicator, op: str, error: Exception, launched: bool = True) -> Exception:
    """Submit the refusal in place of the operator, or of what this process would launch, so that the other ranks get its error. launched:
    whether it would, if the communicator's ranks can. Returns the error."""
    request, member = ctypes.c_void_p(), comm._member
    if isinstance(error, Error):
        error.for_operator(op)
    status, reason = told(error)
    try:
        if launched and member.on_gpu and (member.multiplies() if op in IN_PIECES else may_be_launched(op) and member.launches()):
            if not captures_elsewhere(comm.device.index):  # otherwise the other ranks capture, too, and run nothing
                library().refuse_enqueue(member.handle, op.encode(), reason, torch.cuda.current_stream(comm.device).cuda_stream)
        elif library().refuse_start(member.handle, op.encode(), status, reason, ctypes.byref(request)) == 0:
            request_wait(member, request)
    except Error:
        pass  # the refusal's own error is expected; any other ends the communicator
    setattr(error, TOLD, True)
    return error


def is_collective(op: str) -> bool:
    """Whether the operator of that name is a plain collective."""
    found = library().operators.get(op)
    return found is not None and found.is_collective


def may_be_launched(op: str) -> bool:
    """Whether ranks launch that operator themselves where they can (Member.launches())."""
    return op in ("gemv_all_reduce", "gemm_all_to_all", "embedding_all_to_all") or is_collective(op)
