# SPDX-License-Identifier: MIT
"""Inputs that any rank can make for any other (so a reference needs no communication), and references in float64.

`at` is where and what: .torch, .shape, .seed, .ranks, .rank, .device.
"""


def generator(at, *numbers):
    """The same numbers give the same stream of random values on GPUs of one kind."""
    seed = at.seed
    for n in numbers:
        seed = seed * 8191 + n + 1
    return at.torch.Generator(device=at.device).manual_seed(seed % (1 << 63))


def normal(at, shape, dtype, *numbers):
    return at.torch.randn(shape, generator=generator(at, *numbers), device=at.device, dtype=getattr(at.torch, dtype))


def gemv(at, rank, copy):
    """x [M][K], w [N][K]"""
    s = at.shape
    return normal(at, (s.m, s.k), s.dtype, rank, copy, 0), normal(at, (s.n, s.k), s.dtype, rank, copy, 1)


def step(at, rank, copy):
    """Of a Decode as a gemv's; of a Norm x [M][N] alone."""
    s = at.shape
    return gemv(at, rank, copy) if hasattr(s, "k") else (normal(at, (s.m, s.n), s.dtype, rank, copy, 0),)


def residual(at):
    """([M][N], [N]): what is added to the sum, about as large as a rank's part of it, and the norm's weights. The same on all ranks."""
    s = at.shape
    return (normal(at, (s.m, s.n), s.dtype, 0, 0, 4) * getattr(s, "k", 1) ** 0.5,
            1 + 0.25 * normal(at, (s.n,), s.dtype, 0, 0, 5))


def gemm(at, rank, copy):
    """a [M][K], b [K][N]"""
    s = at.shape
    return normal(at, (s.m, s.k), s.dtype, rank, copy, 0), normal(at, (s.k, s.n), s.dtype, rank, copy, 1)


def table(at, rank, number):
    """[rows][D]"""
    return normal(at, (at.shape.rows, at.shape.dim), at.shape.dtype, rank, number, 2)


def ids(at, rank, number, copy):
    """[B][L]: the rows that each sample takes from one table"""
    s, drawn = at.shape, generator(at, rank, number, copy, 3)
    if not s.zipf:
        return at.torch.randint(0, s.rows, (s.batch, s.ids), generator=drawn, device=at.device)
    u = at.torch.rand((s.batch, s.ids), generator=drawn, device=at.device, dtype=at.torch.float64)
    return zipf_ids(at.torch, u, s.rows, s.zipf)


def zipf_ids(torch, u, rows, skew):
    """Of uniform numbers in [0, 1): the inverse of the cumulative density x^-skew on [1, rows + 1), Zipf's law with its steps
    smoothed. Multiplying by a prime keeps frequent ids from being neighbours in memory."""
    if abs(skew - 1) < 1e-9:
        x = (rows + 1.0) ** u
    else:
        x = (1 + u * ((rows + 1.0) ** (1 - skew) - 1)) ** (1 / (1 - skew))
    return (x.to(torch.int64) - 1).clamp(0, rows - 1) * 2654435761 % rows


def gemv_reference(at, copy):
    total = 0
    for rank in range(at.ranks):
        x, w = gemv(at, rank, copy)
        total = total + x.double() @ w.double().t()
    return total


def step_reference(at, copy, eps):
    """(RMSNorm of the sum, the sum of all ranks' parts and the residual)"""
    added, weight = (t.double() for t in residual(at))
    total = added + (gemv_reference(at, copy) if hasattr(at.shape, "k") else sum(step(at, r, copy)[0].double() for r in range(at.ranks)))
    return total * (total.square().mean(1, keepdim=True) + eps).rsqrt() * weight, total


def gemm_reference(at, copy):
    share = at.shape.m // at.ranks
    parts = []
    for rank in range(at.ranks):
        a, b = gemm(at, rank, copy)
        parts.append(a[at.rank * share:(at.rank + 1) * share].double() @ b.double())
    return at.torch.cat(parts)


def embedding_reference(at, copy):
    share = at.shape.batch // at.ranks
    parts = []
    for rank in range(at.ranks):
        for number in range(at.shape.tables):
            mine = ids(at, rank, number, copy)[at.rank * share:(at.rank + 1) * share]
            parts.append(table(at, rank, number)[mine].double().sum(1))
    return at.torch.stack(parts, dim=1)


REFERENCES = {"gemv_all_reduce": gemv_reference, "gemm_all_to_all": gemm_reference, "embedding_all_to_all": embedding_reference}


def relative_error(at, out, reference):
    """Frobenius; NaN when anything in out is."""
    return (at.torch.linalg.vector_norm(out.double() - reference) / at.torch.linalg.vector_norm(reference)).item()
