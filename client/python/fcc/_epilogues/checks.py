# SPDX-License-Identifier: MIT
"""What can be wrong with a call with an epilogue that neither torch nor the C library would see."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._factors import Factor, factors_of
from .._communicator.refusals import refuse
from ..communicator import Communicator
from ..errors import ArgumentError

_F32_LEAST, _F32_MOST = 2.0 ** -149, 3.4028234663852886e38


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "Tensor | None": ((Tensor, type(None)), "a torch.Tensor, and None"),
    "bool": ((bool,), "True and False"),
    "str | None": ((str, type(None)), "a string, and None"),
    "float": ((int, float, torch.SymFloat, torch.SymInt), "a number"),
    "torch.dtype | None": ((torch.dtype, type(None)), "a torch.dtype, and None"),
}


Kinds = tuple[tuple[str, tuple[type, ...], str], ...]


def kinds_of(annotations: dict[str, str]) -> Kinds:
    return tuple((name, *_KINDS[kind]) for name, kind in annotations.items())


def kind_wrong(kinds: Kinds, epilogue: object) -> str | None:
    """The first argument of an epilogue that is of a wrong kind."""
    for name, allowed, words in kinds:
        if not isinstance(getattr(epilogue, name), allowed):
            return f"{name}: {type(getattr(epilogue, name)).__name__}: allowed are {words}"
    return None


def number_wrong(norm_eps: float, scale: float) -> str | None:
    """What is wrong with the numbers, in float32. (To the C library a scale of 0 is that there is none.)"""
    if not 0 <= norm_eps <= _F32_MOST:
        return f"norm_eps: {norm_eps:g}: allowed are finite numbers, 0 and more"
    if not _F32_LEAST <= abs(scale) <= _F32_MOST:
        return f"scale: {scale:g}: allowed are finite numbers other than 0"
    return None


def shape_wrong(tensors: Sequence[tuple[str, Tensor | None, tuple[int, ...]]]) -> str | None:
    """tensors: (name, tensor, its right shape)."""
    return next((f"{name}: {list(tensor.shape)}: allowed is {list(shape)}" for name, tensor, shape in tensors
                 if tensor is not None and tuple(tensor.shape) != shape), None)


def check_rows(c: Communicator, op: str, x: Tensor, tensors: dict[str, Tensor | None]) -> None:
    """The C library, to which a matrix that is only added up is a vector, would take the length of its rows from these."""
    rows, row = tuple(x.shape), tuple(x.shape[1:])
    wrong = shape_wrong([(name, tensors[name], rows if name in ("residual", "gate") else row)
                          for name in ("bias", "residual", "gate", "norm_weight", "norm_bias")])
    if wrong:
        raise ArgumentError(f"rank {c.rank}: {op}: {wrong}")


def two_factors(comm: Communicator, op: str, x: Tensor, w: Tensor) -> tuple[Factor, Factor]:
    factors = factors_of(op, x, w)
    for name, tensor, *_ in factors:
        if not isinstance(tensor, Tensor) or tensor.ndim != 2:
            shown = f"{tensor.ndim} dimensions, {list(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise refuse(comm, op, ArgumentError(f"rank {comm.rank}: {op}: {name}: {shown}: allowed are tensors of 2 dimensions"))
    return factors
