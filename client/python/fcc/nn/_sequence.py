# SPDX-License-Identifier: MIT
"""Linear layers between which a sequence is spread over the ranks: what ColumnParallelLinear and RowParallelLinear do with sequence_parallel=True.

Each rank has some positions, the first dimension of its tensors. The column-parallel layer gathers those of all ranks, the row-parallel one
gives each rank its positions of the sum.
"""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .._communicator.refusals import refuse
from ..communicator import find
from ..errors import ArgumentError
from ..ops import batch_parts

_ops = torch.ops.fcc


def gathered_wrong(comm: str, x: Tensor, rows: Sequence[int] | None) -> str:
    """What is wrong with these positions."""
    c = find(comm)
    if x.ndim < 2:
        return f"x: {list(x.shape)}: allowed with sequence_parallel are [positions, *, {x.shape[-1]}]"
    if rows is not None and (len(rows) != c.size or any(n < 0 for n in rows) or rows[c.rank] != x.shape[0]):
        return f"rows: {list(rows)}: allowed are {c.size} numbers, 0 and more, one for each rank, {x.shape[0]} for this one"
    return ""


def gathered_linear(x: Tensor, weight: Tensor, bias: Tensor | None, comm: str, rows: Sequence[int] | None) -> Tensor:
    """The product of all ranks' positions, [sum of rows][*][K], with this rank's columns of a weight: one all_gather_gemm, of a weight whose columns lie
    beside each other in memory. Backward sums the gradient of each position over the ranks, and gives it to the rank whose position it is."""
    inner, k, n = math.prod(x.shape[1:-1]), x.shape[-1], weight.shape[0]
    positions = x.shape[0] * find(comm).size if rows is None else sum(rows)
    y, _ = _ops.all_gather_gemm(x.reshape(x.shape[0] * inner, k), weight.t(), comm, bias, rows=None if rows is None else [part * inner for part in rows],
                                gathered=torch.is_grad_enabled() and weight.requires_grad)
    return y.view(positions, *x.shape[1:-1], n)


def scattered_parts(comm: str, x: Tensor, rows: Sequence[int] | None) -> list[int]:
    """How many of x's positions each rank gets. Wrong arguments are refused, on all ranks."""
    c, wrong = find(comm), ""
    if x.ndim < 2:
        wrong = f"x: {list(x.shape)}: allowed with sequence_parallel are [positions, *, K_r]"
    elif rows is not None and (len(rows) != c.size or any(n < 0 for n in rows) or sum(rows) != x.shape[0]):
        wrong = f"rows: {list(rows)}: allowed are {c.size} numbers, 0 and more, one for each rank, {x.shape[0]} in all"
    if wrong:
        raise refuse(c, "gemm_reduce_scatter", ArgumentError(f"rank {c.rank}: RowParallelLinear: {wrong}"))
    return list(batch_parts(x.shape[0], rows, c.size))


def scattered_linear(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, comm: str, parts: Sequence[int]) -> Tensor:
    """This rank's positions of the sum over the ranks of x @ weight.T, plus a bias that all ranks share and this rank's own residual: one
    gemm_reduce_scatter, of a weight whose columns lie beside each other in memory."""
    own, inner, n = parts[find(comm).rank], math.prod(x.shape[1:-1]), weight.shape[0]
    if bias is not None and torch.is_grad_enabled():  # each rank sees the gradient of its own positions only
        bias = _ops.cast(_ops.sum_gradients(bias, comm, replicated=False), bias.dtype, comm)  # where the operator needs no copy
    joins = residual is not None and residual.dtype == weight.dtype and not torch.is_autocast_enabled(x.device.type)
    added = residual.reshape(own * inner, n) if residual is not None and joins else None
    y = _ops.gemm_reduce_scatter(x.reshape(x.shape[0] * inner, x.shape[-1]), weight.t(), comm, bias, added,
                                 rows=[part * inner for part in parts]).view(own, *x.shape[1:-1], n)
    return y if residual is None or joins else residual + y
