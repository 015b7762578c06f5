# SPDX-License-Identifier: MIT
"""SGD, as torch.optim has it."""
from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .._programs.program import Program
from ..communicator import Communicator
from ._sharded import BOOLEAN, NOT_NEGATIVE, ONLY_FALSE, ShardedOptimizer, arguments_check

_TEXT = """program sgd(N)
in g: {dtype}[N] local
{p} p: {dtype}[N] replicated
{state}scalar lr, scale, decay{numbers}

s = reduce_scatter(g)
a = {gradient} * scale + decay * {before}
{momentum}new = {before} - lr * {way}
{master}p = all_gather({result})

schedule
fuse s, a, {fused}new, {w}p as step
"""


class SGD(ShardedOptimizer):
    """torch.optim.SGD of gradients that are not reduced yet: fcc.optim has what holds for all.

    Args: params, lr, momentum, dampening, weight_decay, nesterov, maximize: as torch's; the others as fcc.optim.Adam's.
    """

    def __init__(self, params: Any, lr: Any = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0, nesterov: bool = False, *,
                 maximize: bool = False, foreach: bool | None = None, differentiable: bool = False, fused: bool | None = None,
                 capturable: bool = False, comm: Communicator | None = None, reduction: str = "mean", grads_in_place: bool = False) -> None:
        arguments_check("SGD", ("lr", lr, *NOT_NEGATIVE), ("momentum", momentum, *NOT_NEGATIVE), ("weight_decay", weight_decay, *NOT_NEGATIVE),
                        ("dampening", dampening, "a number", lambda value: math.isfinite(value)), ("differentiable", differentiable, *ONLY_FALSE),
                        ("capturable", capturable, *BOOLEAN),
                        ("nesterov", nesterov, "True only with momentum and without dampening", lambda value: not value or momentum > 0 and dampening == 0))
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov, maximize=maximize,
                                      foreach=foreach, differentiable=differentiable, fused=fused), comm, reduction, grads_in_place, capturable)

    def _state_names(self, group: dict[str, Any]) -> Iterable[str]:
        return ("m",) if group["momentum"] else ()

    def _torch_names(self) -> dict[str, str]:
        return {"m": "momentum_buffer", "w": "master"}

    def _way(self, group: dict[str, Any]) -> tuple[bool, ...]:
        return bool(group["momentum"]), bool(group["nesterov"])

    def _program(self, group: dict[str, Any], dtype: str) -> Program:
        mixed, momentum = dtype != "f32", bool(group["momentum"])
        state = ", ".join([*(["m"] if momentum else []), *(["w"] if mixed else [])])
        return Program(_TEXT.format(
            dtype=dtype, p="out" if mixed else "inout", state=f"inout {state}: f32[N] sliced(0)\n" if state else "",
            numbers=", momentum, taken" if momentum else "", before="w" if mixed else "p", gradient="f32(s)" if mixed else "s",
            momentum="m = momentum * m + taken * a\n" if momentum else "",
            way="(a + momentum * m)" if group["nesterov"] else "m" if momentum else "a", master="w = new\n" if mixed else "",
            result=f"{dtype}(w)" if mixed else "new", fused="m, " if momentum else "", w="w, " if mixed else ""))

    def _numbers(self, group: dict[str, Any], step: int) -> dict[str, float]:
        found = {"lr": float(group["lr"]), "decay": float(group["weight_decay"])}
        if group["momentum"]:  # the first step takes the gradient as it is
            found |= {"momentum": float(group["momentum"]), "taken": 1.0 if step == 1 else 1 - float(group["dampening"])}
        return found
