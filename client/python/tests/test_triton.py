# SPDX-License-Identifier: MIT
"""fcc.triton on one node: in Triton's interpreter over cpu devices, with 2 and 4 ranks as processes (triton_ranks.py). Without Triton
the tests are skipped. Several nodes are in test_triton_nodes.py, what compilers make of it is in test_triton_compiled.py.

    test_triton.py      as one of the ranks, which the environment names: runs all cases
"""
from __future__ import annotations

import ctypes
import errno
import importlib.util
import time

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language

import fcc  # noqa: E402
import fcc.triton  # noqa: E402
from fcc.triton import peer, produced, put_tile, reason, signal, wait, wait_all  # noqa: E402
from triton_ranks import ROOT, all_said, check_said, exchange_run, hear, rank_main, windows  # noqa: E402

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
def tell_many(flags, ranks, first, count, value):
    rank = 0
    while rank < ranks:
        i = 0
        while i < count:
            signal(flags, rank, first + i, value + i)
            i += 1
        rank += 1


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
    i = 0
    while i < times:
        tl.atomic_add(peer(flags, rank, tl.int64), tl.cast(1, tl.int64), sem="relaxed", scope="sys")
        i += 1


@triton.jit
def make(result, n, epoch, tally, BLOCK: tl.constexpr):
    """A program's part of a result, which a rule moves when all programs have counted."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(result + at, (at + epoch * 1000).to(tl.float32), mask=at < n)
    produced(tally, 1)


@triton.jit
def nothing(pointer):
    tl.load(pointer)


# ---- cases, of which each rank runs all ----


def case_exchange(comm):
    data, flags = windows(comm, 2)
    before = (comm.rank - 1) % comm.size
    for epoch in range(1, ROUNDS + 1):
        result = torch.zeros(64)
        exchange[(1,)](data.table, flags.table, flags.status, result, comm.rank, comm.size, epoch, 50, BLOCK=64)
        expected = torch.arange(64.0) + epoch * 1000 + before
        assert torch.equal(result[:50], expected[:50]) and (result[50:] == -1).all(), (epoch, result)
    assert (data.tensor[50:] == 0).all()  # masked


def case_runs(comm):
    """Launches that are all alike: the kernel counts its runs."""
    programs, runs = 3, torch.zeros(2, dtype=torch.int64)
    data, flags = windows(comm, 2 * programs, programs * 16)
    for epoch in range(1, ROUNDS + 1):
        result = torch.zeros(programs * 16)
        exchange_run[(programs,)](runs, data.table, flags.table, flags.status, result, comm.rank, comm.size, BLOCK=16)
        expected = torch.arange(16.0) + epoch * 1000 + 100 * torch.arange(3.0)[:, None] + (comm.rank - 1) % comm.size
        assert torch.equal(result.view(programs, 16), expected), (epoch, result)
    assert runs.tolist() == [ROUNDS, 0]


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
    begun = time.monotonic()
    comm.barrier()
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
    count[(1,)](flags.table, 0, 400)
    comm.barrier()
    assert comm.rank or flags.tensor.item() == 400 * comm.size


def case_produced(comm):
    """A kernel that only computes and counts: a rule stores what it has made at the next rank, once all programs are done."""
    source, place = fcc.zeros(50, comm=comm), fcc.zeros(50, symmetric=True, comm=comm)
    words = fcc.zeros(2, dtype=torch.int64, symmetric=True, comm=comm)
    tracker, to = fcc.Tracker(comm), (comm.rank + 1) % comm.size
    rule = tracker.store(source, place, to, count=4, signal=(words, 0), awaits=[(words, 1, 1)])
    used = tracker.signal((comm.rank - 1) % comm.size, signal=(words, 1))
    comm.barrier()
    for epoch in range(1, 6):
        make[(4,)](source, 50, epoch, rule.count, BLOCK=16)
        assert fcc.signal_wait(words, 0, epoch, comm=comm)
        assert torch.equal(place, torch.arange(50.0) + epoch * 1000), epoch
        used.add()
        assert rule.wait(epoch)
    comm.barrier()
    tracker.close()


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
    for m, n, k, dtype, tolerance in ((40, 24, 50, torch.float32, 1e-5), (16, 33, 32, torch.float16, 4e-3), (33, 16, 40, torch.bfloat16, 1.6e-2)):
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
                comm.rank, comm.size, 20, 20, 0, K=8, BM=16, BN=16, BK=16, WAIT=512)
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


CASES = {name: case for name, case in globals().items() if name.startswith("case_")}

# ---- the tests ----


@pytest.fixture(scope="module", params=[4], ids=["4 ranks"])
def results(request):
    return all_said(request, 1, __file__)


@pytest.mark.parametrize("case", CASES)
def test_interpreted(results, case):
    check_said(results, case)


if __name__ == "__main__":
    rank_main(CASES)
