# SPDX-License-Identifier: MIT
"""Products in pieces, in the order of a ring, by any library: what one piece needs or makes is under way while the next one is computed.

    def product(first, out, add):                                   # rows `first` and on of the whole product, onto what is there if `add`
        torch.addmm(out, a[first:first + len(out)], b, out=out) if add else torch.mm(a[first:first + len(out)], b, out=out)
    ring = fcc.RingReduceScatter(product, rows, n)
    y = ring.run()                                                  # this rank's rows of the sum over all ranks

Memory order: a product's stores happen before its rule's count (release), and a word that signal_wait() has seen (acquire) is behind the rows.
No place is stored to twice without its reader's word in between: a sender's rule awaits `used` of the run before.
"""
from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .. import communicator
from ..collectives import all_reduce
from ..communicator import Communicator
from ..errors import ArgumentError, UnsupportedError
from ..memory import zeros
from .tracker import Rule, Tracker, signal_wait

RULES_MAX = 256
CANDIDATES = (1, 2, 4, 8)
MEASURED_RUNS = 3


def _parts(rows: int, pieces: int) -> list[tuple[int, int]]:
    """(first row, end) of each piece; their sizes differ by one row at most."""
    return [(rows * i // pieces, rows * (i + 1) // pieces) for i in range(pieces)]


class _Pieces:
    """What both have in common: rules, words, and the choice of the number of pieces. Place (s, p) of a rank is where piece p of slot s comes."""

    def __init__(self, name: str, rows: int, cols: int, dtype: torch.dtype | None, pieces: int | None, comm: Communicator | None) -> None:
        self.comm = comm or communicator.default()
        self.dtype = dtype or torch.get_default_dtype()
        self.rows, self.cols, self.slots = rows, cols, self.comm.size - 1
        if self.comm.device.type != "cpu":
            raise UnsupportedError(f"{name}: this rank's memory is on a GPU: pieces are sent for ranks on cpu devices only", rank=self.comm.rank)
        if rows < 1 or cols < 1:
            raise ArgumentError(f"{name}: rows {rows}, columns {cols}: allowed are 1 and more", rank=self.comm.rank)
        most = min(rows, RULES_MAX // (2 * max(self.slots, 1)))
        if most < 1 or (pieces is not None and not 1 <= pieces <= most):
            raise ArgumentError(f"{name}: pieces {pieces}, {self.comm.size} ranks: allowed are 1 to {most}: the number of rows, and {RULES_MAX} rules of "
                                "a tracker", rank=self.comm.rank)
        self._make()
        self.measured: dict[int, float] = {}  # pieces: seconds of the slowest rank
        if pieces is None:
            for candidate in [c for c in CANDIDATES if c <= most]:
                self._begin(candidate)
                self.measured[candidate] = self._measure()
                self.close()
            pieces = min(self.measured, key=lambda c: self.measured[c])  # the same figures on all ranks: the same choice
        self._begin(pieces)

    def _make(self) -> None:
        raise NotImplementedError

    def _send_rule(self, slot: int, first: int, end: int, come: tuple[torch.Tensor, int], used: tuple[torch.Tensor, int, int]) -> Rule:
        raise NotImplementedError

    def _sender(self, slot: int) -> int:
        """Who fills this rank's slot."""
        raise NotImplementedError

    def run(self) -> torch.Tensor:
        raise NotImplementedError

    def _begin(self, pieces: int) -> None:
        self.pieces, self.parts, self._run = pieces, _parts(self.rows, pieces), 0
        places = self.slots * pieces
        self._words = zeros(max(2 * places, 1), dtype=torch.int64, symmetric=True, comm=self.comm)  # come, then used
        self.tracker = Tracker(self.comm)
        self._sends: list[list[Rule]] = []
        self._used: list[Rule] = []
        for slot in range(self.slots):
            self._sends.append([])
            for p, (first, end) in enumerate(self.parts):
                at = slot * pieces + p
                self._sends[slot].append(self._send_rule(slot, first, end, (self._words, at), (self._words, places + at, 1)))
                self._used.append(self.tracker.signal(self._sender(slot), signal=(self._words, places + at), name="used"))
        self.comm.barrier()  # all have made their rules

    def _next_run(self) -> None:
        """What the last run has left is used up: its result, and what its rules have sent."""
        if self._run:
            for rules in self._sends:
                for rule in rules:
                    rule.wait(self._run)
            for used in self._used:
                used.add()
        self._run += 1

    def _come(self, slot: int, p: int) -> None:
        signal_wait(self._words, slot * self.pieces + p, self._run, comm=self.comm)

    def _measure(self) -> float:
        self.run()
        best = float("inf")
        for _ in range(MEASURED_RUNS):
            self.comm.barrier()
            begin = time.perf_counter()
            self.run()
            best = min(best, time.perf_counter() - begin)
        slowest = all_reduce(torch.tensor([best], dtype=torch.float64), reduction="max", comm=self.comm)
        return float(slowest[0])

    def close(self) -> None:
        """Ends the rules when all ranks have come. Collective."""
        if self._run:
            for rules in self._sends:
                for rule in rules:
                    rule.wait(self._run)
        self.comm.barrier()
        self.tracker.close()


class RingReduceScatter(_Pieces):
    """The ReduceScatter of a product that any library makes. A rank makes the rows of the rank before it first, and its own last, each onto what
    has arrived; between two products nothing waits but for rows. Sums are in the ring's order and round to `dtype` at each hop, unlike those of
    gemm_reduce_scatter, which are in rank order and round once. On cpu devices of one node; collective, and the communicator's one Tracker is its.

    Args:
        product: product(first, out, add) makes rows `first` and on of this rank's product [size * rows, cols] in `out`, onto it if `add`
        rows, cols: of each rank's result
        pieces: into how many parts a rank's rows are cut, the same on all ranks; None: measured, by all ranks together (`measured` has the figures)

    Raises: ArgumentError, UnsupportedError (ranks on GPUs), and what Tracker() does.
    """

    def __init__(self, product: Callable[[int, torch.Tensor, bool], object], rows: int, cols: int, dtype: torch.dtype | None = None,
                 pieces: int | None = None, comm: Communicator | None = None) -> None:
        self.product = product
        super().__init__("RingReduceScatter", rows, cols, dtype, pieces, comm)

    def _make(self) -> None:
        self._first = zeros(self.rows, self.cols, dtype=self.dtype, comm=self.comm)
        self._slots = [zeros(self.rows, self.cols, dtype=self.dtype, symmetric=True, comm=self.comm) for _ in range(self.slots)]

    def _source(self, step: int) -> torch.Tensor:
        return self._slots[step - 1] if step else self._first

    def _send_rule(self, slot: int, first: int, end: int, come: tuple[torch.Tensor, int], used: tuple[torch.Tensor, int, int]) -> Rule:
        return self.tracker.store(self._source(slot)[first:end], self._slots[slot][first:end], (self.comm.rank + 1) % self.comm.size,
                                  signal=come, awaits=[used], name="ring")

    def _sender(self, slot: int) -> int:
        return (self.comm.rank - 1) % self.comm.size

    def run(self) -> torch.Tensor:
        """This rank's rows of the sum. They stay until the next run. Collective."""
        self._next_run()
        for step in range(self.comm.size):
            of = (self.comm.rank - 1 - step) % self.comm.size
            for p, (first, end) in enumerate(self.parts):
                if step:
                    self._come(step - 1, p)
                self.product(of * self.rows + first, self._source(step)[first:end], step > 0)
                if step < self.slots:
                    self._sends[step][p].add()
        return self._source(self.slots)


class RingAllGather(_Pieces):
    """The AllGather of a product's input, whose pieces arrive in the order in which the product takes them: own rows first, then those of the rank
    before, and so on. On cpu devices; collective, and the communicator's one Tracker is its.

    Args:
        product: product(first, rows) takes `rows`, the rows `first` and on of all ranks' input, one below the other
        rows, cols: of each rank's input, which the caller stores into `input` before each run, when run() has returned
        pieces: as RingReduceScatter's
    """

    def __init__(self, product: Callable[[int, torch.Tensor], object], rows: int, cols: int, dtype: torch.dtype | None = None,
                 pieces: int | None = None, comm: Communicator | None = None) -> None:
        self.product = product
        super().__init__("RingAllGather", rows, cols, dtype, pieces, comm)

    def _make(self) -> None:
        self.whole = zeros(self.comm.size * self.rows, self.cols, dtype=self.dtype, symmetric=True, comm=self.comm)

    @property
    def input(self) -> torch.Tensor:
        """This rank's rows."""
        return self._of(self.comm.rank)

    def _of(self, rank: int) -> torch.Tensor:
        return self.whole[rank * self.rows:(rank + 1) * self.rows]

    def _send_rule(self, slot: int, first: int, end: int, come: tuple[torch.Tensor, int], used: tuple[torch.Tensor, int, int]) -> Rule:
        mine = self.input[first:end]
        return self.tracker.store(mine, mine, (self.comm.rank + 1 + slot) % self.comm.size, signal=come, awaits=[used], name="gather")

    def _sender(self, slot: int) -> int:
        return (self.comm.rank - 1 - slot) % self.comm.size

    def run(self) -> torch.Tensor:
        """Calls the product for all rows, and returns them; `input` may be changed then, and the others stay until the next run. Collective."""
        self._next_run()
        for p in range(self.pieces):  # the order in which they are taken elsewhere
            for slot in range(self.slots):
                self._sends[slot][p].add()
        for step in range(self.comm.size):
            of = (self.comm.rank - step) % self.comm.size
            for p, (first, end) in enumerate(self.parts):
                if step:
                    self._come(step - 1, p)
                self.product(of * self.rows + first, self._of(of)[first:end])
        for rules in self._sends:
            for rule in rules:
                rule.wait(self._run)
        return self.whole
