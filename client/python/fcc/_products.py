# SPDX-License-Identifier: MIT
"""all_reduce of floats and rows_all_to_all on GPUs, where the C library has no collectives yet: they are made of its products. Nothing else
is in this file, so that it can be deleted when the C library has them; what imports it says where it is used."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._calls import FLOATS, WRONG_KIND, check_counts, check_floats, dense, in_words, numbers, run
from ._library import library
from ._names import Called, argument
from ._staging import place
from .communicator import Communicator, Expected, find, refuse
from .errors import ArgumentError
from .memory import stream_of

OPERATORS = {"all_reduce": "gemv_all_reduce", "rows_all_to_all": "gemm_all_to_all"}  # what they are made of
ALL_REDUCE = Called("all_reduce", {"gemv_all_reduce": ((r"\bw: shape\[0\]", "x: elements"), argument("w", "x"))})
ROWS = Called("rows_all_to_all", {"gemm_all_to_all": ((r"\bb: shape\[1\]", "rows: shape[1]"), argument("a", "rows"))})


def makes(c: Communicator, x: Tensor, reduction: str) -> bool:
    """Whether this all_reduce is a product."""
    return c._member.on_gpu and reduction == "sum" and x.dtype in FLOATS


@in_words(ALL_REDUCE)
def all_reduce(x: Tensor, comm: str) -> Tensor:
    """The AllReduce of gemv_all_reduce behind a product with 1: sums in f32, in rank order, the same bits on every rank."""
    c = find(comm)
    op = "gemv_all_reduce"
    try:
        if x.device != c.device or x.layout != torch.strided:
            raise ArgumentError(f"rank {c.rank}: all_reduce: x: {x.dtype}, {x.layout} on {x.device}: allowed are dense tensors on {c.device}")
        flat = x.reshape(-1, 1)
        stream = stream_of(c)
        at_x, held_x = place(c, op, "x", c._one(x.dtype), stream)
        at_w, held_w = place(c, op, "w", flat, stream, silent=True)
        y, handle, offset = c._heap.take((1, flat.shape[0]), x.dtype, stream)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e) from None
    packed = library().operators[op].pack(x=at_x, w=at_w, y=dense(handle, offset, x.dtype, 1, flat.shape[0]))
    run(c, op, packed, stream, called=ALL_REDUCE)
    return y.view(x.shape)


@in_words(ROWS)
def rows_all_to_all(rows: Tensor, send_rows: Sequence[int], recv_rows: Sequence[int], comm: str) -> Tensor:
    """gemm_all_to_all without a second factor: rows arrive bit for bit as they were sent."""
    c = find(comm)
    op = "rows_all_to_all"
    try:
        check_floats(c, op, "rows", rows, 2)
        check_counts(c, op, "send_rows", send_rows, rows.shape[0])
        check_counts(c, op, "recv_rows", recv_rows)
        stream = stream_of(c)
        at_rows, held = place(c, op, "rows", rows, stream, silent=True)
        shape = (sum(recv_rows), rows.shape[1])
        result, handle, offset = c._heap.take(shape, rows.dtype, stream)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, "gemm_all_to_all", e) from None
    sent, send_address = numbers(send_rows)
    received, received_address = numbers([-1] * c.size)
    packed = library().operators["gemm_all_to_all"].pack(
        a=at_rows, send_rows=send_address, c=dense(handle, offset, rows.dtype, *shape), recv_rows=received_address)
    run(c, "gemm_all_to_all", packed, stream, received, Expected(op, list(recv_rows), ROWS), ROWS)
    return result
