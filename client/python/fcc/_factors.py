# SPDX-License-Identifier: MIT
"""A product's factors in float8_e4m3fn, and their scales: fcc.Epilogue's x_scale, w_scale and dtype."""
from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._calls import FLOATS
from ._names import Called
from .errors import ArgumentError, Error

F8 = torch.float8_e4m3fn
BLOCK = 128  # rows and columns that share a scale


class Factors(NamedTuple):
    """The scales in a shape that the C library takes, and the result's dtype."""

    x_scale: Tensor | None
    w_scale: Tensor | None
    dtype: torch.dtype


def result_dtype(given: torch.dtype | None, factors: tuple[Tensor, ...], stages: tuple[Tensor | None, ...]) -> torch.dtype:
    """That of a factor which is not float8_e4m3fn; otherwise the given one, that of the first stage's tensor, or bfloat16."""
    for factor in factors:
        if factor.dtype != F8:
            return factor.dtype
    return given or next((stage.dtype for stage in stages if stage is not None), torch.bfloat16)


def _blocks(n: int) -> int:
    return (n + BLOCK - 1) // BLOCK


class Factor(NamedTuple):
    """A factor as it is stored. name: of its argument. by_row: a row of it is one of the result, or a column of the result; otherwise a column."""

    name: str
    tensor: Tensor
    is_first: bool
    by_row: bool

    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of scales in the C library: of all elements, of each row or column, of blocks, and of the blocks of a row."""
        rows, cols = self.tensor.shape
        own = ((rows, _blocks(cols)),) if self.is_first else ()
        return (1,), (rows if self.by_row else cols,), (_blocks(rows), _blocks(cols)), *own

    def scale(self, scale: Tensor) -> Tensor | None:
        """The scale in one of these shapes; None: it fits none. As torch has them, they may be of no dimension, or [rows, 1] and [1, columns]."""
        rows, cols = self.tensor.shape
        if tuple(scale.shape) in self.shapes():
            return scale
        return scale.reshape(-1) if tuple(scale.shape) in ((), (1, 1), (rows, 1) if self.by_row else (1, cols)) else None

    def wrong(self, name: str, scale: Tensor | None) -> str | None:
        """What is wrong with its scale, or with the factor."""
        if self.tensor.ndim != 2:
            return f"{self.name}: {self.tensor.ndim} dimensions, {list(self.tensor.shape)}: allowed are 2"
        if self.tensor.dtype == F8 and self.tensor.requires_grad and torch.is_grad_enabled():
            return f"{self.name}: torch.float8_e4m3fn that requires a gradient: there is none: allowed without"
        if scale is None:
            return None
        if self.tensor.dtype != F8:
            return f"{name}: given: allowed only where {self.name} is float8_e4m3fn"
        if scale.dtype != torch.float32:
            return f"{name}: {scale.dtype}: allowed is float32"
        if self.scale(scale) is not None:
            return None
        lines = "row" if self.by_row else "column"
        kinds = ("", f" (each {lines} of {self.name})", f" (each block of {BLOCK} x {BLOCK})", f" (each {BLOCK} elements of a row)")
        allowed = ", ".join(f"{list(shape)}{kind}" for shape, kind in zip(self.shapes(), kinds))
        return f"{name}: {list(scale.shape)}: allowed are {allowed}"

    def dequantised(self, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What it stands for, computed in float32. scale: of scale()."""
        if self.tensor.dtype != F8:
            return self.tensor
        wide = self.tensor.detach().float()
        if scale is None:
            return wide.to(dtype)
        rows, cols = wide.shape
        if scale.ndim == 2:
            by_block = tuple(scale.shape) == (_blocks(rows), _blocks(cols))
            scale = scale.repeat_interleave(BLOCK, 1)[:, :cols]
            scale = scale.repeat_interleave(BLOCK, 0)[:rows] if by_block else scale
        elif scale.shape[0] > 1:
            scale = scale[:, None] if self.by_row else scale[None, :]
        return (wide * scale).to(dtype)


def factors_of(op: str, x: Tensor, w: Tensor) -> tuple[Factor, Factor]:
    transposed = op == "gemv_all_reduce"
    names = "xw" if transposed else "ab"
    return Factor(names[0], x, True, True), Factor(names[1], w, False, transposed)


def found_of(x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype | None, factors: tuple[Factor, Factor],
             stages: tuple[Tensor | None, ...]) -> Factors:
    """Of a call in which nothing is wrong. stages: those with the result's dtype."""
    x, w = factors
    return Factors(None if x_scale is None else x.scale(x_scale), None if w_scale is None else w.scale(w_scale),
                   result_dtype(dtype, (x.tensor, w.tensor), stages))


def dequantised(factors: tuple[Factor, Factor], found: Factors) -> tuple[Tensor, Tensor]:
    x, w = factors
    return x.dequantised(found.x_scale, found.dtype), w.dequantised(found.w_scale, found.dtype)


def factors_wrong(x_scale: Tensor | None, w_scale: Tensor | None, dtype: torch.dtype | None, factors: tuple[Factor, ...]) -> str | None:
    """What is wrong with a call's factors, their scales, or the result's dtype. factors: (): the operator has none."""
    if not factors:
        given = next((name for name, value in (("x_scale", x_scale), ("w_scale", w_scale), ("dtype", dtype)) if value is not None), None)
        return given and f"{given}: given: allowed only of products"
    x, w = factors
    return x.wrong("x_scale", x_scale) or w.wrong("w_scale", w_scale) or _dtype_wrong(dtype, factors)


def _dtype_wrong(given: torch.dtype | None, factors: tuple[Factor, ...]) -> str | None:
    """What is wrong with the result's dtype."""
    if given is not None and given not in FLOATS:
        return f"dtype: {given}: allowed are float32, float16 and bfloat16"
    for factor in factors:
        if given is not None and factor.tensor.dtype not in (F8, given):
            return f"dtype: {given}: allowed is {factor.tensor.dtype} ({factor.name}'s)"
    return None


def check_factor(rank: int, op: str, name: str, tensor: Tensor) -> None:
    if tensor.ndim != 2:
        raise ArgumentError(f"rank {rank}: {op}: {name}: {tensor.ndim} dimensions, {list(tensor.shape)}: allowed are 2")
    if tensor.dtype not in FLOATS and tensor.dtype != F8:
        raise ArgumentError(f"rank {rank}: {op}: {name}: {tensor.dtype}: allowed are float32, float16, bfloat16 and float8_e4m3fn")


def in_own_words(error: Error, rank: int, op: str, factors: tuple[Tensor, ...]) -> Error:
    """A result's dtype is told as that of the first factor (results_of()). Where no factor has it, it is the argument `dtype`."""
    if any(factor.dtype != F8 for factor in factors):
        return error
    other = r"rank \d+ has (?!f8e4m3)\w+"
    return error.renamed(Called(op, {op: ((rf"\b[xa]: dtype(?=: {other}, {other})", "dtype"),)}), rank)
