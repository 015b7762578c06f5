# SPDX-License-Identifier: MIT
"""The rows that compare_gpu measures, what they must at least move and compute, and so how fast they can be at best.

Plain data and arithmetic; needs neither torch nor a GPU. All sizes are those of one rank, but for the batch of the embedding,
which is that of all ranks together. goals.py says which of them have goals.
"""
import random
from dataclasses import dataclass

NOOP = "noop"
GEMV = "gemv_all_reduce"
GEMM = "gemm_all_to_all"
EMBEDDING = "embedding_all_to_all"
ALL_REDUCE = "all_reduce"
AUTO = "auto"
TORCH_OPS = "torch.ops"
COLLECTIVES = "collectives"
DECODE = "decode"
NORM = "all_reduce+norm"
EXAMPLES = "examples"
T3 = "t3"
BESIDE = "beside"
GEMM_REDUCE_SCATTER, ALL_GATHER_GEMM, GEMM_ALL_REDUCE = "gemm_reduce_scatter", "all_gather_gemm", "gemm_all_reduce"
# What a run is made of: the operators, and what is measured with one of them but asks for something else.
PARTS = (GEMV, ALL_REDUCE, NOOP, TORCH_OPS, GEMM, EMBEDDING, AUTO, COLLECTIVES, DECODE, NORM, EXAMPLES, BESIDE, T3)
ROWS = ("full", "issue", "quick", "collectives", "decode", "t3")
ROWS_OF = {COLLECTIVES: "collectives", DECODE: "decode", NORM: "decode", EXAMPLES: "decode", T3: "t3", BESIDE: "t3"}  # which rows a part belongs to; all others: issue

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ERROR_LIMITS = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-2}  # relative, Frobenius
SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "": ""}
TABLE_ROWS = 100000
ZIPF = 1.05
CACHES_TO_PASS = 4  # inputs are rotated until this many L2 caches have gone by
PREPARED_MOST = 16  # operators that are prepared at a time; the inputs of as many still pass several caches
GEMV_MOST_M = 64
POWER_OPERATIONS = 1e11  # of a product
ALL_REDUCE_K = 8  # as good as no product


@dataclass(frozen=True)
class Gemv:
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    rotates: bool = True  # False: only its AllReduce counts, and the weights may stay in a cache
    operator = GEMV
    group = 8  # calls that are timed together, at least: one alone is as short as what surrounds it
    traces = 9

    @property
    def name(self):
        return f"M{self.m} N{self.n} K{self.k}"

    def rotated_bytes(self):
        return self.n * self.k * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        """(bytes of memory, floating-point operations, bytes that leave a GPU). What the AllReduce sends does not count: it is
        short, and its time is latency."""
        del ranks
        return self.rotated_bytes() if self.rotates else 0, 0, 0


@dataclass(frozen=True)
class Gemm:
    m: int
    n: int
    k: int
    dtype: str = "float16"
    operator = GEMM
    group = 2
    traces = 5

    @property
    def name(self):
        return f"M{self.m} N{self.n} K{self.k}"

    @property
    def large(self):
        """So that matrix units limit it, and its goals are set against the product alone."""
        return self.m >= 4096

    @property
    def takes_all_power(self):
        """Whether its matrix units take all the power that a GPU may, so that clocks swing between 1.4 and 2 GHz."""
        return 2 * self.m * self.n * self.k >= POWER_OPERATIONS

    def rotated_bytes(self):
        return (self.m + self.n) * self.k * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        result = self.m * self.n * ELEMENT_BYTES[self.dtype]
        return self.rotated_bytes() + result, 2 * self.m * self.n * self.k, result * (ranks - 1) // ranks


@dataclass(frozen=True)
class Embedding:
    tables: int
    dim: int
    batch: int
    ids: int
    dtype: str = "float32"
    rows: int = TABLE_ROWS
    zipf: float = 0.0  # how skewed the ids are; 0: uniform
    operator = EMBEDDING
    group = 1
    traces = 3  # tens of thousands of slices each

    @property
    def name(self):
        return f"T{self.tables} D{self.dim} B{self.batch} L{self.ids}" + (f" Zipf {self.zipf:g}" if self.zipf else "")

    def rotated_bytes(self):
        """Of one set of ids. The tables stay; they are far larger than a cache and read at random."""
        return self.tables * self.batch * self.ids * self.dim * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        result = self.tables * self.batch * self.dim * ELEMENT_BYTES[self.dtype]
        read = result if self.zipf else self.rotated_bytes()  # frequent rows stay in the cache
        return read, 0, result * (ranks - 1) // ranks


@dataclass(frozen=True)
class Noop:
    dtype: str = ""
    operator = NOOP
    name = NOOP

    def least(self, ranks):
        del ranks
        return 0, 0, 0


@dataclass(frozen=True)
class Collective:
    """nbytes: of the whole vector, of which each rank has a part where the collective has parts."""
    kind: str
    nbytes: int
    dtype: str = "bfloat16"

    @property
    def operator(self):
        return self.kind

    @property
    def name(self):
        return f"{self.kind} " + (f"{self.nbytes >> 20} MB" if self.nbytes >= 1 << 20 else f"{self.nbytes >> 10} KB")

    def least(self, ranks):
        """Of a broadcast the root sends all, however others pass it on."""
        part = self.nbytes * (ranks - 1) // ranks
        return 0, 0, {"all_reduce": 2 * part, "broadcast": self.nbytes}.get(self.kind, part)


@dataclass(frozen=True)
class Decode:
    """A decode step's row-parallel linear of m tokens (k: a rank's own features), the sum over the ranks, the residual and RMSNorm."""
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    operator = DECODE
    group = 64  # calls in a graph, at least: the gap between two graphs, some us, is shared among them

    @property
    def name(self):
        return f"M{self.m} N{self.n} K{self.k}"

    def rotated_bytes(self):
        return self.n * self.k * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        del ranks  # what the sum over the ranks sends is latency, as a gemv's
        return self.rotated_bytes(), 2 * self.m * self.n * self.k, 0


@dataclass(frozen=True)
class Norm:
    """What follows the product of a Decode, alone: the sum over the ranks, the residual and RMSNorm."""
    m: int
    n: int
    dtype: str = "bfloat16"
    operator = NORM
    group = 64
    rotates = False

    @property
    def name(self):
        return f"{self.m * self.n * ELEMENT_BYTES[self.dtype] >> 10} KB M{self.m} N{self.n}"

    def least(self, ranks):
        del ranks
        return 0, 0, 0


@dataclass(frozen=True)
class Example:
    """A program of client/python/examples, and which of the steps that it times in CUDA graphs."""
    program: str
    step: str
    dtype: str
    operator = EXAMPLES

    @property
    def name(self):
        return f"{self.program}: {self.step}"

    def least(self, ranks):
        del ranks
        return 0, 0, 0


@dataclass(frozen=True)
class Sublayer:
    """One of T3's operators. m: all ranks' rows; n, k: of a rank's product. of: whose sizes they are."""
    kind: str
    m: int
    n: int
    k: int
    of: str
    dtype: str = "bfloat16"

    @property
    def operator(self):
        return self.kind

    @property
    def group(self):
        """Calls in a graph, at least: so many that they take some ms."""
        return max(2, min(64, int(3e-3 / least_s(self, 2))))

    @property
    def name(self):
        return f"{self.kind} M{self.m} N{self.n} K{self.k}"

    def rotated_bytes(self):
        return self.n * self.k * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        sent = self.m * (self.k if self.kind == ALL_GATHER_GEMM else self.n) * ELEMENT_BYTES[self.dtype] * (ranks - 1) // ranks
        return self.rotated_bytes(), 2 * self.m * self.n * self.k, sent * (2 if self.kind == GEMM_ALL_REDUCE else 1)


# ---- how long to warm up, and to measure ----

WARM_S = 0.1  # a GPU under load lowers its clocks within some tens of ms: all that is compared is timed after that
CALLS_LEAST, CALLS_MOST = 20, 2000
SAMPLES = 60
STEADY_S = 0.6  # where power is the limit, clocks swing by a fifth for some tenths of a second
ASSUMED = (4.3e12, 7e14, 3.7e11)  # bytes, operations and link bytes a second, roughly; the same on all ranks


def least_s(shape, ranks):
    """About what a call takes, or more; the same on all ranks."""
    return max(amount / rate for amount, rate in zip(shape.least(ranks), ASSUMED))


def warmup_calls(shape, ranks):
    """So many that they take about WARM_S or more; the same number on all ranks."""
    least = least_s(shape, ranks)
    return max(CALLS_LEAST, min(CALLS_MOST, int(WARM_S / least))) if least else CALLS_LEAST


def samples(shape, ranks, calls):
    """How many, of so many calls each. Of a product that takes all power so many that they take about STEADY_S."""
    steady = getattr(shape, "takes_all_power", False)
    return max(SAMPLES, int(STEADY_S / (calls * least_s(shape, ranks)))) if steady else SAMPLES


# ---- rows ----

@dataclass(frozen=True)
class Row:
    part: str
    shape: object
    baselines: tuple  # keys of baselines.py
    measures: tuple  # (schedule, (what of it is measured: kernel, stream, grouped, prepared, queued, latency))

    @property
    def name(self):
        return f"{self.shape.name} {SHORT[self.shape.dtype]}".strip()

    @property
    def text(self):
        return f"{self.part} {self.name}"


GEMVS = (Gemv(1, 8192, 2048), Gemv(1, 4096, 3584), Gemv(1, 8192, 7168), Gemv(1, 12288, 12288), Gemv(16, 8192, 7168),
         Gemv(64, 8192, 7168))
GEMM_LARGE = ((8192, 4096, 3584), (16384, 4096, 4096), (4096, 8192, 8192), (8192, 8192, 7168))
GEMMS = (*(Gemm(m, n, k, dtype) for dtype in ("float16", "bfloat16") for m, n, k in GEMM_LARGE),
         *(Gemm(m, n, k) for m in (1024, 256) for _, n, k in GEMM_LARGE))
EMBEDDINGS = tuple(Embedding(*sizes, dtype, zipf=zipf) for dtype in ("float32", "float16") for zipf in (0.0, ZIPF)
                   for sizes in ((64, 128, 4096, 32), (32, 256, 4096, 64), (64, 128, 2048, 16), (16, 128, 8192, 100)))
ALL_REDUCES = tuple(Gemv(1, n, ALL_REDUCE_K, rotates=False) for n in (4096, 8192, 16384, 32768))
COLLECTIVE_KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")
COLLECTIVE_BYTES = tuple(4 << 10 << 2 * i for i in range(9))  # 4 KB to 256 MB
DECODE_M = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DECODE_N, DECODE_K, DECODE_STEP = (2048, 16384), (256, 8192), 8  # from, to, in steps of
DECODE_SHAPES = 63  # each M equally often
NORMS = tuple(Norm(1 << i, 4096) for i in range(8))  # 8 KB to 1 MB
EXAMPLE_STEPS = (Example("dlrm", "a forward step", "float32"), Example("llama", "a decode step of 16 layers like 8b's", "bfloat16"))
BESIDE_SHAPES = tuple(Sublayer("product", *sizes, "beside") for sizes in ((4096, 8192, 3584), (8192, 8192, 1024), (2048, 12288, 6144)))
T3_HIDDEN = (3072, 4256, 12288, 18432, 20480)  # Mega-GPT-2, T-NLG, GPT-3, PaLM, MT-NLG
T3_M = (1024, 2048, 4096, 8192)
T3_RANDOM = 40  # of each operator
T3_RANDOM_M, T3_RANDOM_N, T3_RANDOM_K, T3_STEP = (16, 8192), (1024, 16384), (128, 8192), 8  # from, to, in steps of; a step is a share of 8 ranks, too
QUICK = {GEMV: (0, 2), GEMM: (0, 8), EMBEDDING: (2, 6), ALL_REDUCE: (0,), NOOP: (0,), TORCH_OPS: (0,),
         AUTO: (0, 12), COLLECTIVES: (0, 15), DECODE: (0, 5, 7), NORM: (0,), EXAMPLES: (0,), T3: (0, 1, 2), BESIDE: (0,)}  # of each part

# What the goals need, and what there is besides.
FUSED = (("fused", ("kernel", "stream", "grouped")),)
EVERYTHING = tuple((schedule, ("kernel", "stream", "grouped", "latency")) for schedule in ("fused", "sequential"))
POOLING = (("compute_only", ("kernel",)),)
GOAL_BASELINES = {GEMV: ("compute", "sequence", "one_shot"), GEMM: ("compute", "nccl", "sequence"),
                  EMBEDDING: ("compute", "nccl", "sequence")}
ALL_BASELINES = {GEMV: ("compute", "nccl", "sequence", "one_shot", "two_shot"),
                 GEMM: ("compute", "nccl", "sequence", "matmul_reduce_scatter"), EMBEDDING: ("compute", "nccl", "sequence")}


def auto_shapes(ranks):
    """Every M from 1 to 16384 in powers of two: the gemv as far as it goes, the gemm from one row for each rank on."""
    powers = [1 << i for i in range(15)]
    return (*(Gemv(m, 8192, 7168) for m in powers if m <= GEMV_MOST_M),
            *(Gemm(m, 4096, 4096) for m in powers if m >= ranks))


def decode_shapes(seed):
    """The same seed draws the same. Each M in its turn, so that a run that ends early has had all of them."""
    drawn = random.Random(seed)

    def multiple(least, most):
        return DECODE_STEP * drawn.randint(least // DECODE_STEP, most // DECODE_STEP)
    return tuple(Decode(DECODE_M[i % len(DECODE_M)], multiple(*DECODE_N), multiple(*DECODE_K)) for i in range(DECODE_SHAPES))


def t3_shapes(seed):
    """T3's sublayers, where eight devices share what follows the product, and two; and shapes that the seed draws. All in an order that it draws, too."""
    drawn, found = random.Random(seed), []
    for m in T3_M:
        for h in T3_HIDDEN:
            for kind in (GEMM_REDUCE_SCATTER, GEMM_ALL_REDUCE):
                found += [Sublayer(kind, m, h, k, "8 devices") for k in (h // 8, 3 * h // 8, 4 * h // 8)]
                found += [Sublayer(kind, m, h, k, "2 devices") for k in (h // 2, 2 * h) if k != 4 * h // 8]
            found += [Sublayer(ALL_GATHER_GEMM, m, n, h, "8 devices") for n in (3 * h // 8, 4 * h // 8)]
    for kind in (GEMM_REDUCE_SCATTER, ALL_GATHER_GEMM, GEMM_ALL_REDUCE):
        found += [Sublayer(kind, *(T3_STEP * drawn.randint(least // T3_STEP, most // T3_STEP) for least, most in
                                   (T3_RANDOM_M, T3_RANDOM_N, T3_RANDOM_K)), "random") for _ in range(T3_RANDOM)]
    drawn.shuffle(found)
    return tuple(found)


def with_prepared(measure):
    """What is measured of a schedule, and if it is the one that can be prepared, that behind "grouped"."""
    schedule, whats = measure
    if schedule != "fused":
        return measure
    behind = whats.index("grouped") + 1
    return schedule, (*whats[:behind], "prepared", *whats[behind:])


def rows_of(part, everything, ranks, seed):
    if part == DECODE:
        return [Row(DECODE, s, (), ()) for s in decode_shapes(seed)]
    if part == BESIDE:
        return [Row(BESIDE, s, (), ()) for s in BESIDE_SHAPES]
    if part == T3:
        return [Row(T3, s, (), ()) for s in t3_shapes(seed)]
    if part == EXAMPLES:
        return [Row(EXAMPLES, s, (), ()) for s in EXAMPLE_STEPS]
    if part == NORM:
        return [Row(NORM, s, (), ()) for s in NORMS]
    if part == NOOP:
        return [Row(NOOP, Noop(), (), ())]
    if part == TORCH_OPS:
        return [Row(TORCH_OPS, s, (), ()) for s in GEMVS[:2]]
    if part == COLLECTIVES:
        return [Row(COLLECTIVES, Collective(kind, nbytes), (), ()) for kind in COLLECTIVE_KINDS for nbytes in COLLECTIVE_BYTES]
    if part == AUTO:
        return [Row(AUTO, s, ("sequence",), (("auto", ("stream", "grouped", "prepared")),)) for s in auto_shapes(ranks)]
    if part == ALL_REDUCE:
        return [Row(ALL_REDUCE, s, ("nccl", "one_shot_alone", "two_shot_alone"),
                    (("comm_only", ("kernel",)), ("fused", ("kernel",)))) for s in ALL_REDUCES]
    measures = EVERYTHING if everything else FUSED
    if part in (GEMV, GEMM):
        measures = tuple(map(with_prepared, measures))
    if part == GEMV:  # short enough for the CPU's part to matter
        measures = tuple((schedule, (*whats, "queued")) for schedule, whats in measures)
    if part == EMBEDDING:
        measures += POOLING
    shapes = {GEMV: GEMVS, GEMM: GEMMS, EMBEDDING: EMBEDDINGS}[part]
    return [Row(part, s, (ALL_BASELINES if everything else GOAL_BASELINES)[part], measures) for s in shapes]


def chosen(parts, rows, ranks, match="", seed=0):
    """The rows of these parts, in the order of PARTS, whose text has `match` in it. rows: "full" measures everything that is
    there, "issue" what goals of fused operators are set for, "collectives" the collectives, "decode" decode steps, whose shapes
    the seed draws, "t3" products with their collectives, of which it draws some, "quick" some rows of each part."""
    found = []
    for part in (p for p in PARTS if p in parts):
        if rows not in ("full", "quick", ROWS_OF.get(part, "issue")):
            continue
        all_rows = rows_of(part, rows == "full", ranks, seed)
        found += [all_rows[i] for i in QUICK[part]] if rows == "quick" else all_rows
    return [row for row in found if match in row.text]


def copies(shape, cache_bytes):
    """How many sets of inputs are taken in turns, so that none is found in a cache when its turn comes again; at least 2."""
    if not getattr(shape, "rotates", True):
        return 2
    return max(2, -(-CACHES_TO_PASS * cache_bytes // shape.rotated_bytes()))


def prepared_copies(shape, cache_bytes):
    """How many of those sets have an operator of their own that is prepared."""
    return min(copies(shape, cache_bytes), PREPARED_MOST)


def calls_per_sample(shape, ncopies):
    """A multiple of ncopies that is at least the shape's group."""
    return ncopies * -(-shape.group // ncopies)


def floor(shape, ranks, rates):
    """(us, what takes it) at the measured rates {"memory", "link": bytes/s, "matrix": operations/s}; rates may be None."""
    memory, operations, sent = shape.least(ranks)
    terms = [(amount / rates[what] * 1e6, what)
             for what, amount in (("memory", memory), ("matrix", operations), ("link", sent)) if amount and rates.get(what)]
    return max(terms) if terms else (None, "")
