# SPDX-License-Identifier: MIT
"""torch.ops.fcc.*_epilogue: products with an epilogue as one operator of the C library each, without derivatives."""
from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from .. import _packets
from .._calls import WRONG_KIND, check_floats, dense, numbers, run, schedule_number
from .._dispatch import is_forward_mode, lib
from .._factors import F8, check_factor, in_own_words, result_dtype
from .._library import ABSENT, ACTIVATIONS, EPILOGUE, NORMS, QUANTIZATIONS, SCHEDULES, library
from .._staging import place, place_anywhere
from .._communicator.refusals import refuse
from ..communicator import Communicator, Expected, find
from ..errors import ArgumentError, Error
from ..memory import stream_of
from ..ops import LAUNCHED, batch_parts, gathered_rows, gemm_rows, scattered_rows
from .checks import check_rows, number_wrong

ON_GPUS = ("gemv_all_reduce", "gemm_all_to_all", "all_reduce")  # what ranks launch on GPUs with any epilogue
ADDED = 5  # of an operator's stages, those with the result's dtype

_ops = torch.ops.fcc
_ORDER = ("bias", "residual", "sum", "norm_weight", "norm_bias", "gate", "quantized", "quantized_scale", "x_scale", "w_scale")  # of struct fcc_epilogue
_STAGES = ("Tensor? bias, Tensor? residual, Tensor? gate, Tensor? norm_weight, Tensor? norm_bias, Tensor? quantized_scale, "
           "Tensor? x_scale=None, Tensor? w_scale=None, *, bool sum, str norm, float norm_eps, str activation, float scale, str quantization, str schedule, "
           "ScalarType? dtype=None")


def _number_of(c: Communicator, op: str, name: str, value: str, numbers_: dict[str, int]) -> int:
    if value not in numbers_:
        raise ArgumentError(f"rank {c.rank}: {op}: {name}: \"{value}\": allowed are None, {', '.join(n for n in numbers_ if n)}")
    return numbers_[value]


class _Call:
    """A call's tensors, on their way into the C library's structs. held: what must live until the operator has ended. launched: this process
    launches it, from any memory."""

    def __init__(self, c: Communicator, op: str, launched: bool) -> None:
        self.c, self.op, self.stream, self.launched = c, op, stream_of(c), launched
        self.values: dict[str, Any] = {}  # of struct fcc_NAME_args
        self.places: dict[str, tuple] = {}  # of struct fcc_epilogue
        self.held: list[Any] = []
        self.made: dict[str, Tensor] = {}
        self.received: Any = None
        self.expected: list[int] | None = None

    def place(self, name: str, tensor: Tensor, weight: bool = False) -> tuple:
        at, lies = (place_anywhere(self.c, self.op, name, tensor) if self.launched else
                    place(self.c, self.op, name, tensor, self.stream, weight=weight, silent=self.op == "all_reduce"))  # as plain collectives
        self.held.append(lies)
        return at

    def factors(self, names: Sequence[str], tensors: Sequence[Tensor]) -> None:
        for name, tensor in zip(names, tensors):
            check_factor(self.c.rank, self.op, name, tensor)
        for name, tensor in zip(names, tensors):
            self.values[name] = self.place(name, tensor, name == names[1])

    def matrix(self, x: Tensor) -> None:
        check_floats(self.c, self.op, "x", x, 2)
        self.values["in_"] = self.place("x", x.reshape(-1))

    def rows(self, m: int, send_rows: Sequence[int] | None, recv_rows: Sequence[int] | None) -> int:
        """The number of rows that come."""
        send, self.expected = gemm_rows(self.c, m, send_rows, recv_rows)
        sent, self.values["send_rows"] = numbers(send)
        self.received, self.values["recv_rows"] = numbers(self.expected if self.launched else [-1] * self.c.size)
        self.held.append(sent)
        return sum(self.expected)

    def scatter(self, m: int, rows: Sequence[int] | None) -> int:
        """The number of this rank's rows."""
        parts = scattered_rows(self.c, m, rows)
        given, self.values["rows"] = numbers(parts)
        self.held.append(given)
        return parts[self.c.rank]

    def stages(self, tensors: dict[str, Tensor | None]) -> None:
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            if not name.endswith("_scale"):
                check_floats(self.c, self.op, name, tensor, 2 if name in ("residual", "gate") else 1)
            self.places[name] = self.place(name, tensor, name in ("bias", "norm_weight", "norm_bias", "w_scale"))

    def result(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, tuple]:
        """A tensor of this rank alone."""
        if not self.launched:
            return _result_place(self.c, shape, dtype, self.stream)
        made = torch.empty(shape, dtype=dtype, device=self.c.device)
        return made, place_anywhere(self.c, self.op, "result", made)[0]

    def results(self, name: str, m: int, n: int, dtype: torch.dtype, wants_sum: bool, quantization: str) -> Tensor:
        shape = (m * n,) if name == "out" else (m, n)
        if self.launched:
            y = torch.empty((m, n), dtype=dtype, device=self.c.device)
            self.values[name] = place_anywhere(self.c, self.op, "result", y.reshape(shape))[0]
        else:
            y, handle, offset = self.c._heap.take((m, n), dtype, self.stream)
            self.values[name] = dense(handle, offset, dtype, *shape)
        for result, wanted, its, kind in (("sum", wants_sum, (m, n), dtype), ("quantized", bool(quantization), (m, n), F8),
                                          ("quantized_scale", quantization == "row", (m,), torch.float32)):
            if wanted:
                self.made[result], self.places[result] = self.result(its, kind)
                if result == "quantized_scale" and n == 0:
                    self.made[result].fill_(1.0)  # the C library writes none of rows without elements
            else:
                self.made[result] = torch.empty(0, dtype=kind, device=self.c.device)
        return y

    def run(self, kinds: Sequence[int], norm_eps: float, scale: float, schedule: int) -> None:
        epilogue = EPILOGUE.pack(*(word for name in _ORDER for word in self.places.get(name, ABSENT)), kinds[0], norm_eps, kinds[1],
                                 0.0 if scale == 1.0 else scale, kinds[2])
        packed = library().operators[self.op].pack(schedule=schedule, **self.values)
        if self.launched:  # the ranks' kernels compare what comes with what is expected
            run(self.c, self.op, packed, self.stream, epilogue=epilogue, launched=True)
        else:
            run(self.c, self.op, packed, self.stream, self.received, None if self.expected is None else Expected(self.op, self.expected),
                epilogue=epilogue)


def _epilogue_run(op: str, names: str, factors: tuple[Tensor, ...], n: int, comm: str, tensors: dict[str, Tensor | None], *, sum: bool,
                  norm: str, norm_eps: float, activation: str, scale: float, quantization: str, schedule: str,
                  dtype: torch.dtype | None = None,
                  rows: tuple[Sequence[int] | None, ...] | None = None,
                  gathered: tuple[Sequence[int] | None] | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """names: of two factors and the result, a letter each. gathered: all ranks' rows of the first factor are multiplied: how many each has."""
    c = find(comm)
    launched = op in ON_GPUS and schedule in LAUNCHED and c._member.launches()
    try:
        wrong = number_wrong(norm_eps, scale)
        if wrong:
            raise ArgumentError(f"rank {c.rank}: {op}: {wrong}")
        call = _Call(c, op, launched)
        if len(factors) == 1:
            call.matrix(*factors)
            check_rows(c, op, factors[0], tensors)
            if norm and not (sum or quantization or any(t is not None for t in tensors.values())):
                tensors["norm_weight"] = factors[0].new_ones(n)  # the C library knows the length of rows by the epilogue's tensors
        else:
            call.factors(names, factors)
        m = factors[0].shape[0]
        if gathered is not None:
            m = builtins.sum(gathered_rows(c, m, *gathered))
        elif rows is not None:
            m = call.scatter(m, *rows) if op == "gemm_reduce_scatter" else call.rows(m, *rows)
        call.stages(tensors)
        kinds = [_number_of(c, op, name, value, of) for name, value, of in (
            ("norm", norm, NORMS), ("activation", activation, ACTIVATIONS), ("quantization", quantization, QUANTIZATIONS))]
        number = schedule_number(c, op, schedule)
        y = call.results("out" if len(factors) == 1 else names[2], m, n, result_dtype(dtype, factors, tuple(tensors.values())[:ADDED]), sum, quantization)
    except WRONG_KIND:
        raise
    except Exception as e:
        raise refuse(c, op, e, launched or schedule not in SCHEDULES) from None
    try:
        call.run(kinds, norm_eps, scale, number)
    except Error as e:
        raise in_own_words(e, c.rank, op, factors) from None
    return y, call.made["sum"], call.made["quantized"], call.made["quantized_scale"]


def _result_place(c: Communicator, shape: tuple[int, ...], dtype: torch.dtype, stream: int) -> tuple[Tensor, tuple]:
    """A tensor of this rank alone, in the daemon's memory. One of no elements has a place of another kind's."""
    tensor, handle, offset = c._local.take(shape if 0 not in shape else (1,), dtype, stream)
    return tensor if 0 not in shape else tensor.new_empty(shape), dense(handle, offset, dtype, *shape)


def _tensors(bias: Tensor | None, residual: Tensor | None, gate: Tensor | None, norm_weight: Tensor | None, norm_bias: Tensor | None,
             quantized_scale: Tensor | None, x_scale: Tensor | None = None, w_scale: Tensor | None = None) -> dict[str, Tensor | None]:
    return {"bias": bias, "residual": residual, "gate": gate, "norm_weight": norm_weight, "norm_bias": norm_bias,
            "quantized_scale": quantized_scale, "x_scale": x_scale, "w_scale": w_scale}


def _fake(m: Any, n: Any, factors: tuple[Tensor, ...], stages: tuple[Tensor | None, ...], dtype: torch.dtype | None, wants_sum: bool,
          quantization: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like = factors[0].new_empty(0, dtype=result_dtype(dtype, factors, stages[:ADDED]))
    return (like.new_empty((m, n)), like.new_empty((m, n) if wants_sum else 0),
            like.new_empty((m, n) if quantization else 0, dtype=F8),
            like.new_empty(m if quantization == "row" else 0, dtype=torch.float32))


def _gemv(x: Tensor, w: Tensor, comm: str, *stages: Tensor | None, **numbers_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _epilogue_run("gemv_all_reduce", "xwy", (x, w), w.shape[0], comm, _tensors(*stages), **numbers_)


def _gemv_fake(x: Tensor, w: Tensor, comm: str, *stages: Tensor | None, sum: bool, quantization: str,
               dtype: torch.dtype | None = None, **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake(x.shape[0], w.shape[0], (x, w), stages, dtype, sum, quantization)


def _sums(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, **numbers_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _epilogue_run("gemm_all_reduce", "abc", (a, b), b.shape[1], comm, _tensors(*stages), **numbers_)


def _sums_fake(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, sum: bool, quantization: str,
               dtype: torch.dtype | None = None, **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake(a.shape[0], b.shape[1], (a, b), stages, dtype, sum, quantization)


def _all(x: Tensor, comm: str, *stages: Tensor | None, **numbers_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _epilogue_run("all_reduce", "", (x,), x.shape[-1], comm, _tensors(*stages), **numbers_)


def _all_fake(x: Tensor, comm: str, *stages: Tensor | None, sum: bool, quantization: str,
              **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _fake(x.shape[0], x.shape[1], (x,), stages, None, sum, quantization)


def _puts(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, send_rows: Sequence[int] | None, recv_rows: Sequence[int] | None,
          **numbers_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _epilogue_run("gemm_all_to_all", "abc", (a, b), b.shape[1], comm, _tensors(*stages), rows=(send_rows, recv_rows), **numbers_)


def _puts_fake(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, sum: bool, quantization: str, recv_rows: Sequence[int] | None,
               dtype: torch.dtype | None = None, **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m: Any = a.shape[0]
    for i, rows in enumerate(recv_rows or ()):
        m = rows if i == 0 else m + rows
    return _fake(m, b.shape[1], (a, b), stages, dtype, sum, quantization)


def _scatters(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, rows: Sequence[int] | None,
              **numbers_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _epilogue_run("gemm_reduce_scatter", "abc", (a, b), b.shape[1], comm, _tensors(*stages), rows=(rows,), **numbers_)


def _scatters_fake(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, sum: bool, quantization: str, rows: Sequence[int] | None,
                   dtype: torch.dtype | None = None, **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    c = find(comm)
    return _fake(batch_parts(a.shape[0], rows, c.size)[c.rank], b.shape[1], (a, b), stages, dtype, sum, quantization)


def _gathers(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, rows: Sequence[int] | None,
             **numbers_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _epilogue_run("all_gather_gemm", "abc", (a, b), b.shape[1], comm, _tensors(*stages), gathered=(rows,), **numbers_)


def _gathers_fake(a: Tensor, b: Tensor, comm: str, *stages: Tensor | None, sum: bool, quantization: str, rows: Sequence[int] | None,
                  dtype: torch.dtype | None = None, **others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m = a.shape[0] * find(comm).size if rows is None else builtins.sum(rows)
    return _fake(m, b.shape[1], (a, b), stages, dtype, sum, quantization)


_RESULTS = " -> (Tensor, Tensor, Tensor, Tensor)"
KERNELS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "all_reduce_epilogue": (_all, _all_fake, f"(Tensor x, str comm, {_STAGES}){_RESULTS}"),
    "gemv_all_reduce_epilogue": (_gemv, _gemv_fake, f"(Tensor x, Tensor w, str comm, {_STAGES}){_RESULTS}"),
    "gemm_all_reduce_epilogue": (_sums, _sums_fake, f"(Tensor a, Tensor b, str comm, {_STAGES}){_RESULTS}"),
    "gemm_reduce_scatter_epilogue": (_scatters, _scatters_fake, f"(Tensor a, Tensor b, str comm, {_STAGES}, SymInt[]? rows){_RESULTS}"),
    "all_gather_gemm_epilogue": (_gathers, _gathers_fake, f"(Tensor a, Tensor b, str comm, {_STAGES}, SymInt[]? rows){_RESULTS}"),
    "gemm_all_to_all_epilogue": (_puts, _puts_fake, f"(Tensor a, Tensor b, str comm, {_STAGES}, SymInt[]? send_rows, SymInt[]? recv_rows){_RESULTS}"),
}


def _no_derivative(name: str) -> Any:
    op = getattr(_ops, name).default

    def kernel(keyset: Any, *args: Any, **keywords: Any) -> Any:
        if is_forward_mode() or torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            raise ArgumentError(f"torch.ops.fcc.{name} has no derivatives", remedy=f"Call fcc.{name}(), which has.")
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **keywords)

    return kernel


for _name, (_kernel, _fake_kernel, _schema) in KERNELS.items():
    lib.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))
    for _key in ("CPU", "CUDA"):
        lib.impl(_name, _kernel, _key)
    _packets.made_of[_name] = _name.removesuffix("_epilogue")
    _packets.kernels[_name] = _kernel
    torch.library.register_fake(f"fcc::{_name}", _packets.shapes_only(_name, _packets.traced(_fake_kernel)), lib=lib)
    _register_effectful_op(getattr(_ops, _name).default, _EffectType.ORDERED)
    lib.impl(_name, _no_derivative(_name), "Autograd", with_keyset=True)
    getattr(_ops, _name).__class__ = _packets.Packet
