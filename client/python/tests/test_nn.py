# SPDX-License-Identifier: MIT
"""fcc.nn against torch's own modules, forward and backward: over 2 and 4 ranks, of which some have more columns or tables."""
import copy
import itertools
import warnings

import fcc
import pytest
import reference
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Called(TorchDispatchMode):
    """Which operators of ours were called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fcc":
            self.names.append(func._opname)
        return func(*args, **kwargs or {})


def placed(comm, tensor):
    return fcc.to_daemon(tensor.to(comm.device), comm)


def row_parallel_rank(comm):
    warnings.simplefilter("error", fcc.CopyWarning)
    for shape, bias, dtype in (((3,), True, torch.float32), ((64,), False, torch.bfloat16), ((65,), True, torch.bfloat16),
                               ((5, 20), True, torch.float32), ((), True, torch.float32), ((0,), True, torch.float32)):
        torch.manual_seed(3)
        whole = nn.Linear(30, 11, bias, dtype=dtype)
        layer = fcc.nn.RowParallelLinear.from_linear(whole, comm=comm)
        assert all(fcc.is_daemon_memory(parameter, comm) for parameter in layer.parameters())
        x, factor = reference.random(1, *shape, 30, dtype=dtype), reference.random(2, *shape, 11, dtype=dtype)
        mine = placed(comm, x[..., layer.columns].contiguous()).requires_grad_()
        x.requires_grad_()
        with Called() as called:
            got = layer(mine)
        rows = x.numel() // 30
        assert called.names == ["gemv_all_reduce" if 1 <= rows <= 64 else "all_reduce"]
        want = whole(x)
        (got * factor.to(comm.device)).sum().backward()
        (want * factor).sum().backward()
        reference.close(got, want, dtype)
        reference.close(mine.grad, x.grad[..., layer.columns], dtype)
        reference.close(layer.weight.grad, whole.weight.grad[:, layer.columns], dtype)
        if bias:
            reference.close(layer.bias.grad, whole.bias.grad, dtype)


def parameters_rank(comm):
    """How they are drawn, kept and loaded."""
    torch.manual_seed(7)
    layer = fcc.nn.RowParallelLinear(10, 6, comm=comm, dtype=torch.float32)
    torch.manual_seed(7)
    whole = nn.Linear(10, 6, device=comm.device)
    assert torch.equal(layer.weight, whole.weight[:, layer.columns]) and not layer.bias.any()
    other = fcc.nn.RowParallelLinear(10, 6, comm=comm)
    assert not torch.equal(other.weight, layer.weight)
    other.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert torch.equal(other.weight, layer.weight) and fcc.is_daemon_memory(other.weight, comm)
    with pytest.raises(RuntimeError, match="size mismatch"):
        other.load_state_dict(nn.Linear(9, 6).state_dict())

    torch.manual_seed(8)
    tables = fcc.nn.ShardedEmbeddingBagCollection([4, 3, 5, 2, 6], 8, comm=comm)
    torch.manual_seed(8)
    turned = fcc.nn.ShardedEmbeddingBagCollection([4, 3, 5, 2, 6], 8, tables_per_rank=[5] + [0] * (comm.size - 1), comm=comm)
    bags = nn.ModuleList(nn.EmbeddingBag(n, 8) for n in (4, 3, 5, 2, 6))
    if comm.rank == 0:
        for number in range(tables.tables.stop):  # the same, however they are spread, and not like each other
            assert torch.equal(turned.table(number), tables.table(number))
        assert len({turned.table(number)[0, 0].item() for number in range(5)}) == 5
    tables.load_state_dict(bags.state_dict())
    kept = tables.state_dict()
    assert list(kept) == [f"{number}.weight" for number in range(tables.tables.start, tables.tables.stop)]
    for key, table in kept.items():
        assert torch.equal(table.cpu(), bags.state_dict()[key]) and fcc.is_daemon_memory(table, comm)
    tables.load_state_dict({key: table + 1 for key, table in kept.items()})
    nn.ModuleDict({"bags": tables}).load_state_dict({f"bags.{key}": table for key, table in bags.state_dict().items()})
    assert all(torch.equal(table.cpu(), bags.state_dict()[key]) for key, table in tables.state_dict().items())
    with pytest.raises(RuntimeError, match="Unexpected key.*7.weight"):
        tables.load_state_dict({**kept, "7.weight": torch.zeros(1, 8)})
    with pytest.raises(RuntimeError, match="Missing key"):
        tables.load_state_dict({})

    torch.manual_seed(9)
    experts = fcc.nn.ExpertParallelLinear(4, 8, 2 * comm.size, True, comm=comm)
    every = {"weight": torch.randn(2 * comm.size, 4, 8), "bias": torch.randn(2 * comm.size, 8)}
    experts.load_state_dict(every)
    for key, value in experts.state_dict().items():
        assert torch.equal(value.cpu(), every[key][experts.experts]) and fcc.is_daemon_memory(value, comm)


def experts_rank(comm, path):
    reference.join(comm, path)
    warnings.simplefilter("ignore", fcc.CopyWarning)
    size, rank = comm.size, comm.rank
    for own, bias, dtype in ((1, False, torch.float32), (2, True, torch.float32), (2, True, torch.float16)):
        counts = [[[(3 * e + s + 2 * d) % 4 for d in range(size)] for s in range(size)] for e in range(own)]
        send = [counts[e][rank] for e in range(own)]
        recv = [[counts[e][s][rank] for s in range(size)] for e in range(own)]
        layer = fcc.nn.ExpertParallelLinear(6, 16, own * size, bias, comm=comm, dtype=dtype)
        x = reference.random(rank, sum(map(sum, send)), 6, dtype=dtype)
        factor = reference.random(50 + rank, sum(map(sum, recv)), 16, dtype=dtype)
        mine = placed(comm, x).requires_grad_()
        got = layer(mine, send if own > 1 else send[0], recv if own > 1 else recv[0])
        (got * factor.to(comm.device)).sum().backward()
        weight = layer.weight.detach().cpu().float()
        added = layer.bias.detach().cpu().float() if bias else torch.zeros(own, 16)
        pieces, back = [], []
        rows_of, gradients_of = x.float().split([sum(part) for part in send]), factor.split([sum(part) for part in recv])
        for e, rows, gradient in zip(range(own), rows_of, gradients_of):
            pieces.append(reference.exchange(rows @ weight[e] + added[e], send[e], recv[e]))
            back.append(reference.exchange(gradient, recv[e], send[e]))
            reference.close(layer.weight.grad[e], rows.t() @ back[e], dtype)
            if bias:
                reference.close(layer.bias.grad[e], back[e].sum(0), dtype)
        reference.close(got, torch.cat(pieces), dtype)
        reference.close(mine.grad, torch.cat([gradient @ weight[e].t() for e, gradient in enumerate(back)]), dtype)
    layer = fcc.nn.ExpertParallelLinear(6, 8, comm=comm)
    assert layer(torch.ones(3 * size, 6, device=comm.device)).shape == (3 * size, 8)


def bags_of(lengths, rows, weighted, last, ids_dtype, generator):
    """(ids, offsets, weights) of some tables' bags, of these lengths [tables][batch]."""
    ids = torch.cat([torch.randint(0, n, (int(of.sum()),), generator=generator) for n, of in zip(rows, lengths)]).to(ids_dtype)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.flatten().cumsum(0)]).to(ids_dtype)
    return ids, offsets if last else offsets[:-1], torch.rand(len(ids), generator=generator) if weighted else None


def embedding_rank(comm):
    warnings.simplefilter("error", fcc.CopyWarning)
    size, rank, rows = comm.size, comm.rank, [7, 5, 9, 4, 6]
    for mode, weighted, last, ids_dtype, batch, split, spread in (
            ("mean", False, True, torch.int64, 7, None, None), ("sum", True, False, torch.int32, 8, None, None),
            ("sum", False, False, torch.int64, 6, [6] + [0] * (size - 1), [0] * (size - 1) + [5])):
        torch.manual_seed(1)
        bags = nn.ModuleList(nn.EmbeddingBag(n, 8, mode=mode, include_last_offset=last) for n in rows)
        module = fcc.nn.ShardedEmbeddingBagCollection(rows, 8, mode=mode, include_last_offset=last, tables_per_rank=spread,
                                                      comm=comm)
        module.load_state_dict(bags.state_dict())
        lengths = torch.randint(0, 4, (5, batch), generator=torch.Generator().manual_seed(2))
        every = [bags_of(lengths[t:t + 1], rows[t:t + 1], weighted, last, ids_dtype, torch.Generator().manual_seed(t))
                 for t in range(5)]
        factor = reference.random(3, batch, 5, 8)
        parts = split or [batch // size + (r < batch % size) for r in range(size)]
        mine = slice(sum(parts[:rank]), sum(parts[:rank + 1]))
        want = torch.stack([bag(*given) for bag, given in zip(bags, every)], 1)
        (want * factor).sum().backward()

        own = every[module.tables]
        starts = [0, *itertools.accumulate(len(ids) for ids, _, _ in own)]
        offsets = [at[:batch] + first for (_, at, _), first in zip(own, starts)]
        nothing = torch.empty(0, dtype=ids_dtype)
        ids = torch.cat([nothing, *(ids for ids, _, _ in own)])
        offsets = torch.cat([nothing, *offsets, *([torch.tensor([starts[-1]], dtype=ids_dtype)] if last else [])])
        weights = placed(comm, torch.cat([torch.empty(0), *(w for _, _, w in own)])) if weighted else None
        got = module(placed(comm, ids), placed(comm, offsets), weights, batch=batch if spread else None, batch_split=split)
        (got * factor[mine].to(comm.device)).sum().backward()
        reference.close(got, want[mine])
        wanted = [bag.weight.grad for bag in bags][module.tables]
        reference.close(module.weight.grad, torch.cat([torch.empty(0, 8), *wanted]))

    torch.manual_seed(1)  # bags of one length
    module = fcc.nn.ShardedEmbeddingBagCollection(rows, 8, mode="sum", comm=comm)
    bags = nn.ModuleList(nn.EmbeddingBag(n, 8, mode="sum") for n in rows)
    module.load_state_dict(bags.state_dict())
    ids = torch.randint(0, 4, (5, 2 * size, 3), generator=torch.Generator().manual_seed(5))
    want = torch.stack([bag(ids[t]) for t, bag in enumerate(bags)], 1)[2 * rank:2 * rank + 2]
    for length in (3, 0):
        got = module(placed(comm, ids[module.tables, :, :length].contiguous()))
        reference.close(got, want if length else torch.zeros(2, 5, 8))


def refused_rank(comm):
    """Where one rank's argument is wrong, all ranks hear of it, and go on."""
    warnings.simplefilter("ignore", fcc.CopyWarning)
    linear = fcc.nn.RowParallelLinear(4 * comm.size, 3, comm=comm)
    experts = fcc.nn.ExpertParallelLinear(4, 8, comm=comm)
    tables = fcc.nn.ShardedEmbeddingBagCollection([5] * comm.size, 8, mode="sum", comm=comm)
    x = torch.ones(comm.size, 4, device=comm.device)
    ids = torch.zeros(1, comm.size, 1, dtype=torch.long, device=comm.device)
    far = torch.ones(70, 5, device=comm.device)
    for right, wrong, words in (
            (lambda: linear(x), lambda: linear(x[:, :3]), "RowParallelLinear: x"),
            (lambda: linear(far[:, :4]), lambda: linear(far), "RowParallelLinear: x"),
            (lambda: experts(x), lambda: experts(x[:, :3]), "ExpertParallelLinear: x"),
            (lambda: experts(x), lambda: experts(x, [0] * comm.size, [1] * comm.size), "send_rows: 0 in all"),
            (lambda: experts(x), lambda: experts(x, [1] * comm.size), "send_rows, recv_rows"),
            (lambda: tables(ids), lambda: tables(ids[0]), "input: "),
            (lambda: tables(ids), lambda: tables(ids.flatten(), ids.flatten(), batch=9), "offsets: .*batch 9"),
            (lambda: tables(ids), lambda: tables(ids, per_sample_weights=x), "per_sample_weights: "),
            (lambda: tables(ids), lambda: tables(ids + 5), "")):
        with pytest.raises((fcc.ArgumentError, fcc.IndexRangeError), match=words if comm.rank == 1 else "") as e:
            (wrong if comm.rank == 1 else right)()
            comm.synchronize()
        assert e.value.rank == 1, e.value
        comm.barrier()
        right()
    for make, words in (
            (lambda: fcc.nn.ShardedEmbeddingBagCollection([5], 8, mode="max", comm=comm), "mode: .*max.*sum and mean"),
            (lambda: fcc.nn.ShardedEmbeddingBagCollection([5], 8, padding_idx=0, comm=comm), "padding_idx: 0: .*empty bag"),
            (lambda: fcc.nn.ShardedEmbeddingBagCollection([5], 8, sparse=True, comm=comm), "sparse: True"),
            (lambda: fcc.nn.ShardedEmbeddingBagCollection([5], 8, tables_per_rank=[1], comm=comm), "tables_per_rank: "),
            (lambda: fcc.nn.ShardedEmbeddingBagCollection([0], 8, comm=comm), "num_embeddings"),
            (lambda: fcc.nn.ExpertParallelLinear(4, 4, comm.size + 1, comm=comm), "num_experts: 3: .*multiples of 2"),
            (lambda: fcc.nn.RowParallelLinear(-1, 4, comm=comm), "in_features: -1"),
            (lambda: tables.table(1 - comm.rank), "table .: allowed are this rank's")):
        with pytest.raises(fcc.ArgumentError, match=words):
            make()


class Model(nn.Module):
    def __init__(self, comm):
        super().__init__()
        self.tables = fcc.nn.ShardedEmbeddingBagCollection([5] * comm.size, 8, mode="sum", comm=comm)
        self.experts = fcc.nn.ExpertParallelLinear(8, 16, comm=comm)
        self.linear = fcc.nn.RowParallelLinear(16 * comm.size, 4, comm=comm)

    def forward(self, ids):
        rows = self.tables(ids).flatten(0, 1)
        return self.linear(torch.relu(self.experts(rows)))


def compile_rank(comm):
    warnings.simplefilter("ignore", fcc.CopyWarning)
    torch.manual_seed(1)
    model = Model(comm)
    ids = torch.randint(0, 5, (1, 3 * comm.size, 2), generator=torch.Generator().manual_seed(comm.rank)).to(comm.device)
    found = []
    for function in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        y = function(ids)
        y.sum().backward()
        found.append([y.detach().cpu(), *(parameter.grad.cpu() for parameter in model.parameters())])
    for eager, compiled in zip(*found):
        reference.close(compiled, eager)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("function", [row_parallel_rank, parameters_rank, embedding_rank])
def test_module(run, size, function):
    run(size, function)


@pytest.mark.parametrize("size", [2, 4])
def test_experts(run, tmp_path, size):
    run(size, experts_rank, tmp_path / "meeting")


def default_device_rank(comm):
    """Within torch.device("meta"), where real programs make models to load them later, modules lie where they always lie, with the same parameters; and an error that
    the ranks ask each other about is what it is elsewhere."""
    def made():
        torch.manual_seed(3)
        return [fcc.nn.ColumnParallelLinear(4, 6, comm=comm), fcc.nn.RowParallelLinear(8, 3, comm=comm), fcc.nn.ExpertParallelLinear(4, 3, 2 * comm.size, bias=True, comm=comm),
                fcc.nn.ShardedEmbeddingBagCollection([5, 6, 7], 4, mode="sum", comm=comm)]

    x = torch.ones(4, 3, device=comm.device)
    with torch.device("meta"):
        there = made()
        for first, second in zip(there, made()):
            assert all(torch.equal(a, b) and a.device == comm.device for a, b in zip(first.parameters(), second.parameters()))
        if not comm.member.on_gpu:
            with pytest.raises(fcc.ArgumentError, match="receive_counts: rank 0 expects 1 rows of rank 0, which sends 2"):
                fcc.all_to_all(x, comm, send_counts=[2, 2], receive_counts=[1, 1])
    seen = there[2](torch.ones(4 * comm.size, 4, device=comm.device))
    assert torch.isfinite(seen).all() and list(seen.shape) == [4 * comm.size, 3]


def test_default_device(run):
    run(2, default_device_rank)


def test_refused(run):
    run(2, refused_rank)


def test_compile(run):
    run(2, compile_rank)
