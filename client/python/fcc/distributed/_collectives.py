# SPDX-License-Identifier: MIT
"""The collectives on a communicator: tensors go through the daemon's memory in pieces, each of which is one operator of the C library.
_direct.py: without pieces."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._calls import numbers, run
from .._library import library
from .._communicator.refusals import TOLD
from .._communicator.waits import noop
from ..communicator import Communicator
from ..errors import ArgumentError, Error
from ..memory import stream_of
from . import _vectors
from ._vectors import Pieces, Vector, aligned, apart, pieces


class Collectives:
    """All ranks call the same methods in the same order, one at a time. On a GPU they work on the current stream."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self._pieces = Pieces(comm)
        self._found: Error | None = None  # the first error of an operation's operators on a stream

    def _run(self, op: str, **arguments: Any) -> None:
        """On a GPU the other ranks hear of errors later than this one, and submit all operators of the operation. So this rank does, too,
        and errors_take() gives the error to who raises it."""
        packed = library().operators[op].pack(**arguments)
        try:
            run(self.comm, op, packed, stream_of(self.comm))
        except Error as e:
            setattr(e, TOLD, True)  # errors of an operator that was submitted: the other ranks get them, too
            if not self.comm.member.on_gpu:
                raise
            self._found = self._found or e

    def errors_take(self) -> Error | None:
        """What an operation's operators have met with."""
        found, self._found = self._found, None
        return found

    def barrier(self) -> None:
        try:
            noop(self.comm.member)
        except Error as e:
            setattr(e, TOLD, True)
            raise

    def all_reduce(self, vector: Vector, reduction: int, factor: float | torch.Tensor | None = None) -> None:
        for begin, count in self._whole(vector):
            place, here = self._pieces.at(0, count, vector.dtype)
            vector.take(begin, count, here)
            if factor is not None:
                here.mul_(factor)
            self._run("all_reduce", in_=place, out=place, reduction=reduction)
            vector.put(begin, count, here)
        vector.done()

    def all_reduce_together(self, tensors: Sequence[torch.Tensor], reduction: int, factor: float | torch.Tensor | None = None) -> None:
        """Of tensors of one dtype."""
        self.all_reduce(Vector("all_reduce", tensors), reduction, factor)

    def reduce(self, vector: Vector, reduction: int, root: int, factor: float | torch.Tensor | None = None) -> None:
        for begin, count in self._whole(vector):
            place, here = self._pieces.at(0, count, vector.dtype)
            vector.take(begin, count, here)
            if factor is not None:
                here.mul_(factor)
            out = {"out": place} if root == self.rank else {}
            self._run("reduce", in_=place, **out, root=root, reduction=reduction)
            if root == self.rank:
                vector.put(begin, count, here)
        if root == self.rank:
            vector.done()

    def broadcast(self, vector: Vector, root: int) -> None:
        for begin, count in self._whole(vector):
            place, here = self._pieces.at(0, count, vector.dtype)
            if root == self.rank:
                vector.take(begin, count, here)
                self._run("broadcast", in_=place, out=place, root=root)
            else:
                self._run("broadcast", out=place, root=root)
                vector.put(begin, count, here)
        if root != self.rank:
            vector.done()

    def reduce_scatter(self, out: Vector, parts: Sequence[Vector], reduction: int, factor: float | torch.Tensor | None = None) -> None:
        self._fits("reduce_scatter", "output", out, parts)
        found = self._shares(parts)
        parts = apart(parts, [out]) if len(found) > 1 else parts
        for begin, counts in found:
            total = sum(counts)
            place, here = self._pieces.at(0, total, out.dtype)
            at = [sum(counts[:r]) for r in range(self.size + 1)]
            for r, part in enumerate(parts):
                part.take(begin, counts[r], here[at[r]:at[r + 1]])
            if factor is not None:
                here.mul_(factor)
            mine, result = self._pieces.at(at[self.rank] * out.dtype.itemsize, counts[self.rank], out.dtype)
            self._run("reduce_scatter", in_=place, out=mine, reduction=reduction)
            out.put(begin, counts[self.rank], result)
        out.done()

    def all_gather(self, outs: Sequence[Vector], own: Vector) -> None:
        self._fits("all_gather", "input", own, outs)
        found = self._shares(outs)
        own = apart([own], outs)[0] if len(found) > 1 else own
        for begin, counts in found:
            place, here = self._pieces.at(0, sum(counts), own.dtype)
            at = [sum(counts[:r]) for r in range(self.size + 1)]
            mine, source = self._pieces.at(at[self.rank] * own.dtype.itemsize, counts[self.rank], own.dtype)
            own.take(begin, counts[self.rank], source)
            self._run("all_gather", in_=mine, out=place)
            for r, out in enumerate(outs):
                out.put(begin, counts[r], here[at[r]:at[r + 1]])
        for out in outs:
            out.done()

    def gather(self, outs: Sequence[Vector] | None, own: Vector, root: int) -> None:
        """All ranks' vectors have the same length."""
        if outs is not None:
            self._alike("gather", "outputs", outs, own)
        size = own.dtype.itemsize
        found = pieces(own.count, self._share(size))
        own = apart([own], outs or ())[0] if len(found) > 1 else own
        for begin, count in found:
            self._pieces.reserve(count * size * (self.size if outs is not None else 1))
            mine, source = self._pieces.at(0 if outs is None else self.rank * count * size, count, own.dtype)
            own.take(begin, count, source)
            if outs is None:
                self._run("gather", in_=mine, root=root)
                continue
            place, here = self._pieces.at(0, self.size * count, own.dtype)
            self._run("gather", in_=mine, out=place, root=root)
            for r, out in enumerate(outs):
                out.put(begin, count, here[r * count:(r + 1) * count])
        for out in outs or ():
            out.done()

    def scatter(self, out: Vector, parts: Sequence[Vector] | None, root: int) -> None:
        """All ranks' vectors have the same length."""
        if parts is not None:
            self._alike("scatter", "inputs", parts, out)
        size = out.dtype.itemsize
        found = pieces(out.count, self._share(size))
        parts = apart(parts, [out]) if parts is not None and len(found) > 1 else parts
        for begin, count in found:
            self._pieces.reserve(count * size * (self.size if parts is not None else 1))
            mine, result = self._pieces.at(0 if parts is None else self.rank * count * size, count, out.dtype)
            if parts is None:
                self._run("scatter", out=mine, root=root)
            else:
                place, here = self._pieces.at(0, self.size * count, out.dtype)
                for r, part in enumerate(parts):
                    part.take(begin, count, here[r * count:(r + 1) * count])
                self._run("scatter", in_=place, out=mine, root=root)
            out.put(begin, count, result)
        out.done()

    def all_to_all(self, outs: Sequence[Vector], ins: Sequence[Vector], even: bool) -> None:
        """even: all ranks have given no counts, so that all of them are equal everywhere."""
        self._one_for_each("all_to_all", outs, ins)
        dtype = outs[0].dtype
        size = dtype.itemsize
        share = max(1, self._share(size) // 2)
        longest = max(vector.count for vector in (*outs, *ins))
        if not even:  # the number of pieces is that of the rank that needs most
            longest = self._largest(longest)
        found = pieces(longest, share)
        ins = apart(ins, outs) if len(found) > 1 else ins
        for begin, most in found:
            sent, come = ([max(0, min(most, vector.count - begin)) for vector in vectors] for vectors in (ins, outs))
            behind = aligned(sum(sent) * size)
            self._pieces.reserve(behind + max(1, sum(come)) * size)
            place, here = self._pieces.at(0, sum(sent), dtype)
            result, there = self._pieces.at(behind, sum(come), dtype)
            at = 0
            for vector, count in zip(ins, sent):
                vector.take(begin, count, here[at:at + count])
                at += count
            counts, address = numbers(sent)
            expected, expected_at = numbers(come)
            self._run("all_to_all", in_=place, send_counts=address, expected_counts=expected_at, out=result)
            at = 0
            for vector, count in zip(outs, come):
                vector.put(begin, count, there[at:at + count])
                at += count
            del counts, expected
        for vector in outs:
            vector.done()

    def send_receive(self, out: Vector | None, own: Vector | None, peer: int) -> None:
        """A message to the peer, or from it: own or out is None. The other ranks of the communicator, which is of two, have no part."""
        vector = own or out
        assert vector is not None
        for begin, count in self._whole(vector):
            place, here = self._pieces.at(0, count, vector.dtype)
            if own is not None:
                own.take(begin, count, here)
                self._run("send_receive", in_=place, destination=peer, source=-1)
            else:
                expected, expected_at = numbers([count if rank == peer else 0 for rank in range(self.size)])
                self._run("send_receive", out=place, destination=-1, source=peer, expected_counts=expected_at)
                vector.put(begin, count, here)
                del expected
        if out is not None:
            out.done()

    def _largest(self, value: int) -> int:
        """The largest of the ranks' numbers. On a GPU the host waits for it."""
        self._pieces.reserve(8)
        place, here = self._pieces.at(0, 1, torch.int64)
        here.fill_(value)
        self._run("all_reduce", in_=place, out=place, reduction=3)
        return int(here)

    def _share(self, size: int) -> int:
        """Elements of each rank in a piece that all ranks have a part of."""
        return max(1, _vectors.PIECE_BYTES // self.size // size)

    def _whole(self, vector: Vector) -> list[tuple[int, int]]:
        """Pieces of a vector that all ranks have whole."""
        size = vector.dtype.itemsize
        found = pieces(vector.count, max(1, _vectors.PIECE_BYTES // size))
        self._pieces.reserve(max(1, found[0][1]) * size)
        return found

    def _shares(self, parts: Sequence[Vector]) -> list[tuple[int, list[int]]]:
        """Pieces of a vector of which each rank has a part: [(begin in each part, each rank's number of elements)]."""
        size = parts[0].dtype.itemsize
        found = [(begin, [max(0, min(most, part.count - begin)) for part in parts])
                 for begin, most in pieces(max(part.count for part in parts), self._share(size))]
        self._pieces.reserve(max(1, max(sum(counts) for _, counts in found)) * size)
        return found

    def _fits(self, op: str, name: str, own: Vector, parts: Sequence[Vector]) -> None:
        if len(parts) != self.size:
            raise ArgumentError(f"rank {self.rank}: {op}: {len(parts)} tensors: allowed are {self.size}, one for each rank")
        for r, part in enumerate(parts):
            if part.dtype != own.dtype:
                raise ArgumentError(f"rank {self.rank}: {op}: {own.dtype} and {part.dtype}: allowed is one dtype")
            if r == self.rank and part.count != own.count:
                raise ArgumentError(f"rank {self.rank}: {op}: {name}: {own.count} elements: allowed are {part.count}, as this rank's part "
                                    "has")

    def _one_for_each(self, op: str, outs: Sequence[Vector], ins: Sequence[Vector]) -> None:
        for name, vectors in (("outputs", outs), ("inputs", ins)):
            if len(vectors) != self.size:
                raise ArgumentError(f"rank {self.rank}: {op}: {name}: {len(vectors)} tensors: allowed are {self.size}, one for each rank")
        for vector in (*outs, *ins):
            if vector.dtype != outs[0].dtype:
                raise ArgumentError(f"rank {self.rank}: {op}: {outs[0].dtype} and {vector.dtype}: allowed is one dtype")

    def _alike(self, op: str, name: str, parts: Sequence[Vector], own: Vector) -> None:
        self._fits(op, name, own, parts)
        if any(part.count != own.count for part in parts):
            raise ArgumentError(f"rank {self.rank}: {op}: {name}: {[part.count for part in parts]} elements: allowed are {own.count} each")
