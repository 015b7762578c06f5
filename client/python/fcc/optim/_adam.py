# SPDX-License-Identifier: MIT
"""Adam and AdamW, as torch.optim has them."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._programs.program import Program
from ..communicator import Communicator
from ._sharded import BETAS, BOOLEAN, NOT_NEGATIVE, ONLY_FALSE, ShardedOptimizer, arguments_check

# PyTorch's Adam: m and v are the averages, u the largest v so far, w the parameters in float32. lr and root have the corrections of the bias.
_TEXT = """program adam(N)
in g: {dtype}[N] local
{p} p: {dtype}[N] replicated
inout {state}: f32[N] sliced(0)
scalar lr, root, beta1, beta2, epsilon, scale, decay, keep

s = reduce_scatter(g)
a = {gradient} * scale + decay * {before}
m = beta1 * m + (1 - beta1) * a
v = beta2 * v + (1 - beta2) * a * a
{largest}new = {before} * keep - lr * m / (sqrt({v}) / root + epsilon)
{master}p = all_gather({result})

schedule
fuse s, a, m, v, {fused}new, {w}p as step
"""


class Adam(ShardedOptimizer):
    """torch.optim.Adam of gradients that are not reduced yet: fcc.optim has what holds for all.

    Args:
        params, lr, betas, eps, weight_decay, amsgrad, maximize, decoupled_weight_decay: as torch's
        foreach, fused: taken and not looked at: they say how torch computes. differentiable: False
        capturable: steps are put onto the current stream, and into CUDA graphs: fcc.optim says how
        comm: None: the default communicator
        reduction: of the ranks' gradients, "mean" or "sum"
        grads_in_place: gradients become views of the daemon's memory (zero_grad())
    """

    _decoupled = False

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0,
                 amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
                 differentiable: bool = False, fused: bool | None = None, decoupled_weight_decay: bool = False, comm: Communicator | None = None,
                 reduction: str = "mean", grads_in_place: bool = False) -> None:
        arguments_check(type(self).__name__, ("lr", lr, *NOT_NEGATIVE), ("eps", eps, *NOT_NEGATIVE), ("betas", betas, *BETAS),
                        ("weight_decay", weight_decay, *NOT_NEGATIVE), ("capturable", capturable, *BOOLEAN), ("differentiable", differentiable, *ONLY_FALSE))
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, foreach=foreach, maximize=maximize,
                                      capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=decoupled_weight_decay or self._decoupled), comm, reduction, grads_in_place, capturable)

    def _state_names(self, group: dict[str, Any]) -> Iterable[str]:
        return ("m", "v", "u") if group["amsgrad"] else ("m", "v")

    def _torch_names(self) -> dict[str, str]:
        return {"m": "exp_avg", "v": "exp_avg_sq", "u": "max_exp_avg_sq", "w": "master"}

    def _way(self, group: dict[str, Any]) -> tuple[bool, ...]:
        return (bool(group["amsgrad"]),)

    def _program(self, group: dict[str, Any], dtype: str) -> Program:
        mixed, largest = dtype != "f32", group["amsgrad"]
        return Program(_TEXT.format(
            dtype=dtype, p="out" if mixed else "inout", state=", ".join(["m", "v", *(["u"] if largest else []), *(["w"] if mixed else [])]),
            before="w" if mixed else "p", gradient="f32(s)" if mixed else "s",
            largest="u = max(u, v)\n" if largest else "", v="u" if largest else "v", master="w = new\n" if mixed else "",
            result=f"{dtype}(w)" if mixed else "new", fused="u, " if largest else "", w="w, " if mixed else ""))

    def _numbers(self, group: dict[str, Any], step: int) -> dict[str, float]:
        beta1, beta2 = (float(b) for b in group["betas"])
        lr, decay = float(group["lr"]), float(group["weight_decay"])
        decoupled = group.get("decoupled_weight_decay", self._decoupled)  # states of older releases of torch do not have it
        return {"lr": lr / (1 - beta1**step), "root": (1 - beta2**step)**0.5, "beta1": beta1, "beta2": beta2, "epsilon": group["eps"],
                "decay": 0 if decoupled else decay, "keep": 1 - lr * decay if decoupled else 1}


class AdamW(Adam):
    """torch.optim.AdamW of gradients that are not reduced yet; arguments as Adam's."""

    _decoupled = True

    def __init__(self, params: Any, lr: Any = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 amsgrad: bool = False, **others: Any) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **others)
