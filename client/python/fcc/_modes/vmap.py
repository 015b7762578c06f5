# SPDX-License-Identifier: MIT
"""torch.vmap for torch.ops.fcc.*: operators with one more dimension. All ranks map over the same size and the same inputs.

If an operator can take the new dimension as rows or columns, it is called once, or once for as many rows as it takes. Otherwise it is
called for each index. Then the ranks first agree on the number of calls, by an operator that matches none of these calls; if they
disagree it is an error on all ranks.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._calls import at_once
from .._dispatch import lib
from .._names import Called
from .._communicator.refusals import refuse
from ..communicator import find
from ..errors import Error
from ..ops import GEMV_ROWS, KERNELS, gathered_rows, scattered_rows

ops = torch.ops.fcc

Mapped = tuple[Tensor, int]  # a result and the index of its new dimension


def agree(name: str, count: int, of_what: str, args: Sequence[Any]) -> None:
    """Check that all ranks have the same number; otherwise all get an error. The products are of no elements, and
    their result is a row of zeros."""
    comm = next(arg for arg in args if isinstance(arg, str))
    like = next(arg for arg in args if isinstance(arg, Tensor))
    other = "gemm_all_reduce" if name == "gemv_all_reduce" else "gemv_all_reduce"
    words = Called(f"torch.vmap of {name}", {other: ((r"\b(?:b: shape\[1\]|w: shape\[0\])", of_what),)})
    c = find(comm)
    try:
        with at_once(c):
            if other == "gemm_all_reduce":
                ops.gemm_all_reduce(like.new_empty((1, 0), dtype=torch.float32), like.new_empty((0, count), dtype=torch.float32), comm)
            else:
                ops.gemv_all_reduce(like.new_empty((1, 0), dtype=torch.float32), like.new_empty((count, 0), dtype=torch.float32), comm,
                                    schedule="fused")  # "auto" might take the short way, which runs behind the stream
    except Error as e:
        raise e.renamed(words, c.rank) from None


def one_by_one(name: str, info: Any, in_dims: Sequence[Any], args: Sequence[Any], keywords: dict[str, Any]) -> Mapped:
    agree(name, info.batch_size, "size of the mapped dimension", args)
    if info.batch_size == 0:
        return none(name, in_dims, args, keywords), 0
    op, found = getattr(ops, name), []
    for i in range(info.batch_size):
        found.append(op(*(arg.select(dim, i) if isinstance(dim, int) else arg for arg, dim in zip(args, in_dims)), **keywords))
    return torch.stack(found), 0


def none(name: str, in_dims: Sequence[Any], args: Sequence[Any], keywords: dict[str, Any]) -> Tensor:
    """The results for size 0: no rank makes a call."""
    given = [arg.new_empty(arg.movedim(dim, 0).shape[1:]) if isinstance(dim, int) else arg for arg, dim in zip(args, in_dims)]
    one = KERNELS[name][1](*given, **keywords)
    found = one.new_zeros(0, *one.shape)
    for arg in args:  # the gradients of these arguments are 0
        if isinstance(arg, Tensor) and arg.is_floating_point():
            found = found + arg.reshape(-1)[:0].sum().to(found.dtype)
    return found


def is_only(in_dims: Sequence[Any], which: int) -> bool:
    """Whether only that argument has the new dimension."""
    return all(isinstance(dim, int) == (i == which) for i, dim in enumerate(in_dims))


def is_any(stages: Sequence[Tensor | None]) -> bool:
    """Whether there is an epilogue."""
    return any(stage is not None for stage in stages)


def gemv(info: Any, in_dims: Sequence[Any], x: Tensor, w: Tensor, comm: str, *stages: Tensor | None, **keywords: Any) -> Mapped:
    if is_only(in_dims, 0) and info.batch_size and not is_any(stages):  # all rows stacked
        every = x.movedim(in_dims[0], 0)
        rows = every.reshape(every.shape[0] * every.shape[1], every.shape[2])
        if rows.shape[0] > GEMV_ROWS:
            agree("gemv_all_reduce", rows.shape[0], "x: rows of all that is mapped", (x, comm))
        found = [ops.gemv_all_reduce(part, w, comm, **keywords) for part in rows.split(GEMV_ROWS)]
        return torch.cat(found).view(every.shape[0], every.shape[1], w.shape[0]), 0
    if is_only(in_dims, 1) and not is_any(stages):  # all weights stacked
        every = w.movedim(in_dims[1], 0)
        found_all = ops.gemv_all_reduce(x, every.reshape(every.shape[0] * every.shape[1], every.shape[2]), comm, **keywords)
        return found_all.view(x.shape[0], every.shape[0], every.shape[1]), 1
    return one_by_one("gemv_all_reduce", info, in_dims, (x, w, comm, *stages), keywords)


def gemm(info: Any, in_dims: Sequence[Any], a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, **keywords: Any) -> Mapped:
    if is_only(in_dims, 1) and not is_any(stages):  # all columns, side by side
        every = b.movedim(in_dims[1], 1)
        c = ops.gemm_all_to_all(a, every.reshape(every.shape[0], every.shape[1] * every.shape[2]), comm, **keywords)
        return c.view(c.shape[0], every.shape[1], every.shape[2]), 1
    return one_by_one("gemm_all_to_all", info, in_dims, (a, b, comm, *stages), keywords)


def sums(info: Any, in_dims: Sequence[Any], a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, **keywords: Any) -> Mapped:
    if is_only(in_dims, 0) and info.batch_size and not is_any(stages):  # all rows, one below the other
        every = a.movedim(in_dims[0], 0)
        c = ops.gemm_all_reduce(every.reshape(every.shape[0] * every.shape[1], every.shape[2]), b, comm, **keywords)
        return c.view(every.shape[0], every.shape[1], b.shape[1]), 0
    return one_by_one("gemm_all_reduce", info, in_dims, (a, b, comm, *stages), keywords)


def parts_of(check: Callable[..., list[int]], name: str, comm: str, count: int, rows: Sequence[int] | None) -> list[int]:
    """Each rank's rows, by the operator's own check."""
    try:
        return check(find(comm), count, rows)
    except Exception as e:
        raise refuse(find(comm), name, e) from None


def joined(every: Tensor, rows: Sequence[int]) -> Tensor:
    """[B][sum of rows][*] -> [B * sum of rows][*]: each rank's rows of all B stay together."""
    return torch.cat([part.reshape(part.shape[0] * part.shape[1], *part.shape[2:]) for part in every.split(list(rows), 1)])


def parted(found: Tensor, batch: int, rows: Sequence[int]) -> Tensor:
    """The opposite of joined()."""
    return torch.cat([part.reshape(batch, n, *part.shape[1:]) for part, n in zip(found.split([batch * n for n in rows]), rows)], 1)


def scatter(info: Any, in_dims: Sequence[Any], a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, **keywords: Any) -> Mapped:
    if is_only(in_dims, 1) and not is_any(stages):  # all columns, side by side
        every = b.movedim(in_dims[1], 1)
        c = ops.gemm_reduce_scatter(a, every.reshape(every.shape[0], every.shape[1] * every.shape[2]), comm, **keywords)
        return c.view(c.shape[0], every.shape[1], every.shape[2]), 1
    if is_only(in_dims, 0) and info.batch_size and not is_any(stages):  # all rows
        every = a.movedim(in_dims[0], 0)
        parts = parts_of(scattered_rows, "gemm_reduce_scatter", comm, every.shape[1], keywords.pop("rows", None))
        c = ops.gemm_reduce_scatter(joined(every, parts), b, comm, rows=[info.batch_size * n for n in parts], **keywords)
        return c.view(info.batch_size, c.shape[0] // info.batch_size, b.shape[1]), 0
    return one_by_one("gemm_reduce_scatter", info, in_dims, (a, b, comm, *stages), keywords)


def gathers(info: Any, in_dims: Sequence[Any], a: Tensor, b: Tensor, comm: str, *stages: Tensor | None,
            **keywords: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
    if is_only(in_dims, 1) and not is_any(stages):  # all columns, side by side
        every = b.movedim(in_dims[1], 1)
        c, gathered = ops.all_gather_gemm(a, every.reshape(every.shape[0], every.shape[1] * every.shape[2]), comm, **keywords)
        return (c.view(c.shape[0], every.shape[1], every.shape[2]), gathered), (1, None)
    if is_only(in_dims, 0) and info.batch_size and not is_any(stages):  # all rows, one below the other
        every = a.movedim(in_dims[0], 0)
        parts = parts_of(gathered_rows, "all_gather_gemm", comm, every.shape[1], keywords.pop("rows", None))
        whole = ops.all_gather_gemm(every.reshape(info.batch_size * every.shape[1], every.shape[2]), b, comm,
                                    rows=[info.batch_size * n for n in parts], **keywords)
        c, gathered = (parted(one, info.batch_size, parts if one.shape[0] else [0]) for one in whole)
        return (c, gathered), (0, 0)
    agree("all_gather_gemm", info.batch_size, "size of the mapped dimension", (a, b, comm, *stages))
    args = (a, b, comm, *stages)
    if info.batch_size == 0:
        given = [arg.new_empty(arg.movedim(dim, 0).shape[1:]) if isinstance(dim, int) else arg for arg, dim in zip(args, in_dims)]
        nothing = sum(arg.reshape(-1)[:0].sum() for arg in args if isinstance(arg, Tensor))  # the gradients of these arguments are 0
        c, gathered = (one.new_zeros(0, *one.shape) + nothing for one in KERNELS["all_gather_gemm"][1](*given, **keywords))
        return (c, gathered), (0, 0)
    found = [ops.all_gather_gemm(*(arg.select(dim, i) if isinstance(dim, int) else arg for arg, dim in zip(args, in_dims)), **keywords)
             for i in range(info.batch_size)]
    return (torch.stack([c for c, _ in found]), torch.stack([gathered for _, gathered in found])), (0, 0)


def embedding(info: Any, in_dims: Sequence[Any], *args: Any, **keywords: Any) -> Mapped:
    return one_by_one("embedding_all_to_all", info, in_dims, args, keywords)


def rows(info: Any, in_dims: Sequence[Any], given: Tensor, *args: Any) -> Mapped:
    every = given.movedim(in_dims[0], 1)
    came = ops.rows_all_to_all(every.reshape(every.shape[0], every.shape[1] * every.shape[2]), *args)
    return came.view(came.shape[0], every.shape[1], every.shape[2]), 1


def counted(info: Any, in_dims: Sequence[Any], x: Tensor, counts: Tensor, *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int | None]]:
    if in_dims[1] is None and x.ndim > 1:  # the dimension becomes one of the rows'
        came, received = ops.all_to_all_v(x.movedim(in_dims[0], 1), counts, *args)
        return (came, received), (1, None)
    agree("all_to_all_v", info.batch_size, "size of the mapped dimension", (x, counts, *args))
    found = []
    for i in range(info.batch_size):
        one, its = (given if dim is None else given.select(dim, i) for given, dim in zip((x, counts), in_dims))
        found.append(ops.all_to_all_v(one, its, *args))
    if not found:
        return (x.new_empty((0, args[0], *x.shape[1 + (in_dims[0] is not None):])), counts.new_empty((0, find(args[1]).size))), (0, 0)
    return (torch.stack([came for came, _ in found]), torch.stack([received for _, received in found])), (0, 0)


def behind_rows(name: str) -> Callable[..., Mapped]:
    """The vmap rule for collectives of rows, which may have any elements."""
    op = getattr(ops, name)

    def mapped(info: Any, in_dims: Sequence[Any], x: Tensor, *args: Any, **keywords: Any) -> Mapped:
        if x.ndim > 1:
            return op(x.movedim(in_dims[0], 1), *args, **keywords), 1
        if name != "reduce":
            return op(x.sum(), *args, **keywords), 0  # refused: there are no rows
        found = op(x.unsqueeze(0), *args, **keywords)
        return (found[0], 0) if found.shape[0] else (found, 1)
    return mapped


def sent(info: Any, in_dims: Sequence[Any], x: Tensor, *args: Any, shape: Sequence[int] | None = None, **keywords: Any) -> Mapped:
    every = x.movedim(in_dims[0], 0)
    found = ops.send_receive(every, *args, shape=None if shape is None else [info.batch_size, *shape], **keywords)
    if keywords.get("source") is None:  # nothing came; autograd sees the call all the same
        found = found.sum() + found.new_zeros((info.batch_size, 0, *every.shape[2:]))
    return found, 0


def as_it_is(op: Callable[..., Tensor]) -> Callable[..., Mapped]:
    """The vmap rule for operators that take any shape and treat all dimensions alike."""
    def mapped(info: Any, in_dims: Sequence[Any], x: Tensor, *args: Any, **keywords: Any) -> Mapped:
        return op(x, *args, **keywords), in_dims[0]
    return mapped


for _name, _rule in (("gemv_all_reduce", gemv), ("gemm_all_to_all", gemm), ("gemm_all_reduce", sums), ("gemm_reduce_scatter", scatter),
                     ("all_gather_gemm", gathers), ("embedding_all_to_all", embedding),
                     ("rows_all_to_all", rows), ("all_to_all_v", counted), ("send_receive", sent),
                     *((name, behind_rows(name)) for name in ("reduce_scatter", "all_gather", "all_to_all", "reduce", "gather", "scatter")),
                     *((name, as_it_is(getattr(ops, name))) for name in ("all_reduce", "broadcast", "sum_gradients", "cast"))):
    torch.library.register_vmap(f"fcc::{_name}", _rule, lib=lib)
