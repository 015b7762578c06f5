# SPDX-License-Identifier: MIT
"""The shapes that compare_gpu measures, what they must at least move and compute, and so how fast they can be at best.

Plain data and arithmetic; needs neither torch nor a GPU. All sizes are those of one rank, but for the batch of the embedding,
which is that of all ranks together.
"""
from dataclasses import dataclass

GEMV = "gemv_all_reduce"
GEMM = "gemm_all_to_all"
EMBEDDING = "embedding_all_to_all"
OPERATORS = (GEMV, GEMM, EMBEDDING)

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ERROR_LIMITS = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 1e-2}  # relative, Frobenius
TABLE_ROWS = 100000
CACHES_TO_PASS = 4  # inputs are rotated until this many L2 caches have gone by


@dataclass(frozen=True)
class Gemv:
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    operator = GEMV
    group = 8  # calls that are timed together, at least: one alone is as short as what surrounds it

    @property
    def name(self):
        return f"M{self.m} N{self.n} K{self.k}"

    def rotated_bytes(self):
        return self.n * self.k * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        """(bytes of memory, floating-point operations, bytes that leave a GPU). What the AllReduce sends does not count: it is
        short, and its time is latency."""
        del ranks
        return self.rotated_bytes(), 0, 0


@dataclass(frozen=True)
class Gemm:
    m: int
    n: int
    k: int
    dtype: str = "float16"
    operator = GEMM
    group = 2

    @property
    def name(self):
        return f"M{self.m} N{self.n} K{self.k}"

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
    operator = EMBEDDING
    group = 1

    @property
    def name(self):
        return f"T{self.tables} D{self.dim} B{self.batch} L{self.ids}"

    def rotated_bytes(self):
        """Of one set of ids. The tables stay; they are far larger than a cache and read at random."""
        return self.tables * self.batch * self.ids * self.dim * ELEMENT_BYTES[self.dtype]

    def least(self, ranks):
        result = self.tables * self.batch * self.dim * ELEMENT_BYTES[self.dtype]
        return self.rotated_bytes(), 0, result * (ranks - 1) // ranks


ALL = (
    Gemv(1, 8192, 2048),
    Gemv(1, 4096, 3584),
    Gemv(1, 8192, 7168),
    Gemv(1, 12288, 12288),
    Gemv(16, 8192, 7168),
    Gemv(64, 8192, 7168),
    Gemm(8192, 4096, 3584),
    Gemm(4096, 8192, 8192),
    Gemm(16384, 4096, 4096),
    Gemm(8192, 8192, 7168),
    Embedding(64, 128, 4096, 32),
    Embedding(32, 256, 4096, 64),
    Embedding(64, 128, 2048, 16),
    Embedding(16, 128, 8192, 100),
)
QUICK = {GEMV: (0, 2), GEMM: (0,), EMBEDDING: (2,)}  # which of each operator --quick takes


def chosen(operators, quick):
    """The shapes of these operators, in the order of ALL."""
    found = []
    for operator in OPERATORS:
        shapes = [s for s in ALL if s.operator == operator]
        if operator in operators:
            found += [shapes[i] for i in QUICK[operator]] if quick else shapes
    return found


def copies(shape, cache_bytes):
    """How many sets of inputs are taken in turns, so that none is found in a cache when its turn comes again; at least 2."""
    return max(2, -(-CACHES_TO_PASS * cache_bytes // shape.rotated_bytes()))


def calls_per_sample(shape, ncopies):
    """A multiple of ncopies that is at least the shape's group."""
    return ncopies * -(-shape.group // ncopies)


def floor(shape, ranks, rates):
    """(us, what takes it) at the measured rates {"memory", "link": bytes/s, "matrix": operations/s}; rates may be None."""
    memory, operations, sent = shape.least(ranks)
    terms = [(amount / rates[what] * 1e6, what)
             for what, amount in (("memory", memory), ("matrix", operations), ("link", sent)) if amount and rates.get(what)]
    return max(terms) if terms else (None, "")
