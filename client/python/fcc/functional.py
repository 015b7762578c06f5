# SPDX-License-Identifier: MIT
"""The operators as functions of a Communicator: torch.ops.fcc.* with defaults. torch.compile can trace them."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import collectives, communicator, epilogues, ops
from ._modes import autocast, autograd, vmap  # noqa: F401: they register the operators
from ._calls import dense, numbers, unsubmitted
from ._library import SCHEDULES, library
from .collectives import *  # noqa: F403: they are of these functions
from .epilogues import *  # noqa: F403
from .communicator import Communicator, Expected, rows_check
from .errors import ArgumentError, Error
from .memory import raw_stream_of
from .ops import gemm_rows
from .prepared import PreparedOperator, there

__all__ = ["all_gather_gemm", "embedding_all_to_all", "gemm_all_reduce", "gemm_all_to_all", "gemm_reduce_scatter", "gemv_all_reduce",
           "prepare_gemm_all_to_all", "prepare_gemv_all_reduce", "sum_gradients", *collectives.__all__, *epilogues.__all__]

_ops = torch.ops.fcc


def gemv_all_reduce(x: Tensor, w: Tensor, comm: Communicator | None = None, *, bias: Tensor | None = None,
                    residual: Tensor | None = None, replicated: bool = True, schedule: str = "auto") -> Tensor:
    """y = sum over the ranks r, in rank order, of x_r @ w_r.T: a thin product that is split along K, then AllReduce.

    Args:
        x: [M][K_r], float32, float16 or bfloat16; M from 1 to 65536, the same on all ranks (on GPUs to 64, where the ranks do not launch
            operators, or have no cuBLAS); K_r may differ, 0 too
        w: [N][K_r], dtype of x: as torch.nn.Linear.weight; N is the same on all ranks. Best in the daemon's memory
            (to_daemon())
        bias, residual: [N] and [M][N], dtype of x: added to the sum in float32 before it is rounded, once. All ranks give one, or none,
            and the same values; where they differ, it is not said whose are added. Their gradients are those of one tensor that all
            ranks share
        comm: None: the default communicator
        replicated: how gradients come back. True: all ranks use their y alike, so the gradient of y is the same everywhere, and
            is taken as it is (tensor parallelism). False: they use it differently; then backward sums it over the ranks first.
        schedule: "auto", "fused", "sequential" or "batch_invariant" (the bits of a row depend neither on how many there are nor on the
            others); the same on all ranks

    Returns: y, [M][N], dtype of x (under torch.autocast, which casts x and w, its dtype): sums in float32, rounded once,
        the same bits on every rank, every run. On a GPU it belongs to the current stream, as all results do: who uses it on
        another one orders the two, and keeps a reference to it until that stream is through. Tensor.record_stream() does not do
        that for memory of fccd: it is no memory of torch's allocator, so torch ignores the call.

    Raises: ArgumentError (on all ranks), OutOfMemoryError (the heap for results), TimeLimitError, AbortedError,
        WorkerLostError, ShutdownError, CaptureError.
    """
    comm = communicator.chosen(comm, "gemv_all_reduce")
    try:
        if replicated and schedule == "auto" and bias is None and residual is None:
            return _ops.gemv_all_reduce(x, w, comm.name)  # the way that _direct.py makes short
        return _ops.gemv_all_reduce(x, w, comm.name, bias, residual, replicated=replicated, schedule=schedule)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, "gemv_all_reduce", gemv_all_reduce, e, x=x, w=w, bias=bias, residual=residual,
                          schedule=schedule) from None


def gemm_all_reduce(a: Tensor, b: Tensor, comm: Communicator | None = None, *, bias: Tensor | None = None,
                    residual: Tensor | None = None, replicated: bool = True, schedule: str = "auto") -> Tensor:
    """C = sum over the ranks r, in rank order, of a_r @ b_r: a product of any size that is split along K, then AllReduce.

    Args:
        a: [M][K_r], float32, float16 or bfloat16; M is 1 or more and the same on all ranks; K_r may differ, 0 too
        b: [K_r][N], dtype of a; N is the same on all ranks. Best in the daemon's memory (to_daemon())
        bias, residual: as gemv_all_reduce()'s
        comm, replicated, schedule: as gemv_all_reduce()'s

    Returns: [M][N], dtype of a (under torch.autocast, which casts a and b, its dtype): sums in float32, rounded once, the same bits
        on every rank, every run. Where the ranks launch the operator themselves (README: Plain collectives), the partial sums of other ranks are
        rounded before they are added, too; of more than two ranks, or little, each rank's.

    Raises: as gemv_all_reduce().
    """
    comm = communicator.chosen(comm, "gemm_all_reduce")
    try:
        return _ops.gemm_all_reduce(a, b, comm.name, bias, residual, replicated=replicated, schedule=schedule)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, "gemm_all_reduce", gemm_all_reduce, e, a=a, b=b, bias=bias, residual=residual,
                          schedule=schedule) from None


def gemm_reduce_scatter(a: Tensor, b: Tensor, comm: Communicator | None = None, *, bias: Tensor | None = None,
                        residual: Tensor | None = None, rows: Sequence[int] | None = None, schedule: str = "auto") -> Tensor:
    """C = sum over the ranks r of a_r @ b_r: a product of any size that is split along K, whose rows are split over the ranks: the first
    rows[0] of them are rank 0's result, the next rows[1] rank 1's, and so on.

    Args:
        a: [M][K_r], float32, float16 or bfloat16; M is the same on all ranks; K_r may differ, 0 too
        b: [K_r][N], dtype of a; N is the same on all ranks. Best in the daemon's memory (to_daemon())
        bias, residual: [N] and [rows[rank]][N], dtype of a: this rank adds its own to its rows of the sum, in float32 before they are rounded,
            once. All ranks give one, or none
        comm: None: the default communicator
        rows: rows of each rank, M in all, the same list on all ranks; None: equal numbers, with one more on the first ranks
        schedule: "auto", "fused", "sequential", "batch_invariant", or "any_order" ("auto", and on cpu devices of one node partial sums may be
            added as they are computed, so that the last bits differ from run to run); the same on all ranks

    Returns: [rows[rank]][N], dtype of a (under torch.autocast, which casts a and b, its dtype): sums in float32 in rank order, rounded
        once, the same bits in every run; where the ranks launch the operator themselves, rounded as gemm_all_reduce()'s. Backward is one all_gather_gemm, of the gradient and b, and for b's own gradient a product.

    Raises: as gemv_all_reduce().
    """
    comm = communicator.chosen(comm, "gemm_reduce_scatter")
    try:
        return _ops.gemm_reduce_scatter(a, b, comm.name, bias, residual, rows=rows, schedule=schedule)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, "gemm_reduce_scatter", gemm_reduce_scatter, e, a=a, b=b, bias=bias, residual=residual, rows=rows,
                          schedule=schedule) from None


def all_gather_gemm(a: Tensor, b: Tensor, comm: Communicator | None = None, *, bias: Tensor | None = None,
                    residual: Tensor | None = None, rows: Sequence[int] | None = None, schedule: str = "auto") -> Tensor:
    """C_r = A @ b_r, where A is all ranks' a, one below the other: AllGather, then a product that is split along N. Rows are multiplied while
    others are under way.

    Args:
        a: [M_r][K], float32, float16 or bfloat16; K is the same on all ranks; M_r may differ, 0 too, if rows is given
        b: [K][N_r], dtype of a; N_r may differ, 0 too. Best in the daemon's memory (to_daemon())
        bias, residual: [N_r] and [M][N_r], dtype of a: this rank adds its own, in float32 before results are rounded. All ranks give one, or none
        comm: None: the default communicator
        rows: the number of rows of each rank's a; None: all ranks have as many
        schedule: "auto", "fused", "sequential" or "batch_invariant"; the same on all ranks

    Returns: [M][N_r], dtype of a (under torch.autocast, which casts a and b, its dtype); M is the sum of rows. The same bits in every run and under
        every schedule, but for cuBLAS's where the ranks launch the operator themselves: those of "sequential", which fccd launches, may differ. If b requires a gradient, A is kept for it. The gradient of a is one gemm_reduce_scatter, so either all ranks' a require one, or none; and so for b.

    Raises: as gemv_all_reduce().
    """
    comm = communicator.chosen(comm, "all_gather_gemm")
    try:
        keeps = torch.is_grad_enabled() and isinstance(b, Tensor) and b.requires_grad
        return _ops.all_gather_gemm(a, b, comm.name, bias, residual, rows=rows, gathered=keeps, schedule=schedule)[0]
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, "all_gather_gemm", all_gather_gemm, e, a=a, b=b, bias=bias, residual=residual, rows=rows,
                          schedule=schedule) from None


def gemm_all_to_all(a: Tensor, b: Tensor, comm: Communicator | None = None, *, bias: Tensor | None = None,
                    residual: Tensor | None = None, send_rows: Sequence[int] | None = None,
                    recv_rows: Sequence[int] | None = None, schedule: str = "auto") -> Tensor:
    """C = a @ b; its rows are sent to the ranks: the first send_rows[0] rows to rank 0, the next send_rows[1] to rank 1, and so on.

    Args:
        a: [M_r][K_r], float32, float16 or bfloat16; M_r and K_r may differ between ranks and may be 0
        b: [K_r][N], dtype of a; N is the same on all ranks. Where this process does not launch the operator (docs: gemv_all_reduce()), best
            in the daemon's memory (to_daemon())
        bias, residual: [N] and [M_r][N], dtype of a: this rank adds its own to the rows that it computes, in float32 before they are
            rounded and sent. All ranks give one, or none
        comm: None: the default communicator
        send_rows: number of rows that go to each rank, M_r in all
        recv_rows: number of rows that come from each rank. Without send_rows and recv_rows all ranks have the same M_r, a multiple of size,
            and send equal shares
        schedule: "auto", "fused", "sequential" or "batch_invariant"; the same on all ranks

    Returns: [sum of recv_rows][N], dtype of a (under torch.autocast, which casts a and b, its dtype): the rows from rank 0, then those from
        rank 1, and so on.

    Raises: as gemv_all_reduce(). On a GPU, if other numbers of rows come than recv_rows says, one of the next calls raises the error.
    """
    comm = communicator.chosen(comm, "gemm_all_to_all")
    try:
        return _ops.gemm_all_to_all(a, b, comm.name, bias, residual, send_rows=send_rows, recv_rows=recv_rows, schedule=schedule)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, "gemm_all_to_all", gemm_all_to_all, e, a=a, b=b, bias=bias, residual=residual, send_rows=send_rows,
                          recv_rows=recv_rows,
                          schedule=schedule) from None


def embedding_all_to_all(tables: Tensor, indices: Tensor, offsets: Tensor, *, table_rows: Sequence[int],
                         tables_per_rank: Sequence[int], batch: int, sample_weights: Tensor | None = None,
                         batch_split: Sequence[int] | None = None, pooling: str = "sum", comm: Communicator | None = None,
                         schedule: str = "auto") -> Tensor:
    """EmbeddingBag over tables that are sharded over the ranks, then All-to-All from tables to samples.

    Args:
        tables: [sum of table_rows][D], float32, float16 or bfloat16: this rank's T_r tables, one below the other
        indices: [nnz], int32 or int64: rows of the tables, bag by bag, with the bags of the first table first
        offsets: [T_r * batch + 1], dtype of indices: bag (t, s) is indices[offsets[t * batch + s] : offsets[t * batch + s + 1]]. An empty
            bag gives zeros
        table_rows: number of rows of each table of this rank
        tables_per_rank: T_r of each rank, the same list on all ranks
        batch: samples in the global batch
        sample_weights: [nnz], float32: the factor of each index; only with "sum"
        batch_split: number of samples of each rank, `batch` in all, the same list on all ranks; None: equal numbers, with one more on the
            first ranks
        pooling: "sum" or "mean"
        comm: None: the default communicator
        schedule: "auto", "fused" or "sequential"; the same on all ranks

    Returns: [batch_split[rank]][sum of tables_per_rank][D], dtype of tables: this rank's samples, with all tables.

    Raises: as gemv_all_reduce(), and IndexRangeError for an index that is not in its table.
    """
    comm = communicator.chosen(comm, "embedding_all_to_all")
    try:
        return _ops.embedding_all_to_all(tables, indices, offsets, sample_weights, table_rows, tables_per_rank, batch, comm.name,
                                         batch_split=batch_split, pooling=pooling, schedule=schedule)
    except Error:
        raise
    except Exception as e:
        raise unsubmitted(comm, "embedding_all_to_all", embedding_all_to_all, e, tables=tables, indices=indices,
                          offsets=offsets, sample_weights=sample_weights, table_rows=table_rows,
                          tables_per_rank=tables_per_rank, batch=batch, batch_split=batch_split, pooling=pooling,
                          schedule=schedule) from None


def sum_gradients(x: Tensor, comm: Communicator | None = None, *, replicated: bool = True) -> Tensor:
    """x unchanged (any shape; float32, float16 or bfloat16); backward sums its gradient over the ranks.

    For a tensor that is the same on all ranks and that each rank uses for a part of its own: the input of a layer whose outputs are spread
    over the ranks, such as torch.nn.Linear over a rank's heads. (fcc.nn.ColumnParallelLinear calls it itself.) Without it the layers before
    get only this rank's part of the gradient.

    Args:
        replicated: for second derivatives: all ranks use the summed gradient alike (as in gemv_all_reduce())
    """
    comm = communicator.chosen(comm, "sum_gradients")
    if not isinstance(x, Tensor):
        raise ArgumentError(f"rank {comm.rank}: sum_gradients: x: {type(x).__name__} {x!r:.40}: allowed is a torch.Tensor")
    return _ops.sum_gradients(x, comm.name, replicated=replicated)


# ---- prepared ----

def prepare_gemv_all_reduce(x: Tensor, w: Tensor, comm: Communicator | None = None) -> PreparedOperator:
    """Prepare gemv_all_reduce(x, w). Collective: all ranks call it, in the same order among their operators. Returns when all ranks are
    ready. For CUDA GPUs of one node, one for each rank.

    Args:
        x: [M][K_r], float32, float16 or bfloat16, in the daemon's memory; M from 1 to 64, the same on all ranks
        w: [N][K_r], dtype of x, in the daemon's memory
        comm: None: the default communicator

    Returns: the operator; its result is y, [M][N].

    Raises: as gemv_all_reduce(); UnsupportedError where ranks cannot launch the operator (not on CUDA GPUs, over nodes, or two ranks on one
        GPU); DriverError.
    """
    comm, op, called = communicator.chosen(comm, "prepare_gemv_all_reduce"), "gemv_all_reduce", "prepare_gemv_all_reduce"
    stream = raw_stream_of(comm)
    try:
        at_x, at_w = there(comm, called, "x", x, stream), there(comm, called, "w", w, stream)
        shape = (x.shape[0], w.shape[0])
        y, handle, offset = comm._heap.take(shape, x.dtype, stream)
    except Exception as e:
        raise unsubmitted(comm, f"{op}_prepare", prepare_gemv_all_reduce, e, x=x, w=w) from None
    packed = library().operators[op].pack(x=at_x, w=at_w, y=dense(handle, offset, x.dtype, *shape), schedule=SCHEDULES["fused"])
    return PreparedOperator(comm, op, packed, y, {"x": x, "w": w})


def prepare_gemm_all_to_all(a: Tensor, b: Tensor, comm: Communicator | None = None, *, send_rows: Sequence[int] | None = None,
                            recv_rows: Sequence[int] | None = None) -> PreparedOperator:
    """Prepare gemm_all_to_all(a, b, send_rows=..., recv_rows=...), in the way of prepare_gemv_all_reduce().

    Args: as gemm_all_to_all()'s; a and b lie in the daemon's memory.

    Returns: the operator; its result is c, [sum of recv_rows][N].
    """
    comm, op, called = communicator.chosen(comm, "prepare_gemm_all_to_all"), "gemm_all_to_all", "prepare_gemm_all_to_all"
    stream = raw_stream_of(comm)
    try:
        at_a, at_b = there(comm, called, "a", a, stream), there(comm, called, "b", b, stream)
        send, expected = gemm_rows(comm, a.shape[0], send_rows, recv_rows, called)
        shape = (sum(expected), b.shape[1])
        c, handle, offset = comm._heap.take(shape, a.dtype, stream)
    except Exception as e:
        raise unsubmitted(comm, f"{op}_prepare", prepare_gemm_all_to_all, e, a=a, b=b, send_rows=send_rows,
                          recv_rows=recv_rows) from None
    sent, send_address = numbers(send)
    received, received_address = numbers([-1] * comm.size)
    packed = library().operators[op].pack(
        a=at_a, b=at_b, send_rows=send_address, c=dense(handle, offset, a.dtype, *shape), recv_rows=received_address,
        schedule=SCHEDULES["fused"])
    operator = PreparedOperator(comm, op, packed, c, {"a": a, "b": b})
    try:
        rows_check(comm.member, list(received), Expected(called, expected))
    except Error:
        operator.close()
        raise
    return operator
