# SPDX-License-Identifier: MIT
"""The operations of programs (@fcc.program; client/PROGRAMS.md): each records what is done with its tensors, and computes nothing."""
from __future__ import annotations

from typing import Any

from .._programs.values import Size, Tensor, ranks, wrong

__all__ = ["Size", "ranks"]


def _of(op: str, *operands: Any, integers: tuple[Any, ...] = ()) -> Tensor:
    for operand in operands:
        if isinstance(operand, Tensor):
            return operand._made(op, *operands, integers=integers)
    raise wrong(f"{op}(): allowed are the tensors of a program that is traced (@fcc.program)")


def _define(name: str, arguments: int, what: str) -> None:
    def operation(*operands: Any) -> Tensor:
        if len(operands) != arguments:
            raise wrong(f"{name}(): {len(operands)} arguments: allowed are {arguments}")
        return _of(name, *operands)
    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = what
    globals()[name] = operation
    __all__.append(name)


for _name in ("abs", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "relu", "gelu", "silu", "f32", "f16", "bf16"):
    _define(_name, 1, "Of each element.")
for _name in ("row_sum", "row_mean", "row_norm"):
    _define(_name, 1, "Of each row: the last dimension, which becomes 1.")
for _name in ("sum", "mean", "norm"):
    _define(_name, 1, "Of the whole tensor; of slices over all ranks.")
for _name in ("tensor_sum", "tensor_norm"):
    _define(_name, 1, "Of each of the scattered tensors; of slices over all ranks.")
for _name in ("max", "min", "pow"):
    _define(_name, 2, "Of each two elements.")
_define("select", 3, "select(condition, a, b): of each element a where the condition holds, else b.")
_define("embedding", 3, "embedding(tables, indices, offsets): of each bag of indices the sum of its rows; all_to_all(..., 0) sends them to their samples.")
_define("embedding_mean", 3, "The same, and the mean of the rows.")
_define("matmul", 2, "Of [M, K] and [K, N].")
_define("transpose", 1, "Of a matrix; as the second factor of a product.")
_define("all_reduce", 1, "The sum of all ranks' x, on all ranks.")
_define("all_gather", 1, "All ranks' slices.")
_define("as_local", 1, "The same values, as each rank's own.")


def dropout(x: Any, p: Any, seed: Any, step: Any) -> Tensor:
    """0 with probability p, otherwise x / (1 - p); the same elements under every schedule."""
    return _of("dropout", x, p, seed, step)


def as_slice(x: Tensor, dimension: int = 0) -> Tensor:
    """This rank's slice of a replicated tensor."""
    return _of("as_slice", x, integers=(dimension,))


def reduce_scatter(x: Tensor, dimension: int = 0) -> Tensor:
    """Of the sum of all ranks' x, each rank its slice."""
    return _of("reduce_scatter", x, integers=(dimension,))


def all_to_all(x: Tensor, dimension: int) -> Tensor:
    """Slices along another dimension."""
    return _of("all_to_all", x, integers=(dimension,))


def broadcast(x: Tensor, root: int = 0) -> Tensor:
    """The root's x, on all ranks."""
    return _of("broadcast", x, integers=(root,))


def reduce(x: Tensor, root: int = 0) -> Tensor:
    """The sum of all ranks' x, on the root; 0 elsewhere."""
    return _of("reduce", x, integers=(root,))


def send(x: Tensor, distance: int = 1) -> Tensor:
    """What the rank `distance` before this one has."""
    return _of("send", x, integers=(distance,))


__all__ += ["all_to_all", "as_slice", "broadcast", "dropout", "reduce", "reduce_scatter", "send"]
