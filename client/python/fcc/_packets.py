# SPDX-License-Identifier: MIT
"""Calls of torch.ops.fcc.* that torch refuses before the operator sees them, and meta tensors.

torch's dispatcher checks argument types against the schema and looks for a kernel for the kind of tensor. Its errors are raised on this
rank alone, while the other ranks wait. So torch.ops.fcc.NAME tells them, as of any wrong argument. (torch calls an overload,
torch.ops.fcc.NAME.default, itself, without any code of fcc before it.)
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._guards import detect_fake_mode
from torch._ops import OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor

from . import communicator
from ._calls import unsubmitted
from ._dispatch import is_forward_mode
from ._communicator.refusals import refuse
from .communicator import Communicator
from .errors import ArgumentError, Error

kernels: dict[str, Callable[..., Any]] = {}  # by the names of torch.ops.fcc
made_of: dict[str, str] = {}  # the C library's operators that functions with other names use


def operator_of(comm: Any, name: str) -> str:
    """The C library's operator that does the function's work."""
    return made_of.get(name, name)


def refused(packet: Any, error: Exception, args: tuple, keywords: dict[str, Any]) -> Exception:
    """torch has refused this call: tells the ranks, if the communicator is known. Returns the error to raise."""
    if isinstance(error, Error) or detect_fake_mode((args, keywords)) is not None:
        return error  # the ranks know; or the call only asked for shapes
    name = packet._qualified_op_name.rpartition("::")[2]
    names = [argument.name for argument in packet.default._schema.arguments]
    given = dict(zip(names, args)) | {key: value for key, value in keywords.items() if key in names}
    comm = given.pop("comm", None)
    if isinstance(comm, Communicator):
        return refuse(comm, operator_of(comm, name), ArgumentError(
            f"rank {comm.rank}: {name}: comm: a Communicator: allowed is the name of one, Communicator.name"))
    found = communicator._by_name.get(comm) if isinstance(comm, str) else None
    if found is None:
        return error
    return unsubmitted(found, operator_of(found, name), kernels[name], error, **given)


class Packet(OpOverloadPacket):
    """torch.ops.fcc.NAME"""

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        try:
            return self._op(*args, **keywords)
        except Exception as e:
            raise refused(self, e, args, keywords) from None


def traced(fake: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel for fake tensors. The graph that is traced with them may begin forward mode unnoticed."""
    @functools.wraps(fake)
    def call(*args: Any, **keywords: Any) -> Tensor:
        if is_forward_mode():
            from . import _direct  # which has imported this
            _direct.avoid()
        return fake(*args, **keywords)
    return call


def shapes_only(name: str, fake: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The kernel for meta and fake tensors. A call with only such tensors asks for the result's shape, on this rank alone. Among real
    tensors they are an error."""
    @functools.wraps(fake)
    def call(*args: Any, **keywords: Any) -> Tensor:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(not tensor.is_meta for tensor in tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            comm = communicator.find(next(arg for arg in args if isinstance(arg, str)))
            where = " and ".join(sorted({str(tensor.device) for tensor in tensors}))
            raise refuse(comm, operator_of(comm, name), ArgumentError(
                f"rank {comm.rank}: {name}: its tensors are on {where}: allowed is the communicator's device, {comm.device}; or "
                "meta for all of them, which asks for the result's shape and calls nothing"))
        return fake(*args, **keywords)
    return call
