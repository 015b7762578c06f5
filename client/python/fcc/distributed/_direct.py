# SPDX-License-Identifier: MIT
"""The collectives where each rank launches them itself, on CUDA GPUs of one node (fcc_collectives_prepare()): on the current stream, in the
tensors' own memory. What an operation has in several places, one operator cannot take, so it is joined and spread by copies on the stream.
Nothing waits, and nothing but the tensors decides what is launched, so a CUDA graph can hold it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .._calls import numbers, run_many
from .._library import ADDRESS, library
from .._communicator.refusals import TOLD
from ..errors import Error
from ..memory import stream_of
from ._collectives import Collectives
from ._vectors import NO_ADDRESS, NUMBERS, Place, Vector, joined, room, spread


APART_BYTES = 128 << 10  # of tensors, on an average, that are worth an operator each


def _at(flat: torch.Tensor) -> Place:
    return ADDRESS, flat.data_ptr() or NO_ADDRESS, NUMBERS[flat.dtype], 1, flat.numel(), 0, 0, 0, 0, 0, 0, 0


def _times(flat: torch.Tensor, factor: float | torch.Tensor | None) -> torch.Tensor:
    return flat if factor is None else flat.clone().mul_(factor)


def _apart(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The source, or if it shares memory with the target a copy of it."""
    begin, end = (source.data_ptr() + n * source.element_size() for n in (0, source.numel()))
    first, last = (target.data_ptr() + n * target.element_size() for n in (0, target.numel()))
    return source.clone() if begin < last and first < end else source


class Direct(Collectives):
    """As Collectives. Copies live on the current stream alone: torch's allocator gives their memory to what follows there."""

    def all_reduce(self, vector: Vector, reduction: int, factor: float | torch.Tensor | None = None) -> None:
        whole = joined([vector])  # if it is a copy, the result comes into the copy first
        source = _times(whole, factor)
        self._run("all_reduce", in_=_at(source), out=_at(whole), reduction=reduction)
        spread(whole, [vector])

    def all_reduce_together(self, tensors: Sequence[torch.Tensor], reduction: int, factor: float | torch.Tensor | None = None) -> None:
        """Small tensors are joined, as copies of them take less than an operator for each; large ones have an operator each, enqueued by one
        call. The tensors' sizes, which all ranks share, decide."""
        vectors = [Vector("all_reduce", [tensor]) for tensor in tensors]
        nbytes = sum(vector.count * vector.dtype.itemsize for vector in vectors)
        if len(vectors) == 1 or factor is not None or nbytes < len(vectors) * APART_BYTES:
            super().all_reduce_together(tensors, reduction, factor)
            return
        wholes = [joined([vector]) for vector in vectors]  # held until all are enqueued
        self._run_many("all_reduce", [{"in_": _at(whole), "out": _at(whole), "reduction": reduction} for whole in wholes])
        for whole, vector in zip(wholes, vectors):
            spread(whole, [vector])

    def _run_many(self, op: str, calls: Sequence[dict[str, Any]]) -> None:
        """As _run() of each."""
        pack = library().operators[op].pack
        try:
            run_many(self.comm, op, [pack(**arguments) for arguments in calls], stream_of(self.comm))
        except Error as e:
            setattr(e, TOLD, True)
            self._found = self._found or e

    def reduce(self, vector: Vector, reduction: int, root: int, factor: float | torch.Tensor | None = None) -> None:
        whole = joined([vector])
        source = _times(whole, factor)
        out = {"out": _at(whole)} if root == self.rank else {}
        self._run("reduce", in_=_at(source), **out, root=root, reduction=reduction)
        if root == self.rank:
            spread(whole, [vector])

    def broadcast(self, vector: Vector, root: int) -> None:
        if root == self.rank:
            source = joined([vector])
            self._run("broadcast", in_=_at(source), out=_at(source), root=root)
            return
        out = room([vector])
        self._run("broadcast", out=_at(out), root=root)
        spread(out, [vector])

    def reduce_scatter(self, out: Vector, parts: Sequence[Vector], reduction: int, factor: float | torch.Tensor | None = None) -> None:
        self._fits("reduce_scatter", "output", out, parts)
        source, result = _times(joined(parts), factor), room([out])
        self._run("reduce_scatter", in_=_at(source), out=_at(result), reduction=reduction)
        spread(result, [out])

    def all_gather(self, outs: Sequence[Vector], own: Vector) -> None:
        self._fits("all_gather", "input", own, outs)
        source, result = joined([own]), room(outs)
        self._run("all_gather", in_=_at(source), out=_at(result))
        spread(result, outs)

    def gather(self, outs: Sequence[Vector] | None, own: Vector, root: int) -> None:
        source = joined([own])
        if outs is None:
            self._run("gather", in_=_at(source), root=root)
            return
        self._alike("gather", "outputs", outs, own)
        result = room(outs)
        self._run("gather", in_=_at(source), out=_at(result), root=root)
        spread(result, outs)

    def scatter(self, out: Vector, parts: Sequence[Vector] | None, root: int) -> None:
        given: dict[str, Any] = {}
        if parts is not None:
            self._alike("scatter", "inputs", parts, out)
            source = joined(parts)
            given["in_"] = _at(source)
        result = room([out])
        self._run("scatter", out=_at(result), root=root, **given)
        spread(result, [out])

    def send_receive(self, out: Vector | None, own: Vector | None, peer: int) -> None:
        if own is not None:
            source = joined([own])
            self._run("send_receive", in_=_at(source), destination=peer, source=-1)
        if out is not None:
            result = room([out])
            expected, expected_at = numbers([out.count if rank == peer else 0 for rank in range(self.size)])
            self._run("send_receive", out=_at(result), destination=-1, source=peer, expected_counts=expected_at)
            spread(result, [out])
            del expected

    def all_to_all(self, outs: Sequence[Vector], ins: Sequence[Vector], even: bool) -> None:
        self._one_for_each("all_to_all", outs, ins)
        result = room(outs)
        source = _apart(joined(ins), result)
        sent, sent_at = numbers([vector.count for vector in ins])
        expected, expected_at = numbers([vector.count for vector in outs])
        self._run("all_to_all", in_=_at(source), send_counts=sent_at, expected_counts=expected_at, out=_at(result))
        spread(result, outs)
        del sent, expected
