# SPDX-License-Identifier: MIT
"""Compute first (T3's arbitration): what a product loses beside an exchange that keeps the link busy, and how busy it keeps it.

  alone       PyTorch's product
  copies      beside it rows are stored at the next rank by copy engines, by runs of a rule that another stream works off
  collective  beside it fcc.all_gather, by workgroups
  NCCL        beside it NCCL's all_gather

The exchange is begun first and lasts until the product has ended. Its rate counts what was sent between the product's begin and its end.
"""
import statistics

from . import figures, inputs, shapes
from .collectives import NCCL, join

ALONE, COPIES, COLLECTIVE = "alone", "copies", "collective"
WAYS = (ALONE, COPIES, COLLECTIVE, NCCL)
MOST = {COPIES: 1.05, COLLECTIVE: 1.12}  # times the product alone
BUSY = 0.8  # of the link's rate, at least, while that is judged
SENT_BYTES = 128 << 20  # by a rank in one step of the exchange: long enough that what is between two steps does not matter
SAMPLES, WARMUP = 12, 3


class Session:
    """rank: of rank.py, whose processes have a group of NCCL's."""

    def __init__(self, rank, uid):
        self.rank, self.torch, self.dist = rank, rank.torch, rank.torch.distributed
        self.fcc, self.comm = join(rank, uid)
        torch, device = self.torch, rank.at.device
        self.side = torch.cuda.Stream(device)
        n = SENT_BYTES // 4
        self.own = self.fcc.zeros(n, dtype=torch.float32, comm=self.comm)
        self.place = self.fcc.zeros(n, dtype=torch.float32, symmetric=True, comm=self.comm)
        self.whole = torch.empty(n * rank.settings.ranks, device=device)
        self.tracker = self.fcc.Tracker(self.comm)
        self.rule = self.tracker.store(self.own, self.place, (rank.rank + 1) % rank.settings.ranks, name="beside")

    def close(self):
        self.tracker.close()
        self.comm.close()

    def steps(self):
        """{way: one step of its exchange, in which each rank sends SENT_BYTES to each other}"""
        return {COPIES: self.rule.run_enqueue, COLLECTIVE: lambda: self.fcc.all_gather(self.own, self.comm),
                NCCL: lambda: self.dist.all_gather_into_tensor(self.whole, self.own)}

    def measure(self, shape):
        """{"times": {way: [us of the product]}, "rates": {way: [bytes a second that leave this GPU meanwhile]}}"""
        torch, at = self.torch, self.rank.at
        torch.cuda.empty_cache()
        at.shape = shape
        a, b = inputs.normal(at, (shape.m, shape.k), shape.dtype, at.rank, 0, 0), inputs.normal(at, (shape.k, shape.n), shape.dtype, at.rank, 0, 1)
        out = torch.empty(shape.m, shape.n, dtype=a.dtype, device=at.device)
        calls = shape.group
        torch.mm(a, b, out=out)
        product = self.rank.captured(lambda _: torch.mm(a, b, out=out), calls, 1)
        found = {"times": {ALONE: self.rank.time(product.replay, calls, SAMPLES, WARMUP)}, "rates": {}}
        us = statistics.median(found["times"][ALONE]) * calls
        for way, step in self.steps().items():
            found["times"][way], found["rates"][way] = self.beside(product, calls, us, self.exchange(step), (at.ranks - 1 if way != COPIES else 1) * SENT_BYTES)
        del product
        return found

    def exchange(self, step):
        """A graph of one step."""
        with self.torch.cuda.stream(self.side):
            step()
        self.side.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local"):
            step()
        return graph

    def beside(self, product, calls, us, step, nbytes):
        """(us of a call of the product, rates), one of each for a sample. Every rank makes as many steps: what the slowest needs."""
        torch, times, rates = self.torch, [], []
        own = self.torch.tensor([self.steps_needed(step, us)], device=self.rank.at.device)
        self.dist.all_reduce(own, op=self.dist.ReduceOp.MAX)
        for sample in range(WARMUP + SAMPLES):
            self.dist.barrier()
            torch.cuda.synchronize()
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(int(own[0]) + 1)]
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(self.side):
                for mark in marks[:-1]:
                    step.replay()
                    mark.record()
                step.replay()
                marks[-1].record()
            self.rank.stream.wait_event(marks[0])  # the exchange has begun on all ranks
            with torch.cuda.stream(self.rank.stream):
                begin.record()
                product.replay()
                end.record()
            torch.cuda.synchronize()
            if sample < WARMUP:
                continue
            times.append(begin.elapsed_time(end) * 1e3 / calls)
            inside = [begin.elapsed_time(mark) for mark in marks if begin.elapsed_time(mark) >= 0 and mark.elapsed_time(end) >= 0]
            rates.append((len(inside) - 1) * nbytes / ((inside[-1] - inside[0]) * 1e-3) if len(inside) > 1 else 0.0)
        return times, rates

    def steps_needed(self, step, us):
        """That last for longer than the product does, also where that takes twice its time."""
        with self.torch.cuda.stream(self.side):
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(4):
                step.replay()
            end.record()
        self.side.synchronize()
        return max(4, 3 + int(2 * us / max(begin.elapsed_time(end) * 1e3 / 4, 1)))


def slowest_rates(answers):
    """{way: bytes a second, of the rank with the least}"""
    return {way: min(statistics.median(answer["rates"][way]) for answer in answers) for way in answers[0]["rates"]}


def judge(results, rates):
    """[(what it is of, as goals.judge() says)]: of each way the largest slow-down of a row. results: {row: {"times", "link rates"}}"""
    rows = [row for row in results if row.part == shapes.BESIDE]
    found = []
    for way, most in MOST.items() if rows else ():
        values, idle = {}, []
        for row in rows:
            times = results[row]["times"]
            if isinstance(times.get(ALONE), dict) and isinstance(times.get(way), dict):
                values[row.name] = times[way]["median"] / times[ALONE]["median"]
                if not rates.get("link") or results[row]["link rates"][way] < BUSY * rates["link"]:
                    idle.append(row.name)
        figure = max(values.values(), default=None)
        busy = figure is not None and not idle
        found.append((f"{shapes.BESIDE} {way}, {len(values)} of {len(rows)} shapes",
                      {"goal": "product beside it / alone, worst", "limit": f"<= {most:.2f}", "figure": figure,
                       "verdict": None if not busy else "met" if figure <= most else "missed",
                       "why": "none has a figure" if figure is None else f"the link was less than {BUSY:.0%} busy at {', '.join(idle)}" if idle else None}))
    return found


def table(comparison):
    ranks, link = comparison.ranks.settings.ranks, comparison.rates.get("link")
    lines = [["row", *WAYS, *(f"{way} /link" for way in WAYS[1:])]]
    for row in comparison.chosen:
        if row.part == shapes.BESIDE:
            result = comparison.results[row]
            cells = [value["median"] if isinstance(value, dict) else value for value in map(result["times"].get, WAYS)]
            sent = result.get("link rates", {})
            lines.append([row.name, *map(figures.cell, cells), *(f"{sent[way] / link:.2f}" if link and way in sent else "-" for way in WAYS[1:])])
    return figures.table_text(f"{shapes.BESIDE}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)
