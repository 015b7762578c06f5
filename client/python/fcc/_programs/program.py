# SPDX-License-Identifier: MIT
"""Programs: their text, their transformations, and their compilation for a communicator."""
from __future__ import annotations

import ctypes
import operator
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._library import ProgramSize, library
from .._place import INT64_MOST, whole
from ..errors import ArgumentError, Error
from .values import Place, Writer, place_of_caller

if TYPE_CHECKING:
    from ..communicator import Communicator
    from .running import CompiledProgram


RANKS_MOST = 1024


def sizes_packed(sizes: dict[str, Any]) -> Any:
    """An array of struct fcc_program_size."""
    for name, value in sizes.items():
        if not name.isidentifier():  # C would take the part of it before a NUL
            raise ArgumentError(f"size {name!a:.40}: allowed are names of the program's sizes")
        if isinstance(value, bool) or whole(value, 0, INT64_MOST) is None:
            raise ArgumentError(f"size {name}: {value!r:.40}: allowed are integers, 0 and more")
    return (ProgramSize * max(1, len(sizes)))(*(ProgramSize(name.encode(), operator.index(value)) for name, value in sizes.items()))


def text_printed(text: str, ranks: int, sizes: dict[str, Any]) -> str:
    """fcc_program_print()."""
    given, packed = text.encode(errors="replace"), sizes_packed(sizes)
    n = library().check(library().program_print(given, len(given), ranks, packed, len(sizes), None, 0))
    room = ctypes.create_string_buffer(n + 1)
    library().check(library().program_print(given, len(given), ranks, packed, len(sizes), room, n + 1))
    return room.value.decode()


def _listed(kind: str, names: Sequence[Any]) -> str:
    """The names of a transformation's statements."""
    for name in names:
        if not isinstance(name, str):
            file, line = place_of_caller()
            raise ArgumentError(f"{file}:{line}: {kind}: {type(name).__name__} {name!r:.40}: allowed are names of the program's statements")
    return ", ".join(names)


class Program:
    """A program of computation and exchange, of a text (client/PROGRAMS.md has the language) or of a function (@fcc.program).

    Transformations are methods: split, reorder, as_slice, fuse, overlap, chunk. Each returns a new program; one that would change the meaning is
    refused with the dependence that forbids it. str() is the program as text, with its schedule as it was written; scheduled() is what the schedule
    makes of it.

    Args:
        text: the program
        file: for errors: where it comes from
        ranks: for how many ranks the program and its transformations are checked, with the sizes' defaults; if a size has none, compile() checks

    Raises: ArgumentError, with line and column of the text, or file and line of the function.
    """

    def __init__(self, text: str, *, file: str | None = None, ranks: int = 2, places: Writer | None = None, schedule: tuple[Any, ...] = ()) -> None:
        if not isinstance(text, str):
            raise ArgumentError(f"text: {type(text).__name__}: allowed is a string")
        self._ranks = self._ranks_checked(ranks)
        self._source, self._file, self._places, self._schedule = text, file, places, schedule
        self._text = self._printed(0, {})
        header = self._text.partition("\n")[0]
        found = re.match(r"program (\w+)\((.*)\)", header)
        assert found
        self.name = found[1]
        self.sizes: dict[str, int | None] = {name: int(value) if value else None for name, value in re.findall(r"(\w+)(?: = (\d+))?", found[2])}
        if None not in self.sizes.values():
            self._printed(self._ranks, {})

    @staticmethod
    def _ranks_checked(ranks: Any) -> int:
        found = whole(ranks, 1, RANKS_MOST)
        if found is None:
            raise ArgumentError(f"ranks: {ranks!r:.40}: allowed are 1 to {RANKS_MOST}")
        return found

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, ranks: int = 2) -> Program:
        """The program in a file (.fcc)."""
        with open(path, encoding="utf-8", errors="replace") as file:
            return cls(file.read(), file=os.fspath(path), ranks=ranks)

    def _whole(self) -> str:
        """The text, with the transformations behind it."""
        if not self._schedule:
            return self._source
        begun = "" if re.search(r"^\s*schedule\b", self._source, re.M) else "\nschedule\n"
        return self._source + ("" if self._source.endswith("\n") else "\n") + begun + "".join(statement + "\n" for statement, _ in self._schedule)

    def _printed(self, ranks: int, sizes: dict[str, Any]) -> str:
        try:
            return text_printed(self._whole(), ranks, sizes)
        except Error as e:
            raise self._located(e) from None

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<fcc.Program {self.name}({', '.join(self.sizes)})>"

    def scheduled(self, ranks: int | None = None, **sizes: int) -> str:
        """What the schedule makes of the program on so many ranks, as text."""
        return self._printed(self._ranks if ranks is None else self._ranks_checked(ranks), sizes)

    # ---- errors ----

    def _place_of(self, line: int, column: int | None) -> Place | None:
        lines = self._whole().count("\n", 0) + 1
        first = lines - len(self._schedule)  # the line of the first transformation
        if self._schedule and line >= first:
            return self._schedule[line - first][1] if line - first < len(self._schedule) else None
        if self._places is None:
            return None
        found = self._places.places.get((line, column)) if column is not None else None
        return found or self._places.line_places.get(line)

    def _located(self, error: Error) -> Error:
        """The error with places of Python sources, or of the file, instead of those of the text."""
        if self._file is not None and not self._schedule:
            error.reason = re.sub(r"\bline (\d+), column (\d+)", lambda m: f"{self._file}:{m[1]}:{m[2]}", error.reason, count=1)
        elif self._places is not None or self._schedule:
            def python(m: re.Match[str]) -> str:
                at = self._place_of(int(m[1]), int(m[2]) if m[2] else None)
                return m[0] if at is None else f"{at[0]}:{at[1]}" if m[2] else f"line {at[1]}"
            error.reason = re.sub(r"\bline (\d+)(?:, column (\d+))?", python, error.reason)
        error.args = (error.reason,)
        return error

    # ---- transformations ----

    def _transformed(self, kind: str, *words: Any) -> Program:
        statement = " ".join((kind, *(word if isinstance(word, str) else _listed(kind, word) for word in words)))
        if "\n" in statement or "#" in statement:
            raise ArgumentError(f"{statement!r:.60}: allowed are names of the program's statements")
        return Program(self._source, file=self._file, ranks=self._ranks, places=self._places,
                       schedule=(*self._schedule, (statement, place_of_caller())))

    def split(self, name: str) -> Program:
        """s = all_reduce(x) becomes s_part = reduce_scatter(x), s = all_gather(s_part)."""
        return self._transformed("split", [name])

    def reorder(self, name: str, *past: str) -> Program:
        """s = all_gather(x) goes behind the pointwise statements that use it, which then work on slices; past: behind these only."""
        return self._transformed("reorder", [name], *(("past", past) if past else ()))

    def as_slice(self, *names: str, dimension: int = 0) -> Program:
        """These parameters become slices on each rank; the caller gives slices."""
        made = self
        for name in names:
            made = made._transformed("as_slice", [name], f"{dimension}")
        return made

    def fuse(self, *names: str, name: str | None = None) -> Program:
        """The statements run as one step, which may have a name."""
        return self._transformed("fuse", names, *(("as", [name]) if name is not None else ()))

    def overlap(self, *names: str) -> Program:
        """Each begins with the pieces of the one before it that are there."""
        return self._transformed("overlap", names)

    def chunk(self, name: str, pieces: int) -> Program:
        """The statement is cut into so many pieces."""
        return self._transformed("chunk", [name], f"{pieces}")

    def compile(self, comm: Communicator | None = None, *, bound: bool | None = None, **sizes: int) -> CompiledProgram:
        """The program, ready to run on a communicator. Collective: all ranks compile the same program with the same sizes, those without defaults
        among them, and the same `bound`.

        bound: who launches its runs. False: fccd. True: this process, on torch's current stream and in CUDA graphs, as CompiledProgram says; where that cannot be its first call
            raises UnsupportedError. None: $FCC_BOUND: 0, or not set: fccd; 1: this process where that can be, and fccd elsewhere: CompiledProgram.unbound has the reason.

        Raises: ArgumentError (on all ranks, where the programs differ, too), UnsupportedError: what nothing runs yet, and what GPUs do not run."""
        from .running import CompiledProgram
        if bound is not None and "bound" in self.sizes:  # a program's size may have that name
            sizes, bound = {**sizes, "bound": bound}, None
        return CompiledProgram(self, comm, sizes, bound)
