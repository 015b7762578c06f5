# SPDX-License-Identifier: MIT
"""The order of a run: every shape's baselines, then fccd's check and times; and what came out, good or bad."""
import math
import sys
import time

from . import figures, shapes
from .baselines import BASELINES
from .ranks import OutOfTime, PartFailed

PART_LIMIT_S = 45
SCHEDULES = ("fused", "sequential")


class Comparison:
    """rates: what the GPUs can do, of the slowest rank. shapes: by operator and name, {"times": {key: figures or a word},
    "errors": {...}}. failures and wrong: lines of text. complete: the time sufficed."""

    def __init__(self, ranks, chosen):
        self.ranks, self.chosen = ranks, chosen
        self.rates, self.rate_figures = {}, {}
        self.shapes = {s: {"times": {}, "errors": {}} for s in chosen}
        self.failures, self.wrong = [], []
        self.fccd_failed = False
        self.complete = True
        self.clocks_busy = None
        self.prepared = self.opened = None  # (starts, shape) for which the ranks have baselines' inputs, an fccd session
        self.begin = time.monotonic()

    def say(self, text):
        print(f"{time.monotonic() - self.begin:6.1f} s  {text}", file=sys.stderr, flush=True)

    def attempt(self, what, work):
        """work()'s result, or None when it failed, which is noted."""
        try:
            return work()
        except PartFailed as e:
            self.failures.append(f"{what}: {e}")
            self.say(self.failures[-1])
            return None

    def alive(self):
        """Ranks to work with; PartFailed if they cannot be had."""
        if self.ranks.processes:
            return
        try:
            self.ranks.start()
        except PartFailed as e:
            if not self.ranks.processes:
                raise
            self.failures.append(str(e))  # no NCCL, but ranks
            self.say(str(e))

    def run(self, clocks):
        """Measure everything. clocks() says how fast the GPUs' clocks are, and is asked right after they were busy."""
        try:
            self.attempt("start", self.alive)
            if not self.ranks.processes:
                self.complete = False
                return
            self.measure_rates(clocks)
            for shape in self.chosen:
                self.say(f"{shape.operator} {shape.name}")
                self.measure_baselines(shape)
                self.measure_fccd(shape)
        except OutOfTime:
            self.complete = False
            self.failures.append("the time limit has passed: what is missing in the tables was not measured")
            self.say(self.failures[-1])

    # ---- what the GPUs can do ----

    def measure_rates(self, clocks):
        self.measure_rate("memory", "memory_rate")
        if self.ranks.group and self.ranks.settings.ranks > 1:
            self.measure_rate("link", "link_rate")
        self.measure_rate("matrix", "matrix_rate", dtype="float16")
        self.clocks_busy = clocks()

    def measure_rate(self, what, part, **arguments):
        def work():
            self.alive()
            return self.ranks.part(part, PART_LIMIT_S, **arguments)
        found = self.attempt(f"rate of {what}", work)
        if found:
            summaries = [figures.summary(samples) for samples in found]
            self.rate_figures[what] = min(summaries, key=lambda s: s["median"])
            self.rates[what] = self.rate_figures[what]["median"]

    # ---- baselines ----

    def measure_baselines(self, shape):
        times = self.shapes[shape]["times"]
        for baseline in BASELINES[shape.operator]:
            if baseline.needs_group and not self.ranks.group:
                times[baseline.key] = None
                continue
            found = self.attempt(f"{shape.operator} {shape.name}: {baseline.title}", lambda b=baseline: self.baseline(shape, b))
            times[baseline.key] = figures.slowest(found) if found else "failed"
        if self.prepared:
            self.attempt(f"{shape.operator} {shape.name}: release", self.release)

    def baseline(self, shape, baseline):
        self.alive()
        if self.prepared != (self.ranks.starts, shape):
            self.shapes[shape].update(self.ranks.part("prepare", PART_LIMIT_S, shape=shape)[0])
            self.prepared = (self.ranks.starts, shape)
        return self.ranks.part("baseline", PART_LIMIT_S, key=baseline.key)

    def release(self):
        self.prepared = None
        if self.ranks.processes:
            self.ranks.part("release", PART_LIMIT_S)

    # ---- fccd ----

    def measure_fccd(self, shape):
        for schedule in SCHEDULES:
            if not self.fccd_part(shape, schedule, "check", self.fccd_check):
                self.shapes[shape]["times"].update({f"{schedule} {what}": self.word(shape, schedule)
                                                    for what in ("kernel", "stream", "latency")})
                continue
            for what, work in (("kernel", self.fccd_kernel), ("stream", self.fccd_stream), ("latency", self.fccd_latency)):
                self.shapes[shape]["times"].setdefault(f"{schedule} {what}", "failed")
                self.fccd_part(shape, schedule, what, work)
        self.attempt(f"{shape.operator} {shape.name}: close", self.fccd_close)

    def word(self, shape, schedule):
        return "wrong" if f"{schedule} before" in self.shapes[shape]["errors"] else "failed"

    def fccd_part(self, shape, schedule, what, work):
        """work()'s result. After a failure, the next part begins with a new communicator."""
        failures = len(self.failures)
        found = self.attempt(f"{shape.operator} {shape.name}: fccd {schedule}: {what}",
                             lambda: self.fccd_work(shape, schedule, work))
        if len(self.failures) > failures:
            self.fccd_failed = True
            self.opened = None
        return found

    def fccd_work(self, shape, schedule, work):
        self.alive()
        if self.opened != (self.ranks.starts, shape):
            uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
            self.ranks.part("fcc_open", PART_LIMIT_S, shape=shape, uid=uid)
            self.opened = (self.ranks.starts, shape)
        return work(shape, schedule)

    def judge(self, shape, schedule, when, answers):
        """True if every rank's result is right, and for a reduction the same everywhere. NaN is not."""
        limit = shapes.ERROR_LIMITS[shape.dtype]
        errors = [error for error, _ in answers]
        self.shapes[shape]["errors"][f"{schedule} {when}"] = [e if math.isfinite(e) else str(e) for e in errors]
        what = f"{shape.operator} {shape.name}: fccd {schedule}, {when} timing"
        found = [f"rank {r}: relative error {error:.3g}, allowed is {limit:g}" for r, error in enumerate(errors)
                 if not error <= limit]
        if len({digest for _, digest in answers}) > 1:
            found.append("the ranks' results differ in their bits")
        for text in found:
            self.wrong.append(f"{what}: {text}")
            self.say(f"WRONG: {what}: {text}")
        return not found

    def fccd_check(self, shape, schedule):
        return self.judge(shape, schedule, "before", self.ranks.part("fcc_check", PART_LIMIT_S, schedule=schedule))

    def fccd_kernel(self, shape, schedule):
        whole, longest = self.ranks.part("fcc_kernel", PART_LIMIT_S, schedule=schedule)[0]  # rank 0 has the trace of all
        times = self.shapes[shape]["times"]
        times[f"{schedule} kernel"] = figures.summary(whole)
        times[f"{schedule} kernel, longest rank"] = figures.summary(longest)

    def fccd_stream(self, shape, schedule):
        answers = self.ranks.part("fcc_stream", PART_LIMIT_S, schedule=schedule)
        right = self.judge(shape, schedule, "after", [answer[1] for answer in answers])
        self.shapes[shape]["times"][f"{schedule} stream"] = figures.slowest([a[0] for a in answers]) if right else "wrong"

    def fccd_latency(self, shape, schedule):
        answers = self.ranks.part("fcc_latency", PART_LIMIT_S, schedule=schedule)
        times = self.shapes[shape]["times"]
        times[f"{schedule} latency"] = figures.slowest([a[0] for a in answers])
        times[f"{schedule} latency, CPU"] = figures.slowest([a[1] for a in answers])

    def fccd_close(self):
        self.opened = None
        if self.ranks.processes:
            self.ranks.part("fcc_close", PART_LIMIT_S)
