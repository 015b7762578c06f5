# SPDX-License-Identifier: MIT
"""The order of a run: every shape's baselines, then fccd's check and times; and what came out, good or bad."""
import math
import sys
import time

from . import baselines, beside, collectives, decode, examples, figures, noop, shapes, t3, torch_ops
from .collectives import FCCD
from .ranks import OutOfTime, PartFailed

PART_LIMIT_S = 45
T3_LIMIT_S = 90  # the largest take 20 ms a call, in seven ways
NO_RESULT = ("compute_only", "comm_only")  # halves of the sequential schedule, for measurements only


class Comparison:
    """rates: what the GPUs can do, of the slowest rank. results: by row, {"times": {key: figures, a word, or None where ranks
    share a GPU}, "errors": {...}}. failures and wrong: lines of text. complete: the time sufficed."""

    def __init__(self, ranks, chosen):
        self.ranks, self.chosen = ranks, chosen
        self.rates, self.rate_figures = {}, {}
        self.results = {row: {"times": {}, "errors": {}} for row in chosen}
        self.failures, self.wrong = [], []
        self.fccd_failed = False
        self.complete = True
        self.clocks_busy = None
        self.unprepared = None  # why no operator can be prepared here
        self.rival = self.rival_missing = None  # the starts of the ranks that have FlashInfer ready; why it is not used any more
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
            for row in self.chosen:
                self.say(row.text)
                if row.part == shapes.NOOP:
                    self.attempt(row.text, lambda r=row: self.measure_noop(r))
                    continue
                if row.part == shapes.TORCH_OPS:
                    self.measure_torch_ops(row)
                    continue
                if row.part == shapes.COLLECTIVES:
                    self.measure_collectives(row)
                    continue
                if row.part in (shapes.DECODE, shapes.NORM):
                    self.measure_decode(row)
                    continue
                if row.part == shapes.EXAMPLES:
                    self.measure_example(row)
                    continue
                if row.part == shapes.T3:
                    self.measure_t3(row)
                    continue
                if row.part == shapes.BESIDE:
                    self.measure_beside(row)
                    continue
                first = self.measure_baselines(row)
                self.measure_fccd(row)
                self.measure_again(row, first)
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

    def measure_baselines(self, row, only=None):
        """Returns all ranks' samples of each that was measured, by key. only: just these keys."""
        times, measured = self.results[row]["times"], {}
        for baseline in baselines.of(row):
            if only and baseline.key not in only:
                continue
            if baseline.needs_group and not self.ranks.group:
                times[baseline.key] = None
                continue
            found = self.attempt(f"{row.text}: {baseline.title}", lambda b=baseline: self.baseline(row, b))
            times[baseline.key] = figures.slowest(found) if found else "failed"
            if found:
                measured[baseline.key] = found
        if self.prepared:
            self.attempt(f"{row.text}: release", self.release)
        return measured

    def measure_again(self, row, first):
        """A large product takes all the power that its GPU may, and the longer the warmer that is: on one, 355 us at 55 degrees and
        371 at 70. So what it takes alone is measured before fccd and after it, and both count."""
        if row.part != shapes.GEMM or not row.shape.large or "compute" not in first:
            return
        again = self.measure_baselines(row, only=("compute",))
        both = [found["compute"] for found in (first, again) if "compute" in found]
        times = self.results[row]["times"]
        times["compute"] = figures.slowest([sum(samples, []) for samples in zip(*both)])
        times.update(zip(("compute before", "compute after"), map(figures.slowest, both)))

    def baseline(self, row, baseline):
        self.alive()
        if self.prepared != (self.ranks.starts, row):
            self.results[row].update(self.ranks.part("prepare", PART_LIMIT_S, shape=row.shape)[0])
            self.prepared = (self.ranks.starts, row)
        return self.ranks.part("baseline", PART_LIMIT_S, table=baselines.table_of(row), key=baseline.key)

    def release(self):
        self.prepared = None
        if self.ranks.processes:
            self.ranks.part("release", PART_LIMIT_S)

    # ---- fccd ----

    def measure_noop(self, row):
        self.alive()
        uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
        self.results[row]["times"] = noop.slowest(self.ranks.part("noop", PART_LIMIT_S, uid=uid))
        self.launches(row)
        self.fccd_close()

    def measure_torch_ops(self, row):
        def work():
            self.alive()
            uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
            answers = self.ranks.part("torch_ops", PART_LIMIT_S, shape=row.shape, uid=uid)
            self.fccd_close()
            return answers
        answers = self.attempt(row.text, work)
        times = self.results[row]["times"]
        keys = [f"{way} {what}" for way in torch_ops.WAYS for what in torch_ops.WHATS]
        if not answers:
            self.fccd_failed = True
            times.update(dict.fromkeys(keys, "failed"))
        elif not self.judge(row, "auto", "before", [answer["result"] for answer in answers]):
            times.update(dict.fromkeys(keys, "wrong"))
        else:
            times.update(dict.fromkeys(keys, "not held") | noop.slowest([answer["times"] for answer in answers]))

    def measure_collectives(self, row):
        """One communicator for all of them, as long as none fails."""
        times = self.results[row]["times"]
        keys = [f"{way} {what}" for way in (collectives.FCCD, collectives.NCCL) for what in collectives.WHATS]
        if not self.ranks.group:
            times.update(dict.fromkeys(keys))
            return

        def work():
            self.alive()
            if self.opened != (self.ranks.starts, shapes.COLLECTIVES):
                uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
                self.ranks.part("collectives_open", PART_LIMIT_S, uid=uid)
                self.opened = (self.ranks.starts, shapes.COLLECTIVES)
            return self.ranks.part("collectives", PART_LIMIT_S, shape=row.shape)
        answers = self.attempt(row.text, work)
        if not answers:
            self.fccd_failed, self.opened = True, None
            times.update(dict.fromkeys(keys, "failed"))
            return
        times.update(noop.slowest([answer["times"] for answer in answers]))
        times.update({f"{way} {what}": "not there" for way in answers[0]["missing"] for what in collectives.WHATS})
        self.results[row]["missing"] = answers[0]["missing"]
        found = [f"{row.text}: rank {r}: {answer['wrong']} elements differ from NCCL's" for r, answer in enumerate(answers)
                 if answer["wrong"]]
        if found:
            times.update({f"{collectives.FCCD} {what}": "wrong" for what in collectives.WHATS})
            self.wrong += found
            for text in found:
                self.say(f"WRONG: {text}")

    # ---- decode steps ----

    def measure_decode(self, row):
        """FlashInfer last, and in a part of its own, so that nothing else is lost with it."""
        times = self.results[row]["times"]
        if not self.ranks.group:
            times.update(dict.fromkeys(decode.ways_of(row.shape)))
            return
        answers = self.attempt(row.text, lambda: self.decode_part(row))
        if not answers:
            self.fccd_failed, self.opened = True, None
            times.update(dict.fromkeys(decode.ways_of(row.shape), "failed"))
            return
        self.decode_take(row, answers)
        self.decode_take(row, self.decode_rival(row))

    def decode_part(self, row):
        self.alive()
        if self.opened != (self.ranks.starts, shapes.DECODE):
            uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
            self.ranks.part("decode_open", PART_LIMIT_S, uid=uid)
            self.opened, self.rival = (self.ranks.starts, shapes.DECODE), None
        return self.ranks.part("decode", PART_LIMIT_S, shape=row.shape)

    def decode_rival(self, row):
        """What FlashInfer takes. Where it is not there, and from the time on when it has failed or hung, the answer is why: that is no
        failure of the run."""
        if not self.rival_missing:
            try:
                if self.rival != self.ranks.starts:
                    reasons = self.ranks.part("decode_rival_find", decode.RIVAL_LIMIT_S)
                    self.rival_missing = next((f"rank {r}: {why}" for r, why in enumerate(reasons) if why), None)
                if not self.rival_missing:
                    if self.rival != self.ranks.starts:
                        self.ranks.part("decode_rival_open", PART_LIMIT_S)
                        self.rival = self.ranks.starts
                    return self.ranks.part("decode_rival", PART_LIMIT_S)
            except PartFailed as e:
                self.rival_missing = str(e)
            self.say(f"{row.text}: {decode.FLASHINFER} is not used from here on: {self.rival_missing}")
        return [{"times": {}, "wrong": {}, "missing": {decode.FLASHINFER: self.rival_missing}}]

    def decode_take(self, row, answers):
        """A wrong result of fccd's is one of the run; of the others it is said, and nothing is compared with it."""
        times = self.results[row]["times"]
        for way in answers[0]["times"]:
            found = [f"{row.text}: {way}: rank {r}: {answer['wrong'][way]} elements are wrong" for r, answer in enumerate(answers)
                     if answer["wrong"][way]]
            if way == decode.FCCD:
                found += [f"{row.text}: {way}: rank {r}: {answer['apart']} elements are not rank 0's, bit by bit"
                          for r, answer in enumerate(answers) if answer["apart"]]
            times[way] = "wrong" if found else figures.slowest([answer["times"][way] for answer in answers])
            (self.wrong if way == decode.FCCD else self.failures).extend(found)
            for text in found:
                self.say(f"WRONG: {text}")
        for way, why in answers[0]["missing"].items():
            times[way] = "not there"
            self.results[row].setdefault("missing", {})[way] = why

    # ---- T3's sublayers ----

    def measure_t3(self, row):
        times = self.results[row]["times"]
        if not self.ranks.group:
            times.update(dict.fromkeys(t3.ways_of(row.shape)))
            return

        answers = self.session_part(row, "t3", T3_LIMIT_S, t3.ways_of(row.shape))
        if not answers:
            return
        self.results[row]["pieces"] = answers[0]["pieces"]
        self.ways_take(row, answers, (FCCD, t3.COLLECTIVE, t3.RING, *t3.WISHES))

    def measure_beside(self, row):
        times = self.results[row]["times"]
        if not self.ranks.group:
            times.update(dict.fromkeys(beside.WAYS))
            return
        answers = self.session_part(row, "beside", PART_LIMIT_S, beside.WAYS)
        if answers:
            times.update({way: figures.slowest([answer["times"][way] for answer in answers]) for way in beside.WAYS})
            self.results[row]["link rates"] = beside.slowest_rates(answers)

    def session_part(self, row, name, limit_s, ways):
        """All ranks' answers to a part that has a session of its own, which stays open for the next row; None: it failed."""
        def work():
            self.alive()
            if self.opened != (self.ranks.starts, name):
                uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
                self.ranks.part(f"{name}_open", PART_LIMIT_S, uid=uid)
                self.opened = (self.ranks.starts, name)
            return self.ranks.part(name, limit_s, shape=row.shape)
        answers = self.attempt(row.text, work)
        if not answers:
            self.fccd_failed, self.opened = True, None
            self.results[row]["times"].update(dict.fromkeys(ways, "failed"))
        return answers

    def ways_take(self, row, answers, ours):
        """A wrong result of ours is one of the run; of the others it is said, and nothing is compared with it."""
        times = self.results[row]["times"]
        for way in answers[0]["times"]:
            found = [f"{row.text}: {way}: rank {r}: {answer['wrong'][way]} elements are wrong{': ' + answer['where'][way] if way in answer.get('where', ()) else ''}"
                     for r, answer in enumerate(answers) if answer["wrong"].get(way)]
            times[way] = "wrong" if found else figures.slowest([answer["times"][way] for answer in answers])
            (self.wrong if way in ours else self.failures).extend(found)
            for text in found:
                self.say(f"WRONG: {text}")
        for way, why in answers[0]["missing"].items():
            times[way] = "not there"
            self.results[row].setdefault("missing", {})[way] = why

    def measure_example(self, row):
        """In processes of its own; these ranks give their memory back before."""
        times, program = self.results[row]["times"], row.shape.program
        why = examples.missing(program) if self.ranks.group else None
        if not self.ranks.group or why:
            times.update(dict.fromkeys(decode.ways_of(row.shape), why))
            return
        if self.opened:
            self.attempt(f"{row.text}: close", self.fccd_close)
        found = self.attempt(row.text, lambda: examples.times(program, self.ranks.settings, min(examples.LIMIT_S, self.ranks.time_left())))
        self.fccd_failed = self.fccd_failed or not found
        for way in decode.ways_of(row.shape):
            times[way] = figures.summary([found[way]]) if found else "failed"

    # ---- fccd's operators ----

    def measure_fccd(self, row):
        times = self.results[row]["times"]
        for schedule, whats in row.measures:
            begin = self.fccd_fill if schedule in NO_RESULT else self.fccd_check
            if not self.fccd_part(row, schedule, "check", begin):
                times.update({f"{schedule} {what}": self.word(row, schedule) for what in whats})
                continue
            for what in whats:
                work = {"kernel": self.fccd_kernel, "stream": self.fccd_stream, "grouped": self.fccd_grouped,
                        "prepared": self.fccd_prepared, "queued": self.fccd_queued, "latency": self.fccd_latency}[what]
                times.setdefault(f"{schedule} {what}", "failed")
                self.fccd_part(row, schedule, what, work)
        if self.opened:
            self.attempt(f"{row.text}: launches", lambda: self.launches(row))
        self.attempt(f"{row.text}: close", self.fccd_close)

    def launches(self, row):
        """Before the communicator is closed: who has launched its kernels."""
        self.results[row]["launches"] = self.ranks.part("fcc_launches", PART_LIMIT_S)[0]

    def word(self, row, schedule):
        return "wrong" if f"{schedule} before" in self.results[row]["errors"] else "failed"

    def fccd_part(self, row, schedule, what, work):
        """work()'s result. After a failure, the next part begins with a new communicator."""
        failures = len(self.failures)
        found = self.attempt(f"{row.text}: fccd {schedule}: {what}", lambda: self.fccd_work(row, schedule, work))
        if len(self.failures) > failures:
            self.fccd_failed = True
            self.opened = None
        return found

    def fccd_work(self, row, schedule, work):
        self.alive()
        if self.opened != (self.ranks.starts, row):
            uid = self.ranks.part("fcc_connect", PART_LIMIT_S)[0]
            self.ranks.part("fcc_open", PART_LIMIT_S, shape=row.shape, uid=uid)
            self.opened = (self.ranks.starts, row)
        return work(row, schedule)

    def judge(self, row, schedule, when, answers):
        """True if every rank's result is right, and for a reduction the same everywhere. NaN is not."""
        limit = shapes.ERROR_LIMITS[row.shape.dtype]
        errors = [error for error, _ in answers]
        self.results[row]["errors"][f"{schedule} {when}"] = [e if math.isfinite(e) else str(e) for e in errors]
        what = f"{row.text}: fccd {schedule}, {when} timing"
        found = [f"rank {r}: relative error {error:.3g}, allowed is {limit:g}" for r, error in enumerate(errors)
                 if not error <= limit]
        if len({digest for _, digest in answers}) > 1:
            found.append("the ranks' results differ in their bits")
        for text in found:
            self.wrong.append(f"{what}: {text}")
            self.say(f"WRONG: {what}: {text}")
        return not found

    def fccd_check(self, row, schedule):
        return self.judge(row, schedule, "before", self.ranks.part("fcc_check", PART_LIMIT_S, schedule=schedule))

    def fccd_fill(self, row, schedule):
        del row, schedule
        self.ranks.part("fcc_fill", PART_LIMIT_S)
        return True

    def fccd_kernel(self, row, schedule):
        found = self.ranks.part("fcc_kernel", PART_LIMIT_S, schedule=schedule)[0]  # rank 0 has the trace of all
        for key, samples in zip(("", ", longest rank", ", after the last began"), zip(*found)):
            self.results[row]["times"][f"{schedule} kernel{key}"] = figures.summary(samples)

    def fccd_stream(self, row, schedule):
        answers = self.ranks.part("fcc_stream", PART_LIMIT_S, schedule=schedule, grouped=False)
        self.fccd_row(row, schedule, "stream", "after", answers)

    def fccd_grouped(self, row, schedule):
        answers = self.ranks.part("fcc_stream", PART_LIMIT_S, schedule=schedule, grouped=True)
        self.fccd_row(row, schedule, "grouped", "after grouped", answers)

    def fccd_prepared(self, row, schedule):
        times, key = self.results[row]["times"], f"{schedule} prepared"
        answers = [] if self.unprepared else self.ranks.part("fcc_prepare", PART_LIMIT_S, schedule=schedule)
        self.unprepared = self.unprepared or next((a for a in answers if isinstance(a, str)), None)
        if self.unprepared:
            times[key] = None
        elif not self.judge(row, schedule, "before prepared", answers):
            times[key] = "wrong"
        else:
            answers = self.ranks.part("fcc_prepared", PART_LIMIT_S)
            self.fccd_row(row, schedule, "prepared", "after prepared", answers)

    def fccd_row(self, row, schedule, what, when, answers):
        right = self.judge(row, schedule, when, [answer[1] for answer in answers])
        self.results[row]["times"][f"{schedule} {what}"] = figures.slowest([a[0] for a in answers]) if right else "wrong"

    def fccd_queued(self, row, schedule):
        answers = self.ranks.part("fcc_queued", PART_LIMIT_S, schedule=schedule)
        self.results[row]["times"][f"{schedule} queued"] = figures.slowest(answers) if all(answers) else "not held"

    def fccd_latency(self, row, schedule):
        answers = self.ranks.part("fcc_latency", PART_LIMIT_S, schedule=schedule)
        times = self.results[row]["times"]
        times[f"{schedule} latency"] = figures.slowest([a[0] for a in answers])
        times[f"{schedule} latency, CPU"] = figures.slowest([a[1] for a in answers])

    def fccd_close(self):
        self.opened = None
        if self.ranks.processes:
            self.ranks.part("fcc_close", PART_LIMIT_S)
