# SPDX-License-Identifier: MIT
"""Autograd for torch.ops.fcc.*: backward and forward mode, both differentiable again, eager and in torch.func's transformations. The
formulas are in derivatives.py.

Derivatives are collective. So the same inputs require gradients on all ranks, and in forward mode either all ranks have an input with a
tangent, or none.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from .._dispatch import autocast_keys, is_forward_mode, lib, plain
from .._communicator.refusals import TOLD
from ..ops import KERNELS
from .derivatives import DERIVATIVES, Derivative

ops = torch.ops.fcc


def function_of(name: str, op: Any, derivative: Derivative) -> Any:
    """The node of autograd's graph, for a single level. torch.func's transformations reach an operator level by level through the
    dispatcher, so nothing is to be done for them here. (torch.autograd.Function would go through them a second time.)"""

    class Function(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *args_keyset_keywords: Any) -> Tensor:
            *args, keyset, keywords, gradients, forward_mode, done = args_keyset_keywords
            # Derivatives are off here for this level, but not for torch.func's levels below.
            with torch.set_grad_enabled(gradients), forward_ad._set_fwd_grad_enabled(True), torch._C._AutoDispatchBelowAutograd():
                result = op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **keywords)
            done.append(True)
            ctx.inputs = len(args_keyset_keywords)
            saved = derivative.save(ctx, result, *args, **keywords)
            ctx.save_for_backward(*saved)
            if forward_mode:
                ctx.save_for_forward(*saved)
            return result

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> tuple:
            # the dtypes are those that forward chose, also if backward() is called under autocast
            with torch._C._ExcludeDispatchKeyGuard(autocast_keys):
                found = derivative.backward(ctx, ctx.saved_tensors, *grads)
            return *found, *(None,) * (ctx.inputs - len(found))

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Tensor:
            # Saved tensors have their tangents. Without tangents forward mode can be on, for torch.func's levels below.
            saved = [None if t is None else forward_ad.unpack_dual(t, level=0).primal for t in ctx.saved_tensors]
            with forward_ad._set_fwd_grad_enabled(True):
                return derivative.tangent(ctx, tuple(saved), *tangents)

    Function.__name__ = Function.__qualname__ = f"{name}_backward"
    return Function


def _any_requires_grad(*args: Any) -> bool:
    return any(isinstance(arg, Tensor) and arg.requires_grad for arg in args)


def differentiable(name: str, run: Callable[..., Tensor], derivative: Derivative) -> Callable[..., Tensor]:
    """What the dispatcher calls first. Like torch.library.register_autograd(), but with forward mode, and with a short way for calls
    that want no derivative: they do not pass the dispatcher a second time, which would take longer than all the rest."""
    op = getattr(ops, name).default
    function = function_of(name, op, derivative)
    any_requires_grad = getattr(torch._C, "_any_requires_grad", _any_requires_grad)  # older versions have it elsewhere, or not
    is_grad_enabled = torch.is_grad_enabled
    is_transformed = torch._C._are_functorch_transforms_active

    def apply(keyset: Any, args: tuple, keywords: dict[str, Any], forward_mode: bool) -> Tensor:
        done: list[bool] = []
        try:
            if not is_transformed():
                return function.apply(*args, keyset, keywords, is_grad_enabled(), forward_mode, done)
            with enable_single_level_autograd_function():
                return function.apply(*args, keyset, keywords, is_grad_enabled(), forward_mode, done)
        except Exception as e:
            if done:  # autograd may refuse to save a tensor, such as an inference tensor; the operator has run on all ranks then
                setattr(e, TOLD, True)
            raise

    def kernel(keyset: Any, *args: Any, **keywords: Any) -> Tensor:
        if forward_ad._current_level >= 0:
            return apply(keyset, args, keywords, True)
        if keyset.raw_repr() in plain:
            if is_grad_enabled() and any_requires_grad(*args):
                return apply(keyset, args, keywords, False)
            return run(*args, **keywords)
        forward_mode = is_forward_mode()
        if forward_mode or is_grad_enabled() and any_requires_grad(*args):
            return apply(keyset, args, keywords, forward_mode)
        with torch._C._AutoDispatchBelowAutograd():
            return op.redispatch(keyset & torch._C._after_autograd_keyset, *args, **keywords)

    return kernel


for _name, (_run, _fake, _schema) in KERNELS.items():
    lib.impl(_name, differentiable(_name, _run, DERIVATIVES[_name]), "Autograd", with_keyset=True)
