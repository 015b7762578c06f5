# SPDX-License-Identifier: MIT
"""Products in pieces, in the order of a ring, by any library: what one piece needs or makes is under way while the next one is computed.

    def product(first, out, add):                                   # rows `first` and on of the whole product, onto what is there if `add`
        torch.addmm(out, a[first:first + len(out)], b, out=out) if add else torch.mm(a[first:first + len(out)], b, out=out)
    ring = fcc.RingReduceScatter(product, rows, n)
    y = ring.run()                                                  # this rank's rows of the sum over all ranks

Memory order: a product's stores happen before its rule's count (release) or, on a GPU, before the rule's run on a stream that is behind the product; a word that
has been waited for (acquire) is behind the rows. No place is stored to twice without its reader's word in between: run n of a sender's rule awaits `used` of run n,
which the reader raises when its own run n begins.
"""
from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import communicator
from ..collectives import all_gather, all_reduce
from .._place import INT64_MOST, whole
from .._communicator.refusals import refuse
from ..communicator import Communicator
from ..errors import ArgumentError
from ..memory import zeros
from .movers import Streams, Threads
from .tracker import Rule, Tracker

RULES_MAX = 256
CANDIDATES = (1, 2, 4, 8)
_ADDED_WIDER = frozenset((torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2))  # in float32, and rounded once
MEASURED_RUNS = 3


def _parts(rows: int, pieces: int) -> list[tuple[int, int]]:
    """(first row, end) of each piece; their sizes differ by one row at most."""
    return [(rows * i // pieces, rows * (i + 1) // pieces) for i in range(pieces)]


class _Pieces:
    """What both have in common: rules, words, and the choice of the number of pieces. Place (s, p) of a rank is where piece p of slot s comes. `mover` says
    how rules are worked off: by the worker's thread, or by this rank's streams."""

    product: Callable[..., object]

    def __init__(self, name: str, rows: int | Sequence[int], cols: int, dtype: torch.dtype | None, pieces: int | None, comm: Communicator | None,
                 variant: int = 0) -> None:
        self.comm = communicator.chosen(comm, name)
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.name, self.cols, self.slots = name, cols, self.comm.size - 1
        self.mover: Threads | Streams = Threads(self.comm) if self.comm.device.type == "cpu" else Streams(self.comm)
        most = self._together(lambda: self._check(rows, pieces))
        self._compare({"cols": cols, "dtype": zlib.crc32(str(self.dtype).encode()), "pieces": pieces or 0, "direct": variant,
                       **{f"rows of rank {rank}": n for rank, n in enumerate(self.rows_of)}})
        self._make_shared()
        self._together(self._make_own)
        self.measured: dict[int, float] = {}  # pieces: seconds of the slowest rank
        if pieces is None:
            for candidate in [c for c in CANDIDATES if c <= most]:
                self._begin(candidate)
                self.measured[candidate] = self._measure()
                self.close()
            pieces = min(self.measured, key=lambda c: self.measured[c])  # the same figures on all ranks: the same choice
        self._begin(pieces)

    def _together(self, step: Callable[[], int]) -> int:
        """A step of making it that no rank has behind it before all have. A rank that fails in it tells the others at once: each gets its error."""
        try:
            result = step()
        except Exception as e:
            raise refuse(self.comm, "noop", e)
        self.comm.barrier()
        return result

    def _check(self, rows: int | Sequence[int], pieces: int | None) -> int:
        """Returns how many pieces there may be."""
        rank, size = self.comm.rank, self.comm.size
        if not callable(self.product):
            raise ArgumentError(f"{self.name}: product: {type(self.product).__name__} {self.product!r:.40}: allowed is a function", rank=rank)
        if not isinstance(self.dtype, torch.dtype):
            raise ArgumentError(f"{self.name}: dtype: {self.dtype!r:.40}: allowed is a torch.dtype", rank=rank)
        given = [whole(n, -INT64_MOST, INT64_MOST) for n in (rows if isinstance(rows, (list, tuple)) else [rows])]
        if None in (*given, whole(self.cols, -INT64_MOST, INT64_MOST)):
            raise ArgumentError(f"{self.name}: rows {rows!r:.40}, columns {self.cols!r:.40}: allowed are whole numbers, of rows a list, too", rank=rank)
        if pieces is not None and whole(pieces, -INT64_MOST, INT64_MOST) is None:
            raise ArgumentError(f"{self.name}: pieces: {pieces!r:.40}: allowed are whole numbers, and None: measured", rank=rank)
        self.rows_of = [n for n in given if n is not None] * (1 if isinstance(rows, (list, tuple)) else size)
        if len(self.rows_of) != size:
            raise ArgumentError(f"{self.name}: rows: {len(self.rows_of)} numbers: allowed are one for each of {size} ranks, or one for all", rank=rank)
        if min(self.rows_of) < 1 or self.cols < 1:
            raise ArgumentError(f"{self.name}: rows {rows}, columns {self.cols}: allowed are 1 and more", rank=rank)
        self.rows = self.rows_of[rank]
        self.first_of = [sum(self.rows_of[:r]) for r in range(size)]
        most = min(min(self.rows_of), (RULES_MAX - self.slots) // (2 * max(self.slots, 1)))
        if most < 1 or (pieces is not None and not 1 <= pieces <= most):
            raise ArgumentError(f"{self.name}: pieces {pieces}, {size} ranks: allowed are 1 to {most}: the least number of rows, and {RULES_MAX} rules of "
                                "a tracker", rank=rank)
        return most

    def _compare(self, arguments: dict[str, int]) -> None:
        """The same error on all ranks if not all have given the same."""
        given = all_gather(torch.tensor([list(arguments.values())], dtype=torch.int64, device=self.comm.device), self.comm).tolist()
        for i, what in enumerate(arguments):
            for rank in range(self.comm.size):
                if given[rank][i] != given[0][i]:
                    values = "" if what == "dtype" else f" ({given[rank][i]} and {given[0][i]})"
                    raise ArgumentError(f"{self.name}: {what}: that of rank {rank} is not that of rank 0{values}: allowed is the same on all ranks",
                                        rank=self.comm.rank)

    def _produce(self, *what: object) -> None:
        """Calls the product. If it raises, rows that others wait for never come: so they hear it at once."""
        try:
            self.product(*what)
        except BaseException as e:
            if self.mover.tries:
                raise
            self.comm.abort(f"{self.name}: its product: {type(e).__name__}: {e}"[:200])
            raise

    def _make_shared(self) -> None:
        """Symmetric memory, of which all ranks get theirs or none."""
        raise NotImplementedError

    def _make_own(self) -> int:
        """This rank's own memory, in bytes."""
        return 0

    def _send_rule(self, tracker: Tracker, slot: int, first: int, end: int, come: tuple[torch.Tensor, int], used: tuple[torch.Tensor, int, int]) -> Rule:
        """Of a piece, rows `first` to `end` of the owner's."""
        raise NotImplementedError

    def _sender(self, slot: int) -> int:
        """Who fills this rank's slot."""
        raise NotImplementedError

    def _owner(self, slot: int) -> int:
        """Whose rows this rank sends into the slot of another."""
        raise NotImplementedError

    def _parts_of(self, rank: int) -> list[tuple[int, int]]:
        return _parts(self.rows_of[rank], self.pieces)

    def run(self) -> torch.Tensor:
        raise NotImplementedError

    def _begin(self, pieces: int) -> None:
        self.pieces, self._run = pieces, 0
        places = self.slots * pieces
        self._words = zeros(max(places + self.slots, 1), dtype=torch.int64, symmetric=True, comm=self.comm)  # what has come; which slots are free
        self.tracker: Tracker | None = None
        try:
            self._together(self._rules)
        except BaseException:
            if self.tracker:  # the rank's only one: the next may be made
                self.tracker.close()
            raise

    def _rules(self) -> int:
        places = self.slots * self.pieces
        self.tracker = tracker = Tracker(self.comm)
        self._sends: list[list[Rule]] = []
        self._used: list[Rule] = []
        for slot in range(self.slots):
            used = (self._words, places + slot)
            self._sends.append([self._send_rule(tracker, slot, first, end, (self._words, slot * self.pieces + p), (*used, 0))
                                for p, (first, end) in enumerate(self._parts_of(self._owner(slot)))])
            self._used.append(tracker.signal(self._sender(slot), signal=used, name="used"))
        self._arrivals: list[Any] = [self.mover.arrival(tracker, self._words, at) for at in range(places)]
        return places

    def _is_closed(self) -> bool:
        return self.tracker is None or not self.tracker.is_open

    def _next_run(self) -> None:
        """What the last run has left is used up: its result, and what its rules have sent."""
        _ = self.comm.member  # raises if the communicator has been closed
        if self._is_closed():
            raise ArgumentError(f"{self.name}: it has been closed", rank=self.comm.rank)
        self.mover.settle(self._sends, self._run)
        self._run += 1
        for used in self._used:
            self.mover.tell(used)

    def _send(self, slot: int, p: int) -> None:
        """What is sent has been produced."""
        self.mover.send(self._sends[slot][p])

    def _come(self, slot: int, p: int) -> None:
        self.mover.come(self._arrivals[slot * self.pieces + p], self._run)

    def _measure(self) -> float:
        """Seconds of a run, of the slowest rank."""
        best = self.mover.measure(self.run, MEASURED_RUNS)
        slowest = all_reduce(torch.tensor([best], dtype=torch.float64, device=self.comm.device), reduction="max", comm=self.comm)
        return float(slowest[0])

    def close(self) -> None:
        """Ends the rules when all ranks have come. Collective. A second time it does nothing."""
        if self._is_closed():
            return
        self.mover.settle(self._sends, self._run)
        self.mover.finish()
        self.comm.barrier()
        if self.tracker:
            self.tracker.close()


class RingReduceScatter(_Pieces):
    """The ReduceScatter of a product that any library makes. A rank makes the rows of the rank before it first, and its own last, each onto what
    has arrived; between two products nothing waits but for rows. Sums are in the ring's order and round to `dtype` at each hop, unlike those of
    gemm_reduce_scatter, which are in rank order and round once. For ranks of one node; collective, and the communicator's one Tracker is its.

    On GPUs all is done by streams: products by the current one, copies by copy engines on another one beside it, so no multiprocessor takes part in the exchange. run() may be
    captured into a CUDA graph, and should be: pieces of products are short, and calls one by one are bound by the CPU.

    direct: each finished piece goes to the rank whose rows it is of, at once. That rank adds all ranks' in rank order, floats of 16 and 8 bits in float32,
    others in their own dtype, and rounds once more: the same bits in every run, whatever comes first. It needs the memory of the whole product, and adds by itself.

    Args:
        product: product(first, out, add) makes rows `first` and on of this rank's product [sum of rows, cols] in `out`, onto it if `add`. If it
            raises, the communicator ends, with that in the text, as the other ranks wait for what it would have made. On a GPU it enqueues
            on the current stream
        rows: of each rank's result: a number for all, or a list, one for each rank. The same on all ranks, as what follows
        cols: of each rank's result
        pieces: into how many parts a rank's rows are cut; None: measured, by all ranks together (`measured` has the figures): on GPUs as graphs
            where the product can be captured on all ranks

    Raises: ArgumentError, and what Tracker() does; on all ranks, if it is one rank's.
    """

    def __init__(self, product: Callable[[int, torch.Tensor, bool], object], rows: int | Sequence[int], cols: int, dtype: torch.dtype | None = None,
                 pieces: int | None = None, comm: Communicator | None = None, *, direct: bool = False) -> None:
        self.product, self.direct = product, direct
        super().__init__("RingReduceScatter", rows, cols, dtype, pieces, comm, int(bool(direct)))

    def _place(self, symmetric: bool) -> torch.Tensor:
        return zeros(max(self.rows_of), self.cols, dtype=self.dtype, symmetric=symmetric, comm=self.comm)

    def _make_shared(self) -> None:
        self._slots = [self._place(True) for _ in range(self.slots)]

    def _make_own(self) -> int:
        self._mine = [self._place(False) for _ in range(self.comm.size if self.direct else 1)]
        return sum(mine.nbytes for mine in self._mine)

    def _source(self, step: int) -> torch.Tensor:
        """Where the product of a step goes, and with the ring what it is added to."""
        return self._mine[step] if self.direct or not step else self._slots[step - 1]

    def _send_rule(self, tracker: Tracker, slot: int, first: int, end: int, come: tuple[torch.Tensor, int], used: tuple[torch.Tensor, int, int]) -> Rule:
        to = self._owner(slot) if self.direct else (self.comm.rank + 1) % self.comm.size
        return tracker.store(self._source(slot)[first:end], self._slots[slot][first:end], to, signal=come, awaits=[used],
                                  name="direct" if self.direct else "ring")

    def _sender(self, slot: int) -> int:
        return (self.comm.rank + (1 + slot if self.direct else -1)) % self.comm.size

    def _owner(self, slot: int) -> int:
        return (self.comm.rank - 1 - slot) % self.comm.size

    def _add(self, own: torch.Tensor) -> None:
        """Onto this rank's own product what has come from the others."""
        wide = torch.float32 if self.dtype in _ADDED_WIDER else self.dtype
        for p, (first, end) in enumerate(self._parts_of(self.comm.rank)):
            terms = {self.comm.rank: own}
            for slot in range(self.slots):
                self._come(slot, p)
                terms[self._sender(slot)] = self._slots[slot]
            total = terms[0][first:end].to(wide, copy=True)
            for rank in range(1, self.comm.size):
                total += terms[rank][first:end].to(wide)  # torch adds no floats of 8 bits to others
            own[first:end].copy_(total)

    def run(self) -> torch.Tensor:
        """This rank's rows of the sum. They stay until the next run. Collective."""
        self._next_run()
        for step in range(self.comm.size):
            of, adds = self._owner(step), step > 0 and not self.direct
            for p, (first, end) in enumerate(self._parts_of(of)):
                if adds:
                    self._come(step - 1, p)
                self._produce(self.first_of[of] + first, self._source(step)[first:end], adds)
                if step < self.slots:
                    self._send(step, p)
        own = self._source(self.slots)[:self.rows]
        if self.direct:
            self._add(own)
        self.mover.finish()
        return own


class RingAllGather(_Pieces):
    """The AllGather of a product's input, whose pieces arrive in the order in which the product takes them: own rows first, then those of the rank
    before, and so on. For ranks of one node on GPUs, of any on cpu devices; collective, and the communicator's one Tracker is its. On GPUs as RingReduceScatter.

    Args:
        product: product(first, rows) takes `rows`, the rows `first` and on of all ranks' input, one below the other. If it raises,
            the communicator ends, as RingReduceScatter's
        rows: of each rank's input: a number for all, or a list, one for each rank. The same on all ranks, as what follows
        cols: of each rank's input, which the caller stores into `input` before each run, when run() has returned (on a GPU: behind it on the stream)
        pieces: as RingReduceScatter's
    """

    def __init__(self, product: Callable[[int, torch.Tensor], object], rows: int | Sequence[int], cols: int, dtype: torch.dtype | None = None,
                 pieces: int | None = None, comm: Communicator | None = None) -> None:
        self.product = product
        super().__init__("RingAllGather", rows, cols, dtype, pieces, comm)

    def _make_shared(self) -> None:
        self.whole = zeros(sum(self.rows_of), self.cols, dtype=self.dtype, symmetric=True, comm=self.comm)

    @property
    def input(self) -> torch.Tensor:
        """This rank's rows."""
        return self._of(self.comm.rank)

    def _of(self, rank: int) -> torch.Tensor:
        return self.whole[self.first_of[rank]:self.first_of[rank] + self.rows_of[rank]]

    def _send_rule(self, tracker: Tracker, slot: int, first: int, end: int, come: tuple[torch.Tensor, int], used: tuple[torch.Tensor, int, int]) -> Rule:
        mine = self.input[first:end]
        return tracker.store(mine, mine, (self.comm.rank + 1 + slot) % self.comm.size, signal=come, awaits=[used], name="gather")

    def _sender(self, slot: int) -> int:
        return (self.comm.rank - 1 - slot) % self.comm.size

    def _owner(self, slot: int) -> int:
        return self.comm.rank

    def run(self) -> torch.Tensor:
        """Calls the product for all rows, and returns them; `input` may be changed then, and the others stay until the next run. Collective."""
        self._next_run()
        for p in range(self.pieces):  # the order in which they are taken elsewhere
            for slot in range(self.slots):
                self._send(slot, p)
        for step in range(self.comm.size):
            of = (self.comm.rank - step) % self.comm.size
            for p, (first, end) in enumerate(self._parts_of(of)):
                if step:
                    self._come(step - 1, p)
                self._produce(self.first_of[of] + first, self._of(of)[first:end])
        self.mover.settle(self._sends, self._run)
        self.mover.finish()
        return self.whole
