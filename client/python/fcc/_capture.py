# SPDX-License-Identifier: MIT
"""Captures into CUDA graphs of streams that an operator is not on."""
from __future__ import annotations

import torch

from .errors import CaptureError


def captures_elsewhere(index: int | None) -> bool:
    """Whether a stream of the current GPU is being captured into a graph, and the GPU of this number is another one. What is called there
    runs at once, and is not in the graph, while other ranks capture it."""
    return torch._C._cuda_getDevice() != index and torch.cuda.is_current_stream_capturing()


def elsewhere_error(said: str, device: torch.device) -> CaptureError:
    """said: who has called what."""
    return CaptureError(f"{said}: a stream of cuda:{torch.cuda.current_device()} is being captured into a graph: allowed are those of {device}, "
                        "which the call is for", remedy="torch.cuda.graph() captures a stream of the current GPU: call torch.cuda.set_device() "
                        "before.")
