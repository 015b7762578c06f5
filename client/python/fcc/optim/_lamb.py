# SPDX-License-Identifier: MIT
"""LAMB, whose steps of each parameter are scaled by its norms."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._programs.program import Program
from ..communicator import Communicator
from ._sharded import BETAS, BOOLEAN, NOT_NEGATIVE, ShardedOptimizer, Unit, arguments_check

# Of a unit's parameters (T of them, with what aligns each: 0, which no norm sees). m and v are the averages, w the parameters in float32; c1 and root
# have the corrections of the bias.
_TEXT = """program lamb(N, T)
in g: {dtype}[N] local
{p} p: {dtype}[N] replicated scattered(T)
inout {state}: f32[N] sliced(0) scattered(T)
scalar lr, c1, root, beta1, beta2, epsilon, scale, decay

s = reduce_scatter(g)
a = {gradient} * scale
m = beta1 * m + (1 - beta1) * a
v = beta2 * v + (1 - beta2) * a * a
u = m / c1 / (sqrt(v) / root + epsilon) + decay * {before}
wide = tensor_norm({before})
long = tensor_norm(u)
ratio = select(wide > 0, select(long > 0, wide / long, 1), 1)
new = {before} - lr * ratio * u
{master}p = all_gather({result})

schedule
fuse s, a, m, v, u as moments
fuse wide, long as norms
fuse new, {w}p as step
"""


class LAMB(ShardedOptimizer):
    """LAMB (You et al., ICLR 2020) of gradients that are not reduced yet: fcc.optim has what holds for all.

    Each parameter's step is Adam's, with decoupled weight decay: u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p. It is scaled by
    the parameter's norm over the step's, or by 1 where one of these is 0 or NaN: p -= lr * (|p| / |u|) * u. The state has torch.optim.Adam's names.

    Args:
        params, lr, betas, eps, weight_decay, maximize: as torch.optim.AdamW's. Parameters with a norm of their own are those of params: a tensor each
        bias_correction: False: m and v as they are
        capturable, comm, reduction, grads_in_place: as fcc.optim.Adam's
    """

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6, weight_decay: float = 0, *,
                 bias_correction: bool = True, maximize: bool = False, capturable: bool = False, comm: Communicator | None = None, reduction: str = "mean",
                 grads_in_place: bool = False) -> None:
        arguments_check(type(self).__name__, ("lr", lr, *NOT_NEGATIVE), ("eps", eps, *NOT_NEGATIVE), ("betas", betas, *BETAS),
                        ("weight_decay", weight_decay, *NOT_NEGATIVE), ("capturable", capturable, *BOOLEAN))
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction, maximize=maximize), comm, reduction,
                         grads_in_place, capturable)

    _most = 1024  # tensors of a table

    def _sizes(self, parameters: int) -> dict[str, int]:
        return {"T": parameters}

    def _made(self, unit: Unit) -> None:
        ends = [*unit.begins[1:], unit.size]
        unit.run.table([end - begin for begin, end in zip(unit.begins, ends)])

    def _state_names(self, group: dict[str, Any]) -> Iterable[str]:
        return ("m", "v")

    def _torch_names(self) -> dict[str, str]:
        return {"m": "exp_avg", "v": "exp_avg_sq", "w": "master"}

    def _program(self, group: dict[str, Any], dtype: str) -> Program:
        mixed = dtype != "f32"
        return Program(_TEXT.format(dtype=dtype, p="out" if mixed else "inout", state="m, v, w" if mixed else "m, v", before="w" if mixed else "as_slice(p, 0)",
                                    gradient="f32(s)" if mixed else "s", master="w = new\n" if mixed else "", result=f"{dtype}(w)" if mixed else "new",
                                    w="w, " if mixed else ""))

    def _numbers(self, group: dict[str, Any], step: int) -> dict[str, float]:
        beta1, beta2 = (float(b) for b in group["betas"])
        corrected = group["bias_correction"]
        return {"lr": float(group["lr"]), "c1": 1 - beta1**step if corrected else 1, "root": (1 - beta2**step)**0.5 if corrected else 1, "beta1": beta1, "beta2": beta2,
                "epsilon": group["eps"], "decay": float(group["weight_decay"])}
