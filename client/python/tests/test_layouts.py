# SPDX-License-Identifier: MIT
"""Operators take tensors however they lie, in the daemon's memory and elsewhere: random shapes, dtypes and layouts against
float64. FCC_TEST_CASES: how many of each operator; FCC_TEST_SEED repeats a run."""
import contextlib
import os
import random
import warnings

import fcc
import numpy
import pytest
import torch
from daemon import Nodes
from ranks import Ranks

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
INTEGERS = (torch.int32, torch.int64)
CASES = int(os.environ.get("FCC_TEST_CASES") or 15)
SEED = int(os.environ.get("FCC_TEST_SEED") or random.randrange(1 << 30))


class Marked(torch.Tensor):
    """A subclass as programs make them: it takes part in everything, and is a tensor."""


def as_they_are(values):
    return values


def same_rows(values):
    return values[:1].expand(values.shape).clone() if values.numel() and values.ndim else values


def same_columns(values):
    return values[..., :1].expand(values.shape).clone() if values.numel() and values.ndim else values


def windows(values):
    """Each row is the one before, moved by one."""
    if values.ndim != 2 or not values.numel():
        return values
    rows, columns = values.shape
    return torch.cat([values.flatten(), values.flatten()])[:rows + columns - 1].as_strided((rows, columns), (1, 1)).clone()


def filled(base, values):
    with torch.no_grad():
        base.copy_(values)
    return base


def padded(make, values):
    if not values.ndim:
        return filled(make((3,), values.dtype)[1], values)
    return filled(make((*values.shape[:-1], values.shape[-1] + 3), values.dtype)[..., 2:2 + values.shape[-1]], values)


def stepped(make, values):
    every = make(tuple(2 * n for n in values.shape), values.dtype)
    return filled(every[tuple(slice(None, None, 2) for _ in values.shape)], values)


def transposed(make, values):
    return filled(make(tuple(reversed(values.shape)), values.dtype).permute(tuple(reversed(range(values.ndim)))), values)


def moved(make, values):
    """At an address that is a multiple of no more than the element's size."""
    return filled(make((values.numel() + 1,), values.dtype)[1:].view(values.shape), values)


def expanded_rows(make, values):
    if not values.numel() or not values.ndim:
        return dense(make, values)
    return filled(make((1, *values.shape[1:]), values.dtype), values[:1]).expand(values.shape)


def expanded_columns(make, values):
    if not values.numel() or not values.ndim:
        return dense(make, values)
    return filled(make((*values.shape[:-1], 1), values.dtype), values[..., :1]).expand(values.shape)


def overlapping(make, values):
    if values.ndim != 2 or not values.numel():
        return dense(make, values)
    rows, columns = values.shape
    flat = make((rows + columns - 1,), values.dtype)
    filled(flat[:columns], values[0])
    filled(flat[columns:], values[1:, -1])
    return flat.as_strided((rows, columns), (1, 1))


def dense(make, values):
    return filled(make(tuple(values.shape), values.dtype), values)


def negated(make, values):
    return torch._neg_view(dense(make, -values)) if values.is_floating_point() else dense(make, values)


def imaginary(make, values):
    """Every second number of a complex tensor, which torch negates when it reads it."""
    if values.dtype != torch.float32:
        return dense(make, values)
    return torch.complex(values, -values).conj().imag


def of_numpy(make, values):
    if values.dtype == torch.bfloat16:
        return dense(make, values)
    return torch.from_numpy(numpy.array(values.numpy(), order="F"))


def of_dlpack(make, values):
    return torch.from_dlpack(padded(make, values))


def parameter(make, values):
    return torch.nn.Parameter(padded(make, values), requires_grad=values.is_floating_point())


def of_inference(make, values):
    with torch.inference_mode():
        return stepped(make, values)


def subclass(make, values):
    return padded(make, values).as_subclass(Marked)


LAYOUTS = {  # what is to be true of the values, and a tensor of them
    "dense": (as_they_are, dense), "padded": (as_they_are, padded), "stepped": (as_they_are, stepped),
    "transposed": (as_they_are, transposed), "moved": (as_they_are, moved), "same rows": (same_rows, expanded_rows),
    "same columns": (same_columns, expanded_columns), "windows": (windows, overlapping), "negated": (as_they_are, negated),
    "imaginary": (as_they_are, imaginary), "numpy": (as_they_are, of_numpy), "dlpack": (as_they_are, of_dlpack),
    "parameter": (as_they_are, parameter), "inference": (as_they_are, of_inference), "subclass": (as_they_are, subclass),
}


class Bed:
    """Random numbers, the same on all ranks, so that each knows all ranks' inputs; and this rank's tensors."""

    def __init__(self, comm, seed):
        self.comm, self.random = comm, random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.said, self.no_grad = [], False

    def size(self, most, least=0):
        return self.random.choice([least, 1, most, self.random.randint(least, most), self.random.randint(least, most)])

    def place(self, make_values):
        """What make_values(rank) says for each rank, as float64 (or integers), and this rank's tensor."""
        every, mine = [], None
        for rank in range(self.comm.size):
            name, near = self.random.choice(list(LAYOUTS)), self.random.random() < 0.6
            transform, lay = LAYOUTS[name]
            values = transform(make_values(rank))
            every.append(values.double() if values.is_floating_point() else values)
            if rank == self.comm.rank:
                self.said.append(f"{name}{' in the daemon' if near else ''} {list(values.shape)} {values.dtype}")
                mine = lay(self._near if near else self._far, values)
                assert mine.shape == values.shape and mine.dtype == values.dtype
                if self.comm.device.type != "cpu":
                    mine = mine.to(self.comm.device)
                self.no_grad |= mine.is_inference()  # such as autograd cannot save
        return every, mine

    def floats(self, dtype, shape_of):
        return self.place(lambda rank: torch.randn(shape_of(rank), generator=self.generator).to(dtype))

    def _near(self, shape, dtype):
        return fcc.empty(shape, dtype=dtype, comm=self.comm)

    @staticmethod
    def _far(shape, dtype):
        return torch.empty(shape, dtype=dtype)

    def grad(self):
        return torch.no_grad() if self.no_grad else contextlib.nullcontext()

    def compare(self, got, want, dtype, terms):
        """terms: the sum of the absolute values of what was added, which rounding is in proportion to."""
        assert got.dtype == dtype and got.shape == want.shape, (self.said, got.shape, want.shape)
        got = got.detach().cpu().double()
        wrong = ~((got - want).abs() <= TOLERANCE[dtype] * (terms + 1e-3))
        assert not wrong.any(), (self.said, got[wrong][:5], want[wrong][:5])


def gemv_case(bed, dtype):
    m, n, k = bed.size(64, 1), bed.size(90), [bed.size(70) for _ in range(bed.comm.size)]
    every_x, x = bed.floats(dtype, lambda rank: (m, k[rank]))
    every_w, w = bed.floats(dtype, lambda rank: (n, k[rank]))
    schedule = bed.random.choice(("auto", "auto", "fused", "sequential"))
    want, terms = (sum(f(a) @ f(b).t() for a, b in zip(every_x, every_w)) for f in (torch.Tensor.double, torch.abs))
    for _ in range(2):
        with bed.grad():
            y = fcc.gemv_all_reduce(x, w, bed.comm, schedule=schedule)
        bed.compare(y, want, dtype, terms)


def counts(bed, most):
    size = bed.comm.size
    return [[bed.size(most) for _ in range(size)] for _ in range(size)]


def received(bed, every, sent):
    rank = bed.comm.rank
    return torch.cat([rows.split(sent[source])[rank] for source, rows in enumerate(every)])


def gemm_case(bed, dtype):
    rank, size = bed.comm.rank, bed.comm.size
    n, k, sent = bed.size(60), [bed.size(50) for _ in range(size)], counts(bed, 20)
    every_a, a = bed.floats(dtype, lambda r: (sum(sent[r]), k[r]))
    every_b, b = bed.floats(dtype, lambda r: (k[r], n))
    want, terms = (received(bed, [f(p) @ f(q) for p, q in zip(every_a, every_b)], sent)
                   for f in (torch.Tensor.double, torch.abs))
    for _ in range(2):
        with bed.grad():
            c = fcc.gemm_all_to_all(a, b, bed.comm, send_rows=sent[rank], recv_rows=[row[rank] for row in sent])
        bed.compare(c, want, dtype, terms)


def sums_case(bed, dtype):
    """gemm_all_reduce, and gemm_reduce_scatter of the same factors."""
    rank, size = bed.comm.rank, bed.comm.size
    rows, n, k = [bed.size(20, 1) for _ in range(size)], bed.size(60), [bed.size(50) for _ in range(size)]
    every_a, a = bed.floats(dtype, lambda r: (sum(rows), k[r]))
    every_b, b = bed.floats(dtype, lambda r: (k[r], n))
    want, terms = (sum(f(p) @ f(q) for p, q in zip(every_a, every_b)) for f in (torch.Tensor.double, torch.abs))
    own = slice(sum(rows[:rank]), sum(rows[:rank + 1]))
    for _ in range(2):
        with bed.grad():
            found, part = fcc.gemm_all_reduce(a, b, bed.comm), fcc.gemm_reduce_scatter(a, b, bed.comm, rows=rows)
        bed.compare(found, want, dtype, terms)
        bed.compare(part, want[own], dtype, terms[own])


def gathered_case(bed, dtype):
    rank, size = bed.comm.rank, bed.comm.size
    rows, n, k = [bed.size(20) for _ in range(size)], [bed.size(60) for _ in range(size)], bed.size(50)
    every_a, a = bed.floats(dtype, lambda r: (rows[r], k))
    every_b, b = bed.floats(dtype, lambda r: (k, n[r]))
    want, terms = (torch.cat([f(p) for p in every_a]) @ f(every_b[rank]) for f in (torch.Tensor.double, torch.abs))
    for _ in range(2):
        with torch.no_grad():  # a weight requires a gradient on all ranks or on none
            found = fcc.all_gather_gemm(a, b, bed.comm, rows=rows)
            behind = fcc.all_gather_gemm_epilogue(a, b, fcc.Epilogue(scale=2.0), bed.comm, rows=rows).y
        bed.compare(found, want, dtype, terms)
        bed.compare(behind, 2 * want, dtype, 2 * terms)


def rows_case(bed, dtype):
    rank = bed.comm.rank
    width, sent = bed.size(70), counts(bed, 20)
    every, rows = bed.floats(dtype, lambda r: (sum(sent[r]), width))
    got = fcc.rows_all_to_all(rows, sent[rank], [row[rank] for row in sent], bed.comm)
    want = received(bed, every, sent)
    assert torch.equal(got.detach().cpu().double(), want), bed.said


def all_reduce_case(bed, dtype):
    shape = tuple(bed.size(6) for _ in range(bed.random.randint(0, 5)))
    every, x = bed.floats(dtype, lambda rank: shape)
    bed.compare(fcc.all_reduce(x, bed.comm), sum(every), dtype, sum(values.abs() for values in every))


def embedding_case(bed, dtype):
    rank, size = bed.comm.rank, bed.comm.size
    tables_per_rank, batch, width = [bed.random.randint(0, 3) for _ in range(size)], bed.size(9), bed.size(40, 1)
    rows = [[bed.size(12, 1) for _ in range(tables_per_rank[r])] for r in range(size)]
    pooling, index = bed.random.choice(("sum", "mean")), bed.random.choice(INTEGERS)
    lengths = [[bed.size(4) for _ in range(tables_per_rank[r] * batch)] for r in range(size)]

    def some_rows(r):
        ids = [bed.random.randrange(rows[r][i // batch]) for i, n in enumerate(lengths[r]) for _ in range(n)]
        return torch.tensor(ids, dtype=torch.long)
    every_table, tables = bed.floats(dtype, lambda r: (sum(rows[r]), width))
    # (indices that are all the first one, or windows of themselves, may be beyond their table: as they are, then)
    layouts = ("dense", "padded", "stepped", "moved", "numpy", "dlpack", "inference")
    every_index, indices = place_as(bed, lambda r: some_rows(r).to(index), layouts)
    every_offset, offsets = place_as(bed, lambda r: torch.tensor([0, *lengths[r]]).cumsum(0).to(index), layouts)
    every_weight, weights = bed.floats(torch.float32, lambda r: (sum(lengths[r]),))
    weighted = pooling == "sum" and bed.random.random() < 0.5
    samples = [batch // size + (r < batch % size) for r in range(size)]
    mine = slice(sum(samples[:rank]), sum(samples[:rank + 1]))
    found = {f: [] for f in (torch.Tensor.double, torch.abs)}
    for r in range(size):
        for t in range(tables_per_rank[r]):
            first = sum(rows[r][:t])
            table = every_table[r][first:first + rows[r][t]]
            at = every_offset[r][t * batch:(t + 1) * batch + 1].long()
            for f, out in found.items():
                bags = []
                for i in range(batch):
                    ids = every_index[r][at[i]:at[i + 1]].long()
                    picked = f(table)[ids] * (f(every_weight[r])[at[i]:at[i + 1], None] if weighted else 1)
                    bags.append(picked.sum(0) / (max(1, len(ids)) if pooling == "mean" else 1))
                out.append(torch.stack(bags)[mine] if bags else torch.zeros(0, width, dtype=torch.double))
    shape = (samples[rank], sum(tables_per_rank), width)
    want, terms = (torch.stack(out, 1) if out else torch.zeros(shape, dtype=torch.double) for out in found.values())
    with bed.grad():
        out = fcc.embedding_all_to_all(tables, indices, offsets, table_rows=rows[rank], tables_per_rank=tables_per_rank,
                                       batch=batch, comm=bed.comm, pooling=pooling,
                                       sample_weights=weights if weighted else None)
    bed.compare(out, want, dtype, terms)


def place_as(bed, make_values, names):
    """Bed.place() in one of these layouts."""
    every, mine = [], None
    for rank in range(bed.comm.size):
        name, near, values = bed.random.choice(names), bed.random.random() < 0.6, make_values(rank)
        every.append(values)
        if rank == bed.comm.rank:
            bed.said.append(f"{name}{' in the daemon' if near else ''} {list(values.shape)} {values.dtype}")
            mine = LAYOUTS[name][1](bed._near if near else bed._far, values).to(bed.comm.device)
            bed.no_grad |= mine.is_inference()
    return every, mine


def layouts_rank(comm, case, seed):
    warnings.simplefilter("ignore")
    for number in range(CASES):
        for dtype in FLOATS:
            bed = Bed(comm, seed + 1000 * number + FLOATS.index(dtype))
            try:
                case(bed, dtype)
            except Exception as e:
                raise AssertionError(f"FCC_TEST_SEED={seed}, case {number} {dtype}: {bed.said}") from e


CASES_OF = [gemv_case, gemm_case, sums_case, gathered_case, rows_case, all_reduce_case, embedding_case]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("case", CASES_OF)
def test_layouts(run, case, size):
    run(size, layouts_rank, case, SEED)


@pytest.fixture(scope="module")
def nodes(device):
    with Nodes(device, 2) as running:
        yield running


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", CASES_OF)
def test_layouts_on_two_nodes(nodes, device, case, size):
    Ranks(nodes, device, size, layouts_rank, case, SEED).results()
