# SPDX-License-Identifier: MIT
"""Collectives that each rank launches itself, on CUDA GPUs: in any memory, on streams, in CUDA graphs; the same as a process group, and
DistributedDataParallel against one process. FCC_TEST_DEVICE=cuda, with 2 GPUs or more."""
import collectives
import fcc
import pytest
import torch
import torch.distributed as dist
from ranks import gpus

REPLAYS = 100
SLOW = 20_000_000  # cycles that keep a stream busy


def numbers(rank, seed, *shape, dtype=torch.float32):
    """Small whole numbers, whose sums are exact in any order."""
    generator = torch.Generator("cpu").manual_seed(1000 * seed + rank)
    return torch.randint(-8, 8, shape, generator=generator, device="cpu").to(dtype)


# ---- functions ----

def memory_rank(comm):
    """x of all kinds of memory is taken where it lies; results are torch's."""
    size, rank = comm.size, comm.rank
    assert comm.member.launches()
    every = [numbers(r, 0, 4 * size, 6) for r in range(size)]
    x = every[rank].to(comm.device)
    before = torch.cuda.memory_allocated(comm.device)
    total = fcc.all_reduce(x, comm)
    assert torch.cuda.memory_allocated(comm.device) - before >= total.nbytes  # it is of torch's allocator, and nothing else was needed
    assert torch.cuda.memory_allocated(comm.device) - before < 2 * max(total.nbytes, 512)
    assert comm._member.connection.find(total.data_ptr()) is None
    daemons = fcc.to_daemon(x, comm)
    with fcc.mem_pool(comm):
        pooled = x.clone()
    for here in (x, torch.cat((x, x))[len(x):], x.t().contiguous().t(), torch.stack((x, x), 2)[..., 1], daemons, pooled):
        for name, want in (("all_reduce", {}), ("all_gather", {}), ("reduce_scatter", {}), ("all_to_all", {}), ("broadcast", {})):
            collectives.same(getattr(fcc, name)(here, comm), collectives.result(name, every, rank, **want))
    side = torch.cuda.Stream(comm.device)
    side.wait_stream(torch.cuda.current_stream(comm.device))
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLOW)
        late = fcc.all_reduce(x.add_(0), comm)
    torch.cuda.current_stream(comm.device).wait_stream(side)
    collectives.same(late, collectives.result("all_reduce", every, rank))
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.uint8):  # addresses that are multiples of an element only
        every = [numbers(r, 1, 1001 * size + 1).abs().to(dtype) for r in range(size)]
        here = every[rank].to(comm.device)[1:]
        collectives.same(fcc.all_reduce(here, comm), collectives.result("all_reduce", [x[1:] for x in every], rank))
        collectives.same(fcc.all_to_all(here, comm), collectives.result("all_to_all", [x[1:] for x in every], rank))
    empty = torch.empty(0, 3, device=comm.device)
    assert fcc.all_reduce(empty, comm).shape == (0, 3) and fcc.all_gather(empty, comm).shape == (0, 3)
    comm.synchronize()


def graph_rank(comm, rows):
    """Replays give what the inputs are at the time, in turn with calls outside of the graph."""
    size, rank = comm.size, comm.rank
    torch.cuda.set_device(comm.device)  # torch.cuda.graph() captures a stream of the current GPU
    names = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    x = torch.zeros(rows * size, 5, device=comm.device)
    counts = [[(s + d) % 3 for d in range(size)] for s in range(size)]
    sent = torch.zeros(sum(counts[rank]), 5, device=comm.device)
    for name in names:  # also the first collective, which no capture may be
        getattr(fcc, name)(x, comm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [getattr(fcc, name)(x * 2, comm) for name in names]
        rows_came = fcc.all_to_all(sent, comm, send_counts=counts[rank], receive_counts=[row[rank] for row in counts])
    for number in range(REPLAYS):
        every = [numbers(r, number, *x.shape) for r in range(size)]
        rows_sent = [numbers(r, -number, sum(counts[r]), 5) for r in range(size)]
        x.copy_(every[rank])
        sent.copy_(rows_sent[rank])
        graph.replay()
        for name, got in zip(names, found):
            collectives.same(got, collectives.result(name, [2 * x for x in every], rank))
        collectives.same(rows_came, collectives.result("all_to_all", rows_sent, rank, table=counts))
        if number % 10 == 0:
            collectives.same(fcc.all_reduce(x, comm), collectives.result("all_reduce", every, rank))
    comm.synchronize()


def unready_rank(comm):
    """A communicator's first collective cannot be captured; the next can."""
    torch.cuda.set_device(comm.device)  # as above
    x = torch.ones(4, device=comm.device)
    with pytest.raises(fcc.CaptureError, match="first collective"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            fcc.all_reduce(x, comm)
    assert fcc.all_reduce(x, comm).tolist() == [comm.size] * 4
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = fcc.all_reduce(x, comm)
    graph.replay()
    assert y.tolist() == [comm.size] * 4


def wrong_rank(comm):
    """Errors of one rank come to all, by one of the next calls or by synchronize(), and the communicator goes on."""
    odd, x = comm.rank == 1, torch.ones(4, 3, device=comm.device)
    for call, words in (
            (lambda: fcc.all_reduce(x[:3] if odd else x, comm), r"all_reduce: x: elements: rank \d has \d+, rank \d has \d+"),
            (lambda: fcc.all_reduce(x.half() if odd else x, comm), r"all_reduce: x: dtype: rank \d has f\d+, rank \d has f\d+"),
            (lambda: fcc.all_reduce(x, comm, reduction="most" if odd else "sum"), 'rank 1: all_reduce: reduction: "most": allowed are sum'),
            (lambda: fcc.all_reduce(x.to(torch.int16) if odd else x, comm), "rank 1: all_reduce: x: torch.int16, torch.strided on cuda"),
            (lambda: fcc.all_reduce(3.0 if odd else x, comm), "rank 1: all_reduce: x: float 3.0: allowed is a torch.Tensor"),
            (lambda: fcc.all_reduce(x, comm, reduction="xor" if odd else "sum"), "reduction"),
            (lambda: fcc.all_to_all(x, comm, send_counts=[2] * 2, receive_counts=[1, 2] if odd else [2] * 2),
             r"all_to_all: receive_counts: rank 1 expects 3 elements of rank 0, which sends 6"),
            (lambda: (fcc.all_gather if odd else fcc.all_reduce)(x, comm), "rank \\d called all_(gather|reduce) of f32")):
        with pytest.raises(fcc.ArgumentError, match=words) as e:
            call()
            comm.synchronize()
        assert "rank" in e.value.reason and e.value.rank in (0, 1)
        comm.barrier()
        assert fcc.all_reduce(torch.ones(2, dtype=torch.int32, device=comm.device), comm).tolist() == [2, 2]
        comm.synchronize()  # an error comes once


def test_memory(run, device):
    run(gpus(device), memory_rank)


@pytest.mark.parametrize("rows", [1, 1000, 200_000])
def test_graph(run, device, rows):
    run(gpus(device), graph_rank, rows)


def test_first_in_graph(run, device):
    gpus(device)
    run(2, unready_rank)


def test_wrong(run, device):
    gpus(device)
    run(2, wrong_rank)


# ---- process groups ----

def world():
    return dist.get_rank(), dist.get_world_size()


def order_rank():
    """Works are behind what the current stream had, and what waits for them is behind them, whichever streams that are; the host goes on."""
    rank, size = world()
    dist.all_reduce(torch.zeros(1))
    assert type(dist.group.WORLD._devices["cuda"]._on).__name__ == "Direct"
    total, store = sum(range(1, size + 1)), dist.distributed_c10d._get_default_store()
    for n in (10, 3_000_000):
        x = torch.zeros(n)
        torch.cuda._sleep(SLOW)
        x.fill_(rank + 1)  # behind the sleep
        if rank:
            store.wait([f"rank 0 goes on {n}"])
        work = dist.all_reduce(x, async_op=True)
        assert work.wait()
        if rank == 0:  # the others have not come yet
            assert not work.is_completed()
            store.set(f"rank 0 goes on {n}", "1")
        y = x * 2
        assert (y == 2 * total).all() and work.is_completed() and work.is_success()
        # another stream, and the future
        torch.cuda._sleep(SLOW)
        x.fill_(rank + 1)
        work, side = dist.all_reduce(x, async_op=True), torch.cuda.Stream()
        with torch.cuda.stream(side):
            z = work.get_future().wait()[0] + 1
        side.synchronize()
        assert (z == total + 1).all()
        work.wait()
        doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
        assert (doubled.wait() == 2 * size * total).all()
        # nobody waits, and the memory is wanted at once
        torch.cuda._sleep(SLOW)
        out = torch.empty(size, n)
        work = dist.all_gather_into_tensor(out, torch.full((n,), rank + 1.0), async_op=True)
        spoilt = [torch.full((n,), -1.0) for _ in range(4)]
        work.wait()
        assert (out == torch.arange(1.0, size + 1)[:, None]).all()
        del spoilt
        dist.all_reduce(torch.ones(n), async_op=True)
    dist.barrier()


def graphs_rank():
    """Collectives of the group in a graph, with and without async_op, in turn with others outside."""
    rank, size = world()
    x, whole, part, swapped = torch.zeros(4 * size), torch.zeros(size, 4 * size), torch.zeros(4), torch.zeros(4 * size)
    several = [torch.zeros(3), torch.zeros(5)]

    def step():
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(part, x)
        dist.all_to_all_single(swapped, x)
        work = dist.all_reduce(x, async_op=True)
        apart = part * 2
        work.wait()
        dist.all_reduce_coalesced(several) if hasattr(dist, "all_reduce_coalesced") else [dist.all_reduce(one) for one in several]
        return apart + x[:4]
    with pytest.raises(dist.DistBackendError, match="first collective"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            dist.all_reduce(x)
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    for number in range(REPLAYS):
        every = [numbers(r, number, 4 * size).cuda() for r in range(size)]
        x.copy_(every[rank])
        for one in several:
            one.fill_(rank)
        graph.replay()
        total = sum(every)
        assert torch.equal(x, total) and torch.equal(whole.view(size, -1), torch.stack(every))
        assert torch.equal(part, total.view(size, 4)[rank]) and torch.equal(y, part * 2 + x[:4])
        assert torch.equal(swapped, torch.cat([one.view(size, 4)[rank] for one in every]))
        assert all((one == sum(range(size))).all() for one in several)
        if number % 10 == 0:
            extra = torch.full((7,), float(rank))
            dist.all_reduce(extra)
            assert (extra == sum(range(size))).all()
    dist.barrier()


def model_of(seed):
    torch.manual_seed(seed)
    with torch.device("cpu"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    return model.cuda()


def batch(rank, step):
    generator = torch.Generator("cpu").manual_seed(100 * step + rank)
    return [torch.randn(6, width, generator=generator, device="cpu").cuda() for width in (8, 4)]


def ddp_rank(views):
    """To the parameters that one process gets with all ranks' batches."""
    rank, size = world()
    model, alone = model_of(rank), model_of(0)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], bucket_cap_mb=0.001,
                                                        gradient_as_bucket_view=views)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1, momentum=0.9) for one in (model, alone)]
    for step in range(10):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = batch(rank, step)
        (wrapped(x) - y).pow(2).mean().backward()
        every = [batch(r, step) for r in range(size)]
        (alone(torch.cat([x for x, _ in every])) - torch.cat([y for _, y in every])).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    for found, wanted in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    gathered = [torch.empty_like(p) for p in model.parameters() for _ in range(size)]
    for i, p in enumerate(model.parameters()):
        outs = gathered[i * size:(i + 1) * size]
        dist.all_gather(outs, p.detach())
        assert all(torch.equal(out, p) for out in outs)  # the same bits on all ranks


def test_order(group, device):
    group(gpus(device), order_rank)


def test_graphs_of_a_group(group, device):
    group(gpus(device), graphs_rank)


@pytest.mark.parametrize("views", [False, True])
def test_ddp(group, device, views):
    gpus(device)
    group(2, ddp_rank, views)
