# SPDX-License-Identifier: MIT
"""fcc.triton's triggers, between two nodes on this machine: in Triton's interpreter over cpu devices, with 2 and 4 ranks as
processes (triton_ranks.py); rank r is on node r modulo 2. Without Triton the tests are skipped.

    test_triton_nodes.py        as one of the ranks, which the environment names: runs all cases
"""
from __future__ import annotations

import ctypes
import time

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = triton.language

import fcc  # noqa: E402
import fcc.triton  # noqa: E402
from fcc.triton import put_tile, trigger, wait  # noqa: E402
from triton_ranks import all_said, check_said, hear, rank_main, windows  # noqa: E402

# ---- kernels ----


@triton.jit
def send(fifo, source, number, epoch, flags, me, status, result, n, BLOCK: tl.constexpr):
    """To another node: a tile into own memory, triggered when the other one has read the last; and the other's."""
    at = tl.arange(0, BLOCK)
    if wait(flags, me, 1, epoch - 1, status):
        put_tile(source, me, at, (at + epoch * 1000 + me).to(tl.float32), at < n)
        tl.store(result, trigger(fifo, number, epoch, status).to(tl.int32))
        tl.store(result + 1, wait(flags, me, 0, epoch, status).to(tl.int32))


@triton.jit
def triggered(fifo, number, before, times, status, result):
    sent = 0
    i = 0
    while i < times:
        sent += trigger(fifo, number, before + i + 1, status).to(tl.int32)
        i += 1
    tl.store(result, sent)


@triton.jit
def one(fifo, number, value, status, result):
    tl.store(result, trigger(fifo, number, value, status).to(tl.int32))


# ---- cases, of which each rank runs all ----


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
        triggered[(1,)](triggers.table, read, 0, 0, flag_window.status, result)
        send_one(triggers, read, epoch, flag_window.status)
    assert not c[comm.rank].any()
    comm.barrier()


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


def nodes_case_more_than_there_are_slots(comm):
    """A kernel's triggers from the last slots to the first ones again. The CPU makes those before them: it is quicker."""
    flags = fcc.zeros(1, dtype=torch.int64, symmetric=True, comm=comm)
    window, triggers = fcc.triton.Window(flags, comm), fcc.triton.Triggers(comm)
    number = triggers.register(comm.rank ^ 1, None, None, flags, 0)
    result = torch.zeros(1, dtype=torch.int32)
    capacity = triggers.table[3].item()
    head = (ctypes.c_uint64).from_address(triggers.table[0].item())
    kernel = 80
    by_cpu = capacity - kernel // 2 - head.value
    trigger_here = fcc.triton.triggers.functions().fcc_put_trigger
    trigger_here.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64]
    for i in range(by_cpu):
        assert trigger_here(comm.member.handle, number, i + 1) == 0
    triggered[(1,)](triggers.table, number, by_cpu, kernel, window.status, result)
    assert result.item() == kernel and head.value == capacity + kernel // 2
    hear[(1,)](window.table, comm.rank, 0, by_cpu + kernel, window.status, result)
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


CASES = {name: case for name, case in globals().items() if name.startswith("nodes_case_")}

# ---- the tests ----


@pytest.fixture(scope="module", params=[4], ids=["4 ranks"])
def nodes_results(request):
    return all_said(request, 2, __file__)


@pytest.mark.parametrize("case", CASES)
def test_interpreted_on_two_nodes(nodes_results, case):
    check_said(nodes_results, case)


if __name__ == "__main__":
    rank_main(CASES)
