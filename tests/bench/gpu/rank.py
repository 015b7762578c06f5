# SPDX-License-Identifier: MIT
"""One rank: a process that does, part by part, what the parent asks for through a pipe, and answers each part."""
import ctypes
import contextlib
import functools
import importlib.metadata
import itertools
import os
import signal
from datetime import timedelta
from types import SimpleNamespace

from . import baselines, beside, collectives, decode, fused, noop, shapes, t3, torch_ops
from .coconet import model, sequences
from .fcc import DEVICE_CUDA, Client, Unsupported

AUTO_WARMUP = 48  # until both schedules have been measured often enough (tune.c)
LATENCY_SAMPLES, LATENCY_WARMUP = 30, 5
TRACE_BURST = 8
COPY_BYTES = 4 << 30
LINK_BYTES = 512 << 20
MATRIX = 8192
RATE_SAMPLES, RATE_WARMUP = 10, 3
GROUP_LIMIT_S = 60
PR_SET_PDEATHSIG = 1


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def flashinfer_version():
    try:
        return importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def serve(connection, rank, settings):
    """The process's main. Ends when the parent says so or is gone."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    worker = Rank(rank, settings)
    while True:
        try:
            part, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = ("done", getattr(worker, "part_" + part)(**arguments))
        except Exception as e:  # whatever it is: it goes to the report, and the other parts go on
            answer = ("failed" if worker.usable(e) else "lost", f"{type(e).__name__}: {e}")
        connection.send(answer)
        if part == "end":
            return


class Rank:
    """settings: ranks, gpus, seed, library, fccctl, socket"""

    def __init__(self, rank, settings):
        self.rank, self.settings = rank, settings
        self.device_number = rank % settings.gpus
        self.at = None  # what baselines and fccd work on; its shape is the current one
        self.session = None
        self.collectives = self.decode = self.t3 = self.beside = None
        self.client = None
        self.torch = self.stream = self.cache_bytes = None
        self.group = False

    # ---- begin and end ----

    def part_start(self):
        """torch and the GPU. Returns what is there."""
        import torch
        self.torch = torch
        torch.cuda.set_device(self.device_number)
        torch.set_grad_enabled(False)
        device = torch.device("cuda", self.device_number)
        properties = torch.cuda.get_device_properties(device)
        self.cache_bytes = properties.L2_cache_size
        self.stream = torch.cuda.Stream(device)
        self.at = SimpleNamespace(torch=torch, device=device, ranks=self.settings.ranks, rank=self.rank,
                                  seed=self.settings.seed, shape=None, sets=None)
        torch.cuda.synchronize()
        return {"torch": torch.__version__, "cuda": torch.version.cuda,
                "nccl": ".".join(map(str, torch.cuda.nccl.version())), "FlashInfer": flashinfer_version(), "L2 bytes": self.cache_bytes,
                "multiprocessors": properties.multi_processor_count}

    def part_group(self, address):
        """NCCL, between all ranks."""
        import torch.distributed
        torch.distributed.init_process_group("nccl", init_method=address, rank=self.rank, world_size=self.settings.ranks,
                                             device_id=self.at.device, timeout=timedelta(seconds=GROUP_LIMIT_S))
        torch.distributed.all_reduce(torch.ones(1, device=self.at.device))
        torch.cuda.synchronize()
        self.group = True

    def part_end(self):
        self.part_fcc_close()
        self.at = None
        if self.group:
            self.torch.distributed.destroy_process_group()

    def usable(self, error):
        """Whether this process can go on after the error."""
        if not self.torch or isinstance(error, self.torch.distributed.DistError):
            return False
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    # ---- timing ----

    def time(self, sample, calls, samples, warmup):
        """[us per call]; sample() enqueues `calls` calls on the current stream."""
        torch = self.torch
        torch.cuda.synchronize()  # inputs are made on another stream
        with torch.cuda.stream(self.stream):
            for _ in range(warmup):
                sample()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
            events[0].record()
            for event in events[1:]:
                sample()
                event.record()
        self.stream.synchronize()
        return [a.elapsed_time(b) * 1e3 / calls for a, b in itertools.pairwise(events)]

    def captured(self, run, calls, ncopies):
        """A CUDA graph of so many calls."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for i in range(calls):
                run(i % ncopies)
        return graph

    # ---- what the GPUs can do ----

    def part_memory_rate(self):
        """Bytes per second of a copy within the device, read and written."""
        torch = self.torch
        source = torch.empty(COPY_BYTES // 8, dtype=torch.int64, device=self.at.device).random_()
        to = torch.empty_like(source)
        us = self.time(lambda: to.copy_(source), 1, RATE_SAMPLES, RATE_WARMUP)
        return [2 * COPY_BYTES / (t * 1e-6) for t in us]

    def part_matrix_rate(self, dtype):
        """Operations per second of a large product."""
        torch = self.torch
        a, b, c = (torch.randn((MATRIX, MATRIX), dtype=getattr(torch, dtype), device=self.at.device) for _ in range(3))
        us = self.time(lambda: torch.mm(a, b, out=c), 1, RATE_SAMPLES * 2, RATE_WARMUP)
        return [2 * MATRIX**3 / (t * 1e-6) for t in us]

    def part_link_rate(self):
        """Bytes per second of a copy to the next rank's GPU while every rank copies."""
        import torch.distributed._symmetric_memory as symmetric_memory
        torch = self.torch
        there = symmetric_memory.empty(LINK_BYTES // 4, dtype=torch.float32, device=self.at.device)
        handle = symmetric_memory.rendezvous(there, torch.distributed.group.WORLD.group_name)
        peer = handle.get_buffer((self.rank + 1) % self.settings.ranks, there.shape, there.dtype)
        source = torch.randn(LINK_BYTES // 4, device=self.at.device)
        us = self.time(lambda: peer.copy_(source), 1, RATE_SAMPLES * 2, RATE_WARMUP)
        torch.distributed.barrier()
        return [LINK_BYTES / (t * 1e-6) for t in us]

    # ---- baselines ----

    def copies(self, shape):
        return shapes.copies(shape, self.cache_bytes)

    def warmup(self):
        return shapes.warmup_calls(self.at.shape, self.settings.ranks)

    def samples(self, calls):
        return shapes.samples(self.at.shape, self.settings.ranks, calls)

    def part_prepare(self, shape):
        """Make this shape's inputs for the baselines."""
        self.at.shape, self.at.sets = shape, None
        baselines.prepare(self.at, self.copies(shape))
        self.torch.cuda.synchronize()
        return {"input sets": self.copies(shape)}

    def part_baseline(self, table, key):
        shape = self.at.shape
        baseline = next(b for b in baselines.BASELINES[table] if b.key == key)
        ncopies = self.copies(shape)
        calls = shapes.calls_per_sample(shape, ncopies)
        run = baseline.make(self.at)
        self.torch.cuda.synchronize()
        with self.torch.cuda.stream(self.stream):
            for i in range(3):
                run(i % ncopies)
        self.torch.cuda.synchronize()
        if baseline.graph:
            sample = self.captured(run, calls, ncopies).replay
        else:
            def sample():
                for i in range(calls):
                    run(i % ncopies)
        found = self.time(sample, calls, self.samples(calls), -(-self.warmup() // calls))
        self.torch.cuda.synchronize()
        return found

    def part_release(self):
        """Give the baselines' memory back."""
        self.at.sets = None
        self.torch.cuda.empty_cache()

    # ---- fccd ----

    def part_fcc_connect(self):
        """Returns, on rank 0, the communicator's id."""
        self.part_fcc_close()
        self.client = Client(self.settings.client_path, self.settings.socket, fused.JOB)
        return self.client.unique_id() if self.rank == 0 else None

    def part_fcc_open(self, shape, uid):
        self.at.shape = shape
        self.session = fused.open_session(self.at, self.client, uid, self.device_number, self.stream, self.copies(shape))
        self.torch.cuda.empty_cache()

    def part_fcc_check(self, schedule):
        return self.session.check(functools.partial(self.session.run, schedule), 0)

    def part_fcc_fill(self):
        """What comm_only sends lies where the sequential schedule has left it: numbers, not zeros."""
        with self.torch.cuda.stream(self.stream):
            self.session.run("sequential", 0)
        self.stream.synchronize()
        self.client.error()

    def part_fcc_kernel(self, schedule):
        return fused.kernel_samples(self.session, schedule, self.copies(self.at.shape), max(TRACE_BURST, self.warmup() // 2),
                                    (self.settings.fccctl, self.settings.socket))

    def part_fcc_launches(self):
        """On rank 0: who has launched the kernels of the communicator so far."""
        return fused.launches_fetch((self.settings.fccctl, self.settings.socket)) if self.rank == 0 else None

    def part_fcc_stream(self, schedule, grouped):
        """Each by itself, or as many in a group as a graph of the baselines has; as in_a_row()."""
        return self.in_a_row(functools.partial(self.session.run, schedule), self.copies(self.at.shape),
                             max(self.warmup(), AUTO_WARMUP if schedule == "auto" else 0),
                             self.client.group if grouped else contextlib.nullcontext)

    def in_a_row(self, run, ncopies, warmup, around=contextlib.nullcontext):
        """run(copy) many times in a row on the stream; then, the last result's error: (us, (error, bits))."""
        calls = shapes.calls_per_sample(self.at.shape, ncopies)

        def sample():
            with around():
                for i in range(calls):
                    run(i % ncopies)
        found = self.time(sample, calls, self.samples(calls), -(-warmup // calls))
        return found, self.session.error_of((calls - 1) % ncopies)

    def part_fcc_prepare(self, schedule):
        """Returns what check() does of the first operator, or why none can be prepared here."""
        try:
            self.session.prepare(schedule, shapes.prepared_copies(self.at.shape, self.cache_bytes))
        except Unsupported as e:
            return str(e)
        return self.session.check(self.session.run_prepared, 0)

    def part_fcc_prepared(self):
        """Runs of what part_fcc_prepare() has left, which is given back; as in_a_row()."""
        found = self.in_a_row(self.session.run_prepared, len(self.session.prepared), self.warmup())
        self.client.noop()  # fails if the communicator ended under a run
        self.session.prepared_free()
        return found

    def part_fcc_queued(self, schedule):
        """Many in a row that were enqueued while the stream was held, so that the CPU has no part in it."""
        turns = itertools.cycle(range(self.copies(self.at.shape)))
        found = noop.queued(self.torch, self.stream, lambda: self.session.run(schedule, next(turns)))
        self.client.error()
        return found

    def part_fcc_latency(self, schedule):
        return fused.latency_samples(self.session, schedule, self.copies(self.at.shape), LATENCY_SAMPLES, LATENCY_WARMUP)

    def part_noop(self, uid):
        self.client.join(uid, self.at.ranks, self.rank, self.device_number, DEVICE_CUDA, fused.TIME_LIMIT_MS)
        return noop.measure(self, self.client)

    def part_torch_ops(self, shape, uid):
        self.at.shape = shape
        return torch_ops.measure(self, uid)

    def part_collectives_open(self, uid):
        self.collectives = collectives.Session(self, uid)

    def part_collectives(self, shape):
        found = self.collectives.measure(shape)
        self.torch.cuda.empty_cache()
        return found

    def part_decode_open(self, uid):
        self.decode = decode.Session(self, uid)

    def part_decode(self, shape):
        return self.decode.measure(shape)

    def part_decode_rival_find(self):
        """Why FlashInfer cannot be used on this rank, or None. Compiles its kernels where nobody has before."""
        return decode.rival_missing(self.torch)

    def part_decode_rival_open(self):
        self.decode.rival_open()

    def part_decode_rival(self):
        """Of the shape that was measured last."""
        return self.decode.measure_rival()

    def part_t3_open(self, uid):
        self.t3 = t3.Session(self, uid)

    def part_t3(self, shape):
        return self.t3.measure(shape)

    def part_beside_open(self, uid):
        self.beside = beside.Session(self, uid)

    def part_beside(self, shape):
        return self.beside.measure(shape)

    def part_coconet(self, what, sizes, within_s):
        return sequences.measure(self, what, sizes, within_s)

    def part_coconet_model(self, what, within_s):
        return model.measure(self, what, within_s)

    def part_coconet_optim(self, in_place, within_s):
        return model.measure_optim(self, in_place, within_s)

    def part_fcc_close(self):
        for session in filter(None, (self.collectives, self.decode, self.t3, self.beside)):
            session.close()
        if self.session:
            self.session.close()
        elif self.client:
            self.client.close()
        self.session = self.collectives = self.decode = self.t3 = self.beside = self.client = None
        if self.torch:
            self.torch.cuda.empty_cache()
