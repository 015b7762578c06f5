# SPDX-License-Identifier: MIT
"""fccd's side: one rank's communicator, buffers and calls for one shape, and torch's view of them."""
import ctypes
import hashlib
import json
import subprocess
import time

from . import figures, inputs
from .fcc import DEVICE_CUDA, LOCAL, SCHEDULES, SYMMETRIC, Client, EmbeddingArgs, FccError, GemmArgs, GemvArgs, Tensor
from .shapes import ELEMENT_BYTES, EMBEDDING, GEMM, GEMV

JOB = "compare_gpu"
TIME_LIMIT_MS = 10000  # of one operator
TRACE_LIMIT_S = 20


class DeviceMemory:
    """Memory as torch takes it (the CUDA array interface, which has no bfloat16: that goes as int16)."""

    TYPES = {"float32": "<f4", "float16": "<f2", "bfloat16": "<i2", "int64": "<i8"}

    def __init__(self, address, dtype, shape):
        self.__cuda_array_interface__ = {"data": (address, False), "typestr": self.TYPES[dtype], "shape": tuple(shape),
                                         "strides": None, "version": 3}


def view(at, buffer, dtype, *shape):
    """The buffer's first elements as a torch tensor."""
    t = at.torch.as_tensor(DeviceMemory(buffer.address, dtype, shape), device=at.device)
    if t.data_ptr() != buffer.address:
        raise FccError(f"the buffer at {buffer.address:#x} is not memory of {at.device}")
    return t.view(at.torch.bfloat16) if dtype == "bfloat16" else t


class Session:
    """Made by open_session() on every rank in the same order. close() gives everything back."""

    def __init__(self, at, client, stream):
        self.at, self.client, self.stream = at, client, stream
        self.calls = {}  # (schedule, copy) -> the operator's arguments
        self.out = None  # torch's view of the result
        self.keep = []  # what calls point to
        self.references = {}  # by copy
        self.enqueue = client.enqueuer(at.shape.operator, stream.cuda_stream)
        self.prepared, self.runs = [], []  # by copy: an operator that was prepared, what enqueues a run of it

    def local(self, dtype, *shape):
        """A buffer for inputs, and its view."""
        return self.allocate(LOCAL, dtype, shape)

    def symmetric(self, dtype, *shape):
        return self.allocate(SYMMETRIC, dtype, shape)

    def allocate(self, kind, dtype, shape):
        count = 1
        for n in shape:
            count *= n
        buffer = self.client.buffer(kind, count * {**ELEMENT_BYTES, "int64": 8}[dtype])
        return buffer, view(self.at, buffer, dtype, *shape)

    def run(self, schedule, copy):
        self.enqueue(self.calls[schedule, copy])

    def prepare(self, schedule, ncopies):
        """One operator for each of the first sets of inputs."""
        for i in range(ncopies):
            handle = self.client.prepare(self.at.shape.operator, self.calls[schedule, i])
            self.prepared.append(handle)
            self.runs.append(self.client.prepared_enqueuer(handle, self.stream.cuda_stream))

    def run_prepared(self, copy):
        self.runs[copy]()

    def prepared_free(self):
        if self.prepared:
            self.stream.synchronize()
        while self.prepared:
            self.client.prepared_free(self.prepared.pop())
        self.runs = []

    def check(self, run, copy):
        """Poison the result, run(copy) once on the stream, and judge it as error_of() does."""
        with self.at.torch.cuda.stream(self.stream):
            self.out.fill_(float("nan"))
            run(copy)
        return self.error_of(copy)

    def error_of(self, copy):
        """(relative error of what is in the result now against these inputs' reference, a digest of its bits where all ranks'
        results must have the same, or None)"""
        self.stream.synchronize()
        self.client.error()
        if copy not in self.references:
            self.references[copy] = inputs.REFERENCES[self.at.shape.operator](self.at, copy)
        error = inputs.relative_error(self.at, self.out, self.references[copy])
        digest = None
        if self.at.shape.operator == GEMV:
            digest = hashlib.sha256(bytes(self.out.view(self.at.torch.uint8).flatten().tolist())).hexdigest()
        self.at.torch.cuda.synchronize()
        return error, digest

    def close(self):
        self.prepared_free()
        self.out, self.keep, self.calls, self.references = None, [], {}, {}
        self.client.close()


def open_session(at, client, uid, device, stream, ncopies):
    """Join the communicator and fill the buffers with the inputs of at.shape."""
    client.join(uid, at.ranks, at.rank, device, DEVICE_CUDA, TIME_LIMIT_MS)
    session = Session(at, client, stream)
    {GEMV: gemv_open, GEMM: gemm_open, EMBEDDING: embedding_open}[at.shape.operator](session, ncopies)
    at.torch.cuda.synchronize()
    return session


def gemv_open(session, ncopies):
    s, size = session.at.shape, ELEMENT_BYTES[session.at.shape.dtype]
    x, x_view = session.local(s.dtype, ncopies, s.m, s.k)
    w, w_view = session.local(s.dtype, ncopies, s.n, s.k)
    y, session.out = session.symmetric(s.dtype, s.m, s.n)
    for i in range(ncopies):
        for to, made in zip((x_view[i], w_view[i]), inputs.gemv(session.at, session.at.rank, i)):
            to.copy_(made)
        for name, number in SCHEDULES.items():
            session.calls[name, i] = GemvArgs(
                x=x.tensor(i * s.m * s.k * size, s.dtype, s.m, s.k), w=w.tensor(i * s.n * s.k * size, s.dtype, s.n, s.k),
                y=y.tensor(0, s.dtype, s.m, s.n), schedule=number)


def gemm_open(session, ncopies):
    s, size = session.at.shape, ELEMENT_BYTES[session.at.shape.dtype]
    a, a_view = session.local(s.dtype, ncopies, s.m, s.k)
    b, b_view = session.local(s.dtype, ncopies, s.k, s.n)
    c, session.out = session.symmetric(s.dtype, s.m, s.n)
    for i in range(ncopies):
        for to, made in zip((a_view[i], b_view[i]), inputs.gemm(session.at, session.at.rank, i)):
            to.copy_(made)
        for name, number in SCHEDULES.items():
            session.calls[name, i] = GemmArgs(
                a=a.tensor(i * s.m * s.k * size, s.dtype, s.m, s.k), b=b.tensor(i * s.k * s.n * size, s.dtype, s.k, s.n),
                c=c.tensor(0, s.dtype, s.m, s.n), schedule=number)


def embedding_open(session, ncopies):
    at, s = session.at, session.at.shape
    bags = s.tables * s.batch
    tables, tables_view = session.local(s.dtype, s.tables, s.rows, s.dim)
    ids, ids_view = session.local("int64", ncopies, s.tables, s.batch, s.ids)
    offsets, offsets_view = session.local("int64", bags + 1)
    out_shape = (s.batch // at.ranks, at.ranks * s.tables, s.dim)
    out, session.out = session.symmetric(s.dtype, *out_shape)
    for t in range(s.tables):
        tables_view[t].copy_(inputs.table(at, at.rank, t))
        for i in range(ncopies):
            ids_view[i, t].copy_(inputs.ids(at, at.rank, t, i))
    offsets_view.copy_(at.torch.arange(0, bags * s.ids + 1, s.ids, device=at.device))
    table_rows = (ctypes.c_int64 * s.tables)(*[s.rows] * s.tables)
    session.keep.append(table_rows)
    for i in range(ncopies):
        for name, number in SCHEDULES.items():
            session.calls[name, i] = EmbeddingArgs(
                tables=tables.tensor(0, s.dtype, s.tables * s.rows, s.dim), table_rows=table_rows, num_tables=s.tables,
                pooling=0, indices=ids.tensor(i * bags * s.ids * 8, "int64", bags * s.ids),
                offsets=offsets.tensor(0, "int64", bags + 1), sample_weights=Tensor(), batch=s.batch,
                out=out.tensor(0, s.dtype, *out_shape), schedule=number)


# ---- times ----

def fccctl_ask(fccctl, socket, what):
    """What fccctl says of this job."""
    done = subprocess.run([str(fccctl), "--socket", str(socket), what, "--job", JOB, "--json"], capture_output=True, text=True,
                          timeout=TRACE_LIMIT_S, check=False)
    if done.returncode:
        raise FccError(f"fccctl {what}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def launches_fetch(tracer):
    """How many operators there have been, of how many the ranks' own processes have launched the kernels, and how often the worker
    has taken such operators back."""
    comms = [comm for worker in fccctl_ask(*tracer, "comms")["workers"] for comm in worker["comms"]]
    return {key: sum(comm[key] for comm in comms) for key in ("operators", "bound", "recalled")}


def trace_fetch(tracer, operator, schedule):
    """The trace of the operator that finished last, which is the communicator's."""
    trace = fccctl_ask(*tracer, "trace")
    if (trace["op"], trace["schedule"]) != (operator, schedule):
        raise FccError(f"fccctl trace: asked for {operator}, {schedule}, got {trace['op']}, {trace['schedule']}")
    return trace


def kernel_samples(session, schedule, ncopies, burst, tracer):
    """Each sample is the last of a burst of calls that the daemon launches (what it does not launch has no trace), so that the GPU
    is as busy as in use. Rank 0 fetches each trace before it submits anything else, so no rank's next call can have finished. What
    figures.trace_spans() finds, of each sample."""
    enqueue = session.client.attended_enqueuer(session.at.shape.operator, session.stream.cuda_stream)
    found = []
    for _ in range(session.at.shape.traces):
        for i in range(burst - 1):
            enqueue(session.calls[schedule, i % ncopies])
        last = session.calls[schedule, (burst - 1) % ncopies]
        session.client.enqueue_and_wait(session.at.shape.operator, last, session.stream.cuda_stream)
        if session.at.rank == 0:
            found.append(figures.trace_spans(trace_fetch(tracer, session.at.shape.operator, schedule)))
    session.client.error()
    return found


def latency_samples(session, schedule, ncopies, samples, warmup):
    """One call on an idle GPU, all ranks at about the same time: ([us between events on the stream], [us for the CPU])."""
    torch, on_stream, on_cpu = session.at.torch, [], []
    for i in range(warmup + samples):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        session.stream.synchronize()
        session.client.noop()
        start = time.perf_counter()
        before.record(session.stream)
        session.run(schedule, i % ncopies)
        after.record(session.stream)
        session.stream.synchronize()
        end = time.perf_counter()
        if i >= warmup:
            on_stream.append(before.elapsed_time(after) * 1e3)
            on_cpu.append((end - start) * 1e6)
    session.client.error()
    return on_stream, on_cpu
