# SPDX-License-Identifier: MIT
"""What is wrong with an operation's tensors taken together, found before anything of it has run; what is wrong with one alone, Vector says."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from ..errors import ArgumentError


def unfit(rank: int, name: str, tensors: Sequence[Any], written: Sequence[Any], kinds: Collection[str]) -> Exception | None:
    """tensors: all that the operation has. written: those of them that this rank writes to. kinds: of devices that it may be on."""
    said = f"rank {rank}: {name}: "
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            return ArgumentError(f"{said}{type(tensor).__name__}: allowed are tensors")
        if tensor.device.type not in kinds:
            return NotImplementedError(f"fcc: {name}: tensors on {tensor.device}: not supported, only {' and '.join(kinds)}")
        if tensor.device != tensors[0].device:
            return ArgumentError(f"{said}tensors on {tensors[0].device} and {tensor.device}: allowed are tensors on one device")
    for tensor in written:
        if tensor.layout == torch.strided and not tensor.is_nested and _shares_with_itself(tensor):
            return ArgumentError(f"{said}a result of shape {list(tensor.shape)} with strides {list(tensor.stride())}, as expand() makes it: "
                                 "allowed are tensors each of whose elements has memory of its own")
    return None


def _shares_with_itself(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 1 and any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride()))
