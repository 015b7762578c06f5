# SPDX-License-Identifier: MIT
"""The decoder layers of a tensor-parallel model: what becomes of a layer of transformers when parallelize() has changed its class.

A layer of a Llama adds its attention to the residual and norms the sum, then adds its MLP to the residual; the next layer, or the model,
norms that sum first. Here each sum and the norm behind it are one call of row_parallel_norm(). So o_proj and down_proj do not compute: they
hand their input on to the decoder layer as a Pending. And a layer hands a Sum on to the next layer: the hidden states, and with them what
the next layer's norm makes of them. Both travel as values, which torch.compile traces; nothing is kept between calls.

Somebody who has hooks on a module is to see the tensors that are there without parallelize(). Then the modules compute by themselves.
"""
from __future__ import annotations

import copyreg
import errno
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..communicator import rank_of
from ..errors import UnsupportedError
from ._linear import RowParallelLinear
from ._row_norm import rms_norm, row_parallel_norm

_ops = torch.ops.fcc


class Pending(NamedTuple):
    """The input of a LastLinear that is not computed yet."""

    x: Tensor


class Sum(NamedTuple):
    """The hidden states behind a layer, and the same normed by `norm`. (Who takes [0] of a layer's output gets the hidden states.)"""

    total: Tensor
    normed: Tensor
    norm: nn.Module


def hooked(module: nn.Module) -> bool:
    """Does anybody look at the module's inputs, outputs or gradients?"""
    everywhere = nn.modules.module
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
                or everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks or everywhere._global_backward_hooks
                or everywhere._global_backward_pre_hooks)


class LastLinear(RowParallelLinear):
    """The last layer of an attention or an MLP. Called, it returns a Pending, which the decoder layer computes; with a hook on it or on a
    module that it is in, it computes by itself."""

    inside: tuple[nn.Module, ...] = ()  # (in a tuple, a module is no part of this one)

    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        if hooked(self) or any(map(hooked, self.inside)):
            return super().forward(x)
        return Pending(x)


def joined(last: RowParallelLinear, y: Pending | Tensor, residual: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
    """(normed, sum) of the residual and what the block's last layer has made of it."""
    if isinstance(y, Pending) and not hooked(norm):
        return row_parallel_norm(last, y.x, residual, norm.weight, norm.variance_epsilon)
    if isinstance(last, LastLinear):  # otherwise it computes because its class does
        told(last, *last.inside, norm)
    total = RowParallelLinear.forward(last, y.x, residual) if isinstance(y, Pending) else residual + y
    return norm(total), total


class ParallelLayer(nn.Module):
    """Mixed into the class of a decoder layer. after: the next layer, if there is one, and the norm behind this layer's sum."""

    after: tuple[nn.Module, ...]
    comm_name: str

    def forward(self: Any, hidden_states: Sum | Tensor, **given: Any) -> Any:
        if getattr(self, "gradient_checkpointing", False) and self.training:
            rank = rank_of(self.comm_name)
            raise UnsupportedError(f"rank {rank}: parallelize: gradient checkpointing: allowed is none: layers that are run again would "
                                   "sum over the ranks again", code=errno.EOPNOTSUPP, rank=rank,
                                   remedy="Call model.gradient_checkpointing_disable().")
        if isinstance(hidden_states, Sum):
            residual = hidden_states.total
            own = hidden_states.norm is self.input_layernorm  # not so if layers were left out
            normed = hidden_states.normed if own else self.input_layernorm(residual)
        else:
            residual, normed = hidden_states, self.input_layernorm(hidden_states)
        y = self.self_attn(hidden_states=normed, **given)[0]
        normed, residual = joined(self.self_attn.o_proj, y, residual, self.post_attention_layernorm)
        y = self.mlp(normed)
        norm = self.after[-1]
        if hooked(self) or any(map(hooked, self.after)):
            told(self, *self.after)
            return residual + y if isinstance(y, Tensor) else RowParallelLinear.forward(self.mlp.down_proj, y.x, residual)
        normed, total = joined(self.mlp.down_proj, y, residual, norm)
        return Sum(total, normed, norm)


class FinalNorm(nn.Module):
    """Mixed into the class of the norm behind the last layer."""

    def forward(self, hidden_states: Sum | Tensor) -> Tensor:
        if not isinstance(hidden_states, Sum):
            return super().forward(hidden_states)
        return hidden_states.normed if hidden_states.norm is self else super().forward(hidden_states.total)


class HeadNorm(nn.Module):
    """Mixed into the class of a norm whose weight all heads share (Qwen3). Each rank has some of the heads, and so a part of the weight's
    gradient."""

    comm_name: str

    def forward(self: Any, hidden_states: Tensor) -> Tensor:
        weight = _ops.sum_gradients(self.weight, self.comm_name) if torch.is_grad_enabled() else self.weight
        return rms_norm(hidden_states, weight, self.variance_epsilon)


class _Spread(type):
    """Of classes that mix() makes, which pickle would look for by their names, and not find."""


def _not_pickled(kind: _Spread) -> Any:
    raise UnsupportedError(f"{kind.__name__}: a layer that fcc.parallelize() has spread: it cannot be pickled, as its communicator cannot",
                           remedy="Save the model before; state_dict() has this rank's part.")


copyreg.pickle(_Spread, _not_pickled)
_mixed: dict[tuple[type, type], type] = {}


def mix(mixin: type[nn.Module], module: nn.Module) -> None:
    """Gives the module the mixin's forward; it stays an instance of its class. A module at several places may have it already."""
    if isinstance(module, mixin):
        return
    kind = type(module)
    if (mixin, kind) not in _mixed:
        _mixed[mixin, kind] = _Spread(f"Parallel{kind.__name__}", (mixin, kind), {"__module__": __name__})
    module.__class__ = _mixed[mixin, kind]


def told(*modules: nn.Module) -> None:
    """Says once of each module with hooks what they cost."""
    if torch.compiler.is_compiling():
        return
    for module in modules:
        if hooked(module) and "_fcc_told" not in module.__dict__:
            module.__dict__["_fcc_told"] = True
            warnings.warn(f"fcc.parallelize: there are hooks at {type(module).__name__}: so that they see tensors, residual and norm are "
                          "computed apart from the sum over the ranks", stacklevel=3)
