# SPDX-License-Identifier: MIT
"""torch.compile without graph breaks, and what torch.library asks of operators."""
import warnings

import fcc
import pytest
import reference
import torch


def inputs(comm, dtype=torch.float32):
    size, rank = comm.size, comm.rank
    return {"x": reference.random(rank, 3, 16, dtype=dtype), "w": reference.random(9 + rank, 8, 16, dtype=dtype),
            "a": reference.random(20 + rank, 4 * size, 16), "tables": reference.random(40 + rank, 10, 8),
            "indices": torch.tensor([0, 1, 3, 2, 2, 5, 1, 0] * size)[:4 * size * 2], "offsets": torch.arange(0, 8 * size + 1, 2)}


def place(comm, found):
    return {name: fcc.to_daemon(tensor.to(comm.device), comm) for name, tensor in found.items()}


def model(comm, x, w, a, tables, indices, offsets):
    """Every operator once, with arithmetic between them, and two that do not depend on each other."""
    h = fcc.gemv_all_reduce(torch.relu(x), w, comm)
    other = fcc.gemv_all_reduce(x * 2, w, comm)
    rows = fcc.gemm_all_to_all(a, w.t().contiguous() + 1, comm)
    pooled = fcc.embedding_all_to_all(tables, indices, offsets, table_rows=[10], tables_per_rank=[1] * comm.size, batch=4 * comm.size,
                                      comm=comm)
    return torch.sigmoid(h).sum() + other.square().mean() + rows.mean() * 3 + (pooled ** 2).sum() + fcc.all_reduce(h, comm).sum()


def compile_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    given = place(comm, inputs(comm))
    wanted = ("x", "w", "a", "tables")
    found = []
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for function in (model, compiled, compiled):
        leaves = {name: given[name].detach().requires_grad_() if name in wanted else given[name] for name in given}
        loss = function(comm, **leaves)
        loss.backward()
        found.append([loss.detach(), *(leaves[name].grad for name in wanted)])
    for other in found[1:]:
        for got, want in zip(other, found[0]):
            reference.close(got, want.cpu())
    with torch.no_grad():
        reference.close(compiled(comm, **given), found[0][0].cpu())


def order_rank(comm):
    """Inductor keeps the ranks' common order, and calls whose result only another rank uses. Without arithmetic between the
    operators it needs no C++ compiler."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    given = place(comm, inputs(comm))
    x, w, a = (given[name].requires_grad_() for name in ("x", "w", "a"))

    def function(x, w, a):
        h = fcc.gemv_all_reduce(x, w, comm)
        total = fcc.all_reduce(a.detach(), comm)  # (a gradient of it would be wanted on that rank only)
        return h, fcc.gemm_all_to_all(a, w.t(), comm), total if comm.rank else None
    found = torch.compile(function, fullgraph=True)(x, w, a)
    wanted = function(x, w, a)
    for got, want in zip(found[:2 + (comm.rank > 0)], wanted):
        reference.close(got, want.cpu())
    grads = [torch.autograd.grad(result[0].sum() + 2 * result[1].sum(), (x, w, a)) for result in (found, wanted)]
    for got, want in zip(*grads):
        reference.close(got, want.cpu())


def dynamic_rank(comm):
    """Sizes that change do not break the graph either."""
    compiled = torch.compile(lambda x, w: fcc.gemv_all_reduce(x + 1, w, comm) * 2, fullgraph=True, dynamic=True, backend="aot_eager")
    for m in (1, 2, 5):
        x, w = (fcc.to_daemon(reference.random(m + comm.rank, rows, 16).to(comm.device), comm) for rows in (m, 8))
        want = fcc.all_reduce((x + 1) @ w.t() * 2, comm)
        reference.close(compiled(x, w), want.cpu())


def opcheck_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    given = place(comm, inputs(comm))
    x, w, a, tables = (given[name].detach().requires_grad_() for name in ("x", "w", "a", "tables"))
    ops, size, n = torch.ops.fcc, comm.size, a.shape[0] // comm.size
    for op, args, kwargs in [
            (ops.gemv_all_reduce, (x, w, comm.name), {}), (ops.gemv_all_reduce, (x, w, comm.name), {"replicated": False}),
            (ops.gemv_all_reduce, (x, w, comm.name, w.detach()[:, 0].clone().requires_grad_()), {}),
            (ops.gemm_all_reduce, (a, w.detach().t().contiguous().requires_grad_(), comm.name), {}),
            (ops.gemm_reduce_scatter, (a, w.detach().t().contiguous().requires_grad_(), comm.name), {}),
            (ops.gemm_reduce_scatter, (a, w.detach().t().contiguous(), comm.name), {"rows": [a.shape[0]] + [0] * (size - 1)}),
            (ops.gemm_all_to_all, (a, w.detach().t().contiguous().requires_grad_(), comm.name), {}),
            (ops.all_gather_gemm, (a, w.detach().t().contiguous().requires_grad_(), comm.name), {}),
            (ops.all_gather_gemm, (a, w.detach().t().contiguous().requires_grad_(), comm.name), {"gathered": True}),
            (ops.gemm_all_to_all, (a, w.detach().t().contiguous(), comm.name), {"send_rows": [n] * size, "recv_rows": [n] * size}),
            (ops.embedding_all_to_all, (tables, given["indices"], given["offsets"], None, [10], [1] * size, 4 * size, comm.name), {}),
            (ops.rows_all_to_all, (a, [n] * size, [n] * size, comm.name), {}), (ops.all_reduce, (x, comm.name), {})]:
        torch.library.opcheck(op.default, args, kwargs)


def test_compile(run):
    run(2, compile_rank)


def test_order(run):
    run(2, order_rank)


def test_dynamic_shapes(run):
    run(2, dynamic_rank)


@pytest.mark.parametrize("size", [1, 2])
def test_opcheck(run, size):
    run(size, opcheck_rank)
