# SPDX-License-Identifier: MIT
"""gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm that each rank launches itself, on CUDA GPUs: any memory, any shape, beside each other and in CUDA
graphs, and what ranks hear that differ. FCC_TEST_DEVICE=cuda, with 2 GPUs or more; FCC_TEST_SEED draws other cases."""
import math
import os
import random

import fcc
import pytest
import torch
from ranks import gpus
from test_streams import numbers

KINDS = ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
# Of an element whose sum has k terms of variance 1, times sqrt(k): what ranks round before they add, and once more.
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 5e-3, torch.float32: 2e-4}


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

    def wanted(self, rank):
        if self.gathers:
            return torch.cat(self.a).double() @ self.b[rank].double()
        whole = sum(a.double() @ b.double() for a, b in zip(self.a, self.b))
        first = sum(self.rows[:rank])
        return whole[first:first + self.rows[rank]] if self.kind == "gemm_reduce_scatter" else whole

    def call(self, comm):
        return getattr(fcc, self.kind)(self.a[comm.rank], self.b[comm.rank], comm, schedule=self.schedule, **self.given)

    def check(self, comm, found):
        wanted = self.wanted(comm.rank)
        terms = self.ks[0] if self.gathers else sum(self.ks)
        assert found.shape == wanted.shape and found.dtype == self.dtype
        wrong = (found.double() - wanted).abs() > TOLERANCE[self.dtype] * math.sqrt(max(terms, 1))
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
        changes.append(({"k": 24}, r"a: shape\[1\]: rank 1 has 24, rank 0 has 16|the whole a: rank 1 has \d+ elements, rank 0 has"))
    else:
        changes.append(({"n": 48}, r"rank 1 has .*rank 0 has"))
        changes.append(({"m": 80}, r"rank 1 has .*rank 0 has"))
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
