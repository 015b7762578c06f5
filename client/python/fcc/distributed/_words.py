# SPDX-License-Identifier: MIT
"""Errors of collectives in the terms of torch.distributed's functions, whose arguments have other names than those of fcc's own."""
from __future__ import annotations

from .._names import Called, argument
from ..errors import Error

_TENSOR = argument("x", "tensor")
_SHARED = r"\bcounts: they are (\d+) elements together, x has (\d+)"
_CALLED = {name: Called(name, {name: rules}) for name, rules in {
    "all_reduce": (_TENSOR,),
    "all_gather": (_TENSOR,),
    "broadcast": (_TENSOR, argument("root", "src")),
    "reduce": (_TENSOR, argument("root", "dst")),
    "gather": (_TENSOR, argument("root", "dst")),
    "scatter": ((_SHARED, r"tensor: the ranks' have \1 elements together, scatter_list has \2"), _TENSOR, argument("root", "src")),
    "reduce_scatter": ((_SHARED, r"output: the ranks' have \1 elements together, input has \2"), argument("x", "input")),
    "all_to_all": ((r"\breceive_counts(?=: )", "output"), argument("x", "input"))}.items()}


def in_torchs_words(name: str, error: Exception, rank: int) -> None:
    """An error of the operation of that name."""
    if isinstance(error, Error) and name in _CALLED:
        error.renamed(_CALLED[name], rank)
