# SPDX-License-Identifier: MIT
"""compare_gpu --rows coconet: programs of client/programs beside NCCL and what torch.compile makes of the same. Both sides are CUDA graphs, from event to event,
and the slowest rank counts; fccd's is build/tests/program_fcc, with a bound program. One that cannot be bound is launched by fccd, and timed from call to
return, which is said. What cannot run says why.
"""
import json
import pathlib
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass

PROGRAMS = pathlib.Path(__file__).resolve().parents[3] / "client" / "programs"
ADAM_SCALARS = "lr=0.001,beta1=0.9,beta2=0.999,epsilon=1e-8,step=3,scale=0.5"
ADAM_TENSORS = "g:f32,p:f32,m:f32,v:f32"
ITERS, REPLAYS, SEQUENCE_LIMIT_S = 20, 20, 60
FROM_PYTHON = "fccd: a list of tensors is a model's: fcc.optim, whose programs do not run on GPUs yet"
NO_TUNER = "fccd: fcc_tune: programs are not tuned on GPUs yet"


@dataclass(frozen=True)
class Row:
    name: str
    program: str  # of client/programs; "": none
    sizes: dict
    tensors: str
    scalars: str
    against: dict  # the name of a sequence below: the goal, a ratio
    missing: str = ""  # why fccd cannot run it


def rows():
    out = []
    for log2 in (20, 22, 24, 26, 28):
        goals = {"all_reduce + Adam": 0.5 if log2 >= 24 else 1.0, "reduce_scatter + Adam + all_gather": 0.65 if log2 >= 24 else None}
        out.append(Row(f"Adam 2^{log2}", "adam", {"N": 1 << log2}, ADAM_TENSORS, ADAM_SCALARS, goals))
    out.append(Row("Adam, 150 tensors", "", {"N": 1 << 24}, "", "", {"all_reduce + Adam": 0.55}, FROM_PYTHON))
    for log2 in (20, 24, 26):
        out.append(Row(f"LAMB 2^{log2}", "lamb", {"N": 1 << log2}, ADAM_TENSORS, ADAM_SCALARS + ",decay=0.01", {"all_reduce + LAMB": 0.55 if log2 >= 24 else None}))
    for name, m, h in ("GPT-2 8.3B", 8192, 3072), ("GPT-3", 4096, 12288):
        out.append(Row(f"epilogue {name}", "epilogue", {"M": m, "H": h}, "x:f32,bias:f32,residual:f32,y:f32", "seed=1,step=1", {"all_reduce + epilogue": 0.6}))
        out.append(Row(f"product + epilogue {name}", "mlp", {"M": m, "H": h, "K": 4 * h}, "x:f32,w:f32,bias:f32,residual:f32,y:f32", "seed=1,step=1",
                       {"product + all_reduce + epilogue": 0.8}))
    out.append(Row("tuner", "", {}, "", "", {}, NO_TUNER))
    return out


# ---- the sequences: built on a rank, each returns what is captured ----


def adam(torch, p, m, v, g, c1=0.271, c2=0.003):
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.sub_(0.001 * (m / c1) / ((v / c2).sqrt() + 1e-8))


def lamb(torch, p, m, v, g, c1=0.271, c2=0.003):
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    u = (m / c1) / ((v / c2).sqrt() + 1e-8) + 0.01 * p
    wide, long = p.norm(), u.norm()
    p.sub_(0.001 * torch.where(wide > 0, torch.where(long > 0, wide / long, 1.0), 1.0) * u)


def epilogue(torch, s, bias, residual, y):
    y.copy_(torch.nn.functional.dropout(s + bias, 0.1) + residual)


def sequence(name, sizes, torch, dist, rank, ranks):
    """What one step of a sequence calls, over tensors of its own; f32, as the programs are."""
    def new(*shape):
        return torch.zeros(*shape, device=f"cuda:{rank}")

    if "Adam" in name or "LAMB" in name:
        n, step = sizes["N"], torch.compile(lamb if "LAMB" in name else adam)
        g, p = new(n), new(n)
        if name.startswith("reduce_scatter"):
            own, m, v = new(n // ranks), new(n // ranks), new(n // ranks)
            shard = p.view(ranks, -1)[rank]

            def run():
                dist.reduce_scatter_tensor(own, g)
                step(torch, shard, m, v, own * 0.5)
                dist.all_gather_into_tensor(p, shard)
            return run
        m, v = new(n), new(n)

        def run():
            dist.all_reduce(g)
            step(torch, p, m, v, g * 0.5)
        return run
    m, h, end = sizes["M"], sizes["H"], torch.compile(epilogue)
    s, bias, residual, y = new(m, h), new(h), new(m, h), new(m, h)
    factors = (new(m, sizes["K"] // ranks), new(sizes["K"] // ranks, h)) if name.startswith("product") else None

    def run():
        if factors:
            torch.mm(*factors, out=s)
        dist.all_reduce(s)
        end(torch, s, bias, residual, y)
    return run


def sequence_rank(rank, ranks, name, sizes, meeting, times):
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=ranks, device_id=torch.device("cuda", rank))
    run = sequence(name, sizes, torch, dist, rank, ranks)
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            run()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):  # NCCL's own thread asks for events meanwhile
        run()
    for i in range(-3, REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 0:
            times[rank, i] = begin.elapsed_time(end) * 1e3
    dist.destroy_process_group()


def sequence_us(name, sizes, ranks):
    import torch
    import torch.multiprocessing as mp

    times = torch.zeros(ranks, REPLAYS, dtype=torch.float64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        processes = mp.spawn(sequence_rank, (ranks, name, sizes, f"{folder}/meeting", times), nprocs=ranks, join=False)
        until = time.monotonic() + SEQUENCE_LIMIT_S
        try:
            while not processes.join(timeout=1):
                if time.monotonic() > until:
                    raise RuntimeError(f"not done after {SEQUENCE_LIMIT_S} s")
        finally:
            for process in processes.processes:
                if process.is_alive():
                    process.kill()
    return statistics.median(times.max(0).values.tolist())


def program_us(build, socket, row, ranks):
    command = [build / "tests" / "program_fcc", ranks, ITERS, socket, PROGRAMS / f"{row.program}.fcc", "cuda", ",".join(f"{k}={v}" for k, v in row.sizes.items()),
               row.tensors, row.scalars]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=SEQUENCE_LIMIT_S)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"program_fcc ended with {done.returncode}")
    said = json.loads(done.stdout)
    if said["unbound"]:
        print(f"{row.name}: launched by fccd, not in graphs: {said['unbound']}", flush=True)
    return statistics.median(said["us"])


def attempt(work, *arguments):
    """(microseconds, "") or (None, why not)."""
    try:
        return work(*arguments), ""
    except Exception as e:  # noqa: BLE001: one row's failure is said, and the others go on
        return None, (str(e).strip().splitlines() or [type(e).__name__])[-1]


def lines(row, ours, why, others):
    """What is printed of a row; others: {sequence: (us, why)}."""
    if row.missing or ours is None:
        yield f"{row.name}: not run: {row.missing or 'fccd: ' + why}"
    for name, (us, reason) in others.items():
        if us is None:
            yield f"{row.name}: {name}: not run: {reason}"
        elif ours is None:
            yield f"{row.name}: {name} {us:.1f} us"
        else:
            goal, ratio = row.against[name], ours / us
            judged = "no goal" if goal is None else f"goal {goal:.2f}: {'met' if ratio <= goal else 'missed'}"
            yield f"{row.name}: fccd {ours:.1f} us, {name} {us:.1f} us, ratio {ratio:.2f} ({judged})"


def run(daemon, gpus, match, ranks):
    """All rows, one after the other; the exit status: 0, whatever the times are, 1 if nothing of fccd's ran."""
    ranks, ran = ranks or min(gpus, 2), False
    build = daemon.binary.parent.parent
    with daemon:
        for row in rows():
            if match not in row.name:
                continue
            ours, why = (None, row.missing) if row.missing else attempt(program_us, build, daemon.socket, row, ranks)
            others = {name: attempt(sequence_us, name, row.sizes, ranks) for name in row.against if not row.missing}
            ran |= ours is not None
            for line in lines(row, ours, why, others):
                print(line, flush=True)
    return 0 if ran else 1
