# SPDX-License-Identifier: MIT
"""fcc.triton: in Triton's interpreter over cpu devices, with 2 and 4 ranks as processes; and what the compilers for NVIDIA and
AMD make of it, which needs no GPU. $FCCD_BINARY is the fccd (default: build/bin/fccd); without one, or without Triton, the
tests are skipped.

    test_triton.py CASE...      as one of the ranks, which the environment names: runs these cases
"""
from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language

import fcc  # noqa: E402
import fcc.triton  # noqa: E402
from fcc.triton import peer, put_tile, reason, signal, trigger, wait, wait_all  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
FCCD = os.environ.get("FCCD_BINARY", str(ROOT / "build" / "bin" / "fccd"))
ROUNDS = 40

# ---- kernels ----


@triton.jit
def exchange(data, flags, status, result, me, ranks, epoch, n, BLOCK: tl.constexpr):
    """To the next rank: a tile, and a signal. From the last one: the same. result: the tile."""
    at = tl.arange(0, BLOCK)
    to = (me + 1) % ranks
    if wait(flags, me, 1, epoch - 1, status):  # it has read the last one
        put_tile(data, to, at, (at + epoch * 1000 + me).to(tl.float32), at < n)
        signal(flags, to, 0, epoch)
        if wait(flags, me, 0, epoch, status):
            tl.store(result + at, tl.load(peer(data, me, tl.float32) + at, mask=at < n, other=-1.0))
        signal(flags, (me + ranks - 1) % ranks, 1, epoch)


@triton.jit
def tell(flags, rank, index, value):
    signal(flags, rank, index, value)


@triton.jit
def hear(flags, me, index, value, status, result):
    tl.store(result, wait(flags, me, index, value, status).to(tl.int32))


@triton.jit
def tell_many(flags, ranks, first, count, value):
    for rank in range(ranks):
        for i in range(count):
            signal(flags, rank, first + i, value + i)


@triton.jit
def hear_all(flags, me, first, count, value, status, result, BLOCK: tl.constexpr):
    tl.store(result, wait_all(flags, me, first, count, value, status, BLOCK).to(tl.int32))


@triton.jit
def hear_in_time(flags, me, index, value, status, result, limit_ns, BLOCK: tl.constexpr):
    """1: it has come, by one word and by several; else why not."""
    tl.store(result, 1)
    tl.store(result + 1, 1)
    if not wait(flags, me, index, value, status, limit_ns):
        tl.store(result, reason(status))
    if not wait_all(flags, me, index, 2, value, status, BLOCK, limit_ns):
        tl.store(result + 1, reason(status))


@triton.jit
def count(flags, rank, times):
    for _ in range(times):
        tl.atomic_add(peer(flags, rank, tl.int64), tl.cast(1, tl.int64), sem="relaxed", scope="sys")


@triton.jit
def send(fifo, source, number, epoch, flags, me, status, result, n, BLOCK: tl.constexpr):
    """To another node: a tile into own memory, triggered when the other one has read the last; and the other's."""
    at = tl.arange(0, BLOCK)
    if wait(flags, me, 1, epoch - 1, status):
        put_tile(source, me, at, (at + epoch * 1000 + me).to(tl.float32), at < n)
        tl.store(result, trigger(fifo, number, epoch, status).to(tl.int32))
        tl.store(result + 1, wait(flags, me, 0, epoch, status).to(tl.int32))


@triton.jit
def triggered(fifo, number, times, status, result):
    sent = 0
    for i in range(times):
        sent += trigger(fifo, number, i + 1, status).to(tl.int32)
    tl.store(result, sent)


@triton.jit
def nothing(pointer):
    tl.load(pointer)


# ---- cases, of which each rank runs all ----


def windows(comm, words, elements=64):
    data = fcc.zeros(elements, dtype=torch.float32, symmetric=True, comm=comm)
    flags = fcc.zeros(words, dtype=torch.int64, symmetric=True, comm=comm)
    both = fcc.triton.Window(data, comm), fcc.triton.Window(flags, comm)
    comm.barrier()  # a rank that goes on may free its part, and then nobody maps it any more
    return both


def case_exchange(comm):
    data, flags = windows(comm, 2)
    before = (comm.rank - 1) % comm.size
    for epoch in range(1, ROUNDS + 1):
        result = torch.zeros(64)
        exchange[(1,)](data.table, flags.table, flags.status, result, comm.rank, comm.size, epoch, 50, BLOCK=64)
        expected = torch.arange(64.0) + epoch * 1000 + before
        assert torch.equal(result[:50], expected[:50]) and (result[50:] == -1).all(), (epoch, result)
    assert (data.tensor[50:] == 0).all()  # masked


def case_addresses(comm):
    data, _ = windows(comm, 1)
    assert data.remote == [] and data.table.shape == (comm.size,) and data.table[comm.rank] == data.tensor.data_ptr()
    part = fcc.triton.Window(data.tensor[16:32], comm)
    assert torch.equal(part.table, data.table + 64)
    with pytest.raises(ValueError, match="dense"):
        fcc.triton.Window(data.tensor[::2], comm)
    with pytest.raises(ValueError, match="daemon's memory"):
        fcc.triton.Window(torch.zeros(4), comm)
    with pytest.raises(Exception, match="not symmetric"):
        fcc.triton.Window(fcc.zeros(4, comm=comm), comm)


def case_wait_for_a_process(comm):
    """The word is written by another process while this one sits in the loop."""
    _, flags = windows(comm, 1)
    result = torch.zeros(1, dtype=torch.int32)
    comm.barrier()
    begun = time.monotonic()
    if comm.rank == 0:
        time.sleep(0.5)
        for rank in range(comm.size):
            tell[(1,)](flags.table, rank, 0, 3)
    hear[(1,)](flags.table, comm.rank, 0, 3, flags.status, result)
    assert result.item() == 1 and time.monotonic() - begun > 0.45


def case_wait_all(comm):
    """Words of all values; 37 of them, 16 at a time; and from a place that is not the first."""
    _, flags = windows(comm, 3 + 37 * comm.size)
    result = torch.zeros(1, dtype=torch.int32)
    tell_many[(1,)](flags.table, comm.size, 3 + 37 * comm.rank, 37, 5)
    hear_all[(1,)](flags.table, comm.rank, 3, 37 * comm.size, 5, flags.status, result, BLOCK=16)
    assert result.item() == 1
    assert torch.equal(flags.tensor[3:], (torch.arange(37) + 5).repeat(comm.size)) and not flags.tensor[:3].any()


def case_atomics(comm):
    """The interpreter's atomics are those of the machine, among processes, too."""
    _, flags = windows(comm, 1)
    comm.barrier()
    count[(1,)](flags.table, 0, 1500)
    comm.barrier()
    assert comm.rank or flags.tensor.item() == 1500 * comm.size


def case_tensors_are_not_copied_back(comm):
    """The interpreter copies arguments back when a kernel has run. Over the same memory that must be nothing, or it would take
    away what another rank has stored meanwhile."""
    data, _ = windows(comm, 1, 1 << 20)
    comm.barrier()
    if comm.rank == 0:
        for _ in range(300):
            nothing[(1,)](data.tensor)
    if comm.rank == 1:
        there = (ctypes.c_float * (1 << 20)).from_address(data.table[0].item())
        view = torch.frombuffer(there, dtype=torch.float32)
        for i in range(1 << 11):
            view[i * 512:(i + 1) * 512] += 1
    comm.barrier()
    assert comm.rank or (data.tensor == 1).all()


def load_example():
    path = ROOT / "client" / "python" / "examples" / "triton_gemm_all_to_all.py"
    spec = importlib.util.spec_from_file_location("triton_gemm_all_to_all", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def case_gemm_all_to_all(comm):
    """Shapes with edges, against torch in float64 and against the built-in operator; several calls, so that epochs count."""
    example = load_example()
    for m, n, k, dtype, tolerance in ((40, 24, 50, torch.float32, 1e-5), (16, 33, 32, torch.float16, 4e-3)):
        a = fcc.empty(comm.size * m, k, dtype=dtype, comm=comm)
        b = fcc.empty(k, n, dtype=dtype, comm=comm)
        operator = example.GemmAllToAll(comm, m, n, dtype, (16, 16, 16))
        for call in range(2):
            inputs = []
            for rank in range(comm.size):
                torch.manual_seed(rank * 10 + call)
                inputs.append((torch.randn(comm.size * m, k).to(dtype), torch.randn(k, n).to(dtype)))
            a.copy_(inputs[comm.rank][0])
            b.copy_(inputs[comm.rank][1])
            c = operator(a, b)
            operator.check()
            out = fcc.gemm_all_to_all(a, b, comm)
            expected = torch.cat([x.double()[comm.rank * m:(comm.rank + 1) * m] @ y.double() for x, y in inputs])
            allowed = tolerance * expected.abs().max()
            assert (c.double() - expected).abs().max() <= allowed, (m, n, k, dtype, call)
            assert (c.double() - out.double()).abs().max() <= allowed, (m, n, k, dtype, call)


def case_waits_have_a_limit(comm):
    """Nobody sends, and the communicator goes on. What has come needs no time; one word of two that has not is waited for."""
    _, flags = windows(comm, 2)
    result = torch.zeros(2, dtype=torch.int32)
    begun = time.monotonic()
    hear_in_time[(1,)](flags.table, comm.rank, 0, 1, flags.status, result, 200_000_000, BLOCK=16)
    assert result.tolist() == [-errno.ETIMEDOUT] * 2 and time.monotonic() - begun >= 0.4
    tell[(1,)](flags.table, comm.rank, 0, 1)
    hear_in_time[(1,)](flags.table, comm.rank, 0, 1, flags.status, result, 0, BLOCK=16)
    assert result.tolist() == [1, -errno.ETIMEDOUT]
    tell[(1,)](flags.table, comm.rank, 1, 1)
    hear_in_time[(1,)](flags.table, comm.rank, 0, 1, flags.status, result, 0, BLOCK=16)
    assert result.tolist() == [1, 1]
    comm.barrier()


def case_gemm_computes_without_waiting(comm):
    """All programs of the example but its last one, on one rank, while the others have not begun: so wherever the last ones
    find room, the others come to their end. And the last one, alone, says after its limit what it lacks."""
    example = load_example()
    operator = example.GemmAllToAll(comm, 20, 20, torch.float32, (16, 16, 16), limit=0.2)
    comm.barrier()
    if comm.rank == 0:
        a, b = torch.ones(comm.size * 20, 8), torch.ones(8, 20)
        for half in (0, 1):
            example.kernel[(comm.size * operator.tiles,)](
                a, b, operator.c_windows[half].table, operator.flag_window.table, operator.flag_window.status, operator.result, 1 + half,
                comm.rank, comm.size, 20, 20, 8, 0, BM=16, BN=16, BK=16, WAIT=512)
        operator.epoch = 2
        operator(a, b)
        with pytest.raises(fcc.TimeLimitError, match="not all tiles.*call 3, 4 tiles of each rank: of rank 0 4 have 3; of rank 1 4 have 0"):
            operator.check()
        with pytest.raises(ValueError, match="a: .*allowed are dense"):
            operator(a[1:], b)
    comm.barrier()
    assert (operator.flags.view(comm.size, 4)[0] == 3).all() and (operator.flags.view(comm.size, 4)[1:] == 0).all()
    assert all((c[:20] == 8).all() and (c[20:] == 0).all() for c in operator.c)
    comm.barrier()


def case_wait_ends(comm):
    """The last: a rank goes without a word, and nobody waits for it."""
    _, flags = windows(comm, 40)
    result = torch.ones(2, dtype=torch.int32)
    if comm.rank == comm.size - 1:
        time.sleep(0.3)
        return "die"
    hear[(1,)](flags.table, comm.rank, 0, 1, flags.status, result)
    hear_all[(1,)](flags.table, comm.rank, 1, 39, 1, flags.status, result[1:], BLOCK=16)
    assert result.tolist() == [0, 0]
    hear_in_time[(1,)](flags.table, comm.rank, 0, 1, flags.status, result, 60_000_000_000, BLOCK=16)
    assert result.tolist() == [-errno.ECONNABORTED] * 2
    with pytest.raises(Exception, match=f"rank {comm.size - 1}.*gone"):
        comm.barrier()
    return None


CASES = [name for name in globals() if name.startswith("case_")]


# ... and these with two nodes: rank r is on node r modulo 2


def nodes_case_windows(comm):
    data, _ = windows(comm, 1)
    assert data.remote == [rank for rank in range(comm.size) if rank % 2 != comm.rank % 2]
    assert [address == 0 for address in data.table.tolist()] == [rank in data.remote for rank in range(comm.size)]


def nodes_case_trigger(comm):
    """Tiles to the rank across, row by row of a tensor, and back."""
    other, n = comm.rank ^ 1, 50
    c = fcc.zeros(comm.size, 64, dtype=torch.float32, symmetric=True, comm=comm)
    mine = fcc.zeros(64, dtype=torch.float32, symmetric=True, comm=comm)
    flags = fcc.zeros(2, dtype=torch.int64, symmetric=True, comm=comm)
    mine_window, flag_window = fcc.triton.Window(mine, comm), fcc.triton.Window(flags, comm)
    triggers = fcc.triton.Triggers(comm)
    tile = triggers.register(other, mine[:n], c[comm.rank][:n], flags, 0)
    read = triggers.register(other, None, None, flags, 1)
    result = torch.zeros(2, dtype=torch.int32)
    for epoch in range(1, 21):
        send[(1,)](triggers.table, mine_window.table, tile, epoch, flag_window.table, comm.rank, flag_window.status, result, n, BLOCK=64)
        assert result.tolist() == [1, 1]
        assert torch.equal(c[other][:n], torch.arange(n) + float(epoch * 1000 + other)) and not c[other][n:].any()
        triggered[(1,)](triggers.table, read, 0, flag_window.status, result)
        send_one(triggers, read, epoch, flag_window.status)
    assert not c[comm.rank].any()
    comm.barrier()


@triton.jit
def one(fifo, number, value, status, result):
    tl.store(result, trigger(fifo, number, value, status).to(tl.int32))


def send_one(triggers, number, value, status):
    result = torch.zeros(1, dtype=torch.int32)
    one[(1,)](triggers.table, number, value, status, result)
    assert result.item() == 1


def nodes_case_rows(comm):
    """A tile of a matrix: rows with gaps."""
    other = comm.rank ^ 1
    a = fcc.zeros(6, 10, dtype=torch.int64, symmetric=True, comm=comm)
    c = fcc.zeros(6, 10, dtype=torch.int64, symmetric=True, comm=comm)
    flags = fcc.zeros(8, dtype=torch.int64, symmetric=True, comm=comm)
    window, triggers = fcc.triton.Window(flags, comm), fcc.triton.Triggers(comm)
    a += comm.rank + 1
    send_one(triggers, triggers.register(other, a[1:4, 2:5], c[3:6, 7:10], flags, 5), 1, window.status)
    result = torch.zeros(1, dtype=torch.int32)
    hear[(1,)](window.table, comm.rank, 5, 1, window.status, result)
    expected = torch.zeros(6, 10, dtype=torch.int64)
    expected[3:6, 7:10] = other + 1
    assert result.item() == 1 and torch.equal(c, expected)
    with pytest.raises(ValueError, match="strides"):
        triggers.register(other, a[1:4, 2:5], c[3:6, :3].contiguous(), flags, 5)
    with pytest.raises(ValueError, match="index: 8"):
        triggers.register(other, None, None, flags, 8)
    with pytest.raises(Exception, match="this node"):
        triggers.register(comm.rank, a, c)
    comm.barrier()


def nodes_case_more_than_there_is_room_for(comm):
    flags = fcc.zeros(1, dtype=torch.int64, symmetric=True, comm=comm)
    window, triggers = fcc.triton.Window(flags, comm), fcc.triton.Triggers(comm)
    number = triggers.register(comm.rank ^ 1, None, None, flags, 0)
    result = torch.zeros(1, dtype=torch.int32)
    assert triggers.table[3] == 4096
    head = (ctypes.c_uint64).from_address(triggers.table[0].item())
    before = head.value
    triggered[(1,)](triggers.table, number, 1500, window.status, result)
    assert result.item() == 1500 and head.value == before + 1500
    hear[(1,)](window.table, comm.rank, 0, 1500, window.status, result)
    assert result.item() == 1
    comm.barrier()


def nodes_case_trigger_ends(comm):
    """The last: no room, and nobody to make any; the communicator's end lets the kernel go."""
    flags = fcc.zeros(1, dtype=torch.int64, symmetric=True, comm=comm)
    window, triggers = fcc.triton.Window(flags, comm), fcc.triton.Triggers(comm)
    number = triggers.register(comm.rank ^ 1, None, None, flags, 0)
    comm.barrier()
    if comm.rank == comm.size - 1:
        time.sleep(0.5)
        return "die"
    fifo = triggers.table.clone()
    stuck = torch.tensor([0], dtype=torch.int64)  # a tail that nobody moves
    fifo[1] = stuck.data_ptr()
    fifo[3] = 1
    result = torch.ones(1, dtype=torch.int32)
    one[(1,)](fifo, number, 1, window.status, result) if triggers.table[0] and head_of(triggers) else None
    assert result.item() == 0
    return None


def head_of(triggers):
    """At least 1: a position that a FIFO of one slot has no room for."""
    head = ctypes.c_uint64.from_address(triggers.table[0].item())
    head.value = max(head.value, 1)
    return head.value


NODES_CASES = [name for name in globals() if name.startswith("nodes_case_")]


def rank_main():
    comm = fcc.init(device="cpu")
    torch.set_num_threads(1)
    for name in NODES_CASES if os.environ["FCC_MEETING"] else CASES:
        try:
            end = globals()[name](comm)
        except Exception:
            print(json.dumps({"case": name, "error": traceback.format_exc()}), flush=True)
            os._exit(1)  # the others are told by their next call
        print(json.dumps({"case": name, "error": None}), flush=True)
        if end == "die":
            os._exit(0)
    comm.close()


# ---- the tests ----


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Nodes:
    """Daemons on this machine: one that speaks to no other, or several."""

    def __init__(self, directory, count):
        self.sockets = [f"{directory}/fccd{i}.sock" for i in range(count)]
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)] if count > 1 else [""]
        self.processes, self.log = [], open(f"{directory}/log", "w+")
        key = pathlib.Path(directory, "key")
        key.touch(0o600)
        key.write_bytes(os.urandom(48))
        for path, address in zip(self.sockets, self.addresses):
            more = ["--node-listen", address, "--cluster-key", str(key), "--nodes", ",".join(self.addresses)] if address else []
            self.processes.append(subprocess.Popen([FCCD, "--config", "/dev/null", "--socket", path, "--gpus", "none", "--cpu-devices",
                                                    "4", "--cpu-workgroups", "1", *more], stdout=self.log, stderr=self.log))
        until = time.monotonic() + 20
        while not all(map(os.path.exists, self.sockets)):
            assert all(p.poll() is None for p in self.processes) and time.monotonic() < until, pathlib.Path(self.log.name).read_text()
            time.sleep(0.02)

    def run(self, size, cases):
        """What each rank says of each case: all cases run in one go, because Python takes long to start."""
        ranks = []
        for rank in range(size):
            node = rank % len(self.sockets)
            env = dict(os.environ, FCCD_SOCKET=self.sockets[node], FCCD_JOB=f"triton{size}", FCC_RANK=str(rank), FCC_SIZE=str(size),
                       FCC_MEETING=self.addresses[0], TRITON_INTERPRET="1", OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
            ranks.append(subprocess.Popen([sys.executable, __file__], env=env, stdout=subprocess.PIPE, text=True))
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
            process.wait(20)
        self.log.close()


def all_said(request, count, cases):
    if not os.access(FCCD, os.X_OK):
        pytest.skip(f"{FCCD} is not there: make build/bin/fccd build/lib/libfccclient.so")
    with tempfile.TemporaryDirectory() as directory:
        nodes = Nodes(directory, count)
        try:
            return nodes.run(request.param, cases)
        finally:
            nodes.close()


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def results(request):
    return all_said(request, 1, CASES)


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def nodes_results(request):
    return all_said(request, 2, NODES_CASES)


def check_said(results, case):
    for rank, said in enumerate(results):
        why = said.get(case, "did not come to it")
        assert why is None, f"rank {rank}: {why}"


@pytest.mark.parametrize("case", CASES)
def test_interpreted(results, case):
    check_said(results, case)


@pytest.mark.parametrize("case", NODES_CASES)
def test_interpreted_on_two_nodes(nodes_results, case):
    check_said(nodes_results, case)


@triton.jit
def whole(data, flags, fifo, status, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    put_tile(data, 1, at, (at * 2).to(tl.float16), at < n)
    signal(flags, 1, 3, 7)
    come = wait(flags, 0, 4, 7, status)
    tl.store(out + at, tl.load(peer(data, 0, tl.float16) + at, mask=come & (at < n)))
    if wait_all(flags, 0, 5, n, 9, status, 256):
        tl.store(out + at, tl.load(peer(data, 0, tl.float16) + at + BLOCK))
    trigger(fifo, n, 11, status)


def compiled(backend, arch, warp, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    monkeypatch.setattr(fcc.triton.device, "HIP", tl.constexpr(backend == "hip"))
    whole.hash = None  # the constant is a part of it
    source = ASTSource(whole, {"data": "*i64", "flags": "*i64", "fifo": "*i64", "status": "i64", "out": "*fp16", "n": "i32", "BLOCK": "constexpr"},
                       {"BLOCK": 256})
    asm = triton.compile(source, target=GPUTarget(backend, arch, warp)).asm
    return asm["ptx" if backend == "cuda" else "amdgcn"]


def in_order(text, *patterns):
    at = 0
    for pattern in patterns:
        found = re.compile(pattern).search(text, at)
        assert found, f"no {pattern} behind character {at}"
        at = found.end()


def assert_looks_again(text, *patterns):
    """Some loop, from a label to a branch back to it, has all of them: no compiler has moved them out of it."""
    labels = {m.group(1): m.start() for m in re.finditer(r"^\s*(\$?[.\w]+):", text, re.M)}
    loops = [text[labels[m.group(1)]:m.end()] for m in re.finditer(r"\b(?:bra(?:\.uni)?|s_cbranch_\w+|s_branch)\s+(\$?[.\w]+)", text)
             if m.group(1) in labels and labels[m.group(1)] < m.start()]
    assert any(all(re.search(pattern, loop) for pattern in patterns) for loop in loops), (len(labels), len(loops))


def test_compiled_for_nvidia(monkeypatch):
    text = compiled("cuda", 90, 32, monkeypatch)
    in_order(text, r"st\.global\.b16", r"bar\.sync", r"atom\.global\.sys\.release\.exch\.b64",  # put_tile, signal
             r"ld\.volatile\.global\.b64", r"ld\.volatile\.global\.b32", r"%globaltimer", r"\bbra\b",  # the loop of wait
             r"(ld\.global\.sys\.acquire\.b64|atom\.global\.sys\.acquire\.add\.u64)", r"bar\.sync", r"ld\.global\.b16",  # its end
             r"atom\.global\.sys\.acquire\.add\.u64", r"bar\.sync", r"ld\.global\.b16",  # wait_all's
             r"bar\.sync", r"atom\.global\.sys\.acq_rel\.add\.u64", r"ld\.volatile\.global\.b64",  # trigger's place, and room for it
             r"atom\.global\.sys\.relaxed\.exch\.b64", r"atom\.global\.sys\.release\.exch\.b64")  # its words
    assert "s_waitcnt" not in text
    assert_looks_again(text, r"ld\.volatile\.global\.b64", r"ld\.volatile\.global\.b32", r"%globaltimer")


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_compiled_for_amd(monkeypatch, arch):
    text = compiled("hip", arch, 64, monkeypatch)
    in_order(text, r"(buffer|global)_store_short", r"s_waitcnt vmcnt\(0\)", r"s_barrier", r"buffer_wbl2", r"global_atomic_swap_x2",
             r"global_load_dwordx2 .*(sc1|glc)", r"s_cbranch", r"global_atomic_add_x2", r"s_waitcnt vmcnt\(0\)",
             r"buffer_inv", r"s_barrier")
    assert_looks_again(text, r"global_load_dwordx2", r"global_load_dword ", r"s_memrealtime")


if __name__ == "__main__":
    rank_main()
