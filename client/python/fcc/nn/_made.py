# SPDX-License-Identifier: MIT
"""What the modules' constructors are given."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .._calls import FLOATS
from .._place import INT64_MOST, whole
from ..communicator import Communicator, chosen
from ..errors import ArgumentError
from ..memory import empty
from ..ops import batch_parts


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


def spread_make(layer: Any, module: str, comm: Communicator | None, in_features: int, out_features: int, outputs: bool, *, bias: bool,
                device: str | torch.device | None, dtype: torch.dtype | None, sequence_parallel: bool) -> None:
    """Gives a linear layer this rank's part of the parameters of one with these sizes, uninitialized: rows of the weight and elements of the bias, if its
    outputs are spread over the ranks, otherwise columns of the weight, and the whole bias. Whatever is spread may be empty."""
    comm = chosen(comm, module)
    in_features, out_features = sizes_check(comm, module, dtype, in_features=(in_features, int(outputs)), out_features=(out_features, int(not outputs)))
    parts = batch_parts(out_features if outputs else in_features, None, comm.size)
    own, first = parts[comm.rank], sum(parts[:comm.rank])
    layer.comm_name, layer.sequence_parallel = comm.name, sequence_parallel
    layer.in_features, layer.out_features, layer.columns = in_features, out_features, slice(first, first + own)
    shape = (own, in_features) if outputs else (out_features, own)
    layer.weight = nn.Parameter(empty(*shape[::-1], dtype=dtype, device=device, comm=comm).t() if sequence_parallel else
                                empty(*shape, dtype=dtype, device=device, comm=comm))
    layer.fcc_columns = ("weight",) if sequence_parallel else ()  # for to_daemon()
    layer.register_parameter("bias", nn.Parameter(empty(own if outputs else out_features, dtype=dtype, comm=comm)) if bias else None)


def whole_list(values: Any, least: int) -> list[int] | None:
    """The list of whole numbers, if it is one, and none is less."""
    given = [whole(value, least, INT64_MOST) for value in values] if isinstance(values, Iterable) else [None]
    found = [value for value in given if value is not None]
    return found if len(found) == len(given) else None


def linear_check(linear: Any, module: str) -> None:
    if not isinstance(linear, nn.Linear):
        raise ArgumentError(f"{module}.from_linear: linear: {type(linear).__name__}: allowed is a torch.nn.Linear")
