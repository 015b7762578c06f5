# SPDX-License-Identifier: MIT
"""The derivatives of torch.ops.fcc.*.

Every rank's loss counts: a gradient is that of the sum of all ranks' losses, as with torch's own collectives. The exception is
replicated=True (the default of gemv_all_reduce): its result is the same on all ranks and, in tensor-parallel layers, is
used alike by all: then all ranks compute the same loss, it counts once, and the gradient of the result is taken as it comes.

Backward moves gradients by rows_all_to_all and all_reduce, which are the fused operators behind products with the identity and
with 1, and multiplies by torch. Moving is collective, so on all ranks the same tensors must require gradients.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .communicator import find
from ._dispatch import lib, plain
from .ops import KERNELS, batch_parts

ops = torch.ops.fcc


def gemv_save(ctx: Any, result: Tensor, x: Tensor, w: Tensor, comm: str, *, replicated: bool = True,
              schedule: str = "auto") -> None:
    ctx.save_for_backward(x, w)
    ctx.comm, ctx.replicated = comm, replicated


def gemv_backward(ctx: Any, grad: Tensor) -> tuple:
    x, w = ctx.saved_tensors
    if not ctx.replicated:
        grad = ops.all_reduce(grad, ctx.comm)
    return (grad @ w if ctx.needs_input_grad[0] else None), (grad.t() @ x if ctx.needs_input_grad[1] else None)


def gemm_save(ctx: Any, result: Tensor, a: Tensor, b: Tensor, comm: str, *, send_rows: Sequence[int] | None = None,
              recv_rows: Sequence[int] | None = None, schedule: str = "auto") -> None:
    ctx.save_for_backward(a, b)
    size = find(comm).size
    ctx.comm = comm
    ctx.send_rows = send_rows if send_rows is not None else [a.shape[0] // size] * size
    ctx.recv_rows = recv_rows if recv_rows is not None else [a.shape[0] // size] * size


def gemm_backward(ctx: Any, grad: Tensor) -> tuple:
    a, b = ctx.saved_tensors
    grad = ops.rows_all_to_all(grad, ctx.recv_rows, ctx.send_rows, ctx.comm)
    return (grad @ b.t() if ctx.needs_input_grad[0] else None), (a.t() @ grad if ctx.needs_input_grad[1] else None)


def embedding_save(ctx: Any, result: Tensor, tables: Tensor, indices: Tensor, offsets: Tensor, sample_weights: Tensor | None,
                   table_rows: Sequence[int], tables_per_rank: Sequence[int], batch: int, comm: str, *,
                   batch_split: Sequence[int] | None = None, pooling: str = "sum", schedule: str = "auto") -> None:
    ctx.save_for_backward(tables, indices, offsets, sample_weights)
    ctx.table_rows, ctx.tables_per_rank, ctx.batch, ctx.comm = table_rows, tables_per_rank, batch, comm
    ctx.pooling = pooling
    ctx.parts = batch_parts(batch, batch_split, find(comm).size)


def embedding_backward(ctx: Any, grad: Tensor) -> tuple:
    tables, indices, offsets, sample_weights = ctx.saved_tensors
    c = find(ctx.comm)
    width, own = tables.shape[1], ctx.tables_per_rank[c.rank]
    # [own samples][all tables][D] -> [all tables][own samples][D]: rows in the order of the ranks that have the tables
    rows = grad.transpose(0, 1).reshape(-1, width)
    mine = ctx.parts[c.rank]
    came = ops.rows_all_to_all(rows, [n * mine for n in ctx.tables_per_rank], [own * n for n in ctx.parts], ctx.comm)
    pieces: tuple[Tensor, ...] = came.split([own * n for n in ctx.parts])
    bags = torch.cat([piece.reshape(own, n, width) for piece, n in zip(pieces, ctx.parts)], 1).reshape(-1, width)
    return _bags_backward(ctx, bags, tables, indices, offsets, sample_weights)


def _bags_backward(ctx: Any, bags: Tensor, tables: Tensor, indices: Tensor, offsets: Tensor,
                   sample_weights: Tensor | None) -> tuple:
    """From the gradients of this rank's bags [T_r * B][D] to those of its tables and weights."""
    count, batch = bags.shape[0], ctx.batch
    nothing = (None, None, None)
    if count == 0 or indices.shape[0] == 0:
        return (torch.zeros_like(tables), *nothing[:2], None if sample_weights is None else torch.zeros_like(sample_weights))
    place = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = torch.searchsorted(offsets, place, right=True) - 1  # of each index; -1 and count: it is in none
    inside = ((bag >= 0) & (bag < count)).unsqueeze(1)
    bag = bag.clamp(0, count - 1)
    first = torch.tensor([sum(ctx.table_rows[:t]) for t in range(len(ctx.table_rows))], device=indices.device)
    row = torch.where(inside.squeeze(1), indices.long() + first[bag // batch], 0)
    each = torch.where(inside, bags.float()[bag], 0.0)
    if ctx.pooling == "mean":
        each = each / (offsets[bag + 1] - offsets[bag]).unsqueeze(1)
    to_weights = None
    if sample_weights is not None:
        if ctx.needs_input_grad[3]:
            to_weights = (each * tables[row].float()).sum(1)
        each = each * sample_weights.unsqueeze(1)
    to_tables = torch.zeros(tables.shape, dtype=torch.float32, device=tables.device).index_add_(0, row, each).to(tables.dtype)
    return to_tables, None, None, to_weights


def rows_save(ctx: Any, result: Tensor, rows: Tensor, send_rows: Sequence[int], recv_rows: Sequence[int], comm: str) -> None:
    ctx.send_rows, ctx.recv_rows, ctx.comm = send_rows, recv_rows, comm


def rows_backward(ctx: Any, grad: Tensor) -> tuple:
    return (ops.rows_all_to_all(grad, ctx.recv_rows, ctx.send_rows, ctx.comm),)


def all_reduce_save(ctx: Any, result: Tensor, x: Tensor, comm: str, *, replicated: bool = False) -> None:
    ctx.comm, ctx.replicated = comm, replicated


def all_reduce_backward(ctx: Any, grad: Tensor) -> tuple:
    return (grad if ctx.replicated else ops.all_reduce(grad, ctx.comm),)


DERIVATIVES: dict[str, tuple[Callable[..., None], Callable[..., tuple]]] = {
    "gemv_all_reduce": (gemv_save, gemv_backward),
    "gemm_all_to_all": (gemm_save, gemm_backward),
    "embedding_all_to_all": (embedding_save, embedding_backward),
    "rows_all_to_all": (rows_save, rows_backward),
    "all_reduce": (all_reduce_save, all_reduce_backward),
}


def differentiable(name: str, run: Callable[..., Tensor], save: Callable[..., None],
                   backward: Callable[..., tuple]) -> Callable[..., Tensor]:
    """What the dispatcher calls first. torch.library.register_autograd() would make the same, but for the way of a plain call
    of which no gradient is wanted: that goes on here without passing the dispatcher a second time, which takes longer than all
    the rest."""
    op = getattr(ops, name).default
    any_requires_grad = torch._C._any_requires_grad
    is_grad_enabled = torch.is_grad_enabled

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args_keyset_keywords: Any) -> Tensor:
            *args, keyset, keywords = args_keyset_keywords
            with torch._C._AutoDispatchBelowAutograd():
                result = op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **keywords)
            ctx.inputs = len(args) + 2
            save(ctx, result, *args, **keywords)
            return result

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Any) -> tuple:
            found = backward(ctx, *grads)
            return *found, *(None,) * (ctx.inputs - len(found))

    Function.__name__ = f"{name}_backward"

    def kernel(keyset: Any, *args: Any, **keywords: Any) -> Tensor:
        if is_grad_enabled() and any_requires_grad(*args):
            return Function.apply(*args, keyset, keywords)
        if keyset.raw_repr() in plain:
            return run(*args, **keywords)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **keywords)

    return kernel


for _name, (_run, _fake, _schema) in KERNELS.items():
    _save, _backward = DERIVATIVES[_name]
    lib.impl(_name, differentiable(_name, _run, _save, _backward), "Autograd", with_keyset=True)
