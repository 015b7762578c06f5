# SPDX-License-Identifier: MIT
"""What the modules' constructors are given."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .._calls import FLOATS
from .._place import INT64_MOST, whole
from ..communicator import Communicator
from ..errors import ArgumentError


def sizes_check(comm: Communicator, module: str, dtype: torch.dtype | None, **sizes: tuple[Any, int]) -> list[int]:
    """Checks the dtype of a module's parameters, and sizes, each with the least that is allowed. Returns the sizes."""
    said, found = f"rank {comm.rank}: {module}: ", []
    for name, (value, least) in sizes.items():
        size = whole(value, least, INT64_MOST)
        if size is None:
            raise ArgumentError(f"{said}{name}: {value!r:.40}: allowed are whole numbers, {least} and more")
        found.append(size)
    if (dtype or torch.get_default_dtype()) not in FLOATS:
        default = "" if dtype else " (torch's default)"
        raise ArgumentError(f"{said}dtype: {dtype or torch.get_default_dtype()}{default}: allowed are float32, float16 and bfloat16")
    return found


def whole_list(values: Any, least: int) -> list[int] | None:
    """The list of whole numbers, if it is one, and none is less."""
    given = [whole(value, least, INT64_MOST) for value in values] if isinstance(values, Iterable) else [None]
    found = [value for value in given if value is not None]
    return found if len(found) == len(given) else None


def linear_check(linear: Any, module: str) -> None:
    if not isinstance(linear, nn.Linear):
        raise ArgumentError(f"{module}.from_linear: linear: {type(linear).__name__}: allowed is a torch.nn.Linear")
