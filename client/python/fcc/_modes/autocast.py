# SPDX-License-Identifier: MIT
"""torch.ops.fcc.* under torch.autocast. Products take their factors in autocast's dtype, as torch.mm() and torch.nn.Linear do. Other
operators take their inputs unchanged, as torch's embedding_bag() and collectives do.

Each call casts a factor into the daemon's memory anew, because an earlier cast may be outdated.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._dispatch import autocast_keys, lib
from ..ops import PRODUCTS

ops = torch.ops.fcc


def dtype_of(tensor: Tensor) -> torch.dtype:
    """The dtype in which a product takes this factor."""
    kind = tensor.device.type
    if not tensor.is_floating_point() or tensor.dtype == torch.float64 or not torch.is_autocast_enabled(kind):
        return tensor.dtype
    return torch.get_autocast_dtype(kind)


def lowered(tensor: Tensor, comm: str) -> Tensor:
    """The factor in that dtype."""
    dtype = dtype_of(tensor)
    return tensor if tensor.dtype == dtype else ops.cast(tensor, dtype, comm)


def product(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def kernel(first: Tensor, second: Tensor, comm: str, *stages: Tensor | None, **keywords: Any) -> Tensor:
        first, second = lowered(first, comm), lowered(second, comm)
        stages = tuple(None if stage is None else lowered(stage, comm) for stage in stages)
        with torch._C._ExcludeDispatchKeyGuard(autocast_keys):
            return op(first, second, comm, *stages, **keywords)
    return kernel


for _name in PRODUCTS:
    for _key in ("AutocastCPU", "AutocastCUDA"):
        lib.impl(_name, product(getattr(ops, _name)), _key)
