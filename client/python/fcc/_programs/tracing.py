# SPDX-License-Identifier: MIT
"""@fcc.program: calls a function once, with tensors that record what is done with them.

An assignment in the function gives a value its name. Python does not tell values their names, so while the function runs, a trace function (sys.settrace)
looks after each line which of the function's variables are new tensors.
"""
from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from .program import Program
from .values import Declaration, Node, Place, Size, Tensor, Writer, wrong


class Trace:
    """The operations of a program, in their order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parameters: dict[str, tuple[Declaration, Place]] = {}
        self.nodes: list[Node] = []
        self.names: set[str] = set()
        self.seen: dict[str, Any] = {}  # the function's variables, as they were
        self.open = True

    def _operand(self, value: Any) -> Node:
        if isinstance(value, Tensor):
            if value._trace is not self:
                raise wrong(f"a value of program `{value._trace.name}` in program `{self.name}`: allowed are its own")
            if value._node.op == "out":
                raise wrong(f"`{value._node.name}` is declared Out, and has no value before it is assigned")
            return value._node
        if isinstance(value, Size):
            return Node("size", value=value.text)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            if not hasattr(value, "__float__") or getattr(value, "ndim", False):
                raise wrong(f"{type(value).__name__} {value!r:.40}: allowed are the program's tensors, and numbers")
            value = float(value)
        value = float(value) if isinstance(value, float) else int(value)  # numpy's, which are written otherwise, are such
        if isinstance(value, int) and abs(value) >= 1 << 1023:
            raise wrong(f"an integer of {value.bit_length()} bits: allowed are numbers that a double has room for")
        if not math.isfinite(value):
            raise wrong(f"{value}: allowed are finite numbers")
        return Node("number", value=value)

    def add(self, op: str, operands: Sequence[Any], integers: Sequence[Any] = ()) -> Tensor:
        if not self.open:
            raise wrong(f"a value of program `{self.name}` after it was traced: it has no elements")
        texts = []
        for integer in integers:
            if isinstance(integer, Size):
                texts.append(integer.text)
            elif isinstance(integer, int) and not isinstance(integer, bool) and integer >= 0:
                texts.append(str(integer))
            else:
                raise wrong(f"{op}: {integer!r:.40}: allowed are integers, 0 and more, and sizes")
        found = tuple(self._operand(operand) for operand in operands)
        node = Node(op, found, tuple(texts))
        self.nodes.append(node)
        return Tensor(self, node)

    # ---- names ----

    def name_give(self, node: Node, name: str) -> None:
        if node.op in ("parameter", "scalar", "out", "number", "size", "update") or node.name is not None:
            return  # another name of the same value
        given, n = name, 2
        while given in self.names:
            given, n = f"{name}_{n}", n + 1
        self.names.add(given)
        node.name = given

    def store(self, to: Tensor, value: Any) -> Node:
        """An assignment to a parameter."""
        name = next((n for n, _ in self.parameters.items() if self.targets.get(n) is to), None) or to._node.name
        return self._store(name, value)

    def _store(self, name: str | None, value: Any) -> Node:
        declared = self.parameters.get(name or "")
        if name is None or declared is None or declared[0].kind not in ("out", "inout"):
            raise wrong(f"`{name}` is no Out or InOut: allowed to be assigned are such")
        if any(node.op == "update" and node.name == name for node in self.nodes):
            raise wrong(f"`{name}` is assigned a second time: allowed is once")
        node = Node("update", (self._operand(value),), name=name)
        self.nodes.append(node)
        return node

    def look(self, frame: FrameType) -> None:
        """What the line before has assigned."""
        found = [(name, value) for name, value in frame.f_locals.items() if isinstance(value, Tensor) and self.seen.get(name) is not value]
        for name, value in sorted(found, key=lambda one: self.nodes.index(one[1]._node) if one[1]._node in self.nodes else -1):
            self.seen[name] = value
            if value._trace is not self:
                continue
            kind = self.parameters[name][0].kind if name in self.parameters else ""
            if kind in ("out", "inout") and value._node.name != name:
                line = self.line or frame.f_lineno
                try:
                    node = self._store(name, value)
                except Exception as e:
                    raise wrong(str(getattr(e, "reason", e)).partition(": ")[2], (frame.f_code.co_filename, line)) from None
                node.at = (frame.f_code.co_filename, line)
                value._node = node
            elif value._node.name is None:
                self.name_give(value._node, name)
        self.line = frame.f_lineno

    line = 0
    targets: dict[str, Tensor] = {}

    def run(self, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
        self.seen = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
        self.targets = dict(self.seen)
        code = inspect.unwrap(function).__code__

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event in ("line", "return"):
                self.look(frame)
            return local

        def begin(frame: FrameType, event: str, _: Any) -> Any:
            return local if frame.f_code is code else None

        before = sys.gettrace()
        sys.settrace(begin)
        try:
            returned = function(**arguments)
        finally:
            sys.settrace(before)
            self.open = False
        if returned is not None:
            raise wrong(f"`{self.name}` returns a value: allowed is to assign results to its Out and InOut parameters",
                        (code.co_filename, code.co_firstlineno))

    # ---- the text ----

    def write(self, sizes: dict[str, int | None], groups: str | None = None) -> Writer:
        to = Writer()
        to.put(f"program {self.name}({', '.join(name if n is None else f'{name} = {n}' for name, n in sizes.items())})")
        to.end()
        if groups is not None:
            to.put(f"groups {groups}")
            to.end()
        for name, (declared, at) in self.parameters.items():
            to.mark(at)
            to.put(f"{declared.kind} {name}" + (f": {declared.type}" if declared.type else ""))
            to.end(at)
        for node in self.nodes:
            if node.name is None:
                continue
            to.mark(node.at)
            to.put(f"{node.name} = ")
            if node.op == "update":
                to.expression(node.operands[0])
            else:
                to.expression(node, named=False)
            to.end(node.at)
        return to


def _declared(function: Callable[..., Any]) -> tuple[dict[str, Declaration], dict[str, int | None]]:
    """Parameters and sizes of the function's signature."""
    at = (function.__code__.co_filename, function.__code__.co_firstlineno)
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as e:
        raise wrong(f"the annotations cannot be evaluated: {type(e).__name__}: {e}", at) from None
    parameters: dict[str, Declaration] = {}
    sizes: dict[str, int | None] = {}
    for name, p in signature.parameters.items():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise wrong(f"`*{name}`: allowed are parameters with names", at)
        if p.kind == p.KEYWORD_ONLY:
            if p.default is not p.empty and (not isinstance(p.default, int) or isinstance(p.default, bool) or p.default < 0):
                raise wrong(f"size `{name}` = {p.default!r:.40}: allowed is an integer, 0 and more", at)
            sizes[name] = None if p.default is p.empty else p.default
        elif p.default is not p.empty:
            raise wrong(f"`{name}` has a default: allowed is such of sizes, which stand behind `*`", at)
        elif p.annotation is p.empty or p.annotation in (float, int):
            parameters[name] = Declaration("scalar")
        elif isinstance(p.annotation, Declaration):
            parameters[name] = p.annotation
        else:
            raise wrong(f"`{name}`: {p.annotation!r:.60}: allowed are fcc.In(), fcc.Out(), fcc.InOut(), and none for a number", at)
    return parameters, sizes


def _groups(groups: int | str | Size, at: Place) -> str:
    text = groups.text if isinstance(groups, Size) else str(groups)
    if isinstance(groups, bool) or not re.fullmatch(r"[A-Za-z0-9_*/]+", text):
        raise wrong(f"groups={groups!r:.40}: allowed are an integer and the name of a size", at)
    return text


def program(function: Callable[..., Any] | None = None, *, ranks: int = 2, groups: int | str | None = None) -> Any:
    """Makes a Program of a function: its parameters are tensors (annotated with fcc.In, fcc.Out or fcc.InOut) and numbers, what stands behind `*`
    are sizes, and what its expressions do with them is recorded. The function is called once.

        @fcc.program
        def sgd(g: fcc.In("f32[N] local"), p: fcc.InOut("f32[N]"), m: fcc.InOut("f32[N]"), lr, momentum, *, N=1000):
            s = fcc.all_reduce(g)
            m = momentum * m + s
            p = p - lr * m

    An assignment to an Out or InOut stores into it, once; afterwards the name stands for the new value. Other variables give values their names;
    one that is assigned again gives its second value the name NAME_2.

    Args:
        groups: into so many groups the ranks are divided, each of which has all tensors: an integer, or the name of a size; collectives are of a
            group, and send() goes to the next one
        ranks: for how many the program and its transformations are checked, with the sizes' defaults; if a size has none, with the compilation

    Raises: ArgumentError that names the Python file and line.
    """
    if function is None:
        return lambda f: program(f, ranks=ranks, groups=groups)
    if not inspect.isfunction(function):
        raise wrong(f"@fcc.program: {type(function).__name__} {function!r:.40}: allowed is a function that is written in Python")
    parameters, sizes = _declared(function)
    trace = Trace(function.__name__)
    at = (function.__code__.co_filename, function.__code__.co_firstlineno)
    arguments: dict[str, Any] = {name: Size(name) for name in sizes}
    for name, declared in parameters.items():
        trace.parameters[name] = declared, at
        trace.names.add(name)
        op = "scalar" if declared.kind == "scalar" else "out" if declared.kind == "out" else "parameter"
        node = Node(op, name=name)
        node.at = at
        arguments[name] = Tensor(trace, node)
    trace.names.update(sizes)
    trace.run(function, arguments)
    try:
        written = trace.write(sizes, None if groups is None else _groups(groups, at))
    except RecursionError:
        raise wrong(f"`{trace.name}`: an expression is nested too deeply: give parts of it names, by assignments or named()", at) from None
    made = Program("\n".join(written.lines) + "\n", places=written, ranks=ranks)
    made.__doc__ = function.__doc__
    return made
