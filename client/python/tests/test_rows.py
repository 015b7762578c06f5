# SPDX-License-Identifier: MIT
"""rows_all_to_all moves rows as data: whatever their bits are, in rows of any width, in memory that grows with the rows."""
import warnings

import fcc
import pytest
import torch

INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
WIDTHS = (0, 1, 2, 3, 5, 7, 8, 9, 11, 12, 15, 16, 17, 23, 24, 25, 31, 32, 33, 63, 64, 65, 100, 193, 385, 1000)


def bits(seed, rows, width, dtype):
    """Rows of any bits at all: NaNs of all kinds, infinities, denormals, -0."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(-2 ** 31, 2 ** 31, (rows, 2 * width), generator=generator).to(torch.int32)
    found = found[:, :width] if dtype == torch.float32 else found.to(torch.int16)[:, :width]
    return found.contiguous().view(dtype)


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape, (got.shape, want.shape)
    assert torch.equal(got.cpu().contiguous().view(INTEGERS[got.dtype]), want.contiguous().view(INTEGERS[want.dtype]))


def exchange(comm, make, counts, on=lambda tensor: tensor):
    """All ranks' rows by make(rank, number of rows), `counts`[source][destination] of them, and what comes here."""
    every = [make(rank, sum(counts[rank])) for rank in range(comm.size)]
    got = fcc.rows_all_to_all(on(every[comm.rank].to(comm.device)), counts[comm.rank], [row[comm.rank] for row in counts], comm)
    same(got, torch.cat([rows.split(counts[rank])[comm.rank] for rank, rows in enumerate(every)]))


def bits_rank(comm):
    warnings.simplefilter("error")
    size = comm.size
    counts = [[(2 * s + d) % 4 for d in range(size)] for s in range(size)]
    for dtype in INTEGERS:
        for width in WIDTHS:
            exchange(comm, lambda rank, n, width=width, dtype=dtype: bits(100 * width + rank, n, width, dtype), counts)
        tiny, largest = torch.finfo(dtype).tiny / 2, torch.finfo(dtype).max
        for value in (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, largest, tiny, 1.0):
            exchange(comm, lambda rank, n, value=value, dtype=dtype: torch.full((n, 6), value, dtype=dtype), counts)
        exchange(comm, lambda rank, n, dtype=dtype: bits(rank, n, 9, dtype), [[0] * size] * size)
        alone = [[5 * (s == d == 0) for d in range(size)] for s in range(size)]
        exchange(comm, lambda rank, n, dtype=dtype: bits(rank, n, 9, dtype), alone)
        # rows that do not lie dense, or at addresses that are not multiples of 4; in the daemon's memory
        for on in (lambda rows: torch.cat([rows, rows], 1)[:, :rows.shape[1]], lambda rows: rows.t().contiguous().t(),
                   lambda rows: torch.cat([rows.flatten()[:1], rows.flatten()])[1:].view(rows.shape),
                   lambda rows: fcc.to_daemon(rows, comm)):
            exchange(comm, lambda rank, n, dtype=dtype: bits(7 + rank, n, 12, dtype), counts, on)
    row = torch.tensor([1.0, -0.0, float("inf")]).expand(size, 3).to(comm.device)  # strides of 0
    same(fcc.rows_all_to_all(row, [1] * size, [1] * size, comm), row.cpu().contiguous())


def gradients_rank(comm):
    """An infinity in a gradient spoils what it is multiplied with, and nothing beside."""
    warnings.simplefilter("ignore")
    size = comm.size
    for width in (3, 40, 64, 65):
        rows = torch.ones(size, width, device=comm.device, requires_grad=True)
        got = fcc.rows_all_to_all(rows, [1] * size, [1] * size, comm)
        factor = torch.ones(size, width, device=comm.device)
        factor[:, 1], factor[:, 2] = float("inf"), -0.0
        got.backward(factor)
        same(rows.grad, factor.cpu())
    a = torch.ones(size, 4, device=comm.device, requires_grad=True)
    b = torch.eye(4, 64, device=comm.device)
    y = fcc.gemm_all_to_all(a, b, comm)
    gradient = torch.ones_like(y)
    gradient[:, 40] = float("inf")
    y.backward(gradient)
    want = gradient[:1].cpu() @ b.cpu().t()
    assert torch.equal(a.grad.isnan(), want.isnan().expand(size, 4).to(comm.device))
    tables = fcc.to_daemon(torch.zeros(4, 8), comm).requires_grad_()
    ids, offsets = torch.arange(size, device=comm.device) % 4, torch.arange(size + 1, device=comm.device)
    out = fcc.embedding_all_to_all(tables, ids, offsets, comm=comm, table_rows=[4], tables_per_rank=[1] * size, batch=size)
    factor = torch.ones_like(out)
    factor[0, :, 5] = float("nan")
    out.backward(factor)
    used = min(size, 4)
    assert tables.grad[:used, 5].isnan().all() and int(tables.grad.isnan().sum()) == used


def cost_rank(comm):
    """Rows of any width take no memory beyond theirs."""
    warnings.simplefilter("ignore")
    before = comm._heap._used(), comm._local.nbytes
    rows = fcc.to_daemon(torch.ones(comm.size, 500_257, device=comm.device), comm)
    for _ in range(3):
        same(fcc.rows_all_to_all(rows, [1] * comm.size, [1] * comm.size, comm), rows.cpu())
    assert comm._heap._used() == before[0] and comm._local.nbytes == before[1]


def refused_rank(comm):
    """Rows that do not fit together are an error on all ranks, who go on: also of rows that move as the same numbers."""
    warnings.simplefilter("ignore")
    size, odd = comm.size, comm.rank == 1
    for right, wrong in ((torch.ones(2, 4), torch.ones(2, 5)), (torch.ones(2, 4), torch.ones(2, 3)),
                         (torch.ones(2, 0), torch.ones(2, 1)),
                         (torch.ones(2, 4), torch.ones(2, 8).half()), (torch.ones(2, 4).half(), torch.ones(2, 4).bfloat16()),
                         (torch.ones(2, 500), torch.ones(2, 501)), (torch.ones(2, 4), torch.ones(2, 4).double()),
                         (torch.ones(2, 4), torch.ones(2, 4).int()), (torch.ones(2, 4), torch.ones(8))):
        right, wrong = right.to(comm.device), wrong.to(comm.device)
        words = f"rows: shape\\[1\\]: rank 1 has {wrong.shape[1]}, rank 0 has {right.shape[1]}" if (
            wrong.ndim == 2 and wrong.shape[1] != right.shape[1] and wrong.dtype == right.dtype) else "rows: "
        with pytest.raises(fcc.ArgumentError, match=f"rows_all_to_all: {words}") as e:
            fcc.rows_all_to_all(wrong if odd else right, [1] * size, [1] * size, comm)
            comm.synchronize()
        assert e.value.rank == 1, e.value
        same(fcc.rows_all_to_all(right, [1] * size, [1] * size, comm), right.cpu())
    rows = torch.ones(2, 4, device=comm.device)
    for send, receive, words in (([3, 1], [1, 1], "send_rows: .3, 1.: allowed are 2 numbers.* 2 in all"),
                                 ([1], [1, 1], "send_rows"),
                                 ([1, 1], [1, -1], "recv_rows: .1, -1."), ([3, -1], [1, 1], "send_rows")):
        with pytest.raises(fcc.ArgumentError, match=f"rows_all_to_all: {words}" if odd else "") as e:
            fcc.rows_all_to_all(rows, send if odd else [1, 1], receive if odd else [1, 1], comm)
            comm.synchronize()
        assert e.value.rank == 1
    wide = torch.ones(2, 300, device=comm.device)
    with pytest.raises(fcc.ArgumentError, match=r"rows_all_to_all: recv_rows: rank \d expects (2 rows|600 elements) of rank 1, which sends (1|300)\b"):
        fcc.rows_all_to_all(wide, [1, 1], [1, 2], comm)
        comm.synchronize()
    same(fcc.rows_all_to_all(rows, [1, 1], [1, 1], comm), rows.cpu())


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("function", [bits_rank, gradients_rank])
def test_rows(run, size, function):
    run(size, function)


@pytest.mark.parametrize("function", [cost_rank, refused_rank])
def test_two(run, function):
    run(2, function)
