# SPDX-License-Identifier: MIT
"""The goals for GPU speed, and how far a run got. Needs neither torch nor a GPU.

All are ratios in one run on 4 H200 of one host, under MPS, medians of the slowest rank, weights not in a cache. "Sequence" is
the vendor's BLAS, or the best pooling kernel there is (ours or PyTorch's), followed by NCCL, both in one CUDA graph; with our
pooling it is the sum of the two. A large product alone is measured before fccd and after it, and both count: a GPU that
has become warm takes longer at the same power. "Kernel" is from the first slice's start to the last one's end within a rank: it
counts what a rank waits for others, as its time in a stream does; "stream" is from event to event on the caller's stream
through the daemon, many calls in a row. Its goals are of the same limit for each call by itself ("stream"), for as many in a
group as the sequence has in its graph ("grouped") and, of gemv_all_reduce and gemm_all_to_all, for operators that were
prepared once ("prepared"). The floor is what moving the operator's bytes, or its operations, take at rates that are measured
in the same run.

  operator              rows                               kernel                                   stream
  gemv_all_reduce       M1 N8192 K2048, M1 N4096 K3584     <= 0.55 of sequence                      <= 0.75 of sequence
  bf16                                                     <= 0.65 of GEMV + one-shot
                        M1 N8192 K7168, M1 N12288 K12288,  <= 0.80 of sequence                      <= 0.88 of sequence
                        M16 N8192 K7168                    <= 1.15 of the floor
                        M64 N8192 K7168                    <= 0.75 of sequence                      <= 0.82 of sequence
  gemm_all_to_all       four with M >= 4096                <= 1.08 of the longer of the product     <= 1.10 of it
  f16, bf16                                                   alone and the All-to-All alone
                        M1024 and M256 of the same N, K    <= 1.00 of sequence                      <= 1.03 of sequence
  embedding_all_to_all  four, ids uniform and Zipf(1.05)   <= 1.10 of the longer of pooling alone   <= 1.12 of it
  f32, f16                                                    and the All-to-All alone
                        the same, pooling alone, uniform   the floor >= 0.75 of it
  all_reduce            8 to 64 KB (gemv with K 8)         <= 4.5 us, and so comm_only
  noop                                                                                              <= 5 us + an empty kernel
  auto                  M from 1 to 16384                                                           <= 1.03 of sequence
  torch.ops             the first two of gemv_all_reduce   host: <= 6 us above fcc_gemv_all_reduce_enqueue
                                                           queued (without the CPU's part): <= 0.5 us above it

Those of collectives are of 2 GPUs of one host, in PyTorch's own memory, in CUDA graphs and by stream alike, against the best of NCCL and
PyTorch's symmetric memory, or NCCL alone:

  all, 4 KB to 256 MB                         <= 1.00 of the best
  all_reduce, 4 to 256 KB                     <= 0.60 of NCCL
  reduce_scatter, all_gather from 16 MB on    <= 0.85 of NCCL
  all_to_all, all_reduce from 16 MB on        <= 0.90 of NCCL
  all, what the CPU takes for a call          <= 1.00 of NCCL from PyTorch

Those of decode steps are of 2 GPUs of one host, in CUDA graphs, over shapes drawn at random, bf16: the product, the sum over the
ranks, the residual and RMSNorm against the best of the product with NCCL, with symmetric memory's one-shot or with FlashInfer behind it

  M 1 to 16                                   <= 0.85 at the median shape, <= 1.00 at each
  M 32 and 64                                 <= 0.92 at the median shape, <= 1.00 at each
  M 128 and 256                               <= 0.97 at the median shape, <= 1.03 at each
  what follows the product, 8 KB to 1 MB      <= 0.95 of FlashInfer's

of T3's sublayers: t3.judge(), beside.judge(); of programs: coconet/rows.py; and of the examples on these GPUs, in CUDA graphs

  dlrm.py, a forward step                     <= 0.80 of EmbeddingBag and NCCL
  llama.py, a decode step of batch 1          <= 0.86 of NCCL
"""
import statistics
from dataclasses import dataclass
from typing import Callable

from . import decode, figures, shapes
from .collectives import FCCD, NCCL, SYMMETRIC

MET, MISSED = "met", "missed"


class Missing(Exception):
    """Why there is no figure."""


class Times:
    """A row's medians; asking for one that is not there raises Missing."""

    def __init__(self, row, times, floor):
        self.row, self.times, self.floor_us = row, times, floor

    def get(self, key, name, none="not where ranks share a GPU"):
        """none: what it means that the time is None."""
        value = self.times.get(key, "not measured")
        if isinstance(value, dict):
            return value["median"]
        raise Missing(f"{name}: " + (value or none))

    def kernel(self, schedule="fused"):
        """In the longest rank; a row that could not be measured says so under the name without it."""
        key = f"{schedule} kernel"
        return self.get(f"{key}, longest rank" if isinstance(self.times.get(key, {}), dict) else key, key)

    def stream(self, schedule="fused"):
        return self.get(f"{schedule} stream", f"{schedule} stream")

    def grouped(self, schedule="fused"):
        return self.get(f"{schedule} grouped", f"{schedule} grouped")

    def prepared(self, schedule="fused"):
        return self.get(f"{schedule} prepared", f"{schedule} prepared", none="none can be prepared here")

    def compute(self):
        return self.get("compute", "the product alone")

    def all_to_all(self):
        return self.get("nccl", "the All-to-All alone")

    def floor(self):
        if not self.floor_us:
            raise Missing("floor: its rate was not measured")
        return self.floor_us

    def own_pooling(self):
        """Of one GPU: in the compute_only schedule no rank waits for another."""
        return self.get("compute_only kernel, longest rank", "our pooling alone")

    def pooling(self):
        """The best there is."""
        found = []
        for work in (self.own_pooling, self.compute):
            try:
                found.append(work())
            except Missing as e:
                missing = e
        if not found:
            raise missing
        return min(found)

    def sequence(self):
        measured = self.get("sequence", "sequence")
        if self.row.shape.operator != shapes.EMBEDDING:
            return measured
        return min(measured, self.pooling() + self.all_to_all())


@dataclass(frozen=True)
class Goal:
    text: str  # of the ratio or difference
    limit: float
    value: Callable  # of Times
    most: bool = True  # False: at least
    unit: str = ""


def below(what, limit, against, of):
    """`what` ("kernel", "stream", "grouped", "prepared") in terms of `of`."""
    return Goal(f"{what} / {against}", limit, lambda t: getattr(t, what)() / of(t))


STREAMS = ("stream", "grouped", "prepared")


def streams_below(limit, against, of, whats=STREAMS):
    return tuple(below(what, limit, against, of) for what in whats)


def sequence(t):
    return t.sequence()


def longer_alone(t):
    return max(t.compute(), t.all_to_all())


def longer_pooling(t):
    return max(t.pooling(), t.all_to_all())


def above_kernel(how):
    def value(t):
        return t.get(f"noop {how}", f"noop {how}") - t.get(f"kernel {how}", f"kernel {how}")
    return Goal(f"noop - empty kernel, {how}", 5.0, value, unit=" us")


def above_c(what, limit):
    """What the way through torch.ops costs."""
    def value(t):
        return t.get(f"torch.ops {what}", f"torch.ops {what}") - t.get(f"C {what}", f"C {what}")
    return Goal(f"torch.ops - C, {what}", limit, value, unit=" us")


def fastest(t, what):
    """Of NCCL and symmetric memory."""
    found = [t.times[f"{way} {what}"]["median"] for way in (NCCL, *SYMMETRIC) if isinstance(t.times.get(f"{way} {what}"), dict)]
    if not found:
        raise Missing(f"{NCCL} {what}: {t.times.get(f'{NCCL} {what}') or 'not where ranks share a GPU'}")
    return min(found)


def collective_below(what, limit, best):
    """Of fccd's time."""
    def value(t):
        return t.get(f"{FCCD} {what}", f"{FCCD} {what}") / (fastest(t, what) if best else t.get(f"{NCCL} {what}", f"{NCCL} {what}"))
    return Goal(f"{what} / {'best' if best else NCCL}", limit, value)


def collective_goals(shape):
    small, large = shape.nbytes <= 256 << 10, shape.nbytes >= 16 << 20
    nccl = 0.6 if shape.kind == "all_reduce" and small else None
    if large:
        nccl = {"reduce_scatter": 0.85, "all_gather": 0.85, "all_to_all": 0.9, "all_reduce": 0.9}.get(shape.kind)
    found = [collective_below(what, 1.0, best=True) for what in ("graph", "stream")]
    found += [collective_below(what, nccl, best=False) for what in ("graph", "stream") if nccl]
    return (*found, collective_below("host", 1.0, best=False))


@dataclass(frozen=True)
class DecodeClass:
    """The decode steps of some M, and how much of the best of the others fccd may take: at the median shape, and at each."""
    least: int  # of M
    most: int
    median: float
    worst: float

    @property
    def text(self):
        return f"M {self.least} to {self.most}"


DECODE = (DecodeClass(1, 16, 0.85, 1.0), DecodeClass(32, 64, 0.92, 1.0), DecodeClass(128, 256, 0.97, 1.03))
NORM = (Goal(f"{FCCD} / {decode.FLASHINFER}", 0.95, lambda t: t.get(FCCD, FCCD) / t.get(decode.FLASHINFER, decode.FLASHINFER)),)


EXAMPLES = {program: Goal(f"{FCCD} / {NCCL}", limit, lambda t: t.get(FCCD, FCCD) / t.get(NCCL, NCCL))
            for program, limit in (("dlrm", 0.80), ("llama", 0.86))}


def decode_ratio(times):
    """fccd's time of the best of the others'; None where fccd or all others have none."""
    known = {way: value["median"] for way, value in times.items() if isinstance(value, dict)}
    return figures.ratio(known.get(FCCD), [known.get(way) for way in decode.OTHERS])


def decode_judge(results):
    """[(what it is of, as judge() says)]: for each class with shapes the median and the worst of their ratios. results: {row: times}"""
    found = []
    for of in DECODE:
        rows = [row for row in results if row.part == shapes.DECODE and of.least <= row.shape.m <= of.most]
        ratios = {row: ratio for row in rows if (ratio := decode_ratio(results[row])) is not None}
        there = f"{len(ratios)} of {len(rows)} shapes"
        worst = max(ratios, key=ratios.get, default=None)
        alone = sum(not isinstance(results[row].get(decode.FLASHINFER), dict) for row in ratios)
        without = f"{alone} without {decode.FLASHINFER}" if alone else None
        for what, limit, figure in (("median", of.median, statistics.median(ratios.values()) if ratios else None),
                                    ("worst", of.worst, ratios.get(worst))) if rows else ():
            why = "none has a figure" if worst is None else f"at {worst.name}" if what == "worst" else without
            found.append((f"{shapes.DECODE} {of.text}, {there}",
                          {"goal": f"{FCCD} / best, {what}", "limit": f"<= {limit:.2f}", "figure": figure,
                           "verdict": None if figure is None else MET if figure <= limit else MISSED, "why": why}))
    return found


GEMV_SHORT = (below("kernel", 0.55, "sequence", sequence),
              below("kernel", 0.65, "GEMV + one-shot", lambda t: t.get("one_shot", "GEMV + one-shot")),
              *streams_below(0.75, "sequence", sequence))
GEMV_LONG = (below("kernel", 0.80, "sequence", sequence), below("kernel", 1.15, "floor", lambda t: t.floor()),
             *streams_below(0.88, "sequence", sequence))
GEMV_WIDE = (below("kernel", 0.75, "sequence", sequence), *streams_below(0.82, "sequence", sequence))
GEMM_LARGE = (below("kernel", 1.08, "max(GEMM, A2A)", longer_alone), *streams_below(1.10, "max(GEMM, A2A)", longer_alone))
GEMM_SMALL = (below("kernel", 1.00, "sequence", sequence), *streams_below(1.03, "sequence", sequence))
EMBEDDING = (below("kernel", 1.10, "max(pooling, A2A)", longer_pooling),
             *streams_below(1.12, "max(pooling, A2A)", longer_pooling, whats=STREAMS[:2]))
POOLING = (Goal("floor / our pooling alone", 0.75, lambda t: t.floor() / t.own_pooling(), most=False),)
ALL_REDUCE = (Goal("fused, kernel", 4.5, lambda t: t.kernel("fused"), unit=" us"),
              Goal("comm_only, kernel", 4.5, lambda t: t.kernel("comm_only"), unit=" us"))
NOOP = (above_kernel("pipelined"), above_kernel("synchronised"))
TORCH_OPS = (above_c("host", 6.0), above_c("queued", 0.5))
AUTO = tuple(Goal(f"{what} / sequence", 1.03, lambda t, what=what: getattr(t, what)("auto") / t.sequence())
             for what in STREAMS)


def goals_of(row):
    s = row.shape
    alone = {shapes.ALL_REDUCE: ALL_REDUCE, shapes.NOOP: NOOP, shapes.AUTO: AUTO, shapes.TORCH_OPS: TORCH_OPS}
    if row.part in alone:
        return alone[row.part]
    if row.part == shapes.COLLECTIVES:
        return collective_goals(s)
    if row.part in (shapes.DECODE, shapes.BESIDE, shapes.T3):
        return ()  # decode_judge(), beside.judge() and t3.judge() have those of all shapes together
    if row.part == shapes.NORM:
        return NORM
    if row.part == shapes.EXAMPLES:
        return (EXAMPLES[s.program],)
    if row.part == shapes.GEMV:
        return GEMV_WIDE if s.m == 64 else GEMV_LONG if s.k > 4096 else GEMV_SHORT
    if row.part == shapes.GEMM:
        return GEMM_LARGE if s.large else GEMM_SMALL
    return EMBEDDING + (() if s.zipf else POOLING)


def judge(row, times, floor):
    """[{"goal", "limit", "figure", "verdict", "why"}], one for each goal of a row: the figure is None where something is
    missing, and `why` says what."""
    found = []
    for goal in goals_of(row):
        said = {"goal": goal.text, "limit": f"{'<=' if goal.most else '>='} {goal.limit:.2f}{goal.unit}", "figure": None,
                "verdict": None, "why": None}
        try:
            figure = goal.value(Times(row, times, floor))
            reached = figure <= goal.limit if goal.most else figure >= goal.limit
            said.update(figure=figure, verdict=MET if reached else MISSED)
        except Missing as e:
            said["why"] = str(e)
        found.append(said)
    return found


def count_text(judged):
    """Of all rows' goals together."""
    verdicts = [g["verdict"] for found in judged for g in found]
    return (f"goals: {verdicts.count(MET)} met, {verdicts.count(MISSED)} missed, {verdicts.count(None)} without a figure")
