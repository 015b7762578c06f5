# SPDX-License-Identifier: MIT
"""gemv_all_reduce and gemm_all_to_all that each rank launches itself, on CUDA GPUs: in any memory, without copies, on streams, in CUDA graphs, also of layers.
FCC_TEST_DEVICE=cuda, with 2 GPUs or more."""
import warnings

import fcc
import pytest
import torch
from ranks import gpus
from test_streams import SLOW, numbers

REPLAYS = 100
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def parts(comm, seed, m, n, k, dtype=torch.float32):
    """This rank's x and w, and what the product of all ranks is, in f32: small whole numbers, exact in any order; and what it is where each rank's
    product is cuBLAS's, which rounds it before it is sent."""
    every = [(numbers(r, 2 * seed, m, k + r), numbers(r, 2 * seed + 1, n, k + r)) for r in range(comm.size)]
    x, w = (t.to(dtype).to(comm.device) for t in every[comm.rank])
    return x, w, sum((x @ w.t() for x, w in every), torch.zeros(m, n)), sum(((x @ w.t()).to(dtype).float() for x, w in every), torch.zeros(m, n))


def same(found, *wanted):
    """The sum, rounded once; or another one that is right, too."""
    assert all(found.shape == w.shape for w in wanted) and any(torch.equal(found.cpu(), w.to(found.dtype)) for w in wanted)


def memory_rank(comm):
    """x, w, bias and residual of all kinds of memory are taken where they lie; results are torch's."""
    warnings.simplefilter("error", fcc.CopyWarning)
    seed = 0
    with torch.no_grad():
        for dtype in FLOATS:
            for m, n, k in ((1, 512, 64), (1, 7, 3), (3, 100, 0), (8, 1000, 128), (64, 260, 33), (2, 0, 5)):
                seed += 1
                x, w, *wants = parts(comm, seed, m, n, k, dtype)
                for some in (x, torch.cat((x, x))[m:], fcc.to_daemon(x, comm), torch.nn.functional.pad(x, (1, 2))[:, 1:-2]):
                    y = fcc.gemv_all_reduce(some, torch.nn.functional.pad(w, (3, 0))[:, 3:] if m % 2 else w, comm)
                    assert comm._member.connection.find(y.data_ptr()) is None or not y.numel()
                    same(y, *wants)
                bias, residual = numbers(0, seed + 100, n).to(dtype), numbers(0, seed + 200, m, n).to(dtype)
                y = fcc.gemv_all_reduce(x, w, comm, bias=bias.to(comm.device), residual=residual.to(comm.device))
                assert y.dtype == dtype
                same(y, *(want + bias + residual for want in wants))
                same(fcc.gemv_all_reduce(x.t().contiguous().t(), w, comm), *wants)  # rows that are not dense
        x, w, *wants = parts(comm, 1, 1, 512, 64, torch.float16)
        before = torch.cuda.memory_allocated(comm.device)
        kept = [fcc.gemv_all_reduce(x, w, comm) for _ in range(50)]
        assert torch.cuda.memory_allocated(comm.device) - before <= 50 * 1024  # results, and nothing else
        assert len({y.data_ptr() for y in kept}) == 50
        for y in kept:
            same(y, *wants)
        side = torch.cuda.Stream(comm.device)
        side.wait_stream(torch.cuda.current_stream(comm.device))
        with torch.cuda.stream(side):
            torch.cuda._sleep(SLOW)
            late = fcc.gemv_all_reduce(x.add_(0), w, comm)
        torch.cuda.current_stream(comm.device).wait_stream(side)
        same(late, *wants)
    x, w, *wants = parts(comm, 2, 4, 64, 32)
    x.requires_grad_()
    w.requires_grad_()
    y = fcc.gemv_all_reduce(x, w, comm)
    same(y.detach(), *wants)
    y.sum().backward()
    same(x.grad, w.detach().sum(0).expand_as(x).cpu())
    comm.synchronize()


def graph_rank(comm, dtype):
    """A decoding step's products and sums, captured for several numbers of rows, replayed in turn with calls outside."""
    torch.cuda.set_device(comm.device)  # torch.cuda.graph() captures a stream of the current GPU
    assert comm.member.launches()
    n = 512
    weights = [numbers(comm.rank, 10 + i, n, n).to(dtype).to(comm.device) for i in range(4)]
    layer = fcc.nn.RowParallelLinear(n, n, comm=comm, dtype=dtype)
    graphs = {}

    def step(x):
        for w in weights:
            x = fcc.gemv_all_reduce(x.sign(), w, comm)
        return layer(fcc.all_reduce(x, comm).sign()[:, layer.columns])
    with torch.no_grad():
        for m in (1, 2, 8, 64):
            x = torch.zeros(m, n, dtype=dtype, device=comm.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = step(x)
            graphs[m] = graph, x, y
        for number in range(REPLAYS):
            m = (1, 2, 8, 64)[number % 4]
            graph, x, y = graphs[m]
            x.copy_(numbers(0, number, *x.shape).to(dtype))
            graph.replay()
            if number % 10 < 4:
                again = step(x)
                assert torch.equal(again, y)  # the same bits
        every = fcc.all_gather(y, comm).view(comm.size, *y.shape)
        assert all(torch.equal(one, y) for one in every)
    comm.synchronize()


def wrong_rank(comm):
    """Errors of one rank come to all, by one of the next calls or by synchronize(), and the communicator goes on."""
    odd = comm.rank == 1
    x, w = torch.ones(4, 8, device=comm.device), torch.ones(16, 8, device=comm.device)
    for call, words in (
            (lambda: fcc.gemv_all_reduce(x[:3] if odd else x, w, comm), r"gemv_all_reduce: x: shape\[0\]: rank \d has \d, rank \d has \d"),
            (lambda: fcc.gemv_all_reduce(x, w[:9] if odd else w, comm), r"gemv_all_reduce: w: shape\[0\]: rank \d has \d+, rank \d has \d+"),
            (lambda: fcc.gemv_all_reduce(x.half(), w.half(), comm) if odd else fcc.gemv_all_reduce(x, w, comm),
             r"gemv_all_reduce: x: dtype: rank \d has f\d+, rank \d has f\d+"),
            (lambda: fcc.gemv_all_reduce(x[:, :7] if odd else x, w, comm), r"rank 1: gemv_all_reduce: w: shape\[1\] 8: allowed is 7"),
            (lambda: fcc.gemv_all_reduce(x.to(torch.int32) if odd else x, w, comm), "rank 1: gemv_all_reduce: x: torch.int32: allowed are"),
            (lambda: fcc.gemv_all_reduce(x, 3.0 if odd else w, comm), "rank 1: gemv_all_reduce: w: float 3.0: allowed is a torch.Tensor"),
            (lambda: fcc.gemv_all_reduce(x, w, comm, schedule="slow" if odd else "auto"), 'schedule: "slow": allowed are'),
            (lambda: fcc.gemv_all_reduce(x, w, comm, bias=w[:, 0].contiguous() if odd else None), "gemv_all_reduce: bias: rank"),
            (lambda: fcc.all_reduce(x, comm) if odd else fcc.gemv_all_reduce(x, w, comm), r"rank \d called (all|gemv_all)_reduce of f32")):
        with pytest.raises(fcc.ArgumentError, match=words) as e:
            call()
            comm.synchronize()
        assert e.value.rank in (0, 1)
        comm.barrier()
        assert fcc.gemv_all_reduce(x, w, comm).tolist() == [[8.0 * comm.size] * 16] * 4
        assert fcc.all_reduce(torch.ones(2, device=comm.device), comm).tolist() == [comm.size] * 2
        comm.synchronize()  # an error comes once


def rows_rank(comm):
    """gemm_all_to_all of a, b, bias and residual of all kinds of memory, also in graphs, with other numbers of rows by turns."""
    warnings.simplefilter("error", fcc.CopyWarning)
    torch.cuda.set_device(comm.device)
    seed, graphs = 0, []
    with torch.no_grad():
        for dtype in FLOATS:
            for rows, n, k in ((1, 512, 64), (3, 7, 3), (100, 1000, 0), (130, 264, 33), (700, 2048, 64)):
                seed += 1
                send = [[(rows + 3 * r + p) // (1 + (r + p) % 2) for p in range(comm.size)] for r in range(comm.size)]
                every = [(numbers(r, 2 * seed, sum(send[r]), k), numbers(r, 2 * seed + 1, k, n), numbers(r, seed + 100, n),
                          numbers(r, seed + 200, sum(send[r]), n)) for r in range(comm.size)]
                a, b, bias, residual = (t.to(dtype).to(comm.device) for t in every[comm.rank])
                counts = {"send_rows": send[comm.rank], "recv_rows": [s[comm.rank] for s in send]}

                def want(stages):
                    made = [x @ w + (v + u if stages else 0) for x, w, v, u in every]
                    return torch.cat([made[r].split(send[r])[comm.rank] for r in range(comm.size)])
                for some in (a, fcc.to_daemon(a, comm), torch.nn.functional.pad(a, (1, 2))[:, 1:-2]):
                    c = fcc.gemm_all_to_all(some, b, comm, **counts)
                    assert comm._member.connection.find(c.data_ptr()) is None
                    same(c, want(False))
                same(fcc.gemm_all_to_all(a, b, comm, bias=bias, residual=residual, **counts), want(True))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    c = fcc.gemm_all_to_all(a, b, comm, **counts)
                graphs.append((graph, c, want(False), (a, b)))
        for number in range(REPLAYS):
            graph, c, found, _ = graphs[number * 7 % len(graphs)]
            c.zero_()
            graph.replay()
            same(c, found)
    comm.synchronize()


def launchers_rank(comm):
    """Rank 0 leaves a product to fccd, rank 1 launches it: each waits for the other, until the time limit ends the communicator. Both results are
    undefined, and both hear of that when they synchronize."""
    x, w = torch.ones(4, 8, device=comm.device), torch.ones(16, 8, device=comm.device)
    assert fcc.gemv_all_reduce(x, w, comm).tolist() == [[8.0 * comm.size] * 16] * 4
    fcc.gemv_all_reduce(x, w, comm, schedule="fused" if comm.rank else "sequential")
    with pytest.raises(fcc.TimeLimitError, match="did not come within the time limit of 2000 ms"):
        comm.synchronize()
    with pytest.raises(fcc.TimeLimitError):
        fcc.gemv_all_reduce(x, w, comm)


def test_memory(run, device):
    run(gpus(device), memory_rank)


@pytest.mark.parametrize("dtype", FLOATS)
def test_graph(run, device, dtype):
    run(gpus(device), graph_rank, dtype)


def test_rows(run, device):
    run(gpus(device), rows_rank)


def test_wrong(run, device):
    gpus(device)
    run(2, wrong_rank)


def test_launchers(run, device):
    gpus(device)
    run(2, launchers_rank, time_limit=2)
