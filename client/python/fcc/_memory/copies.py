# SPDX-License-Identifier: MIT
"""Warnings about tensors outside of the daemon's memory, which are copied in every call."""
from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

import torch

from .. import errors
from ..errors import CopyWarning

if TYPE_CHECKING:
    from ..communicator import Communicator

_HOW_ACTIVATION = ("Make it in the daemon's memory: fcc.empty(), or what fcc.mem_pool() surrounds.")
_HOW_WEIGHT = ("Move it there: fcc.to_daemon(module).")


_OURS = tuple(os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (errors, torch))


def _level_of_caller() -> int:
    """The number of frames from warn() to the first one outside of fcc and torch."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back and os.path.abspath(frame.f_code.co_filename).startswith(_OURS):
        level, frame = level + 1, frame.f_back
    return level


class Copies:
    """What a communicator has warned about. (Copies are not kept for the next call: tensors change in ways that torch does not count.)"""

    def __init__(self) -> None:
        self.warned: set[tuple[str, str]] = set()

    def warn(self, comm: Communicator, op: str, name: str, tensor: torch.Tensor, weight: bool) -> None:
        if (op, name) in self.warned:
            return
        self.warned.add((op, name))
        size = "x".join(map(str, tensor.shape))
        warnings.warn(f"rank {comm.rank}: {op}: {name} ({size}, {str(tensor.dtype).removeprefix('torch.')}) does not lie dense "
                      f"in the daemon's memory and is copied there in every call. "
                      f"{_HOW_WEIGHT if weight else _HOW_ACTIVATION}", CopyWarning, stacklevel=_level_of_caller())
