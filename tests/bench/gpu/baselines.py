# SPDX-License-Identifier: MIT
"""What fccd is compared with: one function for each, which returns a function of the number of the input set that enqueues the
work once on the current stream.

`at` is as in inputs.py, and holds the inputs that prepare() made: at.sets[i].
"""
from dataclasses import dataclass
from typing import Callable

from . import inputs
from .shapes import ALL_REDUCE, EMBEDDING, GEMM, GEMV


@dataclass(frozen=True)
class Baseline:
    key: str
    title: str  # of its column
    make: Callable
    needs_group: bool  # NCCL, which wants a GPU for each rank
    same_work: bool = False  # it does what fccd does, so fccd is compared with it
    graph: bool = True  # it runs in a CUDA graph


def prepare(at, ncopies):
    at.sets = {GEMV: gemv_sets, GEMM: gemm_sets, EMBEDDING: embedding_sets}[at.shape.operator](at, ncopies)


def gemv_sets(at, ncopies):
    return [inputs.gemv(at, at.rank, i) for i in range(ncopies)]


def gemm_sets(at, ncopies):
    return [inputs.gemm(at, at.rank, i) for i in range(ncopies)]


def embedding_sets(at, ncopies):
    """One stack of tables; bags in the order (destination, table, sample), so that what each destination gets lies together.
    The result stays in the order (source, table, sample): PyTorch is not charged for bringing it into fccd's order."""
    s, torch = at.shape, at.torch
    stack = torch.cat([inputs.table(at, at.rank, t) for t in range(s.tables)])
    first = (torch.arange(s.tables, device=at.device) * s.rows).view(-1, 1, 1)
    offsets = torch.arange(0, s.tables * s.batch * s.ids + 1, s.ids, device=at.device)
    sets = []
    for i in range(ncopies):
        rows = torch.stack([inputs.ids(at, at.rank, t, i) for t in range(s.tables)]) + first
        by_destination = rows.view(s.tables, at.ranks, s.batch // at.ranks, s.ids).transpose(0, 1)
        sets.append((stack, by_destination.reshape(-1), offsets))
    return sets


def result(at):
    """[M][N] of gemv and gemm, with something in it."""
    return at.torch.randn((at.shape.m, at.shape.n), device=at.device, dtype=getattr(at.torch, at.shape.dtype))


# ---- GEMV + AllReduce ----

def gemv_alone(at):
    return lambda i: at.torch.nn.functional.linear(*at.sets[i])


def all_reduce_alone(at):
    y = result(at)  # grows without bounds, which takes no other time
    return lambda _: at.torch.distributed.all_reduce(y)


def gemv_nccl(at):
    def run(i):
        at.torch.distributed.all_reduce(at.torch.nn.functional.linear(*at.sets[i]))
    return run


def symmetric_y(at):
    """y [M][N] in symmetric memory, and the name of the group."""
    import torch.distributed._symmetric_memory as symmetric_memory
    group = at.torch.distributed.group.WORLD.group_name
    y = symmetric_memory.empty((at.shape.m, at.shape.n), dtype=getattr(at.torch, at.shape.dtype), device=at.device)
    symmetric_memory.rendezvous(y, group)
    return y, group


def gemv_one_shot(at):
    y, group = symmetric_y(at)

    def run(i):
        x, w = at.sets[i]
        at.torch.mm(x, w.t(), out=y)
        at.torch.ops.symm_mem.one_shot_all_reduce(y, "sum", group)
    return run


def gemv_two_shot(at):
    y, group = symmetric_y(at)

    def run(i):
        x, w = at.sets[i]
        at.torch.mm(x, w.t(), out=y)
        at.torch.ops.symm_mem.two_shot_all_reduce_(y, "sum", group)
    return run


def one_shot_alone(at):
    y, group = symmetric_y(at)
    y.normal_()
    return lambda _: at.torch.ops.symm_mem.one_shot_all_reduce(y, "sum", group)


def two_shot_alone(at):
    y, group = symmetric_y(at)
    y.normal_()  # grows, too
    return lambda _: at.torch.ops.symm_mem.two_shot_all_reduce_(y, "sum", group)


# ---- GEMM + All-to-All ----

def gemm_alone(at):
    c = result(at)
    return lambda i: at.torch.mm(*at.sets[i], out=c)


def gemm_all_to_all_alone(at):
    c, received = result(at), result(at)
    return lambda _: at.torch.distributed.all_to_all_single(received, c)


def gemm_nccl(at):
    c, received = result(at), result(at)

    def run(i):
        at.torch.mm(*at.sets[i], out=c)
        at.torch.distributed.all_to_all_single(received, c)
    return run


def gemm_reduce_scatter(at):
    """Another collective, and so for orientation only."""
    group = at.torch.distributed.group.WORLD.group_name
    return lambda i: at.torch.ops.symm_mem.fused_matmul_reduce_scatter(*at.sets[i], "sum", 0, group)


# ---- embedding + All-to-All ----

def pool(at, i):
    stack, rows, offsets = at.sets[i]
    return at.torch.nn.functional.embedding_bag(rows, stack, offsets, mode="sum", include_last_offset=True)


def pooling_alone(at):
    return lambda i: pool(at, i)


def pooled_result(at):
    s = at.shape
    return at.torch.randn((s.tables * s.batch, s.dim), device=at.device, dtype=getattr(at.torch, s.dtype))


def pooling_all_to_all_alone(at):
    pooled, received = pooled_result(at), pooled_result(at)
    return lambda _: at.torch.distributed.all_to_all_single(received, pooled)


def pooling_nccl(at):
    received = pooled_result(at)
    return lambda i: at.torch.distributed.all_to_all_single(received, pool(at, i))


BASELINES = {
    GEMV: (
        Baseline("compute", "GEMV", gemv_alone, needs_group=False),
        Baseline("nccl", "AllReduce", all_reduce_alone, needs_group=True),
        Baseline("sequence", "GEMV+NCCL", gemv_nccl, needs_group=True, same_work=True),
        Baseline("one_shot", "+one-shot", gemv_one_shot, needs_group=True, same_work=True),
        Baseline("two_shot", "+two-shot", gemv_two_shot, needs_group=True, same_work=True),
    ),
    GEMM: (
        Baseline("compute", "GEMM", gemm_alone, needs_group=False),
        Baseline("nccl", "A2A", gemm_all_to_all_alone, needs_group=True),
        Baseline("sequence", "GEMM+NCCL", gemm_nccl, needs_group=True, same_work=True),
        Baseline("matmul_reduce_scatter", "(mm+RS)", gemm_reduce_scatter, needs_group=True, graph=False),
    ),
    EMBEDDING: (
        Baseline("compute", "pooling", pooling_alone, needs_group=False),
        Baseline("nccl", "A2A", pooling_all_to_all_alone, needs_group=True),
        Baseline("sequence", "pooling+NCCL", pooling_nccl, needs_group=True, same_work=True),
    ),
    ALL_REDUCE: (
        Baseline("nccl", "NCCL", all_reduce_alone, needs_group=True, same_work=True),
        Baseline("one_shot_alone", "one-shot", one_shot_alone, needs_group=True, same_work=True),
        Baseline("two_shot_alone", "two-shot", two_shot_alone, needs_group=True, same_work=True),
    ),
}


def table_of(row):
    """The key in BASELINES of a row's baselines."""
    return ALL_REDUCE if row.part == ALL_REDUCE else row.shape.operator


def of(row):
    return [b for b in BASELINES.get(table_of(row), ()) if b.key in row.baselines]
