# SPDX-License-Identifier: MIT
"""Layers between which a sequence is spread over the ranks (sequence_parallel=True): results, gradients and parameters are those of one process."""
import io
import warnings

import fcc
import pytest
import reference
import torch
from test_nn import Called
from torch import nn


def positions_of(way, size):
    """Positions of each rank: equal, as many as there are by default, or none for some."""
    return {"equal": [3] * size, "default": [3 + (r < 1) for r in range(size)], "uneven": [0 if r % 2 else 5 for r in range(size)]}[way]


def block_rank(comm, way, dtype):
    warnings.simplefilter("ignore")
    size, rank = comm.size, comm.rank
    parts = positions_of(way, size)
    rows, mine = None if way == "equal" else parts, slice(sum(parts[:rank]), sum(parts[:rank + 1]))
    torch.manual_seed(3)
    up, down = nn.Linear(6, 10, dtype=dtype), nn.Linear(10, 6, dtype=dtype)
    nn.init.normal_(down.bias)
    column = fcc.nn.ColumnParallelLinear.from_linear(up, comm=comm, sequence_parallel=True)
    row = fcc.nn.RowParallelLinear.from_linear(down, comm=comm, sequence_parallel=True)
    assert "sequence_parallel=True" in repr(column) and "sequence_parallel=True" in repr(row)
    x, grad = reference.random(5, sum(parts), 2, 6, dtype=dtype), reference.random(6, sum(parts), 2, 6, dtype=dtype)
    whole, part = x.clone().requires_grad_(), x[mine].clone().to(comm.device).requires_grad_()
    want = whole + down(nn.functional.gelu(up(whole)))
    want.backward(grad)
    with Called() as called:
        got = row(nn.functional.gelu(column(part, rows)), part, None if way == "default" else rows)
        assert got.shape == (parts[rank], 2, 6) and got.dtype == dtype
        got.backward(grad[mine].to(comm.device))
    assert [name for name in called.names if "gemm" in name] == ["all_gather_gemm", "gemm_reduce_scatter"] * 2
    assert not {"all_gather", "reduce_scatter"} & {*called.names}
    reference.close(got, want[mine], dtype)
    reference.close(part.grad, whole.grad[mine], dtype)
    for found, wanted in ((column.weight.grad, up.weight.grad[column.columns]), (column.bias.grad, up.bias.grad[column.columns]),
                          (row.weight.grad, down.weight.grad[:, row.columns]), (row.bias.grad, down.bias.grad)):
        reference.close(found, wanted, dtype)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("way", ["equal", "default", "uneven"])
def test_block(run, size, way):
    run(size, block_rank, way, torch.float32)


def test_block_bfloat16(run):
    run(2, block_rank, "default", torch.bfloat16)


def norm_rank(comm):
    """row_parallel_norm() of positions: sums and norms of this rank's own."""
    warnings.simplefilter("ignore")
    layer = fcc.nn.RowParallelLinear(8, 6, comm=comm, sequence_parallel=True)
    x, residual, weight = torch.ones(4, layer.weight.shape[1], device=comm.device), torch.ones(2, 6, device=comm.device), torch.ones(6, device=comm.device)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            normed, total = fcc.nn.row_parallel_norm(layer, x, residual, weight, 1e-5)
            reference.close(total, (residual + layer(x)).cpu())
            reference.close(normed, (total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-5)).cpu())


def test_norm(run):
    run(2, norm_rank)


def state_rank(comm):
    """The state of a layer is the same with and without."""
    warnings.simplefilter("ignore")
    for kind in (fcc.nn.ColumnParallelLinear, fcc.nn.RowParallelLinear):
        torch.manual_seed(1)
        one = kind(8, 6, comm=comm)
        torch.manual_seed(1)
        other = kind(8, 6, comm=comm, sequence_parallel=True)
        saved = io.BytesIO()
        torch.save(other.state_dict(), saved)
        saved.seek(0)
        for name, value in torch.load(saved).items():
            assert torch.equal(value, one.state_dict()[name]), name
        other.load_state_dict({name: value * 2 for name, value in one.state_dict().items()})
        assert torch.equal(other.weight, one.weight * 2)
        assert other.weight.t().is_contiguous() and fcc.is_daemon_memory(other.weight, comm)


def test_state(run):
    run(2, state_rank)


def norm_rank(comm):
    """row_parallel_norm() of such a layer is of this rank's positions."""
    warnings.simplefilter("ignore")
    torch.manual_seed(2)
    down, weight = nn.Linear(8, 6), torch.rand(6)
    row = fcc.nn.RowParallelLinear.from_linear(down, comm=comm, sequence_parallel=True)
    x, residual = reference.random(1, 4, 8), reference.random(2, 4, 6)
    mine = slice(2 * comm.rank, 2 * comm.rank + 2)
    with torch.no_grad():
        normed, total = fcc.nn.row_parallel_norm(row, x[:, row.columns].contiguous().to(comm.device), residual[mine].to(comm.device), weight.to(comm.device), 1e-5)
        want = residual + down(x)
    reference.close(total, want[mine])
    reference.close(normed, nn.functional.rms_norm(want, (6,), weight, 1e-5)[mine])


def test_norm(run):
    run(2, norm_rank)


def copies_rank(comm):
    """Forward copies no weight, and backward has no copy that a program could do anything about."""
    warnings.simplefilter("error", fcc.CopyWarning)
    for kind, width in ((fcc.nn.RowParallelLinear, 8 // comm.size), (fcc.nn.ColumnParallelLinear, 8)):
        layer = kind(8, 6, comm=comm, sequence_parallel=True)
        x = fcc.zeros(4, width, comm=comm).requires_grad_()
        layer(x).pow(2).sum().backward()
        assert x.grad is not None and layer.weight.grad is not None
        for moved in (lambda: layer.to(torch.bfloat16), lambda: layer.load_state_dict({name: t.clone(memory_format=torch.contiguous_format) for name, t in
                                                                                       layer.state_dict().items()}, assign=True)):
            moved()
            before = layer.weight.clone()
            fcc.to_daemon(layer, comm)
            assert torch.equal(layer.weight, before) and layer.weight.t().is_contiguous()
            layer(fcc.zeros(4, width, dtype=torch.bfloat16, comm=comm))


def test_no_copies(run):
    run(2, copies_rank)


def modes_rank(comm):
    """The column-parallel layer under autocast, without gradients, with a frozen weight, compiled, with columns on one rank only, and with no positions."""
    warnings.simplefilter("ignore")
    size, rank, kind = comm.size, comm.rank, comm.device.type
    torch.manual_seed(2)
    whole = nn.Linear(6, 5)
    layer = fcc.nn.ColumnParallelLinear.from_linear(whole, comm=comm, sequence_parallel=True)
    every, mine = reference.random(1, 2 * size, 3, 6), slice(2 * rank, 2 * rank + 2)
    x, grad = every[mine].to(comm.device), reference.random(2, 2 * size, 3, 5)

    def check(function, dtype=torch.float32):
        given, wanted = x.clone().requires_grad_(), every.clone().requires_grad_()
        whole.zero_grad()
        layer.zero_grad()
        got, want = function(given), whole(wanted)
        assert got.dtype == dtype
        got.backward(grad[..., layer.columns].to(got))
        want.backward(grad)
        reference.close(got, want[..., layer.columns], dtype)
        reference.close(given.grad, wanted.grad[mine], dtype)
        assert (layer.weight.grad is None) == (not layer.weight.requires_grad)
        if layer.weight.grad is not None:
            reference.close(layer.weight.grad, whole.weight.grad[layer.columns], dtype)
            reference.close(layer.bias.grad, whole.bias.grad[layer.columns], dtype)

    def lowered(x):
        with torch.autocast(kind, torch.bfloat16):
            return layer(x)
    check(layer)
    check(lowered, torch.bfloat16)
    check(torch.compile(layer, fullgraph=True, backend="aot_eager"))
    with torch.no_grad():
        reference.close(layer(x), whole(every)[..., layer.columns])
    layer.requires_grad_(False)
    check(layer)
    narrow = fcc.nn.ColumnParallelLinear(6, 1, comm=comm, sequence_parallel=True)
    assert narrow(x).shape == (2 * size, 3, rank < 1)
    narrow(x).sum().backward()
    assert narrow(x[:0]).shape == (0, 3, rank < 1) and narrow(x[:, :0]).shape == (2 * size, 0, rank < 1)


@pytest.mark.parametrize("size", [1, 3])
def test_column_modes(run, size):
    run(size, modes_rank)


def refused_rank(comm):
    """Wrong arguments of the last rank are errors on all ranks, and the next call is right."""
    warnings.simplefilter("ignore")
    last, device = comm.rank == comm.size - 1, comm.device
    row = fcc.nn.RowParallelLinear(8, 6, comm=comm, sequence_parallel=True)
    column = fcc.nn.ColumnParallelLinear(8, 6, comm=comm, sequence_parallel=True)
    k = row.weight.shape[1]
    x = torch.ones(4, k, device=device)
    for wrong, text in ((lambda: row(x[0]), "RowParallelLinear: x: [4]: allowed with sequence_parallel are [positions, *, K_r]"),
                        (lambda: row(x[:, 1:]), f"RowParallelLinear: x: [4, {k - 1}]: allowed are [*, {k}], this rank's columns"),
                        (lambda: row(x, rows=[4] * comm.size), "RowParallelLinear: rows: [4, 4]: allowed are 2 numbers, 0 and more, one for each rank, 4 in all"),
                        (lambda: row(x, rows=[3, 1]), "rows: rank 1 has 3 for rank 0, rank 0 has 2"),
                        (lambda: row(x, torch.ones(3, 6, device=device)), "RowParallelLinear: residual: [3, 6]: allowed are [2, 6]"),
                        (lambda: row(torch.ones(5, k, device=device)), "x: shape[0]: rank 1 has 5, rank 0 has 4"),
                        (lambda: row([1.0]), "x: list")):
        with pytest.raises(fcc.ArgumentError) as caught:
            wrong() if last else row(x)
            comm.synchronize()
        assert text in str(caught.value) or text[0] == "R" and text.split(": ", 1)[1] in str(caught.value), (text, str(caught.value))
        assert row(x).shape == (2, 6)
    x = torch.ones(2, 3, 8, device=device)
    for wrong, text in ((lambda: column(x[0, 0]), "ColumnParallelLinear: x: [8]: allowed with sequence_parallel are [positions, *, 8]"),
                        (lambda: column(x[..., 1:]), "ColumnParallelLinear: x: [2, 3, 7]: allowed are [*, 8]"),
                        (lambda: column(x.double()), "ColumnParallelLinear: x: torch.float64: allowed is the weight's, torch.float32 (or torch.autocast)"),
                        (lambda: column(x, [2, 3]), "ColumnParallelLinear: rows: [2, 3]: allowed are 2 numbers, 0 and more, one for each rank, 2 for this one"),
                        (lambda: column(x, [2]), "ColumnParallelLinear: rows: [2]: allowed are 2 numbers"),
                        (lambda: column(x, 2), "ColumnParallelLinear: rows: int 2: allowed is a list of whole numbers"),
                        (lambda: column([1.0]), "ColumnParallelLinear: x: list"),
                        (lambda: column(x[:1]), "ColumnParallelLinear: rows: the"),
                        (lambda: column.requires_grad_(False)(x), "gathered (which is for weight.T that requires a gradient): rank 1 has none, rank 0 has one")):
        with pytest.raises(fcc.ArgumentError) as caught:
            wrong() if last else column(x)
            comm.synchronize()
        assert text in str(caught.value), (text, str(caught.value))
        column.requires_grad_(True)
        assert column(x).shape == (4, 3, 3)
    with pytest.raises(fcc.ArgumentError, match="allowed only with sequence_parallel"):
        fcc.nn.ColumnParallelLinear(8, 6, comm=comm)(torch.ones(2, 8, device=device), [1, 1])
    with pytest.raises(fcc.ArgumentError, match="allowed only with sequence_parallel"):
        fcc.nn.RowParallelLinear(8, 6, comm=comm)(x, rows=[2, 2])


def test_refused(run):
    run(2, refused_rank)
