# SPDX-License-Identifier: MIT
"""How the rules of a ring are worked off: by the worker's thread for ranks on cpu devices, or by this rank's own streams on a GPU. Both have the same methods:

    arrival(tracker, words, at)  how it is known that the rows of a place have come, whose word is words[at]
    tell(rule)                   raise the signal of a rule without rows
    send(rule)                   its rows have been produced by this thread, or by the current stream
    come(arrival, run)           what follows sees the rows
    settle(sends, run)           what rules have sent up to this run has gone, so its memory may be changed
    finish()                     a run's calls end here
    measure(run, times)          seconds of run(), the least of some; all ranks together
    tries                        run() is called only to see whether it can be captured: if it fails, nobody waits for it
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ..collectives import all_reduce
from ..communicator import Communicator
from .tracker import Rule, Tracker, signal_wait

REPLAYS = 8  # of a graph, that are timed together


class Threads:
    tries = False

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    def arrival(self, tracker: Tracker, words: torch.Tensor, at: int) -> tuple[torch.Tensor, int]:
        del tracker
        return words, at

    def tell(self, rule: Rule) -> None:
        rule.add()

    def send(self, rule: Rule) -> None:
        rule.add()

    def come(self, arrival: tuple[torch.Tensor, int], run: int) -> None:
        signal_wait(*arrival, run, comm=self.comm)

    def settle(self, sends: Sequence[Sequence[Rule]], run: int) -> None:
        if run:
            for rules in sends:
                for rule in rules:
                    rule.wait(run)

    def finish(self) -> None:
        pass

    def measure(self, run: Callable[[], object], times: int) -> float:
        run()
        best = float("inf")
        for _ in range(times):
            self.comm.barrier()
            begin = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - begin)
        return best


class Streams:
    """Copies have a stream of their own, which forks from the current one at each send and joins it at the end of a run: so all may be captured."""

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.tries = comm, False
        self._side = torch.cuda.Stream(comm.device)

    @property
    def _current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.comm.device)

    def arrival(self, tracker: Tracker, words: torch.Tensor, at: int) -> Rule:
        return tracker.signal(self.comm.rank, awaits=[(words, at, 0)], name="come")

    def tell(self, rule: Rule) -> None:
        rule.run_enqueue()

    def send(self, rule: Rule) -> None:
        self._side.wait_stream(self._current)
        with torch.cuda.stream(self._side):
            rule.run_enqueue()

    def come(self, arrival: Rule, run: int) -> None:
        del run  # the GPU counts them
        arrival.run_enqueue()

    def settle(self, sends: Sequence[Sequence[Rule]], run: int) -> None:
        """The end of each run does it."""

    def finish(self) -> None:
        self._current.wait_stream(self._side)

    def measure(self, run: Callable[[], object], times: int) -> float:
        """By replays of a graph, as a run's calls one by one would measure the CPU; where the product cannot be captured on some rank, by calls."""
        run()
        graph = self._captured(run)
        failed = all_reduce(torch.tensor([0 if graph else 1], dtype=torch.int32, device=self.comm.device), reduction="max", comm=self.comm)
        call, calls = (run, 1) if int(failed[0]) or graph is None else (graph.replay, REPLAYS)
        best = float("inf")
        for _ in range(times):
            torch.cuda.synchronize(self.comm.device)
            self.comm.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            torch.cuda.synchronize(self.comm.device)
            best = min(best, (time.perf_counter() - begin) / calls)
        return best

    def _captured(self, run: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.comm.device)
        self.tries = True
        try:
            with torch.cuda.device(self.comm.device), torch.cuda.graph(graph, capture_error_mode="thread_local"):  # a stream of this rank's GPU
                run()
        except RuntimeError:  # whatever the product does that a capture forbids
            torch.cuda.synchronize(self.comm.device)
            return None
        finally:
            self.tries = False
        return graph
