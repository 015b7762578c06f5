# SPDX-License-Identifier: MIT
"""Under torch.autocast fcc.nn's modules and the operators have the dtypes of torch.nn.Linear, torch.mm() and
torch.nn.EmbeddingBag, and their results and gradients."""
import warnings

import fcc
import pytest
import reference
import torch
from torch import nn

LOWER = (torch.bfloat16, torch.float16)
ROWS = (0, 1, 2, 63, 64, 65, 66, 128, 200)  # on both sides of where RowParallelLinear goes another way


def compare(got, want, dtype):
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    reference.close(got, want.cpu(), dtype)


def step(layer, x, dtype, enabled=True, inside=False):
    """(result, gradient of x) of a layer under autocast; backward() outside of it, as torch advises, or inside."""
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, dtype=dtype, enabled=enabled):
        y = layer(x)
        if inside:
            y.float().pow(2).sum().backward()
    if not inside:
        y.float().pow(2).sum().backward()
    return y, x.grad


def linear_rank(comm, dtype):
    """A pair of layers that are spread, against whole ones; x in float32 and lower, for every way that they go."""
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    whole = nn.Sequential(nn.Linear(6, 10), nn.Linear(10, 4)).to(comm.device)
    spread = nn.Sequential(fcc.nn.ColumnParallelLinear.from_linear(whole[0], comm=comm),
                           fcc.nn.RowParallelLinear.from_linear(whole[1], comm=comm))
    mine = spread[0].columns
    for rows in ROWS:
        for given, enabled, inside in ((torch.float32, True, False), (dtype, True, False), (torch.float32, False, False),
                                       (torch.float32, True, True)):
            x = reference.random(rows, rows, 6, dtype=given).to(comm.device)
            whole.zero_grad(), spread.zero_grad()
            want, got = (step(model, x, dtype, enabled, inside) for model in (whole, spread))
            lowest = dtype if enabled else torch.float32
            assert got[0].dtype == lowest
            compare(got[0], want[0], lowest)
            compare(got[1], want[1], lowest)
            for a, b in ((spread[0].weight.grad, whole[0].weight.grad[mine]), (spread[0].bias.grad, whole[0].bias.grad[mine]),
                         (spread[1].weight.grad, whole[1].weight.grad[:, mine]), (spread[1].bias.grad, whole[1].bias.grad)):
                assert a.dtype == torch.float32
                scale = max(1.0, b.abs().max().item()) if b.numel() else 1.0
                compare(a / scale, b / scale, lowest)
        if rows:
            # float64 autocast leaves alone, and float32 weights do not take it
            with pytest.raises((RuntimeError, fcc.ArgumentError)):
                with torch.autocast(comm.device.type, dtype=dtype):
                    whole(x.double())
            with pytest.raises(fcc.ArgumentError):
                with torch.autocast(comm.device.type, dtype=dtype):
                    spread[1](torch.ones(rows, mine.stop - mine.start, dtype=torch.float64, device=comm.device))
    comm.barrier()


def nested_rank(comm, dtype):
    """Autocast that is off within autocast, and on again; on for another kind of device; the short way of calls that are
    repeated."""
    warnings.simplefilter("error", fcc.CopyWarning)
    kind = comm.device.type
    x, w = fcc.zeros(2, 8, comm=comm) + 1, fcc.zeros(3, 8, comm=comm)
    x = fcc.to_daemon(x, comm)
    w.copy_(reference.random(1, 3, 8))
    want = x @ w.t() * comm.size
    other = "cuda" if kind == "cpu" else "cpu"

    def call():
        return fcc.gemv_all_reduce(x, w, comm)
    for _ in range(3):
        compare(call(), want, torch.float32)
    for _ in range(3):
        with torch.autocast(kind, dtype=dtype):
            for _ in range(3):
                compare(call(), want.to(dtype), dtype)
            with torch.autocast(kind, enabled=False):
                compare(call(), want, torch.float32)
                with torch.autocast(kind, dtype=torch.bfloat16):
                    compare(call(), want.bfloat16(), torch.bfloat16)
                compare(call(), want, torch.float32)
            compare(call(), want.to(dtype), dtype)
        compare(call(), want, torch.float32)
    if other == "cpu" or torch.cuda.is_available():
        with torch.autocast(other, dtype=torch.bfloat16):
            compare(call(), want, torch.float32)
    with torch.autocast(kind, dtype=dtype):  # weights that change are cast anew
        w.add_(1)
        compare(call(), (x @ w.t() * comm.size).to(dtype), dtype)
        w.data.mul_(2)
        compare(call(), (x @ w.t() * comm.size).to(dtype), dtype)
    with torch.autocast(kind, dtype=dtype), torch.inference_mode():
        compare(call(), (x @ w.t() * comm.size).to(dtype), dtype)


def operators_rank(comm, dtype):
    """torch.ops.fcc.* and their other modules."""
    warnings.simplefilter("ignore")
    size, kind = comm.size, comm.device.type
    a = reference.random(1, 2 * size, 8).to(comm.device).requires_grad_()
    b = reference.random(2, 8, 16).to(comm.device).requires_grad_()
    with torch.autocast(kind, dtype=dtype):
        c, want = fcc.gemm_all_to_all(a, b, comm), a @ b
        assert fcc.all_reduce(a, comm).dtype == torch.float32
        assert fcc.rows_all_to_all(a, [2] * size, [2] * size, comm).dtype == torch.float32
        assert fcc.sum_gradients(a, comm).dtype == torch.float32
        mapped = torch.vmap(lambda x: torch.ops.fcc.gemv_all_reduce(x, b.t(), comm.name))(a.reshape(size, 2, 8))
    compare(c[:2], want[2 * comm.rank:2 * comm.rank + 2], dtype)
    compare(mapped, (size * (a @ b)).reshape(size, 2, 16).to(dtype), dtype)
    c.float().sum().backward()
    gradients, a.grad, b.grad = (a.grad, b.grad), None, None
    want.float().sum().backward()
    compare(gradients[0], a.grad, dtype)
    compare(gradients[1] / size, b.grad / size, dtype)

    experts = fcc.nn.ExpertParallelLinear(8, 16, 2 * size, True, comm=comm)
    x = reference.random(3, 4 * size, 8).to(comm.device)
    plain = experts(x)
    y, _ = step(experts, x, dtype)
    compare(y, plain.to(dtype), dtype)
    assert experts.weight.grad.dtype == experts.bias.grad.dtype == torch.float32

    tables = fcc.nn.ShardedEmbeddingBagCollection([5] * size, 8, mode="sum", comm=comm)
    bag = nn.EmbeddingBag(5, 8, mode="sum", device=comm.device)
    ids = torch.zeros(1, 2 * size, 3, dtype=torch.long, device=comm.device)
    with torch.autocast(kind, dtype=dtype):
        assert tables(ids).dtype == bag(ids[0]).dtype == torch.float32


def registered_rank(comm, dtype):
    """torch.ops.fcc.* by themselves: products in autocast's dtype with gradients in their inputs', bags in their tables'."""
    warnings.simplefilter("ignore")
    size, kind, rank, device = comm.size, comm.device.type, comm.rank, comm.device
    for given in (torch.float32, dtype):
        for counts in (None, [1 + d for d in range(size)]):
            rows = 2 * size if counts is None else sum(counts)
            a, b = reference.random(1, rows, 8, dtype=given).to(device), reference.random(2, 8, 16, dtype=given).to(device)
            came = {} if counts is None else {"send_rows": counts, "recv_rows": [1 + rank] * size}
            first = 2 * rank if counts is None else sum(counts[:rank])
            mine = slice(first, first + (2 if counts is None else counts[rank]))
            found = []
            for ours in (True, False):
                x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
                with torch.autocast(kind, dtype=dtype):
                    y = torch.ops.fcc.gemm_all_to_all(x, w, comm.name, **came) if ours else (x @ w)[mine].repeat(size, 1)
                    z = y if ours else x @ w
                z.float().pow(2).sum().backward()
                found.append((y, x.grad, w.grad))
            compare(found[0][0], found[1][0], dtype)
            assert found[0][0].dtype == dtype and found[0][1].dtype == given
            compare(found[0][1], found[1][1], dtype)
            if counts is None:  # then all ranks have the same rows, and so do their squares' sums
                scale = found[1][2].abs().max()
                compare(found[0][2] / scale, found[1][2] / scale, dtype)
    for given in (torch.float32, dtype):
        for pooling in ("sum", "mean"):
            for weighted in (True, False) if pooling == "sum" else (False,):
                bags_compare(comm, dtype, given, pooling, weighted)


def bags_compare(comm, dtype, given, pooling, weighted):
    """Tables of every rank alike, and their bags against torch's under the same autocast."""
    size, device = comm.size, comm.device
    table = reference.random(4, 5, 8, dtype=given).to(device)
    ids, ends = (torch.arange(6 * size) * 2 % 5).to(device), torch.arange(0, 6 * size + 1, 3, device=device)
    weights = reference.random(5, 6 * size).to(device) if weighted else None
    # torch has no gradient of bf16 weights on GPUs: there it computes in f32
    of_torch = torch.float32 if weighted and given is torch.bfloat16 and device.type == "cuda" else given
    found = []
    for ours in (True, False):
        rows, factors = table.clone().requires_grad_(), None if weights is None else weights.clone().requires_grad_()
        with torch.autocast(comm.device.type, dtype=dtype):
            if ours:
                y = torch.ops.fcc.embedding_all_to_all(rows, ids, ends, factors, [5], [1] * size, 2 * size, comm.name, pooling=pooling)
            else:
                y = nn.functional.embedding_bag(ids, rows.to(of_torch), ends[:-1], mode=pooling,
                                                per_sample_weights=None if factors is None else factors.to(of_torch)).to(given)
        y.float().pow(2).sum().backward()
        found.append((y, rows.grad, None if factors is None else factors.grad))
    got, want = found
    mine = want[0][2 * comm.rank:2 * comm.rank + 2].unsqueeze(1).expand(2, size, 8)
    assert got[0].dtype == given and got[1].dtype == given
    compare(got[0], mine, given)
    # every rank's loss is of its own samples, and all tables' bags are in them
    compare(got[1] / want[1].abs().max(), want[1] / want[1].abs().max(), given if given == torch.float32 else torch.bfloat16)
    if weights is not None:
        assert got[2].dtype == torch.float32
        reference.close(got[2], want[2].cpu(), given if given == torch.float32 else torch.bfloat16)


def compile_rank(comm, dtype):
    warnings.simplefilter("ignore")
    layer = fcc.nn.RowParallelLinear(8 * comm.size, 4, comm=comm)

    def function(x):
        with torch.autocast(x.device.type, dtype=dtype):
            return layer(x)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for rows in (3, 70):
        x = reference.random(4, rows, 8).to(comm.device)
        found = []
        for one in (function, compiled):
            layer.zero_grad()
            given = x.clone().requires_grad_()
            y = one(given)
            y.float().sum().backward()
            found.append((y, given.grad, layer.weight.grad, layer.bias.grad))
        for eager, traced in zip(*found):
            compare(traced, eager, dtype)


def refused_rank(comm):
    """A dtype that only one rank's input has is an error on all ranks, for every number of rows."""
    warnings.simplefilter("ignore")
    layer = fcc.nn.RowParallelLinear(4 * comm.size, 3, comm=comm)
    for rows in (1, 64, 65):
        for dtype in (torch.float16, torch.float64, torch.int64):
            x = torch.ones(rows, 4, device=comm.device, dtype=dtype if comm.rank == 1 else torch.float32)
            with pytest.raises(fcc.ArgumentError, match="RowParallelLinear: x: torch" if comm.rank == 1 else "") as e:
                layer(x)
                comm.synchronize()
            assert e.value.rank == 1
            assert layer(x.float()).shape == (rows, 3)


@pytest.mark.parametrize("dtype", LOWER)
@pytest.mark.parametrize("function", [linear_rank, nested_rank, operators_rank, registered_rank, compile_rank])
def test_autocast(run, function, dtype):
    run(2, function, dtype)


def test_refused(run):
    run(2, refused_rank)
