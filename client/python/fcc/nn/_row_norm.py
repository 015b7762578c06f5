# SPDX-License-Identifier: MIT
"""What stands between two blocks of a decoder: a row-parallel layer, the residual, and the next block's RMSNorm."""
from __future__ import annotations

import torch
from torch import Tensor

from ._linear import RowParallelLinear


def row_parallel_norm(layer: RowParallelLinear, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(normed, sum): sum = residual + layer(x), rounded to the dtype; normed = RMSNorm(sum) * norm_weight.

    The norm is Llama's: it is computed in float32, rounded to the dtype, and then multiplied by the weight. All ranks call this, as they
    call the layer.

    Args:
        layer: its weight and bias are used; hooks, and the forward of a subclass, are not
        x: [*][K_r], dtype of the weight
        residual: [*][N], the same on all ranks
        norm_weight: [N]
        eps: is added to the mean of the squares

    Returns: two tensors [*][N] of residual's dtype, the same bits on all ranks. Both have gradients.

    Raises: what the layer does.
    """
    total = RowParallelLinear.forward(layer, x, residual)
    return rms_norm(total, norm_weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)
