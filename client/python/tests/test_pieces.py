# SPDX-License-Identifier: MIT
"""Products in pieces, in the order of a ring: whole numbers, so that the order of sums makes no difference."""
import json
import pathlib
import time

import fcc
import pytest
import torch


def numbers(seed, *shape):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def reduce_scatter_rank(comm, rows, cols, depth, pieces, dtype):
    a = numbers(0, comm.size * rows, depth).to(comm.device, dtype)
    b = numbers(1 + comm.rank, depth, cols).to(comm.device, dtype)

    def product(first, out, add):
        mine = a[first:first + len(out)]
        torch.addmm(out, mine, b, out=out) if add else torch.mm(mine, b, out=out)

    ring = fcc.RingReduceScatter(product, rows, cols, dtype, pieces, comm)
    if pieces is None:
        assert ring.pieces == min(ring.measured, key=ring.measured.get)
    for n in range(6):
        a = numbers(100 + n, comm.size * rows, depth).to(comm.device, dtype)
        found = ring.run()
        total = sum(a.double() @ numbers(1 + r, depth, cols).to(comm.device).double() for r in range(comm.size))
        assert torch.equal(found.double(), total[comm.rank * rows:(comm.rank + 1) * rows]), n
    ring.close()
    return ring.pieces


def uneven_rank(comm, rows, cols, pieces, direct):
    """Figures whose sums round, so that another order of additions has other bits."""
    first = [sum(rows[:r]) for r in range(comm.size)]

    def made(run, rank):
        return torch.randn(sum(rows), cols, generator=torch.Generator().manual_seed(100 * run + rank)).to(comm.device, torch.bfloat16)

    def product(at, out, add):
        time.sleep(0.002 * ((run + comm.rank + at) % 3))  # what comes first changes
        mine = made(run, comm.rank)[at:at + len(out)]
        out.copy_(out + mine if add else mine)

    run = 0
    ring = fcc.RingReduceScatter(product, rows, cols, torch.bfloat16, pieces, comm, direct=direct)
    for run in range(1, 5):
        order = range(comm.size) if direct else [(comm.rank + 1 + s) % comm.size for s in range(comm.size)]
        terms = [made(run, r)[first[comm.rank]:first[comm.rank] + rows[comm.rank]] for r in order]
        total = terms[0].float()
        for term in terms[1:]:
            total = total + term.float()
            total = total if direct else total.to(torch.bfloat16).float()
        found = ring.run()
        assert found.shape == (rows[comm.rank], cols) and torch.equal(found, total.to(torch.bfloat16)), run
    ring.close()
    return ring.pieces


def all_gather_rank(comm, rows, cols, pieces):
    """rows: one for all, or of each rank"""
    of = [rows] * comm.size if isinstance(rows, int) else list(rows)
    firsts = [sum(of[:r]) for r in range(comm.size)]
    b, seen = numbers(comm.rank, cols, 5).to(comm.device), []
    y = torch.empty(sum(of), 5, device=comm.device)

    def product(first, some):
        seen.append(max(r for r in range(comm.size) if firsts[r] <= first))
        torch.mm(some, b, out=y[first:first + len(some)])

    ring = fcc.RingAllGather(product, rows, cols, pieces=pieces, comm=comm)
    for n in range(6):
        ring.input.copy_(numbers(10 * n + comm.rank, of[comm.rank], cols).to(comm.device))
        seen.clear()
        whole = ring.run()
        want = torch.cat([numbers(10 * n + r, of[r], cols) for r in range(comm.size)]).to(comm.device)
        assert torch.equal(whole, want) and torch.equal(y, want @ b)
        assert list(dict.fromkeys(seen)) == [(comm.rank - s) % comm.size for s in range(comm.size)]
    ring.close()
    return ring.pieces


def graph_rank(comm, rows, cols, depth, pieces, direct):
    """Both rings, captured once; each replay has other factors."""
    torch.cuda.set_device(comm.device)  # a graph is of the current GPU
    a, b = torch.empty(comm.size * rows, depth, device=comm.device), torch.empty(depth, cols, device=comm.device)
    y = torch.empty(comm.size * rows, cols, device=comm.device)

    def summed(first, out, add):
        mine = a[first:first + len(out)]
        torch.addmm(out, mine, b, out=out) if add else torch.mm(mine, b, out=out)

    def factors(n, rank):
        return numbers(100 * n + rank, comm.size * rows, depth).to(comm.device), numbers(1000 + 100 * n + rank, depth, cols).to(comm.device)

    for kind in ("scatter", "gather"):
        if kind == "scatter":
            ring = fcc.RingReduceScatter(summed, rows, cols, pieces=pieces, comm=comm, direct=direct)
        else:
            ring = fcc.RingAllGather(lambda first, some: torch.mm(some, b, out=y[first:first + len(some)]), rows, depth, pieces=pieces, comm=comm)
        assert pieces or len(ring.measured) > 1
        a.zero_(), b.zero_()
        ring.run()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = ring.run()
        for n in range(20):
            both = [factors(n, r) for r in range(comm.size)]
            b.copy_(both[comm.rank][1])
            if kind == "scatter":
                a.copy_(both[comm.rank][0])
            else:
                ring.input.copy_(both[comm.rank][0][:rows])
            graph.replay()
            if kind == "scatter":
                total = sum(x.double() @ z.double() for x, z in both)
                assert torch.equal(found.double(), total[comm.rank * rows:(comm.rank + 1) * rows]), n
            else:
                whole = torch.cat([x[:rows] for x, _ in both])
                assert torch.equal(found, whole) and torch.equal(y.double(), whole.double() @ b.double()), n
        torch.cuda.synchronize()
        ring.close()
        del graph


def errors_rank(comm):
    for made in (fcc.RingReduceScatter, fcc.RingAllGather):
        with pytest.raises(fcc.ArgumentError, match=f"{made.__name__}: rows 0, columns 4"):
            made(print, 0, 4, comm=comm)
        with pytest.raises(fcc.ArgumentError, match="pieces 4, 2 ranks: allowed are 1 to 3"):
            made(print, 3, 4, pieces=4, comm=comm)
        with pytest.raises(fcc.ArgumentError, match="pieces 0"):
            made(print, 3, 4, pieces=0, comm=comm)
    comm.barrier()


def other_error_rank(comm):
    """One rank's error is all ranks': not the time limit's."""
    with pytest.raises(fcc.ArgumentError, match="rows 0, columns 4"):
        fcc.RingReduceScatter(print, 0 if comm.rank == 1 else 3, 4, comm=comm)
    with pytest.raises(fcc.ArgumentError, match="rows: 5 numbers: allowed are one for each of 3 ranks"):
        fcc.RingReduceScatter(print, [3] * (5 if comm.rank == 2 else comm.size), 4, comm=comm)
    with pytest.raises(fcc.ArgumentError, match=r"cols: that of rank 2 is not that of rank 0 \(5 and 4\)"):
        fcc.RingAllGather(print, 3, 5 if comm.rank == 2 else 4, comm=comm)
    with pytest.raises(fcc.ArgumentError, match="dtype: that of rank 1 is not that of rank 0: allowed"):
        fcc.RingReduceScatter(print, 3, 4, torch.float16 if comm.rank else torch.float32, comm=comm)
    with pytest.raises(fcc.ArgumentError, match="direct: that of rank 1"):
        fcc.RingReduceScatter(print, 3, 4, comm=comm, direct=comm.rank == 1)
    tracker = fcc.Tracker(comm) if comm.rank == 1 else None
    with pytest.raises(fcc.AlreadyJoinedError, match="it has one of this communicator already"):
        fcc.RingReduceScatter(print, 3, 4, pieces=1, comm=comm)
    if tracker:
        tracker.close()
    fcc.RingReduceScatter(lambda first, out, add: out.zero_(), 3, 4, pieces=1, comm=comm).close()  # nothing is left of the others


def product_error_rank(comm):
    def product(first, out, add):
        if comm.rank == 1:
            raise ZeroDivisionError("nothing to divide")

    with pytest.raises(ZeroDivisionError if comm.rank == 1 else fcc.AbortedError, match="nothing to divide"):
        fcc.RingReduceScatter(product, 3, 4, comm=comm)


def behind_rank(comm, go):
    """Rank 0 comes to the second run only when there is the file `go`."""
    ring = fcc.RingReduceScatter(lambda first, out, add: out.zero_(), 4, 4, pieces=2, comm=comm)
    ring.run()
    while comm.rank == 0 and not pathlib.Path(go).exists():
        time.sleep(0.01)
    ring.run()
    ring.close()


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
        time.sleep(4)


@pytest.mark.parametrize("size, rows, cols, depth, pieces, dtype", [
    (1, 5, 3, 4, 2, torch.float32), (2, 7, 33, 5, 3, torch.float32), (3, 13, 17, 9, 4, torch.float32), (4, 1, 1, 1, 1, torch.float32),
    (2, 8, 64, 4, 2, torch.bfloat16), (3, 19, 40, 16, None, torch.float32)])
def test_reduce_scatter(run, size, rows, cols, depth, pieces, dtype):
    assert len(set(run(size, reduce_scatter_rank, rows, cols, depth, pieces, dtype))) == 1


@pytest.mark.parametrize("size, rows, cols, pieces", [
    (1, 3, 4, 1), (2, 9, 7, 4), (3, 11, 5, 3), (4, 6, 130, None), (2, (5, 2), 7, 2), (3, (1, 7, 3), 5, 1), (4, (9, 4, 4, 6), 130, None)])
def test_all_gather(run, size, rows, cols, pieces):
    assert len(set(run(size, all_gather_rank, rows, cols, pieces))) == 1


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("rows, pieces", [((4,), 2), ((5, 2), 2), ((1, 7, 3), 1), ((9, 4, 4, 6), 3), ((8, 8, 5), None)])
def test_uneven_rows(run, rows, pieces, direct):
    assert len(set(run(len(rows), uneven_rank, rows, 33, pieces, direct))) == 1


@pytest.mark.parametrize("pieces, direct", [(1, False), (3, False), (2, True), (None, False)])
def test_graphs(run, device, pieces, direct):
    if device == "cpu":
        pytest.skip("of GPUs")
    run(2, graph_rank, 24, 40, 16, pieces, direct)


def test_errors(run, on_cpu):
    run(2, errors_rank)


def test_one_ranks_error(run, on_cpu):
    run(3, other_error_rank, time_limit=60)


def test_a_product_that_raises(run, on_cpu):
    run(3, product_error_rank, time_limit=60)


def test_what_fccctl_says_of_a_ring(start, daemon, on_cpu, tmp_path):
    ranks, go, ahead, until = start(2, behind_rank, str(tmp_path / "go")), tmp_path / "go", [], time.monotonic() + 60
    while len(ahead) < 2 and time.monotonic() < until:
        workers = json.loads(daemon.ctl("track", "--json"))["workers"]
        ahead = [r for w in workers for r in w["rules"] if r["rank"] == 1 and r["name"] == "ring" and r["state"] == "waiting"]
    drawn = json.loads(daemon.ctl("trace", "--rules", "--json"))
    go.touch()
    ranks.results()
    assert [r["waits_for"] for r in ahead] == [f"awaits[0], the word at byte {at}, is 1 of 2" for at in (16, 16)]
    assert [[(e["run"], e["kind"], e["bytes"]) for e in rule["events"] if e["kind"] == "put"] for rule in drawn["ranks"][1]["workgroups"] if rule["name"] == "ring"] == [
        [(1, "put", 32)], [(1, "put", 32)]]


def test_a_rank_that_leaves(run, on_cpu):
    run(2, left_rank)


def test_a_rank_that_does_not_come(run, on_cpu):
    run(2, late_rank, time_limit=2)
