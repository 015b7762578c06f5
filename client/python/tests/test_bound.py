# SPDX-License-Identifier: MIT
"""Programs, and optimizers with capturable=True, that the ranks launch themselves: on streams and in graphs, on fake GPUs (fake_gpus.py); and why they are not
bound elsewhere."""
import copy
import re

import fake_gpus
import fcc
import pytest
import torch
from fcc import In, InOut, Out
from ranks import Ranks, gpus


@fcc.program
def sgd(g: In("f32[N] local"), p: InOut("f32[N]"), m: InOut("f32[N]"), lr, momentum, *, N=1 << 20):
    s = fcc.all_reduce(g)
    m = momentum * m + s
    p = p - lr * m


FUSED = sgd.split("s").reorder("s").as_slice("m").fuse("s_part", "m_part", "m", "p", name="step")


@fcc.program
def scaled(x: In("f32[N] local"), y: Out("f32[N] local"), k, *, N=1 << 20):
    y = x * k  # noqa: F841


@fcc.program
def clipped(g: In("f32[N] local scattered(T)"), p: InOut("f32[N] scattered(T)"), lr, *, N=1000, T=3):
    s = fcc.all_reduce(g)
    p = p - lr * s  # noqa: F841


def captured(work):
    """A graph of what work() puts onto the stream."""
    with fake_gpus.Graph() as graph:
        work()
    return graph


# ---- programs ----

def runs_rank(comm, waits):
    """Runs, replays, and what numbers they have. m lies in torch's memory; g and p do, too, if they are to be copied. Nobody waits for a run."""
    ranks = comm.size * (comm.size + 1) // 2
    run = FUSED.compile(comm, N=1003)
    m = torch.zeros(run.elements("m"))
    g, p = (torch.zeros(1003), torch.zeros(1003)) if waits else (run.empty("g"), run.empty("p").zero_())
    g.fill_(comm.rank + 1)
    step = run.bind(g, p, m=m, lr=1.0, momentum=0.0)
    assert step.copied == (["g", "p"] if waits else []) and p.eq(0).all()
    fake_gpus.events.clear()
    assert step() is None
    step(lr=0.5)
    assert p.eq(-1.5 * ranks).all(), p[:4]
    if not waits:  # a replay has no copies of torch's here
        graph = captured(step)
        for lr in 1.0, 2.0:
            step.set(lr=lr)
            graph.replay()
            graph.replay()
        assert p.eq(-7.5 * ranks).all(), p[:4]
        step(lr=0.25)
        graph.replay()
        assert p.eq(-8.0 * ranks).all() and m.eq(ranks).all()
        graph.close()
    assert set(fake_gpus.events) <= {"synchronize"}, fake_gpus.events  # replay()'s: no event was recorded, and none waited for
    run(g, p, m, lr=0.0, momentum=0.0)  # as before, beside it
    comm.barrier()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_runs(bound_fakes, size, waits):
    Ranks(bound_fakes, "cuda", size, runs_rank, waits).results()


def outs_rank(comm):
    """An Out that is not given is the same tensor each time."""
    step = scaled.compile(comm, N=100).bind(x := torch.arange(100.0), k=2.0)
    first = step()
    assert torch.equal(first, 2 * x) and step(k=3.0) is first and torch.equal(first, 3 * x)
    x.add_(1)
    assert torch.equal(step(), 3 * x)


def test_outs(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, outs_rank).results()


def scattered_rank(comm):
    """Tensors of their own, in torch's memory or in one buffer of the daemon's."""
    lengths = [300, 0, 700]
    run = clipped.compile(comm)
    for copied in True, False:
        flat = {name: run.empty(name).fill_(1.0) for name in ("g", "p")}
        make = (lambda name: [torch.ones(n) for n in lengths]) if copied else (lambda name: list(flat[name].split(lengths)))  # noqa: B023
        g, p = make("g"), make("p")
        step = run.bind(g, p, lr=1.0)
        step()
        step(lr=0.5)
        assert all(x.eq(1 - 1.5 * comm.size).all() for x in p), (copied, p)


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_scattered(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, scattered_rank).results()


def wrong_rank(comm):
    """What is wrong with bind()'s arguments all ranks hear, and with a call's this one; either may be made again."""
    run, odd = FUSED.compile(comm, N=1000), comm.rank == 1
    g, p, m = run.empty("g").fill_(1), run.empty("p").zero_(), torch.zeros(run.elements("m"))
    for wrong, words in (({"g": g[:5]}, "rank 1: program sgd: `g`: torch.float32, 5 elements"), ({"lr": "x"}, "rank 1: program sgd: `lr`: str 'x': allowed is a number"),
                         ({"more": 1}, "rank 1: program sgd: `more`: not a parameter")):
        with pytest.raises(fcc.ArgumentError, match=re.escape(words)):
            run.bind(**({"g": g, "p": p, "m": m, "lr": 1.0, "momentum": 0.0} | (wrong if odd else {})))
    step = run.bind(g, p, m, lr=1.0, momentum=0.0)
    for wrong, words in (({"lr": "x"}, "`lr`: str 'x': allowed is a number"), ({"g": g}, "`g`: not a number of the program: allowed are lr, momentum")):
        with pytest.raises(fcc.ArgumentError, match=f"rank {comm.rank}: program sgd: {re.escape(words)}"):
            step(**wrong)
        with pytest.raises(fcc.ArgumentError, match=re.escape(words)):
            step.set(**wrong)
    with pytest.raises(fcc.ArgumentError, match="it is bound"):
        step.bind()
    for not_one in FUSED, step, None:
        with pytest.raises(fcc.ArgumentError, match="BoundProgram: run: .*: allowed is a CompiledProgram"):
            fcc.BoundProgram(not_one, (), {})
    step(lr=1.0)
    assert p.eq(-comm.size).all()
    step.close()
    with pytest.raises(fcc.ArgumentError, match="it has been closed"):
        step()
    comm.barrier()


def test_wrong(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, wrong_rank).results()


def moved_rank(comm):
    """A tensor that is given other memory ends the communicator, for all ranks."""
    run = FUSED.compile(comm, N=1000)
    g, p, m = run.empty("g").fill_(1), run.empty("p").zero_(), torch.zeros(run.elements("m"))
    step = run.bind(g, p, m, lr=1.0, momentum=0.0)
    step()
    comm.barrier()
    if comm.rank == 1:
        m.data = torch.zeros(run.elements("m"))
        with pytest.raises(fcc.ArgumentError, match="rank 1: program sgd: `m`: it has been given other memory than the program was bound with"):
            step()
    with pytest.raises(fcc.AbortedError, match="`m`: it has been given other memory"):
        while True:
            comm.barrier()


def test_moved(bound_fakes):
    for well, what in Ranks(bound_fakes, "cuda", 2, moved_rank).outcomes():
        assert well or what[1] == "AbortedError", what


def unbound_rank(comm, words):
    """It cannot be bound: all ranks hear why, calls run as before, and a capture says it, too."""
    run = FUSED.compile(comm, N=1000)
    g, p, m = run.empty("g").fill_(1), run.empty("p").zero_(), run.empty("m").zero_()
    with pytest.raises(fcc.UnsupportedError, match=words):
        run.bind(g, p, m, lr=1.0, momentum=0.0)
    run(g, p, m, lr=1.0, momentum=0.0)
    assert p.eq(-comm.size).all()
    if comm.device.type == "cpu" and not comm.member.on_gpu:
        return
    torch.cuda.is_current_stream_capturing = lambda: True
    with pytest.raises(fcc.CaptureError, match="the stream is being captured into a graph: not allowed") as e:
        run(g, p, m, lr=1.0, momentum=0.0)
    assert re.search(f"it could not be bound .*{words}", str(e.value)), str(e.value)


def test_unbound(fakes, run, device):
    Ranks(fakes, "cuda", 2, unbound_rank, "its kernel cannot be made: GPU_COMPILER=none").results()
    if device == "cpu":
        run(2, unbound_rank, r"^rank \d: program \w+: bind: its ranks are on cpu devices: allowed on CUDA GPUs")


def real_rank(comm):
    """On GPUs: in torch's memory, which is copied where other ranks use it, behind work that takes long, and in graphs, whose replays have the numbers that came before them."""
    torch.cuda.set_device(comm.device)  # torch.cuda.graph() captures a stream of the current GPU
    run, ranks = FUSED.compile(comm, N=1 << 20), comm.size * (comm.size + 1) // 2
    for make in (lambda name: run.empty(name).zero_(), lambda name: torch.zeros(run.elements(name), device=comm.device)):
        g, p, m = make("g"), make("p"), torch.zeros(run.elements("m"), device=comm.device)
        step = run.bind(g, p, m, lr=1.0, momentum=0.0)
        side = torch.cuda.Stream(comm.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            g.fill_(comm.rank + 1)
            step()
        torch.cuda.current_stream().wait_stream(side)
        assert (p == -ranks).all()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            g.mul_(2)
            step()
        step.set(lr=0.5)
        graph.replay()  # twice the gradient, half the step
        step.set(lr=0.25)
        graph.replay()
        step(lr=0.0)
        assert (p == -3 * ranks).all(), p[:4]
        comm.synchronize()


@pytest.mark.filterwarnings("ignore::fcc.CopyWarning")
def test_gpus(run, device):
    run(gpus(device), real_rank)


# ---- optimizers ----

def model_of(comm, dtype, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(n, 3, generator=generator, device="cpu").to(dtype)) for n in (5, 40, 1)]


def gradients(parameters, comm, t):
    for i, p in enumerate(parameters):
        generator = torch.Generator("cpu").manual_seed(100 * t + 10 * i + comm.rank)
        made = torch.randn(p.shape, generator=generator, device="cpu").to(p.dtype)
        if p.grad is None:
            p.grad = made
        else:
            p.grad.copy_(made)


def steps_rank(comm, name, dtype, options):
    """With capturable=True all steps are the same as without, in graphs and outside, also when lr changes; and so are the checkpoints."""
    make = getattr(fcc.optim, name)
    theirs, ours = model_of(comm, dtype), model_of(comm, dtype)
    plain, bound = make(theirs, lr=0.01, comm=comm, **options), make(ours, lr=0.01, comm=comm, capturable=True, grads_in_place=True, **options)
    graph = None
    for t in range(1, 13):
        for optimizer in plain, bound:
            optimizer.param_groups[0]["lr"] = 0.01 / t
        for parameters in theirs, ours:
            gradients(parameters, comm, t)
        plain.step()
        if t == 4:
            bound.zero_grad(set_to_none=False)  # from now on gradients lie in the daemon's memory, where replays find them
            gradients(ours, comm, t)
            fake_gpus.events.clear()
            bound.step()
            assert not fake_gpus.events
            before = [p.detach().clone() for p in ours]
            graph = captured(bound.step)
            assert all(torch.equal(p, q) for p, q in zip(ours, before))  # nothing has run
        elif graph is None or t % 3 == 0:
            bound.step()
        else:
            bound.advance()
            graph.replay()
        for p, q in zip(theirs, ours):
            assert torch.equal(p, q), (t, p, q)
    one, other = plain.state_dict(), bound.state_dict()
    for i, state in one["state"].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other["state"][i][key])), (i, key)
    graph.close()


@pytest.mark.parametrize("name, dtype, options", [("Adam", torch.float32, {}), ("AdamW", torch.bfloat16, {"amsgrad": True}), ("LAMB", torch.float32, {"weight_decay": 0.1}),
                                                  ("LAMB", torch.bfloat16, {}), ("SGD", torch.float32, {"momentum": 0.9})])
def test_steps(bound_fakes, name, dtype, options):
    Ranks(bound_fakes, "cuda", 2, steps_rank, name, dtype, options).results()


def real_steps_rank(comm, name, dtype):
    """On GPUs: a graph of forward, backward and step is the same as steps that the daemon launches, with a schedule of lr."""
    torch.cuda.set_device(comm.device)
    make = getattr(fcc.optim, name)
    theirs, ours = ([torch.nn.Parameter(p.detach().to(comm.device)) for p in model_of(comm, dtype)] for _ in range(2))
    plain, bound = make(theirs, comm=comm), make(ours, comm=comm, capturable=True, grads_in_place=True)
    x = torch.zeros((), device=comm.device, dtype=dtype)

    def backward(parameters):
        sum((p * p * x).sum() for p in parameters).backward()

    def settle(optimizer, parameters, t):
        optimizer.param_groups[0]["lr"] = 0.01 / t
        x.fill_(t + comm.rank)
        for p in parameters:
            if p.grad is not None:
                p.grad.zero_()
    side = torch.cuda.Stream(comm.device)
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    for t in range(1, 12):
        settle(plain, theirs, t)
        backward(theirs)
        plain.step()
        with torch.cuda.stream(side):
            settle(bound, ours, t)
            if t <= 3:
                backward(ours)
                bound.step()
            else:
                bound.advance()
                graph.replay()
        side.synchronize()
        for p, q in zip(theirs, ours):
            assert torch.equal(p, q), (t, p, q)
        if t == 3:
            for p in ours:
                p.grad.zero_()
            with torch.cuda.graph(graph, stream=side):
                backward(ours)
                bound.step()
    comm.synchronize()


@pytest.mark.parametrize("name, dtype", [("Adam", torch.float32), ("AdamW", torch.bfloat16), ("LAMB", torch.bfloat16)])
def test_gpus_steps(run, device, name, dtype):
    run(gpus(device), real_steps_rank, name, dtype)


def changes_rank(comm):
    """What makes the ranks agree anew, outside of captures, and is refused within; nothing has happened then."""
    parameters = model_of(comm, torch.float32)
    o = fcc.optim.Adam(parameters, comm=comm, capturable=True)
    gradients(parameters, comm, 1)

    def refused(words):
        before = [p.detach().clone() for p in parameters]
        with fake_gpus.Graph() as graph, pytest.raises(fcc.CaptureError, match=f"rank {comm.rank}: Adam: the stream is being captured into a graph, and {words}: not allowed"):
            o.step()
        graph.close()
        assert all(torch.equal(p, q) for p, q in zip(parameters, before))
    refused("no step has been made yet, or none since a state was loaded")
    with pytest.raises(fcc.ArgumentError, match="advance: no step has been captured"):
        o.advance()
    o.step()
    captured(o.step).close()
    parameters[1].grad = None
    refused("other parameters have gradients than in the step before")
    o.step()
    captured(o.step).close()
    parameters[0].data = parameters[0].detach().clone()
    refused("a parameter lies elsewhere than in the step before")
    o.step()
    parameters.append(torch.nn.Parameter(torch.ones(7)))
    o.add_param_group({"params": [parameters[-1]]})
    refused("other parameters have gradients than in the step before")
    parameters[-1].grad = torch.ones(7)
    o.step()
    o.load_state_dict(copy.deepcopy(o.state_dict()))
    refused("no step has been made yet, or none since a state was loaded")
    o.step()
    graph = captured(o.step)
    o.advance()
    graph.replay()
    o.load_state_dict(copy.deepcopy(o.state_dict()))
    with pytest.raises(fcc.ArgumentError, match="Adam: advance: since the capture a state was loaded, or parameters have moved, or others have gradients"):
        o.advance()
    graph.close()
    o.step()
    o.grad_scale, o.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    refused("a GradScaler is in use")
    comm.barrier()


def test_changes(bound_fakes):
    Ranks(bound_fakes, "cuda", 2, changes_rank).results()


def not_capturable_rank(comm, words):
    """capturable=True where programs cannot be bound: all ranks hear why, and nothing runs otherwise instead."""
    p = torch.nn.Parameter(torch.ones(4))
    for wrong in 1, "yes":
        with pytest.raises(fcc.ArgumentError, match="Adam: capturable: .*allowed: True and False"):
            fcc.optim.Adam([p], comm=comm, capturable=wrong)
    o = fcc.optim.Adam([p], comm=comm, capturable=True)
    p.grad = torch.ones(4)
    for _ in range(2):
        with pytest.raises(fcc.UnsupportedError, match=words):
            o.step()
        assert p.eq(1).all()
    comm.barrier()


def test_not_capturable(fakes, run, device):
    Ranks(fakes, "cuda", 2, not_capturable_rank, "its kernel cannot be made: GPU_COMPILER=none").results()
    if device == "cpu":
        run(2, not_capturable_rank, "its ranks are on cpu devices: allowed on CUDA GPUs")
