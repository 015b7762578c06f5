# SPDX-License-Identifier: MIT
"""All ranks' processes, as the parent sees them: one part at a time, all ranks together, each with a time limit."""
import multiprocessing
import socket
import time
from multiprocessing import connection

from .rank import GROUP_LIMIT_S, serve

START_LIMIT_S = 90
AFTER_FAILURE_S = 8  # for the other ranks, when one has failed
END_S = 10


class PartFailed(Exception):
    pass


class OutOfTime(Exception):
    pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks:
    """Ranks that may have lost each other are ended; start() then makes new ones. `starts` counts how often it did. `group`:
    NCCL is to be used; False from the beginning when ranks share a GPU, and from the time when it could not be had."""

    def __init__(self, settings, deadline):
        self.settings, self.deadline = settings, deadline
        self.processes, self.connections = [], []
        self.group = settings.ranks <= settings.gpus
        self.starts = 0
        self.facts = {}  # what rank 0 found when it started

    def start(self):
        """New processes, if there are none. PartFailed if NCCL cannot be had: then there are ranks, but no group any more."""
        if self.processes:
            return
        self.starts += 1
        spawn = multiprocessing.get_context("spawn")
        for rank in range(self.settings.ranks):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(theirs, rank, self.settings), daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)
        try:
            self.facts = self.part("start", START_LIMIT_S)[0]
        except PartFailed:
            self.kill()
            raise
        if self.group:
            try:
                self.part("group", GROUP_LIMIT_S, address=f"tcp://127.0.0.1:{free_port()}")
            except PartFailed as e:
                self.group = False
                self.kill()
                self.start()
                raise PartFailed(f"no NCCL: {e}") from None

    def time_left(self):
        """Seconds until the deadline; OutOfTime if that is there."""
        left = self.deadline - time.monotonic()
        if left < 1:
            raise OutOfTime
        return left

    def part(self, name, limit_s, **arguments):
        """Every rank's answer. PartFailed says what went wrong."""
        left = self.time_left()
        for rank, link in enumerate(self.connections):
            try:
                link.send((name, arguments))
            except OSError:
                self.kill()
                raise PartFailed(f"rank {rank} is gone") from None
        answers = self.gather(time.monotonic() + min(limit_s, left))
        failures = self.failures(answers)
        outcomes = {outcome for outcome, _ in answers.values()}
        if len(answers) < len(self.processes) or "lost" in outcomes or len(outcomes) > 1:
            self.kill()
        if failures:
            raise PartFailed("; ".join(failures))
        return [answers[r][1] for r in sorted(answers)]

    def gather(self, until):
        """{rank: (outcome, answer)}; outcome: done, failed, or lost: that process is of no more use"""
        answers = {}
        while len(answers) < len(self.connections):
            waiting = [c for r, c in enumerate(self.connections) if r not in answers]
            ready = connection.wait(waiting, timeout=max(0, until - time.monotonic()))
            if not ready:
                break
            for link in ready:
                rank = self.connections.index(link)
                try:
                    answers[rank] = link.recv()
                except (EOFError, OSError):
                    self.processes[rank].join(1)
                    answers[rank] = ("lost", f"the process ended with status {self.processes[rank].exitcode}")
                if answers[rank][0] != "done":
                    until = min(until, time.monotonic() + AFTER_FAILURE_S)
        return answers

    def failures(self, answers):
        """In words; ranks that say the same together."""
        said = {}
        for rank in range(len(self.processes)):
            outcome, answer = answers.get(rank, ("lost", "no answer in time"))
            if outcome != "done":
                said.setdefault(answer, []).append(str(rank))
        return [f"rank {', '.join(who)}: {what}" for what, who in said.items()]

    def end(self):
        """In order, if they are in order."""
        if self.processes:
            self.deadline = time.monotonic() + END_S
            try:
                self.part("end", END_S)
                for process in self.processes:
                    process.join(END_S)
            except (PartFailed, OutOfTime):
                pass
        self.kill()

    def kill(self):
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process, link in zip(self.processes, self.connections):
            process.join(END_S)
            link.close()
        self.processes, self.connections = [], []
