# SPDX-License-Identifier: MIT
"""A run of the rows. Each part of each has a limit of its own, and nothing new is begun when the time of --limit is over: what is left is said to be not run."""
import json
import os
import pathlib
import pty
import statistics
import subprocess
import tempfile
import threading
import time

from ..machine import end_with_parent
from ..ranks import OutOfTime, PartFailed
from . import rows as of_rows
from .rows import CACHED, EACH, EPILOGUE, FCCD, FLAT, PROGRAMS, TUNED

ITERS = 20
PROGRAM_LIMIT_S, SEQUENCE_LIMIT_S, MODEL_LIMIT_S, TUNER_LIMIT_S, LINK_LIMIT_S = 60, 60, 90, 90, 60
OVER = "the time of --limit was over"


def text_of(row, dropout=True):
    """The row's program, with tensors of its dtype."""
    text = (PROGRAMS / f"{row.program}.fcc").read_text(encoding="utf-8")
    text = text if row.dtype == "f32" else text.replace(": f32[", f": {row.dtype}[")
    return text if dropout else text.replace(", 0.1, seed", ", 0, seed")


def sizes_text(sizes):
    return ",".join(f"{name}={size}" for name, size in sizes.items())


class Result:
    """What was found of a row. times: {FCCD or what is beside it: us; of the tuner s}; missing: {the same: why not}."""

    def __init__(self, row):
        self.row, self.times, self.missing = row, {}, {}
        self.checked = self.wrong = 0
        self.notes = []

    def attempt(self, name, work, *arguments):
        """work(*arguments) gives a time."""
        try:
            self.times[name] = work(*arguments)
        except OutOfTime:
            self.missing[name] = OVER
        except subprocess.TimeoutExpired as e:
            self.missing[name] = f"not done after {e.timeout:.0f} s"
        except (PartFailed, OSError, RuntimeError, ValueError, KeyError) as e:
            self.missing[name] = (str(e).strip().splitlines() or [type(e).__name__])[-1]

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def found_wrong(self, wrong, checked, first):
        self.checked += checked
        self.wrong += wrong
        if wrong:
            self.note(f"{wrong} elements of {checked} are WRONG{': ' + first if first else ''}")


class Course:
    """ranks: of ranks.py; daemon: runs. kind: of the devices, "cuda", or "cpu" in tests, where there are programs only."""

    def __init__(self, ranks, daemon, build, kind="cuda"):
        self.ranks, self.daemon, self.build, self.kind = ranks, daemon, build, kind
        self.no_group = None  # why there is no NCCL
        self.link_rates = []
        self.no_link = None

    @property
    def link_rate(self):
        return statistics.median(map(min, zip(*self.link_rates))) if self.link_rates else None

    # ---- fccd's programs ----

    def program(self, result, sizes, checked, dropout=True, iters=ITERS):
        """Runs it; what it says."""
        row, limit = result.row, min(PROGRAM_LIMIT_S, self.ranks.time_left())
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / f"{row.program}.fcc"
            path.write_text(text_of(row, dropout), encoding="utf-8")
            command = [self.build / "tests" / "program_fcc", self.ranks.settings.ranks, iters, self.daemon.socket, path, self.kind, sizes_text(sizes), row.tensors, row.scalars, checked]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=limit, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"program_fcc ended with {done.returncode}")
        said = json.loads(done.stdout)
        result.found_wrong(said["wrong"], said["checked"], said["first"])
        if said["unbound"] and self.kind != "cpu":
            result.note(f"launched by fccd, not in graphs: {said['unbound']}")
        return said

    def program_us(self, result):
        row = result.row
        checked = sizes_text(row.checked)
        if row.apart:
            self.program(result, row.sizes, checked, dropout=False, iters=1)
        said = self.program(result, row.sizes, f"fill:{checked}" if row.apart else checked)
        return statistics.median(said["us"])

    # ---- ranks with NCCL ----

    def group(self):
        """Ranks that have one."""
        if self.no_group:
            raise PartFailed(self.no_group)
        try:
            self.ranks.start()
        except PartFailed as e:
            self.no_group = str(e)
            raise
        if not self.ranks.group:
            self.no_group = "no NCCL: ranks share a GPU"
            raise PartFailed(self.no_group)

    def part(self, name, limit_s, **arguments):
        self.group()
        return self.ranks.part(name, limit_s, within_s=min(limit_s, self.ranks.time_left()), **arguments)

    @staticmethod
    def median_us(per_rank):
        """Of each replay the longest of the ranks'."""
        return statistics.median(map(max, zip(*per_rank)))

    def sequence_us(self, name, sizes):
        return self.median_us(self.part("coconet", SEQUENCE_LIMIT_S, what=name, sizes=sizes))

    def model_us(self, name):
        return self.median_us(self.part("coconet_model", MODEL_LIMIT_S, what=name))

    def optim_us(self, result, in_place):
        answers = self.part("coconet_optim", MODEL_LIMIT_S, in_place=in_place)
        for answer in answers:
            result.found_wrong(answer["wrong"], answer["checked"], "")
        return self.median_us([answer["us"] for answer in answers])

    def link_find(self):
        """The link's rate, once."""
        if self.link_rates or self.no_link:
            return
        try:
            self.group()
            self.link_rates = self.ranks.part("link_rate", LINK_LIMIT_S)
        except (PartFailed, OutOfTime) as e:
            self.no_link = str(e) or OVER

    # ---- the tuner ----

    def tuner_command(self, row, cache, *more):
        file = str(PROGRAMS / f"{row.program}.fcc")
        return [str(self.daemon.fccctl), "--socket", str(self.daemon.socket), "tune", file, "-D", sizes_text(row.sizes), "--ranks", str(self.ranks.settings.ranks),
                "--device", self.kind, "--cache", str(cache), *more]

    def tuned_s(self, row, cache):
        """From nothing, as somebody at a terminal sees it: with a bar."""
        limit, terminal, drawn = min(TUNER_LIMIT_S, self.ranks.time_left()), pty.openpty(), []

        def read():
            try:
                while said := os.read(terminal[0], 4096):
                    drawn.append(said)
            except OSError:  # nobody has the other side any more
                pass
        reader, begin = threading.Thread(target=read, daemon=True), time.monotonic()
        try:
            with subprocess.Popen(self.tuner_command(row, cache), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=terminal[1], text=True, preexec_fn=end_with_parent) as process:
                os.close(terminal[1])
                reader.start()
                try:
                    said, _ = process.communicate(timeout=limit)
                except subprocess.TimeoutExpired:
                    process.kill()
                    raise
            took = time.monotonic() - begin
            reader.join(1)
        finally:
            os.close(terminal[0])
        bar = b"".join(drawn).decode(errors="replace")
        if process.returncode:
            raise RuntimeError(bar.replace("\r", "\n").strip() or f"fccctl tune ended with {process.returncode}")
        if "tuning [" not in bar or "tuned in" not in said:
            raise RuntimeError("no progress bar was drawn" if "tuned in" in said else f"fccctl tune has said: {said[-200:]}")
        return took

    def cached_s(self, row, cache):
        limit = min(TUNER_LIMIT_S, self.ranks.time_left())
        done = subprocess.run(self.tuner_command(row, cache, "--json"), capture_output=True, text=True, check=False, timeout=limit, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or f"fccctl tune ended with {done.returncode}")
        said = json.loads(done.stdout)
        if not said["from_cache"]:
            raise RuntimeError(f"it was not taken from the cache: {said['cache']}")
        return said["seconds"]

    # ---- rows ----

    def row_run(self, row):
        result = Result(row)
        if row.kind == "tuner":
            with tempfile.TemporaryDirectory() as folder:
                result.attempt(TUNED, self.tuned_s, row, f"{folder}/cache")
                result.attempt(CACHED, self.cached_s, row, f"{folder}/cache")
            return result
        if row.kind == "model":
            result.attempt(FCCD, self.optim_us, result, EACH in row.against)
            for name in (FLAT, EACH):
                if name in row.against:
                    result.attempt(name, self.model_us, name)
            return result
        result.attempt(FCCD, self.program_us, result)
        if EPILOGUE in row.against:
            self.link_find()
        for name in (*row.beside, *row.against):
            result.attempt(name, self.sequence_us, name, row.sizes)
        return result


def run(course, match, say):
    """[Result] of all rows with `match` in their names; say(result) after each."""
    results = []
    for row in of_rows.rows():
        if match in row.name:
            results.append(course.row_run(row))
            say(results[-1])
    return results
