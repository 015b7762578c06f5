# SPDX-License-Identifier: MIT
"""Collectives by plain torch in one process: what each rank gets, from all ranks' tensors. Used by test_collectives.py."""
import torch

MOVED = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8, torch.int8, torch.bool,
         torch.float8_e4m3fn, torch.float8_e5m2)


def least(a, b):
    """Of two zeros the negative one; a NaN if there is one."""
    if not a.is_floating_point():
        return torch.minimum(a, b)
    return torch.where((a == 0) & (b == 0) & (b.signbit() | a.signbit()), -torch.zeros_like(a), torch.minimum(a, b))


def most(a, b):
    if not a.is_floating_point():
        return torch.maximum(a, b)
    return torch.where((a == 0) & (b == 0) & ~(b.signbit() & a.signbit()), torch.zeros_like(a), torch.maximum(a, b))


COMBINED = {"sum": torch.add, "product": torch.mul, "min": least, "max": most, "average": torch.add,
            "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}
NAMES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send_receive")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def allowed(dtype, how):
    """Whether the reduction is one of this dtype."""
    if dtype == torch.bool:
        return how not in ("sum", "average")
    if dtype.is_floating_point:
        return dtype.itemsize > 1 and how not in ("and", "or", "xor")
    return how != "average"


def combine(every, how):
    """In rank order; halves in float32, rounded once."""
    dtype = every[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    found = every[0].to(wide)
    for other in every[1:]:
        found = COMBINED[how](found, other.to(wide))
    return (found / len(every) if how == "average" else found).to(dtype)


def shares(rows, counts, size):
    return [rows // size] * size if counts is None else counts


def result(name, every, rank, *, reduction="sum", root=0, counts=None, table=None, peers=None):
    """What this rank gets. `every`: all ranks' x. table: all_to_all's counts [source][destination]. peers: each rank's destination."""
    size = len(every)
    here = rank == root or name not in ("reduce", "gather")
    if name in ("all_reduce", "reduce"):
        found = combine(every, reduction)
    elif name == "reduce_scatter":
        found = combine(every, reduction).split(shares(len(every[0]), counts, size))[rank]
    elif name in ("all_gather", "gather"):
        found = torch.cat(every)
    elif name == "all_to_all":
        found = torch.cat([x.split(shares(len(x), table and table[source], size))[rank] for source, x in enumerate(every)])
    elif name == "broadcast":
        found = every[root]
    elif name == "scatter":
        found = every[root].split(shares(len(every[root]), counts, size))[rank]
    else:
        here = rank in peers
        found = every[peers.index(rank)] if here else every[rank]
    return found if here else found.new_empty((0, *every[rank].shape[1:]))


def bits(tensor):
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def same(got, want, arithmetic=False):
    """To the bit. arithmetic: which NaN a NaN is, is not said."""
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
    assert got.is_contiguous()
    if arithmetic and got.is_floating_point():
        got, want = (torch.where(tensor.isnan(), float("nan"), tensor) for tensor in (got.detach().cpu(), want))
    assert torch.equal(bits(got), bits(want)), (got, want)
