# SPDX-License-Identifier: MIT
"""fcc.triton's tests in Triton's interpreter over cpu devices: daemons on this machine, and ranks as processes, each of which runs
all cases of a test's file. $FCCD_BINARY is the fccd (default: build/bin/fccd); without one the tests are skipped."""
from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback

import fcc
import fcc.triton
import pytest
import torch
import triton
import triton.language as tl
from daemon import LIMIT_S, listens, ports
from fcc.triton import peer, put_tile, run_begin, run_end, signal, wait

ROOT = pathlib.Path(__file__).resolve().parents[3]
FCCD = os.environ.get("FCCD_BINARY", str(ROOT / "build" / "bin" / "fccd"))

# ---- what cases share ----


@triton.jit
def exchange_run(runs, data, flags, status, result, me, ranks, BLOCK: tl.constexpr):
    """To the next rank, and from the last one, by several programs, each with two signals and a part of the data of its own. The kernel counts
    its runs itself."""
    epoch, program = run_begin(runs), tl.program_id(0)
    at, to, n = tl.arange(0, BLOCK), (me + 1) % ranks, tl.num_programs(0)
    if wait(flags, me, 2 * program + 1, epoch - 1, status):
        put_tile(data, to, program * BLOCK + at, (at + epoch * 1000 + program * 100 + me).to(tl.float32))
        signal(flags, to, 2 * program, epoch)
        if wait(flags, me, 2 * program, epoch, status):
            tl.store(result + program * BLOCK + at, tl.load(peer(data, me, tl.float32) + program * BLOCK + at))
        signal(flags, (me + ranks - 1) % ranks, 2 * program + 1, epoch)
    run_end(runs, n)


@triton.jit
def hear(flags, me, index, value, status, result):
    tl.store(result, wait(flags, me, index, value, status).to(tl.int32))


def windows(comm, words, elements=64):
    data = fcc.zeros(elements, dtype=torch.float32, symmetric=True, comm=comm)
    flags = fcc.zeros(words, dtype=torch.int64, symmetric=True, comm=comm)
    both = fcc.triton.Window(data, comm), fcc.triton.Window(flags, comm)
    comm.barrier()  # a rank that goes on may free its part, and then nobody maps it any more
    return both


# ---- a rank ----


def rank_main(cases):
    """All cases (name: function), as the rank that the environment names. One that returns "die" is the last, and ends the process."""
    comm = fcc.init(device="cpu")
    torch.set_num_threads(1)
    for name, case in cases.items():
        try:
            end = case(comm)
        except Exception:
            print(json.dumps({"case": name, "error": traceback.format_exc()}), flush=True)
            os._exit(1)  # the others are told by their next call
        print(json.dumps({"case": name, "error": None}), flush=True)
        if end == "die":
            os._exit(0)
    comm.close()


# ---- all ranks ----


class Nodes:
    """Daemons on this machine: one that speaks to no other, or several."""

    def __init__(self, directory, count):
        self.sockets = [f"{directory}/fccd{i}.sock" for i in range(count)]
        self.addresses = [f"127.0.0.1:{port}" for port in ports(count)] if count > 1 else [""]
        self.processes, self.log = [], open(f"{directory}/log", "w+")
        key = pathlib.Path(directory, "key")
        key.touch(0o600)
        key.write_bytes(os.urandom(48))
        for path, address in zip(self.sockets, self.addresses):
            more = ["--node-listen", address, "--cluster-key", str(key), "--nodes", ",".join(self.addresses)] if address else []
            self.processes.append(subprocess.Popen([FCCD, "--config", "/dev/null", "--socket", path, "--gpus", "none", "--cpu-devices",
                                                    "4", "--cpu-workgroups", "1", *more], stdout=self.log, stderr=self.log))
        until = time.monotonic() + LIMIT_S
        while not all(map(listens, self.sockets)):
            assert all(p.poll() is None for p in self.processes) and time.monotonic() < until, pathlib.Path(self.log.name).read_text()
            time.sleep(0.02)

    def run(self, size, program):
        """What each rank says of each case: all cases run in one go, because Python takes long to start."""
        ranks = []
        for rank in range(size):
            node = rank % len(self.sockets)
            env = dict(os.environ, FCCD_SOCKET=self.sockets[node], FCCD_JOB=f"triton{size}", FCC_RANK=str(rank), FCC_SIZE=str(size),
                       FCC_MEETING=self.addresses[0], TRITON_INTERPRET="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
            ranks.append(subprocess.Popen([sys.executable, program], env=env, stdout=subprocess.PIPE, text=True))
        try:
            said = [rank.communicate(timeout=600)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        return [{line["case"]: line["error"] for line in map(json.loads, text.splitlines())} for text in said]

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(LIMIT_S)
        self.log.close()


def all_said(request, count, program):
    if not os.access(FCCD, os.X_OK):
        pytest.skip(f"{FCCD} is not there: make build/bin/fccd build/lib/libfccclient.so")
    with tempfile.TemporaryDirectory() as directory:
        nodes = Nodes(directory, count)
        try:
            return nodes.run(request.param, program)
        finally:
            nodes.close()


def check_said(results, case):
    for rank, said in enumerate(results):
        why = said.get(case, "did not come to it")
        assert why is None, f"rank {rank}: {why}"
