# SPDX-License-Identifier: MIT
"""Products with an epilogue: what follows the sum in the same operator, up to a norm and a result in float8_e4m3fn.

    normed, h, *_ = fcc.gemv_all_reduce_epilogue(x, w, fcc.Epilogue(residual=h, norm="rms", norm_weight=weight, norm_eps=1e-5, sum=True))

Where no derivative is wanted, that is one operator on cpu devices, and on GPUs where the ranks launch it. Otherwise it is the operator with its bias and
residual, and torch's functions behind it (Epilogue.fuses() says which).
"""
from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from . import _packets, communicator
from ._calls import FLOATS, WRONG_KIND, check_floats, dense, numbers, run, schedule_number
from ._dispatch import is_forward_mode, lib
from ._epilogue_checks import check_rows, kind_wrong, kinds_of, number_wrong, shape_wrong, two_factors
from ._factors import F8 as _F8, Factor, Factors, check_factor, dequantised, factors_wrong, found_of, in_own_words, result_dtype
from ._library import ABSENT, ACTIVATIONS, EPILOGUE, NORMS, QUANTIZATIONS, SCHEDULES, library
from ._staging import place, place_anywhere
from .communicator import Communicator, Expected, find, refuse
from .errors import ArgumentError, Error
from .memory import stream_of
from .ops import LAUNCHED, batch_parts, gathered_rows, gemm_rows, scattered_rows

__all__ = ["Epilogue", "EpilogueResult", "all_gather_gemm_epilogue", "all_reduce_epilogue", "gemm_all_reduce_epilogue", "gemm_all_to_all_epilogue",
           "gemm_reduce_scatter_epilogue", "gemv_all_reduce_epilogue"]

_ops = torch.ops.fcc
_F8_MOST = 448.0
_LAUNCHED = ("gemv_all_reduce", "gemm_all_to_all", "all_reduce")  # what ranks launch on GPUs with any epilogue
_ADDED = 5  # of an operator's stages, those with the result's dtype
_ORDER = ("bias", "residual", "sum", "norm_weight", "norm_bias", "gate", "quantized", "quantized_scale", "x_scale", "w_scale")  # of struct fcc_epilogue


@dataclass(frozen=True)
class Epilogue:
    """What an operator does with each element of its sum, in float32 and in this order. What is left out is not done.

    1. bias [N] and residual, of the result's shape (gemm_all_to_all: of this rank's rows of a), are added
    2. with norm or sum: rounded to the dtype. sum=True: that is returned, too
    3. norm: "rms" or "layer", over each row, with norm_eps, times norm_weight [N], plus norm_bias [N] ("layer" only)
    4. activation: "relu", "gelu", "gelu_tanh" or "silu"; times silu(gate), a tensor like residual; times scale, which is not 0
    5. rounded to the dtype
    6. quantization: "row" or "static": the result divided by a scale, as float8_e4m3fn, saturated at 448. "row": each row's scale is its
       greatest magnitude, NaNs aside, divided by 448, or 1 where that is 0. "static": quantized_scale, float32 [1]

    Of products either factor may be float8_e4m3fn, or both. Its elements then stand for their values times a scale, float32: x_scale is of the first
    factor (x, a), w_scale of the second (w, b). The shape says what shares one: [1] or [], all; [M] or [M, 1], a row of x and a; [N], also [N, 1] of w
    and [1, N] of b, a row of w or a column of b; [ceil(rows / 128), ceil(columns / 128)], a block of 128 x 128; of the first factor also
    [M, ceil(K / 128)], 128 elements of a row. dtype is then the result's: float32, float16 or bfloat16; None: that of the other factor if it
    is not float8_e4m3fn, or of bias, residual, gate, norm_weight or norm_bias, the first that is given, or bfloat16.

    All ranks have the same stages and numbers. Of all-reduces bias, residual and gate have the same values on all ranks.
    """

    bias: Tensor | None = None
    residual: Tensor | None = None
    sum: bool = False
    norm: str | None = None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    norm_eps: float = 0.0
    activation: str | None = None
    gate: Tensor | None = None
    scale: float = 1.0
    quantization: str | None = None
    quantized_scale: Tensor | None = None
    x_scale: Tensor | None = None
    w_scale: Tensor | None = None
    dtype: torch.dtype | None = None

    def fuses(self, op: str, comm: Communicator | None = None, *factors: Tensor) -> bool:
        """Whether a call of the operator ("gemv_all_reduce", ...) with these factors is one call of the C library: on cpu devices, and of what the
        ranks launch themselves on GPUs (all but gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm), without derivatives and without autocast.
        With factors in float8_e4m3fn also what fccd launches on GPUs (all but all_gather_gemm), if bias and residual are all that
        follows."""
        comm = comm or communicator.default()
        in_f8 = any(factor.dtype == _F8 for factor in factors)
        adds_only = not (self.norm or self.sum or self.activation or self.quantization or self.gate is not None or self.scale != 1.0)
        there = comm.device.type == "cpu" or op in _LAUNCHED and comm._member.launches() or in_f8 and adds_only and op != "all_gather_gemm"
        tensors = (*factors, self.bias, self.residual, self.norm_weight, self.norm_bias, self.gate, self.x_scale, self.w_scale)
        wants = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
        forward_mode = not torch.compiler.is_compiling() and is_forward_mode()  # compilers cannot trace the question
        return there and not (wants or torch.is_autocast_enabled(comm.device.type) or forward_mode)


_ARGUMENT_KINDS = kinds_of(Epilogue.__annotations__)


class EpilogueResult(NamedTuple):
    """y: the result. sum, quantized, quantized_scale: None where the epilogue does not ask for them. quantized_scale: float32 [M] ("row") or the
    given one."""

    y: Tensor
    sum: Tensor | None
    quantized: Tensor | None
    quantized_scale: Tensor | None


# ---- torch.ops.fcc.*_epilogue: without derivatives ----

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
        for result, wanted, its, kind in (("sum", wants_sum, (m, n), dtype), ("quantized", bool(quantization), (m, n), _F8),
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
    launched = op in _LAUNCHED and schedule in LAUNCHED and c._member.launches()
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
        y = call.results("out" if len(factors) == 1 else names[2], m, n, result_dtype(dtype, factors, tuple(tensors.values())[:_ADDED]), sum, quantization)
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
    like = factors[0].new_empty(0, dtype=result_dtype(dtype, factors, stages[:_ADDED]))
    return (like.new_empty((m, n)), like.new_empty((m, n) if wants_sum else 0),
            like.new_empty((m, n) if quantization else 0, dtype=_F8),
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


# ---- the functions ----

def _checked(comm: Communicator, op: str, epilogue: Epilogue, rows: int, cols: int, factors: tuple[Factor, ...]) -> None:
    """Refuses, on all ranks, what an operator without norm and gate would not see, behind which torch's functions stand. The result of what the
    rank computes has rows x cols elements."""
    e, said = epilogue, f"rank {comm.rank}: {op}: "
    wrong = None
    if not isinstance(epilogue, Epilogue):
        wrong = f"epilogue: {type(epilogue).__name__}: allowed is an fcc.Epilogue"
    elif kind := kind_wrong(_ARGUMENT_KINDS, epilogue):
        wrong = kind
    elif (e.norm or "") not in NORMS:
        wrong = f"norm: \"{e.norm}\": allowed are None, rms, layer"
    elif (e.activation or "") not in ACTIVATIONS:
        wrong = f"activation: \"{e.activation}\": allowed are None, relu, gelu, gelu_tanh, silu"
    elif (e.quantization or "") not in QUANTIZATIONS:
        wrong = f"quantization: \"{e.quantization}\": allowed are None, static, row"
    elif e.norm is None and e.norm_weight is not None:
        wrong = "norm_weight: given: allowed only with a norm"
    elif e.norm != "layer" and e.norm_bias is not None:
        wrong = "norm_bias: given: allowed only with norm \"layer\""
    elif (e.quantization == "static") != (e.quantized_scale is not None):
        wrong = "quantized_scale: needed with quantization \"static\", and allowed only there"
    elif op == "gemm_all_to_all" and e.gate is not None and (e.norm or e.sum):
        wrong = "gate: given: allowed only without norm and sum, where rows go to other ranks"
    else:
        added = (("bias", e.bias, (cols,)), ("residual", e.residual, (rows, cols))) if op == "all_reduce" else ()  # a product checks its own
        wrong = (factors_wrong(e.x_scale, e.w_scale, e.dtype, factors) or number_wrong(e.norm_eps, e.scale)
                 or shape_wrong([*added, ("norm_weight", e.norm_weight, (cols,)), ("norm_bias", e.norm_bias, (cols,)),
                                  ("gate", e.gate, (rows, cols)), ("quantized_scale", e.quantized_scale, (1,))]))
    if wrong:
        raise refuse(comm, op, ArgumentError(said + wrong))


def _quantized(y: Tensor, e: Epilogue) -> tuple[Tensor | None, Tensor | None]:
    if e.quantization is None:
        return None, None
    wide = y.detach().float()
    if e.quantization == "row":
        by = wide.abs().nan_to_num(0.0, posinf=torch.inf).amax(1) / wide.new_full((), _F8_MOST) if wide.shape[1] else wide.new_zeros(len(wide))
        scale = torch.where(by > 0, by, torch.ones_like(by))
    else:
        assert e.quantized_scale is not None
        scale = e.quantized_scale
    return (wide / (scale[:, None] if e.quantization == "row" else scale)).clamp(-_F8_MOST, _F8_MOST).to(_F8), scale


def _behind(z: Tensor, e: Epilogue) -> EpilogueResult:
    """The stages behind a bias and a residual, by torch's functions."""
    y = z
    if e.norm or e.activation or e.gate is not None or e.scale != 1.0:
        wide = z.float()
        if e.norm:
            weight = None if e.norm_weight is None else e.norm_weight.float()
            bias = None if e.norm_bias is None else e.norm_bias.float()
            shape = (z.shape[1],)
            wide = (torch.nn.functional.rms_norm(wide, shape, weight, e.norm_eps) if e.norm == "rms" else
                    torch.nn.functional.layer_norm(wide, shape, weight, bias, e.norm_eps))
        f = torch.nn.functional
        wide = (f.relu(wide) if e.activation == "relu" else f.gelu(wide) if e.activation == "gelu" else
                f.gelu(wide, approximate="tanh") if e.activation == "gelu_tanh" else f.silu(wide) if e.activation == "silu" else wide)
        if e.gate is not None:
            wide = wide * f.silu(e.gate.float())
        y = (wide * e.scale).to(z.dtype)
    return EpilogueResult(y, z if e.sum else None, *_quantized(y, e))


def _result(e: Epilogue, y: Tensor, total: Tensor, quantized: Tensor, scale: Tensor) -> EpilogueResult:
    return EpilogueResult(y, total if e.sum else None, quantized if e.quantization else None,
                          e.quantized_scale if e.quantization == "static" else scale if e.quantization else None)


def _stages(e: Epilogue, found: Factors | None = None) -> tuple[Tensor | None, ...]:
    own = () if found is None else (found.x_scale, found.w_scale)
    return e.bias, e.residual, e.gate, e.norm_weight, e.norm_bias, e.quantized_scale, *own


def _numbers(e: Epilogue, schedule: str) -> dict[str, Any]:
    return {"sum": e.sum, "norm": e.norm or "", "norm_eps": e.norm_eps, "activation": e.activation or "", "scale": e.scale,
            "quantization": e.quantization or "", "schedule": schedule}


def _product(op: str, comm: Communicator, x: Tensor, w: Tensor, e: Epilogue, schedule: str,
             count: int | None = None, **rows: Sequence[int] | None) -> tuple[EpilogueResult | None, Tensor, Tensor]:
    """The result, where the operator has the epilogue; otherwise None, and the factors in the result's dtype, which torch's functions go on with.
    count: rows that this rank computes, if they are not those of x."""
    factors = two_factors(comm, op, x, w)
    m = x.shape[0] if count is None else count
    if op == "gemm_reduce_scatter":  # wrong rows are told by the operator
        own = rows.get("rows")
        m = (own[comm.rank] if own is not None and comm.rank < len(own) else batch_parts(m, None, comm.size)[comm.rank])
    _checked(comm, op, e, m, w.shape[0 if factors[1].by_row else 1], factors)
    found = found_of(e.x_scale, e.w_scale, e.dtype, factors, _stages(e)[:_ADDED])
    if not e.fuses(op, comm, x, w):
        return None, *dequantised(factors, found)
    fused = getattr(_ops, f"{op}_epilogue")
    return _result(e, *fused(x, w, comm.name, *_stages(e, found), **_numbers(e, schedule), **rows, dtype=found.dtype)), x, w


def gemv_all_reduce_epilogue(x: Tensor, w: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *, replicated: bool = True,
                             schedule: str = "auto") -> EpilogueResult:
    """gemv_all_reduce(), and what follows it.

    Args:
        x, w, comm, replicated, schedule: as gemv_all_reduce()'s
        epilogue: what follows the sum, the same on all ranks

    Returns: EpilogueResult, of [M][N] tensors of x's dtype (fcc.Epilogue has what it is of factors in float8_e4m3fn); the same bits on all
        ranks, in every run. y and sum have gradients, but for factors in float8_e4m3fn.

    Raises: as gemv_all_reduce().
    """
    comm = comm or communicator.default()
    result, x, w = _product("gemv_all_reduce", comm, x, w, epilogue, schedule)
    return result or _behind(_ops.gemv_all_reduce(x, w, comm.name, epilogue.bias, epilogue.residual, replicated=replicated, schedule=schedule), epilogue)


def all_reduce_epilogue(x: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *, replicated: bool = True,
                        schedule: str = "auto") -> EpilogueResult:
    """all_reduce(x), the sum of [M][N] matrices, float32, float16 or bfloat16, and what follows it. Args, returns, raises: as
    gemv_all_reduce_epilogue()."""
    comm = comm or communicator.default()
    if not isinstance(x, Tensor) or x.ndim != 2:
        shown = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise refuse(comm, "all_reduce", ArgumentError(f"rank {comm.rank}: all_reduce: x: {shown}: allowed are matrices"))
    _checked(comm, "all_reduce", epilogue, x.shape[0], x.shape[1], ())
    for name, tensor in ("bias", epilogue.bias), ("residual", epilogue.residual):
        if isinstance(tensor, Tensor) and tensor.dtype != x.dtype:
            raise refuse(comm, "all_reduce", ArgumentError(f"rank {comm.rank}: all_reduce: {name}: {tensor.dtype}: allowed is {x.dtype} (x's)"))
    if epilogue.fuses("all_reduce", comm, x):
        return _result(epilogue, *_ops.all_reduce_epilogue(x, comm.name, *_stages(epilogue), **_numbers(epilogue, schedule)))
    z = _ops.all_reduce(x, comm.name, replicated=replicated)
    for stage in (epilogue.bias, epilogue.residual):
        z = z if stage is None else z + stage
    return _behind(z, epilogue)


def gemm_all_reduce_epilogue(a: Tensor, b: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *, replicated: bool = True,
                             schedule: str = "auto") -> EpilogueResult:
    """gemm_all_reduce(), and what follows it. Args, returns, raises: as gemv_all_reduce_epilogue(); a and b are gemm_all_reduce()'s."""
    comm = comm or communicator.default()
    result, a, b = _product("gemm_all_reduce", comm, a, b, epilogue, schedule)
    return result or _behind(_ops.gemm_all_reduce(a, b, comm.name, epilogue.bias, epilogue.residual, replicated=replicated, schedule=schedule), epilogue)


def gemm_reduce_scatter_epilogue(a: Tensor, b: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *,
                                 rows: Sequence[int] | None = None, schedule: str = "auto") -> EpilogueResult:
    """gemm_reduce_scatter(), and what follows it, of the rows that this rank gets: with its own tensors, whose rows are those.

    Args: a, b, comm, rows, schedule: as gemm_reduce_scatter()'s. epilogue: as gemv_all_reduce_epilogue()'s
    Returns: EpilogueResult, of [rows[rank]][N] tensors. Raises: as gemm_reduce_scatter().
    """
    comm = comm or communicator.default()
    result, a, b = _product("gemm_reduce_scatter", comm, a, b, epilogue, schedule, rows=rows)
    return result or _behind(_ops.gemm_reduce_scatter(a, b, comm.name, epilogue.bias, epilogue.residual, rows=rows, schedule=schedule), epilogue)


def all_gather_gemm_epilogue(a: Tensor, b: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *,
                             rows: Sequence[int] | None = None, schedule: str = "auto") -> EpilogueResult:
    """all_gather_gemm(), and what follows it. All tensors are of this rank's result; x_scale is of its own rows of a.

    Args: a, b, comm, rows, schedule: as all_gather_gemm()'s. epilogue: as gemv_all_reduce_epilogue()'s
    Returns: EpilogueResult, of [M][N_r] tensors. Raises: as all_gather_gemm().
    """
    comm = comm or communicator.default()
    count = None
    if isinstance(a, Tensor) and a.ndim == 2:  # otherwise it is refused as a factor
        try:
            count = sum(gathered_rows(comm, a.shape[0], rows))
        except Exception as e:
            raise refuse(comm, "all_gather_gemm", e) from None
    result, a, b = _product("all_gather_gemm", comm, a, b, epilogue, schedule, count, rows=rows)
    if result:
        return result
    keeps = torch.is_grad_enabled() and b.requires_grad
    return _behind(_ops.all_gather_gemm(a, b, comm.name, epilogue.bias, epilogue.residual, rows=rows, gathered=keeps, schedule=schedule)[0], epilogue)


def gemm_all_to_all_epilogue(a: Tensor, b: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *,
                             send_rows: Sequence[int] | None = None, recv_rows: Sequence[int] | None = None,
                             schedule: str = "auto") -> EpilogueResult:
    """gemm_all_to_all(), and what follows it. bias, residual and gate are of the rows that this rank computes, the norm, sum and quantization of
    those that it gets.

    Args: a, b, comm, send_rows, recv_rows, schedule: as gemm_all_to_all()'s. epilogue: as gemv_all_reduce_epilogue()'s
    Returns: EpilogueResult, of [sum of recv_rows][N] tensors. Raises: as gemm_all_to_all().
    """
    comm = comm or communicator.default()
    result, a, b = _product("gemm_all_to_all", comm, a, b, epilogue, schedule, send_rows=send_rows, recv_rows=recv_rows)
    return result or _puts_behind(a, b, epilogue, comm, send_rows, recv_rows, schedule)


def _puts_behind(a: Tensor, b: Tensor, e: Epilogue, comm: Communicator, send_rows: Sequence[int] | None, recv_rows: Sequence[int] | None,
                 schedule: str) -> EpilogueResult:
    """The gate goes with the rows: so what belongs to each element is computed before they are sent, where there is a gate."""
    if e.gate is None:
        return _behind(_ops.gemm_all_to_all(a, b, comm.name, e.bias, e.residual, send_rows=send_rows, recv_rows=recv_rows, schedule=schedule), e)
    z = a @ b
    for stage in (e.bias, e.residual):
        z = z if stage is None else z + stage
    z = _behind(z, Epilogue(activation=e.activation, gate=e.gate, scale=e.scale)).y
    y = _ops.rows_all_to_all(z, *gemm_rows(comm, a.shape[0], send_rows, recv_rows), comm.name)
    return EpilogueResult(y, None, *_quantized(y, e))
