# SPDX-License-Identifier: MIT
"""Products in pieces, in the order of a ring: whole numbers, so that the order of sums makes no difference."""
import time

import fcc
import pytest
import torch


def numbers(seed, *shape):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def reduce_scatter_rank(comm, rows, cols, depth, pieces, dtype):
    a = numbers(0, comm.size * rows, depth).to(dtype)
    b = numbers(1 + comm.rank, depth, cols).to(dtype)

    def product(first, out, add):
        mine = a[first:first + len(out)]
        torch.addmm(out, mine, b, out=out) if add else torch.mm(mine, b, out=out)

    ring = fcc.RingReduceScatter(product, rows, cols, dtype, pieces, comm)
    if pieces is None:
        assert ring.pieces == min(ring.measured, key=ring.measured.get)
    for n in range(6):
        a = numbers(100 + n, comm.size * rows, depth).to(dtype)
        found = ring.run()
        total = sum(a.double() @ numbers(1 + r, depth, cols).double() for r in range(comm.size))
        assert torch.equal(found.double(), total[comm.rank * rows:(comm.rank + 1) * rows]), n
    ring.close()
    return ring.pieces


def all_gather_rank(comm, rows, cols, pieces):
    b, seen = numbers(comm.rank, cols, 5), []
    y = torch.empty(comm.size * rows, 5)

    def product(first, some):
        seen.append(first // rows)
        torch.mm(some, b, out=y[first:first + len(some)])

    ring = fcc.RingAllGather(product, rows, cols, pieces=pieces, comm=comm)
    for n in range(6):
        ring.input.copy_(numbers(10 * n + comm.rank, rows, cols))
        seen.clear()
        whole = ring.run()
        want = torch.cat([numbers(10 * n + r, rows, cols) for r in range(comm.size)])
        assert torch.equal(whole, want) and torch.equal(y, want @ b)
        assert list(dict.fromkeys(seen)) == [(comm.rank - s) % comm.size for s in range(comm.size)]
    ring.close()
    return ring.pieces


def errors_rank(comm):
    for made in (fcc.RingReduceScatter, fcc.RingAllGather):
        with pytest.raises(fcc.ArgumentError, match=f"{made.__name__}: rows 0, columns 4"):
            made(print, 0, 4, comm=comm)
        with pytest.raises(fcc.ArgumentError, match="pieces 4, 2 ranks: allowed are 1 to 3"):
            made(print, 3, 4, pieces=4, comm=comm)
        with pytest.raises(fcc.ArgumentError, match="pieces 0"):
            made(print, 3, 4, pieces=0, comm=comm)
    comm.barrier()


def left_rank(comm):
    ring = fcc.RingReduceScatter(lambda first, out, add: out.zero_(), 4, 4, pieces=2, comm=comm)
    if comm.rank:
        with pytest.raises(fcc.AbortedError, match="rank has left the communicator"):
            ring.run()
            ring.run()


def late_rank(comm):
    ring = fcc.RingReduceScatter(lambda first, out, add: out.zero_(), 4, 4, pieces=2, comm=comm)
    if comm.rank:
        with pytest.raises(fcc.TimeLimitError, match="is 0 of 1|rule|word"):
            ring.run()
    else:
        time.sleep(2)


@pytest.mark.parametrize("size, rows, cols, depth, pieces, dtype", [
    (1, 5, 3, 4, 2, torch.float32), (2, 7, 33, 5, 3, torch.float32), (3, 13, 17, 9, 4, torch.float32), (4, 1, 1, 1, 1, torch.float32),
    (2, 8, 64, 4, 2, torch.bfloat16), (3, 19, 40, 16, None, torch.float32)])
def test_reduce_scatter(run, on_cpu, size, rows, cols, depth, pieces, dtype):
    assert len(set(run(size, reduce_scatter_rank, rows, cols, depth, pieces, dtype))) == 1


@pytest.mark.parametrize("size, rows, cols, pieces", [(1, 3, 4, 1), (2, 9, 7, 4), (3, 11, 5, 3), (4, 6, 130, None)])
def test_all_gather(run, on_cpu, size, rows, cols, pieces):
    assert len(set(run(size, all_gather_rank, rows, cols, pieces))) == 1


def test_errors(run, on_cpu):
    run(2, errors_rank)


def test_a_rank_that_leaves(run, on_cpu):
    run(2, left_rank)


def test_a_rank_that_does_not_come(run, on_cpu):
    run(2, late_rank, time_limit=0.5)
