# SPDX-License-Identifier: MIT
"""Tensors outside of the daemon's memory that change in ways that torch does not count: every call sees them as they are."""
import multiprocessing
import warnings

import fcc
import numpy
import pytest
import reference
import torch
from torch.utils import dlpack

INTS = (torch.int32, torch.int64)


def by_data(tensor):
    alias = tensor.data
    return lambda: alias.neg_() if tensor.is_floating_point() else alias.add_(1)


def by_numpy(tensor):
    alias = tensor.detach().numpy()

    def change():
        alias[...] = -alias if tensor.is_floating_point() else alias + 1
    return change


def by_dlpack(tensor):
    alias = dlpack.from_dlpack(tensor.detach().__dlpack__())
    return lambda: alias.neg_() if tensor.is_floating_point() else alias.add_(1)


def by_storage(tensor):
    alias = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return lambda: alias.neg_() if tensor.is_floating_point() else alias.add_(1)


WAYS = {"data": by_data, "numpy": by_numpy, "dlpack": by_dlpack, "storage": by_storage}


def changed_rank(comm, way):
    """Each argument of each operator, one after the other; x, a, indices, ... too, of which nobody expects it."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    size = comm.size

    def whole(*shape, step=1.0):
        """Small integers, different on each rank: sums are exact."""
        return ((torch.arange(torch.Size(shape).numel()).view(shape) * (comm.rank + 3)) % 7 - 3.0) * step

    def rounds(arguments, call, want):
        for tensor in arguments:
            change = WAYS[way](tensor)
            for _ in range(2):
                torch.testing.assert_close(call(), want(), rtol=0, atol=0)
                change()
            torch.testing.assert_close(call(), want(), rtol=0, atol=0)

    def summed(mine):
        return fcc.all_reduce(fcc.to_daemon(mine, comm), comm)

    x, w = whole(2, 8), torch.nn.Parameter(whole(5, 8, step=2.0))
    with torch.no_grad():
        rounds((x, w), lambda: fcc.gemv_all_reduce(x, w, comm), lambda: summed(x @ w.t()))
        rounds((x,), lambda: fcc.all_reduce(x, comm), lambda: summed(x.clone()))
    rounds((x, w), lambda: fcc.gemv_all_reduce(x, w, comm).detach(), lambda: summed((x @ w.t()).detach()))
    a, b = whole(2 * size, 8), whole(8, 6, step=2.0)
    moved = [2] * size
    rounds((a, b), lambda: fcc.gemm_all_to_all(a, b, comm),
           lambda: fcc.rows_all_to_all(fcc.to_daemon(a @ b, comm), moved, moved, comm))
    rounds((a,), lambda: fcc.rows_all_to_all(a, moved, moved, comm),
           lambda: fcc.rows_all_to_all(fcc.to_daemon(a.clone(), comm), moved, moved, comm))
    batch = 2 * size
    for dtype in INTS:
        tables, weights = whole(20, 4), whole(8) + 4
        indices = torch.tensor([0, 3, 5, 1, 1, 2, 7, 4], dtype=dtype)
        offsets = torch.tensor([0, 1, 2, *[3] * (batch - 2)], dtype=dtype)  # the last bag ends where indices do not

        def call():
            return fcc.embedding_all_to_all(tables, indices, offsets, table_rows=[20], tables_per_rank=[1] * size, batch=batch,
                                            sample_weights=weights, comm=comm)[:, comm.rank]

        def want():
            pooled = reference.bags(tables, indices, offsets, weights, [20], batch, "sum")[0]
            return pooled[2 * comm.rank:2 * comm.rank + 2]
        rounds((tables, indices, offsets, weights), call, want)


def ways_rank(comm):
    for way in WAYS:
        changed_rank(comm, way)


def test_changed(run, device):
    if device != "cpu":
        pytest.skip("these aliases are of the cpu's memory")
    run(2, ways_rank)


def optimized(comm, name, keywords):
    """A weight in ordinary memory is trained as in the daemon's, and as by torch alone."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    drawn, x = reference.random(1, 4, 6).to(comm.device), reference.random(2, 2, 6).to(comm.device)
    trained = []
    for place in ("torch", "elsewhere", "daemon"):
        w = torch.nn.Parameter(fcc.to_daemon(drawn.clone(), comm) if place == "daemon" else drawn.clone())
        optimizer = getattr(torch.optim, name)([w], lr=0.05, **keywords)
        for _ in range(5):
            mine = x @ w.t()  # all ranks have the same; only this rank's share is this weight's
            y = mine + (comm.size - 1) * mine.detach() if place == "torch" else fcc.gemv_all_reduce(x, w, comm)
            optimizer.zero_grad()
            (y.pow(2).sum() / comm.size).backward()
            optimizer.step()
        with torch.no_grad():
            if place != "torch":
                reference.close(fcc.gemv_all_reduce(x, w, comm), comm.size * (x @ w.t()).cpu())
        trained.append(w.detach())
    assert not torch.allclose(trained[0], drawn)
    for one in trained[1:]:
        torch.testing.assert_close(one, trained[0], rtol=1e-3, atol=1e-3)


def optimizers_rank(comm):
    optimized(comm, "SGD", {})
    for name in ("SGD", "Adam", "AdamW", *(("Adagrad",) if comm.device.type == "cpu" else ())):
        optimized(comm, name, {"fused": True})


def modules_rank(comm):
    """Modules whose parameters were taken out of the daemon's memory, and then changed behind torch's back."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    linear = fcc.nn.RowParallelLinear(8, 4, bias=True, comm=comm)
    experts = fcc.nn.ExpertParallelLinear(8, 4, comm.size, comm=comm)
    bags = fcc.nn.ShardedEmbeddingBagCollection([5] * comm.size, 4, mode="sum", comm=comm)
    for module in (linear, experts, bags):
        for parameter in module.parameters():
            parameter.data = parameter.detach().cpu().clone().to(comm.device)
            assert not fcc.is_daemon_memory(parameter, comm)
    x = torch.ones(2, linear.weight.shape[1], device=comm.device)
    rows = torch.ones(2 * comm.size, 8, device=comm.device)
    indices = torch.zeros(1, comm.size, 1, dtype=torch.int64, device=comm.device)
    many = torch.ones(70, linear.weight.shape[1], device=comm.device)  # beyond the rows of decoding
    for value in (1.0, 2.0, -3.0):
        for module in (linear, experts, bags):
            for parameter in module.parameters():
                parameter.data.fill_(value)
        with torch.no_grad():
            assert torch.equal(linear(x).cpu(), torch.full((2, 4), value * 8 + value))
            assert torch.equal(linear(many).cpu(), torch.full((70, 4), value * 8 + value))
            assert torch.equal(experts(rows).cpu(), torch.full((2 * comm.size, 4), value * 8))
            assert torch.equal(bags(indices).cpu(), torch.full((1, comm.size, 4), value))


def compiled_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    weight = torch.nn.Parameter(torch.ones(4, 8, device=comm.device))
    x = torch.ones(2, 8, device=comm.device)
    compiled = torch.compile(lambda x: fcc.gemv_all_reduce(x + 1, weight, comm) + 1, fullgraph=True, backend="aot_eager")
    for value in (1.0, 2.0, -3.0):
        weight.data.fill_(value)
        with torch.no_grad():
            assert torch.equal(compiled(x).cpu(), torch.full((2, 4), 16 * value * comm.size + 1))
        assert torch.equal(compiled(x).detach().cpu(), torch.full((2, 4), 16 * value * comm.size + 1))


@pytest.mark.parametrize("function", [optimizers_rank, modules_rank, compiled_rank])
def test_modules(run, function):
    run(2, function)


def other_process(shared, asked, done):
    while (value := asked.get()) is not None:
        shared.fill_(value)
        done.put(value)


def shared_rank(comm):
    """A weight in memory that another process writes into, also one that was in the daemon's memory before it was shared."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    multiprocessing.current_process()._config["daemon"] = False  # or it may have no children
    context = torch.multiprocessing.get_context("fork")
    x = fcc.to_daemon(torch.ones(1, 8), comm)
    for w in (torch.ones(4, 8), fcc.to_daemon(torch.ones(4, 8), comm), fcc.to_daemon(torch.ones(1 << 16, 8), comm)):
        before = fcc.gemv_all_reduce(x, w, comm)
        assert torch.equal(before, torch.full((1, w.shape[0]), 8.0 * comm.size))
        w.share_memory_()
        asked, done = context.Queue(), context.Queue()
        process = context.Process(target=other_process, args=(w, asked, done))
        process.start()
        for value in (2.0, -5.0):
            asked.put(value)
            done.get(timeout=60)
            assert torch.equal(fcc.gemv_all_reduce(x, w, comm), torch.full((1, w.shape[0]), 8.0 * comm.size * value))
        asked.put(None)
        process.join(60)
        assert process.exitcode == 0
        assert torch.equal(before, torch.full((1, w.shape[0]), 8.0 * comm.size))


def mapped_rank(comm, path):
    """A weight that is a file's pages, which is written to."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    path = f"{path}-{comm.rank}"
    file = numpy.memmap(path, numpy.float32, "w+", shape=(4, 8))
    file[:] = 1
    w, x = torch.from_file(path, shared=True, size=32).view(4, 8), torch.ones(1, 8)
    for value in (1.0, 2.0, 3.0):
        file[:] = value
        assert torch.equal(fcc.gemv_all_reduce(x, w, comm), torch.full((1, 4), 8.0 * comm.size * value))


def test_other_processes(run, device):
    if device != "cpu":
        pytest.skip("the cpu's memory")
    run(2, shared_rank)


def test_mapped_file(run, device, tmp_path):
    if device != "cpu":
        pytest.skip("the cpu's memory")
    run(2, mapped_rank, tmp_path / "weight")
