# SPDX-License-Identifier: MIT
"""The operators against torch and gloo: every dtype, pieces of all sizes, nothing, and views."""
import fcc
import pytest
import reference
import torch

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def placed(comm, tensor):
    return fcc.to_daemon(tensor, comm)


def gemv_rank(comm, path):
    reference.join(comm, path)
    for i, (m, n, k, dtype) in enumerate([(1, 96, 64, d) for d in DTYPES] + [(5, 33, 17, torch.float32), (64, 8, 3, torch.float16),
                                                                             (2, 7, 0, torch.float32)]):
        k += comm.rank if k else 0  # K may differ
        x, w = (reference.random(100 * i + 10 * comm.rank + j, rows, k, dtype=dtype) for j, rows in enumerate((m, n)))
        want = reference.gemv(x, w)
        for schedule in ("auto", "fused", "sequential"):
            y = fcc.gemv_all_reduce(placed(comm, x), placed(comm, w), comm, schedule=schedule)
            assert y.dtype == dtype and y.device == comm.device
            assert fcc.is_daemon_memory(y, comm) != (comm.member.launches() and schedule != "sequential")
            reference.close(y, want, dtype)
    big = placed(comm, reference.random(comm.rank, 40, 50))
    x, w = big[3:5, 10:30], big[7:, 10:30]
    reference.close(fcc.gemv_all_reduce(x, w, comm), reference.gemv(x.cpu(), w.cpu()))
    held = placed(comm, reference.random(comm.rank, 9, 1))
    reference.close(fcc.gemv_all_reduce(held[::4], held, comm), reference.gemv(held[::4].cpu(), held.cpu()))


def gemm_rank(comm, path):
    reference.join(comm, path)
    size, rank = comm.size, comm.rank
    for i, dtype in enumerate(DTYPES):
        a, b = reference.random(i + 10 * rank, 6 * size, 20, dtype=dtype), reference.random(i + 50 + rank, 20, 24, dtype=dtype)
        want = reference.exchange(a.float() @ b.float(), [6] * size, [6] * size)
        reference.close(fcc.gemm_all_to_all(placed(comm, a), placed(comm, b), comm), want, dtype)
    counts = [[(3 * s + 5 * d) % 7 for d in range(size)] for s in range(size)]  # some are 0
    send, recv = counts[rank], [row[rank] for row in counts]
    a, b = reference.random(rank, sum(send), 9 + rank), reference.random(70 + rank, 9 + rank, 40)
    want = reference.exchange(a @ b, send, recv)
    for schedule in ("auto", "fused", "sequential"):
        got = fcc.gemm_all_to_all(placed(comm, a), placed(comm, b), comm, send_rows=send, recv_rows=recv, schedule=schedule)
        reference.close(got, want)
    nothing = fcc.gemm_all_to_all(placed(comm, torch.zeros(0, 4)), placed(comm, torch.zeros(4, 8)), comm)
    assert nothing.shape == (0, 8)


def batch_rank(comm, path):
    """Rows of products among others, at other places, and alone."""
    reference.join(comm, path)
    for dtype in DTYPES:
        x, w = placed(comm, reference.random(comm.rank, 40, 1000, dtype=dtype)), placed(comm, reference.random(9 + comm.rank, 70, 1000, dtype=dtype))
        for op, second in ((fcc.gemv_all_reduce, w), (fcc.gemm_all_reduce, placed(comm, w.t().contiguous()))):
            whole = op(x, second, comm, schedule="batch_invariant")
            reference.close(whole, reference.gemv(x.cpu(), w.cpu()), dtype)
            for rows in ([3], [39, 0], list(range(39, 20, -1))):
                assert torch.equal(op(placed(comm, x[rows]), second, comm, schedule="batch_invariant"), whole[rows])


def sums_rank(comm, path):
    reference.join(comm, path)
    for i, (m, n, k, dtype) in enumerate([(70, 33, 17, d) for d in DTYPES] + [(1, 96, 64, torch.float32), (300, 7, 0, torch.float32)]):
        k += comm.rank if k else 0
        a, b = reference.random(100 * i + 10 * comm.rank, m, k, dtype=dtype), reference.random(100 * i + 10 * comm.rank + 1, k, n, dtype=dtype)
        want = reference.gemv(a, b.t())
        for schedule in ("auto", "fused", "sequential"):
            got = fcc.gemm_all_reduce(placed(comm, a), placed(comm, b), comm, schedule=schedule)
            assert got.dtype == dtype and got.device == comm.device and fcc.is_daemon_memory(got, comm)
            reference.close(got, want, dtype)


def scatter_rank(comm, path):
    """Rows of the sum, in equal and other parts; each rank's own bias and residual."""
    reference.join(comm, path)
    size, rank = comm.size, comm.rank
    for i, (m, n, k, dtype) in enumerate([(70, 33, 17, d) for d in DTYPES] + [(1, 96, 64, torch.float32), (300, 7, 0, torch.float32), (0, 5, 3, torch.float32)]):
        k += rank if k else 0
        a, b = reference.random(100 * i + 10 * rank, m, k, dtype=dtype), reference.random(100 * i + 10 * rank + 1, k, n, dtype=dtype)
        whole = reference.gemv(a, b.t())
        equal = [m // size + (r < m % size) for r in range(size)]
        for rows in (None, [m if r == size - 1 else 0 for r in range(size)]):
            parts = rows or equal
            mine = whole[sum(parts[:rank]):sum(parts[:rank + 1])]
            bias, residual = reference.random(900 + rank, n, dtype=dtype), reference.random(950 + rank, *mine.shape, dtype=dtype)
            for schedule in ("auto", "fused", "sequential", "any_order", *(("batch_invariant",) if comm.device.type == "cpu" else ())):
                got = fcc.gemm_reduce_scatter(placed(comm, a), placed(comm, b), comm, rows=rows, schedule=schedule)
                assert got.dtype == dtype and got.device == comm.device and got.shape == mine.shape and fcc.is_daemon_memory(got, comm)
                reference.close(got, mine, dtype)
                got = fcc.gemm_reduce_scatter(placed(comm, a), placed(comm, b), comm, rows=rows, schedule=schedule,
                                              bias=placed(comm, bias), residual=placed(comm, residual))
                reference.close(got, mine + bias.float() + residual.float(), dtype)
    for rows in ([1] * (size + 1), [4] * size, [-1] + [4] * (size - 1)):
        with pytest.raises(fcc.ArgumentError, match=r"gemm_reduce_scatter: rows: .* one for each rank, 3 in all"):
            fcc.gemm_reduce_scatter(placed(comm, torch.ones(3, 2)), placed(comm, torch.ones(2, 2)), comm, rows=rows)


def gather_rank(comm, path):
    reference.join(comm, path)
    size, rank = comm.size, comm.rank
    for i, (k, n, dtype) in enumerate([(17, 33, d) for d in DTYPES] + [(0, 5, torch.float32), (64, 0, torch.float32)]):
        for rows in (None, [(3 * r + i) % 5 for r in range(size)]):
            m = 7 if rows is None else rows[rank]
            parts = [reference.random(100 * i + r, 7 if rows is None else rows[r], k, dtype=dtype) for r in range(size)]
            b = reference.random(50 + 100 * i + rank, k, n + rank if n else 0, dtype=dtype)
            want = torch.cat(parts).float() @ b.float()
            bias = reference.random(7 + rank, b.shape[1], dtype=dtype)
            assert parts[rank].shape[0] == m
            for schedule in ("auto", "fused", "sequential"):
                a = placed(comm, parts[rank])
                got = fcc.all_gather_gemm(a, placed(comm, b), comm, rows=rows, schedule=schedule)
                a.fill_(float("nan"))  # it is this rank's again
                assert got.dtype == dtype and got.device == comm.device and fcc.is_daemon_memory(got, comm)
                reference.close(got, want, dtype)
                got, every = torch.ops.fcc.all_gather_gemm(placed(comm, parts[rank]), placed(comm, b), comm.name, placed(comm, bias), rows=rows,
                                                           gathered=True, schedule=schedule)
                reference.close(got, want + bias.float(), dtype)
                assert torch.equal(every.cpu(), torch.cat(parts))
    with pytest.raises(fcc.ArgumentError, match=f"rank {size - 1}: all_gather_gemm: a: 2 rows: rows says 3"):
        fcc.all_gather_gemm(torch.zeros(2 if rank == size - 1 else 3, 4, device=comm.device), torch.zeros(4, 5, device=comm.device), comm,
                            rows=[3] * size)
        comm.synchronize()
    if size > 1:
        with pytest.raises(fcc.ArgumentError, match="all_gather_gemm: rows: the ranks' a have .* rows together, rows adds up to|rows: their sum"):
            fcc.all_gather_gemm(torch.zeros(2 + rank, 4, device=comm.device), torch.zeros(4, 5, device=comm.device), comm)
            comm.synchronize()
        with pytest.raises(fcc.ArgumentError, match=r"all_gather_gemm: gathered \(which is for b that requires a gradient\): rank 1 has none, rank 0 has one"):
            fcc.all_gather_gemm(torch.zeros(2, 4, device=comm.device), torch.zeros(4, 5, device=comm.device, requires_grad=rank == 0), comm)
            comm.synchronize()


def epilogue_rank(comm, path):
    reference.join(comm, path)
    size, rank = comm.size, comm.rank
    for i, dtype in enumerate(DTYPES):
        for m, n, k in ((3, 40, 16), (1, 7, 5)):
            x, w = reference.random(10 * i + rank, m, k, dtype=dtype), reference.random(50 + 10 * i + rank, n, k, dtype=dtype)
            bias, residual = reference.random(90 + i, n, dtype=dtype), reference.random(95 + i, m, n, dtype=dtype)
            for b, r in ((bias, None), (None, residual), (bias, residual)):
                more = {name: None if tensor is None else placed(comm, tensor) for name, tensor in (("bias", b), ("residual", r))}
                want = reference.gemv(x, w) + sum(tensor.float() for tensor in (b, r) if tensor is not None)
                for schedule in ("auto", "sequential"):
                    reference.close(fcc.gemv_all_reduce(placed(comm, x), placed(comm, w), comm, schedule=schedule, **more), want, dtype)
                    reference.close(fcc.gemm_all_reduce(placed(comm, x), placed(comm, w.t().contiguous()), comm, schedule=schedule, **more),
                                    want, dtype)
                a, own = x.repeat(size, 1), None if r is None else (r * (rank + 1)).repeat(size, 1)
                more["residual"] = None if own is None else placed(comm, own)
                made = a.float() @ w.float().t() + sum(tensor.float() for tensor in (b, own) if tensor is not None)
                got = fcc.gemm_all_to_all(placed(comm, a), placed(comm, w.t().contiguous()), comm, **more)
                reference.close(got, reference.exchange(made, [m] * size, [m] * size), dtype)
    # what lies elsewhere is copied, and the next call is as ever
    x, w, bias = (tensor.to(comm.device) for tensor in (torch.ones(2, 3), torch.ones(4, 3), torch.arange(4.)))
    for _ in range(3):
        reference.close(fcc.gemv_all_reduce(x, w, comm, bias=bias), 3. * size + torch.arange(4.).expand(2, 4))
        reference.close(fcc.gemv_all_reduce(x, w, comm), torch.full((2, 4), 3. * size))


def embedding_rank(comm, path):
    reference.join(comm, path)
    rank, size = comm.rank, comm.size
    for i, (batch, split, pooling, dtype, ids_dtype, weighted) in enumerate([
            (7, None, "sum", torch.float32, torch.int64, False), (8, None, "mean", torch.float16, torch.int32, False),
            (6, [6] + [0] * (size - 1), "sum", torch.bfloat16, torch.int64, False), (9, None, "sum", torch.float32, torch.int32, True)]):
        tables_per_rank = [(r + 1) % 3 for r in range(size)]  # one may have none
        table_rows = [5 + rank + 3 * t for t in range(tables_per_rank[rank])]
        generator = torch.Generator().manual_seed(i + 100 * rank)
        lengths = torch.randint(0, 4, (len(table_rows) * batch,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).to(ids_dtype)
        ids = [torch.randint(0, rows, (int(lengths[t * batch:(t + 1) * batch].sum()),), generator=generator)
               for t, rows in enumerate(table_rows)]
        indices = torch.cat([*ids, torch.empty(0, dtype=torch.long)]).to(ids_dtype)
        weights = torch.rand(len(indices), generator=generator) if weighted else None
        tables = reference.random(i + 10 * rank, sum(table_rows), 12, dtype=dtype)
        parts = split or [batch // size + (r < batch % size) for r in range(size)]
        want = reference.embedding(tables, indices, offsets, weights, table_rows, tables_per_rank, parts, pooling)
        got = fcc.embedding_all_to_all(
            placed(comm, tables), placed(comm, indices), placed(comm, offsets), table_rows=table_rows, batch=batch, comm=comm,
            tables_per_rank=tables_per_rank, sample_weights=None if weights is None else placed(comm, weights), batch_split=split,
            pooling=pooling)
        reference.close(got, want, dtype)


def rows_rank(comm, path):
    reference.join(comm, path)
    size, rank = comm.size, comm.rank
    counts = [[(s + 2 * d) % 4 for d in range(size)] for s in range(size)]
    send, recv = counts[rank], [row[rank] for row in counts]
    for columns, dtype in ((192, torch.float32), (13, torch.bfloat16), (1, torch.float16), (40, torch.float32)):
        rows = reference.random(rank, sum(send), columns, dtype=dtype)
        got = fcc.rows_all_to_all(rows.to(comm.device), send, recv, comm)
        assert torch.equal(got.cpu().float(), reference.exchange(rows, send, recv))  # to the bit
    for shape in ((3, 5, 7), (1,), (), (0, 4)):
        x = reference.random(rank, *shape)
        want = x.clone()
        torch.distributed.all_reduce(want)
        reference.close(fcc.all_reduce(x.to(comm.device), comm), want)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("function", [gemv_rank, gemm_rank, sums_rank, scatter_rank, gather_rank, batch_rank, epilogue_rank, embedding_rank, rows_rank])
def test_operator(run, tmp_path, size, function):
    run(size, function, tmp_path / "meeting")
