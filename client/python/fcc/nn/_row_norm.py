# SPDX-License-Identifier: MIT
"""What stands between two blocks of a decoder: a row-parallel layer, the residual, and the next block's RMSNorm."""
from __future__ import annotations

import math

import torch
from torch import Tensor

from ..communicator import find
from ..epilogues import Epilogue, all_reduce_epilogue, gemv_all_reduce_epilogue
from ..errors import Error
from ..ops import GEMV_ROWS
from ._linear import ROW_PARALLEL, RowParallelLinear


def row_parallel_norm(layer: RowParallelLinear, x: Tensor, residual: Tensor, norm_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(normed, sum): sum = residual + layer(x), rounded to the dtype; normed = RMSNorm(sum) * norm_weight.

    Where no derivatives are wanted, what follows the sum is an epilogue of the operator, whose norm is rounded once: up to 64 rows of one
    gemv_all_reduce, beyond, on cpu devices, of the all_reduce behind torch's product. Otherwise it is the layer with the residual, and Llama's
    norm behind it: computed in float32, rounded to the dtype, and then multiplied by the weight. All ranks call this, as they call the layer.

    Args:
        layer: its weight and bias are used; hooks, and the forward of a subclass, are not. With sequence_parallel=True the residual and the results
            are of this rank's positions, and the norm follows the layer
        x: [*][K_r], dtype of the weight
        residual: [*][N], the same on all ranks
        norm_weight: [N]
        eps: is added to the mean of the squares

    Returns: two tensors [*][N] of residual's dtype, the same bits on all ranks. Both have gradients.

    Raises: what the layer does.
    """
    rows, n = math.prod(x.shape[:-1]), layer.out_features
    comm, weight = find(layer.comm_name), layer.weight
    op = "gemv_all_reduce" if rows <= GEMV_ROWS else "all_reduce"
    epilogue = Epilogue(bias=layer.bias, residual=residual.reshape(-1, n) if residual.ndim > 1 and n else residual, norm="rms",
                        norm_weight=norm_weight, norm_eps=eps, sum=True)
    joins = not layer.sequence_parallel and layer._joins(residual) and norm_weight.dtype == weight.dtype == x.dtype
    if not joins or not rows or not epilogue.fuses(op, comm, x, weight):
        total = RowParallelLinear.forward(layer, x, residual)
        return rms_norm(total, norm_weight, eps), total
    try:
        layer._check(x, residual, weight, tuple(x.shape[:-1]))
        matrix = x.reshape(rows, x.shape[-1])
        normed, total, *_ = (gemv_all_reduce_epilogue(matrix, weight, epilogue, comm) if op == "gemv_all_reduce" else
                             all_reduce_epilogue(matrix @ weight.t(), epilogue, comm))
    except Error as e:
        raise e.renamed(ROW_PARALLEL, comm.rank) from None
    assert total is not None
    return normed.view(residual.shape), total.view(residual.shape)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)
