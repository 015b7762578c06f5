# SPDX-License-Identifier: MIT
"""What a rank does with NCCL and torch.compile, in a CUDA graph: one step of each sequence of rows.py."""
import faulthandler
import os
import sys

from .rows import ADAM, EPILOGUE, LAMB, LAYER, PRODUCT, SHARDED

WARMUP, REPLAYS = 3, 20
TELL_S = 5  # before a part's limit a rank tells where it is
LR, BETA1, BETA2, EPSILON, STEP, DECAY = 1.0, 0.9, 0.999, 1e-8, 3, 0.01  # as the rows' scalars


def steps(torch, ranks):
    """The optimisers' steps, of gradients that are summed up. w is the master copy."""
    c1, c2 = 1 - BETA1**STEP, 1 - BETA2**STEP

    def moments(w, m, v, g):
        a = g.float() * (1 / ranks)
        m.lerp_(a, 1 - BETA1)
        v.mul_(BETA2).addcmul_(a, a, value=1 - BETA2)
        return (m / c1) / ((v / c2).sqrt() + EPSILON)

    def adam(p, w, m, v, g):
        w.sub_(LR * moments(w, m, v, g))
        p.copy_(w)

    def lamb(p, w, m, v, g):
        u = moments(w, m, v, g) + DECAY * w
        wide, long = w.norm(), u.norm()
        w.sub_(LR * torch.where(wide > 0, torch.where(long > 0, wide / long, 1.0), 1.0) * u)
        p.copy_(w)

    return {"Adam": adam, "LAMB": lamb}


def compiled(torch, function):
    return torch.compile(function, dynamic=False, fullgraph=True)


class Optimiser:
    """An optimiser's step on one tensor of n parameters. compiles: makes a function fast."""

    def __init__(self, at, name, sizes, compiles=compiled):
        torch, n = at.torch, sizes["N"]
        self.at, self.sharded = at, name == SHARDED
        self.step = compiles(torch, steps(torch, at.ranks)["LAMB" if name == LAMB else "Adam"])
        own = n // at.ranks if self.sharded else n
        generator = torch.Generator(at.device).manual_seed(at.seed)  # parameters are the same on all ranks

        def new(count, scale=1.0):
            return torch.randn(count, device=at.device, generator=generator) * scale
        whole = new(n)
        self.p = whole.to(torch.bfloat16)
        part = slice(own * at.rank, own * (at.rank + 1)) if self.sharded else slice(0, n)
        self.shard, self.w = self.p[part], whole[part].clone()
        self.m, self.v = new(n, 0.1)[part].clone(), new(n).abs()[part] + 0.5
        generator.manual_seed(at.seed + 1 + at.rank)
        self.g = new(n).to(torch.bfloat16)
        self.sum = torch.zeros_like(self.shard) if self.sharded else self.g

    def compute(self):
        self.step(self.shard, self.w, self.m, self.v, self.sum)

    def run(self):
        dist = self.at.torch.distributed
        if self.sharded:
            dist.reduce_scatter_tensor(self.sum, self.g)
        else:
            dist.all_reduce(self.g)
        self.compute()
        if self.sharded:
            dist.all_gather_into_tensor(self.p, self.shard)


class Layer:
    """The end of a layer: a product's sum over the ranks, bias, dropout, residual."""

    def __init__(self, at, name, sizes, compiles=compiled):
        torch, m, h = at.torch, sizes["M"], sizes["H"]
        self.at, self.name = at, name

        def epilogue(s, bias, residual, y):
            y.copy_(torch.nn.functional.dropout(s + bias, 0.1) + residual)

        def new(*shape):
            return torch.randn(*shape, device=at.device, generator=generator).to(torch.bfloat16)
        generator = torch.Generator(at.device).manual_seed(at.seed + at.rank)
        self.end = compiles(torch, epilogue)
        self.s, self.bias, self.residual, self.y = new(m, h), new(h), new(m, h), new(m, h)
        k = sizes.get("K", 0) // at.ranks
        self.factors = (new(m, k), new(k, h)) if name != EPILOGUE else None

    def compute(self):
        if self.name != PRODUCT:
            self.end(self.s, self.bias, self.residual, self.y)

    def run(self):
        if self.factors:
            self.at.torch.mm(*self.factors, out=self.s)
        if self.name != PRODUCT:
            self.at.torch.distributed.all_reduce(self.s)
        self.compute()


MAKERS = {ADAM: Optimiser, SHARDED: Optimiser, LAMB: Optimiser, EPILOGUE: Layer, PRODUCT: Layer, LAYER: Layer}


class Told:
    """With `with`: a rank that is still there TELL_S before the limit says on stderr what it does."""

    def __init__(self, limit_s):
        self.limit_s = limit_s

    def __enter__(self):
        faulthandler.dump_traceback_later(max(1, self.limit_s - TELL_S), file=sys.__stderr__)

    def __exit__(self, *_):
        faulthandler.cancel_dump_traceback_later()


def meet(torch):
    torch.distributed.barrier()
    torch.cuda.synchronize()


def timed(rank, run, before=None):
    """[us of each replay] of a CUDA graph of run(), which has run before. before() is called before each replay, and not timed."""
    torch = rank.torch
    torch.cuda.synchronize()  # inputs are made on another stream
    with torch.cuda.stream(rank.stream):
        for _ in range(WARMUP):
            run()
    meet(torch)
    graph, us = rank.captured(lambda _: run(), 1, 1), []
    try:
        for i in range(-WARMUP, REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(rank.stream):
                if before:
                    before()
                meet(torch)
                begin.record()
                graph.replay()
                end.record()
            rank.stream.synchronize()
            if i >= 0:
                us.append(begin.elapsed_time(end) * 1e3)
    finally:
        graph.reset()  # NCCL's communicator does not end while there are graphs of its kernels
    return us


def measured(rank, limit_s, make):
    """[us of each replay] of the sequence that make() makes, on this rank, of rank.py."""
    torch = rank.torch
    with Told(limit_s):
        try:
            sequence = make()
            torch.cuda.synchronize()  # inputs are made on another stream
            with torch.cuda.stream(rank.stream):
                sequence.compute()  # is compiled: ranks do not wait for each other in NCCL meanwhile
            meet(torch)
            return timed(rank, sequence.run)
        finally:
            sequence = None
            torch._dynamo.reset()
            torch.cuda.empty_cache()


def measure(rank, name, sizes, limit_s):
    """One sequence on this rank, in whose processes there is a group of NCCL's."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # it compiles in this process, and leaves no other behind
    return measured(rank, limit_s, lambda: MAKERS[name](rank.at, name, sizes))
