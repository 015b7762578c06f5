# SPDX-License-Identifier: MIT
"""Functions run by ranks, each a process of its own. A server that has imported torch once forks them."""
import datetime
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from multiprocessing.connection import wait

import fcc

LIMIT_S = 90
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["numpy", "torch", "torch.distributed", "torch._dynamo", "fcc", "ranks"])


def gpus(device, least=2):
    """How many ranks launch operators themselves: one on each GPU, or FCC_TEST_RANKS_ON_GPU, which switch the GPU between them. Skips the test
    where there are fewer than `least`."""
    import pytest
    import torch
    found = torch.cuda.device_count() * int(os.environ.get("FCC_TEST_RANKS_ON_GPU", "1")) if device == "cuda" else 0
    if found < least:
        pytest.skip(f"needs {least} NVIDIA GPUs")
    return min(found, 8)


class RankFailed(Exception):
    """A rank's exception, with its traceback as text."""


def _rank(channel, socket, function, options, arguments):
    import torch
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    os.environ["FCCD_SOCKET"] = socket
    before, together = options.pop("before"), options.pop("together")
    try:
        if before:
            before()
        if together:
            together.wait(LIMIT_S)
        with fcc.init(**options) as comm:
            result = function(comm, *arguments)
        channel.send((True, result))
    except BaseException as e:  # the parent judges
        channel.send((False, (e if isinstance(e, fcc.Error) else None, type(e).__name__, traceback.format_exc())))


def _member(channel, socket, function, options, arguments):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    os.environ["FCCD_SOCKET"] = socket
    if options.pop("device") == "cuda":  # then tensors are made there, if the test does not say otherwise
        torch.cuda.set_device(options["rank"] % torch.cuda.device_count())
        torch.set_default_device("cuda")
    try:
        dist.init_process_group(**options)
        result = function(*arguments)
        dist.destroy_process_group()
        channel.send((True, result))
    except BaseException as e:  # the parent judges
        channel.send((False, (None, type(e).__name__, traceback.format_exc())))


class Ranks:
    """`size` ranks that run function(comm, *arguments), which both come from a test's module. With a time limit of their own all are there before
    any joins: it is not to run while processes start."""

    def __init__(self, daemon, device, size, function, *arguments, **options):
        identity = fcc.unique_id(socket=daemon.socket)
        self.together = _context.Barrier(size) if "time_limit" in options else None  # it is there as long as somebody here has it
        self._start(daemon, _rank, function, arguments, [
            {"rank": rank, "size": size, "id": identity, "device": device, "heap_bytes": 32 << 20, "time_limit": 30, "before": getattr(daemon, "before", None),
             "together": self.together, **options}
            for rank in range(size)])

    def _start(self, daemon, target, function, arguments, options):
        self.processes, self.channels = [], []
        for rank, asked in enumerate(options):
            channel, theirs = _context.Pipe()
            process = _context.Process(target=target, args=(theirs, daemon.sockets[rank % len(daemon.sockets)], function, asked, arguments), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.channels.append(channel)

    def outcomes(self):
        """For each rank (True, result) or (False, (fcc.Error or None, name of the exception, traceback))."""
        found = [(False, (None, "nothing", "the process ended without a word")) for _ in self.channels]
        until = time.monotonic() + LIMIT_S
        left = dict(enumerate(self.channels))
        while left and time.monotonic() < until:
            ready = wait(left.values(), 1)
            for rank in [r for r, c in left.items() if c in ready]:
                try:
                    found[rank] = left.pop(rank).recv()
                except EOFError:
                    pass
        for rank in left:
            found[rank] = (False, (None, "nothing", f"not finished within {LIMIT_S} s"))
        for process in self.processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        return found

    def results(self):
        """Of all ranks. RankFailed with every rank's traceback if one has failed."""
        found = self.outcomes()
        failed = [f"rank {rank}:\n{what[2]}" for rank, (well, what) in enumerate(found) if not well]
        if failed:
            raise RankFailed("\n".join(failed))
        return [what for _, what in found]


class Group(Ranks):
    """`size` ranks that run function(*arguments), as the default process group of torch.distributed."""

    def __init__(self, daemon, size, function, *arguments, backend="fcc", timeout_s=60, device="cpu"):
        self._directory = tempfile.TemporaryDirectory(prefix="fcc-group-")
        self._start(daemon, _member, function, arguments, [
            {"backend": backend, "init_method": f"file://{self._directory.name}/store", "rank": rank, "world_size": size, "device": device,
             "timeout": datetime.timedelta(seconds=timeout_s)} for rank in range(size)])
