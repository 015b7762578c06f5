# SPDX-License-Identifier: MIT
"""gemm_all_reduce, gemm_reduce_scatter and all_gather_gemm of two ranks by one kernel, whose exchange goes on tile by tile (kernels/gpu/device/tiles), on CUDA
GPUs: compared to the bit, as factors are small whole numbers. FCC_TEST_DEVICE=cuda, with 2 GPUs or more; FCC_TEST_SEED draws other cases."""
import os
import random
import time

import fcc
import pytest
import torch
from ranks import gpus
from tiles_report import differences

KINDS = ("gemm_all_reduce", "gemm_reduce_scatter", "all_gather_gemm")
DTYPES = (torch.float16, torch.bfloat16)
SEED = int(os.environ.get("FCC_TEST_SEED", "1")) * 1000


@pytest.fixture(autouse=True)
def pair(device):
    gpus(device)


def begin(comm, wish):
    """Before the rank's first product: what FCC_FUSED says then holds for the communicator."""
    os.environ["FCC_FUSED"] = wish or "auto"
    torch.cuda.set_device(comm.device)
    assert comm._member.multiplies()


class Case:
    """A product whose numbers of rows and columns are the same on all ranks, and both ranks' factors."""

    def __init__(self, comm, seed, kind=None, m=None, n=None, k=None, even=False, split=None, pads=None, keeps=False):
        """split: of the rows; pads: elements between the rows of each rank's factors; keeps: what is gathered is kept."""
        draw = random.Random(seed)
        self.kind, self.dtype = kind or draw.choice(KINDS), draw.choice(DTYPES)
        m = m or draw.choice((1, 100, 128, 129, 256, 300, 512, 1000, 2048, 4096))
        n, k = n or draw.choice((8, 136, 256, 1000, 2560, 4096)), k or draw.choice((8, 64, 72, 512, 1032))
        self.gathers = self.kind == "all_gather_gemm"
        self.ns, self.ks = [n] * 2, [k] * 2
        if not even and draw.random() < 0.5:  # what only the rank itself knows: none, odd
            odd = [draw.choice((0, 1, n, n + 3)) for _ in range(2)] if self.gathers else [draw.choice((0, 1, k, k + 3)) for _ in range(2)]
            self.ns, self.ks = (odd, self.ks) if self.gathers else (self.ns, odd)
        first = split if split is not None else m // 2 + m % 2 if even or draw.random() < 0.5 else draw.randint(0, m)
        self.rows = [first, m - first]
        self.given = {} if self.kind == "gemm_all_reduce" else {"rows": self.rows}
        pads = pads or [draw.choice((0, 0, 0, 8, 3)) if not even else 0 for _ in range(2)]  # 3: rows that the copy engine does not take, of one rank perhaps
        generator = torch.Generator(device=comm.device).manual_seed(seed)

        def matrix(rank, rows, cols):
            made = torch.randint(-2, 3, (rows, cols + pads[rank]), generator=generator, device=comm.device)
            return made.to(self.dtype)[:, :cols]
        self.a = [matrix(r, self.rows[r] if self.gathers else m, self.ks[r]) for r in range(2)]
        self.b = [matrix(r, self.ks[r], self.ns[r]) for r in range(2)]
        self.first = [0, first]
        self.keeps = self.gathers and (keeps or (not even and draw.random() < 0.3))

    def wanted(self, rank):
        """In f32, in which whole numbers as small as these are exact: an owner's terms, and the other rank's, rounded."""
        if self.gathers:
            return (torch.cat(self.a).double() @ self.b[rank].double()).to(self.dtype)
        terms = [(a.double() @ b.double()).float() for a, b in zip(self.a, self.b)]
        parts = []
        for owner in range(2):
            mine = slice(self.first[owner], self.first[owner] + self.rows[owner])
            parts.append((terms[owner][mine] + terms[1 - owner][mine].to(self.dtype).float()).to(self.dtype))
        return parts[rank] if self.kind == "gemm_reduce_scatter" else torch.cat(parts)

    def call(self, comm):
        a, b = self.a[comm.rank], self.b[comm.rank]
        if not self.keeps:
            return getattr(fcc, self.kind)(a, b, comm, schedule="fused", **self.given)
        found, self.kept = torch.ops.fcc.all_gather_gemm(a, b, comm.name, rows=self.rows, gathered=True, schedule="fused")
        return found

    def differences(self, comm, found):
        lines = differences(self, comm.rank, found, self.wanted(comm.rank))
        if self.keeps:
            lines += [f"what was gathered: {line}" for line in differences(self, comm.rank, self.kept, torch.cat(self.a), factors=False)]
        return lines

    def check(self, comm, found):
        lines = self.differences(comm, found)
        assert not lines, "\n".join([f"{self.kind} {self.dtype}, rows {self.rows}, N {self.ns}, K {self.ks}", *lines])


def late(comm, draw):
    """One of the ranks, or none, is late by up to a millisecond."""
    if draw.randint(0, 2) == comm.rank:
        torch.cuda._sleep(draw.randint(1, 2000000))


def works(comm, case, draw, replays):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        stream.wait_stream(torch.cuda.default_stream())
        late(comm, draw)
        found = case.call(comm)
        again = case.call(comm)
        stream.synchronize()
        case.check(comm, found)
        case.check(comm, again)
        if not replays:
            return
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = [case.call(comm) for _ in range(3)]
        for _ in range(replays):
            for one in captured:
                one.fill_(float("nan"))
            late(comm, draw)
            graph.replay()
        stream.synchronize()
        for one in captured:
            case.check(comm, one)


# What each of them is the first to have, from the simplest on: so the first that is wrong says where to look. Tiles have 256 columns only where there are many tiles.
FIRST = (
    ("a tile of 128 columns on each rank, K of one stage", {"m": 256, "n": 128, "k": 64}),
    ("K shorter than a stage", {"m": 256, "n": 128, "k": 40}),
    ("K of two stages", {"m": 256, "n": 128, "k": 128}),
    ("K longer than the ring of stages, and no multiple", {"m": 256, "n": 128, "k": 64 * 11 + 8}),
    ("both tiles of a unit", {"m": 512, "n": 128, "k": 64}),
    ("fewer columns than a tile", {"m": 256, "n": 72, "k": 64}),
    ("fewer rows than a tile", {"m": 200, "n": 128, "k": 64}),
    ("a unit whose lower tile is short", {"m": 2 * 200, "n": 136, "k": 72}),
    ("several units, one for each cluster", {"m": 1024, "n": 512, "k": 64}),
    ("the first rank has no rows", {"m": 512, "n": 256, "k": 64, "split": 0}),
    ("the second rank has no rows", {"m": 512, "n": 256, "k": 64, "split": 512}),
    ("a rank whose rows the copy engine does not take", {"m": 512, "n": 256, "k": 128, "pads": (3, 0)}),
    ("ranks whose rows the copy engine does not take", {"m": 512, "n": 256, "k": 128, "pads": (3, 3)}),
    ("what is gathered is kept", {"m": 1024, "n": 256, "k": 128, "keeps": True}),
    ("tiles of 256 columns, K of one stage", {"m": 512, "n": 8448, "k": 64}),
    ("... K longer than the ring of stages", {"m": 512, "n": 8448, "k": 64 * 9}),
    ("... fewer columns, and rows", {"m": 500, "n": 8392, "k": 72}),
    ("... several tiles for a cluster", {"m": 2048, "n": 8448, "k": 128}),
    ("slots that are used twice", {"m": 8192, "n": 8448, "k": 64}),
)


def first_rank(comm, kind):
    """Goes on where a result is wrong, and says of all what was. A call that does not end is the last one."""
    begin(comm, "tiles")
    said = []
    for number, (what, sizes) in enumerate(FIRST):
        sizes = dict(sizes)
        if kind == "all_gather_gemm" and sizes["m"] == 8192:
            sizes["m"], sizes["n"], sizes["k"] = 16384, 512, 4608  # in several runs
        case = Case(comm, SEED + 50 + number, kind, even=True, **sizes)
        try:
            for turn in range(2):
                found = case.call(comm)
                comm.synchronize()
                lines = case.differences(comm, found)
                if lines:
                    said += [f"{what} ({case.dtype}, rows {case.rows}, N {case.ns}, K {case.ks}), call {turn + 1}:", *("    " + line for line in lines)]
                    break
        except fcc.Error as e:
            said += [f"{what} ({case.dtype}, rows {case.rows}, N {case.ns}, K {case.ks}), call {turn + 1}: {e}", f"not run: the {len(FIRST) - number - 1} after it"]
            break
    assert not said, f"{kind}, rank {comm.rank}:\n" + "\n".join(said)


@pytest.mark.parametrize("kind", KINDS)
def test_first(run, kind):
    run(2, first_rank, kind, time_limit=10)


def simple_rank(comm, kind):
    """One unit of each part, then some; K as short as a stage, and longer than the ring."""
    begin(comm, "tiles")
    for seed, (m, n, k) in enumerate(((512, 256, 64), (512, 128, 64), (512, 256, 1024), (1024, 1024, 512), (2048, 3072, 384))):
        works(comm, Case(comm, SEED + seed, kind, m, n, k, even=True), random.Random(seed), 0)
    comm.synchronize()


@pytest.mark.parametrize("kind", KINDS)
def test_simple(run, kind):
    run(2, simple_rank, kind)


def cases_rank(comm, seed, count):
    begin(comm, "tiles")
    for i in range(count):
        works(comm, Case(comm, seed + i), random.Random(seed + i), i % 3)
    comm.synchronize()


def test_any_shape(run):
    run(2, cases_rank, SEED + 100, 60)


def large_rank(comm, kind):
    """More tiles than there are slots, of which each is used several times."""
    begin(comm, None)
    for seed, (m, n, k) in enumerate(((8192, 20480, 64), (8192, 8192, 128), (4096, 12288, 512), (6000, 18440, 40))):
        if kind == "all_gather_gemm":
            n, k = k * 8, n  # in several runs
        works(comm, Case(comm, SEED + 500 + seed, kind, m, n, k, even=seed < 3), random.Random(seed), 4)
    comm.synchronize()


@pytest.mark.parametrize("kind", KINDS)
def test_large(run, kind):
    run(2, large_rank, kind)


def pieces_rank(comm):
    """One rank wishes pieces: so both take them, and the sums are the same."""
    begin(comm, "pieces" if comm.rank else "tiles")
    for i, kind in enumerate(KINDS):
        works(comm, Case(comm, SEED + 600 + i, kind, 2048, 1024, 256, even=True), random.Random(i), 2)
    comm.synchronize()


def test_apart(run):
    run(2, pieces_rank)


def beside_rank(comm):
    """All ways of one communicator in turn, in a graph: they share the memory in which things arrive."""
    begin(comm, "tiles")
    cases = [Case(comm, SEED + 700 + i, kind, 1024, 1024, 256, even=True) for i, kind in enumerate(KINDS)]
    wide = torch.ones(2048, 64, device=comm.device), torch.ones(64, 1024, device=comm.device)
    draw = random.Random(SEED)

    def step():
        found = []
        for case in cases:
            found += [case.call(comm), fcc.gemm_reduce_scatter(*wide, comm, schedule="fused"), fcc.all_reduce(wide[0], comm)]
        return found
    wanted = [y.clone() for y in step()]
    for case, found in zip(cases, wanted[::3]):
        case.check(comm, found)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        captured = step()
    for i in range(200):
        if i % 10 == 0:
            late(comm, draw)
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(found, want) for found, want in zip(captured, wanted))
    comm.synchronize()


def test_beside_others(run):
    run(2, beside_rank)


def differ_rank(comm, kind):
    """What one rank does differently is said on all, and the communicator goes on."""
    begin(comm, "tiles")

    def call(m=512, n=256, k=128, dtype=torch.bfloat16):
        a, b = torch.ones(m, k, dtype=dtype, device=comm.device), torch.ones(k, n, dtype=dtype, device=comm.device)
        return getattr(fcc, kind)(a, b, comm, schedule="fused")
    odd = comm.rank == 1
    other = {"k": 256} if kind == "all_gather_gemm" else {"n": 512}
    for change, words in (({"dtype": torch.float16}, "dtype: rank 1 has f16, rank 0 has bf16"), (other, "shape.1.: rank 1 has"),
                          ({"dtype": torch.float32}, "dtype: rank 1 has f32, rank 0 has bf16")):
        with pytest.raises(fcc.Error, match=words):
            call(**(change if odd else {}))
            comm.synchronize()
        assert float(call()[0, 0]) == (128 if kind == "all_gather_gemm" else 256)
        comm.synchronize()


@pytest.mark.parametrize("kind", KINDS)
def test_differ(run, kind):
    run(2, differ_rank, kind)


def ended_rank(comm, kind):
    """A rank ends the communicator while the other one's product waits for it, and later replays end at once."""
    begin(comm, "tiles")
    case = Case(comm, SEED + 800, kind, 2048, 1024, 256, even=True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    case.check(comm, case.call(comm))
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        case.call(comm)
    graph.replay()
    torch.cuda.synchronize()
    if comm.rank == 1:
        comm.abort("rank 1 has had enough")
        return
    with pytest.raises(fcc.Error, match="enough"):
        graph.replay()
        torch.cuda.synchronize()
        comm.synchronize()
        case.call(comm)
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("kind", KINDS)
def test_ended(run, kind):
    run(2, ended_rank, kind)


def absent_rank(comm, kind):
    """A rank that does not come: the other one's product ends at the time limit, which says what waits."""
    begin(comm, "tiles")
    case = Case(comm, SEED + 900, kind, 2048, 1024, 256, even=True)
    case.check(comm, case.call(comm))
    comm.synchronize()
    if comm.rank == 1:
        time.sleep(6)
        return
    with pytest.raises(fcc.Error, match=kind):
        case.call(comm)
        comm.synchronize()
    torch.cuda.synchronize()


@pytest.mark.parametrize("kind", KINDS)
def test_absent(start, kind):
    start(2, absent_rank, kind, time_limit=2).results()
