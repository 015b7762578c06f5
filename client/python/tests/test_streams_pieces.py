# SPDX-License-Identifier: MIT
"""gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm that each rank launches itself, on CUDA GPUs: any memory, any shape, beside each other and in CUDA
graphs, and what ranks hear that differ. FCC_TEST_DEVICE=cuda, with 2 GPUs or more; FCC_TEST_SEED draws other cases."""
import os
import random

import fcc
import pytest
import torch
from ranks import gpus
from test_streams import numbers

KINDS = ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
# Of the sum of all terms without their signs: what ranks round before they add, and once more; of f32, what the library's order of additions makes.
TOLERANCE = {torch.bfloat16: 2 ** -7, torch.float16: 2 ** -10, torch.float32: 2 ** -18}


class Case:
    """A product of random sizes, the same on all ranks, and its factors, whose rows may lie apart."""

    def __init__(self, comm, seed, large):
        draw = random.Random(seed)
        self.kind = draw.choice(KINDS)
        self.dtype = draw.choice(list(TOLERANCE))
        m, n, k = draw.choice((1, 2, 7, 64, 333, 1000, 2048)), draw.choice((1, 8, 77, 512, 1596, 4096)), draw.choice((1, 5, 64, 532, 1024))
        if large:
            m, n, k = draw.choice((4096, 8192)), draw.choice((4096, 4100, 10240)), draw.choice((128, 1032))
        ranks = comm.size
        self.ks, self.ns = [k] * ranks, [n] * ranks
        if draw.random() < 0.3:
            odd = [draw.choice((0, size, size // 2 + 1)) for size in (n if self.gathers else k,) * ranks]
            self.ns, self.ks = (odd, self.ks) if self.gathers else (self.ns, odd)
        at = sorted(draw.randint(0, m) for _ in range(ranks - 1))
        self.rows = [end - first for first, end in zip([0, *at], [*at, m])] if draw.random() < 0.4 else [m // ranks + (r < m % ranks) for r in range(ranks)]
        self.given = {} if self.kind == "gemm_all_reduce" else {"rows": self.rows}
        self.schedule = draw.choice(("auto", "fused"))
        pad = draw.choice((0, 0, 3, 8))

        def matrix(rows, cols):
            return torch.randn(rows, cols + pad, generator=generator, device=comm.device).to(self.dtype)[:, :cols]
        generator = torch.Generator(device=comm.device).manual_seed(seed)
        self.a = [matrix(rows if self.gathers else m, self.ks[r]) for r, rows in enumerate(self.rows)]
        self.b = [matrix(self.ks[r], self.ns[r]) for r in range(ranks)]

    @property
    def gathers(self):
        return self.kind == "all_gather_gemm"

    def wanted(self, rank, a, b):
        if self.gathers:
            return torch.cat(a).double() @ b[rank].double()
        whole = sum(x.double() @ y.double() for x, y in zip(a, b))
        first = sum(self.rows[:rank])
        return whole[first:first + self.rows[rank]] if self.kind == "gemm_reduce_scatter" else whole

    def call(self, comm):
        return getattr(fcc, self.kind)(self.a[comm.rank], self.b[comm.rank], comm, schedule=self.schedule, **self.given)

    def check(self, comm, found):
        wanted, sizes = self.wanted(comm.rank, self.a, self.b), self.wanted(comm.rank, [a.abs() for a in self.a], [b.abs() for b in self.b])
        assert found.shape == wanted.shape and found.dtype == self.dtype
        wrong = (found.double() - wanted).abs() > TOLERANCE[self.dtype] * sizes + 1e-6
        assert not wrong.any() and not found.isnan().any(), (self.kind, self.dtype, self.rows, self.ns, self.ks, self.schedule, int(wrong.sum()))


def cases_rank(comm, seed, count, large):
    torch.cuda.set_device(comm.device)
    assert comm._member.multiplies()
    stream = torch.cuda.Stream()
    for i in range(count):
        case = Case(comm, seed + i, large)
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            found = case.call(comm)
            again = case.call(comm)
            stream.synchronize()
            case.check(comm, found)
            assert torch.equal(found, again), "other bits in another run"
            if i % 2:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    captured = case.call(comm)
                for _ in range(3):
                    captured.fill_(float("nan"))
                    graph.replay()
                stream.synchronize()
                assert torch.equal(captured, found), "other bits in a graph"
        if case.kind == "gemm_all_reduce":
            every = fcc.all_gather(found.reshape(1, -1).contiguous(), comm)
            assert all(torch.equal(one, every[0]) for one in every), "ranks have other bits"
    comm.synchronize()


@pytest.mark.parametrize("large", [False, True])
def test_any_shape(run, device, large):
    run(gpus(device), cases_rank, int(os.environ.get("FCC_TEST_SEED", "1")) * 1000, 20 if large else 60, large)


def beside_rank(comm):
    """Products of one communicator in turn with collectives and gemv, in one graph, whose memory they share."""
    torch.cuda.set_device(comm.device)
    a, b = (numbers(comm.rank, seed, 512, 512).to(torch.bfloat16).to(comm.device) for seed in (1, 2))
    x, w = numbers(comm.rank, 3, 4, 512).to(torch.bfloat16).to(comm.device), numbers(comm.rank, 4, 512, 512).to(torch.bfloat16).to(comm.device)

    def step():
        y = fcc.gemm_reduce_scatter(a, b, comm, schedule="fused")
        z = fcc.all_gather_gemm(y, b, comm, schedule="fused")
        return fcc.all_reduce(y, comm), z, fcc.gemv_all_reduce(x, w, comm), fcc.gemm_all_reduce(a, b, comm, schedule="fused")
    wanted = [y.clone() for y in step()]
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    for _ in range(200):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(found, want) for found, want in zip(captured, wanted))
    comm.synchronize()


def test_beside_others(run, device):
    run(gpus(device), beside_rank)


def differ_rank(comm, kind, fused):
    """What one rank does differently is said on all, with both values, and the communicator goes on."""
    torch.cuda.set_device(comm.device)
    schedule = "fused" if fused else "auto"

    def call(m=64, n=32, k=16, dtype=torch.float32, kind=kind, **given):
        a, b = torch.ones(m, k, dtype=dtype, device=comm.device), torch.ones(k, n, dtype=dtype, device=comm.device)
        return getattr(fcc, kind)(a, b, comm, schedule=schedule, **given)
    odd = comm.rank == 1
    changes = [({"dtype": torch.bfloat16}, "dtype: rank 1 has bf16, rank 0 has f32")]
    if kind == "all_gather_gemm":
        changes.append(({"k": 24}, "a: shape.1.: rank 1 has 24, rank 0 has 16" if fused else "the whole a: rank 1 has 3072 elements, rank 0 has 2048"))
    else:
        changes.append(({"n": 48}, "b: shape.1.: rank 1 has 48, rank 0 has 32" if fused else "the sum: rank 1 has 3072 elements at a time, rank 0 has 2048"))
        changes.append(({"m": 80}, "a: shape.0.: rank 1 has 80, rank 0 has 64" if fused else "the sum: rank 1 has 2560 elements at a time, rank 0 has 2048"))
    for change, words in changes:
        with pytest.raises(fcc.Error, match=words):
            call(**(change if odd else {}))
            comm.synchronize()
        assert call().shape[1] == 32
        comm.synchronize()
    with pytest.raises(fcc.Error, match="rank 0 called|called"):
        call() if not odd else fcc.all_reduce(torch.ones(64, device=comm.device), comm)
        comm.synchronize()
    call()
    comm.synchronize()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_differ(run, device, kind, fused):
    run(gpus(device), differ_rank, kind, fused)


def ended_rank(comm):
    """A rank that never comes: the others' products, captured and not, end, and later replays at once."""
    torch.cuda.set_device(comm.device)
    a, b = torch.ones(512, 64, device=comm.device), torch.ones(64, 256, device=comm.device)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    fcc.gemm_reduce_scatter(a, b, comm, schedule="fused")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        fcc.gemm_reduce_scatter(a, b, comm, schedule="fused")
    graph.replay()
    torch.cuda.synchronize()
    if comm.rank == 1:
        comm.abort("rank 1 has had enough")
        return
    with pytest.raises(fcc.Error, match="enough"):
        graph.replay()
        torch.cuda.synchronize()
        comm.synchronize()
        fcc.gemm_reduce_scatter(a, b, comm, schedule="fused")
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()


def test_ended(run, device):
    run(gpus(device), ended_rank)


def combined(reduction, terms):
    total = terms[0].double() if terms[0].is_floating_point() else terms[0]
    for term in terms[1:]:
        term = term.to(total.dtype)
        total = {"sum": total + term, "average": total + term, "product": total * term, "min": torch.minimum(total, term), "max": torch.maximum(total, term),
                 "xor": total ^ term if not total.is_floating_point() else total}[reduction]
    return (total / len(terms) if reduction == "average" else total).to(terms[0].dtype)


def vectors_rank(comm, seed):
    """Large vectors, which copy engines take to the other of two ranks: all dtypes, lengths at random, uneven parts, misaligned, in place, and in graphs."""
    torch.cuda.set_device(comm.device)
    for i in range(24):
        draw = random.Random(seed + i)
        dtype = draw.choice((torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8))
        reduction = draw.choice(("sum", "min", "max", "average") if dtype.is_floating_point else ("sum", "product", "min", "max", "xor"))
        n = draw.randint(3 << 20, 40 << 20) // dtype.itemsize
        at = draw.choice((0, 0, 1, 3))

        def term(rank):
            generator = torch.Generator(device=comm.device).manual_seed(100 * (seed + i) + rank)
            made = torch.randint(-3 if dtype != torch.uint8 else 0, 4, (n + at,), generator=generator, device=comm.device)
            return made.to(dtype)[at:]
        terms = [term(r) for r in range(comm.size)]
        wanted = combined(reduction, terms)
        x = terms[comm.rank]
        cuts = sorted(draw.randint(0, n) for _ in range(comm.size - 1)) if draw.random() < 0.5 else [n * r // comm.size for r in range(1, comm.size)]
        counts = [end - first for first, end in zip([0, *cuts], [*cuts, n])]
        first = sum(counts[:comm.rank])
        calls = [(lambda: fcc.all_reduce(x, comm, reduction=reduction), wanted),
                 (lambda: fcc.reduce_scatter(x, comm, counts=counts, reduction=reduction), wanted[first:first + counts[comm.rank]]),
                 (lambda: fcc.all_gather(terms[0][first:first + counts[comm.rank]], comm, counts=counts), terms[0])]
        for call, want in calls:
            assert torch.equal(call(), want) and torch.equal(call(), want), (dtype, reduction, n, at, counts)
        if i % 4 == 0:
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.graph(graph, stream=stream):
                captured = [call() for call, _ in calls]
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(found, want) for found, (_, want) in zip(captured, calls)), (dtype, reduction, n, at, counts)
    comm.synchronize()


def test_vectors(run, device):
    run(gpus(device), vectors_rank, int(os.environ.get("FCC_TEST_SEED", "1")) * 1000)


def differ(found, wanted):
    """"", or where long vectors differ."""
    at = (found != wanted).nonzero().flatten()
    if not at.numel():
        return ""
    return f"{at.numel()} elements of {found.numel()} differ, from {at[0]} to {at[-1]}; the first is {found[at[0]]} for {wanted[at[0]]}"


def long_rank(comm, seed):
    """4 to 128 MiB for each rank, many runs one after the other: each element says which rank's it is, its place, and the run, so what is read too early, or written
    over too early, is seen."""
    torch.cuda.set_device(comm.device)
    draw, ranks = random.Random(seed), comm.size
    for run in range(40):
        n = draw.randint(1, 32) * (1 << 20) // ranks * ranks
        place = torch.arange(n, device=comm.device, dtype=torch.int32)
        terms = [(place * ranks + r) ^ run * 7919 for r in range(ranks)]
        own, mine = terms[comm.rank], slice(n // ranks * comm.rank, n // ranks * (comm.rank + 1))
        calls = {"all_gather": (lambda x: fcc.all_gather(x, comm), torch.cat(terms)),
                 "all_to_all": (lambda x: fcc.all_to_all(x, comm), torch.cat([term[mine] for term in terms])),
                 "broadcast": (lambda x: fcc.broadcast(x, comm, root=run % ranks), terms[run % ranks]),
                 "all_reduce": (lambda x: fcc.all_reduce(x, comm), sum(terms)),
                 "reduce_scatter": (lambda x: fcc.reduce_scatter(x, comm), sum(terms)[mine])}
        for what in draw.sample(list(calls), len(calls)):
            call, wanted = calls[what]
            assert not (wrong := differ(call(own), wanted)), f"run {run}, {what}, {n} elements: {wrong}"
    comm.synchronize()


def test_long(run, device):
    run(gpus(device), long_rank, int(os.environ.get("FCC_TEST_SEED", "1")))


def in_place_rank():
    """torch.distributed's all_reduce, of which each rank's piece is overwritten when it has been sent."""
    import torch.distributed as dist
    for n in (1 << 20, (3 << 20) + 5, 9 << 20):
        x = torch.arange(n, device="cuda", dtype=torch.float32).remainder_(1000) + dist.get_rank()
        wanted = torch.arange(n, device="cuda", dtype=torch.float32).remainder_(1000) * dist.get_world_size() + sum(range(dist.get_world_size()))
        dist.all_reduce(x)
        assert torch.equal(x, wanted)
        whole = torch.zeros(n * dist.get_world_size(), device="cuda")
        part = whole[n * dist.get_rank():n * (dist.get_rank() + 1)]
        part.fill_(dist.get_rank() + 1)
        dist.all_gather_into_tensor(whole, part)
        assert torch.equal(whole, torch.arange(1, dist.get_world_size() + 1, device="cuda").float().repeat_interleave(n))


def test_in_place(group, device):
    group(gpus(device), in_place_rank)
