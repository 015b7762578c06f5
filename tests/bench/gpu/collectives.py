# SPDX-License-Identifier: MIT
"""Collectives that the ranks launch themselves, in PyTorch's own memory, beside NCCL's and PyTorch's symmetric memory's.

All work on the same tensors, except symmetric memory's, which have their own. For each way:

  graph   many calls in a CUDA graph, from event to event
  stream  many calls in a row, as fast as this process makes them
  host    what the CPU takes for a call of those: of fccd the C library's function, with arguments made before, of the others PyTorch's
"""
import ctypes
import functools
import statistics
import time

from .fused import JOB, TIME_LIMIT_MS
from .torch_ops import package

FCCD, NCCL = "fccd", "NCCL"
SYMMETRIC = ("one-shot", "two-shot", "copies")
WAYS = (FCCD, NCCL, *SYMMETRIC)
WHATS = ("graph", "stream", "host")
CALLS, SAMPLES, WARMUP = 20, 15, 3
ONE_SHOT_MOST = 8 << 20  # bytes: beyond that it takes many times what the others do
ADDRESS = (1 << 64) - 1  # FCC_ADDRESS


def symmetric_ways(kind, nbytes):
    """Which of symmetric memory's PyTorch has; multicast's are never used."""
    if kind == "all_reduce":
        return ("one-shot", "two-shot") if nbytes <= ONE_SHOT_MOST else ("two-shot",)
    return ("copies",) if kind in ("all_gather", "reduce_scatter") else ()


def join(rank, uid):
    """(the package, a communicator of this rank's GPU)"""
    fcc = package(rank.settings.client_path)
    return fcc, fcc.Communicator(rank=rank.rank, size=rank.settings.ranks, id=uid, device=f"cuda:{rank.device_number}",
                                 time_limit=TIME_LIMIT_MS / 1000, socket=str(rank.settings.socket), job=JOB)


class Session:
    """rank: of rank.py, whose processes have a group of NCCL's."""

    def __init__(self, rank, uid):
        self.rank, self.torch, self.dist = rank, rank.torch, rank.torch.distributed
        fcc, self.comm = join(rank, uid)
        self.library = fcc._library.library()

    def close(self):
        self.comm.close()

    def measure(self, shape):
        """{"wrong": how many elements differ from NCCL's, "times": {"fccd graph": [us per call], ...}, "missing": {way: why}}"""
        torch, ranks = self.torch, self.rank.settings.ranks
        n = shape.nbytes // 2 // ranks * ranks
        generator = torch.Generator(device="cuda").manual_seed(self.rank.settings.seed + self.rank.rank)
        whole, own = (torch.randn(m, device="cuda", generator=generator).to(torch.bfloat16) for m in (n, n // ranks))
        found = {"times": {}, "missing": {}}
        torch.cuda.synchronize()  # inputs are made on another stream
        with torch.cuda.stream(self.rank.stream):
            ours, nccl = self.fccd(shape.kind, whole, own), self.nccl(shape.kind, whole, own)
            found["wrong"] = self.differ(ours, nccl)
            ways = {FCCD: ours[0], NCCL: nccl[0]}
            for way in symmetric_ways(shape.kind, shape.nbytes):
                try:
                    ways[way] = self.symmetric(shape.kind, way, n)
                except (RuntimeError, AttributeError) as e:  # on all ranks: this PyTorch does not have it
                    found["missing"][way] = f"{type(e).__name__}: {e}"[:200]
            for way, run in ways.items():
                found["times"].update(self.times(way, run))
        self.comm.synchronize()
        return found

    # ---- times ----

    def times(self, way, run):
        torch, stream = self.torch, self.rank.stream
        run()
        stream.synchronize()
        graph = self.rank.captured(lambda _: run(), CALLS, 1)
        found = {f"{way} graph": self.time(graph.replay)}
        found[f"{way} stream"] = self.time(functools.partial(repeat, run))
        host = []
        for _ in range(SAMPLES):
            self.meet()
            begin = time.perf_counter()
            repeat(run)
            host.append((time.perf_counter() - begin) * 1e6 / CALLS)
        del graph
        torch.cuda.synchronize()
        return found | {f"{way} host": host}

    def time(self, sample):
        self.meet()
        return self.rank.time(sample, CALLS, SAMPLES, WARMUP)

    def meet(self):
        self.rank.stream.synchronize()
        self.comm.barrier()

    def differ(self, ours, nccl):
        """How many elements differ, beyond what rounding more than once makes of a sum."""
        (run, result), (nccl_run, nccl_result) = ours, nccl
        run()
        found = result.float().clone()
        nccl_run()
        wanted = nccl_result.float()
        self.rank.stream.synchronize()
        return int(((found - wanted).abs() > 0.02 * wanted.abs() + 0.02).sum() + found.isnan().sum())

    # ---- the ways: (what enqueues it, its result) ----

    def fccd(self, kind, whole, own):
        torch, ranks = self.torch, self.comm.size
        source = own if kind == "all_gather" else whole
        in_place = kind == "broadcast" and self.rank.rank == 0  # as NCCL's from PyTorch is
        result = whole if in_place else torch.empty_like(own if kind == "reduce_scatter" else whole)
        places = {"out": place(result)}
        if kind != "broadcast" or self.rank.rank == 0:
            places["in_"] = place(source)
        counts = (ctypes.c_int64 * ranks)(*[source.numel() // ranks] * ranks)
        if kind == "all_to_all":  # as fcc.all_to_all() and torch.distributed's say what is expected
            places |= {"send_counts": ctypes.addressof(counts), "expected_counts": ctypes.addressof(counts)}
        operator, handle, stream = self.library.operators[kind], self.comm.member.handle, self.rank.stream.cuda_stream
        packed, enqueue, library, held = operator.pack(**places), operator.enqueue, self.library, (source, result, counts)

        def run():
            if enqueue(handle, packed, stream, None) < 0:
                raise RuntimeError(library.last_error_text())
            return held
        return run, result

    def nccl(self, kind, whole, own):
        dist, result = self.dist, self.torch.empty_like(own if kind == "reduce_scatter" else whole)
        if kind in ("all_reduce", "broadcast"):
            result.copy_(whole)
        return {"all_reduce": lambda: dist.all_reduce(result),  # grows, which takes no other time
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(result, whole),
                "all_gather": lambda: dist.all_gather_into_tensor(result, own),
                "all_to_all": lambda: dist.all_to_all_single(result, whole),
                "broadcast": lambda: dist.broadcast(result, 0)}[kind], result

    def symmetric(self, kind, way, n):
        import torch.distributed._symmetric_memory as memory
        torch, group = self.torch, self.dist.group.WORLD.group_name
        y = memory.empty(n // self.rank.settings.ranks if kind == "all_gather" else n, dtype=torch.bfloat16, device="cuda")
        memory.rendezvous(y, group)
        y.normal_()
        ops, wait = torch.ops.symm_mem, torch.ops._c10d_functional.wait_tensor
        run = {("all_reduce", "one-shot"): lambda: ops.one_shot_all_reduce(y, "sum", group),
               ("all_reduce", "two-shot"): lambda: ops.two_shot_all_reduce_(y, "sum", group),
               ("all_gather", "copies"): lambda: wait(ops._low_contention_all_gather(y, group)),
               ("reduce_scatter", "copies"): lambda: wait(ops._low_contention_reduce_scatter(y, "sum", group))}[kind, way]
        run()
        self.rank.captured(lambda _: run(), 1, 1).replay()
        self.rank.stream.synchronize()
        return run


def repeat(run):
    for _ in range(CALLS):
        run()


def place(tensor):
    """The members of struct fcc_tensor."""
    return (ADDRESS, tensor.data_ptr(), 3, 1, tensor.numel(), 0, 0, 0, 0, 0, 0, 0)  # 3: FCC_BF16

