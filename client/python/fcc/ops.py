# SPDX-License-Identifier: MIT
"""torch.ops.fcc.*: the operators, for eager code and torch.compile (autograd: _modes/autograd.py).

They are functions of tensors that return new tensors. A communicator is given by its name (Communicator.name), so that graphs can hold it.
Results lie in the daemon's memory, but for what each rank launches itself (collectives, gemv_all_reduce, gemm_all_to_all and embedding_all_to_all on CUDA
GPUs of one node, one rank on each), which takes tensors from any memory and returns torch's. On a GPU an operator takes its place on the current stream, and the CPU does not wait. A result belongs
to that stream: code that uses it on another stream must order the two streams, and keep the result until that stream has finished with it.

A wrong argument on one rank is an error on all ranks, also if its type is wrong (a list for a tensor, a sparse tensor, a Communicator for
its name), which torch itself detects. In two cases only this rank gets the error, and the other ranks wait until their time limit: a call
of an overload (torch.ops.fcc.NAME.default) with arguments of other types than its schema's, which torch refuses without calling fcc; and a
communicator's name that is not a string or not known.

A call with only meta tensors (or fake ones) is not an operator: it returns a meta tensor of the result's shape, and does not concern other
ranks. Meta tensors among others are an error.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from . import _collectives, _counted, _direct, _packets
from ._calls import FLOATS, WRONG_KIND, check_counts, check_floats, dense, numbers, pooling_number, run, schedule_number
from ._dispatch import lib
from ._names import results_of
from ._library import ABSENT, EPILOGUE, SCHEDULES, library
from ._staging import place, place_anywhere
from ._communicator.refusals import refuse
from .communicator import Communicator, Expected, find
from .errors import ArgumentError
from .memory import DTYPES, raw_stream_of, stream_of


GEMV_ROWS = 64  # the most rows of one gemv_all_reduce
LAUNCHED = ("auto", "fused", "batch_invariant")  # the schedules of operators that this process launches
LAUNCHED_IN_PIECES = ("auto", "fused")  # likewise, of refusals.IN_PIECES
GATHERED_MOST = 32 << 20  # bytes of A that all_gather_gemm has memory for (fccclient.h)


def epilogue_of(c: Communicator, op: str, bias: Tensor | None, residual: Tensor | None, stream: int,
                launched: bool = False) -> tuple[bytes | None, Any]:
    """struct fcc_epilogue, packed, and the tensors that it points to, to be held until the operator is done. None: there is none.
    launched: this process launches the operator, from any memory."""
    if bias is None and residual is None:
        return None, None
    places: list[tuple] = []
    held = []
    for name, tensor, ndim in (("bias", bias, 1), ("residual", residual, 2)):
        if tensor is None:
            places.append(ABSENT)
            continue
        check_floats(c, op, name, tensor, ndim)
        at, lies = (place_anywhere(c, op, name, tensor) if launched else
                    place(c, op, name, tensor, stream, weight=name == "bias"))
        places.append(at)
        held.append(lies)
    return EPILOGUE.pack(*places[0], *places[1], *8 * ABSENT, 0, 0.0, 0, 0.0, 0), held


def launches_product(c: Communicator, schedule: str, bias: Tensor | None, residual: Tensor | None) -> bool:
    """Whether this process launches a gemm_all_reduce, gemm_reduce_scatter or all_gather_gemm itself. The first call is collective."""
    return schedule in LAUNCHED_IN_PIECES and bias is None and residual is None and c._member.multiplies()


def placed(c: Communicator, op: str, launched: bool, a: Tensor, b: Tensor, stream: int) -> tuple[tuple, tuple, tuple]:
    """The places of such an operator's factors, and what the caller holds."""
    if launched:  # the library takes no rows that overlap, as those of a tensor that was expanded
        (at_a, held_a), (at_b, held_b) = (place_anywhere(c, op, name, tensor if tensor.stride(0) >= tensor.shape[1] else tensor.contiguous())
                                          for name, tensor in (("a", a), ("b", b)))
    else:
        at_a, held_a = place(c, op, "a", a, stream)
        at_b, held_b = place(c, op, "b", b, stream, weight=True)
    return at_a, at_b, (held_a, held_b)


def taken(c: Communicator, op: str, shape: tuple[int, int], dtype: torch.dtype, stream: int, launched: bool) -> tuple[Tensor, tuple]:
    """A result and its place: anywhere, if this process launches the operator, or in the daemon's memory."""
    if launched:
        made = torch.empty(shape, dtype=dtype, device=c.device)
        return made, place_anywhere(c, op, "c", made)[0]
    made, handle, offset = c._heap.take(shape, dtype, stream)
    return made, dense(handle, offset, dtype, *shape)


# ---- gemv_all_reduce ----

results_of("gemv_all_reduce", (r"\by: shape\[0\]", "x: shape[0]"), (r"\by: shape\[1\]", "w: shape[0]"), (r"\by: dtype", "x: dtype"))


def gemv_all_reduce(x: Tensor, w: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                    replicated: bool = True, schedule: str = "auto") -> Tensor:
    c = find(comm)
    plain = bias is None and residual is None
    if schedule == "auto" and plain:
        y = _direct.again(x, w, comm)
        if y is not None:
            return y
    launched = schedule in LAUNCHED and c._member.launches()
    try:
        stream = stream_of(c)
        check_floats(c, "gemv_all_reduce", "x", x, 2)
        check_floats(c, "gemv_all_reduce", "w", w, 2)
        number = schedule_number(c, "gemv_all_reduce", schedule)
        if launched:
            (at_x, held_x), (at_w, held_w) = (place_anywhere(c, "gemv_all_reduce", name, tensor) for name, tensor in (("x", x), ("w", w)))
        else:
            at_x, held_x = place(c, "gemv_all_reduce", "x", x, stream)
            at_w, held_w = place(c, "gemv_all_reduce", "w", w, stream, weight=True)
        epilogue, held = epilogue_of(c, "gemv_all_reduce", bias, residual, stream, launched)
        m, n = x.shape[0], w.shape[0]
        if launched:
            y = torch.empty((m, n), dtype=x.dtype, device=c.device)
            at_y, _ = place_anywhere(c, "gemv_all_reduce", "y", y)
        else:
            y, handle, offset = c._heap.take((m, n), x.dtype, stream)
            at_y = dense(handle, offset, x.dtype, m, n)
        places = c._member.connection.current()  # after allocations; x's and w's memory stays as long as they do
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, "gemv_all_reduce", e, launched or schedule not in SCHEDULES) from None
    packed = library().operators["gemv_all_reduce"].pack(x=at_x, w=at_w, y=at_y, schedule=number)
    run(c, "gemv_all_reduce", packed, stream, epilogue=epilogue, launched=launched)
    if schedule == "auto" and plain and held_x is x and held_w is w:
        _direct.remember(c, places, x, w, at_x, at_w, stream, at_y if launched else None)
    return y


def gemv_all_reduce_fake(x: Tensor, w: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None,
                         *, replicated: bool = True, schedule: str = "auto") -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]))


# ---- gemm_all_reduce ----

results_of("gemm_all_reduce", (r"\bc: shape\[0\]", "a: shape[0]"), (r"\bc: shape\[1\]", "b: shape[1]"), (r"\bc: dtype", "a: dtype"))


def gemm_all_reduce(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                    replicated: bool = True, schedule: str = "auto") -> Tensor:
    c = find(comm)
    op = "gemm_all_reduce"
    launched = launches_product(c, schedule, bias, residual)
    try:
        check_floats(c, op, "a", a, 2)
        check_floats(c, op, "b", b, 2)
        number = schedule_number(c, op, schedule)
        stream = stream_of(c)
        at_a, at_b, factors = placed(c, op, launched, a, b, stream)
        epilogue, held = epilogue_of(c, op, bias, residual, stream)
        m, n = a.shape[0], b.shape[1]
        result, at_c = taken(c, op, (m, n), a.dtype, stream, launched)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e, launched) from None
    packed = library().operators[op].pack(a=at_a, b=at_b, c=at_c, schedule=number)
    run(c, op, packed, stream, epilogue=epilogue, launched=launched)
    return result


def gemm_all_reduce_fake(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None,
                         *, replicated: bool = True, schedule: str = "auto") -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


# ---- gemm_reduce_scatter ----

results_of("gemm_reduce_scatter", (r"\bc: shape\[1\]", "b: shape[1]"), (r"\bc: dtype", "a: dtype"))


def gemm_reduce_scatter(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                        rows: Sequence[int] | None = None, schedule: str = "auto") -> Tensor:
    c = find(comm)
    op = "gemm_reduce_scatter"
    launched = launches_product(c, schedule, bias, residual)
    try:
        check_floats(c, op, "a", a, 2)
        check_floats(c, op, "b", b, 2)
        number = schedule_number(c, op, schedule)
        parts = scattered_rows(c, a.shape[0], rows)
        stream = stream_of(c)
        at_a, at_b, factors = placed(c, op, launched, a, b, stream)
        epilogue, held = epilogue_of(c, op, bias, residual, stream)
        m, n = parts[c.rank], b.shape[1]
        result, at_c = taken(c, op, (m, n), a.dtype, stream, launched)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e, launched) from None
    given, address = numbers(parts)
    packed = library().operators[op].pack(a=at_a, b=at_b, rows=address, c=at_c, schedule=number)
    run(c, op, packed, stream, epilogue=epilogue, launched=launched)
    return result


def scattered_rows(c: Communicator, m: int, rows: Sequence[int] | None) -> list[int]:
    """The rows of the sum that each rank gets."""
    if rows is not None:
        check_counts(c, "gemm_reduce_scatter", "rows", rows, m)
    return list(batch_parts(m, rows, c.size))


def gemm_reduce_scatter_fake(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                             rows: Sequence[int] | None = None, schedule: str = "auto") -> Tensor:
    c = find(comm)
    return a.new_empty((batch_parts(a.shape[0], rows, c.size)[c.rank], b.shape[1]))


# ---- all_gather_gemm ----

results_of("all_gather_gemm", (r"\ba: the ranks' have (\d+) rows together, c has (\d+)", r"rows: the ranks' a have \1 rows together, rows adds up to \2"),
           (r"\ba: the ranks' have (\d+) elements together, c's rows need (\d+)", r"rows: the ranks' a have \1 elements together, for rows they need \2"),
           (r"\bgathered: (?=rank \d+ has (?:none|one))", "gathered (which is for b that requires a gradient): "),
           (r"\bc: shape\[0\]", "rows: their sum"), (r"\bc: shape\[1\]", "b: shape[1]"), (r"\bc: dtype", "a: dtype"))


def gathered_rows(c: Communicator, m: int, rows: Sequence[int] | None, op: str = "all_gather_gemm") -> list[int]:
    """The number of rows of each rank's a."""
    if rows is None:
        return [m] * c.size
    check_counts(c, op, "rows", rows)
    if rows[c.rank] != m:
        raise ArgumentError(f"rank {c.rank}: {op}: a: {m} rows: rows says {rows[c.rank]}")
    return list(rows)


def gathers_much(c: Communicator, m: int, a: Tensor) -> bool:
    """Whether ranks that launch the operator give it memory for A, of m rows: in sequence they have some themselves, but not for so much."""
    return c.size != 2 and m * a.shape[1] * a.element_size() > GATHERED_MOST


def all_gather_gemm(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                    rows: Sequence[int] | None = None, gathered: bool = False, schedule: str = "auto") -> tuple[Tensor, Tensor]:
    """c, and A itself: of no rows if it is not asked for."""
    c = find(comm)
    op = "all_gather_gemm"
    launched = launches_product(c, schedule, bias, residual)
    try:
        check_floats(c, op, "a", a, 2)
        check_floats(c, op, "b", b, 2)
        number = schedule_number(c, op, schedule)
        m, n, k = sum(gathered_rows(c, a.shape[0], rows)), b.shape[1], a.shape[1]
        stream = stream_of(c)
        at_a, at_b, factors = placed(c, op, launched, a.contiguous() if launched and gathers_much(c, m, a) else a, b, stream)
        epilogue, held = epilogue_of(c, op, bias, residual, stream)
        result, at_c = taken(c, op, (m, n), a.dtype, stream, launched)
        every, at_every = a.new_empty((0, k)), {}
        if gathered or launched and gathers_much(c, m, a):
            every, at = taken(c, op, (m, k), a.dtype, stream, launched)
            at_every = {"gathered": at}
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e, launched) from None
    packed = library().operators[op].pack(a=at_a, b=at_b, c=at_c, schedule=number, **at_every)
    run(c, op, packed, stream, epilogue=epilogue, launched=launched)
    return result, every if gathered else a.new_empty((0, k))


def all_gather_gemm_fake(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                         rows: Sequence[int] | None = None, gathered: bool = False, schedule: str = "auto") -> tuple[Tensor, Tensor]:
    m = a.shape[0] * find(comm).size if rows is None else sum(rows)
    return a.new_empty((m, b.shape[1])), a.new_empty((m if gathered else 0, a.shape[1]))


# ---- gemm_all_to_all ----

results_of("gemm_all_to_all", (r"\bc: shape\[1\]", "b: shape[1]"), (r"\bc: dtype", "a: dtype"),
           (r"\bc: (rank \d+ receives \d+ rows), its c has (\d+)", r"recv_rows: \1, its recv_rows add up to \2"))


def gemm_all_to_all(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                    send_rows: Sequence[int] | None = None, recv_rows: Sequence[int] | None = None,
                    schedule: str = "auto") -> Tensor:
    c = find(comm)
    op = "gemm_all_to_all"
    launched = schedule in LAUNCHED and c._member.launches()
    try:
        check_floats(c, op, "a", a, 2)
        check_floats(c, op, "b", b, 2)
        number = schedule_number(c, op, schedule)
        send, expected = gemm_rows(c, a.shape[0], send_rows, recv_rows)
        stream = stream_of(c)
        if launched:
            (at_a, held_a), (at_b, held_b) = (place_anywhere(c, op, name, tensor) for name, tensor in (("a", a), ("b", b)))
        else:
            at_a, held_a = place(c, op, "a", a, stream)
            at_b, held_b = place(c, op, "b", b, stream, weight=True)
        epilogue, held = epilogue_of(c, op, bias, residual, stream, launched)
        m, n = sum(expected), b.shape[1]
        if launched:
            result = torch.empty((m, n), dtype=a.dtype, device=c.device)
            at_c, _ = place_anywhere(c, op, "c", result)
        else:
            result, handle, offset = c._heap.take((m, n), a.dtype, stream)
            at_c = dense(handle, offset, a.dtype, m, n)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e, launched or schedule not in SCHEDULES) from None
    sent, send_address = numbers(send)
    received, received_address = numbers(expected if launched else [-1] * c.size)
    packed = library().operators[op].pack(a=at_a, b=at_b, send_rows=send_address, c=at_c, recv_rows=received_address, schedule=number)
    if launched:  # the ranks' kernels compare what comes with what is expected
        run(c, op, packed, stream, epilogue=epilogue, launched=True)
    else:
        run(c, op, packed, stream, received, Expected(op, expected), epilogue=epilogue)
    return result


def gemm_rows(c: Communicator, m: int, send_rows: Sequence[int] | None, recv_rows: Sequence[int] | None,
              op: str = "gemm_all_to_all") -> tuple[list[int], list[int]]:
    """The numbers of rows that go to each rank, and that come from each."""
    if (send_rows is None) != (recv_rows is None):
        raise ArgumentError(f"rank {c.rank}: {op}: send_rows, recv_rows: allowed are both, or none (then all ranks "
                            f"have as many rows, and each rank gets the same share)")
    if send_rows is None or recv_rows is None:
        if m % c.size:
            raise ArgumentError(f"rank {c.rank}: {op}: a: {m} rows: allowed without send_rows are multiples of "
                                f"{c.size}")
        return [m // c.size] * c.size, [m // c.size] * c.size
    check_counts(c, op, "send_rows", send_rows, m)
    check_counts(c, op, "recv_rows", recv_rows)
    return list(send_rows), list(recv_rows)


def gemm_all_to_all_fake(a: Tensor, b: Tensor, comm: str, bias: Tensor | None = None, residual: Tensor | None = None, *,
                         send_rows: Sequence[int] | None = None, recv_rows: Sequence[int] | None = None,
                         schedule: str = "auto") -> Tensor:
    return a.new_empty((a.shape[0] if recv_rows is None else sum(recv_rows), b.shape[1]))


# ---- embedding_all_to_all ----

results_of("embedding_all_to_all", (r"\bout: shape\[2\]", "tables: shape[1]"), (r"\bout: dtype", "tables: dtype"),
           (r"\bout: (rank \d+) has shape\[1\] (\d+), all ranks together have",
            r"tables_per_rank: \1 has \2 in all, all ranks together have"),
           (r"\bnum_tables \* batch", "len(table_rows) * batch"))


def batch_parts(batch: int, batch_split: Sequence[int] | None, size: int) -> Sequence[int]:
    """Each rank's number of samples."""
    if batch_split is not None:
        return batch_split
    return [batch // size + (1 if rank < batch % size else 0) for rank in range(size)]


def embedding_all_to_all(tables: Tensor, indices: Tensor, offsets: Tensor, sample_weights: Tensor | None,
                         table_rows: Sequence[int], tables_per_rank: Sequence[int], batch: int, comm: str, *,
                         batch_split: Sequence[int] | None = None,
                         pooling: str = "sum", schedule: str = "auto") -> Tensor:
    c = find(comm)
    op = "embedding_all_to_all"
    launched = schedule in LAUNCHED and c._member.launches()
    try:
        check_floats(c, op, "tables", tables, 2)
        mode, number = pooling_number(c, op, pooling), schedule_number(c, op, schedule)
        check_counts(c, op, "tables_per_rank", tables_per_rank)
        if len(table_rows) != tables_per_rank[c.rank]:
            raise ArgumentError(f"rank {c.rank}: {op}: table_rows: {len(table_rows)} tables: tables_per_rank says "
                                f"{tables_per_rank[c.rank]}")
        if batch < 0:
            raise ArgumentError(f"rank {c.rank}: {op}: batch: {batch}: allowed are 0 and more")
        if batch_split is not None:
            check_counts(c, op, "batch_split", batch_split, batch)
        stream = stream_of(c)
        places, held = {}, []
        for name, tensor in (("tables", tables), ("indices", indices), ("offsets", offsets), ("sample_weights", sample_weights)):
            if tensor is None:
                continue
            places[name], lies = (place_anywhere(c, op, name, tensor) if launched else
                                  place(c, op, name, tensor, stream, weight=name == "tables"))
            held.append(lies)
        shape = (batch_parts(batch, batch_split, c.size)[c.rank], sum(tables_per_rank), tables.shape[1])
        if launched:
            out = torch.empty(shape, dtype=tables.dtype, device=c.device)
            places["out"], _ = place_anywhere(c, op, "out", out)
        else:
            out, handle, offset = c._heap.take(shape, tables.dtype, stream)
            places["out"] = dense(handle, offset, tables.dtype, *shape)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e, launched or schedule not in SCHEDULES) from None
    rows, rows_address = numbers(table_rows)
    split, split_address = numbers(batch_split or ())
    packed = library().operators[op].pack(
        table_rows=rows_address, num_tables=len(table_rows), pooling=mode, batch=batch,
        batch_split=split_address if batch_split is not None else 0, schedule=number, **places)
    run(c, op, packed, stream, launched=launched)
    return out


def embedding_all_to_all_fake(tables: Tensor, indices: Tensor, offsets: Tensor, sample_weights: Tensor | None,
                              table_rows: Sequence[int], tables_per_rank: Sequence[int], batch: int, comm: str, *,
                              batch_split: Sequence[int] | None = None, pooling: str = "sum", schedule: str = "auto") -> Tensor:
    c = find(comm)
    return tables.new_empty((batch_parts(batch, batch_split, c.size)[c.rank], sum(tables_per_rank), tables.shape[1]))


# ---- what has nothing to do with other ranks, but in its derivatives ----

def sum_gradients(x: Tensor, comm: str, *, replicated: bool = True) -> Tensor:
    """A copy of x. Backward sums the gradients over the ranks."""
    c = find(comm)
    if x.dtype not in FLOATS:  # no other rank waits for this one
        raise ArgumentError(f"rank {c.rank}: sum_gradients: x: {x.dtype}: allowed are float32, float16 and bfloat16")
    return x.clone()


def sum_gradients_fake(x: Tensor, comm: str, *, replicated: bool = True) -> Tensor:
    return x.clone()


def cast(x: Tensor, dtype: torch.dtype, comm: str) -> Tensor:
    """x.to(dtype), in the daemon's memory, so that an operator that is given it need not copy it again."""
    c = find(comm)
    if x.device != c.device or dtype not in DTYPES:
        return x.to(dtype, copy=True)
    return c._local.take(tuple(x.shape), dtype, raw_stream_of(c))[0].copy_(x)


def cast_fake(x: Tensor, dtype: torch.dtype, comm: str) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "gemv_all_reduce": (gemv_all_reduce, gemv_all_reduce_fake,
                        "(Tensor x, Tensor w, str comm, Tensor? bias=None, Tensor? residual=None, *, bool replicated=True, str schedule='auto') -> Tensor"),
    "gemm_all_to_all": (gemm_all_to_all, gemm_all_to_all_fake,
                        "(Tensor a, Tensor b, str comm, Tensor? bias=None, Tensor? residual=None, *, SymInt[]? send_rows=None, SymInt[]? recv_rows=None, "
                        "str schedule='auto') -> Tensor"),
    "gemm_all_reduce": (gemm_all_reduce, gemm_all_reduce_fake,
                        "(Tensor a, Tensor b, str comm, Tensor? bias=None, Tensor? residual=None, *, bool replicated=True, str schedule='auto') -> Tensor"),
    "gemm_reduce_scatter": (gemm_reduce_scatter, gemm_reduce_scatter_fake,
                            "(Tensor a, Tensor b, str comm, Tensor? bias=None, Tensor? residual=None, *, SymInt[]? rows=None, str schedule='auto') -> Tensor"),
    "all_gather_gemm": (all_gather_gemm, all_gather_gemm_fake,
                        "(Tensor a, Tensor b, str comm, Tensor? bias=None, Tensor? residual=None, *, SymInt[]? rows=None, bool gathered=False, "
                        "str schedule='auto') -> (Tensor, Tensor)"),
    "embedding_all_to_all": (embedding_all_to_all, embedding_all_to_all_fake,
                             "(Tensor tables, Tensor indices, Tensor offsets, Tensor? sample_weights, SymInt[] table_rows, "
                             "SymInt[] tables_per_rank, SymInt batch, str comm, *, SymInt[]? batch_split=None, "
                             "str pooling='sum', str schedule='auto') -> Tensor"),
    **_collectives.KERNELS,
    **_counted.KERNELS,
    "sum_gradients": (sum_gradients, sum_gradients_fake, "(Tensor x, str comm, *, bool replicated=True) -> Tensor"),
    "cast": (cast, cast_fake, "(Tensor x, ScalarType dtype, str comm) -> Tensor"),
}
PRODUCTS = ("gemv_all_reduce", "gemm_all_to_all", "gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")  # products of the first two arguments
ALONE = ("sum_gradients", "cast")  # operators without other ranks

for _name, (_kernel, _fake, _schema) in KERNELS.items():
    lib.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
    for _key in ("CPU", "CUDA"):
        lib.impl(_name, _kernel, _key)
    _packets.kernels[_name] = _kernel
    _fake = _packets.traced(_fake)
    torch.library.register_fake(f"fcc::{_name}", _fake if _name in ALONE else _packets.shapes_only(_name, _fake), lib=lib)
    # All ranks must call in one order, and compilers may change it, and leave out what nobody uses, by what they find best for
    # one rank's sizes. So each call is an effect, and effects stay in order.
    if _name not in ALONE:
        _register_effectful_op(getattr(torch.ops.fcc, _name).default, _EffectType.ORDERED)
        getattr(torch.ops.fcc, _name).__class__ = _packets.Packet

torch.ops.fcc.gemv_all_reduce.__class__ = _direct.Packet

# An operator without tensors, and without a result.
lib.define("barrier(str comm) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
lib.impl("barrier", lambda comm: find(comm).barrier(), "CompositeExplicitAutograd")
torch.library.register_fake("fcc::barrier", lambda comm: None, lib=lib)
_register_effectful_op(torch.ops.fcc.barrier.default, _EffectType.ORDERED)
