# SPDX-License-Identifier: MIT
"""What a program's expressions are made of while it is traced: sizes, and tensors, whose operations are recorded."""
from __future__ import annotations

import builtins
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import ArgumentError

Place = tuple[str, int]  # of a Python source: file, line
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
INTEGERS = {torch.int32: "i32", torch.int64: "i64"}  # of parameters that choose rows of tables


def place_of_caller() -> Place:
    """The innermost frame outside of fcc and torch."""
    frame: Any = sys._getframe(1)
    while frame.f_back and os.path.abspath(frame.f_code.co_filename).startswith((_OURS, _TORCH)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def wrong(why: str, at: Place | None = None) -> ArgumentError:
    """An error at a place of a program's Python source."""
    file, line = at or place_of_caller()
    return ArgumentError(f"{file}:{line}: {why}", remedy="Correct the program.")


class NoOperation(ArgumentError, AttributeError):
    """What is asked of a value that is traced, and programs do not have."""


class Size:
    """A size of tensors that gets its value when the program is compiled: a product and quotient of names, integers and fcc.ranks."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def _with(self, other: Any, sign: str) -> Any:
        if isinstance(other, Tensor):
            return NotImplemented  # a number of the program, which is the tensor's business
        if "+" in self.text or isinstance(other, Size) and "+" in other.text:
            raise wrong(f"size ({self.text}) {sign} {getattr(other, 'text', other)!s:.40}: allowed are sums behind products and quotients")
        if isinstance(other, Size):
            if sign == "/" and "/" in other.text + "*" and "*" in other.text:
                raise wrong(f"size {self.text} / ({other.text}): allowed are divisions by one size after the other")
            return Size(f"{self.text}{sign}{other.text}")
        if isinstance(other, int) and not isinstance(other, bool) and other >= 0:
            return Size(f"{self.text}{sign}{other}")
        raise wrong(f"size {self.text} {sign} {other!r:.40}: allowed are sizes and integers, 0 and more")

    def __add__(self, other: Any) -> Any:
        if isinstance(other, Tensor):
            return NotImplemented
        if isinstance(other, int) and not isinstance(other, bool) and other >= 0 and "+" not in self.text:
            return Size(f"{self.text} + {other}")
        raise wrong(f"size {self.text} + {other!r:.40}: allowed is one integer, 0 and more, behind products and quotients")

    def __mul__(self, other: Any) -> Any:
        return self._with(other, "*")

    def __rmul__(self, other: Any) -> Any:
        return Size(f"{other}*{self.text}") if isinstance(other, int) and "+" not in self.text else self._with(other, "*")

    def __truediv__(self, other: Any) -> Any:
        return self._with(other, "/")

    __floordiv__ = __truediv__

    def __bool__(self) -> bool:
        raise wrong(f"size {self.text}: its value is not known while the program is traced")

    def __repr__(self) -> str:
        return f"Size({self.text})"


ranks = Size("ranks")


@dataclasses.dataclass(frozen=True)
class Declaration:
    """A parameter's kind and, of tensors, its type: "f32[N] local"."""

    kind: str
    type: str = ""


def _declaration(kind: str, dtype: str | torch.dtype, shape: Sequence[Any], layout: str) -> Declaration:
    if isinstance(dtype, torch.dtype):
        name = DTYPES.get(dtype) or INTEGERS.get(dtype)
        if name is None:
            raise wrong(f"{dtype}: allowed are float32, float16 and bfloat16, and int32 and int64 of what chooses rows of tables")
        sizes = ", ".join(size.text if isinstance(size, Size) else str(size) for size in shape)
        return Declaration(kind, f"{name}[{sizes}] {layout}")
    if not isinstance(dtype, str) or shape or "\n" in dtype:
        raise wrong(f"{dtype!r:.40}: allowed are a torch.dtype and sizes, or one line of text, as \"f32[N] local\"")
    return Declaration(kind, dtype)


def In(dtype: str | torch.dtype, *shape: Any, layout: str = "replicated") -> Any:
    """Declares a parameter that is read: In("f32[N] local") or In(torch.float32, "N", layout="local"). The layouts are local (each rank has
    values of its own), replicated (all have the same) and sliced(DIMENSION)."""
    return _declaration("in", dtype, shape, layout)


def Out(dtype: str | torch.dtype, *shape: Any, layout: str = "replicated") -> Any:
    """Declares a parameter that is assigned, as In() does."""
    return _declaration("out", dtype, shape, layout)


def InOut(dtype: str | torch.dtype, *shape: Any, layout: str = "replicated") -> Any:
    """Declares a parameter that is read and assigned, as In() does."""
    return _declaration("inout", dtype, shape, layout)


class Node:
    """An operation: its operands are nodes; of a parameter its declaration."""

    __slots__ = ("at", "integers", "name", "op", "operands", "value")

    def __init__(self, op: str, operands: tuple[Node, ...] = (), integers: tuple[str, ...] = (), value: Any = None,
                 name: str | None = None) -> None:
        self.op, self.operands, self.integers, self.value, self.name = op, operands, integers, value, name
        self.at = place_of_caller()


class Tensor:
    """A tensor, or a number, of a program that is traced. Python's operators, torch's functions of the same names (torch.sqrt(x), x.sqrt()), and
    fcc.all_reduce() and the like record operations; they compute nothing. fcc.language has all operations."""

    __slots__ = ("_node", "_trace")
    __array_ufunc__ = None  # numpy leaves `array * x` to this class

    def __init__(self, trace: Any, node: Node) -> None:
        self._trace, self._node = trace, node

    def _made(self, op: str, *operands: Any, integers: Sequence[Any] = ()) -> Tensor:
        return self._trace.add(op, operands, integers)

    def __add__(self, other: Any) -> Tensor:
        return self._made("+", self, other)

    def __radd__(self, other: Any) -> Tensor:
        return self._made("+", other, self)

    def __sub__(self, other: Any) -> Tensor:
        return self._made("-", self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return self._made("-", other, self)

    def __mul__(self, other: Any) -> Tensor:
        return self._made("*", self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return self._made("*", other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return self._made("/", self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return self._made("/", other, self)

    def __pow__(self, other: Any) -> Tensor:
        return self._made("pow", self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return self._made("pow", other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return self._made("matmul", self, other)

    @property
    def T(self) -> Tensor:
        """The matrix, transposed: the second factor of a product."""
        return self._made("transpose", self)

    def __neg__(self) -> Tensor:
        return self._made("neg", self)

    def __abs__(self) -> Tensor:
        return self._made("abs", self)

    def __lt__(self, other: Any) -> Tensor:
        return self._made("<", self, other)

    def __le__(self, other: Any) -> Tensor:
        return self._made("<=", self, other)

    def __gt__(self, other: Any) -> Tensor:
        return self._made(">", self, other)

    def __ge__(self, other: Any) -> Tensor:
        return self._made(">=", self, other)

    def __eq__(self, other: Any) -> Any:
        return self._made("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return self._made("!=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise wrong("a value has no truth while its program is traced: allowed is fcc.language.select(condition, a, b)")

    def __iter__(self) -> Any:
        raise wrong("a value cannot be iterated over while its program is traced")

    def __getitem__(self, key: Any) -> Tensor:
        """x[begin:end], x[:, begin:end]: a slice along one dimension, with a begin and an end."""
        keys = key if isinstance(key, tuple) else (key,)
        cut = [(d, k) for d, k in enumerate(keys) if k != slice(None)]
        if len(cut) != 1 or not isinstance(cut[0][1], slice) or cut[0][1].step is not None or cut[0][1].stop is None:
            raise wrong(f"[{key!r:.60}]: allowed is a slice along one dimension, with an end: x[:, begin:end]")
        d, k = cut[0]
        return self._made("slice", self, integers=(d, 0 if k.start is None else k.start, k.stop))

    def __setitem__(self, key: Any, value: Any) -> None:
        """p[...] = value: stores into the whole of an out or inout, as an assignment to its name in the program does."""
        if key is not ... and key != slice(None):
            raise wrong(f"[{key!r:.60}] = ...: allowed is the whole tensor: p[...] = value")
        self._node = self._trace.store(self, value)

    def to(self, dtype: torch.dtype) -> Tensor:
        if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
            raise wrong(f"to({dtype}): allowed are torch.float32, torch.float16 and torch.bfloat16")
        return self._made(DTYPES[dtype], self)

    def float(self) -> Tensor:
        return self.to(torch.float32)

    def half(self) -> Tensor:
        return self.to(torch.float16)

    def bfloat16(self) -> Tensor:
        return self.to(torch.bfloat16)

    def named(self, name: str) -> Tensor:
        """Gives the value a name, as an assignment in the program does; for values of helper functions."""
        if not isinstance(name, str) or not name.isidentifier():
            raise wrong(f"named({name!r:.40}): allowed is a name")
        self._trace.name_give(self._node, name)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *others: self._made(_METHODS[name], self, *others)
        if name.startswith("__"):  # what Python and torch look for, and do without
            raise AttributeError(f"fcc.Tensor has no {name}")
        file, line = place_of_caller()
        raise NoOperation(f"{file}:{line}: fcc.Tensor has no {name}: fcc.language lists the operations of programs", remedy="Correct the program.")

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Any, args: Sequence[Any] = (), keywords: Any = None) -> Tensor:
        name = getattr(function, "__name__", str(function))
        if name not in _TORCH_NAMES:
            raise wrong(f"torch's {name}(): programs have no such operation: fcc.language lists theirs")
        approximate = (keywords or {}).get("approximate", "none")
        if name == "gelu" and approximate != "none":
            raise wrong(f"gelu(approximate=\"{approximate}\"): allowed is \"none\"")
        meant = [key for key, value in (keywords or {}).items() if key != "approximate" and value is not None and value is not False]
        if meant:
            raise wrong(f"torch's {name}(): {', '.join(meant)}: not in programs")
        allowed = _ARITY.get(_TORCH_NAMES[name], 1)
        if len(args) != allowed:
            raise wrong(f"torch's {name}(): {len(args)} arguments: allowed in programs are {allowed}")
        return next(a for a in args if isinstance(a, Tensor))._made(_TORCH_NAMES[name], *args)

    def __repr__(self) -> str:
        return f"<fcc.Tensor {self._node.name or self._node.op} of a program>"


def _without(sign: str) -> Callable[..., Any]:
    def refuse(self: Tensor, *_: Any) -> Any:
        raise wrong(f"{sign}: programs have no such operation: fcc.language lists theirs")
    return refuse


for _sign, _names in {"//": "floordiv rfloordiv", "%": "mod rmod", "divmod()": "divmod rdivmod", "&": "and rand", "|": "or ror", "^": "xor rxor", "<<": "lshift rlshift",
                      ">>": "rshift rrshift", "~": "invert", "a number @ a tensor": "rmatmul", "len()": "len", "float()": "float", "int()": "int", "complex()": "complex",
                      "a tensor as an index": "index", "round()": "round", "floor()": "floor", "ceil()": "ceil", "trunc()": "trunc", "in": "contains", "del": "delitem"}.items():
    for _name in _names.split():
        setattr(Tensor, f"__{_name}__", _without(_sign))

_UNARY = ("abs", "sqrt", "rsqrt", "exp", "log", "tanh", "sigmoid", "relu", "gelu", "silu", "row_sum", "row_mean", "row_norm", "sum", "mean", "norm", "tensor_sum", "tensor_norm")
_METHODS = {**{name: name for name in _UNARY}, "max": "max", "min": "min", "maximum": "max", "minimum": "min", "pow": "pow"}
_TORCH_NAMES = {**{name: name for name in _UNARY if not name.startswith(("row_", "tensor_"))}, "maximum": "max", "minimum": "min", "pow": "pow",
                "matmul": "matmul", "where": "select", "add": "+", "sub": "-", "mul": "*", "div": "/", "neg": "neg", "__radd__": "+"}
_ARITY = {"max": 2, "min": 2, "pow": 2, "matmul": 2, "select": 3, "+": 2, "-": 2, "*": 2, "/": 2}


# ---- the text of expressions ----

# How tightly signs hold their operands: as kernels/program/print.c.
_HOLDS = {**dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), 1), "+": 2, "-": 2, "*": 3, "/": 3}


class Writer:
    """Writes a program's lines, and remembers where in Python each operation is."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line = ""
        self.places: dict[tuple[int, int], Place] = {}  # by line and column, from 1 on
        self.line_places: dict[int, Place] = {}

    def put(self, text: str) -> None:
        self.line += text

    def mark(self, at: Place) -> None:
        self.places[len(self.lines) + 1, len(self.line) + 1] = at

    def end(self, at: Place | None = None) -> None:
        self.lines.append(self.line)
        self.line = ""
        if at:
            self.line_places[len(self.lines)] = at

    def expression(self, node: Node, named: bool = True, tightly: int = 0) -> None:
        if node.name is not None and named:
            self.put(node.name)
            return
        holds = _HOLDS.get(node.op, 4 if node.op == "neg" or node.op == "number" and repr(node.value).startswith("-") else 5)
        if holds < tightly:
            self.put("(")
        if node.op == "number":
            self.put(repr(node.value))
        elif node.op == "size":
            self.put(node.value if node.value.isidentifier() else f"({node.value})")
        elif node.op == "neg":
            self.mark(node.at)
            self.put("-")
            self.expression(node.operands[0], tightly=6 if node.operands[0].op == "number" else 4)
        elif holds < 4:
            self.expression(node.operands[0], tightly=holds)
            self.put(" ")
            self.mark(node.at)
            self.put(node.op + " ")
            self.expression(node.operands[1], tightly=holds + 1)
        else:
            self.mark(node.at)
            self.put(node.op + "(")
            for i, operand in builtins.enumerate(node.operands):
                self.put(", " if i else "")
                self.expression(operand)
            self.put("".join(f", {integer}" for integer in node.integers) + ")")
        if holds < tightly:
            self.put(")")
