# SPDX-License-Identifier: MIT
"""For tests of a run's course without a GPU: ranks that make up their answers."""
import contextlib
import io
from types import SimpleNamespace
from unittest.mock import patch

from . import beside, collectives, comparison, decode, examples, report, t3, torch_ops

RANKS = 4


class FakeRanks:
    """Answers as ranks do. us(part, arguments) makes up times; an exception of its is the part's."""

    def __init__(self, us, group=True):
        self.settings = SimpleNamespace(ranks=RANKS, gpus=RANKS if group else 1, seed=1)
        self.group, self.processes, self.starts, self.us = group, [None], 1, us
        self.asked = []

    def time_left(self):
        return 100.0

    def part(self, name, limit_s, **arguments):
        del limit_s
        self.asked.append((name, arguments))
        if name.endswith("_rate"):
            return [[{"memory_rate": 4e12, "link_rate": 3e11, "matrix_rate": 6e14}[name]]] * RANKS
        if name in ("decode_rival_find", "decode_rival_open"):
            return [None] * RANKS
        if name in ("prepare", "fcc_connect", "fcc_open", "fcc_close", "fcc_fill", "release"):
            return [{"input sets": 2}] * RANKS
        if name == "fcc_launches":
            return [{"operators": 100, "bound": 80, "recalled": 7}] + [None] * (RANKS - 1)
        us = self.us(name, arguments)
        if name in ("fcc_check", "fcc_prepare"):
            return [us if isinstance(us, str) else (us, "bits")] * RANKS
        if name == "fcc_kernel":
            return [[(us, us / 2, us / 4)] * 3] * RANKS
        if name in ("fcc_stream", "fcc_prepared"):
            return [([us], (0.0, "bits"))] * RANKS
        if name == "fcc_queued":
            return [[us]] * RANKS
        if name == "fcc_latency":
            return [([us], [us])] * RANKS
        if name == "noop":
            return [{f"{what} {how}": [us + (what == "noop") * 4] for what in ("noop", "kernel", "kernel and noop")
                     for how in ("pipelined", "queued", "synchronised")}] * RANKS
        if name == "torch_ops":
            return [{"result": (us, "bits"), "times": {f"{way} {what}": [60.0 + r + 5 * (way != "C") * (what == "host")]
                                                       for way in torch_ops.WAYS for what in torch_ops.WHATS}} for r in range(RANKS)]
        if name == "collectives":
            ways = ("fccd", "NCCL", *collectives.symmetric_ways(arguments["shape"].kind, arguments["shape"].nbytes))
            gone = {"copies": "RuntimeError: no such operator"} if "copies" in ways else {}
            return [{"wrong": us if isinstance(us, int) else 0, "missing": gone,
                     "times": {f"{way} {what}": [50.0 + i + r] for i, way in enumerate(ways) if way not in gone
                               for what in collectives.WHATS}} for r in range(RANKS)]
        if name == "t3":
            return us if isinstance(us, list) else [t3_answer(arguments["shape"], us + r) for r in range(RANKS)]
        if name == "beside":
            return us if isinstance(us, list) else [beside_answer(us + r) for r in range(RANKS)]
        if name in ("t3_open", "beside_open"):
            return [None] * RANKS
        if name in ("decode", "decode_rival"):
            return us if isinstance(us, list) else [decode_answer(name, arguments, us + r) for r in range(RANKS)]
        return [[us + r] for r in range(RANKS)]  # baseline


def decode_answer(name, arguments, us):
    """A rank's: fccd takes us, the product half of that, NCCL and one-shot twice, FlashInfer a fifth more."""
    ways = (decode.FLASHINFER,) if name == "decode_rival" else decode.ways_of(arguments["shape"])
    takes = {decode.FCCD: 1.0, decode.PRODUCT: 0.5, decode.FLASHINFER: 1.2}
    times = {way: [us * takes.get(way, 2.0)] for way in ways if name == "decode_rival" or way != decode.FLASHINFER}
    return {"times": times, "wrong": dict.fromkeys(times, 0), "missing": {}, "apart": 0}


def t3_answer(shape, us):
    """A rank's: fccd and the product take us, the exchange a half of that, NCCL twice, PyTorch's is not there, all others a fifth more."""
    takes = {t3.FCCD: 1.0, t3.PRODUCT: 1.0, t3.EXCHANGE: 0.5, t3.NCCL: 2.0}
    times = {way: [us * takes.get(way, 1.2)] for way in t3.ways_of(shape) if way != t3.PYTORCH}
    return {"times": times, "wrong": dict.fromkeys(times, 0), "missing": {t3.PYTORCH: "RuntimeError: no such operator"}, "pieces": 4}


def beside_answer(us):
    """A rank's: the link is nine tenths busy."""
    return {"times": {beside.ALONE: [us], beside.COPIES: [us * 1.02], beside.COLLECTIVE: [us * 1.2], beside.NCCL: [us * 1.3]},
            "rates": dict.fromkeys(beside.WAYS[1:], [2.7e11])}


def times_100(name, arguments):
    del arguments
    return 0.0 if name in ("fcc_check", "fcc_prepare", "torch_ops") else 100.0


def example_times(program, settings, limit_s):
    del program, settings
    assert 0 < limit_s <= 100
    return {"fccd": 70.0, "NCCL": 100.0}


def measured(found, times=example_times, missing=None):
    with (contextlib.redirect_stderr(io.StringIO()), patch.object(examples, "times", times),
          patch.object(examples, "missing", lambda program: missing)):
        found.run(lambda: "clocks")
    return found


def run(rows, us=times_100, group=True):
    return measured(comparison.Comparison(FakeRanks(us, group), rows))


def printed(found):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        report.print_report({"date": "today"}, found)
    return out.getvalue()
