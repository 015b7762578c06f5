# SPDX-License-Identifier: MIT
"""Errors in the terms of the function that was called.

The C library and the daemon name an operator and its C arguments. The Python function that the program called may have other arguments
or other names for them, or may use that operator internally. All ranks have made the same call, so each translates the text by itself,
whichever rank it is about.
"""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable

Rule = tuple[str, "str | Callable[[re.Match[str]], str]"]


_told_of: set[str] = set()  # names of all functions that were or can be called; a rank may refuse arguments in their terms


@dataclasses.dataclass(frozen=True)
class Called:
    """A called function: its name, and for each operator that it uses the names of the operator's arguments in the function."""

    name: str
    operators: dict[str, tuple[Rule, ...]]

    def __post_init__(self) -> None:
        told_of(self.name)


def told_of(*names: str) -> None:
    """Registers calls in whose terms ranks may refuse arguments."""
    _told_of.update(names)


def argument(name: str, called: str) -> Rule:
    """Replaces an argument's name, as in "x: ", "x[0]", "x's shape", "indices' shape", but not in a value such as 'x'."""
    return rf"(?<!['\"\w]){name}(?=: |\[|'(?:s\b|\)| ))", called


def _replaced(text: str, rules: Iterable[Rule]) -> str:
    for pattern, words in rules:
        text = re.sub(pattern, words, text)
    return text


# Python has no arguments for results, whose requirements follow from the other arguments: rules of each operator.
_arguments: dict[str, tuple[Rule, ...]] = {}


def results_of(operator: str, *rules: Rule) -> None:
    """How errors about an operator's result are told in terms of its arguments."""
    _arguments[operator] = rules


MEMORY = "allocating memory"  # any allocation, local or symmetric
# The arguments of Communicator().
_OPTIONS: tuple[Rule, ...] = (
    (r"\boptions\.socket_path(?=: )", "socket"),
    (r"\boptions\.job(?=: )", "job"),
    (r"\bnranks(?=: )", "size"),
    (r"\bdevice_kind(?=: )", "device"),
    (r"\bdevice: (-?\d+): allowed are -1 to", r"device: \1: allowed are 0 to"),
    (r"\bfcc_get_unique_id(?:\(\)|(?=: ))", "unique_id()"),
    (r"\bfcc_connect\(\)", "fcc.init()"),
    (r"\bfcc_comm_init(?:_env)?(?=: )", "fcc.init()"),
    (r"\bfcc_prepared_enqueue(?=: )", "a prepared operator"),
    (r"\bfcc_buffer_alloc(?=: the worker of job )", MEMORY),
    (r"\bfcc_buffer_alloc(?=: )", "symmetric memory"))
_CALLS = {"noop": "barrier", "fcc_buffer_alloc": "an allocation of symmetric memory"}


def _operators() -> list[str]:
    """All operators of the C library, with their preparations, by the names used here."""
    from ._library import library  # imported here, because its errors use this module
    return [name for operator in library().operators.values() for name in (operator.name, f"prepare_{operator.name}")]


def _prepared(text: str) -> str:
    return re.sub(r"\b(\w+)_prepare\b", r"prepare_\1", text)


def _once(text: str) -> str:
    """A refusal in a call's terms follows the name of the operator whose turn it took. Drops that name: "rank 1: NAME: rank
    1: rows_all_to_all: rows: ..." becomes "rank 1: rows_all_to_all: rows: ..."."""
    operators = _operators()
    names = "|".join(map(re.escape, sorted({*operators, *_told_of}, key=len, reverse=True)))
    return re.sub(rf"(?:^|(\brank \d+: ))(?:{'|'.join(operators)}): (?:rank \d+: )?(?=(?:{names}): )",
                  lambda found: found[1] or "", text)


def in_python(text: str) -> str:
    """A text of the C library in the terms of the Python functions with its operators' names."""
    text = _once(_prepared(text))
    for operator, rules in _arguments.items():
        if re.search(rf"\b{operator}: ", text):
            text = _replaced(text, rules)
    text = _replaced(text, _OPTIONS)
    if "out of step" in text:
        text = re.sub(r"\bcalls (noop|fcc_buffer_alloc)\b", lambda found: "calls " + _CALLS[found[1]], text)
    return re.sub(r"(?<!calls )\bnoop(?=: | #)", "barrier", text)


def for_operator(text: str, operator: str) -> str:
    """The text of an allocation's error, as that of the operator that needed the memory."""
    return re.sub(rf"^{MEMORY}: ", _CALLS.get(operator, _prepared(operator)) + ": ", text)


def one_of(text: str, operator: str, names: Iterable[str]) -> str:
    """A text about an operator that one of these calls made; which one is unknown."""
    return re.sub(rf"\b{operator}(?=: | #)", " or ".join(sorted(names)), text)


def as_called(text: str, called: Called, rank: int) -> str:
    """A text about one of the operators that the call uses, in the terms of the call."""
    for operator, rules in called.operators.items():
        if not re.search(rf"\b{operator}\b", text):
            continue
        if "out of step" in text:  # the other ranks' calls are unknown
            return re.sub(rf"\brank {rank} calls {operator}\b", f"rank {rank} calls {called.name}", text)
        return re.sub(rf"\b{operator}\b", called.name, _replaced(text, rules))
    return text
