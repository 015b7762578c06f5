# SPDX-License-Identifier: MIT
"""T3's three operators: a product and the collective that follows it, or goes before it. All ways but PyTorch's fused ones run in CUDA graphs, over
several weights in turns:

  product     PyTorch's product of one rank alone
  exchange    the collective alone, NCCL's or fccd's, whichever takes less
  NCCL        the product and NCCL's collective, in sequence
  collective  the product and fccd's collective, in sequence
  PyTorch     fused_matmul_reduce_scatter, fused_all_gather_matmul, by stream; gemm_all_reduce: the product into symmetric memory and two_shot_all_reduce_
  ring        fcc.RingReduceScatter, fcc.RingAllGather around PyTorch's product: copy engines, and no multiprocessor for the exchange
  pieces      fccd's operator, fused, by cuBLAS in pieces (FCC_FUSED=pieces)
  tiles       the same by one kernel, tile by tile (FCC_FUSED=tiles)
  fccd        the operator, schedule auto

They are timed in turns, some calls of each, in another order each time: a GPU at its limit of power is slower some tenths of a second later, whoever comes then.

The floor of a row is the longer of its product, as measured, and its bytes at the link rate of the run. A shape takes from 2 s to 10 s. The shapes come in an
order that the seed draws, so a run that ends early has had some of each kind. Which goals there are: judge().
"""
import math
import os
import random
import statistics

from . import figures, inputs, shapes
from .collectives import FCCD, JOB, NCCL, join
from .decode import PRODUCT, differ, differing, said

EXCHANGE, COLLECTIVE, PYTORCH, RING, PIECES, TILES = "exchange", "collective", "PyTorch", "ring", "pieces", "tiles"
WAYS = (PRODUCT, EXCHANGE, NCCL, COLLECTIVE, PYTORCH, RING, PIECES, TILES, FCCD)
WISHES = (PIECES, TILES)  # what FCC_FUSED may be; each has a communicator
OTHERS = (NCCL, COLLECTIVE, PYTORCH, RING)  # what fccd is compared with
TURNS, SAMPLES_LEAST, SAMPLES_MOST, SAMPLED_S = 5, 2, 6, 0.03  # of a turn: samples, and how long they take
ROWS_CHECKED = 32
FREE_US = 6  # what "1.25 x floor + 6 us" allows beside the ratio


def ways_of(shape):
    return tuple(way for way in WAYS if way != RING or shape.kind != shapes.GEMM_ALL_REDUCE)


class Layer:
    """A shape's inputs on this rank, and the ways: each takes the number of a set of inputs, and returns its result. Rows are checked only
    where `checked` says, as a reference of all would take longer than all else. ring: RingReduceScatter, RingAllGather."""

    def __init__(self, at, copies, fcc, comm):
        self.at, self.torch, self.fcc, self.comm = at, at.torch, fcc, comm
        self.shape, self.copies = at.shape, copies
        self.gathers, self.scatters = (self.shape.kind == kind for kind in (shapes.ALL_GATHER_GEMM, shapes.GEMM_REDUCE_SCATTER))
        self.sets = [self.made(at.rank, i) for i in range(copies)]
        m, share = self.shape.m, self.shape.m // at.ranks
        first, rows = (at.rank * share, share) if self.scatters else (0, m)  # of the result here
        self.checked = self.torch.linspace(0, rows - 1, min(ROWS_CHECKED, rows), device=at.device).long()
        self.wanted = self.reference(first + self.checked, copies - 1)  # of the last call of a graph
        self.whole = inputs.normal(at, (m, self.shape.k), self.shape.dtype, at.rank, 7) if self.gathers else None  # as if it had been gathered
        self.summed = self.sets[0][0] if self.gathers else self.torch.mm(*self.sets[0])  # what is exchanged
        self.ring, self.now = None, 0

    def made(self, rank, i):
        """a, this rank's rows if they are gathered, and b [K][N]"""
        s = self.shape
        a = inputs.normal(self.at, (s.m // self.at.ranks if self.gathers else s.m, s.k), s.dtype, rank, i, 0)
        return a, inputs.normal(self.at, (s.k, s.n), s.dtype, rank, i, 1)

    def reference(self, rows, i):
        if self.gathers:
            a = self.torch.cat([self.made(rank, i)[0] for rank in range(self.at.ranks)])
            return a[rows].double() @ self.sets[i][1].double()
        total = 0
        for rank in range(self.at.ranks):
            a, b = self.made(rank, i)
            total = total + a[rows].double() @ b.double()
        return total

    def wrong(self, result):
        """How many of the elements that are checked are wrong; -1: the result has another shape."""
        s = self.shape
        if tuple(result.shape) != (s.m // self.at.ranks if self.scatters else s.m, s.n):
            return -1
        return differ(result[self.checked], self.wanted)

    def where(self, result):
        """Of the elements that are checked, which are wrong: their rows in the result, the columns that they are in, and what one of them is."""
        if result.shape[1] != self.shape.n:
            return f"a result of {list(result.shape)}"
        found = result[self.checked]
        wrong = differing(found, self.wanted)
        if not bool(wrong.any()):
            return "none when it was looked at once more"
        rows, columns = self.checked[wrong.any(1)].tolist(), wrong.any(0).nonzero().flatten().tolist()
        row, column = wrong.nonzero()[0].tolist()
        return (f"rows {', '.join(map(str, rows[:8]))}{' ...' if len(rows) > 8 else ''} ({len(rows)} of the {len(found)} that are looked at), "
                f"{len(columns)} columns from {columns[0]} to {columns[-1]}: [{self.checked[row]}][{column}] is {float(found[row, column]):g}, not {float(self.wanted[row, column]):g}")

    # ---- the ways ----

    def product(self, i):
        a, b = self.sets[i]
        return self.torch.mm(self.whole if self.gathers else a, b)

    def exchange_nccl(self, i):
        del i
        return self.exchanged_nccl(self.summed)

    def exchange_fccd(self, i):
        del i
        return self.exchanged_fccd(self.summed)

    def exchanged_nccl(self, x):
        dist, s = self.torch.distributed, self.shape
        if self.gathers:
            whole = x.new_empty(s.m, s.k)
            dist.all_gather_into_tensor(whole, x)
            return whole
        if self.scatters:
            part = x.new_empty(s.m // self.at.ranks, s.n)
            dist.reduce_scatter_tensor(part, x)
            return part
        dist.all_reduce(x)
        return x

    def exchanged_fccd(self, x):
        if self.gathers:
            return self.fcc.all_gather(x, self.comm)
        return self.fcc.reduce_scatter(x, self.comm) if self.scatters else self.fcc.all_reduce(x, self.comm)

    def sequence(self, exchanged, i):
        a, b = self.sets[i]
        return self.torch.mm(exchanged(a), b) if self.gathers else exchanged(self.torch.mm(a, b))

    def nccl(self, i):
        return self.sequence(self.exchanged_nccl, i)

    def collective(self, i):
        return self.sequence(self.exchanged_fccd, i)

    def pytorch(self, symmetric, group, i):
        """symmetric(): memory for the product, of gemm_all_reduce."""
        (a, b), ops = self.sets[i], self.torch.ops.symm_mem
        if self.gathers:
            return ops.fused_all_gather_matmul(a, [b], 0, group)[1][0]
        if self.scatters:
            return ops.fused_matmul_reduce_scatter(a, b, "sum", 0, group)
        y = symmetric()
        self.torch.mm(a, b, out=y)
        return ops.two_shot_all_reduce_(y, "sum", group)

    def ring_open(self):
        """Makes the ring, which measures how many pieces it takes."""
        s, torch = self.shape, self.torch
        share, dtype = s.m // self.at.ranks, getattr(torch, s.dtype)
        if self.gathers:
            self.result = torch.empty(s.m, s.n, dtype=dtype, device=self.at.device)

            def product(first, rows):
                torch.mm(rows, self.sets[self.now][1], out=self.result[first:first + len(rows)])
            self.ring = self.fcc.RingAllGather(product, share, s.k, dtype, comm=self.comm)
        else:
            def product(first, out, add):
                a, b = self.sets[self.now]
                mine = a[first:first + len(out)]
                torch.addmm(out, mine, b, out=out) if add else torch.mm(mine, b, out=out)
            self.ring = self.fcc.RingReduceScatter(product, share, s.n, dtype, comm=self.comm)

    def ringed(self, i):
        """A set's own rows are copied into the ring's input: in a model they would be made there."""
        self.now = i
        if self.gathers:
            self.ring.input.copy_(self.sets[i][0])
        found = self.ring.run()
        return self.result if self.gathers else found

    def fccd(self, i):
        return getattr(self.fcc, self.shape.kind)(*self.sets[i], self.comm)

    def fused(self, comm, i):
        return getattr(self.fcc, self.shape.kind)(*self.sets[i], comm, schedule="fused")


class Session:
    """rank: of rank.py, whose processes have a group of NCCL's. One communicator for all shapes, and one for each wish."""

    def __init__(self, rank, uid):
        self.rank, self.torch, self.dist = rank, rank.torch, rank.torch.distributed
        self.fcc, self.comm = join(rank, uid)
        self.wished = {}
        for wish in WISHES if rank.settings.ranks == 2 and self.comm._member.on_gpu else ():
            found = [self.fcc.unique_id(socket=str(rank.settings.socket), job=JOB) if rank.rank == 0 else None]
            self.dist.broadcast_object_list(found, src=0)
            self.wished[wish] = join(rank, found[0])[1]
            self.asked(self.wished[wish], wish)
        self.asked(self.comm, "auto")

    @staticmethod
    def asked(comm, wish):
        os.environ["FCC_FUSED"] = wish  # until the communicator has what its products need
        comm._member.multiplies()
        del os.environ["FCC_FUSED"]

    def close(self):
        for comm in (*self.wished.values(), self.comm):
            comm.close()

    def measure(self, shape):
        """{"times": {way: [us per call]}, "wrong": {way: how many elements}, "where": {way: which, if any}, "missing": {way: why}, "pieces": of the ring}"""
        self.torch.cuda.empty_cache()
        self.rank.at.shape = shape
        layer = Layer(self.rank.at, self.rank.copies(shape), self.fcc, self.comm)
        found = {"times": {}, "wrong": {}, "where": {}, "missing": {}, "pieces": None}
        ways = [self.way(found, layer, PRODUCT, layer.product, checked=False),
                self.way(found, layer, NCCL, layer.nccl),
                self.way(found, layer, "NCCL alone", layer.exchange_nccl, checked=False),
                self.way(found, layer, "fccd alone", layer.exchange_fccd, checked=False),
                self.way(found, layer, COLLECTIVE, layer.collective)]
        ways += [self.way(found, layer, wish, lambda i, comm=comm: layer.fused(comm, i)) for wish, comm in self.wished.items()]
        ways.append(self.way(found, layer, FCCD, layer.fccd))
        if RING in ways_of(shape):
            layer.ring_open()
            found["pieces"] = layer.ring.pieces
            ways.append(self.way(found, layer, RING, layer.ringed))
        try:
            ways.append(self.pytorch(found, layer))
        except (RuntimeError, AttributeError) as e:  # on all ranks: this PyTorch does not have it, or not for this shape
            found["missing"][PYTORCH] = said(e)
        self.times(found, layer, ways)
        if layer.ring:
            layer.ring.close()
        for comm in (self.comm, *self.wished.values()):
            comm.synchronize()
        alone = [found["times"].pop(f"{whose} alone") for whose in ("NCCL", "fccd")]
        found["times"][EXCHANGE] = min(alone, key=statistics.median)
        return found

    def pytorch(self, found, layer):
        import torch.distributed._symmetric_memory as memory
        group, s, made = self.dist.group.WORLD.group_name, layer.shape, []
        if s.kind == shapes.GEMM_ALL_REDUCE:
            y = memory.empty(s.m * s.n, dtype=self.torch.bfloat16, device=self.rank.at.device)
            memory.rendezvous(y, group)
            made.append(y.view(s.m, s.n))
        else:
            memory.enable_symm_mem_for_group(group)
        return self.way(found, layer, PYTORCH, lambda i: layer.pytorch(lambda: made[0], group, i), graph=s.kind == shapes.GEMM_ALL_REDUCE)

    def way(self, found, layer, name, run, checked=True, graph=True):
        """(its name, what enqueues a sample, [the last call's result], whether that is looked at). It has run, and its result was looked at."""
        torch, last = self.torch, []
        calls = shapes.calls_per_sample(layer.shape, layer.copies)

        def keep(i):
            last[:] = [run(i)]

        def row():
            for i in range(calls):
                keep(i % layer.copies)
        torch.cuda.synchronize()  # inputs are made on another stream
        with torch.cuda.stream(self.rank.stream):
            for i in range(2):
                keep(i % layer.copies)  # a way's first call sets up what a capture must not
            self.rank.stream.synchronize()
            captured = self.rank.captured(keep, calls, layer.copies) if graph else None
            again = captured.replay if captured else row
            self.meet()
            again()
            found["wrong"][name] = layer.wrong(last[0]) if checked else 0
            if found["wrong"][name]:
                found["where"][name] = layer.where(last[0])
        return name, again, last, checked

    def times(self, found, layer, ways):
        """Of each way, in turns; their results are looked at once more."""
        calls = shapes.calls_per_sample(layer.shape, layer.copies)
        one = max(shapes.least_s(layer.shape, layer.at.ranks) * calls, 1e-6)
        samples = max(SAMPLES_LEAST, min(SAMPLES_MOST, int(SAMPLED_S / one)))
        for turn in range(TURNS):
            for name, again, *_ in random.Random(turn).sample(ways, len(ways)):  # the same order on all ranks
                self.meet()
                warmup = -(-self.rank.warmup() // calls) if turn == 0 else 1
                found["times"].setdefault(name, []).extend(self.rank.time(again, calls, samples, warmup))
        with self.torch.cuda.stream(self.rank.stream):
            for name, _, last, checked in ways:
                if checked and not found["wrong"][name] and (wrong := layer.wrong(last[0])):
                    found["wrong"][name], found["where"][name] = wrong, "only after it was timed: " + layer.where(last[0])
            self.rank.stream.synchronize()

    def meet(self):
        self.dist.barrier()
        self.torch.cuda.synchronize()


# ---- goals ----

def times_of(times):
    """{way: us} of what was measured."""
    return {way: value["median"] for way, value in times.items() if isinstance(value, dict)}


def floor(shape, times, ranks, rates):
    """us, or None where the product or the link's rate was not measured."""
    product = times_of(times).get(PRODUCT)
    if not product or not rates.get("link"):
        return None
    return max(product, shape.least(ranks)[2] / rates["link"] * 1e6)


def ratio(times, ways=OTHERS):
    """fccd's time of the best of the others'."""
    known = times_of(times)
    return figures.ratio(known.get(FCCD), [known.get(way) for way in ways])


def judge(results, ranks, rates):
    """[(what it is of, as goals.judge() says)]. results: {row: times} of rows of T3."""
    rows = [row for row in results if row.part == shapes.T3]
    large = [row for row in rows if row.shape.m >= 2048]
    found = []

    def say(text, of, goal, limit, value, together, most=True):
        """value(known times, floor) of each row; None: a row that has none. together: of all values."""
        values = {row.name: v for row in of if (v := value(times_of(results[row]), floor(row.shape, results[row], ranks, rates))) is not None}
        figure = together(values.values()) if values else None
        at = max(values, key=values.get) if values and together is max else None
        verdict = None if figure is None else "met" if (figure <= limit if most else figure >= limit) else "missed"
        if of:
            found.append((f"{shapes.T3} {text}, {len(values)} of {len(of)} shapes",
                          {"goal": goal, "limit": f"{'<=' if most else '>='} {limit:.2f}", "figure": figure, "verdict": verdict,
                           "why": "none has a figure" if figure is None else f"at {at}" if at else None}))

    def over(*ways):
        """fccd's time over the least of these ways'."""
        return lambda known, _: figures.ratio(known.get(FCCD), [known.get(way) for way in ways])

    def speedup(way):
        return lambda known, _: known[NCCL] / known[way] if NCCL in known and way in known else None

    one_sided = [row for row in large if row.shape.kind != shapes.GEMM_ALL_REDUCE]
    say("with one exchange, M >= 2048", one_sided, "fccd / floor, median", 1.06,
        lambda known, least: known[FCCD] / least if least and FCCD in known else None, statistics.median)
    say("with one exchange, M >= 2048", one_sided, f"(fccd - {FREE_US} us) / floor, worst", 1.25,
        lambda known, least: (known[FCCD] - FREE_US) / least if least and FCCD in known else None, max)
    say("gemm_all_reduce, M >= 2048", [row for row in large if row.shape.kind == shapes.GEMM_ALL_REDUCE], "fccd / max(product, exchange), median", 1.12,
        lambda known, _: known[FCCD] / max(known[PRODUCT], known[EXCHANGE]) if {FCCD, PRODUCT, EXCHANGE} <= {*known} else None, statistics.median)
    small = [row for row in rows if row.shape.m < 2048]
    say("M < 2048", small, "fccd / best, worst", 1.0, over(*OTHERS), max)
    say("M < 2048", small, "fccd / NCCL, median", 0.85, over(NCCL), statistics.median)
    eight = [row for row in rows if row.shape.of == "8 devices"]
    say("of eight devices", eight, "NCCL / fccd, geometric mean", 1.60, speedup(FCCD), statistics.geometric_mean, most=False)
    say("of eight devices, M >= 2048", [row for row in eight if row in large and RING in ways_of(row.shape)], "NCCL / ring, geometric mean", 1.35, speedup(RING),
        statistics.geometric_mean, most=False)
    say("of two devices", [row for row in rows if row.shape.of == "2 devices" or (row.shape.of == "8 devices" and 2 * row.shape.k == row.shape.n)], "floor / fccd, median", 0.94,
        lambda known, least: least / known[FCCD] if least and FCCD in known else None, statistics.median, most=False)
    return found


def table(comparison):
    ranks = comparison.ranks.settings.ranks
    rows = [row for row in comparison.chosen if row.part == shapes.T3]
    lines = [["row", "floor", *WAYS, "pieces", "/best", "/NCCL"]]
    missing = {}
    for row in rows:
        result = comparison.results[row]
        times, known = result["times"], times_of(result["times"])
        cells = [figures.cell(known.get(way, times.get(way))) for way in WAYS]
        ratios = [ratio(times), ratio(times, (NCCL,))]
        lines.append([row.name, figures.cell(floor(row.shape, times, ranks, comparison.rates)), *cells, str(result.get("pieces") or "-"),
                      *(f"{r:.2f}" if r and math.isfinite(r) else "-" for r in ratios)])
        for why in result.get("missing", {}).items():
            missing.setdefault(why, []).append(row.name)
    text = figures.table_text(f"{shapes.T3}, {ranks} rank{'s' if ranks > 1 else ''}, us", lines)
    return text + "".join(f"{way}: not there for {len(names)} of {len(rows)} rows, first {names[0]}: {why}\n" for (way, why), names in missing.items())
