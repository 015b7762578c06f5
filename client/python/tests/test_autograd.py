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


class FromAll(torch.autograd.Function):
    """All ranks' inputs, the same tensor on every rank, of which each rank then uses its part: backward sums what they
    found."""

    @staticmethod
    def forward(ctx, everything, comm):
        ctx.comm = comm
        return everything.clone()

    @staticmethod
    def backward(ctx, grad):
        return fcc.all_reduce(grad, ctx.comm), None


class ToAll(torch.autograd.Function):
    """Each rank's result, on all ranks, so that each compares the whole: backward takes the rank's part."""

    @staticmethod
    def forward(ctx, mine, comm):
        ctx.comm, ctx.shape = comm, mine.shape
        placed = mine.new_zeros(comm.size, mine.numel())
        placed[comm.rank] = mine.flatten()
        return fcc.all_reduce(placed, comm)

    @staticmethod
    def backward(ctx, grad):
        return grad[ctx.comm.rank].view(ctx.shape), None


def check(comm, function, *inputs):
    """gradcheck of a function of all ranks' inputs. All ranks do the same, step by step."""
    def whole(*everything):
        return function(*(FromAll.apply(tensor, comm) for tensor in everything))
    inputs = [tensor.to(comm.device).requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(whole, inputs, eps=STEP, atol=TOLERANCE, rtol=TOLERANCE)


def gradcheck_rank(comm):
    warnings.simplefilter("ignore")  # copies, and that the inputs are not float64
    size, rank = comm.size, comm.rank
    check(comm, lambda x, w: fcc.gemv_all_reduce(x[rank], w[rank], comm), reference.random(1, size, 2, 3),
          reference.random(2, size, 4, 3))
    check(comm, lambda x, w: ToAll.apply(fcc.gemv_all_reduce(x[rank], w[rank], comm, replicated=False), comm),
          reference.random(1, size, 2, 3), reference.random(2, size, 4, 3))
    counts = [[1 + (s + d) % 2 for d in range(size)] for s in range(size)]
    most = max(map(sum, counts))

    def gemm(a, b):
        c = fcc.gemm_all_to_all(a[rank][:sum(counts[rank])], b[rank], comm, send_rows=counts[rank], recv_rows=[r[rank] for r in counts])
        return ToAll.apply(torch.nn.functional.pad(c, (0, 0, 0, 2 * size - c.shape[0])), comm)
    check(comm, gemm, reference.random(3, size, most, 3), reference.random(4, size, 3, 8))

    batch, offsets = 2 * size + 1, torch.arange(0, 2 * (2 * size + 1) * 2 + 1, 2, device=comm.device)
    indices = torch.randint(0, 3, (4 * batch,), generator=torch.Generator().manual_seed(5)).to(comm.device)
    for pooling in ("sum", "mean"):
        def embedding(tables, weights):
            out = fcc.embedding_all_to_all(tables[rank], indices, offsets, table_rows=[4, 3], tables_per_rank=[2] * size, batch=batch,
                                           sample_weights=weights[rank] if pooling == "sum" else None, pooling=pooling, comm=comm)
            return ToAll.apply(torch.nn.functional.pad(out, (0, 0, 0, 0, 0, 3 - out.shape[0])), comm) + 0 * weights.sum()
        check(comm, embedding, reference.random(6, size, 7, 2), reference.random(7, size, 4 * batch))


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


@pytest.mark.parametrize("size", [1, 2])
def test_gradcheck(run, size):
    run(size, gradcheck_rank)


@pytest.mark.parametrize("size", [1, 2])
def test_unused(run, size):
    run(size, unused_rank)
