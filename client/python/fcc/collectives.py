# SPDX-License-Identifier: MIT
"""Plain collectives as functions of a Communicator: torch.ops.fcc.* of the same names with defaults. torch.compile can trace them.

What holds for all of them:
    memory      on CUDA GPUs of one node, one rank on each: x may lie anywhere, and is not copied if it is dense; the result is an ordinary tensor
                of torch's memory; calls may be captured into CUDA graphs (torch.cuda.graph), except a communicator's first. Elsewhere
                collectives work on the daemon's memory: x is copied if it does not lie dense there (fcc.empty()), and the result lies there
    x           any strides. float32, float64, float16, bfloat16, int32, int64, int8, uint8 and bool; float8_e4m3fn and
                float8_e5m2 where nothing is added. All ranks' x have one dtype
    rows        parts of the first dimension of x; with one dimension they are its elements. All ranks' rows have one shape. 0 rows are allowed
    result      a new dense tensor, which belongs to the caller; x stays as it is (functions of these names in torch.distributed write into their
                arguments). What is only moved keeps its bits
    reduction   "sum", "product", "min", "max"; "average" of floats; "and", "or", "xor" (bitwise) of integers and bools; sums and averages
                not of bools. Elements are combined in rank order, float16 and bfloat16 in float32 and rounded once, so all ranks get the
                same bits in every run. Integers wrap around. A minimum or maximum of a NaN is NaN
    comm        None: the default communicator
    autograd    backward is the adjoint collective, so all ranks call backward, and x requires a gradient on all ranks or on none, also
                where it is only like another rank's x, or the result is empty. Sums and averages of floats have derivatives; others raise
                ArgumentError in backward. Gradients are those of the sum of all ranks' losses
    order       on a GPU a call takes its place on the current stream. Streams, and graphs where they are replayed, order all collectives of one
                communicator on a rank: two that run at the same time end it
    errors      ArgumentError (on all ranks, which can go on), OutOfMemoryError, TimeLimitError, AbortedError, WorkerLostError, ShutdownError
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _collectives, communicator, language
from ._calls import unsubmitted
from ._packets import operator_of
from ._programs.values import Tensor as TracedTensor, wrong
from .communicator import Communicator
from .errors import Error

__all__ = ["all_gather", "all_reduce", "all_reduce_many", "all_to_all", "all_to_all_v", "barrier", "broadcast", "gather", "reduce", "reduce_scatter", "rows_all_to_all",
           "scatter", "send_receive"]

_ops = torch.ops.fcc


def _call(name: str, comm: Communicator | None, x: Tensor, **given: Any) -> Tensor:
    if isinstance(x, TracedTensor):  # in a function that @fcc.program traces
        return _recorded(name, x, given | ({} if comm is None else {"comm": comm}))
    comm = communicator.chosen(comm, name)
    try:
        return getattr(_ops, name)(x, comm.name, **given)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, operator_of(comm, name), globals()[name], e, x=x, **given) from None


def _recorded(name: str, x: Any, given: dict[str, Any]) -> Any:
    root = given.pop("root", None)
    meant = {key: value for key, value in given.items() if value is not None and value is not False}
    if list(meant.items()) not in ([], [("reduction", "sum")]) or not hasattr(language, name):
        raise wrong(f"fcc.{name}() with {', '.join(meant) or 'no arguments'}: fcc.language has what programs can do")
    return getattr(language, name)(x) if root is None else getattr(language, name)(x, root)


def all_reduce(x: Tensor, comm: Communicator | None = None, *, reduction: str = "sum", replicated: bool = False) -> Tensor:
    """The ranks' x, combined: with "sum" their sum. On all ranks.

    Args:
        x: any shape, the same on all ranks
        replicated: how gradients come back. False: backward sums them over the ranks. True: all ranks use the result alike (see
            gemv_all_reduce()), and backward takes the gradient unchanged

    Returns: x's shape and dtype.
    """
    return _call("all_reduce", comm, x, reduction=reduction, replicated=replicated)


def all_reduce_many(x: Sequence[Tensor], comm: Communicator | None = None, *, reduction: str = "sum") -> list[Tensor]:
    """all_reduce() of each tensor, one after the other, without copies: as gradients need it. On CUDA GPUs of one node neither the host nor the
    stream waits between two of them, and one call of the C library enqueues them all. If one has an error, the others run, too.

    Args:
        x: tensors of any shapes and dtypes, as many on all ranks, in the same order

    Returns: the results, in their order.
    """
    c = communicator.chosen(comm, "all_reduce_many")
    try:
        x = list(x)  # it may be what can be read once only
        if torch.compiler.is_compiling() or torch.is_grad_enabled() and any(tensor.requires_grad for tensor in x):
            return [all_reduce(tensor, c, reduction=reduction) for tensor in x]
        return _collectives.call_many(c, "all_reduce", x, {"reduction": reduction, "replicated": False})
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(c, "all_reduce", all_reduce_many, e, x=x, reduction=reduction) from None


def reduce_scatter(x: Tensor, comm: Communicator | None = None, *, counts: Sequence[int] | None = None, reduction: str = "sum") -> Tensor:
    """The ranks' x, combined, and divided: the first counts[0] rows of the sum are rank 0's result, the next counts[1] rank 1's, and so on.

    Args:
        x: [M][*], the same shape on all ranks
        counts: rows of each rank, M in all, the same list on all ranks; None: equal shares (M is a multiple of size)

    Returns: [counts[rank]][*]. Backward is all_gather().
    """
    return _call("reduce_scatter", comm, x, counts=counts, reduction=reduction)


def all_gather(x: Tensor, comm: Communicator | None = None, *, counts: Sequence[int] | None = None) -> Tensor:
    """Rank 0's rows, then rank 1's, and so on. On all ranks.

    Args:
        x: [M_r][*]
        counts: M_r of each rank, the same list on all ranks; None: all ranks have as many

    Returns: [sum of M_r][*]. Backward is reduce_scatter().
    """
    return _call("all_gather", comm, x, counts=counts)


def all_to_all(x: Tensor, comm: Communicator | None = None, *, send_counts: Sequence[int] | None = None,
               receive_counts: Sequence[int] | None = None) -> Tensor:
    """The first send_counts[0] rows of x go to rank 0, the next send_counts[1] to rank 1, and so on.

    Args:
        x: [M_r][*]
        send_counts: rows that go to each rank, M_r in all
        receive_counts: rows that come from each rank. Without both all ranks have as many rows, a multiple of size, and send equal shares

    Returns: [sum of receive_counts][*]: what rank 0 sent, then what rank 1 sent, and so on. Backward is all_to_all() with the counts
        swapped. If other rows come than receive_counts says, that is an error on all ranks.
    """
    return _call("all_to_all", comm, x, send_counts=send_counts, receive_counts=receive_counts)


def all_to_all_v(x: Tensor, send_counts: Tensor, comm: Communicator | None = None, *, capacity: int) -> tuple[Tensor, Tensor]:
    """all_to_all() with counts that only a tensor has, as a router of tokens to experts makes them. On CUDA GPUs of one node, one rank on each,
    the collective's kernel reads them: the host does not wait, and a CUDA graph replays the call with the counts of the time. On the cpu the
    call reads them. Elsewhere (several nodes, several ranks on a GPU, HIP) it is an UnsupportedError on all ranks.

    Args:
        x: [M_r][*], of which the first send_counts[0] rows go to rank 0, the next send_counts[1] to rank 1, and so on; rows behind these
            go nowhere
        send_counts: [size], int64, on the communicator's device: rows, 0 and more, together M_r or fewer. It may change as soon as work on
            the stream may that follows the call
        capacity: rows that this rank has room for; may differ between ranks

    Returns: ([capacity][*]: what rank 0 sent, then what rank 1 sent, and so on, without gaps; the rest of it is undefined,
        [size]: the rows that have come from each rank, which are the send_counts of the way back).
        Backward is all_to_all_v() with these; rows of x that were not sent have the gradient 0. Counts that are negative or together more than
        M_r, and rows that do not fit into the capacity, are an ArgumentError on all ranks (on a GPU by a later call, as other errors).
    """
    comm = communicator.chosen(comm, "all_to_all_v")
    try:
        return _ops.all_to_all_v(x, send_counts, capacity, comm.name)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, operator_of(comm, "all_to_all_v"), all_to_all_v, e, x=x, send_counts=send_counts, capacity=capacity) from None


def broadcast(x: Tensor, comm: Communicator | None = None, *, root: int = 0) -> Tensor:
    """The root's x. On all ranks.

    Args:
        x: on the root what is sent; on other ranks a tensor of its shape and dtype, whose elements are not read
        root: a rank, the same on all ranks

    Returns: x's shape and dtype. Backward is reduce(); the gradient of x on other ranks is 0.
    """
    return _call("broadcast", comm, x, root=root)


def reduce(x: Tensor, comm: Communicator | None = None, *, root: int = 0, reduction: str = "sum") -> Tensor:
    """The ranks' x, combined. On the root.

    Args:
        x: any shape, the same on all ranks
        root: a rank, the same on all ranks

    Returns: on the root x's shape; on other ranks an empty tensor, [0][*] with x's other dimensions. Backward is broadcast().
    """
    return _call("reduce", comm, x, root=root, reduction=reduction)


def gather(x: Tensor, comm: Communicator | None = None, *, root: int = 0, counts: Sequence[int] | None = None) -> Tensor:
    """Rank 0's rows, then rank 1's, and so on. On the root.

    Args:
        x: [M_r][*]
        root: a rank, the same on all ranks
        counts: M_r of each rank; None: all ranks have as many

    Returns: on the root [sum of M_r][*]; on other ranks an empty tensor, [0][*]. Backward is scatter().
    """
    return _call("gather", comm, x, root=root, counts=counts)


def scatter(x: Tensor, comm: Communicator | None = None, *, root: int = 0, counts: Sequence[int] | None = None) -> Tensor:
    """The first counts[0] rows of the root's x are rank 0's result, the next counts[1] rank 1's, and so on.

    Args:
        x: on the root [M][*]; on other ranks a tensor of its dtype and, without counts, its shape (with counts: with rows of that shape,
            of which there may be 0), whose elements are not read
        root: a rank, the same on all ranks
        counts: rows of each rank, M in all, the same list on all ranks; None: equal shares (M is a multiple of size)

    Returns: [counts[rank]][*]. Backward is gather(); the gradient of x on other ranks is 0.
    """
    return _call("scatter", comm, x, root=root, counts=counts)


def send_receive(x: Tensor, comm: Communicator | None = None, *, destination: int | None = None, source: int | None = None,
                 shape: Sequence[int] | None = None) -> Tensor:
    """x goes to the destination, and what the source sends is the result. All ranks of the communicator call it, also those that neither send
    nor receive.

    Args:
        x: any shape. Without a destination only its dtype counts, and its shape where `shape` is None
        destination, source: ranks; None: none. If rank r's destination is d, rank d's source is r
        shape: of what the source sends; None: x's

    Returns: of that shape; without a source an empty tensor, [0][*] with x's other dimensions. Backward sends the gradient the other way.
        If more elements come than shape says, that is an error on all ranks. If fewer come, it is one on this rank alone; where collectives
        may be captured it is none, and the rest of the result is undefined.
    """
    return _call("send_receive", comm, x, destination=destination, source=source, shape=shape)


def rows_all_to_all(rows: Tensor, send_rows: Sequence[int], recv_rows: Sequence[int], comm: Communicator | None = None) -> Tensor:
    """all_to_all() of a matrix [M_r][C], to [sum of recv_rows][C]."""
    comm = communicator.chosen(comm, "rows_all_to_all")
    try:
        return _ops.rows_all_to_all(rows, send_rows, recv_rows, comm.name)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, operator_of(comm, "rows_all_to_all"), rows_all_to_all, e, rows=rows, send_rows=send_rows,
                          recv_rows=recv_rows) from None


def barrier(comm: Communicator | None = None) -> None:
    """Wait until all ranks have come here and all operators before are done; on a GPU, those on its streams, too (Communicator.barrier()).
    Graphs of torch.compile keep it in its place."""
    comm = communicator.chosen(comm, "barrier")
    _ops.barrier(comm.name)
