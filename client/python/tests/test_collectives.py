# SPDX-License-Identifier: MIT
"""Collectives against plain torch in one process (collectives.py): drawn at random, bits that products spoil, derivatives, torch.vmap,
torch.compile, and what is refused, with which words."""
import random
import re
import warnings

import collectives
import fcc
import pytest
import torch
from collectives import COMBINED, MOVED, NAMES, REDUCING, allowed, result, same

CASES = 150


# ---- drawn at random ----

def drawn_bits(dtype, shape, generator):
    """Any bits at all."""
    found = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator, device="cpu")
    return found[..., 0] % 2 == 1 if dtype == torch.bool else found.view(dtype).reshape(shape)


def drawn_numbers(dtype, shape, generator):
    found = torch.randint(-128, 128, shape, generator=generator, device="cpu")
    return (found / 8).to(dtype) if dtype.is_floating_point else found % 2 == 1 if dtype == torch.bool else found.to(dtype)


SPECIALS = (0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"))


def drawn_floats(dtype, shape, generator):
    """What arithmetic has rules of its own for: zeros with signs, infinities, NaNs, subnormals, the largest, and any bits at all."""
    limits = torch.finfo(dtype)
    kinds = torch.tensor([*SPECIALS, limits.max, limits.min, limits.tiny, limits.tiny / 2, -limits.tiny / 8, 1 + limits.eps], dtype=dtype, device="cpu")
    found = kinds[torch.randint(0, len(kinds), shape, generator=generator, device="cpu")]
    return torch.where(torch.rand(shape, generator=generator, device="cpu") < 0.3, drawn_bits(dtype, shape, generator), found)


def laid(comm, x, how):
    """The same tensor with other strides, or elsewhere."""
    ways = (lambda: x, lambda: fcc.to_daemon(x, comm), lambda: torch.stack((x, x), x.ndim)[..., 0],
            lambda: x.t().contiguous().t() if x.ndim == 2 else x,
            lambda: fcc.to_daemon(torch.cat((x, x)), comm)[len(x):] if x.ndim else x)
    return ways[how % len(ways)]()


class Case:
    """A call, the same on all ranks: its name, all ranks' x, and its arguments for this rank and for collectives.result()."""

    def __init__(self, number, rank, size, draw, values=None, name=None, dtype=None):
        self.name = name or draw.choice(NAMES)
        reductions = [how for how in COMBINED if self.name in REDUCING]
        self.dtype = dtype or draw.choice([dtype for dtype in MOVED if not reductions or any(allowed(dtype, how) for how in reductions)])
        generator = torch.Generator("cpu").manual_seed(number)
        rest = tuple(draw.choice((0, 1, 2, 3, 70)) for _ in range(draw.randrange(3)))
        rows, own = draw.randrange(5) * size, [draw.choice((0, 1, 2, 7, 300)) for _ in range(size)]
        self.given, self.world, self.uneven = {}, {}, draw.random() < 0.6
        heights = [rows] * size
        if self.name in ("reduce", "broadcast", "gather", "scatter"):
            self.given["root"] = self.world["root"] = draw.randrange(size)
        if reductions:
            self.given["reduction"] = self.world["reduction"] = draw.choice([how for how in reductions if allowed(self.dtype, how)])
            values = values or (drawn_floats if self.dtype.is_floating_point and draw.random() < 0.5 else drawn_numbers)
        if self.name in ("reduce_scatter", "scatter", "all_gather", "gather") and self.uneven:
            self.given["counts"] = self.world["counts"] = own
            heights = own if self.name in ("all_gather", "gather") else [sum(own)] * size
        if self.name == "all_to_all" and self.uneven:
            table = [[draw.choice((0, 0, 1, 2, 50)) for _ in range(size)] for _ in range(size)]
            heights, self.world["table"] = [sum(row) for row in table], table
            self.given |= {"send_counts": table[rank], "receive_counts": [row[rank] for row in table]}
        if self.name == "send_receive":
            heights = own
            peers = draw.choice(([(r + 1) % size for r in range(size)], [None] * size, [size - 1, *[None] * (size - 1)], [0] + [None] * (size - 1)))
            self.world["peers"] = peers
            source = peers.index(rank) if rank in peers else None
            self.given |= {"destination": peers[rank], "source": source, "shape": None if source is None else [own[source], *rest]}
        values = values or drawn_bits
        self.every = [values(self.dtype, (height, *rest), generator) for height in heights]
        if self.name in ("all_reduce", "reduce", "broadcast") and draw.random() < 0.1:
            self.every = [values(self.dtype, (), generator) for _ in range(size)]

    def want(self, rank, every=None):
        return result(self.name, every or self.every, rank, **self.world)

    def run(self, comm, x):
        return getattr(fcc, self.name)(x, comm, **self.given)


def random_rank(comm, seed):
    warnings.simplefilter("error")
    draw = random.Random(seed)
    for number in range(CASES):
        case = Case(seed * 1000 + number, comm.rank, comm.size, draw)
        how = draw.randrange(5)
        got = case.run(comm, laid(comm, case.every[comm.rank].to(comm.device), how))
        try:
            same(got, case.want(comm.rank), arithmetic=case.name in REDUCING)
        except AssertionError as e:
            raise AssertionError(f"case {number}: {case.name} of {case.dtype}, {case.world}, laid {how}: {e}") from None


def placeholders_rank(comm):
    """x of ranks that send nothing is only like the root's: it is not read."""
    size, rank = comm.size, comm.rank
    torch.set_default_device(comm.device)
    whole = torch.arange(3.0 * size).view(size, 3)
    like = whole if rank == 0 else torch.full((), float("nan")).expand(size, 3)
    same(fcc.broadcast(like, comm), whole)
    same(fcc.scatter(like, comm), whole[rank:rank + 1])
    same(fcc.scatter(whole if rank == 0 else torch.empty(0, 3), comm, counts=[size] + [0] * (size - 1)), whole if rank == 0 else whole[:0])
    assert fcc.barrier(comm) is None


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_random(run, size):
    run(size, random_rank, size)
    run(size, placeholders_rank)


# ---- what products spoiled ----

def exact_rank(comm):
    size, rank = comm.size, comm.rank
    torch.set_default_device(comm.device)
    for width in (8191, 8192, 100_003):  # long rows
        rows = torch.arange(size * width, dtype=torch.float32).view(size, width) + rank
        got = fcc.all_to_all(rows, comm)
        same(got, torch.stack([torch.arange(rank * width, (rank + 1) * width, dtype=torch.float32) + source for source in range(size)]))
        same(fcc.rows_all_to_all(rows, [1] * size, [1] * size, comm), got)
    x = torch.ones(257)
    x[1], x[2], x[3] = float("inf"), float("nan"), -0.0
    want = torch.full((257,), float(size))
    want[1], want[2], want[3] = float("inf"), float("nan"), -0.0
    same(fcc.all_reduce(x, comm), want, arithmetic=True)
    same(fcc.reduce_scatter(x, comm, counts=[257] + [0] * (size - 1)), want if rank == 0 else want[:0], arithmetic=True)
    same(fcc.all_to_all(x.repeat(size), comm), x.repeat(size))
    zeros = fcc.all_reduce(torch.full((5,), -0.0), comm)
    assert zeros.signbit().all()
    assert fcc.all_reduce(torch.tensor([2 ** 62, -1, 7]), comm, reduction="max").tolist() == [2 ** 62, -1, 7]
    assert fcc.all_reduce(torch.tensor([2 ** 53 + 1]), comm).item() == size * (2 ** 53 + 1)  # a float would round it
    tiny = torch.full((9,), 1e-40)
    same(fcc.all_reduce(tiny, comm, reduction="max"), tiny)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):  # the same bits on all ranks
        drawn = torch.randn(10_007, generator=torch.Generator("cpu").manual_seed(rank), device="cpu").to(comm.device, dtype)
        total = fcc.all_reduce(drawn, comm)
        everywhere = fcc.all_gather(total.view(1, -1), comm)
        for other in everywhere:
            same(other, total)


def large_rank(comm):
    """More than 2^31 elements."""
    n = (1 << 31) + 5
    if comm.rank == 0:
        x = fcc.empty(n, dtype=torch.uint8, comm=comm)
        x[:3], x[-4:] = torch.tensor([1, 2, 3], dtype=torch.uint8), torch.tensor([4, 5, 6, 7], dtype=torch.uint8)
        x[1 << 30] = 8
        fcc.send_receive(x, comm, destination=1)
        return
    got = fcc.send_receive(torch.empty(0, dtype=torch.uint8), comm, source=0, shape=[n])
    assert got.shape == (n,) and got[:3].tolist() == [1, 2, 3] and got[-4:].tolist() == [4, 5, 6, 7] and got[1 << 30] == 8


def test_large(run, device):
    free = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable")) >> 20
    if device != "cpu" or free < 8:
        pytest.skip(f"{free} GiB of memory: 8 are needed" if device == "cpu" else "written for the cpu")
    run(2, large_rank, heap_bytes=None, time_limit=120)  # GiBs that the host has not given to this machine before may take it a minute


# ---- derivatives ----

def losses(case, every, weights):
    """Each rank's loss, by the formulas."""
    return [(case.want(rank, every).pow(2) * weight).sum() for rank, weight in enumerate(weights)]


def gradients_rank(comm, dtype):
    """Backward, and backward of that, against torch's of the formulas for all ranks together."""
    draw = random.Random(5)
    for number, name in enumerate(NAMES * 4):
        case = Case(number, comm.rank, comm.size, draw, drawn_numbers, name, dtype)
        if case.given.get("reduction", "sum") not in ("sum", "average"):
            case.given["reduction"] = case.world["reduction"] = "average" if number % 2 else "sum"
        if name == "scatter" or name == "broadcast":  # all have a tensor like the root's
            case.every = [torch.randn_like(case.every[0]) for _ in case.every]
        generator = torch.Generator().manual_seed(number)
        weights = [torch.randn(case.want(rank).shape, generator=generator, dtype=dtype) for rank in range(comm.size)]
        others = [torch.randn(x.shape, generator=generator, dtype=dtype) for x in case.every]
        leaves = [x.clone().requires_grad_() for x in case.every]
        nothing = sum(leaf.sum() * 0 for leaf in leaves)  # there is a graph also where nobody's x goes anywhere
        first = torch.autograd.grad(sum(losses(case, leaves, weights)) + nothing, leaves, create_graph=True, materialize_grads=True)
        second = torch.autograd.grad(sum((g * other).sum() for g, other in zip(first, others)) + nothing, leaves, materialize_grads=True)
        x = case.every[comm.rank].clone().requires_grad_()
        got, = torch.autograd.grad((case.run(comm, x).pow(2) * weights[comm.rank]).sum(), x, create_graph=True)
        again, = torch.autograd.grad((got * others[comm.rank]).sum(), x)
        for found, want in ((got, first[comm.rank]), (again, second[comm.rank])):
            torch.testing.assert_close(found.detach(), want.detach(), msg=lambda text, case=case: f"{case.name} {case.world}: {text}")
        tangents = [torch.randn(x.shape, generator=generator, dtype=dtype) for x in case.every]
        value, tangent = torch.func.jvp(lambda x, case=case: case.run(comm, x), (case.every[comm.rank],), (tangents[comm.rank],))
        torch.testing.assert_close(tangent, case.want(comm.rank, tangents))
        torch.testing.assert_close(value, case.want(comm.rank))


def replicated_rank(comm):
    """All ranks use the sum alike: the loss counts once."""
    for how, factor in (("sum", 1.0), ("average", 1.0 / comm.size)):
        x = torch.full((3,), comm.rank + 1.0, requires_grad=True)
        fcc.all_reduce(x, comm, reduction=how, replicated=True).pow(2).sum().backward()
        total = comm.size * (comm.size + 1) / 2 * factor
        assert torch.allclose(x.grad, torch.full((3,), 2 * total * factor))


def no_derivative_rank(comm):
    size, rank = comm.size, comm.rank
    for name in REDUCING:
        for how in ("product", "min", "max"):
            x = torch.ones(size, requires_grad=True)
            y = getattr(fcc, name)(x, comm, reduction=how)
            with pytest.raises(fcc.ArgumentError) as e:
                y.sum().backward()
            assert e.value.reason == f"rank {rank}: {name}: reduction: {how}: it has no derivative: allowed there are sum and average"
            with pytest.raises(fcc.ArgumentError, match="it has no derivative"):
                torch.func.jvp(lambda x, name=name, how=how: getattr(fcc, name)(x, comm, reduction=how), (torch.ones(size),), (torch.ones(size),))
    assert not fcc.all_reduce(torch.ones(2, dtype=torch.int32), comm).requires_grad
    x = torch.ones(size, requires_grad=True)
    assert fcc.all_gather(x.to(torch.float8_e5m2), comm).dtype == torch.float8_e5m2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_derivatives(run, device, size):
    if device != "cpu":
        pytest.skip("written for the cpu; on GPUs: test_streams.py")
    run(size, gradients_rank, torch.float64)
    run(size, gradients_rank, torch.float32)
    run(size, replicated_rank)
    run(size, no_derivative_rank)


# ---- modes ----

def vmap_rank(comm):
    """As one call for each index."""
    draw = random.Random(9)
    for number, name in enumerate(NAMES * 4):
        case = Case(number, comm.rank, comm.size, draw, drawn_numbers, name, torch.float32)
        x = case.every[comm.rank].to(comm.device)
        for count, dim in ((2, 0), (3, x.ndim), (1, 0)):
            every = torch.stack([x + i for i in range(count)], dim)
            want = torch.stack([case.run(comm, one) for one in every.unbind(dim)])
            got = torch.vmap(lambda x, case=case: case.run(comm, x), dim)(every)
            assert torch.equal(got, want), (case.name, case.world, dim)
    gradient = torch.vmap(torch.func.grad(lambda x: fcc.reduce(x, comm).pow(2).sum()))(torch.ones(3, 2, device=comm.device))
    assert (gradient == 2.0 * comm.size).all()
    with pytest.raises(fcc.ArgumentError, match="all_gather: x: 0 dimensions"):
        torch.vmap(lambda x: fcc.all_gather(x, comm))(torch.ones(3, device=comm.device))


def every_one(comm, x):
    """Each collective once, and a barrier between them; without arithmetic."""
    size, rank = comm.size, comm.rank
    found = [fcc.all_reduce(x, comm), fcc.all_reduce(x.detach(), comm, reduction="max"), fcc.reduce_scatter(x, comm, reduction="average"),
             fcc.all_gather(x, comm), fcc.all_to_all(x, comm)]
    fcc.barrier(comm)
    counts = [2] + [2 * size - 2] + [0] * (size - 2) if size > 1 else [2]
    return [*found, fcc.broadcast(x, comm, root=size - 1), fcc.reduce(x, comm), fcc.gather(x, comm, root=size - 1),
            fcc.scatter(x, comm, counts=counts),
            fcc.send_receive(x, comm, destination=(rank + 1) % size, source=(rank - 1) % size, shape=[2 * size, 3])]


def compile_rank(comm):
    x = (torch.arange(6.0 * comm.size).view(2 * comm.size, 3) + comm.rank).requires_grad_()
    wanted = every_one(comm, x)
    gradient, = torch.autograd.grad(sum((i + 1) * y.sum() for i, y in enumerate(wanted)), x)
    found = torch.compile(lambda x: every_one(comm, x), fullgraph=True, backend="aot_eager")(x)
    for got, want in zip(found, wanted):
        same(got, want)
    got, = torch.autograd.grad(sum((i + 1) * y.sum() for i, y in enumerate(found)), x)
    torch.testing.assert_close(got, gradient)


def dynamic_rank(comm):
    """Sizes that change do not break the graph."""
    dynamic = torch.compile(lambda x: fcc.all_gather(fcc.reduce_scatter(x, comm), comm), fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (1, 2, 5):
        same(dynamic(torch.ones(rows * comm.size, 2)), torch.full((rows * comm.size, 2), 1.0 * comm.size))


def opcheck(comm, *calls):
    x = torch.randn(2 * comm.size, 3, requires_grad=True, device=comm.device)
    for name, keywords in calls:
        torch.library.opcheck(getattr(torch.ops.fcc, name).default, (x, comm.name), keywords)


def opcheck_rank(comm):
    even = [2] * comm.size
    opcheck(comm, ("all_reduce", {"reduction": "average"}), ("reduce_scatter", {"counts": even}), ("all_gather", {}),
            ("all_to_all", {"send_counts": even, "receive_counts": even}))


def opcheck_roots_rank(comm):
    opcheck(comm, ("broadcast", {"root": comm.size - 1}), ("reduce", {"root": comm.size - 1}), ("gather", {}), ("scatter", {}),
            ("send_receive", {"destination": comm.rank, "source": comm.rank}))


def autocast_rank(comm):
    """Collectives take their tensors as they are."""
    x = torch.ones(comm.size, 2, device=comm.device)
    with torch.autocast(comm.device.type, dtype=torch.bfloat16):
        for y in (fcc.all_reduce(x, comm), fcc.all_gather(x, comm), fcc.reduce_scatter(x, comm), fcc.all_to_all(x, comm), fcc.broadcast(x, comm)):
            assert y.dtype == torch.float32


@pytest.mark.parametrize("function", [vmap_rank, compile_rank, dynamic_rank, opcheck_rank, opcheck_roots_rank, autocast_rank])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_modes(run, device, size, function):
    if device != "cpu" and function in (compile_rank, dynamic_rank):
        pytest.skip("written for the cpu")
    run(size, function)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_exact(run, size):
    run(size, exact_rank)


# ---- words ----

def words(comm):
    """Calls that are wrong on rank 1 of two, and the reason that both ranks get."""
    def pick(bad, good):
        return bad if comm.rank == 1 else good
    x, half = torch.zeros(4, 3), torch.zeros(4, 3).half()
    return [
        (lambda: fcc.all_reduce(pick(x[:3], x), comm), "all_reduce: x: elements: rank 1 has 9, rank 0 has 12"),
        (lambda: fcc.all_reduce(pick(half, x), comm), "all_reduce: x: dtype: rank 1 has f16, rank 0 has f32"),
        (lambda: fcc.all_reduce(pick(x.to(torch.int16), x), comm), "rank 1: all_reduce: x: torch.int16, torch.strided on cpu: allowed are dense "
         "tensors on cpu of float32, float16, bfloat16, int32, int64, uint8, bool, int8, float64, float8_e4m3fn, float8_e5m2"),
        (lambda: fcc.all_reduce(pick(x.to(torch.float8_e4m3fn), x), comm),
         "rank 1: all_reduce: x: dtype f8e4m3: allowed: f32, f16, bf16, i32, i64, u8, i8, f64"),
        (lambda: fcc.all_reduce(pick(x.to(torch.complex64), x), comm), "rank 1: all_reduce: x: torch.complex64, torch.strided on cpu: allowed are "
         "dense tensors on cpu of float32, float16, bfloat16, int32, int64, uint8, bool, int8, float64, float8_e4m3fn, float8_e5m2"),
        (lambda: fcc.all_gather(pick(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8), x), comm),
         "rank 1: all_gather: x: torch.quint8, torch.strided: allowed are dense tensors"),
        (lambda: fcc.broadcast(pick(x.to_sparse(), x), comm), "rank 1: broadcast: x: torch.float32, torch.sparse_coo: allowed are dense tensors"),
        (lambda: fcc.all_reduce(x, comm, reduction=pick("max", "sum")), "all_reduce: reduction: rank 1 has max, rank 0 has sum"),
        (lambda: fcc.all_reduce(x, comm, reduction=pick("most", "sum")),
         'rank 1: all_reduce: reduction: "most": allowed are sum, product, min, max, average, and, or, xor'),
        (lambda: fcc.all_reduce(x, comm, reduction=pick(3, "sum")), "rank 1: all_reduce: reduction: int 3: allowed is a string"),
        (lambda: fcc.all_reduce(x, comm, reduction=pick("xor", "sum")), "rank 1: all_reduce: reduction: xor: not allowed of f32"),
        (lambda: fcc.all_reduce(pick(x.bool(), x), comm), "rank 1: all_reduce: reduction: sum: not allowed of bool"),
        (lambda: fcc.all_reduce(pick(x.int(), x), comm, reduction="average"), "rank 1: all_reduce: reduction: average: not allowed of i32"),
        (lambda: fcc.reduce_scatter(pick(x[:3], x), comm), "rank 1: reduce_scatter: x: 3 rows: allowed without counts are multiples of 2"),
        (lambda: fcc.reduce_scatter(pick(x[:2], x), comm), "reduce_scatter: x: elements: rank 1 has 6, rank 0 has 12"),
        (lambda: fcc.reduce_scatter(x, comm, counts=pick([1, 2], [1, 3])),
         "rank 1: reduce_scatter: counts: [1, 2]: allowed are 2 numbers, 0 and more, one for each rank, 4 in all"),
        (lambda: fcc.reduce_scatter(x, comm, counts=pick([2, 2], [1, 3])), "reduce_scatter: counts: they are 9 elements together, x has 12"),
        (lambda: fcc.reduce_scatter(pick(torch.tensor(1.0), x), comm), "rank 1: reduce_scatter: x: 0 dimensions: allowed are 1 and more"),
        (lambda: fcc.all_gather(pick(x[:3], x), comm),
         "all_gather: x: elements that are expected of all ranks: rank 1 expects 18, rank 0 expects 24"),
        (lambda: fcc.all_gather(x, comm, counts=pick([4, 3], [4, 4])), "rank 1: all_gather: counts: [4, 3]: this rank has 4 rows"),
        (lambda: fcc.all_gather(pick(x[:, :2], x), comm, counts=[4, pick(4, 4)]),
         "all_gather: x: elements that are expected of all ranks: rank 1 expects 16, rank 0 expects 24"),
        (lambda: fcc.all_gather(x, comm, counts=pick("44", None)), "rank 1: all_gather: counts: str '44': allowed is a list of whole numbers"),
        (lambda: fcc.all_to_all(x, comm, send_counts=pick([1, 1], [2, 2]), receive_counts=[2, 2]),
         "rank 1: all_to_all: send_counts: [1, 1]: allowed are 2 numbers, 0 and more, one for each rank, 4 in all"),
        (lambda: fcc.all_to_all(x, comm, send_counts=[2, 2], receive_counts=pick([1, 2], [2, 2])),
         "all_to_all: receive_counts: rank 1 expects 1 rows of rank 0, which sends 2"),
        (lambda: fcc.all_to_all(x, comm, **pick({"send_counts": [2, 2]}, {})),
         "rank 1: all_to_all: send_counts, receive_counts: allowed are both, or none (then all ranks have as many rows, and each rank gets the "
         "same share)"),
        (lambda: fcc.all_to_all(pick(x[:, :2], x), comm), "all_to_all: x: elements of a row: rank 1 has 2, rank 0 has 3"),
        (lambda: fcc.all_to_all(pick(x.double(), x), comm), "all_to_all: x: dtype: rank 1 has f64, rank 0 has f32"),
        (lambda: fcc.broadcast(pick(x[:3], x), comm), "broadcast: x: elements: rank 1 has 9, rank 0 has 12"),
        (lambda: fcc.broadcast(x, comm, root=pick(2, 0)), "rank 1: broadcast: root: 2: allowed are 0 to 1"),
        (lambda: fcc.broadcast(x, comm, root=pick(1, 0)), "broadcast: root: rank 1 has 1, rank 0 has 0"),
        (lambda: fcc.broadcast(x, comm, root=pick(0.5, 0)), "rank 1: broadcast: root: float 0.5: allowed is a whole number"),
        (lambda: fcc.reduce(pick(x[:3], x), comm), "reduce: x: elements: rank 1 has 9, rank 0 has 12"),
        (lambda: fcc.gather(pick(x[:3], x), comm), "gather: x: the ranks' have 21 elements together, expected are 24"),
        (lambda: fcc.gather(pick([1], x), comm), "rank 1: gather: x: list [1]: allowed is a torch.Tensor"),
        (lambda: fcc.scatter(x, comm, counts=pick([0, 5], [1, 3])), "scatter: counts: they are 18 elements together, x has 12"),
        (lambda: fcc.send_receive(x, comm, destination=1 - comm.rank, source=pick(None, 1)),
         "send_receive: destination: rank 0 has 1, rank 1's source is None"),
        (lambda: fcc.send_receive(x, comm, destination=1 - comm.rank, source=1 - comm.rank, shape=pick([3, 3], [4, 3])),
         "send_receive: shape: rank 1 expects 9 elements of rank 0, which sends 12"),
        (lambda: fcc.send_receive(x, comm, destination=pick(7, 0), source=comm.rank), "rank 1: send_receive: destination: 7: allowed are 0 to 1, "
         "and None"),
        (lambda: fcc.send_receive(x, comm, destination=comm.rank, source=comm.rank, shape=pick([-1, 3], None)),
         "rank 1: send_receive: shape: [-1, 3]: allowed are numbers, 0 and more"),
        (lambda: fcc.reduce(x, comm, root=pick(1 << 40, 0)), "rank 1: reduce: root: 1099511627776: allowed are 0 to 1"),
    ]


def many_rank(comm):
    at = {"device": comm.device}
    x = [torch.full((n,), comm.rank + n, dtype=dtype, **at) for n, dtype in ((3, torch.float32), (0, torch.int32), (5, torch.int64))]
    for reduction, want in (("sum", 2 * 3 + 1), ("max", 3 + 1)):
        found = fcc.all_reduce_many(x, comm, reduction=reduction)
        assert [tuple(y.shape) for y in found] == [(3,), (0,), (5,)] and [y.dtype for y in found] == [t.dtype for t in x]
        assert found[0].tolist() == [want] * 3
    assert fcc.all_reduce_many([], comm) == []
    assert [y.tolist() for y in fcc.all_reduce_many((t for t in x[:2]), comm)] == [[7, 7, 7], []]
    weight = torch.ones(2, requires_grad=True, **at)
    fcc.all_reduce_many([weight, x[0]], comm)[0].sum().backward()
    assert weight.grad.tolist() == [2.0, 2.0]
    differ = [torch.ones(n, **at) for n in (2, 2 + comm.rank, 1)]  # the last one runs on all ranks
    with pytest.raises(fcc.ArgumentError, match="all_reduce: x: elements: rank 1 has 3, rank 0 has 2"):
        fcc.all_reduce_many(differ, comm)
        if comm.device.type == "cuda":
            comm.synchronize()
    with pytest.raises(fcc.ArgumentError, match="all_reduce_many: x: int 5: allowed is a list of torch.Tensor|all_reduce: x: int"):
        fcc.all_reduce_many(5, comm)
    assert fcc.all_reduce(torch.ones(2, dtype=torch.int32, **at), comm).tolist() == [2, 2]


def test_many(run):
    run(2, many_rank)


def words_rank(comm):
    for call, want in words(comm):
        with pytest.raises(fcc.ArgumentError) as e:
            call()
        assert e.value.reason == want, (e.value.reason, want)
        first = re.search(r"rank (\d)", want)
        assert first is None or e.value.rank == int(first[1]), e.value
        assert fcc.all_reduce(torch.ones(2, dtype=torch.int32), comm).tolist() == [2, 2]
    with pytest.raises(fcc.ArgumentError, match="rank 1 calls all_gather"):
        (fcc.all_gather if comm.rank else fcc.all_reduce)(torch.ones(2), comm)
    with pytest.raises(fcc.ArgumentError) as e:
        if comm.rank == 1:
            fcc.send_receive(torch.zeros(4, 3), comm, source=0, shape=[5, 3])
        else:
            fcc.send_receive(torch.zeros(4, 3), comm, destination=1)
    assert e.value.reason == "send_receive: shape: rank 1 expects 15 elements of rank 0, which sends 12" and e.value.rank == 1
    with pytest.raises(fcc.ArgumentError) as e:  # fewer than expected: all ranks know
        if comm.rank == 1:
            fcc.all_to_all(torch.zeros(0, 3), comm, send_counts=[0, 0], receive_counts=[5, 0])
        else:
            fcc.all_to_all(torch.zeros(4, 3), comm, send_counts=[0, 4], receive_counts=[0, 0])
    assert e.value.reason == "all_to_all: receive_counts: rank 1 expects 5 rows of rank 0, which sends 4" and e.value.rank == 1
    fcc.barrier(comm)


def test_words(run, device):
    if device != "cpu":
        pytest.skip("written for the cpu; on GPUs: test_streams.py")
    run(2, words_rank)
