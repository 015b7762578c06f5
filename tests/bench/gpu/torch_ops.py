# SPDX-License-Identifier: MIT
"""The way through torch.ops: torch.ops.fcc.gemv_all_reduce beside the C library's fcc_gemv_all_reduce_enqueue, on the same
communicator, operands and stream, schedule auto. Operands lie in the daemon's memory, no gradient is wanted.

  host    what the CPU takes for a call. Of the C library's, which is called from Python with arguments made before, what a call
          of a function that does nothing takes is taken off
  stream  many calls in a row, as fast as this process makes them
  queued  the same, but the stream is held until all are enqueued: what the GPU alone takes
"""
import hashlib
import itertools
import os
import pathlib
import statistics
import sys
import time

from . import inputs, noop
from .fused import JOB, TIME_LIMIT_MS

WAYS = ("C", "torch.ops")
WHATS = ("host", "stream", "queued")
CALLS, WARMUP = noop.CALLS, 5  # so often CALLS of each way: the daemon has chosen a schedule by then
SAMPLES = noop.SAMPLES
HEAP_BYTES = 64 << 20


def package(library):
    """fcc from these sources, over the library that is measured."""
    os.environ["FCC_LIBRARY"] = str(library)
    sources = str(pathlib.Path(__file__).resolve().parents[3] / "client" / "python")
    if sources not in sys.path:
        sys.path.insert(0, sources)
    import fcc
    return fcc


def measure(rank, uid):
    """{"result": (relative error, digest of the bits), "times": {"C host": [us per call], ...}}"""
    at, torch = rank.at, rank.torch
    fcc = package(rank.settings.client_path)
    comm = fcc.Communicator(rank=at.rank, size=at.ranks, id=uid, device=f"{at.device.type}:{rank.device_number}",
                            time_limit=TIME_LIMIT_MS / 1000, heap_bytes=HEAP_BYTES, socket=str(rank.settings.socket), job=JOB)
    try:
        with torch.no_grad(), torch.cuda.stream(rank.stream):
            return Both(rank, fcc, comm).measured()
    finally:
        comm.close()


class Both:
    """The two ways over the same operands, which are taken in turns."""

    def __init__(self, rank, fcc, comm):
        self.rank, self.torch, self.comm = rank, rank.torch, comm
        s, copies = rank.at.shape, rank.copies(rank.at.shape)
        dtype = getattr(self.torch, s.dtype)
        x = fcc.empty(copies, s.m, s.k, dtype=dtype, comm=comm)
        w = fcc.empty(copies, s.n, s.k, dtype=dtype, comm=comm)
        self.y = fcc.empty(s.m, s.n, dtype=dtype, symmetric=True, comm=comm)  # of the C library's
        for i in range(copies):
            for to, made in zip((x[i], w[i]), inputs.gemv(rank.at, rank.at.rank, i)):
                to.copy_(made)
        self.operands = list(zip(x, w))
        self.turns = itertools.cycle(self.operands)
        library = fcc._library.library()
        gemv = library.operators["gemv_all_reduce"]
        self.packed = [gemv.pack(**self.places(fcc, x[i], w[i])) for i in range(copies)]
        self.packed_turns = itertools.cycle(self.packed)
        self.operator, self.name = self.torch.ops.fcc.gemv_all_reduce, comm.name
        self.enqueue, self.nothing = gemv.enqueue, library.comm_rank
        self.handle, self.stream = comm.member.handle, rank.stream.cuda_stream

    def places(self, fcc, x, w):
        """The members of struct fcc_gemv_all_reduce_args that are not 0."""
        places = {}
        for name, tensor in (("x", x), ("w", w), ("y", self.y)):
            rows, columns = tensor.shape
            places[name] = (*self.comm.member.connection.find(tensor.data_ptr()), fcc.memory.DTYPES[tensor.dtype], 2,
                            rows, columns, 0, 0, columns, 1, 0, 0)
        return places

    def c(self):
        status = self.enqueue(self.handle, next(self.packed_turns), self.stream, None)
        if status < 0:
            raise self.comm.member.error(status)

    def torch_ops(self):
        return self.operator(*next(self.turns), self.name)

    def measured(self):
        result = self.check()
        times = {}
        nothing = statistics.median(self.host(lambda: self.nothing(self.handle)))
        for way, run in zip(WAYS, (self.c, self.torch_ops)):
            host = self.host(run)
            times[f"{way} host"] = [us - nothing for us in host] if way == "C" else host
            self.comm.barrier()
            times[f"{way} stream"] = self.rank.time(lambda r=run: noop.repeat(r), CALLS, SAMPLES, WARMUP)
            self.comm.barrier()
            times[f"{way} queued"] = noop.queued(self.torch, self.rank.stream, run)
        self.comm.synchronize()
        return {"result": result, "times": times}

    def host(self, run):
        """[us per call] for the CPU, of calls in a row that all find room in the queue."""
        samples = []
        for _ in range(WARMUP + SAMPLES):
            self.comm.barrier()
            begin = time.perf_counter()
            noop.repeat(run)
            samples.append((time.perf_counter() - begin) / CALLS * 1e6)
        return samples[WARMUP:]

    def check(self):
        """(the larger of both results' relative errors, a digest of the bits of torch.ops's)"""
        self.y.fill_(float("nan"))
        self.c()
        y = self.torch_ops()
        self.comm.synchronize()
        self.turns, self.packed_turns = itertools.cycle(self.operands), itertools.cycle(self.packed)
        reference = inputs.gemv_reference(self.rank.at, 0)
        errors = [inputs.relative_error(self.rank.at, found, reference) for found in (self.y, y)]
        worst = next((error for error in errors if error != error), max(errors))  # NaN is
        return worst, hashlib.sha256(bytes(y.view(self.torch.uint8).flatten().tolist())).hexdigest()
