# SPDX-License-Identifier: MIT
"""all_to_all_v: counts in a tensor. Against plain torch: results, what has come from whom, derivatives, torch.vmap, torch.compile, and what is
refused. FCC_TEST_DEVICE=cuda, with 2 GPUs or more: the same there, and a step of experts in a CUDA graph that is replayed with other counts."""
import random

import fcc
import pytest
import torch
from ranks import gpus

ROUNDS = 30


def ranks_of(device):
    """How many ranks the tests have."""
    return 3 if device == "cpu" else gpus(device)


def drawn(seed, size, most):
    """counts[source][destination]: some of them 0, some of them all that may be."""
    draw = random.Random(seed)
    return [[draw.choice((0, most // size, draw.randrange(most // size + 1))) for _ in range(size)] for _ in range(size)]


def numbers(rank, seed, *shape, dtype=torch.float32):
    generator = torch.Generator("cpu").manual_seed(1000 * seed + rank)
    return torch.randint(-100, 100, shape, generator=generator, device="cpu").to(dtype)


def wanted(every, counts, rank):
    """What a rank gets."""
    return torch.cat([x[sum(own[:rank]):sum(own[:rank + 1])] for x, own in zip(every, counts)])


def counts_of(comm, counts):
    return torch.tensor(counts[comm.rank], device=comm.device)


def came_of(counts, rank):
    return [row[rank] for row in counts]


def equal(got, want):
    assert torch.equal(got.cpu(), want), (got, want)


def random_rank(comm):
    size, rank = comm.size, comm.rank
    for seed in range(ROUNDS):
        draw = random.Random(seed)
        most, rest = draw.choice((size, 5 * size, 3000 * size)), draw.choice(((), (1,), (7,), (2, 3), (0,)))
        dtype = draw.choice((torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool))
        counts = drawn(seed, size, most)
        every = [numbers(r, seed, most + 3, *rest, dtype=dtype) for r in range(size)]
        x = every[rank].to(comm.device)
        if draw.random() < 0.3:
            x = torch.stack((x, x), x.ndim)[..., 0]
        got, received = fcc.all_to_all_v(x, counts_of(comm, counts), comm, capacity=most + draw.randrange(4))
        assert received.tolist() == came_of(counts, rank) and received.dtype == torch.int64 and received.device == x.device
        equal(got[:sum(came_of(counts, rank))], wanted(every, counts, rank))
        back, returned = fcc.all_to_all_v(got, received, comm, capacity=most + 3)
        assert returned.tolist() == counts[rank]
        equal(back[:sum(counts[rank])], every[rank][:sum(counts[rank])])


def derivatives_rank(comm):
    """Against torch's of the formula for all ranks together. Rows that no rank has sent have the gradient 0."""
    size, rank = comm.size, comm.rank
    most, counts = 4 * size, drawn(5, size, 4 * size)
    every = [torch.randn(most, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(r), requires_grad=True) for r in range(size)]
    losses = [wanted(every, counts, r).pow(3).sum() for r in range(size)]
    first = torch.autograd.grad(sum(losses) + sum(x.sum() * 0 for x in every), every, create_graph=True)
    second = torch.autograd.grad(sum(g.pow(2).sum() for g in first), every)
    x = every[rank].detach().to(comm.device).requires_grad_()
    y, received = fcc.all_to_all_v(x, counts_of(comm, counts), comm, capacity=most)
    assert y.requires_grad and not received.requires_grad
    got, = torch.autograd.grad(y[:sum(received.tolist())].pow(3).sum(), x, create_graph=True)
    torch.testing.assert_close(got.detach().cpu(), first[rank].detach())
    again, = torch.autograd.grad(got.pow(2).sum(), x)
    torch.testing.assert_close(again.cpu(), second[rank])
    value, tangent = torch.func.jvp(lambda x: fcc.all_to_all_v(x, counts_of(comm, counts), comm, capacity=most)[0], (x.detach(),), (2 * x.detach(),))
    n = sum(came_of(counts, rank))
    torch.testing.assert_close(tangent[:n], 2 * value[:n])
    comm.synchronize()


def vmap_rank(comm):
    size, most = comm.size, 4 * comm.size
    counts = [drawn(seed, size, most) for seed in (1, 2)]
    x = torch.stack([numbers(comm.rank, seed, most, 3) for seed in (1, 2)]).to(comm.device)
    each = [fcc.all_to_all_v(one, counts_of(comm, counts[0]), comm, capacity=most) for one in x]
    n = sum(came_of(counts[0], comm.rank))
    got, received = torch.vmap(lambda x: fcc.all_to_all_v(x, counts_of(comm, counts[0]), comm, capacity=most), out_dims=(0, None))(x)
    assert got.shape == (2, most, 3) and received.tolist() == came_of(counts[0], comm.rank)
    for one, (want, _) in zip(got, each):
        equal(one[:n], want[:n].cpu())
    both = torch.stack([counts_of(comm, one) for one in counts])
    got, received = torch.vmap(lambda x, n: fcc.all_to_all_v(x, n, comm, capacity=most))(x, both)
    assert received.tolist() == [came_of(one, comm.rank) for one in counts]
    equal(got[0][:n], each[0][0][:n].cpu())


def compile_rank(comm):
    """The graph is one, whatever the counts are."""
    size, most = comm.size, 8 * comm.size

    def step(x, counts):
        y, received = fcc.all_to_all_v(x, counts, comm, capacity=most)
        return fcc.all_to_all_v(y * 2, received, comm, capacity=x.shape[0])
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        counts = drawn(seed, size, most)
        x = numbers(comm.rank, seed, most, 3).to(comm.device).requires_grad_()
        back, returned = compiled(x, counts_of(comm, counts))
        n = sum(counts[comm.rank])
        assert returned.tolist() == counts[comm.rank]
        equal(back[:n].detach(), 2 * x[:n].detach().cpu())
        gradient, = torch.autograd.grad(back[:n].sum(), x)
        equal(gradient, torch.where((torch.arange(most) < n)[:, None], 2.0, torch.zeros(most, 3)))
    x = torch.ones(2 * size, 3, device=comm.device)
    torch.library.opcheck(torch.ops.fcc.all_to_all_v.default, (x, counts_of(comm, [[2] * size] * size), 2 * size, comm.name))


def test_random(run, device):
    ranks_of(device)
    for size in (1, 2, 3, 4) if device == "cpu" else (2, ranks_of(device)):
        run(size, random_rank)


@pytest.mark.parametrize("function", [derivatives_rank, vmap_rank, compile_rank])
def test_modes(run, device, function):
    if device != "cpu" and function is compile_rank:
        pytest.skip("written for the cpu")
    run(ranks_of(device), function)


# ---- words ----

def words(comm):
    """Calls that are wrong on rank 1 of two, and what both hear."""
    def pick(bad, good):
        return bad if comm.rank == 1 else good
    x, counts = torch.zeros(4, 3, device=comm.device), torch.tensor([2, 2], device=comm.device)

    def call(x=x, counts=counts, capacity=4):
        return lambda: fcc.all_to_all_v(x, counts, comm, capacity=capacity)
    on = comm.device
    return [
        (call(counts=pick(torch.tensor([2, -1], device=on), counts)),
         "rank 1: all_to_all_v: send_counts: -1 for rank 1: allowed are 0 and more, together at most the 4 rows of x"),
        (call(counts=pick(torch.tensor([3, 2], device=on), counts)),
         "rank 1: all_to_all_v: send_counts: 2 for rank 1: allowed are 0 and more, together at most the 4 rows of x"),
        (call(x=pick(x[:, :2], x)), "all_to_all_v: x: elements of a row: rank 1 has 2, rank 0 has 3"),
        (call(x=pick(x.double(), x)), "all_to_all_v: x: dtype: rank 1 has f64, rank 0 has f32"),
        (call(counts=pick(counts.int(), counts)), f"rank 1: all_to_all_v: send_counts: torch.int32, [2] on {on}: allowed are 2 numbers of "
         f"torch.int64 on {on}, one for each rank"),
        (call(counts=pick(counts[:1], counts)), f"rank 1: all_to_all_v: send_counts: torch.int64, [1] on {on}: allowed are 2 numbers of "
         f"torch.int64 on {on}, one for each rank"),
        (call(counts=pick([2, 2], counts)), "rank 1: all_to_all_v: send_counts: list [2, 2]: allowed is a torch.Tensor"),
        (call(capacity=pick(-1, 4)), "rank 1: all_to_all_v: capacity: -1: allowed are 0 and more"),
        (call(capacity=pick("4", 4)), "rank 1: all_to_all_v: capacity: str '4': allowed is a whole number"),
        (call(x=pick(torch.tensor(1.0, device=on), x)), "rank 1: all_to_all_v: x: 0 dimensions: allowed are 1 and more"),
        # On a GPU rank 0's run may have ended before rank 1 finds this (test_gpu_collectives.c).
        *[(call(capacity=pick(3, 4)), "all_to_all_v: capacity: rank 1 receives 4 rows, allowed are 3")] * (on.type == "cpu"),
    ]


def words_rank(comm):
    for number, (call, want) in enumerate(words(comm)):
        with pytest.raises(fcc.ArgumentError) as e:
            call()
            comm.synchronize()
        reasons = (want, want.replace("rank 1 has 2, rank 0 has 3", "rank 0 has 3, rank 1 has 2"),
                   want.replace("rank 1 has f64, rank 0 has f32", "rank 0 has f32, rank 1 has f64"))
        assert e.value.reason in reasons, (number, e.value.reason, want)
        comm.barrier()
        assert fcc.all_reduce(torch.ones(2, dtype=torch.int32, device=comm.device), comm).tolist() == [2, 2]
        comm.synchronize()


def test_words(run, device):
    ranks_of(device)
    run(2, words_rank)


# ---- a CUDA graph ----

def graph_rank(comm, rows):
    """Tokens go to experts and come back, in a graph whose counts a kernel of the graph finds, and the host never does. One replay in ten has counts
    that are wrong: all ranks hear of it, and later replays are right."""
    size, rank = comm.size, comm.rank
    torch.cuda.set_device(comm.device)  # torch.cuda.graph() captures a stream of the current GPU
    x, where = torch.zeros(rows, 4, device=comm.device), torch.zeros(rows, dtype=torch.int64, device=comm.device)
    fcc.all_reduce(torch.ones(1, device=comm.device), comm)  # no capture may be the first collective

    def step():
        order = torch.argsort(where, stable=True)
        counts = torch.zeros(size, dtype=torch.int64, device=comm.device).scatter_add_(0, where, torch.ones_like(where))
        y, received = fcc.all_to_all_v(x[order], counts, comm, capacity=rows * size)
        back, returned = fcc.all_to_all_v(y + 1000 * (rank + 1), received, comm, capacity=rows)
        return torch.empty_like(back).index_copy_(0, order, back), counts, returned
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, counts, returned = step()
    for seed in range(ROUNDS):
        experts = torch.randint(0, size, (rows,), generator=torch.Generator("cpu").manual_seed(seed * size + rank), device="cpu")
        x.copy_(numbers(rank, seed, rows, 4))
        where.copy_(experts)
        graph.replay()
        equal(found, numbers(rank, seed, rows, 4) + 1000 * (experts + 1.0)[:, None])
        assert torch.equal(counts, returned)
    comm.synchronize()


def wrong_in_graph_rank(comm):
    torch.cuda.set_device(comm.device)
    x, counts = torch.ones(8, 4, device=comm.device), torch.zeros(2, dtype=torch.int64, device=comm.device)
    fcc.all_reduce(torch.ones(1, device=comm.device), comm)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, received = fcc.all_to_all_v(x, counts, comm, capacity=16)
    for number in range(10):
        wrong = number % 2 and comm.rank == number // 2 % 2
        counts.copy_(torch.tensor([9, 0] if wrong else [number % 5, 1], device="cpu"))
        graph.replay()
        if number % 2:
            with pytest.raises(fcc.ArgumentError, match=f"rank {number // 2 % 2}: all_to_all_v: send_counts: 9 for rank 0: allowed are 0 and more"):
                comm.synchronize()
        else:
            assert received.tolist() == [[number % 5] * 2, [1] * 2][comm.rank]
        comm.barrier()
    comm.synchronize()


@pytest.mark.parametrize("rows", [8, 1000, 100_000])
def test_graph(run, device, rows):
    if device == "cpu":
        pytest.skip("needs NVIDIA GPUs")
    run(ranks_of(device), graph_rank, rows)


def test_wrong_in_graph(run, device):
    if device == "cpu":
        pytest.skip("needs NVIDIA GPUs")
    ranks_of(device)
    run(2, wrong_in_graph_rank)
