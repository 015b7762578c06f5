# SPDX-License-Identifier: MIT
"""Products with an epilogue: what follows the sum in the same operator, up to a norm and a result in float8_e4m3fn.

    normed, h, *_ = fcc.gemv_all_reduce_epilogue(x, w, fcc.Epilogue(residual=h, norm="rms", norm_weight=weight, norm_eps=1e-5, sum=True))

Where no derivative is wanted, that is one operator on cpu devices, and on GPUs where the ranks launch it. Otherwise it is the operator with its bias and
residual, and torch's functions behind it (Epilogue.fuses() says which).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import communicator
from ._dispatch import is_forward_mode
from ._epilogues.checks import kind_wrong, kinds_of, number_wrong, shape_wrong, two_factors
from ._epilogues.kernels import ADDED, ON_GPUS
from ._factors import F8 as _F8, Factor, Factors, dequantised, factors_wrong, found_of
from ._library import ACTIVATIONS, NORMS, QUANTIZATIONS
from ._communicator.refusals import refuse
from .communicator import Communicator
from .errors import ArgumentError
from .ops import batch_parts, gathered_rows, gemm_rows

__all__ = ["Epilogue", "EpilogueResult", "all_gather_gemm_epilogue", "all_reduce_epilogue", "gemm_all_reduce_epilogue", "gemm_all_to_all_epilogue",
           "gemm_reduce_scatter_epilogue", "gemv_all_reduce_epilogue"]

_ops = torch.ops.fcc
_F8_MOST = 448.0


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
        comm = communicator.chosen(comm, "Epilogue.fuses")
        in_f8 = any(factor.dtype == _F8 for factor in factors)
        adds_only = not (self.norm or self.sum or self.activation or self.quantization or self.gate is not None or self.scale != 1.0)
        there = comm.device.type == "cpu" or op in ON_GPUS and comm._member.launches() or in_f8 and adds_only and op != "all_gather_gemm"
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
    found = found_of(e.x_scale, e.w_scale, e.dtype, factors, _stages(e)[:ADDED])
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
    comm = communicator.chosen(comm, "gemv_all_reduce_epilogue")
    result, x, w = _product("gemv_all_reduce", comm, x, w, epilogue, schedule)
    return result or _behind(_ops.gemv_all_reduce(x, w, comm.name, epilogue.bias, epilogue.residual, replicated=replicated, schedule=schedule), epilogue)


def all_reduce_epilogue(x: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *, replicated: bool = True,
                        schedule: str = "auto") -> EpilogueResult:
    """all_reduce(x), the sum of [M][N] matrices, float32, float16 or bfloat16, and what follows it. Args, returns, raises: as
    gemv_all_reduce_epilogue()."""
    comm = communicator.chosen(comm, "all_reduce_epilogue")
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
    comm = communicator.chosen(comm, "gemm_all_reduce_epilogue")
    result, a, b = _product("gemm_all_reduce", comm, a, b, epilogue, schedule)
    return result or _behind(_ops.gemm_all_reduce(a, b, comm.name, epilogue.bias, epilogue.residual, replicated=replicated, schedule=schedule), epilogue)


def gemm_reduce_scatter_epilogue(a: Tensor, b: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *,
                                 rows: Sequence[int] | None = None, schedule: str = "auto") -> EpilogueResult:
    """gemm_reduce_scatter(), and what follows it, of the rows that this rank gets: with its own tensors, whose rows are those.

    Args: a, b, comm, rows, schedule: as gemm_reduce_scatter()'s. epilogue: as gemv_all_reduce_epilogue()'s
    Returns: EpilogueResult, of [rows[rank]][N] tensors. Raises: as gemm_reduce_scatter().
    """
    comm = communicator.chosen(comm, "gemm_reduce_scatter_epilogue")
    result, a, b = _product("gemm_reduce_scatter", comm, a, b, epilogue, schedule, rows=rows)
    return result or _behind(_ops.gemm_reduce_scatter(a, b, comm.name, epilogue.bias, epilogue.residual, rows=rows, schedule=schedule), epilogue)


def all_gather_gemm_epilogue(a: Tensor, b: Tensor, epilogue: Epilogue, comm: Communicator | None = None, *,
                             rows: Sequence[int] | None = None, schedule: str = "auto") -> EpilogueResult:
    """all_gather_gemm(), and what follows it. All tensors are of this rank's result; x_scale is of its own rows of a.

    Args: a, b, comm, rows, schedule: as all_gather_gemm()'s. epilogue: as gemv_all_reduce_epilogue()'s
    Returns: EpilogueResult, of [M][N_r] tensors. Raises: as all_gather_gemm().
    """
    comm = communicator.chosen(comm, "all_gather_gemm_epilogue")
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
    comm = communicator.chosen(comm, "gemm_all_to_all_epilogue")
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
