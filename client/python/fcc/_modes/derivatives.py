# SPDX-License-Identifier: MIT
"""The derivatives of torch.ops.fcc.*, as functions of tensors. They call torch's operators and fcc's, so they have derivatives themselves.

Every rank's loss counts: a gradient is that of the sum of all ranks' losses, as with torch's own collectives. The exception is
replicated=True (the default of gemv_all_reduce). The result is then the same on all ranks, and all ranks use it alike, as in
tensor-parallel layers. So all ranks compute the same loss, the loss counts once, and the gradient of the result is taken unchanged. Each
rank multiplies that one gradient by a part of its own, as a layer after sum_gradients() does; so for second derivatives the gradients of
the gradient are summed over the ranks.

Backward moves gradients by rows_all_to_all and all_reduce, and multiplies by torch, but for two operators that are each other's adjoint:
the gradient of gemm_reduce_scatter is an all_gather_gemm, and that of all_gather_gemm a gemm_reduce_scatter. That of a plain collective is its
adjoint. The tangent of an operator (forward mode) is the operator applied to the tangents, because the operator is linear in each input.
For two inputs with tangents the two products are put side by side, so it is one operator whichever inputs of a rank have tangents.

For each operator there are three functions:
    save(ctx, result, *args, **keywords)    keeps in ctx what is not a tensor; returns the tensors to save
    backward(ctx, saved, grad)              the gradients of the first arguments; the others have none
    tangent(ctx, saved, *tangents)          the result's tangent from the arguments' tangents (None: an argument has none)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._collectives import complete
from .._staging import is_there
from ..communicator import find
from ..errors import ArgumentError
from ..ops import batch_parts

ops = torch.ops.fcc

Saved = tuple["Tensor | None", ...]


class Derivative(NamedTuple):
    save: Callable[..., Saved]
    backward: Callable[..., tuple]
    tangent: Callable[..., Any]


# ---- epilogues: a bias and a residual, which are added. All ranks have the same ones, or none. ----

def stages_save(ctx: Any, bias: Tensor | None, residual: Tensor | None) -> None:
    ctx.bias = None if bias is None else bias.shape
    ctx.residual = None if residual is None else residual.shape


def stages_gradients(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
    """Of comm, bias and residual."""
    wants_bias = ctx.bias is not None and ctx.needs_input_grad[3]
    wants_residual = ctx.residual is not None and ctx.needs_input_grad[4]
    return None, grad.sum(0) if wants_bias else None, grad if wants_residual else None


def stages_tangents(ctx: Any, like: Tensor, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
    """An epilogue of the tangents, which has the stages of the operator's own on all ranks, whichever have tangents there."""
    given = [*tangents[1:3], None, None][:2]  # behind comm; there are fewer where none is given
    return [None if shape is None else like.new_zeros(shape) if tangent is None else tangent
            for shape, tangent in zip((ctx.bias, ctx.residual), given)]


# ---- gemv_all_reduce, gemm_all_reduce ----

def sums_save(ctx: Any, result: Tensor, x: Tensor, w: Tensor, comm: str, bias: Tensor | None = None,
              residual: Tensor | None = None, *, replicated: bool = True, schedule: str = "auto") -> Saved:
    ctx.comm, ctx.replicated, ctx.schedule = comm, replicated, schedule
    stages_save(ctx, bias, residual)
    return x, w


def gemv_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    x, w = saved
    grad = summed_gradient(ctx, grad)
    return (grad @ w if ctx.needs_input_grad[0] else None, grad.t() @ x if ctx.needs_input_grad[1] else None,
            *stages_gradients(ctx, grad))


def gemv_tangent(ctx: Any, saved: Saved, to_x: Tensor | None, to_w: Tensor | None, *others: Tensor | None) -> Tensor:
    x, w = beside(1, saved, to_x, to_w)
    return ops.gemv_all_reduce(x, w, ctx.comm, *stages_tangents(ctx, x, others), replicated=ctx.replicated, schedule=ctx.schedule)


def sums_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    a, b = saved
    assert a is not None and b is not None
    grad = summed_gradient(ctx, grad)
    return (grad @ b.t() if ctx.needs_input_grad[0] else None, a.t() @ grad if ctx.needs_input_grad[1] else None,
            *stages_gradients(ctx, grad))


def sums_tangent(ctx: Any, saved: Saved, to_a: Tensor | None, to_b: Tensor | None, *others: Tensor | None) -> Tensor:
    a, b = beside(0, saved, to_a, to_b)
    return ops.gemm_all_reduce(a, b, ctx.comm, *stages_tangents(ctx, a, others), replicated=ctx.replicated, schedule=ctx.schedule)


# ---- gemm_reduce_scatter ----

def scatter_save(ctx: Any, result: Tensor, a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                 rows: Sequence[int] | None = None, schedule: str = "auto") -> Saved:
    ctx.comm, ctx.schedule = comm, schedule
    ctx.rows = list(batch_parts(a.shape[0], rows, find(comm).size))
    stages_save(ctx, bias, residual)
    return a, b


def scatter_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    """Each rank's factors have a part in all rows, whose gradients the ranks give each other. All ranks do, whatever they want themselves:
    who does not want that of a multiplies by no columns."""
    a, b = saved
    assert a is not None and b is not None
    if torch.is_grad_enabled():  # who differentiates once more uses the rows in two ways, whose gradients are added before they are sent
        every = ops.all_gather(grad.contiguous(), ctx.comm, counts=ctx.rows)
        to_a = every @ b.t() if ctx.needs_input_grad[0] else None
    else:
        factor = b if ctx.needs_input_grad[0] else b[:0]
        to_a, every = ops.all_gather_gemm(in_place(grad, ctx.comm), in_place(factor.t(), ctx.comm), ctx.comm, rows=ctx.rows, gathered=True)
    return (to_a if ctx.needs_input_grad[0] else None, a.t() @ every if ctx.needs_input_grad[1] else None,
            *stages_gradients(ctx, grad))


def scatter_tangent(ctx: Any, saved: Saved, to_a: Tensor | None, to_b: Tensor | None, *others: Tensor | None) -> Tensor:
    a, b = beside(0, saved, to_a, to_b)
    return ops.gemm_reduce_scatter(a, b, ctx.comm, *stages_tangents(ctx, a, others), rows=ctx.rows, schedule=ctx.schedule)


def in_place(factor: Tensor, comm: str) -> Tensor:
    """The factor dense in the daemon's memory, where a product needs it. (Without a warning if it is copied there: the program has not made
    it, and can do nothing about where it lies.)"""
    return factor if is_there(find(comm), factor) else ops.cast(factor, factor.dtype, comm)


def summed_gradient(ctx: Any, grad: Tensor) -> Tensor:
    """The gradient of a sum over the ranks. It is the same on all ranks, and each rank uses it for a part of its own."""
    if not ctx.replicated:
        return ops.all_reduce(grad, ctx.comm)
    return ops.sum_gradients(grad, ctx.comm) if torch.is_grad_enabled() else grad


def beside(inner: int, saved: Saved, to_a: Tensor | None, to_b: Tensor | None) -> tuple[Tensor, Tensor]:
    """Two factors whose product is to_a . b + a . to_b: the inputs joined along a's dimension 1 and b's dimension `inner`."""
    a, b = saved
    assert a is not None and b is not None
    if to_b is None:
        return (torch.zeros_like(a) if to_a is None else to_a), b
    if to_a is None:
        return a, to_b
    return torch.cat((to_a, a), 1), torch.cat((b, to_b), inner)


# ---- gemm_all_to_all ----

def gemm_save(ctx: Any, result: Tensor, a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None,
              residual: Tensor | None = None, *, send_rows: Sequence[int] | None = None,
              recv_rows: Sequence[int] | None = None, schedule: str = "auto") -> Saved:
    size = find(comm).size
    stages_save(ctx, bias, residual)
    ctx.comm, ctx.schedule = comm, schedule
    ctx.send_rows = send_rows if send_rows is not None else [a.shape[0] // size] * size
    ctx.recv_rows = recv_rows if recv_rows is not None else [a.shape[0] // size] * size
    return a, b


def gemm_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    a, b = saved
    assert a is not None and b is not None
    grad = ops.rows_all_to_all(grad, ctx.recv_rows, ctx.send_rows, ctx.comm)
    return (grad @ b.t() if ctx.needs_input_grad[0] else None, a.t() @ grad if ctx.needs_input_grad[1] else None,
            *stages_gradients(ctx, grad))


def gemm_tangent(ctx: Any, saved: Saved, to_a: Tensor | None, to_b: Tensor | None, *others: Tensor | None) -> Tensor:
    a, b = beside(0, saved, to_a, to_b)
    return ops.gemm_all_to_all(a, b, ctx.comm, *stages_tangents(ctx, a, others), send_rows=ctx.send_rows,
                               recv_rows=ctx.recv_rows, schedule=ctx.schedule)


# ---- all_gather_gemm ----

def gather_save(ctx: Any, result: tuple[Tensor, Tensor], a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None,
                residual: Tensor | None = None, *, rows: Sequence[int] | None = None, gathered: bool = False,
                schedule: str = "auto") -> Saved:
    stages_save(ctx, bias, residual)
    ctx.comm, ctx.schedule, ctx.gathered = comm, schedule, gathered
    ctx.rows = rows if rows is not None else [a.shape[0]] * find(comm).size
    ctx.set_materialize_grads(False)
    # A that was gathered has no derivatives of its own, which a second derivative would need: then it is gathered again
    return a, b, result[1].detach() if gathered else None


def product_scattered(grad: Tensor, b: Tensor, more: Tensor | None, ctx: Any) -> Tensor:
    """The sum over the ranks of grad @ b^T (and `more`), of which each rank gets its rows. Whether there is more is this rank's own affair:
    then its factors, whose K_r may differ from other ranks', are longer."""
    factor = b.t()
    if more is not None:
        grad, factor = torch.cat((grad, more), 1), torch.cat((factor, torch.eye(b.shape[0], dtype=b.dtype, device=b.device)))
    return ops.gemm_reduce_scatter(in_place(grad, ctx.comm), in_place(factor, ctx.comm), ctx.comm, rows=ctx.rows)


def gather_backward(ctx: Any, saved: Saved, grad: Tensor | None, to_gathered: Tensor | None) -> tuple:
    a, b, every = saved
    assert a is not None and b is not None
    if grad is None:
        grad = b.new_zeros((sum(ctx.rows), b.shape[1]))
    to_b = None
    if ctx.needs_input_grad[1]:
        if every is None or torch.is_grad_enabled():
            every = ops.all_gather(a, ctx.comm, counts=ctx.rows)
        to_b = every.t() @ grad
    more = to_gathered if ctx.gathered else None
    return (product_scattered(grad, b, more, ctx) if ctx.needs_input_grad[0] else None, to_b, *stages_gradients(ctx, grad))


def gather_tangent(ctx: Any, saved: Saved, to_a: Tensor | None, to_b: Tensor | None, *others: Tensor | None) -> tuple[Tensor, Tensor]:
    own = saved[0]
    assert own is not None
    a, b = beside(0, saved[:2], to_a, to_b)
    every = ops.all_gather(torch.zeros_like(own) if to_a is None else to_a, ctx.comm, counts=ctx.rows) if ctx.gathered else None
    c, nothing = ops.all_gather_gemm(a, b, ctx.comm, *stages_tangents(ctx, a, others), rows=ctx.rows, schedule=ctx.schedule)
    return c, own.new_zeros((0, own.shape[1])) if every is None else every


# ---- embedding_all_to_all ----

def embedding_save(ctx: Any, result: Tensor, tables: Tensor, indices: Tensor, offsets: Tensor, sample_weights: Tensor | None,
                   table_rows: Sequence[int], tables_per_rank: Sequence[int], batch: int, comm: str, *,
                   batch_split: Sequence[int] | None = None, pooling: str = "sum", schedule: str = "auto") -> Saved:
    ctx.table_rows, ctx.tables_per_rank, ctx.batch, ctx.comm = table_rows, tables_per_rank, batch, comm
    ctx.batch_split, ctx.pooling, ctx.schedule = batch_split, pooling, schedule
    return tables, indices, offsets, sample_weights


def embedding_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    tables, indices, offsets, sample_weights = saved
    assert tables is not None and indices is not None and offsets is not None
    c = find(ctx.comm)
    width, own = tables.shape[1], ctx.tables_per_rank[c.rank]
    parts = batch_parts(ctx.batch, ctx.batch_split, c.size)
    # [own samples][all tables][D] -> [all tables][own samples][D]: rows in the order of the ranks that have the tables
    rows = grad.transpose(0, 1).reshape(grad.shape[0] * grad.shape[1], width)
    mine = parts[c.rank]
    came = ops.rows_all_to_all(rows, [n * mine for n in ctx.tables_per_rank], [own * n for n in parts], ctx.comm)
    pieces: tuple[Tensor, ...] = came.split([own * n for n in parts])
    bags = torch.cat([piece.reshape(own, n, width) for piece, n in zip(pieces, parts)], 1).reshape(own * ctx.batch, width)
    return _bags_backward(ctx, bags, tables, indices, offsets, sample_weights)


def _bags_backward(ctx: Any, bags: Tensor, tables: Tensor, indices: Tensor, offsets: Tensor,
                   sample_weights: Tensor | None) -> tuple:
    """From the gradients of this rank's bags [T_r * B][D] to those of its tables and weights.

    Elements that no bag reads (indices and weights before the first bag and after the last) must not be used, not even with a factor of 0:
    they may be infinite or NaN.
    """
    if bags.shape[0] == 0 or indices.shape[0] == 0 or tables.shape[0] == 0:
        # Nothing depends on `bags`, but who differentiates once more must come by the exchange of rows, as the other ranks do.
        nothing = bags[:0].sum()
        return (nothing.to(tables.dtype).expand(tables.shape), None, None,
                None if sample_weights is None else nothing.to(sample_weights.dtype).expand(sample_weights.shape))
    bag, inside, first = bag_of_each(ctx, indices, offsets)
    row = torch.where(inside, indices.long() + first, 0)
    each = torch.where(inside.unsqueeze(1), bags.float()[bag], 0.0)
    if ctx.pooling == "mean":  # an index in no bag is given one that may be empty
        each = each / (offsets[bag + 1] - offsets[bag]).clamp(min=1).unsqueeze(1)
    to_weights = None
    if sample_weights is not None:
        if ctx.needs_input_grad[3]:
            to_weights = (each * torch.where(inside.unsqueeze(1), tables[row].float(), 0.0)).sum(1)
        each = each * torch.where(inside, sample_weights, 0.0).unsqueeze(1)
    to_tables = torch.zeros(tables.shape, dtype=torch.float32, device=tables.device).index_add(0, row, each).to(tables.dtype)
    return to_tables, None, None, to_weights


def bag_of_each(ctx: Any, indices: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each index: its bag; whether it is in a bag (if not, the bag is arbitrary); the first row of its table."""
    count = len(ctx.table_rows) * ctx.batch
    place = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = torch.searchsorted(offsets, place, right=True) - 1  # -1 and count: in none
    inside = (bag >= 0) & (bag < count)
    bag = bag.clamp(0, count - 1)
    firsts = torch.tensor([sum(ctx.table_rows[:t]) for t in range(len(ctx.table_rows))], device=indices.device)
    return bag, inside, firsts[bag // ctx.batch]


def embedding_tangent(ctx: Any, saved: Saved, to_tables: Tensor | None, _indices: None, _offsets: None, to_weights: Tensor | None,
                      *_: None) -> Tensor:
    tables, indices, offsets, weights = saved
    assert tables is not None and indices is not None and offsets is not None
    rows = list(ctx.table_rows)
    if to_weights is None:
        tables = torch.zeros_like(tables) if to_tables is None else to_tables
    elif to_tables is None:
        weights = to_weights
    elif len(rows) and ctx.batch and indices.shape[0]:
        # A table of twice the rows, the second half for its tangent; and each index twice, with the weights for either half.
        assert weights is not None
        bag, _inside, _first = bag_of_each(ctx, indices, offsets)
        beyond = torch.tensor(rows, device=indices.device)[bag // ctx.batch].to(indices.dtype)
        tables = torch.cat([part for pair in zip(tables.split(rows), to_tables.split(rows)) for part in pair])
        indices = torch.stack((indices, indices + beyond), 1).reshape(-1)
        weights = torch.stack((to_weights, weights), 1).reshape(-1)
        offsets, rows = offsets * 2, [2 * n for n in rows]
    return ops.embedding_all_to_all(tables, indices, offsets, weights, rows, ctx.tables_per_rank, ctx.batch, ctx.comm,
                                    batch_split=ctx.batch_split, pooling=ctx.pooling, schedule=ctx.schedule)


# ---- what moves and adds ----

def rows_save(ctx: Any, result: Tensor, rows: Tensor, send_rows: Sequence[int], recv_rows: Sequence[int], comm: str) -> Saved:
    ctx.send_rows, ctx.recv_rows, ctx.comm = send_rows, recv_rows, comm
    return ()


def rows_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    return (ops.rows_all_to_all(grad, ctx.recv_rows, ctx.send_rows, ctx.comm),)


def rows_tangent(ctx: Any, saved: Saved, to_rows: Tensor, *_: None) -> Tensor:
    return ops.rows_all_to_all(to_rows, ctx.send_rows, ctx.recv_rows, ctx.comm)


def counted_save(ctx: Any, result: tuple[Tensor, Tensor], x: Tensor, send_counts: Tensor, capacity: int, comm: str) -> Saved:
    ctx.rows, ctx.capacity, ctx.comm = x.shape[0], capacity, comm
    ctx.mark_non_differentiable(result[1])
    return send_counts, result[1]


def counted_backward(ctx: Any, saved: Saved, grad: Tensor, _: Any) -> tuple:
    """Rows behind those that were sent have the gradient 0, whatever lies there."""
    send_counts, received = saved
    assert send_counts is not None
    back, _counts = ops.all_to_all_v(grad, received, ctx.rows, ctx.comm)
    was_sent = torch.arange(ctx.rows, device=grad.device) < send_counts.sum()
    return (torch.where(was_sent.view(-1, *(1,) * (grad.ndim - 1)), back, 0),)


def counted_tangent(ctx: Any, saved: Saved, to_x: Tensor, *_: None) -> tuple[Tensor, None]:
    return ops.all_to_all_v(to_x, saved[0], ctx.capacity, ctx.comm)[0], None


def sum_gradients_save(ctx: Any, result: Tensor, x: Tensor, comm: str, *, replicated: bool = True) -> Saved:
    ctx.comm, ctx.replicated = comm, replicated
    return ()


def sum_gradients_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    return (ops.all_reduce(grad, ctx.comm, replicated=ctx.replicated),)


def sum_gradients_tangent(ctx: Any, saved: Saved, to_x: Tensor, *_: None) -> Tensor:
    return ops.sum_gradients(to_x, ctx.comm, replicated=ctx.replicated)


def cast_save(ctx: Any, result: Tensor, x: Tensor, dtype: torch.dtype, comm: str) -> Saved:
    ctx.before, ctx.dtype, ctx.comm = x.dtype, dtype, comm
    return ()


def cast_backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
    return (grad.to(ctx.before),)


def cast_tangent(ctx: Any, saved: Saved, to_x: Tensor, *_: None) -> Tensor:
    return ops.cast(to_x, ctx.dtype, ctx.comm)


# ---- plain collectives: backward is the adjoint collective ----

def collective(name: str, adjoint: Callable[..., Tensor]) -> Derivative:
    """adjoint(ctx, grad): the gradient of x, or on ranks whose x had no part in the result, an empty tensor."""
    op, defaults = getattr(ops, name), complete(name, {})

    def save(ctx: Any, result: Tensor, x: Tensor, comm: str, **given: Any) -> Saved:
        ctx.comm, ctx.shape, ctx.given = comm, x.shape, {**defaults, **given}
        return ()

    def differentiable_check(ctx: Any, like: Tensor) -> None:
        """All ranks come here alike, and raise the same before they call anything."""
        said, reduction = f"rank {find(ctx.comm).rank}: {name}: ", ctx.given.get("reduction", "sum")
        if reduction not in ("sum", "average"):
            raise ArgumentError(f"{said}reduction: {reduction}: it has no derivative: allowed there are sum and average")
        if like.dtype.itemsize == 1:
            raise ArgumentError(f"{said}x: {like.dtype}: it has no derivative: allowed there are float32, float64, float16 and bfloat16")

    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple:
        differentiable_check(ctx, grad)
        if ctx.given.get("reduction") == "average":
            grad = grad / find(ctx.comm).size
        found = adjoint(ctx, grad)
        return (found if found.shape == ctx.shape else found.sum().expand(ctx.shape),)

    def tangent(ctx: Any, saved: Saved, to_x: Tensor, *_: None) -> Tensor:
        differentiable_check(ctx, to_x)
        return op(to_x, ctx.comm, **ctx.given)

    return Derivative(save, backward, tangent)


def all_reduce_adjoint(ctx: Any, grad: Tensor) -> Tensor:
    if not ctx.given["replicated"]:
        return ops.all_reduce(grad, ctx.comm)
    return ops.sum_gradients(grad, ctx.comm) if torch.is_grad_enabled() else grad


def all_to_all_adjoint(ctx: Any, grad: Tensor) -> Tensor:
    return ops.all_to_all(grad, ctx.comm, send_counts=ctx.given["receive_counts"], receive_counts=ctx.given["send_counts"])


def send_receive_adjoint(ctx: Any, grad: Tensor) -> Tensor:
    return ops.send_receive(grad, ctx.comm, destination=ctx.given["source"], source=ctx.given["destination"], shape=ctx.shape)


def reduce_adjoint(ctx: Any, grad: Tensor) -> Tensor:
    if grad.shape != ctx.shape:  # this rank's result was the empty one: what is like the root's gradient
        grad = grad.sum().expand(ctx.shape)
    return ops.broadcast(grad, ctx.comm, root=ctx.given["root"])


def equal_counts(ctx: Any) -> Sequence[int]:
    """The counts of ctx's call, which joined all ranks' x."""
    return ctx.given["counts"] if ctx.given["counts"] is not None else [ctx.shape[0]] * find(ctx.comm).size


COLLECTIVES = {
    "all_reduce": all_reduce_adjoint,
    "reduce_scatter": lambda ctx, grad: ops.all_gather(grad, ctx.comm, counts=ctx.given["counts"]),
    "all_gather": lambda ctx, grad: ops.reduce_scatter(grad, ctx.comm, counts=ctx.given["counts"]),
    "all_to_all": all_to_all_adjoint,
    "broadcast": lambda ctx, grad: ops.reduce(grad, ctx.comm, root=ctx.given["root"]),
    "reduce": reduce_adjoint,
    "gather": lambda ctx, grad: ops.scatter(grad, ctx.comm, root=ctx.given["root"], counts=equal_counts(ctx)),
    "scatter": lambda ctx, grad: ops.gather(grad, ctx.comm, root=ctx.given["root"], counts=ctx.given["counts"]),
    "send_receive": send_receive_adjoint,
}

DERIVATIVES = {
    "gemv_all_reduce": Derivative(sums_save, gemv_backward, gemv_tangent),
    "gemm_all_reduce": Derivative(sums_save, sums_backward, sums_tangent),
    "gemm_reduce_scatter": Derivative(scatter_save, scatter_backward, scatter_tangent),
    "gemm_all_to_all": Derivative(gemm_save, gemm_backward, gemm_tangent),
    "all_gather_gemm": Derivative(gather_save, gather_backward, gather_tangent),
    "embedding_all_to_all": Derivative(embedding_save, embedding_backward, embedding_tangent),
    "rows_all_to_all": Derivative(rows_save, rows_backward, rows_tangent),
    "all_to_all_v": Derivative(counted_save, counted_backward, counted_tangent),
    **{name: collective(name, adjoint) for name, adjoint in COLLECTIVES.items()},
    "sum_gradients": Derivative(sum_gradients_save, sum_gradients_backward, sum_gradients_tangent),
    "cast": Derivative(cast_save, cast_backward, cast_tangent),
}
