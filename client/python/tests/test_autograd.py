# SPDX-License-Identifier: MIT
"""Derivatives: gradcheck, and the gradients of the same work in one process.

The operators have no float64, so gradcheck runs in float32. They are linear in each argument, so the central difference is
exact but for rounding whatever the step: it is 0.25 here, and the tolerance 1e-3.
"""
import warnings

import fcc
import pytest
import reference
import torch

STEP, TOLERANCE = 0.25, 1e-3


def check(comm, function, *inputs, batched=True):
    """First and second derivatives, backward and forward, of a function of all ranks' inputs. All ranks do the same, step by step, and
    have all inputs, of which each uses its part. batched: by torch._vmap_internals, too, which calls no operator that is given nothing."""
    def whole(*everything):
        return function(*(fcc.sum_gradients(tensor, comm) for tensor in everything))
    inputs = [tensor.to(comm.device).requires_grad_() for tensor in inputs]
    torch.manual_seed(0)  # the directions that are looked at are the same on all ranks
    how = {"eps": STEP, "atol": TOLERANCE, "rtol": TOLERANCE}
    assert torch.autograd.gradcheck(whole, inputs, check_forward_ad=True, check_batched_grad=batched, check_batched_forward_grad=batched,
                                    **how)
    factor = torch.randn_like(whole(*inputs)).requires_grad_()
    assert torch.autograd.gradgradcheck(whole, inputs, [factor], check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True, **how)


class Shared(torch.autograd.Function):
    """The same on all ranks. Backward and forward are linear in it."""

    @staticmethod
    def forward(ctx, x, size):
        ctx.size = size
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.size, None

    @staticmethod
    def jvp(ctx, to_x, _):
        return to_x.clone()

    @staticmethod
    def vmap(info, in_dims, x, size):
        return Shared.apply(x, size), in_dims[0]


def shared(x, size):
    return Shared.apply(x, size)


def gradcheck_rank(comm):
    warnings.simplefilter("ignore")  # copies, and that the inputs are not float64
    size, rank = comm.size, comm.rank
    check(comm, lambda x, w: fcc.gemv_all_reduce(x[rank], w[rank], comm), reference.random(1, size, 2, 3),
          reference.random(2, size, 4, 3))
    check(comm, lambda x, w: reference.to_all(fcc.gemv_all_reduce(x[rank], w[rank], comm, replicated=False), comm),
          reference.random(1, size, 2, 3), reference.random(2, size, 4, 3))
    check(comm, lambda a, b: fcc.gemm_all_reduce(a[rank], b[rank], comm), reference.random(1, size, 2, 3), reference.random(2, size, 3, 4))
    check(comm, lambda a, b: reference.to_all(fcc.gemm_all_reduce(a[rank], b[rank], comm, replicated=False), comm),
          reference.random(1, size, 2, 3), reference.random(2, size, 3, 4))
    parts = [(rank_ + 1) % 3 for rank_ in range(size)]
    first = sum(parts[:rank])
    padded = (0, 0, 0, 2 - parts[rank])
    check(comm, lambda a, b: reference.to_all(torch.nn.functional.pad(fcc.gemm_reduce_scatter(a[rank], b[rank], comm, rows=parts), padded), comm),
          reference.random(1, size, sum(parts), 3), reference.random(2, size, 3, 4))
    check(comm, lambda a, b, bias, r: reference.to_all(torch.nn.functional.pad(fcc.gemm_reduce_scatter(
        a[rank], b[rank], comm, rows=parts, bias=bias[rank], residual=r[first:first + parts[rank]]), padded), comm),
          reference.random(1, size, sum(parts), 3), reference.random(2, size, 3, 4), reference.random(5, size, 4), reference.random(6, sum(parts), 4))
    rows = [1 + r % 2 for r in range(size)]

    def gather(a, b, bias=None, residual=None):  # uneven rows, each rank its own columns
        given = {name: None if tensor is None else tensor[rank] for name, tensor in (("bias", bias), ("residual", residual))}
        return reference.to_all(fcc.all_gather_gemm(a[rank][:rows[rank]], b[rank], comm, rows=rows, **given), comm)
    check(comm, gather, reference.random(12, size, 2, 3), reference.random(13, size, 3, 4))
    check(comm, gather, reference.random(12, size, 2, 3), reference.random(13, size, 3, 4), reference.random(14, size, 4),
          reference.random(15, size, sum(rows), 4))

    def gathered(a, b):  # the rows that were gathered are a result, too, which not all ranks use
        c, every = torch.ops.fcc.all_gather_gemm(a[rank][:rows[rank]], b[rank], comm.name, rows=rows, gathered=True)
        return reference.to_all(c.sum(1, keepdim=True) + every if rank else c.sum(1, keepdim=True).expand(-1, 3), comm)
    check(comm, gathered, reference.random(12, size, 2, 3), reference.random(13, size, 3, 4))
    # a bias and a residual are the same on all ranks, and so are their gradients: of the check's, which adds those of all ranks, a share
    for op, weights in ((fcc.gemv_all_reduce, (4, 3)), (fcc.gemm_all_reduce, (3, 4))):
        check(comm, lambda x, w, b, r, op=op: op(x[rank], w[rank], comm, bias=shared(b, size), residual=shared(r, size)),
              reference.random(1, size, 2, 3), reference.random(2, size, *weights), reference.random(5, 4), reference.random(6, 2, 4))
    counts = [[1 + (s + d) % 2 for d in range(size)] for s in range(size)]
    most = max(map(sum, counts))

    def gemm(a, b):
        c = fcc.gemm_all_to_all(a[rank][:sum(counts[rank])], b[rank], comm, send_rows=counts[rank], recv_rows=[r[rank] for r in counts])
        return reference.to_all(torch.nn.functional.pad(c, (0, 0, 0, 2 * size - c.shape[0])), comm)
    check(comm, gemm, reference.random(3, size, most, 3), reference.random(4, size, 3, 8))

    check(comm, lambda x: fcc.all_reduce(x[rank], comm, replicated=True).pow(2), reference.random(8, size, 3))
    check(comm, lambda x: reference.to_all(fcc.all_reduce(x[rank], comm).pow(2) * (rank + 1), comm), reference.random(8, size, 3))
    sent = [1 + (rank + d) % 2 for d in range(size)]
    check(comm, lambda x: reference.to_all(torch.nn.functional.pad(fcc.rows_all_to_all(x[rank][:sum(sent)], sent, sent, comm),
                                                         (0, 0, 0, 2 * size - sum(sent))).pow(2), comm),
          reference.random(9, size, 2 * size, 3))

    if size > 1:  # ranks without tables take part, also in second derivatives
        def on_one_rank(tables, weights):
            own = 2 if rank == 0 else 0
            ids = torch.arange(own * 2, device=comm.device) % 3
            out = fcc.embedding_all_to_all(tables[:7 if own else 0], ids, torch.arange(own * 2 + 1, device=comm.device), batch=2,
                                           table_rows=[4, 3][:own], tables_per_rank=[2] + [0] * (size - 1), comm=comm,
                                           sample_weights=weights[:own * 2])
            return reference.to_all(torch.nn.functional.pad(out, (0, 0, 0, 0, 0, 2 - out.shape[0])).pow(2), comm)
        check(comm, on_one_rank, reference.random(10, 7, 2), reference.random(11, 4), batched=False)

    batch, offsets = size + 1, torch.arange(0, 2 * (size + 1) * 2 + 1, 2, device=comm.device)
    indices = torch.randint(0, 3, (4 * batch,), generator=torch.Generator().manual_seed(5)).to(comm.device)
    for pooling in ("sum", "mean"):
        def embedding(tables, weights):
            out = fcc.embedding_all_to_all(tables[rank], indices, offsets, table_rows=[4, 3], tables_per_rank=[2] * size, batch=batch,
                                           sample_weights=weights[rank] if pooling == "sum" else None, pooling=pooling, comm=comm)
            return reference.to_all(torch.nn.functional.pad(out, (0, 0, 0, 0, 0, 2 - out.shape[0])), comm) + 0 * weights.sum()
        check(comm, embedding, reference.random(6, size, 7, 2), reference.random(7, size, 4 * batch))


def some_rank(comm):
    """gemm_reduce_scatter whose factors require gradients on some ranks only."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    size, rank = comm.size, comm.rank
    a, b, grad = reference.random(1, size, 5, 3), reference.random(2, size, 3, 4), reference.random(3, 5, 4)
    parts = [5] + [0] * (size - 1)
    for wants_a, wants_b in ((rank == 0, True), (True, rank == 0), (rank == 0, rank != 0)):
        x, w = a[rank].to(comm.device).requires_grad_(wants_a), b[rank].to(comm.device).requires_grad_(wants_b)
        fcc.gemm_reduce_scatter(x, w, comm, rows=parts).backward(grad[:parts[rank]].to(comm.device))
        for tensor, wants, want in ((x, wants_a, grad @ b[rank].t()), (w, wants_b, a[rank].t() @ grad)):
            assert (tensor.grad is not None) == wants
            if wants:
                reference.close(tensor.grad, want)


def unused_rank(comm):
    """Bags that are empty, indices that no bag has, tables without bags' gradients, half precision."""
    tables = fcc.to_daemon(reference.random(1, 6, 4, dtype=torch.bfloat16), comm).requires_grad_()
    indices = torch.tensor([5, 0, 1, 1, 3, 2], device=comm.device)
    offsets = torch.tensor([1, 1, 4, 5, 5][:2 * comm.size + 1], device=comm.device)
    out = fcc.embedding_all_to_all(tables, fcc.to_daemon(indices, comm), fcc.to_daemon(offsets, comm), table_rows=[6], comm=comm,
                                   tables_per_rank=[1] * comm.size, batch=2 * comm.size)
    (out * 2).sum().backward()
    want = torch.zeros(6, 4)
    for index in indices[offsets[0]:offsets[-1]].tolist():
        want[index] += 2
    assert tables.grad.dtype == torch.bfloat16
    reference.close(tables.grad, want, torch.bfloat16)


def around_rank(comm):
    """Indices and weights that lie before the first bag, behind the last one: whatever they are, nothing of them comes in. The bags
    beside them are empty, and the row that they could be taken for is not a finite one."""
    nan, inf = float("nan"), float("inf")
    bags = 2 * comm.size
    for dtype in (torch.int32, torch.int64):
        indices = torch.tensor([99, -7, 5, 1, 3, 1 << 30, 4], dtype=dtype)
        offsets = torch.tensor([2, 2, *[5] * (bags - 1)], dtype=dtype)  # one bag: 5, 1, 3
        for pooling in ("sum", "mean", "weighted"):
            tables = reference.random(1, 6, 4)
            tables[0] = inf
            tables = fcc.to_daemon(tables, comm).requires_grad_()
            weights = torch.tensor([nan, inf, 2.0, 3.0, -1.0, nan, -inf]).to(comm.device).requires_grad_()
            given = weights if pooling == "weighted" else None
            out = fcc.embedding_all_to_all(tables, indices.to(comm.device), offsets.to(comm.device), table_rows=[6], batch=bags, comm=comm,
                                           sample_weights=given, tables_per_rank=[1] * comm.size,
                                           pooling="mean" if pooling == "mean" else "sum")
            inputs = (tables,) if given is None else (tables, weights)
            found = torch.autograd.grad(out.sum(), inputs, create_graph=True)
            want, factors = torch.zeros(6, 4), {"sum": [1, 1, 1], "mean": [1 / 3] * 3, "weighted": [2, 3, -1]}[pooling]
            for row, factor in zip((5, 1, 3), factors):
                want[row] += factor
            reference.close(found[0], want)
            if given is not None:
                rows = tables.detach().cpu()[[5, 1, 3]].sum(1)
                reference.close(found[1], torch.cat((torch.zeros(2), rows, torch.zeros(2))))
                # and once more: what of the weights is in the gradient of the tables
                again, = torch.autograd.grad((found[0] * torch.arange(1.0, 7, device=comm.device).unsqueeze(1)).sum(), weights)
                reference.close(again, 4.0 * torch.tensor([0.0, 0, 6, 2, 4, 0, 0]))


def without_rows_rank(comm):
    """A rank whose tables have no rows, with indices that no bag has."""
    for pooling in ("sum", "mean"):
        tables = fcc.empty(0, 4, comm=comm).requires_grad_()
        weights = torch.ones(3, device=comm.device).requires_grad_()
        given = weights if pooling == "sum" else None
        out = fcc.embedding_all_to_all(tables, torch.tensor([0, 7, -1], device=comm.device), sample_weights=given, table_rows=[0],
                                       offsets=torch.full((2 * comm.size + 1,), 1, device=comm.device), pooling=pooling, comm=comm,
                                       tables_per_rank=[1] * comm.size, batch=2 * comm.size)
        assert (out == 0).all()
        out.sum().backward()
        assert tables.grad.shape == (0, 4) and (given is None or (weights.grad == 0).all())
    comm.barrier()


@pytest.mark.parametrize("size", [1, 2])
def test_gradcheck(run, size):
    run(size, gradcheck_rank)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("function", [some_rank, unused_rank, around_rank, without_rows_rank])
def test_unused(run, size, function):
    run(size, function)
